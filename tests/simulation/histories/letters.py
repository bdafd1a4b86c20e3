"""Dead letters as the model keeps them: who did what, when and why, how often, and what is held."""

import json
import re
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.histories.asked import Broken, Transaction
from tests.simulation.histories.books import Item, number, text, two
from tests.simulation.histories.rows import Rows, is_open
from tests.simulation.histories.runs import Run

AUTOMATIC_MAX = 3
"""DESIGN §6: automatic redrives of one transaction; then a person decides."""
AUTOMATIC_AFTER_MS = frozenset({60_000, 300_000, 900_000})
CLOCK = "triage"
"""Who acts where no person does."""
ENDS = {"redriven": "redriven", "discarded": "discarded", "closed": "closed", "parked": "parked"}
"""What an action that ends a letter's wait is called, and the status that it brings."""
BY_CLOCK = frozenset({"redriven", "sending", "closed", "parked"})
BY_HAND = {
    "redrive": r"redriven|sending|closed|redrive refused: .+",
    "discard": r"discarded|closed|discard refused: .+",
    "show": r"revealed",
}
"""What may be written down of what an operator asks for."""
HELD_TO = {"queued": ("redriven",), "failed": ("discarded",), "cancelled": ("waiting", "parked")}
"""How a held row may go on, and how its letter stands then."""

type Subject = tuple[str, ...]
"""What a letter is about: a kind and ids, or the very text."""


@dataclass
class Letters:
    """Triage, and P8 of the rows that it holds, after each commit."""

    rows: Rows
    texts: dict[str, str] = field(default_factory=dict)
    """What came to be each letter, also of those that were purged since."""
    discarded: set[str] = field(default_factory=set)
    """Letters that a person gave up."""
    _of: dict[Transaction, set[str]] = field(default_factory=lambda: defaultdict(set))
    _automatic: Counter[Subject] = field(default_factory=Counter)
    _spent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By subject as the table names it, and `automatic` or `byHand`: redrives that are written."""
    _budgets: dict[str, Item] = field(default_factory=dict)

    def committed(
        self, records: Sequence[Item], by: Run | None, now_ms: int
    ) -> list[tuple[Item | None, Item | None]]:
        """Take in what one commit wrote; what each letter was, and is."""
        moves = []
        for record in records:
            self._keep(record)
        for record in records:
            old, new = self.rows.letter(record)
            moves.append((old, new))
            if new is not None:
                self._moved(old, new, by, now_ms)
        for record in records:
            name, item = text(record["dynamodb"]["Keys"], "id"), record["dynamodb"].get("NewImage")
            if name.startswith("subject#") and item is not None:
                self._budgets[name.removeprefix("subject#")] = item
        for _, new in moves:
            if new is not None:
                self._check_budget(text(new, "subject"))
        return moves

    def check_row(self, identity: Transaction, old: Item | None) -> None:
        """P8: a row is held exactly while an open letter names it at its attempt."""
        row = self.rows.rows.get(identity)
        if row is None:
            return
        if old is not None and text(old, "status") == "held" != text(row, "status"):
            letter = self.rows.letters[text(old, "heldBy")]
            if text(letter, "status") not in HELD_TO[text(row, "status")]:
                raise Broken("P8", f"{identity} is let go, and its letter is {letter['status']}")
        if text(row, "status") == "held":
            self._check_holder(identity, row)
        if text(row, "status") == "queued":
            for letter_id in self._of[identity]:
                self._check_unheld(identity, row, letter_id)

    def subject(self, letter_id: str) -> Subject:
        """What a letter is about, read from what came in."""
        body = _innermost(self.texts[letter_id])
        members = _members(body)
        if "refundId" in members and "agentId" in members:
            names: tuple[str, ...] = ("agentId", "idempotencyKey", "refundId")
        elif members.get("kind") == "debit":
            names = ("kind", "agentId", "idempotencyKey")
        elif members.get("kind") in {"credit", "status"}:
            names = ("kind", "source", "id", "phone")
        else:
            return ("text", body)
        return tuple(str(members.get(name)) for name in names)

    def why_left(self, letter_id: str, unreadable: set[str]) -> str | None:
        """Why no redrive can end a letter, from what came in; None: one can."""
        kept = self.texts[letter_id]
        if any(is_named(mark, kept) for mark in unreadable):
            return "nobody can read it"
        members = _members(_innermost(kept))
        if "DDBStreamBatchInfo" in members:
            return "it names forgotten records and has none"
        if members.get("kind") == "debit":
            row = self.rows.rows.get((str(members["agentId"]), str(members["idempotencyKey"])))
            if row is None or text(row, "fingerprint") != members["fingerprint"]:
                return "no row asks for it"
        return None

    def _keep(self, record: Item) -> None:
        """The text of what came to be a letter; it may be purged, long after it is dealt with."""
        new = record["dynamodb"].get("NewImage", {})
        if "part" in new and record["eventName"] == "INSERT":
            _, letter_id, place = text(new, "id").split("#")
            before = "" if place == "0" else self.texts[letter_id]
            self.texts[letter_id] = before + b64decode(new["part"]["B"]).decode()

    def _moved(self, old: Item | None, new: Item, by: Run | None, now_ms: int) -> None:
        letter_id = text(new, "id").removeprefix("letter#")
        before = [] if old is None else old["history"]["L"]
        lines = [each["M"] for each in new["history"]["L"][len(before) :]]
        if new["history"]["L"][: len(before)] != before:
            raise Broken("TRIAGE", f"the history of {letter_id} was changed")
        if old is None:
            self._filed(letter_id, new, lines)
            return
        if number(new, "revision") - number(old, "revision") != len(lines):
            raise Broken("TRIAGE", f"{letter_id} was changed, and its history does not tell it")
        if text(old, "status") != text(new, "status") and len(lines) != 1:
            raise Broken("TRIAGE", f"{letter_id} is {new['status']}, and nobody did it")
        for line in lines:
            self._check_line(letter_id, new, line, by, now_ms)
            if text(line, "what") == "redriven":
                self._redriven(letter_id, old, line)
        if text(new, "status") == "discarded":
            self.discarded.add(letter_id)

    def _filed(self, letter_id: str, new: Item, lines: Sequence[Item]) -> None:
        if lines or number(new, "revision") != 1:
            raise Broken("TRIAGE", f"{letter_id} begins with a history")
        if "attempt" in new:
            self._of[two(new, "agentId", "idempotencyKey")].add(letter_id)
        if text(new, "status") != "waiting":
            return
        if number(new, "dueAt") - number(new, "arrivedAt") not in AUTOMATIC_AFTER_MS:
            raise Broken("TRIAGE", f"{letter_id} is due at {number(new, 'dueAt')}")
        if _unfreezes(_members(_innermost(self.texts[letter_id]))):
            raise Broken("TRIAGE", f"{letter_id} may unfreeze a wallet, and waits for the clock")

    def _check_line(
        self, letter_id: str, new: Item, line: Item, by: Run | None, now_ms: int
    ) -> None:
        """Who is the one that asks, when lies between question and commit, why is what was said."""
        who, what, why = text(line, "who"), text(line, "what"), text(line, "why")
        if by is None or by.function != "triage-desk":
            raise Broken("TRIAGE", f"{what} of {letter_id} is nobody's: {by}")
        asked, skew_ms = by.event, by.process.skew_ms
        verb = asked["action"]
        if verb == "due":
            fits = who == CLOCK and what in BY_CLOCK and bool(why)
        else:
            ids = asked.get("letterIds", [asked.get("letterId")])
            said = bool(why) if what == "closed" else why == asked.get("why")
            fits = who == asked.get("who") and said and letter_id in ids
            fits &= re.fullmatch(BY_HAND.get(verb, ""), what) is not None
            fits &= not asked.get("dryRun")
        if not fits:
            raise Broken("TRIAGE", f"{letter_id} says {who} {what} {why}, and asked was {asked}")
        if not by.began_ms + skew_ms <= number(line, "at") <= now_ms + skew_ms:
            raise Broken("TRIAGE", f"{letter_id}: {what} at {number(line, 'at')}, now {now_ms}")
        if what in ENDS and ENDS[what] != text(new, "status"):
            raise Broken("TRIAGE", f"{letter_id} was {what}, and is {new['status']}")

    def _redriven(self, letter_id: str, old: Item, line: Item) -> None:
        """DESIGN §6: at most three automatic redrives of one transaction, and none too early."""
        by_clock = text(line, "who") == CLOCK
        self._spent[text(old, "subject"), "automatic" if by_clock else "byHand"] += 1
        if not by_clock:
            return
        if text(old, "status") != "waiting" or number(line, "at") < number(old, "dueAt"):
            raise Broken("TRIAGE", f"{letter_id} was redriven before its time")
        subject = self.subject(letter_id)
        self._automatic[subject] += 1
        if self._automatic[subject] > AUTOMATIC_MAX:
            raise Broken("TRIAGE", f"{subject}: automatic redrive {self._automatic[subject]}")

    def _check_budget(self, subject: str) -> None:
        """What the table says was spent on a subject is what its letters tell."""
        budget = self._budgets.get(subject, {})
        for name in ("automatic", "byHand"):
            says = number(budget, name) if name in budget else 0
            if says != self._spent[subject, name]:
                told = self._spent[subject, name]
                raise Broken("TRIAGE", f"the budget of {subject} says {says} {name}, not {told}")

    def _check_holder(self, identity: Transaction, row: Item) -> None:
        letter = self.rows.letters.get(text(row, "heldBy"))
        if letter is None or not is_open(letter):
            raise Broken("P8", f"{identity} is held, and no open letter holds it")
        named = two(letter, "agentId", "idempotencyKey"), letter.get("attempt")
        if named != (identity, row["attempt"]):
            raise Broken("P8", f"{identity} is held by a letter of {named}")

    def _check_unheld(self, identity: Transaction, row: Item, letter_id: str) -> None:
        letter = self.rows.letters.get(letter_id)
        if letter is None or not is_open(letter) or letter["attempt"] != row["attempt"]:
            return
        asks = _members(_innermost(self.texts[letter_id])).get("fingerprint")
        if asks == text(row, "fingerprint"):
            raise Broken("P8", f"{identity} is queued, and its letter {letter_id} does not hold it")


def is_named(mark: str, kept: str) -> bool:
    """Whether a text holds an id of ours, and not a longer one that begins like it."""
    return re.search(rf"{re.escape(mark)}(?![0-9])", kept) is not None


def _innermost(record: str) -> str:
    """The body that its consumer did not take, out of whatever was put around it."""
    *_, body = _bodies(json.loads(record))
    return body


def _bodies(record: Any) -> Iterator[str]:
    while isinstance(record, dict) and isinstance(record.get("body"), str):
        yield record["body"]
        record = _members(record["body"]).get("record")


def _members(body: str) -> dict[str, Any]:
    try:
        members = json.loads(body)
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}


def _unfreezes(members: dict[str, Any]) -> bool:
    if members.get("detail-type") == "WalletStatusRequested":
        return bool(members["detail"].get("status") != "frozen")
    return members.get("kind") == "status" and members.get("status") == "active"
