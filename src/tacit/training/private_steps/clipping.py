"""From an example's norm to the factor that scales its gradient, and the sum that these add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tacit.training.private_steps.settings import StepPrivacy

_AUTOMATIC_STABILITY = 0.01  # gamma of Bu et al. 2022, "Automatic clipping", their default
_SQUARES_AT_ONCE = 256
ADDED_AT_ONCE = 512
"""Positions whose products are added up at once: what rounding can do to an example's part grows with it."""


def clip_factors(norms: Tensor, privacy: StepPrivacy) -> Tensor:
    """Factors that bring every gradient to at most norm C; 0 where the norm is not finite.

    Each is a function of its own example's norm alone.
    """
    if privacy.clipping == "flat":
        factors = (privacy.clip / norms.clamp(min=1e-30)).clamp(max=1.0)
    else:
        factors = privacy.clip / (norms + _AUTOMATIC_STABILITY)
    return torch.where(torch.isfinite(norms), factors, 0.0)


def norms_of_rows(rows_BX: Tensor) -> Tensor:
    """Norm of every row in float64, to 1e-5 whatever is in it: fp32 sums are of 256 squares at most.

    A plain norm in fp32 is off by up to 0.3% where a million values are equal.
    """
    if rows_BX.dtype.itemsize < 4:  # a norm has the precision of what it is taken of
        rows_BX = rows_BX.float()
    examples, blocks = len(rows_BX), rows_BX.shape[1] // _SQUARES_AT_ONCE
    even = blocks * _SQUARES_AT_ONCE
    most = torch.linalg.vector_norm(rows_BX[:, :even].view(examples, blocks, _SQUARES_AT_ONCE), dim=2)
    rest = torch.linalg.vector_norm(rows_BX[:, even:], dim=1, keepdim=True)
    norms: Tensor = torch.linalg.vector_norm(torch.cat([most, rest], dim=1).double(), dim=1)
    return norms


def norm_of(gradients: Sequence[Tensor]) -> Tensor:
    """Norm of one example's gradient over all parameters, as precise."""
    norm: Tensor = torch.linalg.vector_norm(
        torch.cat([norms_of_rows(one.reshape(1, -1)) for one in gradients])
    )
    return norm


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
        for rows, columns in zip(
            torch.split(rows_NR, ADDED_AT_ONCE), torch.split(columns_NC, ADDED_AT_ONCE), strict=True
        ):
            self._total.addmm_(rows.T, columns, beta=self._beta())

    def add_weighted(self, gradients_BX: Tensor, factors_B: Tensor) -> None:
        """Add per-example gradients, each times its factor."""
        self._total.view(-1).addmv_(gradients_BX.T, factors_B, beta=self._beta())

    def add_at(self, rows_N: Tensor, gradients_NC: Tensor) -> None:
        """Add to some rows of a matrix; a row may come several times."""
        total = self.total()
        for rows, gradients in zip(
            torch.split(rows_N, ADDED_AT_ONCE), torch.split(gradients_NC, ADDED_AT_ONCE), strict=True
        ):
            own, place = rows.unique(return_inverse=True)  # type: ignore[no-untyped-call]
            summed = gradients.new_zeros(len(own), gradients.shape[1]).index_add_(0, place, gradients)
            total.index_add_(0, own, summed)

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

    @property
    def on_cpu(self) -> bool:
        """Whether all of it is the processor's own work."""
        return all(parameter.device.type == "cpu" for parameter in self._sums)

    def clear(self) -> None:
        """Begin again with nothing."""
        for own in self._sums.values():
            own.clear()

    def totals(self) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Every parameter with its sum, zeros where nothing was added."""
        return ((parameter, own.total()) for parameter, own in self._sums.items())
