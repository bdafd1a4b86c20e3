"""What happened, line by line, and every log line of the functions with an eye on secrets."""

import io
from typing import Any

from tests.simulation.histories.asked import Broken
from tests.simulation.histories.faults import Faults
from tests.simulation.histories.plan import Fault
from tests.simulation.histories.promises import Promises
from wallet_ledger import telemetry

ALARMING = ("invariant violated", "one phone's work failed", "letter not acted on")
"""Log messages of what must not be, but where AWS refuses what the template allows."""


class Sink(io.TextIOBase):
    """Takes the functions' standard output."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        """Keep it until the step is over."""
        self.lines.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""


class Journal:
    """The trace of a history, and what its log lines break."""

    def __init__(self, promises: Promises, faults: Faults, *, keep_trace: bool) -> None:
        self.lines: list[str] = []
        self.sink = Sink()
        self.keep_trace = keep_trace
        self._promises = promises
        self._faults = faults
        self._stream: Any = None

    def take_log(self) -> None:
        """From now on the functions' log goes here."""
        telemetry.logger._logger.propagate = False
        self._stream = telemetry.logger.registered_handler.setStream(self.sink)  # type: ignore[attr-defined]

    def give_log_back(self) -> None:
        """To where it went before."""
        telemetry.logger._logger.propagate = True
        telemetry.logger.registered_handler.setStream(self._stream)  # type: ignore[attr-defined]

    def note(self, step: int, now_ms: int, what: str) -> None:
        """One step."""
        self.lines.append(f"{step:5} {now_ms % 10**9:>9} {what}")

    def check(self) -> None:
        """P12 of all that was logged in this step, and that nothing cries for help in vain."""
        lines, self.sink.lines = self.sink.lines, []
        for line in lines:
            self._promises.logged(line)
            if not self._faults.hits.had(Fault.DENIED) and any(each in line for each in ALARMING):
                raise Broken("ALARM", line.strip()[:600])
            if self.keep_trace and line.strip():
                self.lines.append(f"      | {line.strip()[:300]}")
