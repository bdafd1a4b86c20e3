"""What a record of a letter queue is: who did not take it, how it failed, what it speaks of."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from triage.preview import printable
from wallet_ledger import strict_json
from wallet_ledger.domain.ids import AgentId, IdempotencyKey, digest, is_id
from wallet_ledger.domain.letters import Arrival, Failure, Original, Source, Subject
from wallet_ledger.domain.transactions import Reason
from wallet_ledger.domain.wallets import StatusChange, WalletStatus
from wallet_ledger.errors import InvalidMessage
from wallet_ledger.messages import EVENT_SOURCE, MESSAGE_VERSION, read_movement, read_refund

WHY_LENGTH_MAX = 200
PLACE_LENGTH_MAX = 100
"""A why and a place are codes and names of ours; what is longer is somebody else's text."""

type Record = Mapping[str, Any]

_ENVELOPES = {"unfinished": Failure.UNFINISHED, "violated": Failure.VIOLATED}
_WALLET_REQUESTS = frozenset({"WalletCreditRequested", "WalletStatusRequested"})
_CONSUMED = {"TxDLQ.fifo": Source.TX_QUEUE, "RefundDLQ.fifo": Source.REFUND_QUEUE}


def read(record: Record) -> Arrival:
    """The letter of a queue's record. It reads anything: what it does not know it says so of."""
    queue = str(record["eventSourceARN"]).rpartition(":")[2]
    name = queue.rpartition("-")[2]
    letter_id = digest("letter", queue, str(record["messageId"]))[:32]
    return replace(_read(name, record), letter_id=letter_id)


def _read(queue: str, record: Record) -> Arrival:
    if queue in _CONSUMED:
        return _given_up(_CONSUMED[queue], record, Failure.UNEXPLAINED, "")
    if queue == "FailedTxQueue.fifo":
        return _refused(record)
    return _undeliverable(record)


def _refused(record: Record) -> Arrival:
    detail = _object(record["body"])
    reason = detail.get("reason")
    if reason not in tuple(Reason):
        return _unrecognised(record)
    arrival = _arrival(Source.FAILED_TX_QUEUE, Failure.REFUSED, record, why=str(reason))
    agent_id, key = detail.get("agentId"), detail.get("idempotencyKey")
    if isinstance(agent_id, str) and is_id(agent_id) and isinstance(key, str) and is_id(key):
        return replace(arrival, refused=(AgentId(agent_id), IdempotencyKey(key)))
    return arrival


def _undeliverable(record: Record) -> Arrival:
    """A record of DeliveryFailures, which four kinds of sender write to."""
    body = _object(record["body"])
    if body.get("v") == MESSAGE_VERSION and isinstance(body.get("record"), dict):
        return _handed_over(body, record)
    if isinstance(body.get("DDBStreamBatchInfo"), dict):
        return _arrival(Source.STREAM, Failure.LOST_RECORDS, record, why=_condition(body))
    if isinstance(body.get("requestContext"), dict):
        return _failed_run(body, record)
    if isinstance(body.get("detail-type"), str) and isinstance(body.get("source"), str):
        return _event(body, record)
    if _attribute(record, "RULE_ARN") is not None:  # a schedule whose runs get an input of ours
        code = _attribute(record, "ERROR_CODE")
        return _arrival(Source.SCHEDULE, Failure.MISSED_RUN, record, why=code or "")
    return _unrecognised(record)


def _handed_over(envelope: Mapping[str, Any], outer: Record) -> Arrival:
    """What a function of ours could not read or finish, with its reason."""
    record, told = envelope["record"], str(envelope.get("source"))
    source = Source(told) if told in tuple(Source) else Source.UNKNOWN
    if not source.takes_again:  # a stream record: it has no body and no queue
        return _arrival(source, Failure.UNREADABLE, outer, why=str(envelope.get("why")))
    if not isinstance(record.get("body"), str):
        return _unrecognised(outer)
    failure = _ENVELOPES.get(str(envelope.get("failure")), Failure.UNREADABLE)
    why, place = str(envelope.get("why")), str(envelope.get("place", ""))
    return _given_up(source, record, failure, why, place)


def _event(event: Mapping[str, Any], record: Record) -> Arrival:
    """An event that reached no queue, or whose queue gave it up."""
    code = _attribute(record, "ERROR_CODE")
    if event["source"] == "aws.events":
        return _arrival(Source.SCHEDULE, Failure.MISSED_RUN, record, why=code or "")
    # Redriven, it goes to the Inbox past the rules. So it must have been there, or on its way by a
    # rule; and what no rule lets through, a wallet request of our own, is nobody's.
    on_its_way = code is not None and _attribute(record, "RULE_ARN") is not None
    funds = event["source"] == EVENT_SOURCE and event["detail-type"] in _WALLET_REQUESTS
    if funds or not (on_its_way or _given_up_by(record, "Inbox")):
        return _unrecognised(record)
    failure = Failure.UNDELIVERED if on_its_way else Failure.UNEXPLAINED
    arrival = _given_up(Source.INBOX, record, failure, code or "")
    return replace(arrival, may_unfreeze=_may_unfreeze(event))


def _may_unfreeze(event: Mapping[str, Any]) -> bool:
    detail = event.get("detail")
    freezes = isinstance(detail, dict) and detail.get("status") == WalletStatus.FROZEN
    return event["detail-type"] == "WalletStatusRequested" and not freezes


def _given_up_by(record: Record, queue: str) -> bool:
    """Whether a redrive policy of ours has moved it here: SQS says so, and no sender can."""
    attributes = record.get("attributes")
    source = attributes.get("DeadLetterQueueSourceArn") if isinstance(attributes, dict) else None
    return isinstance(source, str) and source.endswith(f"-{queue}")


def _failed_run(told: Mapping[str, Any], record: Record) -> Arrival:
    """Lambda's note of an asynchronous run that failed; only schedules start those here."""
    payload = told.get("responsePayload")
    error = payload.get("errorMessage") if isinstance(payload, dict) else None
    function = str(told["requestContext"].get("functionArn")).rpartition(":function:")[2]
    place = function.rpartition(":")[0] or function
    # Our handlers raise the class of an error as its message (`HandlerFailed`), never its text.
    ours = isinstance(error, str) and error.isidentifier()
    why = str(error) if ours else _condition(told)
    return _arrival(Source.SCHEDULE, Failure.FAILED_RUN, record, why=why, place=place)


def _given_up(
    source: Source, record: Record, failure: Failure, why: str, place: str = ""
) -> Arrival:
    """A message of a queue of ours; one that cannot be read is poison, whoever gave it up."""
    subject: Subject | None = None
    if failure is not Failure.UNREADABLE:
        try:
            subject = _subject(source, record["body"])
        except InvalidMessage as error:
            failure, why, place = Failure.UNREADABLE, str(error), ""
    return _arrival(source, failure, record, why=why, place=place, subject=subject)


def _subject(source: Source, body: str) -> Subject | None:
    match source:
        case Source.TX_QUEUE:
            return read_movement(body)
        case Source.REFUND_QUEUE:
            return read_refund(body)
        case _:
            return None  # a request from the bus: its own function reads it, when it comes again


def _unrecognised(record: Record) -> Arrival:
    return _arrival(Source.UNKNOWN, Failure.UNRECOGNISED, record, why="")


def _arrival(
    source: Source,
    failure: Failure,
    record: Record,
    *,
    why: str,
    place: str = "",
    subject: Subject | None = None,
) -> Arrival:
    return Arrival(
        letter_id="",
        source=source,
        failure=failure,
        why=printable(why)[:WHY_LENGTH_MAX],
        place=printable(place)[:PLACE_LENGTH_MAX],
        original=_original(record),
        body=str(record["body"]),
        subject=subject,
        may_unfreeze=isinstance(subject, StatusChange) and subject.status is WalletStatus.ACTIVE,
    )


def _original(record: Record) -> Original:
    attributes = record.get("attributes")
    known = attributes if isinstance(attributes, dict) else {}
    return Original(
        message_id=_text(record.get("messageId")),
        group=_text(known.get("MessageGroupId")),
        dedup_id=_text(known.get("MessageDeduplicationId")),
        receive_count=_number(known.get("ApproximateReceiveCount")),
        sent_at_ms=_number(known.get("SentTimestamp")),
    )


def _object(body: str) -> dict[str, Any]:
    """The members of a JSON object; of anything else, none."""
    try:
        document = strict_json.read(body)
    except InvalidMessage:
        return {}
    return document if isinstance(document, dict) else {}


def _condition(told: Mapping[str, Any]) -> str:
    context = told.get("requestContext")
    condition = context.get("condition") if isinstance(context, dict) else None
    return str(condition) if isinstance(condition, str) and condition.isidentifier() else "Unknown"


def _attribute(record: Record, name: str) -> str | None:
    attributes = record.get("messageAttributes")
    value = attributes.get(name) if isinstance(attributes, dict) else None
    return _text(value.get("stringValue")) if isinstance(value, dict) else None


def _text(value: object) -> str | None:
    """An id or a code of AWS; what is longer than any of them is none."""
    known = isinstance(value, str) and len(value) <= 256 and value.isprintable()
    return str(value) if known else None


def _number(value: object) -> int | None:
    text = str(value) if isinstance(value, int | str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
