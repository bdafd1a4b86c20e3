"""Our modules as this tool imports them: with the lines that are run told, or with one mutated."""

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAliasType

from tests.template import ROOT

OURS = tuple(
    sorted(
        (
            str(path.relative_to(ROOT))
            for top in ("shared/wallet_ledger", "services")
            for path in (ROOT / top).rglob("*.py")
        ),
        key=lambda path: (path.startswith("services/"), path.count("/"), path),
    )
)
"""Each file of Python that runs on Lambda, in the order of the page: what is shared is first."""

_TOOL = sys.monitoring.COVERAGE_ID


def module_name(path: str) -> str:
    """`services/relay/sweep.py` → `relay.sweep`."""
    return ".".join(Path(path).with_suffix("").parts[1:])


class DoesNotLoad(Exception):
    """A broken module that raises something where it is loaded, of which this is the name."""


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles anew, from `tree` where there is one, and tells of the code that it made."""

    def __init__(self, name: str, path: str, tree: ast.Module | None, finder: "_Finder") -> None:
        super().__init__(name, path)
        self._tree, self._finder = tree, finder

    def exec_module(self, module: ModuleType) -> None:
        try:
            super().exec_module(module)
        except Exception as error:
            self._finder.raised.append(type(error).__name__)
            raise

    def get_code(self, fullname: str) -> CodeType:
        source: Any = self._tree or Path(self.path).read_text(encoding="utf-8")
        code: CodeType = compile(source, self.path, "exec", dont_inherit=True)
        if self._finder.lines is not None:
            self._finder.lines.watch(code)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, trees: Mapping[str, ast.Module | None], lines: "Lines | None") -> None:
        self._paths = {module_name(path): path for path in trees}
        self._trees, self.lines = trees, lines
        self.raised: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        known = self._paths.get(fullname)
        if known is None:
            return None
        place = str(ROOT / known)
        loader = _Loader(fullname, place, self._trees[known], self)
        return importlib.util.spec_from_file_location(fullname, place, loader=loader)


@dataclass
class Lines:
    """Which lines of our modules are run since `start`, by path within the repository."""

    hit: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        sys.monitoring.use_tool_id(_TOOL, "guards")
        sys.monitoring.register_callback(_TOOL, sys.monitoring.events.LINE, self._run)

    def watch(self, code: CodeType) -> None:
        """That code, and all within."""
        sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.LINE)
        for each in code.co_consts:
            if isinstance(each, CodeType):
                self.watch(each)

    def start(self) -> None:
        """What is run from now on counts."""
        self.hit = set()
        sys.monitoring.restart_events()

    def _run(self, code: CodeType, line: int) -> Any:
        self.hit.add((str(Path(code.co_filename).relative_to(ROOT)), line))
        return sys.monitoring.DISABLE


@contextlib.contextmanager
def imported(
    trees: Mapping[str, ast.Module | None], lines: Lines | None = None
) -> Iterator[Sequence[str]]:
    """Whoever imports these modules meanwhile gets them from their `trees`, with `lines` told.

    Gives the names of the errors that they raised where they were loaded.
    """
    finder = _Finder(trees, lines)
    sys.meta_path.insert(0, finder)
    try:
        yield finder.raised
    finally:
        sys.meta_path.remove(finder)


def put_in_place(path: str, tree: ast.Module, where: str) -> None:
    """In the running process, let what `where` names in an imported module be as in `tree`.

    A function itself is changed, so whoever holds it holds the changed one. Of a module's or a
    class's own lines, its models and type aliases are made anew. What nobody has imported yet is
    imported so. Raises DoesNotLoad where the broken lines raise, and the lines as they are do not.
    """
    if module_name(path) not in sys.modules:  # a handler: whoever wants one imports it afresh
        sys.meta_path.insert(0, _Finder({path: tree}, None))
        return
    code = compile(tree, str(ROOT / path), "exec", dont_inherit=True)
    module = sys.modules[module_name(path)]
    found: Any = module
    names: list[str] = []
    for name in where.split("."):
        if isinstance(found, type | ModuleType) and hasattr(found, name):
            names.append(name)
            found = inspect.getattr_static(found, name)
    plain: Any = found.fget if isinstance(found, property) else found
    function = inspect.unwrap(plain) if callable(plain) else plain
    if isinstance(function, FunctionType):
        [made] = [each for each in _codes(code) if each.co_qualname == ".".join(names)]
        function.__code__ = made
        return
    try:
        anew = _run_anew(code, module.__name__)
    except Exception as error:
        whole = Path(ROOT / path).read_text(encoding="utf-8")
        _run_anew(compile(whole, path, "exec", dont_inherit=True), module.__name__)
        raise DoesNotLoad(type(error).__name__) from error
    for name, value in anew.items():
        if type(value) is TypeAliasType or hasattr(value, "model_validate"):
            setattr(module, name, value)


def _run_anew(code: CodeType, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"__name__": name}
    exec(code, made)  # noqa: S102
    return made


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
