"""Wallets and movements, and the one decision of the books: what may be posted."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from wallet_ledger.domain.ids import (
    AgentId,
    Currency,
    Fingerprint,
    IdempotencyKey,
    Phone,
    digest,
)
from wallet_ledger.domain.transactions import Reason, debit_fingerprint

BALANCE_MINOR_MAX = 2**53 - 1
"""Largest balance, in minor units: every JSON reader still holds it exactly."""


class WalletStatus(StrEnum):
    """A frozen wallet takes credits and refunds, and refuses debits."""

    ACTIVE = "active"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Wallet:
    """A balance row as read. `version` counts posted movements and status changes from 1."""

    phone: Phone
    balance_minor: int
    currency: Currency
    version: int
    status: WalletStatus


@dataclass(frozen=True, slots=True)
class Debit:
    """An accepted offline transaction on its way to the ledger."""

    agent_id: AgentId
    idempotency_key: IdempotencyKey
    phone: Phone
    amount_minor: int
    currency: Currency
    attempt: int
    created_at_ms: int
    captured_at: str | None = None

    @property
    def fingerprint(self) -> Fingerprint:
        """Equal to the fingerprint of the row, or the message is not the row's."""
        return debit_fingerprint(
            self.agent_id, self.idempotency_key, self.phone, self.amount_minor, self.currency
        )


@dataclass(frozen=True, slots=True)
class Credit:
    """Money into a wallet from a funding `source`; the first credit opens the wallet."""

    source: str
    credit_id: str
    phone: Phone
    amount_minor: int
    currency: Currency

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes two requests of one credit id the same request."""
        return Fingerprint(
            digest(
                "credit:v1",
                self.source,
                self.credit_id,
                self.phone,
                self.amount_minor,
                self.currency,
            )
        )


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Freeze or unfreeze a wallet; a wallet that is not there is opened, in `currency`."""

    source: str
    request_id: str
    phone: Phone
    status: WalletStatus
    currency: Currency

    @property
    def fingerprint(self) -> Fingerprint:
        """What makes two requests of one request id the same request."""
        return Fingerprint(
            digest("status:v1", self.source, self.request_id, self.phone, self.status)
        )


type Movement = Debit | Credit | StatusChange
type MovementId = tuple[str, str, str]
"""(kind, agent or source, key or id): unique within a wallet, the same for a repetition."""


@dataclass(frozen=True, slots=True)
class Posted:
    """The movement is in the books as the wallet's `version`-th."""

    version: int
    balance_after_minor: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """The movement was refused, for good; no balance moved."""

    reason: Reason


type Outcome = Posted | Rejected


@dataclass(frozen=True, slots=True)
class Decision:
    """What the books say to a list of movements.

    `outcomes` is parallel to the movements. `after` is the wallet when all are written, None
    where it still is not open. `needed_minor` is the smallest opening balance for which no
    step goes below zero: the write's own condition, so that a stale read can only make it fail.
    """

    outcomes: tuple[Outcome, ...]
    after: Wallet | None
    needed_minor: int


def movement_id(movement: Movement) -> MovementId:
    """The business id on which every consumer is idempotent."""
    match movement:
        case Debit():
            return ("debit", movement.agent_id, movement.idempotency_key)
        case Credit():
            return ("credit", movement.source, movement.credit_id)
        case StatusChange():
            return ("status", movement.source, movement.request_id)
        case _:
            assert_never(movement)


def decide(wallet: Wallet | None, movements: Sequence[Movement]) -> Decision:
    """Decide movements of one wallet in their order, each on what the one before it left.

    A refused movement leaves the wallet as it was. No movement id may occur twice, and every
    movement must be of this wallet's phone.
    """
    outcomes: list[Outcome] = []
    net_minor = needed_minor = 0
    for movement in movements:
        outcome, after = _apply(wallet, movement)
        if after is not None:
            net_minor += after.balance_minor - (wallet.balance_minor if wallet else 0)
            needed_minor = max(needed_minor, -net_minor)
        wallet = after
        outcomes.append(outcome)
    return Decision(tuple(outcomes), wallet, needed_minor)


def _apply(wallet: Wallet | None, movement: Movement) -> tuple[Outcome, Wallet | None]:
    reason = _refusal(wallet, movement)
    if reason is not None:
        return Rejected(reason), wallet
    before = wallet or _unopened(movement)
    match movement:
        case Debit():
            after = replace(before, balance_minor=before.balance_minor - movement.amount_minor)
        case Credit():
            after = replace(before, balance_minor=before.balance_minor + movement.amount_minor)
        case StatusChange():
            after = replace(before, status=movement.status)
        case _:
            assert_never(movement)
    after = replace(after, version=before.version + 1)
    return Posted(after.version, after.balance_minor), after


def _refusal(wallet: Wallet | None, movement: Movement) -> Reason | None:
    """The first rule that is broken; the order is part of the contract with agents' apps."""
    match movement:
        case Debit():
            if wallet is None:
                return Reason.WALLET_NOT_FOUND
            if wallet.currency != movement.currency:
                return Reason.CURRENCY_MISMATCH
            if wallet.status is WalletStatus.FROZEN:
                return Reason.WALLET_FROZEN
            if wallet.balance_minor < movement.amount_minor:
                return Reason.INSUFFICIENT_FUNDS
            return None
        case Credit():
            if wallet is not None and wallet.currency != movement.currency:
                return Reason.CURRENCY_MISMATCH
            held_minor = wallet.balance_minor if wallet else 0
            if held_minor + movement.amount_minor > BALANCE_MINOR_MAX:
                return Reason.BALANCE_LIMIT
            return None
        case StatusChange():
            return None
        case _:
            assert_never(movement)


def _unopened(movement: Movement) -> Wallet:
    return Wallet(movement.phone, 0, movement.currency, 0, WalletStatus.ACTIVE)
