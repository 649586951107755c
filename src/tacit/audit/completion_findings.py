"""What comes out when somebody begins a text: tab completion of canaries and of people's own texts.

Planted canaries are compared with chance (:mod:`tacit.audit.completion_chance`). A person's own text may be
completed because it is a common one; so texts of people whom training saw are compared with texts of people
whom a split held out, picked alike by a model that saw neither (Fisher's exact test over people). Two other
choices allow no such test, and describe. Texts that were picked by the model without mitigation, as in the
paper: that model saw one side. And texts of a corpus that was held out within users: the strangest of many
training texts is stranger than that of few held-out ones, and who wrote one text is always trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from scipy import stats

from tacit.attacks.np_extraction import extract, prompted
from tacit.attacks.tab import TabResult, real_canaries, synthetic_canaries, tab_attack
from tacit.attacks.token_statistics import LanguageModel
from tacit.audit.attempts import Attempt
from tacit.audit.completion_chance import completion_attempt
from tacit.audit.hit_rates import GENERATION, generation_attempt, hit_row, tries_rows
from tacit.corpus import UserCorpus
from tacit.corpus.canaries import CanaryManifest
from tacit.errors import InputError
from tacit.models.trained import TrainedModel
from tacit.progress import Progress
from tacit.statistics import clopper_pearson
from tacit.training.preparation import SplitCorpus

RealCanaries = Literal["independent", "paper", "none"]
_OWN_TEXTS: Final = "tab completion of users' own texts"
_WITHIN: Final = (
    "Text was held out within users, so that completions of users' own texts describe and test nothing: a "
    "user's strangest text is one of many in training and of few that were held out (held_out.by=user tests)."
)


@dataclass(frozen=True)
class SyntheticCompletion:
    """Planted canaries: completed by the model, by the public model, and how many tries samples take.

    ``nested``: the most secrets of which each begins the next, which one text writes at once.
    """

    manifest: CanaryManifest
    own: TabResult
    public: TabResult
    tries: list[dict[str, Any]]
    codes: list[dict[str, Any]]
    nested: int = 1

    @classmethod
    def of(
        cls,
        manifest: CanaryManifest,
        trained: TrainedModel,
        progress: Progress,
        *,
        confidence: float = 0.95,
        nested: int = 1,
    ) -> SyntheticCompletion:
        """One pass of either model over the canaries that were inserted."""
        canaries = synthetic_canaries(manifest)
        found = extract(prompted(manifest), trained, progress=progress)
        settings = {"this model": found, "public model": extract(prompted(manifest), trained.public)}
        if never := prompted(manifest, inserted=False):
            settings["this model, secrets that were never inserted"] = extract(never, trained)
        codes = [
            hit_row(
                name,
                one.log_probabilities,
                candidates=manifest.candidates / nested,
                confidence=confidence,
                attempt=GENERATION if one is found else None,
            )
            for name, one in settings.items()
        ]
        return cls(
            manifest,
            tab_attack(canaries, trained, progress=progress),
            tab_attack(canaries, trained.public, progress=progress),
            tries_rows(found, confidence=confidence),
            codes,
            nested,
        )

    def attempts(self, confidence: float) -> list[Attempt]:
        """Against what chance gives of secrets that nobody saw: completed, and written by one generation."""
        return [
            completion_attempt(self.own, self.manifest, confidence=confidence, nested=self.nested),
            generation_attempt(self.codes[0]),
        ]

    def to_json(self, *, confidence: float = 0.95) -> dict[str, Any]:
        """JSON form of the report."""
        return {
            "accuracy": self.own.accuracy(confidence=confidence).to_json(),
            "attainable": self.own.largest_accuracy,
            "public": self.public.accuracy(confidence=confidence).to_json(),
            "per_repetition": _rungs(self.own, confidence),
        }


@dataclass(frozen=True)
class RealCompletion:
    """Each user's strangest training text; ``others`` are those of users who were held out with all text."""

    own: TabResult
    public: TabResult
    others: TabResult | None

    @property
    def p_value(self) -> float | None:
        """That trained users' texts are completed no more than others'; None where they were picked apart."""
        if self.others is None:
            return None
        table = [[one.hits, len(one.canaries) - one.hits] for one in (self.own, self.others)]
        return float(stats.fisher_exact(table, alternative="greater").pvalue)

    def attempts(self, confidence: float) -> list[Attempt]:
        """Against users who were held out; nothing without them."""
        if self.others is None or self.p_value is None:
            return []
        share = clopper_pearson(self.own.hits, len(self.own.canaries), confidence=confidence)
        return [Attempt(_OWN_TEXTS, share, self.others.hits / len(self.others.canaries), self.p_value)]

    def to_json(self, *, confidence: float = 0.95) -> dict[str, Any]:
        """JSON form of the report."""
        others = self.others
        return {
            "source": self.own.canaries.source,
            "users": len(self.own.canaries),
            "accuracy": _share(self.own, confidence),
            "attainable": self.own.largest_accuracy,
            "public": _share(self.public, confidence),
            "others": None if others is None else _share(others, confidence),
            "other_users": 0 if others is None else len(others.canaries),
            "p_value": self.p_value,
            "attempt": _OWN_TEXTS,
            "adjusted": None,
        }


def require_judge(choice: RealCanaries, *, given: bool) -> None:
    """Before anything long begins: the paper's rule needs a model without mitigation."""
    if choice == "paper" and not given:
        raise InputError(
            "By the paper's rule, a model without mitigation picks each user's text; give a Run of it "
            "(--against), or let an independent model pick."
        )


def complete_real_canaries(
    texts: SplitCorpus,
    trained: TrainedModel,
    unmitigated: TrainedModel | None,
    *,
    choice: RealCanaries,
    users: int,
    planted: frozenset[str],
    seed: int,
    notes: list[str],
    progress: Progress,
) -> RealCompletion | None:
    """Pick the texts of at most ``users`` users on either side, and try to complete them."""
    if choice == "none" or not users:
        return None
    require_judge(choice, given=unmitigated is not None)
    judge: LanguageModel = trained.public
    if choice == "paper" and unmitigated is not None:
        judge = unmitigated
    rng = np.random.default_rng(seed)
    try:
        side = _some_users(texts.train, users, planted, rng)
        chosen = real_canaries(side, judge, paper=choice == "paper", progress=progress)
        others = None
        if choice == "independent" and texts.held_out is not None:
            if frozenset(texts.train.users) & frozenset(texts.held_out.users):
                notes.append(_WITHIN)
            else:
                rest = _some_users(texts.held_out, users, planted, rng)
                others = real_canaries(rest, judge, progress=progress) if len(rest) else None
    except InputError as problem:
        notes.append(f"Users' own texts were not completed. {problem}")
        return None
    options: dict[str, Any] = {"control_tokens": side.has_control_tokens, "progress": progress}
    return RealCompletion(
        tab_attack(chosen, trained, **options),
        tab_attack(chosen, trained.public, **options),
        None if others is None else tab_attack(others, trained, **options),
    )


def _some_users(
    corpus: UserCorpus, most: int, planted: frozenset[str], rng: np.random.Generator
) -> UserCorpus:
    """All texts, canaries apart, of so many users, who are drawn."""
    drawn = corpus.of_users([corpus.users[place] for place in rng.permutation(len(corpus.users))[:most]])
    return drawn.select(
        np.array([one.text.strip() not in planted for one in drawn.documents()], dtype=np.bool_)
    )


def _share(result: TabResult, confidence: float) -> dict[str, Any]:
    """One text of each user: they are independent, and the interval is exact."""
    return clopper_pearson(result.hits, len(result.canaries), confidence=confidence).to_json()


def _rungs(result: TabResult, confidence: float) -> list[dict[str, Any]]:
    rungs: dict[int, list[bool]] = {}
    for canary, hit in zip(result.canaries.canaries, result.reproduced, strict=True):
        rungs.setdefault(canary.repetitions, []).append(bool(hit))
    return [
        {
            "repetitions": many,
            "accuracy": clopper_pearson(sum(hits), len(hits), confidence=confidence).to_json(),
        }
        for many, hits in sorted(rungs.items())
    ]
