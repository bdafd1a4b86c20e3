"""The streams' edge: which table a record is of, and where Lambda must start again."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.forward import forward
from wallet_ledger.aws import items
from wallet_ledger.derive import Destination, Outgoing, from_entry, from_letter, from_row
from wallet_ledger.messages import unreadable
from wallet_ledger.ports import EventBus, OutgoingMessage, Queue
from wallet_ledger.telemetry import logger

LETTER_BYTES_MAX = 240_000
"""A message body that every queue takes, with room to spare."""

type Record = Mapping[str, Any]
type Derive = Callable[[Mapping[str, Any]], list[Outgoing]]


@dataclass(frozen=True, slots=True)
class Tables:
    """Names of the tables whose streams come in."""

    offline_tx: str
    wallet_ledger: str
    dead_letters: str


def handle_batch(
    records: Sequence[Record],
    *,
    tables: Tables,
    queues: Mapping[Destination, Queue],
    bus: EventBus,
    delivery_failures: Queue,
) -> dict[str, list[dict[str, str]]]:
    """The answer to Lambda: the sequence number to start again from, or nothing."""
    derivations: dict[str, Derive] = {
        tables.offline_tx: _from_offline_tx,
        tables.wallet_ledger: _from_wallet_ledger,
        tables.dead_letters: _from_dead_letters,
    }
    outgoing: list[tuple[int, Outgoing]] = []
    unread: list[tuple[int, OutgoingMessage]] = []
    for index, record in enumerate(records):
        derive: Derive | None = None
        try:
            derive = derivations[_table(record)]
            outgoing += [(index, item) for item in derive(record["dynamodb"])]
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            # Not ours to judge, and not to block the shard: kept whole for a person.
            why = type(error).__name__
            logger.error("unreadable stream record", extra={"why": why})
            if derive is not _from_dead_letters:  # a letter of a letter would go round for ever
                unread.append((index, _letter(why, record)))
    first = forward(outgoing, queues, bus)
    kept = delivery_failures.send([letter for _, letter in unread])
    stops = [unread[place][0] for place in kept] + ([] if first is None else [first])
    if not stops:
        return {"batchItemFailures": []}
    logger.warning("stream stopped", extra={"records": len(records), "at": min(stops)})
    sequence = records[min(stops)]["dynamodb"]["SequenceNumber"]
    return {"batchItemFailures": [{"itemIdentifier": sequence}]}


def _letter(why: str, record: Record) -> OutgoingMessage:
    """The record for a person; without its images where a queue would not take it whole.

    An item may be larger than a message. What it was is then still in the table, by its keys.
    """
    letter = unreadable("Stream", why, record)
    if len(letter.body) <= LETTER_BYTES_MAX:
        return letter
    kept = {name: record["dynamodb"].get(name) for name in ("SequenceNumber", "Keys", "SizeBytes")}
    return unreadable("Stream", why, {**record, "dynamodb": kept})


def _from_offline_tx(change: Mapping[str, Any]) -> list[Outgoing]:
    if "NewImage" not in change:
        return []  # purged by retention: it was closed, and everybody has been told
    old = items.read_offline_tx(change["OldImage"]) if "OldImage" in change else None
    return from_row(old, items.read_offline_tx(change["NewImage"]))


def _from_wallet_ledger(change: Mapping[str, Any]) -> list[Outgoing]:
    if change["NewImage"]["txId"]["S"] == items.BALANCE:
        return []  # the entries beside it say what happened
    return from_entry(items.read_entry(change["NewImage"]))


def _from_dead_letters(change: Mapping[str, Any]) -> list[Outgoing]:
    if "NewImage" not in change or not items.is_letter(change["NewImage"]):
        return []  # purged by retention; or the record of a letter, or a budget
    old = items.read_letter(change["OldImage"]) if "OldImage" in change else None
    return from_letter(old, items.read_letter(change["NewImage"]))


def _table(record: Record) -> str:
    """`arn:aws:dynamodb:<region>:<account>:table/<name>/stream/<label>` → `<name>`."""
    return str(record["eventSourceARN"]).split("/")[1]
