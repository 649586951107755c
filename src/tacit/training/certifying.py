"""The certificate of a CRT Run: what its steps and its screening promise about secrets.

Miss rates are measured, assumed or unknown, and the certificate says which. Unknown, gamma is 1: every
secret may have been missed, and each has the epsilon of DP-SGD. Where the policy has a pi_c, an unknown
delta2 is 1 as well: a secret that both policies missed would have been trained on as it stands.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.corpus.screened_corpus import PointFlags
from tacit.corpus.screening.binding import required_report
from tacit.errors import InputError, RecipeError
from tacit.files import read_json
from tacit.privacy import Certificate, MissRate, calibrated_rates, certify
from tacit.progress import Progress
from tacit.recipes import ConfidentialitySection, Recipe
from tacit.training.dpsgd import outside_of
from tacit.training.preparation import Prepared
from tacit.training.privacy_plan import PrivacyPlan


def certificate_for(prepared: Prepared, plan: PrivacyPlan, flags: PointFlags) -> Certificate:
    """All that the Run promises; the counts in it are the owner's."""
    section = prepared.recipe.confidentiality or ConfidentialitySection()
    report = required_report(Path(prepared.recipe.corpus.path), "crt")
    gamma, delta2 = miss_rates(section, report)
    outside = [*outside_of(prepared)]
    outside += [f"{name}, which the proof does not cover" for name in report.get("outside_the_proof", ())]
    if section.calibration is not None:
        outside.append("the thresholds and the miss rates, as far as the labelled sample is of this text")
    points, exposed = group_of_all(section, report)
    return certify(
        plan.process,
        delta=plan.section.delta,
        gamma=gamma,
        delta2=delta2,
        private_points=plan.population,
        bare_points=int((flags.bare & flags.private).sum()),
        secret_points=section.secret_points,
        groups=section.groups,
        uniform_points=points,
        uniform_public_points=exposed,
        outside=tuple(outside),
    )


def tell_of_repeated_secrets(prepared: Prepared, progress: Progress) -> None:
    """Whether the screening counted a secret in more data points than the promise for each one is about.

    To the operator, and not in the certificate: it is a function of the private text.
    """
    section = prepared.recipe.confidentiality or ConfidentialitySection()
    group = required_report(Path(prepared.recipe.corpus.path), "crt").get("group") or {}
    most = group.get("most_points_of_one", 0)
    if most > section.secret_points:
        progress.remark(
            f"a secret of the screening's list stands in {most:,} data points, and what is promised of each "
            f"is for one in {section.secret_points:,}; set confidentiality.secret_points, if that number may "
            "be public"
        )


def group_of_all(section: ConfidentialitySection, report: dict[str, Any]) -> tuple[int | None, int | None]:
    """u, and how many of these points are public; None where nobody counted that.

    A stated u is of other secrets than the screening's if it is not the one that was counted. Whether points
    of those are public is unknown; that points of the screening's are is known all the same.
    """
    group, stated = report.get("group"), section.differing_points
    if not isinstance(group, dict):
        return stated, None
    counted, exposed = int(group["differing_points"]), int(group["differing_public_points"])
    if stated in (None, counted) or exposed:
        return counted if stated is None else stated, exposed
    return stated, None


def published(certificate: Certificate) -> Certificate:
    """The certificate without the counts that are not the same with and without a secret."""
    return replace(certificate, private_part=None, groups=(), uniform=None)


def published_recipe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as ``run.json`` has it: without what was counted in the private text."""
    content = recipe.to_json()
    if content.get("confidentiality") is not None:
        content["confidentiality"] |= {"differing_points": None, "groups": None}
    return content


def miss_rates(section: ConfidentialitySection, report: dict[str, Any]) -> tuple[MissRate, MissRate | None]:
    """gamma and delta2, and how they are known; no delta2 where the policy makes everything private.

    By the policy, not by the points: that no point happened to be public is a fact about this text, and a
    secret that both policies miss would have made one.
    """
    everything = report["policy"]["conservative"] is None
    if section.calibration is not None:
        return _calibrated(Path(section.calibration), report)
    gamma = _assumed(section.gamma, "not measured: every secret may have been missed")
    if everything:
        return gamma, None
    return gamma, _assumed(section.delta2, "not measured: any secret may be in public text")


def _assumed(rate: float | None, otherwise: str) -> MissRate:
    return MissRate(1.0, None, None, None, otherwise) if rate is None else MissRate.assumed(rate)


def _calibrated(path: Path, report: dict[str, Any]) -> tuple[MissRate, MissRate | None]:
    content = read_json(path, "make it with tacit corpus calibrate")
    for name in ("policy", "split"):
        # Another policy, or other data points, would miss other secrets.
        if report.get(name) != content.get(name):
            raise RecipeError(
                f"confidentiality.calibration={path} was measured with another {name} than the corpus was "
                "screened with; calibrate with the same one."
            )
    try:
        return calibrated_rates(content)
    except InputError:
        raise RecipeError(
            f"confidentiality.calibration={path} is no file of tacit corpus calibrate; make it again."
        ) from None
