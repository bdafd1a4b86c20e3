"""The table of prices, strictly read, and bills that add up by hand."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from wakala.output import Problem
from wakala.price import BUNDLED, KEYS, NAMES, Prices, costs, read_prices, total

Change = Callable[[dict[str, Any]], object]

TABLE = json.loads(BUNDLED.read_text(encoding="utf-8"))
REGION = "eu-west-1"


def prices() -> Prices:
    """Made up, so that sums are easy: a dollar for a million of everything."""
    million = dict.fromkeys(KEYS, 1_000_000)
    return Prices(REGION, "2026-01-01", dict.fromkeys(KEYS, Decimal(1)), million)


@pytest.fixture
def table_of(tmp_path: Path) -> Callable[[Change], Path]:
    """Write the bundled table with a change to it."""

    def write(change: Change) -> Path:
        document = json.loads(BUNDLED.read_text(encoding="utf-8"))
        change(document)
        path = tmp_path / "prices.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("region", TABLE["regions"])
def test_the_bundled_table_has_every_price_of_each_of_its_regions(region: str) -> None:
    read = read_prices(BUNDLED, region)
    assert read.region == region
    assert read.date == TABLE["date"]
    assert set(read.prices) == set(read.per) == set(KEYS)
    # Lambda alone reads our streams, which is free; nothing else is.
    assert [key for key, price in read.prices.items() if not price] == ["dynamodb.stream_reads"]


def test_the_bundled_table_says_where_its_prices_are_from() -> None:
    named = " ".join(TABLE["source"])
    assert all(service in named for service in NAMES)


def test_a_bill_adds_up_by_hand() -> None:
    usage = {
        "lambda.requests": 2_500_000,  # at 0.20 a million: 0.50
        "lambda.gb_seconds": 31_000,  # at 0.0000133334 each: 0.4133354
        "apigateway.requests": 1_000_000,  # at 3.50 a million: 3.50
        "dynamodb.write_units": 8_000_000,  # at 0.705 a million: 5.64
        "dynamodb.stream_reads": 4_000_000,  # free
        "cloudwatch.log_gb": 1.5,  # at 0.57: 0.855
    }
    found = costs(usage, read_prices(BUNDLED, REGION))
    assert {cost.service: cost.dollars for cost in found} == {
        "Lambda": Decimal("0.9133354"),
        "API Gateway": Decimal("3.5"),
        "DynamoDB": Decimal("5.64"),
        "CloudWatch": Decimal("0.855"),
    }
    assert total(found) == Decimal("10.9083354")
    assert found[0].view() == {
        "service": "Lambda",
        "region": REGION,
        "date": TABLE["date"],
        "dollars": 0.9133,
        "lines": [
            {
                "key": "lambda.requests",
                "quantity": 2_500_000.0,
                "price": 0.2,
                "per": 1_000_000,
                "dollars": 0.5,
            },
            {
                "key": "lambda.gb_seconds",
                "quantity": 31_000.0,
                "price": 0.0000133334,
                "per": 1,
                "dollars": 0.4133,
            },
        ],
    }


def test_everything_that_is_used_is_on_the_bill_once() -> None:
    found = costs(dict.fromkeys(KEYS, 3_000_000.0), prices())
    assert [line.key for cost in found for line in cost.lines] == list(KEYS)
    assert [cost.service for cost in found] == list(NAMES)
    assert total(found) == 3 * len(KEYS)


def test_what_was_not_used_is_not_on_the_bill() -> None:
    assert costs({}, prices()) == ()


def test_cents_that_floats_would_lose_are_kept() -> None:
    found = costs(dict.fromkeys(("lambda.requests", "sqs.fifo_requests"), 100_000.1), prices())
    assert total(found) == Decimal("0.2000002")


def test_what_is_used_and_has_no_price_is_an_error_and_not_left_out() -> None:
    with pytest.raises(Problem, match=r"no price is known for s3\.requests, of which"):
        costs({"lambda.requests": 1, "s3.requests": 1}, prices())


def _without(document: dict[str, Any], *places: str) -> None:
    *objects, last = places
    for place in objects:
        document = document[place]
    del document[last]


def _with(document: dict[str, Any], value: object, *places: str) -> None:
    *objects, last = places
    for place in objects:
        document = document[place]
    document[last] = value


WHERE = ("regions", REGION, "sqs.fifo_requests")
NO_DOLLARS = f"regions.{REGION}.sqs.fifo_requests: must be a number of dollars, 0 or more"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda it: _without(it, *WHERE), f"regions.{REGION}: sqs.fifo_requests is missing"),
        (lambda it: _with(it, -0.5, *WHERE), NO_DOLLARS),
        (lambda it: _with(it, "0.50", *WHERE), NO_DOLLARS),
        (lambda it: _with(it, True, *WHERE), NO_DOLLARS),
        (lambda it: _with(it, None, *WHERE), NO_DOLLARS),
        (lambda it: _with(it, float("nan"), *WHERE), NO_DOLLARS),
        (lambda it: _with(it, 1e12, *WHERE), NO_DOLLARS),
        (
            lambda it: _with(it, 1, "regions", REGION, "sqs.fifo_request"),
            f"regions.{REGION}: sqs.fifo_request is nothing that is billed",
        ),
        (
            lambda it: _with(it, [], "regions", "us-east-1"),
            "regions.us-east-1: must be an object, each of its members once",
        ),
        (
            lambda it: _with(it, 0, "per", "lambda.requests"),
            "per.lambda.requests: must be a whole number of units, 1 or more",
        ),
        (
            lambda it: _with(it, 1.5, "per", "lambda.requests"),
            "per.lambda.requests: must be a whole number of units, 1 or more",
        ),
        (lambda it: _without(it, "per"), "the document: per is missing"),
        (lambda it: _without(it, "date"), "the document: date is missing"),
        (lambda it: _with(it, "August", "date"), "date: must be a day such as 2026-08-16"),
        (
            lambda it: _with(it, "EUR", "currency"),
            "currency: must be USD, as everything is shown in dollars",
        ),
        (
            lambda it: _without(it, "regions", REGION),
            f"no prices of {REGION}: there are those of eu-central-1, us-east-1",
        ),
    ],
)
def test_a_table_that_is_not_whole_gets_one_line(
    change: Change, line: str, table_of: Callable[[Change], Path]
) -> None:
    path = table_of(change)
    with pytest.raises(Problem) as caught:
        read_prices(path, REGION)
    assert str(caught.value) == f"{path}: {line}"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{", "is no JSON document"),
        ("[]", "the document: must be an object, each of its members once"),
        ('{"date": 1, "date": 2}', "the document: must be an object, each of its members once"),
    ],
)
def test_a_table_of_another_form_gets_one_line(text: str, line: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(Problem) as caught:
        read_prices(path, REGION)
    assert str(caught.value) == f"{path}: {line}"


def test_a_table_that_is_not_there_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"absent\.json: cannot be read: No such file or directory$"):
        read_prices(tmp_path / "absent.json", REGION)
