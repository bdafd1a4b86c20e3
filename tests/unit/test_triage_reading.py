"""What a record of a letter queue is: whoever sent it, and whatever stands in it."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.dead_letters import (
    BUG,
    SENT_MS,
    TRANSIENT,
    Json,
    from_inbox,
    given_up,
    in_group,
    left,
    record,
    verbatim,
)
from tests.fakes.memory import START_MS
from tests.fakes.samples import AGENT, PHONE, credit, debit, refund, status_change
from triage.preview import preview
from triage.reading import read
from wallet_ledger.domain.letters import (
    Arrival,
    Budget,
    Failure,
    Original,
    Source,
    Standing,
    Subject,
    diagnose,
    opened,
)
from wallet_ledger.domain.wallets import WalletStatus
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.messages import movement_message, unreadable

FIFO_ORIGINAL = Original("M-1", PHONE, "d", 10, SENT_MS)
PLAIN_ORIGINAL = Original("M-1", None, None, 1, SENT_MS)
INBOX_EVENT = {
    "version": "0",
    "id": "6a7e8feb-b491-4cf7-a9f1-bf3703467718",
    "detail-type": "WalletCreditRequested",
    "source": "backoffice.till",
    "account": "000000000000",
    "time": "2026-10-09T08:53:20Z",
    "region": "us-east-1",
    "resources": [],
    "detail": {"phone": PHONE, "amount": 5, "source": "till", "creditId": f"C-{PHONE}"},
}


def arrived(told: Json, source: Source, failure: Failure, **members: Any) -> Arrival:
    """What it should be read as."""
    expected: dict[str, Any] = {
        "letter_id": read(told).letter_id,
        "source": source,
        "failure": failure,
        "why": "",
        "place": "",
        "original": PLAIN_ORIGINAL,
        "body": told["body"],
        "subject": None,
    }
    return Arrival(**(expected | members))


# --- our own consumers ----------------------------------------------------------------------------


@pytest.mark.parametrize("subject", [debit(attempt=3), credit(), status_change(), refund("R-1", 9)])
def test_what_a_queue_gave_up_is_read_as_its_consumer_would(subject: Subject) -> None:
    told = given_up(subject)
    source = Source.REFUND_QUEUE if subject == refund("R-1", 9) else Source.TX_QUEUE

    assert read(told) == arrived(
        told, source, Failure.UNEXPLAINED, original=FIFO_ORIGINAL, subject=subject
    )


@pytest.mark.parametrize("subject", [debit(attempt=3), refund("R-1", 9)])
def test_what_a_consumer_put_aside_is_read_with_its_reason(subject: Subject) -> None:
    source = Source.REFUND_QUEUE if subject == refund("R-1", 9) else Source.TX_QUEUE
    inner = json.loads(left(subject)["body"])["record"]
    original = replace(FIFO_ORIGINAL, message_id="inner M-1")

    for how, failure, why, place in (
        (TRANSIENT, Failure.UNFINISHED, "TransactionConflict", ""),
        (Unfinished(("b", "None", "a", "b")), Failure.UNFINISHED, "a b", ""),
        (BUG, Failure.VIOLATED, "KeyError", "settle.py _decide"),
        (Violation(("X" * 999,), "p" * 999), Failure.VIOLATED, "X" * 200, "p" * 100),
    ):
        told = left(subject, how)
        assert read(told) == arrived(
            told,
            source,
            failure,
            why=why,
            place=place,
            original=original,
            body=inner["body"],
            subject=subject,
        )


def test_what_a_consumer_could_not_read_is_what_it_had_and_why() -> None:
    for source in (Source.TX_QUEUE, Source.REFUND_QUEUE, Source.INBOX):
        inner = record(source, "{bad", "inner", attributes=in_group(PHONE))
        told = record("DeliveryFailures", unreadable(source, "phone: missing", inner).body)
        assert read(told) == arrived(
            told,
            source,
            Failure.UNREADABLE,
            why="phone: missing",
            body="{bad",
            original=replace(FIFO_ORIGINAL, message_id="inner"),
        )


def test_an_attribute_that_no_queue_gives_is_none() -> None:
    for odd in ("x" * 257, "a\nb", "\ud800", 7, None):
        told = record("TxDLQ.fifo", "{", attributes={"MessageGroupId": odd, "SentTimestamp": "x"})
        assert read(told).original == Original(message_id="M-1")
    for no_time in ("1" * 16, "\u0663", "\u00b2", "-1", 1.5, None, [1]):
        told = record("TxDLQ.fifo", "{", attributes={"SentTimestamp": no_time})
        assert read(told).original == Original(message_id="M-1")


def test_an_attribute_may_be_as_long_as_the_longest_of_a_queue() -> None:
    longest = {"MessageGroupId": "x" * 256, "SentTimestamp": "9" * 15}
    told = record("TxDLQ.fifo", "{", attributes=longest)

    assert read(told).original == Original("M-1", "x" * 256, None, None, 10**15 - 1)


def test_what_was_put_aside_and_cannot_be_read_any_more_is_unreadable() -> None:
    """By a later version, say, or because somebody mended the wrong letter."""
    envelope = json.loads(left(debit(), BUG)["body"])
    envelope["record"]["body"] = "{bad"
    told = record("DeliveryFailures", json.dumps(envelope))

    assert read(told) == arrived(
        told,
        Source.TX_QUEUE,
        Failure.UNREADABLE,
        why="the body is not a JSON document",
        body="{bad",
        original=replace(FIFO_ORIGINAL, message_id="inner M-1"),
    )


def test_a_stream_record_that_the_relay_could_not_read_has_no_queue_to_go_back_to() -> None:
    image = {"eventID": "1", "dynamodb": {"Keys": {}}}
    told = record("DeliveryFailures", unreadable("Stream", "KeyError", image).body)

    assert read(told) == arrived(told, Source.STREAM, Failure.UNREADABLE, why="KeyError")
    assert not Source.STREAM.takes_again


def test_a_refusal_is_read_from_its_queue() -> None:
    detail = {"reason": "INSUFFICIENT_FUNDS", "agentId": AGENT, "idempotencyKey": "K-1"}
    for odd, transaction in (
        ({}, (AGENT, "K-1")),
        ({"agentId": "not an id"}, None),
        ({"idempotencyKey": "not an id"}, None),
        ({"idempotencyKey": 7}, None),
        ({"idempotencyKey": None}, None),
    ):
        body = json.dumps(detail | odd)
        told = record("FailedTxQueue.fifo", body, attributes=in_group(PHONE))
        arrival = read(told)
        assert arrival == arrived(
            told,
            Source.FAILED_TX_QUEUE,
            Failure.REFUSED,
            why="INSUFFICIENT_FUNDS",
            original=FIFO_ORIGINAL,
            refused=transaction,
        )
        assert arrival.transaction == transaction
    for other in ('{"reason": "whatever"}', '{"reason": ["DISCARDED"]}', "{}", "[]", "{"):
        told = record("FailedTxQueue.fifo", other)
        assert read(told) == arrived(told, Source.UNKNOWN, Failure.UNRECOGNISED)


# --- AWS ------------------------------------------------------------------------------------------


def rule(code: str) -> Json:
    """What EventBridge says beside a message that it could not deliver."""
    told = {"ERROR_CODE": code, "RULE_ARN": "arn:aws:events:us-east-1:0:rule/r", "RETRY": "1"}
    return {
        "messageAttributes": {
            name: {"dataType": "String", "stringValue": value} for name, value in told.items()
        }
    }


def test_a_request_from_the_bus_says_how_it_got_lost() -> None:
    body = json.dumps(INBOX_EVENT)
    gave_up = from_inbox(body)
    undelivered = record("DeliveryFailures", body, **rule("NO_PERMISSIONS"))

    assert read(gave_up) == arrived(
        gave_up,
        Source.INBOX,
        Failure.UNEXPLAINED,
        original=replace(PLAIN_ORIGINAL, receive_count=6),
    )
    assert read(undelivered) == arrived(
        undelivered, Source.INBOX, Failure.UNDELIVERED, why="NO_PERMISSIONS"
    )


def test_a_request_that_did_not_come_by_the_rules_of_the_bus_is_nobodys() -> None:
    """Redriven, it would go past them: whoever may send to this queue could fund a wallet."""
    body = json.dumps(INBOX_EVENT)
    ours = json.dumps(INBOX_EVENT | {"source": "wakala"})
    other_queue = from_inbox(body)
    other_queue["attributes"]["DeadLetterQueueSourceArn"] += "2"
    code_alone = rule("NO_PERMISSIONS")
    del code_alone["messageAttributes"]["RULE_ARN"]
    rule_alone = rule("NO_PERMISSIONS")
    del rule_alone["messageAttributes"]["ERROR_CODE"]

    for told in (
        record("DeliveryFailures", body),
        record("DeliveryFailures", body, attributes=[]),
        record("DeliveryFailures", body, **code_alone),
        record("DeliveryFailures", body, **rule_alone),
        from_inbox(json.dumps(INBOX_EVENT | {"detail-type": 7})),
        from_inbox(json.dumps(INBOX_EVENT | {"source": ["till"]})),
        other_queue,
        from_inbox(ours),
        record("DeliveryFailures", ours, **rule("NO_PERMISSIONS")),
    ):
        arrival = read(told)
        assert (arrival.source, arrival.failure) == (Source.UNKNOWN, Failure.UNRECOGNISED)
        assert not arrival.source.takes_again


def test_an_event_of_our_own_that_asks_for_no_money_may_come_again() -> None:
    told = from_inbox(json.dumps(INBOX_EVENT | {"source": "wakala", "detail-type": "X"}))

    assert (read(told).source, read(told).failure) == (Source.INBOX, Failure.UNEXPLAINED)


@pytest.mark.parametrize("change", [{"v": 2}, {"record": "x"}, {"record": {"body": None}}])
def test_what_no_version_of_ours_puts_aside_is_nobodys(change: Json) -> None:
    envelope = json.loads(left(debit())["body"]) | change
    told = record("DeliveryFailures", json.dumps(envelope))

    assert read(told) == arrived(told, Source.UNKNOWN, Failure.UNRECOGNISED)


def test_what_may_unfreeze_a_wallet_is_told_apart() -> None:
    def asked(detail: object, detail_type: str = "WalletStatusRequested") -> bool:
        event = INBOX_EVENT | {"detail-type": detail_type, "detail": detail}
        arrival = read(from_inbox(json.dumps(event)))
        assert (arrival.fingerprint != others) == arrival.may_unfreeze
        return arrival.may_unfreeze

    others = read(from_inbox(json.dumps(INBOX_EVENT))).fingerprint
    for detail in ({"status": "active"}, {"status": ["frozen"]}, {}, None, [1]):
        assert asked(detail)
    assert not asked({"status": "frozen"})
    assert not asked({"status": "active"}, "WalletCreditRequested")
    assert read(left(status_change(status=WalletStatus.ACTIVE))).may_unfreeze
    assert not read(left(status_change(status=WalletStatus.FROZEN))).may_unfreeze
    assert not read(left(credit())).may_unfreeze


@pytest.mark.parametrize(
    "body", [INBOX_EVENT | {"source": "aws.events", "detail": {}}, {"action": "due"}]
)
def test_a_run_that_could_not_be_started_is_no_request(body: Json) -> None:
    told = record("DeliveryFailures", json.dumps(body), **rule("THROTTLING"))

    assert read(told) == arrived(told, Source.SCHEDULE, Failure.MISSED_RUN, why="THROTTLING")


def lambdas_note(function: str, **members: Any) -> str:
    """What Lambda sends on failure."""
    context = {
        "requestId": "r",
        "functionArn": f"arn:aws:lambda:us-east-1:000000000000:function:{function}",
        "condition": "RetriesExhausted",
        "approximateInvokeCount": 1,
    }
    return json.dumps({"version": "1.0", "requestContext": context} | members)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"errorMessage": "KeyError", "errorType": "HandlerFailed"}, "KeyError"),
        ({"errorMessage": f"no wallet {PHONE}", "errorType": "X"}, "RetriesExhausted"),
        ({"errorMessage": 7}, "RetriesExhausted"),
        ("Task timed out", "RetriesExhausted"),
        (None, "RetriesExhausted"),
    ],
)
@pytest.mark.parametrize("arn_ending", ["", ":$LATEST"])
def test_a_failed_run_says_which_and_by_what_class_of_error(
    payload: object, why: str, arn_ending: str
) -> None:
    body = lambdas_note(f"wakala-sweep{arn_ending}", requestPayload={}, responsePayload=payload)
    told = record("DeliveryFailures", body)

    assert read(told) == arrived(
        told, Source.SCHEDULE, Failure.FAILED_RUN, why=why, place="wakala-sweep"
    )


def test_lost_stream_records_are_named_by_their_place() -> None:
    body = lambdas_note("wakala-relay", DDBStreamBatchInfo={"shardId": "s", "batchSize": 9})
    told = record("DeliveryFailures", body)

    assert read(told) == arrived(told, Source.STREAM, Failure.LOST_RECORDS, why="RetriesExhausted")


@pytest.mark.parametrize("condition", [f"no wallet {PHONE}", "", None, 7, ["x"]])
def test_a_condition_that_is_no_name_of_lambdas_is_not_told(condition: object) -> None:
    note = json.loads(lambdas_note("wakala-relay", DDBStreamBatchInfo={}))
    note["requestContext"]["condition"] = condition

    assert read(record("DeliveryFailures", json.dumps(note))).why == "Unknown"


@pytest.mark.parametrize(
    ("members", "failure"),
    [
        (("put aside", "stream", "run", "event"), Failure.UNFINISHED),
        (("stream", "run", "event"), Failure.LOST_RECORDS),
        (("run", "event"), Failure.FAILED_RUN),
    ],
)
def test_what_looks_like_several_things_is_the_first_that_no_stranger_may_ask_for(
    members: tuple[str, ...], failure: Failure
) -> None:
    """An event's members are its sender's; those of our own notes and of Lambda's come first."""
    looks: dict[str, Json] = {
        "put aside": json.loads(left(debit())["body"]),
        "stream": {"DDBStreamBatchInfo": {}},
        "run": json.loads(lambdas_note("wakala-sweep")),
        "event": INBOX_EVENT,
    }
    body: Json = {}
    for each in reversed(members):
        body |= looks[each]

    assert read(from_inbox(json.dumps(body))).failure == failure


# --- anybody --------------------------------------------------------------------------------------

BODIES = {
    "bad": "{bad",
    "null": "null",
    "list": "[]",
    "string": '"254712345678"',
    "number": "254712345678",
    "empty": "",
    "nested lists": "[" * 100_000 + "]" * 100_000,
    "nested objects": '{"detail":' * 3_000 + "{}" + "}" * 3_000,
    "nested names": '{"a":' * 100_000,
    "base64": base64.b64encode(movement_message(debit(), "d").body.encode()).decode(),
    "lone surrogates": '{"agentId": "\\ud800", "kind": "\\udfff"}',
    "raw surrogate": '"\ud800"',
    "twice": '{"v": 1, "v": 1}',
    "NaN": '{"v": NaN}',
    "an integer without end": '{"amount": ' + "9" * 5_000 + "}",
    "escapes of a terminal": '{"kind": "\\u001b[2J\\u0007", "\\u001b[2J": 1}',
    "256 KB": '{"amount": "' + "é" * 131_072 + '"}',
    "1 MiB of quotes": '"' * 1_048_576,
    "no envelope": '{"v": 1, "source": "TxQueue", "record": {"body": null}}',
    "odd envelope": '{"v": 1, "source": ["x"], "why": "\\ud800\\n", "record": {"body": "x"}}',
    "envelope of a surrogate": '{"v": 1, "source": "TxQueue", "why": "\\ud800", "record": '
    '{"body": "\\ud800", "messageId": "\\ud800", "attributes": {"MessageGroupId": "\\ud800"}}}',
    "odd note": '{"requestContext": {"functionArn": 7, "condition": ["x"]}}',
    "odd attributes": '{"v": 1, "source": "Inbox", "record": {"body": "x", "attributes": 7}}',
}


@pytest.mark.parametrize("queue", ["TxDLQ.fifo", "DeliveryFailures"])
@pytest.mark.parametrize("name", BODIES)
def test_whatever_nobody_can_read_becomes_a_letter_for_a_person(name: str, queue: str) -> None:
    told = record(queue, BODIES[name])

    arrival = read(told)
    diagnosis = diagnose(arrival.failure, Standing.OPEN, Budget())
    letter = opened(arrival, diagnosis, Budget(), preview=preview(arrival.body), now_ms=START_MS)

    assert arrival.subject is None
    if name != "odd note" or queue == "TxDLQ.fifo":
        assert arrival.failure in {Failure.UNREADABLE, Failure.UNRECOGNISED}
        assert letter.status.is_open
    assert read(json.loads(verbatim(told))) == arrival  # what is kept says the same later
    for text in (
        letter.why,
        letter.place,
        letter.preview,
        letter.original.group or "",
        letter.lane,
    ):
        assert text.isprintable()
    assert len(letter.preview) <= 400
    assert "254712345678" not in letter.preview


documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                "v record source why failure place body attributes requestContext"
                " DDBStreamBatchInfo detail-type reason detail".split()
            ),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=12,
)
queues = st.sampled_from(["TxDLQ.fifo", "RefundDLQ.fifo", "FailedTxQueue.fifo", "DeliveryFailures"])


@given(queues, st.one_of(documents.map(json.dumps), st.text()))
def test_reading_fails_of_nothing_that_a_queue_can_hold(queue: str, body: str) -> None:
    arrival = read(record(queue, body, messageAttributes=None, attributes=[]))

    assert arrival.letter_id
    assert arrival.fingerprint
    assert arrival.subject_ref
    assert preview(arrival.body).isprintable()


def test_a_letter_is_named_by_its_queue_and_its_message() -> None:
    same = [read(left(debit())), read(left(credit("C-9"), BUG))]
    others = [read(left(debit(), message_id="M-2")), read(given_up(debit()))]

    assert same[0].letter_id == same[1].letter_id
    assert len({each.letter_id for each in [*same, *others]}) == 3
