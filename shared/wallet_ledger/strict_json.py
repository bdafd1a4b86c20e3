"""JSON as money needs it: what a lenient reader would guess at is an error here."""

import json
from typing import Any

from wallet_ledger.errors import InvalidMessage

_INT_DIGITS_MAX = 19


class NotStrict:
    """Stands where the text held something that JSON readers disagree on.

    It is no dict, list, string or number, so whatever validates the document refuses the place
    it stands in, and only that place: one bad item of a batch spoils no other.
    """

    def __init__(self, what: str) -> None:
        self.what = what


def read(text: str) -> Any:
    """The document, with `NotStrict` in place of repeated members, NaN, and endless integers.

    Raises `InvalidMessage` where the text is not JSON at all.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_members,
            parse_constant=lambda name: NotStrict(f"{name} is not a JSON number"),
            parse_int=_integer,
        )
    except (ValueError, RecursionError) as error:
        raise InvalidMessage("the body is not a JSON document") from error


def _members(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    if len(members) != len(pairs):
        return NotStrict("a member occurs twice in one object")
    return members


def _integer(digits: str) -> Any:
    if len(digits) > _INT_DIGITS_MAX:
        return NotStrict("an integer has more than 19 digits")
    return int(digits)
