"""What histories must reach between them, read off the code; and what they cannot, and why."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum

from ingest.api import PROBLEMS
from tests.contract.functions import HANDLERS
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
    "meaning its rows cannot be read: run the audit, mend them, then redrive": (
        "somebody has edited a table by hand, which breaks every promise"
    ),
}
"""What need not be reached here, each with its reason."""


def expected() -> list[str]:
    """What the code names: a member that is added is wanted here at once."""
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
    wanted = [f"{kind} {each}" for kind, members in enums.items() for each in members]
    wanted += [f"answer {code}" for code in PROBLEMS]
    wanted += [f"event {name}" for name in events()]
    wanted += [f"function {name}" for name in HANDLERS]
    wanted += [f"meaning {rule.diagnosis.meaning}" for rule in DIAGNOSES]
    wanted += [f"move {was} to {becomes}" for was, each in ARROWS.items() for becomes in each]
    wanted += ["row purged", "two at once", "answer 200", "answer 202"]
    return sorted(set(wanted))


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


def missing(reached: Mapping[str, int]) -> list[str]:
    """What should have been reached, and was not."""
    return [each for each in expected() if not reached.get(each) and each not in ELSEWHERE]


def stale() -> list[str]:
    """What is said to be tried elsewhere, and is not there at all."""
    return sorted(ELSEWHERE.keys() - set(expected()))


def total(each: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Over many histories."""
    found: Counter[str] = Counter()
    for reached in each:
        found.update(reached)
    return found
