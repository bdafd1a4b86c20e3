"""What a million transactions cost on AWS: what is billed, times a dated table one can edit.

Money is exact (`Decimal`) and in dollars; whoever shows it rounds, to the cent, and rounds no sum's
parts before they are added.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from wakala.output import Problem
from wallet_ledger import strict_json
from wallet_ledger.errors import InvalidMessage

BUNDLED = Path(__file__).with_name("prices.json")
"""The table that comes with the command."""

NAMES: Mapping[str, Mapping[str, str]] = {
    "Lambda": {
        "lambda.requests": "requests",
        "lambda.gb_seconds": "GB-seconds, arm64",
    },
    "API Gateway": {"apigateway.requests": "requests, REST"},
    "SQS": {
        "sqs.fifo_requests": "FIFO requests",
        "sqs.standard_requests": "standard requests",
    },
    "DynamoDB": {
        "dynamodb.write_units": "write units, on demand",
        "dynamodb.read_units": "read units, on demand",
        "dynamodb.stream_reads": "reads of a stream, by Lambda",
    },
    "EventBridge": {"eventbridge.events": "custom events"},
    "CloudWatch": {
        "cloudwatch.log_gb": "GB of logs",
        "cloudwatch.metric_months": "metrics, a month each",
    },
}
"""Whatever is billed: by service, the keys of the table and what each counts."""

KEYS = tuple(key for names in NAMES.values() for key in names)


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of one region on a date: dollars for as many units as `per` says, by key."""

    region: str
    date: str
    prices: Mapping[str, Decimal]
    per: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a bill: `quantity` of what is billed, at `price` dollars for each `per` of it."""

    key: str
    name: str
    quantity: Decimal
    price: Decimal
    per: int

    @property
    def dollars(self) -> Decimal:
        """What the line comes to."""
        return self.quantity * self.price / self.per


@dataclass(frozen=True, slots=True)
class Cost:
    """What a service costs for a million transactions, in a region's prices of a date."""

    service: str
    region: str
    date: str
    lines: tuple[Line, ...]

    @property
    def dollars(self) -> Decimal:
        """What the lines come to together."""
        return total(self.lines)

    def view(self) -> dict[str, Any]:
        """What scripts get; dollars to the hundredth of a cent."""
        return {
            "service": self.service,
            "region": self.region,
            "date": self.date,
            "dollars": _rounded(self.dollars),
            "lines": [
                {
                    "key": line.key,
                    "quantity": float(line.quantity),
                    "price": float(line.price),
                    "per": line.per,
                    "dollars": _rounded(line.dollars),
                }
                for line in self.lines
            ],
        }


def costs(usage: Mapping[str, float], prices: Prices) -> tuple[Cost, ...]:
    """What is billed for a million transactions (`usage`, by key), by service; dollars.

    Problem for something used that has no price: it is never left out of the sum.
    """
    unpriced = sorted(usage.keys() - prices.prices.keys())
    if unpriced:
        raise Problem(f"no price is known for {', '.join(unpriced)}, of which the replay used some")
    found = []
    for service, names in NAMES.items():
        lines = tuple(
            Line(key, name, Decimal(str(usage[key])), prices.prices[key], prices.per[key])
            for key, name in names.items()
            if key in usage
        )
        if lines:
            found.append(Cost(service, prices.region, prices.date, lines))
    return tuple(found)


def total(parts: Iterable[Line | Cost]) -> Decimal:
    """What they come to together, dollars."""
    return sum((part.dollars for part in parts), start=Decimal(0))


def read_prices(path: Path, region: str) -> Prices:
    """The prices of `region` in a table. Problem, in one line, for a table that is not whole."""
    try:
        document = strict_json.read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Problem(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, InvalidMessage) as error:
        raise Problem(f"{path}: is no JSON document") from error
    members = _members(path, "the document", document, ("currency", "date", "per", "regions"))
    if members["currency"] != "USD":
        raise Problem(f"{path}: currency: must be USD, as everything is shown in dollars")
    per = _members(path, "per", members["per"], KEYS, others=False)
    regions = _members(path, "regions", members["regions"], ())
    found = {name: _region(path, name, each) for name, each in regions.items()}
    if region not in found:
        known = ", ".join(sorted(found)) or "none"
        raise Problem(f"{path}: no prices of {region}: there are those of {known}")
    return Prices(
        region,
        _date(path, members["date"]),
        found[region],
        {key: _units(path, f"per.{key}", value) for key, value in per.items()},
    )


def _region(path: Path, name: str, value: object) -> dict[str, Decimal]:
    members = _members(path, f"regions.{name}", value, KEYS, others=False)
    return {key: _price(path, f"regions.{name}.{key}", each) for key, each in members.items()}


def _members(
    path: Path, place: str, value: object, wanted: tuple[str, ...], *, others: bool = True
) -> dict[str, Any]:
    """An object with all that is wanted, and with `others` only where they may be."""
    if not isinstance(value, dict):
        raise Problem(f"{path}: {place}: must be an object, each of its members once")
    missing = [key for key in wanted if key not in value]
    if missing:
        raise Problem(f"{path}: {place}: {', '.join(missing)} is missing")
    unknown = sorted(value.keys() - set(wanted))
    if unknown and not others:
        raise Problem(f"{path}: {place}: {', '.join(unknown)} is nothing that is billed")
    return value


def _price(path: Path, place: str, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise Problem(f"{path}: {place}: must be a number of dollars, 0 or more")
    return Decimal(str(value))


def _units(path: Path, place: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Problem(f"{path}: {place}: must be a whole number of units, 1 or more")
    return value


def _date(path: Path, value: object) -> str:
    try:
        return datetime.date.fromisoformat(str(value)).isoformat()
    except ValueError as error:
        raise Problem(f"{path}: date: must be a day such as 2026-08-16") from error


def _rounded(dollars: Decimal) -> float:
    return float(round(dollars, 4))
