"""Stories that together make every AWS call that a function can make, told act by act.

An act begins and ends where nothing is left to be delivered, and can be told again from there.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.simulation.cloud.errors import AwsError
from tests.simulation.crashes.line import Call, Line, Proceed, proceed, stack
from wallet_ledger.aws import items

type Json = dict[str, Any]
type Act = Callable[[Line], None]

PHONE, OTHER_PHONE, THIRD_PHONE = "254712345678", "254711111111", "254722222222"
AGENT = "AG-1"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@dataclass(frozen=True, slots=True)
class Story:
    """What has been before, and the acts of which every call is tried."""

    before: Sequence[Act]
    acts: Sequence[Act]
    letters_differ: bool = False
    """A message that is killed on its last receive goes to the dead letters without a word."""
    left_open: frozenset[str] = frozenset()
    """Keys of transactions of which nothing becomes by itself."""


# --- an agent's app -------------------------------------------------------------------------------


def http(method: str, resource: str, body: object = None, key: str = "K-1") -> Json:
    """A request as API Gateway hands it over."""
    return {
        "httpMethod": method,
        "resource": resource,
        "pathParameters": {"idempotencyKey": key},
        "body": json.dumps(body),
        "requestContext": {"authorizer": {"claims": {"custom:agentId": AGENT}}},
    }


def ask(line: Line, event: Json) -> Json:
    """The app asks until it is told; then everything follows."""
    answer = line.ask("ingest", event, _not_now)
    line.settle()
    told: Json = json.loads(answer["body"])
    return told


def _not_now(answer: Json) -> bool:
    if answer["statusCode"] == 503:
        return True
    body = json.loads(answer["body"])
    errors = [each.get("error", {}) for each in body.get("results", ())]
    # A partial refund before settlement is asked again when it is settled, by a person.
    return any(each.get("code") == "UNAVAILABLE" for each in errors)


def transaction(key: str, amount: int, phone: str = PHONE) -> Json:
    """A debit as the app asks for it."""
    return {"agentId": AGENT, "phone": phone, "amount": amount, "idempotencyKey": key}


def submit(key: str = "K-1", amount: int = 100, phone: str = PHONE) -> Act:
    """One debit."""
    return lambda line: _none(
        ask(line, http("POST", "/tx/offline", transaction(key, amount, phone)))
    )


def submit_batch(*transactions: Json) -> Act:
    """Several debits in one request."""
    body = {"transactions": list(transactions)}
    return lambda line: _none(ask(line, http("POST", "/tx/offline/batch", body)))


def look_up(line: Line) -> None:
    """What has become of it."""
    ask(line, http("GET", "/tx/status/{idempotencyKey}"))


def want_back(refund_id: str, amount: int | None = None, key: str = "K-1") -> Act:
    """The agent asks for a refund."""
    body: Json = {"reason": "wrong phone", "refundId": refund_id}
    body |= {} if amount is None else {"amount": amount}
    return lambda line: _none(ask(line, http("POST", "/tx/{idempotencyKey}/refund", body, key)))


def _none(_: object) -> None:
    return None


# --- the back office ------------------------------------------------------------------------------


def credit(credit_id: str = "C-0", amount: int = 150, phone: str = PHONE) -> Act:
    """Money comes in."""
    detail = {"source": "till", "phone": phone, "creditId": credit_id, "amount": amount}
    return partial(tell, "WalletCreditRequested", detail)


def change_status(request_id: str, status: str, phone: str = PHONE) -> Act:
    """A wallet is opened, frozen or unfrozen."""
    detail = {"source": "till", "phone": phone, "requestId": request_id, "status": status}
    return partial(tell, "WalletStatusRequested", detail)


def give_back(
    refund_id: str, amount: int | None = None, key: str = "K-1", phone: str = PHONE
) -> Act:
    """The back office wants a debit refunded."""
    detail: Json = {"agentId": AGENT, "idempotencyKey": key, "phone": phone}
    detail |= {"refundId": refund_id, "reason": "complaint"}
    detail |= {} if amount is None else {"amount": amount}
    return partial(tell, "RefundRequested", detail)


def tell(detail_type: str, detail: Json, line: Line) -> None:
    """An event, and all that follows."""
    line.put_event("till", detail_type, detail)
    line.settle()


# --- what goes wrong ------------------------------------------------------------------------------


def together(*acts: Act, paused: Sequence[str]) -> Act:
    """Acts while mappings of queues or tables are off, and on again after them."""

    def act(line: Line) -> None:
        line.paused |= set(paused)
        for each in acts:
            each(line)
        line.paused -= set(paused)
        line.settle()

    return act


def pause(*sources: str) -> Act:
    """These mappings are off."""
    return lambda line: line.paused.update(sources)


def go_on(line: Line) -> None:
    """All mappings are on."""
    line.paused.clear()
    line.settle()


def given_up(source: str) -> Act:
    """Nobody takes what is in a queue, so often that it goes to the dead letters."""

    def act(line: Line) -> None:
        queue = line.account.queues[source]
        while queue.messages:
            queue.receive(10)
            line.now_ms = queue.next_visible_ms() or line.now_ms

    return act


def lost(source: str) -> Act:
    """What a queue holds is gone, as when a stream forgot it."""
    return lambda line: line.account.queues[source].messages.clear()


def later(milliseconds: int) -> Act:
    """Time passes, and nobody does anything."""

    def act(line: Line) -> None:
        line.now_ms += milliseconds

    return act


def sweep(line: Line) -> None:
    """The clock of the sweep."""
    line.clock("sweep")


def look_again(line: Line) -> None:
    """The clock of the desk."""
    line.clock("triage-desk")


def contended(function: str, source: str, times: int = 1) -> Act:
    """Everything that a function writes conflicts with somebody else's, for so many deliveries."""

    def conflict(call: Call, go_on: Proceed) -> Json:
        if call.function != function or call.operation != "TransactWriteItems":
            return go_on()
        reasons = [{"Code": "None"} for _ in call.body["TransactItems"]]
        reasons[0] = {"Code": "TransactionConflict"}
        raise AwsError("TransactionCanceledException", "cancelled", reasons=reasons)

    def act(line: Line) -> None:
        queue = line.account.queues[source]
        [mapping] = [each for each in stack().mappings if each.source == source]
        line.paused.discard(source)
        line.base = conflict
        for _ in range(times):
            line.now_ms = max(line.now_ms, queue.next_visible_ms() or 0)
            line.deliver(mapping)
        line.base = proceed
        line.paused.add(source)

    return act


def then(*acts: Act) -> Act:
    """One after the other, as one act."""

    def act(line: Line) -> None:
        for each in acts:
            each(line)

    return act


def poison(source: str) -> Act:
    """Somebody put what nobody can read into a queue, before and behind what is in it."""

    def act(line: Line) -> None:
        queue = line.account.queues[source]
        group = PHONE if queue.is_fifo else None
        queue.send("{", group=group, dedup_id=f"poison {source}" if group else None)

    return act


def spoilt_row(line: Line) -> None:
    """Somebody made a row by hand: its stream record is nothing that the relay can read."""
    table = line.account.tables["OfflineTxTable"]
    item = table.items()[0] | {"idempotencyKey": {"S": "K-9"}, "fingerprint": {"S": "0" * 64}}
    line.account.answer("dynamodb", "PutItem", {"TableName": table.name, "Item": item})


# --- operators ------------------------------------------------------------------------------------


def letters(line: Line) -> list[str]:
    """Ids of all letters, the open ones first."""
    found = [
        each for each in line.account.tables["DeadLettersTable"].items() if items.is_letter(each)
    ]
    found.sort(key=lambda item: ("openShard" not in item, item["id"]["S"]))
    return [items.letter_id_of(item) for item in found]


def operate(action: str, **members: Any) -> Act:
    """A person asks the desk, and asks again while it is contended."""

    def act(line: Line) -> None:
        asked: Json = {"action": action, **members}
        if action in {"redrive", "discard"}:
            asked |= {"letterIds": letters(line), "who": "amina", "why": "seen to"}
        if action == "show":
            asked |= {"letterId": letters(line)[0]}
        line.ask("triage-desk", asked, _contended)
        line.settle()

    return act


def _contended(answer: Json) -> bool:
    if answer.get("error", {}).get("code") == "UNAVAILABLE":
        return True
    assert "error" not in answer, answer
    return any(each["outcome"] == "contended" for each in answer.get("results", ()))


# --- the stories ----------------------------------------------------------------------------------

FUNDED = (credit(),)
SETTLED = (credit(), submit())
BOTH_SETTLED = (*SETTLED, credit("C-1", 100, OTHER_PHONE), submit("K-2", 100, OTHER_PHONE))
THREE_FUNDED = (credit(), credit("C-1", 100, OTHER_PHONE), credit("C-2", 20, THIRD_PHONE))
THREE_DEBITS = (
    transaction("K-1", 60),
    transaction("K-2", 30, OTHER_PHONE),
    transaction("K-3", 21, THIRD_PHONE),
)
"""Of which the last is too much."""
GIVEN_UP = (credit(), pause("TxQueue"), submit(), credit("C-1", 5), given_up("TxQueue"))

STORIES: dict[str, Story] = {
    "a wallet is opened by money": Story((), (credit(),)),
    "a debit, and what it became": Story(FUNDED, (submit(), look_up)),
    "a debit that is too much": Story(FUNDED, (submit(amount=151),)),
    # One of the wallets twice, a key that comes again, and one that is not what it was.
    "a batch of two wallets": Story(
        (credit(), credit("C-1", 100, OTHER_PHONE)),
        (
            submit_batch(
                transaction("K-1", 60),
                transaction("K-2", 30, OTHER_PHONE),
                transaction("K-3", 60),
                transaction("K-1", 60),
                transaction("K-2", 31, OTHER_PHONE),
            ),
        ),
    ),
    "three wallets at once": Story(
        THREE_FUNDED,
        (
            together(submit_batch(*THREE_DEBITS), paused=["TxQueue"]),
            together(
                give_back("R-1", 10),
                give_back("R-2", None, "K-2", OTHER_PHONE),
                give_back("R-3", None, "K-3", THIRD_PHONE),
                paused=["RefundQueue"],
            ),
        ),
    ),
    "cancelled in time": Story((credit(), pause("TxQueue"), submit()), (want_back("R-1"), go_on)),
    "cancelled by the back office": Story(
        (credit(), pause("TxQueue"), submit()), (give_back("R-1"), go_on)
    ),
    "refunded in two parts by its agent": Story(SETTLED, (want_back("A-1", 30), want_back("A-2"))),
    "refunded by the back office": Story(SETTLED, (give_back("R-1", 30), give_back("R-2", 100))),
    "refunded while its agent waits": Story(
        (*SETTLED, pause("InboxQueue"), want_back("A-1", 30), give_back("R-1", 20)),
        (go_on,),
    ),
    "frozen and unfrozen": Story(
        FUNDED,
        (
            change_status("S-1", "frozen"),
            together(credit("C-1", 5), submit(), paused=["TxQueue"]),
            change_status("S-2", "active"),
        ),
    ),
    "a refund of nothing": Story((), (give_back("R-1"),)),
    "ids that come again with other content": Story(
        (*SETTLED, give_back("R-1", 30)),
        (submit(amount=99), give_back("R-1", 31), credit(amount=151), want_back("R-1", 31)),
    ),
    "work that conflicts with others'": Story(
        (
            *BOTH_SETTLED,
            pause("TxQueue", "RefundQueue"),
            submit("K-3", 10),
            give_back("R-1", 30, "K-2", OTHER_PHONE),
        ),
        (then(contended("reconcile", "TxQueue"), contended("refund", "RefundQueue"), go_on),),
    ),
    "put aside on the last receive": Story(
        (
            *BOTH_SETTLED,
            pause("TxQueue", "RefundQueue"),
            submit("K-3", 10),
            give_back("R-1", 30, "K-2", OTHER_PHONE),
            contended("reconcile", "TxQueue", 9),
            contended("refund", "RefundQueue", 9),
        ),
        (
            then(contended("reconcile", "TxQueue"), contended("refund", "RefundQueue"), go_on),
            look_again,
        ),
        letters_differ=True,
    ),
    "poison in every queue": Story(
        (
            *BOTH_SETTLED,
            pause("TxQueue", "RefundQueue", "InboxQueue"),
            poison("TxQueue"),
            poison("RefundQueue"),
            poison("InboxQueue"),
            submit("K-3", 10),
            give_back("R-1", 30, "K-2", OTHER_PHONE),
        ),
        (go_on, then(later(HOUR_MS), look_again), operate("discard")),
    ),
    "a row that nobody can read": Story(
        (credit(), pause("OfflineTxTable"), submit(), spoilt_row, submit("K-2", 10)),
        (go_on,),
        left_open=frozenset({"K-9"}),
    ),
    "given up by its queue, and sent again by the clock": Story(
        (credit(), pause("TxQueue"), submit(), given_up("TxQueue")), (go_on, look_again)
    ),
    "three given up, and sent again by the clock": Story(
        (
            *THREE_FUNDED,
            pause("TxQueue"),
            submit_batch(*THREE_DEBITS),
            given_up("TxQueue"),
            go_on,
        ),
        (look_again,),
    ),
    "sent again by a person": Story(
        (*GIVEN_UP, go_on),
        (
            operate("list"),
            operate("list", scope="all"),
            operate("groups"),
            operate("show"),
            operate("show", reveal=True, who="amina", why="a complaint"),
            operate("redrive"),
        ),
    ),
    "given up by a person": Story((*GIVEN_UP, go_on), (operate("discard"),)),
    "a refund and a request, sent again by a person": Story(
        (
            *BOTH_SETTLED,
            pause("RefundQueue"),
            give_back("R-1", 30),
            pause("InboxQueue"),
            credit("C-2", 5, OTHER_PHONE),
            given_up("RefundQueue"),
            given_up("InboxQueue"),
            go_on,
        ),
        (operate("redrive"),),
    ),
    "messages that are lost": Story(
        (
            *BOTH_SETTLED,
            pause("TxQueue", "InboxQueue"),
            submit("K-3", 10),
            want_back("A-1", 30, "K-2"),
            lost("TxQueue"),
            lost("InboxQueue"),
            go_on,
            later(MINUTE_MS),
        ),
        (sweep,),
    ),
    "too old": Story(
        (pause("TxQueue"), submit(), lost("TxQueue"), go_on, later(7 * DAY_MS)), (sweep,)
    ),
}
