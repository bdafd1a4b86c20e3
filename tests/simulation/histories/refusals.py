"""What must come of a refund, by the raw items of one moment: who was refused, and for what.

The table of DESIGN §4 in words of the model's own; it is asked of each entry, each cancellation and
each answer to an app.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.simulation.histories.asked import Asked, Broken, RefundAsked, Transaction
from tests.simulation.histories.books import Books, Item, number, text, two
from tests.simulation.histories.rows import Was

UNSEEN_RECEIVES = 4
"""Receives for which an original that is not there may still appear; after them it is refused."""
NOTHING_MOVED = frozenset({"failed", "expired", "cancelled"})
NO_CURRENCY = "XXX"
BACK_OFFICE = "backoffice"
"""The source of the events that are no app's."""

type RefundName = tuple[str, str, str]
"""Agent, idempotency key and refund id."""

type Refused = tuple[str, str | None]
"""What an app is told: a code, and with NOT_REFUNDABLE a reason."""

type Verdict = tuple[str, int | None]
"""`posted`, `cancelled`, `waits`, `as before` or a reason; and what remains, where that is said."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the tables held of an original just before a commit: raw items, and minor units.

    `debit` and `first`, the entry under the refund id, are those of the refund's phone.
    """

    phone: str
    row: Item | None
    debit: Item | None
    first: Item | None
    given_back: int

    @property
    def currency(self) -> str:
        """Of the original, whoever may have used its key since."""
        original = self.row_of_debit or self.debit or self.row
        return NO_CURRENCY if original is None else text(original, "currency")

    @property
    def row_of_debit(self) -> Item | None:
        """The row; where its key was used again after a purge, the debit's entry counts alone."""
        row, debit = self.row, self.debit
        if row is None or debit is None or text(debit, "outcome") != "posted":
            return row
        same = all(row[name] == debit[name] for name in ("phone", "fingerprint"))
        return row if same and text(row, "status") not in {"failed", "expired"} else None


class Refusals:
    """P4 and P7 of refunds: each is answered as what was there demands."""

    def __init__(self, asked: Asked, books: Books) -> None:
        self.asked = asked
        self.books = books

    def check_entry(self, item: Item, row: Item | None, received: int) -> None:
        """A refund's entry, just committed; `row` is what it was before.

        `received` is how often the message behind it had been received by then.
        """
        _, agent, key, refund_id, *reused = item["txId"]["S"].split("#")
        phone, outcome = text(item, "phone"), text(item, "outcome")
        found = self._found(phone, (agent, key), refund_id, row)
        # The books have it by now; it was the first under its id, unless it says otherwise.
        given = number(item, "amountMinor") if outcome == "posted" else 0
        first = found.first if reused else None
        found = replace(found, first=first, given_back=found.given_back - given)
        says: Verdict = ("posted", None)
        if outcome == "rejected":
            remains = number(item, "remainingMinor") if "remainingMinor" in item else None
            says = text(item, "reason"), remains
        if bool(reused) != (says[0] == "KEY_REUSED"):
            raise Broken("P4", f"{says} under {item['txId']['S']}")
        named = (agent, key, refund_id)
        meant = [each for each in self.asked.refunds.get(named, ()) if _is(each, item, found)]
        if not meant:
            raise Broken("P4", f"decided, and nobody asked for it: {item['txId']['S']}")
        due = {_verdict(each, named, found) for each in meant}
        if says not in due:
            raise Broken("P7", f"{item['txId']['S']} is {says}, and should be {due}: {found}")
        if says[0] == "ORIGINAL_NOT_FOUND" and received <= UNSEEN_RECEIVES:
            raise Broken("P7", f"{item['txId']['S']}: not found after {received} receives")

    def check_cancellation(self, identity: Transaction, row: Item) -> None:
        """A row, cancelled just now by a refund id: somebody wanted back all of it by that id."""
        refund_id, phone = text(row, "cancelledBy"), text(row, "phone")
        named = (*identity, refund_id)
        before = {**row, "status": {"S": "queued"}}
        found = self._found(phone, identity, refund_id, before)
        due = {
            _verdict(each, named, found)
            for each in self.asked.refunds.get(named, ())
            if each.phone in {None, phone}
        }
        if ("cancelled", None) not in due:
            raise Broken("P4", f"{named} cancelled it, and should be {due}")

    def check_pending(self, identity: Transaction, row: Item) -> None:
        """A row that waits for a refund: its agent has asked for that one."""
        waits = row["refundRequest"]["M"]
        amount = number(waits, "amountMinor") if "amountMinor" in waits else None
        asked = self.asked.refunds.get((*identity, text(waits, "refundId")), set())
        if RefundAsked(amount) not in asked:
            raise Broken("P4", f"{identity} waits for what nobody asked for: {waits}")

    def is_true(
        self, asked: RefundAsked, named: RefundName, told: Refused, moments: Iterable[Was]
    ) -> bool:
        """Whether an app was refused for good, by code and reason, for what was so at a moment."""
        tx_id = "#".join(("refund", *named))
        for was in moments:
            if was.content is None:
                continue
            first = self.books.entry(was.content.phone, tx_id)
            by_row = _row_refuses(asked, named[2], told, was)
            if by_row or (first is not None and _entry_refuses(asked, named, told, first)):
                return True
        return False

    def _found(self, phone: str, identity: Transaction, refund_id: str, row: Item | None) -> Found:
        return Found(
            phone,
            row,
            self.books.entry(phone, "#".join(("debit", *identity))),
            self.books.entry(phone, "#".join(("refund", *identity, refund_id))),
            self.books.refunded.get((*identity, phone), 0),
        )


def _verdict(asked: RefundAsked, named: RefundName, found: Found) -> Verdict:
    """The first rule of DESIGN §4 that fits."""
    row, debit = found.row_of_debit, found.debit
    cancelled = row is not None and _cancelled_by(named[2], found.phone, row)
    if found.first is not None or cancelled:
        return _again(asked, named, found), None
    if row is None and debit is None:
        return "ORIGINAL_NOT_FOUND", None
    others = row is not None and text(row, "phone") != found.phone
    if others or asked.currency not in {None, found.currency}:
        return "MISMATCH", None
    status = None if row is None else text(row, "status")
    if row is not None and status in {"queued", "held"}:
        return _before_settlement(asked, number(row, "amountMinor"), debit)
    taken = debit is not None and text(debit, "outcome") == "posted"
    if status in NOTHING_MOVED or (row is None and not taken):
        return "NOTHING_TO_REFUND", None
    remains = number(row or debit or {}, "amountMinor") - found.given_back
    wanted = remains if asked.amount is None else asked.amount
    return ("posted", None) if 0 < wanted <= remains else ("EXCEEDS_ORIGINAL", remains)


def _before_settlement(asked: RefundAsked, whole: int, debit: Item | None) -> Verdict:
    if debit is not None:
        return "waits", None
    if asked.amount in {None, whole}:
        return "cancelled", None
    return ("EXCEEDS_ORIGINAL", whole) if (asked.amount or 0) > whole else ("waits", None)


def _again(asked: RefundAsked, named: RefundName, found: Found) -> str:
    """What the second use of a refund id is told."""
    first, row = found.first, found.row_of_debit
    if first is not None:
        same = text(first, "fingerprint") == _fingerprint(named, found.phone, asked.amount)
        known = text(first, "currency")
    else:
        same = row is not None and asked.amount in {None, number(row, "amountMinor")}
        known = found.currency
    return "as before" if same and asked.currency in {None, known} else "KEY_REUSED"


def _cancelled_by(refund_id: str, phone: str, row: Item) -> bool:
    by = row.get("cancelledBy") == {"S": refund_id}
    return by and text(row, "status") == "cancelled" and text(row, "phone") == phone


def _row_refuses(asked: RefundAsked, refund_id: str, told: Refused, was: Was) -> bool:
    code, reason = told
    assert was.content is not None
    whole = was.content.amount
    if code == "KEY_REUSED":
        cancelled = was.cancelled_by == refund_id and asked.amount not in {None, whole}
        waits_for, amount = was.waits_for or ("", None)
        return cancelled or (waits_for == refund_id and amount != asked.amount)
    if was.status in NOTHING_MOVED or was.status is None:
        return reason == "NOTHING_TO_REFUND"
    remains = whole - was.refunded
    exceeds = remains == 0 if asked.amount is None else asked.amount > remains
    return reason == "EXCEEDS_ORIGINAL" and exceeds


def _entry_refuses(asked: RefundAsked, named: RefundName, told: Refused, first: Item) -> bool:
    code, reason = told
    mine = text(first, "fingerprint") == _fingerprint(named, text(first, "phone"), asked.amount)
    if code == "KEY_REUSED":
        return not mine
    refused = text(first, "outcome") == "rejected"
    return mine and refused and text(first, "reason") == reason


def _is(asked: RefundAsked, item: Item, found: Found) -> bool:
    """Whether an entry is the answer to this request, by phone, amount and currency."""
    named = (*two(item, "agentId", "idempotencyKey"), text(item, "refundId"))
    known = found.row is None or text(found.row, "phone") == found.phone or found.debit is not None
    by_app = asked.phone is None
    return (
        (known if by_app else asked.phone == found.phone)
        and text(item, "requestedBy") == (f"agent:{named[0]}" if by_app else BACK_OFFICE)
        and text(item, "fingerprint") == _fingerprint(named, found.phone, asked.amount)
        and text(item, "currency") == (asked.currency or found.currency)
    )


def _fingerprint(named: RefundName, phone: str, amount: int | None) -> str:
    """SHA-256 hex over version, agent, key, refund id, phone and amount, a line each."""
    parts = ("refund:v1", *named, phone, "full" if amount is None else amount)
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
