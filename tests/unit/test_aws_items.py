"""Items: what is written of a value is what is read of it, and of what it has not, nothing."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.dead_letters import left, record
from tests.fakes.memory import START_MS
from tests.fakes.samples import AGENT, KES, PHONE, debit, row_of, waiting
from triage.reading import read
from wallet_ledger.aws import items
from wallet_ledger.domain.letters import Action, Budget, Letter, Standing, diagnose, opened
from wallet_ledger.domain.postings import NewEntry
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Posted

CAPTURED = "2026-10-09T08:53:20Z"
ROW = row_of(debit())
BARE = replace(ROW, queued_at_ms=None, next_sweep_at_ms=None)


def _letter(told: dict[str, Any]) -> Letter:
    arrival = read(told)
    diagnosis = diagnose(arrival.failure, Standing.OPEN, Budget())
    return opened(arrival, diagnosis, Budget(), preview="p", now_ms=START_MS)


@pytest.mark.parametrize(
    "row",
    [
        BARE,
        replace(BARE, queued_at_ms=7),
        replace(BARE, next_sweep_at_ms=8),
        replace(BARE, captured_at=CAPTURED),
        replace(BARE, status=Status.FAILED, reason="INSUFFICIENT_FUNDS"),
        replace(BARE, status=Status.SYNCED, refunded_minor=40),
        replace(BARE, status=Status.CANCELLED, cancelled_by="R-1"),
        replace(BARE, status=Status.HELD, held_by="L-1"),
        waiting(BARE),
        waiting(BARE, amount_minor=40),
    ],
)
def test_a_row_is_read_as_it_was_written(row: OfflineTransaction) -> None:
    assert items.read_offline_tx(items.offline_tx_item(row)) == row


def test_a_letter_is_read_as_it_was_written() -> None:
    of_a_debit, of_nobody = _letter(left(debit(attempt=3))), _letter(record("DeliveryFailures", ""))

    for each in (of_a_debit, of_nobody, replace(of_a_debit, due_at_ms=None)):
        assert items.read_letter(items.letter_item(each)) == each
    assert (of_a_debit.agent_id, of_nobody.agent_id) == (AGENT, None)


def test_an_open_row_is_open_since_it_was_made_or_since_its_agent_wants_it_back() -> None:
    later = replace(ROW, updated_at_ms=START_MS + 5)
    wanted_back = replace(waiting(ROW), updated_at_ms=START_MS + 5)

    queued = items.read_open_row(items.offline_tx_item(later))
    waits = items.read_open_row(items.offline_tx_item(wanted_back))
    assert (queued.open_since_ms, waits.open_since_ms) == (START_MS, START_MS + 5)


@pytest.mark.parametrize("captured_at", [CAPTURED, None])
def test_an_entry_says_when_its_debit_was_captured_where_the_agent_said_so(
    captured_at: str | None,
) -> None:
    new = NewEntry(debit(captured_at=captured_at), Posted(2, 900))
    item = items.entry_item(new, START_MS)

    assert item.get("capturedAt") == (None if captured_at is None else {"S": captured_at})


def test_a_balance_row_is_no_entry() -> None:
    item = items.ledger_key(PHONE, items.BALANCE) | {"currency": {"S": KES}}

    with pytest.raises(ValueError, match="not an entry"):
        items.read_entry(item)


def test_a_letters_history_is_touched_only_by_what_happened_since() -> None:
    letter = _letter(left(debit()))
    later = replace(letter, revision=2, due_at_ms=START_MS + 9)
    acted = replace(later, history=(*letter.history, Action(START_MS, "op", "redriven", "")))

    quiet = items.letter_move(letter, later, None)
    told = items.letter_move(letter, acted, None)
    assert "history" not in quiet["ExpressionAttributeNames"].values()
    assert "list_append" not in quiet["UpdateExpression"]
    assert "list_append" in told["UpdateExpression"]
