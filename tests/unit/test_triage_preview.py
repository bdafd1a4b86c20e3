"""C49: what may be shown of a body holds no phone, however it is spelt and wherever it stands."""

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.samples import PHONE, debit
from triage.preview import preview, shown
from wallet_ledger.messages import movement_message

NATIONAL = PHONE[3:]
FULL_WIDTH = PHONE.translate({ord("0") + n: 0xFF10 + n for n in range(10)})
ARABIC = PHONE.translate({ord("0") + n: 0x0660 + n for n in range(10)})
SPELT = {
    "plain": PHONE,
    "plus": f"+{PHONE}",
    "spaces": "+254 712 345 678",
    "national": "0712 345 678",
    "brackets": "(254) 712-345-678",
    "slashes": "254/712/345/678",
    "underscores": "254_712_345_678",
    "letters between": "a2b5c4d7e1f2g3h4i5j6k7l8",
    "colons in an id": f"tel:{PHONE}:x",
    "in a key": f"K-{PHONE}-1",
    "full width": FULL_WIDTH,
    "arabic": ARABIC,
    "with a name": f"Wanjiru {PHONE}",
    "with a time": f"T{PHONE}",
    "lines": "254\n712\n345\n678",
}
MEMBERS = (
    "v kind agentId source amountMinor amount currency attempt capturedAt status detail-type "
    "schemaVersion time idempotencyKey id refundId creditId requestId requestedBy detail phone "
    "msisdn createdAt fingerprint"
).split()


def digits(text: str) -> str:
    """All digits of a text, of whatever alphabet, and nothing between them."""
    return "".join(str(int(char)) for char in text if char.isdigit())


def assert_no_phone(told: str) -> None:
    """Three digits of it at most are left."""
    assert NATIONAL[:-3] not in digits(told)
    assert PHONE[:5] not in digits(told)


@pytest.mark.parametrize("name", SPELT)
def test_c49_no_member_shows_a_phone_in_whatever_spelling(name: str) -> None:
    spelt = SPELT[name]
    for member in MEMBERS:
        for told in (
            preview(json.dumps({member: spelt})),
            preview(json.dumps({member: {member: spelt, "detail": {"phone": spelt}}})),
            preview(json.dumps({"detail": {member: [spelt]}, "x": spelt})),
        ):
            assert_no_phone(told)
            assert member in told
    for told in (
        preview(json.dumps({spelt: 1, f"x{spelt}": {"detail": 1}, "detail": {spelt: spelt}})),
        preview(spelt),
        preview(json.dumps(spelt)),
        preview("{bad " + spelt),
        preview("x" * 9 + " " + spelt + "}"),
        shown(spelt),
    ):
        assert_no_phone(told)


@pytest.mark.parametrize("number", [int(PHONE), int(NATIONAL), -int(PHONE), float(PHONE), 1e11])
def test_c49_a_phone_that_is_a_number_is_shown_in_no_member(number: float) -> None:
    for member in MEMBERS:
        told = preview(json.dumps({member: number, "detail": {member: number}}))
        assert_no_phone(told)
    assert preview(json.dumps({"agentId": 7_012})) == "{agentId: …}"
    assert preview('{"amount": 999999, "attempt": 1000000}') == "{amount: 999999, attempt: …}"


def test_c49_nothing_that_may_be_encoded_is_shown() -> None:
    for encoded in (
        base64.b64encode(PHONE.encode()).decode(),
        base64.b64encode(f"phone={PHONE}".encode()).decode(),
        base64.urlsafe_b64encode(json.dumps({"phone": PHONE}).encode()).decode(),
        PHONE.encode().hex(),
    ):
        for body in (encoded, f"{{{encoded}", f"x {encoded} y", "A" * 139 + " " + encoded):
            told = preview(body).partition(": ")[2]
            assert not re.search(r"[A-Za-z0-9]{12}", told.replace("•", "0"))


def test_a_readable_message_is_known_by_what_is_shown_of_it() -> None:
    body = movement_message(debit(f"K-{PHONE}", 918, captured_at="2026-10-09T08:53:20Z"), "d").body

    assert preview(body) == (
        "{kind: debit, agentId: AG-001, idempotencyKey: K-••••••••••••, amountMinor: 918, "
        "fingerprint: …, attempt: 1, createdAt: …, capturedAt: 2026-10-09T08:53:20Z, v: 1, "
        "phone: …678, currency: KES}"
    )


def test_a_short_number_in_a_text_is_shown_and_one_as_long_as_a_phone_is_not() -> None:
    assert shown("AG-123456") == "AG-123456"
    assert shown("AG-1234567") == "AG-•••••••"


def test_what_a_member_may_show_no_other_does() -> None:
    body = {"x": {"kind": "debit"}, "y": "2026-10-09T08:53:20Z", "detail": {"kind": "debit"}}

    assert preview(json.dumps(body)) == "{x: …, y: …, detail: {kind: debit}}"


def test_a_request_from_the_bus_is_known_by_its_detail() -> None:
    event = {
        "detail-type": "RefundRequested",
        "source": "backoffice",
        "time": "2026-10-09T08:53:20Z",
        "resources": [PHONE],
        "detail": {"refundId": "R-7", "phone": "12345", "amount": 12.5, "currency": "KES"},
    }

    assert preview(json.dumps(event)) == (
        "{detail-type: RefundRequested, source: backoffice, time: 2026-10-09T08:53:20Z, "
        "resources: …, detail: {refundId: R-•, phone: …, amount: …, currency: KES}}"
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "0 characters, no JSON"),
        ("null", "4 characters of JSON, null"),
        ("[1, 2]", "6 characters of JSON, a list"),
        ("7", "1 characters of JSON, a number"),
        ("true", "4 characters of JSON, true or false"),
        ("NaN", "3 characters of JSON, odd"),
        ("{bad\x1b[2J\n", "9 characters, no JSON"),
        ("pay 712 345 678 at once, Jane", "29 characters, no JSON"),
    ],
)
def test_what_is_no_object_shows_what_it_is_and_none_of_its_words(body: str, told: str) -> None:
    assert preview(body) == told


json_values: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(MEMBERS), st.text()), inner, max_size=5),
    ),
    max_leaves=10,
)


@given(json_values.map(json.dumps) | st.text(st.characters(codec=None)))
def test_a_preview_is_one_short_line_that_every_terminal_and_table_takes(body: str) -> None:
    told = preview(body)

    assert len(told) <= 400
    assert told.isprintable()
    assert told.encode()
    assert not re.search(r"[0-9]{9}", re.sub(r"[0-9]{4}-[0-9-]+T[0-9:.+-]+", "", told))
