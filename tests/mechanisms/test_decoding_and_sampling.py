"""Transformations act before mixing, truncation listens to the public model only, tokens follow the pmf."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.errors import InputError
from tacit.mechanisms import Certified, Decoding, SubMix, sample, softmax_pmfs
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


def sure_of_one_token(vocabulary: int, gap: float, rows: int = 1) -> torch.Tensor:
    """Logits of a model that memorised: one token far above all others, which are alike."""
    logits = torch.full((rows, vocabulary), -gap)
    logits[:, 7] = 0.0
    return logits


@pytest.mark.parametrize("vocabulary", [50_257, 262_144])
@pytest.mark.parametrize("gap", [4.3, 7.6, 12.46, 14.24, 40.0, 200.0])
def test_no_logits_give_a_member_that_a_mechanism_refuses(vocabulary: int, gap: float) -> None:
    """A refusal would be an answer that nobody paid for: it depends on one member's text."""
    logits = torch.cat([torch.zeros(1, vocabulary), sure_of_one_token(vocabulary, gap)])
    half = torch.zeros(1, vocabulary)
    half[0, : vocabulary // 2] = gap
    logits = torch.cat([logits, half])
    for decoding in (Decoding(), Decoding(top_k=vocabulary - 1)):
        pmfs = decoding.pmfs(logits).pmfs
        assert float((pmfs.sum(-1, dtype=torch.float64) - 1).abs().max()) < 1e-6
    plain = softmax_pmfs(logits)
    torch.testing.assert_close(plain, Decoding().pmfs(logits).pmfs, rtol=0, atol=0)
    assert bool(Certified(2.0, 0.01).mix(plain[1:], plain[0]).sound.all())


def test_presence_and_frequency_count_what_the_answer_has_and_not_the_question() -> None:
    decoding = Decoding(presence_penalty=0.5, frequency_penalty=0.25)
    shaped = decoding.pmfs(LOGITS, text=[1, 1, 0, 3, 3], answer=[0, 3, 3]).pmfs
    expected = LOGITS.double().clone()
    expected[:, 0] -= 0.5 + 0.25
    expected[:, 3] -= 0.5 + 2 * 0.25
    torch.testing.assert_close(shaped, softmax(expected))
    torch.testing.assert_close(decoding.pmfs(LOGITS, text=[1, 1]).pmfs, softmax(LOGITS.double()))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": 0}, "temperature=0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0}, "top_p=0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"repetition_penalty": 0}, "repetition_penalty=0"),
        ({"repetition_penalty": 1e-45}, "repetition_penalty=1e-45: must lie between 0.1 and 10"),
        ({"repetition_penalty": 1e39}, r"repetition_penalty=1e\+39"),
        ({"repetition_penalty": math.nan}, "repetition_penalty=nan"),
        ({"presence_penalty": math.nan}, "presence_penalty=nan"),
        ({"frequency_penalty": math.inf}, "frequency_penalty=inf"),
        ({"presence_penalty": 1e39}, r"presence_penalty=1e\+39: must lie between -100 and 100"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: math.inf}}, "logit_bias"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"logit_bias": {1: 1e39}}, r"logit_bias={1: 1e\+39}: a bias must lie between -100 and 100"),
        ({"logit_bias": {1.5: 1.0}}, "a token id is a whole number"),
    ],
)
def test_bad_requests_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Decoding(**fields)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="there is no token 9"):
        Decoding(logit_bias={9: 1.0}).pmfs(LOGITS)
    with pytest.raises(InputError, match=f"there is no token {10**20}"):
        Decoding(logit_bias={10**20: 1.0}).pmfs(LOGITS)


@pytest.mark.parametrize("temperature", [1e-3, 1e300])
@pytest.mark.parametrize("penalty", [0.1, 10.0])
@pytest.mark.parametrize("bias", [-100.0, 100.0])
def test_the_extremes_that_are_accepted_keep_every_distribution(
    bias: float, penalty: float, temperature: float
) -> None:
    decoding = Decoding(
        temperature=temperature,
        repetition_penalty=penalty,
        presence_penalty=bias,
        frequency_penalty=-bias,
        logit_bias={0: bias, 1: -bias},
    )
    logits = torch.tensor([[-3e4, 5e3, 0.0], [1e4, 0.0, -1e4]])
    pmfs = decoding.pmfs(logits, text=[0, 1] * 500, answer=[0, 1] * 500).pmfs
    torch.testing.assert_close(pmfs.sum(-1), torch.ones(2))


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
