"""The service through OpenAI's own client: completions, chat, streams, errors, retries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.serving.conftest import PROMPT, Server, serving
from tests.serving.test_http import account, new_key, tokens_used

USER: Any = {"role": "user", "content": "Where is the baker?"}


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the whole file: its budget is far larger than what is asked for here."""
    place = account(runs, tmp_path_factory.mktemp("openai"))
    with serving(place, "--queries", "1000") as found:
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as found:
        yield found


class Counting(httpx2.HTTPTransport):
    """Counts requests; answers to the first ``lost`` of them never arrive."""

    def __init__(self, *, lost: int = 0) -> None:
        super().__init__()
        self.requests: list[httpx2.Request] = []
        self._lost = lost

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        response = super().handle_request(request)
        if len(self.requests) <= self._lost:
            response.read()  # the service has answered, and charged
            response.close()
            raise httpx2.ReadError("the connection broke", request=request)
        return response


@pytest.fixture
def counted(server: Server) -> Iterator[Callable[..., tuple[openai.OpenAI, Counting]]]:
    """Clients that retry as they do by default, and what they really sent."""
    made: list[openai.OpenAI] = []

    def make(*, lost: int = 0, key: str = server.key) -> tuple[openai.OpenAI, Counting]:
        transport = Counting(lost=lost)
        web = openai.DefaultHttpxClient(transport=transport)
        made.append(openai.OpenAI(base_url=server.url, api_key=key, max_retries=2, http_client=web))
        return made[-1], transport

    yield make
    for client in made:
        client.close()


def events_of(content: bytes) -> list[str]:
    """What a raw stream says, event by event; comments are none."""
    assert content.endswith(b"\n\n")
    blocks = content.decode().removesuffix("\n\n").split("\n\n")
    assert all(block.startswith(("data: ", ": ")) for block in blocks)
    return [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]


# Whole answers


def test_a_completion_has_one_answer_per_choice_and_counts_its_tokens(
    server: Server, client: openai.OpenAI
) -> None:
    before = tokens_used(server)
    answer = client.completions.create(model=server.model, prompt=PROMPT, max_tokens=5, n=2)
    assert answer.object == "text_completion"
    assert answer.model == server.model
    assert answer.id.startswith("cmpl-")
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.finish_reason in ("stop", "length") for choice in answer.choices)
    assert all(choice.logprobs is None for choice in answer.choices)
    assert any(choice.text for choice in answer.choices)
    assert answer.usage is not None
    assert 2 <= answer.usage.completion_tokens <= 10
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    # Every draw of every choice is charged, and nothing else.
    assert tokens_used(server) - before == answer.usage.completion_tokens


def test_an_answer_without_max_tokens_has_a_finite_default(server: Server, client: openai.OpenAI) -> None:
    answer = client.completions.create(model=server.model, prompt=PROMPT)
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 64


def test_several_prompts_get_their_answers_in_order(server: Server, client: openai.OpenAI) -> None:
    prompts = ["The baker", "A parcel"]
    answer = client.completions.create(model=server.model, prompt=prompts, n=2, max_tokens=2, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice, prompt in zip(answer.choices, [p for p in prompts for _ in range(2)], strict=True):
        assert choice.text.startswith(prompt)


def test_echo_gives_the_prompt_back_before_the_answer(server: Server, client: openai.OpenAI) -> None:
    answer = client.completions.create(model=server.model, prompt=PROMPT, max_tokens=4, n=2, echo=True)
    assert all(choice.text.startswith(PROMPT) for choice in answer.choices)
    assert any(len(choice.text) > len(PROMPT) for choice in answer.choices)
    pieces = list(
        client.completions.create(model=server.model, prompt=PROMPT, max_tokens=4, echo=True, stream=True)
    )
    assert pieces[0].choices[0].text == PROMPT


def test_a_prompt_of_token_ids_is_echoed_as_text(server: Server, client: openai.OpenAI) -> None:
    answer = client.completions.create(model=server.model, prompt=[40, 41, 42], max_tokens=1, echo=True)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 4  # and the start token
    plain = client.completions.create(
        model=server.model, prompt=[[40, 41, 42], [40, 41, 42]], max_tokens=1, echo=True
    )
    begins = {choice.text[:3] for choice in (*answer.choices, *plain.choices)}
    assert len(begins) == 1


def test_a_conversation_is_answered_without_a_chat_template(server: Server, client: openai.OpenAI) -> None:
    before = tokens_used(server)
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, USER]
    answer = client.chat.completions.create(model=server.model, messages=messages, max_tokens=5, n=2)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.role == "assistant" for choice in answer.choices)
    assert all(choice.finish_reason in ("stop", "length") for choice in answer.choices)
    assert all(choice.logprobs is None for choice in answer.choices)
    assert any(choice.message.content for choice in answer.choices)
    assert answer.usage is not None
    assert tokens_used(server) - before == answer.usage.completion_tokens
    # The tiny model has no template, so what it reads are plain lines with who said them.
    lines = f"system: Be brief.\nuser: {USER['content']}\nassistant:"
    plain = client.completions.create(model=server.model, prompt=lines, max_tokens=1)
    assert plain.usage is not None
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens


def test_content_in_parts_is_read_as_one_text(server: Server, client: openai.OpenAI) -> None:
    parts: Any = {"role": "user", "content": [{"type": "text", "text": "Where is "}]}
    parts["content"].append({"type": "text", "text": "the baker?"})
    whole = client.chat.completions.create(model=server.model, messages=[USER], max_completion_tokens=1)
    split = client.chat.completions.create(model=server.model, messages=[parts], max_completion_tokens=1)
    assert whole.usage is not None
    assert split.usage is not None
    assert split.usage.prompt_tokens == whole.usage.prompt_tokens
    assert split.usage.completion_tokens == 1


@pytest.mark.parametrize("stop", ["e", ["e", "zzz"], [".", " the"]])
def test_a_stop_string_and_what_follows_never_appear_but_are_charged(
    server: Server, client: openai.OpenAI, stop: str | list[str]
) -> None:
    ends = [stop] if isinstance(stop, str) else stop
    before = tokens_used(server)
    answer = client.completions.create(model=server.model, prompt=PROMPT, max_tokens=100, stop=stop)
    chat = client.chat.completions.create(model=server.model, messages=[USER], max_tokens=80, stop=stop)
    streamed = list(
        client.completions.create(
            model=server.model,
            prompt=PROMPT,
            max_tokens=100,
            stop=stop,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(piece.choices[0].text for piece in streamed if piece.choices)
    for shown in (answer.choices[0].text, chat.choices[0].message.content or "", text):
        assert not any(end in shown for end in ends)
    # So common in these sentences that a hundred tokens without one do not happen.
    assert answer.choices[0].finish_reason == "stop"
    counts = [answer.usage, chat.usage, streamed[-1].usage]
    used = [count.completion_tokens for count in counts if count is not None]
    assert len(used) == 3
    assert all(used)  # also where nothing of it was shown
    assert tokens_used(server) - before == sum(used)


# Streams


def test_a_stream_of_a_completion_is_the_answer_in_pieces(server: Server, client: openai.OpenAI) -> None:
    before = tokens_used(server)
    pieces = list(
        client.completions.create(
            model=server.model,
            prompt=PROMPT,
            max_tokens=6,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *told, last = pieces
    assert last.choices == []
    assert last.usage is not None
    assert tokens_used(server) - before == last.usage.completion_tokens
    assert len({piece.id for piece in pieces}) == 1
    for index in range(2):
        mine = [piece.choices[0] for piece in told if piece.choices[0].index == index]
        finishes: list[str | None] = [choice.finish_reason for choice in mine]
        assert finishes[-1] in ("stop", "length")
        assert set(finishes[:-1]) <= {None}
    assert any(piece.choices[0].text for piece in told)
    assert all(piece.usage is None for piece in told)


def test_a_stream_of_a_conversation_is_the_message_in_pieces(server: Server, client: openai.OpenAI) -> None:
    pieces = list(
        client.chat.completions.create(
            model=server.model,
            messages=[USER],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    first, *told, last = pieces
    assert all(isinstance(piece, ChatCompletionChunk) for piece in pieces)
    assert first.object == "chat.completion.chunk"
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content == ""
    assert "".join(piece.choices[0].delta.content or "" for piece in told)
    assert told[-1].choices[0].finish_reason in ("stop", "length")
    assert all(piece.choices[0].finish_reason is None for piece in (first, *told[:-1]))
    assert last.choices == []
    assert last.usage is not None
    assert 1 <= last.usage.completion_tokens <= 6


def test_without_include_usage_a_stream_has_no_counts(server: Server, client: openai.OpenAI) -> None:
    pieces = list(client.completions.create(model=server.model, prompt=PROMPT, max_tokens=3, stream=True))
    assert all(len(piece.choices) == 1 for piece in pieces)
    assert all(piece.usage is None for piece in pieces)
    assert pieces[-1].choices[0].finish_reason in ("stop", "length")


@pytest.mark.parametrize(
    ("path", "content"),
    [("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": [USER]})],
)
def test_the_bytes_of_a_stream_are_events_and_end_with_done(
    server: Server, path: str, content: dict[str, Any]
) -> None:
    asked = {"model": server.model, "max_tokens": 4, "stream": True} | content
    with server.http() as web:
        response = web.post(path, json=asked)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-request-id"]
    assert response.content.endswith(b"data: [DONE]\n\n")
    *told, done = events_of(response.content)
    assert done == "[DONE]"
    assert "[DONE]" not in told
    finishes = [json.loads(event)["choices"][0]["finish_reason"] for event in told]
    assert finishes[-1] in ("stop", "length")
    assert set(finishes[:-1]) <= {None}


# Many at once


def test_the_async_client_gets_many_answers_at_once(server: Server) -> None:
    async def ask() -> tuple[list[Completion], list[ChatCompletion], str, int]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client:
            texts = [
                client.completions.create(model=server.model, prompt=f"{PROMPT} {i}", max_tokens=4)
                for i in range(4)
            ]
            chats = [
                client.chat.completions.create(model=server.model, messages=[USER], max_tokens=4, n=2)
                for _ in range(2)
            ]
            whole, spoken = await asyncio.gather(asyncio.gather(*texts), asyncio.gather(*chats))
            stream = await client.completions.create(
                model=server.model,
                prompt=PROMPT,
                max_tokens=4,
                stream=True,
                stream_options={"include_usage": True},
            )
            pieces = [piece async for piece in stream]
        streamed = "".join(piece.choices[0].text for piece in pieces[:-1])
        assert pieces[-1].usage is not None
        return whole, spoken, streamed, pieces[-1].usage.completion_tokens

    before = tokens_used(server)
    whole, spoken, streamed, counted = asyncio.run(ask())
    assert len({answer.id for answer in whole}) == 4
    assert all(len(answer.choices) == 2 for answer in spoken)
    counts = [*(answer.usage for answer in whole), *(answer.usage for answer in spoken)]
    used = sum(count.completion_tokens for count in counts if count is not None)
    assert tokens_used(server) - before == used + counted
    assert streamed


def test_the_async_client_streams_a_conversation(server: Server) -> None:
    async def ask() -> list[ChatCompletionChunk]:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=server.key, max_retries=0) as client:
            stream = await client.chat.completions.create(
                model=server.model, messages=[USER], max_tokens=5, stream=True
            )
            return [piece async for piece in stream]

    pieces = asyncio.run(ask())
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-1].choices[0].finish_reason in ("stop", "length")
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces)


# Models


def test_there_is_one_model_and_it_says_what_is_guaranteed(server: Server, client: openai.OpenAI) -> None:
    listed = client.models.list().data
    assert [model.id for model in listed] == [server.model]
    found = client.models.retrieve(server.model)
    assert found == listed[0]
    assert found.object == "model"
    said = found.model_extra or {}
    assert said["mechanism"] == "submix-guarded"
    assert said["guarantee"]["epsilon"] == 1000.0
    # What was spent of it depends on private text.
    assert not {"spent", "used", "stopped", "worst_part_used"} & set(said["guarantee"])


# Errors


def test_a_wrong_key_is_an_authentication_error(server: Server) -> None:
    with (
        openai.OpenAI(base_url=server.url, api_key="tacit-wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.completions.create(model=server.model, prompt=PROMPT)
    assert caught.value.status_code == 401
    assert caught.value.code == "invalid_api_key"
    assert "tacit-wrong" not in str(caught.value)


def test_an_unknown_model_is_not_found(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4", prompt=PROMPT)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=[USER])
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"
    assert server.model in str(caught.value)  # what to use instead


@pytest.mark.parametrize(
    ("asked", "code", "param"),
    [
        ({"logprobs": 2}, "unsupported_parameter", "logprobs"),
        ({"seed": 7}, "unsupported_parameter", "seed"),
        ({"temperature": 3.0}, "invalid_value", "temperature"),
        ({"max_tokens": 100_000}, "invalid_value", "max_tokens"),
        ({"prompt": "The baker " * 100}, "context_length_exceeded", "prompt"),
        ({"extra_body": {"min_p": 0.1}}, "unsupported_parameter", "min_p"),
    ],
)
def test_a_bad_request_names_what_is_wrong(
    server: Server, client: openai.OpenAI, asked: dict[str, Any], code: str, param: str
) -> None:
    before = tokens_used(server)
    whole: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "max_tokens": 2} | asked
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**whole)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert caught.value.type == "invalid_request_error"
    assert tokens_used(server) == before


def test_a_refused_stream_is_an_error_and_not_a_stream(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=server.model, messages=[USER], logprobs=True, stream=True)
    assert caught.value.param == "logprobs"


def test_a_used_up_quota_is_told_once_and_never_retried(
    server: Server, counted: Callable[..., tuple[openai.OpenAI, Counting]]
) -> None:
    client, transport = counted(key=new_key(server, "poor", tokens=6)["key"])
    answer = client.completions.create(model=server.model, prompt=PROMPT, max_tokens=3, n=2)
    assert answer.usage is not None
    spent = answer.usage.completion_tokens
    assert tokens_used(server, "poor") == spent
    transport.requests.clear()
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model=server.model, prompt=PROMPT, max_tokens=3, n=3)
    assert caught.value.code == "tenant_quota_exceeded"
    assert caught.value.type == "insufficient_quota"
    assert caught.value.response.headers["x-should-retry"] == "false"
    # The client would otherwise ask three times: a quota does not come back by waiting.
    assert len(transport.requests) == 1
    assert tokens_used(server, "poor") == spent


# Retries


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/v1/completions", {"prompt": PROMPT, "echo": True}),
        ("/v1/chat/completions", {"messages": [USER]}),
    ],
)
def test_the_same_idempotency_key_gives_the_same_bytes_for_nothing(
    server: Server, path: str, content: dict[str, Any], stream: bool
) -> None:
    asked: dict[str, Any] = {"model": server.model, "max_tokens": 6, "stream": stream} | content
    if stream:
        asked["stream_options"] = {"include_usage": True}
    headers = {"Idempotency-Key": f"same {path} {stream}"}
    with server.http() as web:
        before = tokens_used(server)
        first = web.post(path, json=asked, headers=headers)
        paid = tokens_used(server)
        again = web.post(path, json=asked, headers=headers)
        other = web.post(path, json=asked, headers={"Idempotency-Key": f"other {path} {stream}"})
    assert first.status_code == again.status_code == 200
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert other.content != first.content  # another request: its own id, and paid for
    assert paid > before
    counts = events_of(other.content)[-2] if stream else other.text
    assert tokens_used(server) == paid + json.loads(counts)["usage"]["completion_tokens"]


def test_a_repeated_stream_of_two_answers_tells_both_again(server: Server, client: openai.OpenAI) -> None:
    def ask() -> dict[int, tuple[str, str | None]]:
        told = client.completions.create(
            model=server.model,
            prompt=PROMPT,
            max_tokens=5,
            n=2,
            stream=True,
            extra_headers={"Idempotency-Key": "two streams"},
        )
        found: dict[int, tuple[str, str | None]] = {}
        for piece in told:
            choice = piece.choices[0]
            text, _ = found.get(choice.index, ("", None))
            found[choice.index] = (text + choice.text, choice.finish_reason)
        return found

    first = ask()
    paid = tokens_used(server)
    assert set(first) == {0, 1}
    assert ask() == first
    assert tokens_used(server) == paid


def test_a_lost_answer_is_asked_for_again_and_paid_for_once(
    server: Server, counted: Callable[..., tuple[openai.OpenAI, Counting]]
) -> None:
    client, transport = counted(lost=2)
    before = tokens_used(server)
    answer = client.completions.create(
        model=server.model, prompt=PROMPT, max_tokens=6, extra_headers={"Idempotency-Key": "lost twice"}
    )
    assert len(transport.requests) == 3
    assert answer.usage is not None
    assert tokens_used(server) - before == answer.usage.completion_tokens


def test_without_a_key_a_lost_answer_is_paid_for_again(
    server: Server, counted: Callable[..., tuple[openai.OpenAI, Counting]]
) -> None:
    # The control of the test above: that the client retries, and that only the key made it free.
    client, transport = counted(lost=1)
    before = tokens_used(server)
    answer = client.completions.create(model=server.model, prompt=PROMPT, max_tokens=6)
    assert len(transport.requests) == 2
    assert answer.usage is not None
    assert tokens_used(server) - before > answer.usage.completion_tokens


def test_another_request_with_a_used_key_is_a_conflict_and_not_retried(
    server: Server, counted: Callable[..., tuple[openai.OpenAI, Counting]]
) -> None:
    client, transport = counted()
    headers = {"Idempotency-Key": "used twice"}
    client.completions.create(model=server.model, prompt=PROMPT, max_tokens=2, extra_headers=headers)
    before = tokens_used(server)
    transport.requests.clear()
    with pytest.raises(openai.ConflictError) as caught:
        client.completions.create(model=server.model, prompt="A parcel", max_tokens=2, extra_headers=headers)
    assert caught.value.status_code == 409
    assert caught.value.code == "idempotency_key_reused"
    assert len(transport.requests) == 1
    assert tokens_used(server) == before


def test_an_idempotency_key_belongs_to_one_tenant(
    server: Server, counted: Callable[..., tuple[openai.OpenAI, Counting]]
) -> None:
    # Else one customer could ask for the answers of another.
    headers = {"Idempotency-Key": "order 66"}
    asked: dict[str, Any] = {"model": server.model, "prompt": PROMPT, "max_tokens": 3}
    mine, _ = counted()
    theirs, _ = counted(key=new_key(server, "neighbour")["key"])
    first = mine.completions.create(**asked, extra_headers=headers)
    second = theirs.completions.create(**asked, extra_headers=headers)
    assert second.id != first.id
    assert second.usage is not None
    assert tokens_used(server, "neighbour") == second.usage.completion_tokens
