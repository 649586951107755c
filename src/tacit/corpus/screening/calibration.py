"""What a policy misses, measured on labelled documents: gamma, delta2, recall, and what stays public.

For every labelled secret two questions are asked of the whole screen (fixed point and all):

* **gamma**: does the data point come out exactly as it would if the secret had been masked beforehand? Only
  then is the secret *caught* in the sense of the paper's Proposition 5, and costs nothing. A secret that is
  masked, but together with words beside it that stay when it is masked alone, is not; nor is one in a point
  that did not settle. So gamma is at least the share that is not fully masked, which is shown too.
* **delta2**: is the data point left public? Then the secret is trained on without noise.

Both are shares of a sample, and the bound to quote is the one-sided Clopper-Pearson upper bound: it holds
with the stated confidence *if the labelled secrets are drawn independently from the secrets that the
guarantee is about*. Secrets of one document resemble each other; ``one_per_document`` takes one of each, by
a hash.

Thresholds chosen on the sample that measures them would flatter themselves: they are chosen on one half of
the documents and measured on the other.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tacit.corpus.screening.labelled import LabelledDocument
from tacit.corpus.screening.masks import LabelledSpan, escaped
from tacit.corpus.screening.policy import Policy
from tacit.corpus.screening.redaction import Redactor
from tacit.corpus.screening.sentences import SplitSettings, split_points
from tacit.errors import CorpusError, InputError
from tacit.statistics import Estimate, clopper_pearson

CALIBRATION_FORMAT = "tacit calibration 1"
ASSUMES = (
    "the labelled secrets are drawn independently from the secrets that the guarantee is about, and every "
    "secret of the labelled documents is labelled"
)
_GRID = (
    0.01,
    0.02,
    0.03,
    0.05,
    0.07,
    0.1,
    0.15,
    0.2,
    0.25,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    0.95,
    0.99,
    1.0,
)
_SCORED_AT_ONCE = 256


@dataclass(frozen=True)
class Wanted:
    """The recalls to choose thresholds for: of pi, and of pi_c if there is to be one."""

    redact: float
    conservative: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("recall", self.redact), ("conservative-recall", self.conservative)):
            if value is not None and not 0 < value <= 1:
                raise InputError(f"Expected {name}={value} in (0, 1], e.g. 0.95.")


@dataclass(frozen=True)
class CalibrationSettings:
    """What a data point is, how sure the bounds are to be, and whether one secret of each document counts."""

    split: SplitSettings
    confidence: float = 0.95
    one_per_document: bool = False


@dataclass(frozen=True)
class _Point:
    """A data point with the labelled secrets in it; ``counted`` are those that the measurement is about."""

    text: str
    secrets: tuple[LabelledSpan, ...]
    counted: tuple[bool, ...]


@dataclass(frozen=True)
class _Scored:
    """A point before any masking: the highest score in it, and the lowest score within each secret."""

    highest: float
    secrets: tuple[float, ...]


def calibrate(
    documents: Sequence[LabelledDocument],
    policy: Policy,
    settings: CalibrationSettings,
    wanted: Wanted | None = None,
) -> dict[str, Any]:
    """Measure a policy; with ``wanted``, choose its thresholds on one half first and measure on the other."""
    if policy.gold is not None:
        raise InputError(
            "A policy with the corpus' own spans misses what it is told to; leave the spans out."
        )
    chosen_on: dict[str, Any] | None = None
    measured = documents
    notes: list[str] = []
    if wanted is not None:
        first = [document for document in documents if document.half == 0]
        measured = [document for document in documents if document.half == 1]
        for half, name in ((first, "chooses"), (measured, "measures")):
            if not any(document.spans for document in half):
                raise CorpusError(
                    f"The half of the documents that {name} has no labelled secret; give more documents."
                )
        policy, chosen_on = _chosen(first, policy, settings, wanted, notes)
    points = _points(measured, settings)
    result = _measured(points, policy, settings.confidence)
    curve = _curve(points, policy, settings.confidence)
    return {
        "format": CALIBRATION_FORMAT,
        "policy": policy.to_json(),
        "split": settings.split.to_json(),
        "confidence": settings.confidence,
        "one_per_document": settings.one_per_document,
        "documents": len(documents),
        "chosen_on": chosen_on,
        "measured_on": {
            "documents": len(measured),
            "points": len(points),
            "secrets": sum(sum(point.counted) for point in points),
        },
        "thresholds": {"redact": policy.redact, "conservative": policy.conservative},
        **result,
        "curve": curve,
        "assumes": ASSUMES,
        "notes": notes,
    }


def _points(documents: Sequence[LabelledDocument], settings: CalibrationSettings) -> list[_Point]:
    points = []
    for document in documents:
        text = escaped(document.text)
        chosen = set(document.spans)
        if settings.one_per_document and chosen:
            chosen = {min(chosen, key=lambda span: _draw(document.text, span))}
        for start, end in split_points(text, settings.split):
            inside = [span for span in document.spans if span.start < end and span.end > start]
            points.append(
                _Point(
                    text[start:end],
                    tuple(
                        LabelledSpan(max(s.start, start) - start, min(s.end, end) - start, s.label)
                        for s in inside
                    ),
                    # A secret that a boundary cuts is counted in each point that has some of it.
                    tuple(span in chosen for span in inside),
                )
            )
    return points


def _draw(text: str, span: LabelledSpan) -> bytes:
    return hashlib.blake2b(repr((text, tuple(span))).encode(), digest_size=8).digest()


def _scored(points: Sequence[_Point], policy: Policy) -> list[_Scored]:
    """Scores of the unmasked points: they tell what every threshold would do, without redacting for each."""
    scored = []
    for begin in range(0, len(points), _SCORED_AT_ONCE):
        some = points[begin : begin + _SCORED_AT_ONCE]
        for point, tokens in zip(some, policy.tokens([point.text for point in some], least=0.0), strict=True):
            best = [0.0] * len(point.text)
            for token in tokens:
                for place in range(token.start, token.end):
                    best[place] = max(best[place], token.score)
            scored.append(
                _Scored(
                    max((token.score for token in tokens), default=0.0),
                    tuple(
                        min((best[p] for p in range(s.start, s.end) if point.text[p].isalnum()), default=0.0)
                        for s in point.secrets
                    ),
                )
            )
    return scored


def _chosen(
    documents: Sequence[LabelledDocument],
    policy: Policy,
    settings: CalibrationSettings,
    wanted: Wanted,
    notes: list[str],
) -> tuple[Policy, dict[str, Any]]:
    points = _points(documents, replace(settings, one_per_document=False))
    scores = sorted(score for scored in _scored(points, policy) for score in scored.secrets)
    redact = _threshold(scores, wanted.redact, "pi", notes)
    conservative = None
    if wanted.conservative is not None:
        conservative = min(redact, _threshold(scores, wanted.conservative, "pi_c", notes))
    about = {
        "documents": len(documents),
        "secrets": len(scores),
        "wanted_recall": wanted.redact,
        "wanted_conservative_recall": wanted.conservative,
    }
    return replace(policy, redact=redact, conservative=conservative), about


def _threshold(scores: Sequence[float], recall: float, name: str, notes: list[str]) -> float:
    """The highest score that the wanted share of secrets reaches; the lowest that any has where none does."""
    found = [score for score in scores if score > 0]
    missable = int((1 - recall) * len(scores) + 1e-9)
    reachable = len(scores) - len(found) <= missable
    if not reachable:
        notes.append(
            f"No threshold of {name} reaches a recall of {recall:g}: {len(scores) - len(found)} of "
            f"{len(scores)} secrets have no score at all; the lowest score that any has was taken."
        )
    if not found:
        return 1.0
    return scores[missable] if reachable else found[0]


def _measured(points: Sequence[_Point], policy: Policy, confidence: float) -> dict[str, Any]:
    """Screen every point as it is, and once for each of its secrets with that one masked beforehand."""
    redactor = Redactor(policy)
    neighbours = Redactor(policy, verify=False)
    counts = _Counts()
    for begin in range(0, len(points), _SCORED_AT_ONCE):
        some = points[begin : begin + _SCORED_AT_ONCE]
        results = redactor.redact([point.text for point in some])
        pairs = [
            (number, secret)
            for number, point in enumerate(some)
            for secret, counted in zip(point.secrets, point.counted, strict=True)
            if counted
        ]
        others = neighbours.redact(
            [some[number].text for number, _ in pairs], masked=[[secret] for _, secret in pairs]
        )
        conservative = _reached(some, policy)
        for point, result in zip(some, results, strict=True):
            form = redactor.form(result)
            private = bool(form.masks) or policy.conservative is None or result.conservative
            counts.add_point(point, form.masks, private=private, settled=result.settled)
        for (number, secret), other in zip(pairs, others, strict=True):
            result = results[number]
            form = redactor.form(result)
            private = bool(form.masks) or policy.conservative is None or result.conservative
            same = result.settled and other.fixed and neighbours.form(other).text == form.text
            hidden = {place for mask in form.masks for place in range(mask.start, mask.end)}
            letters = [p for p in range(secret.start, secret.end) if some[number].text[p].isalnum()]
            covered = all(place in hidden for place in letters)
            counts.add_secret(
                secret.label,
                caught=same and covered,
                masked=covered,
                labelled=all(place in hidden or place in conservative[number] for place in letters),
                private=private,
            )
    return counts.to_json(confidence)


def _reached(points: Sequence[_Point], policy: Policy) -> list[set[int]]:
    """The characters that pi_c labels in each point before any masking; all of them without a pi_c."""
    if policy.conservative is None:
        return [set(range(len(point.text))) for point in points]
    tokens = policy.tokens([point.text for point in points])
    return [{place for token in found for place in range(token.start, token.end)} for found in tokens]


class _Counts:
    """Hits and misses, in all and by label."""

    def __init__(self) -> None:
        self.n: Counter[str] = Counter()
        self.caught: Counter[str] = Counter()
        self.masked: Counter[str] = Counter()
        self.labelled: Counter[str] = Counter()
        self.exposed = 0
        self.points = self.public = self.unsettled = 0
        self.characters = self.hidden = self.hidden_secret = 0

    def add_secret(self, label: str, *, caught: bool, masked: bool, labelled: bool, private: bool) -> None:
        for name in ("ALL", label):
            self.n[name] += 1
            self.caught[name] += caught
            self.masked[name] += masked
            self.labelled[name] += labelled
        self.exposed += not private

    def add_point(
        self, point: _Point, masks: Sequence[LabelledSpan], *, private: bool, settled: bool
    ) -> None:
        self.points += 1
        self.public += not private
        self.unsettled += not settled
        self.characters += len(point.text)
        secret = {place for span in point.secrets for place in range(span.start, span.end)}
        for mask in masks:
            self.hidden += mask.end - mask.start
            self.hidden_secret += sum(place in secret for place in range(mask.start, mask.end))

    def to_json(self, confidence: float) -> dict[str, Any]:
        n = self.n["ALL"]
        return {
            "gamma": _bound(n - self.caught["ALL"], n, confidence),
            "delta2": _bound(self.exposed, n, confidence),
            "not_fully_masked": _bound(n - self.masked["ALL"], n, confidence),
            "recall": {name: _share(self.masked[name], self.n[name], confidence) for name in self.n},
            "conservative_recall": {
                name: _share(self.labelled[name], self.n[name], confidence) for name in self.n
            },
            "public_share": _share(self.public, self.points, confidence),
            "masked_share_of_characters": self.hidden / self.characters if self.characters else 0.0,
            "precision_of_masked_characters": self.hidden_secret / self.hidden if self.hidden else None,
            "unsettled_points": self.unsettled,
        }


def _share(hits: int, trials: int, confidence: float) -> dict[str, Any]:
    return clopper_pearson(hits, trials, confidence=confidence).to_json() | {"hits": hits, "n": trials}


def _bound(misses: int, n: int, confidence: float) -> dict[str, Any]:
    """A miss rate and the most that it could be."""
    estimate: Estimate = clopper_pearson(misses, n, confidence=confidence, side="upper")
    return {
        "misses": misses,
        "n": n,
        "value": misses / n if n else 0.5,
        "upper": estimate.high,
        "confidence": confidence,
        "method": estimate.method,
    }


def _curve(points: Sequence[_Point], policy: Policy, confidence: float) -> list[dict[str, Any]]:
    """What each threshold would miss as pi, and would miss and leave public as pi_c, before any second round.

    A point is private as soon as anything in it reaches the threshold, so that for pi_c a row needs no pi.
    """
    scored = _scored(points, policy)
    secrets = [
        (score, result.highest)
        for point, result in zip(points, scored, strict=True)
        for score, counted in zip(result.secrets, point.counted, strict=True)
        if counted
    ]
    own = {policy.redact} | ({policy.conservative} if policy.conservative is not None else set())
    rows = []
    for threshold in sorted({*_GRID, *own}):
        missed = sum(score < threshold for score, _ in secrets)
        exposed = sum(highest < threshold for _, highest in secrets)
        rows.append(
            {
                "threshold": threshold,
                "not_fully_masked": _bound(missed, len(secrets), confidence),
                "left_public": _bound(exposed, len(secrets), confidence),
                "public_share": sum(r.highest < threshold for r in scored) / len(scored) if scored else 0.0,
            }
        )
    return rows
