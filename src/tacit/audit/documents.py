"""Training text against held-out text: who is a member, where nothing was planted.

One document of each user at most, so that texts of one set are independent. A split by user is random,
decided before training by a hash, so that members and non-members differ in nothing else; the blind attacker
checks that all the same. Canaries are left out: they have a set of their own.
"""

from __future__ import annotations

import numpy as np

from tacit.attacks.look_alikes import MembershipSet, document_set
from tacit.corpus import UserCorpus
from tacit.corpus.canaries import CanaryManifest
from tacit.corpus.screening import MASK


def draw_documents(
    train: UserCorpus, held_out: UserCorpus, manifest: CanaryManifest | None, *, most: int, seed: int
) -> MembershipSet:
    """At most ``most`` documents of either side, of different users each."""
    planted = set() if manifest is None else {canary.text for canary in manifest.canaries}
    rng = np.random.default_rng(seed)
    members = _one_per_user(train, planted, most, rng, taken=frozenset())
    # Split within users, somebody is on both sides; their document counts once.
    others = _one_per_user(held_out, planted, most, rng, taken=frozenset(user for user, _ in members))
    return document_set(members, others)


def is_as_it_was(text: str, corpus: UserCorpus) -> bool:
    """Whether nothing of a text was masked: an attack on what a model has read needs all of it."""
    return not (corpus.has_masks and MASK in text)


def _one_per_user(
    corpus: UserCorpus, planted: set[str], most: int, rng: np.random.Generator, *, taken: frozenset[str]
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for place in rng.permutation(len(corpus.users)):
        user = corpus.users[place]
        if user in taken or len(found) == most:
            continue
        texts = [
            one.text
            for one in corpus.documents_of(user)
            if one.text not in planted and one.text.strip() and is_as_it_was(one.text, corpus)
        ]
        if texts:
            found.append((user, texts[int(rng.integers(len(texts)))]))
    return found
