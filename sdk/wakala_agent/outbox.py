"""The outbox: what the agent recorded, on the device's disk before `submit` returns."""

import json
import os
import re
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from wakala_agent.errors import (
    InvalidTransaction,
    KeyReused,
    LimitExceeded,
    OutboxUnusable,
    StorageFull,
    UnknownKey,
)

AMOUNT_MAX = 10**12
"""Minor units of one transaction, as the API takes them."""

BUSY_S = 10.0
"""How long a call waits for another process that writes to the same outbox."""

PAGE_ROWS = 200
"""Rows read at once where many are listed: memory stays flat whatever the outbox holds."""

SCHEMA_VERSION = 1

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_PHONE = re.compile(r"\+?[0-9 ().\-]{1,31}", re.ASCII)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS transactions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    idempotency_key TEXT NOT NULL UNIQUE,
    phone TEXT NOT NULL,
    amount INTEGER NOT NULL,
    currency TEXT,
    captured_at TEXT,
    state TEXT NOT NULL,
    tries INTEGER NOT NULL,
    asked INTEGER NOT NULL,
    reason TEXT,
    error TEXT,
    changed_ms INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS by_state ON transactions (state, seq);
"""


class State(str, Enum):
    """Where a transaction is. All but the first two are the server's words, or its refusal."""

    STORED = "stored"
    """On this device; the server may or may not have heard of it."""
    QUEUED = "queued"
    """The server has it and will bring it to an end: the device may be lost now."""
    SYNCED = "synced"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REFUND_REQUESTED = "refund_requested"
    PARTIALLY_REFUNDED = "partially_refunded"
    REFUNDED = "refunded"
    REFUSED = "refused"
    """The API will never take it as it is; `error` says why. Nothing was debited."""

    @property
    def is_final(self) -> bool:
        """Whether nothing is left to be synced."""
        return self not in (State.STORED, State.QUEUED)


@dataclass(frozen=True)
class Limits:
    """What an agent may risk on a device that can be lost; None: no limit. Minor units.

    `amount_max` of one transaction; `stored_total_max` of all that the server does not have yet,
    per currency; `stored_max` is how many of those there may be.
    """

    amount_max: int | None = None
    stored_total_max: int | None = None
    stored_max: int | None = 100_000


@dataclass(frozen=True)
class Transaction:
    """One transaction as the outbox has it. `amount` is in minor units.

    `currency` None means the server's default. `tries`: requests that carried it. `reason` is the
    server's for `failed`, `error` the API's problem for `refused` (`code`, `detail`, `errors`).
    """

    seq: int
    idempotency_key: str
    phone: str
    amount: int
    currency: str | None
    captured_at: str | None
    state: State
    tries: int
    asked: int
    reason: str | None
    error: Mapping[str, Any] | None
    changed_ms: int

    def request(self, agent_id: str) -> dict[str, Any]:
        """What travels: the same for every try."""
        body: dict[str, Any] = {
            "agentId": agent_id,
            "phone": self.phone,
            "amount": self.amount,
            "idempotencyKey": self.idempotency_key,
        }
        if self.currency is not None:
            body["currency"] = self.currency
        if self.captured_at is not None:
            body["capturedAt"] = self.captured_at
        return body


class Outbox:
    """The transactions of one agent in one SQLite file; threads and processes may share it.

    Every change is on the disk (WAL, synchronous FULL) before the call that made it returns.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        agent_id: str,
        *,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open the outbox, or make it. `now`: seconds since the epoch.

        Raises `OutboxUnusable` where the file is no outbox, or another agent's.
        """
        if not _ID.fullmatch(agent_id):
            raise InvalidTransaction(
                "agent_id: 1 to 64 of A-Z a-z 0-9 . _ : - after one of A-Z a-z 0-9"
            )
        self.path = Path(path)
        self.agent_id = agent_id
        self._limits = limits
        self._now = now
        self._lock = threading.RLock()
        self._listeners: list[Callable[[Transaction], None]] = []
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        with self._reading() as connection:
            self._claim(connection)

    def submit(
        self,
        phone: str,
        amount: int,
        *,
        currency: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Record a transaction and return its idempotency key, once it is on the disk.

        It touches no network. The same key with the same content again is the same transaction.
        Raises `InvalidTransaction`, `KeyReused`, `LimitExceeded`, `StorageFull`, `OutboxUnusable`;
        whatever it raises, nothing was stored.
        """
        key = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
        _check(phone, amount, currency, key)
        with self._writing() as connection:
            existing = _find(connection, key)
            if existing is not None:
                if (existing.phone, existing.amount, existing.currency) != (
                    phone,
                    amount,
                    currency,
                ):
                    raise KeyReused(f"idempotency_key {key!r} stands for another transaction")
                return key
            self._check_limits(connection, amount, currency)
            connection.execute(
                "INSERT INTO transactions (idempotency_key, phone, amount, currency, captured_at,"
                " state, tries, asked, changed_ms) VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?)",
                (key, phone, amount, currency, self._captured_at(), State.STORED, self._now_ms()),
            )
            stored = _find(connection, key)
        self._tell([] if stored is None else [stored])
        return key

    def status(self, idempotency_key: str) -> Transaction:
        """A transaction as the device knows it. Raises `UnknownKey`."""
        with self._reading() as connection:
            found = _find(connection, idempotency_key)
        if found is None:
            raise UnknownKey(idempotency_key)
        return found

    def pending(self) -> Iterator[Transaction]:
        """What is not final yet, in the order in which it was submitted, read in pages."""
        return self._listed("state IN ('stored', 'queued')")

    def refused(self) -> Iterator[Transaction]:
        """What the API will never take as it is: for a person to look at."""
        return self._listed("state = 'refused'")

    def at_risk(self) -> dict[str | None, int]:
        """Minor units that would be lost with this device, by currency (None: the default)."""
        with self._reading() as connection:
            return dict(
                connection.execute(
                    "SELECT currency, SUM(amount) FROM transactions WHERE state = 'stored'"
                    " GROUP BY currency"
                )
            )

    def counts(self) -> dict[State, int]:
        """How many transactions are in each state."""
        with self._reading() as connection:
            rows = connection.execute("SELECT state, COUNT(*) FROM transactions GROUP BY state")
            return {State(state): number for state, number in rows}

    def on_change(self, listener: Callable[[Transaction], None]) -> Callable[[], None]:
        """Call `listener` after each change that this object makes; returns what ends that.

        It runs in the thread that made the change, after the change is on the disk. What it
        raises goes to `threading.excepthook` and changes nothing.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def prune(self, older_than_days: float = 90) -> int:
        """Delete what has been final for so long; how much that was. Nothing else ever deletes."""
        before_ms = self._now_ms() - int(older_than_days * 86_400_000)
        with self._writing() as connection:
            return connection.execute(
                "DELETE FROM transactions WHERE state NOT IN ('stored', 'queued')"
                " AND changed_ms < ?",
                (before_ms,),
            ).rowcount

    def export(self) -> Iterator[str]:
        """Everything in the outbox, a line of JSON for each transaction."""
        for each in self._listed("TRUE"):
            yield json.dumps(
                each.request(self.agent_id)
                | {"state": each.state.value, "reason": each.reason, "error": each.error}
            )

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    # What the syncer does.

    def next_to_send(self, limit: int) -> list[Transaction]:
        """The first stored transactions, in the order in which they were submitted."""
        return self._page("state = 'stored'", 0, limit)

    def next_to_ask(self, limit: int) -> list[Transaction]:
        """Queued transactions, those first that were asked for least."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM transactions WHERE state = 'queued'"
                " ORDER BY asked, seq LIMIT ?",
                (limit,),
            )
            return [_read(row) for row in rows]

    def trying(self, keys: list[str]) -> None:
        """Write down that a request is about to carry these: from now on, the server may know."""
        with self._writing() as connection:
            connection.executemany(
                "UPDATE transactions SET tries = tries + 1"
                " WHERE idempotency_key = ? AND state = 'stored'",
                [(key,) for key in keys],
            )

    def learn(self, key: str, state: State, reason: str | None) -> None:
        """What the server said of a transaction. A final state is never left for an earlier one."""
        with self._writing() as connection:
            before = _find(connection, key)
            if before is None or (before.state.is_final and not state.is_final):
                return
            connection.execute(
                "UPDATE transactions SET state = ?, reason = ?, error = NULL, changed_ms = ?,"
                " asked = asked + 1 WHERE idempotency_key = ?",
                (state, reason, self._now_ms(), key),
            )
            after = replace(before, state=state, reason=reason, error=None)
        self._tell([after] if after.state is not before.state else [])

    def refuse(self, key: str, problem: Mapping[str, Any]) -> None:
        """The API will never take it as it is, and does not know it."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE transactions SET state = 'refused', error = ?, changed_ms = ?"
                " WHERE idempotency_key = ? AND state = 'stored'",
                (json.dumps(problem), self._now_ms(), key),
            )
            after = _find(connection, key)
        self._tell([] if after is None else [after])

    def forget_queued(self, key: str) -> None:
        """The server does not know a transaction that it had taken: it is sent again."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE transactions SET state = 'stored' WHERE idempotency_key = ?"
                " AND state = 'queued'",
                (key,),
            )

    @contextmanager
    def only_syncer(self) -> Iterator[bool]:
        """Whether no other thread or process syncs this outbox meanwhile; never waits.

        The lock is the operating system's, on a file beside the outbox, so it goes with a process
        that is killed.
        """
        lock = self._open(Path(f"{self.path}.sync"), timeout_s=0)
        try:
            try:
                lock.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                yield False
            else:
                yield True
        finally:
            lock.close()

    def _claim(self, connection: sqlite3.Connection) -> None:
        connection.executescript(_SCHEMA)
        about = {"agent_id": self.agent_id, "schema": str(SCHEMA_VERSION)}
        for name, value in about.items():
            connection.execute("INSERT OR IGNORE INTO about VALUES (?, ?)", (name, value))
        found = dict(connection.execute("SELECT name, value FROM about"))
        if found != about:
            raise OutboxUnusable(
                f"{self.path} is the outbox of agent {found.get('agent_id')!r},"
                f" schema {found.get('schema')}: not {self.agent_id!r}, {SCHEMA_VERSION}"
            )

    def _check_limits(
        self, connection: sqlite3.Connection, amount: int, currency: str | None
    ) -> None:
        limits = self._limits
        if limits.amount_max is not None and amount > limits.amount_max:
            raise LimitExceeded(f"amount: at most {limits.amount_max} in one transaction")
        number, total = connection.execute(
            "SELECT COUNT(*), COALESCE(SUM(amount) FILTER (WHERE currency IS ?), 0)"
            " FROM transactions WHERE state = 'stored'",
            (currency,),
        ).fetchone()
        if limits.stored_max is not None and number >= limits.stored_max:
            raise LimitExceeded(f"{number} transactions wait for the network already: sync first")
        if limits.stored_total_max is not None and total + amount > limits.stored_total_max:
            raise LimitExceeded(
                f"{total} minor units wait for the network already, and at most"
                f" {limits.stored_total_max} may: sync first"
            )

    def _captured_at(self) -> str | None:
        """The device's clock, RFC 3339; nothing where it is so wrong that the API refuses it."""
        try:
            moment = datetime.fromtimestamp(self._now()).astimezone()
        except (OverflowError, OSError, ValueError):
            return None
        plausible = 2000 <= moment.year < 2100
        return moment.isoformat(timespec="milliseconds") if plausible else None

    def _listed(self, condition: str) -> Iterator[Transaction]:
        after = 0
        while page := self._page(condition, after, PAGE_ROWS):
            yield from page
            after = page[-1].seq

    def _page(self, condition: str, after: int, limit: int) -> list[Transaction]:
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM transactions WHERE seq > ? AND {condition}"
                " ORDER BY seq LIMIT ?",
                (after, limit),
            )
            return [_read(row) for row in rows]

    def _tell(self, changed: list[Transaction]) -> None:
        for transaction in changed:
            for listener in list(self._listeners):
                try:
                    listener(transaction)
                except Exception as error:  # noqa: BLE001  # the app's own, and none of ours
                    told = threading.ExceptHookArgs(
                        (type(error), error, error.__traceback__, threading.current_thread())
                    )
                    threading.excepthook(told)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction of the file: committed and on the disk at the end, or nothing of it."""
        with self._reading() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._own_connection()
            except sqlite3.DatabaseError as error:
                raise self._told(error) from error

    def _told(self, error: sqlite3.DatabaseError) -> Exception:
        if "full" in str(error):
            return StorageFull(f"no space left for {self.path}; nothing of this call was stored")
        return OutboxUnusable(f"{self.path}: {error}")

    def _own_connection(self) -> sqlite3.Connection:
        """SQLite's connections do not survive a fork: each process opens its own."""
        if self._connection is None or self._process != os.getpid():
            self._connection = self._open(self.path, timeout_s=BUSY_S)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._process = os.getpid()
        return self._connection

    def _open(self, path: Path, timeout_s: float) -> sqlite3.Connection:
        # Our own lock keeps two threads apart, so one connection may serve both.
        return sqlite3.connect(
            path, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )

    def _now_ms(self) -> int:
        return int(self._now() * 1000)


_COLUMNS = (
    "seq, idempotency_key, phone, amount, currency, captured_at, state, tries, asked, reason,"
    " error, changed_ms"
)


def _read(row: tuple[Any, ...]) -> Transaction:
    *before, state, tries, asked, reason, error, changed_ms = row
    told = None if error is None else json.loads(error)
    return Transaction(*before, State(state), tries, asked, reason, told, changed_ms)


def _find(connection: sqlite3.Connection, key: str) -> Transaction | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM transactions WHERE idempotency_key = ?", (key,)
    ).fetchone()
    return None if row is None else _read(row)


def _check(phone: str, amount: int, currency: str | None, key: str) -> None:
    """What the API would refuse for good is refused while the agent still sees the customer."""
    if type(amount) is not int or not 1 <= amount <= AMOUNT_MAX:
        raise InvalidTransaction(f"amount: an integer in minor units, 1 to {AMOUNT_MAX}")
    if not isinstance(phone, str) or not _PHONE.fullmatch(phone):
        raise InvalidTransaction("phone: digits, spaces, -(). and a leading +")
    if not 7 <= len(re.sub("[^0-9]", "", phone)) <= 16:
        raise InvalidTransaction("phone: too short or too long")
    if currency is not None and not (isinstance(currency, str) and _CURRENCY.fullmatch(currency)):
        raise InvalidTransaction("currency: three capital letters of ISO 4217")
    if not isinstance(key, str) or not _ID.fullmatch(key):
        raise InvalidTransaction(
            "idempotency_key: 1 to 64 of A-Z a-z 0-9 . _ : - after one of A-Z a-z 0-9"
        )
