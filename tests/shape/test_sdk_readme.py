"""The SDK's README against the SDK: each state, limit, pace and error, with what it says of it."""

import ast
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

import wakala_agent
from tests.shape.test_docs import _code, _fences, _section, _tables
from tests.template import ROOT
from wakala_agent import Backoff, Limits, Pace, State, errors

README = ROOT / "sdk" / "README.md"
EXAMPLES = sorted((ROOT / "sdk" / "examples").glob("*.py"))


def test_the_readme_knows_every_state_and_whether_it_is_final() -> None:
    rows = _tables(_section(README, "States"))[0]
    told = {_code(row["State"])[0]: row["Final"] == "yes" for row in rows}
    assert told == {state.value: state.is_final for state in State}


def test_the_readme_knows_every_limit_and_its_default() -> None:
    rows = _tables(_section(README, "If the device is lost"))[0]
    told = {_code(row["Limit"])[0]: row["Default"] for row in rows}
    assert told == {
        each.name: "none" if each.default is None else f"{each.default:,}"
        for each in fields(Limits)
    }


def test_the_readme_knows_the_pace_and_its_defaults() -> None:
    rows = _tables(_section(README, "In an app"))[0]
    told = {_code(row["Pace"])[0]: row["Default"] for row in rows}
    numbers = {
        each.name: f"{each.default:g}" for each in fields(Pace) if each.default is not MISSING
    }
    usual = Backoff()
    assert told == numbers | {"backoff": f"`Backoff({usual.base_s:g}, {usual.cap_s:g})`"}


def test_the_readme_knows_every_error() -> None:
    rows = _tables(_section(README, "What can go wrong"))[0]
    told = {_code(row["Raised"])[0] for row in rows}
    assert told == {name for name, each in vars(errors).items() if isinstance(each, type)}
    assert told <= set(wakala_agent.__all__)


def test_the_readmes_python_can_be_read_by_python() -> None:
    blocks = _fences(README, "python")
    assert len(blocks) == 3
    for block in blocks:
        ast.parse(block, feature_version=(3, 10))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_readme_links_every_example(example: Path) -> None:
    assert f"(examples/{example.name})" in README.read_text(encoding="utf-8")
