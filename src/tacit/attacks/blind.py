"""The blind attacker: tells members from non-members by their text alone, without any model.

If it succeeds, the two sets differ by themselves (another time, another format, another source), and no
membership score on them says anything about a model. It is a logistic regression on hashed words and
character trigrams, length, compressed size and the shares of digits and capitals.

What holds:

* ``scores`` are out of fold: each text is scored by a regression that did not see it, and scores are ranks
  within the fold, because different regressions have no common scale. Their AUC has no optimism. An interval
  that takes the scores as independent (DeLong) is slightly approximate: the regressions share most of their
  texts. So it is for ``auc``, the mean over folds.
* ``p_value`` is exact, whatever the number of texts. Texts are dealt into chunks, and every chunk is ranked
  by a regression on the chunks *before* it. If labels were drawn without regard to the texts, then, given all
  earlier chunks, every order of the labels within a chunk is equally likely; the numbers of correctly ordered
  pairs are therefore independent between chunks with a known law, which is drawn from. Ties are broken at
  random.
* For pairs (``partners``: a line and its look-alike, a canary and its twin) folds and chunks hold whole
  pairs, because a regression that saw one of a pair guesses the wrong side for the other. What is learned is
  the difference of the two; given earlier chunks, which of a pair is the member is a fair coin each, so that
  the number of pairs in order is binomial.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import optimize, sparse, special, stats

from tacit.attacks.token_statistics import BoolArray, IntArray
from tacit.errors import InputError
from tacit.statistics import Estimate, FloatArray

FOLDS: Final = 5
_CHUNKS: Final = 8
_DRAWS: Final = 9999
_BUCKETS: Final = 4096  # for words, and as many for trigrams
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class BlindAttack:
    """What the text alone gives away.

    scores   one per text, out of fold, in (0, 1); higher means more likely a member
    auc      mean of the folds' areas under the curve, with an approximate interval
    p_value  exact, of the hypothesis that labels and texts are independent
    level    at which the set is flagged
    """

    scores: FloatArray = field(repr=False)
    auc: Estimate
    p_value: float
    level: float

    @property
    def separates(self) -> bool:
        """Whether the set is to be flagged: members and non-members differ without any model."""
        return self.p_value <= self.level


def attack_blindly(
    texts: Sequence[str],
    is_member: npt.ArrayLike,
    *,
    partners: IntArray | None = None,
    level: float = 0.05,
    strength: float = 1.0,
    confidence: float = 0.95,
    seed: int = 0,
) -> BlindAttack:
    """Try to tell members from non-members without a model.

    Args:
        texts: members and non-members.
        is_member: for each text.
        partners: for each text the number of its look-alike, if every member has one of its own.
        level: at which ``separates`` flags a set; that often an exchangeable set is flagged.
        strength: inverse of the L2 penalty, as C in scikit-learn.
        confidence: of the interval of ``auc``.
        seed: of folds, chunks and ties; the same seed gives the same result.
    """
    labels = np.asarray(is_member, dtype=np.bool_)
    if labels.shape != (len(texts),) or min(labels.sum(), (~labels).sum()) < FOLDS:
        raise InputError(
            f"Expected one label for each of {len(texts)} texts, and at least {FOLDS} members and as many "
            "non-members; give more texts."
        )
    if not 0 < level < 1 or not 0 < strength < math.inf:
        raise InputError(f"Expected level={level} in (0, 1) and a finite strength={strength} > 0.")
    generator = np.random.default_rng(seed)
    features = features_of(texts)
    folds = _dealt(labels, partners, FOLDS, generator)
    scores = np.empty(len(texts))
    for fold in range(FOLDS):
        held_out = folds == fold
        weights = fit_logistic(features[~held_out], labels[~held_out], strength)
        scores[held_out] = _midranks(features[held_out] @ weights)
    return BlindAttack(
        scores,
        _mean_auc(scores, labels, folds, confidence),
        _forward_test(features, labels, strength, generator)
        if partners is None
        else _paired_test(features, labels, partners, strength, generator),
        level,
    )


def features_of(texts: Sequence[str]) -> sparse.csr_array:
    """[texts, features]: hashed counts of unit length, standardised sizes, and a constant."""
    rows: list[int] = []
    columns: list[int] = []
    for row, text in enumerate(texts):
        words = [_bucket(word) for word in _WORD.findall(text.lower())]
        trigrams = [_BUCKETS + _bucket(text[at : at + 3]) for at in range(len(text) - 2)]
        columns += words + trigrams
        rows += [row] * (len(words) + len(trigrams))
    # Buckets that nobody fills would only cost time: their weights are 0.
    filled, places = np.unique(np.array(columns, dtype=np.int64), return_inverse=True)
    shape = (len(texts), len(filled))
    counts = sparse.coo_array((np.ones(len(rows)), (rows, places)), shape=shape).tocsr()
    counts.sum_duplicates()
    counts.data = np.log1p(counts.data)
    lengths = np.sqrt(counts.multiply(counts).sum(axis=1))
    counts = sparse.diags_array(1 / np.where(lengths > 0, lengths, 1.0)) @ counts
    sizes = np.array([_sizes(text) for text in texts], dtype=np.float64)
    spread = sizes.std(axis=0)
    sizes = (sizes - sizes.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    constant = sparse.csr_array(np.ones((len(texts), 1)))
    return sparse.hstack([counts, sparse.csr_array(sizes), constant], format="csr")


def _bucket(piece: str) -> int:
    return zlib.crc32(piece.encode("utf-8", "surrogatepass")) % _BUCKETS


def _sizes(text: str) -> tuple[float, ...]:
    letters = max(len(text), 1)
    return (
        math.log1p(len(text)),
        math.log1p(len(text.split())),
        math.log(len(zlib.compress(text.encode("utf-8", "surrogatepass")))),
        sum(letter.isdigit() for letter in text) / letters,
        sum(letter.isupper() for letter in text) / letters,
    )


def fit_logistic(features: sparse.csr_array, labels: BoolArray, strength: float) -> FloatArray:
    """Weights that minimise strength * (sum of log losses) + |weights|^2 / 2; the last is not penalised."""
    signs, turned = np.where(labels, 1.0, -1.0), features.T
    penalised = np.ones(features.shape[1])
    penalised[-1] = 0.0

    def objective(weights: FloatArray) -> tuple[float, FloatArray]:
        margins = signs * (features @ weights)
        value = strength * np.logaddexp(0.0, -margins).sum() + 0.5 * (penalised * weights**2).sum()
        slope = -strength * signs * special.expit(-margins)
        return float(value), turned @ slope + penalised * weights

    start = np.zeros(features.shape[1])
    found = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights: FloatArray = found.x
    return weights


def _dealt(
    labels: BoolArray, partners: IntArray | None, hands: int, generator: np.random.Generator
) -> IntArray:
    """Deal texts into hands at random, members and non-members evenly, and pairs together."""
    dealt = np.empty(len(labels), dtype=np.int64)
    if partners is not None:
        members = generator.permutation(np.flatnonzero(labels))
        dealt[members] = dealt[partners[members]] = np.arange(len(members)) % hands
        return dealt
    for kind in (labels, ~labels):
        dealt[generator.permutation(np.flatnonzero(kind))] = np.arange(kind.sum()) % hands
    return dealt


def _midranks(scores: FloatArray) -> FloatArray:
    ranks: FloatArray = stats.rankdata(scores)
    return (ranks - 0.5) / len(scores)


def _mean_auc(scores: FloatArray, labels: BoolArray, folds: IntArray, confidence: float) -> Estimate:
    """Mean of the folds' AUC; DeLong's variance in each fold, and folds taken as independent."""
    areas, variances = [], []
    for fold in range(FOLDS):
        members, others = (scores[(folds == fold) & kind] for kind in (labels, ~labels))
        better = (members[:, None] > others) + 0.5 * (members[:, None] == others)
        areas.append(better.mean())
        # With one text of a kind in a fold nothing is known about its spread: the largest that there is.
        variances.append(
            sum(
                placed.var(ddof=1) / len(placed) if len(placed) > 1 else 0.25
                for placed in (better.mean(axis=1), better.mean(axis=0))
            )
        )
    area = float(np.mean(areas))
    reach = float(stats.norm.ppf((1 + confidence) / 2) * math.sqrt(sum(variances)) / FOLDS)
    method = f"mean over {FOLDS} folds, DeLong in each, folds taken as independent (approximate)"
    return Estimate(area, max(0.0, area - reach), min(1.0, area + reach), confidence, method)


def _forward_test(
    features: sparse.csr_array, labels: BoolArray, strength: float, generator: np.random.Generator
) -> float:
    """Exact p-value of correctly ordered pairs, each chunk ranked by what the chunks before it taught."""
    number = min(_CHUNKS, int(labels.sum()), int((~labels).sum()))
    chunks = _dealt(labels, None, number, generator)
    observed, drawn = 0.0, np.zeros(_DRAWS)
    for chunk in range(1, number):
        here, before = chunks == chunk, chunks < chunk
        scores = features[here] @ fit_logistic(features[before], labels[before], strength)
        order = np.lexsort((generator.random(len(scores)), scores))
        observed += float(np.flatnonzero(labels[here][order]).sum())
        # The sum of the members' ranks says how many pairs are in order, but for a constant.
        shuffled = generator.random((_DRAWS, len(scores))).argsort(axis=1)
        drawn += shuffled[:, : int(labels[here].sum())].sum(axis=1)
    return float((1 + (drawn >= observed).sum()) / (_DRAWS + 1))


def _paired_test(
    features: sparse.csr_array,
    labels: BoolArray,
    partners: IntArray,
    strength: float,
    generator: np.random.Generator,
) -> float:
    """Exact p-value of pairs in order, those of each chunk judged by what the chunks before it taught."""
    members = np.flatnonzero(labels)
    number = min(_CHUNKS, len(members))
    chunks = _dealt(labels, partners, number, generator)[members]
    apart = features[members] - features[partners[members]]
    right = 0
    for chunk in range(1, number):
        before = apart[chunks < chunk]
        sides = np.repeat([True, False], before.shape[0])
        scores = apart[chunks == chunk] @ fit_logistic(sparse.vstack([before, -before]), sides, strength)
        right += int((scores > 0).sum() + generator.binomial((scores == 0).sum(), 0.5))
    return float(stats.binom.sf(right - 1, (chunks > 0).sum(), 0.5))
