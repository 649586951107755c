"""Bounds on what a client may send, and how slowly: in front of everything that reads a body."""

from __future__ import annotations

import asyncio
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.serving.problems import Problem


class BodyLimit:
    """Refuses bodies that are too large, and clients that take too long to send one.

    A large body is refused as soon as it is known to be one; what follows of it is never read.
    """

    def __init__(self, app: ASGIApp, *, most_bytes: int, seconds: float) -> None:
        self._app, self._most, self._seconds = app, most_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def tell(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            declared = dict(scope["headers"]).get(b"content-length", b"0")
            if not declared.isdigit() or int(declared) > self._most:
                raise self._too_large()
            await self._app(scope, self._bounded(receive), tell)
        except Problem as problem:
            if begun:
                raise
            await send_problem(send, problem)

    def _bounded(self, receive: Receive) -> Receive:
        read, whole = 0, False
        until = asyncio.get_running_loop().time() + self._seconds

        async def bounded() -> Message:
            nonlocal read, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Problem(
                    408, "request_timeout", f"The request did not arrive within {self._seconds:g} seconds."
                ) from None
            if message["type"] == "http.request":
                read += len(message.get("body", b""))
                whole = not message.get("more_body", False)
                if read > self._most:
                    raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> Problem:
        return Problem(
            413, "request_too_large", f"A request may have at most {self._most:,} bytes; send less."
        )


async def send_problem(send: Send, problem: Problem) -> None:
    """A problem as a whole response."""
    body = json.dumps(problem.body()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.encode(), value.encode()) for name, value in problem.headers.items()),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
