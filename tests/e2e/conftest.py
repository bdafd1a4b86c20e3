"""The deployed stack under test: the real template on an engine of its own that enforces IAM."""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.e2e.actors import Agent, BackOffice, free_port, wakala
from wakala import agents
from wakala.home import checkout
from wakala.stack import Stack, Where, open_stack

_next_phone = itertools.count(712_000_000)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """`wakala up --auth` in a home of its own, ended by `wakala down`."""
    os.environ["WAKALA_HOME"] = str(checkout() / ".wakala" / "e2e")
    os.environ.pop("AWS_ENDPOINT_URL", None)
    wakala("up", "--auth", "--port", str(free_port()))
    try:
        yield open_stack(Where())
    finally:
        wakala("down")


@pytest.fixture(scope="session")
def enrol(stack: Stack) -> Iterator[Callable[[str], Agent]]:
    """Enrol an agent and open its app; all of them are closed in the end."""
    with ExitStack() as opened:

        def make(agent_id: str) -> Agent:
            agents.enroll(stack, agent_id)
            headers = {"Authorization": agents.token(stack, agent_id)}
            http = httpx.Client(base_url=stack.api_url, headers=headers, timeout=30)
            return Agent(agent_id, opened.enter_context(http))

        yield make


@pytest.fixture(scope="session")
def agent(enrol: Callable[[str], Agent]) -> Agent:
    """The agent that the cases name."""
    return enrol("AG-001")


@pytest.fixture(scope="session")
def other_agent(enrol: Callable[[str], Agent]) -> Agent:
    """Another agent."""
    return enrol("AG-002")


@pytest.fixture
def phone() -> str:
    """A phone that no other test uses, without a wallet."""
    return f"254{next(_next_phone)}"


@pytest.fixture(scope="session")
def back_office(stack: Stack) -> BackOffice:
    """A back office that listens to everything the system says, through a rule of its own."""
    heard_url = stack.sqs.create_queue(QueueName="back-office")["QueueUrl"]
    heard_arn = stack.sqs.get_queue_attributes(QueueUrl=heard_url, AttributeNames=["QueueArn"])
    bus = stack.output("EventBusName")
    stack.events.put_rule(
        Name="back-office", EventBusName=bus, EventPattern=json.dumps({"source": ["wakala"]})
    )
    target = {"Id": "1", "Arn": heard_arn["Attributes"]["QueueArn"]}
    stack.events.put_targets(Rule="back-office", EventBusName=bus, Targets=[target])  # type: ignore[list-item]
    return BackOffice(stack, heard_url)
