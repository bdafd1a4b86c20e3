"""What an account holds at one moment, to go back to."""

import itertools
from collections.abc import Callable
from dataclasses import replace

from tests.simulation.cloud.account import Account
from tests.simulation.cloud.queues import Message, Queue
from tests.simulation.cloud.tables import Table

type Restore = Callable[[], None]


def snapshot(account: Account) -> Restore:
    """What brings the account back to how it is now, as often as it is called.

    Items and records of streams are never changed by anybody, so only what holds them is copied.
    """
    parts = [_table(each) for each in account.dynamodb.tables.values()]
    parts += [_queue(each) for each in account.sqs.queues.values()]
    parts += [_counters(account)]
    tokens = dict(account.dynamodb.tokens)
    heard = {name: list(bus.events) for name, bus in account.events.buses.items()}

    def restore() -> None:
        for part in parts:
            part()
        for name, events in heard.items():
            account.events.buses[name].events[:] = events
        account.dynamodb.tokens.clear()
        account.dynamodb.tokens.update(tokens)

    return restore


def _table(table: Table) -> Restore:
    def copied() -> tuple[object, ...]:
        return (
            {place: dict(rows) for place, rows in table.partitions.items()},
            {place: list(parts) for place, parts in table.order.items()},
            [{p: list(each) for p, each in i.places.items()} for i in table.indexes.values()],
        )

    kept, stream, latest = copied(), list(table.stream), list(table._latest)

    def restore() -> None:
        nonlocal kept
        table.partitions, table.order, places = kept  # type: ignore[assignment]
        for index, each in zip(table.indexes.values(), places, strict=True):  # type: ignore[call-overload]
            index.places = each
        kept = copied()  # what was handed out is going to be changed
        table.stream[:] = stream
        table._latest.clear()
        table._latest.extend(latest)

    return restore


def _queue(queue: Queue) -> Restore:
    def copied(
        messages: list[Message], sent: dict[object, tuple[int, Message]]
    ) -> tuple[list[Message], dict[object, tuple[int, Message]]]:
        made: dict[int, Message] = {}

        def copy(message: Message) -> Message:
            return made.setdefault(id(message), replace(message))

        return [copy(m) for m in messages], {i: (at, copy(m)) for i, (at, m) in sent.items()}

    kept = copied(queue.messages, queue._sent)  # type: ignore[arg-type]
    expired = list(queue.expired)

    def restore() -> None:
        queue.messages, queue._sent = copied(*kept)  # type: ignore[assignment]
        queue.expired = list(expired)

    return restore


def _counters(account: Account) -> Restore:
    """Numbers go on from where they were, so that a run is repeated to the letter."""
    written = next(account.dynamodb.numbers)
    sent = next(account.sqs.numbers)
    heard = next(account.events._numbers)

    def restore() -> None:
        account.dynamodb.numbers = itertools.count(written)
        account.sqs.numbers = itertools.count(sent)
        account.events._numbers = itertools.count(heard)

    restore()
    return restore
