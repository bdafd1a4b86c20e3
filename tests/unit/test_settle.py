"""`settle`: every rule for reading a failure, in its order, on books that keep their promises."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.settle import Dropped, Settled, Settlement, settle
from refund.give_back import give_back
from tests.fakes.memory import (
    FakeClock,
    FakeLedger,
    FakeRefundBooks,
    Store,
)
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import (
    AGENT,
    PHONE,
    credit,
    debit,
    posting,
    refund,
    row_of,
    status_change,
    waiting,
    wallet,
)
from tests.fakes.scripted import (
    Call,
    Crash,
    Step,
    around,
    contended,
    first,
    lost,
    proceed,
    refused,
    scripted,
    unavailable,
)
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.letters import held
from wallet_ledger.domain.postings import Committed, Conflicted, Refused
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import (
    Debit,
    Movement,
    Posted,
    Rejected,
    WalletStatus,
    movement_id,
)
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.patience import Patience
from wallet_ledger.ports import Ledger

BUDGET_MS = 3_000


@dataclass
class World:
    """One wallet's books, the rows of its debits, and a clock that pauses move."""

    store: Store = field(default_factory=Store)
    clock: FakeClock = field(default_factory=FakeClock)

    @property
    def ledger(self) -> FakeLedger:
        """The books, without faults."""
        return FakeLedger(self.store, retention_days=0)

    def accept(self, *debits: Debit) -> None:
        """Their rows, queued."""
        for each in debits:
            self.store.rows[each.agent_id, each.idempotency_key] = row_of(each)

    def fund(self, amount_minor: int = 1000) -> None:
        """A wallet with this much, in one credit."""
        assert self.settle(credit("funding", amount_minor)) == [
            Settled(Posted(1, amount_minor), new=True)
        ]

    def settle(
        self, *movements: Movement, ledger: Ledger | None = None, budget_ms: int = BUDGET_MS
    ) -> list[Settlement]:
        """Settle on the books, or on the books with something in between."""
        patience = Patience(self.clock, lambda: 0.5, budget_ms)
        return settle(movements, ledger or self.ledger, self.clock, patience)

    def posts(self, *steps: Step) -> Ledger:
        """The books, with one step for each of the next writes."""
        return scripted(self.ledger, "post", steps)

    def row(self, key: str) -> OfflineTransaction:
        """A row of the agent."""
        return self.store.rows[AGENT, IdempotencyKey(key)]

    def close(self, key: str, status: Status) -> None:
        """Somebody else has moved the row."""
        moved = replace(self.row(key), status=status)
        if status is Status.HELD:
            moved = held(moved, "L-1", moved.updated_at_ms)
        elif status is not Status.QUEUED:
            moved = replace(moved, next_sweep_at_ms=None)
        self.store.rows[AGENT, IdempotencyKey(key)] = moved

    def purge(self, key: str) -> None:
        """Retention has let the row go."""
        del self.store.rows[AGENT, IdempotencyKey(key)]

    def balance_minor(self) -> int:
        """What the wallet holds."""
        return self.store.wallets[PHONE].balance_minor

    def references(self) -> list[str]:
        """What is posted, in the order in which it was."""
        posted = [e for e in self.store.entries.values() if isinstance(e.outcome, Posted)]
        return [entry.reference for entry in posted]

    def check(self) -> None:
        """The books add up."""
        held, totals = self.store.wallets.get(PHONE), self.store.refund_totals(PHONE)
        entries = [*self.store.entries.values()]
        assert_books_add_up(held, entries, self.store.rows.values(), totals)


@pytest.fixture
def world() -> Iterable[World]:
    """A world whose books must add up in the end."""
    made = World()
    yield made
    made.check()


def said(settlements: Sequence[Settlement]) -> list[object]:
    """The settlements, each outcome cut to whether it was posted, or why not."""
    told: list[object] = []
    for each in settlements:
        if not isinstance(each, Settled):
            told.append(type(each).__name__)
        elif isinstance(each.outcome, Rejected):
            told.append(each.outcome.reason)
        else:
            told.append("posted")
    return told


# --- a group --------------------------------------------------------------------------------------


def test_a_group_is_one_read_and_one_write_whatever_the_number_of_its_movements(
    world: World,
) -> None:
    world.fund(100)
    group = [debit(f"K-{number}", 20) for number in range(9)]
    world.accept(*group)
    calls: list[str] = []

    def note(call: Call) -> Any:
        calls.append(call.method)
        return call.proceed()

    settlements = world.settle(*group, credit("C-1", 1), ledger=around(world.ledger, note))

    assert calls == ["wallet", "post"]
    assert said(settlements) == ["posted"] * 5 + [Reason.INSUFFICIENT_FUNDS] * 4 + ["posted"]
    assert world.references() == ["funding", "K-0", "K-1", "K-2", "K-3", "K-4", "C-1"]


def test_each_result_stands_where_its_movement_stood(world: World) -> None:
    wanted: list[Movement] = [
        debit("K-1", 50),
        credit("C-1", 60),
        debit("K-2", 50),
        status_change("S-1"),
    ]
    world.accept(debit("K-1", 50), debit("K-2", 50))

    assert world.settle(*wanted) == [
        Settled(Rejected(Reason.WALLET_NOT_FOUND), new=True),
        Settled(Posted(1, 60), new=True),
        Settled(Posted(2, 10), new=True),
        Settled(Posted(3, 10), new=True),
    ]


def test_no_movement_is_nothing_to_do(world: World) -> None:
    assert world.settle() == []


# --- C01, C22: the same again ---------------------------------------------------------------------


def test_a_debit_that_comes_twice_in_one_batch_is_posted_once(world: World) -> None:
    world.fund()
    world.accept(debit("K-1", 100), debit("K-2", 100))

    results = world.settle(debit("K-1", 100), debit("K-2", 100), debit("K-1", 100, attempt=2))

    assert said(results) == ["posted", "posted", "Dropped"]
    assert world.balance_minor() == 800


def test_a_whole_batch_that_comes_again_changes_nothing(world: World) -> None:
    batch: list[Movement] = [
        credit("C-1", 100),
        debit("K-1", 60),
        debit("K-2", 60),
        status_change("S-1"),
        debit("K-3", 1),
    ]
    world.accept(debit("K-1", 60), debit("K-2", 60), debit("K-3", 1))
    firsts = world.settle(*batch)
    before = everything(world)

    again = world.settle(*batch)

    assert said(firsts) == [
        "posted",
        "posted",
        Reason.INSUFFICIENT_FUNDS,
        "posted",
        Reason.WALLET_FROZEN,
    ]
    assert said(again) == ["posted", "Dropped", "Dropped", "posted", "Dropped"]
    assert [each.new for each in again if isinstance(each, Settled)] == [False, False]
    assert everything(world) == before


def everything(world: World) -> tuple[object, ...]:
    """All that is stored, to be compared."""
    store = world.store
    return (dict(store.rows), dict(store.wallets), dict(store.entries))


# --- C11: a refusal is final ----------------------------------------------------------------------


def test_a_debit_that_was_declined_stays_declined_when_the_wallet_has_money(world: World) -> None:
    world.fund(10)
    world.accept(debit("K-1", 100))
    world.settle(debit("K-1", 100))
    world.settle(credit("C-1", 1000))

    assert world.settle(debit("K-1", 100, attempt=2)) == [Dropped()]

    assert (world.row("K-1").status, world.row("K-1").reason) == (
        Status.FAILED,
        "INSUFFICIENT_FUNDS",
    )
    assert world.balance_minor() == 1010


def test_a_declined_debit_whose_row_was_purged_is_declined_again_for_the_same_reason(
    world: World,
) -> None:
    world.fund(10)
    world.accept(debit("K-1", 100))
    world.settle(debit("K-1", 100), credit("C-1", 1000))
    world.purge("K-1")
    world.accept(debit("K-1", 100))

    assert world.settle(debit("K-1", 100)) == [
        Settled(Rejected(Reason.INSUFFICIENT_FUNDS), new=False)
    ]

    assert (world.row("K-1").status, world.row("K-1").reason) == (
        Status.FAILED,
        "INSUFFICIENT_FUNDS",
    )
    assert world.balance_minor() == 1010


def test_a_posted_debit_whose_row_was_purged_is_synced_again_without_a_second_debit(
    world: World,
) -> None:
    world.fund()
    world.accept(debit("K-1", 100))
    world.settle(debit("K-1", 100))
    world.purge("K-1")
    world.accept(debit("K-1", 100))

    assert world.settle(debit("K-1", 100)) == [Settled(Posted(2, 900), new=False)]

    assert world.row("K-1").status is Status.SYNCED
    assert world.balance_minor() == 900


@pytest.mark.parametrize("was_posted", [True, False])
def test_a_purged_key_that_comes_again_with_other_content_is_refused_as_reused(
    world: World, was_posted: bool
) -> None:
    world.fund(1000 if was_posted else 10)
    world.accept(debit("K-1", 100))
    world.settle(debit("K-1", 100))
    before = world.balance_minor()
    world.purge("K-1")
    world.accept(debit("K-1", 5))

    assert world.settle(debit("K-1", 5)) == [Settled(Rejected(Reason.KEY_REUSED), new=False)]

    assert (world.row("K-1").status, world.row("K-1").reason) == (Status.FAILED, "KEY_REUSED")
    assert world.balance_minor() == before
    assert len(world.store.entries) == 2


# --- KEY_REUSED -----------------------------------------------------------------------------------


def test_a_message_with_other_content_than_its_row_is_dropped(world: World) -> None:
    world.fund()
    world.accept(debit("K-1", 100))

    assert world.settle(debit("K-1", 250)) == [Dropped()]

    assert world.row("K-1").status is Status.QUEUED
    assert world.balance_minor() == 1000


def test_one_debit_id_with_two_contents_in_one_batch_is_settled_as_it_was_accepted(
    world: World,
) -> None:
    world.fund()
    world.accept(debit("K-1", 100))

    results = world.settle(debit("K-1", 250), debit("K-1", 100), debit("K-1", 250))

    assert said(results) == ["Dropped", "posted", "Dropped"]
    assert world.balance_minor() == 900


@pytest.mark.parametrize(
    ("used", "other"),
    [
        (credit("C-1", 100), credit("C-1", 250)),
        (status_change("S-1", WalletStatus.ACTIVE), status_change("S-1", WalletStatus.FROZEN)),
    ],
    ids=["credit", "status"],
)
@pytest.mark.parametrize("in_one_batch", [True, False])
def test_an_id_used_again_with_other_content_is_refused_once_and_for_good(
    world: World, used: Movement, other: Movement, in_one_batch: bool
) -> None:
    """The refusal gets an entry of its own, so that whoever asked is answered by an event."""
    if in_one_batch:
        results = world.settle(used, other)
    else:
        results = world.settle(used) + world.settle(other)
    before = everything(world)

    assert said(results) == ["posted", Reason.KEY_REUSED]
    assert world.settle(other) == [Settled(Rejected(Reason.KEY_REUSED), new=False)]
    assert said(world.settle(used)) == ["posted"]
    assert everything(world) == before
    assert len(world.store.entries) == 2


def test_a_reused_id_is_refused_beside_movements_that_are_posted(world: World) -> None:
    world.settle(credit("C-1", 100))
    world.accept(debit("K-1", 30))

    results = world.settle(debit("K-1", 30), credit("C-1", 1), credit("C-2", 5))

    assert said(results) == ["posted", Reason.KEY_REUSED, "posted"]
    assert world.balance_minor() == 75


def test_an_entry_in_the_place_of_a_refusal_that_is_not_that_refusal_is_a_violation(
    world: World,
) -> None:
    def met(call: Call) -> Conflicted:
        stranger = next(iter(world.store.entries.values()))
        return Conflicted({movement_id(credit("C-1", 5)): stranger}, frozenset(), False)

    world.settle(credit("C-1", 100))

    results = world.settle(credit("C-1", 5), ledger=world.posts(met, met))

    assert results == [Violation(("EntryOfAnotherContent",))]


# --- rule 1: anything transient -------------------------------------------------------------------

TRANSIENT = [
    ("TransactionInProgressException",),
    ("TransactionConflictException",),
    ("ThrottlingException",),
    ("ProvisionedThroughputExceededException",),
    ("InternalServerError",),
    ("ReadTimeoutError",),
    ("ConditionalCheckFailed", "None", "TransactionConflict"),
    ("ConditionalCheckFailed", "ThrottlingError", "ValidationError"),
]


@pytest.mark.parametrize("codes", TRANSIENT)
@pytest.mark.parametrize("times", [1, 4])
def test_contention_is_waited_for_and_never_told_as_a_refusal(
    world: World, codes: tuple[str, ...], times: int
) -> None:
    world.fund()
    world.accept(debit("K-1", 100))

    results = world.settle(debit("K-1", 100), ledger=world.posts(*[contended(*codes)] * times))

    assert results == [Settled(Posted(2, 900), new=True)]
    assert len(world.clock.pauses) == times


@pytest.mark.parametrize("codes", TRANSIENT)
def test_contention_that_does_not_end_gives_the_group_back_within_its_budget(
    world: World, codes: tuple[str, ...]
) -> None:
    world.fund()
    world.accept(debit("K-1", 100), debit("K-2", 10**9))
    before, began_ms = everything(world), world.clock.now_ms()
    always = around(
        world.ledger, lambda c: c.proceed() if c.method == "wallet" else contended(*codes)(c)
    )

    results = world.settle(debit("K-1", 100), debit("K-2", 10**9), ledger=always)

    assert results == [Unfinished(codes)] * 2
    assert everything(world) == before
    assert 0 < world.clock.now_ms() - began_ms < BUDGET_MS
    assert world.row("K-2").status is Status.QUEUED


def test_without_a_budget_there_is_one_try(world: World) -> None:
    world.accept(debit())

    ledger = world.posts(contended("TransactionConflict"))

    assert world.settle(debit(), ledger=ledger, budget_ms=0) == [
        Unfinished(("TransactionConflict",))
    ]
    assert world.clock.pauses == []


def test_the_waits_grow_and_are_drawn(world: World) -> None:
    world.accept(debit())

    world.settle(debit(), ledger=world.posts(*[contended("ThrottlingError")] * 8))

    assert world.clock.pauses == [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.4, 0.4]


def test_a_wallet_that_cannot_be_read_is_waited_for_and_not_taken_for_missing(world: World) -> None:
    world.fund()
    world.accept(debit("K-1", 100))
    ledger = scripted(world.ledger, "wallet", [unavailable("ThrottlingException")] * 3)

    assert world.settle(debit("K-1", 100), ledger=ledger) == [Settled(Posted(2, 900), new=True)]


def test_a_wallet_that_cannot_be_read_at_all_gives_the_group_back(world: World) -> None:
    world.accept(debit())
    ledger = around(world.ledger, unavailable("ReadTimeoutError"))

    assert world.settle(debit(), ledger=ledger) == [Unfinished(("ReadTimeoutError",))]


# --- C39: an answer that is lost ------------------------------------------------------------------


def test_a_lost_answer_is_no_second_debit(world: World) -> None:
    world.fund()
    world.accept(debit("K-1", 100), debit("K-2", 10**9))

    results = world.settle(
        debit("K-1", 100), debit("K-2", 10**9), ledger=world.posts(lost("ReadTimeoutError"))
    )

    assert results == [Dropped(), Dropped()]
    assert (world.row("K-1").status, world.row("K-2").status) == (Status.SYNCED, Status.FAILED)
    assert world.balance_minor() == 900


def test_a_lost_answer_is_no_second_credit(world: World) -> None:
    results = world.settle(
        credit("C-1", 70), status_change("S-1"), ledger=world.posts(lost("ReadTimeoutError"))
    )

    assert results == [Settled(Posted(1, 70), new=False), Settled(Posted(2, 70), new=False)]
    assert world.balance_minor() == 70


def test_an_answer_that_is_lost_when_the_budget_is_used_up_is_found_by_the_redelivery(
    world: World,
) -> None:
    world.fund()
    world.accept(debit("K-1", 100))

    ledger = world.posts(lost("ReadTimeoutError"))
    assert world.settle(debit("K-1", 100), ledger=ledger, budget_ms=0) == [
        Unfinished(("ReadTimeoutError",))
    ]

    assert world.settle(debit("K-1", 100)) == [Dropped()]
    assert world.balance_minor() == 900


# --- rules 2 and 3: rows and entries that somebody else wrote -------------------------------------


WITHOUT_ENTRY = sorted({Status.HELD, Status.CANCELLED, Status.EXPIRED})
REFUNDS = {
    Status.PARTIALLY_REFUNDED: refund("R-1", 50),
    Status.REFUNDED: refund("R-1"),
    Status.REFUND_REQUESTED: None,
}


@pytest.mark.parametrize("status", WITHOUT_ENTRY)
def test_a_row_that_is_no_longer_queued_is_dropped_and_the_others_settle(
    world: World, status: Status
) -> None:
    world.fund()
    world.accept(debit("K-1", 100), debit("K-2", 200), debit("K-3", 300))
    world.close("K-2", status)

    results = world.settle(debit("K-1", 100), debit("K-2", 200), debit("K-3", 300))

    assert said(results) == ["posted", "Dropped", "posted"]
    assert world.balance_minor() == 600
    assert world.row("K-2").status is status


@pytest.mark.parametrize("status", REFUNDS)
def test_a_debit_that_comes_again_after_its_refund_is_dropped_and_the_refund_stands(
    world: World, status: Status
) -> None:
    world.fund()
    world.accept(debit("K-1", 100))
    world.settle(debit("K-1", 100))
    books, asked = FakeRefundBooks(world.store), REFUNDS[status]
    if asked is None:
        world.store.move(world.row("K-1"), waiting(world.row("K-1")))
    else:
        give_back(asked, books, world.clock, Patience(world.clock, lambda: 0.5, 0), patient=True)
    before = (world.row("K-1"), world.balance_minor())

    assert world.settle(debit("K-1", 100, attempt=2)) == [Dropped()]
    assert (world.row("K-1"), world.balance_minor()) == before
    assert before[0].status is status


def test_a_debit_that_nobody_accepted_is_dropped(world: World) -> None:
    world.fund()

    assert world.settle(debit("K-1", 100)) == [Dropped()]
    assert world.balance_minor() == 1000


def test_a_row_that_is_cancelled_between_read_and_write_is_dropped_with_its_funds_left(
    world: World,
) -> None:
    world.fund(100)
    world.accept(debit("K-1", 100), debit("K-2", 100))
    cancel = first(lambda: world.close("K-1", Status.CANCELLED))

    results = world.settle(debit("K-1", 100), debit("K-2", 100), ledger=world.posts(cancel))

    assert said(results) == ["Dropped", "posted"]


def test_the_same_movement_settled_by_another_worker_in_between_is_not_posted_again(
    world: World,
) -> None:
    world.fund(100)
    world.accept(debit("K-1", 60), debit("K-2", 40))
    other = first(lambda: world.settle(debit("K-1", 60), credit("C-1", 5)))

    results = world.settle(
        debit("K-1", 60), debit("K-2", 40), credit("C-1", 5), ledger=world.posts(other)
    )

    assert said(results) == ["Dropped", "posted", "posted"]
    assert world.balance_minor() == 5


# --- rule 4: the balance moves --------------------------------------------------------------------


def test_funds_that_are_spent_between_read_and_write_are_not_spent_twice(world: World) -> None:
    world.fund(100)
    world.accept(debit("K-1", 100), debit("K-2", 100))
    other = first(lambda: world.settle(debit("K-2", 100)))

    results = world.settle(debit("K-1", 100), ledger=world.posts(other))

    assert results == [Settled(Rejected(Reason.INSUFFICIENT_FUNDS), new=True)]
    assert world.balance_minor() == 0


def test_funds_that_arrive_between_read_and_write_are_no_lack_of_funds(world: World) -> None:
    world.fund(10)
    world.accept(debit("K-1", 100))
    other = first(lambda: world.settle(credit("C-1", 90)))

    results = world.settle(debit("K-1", 100), ledger=world.posts(other))

    assert results == [Settled(Posted(3, 0), new=True)]


def test_a_wallet_that_opens_between_read_and_write_is_not_unknown(world: World) -> None:
    world.accept(debit("K-1", 100))
    other = first(lambda: world.settle(credit("C-1", 100)))

    results = world.settle(debit("K-1", 100), ledger=world.posts(other))

    assert results == [Settled(Posted(2, 0), new=True)]


def test_two_openings_at_once_are_one_wallet(world: World) -> None:
    other = first(lambda: world.settle(credit("C-1", 100)))

    world.settle(status_change("S-1", WalletStatus.ACTIVE), ledger=world.posts(other))

    assert world.store.wallets[PHONE] == wallet(100, version=2)


def test_a_wallet_that_is_frozen_between_read_and_write_refuses(world: World) -> None:
    world.fund()
    world.accept(debit("K-1", 100))
    other = first(lambda: world.settle(status_change("S-1", WalletStatus.FROZEN)))

    results = world.settle(debit("K-1", 100), ledger=world.posts(other))

    assert said(results) == [Reason.WALLET_FROZEN]


def test_a_balance_that_moves_every_time_gives_the_group_back(world: World) -> None:
    world.fund()
    world.accept(debit("K-1", 100))
    numbers = iter(range(10**6))

    def disturb(call: Call) -> Any:
        if call.method == "post":
            assert (
                world.ledger.post(
                    posting(world.ledger.wallet(PHONE), credit(f"X-{next(numbers)}", 1))
                )
                == Committed()
            )
        return call.proceed()

    results = world.settle(debit("K-1", 100), ledger=around(world.ledger, disturb))

    assert results == [Unfinished(("BalanceMoved",))]
    assert world.row("K-1").status is Status.QUEUED


# --- rule 5: one by one ---------------------------------------------------------------------------


def refusing(world: World, key: str, then: Callable[[str], Step | None] = lambda _: None) -> Ledger:
    """Books that take no posting with this key in it; `then` may say more of single ones."""

    def step(call: Call) -> Any:
        if call.method != "post":
            return call.proceed()
        [wanted] = call.arguments
        keys = [movement_id(new.movement)[2] for new in wanted.new]
        if key in keys:
            return Refused(("ValidationError",))
        special = then(keys[0]) if len(keys) == 1 else None
        return (special or proceed)(call)

    return around(world.ledger, step)


GROUP = [debit(f"K-{number}", 100) for number in range(5)]


def test_one_movement_that_the_books_refuse_does_not_fail_the_others(world: World) -> None:
    world.fund()
    world.accept(*GROUP)

    results = world.settle(*GROUP, ledger=refusing(world, "K-2"))

    assert said(results) == ["posted", "posted", "Violation", "posted", "posted"]
    assert results[2] == Violation(("ValidationError",))
    assert world.references() == ["funding", "K-0", "K-1", "K-3", "K-4"]
    assert world.row("K-2").status is Status.QUEUED


def test_a_single_movement_that_the_books_refuse_is_tried_once(world: World) -> None:
    world.accept(debit())
    posts: list[str] = []

    def refuse(call: Call) -> Any:
        posts.append(call.method)
        return call.proceed() if call.method == "wallet" else Refused(("AccessDenied",))

    assert world.settle(debit(), ledger=around(world.ledger, refuse)) == [
        Violation(("AccessDenied",))
    ]
    assert posts == ["wallet", "post"]


def test_contention_while_going_one_by_one_gives_back_that_movement_and_all_behind_it(
    world: World,
) -> None:
    world.fund()
    world.accept(*GROUP)
    ledger = refusing(
        world, "K-0", lambda key: contended("TransactionConflict") if key == "K-2" else None
    )

    results = world.settle(*GROUP, ledger=ledger)

    assert said(results) == ["Violation", "posted", "Unfinished", "Unfinished", "Unfinished"]
    assert world.references() == ["funding", "K-1"]


def test_what_is_known_of_an_id_is_kept_when_the_group_goes_one_by_one(world: World) -> None:
    world.settle(credit("C-1", 500))
    world.accept(*GROUP)
    calls: list[str] = []

    def note(call: Call) -> Any:
        calls.append(call.method)
        return call.proceed()

    ledger = around(world.posts(proceed, refused("ValidationError")), note)

    results = world.settle(credit("C-1", 7), *GROUP[:3], ledger=ledger)

    assert said(results) == [Reason.KEY_REUSED, "posted", "posted", "posted"]
    assert calls.count("post") == 2 + 4


def test_a_refusal_of_the_whole_group_that_no_single_one_repeats_settles_them_all(
    world: World,
) -> None:
    world.fund()
    world.accept(*GROUP)

    results = world.settle(*GROUP, ledger=world.posts(refused("TransactionTooLarge")))

    assert said(results) == ["posted"] * 5
    assert world.references() == ["funding", "K-0", "K-1", "K-2", "K-3", "K-4"]


# --- order ----------------------------------------------------------------------------------------


def test_a_repetition_of_what_is_not_finished_is_not_finished_either(world: World) -> None:
    world.fund()
    world.accept(debit("K-1"))
    stuck = world.posts(*[contended("TransactionConflict")] * 1_000)

    results = world.settle(debit("K-1"), debit("K-1"), ledger=stuck)

    assert results == [Unfinished(("TransactionConflict",))] * 2


def test_after_a_run_that_cannot_finish_the_next_is_not_begun(world: World) -> None:
    world.fund()
    writes: list[str] = []

    def note(call: Call) -> Any:
        if call.method == "post":
            writes.append(call.arguments[0].new[0].movement.credit_id)
            return contended("ThrottlingError")(call)
        return call.proceed()

    results = world.settle(
        credit("C-1", 1), credit("C-1", 2), credit("C-2", 3), ledger=around(world.ledger, note)
    )

    assert said(results) == ["Unfinished"] * 3
    assert set(writes) == {"C-1"}


def test_p10_nothing_is_decided_after_an_unfinished_movement_whatever_ended_its_run(
    world: World,
) -> None:
    """A credit that was posted before ends the first run as settled; the debit in it is not."""
    world.fund(100)
    world.settle(credit("C-1", 1))
    early, late = debit("K-1", 101), debit("K-2", 60)
    world.accept(early, late)

    def conflicts(call: Call) -> Any:
        new = call.arguments[0].new if call.method == "post" else ()
        if any(each.movement == early for each in new) and len(new) == 1:
            return contended("TransactionConflict")(call)
        return call.proceed()

    again: list[Movement] = [early, credit("C-1", 1), credit("C-1", 2), late]
    results = world.settle(*again, ledger=around(world.ledger, conflicts))

    assert said(results) == ["Unfinished", "posted", "Unfinished", "Unfinished"]
    assert said(world.settle(early)) == ["posted"]


def test_a_violation_stops_nobody(world: World) -> None:
    world.fund()
    results = world.settle(
        credit("C-1", 1), credit("C-1", 2), credit("C-2", 3), ledger=world.posts(refused("Odd"))
    )

    assert said(results) == ["Violation", "posted", "posted"]


# --- C12: a crash between any two calls -----------------------------------------------------------

BATCH: list[Movement] = [
    credit("C-1", 100),
    debit("K-1", 60),
    debit("K-2", 60),
    credit("C-1", 1),
    debit("K-1", 60, attempt=2),
    status_change("S-1"),
    debit("K-3", 10),
]


def crashing(port: Ledger, at: int, when: str, made: list[str]) -> Ledger:
    """A process that ends before or after the `at`-th call, and `made`: the calls it made."""

    def step(call: Call) -> Any:
        made.append(call.method)
        if when == "before" and len(made) == at:
            raise Crash
        answer = call.proceed()
        if when == "after" and len(made) == at:
            raise Crash
        return answer

    return around(port, step)


def settled_world(at: int = 0, when: str = "never", script: Sequence[Step] = ()) -> tuple[Any, int]:
    """The state after the batch was delivered until nothing came again, and the calls it took."""
    world = World()
    world.accept(debit("K-1", 60), debit("K-2", 60), debit("K-3", 10))
    made: list[str] = []
    ledger = crashing(scripted(world.ledger, "post", script), at, when, made)
    left: list[Movement] = list(BATCH)
    for _ in range(10):
        try:
            results = world.settle(*left, ledger=ledger)
        except Crash:
            continue  # the queue delivers the same again
        left = [
            each
            for each, result in zip(left, results, strict=True)
            if isinstance(result, Unfinished | Violation)
        ]
        if not left:
            break
    assert not left
    world.check()
    return without_times(world), len(made)


def without_times(world: World) -> object:
    """All that is stored but when it was."""
    entries = [replace(each, created_at_ms=0) for each in world.store.entries.values()]
    rows = [replace(each, updated_at_ms=0) for each in world.store.rows.values()]
    return sorted(entries, key=str), sorted(rows, key=str), world.store.wallets


SCRIPTS: dict[str, list[Step]] = {
    "no fault": [],
    "contended": [contended("TransactionConflict"), proceed, contended("ThrottlingError")],
    "answer lost": [lost("ReadTimeoutError"), lost("ReadTimeoutError")],
    "refused whole": [refused("ValidationError")],
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_call_ends_in_the_state_without_one(script: str, when: str) -> None:
    expected, _ = settled_world()
    _, calls = settled_world(script=SCRIPTS[script])
    assert calls >= 4

    for at in range(1, calls + 1):
        state, _ = settled_world(at, when, SCRIPTS[script])
        assert state == expected, f"crash {when} call {at}"


# --- any history ----------------------------------------------------------------------------------


keys = st.integers(0, 9)
movements = st.one_of(
    st.builds(lambda k: debit(f"K-{k}", 10 + 7 * k), keys),
    st.builds(lambda k: debit(f"K-{k}", 10 + 7 * k, attempt=2), keys),
    st.builds(lambda k, amount: credit(f"C-{k}", amount), keys, st.sampled_from([20, 60])),
    st.builds(
        lambda k, status: status_change(f"S-{k}", status), keys, st.sampled_from(WalletStatus)
    ),
)
histories = st.lists(st.lists(movements, min_size=1, max_size=10), max_size=5)
PASSING_FAULTS = [
    proceed,
    contended("ConditionalCheckFailed", "TransactionConflict"),
    contended("ProvisionedThroughputExceeded"),
    lost("ReadTimeoutError"),
]
passing_faults = st.lists(st.sampled_from(PASSING_FAULTS), max_size=12)
all_faults = st.lists(st.sampled_from([*PASSING_FAULTS, refused("ValidationError")]), max_size=12)


@given(histories, passing_faults)
def test_any_history_of_passing_faults_ends_as_if_there_had_been_none(
    batches: list[list[Movement]], faults: list[Step]
) -> None:
    assert play(batches, faults) == play(batches, [])


@given(histories, all_faults)
def test_any_history_of_faults_ends_with_books_that_add_up(
    batches: list[list[Movement]], faults: list[Step]
) -> None:
    play(batches, faults)


def play(batches: Sequence[Sequence[Movement]], faults: Sequence[Step]) -> object:
    """The state after each batch was delivered until nothing of it came again."""
    world = World()
    world.accept(*(debit(f"K-{key}", 10 + 7 * key) for key in range(10)))
    ledger = world.posts(*faults)
    for batch in batches:
        left = list(batch)
        for _ in range(20):
            results = world.settle(*left, ledger=ledger, budget_ms=100)
            left = [
                each
                for each, result in zip(left, results, strict=True)
                if isinstance(result, Unfinished | Violation)
            ]
            if not left:
                break
        assert not left
        world.check()
    return without_times(world)
