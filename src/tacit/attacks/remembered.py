"""Mechanisms that mix each place once, for attacks that ask the same question a thousand times.

A mixture is a function of the distributions alone (for `individual`: as long as no part's budget binds), so
remembering it changes neither an answer nor a charge. Noise mechanisms draw anew at every answer and are
left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from tacit.mechanisms import Certified, Individual, Mixture, SubMix
from tacit.mechanisms.choice import Mechanism, MechanismChoice


def _memory() -> Any:
    # By identity and without holding on: a place that is forgotten must not lend its mixture to another.
    return WeakIdKeyDictionary()


@dataclass(frozen=True)
class _RememberedSubMix(SubMix):
    memory: Any = field(default_factory=_memory, repr=False, compare=False)

    def mix(self, halves: Any, public: Any) -> Mixture:
        return _once(self.memory, public, lambda: SubMix.mix(self, halves, public))


@dataclass(frozen=True)
class _RememberedCertified(Certified):
    memory: Any = field(default_factory=_memory, repr=False, compare=False)

    def mix(self, parts: Any, public: Any) -> Mixture:
        return _once(self.memory, public, lambda: Certified.mix(self, parts, public))


@dataclass(frozen=True)
class _RememberedIndividual(Individual):
    memory: Any = field(default_factory=_memory, repr=False, compare=False)

    def mix(self, parts: Any, public: Any, remaining: Any | None = None) -> Mixture:
        if remaining is None or bool((torch.as_tensor(remaining) >= self.target).all()):
            return _once(self.memory, public, lambda: Individual.mix(self, parts, public))
        return Individual.mix(self, parts, public, remaining)


def _once(memory: Any, public: Any, mix: Callable[[], Mixture]) -> Mixture:
    if not isinstance(public, Tensor):
        return mix()
    if public not in memory:
        memory[public] = mix()
    found: Mixture = memory[public]
    return found


_REMEMBERED: dict[type, Any] = {
    SubMix: _RememberedSubMix,
    Certified: _RememberedCertified,
    Individual: _RememberedIndividual,
}


@dataclass(frozen=True)
class RememberingChoice(MechanismChoice):
    """A choice whose mechanism remembers the mixtures of the distributions it was given."""

    def build(self, parts: int) -> Mechanism:
        """As the plain choice does; equal in every answer."""
        plain = super().build(parts)
        if type(plain) not in _REMEMBERED:
            return plain
        settings = {item.name: getattr(plain, item.name) for item in fields(plain)}
        built: Mechanism = _REMEMBERED[type(plain)](**settings)
        return built
