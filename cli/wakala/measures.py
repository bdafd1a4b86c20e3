"""What a replay measured: values alone, as its table, its JSON and its report show them."""

from collections.abc import Mapping
from dataclasses import dataclass

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What was to be replayed: `number` debits at `rate` a second; the shares are parts, 0 to 1."""

    shape: str
    number: int
    rate: float
    seed: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Latency:
    """From acceptance to the ledger's entry, by the server's clocks, ms; of what was posted alone.

    The entry is dated as it is written: the round trip of its own commit is not in it.
    `bins` are an upper bound and how many are at or below it and above the one before, in order.
    """

    count: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    bins: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Depth:
    """The dead letters at a moment, `at_s` after the beginning: how many, and the oldest's age."""

    at_s: float
    letters: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Units:
    """What a table, or an index of it (`OfflineTx/OpenTx`), consumed for a million transactions.

    `told_by` says who counted: CloudWatch, the functions' own clients, or sizes of items.
    """

    resource: str
    read: float
    written: float
    told_by: str


@dataclass(frozen=True, slots=True)
class Measures:
    """A whole replay. Counts are of this run; what is per million says so.

    `rate_reached`: debits a second as they were sent, where `asked` has what was wanted.
    `requests` counts what was sent by its answer (accepted, replayed, refused, unsent, refunds);
    `statuses` counts transactions by where they are now (a failed one as `failed: REASON`).
    Of the `transactions`, `accepted_before` are from before this run: latency, units, calls and
    usage are of the others alone, and empty where there are none.
    `duplicates` are posted debits beyond the first of their transaction, counted in the ledger, and
    the fewest that come to what wallets lack.
    `calls` are AWS calls for each transaction, by function. `usage` is what is billed for a million
    transactions, by the names of the price table. `interrupted`: less was sent than was asked.
    """

    stack: str
    region: str
    local: bool
    started_at_ms: int
    seconds: float
    asked: Asked
    rate_reached: float
    interrupted: bool
    requests: Mapping[str, int]
    transactions: int
    accepted_before: int
    statuses: Mapping[str, int]
    duplicates: int
    latency: Latency | None
    depths: tuple[Depth, ...]
    units: tuple[Units, ...]
    contention_retries: float
    calls: Mapping[str, float]
    usage: Mapping[str, float]

    @property
    def duplicates_per_million(self) -> float:
        """Debits that were posted twice, for a million transactions."""
        return self.duplicates * MILLION / self.transactions if self.transactions else 0.0

    def rates(self) -> str:
        """The debits a second that were asked for, and those that were reached."""
        return f"asked {self.asked.rate:,.6g} a second, reached {self.rate_reached:,.4g}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay measured; in `broken`, a line each, what should not be.

    `is_whole`: the functions' lines told of everything; else units and calls are too few.
    """

    measures: Measures
    broken: tuple[str, ...]
    is_whole: bool
    by_hand: bool
