"""How a letter is shown to an operator: masked, unless its revelation is in its history."""

from dataclasses import dataclass, field
from typing import Any

from triage.preview import masked_phone, shown, without_digits
from triage.reading import read
from wallet_ledger import strict_json
from wallet_ledger.domain.ids import transaction_ref
from wallet_ledger.domain.letters import Budget, Letter


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant; what is None or empty does not matter. Times in ms, inclusive."""

    fingerprint: str | None = None
    letter_class: str | None = None
    source: str | None = None
    agent_id: str | None = None
    why: str | None = None
    statuses: frozenset[str] = field(default_factory=frozenset)
    arrived_from_ms: int = 0
    arrived_until_ms: int = 10**14

    def takes(self, letter: Letter) -> bool:
        """Whether a letter is meant."""
        wanted = (
            (self.fingerprint, letter.fingerprint),
            (self.letter_class, letter.letter_class),
            (self.source, letter.source),
            (self.agent_id, letter.agent_id),
            (self.why, letter.why),
        )
        return (
            all(want is None or want == has for want, has in wanted)
            and (not self.statuses or letter.status in self.statuses)
            and self.arrived_from_ms <= letter.arrived_at_ms <= self.arrived_until_ms
        )


def summary(letter: Letter) -> dict[str, Any]:
    """A letter in a list. Times in ms."""
    ref = None
    if letter.agent_id is not None and letter.idempotency_key is not None:
        ref = transaction_ref(letter.agent_id, letter.idempotency_key)
    members = {
        "letterId": letter.letter_id,
        "fingerprint": letter.fingerprint,
        "source": letter.source,
        "failure": letter.failure,
        "class": letter.letter_class,
        "verdict": letter.verdict,
        "status": letter.status,
        "why": letter.why,
        "place": letter.place,
        "meaning": letter.meaning,
        "preview": letter.preview,
        "lane": letter.lane,
        "agentId": None if letter.agent_id is None else shown(letter.agent_id),
        "transaction": ref,
        "attempt": letter.attempt,
        "arrivedAt": letter.arrived_at_ms,
        "sentAt": letter.original.sent_at_ms,
        "dueAt": letter.due_at_ms,
        "updatedAt": letter.updated_at_ms,
        "receiveCount": letter.original.receive_count,
        "revision": letter.revision,
    }
    return {name: value for name, value in members.items() if value is not None}


def whole(letter: Letter, budget: Budget) -> dict[str, Any]:
    """A letter with its history, masked."""
    original = letter.original
    return summary(letter) | {
        "original": {
            "messageId": original.message_id,
            "group": None if original.group is None else masked_phone(original.group),
            "dedupId": None if original.dedup_id is None else without_digits(original.dedup_id),
            "receiveCount": original.receive_count,
            "sentAt": original.sent_at_ms,
        },
        "history": [
            {"at": each.at_ms, "who": each.who, "what": each.what, "why": each.why}
            for each in letter.history
        ],
        "budget": {"automatic": budget.automatic, "byHand": budget.by_hand},
    }


def revealed(letter: Letter, record: str) -> dict[str, Any]:
    """What `whole` masks; half a surrogate pair in `body` is spelt out."""
    return {
        "record": record,
        "body": read(strict_json.read(record)).body.encode(errors="backslashreplace").decode(),
        "group": letter.original.group,
        "dedupId": letter.original.dedup_id,
        "idempotencyKey": letter.idempotency_key,
    }


def groups(letters: list[Letter]) -> list[dict[str, Any]]:
    """Letters of one trouble as one line: how many, how many of them open, since when."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for letter in letters:
        line = found.setdefault(
            (letter.fingerprint, letter.letter_class),
            {
                "fingerprint": letter.fingerprint,
                "source": letter.source,
                "failure": letter.failure,
                "class": letter.letter_class,
                "why": letter.why,
                "place": letter.place,
                "meaning": letter.meaning,
                "sample": letter.letter_id,
                "count": 0,
                "open": 0,
                "oldestAt": letter.arrived_at_ms,
                "newestAt": letter.arrived_at_ms,
            },
        )
        line["count"] += 1
        line["open"] += letter.status.is_open
        line["oldestAt"] = min(line["oldestAt"], letter.arrived_at_ms)
        line["newestAt"] = max(line["newestAt"], letter.arrived_at_ms)
    return list(found.values())
