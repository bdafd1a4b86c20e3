"""One piece of work for each function: how it is delivered until it is done, and what must be then.

Every piece has ids of its own, so that all of them live on the same tables and queues.
"""

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from tests.contract.channels import receive_all
from tests.contract.functions import Functions
from tests.fakes.dead_letters import BUG, TRANSIENT, from_inbox, given_up, left, verbatim
from tests.fakes.dead_letters import record as sqs_letter
from tests.fakes.promises import assert_books_add_up, refund_totals
from tests.fakes.samples import (
    KES,
    OPEN_DAYS,
    credit,
    debit,
    posting,
    refund,
    request,
    row_of,
    status_change,
    waiting,
    wallet,
)
from tests.fakes.wire import Answer, Sent, cancelled, through
from triage.keep import keep
from triage.reading import read
from wallet_ledger.aws import items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.letters import DynamoDeadLetters, DynamoSubjects
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain import refunds
from wallet_ledger.domain.ids import AgentId, Fingerprint, IdempotencyKey, Phone
from wallet_ledger.domain.letters import Budget, Letter, LetterStatus
from wallet_ledger.domain.postings import Committed, NewEntry
from wallet_ledger.domain.refunds import Post, Reject
from wallet_ledger.domain.transactions import (
    OfflineTransaction,
    PendingRefund,
    Reason,
    Status,
    accept,
)
from wallet_ledger.domain.wallets import Debit, Movement, Posted, Rejected, Wallet, WalletStatus
from wallet_ledger.messages import movement_message, refund_message
from wallet_ledger.patience import Patience

type Json = dict[str, Any]
type Invoke = Callable[[str, Json], Any]


class Work(Protocol):
    """Work for one function."""

    base: Answer
    """What answers its calls where no fault does."""

    @abstractmethod
    def deliver(self, invoke: Invoke) -> bool:
        """Once more, what is not done yet; whether all of it is done now."""

    @abstractmethod
    def check(self) -> None:
        """What must be when it is done, whatever happened on the way."""


class _OnFunctions:
    base: Answer = staticmethod(through)

    def __init__(self, functions: Functions) -> None:
        self.functions = functions
        number = next(functions.numbers)
        self.phone = Phone(f"2547{number:08d}")
        self.other_phone = Phone(f"2541{number:08d}")
        self.agent_id = AgentId(f"AG-{number}")

    def debit(self, key: str, amount_minor: int = 100) -> Debit:
        return debit(key, amount_minor, agent_id=self.agent_id, phone=self.phone)

    def put_row(self, row: OfflineTransaction) -> None:
        table = self.functions.tables.offline_tx
        self.functions.aws.dynamodb.put_item(TableName=table, Item=items.offline_tx_item(row))

    def row(self, key: str) -> OfflineTransaction | None:
        answer = self.functions.aws.dynamodb.get_item(
            TableName=self.functions.tables.offline_tx,
            Key=items.offline_tx_key(self.agent_id, IdempotencyKey(key)),
        )
        return items.read_offline_tx(answer["Item"]) if "Item" in answer else None

    def arrived(self, queue: str) -> list[str]:
        """What a queue holds, oldest first; it is taken."""
        url = self.functions.queues[queue]
        return [message["Body"] for message in receive_all(self.functions.aws.sqs, url)]

    def heard(self) -> list[Json]:
        """The events on the bus since last time."""
        return [json.loads(body) for body in self.arrived("InboxQueue")]

    def assert_books_add_up(self, phone: Phone, rows: list[OfflineTransaction]) -> Wallet:
        found = self.functions.aws.dynamodb.query(
            TableName=self.functions.tables.wallet_ledger,
            KeyConditionExpression="phone = :phone",
            ExpressionAttributeValues={":phone": {"S": phone}},
        )["Items"]
        [wallet] = [items.read_wallet(i) for i in found if i["txId"]["S"] == items.BALANCE]
        entries = [items.read_entry(i) for i in found if items.entry_kind(i["txId"]["S"])]
        assert_books_add_up(wallet, entries, rows, refund_totals(found))
        return wallet


# --- ingest ---------------------------------------------------------------------------------------


class Http(_OnFunctions):
    """An agent's app, which sends again whatever was not answered."""

    def call(self, invoke: Invoke, method: str, resource: str, body: object = None) -> Json:
        answer = invoke(
            "ingest",
            {
                "httpMethod": method,
                "resource": resource,
                "pathParameters": {"idempotencyKey": "K-1"},
                "body": json.dumps(body),
                "requestContext": {"authorizer": {"claims": {"custom:agentId": self.agent_id}}},
            },
        )
        return {**json.loads(answer["body"]), "status": answer["statusCode"]}

    def item(self, key: str) -> Json:
        return {
            "agentId": self.agent_id,
            "phone": "254712345678",
            "amount": 100,
            "idempotencyKey": key,
        }

    def assert_stored(self, *keys: str) -> None:
        for key in keys:
            row = self.row(key)
            assert row is not None
            assert (row.status, row.amount_minor, row.attempt) == (Status.QUEUED, 100, 1)


class Submit(Http):
    """POST /tx/offline."""

    def deliver(self, invoke: Invoke) -> bool:
        answer = self.call(invoke, "POST", "/tx/offline", self.item("K-1"))
        assert answer["status"] in {200, 202, 503}, answer
        return bool(answer["status"] != 503)

    def check(self) -> None:
        self.assert_stored("K-1")


class SubmitBatch(Http):
    """POST /tx/offline/batch."""

    def deliver(self, invoke: Invoke) -> bool:
        batch = {"transactions": [self.item(f"K-{number}") for number in range(3)]}
        answer = self.call(invoke, "POST", "/tx/offline/batch", batch)
        assert answer["status"] == 200, answer
        errors = [each["error"] for each in answer["results"] if "error" in each]
        assert all(each["code"] == "UNAVAILABLE" and each["retryable"] for each in errors)
        return not errors

    def check(self) -> None:
        self.assert_stored("K-0", "K-1", "K-2")


class Cancel(Http):
    """POST /tx/{idempotencyKey}/refund of a transaction that is not settled."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.put_row(row_of(self.debit("K-1")))

    def deliver(self, invoke: Invoke) -> bool:
        body = {"reason": "wrong phone", "refundId": "R-1"}
        answer = self.call(invoke, "POST", "/tx/{idempotencyKey}/refund", body)
        assert (answer["status"], answer.get("code")) in {(200, None), (503, "UNAVAILABLE")}, answer
        return bool(answer["status"] == 200)

    def check(self) -> None:
        row = self.row("K-1")
        assert row is not None
        assert (row.status, row.cancelled_by) == (Status.CANCELLED, "R-1")


class AskForRefund(Http):
    """POST /tx/{idempotencyKey}/refund of a settled transaction."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.put_row(row_of(self.debit("K-1"), Status.SYNCED))

    def deliver(self, invoke: Invoke) -> bool:
        body = {"reason": "wrong phone", "refundId": "R-1", "amount": 30}
        answer = self.call(invoke, "POST", "/tx/{idempotencyKey}/refund", body)
        assert answer["status"] in {200, 202, 503}, answer
        return bool(answer["status"] != 503)

    def check(self) -> None:
        row = self.row("K-1")
        assert row is not None
        assert (row.status, row.attempt) == (Status.REFUND_REQUESTED, 2)
        assert row.refund_request == PendingRefund("R-1", 30, "wrong phone")


class AskStatus(Http):
    """GET /tx/status/{idempotencyKey}: what is there is never a 404."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        wanted = request("K-1", agent_id=self.agent_id, phone=self.phone)
        self.put_row(accept(wanted, SystemClock().now_ms(), OPEN_DAYS))

    def deliver(self, invoke: Invoke) -> bool:
        answer = self.call(invoke, "GET", "/tx/status/{idempotencyKey}")
        assert answer["status"] in {200, 503}, answer
        assert answer["status"] == 503 or answer["amount"] == 100
        return bool(answer["status"] == 200)

    def check(self) -> None:
        self.assert_stored("K-1")


# --- queues ---------------------------------------------------------------------------------------


def sqs_record(body: str, message_id: str) -> Json:
    """A message as Lambda hands it over."""
    return {
        "messageId": message_id,
        "receiptHandle": f"receipt-{message_id}",
        "body": body,
        "attributes": {"ApproximateReceiveCount": "1"},
        "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:queue",
    }


class Batch(_OnFunctions):
    """Messages of a queue, of which those that are reported come again."""

    function: str
    records: Mapping[str, Json]

    def deliver(self, invoke: Invoke) -> bool:
        answer = invoke(self.function, {"Records": list(self.records.values())})
        again = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
        assert set(again) <= self.records.keys()
        self.records = {message_id: self.records[message_id] for message_id in again}
        return not again


class TakeBusRequests(Batch):
    """Three requests of the back office, and something that is none."""

    function = "ingest-bus"

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        ids = {"source": "till", "phone": self.phone}
        bodies = {
            "credit": self.event("WalletCreditRequested", ids | {"creditId": "C", "amount": 5}),
            "status": self.event(
                "WalletStatusRequested", ids | {"requestId": "S", "status": "active"}
            ),
            "refund": self.event(
                "RefundRequested",
                {"agentId": self.agent_id, "idempotencyKey": "K-1", "phone": self.phone}
                | {"reason": "wrong phone"},
            ),
            "poison": self.event("WalletCreditRequested", ids),
        }
        self.records = {name: sqs_record(body, name) for name, body in bodies.items()}

    def event(self, detail_type: str, detail: Json) -> str:
        event_id = f"{self.agent_id}-{detail_type}-{len(detail)}"
        return json.dumps({"id": event_id, "detail-type": detail_type, "detail": detail})

    def check(self) -> None:
        kinds = [json.loads(body)["kind"] for body in self.arrived("TxQueue")]
        assert sorted(kinds) == ["credit", "status"]
        assert [json.loads(b)["refundId"] for b in self.arrived("RefundQueue")] == ["full"]
        assert set(letters(self)) == {"poison"}


def letters(work: _OnFunctions) -> list[str]:
    """Which records DeliveryFailures holds; a standard queue may hold one twice."""
    found = [json.loads(body)["record"] for body in work.arrived("DeliveryFailuresQueue")]
    return [record.get("messageId") or record["eventID"] for record in found]


class Settle(Batch):
    """Two wallets: debits of which one is declined, an opening, a freezing, and poison."""

    function = "reconcile"

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.debits = [self.debit("K-1", 60), self.debit("K-2", 60)]
        for each in self.debits:
            self.put_row(row_of(each))
        movements: list[Movement] = [
            credit("C-1", 100, phone=self.phone),
            *self.debits,
            status_change("S-1", WalletStatus.FROZEN, phone=self.other_phone),
            credit("C-2", 7, phone=self.other_phone),
        ]
        bodies = [movement_message(each, "d").body for each in movements]
        self.records = {
            str(number): sqs_record(body, str(number)) for number, body in enumerate(bodies)
        }
        self.records["poison"] = sqs_record("{", "poison")

    def check(self) -> None:
        rows = [self.row(each.idempotency_key) for each in self.debits]
        known = [row for row in rows if row is not None]
        assert [(row.status, row.reason) for row in known] == [
            (Status.SYNCED, None),
            (Status.FAILED, "INSUFFICIENT_FUNDS"),
        ]
        wallet = self.assert_books_add_up(self.phone, known)
        assert (wallet.balance_minor, wallet.status) == (40, WalletStatus.ACTIVE)
        other = self.assert_books_add_up(self.other_phone, [])
        assert (other.balance_minor, other.status) == (7, WalletStatus.FROZEN)
        assert set(letters(self)) == {"poison"}


class SettleContended(Settle):
    """The same, while every write of the first delivery conflicts with somebody else's."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.base = conflicting
        self._first = True

    def deliver(self, invoke: Invoke) -> bool:
        done = super().deliver(invoke)
        assert not (self._first and done)
        self._first, self.base = False, through
        return done


class GiveBack(Batch):
    """Four wallets: a cancellation, a part, too much, and an agent who waits; and poison.

    One refund for each wallet: how many of one there is time for is not what is tried here.
    """

    function = "refund"

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        number = int(self.agent_id.removeprefix("AG-"))
        self.phones = [Phone(f"254{digit}{number:08d}") for digit in "3456"]
        for place, phone in enumerate(self.phones):
            self.fund(phone, f"K-{place}", settled=place > 0)
        waits = self.row("K-3")
        assert waits is not None
        self.put_row(waiting(waits, "A-1", 40))
        self.records = {
            refund_id: sqs_record(self.message(place, refund_id, amount_minor), refund_id)
            for place, (refund_id, amount_minor) in enumerate(
                {"R-1": None, "R-2": 30, "R-3": 101, "A-1": 40}.items()
            )
        }
        self.records["poison"] = sqs_record("{", "poison")

    def message(self, place: int, refund_id: str, amount_minor: int | None) -> str:
        asked = refund(
            refund_id,
            amount_minor,
            key=f"K-{place}",
            agent_id=self.agent_id,
            phone=self.phones[place],
        )
        return refund_message(asked, "d").body

    def fund(self, phone: Phone, key: str, *, settled: bool) -> None:
        tables = self.functions.tables
        ledger = DynamoLedger(
            self.functions.aws.dynamodb,
            ledger_table=tables.wallet_ledger,
            offline_tx_table=tables.offline_tx,
            retention_days=0,
        )
        wanted = debit(key, 100, agent_id=self.agent_id, phone=phone)
        self.put_row(row_of(wanted))
        debits = [wanted] if settled else []
        posted = ledger.post(posting(None, credit("C-1", 1_000, phone=phone), *debits))
        assert posted == Committed()

    def check(self) -> None:
        rows = [row for row in map(self.row, ("K-0", "K-1", "K-2", "K-3")) if row is not None]
        assert [(row.status, row.refunded_minor) for row in rows] == [
            (Status.CANCELLED, None),
            (Status.PARTIALLY_REFUNDED, 30),
            (Status.SYNCED, None),
            (Status.PARTIALLY_REFUNDED, 40),
        ]
        assert rows[0].cancelled_by == "R-1"
        wallets = [
            self.assert_books_add_up(phone, [row])
            for phone, row in zip(self.phones, rows, strict=True)
        ]
        assert [each.balance_minor for each in wallets] == [1_000, 930, 900, 940]
        assert set(letters(self)) == {"poison"}


class GiveBackContended(GiveBack):
    """The same, while every write of the first delivery conflicts with somebody else's."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.base = conflicting
        self._first = True

    def deliver(self, invoke: Invoke) -> bool:
        done = super().deliver(invoke)
        assert not (self._first and done)
        self._first, self.base = False, through
        return done


def conflicting(sent: Sent) -> Any:
    """No transaction is written."""
    if sent.operation != "TransactWriteItems":
        return through(sent)
    codes = ["TransactionConflict", *["None"] * (len(sent.body["TransactItems"]) - 1)]
    return cancelled(*codes)(sent)


# --- streams --------------------------------------------------------------------------------------


class Stream(_OnFunctions):
    """Records of a stream, which starts again at the one that is reported."""

    records: list[Json]

    def deliver(self, invoke: Invoke) -> bool:
        answer = invoke("relay", {"Records": self.records})
        stops = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
        if not stops:
            return True
        [stop] = stops
        places = [each["dynamodb"]["SequenceNumber"] for each in self.records]
        self.records = self.records[places.index(stop) :]
        return False

    def record(self, table: str, event_id: str, **images: Json) -> Json:
        sequence = f"{next(self.functions.numbers):021d}"
        return {
            "eventID": event_id,
            "eventName": "MODIFY" if "OldImage" in images else "INSERT",
            "eventSourceARN": f"arn:aws:dynamodb:us-east-1:000000000000:table/{table}/stream/2026",
            "dynamodb": {"SequenceNumber": sequence, **images},
        }


class ForwardRows(Stream):
    """Rows that are accepted, settled, refused, cancelled and wanted back; one nobody can read."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        accepted, settled, declined = (row_of(self.debit(f"K-{number}")) for number in range(3))
        wanted = row_of(self.debit("K-3"), Status.SYNCED)
        self.records = [
            self.change("accepted", None, accepted),
            self.change("settled", settled, row_of(self.debit("K-1"), Status.SYNCED)),
            self.change("unreadable", None, accepted),
            self.change("declined", declined, row_of(self.debit("K-2"), Status.FAILED)),
            self.change("cancelled", accepted, refunds.cancelled(accepted, "R-1", 1)),
            self.change("wanted", wanted, waiting(wanted)),
        ]
        self.records[2]["dynamodb"]["NewImage"]["fingerprint"] = {"S": Fingerprint("0" * 64)}

    def change(
        self, event_id: str, old: OfflineTransaction | None, new: OfflineTransaction
    ) -> Json:
        images = {"NewImage": items.offline_tx_item(new)}
        if old is not None:
            images["OldImage"] = items.offline_tx_item(old)
        return self.record(self.functions.tables.offline_tx, event_id, **images)

    def check(self) -> None:
        assert [json.loads(body)["idempotencyKey"] for body in self.arrived("TxQueue")] == ["K-0"]
        failed = [json.loads(body)["idempotencyKey"] for body in self.arrived("FailedTxQueue")]
        assert failed == ["K-2"]
        told = {each["detail"]["eventId"]: each["detail-type"] for each in self.heard()}
        assert Counter(told.values()) == Counter(
            [
                "TransactionSynced",
                "TransactionFailed",
                "TransactionCancelled",
                "RefundCompleted",
                "RefundRequested",
            ]
        )
        assert set(letters(self)) == {"unreadable"}


class ForwardEntries(Stream):
    """A credit and a refused one, a refund and a refused one."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        made = [
            NewEntry(credit("C-1", phone=self.phone), Posted(1, 1000)),
            NewEntry(credit("C-2", phone=self.phone), Rejected(Reason.BALANCE_LIMIT)),
        ]
        table = self.functions.tables.wallet_ledger
        self.records = [
            self.record(table, f"{number}", NewImage=items.entry_item(new, 1))
            for number, new in enumerate(made)
        ]
        asked = refund("R-1", 30, agent_id=self.agent_id, phone=self.phone)
        decided: list[Post | Reject] = [
            Post(30, 100, KES, wallet(), None),
            Reject(Reason.KEY_REUSED, None, None),
        ]
        self.records += [
            self.record(table, f"r{number}", NewImage=items.refund_item(asked, each, KES, 1))
            for number, each in enumerate(decided)
        ]

    def check(self) -> None:
        told = {each["detail"]["eventId"]: each["detail-type"] for each in self.heard()}
        assert Counter(told.values()) == Counter(
            ["WalletCredited", "WalletCreditRejected", "RefundCompleted", "RefundRejected"]
        )


# --- the sweep ------------------------------------------------------------------------------------


class Sweep(_OnFunctions):
    """A row that is due, one too old, one that may wait, and one that is wanted back since long."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        now_ms = SystemClock().now_ms()
        accepted_ms = {
            "due": now_ms - 3_600_000,
            "old": now_ms - OPEN_DAYS * 86_400_000 - 1000,
            "new": now_ms,
        }
        for key, at_ms in accepted_ms.items():
            wanted = request(key, agent_id=self.agent_id, phone=self.phone)
            self.put_row(accept(wanted, at_ms, OPEN_DAYS))
        self.put_row(waiting(row_of(self.debit("wanted"), Status.SYNCED)))

    def deliver(self, invoke: Invoke) -> bool:
        invoke("sweep", {})
        due, old, wanted = self.row("due"), self.row("old"), self.row("wanted")
        assert due is not None
        assert old is not None
        assert wanted is not None
        return due.attempt == 2 and old.status is Status.EXPIRED and wanted.attempt == 3

    def check(self) -> None:
        rows = {key: self.row(key) for key in ("due", "old", "new", "wanted")}
        assert {key: (row.status, row.attempt) for key, row in rows.items() if row} == {
            "due": (Status.QUEUED, 2),
            "old": (Status.EXPIRED, 1),
            "new": (Status.QUEUED, 1),
            "wanted": (Status.REFUND_REQUESTED, 3),
        }


# --- triage ---------------------------------------------------------------------------------------


SENDING = ("amina", "sending")


class Mail(_OnFunctions):
    """Letters of one wallet, and what is kept of them."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        tables = functions.tables
        self.letters = DynamoDeadLetters(
            functions.aws.dynamodb,
            table=functions.letters_table,
            offline_tx_table=tables.offline_tx,
            retention_days=30,
        )
        self.subjects = DynamoSubjects(
            functions.aws.dynamodb,
            ledger_table=tables.wallet_ledger,
            offline_tx_table=tables.offline_tx,
        )

    def named(self, name: str) -> str:
        """The id of a message, and that of its letter."""
        return f"{name} {self.agent_id}"

    def letter_id(self, told: Json) -> str:
        return read(told).letter_id

    def kept(self, told: Json) -> Letter:
        """A letter as of now."""
        letter = self.letters.find(self.letter_id(told))
        assert letter is not None
        return letter

    def keep(self, told: Json, *, due_ms: int | None = None) -> str:
        """As triage does it; where it is given, the time of its next look is another."""
        clock = SystemClock()
        patience = Patience(clock, lambda: 0.5, 1_000)
        kept = keep(
            read(told),
            verbatim(told),
            letters=self.letters,
            subjects=self.subjects,
            clock=clock,
            patience=patience,
        )
        assert kept.new
        if due_ms is not None:
            assert self.letters.look_later(replace(kept.letter, due_at_ms=due_ms))
        return kept.letter.letter_id


class KeepLetters(Mail):
    """A debit that is put aside, one that is settled, a refund, a refusal, and poison."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        held, unknown = self.debit("K-1"), self.debit("K-2")
        self.put_row(row_of(held))
        asked = refund(key="K-1", agent_id=self.agent_id, phone=self.phone)
        self.told = {
            "held": left(held, message_id=self.named("held")),
            "unknown": left(unknown, BUG, self.named("unknown")),
            "refund": given_up(asked, self.named("refund")),
            "poison": sqs_letter("TxDLQ.fifo", '{"phone": "' + "é" * 200_000, self.named("poison")),
        }
        self.waiting = {told["messageId"]: told for told in self.told.values()}

    def deliver(self, invoke: Invoke) -> bool:
        answer = invoke("triage", {"Records": list(self.waiting.values())})
        again = [each["itemIdentifier"] for each in answer["batchItemFailures"]]
        self.waiting = {message_id: self.waiting[message_id] for message_id in again}
        return not again

    def check(self) -> None:
        found = {name: self.kept(told) for name, told in self.told.items()}
        assert {name: (each.status, each.letter_class) for name, each in found.items()} == {
            "held": ("waiting", "TRANSIENT"),
            "unknown": ("parked", "POISON"),
            "refund": ("waiting", "NEVER_RAN"),
            "poison": ("parked", "POISON"),
        }
        for name, told in self.told.items():
            assert self.letters.record(found[name].letter_id) == verbatim(told)
            assert (found[name].revision, found[name].history) == (1, ())
        row = self.row("K-1")
        assert row is not None
        assert (row.status, row.held_by) == (Status.HELD, found["held"].letter_id)
        assert self.letters.budget(found["held"].subject_ref) == Budget()


class ActOnLetters(Mail):
    """An operator redrives a debit and a credit, and asks again until it is done."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        wanted = self.debit("K-1")
        self.put_row(row_of(wanted))
        self.credit = credit(f"C-{self.agent_id}", phone=self.phone)
        self.told = [
            left(wanted, BUG, self.named("debit")),
            left(self.credit, BUG, self.named("credit")),
        ]
        self.letter_ids = [self.keep(told) for told in self.told]

    def deliver(self, invoke: Invoke) -> bool:
        asked = {"letterIds": self.letter_ids, "who": "amina", "why": "mended"}
        answer = invoke("triage-desk", {"action": "redrive", **asked})
        outcomes = {each["outcome"] for each in answer["results"]}
        assert outcomes <= {"redriven", "already_redriven", "contended"}, answer
        return "contended" not in outcomes

    def check(self) -> None:
        for told in self.told:
            letter = self.kept(told)
            assert letter.status is LetterStatus.REDRIVEN
            assert letter.revision == 1 + len(letter.history)
            done = [(each.who, each.what) for each in letter.history]
            assert done in ([*sending, ("amina", "redriven")] for sending in ([], [SENDING]))
            assert self.letters.budget(letter.subject_ref) == Budget(by_hand=1)
        self.check_what_is_sent()

    def check_what_is_sent(self) -> None:
        row = self.row("K-1")
        assert row is not None
        assert (row.status, row.attempt, row.held_by) == (Status.QUEUED, 2, None)
        assert self.arrived("TxQueue") == [movement_message(self.credit, "d").body]


class ActOnOtherLetters(ActOnLetters):
    """A refund and a request from the bus."""

    def __init__(self, functions: Functions) -> None:
        Mail.__init__(self, functions)
        self.asked = refund(agent_id=self.agent_id, phone=self.phone)
        event = {"detail-type": "RefundRequested", "source": "desk", "id": self.agent_id}
        self.event = json.dumps(event | {"detail": {}})
        self.told = [
            left(self.asked, BUG, self.named("refund")),
            from_inbox(self.event, self.named("event")),
        ]
        self.letter_ids = [self.keep(told) for told in self.told]

    def check_what_is_sent(self) -> None:
        assert self.arrived("RefundQueue") == [refund_message(self.asked, "d").body]
        assert set(self.arrived("InboxQueue")) == {self.event}  # no queue that drops repetitions


class LookAtLetters(Mail):
    """The clock: a credit that has waited, a parked one that is settled, and one that is not."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        names = ("waits", "settled", "parked")
        wanted = [credit(f"{name}-{self.agent_id}", phone=self.phone) for name in names]
        self.told = {
            name: left(each, TRANSIENT if name == "waits" else BUG, self.named(name))
            for name, each in zip(names, wanted, strict=True)
        }
        for told in self.told.values():
            self.keep(told, due_ms=1)
        ledger = DynamoLedger(
            functions.aws.dynamodb,
            ledger_table=functions.tables.wallet_ledger,
            offline_tx_table=functions.tables.offline_tx,
            retention_days=0,
        )
        assert ledger.post(posting(None, wanted[1])) == Committed()

    def deliver(self, invoke: Invoke) -> bool:
        invoke("triage-desk", {"action": "due"})
        letters = [self.kept(told) for told in self.told.values()]
        return all(letter.due_at_ms != 1 for letter in letters)

    def check(self) -> None:
        found = {name: self.kept(told) for name, told in self.told.items()}
        assert {name: each.status for name, each in found.items()} == {
            "waits": LetterStatus.REDRIVEN,
            "settled": LetterStatus.CLOSED,
            "parked": LetterStatus.PARKED,
        }
        done = [each.what for each in found["waits"].history]
        assert (done.count("redriven"), done[-1]) == (1, "redriven")
        assert [each.what for each in found["settled"].history] == ["closed"]
        assert found["parked"].revision == 1
        parked = found["parked"]
        assert parked.due_at_ms is not None
        assert parked.due_at_ms > parked.arrived_at_ms + 3_500_000
        # Letters of other pieces of work may have waited long enough, too.
        sent = [json.loads(body).get("id") for body in self.arrived("TxQueue")]
        assert sent.count(f"waits-{self.agent_id}") == 1
        for queue in ("RefundQueue", "InboxQueue"):
            self.arrived(queue)


ALL: dict[str, Callable[[Functions], Work]] = {
    "ingest: one": Submit,
    "ingest: a batch": SubmitBatch,
    "ingest: status": AskStatus,
    "ingest: cancel": Cancel,
    "ingest: refund": AskForRefund,
    "ingest-bus": TakeBusRequests,
    "relay: rows": ForwardRows,
    "relay: entries": ForwardEntries,
    "sweep": Sweep,
    "reconcile": Settle,
    "reconcile: contended": SettleContended,
    "refund": GiveBack,
    "refund: contended": GiveBackContended,
    "triage": KeepLetters,
    "triage-desk: redrive": ActOnLetters,
    "triage-desk: redrive others": ActOnOtherLetters,
    "triage-desk: due": LookAtLetters,
}

TRIED_IN = {
    "reconcile: contended": "reconcile",
    "refund: contended": "refund",
    "triage-desk: redrive others": "triage-desk: redrive",
    "triage-desk: due": "triage-desk: redrive",
}
"""Where the calls that two pieces of work have in common are tried."""
