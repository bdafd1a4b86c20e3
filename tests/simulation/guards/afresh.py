"""Tests in a process of their own, in which a module is broken before anybody imports it.

For what a module does at import: it may leave traces elsewhere, which nobody can take back later.
`python -m tests.simulation.guards.afresh <path> <mutant> <test>…` prints the test that is red.
"""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.simulation.guards.code import Broken, mutated
from tests.simulation.guards.sources import imported
from tests.template import ROOT

RED = "red: "
TIMEOUT_S = 120.0


def red_afresh(path: str, broken: Broken, tests: Sequence[str]) -> str | None:
    """The first of these tests that is red where the module is broken from the start."""
    command = [sys.executable, "-m", "tests.simulation.guards.afresh", path, str(broken), *tests]
    said = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    print(said.stdout, said.stderr)
    red = [line for line in said.stdout.splitlines() if line.startswith(RED)]
    if said.returncode and not red:
        return f"(exit status {said.returncode})"
    return red[0].removeprefix(RED) if red else None


class _Reporter:
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\n{RED}{report.nodeid}")


def main() -> None:
    """The command."""
    path, name, *tests = sys.argv[1:]
    with imported({path: mutated(path, name)}):
        options = ("-q", "-x", "-s", "-p", "no:cacheprovider", "--tb=line")
        sys.exit(pytest.main([*options, *tests], plugins=[_Reporter()]))


if __name__ == "__main__":
    main()
