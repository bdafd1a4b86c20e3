"""The bench's rules for what a write costs, against what Amazon's own engine reports."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from bench.units import item_bytes, shape_of, write_units
from tests.engine import Aws

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
    aws_dynamodb_local.dynamodb.create_table(TableName="bench-units", **TABLE)
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


@pytest.mark.parametrize(
    ("text", "size"), [("0", 1), ("1", 2), ("-1", 3), ("1000000", 2), ("123456", 4), ("12345.6", 4)]
)
def test_a_number_is_half_as_long_as_its_digits(text: str, size: int) -> None:
    assert item_bytes({"n": {"N": text}}) == 1 + size
