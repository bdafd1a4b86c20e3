"""The ports in memory: each keeps the promises that `tests/contract/` asks of the real ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import RLock

from wallet_ledger.aws import items
from wallet_ledger.domain.ids import AgentId, EntryId, IdempotencyKey, Phone
from wallet_ledger.domain.postings import (
    Committed,
    Conflicted,
    Entry,
    Posting,
    PostingResult,
    Refused,
)
from wallet_ledger.domain.transactions import OfflineTransaction, Status, open_shard
from wallet_ledger.domain.wallets import Debit, Outcome, Rejected, Wallet, movement_id
from wallet_ledger.ports import Clock, OpenRow, OutgoingEvent, OutgoingMessage

type RowKey = tuple[AgentId, IdempotencyKey]

START_MS = 1_760_000_000_000
"""Where a held clock starts, in October 2025."""

DEDUP_WINDOW_MS = 300_000


@dataclass(slots=True)
class Store:
    """What OfflineTx and WalletLedger hold, behind one lock: a transaction spans both."""

    rows: dict[RowKey, OfflineTransaction] = field(default_factory=dict)
    purge_at_s: dict[RowKey, int] = field(default_factory=dict)
    wallets: dict[Phone, Wallet] = field(default_factory=dict)
    entries: dict[tuple[Phone, EntryId], Entry] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock, repr=False)

    def close(self, row: OfflineTransaction, retention_days: int) -> None:
        """Store a row that has come to its end: in no index, and kept as long as was chosen."""
        key = (row.agent_id, row.idempotency_key)
        self.rows[key] = replace(row, next_sweep_at_ms=None)
        if retention_days:
            self.purge_at_s[key] = row.updated_at_ms // 1000 + retention_days * 86_400


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
                    created_at_ms=row.created_at_ms,
                    expires_at_s=row.expires_at_s,
                    next_sweep_at_ms=row.next_sweep_at_ms,
                )
                for row in self._store.rows.values()
                if row.next_sweep_at_ms is not None
                and open_shard(row.agent_id, row.idempotency_key) == shard
            ]
        return sorted(found, key=lambda row: row.next_sweep_at_ms)[:limit]

    def send_again(self, row: OpenRow, next_sweep_at_ms: int, now_ms: int) -> bool:
        """Only where it is still queued at the attempt that was seen."""
        with self._store.lock:
            held = self._queued(row)
            if held is None or held.attempt != row.attempt:
                return False
            self._store.rows[held.agent_id, held.idempotency_key] = replace(
                held,
                attempt=held.attempt + 1,
                next_sweep_at_ms=next_sweep_at_ms,
                queued_at_ms=now_ms,
            )
        return True

    def expire(self, row: OpenRow, now_ms: int) -> bool:
        """Only where it is still queued."""
        with self._store.lock:
            held = self._queued(row)
            if held is None:
                return False
            expired = replace(held, status=Status.EXPIRED, updated_at_ms=now_ms)
            self._store.close(expired, retention_days=0)
        return True

    def _queued(self, row: OpenRow) -> OfflineTransaction | None:
        held = self._store.rows.get((row.agent_id, row.idempotency_key))
        return held if held is not None and held.status is Status.QUEUED else None


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
