"""The demo's day, before anything is deployed: what it holds, and what it must come to."""

import importlib.util
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from wakala.audit import Audit, Report, Violation
from wakala.demo import (
    RUN_LENGTH_MAX,
    Played,
    Result,
    await_ends,
    play,
    quantiles,
    read_day,
)
from wakala.output import out
from wakala.transactions import AgentApi, Answer, Document
from wallet_ledger.contracts import Defaults, InvalidRequest, read_phone, read_transaction
from wallet_ledger.domain.ids import Currency, Phone
from wallet_ledger.domain.transactions import Request
from wallet_ledger.domain.wallets import (
    Credit,
    Debit,
    Movement,
    Outcome,
    Posted,
    StatusChange,
    WalletStatus,
    decide,
)

CLI = Path(__file__).parents[2] / "cli"
KES = Currency("KES")
DEFAULTS = Defaults(KES, "KE")
DAY = read_day("run")
SENT = [transaction for upload in DAY.uploads for transaction in upload.transactions]


def make_day() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_day", CLI / "make_day.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def accepted() -> list[Request]:
    """What the API accepts of the day: valid, and the first of its key."""
    first: dict[tuple[str, str], Request] = {}
    for transaction in SENT:
        try:
            request = read_transaction(transaction, DEFAULTS)
        except InvalidRequest:
            continue
        first.setdefault((request.agent_id, request.idempotency_key), request)
    return list(first.values())


def outcomes(requests: list[Request]) -> Counter[str]:
    """What the ledger decides of the requests in this order, wallet by wallet."""
    movements: defaultdict[Phone, list[Movement]] = defaultdict(list)
    for each in DAY.openings:
        phone = Phone(each.phone)
        movements[phone].append(Credit("cli", "run", phone, each.opening, KES))
        if each.frozen:
            status = WalletStatus.FROZEN
            movements[phone].append(StatusChange("cli", "run", phone, status, KES))
    for r in requests:
        debit = Debit(r.agent_id, r.idempotency_key, r.phone, r.amount_minor, r.currency, 1, 0)
        movements[r.phone].append(debit)
    words: Counter[str] = Counter()
    for of_wallet in movements.values():
        for movement, outcome in zip(of_wallet, decide(None, of_wallet).outcomes, strict=True):
            if isinstance(movement, Debit):
                words[word(outcome)] += 1
    return words


def word(outcome: Outcome) -> str:
    return "synced" if isinstance(outcome, Posted) else str(outcome.reason)


def test_the_committed_day_is_what_its_script_writes() -> None:
    committed = (CLI / "wakala" / "day.ndjson").read_text(encoding="utf-8")
    assert make_day().text() == committed


def test_the_day_holds_all_that_the_demo_promises() -> None:
    assert len(SENT) == 321
    assert DAY.size == len(SENT)
    assert len(DAY.agent_ids) == 6
    spellings = {transaction["phone"][:2] for transaction in SENT}
    assert {"07", "25", "+2"} <= spellings
    keys = Counter((t["agentId"], t["idempotencyKey"]) for t in SENT)
    assert sum(count - 1 for count in keys.values()) == 32  # one of them for another amount
    batches = Counter(json.dumps(u.transactions) for u in DAY.uploads if len(u.transactions) > 1)
    assert max(batches.values()) == 2  # a whole batch sent twice


def test_only_the_mistyped_phone_is_no_phone() -> None:
    wrong = []
    for transaction in SENT:
        try:
            read_phone(transaction["phone"], "KE")
        except InvalidRequest:
            wrong.append(transaction["phone"])
    assert wrong == ["0722 110 3O5"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_day_comes_to_the_same_in_whatever_order_agents_are_served(order: int) -> None:
    requests = accepted()[::order]
    assert len(requests) == 288
    assert outcomes(requests) == {
        "synced": 266,
        "INSUFFICIENT_FUNDS": 11,
        "WALLET_NOT_FOUND": 6,
        "WALLET_FROZEN": 4,
        "CURRENCY_MISMATCH": 1,
    }


def test_keys_of_a_run_are_its_own_and_fit() -> None:
    longest = read_day("r" * RUN_LENGTH_MAX)
    keys = {t["idempotencyKey"] for upload in longest.uploads for t in upload.transactions}
    assert max(map(len, keys)) <= 64
    assert not keys & {t["idempotencyKey"] for t in SENT}


class Api:
    """An API that accepts everything and settles it after so many questions."""

    def __init__(self, questions: int) -> None:
        self.questions = questions
        self.order: defaultdict[str, list[str]] = defaultdict(list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            self.questions -= 1
            status = "queued" if self.questions > 0 else "synced"
            return httpx.Response(200, json=view(request.url.path.rsplit("/")[-1], status))
        body = json.loads(request.content)
        sent = body.get("transactions", [body])
        for each in sent:
            self.order[each["agentId"]].append(each["idempotencyKey"])
        if "transactions" not in body:
            return httpx.Response(202, json=view(body["idempotencyKey"], "queued"))
        views = [view(each["idempotencyKey"], "queued") | {"replayed": False} for each in sent]
        return httpx.Response(200, json={"results": views})


def view(key: str, status: str) -> Document:
    return {"idempotencyKey": key, "status": status, "createdAt": 1000, "updatedAt": 1250}


def apis_of(api: Api) -> dict[str, AgentApi]:
    app = AgentApi("https://api.test", "token", transport=httpx.MockTransport(api))
    return dict.fromkeys(DAY.agent_ids, app)


def test_every_upload_is_sent_and_those_of_an_agent_in_their_order() -> None:
    api = Api(questions=0)
    played = play(DAY, apis_of(api))
    assert len(played.answers) == len(SENT)
    assert len(played.requests_ms) == len(DAY.uploads)
    for agent_id in DAY.agent_ids:
        sent = [t["idempotencyKey"] for t in SENT if t["agentId"] == agent_id]
        assert api.order[agent_id] == sent


def answer(key: str = "k-1", status: int = 202, **body: object) -> Answer:
    sent = {"agentId": "AG-001", "idempotencyKey": key, "amount": 1}
    return Answer(sent, status, body, False, 10)


def test_waiting_ends_with_the_last_transaction_or_with_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wakala.demo.POLL_SECONDS", 0)
    ends = await_ends([answer()], apis_of(Api(questions=3)))
    assert ends["AG-001", "k-1"]["status"] == "synced"
    ends = await_ends([answer()], apis_of(Api(questions=10**9)), seconds=0)
    assert ends["AG-001", "k-1"]["status"] == "queued"


def test_a_refused_transaction_is_not_waited_for() -> None:
    assert await_ends([answer(status=400)], apis_of(Api(questions=10**9))) == {}


SOUND = Result(
    "run",
    Played((answer(), answer("k-2", 422, code="KEY_REUSED", retryable=False)), (10.0, 30.0)),
    {
        ("AG-001", "k-1"): view("k-1", "synced"),
        ("AG-001", "k-3"): view("k-3", "failed") | {"reason": "WALLET_FROZEN"},
    },
    Audit(0).report(),
)
BROKEN = Report({}, [Violation("P2", "a balance of -1")])
OPEN = {("AG-001", "k-1"): view("k-1", "queued")}
UNSENT = Played((answer("k-2", 503, code="UNAVAILABLE", retryable=True),), (10.0,))


def test_the_result_counts_what_happened() -> None:
    found = SOUND.view()
    assert SOUND.ok
    assert (found["sent"], found["accepted"], found["synced"], found["open"]) == (2, 1, 1, 0)
    assert found["failed"] == {"WALLET_FROZEN": 1}
    assert found["refused"] == {"KEY_REUSED": 1}
    assert found["latencyMs"]["settle"] == {"p50": 250, "p95": 250, "p99": 250}
    assert found["latencyMs"]["request"]["p50"] == 10


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(replace(SOUND, report=BROKEN), id="a promise is broken"),
        pytest.param(replace(SOUND, ends=OPEN), id="a transaction did not end"),
        pytest.param(replace(SOUND, played=UNSENT), id="a transaction could not be sent"),
    ],
)
def test_a_day_that_did_not_end_well_is_not_ok(result: Result) -> None:
    assert not result.ok


def test_the_result_is_shown_with_its_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    out.print(SOUND.render())
    shown = capsys.readouterr().out
    assert "1 WALLET_FROZEN" in shown
    assert "1 KEY_REUSED" in shown
    assert "All promises hold." in shown


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], (0, 0, 0)),
        ([7], (7, 7, 7)),
        (list(range(1, 101)), (50, 95, 99)),
        (list(range(100, 0, -1)), (50, 95, 99)),
        ([1, 2], (1, 2, 2)),
    ],
)
def test_quantiles_are_of_nearest_rank(values: list[float], expected: tuple[float, ...]) -> None:
    assert tuple(quantiles(values).values()) == expected
