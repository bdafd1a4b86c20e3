"""The tests that may go red: collected once, recorded once, then run on one mutant after the other.

Every mutant lives in a child process, forked from one in which pytest has collected everything. It
is given only tests that can tell: those in which its clause decides otherwise, or which run its
lines; the quick ones first, and none after the first that is red.
"""

import contextlib
import json
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import Phase, settings

from tests.simulation.cloud.dynamodb import DynamoDB
from tests.simulation.guards.code import MODULES
from tests.simulation.guards.conditions import Guard, Seen, Weakened, writer_now
from tests.simulation.guards.sources import DoesNotLoad, Lines, imported
from tests.template import ROOT

NICENESS = 10
BATTERY = ("tests/contract", "tests/unit", "tests/simulation")
LEFT_OUT = (
    *("test_cli_", "test_sdk_", "test_bench_", "test_herd", "test_guards", "test_simulated_"),
    "test_dynamo",
    *("test_every_call_may_fail", "test_histories", "test_planted_bugs"),
    *("test_crash_points", "test_meetings"),
)
"""Files of the battery that run none of the code whose guards are here; this tool; and what takes
longer than all of the rest."""
LOG = ROOT / ".wakala" / "guards.log"

type BreakIt = Callable[[Sequence[str]], str | None]
"""Breaks something in this process; or has some tests run in another, and says which was red."""

type Place = tuple[str, int]
"""A module's path, and a line in it."""


@dataclass(frozen=True)
class Recorded:
    """What the battery does where nothing is broken.

    `seconds`: of the processor, for each test, however busy the machine is; `by_functions`: those
    guards that the functions sent in histories.
    """

    seconds: Mapping[str, float]
    guards: frozenset[Guard]
    by_functions: frozenset[Guard]
    weakened: Mapping[Weakened, frozenset[str]]
    lines: Mapping[Place, frozenset[str]]
    red: Sequence[str]

    def that_run(self, places: Iterable[Place]) -> list[str]:
        """The tests that run one of these lines, the quickest first."""
        return self.in_order({test for place in places for test in self.lines.get(place, ())})

    def mutant(
        self, name: str, tests: Iterable[str], break_it: BreakIt, budget_s: float
    ) -> "Mutant":
        """A mutant for as many of the tests as take no longer than that."""
        return Mutant(name, self._bounded(tests, budget_s), self.seconds, break_it)

    def _bounded(self, tests: Iterable[str], seconds: float) -> list[str]:
        chosen: list[str] = []
        sum_s = 0.0
        for test in self.in_order(tests):
            sum_s += self.seconds.get(test, 0.0)
            if chosen and sum_s > seconds:
                break
            chosen.append(test)
        return chosen

    def in_order(self, tests: Iterable[str]) -> list[str]:
        """The quickest first."""
        return sorted(tests, key=lambda test: (round(self.seconds.get(test, 0.0), 2), test))


@dataclass(frozen=True)
class Mutant:
    """What to break, how, and the tests that can tell, in their order; `seconds`: of each."""

    name: str
    tests: Sequence[str]
    seconds: Mapping[str, float]
    break_it: BreakIt


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: the test that is red, or none; or that only came to no end."""

    caught_by: str | None
    timed_out: bool
    tests: int
    seconds: float


def belongs(item: pytest.Item) -> bool:
    """Whether a test runs in this process alone, on no engine that must be started."""
    name = Path(item.location[0]).name
    fixtures = getattr(item, "fixturenames", ())
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    apart = name.startswith(LEFT_OUT)
    engines = sys.modules["tests.engine"]  # imported here, it would bring our modules unwatched
    started = {"aws"} | {*engines.TABLES_ON, *engines.CHANNELS_ON}
    asked = {*fixtures, *(each for each in parameters.values() if isinstance(each, str))}
    return not apart and asked.isdisjoint(started)


class Battery:
    """A plugin of pytest, which does `work` where pytest would run the tests."""

    def __init__(self, work: Callable[["Battery"], None]) -> None:
        self.items: dict[str, pytest.Item] = {}
        self._work = work
        self._session: pytest.Session
        self._lines = Lines()
        self._red: str | None = None
        self._ended: BaseException | None = None

    def collect(self, arguments: Sequence[str] = BATTERY) -> None:
        """Have pytest collect, and work; what the work raises, pytest would swallow."""
        options = ("-q", "-s", "-p", "no:cacheprovider", "--no-header", "--tb=line")
        with imported(dict.fromkeys(MODULES), self._lines):
            status = pytest.main([*arguments, *options], plugins=[self])
        if self._ended is not None:
            raise self._ended
        if status:
            raise RuntimeError(f"pytest could not collect {arguments}, and ended with {status}")

    # --- hooks ----------------------------------------------------------------------------------

    def pytest_configure(self) -> None:
        """The same examples each time, and none made smaller once it is red."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "guards", deadline=None, database=None, derandomize=True, phases=phases
        )
        settings.load_profile("guards")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only what belongs."""
        items[:] = [item for item in items if belongs(item)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Here the work is done, if all could be collected."""
        if session.testsfailed:
            return False
        self.items = {item.nodeid: item for item in session.items}
        self._session = session
        try:
            self._work(self)
        except BaseException as error:
            self._ended = error
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first that is red."""
        if report.failed and self._red is None:
            self._red = report.nodeid

    # --- recording ------------------------------------------------------------------------------

    def record(self) -> Recorded:
        """Run all of it, in a child, on the code as it is."""
        with tempfile.NamedTemporaryFile() as file:
            pid = _forked(lambda: Path(file.name).write_bytes(pickle.dumps(self._record())))
            _, status = os.waitpid(pid, 0)
            if status:
                raise RuntimeError(f"the recording died; see {LOG}")
            recorded: Recorded = pickle.loads(Path(file.name).read_bytes())  # noqa: S301
        return recorded

    def _record(self) -> Recorded:
        seen = Seen(writer_now)
        every_dynamodb(seen.watch)
        seconds: dict[str, float] = {}
        lines: dict[Place, set[str]] = defaultdict(set)
        red: list[str] = []
        for item, following in _pairs(list(self.items.values())):
            seen.test = item.nodeid
            self._lines.start()
            started = time.process_time()
            self._run(item, following)
            seconds[item.nodeid] = time.process_time() - started
            for place in self._lines.hit:
                lines[place].add(item.nodeid)
            if self._red:
                red.append(self._red)
                self._red = None
        from tests.simulation.guards.histories import see_histories  # see `belongs`

        by_tests, seen.guards = seen.guards, set()
        red += see_histories(seen)
        guards = frozenset(by_tests | seen.guards)
        weakened = {mutant: frozenset(tests) for mutant, tests in seen.weakened.items()}
        by_line = {place: frozenset(tests) for place, tests in lines.items()}
        return Recorded(seconds, guards, frozenset(seen.guards), weakened, by_line, red)

    def _run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self._session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    # --- mutants --------------------------------------------------------------------------------

    def run(
        self,
        mutants: Sequence[Mutant],
        tell: Callable[[Mutant, Verdict], None],
        *,
        side_by_side: int = 2,
        timeout_s: float = 600.0,
    ) -> None:
        """Each mutant in a process of its own; `tell` of each as soon as it is known.

        Raises RuntimeError, and ends the others, where one dies: that says nothing of the tests.
        """
        alive: dict[int, tuple[Mutant, int, float]] = {}
        try:
            self._run_all(list(reversed(mutants)), alive, tell, side_by_side, timeout_s)
        finally:
            for _, pid, _ in alive.values():
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _run_all(
        self,
        waiting: list[Mutant],
        alive: dict[int, tuple[Mutant, int, float]],
        tell: Callable[[Mutant, Verdict], None],
        side_by_side: int,
        timeout_s: float,
    ) -> None:
        while waiting or alive:
            while waiting and len(alive) < side_by_side:
                mutant = waiting.pop()
                if not mutant.tests:
                    tell(mutant, Verdict(None, timed_out=False, tests=0, seconds=0.0))
                    continue
                answer, pid = self._start(mutant)
                alive[answer] = (mutant, pid, time.monotonic())
            ready, _, _ = select.select(list(alive), [], [], 0.5)
            for answer in list(alive):
                mutant, pid, started = alive[answer]
                took = time.monotonic() - started
                if answer in ready or took >= timeout_s:
                    del alive[answer]
                    tell(mutant, _ended(pid, answer, mutant, took, came=answer in ready))

    def _start(self, mutant: Mutant) -> tuple[int, int]:
        """Where its answer will be read, and its process id."""
        answer, told = os.pipe()

        def child() -> None:
            os.close(answer)
            signal.signal(signal.SIGALRM, lambda *_: _say_hung())
            red = self._first_red(mutant)
            os.write(told, json.dumps({"red": red}).encode())

        def _say_hung() -> NoReturn:
            test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
            os.write(told, json.dumps({"red": test, "hung": True}).encode())
            os._exit(0)

        pid = _forked(child)
        os.close(told)
        return answer, pid

    def _first_red(self, mutant: Mutant) -> str | None:
        print(f"=== {mutant.name}", flush=True)
        try:
            red = mutant.break_it(mutant.tests)
        except DoesNotLoad as error:
            traceback.print_exc()
            return f"({error} at import)"
        if red is not None:
            return red
        longest_s: dict[str, float] = defaultdict(float)
        for test, seconds in mutant.seconds.items():  # whoever comes first makes what a file shares
            longest_s[_file(test)] = max(longest_s[_file(test)], seconds)
        for item, following in _pairs([self.items[test] for test in mutant.tests]):
            patience_s = 20 + 10 * longest_s[_file(item.nodeid)]
            signal.setitimer(signal.ITIMER_REAL, patience_s)
            self._run(item, following)
            if self._red:
                break
        return self._red


def every_dynamodb(change: Callable[[DynamoDB], None]) -> None:
    """Whoever makes one from now on, `change` is done to it first. For a child process only."""
    made = DynamoDB.__init__

    def make(self: DynamoDB, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **options)
        change(self)

    DynamoDB.__init__ = make  # type: ignore[method-assign]


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    yield from zip(items, [*items[1:], None], strict=True)


def _file(test: str) -> str:
    return test.partition("::")[0]


def _ended(pid: int, answer: int, mutant: Mutant, took: float, *, came: bool) -> Verdict:
    if not came:
        os.killpg(pid, signal.SIGKILL)
    with os.fdopen(answer, "rb") as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    if came and not text:
        raise RuntimeError(f"its process died, see {LOG}: {mutant.name}")
    told: dict[str, Any] = json.loads(text) if came else {"red": None, "hung": True}
    hung = told.get("hung", False)
    return Verdict(told["red"], timed_out=hung, tests=len(mutant.tests), seconds=round(took, 1))


def _forked(work: Callable[[], object]) -> int:
    """A child that works, prints to the log and ends; its id, which is its group's too."""
    LOG.parent.mkdir(exist_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _work_and_end(work)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return pid


def _work_and_end(work: Callable[[], object]) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        os.nice(NICENESS)
        output = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(output, stream)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
