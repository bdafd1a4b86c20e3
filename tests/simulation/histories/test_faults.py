"""What befalls what, and how it is counted: each fault once, whatever it spoils."""

from typing import Any

from tests.simulation.histories import coverage
from tests.simulation.histories.faults import HOUR_MS, Again, Answered, Dies, Faults, Raised
from tests.simulation.histories.plan import Fault, Item
from tests.simulation.histories.processes import Call


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        """The time."""
        return self.ms


def call(operation: str) -> Call:
    return Call("dynamodb", operation, {"TableName": "OfflineTx"}, tries=1)


def answer(_: Any) -> dict[str, Any]:
    return {}


def begun(kind: Fault, function: str) -> tuple[Faults, Clock]:
    """A fault of this kind on this function, whatever number draws it."""
    clock = Clock()
    for salt in range(2_000):
        faults = Faults(clock.now_ms)
        if faults.begin(Item(0, kind, salt)).startswith(function):
            return faults, clock
    raise AssertionError(f"{kind} is never drawn for {function}")


def test_an_outage_is_counted_once_however_many_calls_it_refuses() -> None:
    faults, clock = begun(Fault.STARVED, "reconcile")

    fates = [faults.fate("reconcile", call("GetItem"), answer) for _ in range(5)]
    _, clock.ms = faults.outages["reconcile"]
    after = faults.fate("reconcile", call("GetItem"), answer)

    reached = faults.hits.reached()
    assert all(isinstance(fate, Raised) for fate in fates)
    assert isinstance(after, Answered)
    assert reached[f"fault {Fault.STARVED}"] == reached[f"struck reconcile: {Fault.STARVED}"] == 1
    assert reached[f"spoilt {Fault.STARVED}"] == 5


def test_the_next_outage_of_a_function_is_counted_anew() -> None:
    faults, clock = begun(Fault.CRASHING, "relay")
    assert faults.suffers("relay", Fault.CRASHING)
    _, clock.ms = faults.outages["relay"]
    over = faults.suffers("relay", Fault.CRASHING)

    faults.outages["relay"] = (Fault.CRASHING, clock.ms + HOUR_MS)

    assert not over
    assert faults.suffers("relay", Fault.CRASHING)
    assert faults.hits.reached()[f"struck relay: {Fault.CRASHING}"] == 2


def test_an_outage_that_nothing_met_is_not_counted() -> None:
    faults, _ = begun(Fault.DENIED, "refund")

    faults.fate("reconcile", call("PutItem"), answer)

    assert not faults.hits.had(Fault.DENIED)


def test_a_spell_of_conflicts_is_one_fault_at_one_call() -> None:
    faults, _ = begun(Fault.CONFLICT, "any x3")
    faults.armed[0].first, faults.armed[0].skips = False, 0

    fates = [faults.fate("ingest", call("PutItem"), answer) for _ in range(4)]

    reached = faults.hits.reached()
    assert [isinstance(fate, Again | Raised) for fate in fates] == [True, True, True, False]
    assert reached[f"call ingest PutItem: {Fault.CONFLICT}"] == 1
    assert reached[f"spoilt {Fault.CONFLICT}"] == 3


def test_a_fault_for_what_is_seldom_called_waits_for_a_call_not_made_before() -> None:
    faults, _ = begun(Fault.KILLED_BEFORE, "any")
    [armed] = faults.armed
    faults.armed = []
    faults.fate("relay", call("GetItem"), answer)
    armed.first, armed.skips = True, 0
    faults.armed = [armed]

    known = faults.fate("relay", call("GetItem"), answer)
    new = faults.fate("relay", call("UpdateItem"), answer)

    assert isinstance(known, Answered)
    assert isinstance(new, Dies)


def test_a_fault_that_lets_calls_pass_befalls_the_one_behind_them() -> None:
    faults, _ = begun(Fault.KILLED_BEFORE, "any")
    faults.armed[0].first, faults.armed[0].skips = False, 2

    fates = [faults.fate("relay", call("GetItem"), answer) for _ in range(3)]

    assert [isinstance(fate, Dies) for fate in fates] == [False, False, True]


def test_a_stream_that_nobody_had_to_wait_for_was_not_paused() -> None:
    clock = Clock()
    faults = Faults(clock.now_ms)
    table = faults.begin(Item(0, Fault.STREAM_PAUSED, 1))
    unmet = faults.hits.had(Fault.STREAM_PAUSED)

    paused = [faults.is_paused(table) for _ in range(3)]

    assert not unmet
    assert all(paused)
    assert faults.hits.reached()[f"struck {table}: {Fault.STREAM_PAUSED}"] == 1


def test_a_skewed_clock_is_the_one_of_the_function_that_was_drawn() -> None:
    faults, _ = begun(Fault.SKEWED, "sweep")

    assert not faults.takes(Fault.SKEWED, "ingest")
    assert faults.takes(Fault.SKEWED, "sweep")


def test_what_has_nearly_died_out_is_missed() -> None:
    enough = coverage.expected()
    name = f"fault {Fault.STARVED}"

    assert coverage.missing(enough) == []
    assert coverage.missing({**enough, name: 1}) == [f"{name}: 1 of {enough[name]}"]
    assert f"{name}: {enough[name]} of {2 * enough[name]}" in coverage.missing(
        enough, 2 * coverage.HISTORIES
    )


def test_a_call_that_is_often_made_is_wanted_with_each_fault_that_can_befall_it() -> None:
    reached = {**coverage.expected(), "made nobody PutItem": coverage.CALLS_OFTEN}

    assert coverage.missing(reached) == [
        f"call nobody PutItem: {kind}: 0 of 1"
        for kind in (Fault.THROTTLED, Fault.CONFLICT, Fault.ANSWER_LOST)
    ]
