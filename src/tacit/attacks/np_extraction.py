"""(n, p)-discoverable extraction (Hayes et al. 2025): how many tries until a secret comes out?

If one sampled continuation of the prefix is the secret with probability p_z, then n tries write it at least
once with probability 1 - (1 - p_z)^n. A secret is (n, p)-discoverable if that is at least p, which takes
n_p = ln(1 - p) / ln(1 - p_z) tries. p_z comes from one teacher-forced pass, under the sampling scheme that
the attacker would use; nothing is sampled, and secrets of probability 1e-300 have their answer too.

p_z is the probability of the secret as its tokenizer encodes it behind the prefix. Other segmentations of the
same text add to it, so that what is said here is a lower bound on extraction of the text. Greedy decoding is
the limit of temperature 0: see `tab`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tacit.attacks.token_statistics import (
    DEFAULT_POSITIONS,
    EncodedTexts,
    LanguageModel,
    batches,
    public_of,
    run,
)
from tacit.corpus import CanaryManifest
from tacit.errors import InputError
from tacit.models.likelihood import NextTokenLoss
from tacit.progress import Progress, Silent
from tacit.statistics import Estimate, FloatArray, clopper_pearson


@dataclass(frozen=True)
class Prompted:
    """A secret and what stands before it; ``continuation`` has the space between the two."""

    id: str
    prefix: str = field(repr=False)
    continuation: str = field(repr=False)


@dataclass(frozen=True)
class Sampling:
    """How an attacker samples: temperature first, then the k likeliest tokens, renormalised."""

    temperature: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"Expected a finite temperature={self.temperature} > 0; for greedy decoding see tab."
            )
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"Expected top_k={self.top_k} >= 1.")

    def log_probabilities(self, logits_NV: Tensor, tokens_N: Tensor) -> Tensor:
        """[N] log-probability with which each token is drawn, in float64; minus infinity if it never is."""
        values = logits_NV.double() / self.temperature
        own = values.gather(1, tokens_N[:, None]).squeeze(1)
        if self.top_k is None or self.top_k >= values.shape[1]:
            return own - values.logsumexp(1)
        kept = values.topk(self.top_k, dim=1).values
        # With a tie at the last place, every token of the tie may be kept.
        return torch.where(own >= kept[:, -1], own - kept.logsumexp(1), -math.inf)


@dataclass(frozen=True)
class NPExtraction:
    """Log-probabilities with which one try writes each secret."""

    ids: tuple[str, ...]
    log_probabilities: FloatArray = field(repr=False)
    sampling: Sampling

    def tries(self, p: float) -> FloatArray:
        """[secrets] tries until each comes out with probability ``p``."""
        return tries_needed(self.log_probabilities, p)

    def probabilities(self, tries: float) -> FloatArray:
        """[secrets] with which probability each comes out in so many tries."""
        return probability_within(self.log_probabilities, tries)

    def share(self, tries: float, p: float, *, confidence: float = 0.95) -> Estimate:
        """Share of the secrets that are (tries, p)-discoverable."""
        hits = int((self.probabilities(tries) >= _checked(p)).sum())
        return clopper_pearson(hits, len(self.ids), confidence=confidence)

    def table(self, tries: Sequence[float], ps: Sequence[float]) -> list[list[Estimate]]:
        """Shares for every number of tries (rows) and every p (columns)."""
        return [[self.share(n, p) for p in ps] for n in tries]


def _checked(p: float) -> float:
    if not 0 < p < 1:
        raise InputError(f"Expected p={p} in (0, 1), e.g. 0.5.")
    return p


def tries_needed(log_probabilities: npt.ArrayLike, p: float) -> FloatArray:
    """ln(1 - p) / ln(1 - p_z); infinite where p_z is 0 or the number is too large for a float.

    Not rounded up: a number below 1 says that one try is more than enough.
    """
    with np.errstate(over="ignore"):
        return np.exp(math.log(-math.log1p(-_checked(p))) - _log_rate(log_probabilities))


def probability_within(log_probabilities: npt.ArrayLike, tries: float) -> FloatArray:
    """1 - (1 - p_z)^n."""
    if not 0 < tries < math.inf:
        raise InputError(f"Expected a finite number of tries={tries} > 0.")
    with np.errstate(over="ignore"):
        return -np.expm1(-np.exp(math.log(tries) + _log_rate(log_probabilities)))


def _log_rate(log_probabilities: npt.ArrayLike) -> FloatArray:
    """ln(-ln(1 - p_z)): about ln p_z where p_z is small, and right to the last digits where it is near 1."""
    logs = np.asarray(log_probabilities, dtype=np.float64)
    if (logs > 0).any() or np.isnan(logs).any():
        raise InputError("Expected log-probabilities of at most 0.")
    with np.errstate(divide="ignore"):
        # ln(1 - p_z) keeps its digits by log1p where p_z is small, and by expm1 where it is near 1.
        near = np.log(-np.log(-np.expm1(np.maximum(logs, -math.log(2)))))
        far = np.log(-np.log1p(-np.exp(np.clip(logs, -37.0, -math.log(2)))))
    # Below -37, 1 - p_z rounds to 1 and -ln(1 - p_z) is p_z to the last digit.
    return np.where(logs < -37.0, logs, np.where(logs < -math.log(2), far, near))


def prompted(manifest: CanaryManifest, *, inserted: bool = True) -> list[Prompted]:
    """The manifest's inserted canaries; with ``inserted=False`` the others, which show what chance gives."""
    return [
        Prompted(canary.id, canary.prefix, canary.continuation(canary.secret))
        for canary in manifest.canaries
        if canary.inserted == inserted
    ]


@torch.no_grad()
def extract(
    secrets: Sequence[Prompted],
    model: LanguageModel,
    *,
    sampling: Sampling | None = None,
    positions: int = DEFAULT_POSITIONS,
    progress: Progress | None = None,
) -> NPExtraction:
    """One teacher-forced pass over all secrets behind their prefixes."""
    sampling, progress = sampling or Sampling(), progress or Silent()
    encoded, prefixes = _encode(secrets, model)
    logs = np.zeros(len(secrets))
    loss = NextTokenLoss(model.model)
    owner = np.repeat(np.arange(len(secrets)), encoded.lengths)
    progress.phase("scoring secrets", len(secrets))
    for batch in batches(encoded, positions, count_from=prefixes.__getitem__):
        labels = batch.labels.to(next(model.model.parameters()).device)
        found = []
        for rows, logits in loss.labelled_logits(partial(run, model.model, batch), labels):
            found.append(sampling.log_probabilities(logits, labels.reshape(-1)[rows]).cpu())
        np.add.at(logs, owner[batch.places], torch.cat(found).numpy())
        progress.advance(len(batch.labels))
    # A certain token's log-probability may come out a rounding above 0.
    return NPExtraction(tuple(secret.id for secret in secrets), np.minimum(logs, 0.0), sampling)


def _encode(secrets: Sequence[Prompted], model: LanguageModel) -> tuple[EncodedTexts, list[int]]:
    public = public_of(model)
    if not secrets:
        raise InputError("There are no secrets to extract; give at least one.")
    heads = public.tokenizer.encode([secret.prefix for secret in secrets])
    wholes = public.tokenizer.encode([secret.prefix + secret.continuation for secret in secrets])
    for secret, head, whole in zip(secrets, heads, wholes, strict=True):
        if whole[: len(head)] != head or len(whole) == len(head):
            raise InputError(
                f"The tokenizer encodes the prefix of {secret.id} otherwise when its secret follows, so that "
                "no continuation can be the secret as it was trained; end the prefix before a space."
            )
        if len(whole) > public.context_length:
            raise InputError(
                f"{secret.id} has {len(whole)} tokens, more than the model's {public.context_length}; "
                "shorten it."
            )
    starts = np.arange(len(wholes) + 1, dtype=np.int64)
    return EncodedTexts(wholes, starts, public.start_token), [len(head) for head in heads]
