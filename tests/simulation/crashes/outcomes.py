"""What a run of the whole system comes to, without what may differ between two that are alike."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.fakes.promises import assert_books_add_up, refund_totals
from tests.simulation.crashes.line import Line
from triage.act import SENDING
from wallet_ledger.aws import items

MAY_DIFFER: Mapping[str, str] = {
    **dict.fromkeys(
        "createdAt updatedAt queuedAt nextSweepAt expiresAt arrivedAt dueAt sentAt at".split(),
        "a time: who had to come again came later",
    ),
    **dict.fromkeys(
        "purgeAt occurredAt time SentTimestamp ApproximateFirstReceiveTimestamp".split(),
        "the same in events and in records of messages",
    ),
    **dict.fromkeys(
        "receiveCount ApproximateReceiveCount receiptHandle".split(),
        "how often a message came, and its last receipt",
    ),
    **dict.fromkeys(
        "messageId MessageDeduplicationId dedupId SequenceNumber eventID md5OfBody".split(),
        "numbers that AWS gives out in the order of what is sent; a message that was moved to a "
        "dead-letter queue has its message id for its dedup id",
    ),
    **dict.fromkeys(
        "letterId heldBy".split(),
        "a letter is named by the id of its message: it is known here by its content",
    ),
}
"""Attributes of items, messages and events that are not compared, at any depth, and why."""

_OF_LETTERS = frozenset({"id", "shard", "openShard", "revision"})
"""Of items of DeadLetters also these: all follow from the letter's id, but for its revision, which
counts the lines of its history, and that is compared."""

ALREADY = "refused: already terminal"
_WITH_A_SUBJECT = frozenset({"TxQueue", "RefundQueue"})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What can be seen when nothing is left to be delivered.

    `tables` by the table's name, `sent` by the queue's and `events` by their type hold each content
    with how often it is there. `left` is what lies in queues.
    """

    tables: Mapping[str, Counter[str]]
    sent: Mapping[str, Counter[str]]
    events: Counter[str]
    left: Counter[str]

    @property
    def once(self) -> "Outcome":
        """The same where what is told at least once is told once: messages, events, letters."""
        tables = {
            name: Counter(set(found)) if name == LETTERS else found
            for name, found in self.tables.items()
        }
        sent = {name: Counter(set(found)) for name, found in self.sent.items()}
        return Outcome(tables, sent, Counter(set(self.events)), self.left)

    @property
    def without_letters(self) -> "Outcome":
        """What is to be seen of money and of transactions, whatever became a dead letter of it."""
        tables = {name: found for name, found in self.tables.items() if name != LETTERS}
        sent = {name: found for name, found in self.sent.items() if name != DELIVERY_FAILURES}
        events = Counter(
            {each: n for each, n in self.events.items() if "DeadLetterTriaged" not in each}
        )
        return Outcome(tables, sent, events, self.left)

    def told_again(self, other: "Outcome") -> int:
        """How many messages and events more than in `other`."""
        own = self.events.total() + sum(each.total() for each in self.sent.values())
        return own - other.events.total() - sum(each.total() for each in other.sent.values())

    def differing(self, was: "Outcome") -> str:
        """A line for each thing that was there and is not, or is there and was not."""
        here, there = Counter(self.lines()), Counter(was.lines())
        lines = [f"- {each}" for each in there - here] + [f"+ {each}" for each in here - there]
        return "\n".join(lines)

    def lines(self) -> Iterator[str]:
        """For whoever has to see a difference."""
        for name, found in [*self.tables.items(), *self.sent.items()]:
            yield from (f"{name} {count}x {each}" for each, count in sorted(found.items()))
        yield from (f"event {count}x {each}" for each, count in sorted(self.events.items()))
        yield from (f"left {each}" for each in self.left)


LETTERS, DELIVERY_FAILURES = "wakala-DeadLetters", "wakala-DeliveryFailures"


def outcome(line: Line) -> Outcome:
    """What has come of it."""
    tables = {
        name: _rows(name, table.items()) for name, table in line.account.dynamodb.tables.items()
    }
    sent: dict[str, Counter[str]] = {}
    for queue, body in line.sent:
        sent.setdefault(queue, Counter())[_text(_plain(body))] += 1
    events = [event for bus in line.account.events.buses.values() for event in bus.events]
    check_repetitions(events)
    told = Counter(_text(_event(event)) for event in events)
    left = Counter(
        f"{queue.name} {_text(_plain(message.body))}"
        for queue in line.account.sqs.queues.values()
        for message in queue.messages
    )
    return Outcome(tables, sent, told, left)


def check_repetitions(events: list[dict[str, Any]]) -> None:
    """An event that is told again is the same event, to the letter."""
    known: dict[str, Any] = {}
    for event in events:
        event_id = event["detail"].get("eventId")
        if event_id is not None:
            content = (event["detail-type"], event["detail"])
            assert known.setdefault(event_id, content) == content, "one eventId, two contents"


def check_books(line: Line) -> None:
    """P1 to P4, P6 to P9 of every wallet, as of now."""
    tables = line.account.tables
    rows = [items.read_offline_tx(each) for each in tables["OfflineTxTable"].items()]
    wallets: dict[str, list[Mapping[str, Any]]] = {}
    for item in tables["WalletLedgerTable"].items():
        wallets.setdefault(item["phone"]["S"], []).append(item)
    for phone in wallets.keys() | {row.phone for row in rows}:
        found = wallets.get(phone, [])
        own = [items.read_wallet(each) for each in found if each["txId"]["S"] == items.BALANCE]
        entries = [items.read_entry(each) for each in found if items.entry_kind(each["txId"]["S"])]
        of_wallet = [row for row in rows if row.phone == phone]
        assert_books_add_up(own[0] if own else None, entries, of_wallet, refund_totals(found))


def _rows(table: str, found: list[dict[str, Any]]) -> Counter[str]:
    if table != LETTERS:
        return Counter(_text(_plain(_python({"M": item}))) for item in found)
    rows: Counter[str] = Counter()
    for item in found:
        kind = item["id"]["S"].partition("#")[0]
        plain = _plain(_python({"M": item}))
        identity = plain["id"] if kind == "subject" else kind
        content = {name: each for name, each in plain.items() if name not in _OF_LETTERS}
        if plain.get("source") not in _WITH_A_SUBJECT:
            content.pop("subject", None)  # without a subject it follows from the body's text
        if "history" in content:
            content["history"] = _told(content["history"])
        rows[_text({"kind": identity, **content})] += 1
    return rows


def _told(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history without what a person adds who asks once more, having had no answer.

    Nor does it say who of two that send a message at once was the first to say so.
    """
    done = [each for each in history if ALREADY not in each["what"]]
    told = [{"what": each["what"]} if each["what"] == SENDING else each for each in done]
    return [each for place, each in enumerate(told) if place == 0 or each != told[place - 1]]


def _event(event: Mapping[str, Any]) -> Any:
    detail = dict(event["detail"])
    if event["detail-type"] == "DeadLetterTriaged":
        detail.pop("eventId")  # which follows from the letter's id
    return _plain(
        {"detail-type": event["detail-type"], "source": event["source"], "detail": detail}
    )


def _plain(value: Any) -> Any:
    """Without what may differ; a text that is a JSON object is read, and seen through."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return _plain(json.loads(value))
        except ValueError:
            return value
    if isinstance(value, Mapping):
        kept = {name: _plain(each) for name, each in value.items() if name not in MAY_DIFFER}
        if "detail-type" in kept:
            kept.pop("id", None)  # the bus gives a number to each event that is put on it
        return kept
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _python(value: Mapping[str, Any]) -> Any:
    [(kind, content)] = value.items()
    match kind:
        case "M":
            return {name: _python(each) for name, each in content.items()}
        case "L":
            return [_python(each) for each in content]
        case "B":
            return content.decode() if isinstance(content, bytes) else _bytes(content)
        case _:
            return content


def _bytes(text: str) -> str:
    from base64 import b64decode

    return b64decode(text).decode()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
