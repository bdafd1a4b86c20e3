"""A thousand agents come online within one second: what the SDK's waits make of it."""

from random import Random

import pytest

from tests.simulation.herd.agents import (
    AGENTS,
    BURST,
    EXPONENTIAL,
    FIXED,
    RATE_PER_S,
    START,
    STRATEGIES,
    SYNC,
    Herd,
    Strategy,
)
from tests.simulation.herd.page import (
    PAGE,
    PICTURE,
    SEED,
    bounds_table,
    courses,
    picture,
    table,
)


def test_the_sdk_flattens_the_herd_to_a_third() -> None:
    """Its busiest second of all, against theirs after the first, which is nobody's retry."""
    ours = courses()[START.name].busiest()
    for other in (FIXED, EXPONENTIAL):
        assert ours <= courses()[other.name].busiest(1.0) / 3
        assert ours <= courses()[other.name].busiest() / 4


def test_jitter_alone_keeps_the_herd_apart_from_the_first_retry_on() -> None:
    """`sync` at once, so that the first second is as bad as anybody's."""
    ours = courses()[SYNC.name]
    for other in (FIXED, EXPONENTIAL):
        assert ours.busiest(1.0) <= courses()[other.name].busiest(1.0) / 3
        assert ours.busiest(10.0) <= courses()[other.name].busiest(10.0) / 3


def test_the_sdk_asks_less_of_the_gateway_and_makes_nobody_wait_for_it() -> None:
    """A third is refused, and the last agent's money is safe about as soon."""
    ours, fixed = courses()[START.name], courses()[FIXED.name]
    assert len(ours.refused_s) <= 0.4 * len(fixed.refused_s)
    assert ours.requests <= 0.7 * fixed.requests
    assert max(ours.sent_s.values()) <= 1.25 * max(fixed.sent_s.values())
    assert max(ours.heard_s.values()) <= 1.25 * max(fixed.heard_s.values())


@pytest.mark.parametrize("strategy", [SYNC, START], ids=lambda each: each.name)
def test_questions_about_ten_do_not_crowd_out_what_others_have_to_send(strategy: Strategy) -> None:
    """Five times as many requests for the same number of agents, and no more than twice as late."""
    one, ten = courses()[strategy.name], Herd(strategy, Random(SEED), each=10).run()
    assert len(ten.admitted_s) == 5.5 * len(one.admitted_s) == 11 * AGENTS
    assert ten.sent_after(19, 20) <= 2 * one.sent_after(19, 20)


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
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert bounds_table() in page
    assert picture() == PICTURE.read_text(encoding="utf-8")
