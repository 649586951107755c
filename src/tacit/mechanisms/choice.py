"""A mechanism by name, with the settings that a person gives: order, price per query, mixing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from tacit.errors import InputError
from tacit.mechanisms.baselines import GNMax, NonPrivate, Public, SubsampleAggregate
from tacit.mechanisms.certified import Certified, Individual
from tacit.mechanisms.public_centred import cap_for
from tacit.mechanisms.submix import Mixing, SubMix, Weights
from tacit.privacy.conversions import check_number

MechanismName = Literal[
    "submix", "certified", "individual", "subsample_aggregate", "gnmax", "public", "nonprivate"
]
Mechanism = SubMix | Certified | Individual | SubsampleAggregate | GNMax | Public | NonPrivate


@dataclass(frozen=True)
class MechanismChoice:
    """What decides a mechanism. ``target`` is the price per query (SubMix: the halves' distance) in nats."""

    name: MechanismName = "submix"
    order: float = 2.0
    target: float = 0.01
    mixing: Mixing = "per_part"
    weights: Weights = "symmetric"
    guard: float | None = None
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(MechanismName):
            known = ", ".join(get_args(MechanismName))
            raise InputError(f"mechanism '{self.name}' is unknown; choose one of {known}.")
        check_number("order", self.order)
        check_number("target", self.target)
        if self.name != "submix":
            given = {
                "guard": self.guard is not None,
                "mixing": self.mixing != "per_part",
                "weights": self.weights != "symmetric",
            }
            for name, is_given in given.items():
                if is_given:
                    raise InputError(f"{name} belongs to mechanism submix, not to {self.name}; leave it out.")
        if self.cap is not None and self.name not in ("submix", "certified", "individual"):
            raise InputError(f"cap means nothing for mechanism {self.name}; leave it out.")

    @property
    def label(self) -> str:
        """The name with what tells SubMix's variants apart, e.g. `submix averaged, paper weights`."""
        if self.name != "submix":
            return self.name
        return f"submix {self.mixing}" + (", paper weights" if self.weights == "paper" else "")

    def build(self, parts: int) -> Mechanism:
        """The mechanism for an ensemble of ``parts``; noise is set so that a query costs the target."""
        cap = {} if self.cap is None else {"cap": self.cap}
        if self.name == "submix":
            built = SubMix(
                self.order, self.target, mixing=self.mixing, weights=self.weights, guard=self.guard, **cap
            )
            if built.guard is None or self.cap is not None:
                return built
            # The guard is the loss of certified mixing, and what is best for one is best for the other.
            return replace(built, cap=cap_for(parts, order=self.order, target=built.guard))
        if self.name == "certified":
            return Certified(self.order, self.target, **cap)
        if self.name == "individual":
            return Individual(self.order, self.target, **cap)
        if self.name == "subsample_aggregate":
            return SubsampleAggregate(self.order, _scale_for(self.order, self.target, parts))
        if self.name == "gnmax":
            if not self.target > 0:
                raise InputError(f"target={self.target}: the price per query must be above 0.")
            return GNMax(self.order, math.sqrt(self.order / self.target))
        return Public() if self.name == "public" else NonPrivate()


def needs_halves(mechanism: Mechanism) -> bool:
    """Whether a mechanism compares the two halves of a part."""
    return isinstance(mechanism, SubMix)


def _scale_for(order: float, price: float, parts: int) -> float:
    """The smallest Laplace scale, to a millionth, at which a query costs at most ``price``."""
    if not 0 < price < math.inf:
        raise InputError(f"target={price}: the price per query must be a finite number above 0.")
    low, high = 1e-12, 1.0
    while SubsampleAggregate(order, high).price(parts) > price:
        high *= 2
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if SubsampleAggregate(order, middle).price(parts) > price else (low, middle)
        )
    return high
