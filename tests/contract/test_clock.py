"""`Clock`: a pause takes at least what it says, and time never goes back."""

import pytest

from tests.fakes.memory import FakeClock
from wallet_ledger.clock import SystemClock
from wallet_ledger.ports import Clock


@pytest.mark.parametrize("clock", [FakeClock(), SystemClock()], ids=["fake", "system"])
def test_a_pause_lets_at_least_its_time_pass(clock: Clock) -> None:
    before_ms = clock.now_ms()
    clock.pause(0)
    clock.pause(0.012)

    assert clock.now_ms() >= before_ms + 11  # both ends are cut to whole milliseconds
