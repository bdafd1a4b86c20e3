"""A network between an app and the API that loses, delays, repeats and garbles what passes.

Faults go with the requests in their order, those of each method by themselves; then all is well.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

GIVEN_UP_S = 15.0
"""Longer than any app here waits for an answer."""


@dataclass(frozen=True)
class Reply:
    """What comes back."""

    status: int
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Passage:
    """One request on its way, and what can be done with it."""

    forward: Callable[[], Reply]
    """Let the API have it."""
    until_given_up: Callable[[], None]
    """Wait until the app has hung up."""
    until_another: Callable[[], None]
    """Wait until the API has answered a later one of the same method."""


type Fault = Callable[[Passage], Reply | None]
"""What becomes of a request: the answer, or None for a connection that just ends."""


def well(passage: Passage) -> Reply:
    """Nothing goes wrong."""
    return passage.forward()


def lost(passage: Passage) -> None:
    """The API does it, and its answer never comes."""
    passage.forward()


def dropped(passage: Passage) -> None:
    """It never arrives."""


def slow(passage: Passage) -> None:
    """The API does it at once, and answers after the app's patience."""
    passage.forward()
    passage.until_given_up()


def late(passage: Passage) -> None:
    """It arrives when the app has given it up, and after what the app sent then."""
    passage.until_given_up()
    passage.until_another()
    passage.forward()


def twice(passage: Passage) -> Reply:
    """The network delivers it twice, and the second answer comes."""
    passage.forward()
    return passage.forward()


def cut(passage: Passage) -> Reply:
    """The API does it, and half of its answer comes."""
    told = passage.forward()
    return Reply(told.status, told.body[: len(told.body) // 2], told.headers)


def answered(status: int, body: str, **headers: str) -> Fault:
    """Something on the way answers instead; `Retry_After` is spelt `Retry-After`."""
    spelt = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _: Reply(status, body.encode(), spelt)


@dataclass
class FaultProxy:
    """The API at another address. `breaks_at`: keys at whose requests the API seems to crash."""

    api_url: str
    faults: Mapping[str, Sequence[Fault]]
    breaks_at: set[str] = field(default_factory=set)
    url: str = ""
    requests: "Counter[str]" = field(default_factory=Counter)
    forwarded: "Counter[str]" = field(default_factory=Counter)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_spent(self) -> bool:
        """Whether every fault has happened."""
        return all(self.requests[method] >= len(each) for method, each in self.faults.items())

    @contextmanager
    def running(self) -> Iterator["FaultProxy"]:
        """Serve on a port of its own; at the end nothing is on its way any more."""
        with httpx.Client(timeout=30) as client:
            server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, client))
            server.daemon_threads = False  # closing waits for what is late
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()
                server.server_close()

    def fault_of(self, method: str, body: bytes) -> Fault:
        """What becomes of the next request of this method."""
        if any(key.encode() in body for key in self.breaks_at):
            return answered(500, "Internal Server Error")
        with self.changed:
            number = self.requests[method]
            self.requests[method] += 1
        faults = self.faults.get(method, ())
        return faults[number] if number < len(faults) else well


def _handler(proxy: FaultProxy, client: httpx.Client) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = GIVEN_UP_S

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            """Silence: pytest shows what matters."""

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            earlier = proxy.forwarded[self.command]
            passage = Passage(
                lambda: self._forward(body),
                self._until_given_up,
                lambda: self._until_another(earlier),
            )
            told = proxy.fault_of(self.command, body)(passage)
            self.close_connection = told is None
            if told is not None:
                with suppress(OSError):  # the app has given it up
                    self._answer(told)

        def _answer(self, told: Reply) -> None:
            self.send_response_only(told.status)
            for name, value in {**told.headers, "Content-Length": str(len(told.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(told.body)

        def _forward(self, body: bytes) -> Reply:
            sent = ("Authorization", "Content-Type")
            answer = client.request(
                self.command,
                proxy.api_url + self.path,
                content=body,
                headers={name: self.headers[name] for name in sent if name in self.headers},
            )
            with proxy.changed:
                proxy.forwarded[self.command] += 1
                proxy.changed.notify_all()
            kept = ("Content-Type", "Retry-After", "Date")
            headers = {name: answer.headers[name] for name in kept if name in answer.headers}
            return Reply(answer.status_code, answer.content, headers)

        def _until_given_up(self) -> None:
            with suppress(OSError):  # it was reset, or time is up
                while self.connection.recv(1):
                    pass

        def _until_another(self, earlier: int) -> None:
            with proxy.changed:
                proxy.changed.wait_for(
                    lambda: proxy.forwarded[self.command] > earlier, timeout=GIVEN_UP_S
                )

    return Handler
