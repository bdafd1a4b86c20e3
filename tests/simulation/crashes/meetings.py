"""Moments at which many invocations are due at once, of which any two may meet.

Each moment is made by acts of a story. What is due is what AWS would start then: a batch of a
queue, taken or taken again while its first run still goes on, records of a stream, a clock, and
what apps and people ask.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from relay import sweep
from tests.simulation.cloud.delivery import Batch
from tests.simulation.crashes.line import Json, Line, stack
from tests.simulation.crashes.pairs import Process
from tests.simulation.crashes.stories import (
    DAY_MS,
    MINUTE_MS,
    Act,
    change_status,
    credit,
    give_back,
    given_up,
    http,
    later,
    letters,
    pause,
    submit,
    transaction,
    want_back,
)
from triage import desk, watch
from wallet_ledger.domain import letters as dead
from wallet_ledger.domain import transactions

type Make = Callable[[Line], list[Process]]


@dataclass(frozen=True, slots=True)
class Moment:
    """What has been, and what is due."""

    before: Sequence[Act]
    due: Sequence[Make]


def _nothing(_: Line, __: Any) -> None:
    return None


def _never(_: Any) -> bool:
    return False


def messages(source: str) -> Make:
    """Each message of a queue, taken by a run of its own: their groups' order is not kept."""

    def make(line: Line) -> list[Process]:
        [mapping] = [m for m in stack().mappings if m.source == source and not m.is_stream]
        queue = line.account.queues[source]
        made = []
        for message in queue.receive(10):
            batch = Batch(queue, [message])

            def ended(_: Line, answer: Any, batch: Batch = batch) -> None:
                batch.delete(batch.done(answer))

            name = f"{mapping.function}: {_shown(message.body)}"
            process = Process(name, mapping.function, batch.event, ended, _never, lambda _: None)
            made.append(process)
        assert made, f"nothing is in {source}"
        return made

    return make


def _shown(body: str) -> str:
    document = json.loads(body)
    if "detail" in document:
        document = {"kind": document["detail-type"], **document["detail"]}
    known = ("kind", "failure", "refundId", "idempotencyKey", "id", "creditId", "amountMinor")
    return " ".join(str(document[name]) for name in known if document.get(name) is not None)


def stream(table: str) -> Make:
    """The last records of a table's stream, read again."""

    def make(line: Line) -> list[Process]:
        [mapping] = [m for m in stack().mappings if m.source == table and m.is_stream]
        records = line.account.tables[table].stream[-2:]
        event = {"Records": records}
        process = Process(
            f"relay: {table}", mapping.function, event, _nothing, _never, lambda _: None
        )
        return [process]

    return make


def clock(function: str) -> Make:
    """A schedule's run; it comes again in a minute where it could not do something."""

    def make(line: Line) -> list[Process]:
        [schedule] = [each for each in stack().schedules if each.function == function]

        def again(answer: Any) -> bool:
            return isinstance(answer, Mapping) and "contended" in answer

        return [Process(function, function, schedule.event, _nothing, again, lambda _: None)]

    return make


def app(name: str, method: str, resource: str, body: object = None) -> Make:
    """An agent's app."""
    event = http(method, resource, body)
    whole = isinstance(body, dict) and "amount" not in body

    def again(answer: Any) -> bool:
        if answer is None or answer["statusCode"] == 503:
            return True
        # Told in the moment in which it is being settled; what is in part is told so until then.
        return whole and json.loads(answer["body"]).get("retryable", False)

    def told(answer: Any) -> object:
        said = json.loads(answer["body"])
        return [answer["statusCode"], said.get("status"), said.get("code"), said.get("reason")]

    return lambda _: [Process(f"ingest: {name}", "ingest", event, _nothing, again, told)]


def wants_back(refund_id: str, amount: int | None = None) -> Make:
    """The app asks for a refund."""
    body: Json = {"reason": "wrong phone", "refundId": refund_id}
    body |= {} if amount is None else {"amount": amount}
    return app(f"wants {amount} back", "POST", "/tx/{idempotencyKey}/refund", body)


def person(action: str, **members: Any) -> Make:
    """Somebody at the desk acts on the open letters."""

    def again(answer: Any) -> bool:
        put_off = {"contended", "on_its_way"}
        return answer is None or any(each["outcome"] in put_off for each in answer["results"])

    def told(answer: Any) -> object:
        return [each["outcome"] for each in answer["results"]]

    def make(line: Line) -> list[Process]:
        asked = {"action": action, "letterIds": letters(line), "who": "amina", "why": "seen to"}
        name = f"triage-desk: {action}"
        return [Process(name, "triage-desk", asked | members, _nothing, again, told)]

    return make


# --- what has been --------------------------------------------------------------------------------


def not_deleted(source: str) -> Act:
    """A function has done a queue's messages, and they were not deleted: they come again."""

    def act(line: Line) -> None:
        [mapping] = [m for m in stack().mappings if m.source == source and not m.is_stream]
        queue = line.account.queues[source]
        taken = queue.receive(mapping.batch_size)
        assert taken, f"nothing is in {source}"
        answer = line.invoke(mapping.function, Batch(queue, taken).event)
        assert not answer["batchItemFailures"]
        line.now_ms = queue.next_visible_ms() or line.now_ms
        line.settle()

    return act


def copied(source: str, target: str) -> Act:
    """Somebody moved a queue's messages into another one; here they are in both."""

    def act(line: Line) -> None:
        for message in line.account.queues[source].messages:
            dedup_id = f"copy-{message.message_id}"
            line.account.queues[target].send(message.body, group=message.group, dedup_id=dedup_id)

    return act


def settle(line: Line) -> None:
    """All that is not paused is delivered."""
    line.settle()


CANCELS, PART = wants_back("A-1"), wants_back("A-2", 60)
SUBMITS = app("submits again", "POST", "/tx/offline", transaction("K-1", 100))
SUBMITS_OTHER = app("submits 99", "POST", "/tx/offline", transaction("K-1", 99))
LOOKS = app("looks", "GET", "/tx/status/{idempotencyKey}")
APP = (CANCELS, PART, SUBMITS, SUBMITS_OTHER, LOOKS)
STREAMS = (stream("OfflineTxTable"), stream("WalletLedgerTable"))
QUEUES = ("TxQueue", "RefundQueue", "TxDlqQueue", "RefundDlqQueue")
DESK = (person("redrive"), person("discard"), clock("triage-desk"))
LATER = (pause("InboxQueue"), change_status("S-9", "frozen"), later(3 * MINUTE_MS))
"""A request that waits in the Inbox, and rows and letters whose time has come."""
REFUNDS = (give_back("R-1"), give_back("R-2", 60))
UNDER_THE_IDS_OF_OTHERS = (give_back("A-1", 101), give_back("R-1", 101))
"""Each is refused, and so its id is used."""

MOMENTS: dict[str, Moment] = {
    "queued": Moment(
        (
            credit(),
            pause(*QUEUES),
            submit(),
            credit("C-1", 50),
            *REFUNDS,
            *UNDER_THE_IDS_OF_OTHERS,
            *LATER,
        ),
        (
            *map(messages, ("TxQueue", "RefundQueue", "InboxQueue")),
            *APP,
            clock("sweep"),
            *STREAMS,
        ),
    ),
    "too little, and about to be frozen": Moment(
        (
            credit(amount=50),
            pause(*QUEUES),
            submit(),
            credit("C-1", 100),
            change_status("S-1", "frozen"),
        ),
        (messages("TxQueue"), clock("sweep"), *STREAMS),
    ),
    "settled, and told again": Moment(
        (
            credit(),
            pause(*QUEUES),
            submit(),
            not_deleted("TxQueue"),
            submit("K-2", 10),
            credit("C-1", 50),
            *REFUNDS,
            give_back("R-3", 60),
            give_back("R-1", 40),
            *LATER,
        ),
        (*map(messages, ("TxQueue", "RefundQueue", "InboxQueue")), *APP, *STREAMS),
    ),
    "given up": Moment(
        (
            credit(),
            pause(*QUEUES),
            submit(),
            given_up("TxQueue"),
            copied("TxDlqQueue", "TxQueue"),
            *REFUNDS,
            *LATER,
        ),
        (
            *map(messages, ("TxQueue", "TxDlqQueue", "RefundQueue", "InboxQueue")),
            CANCELS,
            PART,
            clock("sweep"),
            clock("triage-desk"),
        ),
    ),
    "held": Moment(
        (
            credit(),
            pause(*QUEUES),
            submit(),
            given_up("TxQueue"),
            copied("TxDlqQueue", "TxQueue"),
            not_deleted("TxDlqQueue"),
            *REFUNDS,
            *LATER,
        ),
        (
            *map(messages, ("TxQueue", "TxDlqQueue", "RefundQueue", "InboxQueue")),
            CANCELS,
            PART,
            SUBMITS,
            *DESK,
            clock("sweep"),
            *STREAMS,
            stream("DeadLettersTable"),
        ),
    ),
    "asked for by its agent": Moment(
        (
            credit(),
            submit(),
            pause(*QUEUES),
            want_back("A-1", 30),
            give_back("R-1"),
            credit("C-1", 50),
            *LATER,
        ),
        (
            *map(messages, ("TxQueue", "RefundQueue", "InboxQueue")),
            wants_back("A-1", 30),
            PART,
            LOOKS,
            clock("sweep"),
            *STREAMS,
        ),
    ),
    "a refund is given up": Moment(
        (
            credit(),
            submit(),
            pause(*QUEUES),
            want_back("A-1", 30),
            given_up("RefundQueue"),
            copied("RefundDlqQueue", "RefundQueue"),
            not_deleted("RefundDlqQueue"),
            give_back("R-1"),
            *LATER,
            give_back("R-2", 10),
        ),
        (
            *map(messages, ("RefundQueue", "RefundDlqQueue", "InboxQueue")),
            wants_back("A-1", 30),
            *DESK,
            clock("sweep"),
        ),
    ),
    "a credit is given up": Moment(
        (
            credit(),
            submit(),
            pause(*QUEUES),
            credit("C-1", 50),
            given_up("TxQueue"),
            copied("TxDlqQueue", "TxQueue"),
            not_deleted("TxDlqQueue"),
            give_back("R-1"),
            *LATER,
        ),
        (
            *map(messages, ("TxQueue", "TxDlqQueue", "RefundQueue", "InboxQueue")),
            *DESK,
            stream("OfflineTxTable"),
        ),
    ),
    "too old": Moment(
        (
            credit(),
            pause(*QUEUES),
            submit(),
            copied("TxQueue", "TxDlqQueue"),
            *REFUNDS,
            later(7 * DAY_MS),
        ),
        (
            *map(messages, ("TxQueue", "TxDlqQueue", "RefundQueue")),
            CANCELS,
            PART,
            LOOKS,
            clock("sweep"),
        ),
    ),
}


@contextmanager
def few_shards() -> Iterator[None]:
    """One shard of each index instead of sixteen, of which fifteen would be empty."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (transactions, "OPEN_SHARDS"),
            (sweep, "OPEN_SHARDS"),
            (dead, "LETTER_SHARDS"),
            (desk, "LETTER_SHARDS"),
            (watch, "LETTER_SHARDS"),
        ):
            patch.setattr(module, name, 1)
        yield
