"""Every file in events/ is a real shape: its function handles it, as deployed but for the network.

The handlers are the real ones, wired from events/env.json; only what goes over the wire to AWS is
answered here. A file without a line in `CASES` fails, and so does a line without a file.
"""

import base64
import importlib
import json
import re
import sys
from collections.abc import Callable, Mapping
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


def _found(*known: dict[str, Any]) -> Answer:
    """As the tables answer a TransactGetItems where these items are all they hold."""

    def answer(sent: Sent) -> AWSResponse:
        keys = [each["Get"]["Key"] for each in sent.body["TransactItems"]]
        found = [[item for item in known if key.items() <= item.items()] for key in keys]
        return ok({"Responses": [{"Item": each[0]} if each else {} for each in found]})(sent)

    return answer


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
    "TransactGetItems": _found(),
    "TransactWriteItems": ok(),
    "UpdateItem": ok(),
}
"""What AWS says where a case does not say otherwise."""

SYNCED = _load("relay/settled.json")["Records"][0]["dynamodb"]["NewImage"]
"""The row of ingest/post.json, once it is settled."""
OPEN = _load("relay/accepted.json")["Records"][0]["dynamodb"]["NewImage"]
"""The same row before that."""
FUNDED = _load("relay/entries.json")["Records"][1]["dynamodb"]["NewImage"]
"""The balance row of its phone, after reconcile/credit.json."""
TAKEN = error("ConditionalCheckFailedException", Item=SYNCED)


def _row_alone(row: Mapping[str, Any]) -> Answer:
    """OfflineTx has the row, and the ledger nothing."""
    return lambda sent: ok({"Item": row} if "agentId" in sent.body["Key"] else {})(sent)


WAITING = _load("relay/letters.json")["Records"][0]["dynamodb"]["NewImage"]
"""The letter of the first record of triage/movements.json."""
RECORD = {
    "id": {"S": WAITING["id"]["S"].replace("letter#", "record#") + "#0"},
    "part": {
        "B": base64.b64encode(
            json.dumps(_load("triage/movements.json")["Records"][0]).encode()
        ).decode()
    },
}
HELD = {name: OPEN[name] for name in OPEN if name not in {"openShard", "nextSweepAt"}} | {
    "status": {"S": "held"},
    "heldBy": {"S": WAITING["id"]["S"].removeprefix("letter#")},
}
"""The row of ingest/post.json as that letter holds it."""


def _known(*known: dict[str, Any]) -> Answer:
    """As the tables answer a GetItem where these items are all they hold."""

    def answer(sent: Sent) -> AWSResponse:
        key = sent.body["Key"]
        of_table = [item for item in known if ("id" in item) == ("id" in key)]
        found = [item for item in of_table if key.items() <= item.items()]
        return ok({"Item": found[0]} if found else {})(sent)

    return answer


def _letters(shard: int) -> Answer:
    """As the indexes of letters answer where that letter is all that a shard holds, and is due."""

    def answer(sent: Sent) -> AWSResponse:
        asked = sent.body["ExpressionAttributeValues"][":shard"]["S"]
        items = [WAITING | {"dueAt": {"N": "1"}}] if asked == f"letter#{shard:02d}" else []
        return ok({"Items": items})(sent)

    return answer


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
            "updatedAt": {"N": "1793602800000"},
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


SETTLED: dict[str, Answer] = {"TransactGetItems": _found(SYNCED, FUNDED)}
"""What refund sees of a debit that nothing has been given back of."""
DESK: dict[str, Answer] = {"GetItem": _known(WAITING, RECORD, HELD), "Query": _letters(3)}
"""What the desk sees of a debit that triage holds."""
FOUND = "GetItem"
"""One consistent read."""
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
    # Not settled yet, and all of it: cancelled. Settled, and a part of it: on its way.
    "ingest/refund.json": Case(
        (200, "cancelled"),
        ["GetItem"] * 3 + ["TransactWriteItems 2"],
        {"GetItem": _row_alone(OPEN)},
    ),
    "ingest/refund-partial.json": Case(
        (202, "refund_requested"),
        ["GetItem"] * 2 + ["TransactWriteItems 2"],
        {"GetItem": _row_alone(SYNCED)},
    ),
    "ingest/refund-bad-request.json": Case((400, "VALIDATION_FAILED")),
    "ingest-bus/credit.json": Case(DONE, ["SendMessageBatch wakala-TxQueue.fifo 1"]),
    "ingest-bus/status.json": Case(DONE, ["SendMessageBatch wakala-TxQueue.fifo 1"]),
    "ingest-bus/refund.json": Case(DONE, ["SendMessageBatch wakala-RefundQueue.fifo 1"]),
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
    # A refund of either outcome. Of rows: a request, a cancellation (two events), and a refund in
    # part, which its entry tells of.
    "relay/refunds.json": Case(DONE, ["PutEvents 2"]),
    "relay/refunded.json": Case(DONE, ["PutEvents 3"]),
    "relay/purged.json": Case(DONE),
    # A letter filed; another, looked into since, which moves nothing; the first one redriven.
    "relay/letters.json": Case(DONE, ["PutEvents 3"]),
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
    # One look and one write for each refund: its entry, the total, the balance, and the row.
    "refund/full.json": Case(DONE, ["TransactGetItems 6", "TransactWriteItems 4"], SETTLED),
    "refund/partial.json": Case(DONE, ["TransactGetItems 6", "TransactWriteItems 4"], SETTLED),
    # Two of one debit; between them one of a debit that cannot be seen yet, which comes again.
    "refund/mixed.json": Case(
        [_load("refund/mixed.json")["Records"][1]["messageId"]],
        [
            *["TransactGetItems 6"] * 3,
            *["TransactWriteItems 4"] * 2,
            "ChangeMessageVisibilityBatch wakala-RefundQueue.fifo 1",
        ],
        SETTLED,
    ),
    "refund/poison.json": Case(
        DONE,
        [
            "SendMessageBatch wakala-DeliveryFailures 1",
            "TransactGetItems 6",
            "TransactWriteItems 4",
        ],
        SETTLED,
    ),
    # A letter and its record are written at once, with the row where it is held. Before that: the
    # row, the entry, the reuse of the id, and of what may be redriven the budget.
    "triage/movements.json": Case(
        DONE,
        [
            *[FOUND] * 4,
            "TransactWriteItems 3",
            *[FOUND] * 3,
            "TransactWriteItems 2",
            *[FOUND] * 3,
            "TransactWriteItems 2",
        ],
        {"GetItem": _known(OPEN)},
    ),
    "triage/refunds.json": Case(
        DONE, ["TransactGetItems 6", FOUND, "TransactWriteItems 2"] * 2, SETTLED
    ),
    "triage/refusals.json": Case(DONE, ["TransactWriteItems 2"]),
    "triage/failures.json": Case(
        DONE,
        [
            *["TransactWriteItems 2"] * 2,
            *[FOUND] * 4,
            "TransactWriteItems 3",
            "TransactGetItems 6",
            "TransactWriteItems 2",
            *[FOUND, "TransactWriteItems 2"] * 2,
        ],
        SETTLED | {"GetItem": _known(OPEN)},
    ),
    "triage/runs.json": Case(DONE, ["TransactWriteItems 2"] * 4),
    "triage/poison.json": Case(DONE, ["TransactWriteItems 2"] * 5),
    "triage-desk/list.json": Case(["waiting"], ["Query"] * 10, DESK),
    "triage-desk/groups.json": Case([("NEVER_RAN", 1)], ["Query"] * 10, DESK),
    "triage-desk/show.json": Case("waiting", [FOUND] * 2, DESK),
    # The letter, its record, a line of history, and what it says now.
    "triage-desk/reveal.json": Case("waiting", [*[FOUND] * 4, "TransactWriteItems 1"], DESK),
    # The letter, its record, its row and entries, the budget: and nothing written.
    "triage-desk/redrive.json": Case(["redriven"], [FOUND] * 6, DESK),
    "triage-desk/discard.json": Case(
        ["discarded", "unknown"], [*[FOUND] * 6, "TransactWriteItems 3"], DESK
    ),
    "triage-desk/due.json": Case(
        {"openLetters": 1, "parkedLetters": 0, "redriven": 1},
        [*["Query"] * 16, *[FOUND] * 6, "TransactWriteItems 4"],
        DESK,
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
    match answer:
        case {"batchItemFailures": failures}:
            return [each["itemIdentifier"] for each in failures]
        case {"statusCode": status, "body": text}:
            return status, _said(json.loads(text))
        case {"letters": letters}:
            return [each["status"] for each in letters]
        case {"groups": groups}:
            return [(each["class"], each["count"]) for each in groups]
        case {"letter": letter}:
            return letter["status"]
        case {"results": results}:
            return [each["outcome"] for each in results]
        case _:
            return answer


def _said(body: Any) -> object:
    if "results" in body:
        return [item.get("error", {}).get("code", item.get("status")) for item in body["results"]]
    return body.get("code", body.get("status"))


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


def test_a_refund_writes_row_entry_total_and_balance_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = _handler("RefundFunction", monkeypatch)
    wire.answers(SETTLED["TransactGetItems"], ok())
    assert handle(_load("refund/partial.json"), CONTEXT) == {"batchItemFailures": []}
    row, entry, total, balance = wire.sent[-1].body["TransactItems"]
    assert row["Update"]["ExpressionAttributeValues"][":status"] == {"S": "partially_refunded"}
    assert entry["Put"]["Item"]["amountMinor"] == {"N": "25000"}
    assert total["Update"]["ExpressionAttributeValues"][":total"] == {"N": "25000"}
    assert balance["Update"]["ExpressionAttributeValues"][":change"] == {"N": "25000"}


# --- what is kept of a dead letter ---------------------------------------------------------

LETTERS = {
    "triage/movements.json": [
        ("TxQueue", "unexplained", "NEVER_RAN", "waiting"),
        ("TxQueue", "unexplained", "NEVER_RAN", "waiting"),
        ("TxQueue", "unexplained", "POISON", "parked"),  # a debit that no row asks for
    ],
    "triage/refunds.json": [("RefundQueue", "unexplained", "NEVER_RAN", "waiting")] * 2,
    "triage/refusals.json": [("FailedTxQueue", "refused", "BUSINESS", "noted")],
    "triage/failures.json": [
        ("TxQueue", "unreadable", "POISON", "parked"),
        ("Stream", "unreadable", "POISON", "parked"),
        ("TxQueue", "unfinished", "TRANSIENT", "waiting"),
        ("RefundQueue", "violated", "BUG", "parked"),
        ("Inbox", "unexplained", "NEVER_RAN", "waiting"),
        ("Inbox", "undelivered", "NEVER_RAN", "waiting"),
    ],
    "triage/runs.json": [
        ("Schedule", "failed_run", "BUG", "noted"),
        ("Schedule", "failed_run", "BUG", "noted"),
        ("Schedule", "missed_run", "NEVER_RAN", "noted"),
        ("Stream", "lost_records", "STALE", "parked"),
    ],
    "triage/poison.json": [("Unknown", "unrecognised", "POISON", "parked")] * 5,
}
"""Source, failure, class and status of the letter of each record, in their order."""


def _kept(name: str, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The writes of each letter: the letter, its record, and where it is held its row."""
    wire.answer = lambda sent: (ANSWERS | CASES[name].given)[sent.operation](sent)
    handle = _handler("TriageFunction", monkeypatch)
    assert handle(_load(name), CONTEXT) == {"batchItemFailures": []}
    return [s.body["TransactItems"] for s in wire.sent if s.operation == "TransactWriteItems"]


@pytest.mark.parametrize("name", LETTERS)
def test_each_record_of_a_letter_queue_is_kept_for_what_it_is(
    name: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = [writes[0]["Put"]["Item"] for writes in _kept(name, wire, monkeypatch)]
    members = ("source", "failure", "class", "status")
    assert [tuple(item[each]["S"] for each in members) for item in letters] == LETTERS[name]
    assert [item["messageId"]["S"] for item in letters] == [
        _own_record(record)["messageId"] for record in _load(name)["Records"]
    ]


def _own_record(record: Any) -> Any:
    """What a letter is about: the record that a function of ours put aside, or this one."""
    body = record["body"]
    inner = json.loads(body).get("record", {}) if body.startswith('{"v"') else {}
    return inner if "body" in inner else record


@pytest.mark.parametrize("name", LETTERS)
def test_a_record_is_kept_verbatim_and_shown_masked(
    name: str, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C49."""
    for record, writes in zip(_load(name)["Records"], _kept(name, wire, monkeypatch), strict=True):
        letter, part = (write["Put"]["Item"] for write in writes[:2])
        kept = json.loads(base64.b64decode(part["part"]["B"]))
        assert kept == {name: record[name] for name in record if name != "receiptHandle"}
        assert not re.search(r"\d{3}\D?345|733000|QK71", letter["preview"]["S"])


def test_a_letters_row_is_held_with_it(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8."""
    (letter, _, row), *others = _kept("triage/movements.json", wire, monkeypatch)
    assert [len(writes) for writes in others] == [2, 2]
    letter_id = letter["Put"]["Item"]["id"]["S"].removeprefix("letter#")
    assert letter["Put"]["Item"]["id"] == WAITING["id"]
    assert row["Update"]["Key"] == {name: OPEN[name] for name in ("agentId", "idempotencyKey")}
    values = row["Update"]["ExpressionAttributeValues"]
    assert (values[":status"], values[":heldBy"]) == ({"S": "held"}, {"S": letter_id})
    assert (values[":seen_status"], values[":seen_attempt"]) == ({"S": "queued"}, {"N": "1"})
    assert re.search(r"REMOVE .*openShard", row["Update"]["UpdateExpression"])


def test_c48_what_could_not_be_kept_stays_in_its_queue(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = _handler("TriageFunction", monkeypatch)
    records = _load("triage/poison.json")["Records"]

    def answer(sent: Sent) -> AWSResponse:
        kept = [each["Put"]["Item"] for each in sent.body["TransactItems"]]
        third = any(item.get("messageId") == {"S": records[2]["messageId"]} for item in kept)
        return (error("InternalServerError", 500) if third else ok())(sent)

    wire.answer = answer
    assert _told(handle({"Records": records}, CONTEXT)) == [records[2]["messageId"]]


def test_a_redrive_moves_letter_budget_and_row_at_once(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = _handler("TriageDeskFunction", monkeypatch)
    wire.answer = lambda sent: (ANSWERS | DESK)[sent.operation](sent)
    asked = _load("triage-desk/redrive.json") | {"dryRun": False}
    assert _told(handle(asked, CONTEXT)) == ["redriven"]
    letter, budget, record, row = wire.sent[-1].body["TransactItems"]
    assert letter["Update"]["ExpressionAttributeValues"][":status"] == {"S": "redriven"}
    assert budget["Update"]["ExpressionAttributeValues"][":byHand"] == {"N": "1"}
    assert record["Update"]["Key"] == {"id": RECORD["id"]}
    values = row["Update"]["ExpressionAttributeValues"]
    assert (values[":status"], values[":attempt"]) == ({"S": "queued"}, {"N": "2"})


def test_a_revelation_is_written_down_before_anything_is_shown(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = _handler("TriageDeskFunction", monkeypatch)
    asked = _load("triage-desk/reveal.json")
    wire.answer = lambda sent: (ANSWERS | DESK)[sent.operation](sent)
    assert "254712345678" in json.dumps(handle(asked, CONTEXT))
    masked = json.dumps(handle(_load("triage-desk/show.json"), CONTEXT))
    assert "254712345678" not in masked
    assert "2026-11-02.0042" not in masked
    lost = {"TransactWriteItems": error("InternalServerError", 500)}
    wire.answer = lambda sent: (ANSWERS | DESK | lost)[sent.operation](sent)
    answer = handle(asked, CONTEXT)
    assert answer["error"]["code"] == "UNAVAILABLE"
    assert "254712345678" not in json.dumps(answer)


def test_no_event_is_without_a_case_and_no_case_without_an_event() -> None:
    files = {str(path.relative_to(EVENTS)) for path in EVENTS.rglob("*") if path.is_file()}
    assert files == {*CASES, "env.json"}


def test_each_function_has_events_in_a_folder_of_its_own_name() -> None:
    folders = {path.name for path in EVENTS.iterdir() if path.is_dir()}
    assert folders == {ENV[name]["POWERTOOLS_SERVICE_NAME"] for name in FUNCTIONS}


def test_one_event_takes_one_call_per_transaction_and_per_wallet() -> None:
    """Issue 2: one put per accepted transaction; one read and one write per phone and batch."""
    posts = [name for name in CASES if name.startswith(("ingest/post", "ingest/get"))]
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
