"""C12, C13, P1 to P9: two invocations that meet end as one after the other would.

The functions are the real ones on the real adapters, and stopped at each of their AWS calls.
"""

import itertools
from collections.abc import Mapping

import pytest

from tests.simulation.crashes.grants import shared
from tests.simulation.crashes.line import on_line, stack
from tests.simulation.crashes.meetings import MOMENTS, Moment, few_shards
from tests.simulation.crashes.pairs import Met, meet

SHOWN_MAX = 3


def met(moment: Moment, *, also_apart: bool = False) -> Met:
    """All pairs of a moment, on a line of its own."""
    with few_shards(), on_line() as line:
        for act in moment.before:
            act(line)
        due = [process for make in moment.due for process in make(line)]
        return meet(line, due, also_apart=also_apart)


@pytest.fixture(scope="module")
def known() -> dict[str, Met]:
    """What has been tried already, by moment."""
    return {}


def of(name: str, known: dict[str, Met]) -> Met:
    """What was tried of a moment, now or before."""
    if name not in known:
        known[name] = met(MOMENTS[name])
    return known[name]


@pytest.mark.parametrize("name", MOMENTS)
def test_any_two_that_meet_end_as_one_after_the_other_would(
    name: str, known: dict[str, Met]
) -> None:
    result = of(name, known)

    assert result.schedules > result.pairs > 0
    shown = "\n\n".join(result.differences[:SHOWN_MAX])
    assert not result.differences, f"{len(result.differences)}, as these:\n\n{shown}"


def test_every_two_functions_are_due_at_one_moment(known: dict[str, Met]) -> None:
    due = set().union(*(of(name, known).due for name in MOMENTS))

    every_two = itertools.combinations_with_replacement(stack().functions, 2)
    assert due == {frozenset(two) for two in every_two}


APART: Mapping[tuple[str, str], set[str]] = {
    ("ingest", "ingest-bus"): set(),
    ("ingest", "relay"): set(),
    ("ingest-bus", "triage"): set(),
    ("relay", "triage"): set(),
    ("refund", "relay"): {"DeliveryFailuresQueue"},
}
"""Pairs of which no schedule is tried, since at no moment the two touch anything in common; and
what their roles let them share: nothing, or a queue to which both send what they cannot read."""


def test_no_two_are_left_out_but_those_whose_roles_share_at_most_a_queue(
    known: dict[str, Met],
) -> None:
    due = set().union(*(of(name, known).due for name in MOMENTS))
    interleaved = set().union(*(of(name, known).interleaved for name in MOMENTS))

    assert due - interleaved == {frozenset(two) for two in APART}
    assert {two: shared(*two) for two in APART} == APART


def test_those_that_touch_nothing_in_common_end_alike_all_the_same() -> None:
    """They are left out elsewhere; here they are not."""
    result = met(MOMENTS["too little, and about to be frozen"], also_apart=True)

    assert result.apart > 0
    assert not result.differences
