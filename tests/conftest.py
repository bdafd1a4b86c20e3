"""What all tests share: an environment of their own, and no network for unit tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.engine", "tests.dynamodb_local", "tests.fakes.wire"]

# A busy machine is no failure; what fails prints how to see it again.
settings.register_profile("wakala", deadline=None, print_blob=True)
settings.load_profile("wakala")

UNIT = Path(__file__).parent / "unit"

# Before any module of ours is imported: telemetry and botocore read these at import.
for _foreign in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
    os.environ.pop(_foreign, None)
os.environ |= {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_XRAY_SDK_ENABLED": "false",
    "POWERTOOLS_SERVICE_NAME": "test",
    "POWERTOOLS_METRICS_NAMESPACE": "Wakala",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A unit test that opens a socket fails."""
    for item in items:
        if UNIT in item.path.parents:
            item.add_marker(pytest.mark.disable_socket)
