"""The ledger's adapter: what one transaction holds, and how each of its failures is read."""

from functools import cache
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.faults import LASTING, PASSING
from tests.fakes.memory import START_MS
from tests.fakes.samples import PHONE, credit, debit, posting, status_change, wallet
from tests.fakes.wire import (
    Answer,
    Wire,
    cancelled,
    error,
    ok,
    repeatedly,
    timed_out,
)
from wallet_ledger.aws import clients, items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.domain.postings import (
    Committed,
    Conflicted,
    Contended,
    NewEntry,
    Posting,
    Refused,
    StatusOnly,
)
from wallet_ledger.domain.transactions import Reason
from wallet_ledger.domain.wallets import Posted, Rejected, Wallet, WalletStatus, movement_id
from wallet_ledger.errors import Unavailable

# What a cancellation may name, by AWS's own list; the first three pass.
PASSING_REASONS = ["TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"]
LASTING_REASONS = ["ItemCollectionSizeLimitExceeded", "ValidationError", "SomethingNew"]
LASTING_ERRORS = {
    **LASTING,
    "IdempotentParameterMismatch": error("IdempotentParameterMismatchException"),
    "ItemCollectionSizeLimit": error("ItemCollectionSizeLimitExceededException"),
    "a cancellation without reasons": cancelled(),
}


@cache
def ledger(retention_days: int = 0) -> DynamoLedger:
    """The adapter; its client costs a tenth of a second to make."""
    return DynamoLedger(
        clients.dynamodb(on_consumed=lambda _name, _units: None),
        ledger_table="WalletLedger",
        offline_tx_table="OfflineTx",
        retention_days=retention_days,
    )


GROUP = posting(wallet(500), debit("K-1", 400), credit("C-1", 50), debit("K-2", 400))
"""Six items: three entries, two rows, the balance."""


# --- one call -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted",
    [
        GROUP,
        posting(None, debit()),
        posting(None, credit(), status_change()),
        posting(wallet(1), debit()),
        posting(wallet(), *[debit(f"K-{number}") for number in range(10)]),
        posting(None, known=[StatusOnly(debit(), Posted(3, 7))]),
        posting(None, known=[StatusOnly(debit(), Rejected(Reason.KEY_REUSED))]),
        posting(wallet(status=WalletStatus.FROZEN), debit(), credit("C-2")),
    ],
)
@pytest.mark.parametrize("retention_days", [0, 30])
def test_a_posting_is_one_call_and_no_item_in_it_is_without_a_condition(
    wire: Wire, wanted: Posting, retention_days: int
) -> None:
    wire.answers(ok())

    assert ledger(retention_days).post(wanted) == Committed()

    assert wire.operations() == ["TransactWriteItems"]
    writes = [(verb, write) for item in items_sent(wire) for verb, write in item.items()]
    assert all(write["ConditionExpression"] for _, write in writes)
    assert {verb for verb, _ in writes} <= {"Put", "Update", "ConditionCheck"}
    keys = [str(write.get("Key") or key_of(write["Item"])) for _, write in writes]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("seen", [None, wallet(1)])
def test_a_refusal_holds_the_balance_and_writes_nothing_to_it(
    wire: Wire, seen: Wallet | None
) -> None:
    wire.answers(ok())

    assert ledger().post(posting(seen, debit())) == Committed()

    [*_, balance] = items_sent(wire)
    assert balance.keys() == {"ConditionCheck"}
    assert balance["ConditionCheck"]["Key"]["txId"] == {"S": items.BALANCE}


def items_sent(wire: Wire) -> list[dict[str, Any]]:
    """The items of the transaction that went out last."""
    listed: list[dict[str, Any]] = wire.sent[-1].body["TransactItems"]
    return listed


def key_of(item: dict[str, Any]) -> dict[str, Any]:
    """The key of an entry."""
    return {"phone": item["phone"], "txId": item["txId"]}


def test_a_wallet_is_read_consistently(wire: Wire) -> None:
    wire.answers(ok({}))

    assert ledger().wallet(PHONE) is None

    assert wire.operations() == ["GetItem"]
    assert wire.sent[0].body["ConsistentRead"] is True


def test_a_retry_within_a_call_is_the_same_transaction_and_the_next_call_is_another(
    wire: Wire,
) -> None:
    """So an answer that is lost is asked for again, and is then the first one's."""
    wire.answers(timed_out, ok(), ok())

    assert ledger().post(GROUP) == Committed()
    assert ledger().post(GROUP) == Committed()

    first, again, other = [sent.body["ClientRequestToken"] for sent in wire.sent]
    assert first == again != other


def test_the_largest_entry_takes_one_write_unit() -> None:
    longest = "x" * 64
    phone = "9" * 15
    largest = debit(
        longest,
        10**12,
        agent_id=longest,
        phone=phone,
        captured_at="2025-10-09T12:00:00.123456789+03:00",
    )
    entries = [
        NewEntry(largest, Posted(2**31, 2**53 - 1)),
        NewEntry(credit(longest, 10**12, source=longest, phone=phone), Posted(2**31, 2**53 - 1)),
        NewEntry(credit(longest, source=longest, phone=phone), Rejected(Reason.KEY_REUSED)),
    ]

    for new in entries:
        item = items.entry_item(new, START_MS)
        size = sum(len(name) + len(next(iter(value.values()))) for name, value in item.items())
        assert size < 1024


# --- failures, in the order of the rules ------------------------------------------------------


@pytest.mark.parametrize("code", PASSING_REASONS)
@pytest.mark.parametrize("place", range(len(GROUP.new)))
def test_a_passing_reason_anywhere_is_contention_whatever_stands_beside_it(
    wire: Wire, code: str, place: int
) -> None:
    reasons = ["ConditionalCheckFailed", "None", "ValidationError", "None", "None", "None"]
    reasons[place] = code
    wire.answers(cancelled(*reasons))

    assert ledger().post(GROUP) == Contended(tuple(reasons))
    assert wire.operations() == ["TransactWriteItems"]  # botocore does not retry a cancellation


@given(
    reasons=st.lists(
        st.sampled_from(["None", "ConditionalCheckFailed", *PASSING_REASONS, *LASTING_REASONS]),
        min_size=6,
        max_size=6,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_mixture_of_reasons_is_read_in_the_order_of_the_rules(
    wire: Wire, reasons: list[str]
) -> None:
    old = items.entry_item(NewEntry(credit("C-1"), Posted(1, 1)), START_MS)
    wire.answers(
        cancelled(
            *(
                {"Code": code} | ({"Item": old} if code == "ConditionalCheckFailed" else {})
                for code in reasons
            )
        )
    )

    answer = ledger().post(GROUP)

    if set(reasons) & set(PASSING_REASONS):
        assert answer == Contended(tuple(reasons))
    elif set(reasons) & set(LASTING_REASONS):
        assert answer == Refused(tuple(reasons))
    else:
        failed = [code == "ConditionalCheckFailed" for code in reasons]
        entries = [movement_id(new.movement) for new in GROUP.new]
        rows = [identity for identity in entries if identity[0] == "debit"]
        assert isinstance(answer, Conflicted)
        assert list(answer.recorded) == [entries[i] for i in range(3) if failed[i]]
        assert answer.moved == {rows[i] for i in range(2) if failed[3 + i]}
        assert answer.balance_moved is failed[5]


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_a_call_that_fails_for_a_passing_cause_is_contention(wire: Wire, fault: Answer) -> None:
    wire.answers(*repeatedly(fault))

    answer = ledger().post(GROUP)

    assert isinstance(answer, Contended)
    assert PHONE not in str(answer)


@pytest.mark.parametrize("fault", LASTING_ERRORS.values(), ids=LASTING_ERRORS.keys())
def test_a_call_that_fails_for_a_lasting_cause_is_a_refusal_and_no_business_outcome(
    wire: Wire, fault: Answer
) -> None:
    wire.answers(fault)

    answer = ledger().post(GROUP)

    assert isinstance(answer, Refused)
    assert PHONE not in str(answer)


@pytest.mark.parametrize("count", [1, 5, 7])
def test_reasons_that_do_not_match_the_items_are_not_guessed_at(wire: Wire, count: int) -> None:
    wire.answers(cancelled(*["ConditionalCheckFailed"] * count))

    assert isinstance(ledger().post(GROUP), Refused)


OLD_ENTRY = items.entry_item(NewEntry(credit("C-1"), Posted(1, 1)), START_MS)


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"Item": {}},
        {"Item": OLD_ENTRY | {"outcome": {"S": "rejected"}}},
        {"Item": OLD_ENTRY | {"outcome": {"S": "rejected"}, "reason": {"S": "NO_SUCH_REASON"}}},
        {"Item": OLD_ENTRY | {"version": {"N": "many"}}},
        {"Item": OLD_ENTRY | {"txId": {"S": "balance"}}},
    ],
)
def test_an_entry_that_cannot_be_read_is_a_refusal(wire: Wire, held: dict[str, Any]) -> None:
    wire.answers(cancelled({"Code": "ConditionalCheckFailed"} | held, *["None"] * 5))

    assert ledger().post(GROUP) == Refused(("UnreadableEntry",))


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_a_wallet_that_cannot_be_read_now_is_unavailable(wire: Wire, fault: Answer) -> None:
    wire.answers(*repeatedly(fault))

    with pytest.raises(Unavailable) as raised:
        ledger().wallet(PHONE)

    assert PHONE not in str(raised.value)


def test_a_wallet_that_may_not_be_read_is_not_taken_for_one_that_is_not_there(wire: Wire) -> None:
    wire.answers(error("AccessDeniedException"))

    with pytest.raises(ClientError):
        ledger().wallet(PHONE)
