"""What all tests share: an environment of their own, and no network for unit tests."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests import environment

pytest_plugins = ["tests.engine", "tests.dynamodb_local", "tests.fakes.wire"]

# A busy machine is no failure; what fails prints how to see it again.
settings.register_profile("wakala", deadline=None, print_blob=True)
settings.load_profile("wakala")

UNIT = Path(__file__).parent / "unit"

environment.enter()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A unit test that opens a socket fails."""
    for item in items:
        if UNIT in item.path.parents:
            item.add_marker(pytest.mark.disable_socket)
