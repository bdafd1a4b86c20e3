"""The simulator's queues, where the contract suites do not reach."""

from typing import Any

import pytest

from tests.simulation.cloud.errors import AwsError, Unsupported
from tests.simulation.cloud.queues import Queue
from tests.simulation.cloud.sqs import Sqs

START_MS = 1_760_000_000_000
MINUTE_MS = 60_000


class Desk:
    """A FIFO queue and a standard one with their dead-letter queues, at a held clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.service = Sqs(lambda: self.now_ms)
        fifo = {"FifoQueue": "true", "DeduplicationScope": "messageGroup"}
        self.fifo = self.service.create_queue("Q.fifo", fifo | {"VisibilityTimeout": "60"})
        self.fifo_dead = self.service.create_queue("D.fifo", fifo)
        self.standard = self.service.create_queue("Q", {"VisibilityTimeout": "60"})
        self.standard_dead = self.service.create_queue("D", {})
        self.fifo.redrive = (self.fifo_dead.arn, 2)
        self.standard.redrive = (self.standard_dead.arn, 2)

    def send(self, body: str, group: str = "G", dedup_id: str | None = None) -> str:
        """To the FIFO queue; the message's id."""
        return self.fifo.send(body, group=group, dedup_id=dedup_id or body).message_id

    def received(self, queue: Queue | None = None, count: int = 10) -> list[str]:
        """Bodies, in the order in which they come."""
        return [each.body for each in (queue or self.fifo).receive(count)]

    def call(self, operation: str, queue: Queue, **members: Any) -> Any:
        """One call on a queue."""
        return self.service.call(operation, {"QueueUrl": queue.url, **members})


@pytest.fixture
def desk() -> Desk:
    """Empty queues."""
    return Desk()


# --- the deduplication window ---------------------------------------------------------------------


@pytest.mark.parametrize(("later_s", "arrive"), [(299, 1), (300, 2), (301, 2)])
def test_a_dedup_id_is_known_for_five_minutes(desk: Desk, later_s: int, arrive: int) -> None:
    first = desk.send("a", dedup_id="d")
    desk.now_ms += later_s * 1000
    second = desk.send("b", dedup_id="d")

    assert len(desk.fifo.messages) == arrive
    assert (first == second) == (arrive == 1)


def test_a_dedup_id_is_known_after_its_message_is_deleted(desk: Desk) -> None:
    desk.send("a", dedup_id="d")
    [message] = desk.fifo.receive(1)
    assert desk.fifo.delete(message.handle or "") is None
    desk.send("a", dedup_id="d")
    assert desk.fifo.messages == []


def test_a_dedup_id_counts_within_its_group(desk: Desk) -> None:
    desk.send("a", group="G", dedup_id="d")
    desk.send("a", group="H", dedup_id="d")
    assert len(desk.fifo.messages) == 2


# --- groups ---------------------------------------------------------------------------------------


def test_a_group_comes_in_order_and_is_locked_while_one_of_it_is_in_flight(desk: Desk) -> None:
    for body in ("a", "b", "c"):
        desk.send(body)
    desk.send("x", group="H")

    assert desk.received(count=2) == ["a", "b"]
    assert desk.received() == ["x"]
    assert desk.received() == []
    desk.now_ms += MINUTE_MS
    assert desk.received() == ["a", "b", "c", "x"]


def test_a_group_is_free_when_all_of_it_is_deleted(desk: Desk) -> None:
    for body in ("a", "b", "c"):
        desk.send(body)
    first, second = desk.fifo.receive(2)
    desk.fifo.delete(first.handle or "")
    assert desk.received() == []
    desk.fifo.delete(second.handle or "")
    assert desk.received() == ["c"]


def test_a_later_message_does_not_overtake_one_that_rests(desk: Desk) -> None:
    for body in ("a", "b"):
        desk.send(body)
    first, second = desk.fifo.receive(2)
    assert desk.fifo.change_visibility(first.handle or "", 30) is None
    assert desk.fifo.change_visibility(second.handle or "", 0) is None

    assert desk.received() == []
    desk.now_ms += 30_000
    assert desk.received() == ["a", "b"]


def test_groups_may_come_in_any_order_but_not_their_messages(desk: Desk) -> None:
    desk.service.shuffle = lambda lanes: lanes.reverse()
    for body, group in (("a", "G"), ("x", "H"), ("b", "G"), ("y", "H")):
        desk.send(body, group=group)
    assert desk.received() == ["x", "y", "a", "b"]


# --- receipts, visibility and redrive -------------------------------------------------------------


def test_a_message_comes_again_when_its_time_is_over_and_is_counted(desk: Desk) -> None:
    desk.standard.send("a")
    [message] = desk.standard.receive(1)
    first = message.handle
    desk.now_ms += 59_999
    assert desk.received(desk.standard) == []
    desk.now_ms += 1
    [message] = desk.standard.receive(1)

    assert message.handle != first
    assert message.system_attributes()["ApproximateReceiveCount"] == "2"
    assert message.system_attributes()["ApproximateFirstReceiveTimestamp"] == str(START_MS)
    assert message.system_attributes()["SentTimestamp"] == str(START_MS)


def test_what_was_received_too_often_moves_with_its_group_and_a_dedup_id_of_its_own(
    desk: Desk,
) -> None:
    sent = desk.send("a", dedup_id="d")
    desk.send("b")
    for _ in range(2):
        assert desk.received(count=1) == ["a"]
        desk.now_ms += MINUTE_MS

    assert desk.received() == ["b"]
    [message] = desk.fifo_dead.receive(10)
    assert (message.message_id, message.body, message.group) == (sent, "a", "G")
    assert message.dedup_id == sent
    assert message.system_attributes()["DeadLetterQueueSourceArn"] == desk.fifo.arn
    assert message.sent_ms == desk.now_ms


def test_a_standard_message_keeps_its_age_when_it_moves(desk: Desk) -> None:
    desk.standard.send("a")
    for _ in range(3):
        desk.received(desk.standard)
        desk.now_ms += MINUTE_MS
    [message] = desk.standard_dead.receive(10)
    assert message.sent_ms == START_MS
    assert message.receives == 3


def test_a_fifo_message_is_not_deleted_with_a_receipt_whose_time_is_over(desk: Desk) -> None:
    desk.send("a")
    [message] = desk.fifo.receive(1)
    late = message.handle or ""
    desk.now_ms += MINUTE_MS
    assert desk.fifo.delete(late) is not None
    desk.fifo.receive(1)
    assert desk.fifo.delete(late) is not None

    answer = desk.call(
        "DeleteMessageBatch", desk.fifo, Entries=[{"Id": "1", "ReceiptHandle": late}]
    )
    assert [each["Id"] for each in answer["Failed"]] == ["1"]
    with pytest.raises(AwsError, match="expired"):
        desk.call("DeleteMessage", desk.fifo, ReceiptHandle=late)
    assert len(desk.fifo.messages) == 1


def test_a_standard_message_is_deleted_late_unless_somebody_else_has_it(desk: Desk) -> None:
    desk.standard.send("a")
    [message] = desk.standard.receive(1)
    late = message.handle or ""
    desk.now_ms += MINUTE_MS
    desk.standard.receive(1)
    assert desk.standard.delete(late) is None
    assert len(desk.standard.messages) == 1

    desk.now_ms += MINUTE_MS
    assert desk.standard.delete(message.handle or "") is None
    assert desk.standard.messages == []
    assert desk.standard.delete(message.handle or "") is None


def test_visibility_changes_only_in_flight_and_within_twelve_hours(desk: Desk) -> None:
    desk.send("a")
    [message] = desk.fifo.receive(1)
    handle = message.handle or ""
    hour_s = 3600

    def change(timeout_s: int) -> list[str]:
        entry = {"Id": "1", "ReceiptHandle": handle, "VisibilityTimeout": timeout_s}
        answer = desk.call("ChangeMessageVisibilityBatch", desk.fifo, Entries=[entry])
        return [each["Code"] for each in answer.get("Failed", [])]

    assert change(43_201) == ["InvalidParameterValue"]
    assert change(12 * hour_s) == []
    desk.now_ms += hour_s * 1000
    assert change(12 * hour_s) == ["InvalidParameterValue"]
    assert change(0) == []
    assert change(5) == ["AWS.SimpleQueueService.MessageNotInflight"]
    desk.fifo.receive(1)
    assert change(5) == ["ReceiptHandleIsInvalid"]


def test_what_is_older_than_the_retention_is_gone(desk: Desk) -> None:
    desk.standard.send("a")
    desk.now_ms += 345_600_000
    assert desk.received(desk.standard) == []
    assert [each.body for each in desk.standard.expired] == ["a"]


def test_attributes_count_what_is_visible_in_flight_and_delayed(desk: Desk) -> None:
    for body in ("a", "b", "c"):
        desk.standard.send(body)
    desk.call("SendMessage", desk.standard, MessageBody="d", DelaySeconds=10)
    desk.received(desk.standard, count=2)

    said = desk.call("GetQueueAttributes", desk.standard, AttributeNames=["All"])["Attributes"]
    names = ("", "NotVisible", "Delayed")
    assert [said[f"ApproximateNumberOfMessages{name}"] for name in names] == ["1", "2", "1"]
    assert desk.standard.next_visible_ms() == START_MS + 10_000


def test_a_record_is_what_lambda_hands_over(desk: Desk) -> None:
    desk.send("a")
    [message] = desk.fifo.receive(1)
    record = desk.fifo.record(message)
    assert record["eventSourceARN"] == desk.fifo.arn
    assert (record["body"], record["messageId"]) == ("a", message.message_id)
    assert record["receiptHandle"] == message.handle
    assert record["attributes"]["MessageGroupId"] == "G"
    assert record["attributes"]["ApproximateReceiveCount"] == "1"


# --- what is refused ------------------------------------------------------------------------------


def _entry(number: int, body: str, **members: Any) -> dict[str, Any]:
    ids = {"MessageGroupId": "G", "MessageDeduplicationId": f"d{number}"}
    return {"Id": str(number), "MessageBody": body, **ids, **members}


def test_entries_fail_one_by_one_and_the_others_are_sent(desk: Desk) -> None:
    answer = desk.call(
        "SendMessageBatch",
        desk.fifo,
        Entries=[
            _entry(1, "a"),
            _entry(2, "\x00"),
            _entry(3, "lone \ud800"),
            _entry(4, "d", MessageGroupId="with space"),
            _entry(5, "e", DelaySeconds=1),
            {"Id": "6", "MessageBody": "f"},
            _entry(7, "g"),
        ],
    )
    assert [each["Id"] for each in answer["Successful"]] == ["1", "7"]
    assert {each["Id"]: each["Code"] for each in answer["Failed"]} == {
        "2": "InvalidMessageContents",
        "3": "InvalidMessageContents",
        "4": "InvalidParameterValue",
        "5": "InvalidParameterValue",
        "6": "MissingParameter",
    }
    assert desk.received() == ["a", "g"]


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "EmptyBatchRequest"),
        ([_entry(n, "a") for n in range(11)], "TooManyEntriesInBatchRequest"),
        ([_entry(1, "a"), _entry(1, "b")], "BatchEntryIdsNotDistinct"),
        ([_entry(1, "a", Id="a b")], "InvalidBatchEntryId"),
        ([_entry(n, "x" * 600_000) for n in range(2)], "BatchRequestTooLong"),
    ],
)
def test_a_batch_is_refused_whole(desk: Desk, entries: Any, code: str) -> None:
    with pytest.raises(AwsError, match=code):
        desk.call("SendMessageBatch", desk.fifo, Entries=entries)
    assert desk.fifo.messages == []


def test_a_queue_that_is_not_there_is_an_error_and_an_unknown_wish_is_said_aloud(
    desk: Desk,
) -> None:
    with pytest.raises(AwsError, match="NonExistentQueue"):
        desk.service.call("ReceiveMessage", {"QueueUrl": "https://sqs/1/gone"})
    with pytest.raises(Unsupported):
        desk.call("PurgeQueue", desk.fifo)
    with pytest.raises(Unsupported):
        desk.call("ReceiveMessage", desk.fifo, ReceiveRequestAttemptId="a")
