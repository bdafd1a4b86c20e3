"""`make bench`: the same seeded load through the article's algorithm, a naive one, and ours."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from unittest import mock

from cyclopts import App, Parameter, validators
from rich.console import Group
from rich.table import Table

from bench import cold
from bench.compare import SHARES, SIDES, Run, run
from bench.targets import NO_MORE, Figure, Measured, Results, figures
from tests.engine import free_port
from wakala import engine
from wakala.output import out, progress_bar, table
from wakala.traffic import Shape, make_traffic

app = App(help=__doc__)

SHAPES = (Shape.UNIFORM, Shape.BRANCH, Shape.HOT, Shape.MONTH_END)
IMPORTS = {"ReconcileFunction": 1.6, "RefundFunction": 1.6, "IngestFunction": 2.2}
MEGABYTES = 128

Count = Annotated[int, Parameter(validator=validators.Number(gte=20, lte=20_000))]
Rounds = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=50))]


@app.default
def main(
    *, number: Count = 300, rounds: Rounds = 3, seed: int = 1, json_file: Path | None = None
) -> None:
    """Measure, and print what came of it beside what it must come to; exit 1 where it does not.

    Parameters
    ----------
    number
        Debits of each load.
    rounds
        How often each backend settles each load; the median counts.
    seed
        Of the load.
    json_file
        Where the figures go, too.
    """
    with own_engine():
        results = measure(number, rounds, seed)
    found = figures(results)
    found += [
        Figure(f"{name}: start, over a bare client's", ratio, NO_MORE, IMPORTS[name])
        for name, ratio in cold.import_ratios().items()
    ]
    found += [
        Figure(f"{name}: memory of a warm one, MB", size, NO_MORE, MEGABYTES)
        for name, size in cold.warm_megabytes().items()
    ]
    out.print(Group(_runs_table(results), "", _figures_table(found)))
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(each) | {"met": each.met} for each in found]))
    sys.exit(not all(each.met for each in found))


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


@contextmanager
def own_engine() -> Iterator[None]:
    """An engine of the bench's own, on a free port, and the environment of what calls it."""
    with tempfile.TemporaryDirectory() as home:
        variables = {
            **engine.CREDENTIALS,
            "WAKALA_HOME": home,
            "AWS_DEFAULT_REGION": engine.REGION,
            "AWS_XRAY_SDK_ENABLED": "false",
            "POWERTOOLS_SERVICE_NAME": "bench",
            "POWERTOOLS_METRICS_NAMESPACE": "Wakala",
        }
        with mock.patch.dict(os.environ, variables):
            engine.prepare()
            started = engine.start(free_port(), auth=False)
            try:
                with mock.patch.dict(os.environ, AWS_ENDPOINT_URL=started.endpoint_url):
                    yield
            finally:
                engine.stop(started)


def _runs_table(results: Results) -> Table:
    numbers = ("settled/s", "calls", "write units", "read units", "duplicates", "overdrawn", "open")
    made = table("load", "backend", *numbers, right=frozenset(numbers))
    for shape, each in results.items():
        for name, found in each.items():
            weighed = found.weighed
            made.add_row(
                shape,
                name,
                f"{found.per_second:,.0f}",
                f"{found.calls_each:.2f}",
                f"{found.units_each:.2f}",
                f"{weighed.read / weighed.debits:.2f}",
                str(found.duplicates),
                str(weighed.overdrawn),
                str(weighed.open),
            )
    return made


def _figures_table(found: Sequence[Figure]) -> Table:
    made = table("what", "found", "must be", "", right=frozenset({"found", "must be"}))
    for each in found:
        verdict = "[green]met[/]" if each.met else "[red]not met[/]"
        made.add_row(each.name, f"{each.value:.2f}", f"{each.side} {each.target:g}", verdict)
    return made


if __name__ == "__main__":
    app()
