"""The same seeded load through each backend, on one engine and in one run: A B A B, medians.

What is timed is settlement alone, from batches of records to the last status; what is weighed, from
intake to the end, is a run of its own. A fixed share of what a queue or a stream gives out comes a
second time, after all the rest. Times are of an emulator on this machine, so ratios within
one run are all that they say; calls and units hold on AWS for batches as full as these.
"""

import itertools
import os
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import batched
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bench import article, naive
from bench.books import Debit, left
from bench.meter import Meter, Part
from bench.ours import Ours
from bench.units import Item, shape_of
from tests.engine import create_table, declared_table
from wakala.output import Problem
from wakala.traffic import Shares, Traffic
from wallet_ledger.aws import clients

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

type Record = dict[str, Any]

TABLES = ("OfflineTx", "WalletLedger")
START_MS = 1_790_000_000_000
SIDE_BY_SIDE = 10
"""Records of a batch that the article's handler has under way at once, where it is let."""
SHARES = Shares(duplicates=0.05, reorders=0.05, overdrafts=0.02, refunds=0)
TEN = 10
"""Records that come a second time together."""
NUMBER_MIN = round(TEN / SHARES.duplicates)
"""The least debits of a load of which one ten can come again, and no more than its share."""


class Backend(Protocol):
    """Something that accepts transactions and settles the records of them."""

    def open_wallet(self, phone: str, balance_minor: int) -> None:
        """A wallet with what it holds."""

    def enqueue(self, agent_id: str, phone: str, amount: int, key: str, /) -> Record | None:
        """Accept a transaction: the record to settle, None where there is nothing new to settle."""

    def handle(self, records: Sequence[Record], /) -> list[str]:
        """Settle a batch; the ids of those that must come again."""


@dataclass(frozen=True, slots=True)
class Side:
    """A backend to be measured: how many records a batch holds, its tables, and how to read them.

    `debit_of` reads an item of its books: None where it is no debit that was posted. `balance` is
    the attribute that holds one.
    """

    name: str
    batch: int
    tables: tuple[Mapping[str, Any], Mapping[str, Any]]
    make: Callable[["DynamoDBClient", str, str, Meter, Callable[[], int]], Backend]
    debit_of: Callable[[Item], Debit | None]
    balance: str


@dataclass(frozen=True, slots=True)
class Run:
    """What one load came to. `debits`: transactions that were accepted; `seconds` of settling.

    `calls` of settling, and `calls_first` of them before anything came a second time. `written` and
    `read`: units of everything from intake on, by table and part (`table`, or an index's name);
    empty where nothing was weighed. `duplicates`, `unpaid`, `overdrawn` and `open` are what was
    wrong in the tables when all was done, as `bench.books.Left` has it.
    """

    debits: int
    seconds: float
    calls: int
    calls_first: int
    written: Mapping[Part, float]
    read: Mapping[Part, float]
    duplicates: int
    unpaid: int
    overdrawn: int
    open: int

    @property
    def write_units(self) -> float:
        """Units of all writes together."""
        return sum(self.written.values())

    @property
    def read_units(self) -> float:
        """Units of all reads together."""
        return sum(self.read.values())

    @property
    def per_second(self) -> float:
        """Transactions settled in a second: those that came to their end."""
        return (self.debits - self.open) / self.seconds


def _article(side_by_side: int) -> Callable[..., Backend]:
    def make(
        client: "DynamoDBClient", rows: str, books: str, _: Meter, now_ms: Callable[[], int]
    ) -> Backend:
        return article.Article(client, rows, books, lambda _: None, now_ms, side_by_side)

    return make


def _naive(
    client: "DynamoDBClient", rows: str, books: str, _: Meter, now_ms: Callable[[], int]
) -> Backend:
    return naive.Naive(client, rows, books, now_ms)


def _articles_debit(item: Item) -> Debit | None:
    return _debit(item, "txId", "amount") if "type" in item else None


def _naive_debit(item: Item) -> Debit | None:
    return _debit(item, "idempotencyKey", "amount") if "idempotencyKey" in item else None


def _our_debit(item: Item) -> Debit | None:
    is_debit = item["txId"]["S"].startswith("debit#") and item["outcome"]["S"] == "posted"
    return _debit(item, "idempotencyKey", "amountMinor") if is_debit else None


def _debit(item: Item, key: str, amount: str) -> Debit:
    return Debit(item[key]["S"], item["phone"]["S"], int(item[amount]["N"]))


THEIR_TABLES = (article.OFFLINE_TX, article.WALLET_LEDGER)
OUR_TABLES = (declared_table("OfflineTxTable"), declared_table("WalletLedgerTable"))
ARTICLE = Side("article", 100, THEIR_TABLES, _article(1), _articles_debit, "balance")
ARTICLE_AT_ONCE = replace(ARTICLE, name=f"article x{SIDE_BY_SIDE}", make=_article(SIDE_BY_SIDE))
NAIVE = Side("naive", 100, THEIR_TABLES, _naive, _naive_debit, "balance")
OURS = Side("ours", 10, OUR_TABLES, Ours, _our_debit, "balanceMinor")
SIDES = (ARTICLE, ARTICLE_AT_ONCE, NAIVE, OURS)


def run(side: Side, traffic: Traffic, *, seed: int, weigh: bool = False) -> Run:
    """Put a load through a backend on tables of its own, and count what is in them then.

    What its handlers log is written, which takes its time, and is not shown.
    """
    with silence():
        return _run(side, traffic, seed=seed, weigh=weigh)


def _run(side: Side, traffic: Traffic, *, seed: int, weigh: bool) -> Run:
    client = clients.dynamodb(on_consumed=_ignore)
    named = {f"{name}-{uuid.uuid4()}": name for name in TABLES}
    for name, table in zip(named, side.tables, strict=True):
        create_table(client, name, table)
    shapes = {name: shape_of(table) for name, table in zip(named, side.tables, strict=True)}
    meter = Meter(client, shapes, weigh=weigh)
    metered = meter.attach(clients.dynamodb(on_consumed=_ignore))
    clock = itertools.count(START_MS)
    rows, books = named
    backend = side.make(metered, rows, books, meter, lambda: next(clock))
    for phone, balance_minor in traffic.openings.items():
        backend.open_wallet(phone, balance_minor)
    meter.forget()
    documents = [each.document for each in traffic.sent]
    accepted = [
        backend.enqueue(d["agentId"], d["phone"], d["amount"], d["idempotencyKey"])
        for d in documents
    ]
    meter.calls.clear()
    first, again = deliveries([each for each in accepted if each], side.batch, seed)
    seconds = _settle(backend, first)
    calls_first = meter.calls.total()
    seconds += _settle(backend, again)
    wrong = left(traffic, _items(client, rows), _items(client, books), side.debit_of, side.balance)
    return Run(
        debits=len({(d["agentId"], d["idempotencyKey"]) for d in documents}),
        seconds=seconds,
        calls=meter.calls.total(),
        calls_first=calls_first,
        written={(named[table], part): units for (table, part), units in meter.written.items()},
        read={(named[table], part): units for (table, part), units in meter.read.items()},
        duplicates=wrong.duplicates,
        unpaid=wrong.unpaid,
        overdrawn=wrong.overdrawn,
        open=wrong.open,
    )


def _settle(backend: Backend, batches: Sequence[Sequence[Record]]) -> float:
    """Seconds for all of it."""
    started = time.perf_counter()
    for batch in batches:
        failed = backend.handle(batch)
        if failed:
            raise Problem(
                f"{len(failed)} of a batch must come again, and nothing was in the way:"
                " is this machine too busy for an engine to answer in time?"
            )
    return time.perf_counter() - started


def deliveries(
    records: Sequence[Record], batch: int, seed: int
) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """In batches; and the tens that come a second time, as at-least-once delivery has it.

    They are drawn by `seed`; how many they are is no chance: their share, rounded down, so that
    what they cost is the same for every seed.
    """
    tens = list(batched(records, TEN, strict=False))
    whole = [ten for ten in tens if len(ten) == TEN]
    number = int(len(records) * SHARES.duplicates / TEN)
    again = random.Random(seed).sample(whole, number)
    return list(batched(records, batch, strict=False)), list(again)


@contextmanager
def silence() -> Iterator[None]:
    """Nothing is shown of what is printed.

    Handlers hold the stream that was there when they were imported: so it is the file itself.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)
            os.close(kept)


def _items(client: "DynamoDBClient", table: str) -> Iterator[Item]:
    for page in client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        yield from page["Items"]


def _ignore(_name: str, _units: float) -> None:
    """The meter counts."""
