"""What may be shown of a body to everybody: enough to know it by, nothing personal."""

import re
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

from wallet_ledger import strict_json
from wallet_ledger.errors import InvalidMessage

PREVIEW_LENGTH_MAX = 400
SHOWN_NUMBER_MAX = 10**6
"""Shorter than any phone with its country: a phone in the place of an amount is not shown."""
_DIGITS_MAX = 6
"""In a shown text; a phone has seven at least, whatever stands between them."""

# Members whose values we chose or checked ourselves. Ids of others are shown without their digits,
# since people put phone numbers into them; of all the rest only the name.
_SHOWN = frozenset("kind agentId source currency status detail-type".split())
_NUMBERS = frozenset("v amountMinor amount attempt schemaVersion".split())
_TIMES = frozenset("capturedAt time".split())
_WITHOUT_DIGITS = frozenset("idempotencyKey id refundId creditId requestId requestedBy".split())
_OPENED = "detail"
_KNOWN = _SHOWN | _NUMBERS | _TIMES | _WITHOUT_DIGITS | {_OPENED, "phone"}
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?(\.[0-9]{1,6})?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
)
_KINDS = {
    list: "a list",
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}


def preview(body: str) -> str:
    """At most 400 characters of a body, masked.

    Phones keep their last three digits. A body that is no JSON object tells what it is and how
    long: its words may be anybody's, or a name.
    """
    try:
        document = strict_json.read(body)
    except InvalidMessage:
        return f"{len(body)} characters, no JSON"
    if isinstance(document, dict):
        return printable(_members(document, _detail))[:PREVIEW_LENGTH_MAX]
    return f"{len(body)} characters of JSON, {_KINDS.get(type(document), 'odd')}"


def shown(text: str) -> str:
    """A text of at most 64 characters, without its digits where they may be those of a phone."""
    digits = sum(char.isnumeric() for char in text)
    return text[:64] if digits <= _DIGITS_MAX else without_digits(text)[:64]


def masked_phone(phone: str) -> str:
    """A phone of which the last three digits are left."""
    return f"…{phone[-3:]}" if len(phone) > 5 else "…"


def without_digits(text: str) -> str:
    """The text with a dot in place of each digit, of whatever alphabet."""
    return "".join("•" if char.isnumeric() else char for char in text)


def printable(text: str) -> str:
    """The text with a space for each character that no terminal, log or table should get."""
    return "".join(char if char.isprintable() else " " for char in text)


def _members(members: Mapping[str, Any], value_of: Callable[[str, Any], str]) -> str:
    listed = (f"{_name(name)}: {value_of(name, members[name])}" for name in members)
    return "{" + ", ".join(listed) + "}"


def _name(name: str) -> str:
    return name if name in _KNOWN else without_digits(name)[:24]


def _detail(name: str, value: Any) -> str:
    """The members of an event's detail are shown as its own are, but no deeper ones."""
    if name == _OPENED and isinstance(value, dict):
        return _members(value, _value)
    return _value(name, value)


def _value(name: str, value: Any) -> str:
    match value:
        case str() if name == "phone":
            return masked_phone(value)
        case str() if name in _WITHOUT_DIGITS:
            return without_digits(value)[:64]
        case str() if name in _SHOWN:
            return shown(value)
        case str() if name in _TIMES and _TIME.fullmatch(value):
            return value
        case int() if name in _NUMBERS and abs(value) < SHOWN_NUMBER_MAX:
            return str(value)
        case _:
            return "…"
