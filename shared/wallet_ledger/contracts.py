"""What strangers send: HTTP bodies and requests on the bus, parsed once into domain values.

The only module with pydantic. Whatever gets through here is trusted inside; whatever does not is
answered with the field, a stable code and a sentence, and never with the value itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import phonenumbers
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from wallet_ledger import strict_json
from wallet_ledger.domain.ids import (
    ID_PATTERN,
    AgentId,
    Currency,
    IdempotencyKey,
    Phone,
    is_id,
    is_phone,
)
from wallet_ledger.domain.refunds import FULL, NOTE_BYTES_MAX, Refund, is_note
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX, Request
from wallet_ledger.domain.wallets import Credit, Movement, StatusChange, WalletStatus
from wallet_ledger.errors import InvalidMessage
from wallet_ledger.messages import EVENT_SOURCE

BATCH_MAX = 50
"""Transactions in one batch: what one invocation stores well within the gateway's 29 s."""

_PHONE_TEXT = re.compile(r"\+?[0-9 ().\-]{1,31}", re.ASCII)
_RFC_3339 = re.compile(
    r"(20[0-9]{2}|2100)-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3])(:[0-5][0-9]){2}(\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    re.ASCII,
)
_FIELD_NAME = re.compile(r"[A-Za-z]{1,32}")
# ISO 4217, active codes of money that a person can hold.
_CURRENCIES = frozenset(
    """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD
    CAD CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP
    GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD
    KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN
    NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP
    SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES
    VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG
    """.split()
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the stack fills in: the currency, and the region of phones that begin with 0."""

    currency: Currency
    region: str


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing that is wrong: a JSON path, a stable code, and a sentence for a developer."""

    field: str
    code: str
    message: str


class InvalidRequest(InvalidMessage):
    """A body that breaks the contract; `errors` says where and how."""

    def __init__(self, errors: tuple[FieldError, ...]) -> None:
        super().__init__("; ".join(f"{error.field}: {error.code}" for error in errors))
        self.errors = errors


def _phone(text: str, info: ValidationInfo) -> str:
    """Any usual spelling → E.164 digits. A leading 0 is national, other digits international."""
    if not _PHONE_TEXT.fullmatch(text):
        raise PydanticCustomError("bad_phone", "digits, spaces, -(). and a leading + are allowed")
    digits = re.sub(r"[^0-9]", "", text)
    national = digits.startswith("0") and not text.startswith("+")
    try:
        number = (
            phonenumbers.parse(digits, info.context["region"])
            if national and info.context is not None
            else phonenumbers.parse(f"+{digits}")
        )
    except phonenumbers.NumberParseException:
        raise PydanticCustomError("bad_phone", "not a phone number") from None
    if not phonenumbers.is_valid_number(number):
        raise PydanticCustomError("bad_phone", "not a phone number that is in use anywhere")
    phone = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)[1:]
    if not is_phone(phone):  # a few numbering plans go beyond E.164's 15 digits, or below 7
        raise PydanticCustomError("bad_phone", "a phone has 7 to 15 digits with its country's code")
    return phone


def _currency(code: str) -> str:
    if code not in _CURRENCIES:
        raise PydanticCustomError("bad_currency", "not a currency code of ISO 4217")
    return code


def _note(text: str) -> str:
    if not is_note(text):
        raise PydanticCustomError(
            "bad_text",
            f"1 to {NOTE_BYTES_MAX} bytes of printable text",
        )
    return text


def _captured_at(text: str) -> str:
    try:
        if not _RFC_3339.fullmatch(text):
            raise ValueError
        datetime.fromisoformat(text.upper())
    except ValueError:
        raise PydanticCustomError(
            "bad_timestamp", "RFC 3339 with an offset, years 2000 to 2100"
        ) from None
    return text


# Names and JSON Schemas of these reach apps through docs/openapi.yaml. A validator says more than
# a schema can: `format` names what is checked beyond the pattern.
type Id = Annotated[str, StringConstraints(pattern=f"^{ID_PATTERN}$", max_length=64)]
type PhoneText = Annotated[
    str,
    AfterValidator(_phone),
    Field(json_schema_extra={"format": "phone", "pattern": f"^{_PHONE_TEXT.pattern}$"}),
]
type AmountMinor = Annotated[int, Field(ge=1, le=AMOUNT_MINOR_MAX)]
type Note = Annotated[
    str,
    AfterValidator(_note),
    Field(json_schema_extra={"format": "note", "minLength": 1, "maxLength": NOTE_BYTES_MAX}),
]
type CurrencyCode = Annotated[
    str, AfterValidator(_currency), Field(json_schema_extra={"enum": sorted(_CURRENCIES)})
]
type Timestamp = Annotated[
    str,
    AfterValidator(_captured_at),
    Field(json_schema_extra={"format": "date-time", "pattern": f"^{_RFC_3339.pattern}$"}),
]


class _Body(BaseModel):
    """camelCase outside, snake_case inside; nothing is coerced and nothing is ignored."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        hide_input_in_errors=True,
    )


class TransactionBody(_Body):
    """A request for a debit, as agents' apps send it."""

    agent_id: Id
    idempotency_key: Id
    phone: PhoneText
    amount: AmountMinor
    currency: CurrencyCode | None = None
    captured_at: Timestamp | None = None


class _BusRequest(_Body):
    source: Id
    phone: PhoneText
    schema_version: Annotated[int, Field(ge=1, le=1)] | None = None
    event_id: Id | None = None


class _CreditRequest(_BusRequest):
    credit_id: Id
    amount: AmountMinor
    currency: CurrencyCode | None = None


class _StatusRequest(_BusRequest):
    request_id: Id
    status: Literal["active", "frozen"]


class RefundBody(_Body):
    """A request for a refund, as agents' apps send it; the path names the transaction."""

    refund_id: Id = FULL
    # Absent: all that remains; null: a mistake.
    amount: AmountMinor = Field(default=None)  # type: ignore[assignment]
    reason: Note


class _RefundRequest(_Body):
    agent_id: Id
    idempotency_key: Id
    phone: PhoneText
    refund_id: Id = FULL
    # Absent: all that remains; null: a mistake.
    amount: AmountMinor = Field(default=None)  # type: ignore[assignment]
    currency: CurrencyCode | None = None
    reason: Note
    schema_version: Literal[1] | None = None
    event_id: Id | None = None


@dataclass(frozen=True, slots=True)
class RefundWanted:
    """What an agent's app says of a refund; the transaction is named by the path."""

    refund_id: str
    amount_minor: int | None
    note: str


def read_refund_wanted(document: Any, defaults: Defaults) -> RefundWanted:
    """The body of a request for a refund. Raises `InvalidRequest`."""
    body = _validate(RefundBody, document, defaults.region)
    return RefundWanted(body.refund_id, body.amount, body.reason)


def read_transaction(document: Any, defaults: Defaults) -> Request:
    """One request for a debit. Raises `InvalidRequest`."""
    body = _validate(TransactionBody, document, defaults.region)
    return Request(
        agent_id=AgentId(body.agent_id),
        idempotency_key=IdempotencyKey(body.idempotency_key),
        phone=Phone(body.phone),
        amount_minor=body.amount,
        currency=Currency(body.currency or defaults.currency),
        captured_at=body.captured_at,
    )


def read_batch(document: Any) -> list[Any]:
    """The items of a batch, each still to be read on its own. Raises `InvalidRequest`."""
    if not isinstance(document, dict):
        raise InvalidRequest((_not_an_object(document, "$"),))
    errors = []
    if document.keys() - {"transactions"}:
        errors.append(FieldError("$", "unknown_member", "only transactions is expected"))
    batch = document.get("transactions")
    if not isinstance(batch, list) or not 1 <= len(batch) <= BATCH_MAX:
        errors.append(FieldError("transactions", "bad_batch", f"a list of 1 to {BATCH_MAX}"))
    if errors or not isinstance(batch, list):
        raise InvalidRequest(tuple(errors))
    return batch


def read_bus_request(body: str, defaults: Defaults) -> tuple[str, Movement | Refund]:
    """An EventBridge event as the Inbox queue holds it → its event id, and what it asks for.

    Raises `InvalidMessage` for everything else.
    """
    envelope = strict_json.read(body)
    event_id = envelope.get("id") if isinstance(envelope, dict) else None
    if not isinstance(event_id, str) or not is_id(event_id):  # EventBridge's own is a UUID
        raise InvalidMessage("the message is not an EventBridge event")
    detail = envelope.get("detail")
    match envelope.get("detail-type"):
        case "WalletCreditRequested":
            credit = _validate(_CreditRequest, detail, defaults.region)
            return event_id, Credit(
                source=credit.source,
                credit_id=credit.credit_id,
                phone=Phone(credit.phone),
                amount_minor=credit.amount,
                currency=Currency(credit.currency or defaults.currency),
            )
        case "WalletStatusRequested":
            change = _validate(_StatusRequest, detail, defaults.region)
            return event_id, StatusChange(
                source=change.source,
                request_id=change.request_id,
                phone=Phone(change.phone),
                status=WalletStatus(change.status),
                currency=defaults.currency,
            )
        case "RefundRequested":
            refund = _validate(_RefundRequest, detail, defaults.region)
            return event_id, Refund(
                agent_id=AgentId(refund.agent_id),
                idempotency_key=IdempotencyKey(refund.idempotency_key),
                phone=Phone(refund.phone),
                refund_id=refund.refund_id,
                amount_minor=refund.amount,
                currency=Currency(refund.currency) if refund.currency else None,
                note=refund.reason,
                requested_by=_requester(envelope.get("source"), refund.agent_id),
            )
        case _:
            raise InvalidMessage("detail-type: not a request that is known here")


def _requester(source: Any, agent_id: str) -> str:
    """Who asks: an agent, whose request the relay puts on the bus, or another source."""
    if source == EVENT_SOURCE:
        return f"agent:{agent_id}"
    return source if isinstance(source, str) and is_id(source) else "bus"


def read_phone(text: str, region: str) -> Phone:
    """Any usual spelling of a phone → its wallet. Raises `InvalidRequest`."""
    return Phone(_validate(_PhoneOnly, {"phone": text}, region).phone)


class _PhoneOnly(_Body):
    phone: PhoneText


def _validate[Body: _Body](model: type[Body], document: Any, region: str) -> Body:
    if not isinstance(document, dict):
        raise InvalidRequest((_not_an_object(document, "$"),))
    try:
        return model.model_validate(document, context={"region": region})
    except ValidationError as error:
        raise InvalidRequest(tuple(_field_error(each) for each in error.errors())) from None


def _not_an_object(document: Any, field: str) -> FieldError:
    if isinstance(document, strict_json.NotStrict):
        return FieldError(field, "not_strict_json", document.what)
    return FieldError(field, "wrong_type", "a JSON object is expected")


_CODES: Mapping[str, tuple[str, str]] = {
    "missing": ("missing", "this member is required"),
    "extra_forbidden": ("unknown_member", "no such member"),
    "int_type": ("wrong_type", "an integer in minor units is expected"),
    "string_type": ("wrong_type", "a string is expected"),
    "string_unicode": ("bad_text", "a string of whole Unicode characters is expected"),
    "string_pattern_mismatch": ("bad_id", "1 to 64 of A-Z a-z 0-9 . _ : - after a letter or digit"),
    "string_too_long": ("bad_id", "1 to 64 of A-Z a-z 0-9 . _ : - after a letter or digit"),
    "greater_than_equal": ("out_of_range", f"1 to {AMOUNT_MINOR_MAX}"),
    "less_than_equal": ("out_of_range", f"1 to {AMOUNT_MINOR_MAX}"),
    "literal_error": ("unknown_value", "not one of the values that are known"),
}


def _field_error(error: Any) -> FieldError:
    field = ".".join(map(str, error["loc"]))
    if not _FIELD_NAME.fullmatch(field):  # the sender's text, which may hold a phone, and is logged
        field = "$"
    if isinstance(error["input"], strict_json.NotStrict):
        return FieldError(field, "not_strict_json", error["input"].what)
    code, message = _CODES.get(error["type"], (error["type"], error["msg"]))
    return FieldError(field, code, message)
