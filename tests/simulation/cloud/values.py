"""DynamoDB's attribute values as they stand in its JSON: `{"S": "text"}`, `{"N": "12"}`.

A value is kept in one canonical form, so that equal values are equal objects. It is never changed
once it is made.
"""

from base64 import b64decode
from collections.abc import Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from tests.simulation.cloud.errors import Json, invalid

DIGITS_MAX = 38
_EXACT = Context(prec=200)
_SETS = {"SS": "S", "NS": "N", "BS": "B"}

type Comparable = str | bytes | int | Decimal


def canonical(value: Json) -> Json:
    """The one form of a value. Raises for what is none."""
    if len(value) != 1:
        raise invalid(
            "Supplied AttributeValue is empty or has more than one datatypes set, "
            "must contain exactly one of the supported datatypes"
        )
    [(kind, content)] = value.items()
    match kind:
        case "S" | "BOOL" | "B":
            return value
        case "N":
            number = canonical_number(content)
            return value if number == content else {"N": number}
        case "M":
            return {"M": canonical_item(content)}
        case "L":
            return {"L": [canonical(each) for each in content]}
        case "SS" | "NS" | "BS":
            return {kind: _canonical_set(kind, content)}
        case "NULL":
            if content is not True:
                raise invalid("One or more parameter values were invalid: Null attribute value")
            return value
        case _:
            raise invalid("Supplied AttributeValue is empty")


def canonical_item(item: Mapping[str, Json]) -> Json:
    """Each of its values in the one form."""
    return {name: canonical(value) for name, value in item.items()}


def canonical_number(text: str) -> str:
    """Digits without exponent, leading zeros or trailing zeros; 38 of them at most."""
    if text.isascii() and text.isdecimal() and text[0] != "0" and len(text) <= DIGITS_MAX:
        return text
    try:
        number = Decimal(text).normalize(_EXACT)
    except InvalidOperation:
        raise invalid("The parameter cannot be converted to a numeric value") from None
    if not number.is_finite() or text != text.strip() or "_" in text:
        raise invalid("The parameter cannot be converted to a numeric value")
    if not number:
        return "0"
    if len(number.as_tuple().digits) > DIGITS_MAX:
        raise invalid("Attempting to store more than 38 significant digits in a Number")
    if not -130 <= number.adjusted() <= 125:
        raise invalid("Number overflow. Attempting to store a number out of the supported range")
    return format(number, "f")


def number_of(value: Json) -> int | Decimal:
    """What an `N` stands for."""
    text: str = value["N"]
    return int(text) if text.lstrip("-").isdecimal() else Decimal(text)


def number_value(number: int | Decimal) -> Json:
    """An `N`."""
    return {"N": canonical_number(str(number))}


def kind_of(value: Json) -> str:
    """S, N, B, BOOL, NULL, L, M, SS, NS or BS."""
    return next(iter(value))


def comparable(value: Json) -> Comparable:
    """What orders values of one of the kinds that have an order."""
    kind = kind_of(value)
    if kind == "S":
        text: str = value["S"]  # code points sort as their UTF-8 does
        return text
    return number_of(value) if kind == "N" else b64decode(value["B"])


def size_of(value: Json) -> int:
    """Bytes that a value takes of an item's 400 KB."""
    [(kind, content)] = value.items()
    match kind:
        case "S":
            return len(str(content).encode())
        case "N":
            digits = str(content).replace(".", "").lstrip("-").strip("0")
            return (len(digits) + 1) // 2 + (2 if "-" in content else 1)
        case "B":
            return len(b64decode(content))
        case "L":
            return 3 + sum(1 + size_of(each) for each in content)
        case "M":
            return 3 + len(content) + item_size(content)
        case "SS" | "NS" | "BS":
            return sum(size_of({_SETS[kind]: each}) for each in content)
        case _:
            return 1


def item_size(item: Mapping[str, Json]) -> int:
    """Bytes of an item: its names and its values."""
    return sum(len(name.encode()) + size_of(value) for name, value in item.items())


def length_of(value: Json) -> int | None:
    """What `size()` says of it, None where it says nothing."""
    [(kind, content)] = value.items()
    match kind:
        case "S":
            return len(str(content).encode())
        case "B":
            return len(b64decode(content))
        case "L" | "M" | "SS" | "NS" | "BS":
            return len(list(content))
        case _:
            return None


def contains(value: Json, wanted: Json) -> bool:
    """A part of a text, a member of a set or of a list."""
    [(kind, content)] = value.items()
    [(wanted_kind, part)] = wanted.items()
    match kind:
        case "S":
            return wanted_kind == "S" and part in content
        case "B":
            return wanted_kind == "B" and b64decode(part) in b64decode(content)
        case "SS" | "NS" | "BS":
            return wanted_kind == _SETS[kind] and part in content
        case "L":
            return wanted in content
        case _:
            return False


def begins_with(value: Json, wanted: Json) -> bool:
    """A text by a text, bytes by bytes."""
    kind = kind_of(value)
    if kind != kind_of(wanted):
        return False
    if kind == "S":
        return bool(value["S"].startswith(wanted["S"]))
    return kind == "B" and b64decode(value["B"]).startswith(b64decode(wanted["B"]))


def union(value: Json, more: Json) -> Json:
    """A set with the members of another of its kind."""
    [(kind, content)] = value.items()
    return {kind: _sorted(kind, {*content, *more[kind]})}


def difference(value: Json, less: Json) -> Json | None:
    """A set without the members of another of its kind; None where nothing is left."""
    [(kind, content)] = value.items()
    left = set(content) - set(less[kind])
    return {kind: _sorted(kind, left)} if left else None


def as_python(value: Json) -> Json:
    """A copy as botocore hands it out: bytes are bytes."""
    [(kind, content)] = value.items()
    match kind:
        case "B":
            return {"B": b64decode(content)}
        case "M":
            return {"M": item_as_python(content)}
        case "L":
            return {"L": [as_python(each) for each in content]}
        case "BS":
            return {"BS": [b64decode(each) for each in content]}
        case "SS" | "NS":
            return {kind: [*content]}
        case _:
            return {kind: content}


def item_as_python(item: Mapping[str, Json]) -> Json:
    """A copy of an item as botocore hands it out."""
    return {name: as_python(value) for name, value in item.items()}


def _canonical_set(kind: str, members: list[str]) -> list[Any]:
    if not members:
        raise invalid("One or more parameter values were invalid: An string set  may not be empty")
    known = {canonical_number(each) for each in members} if kind == "NS" else set(members)
    if len(known) != len(members):
        raise invalid("One or more parameter values were invalid: Input collection has duplicates")
    return _sorted(kind, known)


def _sorted(kind: str, members: set[str]) -> list[str]:
    return sorted(members, key=Decimal if kind == "NS" else str)
