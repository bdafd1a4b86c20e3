"""Movements, rows and postings with everything filled in that a test does not care about."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.fakes.memory import START_MS
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.letters import held
from wallet_ledger.domain.postings import NewEntry, Posting, StatusOnly
from wallet_ledger.domain.refunds import Refund, requested
from wallet_ledger.domain.transactions import (
    OfflineTransaction,
    PendingRefund,
    Request,
    Status,
    accept,
)
from wallet_ledger.domain.wallets import (
    Credit,
    Debit,
    Movement,
    StatusChange,
    Wallet,
    WalletStatus,
    decide,
)
from wallet_ledger.ports import OpenRow

PHONE = Phone("254712345678")
AGENT = AgentId("AG-001")
KES = Currency("KES")
USD = Currency("USD")
OPEN_DAYS = 7


def request(
    key: str = "K-1",
    amount_minor: int = 100,
    *,
    agent_id: str = AGENT,
    phone: str = PHONE,
    currency: str = KES,
    captured_at: str | None = None,
) -> Request:
    """What an agent asks for."""
    return Request(
        AgentId(agent_id),
        IdempotencyKey(key),
        Phone(phone),
        amount_minor,
        Currency(currency),
        captured_at,
    )


def debit(key: str = "K-1", amount_minor: int = 100, *, attempt: int = 1, **others: Any) -> Debit:
    """An accepted request on its way; `others` are the members of `request`."""
    asked = request(key, amount_minor, **others)
    return Debit(
        agent_id=asked.agent_id,
        idempotency_key=asked.idempotency_key,
        phone=asked.phone,
        amount_minor=asked.amount_minor,
        currency=asked.currency,
        attempt=attempt,
        created_at_ms=START_MS,
        captured_at=asked.captured_at,
    )


def credit(
    credit_id: str = "C-1",
    amount_minor: int = 1000,
    *,
    source: str = "till",
    phone: str = PHONE,
    currency: str = KES,
) -> Credit:
    """Money in."""
    return Credit(source, credit_id, Phone(phone), amount_minor, Currency(currency))


def status_change(
    request_id: str = "S-1",
    status: WalletStatus = WalletStatus.FROZEN,
    *,
    phone: str = PHONE,
    currency: str = KES,
) -> StatusChange:
    """Freeze, or unfreeze."""
    return StatusChange("desk", request_id, Phone(phone), status, Currency(currency))


def refund(
    refund_id: str = "R-1",
    amount_minor: int | None = None,
    *,
    key: str = "K-1",
    agent_id: str = AGENT,
    phone: str = PHONE,
    currency: str | None = None,
    requested_by: str = "desk",
) -> Refund:
    """What somebody wants back; all that remains where no amount is given."""
    return Refund(
        agent_id=AgentId(agent_id),
        idempotency_key=IdempotencyKey(key),
        phone=Phone(phone),
        refund_id=refund_id,
        amount_minor=amount_minor,
        currency=Currency(currency) if currency else None,
        note="wrong phone",
        requested_by=requested_by,
    )


def waiting(
    row: OfflineTransaction, refund_id: str = "R-1", amount_minor: int | None = None
) -> OfflineTransaction:
    """The row, whose agent has asked for a refund."""
    return requested(row, PendingRefund(refund_id, amount_minor, "wrong phone"), START_MS)


def wallet(
    balance_minor: int = 1000,
    *,
    version: int = 1,
    currency: str = KES,
    status: WalletStatus = WalletStatus.ACTIVE,
) -> Wallet:
    """A balance row as read."""
    return Wallet(PHONE, balance_minor, Currency(currency), version, status)


def open_row(row: OfflineTransaction) -> OpenRow:
    """What the sweep sees of a row."""
    assert row.next_sweep_at_ms is not None
    return OpenRow(
        row.agent_id,
        row.idempotency_key,
        row.status,
        row.attempt,
        row.created_at_ms,
        row.expires_at_s,
        row.next_sweep_at_ms,
    )


def row_of(wanted: Debit | Request, status: Status = Status.QUEUED) -> OfflineTransaction:
    """The row of a debit as ingest stores it, in whatever status; only an open one is in the index.

    A held one is held by a letter named `L-1`.
    """
    asked = Request(
        wanted.agent_id,
        wanted.idempotency_key,
        wanted.phone,
        wanted.amount_minor,
        wanted.currency,
        wanted.captured_at,
    )
    row = accept(asked, START_MS, OPEN_DAYS)
    if status is Status.QUEUED:
        return row
    if status is Status.HELD:
        return held(row, "L-1", START_MS)
    return replace(row, status=status, next_sweep_at_ms=None)


def posting(
    seen: Wallet | None,
    *movements: Movement,
    known: Sequence[StatusOnly] = (),
    at_ms: int = START_MS,
) -> Posting:
    """What settling asks the ledger to write for movements of one wallet that was seen so."""
    decision = decide(seen, movements)
    return Posting(
        phone=(movements or [only.debit for only in known])[0].phone,
        seen=seen,
        after=decision.after,
        needed_minor=decision.needed_minor,
        new=tuple(map(NewEntry, movements, decision.outcomes)),
        status_only=tuple(known),
        at_ms=at_ms,
    )
