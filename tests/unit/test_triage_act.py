"""Act on letters: redriven, discarded, looked at again; once, and never past what is decided."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.fakes.dead_letters import (
    BUG,
    SENT_MS,
    TRANSIENT,
    Json,
    Triage,
    from_inbox,
    given_up,
    in_group,
    left,
    record,
)
from tests.fakes.memory import START_MS, FakeRefundBooks
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import AGENT, PHONE, credit, debit, refund, row_of, status_change
from tests.fakes.scripted import Call, Crash, around, first, proceed, scripted, unavailable
from triage.act import HISTORY_MAX, SENDING, By, Outcome, discard, look_again, redrive
from triage.desk import handle_request
from triage.watch import Work, watch
from wallet_ledger.domain.letters import (
    Action,
    Budget,
    Letter,
    LetterStatus,
    Source,
    Verdict,
    released,
)
from wallet_ledger.domain.letters import discarded as discarded_row
from wallet_ledger.domain.postings import Committed
from wallet_ledger.domain.refunds import Refund, decide_refund
from wallet_ledger.domain.transactions import Reason, Status
from wallet_ledger.domain.wallets import Movement, WalletStatus
from wallet_ledger.messages import movement_message, refund_message, unreadable
from wallet_ledger.ports import OutgoingMessage

AMINA = By("amina", "mended")
DAY_MS = 86_400_000
STATUS = json.dumps(
    {
        "detail-type": "WalletStatusRequested",
        "source": "backoffice",
        "id": "1",
        "detail": {"phone": PHONE, "status": "active"},
    }
)
CREDIT = STATUS.replace("WalletStatusRequested", "WalletCreditRequested")
OVER = "its outcome is in the tables, or a later attempt is under way"


@pytest.fixture
def triage() -> Triage:
    """A wallet of 1,000 and nothing else."""
    made = Triage()
    made.settle(credit("funding", 1_000))
    return made


def holding(triage: Triage, **changes: Any) -> Letter:
    """A letter that holds its debit's row, ten seconds ago."""
    triage.accept(debit())
    letter = triage.keep(left(debit(), **changes)).letter
    assert triage.row(debit()).held_by == letter.letter_id
    triage.clock.pause(10)
    return letter


def line(triage: Triage, what: str, why: str, who: str = "amina") -> Action:
    """A line of history, written now."""
    return Action(triage.clock.now_ms(), who, what, why)


def check_books(triage: Triage) -> None:
    """The wallet, its entries and the rows say the same."""
    store = triage.store
    entries, totals = [*store.entries.values()], store.refund_totals(PHONE)
    assert_books_add_up(store.wallets[PHONE], entries, store.rows.values(), totals)


# --- redrive --------------------------------------------------------------------------------------


def test_a_redriven_debit_is_queued_as_its_next_attempt_with_its_letter_and_its_budget(
    triage: Triage,
) -> None:
    letter = holding(triage)
    row, now_ms = triage.row(debit()), triage.clock.now_ms()

    assert triage.act("redrive", letter.letter_id) == ["redriven"]

    assert triage.row(debit()) == released(row, now_ms)
    assert triage.row(debit()).attempt == 2
    assert triage.letter(letter.letter_id) == replace(
        letter,
        status=LetterStatus.REDRIVEN,
        updated_at_ms=now_ms,
        revision=2,
        due_at_ms=None,
        record_parts=1,
        history=(line(triage, "redriven", "mended"),),
    )
    assert triage.letters.budget(letter.subject_ref) == Budget(by_hand=1)
    assert triage.store.letter_purge_at_s == {letter.letter_id: now_ms // 1000 + 30 * 86_400}
    assert triage.messages(Source.TX_QUEUE) == []  # the relay sends it, from the row
    triage.settle(debit(attempt=2), debit(attempt=1))
    assert triage.store.wallets[PHONE].balance_minor == 900
    check_books(triage)


@pytest.mark.parametrize(
    ("told", "source", "body"),
    [
        (left(credit("C-2")), Source.TX_QUEUE, movement_message(credit("C-2"), "d").body),
        (given_up(refund()), Source.REFUND_QUEUE, refund_message(refund(), "d").body),
    ],
)
def test_what_has_no_row_is_sent_again_as_it_was_in_its_own_group_under_a_fresh_id(
    triage: Triage, told: dict[str, Any], source: Source, body: str
) -> None:
    letter = triage.keep(told).letter
    first_time = OutgoingMessage(body, PHONE, "d")  # as it was sent a moment ago
    triage.sent[source].send([first_time])

    assert triage.act("redrive", letter.letter_id) == ["redriven"]

    [_, again] = triage.sent[source].messages
    assert (again.body, again.group) == (body, PHONE)
    assert again.dedup_id not in {None, "d"}
    assert triage.letter(letter.letter_id).status is LetterStatus.REDRIVEN
    assert sum(len(queue.messages) for queue in triage.sent.values()) == 2


def test_what_the_bus_asked_for_goes_back_to_the_inbox(triage: Triage) -> None:
    event = json.dumps({"detail-type": "RefundRequested", "source": "x", "id": "1", "detail": {}})
    inner = record("Inbox", '{"detail": 1}', "inner")
    letters = [
        triage.keep(from_inbox(event)).letter,
        triage.keep(record("DeliveryFailures", unreadable("Inbox", "w", inner).body, "M-2")).letter,
    ]

    for letter in letters:
        assert triage.act("redrive", letter.letter_id) == ["redriven"]

    assert triage.sent[Source.INBOX].messages == [
        OutgoingMessage(event),
        OutgoingMessage('{"detail": 1}'),
    ]


def test_c11_what_was_declined_stays_declined_whichever_of_its_letters_is_redriven(
    triage: Triage,
) -> None:
    triage.accept(debit())
    technical = triage.keep(left(debit())).letter
    row = triage.row(debit())
    triage.store.rows[AGENT, row.idempotency_key] = released(row, START_MS)  # by another hand
    triage.store.wallets[PHONE] = replace(triage.store.wallets[PHONE], balance_minor=1)
    triage.settle(debit(attempt=2))
    declined = triage.row(debit())
    told = json.dumps({"reason": declined.reason})
    business = triage.keep(record("FailedTxQueue.fifo", told, "M-2")).letter
    assert (declined.status, business.status) == (Status.FAILED, LetterStatus.NOTED)

    outcomes = triage.act("redrive", technical.letter_id, business.letter_id)

    assert outcomes == ["closed", "already_terminal"]
    assert triage.row(debit()) == declined
    assert [queue.messages for queue in triage.sent.values()] == [[], [], []]
    assert triage.letter(technical.letter_id).history == (line(triage, "closed", OVER),)
    tried = "redrive refused: already terminal: noted"
    assert triage.letter(business.letter_id) == replace(
        business,
        revision=2,
        updated_at_ms=triage.clock.now_ms(),
        history=(line(triage, tried, "mended"),),
    )
    assert triage.act("discard", business.letter_id) == ["already_terminal"]
    assert len(triage.letter(business.letter_id).history) == 2
    assert triage.store.budgets == {}


@pytest.mark.parametrize("act", ["redrive", "discard"])
def test_c48_what_is_settled_by_now_is_closed_and_nothing_is_sent(triage: Triage, act: str) -> None:
    wanted: list[Movement] = [credit("C-2"), credit("C-3")]
    kept = [triage.keep(left(each, BUG, str(each.credit_id))).letter for each in wanted]  # type: ignore[union-attr]
    triage.settle(wanted[0])

    outcomes = triage.act(act, *(each.letter_id for each in kept))

    done = {"redrive": "redriven", "discard": "discarded"}[act]
    assert outcomes == ["closed", done]
    assert triage.messages(Source.TX_QUEUE) == [
        movement_message(each, "d").body for each in wanted[1:] if act == "redrive"
    ]


def test_c48_one_poison_letter_is_sent_five_times_by_hand_and_then_only_by_force(
    triage: Triage,
) -> None:
    def again(number: int) -> str:
        """Nobody could read it, once more."""
        inner = record("TxQueue.fifo", "{bad", f"inner {number}", attributes=in_group(PHONE))
        body = unreadable("TxQueue", "the body is not a JSON document", inner).body
        return triage.keep(record("DeliveryFailures", body, f"M-{number}")).letter.letter_id

    letter_ids = []
    outcomes = []
    for number in range(10):
        letter_ids.append(again(number))
        outcomes += triage.act("redrive", letter_ids[-1])

    assert outcomes == ["redriven"] * 5 + ["capped"] * 5
    assert triage.messages(Source.TX_QUEUE) == ["{bad"] * 5
    letter_id = letter_ids[-1]
    letter = triage.letter(letter_id)
    assert (letter.status, letter.history) == (LetterStatus.PARKED, ())
    assert triage.letters.budget(letter.subject_ref) == Budget(by_hand=5)
    assert triage.act("redrive", letter_id, dryRun=True) == ["capped"]
    assert triage.act("redrive", letter_id, force=True, why="the new version reads it") == [
        "redriven"
    ]
    assert triage.letter(letter_id).history == (
        line(triage, SENDING, "the new version reads it"),
        line(triage, "redriven", "the new version reads it"),
    )
    assert len({each.dedup_id for each in triage.sent[Source.TX_QUEUE].messages}) == 6


@pytest.mark.parametrize(
    "told",
    [
        record("DeliveryFailures", '{"DDBStreamBatchInfo": {}}'),
        record("DeliveryFailures", "whatever"),
        left(debit()),  # that no row asks for
    ],
)
def test_what_nobody_can_send_is_not_redriven_but_may_be_discarded(
    triage: Triage, told: dict[str, Any]
) -> None:
    letter = triage.keep(told).letter
    before = triage.everything()

    assert triage.act("redrive", letter.letter_id, force=True) == ["not_redrivable"]
    assert triage.everything() == before

    assert triage.act("discard", letter.letter_id) == ["discarded"]
    assert triage.letter(letter.letter_id).status is LetterStatus.DISCARDED
    assert triage.store.rows == {}


def test_a_letter_that_nobody_has_kept_is_unknown(triage: Triage) -> None:
    assert triage.act("redrive", "nothing") == ["unknown"]
    assert triage.act("discard", "nothing", "nothing") == ["unknown", "unknown"]


def test_a_row_that_was_held_past_its_expiry_gets_a_day(triage: Triage) -> None:
    letter = holding(triage)
    triage.clock.pause(30 * 86_400)

    assert triage.act("redrive", letter.letter_id) == ["redriven"]

    row, now_ms = triage.row(debit()), triage.clock.now_ms()
    assert row.expires_at_s == now_ms // 1000 + 86_400
    assert row.next_sweep_at_ms == now_ms + 120_000


def test_p8_a_letter_of_an_old_attempt_closes_when_it_is_touched(triage: Triage) -> None:
    """Somebody has released its row by other means, and it is under way."""
    letter = holding(triage)
    row = released(triage.row(debit()), START_MS)
    triage.store.rows[AGENT, row.idempotency_key] = row

    assert triage.act("redrive", letter.letter_id) == ["closed"]
    assert triage.row(debit()) == row
    assert triage.act("redrive", letter.letter_id) == ["already_terminal"]


# --- discard --------------------------------------------------------------------------------------


def test_a_discarded_debit_is_refused_for_good_and_its_row_is_never_purged(triage: Triage) -> None:
    letter = holding(triage)
    key = (AGENT, debit().idempotency_key)
    triage.store.purge_at_s[key] = 5  # whatever stood there before
    row, now_ms = triage.row(debit()), triage.clock.now_ms()

    assert triage.act("discard", letter.letter_id, why="asked twice") == ["discarded"]

    assert triage.row(debit()) == discarded_row(row, now_ms)
    assert (triage.row(debit()).status, triage.row(debit()).reason) == ("failed", "DISCARDED")
    assert triage.store.purge_at_s == {}
    after = triage.letter(letter.letter_id)
    assert (after.status, after.history) == (
        LetterStatus.DISCARDED,
        (line(triage, "discarded", "asked twice"),),
    )
    assert triage.store.budgets == {}
    assert triage.messages(Source.TX_QUEUE) == []
    triage.settle(debit(attempt=1), debit(attempt=2))  # a late message finds a refusal
    assert triage.store.wallets[PHONE].balance_minor == 1_000
    check_books(triage)
    assert triage.act("redrive", letter.letter_id) == ["already_terminal"]
    assert triage.act("discard", letter.letter_id) == ["already_terminal"]


def test_a_letter_whose_rows_cannot_be_read_is_kept_until_somebody_has_mended_them(
    triage: Triage,
) -> None:
    """Its row is held: a letter that is gone would leave it so for ever."""
    letter = holding(triage)

    def misread(call: Call) -> Any:
        if call.method == "decided":
            raise ValueError("no entry")
        return call.proceed()

    healthy, triage.subjects = triage.subjects, around(triage.subjects, misread)
    before = triage.everything()
    for act in ("redrive", "discard"):
        assert triage.act(act, letter.letter_id) == ["not_redrivable"]
    assert triage.everything() == before

    assert triage.pass_minutes(2)["parked"] == 1
    parked = triage.letter(letter.letter_id)
    assert (parked.status, parked.verdict) == (LetterStatus.PARKED, Verdict.PARKED)
    assert parked.history[0].why.startswith("its rows cannot be read")
    assert triage.pass_minutes(61) == {"openLetters": 1, "parkedLetters": 1, "unchanged": 1}
    triage.subjects = healthy
    assert triage.act("discard", letter.letter_id) == ["discarded"]
    assert triage.row(debit()).reason is Reason.DISCARDED


# --- cancelled, settled, sent again meanwhile -----------------------------------------------------


@pytest.mark.parametrize("how", [TRANSIENT, BUG])
def test_a_held_debit_that_its_agent_cancels_closes_its_letter_at_the_next_look(
    triage: Triage, how: Any
) -> None:
    letter = holding(triage, how=how)
    asked, books = refund("R-1"), FakeRefundBooks(triage.store)
    seen = books.see(asked)
    decided = decide_refund(asked, seen, triage.clock.now_ms(), patient=True)
    assert books.write(asked, seen, decided, START_MS) == Committed()  # type: ignore[arg-type]
    cancelled = triage.row(debit())
    assert (cancelled.status, cancelled.held_by) == (Status.CANCELLED, None)

    assert triage.pass_minutes(61) == {"openLetters": 1, "parkedLetters": how is BUG, "closed": 1}

    closed = triage.letter(letter.letter_id)
    assert (closed.status, closed.history) == (
        LetterStatus.CLOSED,
        (line(triage, "closed", OVER, who="triage"),),
    )
    assert triage.row(debit()) == cancelled
    assert triage.store.budgets == {}
    check_books(triage)


def test_a_letter_whose_row_was_mended_and_is_under_way_closes_by_itself(triage: Triage) -> None:
    """It holds nothing, and the sweep sends its row again."""
    triage.accept(debit())
    healthy = triage.subjects

    def misread(call: Call) -> Any:
        if call.method == "row":
            raise KeyError("amountMinor")
        return call.proceed()

    triage.subjects = around(healthy, misread)
    letter = triage.keep(left(debit())).letter
    row = triage.row(debit())
    assert (letter.status, row.status) == (LetterStatus.PARKED, Status.QUEUED)
    assert "unchanged" in triage.pass_minutes(61)
    triage.subjects = healthy

    assert "closed" in triage.pass_minutes(61)
    assert triage.row(debit()) == row


def test_a_refund_whose_books_nobody_can_read_is_not_sent_again_and_may_be_given_up(
    triage: Triage,
) -> None:
    letter = triage.keep(given_up(refund())).letter

    def misread(call: Call) -> Any:
        if call.method == "see":
            raise KeyError("refundedMinor")
        return call.proceed()

    triage.subjects = around(triage.subjects, misread)

    assert triage.act("redrive", letter.letter_id) == ["not_redrivable"]
    assert triage.messages(Source.REFUND_QUEUE) == []
    assert triage.act("discard", letter.letter_id) == ["discarded"]


def test_an_unfreeze_is_redriven_by_a_person_alone(triage: Triage) -> None:
    """Late, it may undo a freeze that was asked for since."""
    active = status_change(status=WalletStatus.ACTIVE)
    ids = [
        triage.keep(told).letter.letter_id
        for told in (left(active), given_up(active, "M-2"), from_inbox(STATUS, "M-3"))
    ]
    assert triage.pass_minutes(61) == {"openLetters": 3, "parkedLetters": 3, "unchanged": 3}
    assert {triage.letter(each).meaning for each in ids} == {
        "look whether it was frozen since: then redrive or discard"
    }

    assert triage.act("redrive", *ids) == ["redriven"] * 3
    assert len(triage.messages(Source.TX_QUEUE)) == 2


def test_a_parked_letter_closes_by_itself_once_the_ledger_has_its_outcome(triage: Triage) -> None:
    letter = triage.keep(left(credit("C-2"), BUG)).letter
    assert triage.pass_minutes(61) == {"openLetters": 1, "parkedLetters": 1, "unchanged": 1}
    looked = triage.letter(letter.letter_id)
    later_ms = triage.clock.now_ms() + 3_600_000
    assert looked == replace(letter, due_at_ms=later_ms, record_parts=1)  # nothing to tell of
    triage.settle(credit("C-2"))
    assert triage.pass_minutes(59) == {"openLetters": 1, "parkedLetters": 1}

    assert triage.pass_minutes(1) == {"openLetters": 1, "parkedLetters": 1, "closed": 1}

    assert triage.letter(letter.letter_id).status is LetterStatus.CLOSED
    assert triage.pass_minutes(60) == {"openLetters": 0, "parkedLetters": 0}


# --- by the clock ---------------------------------------------------------------------------------


def fail_again(triage: Triage, attempt: int) -> Letter:
    """The attempt that was made of it fails too."""
    assert triage.row(debit()).attempt == attempt
    again = left(debit(attempt=attempt), message_id=f"M-{attempt}")
    return triage.keep(again).letter


def test_a_debit_is_tried_again_after_1_5_and_15_minutes_and_then_waits_for_a_person(
    triage: Triage,
) -> None:
    triage.accept(debit())
    for attempt, minutes in ((1, 1), (2, 5), (3, 15)):
        letter = fail_again(triage, attempt)
        assert "redriven" not in triage.pass_minutes(minutes - 0.1)
        assert triage.row(debit()).status is Status.HELD
        assert triage.pass_minutes(0.1)["redriven"] == 1
        redriven = triage.letter(letter.letter_id)
        assert redriven.history == (line(triage, "redriven", "its time has come", who="triage"),)

    last = fail_again(triage, 4)
    assert triage.letters.budget(last.subject_ref) == Budget(automatic=3)
    assert (last.status, last.verdict) == (LetterStatus.PARKED, Verdict.PARKED)
    assert "used up" in last.meaning
    assert triage.pass_minutes(2_000) == {"openLetters": 1, "parkedLetters": 1, "unchanged": 1}
    assert triage.row(debit()).held_by == last.letter_id

    assert triage.act("redrive", last.letter_id) == ["redriven"]
    assert triage.letters.budget(last.subject_ref) == Budget(automatic=3, by_hand=1)


def test_letters_of_one_subject_share_its_budget_wherever_they_wait(triage: Triage) -> None:
    """Four letters of one credit were kept before the first was redriven."""
    kept = [triage.keep(left(credit("C-2"), message_id=f"M-{n}")).letter for n in range(4)]
    assert {each.due_at_ms for each in kept} == {START_MS + 60_000}

    assert triage.pass_minutes(1) == {
        "openLetters": 4,
        "parkedLetters": 0,
        "redriven": 3,
        "parked": 1,
    }

    assert triage.letters.budget(kept[0].subject_ref) == Budget(automatic=3)
    [parked] = [each for each in triage.store.letters.values() if each.status == "parked"]
    assert parked.history == (
        line(triage, "parked", "its automatic redrives are used up", who="triage"),
    )
    assert parked.due_at_ms == triage.clock.now_ms() + 3_600_000


def lanes_of(triage: Triage, *told: Json) -> list[list[str]]:
    """Keep these; which of their messages the clock's next run works off one after the other."""
    name = {triage.keep(each).letter.letter_id: each["messageId"] for each in told}
    triage.clock.pause(60)
    lanes: list[list[str]] = []

    def noted(work: Work) -> Work:
        def note_and_work(lane: Sequence[Letter]) -> Counter[Outcome]:
            lanes.append([name[each.letter_id] for each in lane])
            return work(lane)

        return note_and_work

    look = partial(look_again, desk=triage.desk)
    watch(triage.desk, triage.clock.now_ms() + 1_000, lambda each: look(each).outcome, noted)
    return sorted(lanes)


def test_letters_of_one_event_are_tried_one_after_the_other_since_they_share_a_budget(
    triage: Triage,
) -> None:
    """It was delivered twice and given up twice; its phone is in no letter's lane."""
    told = [from_inbox(CREDIT, f"M-{number}") for number in range(2)]

    [lane] = lanes_of(triage, *told)

    assert sorted(lane) == ["M-0", "M-1"]


def test_letters_of_two_events_whose_phones_nobody_reads_are_tried_side_by_side(
    triage: Triage,
) -> None:
    told = [from_inbox(event, f"M-{n}") for n, event in enumerate((CREDIT, CREDIT + " "))]

    assert lanes_of(triage, *told) == [["M-0"], ["M-1"]]


def test_letters_of_one_refund_that_name_two_phones_are_tried_one_after_the_other(
    triage: Triage,
) -> None:
    """They share a budget; and so does each keep its place in the order of its phone."""
    other = "254700000001"
    order: list[Movement | Refund] = [credit("C-1"), refund(), refund(phone=other)]
    told = [
        left(message, message_id=f"M-{n}", sent_ms=SENT_MS + n)
        for n, message in enumerate((*order, credit("C-2", phone=other)))
    ]
    third = left(credit("C-3", phone="254700000002"), message_id="M-4")

    assert lanes_of(triage, *reversed(told), third) == [["M-0", "M-1", "M-2", "M-3"], ["M-4"]]


def test_what_does_not_say_when_it_was_sent_goes_by_when_it_came(triage: Triage) -> None:
    unsaid, said = left(credit("C-2"), message_id="M-2"), left(credit("C-1"), message_id="M-1")
    note = json.loads(unsaid["body"])
    del note["record"]["attributes"]["SentTimestamp"]

    told = [unsaid | {"body": json.dumps(note)}, said]

    assert lanes_of(triage, *told) == [["M-1", "M-2"]]


def test_letters_of_a_phone_go_in_the_order_in_which_they_were_sent(triage: Triage) -> None:
    order = [3, 0, 4, 1, 2]
    for number in order:
        sent_ms = SENT_MS + number * 1_000
        triage.keep(left(credit(f"C-{number}"), message_id=f"M-{number}", sent_ms=sent_ms))
        other = credit(f"O-{number}", phone="254700000001")
        triage.keep(left(other, message_id=f"O-{number}", sent_ms=sent_ms))

    assert triage.pass_minutes(1)["redriven"] == 10

    sent = [json.loads(body)["id"] for body in triage.messages(Source.TX_QUEUE)]
    for kind in "CO":
        assert [each for each in sent if each[0] == kind] == [f"{kind}-{n}" for n in range(5)]


def test_the_clock_stops_in_time_and_goes_on_a_minute_later(triage: Triage) -> None:
    for number in range(3):
        triage.keep(left(credit(f"C-{number}"), message_id=f"M-{number}"))
    triage.clock.pause(60)
    triage.letters = around(triage.letters, slow(triage))

    answer = handle_request({"action": "due"}, triage.desk, triage.clock.now_ms() + 5_000)

    assert answer == {"openLetters": 3, "parkedLetters": 0, "redriven": 1}
    assert triage.pass_minutes(1)["redriven"] == 2


def slow(triage: Triage) -> Callable[[Call], Any]:
    """Each write takes five seconds."""

    def step(call: Call) -> Any:
        if call.method == "move":
            triage.clock.pause(5)
        return call.proceed()

    return step


# --- races and faults -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "messages", "attempt"),
    [(left(debit()), 0, 2), (left(credit("C-2")), 1, 1), (from_inbox(CREDIT), 1, 1)],
)
def test_of_two_redrives_at_once_one_counts_and_nothing_that_matters_is_sent_twice(
    triage: Triage, told: dict[str, Any], messages: int, attempt: int
) -> None:
    triage.accept(debit())
    letter = triage.keep(told).letter
    other = By("otieno", "I was first")

    def interfere() -> None:
        assert redrive(letter.letter_id, other, healthy).outcome is Outcome.REDRIVEN

    healthy = triage.desk
    triage.letters = scripted(triage.letters, "move", [first(interfere)])

    assert triage.act("redrive", letter.letter_id) == ["contended"]
    assert triage.act("redrive", letter.letter_id) == ["already_redriven"]

    after = triage.letter(letter.letter_id)
    done = [SENDING, "redriven"] if messages else ["redriven"]
    assert [(each.who, each.what) for each in after.history] == [("otieno", each) for each in done]
    assert triage.letters.budget(letter.subject_ref) == Budget(by_hand=1)
    assert sum(queue.depth() for queue in triage.sent.values()) == messages
    assert triage.row(debit()).attempt == attempt


def test_of_two_who_have_both_sent_it_one_counts_and_its_queue_takes_it_once(
    triage: Triage,
) -> None:
    letter = triage.keep(left(credit("C-2"))).letter
    healthy = triage.desk

    def interfere() -> None:
        assert redrive(letter.letter_id, By("otieno", "x"), healthy).outcome is Outcome.REDRIVEN

    triage.letters = scripted(triage.letters, "move", [proceed, first(interfere)])

    assert triage.act("redrive", letter.letter_id) == ["contended"]

    after = triage.letter(letter.letter_id)
    assert [(each.who, each.what) for each in after.history] == [
        ("amina", SENDING),
        ("otieno", "redriven"),
    ]
    assert triage.letters.budget(letter.subject_ref) == Budget(by_hand=1)
    assert len(triage.messages(Source.TX_QUEUE)) == 1


def test_what_may_be_on_its_way_is_not_given_up(triage: Triage) -> None:
    """A discard would say that it was not done; and then it is."""
    letter = triage.keep(left(credit("C-2"), BUG)).letter
    triage.letters = scripted(triage.letters, "move", [proceed, unavailable("Conflict")])
    assert triage.act("redrive", letter.letter_id) == ["contended"]

    for dry_run in (True, False):
        assert triage.act("discard", letter.letter_id, dryRun=dry_run) == ["on_its_way"]
    assert triage.letter(letter.letter_id).history == (line(triage, SENDING, "mended"),)

    assert triage.act("redrive", letter.letter_id) == ["redriven"]
    assert triage.letter(letter.letter_id).history == (
        line(triage, SENDING, "mended"),
        line(triage, "redriven", "mended"),
    )
    assert len(triage.messages(Source.TX_QUEUE)) == 1


def test_a_discard_that_comes_too_late_leaves_what_was_redriven_alone(triage: Triage) -> None:
    letter = holding(triage)
    desk = triage.desk
    triage.letters = scripted(
        triage.letters, "move", [first(lambda: redrive(letter.letter_id, AMINA, desk))]
    )

    assert triage.act("discard", letter.letter_id) == ["contended"]
    assert triage.act("discard", letter.letter_id) == ["already_redriven"]
    assert triage.row(debit()).status is Status.QUEUED


@pytest.mark.parametrize("minutes", [1, 10])
def test_c48_the_desk_killed_between_sending_and_writing_sends_what_its_consumer_knows(
    triage: Triage, minutes: int
) -> None:
    letter = triage.keep(left(credit("C-2"))).letter
    healthy = triage.letters

    def die(_: Call) -> Any:
        raise Crash

    triage.letters = scripted(triage.letters, "move", [proceed, die])
    with pytest.raises(Crash):
        redrive(letter.letter_id, AMINA, triage.desk)
    assert triage.letter(letter.letter_id).status is LetterStatus.WAITING
    assert len(triage.messages(Source.TX_QUEUE)) == 1
    triage.letters = healthy

    assert triage.pass_minutes(minutes)["redriven"] == 1

    # Within five minutes the queue drops it; after that the ledger knows the credit.
    assert len(triage.messages(Source.TX_QUEUE)) == (1 if minutes < 5 else 2)
    assert triage.letters.budget(letter.subject_ref) == Budget(automatic=1)
    triage.settle(credit("C-2"), credit("C-2"))
    assert triage.store.wallets[PHONE].balance_minor == 2_000


def test_c48_killed_after_sending_and_settled_meanwhile_it_is_closed(triage: Triage) -> None:
    letter = triage.keep(left(credit("C-2"))).letter
    triage.letters = scripted(triage.letters, "move", [proceed, unavailable("Conflict")])
    assert triage.act("redrive", letter.letter_id) == ["contended"]
    triage.settle(credit("C-2"))

    assert triage.act("redrive", letter.letter_id) == ["closed"]
    assert len(triage.messages(Source.TX_QUEUE)) == 1


def test_what_its_queue_does_not_take_waits_and_is_for_a_person_after_an_hour(
    triage: Triage,
) -> None:
    letter = triage.keep(left(credit("C-2"))).letter
    triage.sent[Source.TX_QUEUE].refuses = lambda _: True
    began = replace(
        letter, revision=2, updated_at_ms=START_MS, history=(line(triage, SENDING, "mended"),)
    )

    assert triage.act("redrive", letter.letter_id) == ["contended"]
    for minutes in (1, 60):
        assert triage.pass_minutes(minutes)["contended"] == 1
        assert triage.letter(letter.letter_id) == began
    assert triage.store.budgets == {}

    assert triage.pass_minutes(1)["parked"] == 1
    parked = triage.letter(letter.letter_id)
    assert parked.status is LetterStatus.PARKED
    assert parked.history[1:] == (line(triage, "parked", "its queue did not take it", "triage"),)

    triage.sent[Source.TX_QUEUE].refuses = lambda _: False
    assert triage.act("redrive", letter.letter_id) == ["redriven"]
    assert len(triage.messages(Source.TX_QUEUE)) == 1


@pytest.mark.parametrize("method", ["find", "record", "row", "decided", "budget", "move"])
def test_what_cannot_be_read_or_written_now_is_contended_and_nothing_moves(
    triage: Triage, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    letter, other = holding(triage), triage.keep(left(credit("C-2"), message_id="M-2")).letter
    before = triage.everything()
    triage.letters = scripted(triage.letters, method, [unavailable("ThrottlingException")])
    triage.subjects = scripted(triage.subjects, method, [unavailable("ThrottlingException")])

    answer = triage.act("redrive", letter.letter_id)

    assert answer == ["contended"]
    assert triage.everything() == before
    assert "CRITICAL" not in {each.levelname for each in caplog.records}
    assert triage.act("redrive", letter.letter_id, other.letter_id) == ["redriven"] * 2


def test_a_bug_on_one_letter_stops_no_other(triage: Triage) -> None:
    bad, good = (triage.keep(left(credit(f"C-{n}"), message_id=f"M-{n}")).letter for n in (1, 2))
    triage.letters = around(triage.letters, explodes_on(bad))

    assert triage.act("redrive", bad.letter_id, good.letter_id) == ["contended", "redriven"]
    assert triage.pass_minutes(1) == {"openLetters": 1, "parkedLetters": 0, "contended": 1}


def explodes_on(letter: Letter) -> Callable[[Call], Any]:
    """A bug that one letter alone meets."""

    def step(call: Call) -> Any:
        if call.method == "record" and call.arguments == (letter.letter_id,):
            raise KeyError(PHONE)
        return call.proceed()

    return step


def test_a_letter_that_the_clock_always_fails_on_is_for_a_person_after_an_hour(
    triage: Triage,
) -> None:
    """Until then it lets no later letter of its phone overtake; after that it is in no way."""
    bad = triage.keep(left(credit("C-1"))).letter
    triage.keep(left(credit("C-2"), message_id="M-2", sent_ms=SENT_MS + 1))
    triage.letters = around(triage.letters, explodes_on(bad))
    assert triage.pass_minutes(1) == {"openLetters": 2, "parkedLetters": 0, "contended": 1}

    answer = triage.pass_minutes(61)

    assert answer == {"openLetters": 2, "parkedLetters": 0, "parked": 1, "redriven": 1}
    assert triage.letter(bad.letter_id).history == (line(triage, "parked", "KeyError", "triage"),)
    triage.keep(left(credit("C-3"), message_id="M-3", sent_ms=SENT_MS + 1))
    triage.clock.pause(3_600)
    assert triage.ask("due") == {
        "openLetters": 2,
        "parkedLetters": 1,
        "contended": 1,
        "redriven": 1,
    }


def test_what_the_clock_fails_on_within_the_hour_is_not_hushed_up(triage: Triage) -> None:
    bad = triage.keep(left(credit("C-1"))).letter
    triage.letters = around(triage.letters, explodes_on(bad))
    triage.clock.pause(60)

    with pytest.raises(KeyError):
        look_again(bad, triage.desk)


def test_a_letter_whose_record_is_gone_is_parked_and_sent_by_nobody(triage: Triage) -> None:
    letter = triage.keep(left(credit("C-2"))).letter
    triage.store.records.clear()

    assert triage.act("redrive", letter.letter_id) == ["not_redrivable"]
    assert triage.pass_minutes(1)["parked"] == 1
    assert triage.letter(letter.letter_id).history == (
        line(triage, "parked", "its record is gone", who="triage"),
    )
    assert triage.pass_minutes(61)["unchanged"] == 1


def test_the_clock_parks_nothing_that_somebody_has_dealt_with_meanwhile(triage: Triage) -> None:
    letter = triage.keep(left(credit("C-2"))).letter
    record_of = triage.store.records.pop(letter.letter_id)
    desk = triage.desk

    def interfere() -> None:
        triage.store.records[letter.letter_id] = record_of
        assert discard(letter.letter_id, AMINA, desk).outcome is Outcome.DISCARDED

    triage.letters = scripted(triage.letters, "find", [proceed, first(interfere)])

    assert look_again(letter, triage.desk).outcome is Outcome.NOT_REDRIVABLE
    assert triage.letter(letter.letter_id).status is LetterStatus.DISCARDED


def test_the_clock_that_reads_an_index_that_lags_does_nothing_twice(triage: Triage) -> None:
    waiting = triage.keep(left(credit("C-2"))).letter
    parked = triage.keep(left(credit("C-3"), BUG, "M-2")).letter
    given_up = triage.keep(left(credit("C-4"), message_id="M-3")).letter
    triage.act("redrive", waiting.letter_id, parked.letter_id)
    triage.act("discard", given_up.letter_id)
    before = triage.everything()

    assert look_again(waiting, triage.desk).outcome is Outcome.ALREADY_REDRIVEN
    assert look_again(given_up, triage.desk).outcome is Outcome.ALREADY_TERMINAL
    assert look_again(parked, triage.desk).outcome is Outcome.CONTENDED
    triage.settle(credit("C-3"))
    assert look_again(parked, triage.desk).outcome is Outcome.CONTENDED

    after = triage.everything()
    assert after[2:] == before[2:]


# --- dry run, and limits --------------------------------------------------------------------------


def test_a_dry_run_says_what_would_come_of_each_and_writes_nothing(triage: Triage) -> None:
    letter = holding(triage)
    triage.settle(credit("C-3"))
    ids = [
        letter.letter_id,
        triage.keep(left(credit("C-2"), message_id="M-2")).letter.letter_id,
        triage.keep(record("DeliveryFailures", "?", "M-3")).letter.letter_id,
        triage.keep(
            record("FailedTxQueue.fifo", '{"reason": "DISCARDED"}', "M-4")
        ).letter.letter_id,
        "nothing",
    ]
    settled = triage.keep(left(credit("C-4"), BUG, "M-5")).letter.letter_id
    triage.settle(credit("C-4"))
    before = triage.everything()

    would = {act: triage.act(act, *ids, settled, dryRun=True) for act in ("redrive", "discard")}

    rest = ["already_terminal", "unknown", "closed"]
    assert would == {
        "redrive": ["redriven", "redriven", "not_redrivable", *rest],
        "discard": ["discarded", "discarded", "discarded", *rest],
    }
    assert triage.everything() == before
    assert triage.act("redrive", *ids, settled) == would["redrive"]


def test_the_history_of_a_letter_that_somebody_keeps_trying_has_an_end(triage: Triage) -> None:
    letter = triage.keep(record("FailedTxQueue.fifo", '{"reason": "DISCARDED"}')).letter
    full = replace(letter, history=(line(triage, "x", "y"),) * HISTORY_MAX)
    triage.store.letters[letter.letter_id] = full

    result = discard(letter.letter_id, AMINA, triage.desk)

    assert result.outcome is Outcome.ALREADY_TERMINAL
    assert triage.letter(letter.letter_id) == full


def test_row_of_another_letter_is_not_moved_by_this_one(triage: Triage) -> None:
    """Its row was released by hand, and is held by a later letter now."""
    letter = holding(triage)
    row = replace(row_of(debit(), Status.HELD), attempt=2, held_by="L-other")
    triage.store.rows[AGENT, row.idempotency_key] = row

    assert triage.act("discard", letter.letter_id) == ["closed"]

    assert triage.row(debit()) == row
