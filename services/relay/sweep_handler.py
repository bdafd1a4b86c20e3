"""Wiring of the sweep: environment → adapters → `handle`."""

import os
from dataclasses import asdict
from typing import Any

from relay.sweep import Limits, sweep
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.messaging import SqsQueue
from wallet_ledger.aws.transactions import DynamoOpenTransactions
from wallet_ledger.clock import SystemClock

ANSWER_MS = 5_000
"""Kept free of the function's timeout, to report what was done."""

_settings = settings.read(settings.SweepSettings, os.environ)
_clock = SystemClock()
_table = DynamoOpenTransactions(
    calls.watched(clients.dynamodb(on_consumed=telemetry.count), telemetry.called),
    table=_settings.offline_tx_table,
)
_tx_queue = SqsQueue(
    calls.watched(clients.sqs(), telemetry.called), url=_settings.tx_queue_url, clock=_clock
)


@telemetry.instrumented
def handle(_event: dict[str, Any], context: Any) -> None:
    """A scheduled event in; what was seen and done goes to the log and the metrics."""
    left_ms = context.get_remaining_time_in_millis() - ANSWER_MS
    limits = Limits(
        backlog_max=_settings.sweep_backlog_max,
        rows_max=_settings.sweep_rows_max,
        deadline_ms=_clock.now_ms() + left_ms,
    )
    swept = sweep(_table, _tx_queue, _clock, limits)
    telemetry.count("OpenTransactions", swept.open_rows)
    telemetry.count("OldestOpenAgeSeconds", swept.oldest_age_s)
    telemetry.count("TransactionsSentAgain", swept.sent_again)
    telemetry.count("TransactionsExpired", swept.expired)
    telemetry.logger.info("swept", extra=asdict(swept))
