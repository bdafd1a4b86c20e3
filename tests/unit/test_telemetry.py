"""Logs and metrics say what happened and to what, and nothing that is anybody's."""

import json
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, local
from types import SimpleNamespace
from typing import Any

import pytest

from wallet_ledger import telemetry
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import Phone
from wallet_ledger.telemetry import (
    HandlerFailed,
    called,
    count,
    count_by,
    in_current_trace,
    instrumented,
    log_failure,
    logger,
)

PHONE = "254712345678"
CONTEXT = SimpleNamespace(aws_request_id="request-1")


@pytest.fixture(autouse=True)
def _nothing_counted_before() -> None:
    telemetry.metrics.clear_metrics()


def _lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The metrics that were written, as CloudWatch reads them."""
    lines = [json.loads(line) for line in captured.readouterr().out.splitlines()]
    return [line for line in lines if "_aws" in line]


def _units(line: dict[str, Any]) -> dict[str, str]:
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    return {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}


def _dimensions(line: dict[str, Any]) -> dict[str, str]:
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    (names,) = directive["Dimensions"]
    return {name: line[name] for name in names}


def _logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(logger.registered_formatter.format(record)) for record in caplog.records]


def test_a_metric_is_written_once_per_invocation_with_the_unit_its_name_ends_in(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @instrumented
    def handle(event: dict[str, int], _: Any) -> int:
        for name in ("TransactionsAccepted", "SettleLatencyMs", "OldestOpenAgeSeconds"):
            count(name, event["value"])
            count(name, 1)
        return event["value"]

    assert handle({"value": 5}, CONTEXT) == 5
    (line,) = _lines(capsys)
    assert _units(line) == {
        "TransactionsAccepted": "Count",
        "SettleLatencyMs": "Milliseconds",
        "OldestOpenAgeSeconds": "Seconds",
    }
    assert line["TransactionsAccepted"] == line["SettleLatencyMs"] == [5, 1]
    assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Wakala"
    handle({"value": 7}, CONTEXT)
    (line,) = _lines(capsys)
    assert line["SettleLatencyMs"] == [7, 1]


@pytest.mark.filterwarnings("error")
def test_an_invocation_that_counts_nothing_writes_no_metric(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert instrumented(lambda event, _: event)("answer", CONTEXT) == "answer"
    assert _lines(capsys) == []


def test_a_metric_by_reason_has_a_dimension_of_its_own_beside_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @instrumented
    def handle(_: None, __: Any) -> None:
        count("TransactionsSynced")
        count_by("TransactionsFailed", "reason", "WALLET_FROZEN")

    handle(None, CONTEXT)
    by_reason, plain = _lines(capsys)
    assert (by_reason["TransactionsFailed"], plain["TransactionsSynced"]) == ([1], [1])
    assert _dimensions(by_reason) == _dimensions(plain) | {"reason": "WALLET_FROZEN"}
    assert _dimensions(plain).keys() == {"service", "stage"}


def test_counts_from_many_threads_all_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    @instrumented
    def handle(_: None, __: Any) -> None:
        with ThreadPoolExecutor(10) as pool:
            list(pool.map(count, ["ContentionRetries"] * 950))

    handle(None, CONTEXT)
    assert sum(sum(line["ContentionRetries"]) for line in _lines(capsys)) == 950


def test_two_threads_never_add_to_the_metrics_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both_inside = Barrier(2, timeout=0.1)
    met = []

    def add_metric(**_: object) -> None:
        with suppress(BrokenBarrierError):
            met.append(both_inside.wait())

    monkeypatch.setattr(telemetry.metrics, "add_metric", add_metric)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(count, ["ContentionRetries"] * 4))
    assert met == []


def test_each_log_line_of_an_invocation_carries_its_request_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handle = instrumented(lambda _, __: logger.info("swept"))
    for request_id in ("request-1", "request-2"):
        handle(None, SimpleNamespace(aws_request_id=request_id))
        assert _logged(caplog)[-1]["requestId"] == request_id


def _call_aws(_: object, __: Any) -> None:
    called("dynamodb.PutItem", {"OfflineTx": 1.0, "OfflineTx/OpenTx": 1.0})
    called("dynamodb.PutItem", {"OfflineTx": 1.0})
    called("sqs.SendMessageBatch", {})


CALLED = {
    "dynamodb.PutItem": {"count": 2, "units": {"OfflineTx": 2.0, "OfflineTx/OpenTx": 1.0}},
    "sqs.SendMessageBatch": {"count": 1, "units": {}},
}


def test_what_an_invocation_called_is_in_its_line_of_metrics_and_is_no_metric(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @instrumented
    def handle(calls: bool, _: Any) -> None:
        count("TransactionsSynced")
        if calls:
            _call_aws(None, _)

    for calls in (True, False):
        handle(calls, CONTEXT)
    first, second = _lines(capsys)
    assert first["awsCalls"] == CALLED
    assert _units(first).keys() == {"TransactionsSynced"}
    assert "awsCalls" not in second


def test_without_a_metric_what_an_invocation_called_is_a_line_of_its_own(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    instrumented(_call_aws)(None, CONTEXT)
    (line,) = _logged(caplog)
    assert (line["level"], line["message"], line["awsCalls"]) == ("INFO", "called AWS", CALLED)
    assert _lines(capsys) == []


def test_an_invocation_that_called_nothing_and_counted_nothing_has_no_such_line(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO")
    instrumented(lambda _, __: None)(None, CONTEXT)
    assert _logged(caplog) == []
    assert _lines(capsys) == []


def _choke(_: object, __: Any) -> None:
    count("TransactionsAccepted")
    raise ValueError(f"cannot read {PHONE}")


def test_an_errors_place_is_in_our_own_code_whoever_raised_it() -> None:
    """Otherwise every status that nobody knows would be one bug, in Python's own enum."""
    with pytest.raises(KeyError) as missing:
        items.read_wallet({"phone": {"S": PHONE}})
    odd = items.ledger_key(Phone(PHONE), items.BALANCE) | {
        "balanceMinor": {"N": "1"},
        "currency": {"S": "KES"},
        "version": {"N": "1"},
        "status": {"S": "odd"},
    }
    with pytest.raises(ValueError, match="odd") as unknown:
        items.read_wallet(odd)
    with pytest.raises(ZeroDivisionError) as foreign:
        1 / 0  # noqa: B018

    assert telemetry.place_of(missing.value) == "items.py read_wallet"
    assert telemetry.place_of(unknown.value) == "items.py read_wallet"
    assert telemetry.place_of(foreign.value) == ""


def test_p12_an_error_is_told_by_class_and_places_and_never_by_its_text(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HandlerFailed, match=r"^ValueError$") as error:
        instrumented(_choke)({"phone": PHONE}, CONTEXT)
    (line,) = _logged(caplog)
    assert (line["level"], line["message"]) == ("CRITICAL", "handler failed")
    assert line["errorType"] == "ValueError"
    assert any(place.endswith(" _choke") for place in line["places"])
    assert PHONE not in json.dumps(line)
    assert error.value.__suppress_context__  # whoever prints it prints no chain
    assert error.value.__cause__ is None
    assert [line["TransactionsAccepted"] for line in _lines(capsys)] == [[1]]


def test_p12_an_error_that_was_caught_is_logged_the_same_way(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        _choke(None, None)
    except ValueError as error:
        log_failure("settling failed", error)
    (line,) = _logged(caplog)
    assert (line["message"], line["errorType"]) == ("settling failed", "ValueError")
    assert PHONE not in json.dumps(line)


def test_without_tracing_a_call_for_another_thread_is_the_call_itself() -> None:
    assert in_current_trace(_choke) is _choke


def test_with_tracing_a_call_in_another_thread_belongs_to_the_trace_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = local()
    here.entity = "segment-1"
    recorder = SimpleNamespace(
        get_trace_entity=lambda: getattr(here, "entity", None),
        set_trace_entity=lambda entity: setattr(here, "entity", entity),
    )
    core = SimpleNamespace(xray_recorder=recorder)
    monkeypatch.setitem(sys.modules, "aws_xray_sdk", SimpleNamespace(core=core))
    monkeypatch.setitem(sys.modules, "aws_xray_sdk.core", core)
    monkeypatch.setenv("AWS_XRAY_SDK_ENABLED", "true")
    call = in_current_trace(lambda number: (number, recorder.get_trace_entity()))
    with ThreadPoolExecutor(4) as pool:
        assert Counter(pool.map(call, [1, 2, 2])) == {(1, "segment-1"): 1, (2, "segment-1"): 2}
