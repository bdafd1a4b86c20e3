"""A request for a refund at its two edges and on its queue: read whole and strictly, or refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.bus import handle_batch
from tests.fakes.memory import FakeClock, FakeQueue
from tests.fakes.samples import PHONE, refund
from wallet_ledger.contracts import (
    Defaults,
    InvalidRequest,
    RefundWanted,
    read_bus_request,
    read_refund_wanted,
)
from wallet_ledger.domain.ids import Currency
from wallet_ledger.domain.refunds import FULL, Refund
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX
from wallet_ledger.errors import InvalidMessage
from wallet_ledger.messages import read_refund, refund_message
from wallet_ledger.strict_json import read as strictly

DEFAULTS = Defaults(Currency("KES"), "KE")
WANTED = {"reason": "wrong phone"}
DETAIL = {
    "agentId": "AG-001",
    "idempotencyKey": "K-1",
    "phone": "0712 345 678",
    "refundId": "R-1",
    "amount": 4_711,
    "reason": "wrong phone",
}
NO_AMOUNTS = [
    "0",
    "-1",
    "-4711",
    "1.0",
    "47.11",
    "1e3",
    '"4711"',
    '""',
    "true",
    "false",
    "null",
    "[]",
    "{}",
    "NaN",
    "Infinity",
    str(AMOUNT_MINOR_MAX + 1),
    "9" * 5_000,
]

ids = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z")
refunds = st.builds(
    lambda refund_id, amount, key, agent, phone, currency: refund(
        refund_id,
        amount,
        key=key,
        agent_id=agent,
        phone=phone,
        currency=currency,
        requested_by=f"agent:{agent}",
    ),
    ids,
    st.none() | st.integers(1, AMOUNT_MINOR_MAX),
    ids,
    ids,
    st.from_regex(r"\A[1-9][0-9]{6,14}\Z"),
    st.none() | st.from_regex(r"\A[A-Z]{3}\Z"),
)


def event(detail: object, source: object = "desk.wakala", **envelope: object) -> str:
    """A request on the bus, as the Inbox holds it."""
    named = {"id": "e-1", "source": source, "detail-type": "RefundRequested", "detail": detail}
    return json.dumps(named | envelope)


# --- on RefundQueue -------------------------------------------------------------------------------


@given(refunds)
def test_a_refund_is_read_as_it_was_written(wanted: Refund) -> None:
    message = refund_message(wanted, "d-1")

    assert read_refund(message.body) == wanted
    assert (message.group, message.dedup_id) == (wanted.phone, "d-1")


@pytest.mark.parametrize("amount", NO_AMOUNTS)
def test_an_amount_that_is_none_is_refused_on_the_queue_too(amount: str) -> None:
    body = refund_message(refund("R-1", 4_711), "d").body

    with pytest.raises(InvalidMessage):
        read_refund(body.replace("4711", amount))


@pytest.mark.parametrize(
    "name",
    ["v", "agentId", "idempotencyKey", "phone", "refundId", "reason", "requestedBy"],
)
@pytest.mark.parametrize("value", [None, 5, True, "", "a#b", "K" * 71, "a\n", [], "²"])
def test_a_member_of_a_message_that_is_missing_or_nonsense_is_refused(
    name: str, value: object
) -> None:
    whole = json.loads(refund_message(refund("R-1", 5), "d").body)
    without = {member: held for member, held in whole.items() if member != name}
    harmless = {"reason": ("a#b", "K" * 71, "²"), "requestedBy": ("", "a#b", "a\n")}

    with pytest.raises(InvalidMessage, match=name):
        read_refund(json.dumps(without))
    if value not in harmless.get(name, ()):
        with pytest.raises(InvalidMessage):
            read_refund(json.dumps(whole | {name: value}))


@pytest.mark.parametrize(
    "change", [{"kind": "debit"}, {"balance": 1}, {"v": 2}, {"currency": "kes"}, {"currency": None}]
)
def test_a_message_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    whole = json.loads(refund_message(refund(), "d").body)

    with pytest.raises(InvalidMessage):
        read_refund(json.dumps(whole | change))


@given(st.text() | st.from_regex(r"\{.*\}"))
def test_anything_at_all_is_read_or_refused_and_nothing_else_happens(body: str) -> None:
    with pytest.raises(InvalidMessage):
        read_refund(body)


# --- from an agent's app --------------------------------------------------------------------------


def wanted(**members: object) -> RefundWanted:
    """What is made of a body."""
    return read_refund_wanted(WANTED | members, DEFAULTS)


def test_an_app_may_leave_out_all_but_the_reason() -> None:
    assert wanted() == RefundWanted(FULL, None, "wrong phone")
    assert wanted(refundId="R-1", amount=5) == RefundWanted("R-1", 5, "wrong phone")


@pytest.mark.parametrize("amount", [1, 100, AMOUNT_MINOR_MAX])
def test_an_amount_is_an_integer_of_minor_units(amount: int) -> None:
    assert wanted(amount=amount).amount_minor == amount


@pytest.mark.parametrize("amount", NO_AMOUNTS)
def test_whatever_is_no_amount_is_refused_at_both_edges_before_any_write(amount: str) -> None:
    with pytest.raises((InvalidRequest, InvalidMessage)):
        read_refund_wanted(strictly(f'{{"reason": "x", "amount": {amount}}}'), DEFAULTS)
    body = event(DETAIL).replace("4711", amount)
    with pytest.raises(InvalidMessage):
        read_bus_request(body, DEFAULTS)

    queues = [FakeQueue(FakeClock()) for _ in range(3)]
    tx_queue, refund_queue, letters = queues
    answer = handle_batch(
        [{"messageId": "1", "body": body}],
        defaults=DEFAULTS,
        tx_queue=tx_queue,
        refund_queue=refund_queue,
        delivery_failures=letters,
    )
    assert answer == {"batchItemFailures": []}
    assert [queue.depth() for queue in queues] == [0, 0, 1]


# --- from the bus ---------------------------------------------------------------------------------


def test_a_request_of_a_back_office_becomes_a_refund() -> None:
    event_id, asked = read_bus_request(event(DETAIL), DEFAULTS)

    assert event_id == "e-1"
    assert asked == refund("R-1", 4_711, requested_by="desk.wakala")


def test_a_request_that_names_no_id_no_amount_and_no_currency_is_for_all_of_it() -> None:
    short = {name: DETAIL[name] for name in ("agentId", "idempotencyKey", "phone", "reason")}

    _, asked = read_bus_request(event(short), DEFAULTS)

    assert asked == refund(FULL, requested_by="desk.wakala")
    assert read_bus_request(event(short | {"currency": "TZS"}), DEFAULTS)[1].currency == "TZS"


@pytest.mark.parametrize(
    ("source", "requested_by"),
    [
        ("wakala", "agent:AG-001"),
        ("desk", "desk"),
        ("a b", "bus"),
        ("", "bus"),
        (None, "bus"),
        (5, "bus"),
        ("x" * 65, "bus"),
    ],
)
def test_who_asks_is_told_by_the_envelope_and_not_by_the_request(
    source: object, requested_by: str
) -> None:
    _, asked = read_bus_request(event(DETAIL, source), DEFAULTS)

    assert isinstance(asked, Refund)
    assert asked.requested_by == requested_by


@pytest.mark.parametrize("name", ["agentId", "idempotencyKey", "phone", "reason"])
def test_each_required_member_is_missed_by_name(name: str) -> None:
    detail = {member: value for member, value in DETAIL.items() if member != name}

    with pytest.raises(InvalidRequest) as error:
        read_bus_request(event(detail), DEFAULTS)
    assert [(each.field, each.code) for each in error.value.errors] == [(name, "missing")]


@pytest.mark.parametrize(
    "change",
    [
        {"phone": "+431110"},
        {"phone": 254712345678},
        {"agentId": "AG#1"},
        {"refundId": ""},
        {"refundId": "R-1#x"},
        {"refundId": None},
        {"currency": "XXL"},
        {"reason": ""},
        {"reason": "two\nlines"},
        {"reason": None},
        {"requestedBy": "me"},
        {"schemaVersion": 2},
        {"schemaVersion": "1"},
        {"eventId": "a b"},
    ],
    ids=repr,
)
def test_a_request_that_breaks_the_contract_is_refused_and_not_repeated(
    change: dict[str, Any],
) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_bus_request(event(DETAIL | change), DEFAULTS)
    assert not any(secret in str(error.value) for secret in ("0712", "4311", "AG", "R-1", "lines"))


@pytest.mark.parametrize("detail", [None, [], "x", 5, {}])
def test_a_detail_that_is_no_request_is_refused(detail: object) -> None:
    with pytest.raises(InvalidMessage):
        read_bus_request(event(detail), DEFAULTS)


# --- the bus edge ---------------------------------------------------------------------------------


class Edge:
    """The bus edge with its queues in memory."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tx_queue = FakeQueue(self.clock)
        self.refund_queue = FakeQueue(self.clock)
        self.delivery_failures = FakeQueue(self.clock)

    def take(self, *bodies: str) -> list[str]:
        """The ids of the messages that come again; a body's place is its id."""
        answer = handle_batch(
            [{"messageId": str(place), "body": body} for place, body in enumerate(bodies)],
            defaults=DEFAULTS,
            tx_queue=self.tx_queue,
            refund_queue=self.refund_queue,
            delivery_failures=self.delivery_failures,
        )
        return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


def test_a_refund_goes_to_its_own_queue_in_the_group_of_its_phone() -> None:
    edge = Edge()

    assert edge.take(event(DETAIL)) == []

    [message] = edge.refund_queue.messages
    assert message.group == PHONE
    assert read_refund(message.body) == refund("R-1", 4_711, requested_by="desk.wakala")
    assert (edge.tx_queue.depth(), edge.delivery_failures.depth()) == (0, 0)


def test_c37_one_event_delivered_twice_is_one_message_and_asked_again_it_is_another() -> None:
    edge = Edge()

    edge.take(event(DETAIL), event(DETAIL))
    edge.take(event(DETAIL, id="e-2"))

    first, second = edge.refund_queue.messages
    assert first.body == second.body
    assert first.dedup_id != second.dedup_id


def test_a_refund_queue_that_takes_nothing_holds_up_no_movement() -> None:
    edge = Edge()
    edge.refund_queue.refuses = lambda _: True
    credit = {"phone": "0712345678", "amount": 5, "source": "till", "creditId": "C-1"}
    credited = json.dumps({"id": "e-9", "detail-type": "WalletCreditRequested", "detail": credit})

    assert edge.take(event(DETAIL), credited) == ["0"]
    assert (edge.tx_queue.depth(), edge.refund_queue.depth()) == (1, 0)
