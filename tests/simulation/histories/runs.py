"""One run of a function, from its beginning until Lambda knows its end."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.simulation.histories.processes import Call, Join, Pause, Process


@dataclass(eq=False)
class Run:
    """A run; `failed` says how it ended where it did not answer.

    `given_up`: Lambda takes it for dead, and it goes on all the same. `least_backlog`: the fewest
    messages that TxQueue held at a call of this run. `swept`: rows that it sent again or closed.
    `befallen`: something went wrong with it or its calls, and so it may not have been able to.
    """

    name: str
    function: str
    deadline_ms: int
    ended: "Callable[[Run], None]"
    since: int
    event: Mapping[str, Any]
    began_ms: int
    least_backlog: float = inf
    swept: int = 0
    befallen: bool = False
    failed: str | None = None
    raised: str | None = None
    result: Any = None
    frozen: bool = False
    given_up: bool = False
    processes: list[Process] = field(default_factory=list)

    @property
    def process(self) -> Process:
        """The first of its processes, the handler itself."""
        return self.processes[0]

    @process.setter
    def process(self, process: Process) -> None:
        self.processes = [process]

    def ready(self, now_ms: int) -> Iterator[Process]:
        """Processes that can go on now."""
        if self.frozen:
            return
        self.processes = [each for each in self.processes if not each.over or each is self.process]
        for process in self.processes:
            match process.waits:
                case _ if process.over:
                    continue
                case Call():
                    yield process
                case Pause(until_ms) if until_ms <= now_ms or self.deadline_ms < now_ms:
                    yield process
                case Join(children) if all(child.over for child in children):
                    yield process
                case _:
                    continue

    def moments(self) -> Iterator[int]:
        """When something in it goes on by itself."""
        if not self.frozen:
            for process in self.processes:
                if not process.over and isinstance(process.waits, Pause):
                    yield process.waits.until_ms
