"""When to try again: full jitter, so that a thousand phones do not come back in step."""

import random
from collections.abc import Callable
from dataclasses import dataclass

_DOUBLINGS_MAX = 32
"""Enough for any cap, and no overflow after a week of failures."""


@dataclass(frozen=True)
class Backoff:
    """Waits drawn evenly from 0 to a bound that doubles with each failure in a row.

    `base_s` bounds the first wait, `cap_s` every one. `draw` gives a number from 0 up to 1. The
    first retry is two seconds late on average, and a thousand of them come in no wave of their own
    (docs/backoff.md).
    """

    base_s: float = 4.0
    cap_s: float = 120.0
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        """Refuse what would never wait, or wait backwards."""
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError("base_s is above 0, and cap_s not below it")

    def wait_s(self, failures: int, retry_after_s: float = 0.0) -> float:
        """Seconds to wait after the `failures`-th failure in a row, from 1.

        What the server asks for is the least; the jitter comes on top, since it asks everybody
        for the same.
        """
        doublings = max(0, min(failures - 1, _DOUBLINGS_MAX))
        bound_s = min(self.cap_s, self.base_s * 2.0**doublings)
        return retry_after_s + self.draw() * bound_s

    def spread_s(self, over_s: float) -> float:
        """A first wait, for what many devices begin at the same moment."""
        return self.draw() * over_s
