"""What one sync does, in a time of its own: a driver that carries its steps out without waiting."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.agent_api import (
    AGENT,
    DATE,
    TOKEN,
    AgentApi,
    Fault,
    Json,
    Reply,
    answered,
    dropped,
    lost,
    problem,
    raw,
    rearranged,
    reply,
    spoilt,
    twice,
    unreached,
    well,
)
from wakala_agent import Backoff, Outbox, Pace, Report, State
from wakala_agent.api import RETRY_AFTER_MAX_S, Answer, Call, read_answer
from wakala_agent.outbox import SUSPECT_ALONE
from wakala_agent.plan import ASK_FAILURES_MAX, Gate, NewToken, Pause, Plan

PHONE = "0712345678"
OTHER = "0733000111"


@dataclass
class Device:
    """An outbox, a way to the API on which `faults` come first, and a clock that only they move."""

    outbox: Outbox
    api: AgentApi = field(default_factory=AgentApi)
    faults: Iterator[Fault] = field(default_factory=lambda: iter(()))
    pace: Pace = field(default_factory=lambda: Pace(backoff=Backoff(1, draw=lambda: 1.0)))
    gate: Gate = field(default_factory=Gate)
    now_s: float = 1_000.0
    answer_s: float = 0.0
    token: str = TOKEN
    new_tokens: int = 0
    pauses: list[float] = field(default_factory=list)
    began_s: list[float] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    stopped: bool = False

    def fails(self, *faults: Fault) -> "Device":
        """These faults come first, from now on."""
        self.faults = iter(faults)
        return self

    def sync(self, budget_s: float = 60.0) -> Report:
        """Carry out one plan."""
        plan = Plan(
            outbox=self.outbox,
            pace=self.pace,
            gate=self.gate,
            clock=lambda: self.now_s,
            deadline_s=self.now_s + budget_s,
            stopping=lambda: self.stopped,
        )
        steps = plan.steps()
        step = next(steps, None)
        while step is not None:
            answer = None
            if isinstance(step, Pause):
                self.pauses.append(step.seconds)
                self.now_s += step.seconds
            elif isinstance(step, NewToken):
                self.new_tokens += 1
            else:
                answer = self._call(step)
            try:
                step = steps.send(answer)
            except StopIteration:
                step = None
        return plan.report

    def _call(self, call: Call) -> Answer:
        self.calls.append(call)
        self.began_s.append(self.now_s)
        request = httpx.Request(
            call.method,
            f"https://api.test{call.path}",
            json=call.body,
            headers={"Authorization": self.token},
        )
        try:
            told = next(self.faults, well)(self.api, request)
        except httpx.ConnectError:
            return Answer(why="ConnectError", unreached=True)
        except httpx.HTTPError as error:
            self.now_s += call.timeout_s
            return Answer(why=type(error).__name__)
        self.now_s += min(self.answer_s, call.timeout_s)
        return read_answer(told.status, httpx.Headers(told.headers), told.body)

    def states(self) -> list[State]:
        """Of all transactions, in their order."""
        return [State(json.loads(line)["state"]) for line in self.outbox.export()]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    with _opened(tmp_path) as outbox:
        yield Device(outbox)


def _opened(folder: Path) -> Outbox:
    """An outbox that does not wait for the disk: what is on it is not the question here."""
    outbox = Outbox(folder / "outbox.db", AGENT)
    with outbox._storage.reading() as connection:
        connection.execute("PRAGMA synchronous = OFF")
    return outbox


def _submit(device: Device, number: int, phone: str = PHONE, name: str = "k") -> list[str]:
    return [
        device.outbox.submit(phone, n + 1, idempotency_key=f"{name}-{n}") for n in range(number)
    ]


def _is_well(device: Device) -> bool:
    """The contract was kept, each phone's order too, and nothing was debited twice."""
    api = device.api
    assert api.breaches == []
    assert len(api.debits) == len(set(api.debits))
    order = {each.idempotency_key: each.seq for each in device.outbox._listed("seq > 0")}
    for keys in api.phones().values():
        assert [order[key] for key in keys] == sorted(order[key] for key in keys)
    return True


def test_what_is_stored_is_sent_in_batches_and_heard_of_to_its_end(device: Device) -> None:
    keys = _submit(device, 120)
    report = device.sync()
    assert [len(batch) for batch in device.api.batches] == [50, 50, 20]
    assert list(device.api.rows) == device.api.debits == keys
    assert device.states() == [State.SYNCED] * 120
    assert report == Report(sent=120, accepted=120, asked=120, ended=120, requests=123)
    before = len(device.calls)
    assert device.sync() == Report()
    assert len(device.calls) == before, "with nothing to do, nobody is asked"


def test_a_server_that_takes_its_time_to_settle_is_asked_again_next_time(device: Device) -> None:
    device.api.asks_until_settled = 1
    _submit(device, 3)
    report = device.sync()
    assert (report.accepted, report.ended, report.problem) == (3, 0, None)
    assert device.states() == [State.QUEUED] * 3
    device.sync()
    assert device.states() == [State.SYNCED] * 3


def test_those_are_asked_for_first_that_were_asked_for_least(device: Device) -> None:
    device.pace = Pace(asks_max=10)
    device.api.asks_until_settled = 10
    _submit(device, 12)
    for _ in range(2):
        device.sync()
    asked = [device.api.asked[key] for key in device.api.rows]
    assert asked == [2] * 8 + [1] * 2 + [1] * 2


def test_an_answer_in_another_currency_is_about_something_else(device: Device) -> None:
    device.outbox.submit(PHONE, 100, currency="TZS")
    report = device.fails(spoilt(lambda body: body.replace(b'"TZS"', b'"KES"'))).sync()
    assert (report.failures, report.replayed) == (1, 1)
    assert device.states() == [State.SYNCED]


def test_a_sync_may_leave_it_to_another_to_ask(device: Device) -> None:
    device.pace = Pace(asks_max=0)
    _submit(device, 3)
    assert (device.sync().asked, device.sync().requests) == (0, 0)
    assert device.states() == [State.QUEUED] * 3


# Nothing is sent twice, and what is sent again is the same.


@pytest.mark.parametrize(
    "fault",
    [
        lost,
        dropped,
        unreached,
        twice,
        answered(500, {"message": "Internal server error"}),
        answered(502, {}),
        answered(503, problem("UNAVAILABLE", 503, retryable=True)),
        answered(429, problem("THROTTLED", 429, retryable=True)),
        answered(408, {}),
        answered(403, problem("BLOCKED", 403, retryable=True)),
        raw(200, b""),
        raw(200, b"<html>Welcome to the hotel</html>"),
        raw(400, b"<html>Bad Request</html>"),
        raw(200, b"\xff\xfe"),
        raw(200, b'{"results": []}'),
        raw(200, b'{"results": {"0": 1}}'),
        raw(200, b'[{"idempotencyKey": "k-0"}]'),
        raw(200, b'{"results": [' + b"[" * 100_000),
        raw(200, b'{"results": [' + b"9" * 10_000),
        answered(200, {"status": "ok", "data": {"token": 1}}),
        answered(200, {"results": [{"idempotencyKey": f"k-{n}"} for n in range(3)]}),
        answered(200, {"results": [{"error": {}} for _ in range(3)]}),
        answered(200, {"results": [None, [], 1]}),
        answered(200, {"results": [{"error": {"code": "NO", "retryable": 0}}] * 3}),
        answered(200, {"results": [{"error": problem("X", 400), "idempotencyKey": "?"}] * 3}),
        spoilt(lambda body: body[: len(body) // 2]),
        spoilt(lambda body: body.replace(b'"k-', b'"j-')),
        spoilt(lambda body: body.replace(b'"amount": ', b'"amount": 7')),
        spoilt(lambda body: body.replace(b'"queued"', b"null")),
        rearranged(lambda results: results[1:]),
        rearranged(lambda results: [*results, results[0]]),
        rearranged(lambda results: results[::-1]),
    ],
)
def test_c01_after_a_fault_the_same_is_sent_again_and_debited_once(
    device: Device, fault: Fault
) -> None:
    keys = _submit(device, 3)
    report = device.fails(fault).sync()
    assert device.states() == [State.SYNCED] * 3
    assert list(device.api.rows) == device.api.debits == keys
    assert (report.refused, report.problem) == (0, None)
    assert report.failures == (0 if fault is twice else 1)
    bodies = [call.body for call in device.calls if call.method == "POST"]
    items = {json.dumps(item) for body in bodies if body for item in body["transactions"]}
    assert len(items) == 3, "each try of a transaction is the same"
    assert _is_well(device)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (answered(403, {"message": "Forbidden"}), "403"),
        (answered(403, problem("AGENT_MISMATCH", 403)), "403 AGENT_MISMATCH"),
        (answered(404, problem("NOT_FOUND", 404)), "404 NOT_FOUND"),
        (raw(404, b"<html>nothing here</html>"), "404"),
        (raw(302, b""), "302"),
        (answered(400, {"message": "Bad Request"}), "400"),
        (answered(422, {"error": "no"}), "422"),
        (answered(409, problem("NEW", 409)), "409 NEW"),
        (answered(501, problem("NEW", 501)), "501 NEW"),
    ],
)
def test_what_waiting_does_not_mend_ends_the_sync_and_touches_nothing(
    device: Device, fault: Fault, told: str
) -> None:
    _submit(device, 3)
    report = device.fails(fault).sync()
    assert (report.problem, report.requests, report.refused) == (told, 1, 0)
    assert device.new_tokens == 1, "some gateways say 403 where they mean 401"
    assert device.states() == [State.STORED] * 3
    assert device.sync().problem is None
    assert _is_well(device)


def test_what_a_firewall_blocks_is_kept_and_no_new_token_is_asked_for(device: Device) -> None:
    """One that blocks for what one transaction says, even: all others pass."""
    keys = _submit(device, 8) + _submit(device, 8, OTHER, "o")
    blocked = answered(403, problem("BLOCKED", 403, retryable=True))
    device.faults = iter(_while(lambda batch: "k-3" in batch, blocked))
    for _ in range(2):
        device.sync(120)
    assert list(device.api.rows) == keys[:3] + keys[8:]
    device.fails(blocked).sync()
    device.sync()
    assert (device.new_tokens, set(device.states())) == (0, {State.SYNCED})
    assert _is_well(device)


@pytest.mark.parametrize("code", ["AGENT_MISMATCH", "NOT_ENROLLED"])
def test_another_agents_token_refuses_nothing(device: Device, code: str) -> None:
    """The API answers each item with 403 under a 200: not one of them is wrong."""
    keys = _submit(device, 3)
    device.api.refused = dict.fromkeys(keys, problem(code, 403))
    report = device.sync()
    assert report.problem == f"not a token of agent AG-001: {code}"
    assert device.states() == [State.STORED] * 3
    assert device.new_tokens == 1, "the next sync asks for a token again"
    device.api.refused = {}
    device.sync()
    assert device.states() == [State.SYNCED] * 3


def test_a_token_that_is_wrong_for_one_alone_holds_up_no_other_phone(device: Device) -> None:
    """A token is right or wrong for all: what the API says of one is about that one."""
    _submit(device, 1)
    others = _submit(device, 120, OTHER, "o")
    device.api.refused = {"k-0": problem("NOT_YET", 403)}
    report = device.sync()
    assert list(device.api.rows) == others
    assert report.problem == "not a token of agent AG-001: NOT_YET"
    assert device.outbox.counts() == {State.STORED: 1, State.QUEUED: 120}
    device.api.refused = {}
    device.sync()
    assert set(device.states()) == {State.SYNCED}


def test_a_token_that_lapsed_is_renewed_once_and_then_left_to_a_person(device: Device) -> None:
    unauthenticated = answered(401, problem("UNAUTHENTICATED", 401))
    _submit(device, 3)
    report = device.fails(unauthenticated, well, unauthenticated).sync()
    assert (device.new_tokens, report.problem) == (2, None)
    _submit(device, 3, name="more")
    report = device.fails(unauthenticated, unauthenticated).sync()
    assert report.problem == "the token is refused: sign in again"
    assert report.requests == 2
    assert device.outbox.counts() == {State.SYNCED: 3, State.STORED: 3}


# One item holds up nobody.


def test_a_permanent_refusal_of_one_never_holds_up_the_others(device: Device) -> None:
    keys = _submit(device, 120)
    errors = [{"field": "phone", "code": "bad_phone", "message": "no phone"}]
    told = problem("VALIDATION_FAILED", 400, errors=errors, padding="x" * 1_000)
    device.api.refused = {keys[0]: told, keys[60]: told, keys[119]: told}
    report = device.sync()
    assert (report.refused, report.accepted, report.problem) == (3, 117, None)
    assert [each.idempotency_key for each in device.outbox.refused()] == list(device.api.refused)
    error = device.outbox.status(keys[60]).error
    assert error is not None
    assert (error["code"], error["errors"], "padding" in error) == (
        "VALIDATION_FAILED",
        errors,
        False,
    )
    assert device.sync() == Report(), "what is refused is not sent again"
    assert _is_well(device)


def test_one_that_is_never_taken_now_lets_all_but_its_phone_pass(device: Device) -> None:
    device.api.refused = {"k-0": problem("UNAVAILABLE", 503, retryable=True)}
    _submit(device, 1)
    _submit(device, 120, OTHER, "o")
    _submit(device, 1, PHONE, "later")
    report = device.sync()
    assert (report.problem, report.asked) == ("UNAVAILABLE", 120)
    assert len(device.api.rows) == 120
    assert device.outbox.status("later-0").state is State.STORED
    device.api.refused = {}
    device.sync()
    assert set(device.states()) == {State.SYNCED}
    assert _is_well(device)


@pytest.mark.parametrize("where", [("k-0", "k-1"), ("k-0", "k-8")], ids=["beside", "apart"])
def test_two_at_which_the_server_fails_hold_up_nothing_else(
    device: Device, where: tuple[str, str]
) -> None:
    """Each of another phone: what is good is sent, and what was sent is asked for."""
    for n in range(10):
        device.outbox.submit(f"07{n:08d}", 1, idempotency_key=f"k-{n}")
    device.faults = iter(_while(lambda keys: bool({*where} & {*keys}), raw(500, b"")))
    for _ in range(4):
        device.sync()
    good = {f"k-{n}" for n in range(10)} - {*where}
    assert {device.outbox.status(key).state for key in good} == {State.SYNCED}
    assert {device.outbox.status(key).state for key in where} == {State.STORED}


def test_a_full_page_of_what_is_never_taken_now_holds_up_no_other_phone(device: Device) -> None:
    stuck = [device.outbox.submit(f"07{n:08d}", 1) for n in range(60)]
    device.api.refused = dict.fromkeys(stuck, problem("UNAVAILABLE", 503, retryable=True))
    _submit(device, 120)
    device.sync()
    assert len(device.api.rows) == 120
    sent = Counter(key for batch in device.api.batches for key in batch)
    assert {sent[key] for key in device.api.rows} == {1}
    device.api.refused = {}
    device.sync()
    assert set(device.states()) == {State.SYNCED}
    assert _is_well(device)


def _while(condition: Callable[[list[str]], bool], fault: Fault) -> Iterable[Fault]:
    """The fault meets each batch whose keys fulfil the condition."""

    def choose(api: AgentApi, request: httpx.Request) -> Reply:
        if request.method == "GET":
            return well(api, request)
        items = json.loads(request.content)["transactions"]
        keys = [item["idempotencyKey"] for item in items]
        return (fault if condition(keys) else well)(api, request)

    while True:
        yield choose


@pytest.mark.parametrize(
    "fault",
    [
        answered(413, problem("TOO_LARGE", 413)),
        raw(413, b"<html>nginx</html>"),
        answered(400, problem("VALIDATION_FAILED", 400)),
        answered(504, {"message": "Endpoint request timed out"}),
    ],
)
def test_a_batch_that_is_too_large_is_sent_in_parts(device: Device, fault: Fault) -> None:
    keys = _submit(device, 100)
    device.faults = iter(_while(lambda batch: len(batch) > 20, fault))
    for _ in range(9):
        assert device.sync().refused == 0
    assert list(device.api.rows) == keys
    assert _is_well(device)


@pytest.mark.parametrize("code", [("VALIDATION_FAILED", 400), ("TOO_LARGE", 413), ("NEW", 422)])
def test_a_request_that_is_refused_whole_is_split_down_to_the_one_it_is_about(
    device: Device, code: tuple[str, int]
) -> None:
    keys = _submit(device, 100)
    refused = answered(code[1], problem(*code))
    device.faults = iter(_while(lambda batch: keys[30] in batch or keys[77] in batch, refused))
    report = device.sync()
    assert (report.refused, report.problem) == (2, None)
    assert [each.idempotency_key for each in device.outbox.refused()] == [keys[30], keys[77]]
    assert report.requests - report.asked <= 26, "halving finds each of the two in about 12"
    assert len(device.api.rows) == 98
    assert _is_well(device)


@pytest.mark.parametrize("fault", [answered(502, {}), dropped, raw(200, b"<html>"), lost])
def test_one_at_which_the_server_itself_fails_lets_all_but_its_phone_pass(
    device: Device, fault: Fault
) -> None:
    _submit(device, 30, OTHER, "o")
    _submit(device, 1, name="poison")
    _submit(device, 1, "+254 712 345 678", "same-phone")
    _submit(device, 30, OTHER, "p")
    device.faults = iter(_while(lambda batch: "poison-0" in batch, fault))
    passing = {f"{name}-{n}" for name in "op" for n in range(30)}
    takes_its_time = fault in (dropped, lost)
    for _ in range(4 if takes_its_time else 1):
        device.sync(120)
    assert passing <= set(device.api.rows)
    assert device.outbox.status("same-phone-0").state is State.STORED
    assert device.outbox.status("poison-0").state is State.STORED
    _submit(device, 1, OTHER, "q")
    before = len(device.calls)
    assert device.sync().accepted == 1
    first = device.calls[before].body
    assert first is not None
    assert [item["idempotencyKey"] for item in first["transactions"]] == ["q-0"]
    device.faults = iter(())
    device.sync()
    assert set(device.states()) == {State.SYNCED}
    assert _is_well(device)


def test_what_passes_after_it_does_not_hide_what_stays_behind(device: Device) -> None:
    """Both were put aside before, and the server still fails at the first alone."""
    bad, mended = device.outbox.submit(PHONE, 1), device.outbox.submit(OTHER, 2)
    for _ in range(SUSPECT_ALONE):
        device.outbox.suspecting([bad, mended])
    report = device.fails(answered(500, {})).sync()
    assert device.outbox.status(bad).state is State.STORED
    assert device.outbox.status(mended).state is State.SYNCED
    assert report.problem == "500"


def test_when_no_network_is_there_nothing_is_put_aside_and_batches_stay_whole(
    device: Device,
) -> None:
    keys = _submit(device, 60)
    overloaded = answered(503, problem("UNAVAILABLE", 503, retryable=True), Retry_After="1")
    device.fails(unreached, overloaded, unreached, overloaded).sync()
    assert [len(batch) for batch in device.api.batches] == [50, 10]
    assert list(device.api.rows) == keys


# A lost answer.


def test_a_lost_answer_is_a_replay_the_next_time(device: Device) -> None:
    _submit(device, 3)
    report = device.fails(lost).sync()
    assert (report.accepted, report.replayed) == (0, 3)
    assert device.api.debits == ["k-0", "k-1", "k-2"]


INVALID = problem("VALIDATION_FAILED", 400)


@pytest.mark.parametrize("ending", ["same sync", "another sync"])
def test_a_refusal_after_a_lost_answer_is_looked_into_before_it_is_believed(
    device: Device, ending: str
) -> None:
    """The first try was accepted; the server has become stricter since."""
    _submit(device, 2)
    device.api.refused = {"k-1": INVALID}

    def stricter(api: AgentApi, request: httpx.Request) -> Reply:
        told = well(api, request)
        api.refused = {"k-0": INVALID, "k-1": INVALID}
        raise httpx.ReadTimeout(str(told.status), request=request)

    device.fails(stricter).sync(40 if ending == "same sync" else 1)
    report = device.sync()
    assert device.states() == [State.SYNCED, State.REFUSED]
    assert report.refused == (0 if ending == "same sync" else 1)
    assert report.accepted == 0
    assert device.api.debits == ["k-0"]


@pytest.mark.parametrize(
    "fault",
    [
        answered(503, problem("UNAVAILABLE", 503, retryable=True)),
        raw(404, b"<html>nothing here</html>"),
        answered(404, {"message": "Not Found"}),
        answered(200, {"idempotencyKey": "another", "status": "queued", "amount": 1}),
        raw(200, b""),
        lost,
        unreached,
    ],
)
def test_nothing_but_the_apis_own_404_proves_that_an_earlier_try_was_not_accepted(
    device: Device, fault: Fault
) -> None:
    _submit(device, 1)
    device.fails(unreached).sync(0.5)
    device.api.refused = {"k-0": INVALID}
    device.fails(well, fault, *[unreached] * 99).sync(5)
    assert [call.method for call in device.calls[1:3]] == ["POST", "GET"]
    assert device.states() == [State.STORED]
    device.fails().sync()
    assert device.states() == [State.REFUSED]


@pytest.mark.parametrize("other", [{"amount": 77}, {"phone": OTHER}])
def test_a_key_that_means_something_else_at_the_server_is_refused(
    device: Device, other: Json
) -> None:
    """Another device of the agent's used it, for a phone or an amount that this one never sent."""
    _submit(device, 1)
    device.fails(unreached).sync(0.5)
    device.api.rows["k-0"] = {"phone": PHONE, "amount": 1, "currency": "KES"} | other
    report = device.sync()
    (refused,) = device.outbox.refused()
    assert refused.error is not None
    assert (refused.error["code"], report.refused, report.requests) == ("KEY_REUSED", 1, 1)


def test_a_key_that_the_servers_new_currency_makes_another_is_still_this_transactions(
    device: Device,
) -> None:
    """The first try was accepted and its answer lost; then the stack's default changed."""
    _submit(device, 1)
    device.fails(lost).sync(0.5)
    device.api.currency = "TZS"
    report = device.sync()
    assert (report.refused, report.replayed, report.problem) == (0, 1, None)
    assert (device.states(), device.api.debits) == ([State.SYNCED], ["k-0"])


@pytest.mark.parametrize("code", [("KEY_REUSED", 422), ("VALIDATION_FAILED", 400)])
@pytest.mark.parametrize("other", [{"amount": 77}, {"currency": "TZS"}])
def test_a_status_about_another_amount_or_currency_proves_a_refusal_too(
    device: Device, code: tuple[str, int], other: Json
) -> None:
    """Else it would be sent for ever, and hold up its phone."""
    device.outbox.submit(PHONE, 1, currency="KES", idempotency_key="k-0")
    device.fails(unreached).sync(0.5)
    device.api.rows["k-0"] = {"phone": PHONE, "amount": 1, "currency": "KES"} | other
    device.api.refused = {"k-0": problem(*code)}
    report = device.sync()
    assert (device.states(), report.refused, report.problem) == ([State.REFUSED], 1, None)
    assert [call.method for call in device.calls[1:]] == ["POST", "GET"]


# What became of it.


def test_a_word_that_is_not_known_here_is_no_reason_to_send_again(device: Device) -> None:
    _submit(device, 2)
    disputed = spoilt(lambda body: body.replace(b'"queued"', b'"disputed"'))
    device.api.asks_until_settled = 1
    device.fails(disputed, disputed, well).sync()
    assert device.states() == [State.QUEUED] * 2
    assert len(device.api.batches) == 1


def test_what_the_server_forgot_is_sent_again(device: Device) -> None:
    device.api.asks_until_settled = 100
    _submit(device, 2)
    device.sync()
    del device.api.rows["k-0"]
    report = device.sync()
    assert (report.sent, report.accepted) == (1, 1)
    assert set(device.api.rows) == {"k-0", "k-1"}


def test_one_status_that_fails_lets_the_others_be_asked_for(device: Device) -> None:
    device.api.asks_until_settled = 1
    _submit(device, 5)
    device.sync()
    failing = answered(502, {})
    report = device.fails(failing).sync()
    assert (report.ended, report.failures, report.problem) == (4, 1, None)
    report = device.fails(*[failing] * 9).sync()
    assert report.problem is None, "there was one left, and it is asked for once in a sync"
    assert device.fails().sync().ended == 1


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (answered(429, problem("THROTTLED", 429, retryable=True)), "429 THROTTLED"),
        (answered(503, problem("UNAVAILABLE", 503, retryable=True)), "503 UNAVAILABLE"),
        (unreached, "ConnectError"),
    ],
)
def test_a_server_with_too_much_to_do_is_asked_no_more(
    device: Device, fault: Fault, told: str
) -> None:
    """Nothing is lost by it, and others have something to send."""
    device.api.asks_until_settled = 1
    _submit(device, 5)
    device.sync()
    report = device.fails(well, fault).sync()
    assert (report.asked, report.ended, report.problem) == (2, 1, told)
    assert device.fails().sync().ended == 4


def test_a_server_that_does_not_answer_is_not_asked_for_everything(device: Device) -> None:
    device.api.asks_until_settled = 1
    _submit(device, 50)
    device.sync()
    report = device.fails(*[answered(502, {})] * 99).sync()
    assert (report.asked, report.problem) == (ASK_FAILURES_MAX, "502")
    report = device.fails(answered(403, {})).sync()
    assert (report.asked, report.problem) == (1, "403")


# Time.


def test_waits_grow_from_failure_to_failure_and_never_pass_the_deadline(device: Device) -> None:
    _submit(device, 1)
    report = device.fails(*[unreached] * 99).sync(60)
    assert device.pauses[::1] == [1, 2, 4, 8, 16]
    assert device.now_s == 1_031, "the next wait of 32 s would end beyond it"
    assert report.problem == "no time left: the rest stays in the outbox (ConnectError)"
    assert device.states() == [State.STORED]


def test_to_have_no_time_left_to_ask_is_no_problem(device: Device) -> None:
    """What is asked for is safe at the server; a background syncer is not to wait longer for it."""
    device.api.asks_until_settled = 10
    _submit(device, 50)
    report = device.sync(8)
    assert (report.accepted, report.problem) == (50, None)
    assert 10 < report.asked < 50


def test_a_success_begins_the_waits_anew(device: Device) -> None:
    _submit(device, 55)
    device.fails(unreached, unreached, well, unreached, well).sync()
    assert [seconds for seconds in device.pauses if seconds >= 1] == [1, 2, 1]


def test_no_request_outlives_the_budget(device: Device) -> None:
    _submit(device, 1)
    device.fails(*[dropped] * 99)
    for budget_s in (60, 40, 5, 1):
        before_s = device.now_s
        device.sync(budget_s)
        assert device.now_s <= before_s + budget_s
    assert max(call.timeout_s for call in device.calls) == 35
    assert device.sync(0).problem == "no time left: the rest stays in the outbox"


def test_with_little_time_left_another_request_is_not_begun(device: Device) -> None:
    """It would be sent, its answer not waited for, and all of it sent again."""
    _submit(device, 150)
    device.answer_s = 4.5
    report = device.sync(10)
    assert (report.requests, report.failures) == (2, 0)
    assert device.outbox.counts() == {State.QUEUED: 100, State.STORED: 50}


def test_requests_keep_their_pace_from_one_sync_to_the_next(device: Device) -> None:
    device.pace = Pace(requests_per_s=2)
    _submit(device, 3)
    device.sync()
    _submit(device, 3, name="more")
    device.sync()
    gaps = [
        later - sooner for sooner, later in zip(device.began_s, device.began_s[1:], strict=False)
    ]
    assert gaps == [0.5] * 7
    device.answer_s = 0.4
    _submit(device, 3, name="last")
    device.sync()
    gaps = [
        later - sooner for sooner, later in zip(device.began_s, device.began_s[1:], strict=False)
    ]
    assert gaps == pytest.approx([0.5] * 11), "the time that an answer takes counts"


@pytest.mark.parametrize(
    ("value", "expected_s"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("3600", 3_600),
        ("31536000", RETRY_AFTER_MAX_S),
        ("9" * 18, RETRY_AFTER_MAX_S),
        ("9" * 400, 0),
        ("-5", 0),
        ("1.5", 0),
        ("٣", 0),
        ("soon", 0),
        ("", 0),
        ("Sun, 29 Nov 2026 12:00:30 GMT", 30),
        ("Sun, 29 Nov 2026 12:00:30 -0000", 30),
        ("Sunday, 29-Nov-26 12:00:30 GMT", 30),
        ("Sun Nov 29 12:00:30 2026", 30),
        ("Sun, 29 Nov 2026 11:00:00 GMT", 0),
        ("Mon, 29 Nov 2027 12:00:00 GMT", RETRY_AFTER_MAX_S),
        ("Sun, 99 Nov 2026 12:00:00 GMT", 0),
    ],
)
def test_what_the_server_asks_to_wait_is_read_by_the_servers_clock(
    value: str, expected_s: float
) -> None:
    headers = httpx.Headers([(b"Retry-After", value.encode()), (b"Date", DATE.encode())])
    assert read_answer(503, headers, b"").retry_after_s == expected_s


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone is the system's")
def test_a_date_without_a_zone_is_no_date_of_the_devices_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers = {"Retry-After": "Sun, 29 Nov 2026 12:00:30 -0000", "Date": DATE}
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "EAT-3")
        time.tzset()
        assert read_answer(503, headers, b"").retry_after_s == 30
    time.tzset()


def test_a_date_without_the_servers_clock_says_nothing() -> None:
    headers = httpx.Headers({"Retry-After": "Sun, 29 Nov 2026 12:00:30 GMT"})
    assert read_answer(503, headers, b"").retry_after_s == 0
    for date in ("Thu, 01 Jan 1970 00:00:00 GMT", "no date", "Sun, 29 Nov 9999 12:00:00 +2400"):
        read_answer(200, {"Date": date, "Retry-After": date}, b"")


@pytest.mark.parametrize("status", [429, 503])
def test_the_server_is_left_alone_for_as_long_as_it_asks_and_then_a_little(
    device: Device, status: int
) -> None:
    overloaded = answered(status, problem("LATER", status, retryable=True), Retry_After="10")
    _submit(device, 1)
    device.fails(overloaded, overloaded).sync()
    assert device.pauses[:2] == [11, 12], "what it asks for, and the jitter on top"
    assert device.states() == [State.SYNCED]


def test_what_the_server_asked_for_holds_for_the_next_sync_too(device: Device) -> None:
    overloaded = answered(503, problem("LATER", 503, retryable=True), Retry_After="100")
    _submit(device, 1)
    device.fails(overloaded).sync()
    for _ in range(3):
        report = device.sync()
        assert (report.requests, report.problem) == (
            0,
            "no time left: the rest stays in the outbox",
        )
    device.now_s += 50
    device.sync()
    assert device.states() == [State.SYNCED]
    assert device.began_s[1] >= device.began_s[0] + 100


def test_a_sync_that_is_to_stop_begins_nothing(device: Device) -> None:
    _submit(device, 120)

    def stop(api: AgentApi, request: httpx.Request) -> Reply:
        device.stopped = True
        return well(api, request)

    report = device.fails(well, stop).sync()
    assert (report.requests, report.problem) == (2, "stopped: the rest stays in the outbox")
    assert len(device.api.rows) == 100


@pytest.mark.parametrize(
    "wrong", [{"budget_s": 0}, {"timeout_s": -1}, {"requests_per_s": 0}, {"budget_s": float("nan")}]
)
def test_a_pace_that_never_sends_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Pace(**wrong)
    with pytest.raises(ValueError, match="asks_max"):
        Pace(asks_max=-1)


def test_the_backoff_is_bounded_and_drawn_evenly() -> None:
    bounds = [Backoff(draw=lambda: 1.0).wait_s(n) for n in (0, 1, 2, 5, 6, 7, 10**6)]
    assert bounds == [4, 4, 8, 64, 120, 120, 120]
    assert Backoff(draw=lambda: 0.0).wait_s(9, 3) == 3
    assert Backoff(draw=lambda: 0.5).spread_s(10) == 5
    waits = [Backoff().wait_s(2) for _ in range(4_000)]
    assert all(0 <= wait < 8 for wait in waits)
    quarters = [sum(2 * n <= wait < 2 * n + 2 for wait in waits) for n in range(4)]
    assert min(quarters) > 850
    for wrong in ({"base_s": 0}, {"base_s": 2, "cap_s": 1}, {"base_s": float("nan")}):
        with pytest.raises(ValueError, match="base_s"):
            Backoff(**wrong)


# All of it at once.

FAULTS: list[Fault] = [
    well,
    lost,
    dropped,
    unreached,
    twice,
    answered(500, {}),
    answered(502, {"message": "Internal server error"}),
    answered(503, problem("UNAVAILABLE", 503, retryable=True), Retry_After="2"),
    answered(429, problem("THROTTLED", 429, retryable=True), Retry_After="1"),
    answered(401, problem("UNAUTHENTICATED", 401)),
    answered(403, {"message": "Forbidden"}),
    answered(404, problem("NOT_FOUND", 404, retryable=True)),
    answered(413, problem("TOO_LARGE", 413), padding="x"),
    raw(200, b"<html>"),
    raw(200, b""),
    spoilt(lambda body: body[:-3]),
    rearranged(lambda results: results[::-1]),
    rearranged(lambda results: results[:-1]),
]
SPLIT = 12
"""Where among them the one stands that is believed for a single item."""


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_p1_p5_whatever_goes_wrong_each_ends_once_and_in_its_phones_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("history")
    with _opened(folder) as outbox:
        device = Device(outbox, pace=Pace(backoff=Backoff(1, draw=lambda: 0.5)))
        device.api.asks_until_settled = data.draw(st.integers(0, 2))
        faults = [fault for n, fault in enumerate(FAULTS) if n != SPLIT]
        for number in range(data.draw(st.integers(1, 4))):
            phones = data.draw(st.lists(st.sampled_from([PHONE, OTHER]), max_size=8))
            for n, phone in enumerate(phones):
                outbox.submit(phone, n + 1, idempotency_key=f"k-{number}-{n}")
            device.fails(*data.draw(st.lists(st.sampled_from(faults), max_size=12)))
            before_s, budget_s = device.now_s, data.draw(st.sampled_from([3.0, 30.0, 90.0]))
            device.sync(budget_s)
            assert device.now_s <= before_s + budget_s
            _is_well(device)
        device.fails()
        for _ in range(4):
            device.now_s += 10
            device.sync()
        assert device.sync() == Report()
        assert set(device.states()) <= {State.SYNCED}
        assert sorted(device.api.debits) == sorted(device.api.rows)
        assert len(device.api.rows) == sum(outbox.counts().values())
        assert _is_well(device)


def test_ten_thousand_are_sent_in_pages_and_memory_stays_flat(device: Device) -> None:
    """Filled in one transaction, which is quicker; the server keeps nothing."""
    import tracemalloc

    with device.outbox._storage.writing() as connection:
        connection.executemany(
            "INSERT INTO transactions (idempotency_key, phone, phone_tail, amount, state)"
            " VALUES (?, ?, ?, ?, 'stored')",
            ((f"k-{n}", PHONE, "2345678", n + 1) for n in range(10_000)),
        )
    rows: list[int] = []

    def settle(api: AgentApi, request: httpx.Request) -> Reply:
        items: list[Json] = json.loads(request.content)["transactions"]
        rows.append(len(items))
        names = ("idempotencyKey", "amount")
        settled = {"status": "synced", "replayed": False}
        results = [settled | {name: item[name] for name in names} for item in items]
        return reply(200, {"results": results})

    device.faults = iter(lambda: settle, None)
    device.pace = Pace(budget_s=60, requests_per_s=1e6)
    device.calls = _Nothing()
    tracemalloc.start()
    try:
        report = device.sync()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (report.accepted, report.ended, report.problem) == (10_000, 10_000, None)
    assert max(rows) == 50
    assert peak < 1_000_000
    assert device.outbox.prune(0) == 10_000


class _Nothing(list[Call]):
    """Keeps no call."""

    def append(self, call: Call, /) -> None:
        """Forget it."""
