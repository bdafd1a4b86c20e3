"""Tables: items by their key, sparse indexes, streams of what was committed, and time to live."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.cloud import values
from tests.simulation.cloud.errors import Json, Unsupported, invalid
from tests.simulation.cloud.values import Comparable

REGION = "us-east-1"
ACCOUNT_ID = "000000000000"
HASH_BYTES_MAX, RANGE_BYTES_MAX = 2048, 1024
ITEM_BYTES_MAX = 400 * 1024
TTL_PAST_S_MAX = 5 * 365 * 86_400
"""What expired longer ago than about five years is not deleted: it is taken for a mistake."""
LAG_MAX = 1000
"""Commits that a read may be behind at most."""
NO_RANGE = ""
"""Stands for the sort key where a table has none."""

type Key = tuple[Comparable, Any]
"""Values of the partition key and of the sort key."""


@dataclass(slots=True)
class Row:
    """An item, never changed, and its bytes."""

    item: Json
    size: int


@dataclass(frozen=True, slots=True)
class KeySchema:
    """Names of the attributes of a key, and their kinds (S, N or B)."""

    hash_name: str
    range_name: str | None
    kinds: dict[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """One or two."""
        return (self.hash_name,) if self.range_name is None else (self.hash_name, self.range_name)

    def key_of(self, item: Json) -> Key:
        """Its place. The item holds both attributes."""
        place = values.comparable(item[self.hash_name])
        if self.range_name is None:
            return place, NO_RANGE
        return place, values.comparable(item[self.range_name])


@dataclass(slots=True)
class Index:
    """A global secondary index: of the items that hold its key, those attributes it projects."""

    name: str
    schema: KeySchema
    projected: frozenset[str] | None
    places: dict[Comparable, list[tuple[Any, Key]]] = field(default_factory=dict)

    def key_of(self, item: Json) -> Key | None:
        """Its place, None where the item is not in the index."""
        if any(name not in item for name in self.schema.names):
            return None
        return self.schema.key_of(item)

    def shown(self, item: Json) -> Json:
        """What the index holds of it."""
        if self.projected is None:
            return item
        return {name: value for name, value in item.items() if name in self.projected}

    def check(self, item: Json) -> None:
        """Raises where a value cannot be a key."""
        for name in self.schema.names:
            if name not in item:
                continue
            kind, wanted = values.kind_of(item[name]), self.schema.kinds[name]
            if kind != wanted:
                raise invalid(
                    "One or more parameter values were invalid: Type mismatch for Index Key "
                    f"{name} Expected: {wanted} Actual: {kind} IndexName: {self.name}"
                )
            if not item[name][kind]:
                raise invalid(
                    "One or more parameter values are not valid. A value specified for a secondary "
                    f"index key is not supported. Key: {name}, IndexName: {self.name}"
                )

    def move(self, key: Key, before: Json | None, after: Json | None) -> None:
        """Follow a write of the table."""
        old = None if before is None else self.key_of(before)
        new = None if after is None else self.key_of(after)
        if old == new:
            return
        if old is not None:
            places = self.places[old[0]]
            del places[bisect_left(places, (old[1], key))]
            if not places:
                del self.places[old[0]]
        if new is not None:
            insort(self.places.setdefault(new[0], []), (new[1], key))


@dataclass(slots=True)
class Table:
    """One table. `stream` holds a record of each change, in the order of commits."""

    name: str
    schema: KeySchema
    indexes: dict[str, Index]
    view: str | None
    ttl_name: str | None
    now_ms: Callable[[], int]
    next_number: Callable[[], int]
    partitions: dict[Comparable, dict[Any, Row]] = field(default_factory=dict)
    order: dict[Comparable, list[Any]] = field(default_factory=dict)
    stream: list[Json] = field(default_factory=list)
    _latest: deque[tuple[Key, Row | None]] = field(default_factory=lambda: deque(maxlen=LAG_MAX))

    @property
    def arn(self) -> str:
        """Its name in full."""
        return f"arn:aws:dynamodb:{REGION}:{ACCOUNT_ID}:table/{self.name}"

    @property
    def stream_arn(self) -> str:
        """The name of its stream in full."""
        return f"{self.arn}/stream/2026-01-01T00:00:00.000"

    def row(self, key: Key) -> Row | None:
        """What is there."""
        partition = self.partitions.get(key[0])
        return None if partition is None else partition.get(key[1])

    def rows(self) -> Iterator[Row]:
        """All, by partition key and sort key."""
        for place, partition in self.partitions.items():
            for part in self.order[place]:
                yield partition[part]

    def before(self, commits: int) -> dict[Key, Row | None]:
        """What was where the latest commits wrote, before they did."""
        past: dict[Key, Row | None] = {}
        for number in range(1, min(commits, len(self._latest)) + 1):
            key, row = self._latest[-number]
            past[key] = row
        return past

    def items(self) -> list[Json]:
        """All items, for those who check; not to be changed."""
        return [row.item for row in self.rows()]

    def read_key(self, given: Json) -> Key:
        """The place that a request's Key names."""
        if set(given) != set(self.schema.names):
            raise invalid("The provided key element does not match the schema")
        for name, value in given.items():
            if values.kind_of(value) != self.schema.kinds[name]:
                raise invalid("The provided key element does not match the schema")
        self._check_key(given)
        return self.schema.key_of(given)

    def read_item(self, item: Json) -> Key:
        """The place of a new item. Raises where it may not be stored."""
        for name in self.schema.names:
            if name not in item:
                raise invalid(
                    f"One or more parameter values were invalid: Missing the key {name} in the item"
                )
            kind, wanted = values.kind_of(item[name]), self.schema.kinds[name]
            if kind != wanted:
                raise invalid(
                    "One or more parameter values were invalid: "
                    f"Type mismatch for key {name} expected: {wanted} actual: {kind}"
                )
        self._check_key(item)
        return self.schema.key_of(item)

    def new_row(self, item: Json) -> Row:
        """An item that may be stored. Raises where it is too large or spoils an index."""
        for index in self.indexes.values():
            index.check(item)
        size = values.item_size(item)
        if size > ITEM_BYTES_MAX:
            raise invalid("Item size has exceeded the maximum allowed size")
        return Row(item, size)

    def write(self, key: Key, row: Row | None, *, by_service: bool = False) -> float:
        """Put a row there, or take it away; the write units that the indexes take."""
        before = self.row(key)
        old, new = before.item if before else None, row.item if row else None
        place, part = key
        if row is not None:
            partition = self.partitions.setdefault(place, {})
            if before is None:
                insort(self.order.setdefault(place, []), part)
            partition[part] = row
        elif before is not None:
            del self.partitions[place][part]
            order = self.order[place]
            del order[bisect_left(order, part)]
            if not order:
                del self.partitions[place], self.order[place]
        if old == new:
            return 0.0
        self._latest.append((key, before))
        units = 0.0
        for index in self.indexes.values():
            units += _index_units(index, old, new)
            index.move(key, old, new)
        if self.view is not None:
            self._record(old, new, by_service=by_service)
        return units

    def delete_expired(self, now_s: int) -> int:
        """Delete what time to live lets go, as the service does; how many."""
        if self.ttl_name is None:
            return 0
        gone = [row.item for row in self.rows() if self._is_expired(row.item, now_s)]
        for item in gone:
            self.write(self.schema.key_of(item), None, by_service=True)
        return len(gone)

    def _is_expired(self, item: Json, now_s: int) -> bool:
        value = item.get(self.ttl_name or "")
        if value is None or "N" not in value:
            return False
        return now_s - TTL_PAST_S_MAX < values.number_of(value) < now_s

    def _check_key(self, item: Json) -> None:
        limits = (HASH_BYTES_MAX, RANGE_BYTES_MAX)
        for name, limit in zip(self.schema.names, limits, strict=False):
            size = values.size_of(item[name])
            if not item[name][self.schema.kinds[name]]:
                raise invalid(
                    "One or more parameter values are not valid. The AttributeValue for a key "
                    f"attribute cannot contain an empty string value. Key: {name}"
                )
            if size > limit:
                raise invalid(
                    "One or more parameter values were invalid: Size of key has exceeded the "
                    f"maximum size limit of {limit} bytes"
                )

    def _record(self, old: Json | None, new: Json | None, *, by_service: bool) -> None:
        item: Json = new if new is not None else old or {}
        number = self.next_number()
        change: Json = {
            "ApproximateCreationDateTime": self.now_ms() // 1000,
            "Keys": {name: item[name] for name in self.schema.names},
            "SequenceNumber": str(10**20 + number),
            "SizeBytes": values.item_size(new or {}) + values.item_size(old or {}),
            "StreamViewType": self.view,
        }
        if new is not None and self.view in {"NEW_IMAGE", "NEW_AND_OLD_IMAGES"}:
            change["NewImage"] = new
        if old is not None and self.view in {"OLD_IMAGE", "NEW_AND_OLD_IMAGES"}:
            change["OldImage"] = old
        record: Json = {
            "eventID": f"{number:032x}",
            "eventName": "INSERT" if old is None else "REMOVE" if new is None else "MODIFY",
            "eventVersion": "1.1",
            "eventSource": "aws:dynamodb",
            "awsRegion": REGION,
            "dynamodb": change,
            "eventSourceARN": self.stream_arn,
        }
        if by_service:
            record["userIdentity"] = {
                "type": "Service",
                "principalId": "dynamodb.amazonaws.com",
            }
        self.stream.append(record)


def write_units(size: int) -> float:
    """Of one write of so many bytes."""
    return float(max(1, -(-size // 1024)))


def read_units(size: int, *, consistent: bool) -> float:
    """Of one read of so many bytes."""
    return max(1, -(-size // 4096)) * (1.0 if consistent else 0.5)


def _index_units(index: Index, old: Json | None, new: Json | None) -> float:
    was = None if old is None else index.key_of(old)
    becomes = None if new is None else index.key_of(new)
    before = index.shown(old) if old is not None and was is not None else None
    after = index.shown(new) if new is not None and becomes is not None else None
    if before == after:
        return 0.0
    sizes = [values.item_size(each) for each in (before, after) if each is not None]
    if was is not None and was == becomes:
        return write_units(max(sizes))
    return sum(write_units(size) for size in sizes)


def declared(body: Json, now_ms: Callable[[], int], next_number: Callable[[], int]) -> Table:
    """The table that the members of a CreateTable describe."""
    if body.get("LocalSecondaryIndexes"):
        raise Unsupported("local secondary indexes")
    kinds = {each["AttributeName"]: each["AttributeType"] for each in body["AttributeDefinitions"]}
    schema = _schema(body["KeySchema"], kinds)
    indexes = {}
    for each in body.get("GlobalSecondaryIndexes", ()):
        own = _schema(each["KeySchema"], kinds)
        projection = each["Projection"]
        projected: frozenset[str] | None = None
        if projection["ProjectionType"] != "ALL":
            more = projection.get("NonKeyAttributes", ())
            projected = frozenset({*schema.names, *own.names, *more})
        indexes[each["IndexName"]] = Index(each["IndexName"], own, projected)
    stream = body.get("StreamSpecification") or {}
    ttl = body.get("TimeToLiveSpecification") or {}
    return Table(
        name=body["TableName"],
        schema=schema,
        indexes=indexes,
        view=stream.get("StreamViewType"),
        ttl_name=ttl.get("AttributeName") if ttl.get("Enabled") else None,
        now_ms=now_ms,
        next_number=next_number,
    )


def _schema(listed: list[Json], kinds: dict[str, str]) -> KeySchema:
    names = {each["KeyType"]: each["AttributeName"] for each in listed}
    own = {name: kinds[name] for name in names.values()}
    return KeySchema(names["HASH"], names.get("RANGE"), own)
