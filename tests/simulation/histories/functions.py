"""The functions' own handlers, unchanged, whose every call stops at the scheduler."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import botocore.session

from tests.simulation.cloud.stack import Stack
from tests.simulation.histories import processes
from wallet_ledger.aws import clients

type Handler = Callable[[dict[str, Any], Any], Any]


def parameters(retention_days: int, budget_ms: int) -> dict[str, str]:
    """Of the deployer's parameters, those that are not as by default."""
    return {
        "RetentionDays": str(retention_days),
        "LatencyBudgetMs": str(budget_ms),
        # Histories are short: a few messages hold the sweep back, and a few rows are its fill.
        "SweepBacklogMax": "3",
        "SweepRowsMax": "2",
    }


@cache
def handlers(retention_days: int, budget_ms: int) -> dict[str, Handler]:
    """Each handler, imported afresh with the environment that the template gives it."""
    made = {}
    create, get_session = clients._create, botocore.session.get_session
    session = get_session()  # one for all, which reads botocore's models once

    def attached(service: str, attempts: int = clients.ATTEMPTS) -> Any:
        client = create(service, attempts)
        processes.attach(client, attempts)
        return client

    clients._create = attached
    botocore.session.get_session = lambda env_vars=None: session
    try:
        for name, function in Stack(parameters(retention_days, budget_ms)).functions.items():
            module, _, handle = function.handler.rpartition(".")
            with _environment(function.environment | {"AWS_XRAY_SDK_ENABLED": "false"}):
                sys.modules.pop(module, None)
                made[name] = getattr(importlib.import_module(module), handle)
                del sys.modules[module]
    finally:
        clients._create, botocore.session.get_session = create, get_session
    return made


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
