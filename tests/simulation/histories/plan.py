"""What a history is made of: what clients do and what goes wrong, and when; all of it by one seed.

Each item draws its own numbers from its own salt, so that one can be left out of a history and
the others stay what they are: that is how a failure is shrunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Deed(StrEnum):
    """What people and their programs do."""

    SUBMIT = "submit"
    BATCH = "submit a batch"
    BURST = "a burst of phones"
    RESEND = "resend"
    RESEND_OTHER = "resend as something else"
    STATUS = "ask for a status"
    REFUND = "refund by the app"
    REFUND_AGAIN = "the same refund by the app"
    FUND = "every wallet is funded"
    CREDIT = "credit"
    CREDIT_AGAIN = "the same credit"
    CREDIT_OTHER = "another credit under its id"
    FREEZE = "freeze or unfreeze"
    BUS_REFUND = "refund by the back office"
    BUS_REFUND_AGAIN = "the same refund by the back office"
    BUS_POISON = "a request that nobody can read"
    STRANGER = "a stranger's message"
    LOOK = "an operator looks"
    REDRIVE = "an operator redrives"
    DISCARD = "an operator discards"
    OLD_LETTER = "an old letter comes again"
    MOVE_BACK = "an operator moves a dead-letter queue back"
    TIME = "time passes"


class Fault(StrEnum):
    """What goes wrong."""

    KILLED_BEFORE = "killed before a call"
    KILLED_AFTER = "killed after a call"
    TIMED_OUT = "timed out"
    STALLED = "stalled, and two at once"
    SKEWED = "clock skew"
    ANSWER_LOST = "answer lost after commit"
    RESET = "connection reset"
    THROTTLED = "throttled"
    INTERNAL_ERROR = "internal error"
    CONFLICT = "transaction conflict"
    IN_PROGRESS = "transaction in progress"
    PARTIAL_SEND = "some messages of a batch not taken"
    PARTIAL_PUT = "some events of a batch not taken"
    NOT_DELETED = "done, and not deleted from its queue"
    TWICE = "a message given out twice at once"
    EVENT_TWICE = "an event delivered twice"
    EVENT_LATE = "an event delivered late"
    EVENT_LOST = "a rule could not deliver an event"
    STREAM_PAUSED = "a stream paused"
    STREAM_LOST = "a stream paused for longer than it remembers"
    DOWN = "a function down"
    CRASHING = "a function that crashes"
    STARVED = "a function throttled by AWS"
    DENIED = "a function denied what it writes"
    LAGGING = "reads lag behind"
    PURGED = "time to live deletes"


DEEDS: Mapping[Deed, float] = {
    Deed.SUBMIT: 6,
    Deed.BATCH: 3,
    Deed.BURST: 0.2,
    Deed.RESEND: 3,
    Deed.RESEND_OTHER: 1.5,
    Deed.STATUS: 1.5,
    Deed.REFUND: 7,
    Deed.REFUND_AGAIN: 2,
    Deed.CREDIT: 2,
    Deed.CREDIT_AGAIN: 1,
    Deed.CREDIT_OTHER: 0.7,
    Deed.FREEZE: 2,
    Deed.BUS_REFUND: 5,
    Deed.BUS_REFUND_AGAIN: 2,
    Deed.BUS_POISON: 0.4,
    Deed.STRANGER: 0.6,
    Deed.LOOK: 2,
    Deed.REDRIVE: 3,
    Deed.DISCARD: 1.5,
    Deed.OLD_LETTER: 2,
    Deed.MOVE_BACK: 0.7,
    Deed.TIME: 2,
}
"""How often each is done, beside the others."""


@dataclass(frozen=True, slots=True)
class Theme:
    """What a history is mostly about: weights that are not as usual, and how likely an outage is.

    `budget_ms`: the stack's LatencyBudgetMs. `calm`: few things are done, and time goes by.
    """

    name: str
    share: float
    more: Mapping[Deed, float]
    outage: float
    budget_ms: int
    calm: bool = False


THEMES = (
    Theme("all of it", 0.4, {}, 0.6, 3_000),
    Theme(
        "refunds",
        0.2,
        {Deed.REFUND: 12, Deed.REFUND_AGAIN: 6, Deed.BUS_REFUND: 10, Deed.BUS_REFUND_AGAIN: 5},
        0.5,
        3_000,
    ),
    Theme(
        "dead letters",
        0.2,
        {Deed.OLD_LETTER: 10, Deed.REDRIVE: 10, Deed.DISCARD: 4, Deed.TIME: 4, Deed.MOVE_BACK: 2},
        0.6,
        0,
    ),
    Theme("an outage", 0.2, {Deed.REDRIVE: 6, Deed.TIME: 10, Deed.REFUND: 6}, 1.0, 0, True),
    Theme("years", 0.15, {Deed.TIME: 8}, 0.2, 3_000, True),
)


OFTEN = frozenset(
    {
        Fault.KILLED_BEFORE,
        Fault.KILLED_AFTER,
        Fault.ANSWER_LOST,
        Fault.CONFLICT,
        Fault.THROTTLED,
        Fault.STALLED,
        Fault.NOT_DELETED,
    }
)
LONG = frozenset({Fault.DOWN, Fault.CRASHING, Fault.STARVED, Fault.DENIED})
"""Outages: one of them fills a history."""
FUNDED_AT = 16
"""By this step the first credits are mostly settled."""
DEBITED_AT = 80
"""By this step the first debits are mostly settled."""
LAST_PART = 0.9
"""Nothing begins in the last tenth of a history."""


@dataclass(frozen=True, slots=True)
class Item:
    """Something that happens from a step on, and the seed of all that it draws."""

    at: int
    what: Deed | Fault
    salt: int

    def random(self) -> Random:
        """Its own numbers."""
        return Random(f"{self.what} {self.salt}")

    def __str__(self) -> str:
        return f"step {self.at}: {self.what}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A history before it happens: its world, and what happens in it."""

    seed: int
    steps: int
    theme: str
    budget_ms: int
    retention_days: int
    phones: int
    agents: int
    items: tuple[Item, ...]
    burst: int = 24
    """Phones that come at once; C38 has 500."""


def plan(seed: int, steps: int) -> Plan:
    """The plan of a seed. Each seed leaves out some kinds, so that the others meet more often."""
    random = Random(f"plan {seed}")
    last = max(1, round(steps * LAST_PART))
    [theme] = random.choices(THEMES, [each.share for each in THEMES])
    kinds = [deed for deed in DEEDS if random.random() < 0.8 or deed in theme.more]
    weights = [theme.more.get(deed, DEEDS[deed]) for deed in kinds]
    items = _opening(random, last)
    share = random.uniform(0.02, 0.05) if theme.calm else random.uniform(0.05, 0.12)
    for _ in range(round(steps * share)):
        deed, at = random.choices(kinds, weights)[0], random.randint(FUNDED_AT, last)
        # A dead-letter queue has something in it only for a moment, or while triage is down.
        letters = random.choice((0, 2, 4)) if deed is Deed.MOVE_BACK else 0
        for each in (*(Deed.OLD_LETTER,) * letters, deed):
            items.append(Item(at, each, random.getrandbits(32)))
    items += _faults(random, theme, steps, last)
    if theme.name == "years" or random.random() < 0.15:
        purges = [random.randint(last // 3, last) for _ in range(random.randint(2, 5))]
        items += [Item(at, Fault.PURGED, random.getrandbits(32)) for at in purges]
    return Plan(
        seed=seed,
        steps=steps,
        theme=theme.name,
        budget_ms=theme.budget_ms,
        retention_days=random.choice((0, 0, 0, 30) if theme.name != "years" else (30,)),
        phones=random.choice((1, 1, 2, 3, 5)),
        agents=random.choice((1, 2, 2, 3)),
        items=tuple(sorted(items, key=lambda item: item.at)),
    )


def _opening(random: Random, last: int) -> list[Item]:
    """Money, then a day's debits, then some of it back: what comes later finds much to act on."""
    deeds = [(0, Deed.FUND)] if random.random() < 0.97 else []
    debits = [Deed.SUBMIT] * random.randint(0, 2) + [Deed.BATCH] * random.randint(2, 4)
    deeds += [(random.randint(FUNDED_AT, 2 * FUNDED_AT), deed) for deed in debits]
    back = random.choices((Deed.REFUND, Deed.BUS_REFUND), k=random.randint(1, 4))
    deeds += [(random.randint(min(DEBITED_AT, last), last), deed) for deed in back]
    return [Item(at, deed, random.getrandbits(32)) for at, deed in deeds]


def _faults(random: Random, theme: Theme, steps: int, last: int) -> list[Item]:
    kinds = [kind for kind in Fault if random.random() < 0.5 and kind not in LONG]
    if random.random() < 0.1 or not kinds:
        kinds = sorted(OFTEN)
    weights = [2.0 if kind in OFTEN else 1.0 for kind in kinds]
    share = random.choice((0, 0.05)) if theme.calm else random.choice((0, 0.05, 0.1, 0.15))
    items = []
    for _ in range(round(steps * share)):
        at = random.randrange(last) if random.random() < 0.2 else random.randint(FUNDED_AT, last)
        items.append(Item(at, random.choices(kinds, weights)[0], random.getrandbits(32)))
    outages = (random.random() < theme.outage) + (random.random() < theme.outage * 0.7)
    for kind in random.choices((*sorted(LONG), Fault.DOWN), k=outages):
        at = random.choice(
            (0, *(2 * FUNDED_AT,) * 2, *random.choices(range(max(1, last // 2)), k=2))
        )
        items.append(Item(at, kind, random.getrandbits(32)))
        if random.random() < 0.5:  # what then waits is for the sweep
            items.append(Item(at, Fault.STREAM_PAUSED, random.getrandbits(32)))
    return items
