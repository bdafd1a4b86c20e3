"""How work reaches the functions: queues, streams, rules of the bus, and the clock."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from tests.simulation.cloud.stack import Schedule
from tests.simulation.histories.books import number, text
from tests.simulation.histories.bus import Rules
from tests.simulation.histories.faults import DAY_MS
from tests.simulation.histories.plan import Fault
from tests.simulation.histories.queues import Queues, QueueSource
from tests.simulation.histories.runs import Run
from tests.simulation.histories.streams import StreamSource

if TYPE_CHECKING:
    from tests.simulation.histories.world import Action, World

MINUTE_MS = 60_000
STREAM_AGAIN_MS = 500


class Source(Protocol):
    """Something that begins by itself when its time has come."""

    def actions(self) -> "list[Action]":
        """What can begin now."""

    def next_moment(self) -> int | None:
        """When something can begin that cannot now; None: nothing ever, by itself."""


class Delivery:
    """Everything that starts a run, and whether it is due."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.queues = Queues(world)
        stack = world.account.stack
        self.pollers = [QueueSource(world, each) for each in stack.mappings if not each.is_stream]
        self.streams = [StreamSource(world, each) for each in stack.mappings if each.is_stream]
        self.rules = Rules(world)
        self.clocks = [Clock(world, each) for each in stack.schedules]
        self._sources: list[Source] = [*self.pollers, *self.streams, *self.clocks, self.rules]

    # --- what the world tells -----------------------------------------------------------------

    def made(self, operation: str, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """A call was made by anybody."""
        if operation == "PutEvents":
            for entry, taken in zip(body["Entries"], answer["Entries"], strict=True):
                if "EventId" not in taken:
                    continue
                self.world.promises.heard(entry["DetailType"], entry["Source"], entry["Detail"])
        elif operation in {"SendMessage", "SendMessageBatch"}:
            self.queues.sent(body, answer)

    def changed(self, records: Mapping[str, Sequence[Any]]) -> None:
        """Tables have changed: their streams tell of it."""
        for stream in self.streams:
            stream.take(records.get(stream.table, ()))

    # --- what can happen next -----------------------------------------------------------------

    def actions(self) -> "list[Action]":
        """Runs and deliveries that can begin now."""
        return [action for source in self._sources for action in source.actions()]

    def next_moment(self) -> int | None:
        """When the next thing becomes due by itself; None: never."""
        moments = [
            moment
            for source in self._sources
            if (moment := source.next_moment()) is not None and moment > self.world.now_ms
        ]
        return min(moments, default=None)

    def busy(self) -> list[str]:
        """What is not quiet, for the report of a history that never ends."""
        told = [run.name for run in self.world.runs]
        told += [each.mapped.source for each in self.pollers if each.depth()]
        told += [f"stream {each.table}" for each in self.streams if each.depth()]
        return [*told, *(["bus"] if self.rules.late else [])]

    def again_ms(self, function: str, began_ms: int) -> int:
        """When another run mostly gets what this one holds, if it has stalled."""
        queues = [each.queue for each in self.pollers if each.mapped.function == function]
        if queues:
            return began_ms + 1000 * max(each.visibility_s for each in queues)
        if any(each.mapped.function == function for each in self.streams):
            return began_ms + STREAM_AGAIN_MS
        return (began_ms // MINUTE_MS + 1) * MINUTE_MS

    def can_wait(self) -> bool:
        """Whether days may go by: nothing is where AWS forgets it within a week."""
        short = ("InboxQueue", "DeliveryFailuresQueue")
        horizon_ms = self.world.now_ms - 5 * DAY_MS
        queues = self.world.account.queues.values()
        return not (
            self.rules.late
            or any(each.depth() for each in self.streams)
            or any(self.queues.queue(name).messages for name in short)
            or any(each.sent_ms < horizon_ms for queue in queues for each in queue.messages)
        )

    # --- time to live -------------------------------------------------------------------------

    def purge(self, random: Random) -> str:
        """A long time goes by, in which nothing is under way, and time to live deletes."""
        world = self.world
        if not self.can_wait() or any(each.depth() for each in self.pollers):
            return ""
        world.now_ms += random.choice((1, 31, 31, 400)) * DAY_MS
        gone = world.account.dynamodb.delete_expired(world.now_ms // 1000)
        if gone:
            world.faults.hits.note(Fault.PURGED, "tables")
        return f"{gone} items"


class Clock:
    """A rule of the clock, each minute; what is given up goes to DeliveryFailures.

    A run that would find nothing due reads empty indexes and does nothing: most are left out.
    """

    def __init__(self, world: "World", schedule: Schedule) -> None:
        self.world = world
        self.schedule = schedule
        self.function = schedule.function
        self.running = False
        self._ticked = world.now_ms // MINUTE_MS

    def actions(self) -> "list[Action]":
        """A run, where a minute has begun and there is something to do."""
        minute = self.world.now_ms // MINUTE_MS
        if self.running or minute <= self._ticked:
            return []
        idle = self._due_ms() > minute * MINUTE_MS
        if idle and (self.world.draining or self.world.dice.roll("idle clock", 10)):
            self._ticked = minute
            return []
        return [(f"clock of {self.function}", self._start)]

    def next_moment(self) -> int | None:
        """The first minute that finds something due."""
        due_ms = self._due_ms()
        if due_ms >= NEVER_MS or self.running:
            return None
        minute = max(-(-due_ms // MINUTE_MS), self._ticked + 1)
        return minute * MINUTE_MS

    def _due_ms(self) -> int:
        rows = self.world.promises.rows
        if self.function == "sweep":
            due = (number(r, "nextSweepAt") for r in rows.rows.values() if "openShard" in r)
        else:
            parked = not self.world.draining
            due = (
                number(letter, "dueAt")
                for letter in rows.letters.values()
                if "dueAt" in letter and (parked or text(letter, "status") == "waiting")
            )
        return min(due, default=NEVER_MS)

    def _start(self) -> None:
        world = self.world
        self._ticked = world.now_ms // MINUTE_MS
        event: dict[str, Any] = dict(self.schedule.event or SCHEDULED)
        if world.faults.is_down(self.function):
            rule = f"arn:aws:events:us-east-1:000000000000:rule/{self.function}EveryMinute"
            if self.schedule.dead_letters is not None:
                told = {"RULE_ARN": rule, "ERROR_CODE": "THROTTLING"}
                world.delivery.queues.send(self.schedule.dead_letters, json.dumps(event), **told)
            world.stepped(f"clock of {self.function}: not started")
            return
        self.running = True
        world.invoke(self.function, event, lambda run: self._ended(run, event))

    def _ended(self, run: Run, event: Mapping[str, Any]) -> None:
        self.running = False
        for outcome in run.result or ():
            self.world.promises.reached[f"desk {outcome}"] += 1
        failed = run.result is None and (run.failed or run.given_up)
        target = self.world.account.stack.functions[self.function].on_failure
        if failed and target is not None:
            self.world.delivery.queues.send(target, json.dumps(_failed(run, event)))


NEVER_MS = 10**17
SCHEDULED = {
    "version": "0",
    "id": "fcce4108-ea67-4f58-a575-05f2830a5113",
    "detail-type": "Scheduled Event",
    "source": "aws.events",
    "detail": {},
}


def _failed(run: Run, event: Mapping[str, Any]) -> dict[str, Any]:
    """Lambda's note of an asynchronous run that failed, as in events/triage/runs.json."""
    error = {"errorMessage": run.raised, "errorType": "HandlerFailed"}
    timed_out = {"errorType": "Sandbox.Timedout", "errorMessage": "Task timed out"}
    return {
        "version": "1.0",
        "requestContext": {
            "requestId": run.name,
            "functionArn": f"arn:aws:lambda:us-east-1:000000000000:function:{run.function}:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 1,
        },
        "requestPayload": dict(event),
        "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
        "responsePayload": error if run.raised else timed_out,
    }
