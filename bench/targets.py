"""What the bench measures, beside what it must come to."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.compare import ARTICLE, NAIVE, OURS, Run
from wakala.output import Problem
from wakala.traffic import Shape


@dataclass(frozen=True, slots=True)
class Measured:
    """What a backend did with a load: runs that were timed, and one that was weighed."""

    timed: Sequence[Run]
    weighed: Run

    @property
    def per_second(self) -> float:
        """The median of what was settled in a second."""
        return statistics.median(run.per_second for run in self.timed)

    @property
    def calls_each(self) -> float:
        """Calls of settling for each transaction, with what came a second time."""
        return statistics.median(run.calls / run.debits for run in self.timed)

    @property
    def calls_first_each(self) -> float:
        """The same of first deliveries alone."""
        return statistics.median(run.calls_first / run.debits for run in self.timed)

    @property
    def write_units_each(self) -> float:
        """Write units of a transaction, from intake to its last status, tables and indexes."""
        return self.weighed.write_units / self.weighed.debits

    @property
    def read_units_each(self) -> float:
        """The same of reads."""
        return self.weighed.read_units / self.weighed.debits

    @property
    def duplicates(self) -> int:
        """Debits beyond the first of a transaction, in all runs."""
        return sum(run.duplicates for run in (*self.timed, self.weighed))

    @property
    def unpaid(self) -> int:
        """Wallets that hold more than their entries leave them, in all runs."""
        return sum(run.unpaid for run in (*self.timed, self.weighed))

    @property
    def overdrawn(self) -> int:
        """Wallets below zero, in all runs."""
        return sum(run.overdrawn for run in (*self.timed, self.weighed))

    @property
    def open(self) -> int:
        """Transactions that did not come to their end, in all runs."""
        return sum(run.open for run in (*self.timed, self.weighed))


type Results = Mapping[Shape, Mapping[str, Measured]]
"""By shape, then by the name of a backend."""

START_RATIOS = {
    "IngestFunction": 2.2,
    "IngestBusFunction": 2.2,
    "RelayFunction": 2.2,
    "SweepFunction": 2.2,
    "ReconcileFunction": 1.6,
    "RefundFunction": 1.6,
    "TriageFunction": 2.2,
    "TriageDeskFunction": 2.2,
}
MEGABYTES = 128

NO_MORE = "at most"
NO_LESS = "at least"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its target: `at least` or `at most`."""

    name: str
    value: float
    side: str
    target: float

    @property
    def met(self) -> bool:
        """Whether it is where it must be."""
        return self.value >= self.target if self.side == NO_LESS else self.value <= self.target


def figures(results: Results) -> list[Figure]:
    """Everything that the comparison must show."""
    found = []
    for shape, target in ((Shape.BRANCH, 5), (Shape.HOT, 5), (Shape.UNIFORM, 1.3)):
        ratio = _ratio(results[shape], lambda each: each.per_second)
        found.append(
            Figure(f"{shape}: settled per second, over the article's", ratio, NO_LESS, target)
        )
    for shape, target in ((Shape.BRANCH, 0.25), (Shape.UNIFORM, 2.1)):
        calls = results[shape][OURS.name].calls_each
        found.append(Figure(f"{shape}: calls of reconcile per transaction", calls, NO_MORE, target))
    for shape, target in ((Shape.BRANCH, 0.75), (Shape.UNIFORM, 1)):
        ratio = _ratio(results[shape], lambda each: each.write_units_each)
        found.append(Figure(f"{shape}: write units, over the article's", ratio, NO_MORE, target))
    for shape, each in results.items():
        ours, naive = each[OURS.name], each[NAIVE.name].duplicates
        found.append(Figure(f"{shape}: duplicate debits", ours.duplicates, NO_MORE, 0))
        found.append(Figure(f"{shape}: the naive one's, or nothing is shown", naive, NO_LESS, 1))
        found.append(Figure(f"{shape}: entries that took no money", ours.unpaid, NO_MORE, 0))
        found.append(Figure(f"{shape}: below zero", ours.overdrawn, NO_MORE, 0))
        found.append(Figure(f"{shape}: left open", ours.open, NO_MORE, 0))
    return found


def cold_figures(
    import_ratios: Mapping[str, float], megabytes: Mapping[str, float]
) -> list[Figure]:
    """What a cold function and a warm one must come to; both by the function's name."""
    found = [
        Figure(f"{name}: start, over a bare client's", ratio, NO_MORE, START_RATIOS[name])
        for name, ratio in import_ratios.items()
    ]
    return found + [
        Figure(f"{name}: memory of a warm one, MB", size, NO_MORE, MEGABYTES)
        for name, size in megabytes.items()
    ]


def _ratio(each: Mapping[str, Measured], measure: Callable[[Measured], float]) -> float:
    if not measure(each[ARTICLE.name]):
        raise Problem("the article's backend settled nothing: there is nothing to compare with")
    return measure(each[OURS.name]) / measure(each[ARTICLE.name])
