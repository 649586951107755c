"""What an evaluation of mechanisms tells: perplexities, shares and guarantees, with intervals.

``perplexity`` is the mean over held-out blocks of exp(mean negative log h), as in the SubMix paper.
Intervals of a mechanism's numbers are over stretches, because the blocks of a stretch share a budget;
intervals of models without a budget are over users. A share compares models on exactly its row's blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tacit.evaluation.mechanism_blocks import WANTED_STRETCHES, HeldOutBlocks, Stretch
from tacit.evaluation.mechanism_budgets import Answers, block_perplexities
from tacit.evaluation.mechanism_settings import TARGET_LABELS, Setting
from tacit.evaluation.report import MeasuredText
from tacit.privacy import Guarantee
from tacit.privacy.guarantee import DELTA
from tacit.statistics import Estimate, FloatArray, bootstrap_over_users

LOWER_BOUND: Final = "perplexity is a lower bound"
ONE_DRAW: Final = "one draw of noise per query, zeros as 2^-62"
INSTANCE_SPECIFIC: Final = "instance-specific, not DP"
ONE_DIRECTIONAL: Final = "one-directional (paper)"
NO_GUARANTEE: Final = "no guarantee"


@dataclass(frozen=True)
class Reference:
    """A model that answers without a budget; ``parts`` where it is made of so many of them."""

    name: str
    parts: int | None
    perplexity: Estimate

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {"name": self.name, "parts": self.parts, "perplexity": self.perplexity.to_json()}


@dataclass(frozen=True)
class MechanismRow:
    """One mechanism under one budget, measured on all stretches of that budget's length."""

    setting: Setting
    guarantee: Guarantee
    perplexity_sums: FloatArray  # [stretches] sum over the stretch's blocks of the block's perplexity
    public_sums: FloatArray  # the same by the public model
    ensemble_sums: FloatArray  # the same by the plain mean of the row's parts
    nonprivate_sums: FloatArray | None  # the same by a model that was fine-tuned on all of the text
    blocks: FloatArray  # [stretches]
    queries: FloatArray  # [stretches]
    answered_queries: FloatArray  # [stretches]
    stopped: FloatArray  # [stretches]
    delta: float = DELTA
    surrogate: Estimate | None = None  # perplexity on the surrogate's text, where a target was calibrated

    @property
    def stretches(self) -> int:
        """How many disjoint stretches were measured, each with a fresh budget."""
        return len(self.blocks)

    def perplexity(self) -> Estimate:
        """Mean over blocks of the block's perplexity; for GNMax a lower bound."""
        return self._mean(self.perplexity_sums, self.blocks)

    def public(self) -> Estimate:
        """The public model's perplexity on the same blocks."""
        return self._mean(self.public_sums, self.blocks)

    def ensemble(self) -> Estimate:
        """The perplexity of the plain ensemble on the same blocks."""
        return self._mean(self.ensemble_sums, self.blocks)

    def share_of_ensemble(self) -> Estimate | None:
        """Share of the ensemble's improvement on the public model that is realised; None if it has none."""
        return self._share(self.ensemble_sums)

    def share_of_nonprivate(self) -> Estimate | None:
        """The same of the non-private model's improvement."""
        return None if self.nonprivate_sums is None else self._share(self.nonprivate_sums)

    def answered(self) -> Estimate:
        """Queries of a stretch that were answered before STOP. The operator's."""
        return self._mean(self.answered_queries, np.ones(self.stretches))

    def dp_epsilon(self) -> float | None:
        """Epsilon at the row's delta, where the guarantee is one that converts."""
        return self.guarantee.to_dp(self.delta).epsilon if self.guarantee.kind == "rdp" else None

    @property
    def target_label(self) -> str:
        """Where the target comes from."""
        return TARGET_LABELS[self.setting.source]

    @property
    def labels(self) -> tuple[str, ...]:
        """What has to be said beside the row's numbers."""
        name = self.setting.choice.name
        told = [LOWER_BOUND] if name == "gnmax" else [ONE_DRAW] if name == "subsample_aggregate" else []
        if self.guarantee.kind == "rop":
            told.append(INSTANCE_SPECIFIC)
        if name == "gnmax":
            told.append(ONE_DIRECTIONAL)
        if self.guarantee.kind == "none":
            told.append(NO_GUARANTEE)
        if self.setting.source == "oracle":
            told.append(TARGET_LABELS["oracle"])
        return tuple(told)

    def to_json(self) -> dict[str, Any]:
        """JSON form: sums over blocks are left out."""
        choice, budget = self.setting.choice, self.setting.budget
        ensemble, nonprivate = self.share_of_ensemble(), self.share_of_nonprivate()
        return {
            "mechanism": choice.name,
            "order": choice.order,
            "epsilon": budget.epsilon,
            "queries": budget.queries,
            "parts": self.setting.parts,
            "target": choice.target,
            "target_source": self.target_label,
            "mixing": choice.mixing if choice.name == "submix" else None,
            "weights": choice.weights if choice.name == "submix" else None,
            "guard": choice.guard,
            "cap": choice.cap,
            "perplexity": self.perplexity().to_json(),
            "public": self.public().to_json(),
            "ensemble": self.ensemble().to_json(),
            "share_of_ensemble": None if ensemble is None else ensemble.to_json(),
            "share_of_nonprivate": None if nonprivate is None else nonprivate.to_json(),
            "answered": self.answered().to_json(),
            "stretches": self.stretches,
            "stretches_stopped": int(self.stopped.sum()),
            "queries_per_stretch": float(self.queries.mean()),
            "dp_epsilon": self.dp_epsilon(),
            "dp_delta": None if self.dp_epsilon() is None else self.delta,
            "surrogate_perplexity": None if self.surrogate is None else self.surrogate.to_json(),
            "labels": list(self.labels),
            "guarantee": self.guarantee.to_json(),
        }

    def _mean(self, sums: FloatArray, counts: FloatArray) -> Estimate:
        return _over_stretches(np.stack([sums, counts], axis=1), lambda t: t[..., 0] / t[..., 1])

    def _share(self, best: FloatArray) -> Estimate | None:
        if float(best.sum()) >= float(self.public_sums.sum()):
            return None
        sums = np.stack([self.public_sums, self.perplexity_sums, best], axis=1)
        return _over_stretches(sums, lambda t: (t[..., 0] - t[..., 1]) / (t[..., 0] - t[..., 2]))


@dataclass(frozen=True)
class MechanismReport:
    """Mechanisms beside what they lie between: the public model, and models without any privacy."""

    references: tuple[Reference, ...]
    rows: tuple[MechanismRow, ...]
    text: MeasuredText
    users: int
    blocks: int
    queries: int
    block_size: int
    remarks: tuple[str, ...]

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader of the numbers has to know."""
        told = list(self.remarks)
        for queries, row in {row.setting.budget.queries: row for row in self.rows}.items():
            if row.stretches < WANTED_STRETCHES:
                told.append(
                    f"{row.stretches} stretches of {queries:,} queries, where {WANTED_STRETCHES} are wanted: "
                    "the text, or --max-blocks, gives no more, and these intervals are too narrow."
                )
            if row.queries.mean() < queries:
                told.append(
                    f"Stretches for {queries:,} queries have {row.queries.mean():,.0f} on average: they are "
                    "whole blocks."
                )
        labels = {label for row in self.rows for label in row.labels}
        if INSTANCE_SPECIFIC in labels:
            told.append(
                "Where it says instance-specific, the bound was measured on this corpus and partition and "
                "holds for no other; it has no (epsilon, delta)."
            )
        if ONE_DIRECTIONAL in labels:
            told.append(
                "Where it says one-directional, the bound is on how far this corpus' answers are from a "
                "neighbour's; the reverse may be larger."
            )
        if TARGET_LABELS["oracle"] in labels:
            told.append(
                "Oracle-tuned targets depend on every part: the charges of those rows bound nothing. They "
                "show what a good public choice could reach."
            )
        return (*told, *self.text.caveats(self.users))

    def to_json(self) -> dict[str, Any]:
        """Summary without anything about single users."""
        return {
            "references": [reference.to_json() for reference in self.references],
            "mechanisms": [row.to_json() for row in self.rows],
            "users": self.users,
            "blocks": self.blocks,
            "queries": self.queries,
            "block_size": self.block_size,
            "text": self.text.to_json(),
            "caveats": list(self.caveats),
        }


def row_of(
    setting: Setting,
    guarantee: Guarantee,
    answers: Answers,
    blocks: HeldOutBlocks,
    stretched: tuple[Stretch, ...],
    *,
    public: FloatArray,
    ensemble: FloatArray,
    nonprivate: FloatArray | None,
) -> MechanismRow:
    """A row from answers [queries] and the log-probabilities [queries] of what they are compared with."""

    def sums(log_probability: FloatArray) -> FloatArray:
        by_block = block_perplexities(log_probability, blocks)
        return np.array([by_block[stretch.first : stretch.last].sum() for stretch in stretched])

    return MechanismRow(
        setting,
        guarantee,
        perplexity_sums=sums(answers.log_probability),
        public_sums=sums(public),
        ensemble_sums=sums(ensemble),
        nonprivate_sums=None if nonprivate is None else sums(nonprivate),
        blocks=np.array([stretch.last - stretch.first for stretch in stretched], dtype=np.float64),
        queries=np.array([stretch.queries for stretch in stretched], dtype=np.float64),
        answered_queries=answers.answered,
        stopped=answers.stopped,
    )


def over_users(perplexities: FloatArray, blocks: HeldOutBlocks) -> Estimate:
    """Mean of perplexities [blocks], with an interval over users."""
    _, codes = np.unique(blocks.user, return_inverse=True)
    sums = np.stack([np.bincount(codes, perplexities), np.bincount(codes)], axis=1)
    return bootstrap_over_users(sums, lambda t: t[..., 0] / t[..., 1])


def _over_stretches(sums: FloatArray, statistic: Any) -> Estimate:
    found = bootstrap_over_users(sums, statistic)
    method = found.method.replace("users", "stretches").replace("one user", "one stretch")
    return replace(found, method=method)
