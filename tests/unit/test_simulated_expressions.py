"""Conditions and updates of the simulator's DynamoDB, where the contract suites do not reach."""

from typing import Any

import pytest

from tests.simulation.cloud.errors import AwsError, Unsupported
from tests.unit.simulated_table import KEY, Store


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
