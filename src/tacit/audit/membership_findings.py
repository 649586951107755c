"""What membership attacks show on one set of texts, beside what the texts alone give away.

Texts of one set are independent of each other: a canary each, or one document of each user. So intervals and
p-values may treat them as such. Which attack is looked at first is fixed (`PRIMARY`); p-values of all are
adjusted by Holm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tacit.attacks.blind import FOLDS, BlindAttack, attack_blindly
from tacit.attacks.membership import MembershipScores
from tacit.attacks.token_statistics import BoolArray
from tacit.audit.multiple import holm
from tacit.audit.roc import auc, chosen_accuracy, roc_curve, separation_p_value, tpr_at_fpr
from tacit.audit.verdicts import Leak
from tacit.errors import InputError
from tacit.statistics import Estimate, FloatArray

PRIMARY: Final = "reference"
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
    is_member: BoolArray = field(repr=False)
    scores: Mapping[str, FloatArray] = field(repr=False)
    blind: BlindAttack | None
    confidence: float
    seed: int

    @classmethod
    def of(
        cls,
        name: str,
        what: str,
        texts: Sequence[str],
        is_member: BoolArray,
        scores: Mapping[str, FloatArray],
        *,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> MembershipFinding:
        """Let the blind attacker try the texts; with too few of them it cannot."""
        members = int(is_member.sum())
        if not 2 <= members <= len(texts) - 2:
            raise InputError(
                f"Expected at least 2 members and 2 non-members, not {members} of {len(texts)}; give more."
            )
        few = min(members, len(texts) - members) < FOLDS
        blind = None if few else attack_blindly(texts, is_member, seed=seed)
        return cls(name, what, is_member, dict(scores), blind, confidence, seed)

    @property
    def flagged(self) -> bool:
        """Whether the texts alone tell members from others: then no score says anything about a model."""
        return self.blind is not None and self.blind.separates

    def area(self, attack: str) -> Estimate:
        """The area under the curve of one attack."""
        return auc(*self._sides(attack), confidence=self.confidence)

    def leaks(self, confidence: float) -> tuple[Leak, ...]:
        """The primary attack against chance; nothing where the set is flagged."""
        if self.flagged:
            return ()
        attack = PRIMARY if PRIMARY in self.scores else next(iter(self.scores))
        area = auc(*self._sides(attack), confidence=confidence)
        return (Leak(f"membership of {self.name} ({attack}), AUC", area, 0.5),)

    def _sides(self, attack: str) -> tuple[FloatArray, FloatArray]:
        scores = self.scores[attack]
        return scores[self.is_member], scores[~self.is_member]

    def to_json(self) -> dict[str, Any]:
        """JSON form of the report."""
        sides = {attack: self._sides(attack) for attack in self.scores}
        p_values = {attack: separation_p_value(*both) for attack, both in sides.items()}
        adjusted = {one.name: one.adjusted for one in holm(p_values)}
        attacks = []
        for attack, (members, others) in sides.items():
            shuffled = np.random.default_rng(self.seed).permutation(others)
            calibration, measured = shuffled[: len(others) // 2], shuffled[len(others) // 2 :]
            rates = [tpr_at_fpr(members, measured, calibration, fpr=fpr) for fpr in RATES]
            attacks.append(
                {
                    "name": attack,
                    "auc": self.area(attack).to_json(),
                    "p_value": p_values[attack],
                    "holm": adjusted[attack],
                    "accuracy": chosen_accuracy(members, others, seed=self.seed).accuracy.to_json(),
                    "tpr": [
                        {
                            "fpr": rate.fpr,
                            "tpr": None if rate.tpr is None else rate.tpr.to_json(),
                            "why": rate.refused or None,
                        }
                        for rate in rates
                    ],
                }
            )
        shown = PRIMARY if PRIMARY in self.scores else next(iter(self.scores))
        curve = roc_curve(*sides[shown])
        points = np.stack([curve.false_positive_rates, curve.true_positive_rates], axis=1)
        every = max(1, len(points) // _MOST_POINTS)
        kept = np.unique(np.append(np.arange(0, len(points), every), len(points) - 1))
        return {
            "name": self.name,
            "what": self.what,
            "members": int(self.is_member.sum()),
            "non_members": int((~self.is_member).sum()),
            "flagged": self.flagged,
            "blind": None
            if self.blind is None
            else {
                "auc": self.blind.auc.to_json(),
                "p_value": self.blind.p_value,
                "separates": self.blind.separates,
            },
            "attacks": attacks,
            "roc": {"attack": shown, "points": points[kept].tolist()},
        }
