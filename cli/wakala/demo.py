"""The demo: a bundled day of offline transactions and refunds, played through API and bus.

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

from wakala import agents, audit, refunds, uploads, wallets
from wakala.output import Problem, coloured, progress_bar, step, table
from wakala.stack import Stack
from wakala.transactions import AgentApi, Answer, Document, body_of
from wallet_ledger.domain.transactions import Status

SETTLE_SECONDS_MAX = 120.0
POLL_SECONDS = 0.25
OPEN = frozenset({Status.QUEUED, Status.REFUND_REQUESTED})
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
    """What one agent's app sends in one request, and what of it the agent takes back at once."""

    agent_id: str
    transactions: tuple[Document, ...]
    taken_back: Document | None


@dataclass(frozen=True, slots=True)
class Wish:
    """A refund that somebody asks for in the evening: the agent's app, or the back office."""

    by_agent: bool
    phone: str
    wanted: Document


@dataclass(frozen=True, slots=True)
class Day:
    """A day: what wallets hold when it begins, what agents send in its course, and refunds."""

    openings: tuple[Opening, ...]
    uploads: tuple[Upload, ...]
    wishes: tuple[Wish, ...]

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
    taken_back: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class GivenBack:
    """What has become of one refund: refunded, cancelled, repeated, or a reason against it."""

    wanted: Document
    outcome: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a day came to.

    `settled` has the first status after queued of each accepted transaction, `ends` the last one.
    """

    run: str
    played: Played
    settled: dict[TransactionId, Document]
    given_back: tuple[GivenBack, ...]
    ends: dict[TransactionId, Document]
    report: audit.Report

    @property
    def ok(self) -> bool:
        """Whether all that could be sent was, all that was accepted ended, and promises hold."""
        sent = (*self.played.answers, *self.played.taken_back)
        unsent = any(not each.accepted and each.retryable for each in sent)
        return self.report.ok and not unsent and not self.view()["open"]

    def view(self) -> dict[str, Any]:
        """What scripts get; latencies in milliseconds."""
        outcomes = Counter(answer.outcome for answer in self.played.answers)
        statuses = Counter(end["status"] for end in self.ends.values())
        failed = [end["reason"] for end in self.ends.values() if end["status"] == Status.FAILED]
        decided = [
            e for e in self.settled.values() if e["status"] in (Status.SYNCED, Status.FAILED)
        ]
        return {
            "run": self.run,
            "sent": len(self.played.answers),
            "accepted": outcomes["accepted"],
            "replayed": outcomes["replayed"],
            "refused": _counts(a.body.get("code") for a in self.played.answers if not a.accepted),
            "synced": statuses[Status.SYNCED],
            "partiallyRefunded": statuses[Status.PARTIALLY_REFUNDED],
            "refunded": statuses[Status.REFUNDED],
            "cancelled": statuses[Status.CANCELLED],
            "failed": _counts(failed),
            "open": sum(statuses[status] for status in OPEN),
            "refunds": _refund_counts(self.given_back),
            "latencyMs": {
                "request": quantiles(self.played.requests_ms),
                "settle": quantiles([end["updatedAt"] - end["createdAt"] for end in decided]),
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
        for status, name in (
            (Status.PARTIALLY_REFUNDED, "partiallyRefunded"),
            (Status.REFUNDED, "refunded"),
            (Status.CANCELLED, "cancelled"),
        ):
            counts.add_row(coloured(status), str(found[name]), "")
        failed = sum(found["failed"].values())
        counts.add_row(coloured("failed"), str(failed), _listed(found["failed"]))
        counts.add_row("open", str(found["open"]), "")
        counts.add_row("refunds asked for", str(len(self.given_back)), _listed(found["refunds"]))
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
        settled = await_ends([a.sent for a in played.answers if a.accepted], apis)
        done.note = f"{len(settled)} transactions ended"
    with step("Refunds") as done:
        given_back = [*_taken_back(played, settled), *give_back(stack, day, apis)]
        ends = settled | await_ends([each.wanted for each in given_back], apis)
        done.note = f"{len(given_back)} asked for, by agents and by the back office"
    with step("Audit") as done:
        report = audit.audit(stack, int(time.time()), lambda _: None)
        done.note = "all promises hold" if report.ok else "a promise is broken"
    return Result(run, played, settled, tuple(given_back), ends, report)


def read_day(run: str) -> Day:
    """The bundled day, its keys made this run's own."""
    openings, uploads, wishes = [], [], []
    text = resources.files("wakala").joinpath("day.ndjson").read_text(encoding="utf-8")
    for line in map(json.loads, text.splitlines()):
        if "wallet" in line:
            openings.append(Opening(line["wallet"], line["opening"], line.get("frozen", False)))
        elif "upload" in line:
            uploads.append(_upload(run, line))
        else:
            wanted = _own(run, line["agentId"], line) | {"reason": line["refund"]}
            optional = {name: line[name] for name in ("refundId", "amount") if name in line}
            wishes.append(Wish(line["by"] == "agent", line["phone"], wanted | optional))
    return Day(tuple(openings), tuple(uploads), tuple(wishes))


def play(day: Day, apis: dict[str, AgentApi]) -> Played:
    """Send every upload: those of one agent in their order, the agents beside each other.

    Each by an outbox of its own, as an app does that was installed afresh: what was sent before
    is sent again.
    """
    answers: list[Answer] = []
    taken_back: list[Answer] = []
    requests_ms: list[float] = []
    lock = threading.Lock()

    def work(agent_id: str) -> None:
        for upload in day.uploads:
            if upload.agent_id != agent_id:
                continue
            said = uploads.upload(upload.transactions, apis[agent_id], advance)
            took_ms = max(answer.took_ms for answer in said)
            back = [apis[agent_id].refund(upload.taken_back)] if upload.taken_back else []
            with lock:
                answers.extend(said)
                taken_back.extend(back)
                requests_ms.append(took_ms)

    with progress_bar("sending", day.size) as advance:
        _side_by_side(work, day.agent_ids)
    return Played(tuple(answers), tuple(requests_ms), tuple(taken_back))


def give_back(stack: Stack, day: Day, apis: dict[str, AgentApi]) -> list[GivenBack]:
    """The refunds of the evening: first the back office's, over the bus, then the agents'."""
    office = [wish for wish in day.wishes if not wish.by_agent]
    asked = [refunds.ask(stack, wish.wanted | {"phone": f"+{wish.phone}"}) for wish in office]
    ended = [
        GivenBack(
            wish.wanted, told.reason or ("refunded" if told.outcome == "posted" else "cancelled")
        )
        for wish, told in zip(office, refunds.settle(stack, asked), strict=True)
    ]
    found = [
        GivenBack(each.wanted, "repeated") if each.wanted in [e.wanted for e in ended[:n]] else each
        for n, each in enumerate(ended)
    ]
    lock = threading.Lock()

    def work(agent_id: str) -> None:
        for wish in day.wishes:
            if wish.by_agent and wish.wanted["agentId"] == agent_id:
                said = refunds.ask_api(apis[agent_id], wish.wanted)
                with lock:
                    found.append(GivenBack(wish.wanted, _outcome(said)))

    _side_by_side(work, day.agent_ids)
    return found


def await_ends(
    transactions: Sequence[Document],
    apis: dict[str, AgentApi],
    seconds: float = SETTLE_SECONDS_MAX,
) -> dict[TransactionId, Document]:
    """The status of every transaction, once nothing is owed to it or time is over."""
    ids = {_id(transaction) for transaction in transactions}
    ends: dict[TransactionId, Document] = {}
    deadline = time.monotonic() + seconds

    def ask(agent_id: str) -> None:
        for each in sorted(each for each in ids if each[0] == agent_id):
            while True:
                answer = apis[agent_id].status(each[1])
                if not answer.is_success:
                    raise Problem(f"no status of {each[1]}: the API answered {answer.status_code}")
                ends[each] = body_of(answer)
                if ends[each]["status"] not in OPEN or time.monotonic() > deadline:
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


def _upload(run: str, line: Document) -> Upload:
    agent_id = line["agentId"]
    sent = tuple(each | _own(run, agent_id, each) for each in line["transactions"])
    back = line.get("takenBack")
    return Upload(agent_id, sent, back | _own(run, agent_id, back) if back else None)


def _own(run: str, agent_id: str, line: Document) -> Document:
    return {"agentId": agent_id, "idempotencyKey": f"{run}-{line['idempotencyKey']}"}


def _taken_back(played: Played, settled: dict[TransactionId, Document]) -> list[GivenBack]:
    """What became of those that were taken back at once: cancelled, or debited and refunded."""
    return [
        GivenBack(
            each.sent,
            str(settled[_id(each.sent)]["status"]) if each.accepted else _outcome(each),
        )
        for each in played.taken_back
    ]


def _outcome(answer: Answer) -> str:
    if not answer.accepted:
        return str(answer.body.get("reason") or answer.body.get("code"))
    cancelled = answer.body["status"] == Status.CANCELLED
    return "cancelled" if cancelled else "refunded"


def _refund_counts(given_back: Sequence[GivenBack]) -> dict[str, int]:
    return _counts(each.outcome for each in given_back)


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
