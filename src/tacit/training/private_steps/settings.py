"""What decides the privacy of a training step, in one frozen value; and the account of the steps taken."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from tacit.errors import InputError

ClippingKind = Literal["flat", "automatic"]
"""flat: min(1, C/norm); automatic: C/(norm + 0.01), Bu et al. 2022, where every example weighs about C."""


@dataclass(frozen=True)
class StepPrivacy:
    """The Gaussian mechanism of one DP-SGD step.

    Formal guarantee. One step on a Poisson sample releases the sum of clipped gradients plus Gaussian noise
    of deviation ``noise_multiplier * sensitivity`` in every coordinate, divided by a constant. Adding or
    removing one example moves the sum by at most ``sensitivity``; replacing one, by at most twice that (by
    ``sensitivity`` alone where ``group`` > 1). So the steps are a Poisson-subsampled Gaussian mechanism with
    this rate and multiplier, for the unit that an example stands for.

    =====================  ==============================================================================
    an empty sample        takes a noise-only step
    a non-finite gradient  that example counts as zero: a function of the example alone
    ``noise_multiplier``   0 is legal and guarantees nothing
    ``group`` > 1          the mean gradient of a group is clipped, not each example's. One example moves
                           its group's clipped mean by up to 2C, so the sensitivity is 2C and the noise
                           doubles. The unit is still one example.
    =====================  ==============================================================================

    Args:
        clip: C, the largest norm of what one example (or group) contributes.
        noise_multiplier: sigma, noise relative to the sensitivity.
        sampling_rate: q, with which each example enters a step, independently of all others.
        population: examples in all. Taken as public: the divisor is the expected number in a step.
        clipping: how a gradient is scaled to norm C.
        group: DP micro-batching: about so many sampled examples share one clipped mean.
        loss: an example's loss is the mean over its labels or their sum, never over anybody else's.
    """

    clip: float
    noise_multiplier: float
    sampling_rate: float
    population: int
    clipping: ClippingKind = "flat"
    group: int = 1
    loss: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise InputError(f"Expected clip={self.clip} > 0; it bounds what one example adds, e.g. 1.0.")
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise InputError(f"Expected noise_multiplier={self.noise_multiplier} >= 0, e.g. 1.0.")
        if not 0 < self.sampling_rate <= 1:
            raise InputError(
                f"Expected sampling_rate={self.sampling_rate} in (0, 1]; it is batch size over population."
            )
        if self.population < 1:
            raise InputError(f"Expected population={self.population} >= 1; there is nothing to sample from.")
        if not 1 <= self.group <= max(1, self.expected_examples):
            raise InputError(
                f"Expected group={self.group} between 1 and the expected {self.expected_examples:g} examples "
                "of a step."
            )

    @property
    def expected_examples(self) -> float:
        """Examples in a step on average; how many there really are stays private."""
        return self.sampling_rate * self.population

    @property
    def slots(self) -> int:
        """Groups in a step, which is a public number; 0 where every example stands for itself."""
        return 0 if self.group == 1 else max(1, round(self.expected_examples / self.group))

    @property
    def divisor(self) -> float:
        """What the noisy sum is divided by: never the real number of examples."""
        return float(self.slots or self.expected_examples)

    @property
    def sensitivity(self) -> float:
        """How far one more example can move the sum."""
        return self.clip if self.group == 1 else 2 * self.clip

    @property
    def noise_deviation(self) -> float:
        """Standard deviation of the noise in every coordinate of the sum."""
        return self.noise_multiplier * self.sensitivity


@dataclass(frozen=True)
class PrivateAccount:
    """Private steps taken: all that an accountant needs, and nothing that depends on private text."""

    steps: int
    sampling_rate: float
    noise_multiplier: float

    def to_json(self) -> dict[str, Any]:
        """As written into a Run or a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The account that was written; refuses anything else."""
        try:
            account = cls(**{field.name: content[field.name] for field in fields(cls)})
            if not (isinstance(account.steps, int) and account.steps >= 0):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise InputError(
                "The saved account of private steps is damaged; without it no guarantee can be stated, so "
                "begin again."
            ) from None
        return account
