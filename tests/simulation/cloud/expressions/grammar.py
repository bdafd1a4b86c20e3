"""The grammar of expressions: a text is parsed once, to a tree that is asked of items."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from tests.simulation.cloud.errors import AwsError, Unsupported, invalid
from tests.simulation.cloud.expressions.tree import (
    ORDERED,
    AllOf,
    AnyOf,
    Between,
    Change,
    Comparison,
    Condition,
    Expected,
    Function,
    IfNotExists,
    In,
    ListAppend,
    Literal,
    Not,
    Operand,
    Parsed,
    Path,
    Size,
    Sum,
    Term,
    Update,
    wrong_kind,
)
from tests.simulation.cloud.reserved import RESERVED

EXPRESSION_BYTES_MAX = 4096
OPERATORS_MAX = 300
_TOKEN = re.compile(
    r"\s*(?:(?P<placeholder>[:#][A-Za-z0-9_]+)|(?P<word>[A-Za-z][A-Za-z0-9_]*)|(?P<index>\d+)"
    r"|(?P<sign><=|>=|<>|[=<>()\[\],.+\-]))"
)
_KEYWORDS = {"AND", "OR", "NOT", "BETWEEN", "IN"}
_CLAUSES = {"SET", "REMOVE", "ADD", "DELETE"}


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
