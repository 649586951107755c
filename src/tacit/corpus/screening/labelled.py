"""Labelled documents, to measure what a policy misses: JSON lines with a text and its secrets' spans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tacit.corpus.screening.gold_spans import read_spans
from tacit.corpus.screening.masks import LabelledSpan
from tacit.errors import CorpusError


@dataclass(frozen=True)
class LabelledDocument:
    """A text and its secrets; ``half`` is 0 or 1 by a hash of the text, so that equal texts share one."""

    text: str
    spans: tuple[LabelledSpan, ...]
    half: int


def read_labelled(
    path: Path, *, text: str = "text", spans: str = "spans", labels: Collection[str] | None = None
) -> list[LabelledDocument]:
    """Every document of a file of JSON lines; a span that does not match its text is refused."""
    documents = list(_read(path, text, spans, labels))
    if not any(document.spans for document in documents):
        kinds = "" if labels is None else f" with the labels {', '.join(sorted(labels))}"
        raise CorpusError(f"{path}: has no span{kinds}, so nothing can be missed; give labelled documents.")
    return documents


def _read(path: Path, text: str, spans: str, labels: Collection[str] | None) -> Iterator[LabelledDocument]:
    remedy = f"give JSON lines with '{text}' and '{spans}'"
    try:
        lines = path.read_bytes().splitlines()
    except OSError as problem:
        raise CorpusError(f"{path}: cannot be read ({problem.strerror}); {remedy}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise CorpusError(f"{where}: is not JSON; {remedy}.") from None
        content = record.get(text) if isinstance(record, dict) else None
        if not isinstance(content, str):
            raise CorpusError(f"{where}: has no text '{text}'; {remedy}.")
        try:
            spelt = content.encode()
        except UnicodeEncodeError:
            raise CorpusError(
                f"{where}: '{text}' has half a surrogate pair, which is no character; correct it."
            ) from None
        found = read_spans(record, spans, content, where)
        wanted = tuple(span for span in found if labels is None or span.label in labels)
        half = hashlib.blake2b(spelt, digest_size=1).digest()[0] & 1
        yield LabelledDocument(content, wanted, half)
