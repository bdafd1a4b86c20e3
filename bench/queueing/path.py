"""The path of a transaction as stations, each with what it can do and what a transaction takes.

The bound is the utilisation law: a station that can do `capacity` a second, of which a transaction
takes `demand`, carries no more than their quotient. It holds however the queues in front behave.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.queueing.limits import (
    API_REQUESTS,
    FIFO_BATCH,
    FIFO_CALLS,
    FIFO_PARTITION_CALLS,
    LAMBDA_CONCURRENCY,
    NEW_TABLE_WRITES,
    PARTITION_READS,
    PARTITION_WRITES,
    PUT_EVENTS,
)
from bench.queueing.times import ServiceTimes
from tests.template import RESOURCES, TEMPLATE
from wallet_ledger.domain.transactions import OPEN_SHARDS

BATCH = int(FIFO_BATCH.value)
ROW_UNITS = 1 + 2
"""Write units of a row: stored, and closed inside a transaction."""
OPEN_UNITS = 1 + 1
"""Of its place in OpenTx: taken, and given up."""
ENTRY_UNITS = 2
BALANCE_UNITS = 2
"""Of the ledger, both inside a transaction; one balance for all of a group."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a deployer chooses, each a parameter of the template, and how the code works."""

    api_rate: float
    api_burst: float
    relay_parallelism: int
    reconcile_concurrency: int
    offline_tx_writes: float
    wallet_ledger_writes: float
    relay_batch: int
    group_commit: bool = True
    balance_alone: bool = False
    """Whether DynamoDB has moved a hot wallet's balance to a partition of its own."""

    @property
    def shards(self) -> int:
        """Of OfflineTx's stream: one for each partition that its capacity needs."""
        return math.ceil(self.offline_tx_writes / PARTITION_WRITES.value)

    @property
    def lanes(self) -> int:
        """Batches of the stream that the relay works on at once."""
        return self.shards * self.relay_parallelism


def as_deployed() -> Deployment:
    """The template with its defaults, on new tables."""

    def default(name: str) -> int:
        return int(TEMPLATE["Parameters"][name]["Default"])

    def writes(name: str) -> float:
        return max(NEW_TABLE_WRITES.value, default(name))

    relay = RESOURCES["RelayFunction"]["Properties"]["Events"]["OfflineTx"]["Properties"]
    return Deployment(
        api_rate=default("ApiRateLimit"),
        api_burst=default("ApiBurstLimit"),
        relay_parallelism=default("RelayParallelism"),
        reconcile_concurrency=default("ReconcileConcurrency"),
        offline_tx_writes=writes("OfflineTxWarmWrites"),
        wallet_ledger_writes=writes("WalletLedgerWarmWrites"),
        relay_batch=relay["BatchSize"],
    )


def memory_mb() -> int:
    """What the template gives to reconcile, and to ingest."""
    return int(RESOURCES["ReconcileFunction"]["Properties"]["MemorySize"])


@dataclass(frozen=True, slots=True)
class Load:
    """How transactions meet wallets: `group` of one wallet in a batch at best, 1 to 10.

    `hottest`: the part of all transactions that the busiest wallet gets.
    """

    group: int
    hottest: float


UNIFORM = Load(group=1, hottest=0)
HOT = Load(group=BATCH, hottest=1)


def hot_wallets(number: int) -> Load:
    """So many wallets share everything evenly."""
    return Load(group=BATCH, hottest=1 / number)


@dataclass(frozen=True, slots=True)
class Station:
    """`capacity` of something a second, of which a transaction takes `demand`."""

    name: str
    capacity: float
    demand: float
    raised_by: str

    @property
    def carries(self) -> float:
        """Transactions a second, at most."""
        return self.capacity / self.demand if self.demand else math.inf


def ledger_units(group: float) -> float:
    """Write units that a transaction takes of the ledger, in a group of so many."""
    return ENTRY_UNITS + BALANCE_UNITS / group


def stations(deployment: Deployment, times: ServiceTimes, load: Load) -> list[Station]:
    """Everything on the path that can be full."""
    return [
        Station("requests that the stage admits", deployment.api_rate, 1, "`ApiRateLimit`"),
        Station("requests of the account", API_REQUESTS.value, 1, "a quota"),
        *_of_tables(deployment, load),
        *_of_functions(deployment, times, load),
        Station("calls of TxQueue", FIFO_CALLS.value, 1 / BATCH, "a quota"),
        Station("calls of PutEvents", PUT_EVENTS.value, 1 / BATCH, "a quota"),
        *_of_one_wallet(deployment, times, load),
    ]


def _of_tables(deployment: Deployment, load: Load) -> list[Station]:
    """Write units of tables and index."""
    rows, ledger = deployment.offline_tx_writes, deployment.wallet_ledger_writes
    keys, warm_rows = OPEN_SHARDS * PARTITION_WRITES.value, "`OfflineTxWarmWrites`"
    units = ledger_units(load.group if deployment.group_commit else 1)
    return [
        Station("write units of OfflineTx", rows, ROW_UNITS, warm_rows),
        Station("write units of OpenTx", rows, OPEN_UNITS, warm_rows),
        Station("write units of OpenTx's shards", keys, OPEN_UNITS, "`OPEN_SHARDS`"),
        Station("write units of WalletLedger", ledger, units, "`WalletLedgerWarmWrites`"),
    ]


def _of_functions(deployment: Deployment, times: ServiceTimes, load: Load) -> list[Station]:
    """Seconds of functions, at their best: full batches, and full calls of the relay."""
    groups = [load.group] * math.ceil(BATCH / load.group)
    settle_s = times.settle_s(groups, group_commit=deployment.group_commit) / sum(groups)
    worker_s = settle_s + times.hand_over_s / sum(groups)
    lane_s = (times.send_ms + times.put_events_ms) / 1000 / BATCH
    instance_s, workers = times.accept_s() + lane_s + settle_s, deployment.reconcile_concurrency
    return [
        Station("instances of functions", LAMBDA_CONCURRENCY.value, instance_s, "a quota"),
        Station("the relay's time", deployment.lanes, lane_s, "`RelayParallelism`"),
        Station("reconcile's time", workers, worker_s, "`ReconcileConcurrency`"),
    ]


def _of_one_wallet(deployment: Deployment, times: ServiceTimes, load: Load) -> list[Station]:
    """What the busiest wallet alone can fill."""
    group = load.group if deployment.group_commit else 1
    turn_s = times.hand_over_s + times.settle_s([load.group], group_commit=deployment.group_commit)
    units = BALANCE_UNITS / group if deployment.balance_alone else ledger_units(group)
    calls = FIFO_PARTITION_CALLS.value
    wallets = "more wallets for it"
    return [
        Station("turns of one wallet", 1, load.hottest * turn_s / load.group, wallets),
        Station("write units of one wallet", PARTITION_WRITES.value, load.hottest * units, wallets),
        Station("read units of one wallet", PARTITION_READS.value, load.hottest / group, wallets),
        Station("calls for one group", calls, load.hottest / BATCH, wallets),
    ]


def bottleneck(found: Sequence[Station]) -> Station:
    """The station that is full first."""
    return min(found, key=lambda each: each.carries)
