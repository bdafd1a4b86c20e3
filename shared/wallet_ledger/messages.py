"""What travels on TxQueue, and the events on the bus: written and read without pydantic.

Reconcile and relay read nothing else, and pydantic would double their cold start. A consumer
trusts no message more than a stranger's: whatever redrives a queue can put anything into it.
"""

import json
from collections.abc import Mapping
from typing import Any, assert_never

from wallet_ledger import strict_json
from wallet_ledger.domain.ids import (
    AgentId,
    Currency,
    IdempotencyKey,
    Phone,
    digest,
    is_currency,
    is_id,
    is_phone,
)
from wallet_ledger.domain.refunds import NOTE_BYTES_MAX, Refund, is_note
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX
from wallet_ledger.domain.wallets import Credit, Debit, Movement, StatusChange, WalletStatus
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import InvalidMessage
from wallet_ledger.ports import OutgoingEvent, OutgoingMessage

MESSAGE_VERSION = 1
EVENT_SCHEMA_VERSION = 1
EVENT_SOURCE = "wakala"

_DEBIT_MEMBERS = {
    "v",
    "kind",
    "agentId",
    "idempotencyKey",
    "phone",
    "amountMinor",
    "currency",
    "fingerprint",
    "attempt",
    "createdAt",
}
_CREDIT_MEMBERS = {"v", "kind", "source", "id", "phone", "amountMinor", "currency"}
_REFUND_MEMBERS = {
    "v",
    "agentId",
    "idempotencyKey",
    "phone",
    "refundId",
    "reason",
    "requestedBy",
}
_STATUS_MEMBERS = {"v", "kind", "source", "id", "phone", "status", "currency"}


def movement_message(movement: Movement, dedup_id: str) -> OutgoingMessage:
    """The TxQueue message of a movement, in the group of its phone."""
    body: dict[str, Any]
    match movement:
        case Debit():
            body = {
                "kind": "debit",
                "agentId": movement.agent_id,
                "idempotencyKey": movement.idempotency_key,
                "amountMinor": movement.amount_minor,
                "fingerprint": movement.fingerprint,
                "attempt": movement.attempt,
                "createdAt": movement.created_at_ms,
            }
            if movement.captured_at is not None:
                body["capturedAt"] = movement.captured_at
        case Credit():
            body = {
                "kind": "credit",
                "source": movement.source,
                "id": movement.credit_id,
                "amountMinor": movement.amount_minor,
            }
        case StatusChange():
            body = {
                "kind": "status",
                "source": movement.source,
                "id": movement.request_id,
                "status": movement.status,
            }
        case _:
            assert_never(movement)
    body |= {"v": MESSAGE_VERSION, "phone": movement.phone, "currency": movement.currency}
    return OutgoingMessage(json.dumps(body), group=movement.phone, dedup_id=dedup_id)


def refund_message(refund: Refund, dedup_id: str) -> OutgoingMessage:
    """The RefundQueue message of a refund, in the group of its phone."""
    body: dict[str, Any] = {
        "v": MESSAGE_VERSION,
        "agentId": refund.agent_id,
        "idempotencyKey": refund.idempotency_key,
        "phone": refund.phone,
        "refundId": refund.refund_id,
        "reason": refund.note,
        "requestedBy": refund.requested_by,
    }
    if refund.amount_minor is not None:
        body["amountMinor"] = refund.amount_minor
    if refund.currency is not None:
        body["currency"] = refund.currency
    return OutgoingMessage(json.dumps(body), group=refund.phone, dedup_id=dedup_id)


def read_refund(body: str) -> Refund:
    """The refund of a RefundQueue message. Raises `InvalidMessage` for anything else."""
    message = _read_message(body)
    _require_members(message, _REFUND_MEMBERS, optional={"amountMinor", "currency"})
    amount = "amountMinor" in message
    return Refund(
        agent_id=AgentId(_id(message, "agentId")),
        idempotency_key=IdempotencyKey(_id(message, "idempotencyKey")),
        phone=_phone(message),
        refund_id=_id(message, "refundId"),
        amount_minor=_integer(message, "amountMinor", AMOUNT_MINOR_MAX) if amount else None,
        currency=_currency(message) if "currency" in message else None,
        note=_note(message),
        requested_by=_text(message, "requestedBy", longest=70),  # `agent:` and an id
    )


def debit_dedup_id(agent_id: AgentId, key: IdempotencyKey, attempt: int) -> str:
    """A repetition of one attempt is dropped by the queue; every new attempt passes."""
    return digest("tx", agent_id, key, attempt)


def read_movement(body: str) -> Movement:
    """The movement of a TxQueue message. Raises `InvalidMessage` for anything else."""
    message = _read_message(body)
    match message.get("kind"):
        case "debit":
            return _read_debit(message)
        case "credit":
            return _read_credit(message)
        case "status":
            return _read_status(message)
        case _:
            raise InvalidMessage("kind: unknown")


def unreadable(source: str, why: str, record: Mapping[str, Any]) -> OutgoingMessage:
    """What goes to DeliveryFailures for a record that can never be processed, kept verbatim.

    `why` is the text of an `InvalidMessage`; `record` is the whole record as Lambda got it.
    """
    return _letter({"source": source, "why": why, "record": record})


def put_aside(
    source: str, left: Unfinished | Violation, record: Mapping[str, Any]
) -> OutgoingMessage:
    """What goes to DeliveryFailures for a record that could not be finished on its last receive.

    A queue that gives a message up cannot say why; its consumer can.
    """
    reason = {"source": source, "why": " ".join(sorted({*left.codes} - {"None"}))}
    match left:
        case Unfinished():
            return _letter(reason | {"failure": "unfinished", "record": record})
        case Violation(_, place):
            return _letter(reason | {"failure": "violated", "place": place, "record": record})
        case _:
            assert_never(left)


def _letter(members: Mapping[str, Any]) -> OutgoingMessage:
    return OutgoingMessage(json.dumps({"v": MESSAGE_VERSION, **members}))


def event(
    detail_type: str, identity: tuple[str | int, ...], detail: Mapping[str, Any]
) -> OutgoingEvent:
    """An event whose `eventId` depends on its type and `identity` alone.

    It can be derived again from the tables at any time and is then the same event.
    """
    return OutgoingEvent(
        detail_type,
        json.dumps(
            {
                "schemaVersion": EVENT_SCHEMA_VERSION,
                "eventId": digest("event", detail_type, *identity)[:32],
                **{name: value for name, value in detail.items() if value is not None},
            }
        ),
    )


def _read_message(body: str) -> dict[str, Any]:
    message = strict_json.read(body)
    if not isinstance(message, dict):
        raise InvalidMessage("the message is not an object")
    version = message.get("v")
    if type(version) is not int or version != MESSAGE_VERSION:
        raise InvalidMessage("v: unknown message version")
    return message


def _read_debit(message: dict[str, Any]) -> Debit:
    _require_members(message, _DEBIT_MEMBERS, optional={"capturedAt"})
    debit = Debit(
        agent_id=AgentId(_id(message, "agentId")),
        idempotency_key=IdempotencyKey(_id(message, "idempotencyKey")),
        phone=_phone(message),
        amount_minor=_integer(message, "amountMinor", AMOUNT_MINOR_MAX),
        currency=_currency(message),
        attempt=_integer(message, "attempt", 10**6),
        created_at_ms=_integer(message, "createdAt", 10**14),
        captured_at=_text(message, "capturedAt") if "capturedAt" in message else None,
    )
    # The row's write is conditional on this fingerprint: a message that lies about its amount
    # must not carry the fingerprint of the true one.
    if message["fingerprint"] != debit.fingerprint:
        raise InvalidMessage("fingerprint: does not match the content")
    return debit


def _read_credit(message: dict[str, Any]) -> Credit:
    _require_members(message, _CREDIT_MEMBERS)
    return Credit(
        source=_id(message, "source"),
        credit_id=_id(message, "id"),
        phone=_phone(message),
        amount_minor=_integer(message, "amountMinor", AMOUNT_MINOR_MAX),
        currency=_currency(message),
    )


def _read_status(message: dict[str, Any]) -> StatusChange:
    _require_members(message, _STATUS_MEMBERS)
    if message["status"] not in tuple(WalletStatus):
        raise InvalidMessage("status: unknown")
    return StatusChange(
        source=_id(message, "source"),
        request_id=_id(message, "id"),
        phone=_phone(message),
        status=WalletStatus(message["status"]),
        currency=_currency(message),
    )


def _require_members(
    message: dict[str, Any], required: set[str], optional: set[str] | None = None
) -> None:
    missing = required - message.keys()
    if missing:
        raise InvalidMessage(f"{min(missing)}: missing")
    if message.keys() - required - (optional or set()):
        raise InvalidMessage("the message has an unknown member")


def _text(message: dict[str, Any], name: str, longest: int = 64) -> str:
    value = message[name]
    if not isinstance(value, str) or len(value) > longest or not value.isascii():
        raise InvalidMessage(f"{name}: not a short ASCII string")
    return value


def _note(message: dict[str, Any]) -> str:
    value = message["reason"]
    if isinstance(value, str) and is_note(value):
        return value
    raise InvalidMessage(f"reason: not 1 to {NOTE_BYTES_MAX} bytes of printable text")


def _id(message: dict[str, Any], name: str) -> str:
    value = _text(message, name)
    if not is_id(value):
        raise InvalidMessage(f"{name}: not an id")
    return value


def _phone(message: dict[str, Any]) -> Phone:
    value = _text(message, "phone")
    if not is_phone(value):
        raise InvalidMessage("phone: not E.164 digits")
    return Phone(value)


def _currency(message: dict[str, Any]) -> Currency:
    value = _text(message, "currency")
    if not is_currency(value):
        raise InvalidMessage("currency: not a currency code")
    return Currency(value)


def _integer(message: dict[str, Any], name: str, largest: int) -> int:
    value = message[name]
    if type(value) is not int or not 1 <= value <= largest:  # `True` is an int, so not isinstance
        raise InvalidMessage(f"{name}: not an integer from 1 to {largest}")
    return value
