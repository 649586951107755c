"""The service as OpenAI's clients know it: completions, chat, models, health.

What may leave is text that was drawn and paid for, and what follows from it. No response, header, status or
error depends on weights, charges, what is left of a budget, or whether the public model answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from http import HTTPStatus
from typing import Annotated, Any

import jinja2
from fastapi import Depends, FastAPI, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from tacit import __version__
from tacit.errors import ModelError
from tacit.serving import problems
from tacit.serving.door import Door
from tacit.serving.limits import BodyLimit
from tacit.serving.page import SECURITY_HEADERS, STATIC, public_page, static_file
from tacit.serving.problems import Problem
from tacit.serving.requests import Asking, ChatMessage, ChatRequest, CompletionRequest
from tacit.serving.responses import ClientGone, EventStream, Shape, while_connected
from tacit.serving.service import Question, Service

_MOST_BYTES = 1_000_000
_BODY_SECONDS = 30.0
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": HTTPStatus(status).phrase}
    for status in (400, 401, 404, 405, 408, 409, 413, 429, 500, 503)
}

_INNER_FIELDS = frozenset({"role", "content", "text", "type", "name", "include_usage"})
_LONGEST_NAME = 64
_NO_JSON = "The body is not JSON."
# Fields of several shapes: what is wrong with one shape says little to whoever meant another.
_SHAPES: Mapping[str, str] = {
    "prompt": "give a text, 1 to 16 texts, token ids, or 1 to 16 lists of token ids",
    "stop": "give a text or at most 4 texts, each of 1 to 200 characters",
}
_KEY_HEADER = "idempotency-key"
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255)]


def public_app(
    service: Service, *, most_bytes: int = _MOST_BYTES, body_seconds: float = _BODY_SECONDS
) -> FastAPI:
    """Everything that clients reach."""
    app = FastAPI(title="tacit", docs_url=None, redoc_url=None, responses=_ERRORS, redirect_slashes=False)
    app.openapi = lambda: _schema(app)  # type: ignore[method-assign]
    app.add_middleware(BodyLimit, most_bytes=most_bytes, seconds=body_seconds)
    app.add_middleware(Door, service=service)  # the last one added is the first to see a request
    install_errors(app)
    install_static(app)
    key_needed = [Depends(HTTPBearer(auto_error=False))]  # for the schema; the door has checked it

    streams: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

    @app.post("/v1/completions", dependencies=key_needed, responses=streams)
    async def completions(
        asked: CompletionRequest, request: Request, idempotency_key: IdempotencyKey = None
    ) -> Response:
        """Continue a prompt, privately."""
        prompts, echoes = await service.encoded(lambda: _prompts(service, asked))
        return await _answer(
            service, asked, prompts, request, idempotency_key, echoes if asked.echo else None
        )

    @app.post("/v1/chat/completions", dependencies=key_needed, responses=streams)
    async def chat(asked: ChatRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
        """Answer the last message of a conversation, privately."""
        prompt = await service.encoded(lambda: _conversation(service, asked.messages))
        asked.max_tokens = asked.max_tokens or asked.max_completion_tokens
        return await _answer(service, asked, [prompt], request, idempotency_key, None)

    @app.get("/v1/models", dependencies=key_needed)
    async def models() -> dict[str, Any]:
        """The one model there is."""
        return {"object": "list", "data": [_model(service)]}

    @app.get("/v1/models/{name:path}", dependencies=key_needed)
    async def model(name: str) -> dict[str, Any]:
        """What it is, and what is guaranteed."""
        if name != service.name:
            raise problems.unknown_model(name, service.name)
        return _model(service)

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> dict[str, str]:
        """The process lives."""
        return {"status": "ok"}

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready")
    async def ready() -> dict[str, str]:
        """Models are loaded and the ledger can be written."""
        if not service.ready:
            raise problems.ledger_unavailable()
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Public counters, for Prometheus."""
        return Response(
            service.metrics.public_text(service.engine.load), media_type="text/plain; version=0.0.4"
        )

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        """What is served here and what is guaranteed, for people."""
        return HTMLResponse(public_page(service), headers=SECURITY_HEADERS)

    return app


def _schema(app: FastAPI) -> dict[str, Any]:
    """FastAPI's own, without the 422 that is never sent: such requests get a 400 in OpenAI's shape."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=__version__, routes=app.routes)
        for operations in app.openapi_schema["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
    return app.openapi_schema


async def _answer(
    service: Service,
    asked: Asking,
    prompts: list[list[int]],
    request: Request,
    key: str | None,
    echoes: list[str] | None,
) -> Response:
    if len(request.headers.getlist(_KEY_HEADER)) > 1:
        raise problems.invalid("A request has at most one Idempotency-Key.", _KEY_HEADER)
    question = _question(service, asked, prompts, request.state.tenant, key, await request.body())
    begun = [echo for echo in echoes for _ in range(asked.choices)] if echoes else []
    texts = begun or [""] * (len(prompts) * asked.choices)
    async with AsyncExitStack() as stack:
        conversation, pieces = await stack.enter_async_context(service.answering(question))
        shape = Shape(conversation, service.name, chat=isinstance(asked, ChatRequest))
        if asked.stream:
            opening = shape.opening(len(texts)) + [shape.echo(i, text) for i, text in enumerate(begun)]
            said = [json.dumps(one) for one in opening]
            return EventStream(stack.pop_all(), shape, pieces, opening=said, with_usage=asked.with_usage)
        finishes: list[str | None] = [None] * len(texts)
        try:
            async with aclosing(while_connected(pieces, request.receive)) as connected:
                async for written in connected:
                    if written is not None:
                        texts[written.choice] += written.text
                        finishes[written.choice] = written.finish
        except ClientGone:
            return Response(status_code=499)  # nobody reads it
        finally:
            request.state.tokens = conversation.booked_tokens
        return JSONResponse(shape.whole(texts, finishes))


def _question(
    service: Service, asked: Asking, prompts: list[list[int]], tenant: str, key: str | None, body: bytes
) -> Question:
    settings = service.settings
    if asked.model != service.name:
        raise problems.unknown_model(asked.model, service.name)
    wanted = settings.default_tokens if asked.max_tokens is None else asked.max_tokens
    if wanted > settings.most_tokens:
        raise problems.invalid(
            f"max_tokens={wanted}: an answer has at most {settings.most_tokens} tokens here.", "max_tokens"
        )
    if asked.choices * len(prompts) > settings.fitting_choices:
        raise problems.invalid(
            f"A request gets at most {settings.fitting_choices} answers (n times prompts), not "
            f"{asked.choices * len(prompts)}.",
            "n",
        )
    if asked.stream_options is not None and not asked.stream:
        raise problems.invalid("stream_options needs stream: true.", "stream_options")
    return Question(
        tenant,
        prompts,
        asked.choices,
        wanted,
        asked.decoding,
        asked.stop_strings,
        frozenset(asked.stop_token_ids or ()),
        key=key,
        body=body,
    )


def _prompts(service: Service, asked: CompletionRequest) -> tuple[list[list[int]], list[str]]:
    """Token ids of each prompt behind the start token, and each prompt as text, where that is asked for."""
    tokenizer, given = service.tokenizer, asked.prompt
    texts: list[str] | None = None
    ids: list[list[int]] = []
    if isinstance(given, str):
        texts = [given]
    elif isinstance(given[0], str):
        texts = [str(one) for one in given]
    elif isinstance(given[0], int):
        ids = [[one for one in given if isinstance(one, int)]]
    else:
        ids = [list(one) for one in given if isinstance(one, list)]
    if texts is not None:
        for text in texts:
            service.check_characters(len(text))
        ids = tokenizer.encode(texts)
    elif max(max(one) for one in ids) >= len(tokenizer):
        raise problems.invalid(f"prompt: a token id is below {len(tokenizer):,}.", "prompt")
    started = [[tokenizer.start_token, *one] for one in ids]
    if texts is None:
        service.check_length(started, asked.max_tokens or 1)  # before anything of that length is decoded
        texts = [tokenizer.decode(one) for one in ids] if asked.echo else []
    return started, texts


def _conversation(service: Service, messages: list[ChatMessage]) -> list[int]:
    """A conversation as the model expects it, or as plain lines where it has no template."""
    tokenizer = service.tokenizer
    spoken = [{"role": message.role, "content": message.text} for message in messages]
    service.check_characters(sum(len(message.text) for message in messages))
    try:
        if not tokenizer.has_chat_template:
            lines = [f"{message['role']}: {message['content']}" for message in spoken]
            return [tokenizer.start_token, *tokenizer.encode(["\n".join([*lines, "assistant:"])])[0]]
        rendered = tokenizer.render_chat(spoken, to_answer=True)
        return [tokenizer.start_token, *tokenizer.encode([rendered], control_tokens=True)[0]]
    except (ModelError, jinja2.TemplateError):
        raise problems.invalid(
            "messages: the model's chat template cannot render this sequence.", "messages"
        ) from None


def _model(service: Service) -> dict[str, Any]:
    guarantee = service.guarantee
    return {
        "id": service.name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "tacit",
        "public_model": service.public_model,
        "mechanism": service.books.account.mechanism,
        "queries": service.settings.queries if service.settings.target is None else None,
        "guarantee": None if guarantee is None else guarantee.to_json(),
    }


def install_static(app: FastAPI) -> None:
    """What the pages load."""

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in STATIC:
            raise HTTPException(404)
        return Response(static_file(name), media_type=STATIC[name], headers=SECURITY_HEADERS)


def install_errors(app: FastAPI, shapes: Mapping[str, str] = _SHAPES) -> None:
    """Every error in OpenAI's shape, and none with a traceback; ``shapes`` says what some fields may be."""

    @app.exception_handler(Problem)
    async def of_ours(_: Request, problem: Exception) -> Response:
        if not isinstance(problem, Problem):
            problem = problems.internal()
        return JSONResponse(problem.body(), problem.status, headers=problem.headers)

    @app.exception_handler(RequestValidationError)
    async def of_fields(request: Request, error: Exception) -> Response:
        found = error.errors() if isinstance(error, RequestValidationError) else []
        return await of_ours(request, _field_problem(_worst(found), shapes))

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if status == HTTPStatus.BAD_REQUEST:  # nested too deep, a number too long, bytes that are no text
            return await of_ours(request, problems.invalid(_NO_JSON))
        codes = {404: "not_found", 405: "method_not_allowed"}
        message = HTTPStatus(status).phrase
        headers = getattr(error, "headers", None)
        problem = Problem(status, codes.get(status, "invalid_request"), f"{message}.", headers=headers)
        return await of_ours(request, problem)


def _worst(errors: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of everything that is wrong, what is refused on purpose; else what is wrong deepest inside."""
    for error in errors:
        if error["type"] == "extra_forbidden":
            return error
    return max(errors, key=lambda error: len(error["loc"]), default={})


def _field_problem(error: dict[str, Any], shapes: Mapping[str, str]) -> Problem:
    """One sentence about the first field that is wrong. What the client sent is not repeated."""
    # Beside names and numbers a place has the kinds of a union, which are ours and not the client's.
    place = [part for part in error.get("loc", ()) if part not in ("body", "header")]
    inner, last = place[1:], []
    if error.get("type") == "extra_forbidden" and inner:
        inner, last = inner[:-1], inner[-1:]  # the client's own name, whatever it is
    named = [part for part in inner if isinstance(part, int) or part in _INNER_FIELDS]
    param = ".".join(str(part)[:_LONGEST_NAME] for part in [*place[:1], *named, *last]) or None
    if error.get("type") == "extra_forbidden":
        return problems.unsupported(param or "a field", "this service does not know it")
    if error.get("type") == "json_invalid":
        return problems.invalid(_NO_JSON)
    if error.get("type") == "string_unicode" and not place:
        return problems.invalid("A field's name holds half a character (a lone surrogate); convert it.")
    if error and not place:
        return problems.invalid("The body must be a JSON object, sent with content-type: application/json.")
    if place and place[0] in shapes and error.get("type") != "missing":
        return problems.invalid(f"{place[0]}: {shapes[place[0]]}.", place[0])
    message = str(error.get("msg", "The request cannot be used")).removeprefix("Value error, ")
    return problems.invalid(f"{param}: {message}." if param else f"{message}.", param)
