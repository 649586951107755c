"""The private-prediction audit of a Run that was really trained on a corpus with canaries."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tacit.audit.transcripts_run import PredictionPlan, audit_private_prediction, canary_contexts
from tacit.corpus.partition import Partition
from tacit.errors import InputError
from tacit.mechanisms.choice import Mechanism, MechanismChoice
from tacit.models.ensemble import load_ensemble
from tests.audit.runs import Audited
from tests.audit.toys import GenerousCertified, HalvedSubMix

PLAN = PredictionPlan(
    epsilon=2.0, repeats=40, transcripts=200, tokens=2, adaptive=100, parts=2, blocks=1, block_size=32
)


def attacked(audited: Audited, choice: MechanismChoice, **changes: Any) -> Any:
    plan = replace(PLAN, **changes)
    return audit_private_prediction(audited.run, choice, plan, manifest=audited.manifest, device="cpu")


def test_canaries_are_found_in_the_parts_of_their_users(audited: Audited) -> None:
    partition = Partition.load(audited.run.folder / "private" / "partition")
    tokenizer = load_ensemble(audited.run, device="cpu").public.tokenizer
    contexts, skipped = canary_contexts(audited.manifest, partition, tokenizer)
    inserted = {canary.id: canary for canary in audited.manifest.canaries if canary.inserted}
    assert skipped == 0  # the plan knew the split
    assert {context.id for context in contexts} == set(inserted)
    assert 0 < len(inserted) < 6
    for context in contexts:
        canary = inserted[context.id]
        assert canary.user in partition.users_in(context.part)
        assert context.prompt[0] == tokenizer.start_token
        assert tokenizer.decode(context.prompt[1:]) == canary.prefix
        assert tokenizer.decode(context.secret) == canary.continuation(canary.secret)
        assert canary.secret not in repr(context)


@pytest.mark.parametrize("name", ["submix", "certified", "individual"])
def test_honest_mechanisms_are_not_contradicted(audited: Audited, name: Any) -> None:
    found = attacked(audited, MechanismChoice(name, target=0.05))
    assert found.verdict == "supported"
    assert found.on_canaries.queries >= 4 * found.canaries  # four digits each
    assert found.on_canaries.excess == found.on_held_out.excess == 0
    assert found.on_held_out.queries > 10
    assert found.canaries == sum(canary.inserted for canary in audited.manifest.canaries)
    # The worst part comes first, and a repeated question reveals it.
    lost = [one.divergence.value for one in found.repeated]
    assert len({one.part for one in found.repeated}) == len(lost) >= 1
    assert all(one.divergence.method.startswith("exact") for one in found.repeated)
    assert all("tilted" in one.divergence.method for one in found.adaptive)
    assert max(lost) > 0.001
    content = json.dumps(found.to_json())
    for canary in audited.manifest.canaries:
        assert canary.prefix not in content
        assert canary.continuation(canary.secret) not in content
        assert canary.user not in content


@pytest.mark.parametrize("name", ["subsample_aggregate", "gnmax"])
def test_charges_of_noise_are_recomputed_and_transcripts_left_out(audited: Audited, name: Any) -> None:
    found = attacked(audited, MechanismChoice(name, target=0.05))
    assert found.verdict != "contradicted"
    assert found.on_canaries.excess == found.on_held_out.excess == 0
    assert found.on_canaries.neighbours == "changed part"
    assert (found.repeated, found.adaptive, found.secrets) == ((), (), ())
    if name == "subsample_aggregate":  # a part that is sure of a token uses its whole charge
        assert found.on_canaries.tightness > 0.5
        assert found.verdict == "supported"


@dataclass(frozen=True)
class WrongChoice(MechanismChoice):
    """Builds mechanisms whose accountants are wrong."""

    def build(self, parts: int) -> Mechanism:
        if self.name == "submix":
            return HalvedSubMix(self.order, self.target)
        return GenerousCertified(self.order, self.target)


@pytest.mark.parametrize("name", ["submix", "certified"])
def test_wrong_accountants_are_contradicted(audited: Audited, name: Any) -> None:
    found = attacked(audited, WrongChoice(name, target=0.05), tokens=0)
    assert found.verdict == "contradicted"
    assert found.on_canaries.verdict == "contradicted"
    assert any("more than it was charged" in reason for reason in found.reasons)
    assert found.adaptive == ()


def test_halved_charges_let_a_repeated_question_through(audited: Audited) -> None:
    """Under a budget that forty answers would pass, the honest filter stops, and the other does not."""
    options = {"tokens": 0, "blocks": 0, "parts": 1}
    choice = MechanismChoice("submix", target=0.05)
    (unlimited,) = attacked(audited, choice, epsilon=1e6, **options).repeated
    epsilon = 0.75 * unlimited.divergence.value
    (honest,) = attacked(audited, choice, epsilon=epsilon, **options).repeated
    assert honest.verdict == "supported"
    assert 0.7 * epsilon < honest.divergence.value <= epsilon
    (wrong,) = attacked(audited, WrongChoice("submix", target=0.05), epsilon=epsilon, **options).repeated
    assert wrong.verdict == "contradicted"
    assert wrong.divergence.value == pytest.approx(unlimited.divergence.value)


def test_without_a_manifest_held_out_text_is_checked(audited: Audited) -> None:
    found = audit_private_prediction(
        audited.run, MechanismChoice("submix"), PLAN, manifest=None, device="cpu"
    )
    assert found.on_canaries is None
    assert found.repeated == found.adaptive == ()
    assert found.verdict == "supported"
    nothing = audit_private_prediction(
        audited.run, MechanismChoice("submix"), replace(PLAN, blocks=0), manifest=None, device="cpu"
    )
    assert nothing.verdict == "inconclusive"


def test_plans_that_make_no_sense_are_refused() -> None:
    for name, value in {"repeats": 0, "tokens": -1, "parts": 0, "blocks": -1, "block_size": 1}.items():
        with pytest.raises(InputError, match=f"{name}={value}"):
            PredictionPlan(**({"epsilon": 1.0} | {name: value}))  # type: ignore[arg-type]
