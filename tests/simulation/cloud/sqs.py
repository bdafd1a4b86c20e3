"""SQS: what can be asked of its queues. A call that waits for messages does not wait."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.simulation.cloud.errors import AwsError, Json, Unsupported
from tests.simulation.cloud.queues import VISIBILITY_S_MAX, Queue

BATCH_MAX = 10
CALL_BYTES_MAX = 1024 * 1024
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
