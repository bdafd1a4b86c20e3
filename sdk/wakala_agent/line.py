"""The way to the API: one request at a time, which ends when its time is over, whatever comes.

httpx bounds each attempt to connect and each read. A name with many addresses, or a server that
sends a byte now and then, never runs into that.
"""

import asyncio
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from wakala_agent.api import ANSWER_BYTES_MAX, Answer, read_answer

CONNECT_S_MAX = 10.0
"""A connection that takes longer is none; the answer may."""

GIVEN_UP_S = 1.0
"""How long one that was given up is waited for: cut off, it ends at once, but where it connects."""

_ENDLESS = Answer(why="an answer without an end")


class Line:
    """For a sync that waits. Each request has a thread of its own, so that it can be left alone."""

    def __init__(self, transport: Any) -> None:
        self._client = httpx.Client(transport=transport)
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "Line":
        """`with Line(…) as line:` closes its connections at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close them."""
        self._client.close()

    def fetch(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        """The answer, or why there is none. What the caller's transport raises comes out."""
        answer: Future[Answer] = Future()
        course = _Course()
        options = {**request, **_bounded(timeout_s, partial(self._traced, course))}
        worker = threading.Thread(
            target=self._work, args=(options, course, answer), name="wakala-request", daemon=True
        )
        worker.start()
        try:
            in_time = bool(wait([answer], timeout_s).done)
        finally:
            if not answer.done():
                course.is_given_up = True
                self._cut()
            worker.join(GIVEN_UP_S)
        if in_time:
            return answer.result()
        return Answer(why="TimeoutError", unreached=course.is_unsent)

    def _work(
        self, options: Mapping[str, Any], course: "_Course", answer: "Future[Answer]"
    ) -> None:
        try:
            answer.set_result(self._exchange(options, course))
        except BaseException as error:  # whoever waits raises it
            answer.set_exception(error)

    def _exchange(self, options: Mapping[str, Any], course: "_Course") -> Answer:
        content = bytearray()
        try:
            with self._client.stream(**options) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > ANSWER_BYTES_MAX or course.is_given_up:
                        return _ENDLESS
                return read_answer(response.status_code, response.headers, bytes(content))
        except httpx.HTTPError as error:
            return _no_answer(error)

    def _traced(self, course: "_Course", event: str, info: Mapping[str, Any]) -> None:
        """httpx tells each of its steps; a request that was given up does not take the next."""
        course.heard_of(event)
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            opened = info["return_value"].get_extra_info("socket")
            if isinstance(opened, socket.socket):
                still_open = [each for each in self._sockets if each.fileno() >= 0]
                self._sockets = [*still_open, opened]
        if course.is_given_up:
            raise httpx.ReadTimeout("given up")

    def _cut(self) -> None:
        """A read ends at once, with nothing; the socket stays its reader's to close."""
        for each in self._sockets:
            with suppress(OSError):  # it is not connected any more
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # TLS's own would touch its state


@dataclass
class _Course:
    """How far a request got; each member is written by one thread."""

    is_given_up: bool = False
    is_unsent: bool = False

    def heard_of(self, event: str) -> None:
        """A transport that tells nothing may have sent it."""
        if event.endswith(".connect_tcp.started"):
            self.is_unsent = True
        elif event.endswith(".send_request_headers.started"):
            self.is_unsent = False


class AsyncLine:
    """For asyncio, where a task can be cancelled at any await."""

    def __init__(self, transport: Any) -> None:
        self._client = httpx.AsyncClient(transport=transport)

    async def __aenter__(self) -> "AsyncLine":
        """`async with AsyncLine(…) as line:` closes its connections at the end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close them."""
        await self._client.aclose()

    async def fetch(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        """The answer, or why there is none. What the caller's transport raises comes out."""
        try:
            return await asyncio.wait_for(self._exchange(request, timeout_s), timeout_s)
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            return _no_answer(error)

    async def _exchange(self, request: Mapping[str, Any], timeout_s: float) -> Answer:
        content = bytearray()
        async with self._client.stream(**request, **_bounded(timeout_s)) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > ANSWER_BYTES_MAX:
                    return _ENDLESS
            return read_answer(response.status_code, response.headers, bytes(content))


def _bounded(timeout_s: float, trace: Any = None) -> dict[str, Any]:
    connect_s = min(timeout_s, CONNECT_S_MAX)
    bounded: dict[str, Any] = {"timeout": httpx.Timeout(timeout_s, connect=connect_s)}
    return bounded if trace is None else bounded | {"extensions": {"trace": trace}}


def _no_answer(error: Exception) -> Answer:
    """Its kind alone is told: a text may hold what was sent."""
    unreached = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
    return Answer(why=type(error).__name__, unreached=isinstance(error, unreached))
