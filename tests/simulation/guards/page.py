"""docs/proof-guards.md: every guard, what it keeps, and which test goes red without it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.simulation.guards.code import MODULES
from tests.simulation.guards.sources import module_name
from tests.simulation.guards.texts import HEAD, KEEPS, PROTECTS
from tests.template import ROOT

PAGE = ROOT / "docs" / "proof-guards.md"
CONDITIONS = "conditions"
UNCONDITIONAL = "(no condition)"


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """Where a guard is told of: a module or `conditions`, who, on what, and the guard's text."""

    part: str
    who: str
    what: str
    text: str

    def names(self) -> tuple[str, ...]:
        """What it is, from who to the guard's text."""
        return tuple(each for each in (self.who, self.what, self.text) if each)

    def cells(self) -> str:
        """The first cells of its line, which name it."""
        return "| " + " | ".join(map(_code, self.names())) + " |"


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one way to break a guard; `redundant`: why nothing can go red."""

    caught_by: str | None
    timed_out: bool
    redundant: str | None

    def shown(self) -> str:
        """In Markdown."""
        if self.caught_by is not None and "::" in self.caught_by:
            file, name = self.caught_by.split("::")[:2]
            shown = f"[`{name.split('[')[0]}`](../{file})"
            return f"{shown} comes to no end" if self.timed_out else shown
        if self.caught_by is not None:
            return f"does not even load {self.caught_by}"
        if self.timed_out:
            return "something comes to no end"
        return f"**redundant:** {self.redundant}" if self.redundant else "**nothing**"


@dataclass
class Page:
    """Rows, and of each the ways to break it and what became of them, as shown."""

    fates: dict[Row, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> "Page":
        """As it was written last."""
        page = cls()
        if not PAGE.exists():
            return page
        part = ""
        for line in PAGE.read_text(encoding="utf-8").splitlines():
            if line.startswith("## "):
                title = line.removeprefix("## ").strip("`")
                part = CONDITIONS if title == TITLE else title
            elif line.startswith("| `"):
                cells = [_text(each) for each in re.split(r"(?<!\\) \| ", line[2:-2])]
                row, told = _row(part, cells), cells[-1]
                page.add(row)
                for each in told.split("<br>"):
                    changes, arrow, end = each.partition(" → ")
                    if arrow:
                        page.fates[row] |= dict.fromkeys(changes.split(", "), end)
        return page

    def add(self, row: Row) -> None:
        """There is such a guard."""
        self.fates.setdefault(row, {})

    def keep(self, known: Iterable[tuple[Row, str]]) -> None:
        """Forget what is no more; and whatever nothing had caught, so that it is tried again."""
        wanted = set(known)
        rows = {row for row, _ in wanted}
        self.fates = {
            row: {
                change: end
                for change, end in fates.items()
                if (row, plain(change)) in {(r, plain(c)) for r, c in wanted if r == row}
                and "**" not in end
            }
            for row, fates in self.fates.items()
            if row in rows or row.text == UNCONDITIONAL
        }

    def tells(self, row: Row, change: str) -> bool:
        """Whether its end is known."""
        return plain(change) in self.fates.get(row, {})

    def tell(self, row: Row, change: str, fate: Fate) -> None:
        """What became of it."""
        self.fates.setdefault(row, {})[plain(change)] = fate.shown()

    def show(self) -> None:
        """Print what is known."""
        for row, fates in sorted(self.fates.items()):
            for change, end in fates.items():
                print(f"{row.cells()} {change} → {end}")

    def text(self) -> str:
        """The whole page."""
        parts: dict[str, list[Row]] = defaultdict(list)
        for row in sorted(self.fates):
            parts[row.part].append(row)
        lines = [HEAD.format(**self.counts()), f"## {TITLE}", "", *self._conditions(parts)]
        for path in MODULES:
            name = module_name(path)
            if name in parts:
                lines += ["", f"## `{name}`", "", PROTECTS[name], ""]
                lines += ["| In | Guard | Broken so → goes red |", "|---|---|---|"]
                lines += [f"{row.cells()} {self._told(row)} |" for row in parts[name]]
        return "\n".join(lines) + "\n"

    def counts(self) -> Mapping[str, str]:
        """Figures for the head."""
        ends = [end for fates in self.fates.values() for end in fates.values()]
        clauses = [row for row in self.fates if row.part == CONDITIONS]
        figures = {
            "clauses": sum(row.text != UNCONDITIONAL for row in clauses),
            "guards": len(self.fates) - len(clauses),
            "mutants": len(ends),
            "caught": sum(end[0] != "*" and "comes to no end" not in end for end in ends),
            "late": sum("comes to no end" in end for end in ends),
            "redundant": sum("**redundant" in end for end in ends),
            "nothing": sum("**nothing" in end for end in ends),
        }
        return {name: f"{number:,}" for name, number in figures.items()}

    def _conditions(self, parts: Mapping[str, list[Row]]) -> Iterable[str]:
        yield "| Who writes | What | Clause | It keeps | Broken so → goes red |"
        yield "|---|---|---|---|---|"
        for row in parts[CONDITIONS]:
            yield f"{row.cells()} {keeps(row)} | {self._told(row)} |"

    def _told(self, row: Row) -> str:
        by_end: dict[str, list[str]] = defaultdict(list)
        for change, end in self.fates[row].items():
            by_end[end].append(change)
        told = [f"{', '.join(changes)} → {end}" for end, changes in by_end.items()]
        return "<br>".join(told).replace("|", "\\|") or "not broken: there is nothing to take away"


TITLE = "Conditions of writes"


def keeps(row: Row) -> str:
    """What a clause is for: by who writes it and to what, or for all who write it."""
    table = row.what.split(" ", 1)[1]
    for key in ((row.who, row.what, row.text), (row.who, table, row.text), ("", table, row.text)):
        if key in KEEPS:
            return KEEPS[key]
    raise LookupError(f"tests/simulation/guards/texts.py: KEEPS says nothing of {row}")


def _row(part: str, cells: list[str]) -> Row:
    if part == CONDITIONS:
        return Row(part, cells[0], cells[1], cells[2])
    return Row(part, cells[0], "", cells[1])


def named_test(end: str) -> str | None:
    """`file::test` of an end as shown; None where no test was red by itself."""
    found = re.fullmatch(r"\[`(\w+)`\]\(\.\./([\w/]+\.py)\)", end)
    return f"{found[2]}::{found[1]}" if found else None


def plain(change: str) -> str:
    """As a way to break something stands on the page, where a comma parts two of them."""
    return change.replace(", ", ",")


def _code(text: str) -> str:
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}".replace("|", "\\|")


def _text(cell: str) -> str:
    plain = cell.replace("\\|", "|")
    for mark in ("``", "`"):
        if plain.startswith(mark) and plain.endswith(mark) and plain.count(mark) == 2:
            return plain.removeprefix(mark).removesuffix(mark)
    return plain
