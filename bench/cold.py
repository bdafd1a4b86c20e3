"""How long a function takes to import beside a bare client of boto3, and what a warm one holds."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROUNDS = 7

BARE = "import boto3; boto3.client('dynamodb')"
"""What a function of one table and no care would load."""
FUNCTIONS = {
    "ReconcileFunction": "reconcile.handler",
    "RefundFunction": "refund.handler",
    "IngestFunction": "ingest.handler",
}
WARM = r"""
import json, re, sys
from importlib import import_module
from types import SimpleNamespace
handle = import_module(sys.argv[1]).handle
context = SimpleNamespace(aws_request_id="bench", get_remaining_time_in_millis=lambda: 9_000)
for _ in range(20):
    try:
        handle({"Records": []}, context)
    except Exception:
        pass
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
    """By function: the most memory that its process ever held, MB.

    After invocations that reach no table: what connections and items take comes on top.
    """
    found = {}
    for name, module in FUNCTIONS.items():
        done = _run([sys.executable, "-c", WARM, module], _environment(name))
        found[name] = int(done.stderr.split()[-1]) / 1024
    return found


def _seconds(program: str, environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    _run([sys.executable, "-c", program], environment)
    return time.perf_counter() - started


def _run(command: list[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT / "services"), str(ROOT / "shared")])
    basic = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "AWS_DEFAULT_REGION": "us-east-1"}
    return subprocess.run(
        command, env={**basic, **environment}, capture_output=True, text=True, check=True
    )


def _environment(function: str) -> dict[str, str]:
    """As `sam local` gives it, without tracing."""
    known = json.loads((ROOT / "events" / "env.json").read_text(encoding="utf-8"))
    return {**known["Parameters"], **known[function], "AWS_XRAY_SDK_ENABLED": "false"}
