"""What AWS was called, and what that consumed, told for an account of it: it decides nothing.

A call that the SDK tried again by itself is told once, and one that got no answer not at all,
though AWS may have billed each try.
"""

from collections.abc import Callable, Mapping
from typing import Any

type Called = Callable[[str, Mapping[str, float]], None]
"""Told the operation of each call, and its units by table or index (`OfflineTx/OpenTx`)."""

_READ_NO_INDEX = frozenset({"GetItem", "TransactGetItems"})
_REFUSED_UNITS = {"ConditionalCheckFailedException": 1.0, "TransactionCanceledException": 2.0}
"""What is billed for each item of a write that was refused, and not told: items are below 1 KB."""


def watched[Client](client: Client, on_call: Called) -> Client:
    """The client itself; from now on each of its calls is told once it is answered."""
    meta: Any = client.meta  # type: ignore[attr-defined]  # every client of botocore has it
    meta.events.register("before-parameter-build", _ask_and_note)
    meta.events.register("after-call", _tell_call(on_call))
    return client


def _ask_and_note(params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
    """Ask what each index consumes; note the tables of a write, whose refusal names none."""
    if "ReturnConsumedCapacity" in model.input_shape.members:
        params["ReturnConsumedCapacity"] = "INDEXES"
    writes = [write for item in params.get("TransactItems", ()) for write in item.values()]
    context["tables"] = [w["TableName"] for w in writes or [params] if "TableName" in w]


def _tell_call(on_call: Called) -> Callable[..., None]:
    def tell(parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        units: dict[str, float] = {}
        refused = _REFUSED_UNITS.get(parsed.get("Error", {}).get("Code", ""))
        if refused is not None:
            for table in context["tables"]:
                units[table] = units.get(table, 0.0) + refused
        consumed = parsed.get("ConsumedCapacity", [])
        for each in consumed if isinstance(consumed, list) else [consumed]:
            units |= _units_of_parts(each, has_indexes=model.name not in _READ_NO_INDEX)
        on_call(f"{model.service_model.service_name}.{model.name}", units)

    return tell


def _units_of_parts(consumed: Mapping[str, Any], *, has_indexes: bool) -> dict[str, float]:
    """The units of a table's call by where they went, nothing left out and nothing at zero."""
    table = consumed["TableName"]
    indexes = consumed.get("GlobalSecondaryIndexes", {}) if has_indexes else {}
    units = {f"{table}/{name}": float(each["CapacityUnits"]) for name, each in indexes.items()}
    units[table] = float(consumed["CapacityUnits"]) - sum(units.values())
    return {name: each for name, each in units.items() if each}
