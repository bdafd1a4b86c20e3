"""What the template promises and no engine checks: roles fit what they serve, nothing fails unseen.

A local engine polls queues and streams without asking the role, ignores encryption, recovery and
expiry of tables, and knows no failure of a rule's target. So these are read off the template.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.template import RESOURCES, ROOT, TEMPLATE, Json
from triage.act import Outcome
from wallet_ledger import settings
from wallet_ledger.domain.letters import AUTOMATIC_AFTER_MS, Verdict
from wallet_ledger.domain.transactions import Reason


def _of_type(kind: str) -> dict[str, Json]:
    """Logical id → properties of each resource of a type."""
    return {
        name: resource.get("Properties", {})
        for name, resource in RESOURCES.items()
        if resource["Type"] == kind
    }


def _with_globals(function: Json) -> Json:
    shared = TEMPLATE["Globals"]["Function"]
    variables = {
        **shared["Environment"]["Variables"],
        **function.get("Environment", {}).get("Variables", {}),
    }
    return {**shared, **function, "Environment": {"Variables": variables}}


FUNCTIONS = {
    name: _with_globals(function)
    for name, function in _of_type("AWS::Serverless::Function").items()
}
TABLES = _of_type("AWS::DynamoDB::Table")
QUEUES = _of_type("AWS::SQS::Queue")
ALARMS = _of_type("AWS::CloudWatch::Alarm")

DELIVERY_FAILURES = "DeliveryFailuresQueue.Arn"
LETTER_QUEUES = ("TxDlqQueue", "RefundDlqQueue", "FailedTxQueue", "DeliveryFailuresQueue")
"""What triage reads."""


def _text(value: Any) -> str:
    """How a value is named here: `X` for a Ref, `X.Arn` for a GetAtt, else what is written."""
    match value:
        case {"Ref": name}:
            return str(name)
        case {"Fn::GetAtt": [name, attribute]}:
            return f"{name}.{attribute}"
        case {"Fn::Sub": str(text)}:
            return text
        case str():
            return value
        case _:
            return json.dumps(value, sort_keys=True)


def _texts(value: Any) -> frozenset[str]:
    """One value or a list of them."""
    return frozenset(_text(each) for each in (value if isinstance(value, list) else [value]))


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a role or a shared policy."""

    owner: str
    actions: frozenset[str]
    resources: frozenset[str]
    condition: str

    def reaches(self, table: str) -> bool:
        """Whether it is about a table, its stream or its index."""
        return any(f"{table}." in resource for resource in self.resources)


def _statements() -> Iterator[Statement]:
    documents = [
        (name, policy["PolicyDocument"])
        for name, role in _of_type("AWS::IAM::Role").items()
        for policy in role.get("Policies", [])
    ] + [
        (name, policy["PolicyDocument"])
        for name, policy in _of_type("AWS::IAM::ManagedPolicy").items()
    ]
    for owner, document in documents:
        for statement in document["Statement"]:
            assert statement["Effect"] == "Allow", owner
            yield Statement(
                owner,
                _texts(statement["Action"]),
                _texts(statement["Resource"]),
                _text(statement.get("Condition", "")),
            )


STATEMENTS = tuple(_statements())


def _may(role: str, action: str, resource: str) -> bool:
    return any(
        statement.owner == role
        and resource in statement.resources
        and any(action == each or _covers(each, action) for each in statement.actions)
        for statement in STATEMENTS
    )


def _covers(pattern: str, action: str) -> bool:
    return pattern.endswith("*") and action.startswith(pattern[:-1])


@dataclass(frozen=True, slots=True)
class Mapping:
    """What makes Lambda poll a source for a function."""

    function: str
    kind: str
    source: str
    properties: Json

    @property
    def role(self) -> str:
        """Logical id of the role that Lambda polls with."""
        return _text(FUNCTIONS[self.function]["Role"]).removesuffix(".Arn")


MAPPINGS = [
    Mapping(
        name,
        event["Type"],
        _text(event["Properties"]["Queue" if event["Type"] == "SQS" else "Stream"]),
        event["Properties"],
    )
    for name, function in FUNCTIONS.items()
    for event in function.get("Events", {}).values()
    if event["Type"] in {"SQS", "DynamoDB"}
]
QUEUE_MAPPINGS = [mapping for mapping in MAPPINGS if mapping.kind == "SQS"]
STREAM_MAPPINGS = [mapping for mapping in MAPPINGS if mapping.kind == "DynamoDB"]


def _source(mapping: Mapping) -> str:
    return f"{mapping.function}-{mapping.source}"


# --- functions -----------------------------------------------------------------------------


def test_the_system_is_these_eight_functions() -> None:
    handlers = {name: function["Handler"] for name, function in FUNCTIONS.items()}
    assert handlers == {
        "IngestFunction": "ingest.handler.handle",
        "IngestBusFunction": "ingest.bus_handler.handle",
        "RelayFunction": "relay.handler.handle",
        "SweepFunction": "relay.sweep_handler.handle",
        "ReconcileFunction": "reconcile.handler.handle",
        "RefundFunction": "refund.handler.handle",
        "TriageFunction": "triage.handler.handle",
        "TriageDeskFunction": "triage.desk_handler.handle",
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_states_what_it_runs_on(name: str) -> None:
    function = FUNCTIONS[name]
    assert function["Runtime"] == "python3.13"
    assert _texts(function["Architectures"]) == {"Architecture"}
    assert _text(function["Tracing"]) == "Tracing"
    assert _texts(function["Layers"]) == {"WalletLedgerLayer"}
    assert isinstance(function["Timeout"], int)
    assert isinstance(function["MemorySize"], int)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_a_role_and_a_log_group_of_its_own(name: str) -> None:
    stem = name.removesuffix("Function")
    function = FUNCTIONS[name]
    assert _text(function["Role"]) == f"{stem}Role.Arn"
    assert _texts(RESOURCES[f"{stem}Role"]["Properties"]["ManagedPolicyArns"]) == {"TracingPolicy"}
    assert _text(function["LoggingConfig"]["LogGroup"]) == f"{stem}LogGroup"
    log_group = RESOURCES[f"{stem}LogGroup"]["Properties"]
    assert _text(log_group["LogGroupName"]) == f"/aws/lambda/{_text(function['FunctionName'])}"
    assert _may(f"{stem}Role", "logs:PutLogEvents", f"{stem}LogGroup.Arn")


def test_every_log_group_forgets_after_the_chosen_days() -> None:
    for name, log_group in _of_type("AWS::Logs::LogGroup").items():
        assert _text(log_group["RetentionInDays"]) == "LogRetentionDays", name


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("IngestFunction", settings.IngestSettings),
        ("IngestBusFunction", settings.IngestBusSettings),
        ("RelayFunction", settings.RelaySettings),
        ("SweepFunction", settings.SweepSettings),
        ("ReconcileFunction", settings.ReconcileSettings),
        ("RefundFunction", settings.RefundSettings),
        ("TriageFunction", settings.TriageSettings),
        ("TriageDeskFunction", settings.TriageDeskSettings),
    ],
)
def test_a_function_gets_the_variables_it_reads_and_no_others(name: str, wanted: type) -> None:
    for_all = {
        "STAGE",
        "POWERTOOLS_SERVICE_NAME",
        "POWERTOOLS_METRICS_NAMESPACE",
        "POWERTOOLS_LOG_LEVEL",
        "AWS_XRAY_SDK_ENABLED",
        "AWS_ENDPOINT_URL",
    }
    assert (
        FUNCTIONS[name]["Environment"]["Variables"].keys() == settings.variables(wanted) | for_all
    )


def test_each_function_reports_under_a_name_of_its_own() -> None:
    names = [
        each["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] for each in FUNCTIONS.values()
    ]
    assert len(set(names)) == len(names)


# --- roles ---------------------------------------------------------------------------------


# ListStreams names a table and no stream; a stack's ARN ends in an id that its name does not tell.
NAMED_BY_PREFIX = ({"dynamodb:ListStreams"}, {"cloudformation:DescribeStacks"})


def test_no_role_has_a_wildcard_but_for_xray() -> None:
    # A verb and its batch form are one on AWS.
    verbs = {"sqs:SendMessage*", "sqs:ChangeMessageVisibility*"}
    for statement in STATEMENTS:
        if statement.owner == "TracingPolicy":
            assert statement.actions == {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}
            continue
        assert not [each for each in statement.actions - verbs if "*" in each], statement
        if statement.actions not in NAMED_BY_PREFIX:
            assert not [each for each in statement.resources if "*" in each], statement


def test_nobody_can_delete_from_a_table() -> None:
    for statement in STATEMENTS:
        assert not [each for each in statement.actions if "Delete" in each and "dynamodb" in each]
        assert not [each for each in statement.actions if "PartiQL" in each or "BatchWrite" in each]


def test_only_the_auditor_can_scan_and_it_only_reads() -> None:
    scanning = {each.owner for each in STATEMENTS if "dynamodb:Scan" in each.actions}
    assert scanning == {"AuditorRole"}
    actions = {
        action for each in STATEMENTS if each.owner == "AuditorRole" for action in each.actions
    }
    assert actions == {
        "dynamodb:Scan",
        "dynamodb:Query",
        "dynamodb:GetItem",
        "cloudformation:DescribeStacks",
    }
    for name in TABLES:
        assert _may("AuditorRole", "dynamodb:Scan", f"{name}.Arn")
        assert _may("AuditorRole", "dynamodb:GetItem", f"{name}.Arn")
    mine = [each for each in STATEMENTS if each.owner == "AuditorRole"]
    indexes = {path for each in mine for path in each.resources if "/index/" in path}
    assert indexes == {"${OfflineTxTable.Arn}/index/OpenTx"}


WRITES = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:ConditionCheckItem"}
INSIDE_A_TRANSACTION = {
    "ForAnyValue:StringEquals": {"dynamodb:EnclosingOperation": ["TransactWriteItems"]}
}


def test_the_ledger_is_written_by_reconcile_and_refund_alone_and_inside_transactions() -> None:
    settling = {"ReconcileRole", "RefundRole"}
    writing = {
        each.owner
        for each in STATEMENTS
        if each.reaches("WalletLedgerTable")
        and each.actions & WRITES - {"dynamodb:ConditionCheckItem"}
    }
    assert writing == settling
    for each in STATEMENTS:
        if each.owner in settling and each.actions & WRITES:
            assert json.loads(each.condition) == INSIDE_A_TRANSACTION


def test_ingest_moves_a_row_only_beside_a_check_of_the_ledger() -> None:
    for each in STATEMENTS:
        if each.owner == "IngestRole" and each.actions & (WRITES - {"dynamodb:PutItem"}):
            assert "dynamodb:PutItem" not in each.actions
            assert json.loads(each.condition) == INSIDE_A_TRANSACTION


@pytest.mark.parametrize(
    ("role", "table", "verbs"),
    [
        ("IngestRole", "OfflineTxTable", {"PutItem", "GetItem", "UpdateItem"}),
        ("IngestRole", "WalletLedgerTable", {"GetItem", "ConditionCheckItem"}),
        ("IngestBusRole", "OfflineTxTable", set()),
        ("IngestBusRole", "WalletLedgerTable", set()),
        ("SweepRole", "OfflineTxTable", {"Query", "UpdateItem"}),
        ("SweepRole", "WalletLedgerTable", set()),
        ("ReconcileRole", "OfflineTxTable", {"UpdateItem"}),
        (
            "ReconcileRole",
            "WalletLedgerTable",
            {"GetItem", "PutItem", "UpdateItem", "ConditionCheckItem"},
        ),
        ("RefundRole", "OfflineTxTable", {"GetItem", "UpdateItem", "ConditionCheckItem"}),
        (
            "RefundRole",
            "WalletLedgerTable",
            {"GetItem", "PutItem", "UpdateItem", "ConditionCheckItem"},
        ),
        ("TriageRole", "OfflineTxTable", {"GetItem", "UpdateItem"}),
        ("TriageRole", "WalletLedgerTable", {"GetItem"}),
        ("TriageRole", "DeadLettersTable", {"GetItem", "PutItem"}),
        ("TriageDeskRole", "OfflineTxTable", {"GetItem", "UpdateItem"}),
        ("TriageDeskRole", "WalletLedgerTable", {"GetItem"}),
        ("TriageDeskRole", "DeadLettersTable", {"GetItem", "Query", "UpdateItem"}),
    ],
)
def test_a_role_does_to_a_table_what_its_function_does_and_no_more(
    role: str, table: str, verbs: set[str]
) -> None:
    """P11."""
    actions = {
        action
        for each in STATEMENTS
        if each.owner == role and each.reaches(table)
        for action in each.actions
    }
    assert actions == {f"dynamodb:{verb}" for verb in verbs}


def test_only_triage_and_its_desk_write_dead_letters() -> None:
    writing = {
        (each.owner, action)
        for each in STATEMENTS
        if each.reaches("DeadLettersTable")
        for action in each.actions & WRITES
    }
    assert writing == {
        ("TriageRole", "dynamodb:PutItem"),
        ("TriageDeskRole", "dynamodb:UpdateItem"),
    }


def _allowed(owner: str) -> set[tuple[frozenset[str], frozenset[str], str]]:
    """All that a role or policy allows: verbs, on what, and under which condition."""
    return {
        (each.actions, each.resources, each.condition) for each in STATEMENTS if each.owner == owner
    }


def _allow(
    actions: str, resources: str, *, inside_a_transaction: bool = False
) -> tuple[frozenset[str], frozenset[str], str]:
    condition = json.dumps(INSIDE_A_TRANSACTION, sort_keys=True) if inside_a_transaction else ""
    return frozenset(actions.split()), frozenset(resources.split()), condition


def test_triage_keeps_a_letter_only_with_its_record_and_the_row_that_it_holds() -> None:
    tables = "OfflineTxTable.Arn WalletLedgerTable.Arn DeadLettersTable.Arn"
    assert _allowed("TriageRole") == {
        _allow("logs:CreateLogStream logs:PutLogEvents", "TriageLogGroup.Arn"),
        _allow(
            "sqs:ReceiveMessage sqs:DeleteMessage sqs:GetQueueAttributes",
            " ".join(f"{name}.Arn" for name in LETTER_QUEUES),
        ),
        _allow("dynamodb:GetItem", tables),
        _allow("dynamodb:PutItem", "DeadLettersTable.Arn", inside_a_transaction=True),
        _allow("dynamodb:UpdateItem", "OfflineTxTable.Arn", inside_a_transaction=True),
    }


def test_the_desk_changes_letters_moves_rows_and_sends_again_and_no_more() -> None:
    tables = "OfflineTxTable.Arn WalletLedgerTable.Arn DeadLettersTable.Arn"
    indexes = "${DeadLettersTable.Arn}/index/OpenLetters ${DeadLettersTable.Arn}/index/AllLetters"
    assert _allowed("TriageDeskRole") == {
        _allow("logs:CreateLogStream logs:PutLogEvents", "TriageDeskLogGroup.Arn"),
        _allow("dynamodb:GetItem", tables),
        _allow("dynamodb:Query", indexes),
        _allow("dynamodb:UpdateItem", "DeadLettersTable.Arn"),
        _allow("dynamodb:UpdateItem", "OfflineTxTable.Arn", inside_a_transaction=True),
        _allow("sqs:SendMessage*", "TxQueue.Arn RefundQueue.Arn InboxQueue.Arn"),
        _allow("sqs:SendMessage", DELIVERY_FAILURES),
    }


def test_an_operator_may_ask_the_desk_and_nobody_else() -> None:
    stack = "stack/${AWS::StackName}/*"
    allowed = _allowed("OperatorPolicy")
    assert _allow("lambda:InvokeFunction", "TriageDeskFunction.Arn") in allowed
    ((actions, resources, _),) = allowed - {
        _allow("lambda:InvokeFunction", "TriageDeskFunction.Arn")
    }
    assert actions == {"cloudformation:DescribeStacks"}
    assert [each.endswith(stack) for each in resources] == [True]
    assert _text(TEMPLATE["Outputs"]["OperatorPolicyArn"]["Value"]) == "OperatorPolicy"


def test_who_replays_events_can_put_only_those_that_move_no_money() -> None:
    """Under another source wallets could be funded, and under this one refunds are heard."""
    news = {
        "StringEquals": {"events:source": "wakala"},
        "StringNotEquals": {"events:detail-type": "RefundRequested"},
    }
    condition = json.dumps(news, sort_keys=True)
    put = (frozenset({"events:PutEvents"}), frozenset({"EventBus.Arn"}), condition)
    assert _allowed("ReplayPolicy") == {put}


def test_nobody_but_an_operator_can_invoke_a_function_by_a_policy_of_ours() -> None:
    invoking = {each.owner for each in STATEMENTS if "lambda:InvokeFunction" in each.actions}
    assert invoking == {"OperatorPolicy"}


@pytest.mark.parametrize(
    ("role", "queues"),
    [
        ("IngestRole", set()),
        ("IngestBusRole", {"TxQueue", "RefundQueue", "DeliveryFailuresQueue"}),
        ("RelayRole", {"TxQueue", "FailedTxQueue", "DeliveryFailuresQueue"}),
        ("SweepRole", {"DeliveryFailuresQueue"}),
        ("ReconcileRole", {"DeliveryFailuresQueue"}),
        ("RefundRole", {"DeliveryFailuresQueue"}),
        ("TriageRole", set()),
        ("TriageDeskRole", {"TxQueue", "RefundQueue", "InboxQueue", "DeliveryFailuresQueue"}),
    ],
)
def test_a_role_sends_to_the_queues_that_its_function_sends_to(role: str, queues: set[str]) -> None:
    assert {name for name in QUEUES if _may(role, "sqs:SendMessage", f"{name}.Arn")} == queues


@pytest.mark.parametrize(
    ("role", "queue"), [("ReconcileRole", "TxQueue"), ("RefundRole", "RefundQueue")]
)
def test_a_consumer_can_let_its_own_messages_rest(role: str, queue: str) -> None:
    resting = {
        name for name in QUEUES if _may(role, "sqs:ChangeMessageVisibilityBatch", f"{name}.Arn")
    }
    assert resting == {queue}


def test_only_ingest_can_make_an_offline_transaction() -> None:
    making = {
        each.owner
        for each in STATEMENTS
        if each.reaches("OfflineTxTable") and "dynamodb:PutItem" in each.actions
    }
    assert making == {"IngestRole"}


# --- edges: mappings, rules, schedules -------------------------------------------------------


def test_each_source_has_its_mapping() -> None:
    assert {(mapping.function, mapping.source) for mapping in MAPPINGS} == {
        ("IngestBusFunction", "InboxQueue.Arn"),
        ("RelayFunction", "OfflineTxTable.StreamArn"),
        ("RelayFunction", "WalletLedgerTable.StreamArn"),
        ("RelayFunction", "DeadLettersTable.StreamArn"),
        ("ReconcileFunction", "TxQueue.Arn"),
        ("RefundFunction", "RefundQueue.Arn"),
        *(("TriageFunction", f"{name}.Arn") for name in LETTER_QUEUES),
    }


@pytest.mark.parametrize("mapping", MAPPINGS, ids=_source)
def test_a_mapping_takes_failures_one_by_one(mapping: Mapping) -> None:
    assert mapping.properties["FunctionResponseTypes"] == ["ReportBatchItemFailures"]


@pytest.mark.parametrize("mapping", QUEUE_MAPPINGS, ids=_source)
def test_a_role_may_take_what_its_queue_mapping_polls(mapping: Mapping) -> None:
    for action in ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"):
        assert _may(mapping.role, action, mapping.source), action


@pytest.mark.parametrize("mapping", QUEUE_MAPPINGS, ids=_source)
def test_a_queue_mapping_is_bounded_and_its_messages_stay_hidden_long_enough(
    mapping: Mapping,
) -> None:
    name = mapping.source.removesuffix(".Arn")
    queue = QUEUES[name]
    assert queue["VisibilityTimeout"] >= 6 * FUNCTIONS[mapping.function]["Timeout"]
    if name not in LETTER_QUEUES:
        assert int(queue["RedrivePolicy"]["maxReceiveCount"]) >= 5
    assert mapping.properties["BatchSize"] <= 10
    assert "MaximumConcurrency" in mapping.properties["ScalingConfig"]
    assert "FilterCriteria" not in mapping.properties  # it would delete what does not match


@pytest.mark.parametrize("name", ["ReconcileFunction", "RefundFunction"])
def test_a_consumer_knows_which_receive_is_the_last(name: str) -> None:
    (queue,) = [
        QUEUES[mapping.source.removesuffix(".Arn")]
        for mapping in QUEUE_MAPPINGS
        if mapping.function == name
    ]
    told = FUNCTIONS[name]["Environment"]["Variables"]["RECEIVES_MAX"]
    assert told == queue["RedrivePolicy"]["maxReceiveCount"] == "10"


@pytest.mark.parametrize("name", LETTER_QUEUES)
def test_what_triage_cannot_keep_stays_in_its_queue(name: str) -> None:
    assert "RedrivePolicy" not in QUEUES[name]
    assert QUEUES[name]["MessageRetentionPeriod"] == 14 * 86_400
    assert QUEUES[name]["VisibilityTimeout"] == 6 * FUNCTIONS["TriageFunction"]["Timeout"]


@pytest.mark.parametrize("mapping", STREAM_MAPPINGS, ids=_source)
def test_a_role_may_read_the_stream_that_its_mapping_polls(mapping: Mapping) -> None:
    for action in ("DescribeStream", "GetRecords", "GetShardIterator"):
        assert _may(mapping.role, f"dynamodb:{action}", mapping.source), action
    table = mapping.source.removesuffix(".StreamArn")
    assert _may(mapping.role, "dynamodb:ListStreams", f"${{{table}.Arn}}/stream/*")


@pytest.mark.parametrize("mapping", STREAM_MAPPINGS, ids=_source)
def test_a_stream_is_read_from_its_start_and_to_its_end(mapping: Mapping) -> None:
    properties = mapping.properties
    assert properties["StartingPosition"] == "TRIM_HORIZON"
    assert properties["BisectBatchOnFunctionError"] is True
    assert properties["MaximumRetryAttempts"] == -1
    assert properties["MaximumRecordAgeInSeconds"] == 24 * 3600
    assert _text(properties["DestinationConfig"]["OnFailure"]["Destination"]) == DELIVERY_FAILURES
    assert _may(mapping.role, "sqs:SendMessage", DELIVERY_FAILURES)


def test_only_what_makes_no_event_is_filtered_off_a_stream() -> None:
    filters = {
        mapping.source: [
            json.loads(each["Pattern"])
            for each in mapping.properties.get("FilterCriteria", {}).get("Filters", [])
        ]
        for mapping in STREAM_MAPPINGS
    }
    prefixes = [{"prefix": "credit#"}, {"prefix": "status#"}, {"prefix": "refund#"}]
    assert filters == {
        "OfflineTxTable.StreamArn": [],
        "WalletLedgerTable.StreamArn": [
            {"eventName": ["INSERT"], "dynamodb": {"Keys": {"txId": {"S": prefixes}}}}
        ],
        "DeadLettersTable.StreamArn": [
            {
                "eventName": ["INSERT", "MODIFY"],
                "dynamodb": {"Keys": {"id": {"S": [{"prefix": "letter#"}]}}},
            }
        ],
    }


def test_requests_are_heard_through_a_queue_that_only_their_rules_may_use() -> None:
    patterns = {name: rule["EventPattern"] for name, rule in _of_type("AWS::Events::Rule").items()}
    assert patterns == {
        "WalletRequestsRule": {
            "source": [{"anything-but": ["wakala"]}],  # the relay's own events fund no wallet
            "detail-type": ["WalletCreditRequested", "WalletStatusRequested"],
        },
        # The relay puts what agents ask for on the bus.
        "RefundRequestsRule": {"detail-type": ["RefundRequested"]},
    }
    for name in patterns:
        rule = RESOURCES[name]["Properties"]
        assert _text(rule["EventBusName"]) == "EventBus"
        (target,) = rule["Targets"]
        assert _text(target["Arn"]) == "InboxQueue.Arn"
        assert _text(target["DeadLetterConfig"]["Arn"]) == DELIVERY_FAILURES
        longest = {"MaximumEventAgeInSeconds": 86_400, "MaximumRetryAttempts": 185}
        assert target["RetryPolicy"] == longest
    assert _senders("InboxQueue") == {f"{name}.Arn" for name in patterns}


@pytest.mark.parametrize("name", ["SweepFunction", "TriageDeskFunction"])
def test_a_failed_scheduled_run_leaves_a_letter(name: str) -> None:
    function = FUNCTIONS[name]
    ((event_name, schedule),) = function["Events"].items()
    assert schedule["Properties"]["Schedule"] == "rate(1 minute)"
    assert function["Timeout"] < 60
    assert _text(schedule["Properties"]["DeadLetterConfig"]["Arn"]) == DELIVERY_FAILURES
    assert f"{name}{event_name}.Arn" in _senders("DeliveryFailuresQueue")
    asynchronous = function["EventInvokeConfig"]
    assert asynchronous["MaximumRetryAttempts"] == 0  # the next minute's run makes it good
    on_failure = asynchronous["DestinationConfig"]["OnFailure"]
    assert _text(on_failure["Destination"]) == DELIVERY_FAILURES
    role = _text(function["Role"]).removesuffix(".Arn")
    assert _may(role, "sqs:SendMessage", DELIVERY_FAILURES)


def test_the_clock_asks_the_desk_for_what_is_due() -> None:
    schedule = FUNCTIONS["TriageDeskFunction"]["Events"]["EveryMinute"]["Properties"]
    assert json.loads(schedule["Input"]) == {"action": "due"}
    assert "Input" not in FUNCTIONS["SweepFunction"]["Events"]["EveryMinute"]["Properties"]


def test_every_rule_may_leave_a_letter() -> None:
    for name in _of_type("AWS::Events::Rule"):
        assert f"{name}.Arn" in _senders("DeliveryFailuresQueue")


def _senders(queue: str) -> frozenset[str]:
    """Whose sends a queue's own policy allows."""
    policy = RESOURCES[f"{queue}Policy"]["Properties"]
    assert _texts(policy["Queues"]) == {queue}
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "events.amazonaws.com"}
    assert (statement["Action"], _text(statement["Resource"])) == (
        "sqs:SendMessage",
        f"{queue}.Arn",
    )
    return _texts(statement["Condition"]["ArnEquals"]["aws:SourceArn"])


# --- queues --------------------------------------------------------------------------------


def _is_fifo(queue: Json) -> bool:
    return bool(queue.get("FifoQueue", False))


def _dead_letter_queue(queue: Json) -> str | None:
    if "RedrivePolicy" not in queue:
        return None
    return _text(queue["RedrivePolicy"]["deadLetterTargetArn"]).removesuffix(".Arn")


@pytest.mark.parametrize("name", QUEUES)
def test_a_queue_is_encrypted_and_its_name_tells_its_kind(name: str) -> None:
    queue = QUEUES[name]
    assert queue["SqsManagedSseEnabled"] is True
    assert _text(queue["QueueName"]).endswith(".fifo") == _is_fifo(queue)
    if _is_fifo(queue):
        assert queue["DeduplicationScope"] == "messageGroup"
        assert queue["FifoThroughputLimit"] == "perMessageGroupId"


def test_a_dead_letter_queue_is_of_its_queues_kind_and_keeps_longest() -> None:
    for name, queue in QUEUES.items():
        target = _dead_letter_queue(queue)
        if target is not None:
            assert _is_fifo(QUEUES[target]) == _is_fifo(queue), name
            assert QUEUES[target]["MessageRetentionPeriod"] == 14 * 86_400
    assert not _is_fifo(QUEUES["DeliveryFailuresQueue"])  # targets of rules need a standard one
    assert QUEUES["DeliveryFailuresQueue"]["MessageRetentionPeriod"] == 14 * 86_400


def test_every_queue_that_is_polled_for_work_has_a_dead_letter_queue() -> None:
    polled = {mapping.source.removesuffix(".Arn") for mapping in QUEUE_MAPPINGS}
    polled -= set(LETTER_QUEUES)
    assert {name: _dead_letter_queue(QUEUES[name]) for name in polled} == {
        "TxQueue": "TxDlqQueue",
        "RefundQueue": "RefundDlqQueue",
        "InboxQueue": "DeliveryFailuresQueue",
    }


# --- tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_table_cannot_be_lost(name: str) -> None:
    table = TABLES[name]
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["SSESpecification"] == {"SSEEnabled": True}
    assert table["DeletionProtectionEnabled"] == {"Fn::If": ["Protected", True, False]}
    assert RESOURCES[name]["DeletionPolicy"] == "RetainExceptOnCreate"
    assert RESOURCES[name]["UpdateReplacePolicy"] == "Retain"
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert "TableName" in table  # with a fixed name, an update that would replace it fails


def test_protection_is_the_default() -> None:
    assert TEMPLATE["Parameters"]["DeletionProtection"]["Default"] == "true"
    assert TEMPLATE["Conditions"]["Protected"] == {
        "Fn::Equals": [{"Ref": "DeletionProtection"}, "true"]
    }


def test_only_what_is_finished_can_ever_be_purged_and_the_books_never() -> None:
    ttl = {name: table.get("TimeToLiveSpecification") for name, table in TABLES.items()}
    assert ttl == {
        "OfflineTxTable": {"AttributeName": "purgeAt", "Enabled": True},
        "WalletLedgerTable": None,
        "DeadLettersTable": {"AttributeName": "purgeAt", "Enabled": True},
    }


def test_keys_and_streams_are_those_of_the_design() -> None:
    keys = {name: _key(table) for name, table in TABLES.items()}
    assert keys == {
        "OfflineTxTable": ["agentId S", "idempotencyKey S"],
        "WalletLedgerTable": ["phone S", "txId S"],
        "DeadLettersTable": ["id S"],
    }
    views = {name: table["StreamSpecification"]["StreamViewType"] for name, table in TABLES.items()}
    assert views == {
        "OfflineTxTable": "NEW_AND_OLD_IMAGES",
        "WalletLedgerTable": "NEW_IMAGE",
        "DeadLettersTable": "NEW_AND_OLD_IMAGES",
    }


def test_the_sparse_indexes_are_those_of_the_design() -> None:
    indexes = {
        index["IndexName"]: (name, _key(table, index), index["Projection"])
        for name, table in TABLES.items()
        for index in table.get("GlobalSecondaryIndexes", [])
    }
    swept = {
        "ProjectionType": "INCLUDE",
        "NonKeyAttributes": ["status", "attempt", "createdAt", "updatedAt", "expiresAt"],
    }
    whole = {"ProjectionType": "ALL"}
    assert indexes == {
        "OpenTx": ("OfflineTxTable", ["openShard S", "nextSweepAt N"], swept),
        "OpenLetters": ("DeadLettersTable", ["openShard S", "dueAt N"], whole),
        "AllLetters": ("DeadLettersTable", ["shard S", "arrivedAt N"], whole),
    }


def _key(table: Json, index: Json | None = None) -> list[str]:
    """The attributes of a table's key or of an index's, each with its type."""
    types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
    names = [each["AttributeName"] for each in (index or table)["KeySchema"]]
    return [f"{name} {types[name]}" for name in names]


# --- API and agents ------------------------------------------------------------------------

API: Json = RESOURCES["Api"]["Properties"]
PROBLEMS = {
    "UNAUTHORIZED": (401, "UNAUTHENTICATED", False),
    "ACCESS_DENIED": (403, "ACCESS_DENIED", False),
    "INVALID_API_KEY": (403, "ACCESS_DENIED", False),
    "WAF_FILTERED": (403, "BLOCKED", True),
    "MISSING_AUTHENTICATION_TOKEN": (404, "NOT_FOUND", False),
    "REQUEST_TOO_LARGE": (413, "TOO_LARGE", False),
    "THROTTLED": (429, "THROTTLED", True),
    "QUOTA_EXCEEDED": (429, "THROTTLED", True),
    "DEFAULT_4XX": (400, "VALIDATION_FAILED", False),
    "DEFAULT_5XX": (503, "UNAVAILABLE", True),
}


def test_every_route_wants_an_agents_token() -> None:
    assert API["Auth"]["DefaultAuthorizer"] == "AgentAuthorizer"
    authorizer = API["Auth"]["Authorizers"]["AgentAuthorizer"]
    assert _text(authorizer["UserPoolArn"]) == "AgentPool.Arn"
    routes = [each["Properties"] for each in FUNCTIONS["IngestFunction"]["Events"].values()]
    assert {(each["Method"], each["Path"]) for each in routes} == {
        ("post", "/tx/offline"),
        ("post", "/tx/offline/batch"),
        ("get", "/tx/status/{idempotencyKey}"),
        ("post", "/tx/{idempotencyKey}/refund"),
    }
    assert not [each for each in routes if "Auth" in each or _text(each["RestApiId"]) != "Api"]


@pytest.mark.parametrize("kind", PROBLEMS)
def test_the_gateway_answers_as_the_functions_do(kind: str) -> None:
    response = API["GatewayResponses"][kind]
    status, code, retryable = PROBLEMS[kind]
    problem = json.loads(response["ResponseTemplates"]["application/json"])
    assert response["StatusCode"] == str(status)
    assert problem.keys() == {"title", "status", "detail", "code", "retryable"}
    assert (problem["status"], problem["code"], problem["retryable"]) == (status, code, retryable)
    headers = response["ResponseParameters"]["Headers"]
    assert headers["Content-Type"] == "'application/problem+json'"
    assert ("Retry-After" in headers) == (status in (429, 503))


def test_an_engine_that_wants_resources_gets_the_same_answers() -> None:
    as_resources = {}
    for name, response in _of_type("AWS::ApiGateway::GatewayResponse").items():
        assert name < "ApiDeployment"  # such an engine deploys in the order of the alphabet
        assert RESOURCES[name]["Condition"] == "HasGatewayResponseResources"
        assert _text(response["RestApiId"]) == "Api"
        headers = {
            header.removeprefix("gatewayresponse.header."): value
            for header, value in response["ResponseParameters"].items()
        }
        as_resources[response["ResponseType"]] = {
            "StatusCode": response["StatusCode"],
            "ResponseParameters": {"Headers": headers},
            "ResponseTemplates": response["ResponseTemplates"],
        }
    assert as_resources == API["GatewayResponses"]
    assert API["GatewayResponses"].keys() == PROBLEMS.keys()
    assert TEMPLATE["Parameters"]["GatewayResponsesAsResources"]["Default"] == "false"


def test_the_api_is_throttled_and_logs_nothing_personal() -> None:
    (for_all,) = API["MethodSettings"]
    assert (for_all["ResourcePath"], for_all["HttpMethod"]) == ("/*", "*")
    assert _text(for_all["ThrottlingRateLimit"]) == "ApiRateLimit"
    assert _text(for_all["ThrottlingBurstLimit"]) == "ApiBurstLimit"
    assert (for_all["DataTraceEnabled"], for_all["LoggingLevel"]) == (False, "OFF")
    variables = set(re.findall(r"\$context\.([A-Za-z.]+)", API["AccessLogSetting"]["Format"]))
    assert variables <= {
        "requestId",
        "xrayTraceId",
        "requestTimeEpoch",
        "httpMethod",
        "resourcePath",
        "status",
        "error.responseType",
        "responseLatency",
        "responseLength",
    }
    assert API["TracingEnabled"] is False  # its segments hold the path, and so the key


def test_an_agents_id_is_given_once_by_an_administrator() -> None:
    pool = RESOURCES["AgentPool"]["Properties"]
    client = RESOURCES["AgentPoolClient"]["Properties"]
    assert pool["AdminCreateUserConfig"]["AllowAdminCreateUserOnly"] is True
    (agent_id,) = pool["Schema"]
    assert (agent_id["Name"], agent_id["Mutable"]) == ("agentId", False)
    assert agent_id["StringAttributeConstraints"]["MaxLength"] == "64"
    assert client["ReadAttributes"] == ["custom:agentId"]
    assert client["WriteAttributes"]  # an empty list would let the client write all of them
    assert "custom:agentId" not in client["WriteAttributes"]
    assert set(client["ExplicitAuthFlows"]) == {
        "ALLOW_USER_PASSWORD_AUTH",
        "ALLOW_ADMIN_USER_PASSWORD_AUTH",
        "ALLOW_REFRESH_TOKEN_AUTH",
    }


# --- alarms and the dashboard ----------------------------------------------------------------

TEXT = (ROOT / "template.yaml").read_text()


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_reaches_a_person_when_it_starts_and_when_it_ends(name: str) -> None:
    alarm = ALARMS[name]
    assert _texts(alarm["AlarmActions"]) == {"AlarmTopic"}
    assert _texts(alarm["OKActions"]) == {"AlarmTopic"}
    assert "ActionsEnabled" not in alarm
    assert "Metrics" not in alarm  # metric math does not deploy on the local engine


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_says_what_it_means_what_to_look_at_first_and_where_the_runbook_is(
    name: str,
) -> None:
    description = _text(ALARMS[name]["AlarmDescription"])
    meaning, _, first = description.partition(" First: ")
    assert len(meaning) > 30
    assert len(first) > 8
    assert description.endswith(f" Runbook: ${{RunbookUrl}}#{name.lower()}")
    longest = len(description) + 300  # of the address
    assert longest <= 1024  # what CloudWatch takes


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_says_why_missing_data_means_what_it_means(name: str) -> None:
    assert ALARMS[name]["TreatMissingData"] in {"breaching", "notBreaching", "ignore"}
    block = re.split(r"^  \w", TEXT.split(f"\n  {name}:", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    assert re.search(r"^      TreatMissingData: \w+ # \w.{15,}$", block, re.MULTILINE)


def test_what_can_go_wrong_has_an_alarm() -> None:
    watched = {
        (alarm["MetricName"], _text(dimension["Value"]))
        for alarm in ALARMS.values()
        for dimension in alarm["Dimensions"]
    }
    for name in FUNCTIONS:
        assert {("Errors", name), ("Throttles", name)} <= watched
    assert {
        ("IteratorAge", "RelayFunction"),
        ("OldestOpenAgeSeconds", "sweep"),
        ("SettleLatencyMs", "reconcile"),
        ("InvariantViolations", "reconcile"),
        ("InvariantViolations", "refund"),
        ("DeadLetters", "parked"),
        ("ParkedLetters", "triage-desk"),
        ("OldestOpenLetterAgeSeconds", "triage-desk"),
        ("WriteThrottleEvents", "OfflineTxTable"),
        ("WriteThrottleEvents", "WalletLedgerTable"),
        ("5XXError", "${AWS::StackName}-api"),
    } <= watched


def _alarms_of_queue(name: str) -> dict[str, Json]:
    """Metric → alarm of each alarm on a queue."""
    wanted = [{"Name": "QueueName", "Value": {"Fn::GetAtt": [name, "QueueName"]}}]
    return {each["MetricName"]: each for each in ALARMS.values() if each["Dimensions"] == wanted}


@pytest.mark.parametrize("name", QUEUES)
def test_every_queue_has_an_alarm_on_its_depth_and_one_on_the_age_of_its_oldest(name: str) -> None:
    alarms = _alarms_of_queue(name)
    depth, age = (
        alarms["ApproximateNumberOfMessagesVisible"],
        alarms["ApproximateAgeOfOldestMessage"],
    )
    assert (age["Statistic"], age["Threshold"]) == ("Maximum", 300)
    assert age["Period"] * age["EvaluationPeriods"] == 300
    assert depth["Statistic"] == "Maximum"
    # A burst that is worked off is no depth, nor is a letter on its way to triage.
    assert depth["Period"] * depth["EvaluationPeriods"] == 900
    none_may_lie = set(LETTER_QUEUES) - {"FailedTxQueue"}
    assert (depth["Threshold"] == 0) == (name in none_may_lie)


def test_a_letter_that_triage_takes_again_and_again_is_seen_too() -> None:
    """No depth shows it, and a standard queue leaves it out of its age."""
    left = ALARMS["LettersLeftAlarm"]
    assert (left["MetricName"], left["Statistic"], left["Threshold"]) == ("LettersLeft", "Sum", 0)
    hidden_s = max(QUEUES[name]["VisibilityTimeout"] for name in LETTER_QUEUES)
    assert left["Period"] > hidden_s


def test_a_movement_queue_is_deep_where_the_sweep_holds_back() -> None:
    deep = _alarms_of_queue("TxQueue")["ApproximateNumberOfMessagesVisible"]["Threshold"]
    variables = FUNCTIONS["SweepFunction"]["Environment"]["Variables"]
    assert deep == variables["SWEEP_BACKLOG_MAX"] == {"Ref": "SweepBacklogMax"}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("OldestOpenAgeAlarm", "SweepFunction"),
        ("OldestOpenLetterAgeAlarm", "TriageDeskFunction"),
    ],
)
def test_silence_of_what_reports_each_minute_is_an_alarm(name: str, function: str) -> None:
    alarm = ALARMS[name]
    variables = FUNCTIONS[function]["Environment"]["Variables"]
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["Period"] == 60
    assert alarm["Namespace"] == variables["POWERTOOLS_METRICS_NAMESPACE"]
    assert alarm["Dimensions"] == [
        {"Name": "service", "Value": variables["POWERTOOLS_SERVICE_NAME"]},
        {"Name": "stage", "Value": {"Ref": "Stage"}},
    ]


def test_an_old_letter_is_one_that_no_automatic_redrive_has_helped() -> None:
    threshold_ms = ALARMS["OldestOpenLetterAgeAlarm"]["Threshold"] * 1000
    assert threshold_ms > sum(AUTOMATIC_AFTER_MS)


def test_settling_is_slow_by_its_99th_percentile() -> None:
    alarm = ALARMS["SettleLatencyAlarm"]
    assert alarm["ExtendedStatistic"] == "p99"
    assert "Statistic" not in alarm
    assert alarm["EvaluateLowSampleCountPercentile"] == "evaluate"


type Metric = tuple[str, str, tuple[tuple[str, str], ...]]
"""Namespace, name and dimensions, as they are in CloudWatch."""

DASHBOARD: Json = json.loads(RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])
WIDGETS: dict[str, Json] = {
    widget["properties"].get("title", ""): widget["properties"]
    for widget in DASHBOARD["widgets"]
    if widget["type"] == "metric"
}


def _metric(words: list[str]) -> Metric:
    namespace, name, *dimensions = words
    return namespace, name, tuple(sorted(zip(dimensions[::2], dimensions[1::2], strict=True)))


def _metrics(widget: Json) -> Iterator[tuple[Metric, Json]]:
    """The metrics of a widget with their options; a `.` repeats the word of the line above."""
    above: list[str] = []
    for line in widget["metrics"]:
        words = [word for word in line if isinstance(word, str)]
        options = next((word for word in line if isinstance(word, dict)), {})
        if words:
            repeated = above[: len(words)] + [""] * (len(words) - len(above))
            above = [
                old if word == "." else word for word, old in zip(words, repeated, strict=True)
            ]
            yield _metric(above), options


def _emitted() -> Iterator[Metric]:
    """Every metric that the code counts, by the service that counts it."""
    counted = re.compile(r"\bcount(_by)?\(\s*\"(\w+)\"(?:,\s*\"(\w+)\",\s*([\w.]+))?")
    for function in FUNCTIONS.values():
        service = function["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"]
        package, module, _ = function["Handler"].split(".")
        own = {("service", service), ("stage", "${Stage}")}
        for path in _modules(package, module):
            text = path.read_text(encoding="utf-8")
            for by, name, dimension, _ in counted.findall(text):
                for value in VALUES[name] if by else [None]:
                    further = set() if value is None else {(dimension, value)}
                    yield "Wakala", name, tuple(sorted(own | further))
            if "on_consumed=telemetry.count" in text:
                for name in ("ConsumedReadUnits", "ConsumedWriteUnits"):
                    yield "Wakala", name, tuple(sorted(own))


def _modules(package: str, module: str) -> set[Path]:
    """The files of a service that a handler imports, itself included."""
    names, found = [f"{package}.{module}"], set()
    while names:
        path = (ROOT / "services" / names.pop().replace(".", "/")).with_suffix(".py")
        if path.is_file() and path not in found:
            found.add(path)
            text = path.read_text(encoding="utf-8")
            names += re.findall(rf"^from ({package}\.\w+) import", text, re.MULTILINE)
            inner = re.findall(rf"^from {package} import (\w+)", text, re.MULTILINE)
            names += [f"{package}.{each}" for each in inner]
    return found


NOT_RECONCILES = {
    Reason.DISCARDED,  # by a person, at triage's desk
    Reason.BALANCE_LIMIT,  # of credits
    Reason.ORIGINAL_NOT_FOUND,
    Reason.NOTHING_TO_REFUND,
    Reason.EXCEEDS_ORIGINAL,
    Reason.MISMATCH,
}
VALUES: dict[str, list[str]] = {
    "TransactionsFailed": [each for each in Reason if each not in NOT_RECONCILES],
    "RefundsRejected": list(Reason),
    "DeadLetters": list(Verdict),
    "LettersActedOn": list(Outcome),
}
"""What a metric that has a dimension of its own is counted by."""

EMITTED = frozenset(_emitted())
OF_AWS = {
    "AWS/SQS": {"QueueName": {f"{name}.QueueName" for name in QUEUES}},
    "AWS/Lambda": {"FunctionName": set(FUNCTIONS)},
    "AWS/ApiGateway": {"ApiName": {"AWS::StackName"}, "Stage": {"Stage"}},
}


def test_the_metrics_that_are_watched_are_counted_by_the_code() -> None:
    alarmed = [
        _metric(
            [
                "Wakala",
                alarm["MetricName"],
                *(
                    part
                    for each in alarm["Dimensions"]
                    for part in (each["Name"], _text(each["Value"]).replace("Stage", "${Stage}"))
                ),
            ]
        )
        for alarm in ALARMS.values()
        if alarm["Namespace"] == "Wakala"
    ]
    assert len(alarmed) >= 6
    assert set(alarmed) <= EMITTED


@pytest.mark.parametrize("title", WIDGETS)
def test_a_widget_shows_metrics_that_there_are(title: str) -> None:
    metrics = list(_metrics(WIDGETS[title]))
    assert metrics
    for metric, _ in metrics:
        namespace, _, dimensions = metric
        if namespace == "Wakala":
            assert metric in EMITTED
            continue
        assert {name for name, _ in dimensions} == OF_AWS[namespace].keys()
        for name, value in dimensions:
            assert set(re.findall(r"\$\{([^}]+)\}", value)) <= OF_AWS[namespace][name]


@pytest.mark.parametrize("title", WIDGETS)
def test_a_widget_computes_with_metrics_that_it_names(title: str) -> None:
    metrics = list(_metrics(WIDGETS[title]))
    ids = [options["id"] for _, options in metrics if "id" in options]
    assert len(set(ids)) == len(ids)
    formulas = [
        line[0]["expression"] for line in WIDGETS[title]["metrics"] if isinstance(line[0], dict)
    ]
    used = set()
    for formula in formulas:
        (prefix,) = re.findall(r"^1000000 \* SUM\(METRICS\(\"(\w+_)\"\)\) / accepted$", formula)
        used |= {each for each in ids if prefix in each} | {"accepted"}
        assert {each.rstrip("0123456789") for each in used} >= {prefix}
    assert used == set(ids)


def _shown(name: str) -> set[str]:
    """The services of which the dashboard shows a metric."""
    return {
        dict(dimensions)["service"]
        for widget in WIDGETS.values()
        for (namespace, shown, dimensions), _ in _metrics(widget)
        if (namespace, shown) == ("Wakala", name)
    }


def test_the_dashboard_shows_the_four_measures_of_everybody_who_counts_them() -> None:
    for name in ("DuplicatesSuppressed", "ConsumedWriteUnits", "ConsumedReadUnits"):
        assert _shown(name) == {
            dict(dimensions)["service"] for _, counted, dimensions in EMITTED if counted == name
        }
    percentiles = {
        options["stat"]
        for widget in WIDGETS.values()
        for (_, name, _), options in _metrics(widget)
        if name == "SettleLatencyMs"
    }
    assert percentiles == {"p50", "p95", "p99"}
    (duplicates,) = [title for title in WIDGETS if title.startswith("Duplicates")]
    assert "per million" in duplicates
    assert "the audit counts duplicate debits" in duplicates
    for name in ("OpenLetters", "ParkedLetters", "OldestOpenLetterAgeSeconds"):
        assert _shown(name) == {"triage-desk"}


def test_the_dashboard_shows_every_queue_function_reason_and_verdict() -> None:
    shown = {metric for widget in WIDGETS.values() for metric, _ in _metrics(widget)}
    for queue in QUEUES:
        for name in ("ApproximateNumberOfMessagesVisible", "ApproximateAgeOfOldestMessage"):
            assert ("AWS/SQS", name, (("QueueName", f"${{{queue}.QueueName}}"),)) in shown
    for function in FUNCTIONS:
        for name in ("Errors", "Throttles"):
            assert ("AWS/Lambda", name, (("FunctionName", f"${{{function}}}"),)) in shown
    by_value = {metric for metric in EMITTED if metric[1] in {"TransactionsFailed", "DeadLetters"}}
    assert by_value <= shown
    assert {"OpenTransactions", "OldestOpenAgeSeconds"} <= {name for _, name, _ in shown}


def test_the_dashboard_shows_the_state_of_every_alarm() -> None:
    (alarms,) = [each for each in DASHBOARD["widgets"] if each["type"] == "alarm"]
    assert sorted(alarms["properties"]["alarms"]) == sorted(f"${{{name}.Arn}}" for name in ALARMS)


def test_the_widgets_of_the_dashboard_do_not_cover_one_another() -> None:
    cells = [
        (x, y)
        for widget in DASHBOARD["widgets"]
        for x in range(widget["x"], widget["x"] + widget["width"])
        for y in range(widget["y"], widget["y"] + widget["height"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23  # a dashboard is 24 wide


# --- parameters and outputs ----------------------------------------------------------------


def _names_used(value: Any) -> Iterator[str]:
    """Each name that a Ref, a Sub, an If or a Condition gives somewhere below a value."""
    match value:
        case {"Ref": str(name)} | {"Condition": str(name)} | {"Fn::If": [str(name), *_]}:
            yield name
        case {"Fn::Sub": str(text)}:
            yield from re.findall(r"\$\{([^.}]+)", text)
        case _:
            pass
    if isinstance(value, dict):
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _names_used(each)


USED = set(_names_used({name: part for name, part in TEMPLATE.items() if name != "Parameters"}))


def test_calls_are_in_a_trace_only_where_somebody_asks_for_it() -> None:
    """They cost a cold start half as much again, and what was called is in the log anyway."""
    assert TEMPLATE["Parameters"]["TraceCalls"]["Default"] == "false"
    variables = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
    assert variables["AWS_XRAY_SDK_ENABLED"] == {"Ref": "TraceCalls"}
    assert TEMPLATE["Globals"]["Function"]["Tracing"] == {"Ref": "Tracing"}


@pytest.mark.parametrize("name", TEMPLATE["Parameters"])
def test_a_parameter_is_explained_bounded_and_used(name: str) -> None:
    parameter = TEMPLATE["Parameters"][name]
    assert {"Description", "Type", "Default"} <= parameter.keys()
    assert parameter.keys() & {"AllowedValues", "AllowedPattern", "MinValue"}
    assert name in USED


def test_every_condition_is_used_and_asks_parameters_only() -> None:
    assert set(TEMPLATE["Conditions"]) <= USED
    # Pseudo parameters do not resolve there on the local engine.
    assert set(_names_used(TEMPLATE["Conditions"])) <= set(TEMPLATE["Parameters"])


def test_a_new_account_can_take_the_defaults() -> None:
    defaults = {name: each["Default"] for name, each in TEMPLATE["Parameters"].items()}
    assert defaults["IngestReservedConcurrency"] == defaults["ReconcileReservedConcurrency"] == 0
    assert defaults["ReconcileConcurrency"] + defaults["RefundConcurrency"] <= 10
    assert defaults["OfflineTxWarmWrites"] == defaults["WalletLedgerWarmWrites"] == 0
    assert defaults["LetterRetentionDays"] > 0  # letters hold phones: they go, some day


def test_what_scripts_rely_on_is_given_out() -> None:
    assert {
        "ApiUrl",
        "OfflineTxTable",
        "WalletLedgerTable",
        "TxQueueUrl",
        "TxDlqUrl",
        "RefundQueueUrl",
        "RefundDlqUrl",
        "FailedTxQueueUrl",
        "EventBusName",
        "UserPoolId",
        "UserPoolClientId",
        "DeadLettersTable",
        "TriageDeskFunctionName",
        "OperatorPolicyArn",
        "ReplayPolicyArn",
        "DashboardName",
        "AlarmTopicArn",
    } <= TEMPLATE["Outputs"].keys()
    assert _text(TEMPLATE["Outputs"]["ApiUrl"]["Value"]).endswith("/${Stage}")


# --- what is built -------------------------------------------------------------------------


def _build(logical_id: str, folder: str, artifacts: Path, **environment: str) -> None:
    subprocess.run(
        ["make", "--silent", f"build-{logical_id}"],  # noqa: S607
        cwd=ROOT / folder,
        env={**os.environ, "ARTIFACTS_DIR": str(artifacts), **environment},
        check=True,
    )


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_artifact_is_the_functions_own_package_and_small(name: str, tmp_path: Path) -> None:
    assert RESOURCES[name]["Metadata"] == {"BuildMethod": "makefile"}
    assert FUNCTIONS[name]["CodeUri"] == "services/"
    _build(name, "services", tmp_path)
    package, module, _ = FUNCTIONS[name]["Handler"].split(".")
    assert [path.name for path in tmp_path.iterdir()] == [package]
    assert (tmp_path / package / f"{module}.py").is_file()
    assert not list(tmp_path.rglob("__pycache__"))
    assert _bytes(tmp_path) <= 60_000


def test_the_layer_is_small_and_brings_no_second_sdk(tmp_path: Path) -> None:
    _build(
        "WalletLedgerLayer", "shared", tmp_path, LAYER_PLATFORM="local", LAYER_PYTHON=sys.executable
    )
    packages = {path.name for path in (tmp_path / "python").iterdir()}
    assert {"wallet_ledger", "pydantic", "phonenumbers", "aws_lambda_powertools"} <= packages
    assert not packages & {"boto3", "botocore", "urllib3", "dateutil", "bin"}
    assert not list(tmp_path.rglob("__pycache__"))
    assert _bytes(tmp_path) <= 20_000_000


def test_the_layers_wheels_are_pinned_by_hash() -> None:
    pins = (ROOT / "shared" / "requirements.txt").read_text()
    blocks = re.findall(
        r"^(\S+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)", pins, re.MULTILINE
    )
    assert len(blocks) == len(re.findall(r"^[a-z]", pins, re.MULTILINE)) >= 4
    assert "://" not in pins
