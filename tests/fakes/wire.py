"""Between botocore and the network: every request seen, and answered as no engine would.

It stands below botocore's own retries, parsing and error classes, so what a fault becomes on its
way up is the real thing.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from types import SimpleNamespace
from typing import Any

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, ReadTimeoutError
from botocore.httpsession import URLLib3Session
from botocore.model import ServiceModel
from botocore.validate import ParamValidator

_SERVICES = {"DynamoDB_20120810": "dynamodb", "AmazonSQS": "sqs", "AWSEvents": "events"}


@dataclass(frozen=True, slots=True)
class Sent:
    """One HTTP request; `forward` lets it go where it wants to."""

    operation: str
    body: Mapping[str, Any]
    url: str
    forward: Callable[[], AWSResponse] = field(repr=False, compare=False)


type Answer = Callable[[Sent], AWSResponse]


@dataclass(slots=True)
class Wire:
    """What went over the wire, and `answer`, which says what comes back."""

    answer: Answer
    sent: list[Sent] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def answers(self, *answers: Answer) -> None:
        """Answer one request each; there must be no more requests than these."""
        waiting = iter(answers)

        def answer(sent: Sent) -> AWSResponse:
            return next(waiting, unexpected)(sent)

        self.answer = answer

    def operations(self) -> list[str]:
        """The names of what was called, retries too."""
        return [sent.operation for sent in self.sent]

    def send(self, request: Any, forward: Callable[[], AWSResponse]) -> AWSResponse:
        """Stands for the HTTP session's own `send`."""
        target = request.headers["X-Amz-Target"]
        name = target.decode() if isinstance(target, bytes) else target
        prefix, _, operation = name.partition(".")
        sent = Sent(operation, json.loads(request.body), request.url, forward)
        require_valid(_SERVICES[prefix], sent)
        with self._lock:
            self.sent.append(sent)
            answer = self.answer
        return answer(sent)


def require_valid(service: str, sent: Sent) -> None:
    """Our clients leave it to AWS to check the members of a request and their types."""
    shape = _model(service).operation_model(sent.operation).input_shape
    assert shape is not None, f"{sent.operation} takes nothing"
    found = ParamValidator().validate(sent.body, shape)
    assert not found.has_errors(), f"{sent.operation}: {found.generate_report()}"


@cache
def _model(service: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(service)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Nothing leaves the process but through this; botocore's pauses between tries take no time."""
    wire = Wire(unexpected)
    forward = URLLib3Session.send

    def send(session: URLLib3Session, request: Any) -> AWSResponse:
        return wire.send(request, lambda: forward(session, request))

    monkeypatch.setattr(URLLib3Session, "send", send)
    monkeypatch.setattr("botocore.endpoint.time", SimpleNamespace(sleep=lambda _: None))
    return wire


def unexpected(sent: Sent) -> AWSResponse:
    """Nobody said what to answer."""
    raise AssertionError(f"unexpected request {sent.operation}")


def through(sent: Sent) -> AWSResponse:
    """Whatever the request is meant for answers it."""
    return sent.forward()


def ok(body: Mapping[str, Any] | None = None) -> Answer:
    """Done."""
    return lambda sent: _response(sent, 200, body or {})


def error(code: str, status: int = 400, **members: Any) -> Answer:
    """An error in AWS's envelope; its message holds what must never be logged."""
    body = {"__type": f"com.amazonaws.service#{code}", "message": "about 254712345678"}
    return lambda sent: _response(sent, status, body | members)


type Reason = str | Mapping[str, Any]


def cancelled(*reasons: Reason) -> Answer:
    """A transaction that was cancelled, for one reason per item."""
    listed = [{"Code": each} if isinstance(each, str) else dict(each) for each in reasons]
    return error("TransactionCanceledException", CancellationReasons=listed)


def html_500(sent: Sent) -> AWSResponse:
    """A proxy's page in place of an answer."""
    return _http(sent, 502, "text/html", b"<html>bad gateway")


def reset(sent: Sent) -> AWSResponse:
    """The connection breaks before the request is read."""
    raise ConnectionClosedError(endpoint_url=sent.url)


def unreachable(sent: Sent) -> AWSResponse:
    """There is no connection at all."""
    raise EndpointConnectionError(endpoint_url=sent.url)


def timed_out(sent: Sent) -> AWSResponse:
    """Nothing comes back, and nothing was done."""
    raise ReadTimeoutError(endpoint_url=sent.url)


def lost(sent: Sent) -> AWSResponse:
    """It is done, and the answer is lost."""
    sent.forward()
    raise ReadTimeoutError(endpoint_url=sent.url)


def repeatedly(answer: Answer, times: int = 2) -> Sequence[Answer]:
    """The same for each of botocore's own tries."""
    return [answer] * times


class _Raw:
    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self) -> Iterator[bytes]:
        yield self._body


def _response(sent: Sent, status: int, body: Mapping[str, Any]) -> AWSResponse:
    return _http(sent, status, "application/x-amz-json-1.0", json.dumps(body).encode())


def _http(sent: Sent, status: int, content_type: str, body: bytes) -> AWSResponse:
    headers: Any = {"Content-Type": content_type}
    return AWSResponse(sent.url, status, headers, _Raw(body))
