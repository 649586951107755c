"""SubMix: mix an ensemble of half-models with the public model, and charge what leaving a part out changes.

Formal guarantee. With every charge booked against a budget eps before its token is drawn, and STOP when a
budget is gone, the answers are (order, eps)-ROP: for *this* corpus and partition, the transcripts with and
without one part, both cut at the same stopping time, diverge by at most eps. This is instance-specific and
not differential privacy. Weights depend on their own part only, which is what makes the leave-one-out
distribution computable.

| case                          | answer                                                                |
|-------------------------------|-----------------------------------------------------------------------|
| both halves equal             | weight = cap, whatever the target                                     |
| a half that is not finite     | the slot answers as the public model, weight 0, `sound` False         |
| k = 1                         | without its part the ensemble is empty: the public model              |
| guard                         | null-part neighbours; no charge above the guard; per-part mixing only |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.mechanisms.chi_squared import ChiSquaredPairs
from tacit.mechanisms.divergence import DivergenceSum, blocks_of
from tacit.mechanisms.mixture import ABSOLUTE_SAFETY, RELATIVE_SAFETY, Mixture, padded
from tacit.mechanisms.pmfs import MemberPmfs, member_pmfs
from tacit.mechanisms.public_centred import check_mixing, weights_within
from tacit.mechanisms.weights import allowed_excess, largest_weights
from tacit.privacy.conversions import check_number

_LEAST_GUARD = 1e-9  # budgets are counted in billionths
Mixing = Literal["per_part", "averaged"]
Weights = Literal["symmetric", "paper"]


@dataclass(frozen=True)
class SubMix:
    """Private prediction by SubMix.

    order    Renyi order, above 1
    target   how far apart (nats) the two halves of a part may be after mixing: Eq. 2's beta
    mixing   ``per_part``: each part is mixed with its own weight. ``averaged``: Algorithm 2 as printed, where
             a part with weight 0 still contributes through the mean
    weights  ``symmetric``: both directions of Eq. 2. ``paper``: the printed direction only
    guard    no query may cost a part more than this; ``None`` leaves the leave-one-out charge unbounded
    cap      no weight above this
    """

    order: float = 2.0
    target: float = 0.01
    mixing: Mixing = "per_part"
    weights: Weights = "symmetric"
    guard: float | None = None
    cap: float = 1.0

    def __post_init__(self) -> None:
        check_mixing(self.order, self.target, self.cap)
        if self.mixing not in ("per_part", "averaged"):
            raise InputError(f"mixing={self.mixing!r}: choose 'per_part' or 'averaged'.")
        if self.weights not in ("symmetric", "paper"):
            raise InputError(f"weights={self.weights!r}: choose 'symmetric' or 'paper'.")
        if self.guard is not None:
            check_number("guard", self.guard)
            if not _LEAST_GUARD <= self.guard < math.inf:
                raise InputError(
                    f"guard={self.guard}: the most a query may cost is a finite number of at least 1e-9."
                )
            if self.mixing == "averaged":
                raise InputError("guard bounds nothing with averaged mixing; use mixing 'per_part'.")

    def mix(self, halves: Any, public: Any) -> Mixture:
        """The mixture for halves [..., k, 2, V] and public [..., V]."""
        pmfs = member_pmfs(halves, public, halves=True)
        weights = self._weights(pmfs)
        mix = _averaged if self.mixing == "averaged" else _per_part
        pmf = torch.empty_like(pmfs.public)
        charge = DivergenceSum(pmfs.sound.shape, self.order)
        # Block by block over the vocabulary, so that nothing of size [N, k, V] is kept.
        for block in blocks_of(pmf.shape[-1], 4 * pmfs.sound.numel()):
            base = pmfs.public[:, block].unsqueeze(1)
            whole, without = mix(pmfs.parts[:, :, block], weights, base, null=self.guard is not None)
            pmf[:, block] = whole
            charge.add(whole.unsqueeze(1), without)
        charges = padded(charge.symmetric())
        return Mixture(*(pmfs.restore(part) for part in (pmf, weights, charges, pmfs.sound)))

    def _weights(self, pmfs: MemberPmfs) -> Tensor:
        excess = allowed_excess(self.order, self.target)
        limit = torch.tensor(self.cap, dtype=torch.float64)
        halves = pmfs.members if pmfs.single_precision and self.order == 2 else pmfs.floored()
        gaps = halves[:, :, :1] - halves[:, :, 1:]  # P is the first half, Q the second
        if self.weights == "paper":
            halves = halves[:, :, 1:]
        if self.order == 2:  # whose square does not ask which is which
            weights = ChiSquaredPairs(halves, gaps.square_(), pmfs.public).largest_weights(excess, limit)
        else:
            if self.weights == "symmetric":
                gaps = torch.cat((-gaps, gaps), dim=2)
            weights = largest_weights(halves, gaps, pmfs.public, order=self.order, excess=excess, limit=limit)
        weights = torch.where(pmfs.sound, weights, 0.0)
        if self.guard is None:
            return weights
        # Room for the safety that is added to the charge, so that it stays within the guard.
        room = max(0.0, (self.guard - 2 * ABSOLUTE_SAFETY) * (1 - 2 * RELATIVE_SAFETY))
        return weights_within(pmfs, order=self.order, loss=room, cap=self.cap, wanted=weights)


def _per_part(parts: Tensor, weights: Tensor, base: Tensor, *, null: bool) -> tuple[Tensor, Tensor]:
    """The mixture [N, n], and the mixtures without each part (or with each part public) [N, k, n].

    By sums from both sides, additions only: subtracting a part from the total loses every digit where that
    part alone has mass.
    """
    k = parts.shape[1]
    mixed = torch.lerp(base, parts, weights.unsqueeze(-1))
    others = sums_without_each(mixed)
    whole = (others[:, 0] + mixed[:, 0]) / k
    if null:
        return whole, others.add_(base).div_(k)
    return whole, base.expand_as(mixed) if k == 1 else others.div_(k - 1)


def _averaged(parts: Tensor, weights: Tensor, base: Tensor, *, null: bool) -> tuple[Tensor, Tensor]:
    """Algorithm 2 as printed: average the weights, average the parts, then mix."""
    assert not null  # noqa: S101 - refused when the mechanism was made
    k = parts.shape[1]
    whole = torch.lerp(base[:, 0], parts.mean(1), weights.mean(1, keepdim=True))
    if k == 1:
        return whole, base.expand_as(parts)
    weight_without = sums_without_each(weights.unsqueeze(-1)) / (k - 1)
    return whole, torch.lerp(base, sums_without_each(parts) / (k - 1), weight_without)


def sums_without_each(values: Tensor) -> Tensor:
    """For values [N, k, ...], the sum over all parts but each one, in O(k).

    A part's sum is its neighbour's value and what a smaller problem, that of pairs, says of both.
    """
    k = values.shape[1]
    if k == 1:
        return torch.zeros_like(values)
    if k == 2:
        return values.flip(1)
    paired = k - k % 2
    even, odd = values[:, 0:paired:2], values[:, 1:paired:2]
    beyond = sums_without_each(torch.cat((even + odd, values[:, paired:]), dim=1))
    sums = torch.empty_like(values)
    torch.add(beyond[:, : k // 2], odd, out=sums[:, 0:paired:2])
    torch.add(beyond[:, : k // 2], even, out=sums[:, 1:paired:2])
    sums[:, paired:] = beyond[:, k // 2 :]
    return sums
