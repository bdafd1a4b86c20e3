"""The books on DynamoDB: one consistent read, and one conditional transaction per group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from wallet_ledger.aws import items
from wallet_ledger.aws.balance import balance_write
from wallet_ledger.aws.clients import TRANSIENT_CODES, error_code, is_transient, passing_errors
from wallet_ledger.domain.ids import Phone
from wallet_ledger.domain.postings import (
    Committed,
    Conflicted,
    Contended,
    Entry,
    NewEntry,
    Posting,
    PostingResult,
    Refused,
)
from wallet_ledger.domain.transactions import Status
from wallet_ledger.domain.wallets import Debit, MovementId, Outcome, Posted, Wallet, movement_id

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_HELD_BACK = frozenset({"None", "ConditionalCheckFailed"})


@dataclass(frozen=True, slots=True)
class _Write:
    """One item of the transaction, and what it means when its condition does not hold."""

    item: dict[str, Any]
    entry_of: MovementId | None = None
    row_of: MovementId | None = None


class DynamoLedger:
    """`ports.Ledger` on the tables WalletLedger and OfflineTx.

    It never deletes, never overwrites an entry, and writes a balance only together with the
    entries that explain it.
    """

    def __init__(
        self,
        client: "DynamoDBClient",
        *,
        ledger_table: str,
        offline_tx_table: str,
        retention_days: int,
    ) -> None:
        self._client = client
        self._ledger_table = ledger_table
        self._offline_tx_table = offline_tx_table
        self._retention_days = retention_days

    def wallet(self, phone: Phone) -> Wallet | None:
        """The balance row as of now, None where no wallet is open."""
        with passing_errors():
            answer = self._client.get_item(
                TableName=self._ledger_table,
                Key=items.ledger_key(phone, items.BALANCE),
                ConsistentRead=True,
            )
        return items.read_wallet(answer["Item"]) if "Item" in answer else None

    def post(self, posting: Posting) -> PostingResult:
        """All of `posting` in one TransactWriteItems, or nothing."""
        writes = self._writes(posting)
        request: Any = [write.item for write in writes]
        try:
            self._client.transact_write_items(TransactItems=request)
        except (ClientError, BotoCoreError) as error:
            return _read_failure(error, writes)
        return Committed()

    def _writes(self, posting: Posting) -> list[_Write]:
        writes = [
            _Write(self._entry(new, posting.at_ms), entry_of=movement_id(new.movement))
            for new in posting.new
        ]
        closing: list[tuple[Debit, Outcome]] = [
            (new.movement, new.outcome) for new in posting.new if isinstance(new.movement, Debit)
        ]
        closing += [(known.debit, known.outcome) for known in posting.status_only]
        for debit, outcome in closing:
            row = self._row_status(debit, outcome, posting.at_ms)
            writes.append(_Write(row, row_of=movement_id(debit)))
        if posting.new:
            writes.append(_Write(self._balance(posting)))
        return writes

    def _entry(self, new: NewEntry, at_ms: int) -> dict[str, Any]:
        return {
            "Put": {
                "TableName": self._ledger_table,
                "Item": items.entry_item(new, at_ms),
                "ConditionExpression": "attribute_not_exists(txId)",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def _row_status(self, debit: Debit, outcome: Outcome, at_ms: int) -> dict[str, Any]:
        sets = ["#status = :status", "updatedAt = :now"]
        values: dict[str, Any] = {
            ":queued": {"S": Status.QUEUED},
            ":fingerprint": {"S": debit.fingerprint},
            ":now": {"N": str(at_ms)},
        }
        names = {"#status": "status"}
        if isinstance(outcome, Posted):
            values[":status"] = {"S": Status.SYNCED}
        else:
            values |= {":status": {"S": Status.FAILED}, ":reason": {"S": outcome.reason}}
            names["#reason"] = "reason"
            sets.append("#reason = :reason")
        if self._retention_days:
            purge_at_s = at_ms // 1000 + self._retention_days * 86_400
            values[":purgeAt"] = {"N": str(purge_at_s)}
            sets.append("purgeAt = :purgeAt")
        return {
            "Update": {
                "TableName": self._offline_tx_table,
                "Key": items.offline_tx_key(debit.agent_id, debit.idempotency_key),
                "UpdateExpression": f"SET {', '.join(sets)} REMOVE openShard, nextSweepAt",
                "ConditionExpression": "#status = :queued AND fingerprint = :fingerprint",
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": values,
            }
        }

    def _balance(self, posting: Posting) -> dict[str, Any]:
        return balance_write(
            self._ledger_table,
            posting.phone,
            seen=posting.seen,
            after=posting.after,
            needed_minor=posting.needed_minor,
        )


def _read_failure(error: Exception, writes: Sequence[_Write]) -> PostingResult:
    """What a failed transaction means, in the order of docs/ledger.md: anything transient first."""
    reasons: list[dict[str, Any]] = []
    if isinstance(error, ClientError):
        reasons = error.response.get("CancellationReasons", [])  # type: ignore[assignment]
    if not reasons:
        code = error_code(error)
        return Contended((code,)) if is_transient(error) else Refused((code,))
    codes = tuple(str(reason.get("Code", "None")) for reason in reasons)
    if any(code in TRANSIENT_CODES for code in codes):
        return Contended(codes)
    if len(codes) != len(writes) or not _HELD_BACK.issuperset(codes):
        return Refused(codes)
    return _conflict(
        [
            (write, reason)
            for write, reason, code in zip(writes, reasons, codes, strict=True)
            if code != "None"
        ]
    )


def _conflict(failed: Sequence[tuple[_Write, Mapping[str, Any]]]) -> Conflicted | Refused:
    recorded: dict[MovementId, Entry] = {}
    moved: set[MovementId] = set()
    balance_moved = False
    for write, reason in failed:
        if write.entry_of is not None:
            try:
                recorded[write.entry_of] = items.read_entry(reason["Item"])
            except (KeyError, ValueError):
                return Refused(("UnreadableEntry",))
        elif write.row_of is not None:
            moved.add(write.row_of)
        else:
            balance_moved = True
    return Conflicted(recorded, frozenset(moved), balance_moved)
