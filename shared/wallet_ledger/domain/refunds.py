"""Refunds: what is asked, what is seen of the original, and the one decision about both."""

from dataclasses import dataclass, replace

from wallet_ledger.domain.ids import (
    AgentId,
    Currency,
    Fingerprint,
    IdempotencyKey,
    Phone,
    digest,
)
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import (
    SWEEP_AFTER_MS,
    OfflineTransaction,
    PendingRefund,
    Reason,
    Status,
)
from wallet_ledger.domain.wallets import Outcome, Posted, Rejected, Wallet

FULL = "full"
"""The refund id of a request that names none: a debit is refunded in full once."""

NOTE_BYTES_MAX = 140
"""Of the words that give a refund's reason, in UTF-8: an entry fits in 1 KB."""

NO_CURRENCY = Currency("XXX")
"""ISO 4217 for a refund of which no currency is known: nothing was found that has one."""

_OPEN = frozenset({Status.QUEUED, Status.HELD})
_NO_MONEY_MOVED = frozenset({Status.FAILED, Status.EXPIRED, Status.CANCELLED})


@dataclass(frozen=True, slots=True)
class Refund:
    """A request to give a debit back, in part or (`amount_minor` None) all that remains.

    `currency` is checked where it is given. `note` and `requested_by` are for people.
    """

    agent_id: AgentId
    idempotency_key: IdempotencyKey
    phone: Phone
    refund_id: str
    amount_minor: int | None
    currency: Currency | None
    note: str
    requested_by: str

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes two requests of one refund id the same request."""
        return Fingerprint(
            digest(
                "refund:v1",
                self.agent_id,
                self.idempotency_key,
                self.refund_id,
                self.phone,
                FULL if self.amount_minor is None else self.amount_minor,
            )
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a refund is decided on, read at one moment.

    `debit` is the original's entry under the refund's phone, `refund` the entry under its refund
    id, `reused` the refusal of the same request where the id means something else.
    """

    row: OfflineTransaction | None
    debit: Entry | None
    refund: Entry | None
    reused: Entry | None
    refunded_minor: int
    wallet: Wallet | None


@dataclass(frozen=True, slots=True)
class Answered:
    """Decided before: nothing to post. `row_after` is set where the row still waits for it."""

    outcome: Outcome
    row_after: OfflineTransaction | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The debit has not been settled: it never will be, and no money moves. None: it is done."""

    row_after: OfflineTransaction | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Too early to say: the original is still to be settled, or still to be seen."""

    code: str


@dataclass(frozen=True, slots=True)
class Post:
    """Money goes back: entry, running total, balance and row move together.

    `row_after` is None where the row was purged; the entry of the debit stands for it then.
    """

    amount_minor: int
    original_minor: int
    currency: Currency
    wallet_after: Wallet
    row_after: OfflineTransaction | None


@dataclass(frozen=True, slots=True)
class Reject:
    """A final no under this refund id: an entry, and no balance moves.

    `remaining_minor` goes with EXCEEDS_ORIGINAL. `row_after` is set where the row waits for it.
    """

    reason: Reason
    remaining_minor: int | None
    row_after: OfflineTransaction | None


type Decision = Answered | Cancel | Wait | Post | Reject


def decide_refund(asked: Refund, seen: Seen, now_ms: int, *, patient: bool) -> Decision:
    """What becomes of a refund, by the first rule that applies.

    `patient`: whether an original that cannot be seen may still appear; if not, it is refused.
    """
    seen = _without_later_use_of_the_key(asked, seen)
    used = seen.refund is not None or (seen.row is not None and _cancelled_by(asked, seen.row))
    if used or seen.reused is not None:
        return _as_before(asked, seen, now_ms)
    if seen.row is None and seen.debit is None:
        unseen = Wait("ORIGINAL_NOT_FOUND")
        return unseen if patient else _reject(Reason.ORIGINAL_NOT_FOUND, asked, seen, now_ms)
    if _is_anothers(asked, seen):
        return _reject(Reason.MISMATCH, asked, seen, now_ms)
    if seen.row is not None and seen.row.status in _OPEN:
        return _before_settlement(asked, seen, seen.row, now_ms)
    if seen.row is not None and seen.row.status in _NO_MONEY_MOVED:
        return _reject(Reason.NOTHING_TO_REFUND, asked, seen, now_ms)
    return _after_settlement(asked, seen, now_ms)


def original_of(asked: Refund, seen: Seen) -> OfflineTransaction | Entry | None:
    """What is to be given back: the row, or the debit where its key was used again since."""
    own = _without_later_use_of_the_key(asked, seen)
    return own.row or own.debit


def is_note(text: str) -> bool:
    """Whether `text` may be kept as the words that give a refund's reason."""
    return text.isprintable() and 1 <= len(text.encode()) <= NOTE_BYTES_MAX


def is_full(amount_minor: int | None, row: OfflineTransaction) -> bool:
    """Whether a request takes back all of a transaction that no refund has touched yet."""
    return amount_minor is None or amount_minor == row.amount_minor


def cancelled(row: OfflineTransaction, refund_id: str, now_ms: int) -> OfflineTransaction:
    """The row of a transaction that a refund overtook."""
    return replace(
        row,
        status=Status.CANCELLED,
        cancelled_by=refund_id,
        held_by=None,
        updated_at_ms=now_ms,
        next_sweep_at_ms=None,
    )


def requested(row: OfflineTransaction, refund: PendingRefund, now_ms: int) -> OfflineTransaction:
    """The row that waits for a refund which its agent has asked for; it is swept, never expires."""
    return replace(
        row,
        status=Status.REFUND_REQUESTED,
        refund_request=refund,
        attempt=row.attempt + 1,
        queued_at_ms=now_ms,
        updated_at_ms=now_ms,
        next_sweep_at_ms=now_ms + SWEEP_AFTER_MS[0],
    )


def _as_before(asked: Refund, seen: Seen, now_ms: int) -> Decision:
    """The id has its one outcome: it answers the same request, and refuses another one.

    The first use comes first: the refusal of a later one may differ from it in nothing but the
    currency, and must not become the answer to the first.
    """
    first, row = seen.refund, seen.row
    if first is not None:
        same = first.fingerprint == asked.fingerprint
        if same and _currency_fits(asked, first.currency):
            return Answered(first.outcome, _told(asked, seen, now_ms))
    elif row is not None and _cancelled_by(asked, row):
        same = is_full(asked.amount_minor, row)
        if same and _currency_fits(asked, row.currency):
            return Cancel(None)
    if seen.reused is not None:
        return Answered(seen.reused.outcome, _told(asked, seen, now_ms))
    return _reject(Reason.KEY_REUSED, asked, seen, now_ms)


def _is_anothers(asked: Refund, seen: Seen) -> bool:
    if seen.row is not None and seen.row.phone != asked.phone:
        return True
    original = seen.row or seen.debit
    return original is not None and not _currency_fits(asked, original.currency)


def _currency_fits(asked: Refund, currency: Currency) -> bool:
    return asked.currency is None or asked.currency == currency


def _cancelled_by(asked: Refund, row: OfflineTransaction) -> bool:
    """The refund id has its outcome in the row: no entry tells of a cancellation."""
    mine = (row.phone, row.cancelled_by) == (asked.phone, asked.refund_id)
    return row.status is Status.CANCELLED and mine


def _without_later_use_of_the_key(asked: Refund, seen: Seen) -> Seen:
    """Where a posted debit's row was purged, its key may have been sent again as something else.

    The refund is then decided by the debit's entry, and the row of the other use stays as it is.
    """
    row, debit = seen.row, seen.debit
    if row is None or debit is None or not isinstance(debit.outcome, Posted):
        return seen
    own = (row.phone, row.fingerprint) == (asked.phone, debit.fingerprint)
    if own and row.status not in (Status.FAILED, Status.EXPIRED):
        return seen
    return replace(seen, row=None)


def _before_settlement(asked: Refund, seen: Seen, row: OfflineTransaction, now_ms: int) -> Decision:
    if seen.debit is not None:  # its row was purged, and sent again: it is about to be closed
        return Wait("NOT_SETTLED")
    if is_full(asked.amount_minor, row):
        return Cancel(cancelled(row, asked.refund_id, now_ms))
    if asked.amount_minor is not None and asked.amount_minor > row.amount_minor:
        return _reject(Reason.EXCEEDS_ORIGINAL, asked, seen, now_ms, row.amount_minor)
    return Wait("NOT_SETTLED")


def _after_settlement(asked: Refund, seen: Seen, now_ms: int) -> Decision:
    if seen.row is None and seen.debit is not None and isinstance(seen.debit.outcome, Rejected):
        return _reject(Reason.NOTHING_TO_REFUND, asked, seen, now_ms)
    original = seen.row or seen.debit
    if original is None or seen.wallet is None:
        raise ValueError("a settled debit without a wallet")
    remaining_minor = original.amount_minor - seen.refunded_minor
    amount_minor = remaining_minor if asked.amount_minor is None else asked.amount_minor
    if not 0 < amount_minor <= remaining_minor:
        return _reject(Reason.EXCEEDS_ORIGINAL, asked, seen, now_ms, remaining_minor)
    return Post(
        amount_minor=amount_minor,
        original_minor=original.amount_minor,
        currency=original.currency,
        wallet_after=replace(
            seen.wallet,
            balance_minor=seen.wallet.balance_minor + amount_minor,
            version=seen.wallet.version + 1,
        ),
        row_after=_refunded(asked, seen, amount_minor, now_ms),
    )


def _refunded(
    asked: Refund, seen: Seen, amount_minor: int, now_ms: int
) -> OfflineTransaction | None:
    if seen.row is None:
        return None
    row = replace(seen.row, refunded_minor=seen.refunded_minor + amount_minor, updated_at_ms=now_ms)
    return row if _waits_for_another(asked, row) else _closed(row, now_ms)


def _reject(
    reason: Reason, asked: Refund, seen: Seen, now_ms: int, remaining_minor: int | None = None
) -> Reject:
    return Reject(reason, remaining_minor, _told(asked, seen, now_ms))


def _told(asked: Refund, seen: Seen, now_ms: int) -> OfflineTransaction | None:
    """The row that has its answer now, None where it does not wait for this request."""
    row = seen.row
    if row is None or row.refund_request is None or _waits_for_another(asked, row):
        return None
    return _closed(replace(row, refunded_minor=seen.refunded_minor or None), now_ms)


def _waits_for_another(asked: Refund, row: OfflineTransaction) -> bool:
    pending = row.refund_request
    mine = (asked.phone, asked.refund_id, asked.amount_minor)
    return pending is not None and (row.phone, pending.refund_id, pending.amount_minor) != mine


def _closed(row: OfflineTransaction, now_ms: int) -> OfflineTransaction:
    """A settled row that waits for nothing: its status is what has been refunded of it."""
    refunded_minor = row.refunded_minor or 0
    if refunded_minor == 0:
        status = Status.SYNCED
    elif refunded_minor < row.amount_minor:
        status = Status.PARTIALLY_REFUNDED
    else:
        status = Status.REFUNDED
    return replace(
        row, status=status, refund_request=None, next_sweep_at_ms=None, updated_at_ms=now_ms
    )


def posted(plan: Post) -> Posted:
    """The outcome that a posted refund's entry records."""
    return Posted(plan.wallet_after.version, plan.wallet_after.balance_minor)
