"""The ports in memory: each keeps the promises that `tests/contract/` asks of the real ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from threading import RLock
from typing import Any

from wallet_ledger.aws import items
from wallet_ledger.aws.letters import RECORD_PART_BYTES
from wallet_ledger.domain.ids import AgentId, EntryId, IdempotencyKey, Phone
from wallet_ledger.domain.letters import Budget, Letter, letter_shard
from wallet_ledger.domain.postings import (
    Committed,
    Conflicted,
    Entry,
    Moved,
    NewEntry,
    Posting,
    PostingResult,
    Refused,
)
from wallet_ledger.domain.refunds import (
    NO_CURRENCY,
    Answered,
    Cancel,
    Post,
    Refund,
    Reject,
    Seen,
    original_of,
)
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status, open_shard
from wallet_ledger.domain.wallets import Debit, Movement, Outcome, Rejected, Wallet, movement_id
from wallet_ledger.ports import (
    Clock,
    LetterPage,
    Letters,
    OpenRow,
    OutgoingEvent,
    OutgoingMessage,
    RowMove,
)

type RowKey = tuple[AgentId, IdempotencyKey]

START_MS = 1_760_000_000_000
"""Where a held clock starts, in October 2025."""

DEDUP_WINDOW_MS = 300_000


@dataclass(slots=True)
class Store:
    """What OfflineTx, WalletLedger and DeadLetters hold, behind one lock: a transaction spans them.

    A letter's record is purged with it, at `letter_purge_at_s`. `spoilt`: ids of letters that
    cannot be read.
    """

    rows: dict[RowKey, OfflineTransaction] = field(default_factory=dict)
    purge_at_s: dict[RowKey, int] = field(default_factory=dict)
    wallets: dict[Phone, Wallet] = field(default_factory=dict)
    entries: dict[tuple[Phone, EntryId], Entry] = field(default_factory=dict)
    refunded: dict[tuple[Phone, EntryId], int] = field(default_factory=dict)
    letters: dict[str, Letter] = field(default_factory=dict)
    records: dict[str, str] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    letter_purge_at_s: dict[str, int] = field(default_factory=dict)
    spoilt: set[str] = field(default_factory=set)
    lock: RLock = field(default_factory=RLock, repr=False)

    def refund_totals(self, phone: Phone) -> dict[EntryId, int]:
        """What was given back of each debit of a wallet, minor units by the total's id."""
        return {name: minor for (owner, name), minor in self.refunded.items() if owner == phone}

    def close(self, row: OfflineTransaction, retention_days: int) -> None:
        """Store a row that has come to its end: in no index, and kept as long as was chosen."""
        key = (row.agent_id, row.idempotency_key)
        self.rows[key] = replace(row, next_sweep_at_ms=None)
        if retention_days:
            self.purge_at_s[key] = row.updated_at_ms // 1000 + retention_days * 86_400

    def holds(self, seen: OfflineTransaction, *names: str) -> bool:
        """Whether a row is there whose members of these names are still as they were seen."""
        held = self.rows.get((seen.agent_id, seen.idempotency_key))
        return held is not None and all(getattr(held, n) == getattr(seen, n) for n in names)

    def move(self, before: OfflineTransaction, after: OfflineTransaction) -> None:
        """Write what differs; the row loses the time at which it was to be purged."""
        key = (before.agent_id, before.idempotency_key)
        names = [each.name for each in fields(after)]
        changed = {n: getattr(after, n) for n in names if getattr(after, n) != getattr(before, n)}
        self.rows[key] = replace(self.rows[key], **changed)
        self.purge_at_s.pop(key, None)


ROW_CHECKED = ("status", "fingerprint", "refunded_minor", "refund_request")
ROW_MOVED = (*ROW_CHECKED, "attempt")
"""What of a row must still be as it was seen: where it is only held, and where it moves."""


class FakeAcceptedTransactions:
    """`ports.AcceptedTransactions` in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_if_new(self, row: OfflineTransaction) -> OfflineTransaction | None:
        """Store the row, or answer with the one that has the key already."""
        key = (row.agent_id, row.idempotency_key)
        with self._store.lock:
            existing = self._store.rows.get(key)
            if existing is None:
                self._store.rows[key] = row
        return existing

    def find(self, agent_id: AgentId, key: IdempotencyKey) -> OfflineTransaction | None:
        """The row as of now."""
        with self._store.lock:
            return self._store.rows.get((agent_id, key))


class FakeOpenTransactions:
    """`ports.OpenTransactions` in memory; its index never lags."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def open_rows(self, shard: int, limit: int) -> Sequence[OpenRow]:
        """The longest due first."""
        with self._store.lock:
            found = [
                OpenRow(
                    agent_id=row.agent_id,
                    idempotency_key=row.idempotency_key,
                    status=row.status,
                    attempt=row.attempt,
                    open_since_ms=row.updated_at_ms
                    if row.status is Status.REFUND_REQUESTED
                    else row.created_at_ms,
                    expires_at_s=row.expires_at_s,
                    next_sweep_at_ms=row.next_sweep_at_ms,
                )
                for row in self._store.rows.values()
                if row.next_sweep_at_ms is not None
                and open_shard(row.agent_id, row.idempotency_key) == shard
            ]
        return sorted(found, key=lambda row: row.next_sweep_at_ms)[:limit]

    def send_again(self, row: OpenRow, next_sweep_at_ms: int, now_ms: int) -> bool:
        """Only where its status and its attempt are still as they were seen."""
        with self._store.lock:
            held = self._store.rows.get((row.agent_id, row.idempotency_key))
            if held is None or (held.status, held.attempt) != (row.status, row.attempt):
                return False
            self._store.rows[held.agent_id, held.idempotency_key] = replace(
                held,
                attempt=held.attempt + 1,
                next_sweep_at_ms=next_sweep_at_ms,
                queued_at_ms=now_ms,
            )
        return True

    def expire(self, row: OpenRow, now_ms: int) -> bool:
        """Only where it is still queued and its time as it was seen, whatever else was."""
        with self._store.lock:
            held = self._store.rows.get((row.agent_id, row.idempotency_key))
            if held is None or held.status is not Status.QUEUED:
                return False
            if held.expires_at_s != row.expires_at_s:
                return False
            expired = replace(held, status=Status.EXPIRED, updated_at_ms=now_ms)
            self._store.close(expired, retention_days=0)
        return True


class FakeLedger:
    """`ports.Ledger` in memory: every condition is looked at, then all is written or nothing."""

    def __init__(self, store: Store, *, retention_days: int) -> None:
        self._store = store
        self._retention_days = retention_days

    def wallet(self, phone: Phone) -> Wallet | None:
        """The balance row as of now."""
        with self._store.lock:
            return self._store.wallets.get(phone)

    def post(self, posting: Posting) -> PostingResult:
        """One step: nobody sees half of it."""
        entries = {
            movement_id(new.movement): items.read_entry(items.entry_item(new, posting.at_ms))
            for new in posting.new
        }
        closing = [(n.movement, n.outcome) for n in posting.new if isinstance(n.movement, Debit)]
        closing += [(known.debit, known.outcome) for known in posting.status_only]
        rows = {movement_id(debit) for debit, _ in closing}
        if len(entries) != len(posting.new) or len(rows) != len(closing):
            return Refused(("ValidationException",))  # one item once in a transaction
        with self._store.lock:
            conflict = Conflicted(
                recorded={
                    identity: self._store.entries[entry.phone, entry.entry_id]
                    for identity, entry in entries.items()
                    if (entry.phone, entry.entry_id) in self._store.entries
                },
                moved=frozenset(movement_id(d) for d, _ in closing if not self._is_queued(d)),
                balance_moved=bool(posting.new) and not self._is_as_seen(posting),
            )
            if conflict.recorded or conflict.moved or conflict.balance_moved:
                return conflict
            for entry in entries.values():
                self._store.entries[entry.phone, entry.entry_id] = entry
            for debit, outcome in closing:
                self._close(debit, outcome, posting.at_ms)
            if posting.new and posting.after is not None and posting.after != posting.seen:
                self._move(posting, posting.after)
        return Committed()

    def _is_queued(self, debit: Debit) -> bool:
        row = self._store.rows.get((debit.agent_id, debit.idempotency_key))
        return (
            row is not None and row.status is Status.QUEUED and row.fingerprint == debit.fingerprint
        )

    def _is_as_seen(self, posting: Posting) -> bool:
        held = self._store.wallets.get(posting.phone)
        seen = posting.seen
        if held is None or seen is None:
            return held is seen
        moved = (held.version, held.status, held.currency) != (
            seen.version,
            seen.status,
            seen.currency,
        )
        return not moved and held.balance_minor >= posting.needed_minor

    def _close(self, debit: Debit, outcome: Outcome, at_ms: int) -> None:
        row = self._store.rows[debit.agent_id, debit.idempotency_key]
        if isinstance(outcome, Rejected):
            row = replace(row, status=Status.FAILED, reason=outcome.reason, updated_at_ms=at_ms)
        else:
            row = replace(row, status=Status.SYNCED, updated_at_ms=at_ms)
        self._store.close(row, self._retention_days)

    def _move(self, posting: Posting, after: Wallet) -> None:
        seen_minor = posting.seen.balance_minor if posting.seen else 0
        held = self._store.wallets.get(posting.phone)
        held_minor = held.balance_minor if held else 0
        balance_minor = held_minor + after.balance_minor - seen_minor
        self._store.wallets[posting.phone] = replace(after, balance_minor=balance_minor)


class FakeRefundBooks:
    """`ports.RefundBooks` in memory: all conditions are looked at, then all is written or none."""

    def __init__(self, store: Store, *, retention_days: int = 0) -> None:
        self._store = store
        self._retention_days = retention_days

    def see(self, asked: Refund) -> Seen:
        """Everything that counts, as of one moment."""
        original = (asked.agent_id, asked.idempotency_key)
        with self._store.lock:
            return Seen(
                row=self._store.rows.get(original),
                debit=self._store.entries.get((asked.phone, items.debit_entry_id(*original))),
                refund=self._store.entries.get((asked.phone, items.refund_entry_id(asked))),
                reused=self._store.entries.get((asked.phone, items.reused_refund_entry_id(asked))),
                refunded_minor=self._store.refunded.get(_total_of(asked), 0),
                wallet=self._store.wallets.get(asked.phone),
            )

    def write(
        self, asked: Refund, seen: Seen, decided: Answered | Cancel | Post | Reject, at_ms: int
    ) -> Committed | Moved:
        """One step: nobody sees half of it."""
        entry = None
        if isinstance(decided, Post | Reject):
            original = original_of(asked, seen)
            currency = asked.currency or (original.currency if original else NO_CURRENCY)
            entry = items.read_entry(items.refund_item(asked, decided, currency, at_ms))
        with self._store.lock:
            if not self._is_as_seen(asked, seen, decided, entry):
                return Moved()
            if entry is not None:
                self._store.entries[entry.phone, entry.entry_id] = entry
            if isinstance(decided, Post):
                total_minor = seen.refunded_minor + decided.amount_minor
                self._store.refunded[_total_of(asked)] = total_minor
                held = self._store.wallets[asked.phone]
                balance_minor = held.balance_minor + decided.amount_minor
                after = replace(decided.wallet_after, balance_minor=balance_minor)
                self._store.wallets[asked.phone] = after
            if seen.row is not None and decided.row_after is not None:
                self._store.move(seen.row, decided.row_after)
                self._keep(decided.row_after, at_ms)
        return Committed()

    def _is_as_seen(
        self,
        asked: Refund,
        seen: Seen,
        decided: Answered | Cancel | Post | Reject,
        entry: Entry | None,
    ) -> bool:
        names = ROW_CHECKED if decided.row_after is None else ROW_MOVED
        if seen.row is None:
            holds = (asked.agent_id, asked.idempotency_key) not in self._store.rows
        else:
            holds = self._store.holds(seen.row, *names)
        if entry is not None:
            refunded_minor = self._store.refunded.get(_total_of(asked), 0)
            holds &= (entry.phone, entry.entry_id) not in self._store.entries
            holds &= refunded_minor == seen.refunded_minor
        if isinstance(decided, Cancel):
            undecided = (asked.phone, items.refund_entry_id(asked))
            holds &= undecided not in self._store.entries
        if isinstance(decided, Post):
            room_minor = decided.original_minor - decided.amount_minor
            holds &= not seen.refunded_minor or seen.refunded_minor <= room_minor
            holds &= self._is_wallet_as_seen(asked.phone, seen.wallet)
        return holds

    def _is_wallet_as_seen(self, phone: Phone, seen: Wallet | None) -> bool:
        held = self._store.wallets.get(phone)
        if held is None or seen is None:
            return held is seen
        same = replace(held, balance_minor=0) == replace(seen, balance_minor=0)
        return same and held.balance_minor >= 0

    def _keep(self, row: OfflineTransaction, at_ms: int) -> None:
        """Only what the ledger remembers and nobody waits for may be purged."""
        if self._retention_days and row.status not in (Status.REFUND_REQUESTED, Status.CANCELLED):
            purge_at_s = at_ms // 1000 + self._retention_days * 86_400
            self._store.purge_at_s[row.agent_id, row.idempotency_key] = purge_at_s


def _total_of(asked: Refund) -> tuple[Phone, EntryId]:
    return asked.phone, items.refund_total_id(asked.agent_id, asked.idempotency_key)


class FakeRefundDesk:
    """`ports.RefundDesk` in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def debit(self, row: OfflineTransaction) -> Entry | None:
        """What the ledger has decided of a row's debit."""
        entry_id = items.debit_entry_id(row.agent_id, row.idempotency_key)
        with self._store.lock:
            return self._store.entries.get((row.phone, entry_id))

    def refund(self, row: OfflineTransaction, refund_id: str) -> Entry | None:
        """What a refund id of a row has decided."""
        entry_id = items.refund_id_entry(row.agent_id, row.idempotency_key, refund_id)
        with self._store.lock:
            return self._store.entries.get((row.phone, entry_id))

    def move(self, before: OfflineTransaction, after: OfflineTransaction, refund_id: str) -> bool:
        """One step: only where the row is as before and the refund id undecided."""
        with self._store.lock:
            if self.refund(before, refund_id) or not self._store.holds(before, *ROW_MOVED):
                return False
            self._store.move(before, after)
        return True


class FakeDeadLetters:
    """`ports.DeadLetters` in memory; its indexes never lag."""

    def __init__(self, store: Store, *, retention_days: int = 0) -> None:
        self._store = store
        self._retention_days = retention_days

    def file(self, letter: Letter, record: str, row: RowMove | None) -> bool:
        """One step: only where the letter is new and the row as before."""
        parts = -(-len(record.encode()) // RECORD_PART_BYTES)
        with self._store.lock:
            if letter.letter_id in self._store.letters or not self._is_as_seen(row):
                return False
            self._store.records[letter.letter_id] = record
            self._write(replace(letter, record_parts=parts), row)
        return True

    def find(self, letter_id: str) -> Letter | None:
        """The letter as of now."""
        if letter_id in self._store.spoilt:
            raise ValueError(letter_id)
        with self._store.lock:
            return self._store.letters.get(letter_id)

    def record(self, letter_id: str) -> str | None:
        """The text that came in."""
        with self._store.lock:
            return self._store.records.get(letter_id)

    def budget(self, subject_ref: str) -> Budget:
        """How often a subject has been redriven."""
        with self._store.lock:
            return self._store.budgets.get(subject_ref, Budget())

    def move(
        self, before: Letter, after: Letter, row: RowMove | None = None, spent: Budget | None = None
    ) -> bool:
        """One step: only where the letter's revision is as before, and the row is."""
        with self._store.lock:
            held = self._store.letters.get(before.letter_id)
            if held is None or held.revision != before.revision or not self._is_as_seen(row):
                return False
            names = [each.name for each in fields(after) if each.name != "history"]
            pairs = {n: (getattr(before, n), getattr(after, n)) for n in names}
            changed: dict[str, Any] = {n: now for n, (was, now) in pairs.items() if was != now}
            history = (*held.history, *after.history[len(before.history) :])
            if spent is not None:
                had = self.budget(before.subject_ref)
                self._store.budgets[before.subject_ref] = Budget(
                    had.automatic + spent.automatic, had.by_hand + spent.by_hand
                )
            self._write(replace(held, history=history, **changed), row)
        return True

    def look_later(self, letter: Letter) -> bool:
        """Only where it is open and its revision as it was seen."""
        with self._store.lock:
            held = self._store.letters.get(letter.letter_id)
            if held is None or held.revision != letter.revision or held.due_at_ms is None:
                return False
            self._store.letters[letter.letter_id] = replace(held, due_at_ms=letter.due_at_ms)
        return True

    def page(self, ask: LetterPage) -> Letters:
        """As long as `limit` says; a full page may be the last, and nobody knows yet."""
        if ask.arrived_from_ms > ask.arrived_until_ms:
            raise ValueError("the engine refuses such a range")
        with self._store.lock:
            places = sorted(
                (at_ms, letter.letter_id)
                for letter in self._store.letters.values()
                if letter_shard(letter.letter_id) == ask.shard
                and (at_ms := letter.due_at_ms if ask.open_only else letter.arrived_at_ms)
                is not None
            )
            if not ask.open_only:
                bounds = (ask.arrived_from_ms, ask.arrived_until_ms)
                if ask.after is not None and not bounds[0] <= ask.after[0] <= bounds[1]:
                    raise ValueError("the engine refuses to start there")
                places = [place for place in places if bounds[0] <= place[0] <= bounds[1]]
            rest = [place for place in places if ask.after is None or place > ask.after]
            page = rest[: ask.limit]
            spoilt = self._store.spoilt
            letters = [self._store.letters[each] for _, each in page if each not in spoilt]
        unreadable = tuple(each for _, each in page if each in spoilt)
        return Letters(letters, page[-1] if len(page) == ask.limit else None, unreadable)

    def _is_as_seen(self, row: RowMove | None) -> bool:
        return row is None or self._store.holds(row.before, *ROW_MOVED)

    def _write(self, letter: Letter, row: RowMove | None) -> None:
        kept = items.read_letter(items.letter_item(letter))
        self._store.letters[letter.letter_id] = kept
        if self._retention_days and not letter.status.is_open:
            purge_at_s = letter.updated_at_ms // 1000 + self._retention_days * 86_400
            self._store.letter_purge_at_s[letter.letter_id] = purge_at_s
        if row is not None:
            self._store.move(row.before, row.after)


class FakeSubjects:
    """`ports.Subjects` in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def row(self, debit: Debit) -> OfflineTransaction | None:
        """The debit's row, as of now."""
        with self._store.lock:
            return self._store.rows.get((debit.agent_id, debit.idempotency_key))

    def decided(self, movement: Movement) -> bool:
        """Whether an entry says what became of this very movement."""
        refused = items.new_entry_id(NewEntry(movement, Rejected(Reason.KEY_REUSED)))
        with self._store.lock:
            found = (
                self._store.entries.get((movement.phone, entry_id))
                for entry_id in (items.entry_id(movement), refused)
            )
            return any(e is not None and e.fingerprint == movement.fingerprint for e in found)

    def see(self, asked: Refund) -> Seen:
        """Everything that counts for a refund."""
        return FakeRefundBooks(self._store).see(asked)


class FakeQueue:
    """`ports.Queue` and `ports.Backlog` in memory.

    `messages` is what waits; a consumer takes from its front. `refuses` may be set to what a call
    does not take, besides the characters that no queue takes.
    """

    def __init__(self, clock: Clock) -> None:
        self.messages: list[OutgoingMessage] = []
        self.refuses: Callable[[OutgoingMessage], bool] = lambda _: False
        self._clock = clock
        self._sent_ms: dict[tuple[str, str | None], int] = {}
        self._lock = RLock()

    def send(self, messages: Sequence[OutgoingMessage]) -> frozenset[int]:
        """In order; a repeated dedup id of a group is taken, and dropped."""
        refused = set()
        with self._lock:
            for index, message in enumerate(messages):
                if self.refuses(message) or not all(map(_may_be_sent, message.body)):
                    refused.add(index)
                elif not self._is_repetition(message):
                    self.messages.append(message)
        return frozenset(refused)

    def depth(self) -> int:
        """How many wait."""
        with self._lock:
            return len(self.messages)

    def _is_repetition(self, message: OutgoingMessage) -> bool:
        if message.group is None:
            return False
        identity, now_ms = (message.group, message.dedup_id), self._clock.now_ms()
        sent_ms = self._sent_ms.get(identity)
        if sent_ms is not None and now_ms - sent_ms < DEDUP_WINDOW_MS:
            return True
        self._sent_ms[identity] = now_ms
        return False


def _may_be_sent(character: str) -> bool:
    return character in "\t\n\r" or (character >= " " and not "\ud800" <= character <= "\udfff")


class FakeEventBus:
    """`ports.EventBus` in memory. `refuses` may be set to what a call does not take."""

    def __init__(self) -> None:
        self.events: list[OutgoingEvent] = []
        self.refuses: Callable[[OutgoingEvent], bool] = lambda _: False
        self._lock = RLock()

    def put(self, events: Sequence[OutgoingEvent]) -> frozenset[int]:
        """In order."""
        refused = frozenset(i for i, event in enumerate(events) if self.refuses(event))
        with self._lock:
            self.events += [event for i, event in enumerate(events) if i not in refused]
        return refused


class FakeClock:
    """`ports.Clock` that stands still until somebody pauses or sets it."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.pauses: list[float] = []
        self._now_ms = float(now_ms)
        self._lock = RLock()

    def now_ms(self) -> int:
        """Where it stands."""
        return int(self._now_ms)

    def pause(self, seconds: float) -> None:
        """Stand `seconds` later, at once."""
        with self._lock:
            self.pauses.append(seconds)
            self._now_ms += seconds * 1000
