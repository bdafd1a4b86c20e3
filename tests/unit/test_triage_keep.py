"""Keep a letter: once, whole, and with the row that it speaks of, or not at all."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.dead_letters import (
    BUG,
    SENT_MS,
    Triage,
    given_up,
    left,
    record,
    verbatim,
)
from tests.fakes.memory import START_MS, FakeRefundBooks
from tests.fakes.samples import AGENT, PHONE, credit, debit, refund, row_of, status_change, waiting
from tests.fakes.scripted import Call, around, first, scripted, unavailable
from triage.keep import Kept
from wallet_ledger.domain.ids import digest
from wallet_ledger.domain.letters import (
    Failure,
    Letter,
    LetterClass,
    LetterStatus,
    Original,
    Source,
    Verdict,
    held,
    lane_of,
    released,
)
from wallet_ledger.domain.postings import Committed
from wallet_ledger.domain.refunds import Refund, decide_refund
from wallet_ledger.domain.transactions import Status
from wallet_ledger.domain.wallets import Movement, WalletStatus
from wallet_ledger.errors import Unavailable

WAITING = (LetterClass.TRANSIENT, LetterStatus.WAITING)
STALE = (LetterClass.STALE, LetterStatus.CLOSED)


@pytest.fixture
def triage() -> Triage:
    """A wallet of 1,000 and nothing else."""
    made = Triage()
    made.settle(credit("funding", 1_000))
    return made


def kinds(kept: Kept) -> tuple[LetterClass, LetterStatus]:
    """What it is, and where."""
    return kept.letter.letter_class, kept.letter.status


# --- one letter -----------------------------------------------------------------------------------


def test_a_debit_that_could_not_be_finished_is_kept_whole_and_its_row_waits_with_it(
    triage: Triage,
) -> None:
    triage.accept(debit(attempt=2))
    row = triage.row(debit())
    told = left(debit(attempt=2))

    kept = triage.keep(told)

    letter_id = digest("letter", "wakala-DeliveryFailures", "M-1")[:32]
    expected = Letter(
        letter_id=letter_id,
        fingerprint=digest("letter:v1", "TxQueue", "unfinished", "TransactionConflict", "")[:12],
        source=Source.TX_QUEUE,
        failure=Failure.UNFINISHED,
        why="TransactionConflict",
        place="",
        subject_ref=digest("debit", AGENT, "K-1")[:32],
        letter_class=LetterClass.TRANSIENT,
        verdict=Verdict.AUTO_REDRIVE,
        meaning="a passing cause lasted too long: it is tried again",
        status=LetterStatus.WAITING,
        preview=kept.letter.preview,
        lane=lane_of(PHONE),
        original=Original("inner M-1", PHONE, "d", 10, SENT_MS),
        arrived_at_ms=START_MS,
        updated_at_ms=START_MS,
        revision=1,
        due_at_ms=START_MS + 60_000,
        agent_id=AGENT,
        idempotency_key=debit().idempotency_key,
        attempt=2,
    )
    assert kept == Kept(expected, new=True)
    assert triage.letter(letter_id) == expected
    assert triage.letters.record(letter_id) == verbatim(told)
    assert triage.row(debit()) == held(row, letter_id, START_MS)
    assert triage.store.letter_purge_at_s == {}
    assert PHONE not in kept.letter.preview


def settled(triage: Triage) -> None:
    """The debit has its entry, and its row is closed."""
    triage.accept(debit())
    triage.settle(debit())


def declined(triage: Triage) -> None:
    """The debit was refused."""
    triage.accept(debit())
    triage.store.wallets[PHONE] = replace(triage.store.wallets[PHONE], balance_minor=1)
    triage.settle(debit())


def expired(triage: Triage) -> None:
    """Its row came to an end without an entry."""
    triage.store.rows[AGENT, debit().idempotency_key] = row_of(debit(), Status.EXPIRED)


def wanted_back(triage: Triage) -> None:
    """Its row waits for a refund: it was settled."""
    row = waiting(row_of(debit(), Status.SYNCED))
    triage.store.rows[AGENT, debit().idempotency_key] = row


def purged(triage: Triage) -> None:
    """Its entry is left, and no row."""
    settled(triage)
    triage.store.rows.clear()


def sent_again(triage: Triage) -> None:
    """The sweep was quicker."""
    triage.accept(debit(attempt=2))


def held_by_another(triage: Triage) -> None:
    """Two letters of one transaction."""
    triage.store.rows[AGENT, debit().idempotency_key] = row_of(debit(), Status.HELD)


def queued(triage: Triage) -> None:
    """It is still to be done."""
    triage.accept(debit())


def no_row(triage: Triage) -> None:
    """Nobody asked for it."""


def other_content(triage: Triage) -> None:
    """The row asks for another amount."""
    triage.accept(debit(amount_minor=101))


def edited(triage: Triage) -> None:
    """Somebody has edited the row."""
    triage.accept(debit())

    def misread(call: Call) -> Any:
        if call.method != "row":
            return call.proceed()
        raise KeyError("amountMinor")

    triage.subjects = around(triage.subjects, misread)


BY_STANDING: list[tuple[Callable[[Triage], None], LetterClass | None, LetterStatus]] = [
    (settled, None, LetterStatus.CLOSED),
    (declined, None, LetterStatus.CLOSED),
    (expired, None, LetterStatus.CLOSED),
    (wanted_back, None, LetterStatus.CLOSED),
    (purged, None, LetterStatus.CLOSED),
    (sent_again, LetterClass.STALE, LetterStatus.CLOSED),
    (held_by_another, LetterClass.STALE, LetterStatus.CLOSED),
    (no_row, LetterClass.POISON, LetterStatus.PARKED),
    (other_content, LetterClass.POISON, LetterStatus.PARKED),
    (edited, LetterClass.BUG, LetterStatus.PARKED),
]


@pytest.mark.parametrize(("stands", "letter_class", "status"), BY_STANDING)
def test_a_row_that_does_not_wait_for_this_very_attempt_is_not_held(
    triage: Triage,
    stands: Callable[[Triage], None],
    letter_class: LetterClass | None,
    status: LetterStatus,
) -> None:
    """None: the class says how it failed."""
    stands(triage)
    rows, entries = dict(triage.store.rows), dict(triage.store.entries)

    for number, (told, by_failure) in enumerate(
        [
            (left(debit(), message_id="M-1"), LetterClass.TRANSIENT),
            (left(debit(), BUG, "M-2"), LetterClass.BUG),
            (given_up(debit(), "M-3"), LetterClass.NEVER_RAN),
        ]
    ):
        kept = triage.keep(told)
        assert kept.new
        assert kinds(kept) == (letter_class or by_failure, status)
        assert kept.letter == triage.letter(kept.letter.letter_id)
        assert (kept.letter.due_at_ms is None) == (status is LetterStatus.CLOSED)
        assert len(triage.store.records) == number + 1

    assert (triage.store.rows, triage.store.entries) == (rows, entries)
    is_closed = status is LetterStatus.CLOSED
    assert len(triage.store.letter_purge_at_s) == (3 if is_closed else 0)


@pytest.mark.parametrize(
    ("told", "letter_class", "status"),
    [
        (left(debit()), LetterClass.TRANSIENT, LetterStatus.WAITING),
        (given_up(debit()), LetterClass.NEVER_RAN, LetterStatus.WAITING),
        (left(debit(), BUG), LetterClass.BUG, LetterStatus.PARKED),
    ],
)
def test_an_open_letter_holds_its_row_whatever_is_to_be_done(
    triage: Triage, told: dict[str, Any], letter_class: LetterClass, status: LetterStatus
) -> None:
    triage.accept(debit())

    kept = triage.keep(told)

    assert kinds(kept) == (letter_class, status)
    row = triage.row(debit())
    assert (row.status, row.held_by, row.attempt) == (Status.HELD, kept.letter.letter_id, 1)
    assert row.next_sweep_at_ms is None
    triage.settle(debit())  # a message that is late, or sent by hand
    assert triage.row(debit()) == row
    assert triage.store.wallets[PHONE].balance_minor == 1_000


@pytest.mark.parametrize("movement", [credit("C-2"), status_change(status=WalletStatus.FROZEN)])
def test_what_has_no_row_is_kept_alone_until_the_ledger_knows_it(
    triage: Triage, movement: Movement
) -> None:
    assert kinds(triage.keep(left(movement))) == WAITING
    assert triage.store.rows == {}
    triage.settle(movement)

    late = triage.keep(left(movement, message_id="M-2"))

    assert kinds(late) == (LetterClass.TRANSIENT, LetterStatus.CLOSED)


def test_an_id_that_was_refused_as_reused_is_decided(triage: Triage) -> None:
    other = credit("funding", 5)
    assert triage.keep(left(other)).letter.status is LetterStatus.WAITING
    triage.settle(other)

    assert triage.keep(left(other, message_id="M-2")).letter.status is LetterStatus.CLOSED


def refunded(triage: Triage, asked: Refund) -> None:
    """The refund function has done its work."""
    books = FakeRefundBooks(triage.store)
    seen = books.see(asked)
    decided = decide_refund(asked, seen, START_MS, patient=True)
    assert books.write(asked, seen, decided, START_MS) == Committed()  # type: ignore[arg-type]


def test_c37_a_refund_that_came_too_early_waits_and_is_closed_once_it_is_decided(
    triage: Triage,
) -> None:
    triage.accept(debit())
    asked = refund("R-1", 30)
    early = left(asked)
    assert kinds(triage.keep(early)) == WAITING

    triage.settle(debit())
    assert kinds(triage.keep(left(asked, message_id="M-2"))) == WAITING
    refunded(triage, asked)

    assert triage.keep(left(asked, message_id="M-3")).letter.status is LetterStatus.CLOSED
    assert triage.keep(left(refund("R-2", 30), message_id="M-4")).letter.status is (
        LetterStatus.WAITING
    )


def test_a_refund_that_would_still_move_a_row_is_not_decided(triage: Triage) -> None:
    """To cancel a debit, or to answer the agent who waits for what was refunded before."""
    triage.accept(debit())
    assert kinds(triage.keep(left(refund("R-1")))) == WAITING
    triage.settle(debit())
    refunded(triage, refund("R-2", 30))
    told = given_up(refund("R-2", 30), "M-2")
    triage.store.rows[AGENT, debit().idempotency_key] = waiting(triage.row(debit()), "R-2", 30)
    assert triage.keep(told).letter.status is LetterStatus.WAITING

    refunded(triage, refund("R-2", 30))

    assert triage.row(debit()).refund_request is None
    assert triage.keep(told | {"messageId": "M-3"}).letter.status is LetterStatus.CLOSED


def test_a_refund_of_which_the_books_make_no_sense_is_for_a_person(triage: Triage) -> None:
    settled(triage)
    triage.store.wallets.clear()

    kept = triage.keep(left(refund("R-1", 30)))

    assert kinds(kept) == (LetterClass.BUG, LetterStatus.PARKED)
    assert "cannot be read" in kept.letter.meaning


# --- twice ----------------------------------------------------------------------------------------


def test_a_letter_that_is_delivered_again_is_kept_once_and_holds_once(triage: Triage) -> None:
    triage.accept(debit())
    once = triage.keep(left(debit()))
    before = triage.everything()
    triage.clock.pause(300)

    assert triage.keep(left(debit())) == replace(once, new=False)
    assert triage.everything() == before

    row = triage.row(debit())
    triage.store.rows[AGENT, row.idempotency_key] = released(row, triage.clock.now_ms())
    before = triage.everything()
    assert triage.keep(left(debit())) == replace(once, new=False)
    assert triage.everything() == before


def test_of_two_letters_of_one_transaction_one_holds_its_row(triage: Triage) -> None:
    """Put aside, and given up by its queue as well, since the answer was lost."""
    triage.accept(debit())

    mine, other = triage.keep(left(debit())), triage.keep(given_up(debit()))

    assert (kinds(mine), kinds(other)) == (WAITING, STALE)
    assert triage.row(debit()).held_by == mine.letter.letter_id
    assert mine.letter.subject_ref == other.letter.subject_ref


# --- races and faults -----------------------------------------------------------------------------


@pytest.mark.parametrize("moves", [settled, sent_again, expired, held_by_another])
def test_a_row_that_moves_between_the_look_and_the_write_is_looked_at_again(
    triage: Triage, moves: Callable[[Triage], None]
) -> None:
    triage.accept(debit())
    triage.letters = scripted(triage.letters, "file", [first(lambda: moves(triage))])

    kept = triage.keep(left(debit()))

    assert kept.new
    assert kept.letter.status is LetterStatus.CLOSED
    assert triage.row(debit()).held_by in {None, "L-1"}


def test_what_is_kept_already_waits_for_nothing(triage: Triage) -> None:
    first_time = triage.keep(left(debit()))
    before_ms = triage.clock.now_ms()

    assert triage.keep(left(debit())) == Kept(first_time.letter, new=False)
    assert triage.clock.now_ms() == before_ms


def test_a_row_that_never_stands_still_leaves_the_letter_in_its_queue(triage: Triage) -> None:
    triage.accept(debit())

    def flicker() -> None:
        row = triage.row(debit())
        triage.accept(debit(attempt=row.attempt + 1))

    def step(call: Call) -> Any:
        if call.method == "row":
            triage.accept(debit())
        return first(flicker)(call) if call.method == "file" else call.proceed()

    triage.letters = around(triage.letters, step)
    triage.subjects = around(triage.subjects, step)

    with pytest.raises(Unavailable):
        triage.keep(left(debit()))

    assert triage.clock.now_ms() - START_MS <= 1_000
    assert (triage.store.letters, triage.store.records) == ({}, {})


@pytest.mark.parametrize("method", ["row", "decided", "budget", "file"])
def test_a_letter_that_cannot_be_looked_up_or_written_now_stays_in_its_queue(
    triage: Triage, method: str
) -> None:
    triage.accept(debit())
    before = triage.everything()
    triage.letters = scripted(triage.letters, method, [unavailable("ThrottlingException")])
    triage.subjects = scripted(triage.subjects, method, [unavailable("ThrottlingException")])

    with pytest.raises(Unavailable):
        triage.keep(left(debit()))

    assert triage.everything() == before
    assert triage.keep(left(debit())).new


# --- poison ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["{bad", '"\ud800"', "[" * 100_000, '"' * 262_144, "\u4e2d" * 349_525]
)
def test_what_nobody_can_read_is_kept_word_for_word_for_a_person(triage: Triage, body: str) -> None:
    told = record("TxDLQ.fifo", body)

    kept = triage.keep(told)

    assert kinds(kept) == (LetterClass.POISON, LetterStatus.PARKED)
    assert triage.letters.record(kept.letter.letter_id) == verbatim(told)
    shown = triage.ask(
        "show", letterId=kept.letter.letter_id, reveal=True, who="amina", why="to mend it"
    )["letter"]
    assert shown["body"] == body.encode(errors="backslashreplace").decode()
    assert json.loads(shown["record"])["body"] == body
    assert triage.store.rows == {}


def test_a_record_whose_ids_no_queue_gives_is_kept_without_them_and_can_be_redriven(
    triage: Triage,
) -> None:
    """Somebody put it into the queue: an item of the table does not hold all that a body may."""
    told = left(credit("C-2"))
    envelope = json.loads(told["body"])
    for name in ("MessageGroupId", "MessageDeduplicationId"):
        envelope["record"]["attributes"][name] = PHONE * 25_000
    envelope["record"]["messageId"] = "x" * 300_000
    told["body"] = json.dumps(envelope)

    letter = triage.keep(told).letter

    assert letter.original == Original(receive_count=10, sent_at_ms=SENT_MS)
    assert triage.store.records[letter.letter_id] == verbatim(told)
    assert triage.act("redrive", letter.letter_id) == ["redriven"]
    [sent] = triage.sent[Source.TX_QUEUE].messages
    assert (sent.body, sent.group) == (envelope["record"]["body"], letter.subject_ref)
