"""Next-token distributions as mechanisms take them: checked, and with one floor for all.

Shapes: k parts, V tokens, leading axes are independent queries (a batch, the positions of a text).

Every pmf, the public one too, is mixed with a little of the uniform distribution (`FLOOR`). The floor does
not depend on any data, and it makes all supports equal: without it a token that one model underflows to
zero would cost an infinite divergence.

What is sampled and charged is float64, whatever comes in. The *weights* of members that come in single
precision are searched in single precision: a weight may be any function of its part, and only the charge must
be exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError

FLOOR = 1e-9
# How far a sum may be from one; whatever is accepted is normalised exactly. What `Decoding` gives is within
# 1e-6 whatever the models say, so that no text can make a query be refused.
SUM_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}


@dataclass(frozen=True)
class MemberPmfs:
    """Distributions of members and of the public model, with the leading axes flattened into one.

    members  [N, k, H, V] as they came, H models per part, with whatever an unsound slot holds
    parts    [N, k, V] the mean of each part's models, float64 and floored; public where a slot is unsound
    public   [N, V] float64, floored
    sound    [N, k] False where a slot's pmf was not finite
    leading  the axes that were flattened
    """

    members: Tensor
    parts: Tensor
    public: Tensor
    sound: Tensor
    leading: tuple[int, ...]

    @property
    def single_precision(self) -> bool:
        """Whether the members came in less than float64."""
        return self.members.dtype != torch.float64

    def floored(self) -> Tensor:
        """[N, k, H, V] all members, float64 and floored; what an unsound slot holds is no number."""
        return _floored(self.members.double())

    def restore(self, flat: Tensor) -> Tensor:
        """Give a result back the leading axes of the input."""
        return flat.reshape(*self.leading, *flat.shape[1:])


def member_pmfs(members: Any, public: Any, *, halves: bool) -> MemberPmfs:
    """Check ``members`` [..., k, 2, V] (or [..., k, V]) and ``public`` [..., V].

    A member that is not finite makes its own slot answer as the public model: that is a function of this
    part alone. Making the whole query public instead would tell an observer that some part failed.
    """
    inner = 3 if halves else 2
    shape = "[..., k, 2, V]" if halves else "[..., k, V]"
    values, base = as_numbers(members, "members"), as_numbers(public, "public")
    if values.ndim < inner or (halves and values.shape[-2] != 2):
        raise InputError(f"members have shape {tuple(values.shape)}; expected {shape}.")
    if values.shape[-inner] < 1:
        raise InputError("no parts: an ensemble has at least one.")
    if not values.numel() or not base.numel():
        raise InputError(f"members have shape {tuple(values.shape)}: there is nothing to mix.")
    if base.ndim < 1:
        raise InputError("public has shape (); expected [..., V].")
    if values.shape[-1] != base.shape[-1]:
        raise InputError(
            f"members predict {values.shape[-1]} tokens and the public model {base.shape[-1]}: "
            "they must share one vocabulary."
        )
    leading = values.shape[:-inner]
    try:
        base = base.expand(*leading, base.shape[-1])
    except RuntimeError:
        raise InputError(
            f"public has shape {tuple(base.shape)}, members {tuple(values.shape)}: leading axes must agree."
        ) from None
    values = values.reshape(-1, values.shape[-inner], 2 if halves else 1, values.shape[-1])
    base = base.reshape(-1, base.shape[-1])
    # One reduction finds every non-finite entry: infinities and NaN survive a sum.
    sums = values.sum(-1)
    sound = torch.isfinite(sums).all(-1)
    whole = sound.unsqueeze(-1)
    _refuse_what_is_no_pmf(torch.where(whole, values.amin(-1), 0.0), torch.where(whole, sums, 1.0), "members")
    total = values[:, :, 0].to(torch.float64, copy=True)
    for half in range(1, values.shape[2]):
        total += values[:, :, half]
    # Whether or not there is one that is not sound: the work must not tell.
    total = torch.where(whole, total, base.double().unsqueeze(1))
    return MemberPmfs(values, _floored(total), floored_public(base), sound, tuple(leading))


def floored_public(public: Any) -> Tensor:
    """The public model's own answer, with the floor that every distribution has."""
    base = as_numbers(public, "public")
    if base.ndim < 1 or not base.numel():
        raise InputError(f"public has shape {tuple(base.shape)}; expected [..., V].")
    sums = base.sum(-1)
    if not bool(torch.isfinite(sums).all()):
        raise InputError("the public model's pmf is not finite; nothing can be answered.")
    _refuse_what_is_no_pmf(base.amin(-1), sums, "public")
    return _floored(base.double())


def _floored(values: Tensor) -> Tensor:
    """Float64 rows of any positive sum as distributions with the floor;"""
    scale = (1 - FLOOR) / values.sum(-1, keepdim=True)
    return torch.mul(values, scale).add_(FLOOR / values.shape[-1])


def as_numbers(values: Any, name: str) -> Tensor:
    """A tensor of single or double precision, from whatever holds real numbers in rows of one length."""
    if isinstance(values, Tensor):
        if values.is_complex():
            raise InputError(f"{name} holds complex numbers; real ones are needed.")
        kept = values.dtype in (torch.float32, torch.float64)
        return values.detach() if kept else values.detach().to(torch.float32)
    try:
        found = np.asarray(values)
        if np.iscomplexobj(found):
            raise InputError(f"{name} holds complex numbers; real ones are needed.")
        return torch.from_numpy(found.astype(np.float64))
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name} is no array of numbers: rows must hold numbers and be equally long."
        ) from None


def _refuse_what_is_no_pmf(least: Tensor, sums: Tensor, name: str) -> None:
    if bool((least.amin() < 0).item()):
        raise InputError(f"{name}: a pmf has no negative entries.")
    worst = float((sums - 1).abs().max())
    if worst > SUM_TOLERANCE[sums.dtype]:
        raise InputError(f"{name}: a pmf's sum is off by {worst:.2g}; normalise it to 1.")
