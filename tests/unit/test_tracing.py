"""AWS calls are traced where tracing is on, and nowhere else."""

import sys
from types import SimpleNamespace

import pytest

from wallet_ledger.telemetry import instrumented


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What the X-Ray SDK was asked to trace; a stand-in for it, which would need a daemon."""
    asked: list[tuple[str, ...]] = []
    core = SimpleNamespace(patch=asked.append)
    monkeypatch.setitem(sys.modules, "aws_xray_sdk", SimpleNamespace(core=core))
    monkeypatch.setitem(sys.modules, "aws_xray_sdk.core", core)
    return asked


@pytest.mark.parametrize(("enabled", "traced"), [("true", [("botocore",)]), ("false", [])])
def test_a_handler_has_its_aws_calls_traced_where_tracing_is_on(
    monkeypatch: pytest.MonkeyPatch,
    patched: list[tuple[str, ...]],
    enabled: str,
    traced: list[tuple[str, ...]],
) -> None:
    monkeypatch.setenv("AWS_XRAY_SDK_ENABLED", enabled)

    instrumented(lambda event, _: event)

    assert patched == traced
