"""What is stored at one moment of a schedule, in the model's words, and what must hold of it."""

from dataclasses import dataclass
from typing import Any, cast

from tests.fakes.memory import Store
from tests.fakes.samples import PHONE
from tests.simulation.ports.handlers import NAMES, SUBJECT_REF
from tests.simulation.ports.ledger_model import Answer
from wallet_ledger.derive import Destination, from_letter, from_row
from wallet_ledger.domain.letters import Budget, Letter, LetterStatus
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Posted, Rejected

STORED = ("rows", "wallets", "entries", "refunded", "letters", "records", "budgets")
"""All that the store holds; nothing here is ever purged."""


@dataclass(frozen=True, slots=True)
class State:
    """The store's contents, each handler's answers so far or its result, and who met a fault."""

    stored: tuple[frozenset[Any], ...]
    handlers: tuple[tuple[bool, Any], ...]
    faulty: int | None

    @property
    def row(self) -> OfflineTransaction:
        """The one row."""
        [(_, row)] = self.stored[STORED.index("rows")]
        return cast("OfflineTransaction", row)

    @property
    def entries(self) -> dict[object, Entry]:
        """What the ledger has decided."""
        return dict(self.stored[STORED.index("entries")])

    @property
    def letters(self) -> dict[str, Letter]:
        """What triage has kept."""
        return dict(self.stored[STORED.index("letters")])


def redriven_and_queued(store: Store) -> bool:
    """Whether the row waits for the message of its redrive."""
    [row] = store.rows.values()
    redrives = [each for each in store.letters.values() if each.status is LetterStatus.REDRIVEN]
    return row.status is Status.QUEUED and bool(redrives)


def check_told(was: State, now: State) -> None:
    """A row waits until its own request is answered, and no longer."""
    asked = was.row.refund_request
    if asked is not None and now.row.refund_request is None:
        answered = [e for e in now.entries.values() if e.refund_id == asked.refund_id]
        assert answered, "P5: the row forgets what it waits for"


def check_letters(store: Store) -> None:
    """P5 and P8 of a held row, and what triage promises of letters, at this moment."""
    [row] = store.rows.values()
    open_letters = [each for each in store.letters.values() if each.status.is_open]
    assert len(open_letters) <= 1, "two open letters of one debit"
    assert [x for x in store.letters.values() if x.due_at_ms is not None] == open_letters
    if row.status is Status.HELD:
        [letter] = open_letters
        assert row.held_by == letter.letter_id, "P8: held by another letter"
        sending = (letter.agent_id, letter.idempotency_key, letter.attempt)
        assert sending == (row.agent_id, row.idempotency_key, row.attempt), "P8"
    assert store.records.keys() == store.letters.keys(), "a letter without its record"
    assert set(store.budgets) <= {SUBJECT_REF}, "one debit has one budget"
    spent = store.budgets.get(SUBJECT_REF, Budget())
    assert spent.automatic <= 3, "the clock redrives three times"
    assert spent.by_hand <= 5, "people redrive five times"


def check_moved(was: State, now: State) -> None:
    """A letter and its row move together, once; and the relay derives each message once."""
    before, after = was.row, now.row
    sent = [each for each in from_row(before, after) if each.destination is Destination.TX_QUEUE]
    assert len(sent) == (after.status is Status.QUEUED and after.attempt > before.attempt)
    assert after.attempt in {before.attempt, before.attempt + 1}
    ends = {
        letter_id: letter.status
        for letter_id, letter in now.letters.items()
        if letter != was.letters.get(letter_id)
    }
    for letter_id in ends.keys() & was.letters.keys():
        earlier, later = was.letters[letter_id], now.letters[letter_id]
        assert earlier.status.is_open or later.status is earlier.status, "a letter ends once"
        assert later.history[: len(earlier.history)] == earlier.history, "history is kept"
        told = from_letter(earlier, later)
        assert bool(told) == (earlier.status is not later.status)
        assert not told or later.revision == earlier.revision + 1, "one event for two changes"
    if before.status is not Status.HELD and after.status is Status.HELD:
        assert after.held_by in ends.keys() - was.letters.keys(), "held without a letter"
    if before.status is Status.HELD and before.held_by is not None:
        end = ends.get(before.held_by)
        expected = {Status.QUEUED: LetterStatus.REDRIVEN, Status.FAILED: LetterStatus.DISCARDED}
        if after.status in expected:
            assert end is expected[after.status], "a row leaves its letter alone"
        else:
            assert after.status in {Status.HELD, Status.CANCELLED}
            assert end not in expected.values(), "a letter leaves its row alone"


def facts(store: Store) -> object:
    """The store, in the model's words."""
    [row] = store.rows.values()
    wallet = store.wallets[PHONE]
    asked = row.refund_request
    pending = (asked.refund_id, asked.amount_minor) if asked else None
    told_by_row = (
        str(row.status),
        row.attempt if row.status in {Status.QUEUED, Status.HELD} else None,
        NAMES[row.held_by] if row.held_by else None,
        row.refunded_minor or 0,
        pending,
        row.cancelled_by,
    )
    entries = tuple(sorted(map(fact, store.entries.values())))
    letters = sorted((NAMES[each.letter_id], str(each.status)) for each in store.letters.values())
    spent = store.budgets.get(SUBJECT_REF, Budget())
    dead = (tuple(letters), spent.automatic, spent.by_hand)
    return (wallet.balance_minor, wallet.version, told_by_row, entries, dead)


def fact(entry: Entry) -> tuple[str, Answer]:
    """One entry, in the model's words."""
    name = {"debit": "debit", "refund": f"refund {entry.refund_id}"}.get(
        entry.kind, f"{entry.kind} {entry.reference}"
    )
    match entry.outcome:
        case Posted(version, balance_after_minor):
            return name, ("posted", version, balance_after_minor, entry.amount_minor)
        case Rejected(reason):
            name += " reused" if reason == "KEY_REUSED" else ""
            return name, ("rejected", str(reason), entry.amount_minor, entry.remaining_minor)
