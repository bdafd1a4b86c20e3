"""Every interleaving of a few requests about one debit ends as some order of them would.

All of it is tried: who comes to the debit, its refunds and its dead letters at once, in which order
their calls of the tables fall, and with which one of them something goes wrong.
"""

import itertools

import pytest

from tests.simulation.ports.handlers import ARRIVALS, HANDLERS, TRIAGE
from tests.simulation.ports.schedules import World
from triage import act

SETTLED_OR_NOT = ("queued", "queued, too little", "settled", "partly given back")
OF_THREE = list(HANDLERS)[:-3]
"""Those of which any three are tried; the others meet each of them in pairs."""


@pytest.mark.parametrize("start", SETTLED_OR_NOT)
@pytest.mark.parametrize("first", HANDLERS)
def test_two_at_once_with_one_fault_end_as_one_after_the_other_would(
    start: str, first: str
) -> None:
    for second in list(HANDLERS)[list(HANDLERS).index(first) :]:
        assert World(start, (first, second), faults=True).explore() >= 4


@pytest.mark.parametrize("start", SETTLED_OR_NOT)
@pytest.mark.parametrize("first", OF_THREE)
def test_three_at_once_end_as_one_after_the_other_would(start: str, first: str) -> None:
    rest = OF_THREE[OF_THREE.index(first) :]
    for others in itertools.combinations_with_replacement(rest, 2):
        assert World(start, (first, *others), faults=False).explore() >= 8


# --- triage ---------------------------------------------------------------------------------------

BESIDE_TRIAGE = ("debit", "agent: all", "agent: 60", "bus: all", "bus: 60", "sweep", "expiry")
EVERYBODY = (*TRIAGE, *BESIDE_TRIAGE)
ONE_OF_TWO = {
    "queued": EVERYBODY,
    "settled": ("letter", "violated letter", "letter of the 2nd", "debit"),
    "held": EVERYBODY,
    "held, too little": ("redrive", "clock", "debit", "credit"),
    "held, one try left": ("letter of the 2nd", "redrive", "clock", "debit"),
    "held, no try by hand left": ("redrive", "discard", "clock"),
    "parked": EVERYBODY,
    "redriven": EVERYBODY,
    "redriven, no try left": ("letter of the 2nd", "redrive", "clock", "debit"),
}
ONE_OF_THREE = {
    "queued": (
        "letter",
        "violated letter",
        "redrive",
        "discard",
        "clock",
        "debit",
        "bus: all",
        "sweep",
        "expiry",
    ),
    "held": ("letter of the 2nd", "redrive", "discard", "clock", "debit", "bus: all"),
}
"""Of each start those to whom it makes a difference."""


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a record takes a third of the time, and every time comes to the same."""
    monkeypatch.setattr(act, "read", lambda record: ARRIVALS[record["messageId"]])


def each_first(names: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    """Start and first of a few, for a test each."""
    return [(start, first) for start, all_ in names.items() for first in all_ if first in TRIAGE]


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(("start", "first"), each_first(ONE_OF_TWO))
def test_a_letter_beside_anybody_with_one_fault_ends_as_one_after_the_other_would(
    start: str, first: str
) -> None:
    """P5, P8, C11, C48: a row is held by its open letter, and whoever acts on both acts once."""
    names = ONE_OF_TWO[start]
    for second in names[names.index(first) :]:
        assert World(start, (first, second), faults=True).explore() >= 4


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize(("start", "first"), each_first(ONE_OF_THREE))
def test_a_letter_beside_two_others_ends_as_one_after_the_other_would(
    start: str, first: str
) -> None:
    """P5, P8, C48: two desks, the clock and whoever else, on one letter and its row."""
    names = ONE_OF_THREE[start]
    rest = names[names.index(first) :]
    for others in itertools.combinations_with_replacement(rest, 2):
        assert World(start, (first, *others), faults=False).explore() >= 4
