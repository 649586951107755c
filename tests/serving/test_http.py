"""The service over plain HTTP: what is refused, what clients can do wrong, and what never leaves."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import re
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError

from tacit.errors import BudgetExceeded, LedgerRefused, LedgerUnavailable, Tampered
from tacit.ledger import Access, Decided, Domain, Ledger, verify
from tacit.models.tokenizer import PublicTokenizer
from tacit.prediction.accounts import model_of
from tacit.runs import Run
from tacit.serving.admin import admin_app
from tacit.serving.api import public_app
from tacit.serving.problems import Problem
from tacit.serving.requests import REFUSED, ChatRequest, CompletionRequest
from tacit.serving.service import Question, Service
from tests.ledger.conftest import new_database
from tests.serving.conftest import PROMPT, TENANT, NewPlace, Place, Server, serving

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BOTH = [COMPLETIONS, CHAT]
PASSWORD = "correct horse"
LARGE = 100_000_000  # bytes
CONTEXT = 128
TLS = ssl.create_default_context()  # nothing here is encrypted, but a client without one would load it anew


def account(runs: Path, folder: Path, mechanism: str = "submix-guarded", *, epsilon: float = 1000.0) -> Place:
    """What the fixture ``place`` opens, for services that a whole file shares."""
    run = runs / ("single" if mechanism == "certified" else "halves")
    ledger, anchor = str(folder / "ledger.db"), folder / "elsewhere" / "anchor.json"
    model = model_of(Run.open(run))
    with Ledger.open(ledger, anchor=anchor, create=True) as book:
        terms = Domain("people", 2.0, model.parts, model.partition, epsilon, mechanism, model.unit)
        book.create(terms, model)
        key, _ = Access(book).create_key(TENANT)
    return Place(run, ledger, anchor, key)


def overview(server: Server) -> dict[str, Any]:
    """Everything the operator knows."""
    found: dict[str, Any] = httpx.get(f"{server.admin}/admin/overview", verify=TLS).raise_for_status().json()
    return found


def tokens_used(server: Server, tenant: str = TENANT) -> int:
    """What the ledger has counted for a tenant."""
    (used,) = (one["tokens_used"] for one in overview(server)["tenants"] if one["name"] == tenant)
    return int(used)


def new_key(server: Server, tenant: str, tokens: int | None = None) -> dict[str, str]:
    """A key of a tenant that may use so many tokens."""
    asked = {"tenant": tenant, "tokens": tokens}
    made: dict[str, str] = (
        httpx.post(f"{server.admin}/admin/keys", json=asked, verify=TLS).raise_for_status().json()
    )
    return made


def spent(server: Server) -> tuple[Any, ...]:
    """Everything that a charge would change."""
    found = overview(server)
    statement = found["statement"]
    answers = (statement["private_answers"], statement["public_answers"])
    return (*answers, statement["spent"], [(one["name"], one["tokens_used"]) for one in found["tenants"]])


def used_in(place: Place) -> int:
    """What a ledger that no service holds any more has counted for the tenant."""
    with place.opened() as ledger:
        return Access(ledger).tenant(TENANT).tokens_used


def no_traceback(response: httpx.Response) -> None:
    """Hangs on every client here: whatever was asked, no response shows the code."""
    response.read()
    assert b"Traceback" not in response.content
    assert b".py" not in response.content


HOOKS: dict[str, Any] = {"event_hooks": {"response": [no_traceback]}, "verify": TLS}


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    assert response.status_code == status, response.text[:300]
    assert response.headers["content-type"] == "application/json"
    content = response.json()
    assert set(content) == {"error"}
    error: dict[str, Any] = content["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"].endswith(".")
    assert len(error["message"]) < 500  # and does not repeat what was sent
    assert error["type"] in ("invalid_request_error", "insufficient_quota", "server_error")
    return error


def eventually(true: Callable[[], bool], what: str) -> None:
    """Wait for something that happens on another thread or in another process."""
    until = time.monotonic() + 120
    while not true():
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.02)


def gauge(web: httpx.Client, name: str) -> float:
    """A number of the public metrics."""
    found = re.search(rf"^{name} (\S+)$", web.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def idle(web: httpx.Client) -> bool:
    return not gauge(web, "tacit_texts_running") and not gauge(web, "tacit_texts_waiting")


@contextlib.contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """An app on a port of this machine, in this process: its service can be held and looked at."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "the server listens")
        assert thread.is_alive()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=60)


@contextlib.contextmanager
def asking(service: Service, key: str, **limits: Any) -> Iterator[httpx.Client]:
    """A client of a service in this process."""
    headers = {"authorization": f"Bearer {key}"}
    with (
        listening(public_app(service, **limits)) as url,
        httpx.Client(base_url=url, headers=headers, timeout=60, **HOOKS) as web,
    ):
        yield web


def speak(url: str, path: str, key: str, *headers: str, body: bytes = b"") -> socket.socket:
    """The beginning of a request, byte by byte as it is given; the caller closes the socket."""
    where = urlsplit(url)
    line = socket.create_connection((where.hostname or "", where.port or 0), timeout=60)
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: {where.netloc}",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        *headers,
        "",
        "",
    ]
    line.sendall("\r\n".join(head).encode() + body)
    return line


def heard(line: socket.socket) -> bytes:
    """All that comes until the other side closes, or breaks, the connection."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while block := line.recv(65_536):
            said += block
    return said


@dataclass
class Hold:
    """A step that does not become durable, so that nothing of it leaves, until the gate is open."""

    reached: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def held(service: Service, monkeypatch: pytest.MonkeyPatch, *, after: int = 0) -> Iterator[Hold]:
    """Hold a service at its ledger, after so many steps."""
    hold, steps = Hold(), 0
    book = service.books.book

    def wait(decided: Decided) -> None:
        nonlocal steps
        steps += 1
        if steps > after:
            hold.reached.set()
            hold.gate.wait()
        book(decided)

    monkeypatch.setattr(service.books, "book", wait)
    try:
        yield hold
    finally:
        hold.gate.set()


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for most of the file: its budget is far larger than what is asked for here."""
    with serving(account(runs, tmp_path_factory.mktemp("http")), "--queries", "1000") as found:
        yield found


@pytest.fixture(scope="module")
def web(server: Server) -> Iterator[httpx.Client]:
    with server.http(**HOOKS) as found:
        yield found


@pytest.fixture(scope="module")
def counted(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose budget pays for six tokens and which says when they are gone; it has a password."""
    place = account(runs, tmp_path_factory.mktemp("counted"), "certified", epsilon=2.0)
    options = ("--queries", "6", "--on-exhausted", "error", "--dtype", "bf16")
    with serving(place, *options, TACIT_ADMIN_PASSWORD=PASSWORD) as found:
        yield found


def body_for(path: str, model: str, **changes: Any) -> dict[str, Any]:
    """A request that is right, but for the changes."""
    content = (
        {"prompt": PROMPT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": PROMPT}]}
    )
    return {"model": model, "max_tokens": 1} | content | changes


def post(web: httpx.Client, path: str, content: Mapping[str, Any] | str | bytes) -> httpx.Response:
    """Python's own JSON, which has NaN, and strings as they are."""
    body = content if isinstance(content, str | bytes) else json.dumps(content)
    return web.post(path, content=body, headers={"content-type": "application/json"})


def keys_of(content: Any) -> Iterator[str]:
    """All keys of a JSON value, however deep."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield key
            yield from keys_of(value)
    elif isinstance(content, list):
        for value in content:
            yield from keys_of(value)


# Fields that are refused because no charge covers what they ask for (research/serving.md C.2)

TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
NAN, INFINITE = float("nan"), float("inf")
REFUSED_VALUES: dict[str, list[Any]] = {
    "logprobs": [0, 5, True, "true", [], 0.0],
    "top_logprobs": [0, 5],
    "prompt_logprobs": [0, 1],
    "logprob_token_ids": [[1]],
    "return_tokens_as_token_ids": [True],
    "seed": [0, 7, False],
    "best_of": [0, 2, True, 1.0],
    "use_beam_search": [True, False],
    "logit_bias": [{"1": 5}, {"1": 0}, []],
    "allowed_token_ids": [[1, 2], []],
    "bad_words": [["baker"]],
    "suffix": [".", ""],
    "tools": [[TOOL]],
    "tool_choice": ["auto"],
    "functions": [[{"name": "look"}]],
    "function_call": ["auto"],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}],
}
# The same under other spellings, and what other servers have: unknown is refused, never ignored.
UNKNOWN_FIELDS = [
    *("log_probs", "logprobs ", " logprobs", "Logprobs", "LOGPROBS", "logProbs", "logprob", "logprobs\u0000"),
    *(
        "top-logprobs",
        "topLogprobs",
        "ｌｏｇｐｒｏｂｓ",
        "Seed",
        "random_seed",
        "bestOf",
        "min_p",
        "typical_p",
    ),
    *(
        "guided_json",
        "lora",
        "adapter",
        "min_tokens",
        "ignore_eos",
        "return_hidden_states",
        "extra_body",
        "x",
    ),
]
BAD_VALUES: dict[str, list[Any]] = {
    "temperature": [0.4, 1.6, -1, NAN, INFINITE, "1", False, 1e-300],
    "top_p": [0, 1.1, NAN],
    "top_k": [0, -1, 1.5],
    "presence_penalty": [2.1],
    "frequency_penalty": [-2.1, NAN],
    "repetition_penalty": [0, INFINITE],
    "n": [0, -1, 5, 1.5, "2", True, 10**4000],
    "max_tokens": [0, -1, 257, 10**4000, "5", 1.0, True],
    "stream": [1, "true"],
    "stream_options": [{"include_usage": True}, []],  # the first without a stream
    "stop": ["", 5, ["a", ""], ["a", "b", "c", "d", "e"], "x" * 201],
    "user": [5],
    "metadata": ["x", {"key": 5}, {"logprobs": True}, {"logprobs": {"logprobs": 5}}],
}


def rows(table: dict[str, list[Any]]) -> list[Any]:
    """A table of values by field, as cases; long values do not belong into their names."""
    return [
        pytest.param(field, value, id=f"{field}={ascii(value)[:40]}")
        for field, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(("field", "value"), rows(REFUSED_VALUES))
def test_a_field_that_no_charge_covers_is_refused(
    server: Server, web: httpx.Client, path: str, field: str, value: Any
) -> None:
    """I10."""
    before = spent(server)
    for stream in (False, True):
        asked = body_for(path, server.model, stream=stream) | {field: value}
        error = refused(post(web, path, asked), 400, "unsupported_parameter")
        assert error["param"] == field
        assert error["type"] == "invalid_request_error"
        assert field in error["message"]
    assert spent(server) == before


def test_every_refused_field_is_in_the_table_above() -> None:
    assert set(REFUSED_VALUES) == set(REFUSED)


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_greedy_answers_are_refused(server: Server, web: httpx.Client, path: str, value: float) -> None:
    before = spent(server)
    asked = body_for(path, server.model, temperature=value)
    error = refused(post(web, path, asked), 400, "unsupported_parameter")
    assert error["param"] == "temperature"
    assert spent(server) == before


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("field", UNKNOWN_FIELDS)
def test_an_unknown_or_misspelled_field_is_refused(
    server: Server, web: httpx.Client, path: str, field: str
) -> None:
    """I10, misspelled."""
    before = spent(server)
    for value in (5, None):
        asked = body_for(path, server.model) | {field: value}
        assert refused(post(web, path, asked), 400, "unsupported_parameter")["param"] == field
    assert spent(server) == before


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(("field", "value"), rows(BAD_VALUES))
def test_a_value_out_of_its_bounds_is_refused_by_the_name_of_its_field(
    server: Server, web: httpx.Client, path: str, field: str, value: Any
) -> None:
    before = spent(server)
    error = refused(post(web, path, body_for(path, server.model) | {field: value}), 400, "invalid_value")
    # As the client named it, and not as a validator names the branches of a type ("stop.constrained-str").
    assert re.fullmatch(rf"{field}(\.(\d+|key|logprobs))*", error["param"])
    assert spent(server) == before


@pytest.mark.parametrize("field", ["echo", "prompt", "messages", "max_completion_tokens"])
def test_a_field_of_the_other_endpoint_is_unknown(server: Server, web: httpx.Client, field: str) -> None:
    path = CHAT if field in ("echo", "prompt") else COMPLETIONS
    before = spent(server)
    error = refused(
        post(web, path, body_for(path, server.model) | {field: None}), 400, "unsupported_parameter"
    )
    assert error["param"] == field
    assert spent(server) == before


MESSAGE = {"role": "user", "content": PROMPT}
NESTED: list[tuple[str, dict[str, Any], str]] = [
    *((path, {"stream": True, "stream_options": {"logprobs": 5}}, "stream_options") for path in BOTH),
    *((path, {"stream": True, "stream_options": {"include_usage": 1}}, "stream_options") for path in BOTH),
    *((path, {"metadata": {"a": {"seed": 7}}}, "metadata") for path in BOTH),
    *((path, {"metadata": {"a": ["logprobs"]}}, "metadata") for path in BOTH),
    *((path, {"stop": [{"logprobs": 5}]}, "stop") for path in BOTH),
    (COMPLETIONS, {"prompt": {"text": PROMPT, "logprobs": 5}}, "prompt"),
    (COMPLETIONS, {"prompt": [{"logprobs": 5}]}, "prompt"),
    (CHAT, {"messages": [MESSAGE | {"logprobs": True}]}, "messages"),
    (CHAT, {"messages": [MESSAGE | {"logprobs": None}]}, "messages"),
    (CHAT, {"messages": [MESSAGE, MESSAGE | {"seed": 7}]}, "messages"),
    (CHAT, {"messages": [MESSAGE | {"name": "me"}]}, "messages"),
    (CHAT, {"messages": [MESSAGE | {"tool_calls": []}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": {"text": PROMPT}}]}, "messages"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "logprobs": 5}]}]},
        "messages",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages",
    ),
]


@pytest.mark.parametrize(("path", "changes", "field"), NESTED)
def test_a_field_inside_another_is_refused_too(
    server: Server, web: httpx.Client, path: str, changes: dict[str, Any], field: str
) -> None:
    """I10, nested."""
    before = spent(server)
    response = post(web, path, body_for(path, server.model) | changes)
    error = refused(response, 400, response.json()["error"]["code"])
    assert error["code"] in ("unsupported_parameter", "invalid_value")
    assert error["param"].split(".")[0] == field
    assert spent(server) == before


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": [MESSAGE | {"name": "me"}]}, "messages.0.name"),
        ({"messages": [MESSAGE, MESSAGE | {"seed": 7}]}, "messages.1.seed"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "name": "me"}]}]},
            "messages.0.content.0.name",
        ),
        ({"stream": True, "stream_options": {"logprobs": 5}}, "stream_options.logprobs"),
    ],
)
def test_a_field_inside_another_is_named_by_its_place(
    server: Server, web: httpx.Client, changes: dict[str, Any], param: str
) -> None:
    response = post(web, CHAT, body_for(CHAT, server.model) | changes)
    assert refused(response, 400, "unsupported_parameter")["param"] == param


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("stop", [5, ["a"] * 5, [""], ["a", 5]])
def test_what_stop_may_be_is_said_as_a_whole(server: Server, web: httpx.Client, path: str, stop: Any) -> None:
    error = refused(post(web, path, body_for(path, server.model) | {"stop": stop}), 400, "invalid_value")
    assert (error["param"], "a text or at most 4 texts" in error["message"]) == ("stop", True)


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "field",
    [
        '"logprob\\u0073": 5',  # an escape spells the same name
        '"logprobs": null, "logprobs": 5',  # the last one counts
        '"seed": 1e0',
        '"best_of": 2, "best_of": 3',
    ],
)
def test_another_way_to_write_json_hides_nothing(
    server: Server, web: httpx.Client, path: str, field: str
) -> None:
    before = spent(server)
    asked = json.dumps(body_for(path, server.model))[:-1] + f", {field}}}"
    refused(post(web, path, asked), 400, "unsupported_parameter")
    refused(post(web, path, asked.encode("utf-16")), 400, "unsupported_parameter")
    assert spent(server) == before


ACCEPTED: list[dict[str, Any]] = [
    {"logprobs": False},
    {"best_of": 1},
    {"logit_bias": {}},
    {"tools": [], "tool_choice": "none"},
    {"response_format": {"type": "text"}},
    {"user": "somebody"},
    {"metadata": {"order": "66", "logprobs": "5"}},  # asks for nothing, and gets nothing
    {"temperature": 0.5, "top_p": 0.9, "top_k": 20},
    {"temperature": 1.5, "presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 1.3},
    {"temperature": 1, "top_p": 1, "n": 1},
    {"top_p": 5e-324},  # less than any probability in single precision: one token is kept all the same
    {"top_k": 10**30},
    {"stop": ["zzz"], "stream": False},
]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("changes", ACCEPTED)
def test_what_asks_for_nothing_or_comes_before_mixing_is_accepted(
    server: Server, web: httpx.Client, path: str, changes: dict[str, Any]
) -> None:
    before = tokens_used(server)
    response = post(web, path, body_for(path, server.model) | changes)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 1
    assert tokens_used(server) == before + 1
    assert not [key for key in keys_of(response.json()) if "logprob" in key]


@pytest.mark.parametrize("path", BOTH)
def test_null_asks_for_nothing(server: Server, web: httpx.Client, path: str) -> None:
    fields = (CompletionRequest if path == COMPLETIONS else ChatRequest).model_fields
    nothing = dict.fromkeys([*REFUSED, *fields])
    before = tokens_used(server)
    # Short of these the answer would be long, or no request.
    response = post(web, path, nothing | body_for(path, server.model, max_tokens=2))
    assert response.status_code == 200
    assert tokens_used(server) == before + response.json()["usage"]["completion_tokens"]


# Keys


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Basic {key}",
        "{key}",
        "Bearer {key}x",
        "Bearer {key} x",
    ],
)
@pytest.mark.parametrize("path", [*BOTH, "/v1/models", "/v1/models/halves", "/v1/nothing"])
def test_without_a_valid_key_nothing_is_answered(
    server: Server, path: str, authorization: str | None
) -> None:
    headers = {"x-api-key": server.key}  # another service's way
    if authorization is not None:
        headers["authorization"] = authorization.format(key=server.key)
    before = spent(server)
    method = "POST" if path in BOTH else "GET"
    asked = json.dumps(body_for(path, server.model)) if path in BOTH else None
    with httpx.Client(base_url=server.url.removesuffix("/v1"), headers=headers, **HOOKS) as stranger:
        response = stranger.request(method, path, content=asked, params={"api_key": server.key})
    error = refused(response, 401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert server.key not in error["message"]
    assert spent(server) == before


def test_a_refusal_at_the_door_is_heard_by_who_is_still_sending(server: Server) -> None:
    body = b'"' + 20_000 * b"x" + b'"'
    with speak(server.url, COMPLETIONS, "no such key", f"Content-Length: {len(body) + 1}") as line:
        time.sleep(0.3)  # the refusal is known by now; a connection that was closed would be reset
        line.sendall(body)
        time.sleep(0.3)
        line.sendall(b" ")  # on a connection that was reset this fails
        said = heard(line)
    assert said.startswith(b"HTTP/1.1 401")
    assert b"invalid_api_key" in said


def test_a_key_opens_until_it_is_revoked(server: Server) -> None:
    made = new_key(server, "guest")
    headers = {"authorization": f"bearer {made['key']}"}  # the scheme's case does not matter
    asked = body_for(COMPLETIONS, server.model)
    url = f"{server.url}/completions"
    assert httpx.post(url, json=asked, headers=headers).status_code == 200
    assert made["key"] not in httpx.get(f"{server.admin}/admin/keys").text
    gone = httpx.delete(f"{server.admin}/admin/keys/{made['id']}")
    assert (gone.status_code, gone.json()) == (200, {"revoked": made["id"]})
    refused(httpx.post(url, json=asked, headers=headers), 401, "invalid_api_key")
    assert tokens_used(server, "guest") == 1
    refused(httpx.delete(f"{server.admin}/admin/keys/unknown"), 400, "invalid_value")


# Requests that cannot be used


@pytest.mark.parametrize("path", BOTH)
def test_an_unknown_model_is_not_found(server: Server, web: httpx.Client, path: str) -> None:
    before = spent(server)
    for name in ("gpt-4", "", f"{server.model}/adapter", "../halves", "x" * 200):
        error = refused(post(web, path, body_for(path, name)), 404, "model_not_found")
        assert error["param"] == "model"
    assert refused(post(web, path, body_for(path, "x" * 201)), 400, "invalid_value")["param"] == "model"
    assert spent(server) == before


def test_the_longest_text_is_answered_and_one_token_more_is_refused(
    server: Server, web: httpx.Client
) -> None:
    # The start token is read too, and the last token that is drawn is not.
    fits = post(web, COMPLETIONS, body_for(COMPLETIONS, server.model, prompt=[40] * (CONTEXT - 1)))
    assert fits.status_code == 200
    before = spent(server)
    for changes in (
        {"prompt": [40] * CONTEXT},
        {"prompt": [40] * (CONTEXT - 1), "max_tokens": 2},
        {"prompt": [PROMPT, PROMPT * 100]},
        {"prompt": PROMPT * 10_000},
        {"prompt": PROMPT, "max_tokens": CONTEXT},
        {"prompt": [40] * 200_000},
    ):
        response = post(web, COMPLETIONS, body_for(COMPLETIONS, server.model) | changes)
        error = refused(response, 400, "context_length_exceeded")
        assert error["param"] == "prompt"
        assert str(CONTEXT) in error["message"]
        assert ("characters" in error["message"]) == (changes["prompt"] == PROMPT * 10_000)
    said = [{"role": "user", "content": PROMPT}] * 100
    refused(post(web, CHAT, body_for(CHAT, server.model, messages=said)), 400, "context_length_exceeded")
    assert spent(server) == before


def test_a_text_that_is_far_too_long_is_never_tokenised(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A megabyte would keep the tokenizer from all others for seconds."""
    opened, longest = place(), 0
    encode = PublicTokenizer.encode

    def measured(tokenizer: PublicTokenizer, texts: Sequence[str], **options: bool) -> list[list[int]]:
        nonlocal longest
        longest = max(longest, *map(len, texts))
        return encode(tokenizer, texts, **options)

    with opened.service() as service, asking(service, opened.key) as web:
        monkeypatch.setattr(PublicTokenizer, "encode", measured)
        for prompt in (PROMPT * 10_000, [PROMPT, PROMPT * 10_000]):
            response = post(web, COMPLETIONS, body_for(COMPLETIONS, service.name) | {"prompt": prompt})
            refused(response, 400, "context_length_exceeded")
        said = [{"role": "user", "content": PROMPT * 500}] * 20
        refused(post(web, CHAT, body_for(CHAT, service.name, messages=said)), 400, "context_length_exceeded")
        # What is not absurdly long is judged by its tokens, to the last one.
        refused(
            post(web, COMPLETIONS, body_for(COMPLETIONS, service.name) | {"prompt": PROMPT * 100}),
            400,
            "context_length_exceeded",
        )
    assert 0 < longest <= 64 * CONTEXT


@pytest.mark.parametrize("echo", [True, False])
def test_token_ids_that_do_not_fit_are_never_decoded(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, echo: bool
) -> None:
    """One client's long prompt would keep the tokenizer from all others."""
    opened, decoded = place(), 0
    decode = PublicTokenizer.decode

    def counted(tokenizer: PublicTokenizer, ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids) > CONTEXT
        return decode(tokenizer, ids)

    monkeypatch.setattr(PublicTokenizer, "decode", counted)
    with opened.service() as service, asking(service, opened.key) as web:
        asked = body_for(COMPLETIONS, service.name, echo=echo)
        for prompt in ([40] * 200_000, [[40], [40] * 100_000]):
            response = post(web, COMPLETIONS, asked | {"prompt": prompt})
            refused(response, 400, "context_length_exceeded")
        told = post(web, COMPLETIONS, asked | {"prompt": [40]})
    assert told.status_code == 200
    assert not decoded


BAD_PROMPTS: list[Any] = [
    *(None, 5, True, {}, [], [[]], [None], [1, "a"], ["a", 1], [1.5], [True], [[1], ["a"]], [[1], 2]),
    *([-1], [[1], [-1]], [512], [[1], [10**6]], [2**64], [10**4000], ["a"] * 17),
]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=lambda prompt: ascii(prompt)[:40])
def test_a_prompt_is_text_or_token_ids_that_exist(server: Server, web: httpx.Client, prompt: Any) -> None:
    before = spent(server)
    error = refused(
        post(web, COMPLETIONS, body_for(COMPLETIONS, server.model, prompt=prompt)), 400, "invalid_value"
    )
    assert error["param"] == "prompt"
    assert spent(server) == before


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hello",
        {},
        [None],
        ["hello"],
        [{}],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": "tool", "content": "x"}],
        [{"role": 5, "content": "x"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [MESSAGE] * 257,
    ],
)
def test_messages_are_a_list_of_who_said_what(server: Server, web: httpx.Client, messages: Any) -> None:
    before = spent(server)
    error = refused(post(web, CHAT, body_for(CHAT, server.model, messages=messages)), 400, "invalid_value")
    assert error["param"].split(".")[0] == "messages"
    assert spent(server) == before


def test_answers_are_bounded_over_all_prompts(server: Server, web: httpx.Client) -> None:
    before = spent(server)
    for changes in ({"n": 2, "prompt": ["a", "b", "c"]}, {"prompt": ["a"] * 5}):
        response = post(web, COMPLETIONS, body_for(COMPLETIONS, server.model) | changes)
        assert refused(response, 400, "invalid_value")["param"] == "n"
    # A number of more digits than Python writes, once it is multiplied.
    huge = json.dumps(body_for(COMPLETIONS, server.model, prompt=["a"] * 4))[:-1] + f', "n": {"9" * 4300}}}'
    assert refused(post(web, COMPLETIONS, huge), 400, "invalid_value")["param"] == "n"
    assert spent(server) == before


MANY = 50_000
WRONG_ITEMS: list[Any] = [-1, True, 1.5, None, {}, [], [-1], ["a"]]
TOO_MUCH: list[tuple[str, dict[str, Any], str | None]] = [
    *((COMPLETIONS, {"prompt": [item] * MANY}, "prompt") for item in WRONG_ITEMS),
    (COMPLETIONS, {"prompt": [[-1] * MANY]}, "prompt"),
    (COMPLETIONS, {"prompt": [*([1] * MANY), "a"]}, "prompt"),
    *((path, {"stop": [5] * MANY}, "stop") for path in BOTH),
    *((path, {"stop_token_ids": [-1] * MANY}, "stop_token_ids") for path in BOTH),
    *((path, {"metadata": {f"m{i}": 5 for i in range(MANY)}}, "metadata") for path in BOTH),
    *((path, {"metadata": {f"m{i}": "5" for i in range(17)}}, "metadata") for path in BOTH),
    *((path, {f"f{i}": 5 for i in range(MANY)}, None) for path in BOTH),
    *((path, {"stream_options": {f"f{i}": 5 for i in range(MANY)}}, None) for path in BOTH),
    (CHAT, {"messages": [5] * MANY}, "messages"),
    (CHAT, {"messages": [{}] * MANY}, "messages"),
    (CHAT, {"messages": [MESSAGE | {f"f{i}": 5 for i in range(MANY)}]}, None),
    (CHAT, {"messages": [{"role": "user", "content": [5] * MANY}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{f"f{i}": 5 for i in range(MANY)}]}]}, None),
]


@pytest.mark.parametrize(
    ("path", "changes", "field"),
    [pytest.param(*case, id=f"{case[0]} {ascii(case[1])[:40]}") for case in TOO_MUCH],
)
def test_of_all_that_is_wrong_only_the_first_is_looked_at(
    server: Server, web: httpx.Client, path: str, changes: dict[str, Any], field: str | None
) -> None:
    """One error for every item would keep everybody waiting for seconds."""
    asked = body_for(path, server.model) | changes
    with pytest.raises((ValidationError, Problem)) as found:
        (CompletionRequest if path == COMPLETIONS else ChatRequest).model_validate(asked)
    # A few, for each shape that a field may have.
    assert not isinstance(found.value, ValidationError) or found.value.error_count() <= 10
    error = refused(post(web, path, asked), 400, "invalid_value")
    assert (error["param"] or "").split(".")[0] == (field or "")
    assert web.get("/ready").status_code == 200


@pytest.mark.parametrize("path", BOTH)
def test_as_many_fields_as_a_request_may_have_are_read(server: Server, web: httpx.Client, path: str) -> None:
    metadata = {f"m{i}": "5" for i in range(16)}
    assert post(web, path, body_for(path, server.model, metadata=metadata)).status_code == 200
    asked = body_for(path, server.model)
    asked |= {f"f{i}": 5 for i in range(64 - len(asked))}
    refused(post(web, path, asked), 400, "unsupported_parameter")
    error = refused(post(web, path, asked | {"one more": 5}), 400, "invalid_value")
    assert "at most 64 fields" in error["message"]


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"null",
        b"5",
        b'"text"',
        b"[]",
        b"[1]",
        b"{}",
        b"{'model': 'halves'}",
        b"\xff\xfe\x00",
        b'{"model": "\xff"}',
        b"\x00" * 1000,
        b"model=halves&prompt=x",
        b"[" * 10_000 + b"]" * 10_000,
        b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"metadata":' * 10_000 + b"1" + b"}" * 10_000,
        b'{"model": "halves", "n": ' + b"9" * 5000 + b"}",
        b'{"model": "halves", "n": 1e99999}',
    ],
    ids=lambda content: repr(content[:24]),
)
def test_a_body_that_is_no_request_is_refused(
    server: Server, web: httpx.Client, path: str, content: bytes
) -> None:
    before = spent(server)
    response = post(web, path, content)
    error = refused(response, 400, response.json()["error"]["code"])
    assert error["code"] in ("invalid_value", "unsupported_parameter")
    assert spent(server) == before
    assert web.get("/ready").status_code == 200


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"model": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"model": "halves", "n": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda content: repr(content[:24]),
)
def test_whatever_is_wrong_with_json_is_told_alike(
    server: Server, web: httpx.Client, path: str, content: bytes
) -> None:
    error = refused(post(web, path, content), 400, "invalid_value")
    assert (error["message"], error["param"]) == ("The body is not JSON.", None)


def test_one_length_is_enough(server: Server, web: httpx.Client) -> None:
    asked = body_for(CHAT, server.model, max_tokens=1, max_completion_tokens=1)
    error = refused(post(web, CHAT, asked), 400, "invalid_value")
    assert error["param"] == "max_completion_tokens"
    assert error["message"] == "max_tokens and max_completion_tokens are the same; give one of them."


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "nonsense"]
)
def test_a_body_that_does_not_say_that_it_is_json_is_refused(
    server: Server, web: httpx.Client, path: str, kind: str | None
) -> None:
    before = spent(server)
    headers = {} if kind is None else {"content-type": kind}
    refused(
        web.post(path, content=json.dumps(body_for(path, server.model)), headers=headers),
        400,
        "invalid_value",
    )
    assert spent(server) == before


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        *((path, changes) for path in BOTH for changes in (
            {"model": "\ud800"},
            {"stop": "\ud800"},
            {"\ud800": 1},
        )),
        (COMPLETIONS, {"prompt": "half \ud800"}),
        (COMPLETIONS, {"prompt": ["whole", "\udc00\ud800"]}),
        (CHAT, {"messages": [{"role": "user", "content": "half \ud800"}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]}),
        (CHAT, {"messages": [{"role": "\ud800", "content": "x"}]}),
        (CHAT, {"messages": [MESSAGE | {"\ud800": "x"}]}),
    ],
    ids=ascii,
)  # fmt: skip
def test_half_a_character_is_refused(
    server: Server, web: httpx.Client, path: str, changes: dict[str, Any]
) -> None:
    before = spent(server)
    error = refused(post(web, path, body_for(path, server.model) | changes), 400, "invalid_value")
    assert "must be a JSON object" not in error["message"]
    assert "half a character" in error["message"] or error["param"].split(".")[0] in changes
    assert spent(server) == before


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_an_idempotency_key_has_1_to_255_characters(server: Server, web: httpx.Client, key: str) -> None:
    before = spent(server)
    asked = body_for(COMPLETIONS, server.model)
    error = refused(web.post(COMPLETIONS, json=asked, headers={"idempotency-key": key}), 400, "invalid_value")
    assert error["param"] == "idempotency-key"
    assert spent(server) == before


@pytest.mark.parametrize("keys", [("first", "second"), ("same", "same")])
def test_two_idempotency_keys_are_refused(server: Server, web: httpx.Client, keys: tuple[str, str]) -> None:
    """One of them would be used, and nobody could say which."""
    before = spent(server)
    asked = body_for(COMPLETIONS, server.model)
    twice = [("idempotency-key", key) for key in keys]
    error = refused(web.post(COMPLETIONS, json=asked, headers=twice), 400, "invalid_value")
    assert error["param"] == "idempotency-key"
    assert spent(server) == before


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v1/nothing",
        "/v1/embeddings",
        "/v1/completions/extra",
        "/docs",
        "/redoc",
        "/nothing",
        # What the admin port has, this one has not.
        "/figures",
        "/try",
        "/verify",
        "/admin",
        "/admin/overview",
        "/admin/statement",
        "/admin/verify",
        "/admin/keys",
    ],
)
def test_a_path_that_is_not_there_is_not_found(server: Server, web: httpx.Client, path: str) -> None:
    for method in ("GET", "POST"):
        refused(web.request(method, path), 404, "not_found")


@pytest.mark.parametrize("name", ["nothing", "..%2f__init__.py", "%2e%2e%2ftemplates%2fbase.html", "%00"])
def test_only_files_of_the_page_are_served(server: Server, web: httpx.Client, name: str) -> None:
    assert web.get("/static/page.css").headers["content-type"].startswith("text/css")
    refused(web.get(f"/static/{name}"), 404, "not_found")
    refused(httpx.get(f"{server.admin}/static/{name}", verify=TLS), 404, "not_found")


@pytest.mark.parametrize("name", ["", "gpt-4", "halves/", "halves/adapter", "..%2fhalves", "%ff", "x" * 1000])
def test_a_model_that_is_not_there_is_not_found(web: httpx.Client, name: str) -> None:
    assert refused(web.get(f"/v1/models/{name}"), 404, "model_not_found")["param"] == "model"


@pytest.mark.parametrize(("method", "path"), [("GET", "/health/"), ("POST", f"{COMPLETIONS}/")])
def test_a_slash_too_many_is_not_found_and_no_redirection(web: httpx.Client, method: str, path: str) -> None:
    # A redirection would be to wherever the Host header says.
    refused(web.request(method, path), 404, "not_found")


WRONG_METHODS = [
    ("GET", COMPLETIONS, "POST"),
    ("PUT", CHAT, "POST"),
    ("DELETE", CHAT, "POST"),
    ("PATCH", COMPLETIONS, "POST"),
    ("POST", "/v1/models", "GET"),
    ("DELETE", "/v1/models/halves", "GET"),
    ("POST", "/health", "GET"),
    ("POST", "/ready", "GET"),
    ("TRACE", "/metrics", "GET"),
    ("OPTIONS", "/", "GET"),
]


@pytest.mark.parametrize(("method", "path", "allowed"), WRONG_METHODS)
def test_a_wrong_method_is_told_the_right_one(
    web: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = web.request(method, path)
    refused(answer, 405, "method_not_allowed")
    assert allowed in answer.headers["allow"]  # RFC 9110, 15.5.6: a 405 must have it


# Too much, too slow, gone


@pytest.mark.parametrize(
    ("right", "answer"),
    [(True, b"HTTP/1.1 413 "), (False, b"HTTP/1.1 401 ")],
    ids=["right key", "wrong key"],
)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_a_body_of_100_mb_is_refused_without_being_read(
    server: Server, web: httpx.Client, declared: bool, right: bool, answer: bytes
) -> None:
    before = spent(server)
    process = psutil.Process(server.process.pid)
    grown = process.memory_info().rss
    length = f"Content-Length: {LARGE}" if declared else "Transfer-Encoding: chunked"
    block = b"x" * 65_536
    piece = block if declared else b"%x\r\n%s\r\n" % (len(block), block)
    sent = 0
    key = server.key if right else "no such key"
    with speak(server.url, COMPLETIONS, key, length) as line:
        # As clients do that look for an answer while they send.
        while sent < LARGE and not select.select([line], [], [], 0)[0]:
            line.sendall(piece)
            sent += len(block)
        said = heard(line)
    # The rest are buffers of the operating system.
    assert sent < LARGE / 2
    assert said.startswith(answer)
    json.loads(said.partition(b"\r\n\r\n")[2])  # all of it
    assert process.memory_info().rss - grown < 50_000_000
    assert web.get("/ready").status_code == 200
    assert spent(server) == before


@pytest.mark.parametrize("right", [True, False], ids=["right key", "wrong key"])
def test_who_asks_before_sending_is_answered_and_not_told_to_go_on(server: Server, right: bool) -> None:
    key, status = (server.key, b"413") if right else ("no such key", b"401")
    headers = (f"Content-Length: {LARGE}", "Expect: 100-continue")
    with speak(server.url, COMPLETIONS, key, *headers) as line:
        said = heard(line)
    assert said.startswith(b"HTTP/1.1 " + status)
    assert "error" in json.loads(said.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
def test_a_body_that_is_too_large_is_told_so(server: Server, web: httpx.Client, declared: bool) -> None:
    before = spent(server)
    # No more is sent than is read: what a close leaves unread can break the connection before the answer.
    length = "Content-Length: 1000001" if declared else "Transfer-Encoding: chunked"
    body = b"" if declared else b"f4241\r\n" + b" " * 1_000_001
    with speak(server.url, COMPLETIONS, server.key, length, body=body) as line:
        said = heard(line)
    assert said.startswith(b"HTTP/1.1 413 ")
    error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "request_too_large"
    assert "1,000,000" in error["message"]
    assert spent(server) == before


def test_the_largest_body_is_read(server: Server, web: httpx.Client) -> None:
    content = json.dumps(body_for(COMPLETIONS, server.model))
    response = post(web, COMPLETIONS, content.ljust(1_000_000))
    assert response.status_code == 200


@pytest.mark.parametrize("length", ["-1", "+5", "1e3", "5, 6", "0x10", "９"])
def test_a_length_that_is_no_number_is_refused(server: Server, web: httpx.Client, length: str) -> None:
    before = spent(server)
    with speak(server.url, COMPLETIONS, server.key, f"Content-Length: {length}", body=b"{}") as line:
        said = heard(line)
    assert re.match(rb"HTTP/1.1 4\d\d ", said)
    assert b"Traceback" not in said
    assert web.get("/ready").status_code == 200
    assert spent(server) == before


def test_a_client_that_takes_too_long_to_ask_is_told_so(place: NewPlace) -> None:
    opened = place()
    with opened.service() as service, listening(public_app(service, body_seconds=0.5)) as url:
        with speak(url, COMPLETIONS, opened.key, "Content-Length: 100", body=b"{") as line:
            waited = heard(line)
        # A byte now and then does not buy more time: the bound is on the whole body.
        with speak(url, CHAT, opened.key, "Content-Length: 1000") as line:
            with contextlib.suppress(ConnectionError):
                for _ in range(20):
                    line.sendall(b" ")
                    time.sleep(0.1)
            dripped = heard(line)
        assert httpx.get(f"{url}/ready").status_code == 200
    assert waited.startswith(b"HTTP/1.1 408 ")
    assert b'"request_timeout"' in waited
    assert b"connection: close" in waited.lower()
    assert dripped == b"" or dripped.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_goes_leaves_a_service_that_answers(
    server: Server, web: httpx.Client, path: str, stream: bool
) -> None:
    eventually(lambda: idle(web), "the server rests")
    before = tokens_used(server)
    asked = json.dumps(body_for(path, server.model, max_tokens=100, n=4, stream=stream)).encode()
    with speak(server.url, path, server.key, f"Content-Length: {len(asked)}", body=asked) as line:
        if stream:
            assert line.recv(65_536).startswith(b"HTTP/1.1 200 ")
        else:
            eventually(lambda: tokens_used(server) > before, "the first token is paid for")
    eventually(lambda: idle(web), "the server notices")
    paid = tokens_used(server)
    # The engine goes on for somebody else, and draws nothing more for the one who left.
    assert post(web, path, body_for(path, server.model)).status_code == 200
    assert tokens_used(server) == paid + 1
    assert web.get("/ready").status_code == 200


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_nothing_more_is_drawn_for_a_client_that_has_gone(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    opened = place()
    asked = json.dumps(body_for(path, opened.run.name, max_tokens=100, n=4, stream=stream)).encode()
    length = f"Content-Length: {len(asked)}"
    with (
        opened.service() as service,
        listening(public_app(service)) as url,
        held(service, monkeypatch, after=2) as hold,
    ):
        with speak(url, path, opened.key, length, body=asked) as line:
            assert hold.reached.wait(timeout=120)
            said = b""
            while stream and b"data: " not in said:  # two tokens of each answer are on their way
                said += line.recv(65_536)
        eventually(lambda: service.metrics.requests[0] == 1, "the service notices")
        hold.gate.set()
        eventually(lambda: service.engine.load == (0, 0), "the engine rests")
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {opened.key}"}, **HOOKS) as web:
            assert post(web, path, body_for(path, opened.run.name)).status_code == 200
    # Two steps that left, the one that was held, one that was computed beside it, and somebody else's token.
    assert 2 < used_in(opened) <= 4 * 4 + 1


def test_who_comes_back_with_the_same_key_pays_only_for_the_rest(server: Server, web: httpx.Client) -> None:
    eventually(lambda: idle(web), "the server rests")
    before = tokens_used(server)
    content = body_for(COMPLETIONS, server.model, max_tokens=60, n=2, stream=True)
    asked = json.dumps(content | {"stream_options": {"include_usage": True}}).encode()
    headers = ("Idempotency-Key: come back", f"Content-Length: {len(asked)}")
    with speak(server.url, COMPLETIONS, server.key, *headers, body=asked) as line:
        said = b""
        while said.count(b"data: ") < 3:
            said += line.recv(65_536)
    eventually(lambda: idle(web), "the server notices")
    assert before < tokens_used(server) < before + 120
    response = web.post(
        COMPLETIONS,
        content=asked,
        headers={"idempotency-key": "come back", "content-type": "application/json"},
    )
    assert response.status_code == 200
    *_, counts, done = response.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    usage = json.loads(counts.removeprefix("data: "))["usage"]
    assert tokens_used(server) - before == usage["completion_tokens"]


# At once


def test_a_full_queue_turns_requests_away(place: NewPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = place()
    asked = body_for(COMPLETIONS, opened.run.name, max_tokens=5)
    with (
        opened.service(slots=1, waiting=1) as service,
        asking(service, opened.key) as web,
        ThreadPoolExecutor(2) as others,
        held(service, monkeypatch) as hold,
    ):
        answers: list[Future[httpx.Response]] = []
        for load in ((1, 0), (1, 1)):
            answers.append(others.submit(post, web, COMPLETIONS, asked))
            eventually(lambda load=load: service.engine.load == load, "the engine has it")  # type: ignore[misc]
        for path in BOTH:
            for stream in (False, True):
                response = post(web, path, body_for(path, opened.run.name, stream=stream))
                assert refused(response, 503, "overloaded")["type"] == "server_error"
                assert int(response.headers["retry-after"]) >= 1
        # All answers of a request or none: two do not fit where one would.
        refused(post(web, COMPLETIONS, asked | {"n": 2}), 503, "overloaded")
        assert web.get("/health").status_code == 200
        hold.gate.set()
        told = [answer.result(timeout=60) for answer in answers]
        assert [response.status_code for response in told] == [200, 200]
        eventually(lambda: service.engine.load == (0, 0), "the engine rests")
        told.append(post(web, COMPLETIONS, asked))
        assert told[-1].status_code == 200
    assert used_in(opened) == sum(response.json()["usage"]["completion_tokens"] for response in told)


def test_what_one_client_asks_for_does_not_end_the_answer_of_another(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = place()
    asked = body_for(COMPLETIONS, opened.run.name, max_tokens=40)
    with (
        opened.service() as service,
        asking(service, opened.key) as web,
        ThreadPoolExecutor(2) as others,
        held(service, monkeypatch) as hold,
    ):
        first = others.submit(post, web, COMPLETIONS, asked)
        assert hold.reached.wait(timeout=120)
        # The smallest numbers there are; both are answered in one step.
        second = others.submit(post, web, COMPLETIONS, asked | {"top_p": 5e-324, "temperature": 0.5})
        eventually(lambda: sum(service.engine.load) == 2, "the engine has both")
        hold.gate.set()
        told = [first.result(timeout=60), second.result(timeout=60)]
        assert web.get("/ready").status_code == 200
    assert [response.status_code for response in told] == [200, 200]
    assert used_in(opened) == sum(response.json()["usage"]["completion_tokens"] for response in told)


@pytest.mark.parametrize("path", BOTH)
def test_a_key_of_a_running_request_is_in_use(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    opened = place()
    asked = body_for(path, opened.run.name, max_tokens=5)
    headers = {"idempotency-key": "once"}
    with (
        opened.service() as service,
        asking(service, opened.key) as web,
        ThreadPoolExecutor(1) as others,
        held(service, monkeypatch) as hold,
    ):
        first = others.submit(web.post, path, json=asked, headers=headers)
        eventually(lambda: service.engine.load == (1, 0), "the engine has it")
        response = web.post(path, json=asked, headers=headers)
        refused(response, 409, "idempotency_key_in_use")
        # A client that waits gets the same answer: this one it may try again.
        assert int(response.headers["retry-after"]) >= 1
        assert "x-should-retry" not in response.headers
        refused(web.post(path, json=asked | {"n": 2}, headers=headers), 409, "idempotency_key_reused")
        hold.gate.set()
        answer = first.result(timeout=60)
        assert answer.status_code == 200
        eventually(lambda: service.engine.load == (0, 0), "the engine rests")
        again = web.post(path, json=asked, headers=headers)
        assert again.content == answer.content
    assert used_in(opened) == answer.json()["usage"]["completion_tokens"]


def test_a_fault_of_ours_is_told_in_the_same_shape_and_without_its_words(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(question: Question) -> None:
        raise RuntimeError("a part weighs 0.123")

    opened = place()
    with opened.service() as service, asking(service, opened.key) as web:
        with monkeypatch.context() as patch:
            patch.setattr(service, "answering", fail)
            for path in BOTH:
                response = post(web, path, body_for(path, opened.run.name))
                assert refused(response, 500, "internal_error")["type"] == "server_error"
                assert "0.123" not in response.text
        assert post(web, COMPLETIONS, body_for(COMPLETIONS, opened.run.name)).status_code == 200


class Fails(Exception):
    """A fault that nobody has thought of."""


@pytest.mark.parametrize("fault", [LedgerRefused, BudgetExceeded, Tampered, Fails])
@pytest.mark.parametrize("port", ["clients", "operator"])
def test_why_the_service_failed_is_in_the_log_by_its_kind_alone(
    place: NewPlace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    port: str,
    fault: type[Exception],
) -> None:
    def fail(*_: Any) -> None:
        raise fault("a part weighs 0.123")

    opened = place()
    with opened.service() as service, caplog.at_level("INFO"):
        app = public_app(service) if port == "clients" else admin_app(service)
        where = "tenant_for" if port == "clients" else "every_key"
        path = "/v1/models" if port == "clients" else "/admin/keys"
        monkeypatch.setattr(Access, where, fail)
        headers = {"authorization": f"Bearer {opened.key}"}
        with listening(app) as url, httpx.Client(base_url=url, headers=headers, **HOOKS) as web:
            error = refused(web.get(path), 500, "internal_error")
    assert error["message"] == "The service failed; its operator can see why."
    faults = [vars(record) for record in caplog.records if record.levelname == "ERROR"]
    assert [(line["event"], line["detail"]) for line in faults] == [("fault", fault.__name__)]
    assert "0.123" not in caplog.text


# What never leaves


def test_public_metrics_are_counters_that_anybody_may_see(server: Server, web: httpx.Client) -> None:
    assert post(web, COMPLETIONS, body_for(COMPLETIONS, server.model)).status_code == 200
    text = web.get("/metrics").text
    assert gauge(web, "tacit_tokens_total") >= 1
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) - {"tacit_requests_created"} <= {
        "tacit_requests_total",
        "tacit_tokens_total",
        "tacit_tokens_created",
        "tacit_first_token_seconds",
        "tacit_first_token_seconds_created",
        "tacit_request_seconds",
        "tacit_request_seconds_created",
        "tacit_texts_running",
        "tacit_texts_waiting",
    }
    for word in ("private", "public", "weight", "worst", "stopped", "spent", "epsilon", "alarm", "part"):
        assert word not in text.lower()
    private = httpx.get(f"{server.admin}/metrics").text
    assert "tacit_worst_part_used_ratio" in private
    assert "tacit_weights" in private


def test_the_public_page_says_what_is_configured_and_nothing_that_was_spent(
    server: Server, web: httpx.Client
) -> None:
    assert post(web, COMPLETIONS, body_for(COMPLETIONS, server.model)).status_code == 200
    response = web.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "script-src" in response.headers["content-security-policy"]
    text = response.text.lower()
    assert server.model in text
    for word in ("weights", "worst", "stopped", "tenant", TENANT, "private answers", "public answers"):
        assert word not in text
    statement = overview(server)["statement"]
    assert statement["worst_part_used"] > 0, "there is something that could be told"
    for number in (*statement["spent"], statement["worst_part_used"]):
        assert f"{number}"[:6] not in text
    refused(web.get("/figures"), 404, "not_found")


def test_logs_are_json_lines_without_prompts_keys_or_names_that_clients_chose(server: Server) -> None:
    secret = "xyzzy-0f7e"  # in everything that a client can choose
    with server.http(**HOOKS) as web:
        asked = body_for(COMPLETIONS, server.model, prompt=secret, user=secret, stop=secret, echo=True)
        responses = [
            web.post(COMPLETIONS, json=asked, headers={"idempotency-key": secret, "x-request-id": secret}),
            web.post(COMPLETIONS, json=asked | {"stream": True}),
            web.post(COMPLETIONS, json=asked | {secret: secret}),
            web.post(CHAT, json=body_for(CHAT, secret, messages=[{"role": "user", "content": secret}])),
            web.post(COMPLETIONS, content=secret, headers={"content-type": secret}),
            web.get(f"/v1/models/{secret}"),
            web.get(f"/{secret}"),
            web.get("/health", params={"q": secret}, headers={"user-agent": secret, "referer": secret}),
            web.get("/v1/models", headers={"authorization": f"Bearer {secret}"}),
        ]
        with speak(server.url, f"/{secret}", secret, f"Content-Length: {secret}") as line:
            heard(line)
    assert [response.status_code for response in responses] == [200, 200, 400, 404, 400, 404, 404, 200, 401]
    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == len(responses)
    eventually(lambda: all(any(one in line for line in server.log) for one in ids), "the log has them all")
    fields = {"at", "level", "event", "id", "endpoint", "status", "tenant", "tokens", "seconds", "detail"}
    for told in list(server.log):
        assert set(json.loads(told)) <= fields
        assert secret not in told
        assert server.key not in told
        assert PROMPT not in told


# The admin port


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8001",
        "0.0.0.0",  # noqa: S104
        "[::2]",
        "",
        "@",
    ],
)
def test_the_admin_port_answers_to_this_machines_name_only(server: Server, host: str) -> None:
    # A page of another site whose name is made to point here could otherwise read everything.
    with httpx.Client(base_url=server.admin, headers={"host": host}, **HOOKS) as stranger:
        for path in ("/", "/figures", "/admin/overview", "/metrics", "/admin/keys"):
            response = stranger.get(path)
            refused(response, 421, "wrong_host")
        refused(stranger.post("/admin/keys", json={"tenant": "evil"}), 421, "wrong_host")
    assert "evil" not in httpx.get(f"{server.admin}/admin/keys").text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST", "[::1]:99"])
def test_the_admin_port_knows_this_machines_names(server: Server, host: str) -> None:
    response = httpx.get(f"{server.admin}/admin/statement", headers={"host": host})
    assert response.status_code == 200
    assert response.json()["domain"] == "people"


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://127.0.0.1.evil.example", "null", "http://127.0.0.1:1"],
)
def test_a_page_of_another_site_cannot_write_to_the_admin_port(server: Server, origin: str) -> None:
    before = spent(server)
    with httpx.Client(base_url=server.admin, headers={"origin": origin}, **HOOKS) as stranger:
        refused(stranger.post("/try", json={"prompt": PROMPT, "max_tokens": 1}), 403, "wrong_origin")
        refused(stranger.post("/admin/keys", json={"tenant": "evil"}), 403, "wrong_origin")
        refused(stranger.delete("/admin/keys/x"), 403, "wrong_origin")
        refused(stranger.post("/admin/verify"), 403, "wrong_origin")
        refused(stranger.post("/admin/backup"), 403, "wrong_origin")
    assert spent(server) == before
    same = httpx.post(f"{server.admin}/admin/verify", headers={"origin": server.admin})
    assert (same.status_code, same.json()["verified"]) == (200, True)


@pytest.mark.parametrize(
    "headers", [{"host": "["}, {"origin": "http://["}, {"host": "[::1", "origin": "//]"}]
)
def test_a_host_or_origin_that_cannot_be_read_is_refused(server: Server, headers: dict[str, str]) -> None:
    before = spent(server)
    with httpx.Client(base_url=server.admin, headers=headers, **HOOKS) as stranger:
        refused(stranger.post("/try", json={"prompt": PROMPT, "max_tokens": 1}), 400, "wrong_host")
    assert spent(server) == before


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code"),
    [
        ("POST", "/try", {"prompt": PROMPT, "max_tokens": 1, "logprobs": 5}, 400, "unsupported_parameter"),
        ("POST", "/try", {"prompt": PROMPT, "max_tokens": 100_000}, 400, "invalid_value"),
        ("POST", "/try", {"prompt": "\ud800"}, 400, "invalid_value"),
        ("POST", "/try", {"prompt": PROMPT * 1000}, 400, "context_length_exceeded"),
        ("POST", "/try", {}, 400, "invalid_value"),
        ("POST", "/admin/keys", {"tenant": ""}, 400, "invalid_value"),
        ("POST", "/admin/keys", {"tenant": "a b\n"}, 400, "invalid_value"),
        ("POST", "/admin/keys", {"tenant": "a\ud800b"}, 400, "invalid_value"),
        ("POST", "/admin/keys", {"tenant": "\0", "tokens": 1}, 400, "invalid_value"),
        ("PUT", "/admin/tenants/%00", {"tokens": 1}, 400, "invalid_value"),
        ("PUT", f"/admin/tenants/{'x' * 1000}", {"tokens": 1}, 400, "invalid_value"),
        ("DELETE", "/admin/keys/%00", None, 400, "invalid_value"),
        ("DELETE", f"/admin/keys/{'x' * 1000}", None, 400, "invalid_value"),
        ("POST", "/admin/keys", {"tenant": "x", "tokens": -1}, 400, "invalid_value"),
        ("POST", "/admin/keys", {"tenant": "x", "tokens": 2**62}, 400, "invalid_value"),
        ("POST", "/admin/keys", {"tenant": "x", "tokens": 10**40}, 400, "invalid_value"),
        ("GET", "/admin/nothing", None, 404, "not_found"),
        ("GET", "/openapi.json", None, 404, "not_found"),
        ("GET", "/admin/verify", None, 405, "method_not_allowed"),
        ("GET", "/admin/backup", None, 405, "method_not_allowed"),
    ],
)
def test_the_admin_port_refuses_in_the_same_shape(
    server: Server, method: str, path: str, content: Any, status: int, code: str
) -> None:
    before = spent(server)
    with httpx.Client(base_url=server.admin, **HOOKS) as operator:
        headers = {"content-type": "application/json"}
        body = None if content is None else json.dumps(content)
        refused(operator.request(method, path, content=body, headers=headers), status, code)
    assert spent(server) == before


@pytest.mark.parametrize(
    "prompt", ["a\ud800b", "a" * 100_001, 5, None, [PROMPT], [1]], ids=lambda one: ascii(one)[:20]
)
def test_the_operators_question_is_one_text(server: Server, prompt: Any) -> None:
    with httpx.Client(base_url=server.admin, **HOOKS) as operator:
        error = refused(post(operator, "/try", {"prompt": prompt}), 400, "invalid_value")
    assert error["param"] == "prompt"
    assert "one text" in error["message"]
    assert "lists of token ids" not in error["message"]  # which the other port's prompts may be


def test_the_operators_own_question_is_charged_to_the_operator(server: Server) -> None:
    before, mine = tokens_used(server), tokens_used(server, "operator")
    answer = httpx.post(f"{server.admin}/try", json={"prompt": PROMPT, "max_tokens": 3}, timeout=60)
    assert answer.status_code == 200
    assert set(answer.json()) == {"text", "tokens"}
    assert tokens_used(server, "operator") == mine + answer.json()["tokens"]
    assert tokens_used(server) == before


def test_the_ledger_is_backed_up_while_answers_go_on(place: NewPlace, tmp_path: Path) -> None:
    opened = place()
    with opened.service() as service, listening(admin_app(service)) as url:
        ask: dict[str, Any] = {"json": {"prompt": PROMPT, "max_tokens": 20}, "timeout": 60}
        assert httpx.post(f"{url}/try", **ask).status_code == 200
        at_least = service.books.booked.entries
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(httpx.post, f"{url}/try", **ask) for _ in range(2)]
            made = [httpx.post(f"{url}/admin/backup", timeout=60) for _ in range(3)]
            assert {one.result().status_code for one in running} == {200}
        at_most = service.books.booked.entries
        copies = [Path(one.raise_for_status().json()["backup"]) for one in made]
        assert len(set(copies)) == 3, "none takes another's place"
        assert {copy.parent for copy in copies} == {Path(opened.ledger).parent}
        for copy in copies:
            assert copy.name.startswith(Path(opened.ledger).name + ".backup-")
            assert copy.stat().st_mode & 0o777 == 0o600
            with Ledger.open(str(copy), anchor=tmp_path / f"{copy.name}.anchor", new_anchor=True) as ledger:
                entries = verify(ledger, "people").entries - 1  # that of the new anchor
            assert at_least <= entries <= at_most
        assert httpx.post(f"{url}/admin/verify", timeout=60).json()["verified"]


def test_a_backup_that_cannot_be_made_is_a_sentence_and_ends_nothing(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = place()

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened.service() as service, listening(admin_app(service)) as url, httpx.Client(**HOOKS) as web:
        with monkeypatch.context() as patch:
            patch.setattr("tacit.ledger.sqlite_store.sync", full)
            error = refused(web.post(f"{url}/admin/backup"), 507, "backup_failed")
        assert "No space left on device" in error["message"]
        assert opened.ledger in error["message"]
        assert service.books.is_open, "a copy that fails is no failure of the ledger"
        assert not list(Path(opened.ledger).parent.glob("*backup-*"))
        assert httpx.post(f"{url}/try", json={"prompt": PROMPT, "max_tokens": 1}).status_code == 200


def test_a_backup_of_postgresql_is_left_to_its_own_tools(place: NewPlace, postgres: str) -> None:
    opened = place(ledger=new_database(postgres))
    with opened.service() as service, listening(admin_app(service)) as url, httpx.Client(**HOOKS) as web:
        error = refused(web.post(f"{url}/admin/backup"), 400, "invalid_value")
        assert "pg_dump --schema=" in error["message"]
        assert service.books.is_open


def basic(password: str, scheme: str = "Basic") -> dict[str, str]:
    return {"authorization": f"{scheme} {base64.b64encode(f'operator:{password}'.encode()).decode()}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        basic("wrong"),
        basic(""),
        basic(PASSWORD + " "),
        basic(PASSWORD, "Bearer"),
        {"authorization": "Basic"},
        {"authorization": "Basic !!!"},
        {"authorization": f"Basic {PASSWORD}"},
        {"authorization": "Basic " + base64.b64encode(PASSWORD.encode()).decode()},
    ],
)
def test_an_admin_port_with_a_password_needs_it(counted: Server, headers: dict[str, str]) -> None:
    with httpx.Client(base_url=counted.admin, headers=headers, **HOOKS) as stranger:
        for path in ("/", "/figures", "/metrics", "/admin/overview", "/static/page.css"):
            response = stranger.get(path)
            refused(response, 401, "invalid_password")
            assert response.headers["www-authenticate"].startswith("Basic ")
        refused(stranger.post("/try", json={"prompt": PROMPT}), 401, "invalid_password")
        refused(stranger.post("/admin/backup"), 401, "invalid_password")


def test_an_admin_port_with_a_password_opens_with_it(counted: Server) -> None:
    with httpx.Client(base_url=counted.admin, headers=basic(PASSWORD), **HOOKS) as operator:
        assert operator.get("/").status_code == 200
        assert operator.get("/admin/overview").json()["statement"]["mechanism"] == "certified"
        # Who knows the password may come by another name, but not from another site.
        assert operator.get("/metrics", headers={"host": "ops.example"}).status_code == 200
        refused(
            operator.post("/admin/verify", headers={"origin": "http://evil.example"}), 403, "wrong_origin"
        )
    assert not any(PASSWORD in line for line in counted.log)


# Used-up budgets


def words_of(*options: str, place: Place) -> subprocess.CompletedProcess[str]:
    """`tacit serve` where it must not start."""
    words = [sys.executable, "-m", "tacit", "serve", str(place.run), "--ledger", place.ledger]
    ports = ["--port", "0", "--admin-port", "0", "--context", str(CONTEXT)]
    environment = {name: value for name, value in os.environ.items() if name != "TACIT_ADMIN_PASSWORD"}
    return subprocess.run(
        [*words, "--anchor", str(place.anchor), *ports, *options],
        capture_output=True,
        text=True,
        env=environment | {"COLUMNS": "1000"},
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--admin-host", "0.0.0.0"), "TACIT_ADMIN_PASSWORD"),  # noqa: S104
        (("--on-exhausted", "error"), "only certified mixing has a public counter"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_service_that_would_tell_too_much_does_not_start(
    place: NewPlace, options: tuple[str, ...], said: str
) -> None:
    ended = words_of(*options, place=place())
    assert ended.returncode == 2
    assert ended.stdout == ""
    (sentence,) = ended.stderr.strip().splitlines()
    assert said in sentence
    assert sentence.endswith(".")


def test_a_quota_can_be_changed_while_the_service_runs(server: Server) -> None:
    made = new_key(server, "grows", tokens=2)
    headers = {"authorization": f"Bearer {made['key']}"}
    asked, url = body_for(COMPLETIONS, server.model, max_tokens=3), f"{server.url}/completions"
    quota = f"{server.admin}/admin/tenants/grows"
    response = httpx.post(url, json=asked, headers=headers)
    error = refused(response, 429, "tenant_quota_exceeded")
    assert "2 are left" in error["message"]
    assert "lower max_tokens" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    assert httpx.put(quota, json={"tokens": 3}).json() == {
        "name": "grows",
        "tokens_most": 3,
        "tokens_used": 0,
    }
    assert httpx.post(url, json=asked, headers=headers).status_code == 200
    refused(httpx.post(url, json=asked, headers=headers), 429, "tenant_quota_exceeded")
    assert httpx.put(quota, json={"tokens": None}).json()["tokens_most"] is None
    assert httpx.post(url, json=asked, headers=headers).status_code == 200
    refused(httpx.put(f"{server.admin}/admin/tenants/nobody", json={"tokens": 3}), 400, "invalid_value")
    refused(httpx.put(quota, json={"tokens": -1}), 400, "invalid_value")
    refused(httpx.put(quota, json={}), 400, "invalid_value")


@pytest.mark.parametrize("written", ["north/sea", "north%2Fsea"])
def test_a_tenants_name_may_have_a_slash(server: Server, written: str) -> None:
    new_key(server, "north/sea", tokens=2)
    changed = httpx.put(f"{server.admin}/admin/tenants/{written}", json={"tokens": 7})
    assert changed.json() == {"name": "north/sea", "tokens_most": 7, "tokens_used": 0}


def test_what_was_paid_for_is_told_again_whatever_the_quota_is_now(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = place(tokens=100)
    with account.service() as service, asking(service, account.key) as web, ThreadPoolExecutor(1) as pool:
        asked, headers = body_for(COMPLETIONS, service.name, max_tokens=3), {"idempotency-key": "paid"}
        first = web.post(COMPLETIONS, json=asked, headers=headers)
        assert first.status_code == 200
        with held(service, monkeypatch) as hold:
            running = pool.submit(web.post, COMPLETIONS, json=asked | {"max_tokens": 12})
            assert hold.reached.wait(60)
            used = first.json()["usage"]["completion_tokens"]
            for left, reserved in (
                (0, ""),
                (5, ", of which 5 are reserved for answers that are being written"),
            ):
                with service.books.using() as ledger:
                    Access(ledger).change_quota(TENANT, used + left if left else 0)
                again = web.post(COMPLETIONS, json=asked, headers=headers)
                assert (again.status_code, again.content) == (200, first.content)
                error = refused(web.post(COMPLETIONS, json=asked), 429, "tenant_quota_exceeded")
                assert f"and {left} are left of the quota{reserved};" in error["message"]
                assert ("lower max_tokens" in error["message"]) == (left > 0), "below 0 is nothing"
            hold.gate.set()
            assert running.result().status_code == 200


def test_the_log_counts_what_was_booked(
    place: NewPlace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not what was drawn and never paid for, and not what an earlier request has paid for."""
    account = place()
    with account.service() as service, caplog.at_level("INFO", "tacit.serving"):
        book, steps = service.books.book, 0

        def fails(decided: Decided) -> None:
            nonlocal steps
            steps += 1
            if steps == 3:
                service.books.shut()
                raise LedgerUnavailable("the disk is full")
            book(decided)

        monkeypatch.setattr(service.books, "book", fails)
        # No answer ends by itself before the third step: what is drawn is nobody's choice.
        monkeypatch.setattr(PublicTokenizer, "stop_tokens", frozenset[int]())
        with asking(service, account.key) as web:
            asked = body_for(COMPLETIONS, service.name, max_tokens=8)
            for stream in (False, True):
                steps = 0
                eventually(lambda: service.ready, "the ledger is open")
                headers = {"idempotency-key": f"stream={stream}"}
                for _ in range(3):
                    web.post(COMPLETIONS, json=asked | {"stream": stream}, headers=headers)
                    eventually(lambda: service.ready, "the ledger is open")
    lines = [vars(record) for record in caplog.records if getattr(record, "event", "") == "request"]
    counts = [line.get("tokens", 0) for line in lines if line["endpoint"] == "completions"]
    assert len(counts) == 6
    for cut, rest, nothing in (counts[:3], counts[3:]):
        assert (cut, nothing) == (2, 0)
        assert rest > 0
    assert sum(counts) == used_in(account)


def test_a_counted_budget_may_be_an_error_when_it_is_gone(counted: Server) -> None:
    asked = body_for(COMPLETIONS, counted.model)
    with counted.http(**HOOKS) as web:
        # Reserved for the longest answer: what may not be paid for is not begun.
        for changes in ({"max_tokens": 7}, {"max_tokens": 2, "n": 4}, {"max_tokens": 7, "stream": True}):
            error = refused(post(web, COMPLETIONS, asked | changes), 429, "privacy_budget_exhausted")
            assert error["type"] == "insufficient_quota"
        headers = {"idempotency-key": "the first"}
        first = web.post(COMPLETIONS, json=asked, headers=headers)
        answers = [first, *(post(web, COMPLETIONS, asked) for _ in range(5))]
        assert [answer.status_code for answer in answers] == [200] * 6
        for path in BOTH:
            for stream in (False, True):
                response = post(web, path, body_for(path, counted.model, stream=stream))
                message = refused(response, 429, "privacy_budget_exhausted")["message"]
                assert "the privacy budget is used up" in message
                assert "lower" not in message, "which would not help"
                assert response.headers["x-should-retry"] == "false"
        # What was paid for is still there.
        assert web.post(COMPLETIONS, json=asked, headers=headers).content == first.content
        assert web.get("/ready").status_code == 200
    statement = httpx.get(f"{counted.admin}/admin/statement", headers=basic(PASSWORD)).json()
    assert (statement["private_answers"], statement["public_answers"]) == (6, 0)


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "queries"),
    [("certified", 2.0, 8), ("submix-guarded", 0.5, 1)],
)
def test_by_default_nothing_tells_a_client_that_a_budget_is_gone(
    place: NewPlace, mechanism: str, epsilon: float, queries: int
) -> None:
    def shape(content: Any) -> Any:
        """Keys and kinds of values, without the values."""
        if isinstance(content, dict):
            return {key: shape(value) for key, value in content.items()}
        return [shape(value) for value in content] if isinstance(content, list) else type(content)

    def seen(web: httpx.Client) -> list[Any]:
        """What a client sees that could tell, but for numbers that count what everybody sees."""
        found: list[Any] = []
        for path in BOTH:
            whole = post(web, path, body_for(path, model, max_tokens=1))
            found += [whole.status_code, sorted(whole.headers), shape(whole.json())]
            told = post(web, path, body_for(path, model, max_tokens=1, stream=True))
            events = [event.removeprefix("data: ") for event in told.text.split("\n\n")[:-2]]
            found += [told.status_code, sorted(told.headers)]
            found.append([shape(json.loads(event)).keys() for event in events])
        for path in ("/v1/models", "/health", "/ready"):
            found.append((web.get(path).status_code, web.get(path).json()))
        page, metrics = web.get("/").text, web.get("/metrics").text
        found.append(re.sub(r'(<dd id="served">)[\d,]+', r"\1", page))
        found.append(re.findall(r"^# .*$", metrics, re.MULTILINE))
        return found

    opened = place(mechanism, epsilon=epsilon)
    model = opened.run.name
    with opened.service(queries=queries) as service, asking(service, opened.key) as web:
        for path in ("/v1/nothing", "/health", "/metrics", "/"):  # so that every counter has begun
            web.get(path)
        before = seen(web)
        assert service.books.balance.public_answers == 0
        for _ in range(100):  # answers end when they please
            post(web, COMPLETIONS, body_for(COMPLETIONS, model, max_tokens=40, n=4))
            if service.books.balance.public_answers:
                break
        gone = service.books.balance
        assert gone.public_answers > 0
        assert seen(web) == before
        after = service.books.balance
    assert after.private_answers == gone.private_answers
    assert after.public_answers == gone.public_answers + 4
