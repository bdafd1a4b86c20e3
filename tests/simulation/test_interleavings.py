"""Every interleaving of a few requests about one debit ends as some order of them would.

Each handler is the real code on the fakes, and is stopped at each call of a port. A state is what
the store holds and what each handler has been answered so far; from every state every handler is
let go by one call. So all schedules are tried, and no state twice: a handler is run again from its
start on the answers that it had, which is why nothing here needs a thread.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from ingest import refund as http
from reconcile.settle import Dropped, Settled, settle
from refund.give_back import Cancelled, Decided, Result, give_back
from relay.sweep import Limits, sweep
from tests.fakes.memory import (
    START_MS,
    FakeAcceptedTransactions,
    FakeClock,
    FakeLedger,
    FakeOpenTransactions,
    FakeQueue,
    FakeRefundBooks,
    FakeRefundDesk,
    Store,
)
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import AGENT, OPEN_DAYS, PHONE, credit, debit, refund, request, row_of
from tests.fakes.scripted import Call, Crash, around
from tests.simulation.ledger_model import AGAIN, AMOUNT, Answer, Model
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.postings import Conflicted, Contended, Entry
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.transactions import Status
from wallet_ledger.domain.wallets import Movement, Posted, Rejected
from wallet_ledger.domain.work import Unfinished, Violation
from wallet_ledger.errors import Unavailable
from wallet_ledger.patience import Patience

type End = tuple[object, tuple[Answer, ...]]
"""What is stored when all is done, and what each was told."""

KEY = IdempotencyKey("K-1")
SWEPT_AT_MS = START_MS + 150_000
"""When the row's first sending has been due for half a minute."""
EXPIRED_AT_MS = START_MS + OPEN_DAYS * 86_400_000
"""When a row that is still queued is given up."""


# --- handlers: the real code ----------------------------------------------------------------------


class Ports:
    """The ports on one store, with something between them and who calls them."""

    def __init__(self, store: Store, step: Callable[[Call], Any]) -> None:
        self.clock = FakeClock()
        self.table = around(FakeAcceptedTransactions(store), step)
        self.entries = around(FakeRefundDesk(store), step)
        self.ledger = around(FakeLedger(store, retention_days=0), step)
        self.books = around(FakeRefundBooks(store), step)
        self.open_rows = around(FakeOpenTransactions(store), step)

    def patience(self) -> Patience:
        """Enough for all that others can do in between."""
        return Patience(self.clock, lambda: 0.0, 1_000)


@dataclass(frozen=True)
class Handler:
    """A request: what the real code does with it, and what the model does, one step at a time.

    `in_model` is given the answers of the steps before, and gives None when there is none left.
    """

    name: str
    run: Callable[[Ports], Answer]
    in_model: Callable[[Model, Sequence[Answer]], Answer | None]


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
        Handler("sweep", swept, lambda _model, before: None if before else ("swept",)),
        Handler(
            "expiry",
            lambda ports: swept(ports, EXPIRED_AT_MS),
            lambda model, before: None if before else model.expire(),
        ),
    )
}
OF_THREE = list(HANDLERS)[:-3]
"""Those of which any three are tried; the others meet each of them in pairs."""
STARTS = {
    "queued": (150, ()),
    "queued, too little": (50, ()),
    "settled": (150, ("debit",)),
    "partly given back": (150, ("debit", "bus: another 60")),
}
"""What the wallet was funded with, and what has been done since."""


# --- the real code, one call at a time ------------------------------------------------------------


class Paused(BaseException):
    """The handler has made its call, and asks for the next."""


class Elsewhere(BaseException):
    """The fault does not go with this call."""


type Fault = Callable[[Call], Any]


def nothing(call: Call) -> Any:
    """The call is answered as it should be."""
    return call.proceed()


def crash_before(call: Call) -> Any:
    """The process ends, and what it was doing is delivered again."""
    raise Crash


def crash_after(call: Call) -> Any:
    """The same, when the call has done its work."""
    only_writes(call)
    call.proceed()
    raise Crash


def conflict(call: Call) -> Any:
    """Somebody else's transaction is in the way."""
    if call.method in {"post", "write"}:
        return Contended(("TransactionConflict",))
    if call.method in {"wallet", "see"}:
        raise Unavailable("TransactionConflict")
    raise Elsewhere


def lost(call: Call) -> Any:
    """The write happens, and nobody hears of it."""
    if call.method not in {"post", "write"}:
        raise Elsewhere
    call.proceed()
    return Contended(("ReadTimeoutError",))


def only_writes(call: Call) -> None:
    """A read that is followed by a crash is a crash."""
    if call.method not in {"post", "write", "move", "send_again"}:
        raise Elsewhere


FAULTS: dict[str, Fault] = {
    "crash before": crash_before,
    "crash after": crash_after,
    "conflict": conflict,
    "answer lost": lost,
}


@dataclass(frozen=True, slots=True)
class Raised:
    """A call that was answered with an error."""

    code: str


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer that a handler had, known by its content."""

    content: object
    answer: Any = field(compare=False)


def heard(answer: Any) -> Heard:
    """The answer as part of a state."""
    match answer:
        case Conflicted(recorded, moved, balance_moved):
            return Heard((frozenset(recorded.items()), moved, balance_moved), answer)
        case list():
            return Heard(tuple(answer), answer)
        case _:
            return Heard(answer, answer)


class Turn:
    """Gives a handler the answers that it had, lets it make one call more, and stops it then."""

    def __init__(self, answers: Sequence[Heard], fault: Fault) -> None:
        self.answers = list(answers)
        self.made = ""
        self._at = 0
        self._fault = fault

    def __call__(self, call: Call) -> Any:
        if self._at < len(self.answers):
            return self._give(self.answers[self._at].answer)
        if self.made:
            raise Paused
        self.made = call.method
        try:
            answer = self._fault(call)
        except Unavailable as error:
            answer = Raised(error.code)
        self.answers.append(heard(answer))
        return self._give(answer)

    def _give(self, answer: Any) -> Any:
        self._at += 1
        if isinstance(answer, Raised):
            raise Unavailable(answer.code)
        return answer


@dataclass(frozen=True, slots=True)
class State:
    """The store's contents, each handler's answers so far or its result, and who met a fault."""

    rows: frozenset[Any]
    wallets: frozenset[Any]
    entries: frozenset[Any]
    refunded: frozenset[Any]
    handlers: tuple[tuple[bool, Any], ...]
    faulty: int | None

    @property
    def stored(self) -> tuple[frozenset[Any], ...]:
        """What the store holds."""
        return (self.rows, self.wallets, self.entries, self.refunded)


class World:
    """All that can happen to a few handlers that begin together."""

    def __init__(self, start: str, names: Sequence[str], *, faults: bool) -> None:
        self.handlers = [HANDLERS[name] for name in names]
        self.faults = {"": nothing} | (FAULTS if faults else {})
        self.store = Store()
        funds, before = STARTS[start]
        self.model = Model()
        self.model.credit("C-0", funds)
        ports = Ports(self.store, nothing)
        settle([credit("C-0", funds)], ports.ledger, ports.clock, ports.patience())
        row = row_of(request("K-1", AMOUNT))
        self.store.rows[row.agent_id, row.idempotency_key] = row
        for name in before:
            HANDLERS[name].run(ports)
            HANDLERS[name].in_model(self.model, ())
        self.first = self._state(((False, ()),) * len(names), None)
        self.came_from: dict[State, tuple[State | None, str]] = {self.first: (None, "")}

    def explore(self) -> int:
        """Try everything; how many states there are."""
        allowed = in_some_order(self.model, self.handlers)
        waiting = [self.first]
        while waiting:
            state = waiting.pop()
            following = list(self._following(state))
            if not following:
                self._check_end(state, allowed)
            for label, after in following:
                if after not in self.came_from:
                    self.came_from[after] = (state, label)
                    waiting.append(after)
                    if after.stored != state.stored:
                        self._checked(after, self._check_promises)
                        self._checked(after, partial(check_told, state))
        return len(self.came_from)

    def schedule(self, state: State) -> str:
        """How a state came about, for whoever has to see it again."""
        steps = []
        at: State | None = state
        while at is not None:
            at, label = self.came_from[at]
            steps.append(label)
        return "\n".join(reversed(steps))

    def _following(self, state: State) -> Iterator[tuple[str, State]]:
        for index, (done, _) in enumerate(state.handlers):
            if not done:
                for fault in self.faults if state.faulty is None else [""]:
                    yield from self._step(state, index, fault)

    def _step(self, state: State, index: int, fault: str) -> Iterator[tuple[str, State]]:
        self._restore(state)
        handler = self.handlers[index]
        turn = Turn(state.handlers[index][1], self.faults[fault])
        try:
            then: tuple[bool, Any] = (True, handler.run(Ports(self.store, turn)))
        except Paused:
            then = (False, tuple(turn.answers))
        except Crash:
            then = (False, ())
        except Elsewhere:
            return
        others = list(state.handlers)
        others[index] = then
        faulty = index if fault else state.faulty
        yield f"{handler.name}: {turn.made} {fault}", self._state(tuple(others), faulty)

    def _emit_again(self) -> None:
        """The sweep and the relay see to a request whose app has gone away."""
        [row] = self.store.rows.values()
        asked = row.refund_request
        if asked is not None:
            message = refund(asked.refund_id, asked.amount_minor)
            given_back(Ports(self.store, nothing), message)

    def _restore(self, state: State) -> None:
        self.store.rows = dict(state.rows)
        self.store.wallets = dict(state.wallets)
        self.store.entries = dict(state.entries)
        self.store.refunded = dict(state.refunded)

    def _state(self, handlers: tuple[tuple[bool, Any], ...], faulty: int | None) -> State:
        store = self.store
        return State(
            frozenset(store.rows.items()),
            frozenset(store.wallets.items()),
            frozenset(store.entries.items()),
            frozenset(store.refunded.items()),
            handlers,
            faulty,
        )

    def _checked(self, state: State, check: Callable[[State], None]) -> None:
        try:
            check(state)
        except AssertionError as error:
            raise AssertionError(f"{error}\nafter:{self.schedule(state)}") from error

    def _check_promises(self, _: State) -> None:
        """P1 to P4 and P6 to P9, at this moment."""
        entries = [*self.store.entries.values()]
        assert_books_add_up(self.store.wallets[PHONE], entries, self.store.rows.values())
        assert sum(self.store.refunded.values()) == sum(
            e.amount_minor for e in entries if e.kind == "refund" and isinstance(e.outcome, Posted)
        ), "P4: the running total"

    def _check_end(self, state: State, allowed: frozenset[End]) -> None:
        self._checked(state, lambda _: self._drain(state, allowed))

    def _drain(self, state: State, allowed: frozenset[End]) -> None:
        """What must come again comes again, until nothing more comes of it; then all is told."""
        self._restore(state)
        answers = [answer for _, answer in state.handlers]
        while True:
            before = list(answers)
            for index, answer in enumerate(answers):
                if answer == AGAIN:
                    answers[index] = self.handlers[index].run(Ports(self.store, nothing))
                    self._check_promises(state)
            if answers == before:
                break
        self._emit_again()
        [row] = self.store.rows.values()
        assert row.status is not Status.REFUND_REQUESTED, "P5"
        if self.handlers[0].name == "debit":
            assert row.status is not Status.QUEUED, "P5"
        shown = [None if i == state.faulty else answer for i, answer in enumerate(answers)]
        end = (facts(self.store), tuple(shown))
        known = {(stored, tuple(hide(said, state.faulty))) for stored, said in allowed}
        assert end in known, f"no order ends like this: {end}"


def drawn(model: Model) -> Model:
    """Whoever still waits is answered by the message that the relay sends again."""
    if model.pending is not None:
        model.refund(*model.pending)
    return model


def check_told(was: State, now: State) -> None:
    """A row waits until its own request is answered, and no longer."""
    [(_, before)], [(_, after)] = was.rows, now.rows
    asked = before.refund_request
    if asked is not None and after.refund_request is None:
        answered = [e for _, e in now.entries if e.refund_id == asked.refund_id]
        assert answered, "P5: the row forgets what it waits for"


def hide(answers: Iterable[Answer], faulty: int | None) -> Iterator[Answer | None]:
    """Who met a fault may be told of what it has done as of something done before."""
    for index, answer in enumerate(answers):
        yield None if index == faulty else answer


def facts(store: Store) -> object:
    """The store, in the model's words."""
    [row] = store.rows.values()
    wallet = store.wallets[PHONE]
    asked = row.refund_request
    pending = (asked.refund_id, asked.amount_minor) if asked else None
    told_by_row = (str(row.status), row.refunded_minor or 0, pending, row.cancelled_by)
    entries = tuple(sorted(map(fact, store.entries.values())))
    return (wallet.balance_minor, wallet.version, told_by_row, entries)


def fact(entry: Entry) -> tuple[str, Answer]:
    """One entry, in the model's words."""
    name = {"debit": "debit", "refund": f"refund {entry.refund_id}"}.get(
        entry.kind, f"{entry.kind} {entry.reference}"
    )
    match entry.outcome:
        case Posted(version, balance_after_minor):
            return name, ("posted", version, balance_after_minor, entry.amount_minor)
        case Rejected(reason):
            name += " reused" if reason == "KEY_REUSED" else ""
            return name, ("rejected", str(reason), entry.amount_minor, entry.remaining_minor)


# --- the model, in every order --------------------------------------------------------------------


def in_some_order(model: Model, handlers: Sequence[Handler]) -> frozenset[End]:
    """Every end that one request after the other can have: what is stored, and who is told what."""
    ends: set[End] = set()
    seen: set[object] = set()

    def go(model: Model, said: tuple[tuple[Answer, ...], ...], waits: frozenset[int]) -> None:
        where = (model.facts(), tuple(sorted(model.asked.items(), key=repr)), said, waits)
        if where in seen:
            return
        seen.add(where)
        moved = False
        for index, handler in enumerate(handlers):
            if index in waits:
                continue
            then = model.copy()
            answer = handler.in_model(then, said[index])
            if answer is None:
                continue
            moved = True
            again = answer == AGAIN
            mine = () if again else (*said[index], answer)
            go(
                then,
                (*said[:index], mine, *said[index + 1 :]),
                waits | {index} if again else waits,
            )
        if not moved:
            for facts_, answers in after_waiting(model, handlers, said, sorted(waits)):
                ends.add((facts_, answers))

    go(model.copy(), ((),) * len(handlers), frozenset())
    return frozenset(ends)


def after_waiting(
    model: Model,
    handlers: Sequence[Handler],
    said: tuple[tuple[Answer, ...], ...],
    waits: Sequence[int],
) -> Iterator[End]:
    """Those who must come again come again, in any order, until nothing more comes of it."""
    for order in itertools.permutations(waits):
        then, answers = model.copy(), list(said)
        done: set[int] = set()
        while True:
            before = len(done)
            for index in order:
                if index not in done:
                    answers[index] = whole(handlers[index], then)
                    if answers[index] != (AGAIN,):
                        done.add(index)
            if len(done) == before:
                break
        yield drawn(then).facts(), tuple(map(as_one, answers))


def whole(handler: Handler, model: Model) -> tuple[Answer, ...]:
    """All steps of a handler, with nobody in between."""
    said: tuple[Answer, ...] = ()
    while (answer := handler.in_model(model, said)) is not None:
        said = (*said, answer)
        if answer == AGAIN:
            break
    return said


def as_one(said: tuple[Answer, ...]) -> Answer:
    """The answers to a handler's steps, as its real code gives them."""
    return said[0] if len(said) == 1 else (*said[0], said[1])


# --- the tests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("first", HANDLERS)
def test_two_at_once_with_one_fault_end_as_one_after_the_other_would(
    start: str, first: str
) -> None:
    for second in list(HANDLERS)[list(HANDLERS).index(first) :]:
        assert World(start, (first, second), faults=True).explore() >= 4


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("first", OF_THREE)
def test_three_at_once_end_as_one_after_the_other_would(start: str, first: str) -> None:
    rest = OF_THREE[OF_THREE.index(first) :]
    for others in itertools.combinations_with_replacement(rest, 2):
        assert World(start, (first, *others), faults=False).explore() >= 8
