"""The sweep: whatever is still open is sent again in time, or expires; nothing is forgotten."""

from collections.abc import Callable
from dataclasses import dataclass

from wallet_ledger.domain.transactions import OPEN_SHARDS, Status, next_sweep_ms
from wallet_ledger.ports import Backlog, Clock, OpenRow, OpenTransactions

SHARD_ROWS_MAX = 1_000
"""Rows read of each shard in one run: bounds the run's reads, and the count of open rows."""


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
    bounds the writes of one run, `deadline_ms` its time.
    """

    backlog_max: int
    rows_max: int
    deadline_ms: int


def sweep(table: OpenTransactions, backlog: Backlog, clock: Clock, limits: Limits) -> Swept:
    """One run over all shards. Raises `Unavailable`; the next run does what this one could not."""
    started_ms = clock.now_ms()
    backlogged = backlog.depth() > limits.backlog_max
    rows: list[OpenRow] = []
    for shard in range(OPEN_SHARDS):
        rows += table.open_rows(shard, SHARD_ROWS_MAX)
    due = sorted(
        (row for row in rows if row.status is Status.QUEUED and row.next_sweep_at_ms <= started_ms),
        key=lambda row: row.next_sweep_at_ms,
    )
    expired = sent_again = 0
    for row in due:
        now_ms = clock.now_ms()
        if expired + sent_again >= limits.rows_max or now_ms >= limits.deadline_ms:
            break
        if row.expires_at_s * 1000 <= now_ms:
            expired += table.expire(row, now_ms)
        elif not backlogged:
            at_ms = next_sweep_ms(row.attempt + 1, now_ms, row.expires_at_s)
            sent_again += table.send_again(row, at_ms, now_ms)
    return Swept(
        open_rows=len(rows),
        oldest_age_s=max((started_ms - row.created_at_ms for row in rows), default=0) // 1000,
        sent_again=sent_again,
        expired=expired,
        backlogged=backlogged,
    )


type Report = Callable[[str, float], None]


def report(swept: Swept, count: Report) -> None:
    """The metrics of a run."""
    count("OpenTransactions", swept.open_rows)
    count("OldestOpenAgeSeconds", swept.oldest_age_s)
    count("TransactionsSentAgain", swept.sent_again)
    count("TransactionsExpired", swept.expired)
