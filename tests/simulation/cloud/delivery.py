"""What Lambda makes of queues, of streams and of a function's answer, whoever lets it run."""

from collections.abc import Iterable, Sequence

from tests.simulation.cloud.errors import Json
from tests.simulation.cloud.patterns import matches
from tests.simulation.cloud.queues import Message, Queue
from tests.simulation.cloud.stack import EventSource


class Batch:
    """Messages of a queue that were received together: `event` is what the function gets."""

    def __init__(self, queue: Queue, messages: Sequence[Message]) -> None:
        self.event: Json = {"Records": [queue.record(each) for each in messages]}
        self._queue = queue
        self._handles = {each.message_id: str(each.handle) for each in messages}

    def done(self, answer: Json | None) -> set[str]:
        """Ids of the messages that need not come again: none, where the answer names others."""
        if answer is None or not named_in(answer) <= self._handles.keys():
            return set()
        return self._handles.keys() - named_in(answer)

    def delete(self, message_ids: Iterable[str]) -> None:
        """Those of them that are still in flight are gone."""
        for message_id in sorted(message_ids):
            self._queue.delete(self._handles[message_id])


def named_in(answer: Json) -> set[str]:
    """What a function asks to be given again."""
    return {each["itemIdentifier"] for each in answer["batchItemFailures"]}


def wanted(mapping: EventSource, record: Json) -> bool:
    """Whether the filters of the mapping let a record of its stream through."""
    return not mapping.filters or any(matches(each, record) for each in mapping.filters)
