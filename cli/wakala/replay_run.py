"""A replay under way: sends what is due, refunds what has settled, and waits for the rest."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import batched, groupby, islice

from botocore.exceptions import BotoCoreError, ClientError

from wakala import agents, wallets
from wakala.desk import Clock, Desk
from wakala.info import COUNTED_MAX, DEAD_LETTERS
from wakala.measures import Depth
from wakala.output import Problem, progress, progress_bar
from wakala.stack import Stack
from wakala.traffic import AGENT_COUNT, Sent, Traffic
from wakala.transactions import AgentApi, Answer, Document
from wallet_ledger.aws import items
from wallet_ledger.domain.ids import AgentId, IdempotencyKey
from wallet_ledger.domain.transactions import OfflineTransaction, Status

SOURCE = "replay"
"""The funding account of the wallets."""
REASON = "replay"

FUNDED_AT_ONCE = 200
"""Credits on the bus at a time: some seconds' work, so that none waits long for its answer."""
FUNDING_SECONDS_MAX = 120.0
BATCH_MAX = 50
"""Transactions that the API takes in one request."""
LOOK_SECONDS = 0.25
"""Between two looks at rows that were not at their end."""
LOOK_ROWS = 100
"""Rows of one look: what BatchGetItem takes."""
TICK_SECONDS = 0.02
SAMPLE_SECONDS = 1.0
LETTERS_SECONDS = 5.0
"""Between two questions to the desk, each of which is work of a function on the same stack."""

ENDS = frozenset(Status) - {Status.QUEUED, Status.HELD, Status.REFUND_REQUESTED}
"""Where nothing is owed to a transaction any more."""

type TransactionId = tuple[str, str]
type Apis = Mapping[str, AgentApi]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has become of a replay.

    `requests` by their answer; `rows` of what the API accepted, as they were seen last, `new` those
    that it had not accepted before this run; `open` has those that have not come to their end, and
    `unseen` why the last look at them failed. `debits` were sent, the last `late_s` after its time.
    `interrupted`: less was sent than there was to send; `by_hand`: a person wanted that, or not to
    wait.
    """

    requests: Mapping[str, int]
    rows: Mapping[TransactionId, OfflineTransaction]
    new: frozenset[TransactionId]
    open: frozenset[TransactionId]
    unseen: str | None
    debits: int
    late_s: float
    interrupted: bool
    by_hand: bool
    seconds: float


def open_apis(stack: Stack, traffic: Traffic) -> dict[str, AgentApi]:
    """The app of each agent, enrolled; each has asked a first question, so that none is cold."""
    names = sorted({each.document["agentId"] for each in traffic.sent})

    def opened(agent_id: str) -> AgentApi:
        agents.enroll(stack, agent_id)
        api = AgentApi(stack.api_url, agents.token(stack, agent_id))
        api.status(f"{traffic.name}-none")
        return api

    with ThreadPoolExecutor(max_workers=AGENT_COUNT) as pool:
        return dict(zip(names, pool.map(opened, names), strict=True))


def fund(stack: Stack, traffic: Traffic, clock: Clock, seconds_max: float) -> None:
    """Every wallet holds what it is to hold first; once for this traffic, however often asked.

    Problem where that takes longer; what is funded by then stays so.
    """
    deadline = clock.now() + seconds_max
    requests = [
        wallets.credit(stack, phone, amount, traffic.name, source=SOURCE)
        for phone, amount in traffic.openings.items()
    ]
    with progress_bar("funding", len(requests)) as advance:
        for start in range(0, len(requests), FUNDED_AT_ONCE):
            if clock.now() > deadline:
                raise Problem(
                    f"the time was over: {start:,} of {len(requests):,} wallets were funded; with"
                    " the same --seed the same command goes on"
                )
            some = requests[start : start + FUNDED_AT_ONCE]
            wallets.settle(stack, some, FUNDING_SECONDS_MAX)
            advance(len(some))


class Sampler:
    """Looks at the dead letters each second, from when it is entered until it is left."""

    def __init__(self, stack: Stack, clock: Clock) -> None:
        """`clock`: what the times of the samples are measured by."""
        self.depths: list[Depth] = []
        self._stack, self._clock = stack, clock
        self._desk = Desk(stack, clock)
        self._began_s = clock.now()
        self._not_empty_since: dict[str, float] = {}
        self._letters: list[Document] = []
        self._asked_s = float("-inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Sampler":
        """The first look is at once."""
        self._began_s = self._clock.now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The last look is at the end."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            is_over = self._over.is_set()
            self.look(int(time.time() * 1000), ask_desk=is_over)
            if is_over:
                return
            self._over.wait(SAMPLE_SECONDS)

    def look(self, now_ms: int, *, ask_desk: bool) -> None:
        """One sample. What cannot be asked now is as it was: a sample is missing, and no replay."""
        now_s = self._clock.now()
        try:
            queued = sum(self._depth(name, now_s) for name in sorted(DEAD_LETTERS))
            if ask_desk or now_s - self._asked_s >= LETTERS_SECONDS:
                self._letters = self._desk.some_open(COUNTED_MAX)
                self._asked_s = now_s
        except (BotoCoreError, ClientError, Problem):
            return
        ages = [(now_ms - each["arrivedAt"]) / 1000 for each in self._letters]
        ages += [now_s - since for since in self._not_empty_since.values()]
        letters = queued + len(self._letters)
        self.depths.append(Depth(now_s - self._began_s, letters, max(ages, default=0.0)))

    def _depth(self, name: str, now_s: float) -> int:
        """The messages of a queue; its oldest one came at the earliest since it was empty."""
        told = self._stack.sqs.get_queue_attributes(
            QueueUrl=self._stack.output(name), AttributeNames=["ApproximateNumberOfMessages"]
        )
        depth = int(told["Attributes"]["ApproximateNumberOfMessages"])
        if depth:
            self._not_empty_since.setdefault(name, now_s)
        else:
            self._not_empty_since.pop(name, None)
        return depth


@dataclass(slots=True)
class Run:
    """Sends traffic by threads of its own, and follows each transaction to its end.

    A first interruption stops the sending, a second one the waiting. `show` hears how many were
    sent and how many have come to their end. `began_ms`: rows that are older were there before,
    whatever the answer was; one that was lost makes a new row look like a known one.
    """

    stack: Stack
    traffic: Traffic
    apis: Apis
    clock: Clock
    seconds_max: float
    began_ms: int
    show: Callable[[int, int], None]
    _wanted: dict[TransactionId, Document] = field(init=False)
    _requests: Counter[str] = field(default_factory=Counter)
    _accepted: set[TransactionId] = field(default_factory=set)
    _new: set[TransactionId] = field(default_factory=set)
    _sent: set[TransactionId] = field(default_factory=set)
    _late_s: float = 0.0
    _unseen: str | None = None
    _rows: dict[TransactionId, OfflineTransaction] = field(default_factory=dict)
    _waiting: deque[TransactionId] = field(default_factory=deque)
    _under_way: list[Future[list[Answer]]] = field(default_factory=list)
    _refunds: dict[TransactionId, Future[list[Answer]]] = field(default_factory=dict)
    _looked_s: float = float("-inf")
    _stopped: bool = False
    _by_hand: bool = False

    def __post_init__(self) -> None:
        """What is to be refunded is looked up for each row that settles."""
        self._wanted = {_id(document): document for document in self.traffic.refunded}

    def until_the_end(self) -> Outcome:
        """Send everything and wait for it, for as long as may be."""
        began_s = self.clock.now()
        due = deque(_together(self.traffic.sent))
        with ThreadPoolExecutor(max_workers=AGENT_COUNT) as pool:
            while self.clock.now() - began_s <= self.seconds_max:
                try:
                    if not self._step(due, began_s, pool):
                        break
                    self.clock.sleep(TICK_SECONDS)
                except KeyboardInterrupt:
                    if self._by_hand:
                        break
                    self._by_hand = True
                    self._stop(due)
                    progress.print(
                        "nothing more is sent, what was is followed to its end:"
                        " Ctrl-C once more ends that, too",
                        soft_wrap=True,
                    )
            seconds = self.clock.now() - began_s
            self._stop(due)
        self._gather()
        unsent = len(self.traffic.sent) - sum(self._requests.values())
        own = {id_ for id_, row in self._rows.items() if row.created_at_ms >= self.began_ms}
        return Outcome(
            requests=dict(self._requests | self._refund_answers()),
            rows=self._rows,
            new=frozenset(self._new | own),
            open=frozenset(self._waiting),
            unseen=self._unseen,
            debits=len(self._sent),
            late_s=self._late_s,
            interrupted=unsent > 0,
            by_hand=self._by_hand,
            seconds=seconds,
        )

    def _stop(self, due: deque[list[Sent]]) -> None:
        """Nothing more is sent; what is on its way is."""
        self._stopped = True
        due.clear()
        for request in self._under_way:
            request.cancel()

    def _step(self, due: deque[list[Sent]], began_s: float, pool: ThreadPoolExecutor) -> bool:
        """Do what is to be done now; whether anything is left."""
        at_s = self.clock.now() - began_s
        while due and due[0][0].at_s <= at_s and len(self._under_way) < 2 * AGENT_COUNT:
            self._under_way.append(pool.submit(self._send, due.popleft(), began_s))
        self._gather()
        if self._waiting and self.clock.now() - self._looked_s >= LOOK_SECONDS:
            self._look(pool)
        self.show(sum(self._requests.values()), len(self._accepted) - len(self._waiting))
        return bool(due or self._under_way or self._waiting)

    def _send(self, together: list[Sent], began_s: float) -> list[Answer]:
        documents = [each.document for each in together]
        self._late_s = self.clock.now() - began_s - together[0].at_s
        api = self.apis[documents[0]["agentId"]]
        try:
            if len(documents) > 1:
                return api.submit_all(documents)
            return [api.submit(documents[0])]
        except Problem as no_answer:
            return [_unanswered(document, no_answer) for document in documents]

    def _gather(self) -> None:
        """Take the answers that have come."""
        for request in [each for each in self._under_way if each.done()]:
            self._under_way.remove(request)
            for answer in [] if request.cancelled() else request.result():
                self._requests[answer.outcome] += 1
                id_ = _id(answer.sent)
                self._sent.add(id_)
                if answer.outcome == "accepted":
                    self._new.add(id_)
                if answer.accepted and id_ not in self._accepted:
                    self._accepted.add(id_)
                    self._waiting.append(id_)

    def _look(self, pool: ThreadPoolExecutor) -> None:
        """Look at those that wait longest; the others of them go to the back.

        They wait until they were seen: a look may be interrupted, or fail and be taken again later.
        """
        asked = list(islice(self._waiting, LOOK_ROWS))
        try:
            seen = {_row_id(row): row for row in read_rows(self.stack, asked)}
        except (BotoCoreError, ClientError) as error:
            self._unseen = str(error)
            self._looked_s = self.clock.now()
            return
        self._unseen = None
        self._rows |= seen
        left = [each for each in asked if each not in seen or not self._ended(seen[each], pool)]
        self._waiting = deque([*islice(self._waiting, len(asked), None), *left])
        if left:
            self._looked_s = self.clock.now()

    def _ended(self, row: OfflineTransaction, pool: ThreadPoolExecutor) -> bool:
        """Whether nothing more comes; one that is to be refunded is, once it is settled."""
        wanted = self._wanted.get(_row_id(row))
        if row.status is not Status.SYNCED or wanted is None:
            return row.status in ENDS
        asked = self._refunds.get(_row_id(row))
        if asked is not None:
            return asked.done() and not any(answer.accepted for answer in asked.result())
        if not self._stopped:
            self._refunds[_row_id(row)] = pool.submit(self._refund, wanted)
        return self._stopped

    def _refund(self, document: Document) -> list[Answer]:
        members = ("agentId", "idempotencyKey")
        wanted = {name: document[name] for name in members} | {"reason": REASON}
        try:
            return [self.apis[document["agentId"]].refund(wanted)]
        except Problem as no_answer:
            return [_unanswered(wanted, no_answer)]

    def _refund_answers(self) -> Counter[str]:
        answers = [answer for asked in self._refunds.values() for answer in asked.result()]
        taken = sum(answer.accepted for answer in answers)
        return Counter({"refunds": taken, "refundsRefused": len(answers) - taken})


def read_rows(stack: Stack, ids: Sequence[TransactionId]) -> list[OfflineTransaction]:
    """The rows that are there, of up to a hundred; they may be a moment old."""
    table = stack.output("OfflineTxTable")
    keys = [items.offline_tx_key(AgentId(agent), IdempotencyKey(key)) for agent, key in ids]
    answer = stack.dynamodb.batch_get_item(RequestItems={table: {"Keys": keys}})
    return [items.read_offline_tx(item) for item in answer["Responses"].get(table, [])]


def _together(sent: Iterable[Sent]) -> Iterator[list[Sent]]:
    """Requests: what an agent sends in one moment is a batch, anything else goes alone."""
    for _, moment in groupby(sent, key=lambda each: each.at_s):
        by_agent: dict[str, list[Sent]] = {}
        for each in moment:
            by_agent.setdefault(each.document["agentId"], []).append(each)
        for own in by_agent.values():
            yield from (list(some) for some in batched(own, BATCH_MAX, strict=False))


def _unanswered(sent: Document, why: Problem) -> Answer:
    body = {"code": "UNSENT", "detail": str(why), "retryable": True}
    return Answer(sent, 0, body, replayed=False, took_ms=0)


def _id(document: Document) -> TransactionId:
    return document["agentId"], document["idempotencyKey"]


def _row_id(row: OfflineTransaction) -> TransactionId:
    return row.agent_id, row.idempotency_key
