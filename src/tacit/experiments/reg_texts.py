"""Privacy regularisation's corpora: who wrote what, with canaries of the corpus's own words planted.

speakers      Shakespeare's speakers, some of those with enough speeches; every speech a document
customersim   simulated dialogues, written here; users with little and with much text
avocado       the Avocado collection as the LDC gives it (`corpus/published_texts.py`)
reddit        the Webis TLDR corpus, one line of JSON for each post

Ground is what all Runs of a corpus and a seed stand on: the planted text, the canaries' manifest, and an
untrained LSTM with the corpus's words. The corpus's text is the same for all seeds; the canaries, where they
stand, and the first weights are the seed's.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tacit.corpus import CanaryManifest, CanaryPlan, SimulationPlan, draw_canaries, read_corpus, write_planted
from tacit.corpus import simulate as simulated
from tacit.corpus.published_texts import TextLayout, published_texts
from tacit.experiments.stages import Workshop, text_mark
from tacit.models.tokenizer import load_tokenizer
from tacit.models.vocabulary import LSTMShape, build_word_tokenizer, create_lstm
from tacit.models.words import whole_words
from tacit.recipes import CorpusSection

USER, TEXT = "user", "text"
_DOCUMENTS, _PLANTED, _MANIFEST, _MODEL = "documents.jsonl", "planted.jsonl", "canaries.json", "lstm"
Row = dict[str, str]


@dataclass(frozen=True)
class Ground:
    """What all Runs of one corpus and seed stand on; ``documents`` without the planted ones."""

    folder: Path
    documents: int
    manifest: CanaryManifest = field(repr=False)

    @property
    def model(self) -> Path:
        """The untrained model."""
        return self.folder / _MODEL

    @property
    def corpus(self) -> Path:
        """The text with its canaries."""
        return self.folder / _PLANTED


def text_of(workshop: Workshop, corpus: Mapping[str, Any]) -> str | None:
    """What a corpus's text is known by; None where it is simulated, or not there yet to be known."""
    name = corpus.get("text")
    if name is None or workshop.data is None or not (workshop.data / name).exists():
        return None
    path = workshop.data / name
    if path.is_file():
        return text_mark(path)
    # Gigabytes of mail are not read for a plan: names and sizes tell one release from another.
    return json.dumps([[one.name, one.stat().st_size] for one in sorted(path.glob("*.zip"))])


def ground_of(workshop: Workshop, settings: Mapping[str, Any], corpus: str, seed: int) -> Ground:
    """The ground of a corpus and a seed, made where it is not there yet."""
    chosen = settings["corpora"][corpus]
    key = {
        "corpus": chosen,
        "text": text_of(workshop, chosen),
        "ladder": chosen.get("ladder", settings["ladder"]),
        "model": settings["model"],
        "seed": seed,
    }

    def make(folder: Path) -> None:
        _write_rows(folder / _DOCUMENTS, _rows(workshop, chosen))
        _create_model(folder, settings["model"], seed)
        _plant(workshop, folder, key["ladder"], seed)

    folder = workshop.made_folder(f"reg-{corpus}-{seed}", key, make)
    manifest = CanaryManifest.load(folder / _MANIFEST)
    return Ground(folder, manifest.cost.corpus_documents, manifest)


def _write_rows(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8") as handle:
        handle.writelines(json.dumps(row) + "\n" for row in rows)


def _read_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as handle:
        yield from map(json.loads, handle)


def _create_model(folder: Path, model: Mapping[str, Any], seed: int) -> None:
    """A model without any training, whose words are the corpus's, as in the paper."""
    words = build_word_tokenizer((row[TEXT] for row in _read_rows(folder / _DOCUMENTS)), model["vocabulary"])
    shape = LSTMShape(
        layers=model["layers"],
        hidden_size=model["hidden"],
        embedding_size=model["hidden"],
        tied=model["tied"],
    )
    create_lstm(folder / _MODEL, shape=shape, tokenizer=words, vocabulary="private", seed=seed)


def _plant(workshop: Workshop, folder: Path, ladder: Iterable[int], seed: int) -> None:
    """Canaries of five words for every user, nothing but the words, as in the paper."""
    section = CorpusSection(path=str(folder / _DOCUMENTS), user=USER, text=TEXT)
    tokenizer = load_tokenizer(str(folder / _MODEL))
    corpus = read_corpus(section, tokenizer, workshop.progress)
    try:
        plan = CanaryPlan(
            # The model's words know that a space stands before them.
            template=" {secret}",
            secret="words",  # noqa: S106 - the kind of secret, not one
            length=5,
            prefix="shared",
            users=len(corpus.users),
            ladder=tuple(ladder),
            include=1.0,
            seed=seed,
        )
        manifest = draw_canaries(
            plan,
            corpus.users,
            documents=len(corpus),
            characters=sum(len(document.text) for document in corpus.documents()),
            words=whole_words(tokenizer),
            token_count=lambda text: len(tokenizer.encode([text])[0]),
        )
    finally:
        corpus.close()
    manifest.save(folder / _MANIFEST)
    write_planted(folder / _PLANTED, section, manifest)


def _rows(workshop: Workshop, corpus: Mapping[str, Any]) -> Iterable[Row]:
    return _KINDS[corpus["kind"]](workshop, corpus)


def _speakers(workshop: Workshop, corpus: Mapping[str, Any]) -> Iterable[Row]:
    """Speeches begin with "NAME:" and end with an empty line; in the order of the text."""
    blocks = re.split(r"\n\n+", workshop.text(corpus["text"]).read_text(encoding="utf-8"))
    found = [match for block in blocks if (match := re.match(r"([A-Z][^\n:]*):\n(.+)", block, re.DOTALL))]
    counts = Counter(match[1] for match in found)
    enough = sorted(name for name, count in counts.items() if count >= corpus["fewest"])
    chosen = set(random.Random(0).sample(enough, corpus["users"]))
    return [{USER: match[1], TEXT: " ".join(match[2].split())} for match in found if match[1] in chosen]


def _customersim(_: Workshop, corpus: Mapping[str, Any]) -> Iterator[Row]:
    """As many users with few dialogues as with many: who has little text and who has much must differ."""
    for dialogues in corpus["dialogues"]:
        plan = SimulationPlan(users=corpus["users"], dialogues_per_user=dialogues, seed=dialogues)
        yield from ({USER: f"{one.user}-{dialogues}", TEXT: one.text} for one in simulated(plan))


def _published(layout: TextLayout, workshop: Workshop, corpus: Mapping[str, Any]) -> Iterator[Row]:
    source = workshop.text(corpus["text"])

    def rows() -> Iterator[Row]:
        for user, text in published_texts(layout, source):
            yield {USER: user, TEXT: " ".join(text.split())}

    return _of_most_frequent(rows, corpus)


def _of_most_frequent(rows: Callable[[], Iterator[Row]], corpus: Mapping[str, Any]) -> Iterator[Row]:
    """The first documents of the authors who wrote most; the text is read twice and never held."""
    counts = Counter(row[USER] for row in rows())
    chosen = {name for name, _ in counts.most_common(corpus["users"])}
    left = corpus["documents"]
    for row in rows():
        if row[USER] in chosen and left:
            left -= 1
            yield row


_KINDS: Final[Mapping[str, Callable[[Workshop, Mapping[str, Any]], Iterable[Row]]]] = {
    "speakers": _speakers,
    "customersim": _customersim,
    "avocado": partial(_published, "avocado"),
    "reddit": partial(_published, "reddit"),
}
