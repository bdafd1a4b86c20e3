"""What a stack is and how it fares: addresses, queues, open transactions, how to post one."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from wakala.output import table
from wakala.stack import Stack
from wallet_ledger.aws.items import OPEN_INDEX, open_shard_key
from wallet_ledger.domain.transactions import OPEN_SHARDS

DEAD_LETTERS = frozenset({"TxDlqUrl", "RefundDlqUrl", "FailedTxQueueUrl", "DeliveryFailuresUrl"})
"""Outputs of the queues in which nothing should lie unnoticed."""


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Messages of one queue, as SQS approximates them."""

    waiting: int
    in_flight: int
    delayed: int


@dataclass(frozen=True, slots=True)
class Info:
    """A stack with its counts; `queues` by the name of their output."""

    stack: Stack
    queues: dict[str, QueueCount]
    open_transactions: int

    def view(self) -> dict[str, Any]:
        """What scripts get."""
        return {
            "apiUrl": self.stack.api_url,
            "endpointUrl": self.stack.endpoint_url,
            "region": self.stack.region,
            "stack": self.stack.name,
            "outputs": dict(self.stack.outputs),
            "queues": {
                name: {"waiting": q.waiting, "inFlight": q.in_flight, "delayed": q.delayed}
                for name, q in self.queues.items()
            },
            "openTransactions": self.open_transactions,
        }

    def render(self) -> RenderableType:
        """What a person gets."""
        facts = table("", "")
        facts.show_header = False
        facts.add_row("stack", f"{self.stack.name} ({self.stack.region})")
        facts.add_row("api", self.stack.api_url)
        facts.add_row("endpoint", self.stack.endpoint_url or "AWS")
        facts.add_row("open", f"{self.open_transactions} transactions")
        queues = table("queue", "waiting", "in flight", right=frozenset({"waiting", "in flight"}))
        for name, count in self.queues.items():
            colour = "yellow" if name in DEAD_LETTERS and count.waiting else "default"
            queues.add_row(
                name.removesuffix("Url"), f"[{colour}]{count.waiting}[/]", str(count.in_flight)
            )
        return Group(facts, "", queues, "", posting(self.stack))


def describe(stack: Stack) -> Info:
    """Count what lies in every queue and what is still open."""
    queues = {
        name: _count(stack, url)
        for name, url in stack.outputs.items()
        if name.endswith("Url") and name != "ApiUrl"
    }
    return Info(stack, queues, open_transactions(stack))


def open_transactions(stack: Stack) -> int:
    """How many transactions the system still owes an end."""
    pages = stack.dynamodb.get_paginator("query")
    return sum(
        page["Count"]
        for shard in range(OPEN_SHARDS)
        for page in pages.paginate(
            TableName=stack.output("OfflineTxTable"),
            IndexName=OPEN_INDEX,
            Select="COUNT",
            KeyConditionExpression="openShard = :shard",
            ExpressionAttributeValues={":shard": {"S": open_shard_key(shard)}},
        )
    )


def posting(stack: Stack, *, prepared: bool = False) -> Text:
    """Commands that post a transaction, to be pasted into a shell as they are.

    `prepared`: whether the demo has enrolled the agent and funded the wallet already.
    """
    options = command_options(stack)
    preparation = (
        f"  {command()} agent enroll AG-001{options}\n"
        f"  {command()} wallet credit 0712345678 500000 --id my-float{options}\n"
    )
    return Text(
        "Post a transaction of your own; the same again is a replay:\n\n"
        f"{'' if prepared else preparation}"
        f"  TOKEN=$({command()} agent token AG-001{options})\n"
        f"  curl -i {stack.api_url}/tx/offline \\\n"
        "    -H \"Authorization: $TOKEN\" -H 'Content-Type: application/json' \\\n"
        '    -d \'{"agentId": "AG-001", "phone": "0712 345 678", "amount": 1500,\n'
        '         "idempotencyKey": "my-first"}\'\n'
        f"  {command()} tx status --agent AG-001 my-first{options}\n"
        f"  {command()} wallet statement 0712345678{options}",
        no_wrap=True,
        overflow="ignore",
    )


def command() -> str:
    """How this command is called from the folder that the caller is in."""
    if shutil.which("wakala"):
        return "wakala"
    here = Path(sys.argv[0]).absolute()
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)


def command_options(stack: Stack) -> str:
    """The options without which a command would mean another stack."""
    region = "" if stack.local else f" --region {stack.region}"
    return region + ("" if stack.name == "wakala" else f" --stack {stack.name}")


def _count(stack: Stack, url: str) -> QueueCount:
    answer = stack.sqs.get_queue_attributes(
        QueueUrl=url,
        AttributeNames=[
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ],
    )["Attributes"]
    return QueueCount(
        waiting=int(answer["ApproximateNumberOfMessages"]),
        in_flight=int(answer["ApproximateNumberOfMessagesNotVisible"]),
        delayed=int(answer["ApproximateNumberOfMessagesDelayed"]),
    )
