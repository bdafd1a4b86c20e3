"""Give a debit back: look at all that counts, decide, write once; look again where it moved."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from wallet_ledger.domain.postings import Committed, Contended, Moved, Refused
from wallet_ledger.domain.refunds import (
    Answered,
    Cancel,
    Decision,
    Post,
    Refund,
    Reject,
    Seen,
    Wait,
    decide_refund,
    posted,
)
from wallet_ledger.domain.wallets import Outcome, Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import Unavailable
from wallet_ledger.patience import Patience
from wallet_ledger.ports import Clock, RefundBooks

RECEIVES_UNSEEN_MAX = 4
"""Receives for which an original that cannot be seen may still appear: about half a minute."""


@dataclass(frozen=True, slots=True)
class Decided:
    """Done: the refund id has this outcome. `new`: decided just now."""

    outcome: Outcome
    new: bool


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Done: the debit was not settled and never will be. `new`: cancelled just now."""

    new: bool


type Result = Decided | Cancelled | Unfinished | Violation


def give_back_all(
    requests: Sequence[tuple[Refund, int]], books: RefundBooks, clock: Clock, patience: Patience
) -> list[Result]:
    """Refunds of one phone in their order, each with its receive count; the results are parallel.

    What comes too early holds back later refunds of the same debit, and of no other. After an
    unfinished one nothing later is decided, nor once the time is over.
    """
    results: list[Result] = []
    stopped: Unfinished | None = None
    early: dict[tuple[str, str], Unfinished] = {}
    for asked, received in requests:
        debit = (asked.agent_id, asked.idempotency_key)
        if results and stopped is None and patience.over:
            stopped = Unfinished(("OutOfTime",))
        held_back = stopped or early.get(debit)
        if held_back is not None:
            results.append(held_back)
            continue
        patient = received <= RECEIVES_UNSEEN_MAX
        match _until_decided(asked, books, clock, patience, patient=patient):
            case Wait(code):
                results.append(early.setdefault(debit, Unfinished((code,))))
            case result:
                stopped = result if isinstance(result, Unfinished) else None
                results.append(result)
    return results


def give_back(
    asked: Refund, books: RefundBooks, clock: Clock, patience: Patience, *, patient: bool
) -> Result:
    """One refund. `patient`: whether an original that cannot be seen may still appear."""
    result = _until_decided(asked, books, clock, patience, patient=patient)
    return Unfinished((result.code,)) if isinstance(result, Wait) else result


def _until_decided(
    asked: Refund, books: RefundBooks, clock: Clock, patience: Patience, *, patient: bool
) -> Result | Wait:
    while True:
        try:
            at_ms = clock.now_ms()
            seen = books.see(asked)
            decision = decide_refund(asked, seen, at_ms, patient=patient)
            ended = _write(asked, seen, decision, books, at_ms)
        except Unavailable as error:
            ended = Contended((error.code,))
        if not isinstance(ended, Contended):
            return ended
        if not patience.wait():
            return Unfinished(ended.codes)


def _write(
    asked: Refund, seen: Seen, decision: Decision, books: RefundBooks, at_ms: int
) -> Result | Wait | Contended:
    match decision:
        case Wait():
            return decision
        case Answered(outcome, None):
            return Decided(outcome, new=False)
        case Cancel(None):
            return Cancelled(new=False)
        case Answered() | Cancel() | Post() | Reject():
            pass
    match books.write(asked, seen, decision, at_ms):
        case Committed():
            return _done(decision)
        case Contended() as contended:
            return contended
        case Moved():
            return Contended(("Moved",))
        case Refused(codes):
            return Violation(codes)
        case never:
            assert_never(never)


def _done(decision: Answered | Cancel | Post | Reject) -> Result:
    match decision:
        case Answered(outcome):
            return Decided(outcome, new=False)
        case Cancel():
            return Cancelled(new=True)
        case Post():
            return Decided(posted(decision), new=True)
        case Reject(reason):
            return Decided(Rejected(reason), new=True)
        case _:
            assert_never(decision)
