"""Refunds: asked for as an agent's app does or as a back office does, foreseen, and waited for."""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from wakala import wallets
from wakala.output import Problem
from wakala.stack import Stack
from wakala.transactions import AgentApi, Answer, Document
from wallet_ledger.aws.refunds import DynamoRefundBooks
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions
from wallet_ledger.domain.ids import AgentId, IdempotencyKey
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.refunds import (
    Answered,
    Cancel,
    Post,
    Refund,
    Reject,
    Seen,
    Wait,
    decide_refund,
)
from wallet_ledger.domain.transactions import Reason, Status
from wallet_ledger.domain.wallets import Rejected
from wallet_ledger.errors import Unavailable

REQUESTED = "RefundRequested"
WAIT_SECONDS = 60.0
"""Longer than refund waits for an original that it cannot see: half a minute."""
LOOKS_MAX = 10
"""Looks at rows that are being written this moment, before a person is told."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for the bus beside the refund that the stack will make of it."""

    detail: Mapping[str, str | int]
    refund: Refund


@dataclass(frozen=True, slots=True)
class Told:
    """What has become of a refund: `outcome` is posted, rejected or cancelled.

    `amount_minor` is what went back, or was asked for; `remaining_minor` what may still be
    refunded of the debit, None where that is nobody's to say. `new`: decided since it was asked.
    """

    refund: Refund
    outcome: str
    reason: str | None
    amount_minor: int | None
    remaining_minor: int | None
    currency: str | None
    balance_after_minor: int | None
    new: bool

    def view(self) -> Document:
        """What scripts get; amounts in minor units."""
        return {
            **_named(self.refund),
            "outcome": self.outcome,
            "reason": self.reason,
            "amount": self.amount_minor,
            "currency": self.currency,
            "remaining": self.remaining_minor,
            "balance": self.balance_after_minor,
            "new": self.new,
        }

    def words(self) -> str:
        """One line for a person."""
        before = "" if self.new else " before"
        name = f"{self.refund.refund_id} of {self.refund.idempotency_key}"
        left = _left(self.remaining_minor)
        match self.outcome:
            case "posted":
                amount = f"{self.amount_minor or 0:,} {self.currency}"
                return (
                    f"refunded{before}: {amount} to +{self.refund.phone} ({name}){left};"
                    f" the balance was {self.balance_after_minor or 0:,} then"
                )
            case "cancelled":
                return f"cancelled{before}: it was not settled, and no money moved ({name})"
            case _:
                return f"{self.reason}: refused{before}, for good under this id ({name}){left}"


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What would happen to a refund now; nothing was written.

    `would` is refund, cancel, wait, reject or nothing. `remaining_minor` is what may be refunded
    of the debit afterwards, None where there is nothing to say.
    """

    refund: Refund
    would: str
    words: str
    reason: str | None = None
    amount_minor: int | None = None
    remaining_minor: int | None = None
    balance_after_minor: int | None = None

    def view(self) -> Document:
        """What scripts get; amounts in minor units."""
        return {
            "dryRun": True,
            **_named(self.refund),
            "would": self.would,
            "reason": self.reason,
            "amount": self.amount_minor,
            "remaining": self.remaining_minor,
            "balance": self.balance_after_minor,
            "words": self.words,
        }


# --- over the bus ---------------------------------------------------------------------------


def ask(stack: Stack, members: Mapping[str, str | int]) -> Asked:
    """A request of the back office. Problem where the stack would not read it."""
    refund = wallets.understood(stack, REQUESTED, members)
    if not isinstance(refund, Refund):
        raise TypeError(f"{REQUESTED} asks for no refund")
    return Asked(members, refund)


def settle(stack: Stack, asked: Sequence[Asked], seconds: float = WAIT_SECONDS) -> list[Told]:
    """Put the requests on the bus, wait until each is decided, and tell in their order.

    What was decided before is not sent. Problem where time runs out: the same call again then
    finds what has become of it meanwhile, and refunds nothing twice.
    """
    told = {n: told for n, each in enumerate(asked) if (told := _told(stack, each, new=False))}
    wallets.put(stack, [(REQUESTED, each.detail) for n, each in enumerate(asked) if n not in told])
    deadline = time.monotonic() + seconds
    while len(told) < len(asked):
        if time.monotonic() > deadline:
            missing = next(each for n, each in enumerate(asked) if n not in told)
            raise Problem(_unanswered(stack, missing, seconds))
        time.sleep(wallets.POLL_SECONDS)
        for n, each in enumerate(asked):
            if n not in told and (found := _told(stack, each, new=True)):
                told[n] = found
    return [told[n] for n in range(len(asked))]


def put_events_command(stack: Stack, asked: Asked, profile: str | None) -> str:
    """The `aws` command that puts the same request on the bus, for a shell."""
    words = ["aws", "events", "put-events", "--region", stack.region]
    if stack.endpoint_url is not None:
        words += ["--endpoint-url", stack.endpoint_url]
    if profile is not None:
        words += ["--profile", profile]
    entries = wallets.bus_entries(stack, [(REQUESTED, asked.detail)])
    return shlex.join([*words, "--entries", json.dumps(entries)])


def foresee(stack: Stack, refund: Refund, now_ms: int) -> Foreseen:
    """What a request on the bus would come to now."""
    return _foreseen(refund, _look(stack, refund), now_ms)


# --- over HTTP ------------------------------------------------------------------------------


def ask_api(api: AgentApi, wanted: Document, seconds: float = WAIT_SECONDS) -> Answer:
    """Ask as the agent's app does, and again until the answer is no longer that it is under way.

    The same request again is a replay, and tells what has become of the first. Problem where it
    does not end in time.
    """
    deadline = time.monotonic() + seconds
    answer = api.refund(wanted)
    while answer.body.get("status") == Status.REFUND_REQUESTED:
        if time.monotonic() > deadline:
            raise Problem(
                f"the refund of {wanted['idempotencyKey']} is under way for {seconds:.0f} s now:"
                " look at `wakala info`, then repeat the command, it cannot count twice"
            )
        time.sleep(wallets.POLL_SECONDS)
        answer = api.refund(wanted)
    return answer


def foresee_over_http(stack: Stack, wanted: Document, now_ms: int) -> Foreseen:
    """What the API would answer now. Problem for a transaction that the agent does not have."""
    agent_id, key = wanted["agentId"], wanted["idempotencyKey"]
    table = DynamoAcceptedTransactions(stack.dynamodb, table=stack.output("OfflineTxTable"))
    row = table.find(AgentId(agent_id), IdempotencyKey(key))
    if row is None:
        raise Problem(f"NOT_FOUND: {agent_id} has no transaction {key}")
    refund = ask(stack, {**wanted, "phone": f"+{row.phone}"}).refund
    seen = _look(stack, refund)
    pending = seen.row.refund_request if seen.row else None
    if seen.refund is None and pending is not None:
        return _while_pending(refund, pending.refund_id, pending.amount_minor)
    foreseen = _foreseen(refund, seen, now_ms)
    if foreseen.would != "wait":
        return foreseen
    words = "reject: NOT_REFUNDABLE, for now: cancel it in full, or wait until it is settled"
    return Foreseen(refund, "reject", words, reason="NOT_REFUNDABLE")


def why(answer: Answer) -> str:
    """Why a refund was refused, in one line."""
    key, agent_id = answer.sent["idempotencyKey"], answer.sent["agentId"]
    if answer.status == 404:
        return f"NOT_FOUND: {agent_id} has no transaction {key}"
    errors = answer.body.get("errors", [])
    fields = ", ".join(f"{e['field']}: {e['message']}" for e in errors)
    said = f"{answer.body.get('code', answer.status)}: {answer.body.get('detail', '')}"
    hint = "; ask again in a moment" if answer.retryable else ""
    return f"{said}{f' ({fields})' if fields else ''}{hint}"


# --- what was seen --------------------------------------------------------------------------


def _told(stack: Stack, asked: Asked, *, new: bool) -> Told | None:
    """What has become of a refund, None while it is still to be decided."""
    try:
        seen = _see(stack, asked.refund)
    except Unavailable:  # somebody writes there this moment
        return None
    match decide_refund(asked.refund, seen, 0, patient=True):
        case Answered(_, None):
            return _answered(asked.refund, seen, new=new)
        case Cancel(None):
            original = seen.row
            amount = original.amount_minor if original else None
            currency = original.currency if original else None
            return Told(asked.refund, "cancelled", None, amount, 0, currency, None, new)
        case Answered() | Cancel() | Post() | Reject() | Wait():
            return None


def _answered(refund: Refund, seen: Seen, *, new: bool) -> Told:
    entry = _entry(refund, seen)
    if isinstance(entry.outcome, Rejected):
        return Told(
            refund,
            "rejected",
            entry.outcome.reason,
            refund.amount_minor,
            entry.remaining_minor,
            entry.currency,
            None,
            new,
        )
    return Told(
        refund,
        "posted",
        None,
        entry.amount_minor,
        _remaining(seen),
        entry.currency,
        entry.outcome.balance_after_minor,
        new,
    )


def _foreseen(refund: Refund, seen: Seen, now_ms: int) -> Foreseen:
    match decide_refund(refund, seen, now_ms, patient=False):
        case Answered():
            told = _answered(refund, seen, new=False)
            words = f"nothing: {told.words()}"
            return Foreseen(
                refund, "nothing", words, told.reason, told.amount_minor, told.remaining_minor
            )
        case Cancel(row) if row is not None:
            words = "cancel: it is not settled, and would never be; no money would move"
            return Foreseen(refund, "cancel", words, None, row.amount_minor, 0)
        case Cancel():
            words = "nothing: it was cancelled before by this refund, and no money moved"
            return Foreseen(refund, "nothing", words, remaining_minor=0)
        case Wait():
            words = "wait: it is not settled yet, and a part can be refunded only then"
            return Foreseen(refund, "wait", words)
        case Reject(reason, remaining):
            late = " after half a minute" if reason is Reason.ORIGINAL_NOT_FOUND else ""
            words = f"reject{late}: {reason}{_left(remaining)}"
            return Foreseen(refund, "reject", words, reason, refund.amount_minor, remaining)
        case Post() as post:
            return _would_refund(refund, post, _remaining(seen))
        case never:
            assert_never(never)


def _would_refund(refund: Refund, post: Post, remaining_minor: int | None) -> Foreseen:
    left = (remaining_minor or 0) - post.amount_minor
    after = post.wallet_after.balance_minor
    words = (
        f"refund: {post.amount_minor:,} {post.currency}{_left(left)};"
        f" the balance would be {after:,}"
    )
    return Foreseen(refund, "refund", words, None, post.amount_minor, left, after)


def _while_pending(refund: Refund, pending_id: str, pending_minor: int | None) -> Foreseen:
    if pending_id != refund.refund_id:
        words = "reject: REFUND_IN_PROGRESS, another refund of it is under way"
        return Foreseen(refund, "reject", words, reason="REFUND_IN_PROGRESS")
    if pending_minor != refund.amount_minor:
        words = f"reject: KEY_REUSED, {pending_id} is under way for another amount"
        return Foreseen(refund, "reject", words, reason=Reason.KEY_REUSED)
    return Foreseen(refund, "nothing", "nothing: this refund is under way already")


def _unanswered(stack: Stack, asked: Asked, seconds: float) -> str:
    now = _foreseen(asked.refund, _look(stack, asked.refund), 0)
    name = f"{asked.refund.refund_id} of {asked.refund.idempotency_key}"
    return (
        f"no answer in {seconds:.0f} s to the refund {name} ({now.words}): look at `wakala info`,"
        " then repeat the command, it cannot count twice"
    )


def _look(stack: Stack, refund: Refund) -> Seen:
    for _ in range(LOOKS_MAX):
        try:
            return _see(stack, refund)
        except Unavailable:
            time.sleep(wallets.POLL_SECONDS)
    raise Problem("the tables do not answer: try again in a moment")


def _see(stack: Stack, refund: Refund) -> Seen:
    """Everything that counts, as of one moment. UnreadableWallet where the wallet is odd."""
    books = DynamoRefundBooks(
        stack.dynamodb,
        ledger_table=stack.output("WalletLedgerTable"),
        offline_tx_table=stack.output("OfflineTxTable"),
        retention_days=0,  # of no account: nothing is written here
    )
    try:
        return books.see(refund)
    except (KeyError, ValueError):
        wallets.find(stack, refund.phone)  # says it where it is the balance item
        raise


def _entry(refund: Refund, seen: Seen) -> Entry:
    entry = seen.reused or seen.refund
    if entry is None:
        raise ValueError(f"{refund.refund_id} is answered by no entry")
    return entry


def _remaining(seen: Seen) -> int | None:
    original = seen.row or seen.debit
    return None if original is None else original.amount_minor - seen.refunded_minor


def _left(remaining_minor: int | None) -> str:
    return "" if remaining_minor is None else f"; {remaining_minor:,} may still be refunded"


def _named(refund: Refund) -> dict[str, Any]:
    return {
        "agentId": refund.agent_id,
        "idempotencyKey": refund.idempotency_key,
        "refundId": refund.refund_id,
    }
