"""A file's transactions go by the agents' SDK, and each line has the API's own answer."""

import json
from collections.abc import Iterable

import httpx
import pytest

from tests.fakes.agent_api import (
    AgentApi as Server,
)
from tests.fakes.agent_api import (
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
from wakala.transactions import AgentApi, Answer, Document, count, why
from wakala.uploads import upload, upload_all

AGENT = "AG-001"
DELAYED = answered(503, problem("UNAVAILABLE", 503, retryable=True), Retry_After="0")


def document(key: str = "k-1", phone: str = "0712345678", **more: object) -> Document:
    return {"agentId": AGENT, "phone": phone, "amount": 100, "idempotencyKey": key, **more}


class Gateway:
    """A server with both ways in, and what goes wrong with its first requests."""

    def __init__(self, faults: Iterable[Fault] = (), agent_id: str = AGENT) -> None:
        self.server = Server(token="token", agent_id=agent_id)
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

    def _one(self, server: Server, request: httpx.Request) -> Reply:
        """The API reads it; here, a phone with a letter is no phone, and an amount is no text."""
        item = json.loads(request.content)
        if "O" in item["phone"] or item["amount"] == 0 or None in item.values():
            return reply(400, problem("VALIDATION_FAILED", 400))
        result = server._item(item, set())
        if "error" in result:
            return reply(result["error"]["status"], result["error"])
        replayed = result.pop("replayed")
        return reply(200 if replayed else 202, result, Idempotent_Replayed=str(replayed).lower())


@pytest.fixture(autouse=True)
def short_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is away stays away."""
    monkeypatch.setattr(uploads, "PATIENCE_S", 2.5)
    monkeypatch.setattr(uploads, "PATIENCE_S_EACH", 0)


def told(answers: Iterable[Answer]) -> list[tuple[str, int]]:
    return [(answer.outcome, answer.status) for answer in answers]


def test_a_file_is_sent_in_batches_and_answered_line_by_line() -> None:
    gateway, heard = Gateway(), list[int]()
    lines = [document(f"k-{n}") for n in range(120)]
    answers = upload(lines, gateway.api, heard.append)
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
    assert [path for path, _ in gateway.sent] == ["/tx/offline/batch"] + ["/tx/offline"] * 2


@pytest.mark.parametrize(
    "odd", [{"phone": "0722 110 3O5"}, {"amount": 0}, {"currency": None}, {"amount": "0"}]
)
def test_what_can_be_no_transaction_is_refused_by_the_api_and_spoils_no_other(
    odd: Document,
) -> None:
    gateway = Gateway()
    answers = upload([document(), document("odd") | odd, document("k-3")], gateway.api)
    assert told(answers)[::2] == [("accepted", 202)] * 2
    assert (odd != {"amount": "0"}) == (told(answers)[1] == ("refused", 400))
    assert gateway.sent[-1] == ("/tx/offline", [document("odd") | odd])


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


def test_a_line_that_is_never_taken_leaves_the_others_their_answers() -> None:
    gateway = Gateway()
    gateway.server.refused["k-1"] = problem("UNAVAILABLE", 503, retryable=True)
    answers = upload([document(), document("k-2", "0733000001")], gateway.api)
    assert told(answers) == [("unsent", 503), ("accepted", 202)]


@pytest.mark.parametrize("away", [unreached, dropped, raw(502, b"<html>bad gateway")])
def test_an_api_that_is_away_leaves_each_line_unsent_with_the_reason(away: Fault) -> None:
    gateway = Gateway([away] * 99)
    answers = upload([document(), document("k-2"), document("k-2")], gateway.api)
    assert told(answers) == [("unsent", 0)] * 3
    assert all(why(answer).startswith("UNSENT") for answer in answers)
    assert answers[0].view()["httpStatus"] is None


def test_one_agent_without_a_valid_token_holds_up_no_other() -> None:
    gateways = {AGENT: Gateway(), "AG-002": Gateway(agent_id="AG-002")}
    gateways[AGENT].server.token = "another"
    lines = [document(), document("k-2", agentId="AG-002"), document("k-3")]
    answers = upload_all(lines, lambda agent_id: gateways[agent_id].api, lambda _: None)
    assert [answer.outcome for answer in answers] == ["unsent", "accepted", "unsent"]
    assert "sign in again" in why(answers[0])


def test_another_agents_token_is_told_at_each_line_that_was_sent() -> None:
    gateway = Gateway(agent_id="AG-002")
    assert told(upload([document()], gateway.api)) == [("refused", 403)]


def test_a_token_is_not_sent_in_the_clear() -> None:
    gateway = Gateway()
    gateway.api.url = "http://api.test/prod"
    with pytest.raises(Problem, match="https"):
        upload([document()], gateway.api)


def test_a_machine_without_room_for_an_outbox_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(uploads, "TemporaryDirectory", full)
    with pytest.raises(Problem, match="No space left"):
        upload([document()], Gateway().api)
