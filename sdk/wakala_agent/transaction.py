"""One transaction: what it holds, where it is, and what the API takes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Any

from wakala_agent.errors import InvalidTransaction

AMOUNT_MAX = 10**12
"""Minor units of one transaction, as the API takes them."""

PHONE_TAIL_DIGITS = 7
"""Every spelling of one phone ends alike, and no phone has fewer digits than these."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_ID_RULE = "1 to 64 of A-Z a-z 0-9 . _ : - after one of A-Z a-z 0-9"
_PHONE = re.compile(r"\+?[0-9 ().\-]{1,31}", re.ASCII)
_RFC_3339 = re.compile(
    r"(20[0-9]{2}|2100)-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII,
)
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)


class State(str, Enum):
    """Where a transaction is. All but the first and the last are the server's words."""

    STORED = "stored"
    """On this device; the server may or may not have heard of it."""
    QUEUED = "queued"
    """The server has it and will bring it to an end: the device may be lost now."""
    SYNCED = "synced"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REFUND_REQUESTED = "refund_requested"
    PARTIALLY_REFUNDED = "partially_refunded"
    REFUNDED = "refunded"
    REFUSED = "refused"
    """The API will not take it as it is; `error` says why. It was not debited."""

    @property
    def is_final(self) -> bool:
        """Whether nothing is left to be synced."""
        return self not in (State.STORED, State.QUEUED)

    def may_become(self, after: "State") -> bool:
        """Whether news of a state are news: an old answer never undoes a later one."""
        if after is State.STORED:  # the server does not know what it had queued
            return self is State.QUEUED
        if after is State.REFUSED:
            return self is State.STORED
        if after is State.QUEUED:
            return self in (State.STORED, State.QUEUED, State.REFUSED)
        return True


@dataclass(frozen=True)
class Transaction:
    """One transaction as the outbox has it. `amount` is in minor units.

    `currency` None means the server's default. `captured_at` is what the device's clock said.
    `tries`: requests that carried it; `suspect`: those at which the server itself failed; `asked`:
    how often the server was asked for it. `reason` is the server's for `failed`, `error` the API's
    problem for `refused` (`code`, `detail`, `errors`). `ended_ms`: when its end was heard of, by
    the server's clock.
    """

    seq: int
    idempotency_key: str
    phone: str = field(repr=False)
    amount: int
    currency: str | None
    captured_at: str | None
    state: State
    tries: int
    suspect: int
    asked: int
    reason: str | None
    error: Mapping[str, Any] | None
    ended_ms: int | None

    @property
    def phone_tail(self) -> str:
        """What two transactions share that may be about one phone, however each spells it."""
        return phone_tail(self.phone)

    def request(self, agent_id: str) -> dict[str, Any]:
        """What travels: the same for every try."""
        body: dict[str, Any] = {
            "agentId": agent_id,
            "phone": self.phone,
            "amount": self.amount,
            "idempotencyKey": self.idempotency_key,
        }
        if self.currency is not None:
            body["currency"] = self.currency
        if self.captured_at is not None:
            body["capturedAt"] = self.captured_at
        return body

    def same_content(self, phone: str, amount: int, currency: str | None) -> bool:
        """Whether both are the same as far as a device can tell: spaces and such are no content.

        The server, which knows its own region and currency, may take more for the same: a national
        number and its international spelling, or a currency left out and the default one named.
        """
        mine = (_spelt_plainly(self.phone), self.amount, self.currency)
        return mine == (_spelt_plainly(phone), amount, currency)


def phone_tail(phone: str) -> str:
    """The last digits of a phone."""
    return _digits(phone)[-PHONE_TAIL_DIGITS:]


def check_agent(agent_id: object) -> None:
    """Raises `InvalidTransaction`."""
    if not _is_id(agent_id):
        raise InvalidTransaction(f"agent_id: {_ID_RULE}")


def check(
    phone: object, amount: object, currency: object, key: object, captured_at: object = None
) -> None:
    """What the API would refuse for good is refused while the agent still sees the customer."""
    if type(amount) is not int or not 1 <= amount <= AMOUNT_MAX:
        raise InvalidTransaction(f"amount: an integer in minor units, 1 to {AMOUNT_MAX}")
    if not isinstance(phone, str) or not _PHONE.fullmatch(phone):
        raise InvalidTransaction("phone: digits, spaces, -(). and a leading +")
    if not PHONE_TAIL_DIGITS <= len(_digits(phone)) <= 16:
        raise InvalidTransaction("phone: too short or too long")
    if currency is not None and not (isinstance(currency, str) and _CURRENCY.fullmatch(currency)):
        raise InvalidTransaction("currency: three capital letters of ISO 4217")
    if not _is_id(key):
        raise InvalidTransaction(f"idempotency_key: {_ID_RULE}")
    if captured_at is not None and not _is_moment(captured_at):
        raise InvalidTransaction("captured_at: RFC 3339 with an offset, years 2000 to 2100")


def _is_moment(value: object) -> bool:
    found = _RFC_3339.fullmatch(value) if isinstance(value, str) else None
    try:
        return found is not None and bool(date(*map(int, found.group(1, 2, 3))))
    except ValueError:  # the 30th of February
        return False


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _digits(phone: str) -> str:
    return re.sub("[^0-9]", "", phone)


def _spelt_plainly(phone: str) -> str:
    """As the API reads it: a leading 0 is national, other digits are international."""
    digits = _digits(phone)
    return f"+{digits}" if phone.startswith("+") or not digits.startswith("0") else digits
