"""P1 to P10 of DESIGN §5, held against what the tables, the bus and the agents really see.

A model of its own: it knows what clients asked and were answered, and reads the raw items of the
tables after every commit. It shares no code with the functions; attribute names are written out.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.histories.asked import Asked, Broken, Content, RefundAsked, Transaction
from tests.simulation.histories.books import Books, Item, check_money, number, text, two
from tests.simulation.histories.letters import Letters, is_named
from tests.simulation.histories.owed import Meant, Order, Owed
from tests.simulation.histories.refusals import Refusals
from tests.simulation.histories.rows import Rows, SweepLimits, Was, content_of, is_open
from tests.simulation.histories.runs import Run

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
    limits: SweepLimits
    secrets: tuple[str, ...]
    """Phones as digits, and other words that no log line may hold."""
    asked: Asked = field(default_factory=Asked)
    lossy: set[str] = field(default_factory=set)
    """Tables of which Lambda gave stream records up: not all that happened there is told."""
    reached: Counter[str] = field(default_factory=Counter)
    """What was seen to happen, as `kind value`."""

    def __post_init__(self) -> None:
        self.books = Books(self.asked)
        self.rows = Rows(self.asked, self.books, self.retention_days, self.limits)
        self.letters = Letters(self.rows)
        self.refusals = Refusals(self.asked, self.books)
        self.owed = Owed(strict=not self.retention_days)
        self.order = Order()
        self.calm_since_ms: int | None = None
        self._held_once: set[Transaction] = set()

    # --- what is seen -------------------------------------------------------------------------

    def committed(
        self, records: Mapping[str, Sequence[Item]], by: Run | None, step: int, now_ms: int
    ) -> None:
        """One call of a run has changed these items, all at once: by table, in the stream's words.

        Nobody's run: time to live has deleted.
        """
        before: dict[Transaction, Item | None] = {}
        for record in records.get("OfflineTx", ()):
            old, new = self.rows.row(record, by, step, now_ms)
            identity = two(record["dynamodb"]["Keys"], "agentId", "idempotencyKey")
            before[identity] = old
            self.owed.row_moved(old, new)
            self._check_asked(identity, old, new)
            self._check_expiry(new)
            self._reach_row(old, new)
        touched = set(before)
        for old, new in self.letters.committed(records.get("DeadLetters", ()), by, now_ms):
            self.reached["letter purged"] += new is None and old is not None
            self.owed.letter_moved(old, new)
            self._reach_letter(new)
            if new is not None:
                touched.update(self.rows.held_rows(text(new, "id")[7:]))
        for phone, each in _by_phone(records.get("WalletLedger", ())).items():
            for item in self.books.commit(phone, each):
                touched |= self._entered(phone, item, by, before)
        self.rows.check(touched)
        for identity in touched:
            self.letters.check_row(identity, before.get(identity))

    def _entered(
        self, phone: str, item: Item, by: Run | None, before: Mapping[Transaction, Item | None]
    ) -> set[Transaction]:
        """A new entry is in the ledger; the transaction that it is about, if it is."""
        self.owed.entry_written(item)
        self._reach_entry(item)
        if "idempotencyKey" not in item:
            return set()
        identity = two(item, "agentId", "idempotencyKey")
        row = before.get(identity, self.rows.rows.get(identity))
        if item["txId"]["S"].startswith("debit#"):
            if row is None or item.get("capturedAt") != row.get("capturedAt"):
                raise Broken("P1", f"{identity} of {row} has an entry that says {item}")
            content = Content(phone, number(item, "amountMinor"), text(item, "currency"))
            self._decided(phone, (identity, content))
        else:
            self.refusals.check_entry(item, row, _receives(by, item))
        return {identity}

    def _check_asked(self, identity: Transaction, old: Item | None, new: Item | None) -> None:
        """P4: what a row says of refunds, somebody asked for."""
        if new is None or (old is not None and old["status"] == new["status"]):
            return
        if text(new, "status") == "cancelled":
            self.refusals.check_cancellation(identity, new)
        if text(new, "status") == "refund_requested":
            self.refusals.check_pending(identity, new)

    def heard(self, name: str, source: str, detail: str) -> None:
        """An event was put on the bus."""
        self.owed.hear(name, source, detail)
        self.reached[f"event {name}"] += 1

    def logged(self, line: str) -> None:
        """P12: a line went to the log, or to the metrics."""
        for secret in self.secrets:
            if secret in line:
                raise Broken("P12", f"in a log line: {secret}")

    def answered(self, asking: Asking, code: int, body: Mapping[str, Any], by: Run) -> None:
        """P1, P6, P11: what an app is told is true at some moment between asking and answer."""
        moments = self.rows.during(asking.identity, by.since)
        problem = body.get("code")
        self.reached[f"answer {problem or code}"] += 1
        if code >= 500:
            # An app hears of trouble only where there is some; a refund, where its row moves on.
            moved = asking.kind == "refund" and len(moments) > 1
            if problem != "UNAVAILABLE" or not (by.befallen or moved):
                raise Broken("P6", f"{code} {problem} for {asking}, and it was {moments}")
            return
        if code == 404 and asking.kind != "submit":
            fits = any(was.status is None for was in moments)
        elif asking.kind == "submit":
            fits = self._fits_submission(asking, code, body, moments)
        elif asking.kind == "status":
            fits = code == 200 and any(_tells(body, was) for was in moments)
        else:
            fits = self._fits_refund(asking, code, body, moments)
        if not fits:
            raise Broken("P6", f"{code} {body} for {asking}, and it was {moments}")

    def _fits_submission(
        self, asking: Asking, code: int, body: Mapping[str, Any], moments: Sequence[Was]
    ) -> bool:
        if code in {200, 202} and asking.content is not None:
            self.asked.accepted.setdefault(asking.identity, asking.content)
            return any(w.content == asking.content and _tells(body, w) for w in moments)
        if body.get("code") == "KEY_REUSED":
            return any(w.content not in (None, asking.content) for w in moments)
        return False  # what apps send here is well formed, and their own

    def _fits_refund(
        self, asking: Asking, code: int, body: Mapping[str, Any], moments: Sequence[Was]
    ) -> bool:
        statuses = {was.status for was in moments}
        if code == 200 and body["status"] == "cancelled":
            return asking.refund_id in {was.cancelled_by for was in moments}
        if code in {200, 202}:
            return any(_tells(body, was) for was in moments)
        match body.get("code"):
            case "REFUND_IN_PROGRESS":
                return "refund_requested" in statuses
            case "NOT_REFUNDABLE" if body["retryable"]:
                return "queued" in statuses
            case "NOT_REFUNDABLE" | "KEY_REUSED" as told:
                named = (*asking.identity, asking.refund_id)
                asked, reason = RefundAsked(asking.amount), body.get("reason")
                return self.refusals.is_true(asked, named, (told, reason), moments)
            case _:
                return False

    def _check_expiry(self, new: Item | None) -> None:
        """P5: once nothing is wrong any more, a transaction is settled, and not given up."""
        if new is None or text(new, "status") != "expired" or self.calm_since_ms is None:
            return
        if number(new, "expiresAt") * 1000 > self.calm_since_ms + 2 * DAY_MS:
            raise Broken("P5", f"it expired, and nothing was wrong: {content_of(new)}")

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
        """P5 and P9, and that nothing was lost: faults have stopped, all is quiet, and people have
        redriven what could be."""
        check_money(ledger)
        for identity, content in self.asked.accepted.items():
            self._ended(identity, content)
        for identity in self.rows.rows:
            self._ended(identity, None)
        self._check_left()
        given_up = "\n".join(self.letters.texts[each] for each in self.letters.discarded)
        for source, credit_id, phone in self.asked.credits:
            self._is_answered(phone, f"credit#{source}#{credit_id}", credit_id, given_up)
        for source, request_id, phone in self.asked.statuses:
            self._is_answered(phone, f"status#{source}#{request_id}", request_id, given_up)
        for (agent, key, refund_id), each in self.asked.refunds.items():
            for of_phone in {refund.phone for refund in each if refund.phone is not None}:
                self._refund_is_answered(of_phone, (agent, key), refund_id, given_up)
        kept = "\n".join(self.letters.texts.values())
        for mark in self.asked.unreadable:
            if not is_named(mark, kept):
                raise Broken("P5", f"what nobody could read is in no letter: {mark}")
        untold = {each for each in self.owed.untold() if not self._is_lost(each[0])}
        if untold:
            raise Broken("P5", f"nobody was told of {sorted(untold)[:3]}")
        self._check_refusals_are_noted()

    def _check_left(self) -> None:
        """What is open in the end, no redrive can end: each for one of the reasons there are."""
        for letter_id, letter in self.rows.letters.items():
            if not is_open(letter):
                continue
            why = self.letters.why_left(letter_id, self.asked.unreadable)
            if why is None:
                raise Broken("P5", f"open in the end, and could be redriven: {letter}")
            self.reached[f"left {why}"] += 1

    def _ended(self, identity: Transaction, content: Content | None) -> None:
        row = self.rows.rows.get(identity)
        if row is None:
            agent, key = identity
            phone = content.phone if content else ""
            if self.books.entry(phone, f"debit#{agent}#{key}") is None:
                raise Broken("P5", f"{identity} was accepted, and is nowhere")
            return
        if text(row, "status") not in TERMINAL:
            raise Broken("P5", f"{identity} is {text(row, 'status')} for good")
        self.rows.check([identity])

    def _is_answered(self, phone: str, tx_id: str, mark: str, given_up: str) -> None:
        """What the back office asked for: decided, or given up by a person."""
        if self.books.entry(phone, tx_id) is None and not is_named(mark, given_up):
            raise Broken("P5", f"{tx_id} of {phone} was asked for, and is nowhere")

    def _refund_is_answered(
        self, phone: str, identity: Transaction, refund_id: str, given_up: str
    ) -> None:
        """A refund that the back office asked for: decided, a cancellation, or given up."""
        tx_id = "#".join(("refund", *identity, refund_id))
        row = self.rows.rows.get(identity, {})
        decided = any(
            each == tx_id or each.startswith(f"{tx_id}#")
            for each in self.books.wallet(phone).entries
        )
        cancelled = row.get("cancelledBy") == {"S": refund_id}
        if not (decided or cancelled or is_named(refund_id, given_up)):
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


def _tells(body: Mapping[str, Any], was: Was) -> bool:
    """Whether an app was told what was so."""
    content = was.content
    told = body["amount"], body["currency"], body["status"], body.get("refunded", 0)
    return content is not None and told == (
        content.amount,
        content.currency,
        was.status,
        was.refunded,
    )


def _receives(by: Run | None, item: Item) -> int:
    """How often a run's message of a refund had been received."""
    named = (*two(item, "agentId", "idempotencyKey"), text(item, "refundId"))
    found = [0]
    for record in () if by is None else by.event["Records"]:
        members = json.loads(record["body"])
        names = ("agentId", "idempotencyKey", "refundId")
        if tuple(members.get(name) for name in names) == named:
            found.append(int(record["attributes"]["ApproximateReceiveCount"]))
    return max(found)


def _by_phone(records: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = defaultdict(list)
    for record in records:
        found[text(record["dynamodb"]["Keys"], "phone")].append(record)
    return found
