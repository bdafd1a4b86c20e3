"""What `make bench` writes, strictly read: medians of rounds, and one line for another document."""

from typing import Any

import pytest

from wakala.baseline import Baseline, Row, Target, read_baseline
from wakala.output import Problem

type Document = dict[str, Any]


def run(**changes: object) -> Document:
    """A run of ours under one load."""
    return {
        "shape": "branch",
        "backend": "ours",
        "perSecond": 300.0,
        "calls": 0.23,
        "writeUnits": None,
        "readUnits": None,
        "duplicates": 0,
        "overdrawn": 0,
        "open": 0,
    } | changes


def figure(**changes: object) -> Document:
    """A target that is met."""
    return {"name": "calls", "value": 0.2, "side": "at most", "target": 0.25, "met": True} | changes


def document(runs: object, figures: object) -> Document:
    """The whole of it."""
    return {"number": 300, "rounds": 3, "seed": 1, "runs": runs, "figures": figures}


def test_rounds_come_to_their_median_and_faults_to_their_sum() -> None:
    runs = [
        run(perSecond=100, calls=0.1, duplicates=1, open=2),
        run(shape="hot", writeUnits=9),
        run(perSecond=900, calls=0.9, writeUnits=7.5, readUnits=1, duplicates=3, overdrawn=1),
        run(perSecond=300, calls=0.2, writeUnits=8.5, readUnits=2),
    ]
    assert read_baseline(document(runs, [figure()])) == Baseline(
        number=300,
        rounds=3,
        seed=1,
        rows=(
            Row("branch", "ours", 300, 0.2, 8.0, 1.5, duplicates=4, overdrawn=1, open=2),
            Row("hot", "ours", 300.0, 0.23, 9, None, duplicates=0, overdrawn=0, open=0),
        ),
        targets=(Target("calls", 0.2, "at most", 0.25, met=True),),
    )


def test_loads_keep_the_order_in_which_they_ran() -> None:
    runs = [run(shape=shape) for shape in ("uniform", "branch", "uniform", "hot")]
    assert read_baseline(document(runs, [figure()])).shapes == ("uniform", "branch", "hot")


NO_NUMBER = "must be a number, 0 or more"


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ([], "must be an object"),
        ({"figures": [figure()]}, "runs must be a list of objects, one or more"),
        (document([], [figure()]), "runs must be a list of objects, one or more"),
        (document(["ours"], [figure()]), "runs must be a list of objects, one or more"),
        (document([run()], "none"), "figures must be a list of objects, one or more"),
        (document([run()], [figure()]) | {"seed": "1"}, f"seed {NO_NUMBER}"),
        (document([run(), run(shape=None)], [figure()]), "runs[1].shape must be a text"),
        (document([run(backend="")], [figure()]), "runs[0].backend must be a text"),
        (document([run(calls="1")], [figure()]), f"runs of branch, ours: calls {NO_NUMBER}"),
        (document([run(calls=True)], [figure()]), f"runs of branch, ours: calls {NO_NUMBER}"),
        (document([run(calls=None)], [figure()]), f"runs of branch, ours: calls {NO_NUMBER}"),
        (document([run(open=-1)], [figure()]), f"runs of branch, ours: open {NO_NUMBER}"),
        (
            document([run(writeUnits={"a": 1})], [figure()]),
            f"runs of branch, ours: writeUnits {NO_NUMBER}",
        ),
        (
            document([run(perSecond=float("nan"))], [figure()]),
            f"runs of branch, ours: perSecond {NO_NUMBER}",
        ),
        (
            document([run(perSecond=float("inf"))], [figure()]),
            f"runs of branch, ours: perSecond {NO_NUMBER}",
        ),
        (
            document([run()], [figure(), figure(side="near")]),
            "figures[1].side must be one of at least, at most",
        ),
        (document([run()], [figure(met="yes")]), "figures[0].met must be true or false"),
        (document([run()], [figure(value=None)]), f"figures[0].value {NO_NUMBER}"),
    ],
)
def test_another_document_gets_one_line(broken: object, line: str) -> None:
    with pytest.raises(Problem) as caught:
        read_baseline(broken)
    assert str(caught.value) == f"the file of `make bench`: {line}"
