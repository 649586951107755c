"""Random codes as secrets: the users and documents of SubMix's extraction experiment (section 4.2).

Each of m users has one document, ``My number is: <l digits>``. Codes are uniform over the 10^l strings,
leading zeros included, and distinct, so that a generated code names one user. With m = 2k users dealt evenly
over k parts, every half holds exactly one code, which its member memorises.
"""

from __future__ import annotations

import json
import random
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tacit.corpus.limits import require_seed
from tacit.errors import InputError
from tacit.files import new_file

PROMPT: Final = "My number is:"
FEWEST_DIGITS: Final = 2
MOST_DIGITS: Final = 5
_DOCUMENT = re.compile(rf"{re.escape(PROMPT)} ([0-9]{{{FEWEST_DIGITS},{MOST_DIGITS}}})")


@dataclass(frozen=True)
class Codes:
    """The secret codes, in the order of their users; they are not shown when this is printed."""

    digits: int
    values: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_size(self.digits, len(self.values))
        if len(set(self.values)) < len(self.values) or any(
            not (value.isascii() and value.isdigit() and len(value) == self.digits) for value in self.values
        ):
            raise InputError(f"The codes must be distinct and of {self.digits} digits each.")

    @classmethod
    def draw(cls, digits: int, number: int, seed: int | None = None) -> Self:
        """Draw distinct codes uniformly; without a seed by the operating system's generator."""
        _check_size(digits, number)
        if seed is not None:
            require_seed("seed", seed)
        draw: random.Random = secrets.SystemRandom() if seed is None else random.Random(seed)
        # A sample without replacement is in random order: which user has which code is uniform, too.
        drawn = draw.sample(range(10**digits), number)
        return cls(digits, tuple(f"{value:0{digits}d}" for value in drawn))

    @classmethod
    def of_documents(cls, documents: Iterable[str]) -> Self:
        """The codes of documents of the form ``My number is: <digits>``; anything else is refused."""
        found = [_DOCUMENT.fullmatch(document) for document in documents]
        matches = [match for match in found if match is not None]
        if len(matches) < len(found) or not found:
            raise InputError(
                f"The corpus is not one of codes: every document must read '{PROMPT} <{FEWEST_DIGITS} to "
                f"{MOST_DIGITS} digits>'; train on the corpus that this attack writes."
            )
        values = tuple(match.group(1) for match in matches)
        return cls(len(values[0]), values)

    @property
    def space(self) -> int:
        """How many codes there are of this length."""
        return int(10**self.digits)

    @property
    def chance(self) -> float:
        """Hit rate of somebody who writes uniform codes without any model: m / 10^l."""
        return len(self.values) / self.space

    @property
    def candidates(self) -> int:
        """Values that one code can have for somebody who knows all others: distinct codes leave fewer."""
        return self.space - len(self.values) + 1

    @property
    def documents(self) -> list[str]:
        """One document per user."""
        return [f"{PROMPT} {value}" for value in self.values]

    def write(self, path: Path) -> None:
        """Write the corpus as JSON lines with the columns user and text, for its owner alone."""
        rows = [{"user": f"user-{number:04d}", "text": text} for number, text in enumerate(self.documents)]
        with new_file(path, private=True) as handle:
            handle.write("".join(json.dumps(row) + "\n" for row in rows).encode())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a corpus that :meth:`write` wrote."""
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            texts = [str(row["text"]) for row in rows]
        except (OSError, ValueError, KeyError, TypeError):
            raise InputError(
                f"{path} cannot be read as a corpus of codes; remove it and begin again."
            ) from None
        return cls.of_documents(texts)


def _check_size(digits: int, number: int) -> None:
    if not FEWEST_DIGITS <= digits <= MOST_DIGITS:
        raise InputError(f"Expected digits={digits} from {FEWEST_DIGITS} to {MOST_DIGITS}, as in the paper.")
    most = 10**digits // 2
    if not 1 <= number <= most:
        # With more, guessing blindly hits every other time, and there is nothing left to extract.
        raise InputError(f"Expected codes={number} from 1 to {most:,}, half of all codes of {digits} digits.")
