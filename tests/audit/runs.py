"""Runs that were really trained on a corpus with canaries, for audits of whole Runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.corpus.canaries import CanaryManifest, draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.corpus.planting import plant
from tacit.recipes import parse_recipe
from tacit.runs import Run
from tacit.training.finetune import finetune
from tests.training.ensembles import sayings, write_sayings

HELD_OUT = {"share": 0.2, "by": "user", "seed": 0}


@dataclass(frozen=True)
class Audited:
    run: Run
    manifest: CanaryManifest


def planted_corpus(
    path: Path, *, users: int, said: int = 20, ladder: tuple[int, ...] = (12,), seed: int = 3
) -> CanaryManifest:
    """Sayings of so many people, some of whom carry canaries; written to ``path``."""
    everything = sayings(users=said)
    plan = CanaryPlan(
        template="My code is: {secret}", length=4, users=users, ladder=ladder, held_out_share=0.2, seed=seed
    )
    manifest = draw_canaries(
        plan,
        [who for who, _ in everything],
        documents=len(everything),
        characters=sum(len(text) for _, text in everything),
    )
    rows = plant(
        ({"who": who, "said": text} for who, text in everything),
        manifest,
        user_column="who",
        text_column="said",
    )
    write_sayings(path, [(row["who"], row["said"]) for row in rows])
    return manifest


def finetuned(model: Path, corpus: Path, output: Path, **training: Any) -> Run:
    """One model, all of whose weights were trained."""
    recipe = {
        "method": "finetune",
        "output": str(output),
        "model": {"name": str(model), "dtype": "fp32"},
        "corpus": {"path": str(corpus), "user": "who", "text": "said"},
        "held_out": HELD_OUT,
        "adapter": {"kind": "full"},
        "training": {"block_size": 48, "batch_size": 8, "seed": 1, **training},
    }
    return finetune(parse_recipe(recipe))
