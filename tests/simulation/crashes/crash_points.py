"""Every AWS call of a story, and each thing that can befall it; then the story goes on as it would.

A process that is killed before a call leaves what one leaves that was killed after the call before
it. So of a process that runs by itself these are all: killed before its first call, and after each
call that changed something. A read that is not answered is one that fails.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from botocore.exceptions import ReadTimeoutError

from tests.fakes.promises import OPEN
from tests.simulation.cloud.errors import AwsError, Json
from tests.simulation.cloud.machine import Killed
from tests.simulation.crashes.line import Call, Line, Proceed, on_line, orders
from tests.simulation.crashes.outcomes import Outcome, check_books, outcome
from tests.simulation.crashes.stories import Act, Story
from wallet_ledger.aws import items
from wallet_ledger.domain.transactions import Status


@dataclass(frozen=True, slots=True)
class Seen:
    """A call of a run that nothing befell. `first`: of its invocation; `parted`: in or after lanes.

    What comes before the lanes of an invocation is the same in whatever order they run.
    """

    call: Call
    first: bool
    changed: bool
    parted: bool


@dataclass(frozen=True, slots=True)
class Point:
    """A call and what befalls it, in a run whose lanes are all run in this one of their orders."""

    seen: Seen
    fault: str
    order: int

    def __str__(self) -> str:
        return f"{self.seen.call} {self.seen.call.target}: {self.fault} (order {self.order})"


def killed_before(at: Call, call: Call, go_on: Proceed) -> Json:
    """The process ends, and nothing has happened."""
    if call.number == at.number:
        raise Killed
    return go_on()


def killed_after(at: Call, call: Call, go_on: Proceed) -> Json:
    """The process ends when the call has done what it was asked."""
    if call.number == at.number:
        go_on()
        raise Killed
    return go_on()


def answer_lost(at: Call, call: Call, go_on: Proceed) -> Json:
    """The call has done what it was asked, and the function is never told."""
    answer = go_on()
    if call.number == at.number:
        raise ReadTimeoutError(endpoint_url="https://lost.invalid")
    return answer


def never_arrived(at: Call, call: Call, go_on: Proceed) -> Json:
    """The function is told the same, and nothing was done."""
    if call.number == at.number:
        raise ReadTimeoutError(endpoint_url="https://lost.invalid")
    return go_on()


def asked_twice(at: Call, call: Call, go_on: Proceed) -> Json:
    """The answer is lost, and botocore asks again."""
    if call.number == at.number:
        go_on()
    return go_on()


def refused_for_now(at: Call, call: Call, go_on: Proceed) -> Json:
    """The call, and whatever of its kind the invocation asks for after it, fails for a while."""
    if call.invocation != at.invocation or call.number < at.number or call.kind != at.kind:
        return go_on()
    raise _passing(call)


def refused_once(at: Call, call: Call, go_on: Proceed) -> Json:
    """The call fails, and would not a moment later."""
    if call.number == at.number:
        raise _passing(call)
    return go_on()


def _passing(call: Call) -> AwsError:
    if call.operation == "TransactWriteItems":
        reasons = [{"Code": "None"} for _ in call.body["TransactItems"]]
        reasons[-1] = {"Code": "TransactionConflict"}
        return AwsError("TransactionCanceledException", "cancelled", reasons=reasons)
    return AwsError("ThrottlingException", "slower")


type Fault = Callable[[Call, Call, Proceed], Json]

FAULTS: dict[str, tuple[Fault, Callable[[Seen], bool]]] = {
    "killed before": (killed_before, lambda seen: seen.first),
    "killed after": (killed_after, lambda seen: seen.changed),
    "answer lost": (answer_lost, lambda seen: seen.changed),
    "never arrived": (never_arrived, lambda seen: seen.changed),
    "asked twice": (asked_twice, lambda seen: seen.changed),
    "refused once": (refused_once, lambda seen: seen.changed),
    "refused for now": (refused_for_now, lambda _: True),
}
"""What befalls a call, and which calls it makes a difference to."""


def state(line: Line) -> tuple[object, ...]:
    """Something that changes with whatever a call changes."""
    tables = [len(table.stream) for table in line.account.dynamodb.tables.values()]
    queues = [
        (len(queue.messages), sum(each.visible_at_ms for each in queue.messages))
        for queue in line.account.sqs.queues.values()
    ]
    buses = [len(bus.events) for bus in line.account.events.buses.values()]
    return (*tables, *queues, *buses)


def watched(line: Line, act: Act) -> list[Seen]:
    """The calls of an act that nothing befalls."""
    seen: list[Seen] = []

    def step(call: Call, go_on: Proceed) -> Json:
        before = state(line)
        first = not seen or seen[-1].call.invocation != call.invocation
        try:
            return go_on()
        finally:
            parted = line.parted == call.invocation
            seen.append(Seen(call, first, state(line) != before, parted))

    line.step = step
    act(line)
    return seen


def points(seen: list[Seen], order: int) -> Iterator[Point]:
    """All that can befall these calls, and that differs from what it is in another order."""
    for each in seen:
        for name, (_, matters) in FAULTS.items():
            if matters(each) and (order == 0 or each.parted):
                yield Point(each, name, order)


def befallen(line: Line, act: Act, point: Point) -> None:
    """The act, in which something befalls one call. Raises where that wakes anybody."""
    fault, _ = FAULTS[point.fault]
    gone: int | None = None

    def step(call: Call, go_on: Proceed) -> Json:
        nonlocal gone
        assert call.invocation != gone, "a process goes on after its end"
        line.befallen |= call.number == point.seen.call.number
        try:
            return fault(point.seen.call, call, go_on)
        except Killed:
            gone = call.invocation
            raise

    line.step, line.order = step, point.order
    act(line)
    assert line.befallen, "the call was not made again"
    # Only what the clock starts says so by raising: it is run again a minute later.
    assert set(line.alarms) <= {"handler failed"}, line.alarms


@dataclass
class Tried:
    """What was tried of one story: its calls, how many points of each fault, what was told again.

    `lanes` are the functions that had lanes, how many, and the order that they were run in.
    `differences` are the points after which all did not end as it would have.
    """

    calls: list[Call] = field(default_factory=list)
    sites: set[tuple[str, int]] = field(default_factory=set)
    points: Counter[str] = field(default_factory=Counter)
    told_again: int = 0
    lanes: set[tuple[str, int, int]] = field(default_factory=set)
    differences: list[str] = field(default_factory=list)

    def compare(self, what: str, came: Outcome, expected: Outcome, story: Story) -> None:
        """Note a difference of the one from the other."""
        is_, was = came.once, expected.once
        if story.letters_differ:
            is_, was = is_.without_letters, was.without_letters
        if is_ != was:
            self.differences.append(f"{what}\n{is_.differing(was)}")


def tried(story: Story) -> Tried:
    """Every call of every act of a story, and all that can befall it."""
    result = Tried()
    with on_line() as line:
        for act in story.before:
            act(line)
        for act in story.acts:
            _try_act(line, act, story, result)
        check_all_is_done(line, story)
    return result


def _try_act(line: Line, act: Act, story: Story, result: Tried) -> None:
    """Its lanes in each order that there is, and of each whatever can befall its calls."""
    line.forget()
    begin = line.snapshot()
    line.sites.clear()
    seen = watched(line, act)
    end, expected = line.snapshot(), outcome(line)
    assert not line.alarms
    result.calls += [each.call for each in seen]
    result.sites |= line.sites
    for order in range(max((len(orders(n)) for _, n in line.lanes), default=1)):
        begin()
        line.order = order
        seen = watched(line, act)
        result.lanes |= {(*lanes, order) for lanes in line.lanes}
        result.compare(f"order {order}", outcome(line), expected, story)
        for point in points(seen, order):
            begin()
            _try(line, act, point, expected, story, result)
    end()


def check_all_is_done(line: Line, story: Story) -> None:
    """P5: a story ends with nothing under way, so that what it is compared with is right too."""
    assert not outcome(line).left, "messages are left"
    rows = [items.read_offline_tx(each) for each in line.account.tables["OfflineTxTable"].items()]
    still = {row.idempotency_key for row in rows if row.status in OPEN | {Status.HELD}}
    assert still == story.left_open, "transactions are left"
    check_books(line)


def _try(
    line: Line, act: Act, point: Point, expected: Outcome, story: Story, result: Tried
) -> None:
    try:
        befallen(line, act, point)
    except AssertionError as error:
        result.differences.append(f"{point}: {error}")
        return
    came = outcome(line)
    result.points[point.fault] += 1
    result.told_again += came.told_again(expected)
    result.compare(str(point), came, expected, story)
