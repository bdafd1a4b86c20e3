"""The HTTP edge: each thing that can happen has one answer, and no body makes it raise."""

import base64
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.api import BODY_BYTES_MAX, Api, handle_request
from tests.fakes.memory import (
    FakeAcceptedTransactions,
    FakeClock,
    FakeQueue,
    FakeRefundDesk,
    Store,
)
from tests.fakes.scripted import Call, around, scripted, unavailable
from wallet_ledger.aws import items
from wallet_ledger.contracts import Defaults
from wallet_ledger.derive import Destination, from_row
from wallet_ledger.domain.ids import ID_PATTERN, AgentId, Currency, IdempotencyKey
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX, OfflineTransaction, Status
from wallet_ledger.domain.wallets import Debit
from wallet_ledger.messages import read_movement
from wallet_ledger.ports import OutgoingMessage
from wallet_ledger.telemetry import logger

ROOT = Path(__file__).parents[2]
EVENT = json.loads((ROOT / "events" / "ingest" / "post.json").read_text())
REQUESTS = json.loads((ROOT / "tests" / "cases" / "requests.json").read_text())
TEMPLATE: dict[str, Any] = REQUESTS["template"]

CODES = {
    "VALIDATION_FAILED": 400,
    "UNAUTHENTICATED": 401,
    "AGENT_MISMATCH": 403,
    "NOT_FOUND": 404,
    "TOO_LARGE": 413,
    "KEY_REUSED": 422,
    "UNAVAILABLE": 503,
}
"""Every code that this edge answers with, and its status."""
PUBLIC = {
    *("queued", "synced", "failed", "cancelled", "expired"),
    *("refund_requested", "partially_refunded", "refunded"),
}
"""Every status that an agent may see."""
VIEW = {"idempotencyKey", "status", "amount", "currency", "createdAt", "updatedAt"}
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


class Answer:
    """An answer as an agent's app sees it."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.status: int = raw["statusCode"]
        self.headers: dict[str, str] = raw["headers"]
        self.text: str = raw["body"]
        self.body: dict[str, Any] = json.loads(raw["body"], parse_constant=_no_number)

    @property
    def code(self) -> str | None:
        code: str | None = self.body.get("code")
        return code


def _no_number(text: str) -> float:
    raise AssertionError(f"{text} is no JSON")


class Ingest:
    """The edge on a table in memory; `calls` are the calls that the table got."""

    def __init__(self) -> None:
        self.store = Store()
        self.clock = FakeClock()
        self.calls: list[str] = []
        self.table = around(FakeAcceptedTransactions(self.store), self._count)
        self.entries = around(FakeRefundDesk(self.store), self._count)

    def post(self, body: object, path: str = "/tx/offline", **event: Any) -> Answer:
        text = body if isinstance(body, str) else json.dumps(body)
        return self.handle(httpMethod="POST", resource=path, path=path, body=text, **event)

    def batch(self, items: object) -> Answer:
        return self.post({"transactions": items}, "/tx/offline/batch")

    def get(self, key: str, **event: Any) -> Answer:
        route = "/tx/status/{idempotencyKey}"
        event = {"pathParameters": {"idempotencyKey": key}, "body": None} | event
        return self.handle(httpMethod="GET", resource=route, path=f"/tx/status/{key}", **event)

    def handle(self, **event: Any) -> Answer:
        defaults = Defaults(Currency("KES"), "KE")
        api = Api(self.table, self.entries, self.clock, defaults, open_days=7)
        return Answer(handle_request(EVENT | event, api))

    def row(self, key: str, agent: str = "AG-001") -> OfflineTransaction:
        return self.store.rows[AgentId(agent), IdempotencyKey(key)]

    def put(self, row: OfflineTransaction) -> None:
        self.store.rows[row.agent_id, row.idempotency_key] = row

    def _count(self, call: Call) -> Any:
        self.calls.append(call.method)
        answer = call.proceed()
        if isinstance(answer, OfflineTransaction):  # as it comes out of DynamoDB
            return items.read_offline_tx(items.offline_tx_item(answer))
        return answer


@pytest.fixture
def ingest() -> Ingest:
    return Ingest()


def _as(agent: str | None) -> dict[str, Any]:
    claims = dict(EVENT["requestContext"]["authorizer"]["claims"])
    claims.pop("custom:agentId")
    if agent is not None:
        claims["custom:agentId"] = agent
    return {"requestContext": EVENT["requestContext"] | {"authorizer": {"claims": claims}}}


def _body(case: Mapping[str, Any]) -> str:
    return case["raw"] if "raw" in case else json.dumps(TEMPLATE | case["patch"])


def _is_problem(answer: Answer, code: str) -> None:
    """RFC 9457, with what apps go by; nothing of the request is in it but member names."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert (answer.code, answer.status) == (code, CODES[code])
    members = {"title", "status", "code", "detail", "retryable"}
    assert members <= answer.body.keys() <= members | {"errors"}
    assert answer.body["status"] == answer.status
    assert answer.body["retryable"] is (code == "UNAVAILABLE")
    assert ("Retry-After" in answer.headers) is (code == "UNAVAILABLE")
    for error in answer.body.get("errors", []):
        assert error.keys() == {"field", "code", "message"}


# --- the cases file ------------------------------------------------------------------------


@pytest.mark.parametrize("case", REQUESTS["cases"], ids=lambda case: case["id"])
def test_each_request_of_the_cases_gets_what_it_must_get(
    case: Mapping[str, Any], ingest: Ingest
) -> None:
    answer = ingest.post(_body(case))
    assert (answer.status, answer.code) == (case["status"], case.get("code"))
    if "code" in case:
        _is_problem(answer, case["code"])
        assert answer.body["errors"]
        assert (ingest.store.rows, ingest.calls) == ({}, [])
    else:
        assert (len(ingest.store.rows), ingest.calls) == (1, ["put_if_new"])


def test_c24_a_batch_with_every_bad_item_of_the_cases_spoils_no_good_one(ingest: Ingest) -> None:
    cases = [case for case in REQUESTS["cases"] if _body(case)]  # nothing is no item of a list
    good = [TEMPLATE | {"idempotencyKey": f"good-{n}"} for n in range(len(cases))]
    pairs = [f"{_body(case)}, {json.dumps(tx)}" for case, tx in zip(cases, good, strict=True)]
    answer = ingest.post(f'{{"transactions": [{", ".join(pairs)}]}}', "/tx/offline/batch")
    assert answer.status == 200
    results = answer.body["results"]
    for case, (bad, fine) in zip(cases, itertools.batched(results, 2, strict=True), strict=True):
        error = bad.get("error", {"status": 202})
        assert (error["status"], error.get("code")) == (case["status"], case.get("code"))
        assert fine["status"] == "queued"
    accepted = [case for case in cases if case["status"] == 202]
    assert len(ingest.store.rows) == len(good) + len(accepted)


# --- any input -----------------------------------------------------------------------------

IDS = st.from_regex(ID_PATTERN, fullmatch=True)
PHONES = st.sampled_from(["254712345678", "0712 345 678", "+44 20 7946 0018", "+1 (201) 555-0123"])
TIMES = st.datetimes().map(lambda at: f"{at.isoformat()}+03:00") | st.none()
TRANSACTIONS = st.fixed_dictionaries(
    {"agentId": st.just("AG-001"), "phone": PHONES, "amount": st.integers(1, AMOUNT_MINOR_MAX)}
    | {"idempotencyKey": IDS},
    optional={"currency": st.sampled_from(["KES", "TZS", None]), "capturedAt": TIMES},
)
ANY_TEXT = st.text(st.characters(codec=None), max_size=40)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            ANY_TEXT | st.sampled_from([*TEMPLATE, "transactions"]), inner, max_size=4
        )
        | TRANSACTIONS
    ),
    max_leaves=10,
)
PATHS = st.sampled_from(["/tx/offline", "/tx/offline/batch"])


def _answers_with_a_known_code(ingest: Ingest, answer: Answer) -> None:
    if answer.status in (200, 202):
        assert answer.code is None
    else:
        assert answer.status == CODES[answer.body["code"]] < 500
        assert not ingest.store.rows


@settings(max_examples=300, deadline=None)
@given(st.one_of(ANY_JSON, TRANSACTIONS, st.lists(ANY_JSON | TRANSACTIONS)), PATHS)
def test_any_json_document_is_answered_and_none_is_a_5xx(document: object, path: str) -> None:
    ingest = Ingest()
    _answers_with_a_known_code(ingest, ingest.post(document, path))
    _answers_with_a_known_code(ingest := Ingest(), ingest.batch([document]))


@settings(max_examples=200, deadline=None)
@given(ANY_TEXT | st.from_regex(r'[\[\]{}",:0-9eE+.\\u-]{0,60}', fullmatch=True), PATHS)
def test_any_text_is_answered_and_none_is_a_5xx(text: str, path: str) -> None:
    ingest = Ingest()
    _answers_with_a_known_code(ingest, ingest.post(text, path))
    encoded = Ingest()
    _answers_with_a_known_code(encoded, encoded.post(text, path, isBase64Encoded=True))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), PATHS)
def test_any_bytes_are_answered_and_none_is_a_5xx(body: bytes, path: str) -> None:
    ingest = Ingest()
    answer = ingest.post(base64.b64encode(body).decode(), path, isBase64Encoded=True)
    _answers_with_a_known_code(ingest, answer)


@pytest.mark.parametrize(
    "body",
    [None, "", " ", "{", "\ufeff{}", '{"a":1}}', "'{}'", "[" * 60_000, '{"a":' * 9_000, "\x00"],
)
def test_a_body_that_is_no_json_is_told_so(body: str | None, ingest: Ingest) -> None:
    answer = ingest.handle(body=body)
    _is_problem(answer, "VALIDATION_FAILED")
    assert answer.body["errors"][0] | {"message": ""} == {
        "field": "$",
        "code": "not_json",
        "message": "",
    }


def test_a_base64_body_is_read_as_the_text_it_is(ingest: Ingest) -> None:
    encoded = base64.b64encode(json.dumps(TEMPLATE).encode()).decode()
    assert ingest.post(encoded, isBase64Encoded=True).status == 202
    for bad in ("é", "a", "====", f"*{encoded}", base64.b64encode(b"\xff{}").decode()):
        _is_problem(ingest.post(bad, isBase64Encoded=True), "VALIDATION_FAILED")


def test_c46_a_member_that_occurs_twice_is_refused_wherever_it_is(ingest: Ingest) -> None:
    twice = json.dumps(TEMPLATE).replace('"amount": 100', '"amount": 100, "amount": 1')
    answers = [
        ingest.post(twice),
        ingest.post('{"transactions": [], "transactions": []}', "/tx/offline/batch"),
    ]
    for answer in answers:
        _is_problem(answer, "VALIDATION_FAILED")
        assert answer.body["errors"][0]["code"] == "not_strict_json"
    batch = ingest.post(f'{{"transactions": [{twice}]}}', "/tx/offline/batch").body["results"]
    assert batch[0]["error"]["errors"][0]["code"] == "not_strict_json"
    assert not ingest.store.rows


def test_c47_what_is_too_large_is_refused_before_anything_is_stored(ingest: Ingest) -> None:
    padded = json.dumps(TEMPLATE) + " " * 300_000
    _is_problem(ingest.post(padded), "TOO_LARGE")
    _is_problem(ingest.batch([TEMPLATE] * 5_000), "TOO_LARGE")
    _is_problem(ingest.batch([TEMPLATE] * 51), "VALIDATION_FAILED")
    _is_problem(ingest.post(TEMPLATE | {"idempotencyKey": "K" * 2049}), "VALIDATION_FAILED")
    wide = base64.b64encode(("é" * BODY_BYTES_MAX).encode()).decode()
    _is_problem(ingest.post(wide, isBase64Encoded=True), "TOO_LARGE")
    assert (ingest.store.rows, ingest.calls) == ({}, [])
    assert ingest.post(json.dumps(TEMPLATE).ljust(BODY_BYTES_MAX)).status == 202
    _is_problem(ingest.post(json.dumps(TEMPLATE).ljust(BODY_BYTES_MAX + 1)), "TOO_LARGE")


def test_the_largest_batch_that_is_allowed_fits_well_within_a_body(ingest: Ingest) -> None:
    longest = {
        "agentId": "AG-001",
        "phone": "+254 (0) 712 - 345 - 678       ",
        "amount": AMOUNT_MINOR_MAX,
        "currency": "KES",
        "capturedAt": "2026-11-02T09:14:07.123456789+03:00",
    }
    batch = [longest | {"idempotencyKey": f"{n:064d}"} for n in range(50)]
    assert len(json.dumps({"transactions": batch}, indent=2)) < BODY_BYTES_MAX / 2
    answer = ingest.batch(batch)
    assert [item["status"] for item in answer.body["results"]] == ["queued"] * 50


# --- what is accepted reaches the queue ----------------------------------------------------


def _queued(row: OfflineTransaction) -> OutgoingMessage:
    """The message of a row, by way of the item that DynamoDB keeps and its stream image."""
    (outgoing,) = from_row(None, items.read_offline_tx(items.offline_tx_item(row)))
    assert outgoing.destination is Destination.TX_QUEUE
    assert isinstance(outgoing.content, OutgoingMessage)
    return outgoing.content


@settings(max_examples=300, deadline=None)
@given(TRANSACTIONS)
def test_c30_whatever_is_accepted_is_a_message_that_reconcile_reads(document: Any) -> None:
    ingest = Ingest()
    answer = ingest.post(document)
    if answer.status != 202:  # a capturedAt out of range
        assert [error["field"] for error in answer.body["errors"]] == ["capturedAt"]
        return
    row = ingest.row(document["idempotencyKey"])
    message = _queued(row)
    for name in (message.group, message.dedup_id):
        assert name is not None
        assert re.fullmatch(r"[!-~]{1,128}", name)
    queue = FakeQueue(ingest.clock)
    assert queue.send([message]) == frozenset()
    debit = read_movement(queue.messages[0].body)
    assert isinstance(debit, Debit)
    assert debit.fingerprint == row.fingerprint
    assert debit.phone == message.group == row.phone
    assert (debit.amount_minor, debit.currency) == (document["amount"], row.currency)
    assert debit.captured_at == document.get("capturedAt")


@pytest.mark.parametrize("key", ["K" * 64, "a:b.c", ":".join("0123456789"), "0", "Z._:-"])
def test_c30_a_key_of_odd_but_allowed_spelling_reaches_the_queue(key: str, ingest: Ingest) -> None:
    document = TEMPLATE | {"idempotencyKey": key, "phone": " 0712 345-678 "}
    assert ingest.post(document).status == 202
    debit = read_movement(_queued(ingest.row(key)).body)
    assert isinstance(debit, Debit)
    assert (debit.idempotency_key, debit.phone) == (key, "254712345678")
    assert ingest.get(key.replace(":", "%3A")).body["idempotencyKey"] == key


# --- replays and reused keys ---------------------------------------------------------------


def test_p1_a_new_transaction_is_202_and_costs_one_call(ingest: Ingest) -> None:
    answer = ingest.post(TEMPLATE)
    assert answer.status == 202
    assert answer.headers["Content-Type"] == "application/json"
    assert "Idempotent-Replayed" not in answer.headers
    assert answer.body.keys() == VIEW
    assert answer.body["status"] == "queued"
    assert ingest.calls == ["put_if_new"]


@pytest.mark.parametrize(
    "again",
    [
        json.dumps(TEMPLATE),
        json.dumps(dict(reversed(TEMPLATE.items()))),
        json.dumps(TEMPLATE, indent=7, separators=(" ,\t", "\r\n:")),
        json.dumps(TEMPLATE | {"currency": "KES"}),
        json.dumps(TEMPLATE | {"currency": None, "capturedAt": "2026-11-02T09:14:07Z"}),
        *(json.dumps(TEMPLATE | {"phone": p}) for p in ("0712345678", "+254 (0)712-345.678")),
        json.dumps(TEMPLATE).replace("AG-001", "\\u0041G-001").replace("amount", "\\u0061mount"),
    ],
)
def test_c45_the_same_content_in_another_spelling_is_a_replay(again: str, ingest: Ingest) -> None:
    first = ingest.post(TEMPLATE)
    answer = ingest.post(again)
    assert (answer.status, answer.headers["Idempotent-Replayed"]) == (200, "true")
    assert answer.body == first.body
    assert len(ingest.store.rows) == 1


@pytest.mark.parametrize("status", list(Status))
def test_c01_c22_c24_in_every_state_a_replay_and_the_status_say_the_same(
    status: Status, ingest: Ingest
) -> None:
    ingest.post(TEMPLATE)
    reason = "INSUFFICIENT_FUNDS" if status is Status.FAILED else None
    refunded = 40 if status is Status.PARTIALLY_REFUNDED else None
    row = replace(ingest.row("case-000001"), status=status, reason=reason, refunded_minor=refunded)
    ingest.put(row)
    replay, view = ingest.post(TEMPLATE), ingest.get("case-000001")
    assert (replay.status, view.status) == (200, 200)
    assert replay.headers["Idempotent-Replayed"] == "true"
    assert replay.body == view.body
    assert view.body["status"] in PUBLIC
    assert view.body["status"] == ("queued" if status is Status.HELD else status)
    assert view.body.get("reason") == reason
    assert view.body.get("refunded") == refunded
    assert view.body.keys() <= VIEW | {"reason", "refunded"}
    assert ingest.row("case-000001") == row


def test_c22_a_whole_batch_again_after_settlement_brings_the_stored_outcomes(
    ingest: Ingest,
) -> None:
    batch = [TEMPLATE | {"idempotencyKey": f"k-{n}"} for n in range(3)]
    ingest.batch(batch)
    ingest.put(replace(ingest.row("k-0"), status=Status.SYNCED))
    failed = replace(ingest.row("k-1"), status=Status.FAILED, reason="WALLET_NOT_FOUND")
    ingest.put(failed)
    before = dict(ingest.store.rows)
    results = ingest.batch(batch).body["results"]
    assert [item["status"] for item in results] == ["synced", "failed", "queued"]
    assert [item["replayed"] for item in results] == [True, True, True]
    assert results[1]["reason"] == "WALLET_NOT_FOUND"
    assert ingest.store.rows == before  # no write, so nothing on the stream, so nothing is queued


def test_c32_one_key_after_5_minutes_an_hour_and_8_days_is_one_transaction(ingest: Ingest) -> None:
    ingest.post(TEMPLATE)
    row = ingest.row("case-000001")
    for wait_ms in (5 * MINUTE_MS - 1_000, 2_000, 60 * MINUTE_MS, 8 * DAY_MS):
        ingest.clock.pause(wait_ms / 1000)
        answer = ingest.post(TEMPLATE)
        assert (answer.status, answer.headers["Idempotent-Replayed"]) == (200, "true")
    assert list(ingest.store.rows.values()) == [row]
    assert row.created_at_ms < ingest.clock.now_ms() - 8 * DAY_MS


def test_a_key_that_means_something_else_is_422_and_says_where(ingest: Ingest) -> None:
    ingest.post(TEMPLATE)
    row = ingest.row("case-000001")
    answer = ingest.post(TEMPLATE | {"amount": 987_654, "phone": "0733000111"})
    _is_problem(answer, "KEY_REUSED")
    assert [error["field"] for error in answer.body["errors"]] == ["phone", "amount"]
    assert "100" not in answer.text
    assert "254712345678" not in answer.text
    assert ingest.row("case-000001") == row


def test_c44_one_key_three_times_in_one_batch_is_accepted_replayed_and_422(ingest: Ingest) -> None:
    results = ingest.batch([TEMPLATE, TEMPLATE, TEMPLATE | {"amount": 250}]).body["results"]
    assert [item.get("replayed") for item in results] == [False, True, None]
    assert results[2]["error"]["code"] == "KEY_REUSED"
    assert results[2]["error"]["status"] == 422
    assert ingest.row("case-000001").amount_minor == 100
    assert ingest.calls == ["put_if_new"] * 3


def test_c50_every_number_of_an_answer_is_a_plain_integer(ingest: Ingest) -> None:
    ingest.post(TEMPLATE | {"amount": AMOUNT_MINOR_MAX})
    row = replace(
        ingest.row("case-000001"), status=Status.PARTIALLY_REFUNDED, refunded_minor=10**11
    )
    ingest.put(row)
    for answer in (ingest.post(TEMPLATE | {"amount": AMOUNT_MINOR_MAX}), ingest.get("case-000001")):
        assert '"amount": 1000000000000,' in answer.text
        assert '"refunded": 100000000000' in answer.text
        numbers = [value for value in answer.body.values() if not isinstance(value, str)]
        assert {type(number) for number in numbers} == {int}
        assert len(numbers) == 4


# --- who may see what ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "context",
    [
        {},
        {"authorizer": None},
        {"authorizer": {}},
        {"authorizer": {"claims": None}},
        _as(None)["requestContext"],
        *(_as(bad)["requestContext"] for bad in ("", "a b", "AG#1", "AG-001\n", "A" * 65)),
    ],
)
def test_c04_a_token_that_names_no_agent_is_401_on_every_route(
    context: dict[str, Any], ingest: Ingest
) -> None:
    ingest.post(TEMPLATE)
    calls = list(ingest.calls)
    for answer in (
        ingest.post(TEMPLATE, requestContext=context),
        ingest.post({"transactions": [TEMPLATE]}, "/tx/offline/batch", requestContext=context),
        ingest.get("case-000001", requestContext=context),
    ):
        _is_problem(answer, "UNAUTHENTICATED")
    assert ingest.calls == calls


def test_c04_p11_a_body_that_names_another_agent_is_403_and_nothing_is_stored(
    ingest: Ingest,
) -> None:
    _is_problem(ingest.post(TEMPLATE, **_as("AG-002")), "AGENT_MISMATCH")
    results = ingest.batch([TEMPLATE | {"agentId": "AG-002"}]).body["results"]
    assert results[0]["error"]["code"] == "AGENT_MISMATCH"
    assert (ingest.store.rows, ingest.calls) == ({}, [])


def test_c04_p11_another_agents_key_answers_exactly_as_an_unknown_one(ingest: Ingest) -> None:
    ingest.post(TEMPLATE)
    theirs = ingest.get("case-000001", **_as("AG-002"))
    unknown = ingest.get("no-such-key", **_as("AG-002"))
    _is_problem(theirs, "NOT_FOUND")
    assert (theirs.body, theirs.headers) == (unknown.body, unknown.headers)


@pytest.mark.parametrize(
    "key", ["", "%", "%ff", "a%23b", "balance%23", "K" * 2049, "..", "%00", "é", "a\n"]
)
def test_a_key_that_cannot_exist_is_404_and_costs_no_call(key: str, ingest: Ingest) -> None:
    _is_problem(ingest.get(key), "NOT_FOUND")
    _is_problem(ingest.get(key, pathParameters=None), "NOT_FOUND")
    assert ingest.calls == []


@pytest.mark.parametrize(
    ("method", "resource"),
    [("GET", "/tx/offline"), ("POST", "/tx/status/{idempotencyKey}"), ("DELETE", "/"), ("PUT", "")],
)
def test_a_route_that_is_not_there_is_404(method: str, resource: str, ingest: Ingest) -> None:
    _is_problem(ingest.handle(httpMethod=method, resource=resource), "NOT_FOUND")


# --- when the table does not answer --------------------------------------------------------


def test_an_unavailable_table_is_503_to_be_tried_again_with_the_same_key(ingest: Ingest) -> None:
    for method in ("put_if_new", "find"):
        ingest.table = scripted(ingest.table, method, [unavailable("ThrottlingException")])
    for answer in (ingest.post(TEMPLATE), ingest.get("case-000001")):
        _is_problem(answer, "UNAVAILABLE")
        assert answer.headers["Retry-After"] == "1"
        assert "Throttling" not in answer.text
    assert not ingest.store.rows
    assert ingest.post(TEMPLATE).status == 202


def test_a_table_that_is_away_for_one_item_leaves_the_other_items_their_answers(
    ingest: Ingest,
) -> None:
    table = ingest.table

    def away_for_one(call: Call) -> Any:
        if call.arguments[0].idempotency_key == "k-1":
            return unavailable("InternalServerError")(call)
        return call.proceed()

    ingest.table = around(table, away_for_one)
    phones = ("254712345678", "254712345678", "254712345679")
    batch = [TEMPLATE | {"idempotencyKey": f"k-{n}", "phone": phones[n]} for n in range(3)]
    answer = ingest.batch(batch)
    assert answer.status == 200
    first, second, third = answer.body["results"]
    assert [first["status"], third["status"]] == ["queued", "queued"]
    assert second["idempotencyKey"] == "k-1"
    assert (second["error"]["code"], second["error"]["retryable"]) == ("UNAVAILABLE", True)
    ingest.table = table
    again = ingest.batch(batch).body["results"]
    assert [item["replayed"] for item in again] == [True, False, True]


def test_each_result_of_a_batch_names_its_key_where_it_has_one(ingest: Ingest) -> None:
    batch = [
        TEMPLATE | {"amount": 0},
        TEMPLATE | {"idempotencyKey": "254 712 345 678"},
        TEMPLATE | {"idempotencyKey": 5},
        None,
        TEMPLATE,
    ]
    results = ingest.batch(batch).body["results"]
    keys = [item.get("idempotencyKey") for item in results]
    assert keys == ["case-000001", None, None, None, "case-000001"]
    assert [item.get("error", {}).get("status") for item in results] == [400, 400, 400, 400, None]
    assert ingest.calls == ["put_if_new"]


# --- what may be logged --------------------------------------------------------------------


def _logged(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(map(logger.registered_formatter.format, caplog.records))


SECRETS = {
    "agentId": "AG-001",
    "phone": "254712345678",
    "amount": 987_654_321,
    "idempotencyKey": "key-254712345678",
    "capturedAt": "2026-11-02T09:14:07Z",
}


def test_p12_no_value_of_a_request_is_logged_whatever_the_answer(
    ingest: Ingest, caplog: pytest.LogCaptureFixture
) -> None:
    bodies: list[object] = [
        SECRETS,
        SECRETS,
        SECRETS | {"amount": 987_654_322},
        SECRETS | {"phone": "254712345678x"},
        SECRETS | {"idempotencyKey": "254712345678#"},
        SECRETS | {"agentId": "AG-009"},
        SECRETS | {"254712345678": "254712345678"},
        SECRETS | {"currency": "254712345678", "amount": "987654321"},
        "254712345678",
    ]
    answers = [ingest.post(body) for body in bodies] + [
        ingest.batch(bodies),
        ingest.get("key-254712345678"),
        ingest.get("254712345678-unknown"),
    ]
    assert {answer.status for answer in answers} == {202, 200, 422, 400, 403, 404}
    lines = _logged(caplog)
    assert len(caplog.records) >= len(bodies)
    for secret in ("71234", "98765432", "AG-00", "2026-11-02T09", "an.id.token", "203.0.113.7"):
        assert secret not in lines


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=6))
def test_p12_no_text_of_a_bad_request_is_repeated_to_its_sender(secret: str) -> None:
    for member in TEMPLATE:
        answer = Ingest().post(TEMPLATE | {member: f"{secret}#"})
        _is_problem(answer, "VALIDATION_FAILED")
        assert f"{secret}#" not in answer.text


def test_each_request_that_is_answered_leaves_one_line_and_a_reference(
    ingest: Ingest, caplog: pytest.LogCaptureFixture
) -> None:
    ingest.post(TEMPLATE)
    ingest.post(TEMPLATE)
    ingest.post(TEMPLATE | {"amount": 5})
    lines = [json.loads(line) for line in _logged(caplog).splitlines()]
    answered = [line for line in lines if line["message"] == "request answered"]
    assert [line["answer"] for line in answered] == ["Accepted", "Replayed", "KeyReused"]
    (reference,) = {line["transaction"] for line in answered}
    assert re.fullmatch("[0-9a-f]{16}", reference)
