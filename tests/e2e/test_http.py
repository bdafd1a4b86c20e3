"""What an agent's app sees of the deployed stack."""

import json
from typing import Any

import httpx
import pytest

from tests.e2e.actors import Agent, BackOffice, letter_with
from wakala.home import checkout
from wakala.stack import Stack

CASES = json.loads((checkout() / "tests" / "cases" / "requests.json").read_text(encoding="utf-8"))


def test_a_transaction_is_accepted_settled_and_debited(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 1_000)
    sent = agent.transaction(phone, 250)

    answer = agent.submit(sent)

    assert answer.status_code == 202
    assert answer.json()["status"] == "queued"
    view = agent.ended(sent["idempotencyKey"])
    assert view["status"] == "synced"
    assert (view["amount"], view["currency"]) == (250, "KES")
    assert back_office.balance(phone) == 750


def test_a_replay_answers_200_with_the_outcome_and_debits_nothing(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C01, C22."""
    back_office.fund(phone, 1_000)
    sent = agent.transaction(phone, 300)
    agent.submit(sent)
    agent.ended(sent["idempotencyKey"])

    again = agent.submit(sent)

    assert again.status_code == 200
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["status"] == "synced"
    assert back_office.balance(phone) == 700


def test_the_same_content_in_another_spelling_is_a_replay(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C30, C45."""
    back_office.fund(phone, 100)
    national = f"0{phone[3:6]} {phone[6:9]}-{phone[9:]}"
    sent = agent.transaction(national, 100, idempotencyKey=f"K:{phone}." + "x" * 49)
    assert agent.submit(sent).status_code == 202
    assert agent.ended(sent["idempotencyKey"])["status"] == "synced"

    spelt = f"+{phone[:3]} ({phone[3:6]}) {phone[6:]}"
    text = json.dumps(dict(reversed((sent | {"phone": spelt}).items())), indent=4)
    again = agent.http.post("/tx/offline", content=text)

    assert again.status_code == 200
    assert again.headers["Idempotent-Replayed"] == "true"
    assert back_office.balance(phone) == 0


def test_a_reused_key_is_refused_and_names_what_differs(agent: Agent, phone: str) -> None:
    sent = agent.transaction(phone, 100)
    agent.submit(sent)

    answer = agent.submit(sent | {"amount": 101})

    assert answer.status_code == 422
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["retryable"]) == ("KEY_REUSED", False)
    assert [error["field"] for error in problem["errors"]] == ["amount"]
    assert agent.status(sent["idempotencyKey"]).json()["amount"] == 100


def test_refusals_say_why_and_reach_the_business_dead_letter_queue(
    stack: Stack, agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C19's first half: nothing moves on a refusal (P7)."""
    unknown = agent.transaction(phone, 1)
    agent.submit(unknown)
    assert agent.ended(unknown["idempotencyKey"])["reason"] == "WALLET_NOT_FOUND"
    back_office.fund(phone, 100)
    too_much = agent.transaction(phone, 101)
    dollars = agent.transaction(phone, 1, currency="USD")

    agent.batch(too_much, dollars)

    assert agent.ended(too_much["idempotencyKey"])["reason"] == "INSUFFICIENT_FUNDS"
    assert agent.ended(dollars["idempotencyKey"])["reason"] == "CURRENCY_MISMATCH"
    assert back_office.balance(phone) == 100
    back_office.hear("TransactionFailed", idempotencyKey=too_much["idempotencyKey"])
    letter = letter_with(stack, too_much["idempotencyKey"], source="FailedTxQueue")
    assert (letter["why"], letter["status"]) == ("INSUFFICIENT_FUNDS", "noted")


def test_a_refusal_is_final_even_when_the_wallet_is_funded_later(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    sent = agent.transaction(phone, 50)
    agent.submit(sent)
    assert agent.ended(sent["idempotencyKey"])["status"] == "failed"
    back_office.fund(phone, 500)

    again = agent.submit(sent)

    assert (again.status_code, again.json()["status"]) == (200, "failed")
    assert back_office.balance(phone) == 500


def test_one_phone_is_settled_in_order_and_never_below_zero(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """P2, P10: 10 debits of 30 on a balance of 100: the first three, whoever comes later."""
    back_office.fund(phone, 100)
    sent = [agent.transaction(phone, 30) for _ in range(10)]

    agent.batch(*sent)

    statuses = [agent.ended(each["idempotencyKey"])["status"] for each in sent]
    assert statuses == ["synced"] * 3 + ["failed"] * 7
    assert back_office.balance(phone) == 10


def test_two_agents_with_equal_keys_on_one_wallet_are_two_debits(
    agent: Agent, other_agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 100)
    for each in (agent, other_agent):
        sent = each.transaction(phone, 40, idempotencyKey=f"same-{phone}")
        assert each.submit(sent).status_code == 202
    for each in (agent, other_agent):
        assert each.ended(f"same-{phone}")["status"] == "synced"
    assert back_office.balance(phone) == 20


def test_a_batch_answers_each_item_on_its_own(agent: Agent, phone: str) -> None:
    """C24, C44: accepted, replay, reused; and one bad item spoils no other."""
    first = agent.transaction(phone, 100)
    bad = agent.transaction(phone, 0)
    foreign = agent.transaction(phone, 100) | {"agentId": "AG-999"}

    results = agent.batch(first, first, first | {"amount": 250}, bad, foreign, "text")

    assert results[0]["replayed"] is False
    assert results[1]["replayed"] is True
    codes = [result["error"]["code"] for result in results[2:]]
    assert codes == ["KEY_REUSED", "VALIDATION_FAILED", "AGENT_MISMATCH", "VALIDATION_FAILED"]
    assert agent.status(bad["idempotencyKey"]).status_code == 404


def test_without_an_id_token_nobody_gets_in(stack: Stack, agent: Agent, phone: str) -> None:
    """C04."""
    sent = agent.transaction(phone, 1)
    for headers in ({}, {"Authorization": "not-a-token"}, {"Authorization": _access_token(stack)}):
        answer = httpx.post(f"{stack.api_url}/tx/offline", json=sent, headers=headers)
        assert answer.status_code == 401, headers.keys()
        assert answer.json()["code"] == "UNAUTHENTICATED"
    assert agent.status(sent["idempotencyKey"]).status_code == 404


def test_agents_do_not_see_each_other(agent: Agent, other_agent: Agent, phone: str) -> None:
    """C04, P11."""
    sent = agent.transaction(phone, 1)
    agent.submit(sent)

    assert other_agent.submit(sent).json()["code"] == "AGENT_MISMATCH"
    foreign = other_agent.status(sent["idempotencyKey"])
    unknown = other_agent.status("never-used")
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.json() == unknown.json()


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: str(case["id"]))
def test_a_case_gets_what_it_must(agent: Agent, case: dict[str, Any]) -> None:
    body = case.get("raw") if "raw" in case else json.dumps(CASES["template"] | case["patch"])

    answer = agent.http.post("/tx/offline", content=body)

    assert answer.status_code == case["status"], answer.text
    if "code" in case:
        assert answer.json()["code"] == case["code"]
        key = case.get("patch", {}).get("idempotencyKey", "case-dup-member")
        assert agent.status(key).status_code == 404


def test_too_much_is_refused_before_anything_is_stored(agent: Agent, phone: str) -> None:
    """C47."""
    sent = agent.transaction(phone, 1)
    padded = agent.http.post("/tx/offline", content=json.dumps(sent) + " " * 300_000)
    assert (padded.status_code, padded.json()["code"]) == (413, "TOO_LARGE")
    crowd = agent.http.post("/tx/offline/batch", json={"transactions": [sent] * 5_000})
    assert crowd.status_code in (400, 413)
    long_key = agent.submit(sent | {"idempotencyKey": "k" * 2_049})
    assert long_key.status_code == 400
    assert agent.status("k" * 2_049).status_code == 404
    assert agent.status(sent["idempotencyKey"]).status_code == 404


def test_status_shows_nothing_internal_and_only_integers(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    """C50."""
    back_office.fund(phone, 10**12)
    sent = agent.transaction(phone, 10**12)
    agent.submit(sent)
    agent.ended(sent["idempotencyKey"])

    text = agent.status(sent["idempotencyKey"]).text

    view = json.loads(text, parse_float=_no_float)
    expected = {"idempotencyKey", "status", "amount", "currency", "createdAt", "updatedAt"}
    assert view.keys() == expected
    assert view["amount"] == 10**12
    assert phone not in text


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/tx/offline"), ("POST", "/tx/nowhere"), ("GET", "/")]
)
def test_a_route_that_is_not_there_is_a_problem_too(agent: Agent, method: str, path: str) -> None:
    answer = agent.http.request(method, path)
    assert answer.status_code in (403, 404)
    assert answer.status_code < 500


def _access_token(stack: Stack) -> str:
    user = "access-token-only"
    password = "Long-enough-1-password!"
    pool = stack.output("UserPoolId")
    stack.cognito.admin_create_user(
        UserPoolId=pool, Username=user, TemporaryPassword=password, MessageAction="SUPPRESS"
    )
    stack.cognito.admin_set_user_password(
        UserPoolId=pool, Username=user, Password=password, Permanent=True
    )
    answer = stack.cognito.initiate_auth(
        ClientId=stack.output("UserPoolClientId"),
        AuthFlow="USER_PASSWORD_AUTH",
        AuthParameters={"USERNAME": user, "PASSWORD": password},
    )
    return answer["AuthenticationResult"]["AccessToken"]


def _no_float(text: str) -> float:
    raise AssertionError(f"{text} is not an integer")
