"""What the bench says of its runs: figures and their targets, a document, a line for a mistake."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import bench.__main__ as bench
from bench import cold
from bench.__main__ import document
from bench.compare import Run
from bench.engine import started
from bench.targets import NO_LESS, NO_MORE, START_RATIOS, Figure, Measured, cold_figures, figures
from tests.template import TEMPLATE
from wakala.output import Problem
from wakala.traffic import Shape

RAN = Run(
    debits=200,
    seconds=2.0,
    calls=420,
    calls_first=400,
    written={("OfflineTx", "table"): 1_000.0, ("OfflineTx", "OpenTx"): 400.0},
    read={("WalletLedger", "table"): 210.0},
    duplicates=0,
    unpaid=0,
    overdrawn=0,
    open=0,
)


def measured(ran: Run) -> Measured:
    """As if all rounds had been this one."""
    return Measured([ran] * 3, ran)


BESIDE = {
    "article": measured(RAN),
    "naive": measured(replace(RAN, duplicates=5)),
    "ours": measured(replace(RAN, seconds=0.4, calls=50)),
}
RESULTS = dict.fromkeys(Shape, BESIDE)


def test_every_target_is_met_where_ours_is_five_times_as_fast_and_cheap() -> None:
    cheap = replace(RAN, seconds=0.4, calls=50, written={("OfflineTx", "table"): 1_050.0})
    found = figures(dict.fromkeys(Shape, BESIDE | {"ours": measured(cheap)}))
    assert [each.name for each in found if not each.met] == []
    assert {each.name: each.value for each in found}[
        "branch: settled per second, over the article's"
    ] == pytest.approx(5)


@pytest.mark.parametrize(
    ("name", "worse", "missed"),
    [
        ("ours", replace(RAN, seconds=0.41, calls=50), "branch: settled per second"),
        ("ours", replace(RAN, seconds=0.4, calls=51), "branch: calls of reconcile"),
        ("ours", replace(RAN, seconds=0.4, calls=421), "uniform: calls of reconcile"),
        ("ours", replace(RAN, written={("a", "table"): 1_401.0}), "uniform: write units"),
        ("ours", replace(RAN, seconds=0.4, calls=50, open=1), "branch: settled per second"),
        ("naive", RAN, "month-end: the naive one's"),
    ],
)
def test_a_target_that_is_missed_is_said_to_be(name: str, worse: Run, missed: str) -> None:
    found = figures(dict.fromkeys(Shape, BESIDE | {name: measured(worse)}))
    (figure,) = (each for each in found if each.name.startswith(missed))
    assert not figure.met


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize(
    ("worse", "missed"),
    [
        (replace(RAN, duplicates=1), "hot: duplicate debits"),
        (replace(RAN, unpaid=1), "hot: entries that took no money"),
        (replace(RAN, overdrawn=1), "hot: below zero"),
        (replace(RAN, open=1), "hot: left open"),
    ],
)
def test_one_wrong_run_of_all_is_enough(timed: bool, worse: Run, missed: str) -> None:
    ours = Measured([RAN, worse, RAN], RAN) if timed else Measured([RAN] * 3, worse)
    found = {each.name: each for each in figures(dict.fromkeys(Shape, BESIDE | {"ours": ours}))}
    assert found[missed].value == 1
    assert not found[missed].met


def test_a_comparison_with_nothing_is_an_error() -> None:
    idle = BESIDE | {"article": measured(replace(RAN, open=200))}
    with pytest.raises(Problem, match="nothing to compare with"):
        figures(dict.fromkeys(Shape, idle))


def test_a_target_is_met_at_its_very_number() -> None:
    assert Figure("a", 2.1, NO_MORE, 2.1).met
    assert Figure("a", 5.0, NO_LESS, 5).met


def test_a_start_and_a_memory_have_targets_of_their_own() -> None:
    found = cold_figures({"IngestFunction": 2.2, "RefundFunction": 1.7}, {"IngestFunction": 129.0})
    assert [each.met for each in found] == [True, False, False]


def test_every_function_of_the_template_has_a_target_for_its_start() -> None:
    assert START_RATIOS.keys() == cold.FUNCTIONS.keys()


def test_starts_are_measured_of_every_function_with_calls_traced_as_they_are_deployed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[tuple[str, str | None]] = []

    def seconds(program: str, environment: Mapping[str, str]) -> float:
        measured.append((program, environment.get("AWS_XRAY_SDK_ENABLED")))
        return 3.0 if program == "import relay.handler" else 2.0

    monkeypatch.setattr(cold, "_seconds", seconds)
    monkeypatch.setitem(TEMPLATE["Parameters"]["TraceCalls"], "Default", "as deployed")

    assert cold.import_ratios() == dict.fromkeys(cold.FUNCTIONS, 1.0) | {"RelayFunction": 1.5}
    imports = {(f"import {module}", "as deployed") for module in cold.FUNCTIONS.values()}
    assert set(measured) == imports | {(cold.BARE, None)}


def test_the_document_holds_runs_and_figures_and_nothing_else() -> None:
    made = json.loads(json.dumps(document(RESULTS, [Figure("a", 1.0, NO_MORE, 2)])))

    assert made["figures"] == [
        {"name": "a", "value": 1.0, "side": NO_MORE, "target": 2, "met": True}
    ]
    assert made.keys() == {"runs", "figures"}
    assert [(each["shape"], each["backend"]) for each in made["runs"]] == [
        (shape, name) for shape in Shape for name in BESIDE
    ]
    assert made["runs"][0] == {
        "shape": "uniform",
        "backend": "article",
        "perSecond": 100.0,
        "calls": 2.1,
        "writeUnits": 7.0,
        "readUnits": 1.05,
        "duplicates": 0,
        "unpaid": 0,
        "overdrawn": 0,
        "open": 0,
    }


@pytest.mark.parametrize(("size", "status"), [(128.0, 0), (129.0, 1)])
def test_a_run_writes_what_it_found_and_its_status_says_whether_all_is_met(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    size: float,
    status: int,
) -> None:
    cheap = replace(RAN, seconds=0.4, calls=50, written={("OfflineTx", "table"): 1_050.0})
    results = dict.fromkeys(Shape, BESIDE | {"ours": measured(cheap)})
    monkeypatch.setattr(bench, "own_engine", lambda *, amazons: nullcontext(amazons))
    monkeypatch.setattr(bench, "measure", lambda _number, _rounds, _seed: results)
    monkeypatch.setattr(cold, "warm_megabytes", lambda: {"IngestFunction": size})
    monkeypatch.setattr(cold, "import_ratios", lambda: {"IngestFunction": 2.0})
    file = tmp_path / "bench.json"

    assert (
        started(bench.app, ["--number=400", "--rounds=2", "--seed=3", f"--json={file}"]) == status
    )

    written = json.loads(file.read_text())
    assert list(written) == ["number", "rounds", "seed", "runs", "figures"]
    assert (written["number"], written["rounds"], written["seed"]) == (400, 2, 3)
    assert all(each["met"] for each in written["figures"]) is (status == 0)
    shown = capsys.readouterr().out
    assert "of an emulator" in shown
    assert ("not met" in shown) is (status == 1)


@pytest.mark.parametrize("before", [None, "kept"])
def test_a_run_that_is_interrupted_leaves_its_file_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: str | None
) -> None:
    def interrupted(_number: int, _rounds: int, _seed: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "own_engine", lambda *, amazons: nullcontext(amazons))
    monkeypatch.setattr(bench, "measure", interrupted)
    file = tmp_path / "bench.json"
    if before is not None:
        file.write_text(before)

    with pytest.raises(SystemExit, match="130"):
        started(bench.app, [f"--json={file}"])
    assert (file.read_text() if file.exists() else None) == before


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--number=abc", "number"),
        ("--number=10", "Must be >= 200"),
        ("--rounds=0", "Must be >= 1"),
        ("--seed=x", "seed"),
        ("--json=/nowhere/at/all", "No such file or directory"),
        ("--fast", "--fast"),
    ],
)
def test_an_option_that_cannot_be_gets_one_line(
    capsys: pytest.CaptureFixture[str], argument: str, said: str
) -> None:
    assert started(bench.app, [argument]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
