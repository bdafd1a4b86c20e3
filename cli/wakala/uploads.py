"""Many transactions of an agent, brought to the API by the agents' SDK, with its answer to each.

An outbox lives no longer than the command: what lasts is the file, whose keys never change. So an
interrupted command is typed again, what was taken before is a replay, and the API alone judges.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import httpx

from wakala.output import Problem
from wakala.transactions import (
    BACKOFF_SECONDS,
    BACKOFF_SECONDS_MAX,
    COLUMNS,
    AgentApi,
    Answer,
    Document,
    body_of,
)
from wakala_agent import (
    Backoff,
    InvalidTransaction,
    Limits,
    Outbox,
    OutboxUnusable,
    Pace,
    State,
    StorageFull,
    Syncer,
    Transaction,
)

PATIENCE_S = 60.0
"""How long the API may take nothing before the rest of a file is left."""
PATIENCE_S_MIN = 1.0
"""What an agent's transactions get after another's have used that up: a try."""
REQUESTS_PER_S = 50.0
"""Half of what a stack's stage admits: an operator is not the only one who sends."""

MEMORY = Path("/dev/shm")  # noqa: S108, the folders in it are made by tempfile
"""Where it is there: nothing in an outbox has to last, and phones are best not on a disk."""
PREFIX = "wakala-outbox-"

OPTIONAL = frozenset(COLUMNS) - {"agentId", "phone", "amount", "idempotencyKey"}
"""Members that may also be null, which says no more than that they are not there."""


class Patience:
    """Since when the API has taken nothing, whoever asked."""

    def __init__(self) -> None:
        """It has just begun."""
        self._since_s = time.monotonic()

    @property
    def left_s(self) -> float:
        """Seconds for the next try."""
        return max(PATIENCE_S_MIN, PATIENCE_S - (time.monotonic() - self._since_s))

    def renew(self) -> None:
        """Something was taken."""
        self._since_s = time.monotonic()


def upload_all(
    documents: Sequence[Document],
    api_of: Callable[[str], AgentApi],
    advance: Callable[[int], None],
) -> list[Answer]:
    """Send transactions of any agents, one agent after the other; answers in their order."""
    by_agent: dict[str, list[int]] = {}
    for number, document in enumerate(documents):
        by_agent.setdefault(document["agentId"], []).append(number)
    answers: dict[int, Answer] = {}
    patience = Patience()
    for agent_id, numbers in by_agent.items():
        own = [documents[number] for number in numbers]
        answers |= zip(numbers, upload(own, api_of(agent_id), advance, patience), strict=True)
    return [answers[number] for number in range(len(documents))]


def upload(
    documents: Sequence[Document],
    api: AgentApi,
    advance: Callable[[int], None],
    patience: Patience | None = None,
) -> list[Answer]:
    """Send transactions of one agent; an answer for each, in their order.

    `advance` hears how many more have an answer. Problem where this machine is at fault; an API
    that is away is an answer that may pass. Where a key comes again the one before is answered
    first, so that what is new, a repetition or another content is for the API to say.
    """
    patience = patience or Patience()
    answers: list[Answer] = []
    unsent: str | None = None
    for run in _runs(documents):
        if unsent is None:
            answers += _upload(run, api, advance, patience)
            unsent = next((_why(answer) for answer in answers if answer.outcome == "unsent"), None)
        else:
            answers += [_unsent(document, unsent) for document in run]
            advance(len(run))
    return answers


def _runs(documents: Sequence[Document]) -> Iterator[list[Document]]:
    run: list[Document] = []
    keys: set[str] = set()
    for document in documents:
        key = repr(document.get("idempotencyKey"))
        if key in keys:
            yield run
            run, keys = [], set()
        run.append(document)
        keys.add(key)
    yield run


def _upload(
    run: Sequence[Document], api: AgentApi, advance: Callable[[int], None], patience: Patience
) -> list[Answer]:
    """By an outbox; what can be no transaction is put to the API after the others."""
    try:
        with _outbox(run[0]["agentId"]) as outbox:
            kept = [_keep(document, outbox) for document in run]
            heard = _Heard(api.http)
            outbox.on_change(lambda changed: advance(changed.state is not State.STORED))
            problem = _sync(outbox, api, heard, patience)
            answers = []
            for document, key in zip(run, kept, strict=True):
                if key is not None:
                    answers.append(_answer(document, outbox.status(key), heard, problem))
                else:
                    answers.append(_unsent(document, problem) if problem else _put(document, api))
                    advance(1)
            return answers
    except (InvalidTransaction, StorageFull, OutboxUnusable, OSError) as error:
        raise Problem(f"no outbox: {error}") from error


@contextmanager
def _outbox(agent_id: str) -> Iterator[Outbox]:
    """An outbox in memory, where there is a file system for that; gone when it is closed."""
    is_there = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    place = MEMORY if is_there else Path(tempfile.gettempdir())
    _clear(place)
    folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place)
    try:
        with Outbox(
            Path(folder) / "outbox.db",
            agent_id,
            limits=Limits(stored_max=None),
            now=lambda: float("nan"),  # nobody knows when a line without `capturedAt` was captured
        ) as outbox:
            yield outbox
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clear(place: Path) -> None:
    """A command that was killed left its transactions there, phones and all."""
    for folder in place.glob(f"{PREFIX}*-*"):
        with suppress(ValueError, PermissionError):
            try:
                os.kill(int(folder.name.removeprefix(PREFIX).partition("-")[0]), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)


def _keep(document: Document, outbox: Outbox) -> str | None:
    """The key under which the outbox took it, and will send just what it says."""
    said = {name: v for name, v in document.items() if v is not None or name not in OPTIONAL}
    if not said.keys() <= set(COLUMNS) or said.get("idempotencyKey") is None:
        return None
    try:
        return outbox.submit(
            said.get("phone", ""),
            said.get("amount", 0),
            currency=said.get("currency"),
            idempotency_key=said["idempotencyKey"],
            captured_at=said.get("capturedAt"),
        )
    except InvalidTransaction:
        return None


def _sync(outbox: Outbox, api: AgentApi, heard: "_Heard", patience: Patience) -> str | None:
    """Go on for as long as something is taken; why something was left, if it was.

    One syncer for all of it: what the server asked for, to be left alone, outlives a sync.
    """
    backoff = Backoff(base_s=BACKOFF_SECONDS, cap_s=BACKOFF_SECONDS_MAX)
    pace = Pace(requests_per_s=REQUESTS_PER_S, asks_max=0, backoff=backoff)
    try:
        syncer = Syncer(outbox, api.url, lambda: api.id_token, pace=pace, transport=heard)
    except ValueError as error:
        raise Problem(str(error)) from error
    left = outbox.counts().get(State.STORED, 0)
    while True:
        report = syncer.sync(patience.left_s)
        if report.stored < left:
            patience.renew()
        if report.problem is None or report.stored == left:
            return report.problem
        left = report.stored


def _put(document: Document, api: AgentApi) -> Answer:
    try:
        return api.submit(document)
    except Problem as no_answer:
        return _unsent(document, str(no_answer))


def _answer(sent: Document, found: Transaction, heard: "_Heard", problem: str | None) -> Answer:
    """What the API said last of it, as far as the SDK believes that."""
    said, took_ms = heard.said.get(found.idempotency_key, ({}, 0.0))
    error = said.get("error")
    match found.state:
        case State.STORED if isinstance(error, dict) and error.get("retryable") is True:
            return Answer(sent, _status(error, 503), error, replayed=False, took_ms=took_ms)
        case State.STORED:
            return _unsent(sent, problem)
        case State.REFUSED:
            # A request that carried it alone may have been refused as a whole.
            refused = error if isinstance(error, dict) else {**(found.error or {})}
            refused |= {"retryable": False}
            return Answer(sent, _status(refused, 400), refused, replayed=False, took_ms=took_ms)
        case _:
            replayed = said.get("replayed") is True
            view = {name: value for name, value in said.items() if name != "replayed"}
            return Answer(sent, 200 if replayed else 202, view, replayed, took_ms)


def _status(problem: Document, otherwise: int) -> int:
    status = problem.get("status")
    return status if type(status) is int else otherwise


def _unsent(sent: Document, why: str | None) -> Answer:
    body = {"code": "UNSENT", "detail": why, "retryable": True}
    return Answer(sent, 0, body, replayed=False, took_ms=0)


def _why(answer: Answer) -> str:
    return str(answer.body.get("detail") or answer.body.get("code"))


class _Heard(httpx.BaseTransport):
    """An API's own client, which hears what is said of each transaction: the SDK keeps less."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.said: dict[str, tuple[Document, float]] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        started = time.monotonic()
        response = self._http.send(request, stream=True)
        stream = cast("httpx.SyncByteStream", response.stream)

        def read(content: bytes) -> None:
            try:
                whole = httpx.Response(200, headers=response.headers, content=content)
            except httpx.DecodingError:  # the SDK says what it thinks of that
                return
            self._hear(body_of(whole), (time.monotonic() - started) * 1000)

        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Copied(stream, read),
            extensions=response.extensions,
        )

    def _hear(self, body: Document, took_ms: float) -> None:
        results = body.get("results", [body])  # a batch's answer, or that to a question of status
        for result in results if isinstance(results, list) else []:
            if isinstance(result, dict) and isinstance(result.get("idempotencyKey"), str):
                self.said[result["idempotencyKey"]] = (result, took_ms)


class _Copied(httpx.SyncByteStream):
    """A stream that its reader, who may stop early, shares with `read`, which gets it whole."""

    def __init__(self, stream: httpx.SyncByteStream, read: Callable[[bytes], None]) -> None:
        self._stream = stream
        self._read = read

    def __iter__(self) -> Iterator[bytes]:
        content = bytearray()
        for chunk in self._stream:
            content += chunk
            yield chunk
        self._read(bytes(content))

    def close(self) -> None:
        self._stream.close()
