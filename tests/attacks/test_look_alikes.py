"""Members and non-members from manifests and from gold spans."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tacit.attacks.blind import attack_blindly
from tacit.attacks.look_alikes import MembershipSet, canary_set, shape_of, span_set
from tacit.corpus import CanaryManifest, CanaryPlan, SimulationPlan, draw_canaries, simulate
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


@pytest.fixture(scope="module")
def spans() -> MembershipSet:
    return span_set(
        simulate(SimulationPlan(users=60, dialogues_per_user=2, seed=1)),
        simulate(SimulationPlan(users=150, dialogues_per_user=2, seed=2)),
        members=150,
    )


def test_look_alikes_of_spans_differ_in_their_secrets_only(spans: MembershipSet) -> None:
    secrets = {
        dialogue.text[span.start : span.end]
        for dialogue in simulate(SimulationPlan(users=60, dialogues_per_user=2, seed=1))
        for span in dialogue.spans
    }
    assert len(spans) > 200
    assert spans.is_member.sum() == len(spans) / 2
    pairs = list(zip(spans.texts[::2], spans.texts[1::2], strict=True))
    for member, other in pairs:
        assert member != other
        assert "\n" not in member
        assert shape_of(member) == shape_of(other)
        assert any(secret in member for secret in secrets)
        # As whole words: a name may lie within a longer one.
        assert not any(
            secret in other and re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", other) for secret in secrets
        )
    assert spans.secrets[::2] == spans.secrets[1::2]
    assert "user" not in repr(spans)


def test_the_blind_attacker_sees_no_difference(spans: MembershipSet) -> None:
    assert not attack_blindly(spans.texts, spans.is_member, level=0.01).separates


def test_labels_choose_lines() -> None:
    dialogues = list(simulate(SimulationPlan(users=20, dialogues_per_user=1, seed=1)))
    donors = list(simulate(SimulationPlan(users=100, dialogues_per_user=1, seed=2)))
    phones = {d.text[s.start : s.end] for d in dialogues for s in d.spans if s.label == "PHONE"}
    found = span_set(dialogues, donors, labels=["PHONE"])
    members = [text for text, member in zip(found.texts, found.is_member, strict=True) if member]
    assert members
    assert all(any(phone in text for phone in phones) for text in members)
    # The same secret on two lines is one cluster.
    assert len(set(found.secrets)) < len(members)
    np.testing.assert_array_equal(found.is_member, span_set(dialogues, donors, labels=["PHONE"]).is_member)


def test_without_spans_or_donors_there_is_nothing_to_compare() -> None:
    dialogues = list(simulate(SimulationPlan(users=2, dialogues_per_user=1)))
    with pytest.raises(InputError, match="No line"):
        span_set(dialogues, dialogues, labels=["IBAN"])
    with pytest.raises(InputError, match="donors"):
        span_set(dialogues, dialogues)  # the corpus's own values are nobody's look-alike


def test_shapes() -> None:
    assert shape_of("(212) 555-0187") == "(###) ###-####"
    assert shape_of("AB-123456-12") == "AA-######-##"
    assert shape_of("AB123456789CD") == "*" * 13
    assert shape_of("Anna Lee Davis") == shape_of("Bo Smith Nguyen") == "a a a"
    assert shape_of("Anna B. Davis") == "a A. a"
