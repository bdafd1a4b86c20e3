"""The audit: does what the live tables say keep the promises, and which rows do not?

Reading a moving system must not give false alarms, so everything is read in the order in which
the system cannot contradict it: the row before its entry (they are written together, so what a
row says is in the ledger by then), a wallet's balance before its entries (all entries up to its
version are there by then; later ones are left out). What still looks wrong is read again, row
and entry in one transaction, before it counts.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType

from wakala.output import escape, table
from wakala.stack import Stack
from wakala.wallets import find, wallet_items
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import AgentId, Currency, EntryId, IdempotencyKey, Phone
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status, open_shard
from wallet_ledger.domain.wallets import Posted, Rejected, Wallet

PROMISES = {
    "P1": "at most one posted debit per transaction, with the accepted amount",
    "P2": "no balance below zero",
    "P3": "a balance is the sum of its entries, without gaps",
    "P4": "no more refunded than debited",
    "P5": "every accepted transaction ends",
    "P6": "status answers what the ledger says",
    "P8": "every transaction is in exactly one place",
    "P9": "money is conserved",
}

EXPIRY_GRACE_S = 3600
"""How long the sweep may take to expire a row whose time is over."""

SHOWN_MAX = 20
"""Violations that a person is shown."""

SETTLED = frozenset(
    {Status.SYNCED, Status.REFUND_REQUESTED, Status.PARTIALLY_REFUNDED, Status.REFUNDED}
)
SWEPT = frozenset({Status.QUEUED, Status.REFUND_REQUESTED})
"""Statuses under which the system still owes a row something, so that the sweep must see it."""

type TransactionId = tuple[AgentId, IdempotencyKey]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of OfflineTx, and the partition of the open index that it really is in, if any."""

    transaction: OfflineTransaction
    shard: str | None

    @property
    def id(self) -> TransactionId:
        """Agent and key."""
        return self.transaction.agent_id, self.transaction.idempotency_key


@dataclass(frozen=True, slots=True)
class Books:
    """One wallet: its balance row, entries that were read after it, and what is neither."""

    phone: Phone
    wallet: Wallet | None
    entries: Sequence[Entry]
    strange: Sequence[EntryId] = ()

    def posted(self) -> list[tuple[Entry, Posted]]:
        """Entries that the balance includes, in the order in which they were posted."""
        version = self.wallet.version if self.wallet else 0
        included = [
            (entry, entry.outcome)
            for entry in self.entries
            if isinstance(entry.outcome, Posted)
            and (self.wallet is None or entry.outcome.version <= version)
        ]
        return sorted(included, key=lambda pair: pair[1].version)


@dataclass(frozen=True, slots=True)
class Violation:
    """A row that breaks a promise."""

    promise: str
    what: str
    phone: Phone | None = None
    entry_id: EntryId | None = None
    transaction: TransactionId | None = None

    def view(self, *, reveal: bool) -> dict[str, str]:
        """What scripts get; the phone is masked unless `reveal`."""
        found = {"what": self.what}
        if self.transaction:
            found |= {"agentId": self.transaction[0], "idempotencyKey": self.transaction[1]}
        if self.phone:
            found["phone"] = self.phone if reveal else masked(self.phone)
        if self.entry_id:
            found["entryId"] = self.entry_id
        return found


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked and what was found, per promise."""

    checked: Mapping[str, int]
    violations: Sequence[Violation]

    @property
    def ok(self) -> bool:
        """Whether every promise holds."""
        return not self.violations

    def broken(self, promise: str) -> list[Violation]:
        """The violations of one promise."""
        return [violation for violation in self.violations if violation.promise == promise]

    def view(self, *, reveal: bool = False) -> dict[str, Any]:
        """What scripts get."""
        return {
            "ok": self.ok,
            "promises": [
                {
                    "id": promise,
                    "ok": not self.broken(promise),
                    "checked": self.checked.get(promise, 0),
                    "violations": [v.view(reveal=reveal) for v in self.broken(promise)],
                }
                for promise in PROMISES
            ],
        }


@dataclass(slots=True)
class Audit:
    """The audit's memory: what it has checked so far, and the sums over all wallets.

    `purges`: whether the stack deletes finished rows after a time, so that a missing row, or a
    key that was accepted anew, proves nothing.
    """

    now_s: int
    purges: bool = False
    checked: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    held_minor: Counter[Currency] = field(default_factory=Counter)
    moved_minor: Counter[tuple[Currency, str]] = field(default_factory=Counter)

    def check_books(self, books: Books) -> None:
        """P2, P3, P4 and P9 on one wallet."""
        posted = books.posted()
        self.checked["P2"] += len(posted) + (books.wallet is not None)
        self.checked["P3"] += len(posted)
        self.checked["P4"] += sum(entry.kind == "debit" for entry, _ in posted)
        self.violations += [*_below_zero(books), *_broken_chain(books), *_strange(books)]
        if books.wallet is not None:
            self.held_minor[books.wallet.currency] += books.wallet.balance_minor
        for entry, _ in posted:
            if entry.kind == "status":
                continue
            self.moved_minor[entry.currency, entry.contra or ""] += _signed(entry)
            if entry.contra != _contra(entry):
                self.violations.append(_entry_violation("P9", entry, "another contra account"))

    def check_transaction(self, row: Row | None, entry: Entry | None) -> list[Violation]:
        """P1, P5, P6 and P8 on one transaction; what is found counts only once it is confirmed."""
        found = list(_posted_as_accepted(row, entry, purges=self.purges))
        if row is not None:
            found += [
                *_ended(row, self.now_s),
                *_answers_the_ledger(row, entry, purges=self.purges),
                *_in_one_place(row),
            ]
        return found

    def count_transaction(self, row: Row | None, entry: Entry | None) -> None:
        """Note that `check_transaction` was asked."""
        self.checked["P1"] += entry is not None and isinstance(entry.outcome, Posted)
        for promise in ("P5", "P6", "P8"):
            self.checked[promise] += row is not None

    def report(self) -> Report:
        """The verdict, with P9 over all wallets."""
        self.checked["P9"] = len(self.moved_minor)
        for currency in sorted({*self.held_minor, *(c for c, _ in self.moved_minor)}):
            held = self.held_minor[currency]
            moved = sum(n for (c, _), n in self.moved_minor.items() if c == currency)
            if held != moved:
                what = f"wallets hold {held} {currency}, and {moved} came in and stayed"
                self.violations.append(Violation("P9", what))
        return Report(self.checked, self.violations)


def audit(stack: Stack, now_s: int, progress: Callable[[str], None]) -> Report:
    """Read both tables and check every promise. Holds the rows of OfflineTx in memory."""
    tally = Audit(now_s, purges=stack.parameter("RetentionDays") != "0")
    rows: defaultdict[Phone, dict[TransactionId, Row]] = defaultdict(dict)
    for each in _rows(stack):
        rows[each.transaction.phone][each.id] = each
    phones = sorted(rows.keys() | _ledger_phones(stack))
    suspects: list[tuple[Phone, TransactionId]] = []
    for n, phone in enumerate(phones, start=1):
        progress(f"{n} of {len(phones)} wallets")
        books = _read_books(stack, phone)
        if books.wallet is None and books.posted():  # opened between the two reads
            books = _read_books(stack, phone)
        tally.check_books(books)
        debits = {_transaction_id(e): e for e in books.entries if _is_debit(e)}
        for found in sorted(rows[phone].keys() | debits.keys()):
            row, entry = rows[phone].get(found), debits.get(found)
            tally.count_transaction(row, entry)
            if tally.check_transaction(row, entry):
                suspects.append((phone, found))
    for phone, suspect in suspects:
        tally.violations += tally.check_transaction(*_read_together(stack, phone, suspect))
    return tally.report()


def render(report: Report, *, reveal: bool = False) -> RenderableType:
    """What a person gets: a line per promise, and each row that breaks it below."""
    made = table("", "promise", "checked", "broken", right=frozenset({"checked", "broken"}))
    for promise, words in PROMISES.items():
        broken = report.broken(promise)
        mark = "[red]✗[/]" if broken else "[green]✓[/]"
        made.add_row(
            mark, f"{promise} {words}", f"{report.checked.get(promise, 0):,}", str(len(broken))
        )
    lines: list[RenderableType] = [made]
    for violation in report.violations[:SHOWN_MAX]:
        members = violation.view(reveal=reveal)
        where = " ".join(value for name, value in members.items() if name != "what")
        lines.append(f"[red]{violation.promise}[/] {escape(where)}: {escape(members['what'])}")
    if len(report.violations) > SHOWN_MAX:
        lines.append(f"… and {len(report.violations) - SHOWN_MAX} more (--json has them all)")
    verdict = "[green]All promises hold.[/]" if report.ok else "[bold red]A promise is broken.[/]"
    return Group(*lines, verdict)


def masked(phone: str) -> str:
    """A phone that still tells one from another in a short list, and no more."""
    return f"{phone[:3]}…{phone[-3:]}"


# --- what each promise asks ----------------------------------------------------------------


def _posted_as_accepted(
    row: Row | None, entry: Entry | None, *, purges: bool
) -> Iterator[Violation]:
    if entry is None or not isinstance(entry.outcome, Posted):
        return
    if row is None:
        if not purges:
            yield _entry_violation("P1", entry, "a posted debit that nobody asked for")
        return
    asked = row.transaction
    if (asked.phone, asked.amount_minor, asked.currency) != (
        entry.phone,
        entry.amount_minor,
        entry.currency,
    ) and not (purges and asked.fingerprint != entry.fingerprint):
        yield _entry_violation("P1", entry, "a posted debit that differs from what was accepted")


def _below_zero(books: Books) -> Iterator[Violation]:
    if books.wallet is not None and books.wallet.balance_minor < 0:
        what = f"a balance of {books.wallet.balance_minor}"
        yield Violation("P2", what, books.phone, items.BALANCE)
    for entry, posted in books.posted():
        if posted.balance_after_minor < 0:
            what = f"it left a balance of {posted.balance_after_minor}"
            yield _entry_violation("P2", entry, what)


def _broken_chain(books: Books) -> Iterator[Violation]:
    posted = books.posted()
    if books.wallet is None:
        for entry, _ in posted:
            yield _entry_violation("P3", entry, "posted to a wallet that is not there")
        return
    balance_minor = 0
    for version, (entry, outcome) in enumerate(posted, start=1):
        balance_minor += _signed(entry)
        if outcome.version != version:
            yield _entry_violation("P3", entry, f"version {outcome.version} where {version} is due")
            return
        if outcome.balance_after_minor != balance_minor:
            what = f"it says {outcome.balance_after_minor} is left where {balance_minor} is"
            yield _entry_violation("P3", entry, what)
            return
    if (books.wallet.version, books.wallet.balance_minor) != (len(posted), balance_minor):
        what = (
            f"the balance row says {books.wallet.balance_minor} at version {books.wallet.version},"
            f" its entries {balance_minor} at {len(posted)}"
        )
        yield Violation("P3", what, books.phone, items.BALANCE)


def _strange(books: Books) -> Iterator[Violation]:
    # Nothing refunds yet, so no debit may have a refund.
    for entry_id in books.strange:
        promise = "P4" if entry_id.startswith("refund") else "P3"
        yield Violation(promise, "no entry that the books know", books.phone, entry_id)


def _ended(row: Row, now_s: int) -> Iterator[Violation]:
    asked = row.transaction
    overdue_s = now_s - asked.expires_at_s
    if asked.status is Status.QUEUED and overdue_s > EXPIRY_GRACE_S:
        yield _row_violation("P5", row, f"still queued, {overdue_s} s after its time was over")


def _answers_the_ledger(row: Row, entry: Entry | None, *, purges: bool) -> Iterator[Violation]:
    asked = row.transaction
    own = entry is not None and entry.fingerprint == asked.fingerprint
    outcome = entry.outcome if entry is not None and own else None
    said = f"it says {asked.status}{f' ({asked.reason})' if asked.reason else ''}"
    if asked.status in SETTLED:
        if not isinstance(outcome, Posted):
            yield _row_violation("P6", row, f"{said}, and the ledger has no posted debit")
    elif asked.status is Status.FAILED and asked.reason == Reason.KEY_REUSED:
        if entry is None or own:
            yield _row_violation("P6", row, f"{said}, and the ledger knows no other use of the key")
    elif asked.status is Status.FAILED and asked.reason != Reason.DISCARDED:
        if not isinstance(outcome, Rejected) or outcome.reason != asked.reason:
            yield _row_violation("P6", row, f"{said}, and the ledger has no such refusal")
    elif outcome is not None and not (purges and asked.status is Status.QUEUED):
        yield _row_violation("P6", row, f"{said}, and the ledger has decided it")


def _in_one_place(row: Row) -> Iterator[Violation]:
    status = row.transaction.status
    expected = items.open_shard_key(open_shard(*row.id)) if status in SWEPT else None
    if row.shard != expected:
        where = "in the index of open rows" if row.shard else "out of the sweep's sight"
        yield _row_violation("P8", row, f"it is {status} and {where}")


def _signed(entry: Entry) -> int:
    """What a posted entry adds to its wallet, in minor units."""
    match entry.kind:
        case "credit":
            return entry.amount_minor
        case "debit":
            return -entry.amount_minor
        case "status":
            return 0


def _contra(entry: Entry) -> str:
    return f"funding:{entry.actor}" if entry.kind == "credit" else f"agent:{entry.actor}"


def _is_debit(entry: Entry) -> bool:
    # The refusal of a reused key stands beside the key's own entry, under a longer id.
    return entry.kind == "debit" and entry.outcome != Rejected(Reason.KEY_REUSED)


def _transaction_id(entry: Entry) -> TransactionId:
    return AgentId(entry.actor), IdempotencyKey(entry.reference)


def _entry_violation(promise: str, entry: Entry, what: str) -> Violation:
    return Violation(promise, what, entry.phone, entry.entry_id)


def _row_violation(promise: str, row: Row, what: str) -> Violation:
    return Violation(promise, what, transaction=row.id)


# --- reading -------------------------------------------------------------------------------


def _rows(stack: Stack) -> Iterator[Row]:
    pages = stack.dynamodb.get_paginator("scan").paginate(
        TableName=stack.output("OfflineTxTable"), ConsistentRead=True
    )
    for page in pages:
        yield from map(_row, page["Items"])


def _row(item: Mapping[str, Any]) -> Row:
    return Row(items.read_offline_tx(item), item.get("openShard", {}).get("S"))


def _ledger_phones(stack: Stack) -> set[Phone]:
    pages = stack.dynamodb.get_paginator("scan").paginate(
        TableName=stack.output("WalletLedgerTable"), ProjectionExpression="phone"
    )
    return {Phone(item["phone"]["S"]) for page in pages for item in page["Items"]}


def _read_books(stack: Stack, phone: Phone) -> Books:
    wallet = find(stack, phone)  # before the entries: see above
    entries: list[Entry] = []
    strange: list[EntryId] = []
    for item in wallet_items(stack, phone):
        try:
            entries.append(items.read_entry(item))
        except (KeyError, ValueError):
            strange.append(EntryId(item["txId"]["S"]))
    return Books(phone, wallet, entries, strange)


def _read_together(
    stack: Stack, phone: Phone, transaction: TransactionId
) -> tuple[Row | None, Entry | None]:
    """Row and entry as of one moment."""
    entry_id = EntryId(f"debit#{transaction[0]}#{transaction[1]}")
    keys = [
        (stack.output("OfflineTxTable"), items.offline_tx_key(*transaction)),
        (stack.output("WalletLedgerTable"), items.ledger_key(phone, entry_id)),
    ]
    row, entry = stack.dynamodb.transact_get_items(
        TransactItems=[{"Get": {"TableName": table, "Key": key}} for table, key in keys]
    )["Responses"]
    return (
        _row(row["Item"]) if row.get("Item") else None,
        items.read_entry(entry["Item"]) if entry.get("Item") else None,
    )
