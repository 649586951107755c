"""The sections of private training: what decides a guarantee, and nothing that only decides quality."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tacit.recipes.fields import Count, Flag, Name, Real, Section, Whole

Adjacency = Literal["add-remove", "replace-one"]
Chance = Annotated[Real, Field(ge=0, le=1)]
DataPoints = Annotated[Whole, Field(ge=0, le=10**9)]


class PrivacySection(Section):
    """DP-SGD: every field decides what is promised, and no other section does.

    epsilon           what the noise is calibrated to, at `delta` and for `adjacency`; or give
    noise_multiplier  the noise itself, in clipping bounds
    clip              the largest norm of what one example adds to a step
    unit              whose text an example is: one document's (one data point's), or all of one user's
    adjacency         which neighbours `epsilon` is for; the plan and the Run tell both
    examples          of dpsgd: their number, where it is public; else the counted one is taken as public
    group             DP micro-batching: so many examples share one clipped mean, and the noise doubles
    """

    epsilon: Annotated[Real, Field(gt=0, le=500)] | None = None
    noise_multiplier: Annotated[Real, Field(ge=0, le=1000)] | None = None
    delta: Annotated[Real, Field(gt=0, lt=1)]
    clip: Annotated[Real, Field(gt=0, le=1e6)] = 1.0
    clipping: Literal["flat", "automatic"] = "flat"
    unit: Literal["example", "user"] = "example"
    adjacency: Adjacency = "add-remove"
    examples: Count | None = None
    group: Annotated[Whole, Field(ge=1, le=10**6)] = 1

    @model_validator(mode="after")
    def _noise_is_given_once(self) -> Self:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            given = "both are there" if self.epsilon is not None else "neither is there"
            raise ValueError(
                "give either 'epsilon', which the noise is calibrated to, or 'noise_multiplier' "
                f"({given}), e.g. epsilon: 8"
            )
        return self


class ConfidentialitySection(Section):
    """What is known of the screening of `method: crt`, for the certificate.

    calibration       the file that `tacit corpus calibrate` wrote: both miss rates as measured; or give
    gamma             the share of secrets that the policy misses, as assumed; by default all are missed
    delta2            the share that the conservative policy misses too, as assumed; 0 without such a policy
    secret_points     data points that masking one secret changes, at most: a public bound that somebody
                      states, 1 where its sentence occurs once, 2 where a sentence may be repeated
    differing_points  u: data points that differ when all secrets are masked, counted by screening twice
    groups            the same for groups of secrets, by name

    Counts are functions of the private text: the last two stay in ``private/`` and are not in ``run.json``.
    """

    calibration: Name | None = None
    gamma: Chance | None = None
    delta2: Chance | None = None
    secret_points: Annotated[Whole, Field(ge=1, le=10**6)] = 1
    differing_points: DataPoints | None = None
    groups: Annotated[dict[Name, DataPoints], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _measured_or_assumed(self) -> Self:
        for name in ("gamma", "delta2"):
            if self.calibration is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"'{name}' is either measured (calibration) or assumed ({name}), not both; remove one"
                )
        return self


class PublicPhaseSection(Section):
    """The passes over the public data points of `method: crt`; what is not given is as in `training`.

    With `optimiser_state: separate`, noisy moments of private steps never scale the steps on public text,
    nor the other way round. Both are post-processing: the guarantee is the same.
    """

    learning_rate: Annotated[Real, Field(gt=0, le=100)] | None = None
    batch_size: Count | None = None
    optimiser_state: Literal["separate", "shared"] = "separate"


class SelectiveSection(Section):
    """Selective DP-SGD: which tokens are sensitive, and what leaves a sensitive stretch.

    screened      what `tacit corpus screen` made of this corpus: what it masked is sensitive
    state_clip    the largest norm of the hidden and cell state behind a sensitive stretch
    perfect       the policy misses nothing: the operator's word, on which the whole guarantee rests
    """

    screened: Name
    state_clip: Annotated[Real, Field(gt=0, le=1e6)] = 1.0
    perfect: Flag = False
