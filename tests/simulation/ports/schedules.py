"""Every interleaving of a few requests about one debit, and whether it ends as some order would.

Each handler is the real code on the fakes, and is stopped at each call of a port. A state is what
the store holds and what each handler has been answered so far; from every state every handler is
let go by one call. So all schedules are tried, and no state twice: a handler is run again from its
start on the answers that it had, which is why nothing here needs a thread.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

from reconcile.settle import settle
from tests.fakes.memory import Store
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import PHONE, credit, refund, request, row_of
from tests.fakes.scripted import Call, Crash
from tests.simulation.ports.handlers import (
    ALL,
    NAMES,
    STARTS,
    SUBJECT_REF,
    Handler,
    Ports,
    given_back,
    settled_again,
)
from tests.simulation.ports.ledger_model import AGAIN, AMOUNT, Answer, Model
from triage.act import Outcome, look_again
from wallet_ledger.derive import Destination, from_letter, from_row
from wallet_ledger.domain.letters import Budget, Letter, LetterStatus
from wallet_ledger.domain.postings import Conflicted, Contended, Entry
from wallet_ledger.domain.transactions import OfflineTransaction, Status
from wallet_ledger.domain.wallets import Posted, Rejected
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import Letters

type End = tuple[object, tuple[Answer, ...]]
"""What is stored when all is done, and what each was told."""


# --- the real code, one call at a time ------------------------------------------------------------


class Paused(BaseException):
    """The handler has made its call, and asks for the next."""


def nothing(call: Call) -> Any:
    """The call is answered as it should be."""
    return call.proceed()


def crash_before(call: Call) -> Any:
    """The process ends, and what it was doing is delivered again."""
    raise Crash


def crash_after(call: Call) -> Any:
    """The same, when the call has done its work."""
    call.proceed()
    raise Crash


def conflict(call: Call) -> Any:
    """Somebody else's transaction is in the way."""
    if call.method in POSTS:
        return Contended(("TransactionConflict",))
    raise Unavailable("TransactionConflict")


def lost(call: Call) -> Any:
    """The write happens, and nobody hears of it."""
    call.proceed()
    if call.method in POSTS:
        return Contended(("ReadTimeoutError",))
    raise Unavailable("ReadTimeoutError")


POSTS = {"post", "write"}
WRITES = POSTS | {"move", "send_again", "expire", "file", "look_later"}


def writes_letter(call: Call) -> bool:
    """Whether triage keeps or moves a letter, and perhaps a row with it."""
    moves = call.method == "move" and isinstance(call.arguments[0], Letter)
    return moves or call.method == "file"


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with a call, and with which: a read that a crash follows is just a crash."""

    happens_to: Callable[[Call], bool]
    answer: Callable[[Call], Any]


NO_FAULT = Fault(lambda _: True, nothing)
FAULTS = {
    "crash before": Fault(lambda _: True, crash_before),
    "crash after": Fault(lambda call: call.method in WRITES, crash_after),
    "conflict": Fault(
        lambda call: call.method in POSTS | {"wallet", "see"} or writes_letter(call), conflict
    ),
    "answer lost": Fault(lambda call: call.method in POSTS or writes_letter(call), lost),
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
        case Letters(letters):
            return Heard(tuple(letters), answer)
        case list():
            return Heard(tuple(answer), answer)
        case _:
            return Heard(answer, answer)


class Turn:
    """Gives a handler the answers that it had, lets it make one call more, and stops it then."""

    def __init__(self, answers: Sequence[Heard], fault: Fault) -> None:
        self.answers = list(answers)
        self.made: Call | None = None
        self._at = 0
        self._fault = fault

    def __call__(self, call: Call) -> Any:
        if self._at < len(self.answers):
            return self._give(self.answers[self._at].answer)
        if self.made is not None:
            raise Paused
        self.made = call
        try:
            answer = self._fault.answer(call)
        except Unavailable as error:
            answer = Raised(error.code)
        self.answers.append(heard(answer))
        return self._give(answer)

    def _give(self, answer: Any) -> Any:
        self._at += 1
        if isinstance(answer, Raised):
            raise Unavailable(answer.code)
        return answer


STORED = ("rows", "wallets", "entries", "refunded", "letters", "records", "budgets")
"""All that the store holds; nothing here is ever purged."""


@dataclass(frozen=True, slots=True)
class State:
    """The store's contents, each handler's answers so far or its result, and who met a fault."""

    stored: tuple[frozenset[Any], ...]
    handlers: tuple[tuple[bool, Any], ...]
    faulty: int | None

    @property
    def row(self) -> OfflineTransaction:
        """The one row."""
        [(_, row)] = self.stored[STORED.index("rows")]
        return cast("OfflineTransaction", row)

    @property
    def entries(self) -> dict[object, Entry]:
        """What the ledger has decided."""
        return dict(self.stored[STORED.index("entries")])

    @property
    def letters(self) -> dict[str, Letter]:
        """What triage has kept."""
        return dict(self.stored[STORED.index("letters")])


class World:
    """All that can happen to a few handlers that begin together."""

    def __init__(self, start: str, names: Sequence[str], *, faults: bool) -> None:
        self.handlers = [ALL[name] for name in names]
        self.faults = FAULTS if faults else {}
        self.store = Store()
        self._was: tuple[frozenset[Any], ...] = ()
        self._held: list[dict[Any, Any]] = []
        begun = STARTS[start]
        self.model = Model(automatic=begun.automatic, by_hand=begun.by_hand)
        self.model.credit("C-0", begun.funds)
        ports = Ports(self.store, nothing)
        settle([credit("C-0", begun.funds)], ports.ledger, ports.clock, ports.patience())
        row = row_of(request("K-1", AMOUNT))
        self.store.rows[row.agent_id, row.idempotency_key] = row
        self.store.budgets[SUBJECT_REF] = Budget(begun.automatic, begun.by_hand)
        for name in begun.before:
            assert ALL[name].run(ports) == ALL[name].in_model(self.model, ())
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
                        self._checked(after, partial(check_moved, state))
        return len(self.came_from)

    @cached_property
    def _twice(self) -> frozenset[End]:
        """Every end where who comes every minute has come twice, the second time untold."""
        again = [handler for handler in self.handlers if handler.recurs]
        ends = in_some_order(self.model, [*self.handlers, *again])
        return frozenset((stored, said[: len(self.handlers)]) for stored, said in ends)

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
            if done:
                continue
            call, after = self._step(state, index, NO_FAULT, state.faulty)
            label = f"{self.handlers[index].name}: {call.method}"
            yield label, after
            if state.faulty is None:
                for name, fault in self.faults.items():
                    if fault.happens_to(call):
                        yield f"{label} {name}", self._step(state, index, fault, index)[1]

    def _step(
        self, state: State, index: int, fault: Fault, faulty: int | None
    ) -> tuple[Call, State]:
        """One call more of a handler: which one, and where that leads."""
        self._restore(state)
        turn = Turn(state.handlers[index][1], fault)
        try:
            then: tuple[bool, Any] = (True, self.handlers[index].run(Ports(self.store, turn)))
        except Paused:
            then = (False, tuple(turn.answers))
        except Crash:
            then = (False, ())
        assert turn.made is not None
        others = list(state.handlers)
        others[index] = then
        return turn.made, self._state(tuple(others), faulty)

    def _send_again(self) -> None:
        """The relay sees to a redriven row whose desk has gone away."""
        if redriven_and_queued(self.store):
            settled_again(Ports(self.store, nothing))

    def _emit_again(self) -> None:
        """The sweep and the relay see to a request whose app has gone away."""
        [row] = self.store.rows.values()
        asked = row.refund_request
        if asked is not None:
            message = refund(asked.refund_id, asked.amount_minor)
            given_back(Ports(self.store, nothing), message)

    def _close_letters(self) -> None:
        """The clock comes again, and leaves no letter open but the one that holds the row."""
        [row] = self.store.rows.values()
        for letter in list(self.store.letters.values()):
            if letter.status.is_open and letter.letter_id != row.held_by:
                result = look_again(letter, Ports(self.store, nothing).desk)
                assert result.outcome is Outcome.CLOSED, "a letter of nothing stays open"

    def _restore(self, state: State) -> None:
        self._was = state.stored
        self._held = [dict(contents) for contents in state.stored]
        for name, contents in zip(STORED, self._held, strict=True):
            setattr(self.store, name, dict(contents))

    def _state(self, handlers: tuple[tuple[bool, Any], ...], faulty: int | None) -> State:
        held = [getattr(self.store, name) for name in STORED]
        if held != self._held:  # most calls are reads
            self._was = tuple(frozenset(contents.items()) for contents in held)
        return State(self._was, handlers, faulty)

    def _checked(self, state: State, check: Callable[[State], None]) -> None:
        try:
            check(state)
        except AssertionError as error:
            raise AssertionError(f"{error}\nafter:{self.schedule(state)}") from error

    def _check_promises(self, _: State) -> None:
        """P1 to P4 and P6 to P9, at this moment."""
        entries = [*self.store.entries.values()]
        totals = self.store.refund_totals(PHONE)
        assert_books_add_up(self.store.wallets[PHONE], entries, self.store.rows.values(), totals)
        check_letters(self.store)

    def _check_end(self, state: State, allowed: frozenset[End]) -> None:
        self._checked(state, lambda _: self._drain(state, allowed))

    def _drain(self, state: State, allowed: frozenset[End]) -> None:
        """What must come again comes again, until nothing more comes of it; then all is told."""
        self._restore(state)
        self._send_again()
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
        if any(handler.name == "debit" for handler in self.handlers):
            assert row.status is not Status.QUEUED, "P5"
        shown = [None if i == state.faulty else answer for i, answer in enumerate(answers)]
        end = (facts(self.store), tuple(shown))
        known = {(stored, tuple(hide(said, state.faulty))) for stored, said in allowed}
        if state.faulty is not None and self.handlers[state.faulty].recurs:
            known |= {(stored, tuple(hide(said, state.faulty))) for stored, said in self._twice}
        assert end in known, f"no order ends like this: {end}"
        self._close_letters()


def redriven_and_queued(store: Store) -> bool:
    """Whether the row waits for the message of its redrive."""
    [row] = store.rows.values()
    redrives = [each for each in store.letters.values() if each.status is LetterStatus.REDRIVEN]
    return row.status is Status.QUEUED and bool(redrives)


def drawn(model: Model) -> Model:
    """Whoever still waits is answered by the message that the relay sends again."""
    if model.pending is not None:
        model.refund(*model.pending)
    return model


def check_told(was: State, now: State) -> None:
    """A row waits until its own request is answered, and no longer."""
    asked = was.row.refund_request
    if asked is not None and now.row.refund_request is None:
        answered = [e for e in now.entries.values() if e.refund_id == asked.refund_id]
        assert answered, "P5: the row forgets what it waits for"


def check_letters(store: Store) -> None:
    """P5 and P8 of a held row, and what triage promises of letters, at this moment."""
    [row] = store.rows.values()
    open_letters = [each for each in store.letters.values() if each.status.is_open]
    assert len(open_letters) <= 1, "two open letters of one debit"
    assert [x for x in store.letters.values() if x.due_at_ms is not None] == open_letters
    if row.status is Status.HELD:
        [letter] = open_letters
        assert row.held_by == letter.letter_id, "P8: held by another letter"
        sending = (letter.agent_id, letter.idempotency_key, letter.attempt)
        assert sending == (row.agent_id, row.idempotency_key, row.attempt), "P8"
    assert store.records.keys() == store.letters.keys(), "a letter without its record"
    assert set(store.budgets) <= {SUBJECT_REF}, "one debit has one budget"
    spent = store.budgets.get(SUBJECT_REF, Budget())
    assert spent.automatic <= 3, "the clock redrives three times"
    assert spent.by_hand <= 5, "people redrive five times"


def check_moved(was: State, now: State) -> None:
    """A letter and its row move together, once; and the relay derives each message once."""
    before, after = was.row, now.row
    sent = [each for each in from_row(before, after) if each.destination is Destination.TX_QUEUE]
    assert len(sent) == (after.status is Status.QUEUED and after.attempt > before.attempt)
    assert after.attempt in {before.attempt, before.attempt + 1}
    ends = {
        letter_id: letter.status
        for letter_id, letter in now.letters.items()
        if letter != was.letters.get(letter_id)
    }
    for letter_id in ends.keys() & was.letters.keys():
        earlier, later = was.letters[letter_id], now.letters[letter_id]
        assert earlier.status.is_open or later.status is earlier.status, "a letter ends once"
        assert later.history[: len(earlier.history)] == earlier.history, "history is kept"
        told = from_letter(earlier, later)
        assert bool(told) == (earlier.status is not later.status)
        assert not told or later.revision == earlier.revision + 1, "one event for two changes"
    if before.status is not Status.HELD and after.status is Status.HELD:
        assert after.held_by in ends.keys() - was.letters.keys(), "held without a letter"
    if before.status is Status.HELD and before.held_by is not None:
        end = ends.get(before.held_by)
        expected = {Status.QUEUED: LetterStatus.REDRIVEN, Status.FAILED: LetterStatus.DISCARDED}
        if after.status in expected:
            assert end is expected[after.status], "a row leaves its letter alone"
        else:
            assert after.status in {Status.HELD, Status.CANCELLED}
            assert end not in expected.values(), "a letter leaves its row alone"


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
    told_by_row = (
        str(row.status),
        row.attempt if row.status in {Status.QUEUED, Status.HELD} else None,
        NAMES[row.held_by] if row.held_by else None,
        row.refunded_minor or 0,
        pending,
        row.cancelled_by,
    )
    entries = tuple(sorted(map(fact, store.entries.values())))
    letters = sorted((NAMES[each.letter_id], str(each.status)) for each in store.letters.values())
    spent = store.budgets.get(SUBJECT_REF, Budget())
    dead = (tuple(letters), spent.automatic, spent.by_hand)
    return (wallet.balance_minor, wallet.version, told_by_row, entries, dead)


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
        where = (model.whole(), said, waits)
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
    sent = model.copy()
    if sent.status == "queued" and "redriven" in sent.letters.values():
        sent.debit()
    for order in itertools.permutations(waits):
        then, answers = sent.copy(), list(said)
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
