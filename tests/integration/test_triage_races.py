"""Desks let go at once with settlement and refunds, on each engine: a letter moves once.

Two desks cannot know of each other, and neither knows who else is at the debit: the conditions on
the letter's revision and on its row decide. So all look first, and are let go when each has its
first write in hand. The audit runs beside them and sees nothing amiss.
"""

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event
from typing import Any

import pytest

from reconcile.settle import Dropped, settle
from refund.give_back import give_back
from tests.engine import Aws
from tests.fakes.dead_letters import BUG, given_up, left, verbatim
from tests.fakes.memory import START_MS, FakeQueue
from tests.fakes.promises import assert_books_add_up, refund_totals
from tests.fakes.samples import credit, debit, refund, row_of
from tests.fakes.scripted import first, scripted
from triage.act import SENDING, By, Desk, Outcome, discard, look_again, redrive
from triage.keep import Kept, keep
from triage.reading import read
from wakala.audit import audit
from wakala.stack import Stack
from wallet_ledger.aws import items
from wallet_ledger.aws.ledger import DynamoLedger
from wallet_ledger.aws.letters import DynamoDeadLetters, DynamoSubjects
from wallet_ledger.aws.refunds import DynamoRefundBooks
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.letters import Budget, Letter, LetterStatus, Source
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import Movement, Posted
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.patience import Patience

TRIES_MAX = 20

rounds = pytest.mark.parametrize("number", range(5))

LETTER = given_up(debit())
"""What TxQueue gave up of the debit that everything here is about."""
LETTER_ID = read(LETTER).letter_id


class Place:
    """A wallet of 500 and a queued debit of 100, on tables of its own, and all who write there."""

    def __init__(self, aws: Aws) -> None:
        self._client = aws.dynamodb
        tables = aws.tables()
        both = {"ledger_table": tables.wallet_ledger, "offline_tx_table": tables.offline_tx}
        letters_table = aws.dead_letters()
        self._clock = SystemClock()
        self._ledger = DynamoLedger(self._client, **both, retention_days=0)
        self._refunds = DynamoRefundBooks(self._client, **both, retention_days=0)
        self._table = DynamoAcceptedTransactions(self._client, table=tables.offline_tx)
        self.letters = DynamoDeadLetters(
            self._client,
            table=letters_table,
            offline_tx_table=tables.offline_tx,
            retention_days=0,
        )
        self._subjects = DynamoSubjects(self._client, **both)
        self.queue = FakeQueue(self._clock)
        self.desk = self._desk()
        outputs = {
            "OfflineTxTable": tables.offline_tx,
            "WalletLedgerTable": tables.wallet_ledger,
            "DeadLettersTable": letters_table,
        }
        session = _OneClient(self._client)
        self.stack = Stack("s", "us-east-1", None, session, outputs, {"RetentionDays": "0"})
        self.settle(credit("C-0", 500))
        assert self._table.put_if_new(row_of(debit())) is None

    def until_first_write(self, barrier: Barrier) -> "Place":
        """The same, for one who waits for all others before writing."""
        waits = [first(barrier.wait)]
        one = copy.copy(self)
        one._ledger = scripted(self._ledger, "post", waits)
        one._refunds = scripted(self._refunds, "write", waits)
        one.letters = scripted(scripted(self.letters, "move", waits), "file", waits)
        one.desk = one._desk()
        return one

    def keep(self, told: Any = LETTER) -> Kept:
        """Keep a letter as the function does."""
        return keep(
            read(told),
            verbatim(told),
            letters=self.letters,
            subjects=self._subjects,
            clock=self._clock,
            patience=self._patience(),
        )

    def redrive(self, letter_id: str = LETTER_ID) -> Outcome:
        """A person at a desk, who asks again where somebody is in the way."""
        return self._by_hand(partial(redrive, letter_id))

    def discard(self, letter_id: str = LETTER_ID) -> Outcome:
        """Another one, who gives up."""
        return self._by_hand(partial(discard, letter_id))

    def look(self, letter: Letter) -> Outcome:
        """The clock, with the letter as its list had it."""
        return look_again(letter, self.desk).outcome

    def settle(self, *movements: Movement) -> list[object]:
        """Settle, delivered again until nothing is left, as the queue does."""
        for _ in range(TRIES_MAX):
            results = settle(movements, self._ledger, self._clock, self._patience())
            assert not [each for each in results if isinstance(each, Violation)]
            if not any(isinstance(each, Unfinished) for each in results):
                return [*results]
        pytest.fail(f"unfinished after {TRIES_MAX} deliveries")

    def give_back(self, asked: Refund) -> object:
        """Refund, delivered again until it is decided."""
        for _ in range(TRIES_MAX):
            result = give_back(asked, self._refunds, self._clock, self._patience(), patient=True)
            assert not isinstance(result, Violation)
            if not isinstance(result, Unfinished):
                return result
        pytest.fail(f"unfinished after {TRIES_MAX} deliveries")

    def relay(self) -> None:
        """The message of a row that was redriven, and is queued still."""
        if self.row().status is Status.QUEUED:
            self.settle(debit(attempt=self.row().attempt))

    def row(self) -> OfflineTransaction:
        """The debit's row."""
        row = self._table.find(debit().agent_id, debit().idempotency_key)
        assert row is not None
        return row

    def letter(self, letter_id: str = LETTER_ID) -> Letter:
        """A letter as of now."""
        letter = self.letters.find(letter_id)
        assert letter is not None
        return letter

    def budget(self) -> Budget:
        """How often the debit was redriven."""
        return self.letters.budget(read(LETTER).subject_ref)

    def read(self) -> tuple[int, list[Entry]]:
        """The balance and the entries, which must add up with the row; the audit agrees."""
        table = self.stack.output("WalletLedgerTable")
        found = self._client.scan(TableName=table, ConsistentRead=True)["Items"]
        named = {item["txId"]["S"]: item for item in found}
        wallet = items.read_wallet(named[items.BALANCE])
        entries = [items.read_entry(item) for name, item in named.items() if items.entry_kind(name)]
        assert_books_add_up(wallet, entries, [self.row()], refund_totals(found))
        self.check()
        return wallet.balance_minor, entries

    def check(self) -> int:
        """Nothing is amiss, whatever goes on; how many rows triage holds."""
        report = audit(self.stack, START_MS // 1000, lambda _: None)
        assert report.violations == []
        return report.held

    def _desk(self) -> Desk:
        return Desk(self.letters, self._subjects, {Source.TX_QUEUE: self.queue}, self._clock)

    def _by_hand(self, act: Callable[[By, Desk], Any]) -> Outcome:
        for _ in range(TRIES_MAX):
            result = act(By("amina", "mended"), self.desk)
            if result.outcome is not Outcome.CONTENDED:
                return Outcome(result.outcome)
        pytest.fail(f"in the way {TRIES_MAX} times")

    def _patience(self) -> Patience:
        return Patience(self._clock, random.random, 2_000)


class _OneClient:
    """A session of boto3 that has the tests' client."""

    def __init__(self, client: object) -> None:
        self._client = client

    def client(self, *_: object, **__: object) -> object:
        return self._client


def at_once(place: Place, *calls: Callable[[Place], object]) -> list[object]:
    """The answers of calls whose first writes all begin at the same moment, beside the audit."""
    barrier = Barrier(len(calls), timeout=30)
    over = Event()

    def watch() -> None:
        while not over.is_set():
            place.check()

    with ThreadPoolExecutor(len(calls) + 1) as pool:
        watching = pool.submit(watch)
        try:
            each_place = [place.until_first_write(barrier) for _ in calls]
            answers = list(pool.map(lambda call, one: call(one), calls, each_place))
        finally:
            over.set()
        watching.result()
    return answers


@pytest.fixture
def place(each_engine: Aws) -> Place:
    """Its debit is held by its letter."""
    made = Place(each_engine)
    assert made.keep().letter.status is LetterStatus.WAITING
    assert made.row().status is Status.HELD
    assert made.check() == 1
    return made


@rounds
def test_two_desks_beside_settlement_and_cancellation_redrive_once_and_the_row_ends_once(
    place: Place, number: int
) -> None:
    """P1, P5, P8, C48: an old message, a refund of all, and a letter that two people redrive."""
    answers = at_once(
        place,
        Place.redrive,
        Place.redrive,
        lambda one: one.settle(debit()),
        lambda one: one.give_back(refund()),
    )
    place.relay()

    balance_minor, entries = place.read()
    row, letter = place.row(), place.letter()
    assert balance_minor == 500
    moved = Counter(each.kind for each in entries)
    if row.status is Status.CANCELLED:
        assert moved == {"credit": 1}
    else:
        assert row.status is Status.REFUNDED
        assert moved == {"credit": 1, "debit": 1, "refund": 1}
        assert letter.status is LetterStatus.REDRIVEN
    once = [Outcome.REDRIVEN, Outcome.ALREADY_REDRIVEN]
    over = [Outcome.CLOSED, Outcome.ALREADY_TERMINAL]
    assert sorted(map(str, answers[:2])) in (sorted(once), sorted(over))
    redriven = Outcome.REDRIVEN in answers
    assert letter.status is (LetterStatus.REDRIVEN if redriven else LetterStatus.CLOSED)
    assert (place.budget(), row.attempt) == (Budget(by_hand=redriven), 1 + redriven)
    assert [each.what for each in letter.history].count("redriven") == redriven


@rounds
def test_of_a_redrive_a_discard_and_the_clock_at_once_exactly_one_counts(
    place: Place, number: int
) -> None:
    letter = place.letter()

    answers = at_once(place, Place.redrive, Place.discard, lambda one: one.look(letter))

    acted = [each for each in answers if each in (Outcome.REDRIVEN, Outcome.DISCARDED)]
    assert len(acted) == 1
    spent = place.budget().automatic + place.budget().by_hand
    row = place.row()
    if acted == [Outcome.DISCARDED]:
        assert (row.status, row.reason, spent) == (Status.FAILED, Reason.DISCARDED, 0)
        assert isinstance(place.settle(debit())[0], Dropped)
    else:
        assert (row.status, row.attempt, spent) == (Status.QUEUED, 2, 1)
        place.relay()
    balance_minor, entries = place.read()
    debits = [each for each in entries if each.kind == "debit" and is_posted(each)]
    assert (balance_minor, len(debits)) == ((500, 0) if spent == 0 else (400, 1))


@rounds
def test_a_credit_that_two_redrive_while_another_gives_it_up_goes_once_or_is_given_up(
    each_engine: Aws, number: int
) -> None:
    """C48: no row stands for it, so what is written before the send decides."""
    place = Place(each_engine)
    letter_id = place.keep(left(credit("C-1"))).letter.letter_id

    answers = at_once(
        place,
        lambda one: one.redrive(letter_id),
        lambda one: one.redrive(letter_id),
        lambda one: one.discard(letter_id),
    )

    letter = place.letter(letter_id)
    done = [each.what for each in letter.history if "refused" not in each.what]
    if letter.status is LetterStatus.DISCARDED:
        assert answers == [Outcome.ALREADY_TERMINAL] * 2 + [Outcome.DISCARDED]
        assert (place.queue.messages, done) == ([], ["discarded"])
    else:
        assert sorted(map(str, answers[:2])) == [Outcome.ALREADY_REDRIVEN, Outcome.REDRIVEN]
        assert answers[2] in {Outcome.ON_ITS_WAY, Outcome.ALREADY_REDRIVEN}
        assert (len(place.queue.messages), done) == (1, [SENDING, "redriven"])
    spent = place.letters.budget(letter.subject_ref)
    assert spent == Budget(by_hand=letter.status is LetterStatus.REDRIVEN)


def is_posted(entry: Entry) -> bool:
    """Whether it moved the balance."""
    return isinstance(entry.outcome, Posted)


@rounds
def test_letters_of_one_debit_kept_at_once_beside_its_settlement_hold_it_once_or_not_at_all(
    each_engine: Aws, number: int
) -> None:
    """Two letters of one sending, each delivered twice."""
    place = Place(each_engine)
    other = left(debit(), BUG, "M-2")
    calls = [partial(Place.keep, told=told) for told in (LETTER, other) * 2]

    kept = at_once(place, *calls, lambda one: one.settle(debit()))[:-1]

    assert [each.new for each in kept if isinstance(each, Kept)].count(True) == 2
    letters = [place.letters.find(read(told).letter_id) for told in (LETTER, other)]
    open_letters = [each for each in letters if each is not None and each.status.is_open]
    row = place.row()
    if row.status is Status.HELD:
        assert [each.letter_id for each in open_letters] == [row.held_by]
        assert place.check() == 1
    else:
        assert (row.status, open_letters) == (Status.SYNCED, [])
    assert json.loads(place.letters.record(LETTER_ID) or "")["messageId"] == LETTER["messageId"]
    assert place.read()[0] == (500 if row.status is Status.HELD else 400)
