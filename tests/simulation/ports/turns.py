"""One handler's calls of its ports, one at a time, and what goes wrong with one of them.

A handler is run again from its start on the answers that it had, and stopped after one call more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.scripted import Call, Crash
from wallet_ledger.domain.letters import Letter
from wallet_ledger.domain.postings import Conflicted, Contended
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import Letters


class Paused(BaseException):
    """The handler has made its call, and asks for the next."""


def nothing(call: Call) -> Any:
    """The call is answered as it should be."""
    return call.proceed()


def crash_before(call: Call) -> Any:
    """The process ends, and what it was doing is delivered again."""
    raise Crash


def crash_after(call: Call) -> Any:
    """The same, when the call has done its work."""
    call.proceed()
    raise Crash


def conflict(call: Call) -> Any:
    """Somebody else's transaction is in the way."""
    if call.method in POSTS:
        return Contended(("TransactionConflict",))
    raise Unavailable("TransactionConflict")


def lost(call: Call) -> Any:
    """The write happens, and nobody hears of it."""
    call.proceed()
    if call.method in POSTS:
        return Contended(("ReadTimeoutError",))
    raise Unavailable("ReadTimeoutError")


POSTS = {"post", "write"}
WRITES = POSTS | {"move", "send_again", "expire", "file", "look_later"}


def writes_letter(call: Call) -> bool:
    """Whether triage keeps or moves a letter, and perhaps a row with it."""
    moves = call.method == "move" and isinstance(call.arguments[0], Letter)
    return moves or call.method == "file"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a call, and with which: a read that a crash follows is just a crash."""

    happens_to: Callable[[Call], bool]
    answer: Callable[[Call], Any]


NO_FAULT = Fault(lambda _: True, nothing)
FAULTS = {
    "crash before": Fault(lambda _: True, crash_before),
    "crash after": Fault(lambda call: call.method in WRITES, crash_after),
    "conflict": Fault(
        lambda call: call.method in POSTS | {"wallet", "see"} or writes_letter(call), conflict
    ),
    "answer lost": Fault(lambda call: call.method in POSTS or writes_letter(call), lost),
}


@dataclass(frozen=True, slots=True)
class Raised:
    """A call that was answered with an error."""

    code: str


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer that a handler had, known by its content."""

    content: object
    answer: Any = field(compare=False)


def heard(answer: Any) -> Heard:
    """The answer as part of a state."""
    match answer:
        case Conflicted(recorded, moved, balance_moved):
            return Heard((frozenset(recorded.items()), moved, balance_moved), answer)
        case Letters(letters):
            return Heard(tuple(letters), answer)
        case list():
            return Heard(tuple(answer), answer)
        case _:
            return Heard(answer, answer)


class Turn:
    """Gives a handler the answers that it had, lets it make one call more, and stops it then."""

    def __init__(self, answers: Sequence[Heard], fault: Fault) -> None:
        self.answers = list(answers)
        self.made: Call | None = None
        self._at = 0
        self._fault = fault

    def __call__(self, call: Call) -> Any:
        if self._at < len(self.answers):
            return self._give(self.answers[self._at].answer)
        if self.made is not None:
            raise Paused
        self.made = call
        try:
            answer = self._fault.answer(call)
        except Unavailable as error:
            answer = Raised(error.code)
        self.answers.append(heard(answer))
        return self._give(answer)

    def _give(self, answer: Any) -> Any:
        self._at += 1
        if isinstance(answer, Raised):
            raise Unavailable(answer.code)
        return answer
