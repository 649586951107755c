"""What CRT's frontier and attacks say alike: means over trainings, intervals, and conditions in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from scipy import stats

from tacit.experiments.crt_ground import (
    CRT,
    DP_SGD,
    MASKED,
    NONPRIVATE,
    READING,
    REDACTED,
    SELECTIVE,
    Cell,
)
from tacit.experiments.crt_models import LSTM, NAMES
from tacit.experiments.experiment import Outcomes, Settings
from tacit.report.words import number, plural
from tacit.statistics import Estimate

METHODS: Final = {
    NONPRIVATE: "non-private",
    MASKED: "non-private with mask",
    REDACTED: "non-private, masked and deduplicated",
    DP_SGD: "DP-SGD",
    SELECTIVE: "selective DP-SGD",
    CRT: "CRT",
}
_CONFIDENCE: Final = 0.95
CAVEATS: Final = (
    "Every interval is of one comparison, at 95%: of twenty claims that are wrong, one may seem to hold.",
    "The policy is the corpus's own spans without those that a coin drops: it misses what its gamma says, "
    "pi_c misses nothing, and nothing is masked by mistake. A detector's pi_c leaves less text public.",
    "Rates, batches and clipping were tuned by hand on a seed that is not among these, for each model and "
    "for plain and noisy steps; what that would cost is in no epsilon.",
)


def runs_of(outcomes: Outcomes, cell: Cell) -> list[Mapping[str, Any]]:
    """A cell's Runs, a seed each; none of them where one diverged."""
    runs = list(outcomes[cell.stage]["runs"])
    return [] if any(one["diverged"] for one in runs) else runs


def student(values: Sequence[float], *, least: float = -math.inf, most: float = math.inf) -> Estimate:
    """The mean of independent trainings, with Student's t."""
    found = np.asarray(values, dtype=np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return Estimate(mean, least, most, _CONFIDENCE, "one training alone: no interval")
    if np.ptp(found) == 0:
        # Trainings that came out alike to the last bit show no spread, and certainty is not claimed.
        method = f"{len(found)} trainings that came out alike: no interval"
        return Estimate(mean, least, most, _CONFIDENCE, method)
    t = float(stats.t.ppf((1 + _CONFIDENCE) / 2, len(found) - 1))
    reach = t * float(found.std(ddof=1)) / math.sqrt(len(found))
    method = f"Student's t over {len(found)} trainings"
    return Estimate(mean, max(least, mean - reach), min(most, mean + reach), _CONFIDENCE, method)


def geometric(values: Sequence[float]) -> Estimate:
    """The geometric mean of independent trainings: of perplexities, and of their ratios."""
    found = student([math.log(value) for value in values])
    low, high = (math.exp(end) if end < 700 else math.inf for end in (found.low, found.high))
    return Estimate(math.exp(found.value), low, high, found.confidence, f"{found.method}, of logarithms")


def perplexity(outcomes: Outcomes, cell: Cell) -> Estimate | None:
    """Over held-out tokens that are nobody's secret; None where a training diverged."""
    runs = runs_of(outcomes, cell)
    return geometric([one["perplexity"] for one in runs]) if runs else None


def ratio(outcomes: Outcomes, one: Cell, other: Cell) -> Estimate | None:
    """A perplexity by another, seed by seed."""
    pairs = list(zip(runs_of(outcomes, one), runs_of(outcomes, other), strict=False))
    return geometric([left["perplexity"] / right["perplexity"] for left, right in pairs]) if pairs else None


def promised(outcomes: Outcomes, cell: Cell, name: str = "epsilon") -> float | None:
    """The mean over the seeds, whose texts are not equally long; None where there is no bound."""
    values = [one["promise"][name] for one in runs_of(outcomes, cell)]
    return None if not values or None in values else float(np.mean(values))


def epsilon_told(value: float | None) -> str:
    """An epsilon for a table's cell."""
    return "infinite" if value is None else number(value)


def conditions(settings: Settings, outcomes: Outcomes) -> tuple[str, ...]:
    """Texts, models, training and seeds, a sentence each."""
    seeds = settings["seeds"]
    canaries = settings["canaries"]
    return (
        *(_corpus(settings, outcomes, corpus) for corpus in settings["corpora"]),
        *_models(settings, outcomes),
        *(_training(settings, model) for model in settings["trainings"]),
        f"{canaries['number']} canaries, 'My ID is: ' with {canaries['digits']} digits, are in the training "
        f"text of every Run, each {canaries['repetitions']} times as a data point of its own.",
        f"{plural(len(seeds), 'training')} of each, with seeds {', '.join(map(str, seeds))}: the seed draws "
        "which half of the dialogues is trained on, the canaries, what the policy misses, the first weights "
        "of the LSTM, the order of the text, and the noise.",
    )


def _corpus(settings: Settings, outcomes: Outcomes, corpus: str) -> str:
    chosen = settings["corpora"][corpus]
    runs = runs_of(outcomes, Cell(corpus, LSTM, NONPRIVATE))
    if not runs:
        return f"{corpus}: {chosen['dialogues']:,} dialogues."
    points, tokens, held_out = (
        round(float(np.mean([one[name] for one in runs])))
        for name in ("documents", "tokens", "held_out_tokens")
    )
    kind = "simulated here" if chosen["kind"] == "simulated" else "as published"
    return (
        f"{corpus} ({kind}): {chosen['dialogues']:,} dialogues drawn, half of them trained on: about "
        f"{points:,} sentences, each a data point, with {tokens:,} tokens, canaries included; perplexity is "
        f"over {held_out:,} tokens of the other half that are nobody's secret."
    )


def _models(settings: Settings, outcomes: Outcomes) -> tuple[str, ...]:
    reading, shape = settings["public_text"], settings["transformer"]
    lstm = f"A one-layer LSTM of {settings['lstm']['hidden']} that learns from nothing, as in the paper"
    if reading is None:
        return (f"{lstm}; {shape['name']}, fine-tuned, as in the paper; one vocabulary for both.",)
    text = reading.get("text", "simulated dialogues")
    return (
        f"{lstm}; a transformer of {plural(shape['layers'], 'layer')} of {shape['width']} that has read "
        f"{outcomes[READING]['tokens']:,} tokens of public text ({text}) once, in the place of the paper's "
        f"distilled GPT-2; one vocabulary for both, {settings['vocabulary']:,} pieces of words from the same "
        "public text with single digits, so that perplexities can be compared with each other, and not with "
        "those of other vocabularies.",
    )


def _training(settings: Settings, model: str) -> str:
    found = settings["trainings"][model]
    told = "; ".join(
        f"{what}: {found[name]['epochs']} epochs, batches of {found[name]['batch_size']}, "
        f"{found[name].get('optimiser', 'AdamW')} at {found[name]['learning_rate']:g}"
        for name, what in (("plain", "plain"), *METHODS.items())
        if name in found
    )
    clips = ", ".join(f"{clip:g} ({METHODS[method]})" for method, clip in found["clipping"].items())
    return f"{NAMES[model]}: {told}; examples are clipped at {clips}."
