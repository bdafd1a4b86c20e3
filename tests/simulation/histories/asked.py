"""What clients asked for and were answered: all that the model of the promises is told by people.

Phones are E.164 digits here, whatever spelling was sent: whoever made up the request knows them.
"""

from collections import defaultdict
from dataclasses import dataclass, field

type Transaction = tuple[str, str]
"""Agent and idempotency key."""


class Broken(AssertionError):
    """A promise that did not hold: its number in DESIGN §5, or TRIAGE for what §6 says."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise


@dataclass(frozen=True, slots=True)
class Content:
    """What a debit is asked of: minor units of a currency, from the wallet of a phone."""

    phone: str
    amount: int
    currency: str


@dataclass(frozen=True, slots=True)
class RefundAsked:
    """A refund; `amount` None: all that remains. An app names no phone and no currency."""

    amount: int | None
    phone: str | None = None
    currency: str | None = None


@dataclass
class Asked:
    """Everything that was ever asked, whether it was answered or not."""

    debits: dict[Transaction, set[Content]] = field(default_factory=lambda: defaultdict(set))
    credits: dict[tuple[str, str, str], set[tuple[int, str]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    statuses: dict[tuple[str, str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    refunds: dict[tuple[str, str, str], set[RefundAsked]] = field(
        default_factory=lambda: defaultdict(set)
    )
    accepted: dict[Transaction, Content] = field(default_factory=dict)
    """What was answered with 202 or with a replay: the promise is given."""
    unreadable: set[str] = field(default_factory=set)
    """Marks in what nobody can read: each must end in a letter."""
