"""Queues as SQS has them: groups in flight, visibility, receives, redrive, and what is known again.

Which of several groups, or of a standard queue's messages, comes first is `shuffle`'s to say;
within a group the order is the one they were sent in.
"""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.cloud.errors import AwsError, Json
from tests.simulation.cloud.tables import ACCOUNT_ID, REGION

if TYPE_CHECKING:
    from tests.simulation.cloud.sqs import Sqs

DEDUP_MS = 300_000
"""How long a dedup id is known, also of a message that was received and deleted."""
VISIBILITY_S_MAX = 43_200
"""Twelve hours in all, from when a message was received."""
HANDLE_EXPIRED = "The receipt handle has expired"


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
