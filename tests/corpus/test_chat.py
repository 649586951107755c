"""Conversations are rendered with the model's template or plainly, and refused where that is impossible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from tacit.corpus import CorpusSource, UserCorpus, render_plainly, template_renderer
from tacit.corpus.chat import Message, MessagesProblem, checked_messages
from tacit.errors import CorpusError, ModelError

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'wizard' %}{{ raise_exception('bad: ' + message.content) }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}</>"
    "{% endfor %}"
)
TURNS: list[Message] = [{"role": "user", "content": "Hi\nthere"}, {"role": "assistant", "content": "Hello"}]


@pytest.fixture
def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))


def test_plain_rendering() -> None:
    assert render_plainly(TURNS) == "user: Hi\nthere\nassistant: Hello"


def test_template_rendering(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE
    assert template_renderer(tokenizer)(TURNS) == "<user>Hi\nthere</><assistant>Hello</>"


def test_tokenizer_without_template_is_refused_with_the_remedy(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match="'plain'"):
        template_renderer(tokenizer)


def test_template_that_refuses_never_quotes_the_conversation(tokenizer: Any) -> None:
    tokenizer.chat_template = TEMPLATE
    with pytest.raises(MessagesProblem) as caught:
        template_renderer(tokenizer)([{"role": "wizard", "content": "hunter2"}])
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_conversation_that_the_template_refuses_is_a_bad_row(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.chat_template = TEMPLATE
    path = tmp_path / "chat.jsonl"
    rows = [{"u": "ann", "m": TURNS}, {"u": "bob", "m": [{"role": "wizard", "content": "hunter2"}]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = CorpusSource(str(path), user="u", messages="m")
    with pytest.raises(
        CorpusError, match=r"chat\.jsonl, line 2: the model's chat template refuses"
    ) as caught:
        UserCorpus.read(source, render=template_renderer(tokenizer))
    assert "hunter2" not in str(caught.value)
    corpus = UserCorpus.read(source, render=template_renderer(tokenizer), skip_bad=True)
    assert [document.text for document in corpus.documents()] == ["<user>Hi\nthere</><assistant>Hello</>"]
    assert corpus.skipped == {"bad messages": 1}


def test_only_role_and_content_are_taken() -> None:
    assert checked_messages([{"role": "user", "content": "", "name": "x"}]) == [
        {"role": "user", "content": ""}
    ]


@pytest.mark.parametrize(
    "value", [None, {}, [], "x", [1], [{}], [{"role": 1, "content": "x"}], [{"role": "a"}]]
)
def test_what_is_no_conversation_is_refused(value: object) -> None:
    with pytest.raises(MessagesProblem):
        checked_messages(value)
