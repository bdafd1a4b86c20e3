"""What one sync does, step by step: a generator that knows no network and no clock of its own.

It says what is to be carried out (a call, a pause, a new token) and is sent what came of it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import quote

from wakala_agent.api import (
    BATCH_MAX,
    FOREIGN,
    Answer,
    Call,
    Known,
    NotTheirs,
    Refused,
    Verdict,
    is_anothers,
    read_results,
    read_status,
    refusal,
)
from wakala_agent.backoff import Backoff
from wakala_agent.outbox import ASIDE_MAX, SUSPECT_ALONE, News, Outbox
from wakala_agent.transaction import State, Transaction

ASK_MAX = 200
"""Queued transactions that one sync asks for, those first that were asked for least."""

REQUEST_S_MIN = 2.0
"""With less time left, another request would hardly see its answer."""

ASK_FAILURES_MAX = 3
"""Failures in a row after which a sync asks no more: what is asked for is safe at the server.

A server that has too much to do is left alone at once: others have something to send.
"""


LAST_TRIES = 3
"""Failures in a row after which what came last is left to the next sync: others are asked for."""

NO_TIME = "no time left: the rest stays in the outbox"


@dataclass(frozen=True)
class Pace:
    """How long a sync may take and how hard it may try.

    `budget_s` bounds one sync, waits and requests included. `timeout_s` bounds a request; it is
    above the gateway's own 29 s, so that an answer is not given up while it may still come.
    `requests_per_s` is kept from one sync of a `Syncer` to the next. `asks_max` bounds the queued
    transactions that one sync asks for; 0 leaves that to another one.
    """

    budget_s: float = 60.0
    timeout_s: float = 35.0
    requests_per_s: float = 5.0
    asks_max: int = ASK_MAX
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        """Refuse what could never send anything."""
        if not (self.budget_s > 0 and self.timeout_s > 0 and self.requests_per_s > 0):
            raise ValueError("budget_s, timeout_s and requests_per_s are above 0")
        if self.asks_max < 0:
            raise ValueError("asks_max is 0 or more")


@dataclass
class Report:
    """What one sync did. `problem`: why it stopped before everything was sent, if it did.

    `sent` counts transactions, each time that one travels; `accepted` those new to the server,
    `replayed` those it had, `refused` those it will not take; `asked` the status requests and
    `ended` the transactions heard to be final. `stored` is what still waits on the device.
    """

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
class Pause:
    """Do nothing for so long."""

    seconds: float


@dataclass(frozen=True)
class NewToken:
    """Forget the token: the next call needs a new one."""


Step = Call | Pause | NewToken
_T = TypeVar("_T")
Steps = Generator[Step, Any, _T]


@dataclass
class Gate:
    """When the next request may begin: for the pace, and since the server asked to be left alone.

    It outlives a sync: neither is forgotten because a sync is over.
    """

    opens_s: float = float("-inf")

    def keep_shut_until(self, opens_s: float) -> None:
        """Let nobody through before that."""
        self.opens_s = max(self.opens_s, opens_s)


@dataclass(frozen=True)
class _Trouble:
    """Why a page is not done. `progress`: some of it is; `stuck`: phone tails of what is not."""

    why: str
    retry_after_s: float = 0.0
    may_be_the_request: bool = False
    progress: bool = False
    stuck: frozenset[str] = frozenset()


class _Stopped(Exception):
    """The sync ends here; what is left stays in the outbox."""


class _Enough(_Stopped):
    """Nothing went wrong: its time is over, or it was told to end."""


@dataclass
class Plan:
    """One sync of one outbox, until `deadline_s` of `clock` or until `stopping` says so."""

    outbox: Outbox
    pace: Pace
    gate: Gate
    clock: Callable[[], float]
    deadline_s: float
    stopping: Callable[[], bool]
    report: Report = field(default_factory=Report)

    def steps(self) -> Steps[None]:
        """Send what is stored, then ask what became of what is queued."""
        try:
            yield from self._send_stored()
            if (yield from self._ask_while_there_is_time()):
                yield from self._send_stored()
        except _Stopped as stopped:
            before = self.report.problem
            self.report.problem = f"{stopped} ({before})" if before else str(stopped)

    def _send_stored(self) -> Steps[None]:
        """In the order of submission, so in the order of each phone; a failure holds all up.

        But not for good. What is not taken now comes last, with all of its phone; and where the
        server itself fails at what it is sent, the next request is half as large, until what fails
        alone is found, which then comes last too.
        """
        aside, at_last, failures = self.outbox.suspects(), False, 0
        blaming = True
        left: str | None = None  # why something stays behind, whatever passes after it
        while True:
            page = _trustworthy(self.outbox.next_to_send(BATCH_MAX, aside))
            if not page:
                if at_last or not aside:
                    self.report.problem = self.report.problem or left
                    return
                aside, at_last, left = set(), True, None
                continue
            trouble = yield from self._send_page(page)
            self.report.problem = trouble.why if trouble else None
            if trouble is None or trouble.progress:
                failures, blaming = 0, True
            if trouble is None:
                continue
            if len(aside) < ASIDE_MAX and (not at_last or failures >= LAST_TRIES):
                aside |= trouble.stuck
                left = trouble.why if at_last else left
            if trouble.may_be_the_request and (blaming or page[0].suspect >= SUSPECT_ALONE):
                self.outbox.suspecting(each.idempotency_key for each in page)
                if page[0].suspect + 1 >= SUSPECT_ALONE:
                    aside.add(page[0].phone_tail)
                    left = trouble.why
                    blaming = False  # the next may fail because all do
            failures += 1
            yield from self._back_off(failures, trouble.retry_after_s)

    def _send_page(self, page: Sequence[Transaction]) -> Steps[_Trouble | None]:
        """Send a page. None: each has its verdict, and it is written down."""
        unsure = {each.idempotency_key for each in page if each.tries}
        body = {"transactions": [each.request(self.outbox.agent_id) for each in page]}
        yield from self._turn()
        self.outbox.trying(each.idempotency_key for each in page)
        self.report.sent += len(page)
        answer = yield from self._call("POST", "/tx/offline/batch", body)
        if answer.status == 200:
            verdicts = read_results(answer, page)
            if verdicts is None:
                return _Trouble(FOREIGN, may_be_the_request=True)
            return (yield from self._take(page, verdicts, unsure, answer))
        if answer.may_pass:
            return _Trouble(answer.told, answer.retry_after_s, answer.may_be_the_request)
        if not answer.is_refusal:
            yield NewToken()  # some gateways say 403 where they mean 401
            raise _Stopped(answer.told)
        if len(page) > 1:
            return (yield from self._send_halves(page))
        refused = Refused(refusal(answer.body))
        return (yield from self._take(page, [refused], unsure, answer))

    def _send_halves(self, page: Sequence[Transaction]) -> Steps[_Trouble | None]:
        middle = len(page) // 2
        trouble = yield from self._send_page(page[:middle])
        if trouble is None:
            trouble = yield from self._send_page(page[middle:])
        return trouble

    def _take(
        self,
        page: Sequence[Transaction],
        verdicts: Sequence[Verdict],
        unsure: set[str],
        answer: Answer,
    ) -> Steps[_Trouble | None]:
        """Write down what is certain, look into what is not, and say what is left."""
        news: list[News] = []
        doubtful: list[tuple[Transaction, Refused]] = []
        stuck: dict[str, str] = {}
        for each, verdict in zip(page, verdicts, strict=True):
            if isinstance(verdict, Known):
                news.append(self._known(each, verdict))
            elif isinstance(verdict, Refused) and _is_doubtful(each, verdict, unsure):
                doubtful.append((each, verdict))
            elif isinstance(verdict, Refused):
                news.append(self._refused(each, verdict))
            else:
                stuck[each.phone_tail] = verdict.why
        self.outbox.learn(news, answer.server_ms)
        if all(isinstance(verdict, NotTheirs) for verdict in verdicts):
            yield NewToken()
            *_, why = stuck.values()
            raise _Stopped(f"not a token of agent {self.outbox.agent_id}: {why}")
        retry_after_s = 0.0
        for each, verdict in doubtful:
            unclear = yield from self._look_into(each, verdict)
            if unclear is not None:
                stuck[each.phone_tail] = unclear.told
                retry_after_s = max(retry_after_s, unclear.retry_after_s)
        if not stuck:
            return None
        *_, why = stuck.values()
        return _Trouble(why, retry_after_s, progress=bool(news), stuck=frozenset(stuck))

    def _look_into(self, each: Transaction, verdict: Refused) -> Steps[Answer | None]:
        """Believe a refusal only where no earlier try, whose answer was lost, was accepted.

        The answer where it does not say.
        """
        answer = yield from self._status(each)
        known = read_status(answer, each)
        if known is not None:
            news = self._known(each, replace(known, replayed=True))
        elif answer.is_unknown_key or is_anothers(answer, each):
            news = self._refused(each, verdict)
        elif answer.may_pass or answer.status == 200:
            return answer
        else:
            raise _Stopped(answer.told)
        self.outbox.learn([news], answer.server_ms)
        return None

    def _ask_while_there_is_time(self) -> Steps[bool]:
        """What is asked for is safe at the server: to run out of time is no problem."""
        try:
            return (yield from self._ask_for_queued())
        except _Enough:
            return False

    def _ask_for_queued(self) -> Steps[bool]:
        """Whether the server did not know something that it had: it is to be sent again."""
        queued = self.outbox.next_to_ask(self.pace.asks_max)
        if not queued:
            return False
        self.outbox.asking(each.idempotency_key for each in queued)
        failures, forgot = 0, False
        for each in queued:
            answer = yield from self._status(each)
            self.report.asked += 1
            known = read_status(answer, each)
            if known is not None:
                news = News(each.idempotency_key, known.state, known.reason)
                self.report.ended += known.state.is_final
                self.outbox.learn([news], answer.server_ms)
                failures = 0
            elif answer.is_unknown_key:
                self.outbox.learn([News(each.idempotency_key, State.STORED)], answer.server_ms)
                failures, forgot = 0, True
            else:
                failures += 1
                may_be_this_one = answer.status == 200 or (
                    answer.may_pass and answer.may_be_the_request
                )
                if not may_be_this_one or failures == ASK_FAILURES_MAX:
                    raise _Stopped(answer.told)
                yield from self._back_off(failures, answer.retry_after_s)
        return forgot

    def _known(self, each: Transaction, known: Known) -> News:
        self.report.replayed += known.replayed
        self.report.accepted += not known.replayed
        self.report.ended += known.state.is_final
        return News(each.idempotency_key, known.state, known.reason)

    def _refused(self, each: Transaction, refused: Refused) -> News:
        self.report.refused += 1
        return News(each.idempotency_key, State.REFUSED, error=refused.problem)

    def _status(self, each: Transaction) -> Steps[Answer]:
        return (yield from self._call("GET", f"/tx/status/{quote(each.idempotency_key, safe='')}"))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Steps[Answer]:
        """One request in its turn; where the token has lapsed, once more with a new one."""
        for _ in range(2):
            yield from self._turn()
            self.report.requests += 1
            self.gate.opens_s = self.clock() + 1 / self.pace.requests_per_s
            timeout_s = min(self.pace.timeout_s, self.deadline_s - self.clock())
            answer: Answer = yield Call(method, path, body, timeout_s)
            if answer.may_pass:
                self.gate.keep_shut_until(self.clock() + answer.retry_after_s)
            if answer.status != 401:
                return answer
            yield NewToken()
        raise _Stopped("the token is refused: sign in again")

    def _turn(self) -> Steps[None]:
        """Wait until the next request may begin."""
        wait_s = max(0.0, self.gate.opens_s - self.clock())
        left_s = self.deadline_s - self.clock() - wait_s
        if left_s < REQUEST_S_MIN and (wait_s or self.report.requests):
            raise _Enough(NO_TIME)
        yield from self._pause(wait_s)

    def _back_off(self, failures: int, retry_after_s: float) -> Steps[None]:
        self.report.failures += 1
        yield from self._pause(self.pace.backoff.wait_s(failures, retry_after_s))

    def _pause(self, seconds: float) -> Steps[None]:
        """Never into the deadline: a wait after which nothing could be done is not begun."""
        if self.stopping():
            raise _Enough("stopped: the rest stays in the outbox")
        if self.clock() + seconds >= self.deadline_s:
            raise _Enough(NO_TIME)
        if seconds > 0:
            yield Pause(seconds)


def _trustworthy(page: Sequence[Transaction]) -> Sequence[Transaction]:
    """As much of it as may travel together: each failure of the server halves that."""
    size = BATCH_MAX
    for number, each in enumerate(page):
        size = min(size, max(1, BATCH_MAX >> each.suspect))
        if number >= size:
            return page[:number]
    return page


def _is_doubtful(each: Transaction, refused: Refused, unsure: set[str]) -> bool:
    """Whether an earlier try may have been accepted, for all that the refusal says."""
    return each.idempotency_key in unsure and not refused.is_of_anothers_key
