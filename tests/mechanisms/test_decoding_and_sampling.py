"""Transformations act before mixing, truncation listens to the public model only, tokens follow the pmf."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.errors import InputError
from tacit.mechanisms import Decoding, SubMix, sample
from tacit.mechanisms.sampling import integer_weights
from tacit.privacy import symmetric_renyi_divergence

LOGITS = torch.tensor(
    [[2.0, 1.0, 0.0, -1.0, -3.0], [0.0, 3.0, -2.0, 1.0, 4.0], [1.0, 1.0, 1.0, 1.0, 9.0]], dtype=torch.float64
)


def softmax(values: torch.Tensor) -> torch.Tensor:
    return torch.softmax(values.double(), -1)


def test_temperature_divides_every_models_logits() -> None:
    torch.testing.assert_close(Decoding(temperature=0.5).pmfs(LOGITS).pmfs, softmax(LOGITS * 2))


def test_temperature_after_mixing_would_cost_more_than_was_charged() -> None:
    """Worlds that differ by 0.0016 nats differ by 0.15 after sharpening to temperature 0.1."""
    with_part, without = np.array([0.51, 0.49]), np.array([0.49, 0.51])

    def sharpened(pmf: np.ndarray, temperature: float) -> np.ndarray:
        power = pmf ** (1 / temperature)
        return np.asarray(power / power.sum())

    losses = [
        float(symmetric_renyi_divergence(sharpened(with_part, t), sharpened(without, t), 2.0))
        for t in (1, 0.5, 0.1, 0.02)
    ]
    assert losses == pytest.approx([0.0016, 0.0064, 0.150, 1.88], rel=0.02)
    halves = np.broadcast_to(with_part, (2, 2, 2)).copy()
    halves[1] = without
    logits = torch.tensor(np.log(np.concatenate([without[None], halves.reshape(-1, 2)])))
    cold = Decoding(temperature=0.1).pmfs(logits).pmfs
    mixture = SubMix(2.0, 10.0).mix(cold[1:].reshape(2, 2, 2), cold[0])
    alone = SubMix(2.0, 10.0).mix(cold[3:].reshape(1, 2, 2), cold[0])
    true = float(symmetric_renyi_divergence(mixture.pmf.numpy(), alone.pmf.numpy(), 2.0))
    assert float(mixture.charges[0]) == pytest.approx(true, rel=1e-6)  # charged on what is sampled


@pytest.mark.parametrize("decoding", [Decoding(top_k=2), Decoding(top_p=0.8)], ids=["top-k", "nucleus"])
def test_the_kept_tokens_come_from_the_public_model_alone(decoding: Decoding) -> None:
    kept = decoding.pmfs(LOGITS)
    assert kept.tokens is not None
    assert kept.tokens.tolist() == [0, 1]  # what the public row ranks first, though members prefer token 4
    changed = LOGITS.clone()
    changed[1:] = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    other = decoding.pmfs(changed)
    assert other.tokens is not None
    assert other.tokens.tolist() == kept.tokens.tolist()
    torch.testing.assert_close(kept.pmfs.sum(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(kept.pmfs[1], softmax(LOGITS[1, :2]))
    assert kept.token(1) == 1


def test_nucleus_is_the_smallest_set_that_holds_the_mass() -> None:
    public = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    for top_p, count in ((0.4, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 4)):
        tokens = Decoding(top_p=top_p).pmfs(public).tokens
        assert tokens is not None
        assert len(tokens) == count


def test_a_member_without_mass_on_the_kept_tokens_is_uniform_there() -> None:
    logits = LOGITS.clone()
    logits[1] = torch.tensor([-1e30, -1e30, 0.0, 0.0, 0.0])
    assert Decoding(top_k=2).pmfs(logits).pmfs[1].tolist() == [0.5, 0.5]


def test_penalty_and_bias_change_all_models_alike() -> None:
    shaped = Decoding(repetition_penalty=2.0, logit_bias={4: 1.5}).pmfs(LOGITS, text=[0, 3, 3]).pmfs
    expected = LOGITS.double().clone()
    expected[:, 0] = torch.where(expected[:, 0] > 0, expected[:, 0] / 2, expected[:, 0] * 2)
    expected[:, 3] = torch.where(expected[:, 3] > 0, expected[:, 3] / 2, expected[:, 3] * 2)
    expected[:, 4] += 1.5
    torch.testing.assert_close(shaped, softmax(expected))


def test_presence_and_frequency_count_what_the_answer_has_and_not_the_question() -> None:
    decoding = Decoding(presence_penalty=0.5, frequency_penalty=0.25)
    shaped = decoding.pmfs(LOGITS, text=[1, 1, 0, 3, 3], answer=[0, 3, 3]).pmfs
    expected = LOGITS.double().clone()
    expected[:, 0] -= 0.5 + 0.25
    expected[:, 3] -= 0.5 + 2 * 0.25
    torch.testing.assert_close(shaped, softmax(expected))
    torch.testing.assert_close(decoding.pmfs(LOGITS, text=[1, 1]).pmfs, softmax(LOGITS.double()))


SHAPES = [
    Decoding(),
    Decoding(temperature=0.7, repetition_penalty=1.5, logit_bias={4: 1.5, 2: -1.0}),
    Decoding(presence_penalty=0.5, frequency_penalty=0.25),
    Decoding(top_k=2),
    Decoding(top_k=4),
    Decoding(top_p=0.9, logit_bias={4: 30.0}),
]


@pytest.mark.parametrize("decoding", SHAPES)
@pytest.mark.parametrize("heard", [[0, 1], [1, 0, 2], [4], [0, 1, 2, 3, 4]])
def test_what_members_are_not_heard_on_is_the_public_models(decoding: Decoding, heard: list[int]) -> None:
    """By brute force: members' rows over the whole vocabulary, where they say what was promised."""
    text, answer, tokens = [0, 3, 3], [3, 3], torch.tensor(heard)
    found = decoding.pmfs_among(LOGITS[0], LOGITS[1:][:, tokens], tokens, text, answer)
    plain = decoding.pmfs(LOGITS, text, answer)
    size = LOGITS.shape[1]
    kept = list(range(size)) if plain.tokens is None else plain.tokens.tolist()
    public = torch.zeros(size, dtype=torch.float64)
    public[kept] = plain.pmfs[0]
    both = [token for token in heard if token in kept]
    others = [token for token in kept if token not in heard]
    assert found.tokens is not None
    assert found.tokens.tolist() == both
    assert (found.rest is not None) == bool(others)
    whole = torch.zeros(3, size, dtype=torch.float64)
    whole[:, both] = found.pmfs[:, : len(both)]
    if found.rest is not None:
        torch.testing.assert_close(found.rest[others].sum(), torch.ones((), dtype=torch.float64))
        whole += found.pmfs[:, -1:] * found.rest
    torch.testing.assert_close(whole[0], public)
    penalised = decoding.pmfs(LOGITS, text, answer) if plain.tokens is None else None
    for row in (1, 2):
        torch.testing.assert_close(whole[row][others], public[others])
        torch.testing.assert_close(whole[row].sum(), torch.ones((), dtype=torch.float64))
        if penalised is not None and both:
            own = penalised.pmfs[row, both]
            torch.testing.assert_close(whole[row, both] / whole[row, both].sum(), own / own.sum())


def test_the_charge_for_some_tokens_is_that_of_what_is_released() -> None:
    """A mixture of outcomes, spread over tokens by the public model, diverges as the outcomes do."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(7, 40, generator=generator, dtype=torch.float64)
    tokens = logits[0].topk(9).indices
    outcomes = Decoding().pmfs_among(logits[0], logits[1:][:, tokens], tokens)
    rest = outcomes.rest
    assert rest is not None

    def released(members: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        mixture = SubMix(2.0, 0.3).mix(members, outcomes.pmfs[0])
        spread = mixture.pmf[-1] * rest
        spread[tokens] += mixture.pmf[:-1]
        return spread.numpy(), mixture.charges

    members = outcomes.pmfs[1:].reshape(3, 2, -1)
    whole, charges = released(members)
    without, _ = released(members[1:])
    loss = float(symmetric_renyi_divergence(whole, without, 2.0))
    assert loss > 1e-3
    assert float(charges[0]) == pytest.approx(loss, rel=1e-6)


def test_a_token_nobody_was_heard_on_is_drawn_from_the_public_rest() -> None:
    tokens = torch.tensor([1, 3])
    outcomes = Decoding().pmfs_among(LOGITS[0], LOGITS[1:][:, tokens], tokens)
    assert [outcomes.token(0), outcomes.token(1)] == [1, 3]
    counts = Counter(outcomes.token(2) for _ in range(4000))
    expected = softmax(LOGITS[0])[[0, 2, 4]]
    observed = [counts[token] for token in (0, 2, 4)]
    assert sum(observed) == 4000
    assert stats.chisquare(observed, (expected / expected.sum()).numpy() * 4000).pvalue > 1e-6


def test_a_public_model_without_mass_for_the_rest_still_has_one() -> None:
    sure = torch.tensor([900.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    outcomes = Decoding().pmfs_among(sure, torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0]))
    assert outcomes.rest is not None
    torch.testing.assert_close(outcomes.rest, torch.tensor([0, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64))
    assert outcomes.pmfs.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    nothing_heard = Decoding(logit_bias={1: 1999.0}).pmfs_among(sure, torch.zeros(1, 1), torch.tensor([0]))
    assert nothing_heard.pmfs.double().tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_a_member_that_is_not_finite_is_not_hidden_by_the_rest() -> None:
    tokens = torch.tensor([0, 1])
    members = torch.tensor([[math.nan, 0.0], [1.0, 0.0]], dtype=torch.float64)
    mixture = SubMix(2.0, 0.3).mix(
        Decoding().pmfs_among(LOGITS[0], members, tokens).pmfs[1:].reshape(1, 2, 3),
        Decoding().pmfs_among(LOGITS[0], members, tokens).pmfs[0],
    )
    assert mixture.sound.tolist() == [False]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 0}, "temperature=0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0}, "top_p=0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"presence_penalty": math.nan}, "presence_penalty=nan"),
        ({"frequency_penalty": math.inf}, "frequency_penalty=inf"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: math.inf}}, "logit_bias"),
    ],
)
def test_bad_requests_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Decoding(**fields)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no token 9"):
        Decoding(logit_bias={9: 1.0}).pmfs(LOGITS)


def test_sampling_follows_the_distribution_and_reaches_rare_tokens() -> None:
    pmf = torch.tensor([0.4, 0.3, 0.2, 0.0999, 0.0001], dtype=torch.float64)
    draws = 40_000
    counts = Counter(sample(pmf) for _ in range(draws))
    observed = [counts[token] for token in range(5)]
    assert stats.chisquare(observed, pmf.numpy() * draws).pvalue > 1e-4
    wrong = np.array([0.42, 0.28, 0.2, 0.0999, 0.0001])
    assert stats.chisquare(observed, wrong * draws).pvalue < 1e-4


def test_every_integer_leads_to_the_token_that_owns_it() -> None:
    pmf = torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64)
    weights = integer_weights(pmf).tolist()
    assert weights == [2**61 + 1, 1, 2**61 + 1]  # zero probability keeps one ticket: supports never differ
    assert sample(pmf, lambda total: 0) == 0
    assert sample(pmf, lambda total: weights[0] - 1) == 0
    assert sample(pmf, lambda total: weights[0]) == 1
    assert sample(pmf, lambda total: weights[0] + 1) == 2
    assert sample(pmf, lambda total: total - 1) == 2


def test_the_sampled_law_is_the_charged_law() -> None:
    """Integer weights differ from the pmf by less than what charges have to spare, tiny tokens included."""
    pmf = torch.full((50_000,), 1e-9 / 50_000, dtype=torch.float64)
    pmf[0] = 1 - float(pmf[1:].sum())
    weights = integer_weights(pmf)
    law = weights / weights.sum()
    assert float(symmetric_renyi_divergence(law, pmf.numpy(), 2.0)) < 1e-12


@pytest.mark.parametrize("pmf", [[0.5, 0.4], [1.5, -0.5], [math.nan, 1.0], [[0.5, 0.5]]])
def test_only_distributions_are_sampled(pmf: list[float]) -> None:
    with pytest.raises(InputError, match="sums to one"):
        sample(torch.tensor(pmf))
