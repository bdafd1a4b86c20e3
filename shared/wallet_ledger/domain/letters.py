"""Dead letters: how a message failed, what the tables say of it now, and what is to be done."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import assert_never

from wallet_ledger.domain.ids import AgentId, IdempotencyKey, Phone, digest
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import OfflineTransaction, Reason, Status, next_sweep_ms
from wallet_ledger.domain.wallets import Credit, Debit, StatusChange, movement_id

AUTOMATIC_AFTER_MS = (60_000, 300_000, 900_000)
"""How long the 1st, 2nd, 3rd automatic redrive of one subject waits; then a person decides."""

BY_HAND_MAX = 5
"""Redrives by people of one subject, but for those who force one and say why."""

LOOK_AGAIN_MS = (3_600_000, 86_400_000)
"""How soon a parked letter is held against the ledger again: on its first day, and later."""

REDRIVEN_OPEN_MS = 86_400_000
"""What a redriven debit has at least to be settled, however long it was held, before it expires."""

LETTER_SHARDS = 16
"""Partitions of the indexes of letters: a bad hour writes more than one of them takes."""


class Source(StrEnum):
    """Who did not take it. The first three can be sent to again."""

    TX_QUEUE = "TxQueue"
    REFUND_QUEUE = "RefundQueue"
    INBOX = "Inbox"
    FAILED_TX_QUEUE = "FailedTxQueue"
    STREAM = "Stream"
    SCHEDULE = "Schedule"
    UNKNOWN = "Unknown"

    @property
    def takes_again(self) -> bool:
        """Whether a letter from here can be redriven at all."""
        return self in (Source.TX_QUEUE, Source.REFUND_QUEUE, Source.INBOX)


class Failure(StrEnum):
    """How a message came to be a dead letter."""

    REFUSED = "refused"
    """The business said no: the row and the ledger have it."""
    UNFINISHED = "unfinished"
    """Its consumer ran and could not finish, for passing causes, until its last receive."""
    VIOLATED = "violated"
    """Its consumer ran and met what cannot be, or raised, until its last receive."""
    UNEXPLAINED = "unexplained"
    """Its queue gave it up: its consumer had no instance, crashed, or could not even start."""
    UNDELIVERED = "undelivered"
    """EventBridge could not deliver it to its queue."""
    UNREADABLE = "unreadable"
    """Its consumer could not read it."""
    LOST_RECORDS = "lost_records"
    """Lambda gave up on stream records: it names their place in the stream, not what they say."""
    FAILED_RUN = "failed_run"
    """A scheduled run raised or timed out."""
    MISSED_RUN = "missed_run"
    """A scheduled run could not be started."""
    UNRECOGNISED = "unrecognised"
    """Nothing that we or AWS send to a dead-letter queue."""


class Standing(StrEnum):
    """What the tables say of a letter's subject."""

    OPEN = "open"
    """Nothing is decided; of what no table knows yet, too."""
    DECIDED = "decided"
    """It has its outcome: in the ledger, or by a row that is closed."""
    NEWER_ATTEMPT = "newer_attempt"
    """Its row is queued, and has been sent again since."""
    HELD = "held"
    """Its row is held already, by another letter."""
    NO_ROW = "no_row"
    """A debit that no row asks for."""
    UNFREEZES = "unfreezes"
    """Nothing is decided, and it would unfreeze a wallet: which may have been frozen since."""
    UNREADABLE = "unreadable"
    """The tables hold something about it that no code of ours has written."""


class LetterClass(StrEnum):
    """What kind of trouble it is."""

    BUSINESS = "BUSINESS"
    TRANSIENT = "TRANSIENT"
    NEVER_RAN = "NEVER_RAN"
    POISON = "POISON"
    BUG = "BUG"
    STALE = "STALE"


class Verdict(StrEnum):
    """What is to be done."""

    INFORMATIONAL = "informational"
    AUTO_REDRIVE = "auto_redrive"
    PARKED = "parked"
    CLOSED = "closed"


class LetterStatus(StrEnum):
    """Where a letter is. The first two are open: something is still to be done."""

    WAITING = "waiting"
    """For its automatic redrive."""
    PARKED = "parked"
    """For a person."""
    REDRIVEN = "redriven"
    DISCARDED = "discarded"
    CLOSED = "closed"
    NOTED = "noted"

    @property
    def is_open(self) -> bool:
        """Whether something is still to be done."""
        return self in (LetterStatus.WAITING, LetterStatus.PARKED)


type Subject = Debit | Credit | StatusChange | Refund
"""What a letter speaks of, where it can be read."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a letter is, what to do, and in words for a person, why."""

    letter_class: LetterClass
    verdict: Verdict
    meaning: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of the table of diagnoses; no standing: whatever the tables say."""

    failures: tuple[Failure, ...]
    standings: tuple[Standing, ...]
    diagnosis: Diagnosis


_BUSINESS, _TRANSIENT, _NEVER_RAN = (
    LetterClass.BUSINESS,
    LetterClass.TRANSIENT,
    LetterClass.NEVER_RAN,
)
_POISON, _BUG, _STALE = LetterClass.POISON, LetterClass.BUG, LetterClass.STALE
_INFORMATIONAL, _AUTO = Verdict.INFORMATIONAL, Verdict.AUTO_REDRIVE
_PARKED, _CLOSED = Verdict.PARKED, Verdict.CLOSED

_RAN_OUT = (Failure.UNEXPLAINED, Failure.UNDELIVERED)
_COULD_COME_AGAIN = (Failure.UNFINISHED, Failure.VIOLATED, *_RAN_OUT)

DIAGNOSES = (
    Rule(
        (Failure.REFUSED,),
        (),
        Diagnosis(_BUSINESS, _INFORMATIONAL, "the request was refused, and a refusal is final"),
    ),
    Rule(
        (Failure.UNREADABLE, Failure.UNRECOGNISED),
        (),
        Diagnosis(_POISON, _PARKED, "nobody can read it: look at its body, mend or discard it"),
    ),
    Rule(
        (Failure.LOST_RECORDS,),
        (),
        Diagnosis(_STALE, _PARKED, "replay the events of its time, then discard it"),
    ),
    Rule(
        (Failure.FAILED_RUN,),
        (),
        Diagnosis(_BUG, _INFORMATIONAL, "a scheduled run failed; the next one makes it good"),
    ),
    Rule(
        (Failure.MISSED_RUN,),
        (),
        Diagnosis(_NEVER_RAN, _INFORMATIONAL, "a run was not started; the next one makes it good"),
    ),
    Rule(
        _COULD_COME_AGAIN,
        (Standing.NEWER_ATTEMPT, Standing.HELD),
        Diagnosis(_STALE, _CLOSED, "a later attempt or another letter stands for it"),
    ),
    Rule(
        _COULD_COME_AGAIN,
        (Standing.NO_ROW,),
        Diagnosis(_POISON, _PARKED, "a debit that no row asks for: nobody should settle it"),
    ),
    Rule(
        _COULD_COME_AGAIN,
        (Standing.UNREADABLE,),
        Diagnosis(_BUG, _PARKED, "its rows cannot be read: run the audit, mend them, then redrive"),
    ),
    Rule(
        (Failure.VIOLATED,),
        (Standing.DECIDED,),
        Diagnosis(_BUG, _CLOSED, "it has its outcome in the ledger all the same"),
    ),
    Rule(
        (Failure.VIOLATED,),
        (Standing.OPEN, Standing.UNFREEZES),
        Diagnosis(_BUG, _PARKED, "our code or our books are wrong: mend that, then redrive"),
    ),
    Rule(
        (Failure.UNFINISHED,),
        (Standing.UNFREEZES,),
        Diagnosis(_TRANSIENT, _PARKED, "look whether it was frozen since: then redrive or discard"),
    ),
    Rule(
        _RAN_OUT,
        (Standing.UNFREEZES,),
        Diagnosis(_NEVER_RAN, _PARKED, "look whether it was frozen since: then redrive or discard"),
    ),
    Rule(
        (Failure.UNFINISHED,),
        (Standing.DECIDED,),
        Diagnosis(_TRANSIENT, _CLOSED, "it has its outcome in the ledger by now"),
    ),
    Rule(
        (Failure.UNFINISHED,),
        (Standing.OPEN,),
        Diagnosis(_TRANSIENT, _AUTO, "a passing cause lasted too long: it is tried again"),
    ),
    Rule(
        _RAN_OUT,
        (Standing.DECIDED,),
        Diagnosis(_NEVER_RAN, _CLOSED, "it has its outcome in the ledger by now"),
    ),
    Rule(
        _RAN_OUT,
        (Standing.OPEN,),
        Diagnosis(_NEVER_RAN, _AUTO, "no run of its consumer ever ended: it is tried again"),
    ),
)
"""The table of diagnoses, the first rule that fits counts; docs/dead-letters.md shows the same."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How often one subject has been redriven."""

    automatic: int = 0
    by_hand: int = 0


@dataclass(frozen=True, slots=True)
class Original:
    """The message as its queue had it: for a person to find it in logs and traces."""

    message_id: str | None = None
    group: str | None = None
    dedup_id: str | None = None
    receive_count: int | None = None
    sent_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A dead letter as it was read: nothing is decided about it yet.

    `why` is a code or the text of a rule, never a value; `place` is the top frame of an error.
    `body` is the message that its consumer did not take; `refused` names the transaction of a
    refusal. `may_unfreeze`: doing it late may undo a freeze that was asked for since.
    """

    letter_id: str
    source: Source
    failure: Failure
    why: str
    place: str
    original: Original
    body: str
    subject: Subject | None
    refused: tuple[AgentId, IdempotencyKey] | None = None
    may_unfreeze: bool = False

    @property
    def transaction(self) -> tuple[AgentId, IdempotencyKey] | None:
        """Agent and idempotency key, where it is about a transaction of one agent."""
        if isinstance(self.subject, Debit | Refund):
            return self.subject.agent_id, self.subject.idempotency_key
        return self.refused

    @property
    def fingerprint(self) -> str:
        """What letters of one trouble have in common: they are shown, and acted on, as a group.

        What may unfreeze a wallet is a trouble of its own: nobody redrives it with the others.
        """
        parts = ("letter:v1", self.source, self.failure, _one_line(self.why), self.place)
        return digest(*parts, *(["unfreezes"] if self.may_unfreeze else []))[:12]

    @property
    def subject_ref(self) -> str:
        """Stands for what the letter speaks of; all letters of one subject share its budget."""
        return subject_ref(self.subject, self.body)


@dataclass(frozen=True, slots=True)
class Action:
    """A line of a letter's history."""

    at_ms: int
    who: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it is kept, but for its body. `revision` counts its changes from 1.

    `due_at_ms`: when an open letter is looked at next. `agent_id` and `idempotency_key` are those
    of a transaction or its refund, `attempt` that of a debit. `lane` tells phones apart, roughly:
    letters of one phone have one lane, and nobody finds the phone from it. `record_parts`: in how
    many its record is kept.
    """

    letter_id: str
    fingerprint: str
    source: Source
    failure: Failure
    why: str
    place: str
    subject_ref: str
    letter_class: LetterClass
    verdict: Verdict
    meaning: str
    status: LetterStatus
    preview: str
    lane: str
    original: Original
    arrived_at_ms: int
    updated_at_ms: int
    revision: int
    due_at_ms: int | None
    agent_id: AgentId | None = None
    idempotency_key: IdempotencyKey | None = None
    attempt: int | None = None
    record_parts: int = 1
    history: tuple[Action, ...] = ()


def diagnose(failure: Failure, standing: Standing, budget: Budget) -> Diagnosis:
    """What a letter is and what to do: the table's answer, within the budget of its subject."""
    found = next(
        rule.diagnosis
        for rule in DIAGNOSES
        if failure in rule.failures and (not rule.standings or standing in rule.standings)
    )
    if found.verdict is Verdict.AUTO_REDRIVE and budget.automatic >= len(AUTOMATIC_AFTER_MS):
        return replace(
            found,
            verdict=Verdict.PARKED,
            meaning="its automatic redrives are used up: find the cause, then redrive",
        )
    return found


def opened(
    arrival: Arrival, diagnosis: Diagnosis, budget: Budget, *, preview: str, now_ms: int
) -> Letter:
    """The letter that is kept for an arrival."""
    subject = arrival.subject
    agent_id, idempotency_key = arrival.transaction or (None, None)
    letter = Letter(
        letter_id=arrival.letter_id,
        fingerprint=arrival.fingerprint,
        source=arrival.source,
        failure=arrival.failure,
        why=arrival.why,
        place=arrival.place,
        subject_ref=arrival.subject_ref,
        letter_class=diagnosis.letter_class,
        verdict=diagnosis.verdict,
        meaning=diagnosis.meaning,
        status=status_of(diagnosis.verdict),
        preview=preview,
        lane=lane_of(subject.phone if subject is not None else arrival.original.group),
        original=arrival.original,
        arrived_at_ms=now_ms,
        updated_at_ms=now_ms,
        revision=1,
        due_at_ms=None,
        agent_id=agent_id,
        idempotency_key=idempotency_key,
        attempt=subject.attempt if isinstance(subject, Debit) else None,
    )
    if letter.status is LetterStatus.WAITING:
        return replace(letter, due_at_ms=now_ms + AUTOMATIC_AFTER_MS[budget.automatic])
    return looked_at(letter, now_ms)


def status_of(verdict: Verdict) -> LetterStatus:
    """Where a letter is once it is diagnosed."""
    match verdict:
        case Verdict.INFORMATIONAL:
            return LetterStatus.NOTED
        case Verdict.AUTO_REDRIVE:
            return LetterStatus.WAITING
        case Verdict.PARKED:
            return LetterStatus.PARKED
        case Verdict.CLOSED:
            return LetterStatus.CLOSED
        case _:
            assert_never(verdict)


def looked_at(letter: Letter, now_ms: int) -> Letter:
    """A letter that was looked at and stays where it is: when to look at it again."""
    if letter.status is not LetterStatus.PARKED:
        return letter
    young = now_ms - letter.arrived_at_ms < LOOK_AGAIN_MS[1]
    return replace(letter, due_at_ms=now_ms + LOOK_AGAIN_MS[0 if young else 1])


def moved(letter: Letter, status: LetterStatus, action: Action) -> Letter:
    """A letter after an action: its revision, and for one that is still open, its next look."""
    after = replace(
        letter,
        status=status,
        updated_at_ms=action.at_ms,
        revision=letter.revision + 1,
        due_at_ms=letter.due_at_ms if status.is_open else None,
        history=(*letter.history, action),
    )
    if status is LetterStatus.PARKED and letter.status is not LetterStatus.PARKED:
        return looked_at(replace(after, verdict=Verdict.PARKED), action.at_ms)
    return after


def debit_standing(debit: Debit, row: OfflineTransaction | None, *, decided: bool) -> Standing:
    """What the row, and the ledger, say of a debit. `decided`: it has an entry there."""
    if decided:
        return Standing.DECIDED
    if row is None or row.fingerprint != debit.fingerprint:
        return Standing.NO_ROW
    if row.status is Status.HELD:
        return Standing.HELD
    if row.status is Status.QUEUED:
        return Standing.OPEN if row.attempt == debit.attempt else Standing.NEWER_ATTEMPT
    return Standing.DECIDED


def held(row: OfflineTransaction, letter_id: str, now_ms: int) -> OfflineTransaction:
    """A queued row that triage holds: the sweep leaves it alone until somebody decides."""
    return replace(
        row, status=Status.HELD, held_by=letter_id, updated_at_ms=now_ms, next_sweep_at_ms=None
    )


def released(row: OfflineTransaction, now_ms: int) -> OfflineTransaction:
    """A held row that is queued again, as its next attempt."""
    expires_at_s = max(row.expires_at_s, (now_ms + REDRIVEN_OPEN_MS) // 1000)
    return replace(
        row,
        status=Status.QUEUED,
        held_by=None,
        attempt=row.attempt + 1,
        queued_at_ms=now_ms,
        updated_at_ms=now_ms,
        expires_at_s=expires_at_s,
        next_sweep_at_ms=next_sweep_ms(1, now_ms, expires_at_s),
    )


def discarded(row: OfflineTransaction, now_ms: int) -> OfflineTransaction:
    """A held row that a person gave up: refused, and kept for good, since no entry tells of it."""
    return replace(
        row,
        status=Status.FAILED,
        held_by=None,
        reason=Reason.DISCARDED,
        updated_at_ms=now_ms,
    )


def subject_ref(subject: Subject | None, body: str) -> str:
    """Stands for a subject; for a body that nobody can read, for its very text."""
    match subject:
        case Refund():
            parts: Sequence[str] = ("refund", subject.agent_id, subject.idempotency_key)
            return digest(*parts, subject.refund_id)[:32]
        case Debit():
            return digest(*movement_id(subject))[:32]
        case Credit() | StatusChange():
            return digest(*movement_id(subject), subject.phone)[:32]
        case None:
            return digest("body", digest(body.encode("utf-8", "backslashreplace").decode()))[:32]
        case _:
            assert_never(subject)


def letter_shard(letter_id: str) -> int:
    """Which of the `LETTER_SHARDS` partitions of an index a letter belongs to."""
    return int(digest("letter-shard", letter_id)[:8], 16) % LETTER_SHARDS


def lane_of(phone: Phone | str | None) -> str:
    """Two hex digits: one phone in 256 shares them, so that beside its last three digits, which are
    shown, hundreds remain. Phones that share a lane only wait for each other."""
    return "" if phone is None else digest("lane", _one_line(phone))[:2]


def _one_line(text: str) -> str:
    return re.sub(r"\s", " ", text)
