"""The demo: a bundled day of offline transactions, played through the HTTP API and audited.

Every key and credit of a run begins with the run's id, so that the demo can be played again and
again on one stack and each run moves money of its own. The same `--run` twice is one run played
twice: all of it is replays, and nothing moves.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from typing import Any

from rich.console import Group, RenderableType

from wakala import agents, audit, wallets
from wakala.output import Problem, coloured, progress_bar, step, table
from wakala.stack import Stack
from wakala.transactions import AgentApi, Answer, Document, body_of
from wallet_ledger.domain.transactions import Status

SETTLE_SECONDS_MAX = 120.0
POLL_SECONDS = 0.25
QUANTILES = (50, 95, 99)
RUN_LENGTH_MAX = 32
"""Characters of a run's id; with the day's own keys behind it, a key stays within 64."""

type TransactionId = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Opening:
    """A wallet in the morning; `opening` in minor units."""

    phone: str
    opening: int
    frozen: bool


@dataclass(frozen=True, slots=True)
class Upload:
    """What one agent's app sends in one request."""

    agent_id: str
    transactions: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Day:
    """A day: what wallets hold when it begins, and what agents send in its course."""

    openings: tuple[Opening, ...]
    uploads: tuple[Upload, ...]

    @property
    def agent_ids(self) -> list[str]:
        """Every agent of the day."""
        return sorted({upload.agent_id for upload in self.uploads})

    @property
    def size(self) -> int:
        """How many transactions are sent, repetitions too."""
        return sum(len(upload.transactions) for upload in self.uploads)


@dataclass(frozen=True, slots=True)
class Played:
    """What the API said: an answer per transaction sent, a duration per request, in ms."""

    answers: tuple[Answer, ...]
    requests_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What a day came to; `ends` has the last status of each accepted transaction."""

    run: str
    played: Played
    ends: dict[TransactionId, Document]
    report: audit.Report

    @property
    def ok(self) -> bool:
        """Whether all that could be sent was, all that was accepted ended, and promises hold."""
        unsent = any(not each.accepted and each.retryable for each in self.played.answers)
        return self.report.ok and not unsent and not self.view()["open"]

    def view(self) -> dict[str, Any]:
        """What scripts get; latencies in milliseconds."""
        outcomes = Counter(answer.outcome for answer in self.played.answers)
        statuses = Counter(end["status"] for end in self.ends.values())
        ended = [end for end in self.ends.values() if end["status"] != Status.QUEUED]
        return {
            "run": self.run,
            "sent": len(self.played.answers),
            "accepted": outcomes["accepted"],
            "replayed": outcomes["replayed"],
            "refused": _counts(a.body.get("code") for a in self.played.answers if not a.accepted),
            "synced": statuses[Status.SYNCED],
            "failed": _counts(e["reason"] for e in ended if e["status"] == Status.FAILED),
            "open": statuses[Status.QUEUED],
            "latencyMs": {
                "request": quantiles(self.played.requests_ms),
                "settle": quantiles([end["updatedAt"] - end["createdAt"] for end in ended]),
            },
            "audit": self.report.view(),
        }

    def render(self) -> RenderableType:
        """What a person gets."""
        found = self.view()
        counts = table("outcome", "number", "of which", right=frozenset({"number"}))
        counts.show_header = False
        for word in ("sent", "accepted", "replayed"):
            counts.add_row(word, str(found[word]), "")
        counts.add_row("refused", str(sum(found["refused"].values())), _listed(found["refused"]))
        counts.add_row(coloured("synced"), str(found["synced"]), "")
        failed = sum(found["failed"].values())
        counts.add_row(coloured("failed"), str(failed), _listed(found["failed"]))
        counts.add_row("open", str(found["open"]), "")
        names = [f"p{quantile}" for quantile in QUANTILES]
        latency = table("milliseconds", *names, right=frozenset(names))
        for words, name in (("a request's answer", "request"), ("accepted to settled", "settle")):
            latency.add_row(words, *(f"{found['latencyMs'][name][p]:,.0f}" for p in names))
        return Group("", counts, "", latency, "", audit.render(self.report))


def run_day(stack: Stack, run: str) -> Result:
    """Open and fund the wallets, play the day, wait for its end, and audit the tables."""
    day = read_day(run)
    with step("Agents") as done:
        apis = {agent: _app(stack, agent) for agent in day.agent_ids}
        # A first question each, so that the day's latencies are not those of cold starts.
        _side_by_side(lambda agent: apis[agent].status(f"{run}-none"), day.agent_ids)
        done.note = f"{len(apis)} enrolled, their apps open"
    with step("Wallets") as done:
        done.note = _open_wallets(stack, day, run)
    with step("The day") as done:
        played = play(day, apis)
        done.note = f"{day.size} transactions in {len(day.uploads)} requests"
    with step("Settling") as done:
        ends = await_ends(played.answers, apis)
        done.note = f"{len(ends)} transactions ended"
    with step("Audit") as done:
        report = audit.audit(stack, int(time.time()), lambda _: None)
        done.note = "all promises hold" if report.ok else "a promise is broken"
    return Result(run, played, ends, report)


def read_day(run: str) -> Day:
    """The bundled day, its keys made this run's own."""
    openings, uploads = [], []
    text = resources.files("wakala").joinpath("day.ndjson").read_text(encoding="utf-8")
    for line in map(json.loads, text.splitlines()):
        if "wallet" in line:
            openings.append(Opening(line["wallet"], line["opening"], line.get("frozen", False)))
            continue
        agent_id = line["agentId"]
        transactions = tuple(
            {
                "agentId": agent_id,
                **transaction,
                "idempotencyKey": f"{run}-{transaction['idempotencyKey']}",
            }
            for transaction in line["transactions"]
        )
        uploads.append(Upload(agent_id, transactions))
    return Day(tuple(openings), tuple(uploads))


def play(day: Day, apis: dict[str, AgentApi]) -> Played:
    """Send every upload: those of one agent in their order, the agents beside each other."""
    answers: list[Answer] = []
    requests_ms: list[float] = []
    lock = threading.Lock()

    def work(agent_id: str) -> None:
        for upload in day.uploads:
            if upload.agent_id != agent_id:
                continue
            started = time.monotonic()
            said = _send(apis[agent_id], upload)
            with lock:
                answers.extend(said)
                requests_ms.append((time.monotonic() - started) * 1000)
                advance(len(said))

    with progress_bar("sending", day.size) as advance:
        _side_by_side(work, day.agent_ids)
    return Played(tuple(answers), tuple(requests_ms))


def await_ends(
    answers: Sequence[Answer],
    apis: dict[str, AgentApi],
    seconds: float = SETTLE_SECONDS_MAX,
) -> dict[TransactionId, Document]:
    """The status of every accepted transaction, once it is no longer queued or time is over."""
    ids = {_id(answer.sent) for answer in answers if answer.accepted}
    ends: dict[TransactionId, Document] = {}
    deadline = time.monotonic() + seconds

    def ask(agent_id: str) -> None:
        for each in sorted(each for each in ids if each[0] == agent_id):
            while True:
                answer = apis[agent_id].status(each[1])
                if not answer.is_success:
                    raise Problem(f"no status of {each[1]}: the API answered {answer.status_code}")
                ends[each] = body_of(answer)
                if ends[each]["status"] != Status.QUEUED or time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
            advance(1)

    with progress_bar("settling", len(ids)) as advance:
        _side_by_side(ask, sorted({agent_id for agent_id, _ in ids}))
    return ends


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Nearest-rank quantiles; zeros where there is no value."""
    ranked = sorted(values) or [0.0]
    return {f"p{q}": round(ranked[-(-len(ranked) * q // 100) - 1], 1) for q in QUANTILES}


def _send(api: AgentApi, upload: Upload) -> list[Answer]:
    if len(upload.transactions) == 1:
        return [api.submit(upload.transactions[0])]
    return api.submit_batch(upload.transactions)


def _app(stack: Stack, agent_id: str) -> AgentApi:
    agents.enroll(stack, agent_id)
    return AgentApi(stack.api_url, agents.token(stack, agent_id))


def _open_wallets(stack: Stack, day: Day, run: str) -> str:
    requests = [wallets.credit(stack, o.phone, o.opening, run) for o in day.openings]
    posted = wallets.settle(stack, requests)
    frozen = [
        wallets.status_change(stack, o.phone, "frozen", run) for o in day.openings if o.frozen
    ]
    wallets.settle(stack, frozen)
    total = sum(entry.amount_minor for entry in posted)
    return f"{len(posted)} funded with {total:,} minor units, {len(frozen)} of them frozen"


def _side_by_side(work: Callable[[str], object], agent_ids: Sequence[str]) -> None:
    with ThreadPoolExecutor(max_workers=max(len(agent_ids), 1)) as pool:
        for _ in pool.map(work, agent_ids):
            pass  # map raises here what a worker raised


def _id(transaction: Document) -> TransactionId:
    return transaction["agentId"], transaction["idempotencyKey"]


def _counts(words: Iterable[object]) -> dict[str, int]:
    return dict(Counter(map(str, words)).most_common())


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items())
