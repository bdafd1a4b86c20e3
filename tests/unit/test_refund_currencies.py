"""A refund id that is asked for in several currencies: each request is answered, and for good."""

import itertools

import pytest

from reconcile.settle import settle
from refund.give_back import Cancelled, Decided, Result, give_back
from tests.fakes.memory import FakeClock, FakeLedger, FakeRefundBooks, Store
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import PHONE, USD, credit, debit, refund, row_of
from wallet_ledger.domain.ids import Currency
from wallet_ledger.domain.wallets import Posted
from wallet_ledger.patience import Patience

EUR, KES = Currency("EUR"), Currency("KES")
BUDGET_MS = 1_000


class World:
    """One debit, settled or not, and the refunds that are asked of it."""

    def __init__(self, *, settled: bool) -> None:
        self.store, self.clock = Store(), FakeClock()
        asked = debit()
        self.store.rows[asked.agent_id, asked.idempotency_key] = row_of(asked)
        if settled:
            ledger = FakeLedger(self.store, retention_days=0)
            settle([credit(), asked], ledger, self.clock, self.patience())

    def patience(self) -> Patience:
        return Patience(self.clock, lambda: 0.5, BUDGET_MS)

    def refund(self, currency: Currency | None) -> Result:
        asked = refund(currency=currency)
        books = FakeRefundBooks(self.store)
        return give_back(asked, books, self.clock, self.patience(), patient=False)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("currencies", [*itertools.permutations([None, KES, USD, EUR], 3)])
def test_every_request_ends_and_a_redelivery_gets_the_same_answer(
    currencies: tuple[Currency | None, ...], settled: bool
) -> None:
    world = World(settled=settled)
    answers = [world.refund(each) for each in currencies]
    assert all(isinstance(each, Decided | Cancelled) for each in answers)
    for currency, first in zip(currencies, answers, strict=True):
        again = world.refund(currency)
        assert isinstance(again, Decided | Cancelled)
        assert not again.new
        if isinstance(first, Decided) and isinstance(again, Decided):
            assert again.outcome == first.outcome
        assert type(again) is type(first)
    posted = [each for each in world.store.entries.values() if each.kind == "refund"]
    assert sum(isinstance(each.outcome, Posted) for each in posted) <= 1
    wallet, totals = world.store.wallets.get(PHONE), world.store.refund_totals(PHONE)
    assert_books_add_up(wallet, [*world.store.entries.values()], world.store.rows.values(), totals)
