"""Poisson samples and Gaussian noise, by statistics that reject the wrong ones too."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from tacit.training.encoding import IntArray
from tacit.training.private_steps.noise import GeneratorNoise, NoiseSource, Noisy, SystemNoise, twister
from tacit.training.private_steps.sampling import PoissonSampler
from tests.training.private_steps.small import privacy

SOURCES: list[NoiseSource] = [GeneratorNoise(seed=1), SystemNoise()]


def _misfit(sizes: IntArray, population: int, rate: float) -> float:
    """p-value of batch sizes as Binomial(population, rate), by chi-square over cells of at least 5."""
    law = scipy.stats.binom(population, rate)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 15)))
    cells = np.concatenate([[-1], edges, [population]])
    observed = np.histogram(sizes, bins=cells + 0.5)[0]
    expected = np.diff(law.cdf(cells)) * len(sizes)
    return float(scipy.stats.chisquare(observed, expected).pvalue)


def test_batch_sizes_are_binomial_and_not_those_of_another_rate_or_of_shuffling() -> None:
    sampler = PoissonSampler(privacy(400, sampling_rate=0.05), seed=3)
    draws = [sampler.draw(step) for step in range(2000)]
    sizes = np.array([len(draw) for draw in draws])
    assert _misfit(sizes, 400, 0.05) > 1e-3
    assert _misfit(sizes, 400, 0.055) < 1e-6
    assert _misfit(np.full(2000, 20), 400, 0.05) < 1e-6
    often = np.bincount(np.concatenate(draws), minlength=400)
    assert scipy.stats.chisquare(often).pvalue > 1e-3


def test_examples_enter_apart_from_each_other_and_from_other_steps() -> None:
    sampler = PoissonSampler(privacy(50, sampling_rate=0.3), seed=4)
    present = np.zeros((4000, 50))
    for step in range(4000):
        present[step, sampler.draw(step)] = 1
    within = np.corrcoef(present.T) - np.eye(50)
    between = np.corrcoef(present[:-1].T, present[1:].T)[:50, 50:]
    assert max(np.abs(within).max(), np.abs(between).max()) < 6 / np.sqrt(4000)


def test_without_a_seed_samples_differ_and_with_one_they_are_of_the_step() -> None:
    settings = privacy(1000, sampling_rate=0.5)
    assert not np.array_equal(PoissonSampler(settings).draw(0), PoissonSampler(settings).draw(0))
    first, second = PoissonSampler(settings, 7), PoissonSampler(settings, 7)
    first.draw(0)
    np.testing.assert_array_equal(first.draw(5), second.draw(5))
    assert not np.array_equal(first.draw(5), first.draw(6))


@pytest.mark.parametrize("source", SOURCES, ids=["generator", "system"])
def test_noise_is_normal_to_the_tails_and_uncorrelated(source: NoiseSource) -> None:
    count = 400_001  # odd: values come in pairs
    source.begin_step(0)
    values = torch.zeros(count)
    source.fill(values, 1.0)
    sample = values.double().numpy()
    assert scipy.stats.kstest(sample, "norm").pvalue > 1e-6
    assert scipy.stats.kstest(sample * 1.03, "norm").pvalue < 1e-6
    for sigmas in (3.0, 4.0):
        law = scipy.stats.binom(count, 2 * scipy.stats.norm.sf(sigmas))
        assert law.ppf(1e-7) <= np.count_nonzero(np.abs(sample) > sigmas) <= law.ppf(1 - 1e-7)
    for lag in (1, 2, count // 2, count // 2 + 1):
        assert abs(np.mean(sample[:-lag] * sample[lag:])) < 6 / np.sqrt(count - lag)
        squares = sample**2 - 1
        assert abs(np.mean(squares[:-lag] * squares[lag:])) < 12 / np.sqrt(count - lag)


@pytest.mark.parametrize("source", SOURCES, ids=["generator", "system"])
def test_a_sum_becomes_noisy_and_divided_in_every_place(source: NoiseSource) -> None:
    source.begin_step(1)
    noisy = Noisy(source)
    total = torch.full((301, 1001), 8.0)
    assert noisy.release(total, deviation=3.0, divisor=4.0)
    assert float(total.mean()) == pytest.approx(2.0, abs=6 * 0.75 / total.numel() ** 0.5)
    assert float(total.std()) == pytest.approx(0.75, rel=0.01)
    assert noisy.release(exact := torch.full((3,), 8.0), deviation=0.0, divisor=4.0)
    assert exact.tolist() == [2.0] * 3
    assert not noisy.release(torch.tensor([1.0, float("nan")]), deviation=1.0, divisor=4.0)


def test_the_generator_uses_the_whole_of_its_entropy() -> None:
    """manual_seed takes 32 bits; here every one of 624 words changes what is drawn."""
    words = np.arange(624, dtype=np.uint32)
    plain = torch.empty(2000, dtype=torch.int32).random_(2**24, generator=twister(words))
    for word in (1, 100, 623):
        changed = words.copy()
        changed[word] ^= np.uint32(1 << 20)
        other = torch.empty(2000, dtype=torch.int32).random_(2**24, generator=twister(changed))
        assert not torch.equal(plain, other)
    reference = np.random.MT19937()
    reference.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    assert plain.tolist() == (reference.random_raw(2004)[4:] % 2**24).tolist()
