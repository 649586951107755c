"""The corpus that a recipe names: read, rendered, and cut in blocks where it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from tacit.corpus.chat import ChatTokenizer, Renderer, TemplateRenderer, render_plainly
from tacit.corpus.screened_corpus import is_screened
from tacit.corpus.screening.binding import report_of
from tacit.corpus.sources import CorpusSource
from tacit.corpus.user_corpus import BlockTokenizer, UserCorpus
from tacit.progress import Progress
from tacit.recipes import CorpusSection


class CorpusTokenizer(ChatTokenizer, BlockTokenizer, Protocol):
    """A public tokenizer."""


def needs_tokenizer(section: CorpusSection) -> bool:
    """Whether reading this corpus takes a tokenizer: for a chat template, or for blocks of tokens."""
    return section.blocks is not None or (section.messages is not None and section.chat == "template")


def source_of(section: CorpusSection) -> CorpusSource:
    """Where a recipe's corpus is, and which column holds what."""
    return CorpusSource(
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


def read_corpus(
    section: CorpusSection,
    tokenizer: CorpusTokenizer | None,
    progress: Progress,
    *,
    storage: Path | None = None,
) -> UserCorpus:
    """Read a corpus; ``tokenizer`` may be None where ``needs_tokenizer`` says that none is needed.

    The temporary copy of the text lies in ``storage``, an existing folder, or in the system's folder for
    temporary files. Whoever renames or removes ``storage`` has to ``close`` the corpus before.
    """
    screened = is_screened(section)
    if screened:
        report_of(Path(section.path))  # refuses points that were changed since they were screened
        section = section.model_copy(
            update={"user": section.user or "user", "text": section.text or "text", "format": "jsonl"}
        )
    render: Renderer = render_plainly
    if section.messages is not None and section.chat == "template" and tokenizer is not None:
        render = TemplateRenderer(tokenizer)
    progress.phase("reading the corpus", None)
    corpus = UserCorpus.read(
        source_of(section),
        render=render,
        skip_bad=section.skip_bad,
        without_users=section.blocks is not None,
        screened=screened,
        progress=progress.advance,
        storage=storage,
    )
    if corpus.skipped:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in corpus.skipped.items())
        progress.remark(f"skipped {sum(corpus.skipped.values())} bad rows: {reasons}")
    if section.blocks is not None and tokenizer is not None:
        corpus = corpus.in_blocks(tokenizer, section.blocks, storage=storage)
    return corpus
