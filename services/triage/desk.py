"""The desk's edge: what operators and the clock ask for. IAM says who may ask."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from triage import views
from triage.act import (
    HISTORY_MAX,
    TRIAGE,
    By,
    Desk,
    Outcome,
    Result,
    discard,
    look_again,
    redrive,
    reveal,
)
from triage.watch import watch
from wallet_ledger.domain.letters import (
    LETTER_SHARDS,
    Letter,
    LetterClass,
    LetterStatus,
    Source,
)
from wallet_ledger.errors import InvalidMessage, Unavailable
from wallet_ledger.ports import LetterPage
from wallet_ledger.telemetry import count, count_by, in_current_trace, log_failure, logger

LETTERS_MAX = 25
"""Letters in one request to redrive or discard: well within the function's time."""
PAGE_MAX = 500
"""Letters in one page of a list: a third of what an answer of Lambda holds."""
QUERIES_MAX = 10
"""Queries for one page; a filter that takes little makes short pages, not slow ones."""
WHO_LENGTH_MAX = 128
WHY_LENGTH_MAX = 200
_LATEST_MS = 10**14
_NO_CURSOR = "cursor: not one that an answer to this request gave"

_MEMBERS = frozenset(
    "action scope filter cursor limit letterId letterIds reveal who why force dryRun".split()
)
"""Of a request; another one is refused, since a `dryrun` that is overheard is an action."""

type Request = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a list goes on: in which shard, and after which letter."""

    shard: int = 0
    after: tuple[int, str] | None = None


def handle_request(request: Request, desk: Desk, deadline_ms: int) -> dict[str, Any]:
    """One request of docs/dead-letters.md in, its answer or its error out."""
    actions: dict[str, Callable[[], dict[str, Any]]] = {
        "list": lambda: _list(request, desk),
        "groups": lambda: _groups(request, desk),
        "show": lambda: _show(request, desk),
        "redrive": lambda: _each(request, desk, redrive),
        "discard": lambda: _each(request, desk, discard),
    }
    if request == {"action": "due"}:
        return _due(desk, deadline_ms)
    try:
        if not isinstance(request, dict) or not request.keys() <= _MEMBERS:
            raise InvalidMessage("the request is no object, or has a member that is not known")
        action = actions.get(str(request.get("action")))
        if action is None:
            raise InvalidMessage(f"action: one of {', '.join([*actions, 'due'])}")
        return action()
    except InvalidMessage as error:
        return {"error": {"code": "VALIDATION_FAILED", "message": str(error)}}
    except Unavailable as error:
        logger.warning("unavailable", extra={"code": error.code})
        return {"error": {"code": "UNAVAILABLE", "message": error.code}}


def _list(request: Request, desk: Desk) -> dict[str, Any]:
    limit = _integer(request, "limit", 1, PAGE_MAX, PAGE_MAX)
    found, cursor = _page(request, desk, limit)
    return {"letters": [views.summary(letter) for letter in found], "cursor": cursor}


def _groups(request: Request, desk: Desk) -> dict[str, Any]:
    found, cursor = _page(request, desk, PAGE_MAX)
    return {"groups": views.groups(found), "cursor": cursor}


def _show(request: Request, desk: Desk) -> dict[str, Any]:
    letter = desk.letters.find(_text(request, "letterId", 64))
    if letter is None:
        raise InvalidMessage("letterId: no such letter")
    shown: dict[str, Any] = {}
    if _flag(request, "reveal"):
        by = _by(request)
        if len(letter.history) >= HISTORY_MAX:
            raise InvalidMessage(f"letterId: its history is full ({HISTORY_MAX} lines)")
        record = desk.letters.record(letter.letter_id)
        if record is None:
            raise InvalidMessage("letterId: its record has been purged")
        if not reveal(letter, by, desk):
            raise Unavailable("NotRevealed")
        logger.info("revealed", extra={"letter": letter.letter_id})
        letter = desk.letters.find(letter.letter_id) or letter
        shown = views.revealed(letter, record)
    budget = desk.letters.budget(letter.subject_ref)
    return {"letter": views.whole(letter, budget) | shown}


def _each(request: Request, desk: Desk, act: Callable[[str, By, Desk], Result]) -> dict[str, Any]:
    """Act on letters in the order given; one that cannot be done now stops no other."""
    ids = request.get("letterIds")
    if not isinstance(ids, list) or not 1 <= len(ids) <= LETTERS_MAX:
        raise InvalidMessage(f"letterIds: a list of 1 to {LETTERS_MAX}")
    if not all(map(_is_letter_id, ids)):
        raise InvalidMessage("letterIds: ids of letters")
    by = _by(request)
    results = [(letter_id, _one(act, letter_id, by, desk)) for letter_id in ids]
    for letter_id, result in results:
        if not by.dry_run:
            _tell(letter_id, result)
    return {
        "results": [
            {"letterId": letter_id, "outcome": result.outcome, "note": result.note}
            for letter_id, result in results
        ]
    }


def _one(act: Callable[[str, By, Desk], Result], letter_id: str, by: By, desk: Desk) -> Result:
    try:
        return act(letter_id, by, desk)
    except Exception as error:  # one letter's trouble must not leave others half done, untold
        log_failure("letter not acted on", error, letter=letter_id)
        return Result(Outcome.CONTENDED, type(error).__name__)


def _due(desk: Desk, deadline_ms: int) -> dict[str, Any]:
    """A run of the clock. It raises where nothing can be read, since nobody reads its answer."""
    watched = watch(desk, deadline_ms, partial(_look, desk=desk), in_current_trace)
    if not watched.unread:  # half a count would be a good one, and wrong
        count("OpenLetters", watched.open_letters)
        count("ParkedLetters", watched.parked)
        count("OldestOpenLetterAgeSeconds", watched.oldest_age_s)
    _tell_of_unreadable(watched.unreadable)
    told = {str(outcome): number for outcome, number in watched.done.items()}
    seen = {"open": watched.open_letters, "parked": watched.parked, "unread": watched.unread}
    (logger.warning if watched.unread else logger.info)("looked", extra=seen | told)
    return {"openLetters": watched.open_letters, "parkedLetters": watched.parked} | told


def _tell_of_unreadable(letter_ids: Sequence[str]) -> None:
    """A version that wrote more than this one knows was rolled back: the others go on."""
    if letter_ids:
        count("LettersUnreadable", len(letter_ids))
        logger.error("unreadable letters", extra={"letters": letter_ids})


def _look(letter: Letter, desk: Desk) -> Outcome:
    try:
        result = look_again(letter, desk)
    except Unavailable as error:
        result = Result(Outcome.CONTENDED, error.code)
    except Exception as error:  # one letter's trouble must not keep all others waiting
        log_failure("letter not looked at", error, letter=letter.letter_id)
        result = Result(Outcome.CONTENDED)
    if result.outcome is not Outcome.UNCHANGED:
        _tell(letter.letter_id, result)
    return result.outcome


def _tell(letter_id: str, result: Result) -> None:
    """One log line per letter, and its metric; the clock's letters and people's alike."""
    count_by("LettersActedOn", "outcome", result.outcome)
    logger.info("letter acted on", extra={"letter": letter_id, "outcome": result.outcome})


def _page(request: Request, desk: Desk, limit: int) -> tuple[list[Letter], str | None]:
    """Letters that the filter takes, and the cursor of the next page, None at the end."""
    wanted = _filter(request)
    open_only = _choice(request, "scope", {"open", "all"}, "open") == "open"
    part = _part(request, wanted, open_only=open_only)
    found: list[Letter] = []
    for _ in range(QUERIES_MAX):
        page = desk.letters.page(
            LetterPage(
                part.shard,
                open_only,
                limit - len(found),
                part.after,
                wanted.arrived_from_ms,
                wanted.arrived_until_ms,
            )
        )
        _tell_of_unreadable(page.unreadable)
        found += [letter for letter in page.letters if wanted.takes(letter)]
        part = _Part(part.shard, page.ended) if page.ended else _Part(part.shard + 1)
        if part.shard == LETTER_SHARDS:
            return found, None
        if len(found) == limit:
            break
    cursor = json.dumps([open_only, part.shard, part.after])
    return found, base64.urlsafe_b64encode(cursor.encode()).decode()


def _filter(request: Request) -> views.Filter:
    members = request.get("filter", {})
    if not isinstance(members, dict):
        raise InvalidMessage("filter: an object")
    known = "fingerprint class source agentId why status arrivedFrom arrivedUntil".split()
    if unknown := members.keys() - set(known):
        raise InvalidMessage(f"filter: {len(unknown)} members that are not known")
    statuses = members.get("status", [])
    if not isinstance(statuses, list) or not set(map(str, statuses)) <= set(LetterStatus):
        raise InvalidMessage(f"status: a list of {', '.join(LetterStatus)}")
    arrived_from_ms = _integer(members, "arrivedFrom", 0, _LATEST_MS, 0)
    return views.Filter(
        fingerprint=_maybe_text(members, "fingerprint"),
        letter_class=_choice(members, "class", set(LetterClass), None),
        source=_choice(members, "source", set(Source), None),
        agent_id=_maybe_text(members, "agentId"),
        why=_maybe_text(members, "why"),
        statuses=frozenset(map(str, statuses)),
        arrived_from_ms=arrived_from_ms,
        arrived_until_ms=_integer(members, "arrivedUntil", arrived_from_ms, _LATEST_MS, _LATEST_MS),
    )


def _part(request: Request, wanted: views.Filter, *, open_only: bool) -> _Part:
    cursor = request.get("cursor")
    if cursor is None:
        return _Part()
    try:
        same, shard, after = json.loads(base64.urlsafe_b64decode(str(cursor)))
        at_ms, letter_id = (0, "-") if after is None else after
    except (ValueError, TypeError, RecursionError):
        raise InvalidMessage(_NO_CURSOR) from None
    # The table refuses to start outside of what is asked for, and says so by an error of ours.
    bounds = (wanted.arrived_from_ms, wanted.arrived_until_ms)
    earliest_ms, latest_ms = (0, _LATEST_MS) if open_only or after is None else bounds
    if not (
        same is open_only
        and (type(shard), type(at_ms)) == (int, int)
        and 0 <= shard < LETTER_SHARDS
        and earliest_ms <= at_ms <= latest_ms
        and _is_letter_id(letter_id)
    ):
        raise InvalidMessage(_NO_CURSOR)
    return _Part(shard, None if after is None else (at_ms, letter_id))


def _by(request: Request) -> By:
    by = By(
        _text(request, "who", WHO_LENGTH_MAX),
        _text(request, "why", WHY_LENGTH_MAX),
        force=_flag(request, "force"),
        dry_run=_flag(request, "dryRun"),
    )
    if not by.who.isascii() or by.who.strip().casefold() == TRIAGE:
        raise InvalidMessage("who: in ASCII, and not triage itself")
    return by


def _is_letter_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 64 and value.isprintable()


def _text(members: Request, name: str, longest: int) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= longest or not value.isprintable():
        raise InvalidMessage(f"{name}: 1 to {longest} printable characters")
    return value


def _maybe_text(members: Request, name: str) -> str | None:
    return None if members.get(name) is None else _text(members, name, WHY_LENGTH_MAX)


def _choice[Default](
    members: Request, name: str, choices: set[str], default: Default
) -> str | Default:
    value = members.get(name)
    if value is None:
        return default
    if not isinstance(value, str) or value not in choices:
        raise InvalidMessage(f"{name}: one of {', '.join(sorted(choices))}")
    return value


def _flag(members: Request, name: str) -> bool:
    value = members.get(name, False)
    if not isinstance(value, bool):
        raise InvalidMessage(f"{name}: true or false")
    return value


def _integer(members: Request, name: str, least: int, largest: int, default: int) -> int:
    value = members.get(name, default)
    if type(value) is not int or not least <= value <= largest:
        raise InvalidMessage(f"{name}: an integer from {least} to {largest}")
    return value
