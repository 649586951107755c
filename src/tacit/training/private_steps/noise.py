"""Gaussian noise for gradients, from a generator with the operating system's entropy or from it directly.

Formal guarantee: values are independent N(0, 1) up to floating point. As everywhere in DP-SGD, sums are
rounded to the gradient's precision, which no accountant models.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.training.private_steps.sampling import generator_for

_NOISE = 2  # the stream of a seeded run
_AT_ONCE = 1 << 16  # values made at a time: what one operation writes is in cache for the next


class NoiseSource(Protocol):
    """Where noise comes from."""

    def begin_step(self, step: int) -> None:
        """Make ready for a 0-based step."""
        ...

    def normals(self, count: int) -> Tensor:
        """So many standard normal values, in fp32 on the CPU."""
        ...


class GeneratorNoise:
    """A fast generator that starts from 256 bits of entropy; never saved, so that no noise comes twice.

    With a seed (experiments and tests only), noise is a function of the seed and the step.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._generator = generator_for(None)

    def begin_step(self, step: int) -> None:
        """In a seeded run, start this step's own stream."""
        if self._seed is not None:
            self._generator = generator_for(self._seed, _NOISE, step)

    def normals(self, count: int) -> Tensor:
        """So many standard normal values."""
        return torch.from_numpy(self._generator.standard_normal(count, dtype=np.float32))


class SystemNoise:
    """Every value from the operating system's CSPRNG, by Box and Muller in float64: ``secure_noise``."""

    def begin_step(self, step: int) -> None:
        """Nothing to make ready: there is no state."""

    def normals(self, count: int) -> Tensor:
        """So many standard normal values."""
        pairs = (count + 1) // 2
        bits = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64)
        uniforms = (bits >> np.uint64(11)).astype(np.float64)
        radius = np.sqrt(-2 * np.log((uniforms[:pairs] + 0.5) * 2.0**-53))  # never the logarithm of 0
        angle = uniforms[pairs:] * (2 * math.pi * 2.0**-53)
        values = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
        return torch.from_numpy(values).float()


@torch.no_grad()
def add_noise(tensor: Tensor, source: NoiseSource, deviation: float, divisor: float) -> None:
    """Turn a sum into (sum + deviation * noise) / divisor, in place."""
    flat = tensor.view(-1)
    for part in torch.split(flat, _AT_ONCE):
        if deviation:
            part.add_(source.normals(len(part)).to(part.device, part.dtype), alpha=deviation)
        part.div_(divisor)
