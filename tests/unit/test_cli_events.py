"""A day that the relay told of, told again from the tables that it left; and what stops that."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fakes import samples
from tests.fakes.day import NAMES, OTHER, Day, Event, Item, a_day
from tests.fakes.memory import START_MS, FakeClock
from wakala import events, main, options
from wakala.events import Told, put
from wakala.output import Problem
from wakala.stack import Stack
from wakala.wallets import rfc3339
from wallet_ledger.aws import items
from wallet_ledger.domain.transactions import Status
from wallet_ledger.ports import OutgoingEvent

type Run = Callable[..., tuple[int, str, str]]

# --- the stack that it left ---------------------------------------------------------------------


@dataclass
class Aws:
    """Tables as they are, read in small pages, and a bus. It filters nothing: an engine does."""

    tables: Mapping[str, Sequence[Item]]
    heard: list[Event] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    refuses: Callable[[int], bool] = lambda _: False
    conflicts: bool = False

    class exceptions:  # noqa: N801 - as botocore names it
        TransactionCanceledException = ClientError

    def client(self, *_: object, **__: object) -> "Aws":
        return self

    def get_paginator(self, operation: str) -> Any:
        def paginate(**call: Any) -> Iterator[Item]:
            self.calls.append(f"{operation} {call['TableName']}")
            assert call["ConsistentRead"]
            agent = call["ExpressionAttributeValues"].get(":agent")
            held = self.tables[call["TableName"]]
            found = [item for item in held if agent in (None, item.get("agentId"))]
            for start in range(0, len(found), 5):
                page = found[start : start + 5]
                yield {"Items": page, "ScannedCount": len(page)}

        return type("Paginator", (), {"paginate": staticmethod(paginate)})

    def transact_get_items(self, TransactItems: Any) -> Any:  # noqa: N803
        self.calls.append("transact")
        if self.conflicts:
            raise ClientError({"Error": {"Code": "TransactionCanceledException"}}, "T")
        return {"Responses": [self.get_item(**each["Get"]) for each in TransactItems]}

    def get_item(self, **get: Any) -> Any:
        key = get["Key"].items()
        assert all(value["S"] for _, value in key)  # or none of the others is read, either
        found = [item for item in self.tables[get["TableName"]] if key <= item.items()]
        return {"Item": found[0]} if found else {}

    def put_events(self, Entries: Any) -> Any:  # noqa: N803
        answers: list[dict[str, str]] = []
        for entry in Entries:
            assert (entry["Source"], entry["EventBusName"]) == ("wakala", "bus")
            if self.refuses(len(self.heard)):
                answers.append({"ErrorCode": "ThrottlingException"})
            else:
                self.heard.append(Event(entry["DetailType"], json.loads(entry["Detail"])))
                answers.append({"EventId": "e"})
        return {"Entries": answers}

    def stack(self) -> Stack:
        outputs = {f"{name}Table": name for name in self.tables} | {"EventBusName": "bus"}
        return Stack("wakala", "us-east-1", None, self, outputs)


def _left_by(day: Day) -> Aws:
    return Aws({name: list(held.values()) for name, held in day.tables().items()})


@pytest.fixture(scope="module")
def day() -> Day:
    return a_day()


@pytest.fixture
def aws(day: Day, monkeypatch: pytest.MonkeyPatch) -> Aws:
    left = _left_by(day)
    monkeypatch.setattr(options, "open_stack", lambda _: left.stack())
    return left


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Run:
    """Replay the day, or as the options say; the exit status, and what was said."""

    def run(*arguments: str, from_ms: int = START_MS, until_ms: int = START_MS * 2) -> Any:
        until_ms = min(until_ms, START_MS + 86_400_000)
        window = ("--from", rfc3339(from_ms), "--to", rfc3339(until_ms), "--rate", "1000")
        status = main.run(["events", "replay", *window, *arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


# --- the same events ----------------------------------------------------------------------------

EVERY_TYPE = ("--type", *sorted(events.TYPES))


def test_a_day_is_told_again_member_for_member_as_the_relay_told_it(
    day: Day, aws: Aws, replay: Run
) -> None:
    relayed = {event.name: event for event in day.relayed()}
    status, _, said = replay(*EVERY_TYPE)

    assert (status, said) == (0, "")
    assert len({event.name for event in aws.heard}) == len(aws.heard)
    for event in aws.heard:
        assert event == relayed.pop(event.name)
    assert Counter(event.detail_type for event in relayed.values()) == Counter(
        TransactionHeld=3,  # of what was redriven, discarded, and cancelled since
        RefundRequested=3,  # the two that were decided, and the first sending of the one that waits
    )
    moments = [event.detail.get("occurredAt", 0) for event in aws.heard]
    assert [each for each in moments if each] == sorted(each for each in moments if each)
    assert {event.detail_type for event in aws.heard} == events.TYPES


def test_a_request_is_put_again_only_where_its_type_is_named(aws: Aws, replay: Run) -> None:
    """The sweep asks again by itself; what has happened, nobody else tells."""
    replay(*EVERY_TYPE)
    news = [event for event in aws.heard if event.detail_type != "RefundRequested"]
    assert len(news) < len(aws.heard)
    aws.heard.clear()

    assert replay()[0] == 0

    assert aws.heard == news
    aws.heard.clear()
    replay("--type", "RefundRequested")
    assert {event.detail_type for event in aws.heard} == {"RefundRequested"}


def test_a_window_tells_what_occurred_from_its_first_moment_to_before_its_last(
    day: Day, aws: Aws, replay: Run
) -> None:
    replay(*EVERY_TYPE)
    whole = list(aws.heard)
    asked_ms = day.row("waits").queued_at_ms  # of the one event that tells no moment
    moments = {event.detail.get("occurredAt", asked_ms) for event in whole}
    heard: list[Event] = []
    for from_ms, until_ms in itertools.pairwise([*sorted(moments), START_MS * 2]):
        aws.heard.clear()
        assert replay(*EVERY_TYPE, from_ms=from_ms, until_ms=until_ms)[0] == 0
        heard += aws.heard
    assert sorted(event.name for event in heard) == sorted(event.name for event in whole)


def test_an_agents_events_are_read_from_its_own_rows_and_no_wallet_is_told_of(
    day: Day, aws: Aws, replay: Run
) -> None:
    replay()
    everybodys = [event for event in aws.heard if event.detail.get("agentId") == OTHER]
    aws.heard.clear()
    aws.calls.clear()
    assert replay("--agent", OTHER)[0] == 0
    assert aws.heard == everybodys
    names = {event.detail_type for event in everybodys}
    assert names == {"TransactionSynced", "TransactionHeld", "DeadLetterTriaged"}
    assert "query OfflineTx" in aws.calls
    assert "scan OfflineTx" not in aws.calls


def test_only_the_tables_that_tell_what_is_wanted_are_read(aws: Aws, replay: Run) -> None:
    replay("--type", "WalletCredited", "RefundCompleted")
    wanted = {"WalletCredited", "RefundCompleted"}
    assert {event.detail_type for event in aws.heard} == wanted
    assert set(aws.calls) == {"scan OfflineTx", "scan WalletLedger"}
    aws.calls.clear()
    replay("--type", "DeadLetterTriaged")
    assert aws.calls == ["scan DeadLetters"]


def test_an_entry_that_is_being_written_to_is_read_by_itself(aws: Aws, replay: Run) -> None:
    replay()
    whole = list(aws.heard)
    aws.heard.clear()
    aws.conflicts = True
    assert replay()[0] == 0
    assert aws.heard == whole


def test_a_key_that_was_purged_and_used_again_is_told_as_far_as_it_is_known(
    aws: Aws, replay: Run
) -> None:
    """Its entry is the first use's; once it is refunded, nobody knows when it was settled again."""
    again = replace(samples.row_of(samples.request("plain"), Status.SYNCED))
    created_ms = again.created_at_ms + 40_000_000
    again = replace(again, created_at_ms=created_ms, updated_at_ms=created_ms + 9)
    refunded = replace(again, status=Status.REFUNDED, refunded_minor=100)
    for row, told in ((again, [created_ms + 9]), (refunded, [])):
        aws.tables = dict(aws.tables) | {NAMES.offline_tx: [items.offline_tx_item(row)]}
        aws.heard.clear()
        assert replay("--type", "TransactionSynced")[0] == 0
        assert [event.detail["occurredAt"] for event in aws.heard] == told


# --- what is not understood ---------------------------------------------------------------------


def _spoilt(aws: Aws) -> list[tuple[str, Item]]:
    """A row of each kind that nobody understands."""
    part = next(item for item in aws.tables["OfflineTx"] if item["status"]["S"] == "refunded")
    credit = next(item for item in aws.tables["WalletLedger"] if "creditId" in item)
    letters = aws.tables["DeadLetters"]
    letter = next(item for item in letters if item.get("status") == {"S": "redriven"})
    return [
        ("OfflineTx", part | {"status": {"S": "melted"}}),
        ("OfflineTx", part | {"idempotencyKey": {"S": "254733000111"}}),  # no debit of it
        ("OfflineTx", part | {"fingerprint": {"S": "0" * 64}}),  # another debit
        ("OfflineTx", part | {"phone": {"S": "+254 712"}}),
        ("OfflineTx", part | {"phone": {"S": ""}}),
        ("OfflineTx", part | {"updatedAt": {"S": "noon"}}),
        ("OfflineTx", part | {"status": {"S": "refund_requested"}}),  # and says not which
        ("WalletLedger", credit | {"createdAt": {"N": "noon"}}),
        ("WalletLedger", credit | {"reason": {"S": "MOON"}, "outcome": {"S": "rejected"}}),
        ("DeadLetters", letter | {"source": {"S": "Moon"}}),
        ("DeadLetters", letter | {"history": {"L": []}}),  # leads nowhere
    ]


def test_a_row_that_nobody_understands_is_named_and_skipped_and_the_others_are_told(
    aws: Aws, replay: Run
) -> None:
    replay()
    whole, told = list(aws.heard), dict(aws.tables)
    for table, item in _spoilt(aws):
        aws.heard.clear()
        aws.tables = told | {table: [*told[table], item]}
        status, answer, said = replay("--json")
        (ref,) = json.loads(answer)["unreadable"]
        assert (status, aws.heard) == (events.UNREADABLE_STATUS, whole), item
        assert ref.startswith(table)
        assert ref in said
        for personal in ("2547", "712", "plain", "noon"):
            assert personal not in answer + said


# --- putting ------------------------------------------------------------------------------------


def _told(count: int) -> list[Told]:
    return [
        Told(START_MS + n, 0, OutgoingEvent("WalletCredited", f'{{"eventId": "{n}"}}'))
        for n in range(count)
    ]


class Bus:
    """`ports.EventBus` that takes what `takes` says, and notes when it was asked."""

    def __init__(self, clock: FakeClock, takes: Callable[[str], bool] = lambda _: True) -> None:
        self.clock, self.takes = clock, takes
        self.taken: list[str] = []
        self.calls: list[tuple[int, int]] = []

    def put(self, events: Sequence[OutgoingEvent]) -> frozenset[int]:
        self.calls.append((self.clock.now_ms() - START_MS, len(events)))
        ids = [json.loads(event.detail)["eventId"] for event in events]
        stop = next((n for n, each in enumerate(ids) if not self.takes(each)), len(ids))
        self.taken += ids[:stop]
        return frozenset(range(stop, len(ids)))


@pytest.mark.parametrize(
    ("rate", "calls"),
    [
        (50, [(0, 10), (200, 10), (400, 5)]),
        (2, [(1000 * n, 2) for n in range(12)] + [(12_000, 1)]),
    ],
)
def test_events_go_out_in_their_order_and_no_faster_than_asked(
    rate: int, calls: list[tuple[int, int]]
) -> None:
    clock = FakeClock()
    bus = Bus(clock)
    put(bus, _told(25), rate, clock)
    assert bus.taken == [str(n) for n in range(25)]
    assert bus.calls == calls


def test_what_the_bus_does_not_take_at_once_is_put_again_before_what_follows() -> None:
    clock = FakeClock()
    bus = Bus(clock, lambda each: each != "3" or clock.now_ms() > START_MS + 2_000)
    put(bus, _told(12), 50, clock)
    assert bus.taken == [str(n) for n in range(12)]


def test_a_bus_that_stays_shut_ends_the_replay_and_says_where_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    bus = Bus(clock, lambda each: each != "14")
    with pytest.raises(Problem, match="does not take a WalletCredited"):
        put(bus, _told(25), 50, clock)
    said = capsys.readouterr().err
    assert said.startswith(f"10 of 25 events were put: --from {rfc3339(START_MS + 10)} goes on")


def test_an_interruption_says_how_far_it_came_and_is_status_130(aws: Aws, replay: Run) -> None:
    def interrupt(heard: int) -> bool:
        if heard == 20:
            raise KeyboardInterrupt
        return False

    aws.refuses = interrupt
    status, answer, said = replay()
    assert (status, answer) == (130, "")
    (line,) = said.splitlines()  # and not that the same command goes on: it begins anew
    assert line.startswith("20 of ")
    assert line.endswith("goes on from there")


def test_an_entry_that_the_bus_refuses_once_is_heard_once(aws: Aws, replay: Run) -> None:
    replay()
    whole = list(aws.heard)
    aws.heard.clear()
    refused: list[int] = []

    def once(heard: int) -> bool:
        refused.append(heard)
        return refused.count(heard) == 1 and heard == len(whole) - 1

    aws.refuses = once
    assert replay()[0] == 0
    assert aws.heard == whole


def test_a_dry_run_counts_and_puts_nothing(aws: Aws, replay: Run) -> None:
    replay()
    counts = Counter(event.detail_type for event in aws.heard)
    moments = sorted(event.detail.get("occurredAt", START_MS + 1) for event in aws.heard)
    aws.heard.clear()
    status, answer, _ = replay("--dry-run", "--json")
    assert (status, aws.heard) == (0, [])
    told = json.loads(answer)
    assert told["events"] == dict(sorted(counts.items()))
    assert (told["dryRun"], told["total"]) == (True, counts.total())
    assert (told["first"], told["last"]) == (rfc3339(moments[0]), rfc3339(moments[-1]))
    assert f"{counts.total()} events would be put" in replay("--dry-run")[1]
    assert "There is no such event" in replay("--type", "TransactionHeld", until_ms=START_MS + 1)[1]


# --- asking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--from 2026-01-02 --to 2026-01-02", "--to 2026-01-02 is not after --from 2026-01-02"),
        ("--from 2026-01-02 --to 2026-01-01", "--to 2026-01-01 is not after --from 2026-01-02"),
        ("--from 2026-01-02 --to 2999-01-01", "--to 2999-01-01 is in the future: it is 2"),
        ("--from yesterday --to 2026-01-02", "--from 'yesterday' is no moment: give RFC 3339"),
        ("--from 2026-02-30 --to 2026-03-02", "--from '2026-02-30' is no moment"),
        ("--from 2026-01-02T00:00:00 --to 2026-01-03", "--from '2026-01-02T00:00:00' is no"),
        ("--from 2026-01-02 --to 20260103", "--to '20260103' is no moment"),
        ("--from 2026-01-02 --to 2026-01-03 --type Moon", "--type Moon: one of DeadLetterTriaged,"),
        ("--from 2026-01-02 --to 2026-01-03 --agent a#b", "--agent 'a#b': 1 to 64 of"),
        ("--from 2026-01-02 --to 2026-01-03 --rate 0", "--rate 0: 1 to 1000 events"),
        ("--from 2026-01-02 --to 2026-01-03 --rate 1001", "--rate 1001: 1 to 1000 events"),
        (
            "--from 2026-01-02 --to 2026-01-03 --agent A --type WalletCredited",
            "--type WalletCredited is of a wallet and no agent's",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_read(
    aws: Aws, capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert main.run(["events", "replay", *arguments.split(" ")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {line}")
    assert aws.calls == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-10-09", "2025-10-09T00:00:00.000Z"),
        ("2025-10-09T08:53Z", "2025-10-09T08:53:00.000Z"),
        ("2025-10-09t08:53:20z", "2025-10-09T08:53:20.000Z"),
        ("2025-10-09T11:53:20.5+03:00", "2025-10-09T08:53:20.500Z"),
        ("2025-10-09T08:53:20.0001Z", "2025-10-09T08:53:20.001Z"),  # the first that is not before
    ],
)
def test_a_moment_is_read_with_its_offset_and_a_date_begins_in_utc(
    aws: Aws, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    window = ("--from", text, "--to", "2025-10-10T00:00:00+03:00")
    assert main.run(["events", "replay", *window, "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["from"], told["to"]) == (expected, "2025-10-09T21:00:00.000Z")
