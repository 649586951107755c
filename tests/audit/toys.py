"""Toy ensembles with few tokens, and mechanisms whose accountants are wrong on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from tacit.attacks.places import Place
from tacit.mechanisms import Certified, Individual, Mixture, SubMix
from tests.mechanisms.oracle import Array

Written = tuple[int, ...]


def soft(logits: Array) -> Array:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def queries(
    seed: int, n: int, k: int, halves: int, vocabulary: int, spread: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random members [n, k, halves, V] around random public pmfs [n, V]."""
    rng = np.random.default_rng(seed)
    public = soft(rng.normal(size=(n, vocabulary)))
    members = soft(np.log(public)[:, None, None] + spread * rng.normal(size=(n, k, halves, vocabulary)))
    return torch.from_numpy(members), torch.from_numpy(public)


def toy_ask(
    seed: int, *, length: int, k: int, halves: int = 2, vocabulary: int = 4, spread: float = 1.0
) -> Callable[[Written], Place]:
    """An ensemble with its own distributions after every history of up to ``length`` tokens."""
    histories = [h for n in range(length) for h in itertools.product(range(vocabulary), repeat=n)]
    members, public = queries(seed, len(histories), k, halves, vocabulary, spread)
    places = {h: Place(members[i], public[i]) for i, h in enumerate(histories)}
    return lambda written: places[written]


def tight_place(event: float = 0.009) -> Place:
    """One part that is sure of a token that the public model all but rules out: the bound is attained."""
    public = torch.tensor([event, 1 - event], dtype=torch.float64)
    part = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return Place(part.expand(1, 2, 2), public)


def quick(mechanism: Any) -> Any:
    """The same mechanism, which mixes equal inputs once: few tokens cost as much as many."""
    memory: dict[Any, Mixture] = {}

    class Quick(type(mechanism)):  # type: ignore[misc]
        def mix(self, *given: Any) -> Mixture:
            key = tuple(np.asarray(one).tobytes() for one in given)
            if key not in memory:
                memory[key] = super().mix(*given)
            return memory[key]

    return Quick(**{item.name: getattr(mechanism, item.name) for item in fields(mechanism)})


@dataclass(frozen=True)
class HalvedSubMix(SubMix):
    """Charges half of what it should."""

    def mix(self, halves: Any, public: Any) -> Mixture:
        honest = super().mix(halves, public)
        return replace(honest, charges=honest.charges / 2)


@dataclass(frozen=True)
class HalvedIndividual(Individual):
    """Charges half of what it should."""

    def mix(self, parts: Any, public: Any, remaining: Any | None = None) -> Mixture:
        honest = super().mix(parts, public, remaining)
        return replace(honest, charges=honest.charges / 2)


@dataclass(frozen=True)
class GenerousCertified(Certified):
    """Finds weights for twice the price that it charges."""

    @property
    def _loss(self) -> float:
        return 2 * self.target


@dataclass(frozen=True)
class AnotherDraw(SubMix):
    """Draws from something else than it charges for."""

    def mix(self, halves: Any, public: Any) -> Mixture:
        honest = super().mix(halves, public)
        sharper = honest.pmf**1.01
        return replace(honest, pmf=sharper / sharper.sum(-1, keepdim=True))
