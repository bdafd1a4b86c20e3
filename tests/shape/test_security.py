"""docs/security.md against the template: who may do what, how long a token lives, what is typed."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import botocore.model
import botocore.session
import pytest

from tests.template import RESOURCES, ROOT

PAGE = ROOT / "docs" / "security.md"
TEXT = PAGE.read_text(encoding="utf-8")
POOL = RESOURCES["AgentPool"]["Properties"]
CLIENT = RESOURCES["AgentPoolClient"]["Properties"]

INSIDE = {"ForAnyValue:StringEquals": {"dynamodb:EnclosingOperation": ["TransactWriteItems"]}}


def _section(heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def _rows(text: str) -> list[list[str]]:
    lines = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


# --- roles -----------------------------------------------------------------------------------


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _spelt(resource: Any) -> str:
    match resource:
        case {"Fn::GetAtt": [name, attribute]}:
            return f"{name}.{attribute}".removesuffix(".Arn")
        case {"Fn::Sub": str(text)} if ":stack/" in text:
            return "this stack"
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{(\w+)\.Arn\}", r"\1", text)
        case _:
            return str(resource)


def _of_the_template() -> Iterator[str]:
    """A row of the page for each statement of each role and policy, in the template's order."""
    for name, resource in RESOURCES.items():
        properties = resource.get("Properties", {})
        match resource["Type"]:
            case "AWS::IAM::Role":
                documents = [each["PolicyDocument"] for each in properties.get("Policies", [])]
            case "AWS::IAM::ManagedPolicy":
                documents = [properties["PolicyDocument"]]
            case _:
                documents = []
        for document in documents:
            for statement in document["Statement"]:
                yield from _row(name, statement)


def _row(owner: str, statement: dict[str, Any]) -> Iterator[str]:
    actions = _listed(statement["Action"])
    resources = [_spelt(each) for each in _listed(statement["Resource"])]
    own_log = [f"{owner.removesuffix('Role')}LogGroup"]
    if (actions, resources) == (["logs:CreateLogStream", "logs:PutLogEvents"], own_log):
        return  # said in one sentence of all of them
    yield " | ".join(
        [
            f"| `{owner}`",
            ", ".join(f"`{each}`" for each in actions),
            ", ".join(f"`{each}`" if each != "this stack" else each for each in resources),
            f"{_only(statement.get('Condition', {}))} |",
        ]
    )


def _only(condition: dict[str, Any]) -> str:
    if condition == INSIDE:
        return "inside a transaction"
    verbs = {"StringEquals": "is", "StringNotEquals": "is not"}
    said = [
        f"`{name}` {verbs.get(operator, operator)} `{value}`"
        for operator, names in condition.items()
        for name, value in names.items()
    ]
    return ", ".join(said)


def test_the_table_of_roles_is_that_of_the_template() -> None:
    """P11."""
    written = re.findall(
        r"^\| `\w+(?:Role|Policy)` \|.*\|$", _section("What each role may do"), re.MULTILINE
    )
    wanted = list(_of_the_template())
    assert written == wanted, "the table is to be:\n" + "\n".join(wanted)


def test_every_function_may_write_its_own_log_and_roles_are_assumed_by_whom_it_says() -> None:
    assumed = {
        name: resource["Properties"]["AssumeRolePolicyDocument"]["Statement"]
        for name, resource in RESOURCES.items()
        if resource["Type"] == "AWS::IAM::Role"
    }
    for name, (statement,) in assumed.items():
        principal = {
            "AuditorRole": {
                "AWS": {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}
            },
            "ApiLoggingRole": {"Service": "apigateway.amazonaws.com"},
        }.get(name, {"Service": "lambda.amazonaws.com"})
        assert (statement["Effect"], statement["Principal"]) == ("Allow", principal)
        assert statement["Action"] == "sts:AssumeRole"


# --- agents ----------------------------------------------------------------------------------


def test_the_lifetimes_of_tokens_are_those_that_are_set() -> None:
    units = CLIENT["TokenValidityUnits"]
    policy = POOL["Policies"]["PasswordPolicy"]
    wanted = {
        "`IdTokenValidity`": f"{CLIENT['IdTokenValidity']} {units['IdToken']}",
        "`AccessTokenValidity`": f"{CLIENT['AccessTokenValidity']} {units['AccessToken']}",
        "`RefreshTokenValidity`": f"{CLIENT['RefreshTokenValidity']} {units['RefreshToken']}",
        "`TemporaryPasswordValidityDays`": f"{policy['TemporaryPasswordValidityDays']} days",
    }
    assert {row[2]: row[1] for row in _rows(_section("Tokens"))} == wanted


def test_a_lost_token_is_soon_worthless_and_can_be_revoked() -> None:
    assert CLIENT["TokenValidityUnits"] == {
        "IdToken": "minutes",
        "AccessToken": "minutes",
        "RefreshToken": "days",
    }
    assert CLIENT["IdTokenValidity"] <= 60
    assert CLIENT["AccessTokenValidity"] <= 60
    assert CLIENT["RefreshTokenValidity"] <= 30
    assert CLIENT["EnableTokenRevocation"] is True


def test_passwords_are_strong_and_nobody_signs_up_or_recovers_alone() -> None:
    policy = POOL["Policies"]["PasswordPolicy"]
    assert policy["MinimumLength"] >= 14
    kinds = ("Lowercase", "Uppercase", "Numbers", "Symbols")
    assert all(policy[f"Require{kind}"] is True for kind in kinds)
    assert policy["TemporaryPasswordValidityDays"] <= 3
    assert POOL["AdminCreateUserConfig"] == {"AllowAdminCreateUserOnly": True}
    assert POOL["AccountRecoverySetting"]["RecoveryMechanisms"] == [
        {"Name": "admin_only", "Priority": 1}
    ]
    assert CLIENT["GenerateSecret"] is False
    assert CLIENT["PreventUserExistenceErrors"] == "ENABLED"


# --- what is typed ---------------------------------------------------------------------------


def _aws_commands() -> list[list[str]]:
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE))
    found = re.findall(r"^(aws .*)$", text.replace("\\\n", " "), re.MULTILINE)
    return [shlex.split(command) for command in found]


COMMANDS = _aws_commands()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[2])
def test_every_aws_command_of_an_incident_is_one(words: list[str]) -> None:
    model = botocore.session.Session().get_service_model(words[1])
    operation = "".join(part.capitalize() for part in words[2].split("-"))
    shape = model.operation_model(operation).input_shape
    assert isinstance(shape, botocore.model.StructureShape)
    given = {word[2:] for word in words if word.startswith("--")} - {"query", "output"}
    assert given <= {botocore.xform_name(name, "-") for name in shape.members}
    assert {botocore.xform_name(name, "-") for name in shape.required_members} <= given
