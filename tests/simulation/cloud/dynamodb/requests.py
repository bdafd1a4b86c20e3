"""What a request of DynamoDB may hold, and what every answer holds besides what was asked."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.simulation.cloud import values
from tests.simulation.cloud.errors import Json, Unsupported, invalid
from tests.simulation.cloud.expressions import Given, Parsed

TRANSACTION_ITEMS_MAX = 100
TRANSACTION_BYTES_MAX = 4 * 1024 * 1024

_EXPRESSED = frozenset({"ExpressionAttributeNames", "ExpressionAttributeValues"})
_CONDITIONAL = _EXPRESSED | {
    "TableName",
    "ConditionExpression",
    "ReturnValuesOnConditionCheckFailure",
}
WRITTEN = {
    "Put": _CONDITIONAL | {"Item"},
    "Update": _CONDITIONAL | {"Key", "UpdateExpression"},
    "Delete": _CONDITIONAL | {"Key"},
    "ConditionCheck": _CONDITIONAL | {"Key"},
}
"""Members of each write of a transaction."""
_PLAIN = frozenset({"ReturnValues", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics"})
_READ = frozenset({"TableName", "ReturnConsumedCapacity", "ConsistentRead"})
_PAGED = (
    _READ
    | _EXPRESSED
    | {"IndexName", "Limit", "ExclusiveStartKey", "FilterExpression", "ProjectionExpression"}
    | {"Select"}
)
GET = frozenset({"TableName", "Key", "ProjectionExpression", "ExpressionAttributeNames"})
"""Members of a read of one item, alone or with others."""
MEMBERS: dict[str, frozenset[str]] = {
    "GetItem": GET | _READ,
    "PutItem": WRITTEN["Put"] | _PLAIN,
    "UpdateItem": WRITTEN["Update"] | _PLAIN,
    "DeleteItem": WRITTEN["Delete"] | _PLAIN,
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
"""Members of each operation that is known."""
_NOTHING = Given({}, {})


def only(body: Json, members: frozenset[str], operation: str) -> None:
    """What else DynamoDB knows of is not passed over."""
    if not members.issuperset(body):
        raise Unsupported(f"{operation} with {', '.join(sorted(set(body) - members))}")


def one_each(
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
        only(asked, members[action], action)
        found.append((action, asked))
    return found


def placeholders(asked: Json, parsed: Sequence[Parsed[Any]], *, strict: bool) -> Given:
    """Names and values, each of which must be there and, where that is `strict`, be used."""
    names = asked.get("ExpressionAttributeNames")
    literals = asked.get("ExpressionAttributeValues")
    if names is None and literals is None and not any(p.names or p.values for p in parsed):
        return _NOTHING
    for member, found in (("Names", names), ("Values", literals)):
        if found is not None and not found:
            raise invalid(f"ExpressionAttribute{member} must not be empty")
        if found is not None and not parsed and strict:
            raise invalid(
                f"ExpressionAttribute{member} can only be specified when using expressions"
            )
    made = Given(names or {}, values.canonical_item(literals or {}))
    for what, wanted, found in (
        ("name", {n for p in parsed for n in p.names}, made.names.keys()),
        ("value", {v for p in parsed for v in p.values}, made.values.keys()),
    ):
        if wanted - found:
            missing = min(wanted - found)
            raise invalid(
                f"An expression attribute {what} used in expression is not defined; "
                f"attribute {what}: {missing}"
            )
        if found - wanted and strict:
            unused = ", ".join(sorted(found - wanted))
            raise invalid(
                f"Value provided in ExpressionAttribute{what.capitalize()}s unused in "
                f"expressions: keys: {{{unused}}}"
            )
    for each in parsed:
        each.check(made)
    return made


def consumed(body: Json, table: str, units: float) -> Json:
    """The member that tells it, where it was asked for."""
    if body.get("ReturnConsumedCapacity", "NONE") == "NONE":
        return {}
    _require_known(body)
    return {"ConsumedCapacity": {"TableName": table, "CapacityUnits": units}}


def consumed_by_table(body: Json, units_of: Iterable[tuple[str, float]]) -> Json:
    """The same of a call on several tables, each told with its units as often as it likes."""
    if body.get("ReturnConsumedCapacity", "NONE") == "NONE":
        return {}
    _require_known(body)
    totals: dict[str, float] = {}
    for table, units in units_of:
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
