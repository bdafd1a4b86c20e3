"""The row's adapters: every write is conditional, and what passes is `Unavailable`."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.fakes.faults import LASTING, PASSING
from tests.fakes.memory import START_MS
from tests.fakes.samples import AGENT, request, row_of
from tests.fakes.wire import Answer, Wire, error, ok, reset
from wallet_ledger.aws import clients, items
from wallet_ledger.aws.transactions import DynamoAcceptedTransactions, DynamoOpenTransactions
from wallet_ledger.domain.ids import IdempotencyKey
from wallet_ledger.domain.transactions import Status
from wallet_ledger.errors import Unavailable
from wallet_ledger.ports import OpenRow

SEEN = OpenRow(AGENT, IdempotencyKey("K-1"), Status.QUEUED, 1, START_MS, START_MS, START_MS)
ROW = row_of(request())


@cache
def _client() -> Any:
    return clients.dynamodb(on_consumed=lambda _name, _units: None)


def accepted() -> DynamoAcceptedTransactions:
    """The adapter."""
    return DynamoAcceptedTransactions(_client(), table="OfflineTx")


def open_transactions() -> DynamoOpenTransactions:
    """The adapter."""
    return DynamoOpenTransactions(_client(), table="OfflineTx")


CALLS: dict[str, Callable[[], object]] = {
    "put_if_new": lambda: accepted().put_if_new(ROW),
    "find": lambda: accepted().find(AGENT, IdempotencyKey("K-1")),
    "open_rows": lambda: open_transactions().open_rows(3, 10),
    "send_again": lambda: open_transactions().send_again(SEEN, START_MS, START_MS),
    "expire": lambda: open_transactions().expire(SEEN, START_MS),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@every_call
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_whatever_passes_is_unavailable_and_never_an_answer(
    wire: Wire, call: Callable[[], object], fault: Answer
) -> None:
    wire.answer = fault

    with pytest.raises(Unavailable) as raised:
        call()

    assert "254712345678" not in str(raised.value)


@every_call
@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING.keys())
def test_whatever_does_not_pass_is_raised_as_it_is(
    wire: Wire, call: Callable[[], object], fault: Answer
) -> None:
    wire.answers(fault)

    with pytest.raises(ClientError):
        call()


@every_call
def test_every_use_is_one_call(wire: Wire, call: Callable[[], object]) -> None:
    wire.answers(ok({"Items": []}))

    call()

    assert len(wire.sent) == 1


@pytest.mark.parametrize("name", ["put_if_new", "send_again", "expire"])
def test_every_write_has_a_condition(wire: Wire, name: str) -> None:
    wire.answers(ok())

    CALLS[name]()

    assert wire.sent[0].body["ConditionExpression"]


def test_a_row_is_read_as_of_now(wire: Wire) -> None:
    wire.answers(ok())

    CALLS["find"]()

    assert wire.sent[0].body["ConsistentRead"] is True


def test_a_row_of_its_own_that_a_lost_answer_left_behind_is_no_replay(wire: Wire) -> None:
    taken = error("ConditionalCheckFailedException", Item=items.offline_tx_item(ROW))
    wire.answers(reset, taken)

    assert accepted().put_if_new(ROW) is None


def test_p1_anothers_row_is_met_as_anothers_after_a_lost_answer_too(wire: Wire) -> None:
    other = row_of(request(amount_minor=7))
    taken = error("ConditionalCheckFailedException", Item=items.offline_tx_item(other))
    wire.answers(reset, taken)

    assert accepted().put_if_new(ROW) == other


def test_a_taken_key_answers_with_its_row_in_the_same_call(wire: Wire) -> None:
    wire.answers(error("ConditionalCheckFailedException", Item=items.offline_tx_item(ROW)))

    assert accepted().put_if_new(ROW) == ROW


@pytest.mark.parametrize("name", ["send_again", "expire"])
def test_a_condition_that_does_not_hold_is_a_no(wire: Wire, name: str) -> None:
    wire.answers(error("ConditionalCheckFailedException"))

    assert CALLS[name]() is False
