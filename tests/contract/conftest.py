"""Every promise is asked of the fake and of the adapter on each engine."""

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
from tests.engine import CHANNELS_ON, TABLES_ON, engine_of

IN_MEMORY = "memory"


@pytest.fixture(params=[IN_MEMORY, *TABLES_ON])
def place(request: pytest.FixtureRequest) -> Place:
    """Empty tables behind the ports."""
    return InMemory() if request.param == IN_MEMORY else OnEngine(engine_of(request))


@pytest.fixture(params=[IN_MEMORY, *CHANNELS_ON])
def fifo(request: pytest.FixtureRequest) -> Channel:
    """An empty queue that keeps order by group."""
    return _queue(request, "TxQueue")


@pytest.fixture(params=[IN_MEMORY, *CHANNELS_ON])
def standard(request: pytest.FixtureRequest) -> Channel:
    """An empty queue that promises no order."""
    return _queue(request, "DeliveryFailuresQueue")


@pytest.fixture(params=[IN_MEMORY, *CHANNELS_ON])
def bus(request: pytest.FixtureRequest) -> Bus:
    """A bus that is listened to."""
    in_memory = request.param == IN_MEMORY
    return BusInMemory() if in_memory else BusOnEngine(engine_of(request))


def _queue(request: pytest.FixtureRequest, logical_id: str) -> Channel:
    in_memory = request.param == IN_MEMORY
    return QueueInMemory() if in_memory else QueueOnEngine(engine_of(request), logical_id)
