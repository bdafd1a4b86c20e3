"""What a person or a script reads: results on stdout, progress and problems on stderr."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console, JustifyMethod
from rich.markup import escape as markup_escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

# No emoji: an agent's key such as AG:100:5 is shown as it is.
out = Console(highlight=False, emoji=False)
progress = Console(highlight=False, emoji=False, stderr=True)

COLOURS = {
    "active": "green",
    "cancelled": "cyan",
    "failed": "red",
    "frozen": "cyan",
    "partially_refunded": "cyan",
    "posted": "green",
    "queued": "yellow",
    "refund_requested": "yellow",
    "refunded": "cyan",
    "refused": "red",
    "rejected": "red",
    "synced": "green",
    "unsent": "yellow",
}


class Problem(Exception):
    """Something the person at the keyboard can mend: one clear line, exit 1, no traceback."""


def show(as_json: bool, result: Any, render: Callable[[], object]) -> None:
    """Print `result` as JSON, or what `render` makes of it for a person."""
    if as_json:
        print(json.dumps(result, indent=2 if out.is_terminal else None))
    else:
        out.print(render())


def problem(text: str) -> None:
    """Print one line that says what is wrong and what to do."""
    progress.print(f"[bold red]error:[/] {escape(' '.join(text.split()))}", soft_wrap=True)


def escape(text: object) -> str:
    """Text from elsewhere: a `[` is no markup, half a surrogate is shown by its number."""
    return markup_escape(str(text).encode(errors="backslashreplace").decode())


def coloured(word: str) -> str:
    """A status or outcome in its colour."""
    colour = COLOURS.get(word)
    return f"[{colour}]{escape(word)}[/]" if colour else escape(word)


def table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """An empty table of our plain kind; `right` names the columns of numbers, `at` never folds."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        side: JustifyMethod = "right" if name in right else "left"
        made.add_column(name, justify=side, overflow="fold", no_wrap=name == "at")
    return made


@dataclass(slots=True)
class Step:
    """A step under way; `note` is what its line says when it is done."""

    note: str = ""


@contextmanager
def step(title: str) -> Iterator[Step]:
    """Show `title` while the body runs, then a line with the note and the seconds it took."""
    current = Step()
    started = time.monotonic()
    with progress.status(title):
        yield current
    took = time.monotonic() - started
    progress.print(
        f"[green]✓[/] {title:<14} {escape(current.note)} [dim]({took:.1f} s)[/]", soft_wrap=True
    )


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar while the body runs, on a terminal alone; call what it yields with each advance."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn())
    shown = progress.is_terminal
    with Progress(*columns, console=progress, transient=True, disable=not shown) as bar:
        task = bar.add_task(title, total=total)
        yield lambda advance: bar.advance(task, advance)
