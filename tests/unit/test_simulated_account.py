"""The simulator's account is the template's, and the real functions run on it."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.simulation.cloud.account import Account
from tests.simulation.cloud.bus import Delivery, EventBridge
from tests.simulation.cloud.delivery import wanted
from tests.simulation.cloud.errors import AwsError, Unsupported
from tests.simulation.cloud.hook import Hook
from tests.simulation.cloud.patterns import matches
from tests.simulation.cloud.stack import Stack
from tests.simulation.crashes.line import on_line
from tests.template import RESOURCES
from wallet_ledger.aws import clients

START_MS = 1_760_000_000_000
KEY: Any = {"phone": {"S": "254712345678"}, "txId": {"S": "balance"}}


@pytest.fixture
def account() -> Account:
    """Empty, at a held clock."""
    return Account(lambda: START_MS)


# --- from the template ----------------------------------------------------------------------------


def test_every_source_of_every_function_is_there(account: Account) -> None:
    declared = [
        (properties["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"], event["Type"])
        for resource in RESOURCES.values()
        if resource["Type"] == "AWS::Serverless::Function"
        for properties in [resource["Properties"]]
        for event in properties.get("Events", {}).values()
        if event["Type"] != "Api"
    ]
    stack = account.stack
    read = [(each.function, "DynamoDB" if each.is_stream else "SQS") for each in stack.mappings]
    read += [(each.function, "Schedule") for each in stack.schedules]
    assert sorted(read) == sorted(declared)
    assert len(stack.functions) == 8
    asked = {each.function: (each.rate_s, each.event) for each in stack.schedules}
    assert asked == {"sweep": (60, {}), "triage-desk": (60, {"action": "due"})}
    for each in stack.mappings:
        assert each.source in (account.tables if each.is_stream else account.queues)


def test_only_what_a_function_wants_of_a_stream_passes_its_filters(account: Account) -> None:
    of_tables = {each.source: each for each in account.stack.mappings if each.is_stream}

    def passes(table: str, event: str, **keys: str) -> bool:
        named = {name: {"S": value} for name, value in keys.items()}
        record = {"eventName": event, "dynamodb": {"Keys": named}}
        return wanted(of_tables[table], record)

    assert of_tables["OfflineTxTable"].filters == ()
    assert passes("OfflineTxTable", "REMOVE", idempotencyKey="K-1")
    assert passes("WalletLedgerTable", "INSERT", txId="credit#till#C-1")
    assert not passes("WalletLedgerTable", "INSERT", txId="debit#AG-1#K-1")
    assert not passes("WalletLedgerTable", "MODIFY", txId="credit#till#C-1")
    assert passes("DeadLettersTable", "MODIFY", id="letter#1")
    assert not passes("DeadLettersTable", "REMOVE", id="letter#1")
    assert not passes("DeadLettersTable", "INSERT", id="record#1#0")


def test_queues_are_as_the_template_says(account: Account) -> None:
    queue = account.queues["TxQueue"]
    declared = RESOURCES["TxQueue"]["Properties"]
    limit = int(declared["RedrivePolicy"]["maxReceiveCount"])

    assert (queue.is_fifo, queue.dedup_by_group) == (True, True)
    assert queue.visibility_s == declared["VisibilityTimeout"]
    assert queue.retention_s == declared["MessageRetentionPeriod"]
    assert queue.redrive == (account.queues["TxDlqQueue"].arn, limit)
    assert account.queues["InboxQueue"].is_fifo is False


def test_tables_are_as_the_template_says(account: Account) -> None:
    rows, ledger = account.tables["OfflineTxTable"], account.tables["WalletLedgerTable"]
    assert (rows.view, rows.ttl_name) == ("NEW_AND_OLD_IMAGES", "purgeAt")
    assert (ledger.view, ledger.ttl_name) == ("NEW_IMAGE", None)
    assert rows.indexes["OpenTx"].schema.names == ("openShard", "nextSweepAt")
    assert ledger.indexes == {}


def test_a_parameter_reaches_what_depends_on_it() -> None:
    stack = Account(lambda: START_MS, {"RetentionDays": "30", "ReconcileConcurrency": "9"}).stack
    [settling] = [each for each in stack.mappings if each.function == "reconcile"]
    assert settling.concurrency_max == 9
    assert stack.functions["reconcile"].environment["RETENTION_DAYS"] == "30"
    assert Stack().functions["reconcile"].environment["RETENTION_DAYS"] == "0"


# --- the bus --------------------------------------------------------------------------------------


def _event(source: str, kind: str, detail: str = "{}") -> dict[str, str]:
    return {"Source": source, "DetailType": kind, "Detail": detail, "EventBusName": "wakala"}


def test_the_bus_puts_requests_into_the_inbox_and_nothing_else(account: Account) -> None:
    entries = [
        _event("till", "WalletCreditRequested", '{"phone": "é"}'),
        _event("wakala", "WalletCreditRequested"),
        _event("wakala", "RefundRequested"),
        _event("wakala", "TransactionSynced"),
    ]
    answer = account.answer("events", "PutEvents", {"Entries": entries})

    assert answer["FailedEntryCount"] == 0
    inbox = [json.loads(each.body) for each in account.queues["InboxQueue"].messages]
    assert [(each["source"], each["detail-type"]) for each in inbox] == [
        ("till", "WalletCreditRequested"),
        ("wakala", "RefundRequested"),
    ]
    assert inbox[0]["detail"] == {"phone": "é"}
    assert inbox[0]["id"] == answer["Entries"][0]["EventId"]
    assert inbox[0]["time"] == "2025-10-09T08:53:20Z"
    assert len(account.events.buses["wakala"].events) == 4


def test_events_fail_one_by_one_and_the_others_are_taken(account: Account) -> None:
    entries = [
        _event("aws.till", "WalletCreditRequested"),
        _event("till", "WalletCreditRequested", "{"),
        _event("till", "WalletCreditRequested", "[]"),
        _event("till", "WalletCreditRequested"),
    ]
    answer = account.answer("events", "PutEvents", {"Entries": entries})
    assert [each.get("ErrorCode") for each in answer["Entries"]] == [
        "NotAuthorizedForSourceException",
        "MalformedDetail",
        "MalformedDetail",
        None,
    ]
    assert len(account.queues["InboxQueue"].messages) == 1


@pytest.mark.parametrize(
    "entries",
    [
        [],
        [_event("till", "X")] * 11,
        [_event("till", "X", json.dumps({"x": "x" * 50_000}))] * 6,
    ],
)
def test_a_call_of_events_is_refused_whole(account: Account, entries: Any) -> None:
    with pytest.raises(AwsError, match="ValidationException"):
        account.answer("events", "PutEvents", {"Entries": entries})


def test_a_delivery_is_somebody_elses_to_make() -> None:
    kept: list[Delivery] = []
    bus = EventBridge(lambda: START_MS, kept.append)
    bus.create_bus("wakala")
    bus.call("PutRule", {"Name": "R", "EventBusName": "wakala", "EventPattern": "{}"})
    target = {"Id": "1", "Arn": "arn:aws:sqs:us-east-1:000000000000:Q"}
    bus.call("PutTargets", {"Rule": "R", "EventBusName": "wakala", "Targets": [target]})
    bus.call("PutEvents", {"Entries": [_event("till", "X")]})
    assert [(each.rule, each.target.arn) for each in kept] == [("R", target["Arn"])]


PATTERNS: list[tuple[dict[str, Any], bool]] = [
    ({"a": ["x", "y"]}, True),
    ({"a": ["y"]}, False),
    ({"a": [{"prefix": "x"}]}, True),
    ({"a": [{"anything-but": ["x"]}]}, False),
    ({"a": [{"anything-but": "y"}]}, True),
    ({"gone": [{"exists": False}]}, True),
    ({"gone": [{"anything-but": ["x"]}]}, False),
    ({"b": {"c": [1]}}, True),
    ({"b": {"c": ["1"]}}, False),
    ({"b": {"c": [True]}}, False),
    ({"b": {"d": ["x"]}}, False),
    ({"list": ["two"]}, True),
    ({"a": ["x"], "gone": ["x"]}, False),
]


@pytest.mark.parametrize(("pattern", "does"), PATTERNS)
def test_a_pattern_matches_what_it_says(pattern: dict[str, Any], does: bool) -> None:
    event = {"a": "x", "b": {"c": 1}, "list": ["one", "two"]}
    assert matches(pattern, event) is does


@pytest.mark.parametrize("option", [{"numeric": [">", 1]}, {"wildcard": "*"}])
def test_a_pattern_that_it_does_not_know_is_said_aloud(option: Any) -> None:
    with pytest.raises(Unsupported):
        matches({"a": [option]}, {"a": 1})


# --- clients and functions ------------------------------------------------------------------------


def test_a_client_gets_answers_and_errors_as_botocore_gives_them(account: Account) -> None:
    client: Any = clients.dynamodb(on_consumed=lambda _name, _units: None)
    account.attach(client)
    table = account.tables["WalletLedgerTable"].name
    item = KEY | {"part": {"B": b"\x00\xff"}, "version": {"N": "1"}}
    client.put_item(TableName=table, Item=item)

    found = client.get_item(TableName=table, Key=KEY)["Item"]
    assert found == item
    found["version"]["N"] = "7"  # the caller's own
    assert client.get_item(TableName=table, Key=KEY)["Item"] == item
    found = client.query(
        TableName=table,
        KeyConditionExpression="phone = :phone",
        ExpressionAttributeValues={":phone": KEY["phone"]},
    )
    assert found["Items"] == [item]

    put = {"TableName": table, "Item": item, "ConditionExpression": "attribute_not_exists(txId)"}
    put["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    with pytest.raises(client.exceptions.ConditionalCheckFailedException) as plain:
        client.put_item(**put)
    with pytest.raises(client.exceptions.TransactionCanceledException) as whole:
        client.transact_write_items(TransactItems=[{"Put": put}])
    assert plain.value.response["Item"] == item
    assert whole.value.response["CancellationReasons"] == [
        {
            "Code": "ConditionalCheckFailed",
            "Message": "The conditional request failed",
            "Item": item,
        }
    ]
    assert plain.value.response["ResponseMetadata"]["RetryAttempts"] == 0


def test_what_stands_behind_a_client_may_change(account: Account) -> None:
    client: Any = clients.sqs()
    hook = Hook(account.answer)
    hook.attach(client)
    url = account.queues["InboxQueue"].url
    client.send_message(QueueUrl=url, MessageBody="a")
    other = Account(lambda: START_MS)
    hook.answer = other.answer
    client.send_message(QueueUrl=url, MessageBody="b")
    hook.answer = _throttled
    with pytest.raises(ClientError) as caught:
        client.send_message(QueueUrl=url, MessageBody="c")

    assert [each.body for each in account.queues["InboxQueue"].messages] == ["a"]
    assert [each.body for each in other.queues["InboxQueue"].messages] == ["b"]
    assert clients.is_transient(caught.value)
    assert caught.value.response["ResponseMetadata"]["RetryAttempts"] == 1


def _throttled(service: str, operation: str, body: Any) -> Any:
    error = AwsError("ThrottlingException", "later")
    error.retries = 1
    raise error


def _post(key: str, amount_minor: int) -> dict[str, Any]:
    body = {
        "agentId": "AG-1",
        "phone": "254712345678",
        "amount": amount_minor,
        "idempotencyKey": key,
    }
    return {
        "httpMethod": "POST",
        "resource": "/tx/offline",
        "pathParameters": {},
        "body": json.dumps(body),
        "requestContext": {"authorizer": {"claims": {"custom:agentId": "AG-1"}}},
    }


@pytest.mark.parametrize("history", range(2))
def test_a_debit_goes_from_the_agent_into_the_books(history: int) -> None:
    """On an account of its own each time, though the handlers are imported once."""
    with on_line() as line:
        line.put_event(
            "till",
            "WalletCreditRequested",
            {"phone": "254712345678", "source": "till", "creditId": "C-1", "amount": 100},
        )
        line.settle()
        for key in ("K-1", "K-2"):
            assert line.invoke("ingest", _post(key, 60))["statusCode"] == 202
        line.settle()
        line.invoke("sweep", {})
        line.invoke("triage-desk", {"action": "due"})

    account = line.account
    rows = {each["idempotencyKey"]["S"]: each for each in account.tables["OfflineTxTable"].items()}
    assert (rows["K-1"]["status"], rows["K-2"]["status"]) == ({"S": "synced"}, {"S": "failed"})
    row = account.tables["WalletLedgerTable"].row((KEY["phone"]["S"], "balance"))
    assert row is not None
    assert row.item["balanceMinor"] == {"N": "40"}
    told = [event["detail-type"] for event in account.events.buses["wakala"].events]
    assert sorted(told) == [
        "DeadLetterTriaged",
        "TransactionFailed",
        "TransactionSynced",
        "WalletCreditRequested",
        "WalletCredited",
    ]
    assert not any(queue.messages for queue in account.queues.values())
