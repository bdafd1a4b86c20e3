"""What a committed change means to the outside: the same at every reading, and for each move."""

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tests.fakes import samples
from tests.fakes.memory import START_MS
from tests.fakes.samples import AGENT
from wallet_ledger.aws import items
from wallet_ledger.contracts import Defaults, read_bus_request
from wallet_ledger.derive import Destination, Outgoing, from_entry, from_letter, from_row
from wallet_ledger.domain.ids import AgentId, Currency, Fingerprint
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
    Subject,
    diagnose,
    moved,
    opened,
)
from wallet_ledger.domain.postings import Entry, NewEntry
from wallet_ledger.domain.refunds import NO_CURRENCY, Post, Refund, Reject
from wallet_ledger.domain.transactions import OfflineTransaction, PendingRefund, Reason, Status
from wallet_ledger.domain.wallets import Movement, Outcome, Posted, Rejected, WalletStatus
from wallet_ledger.messages import read_movement
from wallet_ledger.ports import OutgoingEvent, OutgoingMessage

TX = ["TxQueue"]
DEFAULTS = Defaults(Currency("KES"), "KE")
EVENTS = {
    Status.HELD: ["TransactionHeld"],
    Status.SYNCED: ["TransactionSynced"],
    Status.FAILED: ["TransactionFailed", "FailedTxQueue"],
    Status.CANCELLED: ["TransactionCancelled", "RefundCompleted"],
    Status.EXPIRED: ["TransactionExpired"],
}
OPEN = (Status.QUEUED, Status.HELD)


def _expected(old: Status | None, new: Status) -> list[str]:
    """Every arrow of a row's life; what a refund comes to is told by its entry."""
    match old, new:
        case None | Status.HELD, Status.QUEUED:
            return TX
        case _, Status.REFUND_REQUESTED if new is not old:
            return ["RefundRequested"]
        case None | Status.QUEUED | Status.HELD, _ if new is not old:
            return EVENTS.get(new, [])
        case _:
            return []


def _row(status: Status = Status.QUEUED, **changes: Any) -> OfflineTransaction:
    row = samples.row_of(samples.request("k-1"), status)
    if status is Status.REFUND_REQUESTED:
        row = replace(samples.waiting(row, "R-1", 30), attempt=row.attempt)
    if status is Status.CANCELLED:
        row = replace(row, cancelled_by="R-1")
    return replace(row, **changes)


def _names(sent: list[Outgoing]) -> list[str]:
    return [
        one.content.detail_type if isinstance(one.content, OutgoingEvent) else one.destination.value
        for one in sent
    ]


def _detail(one: Outgoing) -> dict[str, Any]:
    assert isinstance(one.content, OutgoingEvent)
    detail: dict[str, Any] = json.loads(one.content.detail)
    return detail


def _message(one: Outgoing) -> OutgoingMessage:
    assert isinstance(one.content, OutgoingMessage)
    return one.content


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (old, new)
        for old, new in product([None, *Status], Status)
        if new is not Status.QUEUED or old in (None, *OPEN)  # nothing goes back from an end
    ],
)
def test_each_move_of_a_row_sends_what_the_design_says(old: Status | None, new: Status) -> None:
    sent = from_row(_row(old) if old else None, _row(new))
    assert _names(sent) == _expected(old, new)


def test_a_queued_row_is_sent_once_per_attempt_and_not_for_other_changes() -> None:
    first = _row()
    assert _names(from_row(first, replace(first, attempt=2))) == TX
    assert from_row(first, replace(first, next_sweep_at_ms=5, queued_at_ms=5)) == []


def test_the_message_of_a_row_is_the_debit_that_was_accepted() -> None:
    row = _row(captured_at="2026-11-02T09:14:07+03:00", attempt=3)
    (sent,) = from_row(None, row)
    message = _message(sent)
    assert message.group == row.phone
    debit = samples.debit("k-1", captured_at="2026-11-02T09:14:07+03:00", attempt=3)
    assert read_movement(message.body) == debit


def test_the_dedup_id_is_fresh_for_each_attempt_and_the_same_for_a_repetition() -> None:
    ids = [
        _message(from_row(None, replace(samples.row_of(samples.request(key)), attempt=attempt))[0])
        for key, attempt, _ in product(("k-1", "k-2"), (1, 2, 10, 11), range(2))
    ]
    assert len({message.dedup_id for message in ids}) == len(ids) / 2


def test_a_row_whose_content_was_tampered_with_is_not_sent() -> None:
    for tampered in (
        _row(amount_minor=99),
        _row(currency=Currency("USD")),
        _row(agent_id=AgentId("AG-002")),
        _row(fingerprint=Fingerprint("0" * 64)),
    ):
        with pytest.raises(ValueError, match="fingerprint"):
            from_row(None, tampered)


@pytest.mark.parametrize("status", EVENTS)
def test_an_event_has_the_same_id_at_every_reading(status: Status) -> None:
    row = _row(status, reason="WALLET_FROZEN", updated_at_ms=1_760_000_000_900)
    first = from_row(_row(), row)
    assert from_row(_row(Status.HELD), row) == first or status is Status.HELD
    assert from_row(_row(attempt=4), row) == first
    assert from_row(None, replace(row)) == first
    detail = _detail(first[0])
    assert detail["schemaVersion"] == 1
    assert detail | {"eventId": ""} == {
        "schemaVersion": 1,
        "eventId": "",
        "agentId": "AG-001",
        "idempotencyKey": "k-1",
        "phone": "254712345678",
        "amount": 100,
        "currency": "KES",
        "reason": "WALLET_FROZEN",
        "createdAt": row.created_at_ms,
        "occurredAt": 1_760_000_000_900,
    }


def test_no_two_events_share_an_id() -> None:
    rows = [
        samples.row_of(samples.request(key, amount, agent_id=agent), status)
        for key, amount, agent, status in product(
            ("k-1", "k-2", "k-1.0"), (1, 2), ("AG-001", "AG-002"), EVENTS
        )  # a purged key may come again with another amount
    ]
    ids = [_detail(from_row(None, row)[0])["eventId"] for row in rows]
    assert len(set(ids)) == len(ids)


def test_p1_what_was_purged_and_sent_again_is_told_under_the_same_id() -> None:
    """A payee that has acted on the first event must not act on the second."""
    again = replace(_row(Status.SYNCED), created_at_ms=1_770_000_000_000)
    first, second = (from_row(_row(), row) for row in (_row(Status.SYNCED), again))
    assert _detail(first[0])["eventId"] == _detail(second[0])["eventId"]


def test_the_end_of_a_row_has_one_id_whichever_attempt_came_to_it() -> None:
    ids = {
        _detail(from_row(_row(attempt=n), _row(Status.SYNCED, attempt=n))[0])["eventId"]
        for n in (1, 2, 7)
    }

    assert len(ids) == 1


def test_a_row_that_is_held_again_at_a_later_attempt_is_told_again() -> None:
    held = [from_row(_row(), _row(Status.HELD, attempt=n)) for n in (1, 2, 2)]
    first, second, again = (_detail(sent[0])["eventId"] for sent in held)
    assert first != second
    assert second == again


def test_a_refusal_is_also_a_letter_to_the_business_dead_letter_queue() -> None:
    row = _row(Status.FAILED, reason="INSUFFICIENT_FUNDS")
    event, letter = from_row(_row(), row)
    assert letter.destination is Destination.FAILED_TX_QUEUE
    message = _message(letter)
    assert message.group == row.phone
    assert json.loads(message.body) == _detail(event)
    again = _message(from_row(_row(), row)[1])
    another = _message(from_row(_row(), replace(row, agent_id=AgentId("AG-002")))[1])
    assert message.dedup_id == again.dedup_id != another.dedup_id


# --- refunds, before their entries ----------------------------------------------------------


def test_an_agents_request_goes_on_the_bus_like_anybody_elses_and_can_be_read_there() -> None:
    row = _row(Status.REFUND_REQUESTED)
    (sent,) = from_row(_row(Status.SYNCED), row)

    assert sent.destination is Destination.EVENT_BUS
    detail = _detail(sent)
    envelope = {"id": "e-1", "source": "wakala", "detail-type": "RefundRequested"}
    _, asked = read_bus_request(json.dumps(envelope | {"detail": detail}), DEFAULTS)
    assert isinstance(asked, Refund)
    expected = samples.refund("R-1", 30, key="k-1", requested_by="agent:AG-001")
    assert replace(asked, currency=None) == expected


def test_a_request_for_all_that_remains_names_no_amount() -> None:
    row = replace(_row(Status.REFUND_REQUESTED), refund_request=PendingRefund("full", None, "x"))
    assert "amount" not in _detail(from_row(None, row)[0])


def test_a_request_is_sent_once_for_each_attempt_and_the_bus_takes_each() -> None:
    """One event delivered twice is one message, so a re-emission must be another event."""
    first = _row(Status.REFUND_REQUESTED)
    again = replace(first, attempt=2, next_sweep_at_ms=5)
    ids = [
        _detail(from_row(old, new)[0])["eventId"]
        for old, new in ((None, first), (_row(Status.SYNCED), first), (first, again))
    ]
    assert ids[0] == ids[1] != ids[2]
    assert from_row(first, replace(first, refunded_minor=5)) == []
    assert from_row(first, replace(first, next_sweep_at_ms=5, queued_at_ms=5)) == []


def test_a_row_that_waits_and_says_not_for_what_is_a_letter_for_a_person() -> None:
    with pytest.raises(ValueError, match="says not which"):
        from_row(None, _row(Status.REFUND_REQUESTED, refund_request=None))


@pytest.mark.parametrize("status", [Status.SYNCED, Status.PARTIALLY_REFUNDED, Status.REFUNDED])
def test_the_end_of_a_refund_is_told_by_its_entry_and_not_by_the_row(status: Status) -> None:
    assert from_row(_row(Status.REFUND_REQUESTED), _row(status, refunded_minor=5)) == []


def test_a_cancellation_completes_the_refund_that_asked_for_it() -> None:
    row = _row(Status.CANCELLED, updated_at_ms=START_MS + 9)
    told, completed = from_row(_row(), row)

    assert _names([told]) == ["TransactionCancelled"]
    detail = _detail(completed)
    assert detail.pop("eventId") != _detail(told)["eventId"]
    assert detail == {
        "schemaVersion": 1,
        "agentId": "AG-001",
        "idempotencyKey": "k-1",
        "phone": "254712345678",
        "refundId": "R-1",
        "amount": 100,
        "currency": "KES",
        "cancelled": True,
        "occurredAt": START_MS + 9,
    }
    assert from_row(_row(Status.HELD), row) == from_row(_row(), row) == [told, completed]
    assert from_row(row, replace(row, updated_at_ms=5)) == []


# --- entries -------------------------------------------------------------------------------

POSTED = Posted(7, 1_900)
REUSED = Rejected(Reason.KEY_REUSED)


def _entry(movement: Movement, outcome: Outcome) -> Entry:
    return items.read_entry(items.entry_item(NewEntry(movement, outcome), START_MS))


@pytest.mark.parametrize(
    ("movement", "outcome", "detail_type", "detail"),
    [
        (
            samples.credit(),
            POSTED,
            "WalletCredited",
            {"creditId": "C-1", "amount": 1000, "source": "till"}
            | {"version": 7, "balanceAfter": 1_900},
        ),
        (
            samples.credit(),
            Rejected(Reason.CURRENCY_MISMATCH),
            "WalletCreditRejected",
            {"creditId": "C-1", "amount": 1000, "source": "till", "reason": "CURRENCY_MISMATCH"},
        ),
        (
            samples.status_change("S-1", WalletStatus.FROZEN),
            POSTED,
            "WalletStatusChanged",
            {"requestId": "S-1", "status": "frozen", "source": "desk"}
            | {"version": 7, "balanceAfter": 1_900},
        ),
        (
            samples.status_change("S-1", WalletStatus.ACTIVE),
            REUSED,
            "WalletStatusRejected",
            {"requestId": "S-1", "status": "active", "source": "desk", "reason": "KEY_REUSED"},
        ),
    ],
)
def test_an_entry_of_the_ledger_is_told_as_what_it_decided(
    movement: Movement, outcome: Outcome, detail_type: str, detail: dict[str, Any]
) -> None:
    (sent,) = from_entry(_entry(movement, outcome))
    assert sent.destination is Destination.EVENT_BUS
    assert _names([sent]) == [detail_type]
    always = {"schemaVersion": 1, "phone": "254712345678", "currency": "KES"}
    told = _detail(sent)
    told.pop("eventId")
    assert told == always | {"occurredAt": START_MS} | detail


@pytest.mark.parametrize("outcome", [POSTED, Rejected(Reason.INSUFFICIENT_FUNDS)])
def test_a_debit_entry_sends_nothing_since_its_row_does(outcome: Outcome) -> None:
    assert from_entry(_entry(samples.debit(), outcome)) == []


def test_no_two_entries_share_an_event_id_and_none_changes_its_own() -> None:
    movements = (
        samples.credit("A"),
        samples.credit("B"),
        samples.credit("A", source="bank"),
        samples.credit("A", phone="254733000111"),
        samples.status_change("A"),
    )
    cases: list[tuple[Movement, Outcome]] = [
        (movement, outcome) for movement in movements for outcome in (POSTED, REUSED)
    ]
    cases.append((samples.credit("A", 5), REUSED))  # another content of a reused id
    cases.append((samples.credit("A", 6), REUSED))
    ids = [_detail(from_entry(_entry(*case))[0])["eventId"] for case in cases]
    assert len(set(ids)) == len(ids)
    assert ids == [_detail(from_entry(_entry(*case))[0])["eventId"] for case in cases]


# --- entries of refunds -------------------------------------------------------------------------

GIVEN = Post(30, 100, Currency("KES"), samples.wallet(930, version=3), None)


def _refund_entry(asked: Refund, decided: Post | Reject) -> Entry:
    return items.read_entry(items.refund_item(asked, decided, Currency("KES"), START_MS))


@pytest.mark.parametrize(
    ("decided", "detail_type", "detail"),
    [
        (GIVEN, "RefundCompleted", {"amount": 30, "version": 3, "balanceAfter": 930}),
        (
            Reject(Reason.EXCEEDS_ORIGINAL, 0, None),
            "RefundRejected",
            {"amount": 30, "reason": "EXCEEDS_ORIGINAL", "remaining": 0},
        ),
        (
            Reject(Reason.EXCEEDS_ORIGINAL, 29, None),
            "RefundRejected",
            {"amount": 30, "reason": "EXCEEDS_ORIGINAL", "remaining": 29},
        ),
        *(
            (Reject(reason, None, None), "RefundRejected", {"amount": 30, "reason": str(reason)})
            for reason in (
                Reason.ORIGINAL_NOT_FOUND,
                Reason.NOTHING_TO_REFUND,
                Reason.MISMATCH,
                Reason.KEY_REUSED,
            )
        ),
    ],
)
def test_a_refunds_entry_is_told_as_what_it_decided(
    decided: Post | Reject, detail_type: str, detail: dict[str, Any]
) -> None:
    (sent,) = from_entry(_refund_entry(samples.refund("R-1", 30), decided))

    assert _names([sent]) == [detail_type]
    told = _detail(sent)
    told.pop("eventId")
    assert told == detail | {
        "schemaVersion": 1,
        "agentId": AGENT,
        "idempotencyKey": "K-1",
        "phone": "254712345678",
        "refundId": "R-1",
        "currency": "KES",
        "occurredAt": START_MS,
    }


def test_the_refusal_of_a_refund_of_all_names_no_amount() -> None:
    decided = Reject(Reason.EXCEEDS_ORIGINAL, 0, None)
    assert "amount" not in _detail(from_entry(_refund_entry(samples.refund(), decided))[0])


def test_the_refusal_of_a_refund_of_nothing_names_no_currency() -> None:
    """Where neither the request nor an original says one, the books have ISO's word for none."""
    decided = Reject(Reason.ORIGINAL_NOT_FOUND, None, None)
    asked = samples.refund("R-1", 30)
    unknown = items.read_entry(items.refund_item(asked, decided, NO_CURRENCY, START_MS))

    assert "currency" not in _detail(from_entry(unknown)[0])
    assert _detail(from_entry(_refund_entry(asked, decided))[0])["currency"] == "KES"


def test_no_two_refunds_share_an_event_id_and_none_changes_its_own() -> None:
    refused = Reject(Reason.KEY_REUSED, None, None)
    cases: list[tuple[Refund, Post | Reject]] = [
        (samples.refund("R-1", 30), GIVEN),
        (samples.refund("R-2", 30), GIVEN),
        (samples.refund("R-1", 30, key="K-2"), GIVEN),
        (samples.refund("R-1", 30, agent_id="AG-002"), GIVEN),
        (samples.refund("R-1", 30, phone="254733000111"), GIVEN),
        (samples.refund("R-1", 31), refused),
        (samples.refund("R-1", 32), refused),
    ]
    ids = [_detail(from_entry(_refund_entry(*case))[0])["eventId"] for case in cases]
    assert len(set(ids)) == len(ids)
    assert ids == [_detail(from_entry(_refund_entry(*case))[0])["eventId"] for case in cases]


# --- dead letters -------------------------------------------------------------------------------


def _letter(subject: Subject | None = None, letter_id: str = "L-1") -> Letter:
    """As it is filed: it waits for its automatic redrive."""
    original = Original("m-1", "254712345678", "d-1", 5, START_MS - 9)
    arrival = Arrival(
        letter_id=letter_id,
        source=Source.TX_QUEUE,
        failure=Failure.UNFINISHED,
        why="ThrottlingException of +254712345678",
        place="ledger.py post",
        original=original,
        body='{"phone": "254712345678"}',
        subject=subject or samples.debit("k-1", attempt=3),
    )
    diagnosis = diagnose(arrival.failure, Standing.OPEN, Budget())
    preview = '{"phone": "+2547…5678"}'
    return opened(arrival, diagnosis, Budget(), preview=preview, now_ms=START_MS)


def _acted(letter: Letter, status: LetterStatus, what: str) -> Letter:
    action = Action(START_MS + 7, "Wanjiru 254733000111", what, "asked by 254733000111")
    return moved(letter, status, action)


def test_a_letter_is_told_when_it_is_filed_and_at_each_change_of_its_status_alone() -> None:
    filed = _letter()
    looked_at = replace(filed, due_at_ms=START_MS + 1)
    revealed = _acted(looked_at, LetterStatus.WAITING, "revealed")
    redriven = _acted(revealed, LetterStatus.REDRIVEN, "redriven")
    changes = [(None, filed), (filed, looked_at), (looked_at, revealed), (revealed, redriven)]
    told = [from_letter(old, new) for old, new in changes]
    assert [_names(each) for each in told] == [["DeadLetterTriaged"], [], [], ["DeadLetterTriaged"]]
    ids = [_detail(sent)["eventId"] for each in told for sent in each]
    assert len(set(ids)) == 2
    assert told[0] == from_letter(None, _letter())


def test_a_letters_event_says_what_kind_of_trouble_it_is_and_nothing_of_anybodys() -> None:
    (sent,) = from_letter(_letter(), _acted(_letter(), LetterStatus.PARKED, "parked"))
    assert sent.destination is Destination.EVENT_BUS
    detail = _detail(sent)
    assert detail.pop("eventId")
    assert detail == {
        "schemaVersion": 1,
        "letterId": "L-1",
        "source": "TxQueue",
        "class": "TRANSIENT",
        "verdict": "parked",
        "status": "parked",
        "failure": "unfinished",
        "fingerprint": _letter().fingerprint,
        "agentId": AGENT,
        "idempotencyKey": "k-1",
        "attempt": 3,
        "occurredAt": START_MS + 7,
    }


def test_no_two_letters_share_an_event_id_and_one_of_no_transaction_names_none() -> None:
    credit = from_letter(None, _letter(samples.credit()))[0]
    assert not {"agentId", "idempotencyKey", "attempt"} & _detail(credit).keys()
    other = from_letter(None, _letter(letter_id="L-2"))[0]
    assert _detail(credit)["eventId"] != _detail(other)["eventId"]
