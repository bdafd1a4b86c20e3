"""What a stack is and how it fares: addresses, queues, what is open; and how to post to it."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Group, RenderableType
from rich.text import Text

from wakala.desk import REAL, Desk, Document
from wakala.output import Problem, table
from wakala.stack import Stack
from wallet_ledger.aws.items import OPEN_INDEX, open_shard_key
from wallet_ledger.domain.letters import LetterClass, LetterStatus, Source
from wallet_ledger.domain.transactions import OPEN_SHARDS

DEAD_LETTERS = frozenset({"TxDlqUrl", "RefundDlqUrl", "FailedTxQueueUrl", "DeliveryFailuresUrl"})
"""Outputs of the queues that triage empties: what lies there was not triaged yet."""

COUNTED_MAX = 5_000
"""Letters that are counted: more are too many anyhow, and nobody waits for their number."""


@dataclass(frozen=True, slots=True)
class QueueCount:
    """Messages of one queue, as SQS approximates them."""

    waiting: int
    in_flight: int
    delayed: int


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters with which something is still to be done, `parked` those for a person.

    `held`: those that hold a transaction, or may: rows that nobody can read do not say. None where
    the desk does not say; `problem` is why it does not. `more`: it is at least so many.
    """

    open: int | None
    parked: int | None
    held: int | None
    more: bool
    problem: str | None

    def view(self) -> dict[str, Any]:
        """What scripts get."""
        return {
            "open": self.open,
            "parked": self.parked,
            "held": self.held,
            "more": self.more,
            "problem": self.problem,
        }

    def words(self) -> str:
        """A line for a person."""
        if self.problem is not None:
            return f"not known: {self.problem}"
        letters = f"{self.open or 0:,} letter{'' if self.open == 1 else 's'} open"
        parked = f", {self.parked:,} parked: a person decides" if self.parked else ""
        return f"{'at least ' if self.more else ''}{letters}{parked}"


@dataclass(frozen=True, slots=True)
class Info:
    """A stack with its counts; `queues` by the name of their output."""

    stack: Stack
    queues: dict[str, QueueCount]
    open_transactions: int
    letters: Letters

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
            "deadLetters": self.letters.view(),
        }

    def render(self) -> RenderableType:
        """What a person gets."""
        facts = table("", "")
        facts.show_header = False
        facts.add_row("stack", f"{self.stack.name} ({self.stack.region})")
        facts.add_row("api", self.stack.api_url)
        facts.add_row("endpoint", self.stack.endpoint_url or "AWS")
        held = f", and {self.letters.held:,} held by dead letters" if self.letters.held else ""
        facts.add_row("open", f"{self.open_transactions:,} transactions{held}")
        colour = "default" if self.letters.open == 0 else "yellow"
        facts.add_row("dead letters", Text(self.letters.words(), colour))
        if self.letters.open:
            typed = f"{command()} dead-letters groups{command_options(self.stack)}"
            facts.add_row("", Text(typed))
        queues = table("queue", "waiting", "in flight", right=frozenset({"waiting", "in flight"}))
        for name, count in self.queues.items():
            colour = "yellow" if name in DEAD_LETTERS and count.waiting else "default"
            queues.add_row(
                name.removesuffix("Url"), f"[{colour}]{count.waiting}[/]", str(count.in_flight)
            )
        return Group(facts, "", queues)


def describe(stack: Stack) -> Info:
    """Count what lies in every queue, what is still open, and the dead letters."""
    queues = {
        name: _count(stack, url)
        for name, url in stack.outputs.items()
        if name.endswith("Url") and name != "ApiUrl"
    }
    return Info(stack, queues, open_transactions(stack), dead_letters(stack))


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


def dead_letters(stack: Stack) -> Letters:
    """What the triage desk counts. A desk that fails, or the caller may not ask, hides no more."""
    try:
        letters = Desk(stack, REAL).some_open(COUNTED_MAX)
    except (BotoCoreError, ClientError, Problem) as error:
        return Letters(None, None, None, False, str(error))
    parked = sum(each["status"] == LetterStatus.PARKED for each in letters)
    held = sum(map(_holds, letters))
    return Letters(len(letters), parked, held, len(letters) >= COUNTED_MAX, None)


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


def _holds(letter: Document) -> bool:
    """Whether an open letter holds a row: that of its debit, but for one that no row asks for."""
    is_debit = letter["source"] == Source.TX_QUEUE and "attempt" in letter
    return is_debit and letter["class"] != LetterClass.POISON


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
