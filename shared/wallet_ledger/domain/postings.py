"""One write to the books: what a group of movements asks for, and how the books can answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from wallet_ledger.domain.ids import Currency, EntryId, Fingerprint, Phone
from wallet_ledger.domain.wallets import (
    Debit,
    Movement,
    MovementId,
    Outcome,
    Wallet,
    WalletStatus,
)

type EntryKind = Literal["debit", "credit", "status", "refund"]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as the ledger has it, written once and never changed.

    `actor` and `reference` are the two halves of its business id: agent and idempotency key of
    a debit or refund, source and id of a credit or status change. `contra` is the account on the
    other side of the money; `wallet_status` is what a status change asked for; a refund has a
    `refund_id` of its own, and where it asked for too much, what remained.
    """

    phone: Phone
    entry_id: EntryId
    kind: EntryKind
    actor: str
    reference: str
    fingerprint: Fingerprint
    outcome: Outcome
    currency: Currency
    amount_minor: int
    contra: str | None
    wallet_status: WalletStatus | None
    created_at_ms: int
    refund_id: str | None = None
    remaining_minor: int | None = None


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A decided movement: its entry is written, and for a debit the row's status with it."""

    movement: Movement
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StatusOnly:
    """A debit whose id the ledger has decided before: only its row has to say so."""

    debit: Debit
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Posting:
    """Everything that one group of one wallet writes, all or nothing.

    Conditions that the write itself must hold: each new entry's id is free; each debit's row is
    queued with the debit's fingerprint; the balance row is still as `seen` (None: not there),
    with at least `needed_minor`. `after` equals `seen` where nothing was posted.
    """

    phone: Phone
    seen: Wallet | None
    after: Wallet | None
    needed_minor: int
    new: tuple[NewEntry, ...]
    status_only: tuple[StatusOnly, ...]
    at_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Everything is written."""


@dataclass(frozen=True, slots=True)
class Contended:
    """Nothing is known to be written, for a passing cause; `codes` for the log. Try again."""

    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Nothing is written: a condition did not hold.

    `recorded`: movements whose id has an entry. `moved`: debits whose row is no longer queued,
    or is another request's. `balance_moved`: the balance row is not as it was seen.
    """

    recorded: Mapping[MovementId, Entry]
    moved: frozenset[MovementId]
    balance_moved: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """Nothing is written: something is no longer as it was seen. Look again, decide again."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing is written, and trying again the same way will not help; `codes` for the log."""

    codes: tuple[str, ...]


type PostingResult = Committed | Contended | Conflicted | Refused
