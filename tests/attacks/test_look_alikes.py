"""Members and non-members from manifests and from gold spans."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tacit.attacks.blind import attack_blindly
from tacit.attacks.look_alikes import MembershipSet, canary_set, document_set, shape_of, span_set
from tacit.corpus import CanaryManifest, CanaryPlan, Dialogue, SimulationPlan, Span, draw_canaries, simulate
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


def test_a_secret_has_one_look_alike_and_nobody_else_has_it() -> None:
    """Users give their phone number again and again, sometimes in one line with an order number."""
    dialogues = [
        Dialogue(
            "a", "0", "USR: 555-0001\nUSR: 555-0001 for W-01", (phone(5, 13), phone(19, 27), order(32, 36))
        ),
        Dialogue("b", "1", "USR: 555-0002\nSYS: Is it W-01?", (phone(5, 13), order(25, 29))),
        Dialogue("c", "2", "USR: 555-0003", (phone(5, 13),)),
    ]
    spans = tuple(phone(9 * place, 9 * place + 8) for place in range(7))
    donor = Dialogue("d", "3", " ".join(f"666-000{n}" for n in range(7)) + "\nW-77", (*spans, order(63, 67)))
    found = span_set(dialogues, [donor], members=9)
    assert len(found) == 10
    assert found.partners is not None
    np.testing.assert_array_equal(found.is_member[found.partners], ~found.is_member)
    stands_for: dict[str, str] = {}
    for text, member, partner in zip(found.texts, found.is_member, found.partners, strict=True):
        if member:
            pairs = zip(
                re.findall(r"\S+-\d+", text), re.findall(r"\S+-\d+", found.texts[partner]), strict=True
            )
            for secret, other in pairs:
                assert stands_for.setdefault(secret, other) == other
    assert set(stands_for) == {"555-0001", "555-0002", "555-0003", "W-01"}
    assert stands_for["W-01"] == "W-77"
    assert len(set(stands_for.values())) == 4
    # Both users gave W-01: their lines are one cluster, but for the one that holds b's phone number alone.
    clusters = dict(zip(found.texts, found.secrets, strict=True))
    first, second = clusters["USR: 555-0001"], clusters["USR: 555-0001 for W-01"]
    assert first == second == clusters["SYS: Is it W-01?"]
    assert len({first, clusters["USR: 555-0002"], clusters["USR: 555-0003"]}) == 3
    assert not any(secret in one for one in found.secrets for secret in stands_for)
    # Where donors run out, lines are left out and nobody's look-alike is given twice.
    few = span_set(dialogues, [Dialogue("d", "3", donor.text[:17], donor.spans[:2])], members=9)
    assert (
        len({text for text, member in zip(few.texts, few.is_member, strict=True) if not member})
        == len(few) / 2
    )


def phone(start: int, end: int) -> Span:
    return Span(start, end, "PHONE")


def order(start: int, end: int) -> Span:
    return Span(start, end, "ORDER")


def test_documents_are_one_of_each_user() -> None:
    found = document_set([("a", "one"), ("b", "two")], [("c", "three")])
    assert found.is_member.tolist() == [True, True, False]
    assert found.partners is None
    assert len(set(found.secrets)) == 3
    with pytest.raises(InputError, match="one document of each user"):
        document_set([("a", "one")], [("a", "two")])


def test_the_blind_attacker_sees_no_difference(spans: MembershipSet) -> None:
    assert not attack_blindly(spans.texts, spans.is_member, level=0.01).separates
    assert spans.partners is not None
    assert (spans.partners[spans.partners] == np.arange(len(spans))).all()


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
