"""Events derived again on an engine: its filters let through what a window tells, and all of it."""

import itertools
from collections import Counter

import pytest

from tests.engine import Aws
from tests.fakes.day import NAMES, OTHER, Day, a_day
from tests.fakes.memory import START_MS
from wakala.events import TYPES, Asked, Reading, Told, derived
from wakala.stack import Stack

END_MS = START_MS + 86_400_000
WRITES_MAX = 25


@pytest.fixture(scope="module")
def day() -> Day:
    return a_day()


@pytest.fixture(scope="module")
def stack(aws: Aws, day: Day) -> Stack:
    """The tables that the day left, on the engine."""
    outputs: dict[str, str] = {}
    for name, held in day.tables().items():
        output = f"{name}Table"
        outputs[output] = aws._table(output)
        for items in itertools.batched(held.values(), WRITES_MAX, strict=False):
            puts = [{"PutRequest": {"Item": item}} for item in items]
            aws.dynamodb.batch_write_item(RequestItems={outputs[output]: puts})  # type: ignore[dict-item]
    session = type("Session", (), {"client": lambda *_, **__: aws.dynamodb})()
    return Stack("wakala", "us-east-1", aws.endpoint_url, session, outputs)


def _told(stack: Stack, from_ms: int, until_ms: int, agent: str | None = None) -> list[Told]:
    reading = Reading(lambda _: None)
    told = list(derived(stack, Asked(from_ms, until_ms, TYPES, agent), reading))
    assert not reading.unreadable
    return sorted(told, key=lambda each: (each.at_ms, each.event.detail))


def test_each_part_of_a_day_tells_its_own_events_and_together_they_are_the_days(
    stack: Stack, day: Day
) -> None:
    whole = _told(stack, START_MS, END_MS)
    relayed = Counter(event.detail_type for event in day.relayed())
    relayed.subtract(each.event.detail_type for each in whole)
    assert +relayed == Counter(TransactionHeld=3, RefundRequested=3)  # which cannot come again
    sent_again_ms = day.row("waits").queued_at_ms or 0  # long after it was asked for
    cuts = sorted({START_MS, sent_again_ms, *sorted(e.at_ms for e in whole)[3::7], END_MS})
    parts = [_told(stack, *window) for window in itertools.pairwise(cuts)]
    assert [each for part in parts for each in part] == whole
    assert len(parts) > 5


def test_an_agents_events_are_those_of_the_whole_that_name_it(stack: Stack) -> None:
    named = [e for e in _told(stack, START_MS, END_MS) if f'"agentId": "{OTHER}"' in e.event.detail]
    assert named == _told(stack, START_MS, END_MS, OTHER)
    assert named


def test_what_has_no_time_comes_through_every_filter_and_is_named(stack: Stack, aws: Aws) -> None:
    keys = {
        NAMES.offline_tx: {"agentId": {"S": "AG-9"}, "idempotencyKey": {"S": "k"}},
        NAMES.wallet_ledger: {"phone": {"S": "254700000000"}, "txId": {"S": "credit#till#k"}},
        NAMES.dead_letters: {"id": {"S": "letter#k"}},
    }
    reading = Reading(lambda _: None)
    try:
        for name, key in keys.items():
            aws.dynamodb.put_item(TableName=stack.output(f"{name}Table"), Item=key)
        told = derived(stack, Asked(END_MS, END_MS + 1, TYPES, None), reading)
        assert list(told) == []
    finally:
        for name, key in keys.items():
            aws.dynamodb.delete_item(TableName=stack.output(f"{name}Table"), Key=key)
    assert [ref.split(" ")[0] for ref in reading.unreadable] == list(keys)
