"""A thousand agents come online within one second: what the SDK's waits make of it."""

import pytest

from tests.simulation.herd import (
    AGENTS,
    BURST,
    EXPONENTIAL,
    FIXED,
    RATE_PER_S,
    START,
    STRATEGIES,
    SYNC,
    Strategy,
)
from tests.simulation.herd_page import PAGE, PICTURE, courses, picture, table


def test_the_sdk_flattens_the_herd_to_a_third() -> None:
    """Its busiest second of all, against theirs after the first, which is nobody's retry."""
    ours = courses()[START.name].busiest()
    for other in (FIXED, EXPONENTIAL):
        assert ours <= courses()[other.name].busiest(1.0) / 3
        assert ours <= courses()[other.name].busiest() / 4


def test_jitter_alone_dissolves_the_herd_within_ten_seconds() -> None:
    """`sync` at once, so that the first second is as bad as anybody's."""
    ours = courses()[SYNC.name]
    assert ours.busiest(1.0) < courses()[FIXED.name].busiest(1.0) * 0.75
    assert ours.busiest(1.0) < courses()[EXPONENTIAL.name].busiest(1.0) * 0.8
    assert ours.busiest(10.0) <= courses()[FIXED.name].busiest(10.0) / 3
    assert ours.busiest(10.0) <= courses()[EXPONENTIAL.name].busiest(10.0) / 2.5


def test_the_sdk_asks_less_of_the_gateway_and_makes_nobody_wait_for_it() -> None:
    """Half as much is refused, and the last agent's money is safe about as soon."""
    ours, fixed = courses()[START.name], courses()[FIXED.name]
    assert len(ours.refused_s) <= 0.6 * len(fixed.refused_s)
    assert ours.requests <= 0.8 * fixed.requests
    assert max(ours.sent_s.values()) <= 1.25 * max(fixed.sent_s.values())
    assert max(ours.heard_s.values()) <= 1.25 * max(fixed.heard_s.values())


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: each.name)
def test_whatever_they_do_each_transaction_is_sent_and_settled_once(strategy: Strategy) -> None:
    """Two requests of each agent get through, and no more than the gateway admits."""
    course = courses()[strategy.name]
    assert len(course.sent_s) == len(course.heard_s) == AGENTS
    assert len(course.admitted_s) == 2 * AGENTS
    for from_s in range(60):
        within = [at for at in course.admitted_s if from_s <= at < from_s + 1]
        assert len(within) <= BURST + RATE_PER_S


def test_the_page_and_its_picture_show_these_numbers() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")
    assert picture() == PICTURE.read_text(encoding="utf-8")
