"""Failures of AWS calls, by what they mean: passing or lasting. AWS's own names, listed by hand."""

from tests.fakes.wire import Answer, error, html_500, reset, timed_out, unreachable

PASSING: dict[str, Answer] = {
    "TransactionInProgressException": error("TransactionInProgressException"),
    "TransactionConflictException": error("TransactionConflictException"),
    "ProvisionedThroughputExceededException": error("ProvisionedThroughputExceededException"),
    "RequestLimitExceeded": error("RequestLimitExceeded"),
    "ThrottlingException": error("ThrottlingException"),
    "RequestThrottled": error("RequestThrottled"),
    "OverLimit": error("OverLimit"),
    "InternalServerError": error("InternalServerError", 500),
    "InternalException": error("InternalException", 500),
    "ServiceUnavailable": error("ServiceUnavailable", 503),
    "unknown 500": error("SomethingNew", 500),
    "html 502": html_500,
    "reset": reset,
    "unreachable": unreachable,
    "timed out": timed_out,
}
"""The same call may succeed a moment later."""

LASTING: dict[str, Answer] = {
    "ValidationException": error("ValidationException"),
    "AccessDeniedException": error("AccessDeniedException"),
    "ResourceNotFoundException": error("ResourceNotFoundException"),
    "SomethingNew": error("SomethingNew"),
}
"""The same call will fail again."""
