"""What a replay cost: read from log lines and from CloudWatch, and turned into what is billed."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fakes.replayed import Logs, Time, stack_of
from tests.unit.test_cli_replay import outcome_of
from wakala import replay_account
from wakala.desk import Clock
from wakala.measures import Units
from wakala.replay_account import (
    Account,
    await_account,
    is_whole,
    read_account,
    told_by_cloudwatch,
    usage,
)

RAN = "REPORT RequestId: r\tDuration: 90.1 ms\tBilled Duration: 100 ms\tMemory Size: 512 MB\tMax"
CALLS = {
    "dynamodb.TransactWriteItems": {"count": 2, "units": {"wakala-tx": 8.0, "wakala-tx/OpenTx": 2}},
    "dynamodb.GetItem": {"count": 1, "units": {"wakala-books": 1.0}},
}


def emf(service: str, metrics: Mapping[str, list[float]], **members: Any) -> str:
    """A line of metrics as Powertools writes it."""
    directive = {
        "Namespace": "Wakala",
        "Dimensions": [["stage", "service"]],
        "Metrics": [{"Name": name, "Unit": "Count"} for name in metrics],
    }
    about = {"_aws": {"CloudWatchMetrics": [directive]}, "stage": "test", "service": service}
    return json.dumps(about | members | dict(metrics))


def clock() -> Clock:
    """Time that only sleeping moves."""
    passing = Time()
    return Clock(passing.now, passing.sleep)


def test_an_account_is_what_the_last_lines_of_invocations_say() -> None:
    lines = [
        "START RequestId: r Version: $LATEST",
        emf("reconcile", {"TransactionsSynced": [1, 1], "ContentionRetries": [3]}, awsCalls=CALLS),
        json.dumps({"level": "INFO", "message": "called AWS", "awsCalls": {
            "sqs.SendMessageBatch": {"count": 1, "units": {}}}}),
        '{"cut off',
        RAN,
    ]  # fmt: skip
    account = read_account(stack_of(logs=Logs({"reconcile": [(5, line) for line in lines]})), 5)
    assert account.invocations == {"reconcile": 1}
    assert account.gb_seconds == pytest.approx(0.05)
    assert account.log_bytes == sum(len(line) for line in lines) + 5 * 26
    assert account.calls == {
        ("reconcile", "dynamodb.TransactWriteItems"): 2,
        ("reconcile", "dynamodb.GetItem"): 1,
        ("reconcile", "sqs.SendMessageBatch"): 1,
    }
    assert account.written == {"wakala-tx": 8, "wakala-tx/OpenTx": 2}
    assert account.read == {"wakala-books": 1}
    assert account.counted == {"TransactionsSynced": 2, "ContentionRetries": 3}
    assert account.metrics == {
        "TransactionsSynced service=reconcile stage=test",
        "ContentionRetries service=reconcile stage=test",
    }


@pytest.mark.parametrize("tells_next", [True, False])
def test_every_line_of_every_page_counts_once(tells_next: bool) -> None:
    """An engine that tells no next page is asked on from the last moment, partly known."""
    page = replay_account.LOG_PAGE
    lines = [(n // 3, RAN) for n in range(2 * page + 50)]
    account = read_account(stack_of(logs=Logs({"relay": lines}, page, tells_next)), 0)
    assert account.invocations["relay"] == len(lines)


def test_lines_from_before_the_replay_and_of_the_clocks_functions_do_not_count() -> None:
    logs = Logs({"ingest": [(4, RAN), (5, RAN)], "sweep": [(5, RAN)], "triage-desk": [(5, RAN)]})
    assert read_account(stack_of(logs=logs), 5).invocations == {"ingest": 1}


def test_the_account_is_waited_for_until_it_is_whole_and_a_second_look_finds_no_more() -> None:
    looks = [1, 2, 2, 3, 3]
    line = emf("reconcile", {"TransactionsSynced": [1]})

    class Late(Logs):
        def filter_log_events(self, **request: Any) -> Any:
            if request["logGroupName"].endswith("-ingest"):  # the first function of a look
                self.lines = {"reconcile": [(5, line)] * looks.pop(0)}
            return super().filter_log_events(**request)

    account = await_account(
        stack_of(logs=Late({})), 5, lambda a: a.counted["TransactionsSynced"] >= 3, clock()
    )
    assert (account.counted["TransactionsSynced"], looks) == (3, [])


def ids_of(number: int) -> frozenset[tuple[str, str]]:
    """As many transactions."""
    return frozenset(("A", str(n)) for n in range(number))


TOLD = Account(
    calls=Counter({("ingest", "dynamodb.PutItem"): 4}),
    counted=Counter(
        {"TransactionsSynced": 2, "TransactionsFailed": 1, "DeadLetters": 1, "RefundsCompleted": 1}
    ),
)


@pytest.mark.parametrize(
    "missing", [None, "TransactionsSynced", "TransactionsFailed", "DeadLetters", "RefundsCompleted"]
)
def test_an_account_is_whole_once_it_tells_of_all_that_is_known_to_have_happened(
    missing: str | None,
) -> None:
    outcome = outcome_of(requests={"accepted": 3, "replayed": 1, "refunds": 1}, new=ids_of(3))
    counted = TOLD.counted - Counter({missing: 1}) if missing else TOLD.counted
    account = Account(calls=TOLD.calls, counted=counted)
    assert is_whole(account, outcome) is (missing is None)
    assert not is_whole(Account(counted=TOLD.counted), outcome)
    kept_before = Counter({"LettersSuppressed": 1}) + counted - Counter({"DeadLetters": 1})
    assert is_whole(Account(calls=TOLD.calls, counted=kept_before), outcome) is (
        missing in (None, "DeadLetters")
    )


def test_of_what_is_open_an_account_tells_nothing() -> None:
    asked = {"accepted": 3, "replayed": 1, "refunds": 2}
    open_ = frozenset({("A", "a"), ("A", "b")})
    outcome = outcome_of(requests=asked, new=ids_of(5), open=open_)
    assert is_whole(TOLD, outcome)
    assert not is_whole(TOLD, replace(outcome, new=ids_of(6)))


def test_an_account_that_never_is_whole_is_given_when_time_is_over() -> None:
    logs = Logs({"ingest": [(5, RAN)]})
    account = await_account(stack_of(logs=logs), 5, lambda _: False, clock())
    assert account.invocations == {"ingest": 1}


def test_units_of_the_clients_are_of_a_million_by_table_and_index() -> None:
    account = Account(read=Counter({"wakala-books": 1}), written=Counter({"wakala-tx/OpenTx": 3}))
    told = replay_account.told_by_clients(stack_of(), account, transactions=2)
    by_name = {each.resource: each for each in told}
    assert list(by_name) == [
        "OfflineTx",
        "OfflineTx/OpenTx",
        "WalletLedger",
        "DeadLetters",
        "DeadLetters/OpenLetters",
        "DeadLetters/AllLetters",
    ]
    assert by_name["OfflineTx/OpenTx"].written == 1_500_000
    assert by_name["WalletLedger"].read == 500_000
    assert {each.told_by for each in told} == {"the functions' clients"}


class CloudWatch:
    """Sums by metric, table and index, of which `looks` says the part that is there yet."""

    def __init__(self, sums: Mapping[tuple[str, str, str | None], list[float]], *looks: float):
        self.sums, self.looks = sums, list(looks)
        self.asked: list[Any] = []

    def get_paginator(self, name: str) -> Any:
        assert name == "get_metric_data"
        return self

    def paginate(self, **request: Any) -> Any:
        self.asked.append(request)
        part = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        results = []
        for query in request["MetricDataQueries"]:
            metric = query["MetricStat"]["Metric"]
            named = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
            key = metric["MetricName"], named["TableName"], named.get("GlobalSecondaryIndexName")
            values = [value * part for value in self.sums.get(key, [])]
            results.append({"Id": query["Id"], "Values": values})
        return [{"MetricDataResults": results[:5]}, {"MetricDataResults": results[5:]}]


SUMS = {
    ("ConsumedWriteCapacityUnits", "wakala-tx", None): [5.0, 5.0],
    ("ConsumedWriteCapacityUnits", "wakala-tx", "OpenTx"): [4.0],
    ("ConsumedReadCapacityUnits", "wakala-tx", None): [9.0],
}
ACCOUNT = Account(written=Counter({"wakala-tx": 10, "wakala-tx/OpenTx": 4}))
OTHERS = Account(read=Counter({"wakala-tx": 7}), written=Counter({"wakala-tx": 1}))


def test_cloudwatch_is_waited_for_and_what_others_consumed_is_taken_off() -> None:
    cloudwatch = CloudWatch(SUMS, 0, 0.5, 1)
    told = told_by_cloudwatch(
        stack_of(cloudwatch=cloudwatch), (90_000, 190_000), ACCOUNT, OTHERS, 2, clock()
    )
    units = {each.resource: (each.written, each.read) for each in told or ()}
    assert units["OfflineTx"] == (4_500_000.0, 1_000_000.0)
    assert units["OfflineTx/OpenTx"] == (2_000_000.0, 0.0)
    assert {each.told_by for each in told or ()} == {"CloudWatch"}
    assert len(cloudwatch.asked) == 3
    window = cloudwatch.asked[0]["StartTime"], cloudwatch.asked[0]["EndTime"]
    assert window == tuple(datetime.fromtimestamp(each, UTC) for each in (60, 240))


def test_what_cloudwatch_does_not_tell_in_time_is_left_to_the_clients() -> None:
    stack = stack_of(cloudwatch=CloudWatch(SUMS, 0.5))
    assert told_by_cloudwatch(stack, (0, 1), ACCOUNT, OTHERS, 2, clock()) is None


BUSY = Account(
    invocations=Counter(
        {"ingest": 20, "ingest-bus": 1, "relay": 5, "reconcile": 4, "refund": 2, "triage": 1}
    ),
    gb_seconds=3.0,
    log_bytes=1_000,
    calls=Counter({("relay", "sqs.SendMessageBatch"): 4, ("relay", "events.PutEvents"): 9}),
    counted=Counter(
        {
            "TransactionsSynced": 18,
            "TransactionsFailed": 2,
            "BusRequestsTaken": 3,
            "RefundsCompleted": 3,
            "DeadLetters": 2,
        }
    ),
    metrics={"a", "b"},
)


def test_what_is_billed_follows_from_what_was_done() -> None:
    units = (Units("OfflineTx", 1.0, 2.0, "x"), Units("OfflineTx/OpenTx", 0.5, 4.0, "x"))
    assert usage(BUSY, units, transactions=20, seconds=3_600) == pytest.approx(
        {
            "lambda.requests": 33 * 50_000,
            "lambda.gb_seconds": 3 * 50_000,
            "apigateway.requests": 20 * 50_000,
            # 4 sends, and a receive and a delete for each of 7 batches
            "sqs.fifo_requests": 18 * 50_000,
            # 3 that the bus sent to Inbox, a receive and a delete
            "sqs.standard_requests": 5 * 50_000,
            # of a million already
            "dynamodb.write_units": 6.0,
            "dynamodb.read_units": 1.5,
            "dynamodb.stream_reads": 0,
            # 20 outcomes, 2 letters, 3 refunds and as many requests of them
            "eventbridge.events": 28 * 50_000,
            "cloudwatch.log_gb": (1_000 + 20 * 276) / 1e9 * 50_000,
            "cloudwatch.metric_months": 2 / 730 * 50_000,
        }
    )


def test_calls_are_of_one_transaction_by_function() -> None:
    assert replay_account.calls_each(BUSY, transactions=20) == {"relay": 13 / 20}
