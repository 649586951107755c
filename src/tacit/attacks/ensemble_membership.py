"""Membership scores of what an ensemble answers under a mechanism: the mixture is the model under attack.

Every token of a text is one query: the mechanism mixes the members' predictions after the tokens before it,
and the text's score is that of the mixture's own distribution, so that there is no sampling error. An
attacker through the API would pay for each of these queries; the charges are added up to say how much. The
mixture is the one at budgets that suffice: what an attacker gets while the budget lasts.

The public model's row comes with every forward pass and is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit.attacks.extraction import pmf_of
from tacit.attacks.membership import MembershipScores, ScoreSettings, scores_of
from tacit.attacks.token_statistics import (
    DEFAULT_POSITIONS,
    TextBatch,
    TokenStatistics,
    batches,
    encode_texts,
    statistics_from,
)
from tacit.errors import InputError
from tacit.mechanisms import softmax_pmfs
from tacit.mechanisms.choice import Mechanism, MechanismChoice, needs_halves
from tacit.models.ensemble import Ensemble
from tacit.models.executor import EnsembleExecutor
from tacit.models.likelihood import NO_LABEL
from tacit.progress import Progress, Silent
from tacit.statistics import FloatArray

_ENTRIES_AT_ONCE: Final = 4_000_000  # logits of all models that are held at a time
# The sampler draws every token with at least this probability; a pmf with zeros is not what is answered.
_LEAST: Final = 2.0**-62


@dataclass(frozen=True)
class EnsembleScores:
    """Scores of the mixture, what the public model alone would score, and the price of asking.

    statistics  what the mixture says of every token
    queries     answers that were asked for: one per token
    charges     [parts] nats that the mechanism charged for them, added up; infinite without privacy
    """

    scores: MembershipScores
    public: MembershipScores
    statistics: TokenStatistics = field(repr=False)
    queries: int
    charges: FloatArray = field(repr=False)


@torch.inference_mode()
def score_texts_of_ensemble(
    ensemble: Ensemble,
    choice: MechanismChoice,
    texts: Sequence[str],
    *,
    settings: ScoreSettings | None = None,
    control_tokens: bool = False,
    positions: int = DEFAULT_POSITIONS,
    progress: Progress | None = None,
) -> EnsembleScores:
    """All scores of some texts under the mixture that a mechanism makes, teacher-forced.

    Mechanisms that add noise to every answer (subsample_aggregate, gnmax) have no fixed distribution to
    score with, and are refused.
    """
    progress = progress or Silent()
    mechanism = choice.build(ensemble.parts)
    if pmf_of(mechanism) is None:
        raise InputError(
            f"mechanism {choice.name} adds noise to every answer, so that a text has no fixed score; attack "
            "submix, certified or individual, or by sampled answers."
        )
    public = ensemble.public
    encoded = encode_texts(texts, public.tokenizer, public.context_length, control_tokens=control_tokens)
    executor = ensemble.executor(slots=1, context=int(encoded.lengths.max()))
    # Numbers of TokenStatistics for the mixture (0) and for the public model (1).
    numbers = np.empty((2, 3, int(encoded.lengths.sum())))
    likeliest = np.empty((2, numbers.shape[-1]), dtype=np.bool_)
    charges = np.zeros(ensemble.parts)
    progress.phase("asking the ensemble", numbers.shape[-1])
    for batch in batches(encoded, positions):
        numbers[..., batch.places], likeliest[:, batch.places] = _asked(
            ensemble, executor, mechanism, batch, charges
        )
        progress.advance(len(batch.places))
    mixture, alone = (statistics_from(encoded, numbers[row], likeliest[row]) for row in range(2))
    return EnsembleScores(
        scores_of(texts, mixture, alone, settings),
        scores_of(texts, alone, None, settings),
        mixture,
        numbers.shape[-1],
        charges,
    )


def _asked(
    ensemble: Ensemble,
    executor: EnsembleExecutor,
    mechanism: Mechanism,
    batch: TextBatch,
    charges: FloatArray,
) -> tuple[Tensor, Tensor]:
    """[2, 3, labels] numbers and [2, labels] flags of a batch, mixture first; charges are added to."""
    real = batch.labels != NO_LABEL
    numbers = torch.zeros(2, 3, *batch.labels.shape, dtype=torch.float64)
    likeliest = torch.zeros(2, *batch.labels.shape, dtype=torch.bool)
    vocabulary = ensemble.public.model.config.vocab_size
    at_once = max(1, min(32, _ENTRIES_AT_ONCE // (executor.models * vocabulary * len(batch.labels))))
    for scored in executor.score(batch.inputs, block=at_once):
        until = scored.start + scored.logits.shape[2]
        for row, column in real[:, scored.start : until].nonzero().tolist():
            place = column + scored.start
            pmfs = softmax_pmfs(scored.logits[:, row, column].cpu())
            members = ensemble.members_of(pmfs)
            # One query at a time, as the service does: the search for weights ends elsewhere for a batch.
            mixture = mechanism.mix(members if needs_halves(mechanism) else members.mean(1), pmfs[0])
            charges += mixture.charges.numpy()
            token = int(batch.labels[row, place])
            for which, pmf in enumerate((mixture.pmf, pmfs[0].double() / pmfs[0].sum(dtype=torch.float64))):
                numbers[which, :, row, place], likeliest[which, row, place] = _law(pmf, token)
    return numbers[..., real], likeliest[:, real]


def _law(pmf: Tensor, token: int) -> tuple[Tensor, Tensor]:
    """Loss, mean and variance as in `TokenLaws`, and whether no token is likelier."""
    logs = pmf.clamp(min=_LEAST).log()
    mean = (pmf * logs).sum()
    variance = (pmf * (logs - mean).square()).sum()
    return torch.stack([-logs[token], mean, variance]), pmf[token] >= pmf.max()
