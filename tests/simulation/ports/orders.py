"""What the model comes to where one request is done after the other, in every order."""

import itertools
from collections.abc import Iterator, Sequence

from tests.simulation.ports.handlers import Handler
from tests.simulation.ports.ledger_model import AGAIN, Answer, Model

type End = tuple[object, tuple[Answer, ...]]
"""What is stored when all is done, and what each was told."""


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


def drawn(model: Model) -> Model:
    """Whoever still waits is answered by the message that the relay sends again."""
    if model.pending is not None:
        model.refund(*model.pending)
    return model
