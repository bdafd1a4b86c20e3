"""A file's transactions go by the agents' SDK, and each line has the API's own answer."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest

from tests.fakes.agent_api import (
    FakeApi,
    Fault,
    Reply,
    answered,
    dropped,
    lost,
    problem,
    raw,
    reply,
    unreached,
    well,
)
from wakala import uploads
from wakala.output import Problem
from wakala.transactions import COLUMNS, AgentApi, Answer, Document, count, why
from wakala.uploads import upload_all

AGENT = "AG-001"
DELAYED = answered(503, problem("UNAVAILABLE", 503, retryable=True), Retry_After="0")


def document(key: str = "k-1", phone: str = "0712345678", **more: object) -> Document:
    return {"agentId": AGENT, "phone": phone, "amount": 100, "idempotencyKey": key, **more}


class Gateway:
    """A server with both ways in, and what goes wrong with its first requests."""

    def __init__(self, faults: Iterable[Fault] = (), agent_id: str = AGENT) -> None:
        self.server = FakeApi(token="token", agent_id=agent_id)
        self.faults = iter(faults)
        self.sent: list[tuple[str, list[Document]]] = []
        transport = httpx.MockTransport(self._handle)
        self.api = AgentApi("https://api.test/prod", "token", lambda _: None, transport)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/prod")
        body = json.loads(request.content or b"{}")
        self.sent.append((path, body.get("transactions", [body])))
        told = next(self.faults, self._one if path == "/tx/offline" else well)(self.server, request)
        return httpx.Response(told.status, headers=told.headers, content=told.body)

    def _one(self, server: FakeApi, request: httpx.Request) -> Reply:
        """What no outbox takes: a phone with a letter, an amount that is none, a strange member."""
        item = json.loads(request.content)
        if "O" in item["phone"] or type(item["amount"]) is not int or not item["amount"] > 0:
            return reply(400, problem("VALIDATION_FAILED", 400))
        if item.keys() - set(COLUMNS):
            return reply(400, problem("VALIDATION_FAILED", 400))
        result = server._item(item, set())
        if "error" in result:
            return reply(result["error"]["status"], result["error"])
        replayed = result.pop("replayed")
        return reply(200 if replayed else 202, result, Idempotent_Replayed=str(replayed).lower())


@pytest.fixture
def short_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is away stays away."""
    monkeypatch.setattr(uploads, "PATIENCE_S", 2.5)


def upload(lines: list[Document], api: AgentApi) -> list[Answer]:
    return uploads.upload(lines, api, lambda _: None)


def told(answers: Iterable[Answer]) -> list[tuple[str, int]]:
    return [(answer.outcome, answer.status) for answer in answers]


def test_a_file_is_sent_in_batches_and_answered_line_by_line() -> None:
    gateway, heard = Gateway(), list[int]()
    lines = [document(f"k-{n}") for n in range(120)]
    answers = uploads.upload(lines, gateway.api, heard.append)
    assert [len(sent) for _, sent in gateway.sent] == [50, 50, 20]
    assert [answer.sent for answer in answers] == lines
    assert [answer.body["idempotencyKey"] for answer in answers] == [f"k-{n}" for n in range(120)]
    assert answers[0].body == gateway.server._view("k-0")
    assert answers[0].view()["httpStatus"] == 202
    assert count(answers) == {"accepted": 120, "replayed": 0, "refused": 0, "unsent": 0}
    assert sum(heard) == 120
    assert not gateway.server.breaches


def test_a_line_travels_as_it_stands_and_no_moment_is_made_up_for_it() -> None:
    gateway = Gateway()
    lines = [document(), document("k-2", currency="KES", capturedAt="2026-07-31T09:00:00+03:00")]
    upload(lines, gateway.api)
    assert gateway.sent == [("/tx/offline/batch", lines)]


def test_the_same_file_again_is_all_replays() -> None:
    gateway = Gateway()
    upload([document(), document("k-2")], gateway.api)
    assert told(upload([document(), document("k-2")], gateway.api)) == [("replayed", 200)] * 2


def test_what_may_pass_is_sent_again_and_a_lost_answer_is_no_second_transaction() -> None:
    gateway = Gateway([DELAYED, lost])
    answers = upload([document(), document("k-2")], gateway.api)
    assert told(answers) == [("replayed", 200)] * 2
    assert list(gateway.server.rows) == ["k-1", "k-2"]


def test_a_key_that_comes_again_is_for_the_api_to_judge() -> None:
    """C44: the same, the same again, and another amount."""
    gateway = Gateway()
    lines = [document(), document(), document(amount=250), document("k-2")]
    answers = upload(lines, gateway.api)
    assert [answer.status for answer in answers] == [202, 200, 422, 202]
    assert why(answers[2]).startswith("KEY_REUSED")
    assert [len(sent) for _, sent in gateway.sent] == [1, 1, 2]


def test_a_key_that_was_refused_and_comes_again_is_before_what_comes_after_it() -> None:
    gateway = Gateway()
    lines = [document(phone="0722 110 3O5"), document(), document("k-2")]
    assert [answer.status for answer in upload(lines, gateway.api)] == [400, 202, 202]
    assert list(gateway.server.rows) == ["k-1", "k-2"]


def test_a_member_that_is_null_says_no_more_than_one_that_is_not_there() -> None:
    gateway = Gateway()
    lines = [document(currency=None, capturedAt=None), document("k-2")]
    assert told(upload(lines, gateway.api)) == [("accepted", 202)] * 2
    assert gateway.sent == [("/tx/offline/batch", [document(), document("k-2")])]


@pytest.mark.parametrize(
    "odd", [{"phone": "0722 110 3O5"}, {"amount": 0}, {"amount": "100"}, {"memo": "rent"}]
)
def test_what_can_be_no_transaction_is_refused_by_the_api_and_spoils_no_other(
    odd: Document,
) -> None:
    gateway, heard = Gateway(), list[int]()
    lines = [document(), document("odd") | odd, document("k-3")]
    answers = uploads.upload(lines, gateway.api, heard.append)
    assert told(answers) == [("accepted", 202), ("refused", 400), ("accepted", 202)]
    assert gateway.sent[-1] == ("/tx/offline", [lines[1]])
    assert sum(heard) == 3


def test_a_refused_line_has_the_apis_own_problem() -> None:
    gateway = Gateway()
    errors = [{"field": "phone", "code": "invalid", "message": "no phone"}]
    gateway.server.refused["bad"] = problem("VALIDATION_FAILED", 400, errors=errors)
    answers = upload([document(), document("bad", "0733000001")], gateway.api)
    assert told(answers) == [("accepted", 202), ("refused", 400)]
    assert why(answers[1]) == "VALIDATION_FAILED phone: no phone"


def test_a_line_refused_as_the_whole_request_that_carried_it_is_refused() -> None:
    gateway = Gateway([answered(413, problem("TOO_LARGE", 413, detail="large"))])
    [answer] = upload([document()], gateway.api)
    assert (answer.outcome, answer.status, why(answer)) == ("refused", 413, "TOO_LARGE large")
    assert not answer.retryable


@pytest.mark.usefixtures("short_of_time")
def test_a_line_that_is_never_taken_leaves_the_others_their_answers() -> None:
    gateway = Gateway()
    gateway.server.refused["k-1"] = problem("UNAVAILABLE", 503, retryable=True)
    answers = upload([document(), document("k-2", "0733000001")], gateway.api)
    assert told(answers) == [("unsent", 503), ("accepted", 202)]


@pytest.mark.usefixtures("short_of_time")
def test_a_refusal_that_the_sdk_does_not_believe_yet_is_no_refusal() -> None:
    """The first try's answer was lost; what the second is refused for says nothing of it."""
    reused = problem("KEY_REUSED", 422, errors=[{"field": "currency"}])
    refused = answered(200, {"results": [{"idempotencyKey": "k-1", "error": reused}]})
    gateway = Gateway([lost, refused, *[DELAYED] * 99])
    [answer] = upload([document()], gateway.api)
    assert answer.outcome == "unsent"
    assert list(gateway.server.rows) == ["k-1"]


def test_a_refusal_that_the_status_disproves_is_an_acceptance() -> None:
    reused = problem("KEY_REUSED", 422, errors=[{"field": "currency"}])
    refused = answered(200, {"results": [{"idempotencyKey": "k-1", "error": reused}]})
    [answer] = upload([document()], Gateway([lost, refused]).api)
    assert answer.accepted
    assert answer.body["status"] == "synced"


def results(result: object) -> Fault:
    return answered(200, {"results": [result]})


GARBAGE = {
    "html": raw(200, b"<html>sign in"),
    "a redirection": raw(302, b""),
    "an empty object": answered(200, {}),
    "another's view": answered(200, {"idempotencyKey": "k-9", "status": "queued"}),
    "an error of text": results({"idempotencyKey": "k-1", "error": "boom"}),
    "an error without a status": results({"idempotencyKey": "k-1", "error": {"code": "NO"}}),
    "a status of text": results(
        {"idempotencyKey": "k-1", "error": {"code": "NO", "status": "bad", "retryable": True}}
    ),
    "a nest": raw(200, b"[" * 100_000),
    "bad gzip": lambda api, request: Reply(200, b"no gzip", {"Content-Encoding": "gzip"}),
}


@pytest.mark.usefixtures("short_of_time")
@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("line", [document(), document("k-1", "0722 110 3O5")])
def test_garbage_is_no_answer(line: Document, garbage: str) -> None:
    gateway = Gateway([GARBAGE[garbage]] * 99)
    [answer] = upload([line], gateway.api)
    assert answer.outcome == "unsent"


@pytest.mark.usefixtures("short_of_time")
@pytest.mark.parametrize("away", [unreached, dropped, raw(502, b"<html>bad gateway")])
def test_an_api_that_is_away_leaves_each_line_unsent_with_the_reason(away: Fault) -> None:
    gateway = Gateway([away] * 99)
    answers = upload([document(), document("k-2"), document("k-2")], gateway.api)
    assert told(answers) == [("unsent", 0)] * 3
    assert all(why(answer).startswith("UNSENT no time left (") for answer in answers)
    assert answers[0].view()["httpStatus"] is None
    assert {len(sent) for _, sent in gateway.sent} <= {1, 2}


@pytest.mark.usefixtures("short_of_time")
def test_an_api_that_is_away_is_waited_for_once_and_not_for_each_agent() -> None:
    gateway = Gateway([unreached] * 999)
    lines = [document(agentId=f"AG-{n:03d}") for n in range(20)]
    started = time.monotonic()
    answers = upload_all(lines, lambda _: gateway.api, lambda _: None)
    assert {answer.outcome for answer in answers} == {"unsent"}
    assert time.monotonic() - started < 2.5 + 20 * uploads.PATIENCE_S_MIN


@pytest.mark.parametrize("whose", ["another", "token"])
def test_an_agent_without_a_token_of_its_own_has_nothing_refused_and_holds_up_no_other(
    whose: str,
) -> None:
    mine, other = Gateway(agent_id="AG-009"), Gateway(agent_id="AG-002")
    mine.server.token = whose
    lines = [document(), document("k-2", agentId="AG-002"), document("k-3")]
    apis = {AGENT: mine.api, "AG-002": other.api}
    answers = upload_all(lines, lambda agent_id: apis[agent_id], lambda _: None)
    assert [answer.outcome for answer in answers] == ["unsent", "accepted", "unsent"]
    assert "token" in why(answers[0])


def test_an_outbox_is_gone_with_its_command_and_so_is_one_whose_command_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, alive = (tmp_path / f"{uploads.PREFIX}{pid}-abc" for pid in (dead.pid, os.getpid()))
    left.mkdir()
    alive.mkdir()
    monkeypatch.setattr(uploads, "MEMORY", tmp_path)
    seen: list[Path] = []

    def look(api: FakeApi, request: httpx.Request) -> Reply:
        seen.extend(tmp_path.iterdir())
        return well(api, request)

    gateway = Gateway([look])
    upload([document()], gateway.api)
    assert len(seen) == 2
    assert list(tmp_path.iterdir()) == [alive]


def test_a_token_is_not_sent_in_the_clear() -> None:
    gateway = Gateway()
    gateway.api.url = "http://api.test/prod"
    with pytest.raises(Problem, match="https"):
        upload([document()], gateway.api)


def test_a_machine_without_room_for_an_outbox_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.raises(Problem, match="No space left"):
        upload([document()], Gateway().api)


@pytest.mark.usefixtures("short_of_time")
def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    used: list[httpx.HTTPTransport] = []

    def nobody(transport: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        used.append(transport)
        raise httpx.ConnectError("nobody is there", request=request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", nobody)
    api = AgentApi("https://api.test/prod", "token")
    assert told(upload([document()], api)) == [("unsent", 0)]
    assert {*used} == {api.http._transport_for_url(httpx.URL(api.url))}
    assert {*used} != {api.http._transport}
