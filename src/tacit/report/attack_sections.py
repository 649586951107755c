"""The sections about attackers: membership, extraction, and private answers."""

from __future__ import annotations

from tacit.report import charts, charts_of_cost
from tacit.report.audit_file import Extraction, Membership, MembershipSet, Prediction, Tab
from tacit.report.charts import Measurement, Rung
from tacit.report.charts_of_cost import Bar
from tacit.report.drawing import SMALL
from tacit.report.sections import Figure, Section, Table, plain
from tacit.report.words import NOTHING, estimate, methods, number, p_sentence, p_value, percent, plural, share

_MOST_RUNGS = 16  # parts that a figure shows; the table has all


def membership(found: Membership | None) -> Section:
    """Whether somebody can tell who was in the training text."""
    section_id, title = "membership", "Membership"
    if found is None:
        return Section(
            section_id,
            title,
            missing="Membership was not attacked. It needs members and non-members from one random split: "
            "planted canaries with twins, or held-out text of the same corpus.",
        )
    sentences, warnings, figures = [], [], []
    for place, one in enumerate(found.sets, 1):
        best = one.best
        sentences.append(
            f"On {one.name} ({one.what.rstrip('.')}), the best of {plural(len(one.attacks), 'attack')} "
            f"({best.name}) has an area under the curve of {estimate(best.auc)}, where 0.5 is guessing; "
            f"{p_sentence(best.holm)} after correction for the number of attacks."
        )
        if one.flagged:
            blind = f" (area {estimate(one.blind.auc)})" if one.blind else ""
            warnings.append(
                f"{one.name}: an attacker that never sees the model tells the two groups apart by their "
                f"text alone{blind}. The result says little about the model."
            )
        figures += _set_figures(place, one)
    return Section(section_id, title, tuple(sentences), tuple(figures), warnings=tuple(warnings), paired=True)


def _set_figures(place: int, found: MembershipSet) -> list[Figure]:
    rows = [Measurement(attack.name, attack.auc) for attack in found.attacks]
    if found.blind is not None:
        rows.append(Measurement("blind (text alone)", found.blind.auc, hollow=True))
    name = f"membership-{place}"
    figures = [
        Figure(
            name,
            f"{found.name}: attacks, and one that is blind",
            charts.intervals(
                name,
                f"Area under the curve of every attack on {found.name}",
                rows,
                label="area under the curve",
                reference=(0.5, "guessing"),
                bounds=(0.0, 1.0),
                width=SMALL,
            ),
            _attack_table(found),
            plain(found.model_copy(update={"roc": None})),
            f"{found.members:,} members and {found.non_members:,} non-members."
            + (" Flagged: their text alone tells them apart." if found.flagged else ""),
        )
    ]
    if found.roc is not None:
        figures.append(
            Figure(
                f"roc-{place}",
                f"{found.name}: members found at few false alarms",
                charts.roc(f"roc-{place}", found),
                _tpr_table(found),
                plain(found.roc),
                "An attack that finds few members, but those without a false alarm, is a leak that the area "
                "under the curve hides; it rises at the left.",
            )
        )
    return figures


def _attack_table(found: MembershipSet) -> Table:
    rows = [
        (
            attack.name,
            estimate(attack.auc),
            p_value(attack.p_value),
            p_value(attack.holm),
            share(attack.accuracy),
        )
        for attack in found.attacks
    ]
    if found.blind is not None:
        rows.append(
            ("blind (text alone)", estimate(found.blind.auc), p_value(found.blind.p_value), NOTHING, NOTHING)
        )
    return Table(
        f"Attacks on {found.name}",
        ("attack", "area under the curve", "p", "p, corrected (Holm)", "accuracy"),
        tuple(rows),
        methods([attack.auc for attack in found.attacks] + [attack.accuracy for attack in found.attacks]),
    )


def _tpr_table(found: MembershipSet) -> Table:
    rates = list(dict.fromkeys(one.fpr for attack in found.attacks for one in attack.tpr))
    rows = []
    for attack in found.attacks:
        by_rate = {one.fpr: one for one in attack.tpr}
        cells = [
            share(by_rate[rate].tpr)
            if rate in by_rate and by_rate[rate].tpr is not None
            else (by_rate[rate].why if rate in by_rate else None) or NOTHING
            for rate in rates
        ]
        rows.append((attack.name, *cells))
    return Table(
        f"Members of {found.name} found",
        ("attack", *(f"at {percent(rate)} false alarms" for rate in rates)),
        tuple(rows),
        methods(one.tpr for attack in found.attacks for one in attack.tpr),
    )


def extraction(found: Extraction | None) -> Section:
    """Whether secrets come out."""
    section_id, title = "extraction", "Extraction"
    if found is None or not (found.tab or found.tries or found.codes):
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
    if found.codes:
        above = [row.name for row in found.codes if row.rate.low > row.chance]
        sentences.append(
            f"Generated codes hit planted ones more often than guessing in {len(above)} of "
            f"{plural(len(found.codes), 'setting')}{': ' + ', '.join(above) if above else ''}."
        )
        figures.append(
            Figure(
                "codes-figure",
                "Generated codes that were planted ones",
                charts_of_cost.bars(
                    "codes-figure",
                    "Share of generated codes that were planted",
                    [Bar(row.name, row.rate, row.chance) for row in found.codes],
                    label="hit rate",
                    across="through which mechanism",
                ),
                Table(
                    "Generated codes",
                    ("through", "epsilon", "hit rate", "by guessing", "verdict"),
                    tuple(
                        (row.name, number(row.epsilon), share(row.rate), percent(row.chance), row.verdict)
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
                ("queries", "sum over the charge", "largest over its charge", "verdict"),
                (
                    (
                        f"{found.realised.queries:,}",
                        number(found.realised.excess),
                        number(found.realised.largest_excess),
                        found.realised.verdict,
                    ),
                ),
            )
        )
    ratios = found.likelihood_ratio
    if ratios:
        worst = max(ratios, key=lambda row: row.epsilon_lower)
        sentences.append(
            f"The best possible attack on whether a part was there, over "
            f"{plural(found.queries, 'query', 'queries')}, shows an epsilon of at least "
            f"{number(worst.epsilon_lower)} (part {worst.part}); claimed is {number(worst.claimed_epsilon)}."
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
                ),
                Table(
                    "Likelihood ratio of transcripts with and without a part",
                    (
                        "part",
                        "transcripts",
                        "area under the curve",
                        "epsilon at least",
                        "claimed",
                        "delta",
                        "verdict",
                    ),
                    tuple(
                        (
                            f"{row.part}",
                            f"{row.transcripts:,}",
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
        seen = found.black_box
        twins = f"{plural(seen.hits_twins, 'twin')} that {'was' if seen.hits_twins == 1 else 'were'} not"
        sentences.append(
            f"From outside, {plural(seen.generations, 'generation')} held "
            f"{plural(seen.hits_inserted, 'planted secret')} and {twins} ({p_sentence(seen.p_value)}), for "
            f"{plural(seen.queries_used, 'query', 'queries')}."
        )
    return Section(section_id, title, tuple(sentences), tuple(figures), tuple(tables))
