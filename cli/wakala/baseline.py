"""What `make bench` found, read from its JSON: the article's algorithm, a naive one, and ours."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wakala.output import Problem

OURS = "ours"

SIDES = frozenset({"at least", "at most"})

NUMBER_END = 1e15
"""No figure reaches it; what does, or is not finite, is a broken file."""


@dataclass(frozen=True, slots=True)
class Row:
    """A backend under one shape of load: medians of its runs, and what went wrong in all of them.

    `calls` and units are for each transaction; units are None where nothing was weighed.
    """

    shape: str
    backend: str
    per_second: float
    calls: float
    write_units: float | None
    read_units: float | None
    duplicates: int
    overdrawn: int
    open: int


@dataclass(frozen=True, slots=True)
class Target:
    """A figure with what it must come to: `side` is `at least` or `at most`."""

    name: str
    value: float
    side: str
    target: float
    met: bool


@dataclass(frozen=True, slots=True)
class Baseline:
    """A comparison: `number` debits of each load, each backend `rounds` times."""

    number: int
    rounds: int
    seed: int
    rows: tuple[Row, ...]
    targets: tuple[Target, ...]

    @property
    def shapes(self) -> tuple[str, ...]:
        """The shapes of load, in their order."""
        return tuple(dict.fromkeys(row.shape for row in self.rows))


def read_baseline(document: object) -> Baseline:
    """The comparison in the JSON of `make bench`. Problem, in one line, for another document."""
    if not isinstance(document, Mapping):
        raise _problem("must be an object")
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for at, run in enumerate(_objects(document, "runs")):
        place = f"runs[{at}]."
        groups.setdefault((_text(run, "shape", place), _text(run, "backend", place)), []).append(
            run
        )
    return Baseline(
        int(_number(document, "number")),
        int(_number(document, "rounds")),
        int(_number(document, "seed")),
        tuple(_row(shape, backend, runs) for (shape, backend), runs in groups.items()),
        tuple(
            _target(each, f"figures[{at}].")
            for at, each in enumerate(_objects(document, "figures"))
        ),
    )


def _row(shape: str, backend: str, runs: Sequence[Mapping[str, Any]]) -> Row:
    place = f"runs of {shape}, {backend}: "

    def median(key: str) -> float:
        return statistics.median(_number(run, key, place) for run in runs)

    def weighed(key: str) -> float | None:
        numbers = [_number(run, key, place) for run in runs if run.get(key) is not None]
        return statistics.median(numbers) if numbers else None

    def in_all(key: str) -> int:
        return sum(int(_number(run, key, place)) for run in runs)

    return Row(
        shape,
        backend,
        median("perSecond"),
        median("calls"),
        weighed("writeUnits"),
        weighed("readUnits"),
        in_all("duplicates"),
        in_all("overdrawn"),
        in_all("open"),
    )


def _target(figure: Mapping[str, Any], place: str) -> Target:
    side = _text(figure, "side", place)
    if side not in SIDES:
        raise _problem(f"{place}side must be one of {', '.join(sorted(SIDES))}")
    met = figure.get("met")
    if not isinstance(met, bool):
        raise _problem(f"{place}met must be true or false")
    return Target(
        _text(figure, "name", place),
        _number(figure, "value", place),
        side,
        _number(figure, "target", place),
        met,
    )


def _objects(document: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    value = document.get(key)
    if not value or not isinstance(value, list) or not all(isinstance(x, Mapping) for x in value):
        raise _problem(f"{key} must be a list of objects, one or more")
    return value


def _text(values: Mapping[str, Any], key: str, place: str) -> str:
    value = values.get(key)
    if not isinstance(value, str) or not value:
        raise _problem(f"{place}{key} must be a text")
    return value


def _number(values: Mapping[str, Any], key: str, place: str = "") -> float:
    value = values.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < NUMBER_END:
        return value
    raise _problem(f"{place}{key} must be a number, 0 or more")


def _problem(what: str) -> Problem:
    return Problem(f"the file of `make bench`: {what}")
