"""Histories of the whole system by their seeds: every promise holds, after every step, in all."""

import os
import subprocess
import sys
from dataclasses import replace
from statistics import median

import pytest

from tests.simulation.histories import coverage, play, soak
from tests.simulation.histories.plan import Deed, Item, plan
from tests.simulation.histories.play import Played
from tests.simulation.histories.world import World
from tests.template import ROOT

SEEDS = range(1, 501)
SHOWN_MAX = 3
WORKERS = 2
"""The machine of CI has two processors."""
TIMEOUT_S = 300.0
"""For three histories in a process of their own, on a machine however busy."""


@pytest.fixture(scope="module")
def played() -> list[Played]:
    """All of them, once."""
    return list(play.play_many(SEEDS, play.STEPS, WORKERS))


def test_every_promise_holds_after_every_step_of_500_histories(played: list[Played]) -> None:
    broken = [each for each in played if each.failed]
    assert not broken, "\n\n".join(play.told(each, play.STEPS) for each in broken[:SHOWN_MAX])
    assert all(each.steps >= play.STEPS for each in played)


def test_every_outcome_reason_verdict_and_fault_is_reached_and_often_enough(
    played: list[Played],
) -> None:
    assert not coverage.missing(coverage.total(each.reached for each in played))


def test_a_median_history_posts_a_dozen_debits_and_gives_some_of_it_back(
    played: list[Played],
) -> None:
    deep = coverage.depth([each.reached for each in played])

    assert median(deep["debits posted"]) >= 12
    assert median(deep["refunds posted"]) >= 1
    assert median(deep["refunds refused"]) >= 1
    assert median(deep["letters written"]) >= 5


def test_what_is_tried_elsewhere_is_still_there() -> None:
    assert coverage.stale() == []


def test_a_burst_of_500_phones_on_five_workers_leaves_no_message_for_triage() -> None:
    """C38: whoever has to wait for a worker waits in the queue, in order, and is not given up."""
    burst = Item(at=0, what=Deed.BURST, salt=38)
    calm = play.only(plan(38, 1), [])
    world = World(replace(calm, retention_days=0, burst=500, items=(burst,)))

    world.play()

    [reconcile] = [each for each in world.delivery.pollers if each.mapped.source == "TxQueue"]
    failures = {letter["failure"]["S"] for letter in world.promises.rows.letters.values()}
    assert reconcile.most_running == reconcile.limit == 5
    assert len(world.promises.rows.rows) == 500
    assert failures == {"refused"}, "nobody has funded them"


def test_one_seed_is_one_history_whatever_process_plays_it() -> None:
    program = (
        "from tests.simulation.histories import soak; "
        "from tests.simulation.histories.play import play_seed; "
        "print([play_seed(seed).digest for seed in (3, 14, 15)])"
    )
    path = os.pathsep.join(str(ROOT / each) for each in (".", "services", "shared", "cli"))
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=ROOT,
    )
    assert elsewhere.returncode == 0, elsewhere.stderr
    here = str([play.play_seed(seed).digest for seed in (3, 14, 15)])
    assert elsewhere.stdout == here + "\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--seeds abc", "argument --seeds: 'abc' is no number from 1 on"),
        ("--seeds 1..", "argument --seeds: '' is no number from 1 on"),
        ("--seeds 0", "argument --seeds: '0' is no number from 1 on"),
        ("--seeds 5..1", "argument --seeds: '5..1' ends before it begins"),
        ("--workers 0", "argument --workers: '0' is no number from 1 on"),
        ("--seed -1", "argument --seed: '-1' is no number from 1 on"),
        ("--seed 1 --steps 0", "argument --steps: '0' is no number from 1 on"),
        ("--seed 1 --only x", "argument --only: 'x' is no list of numbers like 0,3,7"),
        ("--seed 1 --steps 30 --only 999", "argument --only: the plan has the items 0 to "),
        ("--only 1", "argument --only: goes with --seed"),
    ],
)
def test_a_soak_that_cannot_be_played_is_refused_in_a_line_and_plays_nothing(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        soak.main(given.split())

    told = capsys.readouterr()
    assert refused.value.code == 2
    assert told.out == ""
    assert f"error: {said}" in told.err.splitlines()[-1]
