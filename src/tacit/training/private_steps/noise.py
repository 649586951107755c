"""Gaussian noise for gradients, from a cipher's keystream.

Formal guarantee: values are N(0, 1) and independent for whoever cannot break AES-256, up to floating point,
out to 10.8 standard deviations; beyond lies less than 1e-26 of the law. As everywhere in DP-SGD, sums are
rounded to the gradient's precision, which no accountant models.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit.training.private_steps.keystream import Keystream

_NOISE = 2  # the stream of a seeded run
_AT_ONCE = 1 << 17  # values made at a time: what one operation writes is in cache for the next
_FAR_OUT = 2048.0  # of 2^31: radii of more than 5.3, for which 31 bits are too few to be normal

# sin(pi v / 2) / v and cos(pi v / 2) as polynomials in v^2 for |v| <= 1, through Chebyshev's nodes: 7e-9 and
# 3e-10 from them, well below fp32. Eleven products in cache are half the price of torch's sine and cosine.
SINE: Final = (
    1.5707963200386015,
    -0.6459637595835389,
    0.0796899183290277,
    -0.0046741438381522555,
    0.00015167170366522367,
)
COSINE: Final = (
    0.999999999779154,
    -1.2337005342322354,
    0.25366932217268334,
    -0.020862686709188703,
    0.0009177229241557347,
    -2.3824152422351075e-05,
)


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
        self._integers = torch.from_numpy(self._bytes[: 4 * _AT_ONCE].view(np.int32))
        self._floats = torch.empty(_AT_ONCE)
        self._scratch = torch.empty(3, _AT_ONCE // 2)
        self._sine, self._cosine = torch.tensor(SINE), torch.tensor(COSINE)

    def begin_step(self, step: int) -> None:
        """In a seeded run, start this step's own stream."""
        if self._seed is not None:
            self._keystream = Keystream.of(self._seed, _NOISE, step)

    @torch.no_grad()
    def fill(self, room: Tensor, deviation: float) -> None:
        """Overwrite with normal values."""
        for part in torch.split(room, _AT_ONCE):
            self._fill(part, deviation)

    def _fill(self, room: Tensor, deviation: float) -> None:
        pairs = (len(room) + 1) // 2
        self._keystream.fill(self._bytes[: 8 * pairs + 15])
        values = self._floats[: 2 * pairs].copy_(self._integers[: 2 * pairs])
        # Half a step makes as many numbers negative as not: each size comes with either sign, and none is 0.
        first, turn = values[:pairs].add_(0.5), values[pairs:].mul_(2.0**-31)
        square, wave, radius = (scratch[:pairs] for scratch in self._scratch)
        # The size of the first number gives the radius, its sign the side.
        torch.abs(first, out=radius)
        self._refine(radius)
        radius.mul_(2.0**-31).log_().mul_(-2).sqrt_().mul_(deviation)
        torch.mul(turn, turn, out=square)
        _polynomial(self._sine, square, out=wave).mul_(turn)
        torch.mul(radius[: len(room) - pairs], wave[: len(room) - pairs], out=room[pairs:])
        _polynomial(self._cosine, square, out=wave)
        torch.mul(torch.copysign(radius, first, out=radius), wave, out=room[:pairs])

    def _refine(self, sizes: Tensor) -> None:
        """Spread the smallest sizes, which make the largest values, over the whole step that each stands for.

        Otherwise no value would be beyond 6.7, where an example's gradient can be told from none for certain.
        """
        few = (sizes < _FAR_OUT).nonzero().squeeze(1)
        if len(few):
            within = torch.from_numpy(self._keystream.uniforms(len(few)) + 2.0**-54)
            sizes[few] = (sizes[few].double() - 0.5 + within).float()


def _polynomial(coefficients: Tensor, at: Tensor, *, out: Tensor) -> Tensor:
    """By Horner's rule."""
    *rest, second, first = coefficients.unbind()
    torch.mul(at, first, out=out).add_(second)  # addcmul is slow where two of three are single numbers
    for coefficient in reversed(rest):
        torch.addcmul(coefficient, at, out, out=out)
    return out


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
