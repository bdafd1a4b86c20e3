"""Agents: users of the stack's pool, each with an agent id that its tokens carry."""

import os
import secrets
import sys
from dataclasses import dataclass
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from wakala.home import home, write_private
from wakala.output import Problem
from wakala.stack import Stack
from wallet_ledger.domain.ids import is_id

if TYPE_CHECKING:
    from mypy_boto3_cognito_idp.type_defs import AdminGetUserResponseTypeDef

AGENT_CLAIM = "custom:agentId"
PASSWORD_VARIABLE = "WAKALA_AGENT_PASSWORD"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Enrolled:
    """An agent that may ask for tokens; `new` unless it was one before."""

    agent_id: str
    new: bool


def enroll(stack: Stack, agent_id: str, password: str | None = None) -> Enrolled:
    """Give the agent a user whose tokens name it. Again is fine; a new password replaces the old.

    Without `password` one is made up and kept in the home, readable by its owner alone.
    """
    if not is_id(agent_id):
        raise Problem(
            f"{agent_id!r} is no agent id: 1 to 64 of A-Z a-z 0-9 . _ : - with a letter or digit"
            " first"
        )
    user = _find(stack, agent_id)
    if user is None:
        _create(stack, agent_id)
    elif _claim(user) != agent_id:
        raise Problem(f"the user {agent_id} exists and is no agent: its {AGENT_CLAIM} differs")
    settled = user is not None and user["UserStatus"] == "CONFIRMED"
    if password is not None:
        _set_password(stack, agent_id, password)
        _password_path(stack, agent_id).unlink(missing_ok=True)  # only made-up ones are kept
    elif not settled:
        _make_up_password(stack, agent_id)
    return Enrolled(agent_id, new=user is None)


def token(stack: Stack, agent_id: str, password: str | None = None) -> str:
    """A fresh ID token. Problem for an agent that is not enrolled, or a wrong password."""
    user = _find(stack, agent_id) if is_id(agent_id) else None
    if user is None:
        raise Problem(
            f"unknown agent {agent_id}: enroll it first with `wakala agent enroll {agent_id}`"
        )
    given = password or os.environ.get(PASSWORD_VARIABLE) or _kept_password(stack, agent_id)
    if given is None:
        given = _new_or_asked_password(stack, agent_id)
    found = _authenticate(stack, agent_id, given)
    if found is None and stack.local and password is None:
        # Locally the operator owns every agent: a password that somebody changed is replaced.
        given = _make_up_password(stack, agent_id)
        found = _authenticate(stack, agent_id, given)
    if found is None:
        raise Problem(f"wrong password for {agent_id}")
    return found


def _authenticate(stack: Stack, agent_id: str, password: str) -> str | None:
    try:
        answer = stack.cognito.initiate_auth(
            ClientId=stack.output("UserPoolClientId"),
            AuthFlow="USER_PASSWORD_AUTH",
            AuthParameters={"USERNAME": agent_id, "PASSWORD": password},
        )
    except stack.cognito.exceptions.NotAuthorizedException:
        return None
    if "AuthenticationResult" not in answer:
        raise Problem(f"{agent_id} must first meet the challenge {answer.get('ChallengeName')}")
    return answer["AuthenticationResult"]["IdToken"]


def _find(stack: Stack, agent_id: str) -> "AdminGetUserResponseTypeDef | None":
    try:
        return stack.cognito.admin_get_user(
            UserPoolId=stack.output("UserPoolId"), Username=agent_id
        )
    except stack.cognito.exceptions.UserNotFoundException:
        return None


def _create(stack: Stack, agent_id: str) -> None:
    try:
        stack.cognito.admin_create_user(
            UserPoolId=stack.output("UserPoolId"),
            Username=agent_id,
            UserAttributes=[{"Name": AGENT_CLAIM, "Value": agent_id}],
            TemporaryPassword=_made_up_password(),
            MessageAction="SUPPRESS",
        )
    except ClientError as error:
        # Somebody enrolled it a moment ago: that is what was asked for.
        if error.response["Error"].get("Code") != "UsernameExistsException":
            raise


def _claim(user: "AdminGetUserResponseTypeDef") -> str | None:
    attributes = {a["Name"]: a.get("Value") for a in user.get("UserAttributes", [])}
    return attributes.get(AGENT_CLAIM)


def _set_password(stack: Stack, agent_id: str, password: str) -> None:
    stack.cognito.admin_set_user_password(
        UserPoolId=stack.output("UserPoolId"),
        Username=agent_id,
        Password=password,
        Permanent=True,
    )


def _make_up_password(stack: Stack, agent_id: str) -> str:
    """A new password, set and kept."""
    made_up = _made_up_password()
    _set_password(stack, agent_id, made_up)
    write_private(_password_path(stack, agent_id), made_up)
    return made_up


def _new_or_asked_password(stack: Stack, agent_id: str) -> str:
    if stack.local:
        return _make_up_password(stack, agent_id)
    if not sys.stdin.isatty():
        raise Problem(
            f"the password of {agent_id} is not known here: give --password or {PASSWORD_VARIABLE}"
        )
    return getpass(f"Password of {agent_id}: ", stream=sys.stderr)


def _kept_password(stack: Stack, agent_id: str) -> str | None:
    path = _password_path(stack, agent_id)
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _password_path(stack: Stack, agent_id: str) -> Path:
    return home() / "agents" / stack.output("UserPoolId") / agent_id


def _made_up_password() -> str:
    """Random, with the kinds of characters that a strict pool policy asks for."""
    return f"{secrets.token_urlsafe(24)}aA1!"
