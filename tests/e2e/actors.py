"""Who acts on the deployed stack in these tests, and how one waits for what they cause."""

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from wakala.home import checkout
from wakala.stack import Stack

DEADLINE_S = 30.0
POLL_S = 0.05


def wakala(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command of this checkout as a person does."""
    sources = os.pathsep.join(str(checkout() / name) for name in ("cli", "shared"))
    done = subprocess.run(
        [sys.executable, "-m", "wakala", *arguments],
        cwd=checkout(),
        env=os.environ | {"PYTHONPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode != 0:
        pytest.fail(f"wakala {' '.join(arguments)}: {done.stderr}")
    return done


def free_port() -> int:
    """A loopback port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually[Value](
    look: Callable[[], Value | None], what: str, within_s: float = DEADLINE_S
) -> Value:
    """Poll until `look` finds something; fail where the deadline comes first."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_S)
    pytest.fail(f"{what}: not within {within_s:.0f} s")


@dataclass(frozen=True)
class Agent:
    """An enrolled agent's app, without the app's own retries: every answer is looked at."""

    agent_id: str
    http: httpx.Client

    def transaction(self, phone: str, amount: int, **members: Any) -> dict[str, Any]:
        """A request with a key of its own."""
        made = {
            "agentId": self.agent_id,
            "phone": phone,
            "amount": amount,
            "idempotencyKey": str(uuid.uuid4()),
        }
        return made | members

    def submit(self, transaction: dict[str, Any]) -> httpx.Response:
        """POST /tx/offline."""
        return self.http.post("/tx/offline", json=transaction)

    def batch(self, *transactions: Any) -> list[dict[str, Any]]:
        """POST /tx/offline/batch → its results."""
        answer = self.http.post("/tx/offline/batch", json={"transactions": transactions})
        assert answer.status_code == 200, answer.text
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    def status(self, key: str) -> httpx.Response:
        """GET /tx/status/{key}."""
        return self.http.get(f"/tx/status/{key}")

    def refund(self, key: str, **members: Any) -> httpx.Response:
        """POST /tx/{key}/refund."""
        return self.http.post(f"/tx/{key}/refund", json={"reason": "wrong amount"} | members)

    def ended(self, key: str) -> dict[str, Any]:
        """The status once it is terminal."""

        def look() -> dict[str, Any] | None:
            view: dict[str, Any] = self.status(key).json()
            return None if view["status"] == "queued" else view

        return eventually(look, "a terminal status")

    def became(self, key: str, status: str) -> dict[str, Any]:
        """The view of a transaction once it has this status."""

        def look() -> dict[str, Any] | None:
            view: dict[str, Any] = self.status(key).json()
            return view if view["status"] == status else None

        return eventually(look, f"the status {status}")


@dataclass(frozen=True)
class BackOffice:
    """What a back office does: puts requests on the bus, and listens to the bus."""

    stack: Stack
    heard_url: str
    heard: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def ask(self, detail_type: str, **detail: Any) -> None:
        """Put one request on the bus."""
        answer = self.stack.events.put_events(
            Entries=[
                {
                    "EventBusName": self.stack.output("EventBusName"),
                    "Source": "back-office",
                    "DetailType": detail_type,
                    "Detail": json.dumps(detail),
                }
            ]
        )
        assert answer["FailedEntryCount"] == 0

    def fund(self, phone: str, amount: int) -> None:
        """Credit a wallet and wait until it shows."""
        before = self.balance(phone) or 0
        credit_id = str(uuid.uuid4())
        self.ask(
            "WalletCreditRequested",
            phone=phone,
            amount=amount,
            source="bank",
            creditId=credit_id,
        )
        eventually(lambda: self.balance(phone) == before + amount or None, "the credit")

    def wallet(self, phone: str) -> dict[str, Any] | None:
        """`wakala wallet show`, None for a phone without a wallet."""
        done = wakala("wallet", "show", phone, "--json", check=False)
        shown: dict[str, Any] | None = json.loads(done.stdout) if done.returncode == 0 else None
        return shown

    def balance(self, phone: str) -> int | None:
        """The balance in minor units, read from the table."""
        answer = self.stack.dynamodb.get_item(
            TableName=self.stack.output("WalletLedgerTable"),
            Key={"phone": {"S": phone}, "txId": {"S": "balance"}},
            ConsistentRead=True,
        )
        return int(answer["Item"]["balanceMinor"]["N"]) if "Item" in answer else None

    def change_status(self, phone: str, status: str) -> None:
        """Open, freeze or thaw a wallet, and wait until it is done."""
        request_id = str(uuid.uuid4())
        self.ask(
            "WalletStatusRequested",
            phone=phone,
            status=status,
            source="compliance",
            requestId=request_id,
        )
        self.hear("WalletStatusChanged", requestId=request_id, status=status)

    def hear(
        self, detail_type: str, within_s: float = DEADLINE_S, **members: Any
    ) -> dict[str, Any]:
        """The detail of an event on the bus with these members, once it is there."""
        what = f"{detail_type} {members}"
        return eventually(lambda: self._heard(detail_type, members), what, within_s)

    def _heard(self, detail_type: str, members: dict[str, Any]) -> dict[str, Any] | None:
        arrived = _drain(self.stack, self.heard_url)
        self.heard.extend((event["detail-type"], event["detail"]) for event in arrived)
        for kind, detail in self.heard:
            if kind == detail_type and members.items() <= detail.items():
                return detail
        return None


@contextmanager
def away(stack: Stack, function: str) -> Iterator[None]:
    """A function takes nothing from its queue meanwhile."""
    client = stack.session.client("lambda")
    mapping = client.list_event_source_mappings(FunctionName=f"{stack.name}-{function}")
    uuid_ = mapping["EventSourceMappings"][0]["UUID"]
    client.update_event_source_mapping(UUID=uuid_, Enabled=False)
    try:
        yield
    finally:
        client.update_event_source_mapping(UUID=uuid_, Enabled=True)


def waiting(stack: Stack, queue_url: str, phone: str, count: int) -> list[str]:
    """The bodies of a phone's messages once there are so many, left in the queue."""

    def look() -> list[str] | None:
        answer = stack.sqs.receive_message(
            QueueUrl=queue_url, MaxNumberOfMessages=10, VisibilityTimeout=0
        )
        bodies = [message["Body"] for message in answer.get("Messages", [])]
        ours = [body for body in bodies if phone in body]
        return ours if len(ours) == count else None

    return eventually(look, f"{count} messages in the queue")


def make_due(stack: Stack, agent: Agent, key: str, **attributes: int) -> None:
    """The next sweep takes the row up; with `expires_at_s` it may find it too old."""
    values: dict[str, Any] = {":at": {"N": "1"}}
    update = "SET nextSweepAt = :at"
    if "expires_at_s" in attributes:
        values[":expires"] = {"N": str(attributes["expires_at_s"])}
        update += ", expiresAt = :expires"
    stack.dynamodb.update_item(
        TableName=stack.output("OfflineTxTable"),
        Key={"agentId": {"S": agent.agent_id}, "idempotencyKey": {"S": key}},
        UpdateExpression=update,
        ExpressionAttributeValues=values,
    )


def sweep(stack: Stack) -> None:
    """One run of the sweep, now."""
    client = stack.session.client("lambda")
    answer = client.invoke(FunctionName=f"{stack.name}-sweep", Payload=b"{}")
    assert "FunctionError" not in answer


def log_lines(stack: Stack) -> Iterator[tuple[str, str]]:
    """Log group and text of each line that the functions have written."""
    logs = stack.session.client("logs")
    groups = logs.describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{stack.name}")["logGroups"]
    for group in groups:
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group["logGroupName"])
        for page in pages:
            for event in page["events"]:
                yield group["logGroupName"], event["message"]


def ask_desk(stack: Stack, action: str, **members: Any) -> dict[str, Any]:
    """What the desk of triage answers."""
    answer = stack.session.client("lambda").invoke(
        FunctionName=stack.output("TriageDeskFunctionName"),
        Payload=json.dumps({"action": action, **members}),
    )
    told: dict[str, Any] = json.load(answer["Payload"])
    assert "FunctionError" not in answer, told
    return told


def letters(stack: Stack, **wanted: Any) -> list[dict[str, Any]]:
    """Every letter that triage keeps and that has these members, the first that came first."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = ask_desk(stack, "list", scope="all", cursor=cursor)
        found += [each for each in page["letters"] if wanted.items() <= each.items()]
        cursor = page["cursor"]
        if cursor is None:
            return sorted(found, key=lambda letter: letter["arrivedAt"])


def revealed(stack: Stack, letter: dict[str, Any]) -> dict[str, Any]:
    """A letter with its body and its history."""
    asked = {"letterId": letter["letterId"], "reveal": True, "who": "e2e", "why": "to see it"}
    shown: dict[str, Any] = ask_desk(stack, "show", **asked)["letter"]
    return shown


def letter_with(stack: Stack, text: str, **wanted: Any) -> dict[str, Any]:
    """The letter whose body holds a text, once triage keeps it."""
    others: set[str] = set()

    def look() -> dict[str, Any] | None:
        for letter in reversed(letters(stack, **wanted)):
            if letter["letterId"] in others:
                continue
            shown = revealed(stack, letter)
            if text in shown["body"]:
                return shown
            others.add(letter["letterId"])
        return None

    return eventually(look, f"a letter with {text!r}")


def _drain(stack: Stack, queue_url: str) -> Iterator[dict[str, Any]]:
    while True:
        answer = stack.sqs.receive_message(QueueUrl=queue_url, MaxNumberOfMessages=10)
        messages = answer.get("Messages", [])
        if not messages:
            return
        for message in messages:
            yield json.loads(message["Body"])
            handle = message["ReceiptHandle"]
            stack.sqs.delete_message(QueueUrl=queue_url, ReceiptHandle=handle)
