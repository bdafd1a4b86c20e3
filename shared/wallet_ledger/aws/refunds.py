"""Refunds on DynamoDB: one look at all that counts, and one conditional transaction."""

from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from wallet_ledger.aws import items
from wallet_ledger.aws.balance import balance_write
from wallet_ledger.aws.clients import (
    cancellation_codes,
    error_code,
    is_transient,
    passing_errors,
)
from wallet_ledger.domain.ids import Currency, EntryId, Phone
from wallet_ledger.domain.postings import Committed, Contended, Entry, Moved, Refused
from wallet_ledger.domain.refunds import (
    NO_CURRENCY,
    Answered,
    Cancel,
    Post,
    Refund,
    Reject,
    Seen,
    original_of,
)
from wallet_ledger.domain.transactions import OfflineTransaction, Status

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


class DynamoRefundBooks:
    """`ports.RefundBooks` on the tables WalletLedger and OfflineTx."""

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

    def see(self, asked: Refund) -> Seen:
        """Everything that counts, as of one moment."""
        original = (asked.agent_id, asked.idempotency_key)
        ledger_ids = (
            items.debit_entry_id(*original),
            items.refund_entry_id(asked),
            items.reused_refund_entry_id(asked),
            items.refund_total_id(*original),
            items.BALANCE,
        )
        gets = [(self._offline_tx_table, items.offline_tx_key(*original))]
        gets += [(self._ledger_table, items.ledger_key(asked.phone, each)) for each in ledger_ids]
        with passing_errors():
            answer = self._client.transact_get_items(
                TransactItems=[{"Get": {"TableName": table, "Key": key}} for table, key in gets]
            )
        row, debit, refund, reused, total, wallet = (
            each.get("Item") for each in answer["Responses"]
        )
        return Seen(
            row=items.read_offline_tx(row) if row else None,
            debit=items.read_entry(debit) if debit else None,
            refund=items.read_entry(refund) if refund else None,
            reused=items.read_entry(reused) if reused else None,
            refunded_minor=items.read_refund_total(total) if total else 0,
            wallet=items.read_wallet(wallet) if wallet else None,
        )

    def write(
        self, asked: Refund, seen: Seen, decided: Answered | Cancel | Post | Reject, at_ms: int
    ) -> Committed | Contended | Moved | Refused:
        """All that follows from the decision in one TransactWriteItems, or nothing."""
        writes = [self._row(asked, seen, decided, at_ms)]
        if isinstance(decided, Post | Reject):
            currency = _currency(asked, seen)
            entry = items.refund_item(asked, decided, currency, at_ms)
            writes += [_put(self._ledger_table, entry), self._total(asked, seen, decided)]
        if isinstance(decided, Post):
            after = decided.wallet_after
            writes.append(
                balance_write(
                    self._ledger_table, asked.phone, seen=seen.wallet, after=after, needed_minor=0
                )
            )
        if isinstance(decided, Cancel):  # the refund id has one outcome: no entry, as it was seen
            undecided = items.refund_entry_id(asked)
            writes.append(_no_entry(self._ledger_table, asked.phone, undecided))
        request: Any = writes
        try:
            self._client.transact_write_items(TransactItems=request)
        except (ClientError, BotoCoreError) as error:
            return _read_failure(error)
        return Committed()

    def _row(
        self, asked: Refund, seen: Seen, decided: Answered | Cancel | Post | Reject, at_ms: int
    ) -> dict[str, Any]:
        """The row moved, or held to what was seen of it, be it nothing."""
        table = {"TableName": self._offline_tx_table}
        if seen.row is not None and decided.row_after is not None:
            purge_at_s = self._purge_at_s(decided.row_after.status, at_ms)
            return {"Update": table | items.row_move(seen.row, decided.row_after, purge_at_s)}
        if seen.row is not None:
            return {"ConditionCheck": table | items.row_check(seen.row)}
        return {
            "ConditionCheck": table
            | {
                "Key": items.offline_tx_key(asked.agent_id, asked.idempotency_key),
                "ConditionExpression": "attribute_not_exists(agentId)",
            }
        }

    def _purge_at_s(self, status: Status, at_ms: int) -> int | None:
        """Only what the ledger remembers and nobody waits for may be purged."""
        kept = status in (Status.REFUND_REQUESTED, Status.CANCELLED)
        if kept or not self._retention_days:
            return None
        return at_ms // 1000 + self._retention_days * 86_400

    def _total(self, asked: Refund, seen: Seen, decided: Post | Reject) -> dict[str, Any]:
        """The running total, raised within the original, or held to what was seen."""
        entry_id = items.refund_total_id(asked.agent_id, asked.idempotency_key)
        item: dict[str, Any] = {
            "TableName": self._ledger_table,
            "Key": items.ledger_key(asked.phone, entry_id),
            "ConditionExpression": "attribute_not_exists(refundedMinor)",
        }
        values: dict[str, Any] = {}
        if seen.refunded_minor:
            item["ConditionExpression"] = "refundedMinor = :seen"
            values[":seen"] = {"N": str(seen.refunded_minor)}
        if isinstance(decided, Reject):
            return {"ConditionCheck": item | _values(values)}
        if seen.refunded_minor:
            item["ConditionExpression"] += " AND refundedMinor <= :room"
            values[":room"] = {"N": str(decided.original_minor - decided.amount_minor)}
        values[":total"] = {"N": str(seen.refunded_minor + decided.amount_minor)}
        return {
            "Update": item | {"UpdateExpression": "SET refundedMinor = :total"} | _values(values)
        }


class DynamoRefundDesk:
    """`ports.RefundDesk` on the two tables: ingest looks at the ledger, and writes rows alone."""

    def __init__(
        self, client: "DynamoDBClient", *, ledger_table: str, offline_tx_table: str
    ) -> None:
        self._client = client
        self._ledger_table = ledger_table
        self._offline_tx_table = offline_tx_table

    def debit(self, row: OfflineTransaction) -> Entry | None:
        """What the ledger has decided of a row's debit, as of now."""
        return self._entry(row, items.debit_entry_id(row.agent_id, row.idempotency_key))

    def refund(self, row: OfflineTransaction, refund_id: str) -> Entry | None:
        """What a refund id of a row has decided, as of now."""
        return self._entry(row, _refund_id_entry(row, refund_id))

    def move(self, before: OfflineTransaction, after: OfflineTransaction, refund_id: str) -> bool:
        """One transaction: the row moved if it is as before, and the refund id has no entry."""
        move = {"TableName": self._offline_tx_table} | items.row_move(before, after)
        undecided = _no_entry(self._ledger_table, before.phone, _refund_id_entry(before, refund_id))
        request: Any = [{"Update": move}, undecided]
        try:
            with passing_errors():
                self._client.transact_write_items(TransactItems=request)
        except ClientError as error:
            if "ConditionalCheckFailed" not in cancellation_codes(error):
                raise
            return False
        return True

    def _entry(self, row: OfflineTransaction, entry_id: EntryId) -> Entry | None:
        with passing_errors():
            answer = self._client.get_item(
                TableName=self._ledger_table,
                Key=items.ledger_key(row.phone, entry_id),
                ConsistentRead=True,
            )
        return items.read_entry(answer["Item"]) if "Item" in answer else None


def _refund_id_entry(row: OfflineTransaction, refund_id: str) -> EntryId:
    return items.refund_id_entry(row.agent_id, row.idempotency_key, refund_id)


def _no_entry(table: str, phone: Phone, entry_id: EntryId) -> dict[str, Any]:
    return {
        "ConditionCheck": {
            "TableName": table,
            "Key": items.ledger_key(phone, entry_id),
            "ConditionExpression": "attribute_not_exists(txId)",
        }
    }


def _currency(asked: Refund, seen: Seen) -> Currency:
    """What was asked, that it be known again; where nothing was said, the original's."""
    original = original_of(asked, seen)
    return asked.currency or (original.currency if original else NO_CURRENCY)


def _put(table: str, item: dict[str, Any]) -> dict[str, Any]:
    return {
        "Put": {
            "TableName": table,
            "Item": item,
            "ConditionExpression": "attribute_not_exists(txId)",
        }
    }


def _values(values: dict[str, Any]) -> dict[str, Any]:
    return {"ExpressionAttributeValues": values} if values else {}


def _read_failure(error: Exception) -> Contended | Moved | Refused:
    """What a failed transaction means: anything transient first, then any condition."""
    codes = cancellation_codes(error) or (error_code(error),)
    if is_transient(error):
        return Contended(codes)
    if "ConditionalCheckFailed" in codes and {"None", "ConditionalCheckFailed"}.issuperset(codes):
        return Moved()
    return Refused(codes)
