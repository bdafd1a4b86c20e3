"""The real handlers, imported once, on whatever stands behind their clients at the time."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.cloud.stack import Function

type Handler = Callable[[dict[str, Any], Any], Any]


def import_handlers(functions: Iterable[Function]) -> dict[str, Handler]:
    """`handle` of each function by its name, imported afresh with the function's environment.

    They make their clients meanwhile: what those speak to is for the caller to arrange.
    """
    handlers: dict[str, Handler] = {}
    for function in functions:
        module, _, name = function.handler.rpartition(".")
        # Nobody listens for traces here.
        with _environment(function.environment | {"AWS_XRAY_SDK_ENABLED": "false"}):
            sys.modules.pop(module, None)
            handlers[function.name] = getattr(importlib.import_module(module), name)
            del sys.modules[module]
    return handlers


def context(remaining_ms: Callable[[], int], request_id: str = "request") -> SimpleNamespace:
    """What Lambda tells a function of its invocation; `remaining_ms` is asked each time."""
    return SimpleNamespace(aws_request_id=request_id, get_remaining_time_in_millis=remaining_ms)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            if value:
                patch.setenv(name, value)
        yield
