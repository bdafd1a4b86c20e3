"""The bus edge moves each request to the queue of its phone, and what it cannot read aside."""

import json
from pathlib import Path
from typing import Any

import pytest

from ingest.bus import handle_batch
from tests.fakes.memory import FakeClock, FakeQueue
from wallet_ledger.contracts import Defaults
from wallet_ledger.domain.ids import Currency
from wallet_ledger.domain.wallets import Credit, StatusChange
from wallet_ledger.messages import read_movement
from wallet_ledger.telemetry import logger

EVENTS = Path(__file__).parents[2] / "events" / "ingest-bus"
DEFAULTS = Defaults(Currency("KES"), "KE")


class Bus:
    """The edge with its two queues in memory."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tx_queue = FakeQueue(self.clock)
        self.delivery_failures = FakeQueue(self.clock)

    def handle(self, records: list[Any]) -> list[str]:
        answer = handle_batch(
            records,
            defaults=DEFAULTS,
            tx_queue=self.tx_queue,
            delivery_failures=self.delivery_failures,
        )
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def _records(name: str) -> list[Any]:
    records: list[Any] = json.loads((EVENTS / name).read_text())["Records"]
    return records


def test_a_request_goes_to_the_group_of_its_phone() -> None:
    bus = Bus()
    assert bus.handle(_records("credit.json") + _records("status.json")) == []
    credit, status = bus.tx_queue.messages
    assert (credit.group, status.group) == ("254712345678", "254733000111")
    assert isinstance(read_movement(credit.body), Credit)
    assert isinstance(read_movement(status.body), StatusChange)
    assert not bus.delivery_failures.messages


def test_one_event_delivered_twice_is_one_message_and_a_request_asked_again_is_another() -> None:
    bus = Bus()
    (record,) = _records("credit.json")
    bus.handle([record])
    bus.handle([record | {"messageId": "another delivery"}])
    assert len(bus.tx_queue.messages) == 1
    event = json.loads(record["body"]) | {"id": "another-event"}
    bus.handle([record | {"body": json.dumps(event)}])
    first, second = bus.tx_queue.messages
    assert first.body == second.body
    assert first.dedup_id != second.dedup_id


def test_what_cannot_be_read_is_kept_whole_and_stops_nobody() -> None:
    bus = Bus()
    records = _records("mixed.json")
    assert bus.handle(records) == []
    assert len(bus.tx_queue.messages) == 2
    letters = [json.loads(message.body) for message in bus.delivery_failures.messages]
    assert [letter["record"] for letter in letters] == [records[1], records[3]]
    assert [letter["source"] for letter in letters] == ["Inbox", "Inbox"]
    assert [letter["why"] for letter in letters] == [
        "amount: wrong_type",
        "the body is not a JSON document",
    ]


def test_what_a_queue_does_not_take_comes_again_and_nothing_else() -> None:
    bus = Bus()
    records = _records("mixed.json")
    bus.tx_queue.refuses = lambda message: message.group == "254733000111"
    bus.delivery_failures.refuses = lambda message: "wrong_type" in message.body
    assert bus.handle(records) == [records[2]["messageId"], records[1]["messageId"]]


def test_a_letter_that_a_queue_will_not_take_fails_alone() -> None:
    """The queue's own redrive then keeps the request whole, and the others are not sent twice."""

    class Full(FakeQueue):
        def send(self, messages: Any) -> frozenset[int]:
            raise ValueError("BatchRequestTooLong")

    bus = Bus()
    bus.delivery_failures = Full(bus.clock)
    records = _records("mixed.json")
    assert bus.handle(records) == [records[1]["messageId"], records[3]["messageId"]]
    assert len(bus.tx_queue.messages) == 2


@pytest.mark.parametrize("body", ["", "null", '{"id": "e", "detail": "\\ud800"}', "[" * 9000])
def test_a_poison_request_never_fails_its_batch(body: str) -> None:
    bus = Bus()
    (good,) = _records("credit.json")
    assert bus.handle([good | {"body": body, "messageId": "poison"}, good]) == []
    assert len(bus.tx_queue.messages) == len(bus.delivery_failures.messages) == 1


def test_p12_and_c49_a_poison_request_with_a_phone_leaves_none_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Bus().handle(_records("mixed.json"))
    lines = "\n".join(map(logger.registered_formatter.format, caplog.records))
    assert "unreadable request" in lines
    for secret in ("712 345", "254712", "733 000", "mpesa", "QK71", "5000000", "CASE-2026"):
        assert secret not in lines
