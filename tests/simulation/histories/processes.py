"""Running code as a process that stops at every AWS call and every pause, and can be killed there.

A process is a greenlet. What it waits for is looked at by the scheduler, which alone decides who
goes on. Clients, clocks and thread pools of the functions lead here.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from greenlet import greenlet  # type: ignore[import-untyped]

from tests.simulation.cloud.hook import Hook
from tests.simulation.cloud.machine import Killed, Lane, running_on

__all__ = ["Call", "Hub", "Join", "Killed", "Pause", "Process", "attach", "running"]


@dataclass(slots=True)
class Call:
    """An AWS call that is about to be made. `tries`: how many botocore has left."""

    service: str
    operation: str
    body: dict[str, Any]
    tries: int
    retries: int = 0

    @property
    def place(self) -> str:
        """What it does and on what, for the trace."""
        on = self.body.get("TableName") or self.body.get("QueueUrl", "").rsplit("/", 1)[-1]
        return f"{self.operation} {on}".strip()


@dataclass(slots=True)
class Pause:
    """A rest until a moment of simulated time."""

    until_ms: int


@dataclass(slots=True)
class Join:
    """Waiting for processes that were begun by this one."""

    children: "Sequence[Process]"


type Waits = Call | Pause | Join | None


@dataclass(eq=False)
class Process:
    """One line of execution. `skew_ms`: how wrong its machine's clock is."""

    name: str
    body: Callable[[], Any]
    hub: "Hub"
    skew_ms: int = 0
    parent: "Process | None" = None
    waits: Waits = None
    result: Any = None
    error: BaseException | None = None
    over: bool = False
    retries: int = 0
    """How often botocore had to make the last call again."""
    children: "list[Process]" = field(default_factory=list)
    _greenlet: greenlet | None = None

    def begin(self) -> None:
        """Run until it first waits for something."""
        self._greenlet = greenlet(self._run, parent=self.hub.main)
        self._switch(self._greenlet.switch)

    def go_on(self, answer: Any = None, error: BaseException | None = None) -> None:
        """Give it what it waited for, and run until it waits again."""
        assert self._greenlet is not None
        gone = self._greenlet
        if error is None:
            self._switch(lambda: gone.switch(answer))
        else:
            self._switch(lambda: gone.throw(error))

    def kill(self) -> None:
        """End it and all that it began."""
        for child in self.children:
            if not child.over:
                child.kill()
        if self in self.hub.begun:
            self.hub.begun.remove(self)
            self.over = True
        elif not self.over:
            self.go_on(error=Killed())

    def _switch(self, switch: Callable[[], Waits]) -> None:
        before, self.hub.current = self.hub.current, self
        try:
            self.waits = switch()
        finally:
            self.hub.current = before

    def _run(self) -> None:
        try:
            self.result = self.body()
        except BaseException as error:  # the scheduler looks at it
            self.error = error
        self.over = True


class Hub:
    """Where processes come back to; the machine that they run on."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.main = greenlet.getcurrent()
        self.current: Process | None = None
        self.now_ms = now_ms
        self.begun: list[Process] = []
        """Processes that others began, for the scheduler to take over."""

    def wait(self, waits: Waits) -> Any:
        """Called in a process: let others go on until this one's turn has come."""
        assert self.current is not None, "nobody runs"
        return self.main.switch(waits)

    def time_ns(self) -> int:
        """Nanoseconds since the epoch, as the process that runs now believes."""
        skew_ms = self.current.skew_ms if self.current is not None else 0
        return (self.now_ms() + skew_ms) * 1_000_000

    def sleep(self, seconds: float) -> None:
        """A pause of the process that runs now."""
        self.wait(Pause(self.now_ms() + round(seconds * 1000)))

    def work_on(self, lanes: Sequence[Lane], workers: int) -> None:
        """Each worker is a process of its own."""
        if not lanes:
            return
        parent = self.current
        assert parent is not None
        waiting = iter(lanes)

        def work() -> None:
            for lane in waiting:
                lane()

        children = [
            Process(f"{parent.name}.{number}", work, self, parent.skew_ms, parent)
            for number in range(min(workers, len(lanes)))
        ]
        parent.children = [child for child in parent.children if not child.over] + children
        self.begun += children
        self.wait(Join(children))


_hubs: list[Hub] = []
"""The world that runs now, last."""


@contextmanager
def running(hub: Hub) -> Iterator[None]:
    """While this lasts, clients, clocks and pools of the functions lead to `hub`."""
    _hubs.append(hub)
    try:
        with running_on(hub):
            yield
    finally:
        _hubs.pop()


def attach(client: Any, tries: int) -> None:
    """Let every call of a client stop its process, and be answered by the scheduler."""

    def answer(service: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = _hubs[-1].wait(Call(service, operation, body, tries))
        return told

    def count_retries(parsed: dict[str, Any], **_: Any) -> None:
        process = _hubs[-1].current
        assert process is not None
        parsed["ResponseMetadata"]["RetryAttempts"] = process.retries

    Hook(answer).attach(client)
    client.meta.events.register("after-call", count_retries)
