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


class ParameterSum:
    """The sum for one parameter. What is added first overwrites: memory need not be cleared or read."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._total = torch.empty_like(
            parameter, dtype=torch.float32, memory_format=torch.contiguous_format, requires_grad=False
        )
        self._empty = True

    def clear(self) -> None:
        """Begin again; the memory is kept, since fresh pages cost more than using these."""
        self._empty = True

    def total(self) -> Tensor:
        """The sum so far."""
        if self._empty:
            self._total.zero_()
            self._empty = False
        return self._total

    def add_product(self, rows_NR: Tensor, columns_NC: Tensor) -> None:
        """Add ``rows' columns`` to a matrix."""
        self._total.addmm_(rows_NR.T, columns_NC, beta=self._beta())

    def add_weighted(self, gradients_BX: Tensor, factors_B: Tensor) -> None:
        """Add per-example gradients, each times its factor."""
        self._total.view(-1).addmv_(gradients_BX.T, factors_B, beta=self._beta())

    def add_at(self, rows_N: Tensor, gradients_NC: Tensor) -> None:
        """Add to some rows of a matrix; a row may come several times."""
        self.total().index_add_(0, rows_N, gradients_NC)

    def add_scaled(self, gradient: Tensor, factor: float) -> None:
        """Add one example's gradient."""
        if self._beta():
            self._total.add_(gradient, alpha=factor)
        else:
            torch.mul(gradient, factor, out=self._total)

    def _beta(self) -> int:
        beta = 0 if self._empty else 1
        self._empty = False
        return beta


class GradientSum:
    """The sum of clipped gradients of one step, in fp32."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._sums = {parameter: ParameterSum(parameter) for parameter in parameters}

    def __getitem__(self, parameter: nn.Parameter) -> ParameterSum:
        """The sum for one parameter."""
        return self._sums[parameter]

    def clear(self) -> None:
        """Begin again with nothing."""
        for own in self._sums.values():
            own.clear()

    def totals(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Every parameter with its sum, zeros where nothing was added."""
        return ((parameter, own.total()) for parameter, own in self._sums.items())
