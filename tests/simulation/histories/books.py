"""The books as the model keeps them: from the ledger's raw items alone, one commit at a time."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.histories.asked import Asked, Broken, Content, RefundAsked, Transaction

type Item = dict[str, Any]

SIGN = {"debit": -1, "credit": 1, "status": 0, "refund": 1}
AMOUNT_LIMIT = 2**53 - 1
"""The largest balance."""


@dataclass(slots=True)
class Wallet:
    """One phone's money. `versions`: how many movements are posted."""

    balance: int = 0
    versions: int = 0
    status: str = "active"
    currency: str | None = None
    entries: dict[str, Item] = field(default_factory=dict)
    totals: dict[Transaction, int] = field(default_factory=dict)


class Books:
    """Every wallet, and P1 to P4, P7 and P9 after each commit."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.wallets: dict[str, Wallet] = {}
        self.debited: dict[Transaction, set[str]] = {}
        """Phones from which a transaction was taken."""
        self.refunded: dict[tuple[str, str, str], int] = {}
        """What was given back, by agent, key and phone."""
        self.accounts: dict[str, int] = {}
        self.purged: set[Transaction] = set()

    def wallet(self, phone: str) -> Wallet:
        """The wallet of a phone, empty where nothing is known of it."""
        return self.wallets.setdefault(phone, Wallet())

    def entry(self, phone: str, tx_id: str) -> Item | None:
        """An entry as it stands."""
        wallet = self.wallets.get(phone)
        return None if wallet is None else wallet.entries.get(tx_id)

    def commit(self, phone: str, records: Sequence[Item]) -> list[Item]:
        """Take in what one commit wrote under a phone; the new entries.

        `records` are the stream's own, of one transaction.
        """
        wallet = self.wallet(phone)
        balance: Item | None = None
        entries: list[Item] = []
        totals: list[Item] = []
        for record in records:
            if record["eventName"] == "REMOVE":
                raise Broken("P7", f"removed from the ledger: {record['dynamodb']['Keys']}")
            item = record["dynamodb"]["NewImage"]
            tx_id = item["txId"]["S"]
            if tx_id == "balance":
                balance = item
            elif tx_id.startswith("refunds#"):
                totals.append(item)
            elif tx_id in wallet.entries or record["eventName"] != "INSERT":
                raise Broken("P7", f"an entry was written again: {tx_id}")
            else:
                entries.append(item)
        self._post(wallet, phone, entries)
        for item in totals:
            _, agent, key = item["txId"]["S"].split("#")
            wallet.totals[agent, key] = number(item, "refundedMinor")
        self._check_balance(wallet, phone, balance, entries)
        for item in entries:
            self._check_total(wallet, phone, item)
        return entries

    def _post(self, wallet: Wallet, phone: str, entries: Sequence[Item]) -> None:
        posted = [item for item in entries if text(item, "outcome") == "posted"]
        rejected = [item for item in entries if text(item, "outcome") == "rejected"]
        if len(posted) + len(rejected) != len(entries):
            raise Broken("P3", f"an entry of no outcome under {phone}")
        moments = [_moment(wallet)]
        for item in sorted(posted, key=lambda each: number(each, "version")):
            self._post_one(wallet, phone, item)
            moments.append(_moment(wallet))
        for item in rejected:
            wallet.entries[item["txId"]["S"]] = item
            self._check_refusal(wallet, phone, item, moments)

    def _post_one(self, wallet: Wallet, phone: str, item: Item) -> None:
        tx_id = item["txId"]["S"]
        kind = tx_id.split("#")[0]
        amount = number(item, "amountMinor") if "amountMinor" in item else 0
        if number(item, "version") != wallet.versions + 1:
            raise Broken("P3", f"version {number(item, 'version')} after {wallet.versions}")
        if kind == "debit" and wallet.status == "frozen":
            raise Broken("P1", f"a debit of a frozen wallet: {tx_id}")
        if kind != "status" and wallet.currency not in (None, text(item, "currency")):
            raise Broken("P9", f"{text(item, 'currency')} in a wallet of {wallet.currency}")
        wallet.versions += 1
        wallet.balance += SIGN[kind] * amount
        if wallet.balance < 0:
            raise Broken("P2", f"balance {wallet.balance} after {tx_id}")
        if number(item, "balanceAfterMinor") != wallet.balance:
            raise Broken("P3", f"{tx_id} says {item['balanceAfterMinor']}, sum {wallet.balance}")
        wallet.currency = wallet.currency or text(item, "currency")
        wallet.entries[tx_id] = item
        match kind:
            case "debit":
                self._debit(phone, item, amount)
            case "credit":
                self._credit(phone, item, amount)
            case "status":
                wallet.status = text(item, "status")
                asked = self.asked.statuses.get((*two(item, "source", "requestId"), phone), set())
                if wallet.status not in asked:
                    raise Broken("P7", f"a status that nobody asked for: {tx_id}")
            case _:
                self._refund(wallet, phone, item, amount)

    def _debit(self, phone: str, item: Item, amount: int) -> None:
        agent, key = two(item, "agentId", "idempotencyKey")
        asked = self.asked.debits.get((agent, key), set())
        if not any(
            (c.phone, c.amount, c.currency) == (phone, amount, text(item, "currency"))
            for c in asked
        ):
            raise Broken("P1", f"a debit that nobody asked for: {agent} {key} {amount}")
        phones = self.debited.setdefault((agent, key), set())
        if phones and (agent, key) not in self.purged:
            raise Broken("P1", f"debited twice: {agent} {key}")
        phones.add(phone)
        self._account(item, f"agent:{agent}", amount)

    def _credit(self, phone: str, item: Item, amount: int) -> None:
        source, credit_id = two(item, "source", "creditId")
        asked = self.asked.credits.get((source, credit_id, phone), set())
        if (amount, text(item, "currency")) not in asked:
            raise Broken("P9", f"a credit that nobody asked for: {source} {credit_id} {amount}")
        self._account(item, f"funding:{source}", -amount)

    def _refund(self, wallet: Wallet, phone: str, item: Item, amount: int) -> None:
        agent, key = two(item, "agentId", "idempotencyKey")
        debit = wallet.entries.get(f"debit#{agent}#{key}")
        if debit is None or text(debit, "outcome") != "posted":
            raise Broken("P4", f"a refund of what was not taken: {agent} {key}")
        before = self.refunded.get((agent, key, phone), 0)
        remaining = number(debit, "amountMinor") - before
        if not 0 < amount <= remaining:
            raise Broken("P4", f"{amount} given back where {remaining} remained: {agent} {key}")
        refund_id = text(item, "refundId")
        asked = self.asked.refunds.get((agent, key, refund_id), set())
        if not any(_is_meant(each, phone, amount, remaining) for each in asked):
            raise Broken("P4", f"a refund that nobody asked for: {agent} {key} {refund_id}")
        self.refunded[agent, key, phone] = before + amount
        self._account(item, f"agent:{agent}", -amount)

    def _account(self, item: Item, name: str, change: int) -> None:
        if text(item, "contra") != name:
            raise Broken("P9", f"{item['txId']['S']} names {text(item, 'contra')}")
        self.accounts[name] = self.accounts.get(name, 0) + change
        if (self.accounts[name] < 0) == name.startswith("agent:") and self.accounts[name]:
            raise Broken("P9", f"{name} stands at {self.accounts[name]}")

    def _check_refusal(
        self, wallet: Wallet, phone: str, item: Item, moments: "Sequence[_Moment]"
    ) -> None:
        """A refusal is of what was asked, and true of the wallet at some moment of the commit."""
        kind, reason = item["txId"]["S"].split("#")[0], text(item, "reason")
        if "version" in item or "balanceAfterMinor" in item:
            raise Broken("P7", f"a refusal moved a balance: {item['txId']['S']}")
        if kind == "refund":
            return  # whose row counts too: `Refusals` judges it
        if not self._was_asked(kind, phone, item):
            raise Broken("P7", f"refused, and nobody asked for it: {item['txId']['S']}")
        if reason == "KEY_REUSED":
            true = _is_reused(wallet, kind, item)
        else:
            true = any(_refuses(kind, reason, item, was) for was in moments)
        if not true:
            raise Broken("P7", f"refused for no reason: {kind} {reason} {item['txId']['S']}")

    def _was_asked(self, kind: str, phone: str, item: Item) -> bool:
        if kind == "status":
            named = (*two(item, "source", "requestId"), phone)
            return text(item, "status") in self.asked.statuses.get(named, set())
        content = number(item, "amountMinor"), text(item, "currency")
        if kind == "credit":
            named = (*two(item, "source", "creditId"), phone)
            return content in self.asked.credits.get(named, set())
        asked = self.asked.debits.get(two(item, "agentId", "idempotencyKey"), set())
        return Content(phone, *content) in asked

    def _check_balance(
        self, wallet: Wallet, phone: str, item: Item | None, entries: Sequence[Item]
    ) -> None:
        """P2, P3, P7: the balance row is the sum of what is posted, and moves only with it."""
        posted = any(text(each, "outcome") == "posted" for each in entries)
        if item is None:
            if posted:
                raise Broken("P3", f"posted under {phone} and the balance did not move")
            return
        if not posted:
            raise Broken("P7", f"the balance of {phone} moved, and nothing was posted")
        says = (
            number(item, "balanceMinor"),
            number(item, "version"),
            text(item, "status"),
            text(item, "currency"),
        )
        is_so = (wallet.balance, wallet.versions, wallet.status, wallet.currency)
        if says[0] < 0:
            raise Broken("P2", f"balance of {phone}: {says[0]}")
        if says != is_so:
            raise Broken("P3", f"the balance row of {phone} says {says}, its entries {is_so}")

    def _check_total(self, wallet: Wallet, phone: str, item: Item) -> None:
        if item["txId"]["S"].startswith("refund#") and text(item, "outcome") == "posted":
            agent, key = two(item, "agentId", "idempotencyKey")
            total = self.refunded[agent, key, phone]
            if wallet.totals.get((agent, key)) != total:
                raise Broken("P4", f"total of {agent} {key}: {wallet.totals}, entries {total}")


def check_money(ledger: Sequence[Item]) -> None:
    """P9 over the items of the table: wallets hold what came in and did not go out."""
    held, accounts = 0, Counter[str]()
    for item in ledger:
        if text(item, "txId") == "balance":
            held += number(item, "balanceMinor")
        elif "contra" in item and text(item, "outcome") == "posted":
            out = text(item, "txId").startswith("debit#")
            accounts[text(item, "contra")] += number(item, "amountMinor") * (-1 if out else 1)
    if held != accounts.total():
        raise Broken("P9", f"wallets hold {held}, and accounts gave {accounts}")


@dataclass(frozen=True, slots=True)
class _Moment:
    """A wallet before, during or after one commit; of no currency, it is not open."""

    balance: int
    status: str
    currency: str | None


def _moment(wallet: Wallet) -> _Moment:
    return _Moment(wallet.balance, wallet.status, wallet.currency)


def _refuses(kind: str, reason: str, item: Item, was: _Moment) -> bool:
    """Whether a wallet, as it was, refuses a debit or a credit for this reason before others."""
    amount = number(item, "amountMinor")
    of_another = was.currency not in {None, text(item, "currency")}
    takes = was.currency is not None and not of_another
    match kind, reason:
        case "debit", "WALLET_NOT_FOUND":
            return was.currency is None
        case "debit" | "credit", "CURRENCY_MISMATCH":
            return of_another
        case "debit", "WALLET_FROZEN":
            return takes and was.status == "frozen"
        case "debit", "INSUFFICIENT_FUNDS":
            return takes and was.status != "frozen" and was.balance < amount
        case "credit", "BALANCE_LIMIT":
            return not of_another and was.balance + amount > AMOUNT_LIMIT
        case _:
            return False


def _is_reused(wallet: Wallet, kind: str, item: Item) -> bool:
    """Whether the id of a credit or of a status request stands for something else."""
    first = wallet.entries.get(item["txId"]["S"].rpartition("#")[0])
    if first is None or kind == "debit":
        return False
    names = ("amountMinor", "currency") if kind == "credit" else ("status",)
    return any(first[name] != item[name] for name in names)


def _is_meant(asked: RefundAsked, phone: str, amount: int, remaining: int) -> bool:
    fits = asked.phone in (None, phone)
    return fits and amount == (remaining if asked.amount is None else asked.amount)


def text(item: Item, name: str) -> str:
    """A string attribute."""
    return str(item[name]["S"])


def number(item: Item, name: str) -> int:
    """A whole number attribute."""
    return int(item[name]["N"])


def two(item: Item, first: str, second: str) -> tuple[str, str]:
    """Two string attributes."""
    return text(item, first), text(item, second)
