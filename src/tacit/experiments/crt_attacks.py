"""CRT, Figures 3, 4 and 5: what leaks, over the share of secrets that the policy misses.

Canaries' exposure, membership of sentences with secrets, and membership of groups of them, of models that
were trained with a policy that misses a share gamma of the secrets, from none to half. The policy is the
corpus's own spans without those that a coin drops, so that its gamma is known and not estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tacit.audit.nulls import exposure_band
from tacit.experiments.crt_ground import (
    CRT,
    DP_SGD,
    MASKED,
    NONPRIVATE,
    REDACTED,
    SELECTIVE,
    Cell,
    distinct,
    has_selective,
    stages_of,
)
from tacit.experiments.crt_models import NAMES
from tacit.experiments.crt_settings import TEXTS, settings_of
from tacit.experiments.crt_words import CAVEATS, METHODS, conditions, epsilon_told, promised, runs_of, student
from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.reg_levels import above_zero, at_most, with_seeds
from tacit.experiments.results import Chart, Finding, Level, Point, Series, Table
from tacit.experiments.results import Outcome as Word
from tacit.experiments.stages import Stage, Workshop
from tacit.report.words import estimate, number
from tacit.statistics import Estimate, bootstrap_over_users, bounded_mean, clopper_pearson

_NAME: Final = "crt-attacks"
_BIT: Final = 1.0  # by how much a mean exposure that is called chance may lie above that of unseen secrets
_NEAR: Final = 0.1  # and an accuracy above 1/2
_LEAKS: Final = 0.5
"""Accuracy of whoever tosses a coin."""


def cells_of(settings: Settings) -> list[Cell]:
    """Every way of training that the figures have."""
    return distinct(
        cell
        for corpus in settings["corpora"]
        for model in settings["trainings"]
        for method in methods_of(model)
        for cell in cells_over(settings, corpus, model, method).values()
    )


def methods_of(model: str) -> tuple[str, ...]:
    """In the order of the figures."""
    selective = (SELECTIVE,) if has_selective(model) else ()
    return (NONPRIVATE, MASKED, REDACTED, *selective, DP_SGD, CRT)


def cells_over(settings: Settings, corpus: str, model: str, method: str) -> dict[float | None, Cell]:
    """A method's cells by gamma; one where there is no policy."""
    level = settings["attacked_level"] if method in (DP_SGD, SELECTIVE, CRT) else None
    if method in (NONPRIVATE, DP_SGD):
        return {None: Cell(corpus, model, method, None, level)}
    gammas = settings["fewer_gammas"].get(method, settings["gammas"])
    return {gamma: Cell(corpus, model, method, gamma, level) for gamma in gammas}


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    return stages_of(workshop, settings, cells_of(settings))


@dataclass(frozen=True)
class _Attack:
    """What is measured: of all Runs of a cell, and what it is where nothing was learnt."""

    name: str
    title: str
    unit: str
    measured: Callable[[Sequence[Mapping[str, Any]], Settings], Estimate]
    of_each: Callable[[Mapping[str, Any]], float]
    chance: Callable[[Settings], float]
    margin: float


def mean_exposure(runs: Sequence[Mapping[str, Any]], _: Settings) -> Estimate:
    """Over all canaries of all trainings, each of which drew its own."""
    values = [value for run in runs for value in run["exposure"]]
    most = math.log2(runs[0]["candidates"])
    each = [float(np.mean(run["exposure"])) for run in runs]
    found = with_seeds(bounded_mean(values, least=0.0, most=most, of="canaries"), each)
    return Estimate(found.value, max(0.0, found.low), min(most, found.high), found.confidence, found.method)


def membership_accuracy(runs: Sequence[Mapping[str, Any]], _: Settings) -> Estimate:
    """At the median; pairs of dialogues are resampled, over all trainings, each with halves of its own."""
    sums = [pair for run in runs for pair in zip(run["right"], run["asked"], strict=True)]
    found = bootstrap_over_users(sums, lambda totals: totals[..., 0] / totals[..., 1])
    method = found.method.replace("users", "pairs of dialogues")
    plain = Estimate(found.value, found.low, found.high, found.confidence, method)
    widened = with_seeds(plain, [run["membership"]["accuracy"] for run in runs])
    low, high = max(0.0, widened.low), min(1.0, widened.high)
    return Estimate(widened.value, low, high, widened.confidence, widened.method)


def group_accuracy(runs: Sequence[Mapping[str, Any]], size: int) -> Estimate:
    """Over trainings; where all groups are told apart, by as many groups as share no pair of dialogues."""
    values = [float(run["groups"]["accuracy"]) for run in runs]
    if set(values) in ({0.0}, {1.0}):
        apart = sum(max(1, len(run["right"]) // size) for run in runs)
        return clopper_pearson(round(values[0]) * apart, apart)
    return student(values, least=0.0, most=1.0)


def _highest(runs: Sequence[Mapping[str, Any]], _: Settings) -> Estimate:
    most = math.log2(runs[0]["candidates"])
    return student([max(run["exposure"]) for run in runs], least=0.0, most=most)


def _of_unseen(settings: Settings, canaries: int) -> float:
    return exposure_band(candidates=10 ** settings["canaries"]["digits"], canaries=canaries).mean


_EXPOSURE: Final = _Attack(
    "exposure",
    "Mean exposure of canaries",
    "bits",
    mean_exposure,
    lambda run: float(np.mean(run["exposure"])),
    lambda settings: _of_unseen(settings, 1),
    _BIT,
)
_HIGHEST: Final = _Attack(
    "highest-exposure",
    "Highest exposure of all canaries of a training, as in the paper",
    "bits",
    _highest,
    lambda run: float(max(run["exposure"])),
    lambda settings: _of_unseen(settings, settings["canaries"]["number"]),
    _BIT,
)
_MEMBERSHIP: Final = _Attack(
    "membership",
    "Accuracy of membership, sentences with secrets",
    "of sentences",
    membership_accuracy,
    lambda run: float(run["membership"]["accuracy"]),
    lambda settings: _LEAKS,
    _NEAR,
)
_GROUPS: Final = _Attack(
    "groups",
    "Accuracy of membership, groups of sentences",
    "of groups",
    lambda runs, settings: group_accuracy(runs, settings["membership"]["size"]),
    lambda run: float(run["groups"]["accuracy"]),
    lambda settings: _LEAKS,
    _NEAR,
)
_ATTACKS: Final = (_EXPOSURE, _MEMBERSHIP, _GROUPS)
_SHOWN: Final = (_EXPOSURE, _HIGHEST, _MEMBERSHIP, _GROUPS)


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    section = settings["membership"]
    return Conclusion(
        conditions=(
            *conditions(settings, outcomes),
            _noise(settings, outcomes),
            _ranked(settings),
            f"Membership is told by perplexity, at the median of all that is scored: at most "
            f"{section['members']:,} sentences with secrets that were trained on, of dialogues from both "
            "halves, and the same with secrets of the other half in their place; there are "
            f"{section['groups']:,} groups of {section['size']} sentences.",
        ),
        tables=tuple(_table(attack, settings, outcomes) for attack in _SHOWN),
        charts=tuple(_charts(settings, outcomes)),
        findings=tuple(_findings(settings, outcomes)),
        caveats=(
            *CAVEATS,
            "Each of a canary's repetitions has a coin of its own: where gamma is 0.1, two of twenty stay. "
            "CRT deduplicates first, so that one of them is left at most.",
            "Groups overlap, and their secrets are few: their interval is over trainings alone.",
        ),
    )


def _ranked(settings: Settings) -> str:
    section = settings["exposure"]
    how = "among all candidates"
    if not section.get("full"):
        how = (
            f"by a search of {section['budget']:,} positions, by {section['samples']:,} draws where that "
            "does not reach it, and among all candidates where no draw is likelier"
        )
    return f"A canary's exposure is its rank without the other canaries, found {how}."


def _noise(settings: Settings, outcomes: Outcomes) -> str:
    told = []
    for corpus in settings["corpora"]:
        for model in settings["trainings"]:
            found = {
                METHODS[method]: promised(outcomes, cell, "training")
                for method in (SELECTIVE, DP_SGD, CRT)
                if method in methods_of(model)
                for cell in list(cells_over(settings, corpus, model, method).values())[:1]
            }
            shown = ", ".join(f"{name} {epsilon_told(value)}" for name, value in found.items())
            told.append(f"{corpus}, {NAMES[model]}: {shown}")
    return (
        f"Noise as in level {settings['attacked_level'] + 1} of crt-frontier; epsilon of one secret that is "
        f"not masked, at delta = {settings['delta']:g} and for replace-one (of selective DP-SGD where its "
        f"policy is perfect): {'; '.join(told)}."
    )


def _table(attack: _Attack, settings: Settings, outcomes: Outcomes) -> Table:
    gammas = settings["gammas"]
    rows = []
    for corpus in settings["corpora"]:
        for model in settings["trainings"]:
            for method in methods_of(model):
                by_gamma = cells_over(settings, corpus, model, method)
                cells = {gamma: by_gamma.get(gamma) or by_gamma.get(None) for gamma in gammas}
                found = [
                    None if cell is None else _measured(attack, settings, outcomes, cell)
                    for cell in cells.values()
                ]
                rows.append((corpus, NAMES[model], METHODS[method], *found))
    return Table(
        title=f"{attack.title} ({attack.unit}); where nothing was learnt {number(attack.chance(settings))}",
        columns=("corpus", "model", "method", *(f"gamma {number(gamma)}" for gamma in gammas)),
        rows=tuple(rows),
    )


def _measured(attack: _Attack, settings: Settings, outcomes: Outcomes, cell: Cell) -> Estimate | None:
    runs = runs_of(outcomes, cell)
    return attack.measured(runs, settings) if runs else None


def _charts(settings: Settings, outcomes: Outcomes) -> Iterator[Chart]:
    for attack in (_HIGHEST, _MEMBERSHIP, _GROUPS):
        for corpus in settings["corpora"]:
            for model in settings["trainings"]:
                series = tuple(_series(attack, settings, outcomes, corpus, model))
                if series:
                    yield Chart(
                        name=f"{attack.name}-{corpus}-{model}",
                        title=f"{attack.title}: {corpus}, {NAMES[model]}",
                        x_label="gamma: share of secrets that the policy misses",
                        y_label=f"{attack.title.split(',')[0]}, {attack.unit}",
                        series=series,
                        levels=(Level(name="nothing learnt", value=attack.chance(settings)),),
                    )


def _series(
    attack: _Attack, settings: Settings, outcomes: Outcomes, corpus: str, model: str
) -> Iterator[Series]:
    for method in methods_of(model):
        if method == REDACTED:
            continue
        points = []
        for gamma, cell in cells_over(settings, corpus, model, method).items():
            found = _measured(attack, settings, outcomes, cell)
            if found is not None:
                # Where there is no policy, nothing depends on gamma.
                places = settings["gammas"] if gamma is None else [gamma]
                points += [Point(x=place, y=found) for place in places]
        if points:
            yield Series(name=METHODS[method], points=tuple(points))


def _findings(settings: Settings, outcomes: Outcomes) -> Iterator[Finding]:
    claims = _Claims(settings, outcomes)
    most = settings["gammas"][-1]
    for attack in _ATTACKS:
        yield claims.above_chance(
            attack, NONPRIVATE, None, "Non-private training on raw text leaks: {} is above chance."
        )
        yield claims.near_chance(
            attack, MASKED, [0.0], "So long as a policy misses nothing, masks alone protect: {} is at chance."
        )
        yield claims.rises(
            attack, MASKED, most, f"With masks alone, {{}} rises sharply where gamma grows to {number(most)}."
        )
        yield claims.above_chance(
            attack,
            SELECTIVE,
            most,
            "Selective DP-SGD does not protect what its policy misses: {} is above chance at gamma = "
            f"{number(most)}.",
        )
        yield claims.near_chance(
            attack, CRT, settings["gammas"], "CRT prevents leaks at every gamma: {} is at chance."
        )
        yield claims.near_chance(
            attack, DP_SGD, [None], "DP-SGD on raw text prevents leaks too: {} is at chance."
        )
        yield claims.near_chance(
            attack,
            REDACTED,
            list(cells_over(settings, next(iter(settings["corpora"])), "lstm", REDACTED)),
            "Ours: masks and deduplication without noise prevent as much: {} is at chance.",
        )
    yield claims.groups_are_worse(most)


class _Claims:
    """Claims about an attack, each on all corpora and models."""

    def __init__(self, settings: Settings, outcomes: Outcomes) -> None:
        self._settings, self._outcomes = settings, outcomes

    def near_chance(
        self, attack: _Attack, method: str, gammas: Sequence[float | None], claim: str
    ) -> Finding:
        """At most a margin above it, everywhere."""
        chance = attack.chance(self._settings)
        found = {
            name: _minus(one, chance)
            for gamma in gammas
            for name, one in self._over(attack, method, gamma).items()
        }
        told = f"{claim.format(attack.title.lower())} (at most {attack.margin:g} above {number(chance)})"
        return _finding(told, found, attack.unit, at_most(attack.margin))

    def above_chance(self, attack: _Attack, method: str, gamma: float | None, claim: str) -> Finding:
        """Surely above it, everywhere."""
        chance = attack.chance(self._settings)
        found = {name: _minus(one, chance) for name, one in self._over(attack, method, gamma).items()}
        return _finding(claim.format(attack.title.lower()), found, attack.unit, above_zero)

    def rises(self, attack: _Attack, method: str, gamma: float, claim: str) -> Finding:
        """From the smallest gamma to this one, seed by seed."""
        found = {}
        for (corpus, model), cells in self._cells(method):
            low, high = (
                runs_of(self._outcomes, cells[one]) for one in (min(self._settings["gammas"]), gamma)
            )
            if low and high:
                change = [attack.of_each(b) - attack.of_each(a) for a, b in zip(low, high, strict=True)]
                found[f"{corpus}, {NAMES[model]}"] = student(change)
        return _finding(claim.format(attack.title.lower()), found, attack.unit, above_zero)

    def groups_are_worse(self, gamma: float) -> Finding:
        """Groups are told apart better than single sentences."""
        found = {}
        for method in (MASKED, SELECTIVE):
            for (corpus, model), cells in self._cells(method):
                runs = runs_of(self._outcomes, cells[gamma])
                change = [run["groups"]["accuracy"] - run["membership"]["accuracy"] for run in runs]
                if change:
                    found[f"{METHODS[method]}, {corpus}, {NAMES[model]}"] = student(change)
        return _finding(
            "Non-private and selective training protect groups even less than single sentences, where the "
            f"policy misses {number(gamma)}.",
            found,
            "more of the groups",
            above_zero,
        )

    def _over(self, attack: _Attack, method: str, gamma: float | None) -> dict[str, Estimate]:
        shown = "" if gamma is None else f", gamma {number(gamma)}"
        found = {}
        for (corpus, model), cells in self._cells(method):
            measured = _measured(attack, self._settings, self._outcomes, cells[gamma])
            if measured is not None:
                found[f"{corpus}, {NAMES[model]}{shown}"] = measured
        return found

    def _cells(self, method: str) -> Iterator[tuple[tuple[str, str], dict[float | None, Cell]]]:
        for corpus in self._settings["corpora"]:
            for model in self._settings["trainings"]:
                if method in methods_of(model):
                    yield (corpus, model), cells_over(self._settings, corpus, model, method)


def _minus(found: Estimate, chance: float) -> Estimate:
    return Estimate(
        found.value - chance, found.low - chance, found.high - chance, found.confidence, found.method
    )


def _finding(
    claim: str,
    found: Mapping[str, Estimate],
    unit: str,
    verdict: Callable[[Sequence[Estimate]], Word],
) -> Finding:
    here = "; ".join(f"{name}: {estimate(one)}" for name, one in found.items())
    return Finding(
        claim=claim,
        here=f"Beyond that: {here} {unit}." if here else "Nothing to compare.",
        outcome=verdict(list(found.values())),
    )


ATTACKS: Final = Experiment(
    name=_NAME,
    title="What leaks where a policy misses secrets",
    shows="CRT, Figures 3, 4 and 5",
    settings=settings_of,
    stages=_stages,
    conclude=_conclude,
    texts=TEXTS,
)
