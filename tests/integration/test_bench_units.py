"""The bench's rules for what a write or a read costs, against what Amazon's own engine reports."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from bench.units import (
    CONSISTENT,
    EVENTUAL,
    IN_TRANSACTION,
    item_bytes,
    read_units,
    shape_of,
    write_units,
)
from tests.engine import Aws, create_table

TABLE: dict[str, Any] = {
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": "S"} for name in ("id", "status", "owner")
    ],
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "BillingMode": "PAY_PER_REQUEST",
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "ByStatus",
            "KeySchema": [{"AttributeName": "status", "KeyType": "HASH"}],
            "Projection": {"ProjectionType": "ALL"},
        },
        {
            "IndexName": "ByOwner",
            "KeySchema": [{"AttributeName": "owner", "KeyType": "HASH"}],
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["amount"]},
        },
    ],
}


def item(**values: str | int) -> dict[str, Any]:
    """An item of that table; integers are numbers."""
    return {n: {"N": str(v)} if isinstance(v, int) else {"S": v} for n, v in values.items()}


BLANK = item(id="k")
QUEUED = item(id="k", status="queued", amount=1)
OWNED = item(id="k", status="queued", owner="a", amount=1, note="x")
LARGE = item(id="k", status="queued", owner="a", amount=1, note="x" * 1_500)
HUGE = item(id="k", status="queued", owner="a", amount=1, note="x" * 3_000)
WRITES: Mapping[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "new, in no index": (None, BLANK),
    "new, in one index": (None, QUEUED),
    "new, in two": (None, OWNED),
    "the same once more": (OWNED, OWNED),
    "another status moves it within an index": (OWNED, OWNED | item(status="synced")),
    "what one index alone projects": (OWNED, OWNED | item(note="y")),
    "what both project": (OWNED, OWNED | item(amount=2)),
    "out of an index": (OWNED, QUEUED),
    "out of both": (OWNED, BLANK),
    "into both": (BLANK, OWNED),
    "larger": (OWNED, LARGE),
    "smaller": (LARGE, OWNED),
    "large, and moved": (LARGE, LARGE | item(status="synced")),
    "larger by far": (LARGE, HUGE),
}
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def table(aws_dynamodb_local: Aws) -> str:
    """A table with two indexes on Amazon's engine."""
    create_table(aws_dynamodb_local.dynamodb, "bench-units", TABLE)
    return "bench-units"


@pytest.mark.parametrize("write", WRITES)
def test_a_write_costs_what_amazons_engine_says(
    aws_dynamodb_local: Aws, table: str, write: str
) -> None:
    client = aws_dynamodb_local.dynamodb
    before, after = WRITES[write]
    key = item(id=f"k-{next(_numbers)}")
    if before is not None:
        client.put_item(TableName=table, Item=before | key)

    answer = client.put_item(TableName=table, Item=after | key, ReturnConsumedCapacity="INDEXES")

    said = answer["ConsumedCapacity"]
    indexes = said.get("GlobalSecondaryIndexes", {})
    told = {"table": said["Table"]["CapacityUnits"]} | {
        name: each["CapacityUnits"] for name, each in indexes.items() if each["CapacityUnits"]
    }
    had = None if before is None else before | key
    assert write_units(shape_of(TABLE), had, after | key, in_transaction=False) == told


def test_in_a_transaction_the_tables_part_is_twice_as_much() -> None:
    units = write_units(shape_of(TABLE), None, LARGE, in_transaction=True)
    assert units == {"table": 4, "ByStatus": 2, "ByOwner": 1}


READ: Mapping[str, list[dict[str, Any]]] = {
    "nothing": [],
    "little": [OWNED],
    "more than a unit": [item(id="k", owner="a", note="x" * 5_000)],
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("rate", [EVENTUAL, CONSISTENT])
def test_a_look_at_an_item_costs_what_amazons_engine_says(
    aws_dynamodb_local: Aws, table: str, name: str, rate: float
) -> None:
    client = aws_dynamodb_local.dynamodb
    key = item(id=f"k-{next(_numbers)}")
    for each in READ[name]:
        client.put_item(TableName=table, Item=each | key)

    answer = client.get_item(TableName=table, Key=key, ConsistentRead=rate == CONSISTENT)

    found = [answer["Item"]] if "Item" in answer else []
    assert len(found) == len(READ[name])
    assert read_units(found, rate) == answer["ConsumedCapacity"]["CapacityUnits"]


@pytest.mark.parametrize("name", READ)
def test_a_look_in_a_transaction_costs_what_amazons_engine_says(
    aws_dynamodb_local: Aws, table: str, name: str
) -> None:
    client = aws_dynamodb_local.dynamodb
    key = item(id=f"k-{next(_numbers)}")
    for each in READ[name]:
        client.put_item(TableName=table, Item=each | key)

    answer = client.transact_get_items(TransactItems=[{"Get": {"TableName": table, "Key": key}}])

    (told,) = answer["ConsumedCapacity"]
    found = [each["Item"] for each in answer["Responses"] if "Item" in each]
    assert read_units(found, IN_TRANSACTION) == told["CapacityUnits"]


# Of an empty page this engine says nothing at all; the least is what the bench counts.
@pytest.mark.parametrize("number", [1, 7])
def test_a_page_of_an_index_costs_what_amazons_engine_says(
    aws_dynamodb_local: Aws, table: str, number: int
) -> None:
    client = aws_dynamodb_local.dynamodb
    status = item(status=f"s-{next(_numbers)}")
    for _ in range(number):
        key = item(id=f"k-{next(_numbers)}")
        client.put_item(TableName=table, Item=LARGE | status | key)

    answer = client.query(
        TableName=table,
        IndexName="ByStatus",
        KeyConditionExpression="#status = :status",
        ExpressionAttributeNames={"#status": "status"},
        ExpressionAttributeValues={":status": status["status"]},
    )

    assert answer["Count"] == number
    assert read_units(answer["Items"], EVENTUAL) == answer["ConsumedCapacity"]["CapacityUnits"]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 1), ("1", 2), ("-1", 3), ("1000000", 2), ("123456", 4), ("12345.6", 4)]
)
def test_a_number_is_half_as_long_as_its_digits(text: str, size: int) -> None:
    assert item_bytes({"n": {"N": text}}) == 1 + size
