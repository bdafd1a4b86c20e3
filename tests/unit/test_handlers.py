"""Handlers as they are wired: how long they try, and what they count at the end."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.fakes.samples import debit, refund
from tests.simulation.cloud.account import Account
from tests.simulation.cloud.clients import LeapingTime, made_with
from tests.simulation.cloud.errors import AwsError
from tests.simulation.cloud.functions import Handler, context, import_handlers
from tests.simulation.cloud.hook import Hook
from wallet_ledger import clock, telemetry
from wallet_ledger.messages import movement_message, refund_message

KEPT_FREE_MS = 3_000
BODIES = {
    "reconcile": movement_message(debit(), "d").body,
    "refund": refund_message(refund(), "d").body,
}


class Wired:
    """The real functions on one account, whose time passes only where somebody waits."""

    def __init__(self) -> None:
        self.time = LeapingTime()
        self.account = Account(lambda: self.time.time_ns() // 1_000_000)
        self.hook = Hook(self.account.answer)
        with made_with(lambda client, _: self.hook.attach(client)):
            functions = self.account.stack.functions.values()
            self.handlers: dict[str, Handler] = import_handlers(functions)

    def tries_for_ms(self, function: str, remaining_ms: int) -> int:
        """How long the function tries on tables that answer nothing but `later`."""
        queue = function.capitalize()
        arn = f"arn:aws:sqs:us-east-1:000000000000:wakala-{queue}.fifo"
        record = {
            "messageId": "m-1",
            "receiptHandle": "receipt",
            "body": BODIES[function],
            "attributes": {"ApproximateReceiveCount": "1", "MessageGroupId": "g"},
            "eventSourceARN": arn,
        }
        self.hook.answer = _later
        before_ns = self.time.time_ns()
        answer = self.handlers[function]({"Records": [record]}, context(lambda: remaining_ms))
        assert answer == {"batchItemFailures": [{"itemIdentifier": "m-1"}]}
        return (self.time.time_ns() - before_ns) // 1_000_000

    def sweep(self) -> None:
        """One run."""
        self.handlers["sweep"]({}, context(lambda: 50_000))


def _later(service: str, operation: str, body: Any) -> Any:
    if service == "sqs":
        return {"Successful": [], "Failed": []}
    raise AwsError("ThrottlingException", "later")


@pytest.fixture(scope="module")
def imported() -> Wired:
    """Imported once."""
    return Wired()


@pytest.fixture
def wired(imported: Wired, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wired]:
    """On an account of its own, with nothing counted before."""
    telemetry.metrics.clear_metrics()
    imported.account = Account(lambda: imported.time.time_ns() // 1_000_000)
    imported.hook.answer = imported.account.answer
    monkeypatch.setattr(clock, "time", imported.time)
    yield imported
    telemetry.metrics.clear_metrics()


def _counted(captured: pytest.CaptureFixture[str]) -> dict[str, float]:
    """The sum of each metric that was written."""
    sums: dict[str, float] = {}
    for line in map(json.loads, captured.readouterr().out.splitlines()):
        for directive in line.get("_aws", {}).get("CloudWatchMetrics", ()):
            for metric in directive["Metrics"]:
                name = metric["Name"]
                sums[name] = sums.get(name, 0) + sum(line[name])
    return sums


@pytest.mark.parametrize("function", BODIES)
def test_what_is_contended_is_tried_again_within_the_latency_budget(
    wired: Wired, function: str, capsys: pytest.CaptureFixture[str]
) -> None:
    budget_ms = int(wired.account.stack.functions[function].environment["LATENCY_BUDGET_MS"])

    tried_ms = wired.tries_for_ms(function, KEPT_FREE_MS + 2 * budget_ms)

    assert 0 < tried_ms <= budget_ms
    assert _counted(capsys)["ContentionRetries"] > 1


@pytest.mark.parametrize("function", BODIES)
@pytest.mark.parametrize("left_ms", [100, 0, -200])
def test_what_is_contended_is_given_back_in_time_to_answer(
    wired: Wired, function: str, left_ms: int
) -> None:
    assert wired.tries_for_ms(function, KEPT_FREE_MS + left_ms) <= max(0, left_ms)


def _accept(wired: Wired) -> None:
    asked = {"agentId": "AG-1", "phone": "254712345678", "amount": 60, "idempotencyKey": "K-1"}
    request = {
        "httpMethod": "POST",
        "resource": "/tx/offline",
        "pathParameters": {},
        "body": json.dumps(asked),
        "requestContext": {"authorizer": {"claims": {"custom:agentId": "AG-1"}}},
    }
    assert wired.handlers["ingest"](request, context(lambda: 10_000))["statusCode"] == 202


def _swept(open_rows: int, age_s: int, again: int, expired: int) -> dict[str, float]:
    return {
        "OpenTransactions": open_rows,
        "OldestOpenAgeSeconds": age_s,
        "TransactionsSentAgain": again,
        "TransactionsExpired": expired,
    }


def test_a_sweep_counts_and_logs_what_it_saw_and_did(
    wired: Wired,
    capsys: pytest.CaptureFixture[str],
    logged: Callable[[], list[dict[str, Any]]],
) -> None:
    _accept(wired)
    counted = []
    for passed in (timedelta(hours=2), timedelta(days=6, hours=22), timedelta(0)):
        clock.SystemClock().pause(passed.total_seconds())
        capsys.readouterr()
        wired.sweep()
        sums = _counted(capsys)
        counted.append({name: sums[name] for name in _swept(0, 0, 0, 0)})

    assert counted == [
        _swept(1, 7_200, 1, 0),
        _swept(1, 7 * 86_400, 0, 1),
        _swept(0, 0, 0, 0),
    ]
    swept = [line for line in logged() if line["message"] == "swept"]
    assert [(line["sent_again"], line["expired"]) for line in swept] == [(1, 0), (0, 1), (0, 0)]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """Each line that was logged, as it is written."""
    caplog.set_level("INFO", telemetry.logger.name)
    formatter = telemetry.logger.registered_formatter
    return lambda: [json.loads(formatter.format(record)) for record in caplog.records]
