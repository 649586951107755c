"""Answers in OpenAI's shapes, whole or as a stream of events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from datetime import datetime
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tacit.serving.problems import Problem
from tacit.serving.service import Conversation, Written

_PING_SECONDS = 15.0


class Shape:
    """How one conversation is told."""

    def __init__(self, conversation: Conversation, model: str, *, chat: bool) -> None:
        self._conversation, self._chat = conversation, chat
        prefix = "chatcmpl" if chat else "cmpl"
        # By the request's own id and time, so that a repeated request gets the same bytes.
        self._head = {
            "id": f"{prefix}-{conversation.request.id}",
            "created": int(datetime.fromisoformat(conversation.request.created).timestamp()),
            "model": model,
        }

    @property
    def usage(self) -> dict[str, int]:
        """Token counts."""
        prompt, completion = self._conversation.prompt_tokens, self._conversation.completion_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    @property
    def booked_tokens(self) -> int:
        """Tokens that were booked for this request."""
        return self._conversation.booked_tokens

    def whole(self, texts: list[str], finishes: list[str | None]) -> dict[str, Any]:
        """All answers at once."""
        choices: list[dict[str, Any]] = []
        for index, (text, finish) in enumerate(zip(texts, finishes, strict=True)):
            content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            choices.append({"index": index, **content, "finish_reason": finish})
        kind = "chat.completion" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": self.usage}

    def opening(self, choices: int) -> list[dict[str, Any]]:
        """What a stream begins with."""
        if not self._chat:
            return []
        return [self._chunk(index, {"role": "assistant", "content": ""}, None) for index in range(choices)]

    def echo(self, index: int, text: str) -> dict[str, Any]:
        """A prompt, given back before its answer."""
        return self._chunk(index, text, None)

    def piece(self, written: Written) -> dict[str, Any]:
        """One event of a stream."""
        if self._chat:
            content: Any = {"content": written.text} if written.text else {}
        else:
            content = written.text
        return self._chunk(written.choice, content, written.finish)

    def last(self) -> dict[str, Any]:
        """The token counts at the end of a stream."""
        return {**self._head, "object": self._chunk_kind, "choices": [], "usage": self.usage}

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _chunk(self, index: int, content: Any, finish: str | None) -> dict[str, Any]:
        inner = {"delta": content} if self._chat else {"text": content}
        choice = {"index": index, **inner, "finish_reason": finish}
        return {**self._head, "object": self._chunk_kind, "choices": [choice]}


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def while_connected(
    pieces: AsyncIterator[Written], receive: Receive, *, ping: float | None = None
) -> AsyncGenerator[Written | None]:
    """Pieces while somebody waits for them; None where there was none for ``ping`` seconds."""
    gone = asyncio.ensure_future(_disconnect(receive))
    following: asyncio.Future[Written] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(_next(pieces))
            both: set[asyncio.Future[Any]] = {following, gone}
            await asyncio.wait(both, timeout=ping, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                try:
                    piece = following.result()
                except StopAsyncIteration:
                    return
                following = None
                yield piece
            elif gone.done():
                raise ClientGone
            else:
                yield None
    finally:
        gone.cancel()
        if following is not None:
            following.cancel()


async def _next(pieces: AsyncIterator[Written]) -> Written:
    return await anext(pieces)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events. However it ends, the answer ends with it."""

    media_type = "text/event-stream"

    def __init__(
        self,
        stack: AsyncExitStack,
        shape: Shape,
        pieces: AsyncIterator[Written],
        *,
        opening: list[str],
        with_usage: bool,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._stack, self._shape, self._pieces, self._opening = stack, shape, pieces, opening
        self._with_usage = with_usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the answer, or its client, has gone."""

        async def event(content: str) -> None:
            await send(
                {"type": "http.response.body", "body": f"data: {content}\n\n".encode(), "more_body": True}
            )

        async with self._stack:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            try:
                for content in self._opening:
                    await event(content)
                connected = while_connected(self._pieces, receive, ping=_PING_SECONDS)
                async with aclosing(connected):
                    async for written in connected:
                        if written is None:
                            ping = {"type": "http.response.body", "body": b": ping\n\n", "more_body": True}
                            await send(ping)
                        elif written.text or written.finish:
                            await event(json.dumps(self._shape.piece(written)))
                if self._with_usage:
                    await event(json.dumps(self._shape.last()))
                await event("[DONE]")
            except ClientGone:
                return
            except Problem as problem:
                await event(json.dumps(problem.body()))
            finally:
                scope["state"]["tokens"] = self._shape.booked_tokens
            await send({"type": "http.response.body", "body": b"", "more_body": False})
