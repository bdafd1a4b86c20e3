"""The functions' own handlers, unchanged, whose every call stops at the scheduler."""

from functools import cache

from tests.simulation.cloud.clients import made_with
from tests.simulation.cloud.functions import Handler, import_handlers
from tests.simulation.cloud.stack import Stack
from tests.simulation.histories import processes


def parameters(retention_days: int, budget_ms: int) -> dict[str, str]:
    """Of the deployer's parameters, those that are not as by default."""
    return {
        "RetentionDays": str(retention_days),
        "LatencyBudgetMs": str(budget_ms),
        # Histories are short: a few messages hold the sweep back, and a few rows are its fill.
        "SweepBacklogMax": "3",
        "SweepRowsMax": "2",
    }


@cache
def handlers(retention_days: int, budget_ms: int) -> dict[str, Handler]:
    """Each handler, imported afresh with the environment that the template gives it."""
    with made_with(processes.attach):
        return import_handlers(Stack(parameters(retention_days, budget_ms)).functions.values())
