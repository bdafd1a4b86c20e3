"""C12, C39: whatever befalls any AWS call of any function, all ends as if it had not.

The calls are those that the functions are seen to make; that none is missing their roles say.
"""

import pytest

from tests.simulation.crashes.crash_points import Tried, tried
from tests.simulation.crashes.grants import asked, client_calls, granted
from tests.simulation.crashes.line import Call, on_line, stack
from tests.simulation.crashes.pairs import contents
from tests.simulation.crashes.stories import STORIES
from tests.template import ROOT

SHOWN_MAX = 3


@pytest.fixture(scope="module")
def known() -> dict[str, Tried]:
    """What has been tried already, by story."""
    return {}


def of(name: str, known: dict[str, Tried]) -> Tried:
    """What was tried of a story, now or before."""
    if name not in known:
        known[name] = tried(STORIES[name])
    return known[name]


@pytest.mark.parametrize("name", STORIES)
def test_whatever_befalls_any_call_a_story_ends_the_same(
    name: str, known: dict[str, Tried]
) -> None:
    result = of(name, known)

    assert result.points.total() > len(result.calls) > 0
    shown = "\n\n".join(result.differences[:SHOWN_MAX])
    assert not result.differences, f"after {len(result.differences)} points, as these:\n\n{shown}"


def test_every_call_that_a_role_allows_is_tried_and_no_other_is_made(
    known: dict[str, Tried],
) -> None:
    """P11, and so that a new call, which needs a grant, cannot go untried."""
    calls: list[Call] = [call for name in STORIES for call in of(name, known).calls]

    assert asked(calls) == granted()


def test_every_line_of_ours_that_calls_a_client_is_tried(known: dict[str, Tried]) -> None:
    sites = {site for name in STORIES for site in of(name, known).sites}
    untried = [
        (file, first, method)
        for file, first, last, method in client_calls()
        if not any(name == file and first <= line <= last for name, line in sites)
    ]

    assert not untried


def test_whoever_works_in_lanes_does_so_in_every_order_of_three(known: dict[str, Tried]) -> None:
    lanes = set().union(*(of(name, known).lanes for name in STORIES))
    working = {function for function, _, _ in lanes}

    assert working == {"ingest", "reconcile", "refund", "triage-desk"}
    assert lanes >= {(function, 3, order) for function in working for order in range(6)}


def test_every_handler_is_driven(known: dict[str, Tried]) -> None:
    found = {
        f"{path.parent.name}.{path.stem}.handle"
        for path in (ROOT / "services").glob("*/*handler.py")
    }
    driven = {call.function for name in STORIES for call in of(name, known).calls}

    assert {stack().functions[name].handler for name in driven} == found


@pytest.mark.parametrize("name", STORIES)
def test_going_back_and_on_again_comes_to_the_same_to_the_letter(name: str) -> None:
    """So that a difference comes of what befell, and of nothing that was left from before."""
    ends = []
    with on_line() as line:
        for act in STORIES[name].before:
            act(line)
        begin = line.snapshot()
        for _ in range(2):
            begin()
            for act in STORIES[name].acts:
                act(line)
            ends.append((contents(line), line.now_ms, [*line.sent], [*line.calls]))

    assert ends[0] == ends[1]


def test_what_is_told_at_least_once_is_at_times_told_again(known: dict[str, Tried]) -> None:
    """Otherwise nothing was redelivered, and nothing is shown."""
    assert sum(of(name, known).told_again for name in STORIES) > 100
