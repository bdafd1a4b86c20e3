"""A port with something put between it and who calls it: faults, delays, other people's writes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, cast

from wallet_ledger.domain.postings import Contended, Refused
from wallet_ledger.errors import Unavailable


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way to a port; `proceed` lets it through and gives the port's answer."""

    method: str
    arguments: tuple[Any, ...]
    proceed: Callable[[], Any]


type Step = Callable[[Call], Any]
"""Answers a call, with the port's own help or without."""


class Crash(BaseException):
    """The process ends here; nothing catches it."""


def around[Port](port: Port, step: Step) -> Port:
    """`port`, each of whose calls is answered by `step`."""
    return cast("Port", _Around(port, step))


def scripted[Port](port: Port, method: str, steps: Iterable[Step]) -> Port:
    """`port`, whose calls of `method` are answered by one step each; then it is itself again."""
    waiting = iter(steps)
    lock = Lock()

    def answer(call: Call) -> Any:
        if call.method != method:
            return call.proceed()
        with lock:
            step = next(waiting, proceed)
        return step(call)

    return around(port, answer)


def proceed(call: Call) -> Any:
    """Nothing happens in between."""
    return call.proceed()


def contended(*codes: str) -> Step:
    """`Ledger.post` writes nothing, for a passing cause."""
    return lambda _: Contended(codes)


def refused(*codes: str) -> Step:
    """`Ledger.post` writes nothing, for a cause that does not pass."""
    return lambda _: Refused(codes)


def lost(code: str) -> Step:
    """`Ledger.post` writes everything, and its answer is lost."""

    def step(call: Call) -> Contended:
        call.proceed()
        return Contended((code,))

    return step


def first(action: Callable[[], object]) -> Step:
    """Somebody else gets in just before the call."""

    def step(call: Call) -> Any:
        action()
        return call.proceed()

    return step


def unavailable(code: str) -> Step:
    """The port does not answer now."""

    def step(_: Call) -> Any:
        raise Unavailable(code)

    return step


class _Around:
    def __init__(self, port: Any, step: Step) -> None:
        self._port = port
        self._step = step

    def __getattr__(self, method: str) -> Callable[..., Any]:
        bound = getattr(self._port, method)

        def call(*arguments: Any, **named: Any) -> Any:
            go = partial(bound, *arguments, **named)
            return self._step(Call(method, (*arguments, *named.values()), go))

        return call
