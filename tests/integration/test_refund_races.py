"""Refunds let go at once with debits, credits and each other, on each engine: never half of one.

As in test_reconcile_races.py no engine conflicts by itself: what these races meet are rows,
totals and balances that moved.
"""

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from ingest import refund as http
from reconcile.settle import Settlement, settle
from refund.give_back import Cancelled, Decided, Result, give_back
from tests.engine import Aws
from tests.fakes.promises import assert_books_add_up, refund_totals
from tests.fakes.samples import AGENT, PHONE, credit, debit, refund, row_of
from wallet_ledger.aws import items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.refunds import DynamoRefundBooks, DynamoRefundDesk
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import Debit, Movement, Posted, Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.patience import Patience

DELIVERIES_MAX = 20

rounds = pytest.mark.parametrize("number", range(5))


class Books:
    """One wallet on tables of its own, and all who write there."""

    def __init__(self, aws: Aws) -> None:
        self._client = aws.dynamodb
        self._tables = aws.tables()
        self._clock = SystemClock()
        both = {
            "ledger_table": self._tables.wallet_ledger,
            "offline_tx_table": self._tables.offline_tx,
        }
        self._ledger = DynamoLedger(self._client, **both, retention_days=0)
        self._refunds = DynamoRefundBooks(self._client, **both, retention_days=0)
        self._table = DynamoAcceptedTransactions(self._client, table=self._tables.offline_tx)
        self._entries = DynamoRefundDesk(
            self._client,
            ledger_table=self._tables.wallet_ledger,
            offline_tx_table=self._tables.offline_tx,
        )

    def accept(self, *debits: Debit) -> None:
        """Their rows, queued."""
        for each in debits:
            assert self._table.put_if_new(row_of(each)) is None

    def settle(self, *movements: Movement) -> list[Settlement]:
        """Settle, delivered again until nothing is left, as the queue does."""
        for _ in range(DELIVERIES_MAX):
            results = settle(movements, self._ledger, self._clock, self._patience())
            assert not [each for each in results if isinstance(each, Violation)]
            if not any(isinstance(each, Unfinished) for each in results):
                return results
        pytest.fail(f"unfinished after {DELIVERIES_MAX} deliveries")

    def refund(self, asked: Refund) -> Result:
        """Give back, delivered again while others are in the way, but not while it has to wait."""
        for _ in range(DELIVERIES_MAX):
            result = give_back(asked, self._refunds, self._clock, self._patience(), patient=True)
            assert not isinstance(result, Violation)
            if not isinstance(result, Unfinished) or result.codes == ("NOT_SETTLED",):
                return result
        pytest.fail(f"unfinished after {DELIVERIES_MAX} deliveries")

    def ask(self, refund_id: str = "full", amount_minor: int | None = None) -> http.Answer:
        """What the agent's app is answered."""
        wanted = http.Wanted(AGENT, IdempotencyKey("K-1"), refund_id, amount_minor, "wrong phone")
        return http.request_refund(
            wanted, self._table, self._entries, self._clock, self._patience()
        )

    def row(self, key: str = "K-1") -> OfflineTransaction:
        """A row of the agent."""
        row = self._table.find(AGENT, IdempotencyKey(key))
        assert row is not None
        return row

    def read(self) -> tuple[int, list[Entry]]:
        """The balance and the entries, which must add up with the rows."""
        found = self._client.scan(TableName=self._tables.wallet_ledger, ConsistentRead=True)
        named = {item["txId"]["S"]: item for item in found["Items"]}
        wallet = items.read_wallet(named[items.BALANCE])
        entries = [items.read_entry(item) for name, item in named.items() if items.entry_kind(name)]
        totals = refund_totals(found["Items"])
        rows = self._client.scan(TableName=self._tables.offline_tx, ConsistentRead=True)["Items"]
        assert_books_add_up(wallet, entries, map(items.read_offline_tx, rows), totals)
        return wallet.balance_minor, entries

    def _patience(self) -> Patience:
        return Patience(self._clock, random.random, 2_000)


def is_posted(entry: Entry) -> bool:
    """Whether it moved the balance."""
    return isinstance(entry.outcome, Posted)


def at_once(*calls: Callable[[], object]) -> list[object]:
    """The answers of calls that all begin at the same moment."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


@pytest.fixture
def books(each_engine: Aws) -> Books:
    """A wallet of 500 with a debit of 100 that is queued."""
    made = Books(each_engine)
    made.settle(credit("C-0", 500))
    made.accept(debit())
    return made


@rounds
def test_of_two_concurrent_60s_on_a_100_exactly_one_is_given_back(
    books: Books, number: int
) -> None:
    books.settle(debit())

    answers = at_once(
        partial(books.refund, refund("R-1", 60)), partial(books.refund, refund("R-2", 60))
    )

    refused = Decided(Rejected(Reason.EXCEEDS_ORIGINAL), new=True)
    assert answers.count(refused) == 1
    assert answers.count(Decided(Posted(3, 460), new=True)) == 1
    balance_minor, _ = books.read()
    assert balance_minor == 460
    assert (books.row().status, books.row().refunded_minor) == (Status.PARTIALLY_REFUNDED, 60)


@rounds
def test_c13_refunds_of_two_debits_to_a_wallet_at_500_make_650(
    each_engine: Aws, number: int
) -> None:
    books = Books(each_engine)
    books.settle(credit("C-0", 1_000))
    debits = [debit("K-1", 300), debit("K-2", 200)]
    books.accept(*debits)
    books.settle(*debits)
    assert books.read()[0] == 500

    at_once(
        partial(books.refund, refund("R-1", 100, key="K-1")),
        partial(books.refund, refund("R-1", 50, key="K-2")),
    )

    assert books.read()[0] == 650


@rounds
def test_c14_a_debit_given_back_in_full_under_six_ids_at_once_comes_back_once(
    books: Books, number: int
) -> None:
    books.settle(debit())

    at_once(*(partial(books.refund, refund(f"R-{each}")) for each in range(6)))

    balance_minor, entries = books.read()
    assert balance_minor == 500
    outcomes = Counter(is_posted(each) for each in entries if each.kind == "refund")
    assert outcomes == {True: 1, False: 5}
    assert books.row().status is Status.REFUNDED


@rounds
def test_c37_one_request_on_six_workers_at_once_is_one_refund(books: Books, number: int) -> None:
    books.settle(debit())

    answers = at_once(*[partial(books.refund, refund("R-1", 30))] * 6)

    assert answers.count(Decided(Posted(3, 430), new=True)) == 1
    assert answers.count(Decided(Posted(3, 430), new=False)) == 5
    assert books.read()[0] == 430


@rounds
def test_a_full_refund_beside_its_settlement_leaves_the_wallet_as_it_was(
    books: Books, number: int
) -> None:
    """Cancelled, or debited and given back; never half."""
    answers = at_once(partial(books.settle, debit()), partial(books.refund, refund()))

    balance_minor, entries = books.read()
    assert balance_minor == 500
    moved = Counter(each.kind for each in entries)
    if books.row().status is Status.CANCELLED:
        assert answers[1] == Cancelled(new=True)
        assert moved == {"credit": 1}
    else:
        assert books.row().status is Status.REFUNDED
        assert moved == {"credit": 1, "debit": 1, "refund": 1}


@rounds
def test_a_partial_refund_beside_its_settlement_waits_or_is_given_back(
    books: Books, number: int
) -> None:
    asked = refund("R-1", 30)

    at_once(partial(books.settle, debit()), partial(books.refund, asked))
    assert isinstance(books.refund(asked), Decided)

    assert books.read()[0] == 430
    assert books.row().status is Status.PARTIALLY_REFUNDED


@rounds
def test_an_agents_cancellation_beside_the_settlement_is_one_or_the_other(
    books: Books, number: int
) -> None:
    _, answer = at_once(partial(books.settle, debit()), books.ask)

    status = books.row().status
    match answer:
        case http.CancelledNow():
            assert status is Status.CANCELLED
        case http.Requested():
            assert status is Status.REFUND_REQUESTED
        case _:
            assert answer == http.NotRefundable(None, None, settled=False)
            assert status is Status.SYNCED
    assert books.read()[0] == (500 if status is Status.CANCELLED else 400)


@rounds
def test_everybody_at_once_on_one_debit_ends_with_books_that_add_up(
    books: Books, number: int
) -> None:
    asked = [refund("P-1", 60), refund("P-2", 60), refund("desk"), refund("P-1", 60)]
    calls: list[Callable[[], object]] = [
        partial(books.settle, debit()),
        partial(books.settle, debit(attempt=2)),
        partial(books.settle, credit("C-1", 7)),
        partial(books.ask, "A-1", 25),
        *(partial(books.refund, each) for each in asked),
    ]

    at_once(*calls)
    for each in asked:
        assert not isinstance(books.refund(each), Unfinished)
    pending = books.row().refund_request
    if pending is not None:
        books.refund(refund(pending.refund_id, pending.amount_minor))

    balance_minor, entries = books.read()
    row = books.row()
    assert row.status in {Status.CANCELLED, Status.REFUNDED, Status.PARTIALLY_REFUNDED}
    given_back = sum(e.amount_minor for e in entries if e.kind == "refund" and is_posted(e))
    taken = 0 if row.status is Status.CANCELLED else 100
    assert balance_minor == 507 - taken + given_back
    assert given_back <= taken
    assert row.phone == PHONE


@rounds
def test_agents_that_ask_twice_at_once_are_told_the_same(books: Books, number: int) -> None:
    books.settle(debit())

    answers = at_once(*[partial(books.ask, "A-1", 25)] * 4)

    kinds = Counter(type(each).__name__ for each in answers)
    assert kinds == {"Requested": 1, "Repeated": 3}
    assert books.row().attempt == 2
