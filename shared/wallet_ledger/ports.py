"""What the use cases need from the world: small ports, named by role.

Every port has a fake that keeps the same promises (`tests/contract/` runs one suite on both).
All of them raise `Unavailable` for a passing cause, and nothing else that a caller should catch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wallet_ledger.domain.ids import AgentId, IdempotencyKey, Phone
from wallet_ledger.domain.letters import Budget, Letter
from wallet_ledger.domain.postings import (
    Committed,
    Contended,
    Entry,
    Moved,
    Posting,
    PostingResult,
    Refused,
)
from wallet_ledger.domain.refunds import Answered, Cancel, Post, Refund, Reject, Seen
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Debit, Movement, Wallet


class AcceptedTransactions(Protocol):
    """The identity of every key: what ingest writes and reads."""

    def put_if_new(self, row: OfflineTransaction) -> OfflineTransaction | None:
        """Store `row` unless its key exists; then store nothing and return the existing row."""

    def find(self, agent_id: AgentId, key: IdempotencyKey) -> OfflineTransaction | None:
        """The row as of now (a consistent read), None for an unknown key."""


@dataclass(frozen=True, slots=True)
class OpenRow:
    """What the index of open rows tells of one; it may lag behind the row.

    `open_since_ms`: when it was accepted, or, settled long ago perhaps, when its refund was asked
    for.
    """

    agent_id: AgentId
    idempotency_key: IdempotencyKey
    status: Status
    attempt: int
    open_since_ms: int
    expires_at_s: int
    next_sweep_at_ms: int


class OpenTransactions(Protocol):
    """Rows that the system still owes an end: what the sweep reads and moves."""

    def open_rows(self, shard: int, limit: int) -> Sequence[OpenRow]:
        """At most `limit` open rows of a shard, the longest due first."""

    def send_again(self, row: OpenRow, next_sweep_at_ms: int, now_ms: int) -> bool:
        """Raise the row's attempt if it is still queued at `row.attempt`; whether it was."""

    def expire(self, row: OpenRow, now_ms: int) -> bool:
        """Move the row to expired if it is queued still, and due when it was seen to be."""


@dataclass(frozen=True, slots=True)
class RowMove:
    """A row of OfflineTx that a letter moves with itself, both or neither."""

    before: OfflineTransaction
    after: OfflineTransaction


class DeadLetters(Protocol):
    """What failed, kept until long after it is dealt with, and how often each was tried again."""

    def file(self, letter: Letter, record: str, row: RowMove | None) -> bool:
        """Keep a new letter with its record, and move its row; whether nothing stood in the way.

        False where a letter of this id is kept already, or the row is no longer as before.
        """

    def find(self, letter_id: str) -> Letter | None:
        """The letter as of now (a consistent read)."""

    def record(self, letter_id: str) -> str | None:
        """The text that came in, verbatim: JSON of the queue's record."""

    def budget(self, subject_ref: str) -> Budget:
        """How often a subject has been redriven (a consistent read)."""

    def move(
        self, before: Letter, after: Letter, row: RowMove | None = None, spent: Budget | None = None
    ) -> bool:
        """Write what an action changed, its row and its budget (`spent` is added); all or nothing.

        False where the letter or the row is no longer as before.
        """

    def look_later(self, letter: Letter) -> bool:
        """Only set when an open letter is looked at next; False where it is no longer as it was."""

    def page(self, ask: "LetterPage") -> "Letters":
        """Letters of one shard in the order of `ask`'s index; it may lag."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """A part of a list. Open letters come by the time of their next look, all by their arrival.

    `after` is where the part before ended, as `Letters.ended` said: the time that orders the index,
    in ms, and the letter's id. The other times, in ms, inclusive, bound the arrival, and only where
    `open_only` is false; `after` must be within them.
    """

    shard: int
    open_only: bool
    limit: int
    after: tuple[int, str] | None = None
    arrived_from_ms: int = 0
    arrived_until_ms: int = 10**14


@dataclass(frozen=True, slots=True)
class Letters:
    """Letters, and where to go on, None at the end; `unreadable`: ids of what is none to us."""

    letters: Sequence[Letter]
    ended: tuple[int, str] | None
    unreadable: tuple[str, ...] = ()


class Subjects(Protocol):
    """What the tables say of a letter's subject now."""

    def row(self, debit: Debit) -> OfflineTransaction | None:
        """The debit's row, as of now."""

    def decided(self, movement: Movement) -> bool:
        """Whether the ledger has an outcome of this very movement, as of now."""

    def see(self, asked: Refund) -> Seen:
        """Everything that counts for a refund, as of one moment."""


class Ledger(Protocol):
    """The books of one wallet."""

    def wallet(self, phone: Phone) -> Wallet | None:
        """The balance row as of now (a consistent read), None where no wallet is open."""

    def post(self, posting: Posting) -> PostingResult:
        """Write all of `posting` or nothing, under its conditions.

        `Contended` also stands for an answer that was lost: the write may have happened, and
        a second try then meets its own entries.
        """


class RefundBooks(Protocol):
    """All that a refund is decided on, and the one write that follows from it."""

    def see(self, asked: Refund) -> Seen:
        """Everything that counts, as of one moment."""

    def write(
        self, asked: Refund, seen: Seen, decided: Answered | Cancel | Post | Reject, at_ms: int
    ) -> Committed | Contended | Moved | Refused:
        """Write what follows from the decision if all is still as seen, or write nothing.

        `Contended` also stands for an answer that was lost, as for `Ledger.post`.
        """


class RefundDesk(Protocol):
    """Where an agent's app asks for a refund: what is decided, and the row that is to wait."""

    def debit(self, row: OfflineTransaction) -> Entry | None:
        """What the ledger has decided of a row's debit, as of now; None before it is settled."""

    def refund(self, row: OfflineTransaction, refund_id: str) -> Entry | None:
        """What a refund id of a row has decided, as of now; None for one that nobody used."""

    def move(self, before: OfflineTransaction, after: OfflineTransaction, refund_id: str) -> bool:
        """Move the row if it is still as `before` and the refund id undecided; whether it was."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message for a queue. `group` and `dedup_id` are None for a standard queue."""

    body: str
    group: str | None = None
    dedup_id: str | None = None


class Queue(Protocol):
    """A queue to send to."""

    def send(self, messages: Sequence[OutgoingMessage]) -> frozenset[int]:
        """Send in order, any number; the indexes of those that were not taken.

        What comes after one that was not taken may be held back, and is then named too.
        """


class Backlog(Protocol):
    """How much waits in a queue."""

    def depth(self) -> int:
        """Messages visible, in flight and delayed, approximately."""


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An event for the bus: `detail` is a JSON object as text."""

    detail_type: str
    detail: str


class EventBus(Protocol):
    """The bus that the world listens on."""

    def put(self, events: Sequence[OutgoingEvent]) -> frozenset[int]:
        """Put in order, any number; the indexes of those that were not taken, as a `Queue` does."""


class Clock(Protocol):
    """Time, so that tests can hold it."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""

    def pause(self, seconds: float) -> None:
        """Let `seconds` pass."""
