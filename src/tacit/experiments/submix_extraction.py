"""SubMix, Figure 6: how often a generation gives a secret code away, over epsilon and the length of codes.

Each user's text is "My number is: <digits>". Every half of a part memorises one code; the attacker asks for
numbers and counts hits. A model fine-tuned on all codes and one member alone are the controls: where they
give nothing away, nothing is shown. Chance is a blind guess, and the certificate is what differential privacy
promises whatever the models memorised (`tacit.evaluation.extraction`). Drawn three times, with other codes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tacit.attacks import MemorisingPlan
from tacit.evaluation.extraction import AttackPlan, attack_own_models
from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.results import Chart, Finding, Level, Point, Scale, Series, Table
from tacit.experiments.stages import Stage, Workshop, mark_of
from tacit.experiments.submix_tables import decided
from tacit.experiments.tiny_model import tiny_public_model
from tacit.report.words import estimate as told
from tacit.report.words import number
from tacit.statistics import Estimate, clopper_pearson

NAME: Final = "submix-extraction"
_MECHANISMS: Final = {
    "submix_paper": "SubMix as printed",
    "submix": "SubMix per part",
    "certified": "certified",
}
_CONTROLS: Final = {
    "public": "public",
    "member": "one member, not private",
    "nonprivate": "ensemble, not private",
    "finetuned": "fine-tuned on all codes, not private",
}
_RECALL: Final = 0.9  # section 4.2: what the fine-tuned model gives away


def _settings(scale: Scale) -> Settings:
    tiny = scale == "tiny"
    small = {"steps": 60, "learning_rate": 1e-2, "adapter": "lora", "rank": 8}
    papers = {"steps": 1000, "learning_rate": 1e-4, "adapter": "full"}
    toy = {"steps": 120, "learning_rate": 5e-3, "adapter": "full"}
    return {
        "model": {"tiny": None, "small": "smollm2-135m-instruct", "paper": "gpt2"}[scale],
        "memorising": {"tiny": toy, "small": small, "paper": papers}[scale],
        "codes": 4 if tiny else 6,  # m: k = m/2 parts
        "digits": [2] if tiny else [2, 3, 4, 5],
        "generations": 40 if tiny else 100,
        "epsilons": [2.0, 1e5] if tiny else [1.0, 10.0, 100.0, 1e3, 1e4, 1e5],
        "prevented_at": 2.0 if tiny else 100.0,
        "order": 2.0,
        "seeds": [1, 2] if tiny else [1, 2, 3],
    }


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    del workshop
    return [_stage(settings, digits, seed) for digits in settings["digits"] for seed in settings["seeds"]]


def _stage(settings: Settings, digits: int, seed: int) -> Stage:
    memorising = {"digits": digits, "codes": settings["codes"], "seed": seed, **settings["memorising"]}
    attack = {
        "generations": settings["generations"],
        "mechanisms": list(_MECHANISMS),
        "epsilons": settings["epsilons"],
        "order": settings["order"],
        "seed": seed,
    }
    key = {"model": settings["model"], "memorising": memorising, "attack": attack}
    name = _stage_name(digits, seed)

    def work(shop: Workshop) -> Mapping[str, Any]:
        plan = MemorisingPlan(model=settings["model"] or tiny_public_model(shop), **memorising)
        chosen = AttackPlan(
            **{**attack, "mechanisms": tuple(_MECHANISMS), "epsilons": tuple(settings["epsilons"])}
        )
        folder = shop.folder / "extraction" / f"{digits}-{seed}-{mark_of(name, key)}"
        report = attack_own_models(plan, chosen, folder, with_finetuned=True, progress=shop.progress)
        return report.to_json()

    minutes = 0.1 if settings["model"] is None else 4.0 if settings["model"] != "gpt2" else 120.0
    return Stage(name, key, minutes, work)


def _stage_name(digits: int, seed: int) -> str:
    return f"{NAME}-{digits}-digits-{seed}"


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    rows = [
        row
        for digits in settings["digits"]
        for row in _pooled([outcomes[_stage_name(digits, seed)] for seed in settings["seeds"]], settings)
    ]
    chances = tuple(
        Level(name=f"chance, {digits} digits", value=settings["codes"] / 10**digits)
        for digits in settings["digits"]
    )
    training = settings["memorising"]
    return Conclusion(
        conditions=(
            f"{settings['model'] or 'A tiny model made on the spot, which stands for no result'}; "
            f"{settings['codes']} codes in k = {settings['codes'] // 2} parts of two halves; each member "
            f"takes {training['steps']} steps on its one line ({training['adapter']}, learning rate "
            f"{training['learning_rate']:g}), the fine-tuned model twice as many on all lines.",
            f'{settings["generations"]} generations after "My number is:", from one budget of order '
            f"{settings['order']:g}; drawn {len(settings['seeds'])} times with codes and seeds of their own, "
            "and counted together. The attacker gives a generation up as soon as it can no longer hit.",
        ),
        tables=(_table(rows),),
        charts=tuple(_chart(name, rows, settings, chances) for name in _MECHANISMS),
        findings=_findings(rows, settings),
        caveats=(
            "Members that memorised different codes disagree at every digit, so that even their plain "
            "mean gives little away: rows at chance do not show by themselves that anything was prevented.",
            "SubMix's bound holds for one corpus only and has no certificate; that of certified mixing is on "
            "average over the codes that could have been drawn.",
            "Intervals are over generations of these models, not over other codes.",
        ),
    )


def _pooled(reports: Sequence[Mapping[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """The rows of several draws of codes of one length, counted together."""
    tried = settings["generations"] * len(reports)
    rows = []
    for found in zip(*(report["rows"] for report in reports), strict=True):
        hits = sum(row["hits"] for row in found)
        rate = clopper_pearson(hits, tried)
        computed = [row["analytic"] for row in found]
        bounds = [row["at_most"] for row in found]
        rows.append(
            {
                "digits": reports[0]["digits"],
                "name": found[0]["name"],
                "epsilon": found[0]["epsilon"],
                "hits": hits,
                "rate": replace(rate, method=f"{rate.method}, of {len(reports)} draws of codes"),
                "computed": None
                if None in computed
                else sum(one["value"] for one in computed) / len(computed),
                "highest": None if None in computed else sum(one["high"] for one in computed) / len(computed),
                "at_most": None if None in bounds else sum(bounds) / len(bounds),
                "chance": reports[0]["chance"],
            }
        )
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("digits", "answers by", "epsilon", "hit rate", "computed", "chance", "certificate: at most")
    return Table(
        title="Figure 6",
        columns=columns,
        rows=tuple(
            (
                row["digits"],
                (_CONTROLS | _MECHANISMS)[row["name"]],
                row["epsilon"],
                row["rate"],
                row["computed"],
                row["chance"],
                row["at_most"],
            )
            for row in rows
        ),
    )


def _chart(
    name: str, rows: Sequence[Mapping[str, Any]], settings: Settings, chances: tuple[Level, ...]
) -> Chart:
    series = []
    for digits in settings["digits"]:
        shown = [row for row in rows if (row["name"], row["digits"]) == (name, digits)]
        series.append(_line(f"{digits} digits", shown, "rate"))
        if all(row["at_most"] is not None for row in shown):
            series.append(_line(f"{digits} digits, certificate", shown, "at_most"))
    return Chart(
        name=f"figure-6-{name.replace('_', '-')}",
        title=f"{_MECHANISMS[name]}: hit rate of {settings['generations']} generations",
        x_label=f"epsilon (order {settings['order']:g})",
        y_label="hit rate",
        series=tuple(series),
        levels=chances,
        log_x=True,
    )


def _line(name: str, rows: Sequence[Mapping[str, Any]], what: str) -> Series:
    bare = what == "at_most"
    return Series(
        name=name,
        bare=bare,
        points=tuple(Point(x=row["epsilon"], y=_exact(row[what]) if bare else row[what]) for row in rows),
    )


def _exact(value: float) -> Estimate:
    return Estimate(value, value, value, 0.95, "computed")


def _findings(rows: Sequence[Mapping[str, Any]], settings: Settings) -> tuple[Finding, ...]:
    controls = {name: [row for row in rows if row["name"] == name] for name in ("finetuned", "member")}
    recalls = [row["rate"] for row in controls["finetuned"]]
    alone = [row["rate"] for row in controls["member"]]
    at = settings["prevented_at"]
    printed = [row for row in rows if (row["name"], row["epsilon"]) == ("submix_paper", at)]
    per_part = [row for row in rows if (row["name"], row["epsilon"]) == ("submix", at)]
    certified = [row for row in rows if row["name"] == "certified"]
    first = {digits: _first_extracting(rows, digits) for digits in settings["digits"]}
    return (
        Finding(
            claim=f"A model fine-tuned on all codes gives them away: a hit rate of at least {_RECALL:g}.",
            here=f"{_listed(settings, recalls)}; one member alone: {_listed(settings, alone)}.",
            outcome=decided(
                holds=all(one.low >= _RECALL for one in recalls),
                fails=any(one.high < _RECALL for one in recalls),
            ),
        ),
        Finding(
            claim=f"SubMix prevents extraction at epsilon = {at:g} for all lengths.",
            here=f"As printed: {_listed(settings, [row['rate'] for row in printed])}.",
            outcome=_prevented(printed, rows),
        ),
        Finding(
            claim=f"Ours: so does SubMix with weights per part, at epsilon = {at:g}.",
            here=f"{_listed(settings, [row['rate'] for row in per_part])}.",
            outcome=_prevented(per_part, rows),
        ),
        Finding(
            claim="The longer the codes, the higher is the epsilon that still prevents extraction.",
            here="SubMix as printed gives away more than chance from epsilon = "
            + "; ".join(
                f"{'none that was tried' if found is None else number(found)} ({digits} digits)"
                for digits, found in first.items()
            )
            + ".",
            outcome=_later_for_longer(list(first.values())),
        ),
        Finding(
            claim="No certified answer passes its certificate.",
            here="By the computed rate, which has no sampling error, at every epsilon and length.",
            outcome=decided(
                holds=all(_within(row) for row in certified),
                fails=not all(_within(row) for row in certified),
            ),
        ),
    )


def _within(row: Mapping[str, Any]) -> bool:
    return row["at_most"] is not None and row["computed"] <= row["at_most"] + 1e-12


def _listed(settings: Settings, rates: Sequence[Estimate]) -> str:
    pairs = zip(settings["digits"], rates, strict=True)
    return ", ".join(f"{told(rate)} ({digits} digits)" for digits, rate in pairs)


def _reference(rows: Sequence[Mapping[str, Any]], digits: int) -> float:
    """What needs no private model: a blind guess, or the public model's own rate if that is higher."""
    public = next(row for row in rows if (row["name"], row["digits"]) == ("public", digits))
    return max(float(public["chance"]), float(public["highest"]))


def _prevented(found: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Any:
    """Not more than chance would give; and what a control gives away is far above it."""
    holds, fails = [], []
    for row in found:
        control = max(
            one["rate"].low
            for one in rows
            if one["digits"] == row["digits"] and one["name"] in ("member", "finetuned")
        )
        fails.append(row["rate"].low > _reference(rows, row["digits"]))
        holds.append(row["rate"].high < control / 2)
    return decided(holds=all(holds) and not any(fails), fails=any(fails))


def _first_extracting(rows: Sequence[Mapping[str, Any]], digits: int) -> float | None:
    shown = [row for row in rows if (row["name"], row["digits"]) == ("submix_paper", digits)]
    passed = [row["epsilon"] for row in shown if row["rate"].low > _reference(rows, digits)]
    return min(passed, default=None)


def _later_for_longer(first: Sequence[float | None]) -> Any:
    """Longer codes are first given away at the same epsilon or a higher one, or never."""
    order = [math.inf if one is None else one for one in first]
    return decided(holds=order == sorted(order) and order[0] < order[-1], fails=order != sorted(order))


EXTRACTION: Final = Experiment(
    name=NAME,
    title="Codes that models memorised",
    shows="SubMix, Figure 6",
    settings=_settings,
    stages=_stages,
    conclude=_conclude,
)
