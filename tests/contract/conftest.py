"""Every promise is asked of the fake and of the adapter on an engine."""

import pytest

from tests.contract.places import InMemory, OnEngine, Place
from tests.engine import Aws


@pytest.fixture(params=["memory", "engine"])
def place(request: pytest.FixtureRequest) -> Place:
    """Empty tables behind the ports."""
    if request.param == "memory":
        return InMemory()
    aws: Aws = request.getfixturevalue("aws")
    return OnEngine(aws)
