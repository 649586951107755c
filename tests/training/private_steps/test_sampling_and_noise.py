"""Poisson samples and Gaussian noise, by statistics that reject the wrong ones too."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tacit.training.encoding import IntArray
from tacit.training.private_steps import keystream
from tacit.training.private_steps.keystream import Keystream
from tacit.training.private_steps.noise import CipherNoise, Noisy
from tacit.training.private_steps.sampling import PoissonSampler
from tests.training.private_steps.small import privacy


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


def test_noise_is_normal_to_the_tails_and_uncorrelated() -> None:
    source = CipherNoise(seed=1)
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


def test_a_sum_becomes_noisy_and_divided_in_every_place() -> None:
    source = CipherNoise(seed=1)
    source.begin_step(1)
    noisy = Noisy(source)
    total = torch.full((301, 1001), 8.0)
    assert noisy.release(total, deviation=3.0, divisor=4.0)
    assert float(total.mean()) == pytest.approx(2.0, abs=6 * 0.75 / total.numel() ** 0.5)
    assert float(total.std()) == pytest.approx(0.75, rel=0.01)
    assert noisy.release(exact := torch.full((3,), 8.0), deviation=0.0, divisor=4.0)
    assert exact.tolist() == [2.0] * 3
    assert not noisy.release(torch.tensor([1.0, float("nan")]), deviation=1.0, divisor=4.0)


def test_the_keystream_is_that_of_aes_256() -> None:
    """NIST's AESAVS: the zero block under the zero key; and the stream goes on where it stopped."""
    known = "dc95c078a2408989ad48a21492842087"
    room = np.zeros(16 + 15, np.uint8)
    Keystream(bytes(32)).fill(room)
    assert room[:16].tobytes().hex() == known
    long, pieces = np.zeros(600_000 + 15, np.uint8), Keystream(bytes(32))
    Keystream(bytes(32)).fill(long)
    drawn = b""
    for size in (1, 7, 300_001, 299_991):
        piece = np.zeros(size + 15, np.uint8)
        pieces.fill(piece)
        drawn += piece[:size].tobytes()
    assert drawn == long[:600_000].tobytes()


@pytest.mark.parametrize("galois", [1, 1000, keystream._GALOIS_BLOCKS])
def test_the_keystream_is_counter_mode_whichever_mode_computes_it(
    galois: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keystream, "_GALOIS_BLOCKS", galois)
    ours, key = np.zeros(300_001 + 15, np.uint8), bytes(range(32))
    Keystream(key).fill(ours)
    plain = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(300_001))
    assert ours[:300_001].tobytes() == plain


def test_every_bit_of_the_operating_systems_key_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def entropy(size: int) -> bytes:
        asked.append(size)
        return bytes(size - 1) + bytes([len(asked)])

    monkeypatch.setattr("os.urandom", entropy)
    first, second = Keystream().uniforms(4), Keystream().uniforms(4)
    assert asked == [32, 32]
    assert not np.array_equal(first, second)


def test_uniforms_are_uniform_and_below_one() -> None:
    values = Keystream.of(5, 1).uniforms(200_000)
    assert (values.min() >= 0, values.max() < 1) == (True, True)
    assert scipy.stats.kstest(values, "uniform").pvalue > 1e-6
    assert scipy.stats.kstest(values**1.05, "uniform").pvalue < 1e-6
    assert np.array_equal(values, Keystream.of(5, 1).uniforms(200_000))
    assert not np.array_equal(values, Keystream.of(5, 2).uniforms(200_000))


@pytest.mark.parametrize("count", [1, 2, 1001, (1 << 17) + 3])
def test_noise_is_box_and_mullers_of_the_keystream(count: int) -> None:
    """The same bits in float64, with the library's sine and cosine."""
    source, keystream = CipherNoise(seed=9), Keystream.of(9, 2, 4)
    source.begin_step(4)
    source.fill(values := torch.empty(count), 2.5)
    expected: list[float] = []
    while len(expected) < count:
        size = min(1 << 17, count - len(expected))
        pairs = (size + 1) // 2
        room = np.zeros(8 * pairs + 15, np.uint8)
        keystream.fill(room)
        numbers = room[: 8 * pairs].view(np.int32).astype(np.float64)
        first = numbers[:pairs] + 0.5
        side, sizes = np.sign(first), np.abs(first)
        few = np.flatnonzero(sizes < 2048)
        sizes[few] += keystream.uniforms(len(few)) - 0.5
        radius = 2.5 * np.sqrt(-2 * np.log(sizes * 2.0**-31).clip(max=0))
        angle = np.pi / 2 * numbers[pairs:] * 2.0**-31
        expected += [*(side * radius * np.cos(angle)), *(radius * np.sin(angle))[: size - pairs]]
    np.testing.assert_allclose(
        values.numpy(), expected, atol=1e-3
    )  # a radius near 0 is as coarse as fp32 near 1
    assert np.abs(values.numpy() - expected).mean() < 1e-6


def test_the_tails_do_not_end_where_32_bits_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would at 6.66: a value beyond it would tell an example's gradient from none for certain."""
    monkeypatch.setattr(Keystream, "fill", lambda self, room: room.fill(0))
    drawn = np.random.default_rng(1).random(1 << 16)
    monkeypatch.setattr(Keystream, "uniforms", lambda self, count: drawn[:count])
    CipherNoise(seed=1).fill(values := torch.empty(1 << 17), 1.0)
    far = values[: 1 << 16].double().numpy()  # with turn 0 the cosine is 1: these are the radii themselves
    assert far.min() > np.sqrt(2 * 31 * np.log(2)) - 1e-6
    assert far.max() > 7.9
    # The law of a radius, given that it lies in the outermost cell: exp(-r^2 / 2) 2^31 is uniform.
    assert scipy.stats.kstest(np.exp(-(far**2) / 2) * 2.0**31, "uniform").pvalue > 1e-6
