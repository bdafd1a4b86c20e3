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
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.postings import Committed, Contended, Entry, Moved, Refused
from wallet_ledger.domain.refunds import Answered, Cancel, Post, Refund, Reject, Seen
from wallet_ledger.domain.transactions import Status

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

_NO_CURRENCY = Currency("XXX")
"""ISO 4217 for a refund of which no currency is known: nothing was found that has one."""


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


class DynamoLedgerEntries:
    """`ports.LedgerEntries` on WalletLedger: what ingest may look up, and no more."""

    def __init__(self, client: "DynamoDBClient", *, ledger_table: str) -> None:
        self._client = client
        self._ledger_table = ledger_table

    def find(
        self, phone: Phone, agent_id: AgentId, key: IdempotencyKey, refund_id: str
    ) -> tuple[Entry | None, Entry | None]:
        """The entries of a debit and of one of its refund ids, as of one moment."""
        wanted = (
            items.debit_entry_id(agent_id, key),
            items.refund_id_entry(agent_id, key, refund_id),
        )
        with passing_errors():
            answer = self._client.transact_get_items(
                TransactItems=[
                    {"Get": {"TableName": self._ledger_table, "Key": items.ledger_key(phone, each)}}
                    for each in wanted
                ]
            )
        debit, refund = (each.get("Item") for each in answer["Responses"])
        return (
            items.read_entry(debit) if debit else None,
            items.read_entry(refund) if refund else None,
        )


def _currency(asked: Refund, seen: Seen) -> Currency:
    original = seen.row or seen.debit
    return original.currency if original else asked.currency or _NO_CURRENCY


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
