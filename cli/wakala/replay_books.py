"""What the books say of a replay: whose money moved, when, and whether it moved more than once."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import dropwhile, pairwise

from wakala import wallets
from wakala.measures import Latency
from wakala.replay_run import ENDS, SOURCE, Outcome, TransactionId
from wakala.stack import Stack
from wakala.traffic import Traffic
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import Phone
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Posted

BINS_A_DECADE = 20
"""Bars of the histogram between one power of ten and the next."""

DEBITED = frozenset({Status.SYNCED, Status.PARTIALLY_REFUNDED, Status.REFUNDED})
"""At their end, the statuses of what has taken money out of a wallet."""


@dataclass(frozen=True, slots=True)
class Books:
    """What was read of a replay's wallets.

    `duplicates`: posted debits of a transaction beyond its first, and the fewest that come to what
    a wallet lacks. `settled_ms`: from acceptance to the entry, for each transaction that this run
    brought and that was posted. `wrong`: a line for each wallet whose balance is not what was put
    in, less what was debited, and with what was given back.
    """

    duplicates: int
    settled_ms: tuple[int, ...]
    wrong: tuple[str, ...]


def read_books(
    stack: Stack, traffic: Traffic, outcome: Outcome, advance: Callable[[int], None]
) -> Books:
    """Read every wallet that was debited, one by one: a replay scans no table."""
    by_phone: dict[str, dict[TransactionId, OfflineTransaction]] = {}
    for id_, row in outcome.rows.items():
        by_phone.setdefault(row.phone, {})[id_] = row
    posted: Counter[TransactionId] = Counter()
    duplicates = 0
    settled_ms: list[int] = []
    wrong: list[str] = []
    for phone, rows in by_phone.items():
        entries = _entries(stack, Phone(phone))
        for entry in entries:
            id_ = entry.actor, entry.reference
            is_debit = entry.kind == "debit" and isinstance(entry.outcome, Posted)
            if is_debit and id_ in outcome.rows:
                posted[id_] += 1
                if id_ in outcome.new:
                    settled_ms.append(entry.created_at_ms - outcome.rows[id_].created_at_ms)
        if all(row.status in ENDS for row in rows.values()):
            own = rows.keys() | {(SOURCE, traffic.name)}
            expected = traffic.openings[phone] + _moved(rows.values()) + _by_others(entries, own)
            found = _balance(stack, Phone(phone))
            # A debit whose entry is there once may still have taken its money twice.
            most = max(row.amount_minor for row in rows.values())
            duplicates += max(0, -((found - expected) // most))
            wrong += _wrong(Phone(phone), found, expected)
        advance(1)
    duplicates += sum(number - 1 for number in posted.values() if number > 1)
    return Books(duplicates, tuple(settled_ms), tuple(wrong))


def latency(settled_ms: Sequence[int]) -> Latency | None:
    """Their quantiles, by nearest rank, and their histogram; None where there is nothing."""
    if not settled_ms:
        return None
    ranked = sorted(float(each) for each in settled_ms)
    p50, p95, p99 = (ranked[math.ceil(len(ranked) * q / 100) - 1] for q in (50, 95, 99))
    return Latency(len(ranked), p50, p95, p99, ranked[-1], _bins(ranked))


def _bins(ranked: Sequence[float]) -> tuple[tuple[float, int], ...]:
    """Bars of equal width on a logarithmic scale, from the first that holds something."""
    last = math.ceil(BINS_A_DECADE * math.log10(max(1.0, ranked[-1])))
    bounds = [round(10 ** (n / BINS_A_DECADE), 1) for n in range(last + 1)]
    until = [0, *(bisect_right(ranked, bound) for bound in bounds)]
    bars = [
        (bound, now - before) for bound, (before, now) in zip(bounds, pairwise(until), strict=True)
    ]
    return tuple(dropwhile(lambda bar: not bar[1], bars))


def _entries(stack: Stack, phone: Phone) -> list[Entry]:
    """Of one wallet; beside them are totals of refunds."""
    return [
        items.read_entry(item)
        for item in wallets.wallet_items(stack, phone)
        if items.entry_kind(item["txId"]["S"]) is not None
    ]


def _moved(rows: Iterable[OfflineTransaction]) -> int:
    """What this replay's transactions have come to in their wallet, by what agents are told."""
    return sum(
        (row.refunded_minor or 0) - row.amount_minor for row in rows if row.status in DEBITED
    )


def _by_others(entries: Iterable[Entry], own: Set[TransactionId]) -> int:
    """What else moved in the wallet: a stack may have it from elsewhere."""
    return sum(
        -entry.amount_minor if entry.kind == "debit" else entry.amount_minor
        for entry in entries
        if isinstance(entry.outcome, Posted) and (entry.actor, entry.reference) not in own
    )


def _balance(stack: Stack, phone: Phone) -> int:
    wallet = wallets.find(stack, phone)
    return 0 if wallet is None else wallet.balance_minor


def _wrong(phone: Phone, found: int, expected: int) -> list[str]:
    if found == expected:
        return []
    return [f"the wallet {wallets.masked(phone)} holds {found:,} and should hold {expected:,}"]
