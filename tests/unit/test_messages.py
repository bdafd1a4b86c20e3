"""What travels on TxQueue: read back as it was written, and nothing else is read at all."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.samples import PHONE, USD, credit, debit, status_change
from wallet_ledger.domain.ids import AgentId, IdempotencyKey
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX
from wallet_ledger.domain.wallets import Movement, WalletStatus
from wallet_ledger.domain.work import Unfinished
from wallet_ledger.errors import InvalidMessage
from wallet_ledger.messages import (
    debit_dedup_id,
    event,
    movement_message,
    put_aside,
    read_movement,
    unreadable,
)

ids = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z")
phones = st.from_regex(r"\A[1-9][0-9]{6,14}\Z")
currencies = st.from_regex(r"\A[A-Z]{3}\Z")
amounts = st.integers(1, AMOUNT_MINOR_MAX)
movements = st.one_of(
    st.builds(
        lambda key, amount, agent, phone, currency, at: debit(
            key, amount, agent_id=agent, phone=phone, currency=currency, captured_at=at
        ),
        ids,
        amounts,
        ids,
        phones,
        currencies,
        st.sampled_from([None, "2025-10-09T12:00:00.5+03:00"]),
    ),
    st.builds(
        lambda key, amount, source, phone, currency: credit(
            key, amount, source=source, phone=phone, currency=currency
        ),
        ids,
        amounts,
        ids,
        phones,
        currencies,
    ),
    st.builds(
        lambda key, status, phone, currency: status_change(
            key, status, phone=phone, currency=currency
        ),
        ids,
        st.sampled_from(WalletStatus),
        phones,
        currencies,
    ),
)


@given(movements)
def test_a_movement_is_read_as_it_was_written(movement: Movement) -> None:
    assert read_movement(movement_message(movement, "d").body) == movement


@given(movements)
def test_c30_whatever_is_accepted_fits_a_queue(movement: Movement) -> None:
    message = movement_message(movement, debit_dedup_id(AgentId("A"), IdempotencyKey("k"), 1))

    assert message.group == movement.phone
    assert message.body.isascii()
    assert len(message.body) < 1024
    assert message.dedup_id is not None
    assert len(message.dedup_id) <= 128
    assert message.dedup_id.isalnum()


SAMPLES: dict[str, Movement] = {
    "debit": debit("K-1", captured_at="2025-10-09T12:00:00Z"),
    "credit": credit("C-1", currency=USD),
    "status": status_change("S-1"),
}


def body_of(sample: str, /, **changes: Any) -> str:
    """A good message with some members put otherwise; None removes one."""
    members = json.loads(movement_message(SAMPLES[sample], "d").body) | changes
    return json.dumps({name: value for name, value in members.items() if value is not None})


kinds = pytest.mark.parametrize("kind", SAMPLES)
MEMBERS = [
    (kind, name)
    for kind in SAMPLES
    for name in json.loads(movement_message(SAMPLES[kind], "d").body)
]
NONSENSE: list[Any] = [
    True,
    False,
    0,
    -1,
    1.5,
    10**30,
    "",
    " ",
    "１００",
    "a#b",
    "a\n",
    "x" * 65,
    "\ud800",
    [],
    {},
    ["debit"],
    {"a": 1},
]


@pytest.mark.parametrize(("kind", "name"), [m for m in MEMBERS if m[1] != "capturedAt"])
def test_a_message_without_a_member_is_refused(kind: str, name: str) -> None:
    with pytest.raises(InvalidMessage):
        read_movement(body_of(kind, **{name: None}))


def test_a_debit_needs_no_time_of_the_device() -> None:
    read_movement(body_of("debit", capturedAt=None))


@pytest.mark.parametrize(("kind", "name"), MEMBERS)
@pytest.mark.parametrize("value", NONSENSE)
def test_a_member_that_is_nonsense_is_refused(kind: str, name: str, value: object) -> None:
    if name == "capturedAt" and value in ("", " ", "a#b", "a\n"):
        return  # a claim for people to read: any short text
    with pytest.raises(InvalidMessage):
        read_movement(body_of(kind, **{name: value}))


@kinds
@pytest.mark.parametrize(
    "change",
    [
        {"extra": 1},
        {"v": 2},
        {"kind": "refund"},
        {"phone": "+254712345678"},
        {"phone": "0712345678"},
        {"currency": "kes"},
    ],
    ids=str,
)
def test_a_message_of_another_shape_is_refused(kind: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        read_movement(body_of(kind, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"amountMinor": 99},
        {"phone": "254700000001"},
        {"agentId": "AG-002"},
        {"idempotencyKey": "K-2"},
        {"currency": "USD"},
        {"fingerprint": "0" * 64},
        {"fingerprint": debit("K-2").fingerprint},
    ],
    ids=str,
)
def test_a_debit_that_is_not_what_its_fingerprint_stands_for_is_refused(
    change: dict[str, Any],
) -> None:
    with pytest.raises(InvalidMessage):
        read_movement(body_of("debit", **change))


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "[]",
        "1",
        '"debit"',
        "{",
        "{}",
        "NaN",
        "[" * 100_000,
        '{"v": 1, "v": 1}',
        body_of("credit").replace('"amountMinor": 1000', '"amountMinor": 1, "amountMinor": 1000'),
        body_of("credit").replace("1000", "NaN"),
        body_of("credit").replace("1000", "1e3"),
        body_of("credit").replace("1000", "1000.0"),
        body_of("credit").replace("1000", "9" * 5000),
        body_of("credit").replace('"v": 1', '"v": true'),
        body_of("credit").replace('"v": 1', '"v": 1.0'),
    ],
    ids=lambda body: body[:30],
)
def test_what_is_no_message_is_refused(body: str) -> None:
    with pytest.raises(InvalidMessage):
        read_movement(body)


@given(
    st.one_of(
        st.text(),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
            lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
        ).map(json.dumps),
    )
)
def test_anything_at_all_is_read_or_refused_and_nothing_else_happens(body: str) -> None:
    with pytest.raises(InvalidMessage):
        read_movement(body)


@kinds
@pytest.mark.parametrize("value", [PHONE + "\n", "K-254712345678#", 10**25 + 254712345678])
def test_p12_a_refusal_names_the_member_and_never_what_it_held(kind: str, value: object) -> None:
    names = json.loads(movement_message(SAMPLES[kind], "d").body)
    for name in names:
        why = ""
        try:
            read_movement(body_of(kind, **{name: value}))
        except InvalidMessage as error:
            why = str(error)
        assert "254712345678" not in why


def test_a_letter_keeps_the_whole_record() -> None:
    record = {"messageId": "1", "body": "\ud800 \x00 {", "attributes": {"A": ["1", None]}}

    letter = unreadable("TxQueue", "kind: unknown", record)

    assert letter.body.isascii()
    assert json.loads(letter.body) == {
        "v": 1,
        "source": "TxQueue",
        "why": "kind: unknown",
        "record": record,
    }
    assert (letter.group, letter.dedup_id) == (None, None)


# --- dedup ids and event ids ----------------------------------------------------------------------


few = st.sampled_from(["A", "AB", "B", "a"])  # so few that lists share them


@given(st.lists(st.tuples(few, few, st.integers(1, 11)), unique=True, min_size=2, max_size=6))
def test_c32_a_dedup_id_is_one_of_an_attempt(attempts: list[tuple[str, str, int]]) -> None:
    made = [debit_dedup_id(AgentId(a), IdempotencyKey(k), n) for a, k, n in attempts]
    again = [debit_dedup_id(AgentId(a), IdempotencyKey(k), n) for a, k, n in attempts]

    assert made == again
    assert len(set(made)) == len(attempts)


def test_the_codes_of_what_is_put_aside_stand_in_one_order_each_once() -> None:
    """Letters are grouped by their reason."""
    codes = ("ThrottlingError", "None", "TransactionConflict", "Odd", "Later", "Odd", "Again")
    letter = put_aside("TxQueue", Unfinished(codes), {})

    assert json.loads(letter.body)["why"] == "Again Later Odd ThrottlingError TransactionConflict"


def test_an_event_is_the_same_event_whenever_it_is_derived() -> None:
    identity = ("AG-001", "K-1", 7)

    first = event("TransactionSynced", identity, {"a": 1, "b": None})
    later = event("TransactionSynced", identity, {"a": 2})

    one, other = json.loads(first.detail), json.loads(later.detail)
    assert one["eventId"] == other["eventId"]
    assert one == {"schemaVersion": 1, "eventId": one["eventId"], "a": 1}


@pytest.mark.parametrize(
    "make",
    [
        lambda: event("TransactionFailed", ("AG-001", "K-1", 7), {}),
        lambda: event("TransactionSynced", ("AG-001", "K-1", 8), {}),
        lambda: event("TransactionSynced", ("AG-001", "K-17"), {}),
        lambda: event("TransactionSynced", ("AG-001", "K-2", 7), {}),
    ],
)
def test_another_event_has_another_id(make: Callable[[], Any]) -> None:
    one = event("TransactionSynced", ("AG-001", "K-1", 7), {})

    assert json.loads(make().detail)["eventId"] != json.loads(one.detail)["eventId"]
