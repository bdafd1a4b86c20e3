"""What the HTTP edge answers, in every way it can: exchanges with the real edge on fakes.

The examples of docs/openapi.yaml are these, so each is an answer that was given.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ingest.api import BODY_BYTES_MAX, Api, handle_request
from tests.fakes.memory import FakeAcceptedTransactions, FakeClock, FakeRefundDesk, Store
from tests.fakes.scripted import around, unavailable
from tests.template import TEMPLATE
from wallet_ledger.contracts import Defaults
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.telemetry import logger

type Json = dict[str, Any]

AGENT = "AG-001"
KEY = "2026-11-02.0042"
NOW_MS = 1_793_602_800_000
PARAMETERS: Json = {name: each.get("Default") for name, each in TEMPLATE["Parameters"].items()}
DEFAULTS = Defaults(Currency(PARAMETERS["Currency"]), PARAMETERS["DefaultRegion"])

TRANSACTION: Json = {
    "agentId": AGENT,
    "phone": "0712 345 678",
    "amount": 125_000,
    "idempotencyKey": KEY,
    "capturedAt": "2026-11-02T09:14:07+03:00",
}
REFUND: Json = {"refundId": "RF-2026-0008", "amount": 25_000, "reason": "one bag was missing"}

OPERATIONS = {
    "submitTransaction": ("POST", "/tx/offline"),
    "submitBatch": ("POST", "/tx/offline/batch"),
    "getStatus": ("GET", "/tx/status/{idempotencyKey}"),
    "requestRefund": ("POST", "/tx/{idempotencyKey}/refund"),
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer; `name` and `summary` are the example's."""

    operation: str
    name: str
    summary: str
    request: Any
    status: int
    headers: dict[str, str]
    body: Json

    @property
    def code(self) -> str | None:
        """The problem's code; None for the answer that was asked for."""
        code: str | None = self.body.get("code")
        return code


class _Edge:
    """The edge on a store in memory."""

    def __init__(self) -> None:
        self._store = Store()
        self._clock = FakeClock(NOW_MS)
        self._away = False

    def ask(
        self, operation: str, name: str, summary: str, body: Any = None, **more: Any
    ) -> Exchange:
        """Send a request. `key` is the path's, `claims` the token's."""
        method, resource = OPERATIONS[operation]
        claims = more.get("claims", {"custom:agentId": AGENT})
        event = {
            "httpMethod": method,
            "resource": resource,
            "pathParameters": {"idempotencyKey": more.get("key", KEY)},
            "body": body if body is None or isinstance(body, str) else json.dumps(body),
            "requestContext": {"authorizer": {"claims": claims}},
        }
        answer = handle_request(event, self._api())
        told = json.loads(answer["body"])
        status, headers = answer["statusCode"], answer["headers"]
        return Exchange(operation, name, summary, body, status, headers, told)

    def becomes(self, key: str = KEY, **changes: Any) -> None:
        """Time passes, and the rest of the system moves the row."""
        self._clock.pause(1.5)
        named = AgentId(AGENT), IdempotencyKey(key)
        row: OfflineTransaction = self._store.rows[named]
        self._store.rows[named] = replace(row, updated_at_ms=self._clock.now_ms(), **changes)

    @contextmanager
    def without_tables(self) -> Iterator[None]:
        """No table answers meanwhile."""
        self._away = True
        try:
            yield
        finally:
            self._away = False

    def _api(self) -> Api:
        table = FakeAcceptedTransactions(self._store)
        if self._away:
            table = around(table, unavailable("ThrottlingException"))
        return Api(table, FakeRefundDesk(self._store), self._clock, DEFAULTS, open_days=7)


def _submissions() -> Iterator[Exchange]:
    edge, operation = _Edge(), "submitTransaction"
    yield edge.ask(operation, "new", "Stored, and on its way", TRANSACTION)
    edge.becomes(status=Status.SYNCED)
    again = TRANSACTION | {"phone": "+254 712 345 678", "currency": "KES"}
    yield edge.ask(operation, "replay", "The same again, in another spelling: settled", again)
    refused = TRANSACTION | {"idempotencyKey": "2026-11-02.0043", "amount": 900_000_000}
    edge.ask(operation, "", "", refused)
    edge.becomes("2026-11-02.0043", status=Status.FAILED, reason=Reason.INSUFFICIENT_FUNDS.value)
    yield edge.ask(operation, "replayOfARefusal", "The same again: it was refused", refused)
    other = TRANSACTION | {"amount": 150_000}
    yield edge.ask(operation, "keyReused", "The key means another amount, which stands", other)
    bad = TRANSACTION | {"phone": "2547CALLNOW", "amount": 1250.5, "ammount": 1}
    yield edge.ask(operation, "invalid", "Three things are wrong", bad)
    yield edge.ask(operation, "notJson", "The body is cut off", '{"agentId": "AG-001"')
    yield from _turned_away(edge, operation, TRANSACTION)
    foreign = TRANSACTION | {"agentId": "AG-002"}
    yield edge.ask(operation, "anotherAgent", "The body names another agent", foreign)
    yield edge.ask(operation, "tooLarge", "The body is too long", " " * (BODY_BYTES_MAX + 1))


def _batches() -> Iterator[Exchange]:
    edge, operation = _Edge(), "submitBatch"
    first = TRANSACTION
    second = TRANSACTION | {"idempotencyKey": "2026-11-02.0043", "phone": "+255 754 330 912"}
    edge.ask(operation, "", "", {"transactions": [first]})
    edge.becomes(status=Status.SYNCED)
    mixed = [
        first,
        second,
        second | {"amount": 1},
        first | {"idempotencyKey": "2026-11-02.0044", "amount": 0},
        first | {"idempotencyKey": "2026-11-02.0045", "agentId": "AG-002"},
    ]
    yield edge.ask(
        operation,
        "eachOnItsOwn",
        "A replay, a new one, a reused key, a mistake, another agent's",
        {"transactions": mixed},
    )
    with edge.without_tables():
        yield edge.ask(
            operation,
            "notNow",
            "Nothing could be stored: send the batch again",
            {"transactions": [first | {"idempotencyKey": "2026-11-02.0046"}]},
        )
    yield edge.ask(operation, "empty", "A batch of nothing", {"transactions": []})
    yield from _unauthenticated(edge, operation, {"transactions": [first]})
    yield edge.ask(operation, "tooLarge", "The body is too long", " " * (BODY_BYTES_MAX + 1))


def _statuses() -> Iterator[Exchange]:
    edge, operation = _Edge(), "getStatus"
    edge.ask("submitTransaction", "", "", TRANSACTION)
    yield edge.ask(operation, "queued", "Accepted, not settled yet")
    edge.becomes(status=Status.SYNCED)
    yield edge.ask(operation, "synced", "The wallet was debited")
    edge.becomes(status=Status.PARTIALLY_REFUNDED, refunded_minor=25_000)
    yield edge.ask(operation, "partiallyRefunded", "A part went back")
    edge.becomes(status=Status.REFUNDED, refunded_minor=125_000)
    yield edge.ask(operation, "refunded", "All of it went back")
    edge.becomes(status=Status.FAILED, reason=Reason.WALLET_FROZEN.value, refunded_minor=None)
    yield edge.ask(operation, "failed", "Refused for good; nothing was debited")
    edge.becomes(status=Status.EXPIRED, reason=None)
    yield edge.ask(operation, "expired", "It was open for too long; nothing was debited")
    yield edge.ask(operation, "unknown", "No such key, or another agent's", key="never-used")
    yield from _turned_away(edge, operation, None)


def _refunds() -> Iterator[Exchange]:
    edge, operation = _Edge(), "requestRefund"
    full = {"reason": "wrong customer"}
    edge.ask("submitTransaction", "", "", TRANSACTION)
    yield edge.ask(operation, "tooEarly", "A part, before it is settled", REFUND)
    yield edge.ask(operation, "cancelled", "All of it, before it is settled", full)
    yield edge.ask(operation, "replay", "The same again", full)
    yield edge.ask(
        operation, "nothingToRefund", "No money had moved", REFUND | {"refundId": "RF-2026-0009"}
    )
    yield edge.ask(operation, "idReused", "The refundId was used otherwise", full | {"amount": 1})
    edge.becomes(status=Status.SYNCED, cancelled_by=None)
    too_much = REFUND | {"amount": 125_001}
    yield edge.ask(operation, "tooMuch", "More than what remains", too_much)
    yield edge.ask(operation, "requested", "A part of a settled one", REFUND)
    yield edge.ask(operation, "inProgress", "One after the other", full)
    yield edge.ask(operation, "unknown", "No such key, or another agent's", full, key="never-used")
    yield edge.ask(operation, "invalid", "It must say why", {"amount": 25_000})
    yield edge.ask(operation, "tooLarge", "The body is too long", " " * (BODY_BYTES_MAX + 1))
    yield from _turned_away(edge, operation, REFUND)


def _turned_away(edge: _Edge, operation: str, body: Any) -> Iterator[Exchange]:
    yield from _unauthenticated(edge, operation, body)
    with edge.without_tables():
        yield edge.ask(operation, "notNow", "The table does not answer", body)


def _unauthenticated(edge: _Edge, operation: str, body: Any) -> Iterator[Exchange]:
    yield edge.ask(
        operation, "noAgent", "An access token, or a user who is no agent", body, claims={}
    )


@cache
def exchanges() -> tuple[Exchange, ...]:
    """Every kind of answer of every operation, in the order of their telling."""
    level = logger.log_level
    logger.setLevel("CRITICAL")
    try:
        return (*_submissions(), *_batches(), *_statuses(), *_refunds())
    finally:
        logger.setLevel(level)
