"""The audit of one model, whose weights are what is released: ranks and coins may refute a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tacit.attacks.membership import MembershipScores, score_texts
from tacit.audit.audited import AuditedRun
from tacit.audit.bounds import EpsilonLowerBound, strongest
from tacit.audit.canary_findings import (
    ExposureFinding,
    coin_bound,
    coins_detectable,
    coins_speak,
    joined,
    pair_bound,
    shared,
)
from tacit.audit.certificate_part import certificate_part
from tacit.audit.claimed import JudgedClaim, claim_to_judge, process_of
from tacit.audit.completion_findings import SyntheticCompletion, complete_real_canaries
from tacit.audit.linkability_findings import guesses_in_training, measure_linkability
from tacit.audit.linkability_sets import Labels, texts_of_authors, whose_texts
from tacit.audit.membership_findings import PRIMARY, MembershipFinding, named
from tacit.audit.membership_sets import NamedSet, canaries_by_coin, documents_of
from tacit.audit.record import AuditRecord, ClaimRecord
from tacit.audit.utility_findings import PUBLIC_NAME, disparity_section, utility_section
from tacit.audit.verdicts import Judgement, judge
from tacit.audit.whole_curve import CurveFinding, WholeCurve, gaussian_bound, gaussian_coin_bound
from tacit.errors import InputError, TrainingDiverged
from tacit.evaluation.perplexity import Losses, measure_losses
from tacit.evaluation.report import recipe_of
from tacit.files import read_json
from tacit.models.trained import TrainedModel, load_trained
from tacit.privacy import Guarantee
from tacit.statistics import FloatArray


@dataclass(frozen=True)
class CanaryScores:
    """All scores of the manifest's canaries, and behind them of their twins."""

    found: MembershipScores
    many: int

    @property
    def named(self) -> dict[str, FloatArray]:
        """The canaries' scores by name."""
        return {name: values[: self.many] for name, values in named(self.found).items()}

    @property
    def secrets(self) -> FloatArray:
        """What coins are guessed by."""
        return self.found[PRIMARY][: self.many]

    @property
    def twins(self) -> FloatArray:
        """The same for the twins."""
        return self.found[PRIMARY][self.many :]


class ModelAudit(AuditedRun):
    """One model, whose weights are what is released."""

    def record(self) -> AuditRecord:
        certificate = certificate_part(self.run)  # a damaged one is refused before anything is computed
        lines = self.lines()
        labels = whose_texts(recipe_of(self.run), self.texts, self.manifest, self.plan, self.notes)
        trained = load_trained(self.run, device=self.device)
        guarantee = Guarantee.from_json(self.run.manifest.guarantee)
        control = self._control()
        exposure = self.exposure(trained, control)
        if exposure is not None:
            self.tried += exposure.attempts()
        sets, scores = self._membership(trained, lines)
        completions = self._completions(trained, control, 1 if exposure is None else exposure.target.nested)
        utility, disparate = self._utility(trained, control)
        claims = self._judged(guarantee, exposure, scores, self._scores_of(control))
        sections = {
            "certificate": certificate,
            "utility": utility,
            "exposure": None if exposure is None else exposure.to_json(),
            "membership": {"sets": [one.to_json() for one in sets]} if sets else None,
            "extraction": completions,
            "prediction": None,
            "linkability": None if labels is None else self._linkability(labels, trained, control),
            "disparity": disparate,
        }
        return self.finish(guarantee, claims, sections)

    def _scores_of(self, model: TrainedModel | None) -> CanaryScores | None:
        if self.manifest is None or model is None:
            return None
        texts = [one.text for one in self.manifest.canaries] + [
            one.twin_text for one in self.manifest.canaries
        ]
        found = score_texts(texts, model, model.public, progress=self.progress)
        return CanaryScores(found, len(self.manifest.canaries))

    def _membership(
        self, trained: TrainedModel, lines: NamedSet | None
    ) -> tuple[list[MembershipFinding], CanaryScores | None]:
        sets: list[MembershipFinding] = []
        scored, recipe = self._scores_of(trained), recipe_of(self.run)
        if self.manifest is not None and scored is not None:
            by_coin = canaries_by_coin(self.manifest)
            if by_coin is not None:
                sets.append(self.membership(by_coin, scored.named))
        for chosen in (
            documents_of(recipe, self.texts, self.manifest, self.plan, self.notes),
            lines,
        ):
            if chosen is None:
                continue
            found = score_texts(
                chosen.found.texts,
                trained,
                trained.public,
                control_tokens=chosen.control_tokens,
                progress=self.progress,
            )
            sets.append(self.membership(chosen, named(found)))
        for one in sets:
            self.tried += one.attempts()
        return sets, scored

    def _completions(
        self, trained: TrainedModel, control: TrainedModel | None, nested: int
    ) -> dict[str, Any] | None:
        synthetic = None
        if self.manifest is not None and any(one.inserted for one in self.manifest.canaries):
            synthetic = SyntheticCompletion.of(
                self.manifest, trained, self.progress, confidence=self.plan.confidence, nested=nested
            )
            self.tried += synthetic.attempts(self.plan.confidence)
        real = complete_real_canaries(
            self.texts,
            trained,
            control,
            choice=self.plan.real,
            users=self.plan.real_users,
            planted=self._planted(),
            seed=self.plan.seed,
            notes=self.notes,
            progress=self.progress,
        )
        if real is not None:
            self.tried += real.attempts(self.plan.confidence)
        if synthetic is None and real is None:
            return None
        return {
            "tab": None if synthetic is None else synthetic.to_json(confidence=self.plan.confidence),
            "tab_real": None if real is None else real.to_json(confidence=self.plan.confidence),
            "tries": None if synthetic is None else {"rows": synthetic.tries},
            "codes": None if synthetic is None else synthetic.codes,
        }

    def _linkability(
        self, labels: Labels, trained: TrainedModel, control: TrainedModel | None
    ) -> dict[str, Any] | None:
        """What a fresh probe tells of authors: it describes, and is none of the attempts."""
        contexts = [one.public.context_length for one in (trained, control) if one is not None]
        chosen = texts_of_authors(
            recipe_of(self.run),
            self.texts,
            labels,
            trained.public,
            self.manifest,
            self.plan,
            self.notes,
            context=min(contexts),
        )
        if chosen is None:
            return None
        found = measure_linkability(
            chosen,
            trained,
            trained.public,
            control,
            confidence=self.plan.confidence,
            seed=self.plan.seed,
            progress=self.progress,
        )
        path = self.run.folder / "private" / "training.json"
        told = read_json(path, "train the Run again") if path.exists() else {}
        return found.to_json() | {"discriminator": guesses_in_training(told)}

    def _utility(
        self, trained: TrainedModel, control: TrainedModel | None
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        held_out, split = self.texts.held_out, recipe_of(self.run).held_out
        if held_out is None or split is None:
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
        run = self.plan.against
        try:
            against = None if control is None else losses(control)
        except TrainingDiverged:
            assert run is not None  # noqa: S101 - the control is what it says
            raise InputError(
                f"{run.folder} diverged in training, and nothing compares with it; give another --against."
            ) from None
        disparity = disparity_section(
            own,
            public if against is None else against,
            self.texts,
            split_within=split.by == "within",
            against=PUBLIC_NAME if run is None else run.folder.absolute().name,
            baseline="public" if run is None else "run",
            confidence=self.plan.confidence,
            planted=self._planted(),
        )
        return utility_section(public, own, against, confidence=self.plan.confidence), disparity

    def _planted(self) -> frozenset[str]:
        """Texts that nobody wrote; without spaces around them, as a screening leaves them."""
        return frozenset(
            () if self.manifest is None else (one.text.strip() for one in self.manifest.canaries)
        )

    def _control(self) -> TrainedModel | None:
        against = self.plan.against
        return None if against is None else load_trained(against, device=self.device)

    def _judged(
        self,
        guarantee: Guarantee,
        exposure: ExposureFinding | None,
        scores: CanaryScores | None,
        control: CanaryScores | None,
    ) -> list[ClaimRecord]:
        """The claim against what ranks and coins refute, each at its share of the error."""
        if exposure is None or scores is None or self.manifest is None:
            return []
        judged = claim_to_judge(self.run, guarantee, self.manifest, self.texts, delta=self.plan.delta)
        self.notes += judged.notes
        claim = judged.claim
        delta = self.plan.delta if claim.delta is None else claim.delta
        levels: dict[str, Any] = {"unit": judged.unit, "delta": delta}
        bound = self._bound(exposure, scores, levels, judged)
        if bound is None:
            self.notes.append("Too few canaries were inserted to bound epsilon.")
            return []
        best = self._detectable(exposure, levels, judged)
        without = None
        if exposure.control is not None and control is not None:
            without = self._bound(exposure.of_control(), control, levels, judged)
        inserted = [place for place, one in enumerate(self.manifest.canaries) if one.inserted]
        pairs = pair_bound(
            scores.secrets[inserted],
            scores.twins[inserted],
            confidence=self.plan.confidence,
            seed=self.plan.seed,
            **levels,
        )
        # Of several insertions, one unit's text is not one of the pair's but all of them: nothing to say.
        if pairs is not None and pairs.epsilon > 0 and judged.insertions == 1:
            self.notes.append(
                f"Telling inserted secrets from their twins refutes epsilon below {pairs.epsilon:.3g} for "
                f"one text in another's place ({pairs.method})."
            )
        found = judge(claim, bound, best, control=without)
        whole = self._whole_curve(exposure, scores, judged, found)
        return [ClaimRecord.of(found), *([] if whole is None else [whole])]

    def _whole_curve(
        self, exposure: ExposureFinding, scores: CanaryScores, judged: JudgedClaim, point: Judgement
    ) -> ClaimRecord | None:
        """All of what DP-SGD claims, of which its (epsilon, delta) is a point."""
        process = process_of(self.run)
        curve = None if process is None else WholeCurve.of(process, judged)
        if curve is None or not exposure.inserted or exposure.drawn_from < 2:
            return None
        assert self.manifest is not None  # noqa: S101 - the caller looked
        drawn_from, each = exposure.drawn_from, self._each(judged)
        options: dict[str, Any] = {"delta": point.bound.delta, "confidence": each}
        gaussian = [gaussian_bound(exposure.ranks, drawn_from, judged, **options)]
        if self._with_coins(judged):
            gaussian.append(
                gaussian_coin_bound(self.manifest, scores.secrets, seed=self.plan.seed, **options)
            )
        control = None
        if exposure.control is not None:
            control = curve.p_value(exposure.of_control().ranks, drawn_from)
        found = CurveFinding(
            curve,
            curve.p_value(exposure.ranks, drawn_from),
            curve.p_value([1] * len(exposure.inserted), drawn_from),
            control,
            strongest(gaussian),
            1 - each,
        )
        return found.claim(point)

    def _bound(
        self,
        exposure: ExposureFinding,
        scores: CanaryScores,
        levels: dict[str, Any],
        judged: JudgedClaim,
    ) -> EpsilonLowerBound | None:
        """What ranks and coins refute of one model; the same for the control."""
        assert self.manifest is not None  # noqa: S101 - the caller looked
        coins = None
        if self._with_coins(judged):
            options: dict[str, Any] = {"confidence": self._each(judged), "seed": self.plan.seed}
            coins = coin_bound(self.manifest, scores.secrets, **options, **levels)
        ranks = exposure.bound(
            neighbours=judged.neighbours,
            insertions=judged.insertions,
            confidence=self._each(judged),
            **levels,
        )
        return joined([ranks, coins])

    def _detectable(
        self, exposure: ExposureFinding, levels: dict[str, Any], judged: JudgedClaim
    ) -> EpsilonLowerBound | None:
        """What :meth:`_bound` would be, at the same shares of the error, had every guess been right."""
        assert self.manifest is not None  # noqa: S101 - the caller looked
        coins = None
        if self._with_coins(judged):
            coins = coins_detectable(self.manifest, confidence=self._each(judged), **levels)
        ranks = exposure.detectable(
            neighbours=judged.neighbours,
            insertions=judged.insertions,
            confidence=self._each(judged),
            **levels,
        )
        return joined([ranks, coins])

    def _with_coins(self, judged: JudgedClaim) -> bool:
        """Whether coins are evidence beside ranks: as drawn, and about the claim's neighbours."""
        assert self.manifest is not None  # noqa: S101 - the caller looked
        whole = self.plan.manifest is not None and self.manifest.canaries == self.plan.manifest.canaries
        return whole and judged.coins and coins_speak(self.manifest)

    def _each(self, judged: JudgedClaim) -> float:
        """The confidence of ranks and of coins: both share the error where there are both."""
        return shared(self.plan.confidence, 2 if self._with_coins(judged) else 1)
