"""Exact p-values from what could have been the other way round.

Chance decided who is a member (a canary's coin, the split's). A model that remembers neither side scores
texts without regard to that, so that members and non-members can be swapped and no law changes:

- where every member has a look-alike (``partners``), the two of a pair; all pairs of a cluster at once,
  because one coin decided them (for lines: :mod:`tacit.attacks.secret_lines`);
- else any two texts, each of which is a cluster of its own.

Of all such swaps some are drawn. What was observed is one of them, and so is at least as large as all but a
share p of them with probability at most p, whatever scores look like and however texts of one cluster depend
on each other. A set whose sides nobody left to chance is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import stats

from tacit.errors import InputError
from tacit.statistics import FloatArray

if TYPE_CHECKING:  # attacks bring torch, and the arithmetic does without
    from tacit.attacks.groups import Groups
    from tacit.attacks.look_alikes import MembershipSet

IntArray = npt.NDArray[np.int64]
_CELLS = 4_000_000  # of one block of swaps: bounds memory at some tens of MB
_TIE = 1e-9  # relative: sums of the same numbers in another order are equal


class Exchange:
    """The swaps that a set of texts allows."""

    def __init__(self, found: MembershipSet) -> None:
        if not found.by_chance:
            raise InputError("Nothing was left to chance in this set, so that nothing on it can be tested.")
        _, self._clusters = np.unique(np.asarray(found.secrets), return_inverse=True)
        self._partners = found.partners
        self.texts = len(found)
        self.clusters = int(self._clusters.max()) + 1
        if self._partners is None and self.clusters < self.texts:
            raise InputError(
                "Texts that share a secret can be swapped with look-alikes only; give one of each."
            )

    def drawn(self, draws: int, generator: np.random.Generator) -> Iterator[IntArray]:
        """Blocks [some, texts]: for each text the number of the one in whose place it is put."""
        rows = max(1, _CELLS // self.texts)
        for begin in range(0, draws, rows):
            yield self._some(min(rows, draws - begin), generator)

    def _some(self, rows: int, generator: np.random.Generator) -> IntArray:
        own = np.broadcast_to(np.arange(self.texts), (rows, self.texts))
        if self._partners is None:
            return generator.permuted(own, axis=1)
        swapped = generator.random((rows, self.clusters)) < 0.5
        return np.where(swapped[:, self._clusters], self._partners, own)


def area_p_values(
    found: MembershipSet, scores: Mapping[str, FloatArray], *, draws: int = 1999, seed: int = 0
) -> dict[str, float]:
    """For each score: how likely members stand so high above the others by luck alone."""
    # Ranks among all texts stay; the sum of the members' is the area under the curve, but for a constant.
    ranks = {name: stats.rankdata(values) for name, values in scores.items()}

    def statistic(places: IntArray) -> list[FloatArray]:
        return [one[places][..., found.is_member].sum(axis=-1) for one in ranks.values()]

    return dict(zip(scores, _p_values(found, statistic, draws, seed), strict=True))


def group_p_values(
    found: MembershipSet,
    groups: Groups,
    values: Mapping[str, FloatArray],
    *,
    draws: int = 999,
    seed: int = 0,
) -> dict[str, float]:
    """The same for groups' sums, the groups being what they are."""

    def statistic(places: IntArray) -> list[FloatArray]:
        return [
            np.array([group_area(groups, value[row]) for row in np.atleast_2d(places)])
            for value in values.values()
        ]

    return dict(zip(values, _p_values(found, statistic, draws, seed), strict=True))


def group_area(groups: Groups, values: FloatArray) -> float:
    """The area under the curve of the groups' sums."""
    ranks = stats.rankdata(groups.sums(values))
    members = int(groups.is_member.sum())
    wins = ranks[groups.is_member].sum() - members * (members + 1) / 2
    return float(wins / (members * (len(ranks) - members)))


def _p_values(
    found: MembershipSet, statistic: Callable[[IntArray], Sequence[FloatArray]], draws: int, seed: int
) -> list[float]:
    exchange, generator = Exchange(found), np.random.default_rng(seed)
    observed = [np.ravel(one)[0] for one in statistic(np.arange(exchange.texts))]
    reached = np.zeros(len(observed), dtype=np.int64)
    for places in exchange.drawn(draws, generator):
        for which, (one, drawn) in enumerate(zip(observed, statistic(places), strict=True)):
            reached[which] += int((drawn >= one - _TIE * abs(one)).sum())
    return [float((1 + count) / (1 + draws)) for count in reached]
