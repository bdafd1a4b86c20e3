"""The commands on dead letters: what failed and why, and what is to be done with it."""

import json as json_text
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, TextIO

from cyclopts import App, Parameter
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from wakala.desk import (
    CONTENDED,
    LEFT,
    REAL,
    UNANSWERED,
    Desk,
    Document,
    Move,
    Order,
    Scope,
    Verb,
    oldest_first,
)
from wakala.info import command, command_options
from wakala.options import LOCAL, Flag, Json, On
from wakala.output import Problem, out, progress, progress_bar, show, table
from wakala.stack import Stack
from wakala.wallets import rfc3339
from wallet_ledger.domain.ids import is_id
from wallet_ledger.domain.letters import LetterClass, LetterStatus, Source

CLOCK = REAL
RATE = 10.0
RATE_LEAST, RATE_MOST = 0.1, 100.0
RECENT_MS = 7 * 86_400_000
"""Of finished letters, what is shown unless an age says otherwise."""
SHOWN_MAX = 25
"""Letters that were moved of which each is shown."""
LETTER_ID = r"[0-9a-f]{32}"
FINGERPRINT = r"[0-9a-f]{12}"
AGE = r"([0-9]{1,5})([smhd])"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
WHY_LENGTH_MAX = 200
OPEN = frozenset(status for status in LetterStatus if status.is_open)
TAKES_AGAIN = frozenset(source for source in Source if source.takes_again)
TRIED_AGAIN = frozenset({LetterClass.BUG, LetterClass.NEVER_RAN, LetterClass.TRANSIENT})
"""Classes of which a redrive may come to something."""
BY_ITSELF = frozenset({LetterClass.NEVER_RAN, LetterClass.TRANSIENT})
"""Classes of which the clock redrives letters."""
DONE = frozenset({"redriven", "discarded", "closed"})
"""Outcomes by which something was done, or in a dry run would be."""
UNREMARKABLE = frozenset({"redriven", "discarded", LEFT, UNANSWERED})
"""Outcomes that are only counted where there are many letters, or not all were reached."""
AGAIN = frozenset({LEFT, UNANSWERED, CONTENDED})
"""Outcomes after which the same command fares better."""
WHOLE = ("body", "record")
"""Members of a revealed letter that are shown by themselves, below all others."""
PIPED_WIDTH = 10_000_000
"""A pipe has no width: a row is a line there, whole."""
UNDONE = 3
"""The exit status of a command that left something undone."""
REFUSED = 1
"""The exit status of a command to which somebody said no."""

COLOURS = {
    "closed": "cyan",
    "discarded": "red",
    "noted": "cyan",
    "parked": "yellow",
    "redriven": "green",
    "waiting": "yellow",
}

app = App(name="dead-letters", help="See what failed and why; redrive it or discard it.")

Reveal = Annotated[Flag, Parameter(help="Unmasked, whole bodies too; needs --why, and is audited.")]
RevealWhy = Annotated[str | None, Parameter(name="--why", help="Why you must see it; kept.")]
Why = Annotated[
    str | None, Parameter(name="--why", help="Kept in the history of each; needed to do anything.")
]
All = Annotated[
    Flag,
    Parameter(
        name="--all",
        help="Also letters with which all is done; of seven days, unless an age says otherwise.",
    ),
]
DryRun = Annotated[Flag, Parameter(help="Show what would become of each, and do nothing.")]
File = Annotated[
    str,
    Parameter(name="--out", help="Where to; - is the standard output.", allow_leading_hyphen=True),
]
Rate = Annotated[float, Parameter(help="Letters a second.")]
Everything = Annotated[Flag, Parameter(help="All open letters; without it some must be named.")]
Yes = Annotated[Flag, Parameter(help="Do not ask, though it is more than one letter.")]
Replace = Annotated[Flag, Parameter(name="--yes", help="Replace a file that is there.")]


@Parameter(name="*", group="Which letters")
@dataclass(frozen=True, slots=True)
class Which:
    """Which letters a command means: all open ones that fit everything that is given."""

    group: Annotated[str | None, Parameter(help="A fingerprint that `groups` shows.")] = None
    class_: Annotated[str | None, Parameter(name="--class", help=f"{', '.join(LetterClass)}.")] = (
        None
    )
    source: Annotated[str | None, Parameter(help=f"{', '.join(Source)}.")] = None
    agent: Annotated[str | None, Parameter(help="Whose transactions and refunds.")] = None
    reason: Annotated[str | None, Parameter(help="The why that `list` shows, as it stands.")] = None
    older_than: Annotated[
        str | None, Parameter(help="Arrived before: an age such as 30m, 4h, 2d.")
    ] = None
    newer_than: Annotated[str | None, Parameter(help="Arrived since: an age, too.")] = None
    status: Annotated[
        tuple[str, ...],
        Parameter(
            help=f"{', '.join(LetterStatus)}; more than once for more of them.",
            negative=(),
            show_default=False,
        ),
    ] = ()

    @property
    def given(self) -> bool:
        """Whether anything narrows the choice."""
        return any(getattr(self, each.name) not in (None, ()) for each in fields(self))

    def words(self) -> str:
        """The options as they may be typed again."""
        said: list[str] = []
        for each in fields(self):
            value = getattr(self, each.name)
            option = "--" + each.name.rstrip("_").replace("_", "-")
            for one in value if isinstance(value, tuple) else (value,):
                said += [] if one is None else [option, one]
        return shlex.join(said)

    def filter(self, now_ms: int) -> Document:
        """What the desk is asked for. Problem for a value that names nothing."""
        if self.group is not None and not re.fullmatch(FINGERPRINT, self.group):
            raise Problem(f"--group {self.group!r}: 12 of 0-9 a-f, as `dead-letters groups` shows")
        if self.reason is not None:
            _printable("--reason", self.reason)
        if self.agent is not None and not is_id(self.agent):
            raise Problem(f"--agent {self.agent!r} is no agent's id")
        since = _moment("--newer-than", self.newer_than, now_ms)
        until = _moment("--older-than", self.older_than, now_ms)
        if since is not None and until is not None and since > until:
            raise Problem("nothing is both older and newer: --newer-than takes the greater age")
        members = {
            "fingerprint": self.group,
            "class": _one_of("--class", self.class_, LetterClass),
            "source": _one_of("--source", self.source, Source),
            "agentId": self.agent,
            "why": self.reason,
            "status": [_one_of("--status", each, LetterStatus) for each in self.status] or None,
            "arrivedFrom": since,
            "arrivedUntil": until,
        }
        return {name: value for name, value in members.items() if value is not None}


EVERY = Which()


@app.command
def groups(*, which: Which = EVERY, all: All = False, on: On = LOCAL, json: Json = False) -> None:
    """Show one row for each kind of trouble, however many letters it has, and what to type next.

    For example:

        wakala dead-letters groups
        wakala dead-letters groups --class BUG --newer-than 4h
        wakala dead-letters groups --all --json
    """
    now_ms = _now_ms()
    wanted = _recent(which.filter(now_ms), now_ms, every=all)
    scope = _scope(wanted, every=all)
    stack = on.open()
    desk = Desk(stack, CLOCK)
    with progress.status("Reading letters") as status:
        found = desk.groups(
            scope, wanted, lambda count: status.update(f"Reading letters: {count:,}")
        )
        due = _due(desk, found, wanted)
    tail = _tail(stack, on)
    found = [
        each | {"next": _next_of_group(each, tail)} | due.get(_group_name(each), {})
        for each in found
    ]
    page = _groups_page(found, now_ms, scope) if found else _nothing(which, wanted, scope)
    _show(json, {"groups": [_view(each) for each in found]}, page)


@app.command(name="list")
def list_letters(
    *,
    which: Which = EVERY,
    all: All = False,
    limit: Annotated[int, Parameter(help="Show so many, the oldest.")] = 50,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """List letters as their messages were sent, oldest first, with a masked glimpse of each.

    For example:

        wakala dead-letters list
        wakala dead-letters list --group 5f0c1a2b3d4e --limit 500
        wakala dead-letters list --agent AG-001 --status parked --status waiting --json
    """
    if limit < 1:
        raise Problem(f"--limit {limit}: 1 or more")
    now_ms = _now_ms()
    wanted = _recent(which.filter(now_ms), now_ms, every=all)
    letters = _letters(Desk(on.open(), CLOCK), wanted, every=all)
    shown, more = letters[:limit], max(0, len(letters) - limit)
    lines = [_letters_page(shown, now_ms)]
    if not letters:
        lines = [_nothing(which, wanted, _scope(wanted, every=all))]
    if more:
        lines.append(Text(f"\n… and {more:,} more: --limit {len(letters)} shows them all"))
    _show(json, {"letters": [_view(each) for each in shown], "more": more}, Group(*lines))


@app.command(name="show")
def show_letter(
    letter_id: str,
    *,
    reveal: Reveal = False,
    why: RevealWhy = None,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Show all about one letter: what it is, what it was, and what was done with it by whom.

    For example:

        wakala dead-letters show 0123456789abcdef0123456789abcdef
        wakala dead-letters show 0123456789abcdef0123456789abcdef --reveal --why 'ticket 4711'

    Parameters
    ----------
    letter_id
        The letter's id, as `list` shows it.
    """
    (letter_id,) = _ids([letter_id])
    reveal_why = _reveal_why(why, reveal=reveal)
    stack = on.open()
    letter = Desk(stack, CLOCK).show(letter_id, reveal_why)
    next_command = _next_of_letter(letter, _tail(stack, on))
    _show(json, _view(letter), _letter_page(letter, next_command, _now_ms()))


@app.command
def redrive(
    *ids: str,
    why: Why = None,
    which: Which = EVERY,
    everything: Everything = False,
    dry_run: DryRun = False,
    rate: Rate = RATE,
    force: Annotated[Flag, Parameter(help="Also what was redriven by hand 5 times.")] = False,
    yes: Yes = False,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Give letters to their queue again: by their ids, or all open ones that fit a filter.

    What is chosen is fixed at the start, and goes oldest first; a phone's letters keep their
    order. What the ledger has decided meanwhile is closed instead. To interrupt it is safe, and
    so is the same command again.

    Exit status 0: each is on its way or has its outcome, or nothing was to be done. 1: a problem,
    in one line, or you said no. 3: not each: one has its redrives used up, or others write to it
    this moment, or it cannot be redriven, or it was discarded or noted before. 130: interrupted.

    For example:

        wakala dead-letters redrive --group 5f0c1a2b3d4e --dry-run
        wakala dead-letters redrive --group 5f0c1a2b3d4e --why 'fixed in 1.4.2'
        wakala dead-letters redrive --class NEVER_RAN --older-than 30m --why outage --yes --rate 50

    Parameters
    ----------
    ids
        Letters, as `list` shows them.
    """
    chosen = _chosen(ids, which, everything=everything)
    order = Order("redrive", _reason(why, dry_run=dry_run), force, dry_run)
    _move(order, chosen, rate, on, yes=yes, json=json)


@app.command
def discard(
    *ids: str,
    why: Why = None,
    which: Which = EVERY,
    everything: Everything = False,
    dry_run: DryRun = False,
    rate: Rate = RATE,
    yes: Yes = False,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Give letters up, for good: a transaction that waits for one fails with DISCARDED.

    By their ids, or all open ones that fit a filter. What the ledger has decided meanwhile is
    closed instead, and what a redrive may have sent is left. To interrupt it is safe, and so is the
    same command again.

    Exit status 0: each is given up, or nothing was to be done. 1: a problem, in one line, or you
    said no. 3: not each: one has its outcome, or is noted, or was redriven or may be on its way, or
    others write to it this moment. 130: interrupted.

    For example:

        wakala dead-letters discard 0123456789abcdef0123456789abcdef --why 'no such request'
        wakala dead-letters discard --group 5f0c1a2b3d4e --dry-run
        wakala dead-letters discard --class POISON --older-than 2d --why 'ticket 4711' --yes

    Parameters
    ----------
    ids
        Letters, as `list` shows them.
    """
    chosen = _chosen(ids, which, everything=everything)
    order = Order("discard", _reason(why, dry_run=dry_run), False, dry_run)
    _move(order, chosen, rate, on, yes=yes, json=json)


@app.command
def export(
    *,
    file: File,
    which: Which = EVERY,
    all: All = False,
    reveal: Reveal = False,
    why: RevealWhy = None,
    yes: Replace = False,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Write letters to a file, one line of JSON for each, oldest first.

    The file is its owner's alone, and appears when it is whole; one that is there is replaced only
    with --yes. With --reveal each line has the letter's whole record, and its history tells that
    you saw it.

    For example:

        wakala dead-letters export --out letters.ndjson --all
        wakala dead-letters export --out - --group 5f0c1a2b3d4e | jq .preview
        wakala dead-letters export --out case.ndjson --agent AG-001 --reveal --why 'ticket 4711'
    """
    if file.startswith("-") and file != "-":
        raise Problem(f"--out {file!r}: a file, or - for the standard output")
    if Path(file).is_file() and not yes:
        raise Problem(f"--out {file!r}: it is there already, and --yes replaces it")
    wanted = which.filter(_now_ms())
    reveal_why = _reveal_why(why, reveal=reveal)
    desk = Desk(on.open(), CLOCK)
    letters = _letters(desk, wanted, every=all)
    with _sink(file) as sink, progress_bar("exporting", len(letters)) as advance:
        for letter in letters:
            whole = letter if reveal_why is None else desk.show(letter["letterId"], reveal_why)
            sink.write(f"{json_text.dumps(_view(whole))}\n")
            advance(1)
    if file == "-":
        return
    _show(
        json,
        {"out": file, "letters": len(letters)},
        Text(f"{_number(len(letters), 'letter')} in {file}"),
    )


# --- which letters ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chosen:
    """What is to be moved: these letters, or for want of ids all open ones that fit."""

    ids: Sequence[str]
    wanted: Document

    def read(self, desk: Desk) -> list[Document]:
        """The letters, oldest first. Problem for an id that no letter has."""
        return _named(desk, self.ids) if self.ids else _letters(desk, self.wanted)


def _chosen(given: Sequence[str], which: Which, *, everything: bool) -> _Chosen:
    """What was said. Problem where it is not clear what is meant."""
    ids = _ids(given)
    said = [bool(ids), which.given, everything]
    if not any(said):
        raise Problem("which letters? give ids, or a filter such as --group, or --everything")
    if sum(said) > 1:
        raise Problem("give ids, or filters, or --everything: only one of them")
    return _Chosen(ids, which.filter(_now_ms()))


def _due(
    desk: Desk, groups: Sequence[Document], wanted: Document
) -> dict[tuple[str, str], Document]:
    """By its name, when the clock redrives the next letter of a group."""
    waits = LetterStatus.WAITING in wanted.get("status", [LetterStatus.WAITING])
    if not waits or not any(each["open"] and each["class"] in BY_ITSELF for each in groups):
        return {}
    return {name: {"dueAt": due_at_ms} for name, due_at_ms in desk.due(wanted).items()}


def _letters(desk: Desk, wanted: Document, *, every: bool = False) -> list[Document]:
    with progress.status("Reading letters") as status:
        return desk.letters(
            _scope(wanted, every=every),
            wanted,
            lambda found: status.update(f"Reading letters: {found:,}"),
        )


def _named(desk: Desk, ids: Sequence[str]) -> list[Document]:
    with progress_bar("reading", len(ids)) as advance:
        found = []
        for letter_id in ids:
            found.append(desk.show(letter_id))
            advance(1)
    return oldest_first(found)


def _ids(given: Sequence[str]) -> list[str]:
    for each in given:
        if not re.fullmatch(LETTER_ID, each):
            raise Problem(f"{each!r} is no letter's id: 32 of 0-9 a-f, as `dead-letters list` says")
    return list(dict.fromkeys(given))


def _scope(wanted: Mapping[str, Any], *, every: bool) -> Scope:
    """Finished letters too, where they are asked for in one way or the other."""
    return "open" if not every and OPEN.issuperset(wanted.get("status", ())) else "all"


def _recent(wanted: Document, now_ms: int, *, every: bool) -> Document:
    """Every refusal of a year is a letter: who looks at finished ones rarely means all of them."""
    told = wanted.keys() & {"arrivedFrom", "arrivedUntil"}
    if told or _scope(wanted, every=every) == "open":
        return wanted
    return wanted | {"arrivedFrom": now_ms - RECENT_MS}


def _one_of(option: str, text: str | None, words: Iterable[str]) -> str | None:
    """The word that was meant, in whatever case."""
    if text is None:
        return None
    allowed = {word.lower(): str(word) for word in words}
    try:
        return allowed[text.lower().replace("-", "_")]
    except KeyError:
        raise Problem(f"{option} {text!r}: one of {', '.join(allowed.values())}") from None


def _moment(option: str, age: str | None, now_ms: int) -> int | None:
    if age is None:
        return None
    match = re.fullmatch(AGE, age, re.ASCII)
    if match is None:
        raise Problem(f"{option} {age!r}: a number and s, m, h or d, such as 30m, 4h or 2d")
    return now_ms - int(match[1]) * SECONDS[match[2]] * 1000


def _reason(why: str | None, *, dry_run: bool) -> str:
    if why is None and dry_run:
        return "a dry run"
    if why is None:
        raise Problem("say why with --why: it is kept in the history of each letter")
    return _printable("--why", why)


def _printable(option: str, text: str) -> str:
    if not 1 <= len(text) <= WHY_LENGTH_MAX or not text.isprintable() or not text.strip():
        raise Problem(f"{option}: 1 to {WHY_LENGTH_MAX} printable characters")
    return text


def _reveal_why(why: str | None, *, reveal: bool) -> str | None:
    if not reveal:
        return None
    if why is None:
        raise Problem("--reveal needs --why: both are kept in the history of the letter")
    return _reason(why, dry_run=False)


# --- moving them -----------------------------------------------------------------------------


def _move(order: Order, chosen: _Chosen, rate: float, on: On, *, yes: bool, json: bool) -> None:
    if not RATE_LEAST <= rate <= RATE_MOST:
        raise Problem(f"--rate {rate:g}: {RATE_LEAST:g} to {RATE_MOST:g} letters a second")
    desk = Desk(on.open(), CLOCK)
    letters = chosen.read(desk)
    if len(letters) > 1 and not yes and not order.dry_run:
        _confirm(order.verb, letters)
    move = Move(desk, order, letters, rate)
    hints = True
    try:
        with progress_bar(order.verb, len(letters)) as advance:
            move.run(advance)
    except KeyboardInterrupt:
        hints = False  # that it may be repeated is told to whoever interrupts any command
        raise
    finally:  # whoever interrupts it, or whatever fails: what was done so far is told
        _show(json, _move_view(move), _move_page(move, _now_ms(), hints=hints))
    if move.undone():
        raise SystemExit(UNDONE)


def _confirm(verb: Verb, letters: Sequence[Document]) -> None:
    """Ask on a terminal; the command ends where the answer is no. Problem where nobody answers."""
    kinds = Counter(each["fingerprint"] for each in letters)
    what = f"{_number(len(letters), 'letter')} of {_number(len(kinds), 'group')}"
    if not _interactive():
        raise Problem(f"{what}: --yes to {verb} them, --dry-run to see them first")
    for fingerprint, count in kinds.most_common():
        progress.print(f"{count:>7,} of group {fingerprint}")
    try:
        answer = progress.input(f"{verb} {what}? \\[y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        progress.print(f"Nothing was done: no {verb} of {what}.")
        raise SystemExit(REFUSED)


def _interactive() -> bool:
    return sys.stdin.isatty() and progress.is_terminal


def _move_view(move: Move) -> Document:
    results = move.results()
    return {
        "action": move.order.verb,
        "dryRun": move.order.dry_run,
        "letters": len(results),
        "undone": len(move.undone()),
        "counts": dict(Counter(each.outcome for each in results)),
        "results": [
            {"outcome": each.outcome, "note": each.note, **_view(_glimpse(letter))}
            for letter, each in zip(move.letters, results, strict=True)
        ],
    }


def _glimpse(letter: Document) -> Document:
    names = ("letterId", "fingerprint", "sentAt", "arrivedAt", "preview")
    return {name: letter.get(name) for name in names}


def _move_page(move: Move, now_ms: int, *, hints: bool) -> RenderableType:
    results, dry_run = move.results(), move.order.dry_run
    if not results:
        return Text("No open letter fits: nothing is to be done.")
    every = dry_run or (move.finished and len(results) <= SHOWN_MAX)
    rows = [
        {
            "letter": Text(each.letter_id),
            "outcome": _word(each.outcome, dry_run=dry_run),
            "arrived": _ago(letter["arrivedAt"], now_ms),
            "note": _plain(each.note),
            "says": _glance(letter["preview"]),
        }
        for letter, each in zip(move.letters, results, strict=True)
        if every or each.outcome not in UNREMARKABLE
    ]
    counts = Counter(_word(each.outcome, dry_run=dry_run).plain for each in results)
    kinds = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
    lines: list[RenderableType] = [_Rows(rows, ("note", "says")), ""] if rows else []
    lines.append(Text(f"{_number(len(results), 'letter')}: {kinds}"))
    return Group(*lines, *(_hints(move) if hints else ()))


def _hints(move: Move) -> Iterator[Text]:
    """Whether, and how, a command gets what is left done."""
    if move.order.dry_run:
        yield Text("Nothing was done: the same with --why, and no --dry-run, does it.")
    elif any(each.outcome in AGAIN for each in move.results()):
        yield Text("Something is left: the same command again tries only that.")
    elif move.undone():
        yield Text("Not all could be done, and the same command again cannot do it either.")


# --- what a person sees ----------------------------------------------------------------------


def _show(as_json: bool, result: object, page: RenderableType) -> None:
    if as_json:
        show(as_json, result, lambda: "")
    else:
        console = out if out.is_terminal else Console(highlight=False, width=PIPED_WIDTH)
        console.print(page, crop=False)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of named cells, in columns; columns without any word are left out.

    On a terminal the cells named in `below` get lines of their own under their row, folded or cut
    as they are. In a pipe they are columns too, the last ones: a row is a line there, whole.
    """

    rows: Sequence[Mapping[str, Text]]
    below: Sequence[str]
    right: frozenset[str] = frozenset({"arrived", "letters", "open"})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lines, none of which is folded by anybody else."""
        names = [name for name in self.rows[0] if any(row[name].plain for row in self.rows)]
        below = [name for name in self.below if name in names and console.is_terminal]
        columns = [name for name in names if name not in below]
        header = {name: Text(name, "bold") for name in columns}
        widths = {name: max(row[name].cell_len for row in (header, *self.rows)) for name in columns}
        for row in (header, *self.rows):
            yield _line(self._cell(row[name], name, widths[name]) for name in columns)
            for name in below if row is not header else ():
                head = f"    {name:<{max(map(len, below))}}  "
                room = max(len(head), options.max_width - len(head))
                for part in row[name].wrap(console, room) if row[name].plain else ():
                    yield _line((Text(head), part), between="")
                    head = " " * len(head)

    def _cell(self, cell: Text, name: str, width: int) -> Text:
        space = " " * (width - cell.cell_len)
        return Text(space) + cell if name in self.right else cell + Text(space)


def _line(parts: Iterable[Text], between: str = "  ") -> Text:
    """One line, however long."""
    line = Text(between).join(parts)
    line.rstrip()
    line.no_wrap, line.overflow = True, "ignore"
    return line


def _groups_page(found: Sequence[Document], now_ms: int, scope: Scope) -> RenderableType:
    """A row for each group, with what it means and what to type next."""
    rows = [
        {
            "group": Text(each["fingerprint"], "bold"),
            "open": Text(f"{each['open']:,}"),
            "letters": Text(f"{each['count']:,}" if scope == "all" else ""),
            "class": Text(each["class"]),
            "source": Text(each["source"]),
            "arrived": _span(each["oldestAt"], each["newestAt"], now_ms),
            "why": _plain(each["why"]),
            "place": _plain(each["place"]),
            "means": _plain(each["meaning"]),
            "again": _by_itself(each, now_ms, "by itself, the next "),
            "next": _command(each["next"], indent=0),
        }
        for each in found
    ]
    return _Rows(rows, ("why", "place", "means", "again", "next"))


def _letters_page(letters: Sequence[Document], now_ms: int) -> RenderableType:
    rows = [
        {
            "letter": Text(each["letterId"]),
            "arrived": _ago(each["arrivedAt"], now_ms),
            "status": _word(each["status"]),
            "class": Text(each["class"]),
            "by itself": _by_itself(each, now_ms),
            "why": _plain(each["why"]),
            "says": _glance(each["preview"]),
        }
        for each in letters
    ]
    return _Rows(rows, ("why", "says"))


def _nothing(which: Which, wanted: Document, scope: Scope) -> RenderableType:
    """That there is no such letter, and where there might be one."""
    recent = "arrivedFrom" in wanted and which.newer_than is None
    kind = "open letter" if scope == "open" else "letter"
    since = " of the last seven days" if recent else ""
    if not which.given:
        return Text(f"No {kind}s{since}.")
    hint = "; --newer-than 90d looks further back" if recent else ""
    hint = "; --all shows what is dealt with" if scope == "open" else hint
    return _plain(f"No {kind}{since} fits {which.words()}{hint}.")


def _letter_page(letter: Document, next_command: str, now_ms: int) -> RenderableType:
    facts = table("", "")
    facts.show_header = False
    for name, value in _facts(letter):
        shown = _utc(value) if name.endswith("At") and isinstance(value, int) else _plain(value)
        facts.add_row(name, _word(value) if name == "status" else shown)
        again = _by_itself(letter, now_ms, "tried again by itself ")
        if name == "dueAt" and again.plain:
            facts.add_row("", again)
    history = [
        {"at": Text(_utc(action["at"]))}
        | {name: _plain(action[name]) for name in ("what", "who", "why")}
        for action in letter["history"]
    ]
    lines: list[RenderableType] = [facts, ""]
    lines.append(_Rows(history, ("who", "why")) if history else "No history yet.")
    for name in WHOLE:
        if name in letter:
            lines += ["", f"{name}:", _plain(letter[name])]
    return Group(*lines, "", _command(next_command)) if next_command else Group(*lines)


def _facts(letter: Document) -> Iterator[tuple[str, Any]]:
    for name, value in letter.items():
        match value:
            case dict() if name == "budget":
                yield "redriven", _redriven(letter, value["automatic"], value["byHand"])
            case dict():
                known = {part: each for part, each in value.items() if each is not None}
                yield from ((f"{name} {part}", each) for part, each in known.items())
            case _ if name != "history" and name not in WHOLE and value not in (None, ""):
                yield name, value


def _redriven(letter: Document, automatic: int, by_hand: int) -> str:
    """All letters of one transaction, credit or refund count together."""
    subject = "this transaction" if "attempt" in letter else "this request"
    times = (f"{count} time{'' if count == 1 else 's'}" for count in (automatic, by_hand))
    return "{} so far: {} by itself, {} by hand".format(subject, *times)


def _group_name(group: Document) -> tuple[str, str]:
    return group["fingerprint"], group["class"]


def _next_of_group(group: Document, tail: str) -> str:
    name = f"--group {group['fingerprint']}"
    if not group["open"]:
        return f"{command()} dead-letters list {name} --all{tail}"
    if group["class"] in TRIED_AGAIN and group["source"] in TAKES_AGAIN:
        return f"{command()} dead-letters redrive {name} --dry-run{tail}"
    return f"{command()} dead-letters show {group['sample']}{tail}"


def _next_of_letter(letter: Document, tail: str) -> str:
    if letter["status"] not in OPEN:
        return ""
    again = letter["class"] in TRIED_AGAIN and letter["source"] in TAKES_AGAIN
    verb = "redrive" if again else "discard"
    return f"{command()} dead-letters {verb} {letter['letterId']} --dry-run{tail}"


def _tail(stack: Stack, on: On) -> str:
    """The options without which a command to type would mean another stack."""
    profile = "" if on.profile is None else f" --profile {shlex.quote(on.profile)}"
    return command_options(stack) + profile


def _plain(text: object) -> Text:
    """Text from elsewhere, as it is: no markup, and no character that moves a terminal."""
    return Text(
        "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode()
            for char in str(text)
        )
    )


def _glance(text: str) -> Text:
    """What fits into the row on a terminal; all of it in a pipe."""
    made = _plain(text)
    made.no_wrap, made.overflow = True, "ellipsis"
    return made


def _command(text: str, indent: int = 2) -> Text:
    """A command to paste: never folded."""
    return Text(f"{' ' * indent}{text}", no_wrap=True, overflow="ignore")


def _word(word: str, *, dry_run: bool = False) -> Text:
    would = "would be " if dry_run and word in DONE else ""
    return Text(f"{would}{word}", style=COLOURS.get(word, ""))


def _number(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _utc(at_ms: int) -> str:
    return rfc3339(at_ms)[:19].replace("T", " ")


def _ago(at_ms: int, now_ms: int) -> Text:
    return Text(f"{_age(at_ms, now_ms)} ago")


def _span(oldest_ms: int, newest_ms: int, now_ms: int) -> Text:
    """When the first of some letters arrived, and the last."""
    oldest, newest = _age(oldest_ms, now_ms), _age(newest_ms, now_ms)
    return Text(f"{newest} ago" if oldest == newest else f"{oldest} to {newest} ago")


def _by_itself(letter: Document, now_ms: int, before: str = "") -> Text:
    """When the clock redrives what waits for it; the clock looks once a minute."""
    due_at_ms = letter.get("dueAt")
    if due_at_ms is None or letter.get("status") == LetterStatus.PARKED:
        return Text()
    soon = due_at_ms <= now_ms
    return Text(f"{before}{'within 1m' if soon else f'in {_age(now_ms, due_at_ms)}'}")


def _age(since_ms: int, now_ms: int) -> str:
    minutes, seconds = divmod(max(0, now_ms - since_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m" if minutes else f"{seconds}s"


def _view(document: Document) -> Document:
    """What scripts get: the desk's own members, with moments in RFC 3339."""
    return {name: _member(name, value) for name, value in document.items()}


def _member(name: str, value: Any) -> Any:
    match value:
        case dict():
            return _view(value)
        case list():
            return [_member(name, each) for each in value]
        case int() if name == "at" or name.endswith("At"):
            return rfc3339(value)
        case _:
            return value


@contextmanager
def _sink(path: str) -> Iterator[TextIO]:
    """Where lines go: the standard output, or a file that is its owner's and appears whole."""
    target = Path(path)
    if path == "-":
        yield sys.stdout
    elif target.exists() and not target.is_file():  # a device or a pipe: not to be replaced
        with _opened(target, 0) as sink:
            yield sink
    else:
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        with _opened(fresh, os.O_CREAT | os.O_EXCL) as sink:  # nobody may have put one there
            try:
                yield sink
                sink.flush()
                fresh.replace(target)
            finally:
                fresh.unlink(missing_ok=True)


def _opened(path: Path, flags: int) -> TextIO:
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | flags, 0o600), "w", encoding="utf-8")
    except OSError as error:
        raise Problem(f"cannot write {path}: {error.strerror}") from error


def _now_ms() -> int:
    return int(time.time() * 1000)
