"""Sets of members and non-members that differ in nothing but membership, as far as that can be had.

* **Canaries**: the manifest's own coins. ``coin``: a canary is a member if its coin inserted it, else a
  non-member; the coins were tossed without regard to the text, so that the set is exchangeable. ``twin``:
  every inserted canary and its twin, which stands in the same document with another secret of the same space
  and was never inserted; pairs are exchangeable.
* **Gold spans** (CustomerSim and alike): a line that holds a secret, and the same line with every secret
  replaced by one of the same label and format that somebody else has, from *donor* dialogues that training
  never saw. Donors must come from the generator or population that the corpus comes from: its held-out
  users, or for CustomerSim the same plan with another seed. A secret has one look-alike, wherever it stands,
  and no two have the same. So swapping secrets with their look-alikes, all lines of linked secrets at once,
  changes nothing for a model that saw neither: that is what p-values rest on. These are the "random samples
  of similar format" of Confidentially Redacted Training. Run `blind` on them all the same.
* **Documents**: one of each user, trained on or held out by a split that never looked at the text.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.attacks.token_statistics import BoolArray, IntArray
from tacit.corpus import CanaryManifest, Dialogue, Span
from tacit.errors import InputError

Design = Literal["coin", "twin", "spans", "documents"]
_Kind = tuple[str, str]  # a label and a format
_RUN = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class MembershipSet:
    """Texts to score.

    secrets   what each text is about, as an id: texts with the same one are a cluster, and a look-alike is
              in the cluster of the member whose place it takes. Lines that share a secret with a third are
              one cluster
    users     whose text each is
    design    how non-members were made
    partners  where non-members are look-alikes: for each text the number of the one that it stands for
    """

    texts: tuple[str, ...] = field(repr=False)
    is_member: BoolArray = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    users: tuple[str, ...] = field(repr=False)
    design: Design
    partners: IntArray | None = field(default=None, repr=False)

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
    swapped = None if design == "coin" else np.roll(np.arange(len(rows)), members)
    if not 0 < members < len(rows):
        raise InputError(
            f"{members} of {len(rows)} canaries were inserted, so that members cannot be compared with "
            "non-members; plant with include between 0 and 1, or use design='twin'."
        )
    return _set_of(rows, design, swapped)


def document_set(members: Sequence[tuple[str, str]], others: Sequence[tuple[str, str]]) -> MembershipSet:
    """From (user, text) of training documents and of held-out ones; every user once."""
    rows = [_Row(text, True, user, user) for user, text in members]
    rows += [_Row(text, False, user, user) for user, text in others]
    if len({row.user for row in rows}) < len(rows):
        raise InputError("Expected one document of each user: texts of one person are alike.")
    return _set_of(rows, "documents", None)


def span_set(
    dialogues: Iterable[Dialogue],
    donors: Iterable[Dialogue],
    *,
    members: int = 1000,
    labels: Sequence[str] | None = None,
    seed: int = 0,
) -> MembershipSet:
    """Lines of training dialogues that hold a secret, and as many look-alikes; a line and its own in turn.

    Args:
        dialogues: what the model was trained on.
        donors: dialogues of the same population that it was not trained on.
        members: how many lines to take, at most, each with its look-alike; drawn uniformly among those for
            which donors have values that nobody else has taken.
        labels: the kinds of secrets that a line must hold one of; all by default.
        seed: of the draw.
    """
    wanted = None if labels is None else frozenset(labels)
    seen: dict[str, None] = {}  # the values that training saw: nobody's look-alike may be one of them
    lines: list[_Line] = []
    for dialogue in dialogues:
        seen.update((dialogue.text[span.start : span.end], None) for span in dialogue.spans)
        lines += [line for line in _lines(dialogue) if line.holds(wanted)]
    if not lines:
        raise InputError("No line holds a gold span of these labels; give dialogues with spans.")
    draw = random.Random(seed)
    others = _Others(donors, seen, draw)
    draw.shuffle(lines)
    rows: list[_Row] = []
    for line in lines:
        if len(rows) == 2 * members:
            break
        if not others.suffice(line):
            continue
        secret = others.cluster(line)
        rows.append(_Row(line.text, True, secret, line.dialogue.user))
        rows.append(_Row(line.with_others(others), False, secret, line.dialogue.user))
    if not rows:
        raise InputError("The donors hold no value of any needed format; give more donor dialogues.")
    rows = [_Row(row.text, row.is_member, others.root(row.secret), row.user) for row in rows]
    return _set_of(rows, "spans", np.arange(len(rows)) ^ 1)


class _Others:
    """Gives every secret one look-alike, and links secrets that stand in one line."""

    def __init__(self, donors: Iterable[Dialogue], seen: Container[str], draw: random.Random) -> None:
        free: dict[_Kind, dict[str, None]] = defaultdict(dict)
        for donor in donors:
            for span in donor.spans:
                if (value := donor.text[span.start : span.end]) not in seen:
                    free[span.label, shape_of(value)][value] = None
        # A value that donors have under two labels is given away once.
        self._free = {kind: draw.sample(list(found), len(found)) for kind, found in free.items()}
        self._taken: set[str] = set()
        self._chosen: dict[str, str] = {}
        self._links: dict[str, str] = {}

    def suffice(self, line: _Line) -> bool:
        """Give the line's secrets their look-alikes; False, and nothing given, where there are too few."""
        given: dict[str, str] = {}
        for value, kind in line.values():
            if value in self._chosen or value in given:
                continue
            found = self._next(kind, given)
            if found is None:
                return False
            given[value] = found
        self._chosen |= given
        self._taken.update(given.values())
        return True

    def _next(self, kind: _Kind, given: dict[str, str]) -> str | None:
        stack = self._free.get(kind, [])
        while stack and stack[-1] in self._taken:
            stack.pop()
        busy = (self._taken, given.values())
        return next((value for value in reversed(stack) if not any(value in one for one in busy)), None)

    def of(self, value: str) -> str:
        """The look-alike of a secret."""
        return self._chosen[value]

    def cluster(self, line: _Line) -> str:
        """Link all secrets of the line; one of them, to ask `root` for when all lines are linked."""
        first, *rest = [value for value, _ in line.values()]
        self._links.setdefault(first, first)
        for value in rest:
            self._links.setdefault(value, value)
            self._links[self.root(value)] = self.root(first)
        return first

    def root(self, value: str) -> str:
        """One secret for all that are linked with this one."""
        while self._links[value] != value:
            value = self._links[value] = self._links[self._links[value]]
        return value


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

    def holds(self, labels: frozenset[str] | None) -> bool:
        """Whether one of its spans has one of the labels."""
        return any(labels is None or span.label in labels for span in self.spans)

    def values(self) -> list[tuple[str, _Kind]]:
        """Its secrets and their formats, in order."""
        found = [(self.dialogue.text[span.start : span.end], span.label) for span in self.spans]
        return [(value, (label, shape_of(value))) for value, label in found]

    def with_others(self, others: _Others) -> str:
        """The line with the look-alikes of its secrets."""
        pieces, at = [], self.start
        for span in self.spans:
            value = self.dialogue.text[span.start : span.end]
            pieces += [self.dialogue.text[at : span.start], others.of(value)]
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


def _set_of(rows: Sequence[_Row], design: Design, partners: IntArray | None) -> MembershipSet:
    # An id in the place of each secret: what is kept of a set must not tell any.
    names = {secret: f"s{number:06d}" for number, secret in enumerate(dict.fromkeys(r.secret for r in rows))}
    return MembershipSet(
        tuple(row.text for row in rows),
        np.array([row.is_member for row in rows], dtype=np.bool_),
        tuple(row.secret if design in ("coin", "twin") else names[row.secret] for row in rows),
        tuple(row.user for row in rows),
        design,
        partners,
    )
