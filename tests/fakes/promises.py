"""What must hold of any books, whatever happened to them (docs/ledger.md)."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wallet_ledger.aws import items
from wallet_ledger.domain.ids import AgentId, EntryId, IdempotencyKey
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status
from wallet_ledger.domain.wallets import Posted, Rejected, Wallet

type Original = tuple[AgentId, IdempotencyKey]
"""Agent and idempotency key: what a debit is named by, and each of its refunds."""

SIGN = {"debit": -1, "credit": 1, "status": 0, "refund": 1}

OPEN = frozenset({Status.QUEUED, Status.REFUND_REQUESTED})
"""Statuses of rows that the sweep looks after: they are in the index of open rows."""


def assert_books_add_up(
    wallet: Wallet | None,
    entries: Sequence[Entry],
    rows: Iterable[OfflineTransaction],
    totals: Mapping[EntryId, int],
) -> None:
    """P1 to P4, P6, P7 and P9 on one wallet, its entries and the rows of its debits.

    `totals`: the running totals of its refunds, minor units by the id of their item.
    """
    posted = sorted(
        ((entry.outcome, entry) for entry in entries if isinstance(entry.outcome, Posted)),
        key=lambda pair: pair[0].version,
    )
    balance_minor = 0
    for number, (outcome, entry) in enumerate(posted, start=1):
        balance_minor += SIGN[entry.kind] * entry.amount_minor
        assert outcome == Posted(number, balance_minor), f"P3, P7: {entry}"
        assert balance_minor >= 0, f"P2: {entry}"
    held = (wallet.version, wallet.balance_minor) if wallet else (0, 0)
    assert held == (len(posted), balance_minor), f"P3, P9: {wallet}"

    ids = Counter((e.kind, e.actor, e.reference, e.refund_id) for _, e in posted)
    assert not [each for each, count in ids.items() if count > 1], "P1, P4"
    debits = {
        (AgentId(e.actor), IdempotencyKey(e.reference)): e
        for e in entries
        if e.kind == "debit" and is_original(e)
    }
    refunded = refunds(entries)
    assert_refunds_are_covered(debits, refunded)
    kept = {items.refund_total_id(*original): minor for original, minor in refunded.items()}
    assert totals == kept, f"P4: the running totals {totals}, where entries say {kept}"
    assert_money_is_conserved(entries)
    for row in rows:
        identity = (row.agent_id, row.idempotency_key)
        assert_row_says_what_the_ledger_says(row, debits.get(identity), refunded.get(identity, 0))


def is_original(entry: Entry) -> bool:
    """Whether the entry is the one of its id, and not the refusal of the id's second use."""
    return entry.outcome != Rejected(Reason.KEY_REUSED)


def refund_totals(found: Iterable[Mapping[str, Any]]) -> dict[EntryId, int]:
    """The running totals among items of the ledger, minor units by the id of their item."""
    named = {EntryId(item["txId"]["S"]): item for item in found}
    return {
        name: items.read_refund_total(item)
        for name, item in named.items()
        if name.startswith("refunds#")
    }


def refunds(entries: Iterable[Entry]) -> dict[Original, int]:
    """What the entries give back of each debit, in minor units."""
    totals: Counter[Original] = Counter()
    for entry in entries:
        if entry.kind == "refund" and isinstance(entry.outcome, Posted):
            original = AgentId(entry.actor), IdempotencyKey(entry.reference)
            totals[original] += entry.amount_minor
    return dict(totals)


def assert_refunds_are_covered(
    debits: Mapping[Original, Entry], refunded: Mapping[Original, int]
) -> None:
    """P4: only of a posted debit, and never more than was taken."""
    for identity, total_minor in refunded.items():
        debit = debits.get(identity)
        assert debit is not None, f"P4: {identity}"
        assert isinstance(debit.outcome, Posted), f"P4: {debit}"
        assert 0 < total_minor <= debit.amount_minor, f"P4: {total_minor} of {debit}"


def assert_money_is_conserved(entries: Iterable[Entry]) -> None:
    """P9: whatever moved in the wallet moved on the account that the entry names, and no other."""
    accounts: Counter[str] = Counter()
    for entry in entries:
        if entry.kind == "status":
            continue
        owner = "funding" if entry.kind == "credit" else "agent"
        assert entry.contra == f"{owner}:{entry.actor}", f"P9: {entry}"
        if isinstance(entry.outcome, Posted):
            accounts[entry.contra] -= SIGN[entry.kind] * entry.amount_minor
    for name, balance_minor in accounts.items():
        assert (balance_minor >= 0) == name.startswith("agent:") or not balance_minor, f"P9: {name}"


def assert_row_says_what_the_ledger_says(
    row: OfflineTransaction, entry: Entry | None, refunded_minor: int = 0
) -> None:
    """P1, P6 and P8 of one row, the entry of its id, and what has been refunded of it."""
    assert (row.next_sweep_at_ms is not None) == (row.status in OPEN), f"P8: {row}"
    assert (row.held_by is not None) == (row.status is Status.HELD), f"P8: {row}"
    assert (row.refund_request is not None) == (row.status is Status.REFUND_REQUESTED), f"P8: {row}"
    assert (row.refunded_minor or 0) == refunded_minor, f"P6: {row}"
    if entry is not None and entry.fingerprint == row.fingerprint:
        assert entry.amount_minor == row.amount_minor, f"P1: {row}"
    match row.status:
        case Status.SYNCED:
            assert_debited(row, entry)
            assert refunded_minor == 0, f"P6: {row}"
        case Status.REFUND_REQUESTED:
            assert_debited(row, entry)
        case Status.PARTIALLY_REFUNDED:
            assert_debited(row, entry)
            assert 0 < refunded_minor < row.amount_minor, f"P6: {row}"
        case Status.REFUNDED:
            assert_debited(row, entry)
            assert refunded_minor == row.amount_minor, f"P6: {row}"
        case Status.FAILED if row.reason == "KEY_REUSED":
            assert entry is not None, f"P6: {row}"
            assert entry.fingerprint != row.fingerprint, f"P6: {row}"
        case Status.FAILED if row.reason == "DISCARDED":  # a person's refusal, in no ledger
            assert entry is None, f"P6: {row}"
        case Status.FAILED:
            assert entry is not None, f"P6: {row}"
            assert isinstance(entry.outcome, Rejected), f"P6: {row}"
            assert entry.outcome.reason == row.reason, f"P6: {row}"
        case _:
            assert entry is None or entry.fingerprint != row.fingerprint, f"P6: {row}"


def assert_debited(row: OfflineTransaction, entry: Entry | None) -> None:
    """The ledger has taken what the row says."""
    assert entry is not None, f"P6: {row}"
    assert isinstance(entry.outcome, Posted), f"P6: {row}"
    assert entry.fingerprint == row.fingerprint, f"P1: {row}"
