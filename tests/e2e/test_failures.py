"""The deployed stack when queues lose, repeat and garble, and functions are away."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.actors import Agent, BackOffice, eventually, letters, wakala
from wakala.stack import Stack


def test_a_message_delivered_again_changes_nothing(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C01, C11, C32, C39: a redelivery long after settlement, past every dedup window."""
    back_office.fund(phone, 100)
    good, bad = agent.transaction(phone, 60), agent.transaction(phone, 60)
    with reconcile_away(stack):
        agent.batch(good, bad)
        copies = eventually(lambda: _peek(stack, phone, 2), "both messages in the queue")
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
    letters(stack, stack.output("DeliveryFailuresUrl"))

    _send(stack, phone, f"poison {phone}")

    _after_everything_before(agent, back_office, phone)
    kept = letters(stack, stack.output("DeliveryFailuresUrl"))
    assert [letter["record"]["body"] for letter in kept] == [f"poison {phone}"]


def test_a_lost_message_is_sent_again_by_the_sweep(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P5, C23."""
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 100)
    with reconcile_away(stack):
        agent.submit(sent)
        eventually(lambda: _peek(stack, phone, 1), "the message in the queue")
        stack.sqs.purge_queue(QueueUrl=stack.output("TxQueueUrl"))
    assert agent.status(sent["idempotencyKey"]).json()["status"] == "queued"
    _make_due(stack, agent, sent["idempotencyKey"])

    _sweep(stack)

    assert agent.ended(sent["idempotencyKey"])["status"] == "synced"
    assert back_office.balance(phone) == 0


def test_what_stays_open_too_long_expires_and_is_told_once(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C23: and a message that turns up after that debits nothing."""
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 100)
    with reconcile_away(stack):
        agent.submit(sent)
        eventually(lambda: _peek(stack, phone, 1), "the message in the queue")
        _make_due(stack, agent, sent["idempotencyKey"], expires_at_s=1)
        _sweep(stack)
        _sweep(stack)
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
    logs = stack.session.client("logs")
    groups = logs.describe_log_groups(logGroupNamePrefix=f"/aws/lambda/{stack.name}")["logGroups"]
    lines = 0
    for group in groups:
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=group["logGroupName"])
        for page in pages:
            for event in page["events"]:
                lines += 1
                assert "254712" not in event["message"], group["logGroupName"]
    assert lines > 100


@contextmanager
def reconcile_away(stack: Stack) -> Iterator[None]:
    """Reconcile takes nothing from its queue meanwhile."""
    client = stack.session.client("lambda")
    mapping = client.list_event_source_mappings(FunctionName=f"{stack.name}-reconcile")
    uuid_ = mapping["EventSourceMappings"][0]["UUID"]
    client.update_event_source_mapping(UUID=uuid_, Enabled=False)
    try:
        yield
    finally:
        client.update_event_source_mapping(UUID=uuid_, Enabled=True)


def _peek(stack: Stack, phone: str, count: int) -> list[str] | None:
    """The bodies of a phone's messages, left in the queue."""
    answer = stack.sqs.receive_message(
        QueueUrl=stack.output("TxQueueUrl"), MaxNumberOfMessages=10, VisibilityTimeout=0
    )
    bodies = [message["Body"] for message in answer.get("Messages", [])]
    ours = [body for body in bodies if phone in body]
    return ours if len(ours) == count else None


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


def _make_due(stack: Stack, agent: Agent, key: str, **attributes: int) -> None:
    values: dict[str, Any] = {":at": {"N": "1"}}
    update = "SET nextSweepAt = :at"
    if "expires_at_s" in attributes:
        values[":expires"] = {"N": str(attributes["expires_at_s"])}
        update += ", expiresAt = :expires"
    stack.dynamodb.update_item(
        TableName=stack.output("OfflineTxTable"),
        Key={"agentId": {"S": agent.agent_id}, "idempotencyKey": {"S": key}},
        UpdateExpression=update,
        ExpressionAttributeValues=values,
    )


def _sweep(stack: Stack) -> None:
    client = stack.session.client("lambda")
    answer = client.invoke(FunctionName=f"{stack.name}-sweep", Payload=b"{}")
    assert "FunctionError" not in answer
