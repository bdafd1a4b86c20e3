"""When to try again: full jitter, so that a thousand phones do not come back in step."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Waits drawn evenly from 0 to a bound that doubles with each failure in a row.

    `base_s` bounds the first wait, `cap_s` every one. `draw` gives a number from 0 up to 1.
    """

    base_s: float = 1.0
    cap_s: float = 120.0
    draw: Callable[[], float] = random.random

    def wait_s(self, failures: int, retry_after_s: float = 0.0) -> float:
        """Seconds to wait after the `failures`-th failure in a row, from 1.

        What the server asks for is the least; the jitter comes on top, since it asks everybody
        for the same.
        """
        bound_s = min(self.cap_s, self.base_s * 2 ** min(failures - 1, 32))
        return retry_after_s + self.draw() * bound_s

    def spread_s(self, over_s: float) -> float:
        """A first wait, for what many devices begin at the same moment."""
        return self.draw() * over_s
