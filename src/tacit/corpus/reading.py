"""The corpus that a recipe names: read, rendered, and cut in blocks where it says so."""

from __future__ import annotations

from typing import Protocol

from tacit.corpus.chat import ChatTokenizer, Renderer, TemplateRenderer, render_plainly
from tacit.corpus.sources import CorpusSource
from tacit.corpus.user_corpus import BlockTokenizer, UserCorpus
from tacit.progress import Progress
from tacit.recipes import CorpusSection


class CorpusTokenizer(ChatTokenizer, BlockTokenizer, Protocol):
    """A public tokenizer."""


def needs_tokenizer(section: CorpusSection) -> bool:
    """Whether reading this corpus takes a tokenizer: for a chat template, or for blocks of tokens."""
    return section.blocks is not None or (section.messages is not None and section.chat == "template")


def read_corpus(section: CorpusSection, tokenizer: CorpusTokenizer | None, progress: Progress) -> UserCorpus:
    """Read a corpus; ``tokenizer`` may be None where ``needs_tokenizer`` says that none is needed."""
    source = CorpusSource(
        path=section.path,
        format=section.format,
        user=section.user,
        text=section.text,
        messages=section.messages,
        document=section.document,
        config=section.config,
        split=section.split,
        revision=section.revision,
    )
    render: Renderer = render_plainly
    if section.messages is not None and section.chat == "template" and tokenizer is not None:
        render = TemplateRenderer(tokenizer)
    progress.phase("reading the corpus", None)
    corpus = UserCorpus.read(
        source,
        render=render,
        skip_bad=section.skip_bad,
        without_users=section.blocks is not None,
        progress=progress.advance,
    )
    if corpus.skipped:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in corpus.skipped.items())
        progress.remark(f"skipped {sum(corpus.skipped.values())} bad rows: {reasons}")
    if section.blocks is not None and tokenizer is not None:
        corpus = corpus.in_blocks(tokenizer, section.blocks)
    return corpus
