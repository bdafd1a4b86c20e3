"""Queues and bus under faults: ten entries a call, each entry with a fate of its own."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.faults import LASTING, PASSING
from tests.fakes.memory import FakeClock
from tests.fakes.wire import Answer, Sent, Wire, error, ok, repeatedly
from wallet_ledger.aws import clients
from wallet_ledger.aws.messaging import ENTRIES_MAX, PAUSE_S, TRIES, EventBridgeBus, SqsQueue
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import OutgoingEvent, OutgoingMessage

CALL_BYTES = 262_144
"""What one call may carry by the strictest limit that AWS has had for either service."""

in_hypothesis = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)


@cache
def queue() -> SqsQueue:
    """The adapter."""
    return SqsQueue(
        clients.sqs(), url="https://sqs.us-east-1.amazonaws.com/1/TxQueue.fifo", clock=FakeClock()
    )


@cache
def bus() -> EventBridgeBus:
    """The adapter."""
    return EventBridgeBus(clients.events(), name="wakala", clock=FakeClock())


def send(bodies: Iterable[str]) -> frozenset[int]:
    """To the queue."""
    return queue().send([OutgoingMessage(body, "254712345678", body[:9]) for body in bodies])


def put(details: Iterable[str]) -> frozenset[int]:
    """On the bus."""
    return bus().put([OutgoingEvent("TransactionSynced", detail) for detail in details])


type Send = Callable[[Iterable[str]], frozenset[int]]

both = pytest.mark.parametrize("send_all", [send, put], ids=["queue", "bus"])


def carried(sent: Sent) -> list[str]:
    """The bodies or details of one call."""
    return [entry.get("MessageBody") or entry["Detail"] for entry in sent.body["Entries"]]


def failing(fails: Callable[[str], bool]) -> Answer:
    """A service that takes every entry but those that fail, and says 200 either way."""

    def answer(sent: Sent) -> AWSResponse:
        entries = sent.body["Entries"]
        bad = [fails(body) for body in carried(sent)]
        if sent.operation == "PutEvents":
            told = [{"ErrorCode": "InternalFailure"} if b else {"EventId": "e"} for b in bad]
            return ok({"FailedEntryCount": sum(bad), "Entries": told})(sent)
        ids = [entry["Id"] for entry in entries]
        failed = [
            {"Id": i, "Code": "InternalError", "SenderFault": False}
            for i, b in zip(ids, bad, strict=True)
            if b
        ]
        taken = [{"Id": i} for i, b in zip(ids, bad, strict=True) if not b]
        return ok({"Successful": taken, "Failed": failed})(sent)

    return answer


@both
@given(sizes=st.lists(st.integers(1, 230_000), max_size=30))
@in_hypothesis
def test_calls_keep_the_order_and_stay_within_the_limits(
    wire: Wire, send_all: Send, sizes: list[int]
) -> None:
    wire.sent.clear()
    wire.answer = failing(lambda _: False)
    bodies = [f"{index:06d}".ljust(size, "x") for index, size in enumerate(sizes)]

    assert send_all(bodies) == frozenset()

    calls = [carried(sent) for sent in wire.sent]
    assert [body for call in calls for body in call] == bodies
    assert all(1 <= len(call) <= 10 for call in calls)
    assert all(sum(map(len, call)) <= CALL_BYTES for call in calls)


@both
@given(failures=st.lists(st.integers(0, TRIES + 1), max_size=25))
@in_hypothesis
def test_an_entry_is_tried_again_on_its_own_and_named_where_it_never_goes(
    wire: Wire, send_all: Send, failures: list[int]
) -> None:
    """`failures`: how often each entry fails before it is taken."""
    left = Counter({f"{index:06d}": times for index, times in enumerate(failures)})
    taken: list[str] = []

    def fails(body: str) -> bool:
        left[body] -= 1
        if left[body] < 0:
            taken.append(body)
        return left[body] >= 0

    wire.answer = failing(fails)
    bodies = [f"{index:06d}" for index in range(len(failures))]

    refused = send_all(bodies)

    never = {index for index, times in enumerate(failures) if times >= TRIES}
    first = min(never, default=len(failures)) // ENTRIES_MAX  # nothing after this call is sent
    behind = set(range((first + 1) * ENTRIES_MAX, len(failures)))
    assert refused == {index for index in never if index // ENTRIES_MAX == first} | behind
    assert sorted(taken) == [body for index, body in enumerate(bodies) if index not in refused]


@both
def test_entries_that_fail_are_tried_again_in_their_order(wire: Wire, send_all: Send) -> None:
    waiting = ["8", "1"]
    wire.answer = failing(lambda body: body in waiting and len(wire.sent) == 1)

    assert send_all("0123456789") == frozenset()

    assert [carried(sent) for sent in wire.sent] == [list("0123456789"), ["1", "8"]]


@both
def test_one_that_no_call_can_carry_goes_alone_and_no_call_is_empty(
    wire: Wire, send_all: Send
) -> None:
    wire.answer = failing(lambda _: False)

    assert send_all(["x" * 250_000, "y"]) == frozenset()

    assert [len(carried(sent)) for sent in wire.sent] == [1, 1]


def test_a_bus_that_does_not_tell_of_each_event_is_not_believed(wire: Wire) -> None:
    """Whoever sent them sends them again: an event that nobody tells of may be lost."""
    wire.answer = ok({"FailedEntryCount": 0, "Entries": [{"EventId": "e"}]})

    with pytest.raises(ValueError, match="shorter"):
        put(["a", "b"])


@both
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_a_call_that_fails_for_a_passing_cause_is_tried_again(
    wire: Wire, send_all: Send, fault: Answer
) -> None:
    wire.answers(*repeatedly(fault), failing(lambda _: False))

    assert send_all(["a", "b"]) == frozenset()


@both
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_p10_nothing_overtakes_what_a_service_never_takes(
    wire: Wire, send_all: Send, fault: Answer
) -> None:
    healthy = failing(lambda _: False)
    wire.answer = lambda sent: (healthy if "bad" not in carried(sent) else fault)(sent)

    assert send_all([*"abcdefghij", "bad", "behind", *"klmnopqrs"]) == set(range(10, 21))
    assert [carried(sent)[0] for sent in wire.sent[:1]] == ["a"]
    assert all("behind" in carried(sent) for sent in wire.sent[1:])


def test_the_pauses_between_tries_are_drawn_and_grow(wire: Wire) -> None:
    clock = FakeClock()
    patient = SqsQueue(clients.sqs(), url="https://sqs.test/1/TxQueue.fifo", clock=clock)
    wire.answer = failing(lambda _: True)

    patient.send([OutgoingMessage("a", "254712345678", "a")])

    assert len(clock.pauses) == TRIES - 1
    assert all(0 <= p <= PAUSE_S * 2**n for n, p in enumerate(clock.pauses, start=1))


@both
@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING.keys())
def test_a_call_that_can_never_succeed_is_raised(wire: Wire, send_all: Send, fault: Answer) -> None:
    wire.answer = fault

    with pytest.raises(ClientError):
        send_all(["a"])


def test_a_message_carries_its_group_and_dedup_id_only_on_a_fifo_queue(wire: Wire) -> None:
    wire.answer = failing(lambda _: False)

    queue().send([OutgoingMessage("a", "254712345678", "d"), OutgoingMessage("b")])

    [fifo, standard] = wire.sent[0].body["Entries"]
    assert (fifo["MessageGroupId"], fifo["MessageDeduplicationId"]) == ("254712345678", "d")
    assert standard.keys() == {"Id", "MessageBody"}


def test_an_event_names_its_bus_its_source_and_its_type(wire: Wire) -> None:
    wire.answer = failing(lambda _: False)

    put([json.dumps({"a": 1})])

    assert wire.sent[0].body["Entries"] == [
        {
            "EventBusName": "wakala",
            "Source": "wakala",
            "DetailType": "TransactionSynced",
            "Detail": '{"a": 1}',
        }
    ]


def test_the_backlog_counts_what_is_visible_in_flight_and_delayed(wire: Wire) -> None:
    names = ["", "NotVisible", "Delayed"]
    counts = {f"ApproximateNumberOfMessages{name}": str(10**i) for i, name in enumerate(names)}
    wire.answers(ok({"Attributes": counts}))

    assert queue().depth() == 111

    assert sorted(wire.sent[0].body["AttributeNames"]) == sorted(counts)


def test_giving_back_names_each_message_and_how_long_it_rests(wire: Wire) -> None:
    wire.answers(ok({"Successful": [], "Failed": [{"Id": "0", "Code": "ReceiptHandleIsInvalid"}]}))

    queue().give_back([("first", 32), ("second", 4)])

    assert wire.operations() == ["ChangeMessageVisibilityBatch"]
    assert [(e["ReceiptHandle"], e["VisibilityTimeout"]) for e in wire.sent[0].body["Entries"]] == [
        ("first", 32),
        ("second", 4),
    ]


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
@pytest.mark.parametrize(
    "call",
    [lambda: queue().depth(), lambda: queue().give_back([("r", 2)])],
    ids=["depth", "give_back"],
)
def test_a_queue_that_does_not_answer_now_is_unavailable(
    wire: Wire, call: Callable[[], Any], fault: Answer
) -> None:
    wire.answers(*repeatedly(fault))

    with pytest.raises(Unavailable):
        call()


def test_an_error_of_the_caller_is_no_passing_one(wire: Wire) -> None:
    wire.answers(error("QueueDoesNotExist"))

    with pytest.raises(ClientError):
        queue().depth()
