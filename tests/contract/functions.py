"""The functions as they are wired, on an engine; and what befalls one of their calls."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from botocore.awsrequest import AWSResponse

from tests.engine import Aws, Tables
from tests.fakes.scripted import Crash
from tests.fakes.wire import Answer, Sent, Wire, through
from tests.simulation.cloud.functions import Handler, context, import_handlers
from tests.simulation.cloud.stack import Function, Stack

HANDLERS = Stack().functions
"""What the template says of each function, by its name."""


@dataclass
class Functions:
    """All functions on one set of tables, queues and a bus that is listened to."""

    aws: Aws
    tables: Tables
    letters_table: str
    queues: Mapping[str, str]
    bus: str
    heard: str
    handlers: dict[str, Handler] = field(default_factory=dict)
    calls: dict[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def invoke(self, name: str, event: dict[str, Any]) -> Any:
        """As Lambda does, with ten seconds to go."""
        return self.handlers[name](event, context(lambda: 10_000))


def wire_up(aws: Aws) -> Functions:
    """Import each handler with the environment that the template gives it, but on this engine."""
    tables, letters_table = aws.tables(), aws.dead_letters()
    names = ("TxQueue", "RefundQueue", "FailedTxQueue", "DeliveryFailuresQueue", "InboxQueue")
    queues = {name: aws.queue(name) for name in names}
    functions = Functions(aws, tables, letters_table, queues, aws.bus(), queues["InboxQueue"])
    _listen(functions)
    on_engine = {
        "OFFLINE_TX_TABLE": tables.offline_tx,
        "WALLET_LEDGER_TABLE": tables.wallet_ledger,
        "DEAD_LETTERS_TABLE": letters_table,
        "INBOX_QUEUE_URL": queues["InboxQueue"],
        "TX_QUEUE_URL": queues["TxQueue"],
        "REFUND_QUEUE_URL": queues["RefundQueue"],
        "FAILED_TX_QUEUE_URL": queues["FailedTxQueue"],
        "DELIVERY_FAILURES_URL": queues["DeliveryFailuresQueue"],
        "EVENT_BUS_NAME": functions.bus,
        "LATENCY_BUDGET_MS": "20",
    }
    with aws.reached():
        functions.handlers = import_handlers(_on(on_engine, each) for each in HANDLERS.values())
    return functions


def _on(engine: Mapping[str, str], function: Function) -> Function:
    """The function with those of its variables that the engine decides."""
    mine = {name: engine.get(name, value) for name, value in function.environment.items()}
    return replace(function, environment=mine)


def _listen(functions: Functions) -> None:
    aws = functions.aws
    attributes = aws.sqs.get_queue_attributes(QueueUrl=functions.heard, AttributeNames=["QueueArn"])
    target = {"Id": "1", "Arn": attributes["Attributes"]["QueueArn"]}
    pattern = '{"source": ["wakala"]}'
    aws.events.put_rule(Name="all", EventBusName=functions.bus, EventPattern=pattern)
    aws.events.put_targets(Rule="all", EventBusName=functions.bus, Targets=[target])  # type: ignore[list-item]


@dataclass(frozen=True, slots=True)
class Place:
    """One call that a function makes: its operation, what it is made on, and the how-manieth."""

    operation: str
    target: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.operation} {self.target.rsplit('/', 1)[-1]} #{self.occurrence}"


READS = {"GetItem", "Query", "GetQueueAttributes", "TransactGetItems"}


def places(calls: Mapping[tuple[str, str], int]) -> list[Place]:
    """The first and the last write of each kind that was made, and the first read."""
    return [
        Place(operation, target, occurrence)
        for (operation, target), count in calls.items()
        for occurrence in sorted({1, 1 if operation in READS else count})
    ]


def kind_of(sent: Sent) -> tuple[str, str]:
    """What a call does, and on what."""
    return sent.operation, str(sent.body.get("QueueUrl") or sent.body.get("TableName") or "")


class Befallen:
    """Answers for the engine during one invocation, and for one call in its stead.

    `lasting`: that call, and whatever of its kind comes after it, all fail; else one HTTP request
    alone does. `calls` is what was asked, for an invocation without a fault.
    """

    def __init__(self, place: Place | None, fault: Answer, *, lasting: bool, base: Answer) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.hits = 0
        self._place = place
        self._fault = fault
        self._lasting = lasting
        self._base = base

    def __call__(self, sent: Sent) -> AWSResponse:
        kind = kind_of(sent)
        self.calls[kind] += 1
        place = self._place
        if place is None or kind != (place.operation, place.target):
            return self._base(sent)
        late = self.calls[kind] - place.occurrence
        if late == 0 or (late > 0 and self._lasting):
            self.hits += 1
            return self._fault(sent)
        return self._base(sent)


def invoked(
    functions: Functions, wire: Wire, befallen: Befallen, name: str, event: dict[str, Any]
) -> Any:
    """The function's answer, with `befallen` between it and the engine."""
    wire.answer = befallen
    try:
        return functions.invoke(name, event)
    finally:
        wire.answer = through


def killed_before(_: Sent) -> AWSResponse:
    """The process ends before the request leaves."""
    raise Crash


def killed_after(sent: Sent) -> AWSResponse:
    """The process ends when the engine has done what it was asked."""
    sent.forward()
    raise Crash
