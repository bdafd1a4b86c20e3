"""What is told of each call to AWS: its operation, and its units by table and index."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fakes.wire import Answer, Wire, cancelled, error, ok
from wallet_ledger.aws import clients
from wallet_ledger.aws.calls import watched

KEY: Any = {"id": {"S": "x"}}
PUT: Any = {"Put": {"TableName": "T", "Item": KEY}}
CHECK: Any = {"ConditionCheck": {"TableName": "U", "Key": KEY, "ConditionExpression": "a = :a"}}

CALLS: dict[str, Callable[[Any], object]] = {
    "PutItem": lambda c: c.put_item(TableName="T", Item=KEY),
    "Query": lambda c: c.query(TableName="T", KeyConditionExpression="a = :a"),
    "GetItem": lambda c: c.get_item(TableName="T", Key=KEY),
    "TransactWriteItems": lambda c: c.transact_write_items(TransactItems=[PUT, PUT, CHECK]),
}


def capacity(table: str, units: float, **indexes: float) -> dict[str, Any]:
    """As DynamoDB says it of one table."""
    parts = {name: {"CapacityUnits": each} for name, each in indexes.items()}
    return {"TableName": table, "CapacityUnits": units, "GlobalSecondaryIndexes": parts}


@pytest.mark.parametrize(
    ("name", "answer", "told"),
    [
        ("PutItem", ok({"ConsumedCapacity": capacity("T", 2, Open=1)}), {"T": 1, "T/Open": 1}),
        ("Query", ok({"ConsumedCapacity": capacity("T", 0.5, Open=0.5)}), {"T/Open": 0.5}),
        # An engine names the indexes of a table here too, which such a read never touches.
        ("GetItem", ok({"ConsumedCapacity": capacity("T", 1, Open=1)}), {"T": 1}),
        (
            "TransactWriteItems",
            ok({"ConsumedCapacity": [capacity("T", 3, Open=1), capacity("U", 4)]}),
            {"T": 2, "T/Open": 1, "U": 4},
        ),
        ("PutItem", error("ConditionalCheckFailedException"), {"T": 1}),
        ("TransactWriteItems", cancelled("ConditionalCheckFailed", "None"), {"T": 4, "U": 2}),
        ("PutItem", error("ValidationException"), {}),
    ],
)
def test_each_call_that_was_answered_is_told_with_its_units_by_table_and_index(
    wire: Wire, name: str, answer: Answer, told: dict[str, float]
) -> None:
    calls: list[tuple[str, Mapping[str, float]]] = []
    client = clients.dynamodb(on_consumed=lambda _name, _units: None)
    seen = watched(client, lambda operation, units: calls.append((operation, units)))
    wire.answers(answer)

    with suppress(ClientError):
        CALLS[name](seen)

    assert seen is client
    assert calls == [(f"dynamodb.{name}", told)]
    assert wire.sent[0].body["ReturnConsumedCapacity"] == "INDEXES"
