"""What a committed change of a row means to the outside: pure, and the same at every reading.

The relay derives from a stream, and `wakala events replay` from what the tables hold later: one
code, so that it is one event.
"""

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from wallet_ledger.domain.ids import digest
from wallet_ledger.domain.letters import Letter
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import NO_CURRENCY
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Debit, Posted, Rejected
from wallet_ledger.messages import debit_dedup_id, event, movement_message
from wallet_ledger.ports import OutgoingEvent, OutgoingMessage

_BEFORE_SETTLEMENT = frozenset({Status.QUEUED, Status.HELD})

_EVENT_OF_STATUS = {
    Status.HELD: "TransactionHeld",
    Status.SYNCED: "TransactionSynced",
    Status.FAILED: "TransactionFailed",
    Status.CANCELLED: "TransactionCancelled",
    Status.EXPIRED: "TransactionExpired",
}


class Destination(Enum):
    """Where something goes."""

    TX_QUEUE = "TxQueue"
    FAILED_TX_QUEUE = "FailedTxQueue"
    EVENT_BUS = "EventBus"


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message or event, derived from one change."""

    destination: Destination
    content: OutgoingMessage | OutgoingEvent


def from_row(old: OfflineTransaction | None, new: OfflineTransaction) -> list[Outgoing]:
    """What a row of OfflineTx that was stored or changed sends.

    Raises ValueError where the row's fingerprint is not that of its content.
    """
    if new.status is Status.QUEUED:
        again = old is None or old.status is not Status.QUEUED or old.attempt != new.attempt
        return [_tx_message(new)] if again else []
    if new.status is Status.REFUND_REQUESTED:
        again = old is None or old.status is not new.status or old.attempt != new.attempt
        return [_refund_event(new)] if again else []
    if old is not None and (old.status is new.status or old.status not in _BEFORE_SETTLEMENT):
        return []
    return _told(new)


def from_entry(entry: Entry) -> list[Outgoing]:
    """What a new entry of WalletLedger sends; a debit's event comes from its row instead."""
    posted = entry.outcome if isinstance(entry.outcome, Posted) else None
    rejected = entry.outcome if isinstance(entry.outcome, Rejected) else None
    detail: dict[str, str | int | None] = {
        "phone": entry.phone,
        "source": entry.actor,
        "currency": None if entry.currency == NO_CURRENCY else entry.currency,
        "reason": rejected.reason if rejected else None,
        "version": posted.version if posted else None,
        "balanceAfter": posted.balance_after_minor if posted else None,
        "occurredAt": entry.created_at_ms,
    }
    match entry.kind:
        case "debit":
            return []
        case "credit":
            detail_type = "WalletCredited" if posted else "WalletCreditRejected"
            detail |= {"creditId": entry.reference, "amount": entry.amount_minor}
        case "status":
            detail_type = "WalletStatusChanged" if posted else "WalletStatusRejected"
            detail |= {"requestId": entry.reference, "status": entry.wallet_status}
        case "refund":
            detail_type = "RefundCompleted" if posted else "RefundRejected"
            del detail["source"]
            detail |= {
                "agentId": entry.actor,
                "idempotencyKey": entry.reference,
                "refundId": entry.refund_id,
                "amount": entry.amount_minor or None,
                "remaining": entry.remaining_minor,
            }
        case _:
            assert_never(entry.kind)
    content = event(detail_type, (entry.phone, entry.entry_id), detail)
    return [Outgoing(Destination.EVENT_BUS, content)]


def from_letter(old: Letter | None, new: Letter) -> list[Outgoing]:
    """What a dead letter that was filed, or came to another status, sends.

    Whoever looks at one, or reveals what is in it, moves nothing. No phone leaves here, nor what
    people wrote, nor a preview: the event tells that there is something to be looked at.
    """
    if old is not None and old.status is new.status:
        return []
    content = event(
        "DeadLetterTriaged",
        (new.letter_id, new.revision),
        {
            "letterId": new.letter_id,
            "source": new.source,
            "class": new.letter_class,
            "verdict": new.verdict,
            "status": new.status,
            "failure": new.failure,
            "fingerprint": new.fingerprint,
            "agentId": new.agent_id,
            "idempotencyKey": new.idempotency_key,
            "attempt": new.attempt,
            "occurredAt": new.updated_at_ms,
        },
    )
    return [Outgoing(Destination.EVENT_BUS, content)]


def _tx_message(row: OfflineTransaction) -> Outgoing:
    debit = Debit(
        agent_id=row.agent_id,
        idempotency_key=row.idempotency_key,
        phone=row.phone,
        amount_minor=row.amount_minor,
        currency=row.currency,
        attempt=row.attempt,
        created_at_ms=row.created_at_ms,
        captured_at=row.captured_at,
    )
    if debit.fingerprint != row.fingerprint:
        raise ValueError("the row's fingerprint is not that of its content")
    dedup_id = debit_dedup_id(row.agent_id, row.idempotency_key, row.attempt)
    return Outgoing(Destination.TX_QUEUE, movement_message(debit, dedup_id))


def _refund_event(row: OfflineTransaction) -> Outgoing:
    """The agent's request, put on the bus like anybody else's."""
    asked = row.refund_request
    if asked is None:
        raise ValueError("a row that waits for a refund says not which")
    content = event(
        "RefundRequested",
        (row.agent_id, row.idempotency_key, asked.refund_id, row.attempt),
        {
            "agentId": row.agent_id,
            "idempotencyKey": row.idempotency_key,
            "phone": row.phone,
            "refundId": asked.refund_id,
            "amount": asked.amount_minor,
            "reason": asked.note,
        },
    )
    return Outgoing(Destination.EVENT_BUS, content)


def _refund_by_cancellation(row: OfflineTransaction) -> Outgoing:
    """No entry tells of it: no money moved."""
    content = event(
        "RefundCompleted",
        (row.agent_id, row.idempotency_key, row.cancelled_by or ""),
        {
            "agentId": row.agent_id,
            "idempotencyKey": row.idempotency_key,
            "phone": row.phone,
            "refundId": row.cancelled_by,
            "amount": row.amount_minor,
            "currency": row.currency,
            "cancelled": True,
            "occurredAt": row.updated_at_ms,
        },
    )
    return Outgoing(Destination.EVENT_BUS, content)


def _told(row: OfflineTransaction) -> list[Outgoing]:
    """The event of a status, and for a refusal the letter that an operator sees."""
    detail_type = _EVENT_OF_STATUS.get(row.status)
    if detail_type is None:
        return []
    identity: tuple[str | int, ...] = (row.agent_id, row.idempotency_key, row.fingerprint)
    if row.status is Status.HELD:
        identity = (*identity, row.attempt)  # the one status here that can come more than once
    content = event(
        detail_type,
        identity,
        {
            "agentId": row.agent_id,
            "idempotencyKey": row.idempotency_key,
            "phone": row.phone,
            "amount": row.amount_minor,
            "currency": row.currency,
            "reason": row.reason,
            "createdAt": row.created_at_ms,
            "occurredAt": row.updated_at_ms,
        },
    )
    told = [Outgoing(Destination.EVENT_BUS, content)]
    if row.status is Status.CANCELLED:
        told.append(_refund_by_cancellation(row))
    if row.status is Status.FAILED:
        dedup_id = digest("failed", *identity)
        letter = OutgoingMessage(content.detail, group=row.phone, dedup_id=dedup_id)
        told.append(Outgoing(Destination.FAILED_TX_QUEUE, letter))
    return told
