"""The streams' edge: where Lambda starts again, and what never stops a shard."""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.stream import LETTER_BYTES_MAX, Tables, handle_batch
from tests.fakes import samples
from tests.fakes.memory import FakeClock, FakeEventBus, FakeQueue
from tests.fakes.wire import Answer, Sent, Wire, error, ok
from wallet_ledger.aws import clients, items
from wallet_ledger.aws.messaging import EventBridgeBus, SqsQueue
from wallet_ledger.derive import Destination
from wallet_ledger.domain.letters import (
    Arrival,
    Budget,
    Failure,
    LetterStatus,
    Original,
    Source,
    Standing,
    diagnose,
    opened,
)
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.ports import EventBus, OutgoingMessage, Queue
from wallet_ledger.telemetry import logger

EVENTS = Path(__file__).parents[2] / "events"
ENV = json.loads((EVENTS / "env.json").read_text())["RelayFunction"]
OFFLINE_TX, WALLET_LEDGER = ENV["OFFLINE_TX_TABLE"], ENV["WALLET_LEDGER_TABLE"]
DEAD_LETTERS = "wakala-DeadLetters"


class Relay:
    """The edge with everything it sends to in memory."""

    def __init__(self) -> None:
        self.tx_queue = FakeQueue(FakeClock())
        self.failed_tx_queue = FakeQueue(FakeClock())
        self.delivery_failures = FakeQueue(FakeClock())
        self.bus = FakeEventBus()

    def handle(self, records: list[Any]) -> list[str]:
        queues: dict[Destination, Queue] = {
            Destination.TX_QUEUE: self.tx_queue,
            Destination.FAILED_TX_QUEUE: self.failed_tx_queue,
        }
        return _handle(records, queues, self.bus, self.delivery_failures)

    def sent(self) -> Counter[str]:
        events = [event.detail_type for event in self.bus.events]
        return Counter(events) + Counter(
            TxQueue=len(self.tx_queue.messages),
            FailedTxQueue=len(self.failed_tx_queue.messages),
            DeliveryFailures=len(self.delivery_failures.messages),
        )


def _handle(
    records: list[Any], queues: dict[Destination, Queue], bus: EventBus, failures: Queue
) -> list[str]:
    answer = handle_batch(
        records,
        tables=Tables(OFFLINE_TX, WALLET_LEDGER, DEAD_LETTERS),
        queues=queues,
        bus=bus,
        delivery_failures=failures,
    )
    assert answer.keys() == {"batchItemFailures"}
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def _records(name: str) -> list[Any]:
    records: list[Any] = json.loads((EVENTS / "relay" / name).read_text())["Records"]
    return records


def _sequence(record: Any) -> str:
    sequence: str = record["dynamodb"]["SequenceNumber"]
    return sequence


def _inserted(count: int) -> list[Any]:
    """That many accepted transactions of as many phones."""
    (record, *_) = _records("accepted.json")
    return [
        _changed(record, n, None, samples.row_of(samples.request(f"k-{n}", phone=f"2547{n:08d}")))
        for n in range(count)
    ]


def _settled(count: int) -> list[Any]:
    (record, *_) = _records("settled.json")
    rows = [samples.row_of(samples.request(f"k-{n}"), Status.SYNCED) for n in range(count)]
    queued = [replace(row, status=Status.QUEUED) for row in rows]
    return [_changed(record, n, queued[n], rows[n]) for n in range(count)]


def _changed(
    record: Any, number: int, old: OfflineTransaction | None, new: OfflineTransaction
) -> Any:
    change = record["dynamodb"] | {"SequenceNumber": str(10**30 + number)}
    change["NewImage"] = items.offline_tx_item(new)
    if old is not None:
        change["OldImage"] = items.offline_tx_item(old)
    return record | {"dynamodb": change}


def _for_phone(number: int) -> Callable[[OutgoingMessage], bool]:
    return lambda message: message.group == f"2547{number:08d}"


def test_what_was_accepted_goes_to_the_queue_and_what_was_settled_to_the_bus() -> None:
    relay = Relay()
    batch = _records("accepted.json") + _records("settled.json") + _records("swept.json")
    assert relay.handle(batch) == []
    assert relay.sent() == Counter(
        TxQueue=4, TransactionSynced=1, TransactionFailed=1, FailedTxQueue=1, TransactionExpired=1
    )


def test_an_entry_of_the_ledger_becomes_its_event_and_a_balance_row_none() -> None:
    relay = Relay()
    assert relay.handle(_records("entries.json")) == []
    assert relay.sent() == Counter(WalletCredited=1, WalletStatusChanged=1, WalletCreditRejected=1)


def test_a_row_that_retention_purged_says_nothing_to_anybody() -> None:
    relay = Relay()
    assert relay.handle(_records("purged.json")) == []
    assert not relay.sent()


def _letter_record(name: str, **images: Any) -> Any:
    arn = f"arn:aws:dynamodb:us-east-1:000000000000:table/{DEAD_LETTERS}/stream/x"
    change = {"Keys": {"id": {"S": name}}, "SequenceNumber": "7", **images}
    return {"eventSourceARN": arn, "dynamodb": change}


def _letter_item() -> dict[str, Any]:
    arrival = Arrival(
        letter_id="L-1",
        source=Source.STREAM,
        failure=Failure.LOST_RECORDS,
        why="RetryAttemptsExhausted",
        place="",
        original=Original(),
        body="{}",
        subject=None,
    )
    diagnosis = diagnose(arrival.failure, Standing.OPEN, Budget())
    return items.letter_item(opened(arrival, diagnosis, Budget(), preview="{}", now_ms=1))


def test_of_the_dead_letters_table_only_letters_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay, letter = Relay(), _letter_item()
    assert items.read_letter(letter).status is LetterStatus.PARKED
    waited = letter | {"status": {"S": "waiting"}}
    budget = {"id": {"S": "subject#0f"}, "automatic": {"N": "1"}, "byHand": {"N": "0"}}
    records = [
        _letter_record("letter#L-1", NewImage=letter),
        _letter_record("letter#L-1", OldImage=waited, NewImage=letter),
        _letter_record("letter#L-1", OldImage=letter, NewImage=letter | {"dueAt": {"N": "9"}}),
        _letter_record("letter#L-1", OldImage=letter),
        _letter_record("record#L-1#0", NewImage={"id": {"S": "record#L-1#0"}}),
        _letter_record("subject#0f", OldImage=budget, NewImage=budget),
    ]
    assert relay.handle(records) == []
    assert relay.sent() == Counter(DeadLetterTriaged=2)
    assert "unreadable stream record" not in caplog.text


def test_a_letter_that_cannot_be_understood_is_no_letter_again() -> None:
    """It is in its table; as a letter again it would be filed, come here, and go round for ever."""
    relay = Relay()
    newer = _letter_item() | {"source": {"S": "Moon"}}
    record = _letter_record("letter#L-1", NewImage=newer)
    assert relay.handle([record, *_inserted(1)]) == []
    assert relay.sent() == Counter(TxQueue=1)


def test_c12_a_batch_that_comes_again_sends_the_same_messages_and_events() -> None:
    batch = _records("accepted.json") + _records("settled.json") + _records("entries.json")
    first, again = Relay(), Relay()
    first.handle(batch)
    again.handle(batch)
    assert first.bus.events == again.bus.events
    assert first.tx_queue.messages == again.tx_queue.messages
    first.handle(batch)
    assert first.tx_queue.messages == again.tx_queue.messages  # dropped by their dedup ids


@pytest.mark.parametrize("lost", [0, 1, 7, 24])
def test_the_stream_starts_again_at_the_first_message_that_was_not_taken(lost: int) -> None:
    relay = Relay()
    records = _inserted(25)
    relay.tx_queue.refuses = _for_phone(lost)
    assert relay.handle(records) == [_sequence(records[lost])]
    relay.tx_queue.refuses = lambda _: False
    assert relay.handle(records[lost:]) == []
    assert len(relay.tx_queue.messages) == 25


def test_of_several_failures_in_several_places_the_earliest_record_counts() -> None:
    relay = Relay()
    records = [*_inserted(4), *_records("settled.json"), *_records("unreadable.json")]
    relay.delivery_failures.refuses = lambda _: True
    assert relay.handle(records) == [_sequence(records[6])]
    relay.failed_tx_queue.refuses = lambda _: True
    assert relay.handle(records) == [_sequence(records[5])]
    relay.bus.refuses = lambda event: event.detail_type == "TransactionSynced"
    assert relay.handle(records) == [_sequence(records[4])]
    relay.tx_queue.refuses = lambda message: _for_phone(3)(message) or _for_phone(2)(message)
    assert relay.handle(records) == [_sequence(records[2])]


def test_a_record_that_cannot_be_understood_is_kept_whole_and_stops_nobody() -> None:
    relay = Relay()
    records = [*_inserted(1), *_records("unreadable.json"), *_records("entries.json")]
    assert relay.handle(records) == []
    assert relay.sent()["TxQueue"] == 2
    assert relay.sent()["WalletCredited"] == 1
    (letter,) = relay.delivery_failures.messages
    told = json.loads(letter.body)
    assert (told["source"], told["record"]) == ("Stream", records[1])


def test_a_record_too_large_for_a_queue_is_kept_by_its_keys() -> None:
    relay = Relay()
    record, *_ = _records("unreadable.json")
    record["dynamodb"]["NewImage"]["phone"] = {"S": "x" * 400_000}
    assert relay.handle([record, *_inserted(1)]) == []
    (letter,) = relay.delivery_failures.messages
    told = json.loads(letter.body)
    assert told["record"]["dynamodb"]["Keys"] == record["dynamodb"]["Keys"]
    assert "NewImage" not in told["record"]["dynamodb"]
    assert len(letter.body) < LETTER_BYTES_MAX
    assert relay.sent()["TxQueue"] == 1


def _without(*path: str) -> Callable[[Any], None]:
    def spoil(record: Any) -> None:
        for name in path[:-1]:
            record = record[name]
        del record[path[-1]]

    return spoil


def _with(value: object, *path: str) -> Callable[[Any], None]:
    def spoil(record: Any) -> None:
        for name in path[:-1]:
            record = record[name]
        record[path[-1]] = value

    return spoil


IMAGE = ("dynamodb", "NewImage")


@pytest.mark.parametrize(
    "spoil",
    [
        _without("eventSourceARN"),
        _with("", "eventSourceARN"),
        _with("arn:aws:dynamodb:us-east-1:000000000000:table", "eventSourceARN"),
        _with("arn:aws:dynamodb:us-east-1:000000000000:table/Other/stream/x", "eventSourceARN"),
        _with(None, "eventSourceARN"),
        _with({"S": "x"}, *IMAGE),
        _with(None, *IMAGE),
        _with([], *IMAGE),
        _without(*IMAGE, "phone"),
        _with({"N": "5"}, *IMAGE, "phone"),
        _with({"N": "1.5"}, *IMAGE, "amountMinor"),
        _with({"N": "abc"}, *IMAGE, "amountMinor"),
        _with({"N": "99"}, *IMAGE, "amountMinor"),
        _with({"S": "melted"}, *IMAGE, "status"),
        _with({"NULL": True}, *IMAGE, "status"),
        _with("x", *IMAGE, "attempt"),
        _with({"S": "\ud800"}, *IMAGE, "phone"),
        _with({}, "dynamodb", "OldImage"),
    ],
)
def test_whatever_is_wrong_with_a_record_the_next_one_is_sent(spoil: Callable[[Any], None]) -> None:
    relay = Relay()
    bad, good = _inserted(2)
    bad = deepcopy(bad)
    spoil(bad)
    assert relay.handle([bad, good]) == []
    assert relay.sent() == Counter(TxQueue=1, DeliveryFailures=1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([OFFLINE_TX, WALLET_LEDGER, DEAD_LETTERS]),
    st.dictionaries(st.sampled_from(["NewImage", "OldImage", "Keys"]), JSON),
)
def test_no_record_whatever_it_holds_stops_the_shard(table: str, change: Any) -> None:
    relay = Relay()
    arn = f"arn:aws:dynamodb:us-east-1:000000000000:table/{table}/stream/x"
    record = {"eventSourceARN": arn, "dynamodb": change | {"SequenceNumber": "1"}}
    assert relay.handle([record]) == []
    assert not relay.sent().keys() - {"DeliveryFailures"}


# --- on the wire ---------------------------------------------------------------------------

URL = "http://localhost/000000000000/"


def _taken(sent: Sent) -> Any:
    """As SQS and EventBridge answer when they take everything."""
    entries = sent.body["Entries"]
    if sent.operation == "PutEvents":
        return ok({"FailedEntryCount": 0, "Entries": [{"EventId": "e"} for _ in entries]})(sent)
    return ok({"Successful": [{"Id": entry["Id"]} for entry in entries], "Failed": []})(sent)


def _on_the_wire(records: list[Any], wire: Wire, answer: Answer) -> list[str]:
    wire.answer = answer
    sqs, clock = clients.sqs(), FakeClock()
    return _handle(
        records,
        {
            Destination.TX_QUEUE: SqsQueue(sqs, url=f"{URL}TxQueue.fifo", clock=clock),
            Destination.FAILED_TX_QUEUE: SqsQueue(sqs, url=f"{URL}FailedTxQueue.fifo", clock=clock),
        },
        EventBridgeBus(clients.events(), name="wakala", clock=clock),
        SqsQueue(sqs, url=f"{URL}DeliveryFailures", clock=clock),
    )


def test_25_records_are_three_calls_of_ten_ten_and_five(wire: Wire) -> None:
    assert _on_the_wire(_inserted(25) + _settled(25), wire, _taken) == []
    sizes = [(sent.operation, len(sent.body["Entries"])) for sent in wire.sent]
    assert sizes == [
        *(("SendMessageBatch", size) for size in (10, 10, 5)),
        *(("PutEvents", size) for size in (10, 10, 5)),
    ]


def test_a_batch_that_sends_nothing_makes_no_call(wire: Wire) -> None:
    assert _on_the_wire(_records("purged.json"), wire, _taken) == []
    assert wire.sent == []


def test_an_entry_that_keeps_failing_under_200_is_where_the_stream_starts_again(
    wire: Wire,
) -> None:
    def all_but_one(sent: Sent) -> Any:
        entries = sent.body["Entries"]
        if sent.operation == "PutEvents":
            answers = [
                {"ErrorCode": "InternalException"} if "k-17" in e["Detail"] else {"EventId": "e"}
                for e in entries
            ]
            return ok({"FailedEntryCount": 1, "Entries": answers})(sent)
        return _taken(sent)

    records = _settled(25)
    assert _on_the_wire(records, wire, all_but_one) == [_sequence(records[17])]


def test_a_queue_that_is_away_fails_the_batch_from_its_first_message_on(wire: Wire) -> None:
    def away(sent: Sent) -> Any:
        if "TxQueue" in str(sent.body.get("QueueUrl")):
            return error("ServiceUnavailable", status=503)(sent)
        return _taken(sent)

    records = _settled(2) + _inserted(3)
    assert _on_the_wire(records, wire, away) == [_sequence(records[2])]


def test_p12_no_phone_and_no_key_is_logged_whatever_happens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay = Relay()
    relay.tx_queue.refuses = lambda _: True
    names = ("accepted", "settled", "swept", "entries", "purged", "unreadable")
    relay.handle([record for name in names for record in _records(f"{name}.json")])
    lines = "\n".join(map(logger.registered_formatter.format, caplog.records))
    assert "unreadable stream record" in lines
    assert "stream stopped" in lines
    for secret in ("2547", "2026-11-02.00", "125000", "mpesa", "AG-001", "QK71"):
        assert secret not in lines
