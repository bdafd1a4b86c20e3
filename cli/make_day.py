"""Writes `wakala/day.ndjson`, the demo's day: the same file every time it is run.

A month's end at six agents along a road: markets without network until noon, apps that send again
what they are not sure of, a trader's wallet that two agents debit at once. Each line is a wallet
(what it holds when the day begins), an upload (what an agent's app sends in one request, and what
of it the agent takes back the moment after), or a refund that somebody asks for in the evening.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

SEED = 254
AGENTS = tuple(f"AG-{n:03d}" for n in range(1, 7))
DATE = "2026-07-31"
OWN_PHONE = "254712345678"
"""The wallet that the demo leaves to the reader's own transactions."""

FUNDED = (*(f"2547{n}" for n in range(22_110_301, 22_110_331)), "256772440118", "255754330912")
TRADER = "254733900140"
FROZEN = "254711600200"
SPENT = ("254720800351", "254720800352", "254720800353")
UNKNOWN = ("254745100901", "254745100902", "254745100903", "254745100904")

type Line = dict[str, Any]


class Day:
    """What is written so far: uploads by the minute at which they are sent."""

    def __init__(self) -> None:
        self.random = random.Random(SEED)
        self.uploads: list[tuple[int, str, str, list[Line]]] = []
        self.taken_back: dict[tuple[int, str, str], Line] = {}
        self.refunds: list[Line] = []
        self.keys = dict.fromkeys(AGENTS, 0)

    def debit(self, agent: str, minute: int, phone: str, amount: int) -> Line:
        """A transaction as the agent's device records it at `minute` of the day."""
        self.keys[agent] += 1
        stamp = f"{DATE}T{minute // 60:02d}:{minute % 60:02d}:{self.random.randrange(60):02d}+03:00"
        return {
            "phone": self.spelling(phone),
            "amount": amount,
            "idempotencyKey": f"{agent.replace('-', '').lower()}-{self.keys[agent]:04d}",
            "capturedAt": stamp,
        }

    def upload(self, agent: str, minute: int, what: str, transactions: list[Line]) -> None:
        """Something that the agent's app sends in one request at `minute`."""
        self.uploads.append((minute, agent, what, transactions))

    def spelling(self, phone: str) -> str:
        """One of the ways in which people write a number."""
        country, rest = phone[:3], phone[3:]
        spellings = [phone, f"+{country} {rest[:3]} {rest[3:6]} {rest[6:]}", f"+{phone}"]
        if country == "254":
            spellings += [
                f"0{rest}",
                f"0{rest[:3]} {rest[3:6]} {rest[6:]}",
                f"0{rest[:3]}-{rest[3:]}",
            ]
        return self.random.choice(spellings)

    def amount(self) -> int:
        """Minor units: a few hundred shillings mostly, now and then some thousands."""
        return (
            self.random.choice([self.random.randrange(5, 60), self.random.randrange(60, 400)])
            * 1000
        )

    def lines(self) -> Iterator[Line]:
        """The uploads in the order in which they are sent."""
        for minute, agent, what, transactions in sorted(self.uploads, key=lambda each: each[0]):
            yield {
                "upload": what,
                "at": f"{minute // 60:02d}:{minute % 60:02d}",
                "agentId": agent,
                "transactions": transactions,
            } | self.taken_back.get((minute, agent, what), {})

    def refund(self, by: str, original: tuple[str, Line], why: str, **members: Any) -> None:
        """A refund asked for in the evening, `by` the agent or the office; it takes its turn."""
        agent, debit = original
        self.refunds.append(
            {
                "refund": why,
                "by": by,
                "agentId": agent,
                "idempotencyKey": debit["idempotencyKey"],
                "phone": international(debit["phone"]),
                **members,
            }
        )


def ordinary(day: Day) -> None:
    """Each agent: a morning and an evening offline, and single transactions between."""
    for agent in AGENTS:
        for start, size in ((9 * 60, 18), (17 * 60, 14)):
            begin = start + day.random.randrange(60)
            recorded = [
                day.debit(agent, begin + n, day.random.choice(FUNDED), day.amount())
                for n in range(size)
            ]
            day.upload(agent, begin + size + 5, "back in reach", recorded)
        for _ in range(9):
            minute = day.random.randrange(12 * 60, 16 * 60)
            single = day.debit(agent, minute, day.random.choice(FUNDED), day.amount())
            day.upload(agent, minute, "online", [single])


def sent_twice(day: Day) -> None:
    """A whole batch whose answer was lost, and single transactions that were tapped again."""
    batches = [each for each in day.uploads if each[1] == "AG-002" and len(each[3]) > 1]
    minute, agent, _, recorded = batches[0]
    day.upload(agent, minute + 3, "the whole batch again", recorded)
    singles = [each for each in day.uploads if len(each[3]) == 1]
    for minute, agent, _, (single,) in day.random.sample(singles, 12):
        again = single | {"phone": day.spelling(international(single["phone"]))}
        day.upload(agent, minute + 1, "sent again", [again])


def contended(day: Day) -> None:
    """Two agents debit the trader at once, together more than the wallet holds."""
    for agent in ("AG-004", "AG-005"):
        recorded = [day.debit(agent, 11 * 60 + n, TRADER, 90_000) for n in range(12)]
        day.upload(agent, 11 * 60 + 30, "two agents, one wallet", recorded)


def refused(day: Day) -> None:
    """What must not go through: too little money, no wallet, a frozen one, another currency."""
    for n, phone in enumerate(SPENT):
        agent = AGENTS[n]
        recorded = [
            day.debit(agent, 13 * 60 + n, phone, 8_000),
            day.debit(agent, 13 * 60 + n, phone, 5_000_000),
        ]
        day.upload(agent, 13 * 60 + 10, "more than there is", recorded)
    for n, phone in enumerate((*UNKNOWN, UNKNOWN[0], UNKNOWN[1])):
        agent = AGENTS[n]
        day.upload(
            agent, 14 * 60 + n, "no wallet", [day.debit(agent, 14 * 60, phone, day.amount())]
        )
    for n in range(4):
        agent = AGENTS[n]
        day.upload(agent, 15 * 60 + n, "frozen", [day.debit(agent, 15 * 60, FROZEN, 20_000)])
    dollars = day.debit("AG-006", 15 * 60, FUNDED[0], 2_000) | {"currency": "USD"}
    day.upload("AG-006", 15 * 60, "dollars", [dollars])


def mistaken(day: Day) -> None:
    """Mistakes of an app: one key for two amounts, a number that is none, beside a good one."""
    good = day.debit("AG-003", 16 * 60, FUNDED[3], 30_000)
    mistyped = day.debit("AG-003", 16 * 60, FUNDED[4], 15_000) | {"phone": "0722 110 3O5"}
    reused = good | {"amount": 45_000}
    day.upload("AG-003", 16 * 60, "mistakes", [good, good, reused, mistyped])


def taken_back(day: Day) -> None:
    """Each agent takes the last of its morning back as soon as the app has sent it."""
    mornings = [each for each in day.uploads if each[2] == "back in reach" and each[0] < 12 * 60]
    for minute, agent, what, recorded in mornings:
        key = recorded[-1]["idempotencyKey"]
        day.taken_back[minute, agent, what] = {
            "takenBack": {"idempotencyKey": key, "reason": "wrong customer"}
        }


def refunded(day: Day) -> None:
    """Evening: what agents and the back office give back, in full, in parts, and not at all."""
    singles = [
        (agent, recorded[0])
        for minute, agent, what, recorded in sorted(day.uploads, key=lambda each: each[:2])
        if what == "online"
    ]
    whole, parts, shared, office, twice, much, office_much = singles[:7]
    day.refund("agent", whole, "goods returned")
    for n, share in enumerate((3, 3, 4), start=1):  # to the last cent, then one more
        amount = parts[1]["amount"] * share // 10
        day.refund("agent", parts, "short delivery", refundId=f"part-{n}", amount=amount)
    day.refund("agent", parts, "one more", refundId="part-4", amount=1)
    day.refund("office", shared, "fee", refundId="fee", amount=1_000)
    day.refund("agent", shared, "the rest of it")
    day.refund("office", office, "complaint 4711")
    for _ in range(2):
        day.refund("office", twice, "complaint 4712", refundId="c-4712", amount=2_000)
    day.refund("agent", much, "too much", amount=much[1]["amount"] + 1)
    day.refund("office", office_much, "too much", amount=office_much[1]["amount"] + 1)
    elsewhere = office_much[1] | {"phone": TRADER}
    day.refund("office", (office_much[0], elsewhere), "another's wallet", refundId="c-4713")
    overdrafts = [each for each in day.uploads if each[2] == "more than there is"]
    _, agent, _, (_, overdraft) = overdrafts[0]
    day.refund("office", (agent, overdraft), "it was never debited")


def international(spelt: str) -> str:
    """The digits of a number, however it is spelt."""
    digits = "".join(filter(str.isdigit, spelt))
    return f"254{digits[1:]}" if digits.startswith("0") else digits


def wallets(uploads: Sequence[Line]) -> Iterator[Line]:
    """What each wallet holds in the morning: enough, but where the day wants it otherwise."""
    for phone in FUNDED:
        spent = sum(
            t["amount"]
            for upload in uploads
            for t in upload["transactions"]
            if international(t["phone"]) == phone
        )
        yield {"wallet": phone, "opening": spent + 50_000}
    yield {"wallet": TRADER, "opening": 16 * 90_000}  # to the last cent, so that every run is alike
    for phone in SPENT:
        yield {"wallet": phone, "opening": 12_000}
    yield {"wallet": FROZEN, "opening": 300_000, "frozen": True}
    yield {"wallet": OWN_PHONE, "opening": 500_000}


def day_lines() -> list[Line]:
    """The whole file."""
    day = Day()
    ordinary(day)
    sent_twice(day)
    contended(day)
    refused(day)
    mistaken(day)
    taken_back(day)
    refunded(day)
    uploads = list(day.lines())
    return [*wallets(uploads), *uploads, *day.refunds]


def text() -> str:
    """The file as it is committed."""
    return "".join(f"{json.dumps(line)}\n" for line in day_lines())


if __name__ == "__main__":
    Path(__file__).with_name("wakala").joinpath("day.ndjson").write_text(text(), encoding="utf-8")
