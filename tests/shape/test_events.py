"""Every file in events/ is a real shape: its function handles it, as deployed but for the network.

The handlers are the real ones, wired from events/env.json; only what goes over the wire to AWS is
answered here. A file without a line in `CASES` fails, and so does a line without a file.
"""

import importlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from tests.fakes.wire import Answer, Sent, Wire, error, ok
from tests.template import RESOURCES, ROOT, TEMPLATE
from wallet_ledger import telemetry

pytestmark = pytest.mark.disable_socket

EVENTS = ROOT / "events"
CONTEXT = SimpleNamespace(aws_request_id="r-1", get_remaining_time_in_millis=lambda: 10_000)
ENV: dict[str, dict[str, str]] = json.loads((EVENTS / "env.json").read_text())
FUNCTIONS = {
    name: resource["Properties"]
    for name, resource in RESOURCES.items()
    if resource["Type"] == "AWS::Serverless::Function"
}


def _load(name: str) -> Any:
    return json.loads((EVENTS / name).read_text())


def _taken(sent: Sent) -> AWSResponse:
    """As a queue or the bus answers when it takes everything."""
    entries = sent.body["Entries"]
    done = [{"Id": entry.get("Id"), "EventId": "e", "MessageId": "m"} for entry in entries]
    return ok({"Successful": done, "Failed": [], "Entries": done, "FailedEntryCount": 0})(sent)


EMPTY_QUEUE = {f"ApproximateNumberOfMessages{kind}": "0" for kind in ("", "NotVisible", "Delayed")}
ANSWERS: dict[str, Answer] = {
    "ChangeMessageVisibilityBatch": _taken,
    "GetItem": ok(),
    "GetQueueAttributes": ok({"Attributes": EMPTY_QUEUE}),
    "PutEvents": _taken,
    "PutItem": ok(),
    "Query": ok({"Items": []}),
    "SendMessageBatch": _taken,
    "TransactWriteItems": ok(),
    "UpdateItem": ok(),
}
"""What AWS says where a case does not say otherwise."""

SYNCED = _load("relay/settled.json")["Records"][0]["dynamodb"]["NewImage"]
"""The row of ingest/post.json, once it is settled."""
FUNDED = _load("relay/entries.json")["Records"][1]["dynamodb"]["NewImage"]
"""The balance row of its phone, after reconcile/credit.json."""
TAKEN = error("ConditionalCheckFailedException", Item=SYNCED)


def _open_rows(sent: Sent) -> AWSResponse:
    """In the last shard one row whose time to be sent again has come, and one that is too old."""
    rows = [
        {
            "agentId": {"S": "AG-001"},
            "idempotencyKey": {"S": f"2026-11-02.{number}"},
            "openShard": {"S": "open#15"},
            "nextSweepAt": {"N": "1793602920000"},
            "status": {"S": "queued"},
            "attempt": {"N": "1"},
            "createdAt": {"N": "1793602800000"},
            "expiresAt": {"N": expires_at},
        }
        for number, expires_at in enumerate(["1", "32503680000"])
    ]
    last = sent.body["ExpressionAttributeValues"][":shard"]["S"] == "open#15"
    return ok({"Items": rows if last else []})(sent)


@dataclass(frozen=True)
class Case:
    """What the function answers and which calls it makes, given what AWS answers."""

    told: object
    calls: list[str] = field(default_factory=list)
    given: dict[str, Answer] = field(default_factory=dict)


DONE: list[str] = []
"""`batchItemFailures` when nothing has to come again."""

CASES = {
    "ingest/post.json": Case((202, "queued"), ["PutItem"]),
    "ingest/post-again.json": Case((200, "synced"), ["PutItem"], {"PutItem": TAKEN}),
    "ingest/post-other-content.json": Case((422, "KEY_REUSED"), ["PutItem"], {"PutItem": TAKEN}),
    "ingest/post-batch.json": Case(
        (200, ["queued", "VALIDATION_FAILED", "queued", "queued"]), ["PutItem"] * 3
    ),
    "ingest/post-bad-request.json": Case((400, "VALIDATION_FAILED")),
    "ingest/post-another-agent.json": Case((403, "AGENT_MISMATCH")),
    "ingest/post-access-token.json": Case((401, "UNAUTHENTICATED")),
    "ingest/get-status.json": Case((200, "synced"), ["GetItem"], {"GetItem": ok({"Item": SYNCED})}),
    "ingest/get-unknown.json": Case((404, "NOT_FOUND"), ["GetItem"]),
    "ingest-bus/credit.json": Case(DONE, ["SendMessageBatch wakala-TxQueue.fifo 1"]),
    "ingest-bus/status.json": Case(DONE, ["SendMessageBatch wakala-TxQueue.fifo 1"]),
    "ingest-bus/mixed.json": Case(
        DONE,
        ["SendMessageBatch wakala-DeliveryFailures 2", "SendMessageBatch wakala-TxQueue.fifo 2"],
    ),
    "relay/accepted.json": Case(DONE, ["SendMessageBatch wakala-TxQueue.fifo 3"]),
    "relay/settled.json": Case(
        DONE, ["PutEvents 2", "SendMessageBatch wakala-FailedTxQueue.fifo 1"]
    ),
    "relay/swept.json": Case(DONE, ["PutEvents 1", "SendMessageBatch wakala-TxQueue.fifo 1"]),
    "relay/entries.json": Case(DONE, ["PutEvents 3"]),
    "relay/purged.json": Case(DONE),
    "relay/unreadable.json": Case(
        DONE,
        ["SendMessageBatch wakala-DeliveryFailures 1", "SendMessageBatch wakala-TxQueue.fifo 1"],
    ),
    "sweep/every-minute.json": Case(
        None,
        ["GetQueueAttributes", *["Query"] * 16, "UpdateItem", "UpdateItem"],
        {"Query": _open_rows},
    ),
    "reconcile/debit.json": Case(
        DONE, ["GetItem", "TransactWriteItems 3"], {"GetItem": ok({"Item": FUNDED})}
    ),
    "reconcile/credit.json": Case(DONE, ["GetItem", "TransactWriteItems 2"]),
    "reconcile/status.json": Case(DONE, ["GetItem", "TransactWriteItems 2"]),
    # Two debits and a credit of one phone, a repetition of the first, a debit of another phone.
    "reconcile/mixed.json": Case(
        DONE, ["GetItem", "GetItem", "TransactWriteItems 3", "TransactWriteItems 6"]
    ),
    "reconcile/poison.json": Case(
        DONE,
        ["GetItem", "SendMessageBatch wakala-DeliveryFailures 1", "TransactWriteItems 3"],
    ),
}


def _function(event: str) -> str:
    """The folder of an event is the name of its function, as in metrics and log groups."""
    folder = event.split("/", maxsplit=1)[0]
    return next(name for name in FUNCTIONS if ENV[name]["POWERTOOLS_SERVICE_NAME"] == folder)


def _handler(function: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any], Any]:
    """The function as Lambda loads it, in the environment of events/env.json."""
    for name, value in (ENV["Parameters"] | ENV[function]).items():
        monkeypatch.setenv(name, value)
    module, _, name = FUNCTIONS[function]["Handler"].rpartition(".")
    monkeypatch.delitem(sys.modules, module, raising=False)
    handler: Callable[[Any, Any], Any] = getattr(importlib.import_module(module), name)
    return handler


def _told(answer: Any) -> object:
    """What matters of an answer: to HTTP the status and what the body says, else the failures."""
    if answer is None or "statusCode" not in answer:
        return answer and [each["itemIdentifier"] for each in answer["batchItemFailures"]]
    body = json.loads(answer["body"])
    if "results" in body:
        said = [item.get("error", {}).get("code", item.get("status")) for item in body["results"]]
        return answer["statusCode"], said
    return answer["statusCode"], body.get("code", body.get("status"))


def _call(sent: Sent) -> str:
    """An operation; for one of many entries also to where and how many."""
    body = sent.body
    queue = [body["QueueUrl"].rsplit("/", 1)[1]] if "Entries" in body and "QueueUrl" in body else []
    many = [str(len(body[name])) for name in ("Entries", "TransactItems") if name in body]
    return " ".join([sent.operation, *queue, *many])


@pytest.mark.parametrize("name", CASES)
def test_each_event_is_handled_by_its_function_as_deployed(
    name: str,
    wire: Wire,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES[name]
    wire.answer = lambda sent: (ANSWERS | case.given)[sent.operation](sent)
    handle = _handler(_function(name), monkeypatch)
    answer = handle(_load(name), CONTEXT)
    json.dumps(answer)  # Lambda has to
    assert _told(answer) == case.told
    assert sorted(map(_call, wire.sent)) == sorted(case.calls)
    _logs_nothing_personal(caplog, capsys)


def _logs_nothing_personal(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """P12: neither the log nor the metrics hold a phone, a key, an amount or a token."""
    lines = "".join(map(telemetry.logger.registered_formatter.format, caplog.records))
    lines += capsys.readouterr().out
    for secret in (
        "254712",
        "0712 345",
        "733000111",
        "125000",
        "2026-11-02.00",
        "an.id.token",
        "QK71",
    ):
        assert secret not in lines


def test_c07_a_transaction_that_is_still_in_progress_is_tried_again_and_never_refused(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = _handler("ReconcileFunction", monkeypatch)
    in_progress = error("TransactionInProgressException")
    wallet = ok({"Item": FUNDED})
    wire.answers(wallet, in_progress, wallet, ok())
    assert handle(_load("reconcile/debit.json"), CONTEXT) == {"batchItemFailures": []}
    first, last = (s.body for s in wire.sent if s.operation == "TransactWriteItems")
    outcomes = [
        write["Put"]["Item"]["outcome"] for write in last["TransactItems"] if "Put" in write
    ]
    assert outcomes == [{"S": "posted"}]
    assert len(first["TransactItems"]) == len(last["TransactItems"])


def test_no_event_is_without_a_case_and_no_case_without_an_event() -> None:
    files = {str(path.relative_to(EVENTS)) for path in EVENTS.rglob("*") if path.is_file()}
    assert files == {*CASES, "env.json"}


def test_each_function_has_events_in_a_folder_of_its_own_name() -> None:
    folders = {path.name for path in EVENTS.iterdir() if path.is_dir()}
    assert folders == {ENV[name]["POWERTOOLS_SERVICE_NAME"] for name in FUNCTIONS}


def test_one_event_takes_one_call_per_transaction_and_per_wallet() -> None:
    """Issue 2: one put per accepted transaction; one read and one write per phone and batch."""
    posts = [name for name in CASES if name.startswith("ingest/")]
    assert max(len(CASES[name].calls) for name in posts if "batch" not in name) == 1
    records = _load("reconcile/mixed.json")["Records"]
    phones = {json.loads(record["body"])["phone"] for record in records}
    assert len(records) == 5
    assert len(CASES["reconcile/mixed.json"].calls) == 2 * len(phones) == 4


def test_the_environment_of_local_invocations_is_the_one_the_template_declares() -> None:
    """`sam local invoke` passes on only what the template declares: anything else is a lie."""
    assert ENV.keys() == {"Parameters", *FUNCTIONS}
    for_all = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"].keys()
    assert ENV["Parameters"].keys() == for_all
    for name, function in FUNCTIONS.items():
        assert ENV[name].keys() == function["Environment"]["Variables"].keys()
    assert all(isinstance(value, str) for each in ENV.values() for value in each.values())
