"""From an example's norm to the factor that scales its gradient, and the sum that these add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tacit.training.private_steps.settings import StepPrivacy

_AUTOMATIC_STABILITY = 0.01  # gamma of Bu et al. 2022, "Automatic clipping", their default


def clip_factors(norms: Tensor, privacy: StepPrivacy) -> Tensor:
    """Factors that bring every gradient to at most norm C; 0 where the norm is not finite.

    Each is a function of its own example's norm alone.
    """
    if privacy.clipping == "flat":
        factors = (privacy.clip / norms.clamp(min=1e-30)).clamp(max=1.0)
    else:
        factors = privacy.clip / (norms + _AUTOMATIC_STABILITY)
    return torch.where(torch.isfinite(norms), factors, 0.0)


class GradientSum:
    """The sum of clipped gradients of one step, by parameter, in fp32."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._sums = [
            torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.contiguous_format)
            for parameter in self.parameters
        ]
        self._places = {id(parameter): place for place, parameter in enumerate(self.parameters)}

    def __iter__(self) -> Iterator[Tensor]:
        """The sums, in the order of the parameters."""
        return iter(self._sums)

    def clear(self) -> None:
        """Begin again with zeros. The memory is kept: fresh pages cost more than clearing these."""
        torch._foreach_zero_(self._sums)

    def of(self, parameter: nn.Parameter) -> Tensor:
        """The sum for one parameter, to add to."""
        return self._sums[self._places[id(parameter)]]

    def add(self, gradients: Sequence[Tensor], factor: float) -> None:
        """Add one example's gradients, scaled."""
        torch._foreach_add_(self._sums, list(gradients), alpha=factor)
