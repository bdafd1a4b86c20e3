"""One history: the real functions on a simulated account, driven by one seed, step by step.

A step is one thing that the scheduler does: an AWS call is executed, a run begins or ends, a fault
sets in, a client asks, the clock goes on. After each the promises are held against what changed.
"""

import contextlib
import hashlib
import heapq
import random as global_random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulation.cloud.account import Account
from tests.simulation.cloud.errors import AwsError
from tests.simulation.histories import functions, processes
from tests.simulation.histories.actors import Actors
from tests.simulation.histories.asked import Broken
from tests.simulation.histories.books import two
from tests.simulation.histories.delivery import Delivery
from tests.simulation.histories.dice import Dice
from tests.simulation.histories.faults import (
    Again,
    Answered,
    Dies,
    Faults,
    Freezes,
    Raised,
)
from tests.simulation.histories.journal import Journal
from tests.simulation.histories.plan import Deed, Fault, Item, Plan
from tests.simulation.histories.processes import Call, Hub, Join, Killed, Pause, Process
from tests.simulation.histories.promises import Promises
from tests.simulation.histories.rows import SweepLimits
from tests.simulation.histories.runs import Run
from wallet_ledger.telemetry import HandlerFailed

START_MS = 1_793_602_800_000
CALL_MS_MAX = 12
SKEWS_MS = (-60_000, -1_500, -40, 40, 1_500, 60_000)
DRAIN_MAX = 20_000
"""Actions after which a history that is not quiet never will be."""
NEEDS_QUIET = frozenset({Fault.PURGED, Deed.TIME})
"""Long times, which begin when nothing runs."""
TABLES = ("OfflineTx", "WalletLedger", "DeadLetters")

type Action = tuple[str, Callable[[], None]]


class World:
    """Everything there is, at one moment of simulated time."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.plan = plan
        self.dice = Dice(plan.seed)
        self.now_ms = START_MS
        self.step = 0
        self.draining = False
        parameters = functions.parameters(plan.retention_days, plan.budget_ms)
        self.account = Account(lambda: self.now_ms, parameters)
        self.account.sqs.shuffle = self.dice.shuffle
        self.hub = Hub(lambda: self.now_ms)
        self.faults = Faults(lambda: self.now_ms)
        self.runs: list[Run] = []
        self.waiting = list(plan.items)
        self.until_quiet: list[Item] = []
        self.delivery = Delivery(self)
        self.account.events.deliver = self.delivery.rules.match
        self.account.dynamodb.lag = self.faults.lag
        self.actors = Actors(self)
        told = self.account.stack.functions["sweep"].environment
        limits = SweepLimits(int(told["SWEEP_BACKLOG_MAX"]), int(told["SWEEP_ROWS_MAX"]))
        self.promises = Promises(plan.retention_days, limits, self.actors.secrets)
        self.journal = Journal(self.promises, self.faults, keep_trace=keep_trace)
        self._handlers = functions.handlers(plan.retention_days, plan.budget_ms)
        self._seen = dict.fromkeys(TABLES, 0)
        self._thaws: list[tuple[int, int, Run]] = []
        self._numbers: Counter[str] = Counter()

    # --- what happens -------------------------------------------------------------------------

    def play(self) -> None:
        """The whole history, then the end of all faults, then quiet. Raises `Broken`."""
        global_random.seed(f"jitter {self.plan.seed}")
        with processes.running(self.hub), contextlib.redirect_stdout(self.journal.sink):
            self.journal.take_log()
            try:
                while self.step < self.plan.steps:
                    self._next()
                self._drain()
                while self.actors.operators.redrive_rest():
                    self._drain()
                self.actors.ask_at_the_end()
                self._drain()
                self.promises.at_end(self.account.tables["WalletLedgerTable"].items())
                self.actors.check_answers()
            finally:
                for run in self.runs:
                    run.process.kill()
                self.journal.give_log_back()

    def _next(self) -> None:
        while self.waiting and self.waiting[0].at <= self.step:
            item = self.waiting.pop(0)
            if item.what in NEEDS_QUIET:
                self.until_quiet.append(item)
            else:
                self._begin_item(item)
        actions = self._actions()
        if self.until_quiet and not actions and not self.runs:
            self._begin_quietly(self.until_quiet.pop(0))
            return
        if not actions or self.dice.roll("dawdle", 50) == 0:
            self._let_time_pass(idle=not actions)
            return
        self._do_one(actions)

    def _do_one(self, actions: Sequence[Action]) -> None:
        _, act = actions[self.dice.first([name for name, _ in actions])]
        act()

    def _begin_quietly(self, item: Item) -> None:
        """Something long, now that nothing runs."""
        if item.what is Fault.STREAM_LOST:
            self.now_ms = max(self.now_ms, *self.faults.paused.values(), 0)
            self.stepped("a day goes by")
        else:
            self._begin_item(item)

    def _begin_item(self, item: Item) -> None:
        if isinstance(item.what, Fault):
            purges = item.what is Fault.PURGED
            told = self.delivery.purge(item.random()) if purges else self.faults.begin(item)
            if item.what is Fault.STREAM_LOST:
                self.until_quiet.append(item)
        else:
            told = self.actors.do(item)
        self.stepped(f"** {item.what} {told}".rstrip())

    def _drain(self) -> None:
        """Faults stop; whatever is still to be done gets done."""
        self.draining = True
        self.waiting.clear()
        self.until_quiet.clear()
        self.faults.stop()
        self.promises.calm_since_ms = self.promises.calm_since_ms or self.now_ms
        for _ in range(DRAIN_MAX):
            actions = self._actions()
            if actions:
                self._do_one(actions)
            elif not self._let_time_pass(idle=True):
                self._check_quiet()
                return
        raise Broken("P5", f"not quiet after {DRAIN_MAX} steps: {self.delivery.busy()}")

    def _check_quiet(self) -> None:
        """Nothing will ever happen by itself; then nothing may be left."""
        if left := self.delivery.busy():
            raise Broken("P5", f"left behind for good: {left}")
        if lost := [q.name for q in self.account.sqs.queues.values() if q.expired]:
            raise AssertionError(f"the history is too long for {lost}")

    def _actions(self) -> list[Action]:
        while self._thaws and self._thaws[0][0] <= self.now_ms:
            self._thaw(heapq.heappop(self._thaws)[2])
        found: list[Action] = []
        for run in self.runs:
            found += [(p.name, partial(self._go_on, run, p)) for p in run.ready(self.now_ms)]
        found += self.delivery.actions()
        return found

    def _let_time_pass(self, *, idle: bool) -> bool:
        """To the next moment at which something is due, or a little; False: nothing ever is."""
        if not idle:
            self.now_ms += 1 + self.dice.roll("dawdle ms", 300)
            self.stepped("time")
            return True
        moments = [m for m in (self._next_moment(), self.delivery.next_moment()) if m is not None]
        if not moments and self.draining:
            return False
        until_ms = max(min(moments, default=self.now_ms + 60_000), self.now_ms + 1)
        self.now_ms = until_ms + (0 if self.draining else self.dice.pick("late", (0, 0, 0, 700)))
        self.stepped("time")
        return True

    def _next_moment(self) -> int | None:
        moments = [m for run in self.runs for m in run.moments()]
        moments += [at for at, _, _ in self._thaws[:1]]
        return min(moments, default=None)

    # --- runs of functions --------------------------------------------------------------------

    def invoke(self, function: str, event: dict[str, Any], ended: Callable[[Run], None]) -> Run:
        """A run of a function begins; `ended` is told when it is over, however that came."""
        self._numbers[function] += 1
        name = f"{function}-{self._numbers[function]}"
        timeout_s = self.account.stack.functions[function].timeout_s
        deadline_ms = self.now_ms + timeout_s * 1000
        run = Run(name, function, deadline_ms, ended, self.step, event, self.now_ms)
        context = SimpleNamespace(
            aws_request_id=name,
            get_remaining_time_in_millis=lambda: max(0, run.deadline_ms - self.now_ms),
        )
        handler = self._handlers[function]
        run.process = Process(name, lambda: handler(event, context), self.hub)
        if self.faults.takes(Fault.SKEWED, function):
            run.process.skew_ms = self.dice.pick("skew", SKEWS_MS)
            run.befallen = True
        self.runs.append(run)
        self._note_two_at_once(function)
        self.promises.reached[f"function {function}"] += 1
        run.process.begin()
        if self.faults.suffers(function, Fault.CRASHING):
            self._kill(run, "crashed")
        self._after(run)
        self.stepped(f"{name} begins")
        return run

    def _go_on(self, run: Run, process: Process) -> None:
        if run.deadline_ms < self.now_ms and not run.given_up:
            self._kill(run, "timed out")
            self._after(run)
            self.stepped(f"{run.name} times out")
            return
        match process.waits:
            case Call() as call:
                self._execute(run, process, call)
            case Pause():
                process.go_on()
                self._after(run)
                self.stepped(f"{process.name} wakes")
            case Join():
                process.go_on()
                self._after(run)
            case None:
                raise AssertionError(process.name)

    def _execute(self, run: Run, process: Process, call: Call) -> None:
        self.now_ms += 1 + self.dice.roll("call ms", CALL_MS_MAX)
        before = self.faults.hits.count()
        fate = self.faults.fate(run.function, call, lambda body: self._make(run, call, body))
        run.befallen |= self.faults.hits.count() > before
        told = type(fate).__name__.lower()
        match fate:
            case Answered(answer):
                process.retries = call.retries
                process.go_on(answer)
                if call.operation == "Query" and not answer["Items"]:
                    self._after(run)
                    return  # nothing was seen, and nobody can have come in between
            case Raised(error):
                told = getattr(error, "code", type(error).__name__)
                # A write that will never be taken holds nobody back (ADR 15), nor orders anybody.
                self.promises.order.off |= told == "AccessDeniedException"
                process.retries = call.retries
                process.go_on(error=error)
            case Again():
                pass
            case Dies():
                self._kill(run, "killed")
            case Freezes(gives_up):
                self._freeze(run, gives_up=gives_up)
        self._after(run)
        self.stepped(f"{process.name} {call.place}: {told}")

    def _make(self, run: Run, call: Call, body: Any) -> Any:
        if run.function == "sweep":
            self._watch_sweep(run, call)
        answer = self.account.answer(call.service, call.operation, body)
        self._look(run)
        self.delivery.made(call.operation, body, answer)
        return answer

    def _watch_sweep(self, run: Run, call: Call) -> None:
        """What its writes may rest on, and what it tries, whether its condition holds or not."""
        backlog = len(self.account.queues["TxQueue"].messages)
        run.least_backlog = min(run.least_backlog, backlog)
        if call.operation == "UpdateItem" and not self.faults.hits.had(Fault.LAGGING):
            values = call.body["ExpressionAttributeValues"].values()
            if {"S": "expired"} in values:
                key = two(call.body["Key"], "agentId", "idempotencyKey")
                self.promises.rows.check_expiring(key, run)

    def _freeze(self, run: Run, *, gives_up: bool) -> None:
        run.frozen = True
        at_ms = run.deadline_ms + 1
        if gives_up:
            began_ms = run.deadline_ms - 1000 * self.account.stack.functions[run.function].timeout_s
            again_ms = self.delivery.again_ms(run.function, began_ms)
            at_ms = max(self.now_ms, again_ms) + self.dice.roll("thaw ms", 20)
            run.given_up = True
            run.ended(run)
        heapq.heappush(self._thaws, (at_ms, len(self._thaws) + self.step * 100, run))

    def _thaw(self, run: Run) -> None:
        run.frozen = False
        self._note_two_at_once(run.function)

    def _note_two_at_once(self, function: str) -> None:
        """A run that Lambda gave up goes on beside another one, which has what it held."""
        runs = [each for each in self.runs if each.function == function and not each.frozen]
        if len(runs) > 1 and any(each.given_up for each in runs):
            self.promises.reached[f"two at once in {function}"] += 1

    def _kill(self, run: Run, why: str) -> None:
        run.failed = why
        run.process.kill()

    def _after(self, run: Run) -> None:
        """Take over what was begun, and see whether the run is over."""
        while self.hub.begun:
            child = self.hub.begun.pop(0)
            run.processes.append(child)
            child.begin()
        process = run.process
        if not process.over:
            return
        self.runs.remove(run)
        match process.error:
            case None:
                run.result = process.result
            case Killed():
                run.failed = run.failed or "killed"
            case HandlerFailed():
                run.failed, run.raised = "raised", str(process.error)
            case error:
                raise error
        if not run.given_up:
            run.ended(run)

    # --- looking ------------------------------------------------------------------------------

    def stepped(self, what: str) -> None:
        """A step is over: write it down, and look at what it changed."""
        self.step += 1
        self.journal.note(self.step, self.now_ms, what)
        self._look(None)
        self.journal.check()

    def _look(self, by: Run | None) -> None:
        """Hold the promises against what this run has committed; None: time to live, or nobody."""
        changed: dict[str, Sequence[Any]] = {}
        for name in TABLES:
            stream = self.account.tables[f"{name}Table"].stream
            if len(stream) > self._seen[name]:
                changed[name] = stream[self._seen[name] :]
                self._seen[name] = len(stream)
        if changed:
            self.delivery.changed(changed)
            self.promises.committed(changed, by, self.step, self.now_ms)

    def ask_aws(self, service: str, operation: str, body: dict[str, Any]) -> Any:
        """A call of somebody who is no function: the back office, a poller, an operator."""
        try:
            answer = self.account.answer(service, operation, body)
        except AwsError as error:
            raise AssertionError(f"{operation}: {error}") from error
        self.delivery.made(operation, body, answer)
        return answer

    def is_down(self, function: str) -> bool:
        """Whether a function cannot be called at all."""
        return self.faults.is_down(function)

    @property
    def digest(self) -> str:
        """Of all that happened, so that two runs can be told apart."""
        return hashlib.sha256("\n".join(self.journal.lines).encode()).hexdigest()
