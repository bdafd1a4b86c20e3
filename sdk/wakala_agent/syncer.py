"""The syncer: brings what the outbox holds to the server, and what became of it back.

`sync` and `async_sync` are two ways to carry out one plan (plan.py).
"""

import logging
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from wakala_agent.api import Answer, Call
from wakala_agent.outbox import Outbox
from wakala_agent.plan import Gate, NewToken, Pace, Pause, Plan, Report, Step, Steps
from wakala_agent.transaction import State

if TYPE_CHECKING:  # an app that only submits does not wait for it
    import httpx

_TOKEN = re.compile(r"[!-~]+( [!-~]+)*", re.ASCII)
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|::1", re.ASCII)

_TOKEN_LATE = Answer(why="the token took too long", unreached=True)

_T = TypeVar("_T")
_log = logging.getLogger("wakala_agent")


class Syncer:
    """Syncs one outbox with one API. Safe to kill at any point, and to run again."""

    def __init__(
        self,
        outbox: Outbox,
        url: str,
        token: Callable[[], str],
        *,
        pace: Pace | None = None,
        transport: "httpx.BaseTransport | httpx.AsyncBaseTransport | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`url` of the API with its stage, https but on this machine; `token` gives an ID token.

        `token` is called before the first request and where the API refuses the last one it gave;
        it may use the network. `transport` is httpx's: for a proxy, a certificate, a test.
        """
        self._outbox = outbox
        self._url = _checked(url)
        self._token = token
        self._pace = pace or Pace()
        self._transport: Any = transport
        self._clock = clock
        self._gate = Gate()
        self._current_token: str | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def sync(self, budget_s: float | None = None) -> Report:
        """Send what is stored, ask what became of what is queued; what happened.

        It returns when nothing is left to be sent, when its budget is over, or at the first
        thing that waiting does not mend. It raises only what the outbox or `token` raises, and
        ValueError where that gave no token.
        """
        return self._sync(budget_s, threading.Event())

    async def async_sync(self, budget_s: float | None = None) -> Report:
        """`sync` for asyncio; the disk and `token` are used in threads. It may be cancelled."""
        plan = self._plan(budget_s, threading.Event())
        with self._outbox.only_syncer() as alone:
            if not alone:
                return _not_alone(plan.report)
            steps = plan.steps()
            step = await _in_thread(lambda: next(steps, None))
            if step is not None:
                await self._carry_on_async(steps, step)
        return await _in_thread(lambda: self._finished(plan.report))

    def start(self, every_s: float = 30.0, spread_s: float = 10.0) -> None:
        """Sync in a thread of its own until `stop`.

        Each round comes after `every_s` or a call of `wake`, and a random part of `spread_s`: a
        network that comes back comes back to everybody at once. Rounds that fail come later and
        later, up to the backoff's cap. What a round raises is logged under `wakala_agent`.
        """
        if self._thread is not None and self._thread.is_alive() and not self._stopping.is_set():
            return
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(every_s, spread_s, self._stopping, self._wake),
            name="wakala-syncer",
            daemon=True,
        )
        self._thread.start()

    def wake(self) -> None:
        """Let the background syncer begin a round soon: the network is back, say."""
        self._wake.set()

    def stop(self, timeout_s: float = 40.0) -> None:
        """End the background syncer: at once in a pause, else after the request that it is in."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(
        self, every_s: float, spread_s: float, stopping: threading.Event, wake: threading.Event
    ) -> None:
        failures = 0
        while not stopping.wait(self._pace.backoff.spread_s(spread_s)):
            wake.clear()
            failures = 0 if self._round(stopping) else failures + 1
            later_s = self._pace.backoff.wait_s(failures) if failures else 0.0
            if not stopping.is_set():
                wake.wait(every_s + later_s)

    def _round(self, stopping: threading.Event) -> bool:
        try:
            return self._sync(None, stopping).problem is None
        except Exception:  # a full disk, a token that cannot be had: the next round may pass
            _log.exception("a round of the background syncer failed")
            return False

    def _sync(self, budget_s: float | None, stopping: threading.Event) -> Report:
        plan = self._plan(budget_s, stopping)
        with self._outbox.only_syncer() as alone:
            if not alone:
                return _not_alone(plan.report)
            steps = plan.steps()
            step = next(steps, None)
            if step is not None:
                self._carry_on(steps, step, stopping)
        return self._finished(plan.report)

    def _plan(self, budget_s: float | None, stopping: threading.Event) -> Plan:
        return Plan(
            outbox=self._outbox,
            pace=self._pace,
            gate=self._gate,
            clock=self._clock,
            deadline_s=self._clock() + (self._pace.budget_s if budget_s is None else budget_s),
            stopping=stopping.is_set,
        )

    def _finished(self, report: Report) -> Report:
        report.stored = self._outbox.counts().get(State.STORED, 0)
        return report

    # Carrying a plan out.

    def _carry_on(self, steps: Steps[None], step: Step | None, stopping: threading.Event) -> None:
        from wakala_agent.line import Line

        with Line(self._transport) as line:
            while step is not None:
                answer: Answer | None = None
                if isinstance(step, Pause):
                    stopping.wait(step.seconds)
                elif isinstance(step, NewToken):
                    self._current_token = None
                else:
                    ends_s = self._clock() + step.timeout_s
                    request = self._request(step)  # what `token` raises is no failure of the API
                    left_s = ends_s - self._clock()
                    answer = line.fetch(request, left_s) if left_s > 0 else _TOKEN_LATE
                step = _next(steps, answer)

    async def _carry_on_async(self, steps: Steps[None], step: Step | None) -> None:
        import asyncio

        from wakala_agent.line import AsyncLine

        async with AsyncLine(self._transport) as line:
            while step is not None:
                answer: Answer | None = None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                elif isinstance(step, NewToken):
                    self._current_token = None
                else:
                    ends_s = self._clock() + step.timeout_s
                    request = await asyncio.to_thread(self._request, step)
                    left_s = ends_s - self._clock()
                    answer = await line.fetch(request, left_s) if left_s > 0 else _TOKEN_LATE
                step = await _in_thread(partial(_next, steps, answer))

    def _request(self, call: Call) -> dict[str, Any]:
        return {
            "method": call.method,
            "url": self._url + call.path,
            "json": call.body,
            "headers": {"Authorization": self._valid_token()},
        }

    def _valid_token(self) -> str:
        """Not even an error may hold what is no token, so it is looked at before httpx does."""
        if self._current_token is None:
            token: object = self._token()
            if not isinstance(token, str) or not _TOKEN.fullmatch(token):
                raise ValueError("token() gave something that is no token")
            self._current_token = token
        return self._current_token


def _checked(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_plain_but_local = parts.scheme == "http" and _LOOPBACK.fullmatch(host)
    if not host or not (parts.scheme == "https" or is_plain_but_local):
        raise ValueError("url: https://…, as a token and phone numbers travel (http: localhost)")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError("url: the API's address with its stage, and nothing after it")
    return url.rstrip("/")


def _not_alone(report: Report) -> Report:
    report.problem = "another sync of this outbox is under way"
    return report


def _next(steps: Steps[None], answer: Answer | None) -> Step | None:
    with suppress(StopIteration):
        return steps.send(answer)
    return None


async def _in_thread(call: Callable[[], _T]) -> _T:
    """To its end, even if the task is cancelled: the lock is not given back under a write."""
    import asyncio

    running = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
