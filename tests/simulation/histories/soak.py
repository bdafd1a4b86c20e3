"""As many histories as asked for, with what they reached: `make soak SEEDS=1..5000`.

`--seed N` plays one history and prints each step of it.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import quantiles

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests import environment

environment.enter()  # before any module of ours is imported

from tests.simulation.histories import coverage, play  # noqa: E402
from tests.simulation.histories.faults import befalls  # noqa: E402
from tests.simulation.histories.plan import Fault, Plan, plan  # noqa: E402


def main(given: Sequence[str]) -> int:
    """The exit status: 0 where every promise held and, over many histories, all was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=_seeds, default="1..500", help="a..b, or how many from 1 on"
    )
    parser.add_argument("--steps", type=_positive, default=play.STEPS)
    parser.add_argument("--workers", type=_positive, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=_positive, help="play this one and print it")
    parser.add_argument(
        "--only", type=_numbers, help="of its plan, only the items of these numbers"
    )
    arguments = parser.parse_args(given)
    console = Console()
    if arguments.seed is None:
        if arguments.only is not None:
            parser.error("argument --only: goes with --seed")
        return _soak(arguments.seeds, arguments, console)
    history = plan(arguments.seed, arguments.steps)
    if arguments.only is not None:
        there = len(history.items)
        if max(arguments.only, default=0) >= there:
            parser.error(f"argument --only: the plan has the items 0 to {there - 1}")
        history = play.only(history, arguments.only)
    return _show(history, console)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _seeds(text: str) -> range:
    first, dots, last = text.partition("..")
    seeds = range(_positive(first), _positive(last) + 1) if dots else range(1, _positive(first) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return seeds


def _numbers(text: str) -> list[int]:
    numbers = text.split(",") if text else []
    if not all(map(str.isdecimal, numbers)):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 0,3,7")
    return list(map(int, numbers))


def _show(history: Plan, console: Console) -> int:
    lines, broken = play.trace(history)
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    console.print(broken or "every promise held", markup=False, soft_wrap=True)
    return 1 if broken else 0


def _soak(seeds: range, arguments: argparse.Namespace, console: Console) -> int:
    each: list[Mapping[str, int]] = []
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
            each.append(played.reached)
            steps += played.steps
            if played.failed:
                failures.append(played)
                bar.console.print(f"seed {played.seed} breaks {played.what}", markup=False)
            bar.update(task, advance=1, description=f"{len(failures)} broken")
    for played in failures[:5]:
        console.print(play.told(played, arguments.steps), markup=False, soft_wrap=True)
    reached = coverage.total(each)
    _print_coverage(reached, console)
    _print_faults(reached, console)
    _print_depth(each, console)
    seconds = time.monotonic() - began
    console.print(f"{len(seeds)} histories, {steps} steps, {len(failures)} broken, {seconds:.0f} s")
    if len(failures) > 5:
        console.print(f"broken seeds: {[played.seed for played in failures]}")
    missing = coverage.missing(reached, len(seeds)) if len(seeds) >= coverage.HISTORIES else []
    for told in missing:
        console.print(f"too seldom: {told}", markup=False)
    return 1 if failures or missing else 0


def _print_coverage(reached: Counter[str], console: Console) -> None:
    table = Table("kind", "reached", title="What these histories reached")
    kinds: dict[str, list[str]] = {}
    for name in sorted({*reached, *coverage.expected()}):
        kind, _, member = name.partition(" ")
        if kind not in {"fault", "struck", "spoilt", "call", "made"}:
            kinds.setdefault(kind, []).append(f"{member} {reached[name]}")
    for kind, members in kinds.items():
        table.add_row(kind, ", ".join(members))
    console.print(table)


def _print_faults(reached: Counter[str], console: Console) -> None:
    table = Table("what went wrong", "times", "spoilt", "of what", title="Each fault once")
    for kind in Fault:
        of = {
            name.removeprefix("struck ").removesuffix(f": {kind}"): count
            for name, count in sorted(reached.items())
            if name.startswith("struck ") and name.endswith(f": {kind}")
        }
        told = ", ".join(f"{name} {count}" for name, count in of.items())
        table.add_row(kind, str(reached[f"fault {kind}"]), str(reached[f"spoilt {kind}"]), told)
    console.print(table)
    calls = Table("call", "made", "befallen by", title="Faults at each call")
    for name in sorted(each for each in reached if each.startswith("made ")):
        call = name.removeprefix("made ")
        operation = call.split()[1]
        kinds = [kind for kind in coverage.AT_EACH_CALL if befalls(kind, operation)]
        told = ", ".join(f"{kind} {reached[f'call {call}: {kind}']}" for kind in kinds)
        calls.add_row(call, str(reached[name]), told)
    console.print(calls)


def _print_depth(each: Sequence[Mapping[str, int]], console: Console) -> None:
    table = Table("in one history", "median", "quarters", "some in", title="How deep they go")
    for name, counts in coverage.depth(each).items():
        if len(counts) > 1:
            low, median, high = quantiles(counts, n=4)
            some = f"{sum(map(bool, counts))} of {len(counts)}"
            table.add_row(name, f"{median:g}", f"{low:g} to {high:g}", some)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
