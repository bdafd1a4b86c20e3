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

from tests.fakes.agent_api import TOKEN, FakeApi, Reply
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


FIXED = Strategy("a fixed interval of 5 s", lambda _: Backoff(5.0, 5.0, lambda: 1.0))
EXPONENTIAL = Strategy("exponential, no jitter", lambda _: Backoff(draw=lambda: 0.5))
"""The waits that the SDK's are on average."""


def sync_at_once(base_s: float) -> Strategy:
    """An app that calls `sync` as soon as the network is back."""
    name = "the SDK: sync() at once"
    return Strategy(name, lambda chance: Backoff(base_s, draw=chance.random))


SYNC = sync_at_once(Backoff.base_s)
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

    def sent_after(self, of: int, all_of: int) -> float:
        """When so many of so many agents had nothing left to send."""
        return sorted(self.sent_s.values())[len(self.sent_s) * of // all_of]

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
    """An agent's outbox with its transactions, and no disk."""

    agent_id: str
    held: dict[str, Transaction]

    def _first(self, state: State, limit: int) -> list[Transaction]:
        return [each for each in self.held.values() if each.state is state][:limit]

    def suspects(self) -> set[str]:
        """The server itself fails at nothing here."""
        return set()

    def next_to_send(self, limit: int, aside: Collection[str] = ()) -> list[Transaction]:
        """Those that the server has not."""
        return self._first(State.STORED, limit)

    def next_to_ask(self, limit: int) -> list[Transaction]:
        """Those whose end was not heard."""
        return self._first(State.QUEUED, limit)

    def trying(self, keys: Iterable[str]) -> None:
        """Nobody is killed here."""

    def asking(self, keys: Iterable[str]) -> None:
        """Fewer than one sync asks for."""

    def learn(self, news: Iterable[News], server_ms: int | None) -> None:
        """What the server said."""
        for each in news:
            self.held[each.key] = replace(self.held[each.key], state=each.state)


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
    each: int = 1
    """Transactions of an agent."""
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
            app, api = self._app(agent_id), FakeApi(agent_id=agent_id)
            self._after(self.chance.random(), partial(self._go_on, app, api, None))
        while self.to_come:
            self.now_s, _, happen = heapq.heappop(self.to_come)
            happen()
        return self.course

    def _app(self, agent_id: str) -> App:
        """The rounds of a background syncer; each round is a plan."""
        backoff = self.strategy.backoff(self.chance)
        pace, gate = Pace(backoff=backoff), Gate()
        pocket = _pocket(agent_id, self.each)
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
            if not pocket.next_to_send(1) and not pocket.next_to_ask(1):
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
        if not pocket.next_to_send(1):
            self.course.sent_s.setdefault(pocket.agent_id, self.now_s)
        if not pocket.next_to_send(1) and not pocket.next_to_ask(1):
            self.course.heard_s.setdefault(pocket.agent_id, self.now_s)

    def _go_on(self, app: App, api: FakeApi, answer: Answer | None) -> None:
        step = next(app, None) if answer is None else _next(app, answer)
        match step:
            case Pause(seconds):
                self._after(seconds, partial(self._go_on, app, api, None))
            case Call():
                one_way_s = self.chance.uniform(*ROUND_TRIP_S) / 2
                self._after(one_way_s, partial(self._arrive, app, api, step, one_way_s))
            case None:
                pass

    def _arrive(self, app: App, api: FakeApi, call: Call, one_way_s: float) -> None:
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


def _pocket(agent_id: str, number: int) -> Pocket:
    """Each for a phone of its own: what is behind one waits for no other."""
    transactions = [
        Transaction(
            seq=n,
            idempotency_key=f"{agent_id}-{n}",
            phone=f"07{n:08d}",
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
        for n in range(1, number + 1)
    ]
    return Pocket(agent_id, {each.idempotency_key: each for each in transactions})
