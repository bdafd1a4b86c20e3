"""EventBridge: what is put on a bus goes, by the bus's rules, into queues."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.simulation.cloud.errors import AwsError, Json, Unsupported
from tests.simulation.cloud.patterns import matches
from tests.simulation.cloud.tables import ACCOUNT_ID, REGION

ENTRIES_MAX = 10
CALL_BYTES_MAX = 256 * 1024


@dataclass(frozen=True, slots=True)
class Target:
    """Where a rule sends what it matches: a queue's ARN."""

    arn: str


@dataclass(slots=True)
class Rule:
    """A pattern, and the targets of what it matches."""

    name: str
    pattern: Json
    targets: dict[str, Target] = field(default_factory=dict)


@dataclass(slots=True)
class Bus:
    """One bus. `events` is all that it took, in order."""

    name: str
    rules: dict[str, Rule] = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one target."""

    rule: str
    target: Target
    event: Json


class EventBridge:
    """The service: its buses by name, and one `call`.

    `deliver` is told each delivery at once; who replaces it may delay, repeat or reorder them.
    """

    def __init__(self, now_ms: Callable[[], int], deliver: Callable[[Delivery], None]) -> None:
        self.buses: dict[str, Bus] = {}
        self.deliver = deliver
        self._now_ms = now_ms
        self._numbers = itertools.count(1)
        self._operations: dict[str, Callable[[Json], Json]] = {
            "CreateEventBus": self._create_bus,
            "PutRule": self._put_rule,
            "PutTargets": self._put_targets,
            "PutEvents": self._put_events,
        }

    def create_bus(self, name: str) -> Bus:
        """A bus without rules."""
        return self.buses.setdefault(name, Bus(name))

    def call(self, operation: str, body: Json) -> Json:
        """The JSON of the answer. Raises `AwsError`."""
        if operation not in self._operations:
            raise Unsupported(operation)
        return self._operations[operation](body)

    def _create_bus(self, body: Json) -> Json:
        _only(body, {"Name"})
        return {"EventBusArn": _arn("event-bus", self.create_bus(body["Name"]).name)}

    def _put_rule(self, body: Json) -> Json:
        _only(body, {"Name", "EventBusName", "EventPattern"})
        rule = Rule(body["Name"], json.loads(body["EventPattern"]))
        self._bus(body["EventBusName"]).rules[rule.name] = rule
        return {"RuleArn": _arn("rule", rule.name)}

    def _put_targets(self, body: Json) -> Json:
        _only(body, {"Rule", "EventBusName", "Targets"})
        rule = self._bus(body["EventBusName"]).rules[body["Rule"]]
        for each in body["Targets"]:
            _only(each, {"Id", "Arn"})
            rule.targets[each["Id"]] = Target(each["Arn"])
        return {"FailedEntryCount": 0, "FailedEntries": []}

    def _put_events(self, body: Json) -> Json:
        _only(body, {"Entries"})
        entries = body["Entries"]
        if not 1 <= len(entries) <= ENTRIES_MAX:
            raise AwsError("ValidationException", "There are not between 1 and 10 entries")
        if sum(_size(entry) for entry in entries) > CALL_BYTES_MAX:
            raise AwsError("ValidationException", "Total size of the entries is over the limit")
        told = [self._put(entry) for entry in entries]
        failed = sum("ErrorCode" in each for each in told)
        return {"FailedEntryCount": failed, "Entries": told}

    def _put(self, entry: Json) -> Json:
        _only(entry, {"Source", "DetailType", "Detail", "EventBusName"})
        for name in ("Source", "DetailType", "Detail"):
            if not entry.get(name):
                return _refused("InvalidArgument", f"Parameter {name} is not valid.")
        if entry["Source"].startswith("aws."):
            return _refused("NotAuthorizedForSourceException", "Not authorized for the source.")
        try:
            detail = json.loads(entry["Detail"])
        except ValueError:
            detail = None
        if not isinstance(detail, dict):
            return _refused("MalformedDetail", "Detail is malformed.")
        bus = self._bus(entry.get("EventBusName", "default"))
        number = next(self._numbers)
        event: Json = {
            "version": "0",
            "id": f"{number:08x}-0000-4000-9000-{number:012x}",
            "detail-type": entry["DetailType"],
            "source": entry["Source"],
            "account": ACCOUNT_ID,
            "time": datetime.fromtimestamp(self._now_ms() // 1000, UTC).strftime(
                "%Y-%m-%dT%H:%M:%SZ"
            ),
            "region": REGION,
            "resources": [],
            "detail": detail,
        }
        bus.events.append(event)
        for rule in bus.rules.values():
            if matches(rule.pattern, event):
                for target in rule.targets.values():
                    self.deliver(Delivery(rule.name, target, event))
        return {"EventId": event["id"]}

    def _bus(self, name: str) -> Bus:
        bus = self.buses.get(name.rsplit("/", 1)[-1])
        if bus is None:
            raise AwsError("ResourceNotFoundException", f"Event bus {name} does not exist.")
        return bus


def _size(entry: Json) -> int:
    return sum(
        len(str(entry.get(name, "")).encode()) for name in ("Source", "DetailType", "Detail")
    )


def _refused(code: str, message: str) -> Json:
    return {"ErrorCode": code, "ErrorMessage": message}


def _arn(kind: str, name: str) -> str:
    return f"arn:aws:events:{REGION}:{ACCOUNT_ID}:{kind}/{name}"


def _only(body: Json, members: set[str]) -> None:
    if not members.issuperset(body):
        raise Unsupported(f"members {sorted(set(body) - members)}")


def as_message(event: Any) -> str:
    """The body of the message that a queue gets of an event."""
    return json.dumps(event, separators=(",", ":"))
