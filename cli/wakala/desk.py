"""The triage desk: the function that lists, shows, redrives and discards dead letters.

No table is read or written from here. IAM decides who may invoke the desk, and the desk notes who
did what and why. Whatever is asked of it may be asked twice: a letter that was redriven is not
redriven again, so neither the SDK's retries nor ours, nor a command that is repeated, count twice.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal

from botocore.exceptions import ClientError

from wakala.output import Problem
from wakala.stack import Stack
from wallet_ledger.domain.letters import LetterStatus

PAGE = 500
DUE_PAGES_MAX = 10
"""Pages of waiting letters that are looked at for when they are due."""
CHUNK_MAX = 25
"""Letters that the desk takes in one call."""
WHO_LENGTH_MAX = 128

ATTEMPTS_MAX = 6
BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 5.0

CONTENDED_MAX = 6
"""Tries of a letter that others write to, before it is left and all later ones of its phone."""

LEFT = "left"
UNANSWERED = "unanswered"
CONTENDED = "contended"

type Document = dict[str, Any]
"""A letter, or a group of letters, as the desk describes it; times in ms."""
type Scope = Literal["open", "all"]
type Verb = Literal["redrive", "discard"]

WISHED: Mapping[Verb, frozenset[str]] = {
    # Redriven is what is to have an outcome: one that is closed has it.
    "redrive": frozenset({LetterStatus.REDRIVEN, LetterStatus.CLOSED}),
    # What was redriven or decided is not given up: who asked for that must hear of it.
    "discard": frozenset({LetterStatus.DISCARDED}),
}
"""What is to have become of a letter; whatever else has is something undone."""


class Refused(Problem):
    """The desk does not take a request as it stands."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time that passes, in seconds from anywhere, and how to let it pass."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


REAL = Clock(time.monotonic, time.sleep)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done with letters. `why` goes into their history; `force` is redrive's."""

    verb: Verb
    why: str
    force: bool
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a letter, or would: a word of the desk's, or `left` or `unanswered`."""

    letter_id: str
    outcome: str
    note: str


@dataclass(frozen=True)
class Desk:
    """The desk of a stack. Problem, from every method, where it refuses or does not answer."""

    stack: Stack
    clock: Clock

    @cached_property
    def who(self) -> str:
        """The caller as IAM knows it; of a long ARN the end, where the session is named."""
        return self.stack.sts.get_caller_identity()["Arn"][-WHO_LENGTH_MAX:]

    def letters(
        self, scope: Scope, wanted: Mapping[str, Any], read: Callable[[int], None]
    ) -> list[Document]:
        """Every letter that fits, oldest first; `read` hears how many were found so far.

        A letter that moves within its index meanwhile may be seen twice, and is told once.
        """
        found: dict[str, Document] = {}
        for page in self._pages("list", scope=scope, filter=wanted, limit=PAGE):
            for letter in page["letters"]:
                known = found.get(letter["letterId"])
                if known is None or known["revision"] < letter["revision"]:
                    found[letter["letterId"]] = letter
            read(len(found))
        return oldest_first(found.values())

    def groups(
        self, scope: Scope, wanted: Mapping[str, Any], read: Callable[[int], None]
    ) -> list[Document]:
        """Letters counted by fingerprint and class, the largest trouble first."""
        found: dict[tuple[str, str], Document] = {}
        for page in self._pages("groups", scope=scope, filter=wanted):
            for part in page["groups"]:
                name = part["fingerprint"], part["class"]
                found[name] = _added(found[name], part) if name in found else part
            read(sum(each["count"] for each in found.values()))
        return sorted(found.values(), key=lambda g: (-g["open"], -g["count"], g["oldestAt"]))

    def some_open(self, most: int) -> list[Document]:
        """Open letters in no order: all, or where there are more, at least `most`."""
        found: list[Document] = []
        for page in self._pages("list", scope="open", filter={}, limit=PAGE):
            found += page["letters"]
            if len(found) >= most:
                break
        return found

    def due(self, wanted: Mapping[str, Any]) -> dict[tuple[str, str], int]:
        """By fingerprint and class, until when the next letter of a group is redriven by itself.

        ms. Of a flood only some pages are looked at: the next one may be due sooner, never later.
        """
        found: dict[tuple[str, str], int] = {}
        waiting = {**wanted, "status": [LetterStatus.WAITING]}
        pages = self._pages("list", scope="open", filter=waiting, limit=PAGE)
        for page in islice(pages, DUE_PAGES_MAX):
            for letter in page["letters"]:
                name = letter["fingerprint"], letter["class"]
                found[name] = min(found.get(name, letter["dueAt"]), letter["dueAt"])
        return found

    def show(self, letter_id: str, reveal_why: str | None = None) -> Document:
        """All about a letter; with `reveal_why` unmasked, which its history tells for good."""
        request: Document = {"letterId": letter_id, "reveal": reveal_why is not None}
        if reveal_why is not None:
            request |= {"who": self.who, "why": reveal_why}
        try:
            letter: Document = self._ask("show", request)["letter"]
        except Refused as error:
            if reveal_why is None:  # nothing else can be wrong with it
                raise Problem(f"no letter has this id: {letter_id}") from error
            self.show(letter_id)
            raise Problem(f"{letter_id}: {error}") from error
        return letter

    def act(self, order: Order, letter_ids: Sequence[str]) -> list[Result]:
        """Redrive or discard up to 25 letters, or say what that would come to; in their order."""
        request = {
            "letterIds": letter_ids,
            "who": self.who,
            "why": order.why,
            "dryRun": order.dry_run,
        }
        if order.verb == "redrive":
            request["force"] = order.force
        results = self._ask(order.verb, request)["results"]
        return [
            Result(letter_id, each["outcome"], each.get("note") or "")
            for letter_id, each in zip(letter_ids, results, strict=True)
        ]

    def _pages(self, action: str, **request: Any) -> Iterator[Document]:
        page = self._ask(action, request | {"cursor": None})
        yield page
        while page["cursor"] is not None:  # an empty page is not the last one
            page = self._ask(action, request | {"cursor": page["cursor"]})
            yield page

    def _ask(self, action: str, request: Document) -> Document:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            answer = self._invoke({"action": action, **request})
            error = answer.get("error")
            if error is None:
                return answer
            if error["code"] != "UNAVAILABLE":
                raise Refused(f"the triage desk refuses: {error['message']}")
            if attempt == ATTEMPTS_MAX:
                raise Problem(
                    f"the triage desk cannot do it now ({error['message']}): try again in a moment"
                )
            self.clock.sleep(jittered(attempt))
        raise AssertionError("the last attempt returns or raises")

    def _invoke(self, request: Document) -> Document:
        function = self.stack.output("TriageDeskFunctionName")
        try:
            answer = self.stack.functions.invoke(
                FunctionName=function,
                InvocationType="RequestResponse",
                Payload=json.dumps(request).encode(),
            )
        except ClientError as error:
            self._explain(function, error)
            raise
        document = _object(answer["Payload"].read())
        if answer.get("FunctionError"):
            kind = (document or {}).get("errorType", "an error without a name")
            raise Problem(
                f"the triage desk failed ({kind}): read its log group /aws/lambda/{function}, and"
                " docs/runbook.md"
            )
        if document is None:
            raise Problem("the triage desk answers what this command does not know: update either")
        return document

    def _explain(self, function: str, error: ClientError) -> None:
        """Problem where it says what the person at the keyboard can do about it."""
        code = error.response["Error"].get("Code")
        if code in ("AccessDeniedException", "AccessDenied"):
            policy = self.stack.outputs.get("OperatorPolicyArn", "its OperatorPolicyArn")
            raise Problem(f"you may not invoke {function}: that takes the policy {policy}")
        if code == "ResourceNotFoundException":
            raise Problem(f"there is no function {function}: deploy the stack")


@dataclass(slots=True)
class Move:
    """Letters under way: how many a second, in which order, and what became of each so far.

    Letters of one phone keep their order: no call holds two of them, and none is sent while an
    older one is contended. `results` may be asked at any time, after an interruption too;
    `finished` says whether there was none.
    """

    desk: Desk
    order: Order
    letters: Sequence[Document]
    rate: float
    finished: bool = field(default=False, init=False)
    _told: dict[str, Result] = field(default_factory=dict, init=False)
    _statuses: dict[str, str] = field(default_factory=dict, init=False)
    _tries: Counter[str] = field(default_factory=Counter, init=False)
    _ready_at: dict[str, float] = field(default_factory=dict, init=False)
    _free_at: float = field(default=float("-inf"), init=False)

    def results(self) -> list[Result]:
        """What became of each letter so far, in the order of `letters`."""
        ids = [_id(letter) for letter in self.letters]
        return [self._told.get(each, Result(each, LEFT, "not reached")) for each in ids]

    def undone(self) -> list[Result]:
        """Those with which what was asked for has not come about."""
        wished = WISHED[self.order.verb]
        return [each for each in self.results() if self._became(each) not in wished]

    def run(self, advance: Callable[[int], None]) -> None:
        """Send every letter, contended ones again; `advance` hears how many more are done with."""
        waiting = list(self.letters)
        while waiting:
            chunk = self._next(waiting)
            if not chunk:  # every phone that is left has a contended letter
                soonest = min(self._ready_at[_id(each)] for each in _heads(waiting))
                self._sleep_until(soonest)
                continue
            self._pace(len(chunk))
            gone = self._send(chunk, waiting)
            waiting = [letter for letter in waiting if _id(letter) not in gone]
            advance(len(gone))
        self._ask_for_ends()
        self.finished = True

    def _became(self, result: Result) -> str:
        """The status of a letter, or the outcome that kept it from one."""
        match result.outcome:
            case "already_redriven":
                return LetterStatus.REDRIVEN
            case "already_terminal":
                return self._statuses.get(result.letter_id, result.outcome)
            case outcome:
                return outcome

    def _ask_for_ends(self) -> None:
        """What has become of letters that were dealt with before: by whom it was, nobody said."""
        for letter in self.letters:
            told = self._told[_id(letter)]
            if told.outcome == "already_terminal":
                is_open = LetterStatus(letter["status"]).is_open  # when it was chosen
                now = self.desk.show(told.letter_id) if is_open else letter
                self._statuses[told.letter_id] = now["status"]

    def _next(self, waiting: Sequence[Document]) -> list[Document]:
        """The oldest letters that may be sent now: a second's worth, one of each phone."""
        if self.order.dry_run:
            return list(waiting[:CHUNK_MAX])
        size = max(1, min(CHUNK_MAX, int(self.rate)))
        now = self.desk.clock.now()
        ready = (each for each in _heads(waiting) if self._ready_at.get(_id(each), now) <= now)
        return list(islice(ready, size))

    def _pace(self, count: int) -> None:
        """Wait until `count` more letters keep to the rate; a dry run moves none."""
        if not self.order.dry_run:
            self._sleep_until(self._free_at)
            self._free_at = self.desk.clock.now() + count / self.rate

    def _send(self, chunk: Sequence[Document], waiting: Sequence[Document]) -> set[str]:
        """Send letters, note what became of them, and return which need no further try."""
        ids = [_id(letter) for letter in chunk]
        for each in ids:
            self._told[each] = Result(each, UNANSWERED, "it was asked for, and no answer was seen")
        gone: set[str] = set()
        for letter, result in zip(chunk, self.desk.act(self.order, ids), strict=True):
            self._told[result.letter_id] = result
            self._tries[result.letter_id] += 1
            if result.outcome != CONTENDED or self.order.dry_run:
                gone.add(result.letter_id)
            elif self._tries[result.letter_id] < CONTENDED_MAX:
                wait = jittered(self._tries[result.letter_id])
                self._ready_at[result.letter_id] = self.desk.clock.now() + wait
            else:
                gone |= self._give_up(letter, waiting)
        return gone

    def _give_up(self, contended: Document, waiting: Sequence[Document]) -> set[str]:
        """Leave a contended letter, and all later ones of its phone, as they are."""
        lane = [_id(letter) for letter in waiting if _lane(letter) == _lane(contended)]
        note = f"{_id(contended)} of the same phone is older, and contended"
        self._told |= {each: Result(each, LEFT, note) for each in lane if each != _id(contended)}
        return set(lane)

    def _sleep_until(self, at: float) -> None:
        self.desk.clock.sleep(max(0.0, at - self.desk.clock.now()))


def oldest_first(letters: Iterable[Document]) -> list[Document]:
    """By when the message was sent, or for want of that by when its letter arrived."""
    return sorted(
        letters,
        key=lambda each: (each.get("sentAt") or each["arrivedAt"], each["arrivedAt"], _id(each)),
    )


def jittered(attempt: int) -> float:
    """Seconds to wait after a try, with full jitter."""
    return random.uniform(0, min(BACKOFF_SECONDS * 2**attempt, BACKOFF_SECONDS_MAX))


def _id(letter: Document) -> str:
    return str(letter["letterId"])


def _lane(letter: Document) -> str:
    """What letters of one phone have in common; one without a phone has a lane of its own."""
    return str(letter["lane"] or letter["letterId"])


def _heads(letters: Iterable[Document]) -> Iterator[Document]:
    """The first letter of each lane, in their order."""
    lanes: set[str] = set()
    for letter in letters:
        if _lane(letter) not in lanes:
            lanes.add(_lane(letter))
            yield letter


def _added(known: Document, part: Document) -> Document:
    """Two counts of one group; an open letter, or the later one, speaks for both."""
    said = max(known, part, key=lambda each: (each["open"] > 0, each["newestAt"]))
    return said | {
        "count": known["count"] + part["count"],
        "open": known["open"] + part["open"],
        "oldestAt": min(known["oldestAt"], part["oldestAt"]),
        "newestAt": max(known["newestAt"], part["newestAt"]),
    }


def _object(text: bytes) -> Document | None:
    """A JSON object, None for anything else."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
