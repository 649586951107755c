"""Gaussian noise for gradients, from a cipher's keystream.

Formal guarantee: values are N(0, 1) and independent for whoever cannot break AES-256, up to floating point,
out to 10.8 standard deviations; beyond lies less than 1e-26 of the law. As everywhere in DP-SGD, sums are
rounded to the gradient's precision, which no accountant models.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.training.private_steps.keystream import Keystream

_NOISE = 2  # the stream of a seeded run
_AT_ONCE = 1 << 17  # values made at a time: what one operation writes is in cache for the next
_FAR_OUT = 2048.0  # of 2^31: radii of more than 5.3, for which 31 bits are too few to be normal
_SIGN = np.int32(-(1 << 31))


class NoiseSource(Protocol):
    """Where noise comes from."""

    def begin_step(self, step: int) -> None:
        """Make ready for a 0-based step."""
        ...

    def fill(self, room: Tensor, deviation: float) -> None:
        """Overwrite an fp32 vector on the CPU with normal values of mean 0."""
        ...


class CipherNoise:
    """Normal values by Box and Muller, in pairs, from 32 bits of a keystream each, and 53 more far out.

    With a seed (experiments and tests only), noise is a function of the seed and the step.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._keystream = Keystream()
        self._bytes = np.empty(4 * _AT_ONCE + 15, np.uint8)
        self._integers = self._bytes[: 4 * _AT_ONCE].view(np.int32)
        self._scratch = np.empty((2, _AT_ONCE // 2), np.float32)

    def begin_step(self, step: int) -> None:
        """In a seeded run, start this step's own stream."""
        if self._seed is not None:
            self._keystream = Keystream.of(self._seed, _NOISE, step)

    @torch.no_grad()
    def fill(self, room: Tensor, deviation: float) -> None:
        """Overwrite with normal values."""
        for part in torch.split(room, _AT_ONCE):
            if len(part) % 2:
                even = torch.empty(len(part) + 1)
                self._fill(even.numpy(), deviation)
                part.copy_(even[:-1])
            else:
                self._fill(part.numpy(), deviation)

    def _fill(self, room: npt.NDArray[np.float32], deviation: float) -> None:
        # NumPy's logarithm, sine and cosine take half the time of torch's, and are right to 3e-7 and 1e-7.
        pairs = len(room) // 2
        self._keystream.fill(self._bytes[: 8 * pairs + 15])
        integers, (radius, wave) = self._integers[: 2 * pairs], self._scratch[:, :pairs]
        np.copyto(room, integers, casting="unsafe")
        first, turn = room[:pairs], room[pairs:]
        # Half a step makes as many numbers negative as not: each size comes with either sign, and none is 0.
        first += np.float32(0.5)
        # The size of the first number gives the radius, its sign the side.
        np.abs(first, out=radius)
        self._refine(radius)
        radius *= np.float32(2.0**-31)
        np.log(radius, out=radius)
        radius *= np.float32(-2 * deviation**2)
        np.sqrt(radius, out=radius)
        turn *= np.float32(math.pi / 2 * 2.0**-31)
        np.cos(turn, out=wave)
        np.multiply(radius, wave, out=first)
        side = np.bitwise_and(integers[:pairs], _SIGN, out=integers[:pairs])
        np.bitwise_xor(first.view(np.int32), side, out=first.view(np.int32))
        np.sin(turn, out=wave)
        np.multiply(radius, wave, out=turn)

    def _refine(self, sizes: npt.NDArray[np.float32]) -> None:
        """Spread the smallest sizes, which make the largest values, over the whole step that each stands for.

        Otherwise no value would be beyond 6.7, where an example's gradient can be told from none for certain.
        """
        few = np.flatnonzero(sizes < _FAR_OUT)
        if len(few):
            within = self._keystream.uniforms(len(few)) + 2.0**-54
            sizes[few] = sizes[few].astype(np.float64) - 0.5 + within


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
