"""Wiring of reconcile: environment → adapters → `handle`."""

import os
import random
from functools import partial
from typing import Any

from reconcile.queue import consumer
from reconcile.settle import Settlement, settle
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.messaging import SqsQueue
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.wallets import Movement
from wallet_ledger.patience import Patience

ANSWER_MS = 3_000
"""Kept free of the function's timeout: to give groups back and to answer."""

# One attempt of each call: `settle` has its own patience, and two slow calls in a row must not
# reach the function's timeout, which would send nine other wallets' messages back with one.
_settings = settings.read(settings.ReconcileSettings, os.environ)
_clock = SystemClock()
_sqs = calls.watched(clients.sqs(attempts=1), telemetry.called)
_ledger = DynamoLedger(
    calls.watched(clients.dynamodb(on_consumed=telemetry.count, attempts=1), telemetry.called),
    ledger_table=_settings.wallet_ledger_table,
    offline_tx_table=_settings.offline_tx_table,
    retention_days=_settings.retention_days,
)
_tx_queue = SqsQueue(_sqs, url=_settings.tx_queue_url, clock=_clock)
_delivery_failures = SqsQueue(_sqs, url=_settings.delivery_failures_url, clock=_clock)


def _settle_phone(budget_ms: int, movements: list[Movement]) -> list[Settlement]:
    patience = Patience(_clock, random.random, budget_ms)
    results = settle(movements, _ledger, _clock, patience)
    telemetry.count("ContentionRetries", patience.waits)
    return results


@telemetry.instrumented
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """SQS batch in, `batchItemFailures` out."""
    left_ms = context.get_remaining_time_in_millis() - ANSWER_MS
    budget_ms = max(0, min(_settings.latency_budget_ms, left_ms))
    return consumer(
        settle_phone=partial(_settle_phone, budget_ms),
        delivery_failures=_delivery_failures,
        give_back=_tx_queue.give_back,
        receives_max=_settings.receives_max,
        clock=_clock,
    ).handle_batch(event["Records"])
