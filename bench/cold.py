"""How long a function takes to import beside a bare client of boto3, and what a warm one holds."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.compare import silence
from bench.meter import Meter
from bench.ours import Ours, Record
from tests.engine import create_table, declared_table
from tests.template import RESOURCES, TEMPLATE
from wakala.output import Problem
from wallet_ledger.aws import clients
from wallet_ledger.domain.ids import AgentId, IdempotencyKey, Phone
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.messages import refund_message

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

type Event = dict[str, Any]

ROOT = Path(__file__).parents[1]
ROUNDS = 7
INVOCATIONS = 20
BATCH = 10
"""Messages of an invocation of reconcile or refund, each of another wallet: ten threads."""
UPLOAD = 50
"""Transactions of an invocation of ingest: the most that it takes at once."""

BARE = "import boto3; boto3.client('dynamodb')"
"""What a function of one table and no care would load."""
FUNCTIONS: dict[str, str] = {
    name: resource["Properties"]["Handler"].rpartition(".")[0]
    for name, resource in RESOURCES.items()
    if resource["Type"] == "AWS::Serverless::Function"
}
"""Each function of the template, and the module that Lambda imports."""
WARM = r"""
import json, re, sys
from importlib import import_module
from types import SimpleNamespace
handle = import_module(sys.argv[1]).handle
context = SimpleNamespace(aws_request_id="bench", get_remaining_time_in_millis=lambda: 9_000)
for event in sys.stdin:
    handle(json.loads(event), context)
with open("/proc/self/status") as status:  # getrusage would tell the parent's, too
    print(re.search(r"VmHWM:\s+(\d+)", status.read())[1], file=sys.stderr)
"""


def import_ratios() -> dict[str, float]:
    """By function: the median of its start over that of a bare client, taken in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ("", *FUNCTIONS)}
    for _ in range(ROUNDS):
        seconds[""].append(_seconds(BARE, {}))
        for name, module in FUNCTIONS.items():
            seconds[name].append(_seconds(f"import {module}", _environment(name)))
    bare = statistics.median(seconds[""])
    return {name: statistics.median(seconds[name]) / bare for name in FUNCTIONS}


def warm_megabytes() -> dict[str, float]:
    """By function: the most memory that its process ever held, MB, after real work on the engine.

    What each did is looked up in the tables, since a function that failed would hold less. Raises
    `Problem` where one raised, or its work is not in the tables.
    """
    work = _Work(clients.dynamodb(on_consumed=lambda _name, _units: None))
    work.accept()
    expected = {"ReconcileFunction": "synced", "RefundFunction": "refunded"}
    found = {}
    for name, events in (
        ("ReconcileFunction", work.settlements()),
        ("RefundFunction", work.refunds()),
        ("IngestFunction", work.uploads()),
    ):
        found[name] = _megabytes(name, events, work.tables)
        status, number = expected.get(name, "queued"), sum(map(_size, events))
        if work.statuses()[status] != number:
            raise Problem(f"{name} left {dict(work.statuses())}, and not {number} {status}")
    return found


@dataclass(slots=True)
class _Work:
    """What the functions are given to do: debits, their refunds, and new transactions."""

    client: "DynamoDBClient"
    tables: tuple[str, str] = ("", "")
    records: list[Record] = field(default_factory=list)

    def accept(self) -> None:
        """Tables of their own, the wallets of a batch, and queued debits of each."""
        self.tables = (f"OfflineTx-{uuid.uuid4()}", f"WalletLedger-{uuid.uuid4()}")
        for name, logical_id in zip(self.tables, ("OfflineTx", "WalletLedger"), strict=True):
            create_table(self.client, name, declared_table(f"{logical_id}Table"))
        clock = itertools.count(time.time_ns() // 1_000_000)
        meter = Meter(self.client, {}, weigh=False)
        backend = Ours(self.client, *self.tables, meter, lambda: next(clock))
        with silence():
            for number in range(BATCH):
                backend.open_wallet(_phone(number), 100 * INVOCATIONS)
        for number in range(INVOCATIONS * BATCH):
            record = backend.enqueue(AGENT, _phone(number), 100, _key(number))
            if record is None:
                raise AssertionError("the tables are new, and so is every key")
            self.records.append(record)

    def settlements(self) -> list[Event]:
        """Reconcile's batches."""
        return [{"Records": batch} for batch in _batches(self.records)]

    def refunds(self) -> list[Event]:
        """Refund's batches: each debit given back in full."""
        records = []
        for number, settled in enumerate(self.records):
            asked = Refund(
                AgentId(AGENT),
                IdempotencyKey(_key(number)),
                Phone(_phone(number)),
                refund_id="R-1",
                amount_minor=None,
                currency=None,
                note="bench",
                requested_by="bench",
            )
            records.append(settled | {"body": refund_message(asked, "R-1").body})
        return [{"Records": batch} for batch in _batches(records)]

    def uploads(self) -> list[Event]:
        """Ingest's requests, as the API brings them."""
        file = ROOT / "events" / "ingest" / "post-batch.json"
        request = json.loads(file.read_text(encoding="utf-8"))
        return [request | {"body": _upload(number)} for number in range(INVOCATIONS)]

    def statuses(self) -> Counter[str]:
        """How many rows have which status."""
        pages = self.client.get_paginator("scan").paginate(
            TableName=self.tables[0], ConsistentRead=True
        )
        return Counter(item["status"]["S"] for page in pages for item in page["Items"])


AGENT = "AG-001"
"""Of the sample request's token."""


def _phone(number: int) -> str:
    return f"2547120{number % BATCH:05d}"


def _key(number: int) -> str:
    return f"warm-{number}"


def _upload(number: int) -> str:
    transactions = [
        {"agentId": AGENT, "phone": _phone(n), "amount": 100, "idempotencyKey": f"up-{number}-{n}"}
        for n in range(UPLOAD)
    ]
    return json.dumps({"transactions": transactions})


def _batches(records: Sequence[Record]) -> list[Sequence[Record]]:
    return [records[n : n + BATCH] for n in range(0, len(records), BATCH)]


def _size(event: Event) -> int:
    return len(event["Records"]) if "Records" in event else UPLOAD


def _megabytes(function: str, events: Sequence[Event], tables: tuple[str, str]) -> float:
    variables = _environment(function) | {
        "AWS_ACCESS_KEY_ID": os.environ["AWS_ACCESS_KEY_ID"],
        "AWS_SECRET_ACCESS_KEY": os.environ["AWS_SECRET_ACCESS_KEY"],
        "AWS_ENDPOINT_URL": os.environ["AWS_ENDPOINT_URL"],
        "OFFLINE_TX_TABLE": tables[0],
        "WALLET_LEDGER_TABLE": tables[1],
    }
    lines = "".join(f"{json.dumps(event)}\n" for event in events)
    done = _run([sys.executable, "-c", WARM, FUNCTIONS[function]], variables, lines)
    return int(done.stderr.split()[-1]) / 1024


def _seconds(program: str, environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    _run([sys.executable, "-c", program], environment)
    return time.perf_counter() - started


def _run(
    command: list[str], environment: Mapping[str, str], told: str = ""
) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT / "services"), str(ROOT / "shared")])
    basic = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "AWS_DEFAULT_REGION": "us-east-1"}
    done = subprocess.run(
        command,
        env={**basic, **environment},
        input=told,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Problem(f"{command[-1]} failed: {done.stderr.strip().rpartition('\n')[2]}")
    return done


def _environment(function: str) -> dict[str, str]:
    """As `sam local` gives it, its calls traced where the template's default has it so."""
    known = json.loads((ROOT / "events" / "env.json").read_text(encoding="utf-8"))
    traced = TEMPLATE["Parameters"]["TraceCalls"]["Default"]
    return {**known["Parameters"], **known[function], "AWS_XRAY_SDK_ENABLED": traced}
