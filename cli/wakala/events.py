"""Events again: derived from the tables, for a relay that was away longer than a stream remembers.

A stream forgets after 24 hours; the tables do not. What they tell is derived by the relay's own
code, so that each event is the one that the relay sent or would have sent, member for member and
with its `eventId`: whoever has heard it before knows it. Nothing goes to a queue.

The window is by what an event tells as `occurredAt`; a request for a refund, which tells none, is
of the moment at which it was sent last. Some events cannot come again, since a table keeps only
what a row is, and not all that it was:

- `TransactionHeld` of a row that is held no more;
- `RefundRequested` of a refund that is decided, and all but the last sending of one that waits;
- `TransactionSynced` and `TransactionFailed` of rows that retention has purged, and
  `TransactionSynced` of a row that was purged, settled again, and then refunded;
- `DeadLetterTriaged` of letters that retention has purged.

All others can: what a transaction was before its refunds is in its entry in the ledger, and what a
letter was before is in its history. Memory is bounded by the events of the window, half a KB each,
since they go out in their order: cut a long window into several.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group

from wakala.options import LOCAL, Flag, Json, On
from wakala.output import Problem, escape, progress, progress_bar, show, table
from wakala.stack import Stack
from wakala.wallets import rfc3339
from wallet_ledger import derive
from wallet_ledger.aws import items
from wallet_ledger.aws.messaging import ENTRIES_MAX, EventBridgeBus
from wallet_ledger.clock import SystemClock
from wallet_ledger.domain.ids import (
    AgentId,
    IdempotencyKey,
    digest,
    is_id,
    is_phone,
    transaction_ref,
)
from wallet_ledger.domain.letters import Letter, LetterStatus, Verdict, status_of
from wallet_ledger.domain.postings import Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Posted
from wallet_ledger.ports import Clock, EventBus, OutgoingEvent

OF_ROWS = frozenset(
    """
    TransactionSynced TransactionFailed TransactionCancelled TransactionExpired TransactionHeld
    RefundRequested RefundCompleted
    """.split()
)
OF_WALLETS = frozenset(
    "WalletCredited WalletCreditRejected WalletStatusChanged WalletStatusRejected".split()
)
OF_ENTRIES = OF_WALLETS | {"RefundCompleted", "RefundRejected"}
OF_LETTERS = frozenset({"DeadLetterTriaged"})
TYPES = OF_ROWS | OF_ENTRIES | OF_LETTERS
"""Events that can be derived again, by the table that tells them."""

ASKED_AGAIN = frozenset({"RefundRequested"})
"""Requests, not news: the sweep puts them on the bus again, so a replay does only if told to."""

RATE_MAX = 1_000
"""Events in a second; a bus takes more, and so may not who listens."""

PAUSES_S = (0.5, 2.0, 8.0)
"""Before what the bus does not take is put again; the adapter has tried thrice by then."""

GETS_MAX = 100
"""Items that one TransactGetItems reads."""

KEY_RESTS_MS = 3_600_000
"""An entry so much older than its row is of an earlier use of the key: a purged row's."""

SHOWN_MAX = 20
"""Rows that a person is shown."""

UNREADABLE_STATUS = 3
"""Exit status where a row was skipped since nobody understands it."""
INTERRUPTED_STATUS = 130

_SETTLED = frozenset(
    {Status.SYNCED, Status.REFUND_REQUESTED, Status.PARTIALLY_REFUNDED, Status.REFUNDED}
)
_MOMENT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([Tt][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?([Zz]|[+-][0-9]{2}:[0-9]{2}))?",
    re.ASCII,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

app = App(name="events", help="Derive events again from the tables.")


@dataclass(frozen=True, slots=True)
class Asked:
    """Which events are wanted: `until_ms` is exclusive, no agent means everybody's."""

    from_ms: int
    until_ms: int
    types: frozenset[str]
    agent_id: str | None

    def wants(self, told: "Told") -> bool:
        """Whether an event is one of them."""
        in_time = self.from_ms <= told.at_ms < self.until_ms
        return in_time and told.event.detail_type in self.types


@dataclass(frozen=True, slots=True)
class Told:
    """An event and when it occurred; `version` orders what a wallet's entries tell at once."""

    at_ms: int
    version: int
    event: OutgoingEvent


@dataclass(slots=True)
class Reading:
    """How reading goes: rows read so far, and those that nobody understands, by reference."""

    on_page: Callable[[int], None]
    rows: int = 0
    unreadable: list[str] = field(default_factory=list)

    def page(self, rows: int) -> None:
        """Note a page of so many rows."""
        self.rows += rows
        self.on_page(self.rows)


@dataclass(slots=True)
class Tally:
    """What there is to tell: how many events of each type, the first moment and the last."""

    counts: Counter[str] = field(default_factory=Counter)
    first_ms: int | None = None
    last_ms: int | None = None

    def count(self, told: Told) -> None:
        """Count an event."""
        self.counts[told.event.detail_type] += 1
        self.first_ms = told.at_ms if self.first_ms is None else min(self.first_ms, told.at_ms)
        self.last_ms = told.at_ms if self.last_ms is None else max(self.last_ms, told.at_ms)


@app.command
def replay(
    *,
    from_: Annotated[str, Parameter(name="--from")],
    to: str,
    agent: str | None = None,
    type: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())] = (),
    dry_run: Annotated[Flag, Parameter(help="Count the events, and put none.")] = False,
    rate: int = 50,
    on: On = LOCAL,
    json: Json = False,
) -> None:
    """Put the events of a time on the bus again, in their order, as the relay would have.

    For a relay that was away longer than its streams remember, a day. Each event has the eventId
    that it always had, so that twice is harmless to whoever listens; a request for a refund that
    still waits is heard again too, and counts once. Stopped, it says from where to go on.

    It reads whole tables, or with --agent that agent's rows and the ledger. What cannot come again:
    TransactionHeld of what is held no more, RefundRequested of what is decided, and events of rows
    and letters that retention has purged. Exit status 3 where rows were skipped that nobody
    understands.

    For example:

        wakala events replay --from 2026-11-02 --to 2026-11-04 --dry-run
        wakala events replay --from 2026-11-02T21:00:00+03:00 --to 2026-11-03T09:30:00+03:00
        wakala events replay --from 2026-11-02 --to 2026-11-03 --agent AG-001 --rate 200
        wakala events replay --from 2026-11-02 --to 2026-11-03 --type WalletCredited RefundCompleted

    Parameters
    ----------
    from_
        When the first one occurred: RFC 3339 with offset, or a date, which begins in UTC.
    to
        Before when the last one occurred; not in the future.
    agent
        Only what concerns this agent: no wallet's credits or status.
    type
        Only events of this type; several may be named.
    rate
        Events per second, at most 1000.
    """
    clock = SystemClock()
    asked = _asked(from_, to, agent, type, clock.now_ms())
    if not 1 <= rate <= RATE_MAX:
        raise Problem(f"--rate {rate}: 1 to {RATE_MAX} events per second")
    stack = on.open()
    tally, told = Tally(), []
    with progress.status("Reading") as status:
        reading = Reading(lambda rows: status.update(f"Reading: {rows:,} rows"))
        for each in derived(stack, asked, reading):
            tally.count(each)
            if not dry_run:
                told.append(each)
    told.sort(key=lambda each: (each.at_ms, each.version))
    bus = EventBridgeBus(stack.events, name=stack.output("EventBusName"), clock=clock)
    put(bus, told, rate, clock)
    view = _view(asked, tally, reading.unreadable, dry_run=dry_run)
    show(json, view, lambda: _render(tally, dry_run=dry_run))
    _tell_unreadable(reading.unreadable)
    if reading.unreadable:
        raise SystemExit(UNREADABLE_STATUS)


# --- what is derived, pure ------------------------------------------------------------------


def of_row(row: OfflineTransaction, settled_at_ms: int | None) -> list[Told]:
    """What a row tells by what it is now, and as it was when it was settled (None: not to be told).

    Raises ValueError where it says of itself what cannot be.
    """
    told: list[Told] = []
    if row.status in _SETTLED and settled_at_ms is not None:
        settled = replace(row, status=Status.SYNCED, updated_at_ms=settled_at_ms)
        told += _events(derive.from_row(None, settled), settled_at_ms)
    match row.status:
        case Status.QUEUED | Status.SYNCED:
            return told  # a queued one is a message, which the sweep sends again
        case Status.REFUND_REQUESTED:
            at_ms = row.queued_at_ms or row.updated_at_ms
        case _:
            at_ms = row.updated_at_ms
    return told + _events(derive.from_row(None, row), at_ms)


def of_entry(entry: Entry) -> list[Told]:
    """What an entry tells; one of a debit nothing, its row does."""
    version = entry.outcome.version if isinstance(entry.outcome, Posted) else 0
    return _events(derive.from_entry(entry), entry.created_at_ms, version)


def of_letter(letter: Letter) -> list[Told]:
    """What a letter told when it was filed, and at each change of its status since."""
    told: list[Told] = []
    before = None
    for state in _states(letter):
        told += _events(derive.from_letter(before, state), state.updated_at_ms)
        before = state
    return told


def needs_entry(row: OfflineTransaction) -> bool:
    """Whether only the ledger knows when a row was settled.

    Asking for a refund raises the attempt, so a synced row of the first attempt has been left
    alone since.
    """
    return row.status in _SETTLED and (row.status is not Status.SYNCED or row.attempt > 1)


def settled_at_ms(row: OfflineTransaction, debit: Entry | None) -> int | None:
    """When a settled row was settled; None where nobody can say, since retention purged it once.

    Raises ValueError where the ledger has no posted debit of it.
    """
    if not needs_entry(row):
        return row.updated_at_ms
    if debit is None or not isinstance(debit.outcome, Posted):
        raise ValueError("settled, and the ledger has no posted debit")
    if debit.fingerprint != row.fingerprint:
        raise ValueError("settled, and the ledger's debit is another one")
    earlier = debit.created_at_ms < row.created_at_ms - KEY_RESTS_MS
    return None if earlier else debit.created_at_ms


def _states(letter: Letter) -> Iterator[Letter]:
    """A letter as it was filed, and after each action that its history names by a status.

    Only what waits for its automatic redrive is ever parked later: its verdict was that.
    """
    parked = any(action.what == LetterStatus.PARKED for action in letter.history)
    verdict = Verdict.AUTO_REDRIVE if parked else letter.verdict
    filed = replace(letter, verdict=verdict, status=status_of(verdict), revision=1)
    state = replace(filed, updated_at_ms=letter.arrived_at_ms)
    yield state
    for revision, action in enumerate(letter.history, start=2):
        if action.what in tuple(LetterStatus):
            status = LetterStatus(action.what)
            verdict = Verdict.PARKED if status is LetterStatus.PARKED else verdict
            state = replace(letter, verdict=verdict, status=status, revision=revision)
            state = replace(state, updated_at_ms=action.at_ms)
            yield state
    if (state.status, state.verdict) != (letter.status, letter.verdict):
        raise ValueError("its history does not lead to where it is")


def _events(sent: Sequence[derive.Outgoing], at_ms: int, version: int = 0) -> list[Told]:
    """The events among what is derived: a message is for the relay alone to send."""
    return [
        Told(at_ms, version, each.content)
        for each in sent
        if isinstance(each.content, OutgoingEvent)
    ]


# --- reading --------------------------------------------------------------------------------

type Item = Mapping[str, Any]

ROWS_FILTER = (
    "(createdAt < :until AND (updatedAt >= :from OR queuedAt >= :from))"
    " OR NOT attribute_type(createdAt, :number) OR NOT attribute_type(updatedAt, :number)"
)
ENTRIES_FILTER = (
    "(begins_with(txId, :credit) OR begins_with(txId, :status) OR begins_with(txId, :refund))"
    " AND ((createdAt >= :from AND createdAt < :until) OR NOT attribute_type(createdAt, :number))"
)
LETTERS_FILTER = (
    "begins_with(id, :letter) AND ((arrivedAt < :until AND updatedAt >= :from)"
    " OR NOT attribute_type(arrivedAt, :number) OR NOT attribute_type(updatedAt, :number))"
)
"""What is not of the time stays there; what tells no time comes along, or nobody would notice."""


def derived(stack: Stack, asked: Asked, reading: Reading) -> Iterator[Told]:
    """Every wanted event that the tables tell, in no order. What is not understood is noted."""
    sources = ((OF_ROWS, _of_rows), (OF_ENTRIES, _of_entries), (OF_LETTERS, _of_letters))
    for types, source in sources:
        if asked.types & types:
            yield from filter(asked.wants, source(stack, asked, reading))


def _of_rows(stack: Stack, asked: Asked, reading: Reading) -> Iterator[Told]:
    settled = "TransactionSynced" in asked.types
    for page in _pages(stack, asked, reading, "OfflineTxTable", ROWS_FILTER):
        rows = list(_understood(page, _row, _row_item_ref, reading))
        debits = _debits(stack, [row for row in rows if settled and needs_entry(row)])

        def tell(row: OfflineTransaction, debits: Mapping[str, Item] = debits) -> list[Told]:
            item = debits.get(_row_ref(row))
            debit = items.read_entry(item) if item else None
            return of_row(row, settled_at_ms(row, debit) if settled else None)

        for told in _understood(rows, tell, _row_ref, reading):
            yield from told


def _of_entries(stack: Stack, asked: Asked, reading: Reading) -> Iterator[Told]:
    kinds = ("credit", "status", "refund")
    for page in _pages(stack, asked, reading, "WalletLedgerTable", ENTRIES_FILTER, kinds):
        for told in _understood(page, _tell_entry, _entry_item_ref, reading):
            yield from told


def _of_letters(stack: Stack, asked: Asked, reading: Reading) -> Iterator[Told]:
    for page in _pages(stack, asked, reading, "DeadLettersTable", LETTERS_FILTER, ("letter",)):
        for told in _understood(page, _tell_letter, _letter_item_ref, reading):
            yield from told


def _pages(
    stack: Stack,
    asked: Asked,
    reading: Reading,
    output: str,
    condition: str,
    prefixes: Sequence[str] = (),
) -> Iterator[Sequence[Item]]:
    """What a table holds of the time, by pages, as of now."""
    values = {":from": {"N": str(asked.from_ms)}, ":until": {"N": str(asked.until_ms)}}
    values |= {":number": {"S": "N"}} | {f":{each}": {"S": f"{each}#"} for each in prefixes}
    call: dict[str, Any] = {"TableName": stack.output(output), "ConsistentRead": True}
    operation = "scan"
    if asked.agent_id is not None:
        values[":agent"] = {"S": asked.agent_id}
        if output == "OfflineTxTable":
            operation = "query"
            call["KeyConditionExpression"] = "agentId = :agent"
        else:
            condition = f"({condition}) AND agentId = :agent"
    call |= {"FilterExpression": condition, "ExpressionAttributeValues": values}
    paginator: Any = stack.dynamodb.get_paginator(operation)  # type: ignore[call-overload]
    for page in paginator.paginate(**call):
        reading.page(page["ScannedCount"])
        yield page["Items"]


def _understood[Thing, Answer](
    things: Iterable[Thing],
    understand: Callable[[Thing], Answer],
    ref: Callable[[Thing], str],
    reading: Reading,
) -> Iterator[Answer]:
    for thing in things:
        try:
            answer = understand(thing)
        except (LookupError, ValueError, TypeError, AttributeError):
            reading.unreadable.append(ref(thing))
        else:
            yield answer


def _debits(stack: Stack, rows: Sequence[OfflineTransaction]) -> dict[str, Item]:
    """The ledger's entries of the rows' debits, by the rows' references."""
    ledger = stack.output("WalletLedgerTable")
    found: dict[str, Item] = {}
    for chunk in batched(rows, GETS_MAX, strict=False):
        gets: list[Any] = [{"TableName": ledger, "Key": _debit_key(row)} for row in chunk]
        try:
            answer = stack.dynamodb.transact_get_items(TransactItems=[{"Get": get} for get in gets])
            answers: Sequence[Any] = answer["Responses"]
        except stack.dynamodb.exceptions.TransactionCanceledException:
            # A message that came again is trying to write one of them at this moment.
            answers = [stack.dynamodb.get_item(ConsistentRead=True, **get) for get in gets]
        pairs = zip(chunk, answers, strict=True)
        found |= {_row_ref(row): each["Item"] for row, each in pairs if "Item" in each}
    return found


def _debit_key(row: OfflineTransaction) -> dict[str, Any]:
    entry_id = items.debit_entry_id(row.agent_id, row.idempotency_key)
    return items.ledger_key(row.phone, entry_id)


def _row(item: Item) -> OfflineTransaction:
    row = items.read_offline_tx(item)
    if not (is_phone(row.phone) and is_id(row.agent_id) and is_id(row.idempotency_key)):
        raise ValueError("no row that we wrote")
    return row


def _tell_entry(item: Item) -> list[Told]:
    is_entry = items.entry_kind(item["txId"]["S"]) is not None  # else a balance, or a total
    return of_entry(items.read_entry(item)) if is_entry else []


def _tell_letter(item: Item) -> list[Told]:
    return of_letter(items.read_letter(item)) if items.is_letter(item) else []


# A person is shown no phone, so a row is named as logs and letters name it.


def _row_ref(row: OfflineTransaction) -> str:
    return f"OfflineTx {transaction_ref(row.agent_id, row.idempotency_key)}"


def _row_item_ref(item: Item) -> str:
    agent_id, key = AgentId(_id(item, "agentId")), IdempotencyKey(_id(item, "idempotencyKey"))
    return f"OfflineTx {transaction_ref(agent_id, key)}"


def _entry_item_ref(item: Item) -> str:
    return f"WalletLedger {digest('ref', _id(item, 'phone'), _id(item, 'txId'))[:16]}"


def _letter_item_ref(item: Item) -> str:
    return f"DeadLetters {_id(item, 'id')}"


def _id(item: Item, name: str) -> str:
    return str(item[name]["S"])


# --- putting --------------------------------------------------------------------------------


def put(bus: EventBus, told: Sequence[Told], rate: int, clock: Clock) -> None:
    """Put events on the bus in their order, at most `rate` a second.

    Problem where the bus does not take one. Whatever stops it, a person is told where it stopped,
    and who interrupts it is told nothing else: the same command would begin at the beginning.
    """
    done = 0
    try:
        with progress_bar("putting", len(told)) as advance:
            for batch in batched(told, min(rate, ENTRIES_MAX), strict=False):
                began_ms = clock.now_ms()
                _put_batch(bus, [each.event for each in batch], clock)
                done += len(batch)
                advance(len(batch))
                rest_s = len(batch) / rate - (clock.now_ms() - began_ms) / 1000
                if done < len(told) and rest_s > 0:
                    clock.pause(rest_s)
    except (KeyboardInterrupt, Exception) as error:
        if done < len(told):  # what is of the next one's moment goes out again, and counts once
            next_one = f"--from {rfc3339(told[done].at_ms)} goes on from there"
            progress.print(f"{done:,} of {len(told):,} events were put: {next_one}", soft_wrap=True)
            if isinstance(error, KeyboardInterrupt):
                raise SystemExit(INTERRUPTED_STATUS) from None
        raise


def _put_batch(bus: EventBus, left: Sequence[OutgoingEvent], clock: Clock) -> None:
    for pause_s in (*PAUSES_S, None):
        refused = bus.put(left)
        if not refused:
            return
        left = [left[index] for index in sorted(refused)]
        if pause_s is not None:
            clock.pause(pause_s)
    raise Problem(f"the bus does not take a {left[0].detail_type}: try again later")


# --- asking and telling ---------------------------------------------------------------------


def _asked(from_: str, to: str, agent: str | None, types: Sequence[str], now_ms: int) -> Asked:
    from_ms, until_ms = _moment_ms("--from", from_), _moment_ms("--to", to)
    if until_ms <= from_ms:
        raise Problem(f"--to {to} is not after --from {from_}: nothing is between them")
    if until_ms > now_ms:
        raise Problem(f"--to {to} is in the future: it is {rfc3339(now_ms)} now")
    unknown = sorted(set(types) - TYPES)
    if unknown:
        raise Problem(f"--type {unknown[0]}: one of {', '.join(sorted(TYPES))}")
    if agent is not None and not is_id(agent):
        raise Problem(f"--agent {agent!r}: 1 to 64 of A-Z a-z 0-9 . _ : -")
    nobodys = sorted(OF_WALLETS.intersection(types)) if agent is not None else []
    if nobodys:
        raise Problem(f"--type {nobodys[0]} is of a wallet and no agent's: leave --agent out")
    return Asked(from_ms, until_ms, frozenset(types) or TYPES - ASKED_AGAIN, agent)


def _moment_ms(option: str, text: str) -> int:
    """The first millisecond that is not before a moment."""
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        raise Problem(
            f"{option} {text!r} is no moment: give RFC 3339 with an offset"
            " (2026-11-02T21:00:00+03:00), or a date in UTC (2026-11-02)"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return -((_EPOCH - moment) // timedelta(milliseconds=1))


def _view(
    asked: Asked, tally: Tally, unreadable: Sequence[str], *, dry_run: bool
) -> dict[str, Any]:
    """What scripts get."""
    return {
        "dryRun": dry_run,
        "from": rfc3339(asked.from_ms),
        "to": rfc3339(asked.until_ms),
        "events": dict(sorted(tally.counts.items())),
        "total": tally.counts.total(),
        "first": None if tally.first_ms is None else rfc3339(tally.first_ms),
        "last": None if tally.last_ms is None else rfc3339(tally.last_ms),
        "unreadable": list(unreadable),
    }


def _render(tally: Tally, *, dry_run: bool) -> object:
    """What a person gets."""
    if tally.first_ms is None or tally.last_ms is None:
        return "There is no such event."
    made = table("event", "count", right=frozenset({"count"}))
    for detail_type, number in sorted(tally.counts.items()):
        made.add_row(detail_type, f"{number:,}")
    done = "would be put" if dry_run else "were put"
    moments = f"the first of {rfc3339(tally.first_ms)}, the last of {rfc3339(tally.last_ms)}"
    return Group(made, f"{tally.counts.total():,} events {done}:", moments)


def _tell_unreadable(refs: Sequence[str]) -> None:
    if not refs:
        return
    progress.print(f"[red]{len(refs):,} rows were skipped: nobody understands them[/]")
    for ref in refs[:SHOWN_MAX]:
        progress.print(f"  {escape(ref)}")
    if len(refs) > SHOWN_MAX:
        progress.print(f"  … and {len(refs) - SHOWN_MAX:,} more (--json has them all)")
