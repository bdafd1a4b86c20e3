"""A replay: what it sends and follows, what it refuses to do, and that it can be interrupted."""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError

import wakala
from tests.fakes.replayed import NOW_MS, Bank, Logs, Time, accepted, apis_of, settled, stack_of
from wakala import main, options, replay, replay_account, replay_run, replay_view
from wakala.desk import REAL, Clock
from wakala.measures import Asked, Depth, Latency, Measures, Replayed, Units
from wakala.output import Problem
from wakala.replay_account import Account
from wakala.replay_books import Books
from wakala.replay_run import Outcome, Run, Sampler
from wakala.stack import Stack
from wakala.traffic import Shape, Shares, Traffic, make_traffic
from wakala.transactions import Answer, Document
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status

PLAIN = Shares(duplicates=0, reorders=0, overdrafts=0, refunds=0)


def traffic_of(shape: Shape = Shape.UNIFORM, number: int = 30, **shares: float) -> Traffic:
    """All of it within some hundredths of a second."""
    return make_traffic(shape, number, seed=1, shares=replace(PLAIN, **shares), rate=1_000)


def run_of(
    bank: Bank,
    traffic: Traffic,
    clock: Clock = REAL,
    seconds_max: float = 30.0,
    began_ms: int = NOW_MS + 1,
) -> Run:
    """A replay on that bank, whose rows look older than it is if nothing else is said."""
    agents = sorted({each.document["agentId"] for each in traffic.sent})
    stack = stack_of(dynamodb=bank)
    return Run(stack, traffic, apis_of(bank, agents), clock, seconds_max, began_ms, lambda *_: None)


def ids(traffic: Traffic) -> set[tuple[str, str]]:
    """Of every transaction."""
    return {(each.document["agentId"], each.document["idempotencyKey"]) for each in traffic.sent}


@dataclass
class Interrupted:
    """A clock during whose sleeps somebody presses Ctrl-C, when `when` says so."""

    when: Callable[[int], bool]
    pressed: int = 0
    slept: int = field(default=0)

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.when(self.pressed):
            self.pressed += 1
            raise KeyboardInterrupt
        REAL.sleep(seconds)


def test_everything_is_sent_once_a_duplicate_twice_and_all_is_followed_to_its_end() -> None:
    traffic = traffic_of(duplicates=0.3)
    again = sum(each.repeated for each in traffic.sent)
    bank = Bank(settled)
    outcome = run_of(bank, traffic).until_the_end()
    assert outcome.requests == {"accepted": 30, "replayed": again}
    assert outcome.rows.keys() == bank.rows.keys() == ids(traffic)
    assert {row.status for row in outcome.rows.values()} == {Status.SYNCED}
    assert outcome.new == ids(traffic)
    assert (outcome.open, outcome.interrupted) == (frozenset(), False)


def test_an_office_sends_its_ten_as_one_batch_and_others_one_by_one() -> None:
    for shape, batches in ((Shape.BRANCH, [10, 10, 10]), (Shape.HOT, [])):
        bank = Bank(settled)
        run_of(bank, traffic_of(shape)).until_the_end()
        assert [len(batch) for batch in bank.batches] == batches
        assert len(bank.rows) == 30


def test_what_is_to_be_given_back_is_asked_for_once_it_is_settled() -> None:
    """The bank takes no refund of anything that is not."""
    traffic = traffic_of(refunds=0.5)
    bank = Bank(settled)
    outcome = run_of(bank, traffic).until_the_end()
    assert sorted(bank.refunded) == sorted(each["idempotencyKey"] for each in traffic.refunded)
    assert outcome.requests["refunds"] == len(traffic.refunded) > 0
    refunded = [row for row in outcome.rows.values() if row.status is Status.REFUNDED]
    assert len(refunded) == len(traffic.refunded)


def test_what_never_settles_is_left_open_when_the_time_is_over() -> None:
    traffic = traffic_of(number=5)
    outcome = run_of(Bank(lambda row: row), traffic, seconds_max=0.4).until_the_end()
    assert outcome.open == ids(traffic)
    assert (outcome.interrupted, outcome.by_hand) == (False, False)


def test_a_first_ctrl_c_stops_the_sending_and_what_was_taken_is_followed() -> None:
    traffic = make_traffic(Shape.UNIFORM, 500, seed=1, shares=replace(PLAIN, refunds=0.1), rate=100)
    bank = Bank(settled)
    clock = Interrupted(lambda pressed: pressed == 0 and len(bank.rows) >= 10)
    outcome = run_of(bank, traffic, Clock(time.monotonic, clock.sleep)).until_the_end()
    assert 10 <= len(outcome.rows) < 250
    assert outcome.rows.keys() == bank.rows.keys()
    assert (outcome.open, outcome.interrupted, outcome.by_hand) == (frozenset(), True, True)


def test_a_second_ctrl_c_stops_the_waiting() -> None:
    traffic = traffic_of(number=5)
    bank = Bank(lambda row: row)
    clock = Interrupted(lambda _: len(bank.rows) == 5)
    outcome = run_of(bank, traffic, Clock(time.monotonic, clock.sleep)).until_the_end()
    assert clock.pressed == 2
    assert (len(outcome.open), outcome.interrupted, outcome.by_hand) == (5, False, True)


def test_a_ctrl_c_during_a_look_loses_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = traffic_of(number=5)
    bank = Bank(settled)
    run = run_of(bank, traffic)
    asked = []

    def pressed(RequestItems: Any) -> Any:  # noqa: N803
        asked.append(RequestItems)
        raise KeyboardInterrupt

    monkeypatch.setattr(bank, "batch_get_item", pressed)
    outcome = run.until_the_end()
    assert len(asked) == 2
    assert outcome.open == bank.rows.keys()
    assert len(outcome.open) == outcome.requests["accepted"] > 0


@pytest.mark.parametrize("failures", [2, 10_000])
def test_a_look_that_fails_is_taken_again(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    traffic = traffic_of(number=5)
    bank = Bank(settled)
    run = run_of(bank, traffic, seconds_max=30 if failures == 2 else 1)
    look, left = bank.batch_get_item, [failures]

    def throttled(RequestItems: Any) -> Any:  # noqa: N803
        left[0] -= 1
        if left[0] >= 0:
            code = "ProvisionedThroughputExceededException"
            raise ClientError({"Error": {"Code": code}}, "BatchGetItem")
        return look(RequestItems)

    monkeypatch.setattr(bank, "batch_get_item", throttled)
    outcome = run.until_the_end()
    if failures == 2:
        assert outcome.rows.keys() == ids(traffic)
        assert (outcome.open, outcome.unseen) == (frozenset(), None)
    else:
        assert outcome.open == ids(traffic)
        assert not outcome.interrupted
        assert "ProvisionedThroughputExceeded" in str(outcome.unseen)


def test_what_this_run_brought_is_by_the_answer_or_by_the_age_of_the_row() -> None:
    traffic = traffic_of(number=6)
    known = traffic.sent[0].document
    for began_ms in (NOW_MS + 1, NOW_MS):
        bank = Bank(settled)
        bank.submit(known)
        outcome = run_of(bank, traffic, began_ms=began_ms).until_the_end()
        older = {(known["agentId"], known["idempotencyKey"])} if began_ms > NOW_MS else set()
        assert outcome.new == ids(traffic) - older
        assert len(outcome.rows) == 6


def test_how_late_the_last_debit_was_is_measured() -> None:
    """An API that takes a second for each debit: of sixty, the last begins forty seconds late."""
    passing, lock = Time(), threading.Lock()

    def slow(document: Document) -> Answer:
        with lock:
            passing.now_s += 1
        return Answer(document, 422, {"code": "KEY_REUSED", "retryable": False}, False, 1.0)

    traffic = traffic_of(number=60)
    bank = Bank(settled, {each.document["idempotencyKey"]: slow for each in traffic.sent})
    clock = Clock(passing.now, REAL.sleep)
    outcome = run_of(bank, traffic, clock, seconds_max=1_000).until_the_end()
    assert outcome.debits == 60
    assert 39 < outcome.late_s <= 60
    asked = Asked("uniform", 60, 1_000, 1, {})
    assert 1 <= replay._rate_reached(asked, outcome) < 60 / 39


def test_a_replay_tells_how_to_end_the_waiting(capsys: pytest.CaptureFixture[str]) -> None:
    bank = Bank(settled)
    clock = Interrupted(lambda pressed: pressed == 0 and len(bank.rows) >= 3)
    run_of(bank, traffic_of(), Clock(time.monotonic, clock.sleep)).until_the_end()
    assert capsys.readouterr().err.count("Ctrl-C once more ends that, too") == 1


def test_funding_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic, passing, funded = traffic_of(number=500), Time(), list[int]()

    def settle(_: Stack, some: list[Any], __: float) -> None:
        funded.append(len(some))
        passing.now_s += 20

    monkeypatch.setattr("wakala.wallets.settle", settle)
    clock = Clock(passing.now, passing.sleep)
    with pytest.raises(Problem, match="400 of 500 wallets were funded; with the same --seed"):
        replay_run.fund(stack_of(), traffic, clock, 30)
    assert funded == [200, 200]
    replay_run.fund(stack_of(), traffic, clock, 60)
    assert funded[2:] == [200, 200, 100]


def test_agents_get_their_tokens_once_the_wallets_are_funded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    def opened(*_: object) -> replay_run.Apis:
        done.append("opened")
        return {}

    monkeypatch.setattr(replay_run, "fund", lambda *_: done.append("funded"))
    monkeypatch.setattr(replay_run, "open_apis", opened)
    monkeypatch.setattr(replay_account, "await_account", lambda *_: None)
    monkeypatch.setattr("wallet_ledger.aws.calls.watched", lambda *_: None)
    replay._prepare(stack_of(dynamodb=None), traffic_of(), REAL, 1)
    assert done == ["funded", "opened"]


def test_what_gets_no_answer_is_unsent_and_what_is_refused_is_no_transaction() -> None:
    traffic = traffic_of(number=3)
    first, second = (traffic.sent[n].document["idempotencyKey"] for n in (0, 1))

    def silent(_: Document) -> Answer:
        raise Problem("no answer from the API")

    def refused(document: Document) -> Answer:
        return Answer(document, 422, {"code": "KEY_REUSED", "retryable": False}, False, 1.0)

    bank = Bank(settled, {first: silent, second: refused})
    outcome = run_of(bank, traffic).until_the_end()
    assert outcome.requests == {"unsent": 1, "refused": 1, "accepted": 1}
    assert len(outcome.rows) == 1
    assert not outcome.interrupted


class Queues:
    """Depths by URL."""

    def __init__(self) -> None:
        self.depths: dict[str, int] = {}

    def get_queue_attributes(self, QueueUrl: str, AttributeNames: object) -> Any:  # noqa: N803
        return {"Attributes": {"ApproximateNumberOfMessages": str(self.depths.get(QueueUrl, 0))}}


def test_a_sample_counts_letters_in_queues_and_at_the_desk_and_the_oldest_ones_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Document] = []
    monkeypatch.setattr("wakala.desk.Desk.some_open", lambda _self, _most: list(kept))
    queues, now = Queues(), [100.0]
    sampler = Sampler(stack_of(sqs=queues), Clock(lambda: now[0], lambda _: None))
    sampler.look(50_000, ask_desk=True)
    queues.depths |= {"failed": 3, "tx-dlq": 1}
    now[0], kept[:] = 102.0, [{"arrivedAt": 48_000}]
    sampler.look(52_000, ask_desk=False)  # the desk is asked every five seconds
    now[0] = 105.0
    sampler.look(55_000, ask_desk=False)
    queues.depths.clear()
    now[0], kept[:] = 106.0, []
    sampler.look(56_000, ask_desk=True)
    assert sampler.depths == [Depth(0, 0, 0), Depth(2, 4, 0), Depth(5, 5, 7), Depth(6, 0, 0)]


def test_a_sample_that_cannot_be_taken_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> list[Document]:
        raise Problem("the desk may not be asked")

    monkeypatch.setattr("wakala.desk.Desk.some_open", refuse)
    sampler = Sampler(stack_of(sqs=Queues()), REAL)
    sampler.look(50_000, ask_desk=True)
    assert sampler.depths == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--number 0", "error: --number 0: 1 to 50,000"),
        ("--number 50001", "error: --number 50001: 1 to 50,000"),
        ("--rate 0", "error: --rate 0: 0.1 to 1,000"),
        ("--rate nan", "error: --rate nan: 0.1 to 1,000"),
        ("--minutes-max 51", "error: --minutes-max 51: 0.1 to 50"),
        ("--seed -1", "error: --seed -1: 0 to 1,000,000,000"),
        ("--seed 1000000001", "error: --seed 1000000001: 0 to 1,000,000,000"),
        ("--overdrafts 1.5", "error: --overdrafts 1.5: 0 to 1"),
        ("--number 1000 --rate 1", "error: 1,000 at 1 a second take 16.7 minutes: more than"),
        ("--shape square", 'error: Invalid value "square" for --shape. Choose from'),
        ("--html none/report.html", "error: --html none/report.html: there is no such folder"),
        ("--html .", "error: --html .: is a folder"),
        ("--plot .", "error: --plot .: is a folder"),
        ("--bench bench.json", "error: --bench stands in the report: give --html or"),
        ("--plot none/p.svg", "error: --plot none/p.svg: there is no such folder"),
        ("--html r.html --bench /dev/null", "error: --bench /dev/null: cannot be read"),
        ("--html r.html --bench none.json", "error: --bench none.json: cannot be read"),
    ],
)
def test_a_replay_that_cannot_be_is_one_line_and_nothing_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: str, line: str
) -> None:
    def unreached(_: object) -> None:
        raise AssertionError("a stack was opened")

    monkeypatch.setattr(options, "open_stack", unreached)
    status = main.run(["replay", *arguments.split(" ")])
    said = capsys.readouterr().err
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith(line)


def test_a_replay_makes_up_no_money_in_production(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    production = replace(stack_of(), parameters={"Stage": "prod"})
    monkeypatch.setattr(options, "open_stack", lambda _: production)
    assert main.run(["replay"]) == 1
    assert "does not run on a stack whose Stage is prod" in capsys.readouterr().err


def test_a_seed_is_fresh_unless_one_is_given() -> None:
    seeds = {replay.Load().asked().seed for _ in range(5)}
    assert len(seeds) > 1
    assert replay.Load(seed=7).asked().seed == 7


def row(key: str, status: Status = Status.SYNCED, reason: str | None = None) -> OfflineTransaction:
    """A transaction at an end."""
    document = {"agentId": "A", "idempotencyKey": key, "phone": "254712345678", "amount": 5}
    return replace(settled(accepted(document)), status=status, reason=reason)


def outcome_of(*rows: OfflineTransaction, **others: Any) -> Outcome:
    """Of these transactions, each sent once."""
    by_id: dict[tuple[str, str], OfflineTransaction] = {
        (each.agent_id, each.idempotency_key): each for each in rows
    }
    members: dict[str, Any] = {
        "requests": {"accepted": len(rows)},
        "rows": by_id,
        "open": frozenset(),
        "new": frozenset(by_id),
        "unseen": None,
        "debits": len(rows),
        "late_s": 0.0,
        "interrupted": False,
        "by_hand": False,
        "seconds": 1.0,
    }
    return Outcome(**(members | others))


def test_statuses_are_counted_and_a_refusal_by_its_reason() -> None:
    refused = [row(key, Status.FAILED, Reason.INSUFFICIENT_FUNDS) for key in ("b", "c")]
    assert replay._statuses(outcome_of(row("a"), *refused)) == {
        "synced": 1,
        "failed: INSUFFICIENT_FUNDS": 2,
    }


@pytest.mark.parametrize(
    ("outcome", "books", "line"),
    [
        (outcome_of(row("a")), Books(0, (), ()), None),
        (outcome_of(row("a")), Books(2, (), ()), "2 debits took their money more"),
        (outcome_of(row("a")), Books(0, (), ("the wallet …1",) * 12), "2 wallets more hold"),
        (
            outcome_of(row("a"), open=frozenset({("A", "a")})),
            Books(0, (), ()),
            "1 transactions have",
        ),
        (
            outcome_of(row("a"), interrupted=True),
            Books(0, (), ()),
            "the time was over: 1 of 3 were",
        ),
        (outcome_of(row("a"), interrupted=True, by_hand=True), Books(0, (), ()), None),
        (outcome_of(requests={"unsent": 4}), Books(0, (), ()), "4 requests: unsent"),
    ],
)
def test_what_should_not_be_is_a_line(outcome: Outcome, books: Books, line: str | None) -> None:
    broken = replay._broken(outcome, books, to_send=3)
    assert (broken == ()) if line is None else (line in broken[-1])


MEASURES = Measures(
    stack="wakala",
    region="us-east-1",
    local=True,
    started_at_ms=1,
    seconds=2.0,
    asked=Asked("branch", 4, 2.0, 7, {"refunds": 0.5}),
    rate_reached=1.5,
    interrupted=True,
    requests={"accepted": 4, "refundsRefused": 0},
    transactions=4,
    accepted_before=0,
    statuses={"synced": 3, "failed: WALLET_FROZEN": 1},
    duplicates=1,
    latency=Latency(4, 10, 20, 30, 40, ((50.0, 4),)),
    depths=(Depth(0.0, 3, 1.5),),
    units=(Units("OfflineTx/OpenTx", 1.0, 2_000_000.0, "the functions' clients"),),
    contention_retries=0,
    calls={"ingest-bus": 1.25},
    usage={"lambda.gb_seconds": 2.5},
)


def test_a_script_gets_every_measure_and_names_of_what_was_counted_as_they_are() -> None:
    seen = replay_view.view(Replayed(MEASURES, ("a line",), is_whole=False, by_hand=True), [])
    assert (seen["ok"], seen["broken"], seen["costs"]) == (False, ["a line"], [])
    assert seen["whole"] is False
    told = seen["measures"]
    assert told["startedAtMs"] == 1
    assert told["duplicatesPerMillion"] == 250_000
    assert told["statuses"] == MEASURES.statuses
    assert told["calls"] == {"ingest-bus": 1.25}
    assert told["usage"] == {"lambda.gb_seconds": 2.5}
    assert told["latency"]["p50Ms"] == 10
    assert told["latency"]["bins"] == [[50.0, 4]]
    assert told["depths"] == [{"atS": 0.0, "letters": 3, "oldestS": 1.5}]
    assert told["units"][0]["toldBy"] == "the functions' clients"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the report was to be written of, on a stack of no account."""
    found: list[Any] = []
    prices = SimpleNamespace(
        BUNDLED=Path("bundled.json"),
        read_prices=lambda path, region: (str(path), region),
        costs=lambda usage, prices: (SimpleNamespace(view=lambda: {**usage, "by": prices}),),
    )
    report = SimpleNamespace(
        write_html=lambda *given: found.append(given),
        write_plot=lambda *given: found.append(given),
    )
    for name, module in (("price", prices), ("replay_report", report)):
        monkeypatch.setattr(wakala, name, module, raising=False)
        monkeypatch.setitem(sys.modules, f"wakala.{name}", cast("ModuleType", module))
    monkeypatch.setattr(options, "open_stack", lambda _: stack_of())
    return found


@pytest.mark.parametrize(
    ("ends", "status", "line"),
    [
        (((), True, False), 0, ""),
        (((), False, False), 0, "note: some of the functions' lines did not come"),
        ((("a wallet",), True, False), 1, "error: a wallet"),
        ((("a wallet",), True, True), 130, "error: a wallet"),
    ],
)
def test_measures_are_shown_and_written_whatever_they_are(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    written: list[Any],
    ends: tuple[tuple[str, ...], bool, bool],
    status: int,
    line: str,
) -> None:
    asked: list[Any] = []

    def replayed(_: Stack, load: Asked, seconds_max: float, __: Clock) -> Replayed:
        asked.append((load, seconds_max))
        return Replayed(MEASURES, *ends)

    monkeypatch.setattr(replay, "replay", replayed)
    arguments = (
        "replay --shape month-end --seed 3 --minutes-max 2 --html r.html --plot p.svg --json"
    )

    assert main.run(arguments.split(" ")) == status

    said = capsys.readouterr()
    assert json.loads(said.out)["costs"] == [
        {"lambda.gb_seconds": 2.5, "by": ["bundled.json", "us-east-1"]}
    ]
    page, plot = written
    assert (page[0], *page[2:]) == (MEASURES, None, Path("r.html"))
    assert plot == (MEASURES, None, Path("p.svg"))
    ((load, seconds_max),) = asked
    assert (load.shape, load.seed, seconds_max) == ("month-end", 3, 120)
    assert said.err.startswith(line)
    assert said.err.count("\n") == (1 if line else 0)


def test_on_aws_units_are_cloudwatchs_less_what_the_clock_and_the_command_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, seen = Account(read=Counter({"wakala-tx": 3})), list[Account]()
    units = (Units("OfflineTx", 1.0, 2.0, "CloudWatch"),)

    def told(*given: Any) -> tuple[Units, ...] | None:
        seen.append(given[3])
        return units if len(seen) == 1 else None

    monkeypatch.setattr(replay_account, "told_by_cloudwatch", told)
    swept = {"dynamodb.Query": {"count": 1, "units": {"wakala-tx/OpenTx": 0.5}}}
    logs = Logs({"sweep": [(5, json.dumps({"awsCalls": swept}))]})
    stack = stack_of(on_aws=True, logs=logs)
    passing = Time()
    clock = Clock(passing.now, passing.sleep)
    nothing = outcome_of(requests={})

    assert replay._account(stack, 5, nothing, own, clock)[1] == units
    assert seen[0].read == {"wakala-tx": 3, "wakala-tx/OpenTx": 0.5}
    late = replay._account(stack, 5, nothing, own, clock)[1]
    assert {each.told_by for each in late} == {"the functions' clients"}


def test_what_costs_is_divided_by_what_this_run_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(calls=Counter({("ingest", "dynamodb.PutItem"): 3}))
    told_of = account, (Units("OfflineTx", 1.0, 2.0, "CloudWatch"),)
    asked, rows = MEASURES.asked, [row(key) for key in "abcd"]
    resumed = outcome_of(*rows, new=frozenset({("A", "a")}))
    found = replay._measures(stack_of(), asked, 1, resumed, Books(0, (), ()), told_of)
    assert (found.transactions, found.accepted_before) == (4, 3)
    assert found.calls == {"ingest": 3}
    assert len(found.units) == 1
    again = outcome_of(*rows, new=frozenset())
    found = replay._measures(stack_of(), asked, 1, again, Books(0, (), ()), told_of)
    assert (found.accepted_before, found.calls, found.units, found.usage) == (4, {}, (), {})
    (note,) = replay_view.notes(Replayed(found, (), is_whole=True, by_hand=False))
    assert note.startswith("4 transactions were accepted before this run")


def test_what_was_accepted_and_never_looked_at_is_a_transaction_too() -> None:
    outcome = outcome_of(row("a"), open=frozenset({("A", "b")}), new=ids(traffic_of()))
    assert replay._statuses(outcome) == {"synced": 1, "not looked at": 1}


def test_who_interrupts_while_it_prepares_is_told_the_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: list[Any]
) -> None:
    def pressed(*_: object) -> Replayed:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "replay", pressed)
    assert main.run(["replay", "--seed", "31"]) == 130
    assert (
        capsys.readouterr().err == "interrupted: with --seed 31 the same goes on, counting once\n"
    )
    assert written == []


def test_what_is_broken_is_told_before_a_file_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: list[Any]
) -> None:
    def refused(*_: object) -> None:
        raise Problem("r.html: cannot be written: the disk is full")

    def replayed(*_: object) -> Replayed:
        return Replayed(MEASURES, ("a wallet",), is_whole=False, by_hand=False)

    monkeypatch.setattr(replay, "replay", replayed)
    monkeypatch.setattr(sys.modules["wakala.replay_report"], "write_html", refused)
    assert main.run(["replay", "--html", "r.html", "--json"]) == 1
    note, broken, unwritten = capsys.readouterr().err.splitlines()
    assert note.startswith("note: some of the functions' lines did not come")
    assert (broken, unwritten[:14]) == ("error: a wallet", "error: r.html:")


def test_a_person_gets_the_measures_too() -> None:
    facts = dict(replay_view._facts(MEASURES))
    assert facts["transactions"] == "4: 3 synced, 1 failed: WALLET_FROZEN"
    assert facts["debits a second"] == "asked 2 a second, reached 1.5"
    assert facts["duplicate debits"] == "250,000 of a million"
    assert facts["settled after"] == "p50 10 ms, p95 20 ms, p99 30 ms, at most 40 ms"
    assert facts["dead letters"] == "at most 3 at a time, the oldest 1.5 s old"
    assert "interrupted" in facts[""]
    unsettled = dict(replay_view._facts(replace(MEASURES, latency=None, interrupted=False)))
    assert unsettled["settled after"] == "nothing was settled"
    assert "" not in unsettled
