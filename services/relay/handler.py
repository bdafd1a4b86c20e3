"""Wiring of the relay: environment → adapters → `handle`."""

import os
from typing import Any

from relay.stream import Tables, handle_batch
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.messaging import EventBridgeBus, SqsQueue
from wallet_ledger.clock import SystemClock
from wallet_ledger.derive import Destination

_settings = settings.read(settings.RelaySettings, os.environ)
_tables = Tables(
    offline_tx=_settings.offline_tx_table,
    wallet_ledger=_settings.wallet_ledger_table,
    dead_letters=_settings.dead_letters_table,
)
_clock = SystemClock()
_sqs = calls.watched(clients.sqs(), telemetry.called)
_queues = {
    Destination.TX_QUEUE: SqsQueue(_sqs, url=_settings.tx_queue_url, clock=_clock),
    Destination.FAILED_TX_QUEUE: SqsQueue(_sqs, url=_settings.failed_tx_queue_url, clock=_clock),
}
_bus = EventBridgeBus(
    calls.watched(clients.events(), telemetry.called), name=_settings.event_bus_name, clock=_clock
)
_delivery_failures = SqsQueue(_sqs, url=_settings.delivery_failures_url, clock=_clock)


@telemetry.instrumented
def handle(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """A batch of stream records of one of the tables in, `batchItemFailures` out."""
    return handle_batch(
        event["Records"],
        tables=_tables,
        queues=_queues,
        bus=_bus,
        delivery_failures=_delivery_failures,
    )
