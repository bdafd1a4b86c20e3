"""The functions as the template declares them: their handlers, unchanged, and what drives them."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.contract.functions import HANDLERS
from tests.simulation import processes
from tests.template import RESOURCES, TEMPLATE
from wallet_ledger.aws import clients

type Handler = Callable[[dict[str, Any], Any], Any]

STACK = "wakala"
REGION = "us-east-1"
ACCOUNT_ID = "000000000000"
SQS_URL = f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT_ID}"


def physical(logical_id: str) -> str:
    """The name of a table, queue or bus of the stack."""
    declared = RESOURCES[logical_id]["Properties"]
    named = declared.get("TableName") or declared.get("QueueName") or declared.get("Name")
    return str(_resolve(named))


def queue_url(logical_id: str) -> str:
    """Where a queue is called."""
    return f"{SQS_URL}/{physical(logical_id)}"


def arn_of(value: Any) -> str:
    """What a `GetAtt Arn` of a queue stands for."""
    return str(_resolve(value))


def _resolve(value: Any) -> Any:
    """As much of CloudFormation as the functions' own resources need."""
    match value:
        case {"Ref": "AWS::StackName"}:
            return STACK
        case {"Ref": name} if name in RESOURCES:
            queue = RESOURCES[name]["Type"] == "AWS::SQS::Queue"
            return queue_url(name) if queue else physical(name)
        case {"Ref": name}:
            return TEMPLATE["Parameters"][name]["Default"]
        case {"Fn::GetAtt": [name, "Arn"]}:
            return f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{physical(name)}"
        case {"Fn::Sub": text}:
            return text.replace("${AWS::StackName}", STACK)
        case _:
            return value


@dataclass(frozen=True, slots=True)
class Mapped:
    """A queue or a stream that starts a function. `function` is one of `HANDLERS`."""

    function: str
    kind: str
    source: str
    batch_max: int
    concurrency: int
    filters: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Declared:
    """What the template says of one function."""

    name: str
    timeout_ms: int
    environment: Mapping[str, str]
    mappings: tuple[Mapped, ...]
    scheduled: Mapping[str, Any] | None
    """The input of the schedule's runs, an empty one standing for the event itself."""


def _declared() -> dict[str, Declared]:
    found = {}
    for resource in RESOURCES.values():
        if resource["Type"] != "AWS::Serverless::Function":
            continue
        properties = resource["Properties"]
        name = _resolve(properties["FunctionName"]).removeprefix(f"{STACK}-")
        variables = properties["Environment"]["Variables"]
        environment = {key: str(_resolve(value)) for key, value in variables.items()}
        timeout_ms = int(properties["Timeout"]) * 1000
        mappings: list[Mapped] = []
        scheduled: Mapping[str, Any] | None = None
        for event in properties["Events"].values():
            if event["Type"] == "Schedule":
                scheduled = json.loads(event["Properties"].get("Input", "{}"))
            elif event["Type"] in {"SQS", "DynamoDB"}:
                mappings.append(_mapped(name, event))
        found[name] = Declared(name, timeout_ms, environment, tuple(mappings), scheduled)
    assert found.keys() == HANDLERS.keys()
    return found


def _mapped(function: str, event: Mapping[str, Any]) -> Mapped:
    properties = event["Properties"]
    batch_max = int(properties["BatchSize"])
    filters = properties.get("FilterCriteria", {}).get("Filters", [])
    if event["Type"] == "SQS":
        [source, _] = properties["Queue"]["Fn::GetAtt"]
        limit = _resolve(properties["ScalingConfig"]["MaximumConcurrency"])
        return Mapped(function, "queue", source, batch_max, int(limit))
    [source, _] = properties["Stream"]["Fn::GetAtt"]
    limit = _resolve(properties["ParallelizationFactor"])
    patterns = tuple(json.loads(each["Pattern"]) for each in filters)
    return Mapped(function, "stream", source, batch_max, int(limit), patterns)


DECLARED = _declared()


@cache
def handlers(retention_days: int, budget_ms: int) -> dict[str, Handler]:
    """Each handler, imported afresh with the environment that the template gives it.

    Of the deployer's parameters, two are not as by default: RetentionDays and LatencyBudgetMs.
    """
    made = {}
    create = clients._create

    def attached(service: str, attempts: int = clients.ATTEMPTS) -> Any:
        client = create(service, attempts)
        processes.attach(client, attempts)
        return client

    clients._create = attached
    try:
        for name, module in HANDLERS.items():
            chosen = {"RETENTION_DAYS": retention_days, "LATENCY_BUDGET_MS": budget_ms}
            environment = {
                variable: str(chosen.get(variable, value))
                for variable, value in DECLARED[name].environment.items()
            }
            with _environment(environment):
                sys.modules.pop(module, None)
                made[name] = importlib.import_module(module).handle
                del sys.modules[module]
    finally:
        clients._create = create
    return made


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
