"""A replay on the deployed stack: every figure is what its seed says."""

import json
from typing import Any

import pytest

from tests.e2e.actors import wakala
from wakala.stack import Stack
from wakala.traffic import Shape, Shares, Traffic, make_traffic

NUMBER, SEED = 60, 7
SHARES = Shares(duplicates=0.15, reorders=0.1, overdrafts=0.1, refunds=0.1)
SHARE_OPTIONS = (
    f"--duplicates {SHARES.duplicates} --reorders {SHARES.reorders}"
    f" --overdrafts {SHARES.overdrafts} --refunds {SHARES.refunds}"
)
OPTIONS = f"--shape branch --number {NUMBER} --rate 40 --seed {SEED} {SHARE_OPTIONS} --json"
MILLION = 1_000_000


@pytest.fixture(scope="module")
def traffic() -> Traffic:
    """What that seed sends."""
    return make_traffic(Shape.BRANCH, NUMBER, seed=SEED, shares=SHARES, rate=40)


@pytest.fixture(scope="module")
def replayed(stack: Stack) -> dict[str, Any]:
    """What the command says of the first time that it is replayed."""
    told: dict[str, Any] = json.loads(wakala("replay", *OPTIONS.split(" ")).stdout)
    assert (told["ok"], told["broken"]) == (True, [])
    measures: dict[str, Any] = told["measures"]
    return measures


def refused(traffic: Traffic) -> list[str]:
    """Keys that ask for more than their wallet ever held."""
    documents = {each.document["idempotencyKey"]: each.document for each in traffic.sent}
    return [k for k, d in documents.items() if d["amount"] > traffic.openings[d["phone"]]]


def asked_again(traffic: Traffic, replayed: dict[str, Any]) -> int:
    """How many requests the API got more than were to be sent: on a busy machine an answer may
    come late, and the request is sent again."""
    requests = {(each.at_s, each.document["agentId"]) for each in traffic.sent}
    got = replayed["usage"]["apigateway.requests"] * NUMBER / MILLION
    return round(got) - len(requests) - len(traffic.refunded)


def test_every_request_and_every_end_is_what_the_seed_says(
    traffic: Traffic, replayed: dict[str, Any]
) -> None:
    again = sum(each.repeated for each in traffic.sent)
    assert min(again, len(refused(traffic)), len(traffic.refunded)) > 0
    requests, more = replayed["requests"], asked_again(traffic, replayed)
    assert requests.keys() == {"accepted", "replayed", "refunds"}
    assert more >= 0
    assert NUMBER - 10 * more <= requests["accepted"] <= NUMBER
    assert requests["accepted"] + requests["replayed"] == len(traffic.sent)
    assert requests["refunds"] == len(traffic.refunded)
    assert replayed["statuses"] == {
        "synced": NUMBER - len(refused(traffic)) - len(traffic.refunded),
        "failed: INSUFFICIENT_FUNDS": len(refused(traffic)),
        "refunded": len(traffic.refunded),
    }
    assert (replayed["transactions"], replayed["interrupted"]) == (NUMBER, False)
    assert replayed["duplicates"] == 0
    assert replayed["asked"]["seed"] == SEED


def test_all_that_was_decided_has_a_latency_and_the_dead_letters_were_looked_at(
    replayed: dict[str, Any],
) -> None:
    latency = replayed["latency"]
    assert latency["count"] == sum(count for _, count in latency["bins"]) == NUMBER
    assert 0 < latency["p50Ms"] <= latency["p95Ms"] <= latency["p99Ms"] <= latency["maxMs"]
    moments = [each["atS"] for each in replayed["depths"]]
    assert moments == sorted({*moments})
    assert moments[-1] >= replayed["seconds"]  # a last look at the end
    assert all(each["letters"] <= NUMBER for each in replayed["depths"])


def test_units_and_calls_are_what_each_transaction_has_to_cost(
    traffic: Traffic, replayed: dict[str, Any]
) -> None:
    """By the rules of docs/architecture.md; what depends on how groups fall has bounds."""
    again, more = sum(each.repeated for each in traffic.sent), asked_again(traffic, replayed)
    refunds, letters = len(traffic.refunded), len(refused(traffic))
    written = {
        each["resource"]: round(each["written"] * NUMBER / MILLION) for each in replayed["units"]
    }
    assert {each["toldBy"] for each in replayed["units"]} == {"the functions' clients"}
    # Put, settle in a transaction; a refused Put of a duplicate; asked for and refunded.
    rows = NUMBER * 3 + again + refunds * 4
    assert rows <= written["OfflineTx"] <= rows + 10 * more
    assert written["OfflineTx/OpenTx"] == NUMBER * 2 + refunds * 2
    entries = NUMBER * 2 + refunds * 6
    assert entries + NUMBER / 10 * 2 <= written["WalletLedger"] <= entries + NUMBER * 2
    assert written["DeadLetters"] == letters * 4
    assert written["DeadLetters/AllLetters"] == letters
    calls = {name: round(number * NUMBER) for name, number in replayed["calls"].items()}
    asked = NUMBER + again + refunds * 3
    assert asked <= calls["ingest"] <= asked + 10 * more
    assert NUMBER / 10 * 2 <= calls["reconcile"] <= NUMBER * 2
    assert calls["triage"] == letters
    assert 0 < calls["relay"] <= 2 * (NUMBER + refunds) + letters


def test_what_is_billed_is_counted_and_priced(traffic: Traffic, replayed: dict[str, Any]) -> None:
    usage = {name: number * NUMBER / MILLION for name, number in replayed["usage"].items()}
    refunds, letters = len(traffic.refunded), len(refused(traffic))
    assert usage["eventbridge.events"] == pytest.approx(NUMBER + letters + 2 * refunds)
    assert refunds <= round(usage["sqs.standard_requests"]) <= 3 * refunds
    units = replayed["units"]
    for kind, key in (("written", "dynamodb.write_units"), ("read", "dynamodb.read_units")):
        assert replayed["usage"][key] == pytest.approx(sum(each[kind] for each in units))
    for key in ("lambda.requests", "lambda.gb_seconds", "cloudwatch.log_gb"):
        assert usage[key] > 0, key


def test_the_same_seed_again_is_all_replays_and_moves_no_money(
    traffic: Traffic, replayed: dict[str, Any]
) -> None:
    told = json.loads(wakala("replay", *OPTIONS.split(" ")).stdout)
    measures = told["measures"]
    assert told["ok"]
    assert measures["requests"] == {"replayed": len(traffic.sent)}
    assert measures["statuses"] == replayed["statuses"]
    assert measures["calls"].keys() == {"ingest"}
