"""The real handlers, imported once, on whatever account stands behind them at the time."""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.cloud.clients import answered_by
from tests.simulation.cloud.hook import Hook
from tests.simulation.cloud.stack import Stack

type Handler = Callable[[dict[str, Any], Any], Any]


def import_handlers(hook: Hook, stack: Stack) -> dict[str, Handler]:
    """`handle` of each function by its name, imported afresh with the template's environment.

    All of their clients are answered by `hook`, whose `answer` may be replaced per history.
    """
    handlers: dict[str, Handler] = {}
    for function in stack.functions.values():
        module, _, name = function.handler.rpartition(".")
        variables = function.environment | {"AWS_XRAY_SDK_ENABLED": "false"}  # nobody listens here
        with _environment(variables), answered_by(hook):
            sys.modules.pop(module, None)
            handlers[function.name] = getattr(importlib.import_module(module), name)
            del sys.modules[module]
    return handlers


def context(remaining_ms: Callable[[], int], request_id: str = "request") -> SimpleNamespace:
    """What Lambda tells a function of its invocation; `remaining_ms` is asked each time."""
    return SimpleNamespace(aws_request_id=request_id, get_remaining_time_in_millis=remaining_ms)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            if value:
                patch.setenv(name, value)
        yield
