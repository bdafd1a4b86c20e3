"""The repository's own habits: size, words, docstrings, and that promises have their tests."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("services", "shared", "cli", "bench", "sdk")
FUNCTION_LINES_MAX = 40

PROMISES = [f"P{n}" for n in range(1, 13)]
"""docs/ledger.md"""
DEBITS = (1, 4, 7, 11, 12, 22, 23, 24, 30, 32, 38, 39, 41, 44, 45, 46, 47, 49, 50)
"""Issue 2: the rows of the cases that the debit path can show; C11 for declines."""
REFUNDS = (13, 14, 19, 24, 37)
"""Issue 3."""
CASES = [f"C{n:02d}" for n in sorted({*DEBITS, *REFUNDS})]


@cache
def _tracked() -> list[Path]:
    """The files that git knows, as they are in the working tree."""
    listed = subprocess.run(
        ["/usr/bin/env", "git", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _code() -> list[Path]:
    """The modules that are shipped or run by people; tests follow other habits."""
    return [
        path
        for path in _tracked()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in CODE
    ]


def _definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Qualified name → definition of each function and class, private and inner ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}{node.name}"
            yield name, node
            inner = f"{name}." if isinstance(node, ast.ClassDef) else f"{name}.<locals>."
            yield from _definitions(node, inner)
        else:
            yield from _definitions(node, prefix)


def _lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How long it is but for its docstring, which for a command is its whole help."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    match function.body[0]:
        case ast.Expr(value=ast.Constant(value=str())) as docstring:
            return lines - ((docstring.end_lineno or 0) - docstring.lineno + 1)
        case _:
            return lines


def test_no_function_is_longer_than_forty_lines() -> None:
    long = [
        f"{_relative(path)}: {name}"
        for path in _code()
        for name, node in _definitions(ast.parse(_text(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _lines(node) > FUNCTION_LINES_MAX
    ]
    assert not long


def test_every_module_class_and_function_that_others_see_says_what_it_promises() -> None:
    silent = []
    for path in _code():
        tree = ast.parse(_text(path))
        definitions = [("(module)", tree), *_definitions(tree)]
        silent += [
            f"{_relative(path)}: {name}"
            for name, node in definitions
            if not any(part.startswith(("_", "<")) for part in name.split("."))
            and not ast.get_docstring(node)  # type: ignore[arg-type]  # each can have one
        ]
    assert not silent


def test_no_file_is_a_drawer_for_everything() -> None:
    drawers = {"util", "utils", "helper", "helpers", "common", "misc", "tools"}
    assert not [_relative(path) for path in _tracked() if path.stem.lower() in drawers]


def test_nothing_is_left_for_later() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
    found = [
        _relative(path)
        for path in _tracked()
        if path.suffix in {".py", ".yaml", ".toml", ".md", ".json", ""}
        and marks.search(_text(path).replace('"XXX"', ""))
    ]
    assert not found


def test_no_tracked_file_names_a_machine_or_a_package_index() -> None:
    paths = re.compile(r"(?<![\w.])/(home|Users|root|work)/\w|[A-Z]:\\Users")
    index = re.compile(r"--(extra-)?index-url|--find-links|pythonhosted|://[^\s/]+/(\S+/)?simple\b")
    for path in _tracked():
        if path.suffix in {".png", ".svg", ".gif"}:
            continue
        for number, line in enumerate(_text(path).splitlines(), 1):
            where = f"{_relative(path)}:{number}"
            assert not paths.search(line) or path == Path(__file__), where
            assert not index.search(line) or path == Path(__file__), where


def test_no_test_waits_for_time_to_pass() -> None:
    for path in _tracked():
        kinds = {"unit", "shape", "contract", "simulation"}
        if path.suffix == ".py" and kinds & {*path.relative_to(ROOT).parts}:
            assert not re.search(r"\btime\.sleep\(|\bsleep\(\d", _text(path)), path


@cache
def _tests() -> str:
    """Names, docstrings and comments of all tests but this one."""
    files = (ROOT / "tests").rglob("test_*.py")
    return "\n".join(_text(path).upper() for path in files if path != Path(__file__))


@pytest.mark.parametrize("name", PROMISES + CASES)
def test_each_promise_and_case_is_named_by_a_test(name: str) -> None:
    assert re.search(rf"(?<![A-Z0-9]){name}(?![0-9])", _tests())


def test_every_test_name_is_a_sentence() -> None:
    short = [
        f"{path.name}: {name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name, _ in _definitions(ast.parse(_text(path)))
        if name.startswith("test_") and len(name.split("_")) < 5
    ]
    assert not short


def test_the_cases_file_holds_what_it_says() -> None:
    text = _text(ROOT / "tests" / "cases" / "requests.json")
    ids = re.findall(r'"id": "(C[\w-]+)"', text)
    assert len(ids) == len(set(ids)) >= 16
    assert {"C46", "C41a", "C41b", "C47a"} <= set(ids)
