"""How a piece of work on a queue can end without being done."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Not done, for a passing cause: give the message back."""

    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Violation:
    """Not done, and nothing in the rules explains why: give the message back, and alarm.

    `place` is where an error was raised, as `file.py function`; empty where none was.
    """

    codes: tuple[str, ...]
    place: str = ""
