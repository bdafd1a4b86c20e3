"""Waiting for contention to pass: full jitter within a latency budget."""

from collections.abc import Callable

from wallet_ledger.ports import Clock

BASE_S = 0.025
CAP_S = 0.8


class Patience:
    """How long one piece of work may be tried again.

    Full jitter (a wait drawn evenly from 0 to a doubling bound) keeps writers that collided once
    from colliding again in step.
    """

    def __init__(self, clock: Clock, draw: Callable[[], float], budget_ms: int) -> None:
        """`draw` gives a number from 0 up to 1; the budget runs from now."""
        self._clock = clock
        self._draw = draw
        self._deadline_ms = clock.now_ms() + budget_ms
        self.waits = 0

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self._clock.now_ms() > self._deadline_ms

    def wait(self) -> bool:
        """Let a moment pass; False, at once, where that would go beyond the budget."""
        pause_s = self._draw() * min(CAP_S, BASE_S * 2**self.waits)
        if self._clock.now_ms() + pause_s * 1000 >= self._deadline_ms:
            return False
        self.waits += 1
        self._clock.pause(pause_s)
        return True
