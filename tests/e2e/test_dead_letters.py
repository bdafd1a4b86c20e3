"""The deployed stack when what was accepted cannot be done, and somebody has to look after it."""

import base64
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.actors import (
    Agent,
    BackOffice,
    ask_desk,
    away,
    eventually,
    letter_with,
    letters,
    log_lines,
    revealed,
    waiting,
    wakala,
)
from wakala.stack import Stack


def test_what_a_bad_deployment_left_behind_is_redriven_as_a_group(
    stack: Stack, agent: Agent, other_agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """The runbook's way: seen as one group, masked, held; mended; redriven; each debit once."""
    back_office.fund(phone, 1_000)
    sent = [
        (who, who.transaction(phone, amount, idempotencyKey=f"{phone}-{who.agent_id}-{amount}"))
        for who in (agent, other_agent)
        for amount in (10, 20, 30)
    ]
    with clock_stopped(stack):
        with impatient(stack, "TxQueueUrl"), broken(stack, "reconcile"):
            for who, transaction in sent:
                assert who.submit(transaction).status_code == 202
            held = [_held(stack, who, transaction) for who, transaction in sent]

        assert {who.status(key(it)).json()["status"] for who, it in sent} == {"queued"}
        assert {(it["class"], it["source"]) for it in held} == {("NEVER_RAN", "TxQueue")}
        (group,) = {letter["fingerprint"] for letter in held}
        listed = wakala("dead-letters", "list", "--group", group, "--all", "--json").stdout
        assert all(letter["letterId"] in listed for letter in held)
        assert phone not in listed
        would = json.loads(_redrive(group, "--dry-run"))["results"]
        assert {it["letterId"]: it["outcome"] for it in would} == {
            letter["letterId"]: "redriven" for letter in held
        }
        assert {who.status(key(it)).json()["status"] for who, it in sent} == {"queued"}

        _redrive(group)
        _redrive(group)

    for who, transaction in sent:
        assert who.ended(key(transaction))["status"] == "synced"
    assert back_office.balance(phone) == 1_000 - 2 * (10 + 20 + 30)
    for letter in held:
        told = ask_desk(stack, "show", letterId=letter["letterId"])["letter"]
        assert told["status"] == "redriven"
        assert "redriven" in [line["what"] for line in told["history"]]
        back_office.hear("DeadLetterTriaged", letterId=letter["letterId"], status="redriven")
    assert json.loads(wakala("audit", "--json").stdout)["ok"] is True


def test_a_bug_is_told_with_its_place_and_parked(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """A balance row that nobody could have written: reconcile raises, and says where."""
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 60)
    with receives_max(stack, "reconcile", 1), balance_status(stack, phone, "odd"):
        agent.submit(sent)
        letter = _held(stack, agent, sent)

    assert (letter["class"], letter["verdict"], letter["status"]) == ("BUG", "parked", "parked")
    assert (letter["why"], letter["failure"]) == ("ValueError", "violated")
    assert letter["place"] == "items.py read_wallet"
    back_office.hear("TransactionHeld", idempotencyKey=key(sent))

    done = wakala("dead-letters", "redrive", letter["letterId"], "--why", "row mended", "--json")

    assert "redriven" in done.stdout
    assert agent.ended(key(sent))["status"] == "synced"
    assert back_office.balance(phone) == 40


def test_the_clock_redrives_by_itself_what_never_ran(
    stack: Stack, back_office: BackOffice, phone: str
) -> None:
    """A credit: it is in no table until it is posted, so its letter is all there is of it."""
    back_office.change_status(phone, "active")
    credit_id = str(uuid.uuid4())
    with impatient(stack, "TxQueueUrl"), broken(stack, "reconcile"):
        back_office.ask(
            "WalletCreditRequested", phone=phone, amount=70, source="bank", creditId=credit_id
        )
        letter = letter_with(stack, credit_id, source="TxQueue")
    assert (letter["class"], letter["verdict"]) == ("NEVER_RAN", "auto_redrive")
    _make_due(stack, letter)

    ask_desk(stack, "due")

    eventually(lambda: back_office.balance(phone) == 70 or None, "the credit")
    told = ask_desk(stack, "show", letterId=letter["letterId"])["letter"]
    assert (told["status"], told["budget"]["automatic"]) == ("redriven", 1)


def test_a_discarded_transaction_is_refused_for_good(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 60)
    letter = _die(stack, agent, sent)

    wakala("dead-letters", "discard", letter["letterId"], "--why", "asked by the agent", "--json")

    told = agent.ended(key(sent))
    assert (told["status"], told["reason"]) == ("failed", "DISCARDED")
    back_office.hear("TransactionFailed", idempotencyKey=key(sent), reason="DISCARDED")
    again = wakala("dead-letters", "redrive", letter["letterId"], "--why", "x", check=False)
    assert "already_terminal" in again.stdout + again.stderr
    assert agent.submit(sent).json()["status"] == "failed"
    assert back_office.balance(phone) == 100


def test_a_held_transaction_can_be_cancelled_and_its_letter_closes(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 60)
    letter = _die(stack, agent, sent)

    assert agent.refund(key(sent)).json()["status"] == "cancelled"
    _make_due(stack, letter)
    ask_desk(stack, "due")

    told = ask_desk(stack, "show", letterId=letter["letterId"])["letter"]
    assert told["status"] == "closed"
    assert back_office.balance(phone) == 100


def test_a_letter_of_what_is_settled_closes_by_itself(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C11, C48: and redriving it moves nothing."""
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 60)
    with away(stack, "reconcile"):
        agent.submit(sent)
        (body,) = waiting(stack, stack.output("TxQueueUrl"), phone, 1)
    agent.ended(key(sent))

    _put(stack, "TxDlqUrl", body, phone)

    letter = letter_with(stack, key(sent), source="TxQueue")
    assert (letter["class"], letter["status"]) == ("NEVER_RAN", "closed")
    tried = {"letterIds": [letter["letterId"]], "who": "e2e", "why": "to see"}
    assert ask_desk(stack, "redrive", **tried)["results"][0]["outcome"] == "already_terminal"
    assert "already terminal" in revealed(stack, letter)["history"][-2]["what"]
    assert back_office.balance(phone) == 40


def test_a_refund_that_its_queue_gave_up_is_redriven_once(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)
    sent = agent.transaction(phone, 60)
    agent.submit(sent)
    agent.ended(key(sent))
    refund = {"agentId": sent["agentId"], "idempotencyKey": key(sent), "phone": phone}
    refund |= {"v": 1, "refundId": "by-hand", "reason": "wrong shop", "requestedBy": "desk"}
    _put(stack, "RefundDlqUrl", json.dumps(refund), phone)
    letter = letter_with(stack, key(sent), source="RefundQueue")

    tried = {"letterIds": [letter["letterId"]], "who": "e2e", "why": "to see"}
    outcomes = [ask_desk(stack, "redrive", **tried)["results"][0]["outcome"] for _ in range(2)]

    assert outcomes == ["redriven", "already_redriven"]
    back_office.hear("RefundCompleted", idempotencyKey=key(sent), refundId="by-hand")
    assert back_office.balance(phone) == 100


def test_what_the_inbox_gave_up_goes_back_to_it_and_counts_once(
    stack: Stack, back_office: BackOffice, phone: str
) -> None:
    """SQS says whose message it was; here to who receives it, on AWS to functions as well."""
    back_office.change_status(phone, "active")
    credit_id = str(uuid.uuid4())
    with clock_stopped(stack):
        with untaken(stack, "DeliveryFailures"):
            with impatient(stack, "InboxQueueUrl"), broken(stack, "ingest-bus"):
                back_office.ask(
                    "WalletCreditRequested",
                    phone=phone,
                    amount=70,
                    source="bank",
                    creditId=credit_id,
                )
                record = _received(stack, "DeliveryFailuresUrl", credit_id)
            _hand_over(stack, record)
        letter = letter_with(stack, credit_id, source="Inbox")
        assert (letter["class"], letter["failure"]) == ("NEVER_RAN", "unexplained")
        assert letter["status"] == "waiting"

        tried = {"letterIds": [letter["letterId"]], "who": "e2e", "why": "mended"}
        outcomes = [ask_desk(stack, "redrive", **tried)["results"][0]["outcome"] for _ in range(2)]

    assert outcomes == ["redriven", "already_redriven"]
    eventually(lambda: back_office.balance(phone) == 70 or None, "the credit")
    back_office.fund(phone, 5)
    assert back_office.balance(phone) == 75
    told = ask_desk(stack, "show", letterId=letter["letterId"])["letter"]
    assert [line["what"] for line in told["history"]][-2:] == ["sending", "redriven"]


def test_whatever_falls_into_the_letter_queue_is_kept_and_shown_masked(
    stack: Stack, phone: str
) -> None:
    """C49."""
    encoded = base64.b64encode(phone.encode()).decode()
    bodies = {
        encoded,
        f"{{bad {phone}",
        "null",
        "[]",
        f'"call {phone}"',
        "[" * 100_000,
        json.dumps({"phone": phone, "amount": int(phone), "note": phone}),
    }
    before = {letter["letterId"] for letter in letters(stack, failure="unrecognised")}
    for body in bodies:
        _put(stack, "DeliveryFailuresUrl", body, None)

    def look() -> list[dict[str, Any]] | None:
        found = letters(stack, failure="unrecognised")
        new = [each for each in found if each["letterId"] not in before]
        return new if len(new) == len(bodies) else None

    kept = eventually(look, "a letter for each")
    assert {(letter["class"], letter["status"]) for letter in kept} == {("POISON", "parked")}
    masked = [ask_desk(stack, "show", letterId=letter["letterId"]) for letter in kept]
    assert not [shown for shown in masked if phone in json.dumps(shown)]
    assert not [
        shown for shown in masked if base64.b64encode(phone.encode()).decode() in str(shown)
    ]
    unmasked = [revealed(stack, letter) for letter in kept]
    assert {shown["body"] for shown in unmasked} == bodies
    assert {shown["history"][-1]["what"] for shown in unmasked} == {"revealed"}
    ids = [letter["letterId"] for letter in kept]
    done = ask_desk(stack, "discard", letterIds=ids, who="e2e", why="a test's")["results"]
    assert {result["outcome"] for result in done} == {"discarded"}


def test_no_phone_gets_into_a_log_of_triage(stack: Stack, phone: str) -> None:
    """P12, C49."""
    _put(stack, "DeliveryFailuresUrl", json.dumps({"phone": phone, "note": f"call {phone}"}), None)
    letter = letter_with(stack, phone, failure="unrecognised")
    discarded = {"letterIds": [letter["letterId"]], "who": "e2e", "why": "a test's"}
    assert ask_desk(stack, "discard", **discarded)["results"][0]["outcome"] == "discarded"

    lines = [(group, line) for group, line in log_lines(stack) if "-triage" in group]
    assert {group for group, line in lines if letter["letterId"] in line} == {
        f"/aws/lambda/{stack.name}-triage",
        f"/aws/lambda/{stack.name}-triage-desk",
    }
    assert not [group for group, line in lines if "254712" in line]


def key(transaction: dict[str, Any]) -> str:
    """Of a request that was sent."""
    return str(transaction["idempotencyKey"])


@contextmanager
def clock_stopped(stack: Stack) -> Iterator[None]:
    """No minute's run of the desk meanwhile: who redrives is a person."""
    names = [rule["Name"] for rule in stack.events.list_rules()["Rules"]]
    (name,) = [each for each in names if each.startswith(f"{stack.name}-TriageDesk")]
    stack.events.disable_rule(Name=name)
    try:
        yield
    finally:
        stack.events.enable_rule(Name=name)


@contextmanager
def untaken(stack: Stack, queue: str) -> Iterator[None]:
    """Triage takes nothing from this queue meanwhile."""
    client = stack.session.client("lambda")
    mappings = client.list_event_source_mappings(FunctionName=f"{stack.name}-triage")
    (mapping,) = [
        each["UUID"]
        for each in mappings["EventSourceMappings"]
        if each["EventSourceArn"].endswith(f"-{queue}")
    ]
    client.update_event_source_mapping(UUID=mapping, Enabled=False)
    try:
        yield
    finally:
        client.update_event_source_mapping(UUID=mapping, Enabled=True)


@contextmanager
def impatient(stack: Stack, queue: str) -> Iterator[None]:
    """The queue gives a message up after one receive of a second, not after many of a minute."""
    url = stack.output(queue)
    names: Any = ["VisibilityTimeout", "RedrivePolicy"]
    before = stack.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    policy = json.loads(before["RedrivePolicy"]) | {"maxReceiveCount": 1}
    quick: Any = {"VisibilityTimeout": "1", "RedrivePolicy": json.dumps(policy)}
    stack.sqs.set_queue_attributes(QueueUrl=url, Attributes=quick)
    try:
        yield
    finally:
        stack.sqs.set_queue_attributes(QueueUrl=url, Attributes=before)


@contextmanager
def broken(stack: Stack, function: str) -> Iterator[None]:
    """A deployment whose function does not even import."""
    with configured(stack, function, Handler=f"{function}.nowhere.handle"):
        yield


@contextmanager
def receives_max(stack: Stack, function: str, number: int) -> Iterator[None]:
    """A function that puts aside on its `number`-th receive."""
    client = stack.session.client("lambda")
    found = client.get_function_configuration(FunctionName=f"{stack.name}-{function}")
    variables = found["Environment"]["Variables"] | {"RECEIVES_MAX": str(number)}
    with configured(stack, function, Environment={"Variables": variables}):
        yield


@contextmanager
def configured(stack: Stack, function: str, **changed: Any) -> Iterator[None]:
    """A function configured otherwise, and put back as it was."""
    client, name = stack.session.client("lambda"), f"{stack.name}-{function}"
    found = client.get_function_configuration(FunctionName=name)
    client.update_function_configuration(FunctionName=name, **changed)
    try:
        yield
    finally:
        variables = {"Variables": found["Environment"]["Variables"]}
        client.update_function_configuration(
            FunctionName=name, Handler=found["Handler"], Environment=variables
        )


@contextmanager
def balance_status(stack: Stack, phone: str, status: str) -> Iterator[None]:
    """A balance row with a status that no code of ours has written."""

    def write(value: str) -> None:
        stack.dynamodb.update_item(
            TableName=stack.output("WalletLedgerTable"),
            Key={"phone": {"S": phone}, "txId": {"S": "balance"}},
            UpdateExpression="SET #status = :status",
            ExpressionAttributeNames={"#status": "status"},
            ExpressionAttributeValues={":status": {"S": value}},
        )

    write(status)
    try:
        yield
    finally:
        write("active")


def _die(stack: Stack, agent: Agent, transaction: dict[str, Any]) -> dict[str, Any]:
    """Let a transaction's message die, and return its letter."""
    with impatient(stack, "TxQueueUrl"), broken(stack, "reconcile"):
        agent.submit(transaction)
        return _held(stack, agent, transaction)


def _held(stack: Stack, agent: Agent, transaction: dict[str, Any]) -> dict[str, Any]:
    """The letter that holds a transaction, once there is one."""

    def look() -> dict[str, Any] | None:
        answer = stack.dynamodb.get_item(
            TableName=stack.output("OfflineTxTable"),
            Key={
                "agentId": {"S": agent.agent_id},
                "idempotencyKey": {"S": key(transaction)},
            },
            ConsistentRead=True,
        )
        holder = answer["Item"].get("heldBy")
        return holder and ask_desk(stack, "show", letterId=holder["S"])["letter"]  # type: ignore[return-value]

    return eventually(look, "a letter that holds the transaction")


def _redrive(group: str, *options: str) -> str:
    done = wakala(
        *("dead-letters", "redrive", "--group", group, "--why", "reconcile is mended"),
        *("--yes", "--rate", "100", "--json", *options),
    )
    return done.stdout


def _make_due(stack: Stack, letter: dict[str, Any]) -> None:
    """As if its time had come."""
    stack.dynamodb.update_item(
        TableName=stack.output("DeadLettersTable"),
        Key={"id": {"S": f"letter#{letter['letterId']}"}},
        UpdateExpression="SET dueAt = :now",
        ConditionExpression="attribute_exists(openShard)",
        ExpressionAttributeValues={":now": {"N": "1"}},
    )


def _received(stack: Stack, queue: str, text: str) -> dict[str, Any]:
    """The message of a queue that holds a text, taken from it, as AWS gives it to a function."""
    url = stack.output(queue)
    arn = stack.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])

    def look() -> dict[str, Any] | None:
        answer = stack.sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])
        for message in answer.get("Messages", []):
            if text in message["Body"]:
                handle = message["ReceiptHandle"]
                stack.sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
                return {
                    "messageId": message["MessageId"],
                    "receiptHandle": handle,
                    "body": message["Body"],
                    "attributes": message["Attributes"],
                    "messageAttributes": {},
                    "eventSource": "aws:sqs",
                    "eventSourceARN": arn["Attributes"]["QueueArn"],
                }
        return None

    return eventually(look, f"a message with {text!r}")


def _hand_over(stack: Stack, record: dict[str, Any]) -> None:
    """Triage gets a record, and keeps it."""
    answer = stack.session.client("lambda").invoke(
        FunctionName=f"{stack.name}-triage", Payload=json.dumps({"Records": [record]})
    )
    assert json.load(answer["Payload"]) == {"batchItemFailures": []}


def _put(stack: Stack, queue: str, body: str, group: str | None) -> None:
    fifo: Any = {}
    if group is not None:
        fifo = {"MessageGroupId": group, "MessageDeduplicationId": str(uuid.uuid4())}
    stack.sqs.send_message(QueueUrl=stack.output(queue), MessageBody=body, **fifo)
