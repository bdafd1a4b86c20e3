"""Many transactions of an agent, brought to the API by the agents' SDK, with its answer to each.

The outbox lives no longer than the command: what lasts is the file, whose keys never change. So an
interrupted command is typed again, what was taken before is a replay, and the API alone judges.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
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
"""How long an API may be away before a command with a few transactions gives up."""
PATIENCE_S_EACH = 0.2
"""What each transaction adds: ten times what an API takes that is busy with others."""
REQUESTS_PER_S = 50.0
"""Half of what a stack's stage admits: an operator is not the only one who sends."""

MEMORY = Path("/dev/shm")  # noqa: S108, the folder in it is made by tempfile
"""Where it is there: nothing in the outbox has to last, and no phone is written to a disk."""


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
    for agent_id, numbers in by_agent.items():
        own = [documents[number] for number in numbers]
        answers |= zip(numbers, upload(own, api_of(agent_id), advance), strict=True)
    return [answers[number] for number in range(len(documents))]


def upload(
    documents: Sequence[Document],
    api: AgentApi,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Answer]:
    """Send transactions of one agent; an answer for each, in their order.

    The first of each key goes by the outbox. What that does not take, a key that comes again or
    what can be no transaction, is put to the API as it stands, after the others. `advance` hears
    how many more have an answer. Problem where this machine is at fault.
    """
    try:
        with (
            TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
            Outbox(
                Path(folder) / "outbox.db",
                documents[0]["agentId"],
                limits=Limits(stored_max=None),
                now=_no_clock,
            ) as outbox,
        ):
            return _upload(documents, api, outbox, advance)
    except (InvalidTransaction, StorageFull, OutboxUnusable, OSError) as error:
        raise Problem(f"no outbox: {error}") from error


def _upload(
    documents: Sequence[Document], api: AgentApi, outbox: Outbox, advance: Callable[[int], None]
) -> list[Answer]:
    keys: set[str] = set()
    kept = [_keep(document, outbox, keys) for document in documents]
    heard = _Heard(api.transport or httpx.HTTPTransport())
    outbox.on_change(lambda changed: advance(changed.state is not State.STORED))
    problem = _sync(outbox, api, heard, PATIENCE_S + PATIENCE_S_EACH * len(keys))
    answers = []
    for document, is_kept in zip(documents, kept, strict=True):
        if is_kept:
            found = outbox.status(document["idempotencyKey"])
            answers.append(_answer(document, found, heard, problem))
        else:
            answer = _unsent(document, problem) if problem else _put(document, api)
            problem = str(answer.body.get("detail")) if answer.status == 0 else problem
            answers.append(answer)
            advance(1)
    return answers


def _keep(document: Document, outbox: Outbox, keys: set[str]) -> bool:
    """Whether the outbox took it, and will send just what it says."""
    key = document.get("idempotencyKey")
    as_it_stands = document.keys() <= set(COLUMNS) and None not in document.values()
    if not as_it_stands or not isinstance(key, str) or key in keys:
        return False
    try:
        keys.add(
            outbox.submit(
                document.get("phone", ""),
                document.get("amount", 0),
                currency=document.get("currency"),
                idempotency_key=key,
                captured_at=document.get("capturedAt"),
            )
        )
    except InvalidTransaction:
        return False
    return True


def _sync(outbox: Outbox, api: AgentApi, heard: "_Heard", budget_s: float) -> str | None:
    """Why something was left, if it was."""
    backoff = Backoff(base_s=BACKOFF_SECONDS, cap_s=BACKOFF_SECONDS_MAX)
    pace = Pace(budget_s=budget_s, requests_per_s=REQUESTS_PER_S, asks_max=0, backoff=backoff)
    try:
        syncer = Syncer(outbox, api.url, lambda: api.id_token, pace=pace, transport=heard)
    except ValueError as error:
        raise Problem(str(error)) from error
    return syncer.sync().problem


def _put(document: Document, api: AgentApi) -> Answer:
    try:
        return api.submit(document)
    except Problem as no_answer:
        return _unsent(document, str(no_answer))


def _answer(sent: Document, found: Transaction, heard: "_Heard", problem: str | None) -> Answer:
    """What the API said last, but for what the SDK made certain since."""
    result, took_ms = heard.said.get(found.idempotency_key, ({}, 0.0))
    error = result.get("error")
    if found.state is State.STORED and error is None:
        return _unsent(sent, problem)
    if error is not None and found.state in (State.STORED, State.REFUSED):
        return Answer(sent, int(error["status"]), dict(error), replayed=False, took_ms=took_ms)
    if found.state is State.REFUSED:  # the request that carried it alone was refused as a whole
        refused = {**(found.error or {}), "retryable": False}
        return Answer(sent, int(refused.get("status", 400)), refused, replayed=False, took_ms=0)
    view = {name: value for name, value in result.items() if name != "replayed"}
    replayed = bool(result.get("replayed"))
    return Answer(sent, 200 if replayed else 202, view, replayed, took_ms)


def _unsent(sent: Document, why: str | None) -> Answer:
    body = {"code": "UNSENT", "detail": why, "retryable": True}
    return Answer(sent, 0, body, replayed=False, took_ms=0)


def _no_clock() -> float:
    """Nobody knows when a line without `capturedAt` was captured: not now."""
    return float("nan")


class _Heard(httpx.BaseTransport):
    """Hears what the API says of each transaction; the SDK keeps less of it."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner
        self.said: dict[str, tuple[Document, float]] = {}

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        started = time.monotonic()
        response = self._inner.handle_request(request)
        stream = cast("httpx.SyncByteStream", response.stream)

        def read(content: bytes) -> None:
            whole = httpx.Response(response.status_code, headers=response.headers, content=content)
            self._hear(body_of(whole), (time.monotonic() - started) * 1000)

        return httpx.Response(
            response.status_code,
            headers=response.headers,
            stream=_Copied(stream, read),
            extensions=response.extensions,
        )

    def close(self) -> None:
        self._inner.close()

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
