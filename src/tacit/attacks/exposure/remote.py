"""Extraction through an API that returns nothing but samples: what is left of exposure without probabilities.

The model is prompted with each prefix and its texts are read: a text gives a secret away if, behind at most
one space, it begins with it. A guess that is uniform over R does so with chance 1/|R| for each secret. How
many queries are asked is fixed beforehand and never depends on what came back, so that the intervals hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tacit.attacks.exposure.driver import prefix_groups
from tacit.corpus.canaries import Canary, CanaryManifest, begins_with
from tacit.errors import InputError
from tacit.progress import Progress, Silent
from tacit.statistics import Estimate, clopper_pearson

Sample = Callable[[str], str]
"""From a prompt to the text that a service writes behind it; an ``openai`` client is wired by the caller."""


@dataclass(frozen=True)
class CanaryExtraction:
    """How often one canary's secret was given away.

    rate    of samples that began with the secret;  chance  of the same by a uniform guess
    within  samples in which the secret stood anywhere: weaker evidence, and without a chance level
    """

    id: str
    inserted: bool = field(repr=False)
    repetitions: int
    hits: int
    within: int
    samples: int
    rate: Estimate
    chance: float

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the operator; the secret is not in it."""
        return {**asdict(self), "rate": self.rate.to_json()}


@dataclass(frozen=True)
class RemoteReport:
    """All canaries of a manifest, and how many queries were asked of how many that were allowed."""

    canaries: tuple[CanaryExtraction, ...]
    queries: int
    most_queries: int | None

    def to_json(self) -> dict[str, Any]:
        """JSON form, for the operator."""
        return {
            "canaries": [canary.to_json() for canary in self.canaries],
            "queries": self.queries,
            "most_queries": self.most_queries,
        }


def extract_by_sampling(
    sample: Sample,
    manifest: CanaryManifest,
    *,
    samples: int = 100,
    most_queries: int | None = None,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> RemoteReport:
    """Ask for ``samples`` texts behind every prefix, or fewer where ``most_queries`` ends it.

    Prefixes take turns, so that a budget is spent evenly. A sample serves all canaries of its prefix.
    """
    if samples < 1 or (most_queries is not None and most_queries < 1):
        raise InputError(f"Expected samples={samples} and most_queries={most_queries} >= 1, e.g. 100.")
    groups = prefix_groups(manifest.canaries)
    allowed = samples * len(groups) if most_queries is None else min(most_queries, samples * len(groups))
    progress = progress or Silent()
    progress.phase("sampling", allowed)
    counts = [_Counts(group) for group in groups]
    for query in range(allowed):
        group = query % len(groups)
        counts[group].read(sample(groups[group][0].prefix))
        progress.advance(1)
    found = {
        canary.id: extraction
        for count in counts
        for canary, extraction in zip(
            count.canaries, count.results(manifest.candidates, confidence), strict=True
        )
    }
    return RemoteReport(tuple(found[canary.id] for canary in manifest.canaries), allowed, most_queries)


def gives_away(text: str, secret: str) -> bool:
    """Whether a text begins with the secret, behind at most one space; "carpet" does not give "car" away."""
    return begins_with(text.removeprefix(" "), secret)


class _Counts:
    def __init__(self, canaries: Sequence[Canary]) -> None:
        self.canaries = canaries
        self._samples = 0
        self._hits = [0] * len(canaries)
        self._within = [0] * len(canaries)

    def read(self, text: str) -> None:
        self._samples += 1
        for place, canary in enumerate(self.canaries):
            self._hits[place] += gives_away(text, canary.secret)
            self._within[place] += canary.secret in text

    def results(self, candidates: int, confidence: float) -> list[CanaryExtraction]:
        return [
            CanaryExtraction(
                id=canary.id,
                inserted=canary.inserted,
                repetitions=canary.repetitions,
                hits=hits,
                within=within,
                samples=self._samples,
                rate=clopper_pearson(hits, self._samples, confidence=confidence),
                chance=1 / candidates,
            )
            for canary, hits, within in zip(self.canaries, self._hits, self._within, strict=True)
        ]
