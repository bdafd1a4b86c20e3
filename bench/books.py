"""What a backend left in its tables, held against the load that it was given.

Entries alone cannot tell that a balance was debited twice: where an entry's key is the debit's,
there is no second one to count. So each wallet is worked out from what it opened with.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.units import Item
from wakala.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Debit:
    """An entry that has debited `phone`'s wallet; `key` is the transaction's within its load."""

    key: str
    phone: str
    amount_minor: int


@dataclass(frozen=True, slots=True)
class Left:
    """What is wrong in the tables when all is done.

    `duplicates`: entries of a transaction beyond its first, and wallets that hold less than their
    entries leave them, which some balance was debited for twice. `unpaid`: wallets that hold more.
    `overdrawn`: wallets below zero. `open`: transactions that did not come to their end, which is
    synced with an entry where the wallet covered them, and failed without one where it did not.
    """

    duplicates: int
    unpaid: int
    overdrawn: int
    open: int


def left(
    traffic: Traffic,
    rows: Iterable[Item],
    books: Iterable[Item],
    debit_of: Callable[[Item], Debit | None],
    balance: str,
) -> Left:
    """Compare both tables with the load; `balance` is the attribute of the books that holds one."""
    items = list(books)
    debits = [debit for item in items if (debit := debit_of(item)) is not None]
    found = {item["phone"]["S"]: int(item[balance]["N"]) for item in items if balance in item}
    expected = Counter(traffic.openings)
    for debit in debits:
        expected[debit.phone] -= debit.amount_minor
    over = [found.get(phone, 0) - minor for phone, minor in expected.items()]
    keys = {debit.key for debit in debits}
    return Left(
        duplicates=len(debits) - len(keys) + sum(minor < 0 for minor in over),
        unpaid=sum(minor > 0 for minor in over),
        overdrawn=sum(minor < 0 for minor in found.values()),
        open=_open(traffic, rows, keys),
    )


def _open(traffic: Traffic, rows: Iterable[Item], debited: set[str]) -> int:
    """A repetition may have a row of its own: then each of them is to have an end."""
    statuses = defaultdict[str, set[str]](set)
    for row in rows:
        statuses[row["idempotencyKey"]["S"]].add(row["status"]["S"])
    covered = {
        each.document["idempotencyKey"]: each.document["amount"]
        <= traffic.openings.get(each.document["phone"], 0)
        for each in traffic.sent
    }
    ended = {True: ({"synced"}, True), False: ({"failed"}, False)}
    return sum(
        (statuses[key], key in debited) != ended[is_covered] for key, is_covered in covered.items()
    )
