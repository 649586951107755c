"""What the SubMix experiments share: a corpus, the Runs that learn from it, what they say of held-out text.

Distributions of all members at all held-out queries are computed once and kept (`mechanism_kept`), so that a
sweep over budgets, queries, orders or mechanisms only mixes. A ground is a mapping of settings:

    name, model        how it is called; the public model, None for the tiny one that is made on the spot
    private, public    texts (`submix_texts`); on an ensemble of the public one targets are calibrated
    held_out, seed     share of the users that is measured on; of training and of the partition
    assign             how users are dealt to parts
    adapter, training  sections of the recipes
    batches            batches in one pass over the training text, dealt over however many members there are
    dpsgd              batch size, clipping bound and engine of DP-SGD
    support            tokens that distributions are kept over
    queries, surrogate_queries   held-out queries that are asked, at most
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tacit.evaluation.mechanism_blocks import HeldOutBlocks, blocks_of_text
from tacit.evaluation.mechanism_kept import KeptPmfs, keep_pmfs
from tacit.evaluation.mechanism_sweep import of_one_model
from tacit.evaluation.report import held_out_text
from tacit.experiments.results import Scale
from tacit.experiments.stages import Stage, Workshop, mark_of
from tacit.experiments.submix_texts import Text, corpus_of, text_key, told
from tacit.experiments.tiny_model import tiny_public_model
from tacit.files import new_file
from tacit.models.ensemble import load_ensemble
from tacit.models.loading import best_device
from tacit.models.trained import load_public_of
from tacit.runs import Run
from tacit.statistics import FloatArray

GroundSettings = Mapping[str, Any]

# What two cores do in a minute, about: tokens trained on, and queries asked of 17 models.
_SPEEDS: Final = {"smollm2-135m-instruct": (30_000, 1_800), "gpt2": (5_000, 1_500), None: (150_000, 20_000)}
_PARTITION_KEY: Final = "partition.key"
_PMFS: Final = "pmfs"


def wikitext(scale: Scale) -> GroundSettings:
    """Wikitext with the scale's model: the paper's is Wikitext-103 with GPT-2."""
    if scale == "tiny":
        return _tiny()
    if scale == "paper":
        text = {"kind": "wikitext", "file": "wikitext-103/wiki.train.tokens", "bytes": None, "block": 512}
        # 117.9 million tokens, of which a hundredth is held out, in batches of eight blocks.
        return _papers("wikitext-103", text, batches=28_480)
    private = {"kind": "wikitext", "file": "wikitext-2/train.txt", "bytes": 560_000, "block": 128}
    return {
        "name": "wikitext-2",
        "model": "smollm2-135m-instruct",
        "private": private,
        "public": {**private, "file": "wikitext-2/test.txt"},
        "held_out": 0.2,
        "assign": "hash",
        "seed": 1,
        "adapter": {"rank": 16, "alpha": 32, "trunk_layers": 24},
        "training": {"block_size": 128, "batch_size": 2, "learning_rate": 1e-3},
        "batches": 440,
        "dpsgd": {"batch_size": 64, "clip": 0.1, "engine": "auto"},
        "support": 512,
        "queries": 10_240,
        "surrogate_queries": 10_240,
    }


def bigpatent() -> GroundSettings:
    """The paper's second corpus: some 250,000 patents; that each has about 4,000 tokens is an estimate."""
    return _papers("bigpatent-g", {"kind": "bigpatent", "folder": "bigpatent/train/g"}, batches=240_000)


def patents() -> GroundSettings:
    """The small stand-in for BigPatent; its targets are calibrated on Wikitext."""
    text = {"kind": "patents", "file": "patents/abstracts.jsonl", "rows": 300, "seed": 1}
    return {
        **wikitext("small"),
        "name": "patents",
        "private": text,
        "public": None,
        "batches": 144,
        "queries": 4_096,
        "surrogate_queries": 0,
    }


def _papers(name: str, text: Text, *, batches: int) -> GroundSettings:
    """The paper's B.1 and B.2; it has no surrogate."""
    return {
        "name": name,
        "model": "gpt2",
        "private": text,
        "public": None,
        "held_out": 0.01,
        "assign": "balanced",
        "seed": 1,
        "adapter": {"kind": "full"},
        "training": {"block_size": 512, "batch_size": 8, "learning_rate": 1e-4},
        "batches": batches,
        "dpsgd": {"batch_size": 2048, "clip": 0.1, "engine": "auto"},
        "support": 2048,
        "queries": 204_800,
        "surrogate_queries": 0,
    }


def _tiny() -> GroundSettings:
    text = {"kind": "simulated", "users": 40, "dialogues": 1, "seed": 1}
    return {
        "name": "simulated",
        "model": None,
        "private": text,
        "public": {**text, "seed": 2},
        "held_out": 0.2,
        "assign": "hash",
        "seed": 1,
        "adapter": {"rank": 8, "alpha": 16},
        "training": {"block_size": 32, "batch_size": 4, "learning_rate": 1e-2},
        "batches": 64,
        "dpsgd": {"batch_size": 16, "clip": 0.1, "engine": "loop"},
        "support": 48,
        "queries": 640,
        "surrogate_queries": 320,
    }


@dataclass(frozen=True)
class Shape:
    """An ensemble: how many parts of how many models, on the private text or as a surrogate on the public."""

    parts: int
    halves: int = 2
    surrogate: bool = False


@dataclass(frozen=True)
class Learner:
    """What a Run of a ground is made by; ``passes`` over the text is what it costs."""

    label: str
    recipe: Mapping[str, Any]
    passes: float
    surrogate: bool = False


def members(ground: GroundSettings, shape: Shape) -> Learner:
    """An ensemble whose members together read the text once."""
    recipe = _base_recipe(ground)
    recipe["training"] |= {"max_steps": max(1, ground["batches"] // (shape.parts * shape.halves))}
    section = {"parts": shape.parts, "halves": shape.halves == 2, "assign": ground["assign"]}
    kind = "surrogate" if shape.surrogate else "ensemble"
    whole = {"method": "submix", **recipe, "ensemble": section}
    return Learner(f"{kind}-{shape.parts}x{shape.halves}", whole, 1.0, shape.surrogate)


def finetuned(ground: GroundSettings) -> Learner:
    """One model that read all of the text, without privacy."""
    recipe = _base_recipe(ground)
    recipe["training"] |= {"max_steps": ground["batches"]}
    return Learner("finetuned", {"method": "finetune", **recipe}, 1.0)


def by_dpsgd(ground: GroundSettings, epsilon: float, delta: float, epochs: int) -> Learner:
    """One model trained by DP-SGD; what is protected is a block, or a document of a user with documents."""
    recipe = _base_recipe(ground)
    section = ground["dpsgd"]
    recipe["training"] |= {"epochs": epochs, "batch_size": section["batch_size"]}
    privacy = {"epsilon": epsilon, "delta": delta, "clip": section["clip"]}
    whole = {"method": "dpsgd", **recipe, "privacy": privacy, "performance": {"engine": section["engine"]}}
    return Learner(f"dpsgd-{epochs}", whole, 1.3 * epochs)


def trained(ground: GroundSettings, shop: Workshop, learner: Learner) -> Stage:
    """The Run of a learner."""

    def work(shop: Workshop) -> Mapping[str, Any]:
        run = _run(ground, shop, learner)
        return {"run": run.folder.name, "guarantee": run.manifest.guarantee}

    training = ground["training"]
    tokens = learner.passes * ground["batches"] * training["batch_size"] * training["block_size"]
    minutes = tokens / _SPEEDS[ground["model"]][0]
    return Stage(f"train-{ground['name']}-{learner.label}", _key(ground, shop, learner), minutes, work)


def kept(ground: GroundSettings, shop: Workshop, shape: Shape, queries: int | None = None) -> Stage:
    """The distributions of an ensemble at held-out queries, kept; fewer than the ground's where asked for."""
    learner = members(ground, shape)
    most = ground["surrogate_queries"] if shape.surrogate else ground["queries"]
    count = most if queries is None else min(queries, most)
    key = _key(ground, shop, learner) | {"support": ground["support"], "queries": count}
    name = f"pmfs-{ground['name']}-{learner.label}"

    def work(shop: Workshop) -> Mapping[str, Any]:
        run = _run(ground, shop, learner)
        ensemble = load_ensemble(run)
        text = held_out_text(run, ensemble.public.tokenizer, shop.progress)
        size = ground["training"]["block_size"]
        every = blocks_of_text(text, ensemble.public, block_size=size, progress=shop.progress)
        folder = shop.folder / _PMFS / f"{name}-{mark_of(name, key)}"
        support = ground["support"]
        found = keep_pmfs(ensemble, enough(every, count), folder, support=support, progress=shop.progress)
        return {"folder": folder.name, "queries": int(found.blocks.starts[-1]), "blocks": len(found.blocks)}

    models = 1 + shape.parts * shape.halves
    return Stage(name, key, count / _SPEEDS[ground["model"]][1] * models / 17, work)


def kept_in(shop: Workshop, outcome: Mapping[str, Any]) -> KeptPmfs:
    """What a stage of :func:`kept` kept."""
    return KeptPmfs.open(shop.folder / _PMFS / outcome["folder"])


def said_by(ground: GroundSettings, shop: Workshop, learner: Learner, asked: Stage) -> Stage:
    """What one trained model says of the tokens that came, at the queries of ``asked``, a stage of `kept`."""
    key = {"training": _key(ground, shop, learner), "asked": asked.key}
    name = f"says-{learner.label}-at-{asked.name.removeprefix('pmfs-')}"

    def work(shop: Workshop) -> Mapping[str, Any]:
        blocks = kept_in(shop, shop.done(asked).outcome).blocks
        run = _run(ground, shop, learner)
        path = shop.folder / _PMFS / f"{name}-{mark_of(name, key)}.npy"
        if not path.exists():
            public = load_public_of(run, dtype=torch.float32, device=best_device())
            said = io.BytesIO()
            np.save(said, of_one_model(run, public, blocks, shop.progress))
            with new_file(path, private=True) as handle:
                handle.write(said.getvalue())
        return {"file": path.name, "guarantee": run.manifest.guarantee}

    return Stage(name, key, asked.key["queries"] / _SPEEDS[ground["model"]][1] / 6, work)


def log_probabilities(shop: Workshop, outcome: Mapping[str, Any]) -> FloatArray:
    """What a stage of :func:`said_by` found: [queries]."""
    found: FloatArray = np.load(shop.folder / _PMFS / outcome["file"])
    return found


@dataclass(frozen=True)
class Basis:
    """What most experiments begin with: an ensemble's kept distributions, and the fine-tuned model's."""

    stages: tuple[Stage, ...]
    asked: Stage
    said: Stage
    shape: Shape

    @classmethod
    def of(
        cls,
        ground: GroundSettings,
        shop: Workshop,
        shape: Shape,
        *,
        surrogate: bool,
        queries: int | None = None,
    ) -> Basis:
        """The stages of one shape."""
        asked = kept(ground, shop, shape, queries)
        tuned = finetuned(ground)
        said = said_by(ground, shop, tuned, asked)
        stages = [trained(ground, shop, members(ground, shape)), asked, trained(ground, shop, tuned), said]
        if surrogate:
            other = replace(shape, surrogate=True)
            stages += [trained(ground, shop, members(ground, other)), kept(ground, shop, other)]
        return cls(tuple(stages), asked, said, shape)


def conditions(ground: GroundSettings) -> tuple[str, ...]:
    """Model, text, tokens and passes, a sentence each."""
    training, batches = ground["training"], ground["batches"]
    tokens = batches * training["batch_size"] * training["block_size"]
    model = ground["model"] or "a tiny model made on the spot, which stands for no result"
    adapter = ground["adapter"]
    changed = "all weights" if adapter.get("kind") == "full" else f"LoRA of rank {adapter['rank']}"
    if adapter.get("trunk_layers"):
        changed += f" above layer {adapter['trunk_layers']}"
    said = [
        f"{ground['name']}: {told(ground['private'])}; {ground['held_out']:.0%} of the users are held out.",
        f"Public model: {model}. All members together, and the fine-tuned model, read about {tokens:,} "
        f"tokens once ({changed}, batches of {training['batch_size']} blocks of {training['block_size']}, "
        f"learning rate {training['learning_rate']:g}, seed {ground['seed']}): the more members, the fewer "
        "steps each. Each was trained once: intervals are about the held-out text, not about training.",
        f"Up to {ground['queries']:,} held-out queries, mixed over the {ground['support']} likeliest tokens "
        "and one outcome for all others: weights are a little too large, and charges a little off.",
    ]
    if ground["public"] is not None:
        said.append(f"Calibrated targets are chosen on an ensemble of {told(ground['public'])}.")
    return tuple(said)


def enough(blocks: HeldOutBlocks, queries: int | None) -> HeldOutBlocks:
    """The first blocks with so many queries, and one more: a stretch that is not full ends before it."""
    if queries is None:
        return blocks
    return blocks.first(int(np.searchsorted(blocks.starts, queries)) + 1)


def _key(ground: GroundSettings, shop: Workshop, learner: Learner) -> dict[str, Any]:
    text = text_key(shop, _text(ground, learner))
    return {"recipe": learner.recipe, "model": ground["model"], "text": text, "seed": ground["seed"]}


def _text(ground: GroundSettings, learner: Learner) -> Text:
    text: Text = ground["public" if learner.surrogate else "private"]
    return text


def _run(ground: GroundSettings, shop: Workshop, learner: Learner) -> Run:
    """The Run of a recipe, with what stands for files in their places."""
    corpus = corpus_of(shop, _text(ground, learner)) | {"public": learner.surrogate}
    model = {"name": ground["model"] or tiny_public_model(shop)}
    whole = {**learner.recipe, "model": model, "corpus": corpus}
    if "ensemble" in whole:
        whole["ensemble"] = {**whole["ensemble"], "key": str(partition_key(shop, ground["seed"]))}
    return shop.run(f"submix-{ground['name']}-{learner.label}", whole)


def partition_key(shop: Workshop, seed: int) -> Path:
    """Who is in which part is fixed beforehand; a partition that protects somebody draws its key."""
    digits = sha256(f"tacit experiment, partition {seed}".encode()).hexdigest()
    return shop.made_text(_PARTITION_KEY, {"seed": seed}, lambda: f"tacit partition key 1 {digits}\n")


def _base_recipe(ground: GroundSettings) -> dict[str, Any]:
    return {
        "held_out": {"share": ground["held_out"]},
        "adapter": ground["adapter"],
        "training": {**ground["training"], "seed": ground["seed"]},
    }
