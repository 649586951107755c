"""A DP-SGD step against the ordinary step of the same model, with Opacus beside it.

For each setting, prints the time of a private step over that of the non-private step, as the median over
pairs that are taken in turn in one process, with the smallest and largest. Time is this process's own on
the processor, on one thread, so that other work counts as little as possible. The non-private step is
tacit's own: head in blocks, fused AdamW, no clipping. Then, for each way in a process of its own, how far
memory grows in three steps over what it was before, relative to the non-private step.

chosen         what `engine: auto` picks on made-up rows
book-keeping   the whole batch at once; "torch" has torch's own products for Gram matrices too, as on machines
               where oneDNN is no faster
no noise       book-keeping with noise 0: what clipping alone costs
loop           one example at a time
transformers   the non-private step with the model's own full logits
Opacus         per-sample gradients by hooks, and ghost clipping; ghost refuses tied weights, so that it runs
               an untied model against an untied non-private step. Its LSTM is its own DPLSTM.

Run: python benchmarks/dp_step.py [--rounds N] [--setting NAME] [--no-memory]
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from tacit.models.fused_lora import fuse_lora
from tacit.models.lstm import LSTMConfig, LSTMForCausalLM
from tacit.models.process import keep_freed_memory
from tacit.training.encoding import Batch, IntArray
from tacit.training.private_steps import (
    Examples,
    NextTokenObjective,
    PrivateTrainer,
    StepPerformance,
    StepPrivacy,
)

Step = Callable[[], Any]
OURS = ("chosen", "book-keeping", "book-keeping torch", "book-keeping no noise", "loop")
OPACUS = ("Opacus hooks", "Opacus ghost")


@dataclass(frozen=True)
class Setting:
    """A model's shape and a batch."""

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    time: int
    batch: int
    lora: bool = False

    @property
    def is_lstm(self) -> bool:
        return self.heads == 0

    def model(self, *, tied: bool = True, fused: bool = True) -> nn.Module:
        torch.manual_seed(0)
        if self.is_lstm:
            built: nn.Module = LSTMForCausalLM(
                LSTMConfig(self.vocabulary, self.width, self.width, self.layers)
            )
            return built.train()
        built = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=self.vocabulary,
                n_positions=max(128, self.time),
                n_embd=self.width,
                n_layer=self.layers,
                n_head=self.heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                tie_word_embeddings=tied,
            )
        )
        if self.lora:
            built.requires_grad_(False)
            targets = ["c_attn", "c_fc", "c_proj"]
            config = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=targets, fan_in_fan_out=True)
            built = get_peft_model(built, config)
            if fused:
                fuse_lora(built)
        return built.train()


SETTINGS = [
    Setting("GPT-2 4x256, V 8000, T 128, B 16", 4, 256, 4, 8000, 128, 16),
    Setting("distilgpt2 shape, T 64, B 4", 6, 768, 12, 50257, 64, 4),
    Setting("LoRA r 8 on GPT-2 4x256, T 128, B 16", 4, 256, 4, 8000, 128, 16, lora=True),
    Setting("LSTM 200, V 8000, T 64, B 16", 1, 200, 0, 8000, 64, 16),
    Setting("LSTM 200, V 8000, T 64, B 64", 1, 200, 0, 8000, 64, 64),
]


class Rows:
    """Random rows full of tokens."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._ids = torch.randint(setting.vocabulary, (setting.batch, setting.time + 1))

    def batch(self, rows: IntArray) -> Batch:
        ids = self._ids[rows]
        inputs: dict[str, Any] = {"input_ids": ids[:, :-1].contiguous(), "use_cache": False}
        if not self._setting.is_lstm:
            inputs["position_ids"] = torch.arange(self._setting.time).repeat(len(rows), 1)
        labels = ids[:, 1:].contiguous()
        return Batch(inputs, labels, torch.zeros(labels.shape, dtype=torch.int64), rows)

    def whole(self) -> Batch:
        return self.batch(np.arange(self._setting.batch))


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)


def non_private(model: nn.Module, rows: Rows, *, own_loss: bool = False) -> Step:
    """The ordinary step: tacit's loss, or transformers' full logits."""
    optimiser, batch, objective = adamw(model), rows.whole(), NextTokenObjective(model)
    weights = torch.full((len(batch.labels),), 1 / batch.labels.numel())

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        if own_loss:
            logits = model(**batch.inputs).logits
            loss = cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
        else:
            loss = objective.weighted(batch, weights)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def private(name: str, model: nn.Module, rows: Rows, setting: Setting) -> Step:
    """tacit's private step with all rows sampled."""
    engine = {"chosen": "auto", "loop": "loop"}.get(name, "book-keeping")
    trainer = PrivateTrainer(
        model,
        NextTokenObjective(model),
        adamw(model),
        Examples(
            [np.array([row]) for row in range(setting.batch)],
            np.full(setting.batch, setting.time),
            rows.batch,
        ),
        StepPrivacy(1.0, 0.0 if name.endswith("no noise") else 1.0, 1.0, setting.batch),
        StepPerformance(engine, setting.batch, setting.time),  # type: ignore[arg-type]
        seed=0 if name.endswith("torch") else None,  # a seeded run takes torch's products
    )
    if name == "chosen":
        print(f"  chosen: {trainer.choice.engine}, {trainer.choice.microbatch} rows at once", flush=True)
    return trainer.step


class OpacusLSTM(nn.Module):
    """The LSTM's shape out of layers that Opacus knows."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.embed = nn.Embedding(setting.vocabulary, setting.width)
        self.lstm = DPLSTM(setting.width, setting.width, batch_first=True)
        self.head = nn.Linear(setting.width, setting.vocabulary)

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embed(input_ids))[0])
        return logits


def opacus(name: str, setting: Setting, rows: Rows) -> Step:
    """Opacus' private step, with per-example mean losses as ours."""
    ghost = name.endswith("ghost")
    inner = (
        OpacusLSTM(setting).train()
        if setting.is_lstm
        else setting.model(tied=not ghost or setting.lora, fused=False)
    )
    kind = GradSampleModuleFastGradientClipping if ghost else GradSampleModule
    model = kind(inner, batch_first=True, loss_reduction="mean", **({"max_grad_norm": 1.0} if ghost else {}))
    wrap = DPOptimizerFastGradientClipping if ghost else DPOptimizer
    optimiser = wrap(
        adamw(inner),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=setting.batch,
        loss_reduction="mean",
    )
    batch = rows.whole()

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        inputs = batch.inputs
        logits = model(inputs["input_ids"]) if setting.is_lstm else model(**inputs).logits
        losses = cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
        own = losses.view(batch.labels.shape).mean(dim=1)
        if ghost:
            DPTensorFastGradientClipping(model, optimiser, own, "mean").backward()
        else:
            own.mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def way(name: str, setting: Setting) -> Step:
    """A step of any way, on a model of its own."""
    rows = Rows(setting)
    if name in OPACUS:
        return opacus(name, setting, rows)
    model = setting.model(tied=not name.endswith("untied"))
    if name in OURS:
        return private(name, model, rows, setting)
    return non_private(model, rows, own_loss=name == "transformers")


def prepare() -> None:
    warnings.filterwarnings("ignore")
    keep_freed_memory()  # as tacit's commands do
    torch.set_num_threads(1)


def seconds(step: Step) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def compare(setting: Setting, rounds: int) -> None:
    """Every way in turn with the non-private step, in this process."""
    prepare()
    print(setting.name, flush=True)
    plain = way("non-private", setting)
    untied = plain if setting.is_lstm or setting.lora else way("non-private untied", setting)
    steps = {name: way(name, setting) for name in (*OURS, "transformers", *OPACUS)}
    for step in (plain, untied, *steps.values()):
        step()
        step()
    base: list[float] = []
    for name, step in steps.items():
        against = untied if name == "Opacus ghost" else plain
        # Opacus is far enough from all limits that a third of the rounds will do.
        pairs = [
            (seconds(against), seconds(step))
            for _ in range(max(2, rounds // 3) if name in OPACUS else rounds)
        ]
        base += [ordinary for ordinary, _ in pairs if against is plain]
        ratios = [ours / ordinary for ordinary, ours in pairs]
        print(
            f"  {name:22} {statistics.median(ratios):5.2f}  [{min(ratios):.2f} to {max(ratios):.2f}]",
            flush=True,
        )
    print(f"  non-private step: {statistics.median(base) * 1e3:.0f} ms", flush=True)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def growth(setting: Setting, name: str, pipe: Connection) -> None:
    """How far memory grows in three steps."""
    prepare()
    step = way(name, setting)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the high-water mark begins here
    before = resident()
    for _ in range(3):
        step()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
    pipe.send(peak - before)


def alone(target: Callable[..., None], *arguments: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    process.join()


def memory(setting: Setting) -> None:
    """Peak memory of each way in a process of its own."""
    grown: dict[str, int] = {}
    for name in ("non-private", "book-keeping", "loop", *OPACUS):
        ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
        alone(growth, setting, name, theirs)
        if ours.poll():
            grown[name] = ours.recv()
    own = grown.pop("non-private")
    ratios = ", ".join(f"{name} {value / own:.2f}" for name, value in grown.items())
    print(f"  memory over {own / 2**20:.0f} MB of the non-private step: {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--setting", default="", help="only settings whose name has this in it")
    parser.add_argument("--no-memory", action="store_true")
    arguments = parser.parse_args()
    for setting in SETTINGS:
        if arguments.setting.lower() in setting.name.lower():
            alone(compare, setting, arguments.rounds)
            if not arguments.no_memory:
                memory(setting)


if __name__ == "__main__":
    main()
