"""Names of things: what an id may look like, and digests that stand for ids."""

import hashlib
import re
from typing import NewType

AgentId = NewType("AgentId", str)
IdempotencyKey = NewType("IdempotencyKey", str)
Phone = NewType("Phone", str)
"""E.164 digits without the leading `+`: one person = one wallet = one FIFO group."""
Currency = NewType("Currency", str)
"""ISO 4217 code, three capital letters."""
Fingerprint = NewType("Fingerprint", str)
"""SHA-256 hex over the content that makes two requests the same request."""
EntryId = NewType("EntryId", str)
"""Sort key of a ledger entry; `aws/items.py` alone knows how one is spelt."""

# `#` never occurs in an id, so no id that a client chooses can reach a reserved ledger key.
ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"
PHONE_PATTERN = r"[1-9][0-9]{6,14}"
CURRENCY_PATTERN = r"[A-Z]{3}"


def is_id(text: str) -> bool:
    """Whether `text` may serve as agentId, idempotencyKey, creditId, source or requestId."""
    return re.fullmatch(ID_PATTERN, text, re.ASCII) is not None


def is_phone(text: str) -> bool:
    """Whether `text` has the stored shape of a phone (not whether the number is assigned)."""
    return re.fullmatch(PHONE_PATTERN, text, re.ASCII) is not None


def is_currency(text: str) -> bool:
    """Whether `text` has the shape of an ISO 4217 code."""
    return re.fullmatch(CURRENCY_PATTERN, text, re.ASCII) is not None


def digest(*parts: str | int) -> str:
    """SHA-256 hex of the parts, one per line.

    No part may hold a line break (ids, phones and numbers cannot), so two different lists of
    parts never read the same.
    """
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def transaction_ref(agent_id: AgentId, idempotency_key: IdempotencyKey) -> str:
    """16 hex digits that stand for a transaction in logs.

    Agents choose their keys and some put a phone number in them, so the key itself is never
    logged; who knows agent and key can compute the reference, nobody can go back from it.
    """
    return digest("ref", agent_id, idempotency_key)[:16]
