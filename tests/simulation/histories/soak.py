"""As many histories as asked for, with what they reached: `make soak SEEDS=1..5000`.

`--seed N` plays one history and prints each step of it.
"""

import argparse
import os
import sys
import time
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests import environment

environment.enter()  # before any module of ours is imported

from tests.simulation.histories import coverage, play  # noqa: E402
from tests.simulation.histories.plan import plan  # noqa: E402


def main() -> int:
    """The exit status: 0 where every promise held and, over many histories, all was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1..500", help="a..b, or how many from 1 on")
    parser.add_argument("--steps", type=int, default=play.STEPS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="play this one and print it")
    parser.add_argument("--only", help="of its plan, only the items of these numbers")
    arguments = parser.parse_args()
    console = Console()
    if arguments.seed is not None:
        return _show(arguments, console)
    return _soak(_range(arguments.seeds), arguments, console)


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    return range(int(first), int(last) + 1) if dots else range(1, int(first) + 1)


def _show(arguments: argparse.Namespace, console: Console) -> int:
    history = plan(arguments.seed, arguments.steps)
    if arguments.only is not None:
        history = play.only(history, [int(n) for n in arguments.only.split(",") if n])
    lines, broken = play.trace(history)
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    console.print(broken or "every promise held", markup=False, soft_wrap=True)
    return 1 if broken else 0


def _soak(seeds: range, arguments: argparse.Namespace, console: Console) -> int:
    reached: Counter[str] = Counter()
    failures: list[play.Played] = []
    steps, began = 0, time.monotonic()
    bar = Progress(
        TextColumn("histories"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
    )
    with bar:
        task = bar.add_task("", total=len(seeds))
        for played in play.play_many(seeds, arguments.steps, arguments.workers):
            reached.update(played.reached)
            steps += played.steps
            if played.failed:
                failures.append(played)
                bar.console.print(f"seed {played.seed} breaks {played.what}", markup=False)
            bar.update(task, advance=1, description=f"{len(failures)} broken")
    for played in failures[:5]:
        console.print(play.told(played, arguments.steps), markup=False, soft_wrap=True)
    _print_coverage(reached, console)
    seconds = time.monotonic() - began
    console.print(f"{len(seeds)} histories, {steps} steps, {len(failures)} broken, {seconds:.0f} s")
    if len(failures) > 5:
        console.print(f"broken seeds: {[played.seed for played in failures]}")
    missing = coverage.missing(reached)
    if missing:
        console.print(f"never reached: {missing}", markup=False)
    return 1 if failures or (missing and len(seeds) >= 500) else 0


def _print_coverage(reached: Counter[str], console: Console) -> None:
    table = Table("kind", "reached", title="What these histories reached")
    kinds: dict[str, list[str]] = {}
    for name in sorted({*reached, *coverage.expected()}):
        kind, _, member = name.partition(" ")
        kinds.setdefault(kind, []).append(f"{member} {reached[name]}")
    for kind, members in kinds.items():
        table.add_row(kind, ", ".join(members))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
