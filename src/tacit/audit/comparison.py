"""Audited Runs side by side. Leakage can be bought with perplexity: only equals are compared.

Equal are audits, too: of Runs that held out the same text, with the same canaries in the rest, ranked by the
same score, by the same attack, at the same delta and confidence. Perplexity is per token, and says nothing
across tokenizers: there bits per byte are compared. What differs from the first Run is shown, marked, and
told. Who pays is told against one Run alone, and linkability where a probe had the first Run's task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tacit.audit.audit_file import parse_audit
from tacit.audit.audited import public_name
from tacit.audit.canary_findings import mean_of
from tacit.audit.configurations import told_apart
from tacit.audit.record import FILE, read_audit
from tacit.errors import InputError
from tacit.evaluation.report import recipe_of
from tacit.runs import Run
from tacit.statistics import Estimate


@dataclass(frozen=True)
class ComparedRun:
    """One Run's row. ``comparable``: audited like the first Run, and as useful within the tolerance.

    ``method``: with its configuration, where several of the method are compared. ``alike``: audited like the
    first Run, with perplexities that mean the same. Such Runs of one ``method`` make a frontier.
    ``leaks``: whether attacks beat chance; None where nothing was tried against it.
    """

    name: str
    method: str
    guarantee: str
    verdict: str
    perplexity: Estimate | None
    exposure_max: float | None
    exposure_mean: Estimate | None
    auc: Estimate | None
    tab: Estimate | None
    disparity_gap: Estimate | None
    comparable: bool
    why: str
    alike: bool = True
    linkability: Estimate | None = None
    linkability_chance: float | None = None  # the share of the most frequent author
    promises: bool = True
    leaks: bool | None = None
    gaussian_mu: str | None = None  # of DP-SGD, in words that say that it is no bound

    @property
    def standing(self) -> str:
        """The audit in a few words, as its headline says it: without a claim, whether it leaks decides."""
        if self.promises:
            within = self.leaks and self.verdict != "contradicted"
            return self.verdict + (", attacks beat chance" if within else "")
        found = {True: "it leaks", False: "these attacks found nothing", None: "nothing was attacked"}
        return f"no guarantee, {found[self.leaks]}"

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        numbers = ("perplexity", "exposure_mean", "auc", "tab", "linkability", "disparity_gap")
        values = {name: getattr(self, name) for name in numbers}
        return asdict(self) | {
            "standing": self.standing,
            **{name: None if value is None else value.to_json() for name, value in values.items()},
        }

    def cells(self) -> dict[str, Any]:
        """The row as a person reads it."""
        return {
            "run": self.name,
            "method": self.method,
            "perplexity": _cell(self.perplexity),
            "mean_exposure": _cell(self.exposure_mean),
            "largest": self.exposure_max,
            "membership_AUC": _cell(self.auc),
            "tab": _cell(self.tab),
            "authors_named": _cell(self.linkability),
            "disparity": _cell(self.disparity_gap),
            "verdict": self.standing,
            "equal": self.comparable,
        }


def _cell(estimate: Estimate | None) -> str | None:
    return None if estimate is None else str(estimate)


def compare_runs(
    runs: Sequence[Run], *, tolerance: float = 0.05, along: Sequence[str | None] | None = None
) -> list[ComparedRun]:
    """A row for each Run, in order; the first one's perplexity is what the others must equal.

    ``along``: the key that varies in each Run's folder of tacit tune, None for a Run given by itself.
    """
    if len(runs) < 2:
        raise InputError("Expected at least two Runs to compare.")
    if not 0 < tolerance < 1:
        raise InputError(f"Expected 0 < tolerance={tolerance} < 1, e.g. 0.05.")
    texts = {run.corpus_fingerprint() for run in runs}
    if len(texts) > 1:
        raise InputError("The Runs were trained on different text, so that nothing can be compared.")
    audits = [(run, read_audit(run)) for run in runs]
    models = _public_models(runs)
    for run, audit in audits:
        try:
            _row(run, audit, (run, audit), tolerance, "")
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration, ZeroDivisionError):
            raise InputError(
                f"{run.folder / FILE} lacks what a comparison needs; audit the Run again."
            ) from None
    methods = told_apart(
        [_method(audit, model) for (_, audit), model in zip(audits, models, strict=True)],
        [recipe_of(run) for run in runs],
        along or [None] * len(runs),
    )
    return [
        _row(run, audit, audits[0], tolerance, method)
        for (run, audit), method in zip(audits, methods, strict=True)
    ]


def _public_models(runs: Sequence[Run]) -> list[str]:
    """Of each Run, from which public model it started; empty where all started from one."""
    started = [run.manifest.public_model for run in runs]
    if len({one.fingerprint for one in started}) == 1:
        return [""] * len(runs)
    return [f"{public_name(one)} ({one.family}, {one.fingerprint[:8]})" for one in started]


def _method(audit: dict[str, Any], model: str) -> str:
    """The method, through what it answers, and the public model: beside its configuration."""
    mechanism = audit.get("mechanism")
    through = "" if mechanism is None else f", {mechanism['name']}"
    return f"{audit['run']['method']}{through}" + (f" on {model}" if model else "")


def _useful(audit: dict[str, Any], name: str) -> Estimate | None:
    found = (audit.get("utility") or {}).get(name)
    return None if found is None else Estimate.from_json(found)


def _why_not(
    run: Run, audit: dict[str, Any], first: tuple[Run, dict[str, Any]], tolerance: float
) -> tuple[list[str], list[str]]:
    """In what a Run is not as useful as the first one, and in what its audit is no equal."""
    other_run, other = first
    tokenizers = {_tokenizer(one) for one in (run, other_run)}
    name, what = (
        ("run", "perplexity") if len(tokenizers) == 1 else ("bits_per_byte", "number of bits per byte")
    )
    own, theirs = _useful(audit, name), _useful(other, name)
    reasons: list[str] = []
    if own is None or theirs is None:
        across = "" if len(tokenizers) == 1 else " (tokenizers differ, and perplexities with them)"
        reasons.append(f"its {what}, or the first Run's, was not measured{across}")
    elif abs(own.value / theirs.value - 1) > tolerance:
        reasons.append(f"its {what} is {own.value / theirs.value:.2f} times the first Run's")
    mine, yours = _settings(audit), _settings(other)
    unlike = [
        f"its {setting} differs ({mine[setting]} and {yours[setting]})"
        for setting in mine
        if None not in (mine[setting], yours[setting]) and mine[setting] != yours[setting]
    ]
    if _commitment(audit) != _commitment(other):
        unlike.append("it was audited with other canaries")
    elif None not in (_inserted(audit), _inserted(other)) and _inserted(audit) != _inserted(other):
        unlike.append("other canaries were in its training text")
    if changed := _held_out_otherwise(run, other_run):
        unlike.append(f"it held out other text ({changed})")
    return reasons, unlike


def _held_out_otherwise(run: Run, first: Run) -> str:
    """What of their splits differs; empty where both trained on, and were measured on, the same text."""
    own, theirs = (recipe_of(one).held_out for one in (run, first))
    if own is None or theirs is None:
        return "" if own == theirs else "one of the two held out nothing"
    mine, yours = own.model_dump(), theirs.model_dump()
    keys = [f"held_out.{name}" for name in mine if mine[name] != yours[name]]
    return f"another {', '.join(keys)}" if keys else ""


def _inserted(audit: dict[str, Any]) -> set[tuple[str, int]] | None:
    """The canaries that a Run was trained on, and how often each; None where none were ranked."""
    exposure = audit.get("exposure")
    if exposure is None:
        return None
    return {(row["id"], row["repetitions"]) for row in exposure["rows"] if row["inserted"]}


def _tokenizer(run: Run) -> str:
    return run.manifest.public_model.tokenizer_fingerprint


def _settings(audit: dict[str, Any]) -> dict[str, Any]:
    """What two audits must have alike, where both have it."""
    settings = (audit.get("provenance") or {}).get("settings") or {}
    exposure = audit.get("exposure") or {}
    area = _chosen(audit)
    return {
        "score of exposure": exposure.get("score"),
        "number of candidates": exposure.get("candidates"),
        "membership attack": None if area is None else f"{area[0]}: {area[1]['name']}",
        "delta": settings.get("delta"),
        "confidence": settings.get("confidence"),
    }


def _commitment(audit: dict[str, Any]) -> Any:
    return (audit.get("provenance") or {}).get("manifest_commitment")


def _row(
    run: Run, audit: dict[str, Any], first: tuple[Run, dict[str, Any]], tolerance: float, method: str
) -> ComparedRun:
    reasons, unlike = _why_not(run, audit, first, tolerance)
    found = parse_audit(audit)
    exposure = audit.get("exposure") or {}
    inserted = [row for row in exposure.get("rows", ()) if row["inserted"]]
    values = [row["exposure"]["value"] for row in inserted]
    extraction = audit.get("extraction") or {}
    tab = extraction.get("tab")
    linkability = _like_first(audit.get("linkability"), first[1].get("linkability"))
    disparity, against = audit.get("disparity"), (first[1].get("disparity") or {}).get("against")
    return ComparedRun(
        name=run.folder.absolute().name,
        method=method,
        guarantee=audit["guarantee"]["statement"],
        verdict=audit["verdict"]["word"],
        perplexity=_useful(audit, "run"),
        exposure_max=max(values) if values else None,
        exposure_mean=mean_of(
            values, candidates=int(exposure["candidates"]), confidence=found.verdict.confidence
        )
        if values
        else None,
        auc=None if (area := _chosen(audit)) is None else Estimate.from_json(area[1]["auc"]),
        tab=None if tab is None else Estimate.from_json(tab["accuracy"]),
        disparity_gap=Estimate.from_json(disparity["gap"])
        if disparity and disparity["against"] == against
        else None,
        comparable=not (reasons or unlike),
        why="; ".join(reasons + unlike),
        alike=not unlike and _tokenizer(run) == _tokenizer(first[0]),
        linkability=None if linkability is None else Estimate.from_json(linkability["run"]["accuracy"]),
        linkability_chance=None if linkability is None else linkability["chance"]["most_frequent"],
        promises=found.promises,
        leaks=found.verdict.leaks,
        gaussian_mu=None if found.run.gaussian_dp is None else str(found.run.gaussian_dp),
    )


_SAME_TASK: Final = ("label", "unseen", "authors", "learnt", "scored")


def _like_first(own: dict[str, Any] | None, first: dict[str, Any] | None) -> dict[str, Any] | None:
    """A section of linkability, if its probe had the first Run's task: more authors are harder to name."""
    if own is None or first is None or any(own[name] != first[name] for name in _SAME_TASK):
        return None
    return own


def _chosen(audit: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The first set that is not flagged, and the attack on it that was named beforehand."""
    sets = (audit.get("membership") or {}).get("sets", ())
    for one in sets:
        if not one["flagged"]:
            shown = one["roc"]["attack"]
            return one["name"], next(row for row in one["attacks"] if row["name"] == shown)
    return None
