"""A plain model of one debit's life: requests one after the other, and nothing in between.

It shares no code with the domain: what it says is what the design says, in the fewest words.
"""

from dataclasses import dataclass, field, replace

AMOUNT = 100
"""Of the one debit that everything here is about."""

AUTOMATIC_MAX, BY_HAND_MAX = 3, 5
"""Redrives of the debit's letters: by the clock, and by people."""

UNSETTLED = {"queued", "held"}
OPEN_LETTER = {"waiting", "parked"}

type Answer = tuple[object, ...]
AGAIN: Answer = ("again",)
"""Not now: whoever asked asks again later."""


@dataclass(slots=True)
class Model:
    """One wallet, the one debit that an agent wants of it, and the dead letters of that.

    `attempt`: which sending of the debit is under way. `due`: the sweep would send it again.
    `young`: it was redriven, and has a day. `seen`: parked letters that the clock has looked at.
    """

    balance: int = 0
    version: int = 0
    status: str = "queued"
    refunded: int = 0
    pending: tuple[str, int | None] | None = None
    cancelled_by: str | None = None
    entries: dict[str, Answer] = field(default_factory=dict)
    asked: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    attempt: int = 1
    due: bool = True
    young: bool = False
    held_by: str | None = None
    letters: dict[str, str] = field(default_factory=dict)
    seen: frozenset[str] = frozenset()
    automatic: int = 0
    by_hand: int = 0

    def copy(self) -> "Model":
        """One that goes its own way from here."""
        return replace(
            self,
            entries=dict(self.entries),
            asked=dict(self.asked),
            letters=dict(self.letters),
        )

    def facts(self) -> object:
        """All that anybody can see in the end."""
        entries = tuple(sorted(self.entries.items()))
        attempt = self.attempt if self.status in UNSETTLED else None
        row = (self.status, attempt, self.held_by, self.refunded, self.pending, self.cancelled_by)
        letters = (tuple(sorted(self.letters.items())), self.automatic, self.by_hand)
        return (self.balance, self.version, row, entries, letters)

    def whole(self) -> object:
        """All that counts for what may come."""
        asked = tuple(sorted(self.asked.items(), key=repr))
        return (self.facts(), asked, self.due, self.young, self.seen)

    def credit(self, credit_id: str, amount: int) -> Answer:
        """Money in, once."""
        name = f"credit {credit_id}"
        if name not in self.entries:
            self._post(name, amount, amount)
        return self.entries[name][:3]

    def debit(self) -> Answer:
        """The debit is settled, if its row still waits for that."""
        if self.status != "queued":
            return ("dropped",)
        if self.version == 0 or self.balance < AMOUNT:
            reason = "INSUFFICIENT_FUNDS" if self.version else "WALLET_NOT_FOUND"
            self.status, self.entries["debit"] = "failed", ("rejected", reason, AMOUNT, None)
            return ("rejected", reason)
        self.status = "synced"
        return self._post("debit", -AMOUNT, AMOUNT)

    def expire(self) -> Answer:
        """The sweep finds the row too old."""
        if self.status == "queued" and not self.young:
            self.status = "expired"
        return ("swept",)

    def sweep(self) -> Answer:
        """The sweep finds that the row has waited long enough for its message."""
        if self.status == "queued" and self.due:
            self.attempt, self.due = self.attempt + 1, False
        return ("swept",)

    def file(self, name: str, attempt: int, status: str) -> Answer:
        """Triage keeps a letter of the debit, which holds its row; `status` is what it would be."""
        if name in self.letters:
            return ("known",)
        if self.status != "queued" or self.attempt != attempt:
            status = "closed"
        else:
            if self.automatic >= AUTOMATIC_MAX:
                status = "parked"
            self.status, self.held_by = "held", name
        self.letters[name] = status
        return ("kept", status)

    def redrive(self, name: str, *, by_clock: bool = False) -> Answer:
        """A letter's debit is queued again, as its next attempt."""
        too_late = self._too_late(name)
        if too_late is not None:
            return too_late
        if by_clock and self.automatic >= AUTOMATIC_MAX:
            self.letters[name], self.seen = "parked", self.seen | {name}
            return ("parked",)
        if not by_clock and self.by_hand >= BY_HAND_MAX:
            return ("capped",)
        self.automatic += by_clock
        self.by_hand += not by_clock
        self.status, self.held_by, self.letters[name] = "queued", None, "redriven"
        self.attempt, self.due, self.young = self.attempt + 1, False, True
        return ("redriven",)

    def discard(self, name: str) -> Answer:
        """A letter's debit is given up."""
        too_late = self._too_late(name)
        if too_late is not None:
            return too_late
        self.status, self.held_by, self.letters[name] = "failed", None, "discarded"
        return ("discarded",)

    def look(self) -> Answer:
        """The clock looks at the letter that is open, if its time has come."""
        due = [n for n, s in self.letters.items() if s in OPEN_LETTER and n not in self.seen]
        if not due:
            return ("nothing",)
        [name] = due
        if self.letters[name] == "waiting":
            return self.redrive(name, by_clock=True)
        self.seen |= {name}
        return self._too_late(name) or ("nothing",)

    def _too_late(self, name: str) -> Answer | None:
        """What is said of a letter that nothing is left to be done for."""
        status = self.letters.get(name)
        if status is None:
            return ("unknown",)
        if status not in OPEN_LETTER:
            return ("already_redriven",) if status == "redriven" else ("already_terminal",)
        if self.held_by == name:
            return None
        self.letters[name] = "closed"
        return ("closed",)

    def refund(self, refund_id: str, amount: int | None, currency: str | None = None) -> Answer:
        """What the refund function does with a request; the debit is in KES."""
        name = f"refund {refund_id}"
        if name in self.entries:
            return self._repeat(name, refund_id, amount, currency)
        if currency not in (None, "KES"):
            return self._refuse(name, "MISMATCH", refund_id, amount, None, str(currency))
        full = amount is None or amount == AMOUNT
        if self.status in UNSETTLED and full:
            return self._cancel(refund_id)
        if self.status in UNSETTLED and (amount or 0) <= AMOUNT:
            return AGAIN
        if self.status == "cancelled" and self.cancelled_by == refund_id and full:
            return ("cancelled",)
        if self.status == "cancelled" and self.cancelled_by == refund_id:
            return self._reuse(name, amount)
        if self.status in {"failed", "cancelled", "expired"}:
            return self._refuse(name, "NOTHING_TO_REFUND", refund_id, amount, None)
        return self._give_back(name, refund_id, amount)

    def _repeat(
        self, name: str, refund_id: str, amount: int | None, currency: str | None
    ) -> Answer:
        self._tell(refund_id, amount)
        was, in_currency = self.asked[name]
        if was != amount or currency not in (None, in_currency):
            return self._reuse(name, amount)
        earlier = self.entries[name]
        return earlier[:3] if earlier[0] == "posted" else earlier[:2]

    def _give_back(self, name: str, refund_id: str, amount: int | None) -> Answer:
        remaining = AMOUNT - self.refunded
        wanted = remaining if amount is None else amount
        if not 0 < wanted <= remaining:
            return self._refuse(name, "EXCEEDS_ORIGINAL", refund_id, amount, remaining)
        self.refunded += wanted
        posted = self._post(name, wanted, wanted)
        self.asked[name] = (amount, "KES")
        self._tell(refund_id, amount)
        if self.pending is None:
            self.status = "refunded" if self.refunded == AMOUNT else "partially_refunded"
        return posted

    def ask(self, refund_id: str, amount: int | None) -> Answer:
        """What the agent's app is answered."""
        full = amount is None or amount == AMOUNT
        if f"refund {refund_id}" in self.entries:
            return self._ask_again(f"refund {refund_id}", amount)
        match self.status:
            case "queued" | "held":
                if full:
                    return self._cancel(refund_id)
                return AGAIN if (amount or 0) <= AMOUNT else ("no", "EXCEEDS_ORIGINAL")
            case "cancelled" if self.cancelled_by == refund_id:
                return ("repeated",) if full else ("reused",)
            case "refund_requested" if self.pending is not None:
                if self.pending[0] != refund_id:
                    return AGAIN
                return ("requested",) if self.pending[1] == amount else ("reused",)
            case "synced" | "partially_refunded":
                if (amount or 0) > AMOUNT - self.refunded:
                    return ("no", "EXCEEDS_ORIGINAL")
                self.status, self.pending = "refund_requested", (refund_id, amount)
                return ("requested",)
            case "refunded":
                return ("no", "EXCEEDS_ORIGINAL")
            case _:
                return ("no", "NOTHING_TO_REFUND")

    def _ask_again(self, name: str, amount: int | None) -> Answer:
        if self.asked[name][0] != amount:
            return ("reused",)
        earlier = self.entries[name]
        return ("no", earlier[1]) if earlier[0] == "rejected" else ("repeated",)

    def _cancel(self, refund_id: str) -> Answer:
        self.status, self.cancelled_by, self.held_by = "cancelled", refund_id, None
        return ("cancelled",)

    def _post(self, name: str, change: int, amount: int) -> Answer:
        self.balance, self.version = self.balance + change, self.version + 1
        self.entries[name] = ("posted", self.version, self.balance, amount)
        return ("posted", self.version, self.balance)

    def _refuse(
        self,
        name: str,
        reason: str,
        refund_id: str,
        amount: int | None,
        remaining: int | None,
        currency: str = "KES",
    ) -> Answer:
        self.entries[name] = ("rejected", reason, amount or 0, remaining)
        self.asked[name] = (amount, currency)
        self._tell(refund_id, amount)
        return ("rejected", reason)

    def _reuse(self, name: str, amount: int | None) -> Answer:
        self.entries[f"{name} reused"] = ("rejected", "KEY_REUSED", amount or 0, None)
        return ("rejected", "KEY_REUSED")

    def _tell(self, refund_id: str, amount: int | None) -> None:
        """The row that waits for this request waits no longer."""
        if self.pending == (refund_id, amount):
            self.pending = None
            if self.status == "refund_requested":
                ends = {0: "synced", AMOUNT: "refunded"}
                self.status = ends.get(self.refunded, "partially_refunded")
