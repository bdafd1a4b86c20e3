"""Counts the calls of DynamoDB clients; and, where it is told to, weighs what they write and read.

To weigh a write, the items are read before and after it by a client of the meter's own. That takes
time, so what is timed is only counted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.units import (
    CONSISTENT,
    EVENTUAL,
    IN_TRANSACTION,
    TABLE,
    Item,
    Shape,
    read_units,
    write_units,
)

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

type Part = tuple[str, str]
"""A table's name, and `table` or the name of one of its indexes."""
type Write = tuple[str, Item]
"""A table's name, and the key of what is written, or the whole item, whose key is in it."""
type Look = tuple[Part, Sequence[Item], float]
"""Where something was read, what was found, and the rate of its read units."""

_ACTIONS = ("Put", "Update", "Delete", "ConditionCheck")


class Meter:
    """What the clients that it is attached to have called, and used up.

    `calls` by operation; `written` and `read`: units by table and part of it.
    """

    def __init__(self, own: "DynamoDBClient", shapes: Mapping[str, Shape], *, weigh: bool) -> None:
        """`own`: a client for the meter's reads. `shapes`: of each table that is weighed."""
        self.calls: Counter[str] = Counter()
        self.written: defaultdict[Part, float] = defaultdict(float)
        self.read: defaultdict[Part, float] = defaultdict(float)
        self._own = own
        self._shapes = shapes
        self._weigh = weigh

    def attach(self, client: "DynamoDBClient") -> "DynamoDBClient":
        """Count this client's calls too; gives it back."""
        client.meta.events.register("before-parameter-build.dynamodb", self._before)
        client.meta.events.register("after-call.dynamodb", self._after)
        return client

    def forget(self) -> None:
        """Begin anew."""
        self.calls.clear()
        self.written.clear()
        self.read.clear()

    def _before(
        self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any
    ) -> None:
        self.calls[model.name] += 1
        if self._weigh:
            writes = list(_writes(model.name, params))
            context["weighed"] = params, writes, self._items(writes)

    def _after(self, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        """A write that was refused is charged for the item that it looked at."""
        if not self._weigh:
            return
        params, writes, before = context["weighed"]
        in_transaction = model.name == "TransactWriteItems"
        for (table, _key), was, becomes in zip(writes, before, self._items(writes), strict=True):
            units = write_units(self._shapes[table], was, becomes, in_transaction=in_transaction)
            for part, number in units.items():
                self.written[table, part] += number
        for place, found, rate in _looks(model.name, params, parsed):
            self.read[place] += read_units(found, rate)

    def _items(self, writes: Sequence[Write]) -> list[Item | None]:
        """The items as they are now; a call writes each of them once."""
        wanted: dict[str, Any] = {}
        for table, item in writes:
            entry = wanted.setdefault(table, {"Keys": [], "ConsistentRead": True})
            entry["Keys"].append(self._key(table, item))
        if not wanted:
            return []
        answer = self._own.batch_get_item(RequestItems=wanted)
        if answer["UnprocessedKeys"]:
            raise AssertionError("the engine did not give the meter all that it asked for")
        found = [(table, each) for table, items in answer["Responses"].items() for each in items]
        by_key = {(table, str(self._key(table, item))): item for table, item in found}
        return [by_key.get((table, str(self._key(table, item)))) for table, item in writes]

    def _key(self, table: str, item: Item) -> dict[str, Any]:
        return {name: item[name] for name in self._shapes[table].key}


def _writes(operation: str, params: Mapping[str, Any]) -> Iterator[Write]:
    """Each write of a call."""
    match operation:
        case "PutItem" | "UpdateItem" | "DeleteItem":
            yield params["TableName"], params.get("Key") or params["Item"]
        case "TransactWriteItems":
            for each in params["TransactItems"]:
                (write,) = (each[action] for action in _ACTIONS if action in each)
                yield write["TableName"], write.get("Key") or write["Item"]
        case _:
            return


def _looks(operation: str, params: Mapping[str, Any], parsed: Mapping[str, Any]) -> Iterator[Look]:
    """Each read of a call. No call of ours leaves out of its answer what it looked at."""
    match operation:
        case "GetItem":
            found = [parsed["Item"]] if "Item" in parsed else []
            yield (params["TableName"], TABLE), found, _rate(params)
        case "BatchGetItem":
            for table, asked in params["RequestItems"].items():
                items = parsed.get("Responses", {}).get(table, [])
                left = parsed.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
                missing = len(asked["Keys"]) - len(items) - len(left)
                for each in [*([item] for item in items), *[[]] * missing]:
                    yield (table, TABLE), each, _rate(asked)
        case "TransactGetItems":
            answers = parsed.get("Responses", [{}] * len(params["TransactItems"]))
            for asked, each in zip(params["TransactItems"], answers, strict=True):
                found = [each["Item"]] if "Item" in each else []
                yield (asked["Get"]["TableName"], TABLE), found, IN_TRANSACTION
        case "Query" | "Scan":
            place = params["TableName"], params.get("IndexName", TABLE)
            yield place, parsed.get("Items", []), _rate(params)
        case _:
            return


def _rate(params: Mapping[str, Any]) -> float:
    return CONSISTENT if params.get("ConsistentRead") else EVENTUAL
