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
from rich.console import Console, Group, RenderableType
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
UNREMARKABLE = frozenset({"redriven", "discarded", LEFT})
"""Outcomes that are only counted where there are many letters."""
AGAIN = frozenset({LEFT, UNANSWERED, CONTENDED})
"""Outcomes after which the same command fares better."""
WHOLE = ("body", "record")
"""Members of a revealed letter that are shown by themselves, below all others."""
PIPED_WIDTH = 10_000_000
"""A pipe has no width: a row is a line there, whole."""
UNDONE = 3
"""The exit status of a command that left something undone."""

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
    stack = on.open()
    with progress.status("Reading letters") as status:
        found = Desk(stack, CLOCK).groups(
            _scope(wanted, every=all),
            wanted,
            lambda count: status.update(f"Reading letters: {count:,}"),
        )
    tail = _tail(stack, on)
    found = [each | {"next": _next_of_group(each, tail)} for each in found]
    _show(json, {"groups": [_view(each) for each in found]}, _groups_table(found, now_ms))


@app.command(name="list")
def list_letters(
    *,
    which: Which = EVERY,
    all: All = False,
    limit: Annotated[int, Parameter(help="Show so many, the oldest.")] = 50,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """List letters, oldest first, with a masked glimpse of what each says.

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
    lines: list[RenderableType] = [_letters_table(shown, now_ms)]
    if more:
        lines.append(f"\n… and {more:,} more: --limit {len(letters)} shows them all")
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
    _show(json, _view(letter), _letter_page(letter, _next_of_letter(letter, _tail(stack, on))))


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

    Exit status 0: all was done, or nothing was to be done. 1: a problem, in one line. 3: something
    is left: a letter with its redrives used up, or one that others write to this moment, or one
    that cannot be redriven. 130: interrupted.

    For example:

        wakala dead-letters redrive --group 5f0c1a2b3d4e --dry-run
        wakala dead-letters redrive --group 5f0c1a2b3d4e --why 'fixed in 1.4.2'
        wakala dead-letters redrive --class NEVER_RAN --older-than 30m --why outage --yes --rate 50

    Parameters
    ----------
    ids
        Letters, as `list` shows them.
    """
    order = Order("redrive", _reason(why, dry_run=dry_run), force, dry_run)
    _move(order, _Chosen(ids, which, everything), rate, on, yes=yes, json=json)


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
    closed instead. To interrupt it is safe, and so is the same command again.

    Exit status 0: all was done, or nothing was to be done. 1: a problem, in one line. 3: something
    is left: a letter that others write to this moment, or one that was redriven before. 130:
    interrupted.

    For example:

        wakala dead-letters discard 0123456789abcdef0123456789abcdef --why 'no such request'
        wakala dead-letters discard --group 5f0c1a2b3d4e --dry-run
        wakala dead-letters discard --class POISON --older-than 2d --why 'ticket 4711' --yes

    Parameters
    ----------
    ids
        Letters, as `list` shows them.
    """
    order = Order("discard", _reason(why, dry_run=dry_run), False, dry_run)
    _move(order, _Chosen(ids, which, everything), rate, on, yes=yes, json=json)


@app.command
def export(
    *,
    file: File,
    which: Which = EVERY,
    all: All = False,
    reveal: Reveal = False,
    why: RevealWhy = None,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Write letters to a file, one line of JSON for each, oldest first.

    The file is its owner's alone, and appears when it is whole. With --reveal each line has the
    letter's whole record, and its history tells that you saw it.

    For example:

        wakala dead-letters export --out letters.ndjson --all
        wakala dead-letters export --out - --group 5f0c1a2b3d4e | jq .preview
        wakala dead-letters export --out case.ndjson --agent AG-001 --reveal --why 'ticket 4711'
    """
    if file.startswith("-") and file != "-":
        raise Problem(f"--out {file!r}: a file, or - for the standard output")
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
    """What is to be moved, as it was said."""

    ids: Sequence[str]
    which: Which
    everything: bool

    def filter(self, now_ms: int) -> Document | None:
        """What the desk is asked for, None for ids. Problem where it is not clear what is meant."""
        said = [bool(self.ids), self.which.given, self.everything]
        if not any(said):
            raise Problem("which letters? give ids, or a filter such as --group, or --everything")
        if sum(said) > 1:
            raise Problem("give ids, or filters, or --everything: only one of them")
        return None if self.ids else self.which.filter(now_ms)


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
    wanted, ids = chosen.filter(_now_ms()), _ids(chosen.ids)
    desk = Desk(on.open(), CLOCK)
    letters = _named(desk, ids) if wanted is None else _letters(desk, wanted)
    if len(letters) > 1 and not yes and not order.dry_run:
        _confirm(order.verb, letters)
    move = Move(desk, order, letters, rate)
    try:
        with progress_bar(order.verb, len(letters)) as advance:
            move.run(advance)
    finally:  # whoever interrupts it, or whatever fails: what was done so far is told
        _show(json, _move_view(move), _move_page(move))
    if move.undone():
        raise SystemExit(UNDONE)


def _confirm(verb: Verb, letters: Sequence[Document]) -> None:
    """Ask on a terminal. Problem where the answer is no, or nobody is there to answer."""
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
        raise Problem(f"nothing was done: no {verb} of {what}")


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


def _move_page(move: Move) -> RenderableType:
    results = move.results()
    if not results:
        return Text("No open letter fits: nothing is to be done.")
    every = move.order.dry_run or len(results) <= SHOWN_MAX
    rows = table("letter", "at", "outcome", "note", "says")
    rows.columns[0].no_wrap = True
    for letter, each in zip(move.letters, results, strict=True):
        if every or each.outcome not in UNREMARKABLE:
            at = _utc(letter.get("sentAt") or letter["arrivedAt"])
            said = _glance(letter["preview"])
            rows.add_row(each.letter_id, at, _word(each.outcome), _plain(each.note), said)
    counts = Counter(each.outcome for each in results)
    kinds = ", ".join(f"{count:,} {outcome}" for outcome, count in counts.most_common())
    lines: list[RenderableType] = [rows, ""] if rows.row_count else []
    lines.append(Text(f"{_number(len(results), 'letter')}: {kinds}"))
    if move.order.dry_run:
        lines.append(Text("Nothing was done: the same with --why, and no --dry-run, does it."))
    elif any(each.outcome in AGAIN for each in results):
        lines.append(Text("Something is left: the same command again tries only that."))
    elif move.undone():
        lines.append(Text("Not all could be done, and the same command again cannot do it either."))
    return Group(*lines)


# --- what a person sees ----------------------------------------------------------------------


def _show(as_json: bool, result: object, page: RenderableType) -> None:
    if as_json:
        show(as_json, result, lambda: "")
    else:
        console = out if out.is_terminal else Console(highlight=False, width=PIPED_WIDTH)
        console.print(page, crop=False)


def _groups_table(found: Sequence[Document], now_ms: int) -> RenderableType:
    """A row for each group, and below, in the same order, what it means and what to type."""
    if not found:
        return Text("There is no such letter.")
    numbers = frozenset({"open", "letters", "oldest", "newest"})
    columns = ("group", "open", "letters", "class", "source", "why", "place", "oldest", "newest")
    rows = table(*columns, right=numbers)
    for column in rows.columns:
        column.no_wrap = column.header not in ("why", "place")
    lines: list[RenderableType] = [rows]
    for each in found:
        rows.add_row(
            each["fingerprint"],
            f"{each['open']:,}",
            f"{each['count']:,}",
            each["class"],
            each["source"],
            _plain(each["why"]),
            _plain(each["place"]),
            _age(each["oldestAt"], now_ms),
            _age(each["newestAt"], now_ms),
        )
        lines += ["", _plain(f"{each['fingerprint']}: {each['meaning']}"), _command(each["next"])]
    return Group(*lines)


def _letters_table(letters: Sequence[Document], now_ms: int) -> RenderableType:
    if not letters:
        return Text("There is no such letter.")
    rows = table("letter", "age", "status", "class", "why", "says", right=frozenset({"age"}))
    for column in rows.columns:
        column.no_wrap = column.header not in ("why", "says")
    for each in letters:
        rows.add_row(
            each["letterId"],
            _age(each.get("sentAt") or each["arrivedAt"], now_ms),
            _word(each["status"]),
            each["class"],
            _plain(each["why"]),
            _glance(each["preview"]),
        )
    return rows


def _letter_page(letter: Document, next_command: str) -> RenderableType:
    facts = table("", "")
    facts.show_header = False
    for name, value in _facts(letter):
        shown = _utc(value) if name.endswith("At") and isinstance(value, int) else _plain(value)
        facts.add_row(name, _word(value) if name == "status" else shown)
    history = table("at", "who", "what", "why")
    for action in letter["history"]:
        words = (_plain(action[name]) for name in ("who", "what", "why"))
        history.add_row(_utc(action["at"]), *words)
    lines: list[RenderableType] = [facts, "", history if history.row_count else "No history yet."]
    for name in WHOLE:
        if name in letter:
            lines += ["", f"{name}:", _plain(letter[name])]
    return Group(*lines, "", _command(next_command)) if next_command else Group(*lines)


def _facts(letter: Document) -> Iterator[tuple[str, Any]]:
    for name, value in letter.items():
        match value:
            case dict() if name == "budget":
                yield "redriven", f"{value['automatic']} times by itself, {value['byHand']} by hand"
            case dict():
                yield from ((f"{name} {part}", each) for part, each in value.items())
            case _ if name != "history" and name not in WHOLE and value not in (None, ""):
                yield name, value


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


def _command(text: str) -> Text:
    """A command to paste: never folded."""
    return Text(f"  {text}", no_wrap=True, overflow="ignore")


def _word(word: str) -> Text:
    return Text(word, style=COLOURS.get(word, ""))


def _number(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _utc(at_ms: int) -> str:
    return rfc3339(at_ms)[:19].replace("T", " ")


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
