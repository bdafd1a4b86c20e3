"""The API's description: made from the code, valid, and as good as its word."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from ingest.api import PROBLEMS
from tests.exchanges import DEFAULTS, OPERATIONS, REFUND, TRANSACTION, exchanges
from tests.openapi import (
    FIELD_CODES,
    MEANINGS,
    PATH,
    REASONS,
    REFUND_REASONS,
    STATUSES,
    gateway_problems,
    text,
)
from tests.template import RESOURCES, ROOT
from wallet_ledger.contracts import (
    InvalidRequest,
    read_batch,
    read_refund_wanted,
    read_transaction,
)
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import Reason, Status

DOCUMENT: dict[str, Any] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
BODIES: dict[str, Callable[[Any], list[Any]]] = {
    "TransactionBody": lambda body: [read_transaction(body, DEFAULTS)],
    "BatchBody": lambda body: [read_transaction(each, DEFAULTS) for each in read_batch(body)],
    "RefundBody": lambda body: [read_refund_wanted(body, DEFAULTS)],
}


def _operation(name: str) -> Any:
    method, path = OPERATIONS[name]
    return DOCUMENT["paths"][path][method.lower()]


def _validator(schema: Any) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(
        {"components": DOCUMENT["components"], **schema}, validate_formats=False
    )


def _contents() -> Iterator[tuple[str, Any]]:
    """Where each body is described, and how."""
    for name in OPERATIONS:
        operation = _operation(name)
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            yield f"{name} {media}", content
        for status, answer in operation["responses"].items():
            for media, content in answer["content"].items():
                yield f"{name} {status} {media}", content


CONTENTS = dict(_contents())


def test_the_description_is_what_the_code_makes_of_it() -> None:
    assert PATH.read_text(encoding="utf-8") == text(), "run `make openapi` and look at what changed"


def test_the_description_is_an_openapi_document() -> None:
    OPENAPI_31_VALIDATOR.validate(DOCUMENT)
    for schema in SCHEMAS.values():
        jsonschema_rs.meta.validate(schema)
    references = set(re.findall(r"#/components/[\w/-]+", json.dumps(DOCUMENT)))
    for reference in references:
        found = DOCUMENT
        for part in reference.split("/")[1:]:
            found = found[part]
    parts = {f"#/components/schemas/{name}" for name in SCHEMAS}
    assert parts <= references


def test_every_route_is_an_operation() -> None:
    events = RESOURCES["IngestFunction"]["Properties"]["Events"].values()
    routes = {(each["Properties"]["Method"], each["Properties"]["Path"]) for each in events}
    told = {(m, path) for path, methods in DOCUMENT["paths"].items() for m in methods}
    assert told == routes == {(method.lower(), path) for method, path in OPERATIONS.values()}


@pytest.mark.parametrize("where", CONTENTS)
def test_every_example_is_as_its_schema_says(where: str) -> None:
    content = CONTENTS[where]
    assert content["examples"]
    for example in content["examples"].values():
        assert len(example["summary"]) > 5
        _validator(content["schema"]).validate(example["value"])


@pytest.mark.parametrize("schema", BODIES)
def test_every_example_of_a_request_is_accepted(schema: str) -> None:
    found = [
        example["value"]
        for content in CONTENTS.values()
        if content["schema"].get("$ref") == f"#/components/schemas/{schema}"
        for example in content["examples"].values()
    ]
    assert found
    for body in found:
        assert BODIES[schema](body)


def test_every_answer_of_the_edge_is_described_headers_too() -> None:
    for each in exchanges():
        answer = _operation(each.operation)["responses"][str(each.status)]
        content = answer["content"][each.headers["Content-Type"]]
        _validator(content["schema"]).validate(each.body)
        assert content["examples"][each.name]["value"] == each.body
        described = {
            name: DOCUMENT["components"]["headers"][name] for name in answer.get("headers", {})
        }
        required = {name for name, header in described.items() if header.get("required")}
        assert required <= each.headers.keys()
        unremarkable = {"Content-Type", "Cache-Control"}
        assert each.headers.keys() - unremarkable <= described.keys()


def test_nothing_is_in_an_answer_that_is_not_described() -> None:
    """Apps are told to ignore what they do not know; there is nothing of the kind."""
    members = {name: SCHEMAS[name].get("properties", {}).keys() for name in SCHEMAS}
    for each in exchanges():
        for told in each.body.get("results", [each.body]):
            problem = told if "code" in told else told.get("error", {})
            view = {} if problem is told else told.keys() - {"replayed", "error"}
            assert set(view) <= members["Transaction"]
            assert problem.keys() <= members["Problem"]


def test_every_code_is_explained_and_tells_whether_to_retry() -> None:
    codes = dict(PROBLEMS) | {each["code"]: each["status"] for each in gateway_problems()}
    assert MEANINGS.keys() == codes.keys()
    assert {each["code"]: each["status"] for each in DOCUMENT["x-errors"]} == codes
    retryable = {each["code"]: each["retryable"] for each in DOCUMENT["x-errors"]}
    assert {code for code, retry in retryable.items() if retry} == {
        "BLOCKED",
        "REFUND_IN_PROGRESS",
        "THROTTLED",
        "UNAVAILABLE",
    }
    assert {code for code, retry in retryable.items() if retry is None} == {"NOT_REFUNDABLE"}
    answered = {each.code for each in exchanges() if each.code}
    assert answered == PROBLEMS.keys()
    for code, status in codes.items():
        assert f"| `{code}` | {int(status)} |" in DOCUMENT["info"]["description"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_tells_what_the_gateway_answers(operation: str) -> None:
    responses = _operation(operation)["responses"]
    for problem in gateway_problems():
        if problem["code"] == "TOO_LARGE" and OPERATIONS[operation][0] == "GET":
            continue
        answer = responses[str(problem["status"])]
        content = answer["content"]["application/problem+json"]
        _validator(content["schema"]).validate(problem)
        assert problem in [each["value"] for each in content["examples"].values()]
        assert ("Retry-After" in answer.get("headers", {})) == (problem["status"] in (429, 503))


def test_the_words_of_the_description_are_those_of_the_domain() -> None:
    assert STATUSES.keys() == {each.public for each in Status}
    of_credits = {Reason.BALANCE_LIMIT}
    assert REASONS.keys() | REFUND_REASONS.keys() | of_credits == set(Reason)
    assert not REASONS.keys() & REFUND_REASONS.keys()
    refunds = (ROOT / "shared/wallet_ledger/domain/refunds.py").read_text(encoding="utf-8")
    told = set(re.findall(r"Reason\.([A-Z_]+)", refunds)) - {"KEY_REUSED"}  # not under its own id
    assert set(REFUND_REASONS) == told
    debits = (ROOT / "shared/wallet_ledger/domain/wallets.py").read_text(encoding="utf-8")
    refused = set(re.findall(r"Reason\.([A-Z_]+)", debits)) - of_credits
    assert refused <= set(REASONS)


def test_every_code_of_a_field_is_one_that_is_said() -> None:
    sources = "".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("shared/wallet_ledger/contracts.py", "services/ingest/api.py")
    )
    said = set(
        re.findall(r'(?:PydanticCustomError\(\s*|FieldError\([^"()]*"?[^"()]*"?, )"(\w+)"', sources)
    )
    said |= set(re.findall(r'^    "\w+": \("(\w+)", ', sources, re.MULTILINE))
    of_the_bus = {"unknown_value"}
    assert FIELD_CODES.keys() == said - of_the_bus


def test_every_operation_and_member_is_described() -> None:
    silent = [
        f"{name}.{member}"
        for name, schema in SCHEMAS.items()
        for member, said in schema.get("properties", {}).items()
        if "description" not in said and name not in {"Refused", "BatchAnswer"}
    ]
    assert not silent
    for name in OPERATIONS:
        assert len(_operation(name)["description"]) > 60


def test_the_fingerprints_follow_from_what_is_written() -> None:
    told = DOCUMENT["x-fingerprint"]
    debit = told["debit"]
    digest = hashlib.sha256("\n".join(debit["lines"]).encode()).hexdigest()
    request = read_transaction(debit["request"], DEFAULTS)
    assert digest == debit["fingerprint"] == request.fingerprint
    assert debit["request"] == TRANSACTION
    assert debit["lines"][3] == "254712345678"
    refund = told["refund"]
    digest = hashlib.sha256("\n".join(refund["lines"]).encode()).hexdigest()
    wanted = read_refund_wanted(refund["request"], DEFAULTS)
    asked = Refund(
        request.agent_id,
        request.idempotency_key,
        request.phone,
        wanted.refund_id,
        wanted.amount_minor,
        None,
        "",
        "",
    )
    assert digest == refund["fingerprint"] == asked.fingerprint
    assert refund["request"] == REFUND


# --- the schema and the contract -------------------------------------------------------------

ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers(-1, 10**12 + 1)
    | st.text(max_size=70)
    | st.lists(st.integers(), max_size=2)
)
IDS = ["AG-001", "a" * 64, "a" * 65, "a:b.c_d-e", "-a", "a#b", "a\n", ""]
NEAR: dict[str, list[Any]] = {
    "agentId": IDS,
    "idempotencyKey": IDS,
    "refundId": IDS,
    "phone": ["0712345678", "+254 (0)712-345.678", "0712345678\n", "0712/345678", "+", " " * 32],
    "amount": [0, 1, 10**12, 10**12 + 1, True],
    "currency": ["USD", "XXX", "kes", "KES ", None],
    "capturedAt": [
        *("2026-11-02T09:14:07Z", "2026-11-02t09:14:07.123z", "2100-12-31T23:59:59-23:59", None),
        *("2026-13-02T09:14:07Z", "2026-02-30T09:14:07Z", "2026-11-02T09:14:07", "1999-01-01"),
    ],
    "reason": ["x", "x" * 140, "x" * 141, "é" * 71, "a\nb", ""],
    "more": [1],
}
BEYOND_A_SCHEMA = {"bad_phone", "bad_timestamp", "bad_text"}
"""What only the API can say: see `format` and the descriptions."""
WHOLE = {
    "TransactionBody": TRANSACTION | {"currency": "KES"},
    "RefundBody": REFUND,
}
ALLOWS = {name: _validator(SCHEMAS[name]) for name in BODIES}


def _agree(schema: str, body: Any) -> bool:
    """Whether the contract accepts what the schema allows, and refuses what it does not."""
    allowed = ALLOWS[schema].is_valid(body)
    try:
        BODIES[schema](body)
    except InvalidRequest as error:
        return not allowed or {each.code for each in error.errors} <= BEYOND_A_SCHEMA
    return allowed


@pytest.mark.parametrize("schema", WHOLE)
def test_what_is_nearly_right_is_accepted_where_the_schema_allows_it(schema: str) -> None:
    whole = WHOLE[schema]
    for name in [*whole, "more"]:
        assert _agree(schema, {other: whole[other] for other in whole if other != name})
        for value in NEAR[name]:
            assert _agree(schema, whole | {name: value}), (name, value)


@settings(max_examples=200)
@given(st.sampled_from([*WHOLE]), st.sampled_from([*NEAR]), ANYTHING, ANYTHING)
def test_whatever_is_sent_is_accepted_where_the_schema_allows_it(
    schema: str, name: str, value: Any, body: Any
) -> None:
    assert _agree(schema, WHOLE[schema] | {name: value})
    assert _agree(schema, body)
