"""`make bench`: the same seeded load through the article's algorithm, a naive one, and ours."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, validators
from rich.console import Group
from rich.table import Table

from bench import cold
from bench.compare import ARTICLE, NUMBER_MIN, OURS, SHARES, SIDES, Run, run
from bench.engine import own_engine, started
from bench.targets import Figure, Measured, Results, cold_figures, figures
from wakala.output import Problem, out, progress_bar, table
from wakala.traffic import Shape, make_traffic

app = App(name="bench", help=__doc__, version_flags=())

SHAPES = (Shape.UNIFORM, Shape.BRANCH, Shape.HOT, Shape.MONTH_END)
ON_AN_EMULATOR = (
    "Times are of an emulator on this machine: of them, only ratios within one run say anything."
    " Calls and units are DynamoDB's own, and hold on AWS for batches as full as these."
)

Count = Annotated[int, Parameter(validator=validators.Number(gte=NUMBER_MIN, lte=20_000))]
Rounds = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=50))]
Json = Annotated[Path | None, Parameter(name="--json")]


@app.default
def main(
    *,
    number: Count = NUMBER_MIN,
    rounds: Rounds = 3,
    seed: int = 1,
    json_file: Json = None,
    amazons: Annotated[bool, Parameter(name="--dynamodb-local", negative=())] = False,
) -> bool:
    """Measure, and print what came of it beside what it must come to; exit 1 where it does not.

    Parameters
    ----------
    number
        Debits of each load; one ten in twenty comes twice, so there must be twenty tens.
    rounds
        How often each backend settles each load; the median counts.
    seed
        Of the load.
    json_file
        A file for the figures, too.
    amazons
        On DynamoDB Local, Amazon's own engine, instead of the one that `make run` starts.
    """
    if json_file is not None:
        _require_writable(json_file)
    with own_engine(amazons=amazons):
        results = measure(number, rounds, seed)
        megabytes = cold.warm_megabytes()
    found = figures(results) + cold_figures(cold.import_ratios(), megabytes)
    out.print(Group(runs_table(results), "", units_table(results), "", figures_table(found)))
    out.print(f"\n{ON_AN_EMULATOR}")
    if json_file is not None:
        settings = {"number": number, "rounds": rounds, "seed": seed}
        json_file.write_text(json.dumps(settings | document(results, found), indent=2) + "\n")
    return all(each.met for each in found)


def measure(number: int, rounds: int, seed: int) -> Results:
    """Each backend in turn, round by round, and once more to be weighed."""
    results: dict[Shape, dict[str, Measured]] = {}
    with progress_bar("measuring", len(SHAPES) * len(SIDES) * (rounds + 1)) as advance:
        for shape in SHAPES:
            traffic = make_traffic(shape, number, seed=seed, shares=SHARES)
            timed: dict[str, list[Run]] = {side.name: [] for side in SIDES}
            for side in SIDES * rounds:
                timed[side.name].append(run(side, traffic, seed=seed))
                advance(1)
            results[shape] = {}
            for side in SIDES:
                weighed = run(side, traffic, seed=seed, weigh=True)
                results[shape][side.name] = Measured(timed[side.name], weighed)
                advance(1)
    return results


def document(results: Results, found: Sequence[Figure]) -> dict[str, Any]:
    """What a program reads of a run."""
    runs = [
        {
            "shape": shape,
            "backend": name,
            "perSecond": each.per_second,
            "calls": each.calls_each,
            "writeUnits": each.write_units_each,
            "readUnits": each.read_units_each,
            "duplicates": each.duplicates,
            "unpaid": each.unpaid,
            "overdrawn": each.overdrawn,
            "open": each.open,
        }
        for shape, sides in results.items()
        for name, each in sides.items()
    ]
    return {"runs": runs, "figures": [asdict(each) | {"met": each.met} for each in found]}


def _require_writable(file: Path) -> None:
    """Before minutes of work, not after; nothing is left of a file that was not there."""
    is_new = not file.exists()
    try:
        with file.open("a"):
            pass
        if is_new:
            file.unlink()
    except OSError as error:
        raise Problem(f"--json {file}: {error.strerror}") from error


def runs_table(results: Results) -> Table:
    """What each backend did with each load; calls and units of one transaction."""
    numbers = ("per s", "calls", "first", "writes", "reads", "twice", "unpaid", "below 0", "open")
    made = table("load", "backend", *numbers, right=frozenset(numbers))
    for shape, sides in results.items():
        for name, each in sides.items():
            made.add_row(
                shape,
                name,
                f"{each.per_second:,.0f}",
                f"{each.calls_each:.3f}",
                f"{each.calls_first_each:.3f}",
                f"{each.write_units_each:.2f}",
                f"{each.read_units_each:.2f}",
                str(each.duplicates),
                str(each.unpaid),
                str(each.overdrawn),
                str(each.open),
            )
    return made


def units_table(results: Results) -> Table:
    """Where a transaction's units go, of the article's and ours: each table's part, each index."""
    numbers = ("writes", "reads")
    made = table("load", "backend", "table", "part", *numbers, right=frozenset(numbers))
    for shape, sides in results.items():
        for name in (ARTICLE.name, OURS.name):
            weighed = sides[name].weighed
            for place in sorted({*weighed.written, *weighed.read}):
                units = (weighed.written.get(place, 0), weighed.read.get(place, 0))
                each_of = (f"{number / weighed.debits:.2f}" for number in units)
                made.add_row(shape, name, *place, *each_of)
    return made


def figures_table(found: Sequence[Figure]) -> Table:
    """Each number beside its target."""
    made = table("what", "found", "must be", "", right=frozenset({"found", "must be"}))
    for each in found:
        verdict = "[green]met[/]" if each.met else "[red]not met[/]"
        made.add_row(each.name, f"{each.value:.2f}", f"{each.side} {each.target:g}", verdict)
    return made


if __name__ == "__main__":
    sys.exit(started(app, sys.argv[1:]))
