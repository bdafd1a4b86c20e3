"""Wiring of ingest's HTTP edge: environment → adapters → `handle`."""

import os
from typing import Any

from ingest.api import Api, handle_request
from wallet_ledger import settings, telemetry
from wallet_ledger.aws import calls, clients
from wallet_ledger.aws.refunds import DynamoRefundDesk
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions
from wallet_ledger.clock import SystemClock
from wallet_ledger.contracts import Defaults
from wallet_ledger.domain.ids import Currency

_settings = settings.read(settings.IngestSettings, os.environ)
_dynamodb = calls.watched(clients.dynamodb(on_consumed=telemetry.count), telemetry.called)
_api = Api(
    table=DynamoAcceptedTransactions(_dynamodb, table=_settings.offline_tx_table),
    refunds=DynamoRefundDesk(
        _dynamodb,
        ledger_table=_settings.wallet_ledger_table,
        offline_tx_table=_settings.offline_tx_table,
    ),
    clock=SystemClock(),
    defaults=Defaults(Currency(_settings.currency), _settings.default_region),
    open_days=_settings.open_days,
)


@telemetry.instrumented
def handle(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """An API Gateway REST proxy event in, its answer out."""
    return handle_request(event, _api)
