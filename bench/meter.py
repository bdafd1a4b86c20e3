"""Counts the calls of DynamoDB clients; and, where it is told to, weighs what they write and read.

To weigh a write, the items are read before and after it by a client of the meter's own. That takes
time, so what is timed is only counted.
"""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.units import Item, Shape, item_bytes, write_units

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

READ_UNIT_BYTES = 4096
_IN_TRANSACTION = ("Put", "Update", "Delete", "ConditionCheck")


class Meter:
    """What the clients that it is attached to have called, and used up.

    `calls` by operation, `written` by table and part of it (`table`, or an index), `read` units.
    """

    def __init__(self, own: "DynamoDBClient", shapes: Mapping[str, Shape], *, weigh: bool) -> None:
        """`own`: a client for the meter's reads. `shapes`: of each table that is weighed."""
        self.calls: Counter[str] = Counter()
        self.written: Counter[tuple[str, str]] = Counter()
        self.read = 0.0
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
        self.read = 0.0

    def _before(
        self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any
    ) -> None:
        self.calls[model.name] += 1
        if self._weigh:
            context["weighed"] = [
                (write, self._now(write)) for write in _writes(model.name, params)
            ]
            context["consistent"] = params.get("ConsistentRead") is True

    def _after(self, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        """A write that was refused is charged for the item that it looked at."""
        in_transaction = model.name == "TransactWriteItems"
        for write, before in context.get("weighed", ()):
            parts = write_units(
                self._shapes[write[0]], before, self._now(write), in_transaction=in_transaction
            )
            for part, units in parts.items():
                self.written[write[0], part] += units  # type: ignore[assignment]  # counts halves
        if self._weigh and model.name == "GetItem":
            blocks = -(-max(1, item_bytes(parsed.get("Item"))) // READ_UNIT_BYTES)
            self.read += blocks * (1 if context["consistent"] else 0.5)

    def _now(self, write: tuple[str, Item]) -> Item | None:
        table, item = write
        key: Any = {name: item[name] for name in self._shapes[table].key}
        return self._own.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item")


def _writes(operation: str, params: Mapping[str, Any]) -> list[tuple[str, Item]]:
    """Table and key (or whole item, whose key is in it) of each write of a call."""
    match operation:
        case "PutItem" | "UpdateItem" | "DeleteItem":
            return [(params["TableName"], params.get("Key") or params["Item"])]
        case "TransactWriteItems":
            each = [
                write[kind]
                for write in params["TransactItems"]
                for kind in _IN_TRANSACTION
                if kind in write
            ]
            return [(write["TableName"], write.get("Key") or write["Item"]) for write in each]
        case _:
            return []
