"""Everybody at once on hot and on cold wallets, in DynamoDB's worst weather, on each engine.

Workers accept, settle, give back, cancel and expire through the real use cases and adapters. What
they are given is drawn by a seed and comes more than once, as queues do it. When the weather
clears, all of it comes once more and must then get done. After that the audit is clean.

More seeds: CONFORMANCE_SEEDS=100 pytest tests/integration/test_conformance.py
"""

import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Barrier, Lock
from typing import Any, Final

import pytest

from ingest import accept, refund
from reconcile.settle import Settled, settle
from refund.give_back import Decided, give_back
from tests.engine import Aws
from tests.fakes import samples
from tests.fakes.faults import PASSING
from tests.fakes.promises import assert_books_add_up, refund_totals
from tests.fakes.samples import open_row
from tests.fakes.weather import Weather
from tests.fakes.wire import Wire, through
from wakala.audit import PROMISES, audit
from wakala.stack import Stack
from wallet_ledger.aws import items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.refunds import DynamoRefundBooks, DynamoRefundDesk
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions, DynamoOpenTransactions
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Debit, Movement, WalletStatus, movement_id
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import Unavailable
from wallet_ledger.patience import Patience

SEEDS: Final = int(os.environ.get("CONFORMANCE_SEEDS", "3"))
WORKERS: Final = 8
DELIVERIES_MAX: Final = 4
"""Of one piece of work in bad weather; what is not done by then comes again when it is over."""
BATCH_MAX: Final = 10
DEBITS, CREDITS, REFUNDS, AGENTS = 48, 16, 40, 3
LATE, WANTED_BACK = 8, 16
"""Debits that are accepted beside all else, and those that all refunds are of."""
WALLETS: Final = {"hot": 1, "cold": 12}
BEFELL: Final = {"answer lost", "refused", "cancelled", "items met"}
"""What must have befallen some call; on cold wallets too two deliveries of one thing meet."""

type Work = Callable[[], bool]
"""One delivery; whether it got done. `Unavailable` is no."""


@dataclass(frozen=True, slots=True)
class Day:
    """What is asked for, by seed: movements by wallet, and refunds of the debits among them."""

    movements: Sequence[Sequence[Movement]]
    refunds: Sequence[Refund]

    @property
    def debits(self) -> list[Debit]:
        """All of them."""
        return [each for of_one in self.movements for each in of_one if isinstance(each, Debit)]

    @property
    def batches(self) -> list[Sequence[Movement]]:
        """What reconcile is given at a time, each of one wallet and in its order."""
        return [
            of_one[at : at + BATCH_MAX]
            for of_one in self.movements
            for at in range(0, len(of_one), BATCH_MAX)
        ]


def day(draw: random.Random, wallets: int) -> Day:
    """Some debits that the wallets cannot pay, ids with a second content, refunds of too much."""
    phones = [f"2547{number:08}" for number in range(wallets)]
    movements: list[list[Movement]] = [[] for _ in phones]
    for number in range(CREDITS):
        # Every fourth id comes a second time, and means something else.
        name = f"C-{number - number % 4 // 3}"
        wallet = draw.randrange(wallets)
        credit = samples.credit(name, draw.randint(1, 300), phone=phones[wallet])
        movements[wallet].append(credit)
    debits: list[Debit] = []
    for number in range(DEBITS):
        agent, wallet = f"AG-{draw.randrange(AGENTS)}", draw.randrange(wallets)
        amount_minor = draw.randint(1, 200)
        debits.append(
            samples.debit(f"K-{number}", amount_minor, agent_id=agent, phone=phones[wallet])
        )
        movements[wallet].append(debits[-1])
    for wallet, phone in enumerate(phones):
        freeze = samples.status_change("freeze", phone=phone)
        thaw = samples.status_change("thaw", WalletStatus.ACTIVE, phone=phone)
        movements[wallet] += [freeze, thaw] if draw.random() < 0.5 else []
        draw.shuffle(movements[wallet])
        opening = samples.credit("open", 3_600 // wallets, phone=phone)
        movements[wallet].insert(draw.choice([0, 0, 0, len(movements[wallet])]), opening)
    back = draw.sample(debits, WANTED_BACK)
    return Day(movements, [a_refund(draw, draw.choice(back)) for _ in range(REFUNDS)])


def a_refund(draw: random.Random, of: Debit) -> Refund:
    """All of a debit, a part of it, or more than it; under one of three ids."""
    part_minor = draw.randint(1, of.amount_minor + 5)
    amount_minor = draw.choice([None, part_minor, part_minor])
    return samples.refund(
        f"R-{draw.randrange(3)}",
        amount_minor,
        key=of.idempotency_key,
        agent_id=of.agent_id,
        phone=of.phone,
    )


class Bank:
    """The tables, all who write there, and what they were told."""

    def __init__(self, aws: Aws) -> None:
        self._client = aws.dynamodb
        tables = aws.tables()
        both = {"ledger_table": tables.wallet_ledger, "offline_tx_table": tables.offline_tx}
        self._tables = tables
        self._clock = SystemClock()
        self._ledger = DynamoLedger(self._client, **both, retention_days=0)
        self._books = DynamoRefundBooks(self._client, **both, retention_days=0)
        self._desk = DynamoRefundDesk(self._client, **both)
        self._accepted = DynamoAcceptedTransactions(self._client, table=tables.offline_tx)
        self._open = DynamoOpenTransactions(self._client, table=tables.offline_tx)
        outputs = {
            "OfflineTxTable": tables.offline_tx,
            "WalletLedgerTable": tables.wallet_ledger,
            "DeadLettersTable": aws.dead_letters(),
        }
        session = _OneClient(self._client)
        self.stack = Stack("s", "us-east-1", None, session, outputs, {"RetentionDays": "0"})
        self.told: defaultdict[object, list[Settled | Decided]] = defaultdict(list)
        self._lock = Lock()

    def accept(self, wanted: Debit) -> bool:
        """As ingest does; the same request may come again."""
        asked = samples.request(
            wanted.idempotency_key,
            wanted.amount_minor,
            agent_id=wanted.agent_id,
            phone=wanted.phone,
        )
        answer = accept.accept_one(asked, self._accepted, self._clock, samples.OPEN_DAYS)
        assert not isinstance(answer, accept.KeyReused)
        return not isinstance(answer, accept.NotStored)

    def settle(self, batch: Sequence[Movement]) -> bool:
        """As reconcile does."""
        results = settle(batch, self._ledger, self._clock, self._patience())
        for movement, result in zip(batch, results, strict=True):
            assert not isinstance(result, Violation), result
            if isinstance(result, Settled):
                identity = (movement.phone, movement_id(movement), movement.fingerprint)
                self._note(identity, result)
        return not any(isinstance(each, Unfinished) for each in results)

    def give_back(self, asked: Refund) -> bool:
        """As refund does."""
        result = give_back(asked, self._books, self._clock, self._patience(), patient=True)
        assert not isinstance(result, Violation), result
        if isinstance(result, Decided):
            self._note(asked, result)
        return not isinstance(result, Unfinished)

    def ask(self, asked: Refund) -> bool:
        """As ingest does for an agent; what it asks for is a row's business from then on."""
        wanted = refund.Wanted(
            asked.agent_id, asked.idempotency_key, f"app-{asked.refund_id}", None, "wrong phone"
        )
        refund.request_refund(wanted, self._accepted, self._desk, self._clock, self._patience())
        return True

    def expire(self, wanted: Debit) -> bool:
        """As the sweep does, of a row that it saw queued."""
        row = self._accepted.find(wanted.agent_id, wanted.idempotency_key)
        if row is not None and row.status is Status.QUEUED:
            self._open.expire(open_row(row), self._clock.now_ms())
        return True

    def rows(self) -> list[OfflineTransaction]:
        """All rows."""
        return [items.read_offline_tx(item) for item in self._scan(self._tables.offline_tx)]

    def entries(self) -> list[Entry]:
        """All entries, which add up with their balance and the rows, wallet by wallet."""
        found: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for item in self._scan(self._tables.wallet_ledger):
            found[item["phone"]["S"]][item["txId"]["S"]] = item
        every: list[Entry] = []
        for phone, named in found.items():
            wallet = items.read_wallet(named[items.BALANCE])
            entries = [items.read_entry(i) for name, i in named.items() if items.entry_kind(name)]
            rows = [row for row in self.rows() if row.phone == phone]
            assert_books_add_up(wallet, entries, rows, refund_totals(named.values()))
            every += entries
        return every

    def _scan(self, table: str) -> Iterator[Any]:
        pages = self._client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        return (item for page in pages for item in page["Items"])

    def _note(self, identity: object, told: Settled | Decided) -> None:
        with self._lock:
            self.told[identity].append(told)

    def _patience(self) -> Patience:
        return Patience(self._clock, random.random, 300)


class _OneClient:
    """A session of boto3 that has the tests' client."""

    def __init__(self, client: object) -> None:
        self._client = client

    def client(self, *_: object, **__: object) -> object:
        return self._client


def deliveries(draw: random.Random, bank: Bank, asked: Day) -> Sequence[Work]:
    """Batches of each wallet and refunds, each up to three times; agents and the sweep between.

    Most refunds come after the first settlements, but any order is possible.
    """
    work: list[partial[bool]] = []
    for batch in asked.batches:
        work += [partial(bank.settle, batch)] * draw.randint(1, 3)
    for each in asked.refunds:
        work += [partial(bank.give_back, each)] * draw.randint(1, 2)
    work += [partial(bank.ask, each) for each in draw.sample(asked.refunds, 8)]
    work += [partial(bank.expire, each) for each in draw.sample(asked.debits, 4)]
    work += [partial(bank.accept, each) for each in asked.debits[:LATE]]
    return sorted(work, key=lambda each: draw.random() + (each.func != bank.settle) * 0.5)


def at_once(work: Sequence[Work], weather: Weather) -> None:
    """All workers let go at the same moment, each with its share, which it tries a few times."""
    barrier = Barrier(WORKERS, timeout=30)

    def run(who: int) -> None:
        left = list(work[who::WORKERS])
        barrier.wait()
        with weather.out(who):
            for _ in range(DELIVERIES_MAX):
                left = [each for each in left if not done(each)]

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(run, range(WORKERS)))


def done(work: Work) -> bool:
    """Whether one delivery got done."""
    try:
        return work()
    except Unavailable:
        return False


def befell(weather: Weather) -> set[str]:
    """What befell calls, whatever the error was that told of it."""
    names = {name.split(" by ")[0] for name in weather.counts}
    return {"refused" if name in PASSING else name for name in names}


def finish(bank: Bank, asked: Day) -> None:
    """Everything comes once more, in good weather, and gets done; so does what rows wait for."""
    work: list[Work] = [partial(bank.accept, each) for each in asked.debits]
    work += [partial(bank.settle, batch) for batch in asked.batches]
    work += [partial(bank.give_back, each) for each in asked.refunds]
    for each in work:
        # A busy machine may keep an answer too long, and so may AWS.
        assert any(done(each) for _ in range(DELIVERIES_MAX)), each
    for row in bank.rows():
        if row.refund_request is not None:
            wanted = samples.refund(
                row.refund_request.refund_id,
                row.refund_request.amount_minor,
                key=row.idempotency_key,
                agent_id=row.agent_id,
                phone=row.phone,
            )
            assert bank.give_back(wanted)


def assert_every_promise_holds(bank: Bank, asked: Day) -> None:
    """By the audit, by the rules of the fakes, and by what everybody was told."""
    report = audit(bank.stack, int(time.time()), lambda _: None)
    assert not report.violations, report.view()
    assert all(report.checked[promise] for promise in PROMISES), report.checked
    assert report.checked["P5"] == report.checked["P6"] == len(asked.debits)
    assert report.held == 0, "P5: nobody is here who could hold a row"
    entries = bank.entries()
    rows = {(row.agent_id, row.idempotency_key): row for row in bank.rows()}
    assert rows.keys() == {(d.agent_id, d.idempotency_key) for d in asked.debits}
    open_still = {Status.QUEUED, Status.HELD, Status.REFUND_REQUESTED}
    assert open_still.isdisjoint({row.status for row in rows.values()}), "P5"
    movements = {(m.phone, movement_id(m), m.fingerprint) for of in asked.movements for m in of}
    decided = {(e.phone, e.kind, e.actor, e.reference, e.fingerprint) for e in entries}
    for phone, (kind, *names), fingerprint in movements:
        assert kind == "debit" or (phone, kind, *names, fingerprint) in decided, "P5"
    for identity, told in bank.told.items():
        assert len({each.outcome for each in told}) == 1, f"P4, P6: {identity} {told}"
        assert sum(each.new for each in told) <= 1, f"P1: {identity} {told}"


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("wallets", WALLETS)
def test_whatever_the_weather_every_promise_holds_and_all_gets_done(
    each_engine: Aws, wire: Wire, wallets: str, seed: int
) -> None:
    draw = random.Random(f"{wallets} {seed}")
    weather = Weather(seed)
    wire.answer = weather
    bank, asked = Bank(each_engine), day(draw, WALLETS[wallets])
    try:
        twice = asked.debits[LATE:] * 2
        draw.shuffle(twice)
        at_once([partial(bank.accept, each) for each in twice], weather)
        at_once(deliveries(draw, bank, asked), weather)
        wire.answer = through
        finish(bank, asked)
        assert_every_promise_holds(bank, asked)
        assert befell(weather) >= BEFELL, "the weather was too good"
    except BaseException as error:
        error.add_note(f"seed {seed}, {wallets} wallets: {dict(weather.counts)}")
        raise
