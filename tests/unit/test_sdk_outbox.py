"""The outbox keeps what `submit` returned, and nothing of what it refused."""

import json
import logging
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from wakala_agent import (
    InvalidTransaction,
    KeyReused,
    LimitExceeded,
    Limits,
    Outbox,
    OutboxUnusable,
    State,
    StorageFull,
    Transaction,
    UnknownKey,
)
from wakala_agent.outbox import DAY_MS, News
from wakala_agent.storage import until_free

AGENT = "AG-001"
PHONE = "0712345678"
SDK = Path(__file__).parents[2] / "sdk"
NOW_MS = 1_796_000_000_000


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Outbox(tmp_path / "outbox.db", AGENT) as opened:
        yield opened


def _keys(listed: Iterator[Transaction]) -> list[str]:
    return [each.idempotency_key for each in listed]


def _run(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own, and a group, that knows the package."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(SDK)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _said(script: str, *arguments: object) -> str:
    """What such a process writes until it ends, with all its children."""
    with _run(script, *arguments) as process:
        try:
            return process.communicate(timeout=20)[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_what_was_submitted_is_there_in_its_order_when_the_app_comes_back(tmp_path: Path) -> None:
    with Outbox(tmp_path / "outbox.db", AGENT) as outbox:
        keys = [outbox.submit(PHONE, n) for n in range(1, 4)]
        named = outbox.submit("+254 712-345.678", 10**12, currency="TZS", idempotency_key="k:1")
    with Outbox(tmp_path / "outbox.db", AGENT) as outbox:
        assert _keys(outbox.pending()) == [*keys, named]
        last = outbox.status("k:1")
        assert last.request(AGENT) == {
            "agentId": AGENT,
            "phone": "+254 712-345.678",
            "amount": 10**12,
            "idempotencyKey": "k:1",
            "currency": "TZS",
            "capturedAt": last.captured_at,
        }
        assert (last.state, last.tries, last.state.is_final) == (State.STORED, 0, False)
        assert "712" not in repr(last), "a phone is no text for a log"


@pytest.mark.parametrize(
    ("phone", "amount", "currency", "key", "told"),
    [
        (PHONE, 0, None, "k", "amount"),
        (PHONE, 10**12 + 1, None, "k", "amount"),
        (PHONE, True, None, "k", "amount"),
        (PHONE, 1.0, None, "k", "amount"),
        (PHONE, "1", None, "k", "amount"),
        ("07123456７8", 1, None, "k", "phone"),
        ("0712345678\n", 1, None, "k", "phone"),
        ("123456", 1, None, "k", "phone"),
        ("12345678901234567", 1, None, "k", "phone"),
        (712345678, 1, None, "k", "phone"),
        (PHONE, 1, "kes", "k", "currency"),
        (PHONE, 1, "KES\n", "k", "currency"),
        (PHONE, 1, None, "", "idempotency_key"),
        (PHONE, 1, None, "a#b", "idempotency_key"),
        (PHONE, 1, None, "k" * 65, "idempotency_key"),
        (PHONE, 1, None, "k\n", "idempotency_key"),
    ],
)
def test_what_the_api_would_refuse_is_refused_while_the_customer_is_there(
    outbox: Outbox, phone: str, amount: int, currency: str | None, key: str, told: str
) -> None:
    with pytest.raises(InvalidTransaction, match=f"^{told}: "):
        outbox.submit(phone, amount, currency=currency, idempotency_key=key)
    assert outbox.counts() == {}


def test_the_same_key_is_the_same_transaction_however_the_phone_is_spelt(outbox: Outbox) -> None:
    outbox.submit(PHONE, 100, idempotency_key="k")
    assert outbox.submit("0712 345-678", 100, idempotency_key="k") == "k"
    outbox.submit("254712345678", 100, idempotency_key="l")
    assert outbox.submit("+254 712 345678", 100, idempotency_key="l") == "l"
    before = list(outbox.export())
    for phone, amount, currency in (
        (PHONE, 101, None),
        ("0712345679", 100, None),
        (PHONE, 100, "KES"),
        ("+0712345678", 100, None),
    ):
        with pytest.raises(KeyReused, match="'k'"):
            outbox.submit(phone, amount, currency=currency, idempotency_key="k")
    assert list(outbox.export()) == before


def test_no_more_is_stored_than_the_agent_may_risk(tmp_path: Path) -> None:
    limits = Limits(amount_max=500, stored_total_max=1_000, stored_max=4)
    with Outbox(tmp_path / "outbox.db", AGENT, limits=limits) as outbox:
        with pytest.raises(LimitExceeded, match="at most 500"):
            outbox.submit(PHONE, 501)
        first = outbox.submit(PHONE, 500)
        outbox.submit(PHONE, 400)
        with pytest.raises(LimitExceeded, match="900 minor units"):
            outbox.submit(PHONE, 101)
        outbox.submit(PHONE, 100)
        outbox.submit(PHONE, 500, currency="TZS")  # each currency has a total of its own
        with pytest.raises(LimitExceeded, match="4 transactions"):
            outbox.submit(PHONE, 1, currency="TZS")
        assert outbox.at_risk() == {None: 1_000, "TZS": 500}
        assert outbox.submit(PHONE, 500, idempotency_key=first) == first, "it is stored already"
        outbox.learn([News(first, State.QUEUED)], None)
        outbox.submit(PHONE, 500)
        assert outbox.at_risk() == {None: 1_000, "TZS": 500}, "the server has the first"


def test_a_key_that_is_not_there_is_told(outbox: Outbox) -> None:
    with pytest.raises(UnknownKey, match="nope"):
        outbox.status("nope")
    with pytest.raises(UnknownKey):
        outbox.retry("nope")


def test_a_refused_transaction_is_shown_and_may_be_tried_again(outbox: Outbox) -> None:
    problem = {"code": "VALIDATION_FAILED", "detail": "phone"}
    key = outbox.submit(PHONE, 100)
    outbox.learn([News(key, State.REFUSED, error=problem)], NOW_MS)
    (refused,) = outbox.refused()
    assert (refused.error, refused.ended_ms) == (problem, NOW_MS)
    assert outbox.at_risk() == {}
    assert json.loads(next(outbox.export()))["error"] == problem
    outbox.retry(key)
    outbox.retry(key)
    assert [each.error for each in outbox.next_to_send(50)] == [None]


STATES = list(State)
SERVERS_FINAL = [state for state in STATES if state.is_final and state is not State.REFUSED]


def test_an_old_answer_never_undoes_a_later_one() -> None:
    for final in SERVERS_FINAL:
        assert not any(
            final.may_become(state) for state in (State.STORED, State.QUEUED, State.REFUSED)
        )
    for state in STATES:
        assert all(state.may_become(final) for final in SERVERS_FINAL)
        assert state.may_become(State.STORED) == (state is State.QUEUED)
        assert state.may_become(State.REFUSED) == (state is State.STORED)
    assert State.REFUSED.may_become(State.QUEUED), "the server has it after all"


def test_listeners_are_told_after_the_disk_and_what_they_raise_changes_nothing(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, State]] = []

    def listen(changed: Transaction) -> None:
        with sqlite3.connect(outbox.path) as other:
            ((state,),) = other.execute(
                "SELECT state FROM transactions WHERE idempotency_key = ?",
                (changed.idempotency_key,),
            )
        told.append((changed.idempotency_key, State(state)))
        if changed.amount == 1:
            outbox.submit(PHONE, 2, idempotency_key="from a listener".replace(" ", "-"))

    def fail(changed: Transaction) -> None:
        raise RuntimeError("the app's own")

    outbox.on_change(fail)
    end = outbox.on_change(listen)
    with caplog.at_level(logging.CRITICAL, "wakala_agent"):
        key = outbox.submit(PHONE, 1)
        outbox.submit(PHONE, 1, idempotency_key=key)
        outbox.learn([News(key, State.QUEUED), News(key, State.QUEUED)], None)
        outbox.learn([News(key, State.SYNCED), News(key, State.QUEUED)], None)
        end()
        end()
        outbox.submit(PHONE, 3)
    assert told == [
        (key, State.STORED),
        ("from-a-listener", State.STORED),
        (key, State.QUEUED),
        (key, State.SYNCED),
    ]
    assert len(caplog.records) == 0
    outbox.submit(PHONE, 4)
    assert "a listener raised" in caplog.text
    assert outbox.counts() == {State.STORED: 3, State.SYNCED: 1}


@pytest.mark.parametrize(
    ("now_s", "captured_at"),
    [
        (1_796_000_000.25, "2026-11-30T00:53:20.250+00:00"),
        (946_684_799, None),
        (4_102_444_800, None),
        (0, None),
        (-1, None),
        (1e18, None),
        (math.inf, None),
        (math.nan, None),
    ],
)
def test_c41_a_clock_that_is_wrong_is_not_sent_and_stops_nobody(
    tmp_path: Path, now_s: float, captured_at: str | None
) -> None:
    with Outbox(tmp_path / "outbox.db", AGENT, now=lambda: now_s) as outbox:
        stored = outbox.status(outbox.submit(PHONE, 100))
        assert stored.captured_at == captured_at
        assert ("capturedAt" in stored.request(AGENT)) == (captured_at is not None)


def test_c41_what_was_captured_elsewhere_keeps_its_moment(outbox: Outbox) -> None:
    for moment in ("2026-07-31T09:08:49+03:00", "2000-01-01t00:00:00.123456789z"):
        stored = outbox.status(outbox.submit(PHONE, 100, captured_at=moment))
        assert stored.request(AGENT)["capturedAt"] == moment
    for wrong in (
        "",
        "2026-07-31",
        "2026-07-31T09:08:49",
        "2026-02-30T09:08:49Z",
        "2026-07-31T24:00:00Z",
        "2026-07-31T09:08:60Z",
        "2026-07-31T09:08:49+03:60",
        "1999-07-31T09:08:49Z",
        "٢٠٢٦-07-31T09:08:49Z",
        "2026-07-31T09:08:49Z\n",
        1_796_000_000,
    ):
        with pytest.raises(InvalidTransaction, match="captured_at"):
            outbox.submit(PHONE, 100, captured_at=wrong)  # type: ignore[arg-type]
    assert outbox.counts() == {State.STORED: 2}


def test_a_clock_that_jumps_changes_neither_order_nor_content(tmp_path: Path) -> None:
    clock = iter([1_796_000_000.0, 4e9, 1e9])
    with Outbox(tmp_path / "outbox.db", AGENT, now=lambda: next(clock)) as outbox:
        keys = [outbox.submit(PHONE, 100) for _ in range(3)]
        assert _keys(outbox.pending()) == keys
        before = [each.request(AGENT) for each in outbox.pending()]
        assert [each.request(AGENT) for each in outbox.next_to_send(50)] == before


def test_pruning_goes_by_the_servers_clock_and_spares_what_is_not_final(tmp_path: Path) -> None:
    device = iter([0.0, 4e9, 1e9, 5e9, 6e9])
    with Outbox(tmp_path / "outbox.db", AGENT, now=lambda: next(device)) as outbox:
        keys = [outbox.submit(PHONE, 100) for _ in range(5)]
        ended = [State.SYNCED, State.REFUSED, State.FAILED, State.QUEUED]
        for day, (key, state) in enumerate(zip(keys, ended, strict=False)):
            outbox.learn([News(key, state)], NOW_MS + day * DAY_MS)
        assert outbox.prune(older_than_days=3.1) == 0
        outbox.learn([], NOW_MS + 91 * DAY_MS)
        outbox.learn([], NOW_MS)  # an older answer, come late
        assert outbox.prune() == 2
        assert _keys(outbox.pending()) == keys[3:]
        assert outbox.status(keys[2]).state is State.FAILED
        assert outbox.prune(older_than_days=0) == 1
        assert outbox.prune(older_than_days=math.inf) == 0
        for wrong in (-1, math.nan):
            with pytest.raises(ValueError, match="0 or more"):
                outbox.prune(older_than_days=wrong)
        assert _keys(outbox.pending()) == keys[3:]


def test_what_the_server_never_dated_is_not_pruned(outbox: Outbox) -> None:
    key = outbox.submit(PHONE, 100)
    outbox.learn([News(key, State.SYNCED)], None)
    assert outbox.prune(older_than_days=0) == 0
    outbox.learn([], NOW_MS)
    assert outbox.prune(older_than_days=0) == 0


def test_many_are_pruned_in_transactions_that_nobody_waits_for(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wakala_agent.outbox.PRUNE_ROWS", 2)
    keys = [outbox.submit(PHONE, 100) for _ in range(5)]
    outbox.learn([News(key, State.SYNCED) for key in keys], NOW_MS)
    assert outbox.prune(older_than_days=0) == 5


# The file.


def test_commits_are_forced_to_the_disk_and_the_file_is_the_owners_alone(outbox: Outbox) -> None:
    outbox.submit(PHONE, 100)
    with outbox._storage.reading() as connection:
        pragmas = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": 2,
        "fullfsync": 1,
        "checkpoint_fullfsync": 1,
    }
    with outbox.only_syncer():
        for name in ("outbox.db", "outbox.db-wal", "outbox.db-shm", "outbox.db.sync"):
            assert (outbox.path.parent / name).stat().st_mode & 0o777 == 0o600


def test_another_agents_outbox_is_not_opened(outbox: Outbox) -> None:
    key = outbox.submit(PHONE, 100)
    with pytest.raises(OutboxUnusable, match="of agent 'AG-001'"):
        Outbox(outbox.path, "AG-002")
    assert _keys(outbox.pending()) == [key]
    with pytest.raises(InvalidTransaction, match="agent_id"):
        Outbox(outbox.path, "AG#1")


def _database(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


def test_what_is_no_outbox_is_told_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database" * 1000, encoding="utf-8")
    _database(tmp_path / "contacts", "CREATE TABLE people (name TEXT)")
    _database(tmp_path / "marked", "PRAGMA application_id = 7")
    _database(tmp_path / "versioned", "PRAGMA user_version = 7")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in before:
        with pytest.raises(OutboxUnusable, match=name):
            Outbox(tmp_path / name, AGENT)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    for impossible in (tmp_path, tmp_path / "no" / "such", tmp_path / "text" / "below"):
        with pytest.raises(OutboxUnusable):
            Outbox(impossible, AGENT)


def test_an_outbox_of_a_newer_version_is_not_touched(outbox: Outbox) -> None:
    outbox.submit(PHONE, 100)
    outbox.close()
    _database(outbox.path, "PRAGMA user_version = 2")
    with pytest.raises(OutboxUnusable, match="newer version"):
        outbox.submit(PHONE, 100)


def test_a_file_that_is_damaged_is_told(outbox: Outbox) -> None:
    for _ in range(50):
        outbox.submit(PHONE, 100)
    outbox.close()
    damaged = bytearray(outbox.path.read_bytes())
    damaged[4096:] = b"\xa5" * (len(damaged) - 4096)
    outbox.path.write_bytes(damaged)
    with pytest.raises(OutboxUnusable):
        list(outbox.pending())
    with pytest.raises(OutboxUnusable):
        outbox.submit(PHONE, 100)


def test_a_file_that_vanishes_takes_no_transaction_with_it_unseen(outbox: Outbox) -> None:
    outbox.submit(PHONE, 100)
    outbox.path.rename(outbox.path.with_name("elsewhere"))
    with pytest.raises(OutboxUnusable, match="deleted or replaced"):
        outbox.submit(PHONE, 100)
    outbox.close()
    with pytest.raises(OutboxUnusable, match="deleted or replaced"):
        outbox.submit(PHONE, 100)
    with Outbox(outbox.path, AGENT) as another:
        another.submit(PHONE, 100)
        outbox.submit(PHONE, 100)
        outbox.path.rename(outbox.path.with_name("elsewhere too"))
        with pytest.raises(OutboxUnusable, match="deleted or replaced"):
            list(another.pending())
        Outbox(outbox.path, AGENT).close()
        with pytest.raises(OutboxUnusable, match="deleted or replaced"):
            list(another.pending())


def test_the_path_means_the_same_file_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`:memory:` is a file like any other, and no place that dies with the process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "else").mkdir()
    with Outbox(":memory:", AGENT) as outbox:
        outbox.submit(PHONE, 100)
        outbox.close()
        monkeypatch.chdir(tmp_path / "else")
        assert outbox.counts() == {State.STORED: 1}
    assert (tmp_path / ":memory:").is_file()


@contextmanager
def _as_nobody() -> Iterator[None]:
    """Root reads and writes whatever it likes."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_file_that_may_not_be_written_is_told() -> None:
    with TemporaryDirectory() as folder, Outbox(Path(folder) / "outbox.db", AGENT) as outbox:
        outbox.submit(PHONE, 100)
        outbox.close()
        outbox.path.parent.chmod(0o755)
        outbox.path.chmod(0o444)
        with _as_nobody(), pytest.raises(OutboxUnusable):
            outbox.submit(PHONE, 100)
        outbox.path.chmod(0o600)
        outbox.submit(PHONE, 100)
        assert outbox.counts() == {State.STORED: 2}


def test_c12_cut_at_any_byte_of_its_log_the_file_holds_what_was_returned_by_then(
    outbox: Outbox, tmp_path: Path
) -> None:
    """Power fails, or a process is killed: each `submit` is there whole, or not at all."""
    log = outbox.path.with_name("outbox.db-wal")
    outbox.close()  # what is in the log from here on is what is submitted
    returned = [0]
    keys = []
    for n in range(4):
        keys.append(outbox.submit(PHONE, n + 1))
        returned.append(log.stat().st_size)
    written, copy = log.read_bytes(), tmp_path / "copy"
    for cut in sorted({*range(0, len(written), 997), *returned}):
        copy.mkdir()
        (copy / "outbox.db").write_bytes(outbox.path.read_bytes())
        (copy / "outbox.db-wal").write_bytes(written[:cut])
        with Outbox(copy / "outbox.db", AGENT) as after:
            found = _keys(after.pending())
            assert len(found) == sum(size <= cut for size in returned[1:])
            assert found == keys[: len(found)]
            after.submit(PHONE, 9)
        shutil.rmtree(copy)


# A full disk.


def _fill(outbox: Outbox, pages: int | None) -> None:
    with outbox._storage.reading() as connection:
        ((used,),) = connection.execute("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count = {used if pages is None else pages}")


def test_a_full_disk_stores_nothing_of_the_call_and_keeps_what_was_before(outbox: Outbox) -> None:
    keys = [f"k-{n}" for n in range(1_000)]
    told: list[Transaction] = []
    _fill(outbox, None)
    outbox.on_change(told.append)
    stored = 0
    with suppress(StorageFull):
        for key in keys:
            outbox.submit(PHONE, 100, idempotency_key=key)
            stored += 1
    with pytest.raises(StorageFull, match="nothing of this call was stored"):
        outbox.submit(PHONE, 100, idempotency_key=keys[stored])
    assert _keys(outbox.pending()) == keys[:stored]
    assert [each.idempotency_key for each in told] == keys[:stored]
    with Outbox(outbox.path, AGENT) as another:
        assert _keys(another.pending()) == keys[:stored]
    _fill(outbox, 10**6)
    outbox.submit(PHONE, 100, idempotency_key=keys[stored])
    assert _keys(outbox.pending()) == keys[: stored + 1]


ON_A_SMALL_DISK = """
import os, sys
from wakala_agent import Outbox, State, StorageFull
folder, keys = sys.argv[1], []
outbox = Outbox(f"{folder}/outbox.db", "AG-001")
for n in range(60):
    keys.append(outbox.submit("0712345678", 100))
filling = os.open(f"{folder}/others", os.O_CREAT | os.O_WRONLY)
try:
    while os.write(filling, bytes(4096)):
        pass
except OSError as error:
    assert error.errno == 28
told = 0
for n in range(500):
    try:
        keys.append(outbox.submit("0712345678", 100))
    except StorageFull:
        told += 1
assert told
assert [each.idempotency_key for each in outbox.pending()] == keys
outbox.close()
try:
    assert len(list(outbox.pending())) == len(keys)
except StorageFull:  # no space for the index of the log
    pass
try:
    Outbox(f"{folder}/another.db", "AG-001")
except StorageFull:
    told = 0
assert not told
os.unlink(f"{folder}/others")
os.close(filling)
keys.append(outbox.submit("0712345678", 100))
assert [each.idempotency_key for each in outbox.pending()] == keys
assert outbox.counts() == {State.STORED: len(keys)}
print("done")
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = f"mount -t tmpfs -o size=640k none {tmp_path}"
    try:
        subprocess.run([*inside, "sh", "-c", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk of one's own here")
    script = f'{mount} && exec "$0" -c "$1" {tmp_path}'
    done = subprocess.run(
        [*inside, "sh", "-c", script, sys.executable, ON_A_SMALL_DISK],
        env={**os.environ, "PYTHONPATH": str(SDK)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_an_error_of_the_file_on_a_full_disk_is_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite says so only where it writes a page: not for the log's index, nor for a new file."""
    (tmp_path / "outbox.db").mkdir()
    for free, error in ((10**9, OutboxUnusable), (0, StorageFull)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr("shutil.disk_usage", lambda _, usage=usage: usage)
        with pytest.raises(error):
            Outbox(tmp_path / "outbox.db", AGENT)


# Other processes.


def test_a_file_that_another_process_is_making_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter(["database is locked", "database schema is locked: main"])

    def attempt() -> str:
        for error in answers:
            raise sqlite3.OperationalError(error)
        return "opened"

    assert until_free(attempt) == "opened"
    answers = iter(["disk I/O error"])
    with pytest.raises(sqlite3.OperationalError):
        until_free(attempt)
    monkeypatch.setattr("wakala_agent.storage.BUSY_S", 0)
    answers = iter(["database is locked"])
    with pytest.raises(sqlite3.OperationalError):
        until_free(attempt)


FORKING = """
import os, sys, threading
from wakala_agent import Outbox
outbox = Outbox(sys.argv[1], "AG-001")
outbox.submit("0712345678", 1, idempotency_key="before")
ended, busy = threading.Event(), threading.Event()
def write():
    for n in range(2000):
        outbox.submit("0712345678", 1, idempotency_key="thread")
        busy.set()
        if ended.is_set():
            break
writer = threading.Thread(target=write)
writer.start()
busy.wait()
to_parent, to_child = os.pipe(), os.pipe()
with outbox.only_syncer() as alone:
    assert alone
    child = os.fork()
    if child == 0:
        with outbox.only_syncer() as mine:
            assert not mine
        outbox.submit("0712345678", 1, idempotency_key="child-1")
        os.write(to_parent[1], b".")
        os.read(to_child[0], 1)
        with outbox.only_syncer() as mine:
            assert mine
        keys = {"idempotency_key": "child-2"}
        another = threading.Thread(target=outbox.submit, args=("0712345678", 1), kwargs=keys)
        another.start()
        another.join()
        os._exit(0)
    os.read(to_parent[0], 1)
    outbox.submit("0712345678", 1, idempotency_key="parent")
    ended.set()
    writer.join()
outbox.close()
os.write(to_child[1], b".")
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_neither_side_loses_what_it_submits(tmp_path: Path) -> None:
    """Also where a thread was writing, and a sync was under way, in that very moment."""
    for number in range(2):
        path = tmp_path / f"{number}.db"
        assert _said(FORKING, path) == "done\n"
        with Outbox(path, AGENT) as outbox:
            keys = {"before", "thread", "child-1", "child-2", "parent"}
            assert {each.idempotency_key for each in outbox.pending()} == keys


ORPHANED = """
import os, signal, sys, time
from wakala_agent import Outbox
outbox = Outbox(sys.argv[1], "AG-001")
alive = os.pipe()
if os.fork() == 0:
    with outbox.only_syncer() as alone:
        if os.fork() == 0:
            os.close(alive[1])
            os.read(alive[0], 1)
            mine, deadline_s = False, time.monotonic() + 5
            while not mine and time.monotonic() < deadline_s:  # the system closes file after file
                with outbox.only_syncer() as mine:
                    pass
            print("alone" if mine else "not alone", flush=True)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
os.close(alive[1])
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_syncer_that_is_killed_leaves_no_lock_with_its_children(tmp_path: Path) -> None:
    assert _said(ORPHANED, tmp_path / "outbox.db") == "alone\n"


FIRST_OPENING = """
import sys
from wakala_agent import Outbox
print("ready", flush=True)
for path in sys.stdin:
    outbox = Outbox(path.strip(), "AG-001")
    for n in range(3):
        outbox.submit("0712345678", 1, idempotency_key=f"{sys.argv[1]}-{n}")
    outbox.submit("0712345678", 1, idempotency_key="shared")
    outbox.close()
    print("done", flush=True)
"""


def test_several_processes_may_make_the_outbox_at_the_same_moment(tmp_path: Path) -> None:
    processes = [_run(FIRST_OPENING, n) for n in range(3)]

    def read_all(word: str) -> None:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == f"{word}\n"

    read_all("ready")
    for number in range(6):
        path = tmp_path / f"{number}.db"
        for each in processes:
            assert each.stdin is not None
            each.stdin.write(f"{path}\n")
            each.stdin.flush()
        read_all("done")
        with Outbox(path, AGENT) as outbox:
            expected = {f"{process}-{n}" for process in range(3) for n in range(3)} | {"shared"}
            assert sorted(_keys(outbox.pending())) == sorted(expected)
    for each in processes:
        each.communicate(timeout=20)


def test_one_syncer_at_a_time_and_the_next_when_it_has_ended(outbox: Outbox) -> None:
    with Outbox(outbox.path, AGENT) as other:
        with outbox.only_syncer() as first, other.only_syncer() as second:
            assert (first, second) == (True, False)
        with other.only_syncer() as third:
            assert third
    outbox.path.with_name("outbox.db.sync").unlink()
    outbox.path.with_name("outbox.db.sync").mkdir()
    with pytest.raises(OutboxUnusable, match=r"\.sync"), outbox.only_syncer():
        pass


def test_an_app_that_only_submits_does_not_wait_for_the_network_library(tmp_path: Path) -> None:
    script = """
import sys
from wakala_agent import Outbox, Syncer
outbox = Outbox(sys.argv[1], "AG-001")
Syncer(outbox, "https://api.test", lambda: "")
outbox.submit("0712345678", 1)
print({"httpx", "asyncio", "ssl"} & set(sys.modules))
"""
    assert _said(script, tmp_path / "outbox.db") == "set()\n"


def test_lists_are_read_in_pages(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wakala_agent.outbox.PAGE_ROWS", 2)
    keys = [outbox.submit(PHONE, 100) for _ in range(5)]
    listed = outbox.pending()
    assert next(listed).idempotency_key == keys[0]
    outbox.learn([News(keys[1], State.SYNCED), News(keys[3], State.SYNCED)], None)
    keys.append(outbox.submit(PHONE, 100))
    assert _keys(listed) == [keys[1], keys[2], keys[4], keys[5]], "a page is as of its reading"
    assert len(list(outbox.export())) == 6
