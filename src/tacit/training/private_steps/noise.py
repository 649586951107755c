"""Gaussian noise for gradients, from a generator with the operating system's entropy or from it directly.

Formal guarantee: values are independent N(0, 1) up to floating point. As everywhere in DP-SGD, sums are
rounded to the gradient's precision, which no accountant models.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.errors import EnvironmentProblem

_NOISE = 2  # the stream of a seeded run
_AT_ONCE = 1 << 16  # values made at a time: what one operation writes is in cache for the next
_WORDS = 624  # of 32 bits, the state of a Mersenne Twister


class NoiseSource(Protocol):
    """Where noise comes from."""

    def begin_step(self, step: int) -> None:
        """Make ready for a 0-based step."""
        ...

    def fill(self, room: Tensor, deviation: float) -> None:
        """Overwrite an fp32 vector on the CPU with normal values of mean 0."""
        ...


class GeneratorNoise:
    """torch's fast generator, started from 2 kB of entropy; never saved, so that no noise comes twice.

    With a seed (experiments and tests only), noise is a function of the seed and the step.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._generator = twister(_fresh_words())

    def begin_step(self, step: int) -> None:
        """In a seeded run, start this step's own stream."""
        if self._seed is not None:
            words = np.random.SeedSequence([self._seed, _NOISE, step]).generate_state(_WORDS)
            self._generator = twister(words.astype(np.uint32))

    def fill(self, room: Tensor, deviation: float) -> None:
        """Overwrite with normal values."""
        room.normal_(0, deviation, generator=self._generator)


class SystemNoise:
    """Every value from the operating system's CSPRNG, by Box and Muller in float64: ``secure_noise``."""

    def begin_step(self, step: int) -> None:
        """Nothing to make ready: there is no state."""

    def fill(self, room: Tensor, deviation: float) -> None:
        """Overwrite with normal values."""
        pairs = (len(room) + 1) // 2
        bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64)
        uniforms = (bits >> np.uint64(11)).astype(np.float64)
        radius = np.sqrt(-2 * np.log((uniforms[:pairs] + 0.5) * 2.0**-53))  # never the logarithm of 0
        angle = uniforms[pairs:] * (2 * math.pi * 2.0**-53)
        values = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        room.copy_(torch.from_numpy(values[: len(room)] * deviation))


def _fresh_words() -> npt.NDArray[np.uint32]:
    return np.frombuffer(os.urandom(4 * _WORDS), dtype=np.uint32)


def twister(words: npt.NDArray[np.uint32]) -> torch.Generator:
    """torch's Mersenne Twister with the whole of its state given.

    ``manual_seed`` would use 32 bits of a seed. Those can be searched through in minutes, and noise that is
    found again hides nothing.
    """
    generator = torch.Generator()
    state = generator.get_state().numpy()
    # The layout: seed (8 bytes), words left (4), seeded (4), place (8), then the words, each in 8 bytes.
    # One word left: the next draw makes new ones first.
    state[8:12] = np.array([1], dtype=np.int32).view(np.uint8)
    state[16:24] = 0
    state[24 : 24 + 8 * _WORDS] = words.astype(np.uint64).view(np.uint8)
    generator.set_state(torch.from_numpy(state))
    reference = np.random.MT19937()
    reference.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": _WORDS}}
    drawn = torch.empty(4, dtype=torch.int32).random_(2**24, generator=generator)
    if drawn.tolist() != (reference.random_raw(4) % 2**24).tolist():
        raise EnvironmentProblem(
            "This version of torch keeps its random state in another form, so that noise could not be given "
            "its entropy; use secure_noise."
        )
    return generator


class Noisy:
    """Turns sums into what a step releases, with room for noise that is kept from step to step."""

    def __init__(self, source: NoiseSource) -> None:
        self._source = source
        self._room = torch.empty(_AT_ONCE)

    def begin_step(self, step: int) -> None:
        """Make ready for a 0-based step."""
        self._source.begin_step(step)

    @torch.no_grad()
    def release(self, total: Tensor, deviation: float, divisor: float) -> bool:
        """Turn a sum into (sum + deviation * noise) / divisor, in place; whether it is finite everywhere."""
        finite = True
        for part in torch.split(total.view(-1), _AT_ONCE):
            if deviation:
                room = self._room[: len(part)]
                self._source.fill(room, deviation / divisor)
                torch.add(room.to(part.device), part, alpha=1 / divisor, out=part)
            else:
                part.mul_(1 / divisor)
            finite &= bool(torch.isfinite(part.sum()))
        return finite
