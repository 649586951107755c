"""Members and non-members from manifests and from documents."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.attacks.look_alikes import canary_set, document_set
from tacit.corpus import CanaryManifest, CanaryPlan, draw_canaries
from tacit.errors import InputError


def manifest_of(include: float = 0.5, users: int = 40) -> CanaryManifest:
    plan = CanaryPlan(users=users, owner="new", include=include, seed=3)
    return draw_canaries(plan, [], documents=0, characters=0)


def test_coins_make_members_of_canaries() -> None:
    manifest = manifest_of()
    found = canary_set(manifest)
    assert len(found) == 40
    assert found.design == "coin"
    for canary, text, member, secret in zip(
        manifest.canaries, found.texts, found.is_member, found.secrets, strict=True
    ):
        assert (text, member, secret) == (canary.text, canary.inserted, canary.id)


def test_twins_stand_where_canaries_do() -> None:
    manifest = manifest_of()
    found = canary_set(manifest, design="twin")
    inserted = [canary for canary in manifest.canaries if canary.inserted]
    assert len(found) == 2 * len(inserted)
    assert found.partners is not None
    assert [found.secrets[one] for one in found.partners] == list(found.secrets)
    np.testing.assert_array_equal(found.is_member[found.partners], ~found.is_member)
    planted = {text for _, text in manifest.insertions()}
    for canary in inserted:
        texts = {
            bool(member): text
            for text, member, secret in zip(found.texts, found.is_member, found.secrets, strict=True)
            if secret == canary.id
        }
        assert texts == {True: canary.text, False: canary.twin_text}
        assert texts[False] not in planted


def test_a_manifest_without_both_kinds_is_refused() -> None:
    with pytest.raises(InputError, match="include between 0 and 1"):
        canary_set(manifest_of(include=1.0))
    assert len(canary_set(manifest_of(include=1.0), design="twin")) == 80
    with pytest.raises(InputError, match="0 of"):
        canary_set(manifest_of(include=0.0), design="twin")


def test_documents_are_one_of_each_user() -> None:
    found = document_set([("a", "one"), ("b", "two")], [("c", "three")])
    assert found.is_member.tolist() == [True, True, False]
    assert found.partners is None
    assert len(set(found.secrets)) == 3
    with pytest.raises(InputError, match="one document of each user"):
        document_set([("a", "one")], [("a", "two")])
