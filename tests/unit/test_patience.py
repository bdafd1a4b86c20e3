"""Waiting: full jitter under a bound that doubles, within a budget."""

import pytest

from tests.fakes.memory import FakeClock
from wallet_ledger.patience import CAP_S, Patience

BOUNDS_S = [0.025, 0.05, 0.1, 0.2, 0.4, CAP_S, CAP_S]


def _pauses_s(drawn: float, budget_ms: int) -> list[float]:
    """How long each wait was, up to seven or to the first that was none."""
    clock = FakeClock()
    patience = Patience(clock, lambda: drawn, budget_ms)
    for _ in BOUNDS_S:
        if not patience.wait():
            break
    assert patience.waits == len(clock.pauses)
    return clock.pauses


@pytest.mark.parametrize("drawn", [0.0, 0.5, 1.0])
def test_a_wait_is_drawn_under_a_bound_that_doubles_up_to_its_cap(drawn: float) -> None:
    assert _pauses_s(drawn, budget_ms=60_000) == [drawn * each for each in BOUNDS_S]


@pytest.mark.parametrize("budget_ms", [0, 25, 74, 75, 300])
def test_no_wait_ends_after_the_budget_and_every_one_that_fits_is_waited(budget_ms: int) -> None:
    pauses_s = _pauses_s(1.0, budget_ms)

    assert sum(pauses_s) * 1000 <= budget_ms
    assert sum(BOUNDS_S[: len(pauses_s) + 1]) * 1000 >= budget_ms
