"""What strangers send is read into one value or refused by field and code, never guessed at."""

import json
import random
from typing import Any

import phonenumbers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phonenumbers import PhoneNumberFormat

from wallet_ledger import strict_json
from wallet_ledger.contracts import (
    BATCH_MAX,
    Defaults,
    InvalidRequest,
    read_batch,
    read_bus_request,
    read_phone,
    read_transaction,
)
from wallet_ledger.domain.ids import Currency, is_phone
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX, Request
from wallet_ledger.domain.wallets import Credit, StatusChange, WalletStatus
from wallet_ledger.errors import InvalidMessage

DEFAULTS = Defaults(Currency("KES"), "KE")
TRANSACTION = {
    "agentId": "AG-001",
    "phone": "254712345678",
    "amount": 100,
    "idempotencyKey": "case-000001",
}
CODES = {
    "bad_batch",
    "bad_currency",
    "bad_id",
    "bad_phone",
    "bad_text",
    "bad_timestamp",
    "missing",
    "not_strict_json",
    "out_of_range",
    "unknown_member",
    "unknown_value",
    "wrong_type",
}
"""Every code that an agent's app may meet in `errors`."""

SAME_PHONE = (
    "254712345678",
    "+254712345678",
    "+254 712 345 678",
    "+254-712-345-678",
    "+254.712.345.678",
    "+254(712)345678",
    "+254 (0) 712 345 678",
    "0712345678",
    "0712 345 678",
    " 0712 345 678 ",
    "(0712) 345-678",
    "000254712345678",  # 000 is how one dials abroad from Kenya
)
NO_PHONE = (
    "",
    " ",
    "+",
    "-().",
    "0",
    "712345678",  # without 0 or + it is international: +7 12345678 is nobody
    "00254712345678",  # a leading 0 is national, and 00 is not how one dials abroad from Kenya
    "+0712345678",
    "+254712345678+",
    "++254712345678",
    " +254712345678",
    "0712345678\n",
    "0712\t345678",
    "0712\u00a0345678",
    "0712_345_678",
    "0712/345/678",
    "07123456789",
    "071234567",
    "2547CALLNOW",
    "0712345678 ext 9",
    "tel:+254712345678",
    "\uff10\uff17\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18",
    "+\uff12\uff15\uff14712345678",
    "\u0660\u0667\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668",
    "0712345678\uff18",
    "+254712345678\u0661",
    "+25471234567\ud800",
    "0" * 32,
)


def _read(**members: Any) -> Request:
    return read_transaction(TRANSACTION | members, DEFAULTS)


def _codes(error: pytest.ExceptionInfo[InvalidRequest]) -> list[tuple[str, str]]:
    return [(each.field, each.code) for each in error.value.errors]


def _codes_of(document: object) -> set[str]:
    try:
        read_transaction(document, DEFAULTS)
    except InvalidRequest as error:
        return {each.code for each in error.errors}
    return set()


@pytest.mark.parametrize("spelling", SAME_PHONE)
def test_any_usual_spelling_of_a_phone_is_one_wallet(spelling: str) -> None:
    assert read_phone(spelling, "KE") == "254712345678"


@pytest.mark.parametrize("text", NO_PHONE)
def test_what_is_no_phone_is_refused_and_never_repaired(text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_phone(text, "KE")
    assert _codes(error) == [("phone", "bad_phone")]


def test_a_leading_zero_is_read_in_the_region_of_the_stack() -> None:
    assert read_phone("0712345678", "TZ") == "255712345678"
    assert read_phone("00233241234567", "GH") == "233241234567"  # 00 dials abroad from Ghana


def test_a_phone_of_any_country_reaches_its_wallet_in_every_international_spelling() -> None:
    for region in phonenumbers.SUPPORTED_REGIONS:
        number = phonenumbers.example_number(region)
        assert number is not None
        wallet = phonenumbers.format_number(number, PhoneNumberFormat.E164)[1:]
        spoken = phonenumbers.format_number(number, PhoneNumberFormat.INTERNATIONAL)
        for spelling in (wallet, f"+{wallet}", spoken, spoken[1:]):
            assert read_phone(spelling, "KE") == wallet


# C30: each is a number that the plan of its country allows and that no wallet can be named by:
# the ledger's phones have 7 to 15 digits.
@pytest.mark.parametrize("text", ["+431110", "+491692", "+989601", "+49243224839186409"])
def test_a_number_too_short_or_too_long_for_a_wallet_is_refused(text: str) -> None:
    assert phonenumbers.is_valid_number(phonenumbers.parse(text))
    with pytest.raises(InvalidRequest) as error:
        read_phone(text, "KE")
    assert _codes(error) == [("phone", "bad_phone")]


@settings(max_examples=300, deadline=None)
@given(st.from_regex(r"(\+|0)?[0-9][0-9 ().-]{5,20}", fullmatch=True))
def test_c45_the_spelling_of_a_wallet_is_that_same_wallet(text: str) -> None:
    try:
        phone = read_phone(text, "KE")
    except InvalidRequest:
        return
    assert is_phone(phone)
    assert read_phone(phone, "KE") == phone


@pytest.mark.parametrize(
    "text",
    [
        "2000-01-01T00:00:00Z",
        "2026-11-02T09:14:07+03:00",
        "2026-11-02t09:14:07.123456789z",
        "2026-11-02T09:14:07-00:00",
        "2100-12-31T23:59:59-12:00",
    ],
)
def test_c41_a_time_of_rfc_3339_with_an_offset_is_kept_as_the_claim_it_is(text: str) -> None:
    assert _read(capturedAt=text).captured_at == text


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("1970-01-01T00:00:00Z", "bad_timestamp"),
        ("1999-12-31T23:59:59Z", "bad_timestamp"),
        ("2101-01-01T00:00:00Z", "bad_timestamp"),
        ("2026-11-02T09:14:07", "bad_timestamp"),
        ("2026-11-02 09:14:07Z", "bad_timestamp"),
        ("2026-11-02", "bad_timestamp"),
        ("2026-W45-1T00:00:00Z", "bad_timestamp"),
        ("2026-02-30T00:00:00Z", "bad_timestamp"),
        ("2026-11-02T24:00:00Z", "bad_timestamp"),
        ("2026-11-02T09:14:07+24:00", "bad_timestamp"),
        ("2026-11-02T09:14:07+03:60", "bad_timestamp"),
        ("2026-11-02T09:14:07-00:99", "bad_timestamp"),
        ("2026-11-02T09:14:07+03:00:30", "bad_timestamp"),
        ("2026-11-02T09:14:07Z\n", "bad_timestamp"),
        ("\uff12026-11-02T09:14:07Z", "bad_timestamp"),
        ("1793602800", "bad_timestamp"),
        (1793602800, "wrong_type"),
        (1793602800000, "wrong_type"),
        (-1, "wrong_type"),
        (True, "wrong_type"),
    ],
)
def test_c41_any_other_time_is_a_clear_refusal(value: object, code: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _read(capturedAt=value)
    assert _codes(error) == [("capturedAt", code)]


@pytest.mark.parametrize("amount", [1, 100, AMOUNT_MINOR_MAX])
def test_an_amount_is_an_integer_of_minor_units(amount: int) -> None:
    assert _read(amount=amount).amount_minor == amount


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0", "out_of_range"),
        ("-0", "out_of_range"),
        ("-1", "out_of_range"),
        (str(AMOUNT_MINOR_MAX + 1), "out_of_range"),
        ("9" * 19, "out_of_range"),
        ("9" * 20, "not_strict_json"),
        ("1" + "0" * 5000, "not_strict_json"),
        ("1.0", "wrong_type"),
        ("10.5", "wrong_type"),
        ("1e2", "wrong_type"),
        ("1e999", "wrong_type"),
        ("NaN", "not_strict_json"),
        ("-Infinity", "not_strict_json"),
        ('"100"', "wrong_type"),
        ('"\uff11\uff10\uff10"', "wrong_type"),
        ("true", "wrong_type"),
        ("null", "wrong_type"),
        ("[100]", "wrong_type"),
        ('{"a": 1, "a": 2}', "not_strict_json"),
    ],
)
def test_whatever_is_not_an_integer_of_minor_units_moves_no_money(text: str, code: str) -> None:
    document = strict_json.read(json.dumps(TRANSACTION).replace("100", text))
    with pytest.raises(InvalidRequest) as error:
        read_transaction(document, DEFAULTS)
    assert _codes(error) == [("amount", code)]


@pytest.mark.parametrize("member", ["agentId", "idempotencyKey"])
@pytest.mark.parametrize("text", ["A", "0", "a:b.c_d-e", "K" * 64])
def test_c30_an_id_is_kept_to_the_letter(member: str, text: str) -> None:
    request = _read(**{member: text})
    assert text in (request.agent_id, request.idempotency_key)


# `#` separates the parts of a ledger key, so no id may hold one; C47 is the long one.
@pytest.mark.parametrize("member", ["agentId", "idempotencyKey"])
@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "..", "-a", ":a", "a#b", "balance#x", "a b", "a/b", "a\n", "\na", "a\x00"),
        *("é", "\uff41", "\ud800", "K" * 65, "K" * 2049),
    ],
)
def test_an_id_that_could_reach_a_reserved_key_is_refused(member: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _read(**{member: text})
    assert _codes(error) in ([(member, "bad_id")], [(member, "bad_text")])


def test_a_currency_is_a_code_of_iso_4217_or_the_default_of_the_stack() -> None:
    assert _read().currency == "KES"
    assert _read(currency="TZS").currency == "TZS"
    for code in ("kes", "KSH", "XXX", "KE", "KESS", "", "KE\n", 404):
        with pytest.raises(InvalidRequest):
            _read(currency=code)


@pytest.mark.parametrize("member", TRANSACTION)
def test_each_required_member_is_missed_by_name(member: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_transaction({k: v for k, v in TRANSACTION.items() if k != member}, DEFAULTS)
    assert _codes(error) == [(member, "missing")]


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidRequest) as error:
        read_transaction({"phone": "x", "amount": 0, "ammount": 1, "agentId": "A"}, DEFAULTS)
    assert sorted(_codes(error)) == [
        ("ammount", "unknown_member"),
        ("amount", "out_of_range"),
        ("idempotencyKey", "missing"),
        ("phone", "bad_phone"),
    ]


@pytest.mark.parametrize(
    "name", ["254712345678", "phone 254712345678", "agent_id", "", "\ud800", "é", "a" * 33]
)
def test_a_member_name_that_may_hold_anything_is_not_repeated(name: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        _read(**{name: 1})
    assert [each.field for each in error.value.errors] == ["$"]
    assert not name or name not in str(error.value)


@pytest.mark.parametrize("document", [None, [], "254712345678", 1, 1.5, True, [TRANSACTION]])
def test_a_document_that_is_no_object_is_no_transaction(document: object) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_transaction(document, DEFAULTS)
    assert _codes(error) == [("$", "wrong_type")]
    assert error.value.errors[0].message == "a JSON object is expected"


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.sampled_from(["AG-001", "254712345678", "KES", "2026-11-02T09:14:07+03:00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MEMBERS = st.sampled_from([*TRANSACTION, "currency", "capturedAt"]) | st.text(
    st.characters(codec=None)
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(MEMBERS, JSON_VALUES, max_size=4), st.booleans())
def test_any_object_is_read_or_refused_with_known_codes(members: Any, complete: bool) -> None:
    document = (TRANSACTION if complete else {}) | members
    codes = _codes_of(document)
    assert codes <= CODES
    if not codes:
        request = read_transaction(document, DEFAULTS)
        assert is_phone(request.phone)
        assert type(request.amount_minor) is int


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"transactions": None},
        {"transactions": {}},
        {"transactions": []},
        {"transactions": [TRANSACTION] * (BATCH_MAX + 1)},
        {"transactions": [TRANSACTION] * 5000},
        {"transactions": [TRANSACTION], "more": 1},
    ],
)
def test_c47_a_batch_is_a_list_of_1_to_50_and_nothing_else(document: object) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_batch(document)
    assert {each.code for each in error.value.errors} <= CODES


def test_a_batch_hands_out_its_items_unread() -> None:
    items = [TRANSACTION, None, {"amount": "x"}]
    assert read_batch({"transactions": items}) == items


def _event(detail_type: str, detail: object, **envelope: object) -> str:
    return json.dumps({"id": "e-1", "detail-type": detail_type, "detail": detail} | envelope)


CREDIT = {"phone": "0712 345 678", "amount": 500, "source": "mpesa", "creditId": "QK71"}
STATUS = {"phone": "0712345678", "status": "frozen", "source": "risk", "requestId": "R-1"}


def test_a_credit_request_of_the_bus_becomes_a_credit() -> None:
    credit = Credit("mpesa", "QK71", read_phone("0712345678", "KE"), 500, Currency("KES"))
    assert read_bus_request(_event("WalletCreditRequested", CREDIT), DEFAULTS) == ("e-1", credit)
    foreign = _event("WalletCreditRequested", CREDIT | {"currency": "TZS", "schemaVersion": 1})
    assert read_bus_request(foreign, DEFAULTS)[1].currency == "TZS"


def test_a_status_request_of_the_bus_becomes_a_status_change() -> None:
    change = StatusChange(
        "risk", "R-1", read_phone("0712345678", "KE"), WalletStatus.FROZEN, Currency("KES")
    )
    assert read_bus_request(_event("WalletStatusRequested", STATUS), DEFAULTS) == ("e-1", change)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        "not json",
        json.dumps({"detail-type": "WalletCreditRequested", "detail": CREDIT}),
        _event("WalletCreditRequested", CREDIT, id=7),
        _event("WalletCreditRequested", CREDIT, id="line\nbreak"),
        _event("WalletCreditRequested", CREDIT, id="\ud800"),
        _event("WalletCreditRequested", None),
        _event("WalletCreditRequested", STATUS),
        _event("WalletCreditRequested", CREDIT | {"amount": 0}),
        _event("WalletCreditRequested", CREDIT | {"amount": "500"}),
        _event("WalletCreditRequested", CREDIT | {"phone": "+431110"}),
        _event("WalletCreditRequested", CREDIT | {"creditId": "a#b"}),
        _event("WalletCreditRequested", CREDIT | {"schemaVersion": 0}),
        _event("WalletCreditRequested", CREDIT | {"schemaVersion": 2}),
        _event("WalletCreditRequested", CREDIT | {"note": "x"}),
        _event("WalletStatusRequested", STATUS | {"status": "closed"}),
        _event("RefundRequested", {}),
        _event("Unheard", {}),
    ],
)
def test_any_other_event_is_an_invalid_message(body: str) -> None:
    with pytest.raises(InvalidMessage) as error:
        read_bus_request(body, DEFAULTS)
    assert not any(secret in str(error.value) for secret in ("0712", "mpesa", "QK71", "+4311"))


def test_random_bytes_of_an_event_never_break_the_reader() -> None:
    whole = _event("WalletCreditRequested", CREDIT)
    draw = random.Random(7)
    for _ in range(500):
        at, to = sorted(draw.choices(range(len(whole)), k=2))
        body = whole[:at] + draw.choice(['"', "{", "\\ud800", "9" * 30, "", ","]) + whole[to:]
        try:
            read_bus_request(body, DEFAULTS)
        except InvalidMessage:
            continue
