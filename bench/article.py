"""The first baseline: the article's algorithm as it stands, in Python.

Its tables and keys, its three calls for each record (get, transact, update), its reading of errors:
whatever cancels the transaction is a lack of funds. Two things that cannot work as printed are
taken as they are meant: the index over OfflineTx is keyed by `status`, the attribute that is
written, and an answer names failed records. The condition of its Put is left as it is: it looks at
an item that never exists, because the sort key is the time, so a repetition is a second row.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

OFFLINE_TX: dict[str, Any] = {
    "AttributeDefinitions": [
        {"AttributeName": "agentId", "AttributeType": "S"},
        {"AttributeName": "createdAt", "AttributeType": "N"},
        {"AttributeName": "status", "AttributeType": "S"},
    ],
    "KeySchema": [
        {"AttributeName": "agentId", "KeyType": "HASH"},
        {"AttributeName": "createdAt", "KeyType": "RANGE"},
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "StatusCreatedAtGSI",
            "KeySchema": [
                {"AttributeName": "status", "KeyType": "HASH"},
                {"AttributeName": "createdAt", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
    "BillingMode": "PAY_PER_REQUEST",
}
WALLET_LEDGER: dict[str, Any] = {
    "AttributeDefinitions": [
        {"AttributeName": "phone", "AttributeType": "S"},
        {"AttributeName": "txId", "AttributeType": "S"},
        {"AttributeName": "status", "AttributeType": "S"},
    ],
    "KeySchema": [
        {"AttributeName": "phone", "KeyType": "HASH"},
        {"AttributeName": "txId", "KeyType": "RANGE"},
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "PhoneStatusGSI",
            "KeySchema": [
                {"AttributeName": "phone", "KeyType": "HASH"},
                {"AttributeName": "status", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
    "BillingMode": "PAY_PER_REQUEST",
}
REFUSED = "INSUFFICIENT_BALANCE"
CANCELLED = {"TransactionCanceledException", "ConditionalCheckFailedException"}
DAYS_KEPT = 7


@dataclass(frozen=True, slots=True)
class Article:
    """The article's backend on two tables. `dead_letter` is sent what failed; `now_ms`: the time.

    `side_by_side` records of one batch are worked on at once, as its handler's promises are.
    """

    client: "DynamoDBClient"
    offline_tx: str
    wallet_ledger: str
    dead_letter: Callable[[str], None]
    now_ms: Callable[[], int]
    side_by_side: int = 1

    def open_wallet(self, phone: str, balance_minor: int) -> None:
        """The article does not say how money comes in: the row that its debit looks at."""
        self.client.put_item(
            TableName=self.wallet_ledger,
            Item={**_balance_key(phone), "balance": {"N": str(balance_minor)}},
        )

    def enqueue(
        self, agent_id: str, phone: str, amount: int, idempotency_key: str
    ) -> dict[str, Any]:
        """Accept a transaction; the stream's record of its row."""
        now_ms = self.now_ms()
        row = {
            "agentId": {"S": agent_id},
            "createdAt": {"N": str(now_ms)},
            "expiresAt": {"N": str(now_ms // 1000 + DAYS_KEPT * 86_400)},
            "phone": {"S": phone},
            "amount": {"N": str(amount)},
            "idempotencyKey": {"S": idempotency_key},
            "status": {"S": "queued"},
        }
        self.client.put_item(
            TableName=self.offline_tx,
            Item=row,
            ConditionExpression="attribute_not_exists(idempotencyKey)",
        )
        return {"eventID": str(now_ms), "eventName": "INSERT", "dynamodb": {"NewImage": row}}

    def handle(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Reconcile a batch of stream records; the event ids of those that failed."""
        with ThreadPoolExecutor(self.side_by_side) as pool:
            return [failed for failed in pool.map(self._settled, records) if failed]

    def _settled(self, record: Mapping[str, Any]) -> str | None:
        try:
            self._reconcile(record)
        except Exception:  # whatever it is, the stream brings it again
            return str(record["eventID"])
        return None

    def _reconcile(self, record: Mapping[str, Any]) -> None:
        if record["eventName"] not in ("INSERT", "MODIFY"):
            return
        row = {name: next(iter(v.values())) for name, v in record["dynamodb"]["NewImage"].items()}
        if row["status"] != "queued":
            return
        existing = self.client.get_item(
            TableName=self.wallet_ledger,
            Key={"phone": {"S": row["phone"]}, "txId": {"S": row["idempotencyKey"]}},
        )
        if "Item" in existing:
            self._set_status(row, "synced")
            return
        try:
            self._debit(row)
            self._set_status(row, "synced")
        except ClientError as error:
            if error.response["Error"]["Code"] not in CANCELLED:
                raise
            self._set_status(row, "failed", REFUSED)
            members = ("idempotencyKey", "phone", "amount")
            self.dead_letter(json.dumps({name: row[name] for name in members} | {"error": REFUSED}))

    def _debit(self, row: Mapping[str, str]) -> None:
        entry = {
            "phone": {"S": row["phone"]},
            "txId": {"S": row["idempotencyKey"]},
            "amount": {"N": row["amount"]},
            "createdAt": {"N": str(self.now_ms())},
            "status": {"S": "completed"},
            "type": {"S": "debit"},
        }
        put: Any = {
            "TableName": self.wallet_ledger,
            "Item": entry,
            "ConditionExpression": "attribute_not_exists(txId)",
        }
        update: Any = {
            "TableName": self.wallet_ledger,
            "Key": _balance_key(row["phone"]),
            "UpdateExpression": "SET #balance = #balance - :amount",
            "ConditionExpression": "attribute_exists(#balance) AND #balance >= :amount",
            "ExpressionAttributeNames": {"#balance": "balance"},
            "ExpressionAttributeValues": {":amount": {"N": row["amount"]}},
        }
        self.client.transact_write_items(TransactItems=[{"Put": put}, {"Update": update}])

    def _set_status(self, row: Mapping[str, str], status: str, reason: str | None = None) -> None:
        names, values = {"#status": "status"}, {":status": {"S": status}}
        update = "SET #status = :status"
        if reason is not None:
            names["#reason"], values[":reason"] = "reason", {"S": reason}
            update += ", #reason = :reason"
        self.client.update_item(
            TableName=self.offline_tx,
            Key={"agentId": {"S": row["agentId"]}, "createdAt": {"N": row["createdAt"]}},
            UpdateExpression=update,
            ExpressionAttributeNames=names,
            ExpressionAttributeValues=values,
        )


def _balance_key(phone: str) -> dict[str, Any]:
    return {"phone": {"S": phone}, "txId": {"S": f"BALANCE_{phone}"}}
