"""A stack whose functions live in a storm: AWS fails them by seed, and their workers are killed.

microburst stands between the functions and the engine. The engine gives its own environment on to
the functions, so an AWS_ENDPOINT_URL there leads their clients through the proxy, and nothing
else: deployment, tests and the engine's own deliveries speak to the engine directly.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.actors import eventually, free_port, sweep
from wakala import deploy, engine
from wakala.home import home
from wakala.stack import DEFAULT_STACK, Stack, Where, open_stack

SERVICES = ("dynamodb", "sqs", "events")
"""What the functions call, by microburst's names."""

WRITES = (
    ("dynamodb", "PutItem"),
    ("dynamodb", "UpdateItem"),
    ("dynamodb", "TransactWriteItems"),
    ("sqs", "SendMessage"),
    ("sqs", "SendMessageBatch"),
    ("sqs", "ChangeMessageVisibilityBatch"),
    ("events", "PutEvents"),
)
"""What may be done although its answer is lost."""

CLIENT_PATIENCE_MS = 2_000
"""How long a function's client waits for an answer (`wallet_ledger.aws.clients`)."""

REST_S = 4
"""How long a message rests here that a killed worker held: the template's minute, made short."""

RECEIVES_MAX = 2
"""After how many receives a message is a letter here: the template's ten or five, made few."""

KILLS_EVERY_S = (0.6, 2.0)
"""Least and longest time between two kills."""

IDLE_SPARED_S = 1.0
"""How long a kill is put off for a worker that is at work."""

LOOK_S = 0.2
"""How often one looks which workers there are: none starts and ends in less."""

STARTER = """
import os, random, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
random.seed(int(sys.argv.pop(1)))
from microburst.cli import main
sys.exit(main())
"""
"""microburst draws from the module's generator, which nothing else in its process uses.

It ends when whoever started it does, however that ends: then nobody holds the other end of stdin.
"""

_WORKER = re.compile(
    r"\s*(?P<pid>\d+)\s+(?P<parent>\d+)\s+(?P<state>\S+)"
    r"\s.*ministack-lambda-(?P<function>\S+)-[^-/]+/_worker\.py"
)


def _fails(service: str, code: str, status: int, **when: Any) -> dict[str, Any]:
    return {"service": service, "error": {"code": code, "status": status}, **when}


FAULTS: Mapping[str, tuple[dict[str, Any], ...]] = {
    # A service that is away for some calls in a row: no second attempt of the client helps.
    "outage": (
        _fails("dynamodb", "InternalServerError", 500, sequence={"fail": 5, "pass": 150}),
        _fails("sqs", "InternalFailure", 500, sequence={"fail": 5, "pass": 40}),
        _fails("events", "InternalException", 500, sequence={"fail": 5, "pass": 20}),
    ),
    "throttled": (
        _fails("dynamodb", "ProvisionedThroughputExceededException", 400, probability=0.06),
        _fails("sqs", "RequestThrottled", 403, probability=0.06),
        _fails("events", "ThrottlingException", 400, probability=0.06),
    ),
    "conflict": tuple(
        _fails("dynamodb", "TransactionConflictException", 400, operation=each, probability=0.06)
        for each in ("PutItem", "UpdateItem")
    ),
    "reset": ({"service": "*", "reset": True, "probability": 0.05},),
    # It arrives when the client has given it up, and after what the client did next.
    "late": (
        {
            "service": "*",
            "latency": {"min": CLIENT_PATIENCE_MS + 200, "max": CLIENT_PATIENCE_MS + 800},
            "probability": 0.012,
        },
    ),
    "delayed": ({"service": "*", "latency": {"min": 20, "max": 300}, "probability": 0.08},),
    # The engine has done it, and the client hears of a broken connection.
    "lost": tuple(
        {
            "service": service,
            "operation": operation,
            "response": {"abort_frac": 0.5},
            "probability": 0.07,
        }
        for service, operation in WRITES
    ),
}
"""microburst's rules for each kind of fault, of which the first one that is drawn is taken."""


@dataclass
class Proxy:
    """microburst between the functions and the engine; `kinds`: what each rule's id stands for."""

    url: str
    kinds: dict[int, str] = field(default_factory=dict)

    def break_loose(self) -> None:
        """From now on calls fail."""
        rules = [(kind, rule) for kind, each in FAULTS.items() for rule in each]
        made = self._control("POST", "rules", [rule for _, rule in rules])
        self.kinds |= {rule["id"]: kind for rule, (kind, _) in zip(made, rules, strict=True)}

    def calm_down(self) -> None:
        """No call fails any more."""
        self._control("POST", "rules", [])

    def injected(self) -> "Counter[str]":
        """How often each kind of fault has happened."""
        found: Counter[str] = Counter()
        for rule in self._control("GET", "stats")["by_rule"]:
            found[self.kinds[rule["id"]]] += rule["fired"]
        return found

    def lost(self) -> "Counter[str]":
        """How many answers were lost, by operation."""
        text = httpx.get(f"{self.url}/_microburst/metrics").text
        found: Counter[str] = Counter()
        wanted = r'operation="(\w+)",action="response:abort"} (\d+)'
        for operation, number in re.findall(wanted, text):
            found[operation] += int(number)
        return found

    def calls(self) -> dict[str, int]:
        """How many calls have come, by service."""
        found = self._control("GET", "stats")["by_service"]
        return {each["service"]: each["requests"] for each in found}

    def _control(self, method: str, what: str, body: object = None) -> Any:
        answer = httpx.request(method, f"{self.url}/_microburst/{what}", json=body, timeout=10)
        answer.raise_for_status()
        return answer.json()


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of the engine's that runs one function; `busy`: it is computing this moment."""

    pid: int
    function: str
    busy: bool


@dataclass
class EngineLog:
    """What the engine says of its workers, read as it is written."""

    path: Path
    _started: "Counter[str]" = field(default_factory=Counter)
    _died: int = 0
    _read: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def started(self) -> "Counter[str]":
        """How many workers of each function have ever been ready for work."""
        self._read_on()
        return self._started.copy()

    def died_at_work(self) -> int:
        """How many deliveries by a queue or a stream have ended with their worker's death."""
        self._read_on()
        return self._died

    def _read_on(self) -> None:
        with self._lock, self.path.open("rb") as log:
            log.seek(self._read)
            text = log.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            said = whole.decode(errors="replace")
            self._started.update(re.findall(r"Lambda worker spawned for (\S+)", said))
            self._died += said.count("errorMessage=Worker process died")


@dataclass(frozen=True, slots=True)
class Harm:
    """What was done to the functions.

    `injected`: faults by kind. `lost`: the answers that were, by operation. `died_at_work`:
    deliveries by a queue or a stream that ended with their worker.
    """

    injected: "Counter[str]"
    lost: "Counter[str]"
    died_at_work: int

    def __sub__(self, earlier: "Harm") -> "Harm":
        """What was done since."""
        return Harm(
            self.injected - earlier.injected,
            self.lost - earlier.lost,
            self.died_at_work - earlier.died_at_work,
        )

    def least(self) -> int:
        """How often the rarest of all has happened."""
        return min(self.died_at_work, *(self.injected[kind] for kind in FAULTS))


@dataclass(frozen=True)
class StormyStack:
    """A deployed stack, the proxy before its functions, and the engine that runs them."""

    stack: Stack
    proxy: Proxy
    engine: engine.Engine
    log: "EngineLog"

    def harm(self) -> Harm:
        """What was done to its functions so far."""
        return Harm(self.proxy.injected(), self.proxy.lost(), self.log.died_at_work())


@contextmanager
def stormy_stack(folder: Path, seed: int) -> Iterator[StormyStack]:
    """The template on an engine of its own, whose functions call AWS through microburst."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WAKALA_HOME", str(folder))
        patch.delenv("AWS_ENDPOINT_URL", raising=False)
        deploy.down()  # what a killed run has left
        port = free_port()
        with microburst(f"http://{engine.LOOPBACK}:{port}", seed) as proxy:
            _lead_functions_to(proxy.url, patch)
            try:
                deploy.up(DEFAULT_STACK, port, auth=False)
                started = engine.running()
                assert started is not None
                stack = open_stack(Where())
                log = EngineLog(home() / "logs" / "engine.log")
                yield StormyStack(stack, proxy, started, log)
            finally:
                deploy.down()


@contextmanager
def storm(over: StormyStack, seed: int) -> Iterator["Counter[str]"]:
    """Calls fail and workers are killed meanwhile; how many of each function, counted as they go.

    The seed decides which function's worker is killed and when, not what it does at that moment.
    """
    killed: Counter[str] = Counter()
    ended = threading.Event()
    thread = threading.Thread(target=_Executioner(over, seed, killed).work, args=(ended,))
    hasten(over.stack, ())
    over.proxy.break_loose()
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()
        over.proxy.calm_down()


def workers(engine_pid: int) -> list[Worker]:
    """The processes of functions that run, or ran and wait for more work."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,command="],  # noqa: S607 - wherever it is
        capture_output=True,
        text=True,
        check=True,
    )
    found = [match for line in listed.stdout.splitlines() if (match := _WORKER.match(line))]
    return [
        Worker(int(each["pid"]), each["function"], each["state"].startswith("R"))
        for each in found
        if int(each["parent"]) == engine_pid
    ]


class _Executioner:
    """Kills workers of functions none of whose workers is still starting.

    One that dies while it starts makes the engine discard all workers of its function and their
    code, also from under those that start beside it: then the engine fails, not the function.
    """

    def __init__(self, over: StormyStack, seed: int, killed: "Counter[str]") -> None:
        self._over = over
        self._chance = random.Random(seed)
        self._killed = killed
        self._seen: dict[str, set[int]] = {}
        self._earlier = over.log.started()
        for each in workers(over.engine.pid):  # the storm finds them ready
            self._earlier[each.function] -= 1

    def work(self, ended: threading.Event) -> None:
        """One kill after the other, until the storm is over."""
        due_s = self._next_s()
        while not ended.wait(LOOK_S):
            ready = self._ready()
            busy = [each for each in ready if each.busy]
            overdue_s = time.monotonic() - due_s
            if overdue_s >= 0 and (busy or (ready and overdue_s > IDLE_SPARED_S)):
                self._kill_one_of(busy or ready)
                due_s = self._next_s()

    def _ready(self) -> list[Worker]:
        found = workers(self._over.engine.pid)
        for each in found:
            self._seen.setdefault(each.function, set()).add(each.pid)
        started = self._over.log.started()
        started.subtract(self._earlier)
        return [each for each in found if started[each.function] >= len(self._seen[each.function])]

    def _kill_one_of(self, found: Sequence[Worker]) -> None:
        function = self._chance.choice(sorted({each.function for each in found}))
        victim = self._chance.choice([each for each in found if each.function == function])
        with suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGKILL)
            self._killed[function] += 1

    def _next_s(self) -> float:
        return time.monotonic() + self._chance.uniform(*KILLS_EVERY_S)


@contextmanager
def microburst(upstream: str, seed: int) -> Iterator[Proxy]:
    """The proxy in a process of its own, without rules at first."""
    port = free_port()
    command = [sys.executable, "-c", STARTER, str(seed)]
    options = ["--upstream", upstream, "--host", engine.LOOPBACK, "--port", str(port)]
    log_path = home() / "logs" / "microburst.log"
    log_path.parent.mkdir(exist_ok=True)
    with log_path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, *options], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
        )
    proxy = Proxy(f"http://{engine.LOOPBACK}:{port}")
    with process:
        try:
            eventually(lambda: answers(proxy.url) or None, "an answer from microburst")
            yield proxy
        finally:
            process.kill()  # asked politely, it waits a minute for connections that nobody uses


def answers(proxy_url: str) -> bool:
    """Whether microburst is there."""
    with suppress(httpx.TransportError):
        return httpx.get(f"{proxy_url}/_microburst/health").status_code == 200
    return False


def _lead_functions_to(url: str, patch: pytest.MonkeyPatch) -> None:
    """The engine's environment as ever, and in it the address that functions inherit."""
    usual = engine._engine_environment

    def stormy(port: int, *, auth: bool) -> dict[str, str]:
        return usual(port, auth=auth) | {"AWS_ENDPOINT_URL": url}

    patch.setattr(engine, "_engine_environment", stormy)


def queues(stack: Stack) -> dict[str, str]:
    """The address of each queue, by its name among the outputs."""
    return {name: url for name, url in stack.outputs.items() if "/000000000000/" in url}


def hasten(stack: Stack, owed: Sequence[Mapping[str, Any]]) -> None:
    """Hours pass in seconds: one sweep now, for which the rows that are owed something are due.

    What a killed worker held comes again, or is a letter, within the test's patience.
    """
    _let_messages_come_soon(stack)
    for row in owed:
        key: Any = {name: row[name] for name in ("agentId", "idempotencyKey")}
        with suppress(stack.dynamodb.exceptions.ConditionalCheckFailedException):  # it has ended
            stack.dynamodb.update_item(
                TableName=stack.output("OfflineTxTable"),
                Key=key,
                UpdateExpression="SET nextSweepAt = :at",
                ConditionExpression="attribute_exists(openShard)",
                ExpressionAttributeValues={":at": {"N": "1"}},
            )
    sweep(stack)


def _let_messages_come_soon(stack: Stack) -> None:
    """All queues, but for the receives of Inbox.

    Its letters nobody could redrive here: this engine does not tell triage which queue gave one
    up. On AWS the record says.
    """
    for name, url in queues(stack).items():
        attributes: Any = {"VisibilityTimeout": str(REST_S)}
        there = stack.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
        policy = there.get("Attributes", {}).get("RedrivePolicy")
        if policy is not None and name != "InboxQueueUrl":
            letter_after = {"maxReceiveCount": RECEIVES_MAX}
            attributes["RedrivePolicy"] = json.dumps(json.loads(policy) | letter_after)
        stack.sqs.set_queue_attributes(QueueUrl=url, Attributes=attributes)
