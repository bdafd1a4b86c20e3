"""A table's stream as Lambda reads it: in order per shard, again from where a run stopped."""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.cloud.delivery import named_in, wanted
from tests.simulation.cloud.stack import EventSource
from tests.simulation.histories.plan import Fault
from tests.simulation.histories.runs import Run

if TYPE_CHECKING:
    from tests.simulation.histories.world import Action, World

SHARDS = 2

type Record = dict[str, Any]


@dataclass
class Shard:
    """Records that are still to be read, and the batch that is out. `most`: after a bisection."""

    number: int
    batch_max: int
    records: list[tuple[int, Record]] = field(default_factory=list)
    out: int = 0
    most: int = 0
    retry_at_ms: int = 0


class StreamSource:
    """The mapping of one table's stream to the relay."""

    def __init__(self, world: "World", mapped: EventSource) -> None:
        self.world = world
        self.mapped = mapped
        self.table = mapped.source.removesuffix("Table")
        self.shards = [Shard(each, mapped.batch_size) for each in range(SHARDS)]

    def take(self, records: Sequence[Record]) -> None:
        """What was committed just now; a filter drops what nobody wants."""
        for record in records:
            if not wanted(self.mapped, record):
                continue
            keys = record["dynamodb"]["Keys"]
            first = next(iter(keys.values()))["S"]
            shard = self.shards[zlib.crc32(first.encode()) % SHARDS]
            shard.records.append((self.world.now_ms, record))

    def depth(self) -> int:
        """Records that are still to be done."""
        return sum(len(shard.records) for shard in self.shards)

    def actions(self) -> "list[Action]":
        """Batches that can be read now."""
        faults = self.world.faults
        if not self.depth() or faults.is_paused(self.table):
            return []
        if faults.is_down(self.mapped.function):
            return []
        return [
            (f"stream {self.table} {shard.number}", lambda shard=shard: self._start(shard))  # type: ignore[misc]
            for shard in self.shards
            if shard.records and not shard.out and shard.retry_at_ms <= self.world.now_ms
        ]

    def next_moment(self) -> int | None:
        """When a shard is tried again, or an outage of the stream ends."""
        faults = self.world.faults
        if not self.depth():
            return None
        moments = [each.retry_at_ms for each in self.shards if each.records and not each.out]
        if faults.is_paused(self.table):
            return faults.paused[self.table]
        if faults.is_down(self.mapped.function):
            return faults.outages[self.mapped.function][1]
        return min(moments, default=None)

    def _start(self, shard: Shard) -> None:
        if self._forget(shard):
            return
        most = min(shard.most or shard.batch_max, len(shard.records))
        shard.out = most if shard.most else self.world.dice.pick("stream batch", (1, most, most))
        batch = [record for _, record in shard.records[: shard.out]]
        event = {"Records": batch}
        self.world.invoke(self.mapped.function, event, lambda run: self._ended(shard, run))

    def _forget(self, shard: Shard) -> bool:
        """Lambda gives up what is too old, and says where it was."""
        if self.mapped.age_s_max is None:
            return False
        horizon_ms = self.world.now_ms - self.mapped.age_s_max * 1000
        old = [record for at_ms, record in shard.records if at_ms < horizon_ms]
        if not old:
            return False
        del shard.records[: len(old)]
        numbers = [record["dynamodb"]["SequenceNumber"] for record in old]
        told = {
            "requestContext": {"functionArn": "relay", "condition": "RecordAgeExceeded"},
            "version": "1.0",
            "DDBStreamBatchInfo": {
                "startSequenceNumber": numbers[0],
                "endSequenceNumber": numbers[-1],
                "batchSize": len(old),
                "streamArn": old[0]["eventSourceARN"],
            },
        }
        self.world.promises.lossy.add(self.table)
        self.world.faults.hits.note(Fault.STREAM_LOST, self.table)
        if self.mapped.on_failure is not None:
            self.world.delivery.queues.send(self.mapped.on_failure, json.dumps(told))
        self.world.stepped(f"stream {self.table}: {len(old)} records forgotten")
        return True

    def _ended(self, shard: Shard, run: Run) -> None:
        count, shard.out = shard.out, 0
        batch = [record["dynamodb"]["SequenceNumber"] for _, record in shard.records[:count]]
        done, failed = self._done(batch, run)
        del shard.records[:done]
        if not failed:
            shard.most = 0
            return
        shard.retry_at_ms = self.world.now_ms + self.world.dice.pick(
            "stream retry", (50, 500, 2000)
        )
        halves = self.mapped.bisects and run.result is None
        shard.most = max(1, (count - done) // 2) if halves else 0

    def _done(self, batch: Sequence[str], run: Run) -> tuple[int, bool]:
        """How many records from the first on are done, and whether any is not."""
        if run.given_up or run.result is None:
            return 0, True
        named = named_in(run.result)
        if not named:
            return len(batch), False
        if not named <= set(batch):
            return 0, True
        done = min(batch.index(each) for each in named)
        self.world.promises.reached[f"partial batch of {self.mapped.function}"] += done > 0
        return done, True
