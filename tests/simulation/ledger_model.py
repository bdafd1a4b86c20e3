"""A plain model of one debit's life: requests one after the other, and nothing in between.

It shares no code with the domain: what it says is what the design says, in the fewest words.
"""

from dataclasses import dataclass, field, replace

AMOUNT = 100
"""Of the one debit that everything here is about."""

type Answer = tuple[object, ...]
AGAIN: Answer = ("again",)
"""Not now: whoever asked asks again later."""


@dataclass(slots=True)
class Model:
    """One wallet, and the one debit that an agent wants of it."""

    balance: int = 0
    version: int = 0
    status: str = "queued"
    refunded: int = 0
    pending: tuple[str, int | None] | None = None
    cancelled_by: str | None = None
    entries: dict[str, Answer] = field(default_factory=dict)
    asked: dict[str, tuple[int | None, str]] = field(default_factory=dict)

    def copy(self) -> "Model":
        """One that goes its own way from here."""
        return replace(self, entries=dict(self.entries), asked=dict(self.asked))

    def facts(self) -> object:
        """All that anybody can see in the end."""
        entries = tuple(sorted(self.entries.items()))
        row = (self.status, self.refunded, self.pending, self.cancelled_by)
        return (self.balance, self.version, row, entries)

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
        if self.status == "queued":
            self.status = "expired"
        return ("swept",)

    def refund(self, refund_id: str, amount: int | None, currency: str | None = None) -> Answer:
        """What the refund function does with a request; the debit is in KES."""
        name = f"refund {refund_id}"
        if name in self.entries:
            return self._repeat(name, refund_id, amount, currency)
        if currency not in (None, "KES"):
            return self._refuse(name, "MISMATCH", refund_id, amount, None, str(currency))
        full = amount is None or amount == AMOUNT
        if self.status == "queued" and full:
            self.status, self.cancelled_by = "cancelled", refund_id
            return ("cancelled",)
        if self.status == "queued" and (amount or 0) <= AMOUNT:
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
            case "queued":
                if full:
                    self.status, self.cancelled_by = "cancelled", refund_id
                    return ("cancelled",)
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
