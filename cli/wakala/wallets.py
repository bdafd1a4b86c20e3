"""Wallets: requests that go over the bus, as a back office sends them, and what the ledger says."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wakala.output import Problem
from wakala.stack import Stack
from wallet_ledger.aws import items
from wallet_ledger.contracts import Defaults, InvalidRequest, read_bus_request, read_phone
from wallet_ledger.domain.ids import Currency, EntryId, Phone
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import NO_CURRENCY, Refund
from wallet_ledger.domain.transactions import Reason
from wallet_ledger.domain.wallets import Movement, Posted, Rejected, Wallet, WalletStatus

SOURCE = "cli"
WAIT_SECONDS = 30.0
POLL_SECONDS = 0.1
PUT_EVENTS_MAX = 10

_BALANCE_WRITTEN: Mapping[str, Mapping[str, str]] = {
    "balanceMinor": {"N": "0"},
    "currency": {"S": NO_CURRENCY},
    "version": {"N": "1"},
    "status": {"S": WalletStatus.ACTIVE},
}
"""The attributes of a balance item beside its key, each with a value that can be read."""


class UnreadableWallet(Problem):
    """The balance item of a wallet is none that our code writes; `attribute` is what is wrong."""

    def __init__(self, phone: Phone, attribute: str) -> None:
        super().__init__(
            f"the balance item of {masked(phone)} is none that our code writes (its {attribute}):"
            " nothing is written to it meanwhile, see docs/runbook.md#the-books-look-wrong"
        )
        self.attribute = attribute


@dataclass(frozen=True, slots=True)
class Requested:
    """A request for the bus beside the movement that the stack will make of it."""

    detail_type: str
    detail: Mapping[str, str | int]
    movement: Movement

    @property
    def entry_id(self) -> EntryId:
        """Where in the ledger its answer appears."""
        return items.entry_id(self.movement)


def credit(
    stack: Stack,
    phone: str,
    amount: int,
    credit_id: str | None = None,
    currency: str | None = None,
    source: str = SOURCE,
) -> Requested:
    """A request to put `amount` minor units into a wallet, once for its source and id."""
    detail: dict[str, str | int] = {
        "phone": phone,
        "amount": amount,
        "source": source,
        "creditId": credit_id or str(uuid.uuid4()),
    }
    if currency is not None:
        detail["currency"] = currency
    return _requested(stack, "WalletCreditRequested", detail)


def open_wallet(stack: Stack, phone: str) -> Wallet:
    """The wallet, opened in the stack's currency unless it is there: then it stays as it is.

    The request's id is the same every time, so that one that comes late is a replay: it does not
    thaw a wallet that was frozen since.
    """
    there = find(stack, parse_phone(stack, phone))
    if there is not None:
        return there
    settle(stack, [_status(stack, phone, "active", "open")])
    return show(stack, phone)


def status_change(stack: Stack, phone: str, status: str, request_id: str | None) -> Requested:
    """A request to freeze (`frozen`) or thaw (`active`) a wallet."""
    return _status(stack, phone, status, request_id or str(uuid.uuid4()))


def settle(stack: Stack, requests: list[Requested], seconds: float = WAIT_SECONDS) -> list[Entry]:
    """Put the requests on the bus, wait for their entries, and return those in order.

    Problem where one was refused, its id was used for something else, or time ran out: the same
    call again then finds what has been posted meanwhile, and posts nothing twice.
    """
    found = {n: entry for n, each in enumerate(requests) if (entry := _entry(stack, each))}
    put(stack, [(r.detail_type, r.detail) for n, r in enumerate(requests) if n not in found])
    deadline = time.monotonic() + seconds
    while len(found) < len(requests):
        if time.monotonic() > deadline:
            missing = next(each for n, each in enumerate(requests) if n not in found)
            raise Problem(
                f"no answer from the ledger in {seconds:.0f} s to {_business_id(missing)}: look at"
                " `wakala info`, then repeat the command with that id, it cannot count twice"
            )
        time.sleep(POLL_SECONDS)
        for n, each in enumerate(requests):
            if n not in found and (entry := _entry(stack, each)):
                found[n] = entry
    return [_require_posted(each, found[n]) for n, each in enumerate(requests)]


def show(stack: Stack, phone: str) -> Wallet:
    """The wallet as of now. Problem for a phone without one."""
    number = parse_phone(stack, phone)
    wallet = find(stack, number)
    if wallet is None:
        raise _no_wallet(number)
    return wallet


def find(stack: Stack, phone: Phone) -> Wallet | None:
    """The wallet as of now, None for a phone without one. UnreadableWallet where it is odd."""
    item = _item(stack, phone, items.BALANCE)
    if item is None:
        return None
    try:
        return items.read_wallet(item)
    except (KeyError, ValueError) as error:
        raise UnreadableWallet(phone, _unreadable_attribute(item)) from error


def statement(stack: Stack, phone: str) -> list[Entry]:
    """Every entry of the wallet, oldest first. Problem for a phone that the ledger never met."""
    number = parse_phone(stack, phone)
    entries = [
        items.read_entry(item)
        for item in wallet_items(stack, number)
        if items.entry_kind(item["txId"]["S"]) is not None  # beside them, totals of refunds
    ]
    if not entries and find(stack, number) is None:
        raise _no_wallet(number)
    return sorted(entries, key=lambda entry: (entry.created_at_ms, _version(entry)))


def under_their_debits(entries: Sequence[Entry]) -> list[Entry]:
    """The same entries in the same order, but refunds below the debit that they give back."""
    debits = {_original(entry) for entry in entries if _is_original(entry)}
    refunds: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.kind == "refund" and _original(entry) in debits:
            refunds.setdefault(_original(entry), []).append(entry)
    ordered: list[Entry] = []
    for entry in entries:
        if _is_original(entry):
            ordered += [entry, *refunds.get(_original(entry), [])]
        elif entry.kind != "refund" or _original(entry) not in debits:
            ordered.append(entry)
    return ordered


def wallet_items(stack: Stack, phone: Phone) -> Iterator[Mapping[str, Any]]:
    """Everything of one wallet but its balance row, as the table has it, read consistently."""
    pages = stack.dynamodb.get_paginator("query").paginate(
        TableName=stack.output("WalletLedgerTable"),
        ConsistentRead=True,
        KeyConditionExpression="phone = :phone",
        ExpressionAttributeValues={":phone": {"S": phone}},
    )
    for page in pages:
        for item in page["Items"]:
            if item["txId"]["S"] != items.BALANCE:
                yield item


def wallet_view(wallet: Wallet) -> dict[str, str | int]:
    """A wallet as scripts get it; `balance` in minor units."""
    return {
        "phone": wallet.phone,
        "balance": wallet.balance_minor,
        "currency": wallet.currency,
        "version": wallet.version,
        "status": wallet.status,
    }


def entry_view(entry: Entry) -> dict[str, str | int | None]:
    """An entry as scripts get it; `amount` and `balanceAfter` in minor units."""
    posted = entry.outcome if isinstance(entry.outcome, Posted) else None
    refused = entry.outcome if isinstance(entry.outcome, Rejected) else None
    return {
        "entryId": entry.entry_id,
        "kind": entry.kind,
        "outcome": "posted" if posted else "rejected",
        "reason": refused.reason if refused else None,
        "amount": entry.amount_minor,
        "currency": entry.currency,
        "contra": entry.contra,
        "refundId": entry.refund_id,
        "remaining": entry.remaining_minor,
        "status": entry.wallet_status,
        "version": posted.version if posted else None,
        "balanceAfter": posted.balance_after_minor if posted else None,
        "createdAt": rfc3339(entry.created_at_ms),
    }


def rfc3339(at_ms: int) -> str:
    """A moment in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def masked(phone: str) -> str:
    """A phone that still tells one from another in a short list, and no more."""
    return f"{phone[:3]}…{phone[-3:]}"


def parse_phone(stack: Stack, text: str) -> Phone:
    """Any usual spelling of a phone. Problem where it is none."""
    try:
        return read_phone(text, stack.default_region)
    except InvalidRequest as error:
        raise Problem(f"{text!r} is no phone: {error.errors[0].message}") from error


def _status(stack: Stack, phone: str, status: str, request_id: str) -> Requested:
    detail: dict[str, str | int] = {
        "phone": phone,
        "status": status,
        "source": SOURCE,
        "requestId": request_id,
    }
    return _requested(stack, "WalletStatusRequested", detail)


def understood(
    stack: Stack, detail_type: str, detail: Mapping[str, str | int]
) -> Movement | Refund:
    """Read a request as the stack will, so that a mistake is told here and not by silence."""
    envelope = {"id": "cli", "detail-type": detail_type, "detail": detail}
    defaults = Defaults(Currency(stack.currency), stack.default_region)
    try:
        _, asked = read_bus_request(json.dumps(envelope), defaults)
    except InvalidRequest as error:
        first = error.errors[0]
        raise Problem(f"{first.field}: {first.message}") from error
    return asked


def put(stack: Stack, requests: Sequence[tuple[str, Mapping[str, str | int]]]) -> None:
    """Put requests on the bus, each with its detail type, as the back office."""
    for start in range(0, len(requests), PUT_EVENTS_MAX):
        entries: Any = bus_entries(stack, requests[start : start + PUT_EVENTS_MAX])
        answer = stack.events.put_events(Entries=entries)
        if answer["FailedEntryCount"]:
            failed = next(entry for entry in answer["Entries"] if "ErrorCode" in entry)
            raise Problem(f"the bus refused the request: {failed['ErrorCode']}")


def bus_entries(
    stack: Stack, requests: Sequence[tuple[str, Mapping[str, str | int]]]
) -> list[dict[str, str]]:
    """The requests as PutEvents takes them."""
    return [
        {
            "Source": f"wakala.{SOURCE}",
            "DetailType": detail_type,
            "Detail": json.dumps(detail),
            "EventBusName": stack.output("EventBusName"),
        }
        for detail_type, detail in requests
    ]


def _requested(stack: Stack, detail_type: str, detail: Mapping[str, str | int]) -> Requested:
    movement = understood(stack, detail_type, detail)
    if isinstance(movement, Refund):
        raise TypeError(f"{detail_type} asks for a refund")
    return Requested(detail_type, detail, movement)


def _is_original(entry: Entry) -> bool:
    # The refusal of a reused key stands beside the key's own entry, and nothing is refunded of it.
    return entry.kind == "debit" and entry.outcome != Rejected(Reason.KEY_REUSED)


def _original(entry: Entry) -> tuple[str, str]:
    return entry.actor, entry.reference


def _require_posted(request: Requested, entry: Entry) -> Entry:
    if entry.fingerprint != request.movement.fingerprint:
        raise Problem(f"KEY_REUSED: {_business_id(request)} was used before for something else")
    if isinstance(entry.outcome, Rejected):
        raise Problem(f"{entry.outcome.reason}: the ledger refused {_business_id(request)}")
    return entry


def _business_id(request: Requested) -> str:
    return f"--id {request.detail.get('creditId') or request.detail.get('requestId')}"


def _no_wallet(phone: Phone) -> Problem:
    return Problem(f"no wallet for +{phone}: open it with `wakala wallet open +{phone}`")


def _unreadable_attribute(item: Mapping[str, Any]) -> str:
    """The first attribute for which a balance item cannot be read, though all others be sound."""
    for name in _BALANCE_WRITTEN:
        others = {each: value for each, value in _BALANCE_WRITTEN.items() if each != name}
        try:
            items.read_wallet({**item, **others})
        except (KeyError, ValueError):
            return name
    return "key"


def _version(entry: Entry) -> int:
    return entry.outcome.version if isinstance(entry.outcome, Posted) else 0


def _entry(stack: Stack, request: Requested) -> Entry | None:
    item = _item(stack, request.movement.phone, request.entry_id)
    return items.read_entry(item) if item else None


def _item(stack: Stack, phone: Phone, entry_id: EntryId) -> Mapping[str, Any] | None:
    answer = stack.dynamodb.get_item(
        TableName=stack.output("WalletLedgerTable"),
        Key=items.ledger_key(phone, entry_id),
        ConsistentRead=True,
    )
    return answer.get("Item")
