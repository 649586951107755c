"""Mechanisms under budgets over kept distributions: what is asked for as JSON, what was found as JSON.

A row is asked for by a mapping:

    variant   one of :data:`VARIANTS`
    epsilon, queries, order, parts   queries = 1: every query has a fresh budget of its own
    source    of the target: heuristic (epsilon / queries, the paper's), calibrated on the public surrogate,
              or oracle: tuned on the private ensemble itself, which voids every charge (the paper's Figure 4)

Mixing runs once for each target, whatever the budgets: thousands of rows rest on some dozens of passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tacit.evaluation import Measurement, MechanismRow, Setting
from tacit.evaluation.mechanism_blocks import HeldOutBlocks, Stretch
from tacit.evaluation.mechanism_budgets import Answers, block_perplexities
from tacit.evaluation.mechanism_kept import KeptPmfs
from tacit.evaluation.mechanism_pmfs import probe_of, trace
from tacit.evaluation.mechanism_report import over_users, row_of
from tacit.evaluation.report import MeasuredText
from tacit.experiments.stages import Stage, Workshop
from tacit.experiments.submix_ground import GroundSettings, Shape, enough, kept, kept_in, log_probabilities
from tacit.mechanisms.choice import MechanismChoice
from tacit.prediction import Budget
from tacit.progress import Progress
from tacit.statistics import FloatArray, bootstrap_over_users

Spec = Mapping[str, Any]

PRINTED: Final = "SubMix as printed"
PER_PART: Final = "SubMix per part"
CERTIFIED: Final = "certified"
INDIVIDUAL: Final = "individual"
AGGREGATE: Final = "subsample-and-aggregate"
GNMAX: Final = "GNMax"
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    PRINTED: {"name": "submix", "mixing": "averaged", "weights": "paper"},
    PER_PART: {"name": "submix"},
    CERTIFIED: {"name": "certified"},
    INDIVIDUAL: {"name": "individual"},
    AGGREGATE: {"name": "subsample_aggregate"},
    GNMAX: {"name": "gnmax"},
}
# In nats per query; every budget chooses among the same, so that each is mixed once.
TARGETS: Final = (4e-4, 1.6e-3, 6.4e-3, 2.5e-2, 0.1, 0.4, 1.6)
_TOLERANCE: Final = 1e-6  # of a budget for one query, which a price may just reach


def spec(
    variant: str,
    epsilon: float,
    queries: int,
    parts: int,
    *,
    order: float = 2.0,
    source: str = "heuristic",
) -> Spec:
    """One row to ask for."""
    return {
        "variant": variant,
        "epsilon": epsilon,
        "queries": queries,
        "parts": parts,
        "order": order,
        "source": source,
    }


def calibrated(
    ground: GroundSettings,
    shop: Workshop,
    specs: Sequence[Spec],
    shape: Shape,
    *,
    name: str,
    targets: Sequence[float] = TARGETS,
) -> Stage:
    """The best target of each row, on the ground's public surrogate."""
    asked = kept(ground, shop, replace(shape, surrogate=True))
    key = {"specs": list(specs), "asked": asked.key, "targets": list(targets)}

    def work(shop: Workshop) -> Mapping[str, Any]:
        found = kept_in(shop, shop.done(asked).outcome)
        measurement = Measurement(found, found.blocks, progress=shop.progress)
        best = _best(measurement, [setting_of(one) for one in specs], targets)
        return {"targets": [one.choice.target for one in best]}

    return Stage(f"calibrate-{name}-{ground['name']}", key, _minutes(ground, asked, len(targets)), work)


def measured(
    ground: GroundSettings,
    shop: Workshop,
    asked: Stage,
    specs: Sequence[Spec],
    *,
    name: str,
    said: Stage | None = None,
    calibration: Stage | None = None,
    queries: int | None = None,
    each_a_part: bool = False,
) -> Stage:
    """The rows of an ensemble's kept distributions, on at most so many of its ``queries``.

    ``said`` is the fine-tuned model beside it; ``calibration`` has the targets of calibrated rows, in order.
    """
    key = {
        "specs": list(specs),
        "asked": asked.key,
        "said": said.key if said else None,
        "calibration": calibration.key if calibration else None,
        "queries": queries,
        "each_a_part": each_a_part,
    }

    def work(shop: Workshop) -> Mapping[str, Any]:
        found = kept_in(shop, shop.done(asked).outcome)
        found = found.with_each_a_part() if each_a_part else found
        blocks = enough(found.blocks, queries)
        beside = log_probabilities(shop, shop.done(said).outcome)[: blocks.starts[-1]] if said else None
        targets = iter(shop.done(calibration).outcome["targets"] if calibration else ())
        measurement = Measurement(found, blocks, beside, shop.progress)
        settings = []
        for one in specs:
            setting = setting_of(one)
            if one["source"] == "calibrated":
                setting = setting.with_target(next(targets), None, "calibrated")
            settings.append(setting)
        tuned = [place for place, one in enumerate(specs) if one["source"] == "oracle"]
        for place, best in zip(tuned, _best(measurement, [settings[i] for i in tuned], TARGETS), strict=True):
            settings[place] = replace(best, source="oracle")
        rows = _rows(found, blocks, settings, beside, shop.progress)
        return {
            "rows": [{**row.to_json(), **one} for row, one in zip(rows, specs, strict=True)],
            "references": _references(measurement, found),
        }

    distinct = len(
        {(one["variant"], one["order"], one["parts"], one["epsilon"] / one["queries"]) for one in specs}
    )
    minutes = _minutes(ground, asked, distinct + len(TARGETS), queries)
    slow = sum(one["variant"] in (AGGREGATE, GNMAX) for one in specs)
    minutes += slow * (queries or ground["queries"]) / 7_000
    return Stage(f"{name}-{ground['name']}", key, minutes, work)


def compared(
    ground: GroundSettings, shop: Workshop, asked: Stage, said: Mapping[str, Stage], *, best: str
) -> Stage:
    """Models that answer without a budget, by label: perplexity, and share of the improvement of ``best``."""
    key = {"asked": asked.key, "said": {label: stage.key for label, stage in said.items()}, "best": best}

    def work(shop: Workshop) -> Mapping[str, Any]:
        found = kept_in(shop, shop.done(asked).outcome)
        blocks = found.blocks
        public = block_perplexities(trace(found, blocks, progress=shop.progress).public, blocks)
        by_label = {
            label: block_perplexities(log_probabilities(shop, shop.done(stage).outcome), blocks)
            for label, stage in said.items()
        }
        rows = {
            label: {
                "perplexity": over_users(values, blocks).to_json(),
                "share_of_nonprivate": _share(public, values, by_label[best], blocks),
            }
            for label, values in by_label.items()
        }
        return {"rows": rows}

    return Stage(f"compare-{ground['name']}", key, 0.2, work)


def _share(public: FloatArray, own: FloatArray, best: FloatArray, blocks: HeldOutBlocks) -> Any:
    """(public - own) / (public - best), or None where the best is none; over users."""
    if public.sum() <= best.sum():
        return None
    _, users = np.unique(blocks.user, return_inverse=True)
    sums = np.stack([np.bincount(users, values) for values in (public, own, best)], axis=1)
    share = bootstrap_over_users(sums, lambda t: (t[..., 0] - t[..., 1]) / (t[..., 0] - t[..., 2]))
    return share.to_json()


def setting_of(one: Spec) -> Setting:
    """A row as the evaluation takes it, with the paper's target."""
    budget = Budget(float(one["epsilon"]), int(one["queries"]))
    choice = MechanismChoice(order=float(one["order"]), target=budget.target, **VARIANTS[one["variant"]])
    return Setting(choice, budget, int(one["parts"]))


def calibrated_specs(specs: Iterable[Spec]) -> list[Spec]:
    """Those of some rows whose target comes from the surrogate."""
    return [one for one in specs if one["source"] == "calibrated"]


def _best(
    measurement: Measurement, settings: Sequence[Setting], targets: Sequence[float]
) -> tuple[Setting, ...]:
    """Each setting with the target of the lowest perplexity; the lower target of equals."""
    if not settings:
        return ()
    candidates = {
        setting: [setting.with_target(target, None, "calibrated") for target in sorted(targets)]
        for setting in settings
    }
    everything = list(dict.fromkeys(one for found in candidates.values() for one in found))
    rows = {row.setting: row for row in measurement.rows(everything)}
    return tuple(
        min(candidates[setting], key=lambda one: rows[one].perplexity().value) for setting in settings
    )


def _rows(
    found: KeptPmfs,
    blocks: HeldOutBlocks,
    settings: Sequence[Setting],
    beside: FloatArray | None,
    progress: Progress,
) -> list[MechanismRow]:
    """Rows in the order of their settings."""
    many = [one for one in settings if one.budget.queries > 1]
    single = [one for one in settings if one.budget.queries == 1]
    rows: dict[Setting, MechanismRow] = {}
    if many:
        rows |= {row.setting: row for row in Measurement(found, blocks, beside, progress).rows(many)}
    if single:
        rows |= {row.setting: row for row in _rows_of_one_query(found, blocks, single, beside, progress)}
    return [rows[one] for one in settings]


def _rows_of_one_query(
    found: KeptPmfs,
    blocks: HeldOutBlocks,
    settings: Sequence[Setting],
    beside: FloatArray | None,
    progress: Progress,
) -> list[MechanismRow]:
    """Every query under a budget of its own; what it cannot pay for, the public model answers."""
    traces = trace(found, blocks, settings, progress=progress)
    each = tuple(Stretch(block, block + 1, int(length)) for block, length in enumerate(blocks.lengths))
    rows = []
    for setting in settings:
        one = traces.probes[probe_of(setting)]
        paid = one.charges.max(1) <= setting.budget.epsilon * (1 + _TOLERANCE)
        answered = np.add.reduceat(paid.astype(np.float64), blocks.starts[:-1])
        said = np.where(paid, one.log_probability, traces.public)
        answers = Answers(said, answered, (answered < blocks.lengths).astype(np.float64))
        rows.append(
            row_of(
                setting,
                setting.guarantee(found.halves),
                answers,
                blocks,
                each,
                public=traces.public,
                ensemble=traces.ensemble(setting.parts),
                nonprivate=beside,
            )
        )
    return rows


def _references(measurement: Measurement, found: KeptPmfs) -> list[dict[str, Any]]:
    """The models that answer without a budget, on the same blocks."""
    block = int(measurement.blocks.lengths.max())
    public = Setting(MechanismChoice("public"), Budget(1.0, block), found.parts)
    text = MeasuredText("held-out text", held_out=True, private=True)
    report = measurement.report(measurement.rows([public]), text)
    return [one.to_json() for one in report.references]


def _minutes(ground: GroundSettings, asked: Stage, passes: int, queries: int | None = None) -> float:
    """A mechanism mixes some 100,000 queries of 16 members in a minute."""
    shape = asked.key["recipe"]["ensemble"]
    models = shape["parts"] * (2 if shape["halves"] else 1)
    count = min(queries or asked.key["queries"], asked.key["queries"])
    return float(passes * count / 100_000 * models / 16 * ground["support"] / 512)
