"""What membership attacks show on one set of texts, beside what the texts alone give away.

Texts of most sets are independent of each other: a canary each, or one document of each user. Lines with
gold spans are not: lines with the secrets of the same two are a cluster, which is resampled and swapped as a
whole. A set whose sides nobody left to chance is described: it has no p-values and is no attempt.

Which attack is looked at first is fixed beforehand (`PRIMARY`); all of them are attempts, whose p-values are
corrected together with everything else that an audit tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
from scipy import stats

from tacit.attacks.blind import FOLDS, BlindAttack, attack_blindly
from tacit.attacks.groups import GroupPlan
from tacit.attacks.look_alikes import MembershipSet
from tacit.attacks.membership import MembershipScores
from tacit.attacks.token_statistics import BoolArray, IntArray
from tacit.audit.attempts import Attempt
from tacit.audit.exchange import area_p_values
from tacit.audit.group_findings import GroupFinding, why_not
from tacit.audit.resampling import cluster_auc
from tacit.audit.roc import auc, chosen_accuracy, roc_curve, separation_p_value, tpr_at_fpr
from tacit.errors import InputError
from tacit.statistics import Estimate, FloatArray, bootstrap_over_users, bounded_mean

PRIMARY: Final = "reference"
# The group's score that goes with a text's: what is looked at first is fixed beforehand for both.
GROUP_PRIMARY: Final = {"reference": "mean_reference", "perplexity": "perplexity_sum"}
RATES: Final = (0.01, 0.001)
_MOST_POINTS = 400


def named(found: MembershipScores) -> dict[str, FloatArray]:
    """The scores by name."""
    return {str(name): values for name, values in found.scores.items()}


@dataclass(frozen=True)
class MembershipFinding:
    """All attacks on one set. ``what`` says in a sentence who is a member and who is not."""

    name: str
    what: str
    found: MembershipSet = field(repr=False)
    scores: Mapping[str, FloatArray] = field(repr=False)
    blind: BlindAttack | None
    groups: GroupFinding | None
    groups_why: str
    primary: str
    confidence: float
    seed: int

    @classmethod
    def of(
        cls,
        name: str,
        what: str,
        found: MembershipSet,
        scores: Mapping[str, FloatArray],
        *,
        groups: GroupPlan | None = None,
        primary: str = PRIMARY,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> MembershipFinding:
        """Let the blind attacker try the texts, which it cannot with too few of them, and form groups.

        The blind attacker gets one text of each cluster and its look-alike: it would know a secret again.
        """
        members = int(found.is_member.sum())
        if not 2 <= members <= len(found) - 2:
            raise InputError(
                f"Expected at least 2 members and 2 non-members, not {members} of {len(found)}; give more."
            )
        once = one_of_each(found, seed)
        labels = found.is_member[once]
        few = min(int(labels.sum()), int((~labels).sum())) < FOLDS
        blind = None
        if not few:
            shown = [found.texts[text] for text in once]
            pairs = None if found.partners is None else np.searchsorted(once, found.partners[once])
            blind = attack_blindly(shown, labels, partners=pairs, confidence=confidence, seed=seed)
        why = "" if groups is None else why_not(found, groups)
        grouped = None
        if groups is not None and not why:
            grouped = GroupFinding.of(found, scores, groups, confidence=confidence, seed=seed)
        first = primary if primary in scores else next(iter(scores))
        return cls(name, what, found, dict(scores), blind, grouped, why, first, confidence, seed)

    @property
    def is_member(self) -> BoolArray:
        """For each text."""
        return self.found.is_member

    @property
    def flagged(self) -> bool:
        """Whether the texts alone tell members from others: then no score says anything about a model."""
        return self.blind is not None and self.blind.separates

    def area(self, attack: str) -> Estimate:
        """The area under the curve of one attack; secrets are resampled where texts share them."""
        if self.found.partners is None:
            return auc(*self._sides(attack), confidence=self.confidence)
        clusters = np.asarray(self.found.secrets)
        return cluster_auc(
            *self._sides(attack),
            member_clusters=clusters[self.is_member],
            non_member_clusters=clusters[~self.is_member],
            confidence=self.confidence,
            seed=self.seed,
        )

    @cached_property
    def areas(self) -> dict[str, Estimate]:
        """Of every attack."""
        return {attack: self.area(attack) for attack in self.scores}

    @cached_property
    def p_values(self) -> dict[str, float]:
        """Of every attack: how likely so much is by luck; of none where nothing was left to chance."""
        if not self.found.by_chance:
            return {}
        if self.found.partners is not None:
            return area_p_values(self.found, self.scores, seed=self.seed)
        return {attack: separation_p_value(*self._sides(attack)) for attack in self.scores}

    def attempts(self) -> list[Attempt]:
        """Every attack on texts and on groups that was tested; none where the set is flagged.

        Scores that put all texts in the same order (loss and perplexity) are one test and one attempt. Tests
        decide, not intervals: DeLong's is too narrow where few are on one side.
        """
        if self.flagged:
            return []
        found = [
            Attempt(
                self._attempt(attack),
                self.areas[attack],
                0.5,
                p_value,
                named=attack == self.primary,
            )
            for attack, p_value in self.p_values.items()
            if self._as_one[attack] == attack
        ]
        if self.groups is not None:
            found += self.groups.attempts(self.name, self._primary_of(self.groups))
        return found

    @cached_property
    def _as_one(self) -> dict[str, str]:
        """For each score the one whose test is its own too: it orders texts alike, whoever is a member."""
        orders: dict[bytes, str] = {}
        return {
            attack: orders.setdefault(stats.rankdata(self.scores[attack]).tobytes(), attack)
            for attack in sorted(self.scores, key=lambda one: one != self.primary)
        }

    def _attempt(self, attack: str) -> str:
        return f"membership of {self.name} ({attack}), AUC"

    def _primary_of(self, groups: GroupFinding) -> str:
        attack = GROUP_PRIMARY.get(self.primary, "mean_log_perplexity")
        return attack if attack in groups.areas else next(iter(groups.areas))

    def _sides(self, attack: str) -> tuple[FloatArray, FloatArray]:
        scores = self.scores[attack]
        return scores[self.is_member], scores[~self.is_member]

    def to_json(self) -> dict[str, Any]:
        """JSON form of the report."""
        once = one_of_each(self.found, self.seed)  # texts of one secret are not independent
        labels = self.is_member[once]
        paired = self.found.partners is not None
        attacks = []
        for attack, scores in self.scores.items():
            members, others = scores[once][labels], scores[once][~labels]
            shuffled = np.random.default_rng(self.seed).permutation(others)
            calibration, measured = shuffled[: len(others) // 2], shuffled[len(others) // 2 :]
            rates = [
                tpr_at_fpr(members, measured, calibration, fpr=fpr, confidence=self.confidence)
                for fpr in RATES
            ]
            chosen = None
            if len(once) > 3:
                chosen = chosen_accuracy(members, others, confidence=self.confidence, seed=self.seed)
            attacks.append(
                {
                    "name": attack,
                    "auc": self.areas[attack].to_json(),
                    "p_value": self.p_values.get(attack),
                    "attempt": self._attempt(self._as_one[attack]),
                    "adjusted": None,
                    "accuracy": None if chosen is None else chosen.accuracy.to_json(),
                    "accuracy_chance": None if chosen is None else chosen.chance,
                    "accuracy_at_median": self._at_median(scores).to_json() if paired else None,
                    "tpr": [
                        {
                            "fpr": rate.fpr,
                            "tpr": None if rate.tpr is None else rate.tpr.to_json(),
                            "measured_fpr": None
                            if rate.measured_fpr is None
                            else rate.measured_fpr.to_json(),
                            "why": rate.refused or None,
                        }
                        for rate in rates
                    ],
                }
            )
        curve = roc_curve(*self._sides(self.primary))
        points = np.stack([curve.false_positive_rates, curve.true_positive_rates], axis=1)
        every = max(1, len(points) // _MOST_POINTS)
        kept = np.unique(np.append(np.arange(0, len(points), every), len(points) - 1))
        return {
            "name": self.name,
            "what": self.what,
            "members": int(self.is_member.sum()),
            "non_members": int((~self.is_member).sum()),
            "secrets": len(set(self.found.secrets)) if paired else None,
            "flagged": self.flagged,
            "blind": None
            if self.blind is None
            else {
                "auc": self.blind.auc.to_json(),
                "p_value": self.blind.p_value,
                "separates": self.blind.separates,
            },
            "attacks": attacks,
            "roc": {"attack": self.primary, "points": points[kept].tolist()},
            "groups": None
            if self.groups is None
            else self.groups.to_json(self.name) | {"primary": self._primary_of(self.groups)},
            "groups_why": self.groups_why or None,
        }

    def _at_median(self, scores: FloatArray) -> Estimate:
        """Accuracy at the median of the set itself, as the paper has it; secrets are resampled."""
        right = (scores > np.median(scores)) == self.is_member
        names, clusters = np.unique(np.asarray(self.found.secrets), return_inverse=True)
        sums = np.zeros((len(names), 2))
        np.add.at(sums, clusters, np.stack([right, np.ones(len(right))], axis=1))
        shares = sums[:, 0] / sums[:, 1]
        if np.ptp(shares) == 0:  # then a bootstrap would claim certainty
            return bounded_mean(shares, least=0, most=1, of="secrets", confidence=self.confidence)
        return bootstrap_over_users(
            sums, lambda totals: totals[..., 0] / totals[..., 1], confidence=self.confidence, seed=self.seed
        )


def one_of_each(found: MembershipSet, seed: int) -> IntArray:
    """Numbers of texts that share no secret: a random one of each, and its look-alike where there is one."""
    if found.partners is None:
        return np.arange(len(found))
    order = np.random.default_rng(seed).permutation(np.flatnonzero(found.is_member))
    _, first = np.unique(np.asarray(found.secrets)[order], return_index=True)
    chosen = order[first]
    return np.sort(np.concatenate([chosen, found.partners[chosen]]))
