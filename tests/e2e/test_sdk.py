"""The SDK against the deployed stack, with a bad network between, and its examples as printed."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from examples import kiosk

from tests.e2e.actors import DEADLINE_S, Agent, BackOffice, eventually, wakala
from tests.e2e.fault_proxy import (
    Fault,
    FaultProxy,
    answered,
    cut,
    dropped,
    late,
    lost,
    slow,
    twice,
    well,
)
from wakala import agents, wallets
from wakala.home import checkout
from wakala.stack import Stack
from wakala_agent import Backoff, Outbox, Pace, State, Syncer, Transaction
from wallet_ledger.aws import items
from wallet_ledger.domain.transactions import OfflineTransaction
from wallet_ledger.domain.wallets import Posted

SDK = checkout() / "sdk"
SEED = 20_261_129
TIMEOUT_S = 2.0
PACE = Pace(timeout_s=TIMEOUT_S, requests_per_s=1_000, backoff=Backoff(0.01, 0.1))

SITTINGS, EACH = 10, 8
RICH, BUSY, POOR, NOBODY, MENDED = (f"25471290000{n}" for n in range(5))
FUNDS = {RICH: 100_000, BUSY: 100_000, POOR: 150, MENDED: 1_000}
"""Minor units; what is debited from the poor one is more, and the last but one has no wallet."""
UNREADABLE = "0700 000"
"""What the API refuses and the SDK, which knows no numbering plan, does not."""

PASSWORD = "A-kiosk's password, 1"

NOT_NOW = answered(503, json.dumps({"code": "UNAVAILABLE", "retryable": True}), Retry_After="0")
THROTTLED = answered(429, json.dumps({"code": "THROTTLED", "retryable": True}), Retry_After="1")
CRASHED = answered(500, "Internal Server Error")
CAPTIVE = answered(200, "<html>Please sign in to this Wi-Fi</html>", Content_Type="text/html")
BAD_GATEWAY = answered(502, "<html>502</html>", Content_Type="text/html")
GARBAGE = answered(200, '{"results": [{"status": "synced"}]}')

OF_POSTS = [
    *[lost, lost, twice, cut],
    *[dropped, slow, late, NOT_NOW, THROTTLED, CRASHED, CAPTIVE, BAD_GATEWAY, GARBAGE],
]
OF_GETS = [lost, twice, cut, dropped, NOT_NOW, CRASHED, CAPTIVE, BAD_GATEWAY, GARBAGE]


@dataclass
class Day:
    """An agent's app: what it recorded, in order, and what its listener heard of each."""

    outbox: Outbox
    proxy: FaultProxy
    syncer: Syncer
    chance: Random
    recorded: list[tuple[str, str, int]] = field(default_factory=list)
    heard: dict[str, list[State]] = field(default_factory=dict)

    def play(self) -> None:
        """Record and sync in turns, until all but what the server crashes at is off the device."""
        self.outbox.on_change(self._listen)
        for sitting in range(SITTINGS):
            if sitting == 2:
                self.proxy.breaks_at.add(self._record(MENDED))
                self._record(MENDED)
                self._record(UNREADABLE)
                self._record(NOBODY)
            for _ in range(EACH):
                self._record(self.chance.choice([RICH, BUSY, POOR]))
            if sitting % 2:
                self.syncer.sync()
            else:
                asyncio.run(self.syncer.async_sync())
        eventually(self._only_that_is_left, "all others off the device")
        self.proxy.breaks_at.clear()
        eventually(self._all_ended, "the end of every transaction")

    def keys(self, phone: str) -> list[str]:
        """Of one phone, in the order of submission."""
        return [key for key, of, _ in self.recorded if of == phone]

    def _record(self, phone: str) -> str:
        amount = self.chance.randint(1, 50)
        key = self.outbox.submit(phone, amount)
        self.recorded.append((key, phone, amount))
        return key

    def _listen(self, changed: Transaction) -> None:
        self.heard.setdefault(changed.idempotency_key, []).append(changed.state)

    def _only_that_is_left(self) -> bool | None:
        stored = {each.phone for each in self.outbox.pending() if each.state is State.STORED}
        assert MENDED in stored
        if stored == {MENDED}:
            return True
        self.syncer.sync()
        return None

    def _all_ended(self) -> bool | None:
        self.syncer.sync()
        return None if list(self.outbox.pending()) else True


@pytest.fixture(scope="module")
def days(
    stack: Stack,
    enrol: Callable[[str], Agent],
    back_office: BackOffice,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Day]]:
    """Two agents have played theirs at the same time, on the same wallets."""
    for phone, amount in FUNDS.items():
        back_office.fund(phone, amount)
    with ExitStack() as open_, ThreadPoolExecutor(2) as pool:
        apps = [enrol(f"SDK-{number}") for number in range(2)]
        list(pool.map(lambda app: app.status("none"), apps))  # a cold start is no fault of ours
        made = []
        for number, app in enumerate(apps):
            agent_id, chance = app.agent_id, Random(SEED + number)
            faults = {"POST": _mixed(OF_POSTS, 1, chance), "GET": _mixed(OF_GETS, 4, chance)}
            proxy = open_.enter_context(FaultProxy(stack.api_url, faults).running())
            path = tmp_path_factory.mktemp(agent_id) / "outbox.db"
            outbox = open_.enter_context(Outbox(path, agent_id))
            with outbox._storage.reading() as connection:  # nobody is killed here: spare the disk
                connection.execute("PRAGMA synchronous = OFF")
            token = _tokens(stack, agent_id)
            made.append(Day(outbox, proxy, Syncer(outbox, proxy.url, token, pace=PACE), chance))
        list(pool.map(Day.play, made))
        yield made


def test_every_transaction_ends_once_whatever_the_network_did(
    days: list[Day], stack: Stack
) -> None:
    """P5, P6: as the device heard it, and as the server has it; and every fault has happened."""
    for day in days:
        assert day.proxy.is_spent
        rows = _rows(stack, day)
        for key, phone, amount in day.recorded:
            known = day.outbox.status(key)
            assert [state.is_final for state in day.heard[key]].count(True) == 1
            if phone == UNREADABLE:
                assert (known.state, key in rows) == (State.REFUSED, False)
                assert (known.error or {})["code"] == "VALIDATION_FAILED"
            else:
                assert (known.state.value, known.reason) == (rows[key].status, rows[key].reason)
                assert rows[key].amount_minor == amount


def test_each_is_debited_once_or_refused_for_what_its_wallet_lacks(
    days: list[Day], stack: Stack, back_office: BackOffice
) -> None:
    """P1, P2: two agents on one wallet, one of them the poor's."""
    debited = dict.fromkeys(FUNDS, 0)
    for phone in FUNDS:
        posted = [
            (entry.actor, entry.reference)
            for entry in wallets.statement(stack, phone)
            if entry.kind == "debit" and isinstance(entry.outcome, Posted)
        ]
        synced = [
            (day.outbox.agent_id, key)
            for day in days
            for key in day.keys(phone)
            if day.outbox.status(key).state is State.SYNCED
        ]
        assert sorted(posted) == sorted(synced)
    for day in days:
        for key, phone, amount in day.recorded:
            match day.outbox.status(key):
                case Transaction(state=State.SYNCED):
                    debited[phone] += amount
                case Transaction(state=State.FAILED, reason=reason):
                    wanted = {POOR: "INSUFFICIENT_FUNDS", NOBODY: "WALLET_NOT_FOUND"}
                    assert reason == wanted[phone]
                case Transaction(state=state):
                    assert (phone, state) == (UNREADABLE, State.REFUSED)
    assert debited[POOR] > 0
    for phone, amount in FUNDS.items():
        assert back_office.balance(phone) == amount - debited[phone]


@pytest.mark.parametrize("phone", [RICH, BUSY, POOR, MENDED])
def test_each_phones_transactions_arrive_and_are_posted_in_their_order(
    days: list[Day], stack: Stack, phone: str
) -> None:
    """P10, for each agent: also what waited for a crash to be mended, and what came too late."""
    entries = wallets.statement(stack, phone)
    for day in days:
        rows, keys = _rows(stack, day), day.keys(phone)
        assert len(keys) > 1
        arrived = [rows[key].created_at_ms for key in keys]
        assert arrived == sorted(arrived)
        versions = {
            entry.reference: entry.outcome.version
            for entry in entries
            if entry.actor == day.outbox.agent_id and isinstance(entry.outcome, Posted)
        }
        posted = [versions[key] for key in keys if key in versions]
        assert posted == sorted(posted)


def test_the_books_are_sound_after_it(days: list[Day]) -> None:
    verdict = json.loads(wakala("audit", "--json").stdout)
    assert verdict["ok"] is True


def test_the_readmes_example_runs_as_printed(
    stack: Stack, agent: Agent, back_office: BackOffice, tmp_path: Path
) -> None:
    """And again: its receipt's number is its key, so that is one debit."""
    script = SDK / "examples" / "first_sync.py"
    printed = re.findall(r"^```python\n(.*?)^```$", _readme(), re.DOTALL | re.MULTILINE)
    assert printed[0] == script.read_text(encoding="utf-8")
    assert len(printed[0].splitlines()) < 20
    back_office.fund("254712345678", 10_000)
    before = back_office.balance("254712345678") or 0
    told = {
        "AGENT": agent.agent_id,
        "API": stack.api_url,
        "TOKEN": agents.token(stack, agent.agent_id),
    }

    runs = [_run(script, tmp_path, told) for _ in range(2)]

    assert runs[0].splitlines() == ["on the disk, no network needed: stored", "ended: synced"]
    assert runs[1].splitlines()[-1] == "ended: synced"
    assert back_office.balance("254712345678") == before - 1_500


def test_the_kiosk_signs_in_syncs_in_the_background_and_signs_in_again(
    stack: Stack,
    enrol: Callable[[str], Agent],
    back_office: BackOffice,
    phone: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    enrol("SDK-KIOSK")
    agents.enroll(stack, "SDK-KIOSK", PASSWORD)
    back_office.fund(phone, 1_000)
    client_id = stack.output("UserPoolClientId")
    sign_in = kiosk.SignIn(str(stack.endpoint_url), client_id, "SDK-KIOSK", PASSWORD)
    assert sign_in()
    sign_in._password = {}  # from here on it has what it was given to refresh its tokens with
    settled = threading.Semaphore(0)

    def lines(syncer: Syncer) -> Iterator[str]:
        for amount in (100, 200):
            yield f"{phone} {amount}\n"
            assert settled.acquire(timeout=DEADLINE_S)
            syncer._current_token = "lapsed"
        yield f"{phone} much\n"

    with Outbox(tmp_path / "outbox.db", "SDK-KIOSK", limits=kiosk.LIMITS) as outbox:
        outbox.on_change(lambda changed: settled.release() if changed.state.is_final else None)
        syncer = Syncer(outbox, stack.api_url, sign_in)
        syncer.start(every_s=0.2, spread_s=0.05)
        kiosk.serve(lines(syncer), outbox, syncer)
        syncer.stop()

    said = capsys.readouterr().out
    assert said.count("synced") == 2
    assert "not recorded: invalid literal for int" in said
    assert back_office.balance(phone) == 700


def test_the_readmes_commands_run_as_printed(
    stack: Stack, back_office: BackOffice, tmp_path: Path
) -> None:
    """In a shell, from the root of a checkout: from the enrolment to the kiosk's end."""
    (tmp_path / "sdk").symlink_to(SDK)
    first_sync, at_the_kiosk = re.findall(
        r"^```sh\n(.*?)^```$", _readme(), re.DOTALL | re.MULTILINE
    )

    with _shell(first_sync, tmp_path) as shell:
        assert shell.communicate()[0].endswith("ended: synced\n")
    before = back_office.balance("254712345678") or 0
    with _shell(at_the_kiosk, tmp_path) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("0712345678 1500\n")
        shell.stdin.flush()
        said = next(line for line in shell.stdout if re.search(" (queued|synced) $", line))
        rest = shell.communicate()[0]
    assert re.match("[0-9a-f-]{36} ", said)
    assert rest.endswith("only on this device, by currency: {}\n")
    after = before - 1_500
    eventually(lambda: back_office.balance("254712345678") == after or None, "the kiosk's debit")


def _shell(commands: str, folder: Path) -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        ["/bin/bash", "-euc", commands],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _mixed(faults: list[Fault], between: int, chance: Random) -> list[Fault]:
    """In any order, some of them in a row, the others with requests between that go well."""
    mixed: list[Fault] = []
    for number, fault in enumerate(chance.sample(faults, len(faults))):
        mixed += [well] * (between if number % 3 else 0) + [fault]
    return mixed


def _tokens(stack: Stack, agent_id: str) -> Callable[[], str]:
    return lambda: agents.token(stack, agent_id)


def _rows(stack: Stack, day: Day) -> dict[str, OfflineTransaction]:
    """Key → row of what the server has of an agent."""
    pages = stack.dynamodb.get_paginator("query").paginate(
        TableName=stack.output("OfflineTxTable"),
        ConsistentRead=True,
        KeyConditionExpression="agentId = :agent",
        ExpressionAttributeValues={":agent": {"S": day.outbox.agent_id}},
    )
    rows = [items.read_offline_tx(item) for page in pages for item in page["Items"]]
    return {row.idempotency_key: row for row in rows}


def _readme() -> str:
    return (SDK / "README.md").read_text(encoding="utf-8")


def _run(script: Path, home: Path, told: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(SDK)} | told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
