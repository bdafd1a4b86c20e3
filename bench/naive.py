"""The second baseline: what a tutorial does. Read the balance, look at it, write it back.

No condition holds the check and the write together, and an entry's key is made anew by each run:
a record that comes twice is debited twice. It shows that the harness can count duplicates.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@dataclass(frozen=True, slots=True)
class Naive:
    """The tutorial's backend, on tables of the article's shape. `now_ms`: the time."""

    client: "DynamoDBClient"
    offline_tx: str
    wallet_ledger: str
    now_ms: Callable[[], int]

    def open_wallet(self, phone: str, balance_minor: int) -> None:
        """A wallet with what it holds."""
        self._write_balance(phone, balance_minor)

    def enqueue(
        self, agent_id: str, phone: str, amount: int, idempotency_key: str
    ) -> dict[str, Any]:
        """Accept a transaction, as often as it is sent; the stream's record of its row."""
        row = {
            "agentId": {"S": agent_id},
            "createdAt": {"N": str(self.now_ms())},
            "phone": {"S": phone},
            "amount": {"N": str(amount)},
            "idempotencyKey": {"S": idempotency_key},
            "status": {"S": "queued"},
        }
        self.client.put_item(TableName=self.offline_tx, Item=row)
        return {"eventName": "INSERT", "dynamodb": {"NewImage": row}}

    def handle(self, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Settle a batch of stream records; nothing is ever known to have failed."""
        for record in records:
            self._settle(record["dynamodb"]["NewImage"])
        return []

    def _settle(self, row: Mapping[str, Any]) -> None:
        phone, amount = row["phone"]["S"], int(row["amount"]["N"])
        answer = self.client.get_item(
            TableName=self.wallet_ledger,
            Key={"phone": {"S": phone}, "txId": {"S": f"BALANCE_{phone}"}},
        )
        balance_minor = int(answer["Item"]["balance"]["N"]) if "Item" in answer else 0
        covered = balance_minor >= amount
        if covered:
            self._write_balance(phone, balance_minor - amount)
            self.client.put_item(
                TableName=self.wallet_ledger,
                Item={
                    "phone": {"S": phone},
                    "txId": {"S": str(uuid.uuid4())},
                    "idempotencyKey": row["idempotencyKey"],
                    "amount": row["amount"],
                    "createdAt": {"N": str(self.now_ms())},
                    "status": {"S": "completed"},
                },
            )
        self.client.update_item(
            TableName=self.offline_tx,
            Key={"agentId": row["agentId"], "createdAt": row["createdAt"]},
            UpdateExpression="SET #status = :status",
            ExpressionAttributeNames={"#status": "status"},
            ExpressionAttributeValues={":status": {"S": "synced" if covered else "failed"}},
        )

    def _write_balance(self, phone: str, balance_minor: int) -> None:
        self.client.put_item(
            TableName=self.wallet_ledger,
            Item={
                "phone": {"S": phone},
                "txId": {"S": f"BALANCE_{phone}"},
                "balance": {"N": str(balance_minor)},
            },
        )
