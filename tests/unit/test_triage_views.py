"""A letter in a list: what is known of it, and nothing for what is not."""

from dataclasses import replace

import pytest

from tests.fakes.dead_letters import record
from tests.fakes.memory import START_MS
from tests.fakes.samples import AGENT
from triage.reading import read
from triage.views import summary
from wallet_ledger.domain.ids import AgentId, IdempotencyKey, transaction_ref
from wallet_ledger.domain.letters import Budget, Standing, diagnose, opened

ARRIVAL = read(record("DeliveryFailures", "{", attributes={}))
KEY = IdempotencyKey("K-1")
LETTER = opened(
    ARRIVAL,
    diagnose(ARRIVAL.failure, Standing.OPEN, Budget()),
    Budget(),
    preview="p",
    now_ms=START_MS,
)


@pytest.mark.parametrize(
    ("agent_id", "key", "ref"),
    [
        (AGENT, KEY, transaction_ref(AGENT, KEY)),
        (AGENT, None, None),
        (None, KEY, None),
        (None, None, None),
    ],
)
def test_a_letter_names_a_transaction_only_by_both_halves_of_its_id(
    agent_id: AgentId | None, key: IdempotencyKey | None, ref: str | None
) -> None:
    told = summary(replace(LETTER, agent_id=agent_id, idempotency_key=key))

    assert told.get("transaction") == ref


def test_what_is_not_known_of_a_letter_is_left_out() -> None:
    told = summary(replace(LETTER, due_at_ms=None))

    assert None not in told.values()
    assert told.keys().isdisjoint({"agentId", "transaction", "attempt", "dueAt", "sentAt"})
