"""Refunds and cancellations on the deployed stack, asked for by agents and by the back office."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.actors import (
    Agent,
    BackOffice,
    away,
    eventually,
    letter_with,
    letters,
    log_lines,
    make_due,
    sweep,
    waiting,
    wakala,
)
from wakala.stack import Stack

UNSEEN = {"agentId": "AG-001", "idempotencyKey": "never-accepted", "phone": "254712999999"}
UNSEEN_WITHIN_S = 120.0
"""An unseen original is waited for: this file asks when it begins and looks when it ends."""


@pytest.fixture(scope="module", autouse=True)
def _asked_for_what_nobody_knows(back_office: BackOffice) -> None:
    back_office.ask("RefundRequested", **UNSEEN, reason="no such debit")


def test_an_event_on_the_bus_refunds_a_settled_debit(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P9: and the back office hears of it in the queue that it subscribed with a rule."""
    sent = _settled(agent, back_office, phone, 250)

    back_office.ask("RefundRequested", **_original(sent), reason="wrong amount")

    told = back_office.hear("RefundCompleted", idempotencyKey=sent["idempotencyKey"])
    assert (told["refundId"], told["amount"], told["currency"]) == ("full", 250, "KES")
    assert (told["agentId"], told["phone"]) == (agent.agent_id, phone)
    assert told["balanceAfter"] == back_office.balance(phone) == 250
    view = agent.became(sent["idempotencyKey"], "refunded")
    assert (view["amount"], view["refunded"]) == (250, 250)


def test_of_two_60s_at_once_on_a_100_exactly_one_completes(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P4: the other is told what remains, and takes nothing."""
    sent = _settled(agent, back_office, phone, 100)

    with away(stack, "refund"):
        for refund_id in ("one", "two"):
            _ask(back_office, sent, refundId=refund_id, amount=60)
        waiting(stack, stack.output("RefundQueueUrl"), phone, 2)

    completed = back_office.hear("RefundCompleted", idempotencyKey=sent["idempotencyKey"])
    rejected = back_office.hear("RefundRejected", idempotencyKey=sent["idempotencyKey"])
    assert {completed["refundId"], rejected["refundId"]} == {"one", "two"}
    assert (rejected["reason"], rejected["remaining"]) == ("EXCEEDS_ORIGINAL", 40)
    assert back_office.balance(phone) == 60
    view = agent.status(sent["idempotencyKey"]).json()
    assert (view["status"], view["refunded"]) == ("partially_refunded", 60)


def test_a_60_by_the_agent_and_a_60_by_the_back_office_are_never_both_paid(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P4, and the agent's request ends whichever came first."""
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]

    _ask(back_office, sent, refundId="office", amount=60)
    asked = agent.refund(key, refundId="agent", amount=60)

    assert asked.status_code in (202, 409), asked.text
    back_office.hear("RefundCompleted", idempotencyKey=key)
    if asked.status_code == 202:
        back_office.hear("RefundRejected", idempotencyKey=key, reason="EXCEEDS_ORIGINAL")
    assert agent.became(key, "partially_refunded")["refunded"] == 60
    assert back_office.balance(phone) == 60


def test_a_full_refund_under_three_ids_is_paid_once(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C14: the others are rejected with what remains, which is nothing."""
    sent = _settled(agent, back_office, phone, 100)

    for refund_id in ("first", "second", "third"):
        _ask(back_office, sent, refundId=refund_id)

    key = sent["idempotencyKey"]
    assert back_office.hear("RefundCompleted", idempotencyKey=key)["refundId"] == "first"
    for refund_id in ("second", "third"):
        told = back_office.hear("RefundRejected", idempotencyKey=key, refundId=refund_id)
        assert (told["reason"], told["remaining"]) == ("EXCEEDS_ORIGINAL", 0)
    assert back_office.balance(phone) == 100


def test_two_refunds_of_two_debits_reach_one_wallet(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C13: 500, and 100 and 50 come back: 650."""
    back_office.fund(phone, 650)
    debits = [agent.transaction(phone, 100), agent.transaction(phone, 50)]
    agent.batch(*debits)
    for sent in debits:
        agent.became(sent["idempotencyKey"], "synced")
    assert back_office.balance(phone) == 500

    for sent in debits:
        _ask(back_office, sent)

    for sent in debits:
        agent.became(sent["idempotencyKey"], "refunded")
    assert back_office.balance(phone) == 650


def test_one_request_delivered_twice_is_one_refund(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C37: the same message, and the same request in an event of its own, change nothing."""
    sent = _settled(agent, back_office, phone, 100)
    with away(stack, "refund"):
        _ask(back_office, sent, refundId="once", amount=30)
        (body,) = waiting(stack, stack.output("RefundQueueUrl"), phone, 1)
    back_office.hear("RefundCompleted", idempotencyKey=sent["idempotencyKey"])

    _send(stack, phone, body)
    _ask(back_office, sent, refundId="once", amount=30)
    _after_every_refund_before(back_office, sent)

    assert back_office.balance(phone) == 30
    assert agent.status(sent["idempotencyKey"]).json()["refunded"] == 30


def test_partial_refunds_add_up_to_the_original_and_no_further(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]

    for refund_id, amount in (("a", 60), ("b", 39), ("c", 1)):
        assert agent.refund(key, refundId=refund_id, amount=amount).status_code == 202
        back_office.hear("RefundCompleted", idempotencyKey=key, refundId=refund_id)

    view = agent.became(key, "refunded")
    assert view["refunded"] == 100
    assert back_office.balance(phone) == 100
    _ask(back_office, sent, refundId="d", amount=1)
    told = back_office.hear("RefundRejected", idempotencyKey=key, refundId="d")
    assert (told["reason"], told["remaining"]) == ("EXCEEDS_ORIGINAL", 0)


def test_a_full_refund_before_settlement_cancels_and_nothing_is_debited(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P7: the debit's message arrives afterwards, and finds it cancelled."""
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 70)
    key = sent["idempotencyKey"]
    with away(stack, "reconcile"):
        agent.submit(sent)
        waiting(stack, stack.output("TxQueueUrl"), phone, 1)

        answer = agent.refund(key, refundId="changed-mind")

        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        again = agent.refund(key, refundId="changed-mind")
        assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
        back_office.hear("TransactionCancelled", idempotencyKey=key)
        told = back_office.hear("RefundCompleted", idempotencyKey=key)
        assert (told["refundId"], told["cancelled"], told["amount"]) == ("changed-mind", True, 70)

    _after_every_debit_before(agent, phone)
    assert back_office.balance(phone) == 99
    assert agent.status(key).json()["status"] == "cancelled"
    other = agent.refund(key, refundId="another")
    assert (other.status_code, other.json()["reason"]) == (409, "NOTHING_TO_REFUND")


def test_an_event_that_overtakes_its_debit_cancels_it_too(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 70)
    with away(stack, "reconcile"):
        agent.submit(sent)
        _ask(back_office, sent, refundId="early")
        told = back_office.hear("RefundCompleted", idempotencyKey=sent["idempotencyKey"])
        assert (told["refundId"], told["cancelled"]) == ("early", True)

    _after_every_debit_before(agent, phone)
    assert back_office.balance(phone) == 99
    assert agent.status(sent["idempotencyKey"]).json()["status"] == "cancelled"


def test_a_part_of_what_is_not_settled_is_refused_for_now_and_taken_later(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 100)
    key = sent["idempotencyKey"]
    with away(stack, "reconcile"):
        agent.submit(sent)
        answer = agent.refund(key, refundId="part", amount=40)
        assert (answer.status_code, answer.json()["code"]) == (409, "NOT_REFUNDABLE")
        assert answer.json()["retryable"] is True
    assert agent.became(key, "synced")

    assert agent.refund(key, refundId="part", amount=40).status_code == 202

    assert agent.became(key, "partially_refunded")["refunded"] == 40
    assert back_office.balance(phone) == 40


def test_an_event_for_a_part_waits_until_its_debit_is_settled(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 100)
    with away(stack, "reconcile"):
        agent.submit(sent)
        waiting(stack, stack.output("TxQueueUrl"), phone, 1)
        _ask(back_office, sent, refundId="part", amount=40)
        eventually(lambda: _given_back(stack, phone), "the refund that waits for its debit")
        assert agent.status(sent["idempotencyKey"]).json()["status"] == "queued"

    told = back_office.hear("RefundCompleted", idempotencyKey=sent["idempotencyKey"])
    assert (told["amount"], told["balanceAfter"]) == (40, 40)


def test_an_agents_refund_is_taken_pending_and_then_done(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P5: 202, one at a time, replays of it, and `refunded` in the end."""
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]
    with away(stack, "refund"):
        first = agent.refund(key, refundId="r-1", amount=100)
        assert (first.status_code, first.json()["status"]) == (202, "refund_requested")
        other = agent.refund(key, refundId="r-2", amount=1)
        assert (other.status_code, other.json()["code"]) == (409, "REFUND_IN_PROGRESS")
        assert other.json()["retryable"] is True
        pending = agent.refund(key, refundId="r-1", amount=100)
        assert (pending.status_code, pending.json()["status"]) == (200, "refund_requested")
        assert pending.headers["Idempotent-Replayed"] == "true"
        assert back_office.balance(phone) == 0

    assert agent.became(key, "refunded")["refunded"] == 100
    done = agent.refund(key, refundId="r-1", amount=100)
    assert (done.status_code, done.json()["status"]) == (200, "refunded")
    assert done.headers["Idempotent-Replayed"] == "true"
    reused = agent.refund(key, refundId="r-1", amount=99)
    assert (reused.status_code, reused.json()["code"]) == (422, "KEY_REUSED")
    assert [error["field"] for error in reused.json()["errors"]] == ["amount"]
    assert back_office.balance(phone) == 100


def test_a_pending_refund_of_the_agent_survives_one_of_the_back_office(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]
    with away(stack, "refund"):
        _ask(back_office, sent, refundId="office", amount=30)
        waiting(stack, stack.output("RefundQueueUrl"), phone, 1)
        assert agent.refund(key, refundId="agent", amount=50).status_code == 202

    back_office.hear("RefundCompleted", idempotencyKey=key, refundId="office")
    back_office.hear("RefundCompleted", idempotencyKey=key, refundId="agent")
    assert agent.became(key, "partially_refunded")["refunded"] == 80
    assert back_office.balance(phone) == 80


def test_a_refund_id_that_is_used_again_for_another_amount_is_rejected(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]
    _ask(back_office, sent, refundId="id", amount=10)
    back_office.hear("RefundCompleted", idempotencyKey=key)

    _ask(back_office, sent, refundId="id", amount=20)

    told = back_office.hear("RefundRejected", idempotencyKey=key, refundId="id")
    assert (told["reason"], told["amount"]) == ("KEY_REUSED", 20)
    assert back_office.balance(phone) == 10


def test_what_was_never_debited_is_not_refunded(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C19: neither a refused debit, nor a refund."""
    back_office.fund(phone, 10)
    sent = agent.transaction(phone, 11)
    key = sent["idempotencyKey"]
    agent.submit(sent)
    assert agent.ended(key)["status"] == "failed"

    answer = agent.refund(key)
    _ask(back_office, sent)

    assert (answer.status_code, answer.json()["code"]) == (409, "NOT_REFUNDABLE")
    assert (answer.json()["reason"], answer.json()["retryable"]) == ("NOTHING_TO_REFUND", False)
    told = back_office.hear("RefundRejected", idempotencyKey=key)
    assert told["reason"] == "NOTHING_TO_REFUND"
    assert agent.refund(f"refund%23{agent.agent_id}%23{key}%23full").status_code == 404
    assert back_office.balance(phone) == 10
    assert agent.status(key).json()["status"] == "failed"


def test_an_agent_refunds_only_its_own(
    agent: Agent, other_agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C04, P11: another agent's key is answered like an unknown one."""
    sent = _settled(agent, back_office, phone, 100)

    foreign = other_agent.refund(sent["idempotencyKey"])
    unknown = other_agent.refund("never-used")

    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json() == unknown.json()
    assert agent.status(sent["idempotencyKey"]).json()["status"] == "synced"


@pytest.mark.parametrize("amount", [0, -1, 1.5, "60", True, 10**12 + 1])
def test_an_amount_that_is_none_is_refused_before_anything_is_written(
    agent: Agent, back_office: BackOffice, phone: str, amount: Any
) -> None:
    sent = _settled(agent, back_office, phone, 100)

    answer = agent.refund(sent["idempotencyKey"], amount=amount)

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_FAILED")
    assert agent.status(sent["idempotencyKey"]).json()["status"] == "synced"


def test_more_than_remains_is_refused_with_what_remains(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]
    assert agent.refund(key, refundId="most", amount=70).status_code == 202
    agent.became(key, "partially_refunded")

    answer = agent.refund(key, refundId="more", amount=31)

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "NOT_REFUNDABLE")
    assert (problem["reason"], problem["retryable"]) == ("EXCEEDS_ORIGINAL", False)
    assert "30 minor units remain" in problem["detail"]
    assert back_office.balance(phone) == 70


@pytest.mark.parametrize("lie", ["phone", "currency"])
def test_a_request_that_does_not_fit_its_original_is_rejected(
    agent: Agent, back_office: BackOffice, phone: str, lie: str
) -> None:
    sent = _settled(agent, back_office, phone, 100)
    other = f"254713{phone[6:]}"

    _ask(back_office, sent, **{lie: {"phone": other, "currency": "USD"}[lie]}, refundId="lie")

    told = back_office.hear("RefundRejected", idempotencyKey=sent["idempotencyKey"])
    assert told["reason"] == "MISMATCH"
    assert (back_office.balance(phone), back_office.balance(other)) == (0, None)
    _ask(back_office, sent, refundId="truth")
    agent.became(sent["idempotencyKey"], "refunded")


def test_a_frozen_wallet_takes_refunds(agent: Agent, back_office: BackOffice, phone: str) -> None:
    sent = _settled(agent, back_office, phone, 100)
    back_office.change_status(phone, "frozen")

    assert agent.refund(sent["idempotencyKey"]).status_code == 202

    agent.became(sent["idempotencyKey"], "refunded")
    wallet = back_office.wallet(phone)
    assert wallet is not None
    assert (wallet["balance"], wallet["status"]) == (100, "frozen")


def test_a_lost_request_is_put_on_the_bus_again_by_the_sweep(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P5, P8: an agent's refund that got lost on its way is still owed, and still done once."""
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]
    with _bus_edge_cut_off(stack):
        assert agent.refund(key).status_code == 202
        back_office.hear("RefundRequested", idempotencyKey=key)
    assert agent.status(key).json()["status"] == "refund_requested"
    make_due(stack, agent, key)

    sweep(stack)

    assert agent.became(key, "refunded")["refunded"] == 100
    assert back_office.balance(phone) == 100


def test_the_same_request_for_another_phone_does_not_end_a_pending_one(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P5: it is answered for the phone that it names, and the agent's is still owed."""
    sent = _settled(agent, back_office, phone, 100)
    key = sent["idempotencyKey"]
    with _bus_edge_cut_off(stack):
        assert agent.refund(key).status_code == 202
        back_office.hear("RefundRequested", idempotencyKey=key)

    other = f"254713{phone[6:]}"
    _ask(back_office, sent, phone=other)

    told = back_office.hear("RefundRejected", idempotencyKey=key)
    assert (told["reason"], told["phone"]) == ("MISMATCH", other)
    assert agent.status(key).json()["status"] == "refund_requested"
    make_due(stack, agent, key)
    sweep(stack)
    assert agent.became(key, "refunded")["refunded"] == 100


def test_a_request_that_nobody_can_read_is_kept_and_blocks_no_refund(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    sent = _settled(agent, back_office, phone, 100)

    _send(stack, phone, f"poison {phone}")
    _ask(back_office, sent, amount=0)
    _ask(back_office, sent, amount="100")
    _ask(back_office, sent)

    agent.became(sent["idempotencyKey"], "refunded")
    letter_with(stack, f"poison {phone}", source="RefundQueue")
    letter_with(stack, '"amount": 0', source="Inbox")
    letter_with(stack, '"amount": "100"', source="Inbox")
    assert back_office.balance(phone) == 100


def test_a_refund_of_what_nobody_accepted_is_tried_again_and_then_rejected(
    stack: Stack, back_office: BackOffice
) -> None:
    """C37: neither acknowledged and lost, nor for ever in the way of its phone."""
    told = back_office.hear(
        "RefundRejected", UNSEEN_WITHIN_S, idempotencyKey=UNSEEN["idempotencyKey"]
    )

    assert told["reason"] == "ORIGINAL_NOT_FOUND"
    assert back_office.balance(UNSEEN["phone"]) is None
    waits = [line for group, line in log_lines(stack) if "ORIGINAL_NOT_FOUND" in line]
    assert len([line for line in waits if "unfinished" in line]) >= 2


def test_the_books_keep_every_promise_with_refunds_in_them(stack: Stack) -> None:
    """P1 to P6, P8, P9, and P4 has something to look at; P12."""
    verdict = json.loads(wakala("audit", "--json").stdout)

    assert verdict["ok"] is True
    checked = {promise["id"]: promise["checked"] for promise in verdict["promises"]}
    assert checked["P4"] > 0
    for failure in ("unfinished", "violated"):
        assert not letters(stack, source="RefundQueue", failure=failure)
    lines = list(log_lines(stack))
    assert [line for group, line in lines if group.endswith("-refund")]
    assert not [group for group, line in lines if "254712" in line or "254713" in line]


def _settled(agent: Agent, back_office: BackOffice, phone: str, amount: int) -> dict[str, Any]:
    """A debit of all that is in a wallet."""
    back_office.fund(phone, amount)
    sent = agent.transaction(phone, amount)
    agent.submit(sent)
    agent.became(sent["idempotencyKey"], "synced")
    return sent


def _original(sent: dict[str, Any]) -> dict[str, Any]:
    return {name: sent[name] for name in ("agentId", "idempotencyKey", "phone")}


def _ask(back_office: BackOffice, sent: dict[str, Any], **members: Any) -> None:
    detail = _original(sent) | {"reason": "wrong amount"} | members
    back_office.ask("RefundRequested", **detail)


def _send(stack: Stack, phone: str, body: str) -> None:
    stack.sqs.send_message(
        QueueUrl=stack.output("RefundQueueUrl"),
        MessageBody=body,
        MessageGroupId=phone,
        MessageDeduplicationId=str(uuid.uuid4()),
    )


def _after_every_refund_before(back_office: BackOffice, sent: dict[str, Any]) -> None:
    """One more that cannot be: its group is in order, so what came before it is decided."""
    refund_id = str(uuid.uuid4())
    _ask(back_office, sent, refundId=refund_id, amount=10**12)
    back_office.hear("RefundRejected", refundId=refund_id)


def _after_every_debit_before(agent: Agent, phone: str) -> None:
    last = agent.transaction(phone, 1)
    agent.submit(last)
    assert agent.ended(last["idempotencyKey"])["status"] == "synced"


def _given_back(stack: Stack, phone: str) -> bool | None:
    """Whether refund has looked at the phone's message and let it rest."""
    lines = [line for group, line in log_lines(stack) if group.endswith("-refund")]
    return any("NOT_SETTLED" in line for line in lines) or None


@contextmanager
def _bus_edge_cut_off(stack: Stack) -> Iterator[None]:
    """What is put on the bus meanwhile reaches no refund, and is lost."""
    bus = stack.output("EventBusName")
    rules = stack.events.list_rules(EventBusName=bus)["Rules"]
    name = next(rule["Name"] for rule in rules if "RefundRequested" in rule.get("EventPattern", ""))
    stack.events.disable_rule(Name=name, EventBusName=bus)
    try:
        yield
    finally:
        stack.events.enable_rule(Name=name, EventBusName=bus)
