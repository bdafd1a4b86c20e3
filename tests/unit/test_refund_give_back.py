"""`give_back`: look, decide, write once; look again where something moved, and never guess."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from reconcile.settle import settle
from refund.give_back import (
    RECEIVES_UNSEEN_MAX,
    Cancelled,
    Decided,
    Result,
    give_back,
    give_back_all,
)
from tests.fakes.memory import (
    FakeClock,
    FakeLedger,
    FakeRefundBooks,
    Store,
)
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import AGENT, PHONE, USD, credit, debit, refund, row_of, waiting
from tests.fakes.scripted import (
    Call,
    Crash,
    Step,
    contended,
    first,
    lost,
    proceed,
    refused,
    scripted,
    unavailable,
)
from wallet_ledger.consumer import GIVE_BACK_S
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.postings import Moved
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import Debit, Movement, Posted, Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.patience import Patience
from wallet_ledger.ports import RefundBooks

BUDGET_MS = 3_000


@dataclass
class World:
    """The books of one phone, and who works on them."""

    store: Store = field(default_factory=Store)
    clock: FakeClock = field(default_factory=FakeClock)

    @property
    def books(self) -> RefundBooks:
        """Without faults."""
        return FakeRefundBooks(self.store)

    def accept(self, *debits: Debit) -> None:
        """Their rows, queued."""
        for each in debits:
            self.store.rows[each.agent_id, each.idempotency_key] = row_of(each)

    def settle(self, *movements: Movement) -> None:
        """What reconcile does."""
        patience = Patience(self.clock, lambda: 0.5, BUDGET_MS)
        settle(movements, FakeLedger(self.store, retention_days=0), self.clock, patience)

    def refund(
        self,
        asked: Refund,
        books: RefundBooks | None = None,
        *,
        patient: bool = True,
        budget_ms: int = BUDGET_MS,
    ) -> Result:
        """What refund does."""
        patience = Patience(self.clock, lambda: 0.5, budget_ms)
        return give_back(asked, books or self.books, self.clock, patience, patient=patient)

    def writes(self, *steps: Step) -> RefundBooks:
        """The books, with one step for each of the next writes."""
        return scripted(self.books, "write", steps)

    def row(self, key: str = "K-1") -> OfflineTransaction:
        """A row of the agent."""
        return self.store.rows[AGENT, IdempotencyKey(key)]

    def balance_minor(self) -> int:
        """What the wallet holds."""
        return self.store.wallets[PHONE].balance_minor

    def refunds(self) -> list[tuple[str | None, object]]:
        """Each refund id with its outcome, in the order in which it was decided."""
        entries = self.store.entries.values()
        return [(e.refund_id, e.outcome) for e in entries if e.kind == "refund"]


@pytest.fixture
def world() -> Iterable[World]:
    """A wallet of 1,000 with a debit of 100 that is queued."""
    made = World()
    made.settle(credit("C-1", 1_000))
    made.accept(debit())
    yield made
    entries, totals = [*made.store.entries.values()], made.store.refund_totals(PHONE)
    assert_books_add_up(made.store.wallets[PHONE], entries, made.store.rows.values(), totals)


@pytest.fixture
def settled(world: World) -> World:
    """The debit is posted."""
    world.settle(debit())
    return world


def test_a_refund_is_one_look_and_one_write(settled: World) -> None:
    calls: list[str] = []

    def counted(call: Call) -> Any:
        calls.append(call.method)
        return call.proceed()

    books = scripted(scripted(settled.books, "see", [counted]), "write", [counted])

    assert settled.refund(refund(), books) == Decided(Posted(3, 1_000), new=True)
    assert calls == ["see", "write"]
    assert settled.clock.pauses == []


def test_c13_refunds_of_two_debits_to_one_wallet_both_arrive(world: World) -> None:
    world.settle(credit("C-2", 1_000))
    world.accept(debit("K-1", 1_000), debit("K-2", 500))
    world.settle(debit("K-1", 1_000), debit("K-2", 500))
    assert world.balance_minor() == 500
    other = first(lambda: world.refund(refund("R-2", 50, key="K-2")))

    world.refund(refund("R-1", 100, key="K-1"), world.writes(other))

    assert world.balance_minor() == 650


def test_c14_three_fulls_under_three_ids_move_the_balance_once(settled: World) -> None:
    said = [settled.refund(refund(f"R-{number}")) for number in range(3)]

    refused = Decided(Rejected(Reason.EXCEEDS_ORIGINAL), new=True)
    assert said == [Decided(Posted(3, 1_000), new=True), refused, refused]
    assert settled.balance_minor() == 1_000
    entries = [e for e in settled.store.entries.values() if e.kind == "refund"]
    assert [e.remaining_minor for e in entries] == [None, 0, 0]


def test_c19_a_failed_debit_and_a_refund_give_nothing_back(world: World) -> None:
    world.accept(debit("K-2", 10**6))
    world.settle(debit("K-2", 10**6))
    assert world.row("K-2").status is Status.FAILED

    said = world.refund(refund("R-1", key="K-2"))

    assert said == Decided(Rejected(Reason.NOTHING_TO_REFUND), new=True)
    # A refund is named by its debit and its id: no request can name one as its original.
    assert world.refund(refund("R-1", key="R-1"), patient=False) == Decided(
        Rejected(Reason.ORIGINAL_NOT_FOUND), new=True
    )
    assert world.balance_minor() == 1_000


def test_c37_the_same_request_again_is_answered_as_before_and_writes_nothing(
    settled: World,
) -> None:
    for asked in (refund("R-1", 30), refund("R-2", 101), refund("R-3", 5, currency=USD)):
        before = settled.refund(asked)
        assert isinstance(before, Decided)
        stored = dict(settled.store.entries)

        again = settled.refund(asked, settled.writes(refused("a write")))

        assert again == Decided(before.outcome, new=False)
        assert settled.store.entries == stored


def test_c37_a_cancellation_again_is_read_back(world: World) -> None:
    assert world.refund(refund()) == Cancelled(new=True)
    assert world.refund(refund(), world.writes(refused("a write"))) == Cancelled(new=False)
    assert world.store.rows[AGENT, IdempotencyKey("K-1")].status is Status.CANCELLED
    assert world.balance_minor() == 1_000


def test_c37_an_original_that_cannot_be_seen_is_waited_for_and_then_refused(world: World) -> None:
    asked = refund(key="K-9")

    assert world.refund(asked) == Unfinished(("ORIGINAL_NOT_FOUND",))
    assert world.refunds() == []

    assert world.refund(asked, patient=False) == Decided(
        Rejected(Reason.ORIGINAL_NOT_FOUND), new=True
    )
    assert world.refunds() == [("R-1", Rejected(Reason.ORIGINAL_NOT_FOUND))]


def test_a_refusal_stands_when_the_original_comes_after_all(world: World) -> None:
    asked = refund(key="K-9")
    world.refund(asked, patient=False)
    world.accept(debit("K-9"))
    world.settle(debit("K-9"))

    assert world.refund(asked) == Decided(Rejected(Reason.ORIGINAL_NOT_FOUND), new=False)
    assert world.balance_minor() == 900


def test_a_partial_refund_of_what_is_not_settled_is_given_back_at_once(world: World) -> None:
    assert world.refund(refund("R-1", 30)) == Unfinished(("NOT_SETTLED",))
    assert world.clock.pauses == []

    world.settle(debit())

    assert world.refund(refund("R-1", 30)) == Decided(Posted(3, 930), new=True)


# --- what moves, what is lost ---------------------------------------------------------------------


def test_a_debit_that_settles_between_look_and_write_is_refunded_instead_of_cancelled(
    world: World,
) -> None:
    settles = first(lambda: world.settle(debit()))

    assert world.refund(refund(), world.writes(settles)) == Decided(Posted(3, 1_000), new=True)
    assert world.row().status is Status.REFUNDED


def test_what_moved_is_looked_at_again_until_it_stands_still(settled: World) -> None:
    moves = [
        first(lambda: settled.settle(credit("C-2", 5))),
        first(lambda: settled.refund(refund("R-9", 10))),
        first(lambda: settled.settle(credit("C-3", 5))),
    ]

    said = settled.refund(refund(), settled.writes(*moves))

    assert said == Decided(Posted(6, 1_010), new=True)
    assert len(settled.clock.pauses) == 3


def test_of_two_60s_on_a_100_the_second_finds_40_and_is_refused(settled: World) -> None:
    other = first(lambda: settled.refund(refund("R-2", 60)))

    said = settled.refund(refund("R-1", 60), settled.writes(other))

    assert said == Decided(Rejected(Reason.EXCEEDS_ORIGINAL), new=True)
    assert settled.balance_minor() == 960


def test_its_own_second_delivery_in_between_is_no_second_refund(settled: World) -> None:
    other = first(lambda: settled.refund(refund("R-1", 60)))

    said = settled.refund(refund("R-1", 60), settled.writes(other))

    assert said == Decided(Posted(3, 960), new=False)
    assert settled.balance_minor() == 960


@pytest.mark.parametrize("asked", [refund("R-1", 30), refund("R-1", 101)])
def test_a_lost_answer_is_met_again_as_its_own(settled: World, asked: Refund) -> None:
    said = settled.refund(asked, settled.writes(lost("ReadTimeoutError")))

    assert isinstance(said, Decided)
    assert not said.new
    assert len(settled.refunds()) == 1


def test_a_lost_cancellation_is_read_back(world: World) -> None:
    assert world.refund(refund(), world.writes(lost("ReadTimeoutError"))) == Cancelled(new=False)


def test_a_lost_answer_that_told_the_row_leaves_nothing_to_do(settled: World) -> None:
    settled.refund(refund("R-1", 101))
    settled.store.move(settled.row(), waiting(settled.row(), "R-1", 101))

    said = settled.refund(refund("R-1", 101), settled.writes(lost("ReadTimeoutError")))

    assert said == Decided(Rejected(Reason.EXCEEDS_ORIGINAL), new=False)
    assert settled.row().status is Status.SYNCED


@pytest.mark.parametrize("codes", [("TransactionConflict",), ("None", "ThrottlingError")])
def test_contention_is_waited_for_and_never_becomes_a_refusal(
    settled: World, codes: tuple[str, ...]
) -> None:
    steps = [contended(*codes)] * 3

    assert settled.refund(refund(), settled.writes(*steps)) == Decided(Posted(3, 1_000), new=True)
    assert len(settled.clock.pauses) == 3


def test_contention_that_does_not_pass_is_given_back_with_nothing_written(settled: World) -> None:
    steps = [contended("TransactionConflict")] * 99

    said = settled.refund(refund(), settled.writes(*steps))

    assert said == Unfinished(("TransactionConflict",))
    assert settled.refunds() == []
    assert sum(settled.clock.pauses) * 1000 < BUDGET_MS


def test_what_never_stands_still_is_given_back(settled: World) -> None:
    steps: list[Step] = [lambda _: Moved()] * 99

    assert settled.refund(refund(), settled.writes(*steps)) == Unfinished(("Moved",))


def test_without_any_patience_left_one_try_is_made(settled: World) -> None:
    said = settled.refund(refund(), settled.writes(contended("Throttled")), budget_ms=0)

    assert said == Unfinished(("Throttled",))
    assert settled.refund(refund(), budget_ms=0) == Decided(Posted(3, 1_000), new=True)


@pytest.mark.parametrize("times", [1, 3])
def test_books_that_cannot_be_read_are_waited_for(settled: World, times: int) -> None:
    books = scripted(settled.books, "see", [unavailable("ThrottlingException")] * times)

    assert settled.refund(refund(), books) == Decided(Posted(3, 1_000), new=True)


def test_books_that_stay_unreadable_are_given_back(settled: World) -> None:
    books = scripted(settled.books, "see", [unavailable("ThrottlingException")] * 99)

    assert settled.refund(refund(), books) == Unfinished(("ThrottlingException",))


def test_what_the_books_refuse_for_good_is_a_violation_at_once(settled: World) -> None:
    said = settled.refund(refund(), settled.writes(refused("AccessDeniedException")))

    assert said == Violation(("AccessDeniedException",))
    assert settled.clock.pauses == []


@pytest.mark.parametrize("after", [False, True])
def test_c12_and_c39_a_process_that_ends_at_its_write_is_finished_by_the_next(
    settled: World, *, after: bool
) -> None:
    def ends(call: Call) -> Any:
        if after:
            call.proceed()
        raise Crash

    with pytest.raises(Crash):
        settled.refund(refund("R-1", 30), settled.writes(ends))

    assert settled.refund(refund("R-1", 30)) == Decided(Posted(3, 930), new=not after)
    assert settled.refunds() == [("R-1", Posted(3, 930))]


# --- several of one phone -------------------------------------------------------------------------


def said_of(
    world: World,
    requests: Sequence[tuple[Refund, int]],
    books: RefundBooks | None = None,
    budget_ms: int = 1,
) -> list[Result]:
    """The results of one batch."""
    patience = Patience(world.clock, lambda: 0.5, budget_ms)
    return give_back_all(requests, books or world.books, world.clock, patience)


def test_refunds_of_one_phone_are_decided_in_their_order(settled: World) -> None:
    said = said_of(settled, [(refund("R-1", 60), 1), (refund("R-2", 60), 1), (refund("R-3"), 1)])

    assert said == [
        Decided(Posted(3, 960), new=True),
        Decided(Rejected(Reason.EXCEEDS_ORIGINAL), new=True),
        Decided(Posted(4, 1_000), new=True),
    ]


def test_after_an_unfinished_one_nothing_later_is_decided(settled: World) -> None:
    steps = [proceed, contended("TransactionConflict")]

    said = said_of(
        settled,
        [(refund(f"R-{number}", 10), 1) for number in range(4)],
        settled.writes(*steps),
    )

    assert said[0] == Decided(Posted(3, 910), new=True)
    assert said[1:] == [Unfinished(("TransactionConflict",))] * 3
    assert settled.balance_minor() == 910


def test_a_violation_stops_nobody(settled: World) -> None:
    said = said_of(
        settled,
        [(refund("R-1", 10), 1), (refund("R-2", 10), 1)],
        settled.writes(refused("ValidationError")),
    )

    assert said == [Violation(("ValidationError",)), Decided(Posted(3, 910), new=True)]


@pytest.mark.parametrize("received", range(1, RECEIVES_UNSEEN_MAX + 2))
def test_c37_each_message_has_receives_of_its_own_to_wait_for_its_original(
    world: World, received: int
) -> None:
    [said] = said_of(world, [(refund(key="K-9"), received)])

    assert isinstance(said, Unfinished) == (received <= RECEIVES_UNSEEN_MAX)


def test_an_unseen_original_has_about_half_a_minute_to_appear() -> None:
    assert 25 <= sum(GIVE_BACK_S[:RECEIVES_UNSEEN_MAX]) <= 60


def test_a_partial_refund_waits_for_its_settlement_however_often_it_came(world: World) -> None:
    [said] = said_of(world, [(refund("R-1", 30), 99)])

    assert said == Unfinished(("NOT_SETTLED",))


# --- what comes too early -------------------------------------------------------------------------


def test_what_comes_too_early_holds_back_its_own_debit_and_no_other(world: World) -> None:
    world.accept(debit("K-2"))
    world.settle(debit("K-2"))

    said = said_of(
        world,
        [
            (refund("R-1", 30), 1),
            (refund("R-9", key="K-9"), 1),
            (refund("R-2", 10, key="K-2"), 1),
            (refund("R-3"), 1),
            (refund("R-8", key="K-9"), 99),
        ],
    )

    early, unseen = Unfinished(("NOT_SETTLED",)), Unfinished(("ORIGINAL_NOT_FOUND",))
    assert said == [early, unseen, Decided(Posted(3, 910), new=True), early, unseen]
    assert world.row().status is Status.QUEUED  # a later refund of all does not overtake a part


def test_the_first_is_begun_whatever_time_is_left(settled: World) -> None:
    """Else what comes too late each time would never be decided."""
    said = said_of(settled, [(refund("R-1", 10), 1), (refund("R-2", 10), 1)], budget_ms=-1)

    assert said == [Decided(Posted(3, 910), new=True), Unfinished(("OutOfTime",))]


def test_once_the_time_is_over_nothing_more_is_begun(settled: World) -> None:
    def slow(call: Call) -> Any:
        settled.clock.pause(5)
        return call.proceed()

    said = said_of(
        settled,
        [(refund("R-1", 10), 1), (refund("R-2", 10), 1), (refund("R-3", 10), 1)],
        settled.writes(slow),
        budget_ms=1_000,
    )

    assert said == [
        Decided(Posted(3, 910), new=True),
        Unfinished(("OutOfTime",)),
        Unfinished(("OutOfTime",)),
    ]


# --- an id in two currencies ----------------------------------------------------------------------


def outcomes(world: World, *requests: Refund) -> list[object]:
    """What each is told, one after the other."""
    said = [world.refund(each) for each in requests]
    return [each.outcome if isinstance(each, Decided) else each for each in said]


@pytest.mark.parametrize("amount_minor", [None, 30])
def test_p4_an_id_that_comes_in_another_currency_too_has_one_outcome_for_each(
    settled: World, amount_minor: int | None
) -> None:
    kes = refund("R-1", amount_minor, currency="KES")
    usd, unsaid = replace(kes, currency=USD), replace(kes, currency=None)
    posted = Posted(3, 900 + (amount_minor or 100))
    reused = Rejected(Reason.KEY_REUSED)

    assert outcomes(settled, kes, usd, kes, unsaid, usd, kes) == [
        posted,
        reused,
        posted,
        posted,
        reused,
        posted,
    ]
    assert settled.refunds() == [("R-1", posted), ("R-1", reused)]


def test_p4_an_id_that_came_first_in_another_currency_stays_a_mismatch(settled: World) -> None:
    usd, kes = refund("R-1", 30, currency=USD), refund("R-1", 30, currency="KES")
    mismatch, reused = Rejected(Reason.MISMATCH), Rejected(Reason.KEY_REUSED)

    assert outcomes(settled, usd, kes, usd, kes) == [mismatch, reused, mismatch, reused]
    assert settled.balance_minor() == 900


def test_p4_a_cancellation_keeps_its_outcome_beside_a_reuse_of_its_id(world: World) -> None:
    reused = Rejected(Reason.KEY_REUSED)

    assert world.refund(refund("R-1")) == Cancelled(new=True)
    for _ in range(2):
        for other in (refund("R-1", currency=USD), refund("R-1", 50)):
            assert outcomes(world, other) == [reused]
        assert world.refund(refund("R-1")) == Cancelled(new=False)
        assert world.refund(refund("R-1", 100)) == Cancelled(new=False)
