"""The agent's side of Wakala: submit offline, sync later, debit at most once.

outbox = Outbox("outbox.db", agent_id="AG-001")
key = outbox.submit("0712345678", 15000)  # durable when it returns; touches no network
Syncer(outbox, "https://…/prod", token=fetch_id_token).sync()
outbox.status(key).state  # "synced"
"""

from wakala_agent.backoff import Backoff
from wakala_agent.errors import (
    InvalidTransaction,
    KeyReused,
    LimitExceeded,
    OutboxUnusable,
    StorageFull,
    UnknownKey,
)
from wakala_agent.outbox import Limits, Outbox
from wakala_agent.plan import Pace, Report
from wakala_agent.syncer import Syncer
from wakala_agent.transaction import State, Transaction

__all__ = [
    "Backoff",
    "InvalidTransaction",
    "KeyReused",
    "LimitExceeded",
    "Limits",
    "Outbox",
    "OutboxUnusable",
    "Pace",
    "Report",
    "State",
    "StorageFull",
    "Syncer",
    "Transaction",
    "UnknownKey",
]
