"""RefundQueue's edge: which messages come again, where the unreadable go, and what is told."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from refund.give_back import Cancelled, Decided, Result
from refund.queue import Received, consumer
from tests.fakes.memory import FakeClock, FakeQueue
from tests.fakes.samples import PHONE, refund
from wallet_ledger import telemetry
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import Reason
from wallet_ledger.domain.wallets import Posted, Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.messages import refund_message

OTHER_PHONE = "254700000001"
DONE = Decided(Posted(3, 930), new=True)
RECEIVES_MAX = 10


def record(message: Refund | str, message_id: str, receives: int = 1) -> dict[str, Any]:
    """A message of RefundQueue as Lambda hands it over."""
    body = message if isinstance(message, str) else refund_message(message, "d").body
    return {
        "messageId": message_id,
        "receiptHandle": f"receipt of {message_id}",
        "body": body,
        "attributes": {"ApproximateReceiveCount": str(receives), "MessageGroupId": "whatever"},
        "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:wakala-RefundQueue.fifo",
    }


@dataclass
class World:
    """DeliveryFailures, what was given back, and what the refunds of each phone were."""

    delivery_failures: FakeQueue = field(default_factory=lambda: FakeQueue(FakeClock()))
    given_back: list[tuple[str, int]] = field(default_factory=list)
    asked: list[list[Received]] = field(default_factory=list)

    def handle(
        self, records: Sequence[Mapping[str, Any]], say: Callable[[Refund], Result]
    ) -> list[str]:
        """The ids of the messages that come again."""

        def refund_phone(requests: Sequence[Received]) -> list[Result]:
            self.asked.append(list(requests))
            return [say(asked) for asked, _ in requests]

        answer = consumer(
            refund_phone=refund_phone,
            delivery_failures=self.delivery_failures,
            give_back=self.given_back.extend,
            receives_max=RECEIVES_MAX,
        ).handle_batch(records)
        assert answer.keys() == {"batchItemFailures"}
        return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


@pytest.fixture
def world() -> Iterable[World]:
    """Nothing counted yet."""
    telemetry.metrics.clear_metrics()
    yield World()
    telemetry.metrics.clear_metrics()


def metrics_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What was counted since the last look, by name; a reason is a dimension beside it."""
    telemetry.metrics.flush_metrics()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    found: dict[str, Any] = {}
    for line in lines:
        for told in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]:
            found[told["Name"]] = (line[told["Name"]], line.get("reason"))
    return found


def test_each_phone_gets_its_refunds_in_order_with_their_receives(world: World) -> None:
    first, second = refund("R-1", 30), refund("R-2", currency="KES")
    other = refund("R-3", phone=OTHER_PHONE)

    assert (
        world.handle(
            [record(first, "1", 2), record(other, "2"), record(second, "3", 7)], lambda _: DONE
        )
        == []
    )

    assert sorted(world.asked, key=len) == [[(other, 1)], [(first, 2), (second, 7)]]
    assert world.given_back == []


@pytest.mark.parametrize(
    ("result", "comes_again"),
    [
        (DONE, False),
        (replace(DONE, new=False), False),
        (Decided(Rejected(Reason.EXCEEDS_ORIGINAL), new=True), False),
        (Cancelled(new=True), False),
        (Cancelled(new=False), False),
        (Unfinished(("NOT_SETTLED",)), True),
        (Violation(("ValidationException",)), True),
    ],
)
def test_exactly_what_is_not_done_comes_again(
    world: World, result: Result, *, comes_again: bool
) -> None:
    again = world.handle([record(refund(), "1", 3)], lambda _: result)

    assert again == (["1"] if comes_again else [])
    assert world.given_back == ([("receipt of 1", 8)] if comes_again else [])


def test_a_phone_that_cannot_finish_holds_up_no_other(world: World) -> None:
    mine, other = refund("R-1"), refund("R-2", phone=OTHER_PHONE)

    def say(asked: Refund) -> Result:
        return Unfinished(("TransactionConflict",)) if asked.phone == PHONE else DONE

    assert world.handle([record(mine, "1"), record(other, "2"), record(mine, "3")], say) == [
        "1",
        "3",
    ]


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Unfinished(("NOT_SETTLED",)), {"why": "NOT_SETTLED", "failure": "unfinished"}),
        (
            Violation(("ValueError",), "refunds.py _after_settlement"),
            {
                "why": "ValueError",
                "failure": "violated",
                "place": "refunds.py _after_settlement",
            },
        ),
    ],
)
def test_c37_what_is_not_done_on_its_last_receive_is_put_aside_and_never_lost(
    world: World, result: Result, reason: dict[str, str]
) -> None:
    last = record(refund("R-1", 30), "last", RECEIVES_MAX)
    records = [last, record(refund("R-2", 30), "neighbour", RECEIVES_MAX - 1)]

    assert world.handle(records, lambda _: result) == ["neighbour"]

    [letter] = [json.loads(message.body) for message in world.delivery_failures.messages]
    assert letter == {"v": 1, "source": "RefundQueue", "record": last} | reason
    assert world.given_back == [("receipt of neighbour", 256)]

    world.delivery_failures.refuses = lambda _: True
    assert world.handle(records, lambda _: result) == ["neighbour", "last"]


def test_a_bug_on_one_phone_is_its_own(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def say(asked: Refund) -> Result:
        if asked.phone == PHONE:
            raise ValueError("a settled debit without a wallet")
        return DONE

    records = [record(refund(), "1"), record(refund(phone=OTHER_PHONE), "2")]

    assert world.handle(records, say) == ["1"]
    assert "InvariantViolations" in metrics_of(capsys)


@pytest.mark.parametrize("amount", ["0", "-5", "1.5", "1e2", '"100"', "true", "null", "NaN"])
def test_an_amount_that_is_none_is_never_decided_and_its_message_is_kept_whole(
    world: World, amount: str
) -> None:
    good = record(refund("R-1", 4_711), "bad")
    bad = good | {"body": good["body"].replace("4711", amount)}

    again = world.handle([bad, record(refund("R-2"), "good")], lambda _: DONE)

    assert again == []
    assert world.asked == [[(refund("R-2"), 1)]]
    [letter] = [json.loads(message.body) for message in world.delivery_failures.messages]
    assert (letter["source"], letter["record"]) == ("RefundQueue", bad)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (DONE, {"RefundsCompleted": ([1], None)}),
        (replace(DONE, new=False), {"DuplicatesSuppressed": ([1], None)}),
        (
            Decided(Rejected(Reason.MISMATCH), new=True),
            {"RefundsRejected": ([1], "MISMATCH")},
        ),
        (
            Decided(Rejected(Reason.MISMATCH), new=False),
            {"DuplicatesSuppressed": ([1], None)},
        ),
        (Cancelled(new=True), {"RefundsCompleted": ([1], None)}),
        (Cancelled(new=False), {"DuplicatesSuppressed": ([1], None)}),
        (Unfinished(("Moved",)), {}),
        (Violation(("Odd",)), {"InvariantViolations": ([1], None)}),
    ],
)
def test_each_decision_is_counted_once_under_its_name(
    world: World, capsys: pytest.CaptureFixture[str], result: Result, told: dict[str, Any]
) -> None:
    world.handle([record(refund(), "1")], lambda _: result)

    found = {name: (values, reason) for name, (values, reason) in metrics_of(capsys).items()}
    assert found == told


@pytest.mark.parametrize(
    ("result", "outcome"),
    [(DONE, "posted"), (Decided(Rejected(Reason.MISMATCH), True), "MISMATCH")],
)
def test_a_line_says_what_was_decided(
    world: World, caplog: pytest.LogCaptureFixture, result: Result, outcome: str
) -> None:
    world.handle([record(refund(), "1")], lambda _: result)

    [line] = map(telemetry.logger.registered_formatter.format, caplog.records)
    assert json.loads(line)["outcome"] == outcome


def test_p12_one_line_for_each_refund_and_nothing_of_its_content(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    results: list[Result] = [DONE, Cancelled(new=True), Unfinished(("x",)), Violation(("y",))]
    for result in results:
        world.handle([record(refund("R-secret", 4_711), "1")], lambda _, said=result: said)  # type: ignore[misc]

    lines = "\n".join(map(telemetry.logger.registered_formatter.format, caplog.records))
    assert [line.message for line in caplog.records] == [
        "refund decided",
        "cancelled",
        "unfinished",
        "invariant violated",
    ]
    for secret in (PHONE, "R-secret", "4711", "wrong phone", "K-1"):
        assert secret not in lines
