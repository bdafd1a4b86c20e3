"""C38: a burst of phones on few workers, with the real consumer and the template's own numbers.

Histories play a burst too, through all functions and with one debit of each phone. This one has
what they do not: the order of a phone's debits, how often each message is received, and an account
that has no instance to give for minutes. A poller then tries its batch again until the visibility
timeout and lets go of it, which counts as a receive (AWS Lambda developer guide, event source
mappings of Amazon SQS).
"""

import heapq
import itertools
import random
from functools import partial

import pytest

from reconcile.queue import consumer
from reconcile.settle import Settlement, settle
from tests.fakes.memory import FakeClock, FakeLedger, FakeQueue, Store
from tests.simulation.cloud.account import Account
from tests.simulation.cloud.delivery import Batch
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.transactions import Request, Status, accept
from wallet_ledger.domain.wallets import Debit, Movement, Wallet, WalletStatus
from wallet_ledger.messages import debit_dedup_id, movement_message
from wallet_ledger.patience import Patience

PHONES = 500
DEBITS_EACH = 4


class Burst:
    """500 phones come online at once, each with four debits of which three fit its balance."""

    def __init__(self) -> None:
        self.store = Store()
        self.clock = FakeClock()
        account = Account(self.clock.now_ms)
        self.queue, self.dead = account.queues["TxQueue"], account.queues["TxDlqQueue"]
        [self._mapping] = [m for m in account.stack.mappings if m.source == "TxQueue"]
        self._timeout_s = account.stack.functions["reconcile"].timeout_s
        assert self.queue.redrive is not None
        _, self.receives_max = self.queue.redrive
        self.most_receives = 0
        for number, (index, _) in enumerate(itertools.product(range(PHONES), range(DEBITS_EACH))):
            self._submit(Phone(str(254_712_000_000 + index)), AgentId(f"AG-{index % 36}"), number)

    def _submit(self, phone: Phone, agent: AgentId, number: int) -> None:
        wallet = Wallet(phone, 300, Currency("KES"), 1, WalletStatus.ACTIVE)
        self.store.wallets.setdefault(phone, wallet)
        key = IdempotencyKey(f"k-{number}")
        row = accept(Request(agent, key, phone, 100, Currency("KES")), self.clock.now_ms(), 7)
        self.store.rows[row.agent_id, row.idempotency_key] = row
        debit = Debit(agent, key, phone, 100, row.currency, 1, row.created_at_ms)
        message = movement_message(debit, debit_dedup_id(agent, key, 1))
        self.queue.send(message.body, group=message.group, dedup_id=message.dedup_id)

    def play(self, chance: random.Random, no_instance_for_s: float) -> None:
        """Until the queue is empty. At first other functions hold every instance for so long."""
        from_ms = self.clock.now_ms() + no_instance_for_s * 1000
        ends: list[tuple[float, int, Batch | None]] = []
        order = itertools.count()
        while self.queue.messages:
            while len(ends) < (self._mapping.concurrency_max or 1) and (batch := self._take()):
                start_ms = max(float(self.clock.now_ms()), from_ms)
                lets_go_ms = self.clock.now_ms() + self.queue.visibility_s * 1000
                end_ms = start_ms + chance.uniform(50, self._timeout_s * 500)
                runs = start_ms < lets_go_ms
                end = (end_ms, batch) if runs else (lets_go_ms, None)
                heapq.heappush(ends, (end[0], next(order), end[1]))
            end_ms, _, ran = heapq.heappop(ends)
            self.clock.pause(max(0, end_ms - self.clock.now_ms()) / 1000)
            if ran is not None:
                self._run(ran)

    def _take(self) -> Batch | None:
        taken = self.queue.receive(self._mapping.batch_size)
        self.most_receives = max(self.most_receives, *(each.receives for each in taken), 0)
        return Batch(self.queue, taken) if taken else None

    def _run(self, batch: Batch) -> None:
        answer = consumer(
            settle_phone=partial(_settle, FakeLedger(self.store, retention_days=0), self.clock),
            delivery_failures=FakeQueue(self.clock),
            give_back=lambda _rests: None,
            receives_max=self.receives_max,
            clock=self.clock,
        ).handle_batch(batch.event["Records"])
        batch.delete(batch.done(answer))


def _settle(ledger: FakeLedger, clock: FakeClock, movements: list[Movement]) -> list[Settlement]:
    return settle(movements, ledger, clock, Patience(clock, lambda: 0.0, 1_000))


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_on_five_workers_waits_in_the_queue_and_dies_nowhere(seed: int) -> None:
    burst = Burst()

    burst.play(random.Random(seed), no_instance_for_s=0)

    assert burst.dead.messages == []
    assert burst.most_receives == 1  # who waits has not been received: no count is used up
    _assert_settled(burst)


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_survives_five_minutes_without_any_free_instance(seed: int) -> None:
    burst = Burst()

    burst.play(random.Random(seed), no_instance_for_s=300)

    assert burst.dead.messages == []
    assert 1 < burst.most_receives < burst.receives_max
    _assert_settled(burst)


def _assert_settled(burst: Burst) -> None:
    """Three of each phone's four debits fit its balance, in the order they were sent."""
    statuses = [row.status for row in burst.store.rows.values()]
    assert statuses == [Status.SYNCED, Status.SYNCED, Status.SYNCED, Status.FAILED] * PHONES
    assert {wallet.balance_minor for wallet in burst.store.wallets.values()} == {0}
    assert {wallet.version for wallet in burst.store.wallets.values()} == {4}
