"""The same path played in virtual time: queues, batches, groups and throttles, by one seed."""

import math
import random
import statistics
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import batched
from typing import Any

import simpy

from bench.queueing.limits import (
    FIFO_BATCH,
    FIFO_CALLS,
    LAMBDA_CONCURRENCY,
    PARTITION_WRITES,
    PUT_EVENTS,
)
from bench.queueing.path import (
    ENTRY_UNITS,
    OPEN_UNITS,
    ROW_UNITS,
    Deployment,
    ledger_units,
)
from bench.queueing.times import ServiceTimes
from wallet_ledger.domain.transactions import OPEN_SHARDS

type Steps = Generator[simpy.Event, Any]

STOCK_S = 0.1
"""What a table or a quota has in stock, in seconds of it. AWS keeps more, and promises none."""
STORE_UNITS = 1
"""Of ROW_UNITS, and of OPEN_UNITS, what storing a row takes; closing it takes the rest."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A transaction, sent `at_s` seconds after the beginning."""

    at_s: float
    phone: str


@dataclass(slots=True)
class _Transaction:
    at_s: float
    phone: str
    lane: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to: settled `per_second` after the warm-up, each within one `latencies_s`.

    A latency is from sending to settlement, with what the app waits for the stage. `in_system` is
    how many were on the way on the average of the whole run, and `left` at its end.
    """

    per_second: float
    latencies_s: Sequence[float]
    in_system: float
    left: int

    def percentile_s(self, percent: int) -> float:
        """Seconds from sending to settlement; NaN where next to nothing was settled."""
        if len(self.latencies_s) < 2:
            return math.nan
        return statistics.quantiles(self.latencies_s, n=100, method="inclusive")[percent - 1]


class Throttle:
    """Something that refills `rate` units a second; who finds it empty waits for his turn."""

    def __init__(self, env: simpy.Environment, rate: float, burst: float) -> None:
        """Full at the beginning: `burst` units."""
        self._env = env
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._seen_s = 0.0

    def wait_s(self, units: float) -> float:
        """Take units, and say how long that takes: nothing, unless there are too few."""
        if math.isinf(self._rate):
            return 0.0
        refilled = self._level + (self._env.now - self._seen_s) * self._rate
        self._level = min(self._burst, refilled) - units
        self._seen_s = self._env.now
        return max(0.0, -self._level / self._rate)


def _capacity(env: simpy.Environment, rate: float) -> Throttle:
    return Throttle(env, rate, rate * STOCK_S)


class FifoQueue:
    """A FIFO queue: groups in order, each with one batch in flight at a time."""

    def __init__(self, env: simpy.Environment, *, batch: int) -> None:
        """`batch`: the most that one receive brings."""
        self._env = env
        self._batch = batch
        self._groups: dict[str, deque[_Transaction]] = {}
        self._free: deque[str] = deque()
        self._in_flight: set[str] = set()
        self._idle: deque[simpy.Event] = deque()

    def send(self, transactions: Sequence[_Transaction]) -> None:
        """At the end of their groups."""
        for each in transactions:
            group = self._groups.get(each.phone)
            if group is None:
                group = self._groups[each.phone] = deque()
                if each.phone not in self._in_flight:
                    self._free.append(each.phone)
            group.append(each)
        self._wake()

    def receive(self) -> dict[str, list[_Transaction]]:
        """As many as fit of the group that waits longest, then of the next; empty if none."""
        taken: dict[str, list[_Transaction]] = {}
        left = self._batch
        while left and self._free:
            phone = self._free.popleft()
            group = self._groups[phone]
            taken[phone] = [group.popleft() for _ in range(min(left, len(group)))]
            left -= len(taken[phone])
            self._in_flight.add(phone)
            if not group:
                del self._groups[phone]
        return taken

    def delete(self, phones: Sequence[str]) -> None:
        """Their batch is done: what waits behind it is free."""
        for phone in phones:
            self._in_flight.remove(phone)
            if phone in self._groups:
                self._free.append(phone)
        self._wake()

    def something(self) -> simpy.Event:
        """Happens when there is something to receive, for one who waits."""
        event = self._env.event()
        self._idle.append(event)
        return event

    def _wake(self) -> None:
        for _ in range(min(len(self._free), len(self._idle))):
            self._idle.popleft().succeed()


@dataclass(slots=True)
class _Lane:
    """Records of some keys of the stream, in order: those to send, and those to tell."""

    waiting: deque[tuple[_Transaction, bool]] = field(default_factory=deque)
    idle: simpy.Event | None = None


class Simulation:
    """One run: arrivals through a deployment, watched after a warm-up."""

    def __init__(self, deployment: Deployment, times: ServiceTimes, *, agents: int, seed: int):
        """`agents`: how many send; a lane of the relay has those of some."""
        self._env = env = simpy.Environment()
        self._deployment = deployment
        self._times = times
        self._agents = agents
        self._chance = random.Random(seed)
        self._stage = Throttle(env, deployment.api_rate, deployment.api_burst)
        self._ingest = simpy.Resource(env, int(LAMBDA_CONCURRENCY.value))
        self._rows = _capacity(env, deployment.offline_tx_writes)
        shards = OPEN_SHARDS * PARTITION_WRITES.value
        self._open_rows = _capacity(env, min(deployment.offline_tx_writes, shards))
        self._ledger = _capacity(env, deployment.wallet_ledger_writes)
        self._wallets: dict[str, Throttle] = {}
        self._sends = _capacity(env, FIFO_CALLS.value)
        self._puts = _capacity(env, PUT_EVENTS.value)
        self._lanes = [_Lane() for _ in range(deployment.lanes)]
        self._queue = FifoQueue(env, batch=int(FIFO_BATCH.value))
        self._arrived = 0
        self._settled: list[tuple[float, float]] = []
        self._area = 0.0
        self._changed_s = 0.0

    def run(self, arrivals: Sequence[Arrival], *, until_s: float, warm_up_s: float) -> Outcome:
        """Play it; what is counted as settled per second was settled after the warm-up."""
        env = self._env
        env.process(self._arrive(arrivals))
        for lane in self._lanes:
            env.process(self._relay(lane))
        for _ in range(self._deployment.reconcile_concurrency):
            env.process(self._reconcile())
        env.run(until_s)
        self._count()
        watched = [took_s for at_s, took_s in self._settled if at_s > warm_up_s]
        return Outcome(
            per_second=len(watched) / (until_s - warm_up_s),
            latencies_s=watched,
            in_system=self._area / until_s,
            left=self._left,
        )

    @property
    def _left(self) -> int:
        return self._arrived - len(self._settled)

    def _count(self) -> None:
        """Add up how many were in the system since it last changed."""
        self._area += self._left * (self._env.now - self._changed_s)
        self._changed_s = self._env.now

    def _arrive(self, arrivals: Sequence[Arrival]) -> Steps:
        for each in arrivals:
            yield self._env.timeout(max(0.0, each.at_s - self._env.now))
            self._count()
            self._arrived += 1
            lane = self._chance.randrange(self._agents) % len(self._lanes)
            self._env.process(self._accept(_Transaction(self._env.now, each.phone, lane)))

    def _accept(self, transaction: _Transaction) -> Steps:
        """The agent's app waits for the stage; then ingest stores the row."""
        yield self._env.timeout(self._stage.wait_s(1))
        with self._ingest.request() as instance:
            yield instance
            throttled_s = max(self._rows.wait_s(STORE_UNITS), self._open_rows.wait_s(STORE_UNITS))
            yield self._env.timeout(throttled_s + self._times.accept_s())
        self._record(transaction, is_new=True)

    def _record(self, transaction: _Transaction, *, is_new: bool) -> None:
        lane = self._lanes[transaction.lane]
        lane.waiting.append((transaction, is_new))
        if lane.idle is not None:
            lane.idle.succeed()
            lane.idle = None

    def _relay(self, lane: _Lane) -> Steps:
        """Batch by batch: messages first, then events; an idle lane is looked at now and then."""
        while True:
            if not lane.waiting:
                lane.idle = self._env.event()
                yield lane.idle
                yield self._env.timeout(self._chance.uniform(0, self._times.poll_ms / 1000))
            records = [
                lane.waiting.popleft()
                for _ in range(min(len(lane.waiting), self._deployment.relay_batch))
            ]
            messages = [each for each, is_new in records if is_new]
            for call in batched(messages, int(FIFO_BATCH.value), strict=False):
                yield self._env.timeout(self._sends.wait_s(1) + self._times.send_ms / 1000)
                self._queue.send(call)
            for _ in range(math.ceil((len(records) - len(messages)) / FIFO_BATCH.value)):
                yield self._env.timeout(self._puts.wait_s(1) + self._times.put_events_ms / 1000)

    def _reconcile(self) -> Steps:
        """One of the batches that are in work at once."""
        half_s = self._times.hand_over_s / 2
        while True:
            taken = self._queue.receive()
            if not taken:
                yield self._queue.something()
                continue
            groups = [len(movements) for movements in taken.values()]
            took_s = self._times.settle_s(groups, group_commit=self._deployment.group_commit)
            yield self._env.timeout(half_s + took_s)
            yield self._env.timeout(self._throttled_s(taken))
            self._count()
            for movements in taken.values():
                for each in movements:
                    self._settled.append((self._env.now, self._env.now - each.at_s))
                    self._record(each, is_new=False)
            yield self._env.timeout(half_s)
            self._queue.delete(list(taken))

    def _throttled_s(self, taken: dict[str, list[_Transaction]]) -> float:
        """How long the tables make a batch wait: the longest of all that it writes to."""
        count = sum(map(len, taken.values()))
        waits = [
            self._rows.wait_s(count * (ROW_UNITS - STORE_UNITS)),
            self._open_rows.wait_s(count * (OPEN_UNITS - STORE_UNITS)),
        ]
        for phone, movements in taken.items():
            group = len(movements) if self._deployment.group_commit else 1
            units = len(movements) * ledger_units(group)
            alone = units - len(movements) * ENTRY_UNITS
            waits.append(self._ledger.wait_s(units))
            partition = self._partition(phone)
            waits.append(partition.wait_s(alone if self._deployment.balance_alone else units))
        return max(waits)

    def _partition(self, phone: str) -> Throttle:
        """That of a wallet."""
        if phone not in self._wallets:
            self._wallets[phone] = _capacity(self._env, PARTITION_WRITES.value)
        return self._wallets[phone]
