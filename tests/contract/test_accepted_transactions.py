"""`AcceptedTransactions`: one row per key, whoever asks and however often."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from tests.contract.places import Place
from tests.fakes.memory import START_MS
from tests.fakes.samples import request, row_of
from wallet_ledger.domain.ids import AgentId, IdempotencyKey
from wallet_ledger.domain.transactions import AMOUNT_MINOR_MAX, Status

CLOSED = replace(
    row_of(request(), Status.FAILED), reason="INSUFFICIENT_FUNDS", updated_at_ms=START_MS + 5
)


@pytest.mark.parametrize(
    "asked",
    [
        request(),
        request(captured_at="2025-10-09T12:00:00.123456789+03:00"),
        request("a:b.c_d-e" + "9" * 55, agent_id="A" * 64),
        request(amount_minor=AMOUNT_MINOR_MAX),
        request(amount_minor=1),
    ],
)
def test_a_new_row_is_found_as_it_was_given(place: Place, asked: object) -> None:
    given = row_of(asked)  # type: ignore[arg-type]

    assert place.accepted().put_if_new(given) is None

    assert place.accepted().find(given.agent_id, given.idempotency_key) == given


def test_a_key_that_is_taken_answers_with_its_row_and_keeps_it(place: Place) -> None:
    first = row_of(request(amount_minor=100))
    place.accepted().put_if_new(first)

    for again in (first, row_of(request(amount_minor=250)), row_of(request(phone="254700000001"))):
        assert place.accepted().put_if_new(again) == first

    assert place.accepted().find(first.agent_id, first.idempotency_key) == first


@pytest.mark.parametrize("status", Status)
def test_a_key_is_taken_in_whatever_status_its_row_is(place: Place, status: Status) -> None:
    stored = replace(row_of(request(), status), reason="DISCARDED", refunded_minor=40)
    place.put_row(stored)

    assert place.accepted().put_if_new(row_of(request())) == stored
    assert place.accepted().find(stored.agent_id, stored.idempotency_key) == stored


def test_an_unknown_key_and_another_agents_key_are_not_found(place: Place) -> None:
    place.put_row(CLOSED)

    assert place.accepted().find(CLOSED.agent_id, IdempotencyKey("K-2")) is None
    assert place.accepted().find(AgentId("AG-002"), CLOSED.idempotency_key) is None


def test_two_agents_may_use_the_same_key(place: Place) -> None:
    mine, theirs = row_of(request()), row_of(request(agent_id="AG-002", amount_minor=7))

    assert place.accepted().put_if_new(mine) is None
    assert place.accepted().put_if_new(theirs) is None

    assert place.accepted().find(theirs.agent_id, theirs.idempotency_key) == theirs


def test_of_many_at_once_exactly_one_is_stored(place: Place) -> None:
    rows = [row_of(request(amount_minor=amount)) for amount in range(1, 9)]
    barrier = Barrier(len(rows))
    table = place.accepted()

    def put(index: int) -> object:
        barrier.wait()
        return table.put_if_new(rows[index])

    with ThreadPoolExecutor(len(rows)) as pool:
        answers = list(pool.map(put, range(len(rows))))

    [winner] = [row for row, answer in zip(rows, answers, strict=True) if answer is None]
    assert [answer for answer in answers if answer is not None] == [winner] * (len(rows) - 1)
