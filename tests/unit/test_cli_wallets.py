"""Requests over the bus, and waiting for the ledger's answer, on a bus and a ledger in memory."""

import json
from typing import Any

import pytest

from wakala import main, options, wallets
from wakala.output import Problem
from wakala.stack import Stack
from wallet_ledger.aws import items
from wallet_ledger.contracts import Defaults, read_bus_request
from wallet_ledger.domain.ids import Currency
from wallet_ledger.domain.postings import NewEntry
from wallet_ledger.domain.refunds import Refund
from wallet_ledger.domain.wallets import Movement, Posted, Wallet, decide

PHONE = "0712 345 678"


class Backend:
    """Bus and ledger in one: what is put on the bus is settled at once, unless it is slow."""

    def __init__(self) -> None:
        self.ledger: dict[tuple[str, str], dict[str, Any]] = {}
        self.wallet: Wallet | None = None
        self.requests: list[dict[str, Any]] = []
        self.slow = False

    def client(self, _: str, **__: Any) -> "Backend":
        return self

    def put_events(self, **call: Any) -> dict[str, Any]:
        for entry in call["Entries"]:
            self.requests.append(json.loads(entry["Detail"]))
            envelope = {"id": "e", "detail-type": entry["DetailType"]} | {
                "detail": self.requests[-1]
            }
            defaults = Defaults(Currency("KES"), "KE")
            if not self.slow:
                asked = read_bus_request(json.dumps(envelope), defaults)[1]
                assert not isinstance(asked, Refund)
                self.settle(asked)
        return {"FailedEntryCount": 0, "Entries": []}

    def settle(self, movement: Movement) -> None:
        decision = decide(self.wallet, [movement])
        new = NewEntry(movement, decision.outcomes[0])
        self.wallet = decision.after
        self.store(items.entry_item(new, 1))
        if self.wallet is not None and isinstance(new.outcome, Posted):
            key = items.ledger_key(self.wallet.phone, items.BALANCE)
            balance = {"balanceMinor": {"N": str(self.wallet.balance_minor)}}
            rest = {"version": {"N": str(self.wallet.version)}, "currency": {"S": "KES"}}
            self.store(key | balance | rest | {"status": {"S": str(self.wallet.status)}})

    def store(self, item: dict[str, Any]) -> None:
        self.ledger[item["phone"]["S"], item["txId"]["S"]] = item

    def get_item(self, **call: Any) -> dict[str, Any]:
        assert call["ConsistentRead"] is True
        found = self.ledger.get((call["Key"]["phone"]["S"], call["Key"]["txId"]["S"]))
        return {"Item": found} if found else {}


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def stack(backend: Backend) -> Stack:
    outputs = {"WalletLedgerTable": "ledger", "EventBusName": "bus"}
    parameters = {"Currency": "KES", "DefaultRegion": "KE"}
    return Stack("wakala", "us-east-1", "http://e", backend, outputs, parameters)


def credit(stack: Stack, amount: int, **options: Any) -> None:
    wallets.settle(stack, [wallets.credit(stack, PHONE, amount, **options)])


def test_a_credit_returns_once_it_is_posted(stack: Stack, backend: Backend) -> None:
    credit(stack, 100, credit_id="f-1")
    assert wallets.show(stack, "+254712345678").balance_minor == 100
    assert backend.requests[0]["source"] == "cli"


def test_the_same_credit_again_posts_nothing_and_sends_nothing(
    stack: Stack, backend: Backend
) -> None:
    for _ in range(2):
        credit(stack, 100, credit_id="f-1")
    assert wallets.show(stack, PHONE).balance_minor == 100
    assert len(backend.requests) == 1


def test_a_credit_id_with_another_amount_is_refused(stack: Stack) -> None:
    credit(stack, 100, credit_id="f-1")
    with pytest.raises(Problem, match="KEY_REUSED: --id f-1 was used before for something else"):
        credit(stack, 101, credit_id="f-1")
    assert wallets.show(stack, PHONE).balance_minor == 100


def test_a_credit_that_the_ledger_refuses_is_told(stack: Stack) -> None:
    credit(stack, 100, credit_id="f-1")
    with pytest.raises(Problem, match="CURRENCY_MISMATCH: the ledger refused --id f-2"):
        credit(stack, 100, credit_id="f-2", currency="USD")


def test_a_ledger_that_does_not_answer_is_not_waited_for_for_ever(
    stack: Stack, backend: Backend
) -> None:
    backend.slow = True
    request = wallets.credit(stack, PHONE, 100, "f-1")
    with pytest.raises(Problem, match=r"no answer from the ledger in 0 s to --id f-1"):
        wallets.settle(stack, [request], seconds=0)


def test_opening_leaves_a_wallet_that_is_there_as_it_is(stack: Stack, backend: Backend) -> None:
    credit(stack, 100, credit_id="f-1")
    wallets.settle(stack, [wallets.status_change(stack, PHONE, "frozen", None)])
    assert wallets.open_wallet(stack, PHONE).status == "frozen"
    assert len(backend.requests) == 2


def test_a_late_repetition_of_an_opening_does_not_thaw(stack: Stack, backend: Backend) -> None:
    assert wallets.open_wallet(stack, PHONE).status == "active"
    assert backend.requests[0]["requestId"] == "open"
    wallets.settle(stack, [wallets.status_change(stack, PHONE, "frozen", None)])
    again = wallets.status_change(stack, PHONE, "active", "open")
    wallets.settle(stack, [again])
    assert wallets.show(stack, PHONE).status == "frozen"


def test_a_phone_without_a_wallet_and_a_text_that_is_no_phone_are_one_line(stack: Stack) -> None:
    with pytest.raises(Problem, match=r"no wallet for \+254712345678: open it with"):
        wallets.show(stack, PHONE)
    with pytest.raises(Problem, match="'0799' is no phone"):
        wallets.show(stack, "0799")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("status", {"S": "odd"}),
        ("currency", None),
        ("balanceMinor", {"N": "1.5"}),
        ("version", {"S": "1"}),
    ],
)
def test_a_balance_item_that_nobody_could_have_written_is_one_line_and_nothing_is_sent(
    stack: Stack,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    attribute: str,
    value: dict[str, str] | None,
) -> None:
    monkeypatch.setattr(options, "open_stack", lambda _: stack)
    credit(stack, 100, credit_id="f-1")
    balance = backend.ledger["254712345678", items.BALANCE]
    balance.pop(attribute)
    if value is not None:
        balance[attribute] = value
    for command in ("show", "freeze", "unfreeze", "open"):
        assert main.run(["wallet", command, PHONE]) == 1
        assert capsys.readouterr().err == (
            "error: the balance item of 254…678 is none that our code writes (its"
            f" {attribute}): nothing is written to it meanwhile, see"
            " docs/runbook.md#the-books-look-wrong\n"
        )
    assert len(backend.requests) == 1


def test_scripts_get_a_wallet_in_minor_units(stack: Stack) -> None:
    credit(stack, 100, credit_id="f-1")
    assert wallets.wallet_view(wallets.show(stack, PHONE)) == {
        "phone": "254712345678",
        "balance": 100,
        "currency": "KES",
        "version": 1,
        "status": "active",
    }
