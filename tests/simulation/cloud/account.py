"""One account of AWS, and what a client of it asks."""

from collections.abc import Callable
from typing import Any

from tests.simulation.cloud.dynamodb import DynamoDB
from tests.simulation.cloud.errors import Json, Unsupported
from tests.simulation.cloud.hook import Hook


class Account:
    """DynamoDB, so far, at a time that `now_ms` says (milliseconds since the epoch)."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.dynamodb = DynamoDB(now_ms)

    def answer(self, service: str, operation: str, body: Json) -> Json:
        """What a call is answered with. Raises `AwsError`."""
        if service == "dynamodb":
            return self.dynamodb.call(operation, body)
        raise Unsupported(service)

    def attach(self, client: Any) -> None:
        """From now on this account answers that client."""
        Hook(self.answer).attach(client)
