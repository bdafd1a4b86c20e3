"""Days in a storm (`tests.e2e.storm`), each followed by a calm in which all must end.

    python -m tests.e2e.chaos --minutes 10 --seed 1

What must be true after a day is judged here from the raw rows of both tables, and once more by
`wakala audit`. The exit status is 1 where anything is not as it must be.
"""

import argparse
import itertools
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.days import DAYS
from tests.e2e.storm import FAULTS, Harm, StormyStack, hasten, queues, storm, stormy_stack
from wakala import agents, audit, demo, info, refunds, wallets
from wakala.desk import REAL, Desk, Move, Order
from wakala.home import checkout
from wakala.output import Problem, out, table
from wakala.stack import Stack
from wakala.transactions import AgentApi, Answer, Document
from wakala.uploads import upload
from wallet_ledger.domain.transactions import Status

STORM_S = (15.0, 120.0)
"""How long a storm is: until there were enough faults of each kind, but no less and no more."""
ENOUGH = 3
"""Faults of each kind, and deliveries that end with their worker, in each storm."""
UNHURRIED_S = 0.8
"""How long an app at most waits before each request: a day of two seconds would meet little."""
OPENING_S_MAX = 120.0
"""How long the first funds may take: a busy machine is no failure."""
CALM_S_MAX = 120.0
"""How long after a storm everything may take to end."""
PATIENCE_S = 3.0
"""How long what is open may be under way before a sweep is made to come for it."""
POLL_S = 0.25

SETTLED = frozenset({Status.SYNCED, Status.PARTIALLY_REFUNDED, Status.REFUNDED})
UNDEBITED = frozenset({Status.CANCELLED, Status.FAILED})
"""The two kinds of terminal states that a day here may end in: debited once, and never."""

type Key = tuple[str, str]
type Item = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class Lived:
    """A day that was lived through: what happened in its storm, and what was wrong after it.

    `run`: the day's name and seed. `killed`: workers by function. `redriven`: letters that an
    operator had to redrive.
    """

    run: str
    sent: int
    accepted: int
    debits: int
    harm: Harm
    killed: "Counter[str]"
    redriven: int
    storm_s: float
    calm_s: float
    violations: Sequence[str]

    def line(self) -> str:
        """The day in one line."""
        faults = ", ".join(
            f"{number} {kind}" for kind, number in sorted(self.harm.injected.items())
        )
        return (
            f"{self.run}: {self.accepted} of {self.sent} accepted, {self.debits} debited;"
            f" calls: {faults};"
            f" {self.killed.total()} workers killed, {self.harm.died_at_work} at work;"
            f" {self.redriven} letters redriven; {self.storm_s:.0f} s of storm, all ended"
            f" {self.calm_s:.0f} s after it;"
            f" {len(self.violations)} violations"
        )


@dataclass(frozen=True)
class Rows:
    """What the tables hold of one run, as it lies there."""

    transactions: Mapping[Key, Item]
    debits: Sequence[Item]
    credits: Sequence[Item]
    refunds: Sequence[Item] = ()

    def posted(self, key: Key) -> list[Item]:
        """The posted debits of a transaction, in whatever wallet."""
        name = f"debit#{key[0]}#{key[1]}"
        return [
            each
            for each in self.debits
            if each["txId"]["S"] == name and each["outcome"]["S"] == "posted"
        ]


@dataclass(frozen=True)
class Told:
    """What apps were answered while the storm lasted: of transactions, and of refunds."""

    answers: Sequence[Answer]
    refunds: Sequence[Answer]


def live_through(over: StormyStack, name: str, seed: int) -> Lived:
    """Play a day in a storm, let everything end in the calm after it, and judge what is left."""
    run, stack = f"{name}-{seed}", over.stack
    day = DAYS[name](run, seed)
    apis = {agent_id: _app(stack, agent_id, seed) for agent_id in day.agent_ids}
    _open_wallets(stack, day, run)
    before, broke, passed = over.harm(), time.monotonic(), threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        with storm(over, seed) as killed:
            acting = pool.submit(_act, stack, day, apis, f"{run}b", passed)
            _until_enough(over, before, acting)
        began = time.monotonic()
        passed.set()
        told = acting.result()
    # Before anything is sent again, which would hide what was lost.
    lost = judge_told(_read_rows(stack, run), told)
    # An app forgets nothing: what the storm left unsent goes in the calm.
    answers = [*told.answers, *demo.play(day, apis).answers]
    redriven, violations = _let_it_end(stack)
    violations += [*lost, *_unanswered_refunds(stack, day, apis)]
    rows = _read_rows(stack, run)
    violations += judge(rows, day, run, answers)
    report = audit.audit(stack, int(time.time()), lambda _: None)
    violations += [f"{each.promise}: {each.what}" for each in report.violations]
    return Lived(
        run=run,
        sent=day.size,
        accepted=len({_key(each.sent) for each in answers if each.accepted}),
        debits=sum(len(rows.posted(key)) for key in rows.transactions),
        harm=over.harm() - before,
        killed=killed,
        redriven=redriven,
        storm_s=began - broke,
        calm_s=time.monotonic() - began,
        violations=violations,
    )


def judge_told(rows: Rows, told: Told) -> list[str]:
    """What apps were told is in the system's hands, and is not."""
    found = [
        f"{_key(each.sent)} was accepted, and is missing"
        for each in told.answers
        if each.accepted and _key(each.sent) not in rows.transactions
    ]
    entries = {each["txId"]["S"] for each in rows.refunds}
    for each in told.refunds:
        agent_id, key = _key(each.sent)
        refund_id = each.sent.get("refundId", "full")
        row = rows.transactions.get((agent_id, key), {})
        in_hands = (
            f"refund#{agent_id}#{key}#{refund_id}" in entries
            or row.get("cancelledBy", {}).get("S") == refund_id
            or refund_id == _pending_refund(row)
        )
        if each.accepted and not in_hands:
            found.append(f"the refund {refund_id} of {key} was accepted, and is missing")
    return found


def judge(rows: Rows, day: demo.Day, run: str, answers: Sequence[Answer]) -> list[str]:
    """What is not as it must be, in words: of what was accepted, what was posted, and credits."""
    found = list(_lost_or_open(rows, answers))
    sent = {(_key(each), each["amount"]) for upload in day.uploads for each in upload.transactions}
    for entry in rows.debits:
        key = _key_of_debit(entry)
        if entry["outcome"]["S"] == "posted" and (key, int(entry["amountMinor"]["N"])) not in sent:
            found.append(f"{key} is debited, and nobody has sent it so")
    for opening in day.openings:
        for credit_id in (run, f"{run}b"):
            there = [each for each in rows.credits if _is_credit(each, opening.phone, credit_id)]
            if len(there) != 1 or there[0]["outcome"]["S"] != "posted":
                found.append(f"{len(there)} credits {credit_id} of the wallet of {opening.opening}")
    return found


def _lost_or_open(rows: Rows, answers: Sequence[Answer]) -> Iterator[str]:
    amounts = {_key(each.sent): each.sent["amount"] for each in answers if each.accepted}
    for key in amounts.keys() - rows.transactions.keys():
        yield f"{key} was accepted, and is missing"
    for key, row in rows.transactions.items():
        status, posted = row["status"]["S"], rows.posted(key)
        amount = amounts.get(key, int(row["amountMinor"]["N"]))
        if status not in SETTLED | UNDEBITED:
            yield f"{key} is {status}"
        elif status in UNDEBITED and posted:
            yield f"{key} is {status}, and is debited"
        elif status in SETTLED and [int(each["amountMinor"]["N"]) for each in posted] != [amount]:
            yield f"{key} of {amount} is {status} with {len(posted)} debits"


# --- the day --------------------------------------------------------------------------------


class _Unhurried(httpx.HTTPTransport):
    """An agent who takes his time."""

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._chance = random.Random(seed)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send it after a moment."""
        time.sleep(self._chance.uniform(0, UNHURRIED_S))
        return super().handle_request(request)


def _app(stack: Stack, agent_id: str, seed: int) -> AgentApi:
    """An agent's app, four times as eager as the demo's to try again: a storm is short."""
    agents.enroll(stack, agent_id)
    return AgentApi(
        stack.api_url,
        agents.token(stack, agent_id),
        pause=lambda seconds: time.sleep(seconds / 4),
        transport=_Unhurried(f"{seed} {agent_id}"),
    )


def _act(
    stack: Stack,
    day: demo.Day,
    apis: dict[str, AgentApi],
    credit_id: str,
    passed: threading.Event,
) -> Told:
    """More funds, the day, and every refund of its evening while it is still being settled.

    Until the storm has passed, agents go on to send again what they have sent.
    """
    more = _credits(stack, day, credit_id)
    wallets.put(stack, [(each.detail_type, each.detail) for each in more])
    answers = [*demo.play(day, apis).answers]
    wallets.put(stack, [(refunds.REQUESTED, each.detail) for each in _office(stack, day)])
    refunded = _by_agents(day, apis, lambda api, wanted: api.refund(wanted))
    for sent in itertools.cycle(day.uploads):
        if passed.is_set():
            return Told(answers, refunded)
        answers += upload(sent.transactions, apis[sent.agent_id], lambda _: None)
    raise AssertionError("a day has uploads")


def _until_enough(over: StormyStack, before: Harm, acting: "Future[Any]") -> None:
    """Wait for the end of the storm, or of those who act in it, which is an error."""
    began = time.monotonic()
    while not acting.done():
        lasted_s = time.monotonic() - began
        if lasted_s >= STORM_S[1] or (
            lasted_s >= STORM_S[0] and (over.harm() - before).least() >= ENOUGH
        ):
            return
        time.sleep(POLL_S)


def _by_agents(
    day: demo.Day, apis: Mapping[str, AgentApi], ask: Callable[[AgentApi, Document], Answer]
) -> list[Answer]:
    """The refunds that agents ask for, those of one agent in their order."""

    def work(agent_id: str) -> list[Answer]:
        wishes = [wish.wanted for wish in day.wishes if wish.by_agent]
        return [ask(apis[agent_id], each) for each in wishes if each["agentId"] == agent_id]

    with ThreadPoolExecutor(max_workers=len(apis)) as pool:
        return list(itertools.chain.from_iterable(pool.map(work, apis)))


def _open_wallets(stack: Stack, day: demo.Day, run: str) -> None:
    """Funds before the storm: a day of refusals would prove little."""
    wallets.settle(stack, _credits(stack, day, run), OPENING_S_MAX)
    frozen = [
        wallets.status_change(stack, o.phone, "frozen", run) for o in day.openings if o.frozen
    ]
    wallets.settle(stack, frozen, OPENING_S_MAX)


def _credits(stack: Stack, day: demo.Day, credit_id: str) -> list[wallets.Requested]:
    return [wallets.credit(stack, o.phone, o.opening, credit_id) for o in day.openings]


def _office(stack: Stack, day: demo.Day) -> list[refunds.Asked]:
    return [
        refunds.ask(stack, wish.wanted | {"phone": f"+{wish.phone}"})
        for wish in day.wishes
        if not wish.by_agent
    ]


# --- the calm -------------------------------------------------------------------------------


def _let_it_end(stack: Stack) -> tuple[int, list[str]]:
    """Wait until nothing is open; how many letters were redriven, and what did not end.

    Hours pass here in seconds: the sweep is made to come for what is open, and an operator
    redrives every letter that is.
    """
    desk, redriven = Desk(stack, REAL), 0
    deadline = time.monotonic() + CALM_S_MAX
    patient_until = time.monotonic() + PATIENCE_S
    while True:
        owed = [row for row in _scan(stack, "OfflineTxTable") if _is_open(row)]
        letters = desk.letters("open", {}, lambda _: None)
        busy = _waiting(stack)
        if not owed and not letters and not busy:
            return redriven, []
        if time.monotonic() > deadline:
            left = [(each["class"], each["status"]) for each in letters]
            what = f"{len(owed)} rows, {busy}, letters {left}"
            return redriven, [f"not ended after {CALM_S_MAX:.0f} s: {what}"]
        if time.monotonic() > patient_until:
            hasten(stack, owed)
            redriven += _redrive(desk, letters)
            patient_until = time.monotonic() + PATIENCE_S
        time.sleep(POLL_S)


def _redrive(desk: Desk, letters: Sequence[dict[str, Any]]) -> int:
    order = Order("redrive", "the storm is over", force=True, dry_run=False)
    move = Move(desk, order, letters, rate=25)
    move.run(lambda _: None)
    return sum(each.outcome == "redriven" for each in move.results())


def _waiting(stack: Stack) -> dict[str, int]:
    """How many messages lie in each queue that is not empty, taken or not."""
    counts = {name: info._count(stack, url) for name, url in queues(stack).items()}
    numbers = {name: each.waiting + each.in_flight + each.delayed for name, each in counts.items()}
    return {name: number for name, number in numbers.items() if number}


def _unanswered_refunds(stack: Stack, day: demo.Day, apis: Mapping[str, AgentApi]) -> list[str]:
    """Refunds that were asked for and have no outcome, over the bus and over HTTP."""
    found = [
        f"the refund {each.refund.refund_id} of {each.refund.idempotency_key} is lost"
        for each in _office(stack, day)
        if refunds._told(stack, each, new=False) is None
    ]
    answers = _by_agents(day, apis, refunds.ask_api)
    return found + [
        f"the refund of {_key(each.sent)} is answered {each.status}"
        for each in answers
        if each.retryable
    ]


# --- the tables -----------------------------------------------------------------------------


def _read_rows(stack: Stack, run: str) -> Rows:
    transactions = {
        (row["agentId"]["S"], row["idempotencyKey"]["S"]): row
        for row in _scan(stack, "OfflineTxTable")
        if row["idempotencyKey"]["S"].startswith(f"{run}-")
    }
    entries = list(_scan(stack, "WalletLedgerTable"))
    debits = [each for each in entries if each["txId"]["S"].startswith("debit#")]
    return Rows(
        transactions,
        [each for each in debits if _key_of_debit(each)[1].startswith(f"{run}-")],
        [each for each in entries if each["txId"]["S"].startswith("credit#")],
        [each for each in entries if each["txId"]["S"].startswith("refund#")],
    )


def _scan(stack: Stack, table_output: str) -> Iterator[Item]:
    pages = stack.dynamodb.get_paginator("scan").paginate(
        TableName=stack.output(table_output), ConsistentRead=True
    )
    for page in pages:
        yield from page["Items"]  # type: ignore[misc]


def _key(transaction: Mapping[str, Any]) -> Key:
    return transaction["agentId"], transaction["idempotencyKey"]


def _key_of_debit(entry: Item) -> Key:
    _, agent_id, key = entry["txId"]["S"].split("#")
    return agent_id, key


def _is_credit(entry: Item, phone: str, credit_id: str) -> bool:
    name = f"credit#{wallets.SOURCE}#{credit_id}"
    return entry["phone"]["S"] == phone and entry["txId"]["S"] == name


def _pending_refund(row: Mapping[str, Any]) -> str | None:
    return row["refundRequest"]["M"]["refundId"]["S"] if "refundRequest" in row else None


def _is_open(row: Item) -> bool:
    return _is_owed(row["status"]["S"]) or "openShard" in row


def _is_owed(status: str) -> bool:
    return status not in SETTLED | UNDEBITED


# --- for as many minutes as asked -------------------------------------------------------------


def main() -> int:
    """One day after the other on one stack, each with the next seed, until time is over."""
    asked = argparse.ArgumentParser(prog="python -m tests.e2e.chaos", description=__doc__)
    asked.add_argument("--minutes", type=float, required=True)
    asked.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = asked.parse_args()
    deadline = time.monotonic() + options.minutes * 60
    days: list[Lived] = []
    with stormy_stack(checkout() / ".wakala" / "chaos", options.seed) as over:
        while not days or time.monotonic() < deadline:
            name = tuple(DAYS)[len(days) % len(DAYS)]
            days.append(live_through(over, name, options.seed + len(days)))
            left = max(0.0, deadline - time.monotonic()) / 60
            out.print(f"{days[-1].line()}; {left:.1f} minutes left", soft_wrap=True)
            for violation in days[-1].violations:
                out.print(f"  {violation}", soft_wrap=True, markup=False)
    _print_totals(days)
    return int(any(day.violations for day in days))


def _print_totals(days: Sequence[Lived]) -> None:
    totals = table("what", "number", right=frozenset({"number"}))
    totals.add_row("days", str(len(days)))
    for kind in FAULTS:
        totals.add_row(f"calls {kind}", f"{sum(day.harm.injected[kind] for day in days):,}")
    killed = sum((day.killed for day in days), Counter[str]())
    for function, number in sorted(killed.items()):
        totals.add_row(f"workers killed: {function}", str(number))
    for what, number in (
        ("workers killed", killed.total()),
        ("of them at work", sum(day.harm.died_at_work for day in days)),
        ("transactions sent", sum(day.sent for day in days)),
        ("transactions accepted", sum(day.accepted for day in days)),
        ("debits posted", sum(day.debits for day in days)),
        ("letters redriven by hand", sum(day.redriven for day in days)),
        ("violations", sum(len(day.violations) for day in days)),
    ):
        totals.add_row(what, f"{number:,}")
    out.print(totals)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        sys.exit(f"error: {problem}")
