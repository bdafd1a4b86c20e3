"""A server that never stops sending a byte now and then holds no sync beyond its budget."""

import asyncio
import datetime
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fakes.agent_api import AGENT, TOKEN
from wakala_agent import Backoff, Outbox, Pace, Report, State, Syncer

BYTE_S = 0.05
BUDGET_S = 3.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
TRICKLES = {
    "a status line": b"HTTP/1.1 200 ",
    "a header": HEAD + b"X-Header: ",
    "a body": HEAD + b"Content-Length: 100000\r\n\r\n",
    "a body in chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n100000\r\n",
}
PACE = Pace(budget_s=BUDGET_S, timeout_s=0.5, backoff=Backoff(0.01, 0.01))

Drive = Callable[[Syncer], Report]


@dataclass
class Server:
    """It answers each request with `begun`, and from then on a byte each 50 ms until hung up on."""

    begun: bytes
    listening: socket.socket
    tls: ssl.SSLContext | None
    requests: list[bytes] = field(default_factory=list)
    hung_up: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}/prod"

    def serve(self) -> None:
        """Until it is closed."""
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                threading.Thread(target=self._trickle, args=(connection,), daemon=True).start()

    def _trickle(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            self.requests.append(connection.recv(65_536))
            connection.sendall(self.begun)
            while True:
                time.sleep(BYTE_S)
                connection.sendall(b"1")
        self.hung_up.append("")


@contextmanager
def _serving(begun: bytes, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Server(begun, listening, tls)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(BUDGET_S)


def _waiting(syncer: Syncer) -> Report:
    return syncer.sync()


def _async(syncer: Syncer) -> Report:
    return asyncio.run(syncer.async_sync())


@pytest.mark.parametrize("drive", [_waiting, _async], ids=["sync", "async"])
@pytest.mark.parametrize("begun", TRICKLES.values(), ids=TRICKLES.keys())
def test_an_answer_that_trickles_is_given_up_in_time(
    tmp_path: Path, begun: bytes, drive: Drive
) -> None:
    """The server is hung up on, nothing is left running, and nothing is believed."""
    with Outbox(tmp_path / "outbox.db", AGENT) as outbox, _serving(begun) as server:
        outbox.submit("0712345678", 100)
        before_s = time.monotonic()
        report = drive(Syncer(outbox, server.url, lambda: TOKEN, pace=PACE))
        took_s = time.monotonic() - before_s
        assert took_s < BUDGET_S + 1.0
        assert report.requests == len(server.requests) >= 2
        assert report.problem == "no time left: the rest stays in the outbox (TimeoutError)"
        assert outbox.counts() == {State.STORED: 1}
        assert not [t for t in threading.enumerate() if t.name == "wakala-request"]
        _until(lambda: len(server.hung_up) == report.requests)


def test_so_is_one_over_a_transport_of_the_callers_and_tls(
    tmp_path: Path, certificate: Path
) -> None:
    """A transport's connections are httpx's, and what is cut is below TLS."""
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(certificate)
    with Outbox(tmp_path / "outbox.db", AGENT) as outbox, _serving(HEAD + b"X: ", theirs) as server:
        outbox.submit("0712345678", 100)
        ours = ssl.create_default_context(cafile=certificate)
        transport = httpx.HTTPTransport(retries=1, verify=ours)
        url = server.url.replace("http:", "https:")
        before_s = time.monotonic()
        report = Syncer(outbox, url, lambda: TOKEN, pace=PACE, transport=transport).sync()
        assert time.monotonic() - before_s < BUDGET_S + 1.0
        assert report.problem == "no time left: the rest stays in the outbox (TimeoutError)"
        _until(lambda: len(server.hung_up) == len(server.requests) >= 2)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1 by itself, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an API")])
    day = datetime.timedelta(days=1)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    path = tmp_path / "certificate.pem"
    path.write_bytes(
        made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    )
    return path


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
