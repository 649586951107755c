"""Certified mixing: the same ensemble with a guarantee that holds for every corpus.

Both mechanisms mix one model per part with the public one, ``h = mean_i (w_i g_i + (1-w_i) r)``, and bound
each part's loss by :mod:`~tacit.mechanisms.public_centred`.

Formal guarantees (neighbours: one part's text replaced by nothing; k fixed and public):

- :class:`Certified`: every token costs every part exactly `target`, so B tokens are
  (order, B * target)-RDP. Price and counter are public; there is no STOP whose moment could leak.
- :class:`Individual`: a part pays its own l_i, limited to what is left of its budget and to `target`; the
  transcript is (order, largest budget)-RDP against adaptive clients. The budgets must stay secret. A part
  that has spent its budget fades to the public model; the service never stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tacit.errors import InputError
from tacit.mechanisms.mixture import ABSOLUTE_SAFETY, RELATIVE_SAFETY, Mixture, padded
from tacit.mechanisms.pmfs import MemberPmfs, as_numbers, member_pmfs
from tacit.mechanisms.public_centred import cap_for, check_mixing, slot_losses, weights_within
from tacit.privacy.filter import check_budget


@dataclass(frozen=True)
class Certified:
    """Fixed price per token.

    order   Renyi order, above 1
    target  the price of a token in nats, for every part
    cap     no weight above this; ``None`` chooses one by the number of parts and the price
    """

    order: float = 2.0
    target: float = 0.01
    cap: float | None = None

    def __post_init__(self) -> None:
        check_mixing(self.order, self.target, self.cap)

    def mix(self, parts: Any, public: Any) -> Mixture:
        """The mixture for parts [..., k, V] and public [..., V]; every charge is exactly ``target``."""
        pmfs = member_pmfs(parts, public, halves=False)
        cap = _cap_of(self, pmfs.sound.shape[-1])
        weights = weights_within(pmfs, order=self.order, loss=self._loss, cap=cap)
        charges = torch.full_like(weights, self.target)
        return _mixture(pmfs, torch.where(pmfs.sound, weights, 0.0), charges)

    def slot(self, part: Any, public: Any, *, parts: int) -> Mixture:
        """What slot i of ``parts`` answers, from part [..., V] and public [..., V] alone.

        Sampling from the mixture is drawing a slot uniformly and sampling from it, so that one part and the
        public model are all that has to run for a token. Which slot was drawn must stay secret.
        """
        if not isinstance(parts, int) or parts < 1:
            raise InputError(f"parts={parts}: a mixture has a whole number of slots, at least one.")
        values = as_numbers(part, "part")
        if values.ndim < 1:
            raise InputError("part has shape (); expected [..., V].")
        pmfs = member_pmfs(values.unsqueeze(-2), public, halves=False)
        weights = weights_within(pmfs, order=self.order, loss=self._loss, cap=_cap_of(self, parts), k=parts)
        charges = torch.full_like(weights, self.target)
        return _mixture(pmfs, torch.where(pmfs.sound, weights, 0.0), charges)

    @property
    def _loss(self) -> float:
        return self.target * (1 - 1e-9)  # what rounding may add to a loss stays below the price

    def queries(self, epsilon: float) -> int:
        """How many tokens a budget buys: a public number."""
        check_budget(epsilon)
        return math.floor(min(epsilon / self.target * (1 + 1e-12), 2.0**62))  # a price may be next to nothing


@dataclass(frozen=True)
class Individual:
    """Each part pays what it may have revealed.

    order, cap  as for :class:`Certified`
    target      the public ceiling per token
    """

    order: float = 2.0
    target: float = 0.01
    cap: float | None = None

    def __post_init__(self) -> None:
        check_mixing(self.order, self.target, self.cap)

    def mix(self, parts: Any, public: Any, remaining: Any | None = None) -> Mixture:
        """The mixture; ``remaining`` [..., k] limits each part to what is left of its budget."""
        pmfs = member_pmfs(parts, public, halves=False)
        cap = _cap_of(self, pmfs.sound.shape[-1])
        limit = torch.full(pmfs.sound.shape, self.target, dtype=torch.float64, device=pmfs.public.device)
        if remaining is not None:
            left = _one_per_part(as_numbers(remaining, "remaining"), pmfs)
            if bool(torch.isnan(left).any()):
                raise InputError("remaining budgets must be numbers.")
            limit = torch.minimum(limit, left.clamp(min=0.0))
        # Leave room for the safety that is added to the charge, so that it stays within what is left.
        room = ((limit - 2 * ABSOLUTE_SAFETY) * (1 - 2 * RELATIVE_SAFETY)).clamp(min=0.0)
        weights = weights_within(pmfs, order=self.order, loss=room, cap=cap)
        weights = torch.where(pmfs.sound & (room > 0), weights, 0.0)
        losses = slot_losses(pmfs, weights, order=self.order, cap=cap)
        charges = padded(losses)
        return _mixture(pmfs, weights, torch.where(weights > 0, charges, 0.0))


def _one_per_part(remaining: Tensor, pmfs: MemberPmfs) -> Tensor:
    wanted = (*pmfs.leading, pmfs.sound.shape[-1])
    try:
        return remaining.to(torch.float64).expand(wanted).reshape(pmfs.sound.shape)
    except RuntimeError:
        raise InputError(
            f"remaining has shape {tuple(remaining.shape)}; expected {wanted}: one number per part."
        ) from None


def _cap_of(mechanism: Certified | Individual, parts: int) -> float:
    if mechanism.cap is not None:
        return mechanism.cap
    return cap_for(parts, order=mechanism.order, target=mechanism.target)


def _mixture(pmfs: MemberPmfs, weights: Tensor, charges: Tensor) -> Mixture:
    mixed = torch.lerp(pmfs.public.unsqueeze(1), pmfs.parts, weights.unsqueeze(-1))
    return Mixture(*(pmfs.restore(part) for part in (mixed.mean(1), weights, charges, pmfs.sound)))
