"""OfflineTx on DynamoDB: one conditional Put per request, and the sweep's conditional moves."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from wallet_ledger.aws import items
from wallet_ledger.aws.clients import CONDITION_FAILED, error_code, passing_errors
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
        except ClientError as error:
            if error_code(error) != CONDITION_FAILED:
                raise
            # The stubs do not know that the answer carries the item; the API has since 2023.
            response: Any = error.response
            existing = items.read_offline_tx(response["Item"])
            # After a try whose answer was lost, the client meets the row that it has just stored.
            ours = response["ResponseMetadata"]["RetryAttempts"] > 0 and existing == row
            return None if ours else existing
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

    def __init__(self, client: "DynamoDBClient", *, table: str) -> None:
        self._client = client
        self._table = table

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
            condition="#status = :status AND attempt = :seen",
            values={
                ":next": {"N": str(row.attempt + 1)},
                ":seen": {"N": str(row.attempt)},
                ":status": {"S": row.status},
                ":at": {"N": str(next_sweep_at_ms)},
                ":now": {"N": str(now_ms)},
            },
        )

    def expire(self, row: OpenRow, now_ms: int) -> bool:
        """Close the row; a message that is still under way then finds it no longer queued.

        It is never purged, whatever the retention: no entry of the ledger remembers an expiry,
        and the same request sent again after a purge would be debited.
        """
        return self._move(
            row,
            update="SET #status = :expired, updatedAt = :now REMOVE openShard, nextSweepAt",
            condition="#status = :queued AND expiresAt = :seen",
            values={
                ":expired": {"S": Status.EXPIRED},
                ":now": {"N": str(now_ms)},
                ":queued": {"S": Status.QUEUED},
                ":seen": {"N": str(row.expires_at_s)},
            },
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
                    ExpressionAttributeValues=values,
                )
        except ClientError as error:
            if error_code(error) != CONDITION_FAILED:
                raise
            return False
        return True
