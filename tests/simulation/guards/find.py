"""Take away every guard in turn, and see which test goes red: writes docs/proof-guards.md.

`python -m tests.simulation.guards.find` breaks what the page does not tell of yet; `--all`
everything, and `--only <text>` what has that in its name, without writing. `--list` only says what
there is.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tests.simulation.cloud.dynamodb import DynamoDB
from tests.simulation.guards.afresh import red_afresh
from tests.simulation.guards.battery import (
    BATTERY,
    Battery,
    Mutant,
    Recorded,
    Verdict,
    every_dynamodb,
)
from tests.simulation.guards.code import MODULES, Broken, everything, mutated
from tests.simulation.guards.conditions import Guard, Weakened, weakening
from tests.simulation.guards.page import PAGE, Fate, Page, Row
from tests.simulation.guards.sources import put_in_place
from tests.simulation.guards.texts import REDUNDANT

CONDITIONS = ("tests/contract", "--ignore=tests/contract/test_every_call_may_fail.py")
"""The part of the battery that sends every condition, on the simulated engine."""

BUDGET_S, EXPLAINED_S = 60.0, 2.0
"""Of tests, in seconds of the processor, for one mutant; and for one that nobody expects to see."""


def condition_row(guard: Guard) -> Row:
    """Where the page tells of a clause."""
    return Row("conditions", guard.writer, f"{guard.action} {guard.item}", guard.clause)


def code_row(broken: Broken) -> Row:
    """Where the page tells of a guard in our code."""
    return Row(broken.module, broken.where, "", broken.text)


def code_rows() -> dict[Row, list[tuple[str, Broken]]]:
    """All guards that the syntax shows, each with its mutants and its module's path."""
    rows: dict[Row, list[tuple[str, Broken]]] = {}
    for path, broken in everything():
        rows.setdefault(code_row(broken), []).append((path, broken))
    return rows


def conditions() -> dict[Guard, str]:
    """All clauses that contract suites and histories see sent, by running them; and who sends."""
    found: list[Recorded] = []
    Battery(lambda battery: found.append(_green(battery.record()))).collect(CONDITIONS)
    [seen] = found
    return {
        guard: "functions" if guard in seen.by_functions else "contract suites alone"
        for guard in sorted(seen.guards)
    }


def _green(recorded: Recorded) -> Recorded:
    if recorded.red:
        sys.exit(f"red although nothing is broken: {recorded.red}")
    return recorded


def mutants(recorded: Recorded) -> Iterator[tuple[Row, str, Mutant]]:
    """Every mutant there is: where it is told of, how its guard is broken, and the tests for it."""
    weakened = set(recorded.weakened) | {Weakened(each, "") for each in recorded.guards}
    for each in sorted(weakened):
        row, tests = condition_row(each.guard), recorded.weakened.get(each, frozenset())
        if each.change:
            broken = partial(weaken_it, each)
            yield row, each.change, recorded.mutant(str(each), tests, broken, _budget_s(str(each)))
    for path, each_code in everything():
        lines = [(path, line) for line in each_code.lines]
        if not each_code.in_function:
            lines = [place for place in recorded.lines if place[0] == path]
        tests = frozenset(recorded.that_run(lines))
        put = partial(put_it_in_place, path, each_code)
        mutant = recorded.mutant(str(each_code), tests, put, _budget_s(str(each_code)))
        yield code_row(each_code), each_code.change, mutant


def _budget_s(name: str) -> float:
    return EXPLAINED_S if name in REDUNDANT else BUDGET_S


def weaken_it(weakened: Weakened, _tests: Sequence[str]) -> None:
    """Let every DynamoDB that is made from now on take more than the write's clause allows."""

    def change(dynamodb: DynamoDB) -> None:
        dynamodb.rewrite = weakening(weakened)

    every_dynamodb(change)


def put_it_in_place(path: str, broken: Broken, tests: Sequence[str]) -> str | None:
    """Let this process run the broken module, or one that imports it the tests; what was red."""
    if broken.at_import:
        return red_afresh(path, broken, tests)
    put_in_place(path, mutated(path, str(broken)), broken.where)
    return None


def break_them(battery: Battery, page: Page, only: str | None) -> Sequence[str]:
    """Run whatever mutant the page does not tell of; the names of those that nothing catches."""
    recorded = _green(battery.record())
    unseen = set(MODULES) - {path for path, _ in recorded.lines}
    if unseen:  # they were imported before anybody looked
        sys.exit(f"no test runs a line of {sorted(unseen)}")
    everyone = list(mutants(recorded))
    page.keep({(row, change) for row, change, _ in everyone})
    for guard in recorded.guards:
        page.add(condition_row(guard))
    wanted = {
        mutant.name: (row, change)
        for row, change, mutant in everyone
        if (only in mutant.name if only else not page.tells(row, change))
    }
    chosen = [mutant for _, _, mutant in everyone if mutant.name in wanted]
    missed: list[str] = []
    started, number = time.monotonic(), 0

    def tell(mutant: Mutant, verdict: Verdict) -> None:
        nonlocal number
        number += 1
        fate = Fate(verdict.caught_by, verdict.timed_out, REDUNDANT.get(mutant.name))
        page.tell(*wanted[mutant.name], fate)
        if fate.caught_by is None and not fate.timed_out and fate.redundant is None:
            missed.append(mutant.name)
        took_s = time.monotonic() - started
        print(f"\r{number} of {len(chosen)} guards broken, {took_s:.0f} s", end="", flush=True)

    battery.run(chosen, tell)
    print()
    return missed


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="break also what the page tells of")
    parser.add_argument("--only", help="break what has this text in its name; write nothing")
    parser.add_argument("--list", action="store_true", help="say what guards there are")
    asked = parser.parse_args()
    if asked.list:
        rows = [f"{condition_row(each)} by {who}" for each, who in conditions().items()]
        print("\n".join([*rows, *map(str, code_rows())]))
        return
    page = Page() if asked.all else Page.read()
    missed: list[str] = []
    work: Callable[[Battery], None] = lambda battery: missed.extend(  # noqa: E731
        break_them(battery, page, asked.only)
    )
    Battery(work).collect(BATTERY)
    for name in missed:
        print(f"nothing catches: {name}")
    if asked.only:
        page.show()
    else:
        PAGE.write_text(page.text(), encoding="utf-8")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
