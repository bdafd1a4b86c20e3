"""What becomes of a refund: every rule, and which comes first where two apply."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.memory import START_MS
from tests.fakes.samples import KES, PHONE, USD, debit, refund, row_of, waiting, wallet
from wallet_ledger.aws import items
from wallet_ledger.domain.postings import Entry, NewEntry
from wallet_ledger.domain.refunds import (
    FULL,
    NOTE_BYTES_MAX,
    Answered,
    Cancel,
    Decision,
    Post,
    Refund,
    Reject,
    Seen,
    Wait,
    decide_refund,
    is_note,
    original_of,
    posted,
)
from wallet_ledger.domain.transactions import (
    AMOUNT_MINOR_MAX,
    SWEEP_AFTER_MS,
    OfflineTransaction,
    Reason,
    Status,
)
from wallet_ledger.domain.wallets import Outcome, Posted, Rejected, WalletStatus

NOW_MS = START_MS + 60_000
OTHER_PHONE = "254700000001"
SETTLED = row_of(debit(), Status.SYNCED)
PARTLY = replace(row_of(debit(), Status.PARTIALLY_REFUNDED), refunded_minor=40)
DONE = replace(row_of(debit(), Status.REFUNDED), refunded_minor=100)
ENDED = (Status.FAILED, Status.EXPIRED, Status.CANCELLED)
OPEN = (Status.QUEUED, Status.HELD)
DEBITED = Posted(2, 900)
FINGERPRINTS = {
    "all": "2fd50e6a730dd31ddf2f60fd463b6d84b3e679de1f63c0b2c539cf9813a5e425",
    "a part": "0567accafaabf4eb4bcde7ebd779a149bd2354192363aeb81fa692133924cc9e",
}


def entry_of_debit(outcome: Outcome = DEBITED) -> Entry:
    """The entry of the original."""
    return items.read_entry(items.entry_item(NewEntry(debit(), outcome), START_MS))


def entry_of(asked: Refund, outcome: Outcome) -> Entry:
    """The entry that a refund was answered with."""
    decided: Post | Reject = Reject(Reason.MISMATCH, None, None)
    if isinstance(outcome, Posted):
        after = wallet(outcome.balance_after_minor, version=outcome.version)
        decided = Post(asked.amount_minor or 100, 100, KES, after, None)
    else:
        decided = Reject(outcome.reason, None, None)
    return items.read_entry(items.refund_item(asked, decided, KES, START_MS))


def seen(
    row: OfflineTransaction | None = None,
    *,
    debited: Entry | None = None,
    refunded: Entry | None = None,
    reused: Entry | None = None,
    refunded_minor: int | None = None,
) -> Seen:
    """What is there; the running total is the row's where nothing else is said."""
    total = (row.refunded_minor or 0) if row else 0
    return Seen(
        row=row,
        debit=debited,
        refund=refunded,
        reused=reused,
        refunded_minor=total if refunded_minor is None else refunded_minor,
        wallet=wallet(900, version=2),
    )


def decide(asked: Refund, what: Seen, *, patient: bool = True) -> Decision:
    """At one moment."""
    return decide_refund(asked, what, NOW_MS, patient=patient)


def reason_of(decision: Decision) -> Reason:
    """Why it was refused, just now."""
    assert isinstance(decision, Reject)
    return decision.reason


# --- after settlement -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "row", "amount_minor", "status"),
    [
        (refund(), SETTLED, 100, Status.REFUNDED),
        (refund("R-1", 100), SETTLED, 100, Status.REFUNDED),
        (refund("R-1", 1), SETTLED, 1, Status.PARTIALLY_REFUNDED),
        (refund("R-1", 99), SETTLED, 99, Status.PARTIALLY_REFUNDED),
        (refund(), PARTLY, 60, Status.REFUNDED),
        (refund("R-1", 60), PARTLY, 60, Status.REFUNDED),
        (refund("R-1", 59), PARTLY, 59, Status.PARTIALLY_REFUNDED),
    ],
)
def test_what_is_asked_or_all_that_remains_goes_back(
    asked: Refund, row: OfflineTransaction, amount_minor: int, status: Status
) -> None:
    total_minor = (row.refunded_minor or 0) + amount_minor

    decision = decide(asked, seen(row))

    assert decision == Post(
        amount_minor=amount_minor,
        original_minor=100,
        currency=KES,
        wallet_after=wallet(900 + amount_minor, version=3),
        row_after=replace(row, status=status, refunded_minor=total_minor, updated_at_ms=NOW_MS),
    )
    assert posted(decision) == Posted(3, 900 + amount_minor)


@pytest.mark.parametrize(
    ("asked", "row", "remaining_minor"),
    [
        (refund("R-1", 101), SETTLED, 100),
        (refund("R-1", AMOUNT_MINOR_MAX), SETTLED, 100),
        (refund("R-1", 61), PARTLY, 60),
        (refund("R-1", 1), DONE, 0),
        (refund(), DONE, 0),
    ],
)
def test_more_than_what_remains_takes_nothing_and_says_what_remains(
    asked: Refund, row: OfflineTransaction, remaining_minor: int
) -> None:
    decision = decide(asked, seen(row))

    assert decision == Reject(Reason.EXCEEDS_ORIGINAL, remaining_minor, row_after=None)


@pytest.mark.parametrize("amount_minor", [0, -1, -(10**12)])
def test_an_amount_that_no_edge_lets_through_takes_nothing_either(amount_minor: int) -> None:
    assert reason_of(decide(refund("R-1", amount_minor), seen(SETTLED))) is Reason.EXCEEDS_ORIGINAL


def test_c14_of_three_fulls_under_three_ids_the_first_completes_and_the_others_find_0() -> None:
    first = decide(refund("R-1"), seen(SETTLED))
    assert isinstance(first, Post)
    assert first.row_after is not None

    for refund_id in ("R-2", "R-3"):
        later = decide(refund(refund_id), seen(first.row_after))
        assert later == Reject(Reason.EXCEEDS_ORIGINAL, 0, row_after=None)


def test_the_running_total_counts_and_not_what_the_row_says_of_it() -> None:
    """A row that was purged and accepted again knows of no refund."""
    decision = decide(refund(), seen(SETTLED, refunded_minor=40))

    assert isinstance(decision, Post)
    assert decision.amount_minor == 60
    assert decision.row_after is not None
    assert (decision.row_after.status, decision.row_after.refunded_minor) == (Status.REFUNDED, 100)


def test_a_frozen_wallet_takes_a_refund_and_stays_frozen() -> None:
    frozen = wallet(900, version=2, status=WalletStatus.FROZEN)

    decision = decide(refund(), replace(seen(SETTLED), wallet=frozen))

    assert isinstance(decision, Post)
    assert decision.wallet_after == replace(frozen, balance_minor=1000, version=3)


@pytest.mark.parametrize("what", [seen(SETTLED), seen(None, debited=entry_of_debit())])
def test_a_settled_debit_without_a_wallet_is_no_refusal_but_a_violation(what: Seen) -> None:
    with pytest.raises(ValueError, match="without a wallet"):
        decide(refund(), replace(what, wallet=None))


# --- a purged row: the entry of the debit stands for it -------------------------------------------


def test_a_year_later_the_debits_entry_stands_for_its_row() -> None:
    decision = decide(refund("R-1", 30), seen(None, debited=entry_of_debit(), refunded_minor=40))

    assert decision == Post(30, 100, KES, wallet(930, version=3), row_after=None)


def test_a_year_later_too_no_more_than_what_remains_goes_back() -> None:
    what = seen(None, debited=entry_of_debit(), refunded_minor=40)

    assert decide(refund("R-1", 61), what) == Reject(Reason.EXCEEDS_ORIGINAL, 60, None)


def test_c19_a_rejected_debit_whose_row_is_gone_gives_nothing_back() -> None:
    declined = entry_of_debit(Rejected(Reason.INSUFFICIENT_FUNDS))

    assert reason_of(decide(refund(), seen(None, debited=declined))) is Reason.NOTHING_TO_REFUND


def test_a_purged_debit_that_was_sent_again_is_waited_for_until_its_row_is_closed() -> None:
    for asked in (refund(), refund("R-1", 30), refund("R-1", 101)):
        what = seen(row_of(debit()), debited=entry_of_debit())
        assert decide(asked, what) == Wait("NOT_SETTLED")


LATER_USES = {
    "another amount, queued": row_of(debit(amount_minor=70)),
    "another amount, settled": row_of(debit(amount_minor=70), Status.SYNCED),
    "another amount, refused": row_of(debit(amount_minor=70), Status.FAILED),
    "another phone": row_of(debit(phone=OTHER_PHONE)),
    "the same, expired before it was told": row_of(debit(), Status.EXPIRED),
}


@pytest.mark.parametrize("row", LATER_USES.values(), ids=LATER_USES)
def test_a_purged_debit_whose_key_was_used_again_is_refunded_by_its_entry(
    row: OfflineTransaction,
) -> None:
    what = seen(row, debited=entry_of_debit(), refunded_minor=40)

    assert decide(refund(), what) == Post(60, 100, KES, wallet(960, version=3), row_after=None)
    assert decide(refund("R-1", 61), what) == Reject(Reason.EXCEEDS_ORIGINAL, 60, None)


def test_what_goes_back_is_the_row_and_the_debit_only_where_the_row_is_none_of_its_own() -> None:
    """Of a refused debit the row counts, even one of another use: nothing of the debit is left."""
    posted_debit, refused = entry_of_debit(), entry_of_debit(Rejected(Reason.INSUFFICIENT_FUNDS))
    in_usd = row_of(debit(currency=USD))

    assert original_of(refund(), seen(SETTLED, debited=posted_debit)) is SETTLED
    assert original_of(refund(), seen(in_usd, debited=refused)) is in_usd
    assert original_of(refund(), seen(in_usd, debited=posted_debit)) is posted_debit
    assert original_of(refund(), seen(None, debited=posted_debit)) is posted_debit
    assert original_of(refund(), seen(SETTLED)) is SETTLED
    assert original_of(refund(), seen(None)) is None


# --- before settlement ----------------------------------------------------------------------------


@pytest.mark.parametrize("status", OPEN)
@pytest.mark.parametrize("amount_minor", [None, 100])
def test_a_full_refund_of_what_is_not_settled_cancels_it(
    status: Status, amount_minor: int | None
) -> None:
    row = row_of(debit(), status)

    decision = decide(refund("R-1", amount_minor), seen(row))

    assert decision == Cancel(
        replace(
            row,
            status=Status.CANCELLED,
            cancelled_by="R-1",
            held_by=None,
            updated_at_ms=NOW_MS,
            next_sweep_at_ms=None,
        )
    )


@pytest.mark.parametrize("status", OPEN)
def test_a_partial_refund_of_what_is_not_settled_waits_and_one_of_too_much_is_refused(
    status: Status,
) -> None:
    row = row_of(debit(), status)

    assert decide(refund("R-1", 99), seen(row), patient=False) == Wait("NOT_SETTLED")
    assert decide(refund("R-1", 101), seen(row)) == Reject(Reason.EXCEEDS_ORIGINAL, 100, None)


def test_a_cancellation_that_comes_again_is_read_back_and_moves_nothing() -> None:
    row = replace(row_of(debit(), Status.CANCELLED), cancelled_by="R-1")

    assert decide(refund("R-1"), seen(row)) == Cancel(None)
    assert decide(refund("R-1", 100), seen(row)) == Cancel(None)
    assert reason_of(decide(refund("R-1", 50), seen(row))) is Reason.KEY_REUSED
    assert reason_of(decide(refund("R-2"), seen(row))) is Reason.NOTHING_TO_REFUND


@pytest.mark.parametrize("status", ENDED)
@pytest.mark.parametrize("amount_minor", [None, 1, 100, 101])
def test_c19_where_no_money_moved_nothing_goes_back(
    status: Status, amount_minor: int | None
) -> None:
    declined = entry_of_debit(Rejected(Reason.INSUFFICIENT_FUNDS))
    what = seen(row_of(debit(), status), debited=declined if status is Status.FAILED else None)

    decision = decide(refund("R-1", amount_minor), what)

    assert decision == Reject(Reason.NOTHING_TO_REFUND, None, None)


# --- an original that cannot be seen, or is another's ---------------------------------------------


def test_c37_an_original_that_cannot_be_seen_is_waited_for_and_then_refused() -> None:
    assert decide(refund(), seen(), patient=True) == Wait("ORIGINAL_NOT_FOUND")
    assert decide(refund(), seen(), patient=False) == Reject(Reason.ORIGINAL_NOT_FOUND, None, None)


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize(
    "asked",
    [
        refund(phone=OTHER_PHONE),
        refund(currency=USD),
        refund("R-1", 101, phone=OTHER_PHONE, currency=USD),
    ],
)
def test_another_phone_or_currency_is_a_mismatch_whatever_the_status(
    asked: Refund, status: Status
) -> None:
    assert reason_of(decide(asked, seen(row_of(debit(), status)))) is Reason.MISMATCH


def test_another_currency_than_that_of_a_purged_rows_debit_is_a_mismatch_too() -> None:
    what = seen(None, debited=entry_of_debit())

    assert reason_of(decide(refund(currency=USD), what)) is Reason.MISMATCH
    assert isinstance(decide(refund(currency=KES), what), Post)
    assert isinstance(decide(refund(), what), Post)


# --- an id that was answered before ---------------------------------------------------------------


def situations() -> Iterable[Seen]:
    """Every one of the rules below would have its own answer."""
    yield seen()
    yield from (seen(row_of(debit(), status)) for status in Status)
    yield seen(row_of(debit(phone=OTHER_PHONE), Status.SYNCED))
    yield seen(None, debited=entry_of_debit(Rejected(Reason.WALLET_NOT_FOUND)))


OUTCOMES = [Posted(3, 1000), Rejected(Reason.EXCEEDS_ORIGINAL), Rejected(Reason.ORIGINAL_NOT_FOUND)]


@pytest.mark.parametrize("what", list(situations()))
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_p4_an_id_that_was_answered_has_that_answer_before_any_other_rule(
    what: Seen, outcome: Outcome
) -> None:
    for asked in (refund(), refund("R-1", 30)):
        answered = replace(what, refund=entry_of(asked, outcome))
        assert decide(asked, answered, patient=False) == Answered(outcome, None)


@pytest.mark.parametrize("what", list(situations()))
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_p4_an_id_that_means_something_else_is_refused_before_any_other_rule(
    what: Seen, outcome: Outcome
) -> None:
    answered = replace(what, refund=entry_of(refund("R-1", 30), outcome))
    for asked in (refund("R-1", 31), refund("R-1")):
        assert decide(asked, answered) == Reject(Reason.KEY_REUSED, None, None)


def test_the_refusal_of_a_reused_id_is_itself_answered_once() -> None:
    asked = refund("R-1", 31)
    refused = Rejected(Reason.KEY_REUSED)
    what = seen(
        PARTLY,
        refunded=entry_of(refund("R-1", 30), Posted(3, 930)),
        reused=entry_of(asked, refused),
    )

    assert decide(asked, what) == Answered(refused, None)


@pytest.mark.parametrize("row", [None, SETTLED])
def test_the_refusal_of_a_reused_id_answers_whatever_became_of_its_first_use(
    row: OfflineTransaction | None,
) -> None:
    refused = Rejected(Reason.KEY_REUSED)
    what = seen(row, debited=entry_of_debit(), reused=entry_of(refund(), refused))

    assert decide(refund(), what) == Answered(refused, None)


def test_a_refused_debit_says_nothing_of_what_its_key_was_used_for_since() -> None:
    """Its row was purged, and the key came again as something else, which is not settled yet."""
    refused = entry_of_debit(Rejected(Reason.INSUFFICIENT_FUNDS))
    again = row_of(debit(amount_minor=70))

    assert decide(refund("R-1", 30), seen(again, debited=refused)) == Wait("NOT_SETTLED")


def test_the_fingerprint_of_a_refund_is_the_same_in_every_version() -> None:
    """Entries hold it for good: another one would make every repetition a reuse."""
    assert refund().fingerprint == FINGERPRINTS["all"]
    assert refund("R-1", 30).fingerprint == FINGERPRINTS["a part"]


def test_who_asks_and_why_does_not_make_it_another_request() -> None:
    first = refund("R-1", 30, requested_by="desk")
    again = replace(first, note="other words", requested_by="agent:AG-001", currency=KES)

    assert first.fingerprint == again.fingerprint


def test_any_other_member_makes_it_another_request() -> None:
    all_of_them = [
        refund(),
        refund("R-1", 100),  # what remains is not always 100
        refund("R-1", 1),
        refund("R-2"),
        refund(key="K-2"),
        refund(agent_id="AG-002"),
        refund(phone=OTHER_PHONE),
    ]
    assert len({each.fingerprint for each in all_of_them}) == len(all_of_them)


def test_a_refund_under_the_id_full_is_no_other_amount() -> None:
    assert refund(FULL).fingerprint != refund(FULL, 100).fingerprint


# --- a row that waits -----------------------------------------------------------------------------

CLOSED = {
    Status.SYNCED: SETTLED,
    Status.PARTIALLY_REFUNDED: PARTLY,
    Status.REFUNDED: DONE,
}


@pytest.mark.parametrize("amount_minor", [None, 60])
def test_the_row_that_waits_is_answered_in_the_same_write_as_its_refund(
    amount_minor: int | None,
) -> None:
    row = waiting(PARTLY, "R-1", amount_minor)

    decision = decide(refund("R-1", amount_minor), seen(row))

    assert isinstance(decision, Post)
    assert decision.row_after == replace(
        DONE, attempt=2, queued_at_ms=START_MS, updated_at_ms=NOW_MS
    )


@pytest.mark.parametrize("was", CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize("asked", [refund("R-1", 101), refund("R-1", 101, currency=USD)])
def test_a_refusal_too_ends_the_waiting_and_the_status_is_what_was_refunded(
    was: OfflineTransaction, asked: Refund
) -> None:
    decision = decide(asked, seen(waiting(was, "R-1", 101)))

    assert isinstance(decision, Reject)
    assert decision.row_after == replace(
        was, attempt=2, queued_at_ms=START_MS, updated_at_ms=NOW_MS
    )


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_an_answer_from_before_ends_the_waiting_too(outcome: Outcome) -> None:
    asked = refund("R-1", 30)
    what = replace(seen(waiting(PARTLY, "R-1", 30)), refund=entry_of(asked, outcome))

    decision = decide(asked, what)

    assert isinstance(decision, Answered)
    assert decision.row_after is not None
    assert decision.row_after.status is Status.PARTIALLY_REFUNDED
    assert decision.row_after.refund_request is None


@pytest.mark.parametrize(
    "pending", [("R-2", None), ("R-2", 30), ("R-1", None), ("R-1", 31)], ids=repr
)
def test_a_row_that_waits_for_another_request_goes_on_waiting(
    pending: tuple[str, int | None],
) -> None:
    row = waiting(PARTLY, *pending)

    posting = decide(refund("R-1", 30), seen(row))
    refusal = decide(refund("R-1", 61), seen(row))
    answered = decide(
        refund("R-1", 30), replace(seen(row), refund=entry_of(refund("R-1", 30), Posted(3, 930)))
    )

    assert isinstance(posting, Post)
    assert posting.row_after == replace(row, refunded_minor=70, updated_at_ms=NOW_MS)
    assert refusal == Reject(Reason.EXCEEDS_ORIGINAL, 60, None)
    assert answered == Answered(Posted(3, 930), None)


def test_a_request_under_another_phone_does_not_end_the_agents_own() -> None:
    row = waiting(SETTLED, "R-1", None)

    assert decide(refund("R-1", phone=OTHER_PHONE), seen(row)) == Reject(
        Reason.MISMATCH, None, None
    )


def test_a_row_that_waits_is_swept_soon_whatever_its_age() -> None:
    row = waiting(SETTLED)

    assert row.next_sweep_at_ms == START_MS + SWEEP_AFTER_MS[0]
    assert (row.status, row.attempt) == (Status.REFUND_REQUESTED, SETTLED.attempt + 1)


# --- all of it ------------------------------------------------------------------------------------


@given(
    status=st.sampled_from(list(Status)),
    refunded_minor=st.integers(0, 100),
    amount_minor=st.none() | st.integers(-5, 205),
    pending=st.sampled_from(["R-1", "R-2"]),
    patient=st.booleans(),
)
def test_p4_and_p7_no_decision_gives_back_more_than_remains_or_touches_what_it_refuses(
    status: Status, refunded_minor: int, amount_minor: int | None, pending: str, patient: bool
) -> None:
    row = replace(row_of(debit(), status), refunded_minor=refunded_minor or None)
    if status is Status.REFUND_REQUESTED:
        row = waiting(row, pending, amount_minor)
    asked = refund("R-1", amount_minor)

    decision = decide(asked, seen(row), patient=patient)

    match decision:
        case Post():
            assert status not in (*OPEN, *ENDED)
            assert 0 < decision.amount_minor <= 100 - refunded_minor
            assert decision.amount_minor in (amount_minor, 100 - refunded_minor)
            assert decision.wallet_after.balance_minor == 900 + decision.amount_minor
        case Cancel():
            assert status in OPEN
        case Wait():
            assert status in OPEN
        case Reject():
            assert decision.row_after is None or (decision.row_after.refunded_minor or 0) == (
                refunded_minor
            )
        case Answered():
            pytest.fail("nothing was answered before")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("x", True),
        ("kundi la Nairobi, meza 4", True),
        ("é" * (NOTE_BYTES_MAX // 2), True),
        ("", False),
        ("x" * (NOTE_BYTES_MAX + 1), False),
        ("two\nlines", False),
        ("\x00", False),
        ("\ud800", False),
    ],
)
def test_a_note_is_a_line_that_can_be_printed(text: str, good: bool) -> None:
    assert is_note(text) is good


def test_the_longest_entry_fits_in_one_kilobyte() -> None:
    """DynamoDB counts names and values in bytes; one write unit is 1,024 of them."""
    longest = "A" * 64
    asked = replace(
        refund(longest, AMOUNT_MINOR_MAX, key=longest, agent_id=longest, phone=PHONE + "345"),
        note="x" * NOTE_BYTES_MAX,
        requested_by=f"agent:{longest}",
    )
    item = items.refund_item(asked, Reject(Reason.KEY_REUSED, AMOUNT_MINOR_MAX, None), KES, NOW_MS)

    size = sum(len(name) + len(next(iter(value.values())).encode()) for name, value in item.items())

    assert size <= 1024


# --- an id in more than one currency --------------------------------------------------------------


def test_p4_the_first_use_of_an_id_answers_before_the_refusal_of_a_later_one() -> None:
    """The two may differ in nothing but the currency, which is not in the fingerprint."""
    kes = refund("R-1", 30, currency=KES)
    usd = replace(kes, currency=USD)
    refused = Rejected(Reason.KEY_REUSED)
    what = seen(PARTLY, refunded=entry_of(kes, Posted(3, 930)), reused=entry_of(usd, refused))

    assert decide(kes, what) == Answered(Posted(3, 930), None)
    assert decide(replace(kes, currency=None), what) == Answered(Posted(3, 930), None)
    assert decide(usd, what) == Answered(refused, None)
    assert reason_of(decide(usd, replace(what, reused=None))) is Reason.KEY_REUSED


def test_p4_a_cancellation_answers_before_the_refusal_of_a_later_use_of_its_id() -> None:
    row = replace(row_of(debit(), Status.CANCELLED), cancelled_by="R-1")
    usd = refund("R-1", currency=USD)
    what = seen(row, reused=entry_of(usd, Rejected(Reason.KEY_REUSED)))

    assert decide(refund("R-1"), what) == Cancel(None)
    assert decide(usd, what) == Answered(Rejected(Reason.KEY_REUSED), None)
