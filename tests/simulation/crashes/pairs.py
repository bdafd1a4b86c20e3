"""Two invocations at once: every order in which their AWS calls can fall, and how it ends.

A state is what the account holds, and what each of the two has been answered so far; from every
state each goes on by one call. So all schedules are tried, and no state twice: an invocation is run
again from its start on the answers that it had, which is why nothing here needs a thread.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError

from tests.simulation.crashes.footprints import Footprint, footprint, held
from tests.simulation.crashes.line import Json, Line
from tests.simulation.crashes.outcomes import Outcome, check_books, outcome
from tests.simulation.crashes.snapshots import Restore
from wallet_ledger.telemetry import HandlerFailed

ASKED_MAX = 8
"""How often who is put off asks again, all else being delivered in between."""


class Paused(BaseException):
    """The invocation has made its call, and asks for the next."""


@dataclass(frozen=True, slots=True)
class Process:
    """One invocation. `ended` does what AWS does with its answer, None where it has raised.

    `again`: whether who asked asks once more, given the answer; `told`: what of the answer is a
    promise to somebody.
    """

    name: str
    function: str
    event: Json
    ended: Callable[[Line, Any], None]
    again: Callable[[Any], bool]
    told: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer of a client, or the error that it raised: the same whenever it is run again."""

    given: Any
    text: str


class Turn:
    """Gives an invocation the answers that it had, lets it make one call more, and stops it then.

    The answers are a client's, so that only the one call goes through boto3.
    """

    def __init__(self, answers: Sequence[Answered]) -> None:
        self.answers = list(answers)
        self._at = 0
        self._made = False

    def __call__(self, make: Callable[[], Any]) -> Any:
        if self._at == len(self.answers):
            if self._made:
                raise Paused
            self._made = True
            self.answers.append(_answered(make))
        answer = self.answers[self._at]
        self._at += 1
        if isinstance(answer.given, ClientError):
            raise answer.given
        return answer.given


def _answered(make: Callable[[], Any]) -> Answered:
    try:
        given = make()
    except ClientError as error:
        return Answered(error, _text(error.response))
    return Answered(given, _text(given))


def _straight(make: Callable[[], Any]) -> Any:
    return make()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


@dataclass(frozen=True, slots=True)
class Ended:
    """What an invocation came to: its answer, None where it has raised."""

    answer: Any
    text: str


@dataclass(frozen=True, slots=True)
class State:
    """Known by its key. `parts` are each invocation's answers so far, or its end."""

    key: "Key" = field(repr=False)
    restore: Restore = field(repr=False, compare=False)
    parts: tuple[tuple[Answered, ...] | Ended, ...] = field(repr=False, compare=False)
    how: tuple[str, ...] = field(compare=False)

    @property
    def done(self) -> bool:
        """Whether both have ended."""
        return all(isinstance(part, Ended) for part in self.parts)


type Key = tuple[str, ...]
type End = tuple[Outcome, tuple[str, ...]]
"""What there is when all is done, and what each was told."""


@dataclass
class Explored:
    """How much was tried, and what ended as no order of the two would."""

    states: int = 0
    schedules: int = 0
    ends: int = 0
    differences: list[str] = field(default_factory=list)


class Pair:
    """All that can happen to two invocations that begin at one moment of a line."""

    def __init__(self, line: Line, start: Restore, processes: Sequence[Process]) -> None:
        self.line = line
        self._adds_up: set[Key] = set()
        self._steps: dict[tuple[Key, int], State] = {}
        self._ends: dict[Key, End] = {}
        self.processes = processes
        start()
        self.start_ms = line.now_ms
        self.first = self._state(((),) * len(processes), ())

    def explore(self) -> Explored:
        """Try everything."""
        allowed = [self._end(self._serial(order)) for order in ((0, 1), (1, 0))]
        result = Explored()
        steps: dict[Key, list[Key]] = {}
        waiting = [self.first]
        while waiting:
            state = waiting.pop()
            if state.key in steps:
                continue
            self._check_books(state, result)
            if state.done:
                self._check(state, allowed, result)
            following = list(self._following(state))
            steps[state.key] = [after.key for after in following]
            waiting += following
        result.states = len(steps)
        result.ends = sum(not after for after in steps.values())
        result.schedules = _paths(steps, self.first.key)
        return result

    def _serial(self, order: Sequence[int]) -> State:
        state = self.first
        for index in order:
            while not isinstance(state.parts[index], Ended):
                state = self._step(state, index)
        return state

    def _following(self, state: State) -> Iterator[State]:
        for index, part in enumerate(state.parts):
            if not isinstance(part, Ended):
                yield self._step(state, index)

    def _step(self, state: State, index: int) -> State:
        """One call more of one of them, or its end."""
        if (state.key, index) not in self._steps:
            self._steps[state.key, index] = self._stepped(state, index)
        return self._steps[state.key, index]

    def _stepped(self, state: State, index: int) -> State:
        part, process = state.parts[index], self.processes[index]
        assert not isinstance(part, Ended)
        state.restore()
        self.line.now_ms = self.start_ms
        random.seed(index)
        turn = Turn(part)
        self.line.around = turn
        self.line.calls.clear()
        try:
            answer = self.line.invoke(process.function, process.event)
        except Paused:
            then: tuple[Answered, ...] | Ended = tuple(turn.answers)
        except HandlerFailed:
            then = self._ended(process, None)
        else:
            then = self._ended(process, answer)
        self.line.around = _straight
        parts = list(state.parts)
        parts[index] = then
        [*made] = self.line.calls
        label = f"{process.name}: {' '.join(made[0].kind) if made else 'ends'}"
        return self._state(tuple(parts), (*state.how, label))

    def _ended(self, process: Process, answer: Any) -> Ended:
        process.ended(self.line, answer)
        return Ended(answer, _text(answer))

    def _state(
        self, parts: tuple[tuple[Answered, ...] | Ended, ...], how: tuple[str, ...]
    ) -> State:
        said = [
            part.text if isinstance(part, Ended) else "\n".join(each.text for each in part)
            for part in parts
        ]
        ended = "".join(str(isinstance(part, Ended)) for part in parts)
        key = (*contents(self.line), ended, *said)
        return State(key, self.line.snapshot(), parts, how)

    def _check(self, state: State, allowed: Sequence[End], result: Explored) -> None:
        end = self._end(state)
        if end not in allowed:
            unlike = [
                f"not as one after the other:\n{end[0].differing(each)}" for each, _ in allowed
            ]
            was_told = [str(told) for _, told in allowed]
            told = f"told {end[1]}, not {' nor '.join(was_told)}"
            result.differences.append("\n".join([*state.how, *unlike, told]))

    def _check_books(self, state: State, result: Explored) -> None:
        if state.key[:2] in self._adds_up:
            return
        self._adds_up.add(state.key[:2])
        state.restore()
        try:
            check_books(self.line)
        except AssertionError as error:
            result.differences.append("\n".join([*state.how, str(error)]))

    def _end(self, state: State) -> End:
        if state.key not in self._ends:
            self._ends[state.key] = self._drained(state)
        return self._ends[state.key]

    def _drained(self, state: State) -> End:
        """Who was put off asks again, and what is left is delivered, until nothing more comes."""
        state.restore()
        self.line.paused.clear()
        answers = [part.answer for part in state.parts if isinstance(part, Ended)]
        for _ in range(ASKED_MAX):
            waiting = [i for i, process in enumerate(self.processes) if process.again(answers[i])]
            for index in waiting:
                process = self.processes[index]
                answers[index] = self.line.invoke(process.function, process.event)
            self.line.settle()
            if not waiting:
                break
        else:
            raise AssertionError("somebody is never answered")
        check_books(self.line)
        pairs = zip(self.processes, answers, strict=True)
        return outcome(self.line).once, tuple(_text(each.told(answer)) for each, answer in pairs)


def _paths(steps: dict[Key, list[Key]], first: Key) -> int:
    """In how many ways one can go from the first to a last; nobody comes back to where he was."""
    known: dict[Key, int] = {}
    waiting = [first]
    while waiting:
        at = waiting[-1]
        unknown = [each for each in steps[at] if each not in known]
        if unknown:
            waiting += unknown
            continue
        known[at] = sum(known[each] for each in steps[at]) if steps[at] else 1
        waiting.pop()
    return known[first]


def contents(line: Line) -> tuple[str, ...]:
    """All that the account holds, as text."""
    account = line.account
    tables = [_text(table.items()) for table in account.dynamodb.tables.values()]
    queues = [
        _text([(m.message_id, m.handle, m.visible_at_ms) for m in queue.messages])
        for queue in account.sqs.queues.values()
    ]
    events = [_text(bus.events) for bus in account.events.buses.values()]
    return (*tables, *queues, *events, _text(sorted(line.read.items())))


@dataclass
class Met:
    """What came of all pairs of one moment. `apart`: pairs that cannot meet, of any schedule.

    `due` are the functions of all pairs, `interleaved` of those whose schedules were all tried.
    """

    due: set[frozenset[str]] = field(default_factory=set)
    interleaved: set[frozenset[str]] = field(default_factory=set)
    pairs: int = 0
    apart: int = 0
    states: int = 0
    schedules: int = 0
    differences: list[str] = field(default_factory=list)


def meet(line: Line, due: Sequence[Process], *, also_apart: bool = False) -> Met:
    """Every two of the invocations that are due now, and each with a second run of itself."""
    line.forget()
    start = line.snapshot()
    prints = [_alone(line, start, process) for process in due]
    result = Met()
    for one, other in itertools.combinations_with_replacement(range(len(due)), 2):
        pair = (due[one], due[other])
        functions = frozenset(each.function for each in pair)
        result.due.add(functions)
        if not prints[one].meets(prints[other]):
            result.apart += 1
            if not also_apart:
                continue
        explored = Pair(line, start, pair).explore()
        result.pairs += 1
        result.interleaved.add(functions)
        result.states += explored.states
        result.schedules += explored.schedules
        names = " and ".join(each.name for each in pair)
        result.differences += [f"{names}:\n{each}" for each in explored.differences]
    return result


def _alone(line: Line, start: Restore, process: Process) -> Footprint:
    start()
    line.calls.clear()
    before = held(line)
    process.ended(line, line.invoke(process.function, process.event))
    return footprint(line, before)
