"""What a letter is and what follows: every failure, standing and budget has one answer."""

from dataclasses import replace
from itertools import product

import pytest

from tests.fakes.dead_letters import given_up, left, record
from tests.fakes.memory import START_MS
from tests.fakes.samples import credit, debit, refund, row_of, status_change
from triage.reading import read
from wallet_ledger.domain.letters import (
    AUTOMATIC_AFTER_MS,
    DIAGNOSES,
    LETTER_SHARDS,
    Action,
    Arrival,
    Budget,
    Failure,
    Letter,
    LetterClass,
    LetterStatus,
    Source,
    Standing,
    Verdict,
    debit_standing,
    diagnose,
    discarded,
    held,
    lane_of,
    letter_shard,
    looked_at,
    moved,
    opened,
    released,
    status_of,
)
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import WalletStatus
from wallet_ledger.domain.work import Violation

DAY_MS = 86_400_000
ALL = list(product(Failure, Standing))


@pytest.mark.parametrize("used", range(5))
def test_every_failure_and_standing_has_an_answer_within_its_budget(used: int) -> None:
    answers = {pair: diagnose(*pair, Budget(automatic=used, by_hand=99)) for pair in ALL}

    by_itself = {pair for pair, it in answers.items() if it.verdict is Verdict.AUTO_REDRIVE}
    could = {
        (failure, Standing.OPEN)
        for failure in (Failure.UNFINISHED, Failure.UNEXPLAINED, Failure.UNDELIVERED)
    }
    assert by_itself == (could if used < len(AUTOMATIC_AFTER_MS) else set())
    for (failure, standing), it in answers.items():
        assert it.meaning
        if it.verdict is Verdict.CLOSED:  # somebody else answers for it
            assert standing in {Standing.DECIDED, Standing.NEWER_ATTEMPT, Standing.HELD}
        if (failure, standing) in could:
            assert it.letter_class in {LetterClass.TRANSIENT, LetterClass.NEVER_RAN}
            assert status_of(it.verdict).is_open
        if standing is Standing.UNFREEZES:
            assert it.verdict in {Verdict.PARKED, Verdict.INFORMATIONAL}
        if it.verdict is Verdict.INFORMATIONAL:  # nothing waits that anybody could redrive
            assert failure in {Failure.REFUSED, Failure.FAILED_RUN, Failure.MISSED_RUN}
    assert {it.letter_class for it in answers.values()} == set(LetterClass)


@pytest.mark.parametrize(("failure", "standing"), ALL)
def test_a_budget_that_is_used_up_changes_only_what_would_have_been_redriven(
    failure: Failure, standing: Standing
) -> None:
    fresh = diagnose(failure, standing, Budget())
    used_up = diagnose(failure, standing, Budget(automatic=len(AUTOMATIC_AFTER_MS)))

    assert (used_up == fresh) == (fresh.verdict is not Verdict.AUTO_REDRIVE)


def test_every_line_of_the_table_is_the_first_that_fits_for_something() -> None:
    told = {id(diagnose(*pair, Budget())) for pair in ALL}

    assert told == {id(rule.diagnosis) for rule in DIAGNOSES}


@pytest.mark.parametrize("status", Status)
def test_a_row_that_is_not_queued_is_decided_or_held_whatever_its_attempt(status: Status) -> None:
    row = replace(row_of(debit(), status), attempt=7)
    standing = {Status.QUEUED: Standing.NEWER_ATTEMPT, Status.HELD: Standing.HELD}.get(
        status, Standing.DECIDED
    )

    assert debit_standing(debit(), row, decided=False) is standing
    assert debit_standing(debit(), row, decided=True) is Standing.DECIDED


@pytest.mark.parametrize(
    ("row", "standing"),
    [
        (None, Standing.NO_ROW),
        (row_of(debit(amount_minor=101)), Standing.NO_ROW),
        (row_of(debit()), Standing.OPEN),
        (replace(row_of(debit()), attempt=2), Standing.NEWER_ATTEMPT),
    ],
)
def test_a_debit_stands_as_its_row_says(row: OfflineTransaction | None, standing: Standing) -> None:
    assert debit_standing(debit(), row, decided=False) is standing
    assert debit_standing(debit(), row, decided=True) is Standing.DECIDED


# --- rows -----------------------------------------------------------------------------------------


def test_a_held_row_is_in_no_index_and_a_released_one_is_a_new_attempt() -> None:
    row, now_ms = row_of(debit()), START_MS + 5_000

    waits = held(row, "L-1", START_MS)

    assert waits == replace(row, status=Status.HELD, held_by="L-1", next_sweep_at_ms=None)
    assert released(waits, now_ms) == replace(
        row,
        attempt=2,
        queued_at_ms=now_ms,
        updated_at_ms=now_ms,
        next_sweep_at_ms=now_ms + 120_000,
    )


@pytest.mark.parametrize("days", [6.5, 7, 400])
def test_a_released_row_has_a_day_at_least_however_long_it_was_held(days: float) -> None:
    row = row_of(debit())
    now_ms = START_MS + int(days * DAY_MS)

    after = released(held(row, "L-1", START_MS), now_ms)

    assert after.expires_at_s == now_ms // 1000 + 86_400 > row.expires_at_s
    assert after.next_sweep_at_ms == now_ms + 120_000


def test_a_discarded_row_is_a_refusal_that_nothing_waits_for() -> None:
    row = row_of(debit())
    assert discarded(held(row, "L-1", START_MS), START_MS + 9) == replace(
        row,
        status=Status.FAILED,
        reason=Reason.DISCARDED,
        updated_at_ms=START_MS + 9,
        next_sweep_at_ms=None,
    )


# --- letters --------------------------------------------------------------------------------------


def arrival(used: Budget | None = None) -> tuple[Arrival, Letter]:
    """A debit that could not be finished, and its letter."""
    told = read(left(debit()))
    budget = used or Budget()
    diagnosis = diagnose(told.failure, Standing.OPEN, budget)
    return told, opened(told, diagnosis, budget, preview="p", now_ms=START_MS)


@pytest.mark.parametrize(("used", "minutes"), [(0, 1), (1, 5), (2, 15)])
def test_each_automatic_redrive_of_a_subject_waits_longer(used: int, minutes: int) -> None:
    _, letter = arrival(Budget(automatic=used, by_hand=50))

    assert (letter.status, letter.verdict) == (LetterStatus.WAITING, Verdict.AUTO_REDRIVE)
    assert letter.due_at_ms == START_MS + minutes * 60_000


def test_a_parked_letter_is_looked_at_each_hour_of_its_first_day_and_then_daily() -> None:
    _, letter = arrival(Budget(automatic=3))

    assert (letter.status, letter.verdict) == (LetterStatus.PARKED, Verdict.PARKED)
    assert letter.due_at_ms == START_MS + 3_600_000
    young, old = START_MS + DAY_MS - 1, START_MS + DAY_MS
    assert looked_at(letter, young) == replace(letter, due_at_ms=young + 3_600_000)
    assert looked_at(letter, old) == replace(letter, due_at_ms=old + DAY_MS)


@pytest.mark.parametrize("status", LetterStatus)
def test_an_action_is_a_line_of_history_and_what_is_over_has_no_next_look(
    status: LetterStatus,
) -> None:
    _, letter = arrival()
    action = Action(START_MS + 7, "amina", "acted", "because")

    after = moved(letter, status, action)

    due_ms = {
        LetterStatus.WAITING: letter.due_at_ms,
        LetterStatus.PARKED: START_MS + 7 + 3_600_000,
    }.get(status)
    assert after == replace(
        letter,
        status=status,
        verdict=Verdict.PARKED if status is LetterStatus.PARKED else letter.verdict,
        due_at_ms=due_ms,
        updated_at_ms=START_MS + 7,
        revision=2,
        history=(action,),
    )


# --- what stands for what -------------------------------------------------------------------------


def test_a_parked_letter_keeps_its_next_look_whatever_is_noted_on_it() -> None:
    arrival = read(left(debit(), Violation(("KeyError",), "settle.py")))
    parked = opened(
        arrival,
        diagnose(arrival.failure, Standing.OPEN, Budget()),
        Budget(),
        preview="p",
        now_ms=START_MS,
    )
    assert parked.status is LetterStatus.PARKED

    noted = moved(parked, LetterStatus.PARKED, Action(START_MS + DAY_MS, "amina", "revealed", "x"))

    assert (noted.due_at_ms, noted.verdict) == (parked.due_at_ms, parked.verdict)


def test_the_lane_of_a_letter_is_its_subjects_phone_whatever_group_it_came_in() -> None:
    told = left(debit())
    arrival = read(told)
    strange = replace(arrival, original=replace(arrival.original, group="254799999999"))
    diagnosis = diagnose(arrival.failure, Standing.OPEN, Budget())

    lanes = {
        opened(each, diagnosis, Budget(), preview="p", now_ms=START_MS).lane
        for each in (arrival, strange)
    }

    assert lanes == {lane_of(debit().phone)}


def test_letters_of_one_trouble_have_one_fingerprint_and_others_another() -> None:
    def fingerprint(why: str = "KeyError", place: str = "a.py f", source: str = "TxQueue") -> str:
        told = read(left(debit(), Violation((why,), place)))
        return replace(told, source=Source(source)).fingerprint

    many = {read(left(debit(f"K-{n}", n + 1), Violation(("X",), "a.py f"))) for n in range(50)}

    assert len({each.fingerprint for each in many}) == 1
    assert len({each.subject_ref for each in many}) == 50
    others = {
        fingerprint(),
        fingerprint(why="ValueError"),
        fingerprint(place="a.py g"),
        fingerprint(source="RefundQueue"),
        read(left(debit())).fingerprint,
        read(given_up(debit())).fingerprint,
        read(given_up(status_change(status=WalletStatus.ACTIVE))).fingerprint,
    }
    assert read(given_up(status_change())).fingerprint in others
    assert len(others) == 7
    assert all(len(each) == 12 for each in others)


def test_a_budget_is_of_what_the_letter_speaks_of_and_not_of_the_letter() -> None:
    same = [
        read(left(debit(attempt=1))),
        read(given_up(debit(attempt=9), "M-2")),
        read(left(debit(amount_minor=5), message_id="M-3")),
    ]
    others = [
        read(left(debit("K-2"))),
        read(left(credit("K-1"))),
        read(left(credit("K-1", phone="254700000001"))),
        read(left(status_change("K-1"))),
        read(left(refund("R-1"))),
        read(left(refund("R-2"))),
        read(record("TxDLQ.fifo", "{bad")),
        read(record("TxDLQ.fifo", "{bad ")),
        read(record("TxDLQ.fifo", '"\\ud800')),
    ]

    assert len({each.subject_ref for each in same}) == 1
    assert len({each.subject_ref for each in [*same, *others]}) == 1 + len(others)
    assert read(record("RefundDLQ.fifo", "{bad", "M-9")).subject_ref == others[6].subject_ref


def test_a_lane_tells_phones_apart_and_nobody_finds_the_phone_from_it() -> None:
    lanes = {lane_of(f"2547000{number:05d}") for number in range(1_000)}

    assert lane_of(None) == ""
    assert 240 < len(lanes) <= 256
    assert all(len(lane) == 2 for lane in lanes)


def test_letters_spread_over_all_shards() -> None:
    counts = [0] * LETTER_SHARDS
    for number in range(1_600):
        counts[letter_shard(f"L-{number}")] += 1
    assert min(counts) > 50
