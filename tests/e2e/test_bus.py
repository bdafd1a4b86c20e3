"""What a back office sees of the deployed stack."""

import uuid
from typing import Any

from tests.e2e.actors import Agent, BackOffice, letter_with
from wakala.stack import Stack


def test_a_credit_opens_and_funds_a_wallet_once(back_office: BackOffice, phone: str) -> None:
    credit = {"phone": phone, "amount": 700, "source": "bank", "creditId": str(uuid.uuid4())}

    back_office.ask("WalletCreditRequested", **credit)
    told = back_office.hear("WalletCredited", creditId=credit["creditId"])
    back_office.ask("WalletCreditRequested", **credit)
    marker = credit | {"amount": 1, "creditId": str(uuid.uuid4())}
    back_office.ask("WalletCreditRequested", **marker)
    back_office.hear("WalletCredited", creditId=marker["creditId"])

    assert (told["amount"], told["balanceAfter"], told["version"]) == (700, 700, 1)
    assert back_office.balance(phone) == 701


def test_a_credit_id_that_is_used_again_for_another_amount_is_rejected(
    back_office: BackOffice, phone: str
) -> None:
    credit = {"phone": phone, "amount": 700, "source": "bank", "creditId": str(uuid.uuid4())}
    back_office.ask("WalletCreditRequested", **credit)
    back_office.hear("WalletCredited", creditId=credit["creditId"])

    back_office.ask("WalletCreditRequested", **(credit | {"amount": 900}))

    rejected = back_office.hear("WalletCreditRejected", creditId=credit["creditId"])
    assert (rejected["reason"], rejected["amount"]) == ("KEY_REUSED", 900)
    assert back_office.balance(phone) == 700


def test_a_frozen_wallet_refuses_debits_takes_credits_and_thaws(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.change_status(phone, "active")
    back_office.fund(phone, 100)
    back_office.change_status(phone, "frozen")
    sent = agent.transaction(phone, 10)
    agent.submit(sent)
    assert agent.ended(sent["idempotencyKey"])["reason"] == "WALLET_FROZEN"
    back_office.fund(phone, 50)
    back_office.change_status(phone, "active")

    again = agent.transaction(phone, 150)
    agent.submit(again)

    assert agent.ended(again["idempotencyKey"])["status"] == "synced"
    shown = back_office.wallet(phone)
    assert shown == {
        "phone": phone,
        "balance": 0,
        "currency": "KES",
        "version": 6,
        "status": "active",
    }


def test_a_settled_transaction_is_told_on_the_bus(
    agent: Agent, back_office: BackOffice, phone: str
) -> None:
    back_office.fund(phone, 10)
    sent = agent.transaction(phone, 10)
    agent.submit(sent)

    told = back_office.hear("TransactionSynced", idempotencyKey=sent["idempotencyKey"])

    assert told["agentId"] == agent.agent_id
    assert (told["phone"], told["amount"], told["currency"]) == (phone, 10, "KES")
    assert told["schemaVersion"] == 1
    assert len(told["eventId"]) == 32


def test_a_request_that_nobody_can_read_is_kept_and_blocks_nobody(
    stack: Stack, back_office: BackOffice, phone: str
) -> None:
    bad: list[dict[str, Any]] = [
        {"phone": "not a phone", "amount": 1, "source": "bank", "creditId": f"{phone}-1"},
        {"phone": phone, "amount": 0.5, "source": "bank", "creditId": f"{phone}-2"},
        {"phone": phone, "amount": 5, "source": "ba#nk", "creditId": f"{phone}-3"},
        {"phone": phone, "amount": 5, "source": "bank", "creditId": f"{phone}-4", "curency": "USD"},
    ]
    for detail in bad:
        back_office.ask("WalletCreditRequested", **detail)

    for detail in bad:
        letter = letter_with(stack, detail["creditId"], source="Inbox")
        assert (letter["class"], letter["status"]) == ("POISON", "parked")
    assert back_office.balance(phone) is None
