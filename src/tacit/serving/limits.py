"""Bounds on the body that a client may send, and how slowly, before anything reads it.

Endless headers and clients that do not read are a proxy's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.serving.problems import Problem


class Incoming:
    """A request's body, and whether more of it is to come."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._more = receive, True

    async def __call__(self) -> Message:
        """The next message."""
        message = await self._receive()
        self._more = message.get("more_body", False)  # a client that has gone sends no more
        return message

    async def read_away(self, *, most_bytes: int = 4_000_000, seconds: float = 1.0) -> None:
        """Read on for a moment although nobody wants it.

        A connection that is closed with unread bytes is reset, and the client may never see its answer.
        """
        size = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._more and size < most_bytes:
                    size += len((await self()).get("body", b""))


class BodyLimit:
    """Reads the whole body first. One that is too large is refused as soon as it is known to be."""

    def __init__(self, app: ASGIApp, *, most_bytes: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        incoming = Incoming(receive)
        try:
            body = await self._body(scope, incoming)
        except Problem as problem:
            await send_problem(send, problem, incoming)
            return
        given = False

        async def again() -> Message:
            nonlocal given
            if given:
                return await receive()  # that the client has gone
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, again, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > self._most:
            raise self._too_large()
        pieces: list[bytes] = []
        size, more = 0, True
        try:
            async with asyncio.timeout(self._seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "client_gone", "The client has gone.")
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    more = message.get("more_body", False)
                    if size > self._most:
                        raise self._too_large()
        except TimeoutError:
            raise Problem(
                408, "request_timeout", f"The request did not arrive within {self._seconds:g} seconds."
            ) from None
        return b"".join(pieces)

    def _too_large(self) -> Problem:
        return Problem(
            413, "request_too_large", f"A request may have at most {self._most:,} bytes; send less."
        )


async def send_problem(send: Send, problem: Problem, incoming: Incoming | None = None) -> None:
    """A problem as a whole response, before what is left of the request is read away."""
    body = json.dumps(problem.body()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.encode(), value.encode()) for name, value in problem.headers.items()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    # All of it is sent now, so that a client that has more to send can stop; the end, after which the server
    # closes the connection, comes later.
    await send({"type": "http.response.body", "body": body, "more_body": True})
    if incoming is not None:
        await incoming.read_away()
    await send({"type": "http.response.body", "body": b""})
