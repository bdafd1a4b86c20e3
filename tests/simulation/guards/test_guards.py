"""docs/proof-guards.md tells of every guard there is: of each clause sent, and of each in code."""

import ast
import json
import subprocess
import sys
from collections import Counter
from importlib import import_module
from random import Random

import pytest

from tests.simulation.cloud.expressions import condition
from tests.simulation.guards.afresh import red_afresh
from tests.simulation.guards.code import MODULES, all_broken, everything, mutated
from tests.simulation.guards.conditions import clauses, holds, show, weaken
from tests.simulation.guards.find import code_rows
from tests.simulation.guards.page import CONDITIONS, PAGE, Page
from tests.simulation.guards.sample import sample, seed_of
from tests.simulation.guards.sources import DoesNotLoad, imported, module_name, put_in_place
from tests.simulation.guards.texts import PROTECTS, REDUNDANT
from tests.template import ROOT

WRITE_IT = "docs/proof-guards.md is not up to date: run `make guards`"
WAYS_MIN = 12
"""Of breaking something, which a sample has one of each."""
TIMEOUT_S = 900.0
"""For a command of this tool, on a machine however busy."""


def test_the_page_tells_of_every_guard_in_code_and_of_each_way_to_break_it() -> None:
    told = {row: set(ends) for row, ends in Page.read().fates.items() if row.part != CONDITIONS}
    there = {row: {each.change for _, each in found} for row, found in code_rows().items()}

    assert {row: sorted(ways) for row, ways in told.items()} == {
        row: sorted(each.replace(", ", ",") for each in ways) for row, ways in there.items()
    }, WRITE_IT


def _said(module: str, *arguments: str) -> list[str]:
    """What a command of this tool prints, in a process of its own."""
    ended = _run("-m", f"tests.simulation.guards.{module}", *arguments)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def test_the_page_tells_of_every_clause_that_is_sent() -> None:
    """As the contract suites and the functions of seeded histories send them."""
    told = {str(row) for row in Page.read().fates if row.part == CONDITIONS}

    sent = [line.rpartition(" by ") for line in _said("find", "--list")]
    by = {row: sender for row, _, sender in sent if row.startswith(f"Row(part='{CONDITIONS}'")}
    assert by.keys() == told, WRITE_IT
    assert Counter(by.values())["functions"] > 0.9 * len(by), "histories hardly send any"


def test_a_sample_of_guards_is_broken_again_and_the_named_test_goes_red() -> None:
    """Of each way to break something one: the page is not only a list."""
    page = Page.read()
    said = _said("sample")
    ends = [json.loads(line) for line in said if line.startswith('{"broken"')]

    seed = seed_of(page)
    assert json.dumps({"seed": seed}) in said
    [unbroken] = [each for each in ends if each["named"] is None]
    assert unbroken["red"] is None, "red although nothing is broken"
    ends.remove(unbroken)
    assert len(ends) >= WAYS_MIN
    drawn = {each.name: each.test for each in sample(page, Random(seed))}
    assert {each["broken"]: each["named"] for each in ends} == drawn
    for each in ends:  # where a module does not even load, `red` names no test
        red = (each["red"] or "nothing").split("[")[0]
        assert red == each["named"], f"seed {seed}: {red} is red, and not that, of {each['broken']}"


def test_the_sample_is_another_whenever_the_page_is() -> None:
    page, other = Page.read(), Page.read()
    del other.fates[max(other.fates)]

    assert seed_of(page) == seed_of(Page.read())
    assert seed_of(page) != seed_of(other)
    samples = {tuple(each.name for each in sample(page, Random(seed))) for seed in range(9)}
    assert len(samples) == 9


def test_each_module_of_ours_is_broken_wherever_there_is_something_to_break() -> None:
    there = {
        str(path.relative_to(ROOT))
        for top in ("shared", "services")
        for path in (ROOT / top).rglob("*.py")
    }
    broken = {path for path, _ in everything()}

    assert broken == {path for path in there if all_broken(path)}
    assert PROTECTS.keys() == {module_name(path) for path in broken}


def test_whatever_no_test_catches_has_its_reason() -> None:
    for row, ends in Page.read().fates.items():
        for change, end in ends.items():
            assert "**nothing**" not in end, f"{row}: {change}"


def test_the_page_is_written_as_it_is_read() -> None:
    assert Page.read().text() == PAGE.read_text(encoding="utf-8"), WRITE_IT


# --- the tool itself ------------------------------------------------------------------------------

FAILS = """
from tests.simulation.guards.battery import Battery, Mutant

def fail(tests):
    raise ValueError("of the tool")

def work(battery):
    battery.run([Mutant("broken", list(battery.items)[:1], {}, fail)], lambda *told: print(*told))

Battery(work).collect(["tests/unit/test_patience.py"])
"""


def test_a_failure_of_the_tool_itself_catches_nothing_but_ends_the_run() -> None:
    ended = _run("-c", FAILS)

    assert "its process died" in ended.stderr.splitlines()[-1]
    assert ended.returncode == 1
    assert "Verdict" not in ended.stdout


@pytest.mark.parametrize(
    ("tests", "status"),
    [
        (["tests/unit/test_patience.py::test_that_is_not_there"], 4),
        (["tests/unit/test_patience.py", "--deselect=tests/unit/test_patience.py"], 5),
    ],
)
def test_a_run_afresh_without_any_test_catches_nothing_but_ends_the_run(
    tests: list[str], status: int
) -> None:
    path, broken = next(found for found in everything() if found[1].at_import)

    with pytest.raises(RuntimeError, match=f"pytest ended with {status}"):
        red_afresh(path, broken, tests)


def test_a_module_that_raises_where_it_is_loaded_is_told_of_by_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, name = "shared/wallet_ledger/patience.py", "wallet_ledger.patience"
    broken = ast.parse("[].pop()")
    import_module(name)

    with pytest.raises(DoesNotLoad, match="IndexError"):
        put_in_place(path, broken, "")

    monkeypatch.delitem(sys.modules, name)
    with imported({path: broken}) as raised, pytest.raises(IndexError):
        import_module(name)
    assert raised == ["IndexError"]


ASKED = {
    "Key": {"phone": {"S": "1"}, "txId": {"S": "balance"}},
    "ConditionExpression": "#v = :seen AND balance >= :needed AND attribute_exists(phone)",
    "ExpressionAttributeNames": {"#v": "version"},
    "ExpressionAttributeValues": {":seen": {"N": "3"}, ":needed": {"N": "10"}},
}
ROW = {"phone": {"S": "1"}, "version": {"N": "3"}, "balance": {"N": "10"}}


def test_a_condition_is_cut_into_clauses_with_what_can_be_done_to_each() -> None:
    assert list(clauses(ASKED)) == [
        ("version = :seen", ("dropped", "or above")),
        ("balance >= :needed", ("dropped", "by one")),
        ("attribute_exists(phone)", ("dropped",)),
    ]


@pytest.mark.parametrize(
    ("clause", "change", "passes", "fails"),
    [
        ("version = :seen", "dropped", {"version": {"N": "2"}}, {"balance": {"N": "9"}}),
        ("version = :seen", "or above", {"version": {"N": "4"}}, {"version": {"N": "2"}}),
        ("balance >= :needed", "by one", {"balance": {"N": "9"}}, {"balance": {"N": "8"}}),
        ("balance >= :needed", "dropped", {"balance": {"N": "0"}}, {"version": {"N": "4"}}),
    ],
)
def test_a_weakened_clause_lets_that_pass_and_the_others_hold(
    clause: str, change: str, passes: dict[str, object], fails: dict[str, object]
) -> None:
    weakened = weaken(ASKED, clause, change)

    assert holds(ASKED, ROW)
    assert holds(weakened, ROW)
    assert not holds(ASKED, ROW | passes)
    assert holds(weakened, ROW | passes)
    assert not holds(weakened, ROW | fails)


@pytest.mark.parametrize(
    "text",
    [
        "a = :a AND (b <> :b OR NOT (size(c.d) < :c)) AND begins_with(e, :e)",
        "a BETWEEN :a AND :b OR b IN (:a, :c)",
    ],
)
def test_what_is_shown_of_a_condition_is_the_same_condition(text: str) -> None:
    body = condition(text, "ConditionExpression").body

    assert condition(show(body), "ConditionExpression").body == body


@pytest.mark.parametrize("path", MODULES)
def test_every_mutant_of_a_module_has_a_name_of_its_own_and_compiles(path: str) -> None:
    names = [str(each) for each in all_broken(path)]

    assert len(set(names)) == len(names)
    for name in names[:: max(1, len(names) // 5)]:
        compile(mutated(path, name), path, "exec")


def test_no_reason_is_left_over() -> None:
    there = {str(each) for found in code_rows().values() for _, each in found}

    assert REDUNDANT.keys() <= there
