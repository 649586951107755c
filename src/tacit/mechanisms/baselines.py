"""What SubMix is compared with: subsample-and-aggregate, GNMax, the public model, and no privacy at all.

Formal guarantees. Neighbours: one part's text changed arbitrarily, k fixed.

- :class:`SubsampleAggregate` adds Laplace noise to the mean pmf: (order, price)-RDP per token.
- :class:`GNMax` releases the noisy winner of a vote. Its price order/sigma^2 holds for every corpus and in
  both directions. The data-dependent one (Papernot et al. 2018, Theorem 6) is a function of the votes:
  instance-specific, and one-directional. It bounds D(answer || neighbour's answer); the reverse was seen 20
  times as large.
- :class:`Public` costs nothing. :class:`NonPrivate` has no guarantee; its charge is infinite, so that no
  filter ever lets it answer by mistake.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.mechanisms.mixture import RELATIVE_SAFETY, Mixture
from tacit.mechanisms.pmfs import member_pmfs
from tacit.privacy.conversions import check_number


def seeded_by_the_system() -> torch.Generator:
    """A noise generator whose seed nobody chose."""
    generator = torch.Generator()
    generator.manual_seed(secrets.randbits(63))
    return generator


@dataclass(frozen=True)
class SubsampleAggregate:
    """Mean pmf plus Laplace noise of scale ``scale`` per token, projected back to the simplex.

    The paper states an L1 sensitivity of 1/k; it is 2/k: a part can move mass 1/k from one token to another.
    Because pmf differences sum to zero, the worst case is two coordinates moving by 1/k each.
    """

    order: float = 2.0
    scale: float = 1.0
    noise: torch.Generator = field(default_factory=seeded_by_the_system, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_order(self.order)
        _check_scale("scale", self.scale)

    def price(self, parts: int) -> float:
        """Nats per token for k parts: twice the Renyi divergence of Laplace laws that are 1/k apart."""
        return 2 * laplace_divergence(1 / (parts * self.scale), self.order) * (1 + RELATIVE_SAFETY)

    def mix(self, parts: Any, public: Any) -> Mixture:
        """A noisy mean of parts [..., k, V]; the noise is drawn anew at every call."""
        pmfs = member_pmfs(parts, public, halves=False)
        mean = pmfs.parts.mean(1)
        uniform = torch.rand(mean.shape, dtype=torch.float64, generator=self.noise).clamp_(min=1e-300)
        sign = torch.randint(0, 2, mean.shape, generator=self.noise).mul_(2).sub_(1)
        noisy = mean - self.scale * sign * uniform.log()
        k = pmfs.sound.shape[1]
        charges = torch.full(pmfs.sound.shape, self.price(k), dtype=torch.float64)
        return Mixture(
            *(
                pmfs.restore(part)
                for part in (to_simplex(noisy), charges.new_ones(charges.shape), charges, pmfs.sound)
            )
        )


@dataclass(frozen=True)
class GNMax:
    """Each part votes for its likeliest token; the winner under Gaussian noise ``sigma`` is released.

    The mixture's pmf has all its mass on that token. The charge is order/sigma^2, or with ``data_dependent``
    the smaller of that and the published bound that knows how clear the vote was, which is one-directional.
    """

    order: float = 2.0
    sigma: float = 1.0
    data_dependent: bool = True
    noise: torch.Generator = field(default_factory=seeded_by_the_system, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_order(self.order)
        _check_scale("sigma", self.sigma)

    def mix(self, parts: Any, public: Any) -> Mixture:
        """The noisy winner among the votes of parts [..., k, V]."""
        pmfs = member_pmfs(parts, public, halves=False)
        votes = self.votes(pmfs.parts)
        noisy = votes + self.sigma * torch.randn(votes.shape, dtype=torch.float64, generator=self.noise)
        pmf = torch.zeros_like(votes).scatter_(-1, noisy.argmax(-1, keepdim=True), 1.0)
        price = torch.full(votes.shape[:1], self.order / self.sigma**2, dtype=torch.float64)
        if self.data_dependent:
            price = torch.minimum(price, self._data_dependent_price(votes))
        charges = price.unsqueeze(-1).expand(pmfs.sound.shape)
        ones = torch.ones(pmfs.sound.shape, dtype=torch.float64)
        return Mixture(*(pmfs.restore(part) for part in (pmf, ones, charges, pmfs.sound)))

    def votes(self, parts: Tensor) -> Tensor:
        """[..., V] how many parts rank each token first."""
        winners = parts.argmax(-1)
        votes = torch.zeros(*parts.shape[:-2], parts.shape[-1], dtype=torch.float64)
        return votes.scatter_add_(-1, winners, torch.ones(winners.shape, dtype=torch.float64))

    def probability_bound(self, votes: Tensor, token: Tensor) -> Tensor:
        """Upper bound on the probability that ``token`` [...] wins: perplexity from below (paper B.4)."""
        own = votes.gather(-1, token.unsqueeze(-1)).squeeze(-1)
        at_least = (votes >= own.unsqueeze(-1)).sum(-1).double()
        rival = votes.scatter(-1, token.unsqueeze(-1), -math.inf).amax(-1)
        beats_rival = torch.special.ndtr((own - rival) / (math.sqrt(2) * self.sigma))
        return torch.minimum(1 / at_least, beats_rival)

    def _data_dependent_price(self, votes: Tensor) -> Tensor:
        """Papernot et al. 2018, Theorem 6; infinite where its conditions do not hold. One direction only."""
        most = votes.amax(-1, keepdim=True)
        behind = (most - votes) / (2 * self.sigma)
        logs = torch.special.log_ndtr(-behind * math.sqrt(2))  # log(erfc(z)/2)
        logs = logs.scatter(-1, votes.argmax(-1, keepdim=True), -math.inf)
        log_q = torch.logsumexp(logs, -1)
        return torch.tensor([self._price_of(float(value)) for value in log_q], dtype=torch.float64)

    def _price_of(self, log_q: float) -> float:
        variance, order = self.sigma**2, self.order
        if log_q >= 0:
            return math.inf
        if log_q == -math.inf:
            return 0.0
        mu2 = self.sigma * math.sqrt(-log_q)
        mu1 = mu2 + 1
        if mu2 <= 1 or order > mu1:
            return math.inf
        eps1, eps2 = mu1 / variance, mu2 / variance
        ceiling = (mu2 - 1) * eps2 - mu2 * (math.log1p(1 / (mu1 - 1)) + math.log1p(1 / (mu2 - 1)))
        if log_q > ceiling or -log_q <= eps2:
            return math.inf
        log_p = math.log1p(-math.exp(log_q))
        inner = (log_q + eps2) * (1 - 1 / mu2)
        log_a = (order - 1) * (log_p - math.log(-math.expm1(inner)))
        log_b = (order - 1) * (eps1 - log_q / (mu1 - 1))
        first, second = log_p + log_a, log_q + log_b
        larger = max(first, second)
        return max(0.0, (larger + math.log1p(math.exp(min(first, second) - larger))) / (order - 1))


@dataclass(frozen=True)
class Public:
    """The public model alone: free, for ever."""

    def mix(self, parts: Any, public: Any) -> Mixture:
        """The public pmf, at no cost."""
        pmfs = member_pmfs(parts, public, halves=False)
        nothing = torch.zeros(pmfs.sound.shape, dtype=torch.float64)
        return Mixture(*(pmfs.restore(part) for part in (pmfs.public, nothing, nothing, pmfs.sound)))


@dataclass(frozen=True)
class NonPrivate:
    """The plain mean of all parts: no guarantee, for comparison only."""

    def mix(self, parts: Any, public: Any) -> Mixture:
        """The mean pmf, at an infinite price."""
        pmfs = member_pmfs(parts, public, halves=False)
        ones = torch.ones(pmfs.sound.shape, dtype=torch.float64)
        return Mixture(
            *(pmfs.restore(part) for part in (pmfs.parts.mean(1), ones, ones * math.inf, pmfs.sound))
        )


def laplace_divergence(shift: float, order: float) -> float:
    """Renyi divergence of two unit-scale Laplace laws ``shift`` apart (Mironov 2017, Table II).

    The logarithm of ``a/(2a-1) e^((a-1)x) + (a-1)/(2a-1) e^(-ax)``, over a-1. For small shifts that is 1 plus
    something of second order: both first-order terms cancel, and they are left out before they can.
    """
    grow, fall = order / (2 * order - 1), (order - 1) / (2 * order - 1)
    if order * shift < 1:
        excess = grow * _exp_beyond_first_order((order - 1) * shift)
        excess += fall * _exp_beyond_first_order(-order * shift)
        return math.log1p(excess) / (order - 1)
    # fall e^(-ax) / (grow e^((a-1)x)), which is small here.
    rest = fall / grow * math.exp(-(2 * order - 1) * shift)
    return (math.log(grow) + (order - 1) * shift + math.log1p(rest)) / (order - 1)


def _exp_beyond_first_order(x: float) -> float:
    """e^x - 1 - x for |x| <= 1, by its series: terms beyond the twentieth are below rounding."""
    total = 0.0
    for n in range(20, 1, -1):
        total = (total + 1) * x / n
    return total * x


def to_simplex(values: Tensor) -> Tensor:
    """Euclidean projection of each row onto the probability simplex (sorting method)."""
    ordered = values.sort(-1, descending=True).values
    shifted = (ordered.cumsum(-1) - 1) / torch.arange(1, values.shape[-1] + 1, dtype=values.dtype)
    support = (ordered > shifted).sum(-1, keepdim=True)
    return (values - shifted.gather(-1, support - 1)).clamp(min=0)


def _check_order(order: float) -> None:
    check_number("order", order)
    if not 1 < order < math.inf:
        raise InputError(f"order={order}: a finite Renyi order above 1 is needed, e.g. 2.")


def _check_scale(name: str, value: float) -> None:
    check_number(name, value)
    if not 1e-100 <= value <= 1e100:  # whose squares are numbers
        raise InputError(f"{name}={value}: the noise must be a number from 1e-100 to 1e100.")
