"""Turning chat messages into the one text that a model reads.

A conversation is rendered either with the model's own chat template, so that fine-tuning sees exactly
what generation will see, or plainly as ``role: content`` lines, which suits base models. What cannot be
rendered is refused with a reason that names the message's position and never its content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """What is needed of a transformers tokenizer to render a conversation."""

    # A property, so that a tokenizer whose attribute is writable or a dictionary of templates still fits.
    @property
    def chat_template(self) -> object:
        """The template, or None where the model has none."""
        ...

    def apply_chat_template(self, conversation: list[Message], *, tokenize: bool) -> object:
        """Render the conversation."""
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


def template_renderer(tokenizer: ChatTokenizer) -> Renderer:
    """Render with the tokenizer's chat template; a tokenizer that has none is refused."""
    if not tokenizer.chat_template:
        raise ModelError("The tokenizer has no chat template; render the messages with 'plain' instead.")

    def render(messages: Sequence[Message]) -> str:
        try:
            rendered = tokenizer.apply_chat_template(list(messages), tokenize=False)
        except jinja2.TemplateError:
            # The template's own words may quote the conversation, so they stay out of the message.
            raise MessagesProblem("the model's chat template refuses this sequence of messages") from None
        if not isinstance(rendered, str):
            raise ModelError("The tokenizer's chat template gave no text; render with 'plain' instead.")
        return rendered

    return render
