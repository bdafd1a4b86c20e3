"""OfflineTx on DynamoDB: one conditional Put per request, and the sweep's conditional moves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wallet_ledger.aws import items
from wallet_ledger.aws.clients import passing_errors
from wallet_ledger.domain.ids import AgentId, IdempotencyKey
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.ports import OpenRow

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class DynamoAcceptedTransactions:
    """`ports.AcceptedTransactions` on the table OfflineTx."""

    def __init__(self, client: "DynamoDBClient", *, table: str) -> None:
        self._client = client
        self._table = table

    def put_if_new(self, row: OfflineTransaction) -> OfflineTransaction | None:
        """One call: it stores the row, or answers with the one that has the key already."""
        try:
            with passing_errors():
                self._client.put_item(
                    TableName=self._table,
                    Item=items.offline_tx_item(row),
                    ConditionExpression="attribute_not_exists(idempotencyKey)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
        except self._client.exceptions.ConditionalCheckFailedException as taken:
            # The stubs do not know that the answer carries the item; the API has since 2023.
            response: Any = taken.response
            return items.read_offline_tx(response["Item"])
        return None

    def find(self, agent_id: AgentId, key: IdempotencyKey) -> OfflineTransaction | None:
        """The row as of now, None for an unknown key."""
        with passing_errors():
            answer = self._client.get_item(
                TableName=self._table,
                Key=items.offline_tx_key(agent_id, key),
                ConsistentRead=True,
            )
        return items.read_offline_tx(answer["Item"]) if "Item" in answer else None


class DynamoOpenTransactions:
    """`ports.OpenTransactions` on the sparse index of open rows."""

    def __init__(self, client: "DynamoDBClient", *, table: str, retention_days: int) -> None:
        self._client = client
        self._table = table
        self._retention_days = retention_days

    def open_rows(self, shard: int, limit: int) -> Sequence[OpenRow]:
        """At most `limit` rows (and 1 MB of index) of a shard, the longest due first."""
        with passing_errors():
            answer = self._client.query(
                TableName=self._table,
                IndexName=items.OPEN_INDEX,
                KeyConditionExpression="openShard = :shard",
                ExpressionAttributeValues={":shard": {"S": items.open_shard_key(shard)}},
                Limit=limit,
            )
        return [items.read_open_row(item) for item in answer["Items"]]

    def send_again(self, row: OpenRow, next_sweep_at_ms: int, now_ms: int) -> bool:
        """Raise the attempt; the relay sees that on the stream and sends the message."""
        return self._move(
            row,
            update="SET attempt = :next, nextSweepAt = :at, queuedAt = :now",
            condition="#status = :queued AND attempt = :seen",
            values={
                ":next": {"N": str(row.attempt + 1)},
                ":seen": {"N": str(row.attempt)},
                ":at": {"N": str(next_sweep_at_ms)},
                ":now": {"N": str(now_ms)},
            },
        )

    def expire(self, row: OpenRow, now_ms: int) -> bool:
        """Close the row; a message that is still under way then finds it no longer queued."""
        update = "SET #status = :expired, updatedAt = :now"
        values = {":expired": {"S": Status.EXPIRED}, ":now": {"N": str(now_ms)}}
        if self._retention_days:
            update += ", purgeAt = :purgeAt"
            values[":purgeAt"] = {"N": str(now_ms // 1000 + self._retention_days * 86_400)}
        return self._move(
            row,
            update=f"{update} REMOVE openShard, nextSweepAt",
            condition="#status = :queued",
            values=values,
        )

    def _move(self, row: OpenRow, *, update: str, condition: str, values: dict[str, Any]) -> bool:
        try:
            with passing_errors():
                self._client.update_item(
                    TableName=self._table,
                    Key=items.offline_tx_key(row.agent_id, row.idempotency_key),
                    UpdateExpression=update,
                    ConditionExpression=condition,
                    ExpressionAttributeNames={"#status": "status"},
                    ExpressionAttributeValues=values | {":queued": {"S": Status.QUEUED}},
                )
        except self._client.exceptions.ConditionalCheckFailedException:
            return False
        return True
