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
from wallet_ledger.messages import put_aside, unreadable
from wallet_ledger.ports import OutgoingMessage, Queue
from wallet_ledger.telemetry import in_current_trace, log_failure, logger, place_of

type Record = Mapping[str, Any]
type GiveBack = Callable[[Sequence[tuple[str, int]]], None]

GIVE_BACK_S = (2, 4, 8, 16, 32, 64, 128, 256)
"""How long a group rests after its 1st, 2nd, … receive, so that a bad minute does not use up the
queue's receive count in seconds."""


@dataclass(frozen=True, slots=True)
class Consumer[Item, Result]:
    """What a function does with the items of its queue.

    `read` raises `InvalidMessage`; `phone_of` names the lane of an item; `work` does the items of
    one phone in their order, its results parallel to them; `report` tells of one. `receives_max`
    is how often its queue gives a message out: on the last time it is put aside here, since the
    queue could not say why.
    """

    source: str
    read: Callable[[Record], Item]
    phone_of: Callable[[Item], Phone]
    work: Callable[[Sequence[Item]], Sequence[Result | Unfinished | Violation]]
    report: Callable[[Item, Result | Unfinished | Violation], None]
    delivery_failures: Queue
    give_back: GiveBack
    receives_max: int

    def handle_batch(self, records: Sequence[Record]) -> dict[str, list[dict[str, str]]]:
        """The answer to Lambda: the message ids that must come again."""
        items, unread = self._read(records)
        again: list[Record] = []
        rests: list[tuple[str, int]] = []
        last: list[tuple[Record, OutgoingMessage]] = []
        lanes: dict[Phone, list[tuple[Record, Item]]] = defaultdict(list)
        for record, item in items:
            lanes[self.phone_of(item)].append((record, item))
        for lane, results in zip(lanes.values(), self._in_parallel(lanes), strict=True):
            left = []
            for (record, item), result in zip(lane, results, strict=True):
                self.report(item, result)
                if not isinstance(result, Unfinished | Violation):
                    continue
                if receives(record) < self.receives_max:
                    left.append(record)
                else:
                    logger.warning("put aside", extra={"messageId": record["messageId"]})
                    last.append((record, put_aside(self.source, result, record)))
            rests += _rests(left)
            again += left
        self._rest(rests)
        # Last, since a slow queue of letters must not eat the time in which nine wallets are done.
        again += self._hand_over([*unread, *last])
        return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in again]}

    def _read(
        self, records: Sequence[Record]
    ) -> tuple[list[tuple[Record, Item]], list[tuple[Record, OutgoingMessage]]]:
        readable, unread = [], []
        for record in records:
            try:
                readable.append((record, self.read(record)))
            except InvalidMessage as error:
                logger.error("unreadable message", extra={"why": str(error)})
                unread.append((record, unreadable(self.source, str(error), record)))
        return readable, unread

    def _hand_over(self, letters: Sequence[tuple[Record, OutgoingMessage]]) -> list[Record]:
        """Move what nobody can do out of its group's way; what could not be moved stays.

        What stays after its last receive its queue moves by itself, without a reason.
        """
        try:
            kept = self.delivery_failures.send([letter for _, letter in letters])
        except Exception as error:  # say, a letter larger than the queue takes: the others go on
            log_failure("letters not handed over", error)
            return [record for record, _ in letters]
        return [letters[index][0] for index in sorted(kept)]

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
            return [Violation((type(error).__name__,), place_of(error))] * len(items)

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
