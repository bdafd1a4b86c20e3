"""Queries, scans and reads of the past, where the contract suites do not reach."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.cloud.errors import AwsError
from tests.unit.simulated_table import KEY, Store


@pytest.fixture
def store() -> Store:
    """Empty."""
    return Store()


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
