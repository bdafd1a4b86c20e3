"""What an expression says, asked of an item with the names and values of a request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.cloud import values
from tests.simulation.cloud.errors import AwsError, Json, invalid

ORDERED = frozenset({"S", "N", "B"})

type Names = Mapping[str, str]
type Values = Mapping[str, Json]
type Steps = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """What a request says the placeholders stand for."""

    names: Names
    values: Values


@dataclass(frozen=True, slots=True)
class Path:
    """Where in an item something is."""

    steps: Steps

    def resolved(self, given: Given) -> Steps:
        """The steps, with names in place of their placeholders."""
        return tuple(
            given.names[step] if isinstance(step, str) and step[0] == "#" else step
            for step in self.steps
        )

    def of(self, item: Json, given: Given) -> Json | None:
        """What is there."""
        first = self.steps[0]
        name = given.names[first] if first[0] == "#" else first  # type: ignore[index]
        found: Json | None = item.get(name)  # type: ignore[arg-type]
        if len(self.steps) > 1:
            for step in self.resolved(given)[1:]:
                found = None if found is None else _member(found, step)
        return found


@dataclass(frozen=True, slots=True)
class Literal:
    """A value of the request."""

    name: str

    def of(self, item: Json, given: Given) -> Json | None:
        """The same for every item."""
        return given.values[self.name]


@dataclass(frozen=True, slots=True)
class Size:
    """How long something is."""

    path: Path

    def of(self, item: Json, given: Given) -> Json | None:
        """A number, or nothing where there is nothing that has a length."""
        found = self.path.of(item, given)
        length = None if found is None else values.length_of(found)
        return None if length is None else {"N": str(length)}


type Operand = Path | Literal | Size


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left sign right`."""

    sign: str
    left: Operand
    right: Operand

    def holds(self, item: Json, given: Given) -> bool:
        """Values of two kinds are unequal, and neither is above the other."""
        left, right = self.left.of(item, given), self.right.of(item, given)
        if left is None or right is None:
            return self.sign == "<>"
        if self.sign == "=":
            return left == right
        if self.sign == "<>":
            return left != right
        return in_order(left, self.sign, right)


def in_order(left: Json, sign: str, right: Json) -> bool:
    """Whether `<`, `<=`, `>` or `>=` holds; it never does between two kinds."""
    kind = values.kind_of(left)
    if kind != values.kind_of(right) or kind not in ORDERED:
        return False
    low: Any = values.comparable(left)
    high: Any = values.comparable(right)
    match sign:
        case "<":
            return bool(low < high)
        case "<=":
            return bool(low <= high)
        case ">":
            return bool(low > high)
        case _:
            return bool(low >= high)


@dataclass(frozen=True, slots=True)
class Between:
    """`operand BETWEEN low AND high`, both included."""

    operand: Operand
    low: Operand
    high: Operand

    def holds(self, item: Json, given: Given) -> bool:
        """Only among values of one kind."""
        found, low, high = (each.of(item, given) for each in (self.operand, self.low, self.high))
        if found is None or low is None or high is None:
            return False
        return in_order(low, "<=", found) and in_order(found, "<=", high)


@dataclass(frozen=True, slots=True)
class In:
    """`operand IN (a, b, …)`."""

    operand: Operand
    options: tuple[Operand, ...]

    def holds(self, item: Json, given: Given) -> bool:
        """Equal to one of them."""
        found = self.operand.of(item, given)
        return found is not None and any(each.of(item, given) == found for each in self.options)


@dataclass(frozen=True, slots=True)
class Function:
    """`attribute_exists`, `attribute_not_exists`, `attribute_type`, `begins_with`, `contains`."""

    name: str
    path: Operand
    wanted: Operand | None

    def holds(self, item: Json, given: Given) -> bool:
        """As the function of this name says."""
        found = self.path.of(item, given)
        if self.name == "attribute_exists":
            return found is not None
        if self.name == "attribute_not_exists":
            return found is None
        wanted = self.wanted.of(item, given) if self.wanted else None
        if found is None or wanted is None:
            return False
        if self.name == "begins_with":
            return values.begins_with(found, wanted)
        if self.name == "contains":
            return values.contains(found, wanted)
        return values.kind_of(found) == str(wanted["S"])


@dataclass(frozen=True, slots=True)
class AllOf:
    """`a AND b AND …`."""

    parts: tuple["Condition", ...]

    def holds(self, item: Json, given: Given) -> bool:
        """Each of them."""
        return all(each.holds(item, given) for each in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """`a OR b OR …`."""

    parts: tuple["Condition", ...]

    def holds(self, item: Json, given: Given) -> bool:
        """One of them."""
        return any(each.holds(item, given) for each in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT a`."""

    part: "Condition"

    def holds(self, item: Json, given: Given) -> bool:
        """Where it does not."""
        return not self.part.holds(item, given)


type Condition = Comparison | Between | In | Function | AllOf | AnyOf | Not


@dataclass(frozen=True, slots=True)
class IfNotExists:
    """`if_not_exists(path, operand)`."""

    path: Path
    operand: "Term"

    def of(self, item: Json, given: Given) -> Json | None:
        """What is there, else the operand, which has to be there in any case."""
        found, operand = self.path.of(item, given), _there(self.operand.of(item, given))
        return operand if found is None else found


@dataclass(frozen=True, slots=True)
class ListAppend:
    """`list_append(a, b)`."""

    first: "Term"
    second: "Term"

    def of(self, item: Json, given: Given) -> Json | None:
        """Both lists, one after the other."""
        first, second = _there(self.first.of(item, given)), _there(self.second.of(item, given))
        if "L" not in first or "L" not in second:
            raise invalid("An operand in the update expression has an incorrect data type")
        return {"L": [*first["L"], *second["L"]]}


@dataclass(frozen=True, slots=True)
class Sum:
    """`a + b` or `a - b`."""

    sign: str
    first: "Term"
    second: "Term"

    def of(self, item: Json, given: Given) -> Json | None:
        """Of numbers alone."""
        first, second = _there(self.first.of(item, given)), _there(self.second.of(item, given))
        return added(first, second, -1 if self.sign == "-" else 1)


type Term = Path | Literal | IfNotExists | ListAppend | Sum


@dataclass(frozen=True, slots=True)
class Change:
    """One action of an update: SET, REMOVE, ADD or DELETE, on a path."""

    action: str
    path: Path
    term: Term | None


@dataclass(frozen=True, slots=True)
class Update:
    """All actions of an update."""

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """A literal of which only some kinds make sense in its place."""

    operator: str
    literal: str
    kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class Parsed[T]:
    """What a text says, and what it asks of the request's names and values."""

    body: T
    names: frozenset[str]
    values: frozenset[str]
    expected: tuple[Expected, ...]
    bounds: tuple[tuple[str, str], ...]

    def check(self, given: Given) -> None:
        """Raises where a value cannot stand where it stands."""
        for each in self.expected:
            kind = values.kind_of(given.values[each.literal])
            if kind not in each.kinds:
                raise wrong_kind(each.operator, kind)
        for low, high in self.bounds:
            if not in_order(given.values[low], "<=", given.values[high]):
                raise invalid(
                    "The BETWEEN operator requires upper bound to be greater than or equal to "
                    "lower bound, and both of one type"
                )


def added(value: Json, more: Json, sign: int = 1) -> Json:
    """The sum of two numbers."""
    if "N" not in value or "N" not in more:
        raise invalid("An operand in the update expression has an incorrect data type")
    return values.number_value(values.number_of(value) + sign * values.number_of(more))


def wrong_kind(operator: str, kind: str) -> AwsError:
    """A value stands where one of its kind makes no sense."""
    return invalid(
        "Incorrect operand type for operator or function; "
        f"operator or function: {operator}, operand type: {kind}"
    )


def _there(found: Json | None) -> Json:
    if found is None:
        raise invalid(
            "The provided expression refers to an attribute that does not exist in the item"
        )
    return found


def _member(value: Json, step: str | int) -> Json | None:
    found: Json | None = None
    if isinstance(step, str):
        found = value["M"].get(step) if "M" in value else None
    elif "L" in value and step < len(value["L"]):
        found = value["L"][step]
    return found
