"""Clients that speak to an account in this process instead of to an address."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engine import Aws
from tests.simulation.cloud.account import Account
from tests.simulation.cloud.hook import Hook
from wallet_ledger.aws import clients
from wallet_ledger.clock import SystemClock

ADDRESS = "https://simulated.invalid"
"""Clients that are made for this address are answered in this process."""


@contextmanager
def answered_by(hook: Hook, *, only_at: str | None = None) -> Iterator[None]:
    """While this lasts, `hook` stands behind every client that our code makes.

    With `only_at`, behind those that are made for that address.
    """
    create: Callable[..., Any] = clients._create

    def created(*arguments: Any, **options: Any) -> Any:
        client = create(*arguments, **options)
        if only_at is None or client.meta.endpoint_url == only_at:
            hook.attach(client)
        return client

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "_create", created)
        yield


@contextmanager
def simulated() -> Iterator[Aws]:
    """An engine in this process on the machine's own time, for suites that ask for an `Aws`."""
    hook = Hook(Account(SystemClock().now_ms).answer)
    with answered_by(hook, only_at=ADDRESS):
        yield Aws(ADDRESS)
