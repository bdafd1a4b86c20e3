"""A warm function's memory is that of one which did its work; one that did not is an error."""

from collections.abc import Iterator

import pytest

from bench import cold
from tests.engine import Aws
from wakala.output import Problem


@pytest.fixture(autouse=True)
def _few(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cold, "INVOCATIONS", 2)
    with aws.reached():
        yield


def test_a_warm_function_has_done_its_work_before_it_is_measured() -> None:
    sizes = cold.warm_megabytes()
    assert sizes.keys() == {"ReconcileFunction", "RefundFunction", "IngestFunction"}
    assert all(20 < size < 500 for size in sizes.values())  # a bare interpreter, and no leak


def test_a_function_that_raises_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cold.FUNCTIONS, "ReconcileFunction", "relay.handler")
    with pytest.raises(Problem, match=r"relay\.handler failed"):
        cold.warm_megabytes()


def test_a_function_that_leaves_work_undone_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = cold.WARM.replace("handle(json.loads(event), context)", "json.loads(event)")
    monkeypatch.setattr(cold, "WARM", idle)
    with pytest.raises(Problem, match="ReconcileFunction left"):
        cold.warm_megabytes()
