"""An agent's app is killed again and again, and no transaction is lost, doubled or overtaken."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest

from tests.fakes.agent_api import AGENT, TOKEN, FakeApi, Reply, Wire, problem, reply
from wakala_agent import Outbox, Pace, State, Syncer

CHILD = Path(__file__).with_name("sdk_child.py")
ROOT = Path(__file__).parents[2]
ROUNDS = 200
ROUND_S_MAX = 20.0
"""A round that takes longer hangs."""


@dataclass
class Device:
    """The apps' process, and what was heard of them."""

    process: subprocess.Popen[str]
    stored: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Key → phone and amount, in the order in which `submit` returned them."""
    doing: dict[str, str] = field(default_factory=dict)
    apps: list[int] = field(default_factory=list)

    def listen(self) -> str:
        """The next line's first word."""
        assert self.process.stdout is not None
        word, *rest = self.process.stdout.readline().split(maxsplit=3)
        if word == "stored":
            self.stored[rest[0]] = (rest[1], int(rest[2]))
        elif word == "doing":
            self.doing[rest[0]] = rest[1]
        elif word == "born":
            self.apps = [int(app) for app in " ".join(rest).split()]
        elif word == "failed":
            pytest.fail(" ".join(rest).encode().decode("unicode_escape"))
        return word

    def kill(self) -> None:
        """All apps, at once; they are not waited for by anybody before that."""
        for app in self.apps:
            os.kill(app, signal.SIGKILL)


class Server:
    """The API on a port of its own: in one of four requests something goes wrong.

    `on_request` is called in the middle of each: before it is carried out, or after.
    """

    def __init__(self, api: FakeApi, chance: random.Random) -> None:
        self.api = api
        self.chance = chance
        self.on_request: Callable[[], None] = lambda: None

    def answer(self, method: str, path: str, token: str, body: bytes) -> Reply | None:
        """What is answered; None: nothing, and the connection ends."""
        with self.api.lock:
            fault, early = self.chance.random(), self.chance.random() < 0.5
        if early:
            self.on_request()
        if fault < 0.04:
            return None
        if fault < 0.08:
            return reply(503, problem("UNAVAILABLE", 503, retryable=True))
        told = self.api.answer(method, path, token, body)
        if fault < 0.1:  # delivered twice
            told = self.api.answer(method, path, token, body)
        if not early:
            self.on_request()
        if fault < 0.18:
            return None
        if fault < 0.21:
            return Reply(502, b"<html>Bad Gateway</html>")
        return Reply(200, told.body[:-9], told.headers) if fault < 0.24 else told


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, answering: Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answering = answering


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def handle(self) -> None:
        with suppress(OSError):  # whom it was for is dead
            super().handle()

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        self.close_connection = len(body) < length  # killed while it was sent
        if not self.close_connection:
            self._answer(body)

    def log_request(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, body: bytes) -> None:
        token = self.headers["Authorization"]
        told = self.server.answering.answer(self.command, self.path, token, body)
        if told is None:
            self.close_connection = True
            return
        self.send_response(told.status)
        for name, value in told.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(told.body)))
        self.end_headers()
        self.wfile.write(told.body)


@contextmanager
def _served(server: Server) -> Iterator[str]:
    with _Http(server) as http:
        serving = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        serving.join()


@contextmanager
def _device(outbox: Path, url: str) -> Iterator[Device]:
    command = [sys.executable, str(CHILD), str(outbox), url, TOKEN]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "sdk")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Device(process)
        assert process.stdin is not None
        process.stdin.close()


def _live_and_die(device: Device, server: Server, chance: random.Random) -> str:
    """One round. The moment of death: by time, by what an app said last, or inside a request."""
    assert device.process.stdin is not None
    server.on_request = lambda: None
    device.doing = {}
    device.process.stdin.write(f"{chance.random()} {1 if chance.random() < 0.75 else 2}\n")
    device.process.stdin.flush()
    while device.listen() != "born":
        pass
    moment = chance.choice(["time", "said", "said", "asked"])
    if moment == "asked":
        left = [chance.randint(1, 4)]

        def count() -> None:
            left[0] -= 1
            if left[0] == 0:
                device.kill()

        server.on_request = count
    if moment == "said":
        for _ in range(chance.randint(1, 8)):
            device.listen()
    if moment != "asked":
        time.sleep(chance.choice([0, chance.uniform(0, 0.002), chance.uniform(0, 0.01)]))
        device.kill()
    while device.listen() != "dead":
        pass
    return ",".join(sorted({*device.doing.values()})) or "opening"


def _killed_in(killed: Counter[str], *words: str) -> int:
    return sum(n for what, n in killed.items() if any(word in what for word in words))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: a killed process leaves a file as it is, on the disk or not."""
    memory = Path("/dev/shm")  # noqa: S108  # a folder of our own is made in it
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)


def test_p1_p5_killed_at_any_moment_nothing_is_lost_doubled_or_overtaken(folder: Path) -> None:
    seed = int(os.environ.get("WAKALA_SEED", random.randrange(10**6)))
    print(f"WAKALA_SEED={seed}")
    chance, path = random.Random(seed), folder / "outbox.db"
    api = FakeApi(asks_until_settled=1)
    server = Server(api, random.Random(f"{seed} server"))
    killed: Counter[str] = Counter()
    with _served(server) as url, _device(path, url) as device:
        for _ in range(ROUNDS):
            killed[_live_and_die(device, server, chance)] += 1
    print(f"{dict(killed)}, {len(device.stored)} stored, {len(api.batches)} batches")
    assert _killed_in(killed, "submit", "sync") >= ROUNDS / 2
    assert min(_killed_in(killed, "submit"), _killed_in(killed, "sync")) >= ROUNDS / 20

    pace = Pace(requests_per_s=1e6)
    with Outbox(path, AGENT) as outbox:
        syncer = Syncer(
            outbox, "https://api.test", lambda: TOKEN, pace=pace, transport=Wire(api).transport
        )
        for _ in range(50):
            assert syncer.sync().problem is None
        assert {*outbox.counts()} <= {State.SYNCED}
        kept = {json.loads(line)["idempotencyKey"] for line in outbox.export()}
    assert api.breaches == []
    content = {key: (row["phone"], row["amount"]) for key, row in api.rows.items()}
    assert {key: content.get(key) for key in device.stored} == device.stored, "each has its content"
    assert kept <= content.keys(), "and what was stored in the moment of death is there too"
    assert Counter(api.debits) == Counter(api.rows.keys()), "each is debited once"
    for phone, accepted in api.phones().items():
        submitted = [key for key, (its, _) in device.stored.items() if its == phone]
        assert [key for key in accepted if key in device.stored] == submitted
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
