"""What the command sends for an agent: files read strictly, requests repeated where it helps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from wakala.output import Problem
from wakala.transactions import (
    ATTEMPTS_MAX,
    BACKOFF_SECONDS_MAX,
    AgentApi,
    Document,
    read_file,
    why,
)

HEADER = "agentId,phone,amount,idempotencyKey"


def document(key: str = "k-1", agent: str = "AG-001") -> Document:
    return {"agentId": agent, "phone": "0712345678", "amount": 100, "idempotencyKey": key}


def view(key: str, **more: Any) -> Document:
    times = {"createdAt": 1, "updatedAt": 1}
    return (
        {"idempotencyKey": key, "status": "queued", "amount": 100, "currency": "KES"} | times | more
    )


def problem(status: int, code: str, *, retryable: bool) -> Document:
    return {"status": status, "code": code, "detail": "…", "retryable": retryable}


class Gateway:
    """An API that gives the answers it was told to, one after the other."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def api(self) -> AgentApi:
        transport = httpx.MockTransport(self)
        return AgentApi("https://api.test/prod", "token", self.pauses.append, transport)


@pytest.fixture
def file_of(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_csv_file_becomes_requests_in_its_order(file_of: Callable[[str, str], Path]) -> None:
    text = f"{HEADER},currency,capturedAt\nAG-001,0712 345 678,100,a,,\n"
    text += "AG-002,+254712345678,200,b,KES,2026-07-31T09:00:00+03:00\n"
    first, second = read_file(file_of("day.csv", text))
    assert first == {
        "agentId": "AG-001",
        "phone": "0712 345 678",
        "amount": 100,
        "idempotencyKey": "a",
    }
    assert second["currency"] == "KES"
    assert second["capturedAt"] == "2026-07-31T09:00:00+03:00"


def test_a_csv_file_written_by_a_spreadsheet_may_begin_with_a_byte_order_mark(
    file_of: Callable[[str, str], Path],
) -> None:
    path = file_of("day.csv", f"\ufeff{HEADER}\r\nAG-001,0712345678,100,a\r\n")
    assert read_file(path)[0]["agentId"] == "AG-001"


def test_a_line_of_ndjson_is_sent_as_it_stands(file_of: Callable[[str, str], Path]) -> None:
    path = file_of("day.ndjson", f"{json.dumps(document())}\n\n{json.dumps(document('k-2'))}\n")
    assert read_file(path) == [document(), document("k-2")]


def test_an_agent_given_by_option_stands_in_only_where_a_line_names_none(
    file_of: Callable[[str, str], Path],
) -> None:
    nameless = {name: value for name, value in document().items() if name != "agentId"}
    path = file_of("day.ndjson", f"{json.dumps(nameless)}\n{json.dumps(document())}")
    assert [each["agentId"] for each in read_file(path, "AG-009")] == ["AG-009", "AG-001"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.csv", f"{HEADER}\nAG-001,0712345678,12.50,a\n", "a.csv line 2: amount '12.50'"),
        ("a.csv", f"{HEADER}\nAG-001,0712345678,１００,a\n", "a.csv line 2: amount '１００'"),
        ("a.csv", f"{HEADER}\nAG-001,0712345678,1_000,a\n", "a.csv line 2: amount '1_000'"),
        ("a.csv", f"{HEADER}\nAG-001,0712345678,,a\n", "a.csv line 2: amount ''"),
        ("a.csv", f"{HEADER}\nAG-001,0712345678\n", "a.csv line 2: 4 columns are expected"),
        ("a.csv", f"{HEADER}\nAG-001,0712345678,1,a,b\n", "a.csv line 2: 4 columns are expected"),
        ("a.csv", "agentId,phone,amount\n", "a.csv: no column idempotencyKey"),
        ("a.csv", f"{HEADER},memo\n", "a.csv: unknown column memo"),
        ("a.csv", f'{HEADER}\nAG-001,"0712\n', "a.csv after line 1: unexpected end of data"),
        ("a.csv", f"{HEADER}\n,0712345678,1,a\n", "a.csv line 2: no agentId"),
        ("a.csv", f"{HEADER}\n", "a.csv holds no transaction"),
        ("a.ndjson", "", "a.ndjson holds no transaction"),
        ("a.ndjson", "{}\n{", "a.ndjson line 1: no agentId"),
        ("a.ndjson", "{", "a.ndjson line 1: not JSON"),
        ("a.ndjson", "\n[]", "a.ndjson line 2: not a JSON object"),
        ("a.ndjson", '{"amount": 1, "amount": 2}', "a.ndjson line 1: a member occurs twice"),
        ("a.ndjson", '{"amount": NaN}', "a.ndjson line 1: amount: NaN"),
    ],
)
def test_a_line_that_cannot_be_sent_is_named_and_nothing_is_sent(
    file_of: Callable[[str, str], Path], name: str, text: str, told: str
) -> None:
    with pytest.raises(Problem) as caught:
        read_file(file_of(name, text))
    assert str(caught.value).startswith(told)


def test_a_file_that_is_not_there_or_not_text_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    for name, told in (("none.csv", "No such file"), ("a.csv", "not UTF-8 text")):
        with pytest.raises(Problem, match=told):
            read_file(tmp_path / name)


def test_a_new_transaction_is_accepted_and_the_same_again_a_replay() -> None:
    replay = httpx.Response(200, json=view("k-1"), headers={"Idempotent-Replayed": "true"})
    gateway = Gateway(httpx.Response(202, json=view("k-1")), replay)
    outcomes = [gateway.api().submit(document()).outcome for _ in range(2)]
    assert outcomes == ["accepted", "replayed"]
    assert gateway.requests[0].headers["Authorization"] == "token"


def test_a_batch_is_one_request_with_an_answer_for_each_and_what_may_pass_goes_again() -> None:
    results = [
        view("k-1") | {"replayed": True},
        {"idempotencyKey": "k-2", "error": problem(422, "KEY_REUSED", retryable=False)},
        {"idempotencyKey": "k-3", "error": problem(503, "UNAVAILABLE", retryable=True)},
    ]
    gateway = Gateway(
        httpx.Response(200, json={"results": results}), httpx.Response(202, json=view("k-3"))
    )
    answers = gateway.api().submit_all([document(key) for key in ("k-1", "k-2", "k-3")])
    assert [each.outcome for each in answers] == ["replayed", "refused", "accepted"]
    paths = [each.url.path.removeprefix("/prod") for each in gateway.requests]
    assert paths == ["/tx/offline/batch", "/tx/offline"]


def test_a_batch_that_is_refused_as_a_whole_is_a_refusal_of_each() -> None:
    refused = httpx.Response(401, json=problem(401, "UNAUTHENTICATED", retryable=False))
    answers = Gateway(refused).api().submit_all([document("k-1"), document("k-2")])
    assert [(each.outcome, each.status) for each in answers] == [("refused", 401)] * 2


def test_what_may_pass_is_tried_again_and_never_before_the_server_says() -> None:
    busy = httpx.Response(
        503, json=problem(503, "UNAVAILABLE", retryable=True), headers={"Retry-After": "2"}
    )
    gateway = Gateway(busy, httpx.ConnectError("reset"), httpx.Response(202, json=view("k-1")))
    assert gateway.api().submit(document()).accepted
    assert len(gateway.requests) == 3
    assert gateway.pauses[0] >= 2


@pytest.mark.parametrize(
    ("asked", "floor_s"), [("86400", 60), ("1e9", 0), ("-5", 0), ("9" * 30, 0)]
)
def test_no_server_makes_a_command_sleep_for_a_day(asked: str, floor_s: int) -> None:
    body = problem(503, "UNAVAILABLE", retryable=True)
    busy = httpx.Response(503, json=body, headers={"Retry-After": asked})
    gateway = Gateway(busy, httpx.Response(202, json=view("k-1")))
    assert gateway.api().submit(document()).accepted
    assert floor_s <= gateway.pauses[0] < floor_s + BACKOFF_SECONDS_MAX


def test_an_answer_of_something_else_is_no_acceptance() -> None:
    gateway = Gateway(httpx.Response(200, text="<html>sign in"))
    answer = gateway.api().submit(document())
    assert (answer.outcome, len(gateway.requests)) == ("unsent", ATTEMPTS_MAX)


def test_a_refusal_is_final_and_not_repeated() -> None:
    errors = [{"field": "amount", "code": "differs", "message": "not what it was"}]
    body = problem(422, "KEY_REUSED", retryable=False) | {"errors": errors}
    gateway = Gateway(httpx.Response(422, json=body))
    answer = gateway.api().submit(document())
    assert (answer.outcome, len(gateway.requests)) == ("refused", 1)
    assert why(answer) == "KEY_REUSED amount: not what it was"


def test_a_gateway_that_never_answers_is_given_up_in_one_line() -> None:
    gateway = Gateway(httpx.ConnectError("refused"))
    with pytest.raises(Problem, match=r"no answer from https://api\.test/prod: refused"):
        gateway.api().submit(document())
    assert len(gateway.requests) == ATTEMPTS_MAX


def test_a_gateway_that_stays_busy_is_quoted() -> None:
    gateway = Gateway(httpx.Response(502, text="<html>bad gateway</html>"))
    answer = gateway.api().submit(document())
    assert (answer.outcome, answer.retryable) == ("unsent", True)
    assert why(answer) == "<html>bad gateway</html>"


def test_half_a_surrogate_is_for_the_api_to_refuse() -> None:
    gateway = Gateway(httpx.Response(400, json=problem(400, "VALIDATION_FAILED", retryable=False)))
    assert gateway.api().submit(document("\ud800")).status == 400
    assert json.loads(gateway.requests[0].content)["idempotencyKey"] == "\ud800"


def test_a_key_with_reserved_characters_stays_one_segment_of_the_path() -> None:
    gateway = Gateway(httpx.Response(404, json=problem(404, "NOT_FOUND", retryable=False)))
    gateway.api().status("a/../b?c")
    assert gateway.requests[0].url.raw_path == b"/prod/tx/status/a%2F..%2Fb%3Fc"


def test_a_csv_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    """Which phone would be debited is nobody's to guess."""
    file = tmp_path / "day.csv"
    file.write_text(
        "agentId,phone,amount,idempotencyKey,phone\nAG-001,0733000001,10,k,0733000002\n"
    )
    with pytest.raises(Problem, match="a column stands twice"):
        read_file(file)
