"""Openly licensed text that the tagger learns from beside the templates; every corpus is optional.

Each is read by path and none is copied into the project. What they do not label, such as dates in WikiGold,
is not learnt from ("?") where it may be sensitive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tools.tagger.sentences import Example, Span
from tools.tagger.values import Piece, Values, read_word_lists

_WIKIGOLD = {"PER": "PERSON", "LOC": "LOCATION", "ORG": "ORGANISATION", "MISC": "?"}
MULTIWOZ_SECRETS = {"Ref": "CODE", "Phone": "CODE", "Id": "CODE", "Post": "ADDRESS", "Addr": "ADDRESS"}
_MULTIWOZ_NAMES = {"Name": "ORGANISATION", "Dest": "LOCATION", "Depart": "LOCATION"}
_CUSTOMERSIM = {"NAME": "PERSON", "ADDRESS": "ADDRESS", "PHONE": "CODE", "ORDER": "CODE", "TRACKING": "CODE"}
_NO_SPACE_BEFORE = set(".,;:!?)%") | {"'s", "n't", "''"}


def _doubtful() -> re.Pattern[str]:
    """What only the templates label: dates, titles, groups."""
    words = read_word_lists()
    named = [
        *words["months"],
        *words["titles"],
        *words["nationalities"],
        *words["beliefs"],
        *words["faiths"],
        *words["languages"],
    ]
    either = "|".join(re.escape(word) for word in sorted(set(named), key=len, reverse=True))
    return re.compile(
        rf"(?<!\w)(?:{either})(?:s|es)?(?!\w)|\b(?:1[0-9]|20)\d\d(?:s|\b)|\b\d\d?(?:st|nd|rd|th)?\b"
    )


_DOUBTFUL = _doubtful()


def with_doubts(example: Example, pattern: re.Pattern[str] = _DOUBTFUL) -> Example:
    """Mark as not learnt from what may be sensitive and is not labelled."""
    covered = list(example.spans)
    doubts = [
        Span(found.start(), found.end(), "?")
        for found in pattern.finditer(example.text)
        if found.group()
        and not any(span.start < found.end() and found.start() < span.end for span in covered)
    ]
    return Example(example.text, tuple(sorted((*covered, *doubts), key=lambda span: span.start)))


def wikigold_sentences(path: Path) -> list[list[list[Piece]]]:
    """Read documents of sentences of tokens with labels."""
    documents: list[list[list[Piece]]] = [[]]
    sentence: list[Piece] = []
    for line in (*path.read_text(encoding="utf-8").splitlines(), ""):
        word, _, tag = line.rpartition(" ")
        if word == "-DOCSTART-":
            documents.append([])
        elif not line.strip():
            if sentence:
                documents[-1].append(sentence)
            sentence = []
        else:
            sentence.append((word, _WIKIGOLD.get(tag.partition("-")[2], "")))
    return [document for document in documents if document]


def wikigold_example(sentence: list[Piece], *, spaced: bool, values: Values | None = None) -> Example:
    """Join a sentence's tokens; with ``values``, other people, places and organisations stand in it."""
    runs: list[Piece] = []
    for token, label in sentence:
        if runs and label and runs[-1][1] == label:
            runs[-1] = (f"{runs[-1][0]} {token}", label)
        else:
            runs.append((token, label))
    if values is not None:
        fresh = {
            "PERSON": values.kinds["NAME"],
            "LOCATION": values.kinds["PLACE"],
            "ORGANISATION": values.kinds["ORG"],
        }
        runs = [
            fresh[label]()[0] if label in fresh and values.rng.random() < 0.8 else (text, label)
            for text, label in runs
        ]
    pieces: list[Piece] = []
    for text, label in runs:
        joined = pieces and (spaced or (text not in _NO_SPACE_BEFORE and pieces[-1][0] not in ("(", "``")))
        if joined:
            pieces.append((" ", ""))
        pieces.append((text, label))
    return with_doubts(Example.of(pieces))


def multiwoz_turns(path: Path) -> Iterator[tuple[str, Example, tuple[Span, ...]]]:
    """Yield dialogue, turn and its secrets; names of places that are not annotated are left open."""
    dialogues = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = {
        span["value"].lower()
        for dialogue in dialogues
        for turn in dialogue["turns"]
        for span in turn["spans"]
        if span["slot"] in (*_MULTIWOZ_NAMES, "Addr") and len(span["value"]) > 3
    }
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    open_names = re.compile(rf"(?<!\w)(?:{either})(?!\w)|\b\w*\d{{4,}}\w*\b", re.IGNORECASE)
    generic = {
        "hotel",
        "restaurant",
        "attraction",
        "guesthouse",
        "taxi",
        "train",
        "museum",
        "college",
        "park",
    }
    for dialogue in dialogues:
        for turn in dialogue["turns"]:
            text, spans, secrets, end = turn["text"], [], [], 0
            for span in sorted(turn["spans"], key=lambda found: (found["start"], -found["end"])):
                label = MULTIWOZ_SECRETS.get(span["slot"]) or _MULTIWOZ_NAMES.get(span["slot"])
                start, stop = span["start"], span["end"]
                if label is None or start >= stop:
                    continue
                if span["slot"] in MULTIWOZ_SECRETS:
                    secrets.append(Span(start, stop, span["slot"]))
                if start < end:
                    continue
                value = text[start:stop].lower()
                spans.append(
                    Span(start, stop, "?" if value in generic or value.startswith("the ") else label)
                )
                end = stop
            yield (
                dialogue["dialogue_id"],
                with_doubts(Example(text, tuple(spans)), open_names),
                tuple(secrets),
            )


def customersim_dialogues(path: Path) -> Iterator[tuple[str, Example]]:
    """Yield dialogues with their gold spans."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        spans = tuple(Span(s["start"], s["end"], _CUSTOMERSIM[s["label"]]) for s in row["spans"])
        yield row["id"], Example(row["text"], tuple(sorted(spans, key=lambda span: span.start)))


def lines_of(example: Example, most: int, rng: Random) -> Example:
    """Return up to ``most`` lines of a dialogue that follow each other."""
    breaks = [-1, *(i for i, mark in enumerate(example.text) if mark == "\n"), len(example.text)]
    first = rng.randrange(len(breaks) - 1)
    start, end = breaks[first] + 1, breaks[min(first + rng.randint(1, most), len(breaks) - 1)]
    spans = (
        Span(s.start - start, s.end - start, s.label)
        for s in example.spans
        if start <= s.start and s.end <= end
    )
    return Example(example.text[start:end], tuple(spans))


def patent_sentences(path: Path) -> list[Example]:
    """Read sentences of patent abstracts, which name nobody; odd capitals are left open."""
    capital = re.compile(r"(?<=\w )[A-Z]\w+|\b\d[\w.,]*")
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        for sentence in re.split(r"(?<=[.;]) ", json.loads(line)["abstract"] or ""):
            if 20 < len(sentence) < 400:
                found.append(with_doubts(Example(sentence, ()), capital))
    return found


def wikitext_sentences(path: Path) -> list[str]:
    """Read sentences of Wikitext-2, with its tokenisation undone; those with unknown words are left out."""
    text = path.read_text(encoding="utf-8").replace(" @-@ ", "-").replace(" @,@ ", ",").replace(" @.@ ", ".")
    sentences = []
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("="):
            for sentence in re.split(r"(?<= [.?!]) ", line):
                if 15 < len(sentence) < 500 and "<unk>" not in sentence:
                    sentences.append(re.sub(r" ([.,;:!?)%]|'s\b|n't\b)", r"\1", sentence).replace("( ", "("))
    return sentences
