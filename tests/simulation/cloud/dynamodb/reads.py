"""Reads: of one item, of several, of a part of a table or of an index, and of all of it."""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tests.simulation.cloud import expressions, tables, values
from tests.simulation.cloud.dynamodb.ranges import (
    as_before,
    asked_range,
    hashed,
    is_in,
    start_of,
    within,
)
from tests.simulation.cloud.dynamodb.requests import (
    GET,
    TRANSACTION_BYTES_MAX,
    consumed,
    consumed_by_table,
    one_each,
    only,
    placeholders,
)
from tests.simulation.cloud.errors import Json, Unsupported, invalid
from tests.simulation.cloud.expressions import Given, Parsed
from tests.simulation.cloud.tables import Index, Key, Row, Table

if TYPE_CHECKING:
    from tests.simulation.cloud.dynamodb.service import DynamoDB

PAGE_BYTES_MAX = 1024 * 1024
BATCH_GET_MAX = 100


class Reads:
    """The operations that read."""

    def __init__(self, service: "DynamoDB") -> None:
        self._service = service

    def one(self, body: Json) -> Json:
        """GetItem."""
        table = self._service.table(body["TableName"])
        key = table.read_key(body["Key"])
        row = self._past(table, body).get(key, table.row(key))
        consistent = body.get("ConsistentRead", False)
        units = tables.read_units(row.size if row else 0, consistent=consistent)
        answer = consumed(body, table.name, units)
        shown = self._shown(body)
        if row is not None:
            answer["Item"] = shown(row.item)
        return answer

    def several(self, body: Json) -> Json:
        """BatchGetItem."""
        asked = body["RequestItems"]
        if sum(len(each["Keys"]) for each in asked.values()) > BATCH_GET_MAX:
            raise invalid("Too many items requested for the BatchGetItem call")
        found: dict[str, list[Json]] = {}
        units_of = []
        for name, each in asked.items():
            only(each, GET - {"Key"} | {"Keys", "ConsistentRead"}, "BatchGetItem")
            table, shown = self._service.table(name), self._shown(each)
            keys = [table.read_key(key) for key in each["Keys"]]
            if len(set(keys)) != len(keys):
                raise invalid("Provided list of item keys contains duplicates")
            past = self._past(table, each)
            rows = [past.get(key, table.row(key)) for key in keys]
            found[name] = [shown(row.item) for row in rows if row is not None]
            consistent = each.get("ConsistentRead", False)
            units_of += [
                (name, tables.read_units(row.size if row else 0, consistent=consistent))
                for row in rows
            ]
        if sum(values.item_size(item) for each in found.values() for item in each) > 16 * 2**20:
            raise Unsupported("a BatchGetItem of more than 16 MB")
        return consumed_by_table(body, units_of) | {"Responses": found, "UnprocessedKeys": {}}

    def together(self, body: Json) -> Json:
        """TransactGetItems: all as of one moment."""
        asked = one_each(body["TransactItems"], {"Get": GET}, "TransactItems")
        responses: list[Json] = []
        units_of = []
        places = set()
        size = 0
        for _, each in asked:
            table = self._service.table(each["TableName"])
            key = table.read_key(each["Key"])
            if (table.name, key) in places:
                raise invalid("Transaction request cannot include multiple operations on one item")
            places.add((table.name, key))
            row, shown = table.row(key), self._shown(each)
            responses.append({"Item": shown(row.item)} if row is not None else {})
            size += row.size if row else 0
            units = 2 * tables.read_units(row.size if row else 0, consistent=True)
            units_of.append((table.name, units))
        if size > TRANSACTION_BYTES_MAX:
            raise invalid("The total size of the items in the transaction is above 4 MB")
        return consumed_by_table(body, units_of) | {"Responses": responses}

    def query(self, body: Json) -> Json:
        """Query."""
        table = self._service.table(body["TableName"])
        index = self._index(table, body)
        if "KeyConditionExpression" not in body:
            raise invalid("Either the KeyConditions or KeyConditionExpression parameter is needed")
        text = body["KeyConditionExpression"]
        key_condition = expressions.condition(text, "KeyConditionExpression")
        given = self._given(body, [key_condition, *self._filters(body)])
        schema = index.schema if index else table.schema
        place, low, high, prefix = asked_range(key_condition.body, schema, given)
        if index is not None:
            found = index.places.get(place, [])
        else:
            found = [(part, (place, part)) for part in table.order.get(place, [])]
        past = self._past(table, body)
        found = as_before(found, past, place, index.key_of if index else table.schema.key_of)
        found = [each for each in found if within(each[0], low, high, prefix)]
        if not body.get("ScanIndexForward", True):
            found = found[::-1]
        start = body.get("ExclusiveStartKey")
        if start is not None:
            after = start_of(start, table, index)
            if after[1] != place or not within(after[0], low, high, prefix):
                raise invalid("The provided starting key is outside query boundaries")
            mark = (after[0], after[2])
            backward = not body.get("ScanIndexForward", True)
            found = [each for each in found if (each < mark if backward else each > mark)]
        rows = [past.get(key, table.row(key)) for _, key in found]
        return self._page(body, table, index, rows, given)

    def scan(self, body: Json) -> Json:
        """Scan, in segments or whole."""
        table = self._service.table(body["TableName"])
        index = self._index(table, body)
        given = self._given(body, self._filters(body))
        segments, segment = body.get("TotalSegments", 1), body.get("Segment", 0)
        if index is None:
            keys: Iterable[Key] = (
                (place, part) for place, order in table.order.items() for part in order
            )
        else:
            keys = (key for order in index.places.values() for _, key in order)
        past = self._past(table, body)
        was_there = [key for key, row in past.items() if row is not None and is_in(index, row)]
        kept = [key for key in keys if key not in past]
        placed = sorted((hashed(key), key) for key in (*kept, *was_there))
        placed = [each for each in placed if int(each[0][:8], 16) % segments == segment]
        if "ExclusiveStartKey" in body:
            _, _, after = start_of(body["ExclusiveStartKey"], table, index)
            placed = [each for each in placed if each > (hashed(after), after)]
        rows = [past.get(key, table.row(key)) for _, key in placed]
        return self._page(body, table, index, rows, given)

    def _page(
        self,
        body: Json,
        table: Table,
        index: Index | None,
        rows: Sequence[Row | None],
        given: Given,
    ) -> Json:
        """As many items as the limit and 1 MB allow, those that pass the filter shown."""
        _reject_select(body, index)
        limit = body.get("Limit")
        wanted = self._filter(body)
        shown = self._shown(body)
        items: list[Json] = []
        size = scanned = 0
        last: Json | None = None
        for row in rows:
            assert row is not None
            item = index.shown(row.item) if index else row.item
            size += row.size if index is None else values.item_size(item)
            scanned += 1
            if wanted is None or wanted.holds(item, given):
                items.append(shown(item))
            last = row.item
            if scanned == limit or size > PAGE_BYTES_MAX:
                break
        else:
            last = None
        units = tables.read_units(size, consistent=body.get("ConsistentRead", False))
        answer = consumed(body, table.name, units)
        answer |= {"Count": len(items), "ScannedCount": scanned}
        if body.get("Select") != "COUNT":
            answer["Items"] = items
        if last is not None:
            names = {*table.schema.names, *(index.schema.names if index else ())}
            answer["LastEvaluatedKey"] = {name: last[name] for name in names}
        return answer

    def _past(self, table: Table, body: Json) -> dict[Key, Row | None]:
        """What this read sees of the past in place of what is there now."""
        if self._service.lag is None or body.get("ConsistentRead"):
            return {}
        return table.before(self._service.lag(table.name, body.get("IndexName")))

    def _given(self, asked: Json, parsed: Sequence[Parsed[Any]]) -> Given:
        return placeholders(asked, parsed, strict=self._service.is_strict)

    def _filters(self, body: Json) -> list[Parsed[Any]]:
        parsed: list[Parsed[Any]] = []
        if "FilterExpression" in body:
            parsed.append(expressions.condition(body["FilterExpression"], "FilterExpression"))
        if "ProjectionExpression" in body:
            parsed.append(expressions.projection(body["ProjectionExpression"]))
        return parsed

    def _filter(self, body: Json) -> expressions.Condition | None:
        if "FilterExpression" not in body:
            return None
        return expressions.condition(body["FilterExpression"], "FilterExpression").body

    def _shown(self, body: Json) -> Callable[[Json], Json]:
        """What a projection leaves of an item."""
        if "ProjectionExpression" not in body:
            return lambda item: item
        parsed = expressions.projection(body["ProjectionExpression"])
        given = Given(body.get("ExpressionAttributeNames", {}), {})
        if "KeyConditionExpression" not in body and "FilterExpression" not in body:
            given = self._given(
                {k: v for k, v in body.items() if k == "ExpressionAttributeNames"}, [parsed]
            )
        if any(len(path.steps) > 1 for path in parsed.body):
            raise Unsupported("a projection of a part of an attribute")
        names = {str(path.resolved(given)[0]) for path in parsed.body}
        return lambda item: {name: item[name] for name in item if name in names}

    def _index(self, table: Table, body: Json) -> Index | None:
        name = body.get("IndexName")
        if name is None:
            return None
        if name not in table.indexes:
            raise invalid(f"The table does not have the specified index: {name}")
        if body.get("ConsistentRead"):
            raise invalid("Consistent reads are not supported on global secondary indexes")
        return table.indexes[name]


def _reject_select(body: Json, index: Index | None) -> None:
    select = body.get("Select")
    if select not in {None, "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"}:
        raise Unsupported(f"Select {select}")
    if select == "ALL_ATTRIBUTES" and index is not None and index.projected is not None:
        raise invalid("Select type ALL_ATTRIBUTES is not supported for the index")
    if body.get("Limit", 1) < 1:
        raise invalid("Limit must be at least 1")
