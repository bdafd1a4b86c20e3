"""The machine's clock, as a port."""

import time


class SystemClock:
    """`ports.Clock` on the machine's time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def pause(self, seconds: float) -> None:
        """Let `seconds` pass."""
        time.sleep(seconds)
