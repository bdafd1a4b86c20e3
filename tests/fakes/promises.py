"""What must hold of any books, whatever happened to them (docs/ledger.md)."""

from collections import Counter
from collections.abc import Iterable, Sequence

from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Posted, Rejected, Wallet


def assert_books_add_up(
    wallet: Wallet | None, entries: Sequence[Entry], rows: Iterable[OfflineTransaction]
) -> None:
    """P1 to P3, P6 and P7 on one wallet, its entries and the rows of its debits."""
    posted = sorted(
        ((entry.outcome, entry) for entry in entries if isinstance(entry.outcome, Posted)),
        key=lambda pair: pair[0].version,
    )
    balance_minor = 0
    for number, (outcome, entry) in enumerate(posted, start=1):
        sign = {"debit": -1, "credit": 1, "status": 0}[entry.kind]
        balance_minor += sign * entry.amount_minor
        assert outcome == Posted(number, balance_minor), f"P3, P7: {entry}"
        assert balance_minor >= 0, f"P2: {entry}"
    held = (wallet.version, wallet.balance_minor) if wallet else (0, 0)
    assert held == (len(posted), balance_minor), f"P3: {wallet}"

    ids = Counter((entry.kind, entry.actor, entry.reference) for _, entry in posted)
    assert not [each for each, count in ids.items() if count > 1], "P1"
    debits = {(e.actor, e.reference): e for e in entries if e.kind == "debit"}
    for row in rows:
        entry_of_row = debits.get((row.agent_id, row.idempotency_key))
        assert_row_says_what_the_ledger_says(row, entry_of_row)


def assert_row_says_what_the_ledger_says(row: OfflineTransaction, entry: Entry | None) -> None:
    """P1 and P6 of one row and the entry of its id."""
    if entry is not None and entry.fingerprint == row.fingerprint:
        assert entry.amount_minor == row.amount_minor, f"P1: {row}"
    match row.status:
        case Status.SYNCED:
            assert entry is not None, f"P6: {row}"
            assert isinstance(entry.outcome, Posted), f"P6: {row}"
            assert entry.fingerprint == row.fingerprint, f"P1: {row}"
        case Status.FAILED if row.reason == "KEY_REUSED":
            assert entry is not None, f"P6: {row}"
            assert entry.fingerprint != row.fingerprint, f"P6: {row}"
        case Status.FAILED:
            assert entry is not None, f"P6: {row}"
            assert isinstance(entry.outcome, Rejected), f"P6: {row}"
            assert entry.outcome.reason == row.reason, f"P6: {row}"
        case _:
            assert entry is None or entry.fingerprint != row.fingerprint, f"P6: {row}"
