"""The syncer: brings what the outbox holds to the server, and what became of it back.

What is done is one plan, a generator of steps that knows no network and no clock; `sync` and
`async_sync` are two ways to carry its steps out.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx

from wakala_agent.backoff import Backoff
from wakala_agent.outbox import Outbox, State, Transaction

BATCH_MAX = 50
"""Transactions in one request, as the API takes them."""

ASK_MAX = 200
"""Queued transactions that one sync asks for, those first that were asked for least."""

SPLIT_STATUSES = frozenset({400, 413, 422})
"""A request refused whole for what is in it: each half is tried, down to the one it is about."""


@dataclass
class Report:
    """What one sync did. `problem`: why it stopped before everything was sent, if it did."""

    sent: int = 0
    accepted: int = 0
    replayed: int = 0
    refused: int = 0
    asked: int = 0
    ended: int = 0
    requests: int = 0
    failures: int = 0
    stored: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Pause:
    seconds: float


@dataclass(frozen=True)
class _NewToken:
    pass


@dataclass(frozen=True)
class _Answer:
    """An answer, or why there was none. `body` is empty where it was no JSON object."""

    status: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)
    retry_after_s: float = 0.0
    why: str = ""

    @property
    def may_pass(self) -> bool:
        """Whether the same request may fare better later: the API says so, else its status."""
        if self.status == 0:
            return True
        said = self.body.get("retryable")
        if isinstance(said, bool):
            return said
        return self.status in (408, 425, 429) or self.status >= 500 or not self.body

    @property
    def told(self) -> str:
        """In a few words, for a log."""
        return self.why or f"{self.status} {self.body.get('code', '')}".strip()


_Step = _Request | _Pause | _NewToken
_Plan = Generator[_Step, Any, None]


class _Stopped(Exception):
    """The sync ends here; what is left stays in the outbox."""


class Syncer:
    """Syncs one outbox with one API. Safe to kill at any point, and to run again."""

    def __init__(
        self,
        outbox: Outbox,
        url: str,
        token: Callable[[], str],
        *,
        backoff: Backoff = Backoff(),  # noqa: B008  # frozen
        budget_s: float = 60.0,
        requests_per_s: float = 5.0,
        timeout_s: float = 35.0,
        clock: Callable[[], float] = time.monotonic,
        transport: Any = None,
    ) -> None:
        """`url` of the API with its stage; `token` gives a valid ID token, a new one if asked again.

        `budget_s` bounds one sync, waits included; `requests_per_s` paces it. `timeout_s` is above
        the gateway's own 29 s, so that an answer is not given up while it may still come.
        """
        self._outbox = outbox
        self._url = url.rstrip("/")
        self._token = token
        self._backoff = backoff
        self._budget_s = budget_s
        self._pace_s = 1 / requests_per_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._transport = transport
        self._current_token: str | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def sync(self, budget_s: float | None = None) -> Report:
        """Send what is stored, ask what became of what is queued; what happened.

        It returns when nothing is left to be sent, when its budget is over, or at the first
        thing that waiting does not mend; it raises only what the outbox or `token` raises.
        """
        report = Report()
        with self._outbox.only_syncer() as alone, self._client() as client:
            if not alone:
                report.problem = "another sync of this outbox is under way"
                return report
            plan = self._plan(report, self._deadline(budget_s))
            step = next(plan, None)
            while step is not None:
                step = _send(plan, self._carry_out(step, client))
        return self._finished(report)

    async def async_sync(self, budget_s: float | None = None) -> Report:
        """`sync` for an event loop; the disk is used in threads."""
        report = Report()
        with self._outbox.only_syncer() as alone:
            if not alone:
                report.problem = "another sync of this outbox is under way"
                return report
            options: Any = {"timeout": self._timeout_s, "transport": self._transport}
            async with httpx.AsyncClient(**options) as client:
                plan = self._plan(report, self._deadline(budget_s))
                step = await asyncio.to_thread(next, plan, None)
                while step is not None:
                    result = await self._carry_out_async(step, client)
                    step = await asyncio.to_thread(_send, plan, result)
        return self._finished(report)

    def start(self, every_s: float = 30.0, spread_s: float = 10.0) -> None:
        """Sync in a thread of its own until `stop`.

        Each round comes after `every_s` or a call of `wake`, and a random part of `spread_s`: a
        network that comes back comes back to everybody at once. Rounds that fail come later and
        later, up to the backoff's cap.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        self._stopping.clear()
        self._thread = threading.Thread(
            target=self._run, args=(every_s, spread_s), name="wakala-syncer", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Let the background syncer begin a round soon: the network is back, say."""
        self._wake.set()

    def stop(self, timeout_s: float = 40.0) -> None:
        """End the background syncer after the request that it is in."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():  # in a request still: it ends after that
                return
        self._stopping.clear()

    def _run(self, every_s: float, spread_s: float) -> None:
        failures = 0
        while not self._stopping.is_set():
            if self._stopping.wait(self._backoff.spread_s(spread_s)):
                return
            self._wake.clear()
            try:
                failed = self.sync().problem is not None
            except Exception as error:  # noqa: BLE001  # a full disk, say: the next round may pass
                failed = True
                threading.excepthook(
                    threading.ExceptHookArgs(
                        (type(error), error, error.__traceback__, threading.current_thread())
                    )
                )
            failures = failures + 1 if failed else 0
            later_s = self._backoff.wait_s(failures) if failures else 0.0
            self._wake.wait(every_s + later_s)

    # The plan.

    def _plan(self, report: Report, deadline_s: float) -> _Plan:
        try:
            yield from self._send_stored(report, deadline_s)
            yield from self._ask_for_queued(report, deadline_s)
        except _Stopped as stopped:
            before = f" ({report.problem})" if report.problem else ""
            report.problem = f"{stopped}{before}"

    def _send_stored(self, report: Report, deadline_s: float) -> _Plan:
        """In the order of submission, so in the order of each phone; a failure holds it all up."""
        failures = 0
        while page := self._outbox.next_to_send(BATCH_MAX):
            retry_after_s = yield from self._send_page(page, report, deadline_s)
            if retry_after_s is None:
                failures = 0
                continue
            failures += 1
            report.failures += 1
            yield from self._pause(self._backoff.wait_s(failures, retry_after_s), deadline_s)

    def _send_page(
        self, page: list[Transaction], report: Report, deadline_s: float
    ) -> Generator[_Step, Any, float | None]:
        """Send a page. None: each has its answer; else seconds that the server asks to wait."""
        unsure = {each.idempotency_key for each in page if each.tries}
        self._outbox.trying([each.idempotency_key for each in page])
        report.sent += len(page)
        body = {"transactions": [each.request(self._outbox.agent_id) for each in page]}
        answer = yield from self._request(
            _Request("POST", "/tx/offline/batch", body), report, deadline_s
        )
        if answer.status == 200:
            results = _results(answer.body, page)
            if results is None:
                report.problem = "an answer that is none of this API's"
                return 0.0
            return (yield from self._learn_all(page, results, unsure, report, deadline_s))
        if answer.may_pass:
            report.problem = answer.told
            return answer.retry_after_s
        if answer.status not in SPLIT_STATUSES:
            raise _Stopped(answer.told)
        if len(page) > 1:
            for half in (page[: len(page) // 2], page[len(page) // 2 :]):
                waits_s = yield from self._send_page(half, report, deadline_s)
                if waits_s is not None:
                    return waits_s
            return None
        return (yield from self._refused(page[0], answer.body, unsure, report, deadline_s))

    def _learn_all(
        self,
        page: list[Transaction],
        results: list[Mapping[str, Any]],
        unsure: set[str],
        report: Report,
        deadline_s: float,
    ) -> Generator[_Step, Any, float | None]:
        waits_s: float | None = None
        for each, result in zip(page, results):
            problem = result.get("error")
            if problem is None:
                replayed = result.get("replayed") is True
                report.replayed += replayed
                report.accepted += not replayed
                self._learn(each.idempotency_key, result, report)
            elif problem.get("retryable") is True:
                report.problem = str(problem.get("code"))
                waits_s = 0.0
            else:
                later = yield from self._refused(each, problem, unsure, report, deadline_s)
                waits_s = waits_s if later is None else later
        if waits_s is None:
            report.problem = None
        return waits_s

    def _refused(
        self,
        each: Transaction,
        problem: Mapping[str, Any],
        unsure: set[str],
        report: Report,
        deadline_s: float,
    ) -> Generator[_Step, Any, float | None]:
        """Believe a refusal only where no earlier try, whose answer was lost, was accepted."""
        key = each.idempotency_key
        if key in unsure and problem.get("code") != "KEY_REUSED":
            answer = yield from self._status(key, report, deadline_s)
            if answer.status == 200 and _state(answer.body) is not None:
                self._learn(key, answer.body, report)
                return None
            if answer.status != 404:
                report.problem = answer.told
                return answer.retry_after_s
        report.refused += 1
        self._outbox.refuse(key, problem)
        return None

    def _ask_for_queued(self, report: Report, deadline_s: float) -> _Plan:
        for each in self._outbox.next_to_ask(ASK_MAX):
            answer = yield from self._status(each.idempotency_key, report, deadline_s)
            report.asked += 1
            if answer.status == 200 and _state(answer.body) is not None:
                self._learn(each.idempotency_key, answer.body, report)
            elif answer.status == 404 and answer.body.get("code") == "NOT_FOUND":
                self._outbox.forget_queued(each.idempotency_key)
            else:
                raise _Stopped(answer.told)

    def _status(
        self, key: str, report: Report, deadline_s: float
    ) -> Generator[_Step, Any, _Answer]:
        path = f"/tx/status/{quote(key, safe='')}"
        return (yield from self._request(_Request("GET", path), report, deadline_s))

    def _request(
        self, request: _Request, report: Report, deadline_s: float
    ) -> Generator[_Step, Any, _Answer]:
        """One request in its turn; where the token has lapsed, once more with a new one."""
        for again in (False, True):
            if report.requests:
                yield from self._pause(self._pace_s, deadline_s)
            report.requests += 1
            answer: _Answer = yield request
            if answer.status != 401:
                return answer
            if again:
                break
            yield _NewToken()
        raise _Stopped("the token is refused: sign in again")

    def _pause(self, seconds: float, deadline_s: float) -> _Plan:
        """Never into the deadline: a wait after which nothing could be done is not begun."""
        if self._stopping.is_set() or self._clock() + seconds >= deadline_s:
            raise _Stopped("out of time: the rest stays in the outbox")
        yield _Pause(seconds)

    def _learn(self, key: str, view: Mapping[str, Any], report: Report) -> None:
        state = _state(view)
        if state is None:
            return
        reason = view.get("reason")
        self._outbox.learn(key, state, str(reason) if reason is not None else None)
        report.ended += state.is_final

    # Carrying the plan out.

    def _carry_out(self, step: _Step, client: httpx.Client) -> _Answer | None:
        if isinstance(step, _Pause):
            self._stopping.wait(step.seconds)
            return None
        if isinstance(step, _NewToken):
            self._current_token = None
            return None
        try:
            return _read(client.send(self._built(step, client)))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return _Answer(why=type(error).__name__)

    async def _carry_out_async(self, step: _Step, client: httpx.AsyncClient) -> _Answer | None:
        if isinstance(step, _Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, _NewToken):
            self._current_token = None
            return None
        try:
            return _read(await client.send(await asyncio.to_thread(self._built, step, client)))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return _Answer(why=type(error).__name__)

    def _built(self, step: _Request, client: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        if self._current_token is None:
            self._current_token = self._token()
        return client.build_request(
            step.method,
            self._url + step.path,
            json=step.body,
            headers={"Authorization": self._current_token},
        )

    def _client(self) -> httpx.Client:
        options: Any = {"timeout": self._timeout_s, "transport": self._transport}
        return httpx.Client(**options)

    def _deadline(self, budget_s: float | None) -> float:
        return self._clock() + (self._budget_s if budget_s is None else budget_s)

    def _finished(self, report: Report) -> Report:
        report.stored = self._outbox.counts().get(State.STORED, 0)
        return report


def _send(plan: _Plan, result: _Answer | None) -> _Step | None:
    with suppress(StopIteration):
        return plan.send(result)
    return None


def _read(response: httpx.Response) -> _Answer:
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        body = None
    retry_after = response.headers.get("Retry-After", "")
    return _Answer(
        status=response.status_code,
        body=body if isinstance(body, dict) else {},
        retry_after_s=float(retry_after) if retry_after.isdecimal() else 0.0,
    )


def _results(body: Mapping[str, Any], page: list[Transaction]) -> list[Mapping[str, Any]] | None:
    """A result for each of the page, in its order; None for what is no such answer."""
    results = body.get("results")
    if not isinstance(results, list) or len(results) != len(page):
        return None
    for result, each in zip(results, page):
        if not isinstance(result, dict):
            return None
        if "error" in result:
            if not isinstance(result["error"], dict):
                return None
        elif result.get("idempotencyKey") != each.idempotency_key or _state(result) is None:
            return None
    return results


def _state(view: Mapping[str, Any]) -> State | None:
    """The server's word for where a transaction is; None for one that is not known here."""
    try:
        state = State(view.get("status"))
    except ValueError:
        return None
    return None if state in (State.STORED, State.REFUSED) else state
