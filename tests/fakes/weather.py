"""What no engine does by itself and DynamoDB does daily, at the wire, by seed.

A transaction that meets another one on its items is cancelled, as on AWS; calls are throttled,
refused and cut off; and some are done whose answer is lost.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Lock, local
from typing import Any, Final

from botocore.awsrequest import AWSResponse

from tests.fakes.faults import PASSING
from tests.fakes.wire import Sent, cancelled, error, lost

WEIGHTS: Final = {"fine": 76, "slow": 8, "refused": 6, "cancelled": 4, "lost": 6}
"""How often each befalls a call, of 100."""
CONFLICT_SHARE: Final = 0.5
"""Of the meetings on an item; the engine's own conditions have to deal with the others."""
SLOW_SECONDS_MAX: Final = 0.02
CANCELLATIONS: Final = ("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded")
TRANSACTIONS: Final = frozenset({"TransactWriteItems", "TransactGetItems"})
PLAIN_WRITES: Final = frozenset({"PutItem", "UpdateItem", "DeleteItem"})
KEYS: Final = (("phone", "txId"), ("agentId", "idempotencyKey"))


class Weather:
    """An `Answer` for the wire. `counts`: how often which fault befell a call.

    It befalls threads that are `out` in it, and no others.
    """

    def __init__(self, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._writing: Counter[str] = Counter()
        self._lock = Lock()
        self._thread = local()

    @contextmanager
    def out(self, who: int) -> Iterator[None]:
        """While this lasts, the calls of this thread meet what is drawn for `who`."""
        self._thread.random = random.Random(f"{self._seed} {who}")
        try:
            yield
        finally:
            del self._thread.random

    def __call__(self, sent: Sent) -> AWSResponse:
        """Answer one request, with the engine's help or without."""
        draw: random.Random | None = getattr(self._thread, "random", None)
        if draw is None:
            return sent.forward()
        met = replace(sent, forward=partial(self._unless_met, sent, draw))
        match draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
            case "refused":
                name = draw.choice(list(PASSING))
                self._count(name)
                return PASSING[name](sent)
            case "cancelled" if sent.operation in TRANSACTIONS:
                return self._cancelled(sent, draw)
            case "lost":
                self._count("answer lost")
                return lost(met)
            case "slow":
                time.sleep(draw.uniform(0, SLOW_SECONDS_MAX))
            case _:
                pass
        return met.forward()

    def _cancelled(self, sent: Sent, draw: random.Random) -> AWSResponse:
        """For a cause that passes, beside which conditions may fail that are not to be believed."""
        code = draw.choice(CANCELLATIONS)
        writes = sent.operation == "TransactWriteItems"
        beside = ["None", "ConditionalCheckFailed"] if writes else ["None"]
        reasons = [draw.choice(beside) for _ in sent.body["TransactItems"]]
        reasons[draw.randrange(len(reasons))] = code
        self._count(f"cancelled by {code}")
        return cancelled(*reasons)(sent)

    def _unless_met(self, sent: Sent, draw: random.Random) -> AWSResponse:
        """The engine's answer, or that of DynamoDB where a write of the same item is under way."""
        touched = items_of(sent)
        writes = sent.operation != "TransactGetItems"
        with self._lock:
            met = [self._writing[each] > 0 for each in touched]
            conflict = any(met) and draw.random() < CONFLICT_SHARE
            if writes and not conflict:
                self._writing.update(touched)
        if conflict:
            self._count("items met")
            if sent.operation in PLAIN_WRITES:
                return error("TransactionConflictException")(sent)
            return cancelled(*("TransactionConflict" if each else "None" for each in met))(sent)
        try:
            return sent.forward()
        finally:
            if writes:
                with self._lock:
                    self._writing.subtract(touched)

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1


def items_of(sent: Sent) -> list[str]:
    """The items, by table and key, on which DynamoDB lets one call at a time be."""
    if sent.operation in TRANSACTIONS:
        return [_name(next(iter(each.values()))) for each in sent.body["TransactItems"]]
    return [_name(sent.body)] if sent.operation in PLAIN_WRITES else []


def _name(write: Mapping[str, Any]) -> str:
    given = write.get("Key") or write["Item"]
    [key] = [names for names in KEYS if given.keys() >= set(names)][:1]
    return json.dumps([write["TableName"], *(given[name] for name in key)])
