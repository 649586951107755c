"""What CRT's frontier and attacks share: every Run with its promise, its perplexity and what leaks.

Six ways of training, on the same data points of the same corpus:

    nonprivate   on the raw text                       masked     on the text that the policy masked
    redacted     on the text that CRT sees: masked, and repeats masked as well; without noise
    dp-sgd       on the raw text, every data point private
    selective    selective DP-SGD on the raw text: noise on what the policy finds (LSTM only)
    crt          noise where a secret was masked or missed, plain steps on the rest

A cell is one of these on a corpus, with a model, at a share gamma of secrets that the policy misses and a
level of noise. Each cell is a stage: its Runs with all seeds. Frontier and attacks name the cells they need,
and those that both need are trained once. Perplexity is measured on raw held-out sentences, over the tokens
that are nobody's secret: whoever masks is not asked to write what it was kept from reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from tacit.attacks import GroupPlan, draw_groups, score_texts
from tacit.attacks.exposure import ExposureSettings, measure_exposure
from tacit.attacks.token_statistics import encode_texts, token_statistics
from tacit.audit.roc import auc
from tacit.errors import TrainingDiverged
from tacit.experiments.crt_models import LSTM, TRANSFORMER, model_of, public_facts, vocabulary_key
from tacit.experiments.crt_texts import TEXT, USER, Ground, Point, ground_of, screened, text_of
from tacit.experiments.experiment import Settings
from tacit.experiments.stages import Stage, Workshop
from tacit.files import read_json
from tacit.models.trained import TrainedModel, load_trained
from tacit.privacy import Certificate, DpSgdProcess, dpsgd_curve
from tacit.progress import Progress
from tacit.runs import Run
from tacit.statistics import FloatArray

READING: Final = "crt-public-text"
NONPRIVATE, MASKED, REDACTED = "nonprivate", "masked", "redacted"
DP_SGD, SELECTIVE, CRT = "dp-sgd", "selective", "crt"
# Rows at once, which change nothing but time: of selective steps each has a gradient of its own.
_NOISY_ROWS, _SELECTIVE_ROWS = 64, 4
_AGAIN: Final = "train the Run again"


@dataclass(frozen=True, order=True)
class Cell:
    """A way of training on a corpus; ``gamma`` and ``level`` where it has a policy and noise."""

    corpus: str
    model: str
    method: str
    gamma: float | None = None
    level: int | None = None

    @property
    def stage(self) -> str:
        """The name of its stage."""
        parts = ["crt", self.corpus, self.model, self.method]
        parts += [] if self.gamma is None else [f"gamma-{self.gamma:g}"]
        parts += [] if self.level is None else [f"level-{self.level}"]
        return "-".join(parts)


def stages_of(workshop: Workshop, settings: Settings, cells: Iterable[Cell]) -> list[Stage]:
    """What the transformer reads beforehand, where it is no model that is known, and every cell once."""
    stages = [stage_of(workshop, settings, cell) for cell in dict.fromkeys(cells)]
    if settings["public_text"] is None:
        return stages
    key = {"vocabulary": vocabulary_key(workshop, settings), "model": settings[TRANSFORMER]}
    minutes = settings["minutes"][TRANSFORMER][NONPRIVATE]
    return [Stage(READING, key, minutes, lambda shop: public_facts(shop, settings)), *stages]


def stage_of(workshop: Workshop, settings: Settings, cell: Cell) -> Stage:
    """All Runs of a cell, and what is measured on each."""
    chosen = settings["corpora"][cell.corpus]
    key = {
        **{name: settings[name] for name in ("seeds", "canaries", "measured", "exposure", "membership")},
        "corpus": chosen,
        "texts": text_of(workshop, chosen),
        "vocabulary": vocabulary_key(workshop, settings),
        "model": settings[cell.model],
        "recipe": _recipe(settings, cell),
        "gamma": cell.gamma,
        "ranks": "enumerated where samples do not reach them",
    }

    def work(shop: Workshop) -> Mapping[str, Any]:
        return {"runs": [_measured(shop, settings, cell, seed) for seed in settings["seeds"]]}

    return Stage(cell.stage, key, settings["minutes"][cell.model][cell.method], work)


def _recipe(settings: Settings, cell: Cell) -> dict[str, Any]:
    """What a Run's recipe has beside its ground."""
    training = settings["trainings"][cell.model]
    corpus = settings["corpora"][cell.corpus]
    privacy: dict[str, Any] = {}
    if cell.level is not None:
        privacy = {
            "delta": settings["delta"],
            "clip": training["clipping"][cell.method],
            **settings["levels"][cell.level],
        }
    match cell.method:
        case "dp-sgd":
            # A secret is replaced and its data point stays, whoever trains.
            return {
                "method": "dpsgd",
                "training": training[DP_SGD],
                "privacy": {**privacy, "adjacency": "replace-one"},
                "performance": {"microbatch": _NOISY_ROWS},
            }
        case "crt":
            return {
                "method": "crt",
                "training": _longer(training[CRT], corpus),
                "privacy": privacy,
                "public_phase": {
                    "learning_rate": training["plain"]["learning_rate"],
                    "batch_size": corpus["public_batch"],
                },
                "confidentiality": {"gamma": cell.gamma, "delta2": 0.0},
                "performance": {"microbatch": _NOISY_ROWS},
            }
        case "selective":
            return {
                "method": "selective",
                "training": training[SELECTIVE],
                "privacy": privacy,
                "selective": {"perfect": cell.gamma == 0},
                "performance": {"microbatch": _SELECTIVE_ROWS},
            }
        case "redacted":
            return {"method": "finetune", "training": _longer(training["plain"], corpus)}
    return {"method": "finetune", "training": training["plain"]}


def _longer(training: Mapping[str, Any], corpus: Mapping[str, Any]) -> dict[str, Any]:
    """As many epochs more as deduplication leaves less text to see in one."""
    return {**training, "epochs": training["epochs"] * corpus["shorter"]}


def trained(workshop: Workshop, settings: Settings, cell: Cell, seed: int) -> Run:
    """A Run of a cell: found, or trained now."""
    ground = ground_of(workshop, settings, cell.corpus, seed)
    recipe = _recipe(settings, cell)
    corpus = ground.corpus
    if cell.gamma is not None:
        marked = screened(workshop, ground, cell.gamma, dedup=cell.method in (REDACTED, CRT))
        if cell.method == SELECTIVE:
            recipe["selective"] = {**recipe["selective"], "screened": str(marked.absolute())}
        else:
            corpus = marked
    whole = {
        **recipe,
        "model": {"name": model_of(workshop, settings, cell.model, seed), "dtype": "fp32"},
        "corpus": {"path": str(corpus.absolute()), "user": USER, "text": TEXT},
        "held_out": None,
        "adapter": {"kind": "full"},
        "training": {**recipe["training"], "seed": seed},
    }
    return workshop.run(cell.stage, whole)


def _measured(workshop: Workshop, settings: Settings, cell: Cell, seed: int) -> Mapping[str, Any]:
    try:
        run = trained(workshop, settings, cell, seed)
    except TrainingDiverged as problem:
        return {"diverged": str(problem)}
    ground = ground_of(workshop, settings, cell.corpus, seed)
    model = load_trained(run)
    labels = settings["corpora"][cell.corpus]["attacked"]
    return {
        "diverged": None,
        **_perplexities(model, ground.held_out[: settings["measured"]], workshop.progress),
        **_exposures(model, ground, settings["exposure"], workshop.progress),
        **_memberships(model, ground, labels, settings["membership"], workshop.progress),
        **_counts(run),
        "promise": promise_of(run, cell, settings["delta"]),
    }


def _perplexities(model: TrainedModel, points: Sequence[Point], progress: Progress) -> dict[str, Any]:
    """Of held-out sentences: over tokens outside of secrets, and over all."""
    public = model.public
    texts = [point.text for point in points]
    found = token_statistics(
        encode_texts(texts, public.tokenizer, public.context_length), model, progress=progress
    )
    places = public.tokenizer.tokenizer(
        texts,
        add_special_tokens=False,
        split_special_tokens=True,
        return_offsets_mapping=True,
        verbose=False,
    )["offset_mapping"]
    other = np.array(
        [
            not any(start < span.end and end > span.start for span in point.spans)
            for point, offsets in zip(points, places, strict=True)
            for start, end in offsets
        ]
    )
    return {
        "perplexity": math.exp(found.losses[other].mean()),
        "perplexity_with_secrets": math.exp(found.losses.mean()),
        "held_out_tokens": int(other.sum()),
    }


def _exposures(model: TrainedModel, ground: Ground, section: Settings, progress: Progress) -> dict[str, Any]:
    """Of every canary; where samples do not reach its rank, all candidates are asked for."""
    settings = ExposureSettings(seed=0, **section)
    report = measure_exposure(model, ground.manifest, settings=settings, progress=progress)
    if any(one.method == "sampled" and one.rank_low == 1 for one in report.canaries):
        settings = replace(settings, full=True)
        report = measure_exposure(model, ground.manifest, settings=settings, progress=progress)
    return {
        "exposure": [one.exposure.value for one in report.canaries],
        "exact": all(one.method == "exact" for one in report.canaries),
        "candidates": float(ground.manifest.candidates),
    }


def _memberships(
    model: TrainedModel,
    ground: Ground,
    labels: Sequence[str] | None,
    section: Settings,
    progress: Progress,
) -> dict[str, Any]:
    """How well sentences, and groups of them, are told from others by perplexity."""
    found = ground.members(labels, section["members"])
    scores = score_texts(found.texts, model, progress=progress).scores
    plan = GroupPlan(section["members"], section["members"], section["groups"], section["size"])
    groups = draw_groups(found.is_member, found.secrets, plan, seed=0)
    sums = groups.sums(scores["perplexity"])
    right = (scores["perplexity"] > np.median(scores["perplexity"])) == found.is_member
    _, pairs = np.unique(np.asarray(found.secrets), return_inverse=True)
    return {
        "membership": told_apart(scores["perplexity"], found.is_member),
        # Of each pair of dialogues, which are what may be resampled: right answers, and all.
        "right": np.bincount(pairs, right).tolist(),
        "asked": np.bincount(pairs).tolist(),
        "groups": told_apart(sums, groups.is_member),
        "members": int(found.is_member.sum()),
    }


def told_apart(scores: FloatArray, is_member: Any) -> dict[str, float]:
    """The area under the curve, and the accuracy at the median of all, as in the paper."""
    inside, outside = scores[is_member], scores[~is_member]
    right = (scores > np.median(scores)) == is_member
    return {"auc": auc(inside, outside).value, "accuracy": float(right.mean())}


def _counts(run: Run) -> dict[str, Any]:
    content = read_json(run.folder / "private" / "training.json", _AGAIN)
    names = ("tokens", "documents", "private_points", "bare_points", "private_steps", "public_steps", "steps")
    return {name: content[name] for name in names if name in content}


def promise_of(run: Run, cell: Cell, delta: float) -> dict[str, Any]:
    """What is promised of a random secret at ``delta``; None is infinite.

    epsilon   for a secret that a mask replaces (replace-one), by the whole curve
    one_point the same by Theorem 8.3 as printed            training  of a secret that the policy misses
    paper_*   the same by the authors' account, an example that is added or removed
    """
    if cell.method == DP_SGD:
        process = DpSgdProcess.from_json(read_json(run.folder / "privacy.json", _AGAIN)["dpsgd"]["process"])
        own, paper = (dpsgd_curve(process, one).epsilon_at(delta) for one in ("replace-one", "add-remove"))
        return _promise(own, own, own, paper, paper, paper, process.noise_multiplier)
    if cell.method == CRT:
        found = Certificate.from_json(read_json(run.folder / "certificate.json", _AGAIN))
        return _promise(
            found.random_secret.epsilon,
            found.at_point.epsilon,
            found.training.epsilon,
            found.paper.random_secret.epsilon,
            found.paper.at_point.epsilon,
            found.paper.training.epsilon,
            found.process.noise_multiplier,
        )
    if cell.method == SELECTIVE:
        account = read_json(run.folder / "privacy.json", _AGAIN)["selective"]
        own = float(account["if_the_policy_misses_nothing"]) if cell.gamma == 0 else math.inf
        # The authors' figure presumes a perfect policy as well.
        paper = float(account["paper"]["epsilon"]) if cell.gamma == 0 else math.inf
        return _promise(own, own, own, paper, paper, paper, account["process"]["noise_multiplier"])
    nothing = 0.0 if cell.method != NONPRIVATE and cell.gamma == 0 else math.inf
    return _promise(nothing, nothing, nothing, nothing, nothing, nothing, 0.0)


def _promise(
    epsilon: float,
    one_point: float,
    training: float,
    paper_epsilon: float,
    paper_one_point: float,
    paper_training: float,
    noise: float,
) -> dict[str, Any]:
    found = {
        "epsilon": epsilon,
        "one_point": one_point,
        "training": training,
        "paper_epsilon": paper_epsilon,
        "paper_one_point": paper_one_point,
        "paper_training": paper_training,
        "noise": noise,
    }
    return {name: None if math.isinf(value) else value for name, value in found.items()}


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Every cell once, in the order in which they are named."""
    return list(dict.fromkeys(cells))


def has_selective(model: str) -> bool:
    """Selective DP-SGD is for one recurrent layer."""
    return model == LSTM
