"""What an agent's app is answered when it asks for one of its transactions back."""

from dataclasses import dataclass

from wallet_ledger.domain.ids import AgentId, IdempotencyKey
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import Refund, cancelled, is_full, requested
from wallet_ledger.domain.transactions import (
    OfflineTransaction,
    PendingRefund,
    Reason,
    Status,
)
from wallet_ledger.domain.wallets import Rejected
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import AcceptedTransactions, Clock, LedgerEntries

_OPEN = frozenset({Status.QUEUED, Status.HELD})

MOVES_MAX = 5
"""Looks at a row that others keep moving; each move is somebody else's progress."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A refund as its agent asks for it: of an own transaction, the phone is the row's."""

    agent_id: AgentId
    idempotency_key: IdempotencyKey
    refund_id: str
    amount_minor: int | None
    note: str


@dataclass(frozen=True, slots=True)
class CancelledNow:
    """It was not settled, and never will be."""

    row: OfflineTransaction


@dataclass(frozen=True, slots=True)
class Requested:
    """The refund is on its way; the status tells when it is done."""

    row: OfflineTransaction


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same request was made before; `row` is what has become of the transaction."""

    row: OfflineTransaction


@dataclass(frozen=True, slots=True)
class Unknown:
    """No transaction of the agent has this key."""


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another refund of the transaction is under way."""


@dataclass(frozen=True, slots=True)
class NotRefundable:
    """No. `remaining_minor` goes with EXCEEDS_ORIGINAL; `settled` is False while it may change."""

    reason: Reason | None
    remaining_minor: int | None
    settled: bool


@dataclass(frozen=True, slots=True)
class RefundIdReused:
    """The refund id means another request, which stands."""


type Answer = (
    CancelledNow | Requested | Repeated | Unknown | InProgress | NotRefundable | RefundIdReused
)


def request_refund(
    wanted: Wanted, table: AcceptedTransactions, entries: LedgerEntries, clock: Clock
) -> Answer:
    """One conditional write of the row decides, and everything else follows from it.

    Raises `Unavailable` where the tables do not answer, or the row never stands still.
    """
    for _ in range(MOVES_MAX):
        row = table.find(wanted.agent_id, wanted.idempotency_key)
        if row is None:
            return Unknown()
        debit, earlier = entries.find(
            row.phone, wanted.agent_id, wanted.idempotency_key, wanted.refund_id
        )
        if debit is not None and row.status in _OPEN:  # decided, and the row is about to say so
            return NotRefundable(None, None, settled=False)
        answer = _answer(wanted, row, earlier, clock.now_ms())
        match answer:
            case CancelledNow(after) | Requested(after):
                if table.move(row, after):
                    return answer
            case _:
                return answer
    raise Unavailable("RowKeepsMoving")


def _answer(wanted: Wanted, row: OfflineTransaction, earlier: Entry | None, now_ms: int) -> Answer:
    if earlier is not None:
        return _as_before(wanted, row, earlier)
    match row.status:
        case Status.QUEUED | Status.HELD:
            return _before_settlement(wanted, row, now_ms)
        case Status.CANCELLED if row.cancelled_by == wanted.refund_id:
            full = is_full(wanted.amount_minor, row)
            return Repeated(row) if full else RefundIdReused()
        case Status.REFUND_REQUESTED:
            return _while_pending(wanted, row)
        case Status.SYNCED | Status.PARTIALLY_REFUNDED:
            return _after_settlement(wanted, row, now_ms)
        case _:
            return NotRefundable(Reason.NOTHING_TO_REFUND, None, settled=True)


def _as_before(wanted: Wanted, row: OfflineTransaction, earlier: Entry) -> Answer:
    asked = Refund(
        agent_id=wanted.agent_id,
        idempotency_key=wanted.idempotency_key,
        phone=row.phone,
        refund_id=wanted.refund_id,
        amount_minor=wanted.amount_minor,
        currency=None,
        note=wanted.note,
        requested_by="",
    )
    if asked.fingerprint != earlier.fingerprint:
        return RefundIdReused()
    if isinstance(earlier.outcome, Rejected):
        return NotRefundable(earlier.outcome.reason, earlier.remaining_minor, settled=True)
    return Repeated(row)


def _before_settlement(wanted: Wanted, row: OfflineTransaction, now_ms: int) -> Answer:
    if is_full(wanted.amount_minor, row):
        return CancelledNow(cancelled(row, wanted.refund_id, now_ms))
    if wanted.amount_minor is not None and wanted.amount_minor > row.amount_minor:
        return NotRefundable(Reason.EXCEEDS_ORIGINAL, row.amount_minor, settled=True)
    return NotRefundable(None, None, settled=False)


def _while_pending(wanted: Wanted, row: OfflineTransaction) -> Answer:
    pending = row.refund_request
    if pending is None or pending.refund_id != wanted.refund_id:
        return InProgress()
    same = pending.amount_minor == wanted.amount_minor
    return Repeated(row) if same else RefundIdReused()


def _after_settlement(wanted: Wanted, row: OfflineTransaction, now_ms: int) -> Answer:
    remaining_minor = row.amount_minor - (row.refunded_minor or 0)
    if (wanted.amount_minor or 0) > remaining_minor:
        return NotRefundable(Reason.EXCEEDS_ORIGINAL, remaining_minor, settled=True)
    pending = PendingRefund(wanted.refund_id, wanted.amount_minor, wanted.note)
    return Requested(requested(row, pending, now_ms))
