"""Agents' apps, the back office, operators and strangers: what they ask for, and what they hear."""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.histories.asked import Broken, Content, RefundAsked
from tests.simulation.histories.books import number, text
from tests.simulation.histories.operators import Operators
from tests.simulation.histories.plan import Deed, Item
from tests.simulation.histories.promises import Asking
from tests.simulation.histories.rows import SETTLED
from tests.simulation.histories.runs import Run
from tests.simulation.histories.strangers import Strangers

if TYPE_CHECKING:
    from tests.simulation.histories.world import World

PHONES = ("254712345678", "254722000111", "254733000111", "254790123456", "254701234567")
NOTE = "the customer was unhappy"
"""Words of a person: in requests and tables, and never in a log."""
AMOUNTS = (1, 40, 100, 100, 250, 250, 900, 5_000)
FUNDS = (300, 9_000, 60_000, 60_000, 60_000)
"""What a wallet begins with, in minor units: the poorest are soon too poor."""
FUNDED_SHARE = 0.9
"""Of the phones behind the first; the others are refused for want of a wallet."""
BATCH_MAX = 50
BATCH_SIZES = (4, 14)
"""The smallest and the largest batch that an app sends here."""


def spelt(phone: str, random: Random) -> str:
    """One of the ways in which people write a Kenyan number."""
    a, b, c = phone[3:6], phone[6:9], phone[9:]
    ways = (f"0{a} {b} {c}", f"+254 ({a}) {b}-{c}", phone, f"254.{a}.{b}.{c}", f"0{a}{b}{c}")
    return random.choice(ways)


class Actors:
    """Everybody outside. What they ask is told to the model of the promises first."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.phones = PHONES[: world.plan.phones]
        self.agents = [f"AG-{n}" for n in range(1, world.plan.agents + 1)]
        self.secrets = (*PHONES, *(phone[3:] for phone in PHONES), NOTE)
        self.submitted: list[Asking] = []
        self.refunds: list[Asking] = []
        self.credits: list[dict[str, Any]] = []
        self.bus_refunds: list[dict[str, Any]] = []
        self.final: dict[tuple[str, str], int] = {}
        self.operators = Operators(world)
        self.strangers = Strangers(world)
        self._number = 0
        self._deeds: Mapping[Deed, Callable[[Random], str]] = {
            Deed.SUBMIT: self._submit,
            Deed.BATCH: self._batch,
            Deed.BURST: self._burst,
            Deed.RESEND: self._resend,
            Deed.RESEND_OTHER: self._resend_other,
            Deed.STATUS: self._status,
            Deed.REFUND: self._refund,
            Deed.REFUND_AGAIN: self._refund_again,
            Deed.FUND: self._fund,
            Deed.CREDIT: self._credit,
            Deed.CREDIT_AGAIN: self._credit_again,
            Deed.CREDIT_OTHER: self._credit_other,
            Deed.FREEZE: self._freeze,
            Deed.BUS_REFUND: self._bus_refund,
            Deed.BUS_REFUND_AGAIN: self._bus_refund_again,
            Deed.BUS_POISON: self._bus_poison,
            Deed.STRANGER: self.strangers.send,
            Deed.LOOK: self.operators.look,
            Deed.REDRIVE: self.operators.redrive,
            Deed.DISCARD: self.operators.discard,
            Deed.OLD_LETTER: self.strangers.old_letter,
            Deed.MOVE_BACK: self.operators.move_back,
            Deed.TIME: self._time,
        }

    def do(self, item: Item) -> str:
        """Do what a history says; on what, for the trace."""
        assert isinstance(item.what, Deed)
        told = self._deeds[item.what](item.random())
        if told:
            self.world.promises.reached[f"deed {item.what}"] += 1
        return told

    def number(self) -> int:
        """One that nobody had before."""
        self._number += 1
        return self._number

    # --- agents -------------------------------------------------------------------------------

    def _new(self, random: Random) -> Asking:
        agent = random.choice(self.agents)
        mine = sum(each.agent == agent for each in self.submitted)
        currency = "USD" if random.random() < 0.07 else "KES"
        content = Content(random.choice(self.phones), random.choice(AMOUNTS), currency)
        return Asking("submit", agent, f"K-{mine + 1}", content)

    def _submit(self, random: Random) -> str:
        return self._post_one(self._new(random), random)

    def _post_one(self, asking: Asking, random: Random) -> str:
        document = self._document(asking, random)
        self._http(asking.agent, "POST", "/tx/offline", document, self._told(asking))
        return f"{asking.agent} {asking.key}"

    def _document(self, asking: Asking, random: Random) -> dict[str, Any]:
        """The body; asked for from this moment on."""
        content = asking.content
        assert content is not None
        self.submitted.append(asking)
        self.world.promises.asked.debits[asking.identity].add(content)
        members: list[tuple[str, Any]] = [
            ("agentId", asking.agent),
            ("phone", spelt(content.phone, random)),
            ("amount", content.amount),
            ("idempotencyKey", asking.key),
        ]
        if content.currency != "KES" or random.random() < 0.3:
            members.append(("currency", content.currency))
        if random.random() < 0.3:
            members.append(("capturedAt", "2026-11-02T09:14:07+03:00"))
        random.shuffle(members)
        return dict(members)

    def _batch(self, random: Random) -> str:
        agent = random.choice(self.agents)
        askings: list[Asking | None] = []
        documents: list[Any] = []
        for _ in range(random.randint(*BATCH_SIZES)):
            dice = random.random()
            own = [each for each in self.submitted if each.agent == agent]
            asking = self._new(random)
            asking = Asking("submit", agent, f"K-{len(own) + 1}", asking.content)
            if dice < 0.15 and own:
                asking = random.choice(own)
            elif dice < 0.2 and own:
                asking = Asking("submit", agent, random.choice(own).key, asking.content)
            elif dice < 0.25:
                askings.append(None)
                documents.append({"agentId": agent, "amount": "12"})
                continue
            askings.append(asking)
            documents.append(self._document(asking, random))
        return self._post_batch(agent, askings, documents)

    def _post_batch(self, agent: str, askings: list[Asking | None], documents: list[Any]) -> str:
        def told(code: int, body: Mapping[str, Any], by: Run) -> None:
            if code != 200:
                self.world.promises.answered(Asking("submit", agent, "-"), code, body, by)
                return
            for asking, result in zip(askings, body["results"], strict=True):
                error = result.get("error")
                if asking is not None:
                    code = error["status"] if error else 200 if result["replayed"] else 202
                    self.world.promises.answered(asking, code, error or result, by)
                elif error is None or error["code"] != "VALIDATION_FAILED":
                    raise Broken("P7", f"taken, and it is none: {result}")

        self._http(agent, "POST", "/tx/offline/batch", {"transactions": documents}, told)
        return f"{agent} x{len(documents)}"

    def _burst(self, random: Random) -> str:
        """C38: many phones at once, each with its first debit."""
        agent = random.choice(self.agents)
        askings: list[Asking | None] = []
        for number_ in range(self.world.plan.burst):
            content = Content(f"254712{1000 + number_:06}", 10, "KES")
            askings.append(Asking("submit", agent, f"B-{self.number()}", content))
        for start in range(0, len(askings), BATCH_MAX):
            part = askings[start : start + BATCH_MAX]
            documents = [self._document(asking, random) for asking in part if asking is not None]
            self._post_batch(agent, part, documents)
        return f"{agent} x{len(askings)}"

    def _resend(self, random: Random) -> str:
        return self._post_one(random.choice(self.submitted), random) if self.submitted else ""

    def _resend_other(self, random: Random) -> str:
        if not self.submitted:
            return ""
        asking = random.choice(self.submitted)
        content = self._new(random).content
        return self._post_one(Asking("submit", asking.agent, asking.key, content), random)

    def _status(self, random: Random) -> str:
        if not self.submitted:
            return ""
        asking = random.choice(self.submitted)
        agent = random.choice((asking.agent, asking.agent, *self.agents))
        self._ask_status(Asking("status", agent, asking.key))
        return f"{agent} {asking.key}"

    def _ask_status(self, asking: Asking) -> None:
        path = {"idempotencyKey": asking.key}
        route = "/tx/status/{idempotencyKey}"
        self._http(asking.agent, "GET", route, None, self._told(asking), path)

    def _refund(self, random: Random) -> str:
        if not self.submitted:
            return ""
        original = self._to_give_back(random)
        assert original.content is not None
        whole = original.content.amount
        amount = random.choice((None, whole, max(1, whole // 2), *(max(1, whole // 3),) * 2, 10**6))
        refund_id = random.choice(("full", f"R-{self.number()}", f"R-{self.number()}"))
        agent = random.choice((original.agent,) * 6 + tuple(self.agents))
        return self._post_refund(Asking("refund", agent, original.key, None, refund_id, amount))

    def _to_give_back(self, random: Random) -> Asking:
        """A debit to refund: mostly one that was taken; often one where others are at it, too."""
        status = {i: text(row, "status") for i, row in self.world.promises.rows.rows.items()}
        taken = {identity for identity, each in status.items() if each in SETTLED}
        partly = {identity for identity in taken if status[identity] == "partially_refunded"}
        held = {identity for identity, each in status.items() if each == "held"}
        just_asked = {each.identity for each in self.refunds[-1:]}
        wanted = random.choice((*(taken,) * 4, partly, held, just_asked))
        found = [each for each in self.submitted if each.identity in wanted]
        return random.choice(found or self.submitted)

    def _refund_again(self, random: Random) -> str:
        if not self.refunds:
            return ""
        asking = random.choice(self.refunds)
        if random.random() < 0.2:
            asking = Asking("refund", asking.agent, asking.key, None, asking.refund_id, 7)
        return self._post_refund(asking)

    def _post_refund(self, asking: Asking) -> str:
        self.refunds.append(asking)
        refunds = self.world.promises.asked.refunds
        refunds[(*asking.identity, asking.refund_id)].add(RefundAsked(asking.amount))
        document: dict[str, Any] = {"reason": NOTE}
        if asking.refund_id != "full":
            document["refundId"] = asking.refund_id
        if asking.amount is not None:
            document["amount"] = asking.amount
        path = {"idempotencyKey": asking.key}
        route = "/tx/{idempotencyKey}/refund"
        self._http(asking.agent, "POST", route, document, self._told(asking), path)
        return f"{asking.agent} {asking.key} {asking.refund_id} {asking.amount}"

    # --- HTTP ---------------------------------------------------------------------------------

    def _told(self, asking: Asking) -> Callable[[int, Mapping[str, Any], Run], None]:
        return lambda code, body, by: self.world.promises.answered(asking, code, body, by)

    def _http(
        self,
        agent: str,
        method: str,
        route: str,
        document: Any,
        told: Callable[[int, Mapping[str, Any], Run], None],
        path: Mapping[str, str] | None = None,
    ) -> None:
        """A request with the agent's token; `told` hears the answer, unless there is none."""
        if self.world.is_down("ingest"):
            return
        event = {
            "resource": route,
            "httpMethod": method,
            "pathParameters": path,
            "body": None if document is None else json.dumps(document),
            "isBase64Encoded": False,
            "requestContext": {"authorizer": {"claims": {"custom:agentId": agent}}},
        }

        def ended(run: Run) -> None:
            if run.result is not None:
                code, body = run.result["statusCode"], json.loads(run.result["body"])
                told(int(code), body, run)

        self.world.invoke("ingest", event, ended)

    def ask_at_the_end(self) -> None:
        """The status of everything that was ever asked for, when all is quiet."""
        for identity in list(self.world.promises.rows.rows):
            asking = Asking("status", *identity)

            def told(code: int, body: Mapping[str, Any], by: Run, asking: Asking = asking) -> None:
                self.world.promises.answered(asking, code, body, by)
                self.final[asking.identity] = code
                row = self.world.promises.rows.rows[asking.identity]
                refunded = number(row, "refundedMinor") if "refundedMinor" in row else None
                reason = text(row, "reason") if "reason" in row else None
                if (body.get("refunded"), body.get("reason")) != (refunded, reason):
                    raise Broken("P6", f"{asking.identity} is told {body}")

            path = {"idempotencyKey": asking.key}
            self._http(asking.agent, "GET", "/tx/status/{idempotencyKey}", None, told, path)

    def check_answers(self) -> None:
        """All of those were answered."""
        for identity in self.world.promises.rows.rows:
            if self.final.get(identity) != 200:
                raise Broken("P6", f"the status of {identity}: {self.final.get(identity)}")

    # --- the back office ----------------------------------------------------------------------

    def put(self, name: str, detail: dict[str, Any]) -> None:
        """An event of the back office."""
        entry = {
            "EventBusName": self.world.account.stack.name("EventBus"),
            "Source": "backoffice",
            "DetailType": name,
            "Detail": json.dumps(detail),
        }
        self.world.ask_aws("events", "PutEvents", {"Entries": [entry]})

    def _credit(self, random: Random) -> str:
        phone = random.choice(self.phones)
        return self._put_credit(
            {
                "source": random.choice(("mpesa", "bank")),
                "creditId": f"C-{self.number()}",
                "digits": phone,
                "amount": random.choice((100, 300, 1_000, 6_000)),
                "currency": "USD" if random.random() < 0.08 else "KES",
            },
            random,
        )

    def _fund(self, random: Random) -> str:
        """Every phone that will be used, but for some that nobody ever opened a wallet for."""
        first, *others = self.phones
        funded = [first, *(phone for phone in others if random.random() < FUNDED_SHARE)]
        for phone in funded:
            identity = {"source": "mpesa", "creditId": f"C-{self.number()}", "digits": phone}
            amount = random.choice(FUNDS)
            self._put_credit({**identity, "amount": amount, "currency": "KES"}, random)
        return f"x{len(funded)}"

    def _put_credit(self, credit: dict[str, Any], random: Random) -> str:
        self.credits.append(credit)
        asked = self.world.promises.asked.credits
        identity = (credit["source"], credit["creditId"], credit["digits"])
        asked[identity].add((credit["amount"], credit["currency"]))
        detail = {name: credit[name] for name in credit if name != "digits"}
        if credit["currency"] == "KES" and random.random() < 0.5:
            del detail["currency"]
        self.put("WalletCreditRequested", {**detail, "phone": spelt(credit["digits"], random)})
        return f"{credit['creditId']} {credit['amount']} {credit['currency']}"

    def _credit_again(self, random: Random) -> str:
        return self._put_credit(random.choice(self.credits), random) if self.credits else ""

    def _credit_other(self, random: Random) -> str:
        if not self.credits:
            return ""
        return self._put_credit({**random.choice(self.credits), "amount": 77}, random)

    def _freeze(self, random: Random) -> str:
        phone, status = random.choice(self.phones), random.choice(("frozen", "active"))
        known = sorted(self.world.promises.asked.statuses)
        request_id = f"S-{self.number()}"
        if known and random.random() < 0.5:
            _, request_id, phone = random.choice(known)
        self.world.promises.asked.statuses["compliance", request_id, phone].add(status)
        detail = {"source": "compliance", "requestId": request_id, "status": status}
        self.put("WalletStatusRequested", {**detail, "phone": spelt(phone, random)})
        return f"{request_id} {status}"

    def _bus_refund(self, random: Random) -> str:
        if not self.submitted:
            return ""
        original = self._to_give_back(random)
        assert original.content is not None
        whole, dice = original.content.amount, random.random()
        phone = original.content.phone if dice > 0.1 else random.choice(self.phones)
        key = "K-none" if 0.1 < dice < 0.17 else original.key
        app = [e.refund_id for e in self.refunds if (e.agent, e.key) == (original.agent, key)]
        refund: dict[str, Any] = {
            "agentId": original.agent,
            "idempotencyKey": key,
            "digits": phone,
            "refundId": random.choice((f"D-{self.number()}", f"D-{self.number()}", *app[-2:])),
            "amount": random.choice((None, whole, max(1, whole // 2), max(1, whole // 3), 10**6)),
            "currency": random.choice((None, None, "KES", "KES", "USD")),
        }
        return self._put_refund(refund, random)

    def _put_refund(self, refund: dict[str, Any], random: Random) -> str:
        self.bus_refunds.append(refund)
        asked = RefundAsked(refund["amount"], refund["digits"], refund["currency"])
        identity = (refund["agentId"], refund["idempotencyKey"], refund["refundId"])
        self.world.promises.asked.refunds[identity].add(asked)
        detail = {k: v for k, v in refund.items() if v is not None and k != "digits"}
        spelling = spelt(refund["digits"], random)
        self.put("RefundRequested", {**detail, "phone": spelling, "reason": NOTE})
        return f"{identity} {asked.amount} {asked.currency}"

    def _bus_refund_again(self, random: Random) -> str:
        if not self.bus_refunds:
            return ""
        refund = random.choice(self.bus_refunds)
        if random.random() < 0.2:
            refund = {**refund, "amount": 9}
        return self._put_refund(refund, random)

    def _bus_poison(self, random: Random) -> str:
        mark = f"POISON-{self.number()}"
        self.world.promises.asked.unreadable.add(mark)
        detail: dict[str, Any] = {"source": "mpesa", "creditId": mark, "phone": "0712"}
        self.put("WalletCreditRequested", {**detail, "amount": random.choice(("12", 0, -1))})
        return mark

    def _time(self, random: Random) -> str:
        """A while in which nobody does anything; queues do not keep a message for all time."""
        minutes = random.choice((1, 5, 20, 60))
        if self.world.delivery.can_wait():
            minutes = random.choice((5, 60, 24 * 60, 8 * 24 * 60, 8 * 24 * 60))
        self.world.now_ms += minutes * 60_000
        return f"{minutes} minutes"
