"""Tables lag too: a read that is not consistent any more is found where it breaks a promise.

The other four reads of that kind may be stale without harm, since a condition of the write that
follows looks again.
"""

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.histories.plan import Fault, Item, plan
from tests.simulation.histories.play import STEPS, play
from wallet_ledger.aws import letters, transactions

SEEDS = range(1, 61)

FOUND_BY = {
    (transactions.DynamoAcceptedTransactions, "find"): "P6",
    (letters.DynamoSubjects, "row"): "P8",
}
"""Where a read forgets to be consistent, and the promise that breaks."""


class _Forgetful:
    """A client whose reads see the past."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get_item(self, **asked: Any) -> Any:
        assert asked.pop("ConsistentRead")
        return self._client.get_item(**asked)


@pytest.mark.parametrize(("adapter", "method"), FOUND_BY)
def test_a_read_that_is_consistent_no_more_is_found(
    adapter: type[Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(self: Any, *asked: Any) -> Any:
        other = copy.copy(self)
        other._client = _Forgetful(self._client)
        return read(other, *asked)

    read = getattr(adapter, method)
    monkeypatch.setattr(adapter, method, stale)

    for seed in SEEDS:
        history = plan(seed, STEPS)
        lags = [Item(at, Fault.LAGGING, seed) for at in (0, STEPS // 2)]
        items = sorted((*history.items, *lags), key=lambda item: item.at)
        played = play(replace(history, items=tuple(items)))
        if played.failed:
            assert played.broken == FOUND_BY[adapter, method], played.what
            return
    pytest.fail(f"{adapter.__name__}.{method} may be stale, and nobody notices")
