"""The public API as an agent's device sees it, and what can come between: strict, and in memory.

`AgentApi` is the server: it has a key once, by its content, and notes what breaks the contract.
`Wire` is the network to it, for httpx; a fault says what goes wrong with one request.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from urllib.parse import unquote

import httpx

TOKEN = "a-valid-token"
AGENT = "AG-001"
DATE = "Sun, 29 Nov 2026 12:00:00 GMT"

_REQUIRED = {"agentId", "phone", "amount", "idempotencyKey"}
_OPTIONAL = {"currency", "capturedAt"}

Json = dict[str, Any]


def problem(code: str, status: int, retryable: bool = False, **more: Any) -> Json:
    """A problem's members."""
    return {"title": code, "status": status, "code": code, "retryable": retryable, **more}


@dataclass
class Reply:
    """An answer on the wire."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def reply(status: int, body: Mapping[str, Any], **headers: str) -> Reply:
    """A JSON answer; `Retry_After` is spelt `Retry-After`."""
    spelt = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(body).encode(), {"Date": DATE} | spelt)


@dataclass
class AgentApi:
    """The server. `asks_until_settled`: status requests that find a transaction still queued."""

    token: str = TOKEN
    agent_id: str = AGENT
    currency: str = "KES"
    """Of a transaction that names none."""
    asks_until_settled: int = 0
    refused: dict[str, Json] = field(default_factory=dict)
    """The problem with which a key's item is answered, as long as it is in here."""
    rows: dict[str, Json] = field(default_factory=dict)
    """Key → its first request, in the order of acceptance."""
    debits: list[str] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    batches: list[list[str]] = field(default_factory=list)
    lock: RLock = field(default_factory=RLock)

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> Reply:
        """What the server says to one request."""
        with self.lock:
            if authorization != self.token:
                return reply(401, problem("UNAUTHENTICATED", 401))
            if (method, path) == ("POST", "/tx/offline/batch"):
                return self._batch(json.loads(body))
            if method == "GET" and path.startswith("/tx/status/"):
                return self._status(unquote(path.removeprefix("/tx/status/")))
            self.breaches.append(f"{method} {path}")
            return reply(404, problem("NOT_FOUND", 404))

    def phones(self) -> dict[str, list[str]]:
        """Phone → its accepted keys, in the order of acceptance."""
        lanes: dict[str, list[str]] = {}
        for key, row in self.rows.items():
            lanes.setdefault(row["phone"], []).append(key)
        return lanes

    def _batch(self, document: Json) -> Reply:
        items = document["transactions"]
        if set(document) != {"transactions"} or not 1 <= len(items) <= 50:
            self.breaches.append(f"a batch of {len(items)}")
        self.batches.append([item["idempotencyKey"] for item in items])
        held_up: set[str] = set()
        return reply(200, {"results": [self._item(item, held_up) for item in items]})

    def _item(self, item: Json, held_up: set[str]) -> Json:
        key = item["idempotencyKey"]
        if not set(item) >= _REQUIRED or set(item) - _REQUIRED - _OPTIONAL:
            self.breaches.append(f"members {sorted(item)}")
        if type(item["amount"]) is not int:
            self.breaches.append(f"amount {item['amount']!r}")
        if item["agentId"] != self.agent_id:
            return {"idempotencyKey": key, "error": problem("AGENT_MISMATCH", 403)}
        told = self.refused.get(key)
        if told is None and item["phone"] in held_up:
            told = problem("UNAVAILABLE", 503, retryable=True)
        if told is not None:
            held_up |= {item["phone"]} if told.get("retryable") is True else set()
            return {"idempotencyKey": key, "error": told}
        content = {name: item.get(name) for name in ("phone", "amount", "currency")}
        content["currency"] = content["currency"] or self.currency
        if key not in self.rows:
            self.rows[key] = content
            return self._view(key) | {"replayed": False}
        differing = [name for name in content if self.rows[key][name] != content[name]]
        if differing:
            errors = [{"field": name, "code": "differs", "message": "no"} for name in differing]
            return {"idempotencyKey": key, "error": problem("KEY_REUSED", 422, errors=errors)}
        return self._view(key) | {"replayed": True}

    def _status(self, key: str) -> Reply:
        if key not in self.rows:
            return reply(404, problem("NOT_FOUND", 404))
        self.asked[key] = self.asked.get(key, 0) + 1
        if self.asked[key] > self.asks_until_settled and key not in self.debits:
            self.debits.append(key)
        return reply(200, self._view(key))

    def _view(self, key: str) -> Json:
        row = self.rows[key]
        return {
            "idempotencyKey": key,
            "status": "synced" if key in self.debits else "queued",
            "amount": row["amount"],
            "currency": row["currency"],
            "createdAt": 1_796_000_000_000,
            "updatedAt": 1_796_000_000_000,
        }


Fault = Callable[[AgentApi, httpx.Request], Reply]
"""What becomes of one request."""


def well(api: AgentApi, request: httpx.Request) -> Reply:
    """Nothing goes wrong."""
    return api.answer(
        request.method,
        request.url.path.removeprefix("/prod"),
        request.headers["Authorization"],
        request.content,
    )


def lost(api: AgentApi, request: httpx.Request) -> Reply:
    """The server does it, and its answer never comes."""
    well(api, request)
    raise httpx.ReadTimeout("", request=request)


def unreached(api: AgentApi, request: httpx.Request) -> Reply:
    """There is no network."""
    raise httpx.ConnectError("", request=request)


def dropped(api: AgentApi, request: httpx.Request) -> Reply:
    """It was sent, and the server never saw it."""
    raise httpx.ReadTimeout("", request=request)


def twice(api: AgentApi, request: httpx.Request) -> Reply:
    """The network delivers it twice."""
    well(api, request)
    return well(api, request)


def answered(status: int, body: Mapping[str, Any], **headers: str) -> Fault:
    """The server does nothing, and says this."""
    return lambda api, request: reply(status, body, **headers)


def raw(status: int, body: bytes, content_type: str = "text/html") -> Fault:
    """Something between says this."""
    return lambda api, request: Reply(status, body, {"Content-Type": content_type})


def spoilt(change: Callable[[bytes], bytes]) -> Fault:
    """The server does it, and its answer comes changed."""

    def fault(api: AgentApi, request: httpx.Request) -> Reply:
        told = well(api, request)
        return Reply(told.status, change(told.body), told.headers)

    return fault


def rearranged(change: Callable[[list[Json]], list[Json]]) -> Fault:
    """The server does it, and the results of its batch come changed."""

    def respell(body: bytes) -> bytes:
        document = json.loads(body)
        if "results" in document:
            document["results"] = change(document["results"])
        return json.dumps(document).encode()

    return spoilt(respell)


class Wire:
    """httpx's way to the server; `faults` go with the requests in their order, then all is well."""

    def __init__(self, api: AgentApi, faults: Iterable[Fault] = ()) -> None:
        self.api = api
        self.faults: Iterator[Fault] = iter(faults)
        self.requests: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        told = next(self.faults, well)(self.api, request)
        return httpx.Response(told.status, headers=told.headers, content=told.body)
