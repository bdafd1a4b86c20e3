"""The HTTP edge: routes, and the one table from what happened to what an agent's app is told."""

import base64
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, assert_never
from urllib.parse import unquote

from ingest.accept import (
    Acceptance,
    Accepted,
    KeyReused,
    NotStored,
    Replayed,
    accept_many,
    accept_one,
)
from ingest.refund import (
    CancelledNow,
    InProgress,
    NotRefundable,
    RefundIdReused,
    Repeated,
    Requested,
    Unknown,
    Wanted,
    request_refund,
)
from wallet_ledger import strict_json
from wallet_ledger.contracts import (
    Defaults,
    FieldError,
    InvalidRequest,
    read_batch,
    read_refund_wanted,
    read_transaction,
)
from wallet_ledger.domain.ids import AgentId, IdempotencyKey, is_id, transaction_ref
from wallet_ledger.domain.transactions import OfflineTransaction, Request
from wallet_ledger.errors import InvalidMessage, Unavailable
from wallet_ledger.patience import Patience
from wallet_ledger.ports import AcceptedTransactions, Clock, RefundDesk
from wallet_ledger.telemetry import count, in_current_trace, logger

BODY_BYTES_MAX = 64 * 1024
"""A full batch with every member at its longest is half of this."""
RETRY_AFTER_S = 1
REFUND_BUDGET_MS = 1_000
"""How long a refund may look again at a row that others are moving."""

type Event = Mapping[str, Any]
type Json = dict[str, Any]

PROBLEMS: Mapping[str, HTTPStatus] = {
    "VALIDATION_FAILED": HTTPStatus.BAD_REQUEST,
    "UNAUTHENTICATED": HTTPStatus.UNAUTHORIZED,
    "AGENT_MISMATCH": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "REFUND_IN_PROGRESS": HTTPStatus.CONFLICT,
    "NOT_REFUNDABLE": HTTPStatus.CONFLICT,
    "TOO_LARGE": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "KEY_REUSED": HTTPStatus.UNPROCESSABLE_ENTITY,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
}
"""Every code of an answer that is not the one asked for, and its HTTP status."""


@dataclass(frozen=True, slots=True)
class Api:
    """What the routes work with."""

    table: AcceptedTransactions
    refunds: RefundDesk
    clock: Clock
    defaults: Defaults
    open_days: int


@dataclass(eq=False)
class Problem(Exception):
    """An answer that is not the one asked for, as application/problem+json (RFC 9457)."""

    code: str
    detail: str
    retryable: bool = False
    errors: tuple[FieldError, ...] = ()
    reason: str | None = None

    @property
    def status(self) -> HTTPStatus:
        """The HTTP status that goes with the code."""
        return PROBLEMS[self.code]

    def members(self) -> Json:
        """The problem's JSON members."""
        members: Json = {
            "title": self.status.phrase,
            "status": int(self.status),
            "code": self.code,
            "detail": self.detail,
            "retryable": self.retryable,
        }
        if self.reason is not None:
            members["reason"] = self.reason
        if self.errors:
            members["errors"] = [
                {"field": each.field, "code": each.code, "message": each.message}
                for each in self.errors
            ]
        return members


def handle_request(event: Event, api: Api) -> Json:
    """An API Gateway REST proxy event → its answer."""
    try:
        route = _ROUTES.get((event["httpMethod"], event["resource"]))
        if route is None:
            raise Problem("NOT_FOUND", "no such resource")
        return route(event, _agent(event), api)
    except Problem as problem:
        logger.info("refused", extra={"code": problem.code, "fields": _fields(problem)})
        return _answer_problem(problem)
    except Unavailable as error:
        logger.warning("unavailable", extra={"code": error.code})
        return _answer_problem(_unavailable())


def submit(event: Event, agent_id: AgentId, api: Api) -> Json:
    """POST /tx/offline: 202 new, 200 a replay, 422 the key means something else."""
    request = _own_request(_read_body(event), agent_id, api)
    acceptance = accept_one(request, api.table, api.clock, api.open_days)
    _report(request, acceptance)
    match acceptance:
        case Accepted(row):
            return _answer(HTTPStatus.ACCEPTED, _view(row))
        case Replayed(row):
            return _answer(HTTPStatus.OK, _view(row), {"Idempotent-Replayed": "true"})
        case KeyReused() | NotStored():
            raise _problem_of(acceptance)
        case _:
            assert_never(acceptance)


def submit_batch(event: Event, agent_id: AgentId, api: Api) -> Json:
    """POST /tx/offline/batch: 200, each item with its own status or error, in order."""
    try:
        batch = read_batch(_read_body(event))
    except InvalidRequest as error:
        raise _invalid(error) from None
    results: list[Json] = [{} for _ in batch]
    readable: list[tuple[int, Request]] = []
    for index, document in enumerate(batch):
        try:
            readable.append((index, _own_request(document, agent_id, api)))
        except Problem as problem:
            logger.info("refused", extra={"code": problem.code, "fields": _fields(problem)})
            results[index] = _key_of(document) | {"error": problem.members()}
    requests = [request for _, request in readable]
    acceptances = accept_many(
        requests, api.table, api.clock, api.open_days, in_thread=in_current_trace
    )
    for (index, request), acceptance in zip(readable, acceptances, strict=True):
        _report(request, acceptance)
        results[index] = _result(request, acceptance)
    return _answer(HTTPStatus.OK, {"results": results})


def status(event: Event, agent_id: AgentId, api: Api) -> Json:
    """GET /tx/status/{idempotencyKey}: of the caller's own transactions, as of now."""
    row = api.table.find(agent_id, _key_in_path(event))
    if row is None:
        raise _unknown()
    return _answer(HTTPStatus.OK, _view(row))


def refund(event: Event, agent_id: AgentId, api: Api) -> Json:
    """POST /tx/{idempotencyKey}/refund: 200 cancelled or a replay, 202 on its way, 409 not now."""
    key = _key_in_path(event)
    try:
        body = read_refund_wanted(_read_body(event), api.defaults)
    except InvalidRequest as error:
        raise _invalid(error) from None
    wanted = Wanted(agent_id, key, body.refund_id, body.amount_minor, body.note)
    patience = Patience(api.clock, random.random, REFUND_BUDGET_MS)
    answer = request_refund(wanted, api.table, api.refunds, api.clock, patience)
    ref = transaction_ref(agent_id, key)
    logger.info("refund answered", extra={"transaction": ref, "answer": type(answer).__name__})
    match answer:
        case CancelledNow(row):
            count("RefundsCompleted")
            return _answer(HTTPStatus.OK, _view(row))
        case Requested(row):
            return _answer(HTTPStatus.ACCEPTED, _view(row))
        case Repeated(row):
            count("DuplicatesSuppressed")
            return _answer(HTTPStatus.OK, _view(row), {"Idempotent-Replayed": "true"})
        case Unknown() | InProgress() | NotRefundable() | RefundIdReused():
            raise _refund_problem(answer)
        case _:
            assert_never(answer)


type Route = Callable[[Event, AgentId, Api], Json]

_ROUTES: dict[tuple[str, str], Route] = {
    ("POST", "/tx/offline"): submit,
    ("POST", "/tx/offline/batch"): submit_batch,
    ("GET", "/tx/status/{idempotencyKey}"): status,
    ("POST", "/tx/{idempotencyKey}/refund"): refund,
}


def _agent(event: Event) -> AgentId:
    """The agent that the ID token names; an access token names none and is refused."""
    authorizer = event["requestContext"].get("authorizer") or {}
    agent_id = (authorizer.get("claims") or {}).get("custom:agentId", "")
    if not is_id(agent_id):
        raise Problem(
            "UNAUTHENTICATED",
            "the token names no agent: send the ID token of an enrolled agent",
        )
    return AgentId(agent_id)


def _read_body(event: Event) -> Any:
    text = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            text = base64.b64decode(text, validate=True).decode()
        except ValueError:
            raise _invalid_body("the body is not UTF-8 in base64") from None
    if len(text.encode(errors="surrogatepass")) > BODY_BYTES_MAX:
        raise Problem(
            "TOO_LARGE",
            f"a body holds at most {BODY_BYTES_MAX} bytes",
        )
    try:
        return strict_json.read(text)
    except InvalidMessage as error:
        raise _invalid_body(str(error)) from None


def _own_request(document: Any, agent_id: AgentId, api: Api) -> Request:
    try:
        request = read_transaction(document, api.defaults)
    except InvalidRequest as error:
        raise _invalid(error) from None
    if request.agent_id != agent_id:
        raise Problem(
            "AGENT_MISMATCH",
            "agentId is not the agent that the token names",
        )
    return request


def _result(request: Request, acceptance: Acceptance) -> Json:
    match acceptance:
        case Accepted(row):
            return _view(row) | {"replayed": False}
        case Replayed(row):
            return _view(row) | {"replayed": True}
        case KeyReused() | NotStored():
            error = _problem_of(acceptance).members()
            return {"idempotencyKey": request.idempotency_key, "error": error}
        case _:
            assert_never(acceptance)


def _problem_of(acceptance: KeyReused | NotStored) -> Problem:
    match acceptance:
        case KeyReused(fields):
            return Problem(
                "KEY_REUSED",
                "this idempotencyKey was accepted with other content, which stands",
                errors=tuple(
                    FieldError(name, "differs", "not what the key was accepted with")
                    for name in fields
                ),
            )
        case NotStored():
            return _unavailable()
        case _:
            assert_never(acceptance)


def _refund_problem(answer: Unknown | InProgress | NotRefundable | RefundIdReused) -> Problem:
    match answer:
        case Unknown():
            return _unknown()
        case InProgress():
            return Problem(
                "REFUND_IN_PROGRESS",
                "another refund of this transaction is under way",
                retryable=True,
            )
        case NotRefundable(None):
            return Problem(
                "NOT_REFUNDABLE",
                "not settled yet: it can be cancelled in full, or refunded in part later",
                retryable=True,
            )
        case NotRefundable(reason, remaining_minor):
            left = "" if remaining_minor is None else f"; {remaining_minor} minor units remain"
            return Problem("NOT_REFUNDABLE", f"{reason}{left}", reason=reason)
        case RefundIdReused():
            return Problem(
                "KEY_REUSED",
                "this refundId was used for another amount, which stands",
                errors=(FieldError("amount", "differs", "not what the refundId was used with"),),
            )
        case _:
            assert_never(answer)


def _unknown() -> Problem:
    return Problem("NOT_FOUND", "no transaction of yours has this key")


def _key_in_path(event: Event) -> IdempotencyKey:
    key = unquote((event.get("pathParameters") or {}).get("idempotencyKey", ""))
    if not is_id(key):
        raise _unknown()
    return IdempotencyKey(key)


def _unavailable() -> Problem:
    return Problem(
        "UNAVAILABLE",
        "not now: send the same request again, with the same idempotencyKey",
        retryable=True,
    )


def _invalid(error: InvalidRequest) -> Problem:
    return Problem(
        "VALIDATION_FAILED",
        "the request breaks the contract; nothing was stored",
        errors=error.errors,
    )


def _invalid_body(why: str) -> Problem:
    return _invalid(InvalidRequest((FieldError("$", "not_json", why),)))


def _view(row: OfflineTransaction) -> Json:
    """What an agent may know of its transaction: no phone, no balance, no internals."""
    view: Json = {
        "idempotencyKey": row.idempotency_key,
        "status": row.status.public,
        "amount": row.amount_minor,
        "currency": row.currency,
        "createdAt": row.created_at_ms,
        "updatedAt": row.updated_at_ms,
    }
    if row.reason is not None:
        view["reason"] = row.reason
    if row.refunded_minor is not None:
        view["refunded"] = row.refunded_minor
    return view


def _key_of(document: Any) -> Json:
    """The key of an item that could not be read, so that an app can tell which one it was."""
    key = document.get("idempotencyKey") if isinstance(document, dict) else None
    return {"idempotencyKey": key} if isinstance(key, str) and is_id(key) else {}


def _answer(status: HTTPStatus, body: Json, headers: Mapping[str, str] | None = None) -> Json:
    return {
        "statusCode": int(status),
        "headers": {"Content-Type": "application/json", "Cache-Control": "no-store"}
        | dict(headers or {}),
        "body": json.dumps(body),
    }


def _answer_problem(problem: Problem) -> Json:
    headers = {"Content-Type": "application/problem+json"}
    if problem.status is HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return _answer(problem.status, problem.members(), headers)


def _fields(problem: Problem) -> Sequence[str]:
    return [f"{each.field}: {each.code}" for each in problem.errors]


def _report(request: Request, acceptance: Acceptance) -> None:
    """One log line per decision, and its metric."""
    match acceptance:
        case Accepted():
            count("TransactionsAccepted")
        case Replayed():
            count("DuplicatesSuppressed")
        case KeyReused() | NotStored():
            pass
        case _:
            assert_never(acceptance)
    ref = transaction_ref(request.agent_id, request.idempotency_key)
    answer = type(acceptance).__name__
    logger.info("request answered", extra={"transaction": ref, "answer": answer})
