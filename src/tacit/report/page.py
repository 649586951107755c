"""``report.html``: the audit for people.

The verdict comes first and is never kinder than the audit: it is green only where every claim was tested and
supported and no attack beat chance. Then what was promised, what became of each claim, what the model is
worth, every attack with its figure, table and data, what none of this covers, and how it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tacit.audit.audit_file import Audit, parse_audit
from tacit.files import new_file
from tacit.report import attack_sections, sections
from tacit.report.comparison import frontier_section, own_frontier
from tacit.report.guarantee_words import HEADLINES, in_words, measure_of
from tacit.report.linkability_section import linkability
from tacit.report.membership_section import membership
from tacit.report.rendering import render
from tacit.report.sections import Section
from tacit.report.words import clean, interval, number, percent
from tacit.runs import Run

FILE_NAME = "report.html"
Tone = Literal["supported", "contradicted", "inconclusive"]


@dataclass(frozen=True)
class Tile:
    """One number at the top, and what it must be read against."""

    name: str
    value: str
    against: str


def tone_of(audit: Audit) -> Tone:
    """How the verdict looks, which is what it says.

    Good where something is promised, every claim was tested and supported, and no attack beat chance. Of an
    ensemble nothing but answers is released, and these are attacked through its claim alone: whether they
    leak beyond it is no question of its own (``leaks`` is None), and its verdict is the claim's. Without a
    promise a leak is the worst that can be found; with one, what stays within it contradicts nothing.
    """
    if audit.word == "contradicted" or (audit.verdict.leaks and not audit.promises):
        return "contradicted"
    if audit.word == "supported" and not audit.verdict.leaks:
        return "supported"
    return "inconclusive"


def render_report(audit: Mapping[str, Any], *, run_name: str) -> str:
    """The report as one HTML file, from the content of ``audit.json``."""
    found = parse_audit(audit)
    shown = (
        sections.utility(found.utility, ensemble=found.mechanism is not None),
        *_frontier(found),
        sections.exposure(found.exposure, found.verdict.level),
        membership(found.membership, found.verdict.level),
        attack_sections.extraction(found.extraction, found.verdict.level),
        *(
            [attack_sections.prediction(found.prediction)]
            if found.prediction is not None or found.mechanism is not None or found.run.method == "submix"
            else []
        ),
        *(
            [linkability(found.linkability)]
            if found.linkability is not None or found.run.method != "submix"
            else []
        ),
        sections.disparity(found.disparity),
    )
    return render(
        "report.html",
        audit=found,
        name=clean(run_name),
        tone=tone_of(found),
        tiles=tiles(found),
        headline=HEADLINES[found.guarantee.kind],
        words=in_words(found.guarantee.model_dump()),
        certificate=sections.certificate(found.certificate),
        attempts=sections.attempts(found.verdict),
        measure=measure_of(found.guarantee.kind),
        claims_figure=sections.claims_figure(found.claims, found.guarantee.kind),
        sections=shown,
        provenance=sections.provenance(found),
    )


def _frontier(audit: Audit) -> list[Section]:
    """The Runs that were compared, or this one beside what it lies between."""
    if audit.compare is not None:
        return [frontier_section(audit.compare)]
    own = own_frontier(audit)
    return [] if own is None else [own]


def tiles(audit: Audit) -> list[Tile]:
    """The numbers that most readers look for."""
    found = []
    measured = [claim for claim in audit.claims if claim.measured_epsilon is not None]
    if measured:
        worst = max(measured, key=lambda claim: claim.measured_epsilon or 0.0)
        claimed = worst.claimed_epsilon
        against = "nothing was claimed" if claimed is None else f"claimed: at most {number(claimed)}"
        if audit.guarantee.kind == "rop":
            against += f" nats at order {number(audit.guarantee.order)}, for this corpus"
        what = measure_of(audit.guarantee.kind).capitalize()
        found.append(Tile(f"{what}, at least", number(worst.measured_epsilon), against))
    if audit.exposure is not None and any(row.inserted for row in audit.exposure.rows):
        largest = max(row.exposure.value for row in audit.exposure.rows if row.inserted)
        found.append(
            Tile(
                "Largest exposure",
                f"{number(largest)} bits",
                f"chance alone: below {number(audit.exposure.null.largest_limit)}",
            )
        )
    if audit.membership is not None:
        sound = [one for one in audit.membership.sets if one.tested and not one.flagged]
        if sound:  # the first set and the attack that was named beforehand: no choice by the result
            first = sound[0].primary
            found.append(
                Tile(
                    f"AUC, membership of {clean(sound[0].name)}",
                    number(first.auc.value),
                    f"{clean(first.name)}; {interval(first.auc)}; guessing: 0.5",
                )
            )
    if audit.extraction is not None and audit.extraction.tab is not None:
        tab = audit.extraction.tab
        found.append(Tile("Secrets completed", percent(tab.accuracy.value), interval(tab.accuracy, percent)))
    if audit.utility is not None:
        public = audit.utility.public
        found.append(
            Tile(
                "Perplexity",
                number(audit.utility.run.value),
                "" if public is None else f"public model: {number(public.value)}",
            )
        )
    return found


def write_report(run: Run | Path, audit: Mapping[str, Any]) -> Path:
    """Write ``report.html`` into a Run, for the owner alone: it holds what was measured on private text."""
    folder = run.folder if isinstance(run, Run) else run
    page = render_report(audit, run_name=folder.resolve().name)
    path = folder / FILE_NAME
    with new_file(path, private=True, overwrite=True) as handle:
        handle.write(page.encode())
    return path
