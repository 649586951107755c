"""Which examples a private step sees: each by its own coin, whatever the others' coins say."""

from __future__ import annotations

import secrets

import numpy as np

from tacit.training.encoding import IntArray
from tacit.training.private_steps.settings import StepPrivacy

_SAMPLING = 1  # keeps a seeded run's streams apart; noise has another number


def generator_for(seed: int | None, *stream: int) -> np.random.Generator:
    """A generator with 256 bits of the operating system's entropy, or a reproducible one for experiments.

    Not torch's: that takes 32 bits of a seed, which can be searched, and noise that is guessed hides nothing.
    """
    entropy = secrets.randbits(256) if seed is None else [seed, *stream]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))


class PoissonSampler:
    """Draws the examples of each step.

    What holds: every example is in a step with probability ``sampling_rate``, independently of every other
    example and of every other step. Shuffled batches do not have this property, and an account that takes
    them for these is wrong by a factor of 4 to 9. With a seed, draws are a function of the seed and the step.
    """

    def __init__(self, privacy: StepPrivacy, seed: int | None = None) -> None:
        self._privacy = privacy
        self._seed = seed
        self._generator = generator_for(None)

    def draw(self, step: int) -> IntArray:
        """The examples of a 0-based step in increasing order; often none where the rate is small."""
        coins = self._generator_of(step).random(self._privacy.population)
        return np.flatnonzero(coins < self._privacy.sampling_rate)

    def slots(self, step: int, count: int) -> IntArray:
        """A group for each of a step's examples, chosen apart from all others.

        Groups cut in order would all change when one example is missing; here only its own does.
        """
        generator = self._generator if self._seed is None else generator_for(self._seed, _SAMPLING, step, 1)
        return generator.integers(self._privacy.slots, size=count)

    def _generator_of(self, step: int) -> np.random.Generator:
        return self._generator if self._seed is None else generator_for(self._seed, _SAMPLING, step)
