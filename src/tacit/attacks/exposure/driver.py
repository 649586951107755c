"""Exposure of all canaries of a manifest: which way of ranking each secret gets, and what came out.

Canaries behind one prefix are ranked together. First the secrets alone: their probability p bounds the rank
by 1/p. Those whose bound is within the budget are ranked by branch and bound, exactly. The others are ranked
by enumerating everything where that is within the budget or asked for, and else by sampling.

p-values. A secret that was drawn uniformly and never seen has an honest p-value by either way, the rank over
|R| and (1 + draws that are not worse) / (1 + draws). Where the secret's own probability decides between
them, both count: where a share a of the candidates is searched, P(p <= u) is min(u, a) + P(not among them,
sampled p <= u), up to 1.37 u. But only what surely has a rank within the budget is searched, so that a is at
most b = budget / |R|. So b is added to sampled p-values: below b only searched ones count, and P(p <= u) is
at most u; from b on P(p <= u) <= a + P(sampled p <= u - b) <= a + u - b <= u. Where everything is enumerated,
or within the budget, the secret decides nothing and nothing is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from tacit.attacks.exposure.candidates import CandidateTree, CandidateTrie
from tacit.attacks.exposure.digits import digit_trie
from tacit.attacks.exposure.ensembles import MechanismScorer
from tacit.attacks.exposure.packed import enumerate_all
from tacit.attacks.exposure.ranking import (
    Rank,
    Ranked,
    Rule,
    ScoreKind,
    Walked,
    branch_and_bound,
    ranks,
    walk,
)
from tacit.attacks.exposure.report import CanaryExposure, ExposureMethod, ExposureReport, estimates
from tacit.attacks.exposure.sampled import sampled_ranks
from tacit.attacks.exposure.states import ModelScorer, Root, Scorer
from tacit.attacks.exposure.symbols import SymbolTree
from tacit.corpus.canaries import Canary, CanaryManifest, word_list_digest
from tacit.errors import InputError, ModelError
from tacit.mechanisms.choice import MechanismChoice
from tacit.models.ensemble import Ensemble
from tacit.models.loading import PublicModel
from tacit.models.tokenizer import PublicTokenizer
from tacit.models.trained import TrainedModel
from tacit.models.words import whole_words
from tacit.progress import Progress, Silent

Checked = Literal["every", "scored"]
_MOST_ENUMERATED: Final = 2_000_000
_DIGITS: Final = "0123456789"


@dataclass(frozen=True)
class ExposureSettings:
    """How exposure is measured.

    score       rank by log-probability, or by perplexity as in CRT
    budget      forward positions that one search may take for the canaries of a prefix
    samples     draws for secrets that a search would not reach within the budget
    full        enumerate all candidates, whatever that takes
    check       hold every candidate in memory, checked beforehand, or make the tree from its symbols and
                check what is scored (words, and more than two million numbers, are always of the latter)
    confidence  of sampled intervals
    seed        of the draws; None is the system's
    rows        texts in one step; None is what memory allows
    """

    score: ScoreKind = "logprob"
    budget: int = 20_000
    samples: int = 2_000
    full: bool = False
    check: Checked = "every"
    confidence: float = 0.95
    seed: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        Rule(self.score)
        if self.budget < 1:
            raise InputError(f"budget={self.budget}: so few positions rank nothing; take 20000, e.g.")
        if self.samples < 1 or (self.rows is not None and self.rows < 1):
            raise InputError(f"Expected samples={self.samples} and rows={self.rows} >= 1, e.g. 2000 and 512.")
        if not 0 < self.confidence < 1:
            raise InputError(f"Expected 0 < confidence={self.confidence} < 1, e.g. 0.95.")
        if self.check not in ("every", "scored"):
            raise InputError(f"Expected check={self.check!r} to be every or scored.")


@dataclass(frozen=True)
class MechanismTarget:
    """An ensemble and the mechanism, with its price, that answers from it."""

    ensemble: Ensemble
    choice: MechanismChoice

    @property
    def public(self) -> PublicModel:
        """The ensemble's public model."""
        return self.ensemble.public


@dataclass(frozen=True)
class GroupExposure:
    """The ranks of all known candidates of a tree, in their order.

    drawn     the sampled p-values alone, which sampled exposures are told by; None where a rank was searched
    p_values  that the model never saw the secret: P(p <= u) <= u, whichever way each rank was found
    """

    walked: Walked
    ranks: tuple[Rank, ...]
    methods: tuple[ExposureMethod, ...]
    drawn: tuple[float | None, ...]
    p_values: tuple[float, ...]
    positions: int


Target = TrainedModel | PublicModel | MechanismTarget


def measure_exposure(
    target: Target,
    manifest: CanaryManifest,
    *,
    settings: ExposureSettings | None = None,
    words: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ExposureReport:
    """Rank every canary's secret, inserted or not, among the space that it was drawn from."""
    return measure_exposures([target], manifest, settings=settings, words=words, progress=progress)[0]


def measure_exposures(
    targets: Sequence[Target],
    manifest: CanaryManifest,
    *,
    settings: ExposureSettings | None = None,
    words: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> list[ExposureReport]:
    """The same for several targets of one public model: each prefix's candidates are laid out once for all.

    Equal to measuring one after the other, draws included.
    """
    settings, progress = settings or ExposureSettings(), progress or Silent()
    measuring = [_Measuring(target, settings) for target in targets]
    public = measuring[0].public
    if any(one.public.tokenizer.fingerprint != public.tokenizer.fingerprint for one in measuring):
        raise InputError("Exposure is measured together for targets of one tokenizer; measure others apart.")
    groups = prefix_groups(manifest.canaries)
    progress.phase("measuring exposure", len(groups))
    for number, canaries in enumerate(groups):
        tree = tree_for(public.tokenizer, manifest, canaries, settings.check, words)
        for one in measuring:
            one.rank(tree, canaries, number)
        progress.advance(1)
    return [one.report(manifest) for one in measuring]


class _Measuring:
    """One target, and what was found of it so far."""

    def __init__(self, target: Target, settings: ExposureSettings) -> None:
        self.public = target if isinstance(target, PublicModel) else target.public
        self._target, self._settings = target, settings
        self._make = _scorer_for(target)
        self._measured: dict[str, CanaryExposure] = {}
        self._positions = self._queries = 0
        self._nested = 1
        self._spent = np.zeros(target.ensemble.parts if isinstance(target, MechanismTarget) else 0)

    def rank(self, tree: CandidateTree, canaries: Sequence[Canary], number: int) -> None:
        settings = self._settings
        require_room(tree, self.public)
        generator = np.random.default_rng(None if settings.seed is None else [settings.seed, number])
        scorer = self._make(len(tree.prefix) + tree.longest)
        inserted = [canary.inserted for canary in canaries]
        group = rank_group(scorer, tree, inserted, settings, generator=generator)
        self._positions += group.positions
        self._nested = max(self._nested, tree.nested)
        if isinstance(scorer, MechanismScorer):
            self._queries += scorer.queries
            self._spent += scorer.spent
        for place, canary in enumerate(canaries):
            self._measured[canary.id] = _canary_exposure(canary, group, place, settings)

    def report(self, manifest: CanaryManifest) -> ExposureReport:
        return ExposureReport(
            score=self._settings.score,
            target=_described(self._target),
            canaries=tuple(self._measured[canary.id] for canary in manifest.canaries),
            positions=self._positions,
            queries=self._queries,
            spent=tuple(self._spent.tolist()),
            nested=self._nested,
        )


def _scorer_for(target: Target) -> Callable[[int], Scorer]:
    """Makes a scorer for texts of some length."""
    if isinstance(target, MechanismTarget):
        return lambda context: MechanismScorer(target.ensemble, target.choice, context=context)
    scorer = ModelScorer(target.model)
    return lambda context: scorer


def _described(target: Target) -> str:
    if isinstance(target, MechanismTarget):
        return f"{target.choice.label} over {target.ensemble.parts} parts"
    return "trained model" if isinstance(target, TrainedModel) else "public model"


def prefix_groups(canaries: Sequence[Canary]) -> list[list[Canary]]:
    """Canaries that continue one text, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Canary]] = {}
    for canary in canaries:
        groups.setdefault((canary.prefix, canary.separator), []).append(canary)
    return list(groups.values())


def tree_for(
    tokenizer: PublicTokenizer,
    manifest: CanaryManifest,
    canaries: Sequence[Canary],
    check: Checked,
    words: Sequence[str] | None,
) -> CandidateTree:
    """The space that canaries of one prefix were drawn from, with their secrets as the known candidates."""
    plan, first = manifest.plan, canaries[0]
    of_digits = plan.secret == "digits"  # noqa: S105 (the kind of secret, not one)
    known = [canary.continuation(canary.secret) for canary in canaries]
    if of_digits and check == "every" and manifest.candidates <= _MOST_ENUMERATED:
        return digit_trie(tokenizer, first.prefix, plan.length, separator=first.separator, known=known)
    if of_digits:
        symbols: Sequence[str] = _DIGITS
    else:
        symbols = _require_words(manifest, words, tokenizer)
    return SymbolTree(
        tokenizer,
        first.prefix,
        symbols,
        plan.length,
        separator=first.separator,
        between="" if of_digits else " ",
        known=[canary.secret for canary in canaries],
    )


def _require_words(
    manifest: CanaryManifest, words: Sequence[str] | None, tokenizer: PublicTokenizer
) -> Sequence[str]:
    """The list that secrets were drawn from: the caller's, or as `tacit corpus plant` the tokenizer's own."""
    given = whole_words(tokenizer) if words is None else words
    if word_list_digest(given) == manifest.word_list:
        return given
    if words is None:
        raise InputError(
            "Word secrets are ranked among the words they were drawn from, and these were not drawn from "
            "this model's own words; give the list (--words)."
        )
    raise InputError("The word list is not the one that the canaries were drawn from; give that list.")


def require_room(tree: CandidateTree, public: PublicModel) -> None:
    """Refuse candidates that are longer than the model's context."""
    needed = len(tree.prefix) + tree.longest
    if needed > public.context_length:
        raise ModelError(
            f"Prefix and candidates take {needed} tokens, more than the model's {public.context_length}; use "
            "a shorter prefix or another model."
        )


def rank_group(
    scorer: Scorer,
    tree: CandidateTree,
    inserted: Sequence[bool],
    settings: ExposureSettings,
    *,
    generator: np.random.Generator,
) -> GroupExposure:
    """Rank all known candidates of a tree, each in the cheapest way that the settings allow."""
    root = scorer.root(tree.prefix, whole=settings.score == "perplexity")
    rule = Rule.of(settings.score, root)
    walked = walk(scorer, tree, root, rule, rows=settings.rows)
    positions = len(tree.prefix) + walked.positions
    results: dict[int, Ranked] = {}
    sampled_p: dict[int, float] = {}
    targets = list(range(len(tree.known)))
    near = [] if settings.full else [one for one in targets if walked.at_most[one] <= settings.budget]
    if near:
        results, asked = _search(scorer, tree, root, rule, walked, inserted, near, settings)
        positions += asked
    far = [one for one in targets if one not in results]
    enumerable = isinstance(tree, CandidateTrie) and (settings.full or tree.internal <= settings.budget)
    if far and isinstance(tree, CandidateTrie) and enumerable:
        found = enumerate_all(scorer, tree, root, rule, rows=settings.rows)
        positions += found.positions
        results |= dict(zip(far, ranks(tree, rule, walked, found, inserted, far), strict=True))
    elif far and settings.full:
        raise InputError(
            f"{tree.candidates:.3g} candidates are too many to enumerate; leave full out, and secrets that "
            "no search reaches are ranked by sampling."
        )
    elif far:
        drawn = sampled_ranks(
            scorer,
            tree,
            root,
            rule,
            walked,
            inserted,
            far,
            samples=settings.samples,
            confidence=settings.confidence,
            generator=generator,
            rows=settings.rows,
        )
        positions += drawn.positions
        for one, sampled in zip(far, drawn.ranks, strict=True):
            results[one] = Ranked(sampled.rank, exact=False)
            sampled_p[one] = sampled.p_value
    methods: list[ExposureMethod] = [
        "exact" if results[one].exact else "sampled" if one in sampled_p else "anytime" for one in targets
    ]
    return GroupExposure(
        walked,
        tuple(results[one].rank for one in targets),
        tuple(methods),
        tuple(sampled_p.get(one) for one in targets),
        tuple(
            min(1.0, sampled_p[one] + settings.budget / results[one].rank.alone_candidates)
            if one in sampled_p
            else results[one].rank.alone_high / results[one].rank.alone_candidates
            for one in targets
        ),
        positions,
    )


def _search(
    scorer: Scorer,
    tree: CandidateTree,
    root: Root,
    rule: Rule,
    walked: Walked,
    inserted: Sequence[bool],
    targets: Sequence[int],
    settings: ExposureSettings,
) -> tuple[dict[int, Ranked], int]:
    """One pass for all targets; where the budget ended it, the better half gets a pass of its own."""
    found = branch_and_bound(
        scorer,
        tree,
        root,
        rule,
        threshold=float(walked.values[list(targets)].min()) - walked.band,
        budget=settings.budget,
        rows=settings.rows,
    )
    results = dict(zip(targets, ranks(tree, rule, walked, found, inserted, targets), strict=True))
    positions = found.positions
    if not found.complete and len(targets) > 1:
        better = sorted(targets, key=lambda one: -walked.values[one])[: len(targets) // 2]
        again, asked = _search(scorer, tree, root, rule, walked, inserted, better, settings)
        results |= again
        positions += asked
    return results, positions


def _canary_exposure(
    canary: Canary, group: GroupExposure, place: int, settings: ExposureSettings
) -> CanaryExposure:
    rank, method = group.ranks[place], group.methods[place]
    described = {
        "exact": "exact rank; ties and rounding make the interval",
        "anytime": "search within a budget; certain",
        "sampled": f"Clopper-Pearson on the share of better candidates, n={settings.samples}",
    }[method]
    alone, raw = estimates(rank, confidence=settings.confidence, method=described, p_value=group.drawn[place])
    certified = math.log2(rank.alone_candidates) - math.log2(group.walked.at_most[place])
    return CanaryExposure(
        id=canary.id,
        inserted=canary.inserted,
        repetitions=canary.repetitions,
        candidates=rank.candidates,
        rank_low=rank.low,
        rank_high=rank.high,
        alone_low=rank.alone_low,
        alone_high=rank.alone_high,
        exposure=alone,
        raw_exposure=raw,
        p_value=group.p_values[place],
        certified=max(0.0, certified),
        method=method,
        tokens=int(group.walked.lengths[place]),
        positions=group.positions,
        log_probability=float(group.walked.log_probabilities[place]),
    )
