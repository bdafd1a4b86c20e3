"""DynamoDB's expressions: conditions, updates, projections and key conditions.

A text is parsed once; what it says is then asked of items, with the names and values of a request.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tests.simulation.cloud import values
from tests.simulation.cloud.errors import AwsError, Json, Unsupported, invalid
from tests.simulation.cloud.reserved import RESERVED

ORDERED = frozenset({"S", "N", "B"})
EXPRESSION_BYTES_MAX = 4096
OPERATORS_MAX = 300
_TOKEN = re.compile(
    r"\s*(?:(?P<placeholder>[:#][A-Za-z0-9_]+)|(?P<word>[A-Za-z][A-Za-z0-9_]*)|(?P<index>\d+)"
    r"|(?P<sign><=|>=|<>|[=<>()\[\],.+\-]))"
)
_KEYWORDS = {"AND", "OR", "NOT", "BETWEEN", "IN"}
_CLAUSES = {"SET", "REMOVE", "ADD", "DELETE"}

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


# --- parsing --------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def condition(text: str, where: str) -> Parsed[Condition]:
    """A ConditionExpression, FilterExpression or KeyConditionExpression, which `where` names."""
    return _parse(text, where, _Parser.condition)


@lru_cache(maxsize=4096)
def update(text: str) -> Parsed[Update]:
    """An UpdateExpression."""
    return _parse(text, "UpdateExpression", _Parser.update)


@lru_cache(maxsize=4096)
def projection(text: str) -> Parsed[tuple[Path, ...]]:
    """A ProjectionExpression."""
    return _parse(text, "ProjectionExpression", _Parser.paths)


def _parse[T](text: str, where: str, rule: Callable[["_Parser"], T]) -> Parsed[T]:
    if not text.strip():
        raise invalid(f"Invalid {where}: The expression can not be empty;")
    if len(text.encode()) > EXPRESSION_BYTES_MAX:
        raise invalid(f"Invalid {where}: Expression size has exceeded the maximum allowed size;")
    parser = _Parser(text, where)
    body = rule(parser)
    if parser.token:
        raise parser.refuse()
    if parser.operators > OPERATORS_MAX:
        raise invalid(f"Invalid {where}: The expression contains too many operators")
    return Parsed(
        body,
        frozenset(parser.names),
        frozenset(parser.values),
        tuple(parser.expected),
        tuple(parser.bounds),
    )


@dataclass
class _Parser:
    """Recursive descent; `token` is the next one, empty at the end."""

    text: str
    where: str
    token: str = ""
    names: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    expected: list[Expected] = field(default_factory=list)
    bounds: list[tuple[str, str]] = field(default_factory=list)
    enclosed: list["Condition"] = field(default_factory=list)
    operators: int = 0

    def __post_init__(self) -> None:
        self._tokens = self._read()
        self.advance()

    def refuse(self) -> AwsError:
        """What stands here does not belong."""
        token = self.token or "<EOF>"
        return invalid(f'Invalid {self.where}: Syntax error; token: "{token}"')

    def advance(self) -> str:
        """The token that was next."""
        token, self.token = self.token, next(self._tokens, "")
        return token

    def take(self, token: str) -> None:
        """That one, or a refusal."""
        if self.token != token:
            raise self.refuse()
        self.advance()

    def word(self) -> str:
        """The next token as a keyword, empty where it is none."""
        upper = self.token.upper()
        return upper if upper in _KEYWORDS or upper in _CLAUSES else ""

    def condition(self) -> Condition:
        """a OR b."""
        parts = [self.conjunction()]
        while self.word() == "OR":
            self.operators += 1
            self.advance()
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def conjunction(self) -> Condition:
        """a AND b."""
        parts = [self.negation()]
        while self.word() == "AND":
            self.operators += 1
            self.advance()
            parts.append(self.negation())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def negation(self) -> Condition:
        """NOT a."""
        if self.word() != "NOT":
            return self.primary()
        self.operators += 1
        self.advance()
        return Not(self.negation())

    def primary(self) -> Condition:
        """What stands in brackets, a function, or a comparison."""
        if self.token == "(":
            self.advance()
            inner = self.condition()
            self.take(")")
            if any(inner is each for each in self.enclosed):
                raise invalid(f"Invalid {self.where}: The expression has redundant parentheses;")
            self.enclosed.append(inner)
            return inner
        operand = self.operand_or_function()
        if isinstance(operand, Function):
            return operand
        self.operators += 1
        return self.comparison(operand)

    def comparison(self, left: Operand) -> Condition:
        """`left` and what it is compared with."""
        if self.word() == "BETWEEN":
            self.advance()
            low = self.operand()
            if self.word() != "AND":
                raise self.refuse()
            self.advance()
            high = self.operand()
            self.distinct("BETWEEN", left, low, high)
            for each in (left, low, high):
                self.expect("BETWEEN", each, ORDERED)
            if isinstance(low, Literal) and isinstance(high, Literal):
                self.bounds.append((low.name, high.name))
            return Between(left, low, high)
        if self.word() == "IN":
            self.advance()
            self.take("(")
            options = [self.operand()]
            while self.token == ",":
                self.advance()
                options.append(self.operand())
            self.take(")")
            if len(options) > 100:
                raise invalid(f"Invalid {self.where}: too many operands for IN")
            self.distinct("IN", left, *options)
            return In(left, tuple(options))
        if self.token not in {"=", "<>", "<", "<=", ">", ">="}:
            raise self.refuse()
        sign = self.advance()
        right = self.operand()
        self.distinct(sign, left, right)
        if sign not in {"=", "<>"}:
            for each in (left, right):
                self.expect(sign, each, ORDERED)
        return Comparison(sign, left, right)

    def operand(self) -> Operand:
        """A path, a value or a size."""
        found = self.operand_or_function()
        if isinstance(found, Function):
            raise invalid(
                f"Invalid {self.where}: The function is not allowed to be used this way in an "
                f"expression; function: {found.name}"
            )
        return found

    def operand_or_function(self) -> Operand | Function:
        """What may open a comparison."""
        if self.token.startswith(":"):
            return self.literal()
        name = self.token
        path = self.path()
        if self.token != "(":
            return path
        self.advance()
        return self.function(name)

    def function(self, name: str) -> Size | Function:
        """The rest of a call."""
        if name == "size":
            path = self.path()
            self.take(")")
            return Size(path)
        if name in {"attribute_exists", "attribute_not_exists"}:
            path = self.path()
            self.take(")")
            return Function(name, path, None)
        kinds = {
            "begins_with": frozenset({"S", "B"}),
            "attribute_type": frozenset({"S"}),
            "contains": frozenset({"S", "N", "B", "BOOL", "NULL", "L", "M", "SS", "NS", "BS"}),
        }
        if name not in kinds:
            raise invalid(f"Invalid {self.where}: Invalid function name; function: {name}")
        operand = self.operand()
        self.take(",")
        wanted = self.operand()
        self.take(")")
        self.distinct(name, operand, wanted)
        self.expect(name, wanted, kinds[name])
        if name == "begins_with":
            self.expect(name, operand, kinds[name])
        if name == "attribute_type" and not isinstance(wanted, Literal):
            raise self.refuse()
        return Function(name, operand, wanted)

    def expect(self, operator: str, operand: Operand, kinds: frozenset[str]) -> None:
        """Note what a literal here may be; a size is a number."""
        if isinstance(operand, Literal):
            self.expected.append(Expected(operator, operand.name, kinds))
        elif isinstance(operand, Size) and "N" not in kinds:
            raise wrong_kind(operator, "N")

    def distinct(self, operator: str, first: Operand, *others: Operand) -> None:
        """Nothing is compared with itself."""
        if isinstance(first, Path) and first in others:
            raise invalid(
                f"Invalid {self.where}: The first operand must be distinct from the remaining "
                f"operands for this operator or function; operator: {operator}"
            )

    def literal(self) -> Literal:
        """`:name`."""
        if not self.token.startswith(":"):
            raise self.refuse()
        name = self.advance()
        self.values.add(name)
        return Literal(name)

    def path(self) -> Path:
        """`name.name[3]`."""
        steps: list[str | int] = [self.name()]
        while self.token in {".", "["}:
            if self.advance() == ".":
                steps.append(self.name())
            else:
                if not self.token.isdecimal():
                    raise self.refuse()
                steps.append(int(self.advance()))
                self.take("]")
        return Path(tuple(steps))

    def name(self) -> str:
        """A bare name, which is no reserved word, or a placeholder of one."""
        token = self.token
        if not (token.startswith("#") or token[:1].isalpha()):
            raise self.refuse()
        self.advance()
        if token.startswith("#"):
            self.names.add(token)
        elif token.upper() in RESERVED and self.token != "(":
            raise invalid(
                f"Invalid {self.where}: Attribute name is a reserved keyword; "
                f"reserved keyword: {token}"
            )
        return token

    def paths(self) -> tuple[Path, ...]:
        """`a, b.c`."""
        found = [self.path()]
        while self.token == ",":
            self.advance()
            found.append(self.path())
        return tuple(found)

    def update(self) -> Update:
        """SET …, REMOVE …, ADD …, DELETE …, each once, in any order."""
        changes: list[Change] = []
        seen: set[str] = set()
        while self.token:
            clause = self.word()
            if clause not in _CLAUSES:
                raise self.refuse()
            if clause in seen:
                raise invalid(
                    f'Invalid UpdateExpression: The "{clause}" section can only be used once'
                )
            seen.add(clause)
            self.advance()
            changes.append(self.change(clause))
            while self.token == ",":
                self.advance()
                changes.append(self.change(clause))
        return Update(tuple(changes))

    def change(self, clause: str) -> Change:
        """One action."""
        path = self.path()
        if clause == "REMOVE":
            return Change(clause, path, None)
        if clause == "SET":
            self.take("=")
            return Change(clause, path, self.sum())
        literal = self.literal()
        kinds = {"SS", "NS", "BS"} | ({"N"} if clause == "ADD" else set())
        self.expect(clause, literal, frozenset(kinds))
        return Change(clause, path, literal)

    def sum(self) -> Term:
        """What SET sets."""
        first = self.term()
        if self.token not in {"+", "-"}:
            return first
        sign = self.advance()
        second = self.term()
        for each in (first, second):
            if isinstance(each, Literal):
                self.expect(sign, each, frozenset({"N"}))
        return Sum(sign, first, second)

    def term(self) -> Term:
        """A path, a value, `if_not_exists` or `list_append`."""
        if self.token.startswith(":"):
            return self.literal()
        if self.token == "(":
            raise Unsupported("brackets in an UpdateExpression")
        name = self.token
        path = self.path()
        if self.token != "(":
            return path
        self.advance()
        if name == "if_not_exists":
            asked = self.path()
            self.take(",")
            other = self.term()
            if asked == other:
                raise invalid(f"Invalid {self.where}: The first operand must be distinct")
            found: Term = IfNotExists(asked, other)
        elif name == "list_append":
            first = self.term()
            self.take(",")
            found = ListAppend(first, self.term())
        else:
            raise invalid(f"Invalid {self.where}: Invalid function name; function: {name}")
        self.take(")")
        return found

    def _read(self) -> Iterator[str]:
        place = 0
        while place < len(self.text.rstrip()):
            found = _TOKEN.match(self.text, place)
            if found is None:
                self.token = self.text[place:].strip()[:1]
                raise self.refuse()
            place = found.end()
            yield found.group().strip()
