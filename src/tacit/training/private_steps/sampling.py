"""Which examples a private step sees: each by its own coin, whatever the others' coins say."""

from __future__ import annotations

import numpy as np

from tacit.training.encoding import IntArray
from tacit.training.private_steps.keystream import Keystream
from tacit.training.private_steps.settings import StepPrivacy

_SAMPLING = 1  # keeps a seeded run's streams apart; noise has another number


class PoissonSampler:
    """Draws the examples of each step.

    What holds: every example is in a step with probability ``sampling_rate``, independently of every other
    example and of every other step. Shuffled batches do not have this property, and an account that takes
    them for these is wrong by a factor of 4 to 9. With a seed, draws are a function of the seed and the step.
    """

    def __init__(self, privacy: StepPrivacy, seed: int | None = None) -> None:
        self._privacy = privacy
        self._seed = seed
        self._keystream = Keystream()

    def draw(self, step: int) -> IntArray:
        """The examples of a 0-based step in increasing order; often none where the rate is small."""
        coins = self._keystream_of(step, 0).uniforms(self._privacy.population)
        return np.flatnonzero(coins < self._privacy.sampling_rate)

    def slots(self, step: int, count: int) -> IntArray:
        """A group for each of a step's examples, chosen apart from all others.

        Groups cut in order would all change when one example is missing; here only its own does.
        """
        places = self._keystream_of(step, 1).uniforms(count) * self._privacy.slots
        return places.astype(np.int64)

    def _keystream_of(self, step: int, use: int) -> Keystream:
        return self._keystream if self._seed is None else Keystream.of(self._seed, _SAMPLING, step, use)
