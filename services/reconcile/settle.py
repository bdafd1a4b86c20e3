"""Settle the movements of one wallet: read once, decide, write once, and read failures right."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from wallet_ledger.domain.ids import Fingerprint
from wallet_ledger.domain.postings import (
    Committed,
    Conflicted,
    Contended,
    Entry,
    NewEntry,
    Posting,
    Refused,
    StatusOnly,
)
from wallet_ledger.domain.transactions import Reason
from wallet_ledger.domain.wallets import (
    Debit,
    Movement,
    MovementId,
    Outcome,
    Rejected,
    decide,
    movement_id,
)
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import Unavailable
from wallet_ledger.patience import Patience
from wallet_ledger.ports import Clock, Ledger


@dataclass(frozen=True, slots=True)
class Settled:
    """Done: the ledger says `outcome`, and so does the debit's row. `new`: decided just now."""

    outcome: Outcome
    new: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """Done, nothing to do: settled beside it, or its row is closed, held, or another request's."""


type Settlement = Settled | Dropped | Unfinished | Violation


def settle(
    movements: Sequence[Movement], ledger: Ledger, clock: Clock, patience: Patience
) -> list[Settlement]:
    """Settle movements of one phone in their order; the results are parallel to them.

    After an `Unfinished` nothing later is decided: an ordered source stops at its first failure.
    A `Violation` stops nobody: waiting for it would only take its neighbours along.
    """
    results: list[Settlement] = []
    for run in _runs(movements):
        stopped = next((result for result in results if isinstance(result, Unfinished)), None)
        if stopped is not None:
            results += [stopped] * len(run)
            continue
        group = _Group(run)
        refused = _settle_together(group, ledger, clock, patience)
        if refused is not None:
            _settle_one_by_one(group, refused, ledger, clock, patience)
        results += _in_order(run, group.results)
    return results


def _runs(movements: Sequence[Movement]) -> Iterator[list[Movement]]:
    """Cut where an id comes again with other content: one transaction can hold an id once."""
    run: list[Movement] = []
    content: dict[MovementId, Fingerprint] = {}
    for movement in movements:
        identity = movement_id(movement)
        if content.setdefault(identity, movement.fingerprint) != movement.fingerprint:
            yield run
            run, content = [], {identity: movement.fingerprint}
        run.append(movement)
    if run:
        yield run


def _in_order(
    run: Sequence[Movement], results: Mapping[MovementId, Settlement]
) -> Iterator[Settlement]:
    """One settlement per movement; a repetition of what was settled is nothing to count again."""
    seen: set[MovementId] = set()
    for movement in run:
        identity = movement_id(movement)
        result = results[identity]
        yield Dropped() if identity in seen and isinstance(result, Settled) else result
        seen.add(identity)


class _Group:
    """One run on its way into the books: what is left to write, and what has come out.

    `left` maps each id (a repetition counts once) to its movement and, where the books have
    answered for the id before, to the outcome that is to be written instead of a decision.
    """

    def __init__(self, run: Sequence[Movement]) -> None:
        self.phone = run[0].phone
        self.left: dict[MovementId, tuple[Movement, Outcome | None]] = {}
        for movement in run:
            self.left.setdefault(movement_id(movement), (movement, None))
        self.results: dict[MovementId, Settlement] = {}

    def posting(self, ledger: Ledger, at_ms: int) -> Posting:
        """What to write now. Raises `Unavailable` where the wallet cannot be read."""
        undecided = [movement for movement, known in self.left.values() if known is None]
        answered = [(movement, known) for movement, known in self.left.values() if known]
        new = [NewEntry(m, known) for m, known in answered if not isinstance(m, Debit)]
        status_only = [StatusOnly(m, known) for m, known in answered if isinstance(m, Debit)]
        wallet = ledger.wallet(self.phone) if undecided or new else None
        decision = decide(wallet, undecided)
        return Posting(
            phone=self.phone,
            seen=wallet,
            after=decision.after,
            needed_minor=decision.needed_minor,
            new=(*map(NewEntry, undecided, decision.outcomes), *new),
            status_only=tuple(status_only),
            at_ms=at_ms,
        )

    def only(self, identity: MovementId) -> "_Group":
        """A group of this one movement, with what is known of it."""
        movement, known = self.left[identity]
        alone = _Group([movement])
        alone.left[identity] = (movement, known)
        return alone

    def committed(self, posting: Posting) -> None:
        for new in posting.new:
            self.close(movement_id(new.movement), Settled(new.outcome, new=True))
        for known in posting.status_only:
            self.close(movement_id(known.debit), Settled(known.outcome, new=False))

    def learn(self, conflict: Conflicted) -> bool:
        """Take in what the books answered; whether that changes what there is to write."""
        for identity in conflict.moved:
            self.close(identity, Dropped())
        for identity, entry in conflict.recorded.items():
            if identity in self.left:
                self._meet(identity, entry)
        return bool(conflict.moved or conflict.recorded)

    def _meet(self, identity: MovementId, entry: Entry) -> None:
        """The id has an entry: it answers the same request, and refuses another one."""
        movement, known = self.left[identity]
        same = entry.fingerprint == movement.fingerprint
        if same and not isinstance(movement, Debit):
            self.close(identity, Settled(entry.outcome, new=False))
        elif known is not None:
            self.close(identity, Violation(("EntryOfAnotherContent",)))
        else:
            self.left[identity] = (movement, entry.outcome if same else Rejected(Reason.KEY_REUSED))

    def close(self, identity: MovementId, settlement: Settlement) -> None:
        del self.left[identity]
        self.results[identity] = settlement

    def close_all(self, settlement: Settlement) -> None:
        for identity in list(self.left):
            self.close(identity, settlement)


def _settle_together(
    group: _Group, ledger: Ledger, clock: Clock, patience: Patience
) -> Refused | None:
    """Bring all that is left into the books in one write; the refusal where that cannot be."""
    while group.left:
        try:
            posting = group.posting(ledger, clock.now_ms())
        except Unavailable as error:
            codes: tuple[str, ...] = (error.code,)
        else:
            match ledger.post(posting):
                case Committed():
                    group.committed(posting)
                    continue
                case Conflicted() as conflict:
                    if group.learn(conflict):
                        continue
                    codes = ("BalanceMoved",)
                case Contended(codes):
                    pass
                case Refused() as refused:
                    return refused
                case never:
                    assert_never(never)
        if not patience.wait():
            group.close_all(Unfinished(codes))
    return None


def _settle_one_by_one(
    group: _Group, refused: Refused, ledger: Ledger, clock: Clock, patience: Patience
) -> None:
    """Find what the books refuse to take, so that it does not fail the others."""
    if len(group.left) == 1:
        group.close_all(Violation(refused.codes))
        return
    for identity in list(group.left):
        alone = group.only(identity)
        again = _settle_together(alone, ledger, clock, patience)
        if again is not None:
            alone.close_all(Violation(again.codes))
        result = alone.results[identity]
        group.close(identity, result)
        if isinstance(result, Unfinished):
            group.close_all(result)
            return
