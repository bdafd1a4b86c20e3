"""One SQLite file: each change is on the disk or did not happen, whoever else has it open."""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from wakala_agent.errors import OutboxUnusable, StorageFull

BUSY_S = 10.0
"""How long a call waits for another process that writes to the same file."""

FREE_BYTES_MIN = 64 * 1024
"""With less than this, an error of the file means a full disk: a page and an index need more."""

LOG_PAGES = 100
"""Pages in the write-ahead log before it is folded in: it is space that a full disk lacks."""

_T = TypeVar("_T")


class Storage:
    """A SQLite file for the threads of this process and for other processes.

    WAL, so that readers never wait, and a commit is on the disk when it returns. A connection
    does not survive a fork (SQLite would no longer know its own locks, and what the child writes
    could go to a file that is no longer there), so it is closed before one; each side opens its
    own. `prepare` is called with each new connection, before anything else.
    """

    def __init__(self, path: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._prepare = prepare
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        _all.add(self)

    def __del__(self) -> None:
        """What nobody holds any more needs no `close`."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone. Raises `StorageFull`, `OutboxUnusable`."""
        with self.lock:
            try:
                yield self._connected()
            except sqlite3.DatabaseError as error:
                raise self._told(error) from error

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed and on the disk at the end, or nothing of it."""
        with self.reading() as connection, transaction(connection):
            yield connection

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self.lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _connected(self) -> sqlite3.Connection:
        try:
            found = self._on_disk()
            is_gone = self._file is not None and found is None
            if is_gone or (self._connection is not None and found != self._file):
                raise OutboxUnusable(f"{self.path} was deleted or replaced while it was in use")
            if self._connection is None:
                self._connection = until_free(self._open)
                self._file = self._on_disk()
        except OSError as error:
            raise OutboxUnusable(f"{self.path}: {error.strerror}") from error
        return self._connection

    def _on_disk(self) -> tuple[int, int] | None:
        with suppress(FileNotFoundError):
            found = self.path.stat()
            return (found.st_dev, found.st_ino)
        return None

    def _open(self) -> sqlite3.Connection:
        new = not self.path.exists()
        # Our own lock keeps two threads apart, so one connection may serve both.
        connection = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            if new:
                with suppress(OSError):  # a memory card knows no owners
                    self.path.chmod(0o600)  # phone numbers are in it; SQLite's other files follow
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _told(self, error: sqlite3.DatabaseError) -> Exception:
        text = str(error)
        spaceless = "disk I/O" in text or "unable to open" in text
        if "disk is full" in text or (spaceless and self._is_full()):
            return StorageFull(f"no space left for {self.path}; nothing of this call was stored")
        return OutboxUnusable(f"{self.path}: {error}")

    def _is_full(self) -> bool:
        import shutil

        with suppress(OSError):
            return shutil.disk_usage(self.path.parent).free < FREE_BYTES_MIN
        return False


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it, or nothing; it is the only writer from the beginning on."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def make_durable(connection: sqlite3.Connection) -> None:
    """Commits reach the disk itself, not only the system's memory or the disk's own."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError("no write-ahead log is possible on this file system")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA fullfsync = ON")  # Apple's fsync alone leaves it in the disk's cache
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")


def until_free(attempt: Callable[[], _T]) -> _T:
    """SQLite does not wait by itself for another process that is making the same file."""
    deadline_s = time.monotonic() + BUSY_S
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(0.01)


# Around a fork: no thread is in a file, and no connection is open.

_all: "weakref.WeakSet[Storage]" = weakref.WeakSet()
_fork_lock = threading.Lock()
_held: list[Storage] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    for each in list(_all):
        each.lock.acquire()
        _held.append(each)
        each.close()


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop().lock.release()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    while _held:
        _held.pop().lock = threading.RLock()
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
