"""What an agent's app is told of a refund: in every status, for every amount, and asked again."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ingest.api import Api, handle_request
from refund.give_back import give_back
from tests.fakes.memory import (
    START_MS,
    FakeAcceptedTransactions,
    FakeClock,
    FakeLedger,
    FakeRefundBooks,
    FakeRefundDesk,
    Store,
)
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import AGENT, KES, PHONE, credit, debit, posting, refund, row_of
from tests.fakes.scripted import Step, first, scripted, unavailable
from wallet_ledger.contracts import Defaults
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.letters import held as triage_held
from wallet_ledger.domain.postings import Committed
from wallet_ledger.domain.transactions import (
    SWEEP_AFTER_MS,
    OfflineTransaction,
    PendingRefund,
    Status,
)
from wallet_ledger.patience import Patience
from wallet_ledger.ports import AcceptedTransactions, RefundDesk
from wallet_ledger.telemetry import logger

KEY = IdempotencyKey("K-1")
ROUTE = "/tx/{idempotencyKey}/refund"
NOW_MS = START_MS + 1_000


class Answer:
    """What an app gets."""

    def __init__(self, raw: Any) -> None:
        self.status: int = raw["statusCode"]
        self.headers = raw["headers"]
        self.body = json.loads(raw["body"])

    @property
    def said(self) -> tuple[int, str]:
        """The HTTP status, with what became of it: a status, or a problem's code."""
        return self.status, self.body.get("code") or self.body["status"]

    @property
    def replayed(self) -> bool:
        """Whether it was said before."""
        return bool(self.headers.get("Idempotent-Replayed") == "true")


class World:
    """The HTTP edge on books in memory: a wallet of 1,000 and a debit of 100."""

    def __init__(self) -> None:
        self.store = Store()
        self.clock = FakeClock(NOW_MS)
        self.table: AcceptedTransactions = FakeAcceptedTransactions(self.store)
        self.entries: RefundDesk = FakeRefundDesk(self.store)
        self.ledger = FakeLedger(self.store, retention_days=0)
        assert self.ledger.post(posting(None, credit("C-1", 1_000))) == Committed()
        self.put(row_of(debit()))

    def ask(
        self, body: object = None, key: str = "K-1", agent: str = AGENT, **members: Any
    ) -> Answer:
        """POST /tx/{idempotencyKey}/refund; `members` beside the reason."""
        document = {"reason": "wrong phone"} | members if body is None else body
        event = {
            "httpMethod": "POST",
            "resource": ROUTE,
            "pathParameters": {"idempotencyKey": key},
            "body": document if isinstance(document, str) else json.dumps(document),
            "requestContext": {"authorizer": {"claims": {"custom:agentId": agent}}},
        }
        defaults = Defaults(KES, "KE")
        api = Api(self.table, self.entries, self.clock, defaults, open_days=7)
        return Answer(handle_request(event, api))

    def settle(self) -> None:
        """The debit is posted, or refused where the wallet is too empty."""
        posting_ = posting(self.store.wallets[PHONE], debit())
        assert self.ledger.post(posting_) == Committed()

    def refund(self, refund_id: str, amount_minor: int | None = None) -> None:
        """What the refund function does with a message."""
        asked = refund(refund_id, amount_minor)
        patience = Patience(self.clock, lambda: 0.5, 1_000)
        give_back(asked, FakeRefundBooks(self.store), self.clock, patience, patient=False)

    def put(self, row: OfflineTransaction) -> None:
        """Whatever state a row is in."""
        self.store.rows[row.agent_id, row.idempotency_key] = row

    @property
    def row(self) -> OfflineTransaction:
        """The one there is."""
        return self.store.rows[AGENT, KEY]

    def stored(self) -> Any:
        """All of it."""
        store = self.store
        return [dict(d) for d in (store.rows, store.wallets, store.entries, store.refunded)]

    def check(self) -> None:
        """The books add up."""
        held, totals = self.store.wallets[PHONE], self.store.refund_totals(PHONE)
        entries = [*self.store.entries.values()]
        assert_books_add_up(held, entries, self.store.rows.values(), totals)


def queued(world: World) -> None:
    """As it begins."""


def held(world: World) -> None:
    world.put(triage_held(world.row, "L-1", START_MS))


def synced(world: World) -> None:
    world.settle()


def partly(world: World) -> None:
    world.settle()
    world.refund("R-0", 40)


def refunded(world: World) -> None:
    world.settle()
    world.refund("R-0")


def failed(world: World) -> None:
    world.store.wallets[PHONE] = replace(world.store.wallets[PHONE], balance_minor=1)
    world.settle()
    world.store.wallets[PHONE] = replace(world.store.wallets[PHONE], balance_minor=1_000)


def expired(world: World) -> None:
    world.put(replace(world.row, status=Status.EXPIRED, next_sweep_at_ms=None))


def cancelled(world: World) -> None:
    world.refund("R-0")


def requested(world: World) -> None:
    world.settle()
    assert world.ask(refundId="R-0", amount=10).status == 202


STATUSES: dict[str, Callable[[World], None]] = {
    each.__name__: each
    for each in (
        queued,
        held,
        synced,
        partly,
        refunded,
        failed,
        expired,
        cancelled,
        requested,
    )
}
FULL: dict[str, Any] = {}
PARTIAL, TOO_MUCH = {"amount": 30}, {"amount": 101}
LATER = (409, "NOT_REFUNDABLE", True)
NO = (409, "NOT_REFUNDABLE", False)
PENDING = (409, "REFUND_IN_PROGRESS", True)
CANCELLED = (200, "cancelled", None)
ON_ITS_WAY = (202, "refund_requested", None)

EXPECTED: dict[str, tuple[Any, Any, Any]] = {
    "queued": (CANCELLED, LATER, NO),
    "held": (CANCELLED, LATER, NO),
    "synced": (ON_ITS_WAY, ON_ITS_WAY, NO),
    "partly": (ON_ITS_WAY, ON_ITS_WAY, NO),
    "refunded": (NO, NO, NO),
    "failed": (NO, NO, NO),
    "expired": (NO, NO, NO),
    "cancelled": (NO, NO, NO),
    "requested": (PENDING, PENDING, PENDING),
}
CASES = [
    (status, members, expected)
    for status, row in EXPECTED.items()
    for members, expected in zip((FULL, PARTIAL, TOO_MUCH), row, strict=True)
]


@pytest.fixture
def world() -> World:
    """The row is queued."""
    return World()


def test_every_status_of_a_row_is_asked_for_below() -> None:
    worlds = []
    for prepare in STATUSES.values():
        world = World()
        prepare(world)
        worlds.append(world.row.status)
    assert set(worlds) == set(Status)


@pytest.mark.parametrize(("status", "members", "expected"), CASES)
def test_c24_each_status_has_its_answer_to_each_amount(
    world: World, status: str, members: dict[str, Any], expected: tuple[int, str, bool | None]
) -> None:
    STATUSES[status](world)
    before = world.stored()

    answer = world.ask(refundId="R-1", **members)

    assert (*answer.said, answer.body.get("retryable")) == expected
    assert not answer.replayed
    if expected[0] == 409:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert world.stored() == before  # P7
    if status not in {"failed", "expired"}:
        world.check()


@pytest.mark.parametrize(("status", "members", "expected"), CASES)
def test_the_same_request_again_has_the_same_answer_and_writes_nothing(
    world: World, status: str, members: dict[str, Any], expected: tuple[int, str, bool | None]
) -> None:
    STATUSES[status](world)
    first_answer = world.ask(refundId="R-1", **members)
    before = world.stored()
    world.clock.pause(1)

    again = world.ask(refundId="R-1", reason="other words", **members)

    assert world.stored() == before
    assert again.body == first_answer.body
    assert again.status == (200 if expected[0] == 202 else expected[0])
    assert again.replayed == (expected[0] in {200, 202})


@pytest.mark.parametrize(("status", "members", "expected"), CASES)
def test_a_refund_id_that_stands_for_another_amount_is_422_and_changes_nothing(
    world: World, status: str, members: dict[str, Any], expected: tuple[int, str, bool | None]
) -> None:
    STATUSES[status](world)
    if expected[0] == 409:
        return  # it stands for nothing yet
    world.ask(refundId="R-1", **members)
    before = world.stored()

    answer = world.ask(refundId="R-1", amount=29)

    assert answer.said == (422, "KEY_REUSED")
    assert [error["field"] for error in answer.body["errors"]] == ["amount"]
    assert world.stored() == before


@pytest.mark.parametrize("status", ["synced", "partly"])
@pytest.mark.parametrize("members", [FULL, PARTIAL])
def test_while_one_is_pending_any_other_is_told_to_wait(
    world: World, status: str, members: dict[str, Any]
) -> None:
    STATUSES[status](world)
    world.ask(refundId="R-1", amount=5)
    before = world.stored()

    answer = world.ask(refundId="R-2", **members)

    assert (*answer.said, answer.body["retryable"]) == PENDING
    assert world.stored() == before


def test_an_amount_of_all_cancels_too(world: World) -> None:
    answer = world.ask(amount=100)

    assert answer.said == (200, "cancelled")
    row = world.row
    assert (row.cancelled_by, row.next_sweep_at_ms, row.updated_at_ms) == ("full", None, NOW_MS)
    assert world.store.wallets[PHONE].balance_minor == 1_000


def test_a_requested_refund_is_in_the_row_and_the_row_in_the_index(world: World) -> None:
    world.settle()

    answer = world.ask(refundId="R-1", amount=30)

    assert answer.body["status"] == "refund_requested"
    row = world.row
    assert row.refund_request == PendingRefund("R-1", 30, "wrong phone")
    assert (row.attempt, row.queued_at_ms) == (2, NOW_MS)
    assert row.next_sweep_at_ms == NOW_MS + SWEEP_AFTER_MS[0]
    assert world.store.wallets[PHONE].balance_minor == 900  # ingest never writes the ledger


def test_a_refund_id_that_is_not_given_is_full(world: World) -> None:
    world.settle()
    world.ask()

    assert world.row.refund_request == PendingRefund("full", None, "wrong phone")


def test_the_answer_after_the_refund_is_what_became_of_it(world: World) -> None:
    world.settle()
    world.ask(refundId="R-1", amount=30)
    world.refund("R-1", 30)

    done = world.ask(refundId="R-1", amount=30)

    assert done.said == (200, "partially_refunded")
    assert (done.replayed, done.body["refunded"]) == (True, 30)
    assert world.ask(refundId="R-2", amount=71).body["detail"].endswith("; 70 minor units remain")


def test_a_refusal_of_the_ledger_is_told_with_its_reason_whenever_it_is_asked(
    world: World,
) -> None:
    world.settle()
    world.ask(refundId="R-1", amount=60)
    world.refund("R-9", 50)
    world.refund("R-1", 60)

    for _ in range(2):
        answer = world.ask(refundId="R-1", amount=60)
        assert answer.said == (409, "NOT_REFUNDABLE")
        assert (answer.body["reason"], answer.body["retryable"]) == ("EXCEEDS_ORIGINAL", False)
    assert world.row.status is Status.PARTIALLY_REFUNDED
    world.check()


@pytest.mark.parametrize("decided_minor", [30, 101], ids=["posted", "refused"])
def test_a_refund_id_that_the_ledger_knows_with_another_amount_is_422_before_its_outcome(
    world: World, decided_minor: int
) -> None:
    world.settle()
    world.refund("R-1", decided_minor)
    before = world.stored()

    assert world.ask(refundId="R-1", amount=31).said == (422, "KEY_REUSED")
    assert world.stored() == before


def test_a_refund_that_was_posted_is_told_so_though_its_row_came_anew(world: World) -> None:
    """The row was purged and sent again, and reconcile is about to say what it is."""
    world.settle()
    world.refund("R-1", 30)
    world.put(row_of(debit()))

    answer = world.ask(refundId="R-1", amount=30)

    assert (answer.said, answer.replayed) == ((200, "queued"), True)
    assert (*world.ask(refundId="R-2").said, True) == LATER


def test_exactly_what_remains_may_be_asked_for(world: World) -> None:
    partly(world)

    assert world.ask(refundId="R-1", amount=61).said == (409, "NOT_REFUNDABLE")
    assert world.ask(refundId="R-1", amount=60).said == (202, "refund_requested")


def test_an_answer_that_is_ready_waits_for_nothing(world: World) -> None:
    assert world.ask().said == (200, "cancelled")

    assert world.clock.now_ms() == NOW_MS


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("refunded", "EXCEEDS_ORIGINAL"),
        ("failed", "NOTHING_TO_REFUND"),
        ("expired", "NOTHING_TO_REFUND"),
        ("cancelled", "NOTHING_TO_REFUND"),
    ],
)
def test_what_cannot_be_refunded_says_why(world: World, status: str, reason: str) -> None:
    STATUSES[status](world)

    answer = world.ask(refundId="R-1")

    assert answer.body["reason"] == reason
    assert ("remain" in answer.body["detail"]) == (reason == "EXCEEDS_ORIGINAL")


# --- what may be asked ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "amount",
    ["0", "-1", "1.0", "1e2", '"100"', "true", "[]", "{}", "NaN", str(10**12 + 1), "9" * 5_000],
)
@pytest.mark.parametrize("status", ["queued", "synced"])
def test_an_amount_that_is_none_is_400_before_anything_is_read_or_written(
    world: World, status: str, amount: str
) -> None:
    STATUSES[status](world)
    before = world.stored()
    world.table = scripted(world.table, "find", [unavailable("a read")])

    answer = world.ask(f'{{"reason": "wrong phone", "amount": {amount}}}')

    assert answer.said == (400, "VALIDATION_FAILED")
    assert world.stored() == before


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"reason": ""},
        {"reason": "x" * 141},
        {"reason": "two\nlines"},
        {"reason": 5},
        {"reason": "x", "refundId": ""},
        {"reason": "x", "refundId": "a#b"},
        {"reason": "x", "refundId": "R" * 65},
        {"reason": "x", "refundId": None},
        {"reason": "x", "phone": "254712345678"},
        {"reason": "x", "agentId": "AG-001"},
        {"reason": "x", "currency": "KES"},
        [],
        "null",
        '{"reason": "x", "reason": "y"}',
        "{",
    ],
    ids=repr,
)
def test_a_body_that_breaks_the_contract_is_400(world: World, body: object) -> None:
    before = world.stored()

    assert world.ask(body).said == (400, "VALIDATION_FAILED")
    assert world.stored() == before


@pytest.mark.parametrize(("key", "agent"), [("K-2", AGENT), ("a%23b", AGENT), ("K-1", "AG-002")])
def test_c04_p11_an_unknown_key_and_another_agents_are_the_same_404(
    world: World, key: str, agent: str
) -> None:
    answer = world.ask(key=key, agent=agent)

    assert answer.said == (404, "NOT_FOUND")
    assert answer.body["detail"] == World().ask(key="never-seen").body["detail"]
    assert world.row.status is Status.QUEUED


def test_a_token_without_an_agent_is_401(world: World) -> None:
    assert world.ask(agent="").said == (401, "UNAUTHENTICATED")


def test_an_answer_tells_no_phone_no_balance_and_no_internals(world: World) -> None:
    world.settle()
    answer = world.ask(refundId="R-1", amount=30)

    assert answer.body.keys() == {
        "idempotencyKey",
        "status",
        "amount",
        "currency",
        "createdAt",
        "updatedAt",
    }


def test_p12_one_line_for_each_answer_and_nothing_of_its_content(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.settle()
    world.ask(refundId="R-secret", amount=47, reason="call 254712345678")

    [line] = [json.loads(logger.registered_formatter.format(each)) for each in caplog.records]
    assert line["message"] == "refund answered"
    del line["timestamp"]  # its second may be 47
    for secret in (PHONE, "R-secret", "47,", "call", "K-1"):
        assert secret not in json.dumps(line)


# --- who else moves the row -----------------------------------------------------------------------


def between(world: World, action: Callable[[], object], times: int = 1) -> None:
    """Somebody else gets in just before the row is moved."""
    steps: list[Step] = [first(action)] * times
    world.entries = scripted(FakeRefundDesk(world.store), "move", steps)


def test_a_debit_that_settles_first_is_requested_back_instead_of_cancelled(world: World) -> None:
    between(world, world.settle)

    assert world.ask().said == (202, "refund_requested")
    world.check()


def test_a_cancellation_that_comes_first_is_no_second_one(world: World) -> None:
    between(world, lambda: world.refund("R-9"))

    assert world.ask().said == (409, "NOT_REFUNDABLE")
    assert world.row.cancelled_by == "R-9"


def test_a_back_office_refund_that_comes_first_leaves_less_to_ask_for(world: World) -> None:
    world.settle()
    between(world, lambda: world.refund("R-9", 60))

    answer = world.ask(refundId="R-1", amount=60)

    assert answer.said == (409, "NOT_REFUNDABLE")
    assert world.row.status is Status.PARTIALLY_REFUNDED


def test_the_same_request_from_another_thread_is_a_replay(world: World) -> None:
    world.settle()
    other = World()
    other.store = world.store
    other.table = FakeAcceptedTransactions(world.store)
    other.entries = FakeRefundDesk(world.store)
    between(world, lambda: other.ask(refundId="R-1", amount=30))

    answer = world.ask(refundId="R-1", amount=30)

    assert (answer.said, answer.replayed) == ((200, "refund_requested"), True)


def test_a_move_whose_answer_was_lost_is_met_again_as_a_replay(world: World) -> None:
    def lose(call: Any) -> bool:
        assert call.proceed()
        return False  # botocore's second try finds the condition false

    world.entries = scripted(FakeRefundDesk(world.store), "move", [lose])

    answer = world.ask()

    assert (answer.said, answer.replayed) == ((200, "cancelled"), True)


def test_a_debit_that_settles_between_the_two_reads_is_not_cancelled(world: World) -> None:
    world.entries = scripted(FakeRefundDesk(world.store), "debit", [first(world.settle)])

    answer = world.ask()

    assert (*answer.said, answer.body["retryable"]) == LATER
    assert world.row.status is Status.SYNCED
    assert world.ask().said == (202, "refund_requested")


def test_a_row_that_never_stands_still_is_503_to_be_tried_again(world: World) -> None:
    def sweep() -> None:
        world.put(replace(world.row, attempt=world.row.attempt + 1))

    between(world, sweep, times=1_000)

    answer = world.ask()

    assert answer.said == (503, "UNAVAILABLE")
    assert (answer.body["retryable"], answer.headers["Retry-After"]) == (True, "1")
    assert world.row.status is Status.QUEUED
    world.entries = FakeRefundDesk(world.store)
    assert world.ask().said == (200, "cancelled")


def test_tables_that_answer_a_moment_later_are_waited_for(world: World) -> None:
    world.table = scripted(world.table, "find", [unavailable("ThrottlingException")] * 2)

    assert world.ask().said == (200, "cancelled")
    assert world.clock.now_ms() > NOW_MS


def test_a_table_that_does_not_answer_is_503_and_nothing_is_decided(world: World) -> None:
    away = [unavailable("ThrottlingException")] * 1_000
    world.table = scripted(world.table, "find", away)

    assert world.ask().said == (503, "UNAVAILABLE")
    assert world.row.status is Status.QUEUED


@pytest.mark.parametrize("method", ["debit", "refund", "move"])
def test_a_ledger_that_does_not_answer_is_503_and_nothing_is_decided(
    world: World, method: str
) -> None:
    away = [unavailable("ThrottlingException")] * 1_000
    world.entries = scripted(world.entries, method, away)

    assert world.ask().said == (503, "UNAVAILABLE")
    assert world.row.status is Status.QUEUED
