"""What travels, and how an answer is read: nothing that it does not clearly say is believed."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any

from wakala_agent.transaction import State, Transaction

BATCH_MAX = 50
"""Transactions in one request, as the API takes them."""

ANSWER_BYTES_MAX = 256 * 1024
"""A full batch's answer, each item with a problem of its own, is a fifth of this."""

RETRY_AFTER_MAX_S = 3_600.0
"""No outage asks for more; a mistake of a server must not silence a phone for days."""

REFUSAL_STATUSES = frozenset({400, 413, 422})
"""A request refused whole for what is in it: each half is tried, down to the one it is about."""

OVERLOADED_STATUSES = frozenset({429, 503})
"""Nothing is wrong with the request: there are too many."""

FOREIGN = "an answer that is none of this API's"

_CALLER_CODES = frozenset({"UNAUTHENTICATED", "AGENT_MISMATCH"})
"""Codes of an item that are about whose token it is: nothing is wrong with the item."""

_PROBLEM_MEMBERS = ("code", "title", "detail", "status", "reason", "errors")
_SECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}", re.ASCII)
_MS_MAX = 2**53


@dataclass(frozen=True)
class Call:
    """A request: what, and for how long it may be waited for."""

    method: str
    path: str
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    timeout_s: float = 35.0


@dataclass(frozen=True)
class Answer:
    """An answer, or why there was none. `body` is empty where it was no JSON object.

    `retry_after_s`: what the server asks for; `server_ms`: its clock, if it said.
    `unreached`: the request cannot have arrived.
    """

    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    retry_after_s: float = 0.0
    server_ms: int | None = None
    why: str = ""
    unreached: bool = False

    @property
    def code(self) -> str | None:
        """The code of the API's problem; None where it is no problem of this API."""
        return _code(self.body) if isinstance(self.body.get("retryable"), bool) else None

    @property
    def may_pass(self) -> bool:
        """Whether the same request may fare better later: the API says so, else its status."""
        if self.code is not None:
            return self.body["retryable"] is True
        if 400 <= self.status < 500 and self.status not in (401, 403, 404):
            return self.status in (408, 425, 429) or not self.body  # a page of something between
        return self.status == 0 or self.status >= 500

    @property
    def may_be_the_request(self) -> bool:
        """Whether the server may have failed at what it was sent, rather than at anything."""
        return not self.unreached and self.status not in OVERLOADED_STATUSES

    @property
    def is_unknown_key(self) -> bool:
        """Whether the API says that no transaction of this agent has the key."""
        return self.status == 404 and self.code == "NOT_FOUND"

    @property
    def is_refusal(self) -> bool:
        """Whether the API refuses what the request holds, for good."""
        return self.status in REFUSAL_STATUSES and self.code is not None and not self.may_pass

    @property
    def told(self) -> str:
        """In a few words, for a log."""
        return self.why or f"{self.status} {_code(self.body) or ''}".strip()


@dataclass(frozen=True)
class Known:
    """The server has it; it is where it says."""

    state: State
    reason: str | None
    replayed: bool


@dataclass(frozen=True)
class Refused:
    """The API will not take it as it is."""

    problem: Mapping[str, Any]

    @property
    def is_of_anothers_key(self) -> bool:
        """Whether the key stands for another phone or amount, which every try says alike.

        Not the currency: where the transaction names none, it is what the server's default was.
        """
        errors = self.problem.get("errors")
        found = errors if isinstance(errors, list) else []
        differing = [each.get("field") for each in found if isinstance(each, dict)]
        is_taken = self.problem.get("code") == "KEY_REUSED"
        return is_taken and ("phone" in differing or "amount" in differing)


@dataclass(frozen=True)
class NotNow:
    """Nothing was decided: it is sent again."""

    why: str


@dataclass(frozen=True)
class NotTheirs:
    """The token is another agent's, or nobody's."""

    why: str


Verdict = Known | Refused | NotNow | NotTheirs


def read_answer(status: int, headers: Mapping[str, str], content: bytes) -> Answer:
    """What came over the wire."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    date_s = _date_s(headers.get("Date", ""))
    return Answer(
        status=status,
        body=body if isinstance(body, dict) else {},
        retry_after_s=_retry_after_s(headers.get("Retry-After", ""), date_s),
        server_ms=None if date_s is None else int(date_s * 1000),
    )


def read_results(answer: Answer, page: Sequence[Transaction]) -> list[Verdict] | None:
    """A verdict for each of the page, in its order; None where it is no answer of this API."""
    results = answer.body.get("results")
    if not isinstance(results, list) or len(results) != len(page):
        return None
    return [_verdict(result, sent) for result, sent in zip(results, page, strict=True)]


def read_status(answer: Answer, sent: Transaction) -> Known | None:
    """What a status request says of a transaction; None where it does not say."""
    return _known(answer.body, sent) if answer.status == 200 else None


def is_anothers(answer: Answer, sent: Transaction) -> bool:
    """Whether a status request says that the key stands for another amount or currency."""
    view = answer.body
    return (
        answer.status == 200
        and view.get("idempotencyKey") == sent.idempotency_key
        and isinstance(view.get("status"), str)
        and type(view.get("amount")) is int
        and isinstance(view.get("currency"), str)
        and _known(view, sent) is None
    )


def refusal(problem: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a problem."""
    return {name: problem[name] for name in _PROBLEM_MEMBERS if name in problem}


def _verdict(result: object, sent: Transaction) -> Verdict:
    """An answer about another key or amount is about another transaction, wherever it stands."""
    unclear = NotNow(FOREIGN)
    if not isinstance(result, dict):
        return unclear
    if "error" not in result:
        return _known(result, sent) or unclear
    problem = result["error"]
    if not isinstance(problem, dict) or result.get("idempotencyKey") not in (
        None,
        sent.idempotency_key,
    ):
        return unclear
    code, retryable = _code(problem), problem.get("retryable")
    if code is None or not isinstance(retryable, bool):
        return unclear
    if retryable:
        return NotNow(code)
    is_callers = code in _CALLER_CODES or problem.get("status") in (401, 403)
    return NotTheirs(code) if is_callers else Refused(refusal(problem))


def _known(view: Mapping[str, Any], sent: Transaction) -> Known | None:
    word, reason = view.get("status"), view.get("reason")
    if view.get("idempotencyKey") != sent.idempotency_key or not isinstance(word, str):
        return None
    if type(view.get("amount")) is not int or view["amount"] != sent.amount:
        return None
    if sent.currency is not None and view.get("currency") != sent.currency:
        return None
    return Known(
        _state(word),
        reason if isinstance(reason, str) and _CODE.fullmatch(reason) else None,
        view.get("replayed") is True,
    )


def _state(word: str) -> State:
    """The server's word. One that is not known here is at least not "never heard of it"."""
    try:
        state = State(word)
    except ValueError:
        return State.QUEUED
    return State.QUEUED if state in (State.STORED, State.REFUSED) else state


def _code(problem: Mapping[str, Any]) -> str | None:
    code = problem.get("code")
    return code if isinstance(code, str) and _CODE.fullmatch(code) else None


def _retry_after_s(value: str, date_s: float | None) -> float:
    """Seconds, or a date (RFC 9110): compared with the server's own clock, never the device's."""
    if _SECONDS.fullmatch(value.strip()):
        asked_s = float(value)
    else:
        until_s = _date_s(value)
        asked_s = 0.0 if until_s is None or date_s is None else until_s - date_s
    return min(max(asked_s, 0.0), RETRY_AFTER_MAX_S)


def _date_s(value: str) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    return seconds if 0 <= seconds < _MS_MAX / 1000 else None
