"""What the group attack shows: do many texts together give away what one alone does not?

Groups are drawn from a pool of secrets that is much smaller than they are together. Intervals draw secrets
anew, never groups; p-values swap secrets with their look-alikes (:mod:`tacit.audit.exchange`), which makes
them exact where chance decided who is a member. Where it did not, there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tacit.attacks.groups import GroupPlan, draw_groups, values_of
from tacit.attacks.look_alikes import MembershipSet
from tacit.audit.attempts import Attempt
from tacit.audit.exchange import group_p_values
from tacit.audit.resampling import GroupAreas, group_auc
from tacit.statistics import FloatArray

# With fewer texts on a side than this many groups hold, all groups are nearly the same.
_LEAST_GROUPS_APART: Final = 2


@dataclass(frozen=True)
class GroupFinding:
    """The attack by groups on one set. ``secrets`` are those in the pools, members' first."""

    plan: GroupPlan
    texts: tuple[int, int]
    secrets: tuple[int, int]
    areas: Mapping[str, GroupAreas]
    p_values: Mapping[str, float]

    @classmethod
    def of(
        cls,
        found: MembershipSet,
        scores: Mapping[str, FloatArray],
        plan: GroupPlan,
        *,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> GroupFinding:
        """Draw groups and attack them; `why_not` says whether there are enough texts."""
        groups = draw_groups(found.is_member, found.secrets, plan, seed=seed)
        values: dict[str, FloatArray] = {str(name): one for name, one in values_of(scores).items()}
        members, others = groups.pools
        return cls(
            plan,
            (len(members), len(others)),
            (len(np.unique(groups.secrets[members])), len(np.unique(groups.secrets[others]))),
            group_auc(groups, values, confidence=confidence, seed=seed),
            group_p_values(found, groups, values, seed=seed) if found.by_chance else {},
        )

    def attempts(self, name: str, primary: str) -> list[Attempt]:
        """Every score that was tested, against chance."""
        return [
            Attempt(
                self._attempt(name, attack), self.areas[attack].area, 0.5, p_value, named=attack == primary
            )
            for attack, p_value in self.p_values.items()
        ]

    def _attempt(self, name: str, attack: str) -> str:
        return f"membership of groups of {self.plan.size} {name} ({attack}), AUC"

    def to_json(self, name: str) -> dict[str, Any]:
        """JSON form of the report."""
        return {
            "groups": self.plan.groups,
            "size": self.plan.size,
            "members": self.texts[0],
            "non_members": self.texts[1],
            "secrets": list(self.secrets),
            "attacks": [
                {
                    "name": attack,
                    "auc": found.area.to_json(),
                    "accuracy_at_median": found.at_median.to_json(),
                    "p_value": self.p_values.get(attack),
                    "attempt": self._attempt(name, attack),
                    "adjusted": None,
                }
                for attack, found in self.areas.items()
            ],
        }


def why_not(found: MembershipSet, plan: GroupPlan) -> str:
    """Why there are too few texts to attack groups; empty if there are enough."""
    members = int(found.is_member.sum())
    needed = _LEAST_GROUPS_APART * plan.size
    fewest = min(members, len(found) - members)
    if fewest >= needed:
        return ""
    return f"groups of {plan.size} need {needed} texts of either kind, and there are {fewest}"
