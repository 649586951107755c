"""Sets of members and non-members that differ in nothing but membership, as far as that can be had.

* **Canaries**: the manifest's own coins. ``coin``: a canary is a member if its coin inserted it, else a
  non-member; the coins were tossed without regard to the text, so that the set is exchangeable. ``twin``:
  every inserted canary and its twin, which stands in the same document with another secret of the same space
  and was never inserted; pairs are exchangeable.
* **Gold spans** (CustomerSim and alike): a line that holds a secret, and the same line with every secret
  replaced by one of the same label and format that somebody else has, from *donor* dialogues that training
  never saw. Donors must come from the generator or population that the corpus comes from (for CustomerSim:
  the same plan with another seed). Then a value of one format is as likely on either side; what remains is
  that values within one corpus are distinct. These are the "random samples of similar format" of
  Confidentially Redacted Training. Run `blind` on them all the same.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.attacks.token_statistics import BoolArray
from tacit.corpus import CanaryManifest, Dialogue, Span
from tacit.errors import InputError

Design = Literal["coin", "twin", "spans"]
_RUN = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class MembershipSet:
    """Texts to score.

    secrets   what each text is about, as an id: texts with the same one are a cluster, and a look-alike is
              in the cluster of the member whose place it takes
    users     whose text each is
    design    how non-members were made
    """

    texts: tuple[str, ...] = field(repr=False)
    is_member: BoolArray = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    users: tuple[str, ...] = field(repr=False)
    design: Design

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.texts)


@dataclass(frozen=True)
class _Row:
    text: str
    is_member: bool
    secret: str
    user: str


def canary_set(manifest: CanaryManifest, *, design: Literal["coin", "twin"] = "coin") -> MembershipSet:
    """The manifest's canaries as members and non-members; both kinds must be there."""
    rows = [
        _Row(canary.text, canary.inserted, canary.id, canary.user)
        for canary in manifest.canaries
        if design == "coin" or canary.inserted
    ]
    if design == "twin":
        rows += [
            _Row(canary.twin_text, False, canary.id, canary.user)
            for canary in manifest.canaries
            if canary.inserted
        ]
    members = sum(row.is_member for row in rows)
    if not 0 < members < len(rows):
        raise InputError(
            f"{members} of {len(rows)} canaries were inserted, so that members cannot be compared with "
            "non-members; plant with include between 0 and 1, or use design='twin'."
        )
    return _set_of(rows, design)


def span_set(
    dialogues: Iterable[Dialogue],
    donors: Iterable[Dialogue],
    *,
    members: int = 1000,
    labels: Sequence[str] | None = None,
    seed: int = 0,
) -> MembershipSet:
    """Lines of training dialogues that hold a secret, and as many look-alikes.

    Args:
        dialogues: what the model was trained on.
        donors: dialogues of the same population that it was not trained on.
        members: how many lines to take, at most, each with its look-alike; drawn uniformly.
        labels: the kinds of secrets that a line must hold one of; all by default.
        seed: of the draw.
    """
    wanted = None if labels is None else frozenset(labels)
    numbers: dict[str, int] = {}  # of the values that training saw: nobody's look-alike may be one of them
    lines: list[_Line] = []
    for dialogue in dialogues:
        for span in dialogue.spans:
            numbers.setdefault(dialogue.text[span.start : span.end], len(numbers))
        lines += [line for line in _lines(dialogue) if line.key_span(wanted) is not None]
    free: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for donor in donors:
        for span in donor.spans:
            if (value := donor.text[span.start : span.end]) not in numbers:
                free[span.label, shape_of(value)][value] = None
    values = {kind: list(found) for kind, found in free.items()}
    if not lines:
        raise InputError("No line holds a gold span of these labels; give dialogues with spans.")
    draw = random.Random(seed)
    rows: list[_Row] = []
    for line in draw.sample(lines, min(members, len(lines))):
        look_alike, key = line.with_others(values, draw), line.key_span(wanted)
        if look_alike is not None and key is not None:
            secret = f"s{numbers[line.dialogue.text[key.start : key.end]]:06d}"
            rows.append(_Row(line.text, True, secret, line.dialogue.user))
            rows.append(_Row(look_alike, False, secret, line.dialogue.user))
    if not rows:
        raise InputError("The donors hold no value of any needed format; give more donor dialogues.")
    return _set_of(rows, "spans")


@dataclass(frozen=True)
class _Line:
    """One line of a dialogue with the gold spans in it, in order."""

    dialogue: Dialogue
    start: int
    end: int
    spans: tuple[Span, ...]

    @property
    def text(self) -> str:
        return self.dialogue.text[self.start : self.end]

    def key_span(self, labels: frozenset[str] | None) -> Span | None:
        """The first span of the labels: what the line is about."""
        return next((span for span in self.spans if labels is None or span.label in labels), None)

    def with_others(self, values: dict[tuple[str, str], list[str]], draw: random.Random) -> str | None:
        """The line with other values of the same formats; None where donors have none of a format."""
        pieces, at = [], self.start
        chosen: dict[str, str] = {}
        for span in self.spans:
            value = self.dialogue.text[span.start : span.end]
            if value not in chosen:
                fitting = values.get((span.label, shape_of(value)))
                if not fitting:
                    return None
                chosen[value] = draw.choice(fitting)
            pieces += [self.dialogue.text[at : span.start], chosen[value]]
            at = span.end
        return "".join(pieces) + self.dialogue.text[at : self.end]


def shape_of(value: str) -> str:
    """A value's format: digits and codes keep their length, words become one mark, the rest stays."""

    def mark(run: re.Match[str]) -> str:
        letters = run.group()
        if letters.isdigit():
            return "#" * len(letters)
        if letters.isalpha():
            # Words have many lengths; how many there are is a name's format. Capitals alone are a code.
            return "A" * len(letters) if letters.isupper() else "a"
        return "*" * len(letters)

    return _RUN.sub(mark, value)


def _lines(dialogue: Dialogue) -> list[_Line]:
    """The lines that hold spans."""
    found, start = [], 0
    for text in dialogue.text.split("\n"):
        end = start + len(text)
        spans = tuple(span for span in dialogue.spans if start <= span.start and span.end <= end)
        if spans:
            found.append(_Line(dialogue, start, end, spans))
        start = end + 1
    return found


def _set_of(rows: Sequence[_Row], design: Design) -> MembershipSet:
    return MembershipSet(
        tuple(row.text for row in rows),
        np.array([row.is_member for row in rows], dtype=np.bool_),
        tuple(row.secret for row in rows),
        tuple(row.user for row in rows),
        design,
    )
