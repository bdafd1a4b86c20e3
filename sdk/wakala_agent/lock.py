"""A lock between threads and processes that goes with whoever holds it, even one that is killed."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from wakala_agent.errors import OutboxUnusable, StorageFull

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _give_back(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _give_back(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)  # also of a copy that a child may have


_held: set[int] = set()
"""Files locked by this process: a child does not sync what its parent was about to."""


@contextmanager
def alone(path: Path) -> Iterator[bool]:
    """Whether nobody else is inside for this path; never waits.

    Raises `OutboxUnusable`, `StorageFull`. The file stays: removing it would let two
    in, one with the old file and one with a new.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"no space left for {path}") from error
        raise OutboxUnusable(f"{path}: {error.strerror}") from error
    _held.add(file)
    try:
        taken = _taken(file, path)
        try:
            yield taken
        finally:
            if taken and file in _held:
                _give_back(file)
    finally:
        if file in _held:
            _held.discard(file)
            os.close(file)


def _taken(file: int, path: Path) -> bool:
    try:
        _take(file)
    except (BlockingIOError, PermissionError):  # somebody has it: so say POSIX, and Windows
        return False
    except OSError as error:
        raise OutboxUnusable(f"{path}: {error.strerror}") from error
    return True


def _after_fork_in_child() -> None:
    """The lock stays with the parent; the child's copy would outlive it."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
