"""The sweep: whatever is still open is sent again in time, or expires; nothing is forgotten."""

from contextlib import suppress
from dataclasses import dataclass

from wallet_ledger.domain.transactions import OPEN_SHARDS, Status, next_sweep_ms
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import Backlog, Clock, OpenRow, OpenTransactions

SHARD_ROWS_MAX = 1_000
"""Rows read of each shard in one run: bounds the run's reads, and the count of open rows."""


_SWEPT = frozenset({Status.QUEUED, Status.REFUND_REQUESTED})


@dataclass(frozen=True, slots=True)
class Swept:
    """What one run saw and did. `open_rows` is a floor once a shard holds more than it reads."""

    open_rows: int
    oldest_age_s: int
    sent_again: int
    expired: int
    backlogged: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """What keeps a run from becoming a storm.

    Nothing is sent again while more than `backlog_max` messages wait in the queue: what is open
    then waits for its turn, and a second message would only make the queue longer. `rows_max`
    bounds the writes that one run tries, `deadline_ms` its time.
    """

    backlog_max: int
    rows_max: int
    deadline_ms: int


def sweep(table: OpenTransactions, backlog: Backlog, clock: Clock, limits: Limits) -> Swept:
    """One run over all shards; what could not be read or moved is left to the next run.

    Raises `Unavailable` where nothing at all could be read.
    """
    started_ms = clock.now_ms()
    backlogged = backlog.depth() > limits.backlog_max
    rows = _open_rows(table)
    due = sorted(
        (row for row in rows if row.status in _SWEPT and row.next_sweep_at_ms <= started_ms),
        key=lambda row: row.next_sweep_at_ms,
    )
    tried = expired = sent_again = 0
    for row in due:
        now_ms = clock.now_ms()
        if tried >= limits.rows_max or now_ms >= limits.deadline_ms:
            break
        # A row that is being settled this moment conflicts, and takes nobody else along.
        with suppress(Unavailable):
            if row.status is Status.QUEUED and row.expires_at_s * 1000 <= now_ms:
                tried += 1
                expired += table.expire(row, now_ms)
            elif not backlogged:
                tried += 1
                at_ms = next_sweep_ms(row.attempt + 1, now_ms, _expires_at_s(row))
                sent_again += table.send_again(row, at_ms, now_ms)
    return Swept(
        open_rows=len(rows),
        oldest_age_s=max((started_ms - row.open_since_ms for row in rows), default=0) // 1000,
        sent_again=sent_again,
        expired=expired,
        backlogged=backlogged,
    )


def _expires_at_s(row: OpenRow) -> int | None:
    """A debit that its agent wants back waits for its answer as long as it takes."""
    return row.expires_at_s if row.status is Status.QUEUED else None


def _open_rows(table: OpenTransactions) -> list[OpenRow]:
    rows: list[OpenRow] = []
    unread: list[Unavailable] = []
    for shard in range(OPEN_SHARDS):
        try:
            rows += table.open_rows(shard, SHARD_ROWS_MAX)
        except Unavailable as error:
            unread.append(error)
    if len(unread) == OPEN_SHARDS:
        raise unread[0]
    return rows
