"""The days that storms befall: the demo's, and the transactions of a replay's month-end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import batched

from wakala import demo
from wakala.traffic import Sent, Shape, Shares, make_traffic
from wakala.transactions import Document

DEBITS = 120
UPLOAD = 40
"""Requests in a row, of all agents together, each agent's of which are one upload of his."""
SHARES = Shares(duplicates=0.1, reorders=0.1, overdrafts=0.05, refunds=0.1)


def month_end(run: str, seed: int) -> demo.Day:
    """Many wallets and a few busy ones, sent as fast as it goes; some of it is given back."""
    traffic = make_traffic(Shape.MONTH_END, DEBITS, seed=seed, shares=SHARES)
    return demo.Day(
        tuple(demo.Opening(*each, frozen=False) for each in traffic.openings.items()),
        tuple(_uploads(run, traffic.sent)),
        tuple(
            demo.Wish(n % 2 == 0, debit["phone"], _refund(run, debit))
            for n, debit in enumerate(traffic.refunded)
        ),
    )


def _uploads(run: str, sent: Sequence[Sent]) -> Iterator[demo.Upload]:
    for some in batched(sent, UPLOAD, strict=False):
        by_agent: dict[str, list[Document]] = {}
        for each in some:
            own = each.document | {"idempotencyKey": _key(run, each.document)}
            by_agent.setdefault(own["agentId"], []).append(own)
        for agent_id, documents in by_agent.items():
            yield demo.Upload(agent_id, tuple(documents), None)


def _refund(run: str, debit: Document) -> Document:
    key = _key(run, debit)
    return {"agentId": debit["agentId"], "idempotencyKey": key, "reason": "sent by mistake"}


def _key(run: str, debit: Document) -> str:
    return f"{run}-{debit['idempotencyKey']}"


DAYS: Mapping[str, Callable[[str, int], demo.Day]] = {
    "demo": lambda run, _: demo.read_day(run),
    "month-end": month_end,
}
"""By name: the day of a run, whose id all its keys begin with, and of a seed."""
