"""A fresh probe: how well can somebody name the author of a text from its state alone?

Two kinds of probe are tried, logistic regressions over all authors with several penalties, and two layers of
the shape of adversarial training's discriminator. Which one is used is decided on a part of the texts to
learn from that was set aside; then it learns from all of these. The scored texts decide nothing: their
authors are not an argument here. Features are standardised by the texts to learn from. With one seed the
result is always the same.

A probe is a lower bound on what states give away. Better ones may exist, above all with more texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import torch
from scipy import optimize, special
from torch import nn
from torch.nn import functional

from tacit.attacks.token_statistics import BoolArray, IntArray
from tacit.errors import InputError
from tacit.statistics import FloatArray

LEAST_TEXTS: Final = 3  # of each author, to learn from: one of them is set aside
_SET_ASIDE: Final = 4  # every so manieth text of an author, and one at least
_ITERATIONS: Final = 1000  # of a regression; far fewer are needed
_ROWS: Final = 128  # texts in a step of the two layers
_PATIENCE: Final = 8  # epochs without gain

Predictor = Callable[[FloatArray], FloatArray]
"""States [N, D] to a score for each author [N, M]."""


@dataclass(frozen=True)
class ProbeSettings:
    """The probes that are tried.

    penalties   of the regressions, on squared weights beside the mean loss
    hidden      width of the two layers; 0 leaves them out
    epochs      that the two layers may learn
    seed        of what is set aside, of weights and of the order of texts
    """

    penalties: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)
    hidden: int = 1000
    epochs: int = 60
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.penalties or min(self.penalties) <= 0:
            raise InputError(f"Expected penalties={self.penalties} above 0, e.g. (0.1, 0.01).")
        if self.hidden < 0 or self.epochs < 1 or self.seed < 0:
            raise InputError(
                f"Expected hidden={self.hidden} >= 0, epochs={self.epochs} >= 1 and seed={self.seed} >= 0."
            )


@dataclass(frozen=True)
class NamedAuthors:
    """What the probe says of each scored text.

    scores      [texts, authors]; the highest is the author that it names
    probe       which probe it is
    """

    scores: FloatArray = field(repr=False)
    probe: str

    @property
    def named(self) -> IntArray:
        """The author of each text, as the probe has it."""
        named: IntArray = self.scores.argmax(axis=1)
        return named

    def among(self, first: int, authors: IntArray) -> BoolArray:
        """Whether each text's author is among the ``first`` that the probe would name; ties are misses."""
        own = self.scores[np.arange(len(authors)), authors]
        found: BoolArray = (self.scores >= own[:, None]).sum(axis=1) <= first
        return found


def name_authors(
    learnt: FloatArray, authors: IntArray, scored: FloatArray, *, settings: ProbeSettings | None = None
) -> NamedAuthors:
    """Learn who wrote the texts of ``learnt``, and name the authors of ``scored``.

    Args:
        learnt: states [N, D] of texts to learn from.
        authors: whose they are, numbered from 0; each has :data:`LEAST_TEXTS` or more.
        scored: states [K, D] of other texts of the same authors.
        settings: which probes are tried.
    """
    settings = settings or ProbeSettings()
    counts = np.bincount(authors)
    if len(authors) != len(learnt) or len(counts) < 2 or counts.min() < LEAST_TEXTS:
        raise InputError(
            f"Expected one author for each of {len(learnt)} texts, two authors or more, and at least "
            f"{LEAST_TEXTS} texts of each."
        )
    aside = _set_aside(authors, np.random.default_rng(settings.seed))
    scale = _Scale.of(learnt[~aside])
    chosen = min(
        (
            tried
            for probe in _probes(settings)
            for tried in probe.tried(
                scale(learnt[~aside]), authors[~aside], scale(learnt[aside]), authors[aside]
            )
        ),
        key=lambda one: (one.wrong, one.loss),
    )
    scale = _Scale.of(learnt)
    predict = chosen.again(scale(learnt), authors)
    return NamedAuthors(predict(scale(scored)), chosen.name)


@dataclass(frozen=True)
class _Tried:
    """A probe on the texts that were set aside, and how to learn it again from all."""

    name: str
    wrong: int
    loss: float
    again: Callable[[FloatArray, IntArray], Predictor] = field(repr=False)


class _Probe(Protocol):
    def tried(
        self, states: FloatArray, authors: IntArray, aside: FloatArray, aside_authors: IntArray
    ) -> Iterator[_Tried]: ...


def _probes(settings: ProbeSettings) -> Iterator[_Probe]:
    for penalty in settings.penalties:
        yield _Regression(penalty)
    if settings.hidden:
        yield _TwoLayers(settings.hidden, settings.epochs, settings.seed)


@dataclass(frozen=True)
class _Scale:
    mean: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, states: FloatArray) -> _Scale:
        spread = states.std(axis=0)
        # A coordinate that never changes, or only in its rounding, tells nothing and must not be blown up.
        rounding = 1e-6 * np.abs(states).max(axis=0)
        return cls(states.mean(axis=0), np.where(spread > rounding, spread, np.inf))

    def __call__(self, states: FloatArray) -> FloatArray:
        return (states - self.mean) / self.spread


def _set_aside(authors: IntArray, rng: np.random.Generator) -> BoolArray:
    aside = np.zeros(len(authors), dtype=np.bool_)
    for author in range(int(authors.max()) + 1):
        own = rng.permutation(np.flatnonzero(authors == author))
        aside[own[: max(1, len(own) // _SET_ASIDE)]] = True
    return aside


def _log_loss(scores: FloatArray, authors: IntArray) -> float:
    own = scores[np.arange(len(authors)), authors]
    return float((special.logsumexp(scores, axis=1) - own).mean())


@dataclass(frozen=True)
class _Regression:
    penalty: float

    def tried(
        self, states: FloatArray, authors: IntArray, aside: FloatArray, aside_authors: IntArray
    ) -> Iterator[_Tried]:
        scores = self.learn(states, authors)(aside)
        wrong = int((scores.argmax(axis=1) != aside_authors).sum())
        name = f"logistic regression, penalty {self.penalty:g}"
        yield _Tried(name, wrong, _log_loss(scores, aside_authors), self.learn)

    def learn(self, states: FloatArray, authors: IntArray) -> Predictor:
        weights = fit_regression(states, authors, self.penalty)
        return lambda others: others @ weights[:-1] + weights[-1]


def fit_regression(states: FloatArray, authors: IntArray, penalty: float) -> FloatArray:
    """Weights [D + 1, M] that minimise mean log loss + penalty / 2 * |weights|^2; the last row is free."""
    texts, width = states.shape
    count = int(authors.max()) + 1
    own = np.zeros((texts, count))
    own[np.arange(texts), authors] = 1.0

    def objective(flat: FloatArray) -> tuple[float, FloatArray]:
        weights = flat.reshape(width + 1, count)
        scores = states @ weights[:-1] + weights[-1]
        normaliser = special.logsumexp(scores, axis=1, keepdims=True)
        excess = (np.exp(scores - normaliser) - own) / texts
        slope = np.empty_like(weights)
        slope[:-1] = states.T @ excess + penalty * weights[:-1]
        slope[-1] = excess.sum(axis=0)
        loss = (normaliser[:, 0] - (scores * own).sum(axis=1)).mean()
        return float(loss + penalty / 2 * (weights[:-1] ** 2).sum()), slope.ravel()

    found = optimize.minimize(
        objective,
        np.zeros((width + 1) * count),
        jac=True,
        method="L-BFGS-B",
        # Converged by the gradient: the penalty makes the least point unique, and this one is close to it.
        options={"maxiter": _ITERATIONS, "maxfun": 2 * _ITERATIONS, "gtol": 1e-5, "ftol": 1e-12},
    )
    weights: FloatArray = found.x.reshape(width + 1, count)
    return weights


@dataclass(frozen=True)
class _TwoLayers:
    hidden: int
    epochs: int
    seed: int

    def tried(
        self, states: FloatArray, authors: IntArray, aside: FloatArray, aside_authors: IntArray
    ) -> Iterator[_Tried]:
        """The epoch after which the loss on what was set aside is least."""
        best: _Tried | None = None
        best_epoch = 0
        for epoch, predict in enumerate(self._learning(states, authors), 1):
            scores = predict(aside)
            loss = _log_loss(scores, aside_authors)
            if best is None or loss < best.loss:
                wrong = int((scores.argmax(axis=1) != aside_authors).sum())
                name = f"two layers of width {self.hidden}, {epoch} epochs"
                best, best_epoch = _Tried(name, wrong, loss, self._again(epoch)), epoch
            if epoch - best_epoch >= _PATIENCE:
                break
        assert best is not None  # noqa: S101 - there is an epoch
        yield best

    def _again(self, epochs: int) -> Callable[[FloatArray, IntArray], Predictor]:
        def learn(states: FloatArray, authors: IntArray) -> Predictor:
            for epoch, predict in enumerate(self._learning(states, authors), 1):
                if epoch == epochs:
                    return predict
            raise AssertionError("an epoch is one of all")

        return learn

    def _learning(self, states: FloatArray, authors: IntArray) -> Iterator[Predictor]:
        """The predictor after each epoch; torch's own random numbers are left as they were."""
        order = np.random.default_rng(self.seed)
        count = int(authors.max()) + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            layers = nn.Sequential(
                nn.Linear(states.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, count)
            )
        optimiser = torch.optim.AdamW(layers.parameters(), lr=1e-3, weight_decay=1e-2)
        inputs, labels = torch.from_numpy(states).float(), torch.from_numpy(authors)

        @torch.no_grad()
        def predict(others: FloatArray) -> FloatArray:
            scores: FloatArray = layers(torch.from_numpy(others).float()).double().numpy()
            return scores

        for _ in range(self.epochs):
            mixed = torch.from_numpy(order.permutation(len(authors)))
            for begin in range(0, len(mixed), _ROWS):
                rows = mixed[begin : begin + _ROWS]
                optimiser.zero_grad()
                loss = functional.cross_entropy(layers(inputs[rows]), labels[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            yield predict
