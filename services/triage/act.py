"""Act on kept letters: redrive, discard, look again. Each action is one conditional write."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from triage.keep import Seen, see
from triage.reading import read
from wallet_ledger.domain.ids import digest
from wallet_ledger.domain.letters import (
    AUTOMATIC_AFTER_MS,
    BY_HAND_MAX,
    LOOK_AGAIN_MS,
    Action,
    Arrival,
    Budget,
    Letter,
    LetterStatus,
    Source,
    Standing,
    diagnose,
    discarded,
    looked_at,
    moved,
    released,
)
from wallet_ledger.domain.transactions import OfflineTransaction
from wallet_ledger.domain.wallets import Debit
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import (
    Clock,
    DeadLetters,
    OutgoingMessage,
    Queue,
    RowMove,
    Subjects,
)

TRIAGE = "triage"
"""Who acts where no person does."""

HISTORY_MAX = 100
"""Lines of one letter's history that looking and trying may fill: 132 KB at most of the 400 of an
item, of which actions need the rest."""

SENDING = "sending"
"""What a history says before a message is sent, so that nobody gives up what may be on its way."""


class Outcome(StrEnum):
    """What became of one letter."""

    REDRIVEN = "redriven"
    DISCARDED = "discarded"
    CLOSED = "closed"
    PARKED = "parked"
    ALREADY_REDRIVEN = "already_redriven"
    ALREADY_TERMINAL = "already_terminal"
    CAPPED = "capped"
    ON_ITS_WAY = "on_its_way"
    NOT_REDRIVABLE = "not_redrivable"
    UNKNOWN = "unknown"
    CONTENDED = "contended"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Result:
    """An outcome, and in words for a person, why."""

    outcome: Outcome
    note: str = ""


@dataclass(frozen=True, slots=True)
class By:
    """Who acts, and why; `dry_run`: only tell what would become of it."""

    who: str
    why: str
    force: bool = False
    dry_run: bool = False

    @property
    def automatic(self) -> bool:
        """Whether no person acts."""
        return self.who == TRIAGE


@dataclass(frozen=True, slots=True)
class Desk:
    """What acting on a letter needs."""

    letters: DeadLetters
    subjects: Subjects
    queues: Mapping[Source, Queue]
    clock: Clock


@dataclass(frozen=True, slots=True)
class _Case:
    """An open letter, what came in, and where its subject stands now."""

    letter: Letter
    arrival: Arrival
    seen: Seen

    @property
    def is_debit(self) -> bool:
        """Whether a row stands for its subject."""
        return isinstance(self.arrival.subject, Debit)

    @property
    def meaning(self) -> str:
        """What it is by now, which may be something else than when it was kept."""
        return diagnose(self.letter.failure, self.seen.standing, Budget()).meaning

    @property
    def held_row(self) -> OfflineTransaction | None:
        """The row that this letter holds."""
        row = self.seen.row
        if row is None or self.seen.standing is not Standing.HELD:
            return None
        return row if row.held_by == self.letter.letter_id else None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: decided, or somebody else stands for it."""
        if self.seen.standing is Standing.HELD:
            return self.held_row is None
        over = {Standing.DECIDED, Standing.NEWER_ATTEMPT}
        return self.seen.standing in over or (self.is_debit and self.seen.standing is Standing.OPEN)


def redrive(letter_id: str, by: By, desk: Desk) -> Result:
    """Send a letter's subject on its way again, if it is still to be done."""
    return _act(letter_id, by, desk, "redrive", _redrive)


def discard(letter_id: str, by: By, desk: Desk) -> Result:
    """Give a letter's subject up: a held debit is refused for good, anything else is not sent."""
    return _act(letter_id, by, desk, "discard", _discard)


def look_again(letter: Letter, desk: Desk) -> Result:
    """What the clock does with an open letter whose time has come."""
    by = By(TRIAGE, "its time has come")
    if letter.status is LetterStatus.WAITING:
        return _try_again(letter, by, desk)
    case = _case(letter, desk)
    if case is not None and case.is_over:
        return _close(case.letter, by, desk)
    later = desk.letters.look_later(looked_at(letter, desk.clock.now_ms()))
    return Result(Outcome.UNCHANGED if later else Outcome.CONTENDED)


def _try_again(letter: Letter, by: By, desk: Desk) -> Result:
    """What the clock cannot redrive it would try for ever: after an hour, a person looks."""
    late = desk.clock.now_ms() - (letter.due_at_ms or 0) > LOOK_AGAIN_MS[0]
    try:
        result = redrive(letter.letter_id, by, desk)
    except Exception as error:
        if not late:
            raise
        result = Result(Outcome.CONTENDED, type(error).__name__)
    in_vain = result.outcome is Outcome.CONTENDED and late
    if in_vain or result.outcome is Outcome.NOT_REDRIVABLE:
        current = desk.letters.find(letter.letter_id)
        if current is not None and current.status is LetterStatus.WAITING:
            return _park(current, by, desk, result.note)
    return result


def reveal(letter: Letter, by: By, desk: Desk) -> bool:
    """Write down that a person sees a letter unmasked; False: it changed meanwhile, ask again."""
    return desk.letters.move(letter, moved(letter, letter.status, _action(by, "revealed", desk)))


def _act(
    letter_id: str,
    by: By,
    desk: Desk,
    verb: str,
    act: Callable[[_Case, By, Desk], Result],
) -> Result:
    try:
        letter = desk.letters.find(letter_id)
        if letter is None:
            return Result(Outcome.UNKNOWN, "no such letter")
        if not letter.status.is_open:
            return _too_late(letter, by, desk, verb)
        case = _case(letter, desk)
        if case is None:
            return Result(Outcome.NOT_REDRIVABLE, "its record is gone")
        return _close(letter, by, desk) if case.is_over else act(case, by, desk)
    except Unavailable as error:
        return Result(Outcome.CONTENDED, error.code)


def _case(letter: Letter, desk: Desk) -> _Case | None:
    record = desk.letters.record(letter.letter_id)
    if record is None:
        return None
    arrival = read(json.loads(record))
    return _Case(letter, arrival, see(arrival, desk.subjects))


def _redrive(case: _Case, by: By, desk: Desk) -> Result:
    letter, row = case.letter, case.held_row
    unreadable = case.seen.standing is Standing.UNREADABLE
    if not letter.source.takes_again or unreadable or (case.is_debit and row is None):
        return Result(Outcome.NOT_REDRIVABLE, case.meaning)
    budget = desk.letters.budget(letter.subject_ref)
    if by.automatic and budget.automatic >= len(AUTOMATIC_AFTER_MS):
        return _park(letter, by, desk, "its automatic redrives are used up")
    if not by.automatic and budget.by_hand >= BY_HAND_MAX and not by.force:
        return Result(Outcome.CAPPED, f"{budget.by_hand} redrives by hand already")
    if by.dry_run:
        return Result(Outcome.REDRIVEN)
    # What was sent and not written down is sent again: within five minutes its queue knows it by
    # its dedup id, and after that its consumer by its business id.
    spent = Budget(automatic=1) if by.automatic else Budget(by_hand=1)
    if row is not None:
        released_row = RowMove(row, released(row, desk.clock.now_ms()))
        after = moved(letter, LetterStatus.REDRIVEN, _action(by, "redriven", desk))
        return _written(desk.letters.move(letter, after, released_row, spent), Outcome.REDRIVEN)
    sending = letter
    if not _is_on_its_way(letter):
        sending = moved(letter, letter.status, _action(by, SENDING, desk))
        if not desk.letters.move(letter, sending):
            return _written(False, Outcome.REDRIVEN)
    if not _send_again(case, desk):
        return Result(Outcome.CONTENDED, "its queue did not take it")
    after = moved(sending, LetterStatus.REDRIVEN, _action(by, "redriven", desk))
    return _written(desk.letters.move(sending, after, None, spent), Outcome.REDRIVEN)


def _is_on_its_way(letter: Letter) -> bool:
    """Whether a redrive was begun and its end was not written down: it may have been sent."""
    return any(each.what == SENDING for each in letter.history)


def _discard(case: _Case, by: By, desk: Desk) -> Result:
    if case.is_debit and case.seen.standing is Standing.UNREADABLE:
        # Its row may be held all the same, and nobody would look at it again.
        return Result(Outcome.NOT_REDRIVABLE, case.meaning)
    if _is_on_its_way(case.letter):
        return Result(Outcome.ON_ITS_WAY, "a redrive may have sent it: redrive it, it goes once")
    if by.dry_run:
        return Result(Outcome.DISCARDED)
    row = case.held_row
    after = moved(case.letter, LetterStatus.DISCARDED, _action(by, "discarded", desk))
    move = None if row is None else RowMove(row, discarded(row, desk.clock.now_ms()))
    return _written(desk.letters.move(case.letter, after, move), Outcome.DISCARDED)


def _send_again(case: _Case, desk: Desk) -> bool:
    """To its own queue, in its own group; under an id of the letter's, which is redriven once."""
    message = OutgoingMessage(case.arrival.body)
    if case.letter.source is not Source.INBOX:
        message = replace(
            message,
            group=case.letter.original.group or case.letter.subject_ref,
            dedup_id=digest("redrive", case.letter.letter_id),
        )
    return not desk.queues[case.letter.source].send([message])


def _close(letter: Letter, by: By, desk: Desk) -> Result:
    note = "its outcome is in the tables, or a later attempt is under way"
    if by.dry_run:
        return Result(Outcome.CLOSED, note)
    after = moved(letter, LetterStatus.CLOSED, _action(replace(by, why=note), "closed", desk))
    return _written(desk.letters.move(letter, after), Outcome.CLOSED, note)


def _park(letter: Letter, by: By, desk: Desk, note: str) -> Result:
    after = moved(letter, LetterStatus.PARKED, _action(replace(by, why=note), "parked", desk))
    return _written(desk.letters.move(letter, after), Outcome.PARKED, note)


def _too_late(letter: Letter, by: By, desk: Desk, verb: str) -> Result:
    """A letter that is dealt with stays so, and its history tells that somebody tried."""
    if letter.status is LetterStatus.REDRIVEN:
        return Result(Outcome.ALREADY_REDRIVEN)
    note = f"already terminal: {letter.status}"
    if not by.dry_run and not by.automatic and len(letter.history) < HISTORY_MAX:
        what = f"{verb} refused: {note}"
        desk.letters.move(letter, moved(letter, letter.status, _action(by, what, desk)))
    return Result(Outcome.ALREADY_TERMINAL, note)


def _written(done: bool, outcome: Outcome, note: str = "") -> Result:
    return Result(outcome, note) if done else Result(Outcome.CONTENDED, "it changed meanwhile")


def _action(by: By, what: str, desk: Desk) -> Action:
    return Action(desk.clock.now_ms(), by.who, what, by.why)
