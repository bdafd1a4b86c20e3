"""What the outside must hear of each fact, at least once, and never of what is no fact."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.histories.asked import Broken, Content, Transaction
from tests.simulation.histories.books import Item, number, text, two
from tests.simulation.histories.rows import fingerprint

TOLD = ("phone", "amount", "currency", "reason", "remaining")
"""Members of an event that say what its fact is about."""
NO_CURRENCY = "XXX"
"""Of an entry about nothing that was found; no event names it."""

type Worth = tuple[str | int | None, ...]
"""Values of `TOLD`."""

type Fact = tuple[str, ...]
"""An event's name, and the ids of what it tells of."""
type Meant = tuple[Transaction, Content]
"""A debit as a message asks for it: a stranger's may bear the key of a row that means another."""

OF_STATUS = {
    "held": "TransactionHeld",
    "synced": "TransactionSynced",
    "failed": "TransactionFailed",
    "cancelled": "TransactionCancelled",
    "expired": "TransactionExpired",
}
OF_ENTRY = {
    ("credit", "posted"): "WalletCredited",
    ("credit", "rejected"): "WalletCreditRejected",
    ("status", "posted"): "WalletStatusChanged",
    ("status", "rejected"): "WalletStatusRejected",
    ("refund", "posted"): "RefundCompleted",
    ("refund", "rejected"): "RefundRejected",
}

TOLD_AGAIN = frozenset(
    {"TransactionHeld", "DeadLetterTriaged", "WalletStatusChanged", "WalletStatusRejected"}
) | {name for name in OF_ENTRY.values() if name.endswith("Rejected")}
"""What happens more than once to one name, each time under an id of its own; or is of no money."""


@dataclass
class Owed:
    """Facts, and what was heard of them.

    `strict`: one eventId is told in the same words for good. Where rows are purged, a key that is
    sent again after that is told of anew, at another time.
    """

    strict: bool = True
    facts: set[Fact] = field(default_factory=set)
    heard: dict[str, tuple[Fact, str]] = field(default_factory=dict)
    """By eventId: what it told of, and its whole detail."""
    told: set[Fact] = field(default_factory=set)
    ids: dict[Fact, str] = field(default_factory=dict)
    """By fact: the eventId under which it was told."""
    worth: dict[Fact, set[Worth]] = field(default_factory=lambda: defaultdict(set))
    """By fact: what its rows or entries hold."""

    def row_moved(self, old: Item | None, new: Item | None) -> None:
        """A row came to another status."""
        if new is None:
            return
        was = None if old is None else text(old, "status")
        status, identity = text(new, "status"), two(new, "agentId", "idempotencyKey")
        if was not in {"queued", "held", None} or was == status or status not in OF_STATUS:
            return
        self._is_fact((OF_STATUS[status], *identity), new)
        if status == "cancelled":
            self._is_fact(("RefundCompleted", *identity, text(new, "cancelledBy")), new)

    def entry_written(self, item: Item) -> None:
        """A new entry is in the ledger; a debit's event comes from its row."""
        kind = item["txId"]["S"].split("#")[0]
        if kind != "debit":
            name = OF_ENTRY[kind, text(item, "outcome")]
            self._is_fact((name, *_of_entry(kind, item)), item)

    def letter_moved(self, old: Item | None, new: Item | None) -> None:
        """A letter was filed, or came to another status."""
        if new is not None and (old is None or text(old, "status") != text(new, "status")):
            self.facts.add(("DeadLetterTriaged", text(new, "id")[7:], text(new, "status")))

    def hear(self, name: str, source: str, detail: str) -> None:
        """An event was on the bus. One of ours must tell of a fact, and always in the same words.

        What it tells of must be true by then: nobody may hear of a commit that may not come.
        """
        if source != "wakala" or name == "RefundRequested":
            return
        members = json.loads(detail)
        fact = _fact(name, members)
        if fact not in self.facts:
            raise Broken("P6", f"told of what is not so: {fact}")
        event_id = members["eventId"]
        known = self.heard.setdefault(event_id, (fact, detail))
        if known != (fact, detail) and (self.strict or known[0] != fact):
            raise Broken("P6", f"one eventId tells two things: {known} and {detail}")
        once = self.strict and name not in TOLD_AGAIN
        if once and self.ids.setdefault(fact, event_id) != event_id:
            raise Broken("P6", f"told under two ids: {fact}")
        if name != "DeadLetterTriaged":
            says = tuple(members.get(each) for each in TOLD)
            if says not in self.worth[fact]:
                raise Broken("P6", f"{fact} is about {self.worth[fact]}, and told as {says}")
        self.told.add(fact)

    def _is_fact(self, fact: Fact, item: Item) -> None:
        self.facts.add(fact)
        texts = {name: item[name]["S"] for name in ("phone", "currency", "reason") if name in item}
        numbers = {"amount": "amountMinor", "remaining": "remainingMinor"}
        says = texts | {told: number(item, n) for told, n in numbers.items() if n in item}
        if says["currency"] == NO_CURRENCY:
            del says["currency"]
        self.worth[fact].add(tuple(says.get(each) for each in TOLD))

    def untold(self) -> set[Fact]:
        """Facts that nobody has heard of."""
        return self.facts - self.told


def _fact(name: str, members: dict[str, Any]) -> Fact:
    if name == "DeadLetterTriaged":
        return (name, members["letterId"], members["status"])
    if name.startswith("Transaction"):
        return (name, members["agentId"], members["idempotencyKey"])
    if name.startswith("Refund"):
        return (name, members["agentId"], members["idempotencyKey"], members["refundId"])
    reference = members.get("creditId") or members["requestId"]
    return (name, members["phone"], members["source"], reference)


def _of_entry(kind: str, item: Item) -> tuple[str, ...]:
    if kind == "refund":
        return (*two(item, "agentId", "idempotencyKey"), text(item, "refundId"))
    reference = text(item, "creditId" if kind == "credit" else "requestId")
    return (text(item, "phone"), text(item, "source"), reference)


@dataclass
class Order:
    """P10: what waits in TxQueue of each phone, in the order in which it was sent."""

    waiting: dict[str, dict[str, Meant]] = field(default_factory=dict)
    """By phone, then by message id: the debit that a message asks for."""
    left: set[Meant] = field(default_factory=set)
    """Of which a message left the queue: a run that stalled may have it still."""
    off: bool = False
    """Where a run was let through that may leave a message behind for good (ADR 15)."""

    def sent(self, message_id: str, body: str) -> None:
        """A message was taken by the queue; a repetition changes nothing."""
        asked = _read(body)
        if asked is not None:
            phone, meant = asked
            self.waiting.setdefault(phone, {}).setdefault(message_id, meant)

    def gone(self, message_id: str) -> None:
        """A message left the queue: it was done, or given up."""
        for messages in self.waiting.values():
            if message_id in messages:
                self.left.add(messages.pop(message_id))

    def decided(self, phone: str, meant: Meant, undecided: "set[Meant]") -> None:
        """A debit is in the books: nothing that came before it may still be queued."""
        messages = self.waiting.get(phone, {})
        if self.off or meant in self.left or meant not in messages.values():
            return
        for earlier in _until(messages, meant):
            if earlier in undecided:
                raise Broken("P10", f"{meant[0]} was decided before {earlier[0]}")


def _until(messages: dict[str, Meant], meant: Meant) -> Iterator[Meant]:
    for each in messages.values():
        if each == meant:
            return
        yield each


def _read(body: str) -> tuple[str, Meant] | None:
    """The phone and what a debit's message means; of a lie about one, none."""
    try:
        members = json.loads(body)
        identity = members["agentId"], members["idempotencyKey"]
        content = Content(members["phone"], members["amountMinor"], members["currency"])
        true = members["fingerprint"] == fingerprint(identity, content)
    except (ValueError, LookupError, TypeError):
        return None
    return (content.phone, (identity, content)) if true else None
