"""A thousand agents come online within one second, in virtual time.

What each does next is the SDK's own plan (wakala_agent/plan.py), how long it waits the SDK's own
`Backoff`; the gateway is the template's: a token bucket, and a 429 for whoever finds it empty.
"""

import heapq
import inspect
import itertools
import json
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, cast

from tests.fakes.agent_api import TOKEN, AgentApi, Reply
from tests.template import RESOURCES, TEMPLATE
from wakala_agent import Backoff, Outbox, Pace, State, Syncer, Transaction
from wakala_agent.api import Answer, Call, read_answer
from wakala_agent.outbox import News
from wakala_agent.plan import Gate, Pause, Plan

AGENTS = 1_000
ROUND_TRIP_S = (0.05, 0.25)
RATE_PER_S: int = TEMPLATE["Parameters"]["ApiRateLimit"]["Default"]
BURST: int = TEMPLATE["Parameters"]["ApiBurstLimit"]["Default"]
BACKGROUND = {
    name: each.default for name, each in inspect.signature(Syncer.start).parameters.items()
}
"""The defaults of the background syncer."""

type Step = Call | Pause
type App = Generator[Step, Answer | None]


@dataclass(frozen=True)
class Strategy:
    """When an agent's app tries again, and over how long its first try is spread."""

    name: str
    backoff: Callable[[Random], Backoff]
    spread_s: float = 0.0


def _at_the_bound() -> float:
    """No jitter."""
    return 1.0


FIXED = Strategy("a fixed interval of 5 s", lambda _: Backoff(5.0, 5.0, _at_the_bound))
EXPONENTIAL = Strategy("exponential, no jitter", lambda _: Backoff(draw=_at_the_bound))
SYNC = Strategy("the SDK: sync() at once", lambda chance: Backoff(draw=chance.random))
START = Strategy("the SDK: start()", SYNC.backoff, BACKGROUND["spread_s"])
STRATEGIES = (FIXED, EXPONENTIAL, SYNC, START)


@dataclass
class Course:
    """What the gateway saw, and when the last agent was through. Seconds since the first."""

    admitted_s: list[float] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    sent_s: dict[str, float] = field(default_factory=dict)
    heard_s: dict[str, float] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        """How many there were."""
        return len(self.admitted_s) + len(self.refused_s)

    def busiest(self, after_s: float = 0.0) -> int:
        """The most requests within any second after that moment."""
        times = [at for at in sorted(self.admitted_s + self.refused_s) if at >= after_s]
        first, most = 0, 0
        for last, at in enumerate(times):
            while times[first] <= at - 1:
                first += 1
            most = max(most, last - first + 1)
        return most


@dataclass
class Pocket:
    """An agent's outbox with one transaction, and no disk."""

    agent_id: str
    held: Transaction

    def suspects(self) -> set[str]:
        """The server itself fails at nothing here."""
        return set()

    def next_to_send(self, limit: int, aside: Collection[str] = ()) -> list[Transaction]:
        """It, until the server has it."""
        return [self.held] if self.held.state is State.STORED else []

    def next_to_ask(self, limit: int) -> list[Transaction]:
        """It, until its end is heard."""
        return [self.held] if self.held.state is State.QUEUED else []

    def trying(self, keys: Iterable[str]) -> None:
        """Nobody is killed here."""

    def asking(self, keys: Iterable[str]) -> None:
        """There is only one to ask for."""

    def learn(self, news: Iterable[News], server_ms: int | None) -> None:
        """What the server said."""
        for each in news:
            self.held = replace(self.held, state=each.state)


@dataclass
class Gateway:
    """The stage's throttle: a token a request, refilled at the rate, up to the burst."""

    left: float = BURST
    seen_s: float = 0.0

    def admits(self, now_s: float) -> bool:
        """Whether a request that arrives now gets through."""
        self.left = min(BURST, self.left + (now_s - self.seen_s) * RATE_PER_S)
        self.seen_s = now_s
        if self.left < 1:
            return False
        self.left -= 1
        return True


def _throttled() -> Answer:
    """What the template lets the gateway say."""
    said: dict[str, Any] = RESOURCES["Api"]["Properties"]["GatewayResponses"]["THROTTLED"]
    headers: dict[str, str] = said["ResponseParameters"]["Headers"]
    spelt = {name: value.strip("'") for name, value in headers.items()}
    body = said["ResponseTemplates"]["application/json"]
    return read_answer(int(said["StatusCode"]), spelt, body.encode())


@dataclass
class Herd:
    """All of them with one strategy. The same seed gives the same course."""

    strategy: Strategy
    chance: Random
    now_s: float = 0.0
    gateway: Gateway = field(default_factory=Gateway)
    course: Course = field(default_factory=Course)
    to_come: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: "itertools.count[int]" = field(default_factory=itertools.count)
    throttled: Answer = field(default_factory=_throttled)

    def run(self) -> Course:
        """Until everybody has heard of the end of its transaction."""
        for number in range(AGENTS):
            agent_id = f"AG-{number:04d}"
            app, api = self._app(agent_id), AgentApi(agent_id=agent_id)
            self._after(self.chance.random(), partial(self._go_on, app, api, None))
        while self.to_come:
            self.now_s, _, happen = heapq.heappop(self.to_come)
            happen()
        return self.course

    def _app(self, agent_id: str) -> App:
        """The rounds of a background syncer; each round is a plan."""
        backoff = self.strategy.backoff(self.chance)
        pace, gate, pocket = Pace(backoff=backoff), Gate(), _pocket(agent_id)
        failures = 0
        while True:
            yield Pause(backoff.spread_s(self.strategy.spread_s))
            plan = Plan(
                outbox=cast("Outbox", pocket),
                pace=pace,
                gate=gate,
                clock=lambda: self.now_s,
                deadline_s=self.now_s + pace.budget_s,
                stopping=lambda: False,
            )
            yield from self._watched(plan, pocket)
            if pocket.held.state.is_final:
                return
            failures = failures + 1 if plan.report.problem else 0
            later_s = backoff.wait_s(failures) if failures else 0.0
            yield Pause(BACKGROUND["every_s"] + later_s)

    def _watched(self, plan: Plan, pocket: Pocket) -> App:
        steps, answer = plan.steps(), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            finally:
                self._note(pocket)
            assert isinstance(step, Call | Pause), "no token lapses here"
            answer = yield step

    def _note(self, pocket: Pocket) -> None:
        if pocket.held.state is not State.STORED:
            self.course.sent_s.setdefault(pocket.agent_id, self.now_s)
        if pocket.held.state.is_final:
            self.course.heard_s.setdefault(pocket.agent_id, self.now_s)

    def _go_on(self, app: App, api: AgentApi, answer: Answer | None) -> None:
        step = next(app, None) if answer is None else _next(app, answer)
        match step:
            case Pause(seconds):
                self._after(seconds, partial(self._go_on, app, api, None))
            case Call():
                one_way_s = self.chance.uniform(*ROUND_TRIP_S) / 2
                self._after(one_way_s, partial(self._arrive, app, api, step, one_way_s))
            case None:
                pass

    def _arrive(self, app: App, api: AgentApi, call: Call, one_way_s: float) -> None:
        answer = self.throttled
        if self.gateway.admits(self.now_s):
            self.course.admitted_s.append(self.now_s)
            body = b"" if call.body is None else json.dumps(call.body).encode()
            answer = _read(api.answer(call.method, call.path, TOKEN, body))
        else:
            self.course.refused_s.append(self.now_s)
        self._after(one_way_s, partial(self._go_on, app, api, answer))

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self.to_come, (self.now_s + seconds, next(self.order), happen))


def _next(app: App, answer: Answer) -> Step | None:
    try:
        return app.send(answer)
    except StopIteration:
        return None


def _read(told: Reply) -> Answer:
    return read_answer(told.status, told.headers, told.body)


def _pocket(agent_id: str) -> Pocket:
    held = Transaction(
        seq=1,
        idempotency_key=f"{agent_id}-1",
        phone="0712345678",
        amount=100,
        currency=None,
        captured_at=None,
        state=State.STORED,
        tries=0,
        suspect=0,
        asked=0,
        reason=None,
        error=None,
        ended_ms=None,
    )
    return Pocket(agent_id, held)
