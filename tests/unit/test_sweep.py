"""The sweep: nothing that is open is forgotten, nothing else is touched, and it makes no storm."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from ingest.accept import Accepted, accept_one
from reconcile.settle import Dropped, Settlement, settle
from relay.forward import forward
from relay.sweep import Limits, Swept, sweep
from tests.fakes import samples
from tests.fakes.memory import (
    FakeAcceptedTransactions,
    FakeClock,
    FakeEventBus,
    FakeLedger,
    FakeOpenTransactions,
    FakeQueue,
    Store,
)
from tests.fakes.scripted import Call, Step, around, scripted, unavailable
from tests.template import TEMPLATE
from wallet_ledger.derive import Destination, from_row
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.refunds import requested
from wallet_ledger.domain.transactions import (
    OPEN_SHARDS,
    OfflineTransaction,
    PendingRefund,
    Status,
    next_sweep_ms,
    open_shard,
)
from wallet_ledger.errors import Unavailable
from wallet_ledger.messages import read_movement
from wallet_ledger.patience import Patience
from wallet_ledger.ports import OpenRow, OutgoingMessage

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
OPEN_DAYS = 7
AMOUNT_MINOR = 10
BALANCE_MINOR = 10**6


class Town:
    """The whole path on fakes and a held clock; the streams are relayed at once."""

    def __init__(self, *, backlog_max: int = 1_000, rows_max: int = 500) -> None:
        self.clock = FakeClock()
        self.store = Store()
        self.tx_queue = FakeQueue(self.clock)
        self.bus = FakeEventBus()
        self.limits = Limits(backlog_max, rows_max, deadline_ms=2**63)
        self._accepted = FakeAcceptedTransactions(self.store)
        self._ledger = FakeLedger(self.store, retention_days=0)
        self.open = around(FakeOpenTransactions(self.store), self._stream)
        self.store.wallets[samples.PHONE] = samples.wallet(BALANCE_MINOR)

    def accept(self, key: str) -> OfflineTransaction:
        request = samples.request(key, AMOUNT_MINOR)
        accepted = accept_one(request, self._accepted, self.clock, OPEN_DAYS)
        assert isinstance(accepted, Accepted)
        self._relay(None, accepted.row)
        return accepted.row

    def sweep(self) -> Swept:
        return sweep(self.open, self.tx_queue, self.clock, self.limits)

    def settle(self, messages: int) -> None:
        for _ in range(min(messages, len(self.tx_queue.messages))):
            self.deliver(self.tx_queue.messages.pop(0))

    def deliver(self, message: OutgoingMessage) -> Settlement:
        patience = Patience(self.clock, lambda: 0.0, budget_ms=1_000)
        (result,) = settle([read_movement(message.body)], self._ledger, self.clock, patience)
        return result

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.pause(duration_ms / 1000)

    def row(self, key: str = "k-1") -> OfflineTransaction:
        return self.store.rows[samples.AGENT, IdempotencyKey(key)]

    def put(self, row: OfflineTransaction) -> None:
        self.store.rows[row.agent_id, row.idempotency_key] = row

    def statuses(self) -> set[Status]:
        return {row.status for row in self.store.rows.values()}

    def events(self) -> list[str]:
        return [event.detail_type for event in self.bus.events]

    def _stream(self, call: Call) -> Any:
        """What the table's stream does when the sweep has moved a row."""
        if call.method == "open_rows":
            return call.proceed()
        seen: OpenRow = call.arguments[0]
        old = self.store.rows[seen.agent_id, seen.idempotency_key]
        moved = call.proceed()
        if moved:
            self._relay(old, self.store.rows[seen.agent_id, seen.idempotency_key])
        return moved

    def _relay(self, old: OfflineTransaction | None, new: OfflineTransaction) -> None:
        outgoing = [(0, each) for each in from_row(old, new)]
        assert forward(outgoing, {Destination.TX_QUEUE: self.tx_queue}, self.bus) is None


@pytest.fixture
def town() -> Town:
    return Town()


def _index(town: Town) -> Iterator[Step]:
    """The index as it is now, to be shown to a later run: one answer per shard."""

    def shown(rows: Sequence[OpenRow]) -> Step:
        return lambda _: rows

    for shard in range(OPEN_SHARDS):
        yield shown(town.open.open_rows(shard, 10))


# --- which rows ----------------------------------------------------------------------------


def test_a_row_is_sent_again_once_it_is_due_and_not_a_moment_before(town: Town) -> None:
    town.accept("k-1")
    town.pass_ms(2 * MINUTE_MS - 1)
    assert town.sweep().sent_again == 0
    town.pass_ms(1)
    assert town.sweep().sent_again == 1
    assert town.sweep().sent_again == 0
    first, second = town.tx_queue.messages
    assert first.dedup_id != second.dedup_id
    row = town.row()
    assert (row.attempt, row.queued_at_ms) == (2, town.clock.now_ms())
    assert row.next_sweep_at_ms == town.clock.now_ms() + 10 * MINUTE_MS
    assert row.updated_at_ms == row.created_at_ms


def test_c23_terminal_and_held_rows_are_left_alone_however_late_it_is(town: Town) -> None:
    for status in Status:
        request = samples.request(f"k-{status}")
        if status is not Status.QUEUED:
            town.put(samples.row_of(request, status))
    before = dict(town.store.rows)
    town.pass_ms(30 * DAY_MS)
    calls = set()

    def note(call: Call) -> Any:
        calls.add(call.method)
        return call.proceed()

    town.open = around(town.open, note)
    swept = town.sweep()
    assert (swept.sent_again, swept.expired) == (0, 0)
    assert calls == {"open_rows"}  # nor is a write tried that could only fail
    assert town.store.rows == before
    assert not town.bus.events


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.QUEUED])
@pytest.mark.parametrize("late_ms", [3 * MINUTE_MS, 8 * DAY_MS])
def test_c23_a_row_that_the_index_still_shows_as_queued_is_left_alone(
    status: Status, late_ms: int, town: Town
) -> None:
    town.accept("k-1")
    town.pass_ms(late_ms)
    stale = list(_index(town))
    closed = replace(town.row(), status=status, next_sweep_at_ms=None)
    town.put(closed)
    town.open = scripted(town.open, "open_rows", stale)
    swept = town.sweep()
    assert (swept.sent_again, swept.expired) == (0, 0)
    assert town.row() == closed
    assert (len(town.tx_queue.messages), town.events()) == (1, [])


def test_a_row_that_another_run_has_sent_meanwhile_is_not_sent_twice(town: Town) -> None:
    town.accept("k-1")
    town.pass_ms(3 * MINUTE_MS)
    stale = list(_index(town))
    town.sweep()
    town.open = scripted(town.open, "open_rows", stale)
    assert town.sweep().sent_again == 0
    assert town.row().attempt == 2


def test_c23_p5_what_is_open_past_its_time_expires_once_with_one_event(town: Town) -> None:
    town.accept("k-1")
    town.pass_ms(7 * DAY_MS - 1_000)
    assert town.sweep().expired == 0
    town.pass_ms(1_000)
    assert town.sweep().expired == 1
    assert (town.row().status, town.row().next_sweep_at_ms) == (Status.EXPIRED, None)
    town.pass_ms(DAY_MS)
    assert town.sweep() == Swept(0, 0, 0, 0, backlogged=False)
    assert town.events() == ["TransactionExpired"]


def test_p7_a_message_that_arrives_after_the_expiry_moves_no_money(town: Town) -> None:
    town.accept("k-1")
    (message,) = town.tx_queue.messages
    town.pass_ms(7 * DAY_MS)
    town.sweep()
    assert town.deliver(message) == Dropped()
    assert town.row().status is Status.EXPIRED
    assert town.store.wallets[samples.PHONE].balance_minor == BALANCE_MINOR
    assert not town.store.entries


# --- how much ------------------------------------------------------------------------------


def test_a_run_takes_no_more_rows_than_its_cap_and_the_longest_due_first() -> None:
    town = Town(rows_max=3)
    for n in range(8):
        town.accept(f"k-{n}")
        town.pass_ms(1_000)
    town.put(replace(town.row("k-7"), expires_at_s=0, next_sweep_at_ms=0))
    town.pass_ms(10 * MINUTE_MS)
    first = town.sweep()
    assert (first.sent_again, first.expired) == (2, 1)
    assert {row.idempotency_key for row in town.store.rows.values() if row.attempt == 2} == {
        "k-0",
        "k-1",
    }
    assert [town.sweep().sent_again for _ in range(3)] == [3, 2, 0]


def test_a_run_ends_at_its_deadline_and_the_next_one_goes_on(town: Town) -> None:
    for n in range(10):
        town.accept(f"k-{n}")
    town.pass_ms(3 * MINUTE_MS)

    def slow(call: Call) -> Any:
        if call.method == "send_again":
            town.clock.pause(2)
        return call.proceed()

    town.open = around(town.open, slow)
    town.limits = replace(town.limits, deadline_ms=town.clock.now_ms() + 6_000)
    assert town.sweep().sent_again == 3  # at 0, 2 and 4 s
    town.limits = replace(town.limits, deadline_ms=2**63)
    assert town.sweep().sent_again == 7


@pytest.mark.parametrize("status", sorted(set(Status) - {Status.QUEUED, Status.REFUND_REQUESTED}))
def test_what_is_in_the_index_and_not_open_is_nobodys_to_move(town: Town, status: Status) -> None:
    """Nothing of ours leaves a row so; whatever did, the sweep makes it no worse."""
    town.accept("k-1")
    town.put(replace(town.row(), status=status, next_sweep_at_ms=0))
    before = town.row()

    assert town.sweep().sent_again == 0
    assert town.row() == before


def test_nothing_is_sent_again_while_the_queue_is_over_its_backlog_but_expiry_goes_on() -> None:
    town = Town(backlog_max=2)
    for n in range(3):
        town.accept(f"k-{n}")
    town.put(replace(town.row("k-0"), expires_at_s=0, next_sweep_at_ms=0))
    town.pass_ms(3 * MINUTE_MS)
    assert town.sweep() == Swept(3, 180, sent_again=0, expired=1, backlogged=True)
    town.tx_queue.messages.pop()
    assert town.sweep() == Swept(2, 180, sent_again=2, expired=0, backlogged=False)


def test_a_row_that_conflicts_takes_no_other_row_along(town: Town) -> None:
    for n in range(3):
        town.accept(f"k-{n}")
    town.tx_queue.messages.clear()
    town.pass_ms(3 * MINUTE_MS)
    table = town.open
    conflict = unavailable("TransactionConflictException")
    town.open = scripted(table, "send_again", [conflict])
    assert town.sweep().sent_again == 2
    town.open = table
    assert town.sweep().sent_again == 1


def test_a_shard_that_cannot_be_read_takes_no_other_shard_along(town: Town) -> None:
    for n in range(30):
        town.accept(f"k-{n}")
    town.pass_ms(3 * MINUTE_MS)
    table = town.open
    town.open = scripted(table, "open_rows", [unavailable("ThrottlingException")])
    first = town.sweep().sent_again
    town.open = table
    assert 0 < first < 30
    assert first + town.sweep().sent_again == 30


def test_a_table_that_cannot_be_read_at_all_fails_the_run_and_loses_nothing(town: Town) -> None:
    town.accept("k-1")
    town.pass_ms(3 * MINUTE_MS)
    table = town.open
    away = [unavailable("ThrottlingException")] * OPEN_SHARDS
    town.open = scripted(table, "open_rows", away)
    with pytest.raises(Unavailable):
        town.sweep()
    town.open = table
    assert town.sweep().sent_again == 1


def test_the_cap_of_a_run_counts_what_was_tried(town: Town) -> None:
    town.limits = Limits(backlog_max=1_000, rows_max=2, deadline_ms=2**63)
    for n in range(3):
        town.accept(f"k-{n}")
    town.pass_ms(3 * MINUTE_MS)
    town.open = scripted(town.open, "send_again", [unavailable("Conflict")] * 3)
    assert town.sweep().sent_again == 0
    assert town.sweep().sent_again == 1


def test_a_refund_that_is_asked_for_is_sent_again_however_old_its_debit_is(town: Town) -> None:
    asked = PendingRefund("r-1", None, "wrong amount")
    settled = samples.row_of(samples.request("k-1"), Status.SYNCED)
    waits = replace(requested(settled, asked, town.clock.now_ms()), expires_at_s=0)
    town.put(replace(waits, next_sweep_at_ms=0))

    swept = town.sweep()

    assert (swept.sent_again, swept.expired) == (1, 0)
    assert town.row().next_sweep_at_ms == town.clock.now_ms() + 60 * MINUTE_MS


def test_a_run_says_how_much_is_open_and_how_old_the_oldest_is_but_for_what_is_held(
    town: Town,
) -> None:
    town.put(samples.row_of(samples.request("k-0"), Status.HELD))
    town.pass_ms(50_000)
    town.accept("k-1")
    town.pass_ms(10_000)
    town.accept("k-2")
    town.pass_ms(80_500)
    swept = town.sweep()
    assert (swept.open_rows, swept.oldest_age_s) == (2, 90)


def test_a_refund_asked_for_a_year_later_is_not_a_year_old(town: Town) -> None:
    """Else the alarm on the oldest open row rang for each refund of an old debit."""
    asked = PendingRefund("r-1", None, "wrong amount")
    settled = samples.row_of(samples.request("k-1"), Status.SYNCED)
    town.pass_ms(365 * DAY_MS)
    town.put(requested(settled, asked, town.clock.now_ms()))
    town.pass_ms(30_000)
    assert town.sweep().oldest_age_s == 30


@pytest.mark.parametrize("refunded_minor", [None, 4])
def test_p5_a_refund_that_is_lost_is_asked_for_on_schedule_and_never_expires(
    town: Town, refunded_minor: int | None
) -> None:
    settled = replace(samples.row_of(samples.request("k-1"), Status.SYNCED))
    town.put(samples.waiting(replace(settled, refunded_minor=refunded_minor)))
    sent_at_ms = []
    start_ms = town.clock.now_ms()
    for _ in range(40 * 24 * 60):
        town.pass_ms(MINUTE_MS)
        if town.sweep().sent_again:
            sent_at_ms.append(town.clock.now_ms() - start_ms)

    row = town.row()
    assert (row.status, row.refunded_minor) == (Status.REFUND_REQUESTED, refunded_minor)
    assert set(town.events()) == {"RefundRequested"}
    ids = [json.loads(event.detail)["eventId"] for event in town.bus.events]
    assert len(set(ids)) == len(ids) == row.attempt - 2 == len(sent_at_ms)
    assert sent_at_ms[0] == 2 * MINUTE_MS
    waits = [b - a for a, b in pairwise(sent_at_ms)]
    assert waits == sorted(waits)
    assert max(waits) == DAY_MS
    assert sent_at_ms[-1] > 39 * DAY_MS
    assert not town.tx_queue.messages


def test_a_refund_that_has_ended_is_asked_for_no_more(town: Town) -> None:
    row = samples.waiting(samples.row_of(samples.request("k-1"), Status.SYNCED))
    town.put(row)
    town.pass_ms(3 * MINUTE_MS)
    stale = list(_index(town))
    ended = replace(row, status=Status.REFUNDED, refund_request=None, next_sweep_at_ms=None)
    town.put(ended)
    town.open = scripted(town.open, "open_rows", stale)

    assert town.sweep().sent_again == 0
    assert town.row() == ended
    assert town.events() == []


def test_no_refund_is_asked_for_again_while_the_queue_is_over_its_backlog() -> None:
    town = Town(backlog_max=0)
    town.accept("k-2")
    row = samples.waiting(samples.row_of(samples.request("k-1"), Status.SYNCED))
    town.put(row)
    town.pass_ms(30 * DAY_MS)
    swept = town.sweep()

    assert (swept.backlogged, swept.sent_again, swept.expired) == (True, 0, 1)
    assert town.row() == row


@pytest.mark.parametrize(
    ("attempt", "minutes"), [(1, 2), (2, 10), (3, 60), (4, 360), (5, 1440), (6, 1440), (99, 1440)]
)
def test_the_wait_grows_with_the_attempts_and_never_goes_past_the_expiry(
    attempt: int, minutes: int
) -> None:
    assert next_sweep_ms(attempt, 5_000, 10**9) == 5_000 + minutes * MINUTE_MS
    assert next_sweep_ms(attempt, 5_000, 6) == 6_000


# --- over time -----------------------------------------------------------------------------


@pytest.fixture
def quick_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row's shard never changes: a day of sweeps need not digest it again."""
    monkeypatch.setattr("tests.fakes.memory.open_shard", cache(open_shard))


@pytest.mark.usefixtures("quick_shards")
def test_p5_a_row_whose_messages_are_all_lost_is_sent_on_schedule_and_expires_at_seven_days(
    town: Town,
) -> None:
    town.accept("k-1")
    sent, dedup_ids = [], {town.tx_queue.messages.pop().dedup_id}
    minute = 0
    while town.row().status is Status.QUEUED:
        minute += 1
        town.pass_ms(MINUTE_MS)
        if town.sweep().sent_again:
            sent.append(minute)
            dedup_ids.add(town.tx_queue.messages.pop().dedup_id)  # and dead-lettered
    assert sent == [2, 12, 72, 432, 1872, 3312, 4752, 6192, 7632, 9072]
    assert len(dedup_ids) == 11
    assert (minute, town.row().status) == (7 * 24 * 60, Status.EXPIRED)
    assert town.events() == ["TransactionExpired"]


# In the two simulations below one transaction stands for a hundred, in the template's own limits
# too: what is 1 a second here is 100 a second there.
SCALE = 100


def _at_scale() -> Town:
    backlog_max, rows_max = (
        int(TEMPLATE["Parameters"][name]["Default"]) // SCALE
        for name in ("SweepBacklogMax", "SweepRowsMax")
    )
    return Town(backlog_max=backlog_max, rows_max=rows_max)


def _all_settled_once(town: Town) -> None:
    assert town.statuses() == {Status.SYNCED}
    assert len(town.store.entries) == len(town.store.rows)
    spent_minor = BALANCE_MINOR - town.store.wallets[samples.PHONE].balance_minor
    assert spent_minor == AMOUNT_MINOR * len(town.store.rows)


@pytest.mark.usefixtures("quick_shards")
def test_p5_an_hour_without_reconcile_at_100_a_second_ends_in_no_storm_of_sends() -> None:
    """The bound is none at all.

    A run sends at most `rows_max`, and only while at most `backlog_max` messages wait. The queue
    is over that after ten seconds, before any row is due (two minutes). When it is under it again,
    300 a second later, what it still holds is a few seconds old, and everything older is settled.
    """
    town = _at_scale()
    sent_again = most_waiting = second = 0
    while second <= 3600 or town.tx_queue.messages:
        if second % 60 == 0:
            sent_again += town.sweep().sent_again
        town.accept(f"k-{second}")
        if second >= 3600:
            town.settle(3)
        most_waiting = max(most_waiting, len(town.tx_queue.messages))
        second += 1
        town.pass_ms(1_000)
    assert second < 3600 * 1.6  # 300 in, 100 more a second: half an hour
    assert most_waiting <= 3600  # one message per transaction, never more
    assert sent_again == 0
    _all_settled_once(town)


@pytest.mark.usefixtures("quick_shards")
def test_p5_p8_what_a_queue_lost_for_good_comes_back_at_the_pace_of_the_cap() -> None:
    """Dead-lettered after ten minutes, a quarter of an hour long, then reconcile is back.

    The bound: `rows_max` a run, so the queue never holds more of them than reconcile takes in two
    seconds, and no transaction is sent again before its own turn on the schedule.
    """
    town = _at_scale()
    for second in range(900):
        if second % 60 == 0:
            town.sweep()
        town.accept(f"k-{second}")
        if second >= 600:
            town.tx_queue.messages.pop(0)  # the tenth receive
        town.pass_ms(1_000)
    town.settle(900)
    lost = sum(row.status is Status.QUEUED for row in town.store.rows.values())
    assert lost >= 300
    runs, sent_again = 0, 0
    while Status.QUEUED in town.statuses():
        run = town.sweep().sent_again
        assert run == len(town.tx_queue.messages) <= town.limits.rows_max
        town.settle(run)
        sent_again += run
        runs += 1
        town.pass_ms(MINUTE_MS)
    assert sent_again == lost
    assert runs <= lost / town.limits.rows_max + 12  # the last ones are due within twelve minutes
    _all_settled_once(town)
