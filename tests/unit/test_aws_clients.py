"""How AWS is called: pinned attempts, units reported, and errors named without their text."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, OperationNotPageableError

from tests.fakes.faults import LASTING, PASSING
from tests.fakes.samples import PHONE
from tests.fakes.wire import Answer, Wire, error, ok, repeatedly
from wallet_ledger.aws import clients
from wallet_ledger.aws.clients import CONFLICT_TRIES
from wallet_ledger.errors import Unavailable


@pytest.fixture
def consumed() -> list[tuple[str, float]]:
    """What the client reported."""
    return []


@pytest.fixture
def client(consumed: list[tuple[str, float]]) -> Any:
    """A client as the functions have it."""
    return clients.dynamodb(on_consumed=lambda name, units: consumed.append((name, units)))


KEY: Any = {"phone": {"S": PHONE}, "txId": {"S": "balance"}}
PUT: Any = {"Put": {"TableName": "T", "Item": KEY}}

type Operation = Callable[[Any], object]

OPERATIONS: dict[str, tuple[Operation, str]] = {
    "GetItem": (lambda c: c.get_item(TableName="T", Key=KEY), "ConsumedReadUnits"),
    "Query": (
        lambda c: c.query(TableName="T", KeyConditionExpression="a = :a"),
        "ConsumedReadUnits",
    ),
    "PutItem": (lambda c: c.put_item(TableName="T", Item=KEY), "ConsumedWriteUnits"),
    "UpdateItem": (lambda c: c.update_item(TableName="T", Key=KEY), "ConsumedWriteUnits"),
    "TransactWriteItems": (
        lambda c: c.transact_write_items(TransactItems=[PUT]),
        "ConsumedWriteUnits",
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_asks_for_its_units_and_reports_them(
    wire: Wire, client: Any, consumed: list[tuple[str, float]], name: str
) -> None:
    operation, metric = OPERATIONS[name]
    units: Any = {"TableName": "T", "CapacityUnits": 3.5}
    wire.answers(ok({"ConsumedCapacity": [units, units] if "Transact" in name else units}))

    operation(client)

    assert wire.operations() == [name]
    assert wire.sent[0].body["ReturnConsumedCapacity"] == "TOTAL"
    assert consumed == [(metric, 3.5)] * (2 if "Transact" in name else 1)


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_a_call_is_tried_at_most_twice_and_then_is_unavailable(
    wire: Wire, client: Any, fault: Answer
) -> None:
    wire.answer = fault

    with pytest.raises(Unavailable) as raised, clients.passing_errors():
        client.get_item(TableName="T", Key=KEY)

    assert len(wire.sent) <= 2
    assert PHONE not in str(raised.value)
    assert str(raised.value)


@pytest.mark.parametrize("name", ["PutItem", "UpdateItem"])
def test_a_plain_write_waits_for_a_transaction_on_its_item(
    wire: Wire, client: Any, name: str
) -> None:
    """No SDK does: the item is being settled, and is free a moment later."""
    write, _ = OPERATIONS[name]
    conflict = error("TransactionConflictException")
    wire.answers(*[conflict] * (CONFLICT_TRIES - 1), ok())
    write(client)
    wire.answer = conflict
    with pytest.raises(Unavailable), clients.passing_errors():
        write(client)
    assert len(wire.sent) == 2 * CONFLICT_TRIES


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING.keys())
def test_an_error_that_does_not_pass_is_let_through(wire: Wire, client: Any, fault: Answer) -> None:
    wire.answer = fault

    with pytest.raises(ClientError), clients.passing_errors():
        client.get_item(TableName="T", Key=KEY)

    assert len(wire.sent) == 1


def test_a_call_that_botocore_itself_refuses_is_let_through(client: Any) -> None:
    with pytest.raises(OperationNotPageableError), clients.passing_errors():
        client.get_paginator("put_item")


def test_the_name_of_an_error_never_holds_its_message(wire: Wire, client: Any) -> None:
    wire.answers(*repeatedly(error("ThrottlingException")))

    with pytest.raises(ClientError) as raised:
        client.get_item(TableName="T", Key=KEY)

    assert PHONE in str(raised.value)  # the message is there, for whoever prints it by mistake
    assert clients.error_code(raised.value) == "ThrottlingException"


def test_clients_are_made_without_boto3s_resource_layer() -> None:
    assert type(clients.sqs()).__module__ == "botocore.client"
    assert type(clients.events()).__module__ == "botocore.client"


def test_what_a_request_may_not_hold_is_left_to_aws_and_caught_by_the_tests(
    wire: Wire, client: Any
) -> None:
    wire.answers(ok())
    with pytest.raises(AssertionError, match=r"PutItem: Invalid type for parameter Item\.id\.N"):
        client.put_item(TableName="T", Item={"id": {"N": 5}})
