"""The streams' edge: which table a record is of, and where Lambda must start again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay.derive import Destination, Outgoing, from_entry, from_row
from relay.forward import forward
from wallet_ledger.aws import items
from wallet_ledger.messages import unreadable
from wallet_ledger.ports import EventBus, OutgoingMessage, Queue
from wallet_ledger.telemetry import logger

LETTER_BYTES_MAX = 240_000
"""A message body that every queue takes, with room to spare."""

type Record = Mapping[str, Any]
type Derive = Callable[[Mapping[str, Any]], list[Outgoing]]


def handle_batch(
    records: Sequence[Record],
    *,
    offline_tx_table: str,
    wallet_ledger_table: str,
    queues: Mapping[Destination, Queue],
    bus: EventBus,
    delivery_failures: Queue,
) -> dict[str, list[dict[str, str]]]:
    """The answer to Lambda: the sequence number to start again from, or nothing."""
    derivations: dict[str, Derive] = {
        offline_tx_table: _from_offline_tx,
        wallet_ledger_table: _from_wallet_ledger,
    }
    outgoing: list[tuple[int, Outgoing]] = []
    unread: list[tuple[int, OutgoingMessage]] = []
    for index, record in enumerate(records):
        try:
            derive = derivations[_table(record)]
            outgoing += [(index, item) for item in derive(record["dynamodb"])]
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            # Not ours to judge, and not to block the shard: kept whole for a person.
            why = type(error).__name__
            logger.error("unreadable stream record", extra={"why": why})
            unread.append((index, _letter(why, record)))
    first = forward(outgoing, queues, bus)
    kept = delivery_failures.send([letter for _, letter in unread]) if unread else frozenset()
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


def _table(record: Record) -> str:
    """`arn:aws:dynamodb:<region>:<account>:table/<name>/stream/<label>` → `<name>`."""
    return str(record["eventSourceARN"]).split("/")[1]
