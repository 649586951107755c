"""Ensemble training: all members jointly, one by one, and a loop over plain PEFT models.

Prints, for each setting, the seconds of one step of the *whole ensemble* in three ways and their ratios:
"joint" is one batched pass over the shared base with stacked adapters, "one by one" is tacit's own loop over
members (fused LoRA, chunked head), "PEFT loop" is what a user would write with get_peft_model and the model's
own loss. The three take their steps in turn, so that a machine that slows down slows all; medians are shown.
Rows are full of random tokens. With a trunk, both of tacit's ways keep its hidden states (its one run is not
counted); the PEFT loop runs it in every step.

Run: python benchmarks/ensemble_training.py [--model NAME] [--members N] [--steps N] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tacit.models.adapters import attach
from tacit.models.loading import PublicModel, load_public_model
from tacit.models.tokenizer import load_tokenizer
from tacit.models.vocabulary import LSTMShape, create_lstm
from tacit.progress import Silent
from tacit.recipes import Recipe, parse_recipe
from tacit.training.encoding import EncodedCorpus, Rows, lay_out
from tacit.training.ensemble_joint import JointTask, clip_each_member
from tacit.training.ensemble_schedule import Member, MemberSchedule, stream_of
from tacit.training.ensemble_single import start_adapter
from tacit.training.next_token import NextTokenTask

Step = Callable[[int], None]


@dataclass(frozen=True)
class Setting:
    """What all three ways train."""

    model: str
    members: int
    batch: int
    block: int
    trunk: int

    def recipe(self) -> Recipe:
        return parse_recipe(
            {
                "method": "submix",
                "output": "unused",
                "corpus": {"path": "unused"},
                "adapter": {"trunk_layers": self.trunk},
                "training": {"max_steps": 1000, "batch_size": self.batch, "block_size": self.block},
            }
        )

    def public(self) -> PublicModel:
        return load_public_model(self.model)


def random_rows(public: PublicModel, setting: Setting, member: int) -> Rows:
    count = 2 * setting.batch
    generator = np.random.default_rng(member)
    tokens = generator.integers(1, len(public.tokenizer), count * setting.block).astype(np.int32)
    starts = np.arange(count + 1) * setting.block
    users = np.zeros(count, np.int64)
    encoded = EncodedCorpus(
        tokens,
        starts,
        users,
        ["u"],
        np.zeros(1, np.int64),
        public.start_token,
        np.arange(len(users)),
        len(users),
    )
    return lay_out(encoded, block_size=setting.block, packing=public.family == "transformer")


def optimiser_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)


def joint_way(setting: Setting, work: Path) -> Step:
    public, recipe = setting.public(), setting.recipe()
    members = [
        Member(number, f"m{number}", 1, random_rows(public, setting, number))
        for number in range(setting.members)
    ]
    streams = [stream_of(0, member.number) for member in members]
    task = JointTask(public, recipe, members)
    task.initialise(streams)
    task.cache_trunk(recipe.performance, work, Silent())
    schedules = [MemberSchedule(m.rows, recipe.training, s) for m, s in zip(members, streams, strict=True)]
    parameters, optimiser = list(task.stack.parameters()), optimiser_of(task.model)

    def step(number: int) -> None:
        optimiser.zero_grad(set_to_none=True)
        losses = task.summed_losses([schedule.batches_of(number)[0] for schedule in schedules])
        (losses / schedules[0].tokens_of(number)).sum().backward()  # type: ignore[no-untyped-call]
        clip_each_member(parameters, 1.0)
        optimiser.step()

    return step


def single_way(setting: Setting, work: Path) -> Step:
    """One member's task, run once per member: what one step of all members costs when they go in turn."""
    public, recipe = setting.public(), setting.recipe()
    rows = random_rows(public, setting, 0)
    task = NextTokenTask(public, recipe.adapter, rows, autocast=False, base_dropout=False)
    start_adapter(task.model, 0)
    task.cache_trunk(recipe.performance, work, Silent())
    schedule = MemberSchedule(rows, recipe.training, 0)
    optimiser = optimiser_of(task.model)
    parameters = [p for p in task.model.parameters() if p.requires_grad]

    def step(number: int) -> None:
        for _ in range(setting.members):
            optimiser.zero_grad(set_to_none=True)
            loss = task.summed_loss(task.make_batch(schedule.batches_of(number)[0]))
            (loss / schedule.tokens_of(number)).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()

    return step


def peft_way(setting: Setting, _: Path) -> Step:
    public = setting.public()
    model: Any = attach(public.model, setting.recipe().adapter)
    optimiser = optimiser_of(model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    ids = torch.from_numpy(random_rows(public, setting, 0).corpus.tokens.astype(np.int64))
    batch = ids.view(-1, setting.block)[: setting.batch]

    def step(_: int) -> None:
        for _ in range(setting.members):
            optimiser.zero_grad(set_to_none=True)
            model(input_ids=batch, labels=batch).loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()

    return step


def compare(setting: Setting, steps: int) -> list[float]:
    """Median seconds of one ensemble step: joint, one by one, PEFT loop."""
    with tempfile.TemporaryDirectory() as folder:
        ways: list[Step] = []
        for make in (joint_way, single_way, peft_way):
            work = Path(folder) / make.__name__
            work.mkdir()
            ways.append(make(setting, work))
        seconds: list[list[float]] = [[] for _ in ways]
        for number in range(steps + 1):
            for way, times in zip(ways, seconds, strict=True):
                began = time.perf_counter()
                way(number)
                times.append(time.perf_counter() - began)
    return [statistics.median(times[1:]) for times in seconds]  # the first pays for allocation


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer members and steps, top quarter only")
    options = parser.parse_args()
    members, steps = (4, 2) if options.quick else (options.members, options.steps)
    layers = len(load_public_model(options.model).layers)
    top = layers - layers // 4
    print(f"{torch.get_num_threads()} threads, fp32; seconds of one step of all {members} members")
    print("setting                                     joint  one by one  PEFT loop   1b1/joint  PEFT/joint")
    with tempfile.TemporaryDirectory() as folder:
        lstm = str(Path(folder) / "lstm")
        create_lstm(
            Path(lstm),
            shape=LSTMShape(layers=2, hidden_size=200, embedding_size=200),
            tokenizer=load_tokenizer(options.model),
            vocabulary="public",
            seed=0,
        )
        settings = [
            ("top quarter, 1 x 64", Setting(options.model, members, 1, 64, top)),
            ("top quarter, 1 x 256", Setting(options.model, members, 1, 256, top)),
        ]
        if not options.quick:
            settings += [
                ("top quarter, 4 x 128", Setting(options.model, members, 4, 128, top)),
                ("all layers, 1 x 64", Setting(options.model, members, 1, 64, 0)),
            ]
        settings += [("LSTM of 2 x 200, 4 x 64", Setting(lstm, members, 4, 64, 0))]
        for name, setting in settings:
            joint, single, peft = compare(setting, steps)
            print(
                f"{name:40} {joint:8.2f} {single:11.2f} {peft:10.2f} "
                f"{single / joint:11.2f} {peft / joint:11.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
