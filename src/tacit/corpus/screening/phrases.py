"""Finding many words and phrases in text at once, as whole words: for gazetteers and for known secrets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.corpus.screening.scores import ScoredToken
from tacit.errors import InputError

_WORD = re.compile(r"\w+")


class PhraseIndex:
    """Finds every occurrence of its phrases.

    An occurrence is whole words: "Ann" is not found in "Anna", nor "123" in "1234". Where several phrases
    begin with one word of the text, the longest is given, unless every one is asked for. Memory and time
    depend on the phrases' first words, not on their number.
    """

    def __init__(self, phrases: Collection[str], *, ignore_case: bool = False) -> None:
        self.ignore_case = ignore_case
        self._by_word: dict[str, list[tuple[int, str]]] = {}
        self._without_words: list[str] = []
        self.phrases = frozenset(_lowered(phrase) if ignore_case else phrase for phrase in phrases) - {""}
        for phrase in sorted(self.phrases, key=lambda phrase: (-len(phrase), phrase)):
            word = _WORD.search(phrase)
            if word is None:
                self._without_words.append(phrase)
            else:
                self._by_word.setdefault(word.group(), []).append((word.start(), phrase))

    def find(self, text: str, *, every: bool = False) -> Iterator[tuple[int, int]]:
        """Where phrases are, in order of their first words; occurrences may overlap."""
        searched = _lowered(text) if self.ignore_case else text
        for word in _WORD.finditer(searched):
            for offset, phrase in self._by_word.get(word.group(), ()):
                start = word.start() - offset
                end = start + len(phrase)
                if start >= 0 and searched.startswith(phrase, start) and _ends_a_word(searched, end):
                    yield start, end
                    if not every:
                        break
        for phrase in self._without_words:
            start = searched.find(phrase)
            while start >= 0:
                yield start, start + len(phrase)
                start = searched.find(phrase, start + len(phrase))


def _ends_a_word(text: str, end: int) -> bool:
    return not (_is_word(text[end - 1]) and _is_word(text[end : end + 1]))


def _is_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _lowered(text: str) -> str:
    lowered = text.lower()
    # A few letters grow when they are lowered; positions must stay those of the text.
    return lowered if len(lowered) == len(text) else "".join(c.lower()[:1] for c in text)


@dataclass(frozen=True)
class Gazetteer:
    """A scorer that gives the score 1 to the words and phrases of a list."""

    label: str
    index: PhraseIndex
    contextual: bool = True  # phrases may share words: masking one can uncover that there was another

    @property
    def name(self) -> str:
        """What it is and how many entries it has."""
        return f"gazetteer {self.label}"

    @property
    def fingerprint(self) -> str:
        """A hash of the entries, and whether their case counts."""
        digest = hashlib.sha256("\n".join(sorted(self.index.phrases)).encode()).hexdigest()
        case = " ignoring case" if self.index.ignore_case else ""
        return f"gazetteer {self.label}{case} {digest[:16]}"

    @classmethod
    def read(cls, paths: Sequence[Path], label: str, *, ignore_case: bool = False) -> Gazetteer:
        """One entry per line; blank lines and those that begin with "#" are passed over."""
        phrases: set[str] = set()
        for path in paths:
            phrases.update(read_phrases(path, comments=True))
        return cls(label, PhraseIndex(phrases, ignore_case=ignore_case))

    def score(self, texts: Sequence[str]) -> list[list[ScoredToken]]:
        """Every occurrence, with the score 1."""
        return [
            [ScoredToken(start, end, self.label, 1.0) for start, end in self.index.find(t)] for t in texts
        ]


def read_phrases(path: Path, *, comments: bool = False) -> list[str]:
    """The entries of a file of words or phrases, one per line; ``comments`` are lines that begin with "#"."""
    try:
        # Not splitlines: a form feed or a Unicode separator may stand in a phrase.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as problem:
        raise InputError(
            f"{path}: cannot be read ({problem.strerror}); give a text file of phrases."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8; give a text file of phrases, one per line.") from None
    phrases = [line.strip() for line in lines if line.strip() and not (comments and line.startswith("#"))]
    if not phrases:
        raise InputError(f"{path}: holds no phrase; give a text file of phrases, one per line.")
    return phrases
