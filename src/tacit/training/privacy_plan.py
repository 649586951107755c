"""How private steps follow from a recipe and a number of examples: rate, steps, noise and their price.

The expected batch is ``training.batch_size`` times ``training.accumulate``. An epoch is the number of steps
that in expectation sees every example once; where that is no whole number, whole epochs are right in sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.errors import InputError, RecipeError
from tacit.privacy import (
    Adjacency,
    DpSgdProcess,
    PrivacyCurve,
    calibrate_noise,
    dpsgd_curve,
    gaussian_dp_mu,
)
from tacit.recipes import PrivacySection, TrainingSection
from tacit.training.private_steps import StepPrivacy


@dataclass(frozen=True)
class PrivacyPlan:
    """The private steps of a whole run.

    population   examples that are sampled from, empty ones included
    sampling_rate, noise_multiplier, steps   what the account is made of
    """

    section: PrivacySection
    population: int
    sampling_rate: float
    noise_multiplier: float
    steps: int

    @classmethod
    def of(
        cls,
        section: PrivacySection,
        training: TrainingSection,
        population: int,
    ) -> PrivacyPlan:
        """The plan for so many examples; a target that no noise reaches is refused."""
        rate = min(1.0, expected_batch(training) / population) if population else 0.0
        steps = steps_until(training, population, training.epochs)
        if training.max_steps is not None:
            steps = min(steps, training.max_steps)
        noise = section.noise_multiplier
        if noise is None:
            noise = _calibrated(section, rate, steps)
        return cls(section, population, rate, noise, steps)

    @property
    def process(self) -> DpSgdProcess:
        """What an accountant takes."""
        return DpSgdProcess(self.sampling_rate, self.noise_multiplier, self.steps)

    @property
    def step_privacy(self) -> StepPrivacy:
        """What a private step takes."""
        return StepPrivacy(
            clip=self.section.clip,
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            population=self.population,
            clipping=self.section.clipping,
            group=self.section.group,
        )

    @cached_property
    def curves(self) -> dict[Adjacency, PrivacyCurve]:
        """The whole curve for both kinds of neighbours."""
        return {
            "add-remove": dpsgd_curve(self.process, "add-remove"),
            "replace-one": dpsgd_curve(self.process, "replace-one"),
        }

    @property
    def curve(self) -> PrivacyCurve:
        """The curve for the neighbours that the recipe names."""
        return self.curves[self.section.adjacency]

    @property
    def epsilon(self) -> float:
        """At the recipe's delta, for its neighbours; infinite where there is no protection."""
        return self.curve.epsilon_at(self.section.delta)

    def epsilons(self) -> dict[Adjacency, float]:
        """At the recipe's delta, for both kinds of neighbours."""
        return {adjacency: curve.epsilon_at(self.section.delta) for adjacency, curve in self.curves.items()}

    def to_json(self) -> dict[str, Any]:
        """As saved in a Run: all that is needed to compute every (epsilon, delta) again, and both curves."""
        return {
            "clip": self.section.clip,
            "clipping": self.section.clipping,
            "group": self.section.group,
            "process": self.process.to_json(),
            "gaussian_dp": gaussian_dp_mu(self.process).to_json(),
            "curves": [curve.to_json() for curve in self.curves.values()],
        }


def expected_batch(training: TrainingSection) -> int:
    """Examples in a private step on average, as the recipe asks for them."""
    return training.batch_size * training.accumulate


def steps_until(training: TrainingSection, population: int, epoch: int) -> int:
    """Private steps of the first so many epochs: in expectation, each sees every example once."""
    if not population:
        return 0
    return math.ceil(epoch * population / min(expected_batch(training), population))


def _calibrated(section: PrivacySection, rate: float, steps: int) -> float:
    if section.epsilon is None:
        raise ValueError("A privacy section has an epsilon or a noise multiplier.")
    try:
        return calibrate_noise(
            section.epsilon, section.delta, sampling_rate=rate, steps=steps, adjacency=section.adjacency
        )
    except InputError as problem:
        raise RecipeError(f"privacy.{problem}") from None
