"""What a mechanism returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# What rounding float64 sums and pmfs to sampling weights may take from a charge.
RELATIVE_SAFETY = 1e-9
ABSOLUTE_SAFETY = 1e-12


def padded(losses: Tensor) -> Tensor:
    """Losses as they are charged: with what rounding may have taken from them."""
    return losses * (1 + RELATIVE_SAFETY) + ABSOLUTE_SAFETY


@dataclass(frozen=True, repr=False)
class Mixture:
    """The distribution to sample from, and what sampling from it costs each part.

    pmf      [..., V] the only thing that a token may be drawn from
    weights  [..., k] how far each part is mixed in
    charges  [..., k] nats per part, to be booked *before* a token leaves
    sound    [..., k] False where a member was not finite and its slot answered as the public model

    Weights, charges and alarms are functions of private text: they are the operator's and have no form for
    the wire. The representation shows shapes only, so that a log line does not carry them either.
    """

    pmf: Tensor
    weights: Tensor
    charges: Tensor
    sound: Tensor

    def __repr__(self) -> str:
        return f"Mixture(pmf {tuple(self.pmf.shape)}, {self.charges.shape[-1]} parts)"
