"""The SDK's README against the SDK: each state, limit, pace and error, with what it says of it."""

import ast
import runpy
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import botocore.session
import botocore.validate
import httpx
import pytest

import wakala_agent
from tests.shape.test_docs import _code, _fences, _section, _tables
from tests.template import ROOT
from wakala_agent import Backoff, LimitExceeded, Limits, Pace, State, errors

README = ROOT / "sdk" / "README.md"
BLOCKS = _fences(README, "python")
FIRST_SYNC, LIMITS, TOKEN = BLOCKS
"""The first runs against the deployed stack (tests/e2e/test_sdk.py)."""
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
    for block in BLOCKS:
        ast.parse(block, feature_version=(3, 10))


def test_the_snippet_of_limits_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = _run(LIMITS, tmp_path)
    with made["outbox"] as outbox, pytest.raises(LimitExceeded):
        outbox.submit("0712345678", made["limits"].amount_max + 1)


def test_the_snippet_of_a_token_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it asks of Cognito is what Cognito's own client would."""
    asked: list[tuple[str, Any]] = []

    def post(url: str, **sent: Any) -> httpx.Response:
        asked.append((url, sent))
        told = {"AuthenticationResult": {"IdToken": "an-id-token"}}
        return httpx.Response(200, json=told, request=httpx.Request("POST", url))

    names = {"COGNITO": "https://pool.test", "CLIENT": "c", "AGENT": "AG-001", "PASSWORD": "p"}
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(httpx, "post", post)
    made = _run(TOKEN, tmp_path)
    assert made["token"]() == "an-id-token"
    ((url, sent),) = asked
    model = botocore.session.Session().get_service_model("cognito-idp")
    service, _, operation = sent["headers"]["X-Amz-Target"].partition(".")
    assert service == model.metadata["targetPrefix"]
    shape = model.operation_model(operation).input_shape
    assert shape is not None
    assert botocore.validate.ParamValidator().validate(sent["json"], shape).generate_report() == ""
    assert url == names["COGNITO"]
    assert sent["json"]["AuthParameters"] == {"USERNAME": "AG-001", "PASSWORD": "p"}


def _run(block: str, folder: Path) -> dict[str, Any]:
    """What it defines, once it has run."""
    script = folder / "snippet.py"
    script.write_text(block, encoding="utf-8")
    return runpy.run_path(str(script))


def test_the_first_script_is_short_and_printed_as_it_is() -> None:
    script = (ROOT / "sdk" / "examples" / "first_sync.py").read_text(encoding="utf-8")
    assert script == FIRST_SYNC
    assert len(script.splitlines()) < 20


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_readme_links_every_example(example: Path) -> None:
    assert f"(examples/{example.name})" in README.read_text(encoding="utf-8")
