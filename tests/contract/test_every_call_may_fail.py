"""Whatever befalls any call of any function, its work gets done, once, and nobody is told a lie.

The calls are those that each function is seen to make, so that a new one is tried too.
"""

from collections import Counter
from typing import Any

import pytest

from tests.contract import scenarios
from tests.contract.functions import (
    READS,
    Befallen,
    Functions,
    Place,
    invoked,
    killed_after,
    killed_before,
    places,
    wire_up,
)
from tests.contract.scenarios import Work
from tests.engine import TABLES_ON, Aws
from tests.fakes.faults import PASSING
from tests.fakes.scripted import Crash
from tests.fakes.wire import Answer, Sent, Wire, cancelled, lost, through
from tests.simulation.cloud.clients import HTTP_ADDRESS, LeapingTime
from wallet_ledger.telemetry import HandlerFailed

DELIVERIES_MAX = 4
ENGINES = TABLES_ON | {"simulated": "simulated_aws_over_http"}
WITH_EVERY_FAULT = ("engine", "simulated")


@pytest.fixture(scope="module", params=ENGINES)
def functions(request: pytest.FixtureRequest) -> Functions:
    """All of them, wired once on each engine."""
    aws: Aws = request.getfixturevalue(ENGINES[request.param])
    return wire_up(aws)


@pytest.fixture(autouse=True)
def no_pause_on_the_simulator(
    functions: Functions, leaping_time: LeapingTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time leaps where the functions pause."""
    if functions.aws.endpoint_url == HTTP_ADDRESS:
        monkeypatch.setattr("wallet_ledger.clock.time", leaping_time)


def conflict_beside(code: str) -> Answer:
    """A transaction is cancelled for a passing reason beside conditions that do not hold."""

    def answer(sent: Sent) -> Any:
        count = len(sent.body.get("TransactItems", "1"))
        return cancelled(*["ConditionalCheckFailed"] * (count - 1), code)(sent)

    return answer


CANCELLATIONS = {
    f"cancelled by {code}": conflict_beside(code)
    for code in ("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded")
}
KILLS = {"killed before": killed_before, "killed after": killed_after}
# One of each kind that botocore and the adapters tell apart: every other code is tried on every
# call of every adapter in tests/unit/test_aws_*.py.
KINDS = {
    name: PASSING[name]
    for name in (
        "TransactionInProgressException",
        "TransactionConflictException",
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "InternalServerError",
        "reset",
    )
}
FAULTS: dict[str, Answer] = {**KINDS, "answer lost": lost, **CANCELLATIONS, **KILLS}
# A single failure of most kinds is botocore's to try again; of these it is ours.
SINGLE = {"TransactionConflictException", "answer lost", *CANCELLATIONS, *KILLS}
# Triage makes the calls that others make, and what no engine has done is the same on all of them:
# a fault before, beside and after each is enough there.
OF_EACH_SORT = ("reset", "cancelled by TransactionConflict", "answer lost", "killed after")
TRIED = [
    (engine, name, fault)
    for engine in ENGINES
    for name in scenarios.ALL
    for every in [engine in WITH_EVERY_FAULT and not name.startswith("triage")]
    for fault in (FAULTS if every else OF_EACH_SORT)
]


def deliver_until_done(
    functions: Functions, wire: Wire, work: Work, place: Place | None, fault: Answer, lasting: bool
) -> Befallen:
    """Deliver, with the fault in the first delivery; what was seen of it then."""
    wire.answer = through
    first = Befallen(place, fault, lasting=lasting, base=work.base)
    befallen = first
    for _ in range(DELIVERIES_MAX):

        def invoke(name: str, event: dict[str, Any], befallen: Befallen = befallen) -> Any:
            return invoked(functions, wire, befallen, name, event)

        try:
            done = work.deliver(invoke)
        except Crash:
            done = False
        except HandlerFailed:
            # Only what the clock starts says so by raising: it is run again a minute later.
            assert isinstance(work, scenarios.Sweep | scenarios.LookAtLetters)
            done = False
        if done:
            break
        befallen = Befallen(None, through, lasting=False, base=work.base)
    else:
        pytest.fail(f"not done after {DELIVERIES_MAX} deliveries")
    work.check()
    return first


@pytest.mark.parametrize(("functions", "name", "fault"), TRIED, indirect=["functions"])
def test_work_gets_done_once_whatever_befalls_any_call(
    functions: Functions, wire: Wire, caplog: pytest.LogCaptureFixture, name: str, fault: str
) -> None:
    make = scenarios.ALL[name]
    for place in places(calls_of(functions, wire, name)):
        if fault in CANCELLATIONS and place.operation != "TransactWriteItems":
            continue
        single = fault in SINGLE and place.operation not in READS
        for lasting in {not single, fault not in KILLS}:
            wire.answer = through
            befallen = deliver_until_done(
                functions, wire, make(functions), place, FAULTS[fault], lasting=lasting
            )
            # How often contention is waited for is a matter of time: a later call may not come.
            assert befallen.hits or place.occurrence > 1, f"{place} was never called"
    # What passes wakes nobody.
    assert "invariant violated" not in caplog.messages


def calls_of(functions: Functions, wire: Wire, name: str) -> Counter[tuple[str, str]]:
    """How often each kind of call is made where nothing fails, but for those tried elsewhere."""
    if name not in functions.calls:
        wire.answer = through
        work = scenarios.ALL[name](functions)
        healthy = deliver_until_done(functions, wire, work, None, through, lasting=False)
        functions.calls[name] = healthy.calls
    calls = functions.calls[name]
    elsewhere = scenarios.TRIED_IN.get(name)
    if elsewhere is None:
        return calls
    tried = calls_of(functions, wire, elsewhere)
    return Counter({kind: count for kind, count in calls.items() if kind not in tried})


def test_every_function_and_every_kind_of_write_is_tried(functions: Functions, wire: Wire) -> None:
    """So that a scenario which no longer reaches a call is noticed."""
    made = {(name, *kind) for name in scenarios.ALL for kind in calls_of(functions, wire, name)}
    queues, tables = functions.queues, functions.tables

    assert {name.split(":")[0] for name in scenarios.ALL} == functions.handlers.keys()
    assert {each for each in made if each[1] not in READS} == {
        ("ingest: one", "PutItem", tables.offline_tx),
        ("ingest: a batch", "PutItem", tables.offline_tx),
        ("ingest: cancel", "TransactWriteItems", ""),
        ("ingest: refund", "TransactWriteItems", ""),
        ("ingest-bus", "SendMessageBatch", queues["TxQueue"]),
        ("ingest-bus", "SendMessageBatch", queues["RefundQueue"]),
        ("ingest-bus", "SendMessageBatch", queues["DeliveryFailuresQueue"]),
        ("relay: rows", "SendMessageBatch", queues["TxQueue"]),
        ("relay: rows", "SendMessageBatch", queues["FailedTxQueue"]),
        ("relay: rows", "SendMessageBatch", queues["DeliveryFailuresQueue"]),
        ("relay: rows", "PutEvents", ""),
        ("relay: entries", "PutEvents", ""),
        ("sweep", "UpdateItem", tables.offline_tx),
        ("reconcile", "TransactWriteItems", ""),
        ("reconcile", "SendMessageBatch", queues["DeliveryFailuresQueue"]),
        ("reconcile: contended", "ChangeMessageVisibilityBatch", queues["TxQueue"]),
        ("refund", "TransactWriteItems", ""),
        ("refund", "SendMessageBatch", queues["DeliveryFailuresQueue"]),
        ("refund: contended", "ChangeMessageVisibilityBatch", queues["RefundQueue"]),
        ("triage", "TransactWriteItems", ""),
        ("triage-desk: redrive", "TransactWriteItems", ""),
        ("triage-desk: redrive", "SendMessageBatch", queues["TxQueue"]),
        ("triage-desk: redrive others", "SendMessageBatch", queues["RefundQueue"]),
        ("triage-desk: redrive others", "SendMessageBatch", queues["InboxQueue"]),
        ("triage-desk: due", "UpdateItem", functions.letters_table),
    }
