"""The bench on an engine in this process: what it counts is what each backend did."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from bench.article import Article
from bench.books import Debit, left
from bench.compare import ARTICLE, NAIVE, OURS, SHARES, TEN, Backend, Run, Side, deliveries, run
from bench.ours import Ours, Record
from tests.simulation.cloud.clients import simulated
from wakala.output import Problem
from wakala.traffic import Shape, Shares, make_traffic

NUMBER = 200


@pytest.fixture(autouse=True)
def _engine() -> Iterator[None]:
    with simulated() as aws, aws.reached():
        yield


def ran(side: Side, shape: Shape, *, weigh: bool = False) -> Run:
    """A backend under the bench's own load."""
    traffic = make_traffic(shape, NUMBER, seed=1, shares=SHARES)
    return run(side, traffic, seed=1, weigh=weigh)


@pytest.mark.parametrize("shape", Shape)
def test_under_one_load_the_naive_backend_debits_twice_and_ours_never(shape: Shape) -> None:
    naive, ours = ran(NAIVE, shape), ran(OURS, shape)

    assert naive.duplicates > 0
    assert ours.duplicates == ours.unpaid == ours.overdrawn == ours.open == 0
    assert naive.debits == ours.debits == NUMBER


def test_the_articles_backend_debits_nothing_twice_either() -> None:
    found = ran(ARTICLE, Shape.BRANCH)
    assert (found.duplicates, found.unpaid, found.overdrawn, found.open) == (0, 0, 0, 0)


class Idle(Ours):
    """Opens wallets and settles nothing."""

    def handle(self, records: Sequence[Record]) -> list[str]:
        """Say that all is done."""
        opening = json.loads(records[0]["body"])["kind"] == "credit"
        return super().handle(records) if opening else []


def test_a_backend_that_settles_nothing_leaves_all_open_and_has_no_speed() -> None:
    found = ran(replace(OURS, make=Idle), Shape.BRANCH)
    assert (found.open, found.per_second, found.duplicates) == (NUMBER, 0, 0)


@pytest.mark.parametrize(("amount", "wrong"), [(-1, (1, 0)), (1, (0, 1))])
def test_a_balance_that_its_entries_do_not_explain_is_counted(
    amount: int, wrong: tuple[int, int]
) -> None:
    """As where a balance is debited again and its entry, whose key is taken, is not written."""

    class Careless(Ours):
        def __init__(self, client: Any, rows: str, books: str, *rest: Any) -> None:
            super().__init__(client, rows, books, *rest)
            self.client, self.books = client, books

        def handle(self, records: Sequence[Record]) -> list[str]:
            failed = super().handle(records)
            phone = json.loads(records[0]["body"])["phone"]
            self.client.update_item(
                TableName=self.books,
                Key={"phone": {"S": phone}, "txId": {"S": "balance"}},
                UpdateExpression="ADD balanceMinor :amount",
                ExpressionAttributeValues={":amount": {"N": str(amount)}},
            )
            return failed

    found = ran(replace(OURS, make=Careless), Shape.HOT)
    assert (found.duplicates, found.unpaid) == wrong


def test_a_wallet_below_zero_is_counted_though_its_entries_explain_it() -> None:
    traffic = make_traffic(Shape.UNIFORM, 1, seed=1, shares=Shares(0, 0, 0, 0))
    ((phone, opening),) = traffic.openings.items()
    item = {"phone": {"S": phone}, "balance": {"N": "-1"}}

    found = left(traffic, [], [item], lambda _: Debit("k", phone, opening + 1), "balance")
    assert (found.duplicates, found.unpaid, found.overdrawn) == (0, 0, 1)


@pytest.mark.parametrize(
    ("status", "entry", "is_open"),
    [
        ("synced", True, False),
        ("synced", False, True),
        ("failed", True, True),
        ("failed", False, True),
        ("held", True, True),
    ],
)
def test_a_covered_debit_is_done_where_it_is_synced_and_in_the_books(
    status: str, entry: bool, is_open: bool
) -> None:
    traffic = make_traffic(Shape.UNIFORM, 1, seed=1, shares=Shares(0, 0, 0, 0))
    (sent,) = traffic.sent
    key, phone = sent.document["idempotencyKey"], sent.document["phone"]
    row = {"idempotencyKey": {"S": key}, "status": {"S": status}}
    debits = [{"debit": {"S": key}}] if entry else []

    found = left(traffic, [row], debits, lambda _: Debit(key, phone, 0), "balance")
    assert found.open == is_open


def test_a_debit_of_a_wallet_of_its_own_is_two_calls_and_one_ten_in_twenty_comes_again() -> None:
    found = ran(OURS, Shape.UNIFORM)
    assert found.calls_first == 2 * NUMBER
    assert found.calls == 2 * (NUMBER + TEN)
    assert found.write_units == found.read_units == 0  # nothing was weighed


def test_the_article_makes_three_calls_for_a_debit() -> None:
    traffic = make_traffic(Shape.HOT, NUMBER, seed=1, shares=replace(SHARES, duplicates=0))
    found = run(ARTICLE, traffic, seed=1)
    assert found.calls_first == 3 * NUMBER
    assert found.calls == 3 * NUMBER + 2 * TEN  # a replay finds its entry


def test_ten_debits_of_one_wallet_share_a_read_and_a_transaction() -> None:
    traffic = make_traffic(Shape.HOT, NUMBER, seed=1, shares=replace(SHARES, overdrafts=0))
    assert run(OURS, traffic, seed=1).calls_first == 2 * NUMBER // TEN


def test_a_load_that_is_weighed_names_each_table_and_index() -> None:
    article, ours = (ran(side, Shape.UNIFORM, weigh=True) for side in (ARTICLE, OURS))

    assert {table for table, _ in ours.written} == {"OfflineTx", "WalletLedger"}
    assert ours.written["OfflineTx", "OpenTx"] >= 2 * NUMBER  # each row comes and goes
    assert article.written["WalletLedger", "PhoneStatusGSI"] > 0
    assert set(ours.read) == {("WalletLedger", "table")}
    assert ours.read_units == NUMBER + TEN
    assert ours.write_units < article.write_units


@pytest.mark.parametrize("seed", range(5))
def test_how_much_comes_again_is_a_share_and_no_chance(seed: int) -> None:
    records = [{"number": number} for number in range(450)]

    first, again = deliveries(records, 100, seed)

    assert [record for batch in first for record in batch] == records
    assert [len(ten) for ten in again] == [TEN, TEN]
    assert all(record in records for ten in again for record in ten)


def test_a_backend_that_gives_something_back_where_nothing_is_in_the_way_ends_the_run() -> None:
    def broken(*arguments: Any) -> Backend:
        backend = ARTICLE.make(*arguments)
        lost = replace(cast("Article", backend), wallet_ledger="none")
        return cast("Backend", lost)

    traffic = replace(make_traffic(Shape.HOT, NUMBER, seed=1, shares=SHARES), openings={})
    with pytest.raises(Problem, match="must come again"):
        run(replace(ARTICLE, make=broken), traffic, seed=1)
