"""Seeded traffic: what wallets hold, what agents send, in which order and when. No AWS here."""

import hashlib
import itertools
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from wakala.transactions import Document

AMOUNT_MINOR = (100, 50_000)
"""The least and the most of one debit."""

BRANCH_DEBITS = 10
"""Debits of each wallet that a branch brings at once: one batch of the queue."""

AGENT_COUNT = 20

MONTH_END_BUSY = 0.2
"""The part of a month-end's debits that meets the few wallets which pay many others."""


class Shape(StrEnum):
    """How traffic meets wallets."""

    UNIFORM = "uniform"
    """Many wallets, one debit each."""
    BRANCH = "branch"
    """An office comes online: ten debits of each wallet, one after the other."""
    HOT = "hot"
    """One wallet."""
    MONTH_END = "month-end"
    """Uniform, and a few busy wallets; a ramp with a spike in it."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of the traffic, 0 to 1 each, of the debits that are sent first.

    `duplicates` are sent again, `reorders` change places with their next neighbour, `overdrafts`
    ask for more than the wallet ever held, `refunds` are given back in full.
    """

    duplicates: float = 0.05
    reorders: float = 0.05
    overdrafts: float = 0.02
    refunds: float = 0.02

    def __post_init__(self) -> None:
        """Refuse what is no part of anything."""
        for name in ("duplicates", "reorders", "overdrafts", "refunds"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: a part from 0 to 1")


@dataclass(frozen=True, slots=True)
class Sent:
    """A request, `at_s` seconds after the beginning. `repeated`: it was sent before."""

    at_s: float
    document: Document
    repeated: bool


@dataclass(frozen=True, slots=True)
class Traffic:
    """What `name` stands for, the same each time: its keys begin with it, and nobody else's do.

    `openings`: phone to what its wallet holds first, minor units. `refunded`: what goes back.
    """

    name: str
    openings: dict[str, int]
    sent: tuple[Sent, ...]
    refunded: tuple[Document, ...]


def make_traffic(
    shape: Shape, number: int, *, seed: int, shares: Shares = Shares(), rate: float = 100.0
) -> Traffic:
    """`number` debits of a shape, at `rate` a second on the average; the same for the same seed.

    With another seed, number or shares they are other transactions, of other wallets. A wallet
    holds twice what it is debited for: what is debited twice is seen, and not refused.
    """
    content = f"{shape} {number} {seed} {shares}"
    name = f"{shape}-{seed}-{hashlib.sha256(content.encode()).hexdigest()[:8]}"
    chance = random.Random(content)
    phones = _phones(shape, number, chance)
    amounts = [chance.randint(*AMOUNT_MINOR) for _ in phones]
    openings: dict[str, int] = {}
    for phone, amount in zip(phones, amounts, strict=True):
        openings[phone] = openings.get(phone, 0) + 2 * amount
    debits: list[Document] = []
    for n, (phone, amount) in enumerate(zip(phones, amounts, strict=True)):
        is_overdraft = chance.random() < shares.overdrafts
        debits.append(
            {
                "agentId": _agent(shape, n),
                "phone": phone,
                "amount": amount + openings[phone] if is_overdraft else amount,
                "idempotencyKey": f"{name}-{n:07d}",
            }
        )
    order = _reordered(number, shares.reorders, chance)
    placed = _with_duplicates(order, shares.duplicates, chance)
    timed = zip(_moments(shape, placed, number / rate), placed, strict=True)
    sent = [Sent(at_s, debits[each.debit], each.repeated) for at_s, each in timed]
    covered = [each for each in debits if each["amount"] <= openings[each["phone"]]]
    return Traffic(
        name,
        openings,
        tuple(sorted(sent, key=lambda each: each.at_s)),
        tuple(each for each in covered if chance.random() < shares.refunds),
    )


def _agent(shape: Shape, number: int) -> str:
    """Whose a debit is: an office's ten are one agent's. No real agent is called so."""
    agent = number // BRANCH_DEBITS if shape is Shape.BRANCH else number
    return f"REPLAY-{agent % AGENT_COUNT:02d}"


def _phones(shape: Shape, number: int, chance: random.Random) -> list[str]:
    """The phone of each debit, in the order of sending."""
    block = chance.randrange(10**8 - number)
    own = [f"2547{block + n:08d}" for n in range(number)]
    match shape:
        case Shape.UNIFORM:
            return own
        case Shape.BRANCH:
            return [own[n // BRANCH_DEBITS] for n in range(number)]
        case Shape.HOT:
            return [own[0]] * number
        case Shape.MONTH_END:
            busy = own[: max(1, number // 100)]
            return [chance.choice(busy) if chance.random() < MONTH_END_BUSY else p for p in own]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Which debit is sent, by its number, and where in the order: a debit is one place."""

    place: float
    debit: int
    repeated: bool


def _reordered(number: int, part: float, chance: random.Random) -> list[int]:
    order = list(range(number))
    for n in range(len(order) - 1):
        if chance.random() < part:
            order[n], order[n + 1] = order[n + 1], order[n]
    return order


def _with_duplicates(order: Sequence[int], part: float, chance: random.Random) -> list[_Placed]:
    """Each repetition some places after what it repeats, as after a time-out."""
    placed = [_Placed(place, debit, repeated=False) for place, debit in enumerate(order)]
    placed += [
        _Placed(place + chance.uniform(0.5, 40), debit, repeated=True)
        for place, debit in enumerate(order)
        if chance.random() < part
    ]
    return sorted(placed, key=lambda each: each.place)


_MONTH_END = [*(0.3 + n / 60 for n in range(60)), *[4.0] * 10, *(1.3 - n / 30 for n in range(30))]
"""How busy each hundredth of a month-end is: a ramp, a spike of a tenth of the time, an evening."""


def _moments(shape: Shape, placed: Sequence[_Placed], seconds: float) -> list[float]:
    """When each is sent; a branch's ten at once, as an office that comes online sends them."""
    number = len(placed)
    match shape:
        case Shape.BRANCH:
            debits = sum(not each.repeated for each in placed)
            return [_office_moment(each, debits) / debits * seconds for each in placed]
        case Shape.MONTH_END:
            until = list(itertools.accumulate(_MONTH_END, initial=0.0))
            return [_at(until, n / number * until[-1]) * seconds for n in range(number)]
        case _:
            return [n / number * seconds for n in range(number)]


def _office_moment(each: _Placed, debits: int) -> float:
    """In debits before it: all of an office at once, and a repetition alone, some time later."""
    office = float(each.debit // BRANCH_DEBITS * BRANCH_DEBITS)
    return max(office, min(each.place, debits)) if each.repeated else office


def _at(until: Sequence[float], done: float) -> float:
    """The part of the time after which so much is done."""
    slot = max(0, bisect_left(until, done) - 1)
    within = (done - until[slot]) / (until[slot + 1] - until[slot])
    return (slot + within) / (len(until) - 1)
