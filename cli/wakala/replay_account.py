"""What a time cost: by the functions' own log lines, and on AWS by CloudWatch; and what is billed.

A function's last line of an invocation says what it called and what that consumed (`awsCalls`), and
Lambda's own line how long it ran. So it is known by function, which CloudWatch has no metric for,
and on an engine that has no metrics at all.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from wakala.desk import Clock
from wakala.measures import MILLION, Units
from wakala.replay_run import Outcome
from wakala.stack import Stack
from wallet_ledger.aws.items import ALL_LETTERS_INDEX, OPEN_INDEX, OPEN_LETTERS_INDEX

FUNCTIONS = ("ingest", "ingest-bus", "relay", "reconcile", "refund", "triage")
CLOCKED = ("sweep", "triage-desk")
"""Woken by the clock, and by the replay's own looks: no part of what a transaction costs."""

TABLES: Mapping[str, tuple[str, ...]] = {
    "OfflineTx": (OPEN_INDEX,),
    "WalletLedger": (),
    "DeadLetters": (OPEN_LETTERS_INDEX, ALL_LETTERS_INDEX),
}
"""Each table, whose name is the output of the stack that ends in `Table`, with its indexes."""

READS = frozenset({"BatchGetItem", "GetItem", "Query", "TransactGetItems"})
CLIENTS, CLOUDWATCH = "the functions' clients", "CloudWatch"

LOG_PAGE = 10_000
"""Lines that one answer holds at most."""
LOG_LINE_BYTES = 26
"""What is billed of a log line beside its text."""
ACCESS_LINE_BYTES = 250 + LOG_LINE_BYTES
"""A line of the API's access log: the template's format with ids, route and numbers in it."""
GB = 10**9
MONTH_SECONDS = 730 * 3600
MINUTE_MS = 60_000

LOGS_SECONDS_MAX = {True: 20.0, False: 120.0}
"""How long the functions' last lines may take on an engine, and on AWS. A busy engine may keep one
until the same worker runs again, which may be never."""
QUIET_SECONDS = {True: 2.0, False: 5.0}
"""Between two looks at the logs: longer than a stream rests unread, or a line is on its way."""
METRICS_SECONDS_MAX = 300.0
METRICS_PAUSE_SECONDS = 15.0
METRICS_SHARE = 0.95
"""How much of what the clients told CloudWatch must have counted, for it to have all: the clients'
own figure for refused writes is a rule's."""

type Usage = dict[str, float]
"""What is billed, by the price table's keys."""

_RAN = re.compile(r"Billed Duration: ([0-9.]+) ms\s+Memory Size: ([0-9]+) MB")


@dataclass(slots=True)
class Account:
    """What some functions did in a time.

    `calls` by function and operation, `read` and `written` units by table or index, `counted` the
    sum of each metric, `metrics` the names and dimensions under which one was written.
    """

    invocations: Counter[str] = field(default_factory=Counter)
    gb_seconds: float = 0.0
    log_bytes: int = 0
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    metrics: set[str] = field(default_factory=set)

    def hear(self, function: str, line: str) -> None:
        """Take a line of a function's log into account."""
        self.log_bytes += len(line.encode()) + LOG_LINE_BYTES
        if ran := _RAN.search(line):
            self.invocations[function] += 1
            self.gb_seconds += float(ran[1]) / 1000 * int(ran[2]) / 1024
        elif line.startswith("{"):
            try:
                said = json.loads(line)
            except ValueError:  # a line that was cut off
                return
            self._hear_metrics(said)
            for operation, call in said.get("awsCalls", {}).items():
                self.calls[function, operation] += call["count"]
                self.consume(operation, call["units"])

    def consume(self, operation: str, units: Mapping[str, float]) -> None:
        """Add the units of a call, by table or index."""
        parts = self.read if operation.rpartition(".")[2] in READS else self.written
        for name, number in units.items():
            parts[name] += number  # type: ignore[assignment]  # halves, too

    def _hear_metrics(self, said: Mapping[str, Any]) -> None:
        for directive in said.get("_aws", {}).get("CloudWatchMetrics", ()):
            dimensions = [f"{name}={said[name]}" for name in directive["Dimensions"][0]]
            for metric in directive["Metrics"]:
                value = said[metric["Name"]]
                self.counted[metric["Name"]] += sum(value) if isinstance(value, list) else value
                self.metrics.add(" ".join([metric["Name"], *sorted(dimensions)]))


def read_account(stack: Stack, since_ms: int, functions: tuple[str, ...] = FUNCTIONS) -> Account:
    """What the functions' logs tell of the time since then."""
    account = Account()
    for function in functions:
        for line in _lines(stack, f"/aws/lambda/{stack.name}-{function}", since_ms):
            account.hear(function, line)
    return account


def await_account(
    stack: Stack, since_ms: int, is_enough: Callable[[Account], bool], clock: Clock
) -> Account:
    """The account once it is enough and a second look finds no more; or when time is over."""
    deadline = clock.now() + LOGS_SECONDS_MAX[stack.local]
    last: Account | None = None
    while True:
        found = read_account(stack, since_ms)
        if (found == last and is_enough(found)) or clock.now() > deadline:
            return found
        last = found
        clock.sleep(QUIET_SECONDS[stack.local])


def is_whole(account: Account, outcome: Outcome) -> bool:
    """Whether the lines tell of all that the replay knows to have happened.

    Of each request a Put, of each new transaction a decision, of a refusal a letter, and of each
    refund its end; of what is open nothing is known.
    """
    asked, counted, unknown = outcome.requests, account.counted, len(outcome.open)
    refused = counted["TransactionsFailed"]
    return (
        account.calls["ingest", "dynamodb.PutItem"]
        >= asked.get("accepted", 0) + asked.get("replayed", 0)
        and counted["TransactionsSynced"] + refused >= len(outcome.new) - unknown
        and counted["DeadLetters"] + counted["LettersSuppressed"] >= refused
        and counted["RefundsCompleted"] >= asked.get("refunds", 0) - unknown
    )


def labelled(stack: Stack, units: Mapping[str, float]) -> Counter[str]:
    """The same units by the table's name in the documents, which a stack makes a longer one of."""
    names = {stack.output(f"{label}Table"): label for label in TABLES}
    found: Counter[str] = Counter()
    for name, number in units.items():
        table, slash, index = name.partition("/")
        found[f"{names.get(table, table)}{slash}{index}"] += number  # type: ignore[assignment]
    return found


def told_by_clients(stack: Stack, account: Account, transactions: int) -> tuple[Units, ...]:
    """Units of a million transactions, by table and index, as the functions' clients told them."""
    return _units(
        labelled(stack, account.read), labelled(stack, account.written), transactions, CLIENTS
    )


def told_by_cloudwatch(
    stack: Stack,
    window_ms: tuple[int, int],
    account: Account,
    others: Account,
    transactions: int,
    clock: Clock,
) -> tuple[Units, ...] | None:
    """The same as CloudWatch counted it, whole minutes; None if it has not all in five minutes.

    `others`: what the clock's functions and this command consumed meanwhile, which is taken off.
    """
    deadline = clock.now() + METRICS_SECONDS_MAX
    told = labelled(stack, account.written)
    while True:
        read, written = _consumed(stack, window_ms)
        if all(written[name] >= number * METRICS_SHARE for name, number in told.items()):
            read.subtract(labelled(stack, others.read))
            written.subtract(labelled(stack, others.written))
            return _units(read, written, transactions, CLOUDWATCH)
        if clock.now() > deadline:
            return None
        clock.sleep(METRICS_PAUSE_SECONDS)


def calls_each(account: Account, transactions: int) -> dict[str, float]:
    """AWS calls for each transaction, by function."""
    found: Counter[str] = Counter()
    for (function, _), number in account.calls.items():
        found[function] += number
    return {name: found[name] / transactions for name in sorted(found)}


def usage(account: Account, units: tuple[Units, ...], transactions: int, seconds: float) -> Usage:
    """What is billed for a million transactions at the rate of these."""
    of_all = {
        "lambda.requests": account.invocations.total(),
        "lambda.gb_seconds": account.gb_seconds,
        "apigateway.requests": api_requests(account),
        "sqs.fifo_requests": fifo_requests(account),
        "sqs.standard_requests": standard_requests(account),
        "dynamodb.stream_reads": stream_reads(),
        "eventbridge.events": events(account),
        "cloudwatch.log_gb": log_gb(account),
        "cloudwatch.metric_months": metric_months(account, seconds),
    }
    return {name: number * MILLION / transactions for name, number in of_all.items()} | {
        "dynamodb.write_units": sum(each.written for each in units),
        "dynamodb.read_units": sum(each.read for each in units),
    }


def api_requests(account: Account) -> int:
    """Every request that the gateway lets through becomes one invocation of ingest."""
    return account.invocations["ingest"]


def fifo_requests(account: Account) -> int:
    """What functions send goes to FIFO queues; a batch taken from one is received and deleted."""
    sent = sum(n for (_, operation), n in account.calls.items() if operation.startswith("sqs."))
    taken = sum(account.invocations[name] for name in ("reconcile", "refund", "triage"))
    return sent + 2 * taken


def standard_requests(account: Account) -> int:
    """Inbox alone is one: the bus sends it each request, and ingest-bus receives and deletes."""
    return int(account.counted["BusRequestsTaken"]) + 2 * account.invocations["ingest-bus"]


def stream_reads() -> int:
    """None: what Lambda reads of a stream is not billed."""
    return 0


def events(account: Account) -> int:
    """Each outcome is one event, each letter too, and each refund also asked for by one."""
    told = ("TransactionsSynced", "TransactionsFailed", "RefundsCompleted", "RefundsRejected")
    return int(sum(account.counted[name] for name in (*told, "DeadLetters", "BusRequestsTaken")))


def log_gb(account: Account) -> float:
    """The functions' lines as they are, and a line of the access log for each API request."""
    return (account.log_bytes + api_requests(account) * ACCESS_LINE_BYTES) / GB


def metric_months(account: Account, seconds: float) -> float:
    """A metric is billed by the hour that it is written in: at this rate, for so long."""
    return len(account.metrics) * seconds / MONTH_SECONDS


def _lines(stack: Stack, group: str, since_ms: int) -> Iterator[str]:
    request: dict[str, Any] = {"logGroupName": group, "startTime": since_ms}
    known = 0
    while True:
        page = stack.logs.filter_log_events(**request)
        yield from (event["message"] for event in page["events"][known:])
        if "nextToken" in page:
            request["nextToken"], known = page["nextToken"], 0
        elif len(page["events"]) < LOG_PAGE:
            return
        else:  # an engine that tells no next page is asked for what came since its last line
            last_ms = page["events"][-1]["timestamp"]
            known = sum(event["timestamp"] == last_ms for event in page["events"])
            request["startTime"] = last_ms


def _consumed(stack: Stack, window_ms: tuple[int, int]) -> tuple[Counter[str], Counter[str]]:
    """Read and written units of whole minutes, by table and index."""
    start, end = window_ms[0] // MINUTE_MS * 60, -(-window_ms[1] // MINUTE_MS) * 60
    wanted = [
        (kind, label, index)
        for kind in ("Read", "Write")
        for label, indexes in TABLES.items()
        for index in (None, *indexes)
    ]
    pages = stack.cloudwatch.get_paginator("get_metric_data").paginate(
        MetricDataQueries=[_query(stack, n, *each) for n, each in enumerate(wanted)],
        StartTime=datetime.fromtimestamp(start, UTC),
        EndTime=datetime.fromtimestamp(end, UTC),
    )
    found: dict[str, Counter[str]] = {"Read": Counter(), "Write": Counter()}
    for page in pages:
        for result in page["MetricDataResults"]:
            kind, label, index = wanted[int(result["Id"].removeprefix("m"))]
            name = label if index is None else f"{label}/{index}"
            found[kind][name] += sum(result["Values"])  # type: ignore[assignment]
    return found["Read"], found["Write"]


def _query(stack: Stack, number: int, kind: str, label: str, index: str | None) -> Any:
    dimensions = {"TableName": stack.output(f"{label}Table")}
    if index is not None:
        dimensions["GlobalSecondaryIndexName"] = index
    metric = {
        "Namespace": "AWS/DynamoDB",
        "MetricName": f"Consumed{kind}CapacityUnits",
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
    }
    return {"Id": f"m{number}", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}


def _units(
    read: Counter[str], written: Counter[str], transactions: int, told_by: str
) -> tuple[Units, ...]:
    names = [
        name
        for label, indexes in TABLES.items()
        for name in (label, *(f"{label}/{index}" for index in indexes))
    ]
    return tuple(
        Units(
            name,
            max(0.0, read[name]) * MILLION / transactions,
            max(0.0, written[name]) * MILLION / transactions,
            told_by,
        )
        for name in names
    )
