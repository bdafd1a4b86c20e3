"""Wiring of refund: environment → adapters → `handle`."""

import os
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from refund.give_back import Result, give_back_all
from refund.queue import Received, consumer
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.messaging import SqsQueue
from wallet_ledger.aws.refunds import DynamoRefundBooks
from wallet_ledger.clock import SystemClock
from wallet_ledger.patience import Patience

ANSWER_MS = 3_000
"""Kept free of the function's timeout: to give groups back and to answer."""

# One attempt of each call: `give_back` has its own patience, as `settle` has.
_settings = settings.read(settings.RefundSettings, os.environ)
_clock = SystemClock()
_sqs = calls.watched(clients.sqs(attempts=1), telemetry.called)
_books = DynamoRefundBooks(
    calls.watched(clients.dynamodb(on_consumed=telemetry.count, attempts=1), telemetry.called),
    ledger_table=_settings.wallet_ledger_table,
    offline_tx_table=_settings.offline_tx_table,
    retention_days=_settings.retention_days,
)
_refund_queue = SqsQueue(_sqs, url=_settings.refund_queue_url, clock=_clock)
_delivery_failures = SqsQueue(_sqs, url=_settings.delivery_failures_url, clock=_clock)


def _refund_phone(budget_ms: int, requests: Sequence[Received]) -> list[Result]:
    patience = Patience(_clock, random.random, budget_ms)
    results = give_back_all(requests, _books, _clock, patience)
    telemetry.count("ContentionRetries", patience.waits)
    return results


@telemetry.instrumented
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """SQS batch in, `batchItemFailures` out."""
    left_ms = context.get_remaining_time_in_millis() - ANSWER_MS
    budget_ms = max(0, min(_settings.latency_budget_ms, left_ms))
    return consumer(
        refund_phone=partial(_refund_phone, budget_ms),
        delivery_failures=_delivery_failures,
        give_back=_refund_queue.give_back,
        receives_max=_settings.receives_max,
    ).handle_batch(event["Records"])
