"""Who acts on the deployed stack in these tests, and how one waits for what they cause."""

import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from wakala.stack import Stack

DEADLINE_S = 30.0
POLL_S = 0.05


def wakala(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the command as a person does."""
    done = subprocess.run(
        [sys.executable, "-m", "wakala", *arguments],
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


def eventually[Value](look: Callable[[], Value | None], what: str) -> Value:
    """Poll until `look` finds something; fail where the deadline comes first."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(POLL_S)
    pytest.fail(f"{what}: not within {DEADLINE_S:.0f} s")


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

    def ended(self, key: str) -> dict[str, Any]:
        """The status once it is terminal."""

        def look() -> dict[str, Any] | None:
            view: dict[str, Any] = self.status(key).json()
            return None if view["status"] == "queued" else view

        return eventually(look, "a terminal status")


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

    def hear(self, detail_type: str, **members: Any) -> dict[str, Any]:
        """The detail of an event on the bus with these members, once it is there."""
        return eventually(lambda: self._heard(detail_type, members), f"{detail_type} {members}")

    def _heard(self, detail_type: str, members: dict[str, Any]) -> dict[str, Any] | None:
        arrived = _drain(self.stack, self.heard_url)
        self.heard.extend((event["detail-type"], event["detail"]) for event in arrived)
        for kind, detail in self.heard:
            if kind == detail_type and members.items() <= detail.items():
                return detail
        return None


def letters(stack: Stack, queue_url: str) -> list[dict[str, Any]]:
    """Every message that waits in a queue, as JSON; they are taken out."""
    return list(_drain(stack, queue_url))


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
