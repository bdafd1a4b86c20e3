"""The docs against the repository: whatever a page names, links, counts or draws is really so."""

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import botocore.model
import botocore.session
import pytest
from cyclopts import CycloptsError, MissingArgumentError

from ingest import api
from ingest.refund import InProgress, NotRefundable, RefundIdReused, Unknown
from tests.template import RESOURCES, TEMPLATE
from triage import desk, views
from triage.act import Desk
from triage.act import Outcome as Acted
from wakala.desk import LEFT, UNANSWERED
from wakala.main import app
from wallet_ledger import contracts
from wallet_ledger.aws import items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.letters import DynamoDeadLetters
from wallet_ledger.aws.refunds import DynamoRefundBooks
from wallet_ledger.contracts import Defaults, read_phone, read_transaction
from wallet_ledger.derive import from_entry, from_letter, from_row
from wallet_ledger.domain.ids import AgentId, Currency, IdempotencyKey, Phone
from wallet_ledger.domain.letters import (
    DIAGNOSES,
    LETTER_SHARDS,
    Action,
    Budget,
    Failure,
    Letter,
    LetterClass,
    LetterStatus,
    Original,
    Source,
    Standing,
    Verdict,
    diagnose,
    held,
    moved,
    released,
)
from wallet_ledger.domain.postings import NewEntry, Posting
from wallet_ledger.domain.refunds import (
    NOTE_BYTES_MAX,
    Refund,
    Reject,
    Seen,
    Wait,
    cancelled,
    decide_refund,
    requested,
)
from wallet_ledger.domain.transactions import (
    AMOUNT_MINOR_MAX,
    OfflineTransaction,
    PendingRefund,
    Reason,
    Request,
    Status,
    accept,
)
from wallet_ledger.domain.wallets import (
    BALANCE_MINOR_MAX,
    Credit,
    Debit,
    Movement,
    Outcome,
    Posted,
    Rejected,
    StatusChange,
    Wallet,
    WalletStatus,
    decide,
)
from wallet_ledger.messages import EVENT_SOURCE
from wallet_ledger.ports import OutgoingEvent, RowMove

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
ARCHITECTURE = DOCS / "architecture.md"
LEDGER = DOCS / "ledger.md"
FAILURES = DOCS / "failure-modes.md"
REFUNDS = DOCS / "refunds.md"
LETTERS = DOCS / "dead-letters.md"
RUNBOOK = DOCS / "runbook.md"
PROOF = DOCS / "proof.md"
DECISIONS = sorted((DOCS / "decisions").glob("[0-9]*.md"))
PAGES = [README, ROOT / "sdk" / "README.md", *sorted(DOCS.rglob("*.md"))]

NOT_OURS = {"eventID", "STATUS", "BALANCE_", "bank"}
"""What pages quote from the article, and an example's funding source."""

type Row = dict[str, str]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


of_each_page = pytest.mark.parametrize("page", PAGES, ids=_name)


def _prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _fences(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def _section(page: Path, heading: str) -> str:
    """What stands under a heading, up to the next of its level or above."""
    text = page.read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}$\n", text, re.MULTILINE)
    assert found, f"{_name(page)}: no heading {heading}"
    following = re.search(rf"^#{{1,{len(found[1])}}} ", text[found.end() :], re.MULTILINE)
    return text[found.end() : found.end() + following.start() if following else None]


def _tables(text: str) -> list[list[Row]]:
    tables = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        header, _, *rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            for line in block.splitlines()
        ]
        assert all(len(row) == len(header) for row in rows), block
        tables.append([dict(zip(header, row, strict=True)) for row in rows])
    return tables


def _code(text: str) -> list[str]:
    """What stands in code font."""
    return re.findall(r"`([^`\n]+)`", text)


# --- links, names, commands ----------------------------------------------------------------


def _slugs(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _defines(module: Path, name: str) -> bool:
    return f"\ndef {name}(" in module.read_text()


@of_each_page
def test_every_link_leads_to_what_it_names(page: Path) -> None:
    for text, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)\)", _prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor:
            assert anchor in _slugs(found), target
        if text.startswith("`test_"):
            assert _defines(found, text.strip("`")), text


@of_each_page
def test_every_test_that_a_page_names_is_linked(page: Path) -> None:
    prose = _prose(page)
    assert sum(word.startswith("test_") for word in _code(prose)) == prose.count("[`test_")


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


SOURCES = "\n".join(
    (ROOT / name).read_text(errors="replace")
    for name in _tracked()
    if not name.startswith(("docs/", "README.md", "tests/"))
    and (ROOT / name).suffix in {"", ".py", ".yaml", ".toml", ".json"}
    and (ROOT / name).is_file()
)
WORDS = set(re.findall(r"\w+", SOURCES))


def _snake(word: str) -> str:
    """How botocore spells a call: `PutItem` → `put_item`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower()


@of_each_page
def test_what_a_page_puts_in_code_font_is_in_the_code_or_a_command(page: Path) -> None:
    if page.name == "proof-guards.md":
        return  # it is the code: tests/simulation/guards/test_guards.py
    known = WORDS.union(re.findall(r"\w+", "\n".join(_fences(page, "sh"))))
    for code in _code(_prose(page)):
        if code.startswith(("test_", "wakala ", "make ", "sam ", "LAYER_ARCH=")):
            continue
        code = re.sub(r"<fingerprint16>|:seen_\w+", "", code)  # noqa: PLW2901 - names made up there
        words = re.findall(r"[A-Za-z]\w+", code)
        unknown = {word for word in words if not {word, _snake(word)} & known}
        assert unknown <= NOT_OURS, code


def _commands(page: Path) -> Iterator[tuple[str, bool]]:
    """Each `wakala …` of a page, and whether it is whole."""
    for block in _fences(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.findall(r"(?:^|\$\()(wakala [^)|]*)", line):
                yield re.sub(r"\s#.*", "", command), True
    for code in _code(_prose(page)):
        if code.startswith("wakala "):
            yield code, False


@of_each_page
def test_every_wakala_command_is_one(page: Path) -> None:
    for command, whole in _commands(page):
        try:
            app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
        except MissingArgumentError:
            assert not whole, command
        except CycloptsError as error:
            pytest.fail(f"{command}: {error}")


@of_each_page
def test_every_make_target_is_one(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = "\n".join([*_code(_prose(page)), *_fences(page, "sh")])
    assert set(re.findall(r"^make ([a-z]+)", code, re.MULTILINE)) <= targets


FUNCTIONS = {
    name: each["Properties"]["FunctionName"]["Fn::Sub"].removeprefix("${AWS::StackName}-")
    for name, each in RESOURCES.items()
    if each["Type"] == "AWS::Serverless::Function"
}


def _kept() -> set[str]:
    """Names of tables and queues, without the stack's."""
    names = (
        each["Properties"].get(name, {}).get("Fn::Sub", "")
        for each in RESOURCES.values()
        for name in ("TableName", "QueueName")
        if "Properties" in each
    )
    return {name.removeprefix("${AWS::StackName}-") for name in names} - {""}


@of_each_page
def test_a_function_table_or_parameter_that_a_command_names_is_one(page: Path) -> None:
    commands = "\n".join(_fences(page, "sh")).replace("\\\n", " ")
    assert set(re.findall(r"^sam logs .*--name (\w+)", commands, re.MULTILINE)) <= FUNCTIONS.keys()
    assert set(re.findall(r"\$STACK-([\w.-]+)", commands)) <= {*FUNCTIONS.values(), *_kept()}
    overrides = " ".join(re.findall(r"--parameter-overrides (.*)", commands))
    assert set(re.findall(r"(\w+)=", overrides)) <= TEMPLATE["Parameters"].keys()


@of_each_page
def test_a_member_of_info_that_a_command_takes_is_one(page: Path) -> None:
    code = "\n".join(_fences(page, "sh"))
    told = (ROOT / "cli" / "wakala" / "info.py").read_text()
    for name in re.findall(r"json\.load\(sys\.stdin\)\[\"(\w+)\"\]", code):
        assert f'"{name}": ' in told


def test_the_event_that_the_readme_invokes_is_there() -> None:
    ((function, event),) = re.findall(r"FN=(\w+) EVENT=([\w/.]+)", README.read_text())
    assert function in FUNCTIONS
    assert (ROOT / "events" / event).is_file()


def test_the_curl_of_the_readme_posts_what_is_accepted() -> None:
    text = README.read_text()
    (body,) = re.findall(r"-d '(\{.*\})'", text)
    request = read_transaction(json.loads(body), Defaults(Currency("KES"), "KE"))
    assert f"wakala agent token {request.agent_id})" in text
    (credited, amount) = re.findall(r"wakala wallet credit '(.*)' (\d+) --id", text)[0]
    assert read_phone(credited, "KE") == request.phone
    assert int(amount) >= request.amount_minor
    routes = RESOURCES["IngestFunction"]["Properties"]["Events"].values()
    paths = {(each["Properties"]["Method"], each["Properties"]["Path"]) for each in routes}
    assert '"$API/tx/offline"' in text
    assert ("post", "/tx/offline") in paths
    assert f'"$API/tx/status/{request.idempotency_key}"' in text
    assert ("get", "/tx/status/{idempotencyKey}") in paths


def test_the_readmes_map_is_the_top_level() -> None:
    mapped = re.findall(r"\]\((\S+)\)", _section(README, "What is where"))
    assert len(mapped) == len(set(mapped))
    assert set(mapped) == {name.split("/")[0] for name in _tracked()}


# --- pictures ------------------------------------------------------------------------------

ARROW = re.compile(r"(\w+)(?:-{1,2}>>|-{1,2}[x)])(\w+): \S")
OPENS, CLOSES = ("alt ", "loop ", "opt ", "par "), "end"


@of_each_page
def test_every_picture_is_whole(page: Path) -> None:
    text = page.read_text()
    assert len(re.findall(r"^```", text, re.MULTILINE)) % 2 == 0
    pictures = _fences(page, "mermaid")
    assert len(pictures) == text.count("```mermaid")
    for picture in pictures:
        kind = next(line for line in picture.splitlines() if not line.startswith("%%"))
        assert kind.split()[0] in {"flowchart", "sequenceDiagram", "stateDiagram-v2"}
        assert ";" not in picture  # mermaid ends a statement there
        if kind == "sequenceDiagram":
            _check_sequence([line.strip() for line in picture.splitlines()[1:]])


def _check_sequence(lines: list[str]) -> None:
    declared = {line.split()[1] for line in lines if line.startswith("participant ")}
    depth, used = 0, set()
    for line in lines:
        depth += line.startswith(OPENS)
        depth -= line == CLOSES
        assert depth >= 0, line
        if arrow := ARROW.match(line):
            used |= {arrow[1], arrow[2]}
        else:
            assert line == CLOSES or line.startswith(
                (*OPENS, "else ", "participant ", "Note over ")
            )
        assert "#" not in line  # mermaid reads a character's number there
    assert depth == 0
    assert used == declared


def test_every_failure_mode_has_its_picture_and_its_proof() -> None:
    listed = re.findall(r"^- \[(.*)\]\(#", FAILURES.read_text(), re.MULTILINE)
    headings = re.findall(r"^## (.*)$", FAILURES.read_text(), re.MULTILINE)
    assert listed == headings
    for heading in headings:
        section = _section(FAILURES, heading)
        assert section.count("```mermaid") == 1, heading
        proof = section.rpartition("Proved by ")[2]
        assert "[`test_" in proof, heading


# --- decisions -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", DECISIONS, ids=_name)
def test_a_decision_has_its_three_parts(page: Path) -> None:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    assert headings[1:] == ["Context", "Decision", "Consequences"]
    assert headings[0].split(".")[0] == str(int(page.name[:4]))
    assert all(len(_section(page, heading).strip()) > 40 for heading in headings[1:])


def test_the_index_of_decisions_is_complete_and_without_gaps() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    index = (DOCS / "decisions" / "README.md").read_text()
    listed = re.findall(r"^\| (\d{4}) \| \[(.*)\]\((.*)\) \|$", index, re.MULTILINE)
    assert listed == [
        (page.name[:4], page.read_text().splitlines()[0].partition(". ")[2], page.name)
        for page in DECISIONS
    ]


# --- numbers -------------------------------------------------------------------------------


def _constant(module: Path, name: str) -> Any:
    """The value that a module's source gives a name: as a constant, or as a member of a dict."""
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return eval(ast.unparse(value), {})  # noqa: S307 - our own source
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return ast.literal_eval(value)
            case _:
                pass
    raise AssertionError(f"{module.name} has no {name}")


def _inside(properties: dict[str, Any]) -> dict[str, Any]:
    """Properties of a resource, with those of its redrive policy and its events."""
    events = {name: event["Properties"] for name, event in properties.get("Events", {}).items()}
    return {**properties, **properties.get("RedrivePolicy", {}), **events}


def _set_by(cell: str) -> Any:
    (name,) = _code(cell)
    link = re.search(r"\((\S+)\)", cell)
    if link:
        return _constant((ARCHITECTURE.parent / link[1]).resolve(), name)
    resource, *path = name.split(".")
    if not path:
        return TEMPLATE["Parameters"][name]["Default"]
    found = RESOURCES[resource]["Properties"]
    for part in path:
        found = _inside(found)[part]
    return found


LIMITS = _tables(_section(ARCHITECTURE, "Timeouts and limits"))[0]


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row["What"])
def test_a_limit_is_what_is_really_set(row: Row) -> None:
    _check_limit(row)


def test_the_limits_of_triage_are_what_is_really_set() -> None:
    for row in _tables(_section(LETTERS, "Limits of triage"))[0]:
        _check_limit(row)


def _check_limit(row: Row) -> None:
    value = _set_by(row["Set by"])
    numbers = [
        float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\d|\d+\.\d+|\d", row["Value"])
    ]
    each_set = [float(each) for each in (value if isinstance(value, tuple) else (value,))]
    assert numbers == each_set, row["What"]


def test_every_metric_is_explained_and_every_explained_metric_is_there() -> None:
    counted = set(re.findall(r"\bcount(?:_by)?\(\s*\"(\w+)\"", SOURCES))
    counted |= set(re.findall(r"\"(Consumed\w+Units)\"", SOURCES))
    (table,) = _tables(_section(ARCHITECTURE, "What is measured"))
    assert {name for row in table for name in _code(row["Metric"])} == counted


def _size(item: items.Item) -> int:
    """Bytes of an item, as DynamoDB counts: names, text in UTF-8, a byte for two digits."""
    total = 0
    for name, value in item.items():
        ((kind, text),) = value.items()
        total += len(name) + (len(text.encode()) if kind == "S" else len(text) // 2 + 2)
    return total


LONGEST = "A" * 64


def _row() -> OfflineTransaction:
    request = Request(
        AgentId(LONGEST),
        IdempotencyKey(LONGEST),
        Phone("9" * 15),
        AMOUNT_MINOR_MAX,
        Currency("KES"),
        "2026-07-01T08:15:30.123456789+03:00",
    )
    return accept(request, 1_760_000_000_000, 30)


def _debit(row: OfflineTransaction) -> Debit:
    return Debit(
        row.agent_id,
        row.idempotency_key,
        row.phone,
        row.amount_minor,
        row.currency,
        row.attempt,
        row.created_at_ms,
        row.captured_at,
    )


def test_the_costs_follow_from_the_sizes_of_the_items() -> None:
    row = _row()
    entry = items.entry_item(NewEntry(_debit(row), Posted(10**9, BALANCE_MINOR_MAX)), 10**13)
    closed = items.offline_tx_item(replace(row, reason=Reason.INSUFFICIENT_FUNDS))
    longest_refund = _refund(row, None, "x" * NOTE_BYTES_MAX)
    exceeds = Reject(Reason.EXCEEDS_ORIGINAL, AMOUNT_MINOR_MAX, None)
    refund = items.refund_item(longest_refund, exceeds, row.currency, 10**13)
    assert max(_size(closed) + len("purgeAt") + 6, _size(entry), _size(refund) + 17) <= 1_024
    (_, per_debit) = _tables(_section(ARCHITECTURE, "What a transaction costs"))
    found = {row["Per debit"]: row for row in per_debit}
    for group, heading in ((1, "Group of 1"), (10, "Group of 10")):
        put, index, transactional = 1, 1, 2
        accepting = put + index
        settling = transactional + transactional + index + transactional / group
        assert float(found["write units"][heading]) == accepting + settling
        assert float(found["read units"][heading]) == 1 / group
        assert float(found["DynamoDB calls"][heading]) == 1 + 2 / group


# --- items, conditions, events ---------------------------------------------------------------


class _Wire:
    """A DynamoDB client that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def transact_write_items(self, *, TransactItems: list[dict[str, Any]]) -> None:  # noqa: N803
        self.sent += [write for item in TransactItems for write in item.values()]

    def update_item(self, **write: Any) -> None:
        self.sent.append(write)


PHONE, KES = Phone("254712345678"), Currency("KES")


def _movements() -> list[Movement]:
    row = replace(_row(), phone=PHONE)
    return [
        _debit(row),
        Credit("bank", "c-1", PHONE, 1, KES),
        StatusChange("bank", "s-1", PHONE, WalletStatus.ACTIVE, KES),
    ]


def _sent() -> list[dict[str, Any]]:
    """Every kind of write that the ledger makes."""
    wire = _Wire()
    ledger = DynamoLedger(
        wire,  # type: ignore[arg-type]
        ledger_table="WalletLedger",
        offline_tx_table="OfflineTx",
        retention_days=1,
    )
    full = Wallet(PHONE, AMOUNT_MINOR_MAX, KES, 1, WalletStatus.ACTIVE)
    empty = replace(full, balance_minor=0)
    for seen, movements in (
        (full, _movements()),
        (None, _movements()[1:]),
        (empty, _movements()[:1]),
    ):
        decision = decide(seen, movements)
        new = tuple(map(NewEntry, movements, decision.outcomes))
        needed = decision.needed_minor
        ledger.post(Posting(PHONE, seen, decision.after, needed, new, (), 1))
    return wire.sent


def _spelt(write: dict[str, Any], expression: str) -> str:
    text = str(write.get(expression, ""))
    for alias, name in write.get("ExpressionAttributeNames", {}).items():
        text = text.replace(alias, name)
    return text


def _refund(row: OfflineTransaction, amount_minor: int | None, note: str = "why") -> Refund:
    return Refund(
        row.agent_id,
        row.idempotency_key,
        row.phone,
        LONGEST,
        amount_minor,
        row.currency,
        note,
        f"agent:{LONGEST}",
    )


def _refunds_sent() -> list[dict[str, Any]]:
    """Every kind of write that refunds make."""
    wire = _Wire()
    books = DynamoRefundBooks(
        wire,  # type: ignore[arg-type]
        ledger_table="WalletLedger",
        offline_tx_table="OfflineTx",
        retention_days=1,
    )
    queued = replace(_row(), phone=PHONE)
    queued = replace(queued, fingerprint=_debit(queued).fingerprint)
    synced = replace(queued, status=Status.SYNCED, next_sweep_at_ms=None)
    part = replace(synced, status=Status.PARTIALLY_REFUNDED, refunded_minor=1)
    waiting = requested(part, PendingRefund(LONGEST, 2, "why"), 1)
    debit = items.read_entry(items.entry_item(NewEntry(_debit(synced), Posted(1, 1)), 1))
    wallet = Wallet(PHONE, 1, KES, 1, WalletStatus.ACTIVE)
    for row, entry, refunded_minor, amount_minor in (
        (synced, debit, 0, 1),
        (synced, debit, 0, AMOUNT_MINOR_MAX + 1),
        (part, debit, 1, None),
        (part, debit, 1, AMOUNT_MINOR_MAX),
        (waiting, debit, 1, 2),
        (queued, None, 0, None),
        (None, debit, 0, 1),
        (None, None, 0, 1),
    ):
        asked = _refund(synced, amount_minor)
        seen = Seen(row, entry, None, None, refunded_minor, wallet)
        decided = decide_refund(asked, seen, 2, patient=False)
        assert not isinstance(decided, Wait)
        books.write(asked, seen, decided, 2)
    return wire.sent


def test_the_conditions_of_a_refund_are_the_ones_that_are_sent() -> None:
    table = _tables(_section(LEDGER, "The refund transaction"))[0]
    documented = {part for row in table for code in _code(row["Condition"]) for part in _and(code)}
    sent = {part for write in _refunds_sent() for part in _and(_spelt(write, CONDITION))}
    assert documented - {"attempt"} == sent


CONDITION = "ConditionExpression"


def _and(condition: str) -> list[str]:
    return condition.split(" AND ")


def test_the_conditions_are_the_ones_that_are_sent() -> None:
    table = _tables(_section(LEDGER, "The group transaction"))[0]
    documented = {code for row in table for code in _code(row["Condition"])}
    assert documented == {_spelt(write, "ConditionExpression") for write in _sent()}


def _attributes(table: list[Row], column: str = "Attribute") -> set[str]:
    return {name for row in table for name in _code(row[column])}


def test_every_attribute_of_a_row_is_explained() -> None:
    row = cancelled(replace(_row(), reason=Reason.KEY_REUSED, refunded_minor=1), "full", 1)
    written = set(items.offline_tx_item(row)) | set(items.offline_tx_item(held(row, "", 1)))
    for write in [*_sent(), *_refunds_sent()]:
        if write["TableName"] == "OfflineTx":
            update = _spelt(write, "UpdateExpression")
            written |= set(re.findall(r"(\w+) =", update))
            written |= set(re.findall(r"\w+", update.partition(" REMOVE ")[2]))
    table = _tables(_section(LEDGER, "OfflineTx"))[0]
    assert _attributes(table) == written
    index = RESOURCES["OfflineTxTable"]["Properties"]["GlobalSecondaryIndexes"][0]
    projected = {*index["Projection"]["NonKeyAttributes"], "openShard", "nextSweepAt"}
    line = next(
        line for line in LEDGER.read_text().splitlines() if line.startswith("Index `OpenTx`")
    )
    assert set(_code(line)) == {"OpenTx", *projected}


def test_every_attribute_of_the_ledger_is_explained() -> None:
    balance_table, entry_table = _tables(_section(LEDGER, "WalletLedger"))[1:]
    balance, entries = {"phone", "txId"}, set()
    for write in [*_sent(), *_refunds_sent()]:
        if "Item" in write:
            entries |= set(write["Item"])
        elif write["TableName"] == "WalletLedger" and write["Key"]["txId"]["S"] == items.BALANCE:
            balance |= set(re.findall(r"(\w+) =", _spelt(write, "UpdateExpression")))
    assert _attributes(balance_table) == balance
    assert _attributes(entry_table) == entries


def test_the_worked_example_is_what_is_decided() -> None:
    (table,) = _tables(_section(LEDGER, "A worked example"))
    outcomes: list[Outcome] = []
    movements: list[Movement] = []
    for row in table:
        actor, reference = row["Of"].split(", ")
        amount = int(row["Amount"].replace(",", ""))
        movements.append(
            Credit(actor, reference, PHONE, amount, KES)
            if row["Movement"] == "credit"
            else Debit(AgentId(actor), IdempotencyKey(reference), PHONE, amount, KES, 1, 1)
        )
        outcomes.append(
            Rejected(Reason(_code(row["Outcome"])[0]))
            if row["Outcome"].startswith("rejected")
            else Posted(int(row["`version`"]), int(row["`balanceAfterMinor`"].replace(",", "")))
        )
    decision = decide(Wallet(PHONE, 1_000, KES, 4, WalletStatus.ACTIVE), movements)
    assert list(decision.outcomes) == outcomes
    assert decision.needed_minor == 700
    assert decision.after == Wallet(PHONE, 300, KES, 6, WalletStatus.ACTIVE)


def _events() -> dict[str, set[str]]:
    """Each event that can be told, with its members; requests are told apart."""
    told = from_row(_row(), cancelled(_row(), "full", 1))
    queued = _row()
    for write in _refunds_sent():
        if "Item" in write:
            told += from_entry(items.read_entry(write["Item"]))
    for status in (Status.SYNCED, Status.FAILED, Status.EXPIRED, Status.HELD):
        reason = Reason.KEY_REUSED if status is Status.FAILED else None
        told += from_row(queued, replace(queued, status=status, reason=reason))
    for outcome in (Posted(1, 1), Rejected(Reason.KEY_REUSED)):
        for movement in _movements():
            told += from_entry(items.read_entry(items.entry_item(NewEntry(movement, outcome), 1)))
    told += from_letter(None, _letter())
    events = [each.content for each in told if isinstance(each.content, OutgoingEvent)]
    members: dict[str, set[str]] = {}
    for each in events:
        members.setdefault(each.detail_type, set()).update(json.loads(each.detail))
    return members


def test_every_event_is_explained_member_by_member() -> None:
    section = _section(ARCHITECTURE, "Events")
    table, requests = _tables(section)
    common = set(_code(section.partition("|")[0])) - {"source: wakala"}
    explained: dict[str, set[str]] = {}
    for row in table:
        (name,) = _code(row["Event"])
        further = row["Further members"]
        members = set(_code(further)) - explained.keys()
        if further.startswith(("the same", "as ")):
            members |= explained["TransactionSynced"]
        left_out = set(re.findall(r"no `(\w+)`", further))
        explained[name] = (members | common) - left_out
    assert explained == _events()
    heard = {
        detail_type
        for rule in ("WalletRequestsRule", "RefundRequestsRule")
        for detail_type in RESOURCES[rule]["Properties"]["EventPattern"]["detail-type"]
    }
    assert {_code(row["Request"])[0] for row in requests} == heard


def test_every_request_is_explained_member_by_member() -> None:
    _, requests = _tables(_section(ARCHITECTURE, "Events"))
    bodies: dict[str, type[contracts._Body]] = {
        "WalletCreditRequested": contracts._CreditRequest,
        "WalletStatusRequested": contracts._StatusRequest,
        "RefundRequested": contracts._RefundRequest,
    }
    for row in requests:
        fields = bodies[_code(row["Request"])[0]].model_fields
        said = re.findall(r"`(\w+)`(\?)?", row["Members"])
        said = [each for each in said if each[0] not in tuple(WalletStatus)]
        optional = {name for name, mark in said if mark}
        assert {name for name, _ in said} | {"schemaVersion", "eventId"} == {
            field.alias for field in fields.values()
        }
        assert optional | {"schemaVersion", "eventId"} == {
            field.alias for field in fields.values() if not field.is_required()
        }


# --- refunds -------------------------------------------------------------------------------


def test_every_reason_against_a_refund_is_explained() -> None:
    table = _tables(_section(REFUNDS, "What comes of a refund"))[0]
    explained = {code for row in table for code in _code(row["What comes of it"])}
    source = Path(decide_refund.__code__.co_filename).read_text()
    assert explained == set(re.findall(r"Reason\.([A-Z_]+)", source))


def test_every_answer_to_a_refund_is_explained() -> None:
    members, table = _tables(_section(REFUNDS, "Over HTTP"))
    assert {_code(row["Member"])[0] for row in members} == {
        field.alias for field in contracts.RefundBody.model_fields.values()
    }
    explained = {
        (int(row["Answer"][:3]), _code(row["`code`"])[0], row["`retryable`"] == "yes")
        for row in table
        if row["`code`"]
    }
    refused: list[Unknown | InProgress | NotRefundable | RefundIdReused] = [
        Unknown(),
        InProgress(),
        NotRefundable(None, None, settled=False),
        NotRefundable(Reason.EXCEEDS_ORIGINAL, 1, settled=True),
        RefundIdReused(),
    ]
    problems = [*map(api._refund_problem, refused), api._unavailable(), api._invalid_body("")]
    answered = {(each.status.value, each.code, each.retryable) for each in problems}
    edge = {(401, "UNAUTHENTICATED", False), (413, "TOO_LARGE", False), (429, "THROTTLED", True)}
    assert explained == answered | edge
    assert all(f'"{code}"' in SOURCES or code in SOURCES for _, code, _ in edge)


RACES = re.findall(r"^### (.*)$", _section(REFUNDS, "Races"), re.MULTILINE)


def test_there_is_a_picture_of_every_race() -> None:
    assert RACES == ["A refund before settlement", "Two at once", "A redelivery", "A crash"]


@pytest.mark.parametrize("race", RACES)
def test_a_race_has_its_picture_and_its_proof(race: str) -> None:
    section = _section(REFUNDS, race)
    assert section.count("sequenceDiagram") == 1
    assert "[`test_" in section.rpartition("Proved by")[2]


def _aws_commands(page: Path) -> list[list[str]]:
    """Each `aws …` of a page, in words; what the shell would fill in is left as it stands."""
    text = "\n".join(_fences(page, "sh")).replace("\\\n", " ")
    found = re.findall(r"(?:^|\$\()(aws (?:'[^']*'|\"\$\([^\n]*\"|[^')\n])*)", text, re.MULTILINE)
    return [shlex.split(re.sub(r'"\$\(.*"', "X", command)) for command in found]


def test_every_aws_command_is_one_with_options_that_it_has() -> None:
    commands = [command for page in PAGES for command in _aws_commands(page)]
    assert len(commands) > 7
    session = botocore.session.Session()
    for _, service, verb, *words in commands:
        model = session.get_service_model(service)
        operation = "".join(part.capitalize() for part in verb.split("-"))
        shape = model.operation_model(operation).input_shape
        assert isinstance(shape, botocore.model.StructureShape)
        given = {word[2:] for word in words if word.startswith("--")} - {"query", "output"}
        known = {botocore.xform_name(name, "-") for name in shape.members}
        given = {name.removeprefix("no-") if name not in known else name for name in given}
        assert given <= known, verb
        assert {botocore.xform_name(name, "-") for name in shape.required_members} <= given, verb


def test_the_event_that_a_page_puts_on_the_bus_is_read_as_a_refund() -> None:
    (words,) = [each for each in _aws_commands(REFUNDS) if each[2] == "put-events"]
    entry = dict(member.split("=") for member in words[words.index("--entries") + 1].split(","))
    assert entry["Detail"] == "'$DETAIL'"
    (detail,) = re.findall(r"^DETAIL='([^']*)'$", REFUNDS.read_text(), re.MULTILINE)
    envelope = {"id": "e", "source": entry["Source"], "detail-type": entry["DetailType"]}
    document = json.dumps(envelope | {"detail": json.loads(detail)})
    _, asked = contracts.read_bus_request(document, Defaults(KES, "KE"))
    assert isinstance(asked, Refund)
    assert (asked.refund_id, asked.amount_minor, asked.phone) == ("case-4711", 500, PHONE)


def test_the_rule_that_a_page_makes_hears_every_outcome() -> None:
    (words,) = [each for each in _aws_commands(REFUNDS) if each[2] == "put-rule"]
    pattern = json.loads(words[words.index("--event-pattern") + 1])
    outcomes = {name for name in _events() if name.startswith("Refund")}
    assert set(pattern["detail-type"]) == outcomes
    assert pattern["source"] == [EVENT_SOURCE]


# --- dead letters --------------------------------------------------------------------------


def _letter() -> Letter:
    """An open letter of which everything is known."""
    return Letter(
        letter_id="0" * 32,
        fingerprint="0" * 12,
        source=Source.TX_QUEUE,
        failure=Failure.UNFINISHED,
        why="ThrottlingException",
        place="ledger.py post",
        subject_ref="0" * 32,
        letter_class=LetterClass.TRANSIENT,
        verdict=Verdict.AUTO_REDRIVE,
        meaning="",
        status=LetterStatus.WAITING,
        preview="",
        lane="0" * 4,
        original=Original("m", PHONE, "d", 10, 1),
        arrived_at_ms=1,
        updated_at_ms=1,
        revision=1,
        due_at_ms=2,
        agent_id=AgentId("AG-001"),
        idempotency_key=IdempotencyKey("k-1"),
        attempt=1,
    )


def _letters_sent() -> list[dict[str, Any]]:
    """Every kind of write that triage and its desk make."""
    wire = _Wire()
    letters = DynamoDeadLetters(
        wire,  # type: ignore[arg-type]
        table="DeadLetters",
        offline_tx_table="OfflineTx",
        retention_days=1,
    )
    letter, row = _letter(), _row()
    waits = held(row, letter.letter_id, 1)
    redriven = moved(letter, LetterStatus.REDRIVEN, Action(2, "who", "redriven", "why"))
    letters.file(letter, "record", RowMove(row, waits))
    letters.file(replace(letter, status=LetterStatus.NOTED, due_at_ms=None), "record", None)
    letters.move(letter, redriven, RowMove(waits, released(waits, 2)), Budget(automatic=1))
    letters.look_later(letter)
    return wire.sent


def _named(cell: str) -> tuple[str, ...]:
    return () if cell == "any" else tuple(_code(cell))


def test_the_table_of_diagnoses_is_the_codes_rule_by_rule() -> None:
    section = _section(LETTERS, "What is diagnosed")
    standings, rules = _tables(section)
    documented = [
        (
            _named(row["Failure"]),
            _named(row["Standing"]),
            _code(row["Class"]),
            _code(row["Verdict"]),
            row["Meaning"],
        )
        for row in rules
    ]
    assert documented == [
        (
            rule.failures,
            rule.standings,
            [rule.diagnosis.letter_class],
            [rule.diagnosis.verdict],
            rule.diagnosis.meaning,
        )
        for rule in DIAGNOSES
    ]
    assert {_code(row["Standing"])[0] for row in standings} == set(Standing)
    (failures,) = _tables(_section(LETTERS, "How it failed"))
    assert {_code(row["Failure"])[0] for row in failures} == set(Failure)
    sources = _tables(_section(LETTERS, "Where letters come from"))[0]
    assert [_code(row["Source"])[0] for row in sources][:3] == [
        source for source in Source if source.takes_again
    ]
    assert {_code(row["Source"])[0] for row in sources} == set(Source)
    used_up = diagnose(Failure.UNFINISHED, Standing.OPEN, Budget(automatic=3))
    assert used_up.meaning in " ".join(section.split())


def test_the_life_of_a_letter_is_drawn_with_all_that_it_can_be() -> None:
    section = _section(LETTERS, "The life of a letter")
    moves = re.findall(r"^    (\[\*\]|\w+) --> (\w+): ", section, re.MULTILINE)
    assert {to for _, to in moves} == set(LetterStatus)
    assert {came for came, _ in moves} - {"[*]"} == {each for each in LetterStatus if each.is_open}
    class_of_group = _tables(_section(RUNBOOK, "Dead letters"))[0]
    assert {_code(row["Class"])[0] for row in class_of_group} == set(LetterClass)


def test_every_attribute_of_a_letter_is_explained() -> None:
    section = _section(LETTERS, "The table DeadLetters")
    kinds, attributes, writes = _tables(section)
    written: dict[str, set[str]] = {"letter": set(), "record": set(), "subject": set()}
    for write in _letters_sent():
        if write["TableName"] == "DeadLetters":
            item, update = write.get("Item", {}), _spelt(write, "UpdateExpression")
            kind = (item or write["Key"])["id"]["S"].split("#")[0]
            written[kind] |= {*item, *re.findall(r"(\w+) (?==|:)", update)}
    assert {_code(row["`id`"])[0].split("#")[0] for row in kinds} == written.keys()
    assert _attributes(attributes) == written["letter"]
    prose = section.partition("A record is the whole record")[2].partition("What is written")[0]
    assert written["record"] - written["letter"] | written["subject"] <= set(_code(prose))
    conditions = {_spelt(write, CONDITION) for write in _letters_sent()} - {""}
    assert {code for row in writes for code in _code(row["Condition"])} == conditions


def test_every_index_of_letters_is_explained() -> None:
    section = _section(LETTERS, "The table DeadLetters")
    for index in RESOURCES["DeadLettersTable"]["Properties"]["GlobalSecondaryIndexes"]:
        keys = ", ".join(f"`{key['AttributeName']}`" for key in index["KeySchema"])
        assert f"`{index['IndexName']}` ({keys})" in " ".join(section.split())
    assert f"`letter#{LETTER_SHARDS - 1}`" in section


def test_the_desk_answers_as_its_protocol_says() -> None:
    section = _section(LETTERS, "The desk")
    actions, outcomes = _tables(section)
    asked = Desk({}, None, {}, None)  # type: ignore[arg-type]
    refusal = desk.handle_request({}, asked, 0)["error"]
    assert refusal["code"] == "VALIDATION_FAILED"
    names = [_code(row["`action`"])[0] for row in actions]
    assert refusal["message"] == f"action: one of {', '.join(names)}"
    assert {_code(row["Outcome"])[0] for row in outcomes} == set(Acted)
    (filtered,) = re.findall(r"- `filter` takes(.*?), all optional", section, re.DOTALL)
    samples = {"class": "BUG", "source": "Inbox", "status": [], "arrivedFrom": 1, "arrivedUntil": 1}
    for name in _code(filtered):
        desk._filter({"filter": {name: samples.get(name, "x")}})
    assert len(_code(filtered)) == len(fields(views.Filter))


def test_a_letter_is_shown_with_the_members_that_the_page_names() -> None:
    told = _section(LETTERS, "The desk").partition("A letter in a list has")[2].partition("\n\n")[0]
    in_list, _, rest = told.partition("Shown by itself")
    by_itself, _, rest = rest.partition("revealed")
    revealed, _, group = rest.partition("A group has")
    letter, record = _letter(), {"eventSourceARN": "a:x-TxDLQ.fifo", "messageId": "m", "body": ""}
    listed = views.summary(letter)
    assert set(_code(in_list)) - {"transaction_ref"} == listed.keys()
    assert set(_code(by_itself)) == views.whole(letter, Budget()).keys() - listed.keys()
    assert set(_code(revealed)) == views.revealed(letter, json.dumps(record)).keys()
    assert set(_code(group)) == views.groups([letter])[0].keys()


# --- the runbook ---------------------------------------------------------------------------


ALARMS = [name for name, each in RESOURCES.items() if each["Type"] == "AWS::CloudWatch::Alarm"]


def test_the_runbook_has_a_section_for_each_alarm_and_no_other() -> None:
    section = _section(RUNBOOK, "Alarms")
    assert re.findall(r"^### (.*)$", section, re.MULTILINE) == ALARMS
    for name in ALARMS:
        told = _section(RUNBOOK, name)
        said = [told.find(f"\n*{part}*: ") for part in ("Meaning", "First look", "Action")]
        assert -1 < said[0] < said[1] < said[2], name
        assert re.search(r"^```sh\n(wakala|sam|aws) ", told, re.MULTILINE), name
        assert f"#{name.lower()}" in json.dumps(RESOURCES[name]["Properties"]["AlarmDescription"])


def test_a_page_that_the_command_names_is_there() -> None:
    named = set(re.findall(r"docs/([\w-]+\.md)(?:#([\w-]+))?", SOURCES))
    assert named
    for page, anchor in named:
        assert anchor in {"", *_slugs(DOCS / page)}, anchor


def test_every_answer_to_who_moves_letters_is_explained() -> None:
    _, answers = _tables(_section(RUNBOOK, "Dead letters"))
    of_the_clock = {Acted.PARKED, Acted.UNCHANGED}
    told = {*Acted} - of_the_clock | {LEFT, UNANSWERED}
    assert {code for row in answers for code in _code(row["Answer"])} == told


def test_what_is_put_back_by_hand_is_what_the_template_sets() -> None:
    section = _section(RUNBOOK, "Changed by hand")
    (table,) = _tables(section)
    told = {
        queue: (row["`VisibilityTimeout`"], row["`maxReceiveCount`"], row["Gives up to"].strip("`"))
        for row in table
        for queue in _code(row["Queue"])
    }
    assert told == {
        name: _queue(each["Properties"])
        for name, each in RESOURCES.items()
        if each["Type"] == "AWS::SQS::Queue"
    }
    otherwise = {
        name: handler for handler, name in re.findall(r"`([\w.]+)`\s+of\s([\w-]+)", section)
    }
    for name, function in FUNCTIONS.items():
        handler = otherwise.get(function, f"{function}.handler.handle")
        assert RESOURCES[name]["Properties"]["Handler"] == handler
    commands = " ".join(_fences(RUNBOOK, "sh")).replace("\\\n", " ")
    named = re.findall(r'--function-name "\$STACK-([\w-]+)" +--handler ([\w.]+)', commands)
    assert named == [("reconcile", "reconcile.handler.handle")]


def _queue(properties: dict[str, Any]) -> tuple[str, str, str]:
    """How long a queue hides a message, how often it gives one out, and what it gives up to."""
    redrive = properties.get("RedrivePolicy")
    seconds = str(properties["VisibilityTimeout"])
    if redrive is None:
        return seconds, "none", "none"
    target, _ = redrive["deadLetterTargetArn"]["Fn::GetAtt"]
    return seconds, str(redrive["maxReceiveCount"]), target


def test_an_item_that_a_person_mends_is_explained() -> None:
    told = set(_code(_section(RUNBOOK, "The books look wrong").partition("A balance item has")[2]))
    number, text = {"N": "1"}, {"S": WalletStatus.ACTIVE}
    item = {"phone": text, "currency": text, "status": text} | dict.fromkeys(
        ("balanceMinor", "version"), number
    )
    assert items.read_wallet(item).status is WalletStatus.ACTIVE
    assert {*item, *WalletStatus} - {"phone"} <= told


PROMISES = _tables(_section(LEDGER, "Promises"))[0]
SUITES = ["histories", "crash points", "pairs", "guards", "conformance", "chaos"]
"""What attacks promises, by the words of docs/proof.md."""


def test_there_are_twelve_promises() -> None:
    assert [row[""] for row in PROMISES] == [f"P{number}" for number in range(1, 13)]


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[""])
def test_a_promise_names_what_enforces_it_and_what_proves_it(row: Row) -> None:
    assert row["Enforced by"]
    assert "[`test_" in row["Proved by"]
    (rests_on,) = _tables(_section(PROOF, "What each promise rests on"))
    (attacked,) = [each["Attacked by"] for each in rests_on if each[""] == row[""]]
    named = [suite for suite in SUITES if suite in attacked]
    told = re.findall(r"\[([^`\]]*)\]\(proof\.md", row["Proved by"])
    assert told == ([", ".join(named)] if named else [])
