"""The overview's settings, its Runs, and what attacks find in each.

Every method is trained several times along its dial, from more protection to less: for more epochs, with
less noise, or with larger budgets. Every frontier begins at the public model, which is what no training and
no budget come to. All are measured in one way on one text: perplexity per token of held-out users' turns, and

    exposure    bits, of each code: its exact rank among all codes of its length
    completed   whether a code's turn is written by the tab key: from its first word, greedily
    membership  area under the curve of telling turns with secrets that were trained on from held-out ones

Private prediction is attacked as an attacker meets it while the budget lasts: the mixture that answers are
drawn from, asked for every place. What he would have to pay for so many answers is not held against him.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tacit.attacks.ensemble_membership import score_texts_of_ensemble
from tacit.attacks.exposure import ExposureSettings, MechanismTarget, measure_exposure
from tacit.attacks.membership import MembershipScores, score_texts
from tacit.attacks.tab import synthetic_canaries, tab_attack
from tacit.attacks.token_statistics import LanguageModel
from tacit.audit.roc import auc
from tacit.errors import TrainingDiverged
from tacit.experiments.experiment import Settings
from tacit.experiments.overview_texts import SPANS, TEXT, USER, Ground, Row, ground_of, read_rows
from tacit.experiments.results import Scale
from tacit.experiments.stages import Stage, Workshop
from tacit.experiments.submix_ground import partition_key
from tacit.mechanisms.choice import MechanismChoice
from tacit.models.ensemble import Ensemble, load_ensemble
from tacit.models.loading import load_public_model
from tacit.models.trained import load_trained
from tacit.progress import Progress
from tacit.runs import Run
from tacit.statistics import bootstrap_over_users

PUBLIC: Final = "public"
UNMITIGATED: Final = "unmitigated"
MASKED: Final = "masked"
DP_SGD, CRT = "dp-sgd", "crt"
SUBMIX, CERTIFIED = "submix-guarded", "certified"
PREDICTED: Final = (SUBMIX, CERTIFIED)
_GUARD_TIMES: Final = 16  # as `tacit serve` has it: no answer costs a part more than so many times the price


def settings_of(scale: Scale) -> Settings:
    """All that decides every Run and what is tried on it."""
    return {"tiny": _tiny, "small": _small, "paper": _paper}[scale]()


def _small() -> Settings:
    return {
        "seeds": [1, 2, 3],
        "corpus": {"users": 40, "held_out": 20, "dialogues": 4, "seed": 1},
        "canaries": {"users": 20, "ladder": [1, 4, 16], "digits": 3},
        "policy": {"miss_rate": 0.1},
        "model": {
            "layers": 1,
            "hidden": 160,
            "vocabulary": 1000,
            "read": {"users": 40, "dialogues": 2, "seed": 101, "epochs": 10},
        },
        "training": {"block_size": 48, "batch_size": 32, "learning_rate": 0.004},
        "methods": _methods(
            epochs=[2, 5, 12],
            private={"epochs": 8, "batch_size": 256, "learning_rate": 0.003},
            # What is left of the text once repeats and secrets are masks is little, and soon learnt by heart.
            secret={"epochs": 2, "batch_size": 128, "learning_rate": 0.0005},
            apart={"batch_size": 32, "learning_rate": 0.0003},
            noisy={"dial": "privacy.epsilon", "values": [2.0, 8.0, 32.0]},
            weights={"adversarial": 3.0, "triplet": 0.3},
        ),
        "ensemble": {"parts": 4, "epochs": 12},
        "prediction": {"order": 2.0, "queries": 1024, "epsilons": [2.0, 16.0, 128.0]},
        "measured": {"turns": 200, "members": 100},
        "cost": {
            "model": {"kind": "lstm", "layers": 1, "width": 160, "vocabulary": 1000, "time": 16, "batch": 32},
            "rounds": 21,
            "tokens": 48,
        },
        "minutes": 0.3,
    }


def _tiny() -> Settings:
    return {
        "seeds": [1],
        "corpus": {"users": 6, "held_out": 3, "dialogues": 1, "seed": 1},
        "canaries": {"users": 4, "ladder": [1, 16], "digits": 2},
        "policy": {"miss_rate": 0.1},
        "model": {
            "layers": 1,
            "hidden": 24,
            "vocabulary": 300,
            "read": {"users": 4, "dialogues": 1, "seed": 101, "epochs": 2},
        },
        "training": {"block_size": 32, "batch_size": 16, "learning_rate": 0.01},
        "methods": _methods(
            epochs=[8],
            private={"epochs": 2, "batch_size": 64, "learning_rate": 0.01},
            secret={"epochs": 2, "batch_size": 64, "learning_rate": 0.01},
            apart={"batch_size": 16, "learning_rate": 0.01},
            noisy={"dial": "privacy.noise_multiplier", "values": [0.4]},
            weights={"adversarial": 1.0, "triplet": 0.1},
        ),
        "ensemble": {"parts": 2, "epochs": 4},
        "prediction": {"order": 2.0, "queries": 64, "epsilons": [256.0]},
        "measured": {"turns": 24, "members": 12},
        "cost": {
            "model": {"kind": "lstm", "layers": 1, "width": 24, "vocabulary": 300, "time": 8, "batch": 8},
            "rounds": 7,
            "tokens": 4,
        },
        "minutes": 0.03,
    }


def _paper() -> Settings:
    """The same with GPT-2 and a hundred times the text."""
    small = _small()
    return {
        **small,
        "seeds": [1, 2, 3, 4, 5],
        "corpus": {"users": 2000, "held_out": 400, "dialogues": 8, "seed": 1},
        "canaries": {"users": 100, "ladder": [1, 4, 16, 64], "digits": 4},
        "model": {"name": "gpt2"},
        "training": {"block_size": 64, "batch_size": 32, "learning_rate": 1e-4},
        "methods": _methods(
            epochs=[1, 2, 4],
            private={"epochs": 4, "batch_size": 2048, "learning_rate": 1e-4},
            secret={"epochs": 2, "batch_size": 1024, "learning_rate": 1e-4},
            apart={"batch_size": 32, "learning_rate": 1e-4},
            noisy={"dial": "privacy.epsilon", "values": [2.0, 8.0, 32.0]},
            weights={"adversarial": 3.0, "triplet": 0.3},
        ),
        "ensemble": {"parts": 8, "epochs": 4},
        "measured": {"turns": 2000, "members": 1000},
        "cost": {
            "model": {
                "kind": "transformer",
                "layers": 12,
                "width": 768,
                "vocabulary": 50_257,
                "time": 64,
                "batch": 16,
            },
            "rounds": 21,
            "tokens": 48,
        },
        "minutes": 240.0,
    }


def _methods(
    *,
    epochs: Sequence[int],
    private: Mapping[str, float],
    secret: Mapping[str, float],
    apart: Mapping[str, float],
    noisy: Mapping[str, Any],
    weights: Mapping[str, float],
) -> dict[str, Any]:
    """Each method's part of a recipe, and what its dial is: less protection comes later."""
    longer = {"dial": "training.epochs", "values": list(epochs)}
    own = {"training": dict(private), "privacy": {"delta": 1e-4}}
    within = {"triplet": {"pairs": "batch"}}  # whose step is what the cost is of
    return {
        UNMITIGATED: {"recipe": {"method": "finetune"}, **longer},
        MASKED: {"recipe": {"method": "finetune"}, **longer},
        **{
            name: {
                "recipe": {"method": name, "regularisation": {"lambda": weight, **within.get(name, {})}},
                **longer,
            }
            for name, weight in weights.items()
        },
        DP_SGD: {"recipe": {"method": "dpsgd", **own}, **noisy},
        CRT: {
            "recipe": {"method": "crt", **own, "training": dict(secret), "public_phase": dict(apart)},
            **noisy,
        },
    }


def stages_of(shop: Workshop, settings: Settings) -> list[Stage]:
    """The public model and every method, seed by seed."""
    del shop
    names = (PUBLIC, *settings["methods"], *PREDICTED)
    return [_stage(settings, name, seed) for seed in settings["seeds"] for name in names]


def stage_name(method: str, seed: int) -> str:
    """Of a method's frontier."""
    return f"overview-{seed}-{method}"


def _stage(settings: Settings, method: str, seed: int) -> Stage:
    shared = ("corpus", "canaries", "policy", "model", "training", "measured")
    key = {name: settings[name] for name in shared} | {"seed": seed}
    if method in PREDICTED:
        key |= {name: settings[name] for name in ("ensemble", "prediction")}
        count = 2.0 * len(settings["prediction"]["epsilons"])
    elif method == PUBLIC:
        count = 1.0
    else:
        key |= {"method": settings["methods"][method]}
        count = float(len(settings["methods"][method]["values"]))

    def work(shop: Workshop) -> Mapping[str, Any]:
        trained = SeedRuns(shop, settings, seed)
        if method == PUBLIC:
            return {"runs": [trained.found_in(load_public_model(trained.ground.public))]}
        return {"runs": trained.predicted(method) if method in PREDICTED else trained.along(method)}

    return Stage(stage_name(method, seed), key, settings["minutes"] * count, work)


@dataclass(frozen=True)
class _Texts:
    """What is scored of every model, in order: held-out turns, members' turns with secrets, codes."""

    held_out: Sequence[Row]
    members: Sequence[Row]
    codes: Sequence[str]

    @property
    def all(self) -> list[str]:
        return [*(row[TEXT] for row in (*self.held_out, *self.members)), *self.codes]


class SeedRuns:
    """The Runs of a seed, found or trained now, and what attacks find in them."""

    def __init__(self, shop: Workshop, settings: Settings, seed: int) -> None:
        self.shop, self.settings, self.seed = shop, settings, seed
        self.ground = ground_of(shop, settings, seed)
        self.texts = _texts_of(self.ground, settings["measured"])
        self._exposure = ExposureSettings(full=True, seed=0)

    @property
    def progress(self) -> Progress:
        return self.shop.progress

    def along(self, method: str) -> list[dict[str, Any]]:
        """One model for each place of the dial."""
        found: list[dict[str, Any]] = []
        for value in self.settings["methods"][method]["values"]:
            try:
                run = self._run(method, value)
            except TrainingDiverged as problem:
                found.append({"dial": value, "diverged": str(problem)})
                continue
            said = {"dial": value, "diverged": None, "guarantee": run.manifest.guarantee}
            found.append({**said, **self.found_in(load_trained(run))})
        return found

    def predicted(self, method: str) -> list[dict[str, Any]]:
        """One ensemble under one budget after the other."""
        ensemble = self.as_answered(load_ensemble(self.members()), method)
        return [self._answered(method, ensemble, each) for each in self.settings["prediction"]["epsilons"]]

    def as_answered(self, ensemble: Ensemble, method: str) -> Ensemble:
        """Certified mixing compares no halves, so that each is a part."""
        if method != CERTIFIED:
            return ensemble
        return replace(ensemble, parts=2 * ensemble.parts, halves=1)

    def found_in(self, model: LanguageModel) -> dict[str, Any]:
        """What attacks find in one model's weights."""
        public = getattr(model, "public", model)
        scores = score_texts(self.texts.all, model, public, progress=self.progress)
        completed = tab_attack(synthetic_canaries(self.ground.manifest), model, progress=self.progress)
        report = measure_exposure(
            model, self.ground.manifest, settings=self._exposure, progress=self.progress
        )
        return {
            "exposure": [one.exposure.value for one in report.canaries],
            "completed": [int(one) for one in completed.reproduced],
            **self._scored(scores),
            **self._whose(),
        }

    def _answered(self, method: str, ensemble: Ensemble, epsilon: float) -> dict[str, Any]:
        section = self.settings["prediction"]
        choice = choice_of(section, method, epsilon)
        found = score_texts_of_ensemble(ensemble, choice, self.texts.all, progress=self.progress)
        report = measure_exposure(
            MechanismTarget(ensemble, choice),
            self.ground.manifest,
            settings=self._exposure,
            progress=self.progress,
        )
        said = found.statistics
        first = len(self.texts.held_out) + len(self.texts.members)
        codes = range(first, first + len(self.texts.codes))
        return {
            "dial": epsilon,
            "diverged": None,
            "parts": ensemble.parts,
            "answers": float(epsilon * found.queries / found.charges.max()),
            "exposure": [one.exposure.value for one in report.canaries],
            "completed": [int(said.likeliest[said.of(place)][1:].all()) for place in codes],
            **self._scored(found.scores),
            **self._whose(),
        }

    def _scored(self, scores: MembershipScores) -> dict[str, Any]:
        held_out, members = self.texts.held_out, self.texts.members
        users = sorted({row[USER] for row in held_out})
        sums = np.zeros((len(users), 2))
        for place, row in enumerate(held_out):
            tokens = scores.tokens[place]
            sums[users.index(row[USER])] += scores.mean_losses[place] * tokens, tokens
        perplexity = bootstrap_over_users(sums, lambda totals: np.exp(totals[..., 0] / totals[..., 1]))
        score = scores["reference"]
        outside = [place for place, row in enumerate(held_out) if row[SPANS]]
        inside = slice(len(held_out), len(held_out) + len(members))
        return {"perplexity": perplexity.to_json(), "auc": auc(score[inside], score[outside]).to_json()}

    def _whose(self) -> dict[str, Any]:
        canaries = self.ground.manifest.canaries
        users = sorted({one.user for one in canaries})
        return {
            "carriers": [users.index(one.user) for one in canaries],
            "repetitions": [one.repetitions for one in canaries],
        }

    def _run(self, method: str, value: float) -> Run:
        recipe = recipe_of_method(self.settings, method, value)
        path = {MASKED: self.ground.masked, CRT: self.ground.screened}.get(method)
        corpus = {"path": str((path or self.ground.planted).absolute())}
        if path is None:
            corpus |= {USER: USER, TEXT: TEXT}
        if method == CRT:
            recipe["confidentiality"] = {"gamma": self.settings["policy"]["miss_rate"], "delta2": 0.0}
        return self.shop.run(f"overview-{self.seed}-{method}", self._whole(recipe, corpus))

    def members(self) -> Run:
        """The ensemble's Run: all members together read the text so often."""
        section, training = self.settings["ensemble"], self.settings["training"]
        documents = len(list(read_rows(self.ground.planted)))
        batches = section["epochs"] * documents / training["batch_size"]
        steps = max(1, round(batches / (2 * section["parts"])))
        recipe = {
            "method": "submix",
            "training": {**training, "max_steps": steps},
            "ensemble": {
                "parts": section["parts"],
                "halves": True,
                "key": str(partition_key(self.shop, self.seed)),
            },
        }
        corpus = {"path": str(self.ground.planted.absolute()), USER: USER, TEXT: TEXT}
        return self.shop.run(f"overview-{self.seed}-ensemble", self._whole(recipe, corpus))

    def _whole(self, recipe: Mapping[str, Any], corpus: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **recipe,
            "model": {"name": self.ground.public, "dtype": "fp32"},
            "corpus": corpus,
            "held_out": None,
            "adapter": {"kind": "full"},
            "training": {**recipe["training"], "seed": self.seed},
        }


def recipe_of_method(settings: Settings, method: str, value: float) -> dict[str, Any]:
    """What a Run's recipe has beside its ground."""
    along = settings["methods"][method]
    section, _, name = along["dial"].partition(".")
    own = along["recipe"]
    recipe = {**own, "training": {**settings["training"], **own.get("training", {})}}
    return recipe | {section: {**recipe.get(section, {}), name: value}}


def choice_of(section: Mapping[str, Any], method: str, epsilon: float) -> MechanismChoice:
    """The mechanism whose budget is in equal shares over the queries."""
    price = epsilon / section["queries"]
    if method == CERTIFIED:
        return MechanismChoice("certified", order=section["order"], target=price)
    return MechanismChoice("submix", order=section["order"], target=price, guard=_GUARD_TIMES * price)


def _texts_of(ground: Ground, section: Mapping[str, int]) -> _Texts:
    """The first turns in an order that no text decides, so that all users are among them."""
    draw = np.random.default_rng(0)
    held_out, turns = ground.held_out(), [row for row in ground.turns() if row[SPANS]]
    chosen, members = (
        [rows[place] for place in sorted(draw.permutation(len(rows))[:most])]
        for rows, most in ((held_out, section["turns"]), (turns, section["members"]))
    )
    return _Texts(chosen, members, [one.text for one in ground.manifest.canaries])
