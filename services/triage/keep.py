"""Keep a dead letter: see where its subject stands, diagnose it, and hold the row with it."""

from dataclasses import dataclass

from triage.preview import preview
from wallet_ledger.domain.letters import (
    Arrival,
    Budget,
    Letter,
    Standing,
    Verdict,
    debit_standing,
    diagnose,
    held,
    opened,
)
from wallet_ledger.domain.refunds import Answered, Cancel, Refund, decide_refund
from wallet_ledger.domain.transactions import OfflineTransaction
from wallet_ledger.domain.wallets import Debit
from wallet_ledger.errors import Unavailable
from wallet_ledger.patience import Patience
from wallet_ledger.ports import Clock, DeadLetters, RowMove, Subjects


@dataclass(frozen=True, slots=True)
class Kept:
    """The letter is kept, so its message may go. `new`: kept just now, not by an earlier run."""

    letter: Letter
    new: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """Where a subject stands, and for a debit, its row."""

    standing: Standing
    row: OfflineTransaction | None = None


def keep(
    arrival: Arrival,
    record: str,
    *,
    letters: DeadLetters,
    subjects: Subjects,
    clock: Clock,
    patience: Patience,
) -> Kept:
    """Keep an arrival with its verbatim record. Raises `Unavailable`: it stays in its queue."""
    while True:
        seen = see(arrival, subjects)
        budget = Budget()
        diagnosis = diagnose(arrival.failure, seen.standing, budget)
        if diagnosis.verdict is Verdict.AUTO_REDRIVE:  # nothing else depends on the budget
            budget = letters.budget(arrival.subject_ref)
            diagnosis = diagnose(arrival.failure, seen.standing, budget)
        now_ms = clock.now_ms()
        shown = preview(arrival.body)
        letter = opened(arrival, diagnosis, budget, preview=shown, now_ms=now_ms)
        if letters.file(letter, record, _hold(letter, seen, now_ms)):
            return Kept(letter, new=True)
        known = letters.find(letter.letter_id)
        if known is not None:
            return Kept(known, new=False)
        if not patience.wait():  # its row moved between the look and the write, again and again
            raise Unavailable("Moved")


def see(arrival: Arrival, subjects: Subjects) -> Seen:
    """What the tables say of a letter's subject now; what no table knows is open."""
    subject = arrival.subject
    try:
        match subject:
            case None:
                done = False
            case Debit():
                return _see_debit(subject, subjects)
            case Refund():
                done = _is_decided(subject, subjects)
            case _:
                done = subjects.decided(subject)
    except (LookupError, ValueError):  # an item that somebody edited: it is for a person
        return Seen(Standing.UNREADABLE)
    if done:
        return Seen(Standing.DECIDED)
    return Seen(Standing.UNFREEZES if arrival.may_unfreeze else Standing.OPEN)


def _see_debit(debit: Debit, subjects: Subjects) -> Seen:
    row = subjects.row(debit)
    standing = debit_standing(debit, row, decided=False)
    if standing is not Standing.DECIDED and subjects.decided(debit):
        standing = Standing.DECIDED
    return Seen(standing, row)


def _is_decided(refund: Refund, subjects: Subjects) -> bool:
    """Whether nothing is left to be written for a refund id."""
    match decide_refund(refund, subjects.see(refund), 0, patient=True):
        case Answered(_, None) | Cancel(None):
            return True
        case _:
            return False


def _hold(letter: Letter, seen: Seen, now_ms: int) -> RowMove | None:
    """A debit waits with its letter; as long as the letter is open, nobody else sends it."""
    if seen.row is None or seen.standing is not Standing.OPEN or not letter.status.is_open:
        return None
    return RowMove(seen.row, held(seen.row, letter.letter_id, now_ms))
