"""The edge of a FIFO consumer: phones side by side, each in its order, and what comes again.

Reconcile and refund are two consumers of one kind; what they do with an item is theirs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from wallet_ledger.domain.ids import Phone
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import InvalidMessage, Unavailable
from wallet_ledger.messages import unreadable
from wallet_ledger.ports import Queue
from wallet_ledger.telemetry import in_current_trace, log_failure, logger

type Record = Mapping[str, Any]
type GiveBack = Callable[[Sequence[tuple[str, int]]], None]

GIVE_BACK_S = (2, 4, 8, 16, 32, 64, 128, 256)
"""How long a group rests after its 1st, 2nd, … receive, so that a bad minute does not use up the
queue's receive count in seconds."""


@dataclass(frozen=True, slots=True)
class Consumer[Item, Result]:
    """What a function does with the items of its queue.

    `read` raises `InvalidMessage`; `phone_of` names the lane of an item; `work` does the items of
    one phone in their order, its results parallel to them; `report` tells of one.
    """

    source: str
    read: Callable[[Record], Item]
    phone_of: Callable[[Item], Phone]
    work: Callable[[Sequence[Item]], Sequence[Result | Unfinished | Violation]]
    report: Callable[[Item, Result | Unfinished | Violation], None]
    delivery_failures: Queue
    give_back: GiveBack

    def handle_batch(self, records: Sequence[Record]) -> dict[str, list[dict[str, str]]]:
        """The answer to Lambda: the message ids that must come again."""
        items, unread = self._read(records)
        again: list[Record] = []
        rests: list[tuple[str, int]] = []
        lanes: dict[Phone, list[tuple[Record, Item]]] = defaultdict(list)
        for record, item in items:
            lanes[self.phone_of(item)].append((record, item))
        for lane, results in zip(lanes.values(), self._in_parallel(lanes), strict=True):
            left = []
            for (record, item), result in zip(lane, results, strict=True):
                self.report(item, result)
                if isinstance(result, Unfinished | Violation):
                    left.append(record)
            rests += _rests(left)
            again += left
        self._rest(rests)
        # Last, since a slow queue of letters must not eat the time in which nine wallets are done.
        again += self._hand_over(unread)
        return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in again]}

    def _read(
        self, records: Sequence[Record]
    ) -> tuple[list[tuple[Record, Item]], list[tuple[Record, str]]]:
        readable, unread = [], []
        for record in records:
            try:
                readable.append((record, self.read(record)))
            except InvalidMessage as error:
                unread.append((record, str(error)))
        return readable, unread

    def _hand_over(self, unread: Sequence[tuple[Record, str]]) -> list[Record]:
        """Move what nobody can read out of its group's way; what could not be moved stays."""
        for _, why in unread:
            logger.error("unreadable message", extra={"why": why})
        letters = [unreadable(self.source, why, record) for record, why in unread]
        try:
            kept = self.delivery_failures.send(letters) if letters else frozenset()
        except Exception as error:  # say, a letter larger than the queue takes: the others go on
            log_failure("unreadable messages not handed over", error)
            return [record for record, _ in unread]
        return [unread[index][0] for index in sorted(kept)]

    def _in_parallel(
        self, lanes: Mapping[Phone, Sequence[tuple[Record, Item]]]
    ) -> list[Sequence[Result | Unfinished | Violation]]:
        items = [[item for _, item in lane] for lane in lanes.values()]
        if len(items) < 2:
            return [self._alone(lane) for lane in items]
        with ThreadPoolExecutor(max_workers=len(items)) as pool:
            return list(pool.map(in_current_trace(self._alone), items))

    def _alone(self, items: Sequence[Item]) -> Sequence[Result | Unfinished | Violation]:
        # One wallet's trouble (a row that somebody edited, a bug on one path) must not take nine
        # other wallets' messages back to the queue, and in the end to the dead letters, with it.
        try:
            return self.work(items)
        except Exception as error:
            log_failure("one phone's work failed", error)
            return [Violation((type(error).__name__,))] * len(items)

    def _rest(self, rests: Sequence[tuple[str, int]]) -> None:
        try:
            if rests:
                self.give_back(rests)
        except Unavailable as error:
            logger.warning("not given back early", extra={"code": error.code})
        except Exception as error:  # what is done must not come again for want of a shorter rest
            log_failure("not given back early", error)


def _rests(left: Sequence[Record]) -> list[tuple[str, int]]:
    """A group rests as one, by its first message: one that is out keeps the whole group waiting."""
    if not left:
        return []
    rest_s = GIVE_BACK_S[min(receives(left[0]), len(GIVE_BACK_S)) - 1]
    return [(record["receiptHandle"], rest_s) for record in left]


def receives(record: Record) -> int:
    """How often the record has been received, this time included."""
    return int(record["attributes"]["ApproximateReceiveCount"])
