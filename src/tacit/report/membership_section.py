"""The section about who was in the training text: texts alone, in groups, and what the text itself tells."""

from __future__ import annotations

from tacit.audit.attack_parts import GroupAttack, GroupAttacks, Membership, MembershipSet
from tacit.report import charts
from tacit.report.charts import Measurement
from tacit.report.drawing import SMALL
from tacit.report.sections import Figure, Section, Table, plain
from tacit.report.words import NOTHING, estimate, methods, p_sentence, p_value, percent, plural, share


def membership(found: Membership | None, level: float = 0.05) -> Section:
    """Whether somebody can tell who was in the training text; judged at the level of the headline."""
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
        first, above = one.primary, one.above_chance(level)
        names = f" ({', '.join(attack.name for attack in above)})" if above else ""
        sentences.append(
            f"On {one.name} ({one.what.rstrip('.')}), the attack that was chosen beforehand ({first.name}) "
            f"has an area under the curve of {estimate(first.auc)}, where 0.5 is guessing."
            + (
                ""
                if one.flagged or not one.tested
                else f" Of {plural(len(one.attacks), 'attack')}, {len(above)}{names} "
                f"{'is' if len(above) == 1 else 'are'} better than guessing at {percent(level)} after "
                "correction for all that was tried."
            )
        )
        if one.flagged:
            blind = f" (area {estimate(one.blind.auc)})" if one.blind else ""
            warnings.append(
                f"{one.name}: an attacker that never sees the model tells the two groups apart by their "
                f"text alone{blind}. The result says little about the model."
            )
        sentences += _about_groups(one)
        figures += _set_figures(place, one)
    return Section(section_id, title, tuple(sentences), tuple(figures), warnings=tuple(warnings), paired=True)


def _about_groups(found: MembershipSet) -> list[str]:
    groups = found.groups
    if groups is None:
        why = found.groups_why
        return [f"Groups of {found.name} were not attacked: {why}."] if why else []
    first = groups.chosen
    told = " Its members and others are told apart by their text alone." if found.flagged else ""
    return [
        f"In {groups.groups:,} groups of {groups.size} {found.name}, drawn from {groups.secrets[0]:,} "
        f"secrets and {groups.secrets[1]:,} others, the score that was chosen beforehand ({first.name}) has "
        f"an area of {estimate(first.auc)}; {_corrected(first)}.{told}"
    ]


def _corrected(attack: GroupAttack) -> str:
    if attack.adjusted is None:
        return p_sentence(attack.p_value)
    return f"{p_sentence(attack.adjusted)} after correction"


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
            f"{found.members:,} members and {found.non_members:,} non-members"
            + (f", about {found.secrets:,} secrets." if found.secrets else ".")
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
    if found.groups is not None:
        figures.append(_group_figure(f"groups-{place}", found.name, found.groups))
    return figures


def _group_figure(name: str, of: str, found: GroupAttacks) -> Figure:
    return Figure(
        name,
        f"Groups of {found.size} {of}",
        charts.intervals(
            name,
            f"Area under the curve of groups of {found.size} {of}",
            [Measurement(attack.name, attack.auc) for attack in found.attacks],
            label="area under the curve",
            reference=(0.5, "guessing"),
            bounds=(0.0, 1.0),
            width=SMALL,
        ),
        Table(
            f"Attacks on {found.groups:,} groups of {found.size} {of}",
            ("score", "area under the curve", "told apart at the median", "p", "p, corrected"),
            tuple(
                (
                    attack.name,
                    estimate(attack.auc),
                    share(attack.accuracy_at_median),
                    p_value(attack.p_value),
                    p_value(attack.adjusted),
                )
                for attack in found.attacks
            ),
            methods(attack.auc for attack in found.attacks),
        ),
        plain(found),
        "Many weak signals add up. Groups share secrets, so that intervals draw secrets anew and p-values "
        "swap them with what stands in for them.",
    )


def _attack_table(found: MembershipSet) -> Table:
    at_median = any(attack.accuracy_at_median is not None for attack in found.attacks)
    rows: list[tuple[str, ...]] = [
        (
            attack.name,
            estimate(attack.auc),
            p_value(attack.p_value),
            p_value(attack.adjusted),
            share(attack.accuracy),
            percent(attack.accuracy_chance),
            *((share(attack.accuracy_at_median),) if at_median else ()),
        )
        for attack in found.attacks
    ]
    columns = ["attack", "area under the curve", "p", "p, corrected", "accuracy", "always one answer"]
    columns += ["told apart at the median"] if at_median else []
    if found.blind is not None:
        blind = ("blind (text alone)", estimate(found.blind.auc), p_value(found.blind.p_value))
        rows.append((*blind, *[NOTHING] * (len(columns) - len(blind))))
    return Table(
        f"Attacks on {found.name}",
        tuple(columns),
        tuple(rows),
        methods([attack.auc for attack in found.attacks] + [attack.accuracy for attack in found.attacks]),
    )


def _tpr_table(found: MembershipSet) -> Table:
    rates = list(dict.fromkeys(one.fpr for attack in found.attacks for one in attack.tpr))
    rows = []
    for attack in found.attacks:
        by_rate = {one.fpr: one for one in attack.tpr}
        cells = []
        for rate in rates:
            one = by_rate.get(rate)
            missing = (None if one is None else one.why) or NOTHING
            found_here = one is not None and one.tpr is not None
            cells.append(share(one.tpr) if one is not None and found_here else missing)
            cells.append(share(one.measured_fpr) if one is not None and found_here else NOTHING)
        rows.append((attack.name, *cells))
    columns = [
        column
        for rate in rates
        for column in (f"at {percent(rate)} false alarms", "false alarms that there were")
    ]
    return Table(
        f"Members of {found.name} found",
        ("attack", *columns),
        tuple(rows),
        methods(one.tpr for attack in found.attacks for one in attack.tpr),
    )
