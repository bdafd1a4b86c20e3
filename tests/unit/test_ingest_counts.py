"""What ingest counts: each decision once, under the name that its alarm and its graph know."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingest.api import Api, handle_request
from ingest.bus import handle_batch
from tests.fakes.memory import (
    FakeAcceptedTransactions,
    FakeClock,
    FakeQueue,
    FakeRefundDesk,
    Store,
)
from tests.fakes.samples import AGENT, KES, PHONE
from wallet_ledger import telemetry
from wallet_ledger.contracts import Defaults

EVENTS = Path(__file__).parents[2] / "events" / "ingest-bus"
DEFAULTS = Defaults(KES, "KE")
REFUND = {"refundId": "R-1", "reason": "wrong phone"}


@pytest.fixture(autouse=True)
def _nothing_counted_before() -> Iterator[None]:
    telemetry.metrics.clear_metrics()
    yield
    telemetry.metrics.clear_metrics()


@pytest.fixture
def api() -> Api:
    """On tables in memory."""
    store = Store()
    tables = FakeAcceptedTransactions(store), FakeRefundDesk(store)
    return Api(*tables, FakeClock(), DEFAULTS, open_days=7)


def _debit(key: str, amount_minor: int = 60) -> dict[str, Any]:
    return {"agentId": AGENT, "phone": PHONE, "amount": amount_minor, "idempotencyKey": key}


def _post(api: Api, path: str, body: object, key: str | None = None) -> None:
    event = {
        "httpMethod": "POST",
        "resource": path,
        "pathParameters": {"idempotencyKey": key} if key else {},
        "body": json.dumps(body),
        "requestContext": {"authorizer": {"claims": {"custom:agentId": AGENT}}},
    }
    assert handle_request(event, api)["statusCode"] < 500


def _counted(capsys: pytest.CaptureFixture[str]) -> Counter[str]:
    """The sum of each metric since the last look."""
    telemetry.metrics.flush_metrics()
    sums: Counter[str] = Counter()
    for line in map(json.loads, capsys.readouterr().out.splitlines()):
        for directive in line.get("_aws", {}).get("CloudWatchMetrics", ()):
            for metric in directive["Metrics"]:
                sums[metric["Name"]] += sum(line[metric["Name"]])
    return sums


def test_what_is_accepted_and_what_was_known_are_counted(
    api: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    for asked in (_debit("K-1"), _debit("K-1"), _debit("K-1", amount_minor=61)):
        _post(api, "/tx/offline", asked)
    assert _counted(capsys) == {"TransactionsAccepted": 1, "DuplicatesSuppressed": 1}

    batch = {"transactions": [_debit(key) for key in ("K-1", "K-2", "K-3")]}
    _post(api, "/tx/offline/batch", batch)
    assert _counted(capsys) == {"TransactionsAccepted": 2, "DuplicatesSuppressed": 1}


def test_a_cancellation_is_counted_once(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    _post(api, "/tx/offline", _debit("K-1"))
    _counted(capsys)

    for _ in range(2):
        _post(api, "/tx/{idempotencyKey}/refund", REFUND, "K-1")

    assert _counted(capsys) == {"RefundsCompleted": 1, "DuplicatesSuppressed": 1}


def test_a_request_of_the_bus_is_counted_when_its_queue_has_taken_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = json.loads((EVENTS / "mixed.json").read_text(encoding="utf-8"))["Records"]
    taken, left = FakeQueue(FakeClock()), FakeQueue(FakeClock())

    handle_batch(
        records, defaults=DEFAULTS, tx_queue=taken, refund_queue=taken, delivery_failures=left
    )

    assert len(left.messages) == 2
    assert _counted(capsys) == {"BusRequestsTaken": len(taken.messages)}
