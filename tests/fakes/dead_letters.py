"""Dead letters as their queues hand them over, and triage on fakes and a held clock."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from reconcile.settle import settle
from tests.fakes.memory import (
    START_MS,
    FakeClock,
    FakeDeadLetters,
    FakeLedger,
    FakeQueue,
    FakeSubjects,
    Store,
)
from tests.fakes.samples import row_of
from triage.act import Desk
from triage.desk import handle_request
from triage.keep import Kept, keep
from triage.queue import handle_batch
from triage.reading import read
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.letters import Arrival, Letter, Source
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import OfflineTransaction
from wallet_ledger.domain.wallets import Debit, Movement
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.messages import movement_message, put_aside, refund_message
from wallet_ledger.patience import Patience
from wallet_ledger.ports import DeadLetters, Subjects

type Json = dict[str, Any]

TRANSIENT = Unfinished(("TransactionConflict",))
BUG = Violation(("KeyError",), "settle.py _decide")
SENT_MS = START_MS - 600_000
"""When the messages here were sent first."""


def record(queue: str, body: str, message_id: str = "M-1", **changes: Any) -> Json:
    """A message of a queue as Lambda hands it over; `changes` are members of it."""
    return {
        "messageId": message_id,
        "receiptHandle": f"receipt of {message_id}",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": str(SENT_MS)},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:000000000000:wakala-{queue}",
        "awsRegion": "us-east-1",
    } | changes


def in_group(group: str, *, receives: int = 10, sent_ms: int = SENT_MS) -> Json:
    """The attributes of a message of a FIFO queue."""
    return {
        "ApproximateReceiveCount": str(receives),
        "SentTimestamp": str(sent_ms),
        "MessageGroupId": group,
        "MessageDeduplicationId": "d",
    }


def given_up(message: Movement | Refund, message_id: str = "M-1", sent_ms: int = SENT_MS) -> Json:
    """What its queue moved to its dead letters by itself."""
    if isinstance(message, Refund):
        sent, queue = refund_message(message, "d"), "RefundDLQ.fifo"
    else:
        sent, queue = movement_message(message, "d"), "TxDLQ.fifo"
    return record(queue, sent.body, message_id, attributes=in_group(message.phone, sent_ms=sent_ms))


def from_inbox(event: str, message_id: str = "M-1") -> Json:
    """An event that Inbox gave up."""
    attributes = {
        "ApproximateReceiveCount": "6",
        "SentTimestamp": str(SENT_MS),
        "DeadLetterQueueSourceArn": "arn:aws:sqs:us-east-1:000000000000:wakala-Inbox",
    }
    return record("DeliveryFailures", event, message_id, attributes=attributes)


def left(
    message: Movement | Refund,
    how: Unfinished | Violation = TRANSIENT,
    message_id: str = "M-1",
    sent_ms: int = SENT_MS,
) -> Json:
    """What its consumer put aside on its last receive."""
    source = "RefundQueue" if isinstance(message, Refund) else "TxQueue"
    inner = given_up(message, f"inner {message_id}", sent_ms)
    inner["eventSourceARN"] = f"arn:aws:sqs:us-east-1:000000000000:wakala-{source}.fifo"
    return record("DeliveryFailures", put_aside(source, how, inner).body, message_id)


def verbatim(told: Json) -> str:
    """What is kept of a record."""
    kept = {name: value for name, value in told.items() if name != "receiptHandle"}
    return json.dumps(kept, ensure_ascii="\ud800" in told["body"])


@dataclass
class Triage:
    """Both functions on one store; `letters` and `subjects` may be put behind something."""

    store: Store = field(default_factory=Store)
    clock: FakeClock = field(default_factory=FakeClock)
    retention_days: int = 30

    def __post_init__(self) -> None:
        self.letters: DeadLetters = FakeDeadLetters(self.store, retention_days=self.retention_days)
        self.subjects: Subjects = FakeSubjects(self.store)
        self.sent = {each: FakeQueue(self.clock) for each in Source if each.takes_again}

    def accept(self, *debits: Debit) -> None:
        """Their rows, queued at their attempts."""
        for each in debits:
            row = replace(row_of(each), attempt=each.attempt)
            self.store.rows[each.agent_id, each.idempotency_key] = row

    def row(self, debit: Debit) -> OfflineTransaction:
        """Its row as of now."""
        return self.store.rows[debit.agent_id, IdempotencyKey(debit.idempotency_key)]

    def settle(self, *movements: Movement) -> None:
        """Reconcile does its work on these, after all."""
        ledger = FakeLedger(self.store, retention_days=0)
        settle(movements, ledger, self.clock, Patience(self.clock, lambda: 0.5, 1_000))

    def keep(self, told: Json) -> Kept:
        """Keep one letter as the function does; with it what its queue told, word for word."""
        return self.keep_arrival(read(told), verbatim(told))

    def keep_arrival(self, arrival: Arrival, kept_record: str) -> Kept:
        """Keep one letter that was read."""
        return keep(
            arrival,
            kept_record,
            letters=self.letters,
            subjects=self.subjects,
            clock=self.clock,
            patience=Patience(self.clock, lambda: 0.5, 1_000),
        )

    def handle(self, records: Sequence[Json]) -> list[str]:
        """The ids of the messages that stay in their queue."""
        answer = handle_batch(records, self.keep_arrival)
        assert answer.keys() == {"batchItemFailures"}
        return [each["itemIdentifier"] for each in answer["batchItemFailures"]]

    @property
    def desk(self) -> Desk:
        """What the desk works with."""
        return Desk(self.letters, self.subjects, dict(self.sent), self.clock)

    def ask(self, action: str, **members: Any) -> Json:
        """The desk's answer, which goes out as JSON."""
        return json_round(handle_request({"action": action, **members}, self.desk, 2**63))

    def act(self, action: str, *letter_ids: str, **members: Any) -> list[str]:
        """The outcomes of redriving or discarding letters."""
        asked = {"letterIds": list(letter_ids), "who": "amina", "why": "mended"} | members
        results = self.ask(action, **asked)["results"]
        assert [each["letterId"] for each in results] == list(letter_ids)
        return [each["outcome"] for each in results]

    def pass_minutes(self, minutes: float) -> Json:
        """Time goes by, and the clock asks."""
        self.clock.pause(minutes * 60)
        return self.ask("due")

    def letter(self, letter_id: str) -> Letter:
        """A letter as of now."""
        return self.store.letters[letter_id]

    def messages(self, source: Source) -> list[str]:
        """The bodies that a queue was sent, oldest first."""
        return [message.body for message in self.sent[source].messages]

    def everything(self) -> Any:
        """All that is stored or sent, to be compared."""
        store = self.store
        kept = (store.rows, store.entries, store.letters, store.records, store.budgets)
        return [
            *(dict(each) for each in kept),
            [list(queue.messages) for queue in self.sent.values()],
        ]


def json_round(answer: Json) -> Json:
    """An answer as its caller gets it: Lambda writes it as JSON in UTF-8."""
    told: Json = json.loads(json.dumps(answer, ensure_ascii=False).encode())
    return told
