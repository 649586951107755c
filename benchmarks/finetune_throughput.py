"""Fine-tuning throughput against transformers' Trainer with PEFT: same model, batch, adapter and optimiser.

Prints, for each setting, tokens per second of both and their ratio. The two run in two processes that take
their steps in turn, so that a machine that slows down slows both. "blocks" are rows full of text, where
neither side pads: the ratio is pure speed. "documents" are customer dialogues of unequal length, which tacit
packs and the Trainer's collator pads: only real tokens count. "top quarter" adapts the upper quarter of the
layers; tacit keeps the trunk's hidden states, and the last column spreads the one run of the trunk over three
epochs.

Run: python benchmarks/finetune_throughput.py [--model NAME] [--steps N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    DataCollatorForLanguageModeling,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tacit.corpus import SimulationPlan, UserCorpus, simulate
from tacit.models.adapters import attach
from tacit.models.loading import PublicModel, load_public_model
from tacit.progress import Silent
from tacit.recipes import AdapterSection, PerformanceSection, TrainingSection
from tacit.training.encoding import Rows, encode, lay_out
from tacit.training.loop import optimise
from tacit.training.next_token import NextTokenTask
from tacit.training.schedule import Schedule

BATCH = 4
EPOCHS = 3


class Turn:
    """One of two processes that take their steps in turn; the other sleeps meanwhile."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._began = 0.0

    def begin(self) -> None:
        """Wait to be called, then start the clock."""
        self._pipe.recv()
        self._began = time.perf_counter()

    def end(self) -> None:
        """Stop the clock and hand over."""
        self._pipe.send(time.perf_counter() - self._began)


class TacitClock(Silent):
    """Progress that takes turns at every training step."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._training = False

    def phase(self, name: str, total: int | None) -> None:
        self._training = name == "training"

    def advance(self, units: int, note: str = "") -> None:
        if self._training:
            if units:
                self._turn.end()
            self._turn.begin()


class TrainerClock(TrainerCallback):  # type: ignore[misc]
    """A callback that takes turns at every training step."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._turn.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._turn.end()


@dataclass(frozen=True)
class Setting:
    """What both sides train."""

    model: str
    corpus: Literal["blocks", "documents"]
    adapter: AdapterSection
    block: int
    steps: int

    def dialogues(self) -> UserCorpus:
        plan = SimulationPlan(users=60, dialogues_per_user=2)
        return UserCorpus.from_pairs((dialogue.user, dialogue.text) for dialogue in simulate(plan))


def run_tacit(setting: Setting, pipe: Connection) -> None:
    """The library's own loop; reports the trunk's seconds per token and the tokens of each step last."""
    public = load_public_model(setting.model)
    corpus = setting.dialogues()
    if setting.corpus == "blocks":
        corpus = corpus.in_blocks(public.tokenizer, setting.block)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        end = public.tokenizer.tokenizer.eos_token_id
        encoded = encode(
            corpus, public.tokenizer, block_size=setting.block, storage=work / "t", end_token=end
        )
        rows = lay_out(encoded, block_size=setting.block, packing=True)
        wanted = BATCH * setting.steps
        rows = Rows(encoded, rows.pieces[:wanted], rows.lengths[:wanted], packed=True)
        task = NextTokenTask(public, setting.adapter, rows, autocast=False)
        began = time.perf_counter()
        task.cache_trunk(PerformanceSection(), work, Silent())
        trunk = (time.perf_counter() - began) / int(rows.lengths.sum())
        schedule = Schedule(rows, TrainingSection(epochs=1, batch_size=BATCH), seed=0)
        pipe.send("ready")
        optimise(
            task.model,
            task.summed_loss,
            task.make_batch,
            schedule,
            checkpoint_folder=work / "c",
            checkpoint_every=10**6,
            progress=TacitClock(Turn(pipe)),
        )
    tokens = [int(rows.lengths[schedule.batches_of(step)[0]].sum()) for step in range(setting.steps)]
    pipe.send((trunk if setting.adapter.trunk_layers else 0.0, tokens))


def run_trainer(setting: Setting, pipe: Connection) -> None:
    """What a user would write: get_peft_model, a padding collator, Trainer.train()."""
    public = load_public_model(setting.model)
    tokenizer = public.tokenizer.tokenizer
    if tokenizer.pad_token_id == tokenizer.eos_token_id:
        # The collator hides every pad token from the loss; with pad == eos that would hide the ends too.
        tokenizer.pad_token_id = public.start_token
    corpus = setting.dialogues()
    texts: list[Sequence[int]]
    if setting.corpus == "blocks":
        texts = [d.tokens for d in corpus.in_blocks(public.tokenizer, setting.block).documents() if d.tokens]
    else:
        encoded = public.tokenizer.encode([document.text for document in corpus.documents()])
        texts = [ids[: setting.block] for ids in encoded]
    seen: list[int] = []

    class Collator(DataCollatorForLanguageModeling):  # type: ignore[misc]
        def torch_call(self, examples: list[Any]) -> Any:
            batch = super().torch_call(examples)
            seen.append(int(batch["attention_mask"].sum()))
            return batch

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=BATCH,
            max_steps=setting.steps,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=get_peft_model(public.model, lora_config(public, setting.adapter)),
            args=arguments,
            train_dataset=[{"input_ids": list(ids)} for ids in texts],
            data_collator=Collator(tokenizer, mlm=False),
            callbacks=[TrainerClock(Turn(pipe))],
        )
        trainer.remove_callback(PrinterCallback)
        pipe.send("ready")
        trainer.train()
    pipe.send((0.0, seen[: setting.steps]))


@dataclass(frozen=True)
class Comparison:
    """Tokens per second, as medians over steps, so that one disturbed step does not decide."""

    tacit: float
    trainer: float
    trunk_seconds_per_token: float

    @property
    def with_trunk(self) -> float:
        """tacit's tokens per second when the trunk's one run is spread over all epochs."""
        return 1 / (1 / self.tacit + self.trunk_seconds_per_token / EPOCHS)


def compare(setting: Setting) -> Comparison:
    """Start both, then call them in turn."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes = []
    for side in (run_tacit, run_trainer):
        pipe, end = context.Pipe()
        process = context.Process(target=side, args=(setting, end))
        process.start()
        pipe.recv()  # one loads after the other: loading is not what is measured
        pipes.append(pipe)
        processes.append(process)
    seconds: list[list[float]] = [[], []]
    for _ in range(setting.steps):
        for pipe, times in zip(pipes, seconds, strict=True):
            pipe.send("go")
            times.append(pipe.recv())
    pipes[0].send("go")  # tacit's loop asks for a turn after its last step, too
    (trunk, tokens), (_, seen) = (pipe.recv() for pipe in pipes)
    for process in processes:
        process.join()
    return Comparison(
        tacit=statistics.median(n / s for n, s in zip(tokens, seconds[0], strict=True)),
        trainer=statistics.median(n / s for n, s in zip(seen, seconds[1], strict=True)),
        trunk_seconds_per_token=trunk,
    )


def lora_config(public: PublicModel, adapter: AdapterSection) -> LoraConfig:
    """The very configuration that tacit attaches."""
    wrapped: Any = attach(public.model, adapter)
    config: LoraConfig = wrapped.peft_config["default"]
    wrapped.unload()
    return config


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--block", type=int, default=256)
    options = parser.parse_args()
    layers = len(load_public_model(options.model).layers)
    print(f"{options.model}, {torch.get_num_threads()} threads, batch {BATCH} x {options.block} tokens, fp32")
    print("setting                     tacit  Trainer+PEFT   ratio   ratio with the trunk's run")
    for adapted, trunk in (("all layers", 0), ("top quarter", layers - layers // 4)):
        kinds: tuple[Literal["blocks", "documents"], ...] = ("blocks", "documents")
        for kind in kinds:
            adapter = AdapterSection(trunk_layers=trunk)
            found = compare(Setting(options.model, kind, adapter, options.block, options.steps))
            print(
                f"{adapted + ', ' + kind:24} {found.tacit:8.1f} {found.trainer:13.1f} "
                f"{found.tacit / found.trainer:7.2f} {found.with_trunk / found.trainer:8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
