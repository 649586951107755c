"""Sets of members and non-members that differ in nothing but membership, as far as that can be had.

* **Canaries**: the manifest's own coins. ``coin``: a canary is a member if its coin inserted it, else a
  non-member; the coins were tossed without regard to the text, so that the set is exchangeable. ``twin``:
  every inserted canary and its twin, which stands in the same document with another secret of the same space
  and was never inserted; pairs are exchangeable.
* **Documents**: one of each user, trained on or held out by a split that never looked at the text.
* **Gold spans** (CustomerSim and alike): lines with secrets of users who were trained on, and the same with
  secrets of users who were not: :mod:`tacit.attacks.secret_lines`. These are the "random samples of similar
  format" of Confidentially Redacted Training, made so that swapping is a test.

Run `blind` on them all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tacit.attacks.token_statistics import BoolArray, IntArray
from tacit.corpus import CanaryManifest
from tacit.errors import InputError

Design = Literal["coin", "twin", "spans", "documents"]


@dataclass(frozen=True)
class MembershipSet:
    """Texts to score.

    secrets    what each text is about, as an id: texts with the same one are a cluster, and a look-alike is
               in the cluster of the member whose place it takes. Of lines: the two whose secrets they hold
    users      whose text each is
    design     how non-members were made
    partners   where non-members are look-alikes: for each text the number of the one that it stands for
    by_chance  whether chance decided who is a member; if not, results describe and no p-value is one
    """

    texts: tuple[str, ...] = field(repr=False)
    is_member: BoolArray = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    users: tuple[str, ...] = field(repr=False)
    design: Design
    partners: IntArray | None = field(default=None, repr=False)
    by_chance: bool = True

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.texts)


@dataclass(frozen=True)
class Row:
    """One text of a set that is being made."""

    text: str
    is_member: bool
    secret: str
    user: str


def canary_set(manifest: CanaryManifest, *, design: Literal["coin", "twin"] = "coin") -> MembershipSet:
    """The manifest's canaries as members and non-members; both kinds must be there."""
    rows = [
        Row(canary.text, canary.inserted, canary.id, canary.user)
        for canary in manifest.canaries
        if design == "coin" or canary.inserted
    ]
    if design == "twin":
        rows += [
            Row(canary.twin_text, False, canary.id, canary.user)
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
    return set_of(rows, design, swapped)


def document_set(members: Sequence[tuple[str, str]], others: Sequence[tuple[str, str]]) -> MembershipSet:
    """From (user, text) of training documents and of held-out ones; every user once."""
    rows = [Row(text, True, user, user) for user, text in members]
    rows += [Row(text, False, user, user) for user, text in others]
    if len({row.user for row in rows}) < len(rows):
        raise InputError("Expected one document of each user: texts of one person are alike.")
    return set_of(rows, "documents", None)


def set_of(
    rows: Sequence[Row], design: Design, partners: IntArray | None, *, by_chance: bool = True
) -> MembershipSet:
    """The rows as a set."""
    # An id in the place of each secret: what is kept of a set must not tell any.
    names = {secret: f"s{number:06d}" for number, secret in enumerate(dict.fromkeys(r.secret for r in rows))}
    return MembershipSet(
        tuple(row.text for row in rows),
        np.array([row.is_member for row in rows], dtype=np.bool_),
        tuple(row.secret if design in ("coin", "twin") else names[row.secret] for row in rows),
        tuple(row.user for row in rows),
        design,
        partners,
        by_chance,
    )
