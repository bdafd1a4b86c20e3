"""What histories must reach between them, read off the code; and what they cannot, and why."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from ingest.api import PROBLEMS
from tests.contract.functions import HANDLERS
from tests.simulation.cloud.stack import Stack
from tests.simulation.histories.faults import ON_CALLS, OUTAGES, USES_TABLES, befalls
from tests.simulation.histories.plan import Deed, Fault
from tests.simulation.histories.rows import ARROWS
from tests.template import ROOT
from triage.act import Outcome
from wallet_ledger.domain.letters import (
    DIAGNOSES,
    Failure,
    LetterClass,
    LetterStatus,
    Source,
    Verdict,
)
from wallet_ledger.domain.transactions import Reason, Status

HISTORIES = 500
"""So many have to reach it; more of them as much more often."""

FLOORS: Mapping[str, int] = {
    "": 1,
    "all workers of reconcile": 12,
    "answer 20": 4_000,
    "class": 30,
    "deed": 15,
    "deed a burst": 6,
    "deed refund": 450,
    "deed submit": 400,
    "desk redriven": 80,
    "event": 30,
    "event TransactionExpired": 1,
    "event TransactionFailed": 1_500,
    "event TransactionSynced": 2_500,
    "event WalletStatusRejected": 1,
    "failure": 5,
    "fault": 15,
    "fault a function": 30,
    "fault a message given out twice": 70,
    "fault a stream paused": 25,
    "fault an event": 50,
    "fault answer lost": 80,
    "fault clock skew": 70,
    "fault done, and not deleted": 180,
    "fault killed": 80,
    "fault stalled": 80,
    "fault throttled": 110,
    "fault time to live": 8,
    "fault timed out": 45,
    "fault transaction conflict": 70,
    "function": 150,
    "letter": 15,
    "letter redriven": 130,
    "overtaken in TxQueue": 250,
    "reason": 5,
    "row purged": 100,
    "source": 6,
    "status": 60,
    "status expired": 1,
    "two at once in reconcile": 12,
    "verdict": 100,
}
"""How often at the least, by how a name begins: the longest that fits. A third, about, of what they
came to when this was written: what has nearly died out is seen before it is gone."""

ELSEWHERE: Mapping[str, str] = {
    "reason BALANCE_LIMIT": "9,008 credits of the largest amount, one after the other",
    "answer UNAUTHENTICATED": "API Gateway lets no request through that has no agent's token",
    "answer AGENT_MISMATCH": "one look at the body: tests/unit/test_ingest_api.py",
    "answer TOO_LARGE": "one look at the body: tests/unit/test_ingest_api.py",
    "answer VALIDATION_FAILED": "one look at the body; items of a batch are tried here",
    "desk capped": "five redrives of one debit that never ends: tests/unit/test_triage_act.py",
    "desk parked": "a clock held up for an hour that then meets a conflict: the same tests",
    "desk on_its_way": "a desk killed between two writes of one redrive: the same tests",
    "desk unknown": "nobody can name a letter that is not there",
    "overtaken in TxDlqQueue": "triage takes a letter as soon as it comes: two seldom wait",
    "overtaken in RefundDlqQueue": "the same",
    "meaning its rows cannot be read: run the audit, mend them, then redrive": (
        "somebody has edited a table by hand, which breaks every promise"
    ),
}
"""What need not be reached here, each with its reason."""

CALLS_OFTEN = 2 * HISTORIES
"""A call that is made less than twice a history is left to the crash points, which try each."""
AT_EACH_CALL = (
    Fault.THROTTLED,
    Fault.CONFLICT,
    Fault.IN_PROGRESS,
    Fault.ANSWER_LOST,
    Fault.PARTIAL_SEND,
    Fault.PARTIAL_PUT,
)
"""Asked of every call that is often made; of the others that befall calls, every function."""

DEEP: Mapping[str, Sequence[str]] = {
    "debits posted": ["entry debit posted"],
    "debits refused": ["entry debit rejected"],
    "refunds posted": ["entry refund posted"],
    "of them partial": ["status partially_refunded"],
    "refunds refused": ["entry refund rejected"],
    "letters written": [f"letter {each}" for each in LetterStatus],
    "letters redriven": ["letter redriven"],
}
"""What tells a history in which something happens from one that is over before it begins."""


def expected() -> dict[str, int]:
    """What the code and the template name, and how often at the least: what is added is wanted."""
    wanted = {*_named_by_the_code(), *_befallen(), *_delivered()}
    return {name: _floor(name) for name in sorted(wanted)}


def _floor(name: str) -> int:
    return FLOORS[max((each for each in FLOORS if name.startswith(each)), key=len)]


def _named_by_the_code() -> Iterator[str]:
    enums: dict[str, type[StrEnum]] = {
        "status": Status,
        "reason": Reason,
        "failure": Failure,
        "verdict": Verdict,
        "class": LetterClass,
        "letter": LetterStatus,
        "source": Source,
        "desk": Outcome,
        "deed": Deed,
        "fault": Fault,
    }
    for kind, members in enums.items():
        yield from (f"{kind} {each}" for each in members)
    yield from (f"answer {code}" for code in (*PROBLEMS, 200, 202))
    yield from (f"event {name}" for name in events())
    yield from (f"function {name}" for name in HANDLERS)
    yield from (f"meaning {rule.diagnosis.meaning}" for rule in DIAGNOSES)
    yield from (f"move {was} to {becomes}" for was, each in ARROWS.items() for becomes in each)
    yield from ("row purged", "letter purged")


def _befallen() -> Iterator[str]:
    """Each kind of fault on each thing that it can befall."""
    stack = Stack()
    tables = [each.source.removesuffix("Table") for each in stack.mappings if each.is_stream]
    indexes = [
        index["IndexName"]
        for table in stack.of_type("AWS::DynamoDB::Table").values()
        for index in table.get("GlobalSecondaryIndexes", ())
    ]
    queues = {each.source: each.function for each in stack.mappings if not each.is_stream}
    standard = {function for source, function in queues.items() if not _is_fifo(stack, source)}
    rules = [n for n, each in stack.of_type("AWS::Events::Rule").items() if "EventPattern" in each]
    on: dict[Fault, Iterable[str]] = dict.fromkeys(ON_CALLS | OUTAGES | {Fault.SKEWED}, HANDLERS)
    on[Fault.CONFLICT] = on[Fault.IN_PROGRESS] = USES_TABLES
    on |= dict.fromkeys((Fault.STREAM_PAUSED, Fault.STREAM_LOST), tables)
    on |= dict.fromkeys((Fault.EVENT_TWICE, Fault.EVENT_LATE, Fault.EVENT_LOST), rules)
    on |= {Fault.LAGGING: indexes, Fault.TWICE: standard, Fault.NOT_DELETED: set(queues.values())}
    for kind in (Fault.IN_PROGRESS, Fault.PARTIAL_SEND, Fault.PARTIAL_PUT):
        del on[kind]  # they befall one operation alone, and are asked of each call
    for kind, each in on.items():
        yield from (f"struck {name}: {kind}" for name in each)


def _delivered() -> Iterator[str]:
    """How work reaches those that consume it: out of order, in part, twice at once, too much."""
    stack = Stack()
    consumers = {each.function for each in stack.mappings}
    yield from (f"two at once in {name}" for name in HANDLERS)
    yield from (f"partial batch of {name}" for name in consumers)
    yield from (f"overtaken in {each.source}" for each in stack.mappings if not each.is_stream)
    yield from ("all workers of reconcile", "moved back in another order")


def _is_fifo(stack: Stack, queue: str) -> bool:
    return stack.name(queue).endswith(".fifo")


def events() -> set[str]:
    """Names of events that our code puts on the bus or takes from it."""
    found: set[str] = set()
    for name in ("derive", "contracts"):
        tree = ast.parse((ROOT / f"shared/wallet_ledger/{name}.py").read_text())
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        found |= {
            text
            for text in texts
            if isinstance(text, str)
            and re.fullmatch(r"(Transaction|Refund|Wallet|DeadLetter)[A-Z][A-Za-z]+", text)
        }
    return found


def _at_calls(reached: Mapping[str, int]) -> dict[str, int]:
    """Faults wanted at each call that was often made: a new call is covered by being made."""
    return {
        f"call {call}: {kind}": _floor("call")
        for name, made in reached.items()
        if name.startswith("made ") and made >= CALLS_OFTEN
        for call in [name.removeprefix("made ")]
        for kind in AT_EACH_CALL
        if befalls(kind, call.split()[1])
    }


def missing(reached: Mapping[str, int], histories: int = HISTORIES) -> list[str]:
    """What was reached less often than it should have been, over so many histories."""
    wanted = {**expected(), **_at_calls(reached)}
    least = {name: each * histories // HISTORIES for name, each in wanted.items()}
    return [
        f"{name}: {reached.get(name, 0)} of {least[name]}"
        for name in wanted
        if name not in ELSEWHERE and reached.get(name, 0) < least[name]
    ]


def depth(each: Sequence[Mapping[str, int]]) -> dict[str, list[int]]:
    """How much of what matters happened in each history."""
    return {
        what: [sum(reached.get(name, 0) for name in names) for reached in each]
        for what, names in DEEP.items()
    }


def stale() -> list[str]:
    """What is said to be tried elsewhere, or how often, and is not there at all."""
    wanted = expected()
    floors = {each for each in FLOORS if not any(name.startswith(each) for name in wanted)}
    return sorted(ELSEWHERE.keys() - wanted.keys() | floors)


def total(each: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Over many histories."""
    found: Counter[str] = Counter()
    for reached in each:
        found.update(reached)
    return found
