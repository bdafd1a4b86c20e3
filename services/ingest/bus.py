"""The bus edge: what is asked for on the bus, from the Inbox into the queue of its phone."""

from collections.abc import Mapping, Sequence
from typing import Any

from wallet_ledger.contracts import Defaults, read_bus_request
from wallet_ledger.domain.ids import digest
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.errors import InvalidMessage
from wallet_ledger.messages import movement_message, refund_message, unreadable
from wallet_ledger.ports import OutgoingMessage, Queue
from wallet_ledger.telemetry import count, log_failure, logger

type Record = Mapping[str, Any]


def handle_batch(
    records: Sequence[Record],
    *,
    defaults: Defaults,
    tx_queue: Queue,
    refund_queue: Queue,
    delivery_failures: Queue,
) -> dict[str, list[dict[str, str]]]:
    """The answer to Lambda: the message ids that must come again."""
    movements: list[tuple[Record, OutgoingMessage]] = []
    refunds: list[tuple[Record, OutgoingMessage]] = []
    unread: list[tuple[Record, OutgoingMessage]] = []
    for record in records:
        try:
            event_id, asked = read_bus_request(record["body"], defaults)
        except InvalidMessage as error:
            logger.error("unreadable request", extra={"why": str(error)})
            unread.append((record, unreadable("Inbox", str(error), record)))
        else:
            # One event delivered twice is one message; the same request asked again is another
            # event, passes, and meets its own entry in the ledger.
            dedup_id = digest("bus", event_id)
            if isinstance(asked, Refund):
                refunds.append((record, refund_message(asked, dedup_id)))
            else:
                movements.append((record, movement_message(asked, dedup_id)))
    again = _send(movements, tx_queue) + _send(refunds, refund_queue)
    count("BusRequestsTaken", len(movements) + len(refunds) - len(again))
    again += _send(unread, delivery_failures)
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in again]}


def _send(pairs: Sequence[tuple[Record, OutgoingMessage]], queue: Queue) -> list[Record]:
    try:
        kept = queue.send([message for _, message in pairs])
    except Exception as error:  # say, a letter larger than a queue takes: the others are still sent
        log_failure("messages not sent", error)
        return [record for record, _ in pairs]
    return [pairs[index][0] for index in sorted(kept)]
