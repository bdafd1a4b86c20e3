"""How AWS refuses, and how this stand-in says that it does not know."""

from typing import Any

type Json = dict[str, Any]


class AwsError(Exception):
    """An error answer: its code, its message, its HTTP status, and members of its own.

    `reasons` are a cancelled transaction's, one for each of its items. Who makes one may set
    `retries`: how often botocore is said to have tried again before.
    """

    def __init__(
        self,
        code: str,
        message: str,
        status: int = 400,
        reasons: list[Json] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.members = members
        self.retries = 0
        if reasons is not None:
            self.members["CancellationReasons"] = reasons


class Unsupported(BaseException):
    """Something that AWS knows and this stand-in does not: never to be passed over.

    No `except Exception` of a function hides it.
    """


def invalid(message: str) -> AwsError:
    """DynamoDB refuses a request as it stands."""
    return AwsError("ValidationException", message)
