"""Membership scores of texts: is a text more familiar to a model than it should be?

Two forward passes, one of the model under attack and one of a reference that never saw the texts (the public
model), give all scores. **Higher means more likely a member**, for every score. With n tokens of a text,
l_t the target's and r_t the reference's negative log-probability of token t:

==============  ====================================================================================
loss            -mean l (Yeom et al. 2018)
perplexity      -exp(mean l): ranks texts as ``loss`` does; the paper's group attack adds it up
zlib            -mean l / bytes of the text compressed by zlib (Carlini et al. 2021)
min_k           mean of the k % smallest log-probabilities -l_t, at least one (Shi et al. 2024)
min_k_plus      the same of (-l_t - mu_t) / sigma_t, with mu and sigma^2 the mean and variance of the
                log-probability of a token drawn from the model's own prediction (Zhang et al. 2024)
reference       mean r - mean l (Carlini et al. 2021; Watson et al. 2022)
error_zone      over the tokens that are not the target's likeliest (its errors), with the differences
                d_t = r_t - l_t: P / (P + N), P the sum of the positive ones and N that of the others'
                sizes (Ilic et al. 2026, who take P / N: the same order without infinities). A text
                without errors has no error zone: there the sums run over all its tokens. 1/2 where
                nothing differs.
windows         sliding windows of several sizes: the share of windows in which the target's loss is
                below the reference's, a tie counted half, averaged over the sizes that fit the text
                (Chen et al. 2026); a text shorter than all sizes is one window
bits            sum of max(0, d_t) / ln 2: by how many bits the target shortens the text's code, on the
                tokens where it does (after Morris et al. 2025, who compare whole texts: never less)
==============  ====================================================================================

A score is evidence only as far as members and non-members differ in nothing else: see `blind`. The scores are
functions of private text and of a private model; they are the operator's.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from tacit.attacks.token_statistics import (
    DEFAULT_POSITIONS,
    BoolArray,
    IntArray,
    LanguageModel,
    TokenStatistics,
    encode_texts,
    public_of,
    token_statistics,
)
from tacit.errors import InputError
from tacit.progress import Progress
from tacit.statistics import FloatArray

ScoreName = Literal[
    "loss", "perplexity", "zlib", "min_k", "min_k_plus", "reference", "error_zone", "windows", "bits"
]
WITHOUT_REFERENCE: Final[tuple[ScoreName, ...]] = ("loss", "perplexity", "zlib", "min_k", "min_k_plus")
WITH_REFERENCE: Final[tuple[ScoreName, ...]] = ("reference", "error_zone", "windows", "bits")

# Below a standard deviation of 1e-4 nats a prediction is certain, and a standard score would be rounding.
_LEAST_VARIANCE: Final = 1e-8


@dataclass(frozen=True)
class ScoreSettings:
    """What the scores leave open: the share of tokens in Min-K, and the sizes of windows in tokens."""

    min_k: float = 0.2
    windows: tuple[int, ...] = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)

    def __post_init__(self) -> None:
        if not 0 < self.min_k <= 1:
            raise InputError(f"Expected min_k={self.min_k} in (0, 1], e.g. 0.2 for the lowest fifth.")
        if not self.windows or any(size < 1 for size in self.windows):
            raise InputError(
                f"Expected windows={self.windows} to be sizes of at least 1 token, e.g. (2, 4, 8)."
            )


@dataclass(frozen=True)
class MembershipScores:
    """One number per text and score, in the order of the texts; higher means more likely a member."""

    tokens: IntArray = field(repr=False)
    mean_losses: FloatArray = field(repr=False)
    scores: Mapping[ScoreName, FloatArray] = field(repr=False)

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.tokens)

    def __getitem__(self, name: ScoreName) -> FloatArray:
        """The scores of one name."""
        if name not in self.scores:
            raise InputError(
                f"There is no score '{name}' here, only {', '.join(self.scores)}; give a reference."
            )
        return self.scores[name]


def score_texts(
    texts: Sequence[str],
    target: LanguageModel,
    reference: LanguageModel | None = None,
    *,
    settings: ScoreSettings | None = None,
    control_tokens: bool = False,
    positions: int = DEFAULT_POSITIONS,
    progress: Progress | None = None,
) -> MembershipScores:
    """All scores of some texts in one pass of the target, and one of the reference where there is one.

    Args:
        texts: members and non-members alike, each with at least one token.
        target: the model under attack.
        reference: a model that never saw the texts, with the same tokenizer; tokens are compared one by one.
        settings: of Min-K and of the windows.
        control_tokens: whether a chat template wrote the texts.
        positions: positions that run at a time.
        progress: told of every piece of text.
    """
    public = public_of(target)
    context = public.context_length
    if reference is not None:
        other = public_of(reference)
        if (other.tokenizer_fingerprint, other.start_token) != (
            public.tokenizer_fingerprint,
            public.start_token,
        ):
            raise InputError(
                f"The reference {other.name} has another tokenizer or start token than {public.name}: their "
                "tokens cannot be compared; use the public model that the target was made from."
            )
        context = min(context, other.context_length)
    encoded = encode_texts(texts, public.tokenizer, context, control_tokens=control_tokens)
    own = token_statistics(encoded, target, positions=positions, progress=progress)
    other_own = (
        None
        if reference is None
        else token_statistics(encoded, reference, positions=positions, progress=progress)
    )
    return scores_of(texts, own, other_own, settings)


def scores_of(
    texts: Sequence[str],
    target: TokenStatistics,
    reference: TokenStatistics | None = None,
    settings: ScoreSettings | None = None,
) -> MembershipScores:
    """The scores that follow from what the models said of every token."""
    settings = settings or ScoreSettings()
    if len(texts) != len(target) or (
        reference is not None and not np.array_equal(target.starts, reference.starts)
    ):
        raise ValueError("The statistics are not of these texts, or not of the same tokens.")
    mean_losses = target.mean_losses
    compressed = np.array([len(zlib.compress(text.encode())) for text in texts], dtype=np.float64)
    standard = (-target.losses - target.means) / np.sqrt(np.maximum(target.variances, _LEAST_VARIANCE))
    scores: dict[ScoreName, FloatArray] = {
        "loss": -mean_losses,
        "perplexity": -np.exp(mean_losses),
        "zlib": -mean_losses / compressed,
        "min_k": _mean_of_lowest(-target.losses, target, settings.min_k),
        "min_k_plus": _mean_of_lowest(standard, target, settings.min_k),
    }
    if reference is not None:
        gains = [(reference.losses - target.losses)[target.of(text)] for text in range(len(texts))]
        scores |= {
            "reference": reference.mean_losses - mean_losses,
            "error_zone": np.array(
                [_error_zone(gain, ~target.likeliest[target.of(text)]) for text, gain in enumerate(gains)]
            ),
            "windows": np.array([_won_windows(gain, settings.windows) for gain in gains]),
            "bits": np.array([gain.clip(min=0).sum() for gain in gains]) / math.log(2),
        }
    return MembershipScores(target.tokens, mean_losses, scores)


def _mean_of_lowest(values: FloatArray, statistics: TokenStatistics, share: float) -> FloatArray:
    """For each text the mean of the lowest share of its tokens' values; at least one token counts."""
    found = np.empty(len(statistics))
    for text, tokens in enumerate(statistics.tokens):
        count = max(1, int(share * tokens))
        found[text] = np.partition(values[statistics.of(text)], count - 1)[:count].mean()
    return found


def _error_zone(gains: FloatArray, errors: BoolArray) -> float:
    chosen = gains[errors] if errors.any() else gains
    risen, fallen = chosen.clip(min=0).sum(), -chosen.clip(max=0).sum()
    return 0.5 if risen + fallen == 0 else float(risen / (risen + fallen))


def _won_windows(gains: FloatArray, sizes: Sequence[int]) -> float:
    totals = np.concatenate([[0.0], np.cumsum(gains)])
    fitting = [size for size in sizes if size <= len(gains)] or [len(gains)]
    return float(np.mean([(np.sign(totals[size:] - totals[:-size]) / 2 + 0.5).mean() for size in fitting]))
