"""SQS: FIFO and standard queues, as AWS's are rather than an emulator's.

A call that waits for messages does not wait. Which of several groups, or of a standard queue's
messages, comes first is `shuffle`'s to say; within a group the order is the one they were sent in.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.cloud.errors import AwsError, Json, Unsupported
from tests.simulation.cloud.tables import ACCOUNT_ID, REGION

DEDUP_MS = 300_000
"""How long a dedup id is known, also of a message that was received and deleted."""

BATCH_MAX = 10
CALL_BYTES_MAX = 1024 * 1024
VISIBILITY_S_MAX = 43_200
"""Twelve hours in all, from when a message was received."""

HANDLE_EXPIRED = "The receipt handle has expired"
_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_GROUP = re.compile(r"[!-~]{1,128}")
_UNSENDABLE = re.compile(r"[^\t\n\r\u0020-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")

_MEMBERS: dict[str, set[str]] = {
    "CreateQueue": {"QueueName", "Attributes"},
    "GetQueueUrl": {"QueueName"},
    "GetQueueAttributes": {"QueueUrl", "AttributeNames"},
    "SendMessage": {"QueueUrl", "MessageBody", "MessageGroupId", "MessageDeduplicationId"}
    | {"DelaySeconds", "MessageAttributes"},
    "SendMessageBatch": {"QueueUrl", "Entries"},
    "ReceiveMessage": {"QueueUrl", "MaxNumberOfMessages", "VisibilityTimeout", "WaitTimeSeconds"}
    | {"AttributeNames", "MessageSystemAttributeNames", "MessageAttributeNames"},
    "DeleteMessage": {"QueueUrl", "ReceiptHandle"},
    "DeleteMessageBatch": {"QueueUrl", "Entries"},
    "ChangeMessageVisibility": {"QueueUrl", "ReceiptHandle", "VisibilityTimeout"},
    "ChangeMessageVisibilityBatch": {"QueueUrl", "Entries"},
}


@dataclass(slots=True)
class Message:
    """One message. Times are milliseconds since the epoch.

    `handle` is that of its latest receipt; it is in flight while it has one and is not visible.
    """

    message_id: str
    body: str
    group: str | None
    dedup_id: str | None
    sequence: int
    sent_ms: int
    visible_at_ms: int
    attributes: Json = field(default_factory=dict)
    receives: int = 0
    first_received_ms: int = 0
    received_ms: int = 0
    handle: str | None = None
    source_arn: str | None = None

    @property
    def md5(self) -> str:
        """Of its body, as the service tells it."""
        return hashlib.md5(self.body.encode(), usedforsecurity=False).hexdigest()

    def system_attributes(self) -> dict[str, str]:
        """What SQS says of it."""
        said = {
            "ApproximateReceiveCount": str(self.receives),
            "SentTimestamp": str(self.sent_ms),
            "SenderId": "AIDAWAKALA",
            "ApproximateFirstReceiveTimestamp": str(self.first_received_ms),
        }
        if self.group is not None:
            said["MessageGroupId"] = self.group
        if self.dedup_id is not None:
            said["MessageDeduplicationId"] = self.dedup_id
            said["SequenceNumber"] = f"{self.sequence:020d}"
        if self.source_arn is not None:
            said["DeadLetterQueueSourceArn"] = self.source_arn
        return said


@dataclass(slots=True)
class Queue:
    """One queue. `messages` holds all that are in it, in the order of their arrival.

    `expired` are those that its retention let go of.
    """

    name: str
    is_fifo: bool
    visibility_s: int
    retention_s: int
    dedup_by_group: bool
    dedup_by_content: bool
    service: "Sqs"
    redrive: tuple[str, int] | None = None
    messages: list[Message] = field(default_factory=list)
    expired: list[Message] = field(default_factory=list)
    _sent: dict[tuple[str | None, str], tuple[int, Message]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Its address."""
        return f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT_ID}/{self.name}"

    @property
    def arn(self) -> str:
        """Its name in full."""
        return f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{self.name}"

    def send(
        self,
        body: str,
        *,
        group: str | None = None,
        dedup_id: str | None = None,
        delay_s: int = 0,
        attributes: Json | None = None,
    ) -> Message:
        """The message; where it repeats one of the last five minutes, that one, and no other."""
        now_ms = self.service.now_ms()
        if self.is_fifo and dedup_id is None:
            dedup_id = hashlib.sha256(body.encode()).hexdigest()
        if self.is_fifo:
            known = self._sent.get(self._identity(group, dedup_id))
            if known is not None and now_ms - known[0] < DEDUP_MS:
                return known[1]
        number = next(self.service.numbers)
        message = Message(
            message_id=f"{number:08x}-0000-4000-8000-{number:012x}",
            body=body,
            group=group,
            dedup_id=dedup_id,
            sequence=number,
            sent_ms=now_ms,
            visible_at_ms=now_ms + delay_s * 1000,
            attributes=attributes or {},
        )
        if self.is_fifo:
            self._sent[self._identity(group, dedup_id)] = (now_ms, message)
        self.messages.append(message)
        return message

    def receive(self, count: int, visibility_s: int | None = None) -> list[Message]:
        """At most so many messages, in flight from now on; what was received too often moves."""
        now_ms = self.service.now_ms()
        self.let_go()
        timeout_s = self.visibility_s if visibility_s is None else visibility_s
        taken: list[Message] = []
        for message in self._ready():
            if len(taken) == count:
                break
            if self.redrive is not None and message.receives >= self.redrive[1]:
                self._move_to(message, self.redrive[0])
                continue
            message.receives += 1
            message.first_received_ms = message.first_received_ms or now_ms
            message.received_ms = now_ms
            message.handle = f"{message.message_id}#{message.receives}"
            message.visible_at_ms = now_ms + timeout_s * 1000
            taken.append(message)
        return taken

    def delete(self, handle: str) -> str | None:
        """Delete what was received with this handle; else why not, where SQS says so.

        Of a FIFO queue only while it is in flight under this very handle.
        """
        message = self._by_handle(handle)
        if message is None:
            return None  # it is gone already: that is no error
        current = message.handle == handle
        if self.is_fifo and not (current and self.is_in_flight(message)):
            return HANDLE_EXPIRED
        if current:
            self.messages.remove(message)
        return None

    def change_visibility(self, handle: str, timeout_s: int) -> tuple[str, str] | None:
        """Let it come again after so many seconds; else the code and the text of a refusal."""
        now_ms = self.service.now_ms()
        message = self._by_handle(handle)
        if message is None:
            return "InvalidParameterValue", "Message does not exist or is not available"
        if message.handle != handle:
            return "ReceiptHandleIsInvalid", HANDLE_EXPIRED
        if not self.is_in_flight(message):
            return "AWS.SimpleQueueService.MessageNotInflight", "The message is not in flight"
        if now_ms + timeout_s * 1000 > message.received_ms + VISIBILITY_S_MAX * 1000:
            return "InvalidParameterValue", "Total VisibilityTimeout is beyond the limit"
        message.visible_at_ms = now_ms + timeout_s * 1000
        return None

    def is_in_flight(self, message: Message) -> bool:
        """Received, and not visible again."""
        return message.handle is not None and message.visible_at_ms > self.service.now_ms()

    def counts(self) -> tuple[int, int, int]:
        """Messages that are visible, in flight, delayed."""
        now_ms = self.service.now_ms()
        hidden = [each for each in self.messages if each.visible_at_ms > now_ms]
        in_flight = sum(each.handle is not None for each in hidden)
        return len(self.messages) - len(hidden), in_flight, len(hidden) - in_flight

    def next_visible_ms(self) -> int | None:
        """When the next message that is hidden now comes again, if nobody does anything."""
        now_ms = self.service.now_ms()
        times = [m.visible_at_ms for m in self.messages if m.visible_at_ms > now_ms]
        return min(times, default=None)

    def let_go(self) -> None:
        """What is older than the retention is gone."""
        horizon_ms = self.service.now_ms() - self.retention_s * 1000
        if any(each.sent_ms <= horizon_ms for each in self.messages):
            self.expired += [each for each in self.messages if each.sent_ms <= horizon_ms]
            self.messages = [each for each in self.messages if each.sent_ms > horizon_ms]

    def record(self, message: Message) -> Json:
        """A message that was received, as Lambda hands it to a function."""
        return {
            "messageId": message.message_id,
            "receiptHandle": message.handle,
            "body": message.body,
            "attributes": message.system_attributes(),
            "messageAttributes": {
                name: {"stringValue": each.get("StringValue"), "dataType": each["DataType"]}
                for name, each in message.attributes.items()
            },
            "md5OfBody": message.md5,
            "eventSource": "aws:sqs",
            "eventSourceARN": self.arn,
            "awsRegion": REGION,
        }

    def _ready(self) -> list[Message]:
        """What may be received now, in the order in which it would be."""
        now_ms = self.service.now_ms()
        if not self.is_fifo:
            ready = [each for each in self.messages if each.visible_at_ms <= now_ms]
            self.service.shuffle(ready)
            return ready
        locked = {each.group for each in self.messages if each.visible_at_ms > now_ms}
        groups: dict[str | None, list[Message]] = {}
        for message in self.messages:
            if message.group not in locked:
                groups.setdefault(message.group, []).append(message)
        lanes = list(groups.values())
        self.service.shuffle(lanes)
        return [message for lane in lanes for message in lane]

    def _move_to(self, message: Message, arn: str) -> None:
        """To the dead-letter queue: the same message, whose dedup id is now its own id.

        Of a FIFO queue its time starts anew, of a standard queue it does not.
        """
        self.messages.remove(message)
        now_ms = self.service.now_ms()
        message.source_arn = self.arn
        message.handle = None
        message.visible_at_ms = now_ms
        if self.is_fifo:
            message.dedup_id = message.message_id
            message.sent_ms = now_ms
        self.service.by_arn(arn).messages.append(message)

    def _by_handle(self, handle: str) -> Message | None:
        message_id, _, receipt = handle.partition("#")
        if not receipt:
            raise AwsError("ReceiptHandleIsInvalid", "The input receipt handle is invalid")
        return next((each for each in self.messages if each.message_id == message_id), None)

    def _identity(self, group: str | None, dedup_id: str | None) -> tuple[str | None, str]:
        return (group if self.dedup_by_group else None), dedup_id or ""


class Sqs:
    """The service: its queues by name, and one `call`.

    `shuffle` may put a list of groups, or of a standard queue's messages, into another order.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.queues: dict[str, Queue] = {}
        self.now_ms = now_ms
        self.numbers = itertools.count(1)
        self.shuffle: Callable[[list[Any]], None] = lambda _: None
        self._operations: dict[str, Callable[[Json], Json]] = {
            "CreateQueue": lambda body: {
                "QueueUrl": self.create_queue(body["QueueName"], body.get("Attributes", {})).url
            },
            "GetQueueUrl": lambda body: {"QueueUrl": self._named(body["QueueName"]).url},
            "GetQueueAttributes": self._get_attributes,
            "SendMessage": self._send_one,
            "SendMessageBatch": self._send_batch,
            "ReceiveMessage": self._receive,
            "DeleteMessage": self._delete_one,
            "DeleteMessageBatch": self._delete_batch,
            "ChangeMessageVisibility": self._change_one,
            "ChangeMessageVisibilityBatch": self._change_batch,
        }

    def create_queue(self, name: str, attributes: Mapping[str, str]) -> Queue:
        """An empty queue. Attributes as the API names them; the redrive policy comes later."""
        known = {"FifoQueue", "VisibilityTimeout", "MessageRetentionPeriod", "DeduplicationScope"}
        known |= {"FifoThroughputLimit", "ContentBasedDeduplication", "SqsManagedSseEnabled"}
        if not known.issuperset(attributes):
            raise Unsupported(f"queue with {sorted(set(attributes) - known)}")
        is_fifo = str(attributes.get("FifoQueue", "false")).lower() == "true"
        if is_fifo != name.endswith(".fifo"):
            raise AwsError("InvalidParameterValue", "The name of a FIFO queue ends with .fifo")
        queue = Queue(
            name=name,
            is_fifo=is_fifo,
            visibility_s=int(attributes.get("VisibilityTimeout", 30)),
            retention_s=int(attributes.get("MessageRetentionPeriod", 345_600)),
            dedup_by_group=attributes.get("DeduplicationScope") == "messageGroup",
            dedup_by_content=str(attributes.get("ContentBasedDeduplication")).lower() == "true",
            service=self,
        )
        self.queues[name] = queue
        return queue

    def call(self, operation: str, body: Json) -> Json:
        """The JSON of the answer. Raises `AwsError`."""
        if operation not in self._operations:
            raise Unsupported(operation)
        if not _MEMBERS[operation].issuperset(body):
            raise Unsupported(f"{operation} with {sorted(set(body) - _MEMBERS[operation])}")
        return self._operations[operation](body)

    def by_arn(self, arn: str) -> Queue:
        """The queue of that name."""
        return self._named(arn.rsplit(":", 1)[-1])

    def by_url(self, url: str) -> Queue:
        """The queue of that address."""
        return self._named(url.rsplit("/", 1)[-1])

    def _named(self, name: str) -> Queue:
        if name not in self.queues:
            raise AwsError(
                "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist."
            )
        return self.queues[name]

    def _get_attributes(self, body: Json) -> Json:
        queue = self.by_url(body["QueueUrl"])
        queue.let_go()
        visible, in_flight, delayed = queue.counts()
        said = {
            "QueueArn": queue.arn,
            "ApproximateNumberOfMessages": str(visible),
            "ApproximateNumberOfMessagesNotVisible": str(in_flight),
            "ApproximateNumberOfMessagesDelayed": str(delayed),
            "VisibilityTimeout": str(queue.visibility_s),
            "MessageRetentionPeriod": str(queue.retention_s),
        }
        asked = body.get("AttributeNames", [])
        if not {"All", *said}.issuperset(asked):
            raise Unsupported(f"attributes {asked}")
        shown = {name: said[name] for name in said if "All" in asked or name in asked}
        return {"Attributes": shown} if shown else {}

    def _send_one(self, body: Json) -> Json:
        queue = self.by_url(body["QueueUrl"])
        if len(body["MessageBody"].encode()) > CALL_BYTES_MAX:
            raise AwsError("InvalidParameterValue", "One or more parameters are invalid.")
        refused = _unsendable(queue, body)
        if refused is not None:
            raise AwsError(*refused)
        return _sent(queue, body)

    def _send_batch(self, body: Json) -> Json:
        queue = self.by_url(body["QueueUrl"])
        entries = _entries(body)
        size = sum(len(entry["MessageBody"].encode("utf-8", "replace")) for entry in entries)
        if size > CALL_BYTES_MAX:
            raise AwsError(
                "AWS.SimpleQueueService.BatchRequestTooLong",
                "Batch requests cannot be longer than 1048576 bytes.",
            )
        successful: list[Json] = []
        failed: list[Json] = []
        for entry in entries:
            refused = _unsendable(queue, entry)
            if refused is None:
                successful.append({"Id": entry["Id"]} | _sent(queue, entry))
            else:
                failed.append(_failed(entry, *refused))
        return _batch(successful, failed)

    def _receive(self, body: Json) -> Json:
        queue = self.by_url(body["QueueUrl"])
        count = body.get("MaxNumberOfMessages", 1)
        if not 1 <= count <= BATCH_MAX:
            raise AwsError("InvalidParameterValue", "MaxNumberOfMessages is not between 1 and 10")
        asked = {*body.get("AttributeNames", ()), *body.get("MessageSystemAttributeNames", ())}
        messages = []
        for message in queue.receive(count, body.get("VisibilityTimeout")):
            shown: Json = {
                "MessageId": message.message_id,
                "ReceiptHandle": message.handle,
                "MD5OfBody": message.md5,
                "Body": message.body,
            }
            said = message.system_attributes()
            said = {name: said[name] for name in said if "All" in asked or name in asked}
            if said:
                shown["Attributes"] = said
            if message.attributes and "All" in body.get("MessageAttributeNames", ()):
                shown["MessageAttributes"] = message.attributes
            messages.append(shown)
        return {"Messages": messages} if messages else {}

    def _delete_one(self, body: Json) -> Json:
        refused = self.by_url(body["QueueUrl"]).delete(body["ReceiptHandle"])
        if refused is not None:
            raise AwsError("InvalidParameterValue", refused)
        return {}

    def _delete_batch(self, body: Json) -> Json:
        queue = self.by_url(body["QueueUrl"])

        def delete(entry: Json) -> tuple[str, str] | None:
            refused = queue.delete(entry["ReceiptHandle"])
            return None if refused is None else ("ReceiptHandleIsInvalid", refused)

        return _each(_entries(body), delete)

    def _change_one(self, body: Json) -> Json:
        refused = self._change(self.by_url(body["QueueUrl"]), body)
        if refused is not None:
            raise AwsError(*refused)
        return {}

    def _change_batch(self, body: Json) -> Json:
        queue = self.by_url(body["QueueUrl"])
        return _each(_entries(body), lambda entry: self._change(queue, entry))

    def _change(self, queue: Queue, entry: Json) -> tuple[str, str] | None:
        timeout_s = entry.get("VisibilityTimeout")
        if timeout_s is None or not 0 <= timeout_s <= VISIBILITY_S_MAX:
            return "InvalidParameterValue", "VisibilityTimeout is not between 0 and 43200"
        return queue.change_visibility(entry["ReceiptHandle"], timeout_s)


def _entries(body: Json) -> list[Json]:
    entries: list[Json] = body["Entries"]
    if not entries:
        raise AwsError("AWS.SimpleQueueService.EmptyBatchRequest", "There is no entry.")
    if len(entries) > BATCH_MAX:
        raise AwsError(
            "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
            "Maximum number of entries per request are 10.",
        )
    if len({entry["Id"] for entry in entries}) != len(entries):
        raise AwsError("AWS.SimpleQueueService.BatchEntryIdsNotDistinct", "An Id is repeated.")
    if not all(_ID.fullmatch(entry["Id"]) for entry in entries):
        raise AwsError("AWS.SimpleQueueService.InvalidBatchEntryId", "An Id is not allowed.")
    return entries


def _unsendable(queue: Queue, entry: Json) -> tuple[str, str] | None:
    """Why an entry is refused, as a code and a text; None where it is not."""
    known = {"Id", "MessageBody", "MessageGroupId", "MessageDeduplicationId", "DelaySeconds"}
    known |= {"MessageAttributes", "QueueUrl"}
    if not known.issuperset(entry):
        raise Unsupported(f"a message with {sorted(set(entry) - known)}")
    if not entry["MessageBody"]:
        return "MissingParameter", "The request must contain the parameter MessageBody."
    if _UNSENDABLE.search(entry["MessageBody"]):
        return "InvalidMessageContents", "Invalid binary character was found in the message body."
    group, dedup_id = entry.get("MessageGroupId"), entry.get("MessageDeduplicationId")
    if queue.is_fifo and group is None:
        return "MissingParameter", "The request must contain the parameter MessageGroupId."
    if queue.is_fifo and dedup_id is None and not queue.dedup_by_content:
        return "InvalidParameterValue", "The queue needs a MessageDeduplicationId"
    if not queue.is_fifo and dedup_id is not None:
        return "InvalidParameterValue", "The queue type does not take a MessageDeduplicationId"
    for each in (group, dedup_id):
        if each is not None and not _GROUP.fullmatch(each):
            return "InvalidParameterValue", "An id is 1 to 128 letters, digits or punctuation"
    if queue.is_fifo and entry.get("DelaySeconds"):
        return "InvalidParameterValue", "DelaySeconds is not valid for this queue type"
    return None


def _sent(queue: Queue, entry: Json) -> Json:
    message = queue.send(
        entry["MessageBody"],
        group=entry.get("MessageGroupId"),
        dedup_id=entry.get("MessageDeduplicationId"),
        delay_s=entry.get("DelaySeconds", 0),
        attributes=entry.get("MessageAttributes"),
    )
    said = {"MessageId": message.message_id, "MD5OfMessageBody": message.md5}
    if queue.is_fifo:
        said["SequenceNumber"] = f"{message.sequence:020d}"
    return said


def _each(entries: Iterable[Json], act: Callable[[Json], tuple[str, str] | None]) -> Json:
    successful: list[Json] = []
    failed: list[Json] = []
    for entry in entries:
        try:
            refused = act(entry)
        except AwsError as error:
            refused = (error.code, error.message)
        if refused is None:
            successful.append({"Id": entry["Id"]})
        else:
            failed.append(_failed(entry, *refused))
    return _batch(successful, failed)


def _failed(entry: Json, code: str, message: str) -> Json:
    return {"Id": entry["Id"], "Code": code, "Message": message, "SenderFault": True}


def _batch(successful: list[Json], failed: list[Json]) -> Json:
    """A list without members is left out, as the service does it."""
    answer: Json = {}
    if successful:
        answer["Successful"] = successful
    if failed:
        answer["Failed"] = failed
    return answer
