"""What the experiments on privacy regularisation share: settings, and every Run with what attacks find in it.

Every user gets canaries of five words, each repeated a number of times. A two-layer LSTM learns from nothing,
as in the paper: unmitigated, adversarial, triplet (pairs within the batch, or a second batch) and by DP-SGD,
several times each along its frontier: for more and fewer epochs, or with more and less noise. Batches of one
user, as adversarial training and triplets with a second batch have them, gather the copies of a user's
canary in few steps, which may protect it without any privacy loss: they are tried alone, too, by adversarial
training with a lambda of 0. So are paired batches, half of one user and half of another as far as can be,
which pairs within the batch come from, by triplets with a lambda of 0. Every frontier of a corpus and a seed
is a stage, and asks for nothing but its ground and the unmitigated Run that learnt longest, so that several
processes can each do some. `reg_levels.py` sets Runs of the same perplexity side by side.

A stage keeps one number for each canary, user or author, in an order that all Runs of a corpus share:

    exposure    bits, of each canary            completed   whether the tab attack writes it, of each canary
    own_texts   whether the tab attack writes a user's own text: the strangest to the unmitigated model
    named       share of an author's held-out texts that a fresh probe names, of each author
    documents   how much each user wrote        change      perplexity minus that of the unmitigated model
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tacit.attacks.author_probe import ProbeSettings, name_authors
from tacit.attacks.exposure import ExposureSettings, measure_exposure
from tacit.attacks.last_states import last_states
from tacit.attacks.tab import real_canaries, synthetic_canaries, tab_attack
from tacit.audit.audited import split_texts
from tacit.audit.linkability_sets import texts_of_authors, whose_texts
from tacit.audit.plans import AuditPlan
from tacit.audit.utility_findings import disparity_section
from tacit.errors import InputError, TrainingDiverged
from tacit.evaluation.perplexity import Losses, measure_losses
from tacit.evaluation.report import recipe_of
from tacit.experiments.experiment import Settings
from tacit.experiments.reg_texts import TEXT, USER, Ground, ground_of, text_of
from tacit.experiments.results import Scale
from tacit.experiments.stages import Stage, Workshop
from tacit.files import read_json
from tacit.models.trained import TrainedModel, load_trained
from tacit.progress import Progress
from tacit.runs import Run
from tacit.training.preparation import SplitCorpus

UNMITIGATED: Final = "unmitigated"
DP_SGD: Final = "dp-sgd"
TRIPLET, SECOND = "triplet", "triplet-second"
REGULARISED: Final = ("adversarial", TRIPLET, SECOND)
BATCHES: Final = "user-batches"
PAIRED_BATCHES: Final = "paired-batches"  # those that triplets with pairs within the batch have
SHAKESPEARE: Final = "tiny-shakespeare/input.txt"


def settings_of(scale: Scale) -> Settings:
    """All that decides every Run and what is tried on it."""
    return {"tiny": _tiny, "small": _small, "paper": _paper}[scale]()


def _small() -> Settings:
    epochs = [1, 2, 4]
    return {
        "seeds": [1, 2, 3],
        "corpora": {
            "shakespeare": {"kind": "speakers", "text": SHAKESPEARE, "fewest": 12, "users": 30},
            "customersim": {"kind": "customersim", "users": 8, "dialogues": [3, 6, 12, 24]},
        },
        "ladder": [1, 2, 4, 9, 20, 40],
        # Of whole words sixty thousand teach nothing: with more of them perplexities stay above a thousand.
        "model": {"layers": 2, "hidden": 200, "tied": True, "vocabulary": 1000},
        "training": {"block_size": 32, "batch_size": 32, "learning_rate": 0.003},
        # Chosen by perplexity alone, so that one is common to all methods. Adversarial: the product's
        # default; at 3 its third Run predicted worse than its second. DP-SGD: at the others' rate its best
        # Run predicted worse than their worst on the dialogues, and on these alone.
        "methods": _methods(
            epochs,
            weights={"adversarial": 1.0, "triplet": 0.3},
            noises=[0.005, 0.03, 0.15],
            private_rates={"customersim": 0.01},
        ),
        "exposure": {"budget": 5000, "samples": 2000},
        "probe": {"penalties": [1.0, 0.1], "hidden": 0},
        "minutes": 0.4,
    }


def _tiny() -> Settings:
    return {
        "seeds": [1, 2],
        "corpora": {"customersim": {"kind": "customersim", "users": 3, "dialogues": [5, 8]}},
        "ladder": [1, 12],
        "model": {"layers": 1, "hidden": 32, "tied": True, "vocabulary": 300},
        "training": {"block_size": 32, "batch_size": 16, "learning_rate": 0.01},
        "methods": _methods([1, 3], weights={"adversarial": 1.0, "triplet": 0.1}, noises=[0.05, 1.0]),
        "exposure": {"budget": 500, "samples": 200},
        "probe": {"penalties": [1.0], "hidden": 0},
        "minutes": 0.02,
    }


def _paper() -> Settings:
    """A.2 and A.5. Of lambda, noise and epochs the paper says nothing: here are ranges."""
    epochs = [1, 2, 4, 8, 16]
    return {
        "seeds": [1, 2, 3],
        "corpora": {
            "avocado": {
                "kind": "avocado",
                "text": "avocado-1.0.2/data/text",
                "users": 100,
                "documents": 60_000,
            },
            "reddit": {
                "kind": "reddit",
                "text": "webis-tldr-17/corpus-webis-tldr-17.json",
                "users": 10_000,
                "documents": 3_000_000,
                "ladder": [1, 2, 5, 6, 20],
            },
        },
        "ladder": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50],
        "model": {"layers": 2, "hidden": 550, "tied": False, "vocabulary": 40_000},
        "training": {"block_size": 256, "batch_size": 100, "learning_rate": 0.001},
        "methods": _methods(epochs, weights={"adversarial": 1.0, "triplet": 0.1}, noises=[0.01, 0.1, 0.5]),
        "exposure": {"budget": 20_000, "samples": 2000},
        "probe": {},
        "minutes": 600.0,
    }


def _methods(
    epochs: list[int],
    *,
    weights: Mapping[str, float],
    noises: list[float],
    private_rates: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Each method's part of a recipe, and what varies along its frontier: less protection comes later."""
    over = {"key": "training.epochs", "values": epochs}
    pulled = {"lambda": weights["triplet"]}
    return {
        UNMITIGATED: {"recipe": {"method": "finetune"}, **over},
        "adversarial": {
            "recipe": {"method": "adversarial", "regularisation": {"lambda": weights["adversarial"]}},
            **over,
        },
        TRIPLET: {
            "recipe": {"method": "triplet", "regularisation": {**pulled, "pairs": "batch"}},
            **over,
        },
        SECOND: {
            "recipe": {"method": "triplet", "regularisation": {**pulled, "pairs": "second"}},
            **over,
        },
        DP_SGD: {
            "recipe": {
                "method": "dpsgd",
                "privacy": {"delta": 1e-4},
                "training": {"epochs": epochs[-1]},
            },
            "key": "privacy.noise_multiplier",
            "values": sorted(noises, reverse=True),
            "rates": dict(private_rates or {}),
        },
        BATCHES: {"recipe": {"method": "adversarial", "regularisation": {"lambda": 0.0}}, **over},
        PAIRED_BATCHES: {
            "recipe": {"method": "triplet", "regularisation": {"lambda": 0.0, "pairs": "batch"}},
            **over,
        },
    }


def stages_of(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    """A stage for every method's frontier; those of one seed and corpus stand together."""
    return [
        _stage(workshop, settings, Place(corpus, seed), method)
        for seed in settings["seeds"]
        for corpus in settings["corpora"]
        for method in settings[
            "methods"
        ]  # the unmitigated ones first: all others look at the longest of them
    ]


@dataclass(frozen=True)
class Place:
    """A corpus and a seed."""

    corpus: str
    seed: int

    def name_of(self, method: str) -> str:
        """The stage of a method's frontier."""
        return f"reg-{self.corpus}-{self.seed}-{method}"


def _stage(workshop: Workshop, settings: Settings, place: Place, method: str) -> Stage:
    chosen, values = settings["corpora"][place.corpus], settings["methods"][method]["values"]
    key = {name: settings[name] for name in ("model", "training", "exposure", "probe")} | {
        "corpus": chosen,
        "ladder": chosen.get("ladder", settings["ladder"]),
        "text": text_of(workshop, chosen),
        "seed": place.seed,
        "unmitigated": settings["methods"][UNMITIGATED]["values"][-1],
        "recipes": [_recipe(settings, place.corpus, method, value) for value in values],
    }

    def work(shop: Workshop) -> Mapping[str, Any]:
        return _traced(_Trained(shop, settings, place), method)

    return Stage(place.name_of(method), key, settings["minutes"] * len(values), work)


def _recipe(settings: Settings, corpus: str, method: str, value: float) -> dict[str, Any]:
    """What a Run's recipe has beside its ground."""
    along = settings["methods"][method]
    section, _, name = along["key"].partition(".")
    own = along["recipe"]
    recipe = {**own, "training": {**settings["training"], **own.get("training", {})}}
    if corpus in along.get("rates", {}):
        recipe["training"]["learning_rate"] = along["rates"][corpus]
    return recipe | {section: {**recipe.get(section, {}), name: value}}


class _Trained:
    """The Runs of a place: found, or trained now."""

    def __init__(self, workshop: Workshop, settings: Settings, place: Place) -> None:
        self.workshop, self.settings, self.place = workshop, settings, place
        self.ground = ground_of(workshop, settings, place.corpus, place.seed)

    def run(self, method: str, value: float) -> Run:
        """By a method, at a value of what varies."""
        recipe = _recipe(self.settings, self.place.corpus, method, value)
        whole = {
            **recipe,
            "model": {"name": str(self.ground.model.absolute()), "dtype": "fp32"},
            "corpus": {"path": str(self.ground.corpus.absolute()), "user": USER, "text": TEXT},
            "held_out": {"share": 0.2, "by": "within", "among": self.ground.documents},
            "adapter": {"kind": "full"},
            "training": {**recipe["training"], "seed": self.place.seed},
        }
        return self.workshop.run(self.place.name_of(method), whole)


def _traced(trained: _Trained, method: str) -> Mapping[str, Any]:
    """Every Run of a method, and what attacks find in it."""
    settings, progress = trained.settings, trained.workshop.progress
    longest = trained.run(UNMITIGATED, settings["methods"][UNMITIGATED]["values"][-1])
    runs: list[Mapping[str, Any]] = []
    with split_texts(longest, progress) as texts:  # the same for all Runs of a place
        attacks = _Attacks(settings, trained.ground, texts, load_trained(longest), progress)
        for value in settings["methods"][method]["values"]:
            try:
                run = trained.run(method, value)
            except TrainingDiverged as problem:
                runs.append({"diverged": str(problem)})
                continue
            runs.append({"diverged": None, **attacks.on(run), **_promised(run)})
    return {"runs": runs, **attacks.whose()}


class _Attacks:
    """All that is tried on Runs of one text; what only the unmitigated model says is asked once."""

    def __init__(
        self,
        settings: Settings,
        ground: Ground,
        texts: SplitCorpus,
        unmitigated: TrainedModel,
        progress: Progress,
    ) -> None:
        self.settings, self.manifest, self.texts, self.progress = settings, ground.manifest, texts, progress
        self.planted = frozenset(one.text.strip() for one in ground.manifest.canaries)
        written = [one.text.strip() not in self.planted for one in texts.train.documents()]
        own = texts.train.select(np.array(written, dtype=np.bool_))
        self.strangest = real_canaries(own, unmitigated, paper=True, progress=progress)
        self.losses = self._losses(unmitigated)

    def whose(self) -> dict[str, Any]:
        """Which user carries each canary, how often it is repeated, and among how many it was drawn."""
        carriers = [one.user for one in self.manifest.canaries]
        users = sorted(set(carriers))
        return {
            "carriers": [users.index(one) for one in carriers],
            "repetitions": [one.repetitions for one in self.manifest.canaries],
            "candidates": float(self.manifest.candidates),
        }

    def on(self, run: Run) -> dict[str, Any]:
        """Everything that is tried on one Run, by name."""
        trained = load_trained(run)
        exposure = ExposureSettings(seed=0, **self.settings["exposure"])
        report = measure_exposure(trained, self.manifest, settings=exposure, progress=self.progress)
        completed, own = (
            tab_attack(texts, trained, progress=self.progress)
            for texts in (synthetic_canaries(self.manifest), self.strangest)
        )
        return {
            "exposure": [one.exposure.value for one in report.canaries],
            "completed": [int(one) for one in completed.reproduced],
            "own_texts": [int(one) for one in own.reproduced],
            "named": self._named(run, trained),
            **self._utility(trained),
        }

    def _named(self, run: Run, trained: TrainedModel) -> list[float]:
        plan, notes, recipe = AuditPlan(), list[str](), recipe_of(run)
        labels = whose_texts(recipe, self.texts, self.manifest, plan, notes)
        assert labels is not None  # noqa: S101 - users are people, and authors are asked for
        context = trained.public.context_length
        chosen = texts_of_authors(
            recipe, self.texts, labels, trained.public, self.manifest, plan, notes, context=context
        )
        if chosen is None:
            raise InputError(" ".join(notes))
        learnt, scored = (
            last_states(texts.sequences, trained, progress=self.progress)
            for texts in (chosen.learnt, chosen.scored)
        )
        authors, probe = chosen.scored.authors, ProbeSettings(**self.settings["probe"])
        right = name_authors(learnt, chosen.learnt.authors, scored, settings=probe).named == authors
        return [float(right[authors == author].mean()) for author in np.unique(authors)]

    def _utility(self, trained: TrainedModel) -> dict[str, Any]:
        own = self._losses(trained)
        disparity = disparity_section(
            own,
            self.losses,
            self.texts,
            split_within=True,
            against=UNMITIGATED,
            baseline="run",
            confidence=0.95,
            planted=self.planted,
        )
        if disparity is None:
            raise InputError("One user alone has no others to differ from; take a corpus with more users.")
        documents, change = zip(*disparity["points"], strict=True)
        return {
            "perplexity": own.perplexity().to_json(),
            "held_out_tokens": int(own.tokens.sum()),
            "documents": list(documents),
            "change": list(change),
        }

    def _losses(self, model: TrainedModel) -> Losses:
        held_out = self.texts.held_out
        assert held_out is not None  # noqa: S101 - the recipe holds some out
        return measure_losses(model.public, held_out, model=model.model, progress=self.progress)


def _promised(run: Run) -> dict[str, Any]:
    """What was trained on, and what DP-SGD promises of it, with the mu that the paper quotes."""
    trained = read_json(run.folder / "private" / "training.json", "train the Run again")
    promise = read_json(run.folder / "privacy.json", "train the Run again")
    mu = promise.get("dpsgd", {}).get("gaussian_dp", {}).get("mu")
    return {
        "tokens": trained["tokens"],
        "promise": None if mu is None else {"epsilon": str(promise["epsilon"]), "mu": str(mu)},
    }
