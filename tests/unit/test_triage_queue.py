"""The letter queues' edge: what is kept goes, what is not stays, and nothing of it is told."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.fakes.dead_letters import (
    BUG,
    TRANSIENT,
    Json,
    Triage,
    given_up,
    in_group,
    left,
    record,
)
from tests.fakes.samples import PHONE, credit, debit, refund
from tests.fakes.scripted import Call, Crash, around, unavailable
from triage.reading import read
from wallet_ledger import telemetry
from wallet_ledger.domain.letters import LetterStatus
from wallet_ledger.domain.transactions import Status

FULL_WIDTH = PHONE.translate({ord("0") + n: 0xFF10 + n for n in range(10)})


@pytest.fixture
def triage() -> Iterable[Triage]:
    """Nothing counted yet."""
    telemetry.metrics.clear_metrics()
    yield Triage()
    telemetry.metrics.clear_metrics()


def only(message_id: str, step: Any) -> Any:
    """The step befalls one letter's write."""
    letter_id = read(left(debit(), message_id=message_id)).letter_id

    def choose(call: Call) -> Any:
        mine = call.method == "file" and call.arguments[0].letter_id == letter_id
        return step(call) if mine else call.proceed()

    return choose


def explode(_: Call) -> Any:
    """A bug, whose text holds what it choked on."""
    raise ValueError(f"cannot keep {PHONE}")


@pytest.mark.parametrize("step", [unavailable("ThrottlingException"), explode])
def test_a_letter_that_cannot_be_kept_stays_and_its_neighbours_go(
    triage: Triage, step: Any
) -> None:
    wanted = [debit(f"K-{number}") for number in range(3)]
    triage.accept(*wanted)
    healthy, triage.letters = triage.letters, around(triage.letters, only("M-1", step))
    records = [left(each, message_id=f"M-{place}") for place, each in enumerate(wanted)]

    assert triage.handle(records) == ["M-1"]

    assert [triage.row(each).status for each in wanted] == ["held", "queued", "held"]
    assert len(triage.store.letters) == len(triage.store.records) == 2
    triage.letters = healthy
    assert triage.handle([records[1]]) == []
    assert triage.row(wanted[1]).status is Status.HELD


@pytest.mark.parametrize("after", [False, True])
def test_c48_triage_killed_before_or_after_its_write_keeps_the_letter_once(
    triage: Triage, *, after: bool
) -> None:
    triage.accept(debit())

    def die(call: Call) -> Any:
        if after:
            call.proceed()
        raise Crash

    healthy, triage.letters = triage.letters, around(triage.letters, only("M-1", die))
    with pytest.raises(Crash):
        triage.handle([left(debit())])
    assert len(triage.store.letters) == after
    triage.letters = healthy

    assert triage.handle([left(debit())]) == []
    assert triage.handle([left(debit())]) == []

    [letter] = triage.store.letters.values()
    assert (letter.status, letter.revision) == (LetterStatus.WAITING, 1)
    assert triage.row(debit()).held_by == letter.letter_id


@pytest.mark.parametrize(
    "body", ["{bad", "x" * 262_144, "é" * 524_288, '"' * 1_048_576, '"\ud800', "\t\n\r" * 349_525]
)
def test_a_record_is_kept_word_for_word_in_no_more_than_twice_its_size(
    triage: Triage, body: str
) -> None:
    told = record("DeliveryFailures", body)

    assert triage.handle([told]) == []

    [kept] = triage.store.records.values()
    del told["receiptHandle"]
    assert json.loads(kept) == told
    assert len(kept.encode()) < 2 * 1_048_576 + 2_000


def test_an_empty_batch_is_nothing_to_do(triage: Triage) -> None:
    assert triage.handle([]) == []


def metrics_of(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, Any, str | None]]:
    """What was counted since the last look."""
    if telemetry.metrics.metric_set:
        telemetry.metrics.flush_metrics()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    return sorted(
        (told["Name"], line[told["Name"]], line.get("verdict"))
        for line in lines
        for told in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]
    )


def test_each_letter_is_counted_once_by_its_verdict(
    triage: Triage, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = '{"reason": "INSUFFICIENT_FUNDS"}'
    records = [
        left(credit("C-1"), message_id="1"),
        left(credit("C-2"), BUG, "2"),
        record("FailedTxQueue.fifo", refused, "3"),
    ]

    triage.handle(records)
    assert metrics_of(capsys) == [
        ("DeadLetters", [1], "auto_redrive"),
        ("DeadLetters", [1], "informational"),
        ("DeadLetters", [1], "parked"),
    ]

    triage.handle(records[:2])
    assert metrics_of(capsys) == [("LettersSuppressed", [1, 1], None)]

    triage.letters = around(triage.letters, explode)
    assert triage.handle(records) == ["1", "2", "3"]
    assert metrics_of(capsys) == [("LettersLeft", [3], None)]


def poison() -> list[Json]:
    """Letters with a phone wherever one can be put."""
    members = {"phone": PHONE, "agentId": PHONE, "idempotencyKey": f"K-{PHONE}", "x": int(PHONE)}
    bodies = [PHONE, f'"{PHONE}"', json.dumps(members), json.dumps({PHONE: PHONE}), f"{{{PHONE}"]
    bodies.append(json.dumps({"agentId": FULL_WIDTH, "source": "+254 712-345 678"}))
    queues = ("TxDLQ.fifo", "RefundDLQ.fifo", "FailedTxQueue.fifo", "DeliveryFailures")
    odd = [
        record(queue, body, f"{queue} {place}", attributes=in_group(PHONE))
        for place, body in enumerate(bodies)
        for queue in queues
    ]
    key = f"K-{PHONE}"
    return [
        *odd,
        left(debit(key, 918_273, agent_id=PHONE), TRANSIENT, "readable"),
        left(refund(f"R-{PHONE}", key=key), BUG, "refund"),
        given_up(credit(f"C-{PHONE}"), "credit"),
    ]


def test_c49_no_phone_is_in_any_log_line_metric_or_preview(
    triage: Triage, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    assert triage.handle(poison()) == []
    healthy, triage.letters = triage.letters, around(triage.letters, explode)
    assert len(triage.handle(poison())) == len(poison())
    triage.letters = healthy
    for letter_id in triage.store.letters:
        triage.ask("show", letterId=letter_id, reveal=True, who="amina", why="to mend it")
        triage.act("redrive", letter_id)
    triage.pass_minutes(2)
    telemetry.metrics.flush_metrics()

    lines = [telemetry.logger.registered_formatter.format(each) for each in caplog.records]
    assert len(lines) > 2 * len(poison())
    told = "\n".join(lines) + capsys.readouterr().out
    previews = "\n".join(letter.preview for letter in triage.store.letters.values())
    for secret in (PHONE, PHONE[3:], FULL_WIDTH, "712-345", "K-2547", "918273", "amina"):
        assert secret not in told
    for secret in (PHONE, PHONE[3:9], FULL_WIDTH, "712-345", "K-2547"):
        assert secret not in previews


def test_each_letter_is_one_line_that_names_its_group(
    triage: Triage, caplog: pytest.LogCaptureFixture
) -> None:
    triage.handle([left(credit("C-1"), BUG)])

    [letter] = triage.store.letters.values()
    [line] = [json.loads(telemetry.logger.registered_formatter.format(e)) for e in caplog.records]
    assert {name: line[name] for name in ("message", "letter", "group", "new", "why")} == {
        "message": "letter kept",
        "letter": letter.letter_id,
        "group": letter.fingerprint,
        "new": True,
        "why": "KeyError",
    }
    assert (line["source"], line["class"], line["verdict"]) == ("TxQueue", "BUG", "parked")
