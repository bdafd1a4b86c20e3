"""The refunds' adapter: what one transaction holds, and how each of its failures is read."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fakes.faults import LASTING, PASSING
from tests.fakes.memory import START_MS
from tests.fakes.samples import debit, refund, row_of, waiting, wallet
from tests.fakes.wire import Answer, Wire, cancelled, error, ok, repeatedly, timed_out
from wallet_ledger.aws import clients, items
from wallet_ledger.aws.refunds import DynamoRefundBooks, DynamoRefundDesk
from wallet_ledger.domain.postings import Committed, Contended, Moved, NewEntry, Refused
from wallet_ledger.domain.refunds import (
    Answered,
    Cancel,
    Post,
    Refund,
    Reject,
    Seen,
    Wait,
    decide_refund,
)
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Posted
from wallet_ledger.errors import Unavailable

PASSING_REASONS = ["TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"]
LASTING_REASONS = ["ItemCollectionSizeLimitExceeded", "ValidationError", "SomethingNew"]

SETTLED = row_of(debit(), Status.SYNCED)
PARTLY = replace(row_of(debit(), Status.PARTIALLY_REFUNDED), refunded_minor=40)
DEBITED = items.read_entry(items.entry_item(NewEntry(debit(), Posted(2, 900)), START_MS))


@cache
def books(retention_days: int = 0) -> DynamoRefundBooks:
    """The adapter as the function makes it: one try for each call."""
    return DynamoRefundBooks(
        clients.dynamodb(on_consumed=lambda _name, _units: None, attempts=1),
        ledger_table="WalletLedger",
        offline_tx_table="OfflineTx",
        retention_days=retention_days,
    )


@cache
def desk() -> DynamoRefundDesk:
    """The adapter as ingest makes it."""
    return DynamoRefundDesk(
        clients.dynamodb(on_consumed=lambda _name, _units: None),
        ledger_table="WalletLedger",
        offline_tx_table="OfflineTx",
    )


def seen(row: OfflineTransaction | None, refunded_minor: int = 0) -> Seen:
    """A wallet of 900 and whatever is there of a debit of 100."""
    settled = row is None or row.status is not Status.QUEUED
    return Seen(row, DEBITED if settled else None, None, None, refunded_minor, wallet(900))


type Writable = Answered | Cancel | Post | Reject


def decided(asked: Refund, what: Seen) -> Writable:
    """What follows from it."""
    decision = decide_refund(asked, what, START_MS, patient=False)
    assert not isinstance(decision, Wait)
    return decision


CASES: dict[str, tuple[Refund, Seen]] = {
    "all": (refund(), seen(SETTLED)),
    "a part": (refund("R-1", 30), seen(SETTLED)),
    "another part": (refund("R-1", 30), seen(PARTLY, 40)),
    "what its agent waits for": (refund(), seen(waiting(SETTLED))),
    "while its agent waits for another": (refund("R-2", 30), seen(waiting(SETTLED))),
    "a year later": (refund("R-1", 30), seen(None, 40)),
    "too much": (refund("R-1", 101), seen(SETTLED)),
    "too much of the rest": (refund("R-1", 61), seen(PARTLY, 40)),
    "too much, and its agent waits": (
        refund("R-1", 101),
        seen(waiting(SETTLED, amount_minor=101)),
    ),
    "nothing there": (refund(), Seen(None, None, None, None, 0, None)),
    "cancelled": (refund(), seen(row_of(debit()))),
}
POST = CASES["another part"]
WRITTEN = {"Post": 4, "Reject": 3, "Cancel": 2}
"""Items of each kind of transaction: row, entry, total, balance."""


def write(case: tuple[Refund, Seen], retention_days: int = 0) -> object:
    """What the books answer."""
    asked, what = case
    return books(retention_days).write(asked, what, decided(asked, what), START_MS)


# --- one call -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("retention_days", [0, 30])
def test_a_refund_is_one_call_and_no_item_in_it_is_without_a_condition(
    wire: Wire, name: str, retention_days: int
) -> None:
    wire.answers(ok())

    assert write(CASES[name], retention_days) == Committed()

    assert wire.operations() == ["TransactWriteItems"]
    writes = [(verb, each) for item in sent(wire) for verb, each in item.items()]
    assert len(writes) == WRITTEN[type(decided(*CASES[name])).__name__]
    assert all(each["ConditionExpression"] for _, each in writes)
    assert {verb for verb, _ in writes} <= {"Put", "Update", "ConditionCheck"}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("retention_days", [0, 30])
def test_every_name_and_value_of_a_transaction_is_used_and_every_one_used_is_there(
    wire: Wire, name: str, retention_days: int
) -> None:
    """DynamoDB refuses a transaction for one value too many."""
    wire.answers(ok())
    write(CASES[name], retention_days)

    for item in sent(wire):
        [each] = item.values()
        text = " ".join((each["ConditionExpression"], each.get("UpdateExpression", "")))
        words = text.replace(",", " ").replace("(", " ").replace(")", " ").split()
        for mark, given in (
            ("#", each.get("ExpressionAttributeNames", {})),
            (":", each.get("ExpressionAttributeValues", {})),
        ):
            assert {word for word in words if word.startswith(mark)} == given.keys()
        assert each.get("ExpressionAttributeValues") != {}


def sent(wire: Wire) -> list[dict[str, Any]]:
    """The items of the transaction that went out last."""
    listed: list[dict[str, Any]] = wire.sent[-1].body["TransactItems"]
    return listed


def test_p4_the_bound_of_the_total_is_in_the_write(wire: Wire) -> None:
    wire.answers(ok())
    write(POST)

    [total] = [
        each["Update"]
        for each in sent(wire)
        if each.get("Update", {}).get("Key", {}).get("txId", {}).get("S", "").startswith("refunds#")
    ]
    assert "refundedMinor <= :room" in total["ConditionExpression"]
    assert total["ExpressionAttributeValues"][":room"] == {"N": "70"}
    assert total["ExpressionAttributeValues"][":total"] == {"N": "70"}


def test_all_that_counts_is_read_at_one_moment(wire: Wire) -> None:
    wire.answers(ok({"Responses": [{}] * 6}))

    assert books().see(refund()) == Seen(None, None, None, None, 0, None)

    assert wire.operations() == ["TransactGetItems"]
    keys = [each["Get"]["Key"] for each in sent(wire)]
    assert len({str(key) for key in keys}) == 6


@pytest.mark.parametrize("look", ["debit", "refund"])
def test_ingest_reads_as_of_now(wire: Wire, look: str) -> None:
    wire.answers(ok())

    assert LOOKS[look]() is None

    assert wire.operations() == ["GetItem"]
    assert wire.sent[0].body["ConsistentRead"] is True


LOOKS: dict[str, Callable[[], object]] = {
    "see": lambda: books().see(refund()),
    "debit": lambda: desk().debit(SETTLED),
    "refund": lambda: desk().refund(SETTLED, "R-1"),
    "move": lambda: desk().move(SETTLED, waiting(SETTLED), "R-1"),
}


# --- how a failure is read ------------------------------------------------------------------------


@pytest.mark.parametrize("code", PASSING_REASONS)
@pytest.mark.parametrize("place", range(4))
def test_a_passing_reason_anywhere_is_contention_whatever_stands_beside_it(
    wire: Wire, code: str, place: int
) -> None:
    for beside in ("None", "ConditionalCheckFailed", "ValidationError"):
        reasons = [beside] * 4
        reasons[place] = code
        wire.answers(cancelled(*reasons))
        assert write(POST) == Contended(tuple(reasons))


@pytest.mark.parametrize("place", range(4))
def test_any_condition_that_does_not_hold_means_look_again(wire: Wire, place: int) -> None:
    reasons = ["None"] * 4
    reasons[place] = "ConditionalCheckFailed"
    wire.answers(cancelled(*reasons))

    assert write(POST) == Moved()


@pytest.mark.parametrize("code", LASTING_REASONS)
@pytest.mark.parametrize("beside", ["None", "ConditionalCheckFailed"])
def test_a_lasting_reason_is_a_refusal_by_the_books_and_never_an_outcome(
    wire: Wire, code: str, beside: str
) -> None:
    reasons = [beside, beside, code, beside]
    wire.answers(cancelled(*reasons))

    assert write(POST) == Refused(tuple(reasons))


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_a_call_that_fails_for_a_passing_cause_is_contention(wire: Wire, fault: Answer) -> None:
    wire.answers(fault)

    assert isinstance(write(POST), Contended)


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING.keys())
def test_a_call_that_fails_for_a_lasting_cause_is_a_refusal(wire: Wire, fault: Answer) -> None:
    wire.answers(fault)

    assert isinstance(write(POST), Refused)


def test_an_answer_that_does_not_come_may_stand_for_a_write(wire: Wire) -> None:
    wire.answers(timed_out)

    assert write(POST) == Contended(("ReadTimeoutError",))


@pytest.mark.parametrize("reasons", [[], ["None"] * 4])
def test_a_cancellation_without_reasons_is_a_refusal(wire: Wire, reasons: list[str]) -> None:
    wire.answers(cancelled(*reasons))

    assert isinstance(write(POST), Refused)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_whatever_passes_is_unavailable_and_never_an_answer(
    wire: Wire, look: str, fault: Answer
) -> None:
    wire.answers(*repeatedly(fault))

    with pytest.raises(Unavailable):
        LOOKS[look]()


@pytest.mark.parametrize("look", ["see", "move"])
@pytest.mark.parametrize("code", PASSING_REASONS)
def test_a_look_that_meets_somebody_elses_transaction_is_unavailable(
    wire: Wire, look: str, code: str
) -> None:
    wire.answers(*repeatedly(cancelled("None", code)))

    with pytest.raises(Unavailable):
        LOOKS[look]()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING.keys())
def test_whatever_does_not_pass_is_raised_as_it_is(wire: Wire, look: str, fault: Answer) -> None:
    wire.answers(fault)

    with pytest.raises(ClientError):
        LOOKS[look]()


@pytest.mark.parametrize("reasons", [("ConditionalCheckFailed", "None"), ("None",) * 2])
def test_a_row_that_moved_or_an_id_that_is_decided_is_a_no_and_nothing_else_is(
    wire: Wire, reasons: tuple[str, ...]
) -> None:
    for listed in (reasons, reasons[::-1]):
        wire.answers(cancelled(*listed))
        if "ConditionalCheckFailed" in reasons:
            assert LOOKS["move"]() is False
        else:
            with pytest.raises(ClientError):
                LOOKS["move"]()


def test_the_move_of_ingest_is_one_transaction_that_never_writes_the_ledger(wire: Wire) -> None:
    wire.answers(ok())

    assert LOOKS["move"]() is True

    assert wire.operations() == ["TransactWriteItems"]
    tables = {each["TableName"]: verb for item in sent(wire) for verb, each in item.items()}
    assert tables == {"OfflineTx": "Update", "WalletLedger": "ConditionCheck"}


def test_an_error_with_an_amount_in_it_is_raised_without_being_guessed_at(wire: Wire) -> None:
    wire.answers(error("ConditionalCheckFailedException"))

    with pytest.raises(ClientError):
        LOOKS["see"]()
