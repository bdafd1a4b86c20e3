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
from wallet_ledger import settings


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


def test_the_system_is_these_six_functions() -> None:
    handlers = {name: function["Handler"] for name, function in FUNCTIONS.items()}
    assert handlers == {
        "IngestFunction": "ingest.handler.handle",
        "IngestBusFunction": "ingest.bus_handler.handle",
        "RelayFunction": "relay.handler.handle",
        "SweepFunction": "relay.sweep_handler.handle",
        "ReconcileFunction": "reconcile.handler.handle",
        "RefundFunction": "refund.handler.handle",
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
    for table in TABLES:
        assert _may("AuditorRole", "dynamodb:Scan", f"{table}.Arn")


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


@pytest.mark.parametrize(
    ("role", "queues"),
    [
        ("IngestRole", set()),
        ("IngestBusRole", {"TxQueue", "RefundQueue", "DeliveryFailuresQueue"}),
        ("RelayRole", {"TxQueue", "FailedTxQueue", "DeliveryFailuresQueue"}),
        ("SweepRole", {"DeliveryFailuresQueue"}),
        ("ReconcileRole", {"DeliveryFailuresQueue"}),
        ("RefundRole", {"DeliveryFailuresQueue"}),
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
        ("ReconcileFunction", "TxQueue.Arn"),
        ("RefundFunction", "RefundQueue.Arn"),
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
    queue = QUEUES[mapping.source.removesuffix(".Arn")]
    assert queue["VisibilityTimeout"] >= 6 * FUNCTIONS[mapping.function]["Timeout"]
    assert queue["RedrivePolicy"]["maxReceiveCount"] >= 5
    assert mapping.properties["BatchSize"] <= 10
    assert "MaximumConcurrency" in mapping.properties["ScalingConfig"]
    assert "FilterCriteria" not in mapping.properties  # it would delete what does not match


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


def test_only_debits_and_balances_are_filtered_off_a_stream() -> None:
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


def test_a_failed_run_of_the_sweep_leaves_a_letter() -> None:
    sweep = FUNCTIONS["SweepFunction"]
    ((event_name, schedule),) = sweep["Events"].items()
    assert schedule["Properties"]["Schedule"] == "rate(1 minute)"
    assert sweep["Timeout"] < 60
    assert _text(schedule["Properties"]["DeadLetterConfig"]["Arn"]) == DELIVERY_FAILURES
    assert f"SweepFunction{event_name}.Arn" in _senders("DeliveryFailuresQueue")
    on_failure = sweep["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]
    assert _text(on_failure["Destination"]) == DELIVERY_FAILURES
    assert _may("SweepRole", "sqs:SendMessage", DELIVERY_FAILURES)


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


def test_every_queue_that_is_polled_has_a_dead_letter_queue() -> None:
    polled = {mapping.source.removesuffix(".Arn") for mapping in QUEUE_MAPPINGS}
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


def test_only_finished_offline_transactions_can_ever_be_purged() -> None:
    ttl = {name: table.get("TimeToLiveSpecification") for name, table in TABLES.items()}
    assert ttl == {
        "OfflineTxTable": {"AttributeName": "purgeAt", "Enabled": True},
        "WalletLedgerTable": None,
    }


def test_keys_streams_and_the_sparse_index_are_those_of_the_design() -> None:
    keys = {
        name: [key["AttributeName"] for key in table["KeySchema"]] for name, table in TABLES.items()
    }
    assert keys == {
        "OfflineTxTable": ["agentId", "idempotencyKey"],
        "WalletLedgerTable": ["phone", "txId"],
    }
    views = {name: table["StreamSpecification"]["StreamViewType"] for name, table in TABLES.items()}
    assert views == {"OfflineTxTable": "NEW_AND_OLD_IMAGES", "WalletLedgerTable": "NEW_IMAGE"}
    (index,) = TABLES["OfflineTxTable"]["GlobalSecondaryIndexes"]
    assert index["IndexName"] == "OpenTx"
    assert [key["AttributeName"] for key in index["KeySchema"]] == ["openShard", "nextSweepAt"]
    assert index["Projection"] == {
        "ProjectionType": "INCLUDE",
        "NonKeyAttributes": ["status", "attempt", "createdAt", "updatedAt", "expiresAt"],
    }
    assert "GlobalSecondaryIndexes" not in TABLES["WalletLedgerTable"]


# --- API and agents ------------------------------------------------------------------------

API: Json = RESOURCES["Api"]["Properties"]
PROBLEMS = {
    "UNAUTHORIZED": (401, "UNAUTHENTICATED", False),
    "ACCESS_DENIED": (403, "ACCESS_DENIED", False),
    "MISSING_AUTHENTICATION_TOKEN": (404, "NOT_FOUND", False),
    "REQUEST_TOO_LARGE": (413, "TOO_LARGE", False),
    "THROTTLED": (429, "THROTTLED", True),
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
    assert ("Retry-After" in headers) == retryable


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


# --- alarms --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALARMS)
def test_an_alarm_reaches_a_person_and_says_what_to_do_first(name: str) -> None:
    alarm = ALARMS[name]
    assert "First:" in alarm["AlarmDescription"]
    assert _texts(alarm["AlarmActions"]) == {"AlarmTopic"}
    assert alarm["TreatMissingData"] in {"breaching", "notBreaching"}
    assert "Metrics" not in alarm  # metric math does not deploy on the local engine


def test_what_can_go_wrong_has_an_alarm() -> None:
    watched = {
        (alarm["MetricName"], _text(dimension["Value"]))
        for alarm in ALARMS.values()
        for dimension in alarm["Dimensions"]
    }
    for name in FUNCTIONS:
        assert {("Errors", name), ("Throttles", name)} <= watched
    assert {
        ("ApproximateNumberOfMessagesVisible", "TxDlqQueue.QueueName"),
        ("ApproximateNumberOfMessagesVisible", "RefundDlqQueue.QueueName"),
        ("ApproximateNumberOfMessagesVisible", "DeliveryFailuresQueue.QueueName"),
        ("ApproximateAgeOfOldestMessage", "TxQueue.QueueName"),
        ("ApproximateAgeOfOldestMessage", "RefundQueue.QueueName"),
        ("ApproximateAgeOfOldestMessage", "InboxQueue.QueueName"),
        ("IteratorAge", "RelayFunction"),
        ("OldestOpenAgeSeconds", "sweep"),
        ("InvariantViolations", "reconcile"),
        ("InvariantViolations", "refund"),
        ("5XXError", "${AWS::StackName}-api"),
    } <= watched


def test_a_silent_sweep_is_an_alarm() -> None:
    alarm = ALARMS["OldestOpenAgeAlarm"]
    variables = FUNCTIONS["SweepFunction"]["Environment"]["Variables"]
    assert alarm["TreatMissingData"] == "breaching"
    assert alarm["Namespace"] == variables["POWERTOOLS_METRICS_NAMESPACE"]
    assert alarm["Dimensions"] == [
        {"Name": "service", "Value": variables["POWERTOOLS_SERVICE_NAME"]},
        {"Name": "stage", "Value": {"Ref": "Stage"}},
    ]


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
    assert _bytes(tmp_path) <= 50_000


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
