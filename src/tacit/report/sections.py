"""The report's sections: for every part of the audit what was found in words, its figures and its tables.

A section that was not measured says so and how to get it. Sentences name what chance alone would show: a
number without it reads as a leak, or as none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup
from pydantic import BaseModel

from tacit.audit.attack_parts import Exposure
from tacit.audit.audit_file import Audit, Claim, Disparity, Utility, VerdictPart
from tacit.audit.certificate_part import CertificatePart
from tacit.report import charts, charts_of_cost
from tacit.report.charts import Measurement, Rung
from tacit.report.guarantee_words import measure_of
from tacit.report.words import (
    NOTHING,
    duration,
    estimate,
    methods,
    number,
    p_sentence,
    p_value,
    percent,
    plural,
)


@dataclass(frozen=True)
class Table:
    """Rows under columns; the first cell of a row is its name."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A picture, what it shows, and the same as a table and as data."""

    id: str
    title: str
    svg: Markup
    table: Table
    data: Any
    reading: str = ""

    @property
    def json(self) -> Markup:
        """The data, so that no text in them can end the element that they are in."""
        text = json.dumps(self.data, ensure_ascii=True, allow_nan=False)
        for sign in "<>&":
            text = text.replace(sign, f"\\u{ord(sign):04x}")
        return Markup(text)  # noqa: S704 - the signs that HTML reads are gone


@dataclass(frozen=True)
class Section:
    """One subject; ``missing`` says how to get what was not measured."""

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: str = ""
    paired: bool = False  # figures are small and stand side by side
    paragraphs: tuple[tuple[str, tuple[str, ...]], ...] = ()  # with a heading each


def plain(part: Any) -> Any:
    """Parts of the audit as JSON again."""
    if isinstance(part, BaseModel):
        return {name: plain(getattr(part, name)) for name in type(part).model_fields}
    if isinstance(part, list | tuple):
        return [plain(one) for one in part]
    if isinstance(part, dict):
        return {name: plain(one) for name, one in part.items()}
    if hasattr(part, "to_json"):
        return part.to_json()
    if isinstance(part, float) and part in (float("inf"), float("-inf")):
        return str(part)
    return part


_CLAIM_COLUMNS: Final[dict[str, Callable[[Claim], str]]] = {
    "claimed": lambda claim: number(claim.claimed_epsilon),
    "shown at least": lambda claim: number(claim.measured_epsilon),
    "control": lambda claim: number(claim.control_epsilon),
    "detectable": lambda claim: number(claim.detectable_epsilon),
    "delta": lambda claim: number(claim.delta),
    "confidence": lambda claim: percent(claim.confidence),
}


def claims_figure(claims: Sequence[Claim], kind: str = "dp") -> Figure | None:
    """All claims that have a number, on one axis; ``kind`` is that of the guarantee."""
    numbered = [
        (place, claim)
        for place, claim in enumerate(claims, 1)
        if claim.claimed_epsilon is not None or claim.measured_epsilon is not None
    ]
    if not numbered:
        return None
    rungs = [
        Rung(
            f"Claim {place}",
            claim.verdict,
            claim.claimed_epsilon,
            claim.measured_epsilon,
            claim.detectable_epsilon,
        )
        for place, claim in numbered
    ]
    known = {  # a control and what could be detected are of some kinds of audits only
        column: value
        for column, value in _CLAIM_COLUMNS.items()
        if any(value(claim) != NOTHING for _, claim in numbered)
    }
    table = Table(
        f"Claimed and measured {measure_of(kind)}",
        ("claim", *known, "verdict"),
        tuple(
            (f"{place}. {claim.claim}", *(value(claim) for value in known.values()), claim.verdict)
            for place, claim in numbered
        ),
        tuple(dict.fromkeys(claim.method for _, claim in numbered if claim.method)),
    )
    return Figure(
        "claims-figure",
        "What was claimed, and what was shown",
        charts.ladder("claims-figure", rungs, measure_of(kind)),
        table,
        plain(list(claims)),
        _reading([claim for _, claim in numbered], kind),
    )


def _reading(claims: Sequence[Claim], kind: str) -> str:
    """What the signs mean of which there are any."""
    sentences = []
    if kind == "rop":
        sentences.append("Renyi divergence of this corpus's answers in nats, not differential privacy.")
    if any(claim.claimed_epsilon is not None for claim in claims):
        sentences.append("A bar that passes its diamond contradicts the claim.")
    else:
        sentences.append("Nothing was claimed that a bar could pass.")
    if any(claim.detectable_epsilon is not None for claim in claims):
        sentences.append(
            "A bar that stays below says only as much as the audit could see: leaks in the hatched range "
            "would have gone unnoticed."
        )
    return " ".join(sentences)


def certificate(found: CertificatePart | None) -> Section | None:
    """What confidential training promises about secrets, as its certificate says it."""
    if found is None:
        return None
    return Section(
        "certificate",
        "Certificate",
        paragraphs=tuple((one.heading, one.lines) for one in found.paragraphs),
    )


def attempts(verdict: VerdictPart) -> Table | None:
    """Every attack that the headline looks at, and which of them chance does not explain."""
    if not verdict.attacks:
        return None
    return Table(
        "Every attack that the headline looks at",
        ("attack", "measured", "by chance", "p", "p, corrected", "named beforehand", "leaks"),
        tuple(
            (
                one.attack,
                estimate(one.measured),
                number(one.chance),
                p_value(one.p_value),
                p_value(one.adjusted),
                "yes" if one.named else "no",
                "yes" if one.leaks else "no",
            )
            for one in verdict.attacks
        ),
        (
            f"It leaks if a corrected p is at most {percent(verdict.level)}: half of that is for attacks "
            "that were named beforehand and half for the others, by Holm. Where nothing leaks, anything is "
            f"called a leak in at most {percent(verdict.level)} of audits.",
        ),
    )


def utility(found: Utility | None, *, ensemble: bool = False) -> Section:
    """What the model is worth; of an ensemble, what its mechanism's answers are."""
    section_id, title = "utility", "Utility"
    if found is None and ensemble:
        return Section(
            section_id,
            title,
            missing="Perplexity was not measured under this mechanism and budget. Run `tacit evaluate` with "
            "both and audit again.",
        )
    if found is None:
        return Section(
            section_id,
            title,
            missing="Perplexity was not measured. Keep held-out text when training (held_out in the recipe) "
            "and audit again.",
        )
    rows = [
        (name, value, hollow)
        for name, value, hollow in (
            ("public model", found.public, True),
            ("this Run", found.run, False),
            ("without protection", found.unmitigated, True),
        )
        if value is not None
    ]
    sentence = f"Perplexity on {found.text or 'held-out text'} is {estimate(found.run)}"
    if found.public is not None:
        sentence += f"; the public model has {estimate(found.public)}"
    if found.unmitigated is not None:
        sentence += f", a model without protection {estimate(found.unmitigated)}"
    figure = Figure(
        "utility-figure",
        "Perplexity on held-out text",
        charts.intervals(
            "utility-figure",
            "Perplexity on held-out text",
            [Measurement(name, value, hollow) for name, value, hollow in rows],
            label="perplexity (less is better)",
        ),
        Table(
            "Perplexity",
            ("model", "perplexity"),
            tuple((name, estimate(value)) for name, value, _ in rows),
            methods(value for _, value, _ in rows),
        ),
        plain(found),
    )
    return Section(section_id, title, (sentence + ".",), (figure,))


def exposure(found: Exposure | None, level: float = 0.05) -> Section:
    """How far planted secrets stand out; what chance explains is judged at the level of the headline."""
    section_id, title = "exposure", "Exposure"
    if found is None or not found.rows:
        return Section(
            section_id,
            title,
            missing="There are no canaries. Plant some with `tacit corpus plant`, train on the planted "
            "corpus, and give the audit their manifest.",
        )
    inserted = [row for row in found.rows if row.inserted]
    sentences = [
        f"{plural(found.canaries, 'secret')} out of {number(float(found.candidates))} possible ones "
        f"{'was' if found.canaries == 1 else 'were'} planted. Exposure is how many bits of a secret the "
        f"model gives away, from 0 to {number(found.bits)}."
    ]
    if inserted:
        largest = max(inserted, key=lambda row: row.exposure.value)
        p_corrected = found.largest.adjusted
        over = None if p_corrected is None else p_corrected <= level
        sentences.append(
            f"The most exposed has {estimate(largest.exposure)} bits. "
            f"Where nothing is memorised, the largest of {found.canaries} is "
            f"{number(found.null.largest_mean)} on average and below {number(found.null.largest_limit)} in "
            f"{percent(found.null.confidence)} of cases"
            + (
                "."
                if over is None
                else f": chance {'does not explain' if over else 'alone could explain'} this "
                f"({p_sentence(p_corrected)} after correction for all that was tried)."
            )
        )
    if found.control is not None and found.control.largest is not None:
        sentences.append(
            f"In the control, a model without protection that read the same text, the most exposed has "
            f"{number(found.control.largest)} bits and the mean is {estimate(found.control.mean)}: so much "
            "do these attacks find where nothing protects."
        )
    if found.together.p_value is not None:
        corrected = found.together.adjusted
        after = "" if corrected is None else f"; {p_sentence(corrected)} after correction"
        sentences.append(
            f"All inserted canaries together: {p_sentence(found.together.p_value)} (Fisher), the chance of "
            f"so much exposure in a model that has never read them{after}."
        )
    rows = tuple(
        (
            row.id,
            f"{row.repetitions}" if row.inserted else "not inserted",
            estimate(row.exposure),
            estimate(row.public),
            *(NOTHING if rank is None else _ranks(rank) for rank in (row.alone, row.rank)),
            row.method,
        )
        for row in found.rows
    )
    levels = Table(
        "By number of insertions",
        (
            "times inserted",
            "canaries",
            "mean",
            "largest",
            f"largest by chance, {percent(found.null.confidence)}",
        ),
        tuple(
            (
                f"{rung.repetitions}",
                f"{rung.canaries}",
                estimate(rung.mean),
                number(rung.largest),
                number(rung.null_largest_limit),
            )
            for rung in found.per_repetition
        ),
        methods(rung.mean for rung in found.per_repetition),
    )
    figure = Figure(
        "exposure-figure",
        "Exposure by number of insertions",
        charts.exposure_by_repetition("exposure-figure", found),
        Table(
            "Every canary",
            (
                "canary",
                "times inserted",
                "exposure (bits)",
                "before training",
                "rank",
                "rank among all",
                "method",
            ),
            rows,
            (
                "Exposure is of the rank without the other inserted secrets behind the same words; the rank "
                "among all counts them, too.",
                *methods(row.exposure for row in found.rows),
            ),
        ),
        plain(found),
        f"Ranked by {found.score}; {found.positions:,} positions were computed"
        + (f" in {duration(found.seconds)}" if found.seconds is not None else "")
        + (
            f", for {plural(found.queries, 'query', 'queries')} that a client would have to pay for"
            if found.queries
            else ""
        )
        + ". A single point above the dark band is no finding by itself: of many, "
        "the largest is compared with the lighter one.",
    )
    return Section(section_id, title, tuple(sentences), (figure,), (levels,) if found.per_repetition else ())


def _ranks(ends: tuple[int, int]) -> str:
    low, high = ends
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def disparity(found: Disparity | None) -> Section:
    """Who pays for protection."""
    section_id, title = "disparity", "Who pays"
    if found is None:
        return Section(
            section_id,
            title,
            missing="Changes per user were not measured. They need held-out text of at least two users; what "
            "protection costs each needs a Run without it, trained on the same text (--against).",
        )
    differs = not found.gap.low <= 0 <= found.gap.high
    unlike = (
        "training helps one group more than the other."
        if found.baseline == "public"
        else "protection costs one group more than the other."
    )
    sentences: tuple[str, ...] = (
        f"Against {found.against}, perplexity changes by {estimate(found.mean)} for the mean of "
        f"{plural(found.users, 'user')}.",
        f"Between the {found.compared} with fewest and the {found.compared} with most samples the gap is "
        f"{estimate(found.gap)}: "
        + (unlike if differs else "its interval holds 0, so that no difference is shown."),
    )
    if found.baseline == "public":
        told = "This tells whom training helped; what protection costs needs a Run without it (--against)."
        sentences = (*sentences, told)
    rows = (
        ("all users", found.mean),
        ("most samples", found.top),
        ("fewest samples", found.bottom),
        ("gap", found.gap),
        *((("slope on log(samples)", found.slope),) if found.slope is not None else ()),
    )
    table = Table(
        "Change of perplexity",
        ("users", "change"),
        tuple((name, estimate(value)) for name, value in rows),
        methods(value for _, value in rows),
    )
    if found.points and found.slope is not None:
        svg = charts_of_cost.disparity("disparity-figure", found, found.slope)
    else:
        svg = charts.intervals(
            "disparity-figure",
            "Change of perplexity",
            [Measurement(name, value) for name, value in rows[:4]],
            label="change of perplexity",
            reference=(0.0, "no change"),
        )
    figure = Figure("disparity-figure", "Change of perplexity by number of samples", svg, table, plain(found))
    return Section(section_id, title, sentences, (figure,), warnings=found.caveats)


def provenance(audit: Audit) -> Table:
    """What somebody else needs to do it again."""
    found = audit.provenance
    rows = [
        ("weights", audit.run.weights_fingerprint),
        ("canary manifest", found.manifest_commitment or NOTHING),
        ("training", "seeded: can be repeated" if audit.run.seeded else "drawn seeds"),
        ("seeds of the audit", NOTHING if found.seeds is None else _compact(found.seeds)),
        ("processor", found.processor or NOTHING),
        ("time taken", duration(found.seconds)),
        *((name, version) for name, version in found.versions.items()),
        *((name.replace("_", " "), _compact(value)) for name, value in found.settings.items()),
    ]
    return Table("Provenance", ("", ""), tuple(rows))


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
