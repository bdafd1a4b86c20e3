"""Wakala's own path, for the bench: ingest's one Put, the relay's messages, reconcile's handler."""

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

from bench.meter import Meter
from wallet_ledger.aws import clients
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions
from wallet_ledger.derive import from_row
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.transactions import Request, accept
from wallet_ledger.domain.wallets import Credit
from wallet_ledger.messages import movement_message
from wallet_ledger.ports import OutgoingMessage

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KES = Currency("KES")
OPEN_DAYS = 7
TIMEOUT_MS = 10_000

type Record = dict[str, Any]
type Handle = Callable[[dict[str, Any], Any], dict[str, Any]]


class Ours:
    """Wakala's backend on two tables of the template's shape, with its queue's batches by hand."""

    def __init__(
        self,
        client: "DynamoDBClient",
        offline_tx: str,
        wallet_ledger: str,
        meter: Meter,
        now_ms: Callable[[], int],
    ) -> None:
        """`client` is ingest's; reconcile's handler makes its own, which `meter` counts too."""
        self._accepted = DynamoAcceptedTransactions(client, table=offline_tx)
        self._handle = _reconcile(offline_tx, wallet_ledger, meter)
        self._now_ms = now_ms
        self._numbers = itertools.count(1)

    def open_wallet(self, phone: str, balance_minor: int) -> None:
        """Money comes in as a credit, which the books explain."""
        credit = Credit("bench", "opening", Phone(phone), balance_minor, KES)
        self.handle([self.record(movement_message(credit, "opening"))])

    def enqueue(self, agent_id: str, phone: str, amount: int, key: str) -> Record | None:
        """Accept a transaction: the record that its message will be, None for a repetition."""
        asked = Request(AgentId(agent_id), IdempotencyKey(key), Phone(phone), amount, KES)
        row = accept(asked, self._now_ms(), OPEN_DAYS)
        if self._accepted.put_if_new(row) is not None:
            return None
        (outgoing,) = from_row(None, row)
        return self.record(cast("OutgoingMessage", outgoing.content))

    def record(self, message: OutgoingMessage) -> Record:
        """As SQS hands it out."""
        return {
            "messageId": str(next(self._numbers)),
            "receiptHandle": "bench",
            "body": message.body,
            "attributes": {"ApproximateReceiveCount": "1"},
        }

    def handle(self, records: Sequence[Record]) -> list[str]:
        """A batch, as reconcile gets it; the ids of those that must come again."""
        context = SimpleNamespace(
            aws_request_id="bench", get_remaining_time_in_millis=lambda: TIMEOUT_MS
        )
        answer = self._handle({"Records": list(records)}, context)
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def _reconcile(offline_tx: str, wallet_ledger: str, meter: Meter) -> Handle:
    """The handler as Lambda imports it, its DynamoDB client metered."""
    variables = {
        "OFFLINE_TX_TABLE": offline_tx,
        "WALLET_LEDGER_TABLE": wallet_ledger,
        "TX_QUEUE_URL": "http://127.0.0.1/none",
        "DELIVERY_FAILURES_URL": "http://127.0.0.1/none",
        "RETENTION_DAYS": "0",
        "LATENCY_BUDGET_MS": "2000",
        "RECEIVES_MAX": "10",
    }
    with mock.patch.dict("os.environ", variables), _metered(meter):
        sys.modules.pop("reconcile.handler", None)
        handle: Handle = importlib.import_module("reconcile.handler").handle
        del sys.modules["reconcile.handler"]
    return handle


@contextmanager
def _metered(meter: Meter) -> Iterator[None]:
    make = clients.dynamodb

    def made(*arguments: Any, **options: Any) -> "DynamoDBClient":
        return meter.attach(make(*arguments, **options))

    with mock.patch.object(clients, "dynamodb", made):
        yield
