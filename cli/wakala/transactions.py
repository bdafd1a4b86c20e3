"""Offline transactions as an agent's app sends them: through the HTTP API, and never as admin."""

import csv
import io
import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from wakala.output import Problem
from wallet_ledger import strict_json
from wallet_ledger.errors import InvalidMessage

ATTEMPTS_MAX = 8
BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 10.0
RETRY_AFTER_SECONDS_MAX = 60.0
"""Whoever is at the keyboard is told sooner than that."""
CONFLICT = 409

COLUMNS = ("agentId", "phone", "amount", "idempotencyKey", "currency", "capturedAt")
REQUIRED = COLUMNS[:4]
REFUND_MEMBERS = ("refundId", "amount", "reason")

type Document = dict[str, Any]
"""A transaction as it travels: `{agentId, phone, amount, idempotencyKey, …}`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API said to one transaction. `body` is its view, or a problem.

    `status` 0: it said nothing.
    """

    sent: Document
    status: int
    body: Document
    replayed: bool
    took_ms: float

    @property
    def accepted(self) -> bool:
        """Whether it is in the system's hands: only its view says so, and not any 200."""
        return self.status in (200, 202) and _is_view(self.body, self.sent)

    @property
    def retryable(self) -> bool:
        """Whether the same request may fare better later."""
        return not self.accepted and _may_pass(self.body)

    @property
    def outcome(self) -> str:
        """One word for a table; unsent is what the API may yet take."""
        if not self.accepted:
            return "unsent" if self.retryable else "refused"
        return "replayed" if self.replayed else "accepted"

    def view(self) -> Document:
        """The answer as scripts get it."""
        return {"httpStatus": self.status or None, "replayed": self.replayed, **self.body}


@dataclass(slots=True)
class AgentApi:
    """The API as one agent's app sees it; may be used by several threads.

    Every request carries an idempotency key, so whatever may pass is tried again, with full
    jitter and never before the server's own Retry-After.
    """

    url: str
    id_token: str = field(repr=False)
    pause: Callable[[float], None] = time.sleep
    transport: httpx.BaseTransport | None = None
    http: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Open the connections."""
        self.http = httpx.Client(
            headers={"Authorization": self.id_token, "Content-Type": "application/json"},
            timeout=35,
            transport=self.transport,
        )

    def submit(self, transaction: Document) -> Answer:
        """Send one transaction."""
        started = time.monotonic()
        answer = self._until_answered("POST", "/tx/offline", transaction)
        return Answer(
            transaction,
            answer.status_code,
            body_of(answer),
            answer.headers.get("Idempotent-Replayed") == "true",
            (time.monotonic() - started) * 1000,
        )

    def submit_all(self, transactions: Sequence[Document]) -> list[Answer]:
        """Send up to 50 as one batch; an answer for each, in their order.

        What the API could not store now goes again, one by one and in order.
        """
        started = time.monotonic()
        body = {"transactions": list(transactions)}
        answer = self._until_answered("POST", "/tx/offline/batch", body)
        took_ms = (time.monotonic() - started) * 1000
        said = body_of(answer)
        results = said.get("results") or [{"error": said}] * len(transactions)
        answers = [
            _answer_in_batch(sent, result, took_ms)
            for sent, result in zip(transactions, results, strict=True)
        ]
        return [self.submit(each.sent) if each.retryable else each for each in answers]

    def status(self, key: str) -> httpx.Response:
        """Ask for the status of one of the agent's transactions."""
        return self._until_answered("GET", f"/tx/status/{quote(key, safe='')}", None)

    def refund(self, wanted: Document) -> Answer:
        """Ask for a transaction back: `{agentId, idempotencyKey, refundId?, amount?, reason}`."""
        started = time.monotonic()
        path = f"/tx/{quote(wanted['idempotencyKey'], safe='')}/refund"
        body = {name: wanted[name] for name in REFUND_MEMBERS if name in wanted}
        answer = self._until_answered("POST", path, body)
        return Answer(
            wanted,
            answer.status_code,
            body_of(answer),
            answer.headers.get("Idempotent-Replayed") == "true",
            (time.monotonic() - started) * 1000,
        )

    def _until_answered(self, method: str, path: str, body: object) -> httpx.Response:
        """The first answer that repeating the request would not change, or else the last one."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                # In ASCII: half a surrogate, which no UTF-8 can say, is for the API to refuse.
                content = None if body is None else json.dumps(body)
                answer = self.http.request(method, self.url + path, content=content)
            except httpx.HTTPError as error:
                if attempt == ATTEMPTS_MAX:
                    raise Problem(f"no answer from {self.url}: {error}") from error
                self._wait(attempt, None)
                continue
            # A conflict is about the transaction: whether to ask once more is the caller's to say.
            body = body_of(answer)
            is_told = not {"idempotencyKey", "results"}.isdisjoint(body)
            is_answered = answer.status_code == CONFLICT or is_told
            if is_answered or not _may_pass(body) or attempt == ATTEMPTS_MAX:
                return answer
            self._wait(attempt, answer.headers.get("Retry-After"))
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, attempt: int, retry_after: str | None) -> None:
        ceiling = min(BACKOFF_SECONDS * 2**attempt, BACKOFF_SECONDS_MAX)
        asked = re.fullmatch("[0-9]{1,9}", retry_after or "", re.ASCII)
        floor = min(float(asked[0]), RETRY_AFTER_SECONDS_MAX) if asked else 0.0
        self.pause(floor + random.uniform(0, ceiling))


def read_file(path: Path, agent_id: str | None = None) -> list[Document]:
    """The transactions of a CSV (with a header) or NDJSON file, in its order.

    `agent_id` stands in where a line names no agent. Problem that names the line for whatever
    cannot be sent as it stands; what may be accepted is for the API to say.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise Problem(f"cannot read {path}: {reason}") from error
    read = _csv if path.suffix.lower() == ".csv" else _ndjson
    transactions = []
    for number, document in read(text, path.name):
        if agent_id is not None:
            document.setdefault("agentId", agent_id)
        if not isinstance(document.get("agentId"), str):
            raise Problem(f"{path.name} line {number}: no agentId (or give one with --agent)")
        transactions.append(document)
    if not transactions:
        raise Problem(f"{path.name} holds no transaction")
    return transactions


def count(answers: Sequence[Answer]) -> dict[str, int]:
    """How many had each outcome."""
    words = Counter(answer.outcome for answer in answers)
    return {word: words[word] for word in ("accepted", "replayed", "refused", "unsent")}


def why(answer: Answer) -> str:
    """Why a transaction was refused, or failed, in a few words; nothing where it was not."""
    if answer.accepted:
        return str(answer.body.get("reason", ""))
    code = answer.body.get("code", "")
    fields = ", ".join(f"{e['field']}: {e['message']}" for e in answer.body.get("errors", []))
    return " ".join(filter(None, [code, fields or str(answer.body.get("detail", ""))]))


def _csv(text: str, name: str) -> Iterator[tuple[int, Document]]:
    rows = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    header = rows.fieldnames or []
    if len(set(header)) != len(header):  # which of two phones is meant is nobody's to guess
        raise Problem(f"{name}: a column stands twice in its first line")
    unknown = [column for column in header if column not in COLUMNS]
    missing = [column for column in REQUIRED[1:] if column not in header]
    if unknown or missing:
        wrong = f"unknown column {unknown[0]}" if unknown else f"no column {missing[0]}"
        raise Problem(f"{name}: {wrong}; the columns are {', '.join(COLUMNS)}")
    try:
        for row in rows:
            if None in row or None in row.values():
                raise Problem(f"{name} line {rows.line_num}: {len(header)} columns are expected")
            yield rows.line_num, _csv_document(row, name, rows.line_num)
    except csv.Error as error:
        raise Problem(f"{name} after line {rows.line_num}: {error}") from error


def _csv_document(row: Mapping[str, str], name: str, line: int) -> Document:
    document: Document = {column: text for column, text in row.items() if text != ""}
    amount = row["amount"]
    if not re.fullmatch(r"-?[0-9]{1,18}", amount, re.ASCII):
        raise Problem(f"{name} line {line}: amount {amount!r} is not an integer in minor units")
    return document | {"amount": int(amount)}


def _ndjson(text: str, name: str) -> Iterator[tuple[int, Document]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            document = strict_json.read(line)
        except InvalidMessage as error:
            raise Problem(f"{name} line {number}: not JSON") from error
        if isinstance(document, strict_json.NotStrict):
            raise Problem(f"{name} line {number}: {document.what}")
        if not isinstance(document, dict):
            raise Problem(f"{name} line {number}: not a JSON object")
        for member, value in document.items():
            if isinstance(value, strict_json.NotStrict):
                raise Problem(f"{name} line {number}: {member}: {value.what}")
        yield number, document


def _answer_in_batch(sent: Document, result: Document, took_ms: float) -> Answer:
    """One of a batch's results, as if it had come alone."""
    if "error" in result:
        error = result["error"]
        return Answer(sent, int(error.get("status", 0)), error, replayed=False, took_ms=took_ms)
    replayed = result.get("replayed") is True
    view = {name: value for name, value in result.items() if name != "replayed"}
    return Answer(sent, 200 if replayed else 202, view, replayed, took_ms)


def _is_view(body: Document, sent: Document) -> bool:
    return body.get("idempotencyKey") == sent.get("idempotencyKey") and "status" in body


def _may_pass(body: Document) -> bool:
    """Whether the same request may fare better later: a problem says, all else is not the API's."""
    return body.get("retryable", "code" not in body) is not False


def body_of(answer: httpx.Response) -> Document:
    """The answer's JSON object; a gateway that sent something else is quoted."""
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        return body
    return {"status": answer.status_code, "detail": answer.text[:200]}
