"""Training text against held-out text: who is a member, where nothing was planted.

One document of each user at most, so that texts of one set are independent. A split decides by a hash, before
training, so that members and non-members differ in nothing else; the blind attacker checks that all the same.
By user, a user's coin says on which side their document is. Within users everybody with two documents is on
both sides, and who has one is trained on: of the former, every other one gives a training document and the
rest a held-out one. Either is a uniform one of its user's documents, whichever were held out.

Canaries are left out: they have a set of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tacit.attacks.look_alikes import MembershipSet, document_set
from tacit.corpus import UserCorpus
from tacit.corpus.canaries import CanaryManifest
from tacit.corpus.screening import MASK

_Texts = list[tuple[str, str]]  # users and what they wrote


def draw_documents(
    train: UserCorpus, held_out: UserCorpus, manifest: CanaryManifest | None, *, most: int, seed: int
) -> MembershipSet:
    """At most ``most`` documents of either side, of different users each."""
    planted = set() if manifest is None else {canary.text.strip() for canary in manifest.canaries}
    rng = np.random.default_rng(seed)
    shared = frozenset(train.users) & frozenset(held_out.users)
    if shared:
        return document_set(*_of_both_sides((train, held_out), sorted(shared), planted, most, rng))
    members, others = (_one_per_user(side, planted, most, rng) for side in (train, held_out))
    return document_set(members, others)


def is_as_it_was(text: str, corpus: UserCorpus) -> bool:
    """Whether nothing of a text was masked: an attack on what a model has read needs all of it."""
    return not (corpus.has_masks and MASK in text)


def _of_both_sides(
    sides: Sequence[UserCorpus], users: Sequence[str], planted: set[str], most: int, rng: np.random.Generator
) -> tuple[_Texts, _Texts]:
    """Of users with text on both sides, one after the other for either."""
    found: tuple[_Texts, _Texts] = ([], [])
    for place in rng.permutation(len(users)):
        texts = [_texts_of(users[place], side, planted) for side in sides]
        if not all(texts):
            continue
        here = int(len(found[0]) > len(found[1]))
        if len(found[here]) == most:
            break
        found[here].append((users[place], _any(texts[here], rng)))
    return found


def _one_per_user(corpus: UserCorpus, planted: set[str], most: int, rng: np.random.Generator) -> _Texts:
    found: _Texts = []
    for place in rng.permutation(len(corpus.users)):
        if len(found) == most:
            break
        if texts := _texts_of(corpus.users[place], corpus, planted):
            found.append((corpus.users[place], _any(texts, rng)))
    return found


def _texts_of(user: str, corpus: UserCorpus, planted: set[str]) -> list[str]:
    return [
        one.text
        for one in corpus.documents_of(user)
        if one.text.strip() not in planted and one.text.strip() and is_as_it_was(one.text, corpus)
    ]


def _any(texts: Sequence[str], rng: np.random.Generator) -> str:
    return texts[int(rng.integers(len(texts)))]
