"""Times each step of Wakala's path on an engine of the bench's own, one thing at a time."""

import json
import os
import platform
import statistics
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bench.compare import OUR_TABLES, silence
from bench.engine import own_engine
from bench.meter import Meter
from bench.ours import Ours, Record
from bench.queueing.times import MEASURED
from bench.units import shape_of
from wallet_ledger.aws import clients
from wallet_ledger.aws.messaging import EventBridgeBus, SqsQueue
from wallet_ledger.clock import SystemClock
from wallet_ledger.ports import OutgoingEvent, OutgoingMessage

ROUNDS = 60
GROUP = 10
"""Movements of the larger group; both are measured, and a line drawn through them."""

type Timed = tuple[float, float]
"""Milliseconds of waiting, and of this process's own work."""


def measure() -> dict[str, Any]:
    """Everything that `ServiceTimes` needs of a machine, with the day and the kind of machine."""
    with own_engine(amazons=False), silence():
        backend = _backend()
        accepted, messages = _accepts(backend)
        alone = _settles(backend, [[each] for each in messages[:ROUNDS]])
        rest = messages[ROUNDS:]
        together = _settles(backend, [rest[n : n + GROUP] for n in range(0, len(rest), GROUP)])
        sends, puts = _sends()
    each_ms, code_each_ms = (
        (many - one) / (GROUP - 1) for one, many in zip(alone, together, strict=True)
    )
    return {
        "measured_on": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "ms": {
            name: round(value, 3)
            for name, value in {
                "accept_ms": accepted[0],
                "accept_code_ms": accepted[1],
                "settle_ms": alone[0] - each_ms,
                "settle_each_ms": each_ms,
                "settle_code_ms": alone[1] - code_each_ms,
                "settle_code_each_ms": code_each_ms,
                "send_ms": sum(sends),
                "put_events_ms": sum(puts),
            }.items()
        },
    }


def write() -> None:
    """Measure anew, into the file that the model reads."""
    MEASURED.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")


def _backend() -> Ours:
    client = clients.dynamodb(on_consumed=_ignore)
    rows, books = (f"{name}-{uuid.uuid4()}" for name in ("rows", "books"))
    for name, table in zip((rows, books), OUR_TABLES, strict=True):
        client.create_table(TableName=name, **table)
    shapes = {rows: shape_of(OUR_TABLES[0]), books: shape_of(OUR_TABLES[1])}
    meter = Meter(client, shapes, weigh=False)
    return Ours(client, rows, books, meter, lambda: time.time_ns() // 1_000_000)


def _accepts(backend: Ours) -> tuple[Timed, list[Record]]:
    """Debits of one wallet each, then of wallets in tens; the time of one, and their records."""
    phones = [f"2547{n:08d}" for n in range(2 * ROUNDS)]
    for phone in phones:
        backend.open_wallet(phone, 1_000_000)
    wanted = phones[:ROUNDS] + [each for each in phones[ROUNDS:] for _ in range(GROUP)]
    records: list[Record] = []

    def accept(number: int, phone: str) -> None:
        record = backend.enqueue("AG-001", phone, 1, f"k-{number}")
        if record is None:
            raise AssertionError("a new key was taken for a repetition")
        records.append(record)

    timed = [_timed(partial(accept, number, phone)) for number, phone in enumerate(wanted)]
    return _median(timed), records


def _settles(backend: Ours, batches: Sequence[Sequence[Record]]) -> Timed:
    return _median([_timed(partial(_settle, backend, batch)) for batch in batches])


def _settle(backend: Ours, batch: Sequence[Record]) -> None:
    if backend.handle(batch):
        raise AssertionError("a movement must come again, and nothing was in the way")


def _sends() -> tuple[Timed, Timed]:
    """The relay's two calls, ten entries each."""
    clock = SystemClock()
    sqs, events = clients.sqs(), clients.events()
    url = sqs.create_queue(QueueName="scale.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    queue = SqsQueue(sqs, url=url, clock=clock)
    bus = EventBridgeBus(events, name="default", clock=clock)
    body, detail = "x" * 400, json.dumps({"x": "x" * 300})

    def send(number: int) -> None:
        queue.send([OutgoingMessage(body, f"g-{n}", f"{number}-{n}") for n in range(GROUP)])

    sends = [_timed(partial(send, number)) for number in range(ROUNDS)]
    told = [OutgoingEvent("TransactionSynced", detail)] * GROUP
    puts = [_timed(lambda: bus.put(told)) for _ in range(ROUNDS)]
    return _median(sends), _median(puts)


def _timed(do: Callable[[], object]) -> Timed:
    started, worked = time.perf_counter(), time.process_time()
    do()
    code_ms = (time.process_time() - worked) * 1000
    return (time.perf_counter() - started) * 1000 - code_ms, code_ms


def _median(timed: Sequence[Timed]) -> Timed:
    return statistics.median(t[0] for t in timed), statistics.median(t[1] for t in timed)


def _ignore(_name: str, _units: float) -> None:
    """What is consumed is not asked for."""
