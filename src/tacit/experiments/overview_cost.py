"""What the methods of the overview cost, in times of the plain one: ratios, measured in turn in one process.

Training: a step of tacit's own for a batch of the same texts, by `reg_overhead`. Masked text trains as plain
text does, and an ensemble's members together read the text as often as one model; CRT's is computed from how
many turns it reads without noise and with. Answering: a token by the whole ensemble within a budget, of one
model without. Screening is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from transformers import PreTrainedModel

from tacit.corpus.screening import read_screened
from tacit.experiments.experiment import Settings
from tacit.experiments.overview_ground import (
    CRT,
    DP_SGD,
    MASKED,
    PREDICTED,
    UNMITIGATED,
    SeedRuns,
    choice_of,
)
from tacit.experiments.reg_overhead import median_of, step_of
from tacit.experiments.stages import Stage, Workshop
from tacit.models.ensemble import load_ensemble
from tacit.models.generation import generate
from tacit.prediction import Budget, PrivatePredictor
from tacit.statistics import Estimate

COST: Final = "overview-cost"
_STEPS: Final = {"adversarial": "adversarial", "triplet": "triplet, batch", DP_SGD: "DP-SGD"}
_PROMPT: Final = "SYS: Hello"
Pairs = list[tuple[float, float]]


def cost_stage(settings: Settings) -> Stage:
    """Pairs of seconds, plain and other, by method."""
    names = ("corpus", "canaries", "policy", "model", "training", "ensemble", "prediction", "cost")
    key = {name: settings[name] for name in names} | {"seed": settings["seeds"][0]}

    def work(shop: Workshop) -> Mapping[str, Any]:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return _measured(shop, settings)
        finally:
            torch.set_num_threads(before)

    return Stage(COST, key, settings["minutes"], work)


def _measured(shop: Workshop, settings: Settings) -> Mapping[str, Any]:
    runs = SeedRuns(shop, settings, settings["seeds"][0])
    points = list(read_screened(runs.ground.screened))
    return {
        "training": _of_steps(settings),
        "answering": _of_answers(runs, settings),
        # A bare mask teaches nothing, and no gradient is computed of it.
        "turns": {
            "all": len(points),
            "public": sum(not one.private for one in points),
            "private": sum(one.private and not one.bare for one in points),
        },
    }


def _of_steps(settings: Settings) -> dict[str, Pairs]:
    section = settings["cost"]
    plain = step_of("plain", section["model"])
    found = {}
    for method, step in _STEPS.items():
        own, number = step_of(step, section["model"]), iter(range(10**6))
        found[method] = _pairs(
            lambda number=number: plain(next(number)),  # type: ignore[misc]
            lambda own=own, number=number: own(next(number)),  # type: ignore[misc]
            section["rounds"],
        )
    return found


def _of_answers(runs: SeedRuns, settings: Settings) -> dict[str, Pairs]:
    section, prediction = settings["cost"], settings["prediction"]
    ensemble = load_ensemble(runs.members())
    model, tokens = ensemble.public.model, section["tokens"]
    assert isinstance(model, PreTrainedModel)  # noqa: S101 - what was loaded
    found = {}
    for method in PREDICTED:
        predictor = PrivatePredictor(
            runs.as_answered(ensemble, method),
            choice_of(prediction, method, prediction["epsilons"][-1]),
            Budget(prediction["epsilons"][-1], prediction["queries"]),
            slots=1,
        )
        found[method] = _pairs(
            lambda: generate(
                model, ensemble.public.tokenizer, _PROMPT, max_new_tokens=tokens, stop_at_eos=False
            ),
            lambda predictor=predictor: predictor.generate(  # type: ignore[misc]
                _PROMPT, max_tokens=tokens, stop_at_end=False
            ),
            section["rounds"],
        )
    return found


def _pairs(plain: Callable[[], object], own: Callable[[], object], rounds: int) -> Pairs:
    """Seconds of this process on the processor, in turn; the first of each is for warming up."""
    found = [(_seconds(plain), _seconds(own)) for _ in range(rounds + 1)]
    return found[1:]


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def training_cost(outcome: Mapping[str, Any]) -> dict[str, Estimate | float]:
    """Time of training over plain training, by method; plain numbers were not measured."""
    ratios = {method: _ratio(pairs) for method, pairs in outcome["training"].items()}
    turns, private = outcome["turns"], ratios[DP_SGD]
    return {
        UNMITIGATED: 1.0,
        MASKED: 1.0,
        **ratios,
        CRT: _scaled(private, turns["private"] / turns["all"], turns["public"] / turns["all"]),
        **dict.fromkeys(PREDICTED, 1.0),
    }


def answering_cost(outcome: Mapping[str, Any]) -> dict[str, Estimate | float]:
    """Time of a token over that of one model, by method."""
    ratios = {method: _ratio(pairs) for method, pairs in outcome["answering"].items()}
    return dict.fromkeys((UNMITIGATED, MASKED, *_STEPS, CRT), 1.0) | ratios


def _ratio(pairs: list[list[float]]) -> Estimate:
    return median_of(np.array([own / plain for plain, own in pairs]))


def _scaled(one: Estimate, by: float, plus: float) -> Estimate:
    value, low, high = (by * part + plus for part in (one.value, one.low, one.high))
    return Estimate(value, low, high, one.confidence, f"computed from DP-SGD's: {one.method}")
