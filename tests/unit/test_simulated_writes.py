"""Writes of the simulator's DynamoDB and what follows, where the contract suites do not reach."""

from typing import Any

import pytest

from tests.simulation.cloud.dynamodb import Write
from tests.simulation.cloud.errors import AwsError
from tests.simulation.cloud.tables import ITEM_BYTES_MAX, TTL_PAST_S_MAX
from tests.unit.simulated_table import KEY, START_MS, Store


@pytest.fixture
def store() -> Store:
    """Empty."""
    return Store()


# --- keys and sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ({"p": {"S": ""}, "s": {"N": "1"}}, "empty string value"),
        ({"p": {"N": "1"}, "s": {"N": "1"}}, "does not match the schema"),
        ({"p": {"S": "P"}}, "does not match the schema"),
        ({"p": {"S": "P"}, "s": {"N": "1"}, "t": {"S": "x"}}, "does not match the schema"),
        ({"p": {"S": "x" * 2049}, "s": {"N": "1"}}, "2048 bytes"),
    ],
)
def test_a_key_is_refused(store: Store, key: Any, why: str) -> None:
    with pytest.raises(AwsError, match=why):
        store.call("GetItem", Key=key)


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ({"p": {"S": "P"}}, "Missing the key s"),
        ({"p": {"S": "P"}, "s": {"S": "1"}}, "Type mismatch for key s"),
        ({"p": {"S": ""}, "s": {"N": "1"}}, "empty string value"),
        (KEY | {"x": {"S": "x" * ITEM_BYTES_MAX}}, "Item size"),
        (KEY | {"x": {"SS": ["a", "a"]}}, "duplicates"),
        (KEY | {"x": {"SS": []}}, "may not be empty"),
    ],
)
def test_an_item_is_refused(store: Store, item: Any, why: str) -> None:
    with pytest.raises(AwsError, match=why):
        store.call("PutItem", Item=item)
    assert store.table.items() == []


def test_a_number_is_kept_without_its_zeros(store: Store) -> None:
    store.put(a={"N": "1.50"}, b={"N": "007"}, c={"N": "1e3"}, d={"N": "-0.0"})
    assert store.item() == {
        "a": {"N": "1.5"},
        "b": {"N": "7"},
        "c": {"N": "1000"},
        "d": {"N": "0"},
    }


# --- transactions ---------------------------------------------------------------------------------


def _put(sort: int, **members: Any) -> dict[str, Any]:
    item = {"p": {"S": "P"}, "s": {"N": str(sort)}}
    return {"Put": {"TableName": "T", "Item": item, **members}}


def test_every_item_of_a_cancelled_transaction_has_its_reason(store: Store) -> None:
    store.put(1, n={"S": "text"})
    new = {"ConditionExpression": "attribute_not_exists(p)"}
    told = new | {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    store.put(4)
    broken = {
        "TableName": "T",
        "Key": {"p": {"S": "P"}, "s": {"N": "4"}},
        "UpdateExpression": "SET n = n + :v",
        "ExpressionAttributeValues": {":v": {"N": "1"}},
    }

    with pytest.raises(AwsError) as caught:
        store.call(
            "TransactWriteItems",
            TransactItems=[_put(1, **told), _put(2, **new), {"Update": broken}],
        )

    assert caught.value.code == "TransactionCanceledException"
    reasons = caught.value.members["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == [
        "ConditionalCheckFailed",
        "None",
        "ValidationError",
    ]
    assert reasons[0]["Item"] == {"p": {"S": "P"}, "s": {"N": "1"}, "n": {"S": "text"}}
    assert store.item(2) is None


def test_one_item_stands_once_in_a_transaction(store: Store) -> None:
    with pytest.raises(AwsError, match="multiple operations on one item"):
        store.call("TransactWriteItems", TransactItems=[_put(1), _put(1)])
    get = {"Get": {"TableName": "T", "Key": KEY}}
    with pytest.raises(AwsError, match="multiple operations on one item"):
        store.call("TransactGetItems", TransactItems=[get, get])


def test_a_transaction_has_a_hundred_items_at_most(store: Store) -> None:
    store.call("TransactWriteItems", TransactItems=[_put(n) for n in range(100)])
    with pytest.raises(AwsError, match="between 1 and 100"):
        store.call("TransactWriteItems", TransactItems=[_put(n) for n in range(101)])


def test_a_transaction_holds_four_megabytes_at_most(store: Store) -> None:
    items = [_put(n) for n in range(11)]
    for each in items:
        each["Put"]["Item"]["x"] = {"S": "x" * 390_000}
    with pytest.raises(AwsError, match="4 MB"):
        store.call("TransactWriteItems", TransactItems=items)
    store.call("TransactWriteItems", TransactItems=items[:10])


@pytest.mark.parametrize(("later_ms", "is_known"), [(599_999, True), (600_000, False)])
def test_a_token_stands_for_its_transaction_for_ten_minutes(
    store: Store, later_ms: int, is_known: bool
) -> None:
    new = _put(1, ConditionExpression="attribute_not_exists(p)")
    store.call("TransactWriteItems", TransactItems=[new], ClientRequestToken="t")
    store.now_ms += later_ms

    if is_known:
        store.call("TransactWriteItems", TransactItems=[new], ClientRequestToken="t")
        with pytest.raises(AwsError) as other:
            store.call("TransactWriteItems", TransactItems=[_put(2)], ClientRequestToken="t")
        assert other.value.code == "IdempotentParameterMismatchException"
    else:
        with pytest.raises(AwsError) as again:
            store.call("TransactWriteItems", TransactItems=[new], ClientRequestToken="t")
        assert again.value.code == "TransactionCanceledException"


def test_units_are_told_to_who_asks(store: Store) -> None:
    asked = {"ReturnConsumedCapacity": "TOTAL"}
    indexed = KEY | {"ip": {"S": "x"}, "is": {"N": "1"}}
    item = {"TableName": "T", "Item": indexed | {"x": {"S": "x" * 1500}}}
    write = store.call("TransactWriteItems", TransactItems=[{"Put": item}], **asked)
    read = store.call("GetItem", Key=KEY, ConsistentRead=True, **asked)
    lazy = store.call("GetItem", Key=KEY, **asked)

    assert write["ConsumedCapacity"] == [{"TableName": "T", "CapacityUnits": 2 * 2 + 2 * 1}]
    assert read["ConsumedCapacity"] == {"TableName": "T", "CapacityUnits": 1.0}
    assert lazy["ConsumedCapacity"] == {"TableName": "T", "CapacityUnits": 0.5}


# --- streams and time to live ---------------------------------------------------------------------


def test_a_stream_tells_each_change_with_its_images(store: Store) -> None:
    store.put(n={"N": "1"})
    store.update("SET n = :v", ExpressionAttributeValues={":v": {"N": "2"}})
    store.call("DeleteItem", Key=KEY)

    told = [
        (
            record["eventName"],
            record["dynamodb"].get("OldImage", {}).get("n"),
            record["dynamodb"].get("NewImage", {}).get("n"),
        )
        for record in store.table.stream
    ]
    assert told == [
        ("INSERT", None, {"N": "1"}),
        ("MODIFY", {"N": "1"}, {"N": "2"}),
        ("REMOVE", {"N": "2"}, None),
    ]
    assert all(record["dynamodb"]["Keys"] == KEY for record in store.table.stream)
    assert all(record["eventSourceARN"] == store.table.stream_arn for record in store.table.stream)
    numbers = [record["dynamodb"]["SequenceNumber"] for record in store.table.stream]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 3


@pytest.mark.parametrize(
    ("view", "images"),
    [
        ("KEYS_ONLY", set()),
        ("NEW_IMAGE", {"NewImage"}),
        ("OLD_IMAGE", {"OldImage"}),
        ("NEW_AND_OLD_IMAGES", {"NewImage", "OldImage"}),
    ],
)
def test_a_stream_shows_the_images_of_its_view(store: Store, view: str, images: set[str]) -> None:
    store.table.view = view
    store.put(n={"N": "1"})
    store.put(n={"N": "2"})
    change = store.table.stream[-1]["dynamodb"]
    assert {name for name in change if name.endswith("Image")} == images


def test_what_changes_nothing_is_not_told(store: Store) -> None:
    store.put(n={"N": "1"})
    store.put(n={"N": "1.0"})
    store.update("SET n = :v", ExpressionAttributeValues={":v": {"N": "1"}})
    store.update("REMOVE gone")
    store.call("DeleteItem", Key=KEY | {"s": {"N": "9"}})
    assert len(store.table.stream) == 1


def test_an_image_does_not_change_afterwards(store: Store) -> None:
    store.put(m={"M": {"rooms": {"L": [{"N": "1"}]}}})
    store.update("SET m.rooms[0] = :v, m.hall = :v", ExpressionAttributeValues={":v": {"N": "2"}})
    first, second = (record["dynamodb"] for record in store.table.stream)
    assert first["NewImage"]["m"] == {"M": {"rooms": {"L": [{"N": "1"}]}}}
    assert second["OldImage"] == first["NewImage"]


def test_a_cancelled_transaction_is_not_told(store: Store) -> None:
    store.put(2)
    with pytest.raises(AwsError):
        store.call(
            "TransactWriteItems",
            TransactItems=[_put(1), _put(2, ConditionExpression="attribute_not_exists(p)")],
        )
    assert len(store.table.stream) == 1


def test_time_to_live_deletes_as_the_service(store: Store) -> None:
    now_s = START_MS // 1000
    store.put(1, purgeAt={"N": str(now_s - 1)})
    store.put(2, purgeAt={"N": str(now_s)})
    store.put(3, purgeAt={"S": str(now_s - 1)})
    store.put(4, purgeAt={"N": str(now_s - TTL_PAST_S_MAX)})
    store.put(5)

    assert store.service.delete_expired(now_s) == 1

    assert [int(item["s"]["N"]) for item in store.table.items()] == [2, 3, 4, 5]
    record = store.table.stream[-1]
    assert record["eventName"] == "REMOVE"
    assert record["userIdentity"] == {
        "type": "Service",
        "principalId": "dynamodb.amazonaws.com",
    }


# --- who watches, and who changes -----------------------------------------------------------------


def test_an_observer_is_told_each_write_and_whether_its_condition_held(store: Store) -> None:
    seen: list[Write] = []
    store.service.observers.append(seen.append)
    new = "attribute_not_exists(p)"
    store.put()
    with pytest.raises(AwsError):
        store.call(
            "TransactWriteItems",
            TransactItems=[_put(1, ConditionExpression=new), _put(2, ConditionExpression=new)],
        )
    store.update("SET n = :v", ExpressionAttributeValues={":v": {"N": "1"}})

    told = [(w.operation, w.action, w.condition, w.update, w.outcome) for w in seen]
    assert told == [
        ("PutItem", "Put", None, None, True),
        ("TransactWriteItems", "Put", new, None, False),
        ("TransactWriteItems", "Put", new, None, True),
        ("UpdateItem", "Update", None, "SET n = :v", True),
    ]


def test_a_request_may_be_rewritten_and_what_nothing_uses_then_is_let_pass(store: Store) -> None:
    store.put(n={"N": "1"})

    def without_condition(_: str, body: dict[str, Any]) -> dict[str, Any]:
        return {name: body[name] for name in body if name != "ConditionExpression"}

    store.service.rewrite = without_condition
    store.update(
        "SET n = :v",
        ConditionExpression="n = :w AND #n = :w",
        ExpressionAttributeNames={"#n": "n"},
        ExpressionAttributeValues={":v": {"N": "2"}, ":w": {"N": "7"}},
    )
    assert store.item() == {"n": {"N": "2"}}


def test_a_table_that_is_not_there_is_an_error(store: Store) -> None:
    with pytest.raises(AwsError) as caught:
        store.service.call("GetItem", {"TableName": "gone", "Key": KEY})
    assert caught.value.code == "ResourceNotFoundException"
