"""The audit on hand-made books: silent on sound ones, and each violation found by its promise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from wakala import audit as audit_module
from wakala.audit import (
    NOTHING,
    Audit,
    Books,
    GivenBack,
    Report,
    Row,
    TransactionId,
    audit,
    render,
)
from wakala.output import out
from wakala.stack import Stack
from wakala.wallets import masked
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import AgentId, Currency, EntryId, Fingerprint, IdempotencyKey, Phone
from wallet_ledger.domain.letters import (
    Action,
    Arrival,
    Budget,
    Failure,
    Letter,
    LetterStatus,
    Original,
    Source,
    Standing,
    diagnose,
    discarded,
    held,
    moved,
    opened,
    released,
)
from wallet_ledger.domain.postings import Entry, NewEntry
from wallet_ledger.domain.refunds import Post, Refund, Reject, Seen, cancelled, decide_refund
from wallet_ledger.domain.transactions import (
    OfflineTransaction,
    PendingRefund,
    Reason,
    Request,
    Status,
    accept,
    open_shard,
)
from wallet_ledger.domain.wallets import (
    Credit,
    Debit,
    Movement,
    Posted,
    Rejected,
    StatusChange,
    Wallet,
    WalletStatus,
    decide,
)

PHONE = Phone("254712345678")
KES = Currency("KES")
NOW_MS = 1_780_000_000_000
NOW_S = NOW_MS // 1000


def row(
    key: str, amount: int, status: Status = Status.SYNCED, reason: str | None = None
) -> OfflineTransaction:
    request = Request(AgentId("AG-001"), IdempotencyKey(key), PHONE, amount, KES)
    accepted = accept(request, NOW_MS, open_days=7)
    return replace(accepted, status=status, reason=reason)


def debit(key: str, amount: int) -> Debit:
    return Debit(AgentId("AG-001"), IdempotencyKey(key), PHONE, amount, KES, 1, NOW_MS)


def credit(key: str, amount: int) -> Credit:
    return Credit("bank", key, PHONE, amount, KES)


def placed(transaction: OfflineTransaction) -> Row:
    """The row where the system puts it: an open one in its partition of the index."""
    is_open = transaction.status in (Status.QUEUED, Status.REFUND_REQUESTED)
    shard = open_shard(transaction.agent_id, transaction.idempotency_key)
    return Row(transaction, items.open_shard_key(shard) if is_open else None)


def letter_of(asked: Debit, letter_id: str = "L-1") -> Letter:
    """The letter that triage keeps of a debit whose queue gave it up."""
    original = Original("m-1", PHONE, "d-1", 9, NOW_MS)
    unexplained = (Source.TX_QUEUE, Failure.UNEXPLAINED, "", "")
    arrival = Arrival(letter_id, *unexplained, original, body="{}", subject=asked)
    diagnosis = diagnose(Failure.UNEXPLAINED, Standing.OPEN, Budget())
    return opened(arrival, diagnosis, Budget(), preview="{}", now_ms=NOW_MS)


def dealt_with(letter: Letter, status: LetterStatus) -> Letter:
    """The letter after somebody has acted on it."""
    return moved(letter, status, Action(NOW_MS, "ann", str(status), "because"))


LETTER = letter_of(debit("k-1", 300))
HELD = replace(placed(held(row("k-1", 300, Status.QUEUED), "L-1", NOW_MS)), letter=LETTER)


def books_of(*movements: Movement) -> Books:
    """The books that the system itself keeps of these movements."""
    decision = decide(None, movements)
    entries = [
        items.read_entry(items.entry_item(NewEntry(movement, outcome), NOW_MS))
        for movement, outcome in zip(movements, decision.outcomes, strict=True)
    ]
    return Books(PHONE, decision.after, entries)


def refund(key: str, amount: int | None, refund_id: str = "full") -> Refund:
    return Refund(
        AgentId("AG-001"), IdempotencyKey(key), PHONE, refund_id, amount, None, "why", "office"
    )


def refunded(books: Books, *asked: Refund) -> tuple[Books, Row, GivenBack]:
    """The books, the row and what went back of it, as the system leaves them after the refunds."""
    key = asked[0].idempotency_key
    debit_entry = entry(books, key)
    found = row(key, debit_entry.amount_minor)
    total, entries, kept = 0, list(books.entries), books.wallet
    for each in asked:
        seen = Seen(found, debit_entry, None, None, total, kept)
        plan = decide_refund(each, seen, NOW_MS, patient=False)
        assert isinstance(plan, Post | Reject)
        entries.append(items.read_entry(items.refund_item(each, plan, KES, NOW_MS)))
        found = plan.row_after or found
        if isinstance(plan, Post):
            kept, total = plan.wallet_after, total + plan.amount_minor
    totals = {(asked[0].agent_id, key): total}
    after = replace(books, wallet=kept, entries=entries, totals=totals)
    return after, placed(found), after.given_back()[asked[0].agent_id, key]


SOUND = books_of(
    credit("c-1", 1000),
    debit("k-1", 300),
    debit("k-2", 900),
    StatusChange("ops", "s-1", PHONE, WalletStatus.FROZEN, KES),
    debit("k-3", 100),
    credit("c-2", 50),
)
ROWS = {
    "k-1": placed(row("k-1", 300)),
    "k-2": placed(row("k-2", 900, Status.FAILED, Reason.INSUFFICIENT_FUNDS)),
    "k-3": placed(row("k-3", 100, Status.FAILED, Reason.WALLET_FROZEN)),
}


def entry(books: Books, key: str) -> Entry:
    return next(each for each in books.entries if each.reference == key)


REFUSED = entry(SOUND, "k-2")
SETTLED = entry(SOUND, "k-1")
OTHER_USE = replace(SETTLED, fingerprint=Fingerprint("another"))


def changed(books: Books, key: str, **changes: object) -> Books:
    """The books with one entry that is not as the system wrote it."""
    entries = [
        replace(each, **changes) if each.reference == key else each  # type: ignore[arg-type]
        for each in books.entries
    ]
    return replace(books, entries=entries)


def wallet(books: Books) -> Wallet:
    assert books.wallet is not None
    return books.wallet


def broken_by_books(*books: Books) -> list[str]:
    tally = Audit(NOW_S)
    for each in books:
        tally.check_books(each)
    return [violation.promise for violation in tally.report().violations]


def broken_by_transaction(
    found_row: Row | None,
    found_entry: Entry | None,
    given: GivenBack = NOTHING,
    *,
    purges: bool = False,
) -> list[str]:
    tally = Audit(NOW_S, purges=purges)
    return [each.promise for each in tally.check_transaction(found_row, found_entry, given)]


# --- sound books ---------------------------------------------------------------------------


def test_sound_books_break_no_promise_and_are_counted() -> None:
    tally = Audit(NOW_S)
    tally.check_books(SOUND)
    for key, found in ROWS.items():
        tally.count_transaction(found, entry(SOUND, key))
        assert tally.check_transaction(found, entry(SOUND, key)) == []
    report = tally.report()
    assert report.ok
    checked = {"P1": 1, "P2": 5, "P3": 4, "P4": 1, "P5": 3, "P6": 3, "P8": 3, "P9": 2}
    assert dict(report.checked) == checked


def test_a_queued_transaction_without_an_entry_is_sound() -> None:
    assert broken_by_transaction(placed(row("k-9", 1, Status.QUEUED)), None) == []


def test_an_entry_posted_after_the_balance_was_read_is_left_out() -> None:
    later = books_of(credit("c-1", 1000), debit("k-1", 300), debit("k-2", 200))
    earlier = books_of(credit("c-1", 1000), debit("k-1", 300))
    assert broken_by_books(replace(later, wallet=earlier.wallet)) == []


def test_the_refusal_of_a_reused_key_is_not_the_keys_own_entry() -> None:
    movement = debit("k-1", 999)
    refusal = NewEntry(movement, Rejected(Reason.KEY_REUSED))
    stored = items.read_entry(items.entry_item(refusal, NOW_MS))
    assert not audit_module._is_debit(stored)
    assert audit_module._is_debit(entry(SOUND, "k-1"))


# --- P1 ------------------------------------------------------------------------------------


def test_p1_a_posted_debit_that_nobody_asked_for() -> None:
    assert broken_by_transaction(None, entry(SOUND, "k-1")) == ["P1"]


def test_p1_a_missing_row_proves_nothing_where_finished_rows_are_purged() -> None:
    assert broken_by_transaction(None, entry(SOUND, "k-1"), purges=True) == []


def test_p1_a_posted_debit_of_another_amount_than_was_accepted() -> None:
    posted = replace(entry(SOUND, "k-1"), amount_minor=301)
    assert broken_by_transaction(ROWS["k-1"], posted) == ["P1"]


def test_p1_a_posted_debit_of_another_phone_than_was_accepted() -> None:
    elsewhere = replace(ROWS["k-1"].transaction, phone=Phone("254712000000"))
    assert broken_by_transaction(placed(elsewhere), entry(SOUND, "k-1")) == ["P1"]


# --- P2, P3, P4, P9: the books --------------------------------------------------------------


def test_p2_a_balance_below_zero() -> None:
    below = replace(SOUND, wallet=replace(wallet(SOUND), balance_minor=-1))
    assert "P2" in broken_by_books(below)


def test_p2_a_balance_that_was_below_zero_in_between() -> None:
    assert "P2" in broken_by_books(changed(SOUND, "k-1", outcome=Posted(2, -1)))


def test_p3_a_balance_that_is_not_the_sum_of_its_entries() -> None:
    assert "P3" in broken_by_books(replace(SOUND, wallet=replace(wallet(SOUND), balance_minor=751)))


def test_p3_a_version_that_is_missing() -> None:
    without = [each for each in SOUND.entries if each.reference != "k-1"]
    assert "P3" in broken_by_books(replace(SOUND, entries=without))


def test_p3_a_version_that_occurs_twice() -> None:
    twice = changed(SOUND, "c-2", outcome=Posted(3, 750))
    assert "P3" in broken_by_books(twice)


def test_p3_an_entry_that_remembers_another_balance() -> None:
    assert broken_by_books(changed(SOUND, "k-1", outcome=Posted(2, 699))) == ["P3"]


def test_p3_posted_entries_without_a_wallet() -> None:
    assert "P3" in broken_by_books(replace(SOUND, wallet=None))


def test_p3_an_item_that_the_books_do_not_know() -> None:
    assert broken_by_books(replace(SOUND, strange=[EntryId("loan#x#1")])) == ["P3"]


def test_p4_a_refund_that_cannot_be_read() -> None:
    unreadable = EntryId("refund#AG-001#k-1#r-1")
    assert broken_by_books(replace(SOUND, strange=[unreadable])) == ["P4"]


def test_p9_money_from_nowhere() -> None:
    assert "P9" in broken_by_books(replace(SOUND, wallet=replace(wallet(SOUND), balance_minor=751)))


def test_p9_money_to_another_account_than_the_agents() -> None:
    assert broken_by_books(changed(SOUND, "k-1", contra="agent:AG-666")) == ["P9"]
    assert broken_by_books(changed(SOUND, "c-1", contra="agent:bank")) == ["P9"]


def test_p9_currencies_are_summed_apart() -> None:
    dollars = replace(wallet(SOUND), currency=Currency("USD"))
    assert broken_by_books(replace(SOUND, wallet=dollars)).count("P9") == 2


def test_p3_p9_a_refund_is_part_of_the_chain_and_of_the_sums() -> None:
    books, _, _ = refunded(SOUND, refund("k-1", 100, "r-1"), refund("k-1", None))
    assert broken_by_books(books) == []
    assert broken_by_books(replace(books, wallet=wallet(SOUND))) == []  # posted meanwhile
    refunds = [each for each in books.entries if each.kind == "refund"]
    one = replace(books, entries=[each for each in books.entries if each is not refunds[0]])
    assert "P3" in broken_by_books(one)
    elsewhere = [
        replace(each, contra="agent:AG-666") if each is refunds[0] else each
        for each in books.entries
    ]
    assert broken_by_books(replace(books, entries=elsewhere)) == ["P9"]


# --- P4: refunds ----------------------------------------------------------------------------

PARTS = (refund("k-1", 100, "r-1"), refund("k-1", 150, "r-2"))


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ((refund("k-1", None),), Status.REFUNDED),
        (PARTS, Status.PARTIALLY_REFUNDED),
        ((*PARTS, refund("k-1", None)), Status.REFUNDED),
        ((*PARTS, refund("k-1", 51, "r-3")), Status.PARTIALLY_REFUNDED),
        ((refund("k-1", 301),), Status.SYNCED),
    ],
)
def test_refunds_that_the_system_makes_break_no_promise(
    asked: tuple[Refund, ...], status: Status
) -> None:
    books, found, given = refunded(SOUND, *asked)
    assert found.transaction.status is status
    assert broken_by_transaction(found, entry(SOUND, "k-1"), given) == []
    tally = Audit(NOW_S)
    tally.check_books(books)
    assert tally.report().ok
    assert tally.checked["P4"] == len(asked)


def test_p4_more_refunded_than_debited() -> None:
    _, found, given = refunded(SOUND, *PARTS)
    more = replace(given.refunds[1], amount_minor=201)
    changed_given = GivenBack([given.refunds[0], more], 301)
    row_too = replace(found, transaction=replace(found.transaction, refunded_minor=301))
    assert broken_by_transaction(None, SETTLED, changed_given, purges=True) == ["P4"]
    assert set(broken_by_transaction(row_too, SETTLED, changed_given)) == {"P4"}


def test_p4_a_refund_of_what_was_never_debited() -> None:
    _, _, given = refunded(SOUND, *PARTS)
    assert broken_by_transaction(None, None, given) == ["P4", "P4"]
    assert broken_by_transaction(None, REFUSED, given) == ["P4", "P4"]


def test_p4_one_refund_id_with_two_outcomes() -> None:
    _, found, given = refunded(SOUND, *PARTS)
    twice = replace(given.refunds[1], refund_id="r-1")
    said = broken_by_transaction(found, SETTLED, replace(given, refunds=[given.refunds[0], twice]))
    assert said == ["P4"]


def test_the_refusal_of_a_reused_refund_id_is_no_second_outcome() -> None:
    _, found, given = refunded(SOUND, *PARTS)
    refusal = Reject(Reason.KEY_REUSED, None, None)
    stored = items.refund_item(refund("k-1", 7, "r-1"), refusal, KES, NOW_MS)
    with_it = replace(given, refunds=[*given.refunds, items.read_entry(stored)])
    assert broken_by_transaction(found, SETTLED, with_it) == []


@pytest.mark.parametrize("total_minor", [0, 249, 251])
def test_p4_a_running_total_that_is_not_the_sum_of_the_refunds(total_minor: int) -> None:
    _, found, given = refunded(SOUND, *PARTS)
    wrong = replace(given, total_minor=total_minor)
    assert broken_by_transaction(found, SETTLED, wrong) == ["P4"]


def test_p4_a_running_total_of_a_debit_that_is_not_there() -> None:
    assert broken_by_transaction(None, None, GivenBack((), 5)) == ["P4"]


@pytest.mark.parametrize(
    ("status", "told_minor"),
    [
        (Status.SYNCED, 250),
        (Status.SYNCED, None),
        (Status.REFUNDED, 250),
        (Status.PARTIALLY_REFUNDED, 249),
        (Status.PARTIALLY_REFUNDED, None),
    ],
)
def test_p4_a_row_that_tells_of_other_refunds_than_the_ledger(
    status: Status, told_minor: int | None
) -> None:
    _, found, given = refunded(SOUND, *PARTS)
    wrong = replace(found.transaction, status=status, refunded_minor=told_minor)
    assert set(broken_by_transaction(placed(wrong), SETTLED, given)) == {"P4"}


def test_p4_a_purged_key_that_came_again_tells_of_no_refund() -> None:
    _, _, given = refunded(SOUND, *PARTS)
    again = placed(row("k-1", 300))
    assert broken_by_transaction(again, SETTLED, given, purges=True) == []
    assert set(broken_by_transaction(again, SETTLED, given)) == {"P4"}


def test_p4_a_refund_that_cancelled_has_no_entry() -> None:
    _, _, given = refunded(SOUND, refund("k-1", 301))
    gone = placed(cancelled(row("k-1", 300, Status.QUEUED), "full", NOW_MS))
    assert broken_by_transaction(gone, None) == []
    assert broken_by_transaction(gone, None, given) == ["P4"]
    another = placed(cancelled(row("k-1", 300, Status.QUEUED), "r-1", NOW_MS))
    assert broken_by_transaction(another, None, given) == []


# --- P5, P6, P8: the rows -------------------------------------------------------------------


@pytest.mark.parametrize(("overdue_s", "broken"), [(3601, ["P5"]), (3599, []), (-1, [])])
def test_p5_a_queued_row_whose_time_is_long_over(overdue_s: int, broken: list[str]) -> None:
    late = replace(row("k-9", 1, Status.QUEUED), expires_at_s=NOW_S - overdue_s)
    assert broken_by_transaction(placed(late), None) == broken


def waiting() -> OfflineTransaction:
    """A settled row whose agent has asked for it back."""
    pending = PendingRefund("full", None, "why")
    return replace(row("k-1", 300, Status.REFUND_REQUESTED), refund_request=pending)


def test_a_row_that_waits_for_its_refund_is_sound_and_swept() -> None:
    assert broken_by_transaction(placed(waiting()), SETTLED) == []
    assert broken_by_transaction(Row(waiting(), None), SETTLED) == ["P8"]
    assert broken_by_transaction(placed(waiting()), None) == ["P6"]


def test_p5_a_refund_that_nobody_would_send() -> None:
    lost = replace(waiting(), refund_request=None)
    assert broken_by_transaction(placed(lost), SETTLED) == ["P5"]
    left = replace(waiting(), status=Status.SYNCED)
    assert broken_by_transaction(placed(left), SETTLED) == ["P5"]


@pytest.mark.parametrize(
    ("status", "reason", "found"),
    [
        (Status.SYNCED, None, None),
        (Status.SYNCED, None, REFUSED),
        (Status.REFUNDED, None, None),
        (Status.FAILED, Reason.INSUFFICIENT_FUNDS, None),
        (Status.FAILED, Reason.INSUFFICIENT_FUNDS, SETTLED),
        (Status.FAILED, Reason.WALLET_FROZEN, REFUSED),
        (Status.FAILED, Reason.KEY_REUSED, None),
        (Status.FAILED, Reason.KEY_REUSED, SETTLED),
        (Status.FAILED, Reason.DISCARDED, SETTLED),
        (Status.QUEUED, None, SETTLED),
        (Status.QUEUED, None, REFUSED),
        (Status.HELD, None, SETTLED),
        (Status.EXPIRED, None, SETTLED),
        (Status.CANCELLED, None, SETTLED),
    ],
)
def test_p6_a_status_that_the_ledger_denies(
    status: Status, reason: str | None, found: Entry | None
) -> None:
    key, amount = ("k-2", 900) if found is REFUSED else ("k-1", 300)
    assert "P6" in broken_by_transaction(placed(row(key, amount, status, reason)), found)


@pytest.mark.parametrize(
    ("status", "reason", "found"),
    [
        (Status.FAILED, Reason.DISCARDED, None),
        (Status.EXPIRED, None, None),
    ],
)
def test_p6_an_end_that_needs_no_entry_is_sound(
    status: Status, reason: str | None, found: Entry | None
) -> None:
    assert broken_by_transaction(placed(row("k-1", 300, status, reason)), found) == []


def test_p6_a_key_that_was_purged_and_used_again_is_sound() -> None:
    again = placed(row("k-1", 300, Status.QUEUED))
    assert broken_by_transaction(again, SETTLED, purges=True) == []
    other = placed(row("k-1", 300, Status.FAILED, Reason.KEY_REUSED))
    assert broken_by_transaction(other, OTHER_USE, purges=True) == []


def test_p8_an_open_row_that_the_sweep_cannot_see() -> None:
    assert broken_by_transaction(Row(row("k-9", 1, Status.QUEUED), None), None) == ["P8"]


def test_p8_a_row_in_a_partition_that_is_not_its_own() -> None:
    elsewhere = (open_shard(AgentId("AG-001"), IdempotencyKey("k-9")) + 1) % 16
    misplaced = Row(row("k-9", 1, Status.QUEUED), items.open_shard_key(elsewhere))
    assert broken_by_transaction(misplaced, None) == ["P8"]


def test_p8_a_settled_row_that_the_sweep_still_sees() -> None:
    seen = Row(ROWS["k-1"].transaction, items.open_shard_key(0))
    assert broken_by_transaction(seen, SETTLED) == ["P8"]


# --- P5, P8: held rows ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [LetterStatus.WAITING, LetterStatus.PARKED])
def test_a_row_that_its_open_letter_holds_is_sound(status: LetterStatus) -> None:
    letter = LETTER if status is LetterStatus.WAITING else dealt_with(LETTER, status)
    assert letter.status is status
    assert broken_by_transaction(replace(HELD, letter=letter), None) == []


def test_what_becomes_of_a_held_row_is_sound() -> None:
    for after in (
        released(HELD.transaction, NOW_MS),
        discarded(HELD.transaction, NOW_MS),
        cancelled(HELD.transaction, "full", NOW_MS),
    ):
        assert broken_by_transaction(placed(after), None) == []


def test_p5_a_held_row_whose_letter_is_not_kept() -> None:
    assert broken_by_transaction(replace(HELD, letter=None), None) == ["P5"]
    nobodys = replace(HELD.transaction, held_by=None)
    assert broken_by_transaction(placed(nobodys), None) == ["P5"]


@pytest.mark.parametrize("status", [each for each in LetterStatus if not each.is_open])
def test_p5_a_held_row_whose_letter_is_dealt_with(status: LetterStatus) -> None:
    done = replace(HELD, letter=dealt_with(LETTER, status))
    assert broken_by_transaction(done, None) == ["P5"]


@pytest.mark.parametrize(
    "asked",
    [
        replace(debit("k-1", 300), agent_id=AgentId("AG-002")),
        debit("k-2", 300),
        replace(debit("k-1", 300), attempt=2),
    ],
)
def test_p8_a_held_row_whose_letter_is_of_another_sending(asked: Debit) -> None:
    assert broken_by_transaction(replace(HELD, letter=letter_of(asked)), None) == ["P8"]


def test_p8_a_held_row_that_the_sweep_still_sees() -> None:
    shard = placed(row("k-1", 300, Status.QUEUED)).shard
    assert broken_by_transaction(replace(HELD, shard=shard), None) == ["P8"]


@pytest.mark.parametrize(
    ("status", "found"), [(Status.QUEUED, None), (Status.SYNCED, SETTLED), (Status.EXPIRED, None)]
)
def test_p8_a_row_that_is_not_held_and_names_a_letter(status: Status, found: Entry | None) -> None:
    named = replace(row("k-1", 300, status), held_by="L-1")
    assert broken_by_transaction(placed(named), found) == ["P8"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.QUEUED, None),
        (Status.FAILED, Reason.DISCARDED),
        (Status.CANCELLED, None),
        (Status.EXPIRED, None),
    ],
)
def test_p5_a_row_that_no_entry_tells_of_and_that_is_to_be_purged(
    status: Status, reason: str | None
) -> None:
    kept = placed(row("k-1", 300, status, reason))
    assert broken_by_transaction(kept, None) == []
    assert broken_by_transaction(replace(kept, purge_at_s=NOW_S), None) == ["P5"]
    assert broken_by_transaction(replace(HELD, purge_at_s=NOW_S), None) == ["P5"]


def test_a_row_that_an_entry_tells_of_may_be_purged() -> None:
    assert broken_by_transaction(replace(ROWS["k-1"], purge_at_s=NOW_S), SETTLED) == []
    assert broken_by_transaction(replace(ROWS["k-2"], purge_at_s=NOW_S), REFUSED) == []


def test_held_rows_are_counted() -> None:
    tally = Audit(NOW_S)
    for each in (HELD, ROWS["k-2"], HELD, None):
        tally.count_transaction(each, None)
    assert tally.report().held == 2
    assert tally.report().view()["held"] == 2


# --- reading a moving system ----------------------------------------------------------------


class Reads:
    """What the tables say at each read, in place of the reading functions of the module."""

    def __init__(self, rows: Sequence[Row], books: Sequence[Books]) -> None:
        self.rows = rows
        self.books = list(books)
        self.together: tuple[Row | None, Entry | None, GivenBack] = (None, None, NOTHING)
        self.asked: list[TransactionId] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> Stack:
        monkeypatch.setattr(audit_module, "_rows", lambda _: iter(self.rows))
        monkeypatch.setattr(audit_module, "_with_letter", lambda _, row: row)
        monkeypatch.setattr(audit_module, "_ledger_phones", lambda _: {PHONE})
        monkeypatch.setattr(audit_module, "_read_books", lambda *_: self.books.pop(0))
        monkeypatch.setattr(audit_module, "_read_together", self.read_together)
        return Stack("s", "r", None, None, parameters={"RetentionDays": "0"})

    def read_together(
        self, stack: Stack, phone: Phone, transaction: TransactionId
    ) -> tuple[Row | None, Entry | None, GivenBack]:
        self.asked.append(transaction)
        return self.together


def test_a_transaction_that_settles_between_two_reads_is_no_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled = books_of(credit("c-1", 1000), debit("k-1", 300))
    reads = Reads([placed(row("k-1", 300, Status.QUEUED))], [settled])
    reads.together = (ROWS["k-1"], entry(settled, "k-1"), NOTHING)
    assert audit(reads.install(monkeypatch), NOW_S, lambda _: None).ok
    assert reads.asked == [("AG-001", "k-1")]


def test_what_still_looks_wrong_when_read_together_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    settled = books_of(credit("c-1", 1000), debit("k-1", 300))
    queued = placed(row("k-1", 300, Status.QUEUED))
    reads = Reads([queued], [settled])
    reads.together = (queued, entry(settled, "k-1"), NOTHING)
    report = audit(reads.install(monkeypatch), NOW_S, lambda _: None)
    assert [violation.promise for violation in report.violations] == ["P6"]


def test_a_wallet_that_opens_between_two_reads_is_no_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = books_of(credit("c-1", 1000))
    reads = Reads([], [replace(opened, wallet=None), opened])
    assert audit(reads.install(monkeypatch), NOW_S, lambda _: None).ok


class Tables:
    """A DynamoDB client on which refunds go on between two reads, and conflicts happen."""

    class exceptions:  # noqa: N801 - as botocore spells it
        class TransactionCanceledException(Exception):
            """Somebody writes there this moment."""

    def __init__(self, *moments: tuple[Row, int, Sequence[Entry]], conflicts: int = 0) -> None:
        self.moments = list(moments)
        self.conflicts = conflicts

    def client(self, *_: object, **__: object) -> "Tables":
        return self

    def transact_get_items(self, TransactItems: list[object]) -> dict[str, object]:  # noqa: N803
        assert len(TransactItems) == 3
        if self.conflicts:
            self.conflicts -= 1
            raise self.exceptions.TransactionCanceledException
        found, total, _ = self.moments[0]
        settled = items.entry_item(NewEntry(debit("k-1", 300), SETTLED.outcome), NOW_MS)
        responses = [items.offline_tx_item(found.transaction), settled]
        counted = [{"Item": {"refundedMinor": {"N": str(total)}}}]
        return {"Responses": [{"Item": each} for each in responses] + counted}

    def get_paginator(self, _: str) -> "Tables":
        return self

    def paginate(self, **query: object) -> list[dict[str, object]]:
        values = query["ExpressionAttributeValues"]
        assert isinstance(values, dict)
        assert values[":refunds"] == {"S": "refund#AG-001#k-1#"}
        if len(self.moments) > 1:
            self.moments.pop(0)
        return [{"Items": [STORED[each.refund_id] for each in self.moments[0][2]]}]


def _stored(asked: Refund, after: Wallet) -> dict[str, object]:
    plan = Post(asked.amount_minor or 0, 300, KES, after, None)
    return items.refund_item(asked, plan, KES, NOW_MS)


STORED: dict[str | None, dict[str, object]] = {
    each.refund_id: _stored(each, wallet(SOUND)) for each in PARTS
}


@pytest.mark.parametrize("conflicts", [0, 3])
def test_refunds_that_are_posted_while_a_suspect_is_read_again_are_no_violation(
    monkeypatch: pytest.MonkeyPatch, conflicts: int
) -> None:
    monkeypatch.setattr(audit_module, "READ_AGAIN_SECONDS", 0)
    _, one, one_back = refunded(SOUND, PARTS[0])
    _, both, both_back = refunded(SOUND, *PARTS)
    tables = Tables(
        (placed(row("k-1", 300)), 0, []),
        (one, 100, one_back.refunds),
        (both, 250, both_back.refunds),
        conflicts=conflicts,
    )
    outputs = {"OfflineTxTable": "rows", "WalletLedgerTable": "ledger"}
    stack = Stack("s", "r", None, tables, outputs)
    together = audit_module._read_together(stack, PHONE, (AgentId("AG-001"), IdempotencyKey("k-1")))
    assert Audit(NOW_S).check_transaction(*together) == []
    assert together[2].total_minor == 250


class Stored:
    """A DynamoDB client on three tables; `between` happens before each transaction of reads."""

    exceptions = Tables.exceptions

    def __init__(self, *rows: Mapping[str, Any], ledger: Sequence[Mapping[str, Any]] = ()) -> None:
        self.tables: dict[str, list[Mapping[str, Any]]] = {
            "rows": [*rows],
            "ledger": [*ledger],
            "letters": [],
        }
        self.between: list[list[Mapping[str, Any]]] = []
        self.asked: list[str] = []

    def client(self, *_: object, **__: object) -> "Stored":
        return self

    def stack(self) -> Stack:
        names = {"OfflineTxTable": "rows", "WalletLedgerTable": "ledger"}
        outputs = names | {"DeadLettersTable": "letters"}
        return Stack("s", "r", None, self, outputs, {"RetentionDays": "0"})

    def get_item(self, TableName: str, Key: object, ConsistentRead: bool) -> dict[str, Any]:  # noqa: N803
        assert ConsistentRead
        self.asked.append(TableName)
        return self._get(TableName, Key)

    def transact_get_items(self, TransactItems: list[Any]) -> dict[str, Any]:  # noqa: N803
        if self.between:
            self.tables["rows"] = self.between.pop(0)
        gets = [each["Get"] for each in TransactItems]
        self.asked.append("+".join(get["TableName"] for get in gets))
        return {"Responses": [self._get(get["TableName"], get["Key"]) for get in gets]}

    def get_paginator(self, _: str) -> "Stored":
        return self

    def paginate(self, TableName: str, **query: Any) -> Iterator[dict[str, Any]]:  # noqa: N803
        start = query.get("ExpressionAttributeValues", {}).get(":refunds", {"S": ""})["S"]
        found = self.tables[TableName]
        yield {"Items": [i for i in found if not start or i["txId"]["S"].startswith(start)]}

    def _get(self, table: str, key: Any) -> dict[str, Any]:
        found = [item for item in self.tables[table] if key.items() <= item.items()]
        return {"Item": found[0]} if found else {}


def audited(stored: Stored) -> list[str]:
    report = audit(stored.stack(), NOW_S, lambda _: None)
    return [f"{each.promise} {each.what}" for each in report.violations]


def item_of(transaction: OfflineTransaction) -> dict[str, Any]:
    """The row as the system stores it: an ended one is in no index."""
    is_open = transaction.status in (Status.QUEUED, Status.REFUND_REQUESTED)
    return items.offline_tx_item(
        transaction if is_open else replace(transaction, next_sweep_at_ms=None)
    )


def test_only_the_letters_of_held_rows_are_read_each_by_its_id() -> None:
    others = [row("k-2", 1, Status.QUEUED), row("k-3", 1, Status.EXPIRED)]
    stored = Stored(*map(item_of, [HELD.transaction, *others]))
    stored.tables["letters"] = [items.letter_item(letter_of(debit("k-2", 1), "L-2"))]
    stored.tables["letters"].append(items.letter_item(LETTER))
    assert audited(stored) == []
    assert stored.asked.count("letters") == 1
    assert not [each for each in stored.asked if "+" in each]


def test_a_row_that_is_released_before_its_letter_is_read_is_no_violation() -> None:
    stored = Stored(item_of(HELD.transaction))
    stored.tables["letters"] = [items.letter_item(dealt_with(LETTER, LetterStatus.REDRIVEN))]
    stored.between = [[item_of(released(HELD.transaction, NOW_MS))]]
    assert audited(stored) == []
    assert stored.asked[-1] == "rows+ledger+ledger"


def test_a_row_that_another_letter_holds_by_then_is_read_again_with_that_one() -> None:
    again = held(released(HELD.transaction, NOW_MS), "L-2", NOW_MS)
    stored = Stored(item_of(HELD.transaction))
    stored.tables["letters"] = [
        items.letter_item(dealt_with(LETTER, LetterStatus.REDRIVEN)),
        items.letter_item(letter_of(replace(debit("k-1", 300), attempt=2), "L-2")),
    ]
    stored.between = [stored.tables["rows"], [item_of(again)]]
    assert audited(stored) == []
    assert stored.asked[-1] == "rows+ledger+ledger+letters"


def test_a_hold_that_still_looks_wrong_when_read_together_counts() -> None:
    stored = Stored(item_of(HELD.transaction))
    assert audited(stored) == ["P5 it is held by a letter that is not kept: L-1"]
    stored.tables["letters"] = [items.letter_item(dealt_with(LETTER, LetterStatus.CLOSED))]
    assert audited(stored) == ["P5 it is held by L-1, which is closed"]
    stored.tables["letters"] = [{"id": {"S": "letter#L-1"}}]
    assert audited(stored) == ["P5 it is held by a letter that is not kept: L-1"]


def test_a_row_says_itself_when_it_is_to_be_purged() -> None:
    stored = Stored(item_of(row("k-1", 300, Status.EXPIRED)) | {"purgeAt": {"N": str(NOW_S)}})
    assert audited(stored) == ["P5 it is expired, which no entry tells of, and is to be purged"]


def test_a_row_that_nobody_can_read_is_named_and_ends_no_audit() -> None:
    posted = items.entry_item(NewEntry(debit("k-1", 300), SETTLED.outcome), NOW_MS)
    edited = item_of(row("k-1", 300)) | {"status": {"S": "limbo"}}
    stored = Stored(edited, item_of(row("k-2", 1, Status.QUEUED)), ledger=[posted])
    report = audit(stored.stack(), NOW_S, lambda _: None)
    what = "no row that anybody can read"
    assert [each.view(reveal=False) for each in report.broken("P8")] == [
        {"what": what, "agentId": "AG-001", "idempotencyKey": "k-1"}
    ]
    assert report.broken("P1") == []
    assert report.checked["P8"] == 1


def test_an_entry_that_nobody_can_read_is_named_and_ends_no_audit() -> None:
    posted = items.entry_item(NewEntry(debit("k-1", 300), SETTLED.outcome), NOW_MS)
    edited = [each | {"outcome": {"S": "maybe"}} for each in (posted, STORED["r-1"])]
    stored = Stored(item_of(ROWS["k-1"].transaction), ledger=edited)
    assert sorted(audited(stored)) == [
        "P3 no entry that the books know",
        "P4 no entry that the books know",
        "P6 it says synced, and the ledger has no posted debit",
    ]


def test_a_wallet_that_nobody_can_read_is_named_and_its_entries_are_still_in_its_books() -> None:
    entries = [
        items.entry_item(NewEntry(movement, outcome), NOW_MS)
        for movement, outcome in (
            (credit("c-1", 1000), Posted(1, 1000)),
            (debit("k-1", 300), SETTLED.outcome),
        )
    ]
    balance = items.ledger_key(PHONE, items.BALANCE) | {"status": {"S": "odd"}}
    balance |= {"balanceMinor": {"N": "700"}, "version": {"N": "2"}, "currency": {"S": "KES"}}
    stored = Stored(item_of(ROWS["k-1"].transaction), ledger=[*entries, balance])
    told = ["P3 its balance item cannot be read (status)"]
    told.append("P9 1 wallet cannot be read, and is not counted")
    assert audited(stored) == told
    entries[1] |= {"balanceAfterMinor": {"N": "1700"}}
    assert "P3 it says 1,700 is left where 700 is" in audited(stored)


def test_p9_counts_no_wallet_that_nobody_can_read_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = Audit(NOW_S)
    unread = replace(SOUND, wallet=None, unreadable="status")
    for books in (
        unread,
        unread,
        replace(SOUND, wallet=replace(wallet(SOUND), balance_minor=9999)),
    ):
        tally.check_books(books)
    out.print(render(tally.report()))
    said = capsys.readouterr().out
    assert "\nP9: wallets hold 9,999 KES, and 750 came in and stayed\n" in said
    assert "\nP9: 2 wallets cannot be read, and are not counted\n" in said


def test_of_a_running_total_the_debit_is_told_and_of_nothing_else() -> None:
    of = audit_module._original_of_total
    assert of("refunds#AG-001#k-1") == ("AG-001", "k-1")
    assert of("refund#AG-001#k-1#full") is None
    assert of("debit#AG-001#k-1") is None
    assert of("balance") is None


# --- the report -----------------------------------------------------------------------------


def test_the_report_is_what_scripts_were_promised() -> None:
    tally = Audit(NOW_S)
    tally.check_books(replace(SOUND, wallet=replace(wallet(SOUND), balance_minor=-5)))
    view = tally.report().view()
    assert view["ok"] is False
    assert [each["id"] for each in view["promises"]] == [
        "P1",
        "P2",
        "P3",
        "P4",
        "P5",
        "P6",
        "P8",
        "P9",
    ]
    p2 = view["promises"][1]
    assert set(p2) == {"id", "ok", "checked", "violations"}
    assert (p2["ok"], p2["checked"]) == (False, 5)
    assert p2["violations"] == [
        {"what": "a balance of -5", "phone": masked(PHONE), "entryId": "balance"}
    ]


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "All promises hold.\n"),
        (1, "All promises hold. Triage holds 1 transaction: wakala dead-letters list\n"),
        (1200, "All promises hold. Triage holds 1,200 transactions: wakala dead-letters list\n"),
    ],
)
def test_the_verdict_says_how_many_transactions_triage_holds(
    number: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out.print(render(Report({}, [], number)))
    assert capsys.readouterr().out.endswith(told)


def test_a_phone_is_masked_unless_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Audit(NOW_S)
    tally.check_books(replace(SOUND, wallet=replace(wallet(SOUND), balance_minor=-5)))
    out.print(render(tally.report()))
    assert PHONE not in capsys.readouterr().out
    out.print(render(tally.report(), reveal=True))
    assert PHONE in capsys.readouterr().out
