"""What can happen to one debit at once: each as the real code does it, and as the model does."""

import itertools
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ingest import refund as http
from reconcile.settle import Dropped, Settled, settle
from refund.give_back import Cancelled, Decided, Result, give_back
from relay.sweep import Limits, sweep
from tests.fakes.dead_letters import BUG, given_up, left, verbatim
from tests.fakes.memory import (
    START_MS,
    FakeAcceptedTransactions,
    FakeClock,
    FakeDeadLetters,
    FakeLedger,
    FakeOpenTransactions,
    FakeQueue,
    FakeRefundBooks,
    FakeRefundDesk,
    FakeSubjects,
    Store,
)
from tests.fakes.samples import AGENT, OPEN_DAYS, credit, debit, refund
from tests.fakes.scripted import Call, around
from tests.simulation.ports.ledger_model import AGAIN, AMOUNT, Answer, Model
from triage.act import By, Desk, Outcome, discard, look_again, redrive
from triage.act import Result as Acted
from triage.keep import keep
from triage.reading import read
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.letters import LOOK_AGAIN_MS, Arrival, Failure, letter_shard
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import open_shard
from wallet_ledger.domain.wallets import Movement, Posted, Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import Unavailable
from wallet_ledger.patience import Patience
from wallet_ledger.ports import LetterPage

KEY = IdempotencyKey("K-1")
SWEPT_AT_MS = START_MS + 150_000
"""When the row's first sending has been due for half a minute."""
EXPIRED_AT_MS = START_MS + OPEN_DAYS * 86_400_000
"""When a row that is still queued is given up."""
LATE_MS = EXPIRED_AT_MS
"""When the desk is asked: the row's time is over, so that it is given a day by who redrives it."""
KEPT_AT_MS = LATE_MS - 120_000
"""When triage is given letters: by then those that wait are due, and none has waited in vain."""
LOOKED_UNTIL_MS = LATE_MS + LOOK_AGAIN_MS[0]
"""Up to when, and not at which, a letter is looked at: a parked one too, once."""
SEEN_TO = {"unchanged", "already_redriven", "already_terminal"}
"""Where the clock does nothing: it looks at a letter that may be seen to since it was listed."""
TRIES_MAX = 10
"""Nobody has to ask more often, whoever else is there."""


class Ports:
    """The ports on one store, with something between them and who calls them."""

    def __init__(self, store: Store, step: Callable[[Call], Any]) -> None:
        self.clock = FakeClock()
        self._store = store
        self._step = step

    @property
    def table(self) -> FakeAcceptedTransactions:
        """Rows, as ingest sees them."""
        return around(FakeAcceptedTransactions(self._store), self._step)

    @property
    def entries(self) -> FakeRefundDesk:
        """Where apps ask for refunds."""
        return around(FakeRefundDesk(self._store), self._step)

    @property
    def ledger(self) -> FakeLedger:
        """The books, as reconcile sees them."""
        return around(FakeLedger(self._store, retention_days=0), self._step)

    @property
    def books(self) -> FakeRefundBooks:
        """The books, as refund sees them."""
        return around(FakeRefundBooks(self._store), self._step)

    @property
    def open_rows(self) -> FakeOpenTransactions:
        """Rows, as the sweep sees them."""
        return around(FakeOpenTransactions(self._store), partial(of_its_shard, self._step))

    @property
    def letters(self) -> FakeDeadLetters:
        """What triage keeps."""
        return around(FakeDeadLetters(self._store), self._step)

    @property
    def subjects(self) -> FakeSubjects:
        """Rows and books, as triage sees them."""
        return around(FakeSubjects(self._store), self._step)

    @property
    def desk(self) -> Desk:
        """Where people act on letters, and the clock."""
        return Desk(self.letters, self.subjects, {}, FakeClock(LATE_MS))

    def patience(self) -> Patience:
        """Enough for all that others can do in between."""
        return Patience(self.clock, lambda: 0.0, 1_000)


def of_its_shard(step: Callable[[Call], Any], call: Call) -> Any:
    """The sweep reads every shard, and what others do in between is seen in the row's alone."""
    elsewhere = call.method == "open_rows" and call.arguments[0] != open_shard(AGENT, KEY)
    return call.proceed() if elsewhere else step(call)


@dataclass(frozen=True)
class Handler:
    """A request: what the real code does with it, and what the model does, one step at a time.

    `in_model` is given the answers of the steps before, and gives None when there is none left.
    `recurs`: it comes every minute; what a crash leaves to be done is then done with what is new.
    """

    name: str
    run: Callable[[Ports], Answer]
    in_model: Callable[[Model, Sequence[Answer]], Answer | None]
    recurs: bool = False


def movement(name: str, wanted: Movement, in_model: Callable[[Model], Answer]) -> Handler:
    """A message of TxQueue."""

    def run(ports: Ports) -> Answer:
        [result] = settle([wanted], ports.ledger, ports.clock, ports.patience())
        assert not isinstance(result, Unfinished | Violation), result
        return ("dropped",) if isinstance(result, Dropped) else told(result)

    return Handler(name, run, lambda model, before: None if before else in_model(model))


def by_bus(name: str, refund_id: str, amount: int | None, currency: str | None = None) -> Handler:
    """A message of RefundQueue, from the back office."""
    return Handler(
        name,
        lambda ports: given_back(ports, refund(refund_id, amount, currency=currency)),
        lambda model, before: None if before else model.refund(refund_id, amount, currency),
    )


def by_agent(name: str, refund_id: str, amount: int | None) -> Handler:
    """A request of the agent's app, and the message that the relay derives from its row."""
    wanted = http.Wanted(AGENT, KEY, refund_id, amount, "wrong phone")

    def run(ports: Ports) -> Answer:
        answer = http.request_refund(
            wanted, ports.table, ports.entries, ports.clock, ports.patience()
        )
        told_now = read_by_app(answer, refund_id)
        if told_now != ("requested",):
            return told_now
        asked = refund(refund_id, amount, requested_by=f"agent:{AGENT}")
        return ("requested", given_back(ports, asked))

    def in_model(model: Model, before: Sequence[Answer]) -> Answer | None:
        if not before:
            return model.ask(refund_id, amount)
        if before == (("requested",),):
            return model.refund(refund_id, amount)
        return None

    return Handler(name, run, in_model)


def read_by_app(answer: http.Answer, refund_id: str) -> Answer:
    """What an app makes of it; a repetition that still waits has the message under way."""
    match answer:
        case http.CancelledNow():
            return ("cancelled",)
        case http.Requested():
            return ("requested",)
        case http.Repeated(row):
            waits = row.refund_request is not None and row.refund_request.refund_id == refund_id
            return ("requested",) if waits else ("repeated",)
        case http.NotRefundable(settled=False) | http.InProgress():
            return AGAIN
        case http.NotRefundable(reason):
            return ("no", str(reason))
        case http.RefundIdReused():
            return ("reused",)
        case http.Unknown():
            raise AssertionError("the row is gone")


def given_back(ports: Ports, asked: Refund) -> Answer:
    """What the refund function's work comes to."""
    result: Result = give_back(asked, ports.books, ports.clock, ports.patience(), patient=True)
    match result:
        case Cancelled():
            return ("cancelled",)
        case Decided():
            return told(result)
        case Unfinished(codes):
            assert codes == ("NOT_SETTLED",), result
            return AGAIN
        case Violation():
            raise AssertionError(result)


def told(result: Settled | Decided) -> Answer:
    """An outcome, in the model's words."""
    match result.outcome:
        case Posted(version, balance_after_minor):
            return ("posted", version, balance_after_minor)
        case Rejected(reason):
            return ("rejected", str(reason))


def swept(ports: Ports, at_ms: int = SWEPT_AT_MS) -> Answer:
    """The minute's run finds the row due, and sends it again or expires it."""
    clock = FakeClock(at_ms)
    limits = Limits(backlog_max=10, rows_max=10, deadline_ms=at_ms + 10_000)
    sweep(ports.open_rows, FakeQueue(clock), clock, limits)
    return ("swept",)


# --- triage ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dead:
    """A message of the debit that its consumer did not take, as a queue of letters has it."""

    name: str
    attempt: int
    arrival: Arrival
    record: str

    @property
    def letter_id(self) -> str:
        """As triage names it."""
        return self.arrival.letter_id

    @property
    def opens(self) -> str:
        """What becomes of it if nothing is decided: it is tried again, or a person has to look."""
        return "parked" if self.arrival.failure is Failure.VIOLATED else "waiting"


def dead(name: str, attempt: int, how: Violation | None = None) -> Dead:
    """A dead message; all of them are of one shard, so that the clock sees them on one page."""
    sent = debit("K-1", AMOUNT, attempt=attempt)
    for number in itertools.count():
        message_id = f"{name} {number}"
        record = given_up(sent, message_id) if how is None else left(sent, how, message_id)
        arrival = read(record)
        if letter_shard(arrival.letter_id) == 0:
            return Dead(name, attempt, arrival, verbatim(record))
    raise AssertionError


DEAD = {
    each.name: each
    for each in (
        dead("letter", 1),
        dead("violated letter", 1, BUG),
        dead("letter of the 2nd", 2),
    )
}
ARRIVALS = {json.loads(each.record)["messageId"]: each.arrival for each in DEAD.values()}
"""What `read` makes of each record, so that one that is acted on anew is not read anew."""
NAMES = {each.letter_id: each.name for each in DEAD.values()}
SUBJECT_REF = DEAD["letter"].arrival.subject_ref


def filed(letter: Dead) -> Handler:
    """Triage is given the letter, as often as it takes."""

    def run(ports: Ports) -> Answer:
        clock = FakeClock(KEPT_AT_MS)
        for _ in range(TRIES_MAX):
            with suppress(Unavailable):
                kept = keep(
                    letter.arrival,
                    letter.record,
                    letters=ports.letters,
                    subjects=ports.subjects,
                    clock=clock,
                    patience=Patience(clock, lambda: 0.0, 1_000),
                )
                return ("kept", str(kept.letter.status)) if kept.new else ("known",)
        raise AssertionError("never kept")

    def in_model(model: Model, before: Sequence[Answer]) -> Answer | None:
        return None if before else model.file(letter.name, letter.attempt, letter.opens)

    return Handler(letter.name, run, in_model)


def redriven(name: str, letter: Dead, *, sent: bool = True) -> Handler:
    """A person at the desk; where `sent`, the message that the relay derives from the row, too."""

    def run(ports: Ports) -> Answer:
        outcome = by_hand(partial(redrive, letter.letter_id), ports)
        if outcome == "redriven" and sent:
            return (outcome, settled_again(ports))
        return (outcome,)

    def in_model(model: Model, before: Sequence[Answer]) -> Answer | None:
        return and_then_settled(model, before, lambda: model.redrive(letter.name), sent=sent)

    return Handler(name, run, in_model)


def discarded(name: str, letter: Dead) -> Handler:
    """A person at the desk gives it up."""
    return Handler(
        name,
        lambda ports: (by_hand(partial(discard, letter.letter_id), ports),),
        lambda model, before: None if before else model.discard(letter.name),
    )


def by_hand(act: Callable[[By, Desk], Acted], ports: Ports) -> str:
    """What the desk answers in the end, whoever is in the way."""
    for _ in range(TRIES_MAX):
        result = act(By("ann", "seen to"), ports.desk)
        if result.outcome is not Outcome.CONTENDED:
            return str(result.outcome)
    raise AssertionError("never answered")


def looked(ports: Ports) -> Answer:
    """The clock's runs, until nothing is in the way of one; then what the relay derives."""
    for _ in range(TRIES_MAX):
        with suppress(Unavailable):
            open_letters = ports.letters.page(LetterPage(0, True, 10)).letters
            due = [each for each in open_letters if (each.due_at_ms or 0) < LOOKED_UNTIL_MS]
            assert len(due) <= 1, "two open letters of one debit"
            outcomes = [str(look_again(each, ports.desk).outcome) for each in due]
            if outcomes == ["redriven"]:
                return ("redriven", settled_again(ports))
            if outcomes != ["contended"]:
                return ("nothing",) if set(outcomes) <= SEEN_TO else (outcomes[0],)
    raise AssertionError("never looked at")


def settled_again(ports: Ports) -> Answer:
    """The message of a redriven row; it is the same debit, whatever its attempt."""
    return HANDLERS["debit"].run(ports)


def and_then_settled(
    model: Model, before: Sequence[Answer], act: Callable[[], Answer], *, sent: bool = True
) -> Answer | None:
    """The steps of whoever redrives."""
    if not before:
        return act()
    return model.debit() if before == (("redriven",),) and sent else None


HANDLERS = {
    each.name: each
    for each in (
        movement("debit", debit("K-1", AMOUNT), Model.debit),
        movement("credit", credit("C-1", 100), lambda model: model.credit("C-1", 100)),
        by_agent("agent: all", "full", None),
        by_agent("agent: 60", "A-1", 60),
        by_bus("bus: all, the agent's id", "full", None),
        by_bus("bus: all", "desk", None),
        by_bus("bus: 60", "P-1", 60),
        by_bus("bus: another 60", "P-2", 60),
        by_bus("bus: 40 under the id of 60", "P-1", 40),
        by_bus("bus: 60 dollars, the agent's id", "A-1", 60, "USD"),
        Handler("sweep", swept, lambda model, before: None if before else model.sweep()),
        Handler(
            "expiry",
            lambda ports: swept(ports, EXPIRED_AT_MS),
            lambda model, before: None if before else model.expire(),
        ),
    )
}
TRIAGE = {
    each.name: each
    for each in (
        *map(filed, DEAD.values()),
        redriven("redrive", DEAD["letter"]),
        redriven("redrive the violated", DEAD["violated letter"]),
        discarded("discard", DEAD["letter"]),
        discarded("discard the violated", DEAD["violated letter"]),
        Handler(
            "clock",
            looked,
            lambda model, before: and_then_settled(model, before, model.look),
            recurs=True,
        ),
    )
}
BEFOREHAND = {
    each.name: each for each in (redriven("redrive, unsent", DEAD["letter"], sent=False),)
}
"""Only done before anything begins: the message of the row is still to come."""
ALL = HANDLERS | TRIAGE | BEFOREHAND


@dataclass(frozen=True, slots=True)
class Start:
    """What the wallet was funded with, what has been done since, and how often other letters of the
    debit were redriven before: by the clock, and by people.
    """

    funds: int = 150
    before: tuple[str, ...] = ()
    automatic: int = 0
    by_hand: int = 0


STARTS = {
    "queued": Start(),
    "queued, too little": Start(50),
    "settled": Start(before=("debit",)),
    "partly given back": Start(before=("debit", "bus: another 60")),
    "held": Start(before=("letter",)),
    "held, too little": Start(50, ("letter",)),
    "held, one try left": Start(before=("letter",), automatic=2),
    "held, no try by hand left": Start(before=("letter",), by_hand=5),
    "parked": Start(before=("violated letter",)),
    "redriven": Start(before=("letter", "redrive, unsent")),
    "redriven, no try left": Start(before=("letter", "redrive, unsent"), automatic=3),
}
