"""Which statement of a Run canaries may refute, for which neighbours, and how many steps a canary is.

A bound contradicts a claim only if both are about the same thing. A canary's coin decides about all of one
user's text; its repetitions are that many examples where an example is one document, and a group of so many
is that many steps away. Confidentiality compares a secret with a mask in its place: dedup makes one data
point of all repetitions, which without it are as many, and what is promised for each secret that was missed
is what ranks may refute. A secret that both policies left in public text is promised nothing, and canaries
among those refute nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.audit.bounds import Neighbours
from tacit.audit.verdicts import Claim
from tacit.corpus.canaries import Canary, CanaryManifest
from tacit.corpus.screened_corpus import point_flags
from tacit.corpus.screening import MASK
from tacit.corpus.screening.binding import report_of
from tacit.evaluation.report import recipe_of
from tacit.files import read_json
from tacit.privacy import DpSgdProcess, Guarantee, Unit, dpsgd_curve, gaussian_dp_mu
from tacit.runs import Run
from tacit.training.preparation import SplitCorpus


@dataclass(frozen=True)
class JudgedClaim:
    """A claim as it is judged.

    insertions  steps of the claim's neighbours between a canary and its absence, beyond the first
    coins       whether guesses of coins speak about these neighbours
    examples    examples of the training in which a canary's secret stands
    notes       what the reader must know
    """

    claim: Claim
    unit: Unit
    neighbours: Neighbours
    insertions: int = 1
    coins: bool = True
    examples: int = 1
    notes: tuple[str, ...] = ()


def claim_to_judge(
    run: Run, guarantee: Guarantee, manifest: CanaryManifest, texts: SplitCorpus, *, delta: float
) -> JudgedClaim:
    """The claim of a Run that planted canaries can be held against."""
    repeated = max((one.repetitions for one in manifest.canaries if one.inserted), default=1)
    if guarantee.kind == "confidentiality":
        if guarantee.adjacency == "mask":
            return _about_secrets(run, guarantee, manifest, texts, repeated, delta=delta)
        claim = Claim.of(guarantee, neighbours="replace", delta=delta)
        return JudgedClaim(claim, "secret", "replace", repeated, coins=False)
    judged, notes = _for_coming_and_going(run, guarantee)
    claim = Claim.of(judged, neighbours="add/remove", delta=delta)
    if guarantee.unit != "example":
        return JudgedClaim(claim, guarantee.unit, "add/remove", notes=notes)
    if repeated > 1:
        notes = (*notes, f"Canaries stood there up to {repeated} times, which are as many examples: a group.")
    return JudgedClaim(
        claim, "example", "add/remove", repeated, coins=repeated == 1, examples=repeated, notes=notes
    )


def process_of(run: Run) -> DpSgdProcess | None:
    """The process whose whole curve a Run of DP-SGD claims, confidential or not; None for other methods."""
    if run.manifest.method not in ("dpsgd", "crt"):
        return None
    recorded = read_json(run.folder / "privacy.json", "restore it or train again")
    return DpSgdProcess.from_json(recorded["dpsgd"]["process"])


def gaussian_dp_of(run: Run) -> dict[str, Any] | None:
    """The mu that a Run of DP-SGD tends to, beside its epsilon: no bound, and labelled so."""
    process = process_of(run) if run.manifest.method == "dpsgd" else None
    return None if process is None else gaussian_dp_mu(process).to_json()


def _for_coming_and_going(run: Run, guarantee: Guarantee) -> tuple[Guarantee, tuple[str, ...]]:
    """The same training's epsilon for one example more or less, where the Run states the other kind."""
    if guarantee.kind != "dp" or guarantee.adjacency != "replace-one" or not guarantee.promises:
        return guarantee, ()
    process = process_of(run)
    assert process is not None  # noqa: S101 - nothing else promises so
    assert guarantee.delta is not None  # noqa: S101 - a guarantee of this kind has one
    epsilon = dpsgd_curve(process, "add-remove").epsilon_at(guarantee.delta)
    other = Guarantee.dp_sgd(
        epsilon=epsilon,
        delta=guarantee.delta,
        adjacency="add-remove",
        unit="user" if guarantee.unit == "user" else "example",
        outside=guarantee.outside,
    )
    return other, (f"Canaries come and go: judged by the same steps for add-remove, epsilon {epsilon:.4g}.",)


def _about_secrets(
    run: Run,
    guarantee: Guarantee,
    manifest: CanaryManifest,
    texts: SplitCorpus,
    repeated: int,
    *,
    delta: float,
) -> JudgedClaim:
    where = _where_canaries_are(run, manifest, texts)
    notes: tuple[str, ...] = (
        f"Of {where.canaries} inserted canaries the screening masked {where.masked}; {where.private} stood "
        f"in private data points as they were, and {where.public} in public ones.",
    )
    certificate = run.certificate() or {}
    missed = certificate.get("missed", {"epsilon": "inf", "delta": 0.0})
    epsilon = float(missed["epsilon"])
    claimed = replace(guarantee, epsilon=epsilon, delta=float(missed["delta"]))
    claim = Claim.of(claimed, neighbours="mask", delta=delta)
    if where.public:
        claim = replace(
            claim,
            epsilon=None,
            delta=None,
            incomparable=(
                f"{where.public} inserted canaries are in public data points, because both policies missed "
                "them; nothing is promised for such secrets"
            ),
        )
    elif math.isfinite(epsilon):
        notes = (*notes, f"Judged by the promise for each secret that was missed: epsilon {epsilon:.4g}.")
    points = 1 if _deduplicated(run) else repeated
    if points > 1:
        notes = (
            *notes,
            f"Canaries stood in up to {points} data points, which are as many examples: a group.",
        )
    # The promise is for a secret in so many data points.
    steps = math.ceil(points / certificate.get("secret_points", 1))
    return JudgedClaim(claim, "secret", "mask", steps, coins=False, examples=points, notes=notes)


def _deduplicated(run: Run) -> bool:
    """Whether the screening is known to have made one data point of a sentence that one user repeats."""
    report = report_of(Path(recipe_of(run).corpus.path)) or {}
    return report.get("dedup", {}).get("kind") in ("exact", "bloom", "near")


@dataclass(frozen=True)
class _Where:
    canaries: int
    masked: int
    private: int
    public: int


def _where_canaries_are(run: Run, manifest: CanaryManifest, texts: SplitCorpus) -> _Where:
    """Whether each inserted canary's secret stands in the screened text, and on which side."""
    planted = [one for one in manifest.canaries if one.inserted]
    of_user: dict[str, list[Canary]] = {}
    for one in planted:
        of_user.setdefault(one.user, []).append(one)
    private = point_flags(Path(recipe_of(run).corpus.path)).private
    found: dict[
        str, bool
    ] = {}  # canaries whose secret stands there, and whether all of its places are private
    train = texts.train
    for document, row in zip(train.documents(), train.row_numbers(), strict=True):
        for one in of_user.get(document.user, ()):
            if document.text != MASK and one.secret in document.text:
                found[one.id] = found.get(one.id, True) and bool(private[row])
    public = sum(not is_private for is_private in found.values())
    return _Where(len(planted), len(planted) - len(found), len(found) - public, public)
