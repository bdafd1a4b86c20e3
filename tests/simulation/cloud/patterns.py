"""Patterns of EventBridge's rules and of Lambda's event filters."""

from collections.abc import Mapping
from typing import Any

from tests.simulation.cloud.errors import Unsupported


def matches(pattern: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Whether every member of the pattern finds its match in the event."""
    for name, wanted in pattern.items():
        if name.startswith("$"):
            raise Unsupported(f"{name} in a pattern")
        if isinstance(wanted, Mapping):
            below = event.get(name)
            if not matches(wanted, below if isinstance(below, Mapping) else {}):
                return False
        elif not _any(wanted, name in event, event.get(name)):
            return False
    return True


def _any(options: list[Any], present: bool, value: Any) -> bool:
    found = value if isinstance(value, list) else [value]
    return any(_one(option, present, each) for option in options for each in found)


def _one(option: Any, present: bool, value: Any) -> bool:
    if not isinstance(option, Mapping):
        return present and type(value) is type(option) and bool(value == option)
    match dict(option):
        case {"prefix": str() as prefix, **rest} if not rest:
            return isinstance(value, str) and value.startswith(prefix)
        case {"exists": bool() as wanted, **rest} if not rest:
            return present is wanted
        case {"anything-but": list() as excluded, **rest} if not rest:
            return present and value not in excluded
        case {"anything-but": str() | int() as excluded, **rest} if not rest:
            return present and value != excluded
        case _:
            raise Unsupported(f"{option} in a pattern")
