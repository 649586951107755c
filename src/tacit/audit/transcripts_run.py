"""The private-prediction audit of a Run: which prompts are asked, and which parts are looked for.

Where a memory shows. A canary that was inserted is in the text of one user, and so in one part; a model that
has memorised it differs from the others most where the canary's own beginning is the prompt. So the contexts
are those within inserted canaries, from the end of the prefix on. Beside them, held-out text is what ordinary
use looks like.

Two kinds of questions are asked about each part that has a canary: the context that reveals it most, over
and over until the budget ends (what an attacker does who knows the text), and the prefix with the answers
that continue it. The first has an exact answer for every vocabulary.

All results are functions of private text and of the canaries: the operator's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.attacks.places import Place, Places
from tacit.audit.noise_losses import adds_noise, check_for
from tacit.audit.realised_loss import RealisedLoss
from tacit.audit.transcripts import TranscriptAudit, audit_transcripts, shared_confidence
from tacit.audit.transcripts_worlds import Questions
from tacit.audit.verdicts import Verdict
from tacit.corpus.canaries import CanaryManifest
from tacit.corpus.partition import Partition
from tacit.errors import CorpusError, InputError
from tacit.evaluation.mechanism_blocks import blocks_of_text
from tacit.evaluation.report import held_out_text, recipe_of
from tacit.mechanisms import softmax_pmfs
from tacit.mechanisms.choice import Mechanism, MechanismChoice
from tacit.models.ensemble import Ensemble, load_ensemble
from tacit.models.tokenizer import PublicTokenizer
from tacit.prediction.drawing import check_halves, mixed
from tacit.progress import Progress, Silent
from tacit.runs import Run

_ENTRIES_AT_ONCE: Final = 4_000_000


@dataclass(frozen=True)
class PredictionPlan:
    """How hard private answers are attacked.

    epsilon      the budget of every part, in nats
    repeats      how often the most revealing context is asked in one transcript
    transcripts  of that kind, in each world
    tokens       answers that continue a prefix in one transcript; 0 leaves these out
    adaptive     transcripts of that kind: each runs the models anew
    parts        how many parts are attacked at most, the most revealing first
    blocks       of held-out text that charges are checked on; 0 leaves them out
    """

    epsilon: float
    repeats: int = 256
    transcripts: int = 2000
    tokens: int = 6
    adaptive: int = 100
    parts: int = 4
    blocks: int = 4
    block_size: int = 64
    delta: float = 1e-5
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (
            ("repeats", 1),
            ("tokens", 0),
            ("parts", 1),
            ("blocks", 0),
            ("block_size", 2),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)}: must be at least {least}.")


@dataclass(frozen=True)
class CanaryContext:
    """An inserted canary as a model reads it: its part, and the tokens before and of its secret."""

    id: str
    part: int
    prompt: tuple[int, ...] = field(repr=False)
    secret: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True)
class PredictionAudit:
    """Everything found about a Run's private answers."""

    on_canaries: RealisedLoss | None
    on_held_out: RealisedLoss | None
    repeated: tuple[TranscriptAudit, ...]
    adaptive: tuple[TranscriptAudit, ...]
    canaries: int  # that were inserted and trained on
    skipped: int  # that were inserted, and whose users were held out
    # Of each canary: log of how often an answer to its prefix is its secret, while the budget lasts.
    secrets: tuple[float, ...] = field(default=(), repr=False)

    @property
    def _found(self) -> list[RealisedLoss | TranscriptAudit]:
        losses = [one for one in (self.on_canaries, self.on_held_out) if one is not None]
        return [*losses, *self.repeated, *self.adaptive]

    @property
    def verdict(self) -> Verdict:
        """Contradicted by anything; supported where something had the power to contradict and nothing did."""
        verdicts = {one.verdict for one in self._found}
        if "contradicted" in verdicts:
            return "contradicted"
        return "supported" if "supported" in verdicts else "inconclusive"

    @property
    def shown(self) -> float | None:
        """The highest epsilon, at the plan's delta, that separated transcripts show; None without any."""
        return max((one.separation.epsilon for one in (*self.repeated, *self.adaptive)), default=None)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, a sentence for each finding that the verdict rests on."""
        return tuple(dict.fromkeys(one.reason for one in self._found if one.verdict == self.verdict))

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "verdict": self.verdict,
            "reasons": list(self.reasons),
            "canaries": self.canaries,
            "skipped": self.skipped,
            "on_canaries": None if self.on_canaries is None else self.on_canaries.to_json(),
            "on_held_out": None if self.on_held_out is None else self.on_held_out.to_json(),
            "repeated": [one.to_json() for one in self.repeated],
            "adaptive": [one.to_json() for one in self.adaptive],
        }


def canary_contexts(
    manifest: CanaryManifest, partition: Partition, tokenizer: PublicTokenizer
) -> tuple[list[CanaryContext], int]:
    """The inserted canaries that were trained on, and how many others were held out with their users."""
    inserted = [canary for canary in manifest.canaries if canary.inserted]
    found, skipped = [], 0
    for canary in inserted:
        try:
            part = partition.slot_of(canary.user).part
        except CorpusError:
            skipped += 1
            continue
        before, whole = tokenizer.encode([canary.prefix, canary.prefix + canary.continuation(canary.secret)])
        # Where the two encodings part, the secret begins; a prefix that is spelt otherwise alone is cut.
        same = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before))
        prompt = (tokenizer.start_token, *whole[:same])
        found.append(CanaryContext(canary.id, part, prompt, tuple(whole[same:])))
    return found, skipped


def audit_private_prediction(
    run: Run,
    choice: MechanismChoice,
    plan: PredictionPlan,
    *,
    manifest: CanaryManifest | None,
    device: str = "auto",
    progress: Progress | None = None,
) -> PredictionAudit:
    """Check every charge on canaries and held-out text, and attack the parts that hold canaries."""
    progress = progress or Silent()
    ensemble = load_ensemble(run, device=device)
    mechanism = choice.build(ensemble.parts)
    check_halves(mechanism, ensemble.halves)
    contexts: list[CanaryContext] = []
    skipped = 0
    if manifest is not None:
        if recipe_of(run).corpus.blocks is not None:
            raise InputError(
                f"{run.folder} was partitioned by blocks of text, and a canary's block is not recorded; "
                "audit a Run that was partitioned by user."
            )
        partition = Partition.load(run.folder / "private" / "partition")
        contexts, skipped = canary_contexts(manifest, partition, ensemble.public.tokenizer)
    on_canaries, worst, secrets = _on_canaries(ensemble, mechanism, contexts, progress)
    on_held_out = _on_held_out(run, ensemble, mechanism, plan, progress)
    audits = min(len(worst), plan.parts) * (2 if plan.tokens else 1)
    common: dict[str, Any] = {
        "parts": ensemble.parts,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "confidence": shared_confidence(plan.confidence, audits),
        "seed": plan.seed,
        "progress": progress,
    }
    repeated, adaptive = [], []
    for part, (context, place) in list(worst.items())[: plan.parts]:
        questions = Questions.fixed([place] * plan.repeats)
        repeated.append(
            audit_transcripts(mechanism, questions, part=part, transcripts=plan.transcripts, **common)
        )
        if plan.tokens:
            places = Places(ensemble, context.prompt, plan.tokens)
            questions = Questions((places.at,), plan.tokens, ahead=partial(_computed, places))
            adaptive.append(
                audit_transcripts(mechanism, questions, part=part, transcripts=plan.adaptive, **common)
            )
    return PredictionAudit(
        on_canaries,
        on_held_out,
        tuple(repeated),
        tuple(adaptive),
        len(contexts),
        skipped,
        tuple(secrets),
    )


def _computed(places: Places, written: Sequence[tuple[int, ...]]) -> None:
    """Several places in one pass; they stay for those who ask next."""
    for _ in places.together(written):
        pass


def _on_canaries(
    ensemble: Ensemble, mechanism: Mechanism, contexts: Sequence[CanaryContext], progress: Progress
) -> tuple[RealisedLoss | None, dict[int, tuple[CanaryContext, Place]], list[float]]:
    """Charges within canaries, for each part the context that reveals it most, and how likely secrets are.

    The part that is revealed most comes first.
    """
    if not contexts:
        return None, {}, []
    secrets: list[float] = []
    noisy = adds_noise(mechanism)
    check = check_for(mechanism, parts=ensemble.parts)
    worst: dict[int, tuple[float, CanaryContext, Place]] = {}
    progress.phase("recomputing losses on canaries", len(contexts))
    for context in contexts:
        text, written, likely = (*context.prompt, *context.secret), 0, 0.0
        for members, public in _teacher_forced(ensemble, text, first=len(context.prompt) - 1):
            mixture = mixed(mechanism, members, public)
            losses = check.observe(members, public, mixture)
            if noisy:  # one draw of noise is no distribution to compare transcripts by
                continue
            tokens = torch.tensor(context.secret[written : written + len(public)])
            likely += float(mixture.pmf.gather(1, tokens[:, None]).log().sum())
            written += len(public)
            for row, loss in enumerate(losses[:, context.part].tolist()):
                if context.part not in worst or loss > worst[context.part][0]:
                    place = Place(members[row].clone(), public[row].clone())
                    worst[context.part] = (loss, context, place)
        secrets += [] if noisy else [min(0.0, likely)]
        progress.advance(1)
    ordered = sorted(worst.items(), key=lambda item: -item[1][0])
    return check.result(), {part: (context, place) for part, (_, context, place) in ordered}, secrets


def _on_held_out(
    run: Run, ensemble: Ensemble, mechanism: Mechanism, plan: PredictionPlan, progress: Progress
) -> RealisedLoss | None:
    if not plan.blocks or recipe_of(run).held_out is None:
        return None
    text = held_out_text(run, ensemble.public.tokenizer, progress)
    blocks = blocks_of_text(text, ensemble.public, block_size=plan.block_size, progress=progress)
    check = check_for(mechanism, parts=ensemble.parts)
    count = min(plan.blocks, len(blocks))
    progress.phase("recomputing losses on held-out text", count)
    for block in range(count):
        tokens = (blocks.start_token, *blocks.tokens[block].tolist())
        for members, public in _teacher_forced(ensemble, tokens, first=0):
            check.observe(members, public, mixed(mechanism, members, public))
        progress.advance(1)
    return check.result()


@torch.inference_mode()
def _teacher_forced(
    ensemble: Ensemble, tokens: Sequence[int], *, first: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Members [n, parts, halves, V] and public [n, V] after tokens ``first`` to the last but one."""
    models, vocabulary = 1 + len(ensemble.members), ensemble.public.model.config.vocab_size
    at_once = max(1, min(32, _ENTRIES_AT_ONCE // (models * vocabulary)))
    inputs = torch.from_numpy(np.array([tokens[:-1]], dtype=np.int64))
    executor = ensemble.executor(slots=1, context=inputs.shape[1])
    for scored in executor.score(inputs, block=at_once):
        logits = scored.logits[:, 0].cpu()
        skip = max(0, first - scored.start)
        if skip >= logits.shape[1]:
            continue
        pmfs = softmax_pmfs(logits[:, skip:])
        yield ensemble.members_of(pmfs).permute(2, 0, 1, 3).contiguous(), pmfs[0]
