"""What each function may ask of AWS, read off its role, and what it asks."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.simulation.crashes.line import Call, stack
from tests.template import RESOURCES, ROOT

type Grant = tuple[str, str, str]
"""A function, an action of IAM, and the resource's logical id."""

LAMBDA_ASKS = frozenset(
    {
        "sqs:ReceiveMessage",
        "sqs:DeleteMessage",
        "dynamodb:DescribeStream",
        "dynamodb:GetRecords",
        "dynamodb:GetShardIterator",
        "dynamodb:ListStreams",
        "sqs:SendMessage",
        "logs:CreateLogStream",
        "logs:PutLogEvents",
    }
)
"""Actions that Lambda itself makes for a function, with the function's role: it polls, logs, and
sends what an asynchronous run left (`sqs:SendMessage` alone; our own sending is `SendMessage*`)."""

_ACTIONS = {
    "SendMessageBatch": "sqs:SendMessage*",
    "ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility*",
    "GetQueueAttributes": "sqs:GetQueueAttributes",
    "PutEvents": "events:PutEvents",
    "Put": "dynamodb:PutItem",
    "Update": "dynamodb:UpdateItem",
    "Delete": "dynamodb:DeleteItem",
    "ConditionCheck": "dynamodb:ConditionCheckItem",
    "Get": "dynamodb:GetItem",
}


_READS = frozenset(
    {
        "dynamodb:GetItem",
        "dynamodb:Query",
        "dynamodb:ConditionCheckItem",
        "sqs:GetQueueAttributes",
    }
)


def granted() -> set[Grant]:
    """All that the roles of the functions grant, but for what Lambda asks."""
    found: set[Grant] = set()
    for resource in RESOURCES.values():
        if resource["Type"] != "AWS::Serverless::Function":
            continue
        properties = resource["Properties"]
        name = properties["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"]
        [role, _] = properties["Role"]["Fn::GetAtt"]
        polled = {each.source for each in stack().mappings if each.function == name}
        for action, target in _statements(RESOURCES[role]["Properties"]["Policies"]):
            polls = action == "sqs:GetQueueAttributes" and target in polled
            if action not in LAMBDA_ASKS and not polls:
                found.add((name, action, target))
    return found


def shared(one: str, other: str) -> set[str]:
    """Tables, queues and buses that one of two functions may change and the other may use."""
    written: dict[str, set[str]] = {one: set(), other: set()}
    touched: dict[str, set[str]] = {one: set(), other: set()}
    for function, action, target in granted():
        if function in touched:
            place = target.partition("/")[0]
            touched[function].add(place)
            if action not in _READS:
                written[function].add(place)
    return written[one] & touched[other] | written[other] & touched[one]


def _statements(policies: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for policy in policies:
        for statement in policy["PolicyDocument"]["Statement"]:
            for action in _listed(statement["Action"]):
                for resource in _listed(statement["Resource"]):
                    yield action, _logical(resource)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _logical(resource: dict[str, Any]) -> str:
    match resource:
        case {"Fn::GetAtt": [name, _]}:
            return str(name)
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{(\w+)\.Arn\}", r"\1", text)
        case _:
            raise AssertionError(f"a resource that nobody knows: {resource}")


def asked(calls: list[Call]) -> set[Grant]:
    """What must be granted for these calls."""
    kinds = ("AWS::DynamoDB::Table", "AWS::SQS::Queue", "AWS::Events::EventBus")
    logical = {
        stack().name(name): name for name, each in RESOURCES.items() if each["Type"] in kinds
    }
    found: set[Grant] = set()
    for call in calls:
        for action, target in call.parts:
            name, slash, index = target.partition("/")
            known = _ACTIONS.get(action, f"dynamodb:{action}")
            found.add((call.function, known, logical[name] + slash + index))
    return found


def client_calls() -> set[tuple[str, int, int, str]]:
    """Every place of our code that calls a client: file, first and last line, and the method."""
    found = set()
    for folder in ("shared/wallet_ledger", "services"):
        for path in (ROOT / folder).rglob("*.py"):
            found |= {(path.name, *each) for each in _calls_in(path)}
    return found


def _calls_in(path: Path) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="_client"), attr=method)):
                yield node.lineno, node.end_lineno or node.lineno, method
            case _:
                continue
