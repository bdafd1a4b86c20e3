"""Wiring of ingest's bus edge: environment → adapters → `handle`."""

import os
from typing import Any

from ingest.bus import handle_batch
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.messaging import SqsQueue
from wallet_ledger.clock import SystemClock
from wallet_ledger.contracts import Defaults
from wallet_ledger.domain.ids import Currency

_settings = settings.read(settings.IngestBusSettings, os.environ)
_clock = SystemClock()
_sqs = calls.watched(clients.sqs(), telemetry.called)
_tx_queue = SqsQueue(_sqs, url=_settings.tx_queue_url, clock=_clock)
_refund_queue = SqsQueue(_sqs, url=_settings.refund_queue_url, clock=_clock)
_delivery_failures = SqsQueue(_sqs, url=_settings.delivery_failures_url, clock=_clock)
_defaults = Defaults(Currency(_settings.currency), _settings.default_region)


@telemetry.instrumented
def handle(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """A batch of Inbox messages in, `batchItemFailures` out."""
    return handle_batch(
        event["Records"],
        defaults=_defaults,
        tx_queue=_tx_queue,
        refund_queue=_refund_queue,
        delivery_failures=_delivery_failures,
    )
