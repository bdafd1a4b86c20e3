"""What a cold start loads, by list of modules and not by stopwatch; and what an artifact holds."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.template import RESOURCES, ROOT

ARTIFACT_BYTES_MAX = 60_000
ENV: dict[str, dict[str, str]] = json.loads((ROOT / "events" / "env.json").read_text())
FUNCTIONS: dict[str, Any] = {
    name: resource["Properties"]
    for name, resource in RESOURCES.items()
    if resource["Type"] == "AWS::Serverless::Function"
}
INGEST = ("IngestFunction", "IngestBusFunction")
TRIAGE = ("TriageFunction", "TriageDeskFunction")
LIST_MODULES = "import importlib, sys; importlib.import_module(sys.argv[1]); print(*sys.modules)"


@cache
def _loaded(function: str, *, traced: bool = False) -> frozenset[str]:
    """The modules in a fresh interpreter once Lambda has imported the function's handler."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT / "services"), str(ROOT / "shared")]),
        "AWS_DEFAULT_REGION": "us-east-1",
        **ENV["Parameters"],
        **ENV[function],
        "AWS_XRAY_SDK_ENABLED": "true" if traced else "false",
    }
    module = FUNCTIONS[function]["Handler"].rpartition(".")[0]
    done = subprocess.run(
        [sys.executable, "-c", LIST_MODULES, module],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(done.stdout.split())


def _roots(modules: frozenset[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_cold_start_loads_no_library_that_the_function_has_no_use_for(function: str) -> None:
    roots = _roots(_loaded(function))
    assert "botocore" in roots
    assert not roots & {"boto3", "s3transfer", "requests", "httpx", "aiohttp", "localstack_client"}
    assert not roots & {"aws_xray_sdk", "wrapt", "yaml", "rich", "pytest"}
    if function not in INGEST:
        assert not roots & {"pydantic", "pydantic_core", "phonenumbers", "annotated_types"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_cold_start_loads_only_the_functions_own_package(function: str) -> None:
    packages = {path.name for path in (ROOT / "services").iterdir() if path.is_dir()}
    own = FUNCTIONS[function]["Handler"].split(".")[0]
    assert _roots(_loaded(function)) & packages == {own}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_cold_start_loads_no_adapter_but_the_functions_own(function: str) -> None:
    modules = _loaded(function)
    assert ("wallet_ledger.aws.ledger" in modules) is (function == "ReconcileFunction")
    refunds = {"IngestFunction", "RefundFunction", *TRIAGE}  # triage asks what became of one
    assert ("wallet_ledger.aws.refunds" in modules) is (function in refunds)
    assert ("wallet_ledger.aws.letters" in modules) is (function in TRIAGE)
    tables = {"IngestFunction", "SweepFunction"}
    assert ("wallet_ledger.aws.transactions" in modules) is (function in tables)
    sends_nothing = {"IngestFunction", "TriageFunction"}
    assert ("wallet_ledger.aws.messaging" in modules) is (function not in sends_nothing)
    assert ("wallet_ledger.contracts" in modules) is (function in INGEST)


def test_tracing_loads_the_xray_sdk_only_where_it_is_asked_for() -> None:
    modules = _loaded("ReconcileFunction", traced=True)
    assert "aws_xray_sdk" in _roots(modules)
    # Only botocore's own extension: `patch_all` would load one for each library there is.
    patched = {m for m in modules if m.startswith("aws_xray_sdk.ext.")} - {
        "aws_xray_sdk.ext.boto_utils",
        "aws_xray_sdk.ext.util",
    }
    assert {m.split(".")[2] for m in patched} == {"botocore"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_artifact_holds_only_its_own_package_and_is_small(function: str, tmp_path: Path) -> None:
    make = shutil.which("make") or "make"
    subprocess.run(
        [make, "-s", "-C", str(ROOT / "services"), f"build-{function}"],  # as `sam build` does
        env={"PATH": os.environ["PATH"], "ARTIFACTS_DIR": str(tmp_path)},
        check=True,
    )
    module = FUNCTIONS[function]["Handler"].rpartition(".")[0]
    assert [path.name for path in tmp_path.iterdir()] == [module.split(".")[0]]
    assert (tmp_path / module.replace(".", "/")).with_suffix(".py").is_file()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".py", ".typed"}
    assert sum(path.stat().st_size for path in files) <= ARTIFACT_BYTES_MAX
