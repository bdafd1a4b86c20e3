"""Clients that speak to an account in this process instead of to an address."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.httpsession import URLLib3Session

from tests.engine import Aws
from tests.simulation.cloud.account import Account
from tests.simulation.cloud.errors import AwsError
from tests.simulation.cloud.hook import Hook
from wallet_ledger.aws import clients
from wallet_ledger.clock import SystemClock

ADDRESS = "https://simulated.invalid"
"""Clients that are made for this address are answered below boto3, without botocore's retries."""

HTTP_ADDRESS = "https://http.simulated.invalid"
"""Clients that are made for this address are answered where the network would be."""

_SERVICES = {"DynamoDB_20120810": "dynamodb", "AmazonSQS": "sqs", "AWSEvents": "events"}


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


class LeapingTime:
    """Stands for the module `time`: nothing but a pause takes time, and it is over at once.

    So no deadline passes because the machine is busy.
    """

    def __init__(self) -> None:
        self._now_ns = time.time_ns()
        self._lock = Lock()

    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self._now_ns

    def sleep(self, seconds: float) -> None:
        """Leap so far."""
        with self._lock:
            self._now_ns += int(seconds * 1_000_000_000)


@contextmanager
def simulated_over_http(clock: LeapingTime) -> Iterator[Aws]:
    """The same where botocore's own retries and parsing count: below what `fakes/wire.py` sees."""
    account = Account(lambda: clock.time_ns() // 1_000_000)
    send = URLLib3Session.send

    def answered(session: URLLib3Session, request: Any) -> Any:
        if not request.url.startswith(HTTP_ADDRESS):
            return send(session, request)
        target = request.headers["X-Amz-Target"]
        name = target.decode() if isinstance(target, bytes) else target
        prefix, _, operation = name.partition(".")
        return _response(account, request, _SERVICES[prefix], operation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(URLLib3Session, "send", answered)
        yield Aws(HTTP_ADDRESS)


def _response(account: Account, request: Any, service: str, operation: str) -> AWSResponse:
    status = 200
    try:
        told = account.answer(service, operation, json.loads(request.body))
    except AwsError as error:
        status, told = error.status, error.members | {"__type": error.code}
        told["message"] = error.message
    body = json.dumps(told).encode()
    raw: Any = SimpleNamespace(stream=lambda: iter([body]))
    headers: Any = {"Content-Type": "application/x-amz-json-1.0"}
    return AWSResponse(request.url, status, headers, raw)
