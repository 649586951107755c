"""Requests that nobody thought of, made from the service's own OpenAPI schema."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error, status_code_conformance

from tests.serving.conftest import Server, serving
from tests.serving.test_http import account, keys_of, tokens_used

OPERATIONS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/health"),
    ("GET", "/ready"),
    ("GET", "/metrics"),
    ("GET", "/"),
]
ANSWERS = {path for method, path in OPERATIONS if method == "POST"}
# What has nothing to be wrong about is only asked rightly.
CASES = [
    *((method, path, GenerationMode.POSITIVE) for method, path in OPERATIONS),
    *(
        (method, path, GenerationMode.NEGATIVE)
        for method, path in OPERATIONS
        if method == "POST" or "{" in path
    ),
]


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Short answers: what is tried here is what can be asked, not what is said."""
    place = account(runs, tmp_path_factory.mktemp("schema"))
    lengths = ("--default-tokens", "2", "--most-tokens", "4")
    with serving(place, "--queries", "1000", *lengths) as found:
        yield found


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url.removesuffix('/v1')}/openapi.json")


@pytest.fixture(scope="module")
def session(server: Server) -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.headers["authorization"] = f"Bearer {server.key}"
        yield found


def tells_no_distribution(response: Any) -> None:
    """Nothing that looks like a log probability in any response, whole or streamed."""
    text: str = response.text
    assert "Traceback" not in text
    kind = response.headers.get("content-type", [""])[0]
    if kind.startswith("application/json"):
        told = [response.json()]
    else:
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
        told = [json.loads(event) for event in events]
    for content in told:
        keys = [re.sub("[^a-z]", "", key.lower()) for key in keys_of(content)]
        assert not [key for key in keys if "logprob" in key or "logit" in key]


def aimed(content: Any, model: str) -> None:
    """Generated requests rarely name the model, or ask for little, and would be turned away for that."""
    if not isinstance(content, dict):
        return
    if isinstance(content.get("model"), str):
        content["model"] = model
    for field in ("max_tokens", "max_completion_tokens", "n"):
        wanted = content.get(field)
        if isinstance(wanted, int) and wanted > 4:
            content[field] = 1 + wanted % 2


def test_the_schema_has_the_operations_that_are_tried_here(schema: Any) -> None:
    found = [operation.ok() for operation in schema.get_all_operations()]
    assert {(one.method.upper(), one.path) for one in found} == set(OPERATIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "mode"), CASES, ids=lambda value: getattr(value, "value", str(value))
)
def test_whatever_the_schema_allows_or_forbids_is_answered_as_documented(
    server: Server, schema: Any, session: requests.Session, method: str, path: str, mode: GenerationMode
) -> None:
    """I10 for requests that nobody thought of: no answer has what the refused fields ask for."""
    statuses: Counter[int] = Counter()
    before = tokens_used(server)

    # The same requests every time, so that a failure is a change of ours.
    @hypothesis.settings(
        max_examples=30,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=schema[path][method].as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        aimed(case.body, server.model)
        response = case.call(session=session, timeout=60)
        statuses[response.status_code] += 1
        case.validate_response(response, checks=[not_a_server_error, status_code_conformance])
        tells_no_distribution(response)

    ask()
    if path in ANSWERS:
        if mode is GenerationMode.POSITIVE:
            assert statuses[200]  # else nothing of what matters was tried
        assert statuses[400]
        # Four answers of four tokens each, and none for what was refused.
        assert tokens_used(server) - before <= statuses[200] * 4 * 4
