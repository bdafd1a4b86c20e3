"""The bus's deliveries to queues: late, twice, in another order, or not at all."""

import heapq
from typing import TYPE_CHECKING

from tests.simulation.cloud.bus import Delivery, as_message
from tests.simulation.histories.plan import Fault

if TYPE_CHECKING:
    from tests.simulation.histories.world import Action, World


class Rules:
    """Events on their way from a rule to its target."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.late: list[tuple[int, int, Delivery]] = []
        self._number = 0

    def match(self, delivery: Delivery) -> None:
        """A rule has matched an event."""
        faults, dice = self.world.faults, self.world.dice
        if faults.takes(Fault.EVENT_LOST, delivery.rule):
            rule = f"arn:aws:events:us-east-1:000000000000:rule/wakala/{delivery.rule}"
            self.world.delivery.queues.send(
                "DeliveryFailuresQueue",
                as_message(delivery.event),
                RULE_ARN=rule,
                TARGET_ARN=delivery.target.arn,
                ERROR_CODE="NO_PERMISSIONS",
            )
            return
        for _ in range(2 if faults.takes(Fault.EVENT_TWICE, delivery.rule) else 1):
            late = faults.takes(Fault.EVENT_LATE, delivery.rule)
            delay_ms = 1 + dice.roll("bus ms", 20 * 60_000 if late else 400)
            self._number += 1
            heapq.heappush(self.late, (self.world.now_ms + delay_ms, self._number, delivery))

    def actions(self) -> "list[Action]":
        """A delivery whose time has come."""
        if self.late and self.late[0][0] <= self.world.now_ms:
            return [("bus", self._deliver)]
        return []

    def next_moment(self) -> int | None:
        """Of the next delivery."""
        return self.late[0][0] if self.late else None

    def _deliver(self) -> None:
        _, _, delivery = heapq.heappop(self.late)
        queue = self.world.account.sqs.by_arn(delivery.target.arn)
        queue.send(as_message(delivery.event))
        self.world.stepped(f"bus: {delivery.rule} to {queue.name}")
