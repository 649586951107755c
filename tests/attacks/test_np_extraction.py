"""(n, p)-extraction against arbitrary precision, against whole softmaxes and against sampling."""

from __future__ import annotations

import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tacit.attacks.np_extraction import (
    NPExtraction,
    Prompted,
    Sampling,
    extract,
    probability_within,
    prompted,
    tries_needed,
)
from tacit.corpus import CanaryPlan, draw_canaries
from tacit.errors import InputError
from tacit.models.loading import load_public_model
from tacit.models.trained import TrainedModel
from tests.attacks.overfitted import naive_log_probabilities, overfit

SECRETS = [
    Prompted("a", "My ID is:", " 4821"),
    Prompted("b", "The baker sells", " three lamps"),
    Prompted("c", "", "zebra"),
    Prompted("d", "My neighbour paints the wooden door by the", " river"),
]


@settings(deadline=None)
@example(-1e-9, 0.5, 1)
@example(-1e-300, 0.5, 1)
@example(-math.log(2), 0.5, 3)
@given(st.floats(-600, -1e-300), st.floats(1e-6, 1 - 1e-6), st.integers(1, 10**15))
def test_formulas_in_arbitrary_precision(log_p: float, p: float, n: int) -> None:
    with mpmath.workdps(700):
        chance = mpmath.exp(mpmath.mpf(log_p))
        tries = mpmath.log(1 - mpmath.mpf(p)) / mpmath.log(1 - chance)
        within = 1 - (1 - chance) ** n
        assert float(tries_needed(log_p, p)) == pytest.approx(float(tries), rel=1e-9)
        assert float(probability_within(log_p, n)) == pytest.approx(float(within), rel=1e-9)


def test_the_two_formulas_are_inverse_and_edges_hold() -> None:
    logs = np.array([-0.1, -5.0, -40.0, -300.0])
    for p in (0.01, 0.5, 0.999):
        for log_p, n in zip(logs, tries_needed(logs, p), strict=True):
            assert float(probability_within(log_p, n)) == pytest.approx(p, rel=1e-9)
    assert tries_needed(math.log(0.5), 0.75) == pytest.approx(2.0)
    assert tries_needed(-math.inf, 0.5) == math.inf
    assert probability_within(-math.inf, 1e9) == 0
    assert probability_within(0.0, 1) == 1
    assert tries_needed(0.0, 0.5) == 0
    assert tries_needed(-5000.0, 0.5) == math.inf  # too many for a float, and no warning


def test_golden_value_of_the_definition() -> None:
    # Hayes et al. 2025 relate n and p by n >= log(1 - p) / log(1 - p_z): 1e-3 needs 693 tries for one half.
    assert math.ceil(tries_needed(math.log(1e-3), 0.5)) == 693
    assert math.ceil(tries_needed(math.log(1e-3), 0.9)) == 2302


@pytest.fixture(scope="module", params=["transformer", "lora", "lstm"])
def trained(request: pytest.FixtureRequest, tiny_transformer: Path, tiny_lstm: Path) -> TrainedModel:
    folder = tiny_lstm if request.param == "lstm" else tiny_transformer
    return overfit(folder, ["My ID is: 4821"], lora=request.param == "lora", steps=15)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(1.3, 40), Sampling(1.0, 10**6)])
def test_probabilities_equal_whole_softmaxes(trained: TrainedModel, sampling: Sampling) -> None:
    found = extract(SECRETS, trained, sampling=sampling, positions=25)
    public = trained.public
    for secret, log_p in zip(SECRETS, found.log_probabilities, strict=True):
        whole = public.tokenizer.encode([secret.prefix + secret.continuation])[0]
        before = len(public.tokenizer.encode([secret.prefix])[0])
        own = naive_log_probabilities(trained.model, public.start_token, whole) / sampling.temperature
        expected = 0.0
        for t in range(before, len(whole)):
            kept = own[t].sort(descending=True).values[: sampling.top_k]
            drawn = own[t, whole[t]] >= kept[-1]
            expected += float(own[t, whole[t]] - kept.logsumexp(0)) if drawn else -math.inf
        assert log_p == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_sampled_tries_come_out_as_often_as_computed(tiny_transformer: Path) -> None:
    # One of the six things that are sold in the public model's world.
    public = load_public_model(str(tiny_transformer))
    secret = Prompted("a", "The baker sells", " three lamps")
    found = extract([secret], public, sampling=Sampling(1.0, 20))
    p = math.exp(found.log_probabilities[0])
    assert 0.03 < p < 0.97
    generator = torch.Generator().manual_seed(0)
    head = [public.start_token, *public.tokenizer.encode([secret.prefix])[0]]
    want = public.tokenizer.encode([secret.prefix + secret.continuation])[0][len(head) - 1 :]
    rows = torch.tensor([head] * 2000)
    for _ in want:
        kept = public.model(input_ids=rows).logits[:, -1].topk(20)
        drawn = torch.multinomial(kept.values.softmax(-1), 1, generator=generator)
        rows = torch.cat([rows, kept.indices.gather(1, drawn)], 1)
    hits = int((rows[:, len(head) :] == torch.tensor(want)).all(1).sum())
    assert abs(hits / 2000 - p) < 4 * math.sqrt(p * (1 - p) / 2000) + 1e-6


def test_training_makes_a_secret_easier_to_extract(trained: TrainedModel) -> None:
    before, after = extract(SECRETS[:1], trained.public), extract(SECRETS[:1], trained)
    assert after.tries(0.5)[0] < before.tries(0.5)[0] / 10


def test_shares_and_tables() -> None:
    found = NPExtraction(("a", "b", "c"), np.log([0.5, 1e-3, 1e-9]), Sampling())
    assert found.share(1000, 0.5).value == pytest.approx(2 / 3)
    assert found.share(1, 0.9).value == 0
    assert "Clopper-Pearson" in found.share(1, 0.9).method
    table = found.table([1, 10**12], [0.4, 0.99])
    assert [[cell.value for cell in row] for row in table] == [[pytest.approx(1 / 3), 0], [1, 1]]
    np.testing.assert_allclose(found.probabilities(1), [0.5, 1e-3, 1e-9])


def test_secrets_come_from_the_manifest(tiny_transformer: Path) -> None:
    plan = CanaryPlan(users=8, owner="new", seed=2)
    manifest = draw_canaries(plan, [], documents=0, characters=0)
    inserted, others = prompted(manifest), prompted(manifest, inserted=False)
    assert len(inserted) + len(others) == 8
    found = extract([*inserted, *others], load_public_model(str(tiny_transformer)))
    assert np.isfinite(found.log_probabilities).all()
    assert all(text not in repr(inserted) for text in (canary.secret for canary in manifest.canaries))


def test_what_has_no_answer_is_refused(tiny_transformer: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    with pytest.raises(InputError, match="no secrets"):
        extract([], public)
    with pytest.raises(InputError, match="end the prefix before a space"):
        extract([Prompted("x", "The baker sells three lam", "ps")], public)
    with pytest.raises(InputError, match="end the prefix before a space"):
        extract([Prompted("x", "The baker", "")], public)
    with pytest.raises(InputError, match="shorten"):
        extract([Prompted("x", "The baker", " qzx" * 200)], public)
    for bad in (0.0, 1.0):
        with pytest.raises(InputError, match="p="):
            tries_needed(-1.0, bad)
    with pytest.raises(InputError, match="tries=0"):
        probability_within(-1.0, 0)
    with pytest.raises(InputError, match="at most 0"):
        tries_needed(0.1, 0.5)
    with pytest.raises(InputError, match="temperature"):
        Sampling(temperature=0)
    with pytest.raises(InputError, match="top_k"):
        Sampling(top_k=0)
