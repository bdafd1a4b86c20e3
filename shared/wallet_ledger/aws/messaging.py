"""SQS and EventBridge: both take ten entries a call, and both fail entry by entry under 200."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from wallet_ledger.aws.clients import is_transient, passing_errors
from wallet_ledger.ports import Clock, OutgoingEvent, OutgoingMessage

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_sqs import SQSClient

EVENT_SOURCE = "wakala"
ENTRIES_MAX = 10
CALL_BYTES_MAX = 240_000
"""Below the 256 KB that one call may carry, with room for the entries' own members."""
TRIES = 3
"""Calls per entry: the caller's redelivery comes after that."""
PAUSE_S = 0.05
"""What the pause before the second call is drawn from; it doubles with each further one."""


class SqsQueue:
    """`ports.Queue` and `ports.Backlog` on one queue."""

    def __init__(self, client: "SQSClient", *, url: str, clock: Clock) -> None:
        self._client = client
        self._url = url
        self._clock = clock

    def send(self, messages: Sequence[OutgoingMessage]) -> frozenset[int]:
        """Send in order; entries that fail are tried again, then reported by index."""
        sizes = [len(message.body.encode()) for message in messages]
        return _in_calls(sizes, self._call(messages), self._clock)

    def _call(self, messages: Sequence[OutgoingMessage]) -> Callable[[Sequence[int]], set[int]]:
        def call(indexes: Sequence[int]) -> set[int]:
            answer = self._client.send_message_batch(
                QueueUrl=self._url,
                Entries=[_sqs_entry(index, messages[index]) for index in indexes],  # type: ignore[misc]
            )
            return {int(failed["Id"]) for failed in answer.get("Failed", [])}

        return call

    def depth(self) -> int:
        """Messages visible, in flight and delayed, approximately."""
        names = (
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        )
        with passing_errors():
            answer = self._client.get_queue_attributes(
                QueueUrl=self._url,
                AttributeNames=list(names),  # type: ignore[arg-type]
            )
        return sum(int(value) for value in answer["Attributes"].values())

    def give_back(self, rests: Sequence[tuple[str, int]]) -> None:
        """Let messages in flight, at most ten, come again after a rest of their own, in seconds.

        Raises `Unavailable`; they and those that SQS refuses rest for the visibility timeout.
        """
        with passing_errors():
            self._client.change_message_visibility_batch(
                QueueUrl=self._url,
                Entries=[
                    {"Id": str(index), "ReceiptHandle": handle, "VisibilityTimeout": rest_s}
                    for index, (handle, rest_s) in enumerate(rests)
                ],
            )


class EventBridgeBus:
    """`ports.EventBus` on one bus."""

    def __init__(self, client: "EventBridgeClient", *, name: str, clock: Clock) -> None:
        self._client = client
        self._name = name
        self._clock = clock

    def put(self, events: Sequence[OutgoingEvent]) -> frozenset[int]:
        """Put in order; entries that fail are tried again, then reported by index."""

        def call(indexes: Sequence[int]) -> set[int]:
            answer = self._client.put_events(
                Entries=[
                    {
                        "EventBusName": self._name,
                        "Source": EVENT_SOURCE,
                        "DetailType": events[index].detail_type,
                        "Detail": events[index].detail,
                    }
                    for index in indexes
                ]
            )
            return {
                index
                for index, entry in zip(indexes, answer["Entries"], strict=True)
                if entry.get("ErrorCode")
            }

        return _in_calls([len(event.detail.encode()) for event in events], call, self._clock)


def _sqs_entry(index: int, message: OutgoingMessage) -> dict[str, Any]:
    entry: dict[str, Any] = {"Id": str(index), "MessageBody": message.body}
    if message.group is not None:
        entry |= {
            "MessageGroupId": message.group,
            "MessageDeduplicationId": message.dedup_id,
        }
    return entry


def _in_calls(
    sizes: Sequence[int], call: Callable[[Sequence[int]], set[int]], clock: Clock
) -> frozenset[int]:
    """Run `call` on chunks of indexes, up to `TRIES` times on what failed; what still failed.

    After a chunk that is not taken whole nothing later is sent, or it would overtake.
    """
    for chunk in _chunks(sizes):
        left = chunk
        for attempt in range(TRIES):
            if attempt:
                clock.pause(random.uniform(0, PAUSE_S * 2**attempt))
            left = _failures(call, left)
            if not left:
                break
        if left:
            return frozenset([*left, *range(chunk[-1] + 1, len(sizes))])
    return frozenset()


def _failures(call: Callable[[Sequence[int]], set[int]], indexes: Sequence[int]) -> list[int]:
    try:
        return sorted(call(indexes))
    except (ClientError, BotoCoreError) as error:
        if is_transient(error):
            return list(indexes)
        raise


def _chunks(sizes: Sequence[int]) -> Iterator[list[int]]:
    chunk: list[int] = []
    chunk_bytes = 0
    for index, size in enumerate(sizes):
        if chunk and (len(chunk) == ENTRIES_MAX or chunk_bytes + size > CALL_BYTES_MAX):
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(index)
        chunk_bytes += size
    if chunk:
        yield chunk
