"""Break a few guards again, and run only the test that the page names for each: prints its end.

`python -m tests.simulation.guards.sample`: one of each way to break something, drawn anew whenever
the page is another, or by `--seed`, which is printed first; `--every`: all that the page says a
test catches, which tells in minutes whether it is still true.
"""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from zlib import crc32

from tests.simulation.guards.battery import Battery, BreakIt, Mutant, Verdict
from tests.simulation.guards.code import Broken
from tests.simulation.guards.conditions import Guard, Weakened
from tests.simulation.guards.find import code_rows, put_it_in_place, weaken_it
from tests.simulation.guards.page import CONDITIONS, Page, Row, named_test, plain

UNBROKEN = "nothing is broken"
SECONDS = 4.0
"""What a named test may take alone; it comes to no end after some times that."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the page says: which guard, broken how, and the one test that must go red."""

    row: Row
    change: str
    test: str

    @property
    def way(self) -> str:
        """The way to break something, whatever it is."""
        if self.row.part == CONDITIONS:
            return f"a clause {self.change}"
        return "a bound" if self.change.startswith("`") else self.change.split(" `")[0]

    @property
    def name(self) -> str:
        """Of its mutant."""
        return " | ".join((self.row.part, *self.row.names(), self.change))


def told(page: Page) -> Iterator[Told]:
    """Whatever a test catches by itself, not by the clock."""
    for row, ends in sorted(page.fates.items()):
        for change, end in ends.items():
            test = named_test(end)
            if test is not None:
                yield Told(row, change, test)


def seed_of(page: Page) -> int:
    """What the sample of this page is drawn by."""
    return crc32(page.text().encode())


def sample(page: Page, random: Random) -> list[Told]:
    """One of each way."""
    ways: dict[str, list[Told]] = {}
    for each in told(page):
        ways.setdefault(each.way, []).append(each)
    return [random.choice(ways[way]) for way in sorted(ways)]


def break_again(battery: Battery, chosen: list[Told]) -> dict[str, Verdict]:
    """What became of each, and of all of these tests where nothing is broken."""
    tests = {each: [id_ for id_ in battery.items if _is(id_, each.test)] for each in chosen}
    every = sorted({test for found in tests.values() for test in found})
    seconds = dict.fromkeys(every, SECONDS)
    there = code_rows()
    mutants = [Mutant(each.name, tests[each], seconds, _breaking(each, there)) for each in chosen]
    verdicts: dict[str, Verdict] = {}

    def tell(mutant: Mutant, verdict: Verdict) -> None:
        verdicts[mutant.name] = verdict

    battery.run([Mutant(UNBROKEN, every, seconds, lambda _: None), *mutants], tell)
    return verdicts


def _is(test_id: str, test: str) -> bool:
    return test_id.split("[", maxsplit=1)[0] == test


def _breaking(each: Told, there: Mapping[Row, Sequence[tuple[str, Broken]]]) -> BreakIt:
    if each.row.part == CONDITIONS:
        action, _, item = each.row.what.partition(" ")
        guard = Guard(each.row.who, action, item, each.row.text)
        return partial(weaken_it, Weakened(guard, each.change))
    [(path, broken)] = [found for found in there[each.row] if plain(found[1].change) == each.change]
    return partial(put_it_in_place, path, broken)


def main() -> None:
    """The command: a line of JSON for each, `red` null where the named test is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", action="store_true", help="all that a test catches")
    parser.add_argument("--seed", type=int, help="draw by this, not by the page's text")
    asked = parser.parse_args()
    page = Page.read()
    seed = seed_of(page) if asked.seed is None else asked.seed
    chosen = list(told(page)) if asked.every else sample(page, Random(seed))
    print(json.dumps({"seed": None if asked.every else seed}))
    named = {each.name: each.test for each in chosen}

    def work(battery: Battery) -> None:
        for name, verdict in break_again(battery, chosen).items():
            red = None if verdict.timed_out else verdict.caught_by
            print(json.dumps({"broken": name, "named": named.get(name), "red": red}))

    Battery(work).collect(sorted({test.split("::")[0] for test in named.values()}))


if __name__ == "__main__":
    main()
