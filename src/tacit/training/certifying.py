"""The certificate of a CRT Run: what its steps and its screening promise about secrets.

Miss rates are measured, assumed or unknown, and the certificate says which. Unknown, gamma is 1: every
secret may have been missed, and each has the epsilon of DP-SGD. Where there is public text, an unknown
delta2 is 1 as well: a secret that both policies missed would have been trained on as it stands.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.corpus.screened_corpus import PointFlags
from tacit.corpus.screening.corpus_files import report_path
from tacit.errors import InputError, RecipeError
from tacit.files import read_json
from tacit.privacy import Certificate, MissRate, certify
from tacit.recipes import ConfidentialitySection
from tacit.training.dpsgd import outside_of
from tacit.training.preparation import Prepared
from tacit.training.privacy_plan import PrivacyPlan


def certificate_for(prepared: Prepared, plan: PrivacyPlan, flags: PointFlags) -> Certificate:
    """All that the Run promises; the counts in it are the owner's."""
    section = prepared.recipe.confidentiality or ConfidentialitySection()
    report = _screening_report(Path(prepared.recipe.corpus.path))
    gamma, delta2 = miss_rates(section, report, all_private=bool(flags.private.all()))
    outside = [*outside_of(prepared)]
    if not report:
        outside.append("the screening, whose report is not beside its data points")
    outside += [f"{name}, which the proof does not cover" for name in report.get("outside_the_proof", ())]
    if section.calibration is not None:
        outside.append("the thresholds and the miss rates, as far as the labelled sample is of this text")
    points = section.differing_points
    if points is None:
        points, exposed = _counted_group(report)
        if exposed:
            outside.append("public data points that the counted secrets change, which no epsilon covers")
    return certify(
        plan.process,
        delta=plan.section.delta,
        gamma=gamma,
        delta2=delta2,
        private_points=plan.population,
        bare_points=int((flags.bare & flags.private).sum()),
        uniform_points=points,
        outside=tuple(outside),
    )


def _screening_report(screened: Path) -> dict[str, Any]:
    """What the screening wrote beside its data points; nothing where it was not kept."""
    path = report_path(screened)
    return read_json(path, "screen the corpus again") if path.is_file() else {}


def _counted_group(report: dict[str, Any]) -> tuple[int | None, int]:
    """u of the secrets that the screening was given, and how many of these points are public."""
    group = report.get("group")
    if not isinstance(group, dict):
        return None, 0
    return int(group["differing_points"]), int(group["differing_public_points"])


def published(certificate: Certificate) -> Certificate:
    """The certificate without the counts that are not the same with and without a secret."""
    return replace(certificate, private_part=None, groups=(), uniform=None)


def miss_rates(
    section: ConfidentialitySection, report: dict[str, Any], *, all_private: bool
) -> tuple[MissRate, MissRate | None]:
    """gamma and delta2, and how they are known; no delta2 where every data point is private."""
    if section.calibration is not None:
        gamma, delta2 = _calibrated(Path(section.calibration), report)
        return gamma, None if all_private else delta2
    gamma = _assumed(section.gamma, "not measured: every secret may have been missed")
    if all_private:
        return gamma, None
    return gamma, _assumed(section.delta2, "not measured: any secret may be in public text")


def _assumed(rate: float | None, otherwise: str) -> MissRate:
    return MissRate(1.0, None, None, None, otherwise) if rate is None else MissRate.assumed(rate)


def _calibrated(path: Path, report: dict[str, Any]) -> tuple[MissRate, MissRate]:
    content = read_json(path, "make it with tacit corpus calibrate")
    if not report:
        raise RecipeError(
            f"confidentiality.calibration={path} needs the report of the screening beside its data points, "
            "which says by what policy they were made; screen the corpus again."
        )
    for name in ("policy", "split"):
        # Another policy, or other data points, would miss other secrets.
        if report.get(name) != content.get(name):
            raise RecipeError(
                f"confidentiality.calibration={path} was measured with another {name} than the corpus was "
                "screened with; calibrate with the same one."
            )
    try:
        return _measured(content["gamma"]), _measured(content["delta2"])
    except (KeyError, TypeError, InputError):
        raise RecipeError(
            f"confidentiality.calibration={path} is no file of tacit corpus calibrate; make it again."
        ) from None


def _measured(bound: dict[str, Any]) -> MissRate:
    return MissRate.measured(bound["misses"], bound["n"], confidence=bound["confidence"])
