"""Every interleaving of a few requests about one debit, and whether it ends as some order would.

Each handler is the real code on the fakes, and is stopped at each call of a port. A state is what
the store holds and what each handler has been answered so far; from every state every handler is
let go by one call. So all schedules are tried, and no state twice: a handler is run again from its
start on the answers that it had, which is why nothing here needs a thread.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

from reconcile.settle import settle
from tests.fakes.memory import Store
from tests.fakes.promises import assert_books_add_up
from tests.fakes.samples import PHONE, credit, refund, request, row_of
from tests.fakes.scripted import Call, Crash
from tests.simulation.ports.handlers import (
    ALL,
    STARTS,
    SUBJECT_REF,
    Ports,
    given_back,
    settled_again,
)
from tests.simulation.ports.ledger_model import AGAIN, AMOUNT, Answer, Model
from tests.simulation.ports.orders import End, in_some_order
from tests.simulation.ports.states import (
    STORED,
    State,
    check_letters,
    check_moved,
    check_told,
    facts,
    redriven_and_queued,
)
from tests.simulation.ports.turns import FAULTS, NO_FAULT, Fault, Paused, Turn, nothing
from triage.act import Outcome, look_again
from wallet_ledger.domain.letters import Budget
from wallet_ledger.domain.transactions import Status


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


def hide(answers: Iterable[Answer], faulty: int | None) -> Iterator[Answer | None]:
    """Who met a fault may be told of what it has done as of something done before."""
    for index, answer in enumerate(answers):
        yield None if index == faulty else answer
