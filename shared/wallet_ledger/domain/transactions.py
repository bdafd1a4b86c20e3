"""An offline transaction: what an agent asked for, and the states it can be in (docs/ledger.md)."""

from dataclasses import dataclass
from enum import StrEnum

from wallet_ledger.domain.ids import (
    AgentId,
    Currency,
    Fingerprint,
    IdempotencyKey,
    Phone,
    digest,
)

AMOUNT_MINOR_MAX = 10**12
"""Largest amount of one movement, in minor units; the smallest is 1."""

OPEN_SHARDS = 16
"""Partitions of the index of open rows: one partition key takes 1,000 writes a second."""

SWEEP_AFTER_MS = (120_000, 600_000, 3_600_000, 21_600_000, 86_400_000)
"""How long the 1st, 2nd, … sending may take before the sweep sends again; then daily."""


class Status(StrEnum):
    """The stored status. `held` is internal: an agent sees it as `queued`."""

    QUEUED = "queued"
    HELD = "held"
    SYNCED = "synced"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REFUND_REQUESTED = "refund_requested"
    PARTIALLY_REFUNDED = "partially_refunded"
    REFUNDED = "refunded"

    @property
    def public(self) -> "Status":
        """What an agent is told."""
        return Status.QUEUED if self is Status.HELD else self


class Reason(StrEnum):
    """Why a movement was refused. A refusal is final for its id."""

    WALLET_NOT_FOUND = "WALLET_NOT_FOUND"
    CURRENCY_MISMATCH = "CURRENCY_MISMATCH"
    WALLET_FROZEN = "WALLET_FROZEN"
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"
    BALANCE_LIMIT = "BALANCE_LIMIT"
    KEY_REUSED = "KEY_REUSED"
    DISCARDED = "DISCARDED"
    ORIGINAL_NOT_FOUND = "ORIGINAL_NOT_FOUND"
    NOTHING_TO_REFUND = "NOTHING_TO_REFUND"
    EXCEEDS_ORIGINAL = "EXCEEDS_ORIGINAL"
    MISMATCH = "MISMATCH"


@dataclass(frozen=True, slots=True)
class Request:
    """One parsed request for a debit: the content that its fingerprint covers, and a claim.

    `captured_at` is the device's clock, RFC 3339: kept for people to read, never trusted, and
    not part of the fingerprint (a resend after a clock change is the same request).
    """

    agent_id: AgentId
    idempotency_key: IdempotencyKey
    phone: Phone
    amount_minor: int
    currency: Currency
    captured_at: str | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """SHA-256 hex over a version and the five members that make it the same request."""
        return debit_fingerprint(
            self.agent_id, self.idempotency_key, self.phone, self.amount_minor, self.currency
        )


@dataclass(frozen=True, slots=True)
class PendingRefund:
    """A refund that the agent has asked for and not been answered yet; None: all that remains."""

    refund_id: str
    amount_minor: int | None
    note: str


@dataclass(frozen=True, slots=True)
class OfflineTransaction:
    """A row of OfflineTx. Times end in their unit: `_ms` and `_s` since the epoch."""

    agent_id: AgentId
    idempotency_key: IdempotencyKey
    phone: Phone
    amount_minor: int
    currency: Currency
    fingerprint: Fingerprint
    created_at_ms: int
    updated_at_ms: int
    expires_at_s: int
    status: Status
    attempt: int
    captured_at: str | None = None
    reason: str | None = None
    queued_at_ms: int | None = None
    next_sweep_at_ms: int | None = None
    refunded_minor: int | None = None
    refund_request: PendingRefund | None = None
    cancelled_by: str | None = None
    held_by: str | None = None


def debit_fingerprint(
    agent_id: AgentId,
    idempotency_key: IdempotencyKey,
    phone: Phone,
    amount_minor: int,
    currency: Currency,
) -> Fingerprint:
    """What makes two requests of one key the same request."""
    return Fingerprint(digest("debit:v1", agent_id, idempotency_key, phone, amount_minor, currency))


def accept(request: Request, now_ms: int, open_days: int) -> OfflineTransaction:
    """The row that a new request becomes: queued, first attempt, swept if it stays open."""
    expires_at_s = now_ms // 1000 + open_days * 86_400
    return OfflineTransaction(
        agent_id=request.agent_id,
        idempotency_key=request.idempotency_key,
        phone=request.phone,
        amount_minor=request.amount_minor,
        currency=request.currency,
        fingerprint=request.fingerprint,
        captured_at=request.captured_at,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        expires_at_s=expires_at_s,
        status=Status.QUEUED,
        attempt=1,
        queued_at_ms=now_ms,
        next_sweep_at_ms=next_sweep_ms(1, now_ms, expires_at_s),
    )


def next_sweep_ms(attempt: int, now_ms: int, expires_at_s: int | None) -> int:
    """When the sweep looks at a row again after its `attempt`-th sending, never after expiry."""
    at_ms = now_ms + SWEEP_AFTER_MS[min(attempt, len(SWEEP_AFTER_MS)) - 1]
    return at_ms if expires_at_s is None else min(at_ms, expires_at_s * 1000)


def open_shard(agent_id: AgentId, idempotency_key: IdempotencyKey) -> int:
    """Which of the `OPEN_SHARDS` partitions of the open index a row belongs to."""
    return int(digest("shard", agent_id, idempotency_key)[:8], 16) % OPEN_SHARDS


def differing_fields(row: OfflineTransaction, request: Request) -> tuple[str, ...]:
    """Names of the members in which a reused key's request differs from what was accepted."""
    pairs = {
        "phone": (row.phone, request.phone),
        "amount": (row.amount_minor, request.amount_minor),
        "currency": (row.currency, request.currency),
    }
    return tuple(name for name, (was, now) in pairs.items() if was != now)
