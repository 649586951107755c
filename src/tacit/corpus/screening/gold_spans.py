"""Spans that come with the documents, and a policy that misses a stated share of them.

A corpus may say itself where its secrets are: CustomerSim's ``spans``, an annotator's labels. Taken as they
are they make a perfect policy; with a miss rate, pi drops each of them by a coin of its own. Every figure of
an attack against gamma rests on this policy, because its gamma is known and not estimated.

A span's coin is decided by the seed, the document's number, the label, the value and how often the value
came before it in the document: masking one secret moves no other secret's coin. The coins of pi_c are the
same ones with a lower bar, so that pi_c misses only what pi misses.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tacit.corpus.limits import require_seed, require_share
from tacit.corpus.screening.masks import LabelledSpan
from tacit.errors import CorpusError

_COIN_BITS = 64


@dataclass(frozen=True)
class GoldSpans:
    """Which spans of a document are taken, and which share of them pi and pi_c miss.

    ``column`` holds a list of ``{"start", "end", "label"}`` (or ``[start, end, label]``); ``labels`` limits
    it to some kinds.
    """

    column: str = "spans"
    labels: Collection[str] | None = None
    miss_rate: float = 0.0
    conservative_miss_rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_share("miss_rate", self.miss_rate, "the share of spans that pi misses", example=0.1)
        require_share(
            "conservative_miss_rate",
            self.conservative_miss_rate,
            "the share of spans that pi_c misses, at most miss_rate",
            most=self.miss_rate,
            example=0.0,
        )
        require_seed("seed", self.seed)

    @property
    def fingerprint(self) -> str:
        """Everything that decides which spans are labelled."""
        labels = "all" if self.labels is None else ",".join(sorted(self.labels))
        rates = f"{self.miss_rate:g}/{self.conservative_miss_rate:g}"
        return f"spans {self.column} {labels} miss {rates} seed {self.seed}"

    def labelled(self, text: str, spans: Sequence[LabelledSpan], document: int) -> LabelledByGold:
        """What pi and pi_c label of a document's spans."""
        wanted = [span for span in sorted(spans) if self.labels is None or span.label in self.labels]
        seen: Counter[tuple[str, str]] = Counter()
        redact, conservative = [], []
        for span in wanted:
            thing = (span.label, text[span.start : span.end])
            coin = self._coin(document, *thing, seen[thing])
            seen[thing] += 1
            if coin >= self.miss_rate:
                redact.append(span)
            if coin >= self.conservative_miss_rate:
                conservative.append(span)
        return LabelledByGold(redact, conservative)

    def _coin(self, document: int, label: str, value: str, occurrence: int) -> float:
        if self.miss_rate == 0:
            return 1.0
        content = json.dumps([self.seed, document, label, value, occurrence]).encode()
        digest = hashlib.blake2b(content, digest_size=_COIN_BITS // 8).digest()
        return int.from_bytes(digest) / 2.0**_COIN_BITS


class LabelledByGold(NamedTuple):
    """The spans that pi labels, and those that pi_c labels, which include them."""

    redact: list[LabelledSpan]
    conservative: list[LabelledSpan]


def read_spans(record: Mapping[str, Any] | None, column: str, text: str, where: str) -> list[LabelledSpan]:
    """The spans of a row, each of which must lie in its text and, where it says its value, have it there."""
    if record is None or column not in record:
        have = "rows of this format carry no other columns" if record is None else "the row has none"
        raise CorpusError(
            f"{where}: there is no column '{column}' with spans ({have}); use JSONL, or correct the name."
        )
    content = record[column]
    if isinstance(content, str):
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            content = None
    if not isinstance(content, list):
        raise CorpusError(
            f"{where}: column '{column}' is no list of spans; expected [{{start, end, label}}, ...]."
        )
    return [_span(item, number, text, where) for number, item in enumerate(content, 1)]


def _span(item: Any, number: int, text: str, where: str) -> LabelledSpan:
    fields: tuple[Any, ...] = (None, None, None)
    if isinstance(item, Mapping):
        fields = (item.get("start"), item.get("end"), item.get("label"))
    elif isinstance(item, list | tuple) and len(item) == len(fields):
        fields = tuple(item)
    start, end, label = fields
    if not (_is_place(start) and _is_place(end) and isinstance(label, str) and label):
        raise CorpusError(
            f"{where}: span {number} is not {{start, end, label}} with whole numbers; correct it."
        )
    if not 0 <= start < end <= len(text):
        raise CorpusError(
            f"{where}: span {number} ({start} to {end}) does not match the text, which has {len(text)} "
            "characters; count in characters from 0, and give the end after the last one."
        )
    for name in ("value", "text"):
        # A span that says what it covers must cover it: else labels are measured that are not the text's.
        value = item.get(name) if isinstance(item, Mapping) else None
        if value is not None and value != text[start:end]:
            raise CorpusError(
                f"{where}: span {number} ({start} to {end}) does not match the text: its '{name}' is "
                f"another; count in characters, or leave '{name}' out."
            )
    return LabelledSpan(start, end, label)


def _is_place(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
