"""The conditions of our writes: seen as they are sent, cut into clauses, and each one weakened.

Nothing here is a list kept by hand. A guard is whatever clause an adapter is seen to send; a
mutant of it is a change to that clause in the request, at the engine, where our code cannot know.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from types import FrameType
from typing import Any

from tests.simulation.cloud import expressions, values
from tests.simulation.cloud.dynamodb import DynamoDB, Write
from tests.simulation.cloud.errors import Json
from tests.simulation.cloud.expressions import (
    AllOf,
    AnyOf,
    Between,
    Comparison,
    Condition,
    Function,
    Given,
    In,
    Literal,
    Not,
    Path,
    Size,
)

ADAPTERS = "/wallet_ledger/aws/"
ACTIONS = {"PutItem": "Put", "UpdateItem": "Update", "DeleteItem": "Delete"}
DROPPED, OR_ABOVE = "dropped", "or above"
"""No equal number is weakened to `or below`: attempts, versions, revisions and totals only rise."""

NONE = "(no condition)"
"""Stands for the clause of a write that has none."""


@dataclass(frozen=True, slots=True, order=True)
class Guard:
    """One clause of one write: who writes, what the write does, to which kind of item."""

    writer: str
    action: str
    item: str
    clause: str


@dataclass(frozen=True, slots=True, order=True)
class Weakened:
    """A guard, and what is done to it: `dropped`, or how its comparison lets more pass."""

    guard: Guard
    change: str

    def __str__(self) -> str:
        guard = self.guard
        return f"{guard.writer} | {guard.action} | {guard.item} | {guard.clause} | {self.change}"


@dataclass
class Seen:
    """What a battery sent: every guard, and the tests in which a mutant decides otherwise.

    `writer`: who makes the call under way; `test`: the one that runs, empty where none does.
    """

    writer: Callable[[], str | None]
    guards: set[Guard] = field(default_factory=set)
    weakened: dict[Weakened, set[str]] = field(default_factory=lambda: defaultdict(set))
    test: str = ""

    def watch(self, dynamodb: DynamoDB) -> None:
        """See all that is written there from now on."""
        dynamodb.observers.append(lambda write: self._see(dynamodb, write))

    def _see(self, dynamodb: DynamoDB, write: Write) -> None:
        writer = self.writer()
        if writer is None:
            return
        asked, item = write.asked, item_kind(write.asked)
        if write.condition is None:
            self.guards.add(Guard(writer, write.action, item, NONE))
            return
        table = dynamodb.tables[write.table]
        key = {name: (asked.get("Key") or asked["Item"])[name] for name in table.schema.names}
        row = table.row(table.read_key(key))
        now = row.item if row else {}
        for clause, changes in clauses(asked):
            guard = Guard(writer, write.action, item, clause)
            self.guards.add(guard)
            for change in changes:
                tests = self.weakened[Weakened(guard, change)]
                if not self.test or self.test in tests:
                    continue
                if holds(weaken(asked, clause, change), now) != write.outcome:
                    tests.add(self.test)


def weakening(mutant: Weakened) -> Callable[[str, Json], Json]:
    """What `DynamoDB.rewrite` must be for every write with the mutant's guard to be weakened."""

    def rewrite(operation: str, body: Json) -> Json:
        if writer_now() != mutant.guard.writer:
            return body
        if operation == "TransactWriteItems":
            items = [
                {action: changed(action, asked) for action, asked in each.items()}
                for each in body["TransactItems"]
            ]
            return {**body, "TransactItems": items}
        return changed(ACTIONS[operation], body) if operation in ACTIONS else body

    def changed(action: str, asked: Json) -> Json:
        guard = mutant.guard
        if (action, item_kind(asked)) != (guard.action, guard.item):
            return asked
        return weaken(asked, guard.clause, mutant.change)

    return rewrite


def writer_now() -> str | None:
    """The adapter's method that has made the call which is under way, None where a test made it."""
    return writer_in(sys._getframe(1))


def writer_in(frame: FrameType | None) -> str | None:
    """The adapter's method by which that frame was come to."""
    found = None
    while frame is not None:
        if ADAPTERS in frame.f_code.co_filename:
            found = frame.f_code.co_qualname
        frame = frame.f_back
    return found


def item_kind(asked: Json) -> str:
    """The table, and of which kind the item is by its key."""
    key = asked.get("Key") or asked["Item"]
    if "txId" in key:
        name, sign, _ = key["txId"]["S"].partition("#")
        return f"WalletLedger {name}{sign}"
    if "id" in key:
        return f"DeadLetters {key['id']['S'].partition('#')[0]}"
    return "OfflineTx row"


def clauses(asked: Json) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each clause of the condition, with its names spelt out, and what can be done to it."""
    yield from _clauses(asked["ConditionExpression"], _names(asked), _numbers(asked))


@lru_cache(maxsize=4096)
def _clauses(
    text: str, names: tuple[tuple[str, str], ...], numbers: frozenset[str]
) -> list[tuple[str, tuple[str, ...]]]:
    named = dict(names)

    def walk(node: Condition) -> Iterator[tuple[str, tuple[str, ...]]]:
        if isinstance(node, AllOf):
            for part in node.parts:
                yield from walk(part)
            return
        yield show(node, named), tuple(_changes(node, numbers))
        if isinstance(node, AnyOf):
            for part in node.parts:
                yield show(part, named), ("never",)

    return list(walk(expressions.condition(text, "ConditionExpression").body))


def _changes(node: Condition, numbers: frozenset[str]) -> Iterator[str]:
    yield DROPPED
    if isinstance(node, Comparison) and isinstance(node.right, Literal):
        if node.sign in _BY_ONE and node.right.name in numbers:
            yield "by one"
        if node.sign == "=" and node.right.name in numbers:
            yield OR_ABOVE


_BY_ONE = {">=": -1, ">": -1, "<=": 1, "<": 1}


def weaken(asked: Json, clause: str, change: str) -> Json:
    """The write with the clause changed; as it is where it has no such clause."""
    text = asked.get("ConditionExpression")
    if text is None:
        return asked
    key = min(asked.get("Key") or asked["Item"])
    made, literal = _weakened(text, _names(asked), clause, change, key)
    if made is None:
        return asked
    weakened = {**asked, "ConditionExpression": made}
    if literal is not None:
        name, by = literal
        given = weakened["ExpressionAttributeValues"]
        moved = {"N": str(Decimal(given[name]["N"]) + by)}
        weakened["ExpressionAttributeValues"] = {**given, name: moved}
    return weakened


@lru_cache(maxsize=4096)
def _weakened(
    text: str, names: tuple[tuple[str, str], ...], clause: str, change: str, key: str
) -> tuple[str | None, tuple[str, int] | None]:
    """The text, None where the clause is not in it; the number to be moved, and by how much."""
    literal: list[tuple[str, int]] = []
    found: list[Condition] = []
    always = f"(attribute_exists({key}) OR attribute_not_exists({key}))"
    never = f"(attribute_exists({key}) AND attribute_not_exists({key}))"

    def instead(node: Condition) -> str | None:
        if show(node, dict(names)) != clause:
            return None
        found.append(node)
        if change == DROPPED:
            return always
        if change == "never":
            return never
        assert isinstance(node, Comparison)
        assert isinstance(node.right, Literal)
        if change == OR_ABOVE:
            return f"{show(node.left)} >= {show(node.right)}"
        literal.append((node.right.name, _BY_ONE[node.sign]))
        return show(node)

    body = expressions.condition(text, "ConditionExpression").body
    made = show(body, instead=instead)
    return (made if found else None), (literal[0] if literal else None)


def holds(asked: Json, item: Json) -> bool:
    """Whether the write's condition holds for an item."""
    parsed = expressions.condition(asked["ConditionExpression"], "ConditionExpression")
    given = values.canonical_item(asked.get("ExpressionAttributeValues") or {})
    return parsed.body.holds(item, Given(asked.get("ExpressionAttributeNames") or {}, given))


type Shown = Condition | Path | Literal | Size


def show(
    node: Shown,
    names: Mapping[str, str] | None = None,
    instead: Callable[[Any], str | None] = lambda _: None,
) -> str:
    """An expression's text; `names` for placeholders, and whatever `instead` says for a part."""

    def part(each: Shown) -> str:
        return show(each, names, instead)

    other = instead(node)
    if other is not None:
        return other
    match node:
        case Path(steps):
            named = [str((names or {}).get(str(step), step)) for step in steps]
            return ".".join(named)
        case Literal(name):
            return name
        case Size(path):
            return f"size({part(path)})"
        case Comparison(sign, left, right):
            return f"{part(left)} {sign} {part(right)}"
        case Between(operand, low, high):
            return f"{part(operand)} BETWEEN {part(low)} AND {part(high)}"
        case In(operand, options):
            return f"{part(operand)} IN ({', '.join(map(part, options))})"
        case Function(name, path, wanted):
            return f"{name}({', '.join(part(each) for each in (path, wanted) if each)})"
        case Not(inner):
            return f"NOT ({part(inner)})"
        case AllOf(parts):
            return " AND ".join(f"({part(p)})" if isinstance(p, AnyOf) else part(p) for p in parts)
        case AnyOf(parts):
            return " OR ".join(f"({part(p)})" if isinstance(p, AllOf) else part(p) for p in parts)


def _names(asked: Json) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((asked.get("ExpressionAttributeNames") or {}).items()))


def _numbers(asked: Json) -> frozenset[str]:
    given = asked.get("ExpressionAttributeValues") or {}
    return frozenset(name for name, value in given.items() if "N" in value)
