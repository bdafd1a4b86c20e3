"""How long each step takes: as measured on the local engine, and as assumed of AWS."""

import json
from dataclasses import dataclass
from pathlib import Path

from bench.queueing.limits import LAMBDA_VCPU_MB

MEASURED = Path(__file__).with_name("measured.json")
"""Written by `python -m bench.queueing --measure`, with the day and the kind of machine."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Milliseconds of each step; `*_code_ms` are the processor's, the rest is waiting for AWS.

    Settling a wallet takes `settle_ms` and `settle_each_ms` for each of its movements, its code the
    same. `hand_over_ms` is what a batch of the queue waits for beside the function: a receive, the
    invocation, a delete; `poll_ms` how often an idle stream is looked at.
    """

    name: str
    accept_ms: float
    accept_code_ms: float
    settle_ms: float
    settle_each_ms: float
    settle_code_ms: float
    settle_code_each_ms: float
    send_ms: float
    put_events_ms: float
    hand_over_ms: float = 25
    poll_ms: float = 250

    def accept_s(self) -> float:
        """Seconds of ingest for one transaction."""
        return (self.accept_ms + self.accept_code_ms) / 1000

    def settle_s(self, groups: list[int], *, group_commit: bool) -> float:
        """Seconds of reconcile for a batch with so many movements of each wallet.

        Wallets wait for AWS side by side, and share the processor. Without group commit each
        movement is read, decided and written by itself.
        """
        if not group_commit:
            code_ms = sum(groups) * (self.settle_code_ms + self.settle_code_each_ms)
            return (max(groups) * (self.settle_ms + self.settle_each_ms) + code_ms) / 1000
        code_ms = len(groups) * self.settle_code_ms + sum(groups) * self.settle_code_each_ms
        return (self.settle_ms + max(groups) * self.settle_each_ms + code_ms) / 1000

    @property
    def hand_over_s(self) -> float:
        """Seconds that a batch of the queue takes beside the function."""
        return self.hand_over_ms / 1000


def measured() -> ServiceTimes:
    """Of the local engine: an emulator, whose answers come from the same machine."""
    return ServiceTimes(name="the local engine", **json.loads(MEASURED.read_text())["ms"])


def measured_on() -> str:
    """The day of it, and the kind of machine."""
    document = json.loads(MEASURED.read_text())
    return f"{document['measured_on']}, {document['machine']}"


def assumed(memory_mb: int) -> ServiceTimes:
    """Of AWS: single-digit milliseconds for one item; a transaction goes round twice.

    Code takes what was measured here, over the share of a processor that comes with the memory.
    """
    share = min(1.0, memory_mb / LAMBDA_VCPU_MB.value)
    here = measured()
    return ServiceTimes(
        name="AWS, assumed",
        accept_ms=6,
        accept_code_ms=here.accept_code_ms / share,
        settle_ms=4 + 12,  # GetItem, and TransactWriteItems for the wallet alone
        settle_each_ms=1,  # two more items of that transaction
        settle_code_ms=here.settle_code_ms / share,
        settle_code_each_ms=here.settle_code_each_ms / share,
        send_ms=10,
        put_events_ms=15,
    )
