"""The deployed stack in a storm: the demo's day while AWS fails and workers are killed.

`make chaos MINUTES=…` lives through as many such days as there is time for.
"""

from collections.abc import Iterator

import pytest

from tests.e2e.chaos import ENOUGH, Item, Rows, judge, live_through
from tests.e2e.storm import FAULTS, SERVICES, StormyStack, stormy_stack
from wakala import demo
from wakala.home import checkout
from wakala.transactions import Answer

SEED = 20_260_731


@pytest.fixture(scope="module")
def over() -> Iterator[StormyStack]:
    """A stack of its own: no other test lives in its storm."""
    with stormy_stack(checkout() / ".wakala" / "chaos", SEED) as stack:
        yield stack


def test_a_day_in_a_storm_loses_nothing_and_debits_nothing_twice(over: StormyStack) -> None:
    """P1-P6, P8, P9, C01, C12, C39: and every transaction that was accepted has ended."""
    lived = live_through(over, SEED)
    print(lived.line())

    assert not lived.violations, "\n".join([lived.line(), *lived.violations])
    assert lived.accepted == 288  # as on a day without a storm
    assert {kind: lived.injected[kind] >= ENOUGH for kind in FAULTS} == dict.fromkeys(FAULTS, True)
    assert lived.killed.total() >= lived.died_at_work >= ENOUGH
    assert lived.lost["TransactWriteItems"] + lived.lost["PutItem"] > 0
    assert set(over.proxy.calls()) == set(SERVICES)  # nobody's but the functions'


def test_the_judge_sees_what_is_lost_open_doubled_or_changed() -> None:
    """A judge that accepts everything would make every storm a fine day."""
    day = demo.read_day("x")
    upload = next(each for each in day.uploads if len(each.transactions) == 1)
    sent = upload.transactions[0]
    agent_id, key, amount = sent["agentId"], sent["idempotencyKey"], sent["amount"]
    answers = [Answer(sent, 202, {}, replayed=False, took_ms=1.0)]
    credited = [
        {
            "phone": {"S": opening.phone},
            "txId": {"S": f"credit#cli#{credit_id}"},
            "outcome": {"S": "posted"},
        }
        for opening in day.openings
        for credit_id in ("x", "xb")
    ]

    def row(status: str) -> dict[tuple[str, str], Item]:
        return {(agent_id, key): {"status": {"S": status}, "amountMinor": {"N": str(amount)}}}

    def debit(minor: int, of: str = key) -> Item:
        return {
            "txId": {"S": f"debit#{agent_id}#{of}"},
            "outcome": {"S": "posted"},
            "amountMinor": {"N": str(minor)},
        }

    def wrong(rows: Rows) -> int:
        return len(judge(rows, day, "x", answers))

    once = debit(amount)
    assert wrong(Rows(row("synced"), [once], credited)) == 0
    assert wrong(Rows(row("failed"), [], credited)) == 0
    assert wrong(Rows({}, [], credited)) == 1
    assert wrong(Rows(row("queued"), [], credited)) == 1
    assert wrong(Rows(row("held"), [], credited)) == 1
    assert wrong(Rows(row("synced"), [], credited)) == 1
    assert wrong(Rows(row("synced"), [once, once], credited)) == 1
    assert wrong(Rows(row("synced"), [debit(amount + 1)], credited)) == 2
    assert wrong(Rows(row("failed"), [once], credited)) == 1
    assert wrong(Rows(row("synced"), [once, debit(1, "x-nobody")], credited)) == 1
    assert wrong(Rows(row("synced"), [once], credited[1:])) == 1
    assert wrong(Rows(row("synced"), [once], [*credited, credited[0]])) == 1
