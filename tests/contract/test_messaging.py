"""`Queue`, `Backlog` and `EventBus`: what was not taken is named, and nothing else is lost."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.contract.channels import Bus, Channel
from tests.engine import Aws
from tests.fakes.memory import FakeClock
from wallet_ledger.aws.messaging import SqsQueue
from wallet_ledger.ports import OutgoingEvent, OutgoingMessage


def message(number: int, group: str = "254712345678", body: str | None = None) -> OutgoingMessage:
    """A message for a FIFO queue."""
    return OutgoingMessage(body or f'{{"number": {number}}}', group, f"dedup-{number}")


def event(number: int) -> OutgoingEvent:
    """An event."""
    return OutgoingEvent("TransactionSynced", f'{{"number": {number}}}')


def test_more_messages_than_fit_in_a_call_arrive_in_their_order(fifo: Channel) -> None:
    messages = [message(number) for number in range(23)]

    assert fifo.port().send(messages) == frozenset()

    assert fifo.arrived() == messages


def test_a_message_that_is_not_taken_is_named_and_what_is_not_named_arrives(fifo: Channel) -> None:
    messages = [message(number) for number in range(13)]
    for spoilt in (2, 12):
        messages[spoilt] = message(spoilt, body="not for a queue: \x00")

    left = fifo.port().send(messages)

    assert left >= {2, 12}
    assert fifo.arrived() == [each for index, each in enumerate(messages) if index not in left]
    assert left <= {2, *range(10, 13)}  # an adapter may stop behind the call that left something


def test_a_repetition_is_taken_and_not_delivered(fifo: Channel) -> None:
    assert fifo.port().send([message(1), message(1)]) == frozenset()
    assert fifo.port().send([message(1, body="later"), message(2)]) == frozenset()

    assert fifo.arrived() == [message(1), message(2)]


def test_the_same_dedup_id_of_another_phone_is_no_repetition(fifo: Channel) -> None:
    messages = [message(1), message(1, group="254700000001")]

    assert fifo.port().send(messages) == frozenset()

    assert sorted(fifo.arrived(), key=str) == sorted(messages, key=str)


def test_big_messages_all_arrive(fifo: Channel) -> None:
    messages = [message(number, body=f"{number}" * 100_000) for number in range(1, 6)]

    assert fifo.port().send(messages) == frozenset()

    assert fifo.arrived() == messages


def test_a_standard_queue_takes_a_message_as_often_as_it_is_sent(standard: Channel) -> None:
    same = OutgoingMessage("{}")

    assert standard.port().send([same, same, OutgoingMessage("\x00")]) == {2}

    assert standard.arrived() == [same, same]


def test_nothing_to_send_is_nothing_to_do(fifo: Channel, bus: Bus) -> None:
    assert fifo.port().send([]) == frozenset()
    assert bus.port().put([]) == frozenset()

    assert fifo.backlog().depth() == 0


def test_the_backlog_is_what_waits(fifo: Channel) -> None:
    fifo.port().send([message(number) for number in range(12)])
    assert fifo.backlog().depth() == 12

    fifo.arrived()
    assert fifo.backlog().depth() == 0


def test_more_events_than_fit_in_a_call_arrive_in_their_order(bus: Bus) -> None:
    events = [event(number) for number in range(23)]

    assert bus.port().put(events) == frozenset()

    assert bus.heard() == events


@pytest.mark.parametrize("refused", [{0}, {3, 11}, set(range(13))])
def test_an_event_that_is_not_taken_is_named_and_what_is_not_named_arrives(
    bus: Bus, refused: set[int]
) -> None:
    events = [event(number) for number in range(13)]
    bus.refuse(lambda each: each in [events[index] for index in refused])

    left = bus.port().put(events)

    assert left >= refused
    assert bus.heard() == [each for index, each in enumerate(events) if index not in left]
    assert left <= refused | set(range(10, 13))


def test_a_message_that_is_given_back_comes_again_when_it_has_rested(aws: Aws) -> None:
    queue = SqsQueue(aws.sqs, url=(url := aws.queue("TxQueue")), clock=FakeClock())
    queue.send([message(1), message(2, group="254700000001")])
    taken = [each["ReceiptHandle"] for each in receive(aws, url)]

    queue.give_back([(taken[0], 0), (taken[1], 600)])

    [again] = receive(aws, url)
    assert again["Body"] == message(1).body
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    assert queue.depth() == 2


def receive(aws: Aws, url: str) -> Sequence[Any]:
    """Take what is visible, and keep it in flight."""
    answer = aws.sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    )
    return answer.get("Messages", [])
