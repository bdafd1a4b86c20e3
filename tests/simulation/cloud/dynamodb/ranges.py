"""Which part of a table or of an index a read asks for, and in what order it is gone through."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.cloud import expressions, tables, values
from tests.simulation.cloud.errors import Json, invalid
from tests.simulation.cloud.expressions import Given, Literal, Path
from tests.simulation.cloud.tables import Index, Key, Row, Table

type Bound = tuple[Any, bool] | None


def asked_range(
    body: expressions.Condition, schema: tables.KeySchema, given: Given
) -> tuple[Any, Bound, Bound, Any]:
    """Partition, lower and upper bound of the sort key with whether they are in, and prefix."""
    parts = list(body.parts) if isinstance(body, expressions.AllOf) else [body]
    place: Any = None
    low: Bound = None
    high: Bound = None
    prefix: Any = None
    seen: list[str] = []
    for part in parts:
        name, bounds = _key_test(part, given)
        seen.append(name)
        for literal in bounds.values():
            if name in schema.kinds and values.kind_of(literal) != schema.kinds[name]:
                raise invalid(
                    "One or more parameter values were invalid: "
                    "Condition parameter type does not match schema type"
                )
        found = {sign: values.comparable(literal) for sign, literal in bounds.items()}
        if name == schema.hash_name and "=" in found:
            place = found["="]
        elif name == schema.range_name:
            low, high, prefix = _bounds(found)
        else:
            raise invalid(f"Query key condition not supported: {name}")
    if len(set(seen)) != len(seen) or schema.hash_name not in seen:
        raise invalid(f"Query condition missed key schema element: {schema.hash_name}")
    return place, low, high, prefix


def _bounds(found: Mapping[str, Any]) -> tuple[Bound, Bound, Any]:
    low: Bound = None
    high: Bound = None
    if "=" in found:
        low = high = (found["="], True)
    for sign, is_in in ((">", False), (">=", True)):
        low = (found[sign], is_in) if sign in found else low
    for sign, is_in in (("<", False), ("<=", True)):
        high = (found[sign], is_in) if sign in found else high
    return low, high, found.get("begins_with")


def _key_test(part: expressions.Condition, given: Given) -> tuple[str, dict[str, Json]]:
    """The attribute that a part of a key condition is about, and what it says of it."""
    match part:
        case expressions.Comparison(sign, Path() as path, Literal(name)) if sign != "<>":
            bounds = {sign: given.values[name]}
        case expressions.Between(Path() as path, Literal(low), Literal(high)):
            bounds = {">=": given.values[low], "<=": given.values[high]}
        case expressions.Function("begins_with", Path() as path, Literal(name)):
            bounds = {"begins_with": given.values[name]}
        case _:
            raise invalid("Invalid operator used in KeyConditionExpression")
    [step] = path.resolved(given)
    return str(step), bounds


def as_before(
    found: list[tuple[Any, Key]],
    past: Mapping[Key, Row | None],
    place: Any,
    key_of: Callable[[Json], tuple[Any, Any] | None],
) -> list[tuple[Any, Key]]:
    """The sort keys and keys of a partition as they were, in order."""
    if not past:
        return found
    kept = [each for each in found if each[1] not in past]
    for key, row in past.items():
        was = None if row is None else key_of(row.item)
        if was is not None and was[0] == place:
            kept.append((was[1], key))
    return sorted(kept)


def is_in(index: Index | None, row: Row) -> bool:
    """Whether a scan of the index, or of the table, comes by an item."""
    return index is None or index.key_of(row.item) is not None


def within(part: Any, low: Bound, high: Bound, prefix: Any) -> bool:
    """Whether a sort key is one of those that are asked for."""
    if low is not None and not (part >= low[0] if low[1] else part > low[0]):
        return False
    if high is not None and not (part <= high[0] if high[1] else part < high[0]):
        return False
    return prefix is None or bool(part.startswith(prefix))


def start_of(start: Json, table: Table, index: Index | None) -> tuple[Any, Any, Key]:
    """Where a page begins: sort key, partition, and the item's own key."""
    names = {*table.schema.names, *(index.schema.names if index else ())}
    if set(start) != names:
        raise invalid("The provided starting key is invalid")
    canonical = values.canonical_item(start)
    key = table.read_key({name: canonical[name] for name in table.schema.names})
    place, part = index.schema.key_of(canonical) if index else key
    return part, place, key


def hashed(key: Key) -> str:
    """The order in which a scan goes through a table: none that anybody could rely on."""
    return hashlib.md5(repr(key[0]).encode(), usedforsecurity=False).hexdigest()
