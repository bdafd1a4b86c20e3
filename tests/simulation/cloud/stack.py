"""The template as this engine needs it: names resolved, and who is called by what, as data."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.cloud.errors import Json, Unsupported
from tests.simulation.cloud.tables import ACCOUNT_ID, REGION
from tests.template import TEMPLATE

STACK = "wakala"
_PSEUDO = {
    "AWS::StackName": STACK,
    "AWS::Region": REGION,
    "AWS::AccountId": ACCOUNT_ID,
    "AWS::Partition": "aws",
    "AWS::URLSuffix": "amazonaws.com",
}
NOTHING = object()
"""What `AWS::NoValue` stands for."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """An event source mapping: Lambda takes from a queue or a stream, and calls a function.

    `source` is the logical id of the queue or of the table, `is_stream` tells which. `filters` are
    patterns of which one must match: a queue's message or a stream's record that matches none is
    dropped. The last three are a stream's, whose records are tried again until they are too old:
    `age_s_max` is None where they never are, `on_failure` is the logical id of a queue.
    """

    function: str
    source: str
    is_stream: bool
    batch_size: int
    concurrency_max: int | None
    filters: tuple[Json, ...]
    bisects: bool
    age_s_max: int | None
    on_failure: str | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A function is called with `event` every `rate_s` seconds.

    `dead_letters` is the logical id of the queue that is told of a call that Lambda did not take.
    """

    function: str
    rate_s: int
    event: Json
    dead_letters: str | None


@dataclass(frozen=True, slots=True)
class Function:
    """A function; `handler` is its dotted name, `environment` what it is started with.

    `on_failure` is the logical id of the queue that is told of an asynchronous run that failed.
    """

    name: str
    handler: str
    timeout_s: int
    environment: dict[str, str]
    on_failure: str | None


class Stack:
    """The template with its parameters, of which `parameters` may set some."""

    def __init__(self, parameters: Mapping[str, str] | None = None) -> None:
        self._resources: Json = TEMPLATE["Resources"]
        self._values = {
            name: str(each.get("Default", "")) for name, each in TEMPLATE["Parameters"].items()
        } | dict(parameters or {})
        self.functions: dict[str, Function] = {}
        self.mappings: list[EventSource] = []
        self.schedules: list[Schedule] = []
        for resource in self.of_type("AWS::Serverless::Function").values():
            self._read_function(resource)

    def of_type(self, kind: str) -> dict[str, Json]:
        """The properties of each resource of a type, by logical id, with all names resolved."""
        return {
            name: self.resolved(each["Properties"])
            for name, each in self._resources.items()
            if each["Type"] == kind and self._holds(each.get("Condition"))
        }

    def name(self, logical_id: str) -> str:
        """The name of a table, a queue or a bus."""
        properties = self._resources[logical_id]["Properties"]
        for member in ("TableName", "QueueName", "Name", "FunctionName"):
            if member in properties:
                return str(self.resolved(properties[member]))
        return f"{STACK}-{logical_id}"

    def arn(self, logical_id: str) -> str:
        """The name in full of a table or of a queue; of a stream, its table's."""
        service = {"AWS::DynamoDB::Table": "dynamodb", "AWS::SQS::Queue": "sqs"}
        kind = service.get(self._resources[logical_id]["Type"], "other")
        place = "table/" if kind == "dynamodb" else ""
        return f"arn:aws:{kind}:{REGION}:{ACCOUNT_ID}:{place}{self.name(logical_id)}"

    def logical_id(self, arn: str) -> str:
        """Of the queue or of the table that has this name in full."""
        for name, each in self._resources.items():
            kinds = {"AWS::DynamoDB::Table", "AWS::SQS::Queue"}
            if each["Type"] in kinds and arn == self.arn(name):
                return str(name)
        raise KeyError(arn)

    def resolved(self, value: Any) -> Any:
        """A value without intrinsic functions."""
        if isinstance(value, list):
            listed = [self.resolved(each) for each in value]
            return [each for each in listed if each is not NOTHING]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            [(name, argument)] = value.items()
            if name == "Ref" or name.startswith("Fn::"):
                return self._intrinsic(name, argument)
        made = {name: self.resolved(each) for name, each in value.items()}
        return {name: each for name, each in made.items() if each is not NOTHING}

    def _intrinsic(self, name: str, argument: Any) -> Any:
        match name, argument:
            case "Ref", str() as target:
                return self._ref(target)
            case "Fn::GetAtt", [str() as target, "Arn" | "StreamArn"]:
                return self.arn(target)
            case "Fn::GetAtt", [str() as target, str() as attribute]:
                return f"{target}.{attribute}"
            case "Fn::Sub", str() as text:
                return re.sub(r"\$\{([^}!]+)\}", lambda found: self._substituted(found[1]), text)
            case "Fn::If", [str() as condition, yes, no]:
                return self.resolved(yes if self._holds(condition) else no)
            case "Fn::Equals", [one, other]:
                return self.resolved(one) == self.resolved(other)
            case "Fn::Not", [one]:
                return not self.resolved(one)
            case "Fn::Join", [str() as between, parts]:
                return between.join(map(str, self.resolved(parts)))
            case _:
                raise Unsupported(f"{name} in the template")

    def _ref(self, target: str) -> Any:
        if target == "AWS::NoValue":
            return NOTHING
        if target in self._values or target in _PSEUDO:
            return self._values.get(target) or _PSEUDO.get(target, "")
        if self._resources[target]["Type"] == "AWS::SQS::Queue":
            return f"https://sqs.{REGION}.amazonaws.com/{ACCOUNT_ID}/{self.name(target)}"
        return self.name(target)

    def _substituted(self, name: str) -> str:
        target, _, attribute = name.partition(".")
        if attribute:
            return str(self._intrinsic("Fn::GetAtt", [target, attribute]))
        return str(self._ref(target))

    def _holds(self, condition: str | None) -> bool:
        return condition is None or bool(self.resolved(TEMPLATE["Conditions"][condition]))

    def _read_function(self, resource: Json) -> None:
        environment = {
            **self.resolved(TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]),
            **resource["Environment"]["Variables"],
        }
        name = environment["POWERTOOLS_SERVICE_NAME"]
        asynchronous = resource.get("EventInvokeConfig", {})
        if int(asynchronous.get("MaximumRetryAttempts", 0)):
            raise Unsupported("asynchronous runs that are tried again")
        if "ReservedConcurrentExecutions" in resource:
            raise Unsupported("reserved concurrency")
        self.functions[name] = Function(
            name=name,
            handler=resource["Handler"],
            timeout_s=int(resource["Timeout"]),
            environment={key: str(value) for key, value in environment.items()},
            on_failure=self._destination(asynchronous),
        )
        for event in resource.get("Events", {}).values():
            self._read_event(name, event["Type"], event["Properties"])

    def _read_event(self, function: str, kind: str, members: Json) -> None:
        match kind:
            case "Api":
                return
            case "Schedule":
                self.schedules.append(self._schedule(function, members))
            case "SQS" | "DynamoDB":
                self.mappings.append(self._mapping(function, kind == "DynamoDB", members))
            case _:
                raise Unsupported(f"an event of type {kind}")

    def _schedule(self, function: str, members: Json) -> Schedule:
        found = re.fullmatch(r"rate\((\d+) minutes?\)", members["Schedule"])
        if found is None:
            raise Unsupported(members["Schedule"])
        letters = members.get("DeadLetterConfig", {}).get("Arn")
        return Schedule(
            function=function,
            rate_s=int(found[1]) * 60,
            event=json.loads(members.get("Input", "{}")),
            dead_letters=None if letters is None else self.logical_id(letters),
        )

    def _mapping(self, function: str, is_stream: bool, members: Json) -> EventSource:
        known = {"Queue", "Stream", "BatchSize", "FunctionResponseTypes", "ScalingConfig"}
        known |= {"FilterCriteria", "BisectBatchOnFunctionError", "MaximumRetryAttempts"}
        known |= {"MaximumRecordAgeInSeconds", "ParallelizationFactor", "DestinationConfig"}
        known |= {"StartingPosition"}
        if not known.issuperset(members):
            raise Unsupported(f"a mapping with {sorted(set(members) - known)}")
        if members["FunctionResponseTypes"] != ["ReportBatchItemFailures"]:
            raise Unsupported("a mapping whose function does not say what failed")
        tries = int(members.get("MaximumRetryAttempts", -1))
        if tries != -1 or int(members.get("ParallelizationFactor", 1)) != 1:
            raise Unsupported("a mapping with a limit of tries, or with several batches of a shard")
        filters: Sequence[Json] = members.get("FilterCriteria", {}).get("Filters", ())
        return EventSource(
            function=function,
            source=self.logical_id(members["Stream" if is_stream else "Queue"]),
            is_stream=is_stream,
            batch_size=int(members.get("BatchSize", 100 if is_stream else 10)),
            concurrency_max=_maybe_int(members.get("ScalingConfig", {}).get("MaximumConcurrency")),
            filters=tuple(json.loads(each["Pattern"]) for each in filters),
            bisects=bool(members.get("BisectBatchOnFunctionError", False)),
            age_s_max=_maybe_int(members.get("MaximumRecordAgeInSeconds")),
            on_failure=self._destination(members),
        )

    def _destination(self, members: Json) -> str | None:
        arn = members.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")
        return None if arn is None else self.logical_id(arn)


def _maybe_int(value: Any) -> int | None:
    return None if value is None else int(value)
