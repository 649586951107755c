"""What planted canaries show of one target: how exposed they are, and which epsilon that refutes.

A target is a model, or an ensemble behind a mechanism. For a model every function of its weights may be used,
so that ranks and coins give lower bounds on epsilon. Behind a mechanism only drawn tokens are released, and
the distributions that exposure is measured on never leave: there it describes, and refutes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tacit.attacks.exposure import CanaryExposure, ExposureReport
from tacit.audit.attempts import Attempt
from tacit.audit.bounds import EpsilonLowerBound, Neighbours, exposure_bound, strongest
from tacit.audit.nulls import exposure_band, memorisation
from tacit.audit.planning import detectable
from tacit.audit.thresholds import CoinScores, multi_split_bound
from tacit.corpus.canaries import CanaryManifest
from tacit.privacy import Unit
from tacit.statistics import Estimate, FloatArray, bounded_mean

FAIR = 0.5  # the coin that one-run bounds are for
_LARGEST: Final = "exposure of the most exposed canary, bits"
_TOGETHER: Final = "exposure of all canaries together, mean bits"


@dataclass(frozen=True)
class ExposureFinding:
    """Exposure of every canary under the target and under the public model, which never saw them.

    ``control`` is the same of a model that saw them without any protection.
    """

    manifest: CanaryManifest
    target: ExposureReport
    public: ExposureReport
    control: ExposureReport | None = None

    def of_control(self) -> ExposureFinding:
        """The control as if it were the target: what the same attack does where nothing protects."""
        if self.control is None:
            raise ValueError("there is no control")
        return ExposureFinding(self.manifest, self.control, self.public)

    @property
    def inserted(self) -> list[CanaryExposure]:
        """The canaries that were in the training text."""
        return [canary for canary in self.target.canaries if canary.inserted]

    @property
    def confidence(self) -> float:
        """At which the exposures were measured."""
        return next((one.exposure.confidence for one in self.target.canaries), 0.95)

    @property
    def p_value(self) -> float | None:
        """That nothing was memorised (Fisher); None without inserted canaries, or where they compete."""
        if self.manifest.plan.prefix != "distinct" or not self.inserted:
            return None
        # Not from the exposures: those of secrets that were never seen are too large up to 1.37 times too
        # often where a secret decides how its rank is found. Their p-values count for that.
        candidates = self.manifest.candidates
        ranks = [min(float(candidates), max(1.0, candidates * one.p_value)) for one in self.inserted]
        return memorisation(ranks, candidates=candidates).fisher

    @property
    def largest_p_value(self) -> float:
        """That the most exposed of the inserted canaries was not memorised, by the smallest p-value of all.

        Canaries with prefixes of their own are independent; of others the p-values add up at most.
        """
        smallest = min(one.p_value for one in self.inserted)
        many = len(self.inserted)
        if self.manifest.plan.prefix != "distinct":
            return min(1.0, many * smallest)
        return 1.0 if smallest >= 1 else -math.expm1(many * math.log1p(-smallest))

    def attempts(self) -> list[Attempt]:
        """The most exposed canary, and all of them together, against chance."""
        if not self.inserted:
            return []
        candidates = self.manifest.candidates
        top = max((one.exposure for one in self.inserted), key=lambda exposure: exposure.value)
        most = exposure_band(candidates=candidates, canaries=len(self.inserted))
        found = [Attempt(_LARGEST, top, most.mean, self.largest_p_value)]
        if self.p_value is not None:
            mean = self._mean([one.exposure.value for one in self.inserted])
            one = exposure_band(candidates=candidates)
            found.append(Attempt(_TOGETHER, mean, one.mean, self.p_value, named=False))
        return found

    def bound(
        self, *, unit: Unit, neighbours: Neighbours, delta: float, confidence: float, insertions: int = 1
    ) -> EpsilonLowerBound | None:
        """What the ranks refute; None where too few values are possible.

        A canary's whole text is one user's, so that this unit holds all of its repetitions; of smaller units
        it is ``insertions``. Canaries that share a prefix were drawn without replacement, and their guess
        lists use raw ranks.
        """
        candidates, ranks = self.drawn_from, self.ranks
        if not ranks or candidates < 2:
            return None
        found = exposure_bound(
            ranks=ranks,
            candidates=candidates,
            confidence=confidence,
            relation=neighbours,
            insertions=insertions,
            delta=delta,
        )
        return found.per(unit)

    def detectable(
        self, *, unit: Unit, neighbours: Neighbours, delta: float, confidence: float, insertions: int = 1
    ) -> EpsilonLowerBound | None:
        """What the ranks would have refuted, had every secret been ranked first."""
        if not self.inserted or self.drawn_from < 2:
            return None
        return detectable(
            "exposure",
            len(self.inserted),
            delta=delta,
            confidence=confidence,
            candidates=self.drawn_from,
            neighbours=neighbours,
            insertions=insertions,
        ).per(unit)

    @property
    def ranks(self) -> list[int]:
        """Of the inserted secrets: upper ends that are certain, among what each was drawn from."""
        return [min(self.drawn_from, self._certain_rank(one)) for one in self.inserted]

    @property
    def drawn_from(self) -> int:
        """How many values each secret is uniform over, given the others."""
        taken = 0 if self.manifest.plan.prefix == "distinct" else len(self.manifest.canaries) - 1
        return self.manifest.candidates - taken

    def _certain_rank(self, canary: CanaryExposure) -> int:
        """An upper end that is certain: a sampled one holds at its confidence only, and counts as last."""
        return self.manifest.candidates if canary.method == "sampled" else canary.rank_high

    def to_json(self) -> dict[str, Any]:
        """JSON form of the report; no secret is in it."""
        candidates, many = self.manifest.candidates, max(1, len(self.inserted))
        one = exposure_band(candidates=candidates, confidence=self.confidence)
        most = exposure_band(candidates=candidates, canaries=many, confidence=self.confidence)
        rows = zip(self.target.canaries, self.public.canaries, strict=True)
        return {
            "candidates": str(candidates),
            "score": self.target.score,
            "canaries": len(self.inserted),
            "distinct_prefixes": self.manifest.plan.prefix == "distinct",
            "null": {
                "mean": one.mean,
                "limit": one.limit,
                "largest_mean": most.mean,
                "largest_limit": most.limit,
                "confidence": self.confidence,
            },
            "rows": [_row(canary, public) for canary, public in rows],
            "per_repetition": self._per_repetition(),
            "mean": self._summary()["mean"],
            "public_mean": ExposureFinding(self.manifest, self.public, self.public)._summary()["mean"],
            "together": _tested(_TOGETHER, self.p_value),
            "largest": _tested(_LARGEST, self.largest_p_value if self.inserted else None),
            "control": None if self.control is None else self.of_control()._summary(),
            "positions": self.target.positions,
            "queries": self.target.queries,
        }

    def _summary(self) -> dict[str, Any]:
        values = [one.exposure.value for one in self.inserted]
        return {
            "mean": self._mean(values).to_json() if values else None,
            "largest": max(values, default=None),
            "p_value": self.p_value,
        }

    def _mean(self, values: Sequence[float]) -> Estimate:
        return mean_of(values, candidates=self.manifest.candidates, confidence=self.confidence)

    def _per_repetition(self) -> list[dict[str, Any]]:
        rungs: dict[int, list[CanaryExposure]] = {}
        for canary in self.inserted:
            rungs.setdefault(canary.repetitions, []).append(canary)
        return [
            {
                "repetitions": repetitions,
                "canaries": len(some),
                "mean": self._mean([one.exposure.value for one in some]).to_json(),
                "largest": max(one.exposure.value for one in some),
                "null_largest_limit": exposure_band(
                    candidates=self.manifest.candidates, canaries=len(some), confidence=self.confidence
                ).limit,
            }
            for repetitions, some in sorted(rungs.items())
        ]


def _tested(attempt: str, p_value: float | None) -> dict[str, Any]:
    return {"p_value": p_value, "attempt": attempt, "adjusted": None}


def _row(canary: CanaryExposure, public: CanaryExposure) -> dict[str, Any]:
    return {
        "id": canary.id,
        "inserted": canary.inserted,
        "repetitions": canary.repetitions,
        "exposure": canary.exposure.to_json(),
        "public": public.exposure.to_json(),
        "method": canary.method,
        "rank": [str(canary.rank_low), str(canary.rank_high)],
        "alone": [str(canary.alone_low), str(canary.alone_high)],
        "raw_exposure": canary.raw_exposure.to_json(),
        "positions": canary.positions,
    }


def mean_of(values: Sequence[float], *, candidates: int, confidence: float = 0.95) -> Estimate:
    """Mean exposure over canaries among so many candidates."""
    return bounded_mean(values, least=0.0, most=math.log2(candidates), of="canaries", confidence=confidence)


def coins_speak(manifest: CanaryManifest) -> bool:
    """Whether a canary's coin is fair and decides about all text of one user."""
    plan = manifest.plan
    whole_users = plan.owner == "new" and len(plan.ladder) == 1
    return whole_users and plan.include == FAIR and len(manifest.canaries) >= 2


def coin_bound(
    manifest: CanaryManifest,
    scores: FloatArray,
    *,
    unit: Unit,
    delta: float,
    confidence: float,
    seed: int,
) -> EpsilonLowerBound | None:
    """What guessing which canaries were inserted refutes, for a user with or without all of their text.

    None where a coin decides something else: unfair ones, or canaries in the text of users who are there
    anyway (leaving one out changes such a user's text, which is two steps of coming and going).
    """
    if not coins_speak(manifest):
        return None
    coins = CoinScores.of(scores, [canary.inserted for canary in manifest.canaries])
    return multi_split_bound(coins, delta=delta, confidence=confidence, seed=seed).per(unit)


def coins_detectable(
    manifest: CanaryManifest, *, unit: Unit, delta: float, confidence: float
) -> EpsilonLowerBound | None:
    """What coins would have refuted, had every guess been right."""
    if not coins_speak(manifest):
        return None
    many = len(manifest.canaries)
    return detectable("one run, split", many, delta=delta, confidence=confidence).per(unit)


def pair_bound(
    secrets: FloatArray, twins: FloatArray, *, unit: Unit, delta: float, confidence: float, seed: int
) -> EpsilonLowerBound | None:
    """What telling inserted secrets from their twins refutes: one text in another's place."""
    if len(secrets) < 2:
        return None
    coins = CoinScores.of_pairs(secrets, twins, seed=seed)
    return multi_split_bound(coins, delta=delta, confidence=confidence, seed=seed).per(unit)


def joined(bounds: Sequence[EpsilonLowerBound | None]) -> EpsilonLowerBound | None:
    """The strongest of the bounds that there are; each was made at its share of the error."""
    found = [bound for bound in bounds if bound is not None]
    return strongest(found) if found else None


def shared(confidence: float, bounds: int) -> float:
    """The confidence of each of several bounds that are joined."""
    return 1 - (1 - confidence) / max(1, bounds)
