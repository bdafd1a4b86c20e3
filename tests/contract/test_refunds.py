"""`RefundBooks` and `RefundDesk`: all stands as it was seen, or nothing is written."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest

from tests.contract.places import Place
from tests.fakes.memory import START_MS
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import (
    AGENT,
    KES,
    PHONE,
    USD,
    credit,
    debit,
    posting,
    refund,
    request,
    row_of,
    status_change,
    waiting,
    wallet,
)
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.postings import Committed, Entry, Moved
from wallet_ledger.domain.refunds import (
    Answered,
    Cancel,
    Post,
    Refund,
    Reject,
    Seen,
    Wait,
    cancelled,
    decide_refund,
)
from wallet_ledger.domain.transactions import OfflineTransaction, PendingRefund, Reason, Status
from wallet_ledger.domain.wallets import Posted, Rejected, WalletStatus

NOW_MS = START_MS + 5_000
KEY = IdempotencyKey("K-1")
RETENTION_DAYS = 90


class Books:
    """A wallet of 1,000 and its debit of 100, as far as it has come."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.books = place.refund_books()
        assert place.ledger().post(posting(None, credit("C-1", 1_000))) == Committed()
        place.put_row(row_of(debit()))

    def settle(self, **changes: Any) -> None:
        """The debit is taken, or refused where its amount says so."""
        seen = self.place.ledger().wallet(PHONE)
        assert self.place.ledger().post(posting(seen, debit(**changes))) == Committed()

    def refund(self, asked: Refund, *, patient: bool = True) -> object:
        """Look, decide, write, as the function does where nobody interferes."""
        seen, decided = self.look(asked, patient=patient)
        return self.books.write(asked, seen, decided, NOW_MS)

    def look(
        self, asked: Refund, *, patient: bool = True
    ) -> tuple[Seen, Answered | Cancel | Post | Reject]:
        """What is seen, and what follows from it."""
        seen = self.books.see(asked)
        decided = decide_refund(asked, seen, NOW_MS, patient=patient)
        assert not isinstance(decided, Wait)
        return seen, decided

    def row(self, key: IdempotencyKey = KEY) -> OfflineTransaction:
        """The row as of now."""
        row = self.place.accepted().find(AGENT, key)
        assert row is not None
        return row

    def wait_for(self, refund_id: str = "R-1", amount_minor: int | None = None) -> None:
        """The agent asks."""
        row = self.row()
        assert self.place.refund_desk().move(row, waiting(row, refund_id, amount_minor), refund_id)

    def balance_minor(self) -> int:
        """What the wallet holds."""
        held = self.place.ledger().wallet(PHONE)
        assert held is not None
        return held.balance_minor

    def entry(self, entry_id: str) -> Entry | None:
        """An entry of the wallet."""
        found = [e for e in self.place.entries(PHONE) if e.entry_id == entry_id]
        return found[0] if found else None

    def check(self) -> None:
        """The books add up."""
        rows = [self.row()] if self.place.accepted().find(AGENT, KEY) else []
        wallet, entries = self.place.ledger().wallet(PHONE), self.place.entries(PHONE)
        assert_books_add_up(wallet, entries, rows, self.place.refund_totals(PHONE))


@pytest.fixture
def books(place: Place) -> Books:
    """The row is queued."""
    return Books(place)


@pytest.fixture
def settled(books: Books) -> Books:
    """The debit is posted."""
    books.settle()
    return books


# --- what is seen ---------------------------------------------------------------------------------


def test_nothing_is_seen_where_nothing_is(place: Place) -> None:
    assert place.refund_books().see(refund()) == Seen(None, None, None, None, 0, None)
    assert place.refund_desk().debit(row_of(debit())) is None
    assert place.refund_desk().refund(row_of(debit()), "R-1") is None


def test_all_that_counts_is_seen_as_it_is_now(settled: Books) -> None:
    settled.refund(refund("R-1", 30))
    settled.refund(refund("R-1", 31))
    asked = refund("R-1", 31)

    seen = settled.books.see(asked)

    base = f"refund#{AGENT}#K-1#R-1"
    assert seen == Seen(
        row=settled.row(),
        debit=settled.entry(f"debit#{AGENT}#K-1"),
        refund=settled.entry(base),
        reused=settled.entry(f"{base}#{asked.fingerprint[:16]}"),
        refunded_minor=30,
        wallet=wallet(930, version=3),
    )
    assert None not in (seen.debit, seen.refund, seen.reused)
    assert settled.books.see(refund("R-1", 30)).reused is None


def test_another_phone_agent_or_key_sees_none_of_it_but_the_row(settled: Books) -> None:
    settled.refund(refund("R-1", 30))
    nobodys = Seen(None, None, None, None, 0, wallet(930, version=3))

    assert settled.books.see(refund(agent_id="AG-002")) == nobodys
    assert settled.books.see(refund(key="K-2")) == nobodys
    assert settled.books.see(refund(phone="254700000001")) == Seen(
        settled.row(), None, None, None, 0, None
    )


def test_ingest_finds_a_debit_and_the_answer_of_one_refund_id(settled: Books) -> None:
    settled.refund(refund("R-1", 30))
    settled.refund(refund("R-1", 31))
    desk, row = settled.place.refund_desk(), settled.row()
    given_back = desk.refund(row, "R-1")

    assert desk.debit(row) == settled.entry(f"debit#{AGENT}#K-1")
    assert given_back == settled.entry(f"refund#{AGENT}#K-1#R-1")
    assert given_back is not None
    assert given_back.outcome == Posted(3, 930)
    assert desk.refund(row, "R-2") is None
    for other in (
        replace(row, agent_id=AgentId("AG-002")),
        replace(row, phone=Phone("254700000001")),
    ):
        assert (desk.debit(other), desk.refund(other, "R-1")) == (None, None)


# --- what is written ------------------------------------------------------------------------------


def test_a_posted_refund_moves_entry_total_balance_and_row_together(settled: Books) -> None:
    asked = refund("R-1", 30, requested_by="desk")

    assert settled.refund(asked) == Committed()

    row = settled.row()
    assert (row.status, row.refunded_minor) == (Status.PARTIALLY_REFUNDED, 30)
    assert (row.updated_at_ms, row.next_sweep_at_ms) == (NOW_MS, None)
    assert settled.place.ledger().wallet(PHONE) == wallet(930, version=3)
    assert settled.books.see(refund("R-2")).refunded_minor == 30
    assert settled.entry(f"refund#{AGENT}#K-1#R-1") == Entry(
        phone=PHONE,
        entry_id=settled.books.see(asked).refund.entry_id,  # type: ignore[union-attr]
        kind="refund",
        actor=AGENT,
        reference="K-1",
        fingerprint=asked.fingerprint,
        outcome=Posted(3, 930),
        currency=KES,
        amount_minor=30,
        contra=f"agent:{AGENT}",
        wallet_status=None,
        created_at_ms=NOW_MS,
        refund_id="R-1",
    )
    settled.check()


def test_many_refunds_reach_exactly_the_original_and_not_one_unit_more(settled: Books) -> None:
    for number, amount_minor in enumerate((30, 30, 39), start=1):
        assert settled.refund(refund(f"R-{number}", amount_minor)) == Committed()
        settled.check()
    settled.refund(refund("R-4", 2))
    settled.refund(refund("R-5"))

    assert settled.balance_minor() == 1_000
    assert settled.row().status is Status.REFUNDED
    refused = settled.entry(f"refund#{AGENT}#K-1#R-4")
    assert refused is not None
    assert (refused.outcome, refused.remaining_minor) == (Rejected(Reason.EXCEEDS_ORIGINAL), 1)
    settled.check()


def test_p7_a_refusal_is_an_entry_and_moves_nothing_else(settled: Books) -> None:
    before = (settled.row(), settled.place.ledger().wallet(PHONE))

    assert settled.refund(refund("R-1", 101)) == Committed()

    assert (settled.row(), settled.place.ledger().wallet(PHONE)) == before
    entry = settled.entry(f"refund#{AGENT}#K-1#R-1")
    assert entry is not None
    assert entry.outcome == Rejected(Reason.EXCEEDS_ORIGINAL)
    assert (entry.amount_minor, entry.remaining_minor, entry.currency) == (101, 100, KES)
    settled.check()


def test_p4_of_one_id_the_first_outcome_stands_and_another_content_gets_a_place_of_its_own(
    settled: Books,
) -> None:
    settled.refund(refund("R-1", 30))
    first = settled.entry(f"refund#{AGENT}#K-1#R-1")
    for amount_minor in (31, 32, None):
        assert settled.refund(refund("R-1", amount_minor)) == Committed()

    entries = [e for e in settled.place.entries(PHONE) if e.kind == "refund"]
    assert first in entries
    refused = [e for e in entries if e.outcome == Rejected(Reason.KEY_REUSED)]
    assert sorted(e.amount_minor for e in refused) == [0, 31, 32]
    assert {e.refund_id for e in entries} == {"R-1"}
    assert settled.balance_minor() == 930
    settled.check()


@pytest.mark.parametrize(("currency", "kept"), [(None, "XXX"), ("USD", "USD")])
def test_a_refund_of_nothing_is_refused_under_the_currency_that_was_asked(
    place: Place, currency: str | None, kept: str
) -> None:
    books, asked = place.refund_books(), refund("R-1", 5, currency=currency)
    seen = books.see(asked)
    decided = decide_refund(asked, seen, NOW_MS, patient=False)
    assert isinstance(decided, Reject)

    assert books.write(asked, seen, decided, NOW_MS) == Committed()

    [entry] = place.entries(PHONE)
    assert entry.outcome == Rejected(Reason.ORIGINAL_NOT_FOUND)
    assert entry.currency == Currency(kept)


def test_a_cancellation_writes_the_row_and_nothing_else(books: Books) -> None:
    wallet_before, entries = books.place.ledger().wallet(PHONE), books.place.entries(PHONE)

    assert books.refund(refund()) == Committed()

    row = books.row()
    assert (row.status, row.cancelled_by, row.next_sweep_at_ms) == (Status.CANCELLED, "R-1", None)
    assert books.place.ledger().wallet(PHONE) == wallet_before
    assert books.place.entries(PHONE) == entries


def test_a_cancelled_debit_can_no_longer_be_posted(books: Books) -> None:
    books.refund(refund())
    before = books.place.everything()

    answer = books.place.ledger().post(posting(wallet(), debit()))

    assert answer != Committed()
    assert books.place.everything() == before


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (refund("R-1", 30), Status.PARTIALLY_REFUNDED),
        (refund("R-1", 100), Status.REFUNDED),
        (refund("R-1", 101), Status.SYNCED),
    ],
)
def test_a_row_that_waits_is_told_in_the_same_write_and_leaves_the_index(
    settled: Books, asked: Refund, status: Status
) -> None:
    settled.wait_for("R-1", asked.amount_minor)
    assert settled.row().status is Status.REFUND_REQUESTED

    assert settled.refund(asked) == Committed()

    row = settled.row()
    assert (row.status, row.refund_request, row.next_sweep_at_ms) == (status, None, None)
    shards = settled.place.open_transactions()
    assert not [each for shard in range(16) for each in shards.open_rows(shard, 10)]
    settled.check()


def test_a_back_office_refund_leaves_the_agents_request_waiting_with_its_new_total(
    settled: Books,
) -> None:
    settled.wait_for("R-9", 50)
    waits = settled.row()

    settled.refund(refund("R-1", 30))

    assert settled.row() == replace(waits, refunded_minor=30, updated_at_ms=NOW_MS)
    settled.refund(refund("R-9", 50))
    assert settled.row().status is Status.PARTIALLY_REFUNDED
    assert settled.row().refunded_minor == 80
    settled.check()


def test_an_answer_from_before_only_tells_the_row(settled: Books) -> None:
    settled.refund(refund("R-1", 101))
    settled.place.put_row(waiting(settled.row(), "R-1", 101))
    entries = settled.place.entries(PHONE)

    assert settled.refund(refund("R-1", 101)) == Committed()

    assert settled.row().status is Status.SYNCED
    assert settled.place.entries(PHONE) == entries


def test_a_year_later_a_refund_needs_no_row(settled: Books) -> None:
    settled.place.purge(AGENT, KEY)

    assert settled.refund(refund("R-1", 30)) == Committed()
    assert settled.refund(refund("R-2")) == Committed()

    assert settled.balance_minor() == 1_000
    assert settled.place.accepted().find(AGENT, KEY) is None
    settled.check()


def test_a_purged_debit_goes_back_in_its_own_currency_whatever_its_key_means_since(
    settled: Books,
) -> None:
    settled.place.purge(AGENT, KEY)
    settled.place.put_row(row_of(request(currency="USD"), Status.SYNCED))

    assert settled.refund(refund("R-1", 30)) == Committed()
    assert settled.refund(refund("R-2", 71)) == Committed()

    posted, rejected = (settled.entry(f"refund#{AGENT}#K-1#R-{n}") for n in (1, 2))
    assert posted is not None
    assert rejected is not None
    assert isinstance(posted.outcome, Posted)
    assert rejected.outcome == Rejected(Reason.EXCEEDS_ORIGINAL)
    assert (posted.currency, rejected.currency) == (KES, KES)


# --- what stops a write ---------------------------------------------------------------------------


def others_refund(books: Books) -> None:
    books.refund(refund("R-9", 10))


def others_credit(books: Books) -> None:
    seen = books.place.ledger().wallet(PHONE)
    assert books.place.ledger().post(posting(seen, credit("C-2", 5))) == Committed()


def others_freeze(books: Books) -> None:
    seen = books.place.ledger().wallet(PHONE)
    assert books.place.ledger().post(posting(seen, status_change("S-1"))) == Committed()


def agents_request(books: Books) -> None:
    books.wait_for("R-9", 10)


def own_delivery(books: Books) -> None:
    books.refund(refund("R-1", 60))


def purge(books: Books) -> None:
    books.place.purge(AGENT, KEY)


def another_request_under_the_key(books: Books) -> None:
    books.place.put_row(row_of(request(amount_minor=70), Status.SYNCED))


@pytest.mark.parametrize(
    "interferes",
    [
        others_refund,
        others_credit,
        others_freeze,
        agents_request,
        own_delivery,
        purge,
        another_request_under_the_key,
    ],
)
def test_whatever_moves_between_look_and_write_stops_a_posting(
    settled: Books, interferes: Callable[[Books], None]
) -> None:
    asked = refund("R-1", 60)
    seen, decided = settled.look(asked)
    interferes(settled)
    before = settled.place.everything()

    assert settled.books.write(asked, seen, decided, NOW_MS) == Moved()

    assert settled.place.everything() == before


@pytest.mark.parametrize(
    "interferes",
    [others_refund, agents_request, own_delivery, purge, another_request_under_the_key],
)
def test_what_a_refusal_stands_on_stops_it_where_it_moves(
    settled: Books, interferes: Callable[[Books], None]
) -> None:
    asked = refund("R-1", 101)
    seen, decided = settled.look(asked)
    if interferes is own_delivery:
        settled.refund(asked)
    else:
        interferes(settled)
    before = settled.place.everything()

    assert settled.books.write(asked, seen, decided, NOW_MS) == Moved()

    assert settled.place.everything() == before


@pytest.mark.parametrize("interferes", [others_credit, others_freeze])
def test_a_balance_that_moves_does_not_stop_a_refusal(
    settled: Books, interferes: Callable[[Books], None]
) -> None:
    asked = refund("R-1", 101)
    seen, decided = settled.look(asked)
    interferes(settled)

    assert settled.books.write(asked, seen, decided, NOW_MS) == Committed()
    settled.check()


def test_a_refusal_of_nothing_is_stopped_by_a_row_that_appears(place: Place) -> None:
    books, asked = place.refund_books(), refund()
    seen = books.see(asked)
    decided = decide_refund(asked, seen, NOW_MS, patient=False)
    assert isinstance(decided, Reject)
    place.put_row(row_of(debit()))
    before = place.everything()

    assert books.write(asked, seen, decided, NOW_MS) == Moved()

    assert place.everything() == before


def settles(books: Books) -> None:
    books.settle()


def swept(books: Books) -> None:
    row = books.row()
    assert books.place.refund_desk().move(row, replace(row, attempt=2, queued_at_ms=1), "R-9")


def cancelled_by_another(books: Books) -> None:
    books.refund(refund("R-9"))


@pytest.mark.parametrize("interferes", [settles, swept, cancelled_by_another, purge])
def test_a_cancellation_is_stopped_by_whatever_came_first(
    books: Books, interferes: Callable[[Books], None]
) -> None:
    asked = refund()
    seen, decided = books.look(asked)
    assert isinstance(decided, Cancel)
    interferes(books)
    before = books.place.everything()

    assert books.books.write(asked, seen, decided, NOW_MS) == Moved()

    assert books.place.everything() == before


def test_p4_the_bound_is_in_the_write_itself(settled: Books) -> None:
    """Whatever a decision says, no write takes the total above the original."""
    settled.refund(refund("R-1", 60))
    asked = refund("R-2", 41)
    seen = settled.books.see(asked)
    wrong = Post(41, 100, KES, wallet(1_001, version=4), replace(settled.row(), refunded_minor=101))
    before = settled.place.everything()

    assert settled.books.write(asked, seen, wrong, NOW_MS) == Moved()

    assert settled.place.everything() == before


def nothing_before(_: Books) -> None:
    """The row is as its debit left it."""


def refunded_before(books: Books) -> None:
    books.refund(refund("R-0", 10))


OTHER_STATE: list[tuple[Callable[[Books], None], dict[str, Any]]] = [
    (nothing_before, {"status": Status.PARTIALLY_REFUNDED}),
    (nothing_before, {"fingerprint": request(amount_minor=70).fingerprint}),
    (nothing_before, {"refunded_minor": 10}),
    (nothing_before, {"refund_request": PendingRefund("R-9", 10, "x")}),
    (refunded_before, {"refunded_minor": 11}),
    (refunded_before, {"refunded_minor": None}),
    (agents_request, {"refund_request": PendingRefund("R-8", 10, "x")}),
    (agents_request, {"refund_request": None}),
]
"""What comes first, and the one thing in which the row then differs from what was seen of it."""


@pytest.mark.parametrize("amount_minor", [60, 101], ids=["posted", "refused"])
@pytest.mark.parametrize(("first", "changes"), OTHER_STATE)
def test_a_refund_stands_on_every_part_of_the_row_as_it_was_seen(
    settled: Books, first: Callable[[Books], None], changes: dict[str, Any], amount_minor: int
) -> None:
    first(settled)
    asked = refund("R-1", amount_minor)
    seen, decided = settled.look(asked)
    settled.place.put_row(replace(settled.row(), **changes))
    before = settled.place.everything()

    assert settled.books.write(asked, seen, decided, NOW_MS) == Moved()

    assert settled.place.everything() == before


@pytest.mark.parametrize("amount_minor", [15, 101], ids=["posted", "refused"])
@pytest.mark.parametrize("total_minor", [0, 20, 40])
def test_p4_a_refund_stands_on_the_total_as_it_was_seen(
    settled: Books, total_minor: int, amount_minor: int
) -> None:
    settled.refund(refund("R-0", 30))
    asked = refund("R-1", amount_minor)
    wrong = replace(settled.books.see(asked), refunded_minor=total_minor)
    decided = decide_refund(asked, wrong, NOW_MS, patient=True)
    assert isinstance(decided, Post | Reject)
    before = settled.place.everything()

    assert settled.books.write(asked, wrong, decided, NOW_MS) == Moved()

    assert settled.place.everything() == before


@pytest.mark.parametrize(
    "changes", [{"status": WalletStatus.FROZEN}, {"currency": USD}, {"version": 1}, {"version": 3}]
)
def test_a_posting_stands_on_every_part_of_the_wallet_as_it_was_seen(
    settled: Books, changes: dict[str, Any]
) -> None:
    asked = refund("R-1", 60)
    seen, decided = settled.look(asked)
    assert seen.wallet is not None
    wrong = replace(seen, wallet=replace(seen.wallet, **changes))
    before = settled.place.everything()

    assert settled.books.write(asked, wrong, decided, NOW_MS) == Moved()

    assert settled.place.everything() == before


def test_p2_no_refund_covers_up_a_balance_below_zero(settled: Books) -> None:
    """There can be none; if there is, a person must see it before anything is written upon it."""
    seen = settled.place.ledger().wallet(PHONE)
    assert seen is not None
    settled.place.put_row(row_of(debit("K-9", 901)))
    overdraft = posting(replace(seen, balance_minor=10**6), debit("K-9", 901))
    unguarded = replace(overdraft, needed_minor=900)
    assert settled.place.ledger().post(unguarded) == Committed()
    assert settled.balance_minor() == -1
    asked = refund("R-1", 60)
    before = settled.place.everything()

    assert settled.books.write(asked, *settled.look(asked), NOW_MS) == Moved()

    assert settled.place.everything() == before


def test_of_many_at_once_that_each_take_most_exactly_one_is_written(settled: Books) -> None:
    looks = [(refund(f"R-{n}", 60), *settled.look(refund(f"R-{n}", 60))) for n in range(6)]
    barrier = Barrier(len(looks))

    def write(look: tuple[Refund, Seen, Any]) -> object:
        barrier.wait()
        return settled.books.write(*look, NOW_MS)

    with ThreadPoolExecutor(len(looks)) as pool:
        answers = list(pool.map(write, looks))

    assert answers.count(Committed()) == 1
    assert settled.balance_minor() == 960
    settled.check()


# --- retention ------------------------------------------------------------------------------------


def test_retention_begins_again_with_each_refund_and_never_for_who_waits_or_is_cancelled(
    place: Place,
) -> None:
    books = Books(place)
    books.books = place.refund_books(retention_days=RETENTION_DAYS)
    books.settle()
    books.refund(refund("R-1", 30))
    assert place.purge_at_s(AGENT, KEY) == NOW_MS // 1000 + RETENTION_DAYS * 86_400

    books.wait_for("R-9", 10)
    assert place.purge_at_s(AGENT, KEY) is None
    books.refund(refund("R-2", 30))
    assert place.purge_at_s(AGENT, KEY) is None
    books.refund(refund("R-9", 10))
    assert place.purge_at_s(AGENT, KEY) is not None


def test_a_cancelled_row_is_never_purged_since_no_entry_remembers_it(place: Place) -> None:
    books = Books(place)
    books.books = place.refund_books(retention_days=RETENTION_DAYS)

    books.refund(refund())

    assert books.row().status is Status.CANCELLED
    assert place.purge_at_s(AGENT, KEY) is None


def test_without_retention_nothing_is_purged(settled: Books) -> None:
    settled.refund(refund())

    assert settled.place.purge_at_s(AGENT, KEY) is None


# --- a row moved by ingest ------------------------------------------------------------------------

BEFORE = {
    "queued": row_of(request()),
    "held": row_of(request(), Status.HELD),
    "settled": row_of(request(), Status.SYNCED),
    "partly": replace(row_of(request(), Status.PARTIALLY_REFUNDED), refunded_minor=40),
}
AFTER = {
    "queued": cancelled(BEFORE["queued"], "R-1", NOW_MS),
    "held": cancelled(BEFORE["held"], "R-1", NOW_MS),
    "settled": waiting(BEFORE["settled"]),
    "partly": waiting(BEFORE["partly"], "R-1", 60),
}


@pytest.mark.parametrize("name", BEFORE)
def test_a_row_that_is_as_before_moves_and_is_found_as_it_was_moved(
    place: Place, name: str
) -> None:
    place.put_row(BEFORE[name])

    assert place.refund_desk().move(BEFORE[name], AFTER[name], "R-9") is True

    assert place.accepted().find(AGENT, KEY) == AFTER[name]
    shards = place.open_transactions()
    opened = [each.status for shard in range(16) for each in shards.open_rows(shard, 10)]
    waits = AFTER[name].status is Status.REFUND_REQUESTED
    assert opened == ([Status.REFUND_REQUESTED] if waits else [])


@pytest.mark.parametrize(
    "changes",
    [
        {"status": Status.PARTIALLY_REFUNDED},
        {"fingerprint": request(amount_minor=70).fingerprint},
        {"attempt": 2},
        {"refunded_minor": 41},
        {"refunded_minor": None},
        {"refund_request": PendingRefund("R-9", None, "x")},
    ],
    ids=repr,
)
def test_a_row_that_is_not_as_before_stays_as_it_is(place: Place, changes: dict[str, Any]) -> None:
    before = replace(BEFORE["settled"], refunded_minor=40)
    place.put_row(replace(before, **changes))
    held = place.everything()

    assert place.refund_desk().move(before, waiting(before), "R-9") is False

    assert place.everything() == held


def test_a_row_that_was_refunded_meanwhile_stays_as_it_is(place: Place) -> None:
    place.put_row(replace(BEFORE["settled"], refunded_minor=40))
    held = place.everything()

    assert place.refund_desk().move(BEFORE["settled"], AFTER["settled"], "R-9") is False

    assert place.everything() == held


def test_a_row_that_is_not_there_does_not_appear(place: Place) -> None:
    assert place.refund_desk().move(BEFORE["queued"], AFTER["queued"], "R-9") is False
    assert place.accepted().find(AGENT, KEY) is None


def test_a_move_keeps_what_it_does_not_change(place: Place) -> None:
    """The sweep may have moved what no refund is decided on."""
    place.put_row(replace(BEFORE["partly"], queued_at_ms=7, captured_at="2026-01-01T00:00:00Z"))

    assert place.refund_desk().move(
        BEFORE["partly"], replace(BEFORE["partly"], reason="DISCARDED"), "R-9"
    )

    found = place.accepted().find(AGENT, KEY)
    assert found is not None
    assert (found.queued_at_ms, found.captured_at) == (7, "2026-01-01T00:00:00Z")
    assert found.reason == "DISCARDED"


# --- a refund id that is decided ------------------------------------------------------------------


@pytest.mark.parametrize("amount_minor", [30, 101])
def test_p4_no_row_moves_for_a_refund_id_that_is_decided(settled: Books, amount_minor: int) -> None:
    row = settled.row()
    settled.refund(refund("R-1", amount_minor))
    settled.place.put_row(row)  # as if the refund had left it alone
    held = settled.place.everything()

    assert settled.place.refund_desk().move(row, waiting(row), "R-1") is False
    assert settled.place.everything() == held
    assert settled.place.refund_desk().move(row, waiting(row, "R-2"), "R-2") is True


def test_p4_no_debit_is_cancelled_under_a_refund_id_that_is_decided(books: Books) -> None:
    seen, decided = books.look(refund("R-1"))
    assert isinstance(decided, Cancel)
    books.refund(refund("R-1", 101))
    before = books.place.everything()

    assert books.books.write(refund("R-1"), seen, decided, NOW_MS) == Moved()
    assert books.place.everything() == before


def test_a_refusal_of_a_purged_debit_stands_on_the_total_as_it_was_seen(settled: Books) -> None:
    settled.place.purge(AGENT, KEY)
    settled.refund(refund("R-0", 10))
    seen, decided = settled.look(refund("R-1", 91))
    assert isinstance(decided, Reject)
    settled.refund(refund("R-9", 10))
    before = settled.place.everything()

    assert settled.books.write(refund("R-1", 91), seen, decided, NOW_MS) == Moved()
    assert settled.place.everything() == before
