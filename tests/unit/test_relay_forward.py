"""Everything is sent, in order; the first record of which something was not taken is reported."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from relay.forward import forward
from tests.fakes.memory import FakeClock, FakeEventBus, FakeQueue
from wallet_ledger.derive import Destination, Outgoing
from wallet_ledger.ports import OutgoingEvent, OutgoingMessage

KINDS = st.sampled_from(list(Destination))


def _outgoing(index: int, destination: Destination) -> Outgoing:
    if destination is Destination.EVENT_BUS:
        return Outgoing(destination, OutgoingEvent("TransactionSynced", str(index)))
    return Outgoing(destination, OutgoingMessage(str(index), group="254", dedup_id=str(index)))


@dataclass
class World:
    """Where things go, and the records that are not taken there."""

    tx_queue: FakeQueue = field(default_factory=lambda: FakeQueue(FakeClock()))
    failed_tx_queue: FakeQueue = field(default_factory=lambda: FakeQueue(FakeClock()))
    bus: FakeEventBus = field(default_factory=FakeEventBus)

    def refuse(self, refused: Callable[[int], bool]) -> None:
        self.tx_queue.refuses = lambda message: refused(int(message.body))
        self.failed_tx_queue.refuses = lambda message: refused(int(message.body))
        self.bus.refuses = lambda event: refused(int(event.detail))

    def forward(self, outgoing: list[tuple[int, Outgoing]]) -> int | None:
        queues = {
            Destination.TX_QUEUE: self.tx_queue,
            Destination.FAILED_TX_QUEUE: self.failed_tx_queue,
        }
        return forward(outgoing, queues, self.bus)

    def taken(self) -> dict[Destination, list[int]]:
        return {
            Destination.TX_QUEUE: [int(m.body) for m in self.tx_queue.messages],
            Destination.FAILED_TX_QUEUE: [int(m.body) for m in self.failed_tx_queue.messages],
            Destination.EVENT_BUS: [int(e.detail) for e in self.bus.events],
        }


def test_nothing_to_send_is_nothing_left() -> None:
    assert World().forward([]) is None


def test_one_record_may_go_to_two_places_and_counts_once() -> None:
    both = [
        (3, _outgoing(3, Destination.EVENT_BUS)),
        (3, _outgoing(3, Destination.FAILED_TX_QUEUE)),
    ]
    world = World()
    assert world.forward(both) is None
    assert world.taken()[Destination.EVENT_BUS] == world.taken()[Destination.FAILED_TX_QUEUE] == [3]
    world.refuse(lambda index: index == 3)
    assert world.forward(both) == 3


@given(st.lists(KINDS, max_size=30), st.sets(st.integers(0, 29)))
def test_the_first_record_that_was_not_taken_is_reported_whatever_failed(
    destinations: list[Destination], refused: set[int]
) -> None:
    world = World()
    world.refuse(refused.__contains__)
    outgoing = [(index, _outgoing(index, each)) for index, each in enumerate(destinations)]
    expected = [index for index in sorted(refused) if index < len(destinations)]
    assert world.forward(outgoing) == min(expected, default=None)
    for destination, taken in world.taken().items():
        wanted = [i for i, each in enumerate(destinations) if each is destination]
        assert taken == [index for index in wanted if index not in refused]
