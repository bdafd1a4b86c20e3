"""DeadLetters on DynamoDB: a letter, its row and its budget move together, or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from wallet_ledger.aws import items
from wallet_ledger.aws.clients import (
    CONDITION_FAILED,
    cancellation_codes,
    error_code,
    passing_errors,
)
from wallet_ledger.aws.refunds import DynamoRefundBooks
from wallet_ledger.domain.ids import EntryId, Phone
from wallet_ledger.domain.letters import Budget, Letter
from wallet_ledger.domain.postings import NewEntry
from wallet_ledger.domain.refunds import Refund, Seen
from wallet_ledger.domain.transactions import OfflineTransaction, Reason
from wallet_ledger.domain.wallets import Debit, Movement, Rejected
from wallet_ledger.ports import LetterPage, Letters, RowMove

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

RECORD_PART_BYTES = 350_000
"""Of a record in one item, which may hold 400 KB. A queue takes 1 MiB, which is three parts, or six
where JSON escapes every letter; a transaction takes 4 MB."""


class DynamoDeadLetters:
    """`ports.DeadLetters` on the tables DeadLetters and OfflineTx."""

    def __init__(
        self,
        client: "DynamoDBClient",
        *,
        table: str,
        offline_tx_table: str,
        retention_days: int,
    ) -> None:
        self._client = client
        self._table = table
        self._offline_tx_table = offline_tx_table
        self._retention_days = retention_days

    def file(self, letter: Letter, record: str, row: RowMove | None) -> bool:
        """A letter, its record and its held row in one TransactWriteItems, or nothing."""
        parts = _parts(record)
        items_ = [items.letter_item(replace(letter, record_parts=len(parts)))]
        items_ += [
            items.record_key(letter.letter_id, number) | {"part": {"B": part}}
            for number, part in enumerate(parts)
        ]
        purge_at_s = self._purge_at_s(letter)
        if purge_at_s is not None:
            items_ = [item | {"purgeAt": {"N": str(purge_at_s)}} for item in items_]
        puts = [{"TableName": self._table, "Item": item} for item in items_]
        # A record has no life of its own: what is left of one whose letter was purged may go.
        puts[0]["ConditionExpression"] = "attribute_not_exists(id)"
        return self._transact([*({"Put": put} for put in puts), *self._row(row)])

    def find(self, letter_id: str) -> Letter | None:
        """The letter as of now."""
        item = self._get(items.letter_key(letter_id))
        return items.read_letter(item) if item else None

    def record(self, letter_id: str) -> str | None:
        """The text that came in, its parts joined."""
        parts: list[bytes] = []
        while item := self._get(items.record_key(letter_id, len(parts))):
            if "part" not in item:  # purged, but for a later time of purging that came too late
                break
            parts.append(item["part"]["B"])
            if len(parts[-1]) < RECORD_PART_BYTES:
                break
        return b"".join(parts).decode() if parts else None

    def budget(self, subject_ref: str) -> Budget:
        """How often a subject has been redriven."""
        item = self._get(items.subject_key(subject_ref))
        return items.read_budget(item) if item else Budget()

    def move(
        self, before: Letter, after: Letter, row: RowMove | None = None, spent: Budget | None = None
    ) -> bool:
        """All that an action changes in one TransactWriteItems, or nothing."""
        purge_at_s = self._purge_at_s(after)
        changes = [items.letter_move(before, after, purge_at_s)]
        if spent is not None:
            changes.append(items.budget_move(before.subject_ref, spent))
        if purge_at_s is not None:
            changes += items.record_purges(after, purge_at_s)
        writes = [{"Update": {"TableName": self._table} | change} for change in changes]
        return self._transact([*writes, *self._row(row)])

    def look_later(self, letter: Letter) -> bool:
        """One plain write, under the letter's revision."""
        try:
            with passing_errors():
                self._client.update_item(
                    TableName=self._table,
                    Key=items.letter_key(letter.letter_id),
                    UpdateExpression="SET dueAt = :at",
                    ConditionExpression="revision = :seen AND attribute_exists(openShard)",
                    ExpressionAttributeValues={
                        ":at": {"N": str(letter.due_at_ms)},
                        ":seen": {"N": str(letter.revision)},
                    },
                )
        except ClientError as error:
            if error_code(error) != CONDITION_FAILED:
                raise
            return False
        return True

    def page(self, ask: LetterPage) -> Letters:
        """One page of one shard of the index that `ask` names."""
        values: dict[str, Any] = {":shard": {"S": items.letter_shard_key(ask.shard)}}
        if ask.open_only:
            index, key, condition = items.OPEN_LETTERS_INDEX, "openShard", "#shard = :shard"
        else:
            index, key = items.ALL_LETTERS_INDEX, "shard"
            condition = "#shard = :shard AND arrivedAt BETWEEN :from AND :until"
            values |= {
                ":from": {"N": str(ask.arrived_from_ms)},
                ":until": {"N": str(ask.arrived_until_ms)},
            }
        request: Any = {
            "TableName": self._table,
            "IndexName": index,
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": {"#shard": key},
            "ExpressionAttributeValues": values,
            "Limit": ask.limit,
        }
        if ask.after is not None:
            request["ExclusiveStartKey"] = items.letter_place(
                ask.shard, *ask.after, open_only=ask.open_only
            )
        with passing_errors():
            answer = self._client.query(**request)
        last = answer.get("LastEvaluatedKey")
        found: list[Letter] = []
        unreadable: list[str] = []
        for item in answer["Items"]:
            try:
                found.append(items.read_letter(item))
            except (LookupError, ValueError, TypeError):  # of a later version, after a roll-back
                unreadable.append(items.letter_id_of(item))
        ended = None if last is None else items.read_letter_place(last)
        return Letters(found, ended, tuple(unreadable))

    def _row(self, row: RowMove | None) -> list[dict[str, Any]]:
        if row is None:
            return []
        move = items.row_move(row.before, row.after)
        return [{"Update": {"TableName": self._offline_tx_table} | move}]

    def _transact(self, writes: Sequence[Mapping[str, Any]]) -> bool:
        request: Any = list(writes)
        try:
            with passing_errors():
                self._client.transact_write_items(TransactItems=request)
        except ClientError as error:
            # What passes was told apart by `passing_errors`: conditions alone are left.
            if "ConditionalCheckFailed" in cancellation_codes(error):
                return False
            raise
        return True

    def _get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        with passing_errors():
            answer = self._client.get_item(TableName=self._table, Key=key, ConsistentRead=True)
        return answer.get("Item")

    def _purge_at_s(self, letter: Letter) -> int | None:
        """Only what is dealt with may be purged."""
        if letter.status.is_open or not self._retention_days:
            return None
        return letter.updated_at_ms // 1000 + self._retention_days * 86_400


class DynamoSubjects:
    """`ports.Subjects` on the tables OfflineTx and WalletLedger."""

    def __init__(
        self, client: "DynamoDBClient", *, ledger_table: str, offline_tx_table: str
    ) -> None:
        self._client = client
        self._ledger_table = ledger_table
        self._offline_tx_table = offline_tx_table
        self._refunds = DynamoRefundBooks(
            client, ledger_table=ledger_table, offline_tx_table=offline_tx_table, retention_days=0
        )

    def row(self, debit: Debit) -> OfflineTransaction | None:
        """The debit's row, as of now."""
        with passing_errors():
            answer = self._client.get_item(
                TableName=self._offline_tx_table,
                Key=items.offline_tx_key(debit.agent_id, debit.idempotency_key),
                ConsistentRead=True,
            )
        return items.read_offline_tx(answer["Item"]) if "Item" in answer else None

    def decided(self, movement: Movement) -> bool:
        """Whether its entry, or its refusal as the reuse of an id, is there."""
        reused = items.new_entry_id(NewEntry(movement, Rejected(Reason.KEY_REUSED)))
        return any(
            self._fingerprint(movement.phone, entry_id) == movement.fingerprint
            for entry_id in (items.entry_id(movement), reused)
        )

    def see(self, asked: Refund) -> Seen:
        """Everything that counts for a refund, as of one moment."""
        return self._refunds.see(asked)

    def _fingerprint(self, phone: Phone, entry_id: EntryId) -> str | None:
        with passing_errors():
            answer = self._client.get_item(
                TableName=self._ledger_table,
                Key=items.ledger_key(phone, entry_id),
                ConsistentRead=True,
            )
        return items.read_entry(answer["Item"]).fingerprint if "Item" in answer else None


def _parts(record: str) -> list[bytes]:
    text = record.encode()
    starts = range(0, len(text), RECORD_PART_BYTES)
    return [text[start : start + RECORD_PART_BYTES] for start in starts]
