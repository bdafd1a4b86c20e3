"""Every promise is asked of the fake and of the adapter on each engine."""

from collections.abc import Iterator

import pytest

from tests.contract.channels import (
    Bus,
    BusInMemory,
    BusOnEngine,
    Channel,
    QueueInMemory,
    QueueOnEngine,
)
from tests.contract.places import InMemory, OnEngine, Place
from tests.engine import CHANNELS_ON, TABLES_ON, Aws
from tests.simulation.cloud.clients import LeapingTime, simulated, simulated_over_http

IN_MEMORY = "memory"
SIMULATED = {"simulated": "simulated_aws"}
"""The simulator's own AWS, with the fixture that gives it."""

FIXTURES = TABLES_ON | CHANNELS_ON | SIMULATED


@pytest.fixture(params=[IN_MEMORY, *TABLES_ON, *SIMULATED])
def place(request: pytest.FixtureRequest) -> Place:
    """Empty tables behind the ports."""
    return InMemory() if request.param == IN_MEMORY else OnEngine(_engine(request))


@pytest.fixture(params=[IN_MEMORY, *CHANNELS_ON, *SIMULATED])
def fifo(request: pytest.FixtureRequest) -> Channel:
    """An empty queue that keeps order by group."""
    return _queue(request, "TxQueue")


@pytest.fixture(params=[IN_MEMORY, *CHANNELS_ON, *SIMULATED])
def standard(request: pytest.FixtureRequest) -> Channel:
    """An empty queue that promises no order."""
    return _queue(request, "DeliveryFailuresQueue")


@pytest.fixture(params=[IN_MEMORY, *CHANNELS_ON, *SIMULATED])
def bus(request: pytest.FixtureRequest) -> Bus:
    """A bus that is listened to."""
    in_memory = request.param == IN_MEMORY
    return BusInMemory() if in_memory else BusOnEngine(_engine(request))


def _queue(request: pytest.FixtureRequest, logical_id: str) -> Channel:
    in_memory = request.param == IN_MEMORY
    return QueueInMemory() if in_memory else QueueOnEngine(_engine(request), logical_id)


def _engine(request: pytest.FixtureRequest) -> Aws:
    aws: Aws = request.getfixturevalue(FIXTURES[request.param])
    return aws


@pytest.fixture(scope="session")
def simulated_aws() -> Iterator[Aws]:
    """The simulator's own AWS, in this process."""
    with simulated() as aws:
        yield aws


@pytest.fixture(scope="session")
def leaping_time() -> LeapingTime:
    """What time it is for `simulated_aws_over_http`."""
    return LeapingTime()


@pytest.fixture(scope="session")
def simulated_aws_over_http(leaping_time: LeapingTime) -> Iterator[Aws]:
    """The same, for suites that put something between botocore and the network."""
    with simulated_over_http(leaping_time) as aws:
        yield aws
