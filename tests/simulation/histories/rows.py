"""Rows as the model keeps them: the moves that are allowed, and where each row is."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.simulation.histories.asked import Asked, Broken, Content, Transaction
from tests.simulation.histories.books import Books, Item, number, text, two
from tests.simulation.histories.runs import Run

ARROWS = {
    "queued": {"queued", "held", "cancelled", "expired", "failed", "synced"},
    "held": {"queued", "failed", "cancelled"},
    "synced": {"refund_requested", "partially_refunded", "refunded"},
    "refund_requested": {"refund_requested", "synced", "partially_refunded", "refunded"},
    "partially_refunded": {"refund_requested", "partially_refunded", "refunded"},
    "failed": set(),
    "cancelled": set(),
    "expired": set(),
    "refunded": set(),
}
"""DESIGN §3: which status may follow which; a row that stays `queued` was sent again."""

SETTLED = frozenset({"synced", "refund_requested", "partially_refunded", "refunded"})
PURGED = frozenset({"synced", "failed", "partially_refunded", "refunded"})
"""What the ledger remembers: only that may be purged by retention."""
OPEN_DAYS = 7
SWEEP_AFTER_MS = (120_000, 600_000, 3_600_000, 21_600_000, 86_400_000)
"""DESIGN §4: how soon a row is sent again after its 1st, 2nd, … sending; the last for good."""


@dataclass(frozen=True, slots=True)
class Was:
    """What an agent would have been told of a row from a step on; None: there is none."""

    since: int
    status: str | None
    content: Content | None = None
    cancelled_by: str | None = None
    waits_for: tuple[str, int | None] | None = None
    """The refund that its agent has asked for: its id, and its amount where one was named."""
    refunded: int = 0


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """What the deployer sets: the sweep sends nothing again behind more messages than
    `backlog_max`, and one run takes up at most `rows_max` rows."""

    backlog_max: int
    rows_max: int


@dataclass
class Rows:
    """Every row, and P1, P5, P6 and P8 after each commit; and every letter as it stands."""

    asked: Asked
    books: Books
    retention_days: int
    limits: SweepLimits
    rows: dict[Transaction, Item] = field(default_factory=dict)
    letters: dict[str, Item] = field(default_factory=dict)
    told: dict[Transaction, list[Was]] = field(default_factory=dict)
    of_phone: dict[str, set[Transaction]] = field(default_factory=lambda: defaultdict(set))

    def row(
        self, record: Item, by: Run | None, step: int, now_ms: int
    ) -> tuple[Item | None, Item | None]:
        """Take in one change of a row: what it was, and what it is."""
        change = record["dynamodb"]
        identity = two(change["Keys"], "agentId", "idempotencyKey")
        old, new = self.rows.get(identity), change.get("NewImage")
        if new is None:
            self._purge(identity, old, now_ms)
        elif old is None:
            self._accepted(identity, new)
        else:
            self._moved(identity, old, new)
            if text(new, "status") == "expired":
                self._check_swept(identity, by)
        if new is not None:
            self.rows[identity] = new
            self.of_phone[text(new, "phone")].add(identity)
            self._check_place(identity, new)
            self._check_sweep(identity, old, new, by)
        self.told.setdefault(identity, []).append(_was(step, new))
        return old, new

    def letter(self, record: Item) -> tuple[Item | None, Item | None]:
        """Take in one change of the letters' table: what a letter was, and what it is."""
        change = record["dynamodb"]
        name = text(change["Keys"], "id")
        if not name.startswith("letter#"):
            return None, None
        letter_id = name.removeprefix("letter#")
        old, new = self.letters.get(letter_id), change.get("NewImage")
        if new is None:
            if old is not None and is_open(old):
                raise Broken("P5", f"an open letter was purged: {letter_id}")
            self.letters.pop(letter_id, None)
            return old, None
        if old is not None and not is_open(old) and text(new, "status") != text(old, "status"):
            raise Broken("P5", f"letter {letter_id}: {text(old, 'status')} to {new['status']}")
        self.letters[letter_id] = new
        return old, new

    def check(self, touched: Iterable[Transaction]) -> None:
        """P6 of the rows that a commit had to do with, row, letter or entry."""
        for identity in touched:
            row = self.rows.get(identity)
            if row is not None:
                self._check_entry(identity, row)

    def held_rows(self, letter_id: str) -> list[Transaction]:
        """Which row a letter is about."""
        letter = self.letters.get(letter_id, {})
        if "agentId" not in letter or "idempotencyKey" not in letter:
            return []
        return [two(letter, "agentId", "idempotencyKey")]

    def during(self, identity: Transaction, since: int) -> list[Was]:
        """All that was true of a row from a step on until now."""
        history = self.told.get(identity, [])
        before = [was for was in history if was.since < since]
        return [before[-1] if before else Was(0, None)] + [w for w in history if w.since >= since]

    def _accepted(self, identity: Transaction, new: Item) -> None:
        content = content_of(new)
        if content not in self.asked.debits.get(identity, set()):
            raise Broken("P1", f"a row that nobody asked for: {identity} {content}")
        if text(new, "fingerprint") != fingerprint(identity, content):
            raise Broken("P1", f"the fingerprint of {identity} is not of its content")
        if (text(new, "status"), number(new, "attempt")) != ("queued", 1):
            raise Broken("P5", f"{identity} begins as {text(new, 'status')}")
        if number(new, "expiresAt") != number(new, "createdAt") // 1000 + OPEN_DAYS * 86_400:
            raise Broken("P5", f"{identity} expires at {number(new, 'expiresAt')}")

    def _moved(self, identity: Transaction, old: Item, new: Item) -> None:
        was, becomes = text(old, "status"), text(new, "status")
        if becomes not in ARROWS[was] and not self._only_others(old, new):
            raise Broken("P5", f"{identity}: {was} to {becomes}")
        for name in ("phone", "amountMinor", "currency", "fingerprint", "createdAt", "capturedAt"):
            if old.get(name) != new.get(name):
                raise Broken("P1", f"{identity}: {name} was changed")
        if becomes == "failed" and (was == "held") != (new["reason"] == {"S": "DISCARDED"}):
            raise Broken("P5", f"{identity}: {was} to failed, {text(new, 'reason')}")
        if becomes == "expired" and number(new, "updatedAt") < number(old, "expiresAt") * 1000:
            raise Broken("P5", f"{identity} expired before its time")
        attempts = number(new, "attempt") - number(old, "attempt")
        sent_again = becomes == "queued" and was in {"queued", "held"}
        if attempts not in {0, 1} or (sent_again and not attempts):
            raise Broken("P5", f"{identity}: attempt {attempts:+d} from {was} to {becomes}")

    def _check_sweep(
        self, identity: Transaction, old: Item | None, new: Item, by: Run | None
    ) -> None:
        """DESIGN §4: an open row is sent again when its time has come, later each time."""
        if "nextSweepAt" not in new:
            return
        again = old is not None and old["status"] == new["status"]
        if old is not None and again and old["attempt"] == new["attempt"]:
            if old["nextSweepAt"] != new["nextSweepAt"]:
                raise Broken("P8", f"{identity} is not sent, and swept at another time")
            return
        sending = number(new, "attempt") if again else 1
        at_ms = number(new, "queuedAt") + SWEEP_AFTER_MS[min(sending, len(SWEEP_AFTER_MS)) - 1]
        if text(new, "status") == "queued":
            at_ms = min(at_ms, number(new, "expiresAt") * 1000)
        if number(new, "nextSweepAt") != at_ms:
            late_ms = number(new, "nextSweepAt") - number(new, "queuedAt")
            raise Broken("P8", f"{identity}: after sending {sending} swept in {late_ms} ms")
        if old is not None and again:
            self._check_sent_again(identity, old, new, by)

    def _check_sent_again(
        self, identity: Transaction, old: Item, new: Item, by: Run | None
    ) -> None:
        self._check_swept(identity, by)
        if number(new, "queuedAt") < number(old, "nextSweepAt"):
            raise Broken("P8", f"{identity} was sent again before its time")
        if by is not None and by.least_backlog > self.limits.backlog_max:
            raise Broken("P8", f"{identity} was sent again behind {by.least_backlog} messages")

    def _check_swept(self, identity: Transaction, by: Run | None) -> None:
        if by is None or by.function != "sweep":
            raise Broken("P8", f"{identity} was swept by {by}")
        by.swept += 1
        if by.swept > self.limits.rows_max:
            raise Broken("P8", f"{identity} is one too many for {by.name}")

    def check_expiring(self, identity: Transaction, by: Run) -> None:
        """A sweep tries to let a row expire: one that waits for a refund never may."""
        if all(was.status == "refund_requested" for was in self.during(identity, by.since)):
            raise Broken("P5", f"the sweep would let {identity} expire, which waits for a refund")

    def _only_others(self, old: Item, new: Item) -> bool:
        """Whether a change left all that counts as it was."""
        counts = ("status", "reason", "refundedMinor", "refundRequest", "cancelledBy", "heldBy")
        return all(old.get(name) == new.get(name) for name in counts)

    def _purge(self, identity: Transaction, old: Item | None, now_ms: int) -> None:
        if old is None or "purgeAt" not in old or number(old, "purgeAt") * 1000 > now_ms:
            raise Broken("P5", f"{identity} was deleted, and its time had not come")
        self.books.purged.add(identity)
        del self.rows[identity]

    def _check_place(self, identity: Transaction, row: Item) -> None:
        """P8: open and swept, or held, or settled: by its status, one of them."""
        status = text(row, "status")
        swept = ("openShard" in row, "nextSweepAt" in row)
        if swept != (status in {"queued", "refund_requested"},) * 2:
            raise Broken("P8", f"{identity} is {status}, and in the sweep's index: {swept}")
        if ("heldBy" in row) != (status == "held"):
            raise Broken("P8", f"{identity} is {status}, and held by {row.get('heldBy')}")
        if ("refundRequest" in row) != (status == "refund_requested"):
            raise Broken("P8", f"{identity} is {status}, and waits for {row.get('refundRequest')}")
        if "purgeAt" in row and (status not in PURGED or not self.retention_days):
            raise Broken("P5", f"{identity} is {status}, and is to be purged")
        if "purgeAt" in row and row.get("reason") == {"S": "DISCARDED"}:
            raise Broken("P5", f"{identity} was discarded, and is to be purged")

    def _check_entry(self, identity: Transaction, row: Item) -> None:
        """P6: the row says what the ledger says."""
        agent, key = identity
        phone, status = text(row, "phone"), text(row, "status")
        entry = self.books.entry(phone, f"debit#{agent}#{key}")
        same = entry is not None and text(entry, "fingerprint") == text(row, "fingerprint")
        outcome = text(entry, "outcome") if entry is not None else None
        reason = text(row, "reason") if "reason" in row else None
        if status in SETTLED:
            fits = same and outcome == "posted"
        elif status == "failed" and reason == "KEY_REUSED":
            fits = entry is not None and not same
        elif status == "failed" and reason != "DISCARDED":
            fits = same and outcome == "rejected" and text(entry or {}, "reason") == reason
        else:
            fits = not same or identity in self.books.purged
        if not fits:
            raise Broken("P6", f"{identity} is {status} {reason}, its entry {outcome}")
        if identity not in self.books.purged:
            self._check_refunded(identity, row)

    def _check_refunded(self, identity: Transaction, row: Item) -> None:
        phone, status = text(row, "phone"), text(row, "status")
        given_back = self.books.refunded.get((*identity, phone), 0)
        said = number(row, "refundedMinor") if "refundedMinor" in row else 0
        if said != given_back:
            raise Broken("P6", f"{identity} says {said} is refunded, its entries {given_back}")
        whole = given_back == number(row, "amountMinor")
        by_amount = "refunded" if whole else "partially_refunded" if given_back else "synced"
        if status in SETTLED - {"refund_requested"} and status != by_amount:
            raise Broken("P6", f"{identity} is {status}, and {given_back} is refunded")


def _was(step: int, row: Item | None) -> Was:
    if row is None:
        return Was(step, None)
    status = text(row, "status")
    waits = row["refundRequest"]["M"] if "refundRequest" in row else None
    asked = number(waits, "amountMinor") if waits and "amountMinor" in waits else None
    return Was(
        since=step,
        status="queued" if status == "held" else status,
        content=content_of(row),
        cancelled_by=text(row, "cancelledBy") if "cancelledBy" in row else None,
        waits_for=None if waits is None else (text(waits, "refundId"), asked),
        refunded=number(row, "refundedMinor") if "refundedMinor" in row else 0,
    )


def content_of(row: Item) -> Content:
    """What a row was asked for."""
    return Content(text(row, "phone"), number(row, "amountMinor"), text(row, "currency"))


def fingerprint(identity: Transaction, content: Content) -> str:
    """SHA-256 hex over version, agent, key, phone, amount and currency, a line each."""
    parts = ("debit:v1", *identity, content.phone, content.amount, content.currency)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def is_open(letter: Item) -> bool:
    """Whether something is still to be done about a letter."""
    return text(letter, "status") in {"waiting", "parked"}
