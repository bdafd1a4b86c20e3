"""Many workers on one wallet, let go at once, on each engine: in the end the books add up.

No engine conflicts by itself, so what these races meet are moved balances, entries that are
there already and rows that are closed: the conditions that carry the promises.
"""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier
from typing import Any

import pytest

from reconcile.settle import Dropped, Settled, Settlement, settle
from tests.engine import Aws
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import KES, PHONE, USD, credit, debit, open_row, row_of, status_change
from wallet_ledger.aws import items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.transactions import DynamoOpenTransactions
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import (
    Debit,
    Movement,
    Posted,
    Rejected,
    Wallet,
    WalletStatus,
)
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.patience import Patience

WORKERS = 6
DELIVERIES_MAX = 20

rounds = pytest.mark.parametrize("number", range(3))


class Books:
    """One wallet on tables of its own."""

    def __init__(self, aws: Aws) -> None:
        self._client = aws.dynamodb
        self._tables = aws.tables()
        self._clock = SystemClock()
        self.ledger = DynamoLedger(
            self._client,
            ledger_table=self._tables.wallet_ledger,
            offline_tx_table=self._tables.offline_tx,
            retention_days=0,
        )
        self.sweep = DynamoOpenTransactions(self._client, table=self._tables.offline_tx)

    def accept(self, *debits: Debit) -> None:
        """Their rows, queued."""
        for each in debits:
            item = items.offline_tx_item(row_of(each))
            self._client.put_item(TableName=self._tables.offline_tx, Item=item)

    def settle(self, movements: Sequence[Movement]) -> list[Settlement]:
        """Settle, delivered again until nothing is left, as the queue does."""
        for _ in range(DELIVERIES_MAX):
            patience = Patience(self._clock, random.random, 2_000)
            results = settle(movements, self.ledger, self._clock, patience)
            assert not [each for each in results if isinstance(each, Violation)]
            if not any(isinstance(each, Unfinished) for each in results):
                return results
        pytest.fail(f"unfinished after {DELIVERIES_MAX} deliveries")

    def race(self, *batches: Sequence[Movement]) -> list[list[Settlement]]:
        """One worker for each batch, all let go at once."""
        return at_once(*(partial(self.settle, batch) for batch in batches))

    def rows(self) -> list[OfflineTransaction]:
        """All rows."""
        found = self._client.scan(TableName=self._tables.offline_tx, ConsistentRead=True)
        return [items.read_offline_tx(item) for item in found["Items"]]

    def read(self) -> tuple[Wallet | None, list[Entry]]:
        """The wallet and its entries, which must add up with the rows."""
        found = self._client.scan(TableName=self._tables.wallet_ledger, ConsistentRead=True)
        balances = [i for i in found["Items"] if i["txId"]["S"] == items.BALANCE]
        entries = [items.read_entry(i) for i in found["Items"] if i not in balances]
        wallet = items.read_wallet(balances[0]) if balances else None
        assert_books_add_up(wallet, entries, self.rows(), {})
        return wallet, entries


@pytest.fixture
def books(each_engine: Aws) -> Books:
    """Empty books."""
    return Books(each_engine)


def at_once[Answer](*calls: Callable[[], Answer]) -> list[Answer]:
    """The answers of calls that all begin at the same moment."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Answer]) -> Answer:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def posted(entries: Sequence[Entry]) -> list[str]:
    """The references of what is posted."""
    return sorted(entry.reference for entry in entries if isinstance(entry.outcome, Posted))


@rounds
def test_the_same_batch_on_every_worker_is_settled_once(books: Books, number: int) -> None:
    debits = [debit(f"K-{index}", 30) for index in range(4)]
    batch: list[Movement] = [credit("C-1", 100), *debits, status_change("S-1")]
    books.accept(*debits)

    answers = books.race(*[batch] * WORKERS)

    wallet, entries = books.read()
    assert wallet == Wallet(PHONE, 10, KES, 5, WalletStatus.FROZEN)
    assert posted(entries) == ["C-1", "K-0", "K-1", "K-2", "S-1"]
    assert len(entries) == 6
    assert sum(is_new(each) for results in answers for each in results) == 6
    assert {row.status for row in books.rows()} == {Status.SYNCED, Status.FAILED}


def is_new(settlement: Settlement) -> bool:
    """Whether this worker was the one who decided."""
    return isinstance(settlement, Settled) and settlement.new


@rounds
def test_debits_and_credits_from_every_side_never_overdraw(books: Books, number: int) -> None:
    books.settle([credit("C-0", 200)])
    batches: list[list[Movement]] = [
        [
            debit(f"K-{worker}", 70, agent_id=f"AG-{worker}"),
            credit(f"C-{worker}", 25),
            debit(f"L-{worker}", 40, agent_id=f"AG-{worker}"),
        ]
        for worker in range(1, WORKERS + 1)
    ]
    books.accept(*(each for batch in batches for each in batch if isinstance(each, Debit)))

    books.race(*batches)

    wallet, entries = books.read()
    assert wallet is not None
    spent = sum(e.amount_minor for e in entries if e.kind == "debit" and is_posted(e))
    assert wallet.balance_minor == 200 + 25 * WORKERS - spent
    assert len(entries) == 1 + 3 * WORKERS
    assert {row.status for row in books.rows()} <= {Status.SYNCED, Status.FAILED}


def is_posted(entry: Entry) -> bool:
    """Whether it moved the balance."""
    return isinstance(entry.outcome, Posted)


@rounds
def test_of_debits_that_each_take_all_exactly_one_is_posted(books: Books, number: int) -> None:
    books.settle([credit("C-0", 100)])
    debits = [debit(f"K-{index}", 100) for index in range(WORKERS)]
    books.accept(*debits)

    answers = books.race(*[[each] for each in debits])

    wallet, _ = books.read()
    assert wallet is not None
    assert (wallet.balance_minor, wallet.version) == (0, 2)
    outcomes = [each.outcome for [each] in answers if isinstance(each, Settled)]
    assert outcomes.count(Posted(2, 0)) == 1
    assert outcomes.count(Rejected(Reason.INSUFFICIENT_FUNDS)) == WORKERS - 1


@rounds
def test_a_wallet_that_everybody_opens_at_once_is_one_wallet(books: Books, number: int) -> None:
    early = debit("K-1", 10)
    books.accept(early)
    batches: list[list[Movement]] = [
        [credit("C-1", 10)],
        [status_change("S-1", WalletStatus.ACTIVE)],
        [credit("C-2", 20), status_change("S-2", WalletStatus.ACTIVE)],
        [credit("C-3", 40, currency=USD)],
        [early],
    ]

    books.race(*batches)

    wallet, entries = books.read()
    assert wallet is not None
    assert len(entries) == 6
    own = 30 if wallet.currency == KES else 40
    paid = 10 if "K-1" in posted(entries) else 0
    assert wallet.balance_minor == own - paid
    refusals = {e.outcome.reason for e in entries if isinstance(e.outcome, Rejected)}
    assert refusals <= {
        Reason.CURRENCY_MISMATCH,
        Reason.WALLET_NOT_FOUND,
        Reason.INSUFFICIENT_FUNDS,
    }


@rounds
def test_one_credit_id_with_two_contents_is_posted_once_whoever_comes_first(
    books: Books, number: int
) -> None:
    books.race(*[[credit("C-1", 100)], [credit("C-1", 1)]] * 3)

    wallet, entries = books.read()
    assert wallet is not None
    assert wallet.balance_minor in {1, 100}
    assert posted(entries) == ["C-1"]
    [other] = [entry for entry in entries if not is_posted(entry)]
    assert other.outcome == Rejected(Reason.KEY_REUSED)


@rounds
def test_a_row_that_expires_while_it_is_settled_is_one_or_the_other(
    books: Books, number: int
) -> None:
    debits = [debit(f"K-{index}", 1) for index in range(10)]
    books.settle([credit("C-0", 10)])
    books.accept(*debits)

    def expire() -> list[bool]:
        return [books.sweep.expire(open_row(row_of(each)), each.created_at_ms) for each in debits]

    calls: list[Callable[[], Any]] = [expire, partial(books.settle, debits)]
    expired, settled = at_once(*calls)

    wallet, entries = books.read()
    assert wallet is not None
    rows = books.rows()
    assert {row.status for row in rows} <= {Status.SYNCED, Status.EXPIRED}
    synced = [row.idempotency_key for row in rows if row.status is Status.SYNCED]
    assert posted(entries) == sorted(["C-0", *synced])
    assert wallet.balance_minor == 10 - len(synced)
    assert sum(expired) == 10 - len(synced)
    assert [isinstance(each, Dropped) for each in settled] == expired


@rounds
def test_a_purged_row_that_comes_again_on_every_worker_is_no_second_debit(
    books: Books, number: int
) -> None:
    wanted = debit("K-1", 60)
    books.accept(wanted)
    books.settle([credit("C-0", 100), wanted])
    books.accept(wanted)  # purged and submitted again: a fresh row under the old key

    books.race(*[[replace(wanted, attempt=worker)] for worker in range(1, WORKERS + 1)])

    wallet, _ = books.read()
    assert wallet is not None
    assert (wallet.balance_minor, wallet.version) == (40, 2)
    assert [row.status for row in books.rows()] == [Status.SYNCED]
