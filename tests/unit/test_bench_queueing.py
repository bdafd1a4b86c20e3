"""The model of how much the path carries: what it plays never beats what the law allows."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

import bench.queueing.__main__ as scale
from bench.engine import started
from bench.queueing import measure as measuring
from bench.queueing import page, times
from bench.queueing.limits import LIMITS, READ_ON
from bench.queueing.path import (
    HOT,
    OPEN_UNITS,
    ROW_UNITS,
    UNIFORM,
    Deployment,
    Load,
    as_deployed,
    bottleneck,
    hot_wallets,
    ledger_units,
    stations,
)
from bench.queueing.scenarios import (
    REMOVED,
    advised,
    arrivals,
    aws,
    month_end_peak,
    play,
    unhindered,
)
from bench.queueing.simulation import Outcome, Simulation
from tests.template import ROOT, TEMPLATE
from wakala.traffic import Shape

SECONDS = 6.0
FULL: Mapping[str, tuple[Mapping[str, Any], Load]] = {
    "requests that the stage admits": ({"api_rate": 300, "api_burst": 100}, UNIFORM),
    "reconcile's time": ({"reconcile_concurrency": 6}, UNIFORM),
    "the relay's time": ({"offline_tx_writes": 2_000, "relay_parallelism": 1}, UNIFORM),
    "write units of OfflineTx": ({"offline_tx_writes": 1_500}, UNIFORM),
    "write units of WalletLedger": ({"wallet_ledger_writes": 1_200}, UNIFORM),
    "turns of one wallet": ({}, HOT),
}
"""By station: a deployment and a load that fill it before any other."""
TWICE = {"the relay's time", "write units of OfflineTx"}
"""Visited before settlement and with it: far above what they carry, one visit crowds the other."""


def service_times(name: str) -> times.ServiceTimes:
    """AWS's, and a slow relay where it must be the first to be full."""
    return replace(aws(), send_ms=60, put_events_ms=60) if name == "the relay's time" else aws()


def played(
    deployment: Deployment, load: Load, rate: float, *, of: times.ServiceTimes | None = None
) -> Outcome:
    """That load at a rate, for a while."""
    shape = Shape.HOT if load.hottest else Shape.UNIFORM
    wallets = round(1 / load.hottest) if load.hottest else 1
    arriving = arrivals(shape, rate, SECONDS, wallets=wallets)
    return play(deployment, of or aws(), arriving, agents=10_000, until_s=SECONDS)


@pytest.mark.parametrize("name", FULL)
def test_a_full_station_carries_what_the_utilisation_law_says_and_no_more(name: str) -> None:
    setting, load = FULL[name]
    deployment, of = replace(unhindered(), **setting), service_times(name)
    first = bottleneck(stations(deployment, of, load))
    assert first.name == name
    over = 1.05 if name in TWICE else 1.5
    found = played(deployment, load, first.carries * over, of=of).per_second
    assert 0.9 * first.carries <= found <= 1.03 * first.carries


@pytest.mark.parametrize("name", FULL)
def test_half_of_what_a_station_carries_is_settled_as_it_comes(name: str) -> None:
    setting, load = FULL[name]
    deployment, of = replace(unhindered(), **setting), service_times(name)
    rate = bottleneck(stations(deployment, of, load)).carries / 2
    outcome = played(deployment, load, rate, of=of)
    assert outcome.per_second == pytest.approx(rate, rel=0.1)
    assert outcome.left < rate


def test_a_limit_that_is_removed_makes_room_for_the_next() -> None:
    deployment, names, carried = as_deployed(), [], []
    while True:
        first = bottleneck(stations(deployment, aws(), UNIFORM))
        names.append(first.name)
        found = played(deployment, UNIFORM, min(first.carries * 1.3, 2_000)).per_second
        carried.append(found)
        if first.raised_by not in REMOVED:
            break
        deployment = replace(deployment, **REMOVED[first.raised_by])
    assert len(set(names)) == len(names) > 3
    assert carried == sorted(carried)


def test_littles_law_holds_of_a_run_that_keeps_up() -> None:
    rate, until_s = 60.0, 60.0
    arriving = arrivals(Shape.UNIFORM, rate, until_s)
    outcome = play(as_deployed(), aws(), arriving, agents=1_000, until_s=until_s)
    mean_s = sum(outcome.latencies_s) / len(outcome.latencies_s)
    assert outcome.in_system == pytest.approx(rate * mean_s, rel=0.05)


def test_a_run_loses_nothing_and_settles_nothing_twice() -> None:
    arriving = arrivals(Shape.MONTH_END, 50, 10)
    simulation = Simulation(as_deployed(), aws(), agents=100, seed=1)
    outcome = simulation.run(arriving, until_s=30, warm_up_s=0)
    assert len(outcome.latencies_s) == len(arriving)
    assert outcome.left == 0


def test_a_seed_is_one_run() -> None:
    first, again = (played(as_deployed(), UNIFORM, 150) for _ in range(2))
    assert first == again


def test_group_commit_and_more_wallets_lift_what_a_hot_wallet_carries() -> None:
    alone = replace(unhindered(), group_commit=False)
    one_by_one = played(alone, HOT, 400).per_second
    by_groups = played(unhindered(), HOT, 400).per_second
    four = played(unhindered(), hot_wallets(4), 1_000).per_second
    assert by_groups > 3 * one_by_one
    assert four == pytest.approx(4 * by_groups, rel=0.1)


def test_write_units_stop_a_hot_wallet_whose_turns_take_no_time() -> None:
    at_once = replace(
        aws(), hand_over_ms=0, settle_ms=1, settle_each_ms=0, settle_code_ms=0.1, poll_ms=1
    )
    at_once = replace(at_once, settle_code_each_ms=0)
    first = bottleneck(stations(unhindered(), at_once, HOT))
    assert first.name == "write units of one wallet"
    found = played(unhindered(), HOT, 1_000, of=at_once).per_second
    assert 0.9 * first.carries <= found <= 1.03 * first.carries
    apart = replace(unhindered(), balance_alone=True)
    assert played(apart, HOT, 1_000, of=at_once).per_second > 1.5 * found


def test_what_is_advised_is_two_thirds_busy_at_most_and_keeps_up_with_a_month_end() -> None:
    for rate in (10.0, 100.0, 1_000.0):
        peak = rate * month_end_peak()
        assert peak / bottleneck(stations(advised(peak), aws(), UNIFORM)).carries <= 0.67
    arriving = arrivals(Shape.MONTH_END, 100, 20)
    outcome = play(advised(100 * month_end_peak()), aws(), arriving, agents=10_000, until_s=20)
    assert outcome.percentile_s(99) < 1


def test_what_a_transaction_takes_is_what_the_page_on_architecture_says() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (cells,) = re.findall(r"^\| write units \| ([\d.]+) \| ([\d.]+) \|", text, re.MULTILINE)
    counted = [ROW_UNITS + OPEN_UNITS + ledger_units(group) for group in (1, 10)]
    assert [float(each) for each in cells] == counted


def test_what_raises_a_limit_is_a_parameter_that_the_template_has() -> None:
    parameters = {f"`{name}`" for name in TEMPLATE["Parameters"]}
    assert set(REMOVED) <= parameters
    named = {each.raised_by for each in stations(as_deployed(), aws(), HOT)}
    assert {each for each in named if each.startswith("`")} - parameters == {"`OPEN_SHARDS`"}


def test_every_limit_names_the_page_of_aws_that_it_is_from() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", READ_ON)
    assert len(LIMITS) > 10
    for each in LIMITS:
        assert each.page.startswith("https://docs.aws.amazon.com/")
        assert 0 < each.value < math.inf


def test_the_page_and_its_picture_say_what_the_model_says() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.placed(text, page.tables()) == text
    assert page.PICTURE.read_text(encoding="utf-8") == page.picture()


def test_a_page_without_a_place_for_a_table_is_told() -> None:
    with pytest.raises(ValueError, match=r"scale\.md: 0 places for the table limits, not one"):
        page.placed("# nothing", {"limits": ""})


@pytest.mark.parametrize("argument", ["--measure=maybe", "--fast"])
def test_an_option_that_cannot_be_gets_one_line_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argument: str
) -> None:
    monkeypatch.setattr(page, "write", lambda *_: pytest.fail("it wrote"))
    assert started(scale.app, [argument]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert argument.partition("=")[0] in line


def test_what_hinders_a_measurement_is_one_line_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hindered() -> None:
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

    monkeypatch.setattr(measuring, "write", hindered)
    monkeypatch.setattr(page, "write", lambda *_: pytest.fail("it wrote"))
    assert started(scale.app, ["--measure"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Could not connect")
