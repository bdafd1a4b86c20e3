"""P1 to P10 of DESIGN §5, held against what the tables, the bus and the agents really see.

A model of its own: it knows what clients asked and were answered, and reads the raw items of the
tables after every commit. It shares no code with the functions; attribute names are written out.
"""

import re
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.histories.asked import Asked, Broken, Content, Transaction
from tests.simulation.histories.books import Books, Item, check_money, number, text, two
from tests.simulation.histories.owed import Meant, Order, Owed
from tests.simulation.histories.rows import Rows, Was, content_of

DAY_MS = 86_400_000
TERMINAL = frozenset({"synced", "failed", "cancelled", "expired", "partially_refunded", "refunded"})


@dataclass(frozen=True, slots=True)
class Asking:
    """One transaction that an agent's app asks for, asks about, or wants back."""

    kind: str
    agent: str
    key: str
    content: Content | None = None
    refund_id: str = ""
    amount: int | None = None

    @property
    def identity(self) -> Transaction:
        """Agent and key."""
        return self.agent, self.key


@dataclass
class Promises:
    """What holds at every moment, and at the end; `Broken` where it does not."""

    retention_days: int
    secrets: tuple[str, ...]
    """Phones as digits, and other words that no log line may hold."""
    asked: Asked = field(default_factory=Asked)
    lossy: set[str] = field(default_factory=set)
    """Tables of which Lambda gave stream records up: not all that happened there is told."""
    reached: Counter[str] = field(default_factory=Counter)
    """What was seen to happen, as `kind value`."""

    def __post_init__(self) -> None:
        self.books = Books(self.asked)
        self.rows = Rows(self.asked, self.books, self.retention_days)
        self.owed = Owed(strict=not self.retention_days)
        self.order = Order()
        self.calm_since_ms: int | None = None
        self._held_once: set[Transaction] = set()
        self._kept: list[str] = []

    # --- what is seen -------------------------------------------------------------------------

    def committed(self, records: Mapping[str, Sequence[Item]], step: int, now_ms: int) -> None:
        """One call has changed these items, all at once: by table, in the stream's own words."""
        touched: set[Transaction] = set()
        for record in records.get("OfflineTx", ()):
            old, new = self.rows.row(record, step, now_ms)
            touched.add(two(record["dynamodb"]["Keys"], "agentId", "idempotencyKey"))
            self.owed.row_moved(old, new)
            self._check_expiry(new)
            self._reach_row(old, new)
        for record in records.get("DeadLetters", ()):
            old, new = self.rows.letter(record)
            self.reached["letter purged"] += new is None and old is not None
            self.owed.letter_moved(old, new)
            self._keep(record)
            self._reach_letter(new)
            if new is not None:
                touched.update(self.rows.held_rows(text(new, "id")[7:]))
        for phone, each in _by_phone(records.get("WalletLedger", ())).items():
            for item in self.books.commit(phone, each):
                self.owed.entry_written(item)
                self._reach_entry(item)
                if "idempotencyKey" in item:
                    touched.add(two(item, "agentId", "idempotencyKey"))
                if item["txId"]["S"].startswith("debit#"):
                    content = Content(phone, number(item, "amountMinor"), text(item, "currency"))
                    self._decided(phone, (two(item, "agentId", "idempotencyKey"), content))
        self.rows.check(touched)

    def heard(self, name: str, source: str, detail: str) -> None:
        """An event was put on the bus."""
        self.owed.hear(name, source, detail)
        self.reached[f"event {name}"] += 1

    def logged(self, line: str) -> None:
        """P12: a line went to the log, or to the metrics."""
        for secret in self.secrets:
            if secret in line:
                raise Broken("P12", f"in a log line: {secret}")

    def answered(self, asking: Asking, code: int, body: Mapping[str, Any], since: int) -> None:
        """P1, P6, P11: what an app is told is true at some moment between asking and answer."""
        moments = self.rows.during(asking.identity, since)
        problem = body.get("code")
        self.reached[f"answer {problem or code}"] += 1
        if code >= 500:
            if problem != "UNAVAILABLE":
                raise Broken("P6", f"{code} {problem} for {asking}")
            return
        if code == 404 and asking.kind != "submit":
            fits = any(was.status is None for was in moments)
        elif asking.kind == "submit":
            fits = self._fits_submission(asking, code, body, moments)
        elif asking.kind == "status":
            fits = code == 200 and any(was.status == body["status"] for was in moments)
        else:
            fits = self._fits_refund(asking, code, body, moments)
        if not fits:
            raise Broken("P6", f"{code} {body} for {asking}, and it was {moments}")

    def _fits_submission(
        self, asking: Asking, code: int, body: Mapping[str, Any], moments: Sequence[Was]
    ) -> bool:
        if code in {200, 202} and asking.content is not None:
            self.asked.accepted.setdefault(asking.identity, asking.content)
            said = body["status"]
            return any((w.content, w.status) == (asking.content, said) for w in moments)
        if body.get("code") == "KEY_REUSED":
            return any(w.content not in (None, asking.content) for w in moments)
        return code in {400, 403}

    def _fits_refund(
        self, asking: Asking, code: int, body: Mapping[str, Any], moments: Sequence[Was]
    ) -> bool:
        statuses = {was.status for was in moments}
        if code == 200 and body["status"] == "cancelled":
            return asking.refund_id in {was.cancelled_by for was in moments}
        if code in {200, 202}:
            return body["status"] in statuses
        match body.get("code"):
            case "REFUND_IN_PROGRESS":
                return "refund_requested" in statuses
            case "NOT_REFUNDABLE" if body["retryable"]:
                return "queued" in statuses
            case "NOT_REFUNDABLE" | "KEY_REUSED":
                return statuses != {None}
            case _:
                return code == 400

    def _check_expiry(self, new: Item | None) -> None:
        """P5: once nothing is wrong any more, a transaction is settled, and not given up."""
        if new is None or text(new, "status") != "expired" or self.calm_since_ms is None:
            return
        if number(new, "expiresAt") * 1000 > self.calm_since_ms + 2 * DAY_MS:
            raise Broken("P5", f"it expired, and nothing was wrong: {content_of(new)}")

    def _keep(self, record: Item) -> None:
        """The text of what came to be a letter; it may be purged, long after it is dealt with."""
        new = record["dynamodb"].get("NewImage", {})
        if "part" in new and record["eventName"] == "INSERT":
            self._kept.append(b64decode(new["part"]["B"]).decode())

    def _decided(self, phone: str, meant: Meant) -> None:
        rows = self.rows.rows
        undecided = {
            (each, content_of(rows[each]))
            for each in self.rows.of_phone[phone]
            if each in rows
            and text(rows[each], "status") == "queued"
            and text(rows[each], "phone") == phone
            and each not in self._held_once  # a redrive is another order, and safe all the same
            and self.books.entry(phone, f"debit#{each[0]}#{each[1]}") is None
        }
        self.order.decided(phone, meant, undecided)

    # --- the end ------------------------------------------------------------------------------

    def at_end(self, ledger: Sequence[Item]) -> None:
        """P5 and P9, and that nothing was lost, once faults have stopped and all is quiet."""
        check_money(ledger)
        kept = "\n".join(self._kept)
        for identity, content in self.asked.accepted.items():
            self._ended(identity, content)
        for identity in self.rows.rows:
            self._ended(identity, None)
        for source, credit_id, phone in self.asked.credits:
            self._is_answered(phone, f"credit#{source}#{credit_id}", credit_id, kept)
        for source, request_id, phone in self.asked.statuses:
            self._is_answered(phone, f"status#{source}#{request_id}", request_id, kept)
        for (agent, key, refund_id), each in self.asked.refunds.items():
            for of_phone in {refund.phone for refund in each if refund.phone is not None}:
                self._refund_is_answered(of_phone, (agent, key), refund_id, kept)
        for mark in self.asked.unreadable:
            if not _is_named(mark, kept):
                raise Broken("P5", f"what nobody could read is in no letter: {mark}")
        untold = {each for each in self.owed.untold() if not self._is_lost(each[0])}
        if untold:
            raise Broken("P5", f"nobody was told of {sorted(untold)[:3]}")
        self._check_refusals_are_noted()

    def _ended(self, identity: Transaction, content: Content | None) -> None:
        row = self.rows.rows.get(identity)
        if row is None:
            agent, key = identity
            phone = content.phone if content else ""
            if self.books.entry(phone, f"debit#{agent}#{key}") is None:
                raise Broken("P5", f"{identity} was accepted, and is nowhere")
            return
        if text(row, "status") not in TERMINAL | {"held"}:
            raise Broken("P5", f"{identity} is {text(row, 'status')} for good")
        self.rows.check([identity])

    def _is_answered(self, phone: str, tx_id: str, mark: str, kept: str) -> None:
        if self.books.entry(phone, tx_id) is None and not _is_named(mark, kept):
            raise Broken("P5", f"{tx_id} of {phone} was asked for, and is nowhere")

    def _refund_is_answered(
        self, phone: str, identity: Transaction, refund_id: str, kept: str
    ) -> None:
        """A refund that the back office asked for: decided, a cancellation, or in a letter."""
        tx_id = "#".join(("refund", *identity, refund_id))
        row = self.rows.rows.get(identity, {})
        decided = any(
            each == tx_id or each.startswith(f"{tx_id}#")
            for each in self.books.wallet(phone).entries
        )
        if not (
            decided or row.get("cancelledBy") == {"S": refund_id} or _is_named(refund_id, kept)
        ):
            raise Broken("P5", f"{tx_id} of {phone} was asked for, and is nowhere")

    def _is_lost(self, name: str) -> bool:
        table = "WalletLedger" if name.startswith("Wallet") else "OfflineTx"
        if name.startswith("Refund"):
            return bool(self.lossy - {"DeadLetters"})
        return ("DeadLetters" if name == "DeadLetterTriaged" else table) in self.lossy

    def _check_refusals_are_noted(self) -> None:
        """Every refusal is a letter that an operator sees."""
        noted = {
            two(letter, "agentId", "idempotencyKey")
            for letter in self.rows.letters.values()
            if text(letter, "failure") == "refused" and "agentId" in letter
        }
        failed = {i for i, row in self.rows.rows.items() if text(row, "status") == "failed"}
        forgets = self.lossy or self.retention_days or self.reached["letter purged"]
        if failed - noted and not forgets:
            raise Broken("P5", f"refused, and in no letter: {sorted(failed - noted)[:3]}")

    # --- coverage -----------------------------------------------------------------------------

    def _reach_row(self, old: Item | None, new: Item | None) -> None:
        if new is None:
            self.reached["row purged"] += 1
            return
        was = "none" if old is None else text(old, "status")
        self.reached[f"status {text(new, 'status')}"] += 1
        if text(new, "status") == "held":
            self._held_once.add(two(new, "agentId", "idempotencyKey"))
        self.reached[f"move {was} to {text(new, 'status')}"] += 1
        if text(new, "status") == "failed":
            self.reached[f"reason {text(new, 'reason')}"] += 1

    def _reach_entry(self, item: Item) -> None:
        kind, outcome = item["txId"]["S"].split("#")[0], text(item, "outcome")
        self.reached[f"entry {kind} {outcome}"] += 1
        if outcome == "rejected":
            self.reached[f"reason {text(item, 'reason')}"] += 1

    def _reach_letter(self, new: Item | None) -> None:
        if new is None:
            return
        for name in ("failure", "verdict", "class", "source"):
            self.reached[f"{name} {text(new, name)}"] += 1
        self.reached[f"letter {text(new, 'status')}"] += 1
        self.reached[f"meaning {text(new, 'meaning')}"] += 1


def _is_named(mark: str, kept: str) -> bool:
    """Whether a letter holds an id of ours, and not a longer one that begins like it."""
    return re.search(rf"{re.escape(mark)}(?![0-9])", kept) is not None


def _by_phone(records: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = defaultdict(list)
    for record in records:
        found[text(record["dynamodb"]["Keys"], "phone")].append(record)
    return found
