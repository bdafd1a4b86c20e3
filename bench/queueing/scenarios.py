"""The questions of docs/scale.md as runs: how much, what first, what next, what to set."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bench.queueing import times
from bench.queueing.limits import MAPPING_CONCURRENCY, NEW_TABLE_WRITES, STREAM_FACTOR, TABLE_WRITES
from bench.queueing.path import (
    HOT,
    UNIFORM,
    Deployment,
    Load,
    Station,
    as_deployed,
    bottleneck,
    hot_wallets,
    memory_mb,
    stations,
)
from bench.queueing.simulation import Arrival, Outcome, Simulation
from bench.queueing.times import ServiceTimes
from wakala.traffic import Shape, Shares, make_traffic

SEED = 1
PER_HOUR = 36
"""Transactions of an agent."""
AGENTS = (1_000, 10_000, 100_000)
MONTH_END_S = 15.0
"""A day at a month-end is played in so little: its spike lasts a tenth of it."""
NO_SHARES = Shares(duplicates=0, reorders=0, overdrafts=0, refunds=0)
PLACES = 20
HEADROOM = 1.5
"""What is set is so much more than what comes."""
REMOVED: Mapping[str, Mapping[str, Any]] = {
    "`ApiRateLimit`": {"api_rate": math.inf, "api_burst": math.inf},
    "`RelayParallelism`": {"relay_parallelism": int(STREAM_FACTOR.value)},
    "`ReconcileConcurrency`": {"reconcile_concurrency": int(MAPPING_CONCURRENCY.value)},
    "`OfflineTxWarmWrites`": {"offline_tx_writes": TABLE_WRITES.value},
    "`WalletLedgerWarmWrites`": {"wallet_ledger_writes": TABLE_WRITES.value},
}
"""What each parameter becomes when it must not be the limit: the most that AWS gives unasked."""


def aws() -> ServiceTimes:
    """What AWS is assumed to take, with the template's memory."""
    return times.assumed(memory_mb())


@cache
def month_end_peak() -> float:
    """How many times its mean a month-end brings in its busiest hundredth."""
    sent = make_traffic(Shape.MONTH_END, 10_000, seed=SEED, shares=NO_SHARES, rate=100).sent
    hundredths = Counter(int(each.at_s) for each in sent)
    return max(hundredths.values()) / (len(sent) / 100)


def arrivals(shape: Shape, rate: float, seconds: float, *, wallets: int = 1) -> list[Arrival]:
    """Traffic of a shape, each sent within some places after its moment.

    `wallets`: among how many a hot one is split.
    """
    number = round(rate * seconds)
    sent = make_traffic(shape, number, seed=SEED, shares=NO_SHARES, rate=rate).sent
    chance = random.Random(f"{shape} {rate} {seconds}")
    moments = sorted(each.at_s + chance.uniform(0, PLACES / rate) for each in sent)
    phones = [each.document["phone"] for each in sent]
    if wallets > 1:
        phones = [f"{phone}-{chance.randrange(wallets)}" for phone in phones]
    return [Arrival(*each) for each in zip(moments, phones, strict=True)]


def play(
    deployment: Deployment,
    service_times: ServiceTimes,
    arriving: Sequence[Arrival],
    *,
    agents: int,
    until_s: float,
) -> Outcome:
    """One run, watched in its second half."""
    simulation = Simulation(deployment, service_times, agents=agents, seed=SEED)
    return simulation.run(arriving, until_s=until_s, warm_up_s=until_s / 2)


def steady_s(rate: float, transactions: int) -> float:
    """How long a run of so many transactions takes; long enough for a few polls."""
    return max(3.0, transactions / rate)


@dataclass(frozen=True, slots=True)
class Rung:
    """The first limit, and what comes of it; the next rung is without it."""

    station: Station
    played: Outcome


def ladder() -> list[Rung]:
    """The template as deployed under more than it carries; then without its first limit; and so on.

    It ends at the first limit that is no parameter.
    """
    deployment, service_times, rungs = as_deployed(), aws(), []
    while True:
        first = bottleneck(stations(deployment, service_times, UNIFORM))
        rate = first.carries * 1.3
        until_s = steady_s(rate, 2_000)
        arriving = arrivals(Shape.UNIFORM, rate, until_s)
        played = play(deployment, service_times, arriving, agents=AGENTS[-1], until_s=until_s)
        rungs.append(Rung(first, played))
        if first.raised_by not in REMOVED:
            return rungs
        deployment = replace(deployment, **REMOVED[first.raised_by])


def advised(rate: float) -> Deployment:
    """What to set so that nothing is busy for more than two thirds at such a rate."""
    deployment, service_times, wanted = as_deployed(), aws(), rate * HEADROOM
    by_name = {each.name: each for each in stations(deployment, service_times, UNIFORM)}

    def writes(name: str) -> float:
        needed = wanted * by_name[name].demand
        return max(NEW_TABLE_WRITES.value, math.ceil(needed / 1_000) * 1_000)

    concurrency = math.ceil(wanted * by_name["reconcile's time"].demand)
    deployment = replace(
        deployment,
        api_rate=max(deployment.api_rate, math.ceil(wanted / 50) * 50),
        api_burst=max(deployment.api_burst, min(5_000, math.ceil(wanted / 50) * 100)),
        reconcile_concurrency=max(deployment.reconcile_concurrency, concurrency),
        offline_tx_writes=writes("write units of OfflineTx"),
        wallet_ledger_writes=writes("write units of WalletLedger"),
    )
    lane = wanted * by_name["the relay's time"].demand
    return replace(deployment, relay_parallelism=max(1, math.ceil(lane / deployment.shards)))


@dataclass(frozen=True, slots=True)
class Scale:
    """Agents under one deployment, on an even day and at a month-end of the same mean rate."""

    agents: int
    rate: float
    first: Station
    even: Outcome
    month_end: Outcome | None
    """None where its spike is more than what is carried."""

    @property
    def busy(self) -> float:
        """Of the first limit, by the utilisation law; above 1 it does not suffice."""
        return self.rate / self.first.carries

    @property
    def left_by_an_hour(self) -> float:
        """Transactions that wait after an hour of a month-end's spike."""
        return max(0.0, self.rate * month_end_peak() - self.first.carries) * 3_600


def scales(*, as_advised: bool) -> list[Scale]:
    """What becomes of each number of agents, as deployed or as advised for its month-end."""
    found = []
    for agents in AGENTS:
        rate = agents * PER_HOUR / 3_600
        deployment = advised(rate * month_end_peak()) if as_advised else as_deployed()
        first = bottleneck(stations(deployment, aws(), UNIFORM))
        even = _day(Shape.UNIFORM, deployment, agents, steady_s(rate, 3_000))
        keeps_up = rate * month_end_peak() <= first.carries
        seconds = max(MONTH_END_S, 3_000 / rate)
        month_end = _day(Shape.MONTH_END, deployment, agents, seconds) if keeps_up else None
        found.append(Scale(agents, rate, first, even, month_end))
    return found


def _day(shape: Shape, deployment: Deployment, agents: int, seconds: float) -> Outcome:
    arriving = arrivals(shape, agents * PER_HOUR / 3_600, seconds)
    return play(deployment, aws(), arriving, agents=agents, until_s=seconds)


@dataclass(frozen=True, slots=True)
class HotWallet:
    """A wallet that gets everything, or several that share it: what it can take a second."""

    times: str
    wallets: int
    group_commit: bool
    by_units: float
    by_turns: float
    played: float


def unhindered() -> Deployment:
    """Nothing but the wallet itself is in the way."""
    wide = {name: value for each in REMOVED.values() for name, value in each.items()}
    return replace(as_deployed(), **wide)


def hot_wallet_ceilings() -> list[HotWallet]:
    """Without and with group commit, and split; by both sets of times."""
    found = []
    for service_times in (aws(), times.measured()):
        for wallets, group_commit in ((1, False), (1, True), (4, True), (16, True)):
            deployment = replace(unhindered(), group_commit=group_commit)
            load = hot_wallets(wallets)
            by_name = {each.name: each for each in stations(deployment, service_times, load)}
            units, turns = by_name["write units of one wallet"], by_name["turns of one wallet"]
            found.append(
                HotWallet(
                    times=service_times.name,
                    wallets=wallets,
                    group_commit=group_commit,
                    by_units=units.carries,
                    by_turns=turns.carries,
                    played=_saturated(deployment, service_times, load, wallets),
                )
            )
    return found


def _saturated(
    deployment: Deployment, service_times: ServiceTimes, load: Load, wallets: int
) -> float:
    rate = bottleneck(stations(deployment, service_times, load)).carries * 1.5
    until_s = steady_s(rate, 2_000)
    arriving = arrivals(Shape.HOT, rate, until_s, wallets=wallets)
    return play(deployment, service_times, arriving, agents=AGENTS[0], until_s=until_s).per_second


@dataclass(frozen=True, slots=True)
class Curve:
    """Settled a second by what is offered, and what the utilisation law says at most."""

    name: str
    points: Mapping[int, float]
    bound: float


OFFERED = (10, 30, 100, 300, 1_000, 2_000)


def curves() -> list[Curve]:
    """What the picture shows."""
    month_end = advised(AGENTS[-1] * PER_HOUR / 3_600 * month_end_peak())
    alone = replace(unhindered(), group_commit=False)
    return [
        _curve("as advised for 100,000 agents", month_end, Shape.UNIFORM, UNIFORM),
        _curve("as deployed", as_deployed(), Shape.UNIFORM, UNIFORM),
        _curve("one hot wallet", unhindered(), Shape.HOT, HOT),
        _curve("one hot wallet, one by one", alone, Shape.HOT, HOT),
    ]


def _curve(name: str, deployment: Deployment, shape: Shape, load: Load) -> Curve:
    points: dict[int, float] = {}
    for rate in OFFERED:
        until_s = steady_s(rate, 1_000)
        arriving = arrivals(shape, rate, until_s)
        played = play(deployment, aws(), arriving, agents=AGENTS[-1], until_s=until_s)
        points[rate] = played.per_second
    return Curve(name, points, bottleneck(stations(deployment, aws(), load)).carries)


def seconds_until_others_wait(ceiling: float, rate: float, looked_at: float) -> float:
    """After which a hot wallet's backlog is all that the queue looks at."""
    return looked_at / (rate - ceiling)
