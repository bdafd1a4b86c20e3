"""TxQueue's edge: which messages come again, where the unreadable go, and what is told of it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconcile.queue import consumer
from reconcile.settle import Dropped, Settled, Settlement, settle
from tests.fakes.memory import START_MS, FakeClock, FakeLedger, FakeQueue, Store
from tests.fakes.samples import PHONE, credit, debit, row_of, status_change
from tests.fakes.scripted import Call, around, contended, refused
from wallet_ledger import telemetry
from wallet_ledger.consumer import GIVE_BACK_S
from wallet_ledger.domain.ids import transaction_ref
from wallet_ledger.domain.transactions import Reason, Status
from wallet_ledger.domain.wallets import Debit, Movement, Posted, Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import Unavailable
from wallet_ledger.messages import movement_message
from wallet_ledger.patience import Patience
from wallet_ledger.ports import Ledger, OutgoingMessage

OTHER_PHONE = "254700000001"
THIRD_PHONE = "254700000002"
RECEIVES_MAX = 10


def record(message: Movement | str, message_id: str, receives: int = 1) -> dict[str, Any]:
    """A message of TxQueue as Lambda hands it over."""
    body = message if isinstance(message, str) else movement_message(message, "d").body
    return {
        "messageId": message_id,
        "receiptHandle": f"receipt of {message_id}",
        "body": body,
        "attributes": {"ApproximateReceiveCount": str(receives), "MessageGroupId": "whatever"},
        "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:wakala-TxQueue.fifo",
    }


@dataclass
class World:
    """The books, DeliveryFailures, and what was given back."""

    store: Store = field(default_factory=Store)
    clock: FakeClock = field(default_factory=FakeClock)
    delivery_failures: FakeQueue = field(default_factory=lambda: FakeQueue(FakeClock()))
    given_back: list[tuple[str, int]] = field(default_factory=list)
    receives_max: int = RECEIVES_MAX

    def accept(self, *debits: Debit) -> None:
        """Their rows, queued."""
        for each in debits:
            self.store.rows[each.agent_id, each.idempotency_key] = row_of(each)

    def books(self, step: Callable[[Call], Any] = lambda call: call.proceed()) -> Ledger:
        """The books, with something in between."""
        return around(FakeLedger(self.store, retention_days=0), step)

    def settle_on(self, ledger: Ledger) -> Callable[[Sequence[Movement]], list[Settlement]]:
        """Settle as the function does, with no patience."""
        return lambda movements: settle(
            movements, ledger, self.clock, Patience(self.clock, lambda: 0.5, 0)
        )

    def handle(
        self,
        records: Sequence[Mapping[str, Any]],
        settle_phone: Callable[[Sequence[Movement]], list[Settlement]] | None = None,
    ) -> list[str]:
        """The ids of the messages that come again."""
        answer = consumer(
            settle_phone=settle_phone or self.settle_on(self.books()),
            delivery_failures=self.delivery_failures,
            give_back=self.given_back.extend,
            receives_max=self.receives_max,
            clock=self.clock,
        ).handle_batch(records)
        assert answer.keys() == {"batchItemFailures"}
        return [each["itemIdentifier"] for each in answer["batchItemFailures"]]


@pytest.fixture
def world() -> Iterable[World]:
    """Three wallets of 1000, and nothing counted yet."""
    telemetry.metrics.clear_metrics()
    made = World()
    for phone in (PHONE, OTHER_PHONE, THIRD_PHONE):
        made.settle_on(made.books())([credit("funding", 1000, phone=phone)])
    yield made
    telemetry.metrics.clear_metrics()


def only_for(phone: str, step: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """The step befalls the writes of one wallet."""

    def choose(call: Call) -> Any:
        mine = call.method == "post" and call.arguments[0].phone == phone
        return step(call) if mine else call.proceed()

    return choose


# --- which come again -----------------------------------------------------------------------------


def test_what_is_settled_does_not_come_again_whatever_was_decided(world: World) -> None:
    world.accept(debit("K-1"), debit("K-2", 10**6))

    again = world.handle(
        [
            record(debit("K-1"), "posted"),
            record(debit("K-2", 10**6), "refused"),
            record(debit("K-3"), "dropped"),
            record(debit("K-1", attempt=2), "repetition"),
            record(credit("C-1"), "credit"),
            record(status_change("S-1"), "status"),
        ]
    )

    assert again == []
    assert world.given_back == []
    assert world.store.wallets[debit().phone].balance_minor == 1900


def test_a_wallet_that_cannot_finish_fails_alone_from_its_first_unfinished_message_on(
    world: World,
) -> None:
    mine = [debit(f"K-{number}", phone=PHONE) for number in range(3)]
    other = [debit(f"L-{number}", phone=OTHER_PHONE) for number in range(3)]
    world.accept(*mine, *other)
    records = [
        record(each, each.idempotency_key)
        for pair in zip(mine, other, strict=True)
        for each in pair
    ]
    books = world.books(only_for(PHONE, contended("TransactionConflict")))

    assert world.handle(records, world.settle_on(books)) == ["K-0", "K-1", "K-2"]

    assert world.store.wallets[other[0].phone].balance_minor == 700
    assert world.store.wallets[mine[0].phone].balance_minor == 1000
    assert world.given_back == [(f"receipt of K-{number}", 2) for number in range(3)]


def test_a_movement_that_the_books_refuse_comes_again_without_its_neighbours(world: World) -> None:
    wanted = [debit(f"K-{number}") for number in range(4)]
    world.accept(*wanted)

    def refuse(call: Call) -> Any:
        new = call.arguments[0].new
        keys = [each.movement.idempotency_key for each in new]
        return refused("ValidationError")(call) if "K-1" in keys else call.proceed()

    books = world.books(only_for(PHONE, refuse))

    again = world.handle([record(e, e.idempotency_key) for e in wanted], world.settle_on(books))

    assert again == ["K-1"]
    assert world.store.wallets[wanted[0].phone].balance_minor == 700


def test_an_error_that_nobody_expected_fails_its_own_wallet_alone(world: World) -> None:
    wanted = [debit("K-1", phone=PHONE), debit("K-2", phone=OTHER_PHONE), debit("K-3", phone=PHONE)]
    world.accept(*wanted)

    def explode(_: Call) -> Any:
        raise KeyError("balanceMinor")

    books = world.books(only_for(PHONE, explode))

    again = world.handle([record(e, e.idempotency_key) for e in wanted], world.settle_on(books))

    assert again == ["K-1", "K-3"]
    assert world.store.wallets[wanted[1].phone].balance_minor == 900


settlements = st.sampled_from(
    [
        Settled(Posted(1, 1), new=True),
        Settled(Rejected(Reason.WALLET_FROZEN), new=False),
        Dropped(),
        Unfinished(("ThrottlingException",)),
        Violation(("ValidationError",)),
    ]
)
phones = st.sampled_from([PHONE, OTHER_PHONE, THIRD_PHONE])


@given(st.lists(st.tuples(phones, st.one_of(st.none(), settlements)), max_size=10))
def test_exactly_the_unfinished_and_the_violations_come_again(
    batch: list[tuple[str, Settlement | None]],
) -> None:
    """None stands for a message that cannot be read."""
    world = World()
    records = [
        record(credit(f"C-{index}", phone=phone) if said else "{", str(index))
        for index, (phone, said) in enumerate(batch)
    ]

    def settle_phone(movements: Sequence[Movement]) -> list[Settlement]:
        places = [int(each.credit_id[2:]) for each in movements]  # type: ignore[union-attr]
        return [said for said in (batch[place][1] for place in places) if said is not None]

    again = world.handle(records, settle_phone)

    assert sorted(again, key=int) == [
        str(index)
        for index, (_, said) in enumerate(batch)
        if isinstance(said, Unfinished | Violation)
    ]
    assert sorted(handle for handle, _ in world.given_back) == sorted(
        f"receipt of {message_id}" for message_id in again
    )
    assert world.delivery_failures.depth() == sum(said is None for _, said in batch)
    telemetry.metrics.clear_metrics()


def test_wallets_settle_side_by_side(world: World) -> None:
    together = Barrier(3, timeout=10)

    def settle_phone(movements: Sequence[Movement]) -> list[Settlement]:
        together.wait()
        return [Dropped()] * len(movements)

    records = [record(debit(phone=p), p) for p in (PHONE, OTHER_PHONE, THIRD_PHONE)]

    assert world.handle(records, settle_phone) == []


def test_the_movements_of_a_wallet_arrive_together_and_in_their_order(world: World) -> None:
    lanes: list[list[str]] = []

    def settle_phone(movements: Sequence[Movement]) -> list[Settlement]:
        lanes.append([each.idempotency_key for each in movements if isinstance(each, Debit)])
        return [Dropped()] * len(movements)

    records = [record(debit(f"K-{n}", phone=PHONE), f"{n}") for n in range(5)]
    records.insert(2, record(debit("L-0", phone=OTHER_PHONE), "9"))
    world.handle(records, settle_phone)

    assert sorted(lanes) == [["K-0", "K-1", "K-2", "K-3", "K-4"], ["L-0"]]


def test_an_empty_batch_is_nothing_to_do(world: World) -> None:
    assert world.handle([]) == []


# --- what cannot be read --------------------------------------------------------------------------

POISON = '{"v": 1, "kind": "debit", "phone": "254712345678", "idempotencyKey": "K-254712345678"}'


def test_an_unreadable_message_is_handed_over_whole_and_blocks_nobody(world: World) -> None:
    world.accept(debit("K-1"), debit("K-2"))
    poison = record(POISON, "poison", receives=3)

    again = world.handle([record(debit("K-1"), "1"), poison, record(debit("K-2"), "2")])

    assert again == []
    assert world.store.wallets[debit().phone].balance_minor == 800
    [letter] = world.delivery_failures.messages
    assert letter.group is None
    told = json.loads(letter.body)
    assert told["record"] == poison
    assert (told["source"], told["v"]) == ("TxQueue", 1)
    assert told["why"]


def test_an_unreadable_message_that_cannot_be_handed_over_comes_again_alone(world: World) -> None:
    world.accept(debit("K-1"))
    world.delivery_failures.refuses = lambda letter: '"poison-1"' in letter.body

    again = world.handle(
        [record(POISON, "poison-1"), record(debit("K-1"), "1"), record(POISON, "poison-2")]
    )

    assert again == ["poison-1"]
    assert world.store.wallets[debit().phone].balance_minor == 900


def test_a_queue_that_can_never_take_the_unreadable_holds_up_nobody_else(world: World) -> None:
    """As where a letter is larger than the queue takes."""
    world.accept(debit("K-1"))

    def refuse(_: object) -> bool:
        raise RuntimeError("BatchRequestTooLong")

    world.delivery_failures.refuses = refuse

    assert world.handle([record(POISON, "poison"), record(debit("K-1"), "1")]) == ["poison"]
    assert world.store.wallets[debit().phone].balance_minor == 900


# --- putting aside --------------------------------------------------------------------------------


def letters(world: World) -> list[dict[str, Any]]:
    """What DeliveryFailures holds."""
    return [json.loads(message.body) for message in world.delivery_failures.messages]


def test_what_cannot_be_finished_is_put_aside_with_its_codes_on_its_last_receive(
    world: World,
) -> None:
    world.accept(debit("K-1"), debit("K-2"))
    last = record(debit("K-1"), "last", RECEIVES_MAX)
    neighbour = record(debit("K-2"), "neighbour", RECEIVES_MAX - 1)
    books = world.books(only_for(PHONE, contended("TransactionConflict", "None")))

    again = world.handle([last, neighbour], world.settle_on(books))

    assert again == ["neighbour"]
    assert world.given_back == [("receipt of neighbour", 256)]
    assert letters(world) == [
        {
            "v": 1,
            "source": "TxQueue",
            "why": "TransactionConflict",
            "failure": "unfinished",
            "record": last,
        }
    ]
    assert {row.status for row in world.store.rows.values()} == {Status.QUEUED}


def test_a_violation_is_put_aside_with_the_place_that_raised_it(world: World) -> None:
    world.accept(debit())

    def explode(_: Call) -> Any:
        raise KeyError(f"balanceMinor of {PHONE}")

    last = record(debit(), "last", RECEIVES_MAX + 3)
    books = world.books(only_for(PHONE, explode))

    assert world.handle([last], world.settle_on(books)) == []

    assert world.given_back == []
    assert letters(world) == [
        {
            "v": 1,
            "source": "TxQueue",
            "why": "KeyError",
            "failure": "violated",
            "place": "settle.py _settle_together",
            "record": last,
        }
    ]


def test_what_could_not_be_put_aside_comes_again_and_its_queue_gives_it_up(world: World) -> None:
    def refuse(letter: OutgoingMessage) -> bool:
        return bool(json.loads(letter.body)["record"]["messageId"] == "1")

    world.delivery_failures.refuses = refuse
    records = [
        record(debit(phone=phone), str(number), RECEIVES_MAX)
        for number, phone in enumerate((PHONE, OTHER_PHONE, THIRD_PHONE))
    ]

    again = world.handle(records, lambda movements: [Unfinished(("Odd",))] * len(movements))

    assert again == ["1"]
    assert [letter["record"] for letter in letters(world)] == [records[0], records[2]]


def test_what_is_done_on_its_last_receive_is_no_letter(world: World) -> None:
    world.accept(debit())

    assert world.handle([record(debit(), "1", RECEIVES_MAX)]) == []

    assert letters(world) == []
    assert world.store.wallets[debit().phone].balance_minor == 900


# --- giving back ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("receives", "rest_s"),
    [*enumerate((2, 4, 8, 16, 32, 64, 128, 256), start=1), (9, 256), (10, 256), (1000, 256)],
)
def test_a_group_rests_longer_after_each_receive(world: World, receives: int, rest_s: int) -> None:
    unfinished = [Unfinished(("ThrottlingException",))]
    world.receives_max = 10_000

    world.handle([record(debit(), "1", receives)], lambda _: [*unfinished])

    assert world.given_back == [("receipt of 1", rest_s)]
    assert max(GIVE_BACK_S) < 43_200  # the longest that a queue lets a message rest


def test_each_wallet_rests_by_its_own_count(world: World) -> None:
    records = [
        record(debit(phone=PHONE), "1", 1),
        record(debit(phone=OTHER_PHONE), "2", 5),
        record(debit("K-2", phone=PHONE), "3", 4),
    ]

    world.handle(records, lambda movements: [Unfinished(("Odd",))] * len(movements))

    assert sorted(world.given_back) == [
        ("receipt of 1", 2),
        ("receipt of 2", 32),
        ("receipt of 3", 2),
    ]


def test_work_that_says_nothing_of_a_message_lets_none_of_the_batch_go(world: World) -> None:
    """There is no such work; if there is once, all of the batch comes again."""
    with pytest.raises(ValueError, match="shorter"):
        world.handle([record(debit(), "1")], lambda _: [])


def test_where_everything_is_done_nothing_is_given_back(world: World) -> None:
    """A call without an entry is an error to SQS."""
    asked: list[Sequence[tuple[str, int]]] = []

    answer = consumer(
        settle_phone=lambda movements: [Dropped()] * len(movements),
        delivery_failures=world.delivery_failures,
        give_back=asked.append,
        receives_max=RECEIVES_MAX,
        clock=world.clock,
    ).handle_batch([record(debit(), "1")])

    assert (answer, asked) == ({"batchItemFailures": []}, [])


@pytest.mark.parametrize("error", [Unavailable("ThrottlingException"), RuntimeError("receipt")])
def test_a_group_that_cannot_be_given_back_early_still_comes_again_and_alone(
    world: World, error: Exception
) -> None:
    def give_back(_rests: Sequence[tuple[str, int]]) -> None:
        raise error

    def settle_phone(movements: Sequence[Movement]) -> list[Settlement]:
        unfinished = movements[0].phone == PHONE
        return [Unfinished(("Odd",)) if unfinished else Dropped()] * len(movements)

    answer = consumer(
        settle_phone=settle_phone,
        delivery_failures=world.delivery_failures,
        give_back=give_back,
        receives_max=RECEIVES_MAX,
        clock=world.clock,
    ).handle_batch([record(debit(phone=PHONE), "1"), record(debit(phone=OTHER_PHONE), "2")])

    assert answer == {"batchItemFailures": [{"itemIdentifier": "1"}]}


# --- what is told ---------------------------------------------------------------------------------

SECRET_KEY = "K-254712345678"
SECRET_AMOUNT = 918_273


def test_p12_no_phone_key_or_amount_is_in_any_log_line_or_metric(
    world: World, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(_: Call) -> Any:
        raise RuntimeError(f"cannot read {PHONE}")

    steps: list[Callable[[Call], Any]] = [
        lambda call: call.proceed(),
        contended("TransactionConflict"),
        refused("ValidationError"),
        explode,
    ]
    wanted: list[Movement] = [
        debit(SECRET_KEY, SECRET_AMOUNT),
        credit(SECRET_KEY, SECRET_AMOUNT),
        credit(SECRET_KEY, SECRET_AMOUNT + 1),
        status_change(SECRET_KEY),
        debit("K-unknown", SECRET_AMOUNT),
    ]
    for number, step in enumerate(steps):
        world.accept(debit(SECRET_KEY, SECRET_AMOUNT))
        records = [record(each, f"{number}-{place}") for place, each in enumerate(wanted)]
        spoilt = records[0]["body"].replace("debit", "other")
        world.handle([*records, record(spoilt, "x")], world.settle_on(world.books(step)))
    telemetry.metrics.flush_metrics()

    lines = [telemetry.logger.registered_formatter.format(each) for each in caplog.records]
    assert len(lines) >= len(steps) * len(wanted)
    told = "\n".join(lines) + capsys.readouterr().out
    assert "InvariantViolations" in told
    for secret in (PHONE, SECRET_KEY, str(SECRET_AMOUNT), str(SECRET_AMOUNT + 1), "funding"):
        assert secret not in told


def metrics_of(capsys: pytest.CaptureFixture[str]) -> dict[str, list[float]]:
    """What CloudWatch reads from standard output."""
    telemetry.metrics.flush_metrics()
    found: dict[str, list[float]] = {}
    for line in capsys.readouterr().out.splitlines():
        told = json.loads(line)
        for each in told["_aws"]["CloudWatchMetrics"][0]["Metrics"]:
            found.setdefault(each["Name"], []).extend(told[each["Name"]])
    return found


def test_each_decision_is_counted_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.accept(debit("K-1"), debit("K-2"), debit("K-3", 10**6))
    world.clock.pause(1.5)
    latency_ms = world.clock.now_ms() - START_MS

    world.handle(
        [
            record(debit("K-1"), "1"),
            record(debit("K-1", attempt=2), "2"),
            record(debit("K-2"), "3"),
            record(debit("K-3", 10**6), "4"),
            record(debit("K-9"), "5"),
            record(credit("C-1"), "6"),
        ]
    )

    found = metrics_of(capsys)
    assert found["TransactionsSynced"] == [1, 1]
    assert found["SettleLatencyMs"] == [latency_ms, latency_ms]
    assert found["TransactionsFailed"] == [1]
    assert found["DuplicatesSuppressed"] == [1, 1]
    assert "InvariantViolations" not in found


def test_a_violation_is_counted_for_its_alarm(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.accept(debit())

    world.handle(
        [record(debit(), "1")], world.settle_on(world.books(only_for(PHONE, refused("X"))))
    )

    assert metrics_of(capsys)["InvariantViolations"] == [1]


def test_each_decision_is_one_line_that_names_its_transaction_the_same_way_each_time(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.accept(debit("K-1"))
    for _ in range(2):
        world.handle([record(debit("K-1"), "1"), record(credit("C-1"), "2")])

    lines = [
        json.loads(telemetry.logger.registered_formatter.format(each)) for each in caplog.records
    ]
    decisions = [(line["kind"], line["message"]) for line in lines if "transaction" in line]
    assert sorted(decisions) == [
        ("credit", "settled"),
        ("credit", "settled"),
        ("debit", "dropped"),
        ("debit", "settled"),
    ]
    assert len({line["transaction"] for line in lines if line.get("kind") == "debit"}) == 1


def test_a_line_says_what_became_of_a_debit_and_names_it_as_every_other_line_does(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    small, large = debit("K-1"), debit("K-2", 10**6)
    world.accept(small, large)
    world.handle([record(small, "1"), record(large, "2")])

    lines = [
        json.loads(telemetry.logger.registered_formatter.format(each)) for each in caplog.records
    ]
    assert [(line["transaction"], line["outcome"]) for line in lines] == [
        (transaction_ref(small.agent_id, small.idempotency_key), "posted"),
        (transaction_ref(large.agent_id, large.idempotency_key), "INSUFFICIENT_FUNDS"),
    ]


def test_a_line_calls_a_kind_of_movement_what_its_message_calls_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.handle([record(status_change(), "1")])

    [line] = [
        json.loads(telemetry.logger.registered_formatter.format(each)) for each in caplog.records
    ]
    assert line["kind"] == "status"
