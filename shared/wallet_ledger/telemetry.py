"""Logs, metrics and traces: the only module that knows Powertools and the X-Ray SDK.

Nothing personal goes through here: no phone, no payload, no token, and no idempotency key, since
agents put phones into theirs. A transaction is logged by `transaction_ref`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from threading import Lock
from traceback import extract_tb, walk_tb
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit, single_metric

logger = Logger(log_uncaught_exceptions=False)
"""Structured JSON lines; the service's name and level come from `POWERTOOLS_*`."""

metrics = Metrics()
"""CloudWatch EMF: metrics are log lines, flushed once at the end of an invocation."""

PACKAGES = frozenset({"ingest", "reconcile", "refund", "relay", "triage", "wallet_ledger"})
"""Whose code is ours."""

_dimensions = {"stage": os.environ.get("STAGE", "none")}
metrics.set_default_dimensions(**_dimensions)

_lock = Lock()
_calls: dict[str, dict[str, Any]] = {}
_UNITS = {"Ms": MetricUnit.Milliseconds, "Seconds": MetricUnit.Seconds}


def count(name: str, value: float = 1) -> None:
    """Add to a metric; the unit is read off the end of its name, default a count."""
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), None)
    with _lock:  # reconcile counts from the threads of its phones
        metrics.add_metric(name=name, unit=unit or MetricUnit.Count, value=value)


def called(operation: str, units: Mapping[str, float]) -> None:
    """Note an AWS call of this invocation, and what it consumed by table or index.

    What an invocation called is in its last log line as `awsCalls`, and no metric: by operation,
    table and index it would be dozens of them, each billed by the month.
    """
    with _lock:
        noted = _calls.setdefault(operation, {"count": 0, "units": {}})
        noted["count"] += 1
        for name, number in units.items():
            noted["units"][name] = noted["units"].get(name, 0.0) + number


def count_by(name: str, dimension: str, value: str, number: float = 1) -> None:
    """Add to a metric that has a dimension of its own, such as failures by reason."""
    unit = MetricUnit.Count
    with single_metric(name, unit, number, default_dimensions=_dimensions) as metric:
        metric.add_dimension(name=dimension, value=value)


def log_failure(message: str, error: Exception, **named: str) -> None:
    """Log an error that nobody expected: its class and where it went through, never its text.

    `named` says what it was about, by ids that are nobody's.
    """
    places = [f"{f.filename}:{f.lineno} {f.name}" for f in extract_tb(error.__traceback__)]
    logger.critical(message, extra={**named, "errorType": type(error).__name__, "places": places})


def place_of(error: Exception) -> str:
    """Where in our own code an error came up, as `file.py function`; empty where nowhere in it.

    Not where a library raised it, which many errors share, and without the line, which every
    deployment moves: letters of one bug are one group, and those of two bugs are two.
    """
    place = ""
    for frame, _ in walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).partition(".")[0] in PACKAGES:
            place = f"{PurePath(frame.f_code.co_filename).name} {frame.f_code.co_name}"
    return place


class HandlerFailed(Exception):
    """What Lambda is told when a handler raises: the class of the error, never its text."""


def instrumented[Event, Answer](
    handle: Callable[[Event, Any], Answer],
) -> Callable[[Event, Any], Answer]:
    """A Lambda handler with its metrics flushed, its request id in each log line, and traced.

    An error is logged as class and places and raised as `HandlerFailed`: Lambda prints whatever
    is raised, and the text of a foreign error may hold what it choked on.
    """
    _trace_aws_calls()

    def handler(event: Event, context: Any) -> Answer:
        logger.append_keys(requestId=getattr(context, "aws_request_id", None))
        try:
            return handle(event, context)
        except Exception as error:
            log_failure("handler failed", error)
            raise HandlerFailed(type(error).__name__) from None
        finally:
            _flush()

    return handler


def in_current_trace[**Arguments, Answer](
    call: Callable[Arguments, Answer],
) -> Callable[Arguments, Answer]:
    """`call` for another thread, its AWS calls shown in the trace of this one."""
    if not _tracing():
        return call
    from aws_xray_sdk.core import xray_recorder

    entity = xray_recorder.get_trace_entity()

    def traced(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        xray_recorder.set_trace_entity(entity)
        return call(*args, **kwargs)

    return traced


def _flush() -> None:
    """The metrics of an invocation as a line, and with it the calls; a line of theirs if alone."""
    with _lock:
        calls = dict(_calls)
        _calls.clear()
    if metrics.metric_set:
        if calls:
            metrics.add_metadata("awsCalls", calls)
        metrics.flush_metrics()
    elif calls:
        logger.info("called AWS", extra={"awsCalls": calls})


def _trace_aws_calls() -> None:
    # The SDK costs a cold start 0.4 to 0.7 of a bare client's, so only where it is asked for.
    if _tracing():
        from aws_xray_sdk.core import patch

        patch(("botocore",))


def _tracing() -> bool:
    return os.environ.get("AWS_XRAY_SDK_ENABLED", "false").lower() == "true"
