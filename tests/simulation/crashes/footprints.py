"""What an invocation reads and writes, so that pairs are told apart that cannot meet."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.crashes.line import Call, Json, Line

type Place = tuple[str, str]
"""A table, a queue or a bus, and a key of the table; `ALL` of it where there is none."""

ALL = "*"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Of an invocation that runs alone."""

    reads: frozenset[Place]
    writes: frozenset[Place]

    def meets(self, other: "Footprint") -> bool:
        """Whether one of the two writes what the other reads or writes.

        Where neither does, each is answered what it would be alone, whatever the schedule is. So
        it makes the same calls, and all schedules end alike.
        """
        return _overlap(self.writes, other.reads | other.writes) or _overlap(
            other.writes, self.reads
        )


def _overlap(writes: frozenset[Place], touched: frozenset[Place]) -> bool:
    wholes = {where for where, key in touched if key == ALL}
    return not writes.isdisjoint(touched) or any(where in wholes for where, _ in writes)


def footprint(line: Line, before: frozenset[tuple[Place, str]]) -> Footprint:
    """Of what has run on the line since it held `before`, its calls being all that there are."""
    changed = {place for place, _ in before ^ held(line)}
    asked = {place for call in line.calls for place in _places(line, call)}
    sent = {place for place in asked if place[1] == ALL and place[0] in line.account.sqs.queues}
    return Footprint(frozenset(asked), frozenset(changed | sent))


def held(line: Line) -> frozenset[tuple[Place, str]]:
    """What there is in each place, as text."""
    account = line.account
    found: set[tuple[Place, str]] = set()
    for name, table in account.dynamodb.tables.items():
        for item in table.items():
            found.add(((name, _key(table.schema.names, item)), json.dumps(item, default=str)))
    for name, queue in account.sqs.queues.items():
        found.add(((name, ALL), str([(m.message_id, m.visible_at_ms) for m in queue.messages])))
    for name, bus in account.events.buses.items():
        found.add(((name, ALL), str(len(bus.events))))
    return frozenset(found)


def _key(names: tuple[str, ...], item: Json) -> str:
    return json.dumps([item[name] for name in names])


def _places(line: Line, call: Call) -> Iterator[Place]:
    """All that a call speaks of."""
    asked = [part for each in call.body.get("TransactItems", ()) for part in each.values()]
    for body in asked or [call.body]:
        if "Key" in body or "Item" in body:
            name = body["TableName"]
            names = line.account.dynamodb.tables[name].schema.names
            yield name, _key(names, body.get("Key") or body["Item"])
        else:
            [(_, target)] = call.parts
            yield target.partition("/")[0], ALL
