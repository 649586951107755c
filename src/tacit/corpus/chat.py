"""Turning chat messages into the one text that a model reads.

A conversation is rendered either with the model's own chat template, so that fine-tuning sees exactly
what generation will see, or plainly as ``role: content`` lines, which suits base models. What cannot be
rendered is refused with a reason that names the message's position and never its content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

import jinja2

from tacit.errors import CorpusError, ModelError


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


Renderer = Callable[[Sequence[Message]], str]


class MessagesProblem(CorpusError):
    """Chat messages that cannot be rendered; says which message, never what it contains."""


class ChatTokenizer(Protocol):
    """What is needed of a public tokenizer to render a conversation."""

    @property
    def fingerprint(self) -> str:
        """Tells one tokenizer from another."""
        ...

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        ...

    def render_chat(self, messages: Sequence[Message]) -> str:
        """Render the conversation so that no message can forge a control token."""
        ...


def checked_messages(value: object) -> list[Message]:
    """Validate ``[{"role": ..., "content": ...}, ...]``; keys other than these two are left out."""
    if not isinstance(value, list) or not value:
        raise MessagesProblem("the messages are not a list with at least one message")
    messages: list[Message] = []
    for position, item in enumerate(value, 1):
        if not isinstance(item, dict):
            raise MessagesProblem(f"message {position} is not an object with 'role' and 'content'")
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or not role:
            raise MessagesProblem(f"message {position} has no 'role' that is a non-empty string")
        if not isinstance(content, str):
            raise MessagesProblem(f"message {position} has no 'content' that is a string")
        messages.append({"role": role, "content": content})
    return messages


def render_plainly(messages: Sequence[Message]) -> str:
    """Render as one ``role: content`` line per message."""
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


@dataclass(frozen=True)
class TemplateRenderer:
    """Render with the tokenizer's chat template; a tokenizer that has none is refused.

    The text it writes holds control tokens, spelled out, and is to be encoded by the same tokenizer only.
    """

    tokenizer: ChatTokenizer

    def __post_init__(self) -> None:
        if not self.tokenizer.has_chat_template:
            raise ModelError("The tokenizer has no chat template; render the messages with 'plain' instead.")

    def __call__(self, messages: Sequence[Message]) -> str:
        """The conversation as one text."""
        try:
            return self.tokenizer.render_chat(messages)
        except jinja2.TemplateError:
            # The template's own words may quote the conversation, so they stay out of the message.
            raise MessagesProblem("the model's chat template refuses this sequence of messages") from None
