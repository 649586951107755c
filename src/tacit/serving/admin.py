"""The admin listener: the operator's page, statements, private metrics, keys, backups. Never for clients.

It listens on this machine only, unless a password is set; a page of another site can neither read it (other
host names are refused) nor post to it (other origins are).
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import threading
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tacit.errors import EnvironmentProblem, IntegrityError, LedgerUnavailable
from tacit.ledger import OPERATOR, Access, Ledger, Verified, verify
from tacit.ledger import statement as statement_of
from tacit.mechanisms import Decoding
from tacit.progress import Silent
from tacit.serving import problems
from tacit.serving.api import install_errors, install_static
from tacit.serving.limits import BodyLimit, Incoming, send_problem
from tacit.serving.overview import Overview, overview
from tacit.serving.page import SECURITY_HEADERS, operator_figures, operator_page
from tacit.serving.requests import Strict
from tacit.serving.responses import ClientGone, while_connected
from tacit.serving.service import Question, Service

_MOST_CHARACTERS = 100_000
_SHAPES = {
    "prompt": f"give one text of at most {_MOST_CHARACTERS:,} characters, without halves of characters (lone "
    "surrogates)"
}
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


class Try(Strict):
    """The page's own question."""

    prompt: str = Field(max_length=_MOST_CHARACTERS)
    max_tokens: int = Field(default=32, ge=1)


class NewKey(Strict):
    """Whose key, and how many tokens the tenant may use in all."""

    tenant: str
    tokens: int | None = Field(default=None, ge=0)


class NewQuota(Strict):
    """How many tokens a tenant may use in all, those used included; null is no limit."""

    tokens: int | None = Field(ge=0)


class Fence:
    """Keeps everybody else out of the admin port."""

    def __init__(self, app: ASGIApp, *, password: str | None, host: str = "127.0.0.1") -> None:
        self._app, self._password = app, password or None
        self._hosts = _THIS_MACHINE | {host}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            problem = self._problem(headers, scope["method"])
        except ValueError:  # a host or an origin that is no address
            problem = problems.Problem(400, "wrong_host", "The Host or Origin header cannot be read.")
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await send_problem(send, problem, Incoming(receive))

    def _problem(self, headers: dict[str, str], method: str) -> problems.Problem | None:
        host = urlsplit(f"//{headers.get('host', '')}")
        if self._password is None and host.hostname not in self._hosts:
            return problems.Problem(
                421, "wrong_host", "The admin port answers to this machine's own name only."
            )
        origin = headers.get("origin")
        if method not in ("GET", "HEAD") and origin is not None and urlsplit(origin).netloc != host.netloc:
            return problems.Problem(403, "wrong_origin", "Another site cannot write to the admin port.")
        if self._password is not None and not _knows(self._password, headers.get("authorization", "")):
            return problems.Problem(
                401,
                "invalid_password",
                "The admin port needs its password.",
                headers={"www-authenticate": 'Basic realm="tacit"'},
            )
        return None


class Faults:
    """Tells a fault that nobody has thought of in the shape of every error; the log has its kind alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        begun = False

        async def tell(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except Exception as fault:
            problems.log_fault(fault)
            if begun or scope["type"] != "http":
                raise
            await send_problem(send, problems.internal())


def admin_app(service: Service, *, password: str | None = None, host: str = "127.0.0.1") -> FastAPI:
    """Everything that only the operator may see."""
    app = FastAPI(title="tacit admin", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit, most_bytes=1_000_000, seconds=30.0)
    app.add_middleware(Fence, password=password, host=host)
    app.add_middleware(Faults)  # the last one added is the first to see a request
    install_errors(app, _SHAPES)
    install_static(app)
    account = service.books.account
    verified = "not since the start"
    verifying = asyncio.Lock()

    async def seen() -> Overview | None:
        try:
            return await service.with_ledger(lambda ledger: overview(service, ledger))
        except problems.Problem:
            return None

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return HTMLResponse(operator_page(service, await seen(), verified), headers=SECURITY_HEADERS)

    @app.get("/figures", response_class=HTMLResponse)
    async def figures() -> HTMLResponse:
        return HTMLResponse(operator_figures(service, await seen(), verified), headers=SECURITY_HEADERS)

    @app.get("/admin/overview")
    async def whole() -> dict[str, Any]:
        return (await service.with_ledger(lambda ledger: overview(service, ledger))).to_json()

    @app.get("/admin/statement")
    async def statement() -> dict[str, Any]:
        return (await service.with_ledger(lambda ledger: statement_of(ledger, account.id))).to_json()

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        try:
            balance = service.books.balance
        except LedgerUnavailable:
            balance = None
        return Response(
            service.metrics.private_text(service.engine.load, balance), media_type="text/plain; version=0.0.4"
        )

    @app.post("/admin/verify")
    async def verify_now() -> Response:
        nonlocal verified
        moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        async with verifying:
            try:
                found = await service.in_thread(lambda: _verified(service, account.id))
            except problems.Problem as problem:
                if not isinstance(problem.__cause__, IntegrityError):
                    raise
                verified = f"FAILED, {moment}"
                return JSONResponse({"verified": False, "problem": str(problem.__cause__)})
        verified = moment
        return JSONResponse({"verified": True, "entries": found.entries, "head": found.head})

    @app.post("/admin/backup")
    async def back_up() -> dict[str, Any]:
        return await service.with_ledger(_backed_up)

    @app.post("/try")
    async def try_it(asked: Try, request: Request) -> dict[str, Any]:
        return await _try(service, asked, request)

    @app.get("/admin/keys")
    async def keys() -> dict[str, Any]:
        found = await service.with_ledger(lambda ledger: Access(ledger).every_key())
        return {"keys": [vars(key) for key in found]}

    @app.post("/admin/keys")
    async def create_key(asked: NewKey) -> dict[str, Any]:
        def create(ledger: Ledger) -> dict[str, Any]:
            access = Access(ledger)
            key, made = access.create_key(asked.tenant, tokens_most=asked.tokens)
            return {"key": key, "id": made.id, "tenant": made.tenant}

        return await service.with_ledger(create)

    @app.put("/admin/tenants/{name:path}")  # names may have slashes
    async def change_quota(name: str, asked: NewQuota) -> dict[str, Any]:
        def change(ledger: Ledger) -> dict[str, Any]:
            access = Access(ledger)
            access.change_quota(name, asked.tokens)
            return vars(access.tenant(name))

        return await service.with_ledger(change)

    @app.delete("/admin/keys/{key_id}")
    async def revoke_key(key_id: str) -> dict[str, Any]:
        await service.with_ledger(lambda ledger: Access(ledger).revoke_key(key_id))
        return {"revoked": key_id}

    return app


class _Ending(Silent):
    """Says that the ledger answers, and ends a verification when the service is asked to end."""

    def __init__(self, answered: Callable[[], None], ending: threading.Event) -> None:
        self._answered, self._ending = answered, ending

    def advance(self, units: int, note: str = "") -> None:
        self._answered()
        if self._ending.is_set():
            raise problems.closing()


def _verified(service: Service, domain: str) -> Verified:
    with service.books.using_at_length() as (ledger, answered):
        return verify(ledger, domain, _Ending(answered, service.draining))


def _backed_up(ledger: Ledger) -> dict[str, Any]:
    # Beside the ledger and by a name of ours: who asks cannot choose where something is written.
    path = Path(f"{ledger.store.name}.backup-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
    try:
        ledger.store.backup(path)
    except LedgerUnavailable:
        raise
    except EnvironmentProblem as problem:
        raise problems.Problem(507, "backup_failed", str(problem), kind="server_error") from None
    return {"backup": str(path)}


async def _try(service: Service, asked: Try, request: Request) -> dict[str, Any]:
    if asked.max_tokens > service.settings.most_tokens:
        raise problems.invalid(
            f"An answer has at most {service.settings.most_tokens} tokens here.", "max_tokens"
        )
    tokenizer = service.tokenizer
    service.check_characters(len(asked.prompt))
    (ids,) = await service.encoded(lambda: tokenizer.encode([asked.prompt]))
    prompt = [tokenizer.start_token, *ids]
    question = Question(OPERATOR, [prompt], 1, asked.max_tokens, Decoding())
    text = ""
    async with service.answering(question) as (conversation, pieces):
        try:
            async with aclosing(while_connected(pieces, request.receive)) as connected:
                async for written in connected:
                    text += "" if written is None else written.text
        except ClientGone:
            pass  # the tab was closed: no further token is drawn
        return {"text": text, "tokens": conversation.completion_tokens}


def _knows(password: str, authorization: str) -> bool:
    scheme, _, encoded = authorization.partition(" ")
    try:
        given = base64.b64decode(encoded, validate=True) if scheme.lower() == "basic" else b""
    except ValueError:
        return False
    return hmac.compare_digest(given.partition(b":")[2], password.encode())
