"""What may be shown of a body to everybody: enough to know it by, nothing personal."""

import re
from collections.abc import Mapping
from typing import Any

from wallet_ledger import strict_json
from wallet_ledger.errors import InvalidMessage

PREVIEW_LENGTH_MAX = 400
SHOWN_NUMBER_MAX = 10**8
"""Shorter than any phone: a number in the wrong member is not shown."""
_UNREAD_LENGTH_MAX = 80

# Members whose values we chose or checked ourselves. Ids of others are shown without their digits,
# since people put phone numbers into them; of all the rest only the name.
_SHOWN = frozenset(
    "v kind agentId source amountMinor amount currency attempt capturedAt status detail-type"
    " schemaVersion time".split()
)
_WITHOUT_DIGITS = frozenset("idempotencyKey id refundId creditId requestId requestedBy".split())
_OPENED = frozenset({"detail"})
_OPAQUE = re.compile(r"[A-Za-z0-9+/=_-]{24,}")


def preview(body: str) -> str:
    """At most 400 characters of a body, masked.

    Phones keep their last three digits. A body that is no JSON object shows its beginning without
    a digit, and without anything that may be encoded.
    """
    try:
        document = strict_json.read(body)
    except InvalidMessage:
        document = None
    if isinstance(document, dict):
        return _members(document)[:PREVIEW_LENGTH_MAX]
    start = _OPAQUE.sub("…", body[: _UNREAD_LENGTH_MAX * 2])[:_UNREAD_LENGTH_MAX]
    shown = "".join(char if char.isprintable() else " " for char in without_digits(start))
    return f"{len(body)} characters, no JSON object: {shown}"


def masked_phone(phone: str) -> str:
    """A phone of which the last three digits are left."""
    return f"…{phone[-3:]}" if len(phone) > 5 else "…"


def without_digits(text: str) -> str:
    """The text with a dot in place of each digit, of whatever alphabet."""
    return "".join("•" if char.isnumeric() else char for char in text)


def _members(members: Mapping[str, Any]) -> str:
    return (
        "{" + ", ".join(f"{_name(name)}: {_value(name, members[name])}" for name in members) + "}"
    )


def _name(name: str) -> str:
    known = name in _SHOWN | _WITHOUT_DIGITS | _OPENED | {"phone"}
    return name if known else without_digits(name)[:24]


def _value(name: str, value: Any) -> str:
    match value:
        case dict() if name in _OPENED:
            return _members(value)
        case str() if name == "phone":
            return masked_phone(value)
        case str() if name in _WITHOUT_DIGITS:
            return without_digits(value)[:64]
        case str() | int() if name in _SHOWN and _is_plain(name, value):
            return str(value)
        case _:
            return "…"


def _is_plain(name: str, value: str | int) -> bool:
    """Whether a value is of the kind that its name stands for, and not a phone in its place."""
    if name in {"capturedAt", "time"}:
        return isinstance(value, str) and "T" in value and len(value) <= 40
    if isinstance(value, str):
        return len(value) <= 64 and not re.search(r"\d[\d\s().+-]{5,}\d", value)
    return abs(value) < SHOWN_NUMBER_MAX
