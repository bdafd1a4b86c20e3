"""Item shapes: the only file that knows attribute names, key prefixes and how an item is spelt.

Items are in DynamoDB's own notation (`{"S": …}`, `{"N": …}`): reading and writing it by hand
costs less at a cold start than boto3's resource layer, and a number never becomes a Decimal.
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from wallet_ledger.domain.ids import (
    AgentId,
    Currency,
    EntryId,
    Fingerprint,
    IdempotencyKey,
    Phone,
)
from wallet_ledger.domain.letters import (
    Action,
    Budget,
    Failure,
    Letter,
    LetterClass,
    LetterStatus,
    Original,
    Source,
    Verdict,
    letter_shard,
)
from wallet_ledger.domain.postings import Entry, EntryKind, NewEntry
from wallet_ledger.domain.refunds import Post, Refund, Reject
from wallet_ledger.domain.transactions import (
    OfflineTransaction,
    PendingRefund,
    Reason,
    Status,
    open_shard,
)
from wallet_ledger.domain.wallets import (
    Credit,
    Debit,
    Movement,
    Outcome,
    Posted,
    Rejected,
    StatusChange,
    Wallet,
    WalletStatus,
)
from wallet_ledger.ports import OpenRow

type Item = dict[str, Any]

OPEN_INDEX = "OpenTx"
OPEN_LETTERS_INDEX = "OpenLetters"
ALL_LETTERS_INDEX = "AllLetters"
BALANCE = EntryId("balance")
_LETTER = "letter#"

_BUSINESS_ID: dict[EntryKind, tuple[str, str]] = {
    "debit": ("agentId", "idempotencyKey"),
    "credit": ("source", "creditId"),
    "status": ("source", "requestId"),
    "refund": ("agentId", "idempotencyKey"),
}


# --- OfflineTx -----------------------------------------------------------------------------


def offline_tx_key(agent_id: AgentId, key: IdempotencyKey) -> Item:
    """The primary key of a row of OfflineTx."""
    return {"agentId": _s(agent_id), "idempotencyKey": _s(key)}


def open_shard_key(shard: int) -> str:
    """Partition key of the sparse index of open rows."""
    return f"open#{shard:02d}"


def offline_tx_item(row: OfflineTransaction) -> Item:
    """A row of OfflineTx; an open one carries its place in the index of open rows."""
    item = offline_tx_key(row.agent_id, row.idempotency_key) | {
        "phone": _s(row.phone),
        "amountMinor": _n(row.amount_minor),
        "currency": _s(row.currency),
        "fingerprint": _s(row.fingerprint),
        "createdAt": _n(row.created_at_ms),
        "updatedAt": _n(row.updated_at_ms),
        "expiresAt": _n(row.expires_at_s),
        "status": _s(row.status),
        "attempt": _n(row.attempt),
    }
    if row.captured_at is not None:
        item["capturedAt"] = _s(row.captured_at)
    if row.reason is not None:
        item["reason"] = _s(row.reason)
    if row.queued_at_ms is not None:
        item["queuedAt"] = _n(row.queued_at_ms)
    if row.refunded_minor is not None:
        item["refundedMinor"] = _n(row.refunded_minor)
    if row.refund_request is not None:
        item["refundRequest"] = _pending_refund(row.refund_request)
    if row.cancelled_by is not None:
        item["cancelledBy"] = _s(row.cancelled_by)
    if row.held_by is not None:
        item["heldBy"] = _s(row.held_by)
    if row.next_sweep_at_ms is not None:
        shard = open_shard(row.agent_id, row.idempotency_key)
        item["openShard"] = _s(open_shard_key(shard))
        item["nextSweepAt"] = _n(row.next_sweep_at_ms)
    return item


def read_offline_tx(item: Mapping[str, Any]) -> OfflineTransaction:
    """The row of an item. Raises KeyError or ValueError where it is none."""
    return OfflineTransaction(
        agent_id=AgentId(item["agentId"]["S"]),
        idempotency_key=IdempotencyKey(item["idempotencyKey"]["S"]),
        phone=Phone(item["phone"]["S"]),
        amount_minor=int(item["amountMinor"]["N"]),
        currency=Currency(item["currency"]["S"]),
        fingerprint=Fingerprint(item["fingerprint"]["S"]),
        created_at_ms=int(item["createdAt"]["N"]),
        updated_at_ms=int(item["updatedAt"]["N"]),
        expires_at_s=int(item["expiresAt"]["N"]),
        status=Status(item["status"]["S"]),
        attempt=int(item["attempt"]["N"]),
        captured_at=_maybe_s(item, "capturedAt"),
        reason=_maybe_s(item, "reason"),
        queued_at_ms=_maybe_n(item, "queuedAt"),
        next_sweep_at_ms=_maybe_n(item, "nextSweepAt"),
        refunded_minor=_maybe_n(item, "refundedMinor"),
        refund_request=_read_pending_refund(item),
        cancelled_by=_maybe_s(item, "cancelledBy"),
        held_by=_maybe_s(item, "heldBy"),
    )


def row_move(
    before: OfflineTransaction, after: OfflineTransaction, purge_at_s: int | None = None
) -> Item:
    """An update of a row from one state to another, under the condition that it is as before.

    The members of an UpdateItem or of a transaction's Update, without the table. All that a refund
    is decided on is in the condition. A row that waits for a refund must not be purged meanwhile,
    so without `purge_at_s` (epoch seconds) the row loses the one it may have.
    """
    was, becomes = offline_tx_item(before), offline_tx_item(after)
    was["purgeAt"] = _n(0)  # whatever it was
    if purge_at_s is not None:
        becomes["purgeAt"] = _n(purge_at_s)
    changed = {name: value for name, value in becomes.items() if was.get(name) != value}
    gone = [name for name in was if name not in becomes]
    seen = ("status", "fingerprint", "attempt", "refundedMinor", "refundRequest")
    update = "SET " + ", ".join(f"#{name} = :{name}" for name in changed)
    if gone:
        update += " REMOVE " + ", ".join(f"#{name}" for name in gone)
    return {
        "Key": offline_tx_key(before.agent_id, before.idempotency_key),
        "UpdateExpression": update,
        **_as_seen(was, seen, [*changed, *gone]),
    } | {
        "ExpressionAttributeValues": {f":{name}": value for name, value in changed.items()}
        | {f":seen_{name}": was[name] for name in seen if name in was}
    }


def row_check(row: OfflineTransaction) -> Item:
    """The members of a transaction's ConditionCheck that a row is still as it was seen."""
    item = offline_tx_item(row)
    seen = ("status", "fingerprint", "refundedMinor", "refundRequest")
    return {
        "Key": offline_tx_key(row.agent_id, row.idempotency_key),
        **_as_seen(item, seen, []),
        "ExpressionAttributeValues": {f":seen_{name}": item[name] for name in seen if name in item},
    }


def _as_seen(item: Item, seen: Sequence[str], also_named: Sequence[str]) -> Item:
    conditions = [
        f"#{name} = :seen_{name}" if name in item else f"attribute_not_exists(#{name})"
        for name in seen
    ]
    names = {*seen, *also_named}
    return {
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": {f"#{name}": name for name in sorted(names)},
    }


def read_open_row(item: Mapping[str, Any]) -> OpenRow:
    """What the index of open rows holds of a row."""
    status = Status(item["status"]["S"])
    since = "updatedAt" if status is Status.REFUND_REQUESTED else "createdAt"
    return OpenRow(
        agent_id=AgentId(item["agentId"]["S"]),
        idempotency_key=IdempotencyKey(item["idempotencyKey"]["S"]),
        status=status,
        attempt=int(item["attempt"]["N"]),
        open_since_ms=int(item[since]["N"]),
        expires_at_s=int(item["expiresAt"]["N"]),
        next_sweep_at_ms=int(item["nextSweepAt"]["N"]),
    )


# --- WalletLedger --------------------------------------------------------------------------


def ledger_key(phone: Phone, entry_id: EntryId) -> Item:
    """The primary key of an entry, or with `BALANCE` of the wallet's balance row."""
    return {"phone": _s(phone), "txId": _s(entry_id)}


def entry_id(movement: Movement) -> EntryId:
    """The sort key of a movement's entry: its kind, then its business id."""
    match movement:
        case Debit():
            return EntryId(f"debit#{movement.agent_id}#{movement.idempotency_key}")
        case Credit():
            return EntryId(f"credit#{movement.source}#{movement.credit_id}")
        case StatusChange():
            return EntryId(f"status#{movement.source}#{movement.request_id}")
        case _:
            assert_never(movement)


def new_entry_id(new: NewEntry) -> EntryId:
    """Where a decided movement's entry goes.

    The refusal of a reused id cannot go where the first use of the id stands; it gets a place of
    its own per content, so that whoever asked is answered once, by an entry and an event.
    """
    base = entry_id(new.movement)
    if new.outcome == Rejected(Reason.KEY_REUSED):
        return EntryId(f"{base}#{new.movement.fingerprint[:16]}")
    return base


def entry_kind(tx_id: str) -> EntryKind | None:
    """The kind of entry that a sort key names, None where it names something else."""
    match tx_id.split("#", 1)[0]:
        case "debit" | "credit" | "status" | "refund" as kind:
            return kind
        case _:
            return None


def entry_item(new: NewEntry, at_ms: int) -> Item:
    """An entry, written once and never changed; it fits in 1 KB, one write unit."""
    movement = new.movement
    item = ledger_key(movement.phone, new_entry_id(new)) | {
        "fingerprint": _s(movement.fingerprint),
        "createdAt": _n(at_ms),
        "currency": _s(movement.currency),
    }
    match movement:
        case Debit():
            item |= {
                "agentId": _s(movement.agent_id),
                "idempotencyKey": _s(movement.idempotency_key),
                "amountMinor": _n(movement.amount_minor),
                "contra": _s(f"agent:{movement.agent_id}"),
            }
            if movement.captured_at is not None:
                item["capturedAt"] = _s(movement.captured_at)
        case Credit():
            item |= {
                "source": _s(movement.source),
                "creditId": _s(movement.credit_id),
                "amountMinor": _n(movement.amount_minor),
                "contra": _s(f"funding:{movement.source}"),
            }
        case StatusChange():
            item |= {
                "source": _s(movement.source),
                "requestId": _s(movement.request_id),
                "status": _s(movement.status),
            }
        case _:
            assert_never(movement)
    return item | _outcome_attributes(new.outcome)


def read_entry(item: Mapping[str, Any]) -> Entry:
    """The entry of an item. Raises KeyError or ValueError where it is none."""
    kind = entry_kind(item["txId"]["S"])
    if kind is None:
        raise ValueError("not an entry")
    actor, reference = _BUSINESS_ID[kind]
    outcome: Outcome
    if item["outcome"]["S"] == "posted":
        outcome = Posted(int(item["version"]["N"]), int(item["balanceAfterMinor"]["N"]))
    else:
        outcome = Rejected(Reason(item["reason"]["S"]))
    return Entry(
        phone=Phone(item["phone"]["S"]),
        entry_id=EntryId(item["txId"]["S"]),
        kind=kind,
        actor=item[actor]["S"],
        reference=item[reference]["S"],
        fingerprint=Fingerprint(item["fingerprint"]["S"]),
        outcome=outcome,
        currency=Currency(item["currency"]["S"]),
        amount_minor=_maybe_n(item, "amountMinor") or 0,
        contra=_maybe_s(item, "contra"),
        wallet_status=WalletStatus(item["status"]["S"]) if kind == "status" else None,
        created_at_ms=int(item["createdAt"]["N"]),
        refund_id=_maybe_s(item, "refundId"),
        remaining_minor=_maybe_n(item, "remainingMinor"),
    )


def read_wallet(item: Mapping[str, Any]) -> Wallet:
    """The wallet of a balance row. Raises KeyError or ValueError where it is none."""
    return Wallet(
        phone=Phone(item["phone"]["S"]),
        balance_minor=int(item["balanceMinor"]["N"]),
        currency=Currency(item["currency"]["S"]),
        version=int(item["version"]["N"]),
        status=WalletStatus(item["status"]["S"]),
    )


def refund_entry_id(refund: Refund) -> EntryId:
    """Where a refund's entry goes: one outcome for each refund id of a debit."""
    return refund_id_entry(refund.agent_id, refund.idempotency_key, refund.refund_id)


def refund_id_entry(agent_id: AgentId, key: IdempotencyKey, refund_id: str) -> EntryId:
    """Where the outcome of one refund id of one debit is."""
    return EntryId(f"refund#{agent_id}#{key}#{refund_id}")


def reused_refund_entry_id(refund: Refund) -> EntryId:
    """Where the refusal of a reused refund id goes; see `new_entry_id`."""
    return EntryId(f"{refund_entry_id(refund)}#{refund.fingerprint[:16]}")


def refund_total_id(agent_id: AgentId, key: IdempotencyKey) -> EntryId:
    """The sort key of the running total refunded of one debit."""
    return EntryId(f"refunds#{agent_id}#{key}")


def read_refund_total(item: Mapping[str, Any]) -> int:
    """The running total of an item, in minor units."""
    return int(item["refundedMinor"]["N"])


def debit_entry_id(agent_id: AgentId, key: IdempotencyKey) -> EntryId:
    """Where the entry of an original is."""
    return EntryId(f"debit#{agent_id}#{key}")


def refund_item(refund: Refund, decided: Post | Reject, currency: Currency, at_ms: int) -> Item:
    """The entry of a refund, posted or rejected."""
    reused = isinstance(decided, Reject) and decided.reason is Reason.KEY_REUSED
    entry_id = reused_refund_entry_id(refund) if reused else refund_entry_id(refund)
    item = ledger_key(refund.phone, entry_id) | {
        "agentId": _s(refund.agent_id),
        "idempotencyKey": _s(refund.idempotency_key),
        "refundId": _s(refund.refund_id),
        "fingerprint": _s(refund.fingerprint),
        "currency": _s(currency),
        "contra": _s(f"agent:{refund.agent_id}"),
        "note": _s(refund.note),
        "requestedBy": _s(refund.requested_by),
        "createdAt": _n(at_ms),
    }
    if isinstance(decided, Post):
        outcome = Posted(decided.wallet_after.version, decided.wallet_after.balance_minor)
        return item | {"amountMinor": _n(decided.amount_minor)} | _outcome_attributes(outcome)
    if refund.amount_minor is not None:
        item["amountMinor"] = _n(refund.amount_minor)
    if decided.remaining_minor is not None:
        item["remainingMinor"] = _n(decided.remaining_minor)
    return item | _outcome_attributes(Rejected(decided.reason))


# --- DeadLetters ---------------------------------------------------------------------------


def letter_key(letter_id: str) -> Item:
    """The primary key of a letter."""
    return {"id": _s(f"{_LETTER}{letter_id}")}


def record_key(letter_id: str, part: int) -> Item:
    """The primary key of a part of a letter's record; the first is 0."""
    return {"id": _s(f"record#{letter_id}#{part}")}


def subject_key(subject_ref: str) -> Item:
    """The primary key of a subject's budget."""
    return {"id": _s(f"subject#{subject_ref}")}


def letter_shard_key(shard: int) -> str:
    """Partition key of both indexes of letters."""
    return f"{_LETTER}{shard:02d}"


def letter_place(shard: int, at_ms: int, letter_id: str, *, open_only: bool) -> Item:
    """The key of a letter in one of the indexes of letters: where a page of it starts or ends."""
    shard_name, at_name = ("openShard", "dueAt") if open_only else ("shard", "arrivedAt")
    place = {shard_name: _s(letter_shard_key(shard)), at_name: _n(at_ms)}
    return letter_key(letter_id) | place


def read_letter_place(item: Mapping[str, Any]) -> tuple[int, str]:
    """Of such a key, the time that orders the index and the letter's id."""
    at = item["dueAt"] if "dueAt" in item else item["arrivedAt"]
    return int(at["N"]), letter_id_of(item)


def is_letter(item: Mapping[str, Any]) -> bool:
    """Whether an item of DeadLetters is a letter: records and budgets are there too."""
    return str(item["id"]["S"]).startswith(_LETTER)


def letter_id_of(item: Mapping[str, Any]) -> str:
    """The id of a letter, be the rest of it readable or not."""
    return str(item["id"]["S"]).removeprefix(_LETTER)


def letter_item(letter: Letter) -> Item:
    """A letter; an open one carries its place in the index of open letters."""
    shard = _s(letter_shard_key(letter_shard(letter.letter_id)))
    item = letter_key(letter.letter_id) | {
        "shard": shard,
        "fingerprint": _s(letter.fingerprint),
        "source": _s(letter.source),
        "failure": _s(letter.failure),
        "why": _s(letter.why),
        "place": _s(letter.place),
        "subject": _s(letter.subject_ref),
        "class": _s(letter.letter_class),
        "verdict": _s(letter.verdict),
        "meaning": _s(letter.meaning),
        "status": _s(letter.status),
        "preview": _s(letter.preview),
        "lane": _s(letter.lane),
        "arrivedAt": _n(letter.arrived_at_ms),
        "updatedAt": _n(letter.updated_at_ms),
        "revision": _n(letter.revision),
        "recordParts": _n(letter.record_parts),
        "history": {"L": [action_item(action) for action in letter.history]},
    }
    texts = {
        "messageId": letter.original.message_id,
        "messageGroup": letter.original.group,
        "dedupId": letter.original.dedup_id,
        "agentId": letter.agent_id,
        "idempotencyKey": letter.idempotency_key,
    }
    numbers = {
        "receiveCount": letter.original.receive_count,
        "sentAt": letter.original.sent_at_ms,
        "attempt": letter.attempt,
    }
    item |= {name: _s(text) for name, text in texts.items() if text is not None}
    item |= {name: _n(number) for name, number in numbers.items() if number is not None}
    if letter.due_at_ms is not None:
        item |= {"openShard": shard, "dueAt": _n(letter.due_at_ms)}
    return item


def read_letter(item: Mapping[str, Any]) -> Letter:
    """The letter of an item. Raises KeyError or ValueError where it is none."""
    agent_id, key = _maybe_s(item, "agentId"), _maybe_s(item, "idempotencyKey")
    return Letter(
        letter_id=letter_id_of(item),
        fingerprint=item["fingerprint"]["S"],
        source=Source(item["source"]["S"]),
        failure=Failure(item["failure"]["S"]),
        why=item["why"]["S"],
        place=item["place"]["S"],
        subject_ref=item["subject"]["S"],
        letter_class=LetterClass(item["class"]["S"]),
        verdict=Verdict(item["verdict"]["S"]),
        meaning=item["meaning"]["S"],
        status=LetterStatus(item["status"]["S"]),
        preview=item["preview"]["S"],
        lane=item["lane"]["S"],
        original=Original(
            message_id=_maybe_s(item, "messageId"),
            group=_maybe_s(item, "messageGroup"),
            dedup_id=_maybe_s(item, "dedupId"),
            receive_count=_maybe_n(item, "receiveCount"),
            sent_at_ms=_maybe_n(item, "sentAt"),
        ),
        arrived_at_ms=int(item["arrivedAt"]["N"]),
        updated_at_ms=int(item["updatedAt"]["N"]),
        revision=int(item["revision"]["N"]),
        due_at_ms=_maybe_n(item, "dueAt"),
        agent_id=None if agent_id is None else AgentId(agent_id),
        idempotency_key=None if key is None else IdempotencyKey(key),
        attempt=_maybe_n(item, "attempt"),
        record_parts=int(item["recordParts"]["N"]),
        history=tuple(_read_action(each["M"]) for each in item["history"]["L"]),
    )


def letter_move(before: Letter, after: Letter, purge_at_s: int | None) -> Item:
    """An update of a letter under the condition that nobody has changed it since it was read.

    The members of an UpdateItem or of a transaction's Update, without the table. What happened
    since is added to its history.
    """
    was, becomes = letter_item(before), letter_item(after)
    actions = becomes.pop("history")["L"][len(before.history) :]
    if purge_at_s is not None:
        becomes["purgeAt"] = _n(purge_at_s)
    changed = {name: value for name, value in becomes.items() if was.get(name) != value}
    gone = [name for name in was if name not in becomes and name != "history"]
    sets = [f"#{name} = :{name}" for name in changed]
    names = {f"#{name}": name for name in ("revision", *changed, *gone)}
    values = {f":{name}": value for name, value in changed.items()} | {":seen": was["revision"]}
    if actions:
        sets.append("#history = list_append(#history, :actions)")
        names["#history"] = "history"
        values[":actions"] = {"L": actions}
    update = f"SET {', '.join(sets)}"
    if gone:
        update += f" REMOVE {', '.join(f'#{name}' for name in gone)}"
    return {
        "Key": letter_key(before.letter_id),
        "UpdateExpression": update,
        "ConditionExpression": "#revision = :seen",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def record_purges(letter: Letter, purge_at_s: int) -> list[Item]:
    """Updates that let a letter's record be purged with it."""
    return [
        {
            "Key": record_key(letter.letter_id, part),
            "UpdateExpression": "SET purgeAt = :at",
            "ExpressionAttributeValues": {":at": _n(purge_at_s)},
        }
        for part in range(letter.record_parts)
    ]


def budget_move(subject_ref: str, spent: Budget) -> Item:
    """An update that adds to a subject's budget; its first one makes it."""
    return {
        "Key": subject_key(subject_ref),
        "UpdateExpression": "ADD automatic :automatic, byHand :byHand",
        "ExpressionAttributeValues": {
            ":automatic": _n(spent.automatic),
            ":byHand": _n(spent.by_hand),
        },
    }


def read_budget(item: Mapping[str, Any]) -> Budget:
    """The budget of an item."""
    return Budget(int(item["automatic"]["N"]), int(item["byHand"]["N"]))


def action_item(action: Action) -> Item:
    """A line of a letter's history."""
    members = {"at": _n(action.at_ms), "who": _s(action.who), "what": _s(action.what)}
    return {"M": members | {"why": _s(action.why)}}


def _read_action(members: Mapping[str, Any]) -> Action:
    return Action(
        int(members["at"]["N"]), members["who"]["S"], members["what"]["S"], members["why"]["S"]
    )


def _pending_refund(pending: PendingRefund) -> Item:
    members = {"refundId": _s(pending.refund_id), "note": _s(pending.note)}
    if pending.amount_minor is not None:
        members["amountMinor"] = _n(pending.amount_minor)
    return {"M": members}


def _read_pending_refund(item: Mapping[str, Any]) -> PendingRefund | None:
    if "refundRequest" not in item:
        return None
    members = item["refundRequest"]["M"]
    return PendingRefund(
        members["refundId"]["S"], _maybe_n(members, "amountMinor"), members["note"]["S"]
    )


def _outcome_attributes(outcome: Outcome) -> Item:
    match outcome:
        case Posted(version, balance_after_minor):
            return {
                "outcome": _s("posted"),
                "version": _n(version),
                "balanceAfterMinor": _n(balance_after_minor),
            }
        case Rejected(reason):
            return {"outcome": _s("rejected"), "reason": _s(reason)}
        case _:
            assert_never(outcome)


def _s(value: str) -> Item:
    return {"S": str(value)}


def _n(value: int) -> Item:
    return {"N": str(value)}


def _maybe_s(item: Mapping[str, Any], name: str) -> str | None:
    return str(item[name]["S"]) if name in item else None


def _maybe_n(item: Mapping[str, Any], name: str) -> int | None:
    return int(item[name]["N"]) if name in item else None
