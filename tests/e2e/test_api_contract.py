"""The deployed API against docs/openapi.yaml: schemathesis sends what that allows and forbids.

The same requests at every run. What is not asked, since the gateway cannot say it: a 405 for a
method that is not there (API Gateway answers 404) and, on the local engine, a 413 of the gateway's
own. Nor is an integer written `1.0`: JSON Schema takes it for one, the API does not and says so.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import hypothesis.core
import jsonschema_rs
import pytest
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine
from hypothesis.strategies._internal import collections
from hypothesis.vendor.pretty import RepresentationPrinter
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CheckContext, CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.e2e.actors import Agent, BackOffice, away
from tests.exchanges import OPERATIONS
from tests.openapi import PATH
from wakala.stack import Stack

EXAMPLES = 64
"""Requests of each operation and each kind."""

DOCUMENT: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
MEMBERS = {name: SCHEMAS[name].get("properties", {}).keys() for name in SCHEMAS}
ID = jsonschema_rs.validator_for(SCHEMAS["Id"])
TRANSACTION = jsonschema_rs.validator_for(
    SCHEMAS["TransactionBody"] | {"components": {"schemas": SCHEMAS}}
)
# Values for what the API checks of a text beyond its pattern.
FORMATS = {
    "phone": st.sampled_from(
        ["0712 345 678", "+254-733-000-111", "254 (0) 722.110.301", "+44 20 7946 0018"]
    ),
    "note": st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=35),
    "date-time": st.datetimes().map(lambda at: f"20{at.isoformat()[2:]}+03:00"),
}
PAYER = "254733000222"
"""Whose wallet can pay."""

type Change = Callable[[Case[Any], Random], None]
"""Makes of a generated request one that this agent could send."""


@pytest.fixture(scope="module")
def api(stack: Stack) -> Iterator[OpenApiSchema]:
    """The description as schemathesis reads it."""
    for name, strategy in FORMATS.items():
        schemathesis.openapi.format(name, strategy)
    with pytest.MonkeyPatch.context() as kept:
        # It replaces these for good, and tests after it would no longer print what failed.
        kept.setattr(hypothesis.core, "RepresentationPrinter", RepresentationPrinter)
        for module in (hypothesis.core, engine, collections):
            kept.setattr(module, "BUFFER_SIZE", engine.BUFFER_SIZE)
        yield schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def settled(agent: Agent, back_office: BackOffice) -> list[str]:
    """Keys of transactions that have been settled."""
    back_office.fund(PAYER, 100_000)
    keys = [f"contract-settled-{n}" for n in range(6)]
    agent.batch(*(agent.transaction(PAYER, 100, idempotencyKey=key) for key in keys))
    for key in keys:
        assert agent.ended(key)["status"] == "synced"
    return keys


def test_a_status_is_told_of_any_key(api: OpenApiSchema, agent: Agent, settled: list[str]) -> None:
    def change(case: Case[Any], random: Random) -> None:
        _name_one_of(settled, case, random)

    assert _talk(api, agent, "getStatus", change) == {200, 404}


def test_a_refund_that_the_description_allows_is_answered_as_described(
    api: OpenApiSchema, agent: Agent, settled: list[str], stack: Stack
) -> None:
    still_open = [f"contract-open-{n}" for n in range(6)]

    def change(case: Case[Any], random: Random) -> None:
        _name_one_of(settled + still_open, case, random)
        body = _whole(case.body)
        if "amount" in body:  # else nearly all would be more than there is
            body["amount"] = random.randint(1, 150)
        if random.random() < 0.5:
            body["refundId"] = random.choice(["r-1", "r-2"])
        case.body = body

    with away(stack, "reconcile"):
        agent.batch(*(agent.transaction(PAYER, 100, idempotencyKey=key) for key in still_open))
        assert _talk(api, agent, "requestRefund", change) == {200, 202, 404, 409, 422}


def test_a_transaction_that_the_description_allows_is_taken(
    api: OpenApiSchema, agent: Agent
) -> None:
    def change(case: Case[Any], _: Random) -> None:
        case.body = _whole(case.body) | {"agentId": agent.agent_id}

    assert _talk(api, agent, "submitTransaction", change) == {202, 200, 422}


def test_a_batch_that_the_description_allows_is_taken(api: OpenApiSchema, agent: Agent) -> None:
    def change(case: Case[Any], _: Random) -> None:
        few = _whole(case.body)["transactions"][:2]
        case.body = {"transactions": [each | {"agentId": agent.agent_id} for each in few]}

    assert _talk(api, agent, "submitBatch", change, _every_item_is_taken) == {200}


def test_a_transaction_that_the_description_forbids_is_refused(
    api: OpenApiSchema, agent: Agent
) -> None:
    def change(case: Case[Any], _: Random) -> None:
        case.body = _signed(case.body, agent)

    assert _talk(api, agent, "submitTransaction", change, _is_refused, forbidden=True) == {400}


def test_of_a_batch_every_item_that_the_description_forbids_is_refused(
    api: OpenApiSchema, agent: Agent
) -> None:
    def change(case: Case[Any], _: Random) -> None:
        body: Any = case.body
        if isinstance(body, dict) and isinstance(body.get("transactions"), list):
            signed = [_signed(each, agent) for each in body["transactions"]]
            case.body = body | {"transactions": signed}

    seen = _talk(api, agent, "submitBatch", change, _every_bad_item_is_refused, forbidden=True)
    assert seen == {200, 400}


@pytest.mark.parametrize("operation", ["getStatus", "requestRefund"])
def test_a_key_or_refund_that_the_description_forbids_is_refused(
    api: OpenApiSchema, agent: Agent, operation: str
) -> None:
    seen = _talk(api, agent, operation, _as_it_is, negative_data_rejection, forbidden=True)
    assert seen <= {400, 404}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_nobody_without_a_token_gets_in_anywhere(
    api: OpenApiSchema, agent: Agent, operation: str
) -> None:
    """C04."""
    described = api.find_operation_by_id(operation)
    for headers in ({}, {"Authorization": "not-a-token"}):
        case = described.Case(
            path_parameters={"idempotencyKey": "contract-open-1"},
            body={},
            media_type="application/json",
            headers=headers,
        )
        answer = case.call(base_url=str(agent.http.base_url))
        case.validate_response(answer, checks=ALWAYS)
        assert answer.status_code == 401


def test_above_its_rate_the_gateway_says_when_to_come_again(
    api: OpenApiSchema, agent: Agent, stack: Stack
) -> None:
    case = api.find_operation_by_id("getStatus").Case(path_parameters={"idempotencyKey": "none"})
    with _admitting(stack, per_second=1, at_once=1):
        answers = [
            case.call(base_url=str(agent.http.base_url), headers=_token(agent)) for _ in range(4)
        ]
    for answer in answers:
        case.validate_response(answer, checks=ALWAYS)
    told = answers[-1]
    assert (told.status_code, told.headers["retry-after"]) == (429, ["1"])
    assert (told.json()["code"], told.json()["retryable"]) == ("THROTTLED", True)


def _talk(
    api: OpenApiSchema,
    agent: Agent,
    operation: str,
    change: Change,
    *further: CheckFunction,
    forbidden: bool = False,
) -> set[int]:
    """Send the requests of one operation, check every answer, and say which statuses there were."""
    mode = GenerationMode.NEGATIVE if forbidden else GenerationMode.POSITIVE
    requests = api.find_operation_by_id(operation).as_strategy(mode, headers=_token(agent))
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests, st.randoms(use_true_random=False))
    def exchange(case: Case[Any], random: Random) -> None:
        change(case, random)
        answer = case.call(base_url=str(agent.http.base_url))
        case.validate_response(answer, checks=[*ALWAYS, *further])
        seen.add(answer.status_code)

    exchange()
    return seen


def _token(agent: Agent) -> dict[str, str]:
    return {"Authorization": agent.http.headers["Authorization"]}


def _whole(value: Any) -> Any:
    """What JSON Schema calls an integer, written as one."""
    match value:
        case float():
            return int(value)
        case dict():
            return {name: _whole(each) for name, each in value.items()}
        case list():
            return [_whole(each) for each in value]
        case _:
            return value


def _signed(body: Any, agent: Agent) -> Any:
    """A transaction in this agent's name, unless a wrong name is what is wrong with it."""
    if isinstance(body, dict) and ID.is_valid(body.get("agentId")):
        return body | {"agentId": agent.agent_id}
    return body


def _as_it_is(_case: Case[Any], _random: Random) -> None:
    pass


def _name_one_of(keys: list[str], case: Case[Any], random: Random) -> None:
    """Mostly a transaction that there is."""
    if random.random() < 0.8:
        case.path_parameters["idempotencyKey"] = random.choice(keys)


def _says_nothing_more(_: CheckContext, response: Response, case: Case[Any]) -> None:
    """Apps are told to expect more members; there are none, and no phone, that is not described."""
    body = response.json()
    for told in body.get("results", [body]):
        problem = told if "code" in told else told.get("error", {})
        view = told.keys() - {"replayed", "error"} if problem is not told else set()
        assert view <= MEMBERS["Transaction"], response.text
        assert problem.keys() <= MEMBERS["Problem"], response.text


def _every_item_is_taken(_: CheckContext, response: Response, case: Case[Any]) -> None:
    body: Any = case.body
    for sent, told in zip(body["transactions"], response.json()["results"], strict=True):
        assert told["idempotencyKey"] == sent["idempotencyKey"]
        assert "error" not in told or told["error"]["code"] == "KEY_REUSED", told


def _is_refused(_: CheckContext, response: Response, case: Case[Any]) -> None:
    assert response.status_code == 400 or TRANSACTION.is_valid(case.body), case.body


def _every_bad_item_is_refused(_: CheckContext, response: Response, case: Case[Any]) -> None:
    if response.status_code != 200:
        return
    body: Any = case.body
    for sent, told in zip(body["transactions"], response.json()["results"], strict=True):
        assert "error" in told or TRANSACTION.is_valid(sent), sent


@contextmanager
def _admitting(stack: Stack, per_second: int, at_once: int) -> Iterator[None]:
    """The gateway's stage admits so many requests meanwhile."""
    client = stack.session.client("apigateway")
    found = re.search(r"execute-api/(\w+)/(\w+)", stack.api_url)
    assert found
    of_stage = {"restApiId": found[1], "stageName": found[2]}
    before = client.get_stage(**of_stage)["methodSettings"]["*/*"]

    def admit(rate: float, burst: int) -> None:
        values = {"rateLimit": rate, "burstLimit": burst}
        client.update_stage(
            **of_stage,
            patchOperations=[
                {"op": "replace", "path": f"/*/*/throttling/{name}", "value": str(value)}
                for name, value in values.items()
            ],
        )

    admit(per_second, at_once)
    try:
        yield
    finally:
        admit(before["throttlingRateLimit"], before["throttlingBurstLimit"])


ALWAYS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    _says_nothing_more,
]
