"""How AWS is called, and which of its errors pass.

Clients come from botocore: `import boto3` also loads its resource layer, which nothing here uses
and every cold start would pay for.
"""

import random
from collections.abc import Callable, Iterator
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
            # AWS checks the same again; here it is a quarter of what a group of ten costs to send.
            # tests/fakes/wire.py checks it of every request of the unit tests.
            parameter_validation=False,
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
        params.setdefault("ReturnConsumedCapacity", "TOTAL")


def _report_consumption(on_consumed: Consumed) -> Callable[..., None]:
    def report(parsed: dict[str, Any], model: Any, **_: Any) -> None:
        consumed = parsed.get("ConsumedCapacity", [])
        reads = model.name in {"GetItem", "Query", "TransactGetItems"}
        for table in consumed if isinstance(consumed, list) else [consumed]:
            name = "ConsumedReadUnits" if reads else "ConsumedWriteUnits"
            on_consumed(name, float(table.get("CapacityUnits", 0)))

    return report
