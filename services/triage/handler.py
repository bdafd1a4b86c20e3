"""Wiring of triage: environment → adapters → `handle`."""

import os
import random
from typing import Any

from triage.keep import Kept, keep
from triage.queue import handle_batch
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.letters import DynamoDeadLetters, DynamoSubjects
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.letters import Arrival
from wallet_ledger.patience import Patience

PATIENCE_MS = 1_000
"""For one letter whose row moves while it is looked at; ten of them are half the timeout."""

_settings = settings.read(settings.TriageSettings, os.environ)
_clock = SystemClock()
_dynamodb = calls.watched(clients.dynamodb(on_consumed=telemetry.count), telemetry.called)
_letters = DynamoDeadLetters(
    _dynamodb,
    table=_settings.dead_letters_table,
    offline_tx_table=_settings.offline_tx_table,
    retention_days=_settings.letter_retention_days,
)
_subjects = DynamoSubjects(
    _dynamodb,
    ledger_table=_settings.wallet_ledger_table,
    offline_tx_table=_settings.offline_tx_table,
)


def _keep(arrival: Arrival, record: str) -> Kept:
    patience = Patience(_clock, random.random, PATIENCE_MS)
    return keep(
        arrival, record, letters=_letters, subjects=_subjects, clock=_clock, patience=patience
    )


@telemetry.instrumented
def handle(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """A batch of any letter queue in, `batchItemFailures` out."""
    return handle_batch(event["Records"], _keep)
