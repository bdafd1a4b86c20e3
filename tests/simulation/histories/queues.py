"""Queues, and how Lambda takes from them: batches, what is done and what comes again."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.cloud.delivery import Batch
from tests.simulation.cloud.queues import Message, Queue
from tests.simulation.cloud.stack import EventSource
from tests.simulation.histories.plan import Fault
from tests.simulation.histories.runs import Run

if TYPE_CHECKING:
    from tests.simulation.histories.world import Action, World


class Queues:
    """The stack's queues by their logical ids."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def queue(self, logical_id: str) -> Queue:
        """The queue itself."""
        return self.world.account.queues[logical_id]

    def send(self, logical_id: str, body: str, **attributes: str) -> None:
        """AWS itself sends to a standard queue."""
        told = {
            name: {"StringValue": value, "DataType": "String"} for name, value in attributes.items()
        }
        self.queue(logical_id).send(body, attributes=told)

    def sent(self, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Messages were sent by a call: what TxQueue took has its place in a phone's order."""
        if body["QueueUrl"] != self.queue("TxQueue").url:
            return
        entries = {entry["Id"]: entry for entry in body.get("Entries", ())}
        for taken in answer.get("Successful", ()):
            entry = entries[taken["Id"]]
            self.world.promises.order.sent(taken["MessageId"], entry["MessageBody"])

    def gone(self, message_ids: "set[str]") -> None:
        """These may have left TxQueue."""
        left = {each.message_id for each in self.queue("TxQueue").messages}
        for message_id in message_ids - left:
            self.world.promises.order.gone(message_id)


class QueueSource:
    """The mapping of one queue to one function."""

    def __init__(self, world: "World", mapped: EventSource) -> None:
        self.world = world
        self.mapped = mapped
        self.limit = mapped.concurrency_max or 2
        self.running = 0
        self.most_running = 0

    @property
    def queue(self) -> Queue:
        """The queue itself."""
        return self.world.delivery.queues.queue(self.mapped.source)

    def depth(self) -> int:
        """Messages that are in it, seen or not."""
        return len(self.queue.messages)

    def actions(self) -> "list[Action]":
        """A batch that can be taken now."""
        if self.running >= self.limit or not self._has_some():
            return []
        if self._is_down():
            return []
        return [(f"poll {self.mapped.source}", self._start)]

    def next_moment(self) -> int | None:
        """When a message comes again, or an outage ends."""
        if self._is_down():
            return self.world.faults.outages[self.mapped.function][1] if self.depth() else None
        return self.queue.next_visible_ms()

    def _is_down(self) -> bool:
        return self.world.faults.is_down(self.mapped.function)

    def _has_some(self) -> bool:
        now_ms = self.world.now_ms
        messages = self.queue.messages
        locked = {m.group for m in messages if m.group is not None and m.visible_at_ms > now_ms}
        return any(m.visible_at_ms <= now_ms and m.group not in locked for m in messages)

    def _start(self) -> None:
        world, queue = self.world, self.queue
        before = {each.message_id for each in queue.messages}
        most = self.mapped.batch_size
        taken = queue.receive(world.dice.pick("queue batch", (1, 2, most, most)))
        if self.mapped.source == "TxQueue":
            world.delivery.queues.gone(before)
        if not taken:
            world.stepped(f"poll {self.mapped.source}: moved to its dead-letter queue")
            return
        waiting = [each for each in queue.messages if each.visible_at_ms <= world.now_ms]
        if any(each.sent_ms < taken[0].sent_ms for each in waiting):
            world.promises.reached[f"overtaken in {self.mapped.source}"] += 1
        copies = (
            2 if not queue.is_fifo and world.faults.takes(Fault.TWICE, self.mapped.function) else 1
        )
        for _ in range(copies):
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            at_limit = self.running == self.limit
            world.promises.reached[f"all workers of {self.mapped.function}"] += at_limit
            batch = Batch(queue, taken)
            world.invoke(self.mapped.function, batch.event, partial(self._ended, batch))

    def _ended(self, batch: Batch, run: Run) -> None:
        self.running -= 1
        if run.given_up:
            return  # they come again when they are visible again
        done = batch.done(run.result)
        if done and len(done) < len(batch.event["Records"]):
            self.world.promises.reached[f"partial batch of {self.mapped.function}"] += 1
        if done and self.world.faults.takes(Fault.NOT_DELETED, self.mapped.function):
            return
        batch.delete(done)
        if self.mapped.source == "TxQueue":
            self.world.delivery.queues.gone(done)


def moved_back(world: "World", dead: str, alive: str) -> int:
    """StartMessageMoveTask: what lies in a dead-letter queue goes back, under new ids."""
    queues = world.delivery.queues
    waiting: list[Message] = list(queues.queue(dead).messages)
    in_order = list(waiting)
    world.dice.shuffle(waiting)
    world.promises.reached["moved back in another order"] += waiting != in_order
    for message in waiting:
        queues.queue(dead).messages.remove(message)
        sent = queues.queue(alive).send(
            message.body, group=message.group, dedup_id=f"moved-{message.message_id}"
        )
        if alive == "TxQueue":
            world.promises.order.sent(sent.message_id, message.body)
    return len(waiting)
