"""The simulator's DynamoDB, where the contract suites do not reach."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.cloud.dynamodb import DynamoDB, Write
from tests.simulation.cloud.errors import AwsError, Unsupported
from tests.simulation.cloud.tables import ITEM_BYTES_MAX, TTL_PAST_S_MAX, Table

START_MS = 1_760_000_000_000
KEY = {"p": {"S": "P"}, "s": {"N": "1"}}


class Store:
    """A table `T`, its index `ByPlace` (on `ip` and `is`, projecting `kept`), and a held clock."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.service = DynamoDB(lambda: self.now_ms)
        kinds = {"p": "S", "s": "N", "ip": "S", "is": "N"}
        self.table: Table = self.service.create_table(
            TableName="T",
            AttributeDefinitions=[
                {"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()
            ],
            KeySchema=_keys("p", "s"),
            GlobalSecondaryIndexes=[
                {
                    "IndexName": "ByPlace",
                    "KeySchema": _keys("ip", "is"),
                    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["kept"]},
                }
            ],
            StreamSpecification={"StreamViewType": "NEW_AND_OLD_IMAGES"},
            TimeToLiveSpecification={"AttributeName": "purgeAt", "Enabled": True},
        )

    def call(self, operation: str, **members: Any) -> Any:
        """One call on `T`."""
        named = {} if "Transact" in operation or "Batch" in operation else {"TableName": "T"}
        return self.service.call(operation, {**named, **members})

    def put(self, sort: int = 1, **attributes: Any) -> None:
        """An item of partition P."""
        self.call("PutItem", Item={"p": {"S": "P"}, "s": {"N": str(sort)}, **attributes})

    def item(self, sort: int = 1) -> Any:
        """What is there, without its key."""
        found = self.call("GetItem", Key={"p": {"S": "P"}, "s": {"N": str(sort)}}).get("Item")
        return found and {name: found[name] for name in found if name not in KEY}

    def update(self, expression: str, **members: Any) -> None:
        """An update of the item 1."""
        self.call("UpdateItem", Key=KEY, UpdateExpression=expression, **members)

    def holds(self, condition: str, values: Any = None, names: Any = None) -> bool:
        """Whether a condition holds for the item 1."""
        given = {"ExpressionAttributeValues": values} if values else {}
        given |= {"ExpressionAttributeNames": names} if names else {}
        asked = {"TableName": "T", "Key": KEY, "ConditionExpression": condition, **given}
        try:
            self.call("TransactWriteItems", TransactItems=[{"ConditionCheck": asked}])
        except AwsError as error:
            if error.code != "TransactionCanceledException":
                raise
            return False
        return True

    def keys(self, condition: str, values: Any, **members: Any) -> list[int]:
        """The sort keys that a query finds, in its order."""
        answer = self.call(
            "Query",
            KeyConditionExpression=condition,
            ExpressionAttributeValues=values,
            **members,
        )
        return [int(item["s"]["N"]) for item in answer["Items"]]


def _keys(partition: str, sort: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]


@pytest.fixture
def store() -> Store:
    """Empty."""
    return Store()


# --- conditions -----------------------------------------------------------------------------------

HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "a number equals its other spelling": ("n = :v", {":v": {"N": "10.0"}}),
    "a number is compared as a number": ("n > :v", {":v": {"N": "9"}}),
    "a text is compared by its bytes": ("t > :v", {":v": {"S": "Z"}}),
    "between includes both ends": ("n BETWEEN :a AND :b", {":a": {"N": "10"}, ":b": {"N": "10"}}),
    "in": ("t IN (:a, :b)", {":a": {"S": "x"}, ":b": {"S": "text"}}),
    "and binds closer than or": (
        "n = :a OR n = :b AND t = :c",
        {":a": {"N": "10"}, ":b": {"N": "1"}, ":c": {"S": "x"}},
    ),
    "not binds closer than and": ("NOT n = :a AND t = :b", {":a": {"N": "1"}, ":b": {"S": "text"}}),
    "brackets": (
        "(n = :a OR n = :b) AND t = :c",
        {":a": {"N": "1"}, ":b": {"N": "10"}} | {":c": {"S": "text"}},
    ),
    "keywords in any case": ("n = :a and not t = :b", {":a": {"N": "10"}, ":b": {"S": "x"}}),
    "a member of a map": ("m.rooms[1] = :v", {":v": {"S": "b"}}),
    "size of a text": ("size(t) = :v", {":v": {"N": "4"}}),
    "size of a list": ("size(m.rooms) > :v", {":v": {"N": "1"}}),
    "begins with": ("begins_with(t, :v)", {":v": {"S": "te"}}),
    "contains in a text": ("contains(t, :v)", {":v": {"S": "ex"}}),
    "contains in a set": ("contains(ss, :v)", {":v": {"S": "b"}}),
    "a set in another order": ("ss = :v", {":v": {"SS": ["b", "a"]}}),
    "attribute type": ("attribute_type(m, :v)", {":v": {"S": "M"}}),
    "there": ("attribute_exists(m.rooms)", {}),
    "not there": ("attribute_not_exists(m.doors)", {}),
    "what is not there is unequal to anything": ("gone <> :v", {":v": {"S": "x"}}),
    "two that are not there are unequal": ("gone <> away", {}),
    "another kind is unequal": ("n <> :v", {":v": {"S": "10"}}),
}
NOT_HELD: dict[str, tuple[str, dict[str, Any]]] = {
    "not binds closer than and, also where both do not hold": (
        "NOT n = :a AND t = :b",
        {":a": {"N": "1"}, ":b": {"S": "x"}},
    ),
    "a number is no text": ("n = :v", {":v": {"S": "10"}}),
    "kinds have no order between them": ("n < :v OR n >= :v", {":v": {"S": "9"}}),
    "two that are not there are not equal": ("gone = away", {}),
    "what is not there equals nothing": ("gone = :v", {":v": {"S": "x"}}),
    "what is not there is not below": ("gone < :v", {":v": {"N": "1"}}),
    "size of a number": ("size(n) > :v", {":v": {"N": "0"}}),
    "begins with another kind": ("begins_with(n, :v)", {":v": {"S": "1"}}),
    "null is there": ("attribute_not_exists(nothing)", {}),
}


@pytest.fixture
def filled(store: Store) -> Store:
    """An item with something of most kinds."""
    store.put(
        n={"N": "10"},
        t={"S": "text"},
        m={"M": {"rooms": {"L": [{"S": "a"}, {"S": "b"}]}}},
        ss={"SS": ["a", "b"]},
        nothing={"NULL": True},
        status={"S": "queued"},
    )
    return store


@pytest.mark.parametrize("name", HELD)
def test_a_condition_holds_for_an_item(filled: Store, name: str) -> None:
    assert filled.holds(*HELD[name])


@pytest.mark.parametrize("name", NOT_HELD)
def test_a_condition_does_not_hold_for_an_item(filled: Store, name: str) -> None:
    assert not filled.holds(*NOT_HELD[name])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a reserved word": ("status = :v", {":v": {"S": "x"}}, "reserved keyword: status"),
    "no such function": ("starts(t, :v)", {":v": {"S": "x"}}, "function: starts"),
    "a function in capitals": ("SIZE(t) = :v", {":v": {"N": "1"}}, "reserved keyword|function"),
    "an end too early": ("t =", {}, "Syntax error"),
    "a word too many": ("t = :v t", {":v": {"S": "x"}}, "Syntax error"),
    "a strange sign": ("t == :v", {":v": {"S": "x"}}, "Syntax error"),
    "a letter that means nothing": ("t = :v;", {":v": {"S": "x"}}, "Syntax error"),
    "brackets for nothing": ("((t = :v))", {":v": {"S": "x"}}, "redundant parentheses"),
    "a value that is not given": ("t = :v AND n = :w", {":v": {"S": "x"}}, "not defined.*:w"),
    "a value that is not used": ("t = :v", {":v": {"S": "x"}, ":w": {"S": "x"}}, "unused.*:w"),
    "a name that is not given": ("#t = :v", {":v": {"S": "x"}}, "not defined.*#t"),
    "an order of truths": ("t < :v", {":v": {"BOOL": True}}, "Incorrect operand type"),
    "a beginning that is a number": ("begins_with(t, :v)", {":v": {"N": "1"}}, "Incorrect operand"),
    "an order of a list": (":v < t", {":v": {"L": []}}, "Incorrect operand type"),
    "the beginning of a size": ("begins_with(t, size(t))", {}, "Incorrect operand type"),
    "the beginning of a number": ("begins_with(:v, t)", {":v": {"N": "1"}}, "Incorrect operand"),
    "a range of truths": (":v BETWEEN n AND t", {":v": {"BOOL": True}}, "Incorrect operand type"),
    "one of itself": ("t IN (n, t)", {}, "distinct"),
    "the same on both sides": ("t = t", {}, "distinct"),
    "bounds the wrong way round": (
        "n BETWEEN :a AND :b",
        {":a": {"N": "2"}, ":b": {"N": "1"}},
        "upper bound",
    ),
    "bounds of two kinds": ("n BETWEEN :a AND :b", {":a": {"N": "2"}, ":b": {"S": "3"}}, "bound"),
    "nothing": (" ", {}, "can not be empty"),
    "two kinds in one value": ("t = :v", {":v": {"S": "x", "N": "1"}}, "datatypes"),
    "no number": ("n = :v", {":v": {"N": "1_0"}}, "numeric value"),
    "39 digits": ("n = :v", {":v": {"N": "1" * 39}}, "38 significant"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_expression_is_refused_as_it_stands(filled: Store, name: str) -> None:
    condition, values, why = REFUSED[name]
    with pytest.raises(AwsError, match=why) as caught:
        filled.holds(condition, values)
    assert caught.value.code == "ValidationException"


def test_a_reserved_word_is_allowed_behind_a_placeholder(filled: Store) -> None:
    assert filled.holds("#s = :v", {":v": {"S": "queued"}}, {"#s": "status"})


def test_a_failed_condition_shows_the_item_to_who_asks(filled: Store) -> None:
    asked = {"Key": KEY, "ConditionExpression": "attribute_not_exists(p)"}
    with pytest.raises(AwsError) as silent:
        filled.call("DeleteItem", **asked)
    with pytest.raises(AwsError) as telling:
        filled.call("DeleteItem", **asked, ReturnValuesOnConditionCheckFailure="ALL_OLD")

    assert silent.value.code == telling.value.code == "ConditionalCheckFailedException"
    assert "Item" not in silent.value.members
    assert telling.value.members["Item"]["n"] == {"N": "10"}


# --- updates --------------------------------------------------------------------------------------

UPDATES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "a sum": ("SET n = n + :v", {":v": {"N": "0.5"}}, {"n": {"N": "10.5"}}),
    "a difference": ("SET n = n - :v", {":v": {"N": "11"}}, {"n": {"N": "-1"}}),
    "every operand is read before": ("SET n = :v, t2 = n", {":v": {"N": "1"}}, {"t2": {"N": "10"}}),
    "only if it is not there": (
        "SET n = if_not_exists(n, :v), k = if_not_exists(k, :v)",
        {":v": {"N": "1"}},
        {"n": {"N": "10"}, "k": {"N": "1"}},
    ),
    "a list grows": (
        "SET m.rooms = list_append(m.rooms, :v)",
        {":v": {"L": [{"S": "c"}]}},
        {"m": {"M": {"rooms": {"L": [{"S": "a"}, {"S": "b"}, {"S": "c"}]}}}},
    ),
    "beyond the end of a list": (
        "SET m.rooms[9] = :v",
        {":v": {"S": "c"}},
        {"m": {"M": {"rooms": {"L": [{"S": "a"}, {"S": "b"}, {"S": "c"}]}}}},
    ),
    "out of a list": (
        "REMOVE m.rooms[0]",
        {},
        {"m": {"M": {"rooms": {"L": [{"S": "b"}]}}}},
    ),
    "two out of a list": ("REMOVE m.rooms[0], m.rooms[1]", {}, {"m": {"M": {"rooms": {"L": []}}}}),
    "add begins at nothing": ("ADD k :v", {":v": {"N": "2"}}, {"k": {"N": "2"}}),
    "add to a number": ("ADD n :v", {":v": {"N": "2"}}, {"n": {"N": "12"}}),
    "add to a set": ("ADD ss :v", {":v": {"SS": ["c", "a"]}}, {"ss": {"SS": ["a", "b", "c"]}}),
    "delete of a set": ("DELETE ss :v", {":v": {"SS": ["a"]}}, {"ss": {"SS": ["b"]}}),
    "delete of all of a set": ("DELETE ss :v", {":v": {"SS": ["a", "b"]}}, {"ss": None}),
    "into a list whose first goes": (
        "REMOVE m.rooms[0] SET m.rooms[2] = :v",
        {":v": {"S": "c"}},
        {"m": {"M": {"rooms": {"L": [{"S": "b"}, {"S": "c"}]}}}},
    ),
    "beyond a list, and beyond it nothing goes": (
        "REMOVE m.rooms[2] SET m.rooms[3] = :v",
        {":v": {"S": "c"}},
        {"m": {"M": {"rooms": {"L": [{"S": "a"}, {"S": "b"}, {"S": "c"}]}}}},
    ),
    "remove of nothing": ("REMOVE gone", {}, {"n": {"N": "10"}}),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_leaves_what_it_says(filled: Store, name: str) -> None:
    expression, values, left = UPDATES[name]
    before = filled.item()

    filled.update(expression, **({"ExpressionAttributeValues": values} if values else {}))

    after = filled.item()
    assert {name: after.get(name) for name in left} == left
    untouched = before.keys() - left.keys() - {"n", "k"}
    assert {name: after[name] for name in untouched} == {name: before[name] for name in untouched}


REFUSED_UPDATES: dict[str, tuple[str, dict[str, Any], str]] = {
    "the key": ("SET p = :v", {":v": {"S": "x"}}, "part of the key"),
    "a path in a path": ("SET m = :v, m.rooms = :v", {":v": {"S": "x"}}, "overlap"),
    "one path twice": ("SET n = :v REMOVE n", {":v": {"S": "x"}}, "overlap"),
    "one clause twice": ("SET n = :v SET t = :v", {":v": {"S": "x"}}, "only be used once"),
    "a sum with nothing": ("SET n = gone + :v", {":v": {"N": "1"}}, "does not exist"),
    "a sum with a text": ("SET n = t + :v", {":v": {"N": "1"}}, "incorrect data type"),
    "a copy of nothing": ("SET n = gone", {}, "does not exist"),
    "else the same": ("SET k = if_not_exists(n, n)", {}, "distinct"),
    "else nothing": ("SET k = if_not_exists(n, gone)", {}, "does not exist"),
    "out of nothing": ("REMOVE gone.part", {}, "document path"),
    "a part of nothing": ("SET gone.part = :v", {":v": {"N": "1"}}, "document path"),
    "add of a text": ("ADD n :v", {":v": {"S": "1"}}, "Incorrect operand type"),
    "a reserved word": ("SET status = :v", {":v": {"S": "1"}}, "reserved keyword"),
    "an index key of another kind": ("SET ip = :v", {":v": {"N": "1"}}, "Index Key ip"),
    "an empty index key": ("SET ip = :v", {":v": {"S": ""}}, "index key"),
}


@pytest.mark.parametrize("name", REFUSED_UPDATES)
def test_an_update_is_refused_and_changes_nothing(filled: Store, name: str) -> None:
    expression, values, why = REFUSED_UPDATES[name]
    before = filled.item()
    with pytest.raises(AwsError, match=why) as caught:
        filled.update(expression, **({"ExpressionAttributeValues": values} if values else {}))
    assert caught.value.code == "ValidationException"
    assert filled.item() == before


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        ("UpdateItem", {"Key": KEY, "AttributeUpdates": {}}),
        ("UpdateItem", {"Key": KEY | {"s": {"N": "9"}}, "UpdateExpression": "REMOVE gone"}),
        ("ExecuteStatement", {"Statement": "SELECT"}),
        ("PutItem", {"Item": KEY, "ReturnValues": "UPDATED_NEW"}),
        ("GetItem", {"Key": KEY, "ProjectionExpression": "m.rooms"}),
        ("DeleteItem", {"Key": KEY, "ReturnItemCollectionMetrics": "SIZE"}),
    ],
)
def test_what_it_does_not_know_is_said_aloud(filled: Store, operation: str, members: Any) -> None:
    with pytest.raises(Unsupported):
        filled.call(operation, **members)


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


# --- queries and scans ----------------------------------------------------------------------------


@pytest.fixture
def rows(store: Store) -> Store:
    """Items 1 to 5; the even ones are in the index."""
    for number in range(1, 6):
        place = {"ip": {"S": "I"}, "is": {"N": str(-number)}} if number % 2 == 0 else {}
        store.put(number, kept={"N": str(number)}, left={"S": "out"}, **place)
    return store


P = {":p": {"S": "P"}}
RANGES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "p = :p": (P, [1, 2, 3, 4, 5]),
    "p = :p AND s = :a": (P | {":a": {"N": "3"}}, [3]),
    "p = :p AND s > :a": (P | {":a": {"N": "3"}}, [4, 5]),
    "p = :p AND s >= :a": (P | {":a": {"N": "3"}}, [3, 4, 5]),
    "p = :p AND s < :a": (P | {":a": {"N": "3"}}, [1, 2]),
    "s <= :a AND p = :p": (P | {":a": {"N": "3"}}, [1, 2, 3]),
    "p = :p AND s BETWEEN :a AND :b": (P | {":a": {"N": "2"}, ":b": {"N": "4"}}, [2, 3, 4]),
}


@pytest.mark.parametrize("condition", RANGES)
def test_a_query_finds_a_range_in_order(rows: Store, condition: str) -> None:
    values, found = RANGES[condition]
    assert rows.keys(condition, values) == found
    assert rows.keys(condition, values, ScanIndexForward=False) == found[::-1]


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        ("s = :p", {":p": {"N": "1"}}),
        ("p > :p", P),
        ("p = :p OR s = :a", P | {":a": {"N": "1"}}),
        ("p = :p AND kept = :a", P | {":a": {"N": "1"}}),
        ("p = :p AND s <> :a", P | {":a": {"N": "1"}}),
        ("p = :p AND s = :a", P | {":a": {"S": "1"}}),
        ("p = :p AND s > :a AND s < :a", P | {":a": {"N": "1"}}),
    ],
)
def test_a_key_condition_is_refused(rows: Store, condition: str, values: Any) -> None:
    with pytest.raises(AwsError) as caught:
        rows.keys(condition, values)
    assert caught.value.code == "ValidationException"


def _pages(store: Store, operation: str, **members: Any) -> Iterator[Any]:
    while True:
        answer = store.call(operation, **members)
        yield answer
        if "LastEvaluatedKey" not in answer:
            return
        members["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


@pytest.mark.parametrize("forward", [True, False])
def test_pages_join_without_gap_or_overlap(rows: Store, forward: bool) -> None:
    asked: Any = {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": P}
    pages = list(_pages(rows, "Query", Limit=2, ScanIndexForward=forward, **asked))

    found = [int(item["s"]["N"]) for page in pages for item in page["Items"]]
    assert found == ([1, 2, 3, 4, 5] if forward else [5, 4, 3, 2, 1])
    assert [page["Count"] for page in pages] == [2, 2, 1]


def test_a_full_last_page_does_not_know_that_it_is_the_last(rows: Store) -> None:
    asked: Any = {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": P}
    pages = list(_pages(rows, "Query", Limit=5, **asked))
    assert [page["Count"] for page in pages] == [5, 0]


def test_a_page_ends_at_one_megabyte(store: Store) -> None:
    for number in range(4):
        store.put(number, x={"S": "x" * 390_000})
    asked: Any = {"KeyConditionExpression": "p = :p", "ExpressionAttributeValues": P}
    assert [page["Count"] for page in _pages(store, "Query", **asked)] == [3, 1]


def test_a_filter_comes_after_the_limit(rows: Store) -> None:
    answer = rows.call(
        "Query",
        KeyConditionExpression="p = :p",
        FilterExpression="kept > :a",
        ExpressionAttributeValues=P | {":a": {"N": "2"}},
        Limit=3,
    )
    assert (answer["Count"], answer["ScannedCount"]) == (1, 3)


def test_an_index_holds_what_has_its_key_and_shows_what_it_projects(rows: Store) -> None:
    asked: Any = {
        "IndexName": "ByPlace",
        "KeyConditionExpression": "ip = :p",
        "ExpressionAttributeValues": {":p": {"S": "I"}},
    }
    answer = rows.call("Query", **asked)
    assert [item["kept"]["N"] for item in answer["Items"]] == ["4", "2"]
    assert all("left" not in item for item in answer["Items"])

    rows.call("UpdateItem", Key=KEY | {"s": {"N": "4"}}, UpdateExpression="REMOVE ip")
    rows.call("DeleteItem", Key=KEY | {"s": {"N": "2"}})
    assert rows.call("Query", **asked)["Items"] == []


def test_pages_of_an_index_join_where_its_keys_are_equal(store: Store) -> None:
    for number in range(5):
        store.put(number, ip={"S": "I"}, **{"is": {"N": "7"}})
    asked: Any = {
        "IndexName": "ByPlace",
        "KeyConditionExpression": "ip = :p",
        "ExpressionAttributeValues": {":p": {"S": "I"}},
    }
    pages = list(_pages(store, "Query", Limit=2, **asked))
    assert [int(item["s"]["N"]) for page in pages for item in page["Items"]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "start",
    [
        {"p": {"S": "P"}, "s": {"N": "1"}},
        {"p": {"S": "P"}, "s": {"N": "4"}, "ip": {"S": "other"}, "is": {"N": "-4"}},
        {"p": {"S": "P"}, "s": {"N": "4"}, "ip": {"S": "I"}, "is": {"N": "9"}},
    ],
)
def test_a_page_cannot_start_outside_its_range(rows: Store, start: Any) -> None:
    with pytest.raises(AwsError, match="starting key"):
        rows.call(
            "Query",
            IndexName="ByPlace",
            KeyConditionExpression="ip = :p AND #is < :a",
            ExpressionAttributeNames={"#is": "is"},
            ExpressionAttributeValues={":p": {"S": "I"}, ":a": {"N": "0"}},
            ExclusiveStartKey=start,
        )


def test_an_index_and_a_plain_read_may_lag_and_a_consistent_read_never_does(rows: Store) -> None:
    rows.service.lag = lambda table, index: 3 if index or table == "T" else 0
    place = {"ip": {"S": "I"}}
    moved = {":v": {"N": "9"}}
    rows.update(
        "SET ip = :i, #is = :v",
        ExpressionAttributeNames={"#is": "is"},
        ExpressionAttributeValues=moved | {":i": {"S": "I"}},
    )
    rows.call("DeleteItem", Key=KEY | {"s": {"N": "2"}})
    rows.put(6, **place, **{"is": {"N": "7"}})

    def seen() -> list[int]:
        return rows.keys("ip = :p", {":p": place["ip"]}, IndexName="ByPlace")

    assert seen() == [4, 2]
    assert rows.item(6) is None
    assert rows.item(1) == {"kept": {"N": "1"}, "left": {"S": "out"}}
    assert rows.call("GetItem", Key=KEY, ConsistentRead=True)["Item"]["ip"] == {"S": "I"}
    assert rows.keys("p = :p", P) == [1, 2, 3, 4, 5]
    assert rows.keys("p = :p", P, ConsistentRead=True) == [1, 3, 4, 5, 6]
    rows.service.lag = lambda table, index: 1
    assert seen() == [4, 1]
    rows.update("SET kept = :v", ExpressionAttributeValues=moved)
    rows.update("REMOVE kept")
    rows.service.lag = lambda table, index: 2
    assert rows.item(1)["kept"] == {"N": "1"}
    rows.service.lag = None
    assert seen() == [4, 6, 1]


def test_a_batch_and_a_scan_may_lag_too_unless_they_are_consistent(store: Store) -> None:
    for sort in (1, 2):
        store.put(sort, ip={"S": "I"}, **{"is": {"N": "1"}})
    store.service.lag = lambda table, index: 3
    store.put(3)
    store.call("DeleteItem", Key=KEY)
    store.update("SET kept = :v", ExpressionAttributeValues={":v": {"S": "late"}})
    asked = {"Keys": [KEY | {"s": {"N": str(sort)}} for sort in (1, 2, 3)]}

    def batch(**members: Any) -> list[dict[str, Any]]:
        answer = store.call("BatchGetItem", RequestItems={"T": asked | members})
        return list(answer["Responses"]["T"])

    def scan(**members: Any) -> list[dict[str, Any]]:
        return list(store.call("Scan", **members)["Items"])

    past = [(1, None), (2, None)]
    now = [(1, {"S": "late"}), (2, None), (3, None)]
    for found, expected in (
        (batch(), past),
        (scan(), past),
        (scan(IndexName="ByPlace"), past),
        (batch(ConsistentRead=True), now),
        (scan(ConsistentRead=True), now),
    ):
        assert [(int(item["s"]["N"]), item.get("kept")) for item in found] == expected


def test_an_index_is_never_consistent(rows: Store) -> None:
    with pytest.raises(AwsError, match="not supported on global"):
        rows.keys("ip = :p", {":p": {"S": "I"}}, IndexName="ByPlace", ConsistentRead=True)


def test_segments_of_a_scan_share_the_table(store: Store) -> None:
    for number in range(40):
        store.call("PutItem", Item={"p": {"S": f"P{number}"}, "s": {"N": "1"}})
    segments = [
        [
            item["p"]["S"]
            for page in _pages(store, "Scan", Segment=segment, TotalSegments=3, Limit=4)
            for item in page["Items"]
        ]
        for segment in range(3)
    ]
    assert all(segments)
    assert sorted(name for each in segments for name in each) == sorted(
        f"P{number}" for number in range(40)
    )


def test_a_projection_shows_only_what_was_asked(rows: Store) -> None:
    asked: Any = {"ProjectionExpression": "s, #k", "ExpressionAttributeNames": {"#k": "kept"}}
    assert rows.call("GetItem", Key=KEY, **asked)["Item"] == {"s": {"N": "1"}, "kept": {"N": "1"}}
    batch = rows.call(
        "BatchGetItem",
        RequestItems={"T": {"Keys": [KEY, KEY | {"s": {"N": "99"}}], **asked}},
    )
    assert batch["Responses"] == {"T": [{"s": {"N": "1"}, "kept": {"N": "1"}}]}


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
