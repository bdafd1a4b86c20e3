"""One account of AWS, with all tables, queues, rules and the bus of the template."""

import json
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any

from tests.simulation.cloud.bus import Delivery, EventBridge, Rule, Target, as_message
from tests.simulation.cloud.dynamodb import DynamoDB
from tests.simulation.cloud.errors import Json, Unsupported
from tests.simulation.cloud.hook import Hook
from tests.simulation.cloud.queues import Queue
from tests.simulation.cloud.sqs import Sqs
from tests.simulation.cloud.stack import Stack
from tests.simulation.cloud.tables import Table


class Account:
    """What the template declares, empty, at a time that `now_ms` says (ms since the epoch).

    `tables` and `queues` are by logical id, as `stack.mappings` names them. Nothing happens by
    itself: whoever drives it delivers streams, queues and schedules, and lets time pass.
    """

    def __init__(
        self, now_ms: Callable[[], int], parameters: Mapping[str, str] | None = None
    ) -> None:
        self.stack = _stack(parameters)
        self._lock = RLock()
        self.dynamodb = DynamoDB(now_ms)
        self.sqs = Sqs(now_ms)
        self.events = EventBridge(now_ms, self.deliver)
        self._calls: dict[str, Callable[[str, Json], Json]] = {
            "dynamodb": self.dynamodb.call,
            "sqs": self.sqs.call,
            "events": self.events.call,
        }
        self.tables: dict[str, Table] = {
            name: self.dynamodb.create_table(**members)
            for name, members in self.stack.of_type("AWS::DynamoDB::Table").items()
        }
        self.queues: dict[str, Queue] = {
            name: self._queue(members)
            for name, members in self.stack.of_type("AWS::SQS::Queue").items()
        }
        for members in self.stack.of_type("AWS::Events::EventBus").values():
            self.events.create_bus(members["Name"])
        for name, members in self.stack.of_type("AWS::Events::Rule").items():
            self._rule(name, members)

    def answer(self, service: str, operation: str, body: Json) -> Json:
        """What a call is answered with; one at a time. Raises `AwsError`."""
        if service not in self._calls:
            raise Unsupported(service)
        with self._lock:
            return self._calls[service](operation, body)

    def attach(self, client: Any) -> None:
        """From now on this account answers that client."""
        Hook(self.answer).attach(client)

    def deliver(self, delivery: Delivery) -> None:
        """An event of the bus reaches its target."""
        self.sqs.by_arn(delivery.target.arn).send(as_message(delivery.event))

    def _queue(self, members: Json) -> Queue:
        known = {"FifoQueue", "VisibilityTimeout", "MessageRetentionPeriod", "DeduplicationScope"}
        known |= {"FifoThroughputLimit", "SqsManagedSseEnabled"}
        if not known.issuperset(members.keys() - {"QueueName", "RedrivePolicy"}):
            raise Unsupported(f"a queue with {sorted(members)}")
        attributes = {name: str(members[name]).lower() for name in known if name in members}
        if "DeduplicationScope" in members:
            attributes["DeduplicationScope"] = members["DeduplicationScope"]
        queue = self.sqs.create_queue(members["QueueName"], attributes)
        policy = members.get("RedrivePolicy")
        if policy is not None:
            queue.redrive = (policy["deadLetterTargetArn"], int(policy["maxReceiveCount"]))
        return queue

    def _rule(self, name: str, members: Json) -> None:
        targets = {each["Id"]: Target(each["Arn"]) for each in members["Targets"]}
        rule = Rule(name, members["EventPattern"], targets)
        self.events.buses[members["EventBusName"]].rules[name] = rule


_stacks: dict[str, Stack] = {}


def _stack(parameters: Mapping[str, str] | None) -> Stack:
    """Read once for the same parameters: a history makes an account of its own, thousands do."""
    key = json.dumps(dict(parameters or {}), sort_keys=True)
    if key not in _stacks:
        _stacks[key] = Stack(parameters)
    return _stacks[key]
