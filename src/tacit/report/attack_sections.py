"""The sections about what comes out: extraction, and private answers."""

from __future__ import annotations

from tacit.audit.attack_parts import (
    BlackBox,
    Extraction,
    Prediction,
    RealTab,
    Tab,
)
from tacit.report import charts, charts_of_cost
from tacit.report.charts import Rung
from tacit.report.charts_of_cost import Bar
from tacit.report.sections import Figure, Section, Table, plain
from tacit.report.words import NOTHING, estimate, methods, number, p_sentence, p_value, percent, plural, share

_MOST_RUNGS = 16  # parts that a figure shows; the table has all


def extraction(found: Extraction | None, level: float = 0.05) -> Section:
    """Whether secrets come out; judged at the level of the headline."""
    section_id, title = "extraction", "Extraction"
    if found is None or not (found.tab or found.tab_real or found.tries or found.codes):
        return Section(
            section_id,
            title,
            missing="Nobody tried to get secrets out. Plant canaries with `tacit corpus plant` and audit "
            "again, or attack the method with `tacit attack extraction`.",
        )
    sentences, figures, tables = [], [], []
    if found.tab is not None:
        sentences.append(
            f"Given the beginning of a secret, greedy completion writes the rest of "
            f"{share(found.tab.accuracy)} of them"
            + (f"; the public model does so for {share(found.tab.public)}." if found.tab.public else ".")
        )
        figures.append(_tab_figure(found.tab))
    if found.tab_real is not None:
        sentences.append(_about_real(found.tab_real))
        figures.append(_real_figure(found.tab_real))
    if found.codes:
        above = [row.name for row in found.codes if row.judged(level) in ("extracts", "leaks")]
        sentences.append(
            f"One generation after a secret's beginning writes it more often than chance explains in "
            f"{len(above)} of {plural(len(found.codes), 'setting')}"
            f"{': ' + ', '.join(above) if above else ''}."
        )
        figures.append(
            Figure(
                "codes-figure",
                "Generations that write a planted secret",
                charts_of_cost.bars(
                    "codes-figure",
                    "Share of generations that write a planted secret",
                    [Bar(row.name, row.rate, row.chance) for row in found.codes],
                    label="hit rate",
                    across="through what",
                ),
                Table(
                    "Generations that write a planted secret",
                    ("through", "epsilon", "hit rate", "by guessing", "verdict"),
                    tuple(
                        (
                            row.name,
                            number(row.epsilon),
                            share(row.rate),
                            percent(row.chance),
                            row.judged(level),
                        )
                        for row in found.codes
                    ),
                    methods(row.rate for row in found.codes),
                ),
                plain(found.codes),
            )
        )
    if found.tries is not None:
        tables.append(
            Table(
                "How many generations until a secret appears",
                ("with chance", "median tries", "secrets within so many tries"),
                tuple(
                    (
                        percent(row.p),
                        number(row.median_tries),
                        "; ".join(f"{one.tries:,}: {share(one.share)}" for one in row.within) or NOTHING,
                    )
                    for row in found.tries.rows
                ),
                methods(one.share for row in found.tries.rows for one in row.within),
            )
        )
    return Section(section_id, title, tuple(sentences), tuple(figures), tuple(tables), paired=True)


def _about_real(found: RealTab) -> str:
    told = (
        f"Of the strangest text of each of {plural(found.users, 'user')} ({found.source}), greedy completion "
        f"writes {share(found.accuracy)} from the first token"
    )
    if found.others is None:
        return f"{told}. Nobody else's texts were picked alike, so that this describes and shows no leak."
    return (
        f"{told}; of {plural(found.other_users, 'user')} who were held out, {share(found.others)} "
        f"({p_sentence(found.p_value)}, Fisher{_after(found.adjusted)})."
    )


def _after(adjusted: float | None) -> str:
    return "" if adjusted is None else f"; {p_sentence(adjusted)} after correction"


def _real_figure(found: RealTab) -> Figure:
    rows = [Bar("trained on", found.accuracy)]
    rows += [] if found.others is None else [Bar("not trained on", found.others)]
    rows += [] if found.public is None else [Bar("public model", found.public)]
    attainable = found.attainable
    lines = [] if attainable is None else [(attainable, f"attainable at most: {percent(attainable)}")]
    return Figure(
        "real-tab-figure",
        "Users' own texts that greedy completion writes out",
        charts_of_cost.bars(
            "real-tab-figure",
            "Share of users' strangest texts that greedy completion reproduces",
            rows,
            label="texts reproduced",
            across="whose text, or by which model",
            lines=lines,
        ),
        Table(
            "Tab attack on users' own texts",
            ("texts", "reproduced"),
            tuple((row.name, share(row.value)) for row in rows),
            methods(row.value for row in rows),
        ),
        plain(found),
    )


def _tab_figure(tab: Tab) -> Figure:
    rows = [Bar(f"{level.repetitions}x", level.accuracy) for level in tab.per_repetition]
    rows.append(Bar("all", tab.accuracy))
    if tab.public is not None:
        rows.append(Bar("public model", tab.public))
    attainable = tab.attainable
    lines = [] if attainable is None else [(attainable, f"attainable at most: {percent(attainable)}")]
    return Figure(
        "tab-figure",
        "Secrets that greedy completion writes out",
        charts_of_cost.bars(
            "tab-figure",
            "Share of secrets that greedy completion reproduces",
            rows,
            label="secrets reproduced",
            across="times that a secret was inserted",
            lines=lines,
        ),
        Table(
            "Tab attack",
            ("times inserted", "reproduced"),
            tuple((row.name, share(row.value)) for row in rows),
            methods(row.value for row in rows),
        ),
        plain(tab),
        "Two secrets that begin alike cannot both be completed: that is why all of them may be out of reach.",
    )


def prediction(found: Prediction | None) -> Section:
    """Whether private answers cost what was charged."""
    section_id, title = "prediction", "Private answers"
    if found is None:
        return Section(
            section_id,
            title,
            missing="Answers were not attacked. Audit with the mechanism that answers, such as certified.",
        )
    sentences, figures, tables = [], [], []
    if found.realised is not None:
        sentences.append(f"{found.realised.statement.rstrip('.')}: {found.realised.verdict}.")
        tables.append(
            Table(
                "What answers cost, against what was charged",
                ("queries", "of them above their charge", "largest over its charge", "verdict"),
                (
                    (
                        f"{found.realised.queries:,}",
                        f"{found.realised.excess:,}",
                        number(found.realised.largest_excess),
                        found.realised.verdict,
                    ),
                ),
            )
        )
    ratios = found.likelihood_ratio
    if ratios:
        worst = max(ratios, key=lambda row: row.epsilon_lower)
        differing = worst.measure == "divergence"
        what = "a divergence in nats" if differing else "an epsilon"
        over = "" if worst.queries is None else f" over {plural(worst.queries, 'query', 'queries')}"
        sentences.append(
            f"The best possible attack on whether a part was there{over} shows {what} of at least "
            f"{number(worst.epsilon_lower)} (part {worst.part}); claimed is {number(worst.claimed_epsilon)}"
            + (" for this corpus, which is not differential privacy." if differing else ".")
        )
        shown = sorted(ratios, key=lambda row: -row.epsilon_lower)[:_MOST_RUNGS]
        figures.append(
            Figure(
                "ratio-figure",
                "The best possible attack on each part",
                charts.ladder(
                    "ratio-figure",
                    [
                        Rung(f"Part {row.part}", row.verdict, row.claimed_epsilon, row.epsilon_lower, None)
                        for row in shown
                    ],
                    "divergence" if differing else "epsilon",
                ),
                Table(
                    "Likelihood ratio of transcripts with and without a part",
                    (
                        "part",
                        "transcripts",
                        "queries in each",
                        "area under the curve",
                        "nats at least" if differing else "epsilon at least",
                        "claimed",
                        "delta",
                        "verdict",
                    ),
                    tuple(
                        (
                            f"{row.part}",
                            f"{row.transcripts:,}",
                            NOTHING if row.queries is None else f"{row.queries:,}",
                            estimate(row.auc),
                            number(row.epsilon_lower),
                            number(row.claimed_epsilon),
                            number(row.delta),
                            row.verdict,
                        )
                        for row in ratios
                    ),
                    methods(row.auc for row in ratios),
                ),
                plain(ratios),
            )
        )
    if found.black_box is not None:
        sentences.append(_about_service(found.black_box))
        tables.append(_service_table(found.black_box))
    return Section(section_id, title, tuple(sentences), tuple(figures), tuple(tables))


def _about_service(seen: BlackBox) -> str:
    twins = f"{plural(seen.hits_twins, 'twin')} that {'was' if seen.hits_twins == 1 else 'were'} not"
    told = (
        f"From outside, {plural(seen.generations, 'generation')} held "
        f"{plural(seen.hits_inserted, 'planted secret')} and {twins} ({p_sentence(seen.p_value)}), for "
        f"{plural(seen.queries_used, 'query', 'queries')}."
    )
    return f"{told} {seen.control}".strip()


def _service_table(seen: BlackBox) -> Table:
    rows = (
        ("answers to planted prefixes", f"{seen.generations:,}"),
        ("that were the secret", share(seen.secret_rate) if seen.secret_rate else f"{seen.hits_inserted:,}"),
        ("that were its twin", share(seen.twin_rate) if seen.twin_rate else f"{seen.hits_twins:,}"),
        ("by guessing", percent(seen.chance)),
        ("p, that nothing is remembered", p_value(seen.p_value)),
        ("p, that the claim holds", p_value(seen.p_claim)),
        ("tokens received", f"{seen.queries_used:,}"),
        ("tokens booked meanwhile", NOTHING if seen.booked is None else f"{seen.booked:,}"),
        ("ended", seen.ended),
        ("verdict", seen.verdict),
    )
    return Table(
        "What a client got out of the running service",
        ("", ""),
        rows,
        methods(one for one in (seen.secret_rate, seen.twin_rate) if one is not None),
    )
