"""Tests in a process of their own, in which a module is broken before anybody imports it.

For what a module does at import: it may leave traces elsewhere, which nobody can take back later.
`python -m tests.simulation.guards.afresh <path> <mutant> <test>…` prints the test that is red.
"""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.simulation.guards.code import Broken, mutated
from tests.simulation.guards.sources import DoesNotLoad, imported
from tests.template import ROOT

RED, RAISED = "red: ", "raised: "
TIMEOUT_S = 120.0


def red_afresh(path: str, broken: Broken, tests: Sequence[str]) -> str | None:
    """The first of these tests that is red where the module is broken from the start.

    Raises DoesNotLoad where none was, since the module itself raises; and RuntimeError where pytest
    ended badly with neither, which tells of this tool, and not of the tests.
    """
    command = [sys.executable, "-m", "tests.simulation.guards.afresh", path, str(broken), *tests]
    said = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    print(said.stdout, said.stderr)
    lines = said.stdout.splitlines()
    for red in (line.removeprefix(RED) for line in lines if line.startswith(RED)):
        return red
    for raised in (line.removeprefix(RAISED) for line in lines if line.startswith(RAISED)):
        raise DoesNotLoad(raised)
    if said.returncode:
        raise RuntimeError(f"no test was red, and pytest ended with {said.returncode}: {broken}")
    return None


class _Reporter:
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print(f"\n{RED}{report.nodeid}")


def main() -> None:
    """The command."""
    path, name, *tests = sys.argv[1:]
    with imported({path: mutated(path, name)}) as raised:
        options = ("-q", "-x", "-s", "-p", "no:cacheprovider", "--tb=line")
        status = pytest.main([*options, *tests], plugins=[_Reporter()])
    for each in raised:
        print(f"\n{RAISED}{each}")
    sys.exit(status)


if __name__ == "__main__":
    main()
