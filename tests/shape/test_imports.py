"""Who may import whom (STYLE), read off the source; nothing is run."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wallet_ledger import telemetry

ROOT = Path(__file__).parents[2]
LAYER = "wallet_ledger"
DOMAIN = f"{LAYER}.domain"
IMPURE = {"os", "time", "random", "logging", "socket", "subprocess", "secrets", "uuid", "threading"}
EDGES = {"api", "bus", "desk", "queue", "stream"}
"""Names of the modules that parse, call and answer."""

# What each module of the layer knows of the others, and the one foreign library that only it knows.
LAYER_RULES: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "settings": (set(), set()),
    "clock": (set(), set()),
    "strict_json": ({"errors"}, set()),
    "ports": ({"domain"}, set()),
    "patience": ({"ports"}, set()),
    "messages": ({"domain", "errors", "ports", "strict_json"}, set()),
    "derive": ({"domain", "messages", "ports"}, set()),
    "contracts": (
        {"domain", "errors", "messages", "strict_json"},
        {"pydantic", "pydantic_core", "phonenumbers"},
    ),
    "telemetry": (set(), {"aws_lambda_powertools", "aws_xray_sdk"}),
    "consumer": ({"domain", "errors", "messages", "ports", "telemetry"}, set()),
    "aws": ({"domain", "errors", "messages", "ports", "aws"}, {"botocore"}),
    "domain": ({"domain"}, set()),
}


def _modules(folder: str) -> dict[str, Path]:
    """Dotted name → file of each module below a folder of the repository."""
    base = ROOT / folder
    files = sorted(base.rglob("*.py"))
    return {".".join(path.relative_to(base).with_suffix("").parts): path for path in files}


SHARED, SERVICES = _modules("shared"), _modules("services")
PRODUCTION = SHARED | SERVICES
PACKAGES = {name.split(".")[0] for name in SERVICES}


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(path: Path) -> set[str]:
    """Every module that a file imports at run time, in functions too."""
    tree = _tree(path)
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    return {
        name
        for node in ast.walk(tree)
        if id(node) not in for_types
        for name in _names(node)
        if name != "typing"
    }


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module:
        modules = {f"{node.module}.{alias.name}" for alias in node.names} & PRODUCTION.keys()
        yield from modules or {node.module}


def _foreign(names: set[str]) -> set[str]:
    """The libraries among them that are neither ours nor Python's own."""
    roots = {name.split(".")[0] for name in names}
    return roots - sys.stdlib_module_names - PACKAGES - {LAYER}


def _parts(names: set[str]) -> set[str]:
    """The parts of the layer among them: a module, or a package as a whole."""
    return {name.split(".")[1] for name in names if name.startswith(f"{LAYER}.")}


def _kind(name: str) -> str:
    """What a module of a service is, by its name."""
    module = name.rpartition(".")[2]
    if module == "__init__":
        return "package"
    return "handler" if module.endswith("handler") else "edge" if module in EDGES else "use case"


def _of(kind: str) -> list[str]:
    return [name for name in SERVICES if _kind(name) == kind]


def test_the_rules_below_look_at_the_modules_there_are() -> None:
    assert all(len(_of(kind)) >= 4 for kind in ("handler", "edge", "use case"))
    assert len(_of("package")) == len(PACKAGES)
    assert PACKAGES | {LAYER} == telemetry.PACKAGES
    assert {name.split(".", 2)[1] for name in SHARED} - {"__init__"} == LAYER_RULES.keys()


@pytest.mark.parametrize("name", SHARED)
def test_a_module_of_the_layer_imports_only_what_its_place_allows(name: str) -> None:
    imported = _imports(SHARED[name])
    parts, libraries = LAYER_RULES.get(name.split(".")[1], (set(), set()))
    assert _parts(imported) <= parts
    assert _foreign(imported) <= libraries
    assert not PACKAGES & {each.split(".")[0] for each in imported}, "the layer knows no service"


@pytest.mark.parametrize("name", [name for name in SHARED if name.startswith(DOMAIN)])
def test_the_domain_is_pure(name: str) -> None:
    assert not IMPURE & {each.split(".")[0] for each in _imports(SHARED[name])}
    calls = {ast.unparse(n.func) for n in ast.walk(_tree(SHARED[name])) if isinstance(n, ast.Call)}
    assert not calls & {"open", "print", "input", "datetime.now", "eval", "exec"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_never_imports_another_nor_an_edge_or_handler_from_below(name: str) -> None:
    package, _, _ = name.partition(".")
    imported = {each for each in _imports(SERVICES[name]) if each.split(".")[0] in PACKAGES}
    below = {"handler": {"edge", "use case"}, "package": set()}.get(_kind(name), {"use case"})
    assert all(each.startswith(f"{package}.") for each in imported)
    assert {_kind(each) for each in imported} <= below


@pytest.mark.parametrize("name", _of("use case"))
def test_a_use_case_knows_ports_and_values_only(name: str) -> None:
    imported = _imports(SERVICES[name])
    letters = {"strict_json"} if name.startswith("triage.") else set()  # bodies are what it judges
    known = {"domain", "ports", "errors", "patience", "messages", "derive"}
    assert _parts(imported) <= known | letters
    assert not _foreign(imported)
    assert not {"os", "time", "random", "logging"} & imported


@pytest.mark.parametrize("name", _of("edge"))
def test_an_edge_knows_the_wire_and_no_adapter(name: str) -> None:
    imported = _imports(SERVICES[name])
    wire = {"messages", "strict_json", "contracts", "consumer", "derive"}
    assert _parts(imported) <= {"domain", "ports", "errors", "patience", "telemetry", "aws"} | wire
    adapters = {each for each in imported if each.startswith(f"{LAYER}.aws")}
    # The images of a stream are items, and items are spelt in one place.
    assert adapters <= ({f"{LAYER}.aws.items"} if name.endswith(".stream") else set())
    assert not _foreign(imported)


@pytest.mark.parametrize("name", _of("handler"))
def test_a_handler_is_wiring_alone(name: str) -> None:
    assert not _foreign(_imports(SERVICES[name]))
    tree = _tree(SERVICES[name])
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions[-1] == "handle"
    branches = (ast.If, ast.For, ast.While, ast.Try, ast.Match, ast.IfExp, ast.ListComp)
    assert not any(isinstance(node, branches) for node in ast.walk(tree))


@pytest.mark.parametrize(
    ("library", "only"),
    [
        ("aws_lambda_powertools", {"wallet_ledger.telemetry"}),
        ("aws_xray_sdk", {"wallet_ledger.telemetry"}),
        ("pydantic", {"wallet_ledger.contracts"}),
        ("pydantic_core", {"wallet_ledger.contracts"}),
        ("phonenumbers", {"wallet_ledger.contracts"}),
        ("boto3", set()),
        ("localstack_client", set()),
        ("requests", set()),
        ("httpx", set()),
    ],
)
def test_a_library_is_known_to_one_module_or_to_none(library: str, only: set[str]) -> None:
    found = {n for n, path in PRODUCTION.items() if library in _foreign(_imports(path))}
    assert found == only


def test_the_two_consumers_of_fifo_queues_share_one_edge() -> None:
    """What makes a batch come again, group by group, is written once."""
    found = {n for n, path in PRODUCTION.items() if f"{LAYER}.consumer" in _imports(path)}
    assert found == {"reconcile.queue", "refund.queue"}


def test_only_adapters_and_nobody_else_know_botocore() -> None:
    found = {n for n, path in PRODUCTION.items() if "botocore" in _foreign(_imports(path))}
    assert {name.rpartition(".")[0] for name in found} == {f"{LAYER}.aws"}


def test_only_handlers_and_telemetry_read_the_environment() -> None:
    found = {name for name, path in PRODUCTION.items() if "os" in _imports(path)}
    assert found == {*_of("handler"), f"{LAYER}.telemetry"}


def test_only_handlers_make_clients_and_clocks_at_import() -> None:
    """Any other module is imported without an effect: definitions, constants, and no call out."""
    pure = {"frozenset", "re.compile", "NewType", "EntryId", "Currency", "Rule", "Diagnosis"}
    allowed = pure | {"Logger", "Metrics", "Lock"}
    for name, path in PRODUCTION.items():
        if name in _of("handler"):
            continue
        for statement in _tree(path).body:
            calls = {
                ast.unparse(node.func)
                for node in ast.walk(statement)
                if isinstance(node, ast.Call)
                and not isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.TypeAlias)
            }
            unknown = {c for c in calls if c not in allowed and not c.endswith(".split")}
            if name == f"{LAYER}.telemetry":  # the stage is a dimension of every metric
                unknown -= {"metrics.set_default_dimensions", "os.environ.get"}
            assert not unknown, f"{name}:{statement.lineno}"


def test_only_tests_cli_and_bench_know_the_local_engine() -> None:
    for path in PRODUCTION.values():
        text = path.read_text(encoding="utf-8").lower()
        for engine in ("localstack", "ministack", "moto", "localhost", "endpoint_url"):
            assert engine not in text, path


def test_the_sdk_needs_httpx_alone_and_parses_as_python_3_10() -> None:
    """It is published by itself, for phones that nobody upgrades."""
    paths = sorted((ROOT / "sdk").rglob("*.py"))
    assert len(paths) > 5
    for path in paths:
        ast.parse(path.read_text(encoding="utf-8"), path, feature_version=(3, 10))
        assert _foreign(_imports(path)) <= {"httpx", "wakala_agent"}, path
        assert not {each.split(".")[0] for each in _imports(path)} & (PACKAGES | {LAYER}), path
