"""The letters' adapters: what one write holds, how failures are read, where a page goes on."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fakes.dead_letters import given_up, left, record, verbatim
from tests.fakes.faults import LASTING, PASSING
from tests.fakes.memory import START_MS
from tests.fakes.samples import KES, credit, debit, refund, row_of
from tests.fakes.wire import Answer, Wire, cancelled, error, ok
from triage.reading import read
from wallet_ledger.aws import clients, items
from wallet_ledger.aws.letters import DynamoDeadLetters, DynamoSubjects
from wallet_ledger.domain.letters import (
    Action,
    Budget,
    Letter,
    LetterStatus,
    Standing,
    diagnose,
    discarded,
    held,
    letter_shard,
    moved,
    opened,
    released,
)
from wallet_ledger.domain.postings import NewEntry
from wallet_ledger.domain.transactions import Reason
from wallet_ledger.domain.wallets import Posted, Rejected
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import LetterPage, RowMove

PASSING_REASONS = ["TransactionConflict", "ProvisionedThroughputExceeded", "ThrottlingError"]
CONDITION = "ConditionalCheckFailed"
TRANSACTION_BYTES_MAX = 4_000_000
ROW = row_of(debit())


def letter_of(told: Any, standing: Standing = Standing.OPEN) -> Letter:
    """Its letter, as triage files it."""
    arrival = read(told)
    diagnosis = diagnose(arrival.failure, standing, Budget())
    return opened(arrival, diagnosis, Budget(), preview="p", now_ms=START_MS)


TOLD = left(debit())
OPEN = letter_of(TOLD)
CLOSED = letter_of(TOLD, Standing.DECIDED)
HELD = held(ROW, OPEN.letter_id, START_MS)
HOLD = RowMove(ROW, HELD)
REDRIVEN = moved(OPEN, LetterStatus.REDRIVEN, Action(START_MS + 5, "amina", "redriven", "mended"))
RELEASE = RowMove(HELD, released(HELD, START_MS + 5))


@cache
def _client() -> Any:
    return clients.dynamodb(on_consumed=lambda _name, _units: None)


def letters(retention_days: int = 0) -> DynamoDeadLetters:
    """The adapter."""
    return DynamoDeadLetters(
        _client(),
        table="DeadLetters",
        offline_tx_table="OfflineTx",
        retention_days=retention_days,
    )


def subjects() -> DynamoSubjects:
    """The adapter."""
    return DynamoSubjects(_client(), ledger_table="WalletLedger", offline_tx_table="OfflineTx")


WRITES: dict[str, Callable[[], object]] = {
    "file": lambda: letters().file(OPEN, verbatim(TOLD), HOLD),
    "move": lambda: letters().move(OPEN, REDRIVEN, RELEASE, Budget(by_hand=1)),
}
CALLS: dict[str, Callable[[], object]] = WRITES | {
    "find": lambda: letters().find("L-1"),
    "record": lambda: letters().record("L-1"),
    "budget": lambda: letters().budget("s"),
    "look_later": lambda: letters().look_later(OPEN),
    "page": lambda: letters().page(LetterPage(3, True, 10)),
    "row": lambda: subjects().row(debit()),
    "decided": lambda: subjects().decided(debit()),
    "see": lambda: subjects().see(refund()),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
every_write = pytest.mark.parametrize("call", WRITES.values(), ids=WRITES.keys())


# --- failures -------------------------------------------------------------------------------------


@every_call
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_whatever_passes_is_unavailable_and_never_an_answer(
    wire: Wire, call: Callable[[], object], fault: Answer
) -> None:
    wire.answer = fault

    with pytest.raises(Unavailable) as raised:
        call()

    assert "254712345678" not in str(raised.value)


@every_call
@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING.keys())
def test_whatever_lasts_is_raised_as_it_is(
    wire: Wire, call: Callable[[], object], fault: Answer
) -> None:
    wire.answer = fault

    with pytest.raises(ClientError):
        call()


@every_write
def test_a_condition_that_does_not_hold_is_an_answer(
    wire: Wire, call: Callable[[], object]
) -> None:
    for reasons in ([CONDITION, "None", "None"], ["None", "None", CONDITION], [CONDITION] * 3):
        wire.answers(cancelled(*reasons))
        assert call() is False


@every_write
@pytest.mark.parametrize("reason", PASSING_REASONS)
def test_beside_a_reason_that_passes_no_condition_is_believed(
    wire: Wire, call: Callable[[], object], reason: str
) -> None:
    wire.answer = cancelled(CONDITION, reason, CONDITION)

    with pytest.raises(Unavailable):
        call()


@every_write
def test_a_transaction_that_can_never_be_written_is_no_answer(
    wire: Wire, call: Callable[[], object]
) -> None:
    wire.answer = cancelled("None", "ValidationError", "None")

    with pytest.raises(ClientError):
        call()


def test_a_later_look_is_one_conditional_write(wire: Wire) -> None:
    later = replace(OPEN, due_at_ms=START_MS + 7, revision=3)
    wire.answers(ok(), error("ConditionalCheckFailedException"))

    assert [letters().look_later(later), letters().look_later(later)] == [True, False]

    body = wire.sent[0].body
    assert wire.operations() == ["UpdateItem", "UpdateItem"]
    assert body["ConditionExpression"] == "revision = :seen AND attribute_exists(openShard)"
    assert body["UpdateExpression"] == "SET dueAt = :at"
    assert body["ExpressionAttributeValues"] == {
        ":at": {"N": str(START_MS + 7)},
        ":seen": {"N": "3"},
    }


# --- one write ------------------------------------------------------------------------------------


def sent(wire: Wire) -> list[tuple[str, dict[str, Any]]]:
    """The verbs and members of the transaction that went out last."""
    return [pair for item in wire.sent[-1].body["TransactItems"] for pair in item.items()]


DISCARDED = moved(OPEN, LetterStatus.DISCARDED, Action(START_MS + 5, "amina", "discarded", "w"))
PARKED = moved(OPEN, LetterStatus.PARKED, Action(START_MS + 5, "triage", "parked", "w"))
SHAPES: dict[str, tuple[Callable[[int], object], list[str]]] = {
    "an open letter with its row": (
        lambda days: letters(days).file(OPEN, verbatim(TOLD), HOLD),
        ["Put", "Put", "Update"],
    ),
    "a closed letter": (lambda days: letters(days).file(CLOSED, "{}", None), ["Put", "Put"]),
    "a redriven debit": (
        lambda days: letters(days).move(OPEN, REDRIVEN, RELEASE, Budget(automatic=1)),
        ["Update", "Update", "Update"],
    ),
    "a discarded debit": (
        lambda days: letters(days).move(OPEN, DISCARDED, RowMove(HELD, discarded(HELD, 1))),
        ["Update", "Update"],
    ),
    "a redriven credit": (
        lambda days: letters(days).move(OPEN, REDRIVEN, None, Budget(by_hand=1)),
        ["Update", "Update"],
    ),
    "a parked letter": (lambda days: letters(days).move(OPEN, PARKED), ["Update"]),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("retention_days", [0, 30])
def test_all_that_belongs_together_is_one_call_in_which_every_name_is_used(
    wire: Wire, name: str, retention_days: int
) -> None:
    """DynamoDB refuses a transaction for one value too many, or one item twice."""
    call, verbs = SHAPES[name]
    wire.answers(ok())

    assert call(retention_days) is True

    assert wire.operations() == ["TransactWriteItems"]
    over = name not in {"an open letter with its row", "a parked letter"}
    purges = ["Update"] if retention_days and over and "Update" in verbs else []
    assert sorted(verb for verb, _ in sent(wire)) == sorted([*verbs, *purges])
    keys = [each["Key"] if "Key" in each else each["Item"]["id"] for _, each in sent(wire)]
    assert len({json.dumps(key) for key in keys}) == len(keys)
    for _, each in sent(wire):
        if "Item" in each:
            condition = "attribute_not_exists(id)" if "status" in each["Item"] else None
            assert each.get("ConditionExpression") == condition
            assert ("purgeAt" in each["Item"]) == bool(retention_days and over)
            continue
        text = " ".join((each.get("ConditionExpression", ""), each["UpdateExpression"]))
        words = text.replace(",", " ").replace("(", " ").replace(")", " ").split()
        for mark, given in (
            ("#", each.get("ExpressionAttributeNames", {})),
            (":", each["ExpressionAttributeValues"]),
        ):
            assert {word for word in words if word.startswith(mark)} == given.keys()


def test_p8_a_letter_and_its_row_move_only_from_what_was_seen(wire: Wire) -> None:
    wire.answers(ok(), ok())
    letters().file(OPEN, verbatim(TOLD), HOLD)
    [_, _, (_, hold)] = sent(wire)
    letters().move(OPEN, REDRIVEN, RELEASE, Budget(by_hand=1))
    [(_, letter), (_, budget), (_, release)] = sent(wire)

    for move, status in ((hold, "queued"), (release, "held")):
        assert move["TableName"] == "OfflineTx"
        values = move["ExpressionAttributeValues"]
        assert (values[":seen_status"], values[":seen_attempt"]) == ({"S": status}, {"N": "1"})
        assert "#status = :seen_status" in move["ConditionExpression"]
        assert "#attempt = :seen_attempt" in move["ConditionExpression"]
    assert hold["ExpressionAttributeValues"][":heldBy"] == {"S": OPEN.letter_id}
    assert "#openShard" in hold["UpdateExpression"].partition("REMOVE")[2]
    assert "#heldBy" in release["UpdateExpression"].partition("REMOVE")[2]
    assert letter["ConditionExpression"] == "#revision = :seen"
    assert letter["ExpressionAttributeValues"][":seen"] == {"N": "1"}
    assert letter["ExpressionAttributeValues"][":revision"] == {"N": "2"}
    assert "#history = list_append(#history, :actions)" in letter["UpdateExpression"]
    removed = letter["UpdateExpression"].partition("REMOVE")[2]
    assert {"#openShard", "#dueAt"} == set(removed.replace(",", " ").split())
    assert budget["UpdateExpression"] == "ADD automatic :automatic, byHand :byHand"


def test_the_record_of_a_letter_that_is_dealt_with_is_purged_with_it(wire: Wire) -> None:
    wire.answers(ok(), ok())
    long_ago = replace(OPEN, record_parts=3)
    after = moved(long_ago, LetterStatus.CLOSED, Action(START_MS, "triage", "closed", "w"))

    letters(30).move(long_ago, after)

    at = {"N": str(START_MS // 1000 + 30 * 86_400)}
    assert [each["Key"]["id"]["S"] for _, each in sent(wire)] == [
        f"letter#{OPEN.letter_id}",
        *(f"record#{OPEN.letter_id}#{part}" for part in range(3)),
    ]
    assert sent(wire)[0][1]["ExpressionAttributeValues"][":purgeAt"] == at
    assert [each["ExpressionAttributeValues"] for _, each in sent(wire)[1:]] == [{":at": at}] * 3

    letters(0).move(long_ago, after)
    assert len(sent(wire)) == 1
    assert ":purgeAt" not in sent(wire)[0][1]["ExpressionAttributeValues"]


# --- records --------------------------------------------------------------------------------------

MIB = 1_048_576


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("{bad", 1),
        ("x" * 262_144, 1),
        ("x" * MIB, 3),
        ('"' * MIB, 6),
        ("é" * (MIB // 2), 3),
    ],
)
def test_a_record_of_any_size_a_queue_takes_is_one_write_and_comes_back_word_for_word(
    wire: Wire, body: str, parts: int
) -> None:
    told = verbatim(record("DeliveryFailures", body))
    wire.answers(ok())

    assert letters().file(OPEN, told, HOLD)

    puts = [each["Item"] for verb, each in sent(wire) if verb == "Put"]
    assert puts[0]["recordParts"] == {"N": str(parts)}
    assert len(puts) == 1 + parts
    size = sum(len(base64.b64decode(each["part"]["B"])) for each in puts[1:])
    assert size == len(told.encode()) < TRANSACTION_BYTES_MAX * 3 // 4  # in base64, too
    assert all(len(base64.b64decode(each["part"]["B"])) < 400_000 for each in puts[1:])

    by_id = {each["id"]["S"]: each for each in puts}
    wire.answer = lambda asked: ok(
        {"Item": by_id[key]} if (key := asked.body["Key"]["id"]["S"]) in by_id else {}
    )(asked)
    assert letters().record(OPEN.letter_id) == told
    assert all(asked.body["ConsistentRead"] for asked in wire.sent[1:])


def test_a_record_that_was_purged_before_its_letter_is_gone(wire: Wire) -> None:
    stub = items.record_key("L-1", 0) | {"purgeAt": {"N": "1"}}
    wire.answers(ok({"Item": stub}), ok())

    assert letters().record("L-1") is None
    assert letters().record("L-1") is None


# --- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", [OPEN, CLOSED, REDRIVEN, letter_of(record("TxDLQ.fifo", "{"))])
def test_a_letter_comes_back_as_it_was_written(wire: Wire, letter: Letter) -> None:
    wire.answers(ok({"Item": items.letter_item(letter)}))

    assert letters().find(letter.letter_id) == letter

    assert wire.sent[0].body["Key"] == {"id": {"S": f"letter#{letter.letter_id}"}}
    assert wire.sent[0].body["ConsistentRead"] is True


def test_a_page_goes_on_where_the_one_before_ended(wire: Wire) -> None:
    shard = letter_shard(OPEN.letter_id)
    key = items.letter_item(OPEN)
    ended = {name: key[name] for name in ("id", "openShard", "dueAt")}
    wire.answers(ok({"Items": [key], "LastEvaluatedKey": ended}), ok({"Items": []}))
    first = letters().page(LetterPage(shard, True, 1))
    assert first.letters == [OPEN]
    assert first.ended == (OPEN.due_at_ms, OPEN.letter_id)

    rest = letters().page(LetterPage(shard, True, 7, first.ended))

    assert (rest.letters, rest.ended) == ([], None)
    body = dict(wire.sent[1].body)
    assert body["IndexName"] == "OpenLetters"
    assert (body["ExclusiveStartKey"], body["Limit"]) == (ended, 7)
    assert body["ExpressionAttributeValues"] == {":shard": {"S": f"letter#{shard:02d}"}}


def test_a_page_of_all_letters_is_bounded_by_their_arrival(wire: Wire) -> None:
    key = items.letter_item(CLOSED)
    ended = {name: key[name] for name in ("id", "shard", "arrivedAt")}
    wire.answers(ok({"Items": [key], "LastEvaluatedKey": ended}), ok({"Items": []}))
    asked = LetterPage(letter_shard(CLOSED.letter_id), False, 1, None, START_MS - 1, START_MS + 1)

    first = letters().page(asked)
    letters().page(replace(asked, after=first.ended))

    assert (first.letters, first.ended) == ([CLOSED], (START_MS, CLOSED.letter_id))
    body = wire.sent[1].body
    assert (body["IndexName"], body["ExclusiveStartKey"]) == ("AllLetters", ended)
    assert (
        body["KeyConditionExpression"] == "#shard = :shard AND arrivedAt BETWEEN :from AND :until"
    )
    assert body["ExpressionAttributeValues"] == {
        ":shard": key["shard"],
        ":from": {"N": str(START_MS - 1)},
        ":until": {"N": str(START_MS + 1)},
    }


def test_a_letter_of_a_later_version_stops_no_page(wire: Wire) -> None:
    """As after a roll-back: its id is told, and the others are listed."""
    good = items.letter_item(OPEN)
    odd = [
        good | {"id": {"S": "letter#later"}, "failure": {"S": "of_tomorrow"}},
        good | {"id": {"S": "letter#edited"}, "revision": {"N": "many"}},
        {"id": {"S": "letter#cut"}},
    ]
    wire.answers(ok({"Items": [odd[0], good, *odd[1:]]}))

    page = letters().page(LetterPage(letter_shard(OPEN.letter_id), True, 10))

    assert (page.letters, page.ended) == ([OPEN], None)
    assert page.unreadable == ("later", "edited", "cut")


# --- subjects -------------------------------------------------------------------------------------

OTHER = credit("C-1", 7)
POSTED = items.entry_item(NewEntry(credit("C-1"), Posted(1, 1_000)), START_MS)
REUSED = items.entry_item(NewEntry(OTHER, Rejected(Reason.KEY_REUSED)), START_MS)


@pytest.mark.parametrize(
    ("found", "decided"),
    [
        ([{"Item": POSTED}], True),
        ([{}, {}], False),
        ([{}, {"Item": REUSED}], False),
    ],
)
def test_a_movement_is_decided_by_its_entry(wire: Wire, found: list[Any], *, decided: bool) -> None:
    wire.answers(*map(ok, found))

    assert subjects().decided(credit("C-1")) is decided

    keys = [asked.body["Key"]["txId"]["S"] for asked in wire.sent]
    assert (
        keys
        == ["credit#till#C-1", f"credit#till#C-1#{credit('C-1').fingerprint[:16]}"][: len(found)]
    )
    assert all(asked.body["ConsistentRead"] for asked in wire.sent)


def test_a_reused_id_is_decided_by_its_own_refusal_alone(wire: Wire) -> None:
    wire.answers(ok({"Item": POSTED}), ok({"Item": REUSED}), ok({"Item": POSTED}), ok())

    assert subjects().decided(OTHER)
    assert not subjects().decided(OTHER)


@pytest.mark.parametrize("change", [{"outcome": {"S": "odd"}}, {"amountMinor": {"S": "x"}}])
def test_what_nobody_could_have_written_is_told_apart_from_what_is_not_there(
    wire: Wire, change: Any
) -> None:
    wire.answers(ok({"Item": POSTED | change}))

    with pytest.raises((LookupError, ValueError)):
        subjects().decided(credit("C-1"))


def test_a_row_is_read_as_of_now(wire: Wire) -> None:
    wire.answers(ok({"Item": items.offline_tx_item(HELD)}), ok())

    assert subjects().row(debit()) == HELD
    assert subjects().row(debit()) is None

    assert wire.sent[0].body["Key"] == items.offline_tx_key(ROW.agent_id, ROW.idempotency_key)
    assert wire.sent[0].body["ConsistentRead"] is True


def test_a_refund_is_seen_by_one_read_of_all_that_counts(wire: Wire) -> None:
    wire.answers(ok({"Responses": [{} for _ in range(6)]}))

    seen = subjects().see(refund(currency=KES))

    assert wire.operations() == ["TransactGetItems"]
    assert (seen.row, seen.debit, seen.wallet) == (None, None, None)
    assert letter_of(given_up(refund())).letter_id
