"""The two drivers of a sync, the background syncer, the token, and what goes over the wire."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_socket

from tests.fakes.agent_api import (
    AGENT,
    TOKEN,
    AgentApi,
    Fault,
    Reply,
    Wire,
    answered,
    dropped,
    lost,
    problem,
    raw,
    spoilt,
    unreached,
    well,
)
from wakala_agent import Backoff, Outbox, OutboxUnusable, Pace, Report, State, StorageFull, Syncer
from wakala_agent.api import ANSWER_BYTES_MAX

PHONE = "0712345678"
URL = "https://api.test/prod"
QUICK = Pace(requests_per_s=1e6, backoff=Backoff(0.001, 0.002))
WAIT_S = 10.0
"""More than anything here takes, also on a busy machine."""

NEVER = threading.Event()

Drive = Callable[[Syncer], Report]


@pytest.fixture(autouse=True)
def _pipes_are_no_network() -> None:
    """An event loop talks to itself through a pair of sockets."""
    pytest_socket.enable_socket()
    pytest_socket.disable_socket(allow_unix_socket=True)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    """An outbox that does not wait for the disk: what is on it is not the question here."""
    with Outbox(tmp_path / "outbox.db", AGENT) as opened:
        with opened._storage.reading() as connection:
            connection.execute("PRAGMA synchronous = OFF")
        yield opened


@pytest.fixture(params=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    if request.param == "sync":
        return lambda syncer: syncer.sync()
    return lambda syncer: asyncio.run(syncer.async_sync())


def _syncer(outbox: Outbox, wire: Wire, **others: Any) -> Syncer:
    options: dict[str, Any] = {"token": lambda: TOKEN, "pace": QUICK, "transport": wire.transport}
    return Syncer(outbox, URL, **options | others)


def _submit(outbox: Outbox, number: int) -> list[str]:
    return [outbox.submit(PHONE, n + 1) for n in range(number)]


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        NEVER.wait(0.002)


def _until_synced(outbox: Outbox, number: int) -> None:
    _until(lambda: outbox.counts() == {State.SYNCED: number})


# Both drivers carry out the same plan.


@pytest.mark.parametrize(
    "faults",
    [
        (),
        (lost, unreached, dropped),
        (answered(503, problem("UNAVAILABLE", 503, retryable=True)), raw(200, b"<html>")),
        (answered(401, problem("UNAVAILABLE", 401, retryable=True)), lost),
        (spoilt(lambda body: b"\x1f\x8b" + body), answered(413, problem("TOO_LARGE", 413))),
    ],
)
def test_either_way_each_ends_once(outbox: Outbox, drive: Drive, faults: tuple[Fault, ...]) -> None:
    keys = _submit(outbox, 60)
    wire = Wire(AgentApi(), faults)
    report = drive(_syncer(outbox, wire))
    assert (report.problem, report.stored) == (None, 0)
    assert list(wire.api.rows) == wire.api.debits == keys
    assert outbox.counts() == {State.SYNCED: 60}
    assert wire.api.breaches == []


def test_what_goes_over_the_wire(outbox: Outbox, drive: Drive) -> None:
    outbox.submit(PHONE, 100, idempotency_key="a:b.c_d-e")
    wire = Wire(AgentApi())
    drive(_syncer(outbox, wire))
    post, get = wire.requests
    assert (post.method, str(post.url)) == ("POST", f"{URL}/tx/offline/batch")
    assert post.headers["Content-Type"] == "application/json"
    assert (get.method, str(get.url)) == ("GET", f"{URL}/tx/status/a%3Ab.c_d-e")
    assert {each.headers["Authorization"] for each in wire.requests} == {TOKEN}
    assert post.extensions["timeout"]["connect"] == 10
    assert 30 < post.extensions["timeout"]["read"] <= 35


def test_with_nothing_to_do_not_even_a_token_is_asked_for(outbox: Outbox, drive: Drive) -> None:
    wire = Wire(AgentApi())
    assert drive(_syncer(outbox, wire, token=lambda: 1 / 0)) == Report()
    assert wire.requests == []


def test_an_answer_without_an_end_is_given_up(outbox: Outbox, drive: Drive) -> None:
    """Held in memory is no more than a full answer takes, however much comes."""
    read: list[int] = []

    class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(1_000_000):
                read.append(1)
                yield b" " * 1024

        async def __aiter__(self) -> Any:
            for chunk in self:
                yield chunk

    def endless(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Endless())

    _submit(outbox, 1)
    pace = Pace(budget_s=1.0, backoff=Backoff(0.1, 0.1, draw=lambda: 1.0))
    transport = httpx.MockTransport(endless)
    report = drive(Syncer(outbox, URL, lambda: TOKEN, pace=pace, transport=transport))
    assert report.problem in {
        "no time left: the rest stays in the outbox (an answer without an end)",
        "no time left: the rest stays in the outbox (TimeoutError)",
    }
    assert len(read) <= ANSWER_BYTES_MAX / 1024 + 1
    assert outbox.counts() == {State.STORED: 1}


def test_an_answer_that_drips_does_not_outlive_the_budget(outbox: Outbox, drive: Drive) -> None:
    class Dripping(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            for _ in range(1_000):
                NEVER.wait(0.01)
                yield b" "

        async def __aiter__(self) -> Any:
            for _ in range(1_000):
                await asyncio.to_thread(NEVER.wait, 0.01)
                yield b" "

    _submit(outbox, 1)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=Dripping()))
    pace = Pace(budget_s=0.1, backoff=Backoff(0.1, 0.1, draw=lambda: 1.0))
    before_s = time.monotonic()
    report = drive(Syncer(outbox, URL, lambda: TOKEN, pace=pace, transport=transport))
    assert time.monotonic() - before_s < WAIT_S / 2
    assert (report.requests, outbox.counts()) == (1, {State.STORED: 1})


def test_a_request_that_never_comes_back_is_left_alone_and_sends_nothing_later(
    outbox: Outbox,
) -> None:
    """A name that is looked up for ever, say: no timeout of httpx bounds that."""
    leave, sent = threading.Event(), list[httpx.Request]()

    def stuck(request: httpx.Request) -> httpx.Response:
        trace = request.extensions["trace"]
        trace("connection.connect_tcp.started", {})
        leave.wait(WAIT_S)
        trace("http11.send_request_headers.started", {})
        sent.append(request)
        return httpx.Response(200)

    _submit(outbox, 1)
    pace = Pace(budget_s=0.1, backoff=Backoff(0.1, 0.1, draw=lambda: 1.0))
    transport = httpx.MockTransport(stuck)
    before_s = time.monotonic()
    report = Syncer(outbox, URL, lambda: TOKEN, pace=pace, transport=transport).sync()
    assert time.monotonic() - before_s < WAIT_S / 2
    assert report.problem == "no time left: the rest stays in the outbox (TimeoutError)"
    assert [each.suspect for each in outbox.pending()] == [0], "it cannot have arrived"
    leave.set()
    _until(lambda: not any(t.name == "wakala-request" for t in threading.enumerate()))
    assert sent == []


def test_what_the_callers_transport_raises_comes_out(outbox: Outbox, drive: Drive) -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise RuntimeError("no card in the reader")

    _submit(outbox, 1)
    transport = httpx.MockTransport(broken)
    with pytest.raises(RuntimeError, match="no card"):
        drive(Syncer(outbox, URL, lambda: TOKEN, pace=QUICK, transport=transport))
    assert outbox.counts() == {State.STORED: 1}


# The token.


def test_a_token_is_kept_until_the_api_refuses_it(outbox: Outbox, drive: Drive) -> None:
    given = iter(["old", "new", "newer"])
    wire = Wire(AgentApi(token="old"))
    syncer = _syncer(outbox, wire, token=lambda: next(given))
    for token in ("old", "old", "new"):
        wire.api.token = token
        _submit(outbox, 2)
        assert drive(syncer).problem is None
    assert next(given) == "newer"


def test_what_the_token_callable_raises_comes_out_and_the_next_sync_goes_on(
    outbox: Outbox, drive: Drive
) -> None:
    """Also where it is an error of httpx: that the token cannot be had says nothing of the API."""
    wire = Wire(AgentApi())
    keys = _submit(outbox, 3)

    def fail() -> str:
        raise httpx.ConnectError("the sign-in server")

    with pytest.raises(httpx.ConnectError, match="the sign-in server"):
        drive(_syncer(outbox, wire, token=fail))
    assert wire.requests == []
    assert drive(_syncer(outbox, wire)).problem is None
    assert list(wire.api.rows) == keys


def test_a_token_that_takes_too_long_leaves_no_time_for_a_request(
    outbox: Outbox, drive: Drive
) -> None:
    wire, now = Wire(AgentApi()), [0.0]

    def slow() -> str:
        now[0] += 59.5
        return TOKEN

    _submit(outbox, 1)
    report = drive(_syncer(outbox, wire, token=slow, clock=lambda: now[0]))
    assert wire.requests == []
    assert report.problem is not None
    assert report.problem.endswith("(the token took too long)")


SECRET = "eyJhbGciOi.secret.c2ln"


@pytest.mark.parametrize("token", ["", f"{SECRET}\n", f"{SECRET}é", f" {SECRET}", SECRET.encode()])
def test_what_is_no_token_is_not_sent_and_not_told(
    outbox: Outbox, drive: Drive, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire(AgentApi())
    _submit(outbox, 1)
    with caplog.at_level(logging.DEBUG), pytest.raises(ValueError, match="no token") as raised:
        drive(_syncer(outbox, wire, token=lambda: token))
    assert "secret" not in f"{caplog.text} {raised.getrepr()}"
    assert (raised.value.__cause__, raised.value.__context__) == (None, None)
    assert wire.requests == []


def test_the_token_is_in_no_log_report_or_repr(
    outbox: Outbox, drive: Drive, caplog: pytest.LogCaptureFixture
) -> None:
    _submit(outbox, 3)
    wire = Wire(AgentApi(token=SECRET), [lost, unreached, raw(200, SECRET.encode()), well])
    syncer = _syncer(outbox, wire, token=lambda: SECRET)
    with caplog.at_level(logging.DEBUG):
        report = drive(syncer)
        wire.api.token = "another"
        _submit(outbox, 1)
        refused = drive(syncer)
    assert refused.problem == "the token is refused: sign in again"
    assert SECRET not in f"{caplog.text} {report} {refused} {syncer!r} {outbox!r}"
    assert PHONE not in f"{caplog.text} {list(outbox.pending())}"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.test/prod",
        "ftp://api.test",
        "http://api.test/prod",
        "http://localhost.evil.test",
        "http://127.0.0.1.evil.test",
        "https://",
        "https://api.test/prod?stage=1",
        "https://api.test/prod#top",
        "https://agent:secret@api.test/prod",
    ],
)
def test_a_token_goes_nowhere_in_the_clear(outbox: Outbox, url: str) -> None:
    with pytest.raises(ValueError, match=r"^url: "):
        Syncer(outbox, url, lambda: TOKEN)


def test_a_local_engine_needs_no_certificate(outbox: Outbox, drive: Drive) -> None:
    for url in ("http://localhost:4566/x/prod/", "http://127.0.0.1:1/prod", "http://[::1]/prod"):
        wire = Wire(AgentApi())
        _submit(outbox, 1)
        drive(Syncer(outbox, url, lambda: TOKEN, pace=QUICK, transport=wire.transport))
        assert wire.requests[0].url.path.endswith("/prod/tx/offline/batch")
        assert "//tx" not in wire.requests[0].url.path


# Several at once.


def test_of_two_syncers_of_one_outbox_one_works(outbox: Outbox, drive: Drive) -> None:
    """Whichever way the other is driven, and from whichever object."""
    entered, leave = threading.Event(), threading.Event()

    def slow(api: AgentApi, request: httpx.Request) -> Reply:
        entered.set()
        assert leave.wait(WAIT_S)
        return well(api, request)

    keys = _submit(outbox, 3)
    wire = Wire(AgentApi(), [slow])
    working = threading.Thread(target=lambda: drive(_syncer(outbox, wire)))
    working.start()
    assert entered.wait(WAIT_S)
    with Outbox(outbox.path, AGENT) as other:
        for opened in (outbox, other):
            for again in (Syncer.sync, lambda each: asyncio.run(each.async_sync())):
                report = again(_syncer(opened, wire))
                assert report.problem == "another sync of this outbox is under way"
    leave.set()
    working.join(WAIT_S)
    assert len(wire.requests) == 1 + len(keys)
    assert list(wire.api.debits) == keys


def test_threads_submit_while_a_syncer_runs_and_nothing_is_lost_or_doubled(outbox: Outbox) -> None:
    wire = Wire(AgentApi(), [lost, unreached, well, lost] * 4)
    syncer = _syncer(outbox, wire)
    keys: dict[int, list[str]] = {}

    def record(lane: int) -> None:
        phone = f"07123456{lane:02d}"
        keys[lane] = [outbox.submit(phone, n + 1) for n in range(25)]

    threads = [threading.Thread(target=record, args=(lane,)) for lane in range(4)]
    syncer.start(every_s=0.001, spread_s=0.001)
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    _until_synced(outbox, 100)
    syncer.stop()
    assert wire.api.phones() == {f"07123456{lane:02d}": mine for lane, mine in keys.items()}
    assert sorted(wire.api.debits) == sorted(key for mine in keys.values() for key in mine)
    assert wire.api.breaches == []


# The background syncer.


def test_the_background_syncer_works_until_it_is_stopped_and_may_start_again(
    outbox: Outbox,
) -> None:
    wire = Wire(AgentApi())
    syncer = _syncer(outbox, wire)
    for round_number in (1, 2):
        _submit(outbox, 1)
        syncer.start(every_s=3_600, spread_s=0)
        syncer.start(every_s=3_600, spread_s=0)
        _until_synced(outbox, 2 * round_number - 1)
        _submit(outbox, 1)
        syncer.wake()
        _until_synced(outbox, 2 * round_number)
        syncer.stop()
        assert [t for t in threading.enumerate() if t.name == "wakala-syncer"] == []
    syncer.stop()


@pytest.mark.parametrize("pausing", ["before a round", "between rounds", "in a round"])
def test_it_stops_at_once_in_a_pause(outbox: Outbox, pausing: str) -> None:
    _submit(outbox, 1)
    wire = Wire(AgentApi(), [unreached] * 99)
    long = Pace(budget_s=9_999, backoff=Backoff(3_600, 3_600, draw=lambda: 1.0))
    syncer = _syncer(outbox, wire, pace=long if pausing == "in a round" else QUICK)
    if pausing == "between rounds":
        wire.faults = iter(())
    if pausing == "before a round":
        syncer = _syncer(outbox, wire, pace=long)
    syncer.start(every_s=3_600, spread_s=1.0 if pausing == "before a round" else 0.0)
    if pausing != "before a round":
        _until(lambda: len(wire.requests) > 0)
    began_s = time.monotonic()
    syncer.stop()
    assert time.monotonic() - began_s < WAIT_S / 2
    assert not any(each.name == "wakala-syncer" for each in threading.enumerate())


def test_it_survives_what_a_round_raises_and_tells_it(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire(AgentApi())
    failures = iter([RuntimeError("no sign-in"), StorageFull("no space"), OutboxUnusable("gone")])

    def token() -> str:
        for error in failures:
            raise error
        return TOKEN

    _submit(outbox, 1)
    syncer = _syncer(outbox, wire, token=token)
    syncer.start(every_s=0, spread_s=0)
    _until_synced(outbox, 1)
    syncer.stop()
    assert caplog.text.count("a round of the background syncer failed") == 3


def test_a_listener_may_stop_the_syncer_that_called_it(
    outbox: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    _submit(outbox, 60)
    wire = Wire(AgentApi())
    syncer = _syncer(outbox, wire)
    outbox.on_change(lambda changed: syncer.stop())
    syncer.start(every_s=0, spread_s=0)
    _until(lambda: not any(t.name == "wakala-syncer" for t in threading.enumerate()))
    assert len(wire.requests) == 1
    outbox.submit(PHONE, 1)
    assert syncer.sync().problem is None, "and a sync by hand works on"
    assert "raised" not in caplog.text


def test_rounds_that_fail_come_later_and_later(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    _submit(outbox, 1)
    wire = Wire(AgentApi(), [answered(403, {})] * 4)
    pace = Pace(requests_per_s=1e6, backoff=Backoff(draw=lambda: 1.0))
    syncer = _syncer(outbox, wire, pace=pace)
    waits: list[float] = []

    class Waking(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            if len(waits) == 6:
                syncer._stopping.set()
            return True

    syncer._run(every_s=30, spread_s=0, stopping=syncer._stopping, wake=Waking())
    assert waits == [34, 38, 46, 62, 30, 30]


# Cancelling.


@dataclass
class Moment:
    """Where a sync is when it is cancelled: it waits there until it is let go."""

    name: str
    api: AgentApi = field(default_factory=AgentApi)
    inside: threading.Event = field(default_factory=threading.Event)
    leave: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        self.inside.set()
        self.leave.wait(WAIT_S)

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if self.name == "in a pause":
            asyncio.get_running_loop().call_later(0.05, self.inside.set)
            raise httpx.ReadTimeout("", request=request)
        told = well(self.api, request)
        if self.name == "in a request":
            self.inside.set()
            await asyncio.Event().wait()
        return httpx.Response(told.status, headers=told.headers, content=told.body)

    def token(self) -> str:
        if self.name == "in the token":
            self.wait()
        return TOKEN


@pytest.mark.parametrize("name", ["in a request", "in a pause", "in the token", "on the disk"])
def test_a_cancelled_sync_leaves_a_sound_outbox_and_no_lock(
    outbox: Outbox, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, moment = _submit(outbox, 3), Moment(name)
    learn = outbox.learn

    def slow(*news: Any) -> None:
        moment.wait()
        learn(*news)

    if name == "on the disk":
        monkeypatch.setattr(outbox, "learn", slow)
    pace = Pace(backoff=Backoff(3_600, 3_600, draw=lambda: 0.5), budget_s=9_999)
    transport = httpx.MockTransport(moment.answer)
    syncer = Syncer(outbox, URL, moment.token, pace=pace, transport=transport)

    async def cancel() -> None:
        syncing = asyncio.ensure_future(syncer.async_sync())
        await asyncio.to_thread(_until, moment.inside.is_set)
        for _ in range(3):
            syncing.cancel()
            await asyncio.wait([syncing], timeout=0.02 if name == "on the disk" else WAIT_S)
        assert syncing.done() == (name != "on the disk"), "a write that has begun is ended"
        with outbox.only_syncer() as alone:
            assert alone == syncing.done()
        moment.leave.set()
        with pytest.raises(asyncio.CancelledError):
            await syncing

    asyncio.run(cancel())
    monkeypatch.undo()
    assert _syncer(outbox, Wire(moment.api)).sync().problem is None
    assert list(moment.api.rows) == moment.api.debits == keys
