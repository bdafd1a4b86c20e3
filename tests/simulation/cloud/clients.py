"""Clients that speak to an account in this process instead of to an address."""

import itertools
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

_numbers = itertools.count(1)
"""Of the engines in this process: each has an address of its own."""

HTTP_ADDRESS = "https://http.simulated.invalid"
"""Clients that are made for this address are answered where the network would be."""

_SERVICES = {"DynamoDB_20120810": "dynamodb", "AmazonSQS": "sqs", "AWSEvents": "events"}


type Attach = Callable[[Any, int], None]
"""Is given a client that was just made, and how many attempts botocore has for each call of it."""


@contextmanager
def made_with(attach: Attach) -> Iterator[None]:
    """While this lasts, every client that our code makes goes through `attach`."""
    create: Callable[[str, int], Any] = clients._create

    def created(service: str, attempts: int = clients.ATTEMPTS) -> Any:
        client = create(service, attempts)
        attach(client, attempts)
        return client

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "_create", created)
        yield


@contextmanager
def simulated() -> Iterator[Aws]:
    """An engine in this process on the machine's own time, for suites that ask for an `Aws`.

    Clients that are made for its address are answered below boto3, without botocore's retries.
    """
    hook = Hook(Account(SystemClock().now_ms).answer)
    address = f"https://{next(_numbers)}.simulated.invalid"

    def attach(client: Any, _: int) -> None:
        if client.meta.endpoint_url == address:
            hook.attach(client)

    with made_with(attach):
        yield Aws(address)


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
