"""C38: a burst of phones on few workers, with the real handler and the template's own numbers.

Only delivery is simulated (no emulator runs two batches of one FIFO queue at a time): groups are
locked while a message of theirs is in flight, a batch takes ten messages of any free groups, and
an invocation that finds no instance is tried again until the visibility timeout, then counts as a
receive (AWS Lambda developer guide, event source mappings of Amazon SQS).
"""

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from reconcile.queue import consumer
from reconcile.settle import Settlement, settle
from tests.fakes.memory import FakeClock, FakeLedger, FakeQueue, Store
from tests.template import TEMPLATE
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.transactions import Request, Status, accept
from wallet_ledger.domain.wallets import Debit, Movement, Wallet, WalletStatus
from wallet_ledger.messages import debit_dedup_id, movement_message
from wallet_ledger.patience import Patience

PHONES = 500
DEBITS_EACH = 4
QUEUE = TEMPLATE["Resources"]["TxQueue"]["Properties"]
FUNCTION = TEMPLATE["Resources"]["ReconcileFunction"]["Properties"]
MAPPING = FUNCTION["Events"]["Movements"]["Properties"]
VISIBILITY_S: int = QUEUE["VisibilityTimeout"]
RECEIVES_MAX = int(QUEUE["RedrivePolicy"]["maxReceiveCount"])
BATCH: int = MAPPING["BatchSize"]
POLLERS: int = TEMPLATE["Parameters"]["ReconcileConcurrency"]["Default"]


@dataclass
class Message:
    """A message of the queue; `receives` counts as SQS does."""

    number: int
    group: str
    body: str
    receives: int = 0

    def record(self) -> dict[str, Any]:
        """What Lambda gets."""
        return {
            "messageId": str(self.number),
            "receiptHandle": str(self.number),
            "body": self.body,
            "attributes": {"ApproximateReceiveCount": str(self.receives)},
        }


@dataclass
class Fifo:
    """TxQueue and its mapping: at most `POLLERS` batches out at once."""

    groups: dict[str, deque[Message]] = field(default_factory=dict)
    locked_until_s: dict[str, float] = field(default_factory=dict)
    dead: list[Message] = field(default_factory=list)

    def take(self, now_s: float) -> list[Message]:
        """A batch from the groups that are free; what was received too often is put aside."""
        batch: list[Message] = []
        for group, waiting in self.groups.items():
            if self.locked_until_s.get(group, 0) > now_s:
                continue
            while waiting and len(batch) < BATCH:
                message = waiting.popleft()
                if message.receives >= RECEIVES_MAX:
                    self.dead.append(message)
                    continue
                message.receives += 1
                batch.append(message)
            if len(batch) == BATCH:
                break
        for message in batch:
            self.locked_until_s[message.group] = now_s + VISIBILITY_S
        return batch

    def settle(self, batch: list[Message], failed: set[str], free_at_s: float) -> None:
        """What is done goes; what failed stands first in its group again."""
        for message in reversed(batch):
            if str(message.number) in failed:
                self.groups[message.group].appendleft(message)
            self.locked_until_s[message.group] = free_at_s


@dataclass
class Burst:
    """500 phones come online at once."""

    store: Store = field(default_factory=Store)
    clock: FakeClock = field(default_factory=FakeClock)
    queue: Fifo = field(default_factory=Fifo)
    most_receives: int = 0

    def __post_init__(self) -> None:
        numbers = itertools.count()
        for index, _ in itertools.product(range(PHONES), range(DEBITS_EACH)):
            phone = Phone(str(254_712_000_000 + index))
            self.store.wallets.setdefault(
                phone, Wallet(phone, 300, Currency("KES"), 1, WalletStatus.ACTIVE)
            )
            number = next(numbers)
            key = IdempotencyKey(f"k-{number}")
            request = Request(AgentId(f"AG-{index % 36}"), key, phone, 100, Currency("KES"))
            row = accept(request, self.clock.now_ms(), 7)
            self.store.rows[row.agent_id, row.idempotency_key] = row
            debit = Debit(row.agent_id, key, phone, 100, row.currency, 1, row.created_at_ms)
            body = movement_message(debit, debit_dedup_id(row.agent_id, key, 1)).body
            self.queue.groups.setdefault(phone, deque()).append(Message(number, phone, body))

    def play(self, chance: random.Random, instances_from_s: float = 0.0) -> None:
        """Until the queue is empty. Before `instances_from_s` other functions hold every instance:
        a poller then tries its batch again until the visibility timeout, and lets go of it.
        """
        ends: list[tuple[float, int, list[Message], bool]] = []
        order = itertools.count()
        now_s = 0.0
        while ends or any(self.queue.groups.values()):
            while len(ends) < POLLERS and (batch := self.queue.take(now_s)):
                self.most_receives = max(self.most_receives, *(m.receives for m in batch))
                start_s = max(now_s, instances_from_s)
                runs = start_s < now_s + VISIBILITY_S
                took_s = chance.uniform(0.05, FUNCTION["Timeout"] / 2)
                end_s = start_s + took_s if runs else now_s + VISIBILITY_S
                heapq.heappush(ends, (end_s, next(order), batch, runs))
            now_s, _, batch, ran = heapq.heappop(ends)
            if ran:
                self._run(batch, now_s)
            else:
                self.queue.settle(batch, {str(message.number) for message in batch}, now_s)

    def _run(self, batch: list[Message], now_s: float) -> None:
        answer = consumer(
            settle_phone=partial(_settle, FakeLedger(self.store, retention_days=0), self.clock),
            delivery_failures=FakeQueue(self.clock),
            give_back=lambda _rests: None,
            receives_max=RECEIVES_MAX,
            clock=self.clock,
        ).handle_batch([message.record() for message in batch])
        failed = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        self.queue.settle(batch, failed, now_s)


def _settle(ledger: FakeLedger, clock: FakeClock, movements: list[Movement]) -> list[Settlement]:
    return settle(movements, ledger, clock, Patience(clock, lambda: 0.0, 1_000))


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_on_five_workers_waits_in_the_queue_and_dies_nowhere(seed: int) -> None:
    burst = Burst()

    burst.play(random.Random(seed))

    assert burst.queue.dead == []
    assert burst.most_receives == 1  # who waits has not been received: no count is used up
    _assert_settled(burst)


@pytest.mark.parametrize("seed", range(3))
def test_a_burst_survives_five_minutes_without_any_free_instance(seed: int) -> None:
    burst = Burst()

    burst.play(random.Random(seed), instances_from_s=300)

    assert burst.queue.dead == []
    assert 1 < burst.most_receives < RECEIVES_MAX
    _assert_settled(burst)


def _assert_settled(burst: Burst) -> None:
    """Three of each phone's four debits fit its balance, in the order they were sent."""
    statuses = [row.status for row in burst.store.rows.values()]
    assert statuses == [Status.SYNCED, Status.SYNCED, Status.SYNCED, Status.FAILED] * PHONES
    assert {wallet.balance_minor for wallet in burst.store.wallets.values()} == {0}
    assert {wallet.version for wallet in burst.store.wallets.values()} == {4}
