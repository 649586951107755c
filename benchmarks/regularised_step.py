"""A step of adversarial and of triplet training against the plain step of the same model on the same batch.

For each model prints the time of a regularised step over that of the plain step, as the median over pairs
that are taken in turn in one process, with the smallest and largest. Time is this process's own on the
processor, on one thread, so that other work counts as little as possible. Every step is tacit's own: the
task, the schedule by author and the regulariser that `tacit train` runs, fused AdamW, clipping.

adversarial       the discriminator's hidden width is the paper's 1000; its own step is in the time
triplet, batch    all pairs within the batch: no second pass of the model
triplet, second   an auxiliary batch as in the paper, which runs through the model but not through its head

The paper's own figures (its Fig. 4, on a GPU): adversarial 1.06x, triplet with an auxiliary batch 1.80x,
DP-SGD 16.44x. DP-SGD's here: benchmarks/dp_step.py.

Run: python benchmarks/regularised_step.py [--rounds N] [--model NAME]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tacit.models.loading import PublicModel
from tacit.models.lstm import LSTMConfig, LSTMForCausalLM
from tacit.models.process import keep_freed_memory
from tacit.recipes import AdapterSection, RegularisationSection, TrainingSection
from tacit.training.author_schedule import AuthorSchedule
from tacit.training.authors import Authors
from tacit.training.encoding import EncodedCorpus, lay_out
from tacit.training.next_token import NextTokenTask
from tacit.training.optimisers import optimiser_for
from tacit.training.regularisers import Adversary, Regulariser, Triplet

AUTHORS = 100  # as in the paper's first corpus
METHODS = ("adversarial", "triplet, batch", "triplet, second")
Step = Callable[[int], None]


@dataclass(frozen=True)
class Setting:
    """A model and the texts of a batch."""

    name: str
    build: Callable[[], PreTrainedModel]
    vocabulary: int
    width: int
    time: int
    batch: int


def small_transformer() -> PreTrainedModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=8000,
            n_positions=128,
            n_embd=256,
            n_layer=4,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def papers_lstm() -> PreTrainedModel:
    """Two layers of 550 and 40,000 words: 49 million weights (the paper says 55)."""
    return LSTMForCausalLM(LSTMConfig(40_000, 550, 550, 2))


SETTINGS = [
    Setting("transformer 4x256, V 8,000, T 64, B 16", small_transformer, 8_000, 256, 64, 16),
    Setting("LSTM 2x550, V 40,000, T 32, B 16", papers_lstm, 40_000, 550, 32, 16),
]


class Bare:
    """What a task asks of a public model, without files or a tokenizer."""

    start_token = 0

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.model = setting.build()
        self.tokenizer = range(setting.vocabulary)  # a task asks for its length alone
        self.family = "lstm" if isinstance(self.model, LSTMForCausalLM) else "transformer"


def made_up(setting: Setting) -> tuple[EncodedCorpus, Authors]:
    """Texts of one length, four of each author."""
    texts = 4 * AUTHORS
    tokens = np.random.default_rng(0).integers(1, setting.vocabulary, texts * setting.time, dtype=np.int32)
    authors = np.arange(texts) % AUTHORS
    corpus = EncodedCorpus(
        tokens,
        np.arange(texts + 1) * setting.time,
        authors,
        [str(one) for one in range(AUTHORS)],
        np.ones(AUTHORS, np.int64),
        Bare.start_token,
        np.arange(texts),
        texts,
    )
    return corpus, Authors(authors, authors, np.ones(texts, bool))


def step_of(method: str, setting: Setting) -> Step:
    """The step that `tacit train` takes, of a model of its own."""
    public = Bare(setting)
    encoded, authors = made_up(setting)
    rows = lay_out(encoded, block_size=setting.time, packing=False)
    training = TrainingSection(batch_size=setting.batch, epochs=1000)
    task = NextTokenTask(cast(PublicModel, public), AdapterSection(kind="full"), rows, autocast=False)
    schedule = AuthorSchedule(rows, training, 0, authors=authors, batches="user", two_authors=True)
    weights = [one for one in task.model.parameters() if one.requires_grad]
    optimiser = optimiser_for(weights, training)
    regulariser = regulariser_of(method, task, authors, schedule, setting)
    objective = task.summed_loss if regulariser is None else regulariser.objective
    task.model.train()

    def step(number: int) -> None:
        batches, tokens = schedule.batches_of(number), schedule.tokens_of(number)
        if regulariser is not None:
            regulariser.begin(number)
        optimiser.zero_grad(set_to_none=True)
        for rows_of_one in batches:
            loss = objective(task.make_batch(rows_of_one)) / tokens
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, training.clip)
        optimiser.step()
        if regulariser is not None:
            regulariser.finish()

    return step


def regulariser_of(
    method: str, task: NextTokenTask, authors: Authors, schedule: AuthorSchedule, setting: Setting
) -> Regulariser | None:
    kind, _, pairs = method.partition(", ")
    if kind == "plain":
        return None
    if kind == "adversarial":
        section = RegularisationSection()
        device = torch.device("cpu")
        return Adversary(task, authors, section, schedule, width=setting.width, device=device)
    content: dict[str, Any] = {"pairs": pairs}
    return Triplet(task, authors, RegularisationSection(**content), schedule)


def seconds(step: Step, number: int) -> float:
    began = time.process_time()
    step(number)
    return time.process_time() - began


def compare(setting: Setting, rounds: int) -> None:
    print(setting.name, flush=True)
    plain = step_of("plain", setting)
    steps = {method: step_of(method, setting) for method in METHODS}
    for step in (plain, *steps.values()):
        for number in range(2):
            step(number)
    base: list[float] = []
    for method, step in steps.items():
        pairs = [(seconds(plain, number), seconds(step, number)) for number in range(2, 2 + rounds)]
        base += [ordinary for ordinary, _ in pairs]
        ratios = [own / ordinary for ordinary, own in pairs]
        print(
            f"  {method:16} {statistics.median(ratios):5.2f}x  [{min(ratios):.2f} to {max(ratios):.2f}]",
            flush=True,
        )
    print(f"  plain step: {statistics.median(base) * 1e3:.0f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", default="", help="only models whose name has this in it")
    arguments = parser.parse_args()
    keep_freed_memory()  # as tacit's commands do
    torch.set_num_threads(1)
    for setting in SETTINGS:
        if arguments.model.lower() in setting.name.lower():
            compare(setting, arguments.rounds)


if __name__ == "__main__":
    main()
