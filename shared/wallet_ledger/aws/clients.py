"""How AWS is called, and which of its errors pass.

Clients come from botocore: `import boto3` also loads its resource layer, which nothing here uses
and every cold start would pay for.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
)
from botocore.exceptions import (
    ConnectionError as AwsConnectionError,
)

from wallet_ledger.errors import Unavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_events import EventBridgeClient
    from mypy_boto3_sqs import SQSClient

ATTEMPTS = 2
"""Of one call: every caller has a redelivery behind it."""

TRANSIENT_CODES = frozenset(
    {
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
        "ThrottlingError",
        "ThrottlingException",
        "Throttling",
        "RequestThrottled",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "InternalServerError",
        "InternalFailure",
        "InternalException",
        "ServiceUnavailable",
        "OverLimit",
        "ReplicatedWriteConflictException",
    }
)
"""Cancellation reasons and error codes for which the same call may succeed a moment later."""

CONDITION_FAILED = "ConditionalCheckFailedException"
"""Compared by code: a client builds its exception classes lazily, and not safely for threads."""

CONFLICT_TRIES = 4
"""Tries of a plain write whose item is part of a transaction under way; some 100 ms in all."""

type Consumed = Callable[[str, float], None]
"""Told the metric (`ConsumedReadUnits` or `ConsumedWriteUnits`) and the units of each call."""

type Called = Callable[[str, Mapping[str, float]], None]
"""Told the operation of each call, and its units by table or index (`OfflineTx/OpenTx`)."""

_READS = frozenset({"GetItem", "Query", "TransactGetItems"})
_READ_NO_INDEX = frozenset({"GetItem", "TransactGetItems"})
_REFUSED_UNITS = {CONDITION_FAILED: 1.0, "TransactionCanceledException": 2.0}
"""What is billed for each item of a write whose condition failed, and not told: items are below
1 KB."""


def dynamodb(on_consumed: Consumed, *, attempts: int = ATTEMPTS) -> "DynamoDBClient":
    """A DynamoDB client that reports what each call consumed.

    A plain write that meets a transaction on its item is tried again, which no SDK does by itself.
    """
    client: DynamoDBClient = _create("dynamodb", attempts)
    for write in ("PutItem", "UpdateItem"):
        client.meta.events.register(f"needs-retry.dynamodb.{write}", _after_conflict)  # type: ignore[arg-type]
    client.meta.events.register("before-parameter-build.dynamodb", _ask_for_consumption)
    client.meta.events.register("after-call.dynamodb", _report_consumption(on_consumed))
    return client


def sqs(*, attempts: int = ATTEMPTS) -> "SQSClient":
    """An SQS client."""
    client: SQSClient = _create("sqs", attempts)
    return client


def events() -> "EventBridgeClient":
    """An EventBridge client."""
    client: EventBridgeClient = _create("events")
    return client


def watched[Client](client: Client, on_call: Called) -> Client:
    """The client itself; from now on each of its calls is told once it is answered."""
    meta: Any = client.meta  # type: ignore[attr-defined]  # every client of botocore has it
    meta.events.register("before-parameter-build.dynamodb", _ask_for_consumption)
    meta.events.register("before-parameter-build", _note_tables)
    meta.events.register("after-call", _tell_call(on_call))
    return client


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed a moment later, or may even have succeeded already."""
    if isinstance(error, ClientError):
        metadata = error.response.get("ResponseMetadata", {})
        if metadata.get("HTTPStatusCode", 0) >= 500:
            return True
        return not TRANSIENT_CODES.isdisjoint({error_code(error), *cancellation_codes(error)})
    return isinstance(error, AwsConnectionError | HTTPClientError)


def error_code(error: Exception) -> str:
    """The code of an AWS error, or the class of a connection error; never its message."""
    if isinstance(error, ClientError):
        return str(error.response["Error"].get("Code", "Unknown"))
    return type(error).__name__


def cancellation_codes(error: Exception) -> tuple[str, ...]:
    """Why a transaction was cancelled, a code for each of its items; empty for other errors."""
    response: Any = error.response if isinstance(error, ClientError) else {}
    reasons = response.get("CancellationReasons", ())
    return tuple(str(reason.get("Code", "None")) for reason in reasons)


@contextmanager
def passing_errors() -> Iterator[None]:
    """Turn an AWS error that passes into `Unavailable`; let any other through."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        if is_transient(error):
            raise Unavailable(error_code(error)) from error
        raise


def _create(service: str, attempts: int = ATTEMPTS) -> Any:
    return botocore.session.get_session().create_client(
        service,
        config=Config(
            # Pinned: the default mode and attempts differ between SDK versions.
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=1,
            read_timeout=2,
            max_pool_connections=16,
        ),
    )


def _after_conflict(response: Any, attempts: int, **_: Any) -> float | None:
    """How long botocore waits before it tries again; None leaves it to its own rules."""
    code = response[1].get("Error", {}).get("Code") if response is not None else None
    if code != "TransactionConflictException" or attempts >= CONFLICT_TRIES:
        return None
    return random.uniform(0, 0.02 * 2**attempts)


def _ask_for_consumption(params: dict[str, Any], model: Any, **_: Any) -> None:
    if "ReturnConsumedCapacity" in model.input_shape.members:
        params.setdefault("ReturnConsumedCapacity", "INDEXES")


def _report_consumption(on_consumed: Consumed) -> Callable[..., None]:
    def report(parsed: dict[str, Any], model: Any, **_: Any) -> None:
        name = "ConsumedReadUnits" if model.name in _READS else "ConsumedWriteUnits"
        for table in _consumed(parsed):
            on_consumed(name, float(table.get("CapacityUnits", 0)))

    return report


def _note_tables(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """The table of each item of a write, for one that is refused: its answer names none."""
    writes = [write for item in params.get("TransactItems", ()) for write in item.values()]
    context["tables"] = [w["TableName"] for w in writes or [params] if "TableName" in w]


def _tell_call(on_call: Called) -> Callable[..., None]:
    def tell(parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        units: dict[str, float] = {}
        refused = _REFUSED_UNITS.get(parsed.get("Error", {}).get("Code", ""))
        if refused is not None:
            for table in context["tables"]:
                units[table] = units.get(table, 0.0) + refused
        for consumed in _consumed(parsed):
            units |= _units_of_parts(consumed, has_indexes=model.name not in _READ_NO_INDEX)
        on_call(f"{model.service_model.service_name}.{model.name}", units)

    return tell


def _consumed(parsed: dict[str, Any]) -> list[dict[str, Any]]:
    """What a call consumed, of each table."""
    consumed = parsed.get("ConsumedCapacity", [])
    return consumed if isinstance(consumed, list) else [consumed]


def _units_of_parts(consumed: Mapping[str, Any], *, has_indexes: bool) -> dict[str, float]:
    """The units of a table's call by where they went, nothing left out and nothing at zero."""
    table = consumed["TableName"]
    indexes = consumed.get("GlobalSecondaryIndexes", {}) if has_indexes else {}
    units = {f"{table}/{name}": float(each["CapacityUnits"]) for name, each in indexes.items()}
    units[table] = float(consumed["CapacityUnits"]) - sum(units.values())
    return {name: each for name, each in units.items() if each}
