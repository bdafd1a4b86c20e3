"""Every interleaving of those who act on a letter that no row stands for: a credit that failed.

Nothing but the letter says whether it is on its way, and a queue is in no transaction. So all of it
is tried, as in schedules.py: who redrives it and who gives it up, in which order their calls fall,
and with which one of them something goes wrong.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from tests.fakes.dead_letters import Triage, left
from tests.fakes.memory import FakeClock, FakeDeadLetters, FakeQueue, FakeSubjects
from tests.fakes.samples import credit
from tests.fakes.scripted import Call, Crash, around
from tests.simulation.ports.turns import (
    NO_FAULT,
    Fault,
    Heard,
    Paused,
    Turn,
    conflict,
    crash_after,
    crash_before,
    lost,
    nothing,
)
from triage.act import SENDING, By, Desk, Outcome, Result, discard, look_again, redrive
from wallet_ledger.domain.letters import Budget, Letter, LetterStatus, Source
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import OutgoingMessage

TRIES_MAX = 10
"""Nobody has to ask more often, whoever else is there."""
AT_MS = FakeClock().now_ms() + 60_000
"""When all act: the clock has just come to the letter."""


def look(letter_id: str, desk: Desk) -> Result:
    """The clock, which reads its letter first; one that is seen to is in no list of its."""
    letter = desk.letters.find(letter_id)
    assert letter is not None
    return look_again(letter, desk) if letter.status.is_open else Result(Outcome.UNCHANGED)


type Act = Callable[[str, Desk], Result]

ACTS: Mapping[str, Act] = {
    "ann": lambda letter_id, desk: redrive(letter_id, By("ann", "mended"), desk),
    "cyd": lambda letter_id, desk: discard(letter_id, By("cyd", "not wanted"), desk),
    "clock": look,
}


def but_for_its_record(step: Callable[[Call], Any], call: Call) -> Any:
    """A record never changes: whoever reads it may read it at any time."""
    return call.proceed() if call.method == "record" else step(call)


def untaken(_: Call) -> frozenset[int]:
    """The queue answers that it does not take it."""
    return frozenset({0})


FAULTS = {
    "crash before": Fault(lambda _: True, crash_before),
    "crash after": Fault(lambda call: call.method in {"move", "send"}, crash_after),
    "conflict": Fault(lambda call: call.method in {"move", "find"}, conflict),
    "answer lost": Fault(lambda call: call.method in {"move", "send"}, lost),
    "not taken": Fault(lambda call: call.method == "send", untaken),
}


@dataclass(frozen=True, slots=True)
class State:
    """The letter, its budget, what its queue was sent, and each actor's answers or its outcome.

    `settled`: its consumer took it from there.
    """

    letter: Letter
    budget: Budget
    sent: tuple[OutgoingMessage, ...]
    actors: tuple[tuple[bool, Any], ...]
    faulty: int | None = None
    settled: bool = False


class World:
    """A letter of a credit, and all that can happen when a few act on it at once."""

    def __init__(self, names: tuple[str, ...], *, faults: bool) -> None:
        self.names = names
        self.faults = FAULTS if faults else {}
        triage = Triage()
        self.letter = triage.keep(left(credit("C-1"))).letter
        self.store = triage.store
        begun = tuple((False, ()) for _ in names)
        self.first = State(triage.letter(self.letter.letter_id), Budget(), (), begun)
        self.came_from: dict[State, tuple[State | None, str]] = {self.first: (None, "")}

    def explore(self) -> int:
        """Try everything; how many states there are."""
        waiting = [self.first]
        while waiting:
            state = waiting.pop()
            following = list(self._following(state))
            for label, after in following:
                if after not in self.came_from:
                    self.came_from[after] = (state, label)
                    waiting.append(after)
                    self._checked(after, partial(check_step, state))
            if all(done for done, _ in state.actors):
                self._checked(state, self._check_end)
        return len(self.came_from)

    def _following(self, state: State) -> Iterator[tuple[str, State]]:
        if state.sent and not state.settled:
            yield "consumer: settles it", replace(state, settled=True)
        for index, (done, _) in enumerate(state.actors):
            if done:
                continue
            call, after = self._step(state, index, NO_FAULT, state.faulty)
            label = f"{self.names[index]}: {call.method}"
            yield label, after
            for name, fault in self.faults.items() if state.faulty is None else ():
                if fault.happens_to(call):
                    yield f"{label} {name}", self._step(state, index, fault, index)[1]

    def _step(
        self, state: State, index: int, fault: Fault, faulty: int | None
    ) -> tuple[Call, State]:
        """One call more of an actor: which one, and where that leads."""
        answers: tuple[Heard, ...] = state.actors[index][1]
        turn = Turn(answers, fault)
        desk, queue = self._desk(state, turn)
        try:
            then: tuple[bool, Any] = (True, self._act(self.names[index], desk))
        except Paused:
            then = (False, tuple(turn.answers))
        except Crash:
            then = (False, ())  # who had asked asks again
        assert turn.made is not None
        actors = (*state.actors[:index], then, *state.actors[index + 1 :])
        return turn.made, replace(self._now(queue, state), actors=actors, faulty=faulty)

    def _act(self, name: str, desk: Desk) -> Outcome:
        """What the actor is answered in the end, whoever is in the way."""
        for _ in range(TRIES_MAX):
            try:
                outcome = ACTS[name](self.letter.letter_id, desk).outcome
            except Unavailable:
                continue
            if outcome is not Outcome.CONTENDED:
                return outcome
        raise AssertionError("never answered")

    def _desk(self, state: State, step: Callable[[Call], Any]) -> tuple[Desk, FakeQueue]:
        clock = FakeClock(AT_MS)
        queue = FakeQueue(clock)
        queue.send(state.sent)
        self.store.letters = {state.letter.letter_id: state.letter}
        self.store.budgets = {state.letter.subject_ref: state.budget}
        letters = around(FakeDeadLetters(self.store), partial(but_for_its_record, step))
        subjects = around(around(FakeSubjects(self.store), lambda _: state.settled), step)
        return Desk(letters, subjects, {Source.TX_QUEUE: around(queue, step)}, clock), queue

    def _now(self, queue: FakeQueue, was: State) -> State:
        letter = self.store.letters[was.letter.letter_id]
        budget = self.store.budgets[letter.subject_ref]
        return replace(was, letter=letter, budget=budget, sent=tuple(queue.messages))

    def _check_end(self, state: State) -> None:
        """It is finished, each was told the truth, and who redrives it once more sends nothing."""
        status, told = state.letter.status, [outcome for _, outcome in state.actors]
        sure = [said for index, said in enumerate(told) if index != state.faulty]
        assert (Outcome.DISCARDED in sure) <= (status is LetterStatus.DISCARDED)
        assert sure.count(Outcome.REDRIVEN) <= (status is LetterStatus.REDRIVEN)
        assert (Outcome.ON_ITS_WAY in told) <= (SENDING in history_of(state))
        assert not status.is_open, "whoever redrives is answered when it is done"
        desk, queue = self._desk(state, nothing)
        again = redrive(state.letter.letter_id, By("eve", "once more"), desk).outcome
        redriven = status is LetterStatus.REDRIVEN
        assert again is (Outcome.ALREADY_REDRIVEN if redriven else Outcome.ALREADY_TERMINAL)
        assert tuple(queue.messages) == state.sent
        assert bool(state.sent) == (status is not LetterStatus.DISCARDED)

    def _checked(self, state: State, check: Callable[[State], None]) -> None:
        try:
            check(state)
        except AssertionError as error:
            steps = []
            at: State | None = state
            while at is not None:
                at, label = self.came_from[at]
                steps.append(label)
            raise AssertionError(f"{error}\nafter:" + "\n".join(reversed(steps))) from error


def history_of(state: State) -> list[str]:
    """What was done, without what was only tried."""
    return [each.what for each in state.letter.history if "refused" not in each.what]


ENDS = {
    LetterStatus.REDRIVEN: [SENDING, "redriven"],
    LetterStatus.CLOSED: [SENDING, "closed"],
    LetterStatus.DISCARDED: ["discarded"],
}


def check_step(was: State, now: State) -> None:
    """What is sent was written down before, and is never given up; each thing happens once."""
    status, history = now.letter.status, history_of(now)
    assert len(now.sent) <= 1, "its queue takes it once"
    assert len(now.sent) <= (SENDING in history), "sent, and nobody knows"
    assert history == ENDS[status] if status in ENDS else history in ([], [SENDING])
    assert now.letter.history[: len(was.letter.history)] == was.letter.history
    redriven = status is LetterStatus.REDRIVEN
    assert redriven == (now.budget.automatic + now.budget.by_hand == 1)
    assert redriven <= bool(now.sent), "redriven, and nobody has sent it"


@pytest.mark.parametrize("names", [*itertools.combinations(ACTS, 2)], ids=" and ".join)
def test_a_letter_that_may_be_on_its_way_is_given_up_by_nobody_and_goes_once(
    names: tuple[str, ...],
) -> None:
    """C48: whoever is killed wherever, it is finished, and its history tells how."""
    assert World(names, faults=True).explore() > 500


def test_of_a_person_the_clock_and_who_gives_it_up_one_counts() -> None:
    assert World(tuple(ACTS), faults=False).explore() > 1_000
