"""Where the promises of queues and of the bus are asked for: in memory, and on an engine."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tests.engine import Aws
from tests.fakes.memory import FakeClock, FakeEventBus, FakeQueue
from wallet_ledger.aws import clients
from wallet_ledger.aws.messaging import EventBridgeBus, SqsQueue
from wallet_ledger.ports import Backlog, EventBus, OutgoingEvent, OutgoingMessage, Queue


class Channel(Protocol):
    """A queue, and what a consumer finds in it."""

    def port(self) -> Queue:
        """The port under test."""

    def backlog(self) -> Backlog:
        """The port under test."""

    def arrived(self) -> Sequence[OutgoingMessage]:
        """All that waits, in order; it is taken and removed."""


class QueueInMemory:
    """The fake."""

    def __init__(self) -> None:
        self._queue = FakeQueue(FakeClock())

    def port(self) -> Queue:
        return self._queue

    def backlog(self) -> Backlog:
        return self._queue

    def arrived(self) -> Sequence[OutgoingMessage]:
        taken, self._queue.messages = self._queue.messages, []
        return taken


class QueueOnEngine:
    """The adapter on a queue of the template's shape."""

    def __init__(self, aws: Aws, logical_id: str) -> None:
        self._client = aws.sqs
        self._url = aws.queue(logical_id)

    def port(self) -> Queue:
        return SqsQueue(self._client, url=self._url, clock=FakeClock())

    def backlog(self) -> Backlog:
        return SqsQueue(self._client, url=self._url, clock=FakeClock())

    def arrived(self) -> Sequence[OutgoingMessage]:
        return [
            OutgoingMessage(
                body=message["Body"],
                group=message["Attributes"].get("MessageGroupId"),
                dedup_id=message["Attributes"].get("MessageDeduplicationId"),
            )
            for message in receive_all(self._client, self._url)
        ]


class Bus(Protocol):
    """A bus that refuses chosen events, and somebody who listens to it."""

    def port(self) -> EventBus:
        """The port under test."""

    def refuse(self, refuses: Callable[[OutgoingEvent], bool]) -> None:
        """From now on, do not take these."""

    def heard(self) -> Sequence[OutgoingEvent]:
        """All that arrived."""


class BusInMemory:
    """The fake."""

    def __init__(self) -> None:
        self._bus = FakeEventBus()

    def port(self) -> EventBus:
        return self._bus

    def refuse(self, refuses: Callable[[OutgoingEvent], bool]) -> None:
        self._bus.refuses = refuses

    def heard(self) -> Sequence[OutgoingEvent]:
        return self._bus.events


class BusOnEngine:
    """The adapter on a bus whose events a rule puts into a queue."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._name = aws.bus()
        self._queue_url = aws.queue("InboxQueue")
        self._refuses: Callable[[OutgoingEvent], bool] = lambda _: False
        with aws.reached():
            self._client = clients.events()
        self._client.meta.events.register(
            "provide-client-params.events.PutEvents", self._spoil_what_is_refused
        )
        attributes = aws.sqs.get_queue_attributes(
            QueueUrl=self._queue_url, AttributeNames=["QueueArn"]
        )
        self._client.put_rule(
            Name=self._name, EventBusName=self._name, EventPattern='{"source": ["wakala"]}'
        )
        self._client.put_targets(
            Rule=self._name,
            EventBusName=self._name,
            Targets=[{"Id": "1", "Arn": attributes["Attributes"]["QueueArn"]}],
        )

    def port(self) -> EventBus:
        return EventBridgeBus(self._client, name=self._name, clock=FakeClock())

    def refuse(self, refuses: Callable[[OutgoingEvent], bool]) -> None:
        self._refuses = refuses

    def heard(self) -> Sequence[OutgoingEvent]:
        bodies = [json.loads(m["Body"]) for m in receive_all(self._aws.sqs, self._queue_url)]
        return [OutgoingEvent(body["detail-type"], json.dumps(body["detail"])) for body in bodies]

    def _spoil_what_is_refused(self, params: dict[str, Any], **_: Any) -> None:
        # An entry that names AWS itself as its source fails alone, here as on AWS.
        for entry in params["Entries"]:
            if self._refuses(OutgoingEvent(entry["DetailType"], entry["Detail"])):
                entry["Source"] = "aws.wakala"


def receive_all(client: Any, url: str) -> list[dict[str, Any]]:
    """Take and remove whatever waits in a queue."""
    found: list[dict[str, Any]] = []
    while True:
        answer = client.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
        )
        if not answer.get("Messages"):
            return found
        found += answer["Messages"]
        client.delete_message_batch(
            QueueUrl=url,
            Entries=[
                {"Id": str(index), "ReceiptHandle": message["ReceiptHandle"]}
                for index, message in enumerate(answer["Messages"])
            ],
        )
