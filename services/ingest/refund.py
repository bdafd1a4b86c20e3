"""What an agent's app is answered when it asks for one of its transactions back."""

from dataclasses import dataclass
from typing import assert_never

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
from wallet_ledger.patience import Patience
from wallet_ledger.ports import AcceptedTransactions, Clock, RefundDesk

_OPEN = frozenset({Status.QUEUED, Status.HELD})


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
    wanted: Wanted,
    table: AcceptedTransactions,
    desk: RefundDesk,
    clock: Clock,
    patience: Patience,
) -> Answer:
    """One conditional write of the row decides, and everything else follows from it.

    Raises `Unavailable` where the tables do not answer, or the row never stands still.
    """
    while True:
        try:
            answer = _once(wanted, table, desk, clock.now_ms())
        except Unavailable:
            if not patience.wait():
                raise
        else:
            if answer is not None:
                return answer
            if not patience.wait():
                raise Unavailable("RowKeepsMoving")


def _once(
    wanted: Wanted, table: AcceptedTransactions, desk: RefundDesk, now_ms: int
) -> Answer | None:
    """Look, decide, and write where there is something to write; None where the row has moved."""
    row = table.find(wanted.agent_id, wanted.idempotency_key)
    if row is None:
        return Unknown()
    earlier = desk.refund(row, wanted.refund_id)
    if earlier is None and row.status in _OPEN and desk.debit(row) is not None:
        return NotRefundable(None, None, settled=False)  # decided, and about to say so
    answer = _as_before(wanted, row, earlier) if earlier else _answer(wanted, row, now_ms)
    if isinstance(answer, CancelledNow | Requested):
        return answer if desk.move(row, answer.row, wanted.refund_id) else None
    return answer


def _answer(wanted: Wanted, row: OfflineTransaction, now_ms: int) -> Answer:
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
        case Status.REFUNDED:
            return NotRefundable(Reason.EXCEEDS_ORIGINAL, 0, settled=True)
        case Status.FAILED | Status.EXPIRED | Status.CANCELLED:
            return NotRefundable(Reason.NOTHING_TO_REFUND, None, settled=True)
        case _:
            assert_never(row.status)


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
