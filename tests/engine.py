"""An engine of the tests' own, and on it what the template declares, once for each who asks."""

import itertools
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.template import RESOURCES
from wakala import engine
from wallet_ledger.aws import clients

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_sqs import SQSClient

TABLES_ON = {"engine": "aws", "dynamodb-local": "aws_dynamodb_local"}
"""The engines that have tables, each with the fixture that gives it."""
CHANNELS_ON = {"engine": "aws"}
"""Those that have queues and a bus."""

_number = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Tables:
    """Names of one pair of tables."""

    offline_tx: str
    wallet_ledger: str


@dataclass(frozen=True)
class Aws:
    """A running engine, the clients of the functions, and fresh tables and queues on it.

    `tables_url`: another engine, that has the tables.
    """

    endpoint_url: str
    tables_url: str | None = None

    @cached_property
    def dynamodb(self) -> "DynamoDBClient":
        """As the functions make it."""
        with self.reached():
            return clients.dynamodb(on_consumed=lambda _name, _units: None)

    @cached_property
    def sqs(self) -> "SQSClient":
        """As the functions make it."""
        with self.reached():
            return clients.sqs()

    @cached_property
    def events(self) -> "EventBridgeClient":
        """As the functions make it."""
        with self.reached():
            return clients.events()

    def reached(self, **variables: str) -> AbstractContextManager[None]:
        """While this lasts, clients that are made speak to this engine."""
        urls = {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ENDPOINT_URL_DYNAMODB": self.tables_url or self.endpoint_url,
        }
        return _environment(**urls, **variables)

    def tables(self) -> Tables:
        """Empty tables of the template's shape."""
        return Tables(self._table("OfflineTxTable"), self._table("WalletLedgerTable"))

    def dead_letters(self) -> str:
        """The name of an empty table of letters, of the template's shape."""
        return self._table("DeadLettersTable")

    def queue(self, logical_id: str) -> str:
        """The URL of an empty queue of the template's shape."""
        declared = RESOURCES[logical_id]["Properties"]
        ending = ".fifo" if declared.get("FifoQueue") else ""
        wanted = ("FifoQueue", "DeduplicationScope", "FifoThroughputLimit", "VisibilityTimeout")
        attributes = {name: str(declared[name]) for name in wanted if name in declared}
        if ending:
            attributes["FifoQueue"] = "true"
        answer = self.sqs.create_queue(
            QueueName=f"{logical_id}-{next(_number)}{ending}",
            Attributes=cast("dict[Any, str]", attributes),
        )
        return answer["QueueUrl"]

    def bus(self) -> str:
        """The name of a bus that nobody else uses."""
        name = f"bus-{next(_number)}"
        self.events.create_event_bus(Name=name)
        return name

    def _table(self, logical_id: str) -> str:
        name = f"{logical_id}-{next(_number)}"
        create_table(self.dynamodb, name, declared_table(logical_id))
        return name


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """An engine on a free port, with a home of its own, ended with the session."""
    home = {"WAKALA_HOME": str(tmp_path_factory.mktemp("engine"))}
    with _environment(**home):
        engine.prepare()
        started = engine.start(free_port(), auth=False)
    try:
        yield Aws(started.endpoint_url)
    finally:
        with _environment(**home):
            engine.stop(started)


@pytest.fixture(scope="session", params=TABLES_ON)
def each_engine(request: pytest.FixtureRequest) -> Aws:
    """Every engine that has tables, one after the other."""
    return engine_of(request)


def engine_of(request: pytest.FixtureRequest) -> Aws:
    """The engine that the parameter of a fixture names."""
    aws: Aws = request.getfixturevalue((TABLES_ON | CHANNELS_ON)[request.param])
    return aws


def create_table(client: "DynamoDBClient", name: str, shape: Mapping[str, Any]) -> None:
    """An empty table of that shape.

    An engine that is only waking up may keep its first answer for longer than a function's client
    waits; botocore's second try then finds what the first has made.
    """
    with suppress(client.exceptions.ResourceInUseException):
        client.create_table(TableName=name, **shape)


def declared_table(logical_id: str) -> dict[str, Any]:
    """What CreateTable needs to make a table of the template's shape, but for its name."""
    declared = RESOURCES[logical_id]["Properties"]
    wanted = ("AttributeDefinitions", "KeySchema", "BillingMode")
    shape: dict[str, Any] = {name: declared[name] for name in wanted}
    if "GlobalSecondaryIndexes" in declared:
        shape["GlobalSecondaryIndexes"] = [
            {name: index[name] for name in ("IndexName", "KeySchema", "Projection")}
            for index in declared["GlobalSecondaryIndexes"]
        ]
    return shape


def free_port() -> int:
    """A port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((engine.LOOPBACK, 0))
        return cast("int", probe.getsockname()[1])


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
