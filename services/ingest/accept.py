"""Accept an offline transaction: one conditional write under the key that identifies it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from wallet_ledger.domain.ids import Phone
from wallet_ledger.domain.transactions import (
    OfflineTransaction,
    Request,
    accept,
    differing_fields,
)
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import AcceptedTransactions, Clock

WORKERS_MAX = 10
"""Phones of one batch that are stored at the same time."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Stored just now; it will be settled."""

    row: OfflineTransaction


@dataclass(frozen=True, slots=True)
class Replayed:
    """The same request was accepted before; `row` is what has become of it."""

    row: OfflineTransaction


@dataclass(frozen=True, slots=True)
class KeyReused:
    """The key means another request, which is left as it is. `fields` differ."""

    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotStored:
    """The table did not answer in time: send the same request again."""


type RunLane = Callable[[Sequence[int]], None]
type Acceptance = Accepted | Replayed | KeyReused | NotStored


def accept_one(
    request: Request, table: AcceptedTransactions, clock: Clock, open_days: int
) -> Acceptance:
    """Store the request under its key, or say what the key already means. One AWS call."""
    row = accept(request, clock.now_ms(), open_days)
    try:
        existing = table.put_if_new(row)
    except Unavailable:
        return NotStored()
    if existing is None:
        return Accepted(row)
    if existing.fingerprint == request.fingerprint:
        return Replayed(existing)
    return KeyReused(differing_fields(existing, request))


def accept_many(
    requests: Sequence[Request],
    table: AcceptedTransactions,
    clock: Clock,
    open_days: int,
    in_thread: Callable[[RunLane], RunLane],
) -> list[Acceptance]:
    """Accept a batch; the answers are parallel to the requests.

    Phones run side by side, the requests of one phone in their order: after one that was not
    stored, none later is, as it would overtake. A key that comes again waits until its first
    request has its answer, whatever phone it names. `in_thread` prepares a call for another thread.
    """
    lanes: dict[Phone, list[int]] = {}
    repeated: list[int] = []
    keys = set()
    for index, request in enumerate(requests):
        if request.idempotency_key in keys:
            repeated.append(index)
        else:
            keys.add(request.idempotency_key)
            lanes.setdefault(request.phone, []).append(index)
    answers: dict[int, Acceptance] = {}
    held_up: set[Phone] = set()

    def run(lane: Sequence[int]) -> None:
        for index in lane:
            request = requests[index]
            answers[index] = (
                NotStored()
                if request.phone in held_up
                else accept_one(request, table, clock, open_days)
            )
            if isinstance(answers[index], NotStored):
                held_up.add(request.phone)

    with ThreadPoolExecutor(max_workers=min(WORKERS_MAX, len(lanes) or 1)) as pool:
        list(pool.map(in_thread(run), lanes.values()))
    run(repeated)
    return [answers[index] for index in range(len(requests))]
