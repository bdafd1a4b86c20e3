"""The whole system with one invocation at a time: what AWS's event sources do, and nothing else.

Queues, streams and schedules call the real functions as the template maps them, and call again
what was not done. Nothing is drawn: the same acts make the same calls, so that a call is known by
its number, and a run can be repeated to any of its calls.
"""

import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import PurePath
from typing import Any

import pytest

from tests.simulation.cloud.account import Account
from tests.simulation.cloud.clients import made_with
from tests.simulation.cloud.delivery import Batch, named_in, wanted
from tests.simulation.cloud.functions import Handler, context, import_handlers
from tests.simulation.cloud.hook import Hook
from tests.simulation.cloud.machine import Killed, Lane, running_on
from tests.simulation.cloud.queues import Queue
from tests.simulation.cloud.stack import EventSource, Stack
from tests.simulation.crashes.snapshots import Restore, snapshot
from wallet_ledger import telemetry

START_MS = 1_767_225_600_000
"""The first moment of 2026."""
DELIVERIES_MAX = 400
"""Of one wait until nothing is left: far above what any story takes."""
SOON_MS = 1_000
"""How long whoever was not answered waits before asking again, a stream's reader included."""
NONSENSE = "Lambda would take the whole batch for failed"
LATENCY_BUDGET_MS = "30"
"""Less patience than the template's: what repeats itself within one invocation repeats less."""

type Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One AWS call: by which function, in its how-manieth invocation, and what on what."""

    function: str
    invocation: int
    number: int
    service: str
    operation: str
    body: Json = field(compare=False, repr=False)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """What it does, and on which table, index, queue or bus; of a transaction, each item."""
        body = self.body
        if "TransactItems" in body:
            parts = [part for each in body["TransactItems"] for part in each.items()]
            return [(action, asked["TableName"]) for action, asked in parts]
        if self.service == "events":
            return [(self.operation, body["Entries"][0]["EventBusName"])]
        place = str(body.get("TableName") or body["QueueUrl"]).rpartition("/")[2]
        index = f"/index/{body['IndexName']}" if "IndexName" in body else ""
        return [(self.operation, place + index)]

    @property
    def target(self) -> str:
        """What it is made on, in one word or a few."""
        if "TransactItems" not in self.body:
            return self.parts[0][1]
        return ", ".join(f"{action} {target}" for action, target in self.parts)

    @property
    def kind(self) -> tuple[str, str]:
        """What it does, and on what."""
        return self.operation, self.target

    def __str__(self) -> str:
        return f"{self.function} #{self.invocation}, call {self.number}: {self.operation}"


type Proceed = Callable[[], Json]
type Step = Callable[[Call, Proceed], Json]
"""Answers a call, with the account's own help or without; raises `AwsError` or `Killed`."""


def proceed(_: Call, go_on: Proceed) -> Json:
    """The call is answered as it should be."""
    return go_on()


LANES_PERMUTED_MAX = 3
"""So many lanes are run in every order, more of them forward and backward."""


@cache
def orders(lanes: int) -> Sequence[Sequence[int]]:
    """The orders in which lanes are run, each in a run of its own; the first is the given one."""
    forward = range(lanes)
    if lanes > LANES_PERMUTED_MAX:
        return forward, forward[::-1]
    return list(itertools.permutations(forward))


_lines: "list[Line]" = []
"""The line that runs now, last."""


def _answer(service: str, operation: str, body: Json) -> Json:
    return _lines[-1].answer(service, operation, body)


def _site() -> tuple[str, int]:
    """The line of our code that calls a client."""
    frame = sys._getframe(2)
    while "/botocore/" in frame.f_code.co_filename or "/tests/" in frame.f_code.co_filename:
        assert frame.f_back is not None
        frame = frame.f_back
    return PurePath(frame.f_code.co_filename).name, frame.f_lineno


@cache
def stack() -> Stack:
    """The template, with the patience of these tests."""
    made = Stack()
    for function in made.functions.values():
        if "LATENCY_BUDGET_MS" in function.environment:
            function.environment["LATENCY_BUDGET_MS"] = LATENCY_BUDGET_MS
    return made


def _attach(client: Any, _attempts: int) -> None:
    """The line that runs now stands behind the client, and before it."""
    Hook(_answer).attach(client)
    make = client._make_api_call
    client._make_api_call = lambda *asked: _lines[-1].around(partial(make, *asked))


@cache
def handlers() -> dict[str, Handler]:
    """The functions, imported once."""
    with made_with(_attach):
        return import_handlers(stack().functions.values())


class Line:
    """An account and its event sources. `step` comes between the functions and the account."""

    def __init__(self) -> None:
        self.now_ms = START_MS
        self.account = Account(lambda: self.now_ms)
        self.step: Step = proceed
        self.base: Step = proceed
        """What a story does to calls, below `step`."""
        self.read = Counter[str]()
        """Of each stream, how many records are done."""
        self.paused: set[str] = set()
        """Queues and tables (by logical id) whose mapping is switched off."""
        self.around: Callable[[Callable[[], Any]], Any] = lambda make: make()
        """Comes between the functions and their clients, whose answer it may give itself."""
        self.calls: list[Call] = []
        self.invocations = 0
        self.sent: list[tuple[str, str]] = []
        """Queue and body of all that was sent to a queue by the functions and taken."""
        self.function = ""
        self.alarms: list[str] = []
        """What the functions have logged that wakes somebody."""
        self.sites: set[tuple[str, int]] = set()
        """Lines of our code, by file name, that have called a client."""
        self.befallen = False
        """Whether something has befallen a call: who does not answer is then asked again."""
        self.events: list[tuple[str, Json]] = []
        """Every invocation: the function and its event."""
        self.order = 0
        """Which of its `orders` the lanes of every invocation are run in."""
        self.lanes: set[tuple[str, int]] = set()
        """Functions that had work in lanes, and how many those were."""
        self.parted = 0
        """The last invocation that had several lanes."""

    # --- one invocation ---------------------------------------------------------------------------

    def answer(self, service: str, operation: str, body: Json) -> Json:
        """What a client is answered."""
        call = Call(self.function, self.invocations, len(self.calls), service, operation, body)
        self.calls.append(call)
        self.sites.add(_site())
        return self.step(call, lambda: self.base(call, lambda: self._taken(call)))

    def _taken(self, call: Call) -> Json:
        answer = self.account.answer(call.service, call.operation, call.body)
        if call.operation == "SendMessageBatch":
            bodies = {entry["Id"]: entry["MessageBody"] for entry in call.body["Entries"]}
            queue = call.target
            self.sent += [(queue, bodies[each["Id"]]) for each in answer.get("Successful", ())]
        return answer

    def invoke(self, function: str, event: Json) -> Any:
        """The function's answer. Raises `Killed`, or what the function raised."""
        self.invocations += 1
        self.function = function
        self.events.append((function, event))
        timeout_ms = stack().functions[function].timeout_s * 1000
        deadline_ms = self.now_ms + timeout_ms
        try:
            return handlers()[function](event, context(lambda: deadline_ms - self.now_ms))
        finally:
            self.function = ""

    # --- its machine ------------------------------------------------------------------------------

    def time_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return self.now_ms * 1_000_000

    def sleep(self, seconds: float) -> None:
        """A pause takes simulated time only, at least a millisecond."""
        self.now_ms += max(1, round(seconds * 1000))

    def work_on(self, lanes: Sequence[Lane], _workers: int) -> None:
        """One lane after the other, in the order that is tried now."""
        self.lanes.add((self.function, len(lanes)))
        if len(lanes) > 1:
            self.parted = self.invocations
        known = orders(len(lanes))
        for number in known[self.order % len(known)]:
            lanes[number]()

    # --- who calls --------------------------------------------------------------------------------

    def ask(self, function: str, event: Json, again: Callable[[Any], bool]) -> Any:
        """A person or an app that asks, and asks again while there is no answer, or `again` one."""
        for _ in range(8):
            try:
                answer = self.invoke(function, event)
            except (Killed, telemetry.HandlerFailed):
                answer = None
            if answer is not None and not again(answer):
                return answer
            self.now_ms += SOON_MS
        raise AssertionError(f"{function} is never done with it")

    def clock(self, function: str) -> None:
        """A schedule's minute, and all that follows; one more where something befell the first."""
        [schedule] = [each for each in stack().schedules if each.function == function]
        for _ in range(2):
            self.now_ms += schedule.rate_s * 1000
            with suppress(Killed, telemetry.HandlerFailed):
                self.invoke(function, schedule.event)
            self.settle()
            if not self.befallen:
                return

    def put_event(self, source: str, detail_type: str, detail: Json) -> None:
        """Somebody else's event."""
        entry = {"EventBusName": stack().name("EventBus"), "Source": source}
        entry |= {"DetailType": detail_type, "Detail": json.dumps(detail)}
        told = self.account.answer("events", "PutEvents", {"Entries": [entry]})
        assert told["FailedEntryCount"] == 0

    def settle(self) -> None:
        """Deliver until nothing is left, letting time pass where all that is left rests."""
        for _ in range(DELIVERIES_MAX):
            if not any(self.deliver(each) for each in stack().mappings):
                rests = [self._queue(each).next_visible_ms() for each in self._open_queues()]
                moments = [each for each in rests if each is not None]
                if not moments:
                    return
                self.now_ms = min(moments)
        raise AssertionError("it never ends")

    def _open_queues(self) -> list[EventSource]:
        return [m for m in stack().mappings if not m.is_stream and m.source not in self.paused]

    def deliver(self, mapping: EventSource) -> bool:
        """One batch of one mapping, if there is any; whether there was."""
        if mapping.source in self.paused:
            return False
        return self._read(mapping) if mapping.is_stream else self._poll(mapping)

    def _queue(self, mapping: EventSource) -> Queue:
        return self.account.queues[mapping.source]

    def _poll(self, mapping: EventSource) -> bool:
        queue = self._queue(mapping)
        before = len(queue.messages)
        taken = queue.receive(mapping.batch_size)
        if not taken:
            return len(queue.messages) < before  # moved to its dead-letter queue
        batch = Batch(queue, taken)
        try:
            answer = self.invoke(mapping.function, batch.event)
        except (Killed, telemetry.HandlerFailed):
            return True  # they come again when they are visible again
        assert named_in(answer) <= {each.message_id for each in taken}, NONSENSE
        batch.delete(batch.done(answer))
        return True

    def _read(self, mapping: EventSource) -> bool:
        stream = self.account.tables[mapping.source].stream
        done = self.read[mapping.source]
        waiting = [
            (place, record)
            for place, record in enumerate(stream[done:], done)
            if wanted(mapping, record)
        ][: mapping.batch_size]
        if not waiting:
            self.read[mapping.source] = len(stream)
            return False
        try:
            answer = self.invoke(mapping.function, {"Records": [record for _, record in waiting]})
        except (Killed, telemetry.HandlerFailed):
            self.now_ms += SOON_MS
            return True
        stops = named_in(answer)
        places = {record["dynamodb"]["SequenceNumber"]: place for place, record in waiting}
        assert stops <= places.keys(), NONSENSE
        if stops:
            self.now_ms += SOON_MS
        self.read[mapping.source] = min(
            (places[each] for each in stops), default=waiting[-1][0] + 1
        )
        return True

    def forget(self) -> None:
        """What was sent and told so far counts no more: the same content said again is seen."""
        self.calls.clear()
        self.sent.clear()
        self.events.clear()
        self.lanes.clear()
        for bus in self.account.events.buses.values():
            bus.events.clear()

    # --- going back -------------------------------------------------------------------------------

    def snapshot(self) -> Restore:
        """What brings all of it back to how it is now; random numbers too."""
        account = snapshot(self.account)
        kept = (self.now_ms, Counter(self.read), set(self.paused), self.invocations)
        lists = [list(each) for each in (self.calls, self.sent, self.events, self.alarms)]
        drawn = random.getstate()

        def restore() -> None:
            account()
            self.now_ms, read, paused, self.invocations = kept
            self.read, self.paused = Counter(read), set(paused)
            self.step, self.base, self.befallen = proceed, proceed, False
            self.order, self.parted = 0, 0
            own: Any = (self.calls, self.sent, self.events, self.alarms)
            for list_, was in zip(own, lists, strict=True):
                list_[:] = was
            random.setstate(drawn)

        return restore


@contextmanager
def on_line() -> Iterator[Line]:
    """A fresh line, to which clients, clocks, thread pools and random numbers lead meanwhile."""
    handlers()
    line = Line()
    drawn, level = random.getstate(), telemetry.logger._logger.level
    random.seed(6)
    telemetry.logger.setLevel("CRITICAL")  # what is said of each call is not looked at
    _lines.append(line)
    with pytest.MonkeyPatch.context() as patch, running_on(line):
        patch.setattr(
            telemetry.logger, "critical", lambda message, **_: line.alarms.append(message)
        )
        try:
            yield line
        finally:
            _lines.pop()
            telemetry.logger.setLevel(level)
            random.setstate(drawn)
