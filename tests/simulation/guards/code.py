"""Guards in our code, found in its syntax, each with the ways in which it is taken away.

The operators are the same for every module, and know nothing of what it is about: a condition that
always or never holds, or loses one of its parts; a bound that is off by one; rules in another
order; a validator's constraint, an error's handler, a sorting, or a step that is left out.
Which of two values stands in for the other, and plain assignments, are left as they are.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from tests.simulation.guards.sources import OURS, module_name
from tests.template import ROOT

TELLING = frozenset({"log_failure", "assert_never"})
"""Calls that only write to the log, as those of `logger` do, or cannot be reached."""

CONSTRAINTS = frozenset(
    {
        "strict",
        "extra",
        "hide_input_in_errors",
        "ge",
        "le",
        "pattern",
        "max_length",
        "validate",
        "ConsistentRead",
    }
    | {"object_pairs_hook", "parse_constant", "parse_int"}
)
"""Keywords by which somebody else is asked to check."""

TEXT_MAX = 90


@dataclass(frozen=True, slots=True)
class Broken:
    """One guard broken in one way: what it is, on which lines, and how to do it to the tree.

    `at_import`: it is a step of the import itself, which may leave traces elsewhere.
    """

    module: str
    where: str
    text: str
    change: str
    lines: range
    in_function: bool
    at_import: bool
    apply: Callable[[], None] = field(compare=False, repr=False)

    @property
    def guard(self) -> str:
        """Whatever the change, the guard."""
        return f"{self.where} | {self.text}"

    def __str__(self) -> str:
        return f"{self.module} | {self.guard} | {self.change}"


def all_broken(path: str, tree: ast.Module | None = None) -> list[Broken]:
    """Every mutant of a module, in the order of its text; `apply` changes `tree`."""
    if tree is None:
        tree = parsed(path)
    found = list(_Finder(module_name(path)).module(tree))
    met: Counter[str] = Counter()
    numbered = []
    for each in found:
        met[str(each)] += 1
        number = met[str(each)]
        text = each.text if number == 1 else f"{each.text} (no. {number})"
        numbered.append(replace(each, text=text))
    return numbered


def parsed(path: str) -> ast.Module:
    """A module's tree."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=path)


def mutated(path: str, name: str) -> ast.Module:
    """The module's tree with that mutant in it."""
    tree = parsed(path)
    [wanted] = [each for each in all_broken(path, tree) if str(each) == name]
    wanted.apply()
    return ast.fix_missing_locations(tree)


class _Finder:
    """Walks one module's tree."""

    def __init__(self, module: str) -> None:
        self.module_name = module
        self.names: list[str] = []
        self.depth = 0

    def module(self, tree: ast.Module) -> Iterator[Broken]:
        yield from self.block(tree.body)

    # --- statements -----------------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> Iterator[Broken]:
        for index, statement in enumerate(body):
            following = body[index + 1] if index + 1 < len(body) else None
            rules = (_rule(statement), _rule(following))
            if type(statement) is type(following) and all(rules):
                yield self._swapped(body, index)
            yield from self.statement(body, index, statement)

    def statement(self, body: list[ast.stmt], index: int, statement: ast.stmt) -> Iterator[Broken]:
        match statement:
            case ast.FunctionDef() | ast.ClassDef():
                yield from self.inside(statement)
            case ast.If():
                yield from self.chain(statement)
            case ast.While() | ast.For() | ast.With():
                yield from self.parts(statement)
                yield from self.block(statement.body)
            case ast.Try():
                yield from self.attempt(statement)
            case ast.Match():
                yield from self.cases(statement)
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr() if _is_telling(statement.value):
                return
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                nothing = ast.If(ast.Constant(False), [statement], [])
                yield self.broken(statement, "left out", _replace(body, index, nothing))
                yield from self.parts(statement)
            case _:
                yield from self.parts(statement)

    def attempt(self, statement: ast.Try) -> Iterator[Broken]:
        yield from self.block(statement.body)
        for handler in statement.handlers:
            yield from self.handler(handler)
        yield from self.block(statement.orelse)

    def cases(self, statement: ast.Match) -> Iterator[Broken]:
        yield from self.expression(statement, "subject")
        for case in statement.cases:
            if case.guard is not None:
                yield from self.condition(case, "guard", exits=False)
            yield from self.block(case.body)

    def inside(self, statement: ast.FunctionDef | ast.ClassDef) -> Iterator[Broken]:
        self.names.append(statement.name)
        self.depth += isinstance(statement, ast.FunctionDef)
        yield from self.block(statement.body)
        self.depth -= isinstance(statement, ast.FunctionDef)
        self.names.pop()

    def chain(self, statement: ast.If) -> Iterator[Broken]:
        if isinstance(statement.test, ast.Name) and statement.test.id == "TYPE_CHECKING":
            return
        exits = not statement.orelse and _ends(statement.body)
        yield from self.condition(statement, "test", exits=exits)
        yield from self.block(statement.body)
        yield from self.block(statement.orelse)

    def handler(self, handler: ast.ExceptHandler) -> Iterator[Broken]:
        if not all(isinstance(each, ast.Raise) and each.exc is None for each in handler.body):
            caught = ast.unparse(handler.type) if handler.type else "all"
            text, lines = f"except {caught}", range(handler.body[0].lineno, _end(handler) + 1)

            def apply(handler: ast.ExceptHandler = handler) -> None:
                handler.body = [ast.Raise()]

            yield self.made(text, "not handled", lines, apply)
        yield from self.block(handler.body)

    # --- expressions ----------------------------------------------------------------------------

    def parts(self, node: ast.AST) -> Iterator[Broken]:
        """Whatever expressions a node has, but for the statements in it."""
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                yield from self.expression(node, name)
            elif isinstance(value, list):
                for index, each in enumerate(value):
                    if isinstance(each, ast.expr):
                        yield from self.expression(value, index)
                    elif isinstance(each, ast.keyword):
                        yield from self.keyword(value, index, each)
                    elif isinstance(each, ast.comprehension | ast.withitem):
                        yield from self.parts(each)

    def keyword(
        self, keywords: list[ast.keyword], index: int, each: ast.keyword
    ) -> Iterator[Broken]:
        if each.arg in CONSTRAINTS and not isinstance(each.value, ast.BinOp):

            def apply() -> None:
                keywords.remove(each)

            yield self.broken(each, "left out", apply)
        if each.arg != "json_schema_extra":
            yield from self.expression(each, "value")

    def expression(self, holder: ast.AST | list[ast.expr], place: str | int) -> Iterator[Broken]:
        node = _get(holder, place)
        match node:
            case ast.BoolOp() if not any(map(_is_condition, node.values)):
                yield from self.parts(node)  # a value, or what stands in for it
            case ast.BoolOp() | ast.Compare() | ast.UnaryOp(op=ast.Not()):
                yield from self.condition(holder, place, exits=False)
            case ast.IfExp():
                yield from self.condition(node, "test", exits=False)
                yield from self.expression(node, "body")
                yield from self.expression(node, "orelse")
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                yield from self.comprehension(node)
            case ast.Call():
                yield from self.call(holder, place, node)
            case ast.Lambda():
                self.depth += 1
                yield from self.expression(node, "body")
                self.depth -= 1
            case _:
                yield from self.parts(node)

    def comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> Iterator[Broken]:
        for name in ("elt", "key", "value"):
            if hasattr(node, name):
                yield from self.expression(node, name)
        for each in node.generators:
            yield from self.expression(each, "iter")
            for index in range(len(each.ifs)):
                yield from self.condition(each.ifs, index, exits=False)

    def call(
        self, holder: ast.AST | list[ast.expr], place: str | int, node: ast.Call
    ) -> Iterator[Broken]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in {"min", "max"}:
            other = "max" if name == "min" else "min"
            yield self.broken(node, other, _set(node, "func", ast.Name(other, ast.Load())))
        if name == "sorted":
            plain = ast.Call(ast.Name("list", ast.Load()), node.args[:1], [])
            yield self.broken(node, "not sorted", _set(holder, place, plain))
        if name == "suppress":
            yield self.broken(node, "not suppressed", _set(node, "args", []))
        if name == "AfterValidator":
            same = ast.parse("lambda value: value", mode="eval").body
            yield self.broken(node, "left out", _set(node, "args", [same]))
        yield from self.parts(node)

    def condition(
        self, holder: ast.AST | list[ast.expr], place: str | int, *, exits: bool
    ) -> Iterator[Broken]:
        """What holds or not; `exits`: it only lets go no further, and so need never hold."""
        node = _get(holder, place)
        yield self.broken(node, "never", _set(holder, place, ast.Constant(False)))
        if not exits:
            yield self.broken(node, "always", _set(holder, place, ast.Constant(True)))
        yield from self.operands(node, node)

    def operands(self, node: ast.expr, whole: ast.expr) -> Iterator[Broken]:
        match node:
            case ast.BoolOp():
                nothing = ast.Constant(isinstance(node.op, ast.And))
                for index, each in enumerate(node.values):
                    change = f"without `{_short(each, 50)}`"
                    yield self.broken(whole, change, _set(node.values, index, nothing))
                for each in node.values:
                    yield from self.operands(each, whole)
            case ast.UnaryOp(op=ast.Not()):
                yield from self.operands(node.operand, whole)
            case ast.Compare():
                for index, sign in enumerate(node.ops):
                    yield from self.bound(node, index, sign, whole)
                yield from self.parts(node)
            case ast.Call():
                yield from self.call(whole, "", node)
            case ast.IfExp() | ast.NamedExpr():
                yield from self.parts(node)
            case _:
                return

    def bound(
        self, node: ast.Compare, index: int, sign: ast.cmpop, whole: ast.expr
    ) -> Iterator[Broken]:
        others: dict[type[ast.cmpop], type[ast.cmpop]] = {
            ast.Lt: ast.LtE,
            ast.LtE: ast.Lt,
            ast.Gt: ast.GtE,
            ast.GtE: ast.Gt,
        }
        other = others.get(type(sign))
        if other is not None:
            ops = [other() if place == index else each for place, each in enumerate(node.ops)]
            left = [node.left, *node.comparators][index]
            compared = ast.Compare(left, [other()], [node.comparators[index]])
            yield self.broken(whole, f"`{_short(compared, 50)}`", _set(node, "ops", ops))

    # --- making ---------------------------------------------------------------------------------

    def broken(self, node: ast.AST, change: str, apply: Callable[[], None]) -> Broken:
        lines = range(node.lineno, _end(node) + 1)  # type: ignore[attr-defined]
        at_import = isinstance(node, ast.stmt) and not self.depth
        return self.made(_short(node), change, lines, apply, at_import=at_import)

    def made(
        self,
        text: str,
        change: str,
        lines: range,
        apply: Callable[[], None],
        *,
        at_import: bool = False,
    ) -> Broken:
        where = ".".join(self.names) or "(module)"
        in_function = self.depth > 0
        return Broken(self.module_name, where, text, change, lines, in_function, at_import, apply)

    def _swapped(self, body: list[ast.stmt], index: int) -> Broken:
        first, second = body[index], body[index + 1]
        asked = [_short(each, 60) for each in (_rule(first), _rule(second)) if each]

        def apply() -> None:
            body[index], body[index + 1] = second, first

        text = ", then ".join(asked)
        return self.made(text, "in the other order", range(first.lineno, first.lineno + 1), apply)


def _rule(statement: ast.stmt | None) -> ast.expr | None:
    """What a rule of a list of rules asks: one that ends the matter, or one for each of some."""
    match statement:
        case ast.If(orelse=[]) if _ends(statement.body):
            return statement.test
        case ast.For():
            return statement.iter
        case _:
            return None


def _is_condition(node: ast.expr) -> bool:
    match node:
        case ast.Compare() | ast.UnaryOp() | ast.BoolOp():
            return True
        case ast.Call(func=ast.Name("isinstance" | "any" | "all")):
            return True
        case _:
            return False


def _ends(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)


def _is_telling(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(name)):
            return name in TELLING
        case ast.Call(func=ast.Attribute(value=ast.Name("logger"))):
            return True
        case _:
            return False


def _get(holder: ast.AST | list[ast.expr], place: str | int) -> ast.expr:
    found = holder[int(place)] if isinstance(holder, list) else getattr(holder, str(place))
    assert isinstance(found, ast.expr)
    return found


def _set(holder: ast.AST | list[ast.expr], place: str | int, made: object) -> Callable[[], None]:
    def apply() -> None:
        if isinstance(holder, list):
            assert isinstance(made, ast.expr)
            holder[int(place)] = made
        else:
            setattr(holder, str(place), made)

    return apply


def _replace(body: list[ast.stmt], index: int, made: ast.stmt) -> Callable[[], None]:
    def apply() -> None:
        body[index] = made

    return apply


def _short(node: ast.AST, longest: int = TEXT_MAX) -> str:
    text = ast.unparse(node)
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _end(node: ast.AST) -> int:
    last: int = node.end_lineno  # type: ignore[attr-defined]
    return last


MODULES = tuple(path for path in OURS if all_broken(path))
"""Whatever of our code holds something to break; there is no other list."""


def everything() -> Iterator[tuple[str, Broken]]:
    """Each mutant of each module, with the module's path."""
    for path in MODULES:
        for each in all_broken(path):
            yield path, each
