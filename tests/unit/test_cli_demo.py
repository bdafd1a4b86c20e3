"""The demo's day, before anything is deployed: what it holds, and what it must come to."""

import importlib.util
import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from wakala import refunds
from wakala.audit import Audit, Report, Violation
from wakala.demo import (
    RUN_LENGTH_MAX,
    GivenBack,
    Played,
    Result,
    Wish,
    await_ends,
    give_back,
    play,
    quantiles,
    read_day,
)
from wakala.output import out
from wakala.stack import Stack
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


def test_each_agent_takes_back_one_of_its_morning_that_is_debited_but_for_that() -> None:
    taken_back = [upload.taken_back for upload in DAY.uploads if upload.taken_back]
    assert sorted(each["agentId"] for each in taken_back) == DAY.agent_ids
    sent = {(str(r.agent_id), str(r.idempotency_key)): r for r in accepted()}
    funded = {opening.phone for opening in DAY.openings if opening.opening > 50_000}
    for upload in DAY.uploads:
        if upload.taken_back:
            key = upload.taken_back["idempotencyKey"]
            assert key == upload.transactions[-1]["idempotencyKey"]
            assert sent[upload.agent_id, key].phone in funded


def test_the_evening_holds_every_kind_of_refund() -> None:
    amounts = {(str(r.agent_id), str(r.idempotency_key)): r.amount_minor for r in accepted()}
    parts: Counter[str] = Counter()
    kinds: Counter[object] = Counter()
    for wish in DAY.wishes:
        original = wish.wanted["agentId"], wish.wanted["idempotencyKey"]
        amount = wish.wanted.get("amount")
        by = "agent" if wish.by_agent else "office"
        kinds[by, "full" if amount is None else "part"] += 1
        kinds["too much"] += (amount or 0) > amounts[original]
        if str(wish.wanted.get("refundId", "")).startswith("part-"):
            parts[original[1]] += amount or 0
    assert kinds["agent", "full"] == 2
    assert kinds["agent", "part"] == 5
    assert kinds["office", "full"] == 3
    assert kinds["office", "part"] == 4
    assert kinds["too much"] == 2
    ((key, total),) = parts.items()
    assert total == amounts["AG-003", key] + 1  # to the last cent, and then one more
    wanted = Counter(json.dumps(wish.wanted) for wish in DAY.wishes)
    assert max(wanted.values()) == 2  # one twice


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
        self.order_of: dict[str, str] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/refund"):
            agent_id = self.order_of[request.url.path.split("/")[-2]]
            self.order[agent_id].append("back")
            return httpx.Response(200, json=view(request.url.path.split("/")[-2], "cancelled"))
        if request.method == "GET":
            self.questions -= 1
            status = "queued" if self.questions > 0 else "synced"
            return httpx.Response(200, json=view(request.url.path.rsplit("/")[-1], status))
        body = json.loads(request.content)
        sent = body.get("transactions", [body])
        for each in sent:
            self.order[each["agentId"]].append(each["idempotencyKey"])
            self.order_of[each["idempotencyKey"]] = each["agentId"]
        if "transactions" not in body:
            return httpx.Response(202, json=view(body["idempotencyKey"], "queued"))
        views = [
            view(each["idempotencyKey"], "queued")
            | {"amount": each["amount"], "currency": each.get("currency", "KES"), "replayed": False}
            for each in sent
        ]
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
        expected = []
        for upload in DAY.uploads:
            if upload.agent_id == agent_id:
                expected += [t["idempotencyKey"] for t in upload.transactions]
                expected += ["back"] if upload.taken_back else []
        assert api.order[agent_id] == expected
    assert len(played.taken_back) == len(DAY.agent_ids)


def answer(key: str = "k-1", status: int = 202, **body: object) -> Answer:
    sent = {"agentId": "AG-001", "idempotencyKey": key, "amount": 1}
    return Answer(sent, status, body, False, 10)


def test_waiting_ends_with_the_last_transaction_or_with_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wakala.demo.POLL_SECONDS", 0)
    ends = await_ends([answer().sent], apis_of(Api(questions=3)))
    assert ends["AG-001", "k-1"]["status"] == "synced"
    ends = await_ends([answer().sent], apis_of(Api(questions=10**9)), seconds=0)
    assert ends["AG-001", "k-1"]["status"] == "queued"


def told_by_the_bus(stack: Stack, asked: list[Document]) -> list[refunds.Told]:
    """A back office that is refused what is more than there was."""
    outcomes = [
        ("rejected", "EXCEEDS_ORIGINAL") if each.get("refundId") == "much" else ("posted", None)
        for each in asked
    ]
    return [
        refunds.Told(None, outcome, reason, 1, 0, "KES", 1, True)  # type: ignore[arg-type]
        for outcome, reason in outcomes
    ]


def test_the_office_comes_before_the_agents_and_what_is_asked_twice_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refunds, "ask", lambda _, wanted: wanted)
    monkeypatch.setattr(refunds, "settle", told_by_the_bus)
    wanted = {"agentId": "AG-001", "idempotencyKey": "k-1", "reason": "why"}
    much = wanted | {"refundId": "much"}
    wishes = (
        Wish(True, "254712345678", wanted | {"refundId": "app"}),
        *(Wish(False, "254712345678", each) for each in (wanted, wanted, much)),
    )
    api = Api(questions=0)
    api.order_of["k-1"] = "AG-001"
    found = give_back(STACK, replace(DAY, wishes=wishes), apis_of(api))
    assert [each.outcome for each in found] == [
        "refunded",
        "repeated",
        "EXCEEDS_ORIGINAL",
        "cancelled",
    ]


STACK = Stack("s", "r", None, None)
SOUND = Result(
    "run",
    Played((answer(), answer("k-2", 422, code="KEY_REUSED", retryable=False)), (10.0, 30.0), ()),
    {
        ("AG-001", "k-1"): view("k-1", "synced"),
        ("AG-001", "k-3"): view("k-3", "failed") | {"reason": "WALLET_FROZEN"},
        ("AG-001", "k-4"): view("k-4", "synced"),
    },
    (GivenBack(answer("k-4").sent, "refunded"), GivenBack(answer("k-3").sent, "MISMATCH")),
    {
        ("AG-001", "k-1"): view("k-1", "synced"),
        ("AG-001", "k-3"): view("k-3", "failed") | {"reason": "WALLET_FROZEN"},
        ("AG-001", "k-4"): view("k-4", "refunded") | {"updatedAt": 999_999},
    },
    Audit(0).report(),
)
BROKEN = Report({}, [Violation("P2", "a balance of -1")])
OPEN = {("AG-001", "k-1"): view("k-1", "queued")}
WAITING = {("AG-001", "k-1"): view("k-1", "refund_requested")}
BUSY = answer("k-2", 503, code="UNAVAILABLE", retryable=True)
UNSENT = Played((BUSY,), (10.0,), ())


def test_the_result_counts_what_happened() -> None:
    found = SOUND.view()
    assert SOUND.ok
    assert (found["sent"], found["accepted"], found["synced"], found["open"]) == (2, 1, 1, 0)
    assert found["failed"] == {"WALLET_FROZEN": 1}
    assert found["refused"] == {"KEY_REUSED": 1}
    assert (found["refunded"], found["partiallyRefunded"], found["cancelled"]) == (1, 0, 0)
    assert found["refunds"] == {"refunded": 1, "MISMATCH": 1}
    assert found["latencyMs"]["settle"] == {"p50": 250, "p95": 250, "p99": 250}
    assert found["latencyMs"]["request"]["p50"] == 10


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(replace(SOUND, report=BROKEN), id="a promise is broken"),
        pytest.param(replace(SOUND, ends=OPEN), id="a transaction did not end"),
        pytest.param(replace(SOUND, ends=WAITING), id="a refund did not end"),
        pytest.param(
            replace(SOUND, played=replace(SOUND.played, taken_back=(BUSY,))),
            id="a transaction could not be taken back",
        ),
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
    assert "1 refunded, 1 MISMATCH" in shown
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
