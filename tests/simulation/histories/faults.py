"""What goes wrong with a call: which of them, and what becomes of it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from botocore.exceptions import ConnectionClosedError, ReadTimeoutError

from tests.simulation.cloud.errors import AwsError
from tests.simulation.histories.hits import Hits
from tests.simulation.histories.plan import Fault, Item
from tests.simulation.histories.processes import Call

READS = frozenset({"GetItem", "Query", "GetQueueAttributes", "TransactGetItems"})
FUNCTIONS = (
    "ingest",
    "ingest-bus",
    "relay",
    "sweep",
    "reconcile",
    "refund",
    "triage",
    "triage-desk",
)
BUSY = ("reconcile", "refund", "relay")
SELDOM = ("ingest-bus", "sweep", "triage", "triage-desk")
"""These run so much less often that they are drawn more often."""
OUTLASTED = ("sweep", "sweep", "refund", "reconcile")
"""Where these are down for long, transactions wait until they expire."""
USES_TABLES = frozenset(FUNCTIONS) - {"ingest-bus", "relay"}
"""The others only send."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

ON_CALLS = frozenset(
    {
        Fault.KILLED_BEFORE,
        Fault.KILLED_AFTER,
        Fault.TIMED_OUT,
        Fault.STALLED,
        Fault.ANSWER_LOST,
        Fault.RESET,
        Fault.THROTTLED,
        Fault.INTERNAL_ERROR,
        Fault.CONFLICT,
        Fault.IN_PROGRESS,
        Fault.PARTIAL_SEND,
        Fault.PARTIAL_PUT,
    }
)
_LASTING = frozenset(
    {
        Fault.RESET,
        Fault.THROTTLED,
        Fault.INTERNAL_ERROR,
        Fault.CONFLICT,
        Fault.PARTIAL_SEND,
        Fault.PARTIAL_PUT,
    }
)
_WRITES_ONLY = frozenset({Fault.KILLED_AFTER, Fault.ANSWER_LOST})
_OPERATIONS = {
    Fault.CONFLICT: {"TransactWriteItems", "PutItem", "UpdateItem", "TransactGetItems"},
    Fault.IN_PROGRESS: {"TransactWriteItems"},
    Fault.PARTIAL_SEND: {"SendMessageBatch"},
    Fault.PARTIAL_PUT: {"PutEvents"},
}
OUTAGES = frozenset({Fault.DOWN, Fault.CRASHING, Fault.STARVED, Fault.DENIED})
_COUNTED = frozenset(
    {
        Fault.NOT_DELETED,
        Fault.TWICE,
        Fault.EVENT_TWICE,
        Fault.EVENT_LATE,
        Fault.EVENT_LOST,
        Fault.SKEWED,
    }
)
CONFLICT_TRIES = 4
"""Of a plain write: our clients try those again, beyond botocore's own attempts."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The call is over, and this came back."""

    answer: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The call is over, and this is raised in its process."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Again:
    """botocore makes the call once more."""


@dataclass(frozen=True, slots=True)
class Dies:
    """The process is killed."""


@dataclass(frozen=True, slots=True)
class Freezes:
    """The process does not go on; `gives_up`: Lambda thinks it dead, and it is not."""

    gives_up: bool


type Fate = Answered | Raised | Again | Dies | Freezes


@dataclass
class Armed:
    """A fault that waits for a call it can befall."""

    kind: Fault
    function: str | None
    times: int
    random: Random
    number: int
    first: bool
    """Only a call that its function has not made before: so are the rare ones met."""
    skips: int
    """Calls that it lets pass: so is what a run does last met as well as what it does first."""


@dataclass
class Faults:
    """Everything that is wrong at this moment."""

    now_ms: Callable[[], int]
    armed: list[Armed] = field(default_factory=list)
    counted: Counter[tuple[Fault, str | None]] = field(default_factory=Counter)
    """Faults that befall the next that comes, or the next of one function."""
    outages: dict[str, tuple[Fault, int]] = field(default_factory=dict)
    lags: tuple[int, Random] = (0, Random(0))
    """Until when reads may lag that need not be consistent, and whose numbers say how far."""
    tables_only: bool = True
    """Whether an outage of calls is one of DynamoDB alone."""
    paused: dict[str, int] = field(default_factory=dict)
    """Tables whose stream nobody reads, and until when."""
    hits: Hits = field(default_factory=Hits)
    """What really befell something."""
    _begun: int = 0

    def begin(self, item: Item) -> str:
        """From now on this is wrong; on what, for the trace."""
        random, kind = item.random(), item.what
        assert isinstance(kind, Fault)
        if kind in ON_CALLS:
            return self._arm(kind, random)
        if kind in OUTAGES:
            return self._break_down(kind, random)
        if kind in _COUNTED:
            on = _whose(random) if kind is Fault.SKEWED else None
            self.counted[kind, on] += random.choice((1, 1, 2))
            return on or ""
        if kind is Fault.LAGGING:
            self.lags = (self.now_ms() + random.randint(30, 600) * 60_000, random)
            return ""
        table = random.choice((*("OfflineTx",) * 2, "WalletLedger", "DeadLetters"))
        lasts_ms = DAY_MS + HOUR_MS if kind is Fault.STREAM_LOST else random.randint(1, 30) * 60_000
        self.paused[table] = self.now_ms() + lasts_ms
        return table

    def _arm(self, kind: Fault, random: Random) -> str:
        function = _whose(random)
        times = random.choice((1, 1, 2, 3, 6, 9)) if kind in _LASTING else 1
        self._begun += 1
        first = random.random() < 0.4
        skips = 0 if first else random.choice((0, 0, 1, 3, 9))
        self.armed.append(Armed(kind, function, times, random, self._begun, first, skips))
        return f"{function or 'any'} x{times}"

    def _break_down(self, kind: Fault, random: Random) -> str:
        function = random.choice((*FUNCTIONS, *OUTLASTED))
        hours = random.choice((1, 1, 6))
        # Inbox keeps a message for four days.
        if kind is Fault.DOWN and function != "ingest-bus":
            hours = random.choice((1, 9 * 24, 9 * 24))
        self.outages[function] = (kind, self.now_ms() + hours * HOUR_MS)
        self.tables_only = function in USES_TABLES and random.random() < 0.7
        return f"{function} {'tables only' if self.tables_only else ''}".rstrip()

    def stop(self) -> None:
        """Nothing goes wrong any more."""
        self.armed.clear()
        self.counted.clear()
        self.outages.clear()
        self.paused.clear()
        self.lags = (0, Random(0))

    def lag(self, table: str, index: str | None) -> int:
        """How many commits behind a read is that does not ask for the latest."""
        until_ms, random = self.lags
        if until_ms <= self.now_ms():
            return 0
        commits = random.randint(0, 5)
        if commits:
            self.hits.note(Fault.LAGGING, index or table, until_ms)
        return commits

    def takes(self, kind: Fault, on: str) -> bool:
        """Whether a fault that is counted befalls this; it is used up then."""
        which = next((each for each in ((kind, on), (kind, None)) if self.counted[each]), None)
        if which is None:
            return False
        self.counted[which] -= 1
        self.hits.note(kind, on)
        return True

    def outage(self, function: str) -> Fault | None:
        """What is wrong with a function as a whole."""
        kind, until_ms = self.outages.get(function, (None, 0))
        if kind is not None and until_ms <= self.now_ms():
            del self.outages[function]
            return None
        return kind

    def suffers(self, function: str, kind: Fault) -> bool:
        """Whether a function has this outage; that something met it is noted."""
        if self.outage(function) is not kind:
            return False
        self.hits.note(kind, function, self.outages[function])
        return True

    def is_down(self, function: str) -> bool:
        """Whether nothing can start a function."""
        return self.suffers(function, Fault.DOWN)

    def is_paused(self, table: str) -> bool:
        """Whether nobody reads a table's stream."""
        until_ms = self.paused.get(table, 0)
        if until_ms and until_ms <= self.now_ms():
            del self.paused[table]
            return False
        if until_ms:
            self.hits.note(Fault.STREAM_PAUSED, table, until_ms)
        return bool(until_ms)

    def fate(self, function: str, call: Call, run: Callable[[Mapping[str, Any]], Any]) -> Fate:
        """What becomes of a call; `run` makes it, with the body that is given."""
        self.hits.made[function, call.operation] += 1
        met = call.service == "dynamodb" or not self.tables_only
        if met and self.suffers(function, Fault.STARVED):
            return _refused(call, AwsError("ThrottlingException", "Rate exceeded"))
        if met and call.operation not in READS and self.suffers(function, Fault.DENIED):
            return Raised(AwsError("AccessDeniedException", "not authorized"))
        armed = self._take(function, call)
        if armed is None:
            return _through(call, run)
        self.hits.note_call(armed.kind, function, call.operation, armed.number)
        match armed.kind:
            case Fault.KILLED_BEFORE:
                return Dies()
            case Fault.KILLED_AFTER:
                _through(call, run)
                return Dies()
            case Fault.TIMED_OUT | Fault.STALLED:
                return Freezes(gives_up=armed.kind is Fault.STALLED)
            case Fault.ANSWER_LOST:
                _through(call, run)
                return _refused(call, ReadTimeoutError(endpoint_url="aws"))
            case Fault.PARTIAL_SEND | Fault.PARTIAL_PUT:
                return _partly(call, run, armed.random)
            case kind:
                return _refused(call, _error(kind, call, armed.random))

    def _take(self, function: str, call: Call) -> Armed | None:
        for armed in self.armed:
            if armed.function not in (None, function):
                continue
            if not befalls(armed.kind, call.operation):
                continue
            if armed.first and self.hits.made[function, call.operation] > 1:
                continue
            if armed.skips:
                armed.skips -= 1
                continue
            armed.times, armed.first = armed.times - 1, False
            if not armed.times:
                self.armed.remove(armed)
            return armed
        return None


def _whose(random: Random) -> str | None:
    """On which function a fault is; None: on whichever comes first."""
    return random.choice((None, *map(random.choice, (BUSY, FUNCTIONS, SELDOM))))


def befalls(kind: Fault, operation: str) -> bool:
    """Whether a fault of calls makes sense of this operation."""
    if kind in _WRITES_ONLY and operation in READS:
        return False
    return operation in _OPERATIONS.get(kind, {operation})


def _through(call: Call, run: Callable[[Mapping[str, Any]], Any]) -> Fate:
    try:
        return Answered(run(call.body))
    except AwsError as error:
        return Raised(error)


def _refused(call: Call, error: Exception) -> Fate:
    """botocore tries again what passes, as often as its client may."""
    code = getattr(error, "code", "")
    if code == "TransactionConflictException":
        tries = CONFLICT_TRIES - call.retries
    elif code == "TransactionCanceledException":
        tries = 1
    else:
        tries = call.tries - call.retries
    if tries <= 1:
        return Raised(error)
    call.retries += 1
    return Again()


def _error(kind: Fault, call: Call, random: Random) -> Exception:
    match kind:
        case Fault.RESET:
            return ConnectionClosedError(endpoint_url="aws")
        case Fault.THROTTLED:
            codes = ("ThrottlingException", "ProvisionedThroughputExceededException")
            return AwsError(random.choice(codes), "Rate exceeded")
        case Fault.INTERNAL_ERROR:
            return AwsError("InternalServerError", "try again", status=500)
        case Fault.IN_PROGRESS:
            return AwsError("TransactionInProgressException", "it is under way")
        case _ if "TransactItems" not in call.body:
            return AwsError("TransactionConflictException", "a transaction is under way")
        case _:
            return _cancelled(len(call.body["TransactItems"]), random)


def _cancelled(count: int, random: Random) -> AwsError:
    """A conflict on one item; the others are said to be fine, or to break their conditions."""
    others = random.choice(("None", "None", "ConditionalCheckFailed"))
    codes = [others] * count
    passing = ("TransactionConflict", "TransactionConflict", "ThrottlingError")
    codes[random.randrange(count)] = random.choice(passing)
    reasons = [{"Code": code} for code in codes]
    return AwsError("TransactionCanceledException", "cancelled", reasons=reasons)


def _partly(call: Call, run: Callable[[Mapping[str, Any]], Any], random: Random) -> Fate:
    """Some entries are taken and others not, under 200."""
    entries = call.body["Entries"]
    bad = sorted(random.sample(range(len(entries)), random.randint(1, len(entries))))
    good = [entry for index, entry in enumerate(entries) if index not in bad]
    fate = _through(call, lambda body: run({**body, "Entries": good})) if good else None
    if isinstance(fate, Raised):
        return fate
    answer = fate.answer if isinstance(fate, Answered) else {}
    if call.operation == "SendMessageBatch":
        failed = [
            {"Id": entries[index]["Id"], "Code": "InternalError", "SenderFault": False}
            for index in bad
        ]
        return Answered({"Successful": answer.get("Successful", []), "Failed": failed})
    taken = iter(answer.get("Entries", []))
    told = [
        {"ErrorCode": "InternalFailure", "ErrorMessage": "try again"}
        if index in bad
        else next(taken)
        for index in range(len(entries))
    ]
    return Answered({"FailedEntryCount": len(bad), "Entries": told})
