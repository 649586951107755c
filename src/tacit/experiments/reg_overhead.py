"""Privacy regularisation, A.3.1 and the figure beside Table 1: what a step costs.

For each model the time of a regularised step, and of a step of DP-SGD, over that of the plain step of the
same model on the same batch. Steps are taken in turn in one process, and a ratio is the median over pairs.
Time is this process's own on the processor, so that other work counts as little as possible. Every step is
tacit's own: the task, the schedule by author and the regulariser that `tacit train` runs, fused AdamW.

adversarial       the discriminator's hidden width is the paper's 1000; its own step is in the time
triplet, batch    all pairs within the batch: no second pass of the model
triplet, second   an auxiliary batch as in the paper, which runs through the model but not through its head
DP-SGD            every text an example, clipped and with noise, by the engine that `engine: auto` picks
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from scipy import stats
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from tacit.experiments.experiment import Conclusion, Experiment, Outcomes, Settings
from tacit.experiments.results import Finding, Outcome, Scale, Table
from tacit.experiments.stages import Stage, Workshop
from tacit.models.loading import PublicModel
from tacit.models.lstm import LSTMConfig, LSTMForCausalLM
from tacit.recipes import AdapterSection, RegularisationSection, TrainingSection
from tacit.report.words import estimate
from tacit.statistics import Estimate, FloatArray
from tacit.training.author_schedule import AuthorSchedule
from tacit.training.authors import Authors
from tacit.training.encoding import EncodedCorpus, lay_out
from tacit.training.next_token import NextTokenTask
from tacit.training.optimisers import optimiser_for
from tacit.training.private_steps import (
    Examples,
    NextTokenObjective,
    PrivateTrainer,
    StepPerformance,
    StepPrivacy,
)
from tacit.training.regularisers import Adversary, Regulariser, Triplet

_NAME: Final = "reg-overhead"
_PAPER: Final = {
    "adversarial": 1.06,
    "triplet, batch": None,  # ours
    "triplet, second": 1.80,
    "DP-SGD": 16.44,
}
_AUTHORS: Final = 100  # as in the paper's first corpus
_CONFIDENCE: Final = 0.95
Step = Callable[[int], None]


def _settings(scale: Scale) -> Settings:
    transformer = {
        "kind": "transformer",
        "layers": 4,
        "width": 256,
        "vocabulary": 8000,
        "time": 64,
        "batch": 16,
    }
    papers = {"kind": "lstm", "layers": 2, "width": 550, "vocabulary": 40_000, "time": 32, "batch": 16}
    tiny = {"layers": 1, "width": 16, "vocabulary": 50, "time": 8, "batch": 8}
    models: dict[Scale, dict[str, Any]] = {
        "tiny": {"lstm 1x16": {"kind": "lstm", **tiny}, "transformer 1x16": {"kind": "transformer", **tiny}},
        "small": {"transformer 4x256": transformer, "lstm 2x550": papers},
        "paper": {"lstm 2x550": papers | {"batch": 100}},
    }
    return {"models": models[scale], "rounds": 7 if scale == "tiny" else 15, "threads": 1}


def _stages(workshop: Workshop, settings: Settings) -> Sequence[Stage]:
    del workshop
    return [_stage(settings, model) for model in settings["models"]]


def _stage(settings: Settings, model: str) -> Stage:
    key = {
        "model": settings["models"][model],
        "rounds": settings["rounds"],
        "threads": settings["threads"],
    }
    minutes = 0.1 if settings["rounds"] < 15 else 5.0
    return Stage(f"{_NAME}-{model.replace(' ', '-')}", key, minutes, lambda shop: _measured(shop, key))


def _measured(workshop: Workshop, key: Mapping[str, Any]) -> Mapping[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(key["threads"])
    try:
        return _paired(workshop, key["model"], key["rounds"])
    finally:
        torch.set_num_threads(before)


def _paired(workshop: Workshop, model: Mapping[str, Any], rounds: int) -> Mapping[str, Any]:
    plain, steps = step_of("plain", model), {method: step_of(method, model) for method in _PAPER}
    for step in (plain, *steps.values()):
        for number in range(2):
            step(number)
    workshop.progress.phase("steps", rounds * len(steps))
    pairs: dict[str, list[tuple[float, float]]] = {method: [] for method in steps}
    for number in range(2, 2 + rounds):
        for method, step in steps.items():
            pairs[method].append((_seconds(plain, number), _seconds(step, number)))
            workshop.progress.advance(1)
    return {"pairs": pairs}


def _seconds(step: Step, number: int) -> float:
    began = time.process_time()
    step(number)
    return time.process_time() - began


class _Bare:
    """What a task asks of a public model, without files or a tokenizer."""

    start_token = 0

    def __init__(self, model: Mapping[str, Any]) -> None:
        torch.manual_seed(0)
        self.model = _built(model)
        self.tokenizer = range(model["vocabulary"])  # a task asks for its length alone
        self.family = model["kind"]


def _built(model: Mapping[str, Any]) -> PreTrainedModel:
    vocabulary, width, layers = model["vocabulary"], model["width"], model["layers"]
    if model["kind"] == "lstm":
        return LSTMForCausalLM(LSTMConfig(vocabulary, width, width, layers))
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=2 * model["time"],
            n_embd=width,
            n_layer=layers,
            n_head=max(1, width // 64),
            bos_token_id=_Bare.start_token,
            eos_token_id=_Bare.start_token,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )


def _made_up(model: Mapping[str, Any]) -> tuple[EncodedCorpus, Authors]:
    """Texts of one length, four of each author."""
    texts, length = 4 * _AUTHORS, model["time"]
    tokens = np.random.default_rng(0).integers(1, model["vocabulary"], texts * length, dtype=np.int32)
    authors = np.arange(texts) % _AUTHORS
    corpus = EncodedCorpus(
        tokens,
        np.arange(texts + 1) * length,
        authors,
        [str(one) for one in range(_AUTHORS)],
        np.ones(_AUTHORS, np.int64),
        _Bare.start_token,
        np.arange(texts),
        texts,
    )
    return corpus, Authors(authors, authors, np.ones(texts, bool))


def step_of(method: str, model: Mapping[str, Any]) -> Step:
    """The step that `tacit train` takes, of a model of its own."""
    public = cast(PublicModel, _Bare(model))
    encoded, authors = _made_up(model)
    rows = lay_out(encoded, block_size=model["time"], packing=False)
    training = TrainingSection(batch_size=model["batch"], epochs=1000)
    task = NextTokenTask(public, AdapterSection(kind="full"), rows, autocast=False)
    weights = [one for one in task.model.parameters() if one.requires_grad]
    optimiser = optimiser_for(weights, training)
    task.model.train()
    if method == "DP-SGD":
        return _private(task, optimiser, model)
    schedule = AuthorSchedule(rows, training, 0, authors=authors, batches="user", two_authors=True)
    regulariser = _regulariser_of(method, task, authors, schedule, model["width"])
    objective = task.summed_loss if regulariser is None else regulariser.objective

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


def _private(task: NextTokenTask, optimiser: torch.optim.Optimizer, model: Mapping[str, Any]) -> Step:
    """A private step with as many texts as a batch has, all of them sampled."""
    texts = model["batch"]
    trainer = PrivateTrainer(
        task.model,
        NextTokenObjective(task.model),
        optimiser,
        Examples([np.array([row]) for row in range(texts)], np.full(texts, model["time"]), task.make_batch),
        StepPrivacy(1.0, 1.0, 1.0, texts),
        StepPerformance("auto", texts, model["time"]),
        seed=None,  # as in private training: the noise of a seed would be made in another way
    )

    def step(_: int) -> None:
        trainer.step()

    return step


def _regulariser_of(
    method: str, task: NextTokenTask, authors: Authors, schedule: AuthorSchedule, width: int
) -> Regulariser | None:
    kind, _, pairs = method.partition(", ")
    if kind == "plain":
        return None
    if kind == "adversarial":
        section, device = RegularisationSection(), torch.device("cpu")
        return Adversary(task, authors, section, schedule, width=width, device=device)
    return Triplet(task, authors, RegularisationSection.model_validate({"pairs": pairs}), schedule)


def _conclude(settings: Settings, outcomes: Outcomes) -> Conclusion:
    ratios = {model: _ratios(outcomes[_stage(settings, model).name]["pairs"]) for model in settings["models"]}
    return Conclusion(
        conditions=(
            *(
                f"{model}: a batch of {one['batch']} made-up texts of {one['time']} tokens by {_AUTHORS} "
                f"authors; {one['vocabulary']:,} tokens, untrained."
                for model, one in settings["models"].items()
            ),
            f"{settings['rounds']} pairs of a step with and without, taken in turn on {settings['threads']} "
            "thread; time of this process on the processor. The paper measured an LSTM 2x550 on a GPU.",
        ),
        tables=(
            Table(
                title="Time of a step over the plain step",
                columns=("model", *_PAPER),
                rows=(
                    ("the paper, on a GPU", *_PAPER.values()),
                    *((model, *found.values()) for model, found in ratios.items()),
                ),
            ),
        ),
        charts=(),
        findings=tuple(_findings(ratios)),
        caveats=("A ratio is this machine's: memory, cores and libraries decide what a second pass costs.",),
    )


def _ratios(pairs: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Estimate]:
    return {
        method: median_of(np.array([own / plain for plain, own in found])) for method, found in pairs.items()
    }


def median_of(values: FloatArray) -> Estimate:
    """The median with the exact interval that its order statistics give; infinite where they are too few."""
    ordered = np.sort(values)
    many = len(ordered)
    # So many smallest values lie below the median with at most half of the error.
    left_out = int(stats.binom.ppf((1 - _CONFIDENCE) / 2, many, 0.5))
    if left_out == 0:
        low, high = -np.inf, np.inf
    else:
        low, high = ordered[left_out - 1], ordered[many - left_out]
    method = f"median of {many} pairs, order statistics"
    return Estimate(float(np.median(ordered)), float(low), float(high), _CONFIDENCE, method)


def _findings(ratios: Mapping[str, Mapping[str, Estimate]]) -> Iterator[Finding]:
    for method, claim, limit in (
        ("adversarial", "Adversarial training takes at most 1.06 times as long as plain training.", 1.06),
        ("triplet, second", "Triplet training with a second batch takes at most 1.8 times as long.", 1.8),
        ("triplet, batch", "Ours, with pairs within the batch, takes at most 1.1 times as long.", 1.1),
    ):
        for model, found in ratios.items():
            one = found[method]
            yield Finding(
                claim=claim,
                here=f"{model}: {estimate(one)} times.",
                outcome=_word(holds=one.high <= limit, falls=one.low > limit),
            )
    for model, found in ratios.items():
        one, limit = found["DP-SGD"], cast(float, _PAPER["DP-SGD"])
        yield Finding(
            claim=f"DP-SGD takes {limit} times as long as plain training, or longer.",
            here=f"{model}: {estimate(one)} times.",
            outcome=_word(holds=one.low >= limit, falls=one.high < limit),
        )


def _word(*, holds: bool, falls: bool) -> Outcome:
    return "holds" if holds else "does not hold" if falls else "undecided"


OVERHEAD: Final = Experiment(
    name=_NAME,
    title="What a regularised step costs",
    shows="Privacy Regularization, A.3.1 (Figure 4 of its appendix)",
    settings=_settings,
    stages=_stages,
    conclude=_conclude,
)
