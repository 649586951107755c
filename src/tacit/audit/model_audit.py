"""The audit of one model, whose weights are what is released: ranks and coins may refute a claim."""

from __future__ import annotations

from typing import Any

from tacit.attacks.look_alikes import canary_set
from tacit.attacks.membership import score_texts
from tacit.attacks.np_extraction import extract, prompted
from tacit.attacks.tab import TabResult, synthetic_canaries, tab_attack
from tacit.audit.audited import AuditedRun
from tacit.audit.bounds import EpsilonLowerBound
from tacit.audit.canary_findings import ExposureFinding, coin_bound, joined, pair_bound, shared
from tacit.audit.completion_chance import completion_leak
from tacit.audit.disparity import measure_disparity
from tacit.audit.documents import draw_documents
from tacit.audit.membership_findings import PRIMARY, MembershipFinding, named
from tacit.audit.nulls import exposure_band
from tacit.audit.record import AuditRecord, ClaimRecord
from tacit.audit.verdicts import Claim, Judgement, Leak, judge
from tacit.evaluation.perplexity import Losses, measure_losses
from tacit.models.trained import TrainedModel, load_trained
from tacit.privacy import Guarantee
from tacit.statistics import FloatArray, clopper_pearson

# Exposure, membership of canaries and of documents, tab completion: whether anything leaks is one question,
# and they share its error.
_ATTACKS = 4
_TRIES = (1, 10, 100, 1000, 10_000)
_CHANCES = (0.1, 0.5, 0.9)


class ModelAudit(AuditedRun):
    """One model, whose weights are what is released."""

    def record(self) -> AuditRecord:
        trained = load_trained(self.run, device=self.device)
        guarantee = Guarantee.from_json(self.run.manifest.guarantee)
        exposure = self.exposure(trained)
        if exposure is not None and exposure.inserted:
            self.leaks.append(_exposed(exposure, self._level))
        sets, scores = self._membership(trained)
        tab = self._tab(trained)
        utility, disparate = self._utility(trained)
        judgement = self._judged(guarantee, exposure, scores)
        claims = [] if judgement is None else [ClaimRecord.of(judgement)]
        sections = {
            "utility": utility,
            "exposure": None if exposure is None else exposure.to_json(),
            "membership": {"sets": [one.to_json() for one in sets]} if sets else None,
            "extraction": tab,
            "prediction": None,
            "disparity": disparate,
        }
        return self.finish(guarantee, claims, sections)

    @property
    def _level(self) -> float:
        return shared(self.plan.confidence, _ATTACKS)

    def _membership(
        self, trained: TrainedModel
    ) -> tuple[list[MembershipFinding], dict[str, FloatArray] | None]:
        sets: list[MembershipFinding] = []
        scored = None
        options: dict[str, Any] = {"confidence": self.plan.confidence, "seed": self.plan.seed}
        if self.manifest is not None:
            manifest = self.manifest
            texts = [one.text for one in manifest.canaries] + [one.twin_text for one in manifest.canaries]
            found = score_texts(texts, trained, trained.public, progress=self.progress)
            many = len(manifest.canaries)
            scored = {"secrets": found[PRIMARY][:many], "twins": found[PRIMARY][many:]}
            inserted = sum(one.inserted for one in manifest.canaries)
            if 2 <= inserted <= many - 2:
                chosen = canary_set(manifest)
                scores = {str(name): values[:many] for name, values in found.scores.items()}
                what = "Canaries that a coin put into the training text, against canaries that it left out."
                sets.append(
                    MembershipFinding.of("canaries", what, chosen.texts, chosen.is_member, scores, **options)
                )
        sets += self._documents(trained, options)
        for one in sets:
            self.leaks.extend(one.leaks(self._level))
            if one.flagged:
                self.notes.append(
                    f"The texts of the set '{one.name}' tell members from others without any model; its "
                    "attacks show nothing about the model."
                )
        return sets, scored

    def _documents(self, trained: TrainedModel, options: dict[str, Any]) -> list[MembershipFinding]:
        held_out = self.texts.held_out
        if held_out is None or not self.plan.documents:
            self.notes.append("Nothing was held out, or no documents were asked for: they were not scored.")
            return []
        drawn = draw_documents(
            self.texts.train, held_out, self.manifest, most=self.plan.documents, seed=self.plan.seed
        )
        if not drawn.is_enough:
            self.notes.append("Too few users to compare training documents with held-out ones.")
            return []
        found = score_texts(
            drawn.texts,
            trained,
            trained.public,
            control_tokens=drawn.control_tokens,
            progress=self.progress,
        )
        what = "One training document of each user, against one held-out document of others."
        return [
            MembershipFinding.of("documents", what, drawn.texts, drawn.is_member, named(found), **options)
        ]

    def _tab(self, trained: TrainedModel) -> dict[str, Any] | None:
        if self.manifest is None or not any(one.inserted for one in self.manifest.canaries):
            return None
        canaries = synthetic_canaries(self.manifest)
        own = tab_attack(canaries, trained, progress=self.progress)
        public = tab_attack(canaries, trained.public, progress=self.progress)
        self.leaks.append(completion_leak(own, self.manifest, confidence=self._level))
        tries = extract(prompted(self.manifest), trained, progress=self.progress)
        return {
            "tab": {
                "accuracy": own.accuracy().to_json(),
                "attainable": own.largest_accuracy,
                "public": public.accuracy().to_json(),
                "per_repetition": _tab_rungs(own),
            },
            "tries": {
                "rows": [
                    {
                        "p": chance,
                        "median_tries": _median(tries.tries(chance)),
                        "within": [
                            {"tries": many, "share": tries.share(many, chance).to_json()} for many in _TRIES
                        ],
                    }
                    for chance in _CHANCES
                ]
            },
            "codes": None,
        }

    def _utility(self, trained: TrainedModel) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        held_out = self.texts.held_out
        if held_out is None:
            return None, None

        def losses(model: TrainedModel | None) -> Losses:
            return measure_losses(
                trained.public,
                held_out,
                block_size=self.plan.block_size,
                model=None if model is None else model.model,
                progress=self.progress,
            )

        public, own = losses(None), losses(trained)
        against = None if self.plan.against is None else losses(self._unmitigated())
        utility = {
            "public": public.perplexity().to_json(),
            "run": own.perplexity().to_json(),
            "unmitigated": None if against is None else against.perplexity().to_json(),
            "text": f"held-out text of {len(own.users)} users, blocks of {own.block_size} tokens",
        }
        if against is None or len(own.users) < 2 or self.plan.against is None:
            return utility, None
        counts = dict(zip(self.texts.whole.users, self.texts.whole.document_counts().tolist(), strict=True))
        samples = [counts[user] for user in own.users]
        mitigated, unmitigated = own.perplexity_by_user(), against.perplexity_by_user()
        found = measure_disparity(mitigated, unmitigated, samples, confidence=self.plan.confidence)
        return utility, {
            "against": self.plan.against.folder.absolute().name,
            "users": found.users,
            "compared": found.compared,
            "mean": found.mean.to_json(),
            "top": found.most.to_json(),
            "bottom": found.fewest.to_json(),
            "gap": found.gap.to_json(),
            "slope": None if found.slope is None else found.slope.to_json(),
            "points": [
                [count, change]
                for count, change in zip(samples, (mitigated - unmitigated).tolist(), strict=True)
            ],
            "caveats": list(found.caveats),
        }

    def _unmitigated(self) -> TrainedModel:
        against = self.plan.against
        assert against is not None  # noqa: S101 - the caller asked
        return load_trained(against, device=self.device)

    def _judged(
        self, guarantee: Guarantee, exposure: ExposureFinding | None, scores: dict[str, FloatArray] | None
    ) -> Judgement | None:
        """The claim against what ranks and coins refute, each at its share of the error."""
        if exposure is None or scores is None or self.manifest is None:
            return None
        claim = Claim.of(guarantee, neighbours="add/remove", delta=self.plan.delta)
        delta = self.plan.delta if claim.delta is None else claim.delta
        levels: dict[str, Any] = {"unit": guarantee.unit, "delta": delta}
        coins = None
        if self.plan.manifest is not None and self.manifest.canaries == self.plan.manifest.canaries:
            coins = coin_bound(
                self.manifest,
                scores["secrets"],
                confidence=shared(self.plan.confidence, 2),
                seed=self.plan.seed,
                **levels,
            )
        left = self.plan.confidence if coins is None else shared(self.plan.confidence, 2)
        ranks = exposure.bound(neighbours="add/remove", confidence=left, **levels)
        bound = joined([ranks, coins])
        if bound is None:
            self.notes.append("Too few canaries were inserted to bound epsilon.")
            return None
        best = exposure.detectable(neighbours="add/remove", confidence=self.plan.confidence, **levels)
        pairs = self._pairs(scores, **levels)
        if pairs is not None:
            self.notes.append(
                f"Telling inserted secrets from their twins refutes epsilon below {pairs.epsilon:.3g} for "
                f"one text in another's place ({pairs.method})."
            )
        return judge(claim, bound, best, attacks=self.leaks)

    def _pairs(self, scores: dict[str, FloatArray], **levels: Any) -> EpsilonLowerBound | None:
        assert self.manifest is not None  # noqa: S101 - the caller looked
        inserted = [place for place, one in enumerate(self.manifest.canaries) if one.inserted]
        return pair_bound(
            scores["secrets"][inserted],
            scores["twins"][inserted],
            confidence=self.plan.confidence,
            seed=self.plan.seed,
            **levels,
        )


def _exposed(finding: ExposureFinding, confidence: float) -> Leak:
    """The most exposed canary against the null of the maximum of as many."""
    top = max(finding.inserted, key=lambda one: one.exposure.value)
    null = exposure_band(
        candidates=finding.manifest.candidates, canaries=len(finding.inserted), confidence=confidence
    )
    return Leak(
        "exposure of the most exposed canary in bits, against the limit of chance", top.exposure, null.limit
    )


def _tab_rungs(result: TabResult) -> list[dict[str, Any]]:
    rungs: dict[int, list[bool]] = {}
    for canary, hit in zip(result.canaries.canaries, result.reproduced, strict=True):
        rungs.setdefault(canary.repetitions, []).append(bool(hit))
    return [
        {"repetitions": many, "accuracy": clopper_pearson(sum(hits), len(hits)).to_json()}
        for many, hits in sorted(rungs.items())
    ]


def _median(values: Any) -> float | None:
    ordered = sorted(float(value) for value in values)
    middle = ordered[len(ordered) // 2]
    return middle if middle < float("inf") else None
