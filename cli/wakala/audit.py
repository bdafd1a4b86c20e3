"""The audit: does what the live tables say keep the promises, and which rows do not?

Reading a moving system must not give false alarms, so everything is read in the order in which
the system cannot contradict it: the row before its entry (they are written together, so what a
row says is in the ledger by then), a wallet's balance before its entries (all entries up to its
version are there by then; later ones are left out), a held row before its letter. What still looks
wrong is read again, row, entry, running total and letter in one transaction, and its refunds
between two such reads that agree, before it counts. What somebody has edited so that nobody can
read it is named, and ends no audit.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Group, RenderableType

from wakala.output import escape, table
from wakala.stack import Stack
from wakala.wallets import UnreadableWallet, find, masked, wallet_items
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import AgentId, Currency, EntryId, IdempotencyKey, Phone
from wallet_ledger.domain.letters import Letter
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status, open_shard
from wallet_ledger.domain.wallets import Posted, Rejected, Wallet

PROMISES = {
    "P1": "at most one posted debit per transaction, with the accepted amount",
    "P2": "no balance below zero",
    "P3": "a balance is the sum of its entries, without gaps",
    "P4": "no more refunded than debited, each refund once",
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
UNTOLD = SWEPT | {Status.HELD, Status.CANCELLED, Status.EXPIRED}
"""Statuses that say what no entry does: a row that was forgotten under one could be debited."""

READS_MAX = 10
"""Reads of one suspect until two agree: each that does not is a refund of that debit."""
READ_AGAIN_SECONDS = 0.05

type TransactionId = tuple[AgentId, IdempotencyKey]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of OfflineTx, and the partition of the open index that it really is in, if any.

    `purge_at_s`: when it is deleted, epoch seconds. `letter`: of a held row the letter that it
    names, None for one that is not kept.
    """

    transaction: OfflineTransaction
    shard: str | None
    purge_at_s: int | None = None
    letter: Letter | None = None

    @property
    def id(self) -> TransactionId:
        """Agent and key."""
        return self.transaction.agent_id, self.transaction.idempotency_key


@dataclass(frozen=True, slots=True)
class GivenBack:
    """What went back of one debit: the entries of its refunds, and the running total."""

    refunds: Sequence[Entry] = ()
    total_minor: int = 0

    @property
    def posted_minor(self) -> int:
        """The sum of what was refunded, by the entries."""
        return sum(each.amount_minor for each in self.posted)

    @property
    def posted(self) -> list[Entry]:
        """The refunds that moved money."""
        return [each for each in self.refunds if isinstance(each.outcome, Posted)]


NOTHING = GivenBack()


@dataclass(frozen=True, slots=True)
class Books:
    """One wallet: its balance item, what was read after it, and what is neither.

    `totals`: how much of each debit was refunded, as the books keep count. `unreadable`: the
    attribute for which the balance item cannot be read, so that there is no wallet here.
    """

    phone: Phone
    wallet: Wallet | None
    entries: Sequence[Entry]
    strange: Sequence[EntryId] = ()
    totals: Mapping[TransactionId, int] = field(default_factory=dict)
    unreadable: str | None = None

    def given_back(self) -> dict[TransactionId, GivenBack]:
        """What went back of each debit that anybody wanted back."""
        refunds: defaultdict[TransactionId, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.kind == "refund":
                refunds[_transaction_id(entry)].append(entry)
        return {
            each: GivenBack(refunds[each], self.totals.get(each, 0))
            for each in refunds.keys() | self.totals.keys()
        }

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
    """What was checked and what was found, per promise; `held`: transactions in triage's hands."""

    checked: Mapping[str, int]
    violations: Sequence[Violation]
    held: int = 0

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
            "held": self.held,
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
    held_rows: int = 0
    unreadable_wallets: int = 0
    held_minor: Counter[Currency] = field(default_factory=Counter)
    moved_minor: Counter[tuple[Currency, str]] = field(default_factory=Counter)

    def check_books(self, books: Books) -> None:
        """P2, P3 and P9 on one wallet; what one holds that cannot be read, nobody can add up."""
        posted = books.posted()
        counted = books.unreadable is None
        self.unreadable_wallets += not counted
        self.checked["P2"] += len(posted) + (books.wallet is not None)
        self.checked["P3"] += len(posted)
        self.checked["P4"] += sum(entry.kind == "refund" for entry in books.entries)
        self.violations += [*_below_zero(books), *_broken_chain(books), *_strange(books)]
        if books.wallet is not None:
            self.held_minor[books.wallet.currency] += books.wallet.balance_minor
        for entry, _ in posted:
            if entry.kind == "status":
                continue
            if counted:
                self.moved_minor[entry.currency, entry.contra or ""] += _signed(entry)
            if entry.contra != _contra(entry):
                self.violations.append(_entry_violation("P9", entry, "another contra account"))

    def check_transaction(
        self, row: Row | None, entry: Entry | None, given: GivenBack = NOTHING
    ) -> list[Violation]:
        """P1, P4, P5, P6 and P8 on one transaction; what is found counts once it is confirmed."""
        found = [
            *_posted_as_accepted(row, entry, purges=self.purges),
            *_refunded_at_most(entry, given),
        ]
        if row is not None:
            found += [
                *_tells_what_went_back(row, given, purges=self.purges),
                *_ended(row, self.now_s),
                *_is_remembered(row),
                *_answers_the_ledger(row, entry, purges=self.purges),
                *_in_one_place(row),
                *_in_the_hands_of_its_letter(row),
            ]
        return found

    def count_transaction(self, row: Row | None, entry: Entry | None) -> None:
        """Note that `check_transaction` was asked."""
        posted = entry is not None and isinstance(entry.outcome, Posted)
        self.checked["P1"] += posted
        self.checked["P4"] += posted
        for promise in ("P5", "P6", "P8"):
            self.checked[promise] += row is not None
        self.held_rows += row is not None and row.transaction.status is Status.HELD

    def note_unreadable(self, transaction: TransactionId) -> None:
        """P8 on a row that says nothing: it is in no place."""
        what = "no row that anybody can read"
        self.violations.append(Violation("P8", what, transaction=transaction))

    def report(self) -> Report:
        """The verdict, with P9 over all wallets."""
        self.checked["P9"] = len(self.moved_minor)
        for currency in sorted({*self.held_minor, *(c for c, _ in self.moved_minor)}):
            held = self.held_minor[currency]
            moved = sum(n for (c, _), n in self.moved_minor.items() if c == currency)
            if held != moved:
                what = f"wallets hold {held:,} {currency}, and {moved:,} came in and stayed"
                self.violations.append(Violation("P9", what))
        if self.unreadable_wallets:
            one = self.unreadable_wallets == 1
            wallets = f"{self.unreadable_wallets:,} wallet{'' if one else 's'}"
            what = f"{wallets} cannot be read, and {'is' if one else 'are'} not counted"
            self.violations.append(Violation("P9", what))
        return Report(self.checked, self.violations, self.held_rows)


def audit(stack: Stack, now_s: int, progress: Callable[[str], None]) -> Report:
    """Read the tables and check every promise. Holds the rows of OfflineTx in memory."""
    tally = Audit(now_s, purges=stack.parameter("RetentionDays") != "0")
    rows: defaultdict[Phone, dict[TransactionId, Row]] = defaultdict(dict)
    unreadable: set[TransactionId] = set()
    for each in _rows(stack):
        if isinstance(each, Row):
            rows[each.transaction.phone][each.id] = each
        else:
            tally.note_unreadable(each)
            unreadable.add(each)
    phones = sorted(rows.keys() | _ledger_phones(stack))
    suspects: list[tuple[Phone, TransactionId]] = []
    for n, phone in enumerate(phones, start=1):
        progress(f"{n} of {len(phones)} wallets")
        books = _read_books(stack, phone)
        if books.wallet is None and books.posted():  # opened between the two reads
            books = _read_books(stack, phone)
        tally.check_books(books)
        debits = {_transaction_id(e): e for e in books.entries if _is_debit(e)}
        given_back = books.given_back()
        known = rows[phone].keys() | debits.keys() | given_back.keys()
        for found in sorted(known - unreadable):
            row, entry = _with_letter(stack, rows[phone].get(found)), debits.get(found)
            tally.count_transaction(row, entry)
            if tally.check_transaction(row, entry, given_back.get(found, NOTHING)):
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
        subject = f" {escape(where)}" if where else ""
        lines.append(f"[red]{violation.promise}[/]{subject}: {escape(members['what'])}")
    if len(report.violations) > SHOWN_MAX:
        lines.append(f"… and {len(report.violations) - SHOWN_MAX} more (--json has them all)")
    verdict = "[green]All promises hold.[/]" if report.ok else "[bold red]A promise is broken.[/]"
    if report.held:
        held = f"{report.held:,} transaction{'' if report.held == 1 else 's'}"
        verdict += f" Triage holds {held}: wakala dead-letters list"
    return Group(*lines, verdict)


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
        what = f"a balance of {books.wallet.balance_minor:,}"
        yield Violation("P2", what, books.phone, items.BALANCE)
    for entry, posted in books.posted():
        if posted.balance_after_minor < 0:
            what = f"it left a balance of {posted.balance_after_minor:,}"
            yield _entry_violation("P2", entry, what)


def _broken_chain(books: Books) -> Iterator[Violation]:
    posted = books.posted()
    if books.unreadable is not None:
        what = f"its balance item cannot be read ({books.unreadable})"
        yield Violation("P3", what, books.phone, items.BALANCE)
    elif books.wallet is None:
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
            what = f"it says {outcome.balance_after_minor:,} is left where {balance_minor:,} is"
            yield _entry_violation("P3", entry, what)
            return
    wallet = books.wallet
    if wallet and (wallet.version, wallet.balance_minor) != (len(posted), balance_minor):
        what = (
            f"the balance item says {wallet.balance_minor:,} at version {wallet.version},"
            f" its entries {balance_minor:,} at {len(posted)}"
        )
        yield Violation("P3", what, books.phone, items.BALANCE)


def _strange(books: Books) -> Iterator[Violation]:
    for entry_id in books.strange:
        promise = "P4" if entry_id.startswith("refund") else "P3"
        yield Violation(promise, "no entry that the books know", books.phone, entry_id)


def _refunded_at_most(entry: Entry | None, given: GivenBack) -> Iterator[Violation]:
    """What the ledger alone says of a debit's refunds."""
    debit = entry if entry is not None and isinstance(entry.outcome, Posted) else None
    decided: set[str | None] = set()
    for refund in given.refunds:
        if debit is None and isinstance(refund.outcome, Posted):
            yield _entry_violation("P4", refund, "a refund of what was never debited")
        # The refusal of a reused refund id stands beside the id's own entry, under a longer one.
        if refund.outcome == Rejected(Reason.KEY_REUSED):
            continue
        if refund.refund_id in decided:
            yield _entry_violation("P4", refund, f"{refund.refund_id} has a second outcome")
        decided.add(refund.refund_id)
    if debit is not None and given.posted_minor > debit.amount_minor:
        what = f"{given.posted_minor:,} refunded of a debit of {debit.amount_minor:,}"
        yield _entry_violation("P4", debit, what)
    if given.total_minor != given.posted_minor:
        what = f"the running total says {given.total_minor:,}, its entries {given.posted_minor:,}"
        found = entry or next(iter(given.refunds), None)
        yield _entry_violation("P4", found, what) if found else Violation("P4", what)


def _tells_what_went_back(row: Row, given: GivenBack, *, purges: bool) -> Iterator[Violation]:
    asked = row.transaction
    told_minor = asked.refunded_minor or 0
    # The row of a key that was purged and sent again was told of no refund of the first use.
    forgotten = purges and asked.refunded_minor is None
    if told_minor != given.posted_minor and not forgotten:
        what = f"it says that {told_minor:,} were refunded, its entries {given.posted_minor:,}"
        yield _row_violation("P4", row, what)
    match asked.status:
        case Status.REFUND_REQUESTED:
            agrees = told_minor <= asked.amount_minor
        case Status.PARTIALLY_REFUNDED:
            agrees = 0 < told_minor < asked.amount_minor
        case Status.REFUNDED:
            agrees = told_minor == asked.amount_minor
        case _:
            agrees = told_minor == 0
    if not agrees:
        what = f"it is {asked.status} with {told_minor:,} of {asked.amount_minor:,} refunded"
        yield _row_violation("P4", row, what)
    for refund in given.refunds:
        reused = refund.outcome == Rejected(Reason.KEY_REUSED)
        if asked.cancelled_by == refund.refund_id and not reused:
            yield _entry_violation("P4", refund, "the refund cancelled it, and has an entry too")


def _ended(row: Row, now_s: int) -> Iterator[Violation]:
    asked = row.transaction
    overdue_s = now_s - asked.expires_at_s
    if asked.status is Status.QUEUED and overdue_s > EXPIRY_GRACE_S:
        yield _row_violation("P5", row, f"still queued, {overdue_s} s after its time was over")
    waits = asked.status is Status.REFUND_REQUESTED
    if waits and asked.refund_request is None:
        yield _row_violation("P5", row, "it waits for a refund, and does not say which")
    if asked.refund_request is not None and not waits:
        yield _row_violation("P5", row, f"it is {asked.status} with a refund that nobody sends")


def _is_remembered(row: Row) -> Iterator[Violation]:
    """A row that no entry tells of is kept for good: its key must not come as a new one."""
    asked = row.transaction
    untold = asked.status in UNTOLD or asked.reason == Reason.DISCARDED
    if row.purge_at_s is not None and untold:
        what = f"it is {asked.status}, which no entry tells of, and is to be purged"
        yield _row_violation("P5", row, what)


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


def _in_the_hands_of_its_letter(row: Row) -> Iterator[Violation]:
    """A held row waits for its letter, which is open and of this very sending; no other row does.

    An open letter may well outlive its hold: it is closed when it is looked at next.
    """
    asked, letter = row.transaction, row.letter
    if asked.status is not Status.HELD:
        if asked.held_by is not None:
            what = f"it is {asked.status}, and names {asked.held_by} as the letter that holds it"
            yield _row_violation("P8", row, what)
    elif letter is None:
        named = asked.held_by or "none"
        yield _row_violation("P5", row, f"it is held by a letter that is not kept: {named}")
    elif not letter.status.is_open:
        what = f"it is held by {letter.letter_id}, which is {letter.status}"
        yield _row_violation("P5", row, what)
    elif (letter.agent_id, letter.idempotency_key, letter.attempt) != (*row.id, asked.attempt):
        what = f"it is held by {letter.letter_id}, which is of another debit or attempt"
        yield _row_violation("P8", row, what)


def _signed(entry: Entry) -> int:
    """What a posted entry adds to its wallet, in minor units."""
    match entry.kind:
        case "credit" | "refund":
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


def _rows(stack: Stack) -> Iterator[Row | TransactionId]:
    """Every row; of one that nobody can read, agent and key."""
    pages = stack.dynamodb.get_paginator("scan").paginate(
        TableName=stack.output("OfflineTxTable"), ConsistentRead=True
    )
    for page in pages:
        for item in page["Items"]:
            agent_id, key = item["agentId"]["S"], item["idempotencyKey"]["S"]
            yield _if_readable(_row, item) or (AgentId(agent_id), IdempotencyKey(key))


def _row(item: Mapping[str, Any]) -> Row:
    purge_at = item.get("purgeAt", {}).get("N")
    return Row(
        items.read_offline_tx(item),
        item.get("openShard", {}).get("S"),
        None if purge_at is None else int(purge_at),
    )


def _with_letter(stack: Stack, row: Row | None) -> Row | None:
    """A held row with its letter as of now, so later than the row."""
    if row is None or row.transaction.status is not Status.HELD or not row.transaction.held_by:
        return row
    answer = stack.dynamodb.get_item(
        TableName=stack.output("DeadLettersTable"),
        Key=items.letter_key(row.transaction.held_by),
        ConsistentRead=True,
    )
    return replace(row, letter=_if_readable(items.read_letter, answer.get("Item")))


def _if_readable[Read](
    read: Callable[[Mapping[str, Any]], Read], item: Mapping[str, Any] | None
) -> Read | None:
    """What an item says; None where there is none, or somebody has edited it."""
    try:
        return None if item is None else read(item)
    except (KeyError, ValueError):
        return None


def _ledger_phones(stack: Stack) -> set[Phone]:
    pages = stack.dynamodb.get_paginator("scan").paginate(
        TableName=stack.output("WalletLedgerTable"), ProjectionExpression="phone"
    )
    return {Phone(item["phone"]["S"]) for page in pages for item in page["Items"]}


def _read_books(stack: Stack, phone: Phone) -> Books:
    entries: list[Entry] = []
    totals: dict[TransactionId, int] = {}
    strange: list[EntryId] = []
    wallet: Wallet | None = None
    unreadable: str | None = None
    try:
        wallet = find(stack, phone)  # before the entries: see above
    except UnreadableWallet as error:
        unreadable = error.attribute
    for item in wallet_items(stack, phone):
        try:
            original = _original_of_total(item["txId"]["S"])
            if original is None:
                entries.append(items.read_entry(item))
            else:
                totals[original] = items.read_refund_total(item)
        except (KeyError, ValueError):
            strange.append(EntryId(item["txId"]["S"]))
    return Books(phone, wallet, entries, strange, totals, unreadable)


def _original_of_total(tx_id: str) -> TransactionId | None:
    """The debit that a sort key is the running total of, None for any other sort key."""
    parts = tx_id.split("#")
    if len(parts) != 3:
        return None
    original = AgentId(parts[1]), IdempotencyKey(parts[2])
    return original if items.refund_total_id(*original) == tx_id else None


def _read_together(
    stack: Stack, phone: Phone, transaction: TransactionId
) -> tuple[Row | None, Entry | None, GivenBack]:
    """Row, entry, total and refunds as of one moment."""
    found = _read_at_once(stack, phone, transaction)
    refunds = _refunds(stack, phone, transaction)
    for _ in range(READS_MAX):
        again = _read_at_once(stack, phone, transaction)
        if found == again:  # every refund that is posted moves the total
            break
        found, refunds = again, _refunds(stack, phone, transaction)
    row, entry, total_minor = found
    if row is not None and row.transaction.phone != phone and entry is None:
        row = None  # of another wallet, where somebody wanted it back from this one
    return row, entry, GivenBack(refunds, total_minor)


def _read_at_once(
    stack: Stack, phone: Phone, transaction: TransactionId
) -> tuple[Row | None, Entry | None, int]:
    """Row with its letter, entry and total; which letter it is only the row tells."""
    held_by: str | None = None
    for _ in range(READS_MAX - 1):
        found = _read_with_letter(stack, phone, transaction, held_by)
        named = found[0].transaction.held_by if found[0] else None
        if named is None or named == held_by:
            return found
        held_by = named
    return _read_with_letter(stack, phone, transaction, held_by)


def _read_with_letter(
    stack: Stack, phone: Phone, transaction: TransactionId, held_by: str | None
) -> tuple[Row | None, Entry | None, int]:
    ledger = stack.output("WalletLedgerTable")
    keys = [
        (stack.output("OfflineTxTable"), items.offline_tx_key(*transaction)),
        (ledger, items.ledger_key(phone, items.debit_entry_id(*transaction))),
        (ledger, items.ledger_key(phone, items.refund_total_id(*transaction))),
    ]
    if held_by is not None:
        keys.append((stack.output("DeadLettersTable"), items.letter_key(held_by)))
    request: Any = [{"Get": {"TableName": table, "Key": key}} for table, key in keys]
    answer = _get_together(stack, request)
    row, entry, total, *letters = (each.get("Item") for each in answer["Responses"])
    read_row = _if_readable(_row, row)
    if read_row is not None and read_row.transaction.held_by == held_by and letters:
        read_row = replace(read_row, letter=_if_readable(items.read_letter, letters[0]))
    return (
        read_row,
        _if_readable(items.read_entry, entry),
        _if_readable(items.read_refund_total, total) or 0,
    )


def _get_together(stack: Stack, gets: Any) -> Any:
    for _ in range(READS_MAX - 1):
        try:
            return stack.dynamodb.transact_get_items(TransactItems=gets)
        except stack.dynamodb.exceptions.TransactionCanceledException:  # it is being written
            time.sleep(READ_AGAIN_SECONDS)
    return stack.dynamodb.transact_get_items(TransactItems=gets)


def _refunds(stack: Stack, phone: Phone, transaction: TransactionId) -> list[Entry]:
    pages = stack.dynamodb.get_paginator("query").paginate(
        TableName=stack.output("WalletLedgerTable"),
        ConsistentRead=True,
        KeyConditionExpression="phone = :phone AND begins_with(txId, :refunds)",
        ExpressionAttributeValues={
            ":phone": {"S": phone},
            ":refunds": {"S": items.refund_id_entry(*transaction, "")},
        },
    )
    found = (_if_readable(items.read_entry, item) for page in pages for item in page["Items"])
    return [entry for entry in found if entry is not None]
