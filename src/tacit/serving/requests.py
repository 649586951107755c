"""What a client may ask for, field by field; what is refused says why.

Nothing is ignored in silence, except ``user`` and ``metadata``, which ask for nothing. Fields that would
publish a distribution, fix the randomness or pick the likeliest answer are refused because no charge covers
them; decoding settings are allowed because they are applied to every model before anything is mixed.

Lists stop at their first wrong item and objects have few fields: an error for each of a hundred thousand
items would keep everybody waiting.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tacit.mechanisms import Decoding
from tacit.serving.problems import invalid, unsupported

_DISTRIBUTION = "it would publish a private distribution, which no charge covers"
_LATER = "this service does not have it"
_STEERING = "it steers single tokens, which makes extraction easier"
# Why each field is refused.
REFUSED: dict[str, str] = {
    "logprobs": _DISTRIBUTION,
    "top_logprobs": _DISTRIBUTION,
    "prompt_logprobs": _DISTRIBUTION,
    "logprob_token_ids": _DISTRIBUTION,
    "return_tokens_as_token_ids": _DISTRIBUTION,
    "seed": "known randomness would make the answer a function of private distributions",
    "best_of": "it ranks answers by their private likelihood",
    "use_beam_search": "it picks the likeliest answer, which no charge covers",
    "logit_bias": _STEERING,
    "allowed_token_ids": _STEERING,
    "bad_words": _STEERING,
    "suffix": _LATER,
    "tools": _LATER,
    "tool_choice": _LATER,
    "functions": _LATER,
    "function_call": _LATER,
    "response_format": _LATER,
}
# Values that ask for nothing, which some clients send by default. Compared with their types: 0 is not False.
_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "best_of": (1,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
}

_MOST_FIELDS = 64
_MOST_METADATA = 16

Temperature = Annotated[float, Field(ge=0.5, le=1.5)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]
StopString = Annotated[str, Field(min_length=1, max_length=200)]
TokenId = Annotated[int, Field(ge=0)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class Strict(BaseModel):
    """An object with the fields that it has and no others, and no value that is nearly of its type."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, content: Any) -> Any:
        if isinstance(content, dict) and len(content) > _MOST_FIELDS:
            raise invalid(f"An object in a request has at most {_MOST_FIELDS} fields; send fewer.")
        return content


class StreamOptions(Strict):
    """What a stream shall hold beside the text."""

    include_usage: bool = False


class Asking(Strict):
    """What both endpoints have in common."""

    model: str = Field(max_length=200)
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    n: int | None = Field(default=None, ge=1, le=128)
    temperature: Temperature | None = None
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1)
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: float | None = Field(default=None, ge=0.5, le=2)
    stop: StopString | Annotated[list[StopString], Field(max_length=4, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=16, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: Annotated[dict[str, str], Field(max_length=_MOST_METADATA)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, content: Any) -> Any:
        if not isinstance(content, dict):
            return content
        for name, why in REFUSED.items():
            value = content.get(name)
            harmless = _ASKS_NOTHING.get(name, ())
            if value is not None and not any(_same(value, nothing) for nothing in harmless):
                raise unsupported(name, why)
        if (temperature := content.get("temperature")) in (0, 0.0) and temperature is not False:
            raise unsupported("temperature", "at 0 it picks the likeliest token; use 0.5 to 1.5")
        metadata = content.get("metadata")
        if isinstance(metadata, dict) and len(metadata) > _MOST_METADATA:  # before its values are looked at
            raise invalid(f"metadata has at most {_MOST_METADATA} keys; send fewer.", "metadata")
        return {name: value for name, value in content.items() if name not in REFUSED}

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return 1 if self.n is None else self.n

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Where an answer ends."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def decoding(self) -> Decoding:
        """What is done to every model's distribution before mixing."""
        return Decoding(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=None if self.top_p == 1 else self.top_p,
            top_k=self.top_k,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
        )

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(Asking):
    """``/v1/completions``."""

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=16, fail_fast=True)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=16, fail_fast=True)]
    )
    echo: bool | None = None


class TextPart(Strict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=64, fail_fast=True)]

    @property
    def text(self) -> str:
        """What it says."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(Asking):
    """``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256, fail_fast=True)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _one_length(self) -> ChatRequest:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise invalid(
                "max_tokens and max_completion_tokens are the same; give one of them.",
                "max_completion_tokens",
            )
        return self


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other
