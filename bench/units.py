"""What DynamoDB charges for a write or a read, by its own rules, from the items themselves.

An engine may not report what an index consumes, so this is computed: per item and index, in write
units of 1 KB, doubled for the table's part of a transaction, and in read units of 4 KB (Amazon
DynamoDB developer guide, item sizes and formats; read and write operations; global secondary
indexes). tests/integration compares it with DynamoDB Local.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

type Item = Mapping[str, Mapping[str, Any]]

WRITE_UNIT_BYTES = 1024
READ_UNIT_BYTES = 4096
NUMBER_BYTES_MAX = 21

TABLE = "table"
"""The part of a table's units that is no index's."""

EVENTUAL, CONSISTENT, IN_TRANSACTION = 0.5, 1.0, 2.0
"""Read units for each begun 4 KB, by the kind of read."""


@dataclass(frozen=True, slots=True)
class Index:
    """A global secondary index: its key's attributes, and what it projects (None: everything)."""

    key: tuple[str, ...]
    projected: frozenset[str] | None

    def entry(self, item: Item | None) -> Item | None:
        """What the index holds of an item of the table; None where a part of its key is missing."""
        if item is None or not all(name in item for name in self.key):
            return None
        if self.projected is None:
            return item
        return {name: value for name, value in item.items() if name in self.projected}


@dataclass(frozen=True, slots=True)
class Shape:
    """A table: its key's attributes and its indexes by name."""

    key: tuple[str, ...]
    indexes: Mapping[str, Index]


def shape_of(table: Mapping[str, Any]) -> Shape:
    """The shape of a table as CreateTable or the template has it."""
    key = _names(table)
    return Shape(
        key,
        {
            index["IndexName"]: Index(_names(index), _projected(index, key))
            for index in table.get("GlobalSecondaryIndexes", ())
        },
    )


def write_units(
    shape: Shape, before: Item | None, after: Item | None, *, in_transaction: bool
) -> dict[str, float]:
    """Units of one write by where they go: `table`, and the name of each index it touches."""
    larger = max(item_bytes(before), item_bytes(after))
    units = {TABLE: float(_units(larger) * (2 if in_transaction else 1))}
    for name, index in shape.indexes.items():
        was, becomes = index.entry(before), index.entry(after)
        moves = was and becomes and any(was[part] != becomes[part] for part in index.key)
        if was == becomes:
            continue
        if moves:
            units[name] = float(_units(item_bytes(was)) + _units(item_bytes(becomes)))
        else:
            units[name] = float(_units(max(item_bytes(was), item_bytes(becomes))))
    return units


def read_units(found: Iterable[Item], rate: float) -> float:
    """Units of one look at a table or an index: an item, nothing, or the whole page of a query.

    `rate` is `EVENTUAL`, `CONSISTENT` or `IN_TRANSACTION`. What a filter or a projection left out
    of an answer is charged all the same, so `found` must be what was looked at.
    """
    return max(1, math.ceil(sum(map(item_bytes, found)) / READ_UNIT_BYTES)) * rate


def item_bytes(item: Item | None) -> int:
    """The size of an item: its attributes' names in UTF-8, and their values."""
    if item is None:
        return 0
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items())


def _units(size: int) -> int:
    return max(1, math.ceil(size / WRITE_UNIT_BYTES))


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    match kind:
        case "S":
            return len(content.encode())
        case "N":
            return _number_bytes(content)
        case "B":
            return len(content)
        case "BOOL" | "NULL":
            return 1
        case "M":
            return 3 + sum(1 + len(n.encode()) + _value_bytes(v) for n, v in content.items())
        case "L":
            return 3 + sum(1 + _value_bytes(each) for each in content)
        case "SS":
            return sum(len(each.encode()) for each in content)
        case _:
            raise ValueError(f"no rule for the size of a value of type {kind}")


def _number_bytes(text: str) -> int:
    """About a byte for two significant digits and one more; nothing for zeros at either end."""
    digits = re.sub(r"[-.]", "", text).strip("0")
    return min(NUMBER_BYTES_MAX, math.ceil(len(digits) / 2) + 1 + text.startswith("-"))


def _names(table: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(part["AttributeName"] for part in table["KeySchema"])


def _projected(index: Mapping[str, Any], key: Sequence[str]) -> frozenset[str] | None:
    projection = index["Projection"]
    if projection["ProjectionType"] == "ALL":
        return None
    return frozenset({*key, *_names(index), *projection.get("NonKeyAttributes", ())})
