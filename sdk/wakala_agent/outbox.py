"""The outbox: what the agent recorded, on the device's disk before `submit` returns."""

import json
import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from wakala_agent.errors import KeyReused, LimitExceeded, OutboxUnusable, UnknownKey
from wakala_agent.lock import alone
from wakala_agent.storage import Storage, make_durable, transaction
from wakala_agent.transaction import (
    State,
    Transaction,
    check,
    check_agent,
    phone_tail,
)

PAGE_ROWS = 200
"""Rows read at once where many are listed: memory stays flat whatever the outbox holds."""

PRUNE_ROWS = 1_000
"""Rows deleted in one transaction, so that a `submit` never waits for long."""

SUSPECT_ALONE = 6
"""Failures of the server itself after which one of a full batch was alone, and failed."""

ASIDE_MAX = 500
"""Phones that are passed over at once: SQLite takes 999 values, and more is no matter of one."""

SCHEMA_VERSION = 1

APPLICATION_ID = 0x57414B41
"""Marks a SQLite file as an outbox: "WAKA"."""

DAY_MS = 86_400_000

_SCHEMA = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE transactions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        idempotency_key TEXT NOT NULL UNIQUE,
        phone TEXT NOT NULL,
        phone_tail TEXT NOT NULL,
        amount INTEGER NOT NULL,
        currency TEXT,
        captured_at TEXT,
        state TEXT NOT NULL,
        tries INTEGER NOT NULL DEFAULT 0,
        suspect INTEGER NOT NULL DEFAULT 0,
        asked INTEGER NOT NULL DEFAULT 0,
        reason TEXT,
        error TEXT,
        ended_ms INTEGER
    )""",
    "CREATE INDEX by_state ON transactions (state, seq)",
    "CREATE INDEX stored ON transactions (currency, amount) WHERE state = 'stored'",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_SELECT = (
    "SELECT seq, idempotency_key, phone, amount, currency, captured_at, state, tries, suspect,"
    " asked, reason, error, ended_ms FROM transactions WHERE "
)

_log = logging.getLogger("wakala_agent")


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
class News:
    """What a syncer heard of one transaction, or how it ended here."""

    key: str
    state: State
    reason: str | None = None
    error: Mapping[str, Any] | None = None


class Outbox:
    """The transactions of one agent in one SQLite file; threads and processes may share it.

    Every change is on the disk (WAL, synchronous FULL) before the call that made it returns.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        agent_id: str,
        *,
        limits: Limits = Limits(),
        now: Callable[[], float] = time.time,
    ) -> None:
        """Open the outbox, or make it. `now`: the device's clock, seconds since the epoch.

        Raises `OutboxUnusable` where the file is no outbox, or another agent's.
        """
        check_agent(agent_id)
        self.path = Path(path).resolve()
        self.agent_id = agent_id
        self._limits = limits
        self._now = now
        self._listeners: list[Callable[[Transaction], None]] = []
        self._storage = Storage(self.path, partial(_prepare, self.path, agent_id))
        with self._storage.reading():
            pass

    def __enter__(self) -> "Outbox":
        """`with Outbox(…) as outbox:` closes it at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def submit(
        self,
        phone: str,
        amount: int,
        *,
        currency: str | None = None,
        idempotency_key: str | None = None,
        captured_at: str | None = None,
    ) -> str:
        """Record a transaction and return its idempotency key, once it is on the disk.

        It touches no network. The same key with the same content again is the same transaction.
        `captured_at` is RFC 3339, for what was captured elsewhere before; else it is now.
        Raises `InvalidTransaction`, `KeyReused`, `LimitExceeded`, `StorageFull`, `OutboxUnusable`;
        whatever it raises, nothing was stored.
        """
        key = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
        check(phone, amount, currency, key, captured_at)
        with self._storage.writing() as connection:
            existing = _find(connection, key)
            if existing is not None:
                if not existing.same_content(phone, amount, currency):
                    raise KeyReused(f"idempotency_key {key!r} stands for another transaction")
                return key
            self._check_limits(connection, amount, currency)
            connection.execute(
                "INSERT INTO transactions (idempotency_key, phone, phone_tail, amount, currency,"
                " captured_at, state) VALUES (?, ?, ?, ?, ?, ?, 'stored')",
                (
                    key,
                    phone,
                    phone_tail(phone),
                    amount,
                    currency,
                    captured_at or self._captured_at(),
                ),
            )
            stored = _find(connection, key)
        self._tell([] if stored is None else [stored])
        return key

    def status(self, idempotency_key: str) -> Transaction:
        """A transaction as the device knows it. Raises `UnknownKey`."""
        with self._storage.reading() as connection:
            found = _find(connection, idempotency_key)
        if found is None:
            raise UnknownKey(idempotency_key)
        return found

    def pending(self) -> Iterator[Transaction]:
        """What is not final yet, in the order in which it was submitted, read in pages."""
        return self._listed("state IN ('stored', 'queued')")

    def refused(self) -> Iterator[Transaction]:
        """What the API will not take as it is: for a person to look at."""
        return self._listed("state = 'refused'")

    def retry(self, idempotency_key: str) -> None:
        """Let a refused transaction be sent again as it is: the refusal was a mistake.

        The key stays, so it is safe whatever the server knows. Raises `UnknownKey`.
        """
        with self._storage.writing() as connection:
            changed = connection.execute(
                "UPDATE transactions SET state = 'stored', error = NULL, ended_ms = NULL"
                " WHERE idempotency_key = ? AND state = 'refused'",
                (idempotency_key,),
            ).rowcount
        after = self.status(idempotency_key)
        self._tell([after] if changed else [])

    def at_risk(self) -> dict[str | None, int]:
        """Minor units that would be lost with this device, by currency (None: the default)."""
        with self._storage.reading() as connection:
            return dict(
                connection.execute(
                    "SELECT currency, SUM(amount) FROM transactions WHERE state = 'stored'"
                    " GROUP BY currency"
                )
            )

    def counts(self) -> dict[State, int]:
        """How many transactions are in each state."""
        with self._storage.reading() as connection:
            rows = connection.execute("SELECT state, COUNT(*) FROM transactions GROUP BY state")
            return {State(state): number for state, number in rows}

    def on_change(self, listener: Callable[[Transaction], None]) -> Callable[[], None]:
        """Call `listener` after each change that this object makes; returns what ends that.

        It runs in the thread that made the change, after the change is on the disk. What it
        raises is logged under `wakala_agent` and changes nothing.
        """

        def listening(changed: Transaction) -> None:
            listener(changed)

        def end() -> None:
            self._listeners = [each for each in self._listeners if each is not listening]

        self._listeners = [*self._listeners, listening]
        return end

    def prune(self, older_than_days: float = 90) -> int:
        """Delete what has been final for so long; how much that was. Nothing else ever deletes.

        Days by the server's clock, up to when it was last heard: a device's clock that jumps
        deletes nothing, and nor does one that never syncs.
        """
        if not older_than_days >= 0:
            raise ValueError("older_than_days: 0 or more")
        age_ms, deleted = int(min(older_than_days, 10**6) * DAY_MS), 0
        while True:
            with self._storage.writing() as connection:
                found = connection.execute(
                    "DELETE FROM transactions WHERE seq IN (SELECT seq FROM transactions"
                    " WHERE state NOT IN ('stored', 'queued') AND ended_ms <= ? LIMIT ?)",
                    (_server_ms(connection) - age_ms, PRUNE_ROWS),
                ).rowcount
            deleted += found
            if found < PRUNE_ROWS:
                return deleted

    def export(self) -> Iterator[str]:
        """Everything in the outbox, a line of JSON for each transaction."""
        for each in self._listed("seq > 0"):
            yield json.dumps(
                each.request(self.agent_id)
                | {"state": each.state.value, "reason": each.reason, "error": each.error}
            )

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._storage.close()

    # What a syncer does.

    def next_to_send(self, limit: int, aside: Collection[str] = ()) -> list[Transaction]:
        """The first stored transactions in the order of submission, but for phone tails aside."""
        marks = ", ".join("?" * len(aside))
        return self._page(
            f"state = 'stored' AND phone_tail NOT IN ({marks}) ORDER BY seq LIMIT ?",
            (*aside, limit),
        )

    def suspects(self) -> set[str]:
        """Phone tails with a transaction at which, even alone, the server itself failed."""
        with self._storage.reading() as connection:
            rows = connection.execute(
                "SELECT DISTINCT phone_tail FROM transactions WHERE state = 'stored'"
                " AND suspect >= ? LIMIT ?",
                (SUSPECT_ALONE, ASIDE_MAX),
            )
            return {tail for (tail,) in rows}

    def next_to_ask(self, limit: int) -> list[Transaction]:
        """Queued transactions, those first that were asked for least."""
        return self._page("state = 'queued' ORDER BY asked, seq LIMIT ?", (limit,))

    def trying(self, keys: Iterable[str]) -> None:
        """Write down that a request is about to carry these: from now on, the server may know."""
        self._count_up("UPDATE transactions SET tries = tries + 1 WHERE idempotency_key = ?", keys)

    def suspecting(self, keys: Iterable[str]) -> None:
        """Write down that the server itself failed at a request that carried these."""
        self._count_up(
            "UPDATE transactions SET suspect = suspect + 1 WHERE idempotency_key = ?", keys
        )

    def asking(self, keys: Iterable[str]) -> None:
        """Write down that the server is about to be asked for these."""
        self._count_up("UPDATE transactions SET asked = asked + 1 WHERE idempotency_key = ?", keys)

    def learn(self, news: Iterable[News], server_ms: int | None) -> None:
        """Write down what the server said, all of it or nothing; `server_ms`: its clock then."""
        changed: list[Transaction] = []
        with self._storage.writing() as connection:
            if server_ms is not None and server_ms > _server_ms(connection):
                connection.execute(
                    "INSERT OR REPLACE INTO about VALUES ('server_ms', ?)", (str(server_ms),)
                )
            for each in news:
                before = _find(connection, each.key)
                if before is not None and before.state.may_become(each.state):
                    after = _after(before, each, server_ms)
                    _write(connection, after)
                    changed += [after] if after.state is not before.state else []
        self._tell(changed)

    def only_syncer(self) -> AbstractContextManager[bool]:
        """Whether no other thread or process syncs this outbox meanwhile; never waits."""
        return alone(self.path.with_name(f"{self.path.name}.sync"))

    def _count_up(self, statement: str, keys: Iterable[str]) -> None:
        with self._storage.writing() as connection:
            connection.executemany(statement, [(key,) for key in keys])

    def _check_limits(
        self, connection: sqlite3.Connection, amount: int, currency: str | None
    ) -> None:
        limits = self._limits
        if limits.amount_max is not None and amount > limits.amount_max:
            raise LimitExceeded(f"amount: at most {limits.amount_max} in one transaction")
        if limits.stored_max is not None:
            (number,) = connection.execute(
                "SELECT COUNT(*) FROM transactions WHERE state = 'stored'"
            ).fetchone()
            if number >= limits.stored_max:
                raise LimitExceeded(f"{number} transactions wait for the network: sync first")
        if limits.stored_total_max is not None:
            (total,) = connection.execute(
                "SELECT COALESCE(SUM(amount), 0) FROM transactions WHERE state = 'stored'"
                " AND currency IS ?",
                (currency,),
            ).fetchone()
            if total + amount > limits.stored_total_max:
                raise LimitExceeded(
                    f"{total} minor units wait for the network, and at most"
                    f" {limits.stored_total_max} may: sync first"
                )

    def _captured_at(self) -> str | None:
        """The device's clock, RFC 3339; nothing where it is so wrong that the API refuses it."""
        try:
            moment = datetime.fromtimestamp(self._now(), timezone.utc)
        except (OverflowError, OSError, ValueError):
            return None
        return moment.isoformat(timespec="milliseconds") if 2000 <= moment.year < 2100 else None

    def _listed(self, condition: str) -> Iterator[Transaction]:
        after = 0
        while page := self._page(
            f"seq > ? AND {condition} ORDER BY seq LIMIT ?", (after, PAGE_ROWS)
        ):
            yield from page
            after = page[-1].seq

    def _page(self, condition: str, values: tuple[object, ...]) -> list[Transaction]:
        with self._storage.reading() as connection:
            return [_read(row) for row in connection.execute(_SELECT + condition, values)]

    def _tell(self, changed: list[Transaction]) -> None:
        for each in changed:
            for listener in self._listeners:
                _call(listener, each)


def _call(listener: Callable[[Transaction], None], changed: Transaction) -> None:
    try:
        listener(changed)
    except Exception:  # the app's own: what happened to the transaction has happened
        _log.exception("a listener raised")


def _prepare(path: Path, agent_id: str, connection: sqlite3.Connection) -> None:
    """Make sure that the file is this agent's outbox before anything in it is touched."""
    _check_kind(connection, path)
    make_durable(connection)
    if not _has_tables(connection):
        _make_tables(connection, agent_id)
    ((owner,),) = connection.execute("SELECT value FROM about WHERE name = 'agent_id'")
    if owner != agent_id:
        raise OutboxUnusable(f"{path} is the outbox of agent {owner!r}")


def _make_tables(connection: sqlite3.Connection, agent_id: str) -> None:
    with transaction(connection):
        if _has_tables(connection):  # another process was quicker
            return
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT INTO about VALUES ('agent_id', ?)", (agent_id,))


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN")  # another process may be making it: all of this is of one moment
    ((kind,),) = connection.execute("PRAGMA application_id")
    ((version,),) = connection.execute("PRAGMA user_version")
    is_empty = not _has_tables(connection)
    connection.execute("COMMIT")
    if kind != APPLICATION_ID and (kind or version or not is_empty):
        raise OutboxUnusable(f"{path} is a database of something else")
    if version > SCHEMA_VERSION:
        raise OutboxUnusable(f"{path} was made by a newer version of this package")


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _find(connection: sqlite3.Connection, key: str) -> Transaction | None:
    row = connection.execute(_SELECT + "idempotency_key = ?", (key,)).fetchone()
    return None if row is None else _read(row)


def _read(row: tuple[Any, ...]) -> Transaction:
    seq, key, phone, amount, currency, captured_at, *rest = row
    state, tries, suspect, asked, reason, error, ended_ms = rest
    return Transaction(
        seq=seq,
        idempotency_key=key,
        phone=phone,
        amount=amount,
        currency=currency,
        captured_at=captured_at,
        state=State(state),
        tries=tries,
        suspect=suspect,
        asked=asked,
        reason=reason,
        error=None if error is None else json.loads(error),
        ended_ms=ended_ms,
    )


def _after(before: Transaction, news: News, server_ms: int | None) -> Transaction:
    ended_ms = before.ended_ms if before.state.is_final else server_ms
    return replace(
        before,
        state=news.state,
        reason=news.reason,
        error=news.error,
        ended_ms=ended_ms if news.state.is_final else None,
    )


def _write(connection: sqlite3.Connection, after: Transaction) -> None:
    error = None if after.error is None else json.dumps(after.error)
    connection.execute(
        "UPDATE transactions SET state = ?, reason = ?, error = ?, ended_ms = ? WHERE seq = ?",
        (after.state.value, after.reason, error, after.ended_ms, after.seq),
    )


def _server_ms(connection: sqlite3.Connection) -> int:
    """The server's clock when it was last heard; 0: never."""
    row = connection.execute("SELECT value FROM about WHERE name = 'server_ms'").fetchone()
    return 0 if row is None else int(row[0])
