"""Refunds by the command, on a bus and tables in memory: asked for, foreseen, told."""

import json
import shlex
from dataclasses import replace
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from wakala import agents, main, options, refunds, wallets
from wakala.output import Problem, out
from wakala.stack import Stack
from wakala.transactions import AgentApi, Answer, Document
from wallet_ledger.aws import items
from wallet_ledger.contracts import Defaults, read_bus_request
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.postings import NewEntry
from wallet_ledger.domain.refunds import (
    Cancel,
    Post,
    Refund,
    Reject,
    Seen,
    decide_refund,
    requested,
)
from wallet_ledger.domain.transactions import (
    OfflineTransaction,
    PendingRefund,
    Reason,
    Request,
    Status,
    accept,
)
from wallet_ledger.domain.wallets import (
    Credit,
    Debit,
    Posted,
    Rejected,
    Wallet,
    WalletStatus,
)

AGENT, KEY, PHONE = AgentId("AG-001"), IdempotencyKey("k-1"), Phone("254712345678")
KES = Currency("KES")
NOW_MS = 1_780_000_000_000
ACCEPTED = accept(Request(AGENT, KEY, PHONE, 100, KES), NOW_MS, open_days=7)
SETTLED = replace(ACCEPTED, status=Status.SYNCED, next_sweep_at_ms=None)
WANTED: Document = {"agentId": AGENT, "idempotencyKey": KEY, "reason": "why"}
ASKED: Document = WANTED | {"phone": "0712 345 678"}


class Backend:
    """Bus and tables in one: what is put on the bus is decided at once, unless it is slow."""

    def __init__(self) -> None:
        self.row: OfflineTransaction | None = None
        self.ledger: dict[tuple[str, str], dict[str, Any]] = {}
        self.wallet = Wallet(PHONE, 900, KES, 2, WalletStatus.ACTIVE)
        self.total = 0
        self.sent: list[dict[str, Any]] = []
        self.slow = False
        self.conflicts = 0
        self.wrote = False

    def begin(self, row: OfflineTransaction) -> None:
        """Hold this row, and the debit that belongs to it."""
        self.row = row
        self.ledger.clear()
        if row.status is not Status.QUEUED:
            debit = Debit(AGENT, KEY, PHONE, 100, KES, 1, NOW_MS)
            refusal = Rejected(Reason.INSUFFICIENT_FUNDS)
            outcome = refusal if row.status is Status.FAILED else Posted(2, 900)
            self.store(items.entry_item(NewEntry(debit, outcome), NOW_MS))

    def client(self, *_: object, **__: object) -> "Backend":
        return self

    def put_events(self, **call: Any) -> dict[str, Any]:
        for entry in call["Entries"]:
            self.sent.append(entry)
            envelope = {"id": "e", "source": entry["Source"], "detail-type": entry["DetailType"]}
            document = json.dumps(envelope | {"detail": json.loads(entry["Detail"])})
            asked = read_bus_request(document, Defaults(KES, "KE"))[1]
            assert isinstance(asked, Refund)
            if not self.slow:
                self.decide(asked)
        return {"FailedEntryCount": 0, "Entries": []}

    def decide(self, asked: Refund) -> None:
        seen = self.seen(asked)
        plan = decide_refund(asked, seen, NOW_MS, patient=False)
        self.wrote = True
        if isinstance(plan, Cancel | Post | Reject) and plan.row_after is not None:
            self.row = plan.row_after
        if isinstance(plan, Post):
            self.wallet = plan.wallet_after
            self.total += plan.amount_minor
        if isinstance(plan, Post | Reject):
            self.store(items.refund_item(asked, plan, asked.currency or KES, NOW_MS))

    def seen(self, asked: Refund) -> Seen:
        def entry(entry_id: str) -> Any:
            found = self.ledger.get((asked.phone, entry_id))
            return items.read_entry(found) if found else None

        return Seen(
            self.row if asked.idempotency_key == KEY else None,
            entry(items.debit_entry_id(asked.agent_id, asked.idempotency_key)),
            entry(items.refund_entry_id(asked)),
            entry(items.reused_refund_entry_id(asked)),
            self.total,
            self.wallet,
        )

    def store(self, item: dict[str, Any]) -> None:
        self.ledger[item["phone"]["S"], item["txId"]["S"]] = item

    def get_item(self, **call: Any) -> dict[str, Any]:
        found = self.found(call)
        return {"Item": found} if found else {}

    def transact_get_items(self, **call: Any) -> dict[str, Any]:
        if self.conflicts:
            self.conflicts -= 1
            response: Any = {
                "Error": {"Code": "TransactionCanceledException"},
                "CancellationReasons": [{"Code": "TransactionConflict"}],
            }
            raise ClientError(response, "TransactGetItems")
        found = [self.found(each["Get"]) for each in call["TransactItems"]]
        return {"Responses": [{"Item": each} if each else {} for each in found]}

    def found(self, get: dict[str, Any]) -> dict[str, Any] | None:
        key = {name: value["S"] for name, value in get["Key"].items()}
        if get["TableName"] == "rows":
            known = self.row is not None and key == {"agentId": AGENT, "idempotencyKey": KEY}
            return items.offline_tx_item(self.row) if known and self.row else None
        if key["txId"] == items.BALANCE and key["phone"] == PHONE:
            return items.ledger_key(PHONE, items.BALANCE) | {
                "balanceMinor": {"N": str(self.wallet.balance_minor)},
                "version": {"N": str(self.wallet.version)},
                "currency": {"S": KES},
                "status": {"S": str(self.wallet.status)},
            }
        if key["txId"] == items.refund_total_id(AGENT, KEY) and self.total:
            return {"refundedMinor": {"N": str(self.total)}}
        return self.ledger.get((key["phone"], key["txId"]))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.setattr(wallets, "POLL_SECONDS", 0)
    made = Backend()
    made.begin(SETTLED)
    return made


def stack_of(backend: Backend) -> Stack:
    outputs = {"WalletLedgerTable": "ledger", "OfflineTxTable": "rows", "EventBusName": "bus"}
    parameters = {"Currency": "KES", "DefaultRegion": "KE"}
    return Stack("wakala", "us-east-1", "http://e", backend, outputs, parameters)


def told(backend: Backend, **members: Any) -> refunds.Told:
    stack = stack_of(backend)
    return refunds.settle(stack, [refunds.ask(stack, ASKED | members)], seconds=1)[0]


def foreseen(backend: Backend, **members: Any) -> refunds.Foreseen:
    stack = stack_of(backend)
    return refunds.foresee(stack, refunds.ask(stack, ASKED | members).refund, NOW_MS)


def foreseen_over_http(backend: Backend, **members: Any) -> refunds.Foreseen:
    return refunds.foresee_over_http(stack_of(backend), WANTED | members, NOW_MS)


# --- over the bus ---------------------------------------------------------------------------


def test_a_refund_over_the_bus_returns_once_it_is_posted(backend: Backend) -> None:
    found = told(backend, amount=40, refundId="r-1")
    assert (found.outcome, found.amount_minor, found.remaining_minor) == ("posted", 40, 60)
    assert found.view() == {
        "agentId": "AG-001",
        "idempotencyKey": "k-1",
        "refundId": "r-1",
        "outcome": "posted",
        "reason": None,
        "amount": 40,
        "currency": "KES",
        "remaining": 60,
        "balance": 940,
        "new": True,
    }
    assert backend.sent[0]["DetailType"] == "RefundRequested"
    assert backend.sent[0]["EventBusName"] == "bus"


def test_what_was_decided_before_is_told_and_not_sent_again(backend: Backend) -> None:
    told(backend)
    found = told(backend)
    assert (found.outcome, found.new, len(backend.sent)) == ("posted", False, 1)
    assert found.words().startswith("refunded before: 100 KES")


@pytest.mark.parametrize(
    ("members", "reason", "remaining"),
    [
        ({"amount": 101}, "EXCEEDS_ORIGINAL", 100),
        ({"phone": "0722110301"}, "MISMATCH", None),
        ({"currency": "USD"}, "MISMATCH", None),
        ({"idempotencyKey": "k-9"}, "ORIGINAL_NOT_FOUND", None),
    ],
)
def test_a_refusal_is_told_with_its_reason_and_what_remains(
    backend: Backend, members: Document, reason: str, remaining: int | None
) -> None:
    found = told(backend, **members)
    assert (found.outcome, found.reason, found.remaining_minor) == ("rejected", reason, remaining)
    assert found.words().startswith(f"{reason}: refused, for good under this id")
    assert backend.wallet.balance_minor == 900


def test_a_refund_id_for_another_amount_is_told_as_reused(backend: Backend) -> None:
    told(backend, amount=40, refundId="r-1")
    assert told(backend, amount=41, refundId="r-1").reason == "KEY_REUSED"
    assert told(backend, amount=40, refundId="r-1").outcome == "posted"


def test_a_refund_before_settlement_is_told_as_a_cancellation(backend: Backend) -> None:
    backend.begin(ACCEPTED)
    found = told(backend)
    assert (found.outcome, found.new, found.remaining_minor) == ("cancelled", True, 0)
    assert told(backend).new is False
    assert told(backend, refundId="r-2").reason == "NOTHING_TO_REFUND"


def test_a_row_that_still_waits_for_its_agents_answer_is_not_told_yet(backend: Backend) -> None:
    backend.row = requested(SETTLED, PendingRefund("full", None, "why"), NOW_MS)
    backend.slow = True
    asked = refunds.ask(stack_of(backend), ASKED)
    plan = Reject(Reason.EXCEEDS_ORIGINAL, 0, None)
    backend.store(items.refund_item(asked.refund, plan, KES, NOW_MS))
    with pytest.raises(Problem, match="no answer"):
        refunds.settle(stack_of(backend), [asked], seconds=0)
    assert len(backend.sent) == 1


def test_a_row_that_is_being_written_is_looked_at_again(backend: Backend) -> None:
    backend.conflicts = 3
    assert told(backend).outcome == "posted"


def test_a_refund_that_is_not_decided_in_time_is_told_with_what_it_waits_for(
    backend: Backend,
) -> None:
    backend.begin(ACCEPTED)
    backend.slow = True
    stack = stack_of(backend)
    asked = refunds.ask(stack, ASKED | {"amount": 40})
    with pytest.raises(Problem) as caught:
        refunds.settle(stack, [asked], seconds=0)
    assert "no answer in 0 s to the refund full of k-1 (wait: it is not settled yet" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ({"amount": 0}, "amount: 1 to 1000000000000"),
        ({"amount": -5}, "amount: 1 to 1000000000000"),
        ({"refundId": "a#b"}, "refundId: 1 to 64 of"),
        ({"phone": "0799"}, "phone: not a phone number that is in use anywhere"),
        ({"reason": ""}, "reason: 1 to 140 bytes of printable text"),
        ({"agentId": ""}, "agentId: 1 to 64 of"),
    ],
)
def test_a_request_that_the_stack_would_not_read_is_refused_here(
    backend: Backend, members: Document, line: str
) -> None:
    with pytest.raises(Problem) as caught:
        refunds.ask(stack_of(backend), ASKED | members)
    assert str(caught.value).startswith(line)
    assert backend.sent == []


@pytest.mark.parametrize(
    ("endpoint_url", "profile", "options"),
    [
        ("http://e", None, ["--region", "us-east-1", "--endpoint-url", "http://e"]),
        (None, "ops", ["--region", "us-east-1", "--profile", "ops"]),
    ],
)
def test_the_printed_command_puts_exactly_what_would_be_sent(
    backend: Backend, endpoint_url: str | None, profile: str | None, options: list[str]
) -> None:
    stack = replace(stack_of(backend), endpoint_url=endpoint_url)
    asked = refunds.ask(stack, ASKED | {"reason": "the customer's 'own'; $(wish)"})
    words = shlex.split(refunds.put_events_command(stack, asked, profile))
    assert words[:-2] == ["aws", "events", "put-events", *options]
    assert backend.sent == []
    refunds.settle(stack, [asked])
    assert json.loads(words[-1]) == backend.sent


# --- foreseen -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "members", "would", "remaining"),
    [
        (SETTLED, {}, "refund", 0),
        (SETTLED, {"amount": 40}, "refund", 60),
        (SETTLED, {"amount": 101}, "reject", 100),
        (ACCEPTED, {}, "cancel", 0),
        (ACCEPTED, {"amount": 100}, "cancel", 0),
        (ACCEPTED, {"amount": 40}, "wait", None),
        (replace(SETTLED, status=Status.FAILED), {}, "reject", None),
    ],
)
def test_a_dry_run_says_what_would_happen_and_what_remains_and_writes_nothing(
    backend: Backend,
    row: OfflineTransaction,
    members: Document,
    would: str,
    remaining: int | None,
) -> None:
    backend.begin(row)
    found = foreseen(backend, **members)
    assert (found.would, found.remaining_minor) == (would, remaining)
    assert found.words.startswith(would)
    assert backend.sent == []
    assert not backend.wrote


def test_a_dry_run_of_what_was_done_says_that_nothing_would_happen(backend: Backend) -> None:
    told(backend, amount=40, refundId="r-1")
    assert foreseen(backend, amount=40, refundId="r-1").would == "nothing"
    assert foreseen(backend, amount=41, refundId="r-1").reason == "KEY_REUSED"
    assert foreseen(backend).view() == {
        "dryRun": True,
        "agentId": "AG-001",
        "idempotencyKey": "k-1",
        "refundId": "full",
        "would": "refund",
        "reason": None,
        "amount": 60,
        "remaining": 0,
        "balance": 1000,
        "words": "refund: 60 KES; 0 may still be refunded; the balance would be 1,000",
    }


def test_a_dry_run_of_a_cancellation_that_was_made_says_so(backend: Backend) -> None:
    backend.begin(ACCEPTED)
    told(backend)
    assert foreseen(backend).words.startswith("nothing: it was cancelled before")


def test_a_dry_run_of_an_unknown_original_says_that_it_would_be_waited_for(
    backend: Backend,
) -> None:
    found = foreseen(backend, idempotencyKey="k-9")
    assert found.words == "reject after half a minute: ORIGINAL_NOT_FOUND"


PENDING = requested(SETTLED, PendingRefund("r-1", 40, "why"), NOW_MS)


@pytest.mark.parametrize(
    ("row", "members", "would", "reason"),
    [
        (SETTLED, {"amount": 40}, "refund", None),
        (ACCEPTED, {}, "cancel", None),
        (ACCEPTED, {"amount": 40}, "reject", "NOT_REFUNDABLE"),
        (ACCEPTED, {"amount": 101}, "reject", "EXCEEDS_ORIGINAL"),
        (PENDING, {}, "reject", "REFUND_IN_PROGRESS"),
        (PENDING, {"refundId": "r-1", "amount": 40}, "nothing", None),
        (PENDING, {"refundId": "r-1", "amount": 41}, "reject", "KEY_REUSED"),
        (
            replace(SETTLED, status=Status.CANCELLED, cancelled_by="r-1"),
            {},
            "reject",
            "NOTHING_TO_REFUND",
        ),
    ],
)
def test_a_dry_run_over_http_says_what_the_api_would_answer(
    backend: Backend, row: OfflineTransaction, members: Document, would: str, reason: str | None
) -> None:
    backend.begin(row)
    found = foreseen_over_http(backend, **members)
    assert (found.would, found.reason) == (would, reason)
    assert found.words.startswith(would)
    assert not backend.wrote


def test_a_dry_run_over_http_of_anothers_transaction_is_one_line(backend: Backend) -> None:
    with pytest.raises(Problem, match="NOT_FOUND: AG-001 has no transaction k-9"):
        foreseen_over_http(backend, idempotencyKey="k-9")


def test_a_wallet_that_nobody_can_read_is_one_line_and_nothing_is_asked_for(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.wallet = replace(backend.wallet, status="odd")  # type: ignore[arg-type]
    for ask in (foreseen, foreseen_over_http, told):
        with pytest.raises(Problem, match=r"the balance item of 254…678 is none .*its status"):
            ask(backend)
    assert backend.sent == []
    backend.begin(SETTLED)
    backend.wallet = replace(backend.wallet, status=WalletStatus.ACTIVE)
    monkeypatch.setitem(backend.ledger["254712345678", "debit#AG-001#k-1"], "outcome", {})
    with pytest.raises(KeyError):  # and what else is odd, is nobody's wallet
        foreseen(backend)


# --- over HTTP ------------------------------------------------------------------------------


class Gateway:
    """An API that gives the answers it was told to, one after the other."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def api(self) -> AgentApi:
        return AgentApi("https://api.test", "token", transport=httpx.MockTransport(self))


def answered(http_status: int, /, key: str = "k-1", **body: Any) -> httpx.Response:
    return httpx.Response(http_status, json={"idempotencyKey": key} | body)


def test_the_app_asks_by_the_key_in_the_path_and_sends_nothing_that_it_was_not_given() -> None:
    gateway = Gateway(answered(200, "a/b", status="cancelled"))
    refunds.ask_api(gateway.api(), WANTED | {"idempotencyKey": "a/b", "amount": 5})
    (request,) = gateway.requests
    assert request.url.raw_path == b"/tx/a%2Fb/refund"
    assert json.loads(request.content) == {"reason": "why", "amount": 5}


def test_a_refund_over_http_is_asked_for_again_until_it_is_no_longer_under_way(
    backend: Backend,
) -> None:
    under_way = answered(202, status="refund_requested")
    gateway = Gateway(under_way, under_way, answered(200, status="refunded", refunded=100))
    found = refunds.ask_api(gateway.api(), WANTED)
    assert (found.body["refunded"], len(gateway.requests)) == (100, 3)
    assert len({request.content for request in gateway.requests}) == 1


def test_a_refund_that_the_ledger_refused_meanwhile_is_told() -> None:
    refusal = answered(409, code="NOT_REFUNDABLE", reason="EXCEEDS_ORIGINAL", detail="d")
    found = refunds.ask_api(
        Gateway(answered(202, status="refund_requested"), refusal).api(), WANTED
    )
    assert not found.accepted
    assert found.body["reason"] == "EXCEEDS_ORIGINAL"


def test_a_refund_that_does_not_end_in_time_is_one_line(backend: Backend) -> None:
    gateway = Gateway(answered(202, status="refund_requested"))
    with pytest.raises(Problem, match="the refund of k-1 is under way for 0 s now"):
        refunds.ask_api(gateway.api(), WANTED, seconds=0)


@pytest.mark.parametrize("code", ["REFUND_IN_PROGRESS", "NOT_REFUNDABLE"])
def test_a_conflict_is_told_at_once_and_not_repeated(code: str) -> None:
    gateway = Gateway(answered(409, code=code, detail="not now", retryable=True))
    found = refunds.ask_api(gateway.api(), WANTED)
    assert len(gateway.requests) == 1
    assert refunds.why(found) == f"{code}: not now; ask again in a moment"


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (404, {"code": "NOT_FOUND", "detail": "d"}, "NOT_FOUND: AG-001 has no transaction k-1"),
        (
            422,
            {
                "code": "KEY_REUSED",
                "detail": "it stands",
                "errors": [{"field": "amount", "message": "differs"}],
            },
            "KEY_REUSED: it stands (amount: differs)",
        ),
        (
            409,
            {"code": "NOT_REFUNDABLE", "detail": "EXCEEDS_ORIGINAL; 60 minor units remain"},
            "NOT_REFUNDABLE: EXCEEDS_ORIGINAL; 60 minor units remain",
        ),
    ],
)
def test_a_refusal_over_http_is_one_clear_line(status: int, body: Document, line: str) -> None:
    assert refunds.why(Answer(WANTED, status, body, False, 1)) == line


# --- the commands ---------------------------------------------------------------------------


@pytest.fixture
def on_backend(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    monkeypatch.setattr(options, "open_stack", lambda _: stack_of(backend))
    return backend


BUS = ("refund", "request", "k-1", "--agent", "AG-001", "--phone", "0712345678", "--reason", "x")


def test_a_refund_over_the_bus_is_one_line_and_a_refusal_is_status_1(
    on_backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*BUS, "--amount", "40", "--refund-id", "r-1"]) == 0
    assert "refunded: 40 KES to +254712345678 (r-1 of k-1)" in capsys.readouterr().out
    assert main.run([*BUS, "--amount", "61"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: EXCEEDS_ORIGINAL: refused, for good under this id")
    assert main.run([*BUS, "--amount", "61", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reason"] == "EXCEEDS_ORIGINAL"


def test_print_and_dry_run_send_nothing(
    on_backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*BUS, "--print"]) == 0
    assert shlex.split(capsys.readouterr().out)[:3] == ["aws", "events", "put-events"]
    assert main.run([*BUS, "--print", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"].startswith("aws events put-events ")
    assert main.run([*BUS, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would refund: 100 KES")
    assert on_backend.sent == []


HTTP = ("tx", "refund", "k-1", "--agent", "AG-001", "--reason", "x")


def test_a_refund_over_http_waits_unless_it_is_told_not_to(
    on_backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = Gateway(answered(202, status="refund_requested"), answered(200, status="refunded"))
    monkeypatch.setattr(agents, "token", lambda *_: "token")
    monkeypatch.setattr(main, "AgentApi", lambda *_: gateway.api())
    monkeypatch.setattr(Stack, "api_url", "https://api.test")
    assert main.run([*HTTP, "--no-wait", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "refund_requested"
    assert main.run([*HTTP, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "refunded"
    assert main.run([*HTTP, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["would"] == "refund"
    gateway.answers = [answered(404, code="NOT_FOUND")]
    assert main.run([*HTTP]) == 1
    assert capsys.readouterr().err == "error: NOT_FOUND: AG-001 has no transaction k-1\n"


# --- the statement --------------------------------------------------------------------------


def test_a_statement_shows_refunds_under_their_debit(
    backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    told(backend, amount=40, refundId="r-1")
    told(backend, amount=70, refundId="r-2")
    told(backend, idempotencyKey="k-9")
    credit = NewEntry(Credit("bank", "c-1", PHONE, 5, KES), Posted(9, 9))
    reused = NewEntry(Debit(AGENT, KEY, PHONE, 7, KES, 1, 1), Rejected(Reason.KEY_REUSED))
    late = [items.read_entry(items.entry_item(each, NOW_MS)) for each in (credit, reused)]
    stored = [items.read_entry(item) for item in backend.ledger.values()]
    debit, first, second, unknown = stored
    entries = [late[1], debit, late[0], unknown, first, second]
    found = wallets.under_their_debits(entries)
    assert found == [late[1], debit, first, second, late[0], unknown]
    out.print(main._statement_table(found))
    shown = capsys.readouterr().out
    assert shown.count("↳ refund") == 2
    view = wallets.entry_view(second)
    assert (view["refundId"], view["remaining"], view["reason"]) == ("r-2", 60, "EXCEEDS_ORIGINAL")


def test_a_person_gets_refunds_under_their_debit_and_a_script_in_their_time(
    on_backend: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told(on_backend, amount=40)
    later = NewEntry(Credit("bank", "c-1", PHONE, 5, KES), Posted(3, 905))
    refunded_last = [item["txId"]["S"] for item in on_backend.ledger.values()]
    on_backend.store(items.entry_item(later, NOW_MS))
    for version, entry_id in ((2, refunded_last[0]), (4, refunded_last[1])):
        on_backend.ledger[PHONE, entry_id]["version"] = {"N": str(version)}
    everything = list(on_backend.ledger.values())
    monkeypatch.setattr(wallets, "wallet_items", lambda *_: iter(everything))
    assert main.run(["wallet", "statement", "0712345678"]) == 0
    shown = capsys.readouterr().out
    assert shown.index("debit") < shown.index("↳ refund") < shown.index("credit")
    assert main.run(["wallet", "statement", "0712345678", "--json"]) == 0
    kinds = [each["kind"] for each in json.loads(capsys.readouterr().out)]
    assert kinds == ["debit", "credit", "refund"]


def test_a_statement_leaves_the_running_total_out(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(backend, amount=40)
    total = items.ledger_key(PHONE, items.refund_total_id(AGENT, KEY))
    everything = [*backend.ledger.values(), total | {"refundedMinor": {"N": "40"}}]
    monkeypatch.setattr(wallets, "wallet_items", lambda *_: iter(everything))
    kinds = [entry.kind for entry in wallets.statement(stack_of(backend), PHONE)]
    assert kinds == ["debit", "refund"]
