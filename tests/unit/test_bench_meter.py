"""The bench's meter: every call counted, and what it wrote and read weighed by table and index."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bench.meter import Meter
from bench.units import shape_of
from tests.simulation.cloud.clients import simulated
from wallet_ledger.aws import clients

DECLARED: dict[str, Any] = {
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": "S"} for name in ("id", "status")
    ],
    "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    "BillingMode": "PAY_PER_REQUEST",
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "ByStatus",
            "KeySchema": [{"AttributeName": "status", "KeyType": "HASH"}],
            "Projection": {"ProjectionType": "ALL"},
        }
    ],
}
OLD: Any = {"id": {"S": "old"}, "status": {"S": "queued"}, "note": {"S": "x" * 5_000}}
NEW: Any = {"id": {"S": "new"}, "status": {"S": "queued"}}
NEW_PUT: Any = {"Put": {"TableName": "T", "Item": NEW}}
OLD_UPDATE: Any = {
    "Update": {
        "TableName": "T",
        "Key": {"id": {"S": "old"}},
        "UpdateExpression": "REMOVE #status",
        "ExpressionAttributeNames": {"#status": "status"},
    }
}
OLD_CHECK: Any = {
    "ConditionCheck": {
        "TableName": "T",
        "Key": {"id": {"S": "old"}},
        "ConditionExpression": "attribute_not_exists(id)",
    }
}
BOTH: Any = {"T": {"Keys": [{"id": {"S": "old"}}, {"id": {"S": "none"}}], "ConsistentRead": True}}

type Call = Callable[[Any], object]
CALLS: dict[str, tuple[str, Call, dict[str, float], dict[str, float]]] = {
    "a put": (
        "PutItem",
        lambda c: c.put_item(TableName="T", Item=NEW),
        {"table": 1, "ByStatus": 1},
        {},
    ),
    "a put over what was larger": (
        "PutItem",
        lambda c: c.put_item(TableName="T", Item=NEW | {"id": {"S": "old"}}),
        {"table": 5, "ByStatus": 5},
        {},
    ),
    "a transaction": (
        "TransactWriteItems",
        lambda c: c.transact_write_items(TransactItems=[NEW_PUT, OLD_UPDATE]),
        {"table": 2 + 10, "ByStatus": 1 + 5},
        {},
    ),
    "a transaction that is refused": (
        "TransactWriteItems",
        lambda c: c.transact_write_items(TransactItems=[NEW_PUT, OLD_CHECK]),
        {"table": 2 + 10},
        {},
    ),
    "an item": (
        "GetItem",
        lambda c: c.get_item(TableName="T", Key={"id": {"S": "old"}}),
        {},
        {"table": 1},
    ),
    "an item as of now": (
        "GetItem",
        lambda c: c.get_item(TableName="T", Key={"id": {"S": "old"}}, ConsistentRead=True),
        {},
        {"table": 2},
    ),
    "an item that is not there": (
        "GetItem",
        lambda c: c.get_item(TableName="T", Key={"id": {"S": "none"}}, ConsistentRead=True),
        {},
        {"table": 1},
    ),
    "a batch": ("BatchGetItem", lambda c: c.batch_get_item(RequestItems=BOTH), {}, {"table": 3}),
    "a look at both at one moment": (
        "TransactGetItems",
        lambda c: c.transact_get_items(
            TransactItems=[
                {"Get": {"TableName": "T", "Key": {"id": {"S": name}}}} for name in ("old", "none")
            ]
        ),
        {},
        {"table": 4 + 2},
    ),
    "a page of an index": (
        "Query",
        lambda c: c.query(
            TableName="T",
            IndexName="ByStatus",
            KeyConditionExpression="#status = :queued",
            ExpressionAttributeNames={"#status": "status"},
            ExpressionAttributeValues={":queued": {"S": "queued"}},
        ),
        {},
        {"ByStatus": 1},
    ),
    "all of it": (
        "Scan",
        lambda c: c.scan(TableName="T", ConsistentRead=True),
        {},
        {"table": 2},
    ),
}


@pytest.fixture
def client() -> Iterator[Any]:
    """A client of an engine in this process, with one large item in its table."""
    with simulated() as aws, aws.reached():
        made = clients.dynamodb(on_consumed=lambda _name, _units: None)
        made.create_table(TableName="T", **DECLARED)
        made.put_item(TableName="T", Item=OLD)
        yield made


def metered(client: Any, *, weigh: bool) -> tuple[Meter, Any]:
    """A meter, and a client of its own that it counts."""
    meter = Meter(client, {"T": shape_of(DECLARED)}, weigh=weigh)
    return meter, meter.attach(clients.dynamodb(on_consumed=lambda _name, _units: None))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_counted_and_weighed(client: Any, name: str) -> None:
    operation, call, written, read = CALLS[name]
    meter, counted = metered(client, weigh=True)

    try:
        call(counted)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "TransactionCanceledException"  # noqa: PT017

    assert meter.calls == {operation: 1}
    assert meter.written == {("T", part): units for part, units in written.items()}
    assert meter.read == {("T", part): units for part, units in read.items()}


def test_where_nothing_is_to_be_weighed_calls_alone_are_counted(client: Any) -> None:
    meter, counted = metered(client, weigh=False)

    counted.put_item(TableName="T", Item=NEW)
    counted.scan(TableName="T")

    assert meter.calls == {"PutItem": 1, "Scan": 1}
    assert not meter.written
    assert not meter.read


def test_it_can_begin_anew(client: Any) -> None:
    meter, counted = metered(client, weigh=True)
    counted.put_item(TableName="T", Item=NEW)
    counted.scan(TableName="T")

    meter.forget()

    assert not meter.calls
    assert not meter.written
    assert not meter.read
