"""The deployed stack in a storm: days of traffic while AWS fails and workers are killed.

`make chaos MINUTES=…` lives through as many such days as there is time for.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.actors import eventually
from tests.e2e.chaos import ENOUGH, Item, Rows, Told, judge, judge_told, live_through
from tests.e2e.days import DAYS, DEBITS
from tests.e2e.storm import FAULTS, SERVICES, StormyStack, answers, stormy_stack
from wakala import demo
from wakala.home import checkout
from wakala.transactions import Answer

SEED = 20_260_731


@pytest.fixture(scope="module")
def over() -> Iterator[StormyStack]:
    """A stack of its own: no other test lives in its storm, nor does `make chaos`."""
    with stormy_stack(checkout() / ".wakala" / "e2e-chaos", SEED) as stack:
        yield stack


@pytest.mark.parametrize("name", DAYS)
def test_a_day_in_a_storm_loses_nothing_and_debits_nothing_twice(
    over: StormyStack, name: str
) -> None:
    """P1-P6, P8, P9, C01, C12, C39: and every transaction that was accepted has ended."""
    lived = live_through(over, name, SEED)
    print(lived.line())

    assert not lived.violations, "\n".join([lived.line(), *lived.violations])
    assert lived.accepted == {"demo": 288, "month-end": DEBITS}[name]  # as without a storm
    assert {kind: lived.harm.injected[kind] >= ENOUGH for kind in FAULTS} == dict.fromkeys(
        FAULTS, True
    )
    assert lived.killed.total() >= lived.harm.died_at_work >= ENOUGH
    assert lived.harm.lost["TransactWriteItems"] + lived.harm.lost["PutItem"] > 0
    assert set(over.proxy.calls()) == set(SERVICES)  # nobody's but the functions'


HOLDER = """
import sys
from tests.e2e.storm import microburst
with microburst("http://127.0.0.1:9", 1) as proxy:
    print(proxy.url, flush=True)
    sys.stdin.read()
"""


def test_the_proxy_does_not_outlive_a_run_that_is_killed(tmp_path: Path) -> None:
    variables = os.environ | {"WAKALA_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=checkout(),
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        url = holder.stdout.readline().strip()
        assert answers(url)
        holder.kill()
        eventually(lambda: None if answers(url) else True, "the end of microburst")


DAY = demo.read_day("x")
SENT = next(each for each in DAY.uploads if len(each.transactions) == 1).transactions[0]
CREDITED = [
    {
        "phone": {"S": opening.phone},
        "txId": {"S": f"credit#cli#{credit_id}"},
        "outcome": {"S": "posted"},
    }
    for opening in DAY.openings
    for credit_id in ("x", "xb")
]


def _row(status: str) -> dict[tuple[str, str], Item]:
    key = SENT["agentId"], SENT["idempotencyKey"]
    return {key: {"status": {"S": status}, "amountMinor": {"N": str(SENT["amount"])}}}


def _debit(minor: int = SENT["amount"], key: str = SENT["idempotencyKey"]) -> Item:
    return {
        "txId": {"S": f"debit#{SENT['agentId']}#{key}"},
        "outcome": {"S": "posted"},
        "amountMinor": {"N": str(minor)},
    }


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (Rows(_row("synced"), [_debit()], CREDITED), 0),
        (Rows(_row("failed"), [], CREDITED), 0),
        (Rows({}, [], CREDITED), 1),
        (Rows(_row("queued"), [], CREDITED), 1),
        (Rows(_row("held"), [], CREDITED), 1),
        (Rows(_row("synced"), [], CREDITED), 1),
        (Rows(_row("synced"), [_debit(), _debit()], CREDITED), 1),
        (Rows(_row("synced"), [_debit(SENT["amount"] + 1)], CREDITED), 2),
        (Rows(_row("failed"), [_debit()], CREDITED), 1),
        (Rows(_row("synced"), [_debit(), _debit(1, "x-nobody")], CREDITED), 1),
        (Rows(_row("synced"), [_debit()], CREDITED[1:]), 1),
        (Rows(_row("synced"), [_debit()], [*CREDITED, CREDITED[0]]), 1),
    ],
)
def test_the_judge_sees_what_is_lost_open_doubled_or_changed(rows: Rows, wrong: int) -> None:
    """A judge that accepts everything would make every storm a fine day."""
    view = {"idempotencyKey": SENT["idempotencyKey"], "status": "queued"}
    answers = [Answer(SENT, 202, view, replayed=False, took_ms=1.0)]

    assert len(judge(rows, DAY, "x", answers)) == wrong


REFUND = {"agentId": SENT["agentId"], "idempotencyKey": SENT["idempotencyKey"], "reason": "wrong"}
PENDING: Any = {"M": {"refundId": {"S": "full"}}}
ENTRY: Item = {"txId": {"S": f"refund#{SENT['agentId']}#{SENT['idempotencyKey']}#full"}}


def _row_with(name: str, value: Any) -> dict[tuple[str, str], Item]:
    ((key, row),) = _row("queued").items()
    return {key: {**row, name: value}}


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        (Rows(_row_with("refundRequest", PENDING), [], []), 0),
        (Rows(_row_with("cancelledBy", {"S": "full"}), [], []), 0),
        (Rows(_row("synced"), [], [], [ENTRY]), 0),
        (Rows(_row_with("cancelledBy", {"S": "R-2"}), [], []), 1),
        (Rows(_row("synced"), [], []), 1),
        (Rows({}, [], [], [ENTRY]), 1),
        (Rows({}, [], []), 2),
    ],
)
def test_what_apps_were_told_in_the_storm_is_there_before_they_send_it_again(
    rows: Rows, wrong: int
) -> None:
    view = {"idempotencyKey": SENT["idempotencyKey"], "status": "queued"}
    accepted = Answer(SENT, 202, view, replayed=False, took_ms=1.0)
    refused = Answer(SENT, 503, {"code": "UNAVAILABLE"}, replayed=False, took_ms=1.0)
    refunded = Answer(REFUND, 202, view, replayed=False, took_ms=1.0)

    assert len(judge_told(rows, Told([accepted, refused], [refunded]))) == wrong
    assert judge_told(rows, Told([refused], [replace(refunded, status=503)])) == []
