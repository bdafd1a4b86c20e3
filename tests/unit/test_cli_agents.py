"""Enrolling agents and getting their tokens, on a user pool in memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wakala import agents
from wakala.home import home
from wakala.output import Problem
from wakala.stack import Stack


class NotAuthorizedException(Exception):
    """The pool's word for a wrong password."""


class UserNotFoundException(Exception):
    """The pool's word for an unknown user."""


class Pool:
    """What a user pool promises: a password opens, a temporary one only to be changed."""

    exceptions = type(
        "Exceptions",
        (),
        {
            "NotAuthorizedException": NotAuthorizedException,
            "UserNotFoundException": UserNotFoundException,
        },
    )

    def __init__(self) -> None:
        self.users: dict[str, dict[str, Any]] = {}

    def admin_create_user(self, **call: Any) -> None:
        self.users[call["Username"]] = {
            "UserStatus": "FORCE_CHANGE_PASSWORD",
            "UserAttributes": call["UserAttributes"],
            "password": call["TemporaryPassword"],
        }

    def admin_get_user(self, **call: Any) -> dict[str, Any]:
        if call["Username"] not in self.users:
            raise UserNotFoundException
        return self.users[call["Username"]]

    def admin_set_user_password(self, **call: Any) -> None:
        status = "CONFIRMED" if call["Permanent"] else "FORCE_CHANGE_PASSWORD"
        self.users[call["Username"]] |= {"password": call["Password"], "UserStatus": status}

    def initiate_auth(self, **call: Any) -> dict[str, Any]:
        name = call["AuthParameters"]["USERNAME"]
        if self.users[name]["password"] != call["AuthParameters"]["PASSWORD"]:
            raise NotAuthorizedException
        if self.users[name]["UserStatus"] != "CONFIRMED":
            return {"ChallengeName": "NEW_PASSWORD_REQUIRED"}
        return {"AuthenticationResult": {"IdToken": f"token of {name}"}}


class Session:
    """Every client is the pool."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def client(self, _: str, **__: Any) -> Pool:
        return self.pool


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def local(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack on the local engine, with a home of its own."""
    monkeypatch.setenv("WAKALA_HOME", str(tmp_path))
    monkeypatch.delenv(agents.PASSWORD_VARIABLE, raising=False)
    outputs = {"UserPoolId": "pool", "UserPoolClientId": "client"}
    return Stack("wakala", "us-east-1", "http://127.0.0.1:4566", Session(pool), outputs)


@pytest.fixture
def on_aws(local: Stack) -> Stack:
    """The same stack as if it were on AWS."""
    return replace(local, endpoint_url=None)


def test_an_enrolled_agent_gets_a_token_and_enrolling_again_changes_nothing(
    local: Stack, pool: Pool
) -> None:
    assert agents.enroll(local, "AG-001").new
    password = pool.users["AG-001"]["password"]
    assert not agents.enroll(local, "AG-001").new
    assert pool.users["AG-001"]["password"] == password
    assert agents.token(local, "AG-001") == "token of AG-001"
    claim = {"Name": "custom:agentId", "Value": "AG-001"}
    assert pool.users["AG-001"]["UserAttributes"] == [claim]


def test_an_enrolment_that_was_cut_short_is_finished_by_the_next(on_aws: Stack, pool: Pool) -> None:
    attributes = [{"Name": "custom:agentId", "Value": "AG-001"}]
    pool.admin_create_user(Username="AG-001", UserAttributes=attributes, TemporaryPassword="t")
    assert not agents.enroll(on_aws, "AG-001").new
    assert agents.token(on_aws, "AG-001") == "token of AG-001"


def test_made_up_passwords_are_long_and_never_the_same(local: Stack, pool: Pool) -> None:
    for agent_id in ("AG-001", "AG-002"):
        agents.enroll(local, agent_id)
    first, second = (user["password"] for user in pool.users.values())
    assert first != second
    assert len(first) >= 32


def test_a_local_agent_gets_a_token_though_its_password_is_lost(local: Stack, pool: Pool) -> None:
    agents.enroll(local, "AG-001")
    pool.users["AG-001"]["password"] = "changed by somebody"
    assert agents.token(local, "AG-001") == "token of AG-001"
    (home() / "agents" / "pool" / "AG-001").unlink()
    assert agents.token(local, "AG-001") == "token of AG-001"


def test_on_aws_a_password_is_never_replaced_unasked(
    on_aws: Stack, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.enroll(on_aws, "AG-001", "chosen-Secret-1")
    pool.users["AG-001"]["password"] = "changed by the agent"
    with pytest.raises(Problem, match="wrong password for AG-001"):
        agents.token(on_aws, "AG-001", "chosen-Secret-1")
    assert pool.users["AG-001"]["password"] == "changed by the agent"
    assert agents.token(on_aws, "AG-001", "changed by the agent") == "token of AG-001"
    monkeypatch.setenv(agents.PASSWORD_VARIABLE, "changed by the agent")
    assert agents.token(on_aws, "AG-001") == "token of AG-001"


def test_a_password_that_somebody_chose_is_written_nowhere(on_aws: Stack) -> None:
    agents.enroll(on_aws, "AG-001")
    agents.enroll(on_aws, "AG-001", "chosen-Secret-1")
    assert not (home() / "agents" / "pool" / "AG-001").exists()


def test_on_aws_an_unknown_password_is_asked_for_where_nobody_can_type_it(on_aws: Stack) -> None:
    agents.enroll(on_aws, "AG-001")
    (home() / "agents" / "pool" / "AG-001").unlink()
    with pytest.raises(Problem, match="the password of AG-001 is not known here"):
        agents.token(on_aws, "AG-001")


def test_an_agent_that_is_not_enrolled_is_one_line(local: Stack, pool: Pool) -> None:
    pool.admin_create_user(Username="../x", UserAttributes=[], TemporaryPassword="t")
    for agent_id in ("AG-009", "../x"):
        with pytest.raises(Problem, match="unknown agent"):
            agents.token(local, agent_id)


def test_what_is_no_agent_is_not_enrolled(local: Stack, pool: Pool) -> None:
    with pytest.raises(Problem, match="is no agent id"):
        agents.enroll(local, "AG#1")
    pool.admin_create_user(Username="boss", UserAttributes=[], TemporaryPassword="t")
    with pytest.raises(Problem, match="exists and is no agent"):
        agents.enroll(local, "boss")
    assert list(pool.users) == ["boss"]
