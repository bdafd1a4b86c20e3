"""DynamoDB's expressions: conditions, updates, projections and key conditions.

`grammar` makes a tree of a text; `tree` is asked of items.
"""

from tests.simulation.cloud.expressions.grammar import condition, projection, update
from tests.simulation.cloud.expressions.tree import (
    AllOf,
    AnyOf,
    Between,
    Change,
    Comparison,
    Condition,
    Function,
    Given,
    In,
    Literal,
    Not,
    Parsed,
    Path,
    Size,
    Steps,
    Update,
    added,
)

__all__ = [
    "AllOf",
    "AnyOf",
    "Between",
    "Change",
    "Comparison",
    "Condition",
    "Function",
    "Given",
    "In",
    "Literal",
    "Not",
    "Parsed",
    "Path",
    "Size",
    "Steps",
    "Update",
    "added",
    "condition",
    "projection",
    "update",
]
