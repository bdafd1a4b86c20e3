"""The machine that runs a function, in a simulation's hands: its clock and its threads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, Self

import pytest

from ingest import accept
from triage import watch
from wallet_ledger import clock, consumer

POOLED = (accept, consumer, watch)
"""Modules of ours that work in a pool of threads."""

type Lane = Callable[[], None]


class Killed(BaseException):
    """The process ends here; nothing catches it."""


class Machine(Protocol):
    """Stands for the module `time`, and for the threads of a pool."""

    def time_ns(self) -> int:
        """Nanoseconds since the epoch, on the clock of whoever asks."""

    def sleep(self, seconds: float) -> None:
        """A pause of whoever asks."""

    def work_on(self, lanes: Sequence[Lane], workers: int) -> None:
        """Run all of them, in whatever order, at most `workers` at once. None of them raises."""


class Pool:
    """As much of `ThreadPoolExecutor` as the functions use; who works in it says the machine."""

    def __init__(self, machine: Machine, max_workers: int) -> None:
        self._machine = machine
        self._max_workers = max_workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map[Item, Result](
        self, work: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """The results in order; when all are done, raises what the first of them raised."""
        listed = list(items)
        results: dict[int, Result] = {}
        errors: dict[int, Exception] = {}

        def run(number: int) -> None:
            try:
                results[number] = work(listed[number])
            except Exception as error:  # raised where the results are read, as a pool does
                errors[number] = error

        self._machine.work_on(
            [partial(run, each) for each in range(len(listed))], self._max_workers
        )
        if errors:
            raise errors[min(errors)]
        return iter([results[each] for each in range(len(listed))])


@contextmanager
def running_on(machine: Machine) -> Iterator[None]:
    """While this lasts, the clock and the pools of the functions lead to `machine`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "time", machine)
        for module in POOLED:
            patch.setattr(module, "ThreadPoolExecutor", partial(Pool, machine))
        yield
