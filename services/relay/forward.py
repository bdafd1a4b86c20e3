"""Send what was derived, in order, and say where to start again."""

from collections.abc import Mapping, Sequence

from wallet_ledger.derive import Destination, Outgoing
from wallet_ledger.ports import EventBus, OutgoingEvent, OutgoingMessage, Queue


def forward(
    outgoing: Sequence[tuple[int, Outgoing]], queues: Mapping[Destination, Queue], bus: EventBus
) -> int | None:
    """Send everything; the lowest record index of which something was not taken, or None.

    `outgoing` pairs each item with the index of the record that it comes from. What was sent
    from later records goes out again when the stream starts again there: every consumer is
    idempotent, and the queues drop a repetition of the same attempt.
    """
    left: set[int] = set()
    for destination, queue in queues.items():
        indexes, messages = _for(outgoing, destination, OutgoingMessage)
        left.update(indexes[place] for place in queue.send(messages))
    indexes, events = _for(outgoing, Destination.EVENT_BUS, OutgoingEvent)
    left.update(indexes[place] for place in bus.put(events))
    return min(left, default=None)


def _for[Content](
    outgoing: Sequence[tuple[int, Outgoing]], destination: Destination, kind: type[Content]
) -> tuple[list[int], list[Content]]:
    chosen = [
        (index, item.content)
        for index, item in outgoing
        if item.destination is destination and isinstance(item.content, kind)
    ]
    return [index for index, _ in chosen], [content for _, content in chosen]
