"""What the books say of a replay: duplicates, times, and balances that add up or do not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.replayed import NOW_MS, accepted, settled, stack_of
from tests.unit.test_cli_replay import outcome_of
from wakala.replay_books import Books, latency, read_books
from wakala.traffic import Traffic
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import Currency, Phone
from wallet_ledger.domain.postings import NewEntry
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import Credit, Debit, Posted, Rejected, Wallet, WalletStatus

PHONE, OTHER = Phone("254712345678"), Phone("254712345679")
TRAFFIC = Traffic("uniform-1-abc", {PHONE: 1_000, OTHER: 1_000}, (), ())
KES = Currency("KES")


def row(key: str, amount: int = 100, phone: str = PHONE) -> OfflineTransaction:
    """A transaction that is settled."""
    members = {"agentId": "A", "idempotencyKey": key, "phone": phone, "amount": amount}
    return settled(accepted(members))


def debit(of: OfflineTransaction, *, phone: Phone = PHONE, refused: bool = False) -> dict[str, Any]:
    """The entry of a transaction, 40 ms after it was accepted."""
    movement = Debit(
        agent_id=of.agent_id,
        idempotency_key=of.idempotency_key,
        phone=phone,
        amount_minor=of.amount_minor,
        currency=KES,
        attempt=1,
        created_at_ms=of.created_at_ms,
        captured_at=None,
    )
    outcome = Rejected(Reason.INSUFFICIENT_FUNDS) if refused else Posted(2, 0)
    return items.entry_item(NewEntry(movement, outcome), NOW_MS + 40)


def credit(amount: int, source: str = "replay", credit_id: str = TRAFFIC.name) -> dict[str, Any]:
    """Money that was put in."""
    movement = Credit(source, credit_id, PHONE, amount, KES)
    return items.entry_item(NewEntry(movement, Posted(1, amount)), NOW_MS)


class Ledger:
    """The items of each wallet, and its balance."""

    def __init__(
        self, held: Mapping[str, Sequence[dict[str, Any]]], balances: Mapping[str, int]
    ) -> None:
        self.held, self.balances = held, balances

    def get_paginator(self, _: str) -> Any:
        return self

    def paginate(self, *, ExpressionAttributeValues: Any, **_: Any) -> Any:  # noqa: N803
        return [{"Items": self.held.get(ExpressionAttributeValues[":phone"]["S"], [])}]

    def get_item(self, *, Key: Any, **_: Any) -> Any:  # noqa: N803
        phone = Phone(Key["phone"]["S"])
        wallet = Wallet(phone, self.balances[phone], KES, 1, WalletStatus.ACTIVE)
        return {"Item": _balance_item(wallet)}


def _balance_item(wallet: Wallet) -> dict[str, Any]:
    return items.ledger_key(wallet.phone, items.BALANCE) | {
        "balanceMinor": {"N": str(wallet.balance_minor)},
        "currency": {"S": wallet.currency},
        "version": {"N": str(wallet.version)},
        "status": {"S": wallet.status},
    }


def books_of(
    rows: Sequence[OfflineTransaction],
    held: Sequence[dict[str, Any]],
    balance: int,
    others: Sequence[dict[str, Any]] = (),
    **members: Any,
) -> Books:
    """What is read of that ledger."""
    ledger = Ledger({PHONE: [credit(1_000), *held], OTHER: others}, {PHONE: balance, OTHER: 900})
    stack = stack_of(dynamodb=ledger)
    return read_books(stack, TRAFFIC, outcome_of(*rows, **members), lambda _: None)


def test_a_wallet_holds_what_was_put_in_less_what_was_debited() -> None:
    first, second = row("a"), row("b", 300)
    refused = replace(row("c", 5_000), status=Status.FAILED, reason=Reason.INSUFFICIENT_FUNDS)
    given_back = replace(row("d", 200), status=Status.REFUNDED, refunded_minor=200)
    refund = debit(given_back) | {"txId": {"S": "refund#A#d#full"}, "refundId": {"S": "full"}}
    held = [debit(first), debit(second), debit(refused, refused=True), debit(given_back), refund]
    books = books_of([first, second, refused, given_back], held, balance=600)
    assert books == Books(0, (40, 40, 40), ())


def test_a_wallet_that_was_debited_twice_is_named_though_no_entry_tells() -> None:
    books = books_of([row("a")], [debit(row("a"))], balance=800)
    assert books.wrong == ("the wallet 254…678 holds 800 and should hold 900",)
    assert books.duplicates == 1


@pytest.mark.parametrize(("balance", "duplicates"), [(901, 0), (899, 1), (700, 2), (699, 3)])
def test_what_a_wallet_lacks_is_the_fewest_debits_that_come_to_it(
    balance: int, duplicates: int
) -> None:
    assert books_of([row("a")], [debit(row("a"))], balance=balance).duplicates == duplicates


def test_what_was_accepted_before_this_run_has_no_time_to_settle_in_it() -> None:
    before, new = row("a"), row("b")
    held = [debit(before), debit(new)]
    books = books_of([before, new], held, balance=800, new=frozenset({("A", "b")}))
    assert books == Books(0, (40,), ())


def test_a_debit_that_stands_twice_in_the_books_is_a_duplicate_and_a_refusal_is_none() -> None:
    twice, once = row("a"), row("b", phone=OTHER)
    held = [debit(twice), debit(once, refused=True)]
    books = books_of(
        [twice, once],
        held,
        balance=900,
        others=[debit(once, phone=OTHER), debit(twice, phone=OTHER)],
    )
    assert books.duplicates == 1


def test_what_others_did_to_a_wallet_is_no_fault_of_the_replay() -> None:
    elsewhere = row("elsewhere", 70)
    held = [debit(row("a")), credit(500, "till", "float"), debit(elsewhere)]
    assert books_of([row("a")], held, balance=1_330).wrong == ()


def test_a_wallet_with_an_open_transaction_is_not_judged() -> None:
    waiting = replace(row("b"), status=Status.QUEUED)
    assert books_of([row("a"), waiting], [debit(row("a")), debit(waiting)], balance=800).wrong == ()


def test_quantiles_are_values_that_were_measured() -> None:
    found = latency([*range(100, 0, -1)])
    assert found is not None
    assert (found.count, found.p50_ms, found.p95_ms, found.p99_ms, found.max_ms) == (
        100,
        50,
        95,
        99,
        100,
    )
    assert latency([]) is None


@pytest.mark.parametrize("times", [[0], [1], [7, 7, 8_000], [10, 100, 1_000], [*range(3_000)]])
def test_the_bars_of_a_histogram_hold_everything_once(times: list[int]) -> None:
    found = latency(times)
    assert found is not None
    bounds = [bound for bound, _ in found.bins]
    assert bounds == sorted({*bounds})
    assert found.bins[0][1] > 0
    assert bounds[-1] >= times[-1]
    until = 0
    for bound, count in found.bins:
        until += count
        assert until == sum(each <= bound for each in times)
    assert until == len(times)
