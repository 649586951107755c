"""In front of every request: its id, its key, its time, and one line in the log.

A log line has no prompt, no text, no key and nothing that was computed from private text.
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.serving import problems
from tacit.serving.limits import Incoming, send_problem
from tacit.serving.service import Service

_log = logging.getLogger("tacit.serving")
_ENDPOINTS = {
    "/v1/completions": "completions",
    "/v1/chat/completions": "chat",
    "/v1/models": "models",
    "/health": "health",
    "/ready": "ready",
    "/metrics": "metrics",
    "/": "page",
}


_QUESTIONS = ("completions", "chat")


class Door:
    """Lets in who has a key; everything under ``/v1`` needs one."""

    def __init__(self, app: ASGIApp, *, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, request_id = time.perf_counter(), 500, secrets.token_hex(8)
        begun, incoming = False, Incoming(receive)

        async def tell(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        state: dict[str, Any] = scope.setdefault("state", {})
        try:
            if scope["path"].startswith("/v1/"):
                state["tenant"] = await self._tenant(scope)
            await self._app(scope, incoming, tell)
        except problems.Problem as problem:
            await send_problem(tell, problem, incoming)
        except Exception as fault:
            problems.log_fault(fault, id=request_id)
            if begun:
                raise
            await send_problem(tell, problems.internal())
        finally:
            seconds = time.perf_counter() - began
            endpoint = _ENDPOINTS.get(scope["path"], "other")
            asked = endpoint in _QUESTIONS and scope["method"] == "POST"
            self._service.metrics.request(endpoint, status, seconds, question=asked)
            line = {
                "event": "request",
                "id": request_id,
                "endpoint": endpoint,
                "status": status,
                "tenant": state.get("tenant"),
                "tokens": state.get("tokens"),
                "seconds": round(seconds, 3),
            }
            _log.info("request", extra={name: value for name, value in line.items() if value is not None})

    async def _tenant(self, scope: Scope) -> str:
        headers = dict(scope["headers"])
        scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        tenant = None
        if scheme.lower() == "bearer" and key:
            tenant = await self._service.tenant_for(key.strip())
        if tenant is None:
            raise problems.invalid_key()
        return tenant
