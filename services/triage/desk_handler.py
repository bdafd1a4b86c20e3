"""Wiring of triage's desk: environment → adapters → `handle`."""

import os
from typing import Any

from triage.act import Desk
from triage.desk import handle_request
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.letters import DynamoDeadLetters, DynamoSubjects
from wallet_ledger.aws.messaging import SqsQueue
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.letters import Source

ANSWER_MS = 5_000
"""Kept free of the function's timeout, to report what was done."""

_settings = settings.read(settings.TriageDeskSettings, os.environ)
_clock = SystemClock()
_dynamodb = calls.watched(clients.dynamodb(on_consumed=telemetry.count), telemetry.called)
_sqs = calls.watched(clients.sqs(), telemetry.called)
_desk = Desk(
    letters=DynamoDeadLetters(
        _dynamodb,
        table=_settings.dead_letters_table,
        offline_tx_table=_settings.offline_tx_table,
        retention_days=_settings.letter_retention_days,
    ),
    subjects=DynamoSubjects(
        _dynamodb,
        ledger_table=_settings.wallet_ledger_table,
        offline_tx_table=_settings.offline_tx_table,
    ),
    queues={
        Source.TX_QUEUE: SqsQueue(_sqs, url=_settings.tx_queue_url, clock=_clock),
        Source.REFUND_QUEUE: SqsQueue(_sqs, url=_settings.refund_queue_url, clock=_clock),
        Source.INBOX: SqsQueue(_sqs, url=_settings.inbox_queue_url, clock=_clock),
    },
    clock=_clock,
)


@telemetry.instrumented
def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """A request of an operator or of the clock in, its answer out."""
    left_ms = context.get_remaining_time_in_millis() - ANSWER_MS
    return handle_request(event, _desk, _clock.now_ms() + left_ms)
