"""A day of the functions on tables in memory, and what the streams of those tables told of it."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from ingest.refund import Wanted, request_refund
from reconcile.settle import settle
from refund.give_back import give_back
from relay.stream import Tables, handle_batch
from relay.sweep import Limits, sweep
from tests.fakes import samples
from tests.fakes.memory import (
    FakeAcceptedTransactions,
    FakeClock,
    FakeEventBus,
    FakeLedger,
    FakeOpenTransactions,
    FakeQueue,
    FakeRefundBooks,
    FakeRefundDesk,
    Store,
)
from tests.fakes.samples import AGENT
from triage import act
from triage.keep import keep
from triage.reading import read
from wallet_ledger.aws import items
from wallet_ledger.derive import Destination
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.letters import Budget, Letter, Source
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import Refund, Seen
from wallet_ledger.domain.transactions import OfflineTransaction, Status, accept
from wallet_ledger.domain.wallets import Debit, Movement, StatusChange, WalletStatus
from wallet_ledger.domain.work import Unfinished
from wallet_ledger.messages import movement_message, put_aside
from wallet_ledger.patience import Patience
from wallet_ledger.ports import RowMove

type Item = dict[str, Any]

NAMES = Tables("OfflineTx", "WalletLedger", "DeadLetters")
OTHER = "AG-002"
"""Another agent than the samples'."""


@dataclass(frozen=True)
class Event:
    """An event on the bus."""

    detail_type: str
    detail: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Type and id."""
        return f"{self.detail_type} {self.detail['eventId']}"


class Letters:
    """As much of `ports.DeadLetters` and `ports.Subjects` as filing and acting takes."""

    def __init__(self, store: Store) -> None:
        self.kept: dict[str, Letter] = {}
        self.budgets: Counter[str] = Counter()
        self._records: dict[str, str] = {}
        self._store = store

    def file(self, letter: Letter, record: str, row: RowMove | None) -> bool:
        self._records[letter.letter_id] = record
        return self.move(letter, letter, row)

    def move(
        self, before: Letter, after: Letter, row: RowMove | None = None, spent: Budget | None = None
    ) -> bool:
        self.kept[before.letter_id] = after
        if row is not None:
            self._store.move(row.before, row.after)
        return True

    def look_later(self, letter: Letter) -> bool:
        return self.move(letter, letter)

    def find(self, letter_id: str) -> Letter | None:
        return self.kept.get(letter_id)

    def record(self, letter_id: str) -> str | None:
        return self._records.get(letter_id)

    def budget(self, subject_ref: str) -> Budget:
        return Budget(automatic=self.budgets[subject_ref])

    def row(self, debit: Debit) -> OfflineTransaction | None:
        return self._store.rows.get((debit.agent_id, debit.idempotency_key))

    def decided(self, movement: Movement) -> bool:
        return (movement.phone, items.entry_id(movement)) in self._store.entries

    def see(self, asked: Refund) -> Seen:
        return FakeRefundBooks(self._store).see(asked)


class Day:
    """The functions on tables in memory, a minute between their writes, and the tables' streams."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Store()
        self.letters = cast("Any", Letters(self.store))
        self.records: list[Item] = []
        queues = {source: FakeQueue(self.clock) for source in Source}
        self.desk = act.Desk(self.letters, self.letters, queues, self.clock)
        self._last = self.tables()

    def accept(self, key: str, amount: int = 100, *, agent: str = AGENT, days: int = 7) -> Debit:
        """An agent's request is stored."""
        asked = samples.request(key, amount, agent_id=agent)
        row = accept(asked, self.clock.now_ms(), days)
        FakeAcceptedTransactions(self.store).put_if_new(row)
        self._note()
        return self.message(key, agent)

    def message(self, key: str, agent: str = AGENT) -> Debit:
        """What the relay has sent of a row last."""
        row = self.row(key, agent)
        debit = samples.debit(key, row.amount_minor, agent_id=agent, attempt=row.attempt)
        return replace(debit, created_at_ms=row.created_at_ms)

    def row(self, key: str, agent: str = AGENT) -> OfflineTransaction:
        return next(row for (a, k), row in self.store.rows.items() if (a, k) == (agent, key))

    def settle(self, *movements: Movement) -> None:
        """Reconcile takes messages of one group."""
        settle(movements, FakeLedger(self.store, retention_days=0), self.clock, self._patience())
        self._note()

    def synced(self, key: str, **others: Any) -> None:
        """Accepted and decided at once."""
        self.settle(self.accept(key, **others))

    def refund(self, key: str, refund_id: str, amount: int | None, agent: str = AGENT) -> None:
        """Refund takes a message."""
        asked = samples.refund(refund_id, amount, key=key, agent_id=agent)
        books = FakeRefundBooks(self.store)
        give_back(asked, books, self.clock, self._patience(), patient=False)
        self._note()

    def ask(self, key: str, refund_id: str, amount: int | None) -> None:
        """An agent's app wants it back."""
        wanted = Wanted(AGENT, IdempotencyKey(key), refund_id, amount, "wrong phone")
        table, desk = FakeAcceptedTransactions(self.store), FakeRefundDesk(self.store)
        request_refund(wanted, table, desk, self.clock, self._patience())
        self._note()

    def sweep(self) -> None:
        """A run of the sweep."""
        limits = Limits(backlog_max=10, rows_max=10, deadline_ms=10**15)
        sweep(FakeOpenTransactions(self.store), FakeQueue(self.clock), self.clock, limits)
        self._note()

    def letter(self, key: str, agent: str = AGENT) -> str:
        """Reconcile could not finish the transaction's message; triage files the letter."""
        body = movement_message(self.message(key, agent), "d").body
        taken = {"messageId": key, "body": body, "attributes": {}, "eventSourceARN": "arn:TxQueue"}
        envelope = put_aside("TxQueue", Unfinished(("Throttling",)), taken)
        arn = "arn:aws:sqs:us-east-1:000000000000:wakala-DeliveryFailures"
        record = {"messageId": key, "body": envelope.body, "eventSourceARN": arn}
        kept = keep(
            read(record),
            json.dumps(record),
            letters=self.letters,
            subjects=self.letters,
            clock=self.clock,
            patience=self._patience(),
        )
        self._note()
        return kept.letter.letter_id

    def look_again(self, letter_id: str) -> None:
        """A letter's time has come."""
        act.look_again(self.letters.kept[letter_id], self.desk)
        self._note()

    def by_hand(self, letter_id: str, *verbs: str) -> None:
        """A person acts on a letter."""
        by = act.By("Wanjiru", "she said so", force=True)
        for verb in verbs:
            letter = self.letters.kept[letter_id]
            done = {"discard": act.discard, "redrive": act.redrive}.get(verb)
            if done is None:
                act.reveal(letter, by, self.desk)
            else:
                done(letter_id, by, self.desk)
            self._note()

    def tables(self) -> dict[str, dict[str, Item]]:
        """What each table holds, by key."""
        totals = [
            items.ledger_key(*key) | {"refundedMinor": {"N": str(minor)}}
            for key, minor in self.store.refunded.items()
        ]
        balances = [items.ledger_key(phone, items.BALANCE) for phone in self.store.wallets]
        held = {
            NAMES.offline_tx: [items.offline_tx_item(row) for row in self.store.rows.values()],
            NAMES.wallet_ledger: [
                *totals,
                *map(_entry_item, self.store.entries.values()),
                *balances,
            ],
            NAMES.dead_letters: [
                *map(items.letter_item, self.letters.kept.values()),
                {"id": {"S": "record#L#0"}, "part": {"B": b"{}"}},
            ],
        }
        keys = ("agentId", "idempotencyKey", "phone", "txId", "id")
        return {
            name: {
                json.dumps([item.get(key) for key in keys if key in _KEYS[name]]): item
                for item in each
            }
            for name, each in held.items()
        }

    def relayed(self) -> list[Event]:
        """What the relay put on the bus that day."""
        bus, queue = FakeEventBus(), FakeQueue(FakeClock())
        queues: Any = dict.fromkeys((Destination.TX_QUEUE, Destination.FAILED_TX_QUEUE), queue)
        failures = FakeQueue(self.clock)
        answer = handle_batch(
            self.records, tables=NAMES, queues=queues, bus=bus, delivery_failures=failures
        )
        assert (answer["batchItemFailures"], failures.messages) == ([], [])
        return [Event(each.detail_type, json.loads(each.detail)) for each in bus.events]

    def _patience(self) -> Patience:
        return Patience(self.clock, lambda: 0.0, 1_000)

    def _note(self) -> None:
        """What has changed goes to the streams, as the template's filter lets it through."""
        now, before = self.tables(), self._last
        for name, held in now.items():
            for key, item in held.items():
                old = before[name].get(key)
                if old == item or (name == NAMES.wallet_ledger and not _is_told(item)):
                    continue
                change = {"NewImage": item} | ({"OldImage": old} if old else {})
                arn = f"arn:aws:dynamodb:us-east-1:000000000000:table/{name}/stream/x"
                number = str(len(self.records))
                self.records.append(
                    {"eventSourceARN": arn, "dynamodb": change | {"SequenceNumber": number}}
                )
        self._last = now
        self.clock.pause(60)


_KEYS = {
    NAMES.offline_tx: ("agentId", "idempotencyKey"),
    NAMES.wallet_ledger: ("phone", "txId"),
    NAMES.dead_letters: ("id",),
}


def _is_told(item: Item) -> bool:
    return items.entry_kind(item["txId"]["S"]) not in (None, "debit")


def _entry_item(entry: Entry) -> Item:
    """The item that an entry was read from, but for what is for people alone."""
    actor, reference = items._BUSINESS_ID[entry.kind]
    texts = {
        actor: entry.actor,
        reference: entry.reference,
        "fingerprint": entry.fingerprint,
        "currency": entry.currency,
        "contra": entry.contra,
        "status": entry.wallet_status,
        "refundId": entry.refund_id,
    }
    numbers = {
        "createdAt": entry.created_at_ms,
        "amountMinor": entry.amount_minor or None,
        "remainingMinor": entry.remaining_minor,
    }
    item = items.ledger_key(entry.phone, entry.entry_id)
    item |= {name: {"S": str(text)} for name, text in texts.items() if text is not None}
    item |= {name: {"N": str(number)} for name, number in numbers.items() if number is not None}
    item |= items._outcome_attributes(entry.outcome)
    assert items.read_entry(item) == entry
    return item


def a_day() -> Day:
    """Every arrow of a row's life, every kind of entry, and letters in each of their states."""
    day = Day()
    day.settle(samples.credit("C-1", 10_000))
    day.settle(samples.credit("C-2", 5), samples.credit("C-3", 6))  # at one moment
    day.settle(samples.credit("C-1", 7))  # another use of its id
    day.settle(samples.credit("C-4", 7, currency="USD"))
    day.synced("plain")
    day.synced("others", agent=OTHER)
    day.synced("refused", amount=10**9)
    day.settle(_status("S-1", WalletStatus.FROZEN))
    day.synced("frozen")
    day.settle(_status("S-2", WalletStatus.ACTIVE), _status("S-2", WalletStatus.FROZEN))

    for key in ("in-parts", "by-agent", "waits", "told-no", "cancelled", "too-late"):
        day.accept(key)
    day.ask("cancelled", "full", None)
    day.refund("too-late", "full", None)  # by the back office, and before it is settled
    for key in ("in-parts", "by-agent", "waits", "told-no"):
        day.settle(day.message(key))
    day.refund("in-parts", "R-1", 30)
    day.refund("in-parts", "R-2", 80)  # more than remains
    day.refund("in-parts", "R-3", None)
    day.ask("by-agent", "R-1", 40)
    day.refund("by-agent", "R-1", 40)
    day.ask("told-no", "R-1", 30)
    day.refund("told-no", "R-1", 101)  # the back office uses the id first
    day.refund("told-no", "R-1", 30)
    assert (day.row("told-no").status, day.row("told-no").refunded_minor) == (Status.SYNCED, None)
    day.refund("nobodys", "R-1", 30)
    day.ask("waits", "R-1", 20)

    day.accept("expires", days=0)
    day.accept("swept")
    day.clock.pause(150)
    day.sweep()
    day.settle(day.message("swept"))
    assert (day.row("swept").attempt, day.row("waits").attempt) == (2, 3)

    for key in ("redriven", "discarded", "stays-held", "late", "others-held"):
        day.accept(key, agent=OTHER if key == "others-held" else AGENT)
    letters = {key: day.letter(key) for key in ("redriven", "discarded", "stays-held", "late")}
    day.letter("others-held", OTHER)
    day.look_again(letters["redriven"])
    day.settle(day.message("redriven"))
    day.by_hand(letters["redriven"], "discard", "reveal")  # too late, and curious
    day.letters.budgets[day.letters.kept[letters["discarded"]].subject_ref] = 3
    day.look_again(letters["discarded"])
    day.by_hand(letters["discarded"], "reveal", "discard", "discard")
    day.refund("late", "full", None)
    day.look_again(letters["late"])
    day.accept("queued")
    assert {letter.status.value for letter in day.letters.kept.values()} == set(
        "redriven discarded waiting closed".split()
    )
    return day


def _status(request_id: str, status: WalletStatus) -> StatusChange:
    return samples.status_change(request_id, status)
