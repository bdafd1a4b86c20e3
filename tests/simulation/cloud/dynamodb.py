"""DynamoDB, as its documentation has it, for the operations that our code calls.

Every call is one step: nobody sees half of it. What DynamoDB knows and this does not is refused
with `Unsupported`. No call is throttled, and no two conflict: faults are the simulator's to add.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.cloud import expressions, tables, values
from tests.simulation.cloud.errors import AwsError, Json, Unsupported, invalid
from tests.simulation.cloud.expressions import Given, Literal, Parsed, Path
from tests.simulation.cloud.tables import Index, Key, Row, Table

PAGE_BYTES_MAX = 1024 * 1024
TRANSACTION_ITEMS_MAX = 100
TRANSACTION_BYTES_MAX = 4 * 1024 * 1024
BATCH_GET_MAX = 100
TOKEN_MS = 600_000
"""How long a transaction is known by its token."""

CONDITION_FAILED = "The conditional request failed"
_NOTHING = Given({}, {})

_EXPRESSED = frozenset({"ExpressionAttributeNames", "ExpressionAttributeValues"})
_CONDITIONAL = _EXPRESSED | {
    "TableName",
    "ConditionExpression",
    "ReturnValuesOnConditionCheckFailure",
}
_WRITTEN = {
    "Put": _CONDITIONAL | {"Item"},
    "Update": _CONDITIONAL | {"Key", "UpdateExpression"},
    "Delete": _CONDITIONAL | {"Key"},
    "ConditionCheck": _CONDITIONAL | {"Key"},
}
_PLAIN = frozenset({"ReturnValues", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics"})
_READ = frozenset({"TableName", "ReturnConsumedCapacity", "ConsistentRead"})
_PAGED = (
    _READ
    | _EXPRESSED
    | {"IndexName", "Limit", "ExclusiveStartKey", "FilterExpression", "ProjectionExpression"}
    | {"Select"}
)
_GET = frozenset({"TableName", "Key", "ProjectionExpression", "ExpressionAttributeNames"})
_MEMBERS: dict[str, frozenset[str]] = {
    "GetItem": _GET | _READ,
    "PutItem": _WRITTEN["Put"] | _PLAIN,
    "UpdateItem": _WRITTEN["Update"] | _PLAIN,
    "DeleteItem": _WRITTEN["Delete"] | _PLAIN,
    "Query": _PAGED | {"KeyConditionExpression", "ScanIndexForward"},
    "Scan": _PAGED | {"Segment", "TotalSegments"},
    "BatchGetItem": frozenset({"RequestItems", "ReturnConsumedCapacity"}),
    "TransactGetItems": frozenset({"TransactItems", "ReturnConsumedCapacity"}),
    "TransactWriteItems": frozenset(
        {"TransactItems", "ReturnConsumedCapacity", "ClientRequestToken"}
    ),
    "CreateTable": frozenset(
        {"TableName", "AttributeDefinitions", "KeySchema", "BillingMode", "StreamSpecification"}
        | {"GlobalSecondaryIndexes"}
    ),
}


@dataclass(frozen=True, slots=True)
class Write:
    """One write that was asked for, alone or in a transaction, and whether its condition held.

    `action` is Put, Update, Delete or ConditionCheck; both texts are as they were sent, and
    `asked` is the whole of it. A transaction may fail for another of its items.
    """

    operation: str
    table: str
    action: str
    condition: str | None
    update: str | None
    outcome: bool
    asked: Json


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A write before it is made: `new` is the item that it leaves behind."""

    action: str
    table: Table
    key: Key
    old: Row | None
    new: Row | None
    holds: bool
    asked: Json

    @property
    def size(self) -> int:
        """Bytes that count for its write units."""
        return max(row.size if row else 0 for row in (self.old, self.new))

    def commit(self) -> float:
        """Make it; the write units of the indexes."""
        if self.action == "ConditionCheck":
            return 0.0
        return self.table.write(self.key, self.new)


class DynamoDB:
    """The service: its tables, and one `call`.

    `lag` is told the table and the index of each read that need not be consistent, and says how
    many of the table's latest commits it does not see; without it every read is up to date.
    `observers` are told each write when its condition has been looked at. `rewrite` may change an
    operation's body before it is run; names and values that nothing uses any more then pass, and so
    does a ConditionCheck without a condition.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.tables: dict[str, Table] = {}
        self.observers: list[Callable[[Write], None]] = []
        self.lag: Callable[[str, str | None], int] | None = None
        self.rewrite: Callable[[str, Json], Json] | None = None
        self._now_ms = now_ms
        self._numbers = itertools.count(1)
        self._tokens: dict[str, tuple[int, Json]] = {}
        self._operations: dict[str, Callable[[Json], Json]] = {
            "CreateTable": self._create_table,
            "GetItem": self._get_item,
            "PutItem": lambda body: self._write_one("PutItem", "Put", body),
            "UpdateItem": lambda body: self._write_one("UpdateItem", "Update", body),
            "DeleteItem": lambda body: self._write_one("DeleteItem", "Delete", body),
            "Query": self._query,
            "Scan": self._scan,
            "BatchGetItem": self._batch_get_item,
            "TransactGetItems": self._transact_get_items,
            "TransactWriteItems": self._transact_write_items,
        }

    def create_table(self, **members: Any) -> Table:
        """As boto3 takes it, and `TimeToLiveSpecification` as CloudFormation does."""
        table = tables.declared(members, self._now_ms, lambda: next(self._numbers))
        if table.name in self.tables:
            raise AwsError("ResourceInUseException", f"Table already exists: {table.name}")
        self.tables[table.name] = table
        return table

    def call(self, operation: str, body: Json) -> Json:
        """The JSON of the answer, whose items are not to be changed. Raises `AwsError`."""
        if self.rewrite is not None:
            body = self.rewrite(operation, body)
        members = _MEMBERS.get(operation)
        if members is None:
            raise Unsupported(operation)
        _only(body, members, operation)
        return self._operations[operation](body)

    def delete_expired(self, now_s: int) -> int:
        """What time to live lets go of in every table, as the service does it; how many items."""
        return sum(table.delete_expired(now_s) for table in self.tables.values())

    # --- writes -----------------------------------------------------------------------------------

    def _create_table(self, body: Json) -> Json:
        table = self.create_table(**body)
        return {"TableDescription": {"TableName": table.name, "TableStatus": "ACTIVE"}}

    def _write_one(self, operation: str, action: str, body: Json) -> Json:
        wanted = body.get("ReturnValues", "NONE")
        if wanted not in {"NONE", "ALL_OLD"} | ({"ALL_NEW"} if action == "Update" else set()):
            raise Unsupported(f"ReturnValues {wanted}")
        _reject(body, "ReturnItemCollectionMetrics", "NONE")
        prepared = self._prepare(operation, action, body)
        if not prepared.holds:
            raise AwsError(
                "ConditionalCheckFailedException", CONDITION_FAILED, **_kept(prepared, body)
            )
        units = tables.write_units(prepared.size) + prepared.commit()
        answer = _consumed(body, prepared.table.name, units)
        shown = prepared.new if wanted == "ALL_NEW" else prepared.old
        if wanted != "NONE" and shown is not None:
            answer["Attributes"] = shown.item
        return answer

    def _transact_write_items(self, body: Json) -> Json:
        asked = _one_each(body["TransactItems"], _WRITTEN, "TransactItems")
        token = body.get("ClientRequestToken")
        known = self._known(token, body)
        if known:
            return _consumed_by_table(body, [])
        prepared: list[_Prepared] = []
        reasons: list[Json] = []
        places = set()
        for action, each in asked:
            ready = self._prepare_in_transaction(action, each)
            if isinstance(ready, AwsError):
                reasons.append({"Code": "ValidationError", "Message": ready.message})
                continue
            place = (ready.table.name, ready.key)
            if place in places:
                raise invalid("Transaction request cannot include multiple operations on one item")
            places.add(place)
            prepared.append(ready)
            reasons.append({"Code": "None"} if ready.holds else _reason(ready, each))
        if any(reason["Code"] != "None" for reason in reasons):
            raise _cancelled(reasons)
        if sum(each.size for each in prepared) > TRANSACTION_BYTES_MAX:
            raise invalid("The total size of the items in the transaction is above 4 MB")
        consumed = []
        for write in prepared:
            units = 2 * tables.write_units(write.size) + 2 * write.commit()
            consumed.append((write.table.name, units))
        if token is not None:
            self._tokens[token] = (self._now_ms(), body)
        return _consumed_by_table(body, consumed)

    def _known(self, token: str | None, body: Json) -> bool:
        """Whether this very transaction was committed within the last ten minutes."""
        horizon_ms = self._now_ms() - TOKEN_MS
        while self._tokens:
            oldest = next(iter(self._tokens))
            if self._tokens[oldest][0] > horizon_ms:
                break
            del self._tokens[oldest]
        if token is None or token not in self._tokens:
            return False
        if self._tokens[token][1] != body:
            raise AwsError(
                "IdempotentParameterMismatchException",
                "The parameters of a request with the same token are not the same",
            )
        return True

    def _prepare_in_transaction(self, action: str, asked: Json) -> "_Prepared | AwsError":
        """What is wrong with the item and not with the request becomes a reason."""
        try:
            return self._prepare("TransactWriteItems", action, asked)
        except _ItemError as error:
            return error

    def _prepare(self, operation: str, action: str, asked: Json) -> _Prepared:
        table = self._table(asked["TableName"])
        condition, update = self._parsed(operation, action, asked)
        given = self._given(asked, [each for each in (condition, update) if each is not None])
        with _item_errors(operation):
            item = values.canonical_item(asked["Item"]) if action == "Put" else {}
            key = table.read_item(item) if action == "Put" else table.read_key(asked["Key"])
            new = table.new_row(item) if action == "Put" else None
        old = table.row(key)
        item_now = old.item if old else {}
        holds = condition is None or condition.body.holds(item_now, given)
        self._tell(operation, action, asked, holds)
        if not holds or action == "ConditionCheck":
            return _Prepared(action, table, key, old, old, holds, asked)
        with _item_errors(operation):
            if action == "Update":
                base = item_now or values.canonical_item(asked["Key"])
                made = _updated(base, table, update, given, is_new=old is None)
                new = old if old is not None and made == old.item else table.new_row(made)
        return _Prepared(action, table, key, old, new, holds, asked)

    def _parsed(
        self, operation: str, action: str, asked: Json
    ) -> tuple[Parsed[expressions.Condition] | None, Parsed[expressions.Update] | None]:
        condition: Parsed[expressions.Condition] | None = None
        update: Parsed[expressions.Update] | None = None
        if "ConditionExpression" in asked:
            condition = expressions.condition(asked["ConditionExpression"], "ConditionExpression")
        elif action == "ConditionCheck" and self.rewrite is None:
            raise invalid("The ConditionExpression of a ConditionCheck must be specified")
        if "UpdateExpression" in asked:
            update = expressions.update(asked["UpdateExpression"])
        elif action == "Update" and operation == "TransactWriteItems":
            raise invalid("The UpdateExpression of an Update must be specified")
        return condition, update

    def _tell(self, operation: str, action: str, asked: Json, holds: bool) -> None:
        if self.observers:
            write = Write(
                operation,
                asked["TableName"],
                action,
                asked.get("ConditionExpression"),
                asked.get("UpdateExpression"),
                holds,
                asked,
            )
            for each in self.observers:
                each(write)

    def _given(self, asked: Json, parsed: Sequence[Parsed[Any]]) -> Given:
        """Names and values, each of which must be there and be used."""
        names = asked.get("ExpressionAttributeNames")
        literals = asked.get("ExpressionAttributeValues")
        if names is None and literals is None and not any(p.names or p.values for p in parsed):
            return _NOTHING
        for member, found in (("Names", names), ("Values", literals)):
            if found is not None and not found:
                raise invalid(f"ExpressionAttribute{member} must not be empty")
            if found is not None and not parsed and self.rewrite is None:
                raise invalid(
                    f"ExpressionAttribute{member} can only be specified when using expressions"
                )
        given = Given(names or {}, values.canonical_item(literals or {}))
        for what, wanted, found in (
            ("name", {n for p in parsed for n in p.names}, given.names.keys()),
            ("value", {v for p in parsed for v in p.values}, given.values.keys()),
        ):
            if wanted - found:
                missing = min(wanted - found)
                raise invalid(
                    f"An expression attribute {what} used in expression is not defined; "
                    f"attribute {what}: {missing}"
                )
            if found - wanted and self.rewrite is None:
                unused = ", ".join(sorted(found - wanted))
                raise invalid(
                    f"Value provided in ExpressionAttribute{what.capitalize()}s unused in "
                    f"expressions: keys: {{{unused}}}"
                )
        for each in parsed:
            each.check(given)
        return given

    # --- reads ------------------------------------------------------------------------------------

    def _get_item(self, body: Json) -> Json:
        table = self._table(body["TableName"])
        key = table.read_key(body["Key"])
        row = self._past(table, body).get(key, table.row(key))
        consistent = body.get("ConsistentRead", False)
        units = tables.read_units(row.size if row else 0, consistent=consistent)
        answer = _consumed(body, table.name, units)
        shown = self._shown(body)
        if row is not None:
            answer["Item"] = shown(row.item)
        return answer

    def _batch_get_item(self, body: Json) -> Json:
        asked = body["RequestItems"]
        if sum(len(each["Keys"]) for each in asked.values()) > BATCH_GET_MAX:
            raise invalid("Too many items requested for the BatchGetItem call")
        found: dict[str, list[Json]] = {}
        consumed = []
        for name, each in asked.items():
            _only(each, _GET - {"Key"} | {"Keys", "ConsistentRead"}, "BatchGetItem")
            table, shown = self._table(name), self._shown(each)
            keys = [table.read_key(key) for key in each["Keys"]]
            if len(set(keys)) != len(keys):
                raise invalid("Provided list of item keys contains duplicates")
            rows = [table.row(key) for key in keys]
            found[name] = [shown(row.item) for row in rows if row is not None]
            consistent = each.get("ConsistentRead", False)
            consumed += [
                (name, tables.read_units(row.size if row else 0, consistent=consistent))
                for row in rows
            ]
        if sum(values.item_size(item) for each in found.values() for item in each) > 16 * 2**20:
            raise Unsupported("a BatchGetItem of more than 16 MB")
        return _consumed_by_table(body, consumed) | {"Responses": found, "UnprocessedKeys": {}}

    def _transact_get_items(self, body: Json) -> Json:
        asked = _one_each(body["TransactItems"], {"Get": _GET}, "TransactItems")
        responses: list[Json] = []
        consumed = []
        places = set()
        size = 0
        for _, each in asked:
            table = self._table(each["TableName"])
            key = table.read_key(each["Key"])
            if (table.name, key) in places:
                raise invalid("Transaction request cannot include multiple operations on one item")
            places.add((table.name, key))
            row, shown = table.row(key), self._shown(each)
            responses.append({"Item": shown(row.item)} if row is not None else {})
            size += row.size if row else 0
            units = 2 * tables.read_units(row.size if row else 0, consistent=True)
            consumed.append((table.name, units))
        if size > TRANSACTION_BYTES_MAX:
            raise invalid("The total size of the items in the transaction is above 4 MB")
        return _consumed_by_table(body, consumed) | {"Responses": responses}

    def _query(self, body: Json) -> Json:
        table = self._table(body["TableName"])
        index = self._index(table, body)
        if "KeyConditionExpression" not in body:
            raise invalid("Either the KeyConditions or KeyConditionExpression parameter is needed")
        text = body["KeyConditionExpression"]
        key_condition = expressions.condition(text, "KeyConditionExpression")
        given = self._given(body, [key_condition, *self._filters(body)])
        schema = index.schema if index else table.schema
        place, low, high, prefix = _asked_range(key_condition.body, schema, given)
        if index is not None:
            found = index.places.get(place, [])
        else:
            found = [(part, (place, part)) for part in table.order.get(place, [])]
        past = self._past(table, body)
        found = _as_before(found, past, place, index.key_of if index else table.schema.key_of)
        found = [each for each in found if _within(each[0], low, high, prefix)]
        if not body.get("ScanIndexForward", True):
            found = found[::-1]
        start = body.get("ExclusiveStartKey")
        if start is not None:
            after = _start(start, table, index)
            if after[1] != place or not _within(after[0], low, high, prefix):
                raise invalid("The provided starting key is outside query boundaries")
            mark = (after[0], after[2])
            backward = not body.get("ScanIndexForward", True)
            found = [each for each in found if (each < mark if backward else each > mark)]
        rows = [past.get(key, table.row(key)) for _, key in found]
        return self._page(body, table, index, rows, given)

    def _scan(self, body: Json) -> Json:
        table = self._table(body["TableName"])
        index = self._index(table, body)
        given = self._given(body, self._filters(body))
        segments, segment = body.get("TotalSegments", 1), body.get("Segment", 0)
        if index is None:
            keys: Iterable[Key] = (
                (place, part) for place, order in table.order.items() for part in order
            )
        else:
            keys = (key for order in index.places.values() for _, key in order)
        placed = sorted((_hashed(key), key) for key in keys)
        placed = [each for each in placed if int(each[0][:8], 16) % segments == segment]
        if "ExclusiveStartKey" in body:
            _, _, after = _start(body["ExclusiveStartKey"], table, index)
            placed = [each for each in placed if each > (_hashed(after), after)]
        return self._page(body, table, index, [table.row(key) for _, key in placed], given)

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
        answer = _consumed(body, table.name, units)
        answer |= {"Count": len(items), "ScannedCount": scanned}
        if body.get("Select") != "COUNT":
            answer["Items"] = items
        if last is not None:
            names = {*table.schema.names, *(index.schema.names if index else ())}
            answer["LastEvaluatedKey"] = {name: last[name] for name in names}
        return answer

    def _past(self, table: Table, body: Json) -> dict[Key, Row | None]:
        """What this read sees of the past in place of what is there now."""
        if self.lag is None or body.get("ConsistentRead"):
            return {}
        return table.before(self.lag(table.name, body.get("IndexName")))

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

    def _table(self, name: str) -> Table:
        table = self.tables.get(name.rsplit("/", 1)[-1])
        if table is None:
            raise AwsError("ResourceNotFoundException", "Requested resource not found")
        return table

    def _index(self, table: Table, body: Json) -> Index | None:
        name = body.get("IndexName")
        if name is None:
            return None
        if name not in table.indexes:
            raise invalid(f"The table does not have the specified index: {name}")
        if body.get("ConsistentRead"):
            raise invalid("Consistent reads are not supported on global secondary indexes")
        return table.indexes[name]


class _ItemError(AwsError):
    """What is wrong with one item of a transaction."""


class _item_errors:  # noqa: N801 # reads as the statement that it stands in for
    """In a transaction, refusals of an item are told from those of the request."""

    def __init__(self, operation: str) -> None:
        self._apart = operation == "TransactWriteItems"

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if self._apart and isinstance(error, AwsError):
            raise _ItemError(error.code, error.message) from error


def _updated(
    item: Json,
    table: Table,
    update: Parsed[expressions.Update] | None,
    given: Given,
    *,
    is_new: bool,
) -> Json:
    """The item that an update leaves; every operand is read from the item as it was."""
    if update is None:
        return item
    changes = update.body.changes
    if is_new and all(change.action in {"REMOVE", "DELETE"} for change in changes):
        raise Unsupported("an update that only removes, of an item that is not there")
    targets = [change.path.resolved(given) for change in changes]
    _check_targets(targets, table)
    made = dict(item)
    removed: list[expressions.Steps] = []
    for change, target in zip(changes, targets, strict=True):
        if change.action == "REMOVE":
            _removed(item, target)  # what holds it must be there
            if change.path.of(item, given) is not None:
                removed.append(target)
            continue
        value = _changed(change, item, given)
        if value is None:
            removed.append(target)
        else:
            made = _put(made, target, value)
    for target in sorted(removed, key=lambda steps: [(type(s) is int, s) for s in steps])[::-1]:
        made = _removed(made, target)
    return made


def _changed(change: expressions.Change, item: Json, given: Given) -> Json | None:
    """The new value of a path; None where nothing is left of it."""
    assert change.term is not None
    value = change.term.of(item, given)
    if change.action == "SET":
        if value is None:
            raise invalid(
                "The provided expression refers to an attribute that does not exist in the item"
            )
        return value
    assert value is not None
    held = change.path.of(item, given)
    if change.action == "ADD":
        if held is None:
            return value
        if "N" in value:
            return expressions.added(held, value)
    if held is None:
        return None
    if values.kind_of(held) != values.kind_of(value):
        raise invalid("An operand in the update expression has an incorrect data type")
    return values.union(held, value) if change.action == "ADD" else values.difference(held, value)


def _check_targets(targets: Sequence[expressions.Steps], table: Table) -> None:
    for number, target in enumerate(targets):
        if target[0] in table.schema.names:
            raise invalid(
                "One or more parameter values were invalid: Cannot update attribute "
                f"{target[0]}. This attribute is part of the key"
            )
        for other in targets[:number]:
            short = min(len(target), len(other))
            if target[:short] == other[:short]:
                raise invalid(
                    "Invalid UpdateExpression: Two document paths overlap with each other; must "
                    "remove or rewrite one of these paths"
                )


def _put(members: Json, steps: expressions.Steps, value: Json) -> Json:
    """A copy of the members of a map, with a value at a path."""
    name = str(steps[0])
    if len(steps) == 1:
        return {**members, name: value}
    return {**members, name: _put_inside(members.get(name), steps[1:], value)}


def _put_inside(container: Json | None, steps: expressions.Steps, value: Json) -> Json:
    step = steps[0]
    if container is not None and "M" in container and isinstance(step, str):
        if len(steps) > 1 and step not in container["M"]:
            raise _no_such_path()
        return {"M": _put(container["M"], steps, value)}
    if container is not None and "L" in container and isinstance(step, int):
        members = list(container["L"])
        if len(steps) > 1:
            if step >= len(members):
                raise _no_such_path()
            members[step] = _put_inside(members[step], steps[1:], value)
        elif step < len(members):
            members[step] = value
        else:
            members.append(value)
        return {"L": members}
    raise _no_such_path()


def _removed(members: Json, steps: expressions.Steps) -> Json:
    """A copy of the members of a map, without what is at a path."""
    name = str(steps[0])
    if len(steps) == 1:
        return {each: value for each, value in members.items() if each != name}
    if name not in members:
        raise _no_such_path()
    return {**members, name: _removed_inside(members[name], steps[1:])}


def _removed_inside(container: Json, steps: expressions.Steps) -> Json:
    step = steps[0]
    if "M" in container and isinstance(step, str):
        return {"M": _removed(container["M"], steps)}
    if "L" in container and isinstance(step, int):
        members = list(container["L"])
        if step >= len(members):
            return container
        if len(steps) == 1:
            del members[step]
        else:
            members[step] = _removed_inside(members[step], steps[1:])
        return {"L": members}
    raise _no_such_path()


def _no_such_path() -> AwsError:
    return invalid("The document path provided in the update expression is invalid for update")


# --- ranges ---------------------------------------------------------------------------------------

type _Bound = tuple[Any, bool] | None


def _asked_range(
    body: expressions.Condition, schema: tables.KeySchema, given: Given
) -> tuple[Any, _Bound, _Bound, Any]:
    """Partition, lower and upper bound of the sort key with whether they are in, and prefix."""
    parts = list(body.parts) if isinstance(body, expressions.AllOf) else [body]
    place: Any = None
    low: _Bound = None
    high: _Bound = None
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


def _bounds(found: Mapping[str, Any]) -> tuple[_Bound, _Bound, Any]:
    low: _Bound = None
    high: _Bound = None
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


def _as_before(
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


def _within(part: Any, low: _Bound, high: _Bound, prefix: Any) -> bool:
    if low is not None and not (part >= low[0] if low[1] else part > low[0]):
        return False
    if high is not None and not (part <= high[0] if high[1] else part < high[0]):
        return False
    return prefix is None or bool(part.startswith(prefix))


def _start(start: Json, table: Table, index: Index | None) -> tuple[Any, Any, Key]:
    """Where a page begins: sort key, partition, and the item's own key."""
    names = {*table.schema.names, *(index.schema.names if index else ())}
    if set(start) != names:
        raise invalid("The provided starting key is invalid")
    canonical = values.canonical_item(start)
    key = table.read_key({name: canonical[name] for name in table.schema.names})
    place, part = index.schema.key_of(canonical) if index else key
    return part, place, key


def _hashed(key: Key) -> str:
    """The order in which a scan goes through a table: none that anybody could rely on."""
    return hashlib.md5(repr(key[0]).encode(), usedforsecurity=False).hexdigest()


# --- answers --------------------------------------------------------------------------------------


def _only(body: Json, members: frozenset[str], operation: str) -> None:
    if not members.issuperset(body):
        raise Unsupported(f"{operation} with {', '.join(sorted(set(body) - members))}")


def _reject(body: Json, member: str, but: str) -> None:
    if body.get(member, but) != but:
        raise Unsupported(f"{member} {body[member]}")


def _reject_select(body: Json, index: Index | None) -> None:
    select = body.get("Select")
    if select not in {None, "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"}:
        raise Unsupported(f"Select {select}")
    if select == "ALL_ATTRIBUTES" and index is not None and index.projected is not None:
        raise invalid("Select type ALL_ATTRIBUTES is not supported for the index")
    if body.get("Limit", 1) < 1:
        raise invalid("Limit must be at least 1")


def _one_each(
    items: list[Json], members: Mapping[str, frozenset[str]], what: str
) -> list[tuple[str, Json]]:
    """Each item's action and what it asks."""
    if not 1 <= len(items) <= TRANSACTION_ITEMS_MAX:
        raise invalid(f"Member must have length between 1 and 100: {what}")
    found = []
    for item in items:
        if len(item) != 1:
            raise invalid("TransactItems can only contain one of Check, Put, Update or Delete")
        [(action, asked)] = item.items()
        _only(asked, members[action], action)
        found.append((action, asked))
    return found


def _kept(prepared: _Prepared, asked: Json) -> Json:
    """The item that a failed condition shows to who asks for it."""
    wanted = asked.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
    return {"Item": prepared.old.item} if wanted and prepared.old is not None else {}


def _reason(prepared: _Prepared, asked: Json) -> Json:
    shown = _kept(prepared, asked)
    return {"Code": "ConditionalCheckFailed", "Message": CONDITION_FAILED} | shown


def _cancelled(reasons: list[Json]) -> AwsError:
    codes = ", ".join(reason["Code"] for reason in reasons)
    return AwsError(
        "TransactionCanceledException",
        f"Transaction cancelled, please refer cancellation reasons for specific reasons [{codes}]",
        reasons=reasons,
    )


def _consumed(body: Json, table: str, units: float) -> Json:
    if body.get("ReturnConsumedCapacity", "NONE") == "NONE":
        return {}
    _require_known(body)
    return {"ConsumedCapacity": {"TableName": table, "CapacityUnits": units}}


def _consumed_by_table(body: Json, consumed: Iterable[tuple[str, float]]) -> Json:
    if body.get("ReturnConsumedCapacity", "NONE") == "NONE":
        return {}
    _require_known(body)
    totals: dict[str, float] = {}
    for table, units in consumed:
        totals[table] = totals.get(table, 0.0) + units
    listed = [{"TableName": table, "CapacityUnits": units} for table, units in totals.items()]
    return {"ConsumedCapacity": listed}


def _require_known(body: Json) -> None:
    # Of INDEXES the total alone is told: nobody decides by the parts.
    if body["ReturnConsumedCapacity"] not in ("TOTAL", "INDEXES"):
        raise Unsupported(f"ReturnConsumedCapacity {body['ReturnConsumedCapacity']}")


def items_in(answer: Json) -> Iterator[tuple[Json, str]]:
    """Each member of an answer that is an item: where it stands, and under which name."""
    for name in ("Item", "Attributes", "LastEvaluatedKey"):
        if name in answer:
            yield answer, name
    for each in (*answer.get("Responses", ()), *answer.get("CancellationReasons", ())):
        if isinstance(each, dict) and "Item" in each:
            yield each, "Item"
