"""The deployed stack when queues lose, repeat and garble, and functions are away."""

import json
import uuid

from tests.e2e.actors import (
    Agent,
    BackOffice,
    away,
    letter_with,
    log_lines,
    make_due,
    sweep,
    waiting,
    wakala,
)
from wakala.stack import Stack


def test_a_message_delivered_again_changes_nothing(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C01, C11, C32, C39: a redelivery long after settlement, past every dedup window."""
    back_office.fund(phone, 100)
    good, bad = agent.transaction(phone, 60), agent.transaction(phone, 60)
    with away(stack, "reconcile"):
        agent.batch(good, bad)
        copies = waiting(stack, stack.output("TxQueueUrl"), phone, 2)
    assert agent.ended(good["idempotencyKey"])["status"] == "synced"
    assert agent.ended(bad["idempotencyKey"])["status"] == "failed"
    back_office.fund(phone, 1_000)

    for body in copies * 2:
        _send(stack, phone, body)
    _after_everything_before(agent, back_office, phone)

    assert back_office.balance(phone) == 1_039
    assert agent.status(bad["idempotencyKey"]).json()["status"] == "failed"


def test_a_message_that_nobody_can_read_is_kept_and_does_not_block_its_phone(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)

    _send(stack, phone, f"poison {phone}")

    _after_everything_before(agent, back_office, phone)
    kept = letter_with(stack, phone, source="TxQueue", **{"class": "POISON"})
    assert (kept["body"], kept["group"]) == (f"poison {phone}", phone)


def test_a_lost_message_is_sent_again_by_the_sweep(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P5, C23."""
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 100)
    with away(stack, "reconcile"):
        agent.submit(sent)
        waiting(stack, stack.output("TxQueueUrl"), phone, 1)
        stack.sqs.purge_queue(QueueUrl=stack.output("TxQueueUrl"))
    assert agent.status(sent["idempotencyKey"]).json()["status"] == "queued"
    make_due(stack, agent, sent["idempotencyKey"])

    sweep(stack)

    assert agent.ended(sent["idempotencyKey"])["status"] == "synced"
    assert back_office.balance(phone) == 0


def test_what_stays_open_too_long_expires_and_is_told_once(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C23: and a message that turns up after that debits nothing."""
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 100)
    with away(stack, "reconcile"):
        agent.submit(sent)
        waiting(stack, stack.output("TxQueueUrl"), phone, 1)
        make_due(stack, agent, sent["idempotencyKey"], expires_at_s=1)
        sweep(stack)
        sweep(stack)
        back_office.hear("TransactionExpired", idempotencyKey=sent["idempotencyKey"])

    _after_everything_before(agent, back_office, phone)
    assert agent.status(sent["idempotencyKey"]).json()["status"] == "expired"
    assert back_office.balance(phone) == 99


def test_the_books_keep_every_promise_after_all_of_this(stack: Stack, agent: Agent) -> None:
    """P1-P6, P8, P9, and the audit looks at something."""
    wakala("demo")
    verdict = json.loads(wakala("audit", "--json").stdout)

    assert verdict["ok"] is True
    assert all(promise["ok"] and not promise["violations"] for promise in verdict["promises"])
    assert {promise["id"] for promise in verdict["promises"]} >= {"P1", "P2", "P3", "P5", "P6"}
    assert all(promise["checked"] > 0 for promise in verdict["promises"] if promise["id"] != "P4")


def test_no_phone_gets_into_a_log(stack: Stack) -> None:
    """P12, C49: the whole suite's phones begin alike; no log line of any function holds one."""
    lines = list(log_lines(stack))
    assert not [group for group, line in lines if "254712" in line]
    assert len(lines) > 100


def _send(stack: Stack, phone: str, body: str) -> None:
    stack.sqs.send_message(
        QueueUrl=stack.output("TxQueueUrl"),
        MessageBody=body,
        MessageGroupId=phone,
        MessageDeduplicationId=str(uuid.uuid4()),
    )


def _after_everything_before(agent: Agent, back_office: BackOffice, phone: str) -> None:
    """One more debit of the phone: its group is in order, so what came before it is done."""
    last = agent.transaction(phone, 1)
    agent.submit(last)
    assert agent.ended(last["idempotencyKey"])["status"] == "synced"
