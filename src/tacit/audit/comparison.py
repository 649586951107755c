"""Audited Runs side by side. Leakage can be bought with perplexity: only equals are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tacit.audit.canary_findings import mean_of
from tacit.audit.record import read_audit
from tacit.errors import InputError
from tacit.runs import Run
from tacit.statistics import Estimate


@dataclass(frozen=True)
class ComparedRun:
    """One Run's row. ``comparable``: its perplexity is the first Run's, within the tolerance."""

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

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        numbers = ("perplexity", "exposure_mean", "auc", "tab", "disparity_gap")
        values = {name: getattr(self, name) for name in numbers}
        return asdict(self) | {
            name: None if value is None else value.to_json() for name, value in values.items()
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
            "disparity": _cell(self.disparity_gap),
            "verdict": self.verdict,
            "equal": self.comparable,
        }


def _cell(estimate: Estimate | None) -> str | None:
    return None if estimate is None else str(estimate)


def compare_runs(runs: Sequence[Run], *, tolerance: float = 0.05) -> list[ComparedRun]:
    """A row for each Run, in order; the first one's perplexity is what the others must equal."""
    if len(runs) < 2:
        raise InputError("Expected at least two Runs to compare.")
    if not 0 < tolerance < 1:
        raise InputError(f"Expected 0 < tolerance={tolerance} < 1, e.g. 0.05.")
    texts = {run.corpus_fingerprint() for run in runs}
    if len(texts) > 1:
        raise InputError("The Runs were trained on different text, so that nothing can be compared.")
    audits = [read_audit(run) for run in runs]
    first = _perplexity(audits[0])
    return [_row(run, audit, first, tolerance) for run, audit in zip(runs, audits, strict=True)]


def _perplexity(audit: dict[str, Any]) -> Estimate | None:
    utility = audit.get("utility")
    return None if not utility else Estimate.from_json(utility["run"])


def _row(run: Run, audit: dict[str, Any], first: Estimate | None, tolerance: float) -> ComparedRun:
    own = _perplexity(audit)
    why = ""
    if own is None or first is None:
        why = "its perplexity, or the first Run's, was not measured"
    elif abs(own.value / first.value - 1) > tolerance:
        why = f"its perplexity is {own.value / first.value:.2f} times the first Run's"
    exposure = audit.get("exposure") or {}
    inserted = [row for row in exposure.get("rows", ()) if row["inserted"]]
    values = [row["exposure"]["value"] for row in inserted]
    extraction = audit.get("extraction") or {}
    tab = extraction.get("tab")
    disparity = audit.get("disparity")
    return ComparedRun(
        name=run.folder.absolute().name,
        method=audit["run"]["method"],
        guarantee=audit["guarantee"]["statement"],
        verdict=audit["verdict"]["word"],
        perplexity=own,
        exposure_max=max(values) if values else None,
        exposure_mean=mean_of(values, candidates=int(exposure["candidates"])) if values else None,
        auc=_area(audit),
        tab=None if tab is None else Estimate.from_json(tab["accuracy"]),
        disparity_gap=None if disparity is None else Estimate.from_json(disparity["gap"]),
        comparable=not why,
        why=why,
    )


def _area(audit: dict[str, Any]) -> Estimate | None:
    """The primary attack's area on the first set that is not flagged."""
    sets = (audit.get("membership") or {}).get("sets", ())
    for one in sets:
        if not one["flagged"]:
            shown = one["roc"]["attack"]
            return next(Estimate.from_json(row["auc"]) for row in one["attacks"] if row["name"] == shown)
    return None
