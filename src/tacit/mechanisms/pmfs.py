"""Next-token distributions as mechanisms take them: checked, float64, with one floor for all.

Shapes: k parts, V tokens, leading axes are independent queries (a batch, the positions of a text).

Every pmf, the public one too, is mixed with a little of the uniform distribution (`FLOOR`). The floor does
not depend on any data, and it makes all supports equal: without it a token that one model underflows to
zero would cost an infinite divergence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.errors import InputError

FLOOR = 1e-9
# What single precision leaves of a sum of one after a softmax over a large vocabulary.
SUM_TOLERANCE = 1e-5


@dataclass(frozen=True)
class MemberPmfs:
    """Floored pmfs of members and of the public model, with the leading axes flattened into one.

    members  [N, k, ..., V]; a slot whose pmf was not finite holds the public pmf instead
    public   [N, V]
    sound    [N, k]; False where a slot was replaced
    leading  the axes that were flattened
    """

    members: Tensor
    public: Tensor
    sound: Tensor
    leading: tuple[int, ...]

    def restore(self, flat: Tensor) -> Tensor:
        """Give a result back the leading axes of the input."""
        return flat.reshape(*self.leading, *flat.shape[1:])


def member_pmfs(members: Any, public: Any, *, halves: bool) -> MemberPmfs:
    """Check and floor ``members`` [..., k, 2, V] (or [..., k, V]) and ``public`` [..., V].

    A member that is not finite makes its own slot answer as the public model: that is a function of this
    part alone. Making the whole query public instead would tell an observer that some part failed.
    """
    inner = 3 if halves else 2
    shape = "[..., k, 2, V]" if halves else "[..., k, V]"
    values, base = _tensor(members), _tensor(public)
    if values.ndim < inner or (halves and values.shape[-2] != 2):
        raise InputError(f"members have shape {tuple(values.shape)}; expected {shape}.")
    if values.shape[-inner] < 1:
        raise InputError("no parts: an ensemble has at least one.")
    if base.ndim < 1 or values.shape[-1] != base.shape[-1]:
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
    values = values.reshape(-1, *values.shape[-inner:])
    base = base.reshape(-1, base.shape[-1])
    if not bool(torch.isfinite(base).all()):
        raise InputError("the public model's pmf is not finite; nothing can be answered.")
    _refuse_what_is_no_pmf(base, "public")
    # One reduction finds every non-finite entry: infinities and NaN survive a sum.
    sums = values.sum(-1)
    sound = torch.isfinite(sums).flatten(2).all(-1) if halves else torch.isfinite(sums)
    slots = sound.view(*sound.shape, *(1,) * (inner - 1))
    whole = base.view(len(base), *(1,) * (inner - 1), -1)
    if not bool(sound.all()):
        values = torch.where(slots, values, whole)
        sums = values.sum(-1)
    _refuse_what_is_no_pmf(values, "members", sums)
    return MemberPmfs(_floored(values, sums), _floored(base, base.sum(-1)), sound, tuple(leading))


def floored_public(public: Any) -> Tensor:
    """The public model's own answer, with the floor that every distribution has."""
    base = _tensor(public)
    if not bool(torch.isfinite(base).all()):
        raise InputError("the public model's pmf is not finite; nothing can be answered.")
    _refuse_what_is_no_pmf(base, "public")
    return _floored(base, base.sum(-1))


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().to(torch.float64)
    return torch.from_numpy(np.array(values, dtype=np.float64))


def _refuse_what_is_no_pmf(values: Tensor, name: str, sums: Tensor | None = None) -> None:
    if bool((values.amin() < 0).item()):
        raise InputError(f"{name}: a pmf has no negative entries.")
    worst = float(((values.sum(-1) if sums is None else sums) - 1).abs().max())
    if worst > SUM_TOLERANCE:
        raise InputError(f"{name}: a pmf's sum is off by {worst:.2g}; normalise it to 1.")


def _floored(values: Tensor, sums: Tensor) -> Tensor:
    """Normalise exactly and mix with the uniform distribution."""
    return torch.mul(values, ((1 - FLOOR) / sums).unsqueeze(-1)).add_(FLOOR / values.shape[-1])
