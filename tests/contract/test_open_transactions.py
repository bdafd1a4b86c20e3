"""`OpenTransactions`: finds what is open, and moves only what still is as it was seen."""

from dataclasses import replace

import pytest

from tests.contract.places import Place
from tests.fakes.memory import START_MS
from tests.fakes.samples import request, row_of
from wallet_ledger.domain.refunds import requested
from wallet_ledger.domain.transactions import (
    OPEN_SHARDS,
    OfflineTransaction,
    PendingRefund,
    Status,
    open_shard,
)
from wallet_ledger.ports import OpenRow

NOT_QUEUED = [status for status in Status if status is not Status.QUEUED]
NOW_MS = START_MS + 500_000
LATER_MS = NOW_MS + 600_000


def seen(row: OfflineTransaction) -> OpenRow:
    """What the index told of a row."""
    return OpenRow(
        agent_id=row.agent_id,
        idempotency_key=row.idempotency_key,
        status=Status.QUEUED,
        attempt=row.attempt,
        open_since_ms=row.created_at_ms,
        expires_at_s=row.expires_at_s,
        next_sweep_at_ms=row.next_sweep_at_ms or 0,
    )


def stored(place: Place, row: OfflineTransaction) -> OfflineTransaction | None:
    """The row as it is now."""
    return place.accepted().find(row.agent_id, row.idempotency_key)


def queued(key: str = "K-1", *, due_ms: int = START_MS) -> OfflineTransaction:
    """An open row."""
    return replace(row_of(request(key)), next_sweep_at_ms=due_ms)


def of_one_shard(count: int) -> tuple[int, list[str]]:
    """A shard, and keys of one agent whose rows are in it."""
    keys = [f"K-{number}" for number in range(OPEN_SHARDS * count * 4)]
    shard = open_shard(request().agent_id, request(keys[0]).idempotency_key)
    same = [k for k in keys if open_shard(request().agent_id, request(k).idempotency_key) == shard]
    assert len(same) >= count
    return shard, same[:count]


def test_a_shard_gives_its_own_open_rows_the_longest_due_first(place: Place) -> None:
    shard, keys = of_one_shard(4)
    due_ms = [START_MS + offset for offset in (30, 10, 40, 20)]
    for key, at_ms in zip(keys, due_ms, strict=True):
        place.put_row(queued(key, due_ms=at_ms))
    place.put_row(queued("elsewhere"))
    assert open_shard(request().agent_id, request("elsewhere").idempotency_key) != shard

    found = place.open_transactions().open_rows(shard, 10)

    assert [row.next_sweep_at_ms for row in found] == sorted(due_ms)
    assert found[0] == replace(seen(queued(keys[1])), next_sweep_at_ms=START_MS + 10)


def test_a_shard_gives_no_more_rows_than_were_asked_for(place: Place) -> None:
    shard, keys = of_one_shard(5)
    for number, key in enumerate(keys):
        place.put_row(queued(key, due_ms=START_MS + number))

    found = place.open_transactions().open_rows(shard, 3)

    assert [row.idempotency_key for row in found] == keys[:3]


def test_every_shard_is_empty_at_first(place: Place) -> None:
    for shard in range(OPEN_SHARDS):
        assert list(place.open_transactions().open_rows(shard, 10)) == []


@pytest.mark.parametrize("status", Status)
def test_only_rows_that_are_owed_an_end_are_in_the_index(place: Place, status: Status) -> None:
    row = row_of(request(), status)
    place.put_row(row)

    found = place.open_transactions().open_rows(open_shard(row.agent_id, row.idempotency_key), 10)

    assert [each.status for each in found] == ([status] if row.next_sweep_at_ms else [])


def test_a_row_that_waits_for_a_refund_is_open_since_it_was_asked_for(place: Place) -> None:
    settled = row_of(request(), Status.SYNCED)
    row = requested(settled, PendingRefund("r-1", None, "wrong amount"), NOW_MS)
    place.put_row(row)
    (found,) = place.open_transactions().open_rows(
        open_shard(row.agent_id, row.idempotency_key), 10
    )
    assert (found.status, found.open_since_ms) == (Status.REFUND_REQUESTED, NOW_MS)


def test_sending_again_raises_the_attempt_and_moves_the_next_sweep(place: Place) -> None:
    row = queued()
    place.put_row(row)

    assert place.open_transactions().send_again(seen(row), LATER_MS, NOW_MS)

    again = replace(row, attempt=2, next_sweep_at_ms=LATER_MS, queued_at_ms=NOW_MS)
    assert stored(place, row) == again
    shard = open_shard(row.agent_id, row.idempotency_key)
    assert list(place.open_transactions().open_rows(shard, 10)) == [seen(again)]


def test_one_sighting_sends_again_once(place: Place) -> None:
    row = queued()
    place.put_row(row)
    table = place.open_transactions()

    assert [table.send_again(seen(row), LATER_MS, NOW_MS) for _ in range(3)] == [True, False, False]

    found = stored(place, row)
    assert found is not None
    assert found.attempt == 2


@pytest.mark.parametrize("status", NOT_QUEUED)
def test_a_row_that_is_not_queued_is_neither_sent_again_nor_expired(
    place: Place, status: Status
) -> None:
    row = row_of(request(), status)
    place.put_row(row)
    table = place.open_transactions()

    assert not table.send_again(seen(row), LATER_MS, NOW_MS)
    assert not table.expire(seen(row), NOW_MS)

    assert stored(place, row) == row


def test_what_was_never_stored_is_not_made_by_the_sweep(place: Place) -> None:
    row = queued()

    assert not place.open_transactions().send_again(seen(row), LATER_MS, NOW_MS)
    assert not place.open_transactions().expire(seen(row), NOW_MS)

    assert stored(place, row) is None


def test_expiry_closes_the_row_once_and_takes_it_out_of_the_index(place: Place) -> None:
    row = queued()
    place.put_row(row)
    table = place.open_transactions()

    assert [table.expire(seen(row), NOW_MS), table.expire(seen(row), NOW_MS + 1)] == [True, False]

    expired = replace(row, status=Status.EXPIRED, updated_at_ms=NOW_MS, next_sweep_at_ms=None)
    assert stored(place, row) == expired
    assert list(table.open_rows(open_shard(row.agent_id, row.idempotency_key), 10)) == []


def test_expiry_does_not_ask_how_often_a_row_was_sent(place: Place) -> None:
    row = replace(queued(), attempt=9)
    place.put_row(row)

    assert place.open_transactions().expire(replace(seen(row), attempt=8), NOW_MS)


def test_a_row_that_was_given_more_time_since_does_not_expire(place: Place) -> None:
    """Held and redriven between the sweep's look and its write."""
    row = replace(queued(), expires_at_s=START_MS // 1000 + 86_400)
    place.put_row(row)

    earlier = replace(seen(row), expires_at_s=START_MS // 1000)
    assert not place.open_transactions().expire(earlier, NOW_MS)

    assert stored(place, row) == row


def test_an_expired_row_is_never_purged_since_no_entry_remembers_it(place: Place) -> None:
    row = queued()
    place.put_row(row)

    place.open_transactions().expire(seen(row), NOW_MS)

    assert place.purge_at_s(row.agent_id, row.idempotency_key) is None


def test_sending_again_never_sets_a_time_of_purging(place: Place) -> None:
    row = queued()
    place.put_row(row)

    place.open_transactions().send_again(seen(row), LATER_MS, NOW_MS)

    assert place.purge_at_s(row.agent_id, row.idempotency_key) is None
