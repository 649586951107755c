"""What the three experiments on privacy regularisation at equal perplexity say alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tacit.experiments.experiment import Outcomes, Settings
from tacit.experiments.reg_ground import (
    BATCHES,
    DP_SGD,
    PAIRED_BATCHES,
    REGULARISED,
    SECOND,
    TRIPLET,
    UNMITIGATED,
    Place,
)
from tacit.experiments.reg_levels import Level, Levels, Verdict, below_zero
from tacit.experiments.results import Finding, Table
from tacit.report.words import estimate, number, plural
from tacit.statistics import Estimate

METHODS: Final = {
    UNMITIGATED: "unmitigated",
    "adversarial": "adversarial",
    TRIPLET: "triplet",
    SECOND: "triplet, second batch",
    DP_SGD: "DP-SGD",
    BATCHES: "batches by user alone",
    PAIRED_BATCHES: "paired batches alone",
}
NO_LEVEL: Final = "No perplexity is common to the two."
OFTEN: Final = 9  # the paper's claim is about canaries that are repeated more often
_CAVEATS: Final = (
    "Every interval is of one comparison, at 95%: of twenty claims that are wrong, one may seem to hold.",
    "The models are small and learn from nothing; the paper's have 55 million weights and a hundred times "
    "the text.",
    "The weights of the privacy losses are fixed, not tuned for these corpora.",
    "What DP-SGD leaks at a perplexity depends on its learning rate: another one would move every difference "
    "from it.",
)
_ANOTHER_RATE: Final = (
    "On {} DP-SGD learns at another rate than all others, or it would reach no perplexity of theirs: "
    "differences from it there are as much the rate's doing as its noise's, and those where rates are equal "
    "are fairer."
)
Difference = Callable[[Level, str, str], Estimate]


def caveats(settings: Settings) -> tuple[str, ...]:
    """What all three are to be read with."""
    other = " and ".join(settings["methods"][DP_SGD]["rates"])
    return (*_CAVEATS, _ANOTHER_RATE.format(other)) if other else _CAVEATS


def rungs_of(settings: Settings, corpus: str) -> list[int]:
    """How often canaries are repeated."""
    return list(settings["corpora"][corpus].get("ladder", settings["ladder"]))


def conditions(settings: Settings, outcomes: Outcomes, levels: Levels) -> tuple[str, ...]:
    """Text, model, training and seeds, a sentence each."""
    return (
        *(_corpus(settings, outcomes, corpus, levels.common[corpus]) for corpus in levels.corpora),
        _model(settings),
        _training(settings),
        f"{plural(len(settings['seeds']), 'training')} of each, with seeds "
        f"{', '.join(map(str, settings['seeds']))}, each with canaries, first weights and an order of the "
        "text of its own; the text and what is held out of it are the same.",
        "Methods are compared at equal perplexity on held-out text of the same users, between two Runs of "
        "each, interpolated over log(perplexity).",
    )


def _corpus(settings: Settings, outcomes: Outcomes, corpus: str, levels: Sequence[Level]) -> str:
    stage = outcomes[Place(corpus, settings["seeds"][0]).name_of(UNMITIGATED)]
    found, canaries = stage["runs"][-1], sum(stage["repetitions"])
    where = " and ".join(f"{number(level.perplexity)} ({level.name})" for level in levels)
    return (
        f"{corpus}: {plural(len(found['documents']), 'user')} with {min(found['documents'])} to "
        f"{max(found['documents'])} documents in training, {found['tokens']:,} training tokens with "
        f"{canaries:,} planted texts of five words; compared at perplexities "
        f"{where or '(none is common to all methods: pairs of methods are, where both reach them)'}."
    )


def _model(settings: Settings) -> str:
    model = settings["model"]
    layers = "layer" if model["layers"] == 1 else "layers"
    return (
        f"An LSTM with {model['layers']} {layers} of {model['hidden']}, untrained at the beginning, over the "
        f"corpus's {model['vocabulary']:,} most frequent words."
    )


def _training(settings: Settings) -> str:
    training, methods = settings["training"], settings["methods"]
    epochs, noises = (", ".join(map(str, methods[one]["values"])) for one in (UNMITIGATED, DP_SGD))
    weights = ", ".join(
        f"{methods[one]['recipe']['regularisation']['lambda']:g} ({METHODS[one]})" for one in REGULARISED
    )
    private = methods[DP_SGD]
    rates = "".join(f", at {rate:g} on {corpus}" for corpus, rate in private["rates"].items())
    return (
        f"Batches of {training['batch_size']} at learning rate {training['learning_rate']:g}; {epochs} "
        f"epochs; lambda {weights}; DP-SGD {private['recipe']['training']['epochs']} epochs with noise "
        f"{noises}{rates}."
    )


def findings_of_pairs(
    levels: Levels,
    pairs: Iterable[tuple[str, str]],
    claim: str,
    difference: Difference,
    unit: str,
    verdict: Verdict = below_zero,
) -> list[Finding]:
    """A claim about pairs of methods on each corpus: it has to hold at both perplexities."""
    return [
        finding_of(
            f"On {corpus}, {claim.format(METHODS[one], METHODS[other])}",
            {level: difference(level, one, other) for level in levels.of_pair(corpus, one, other)},
            unit,
            verdict,
        )
        for corpus in levels.corpora
        for one, other in pairs
    ]


def finding_of(
    claim: str,
    differences: Mapping[Level, Estimate],
    unit: str,
    verdict: Verdict = below_zero,
) -> Finding:
    """A claim beside its differences at both perplexities."""
    told = "; ".join(f"{estimate(one)} {unit} at the {level.told}" for level, one in differences.items())
    return Finding(
        claim=claim,
        here=f"The difference is {told}." if told else NO_LEVEL,
        outcome=verdict(list(differences.values())),
    )


def runs_table(settings: Settings, outcomes: Outcomes) -> Table:
    """Every Run's perplexity, as trained: the frontiers that all else is read from."""
    seeds = settings["seeds"]
    rows: list[tuple[Any, ...]] = []
    for corpus in settings["corpora"]:
        for method, along in settings["methods"].items():
            stages = [outcomes[Place(corpus, seed).name_of(method)] for seed in seeds]
            for number_of_run, value in enumerate(along["values"]):
                found = [stage["runs"][number_of_run] for stage in stages]
                shown = [None if one["diverged"] else one["perplexity"]["value"] for one in found]
                promise = found[0].get("promise")
                told = (
                    ""
                    if promise is None
                    else f"epsilon {float(promise['epsilon']):.3g}, mu {float(promise['mu']):.3g}"
                )
                name = along["key"].rpartition(".")[2]
                rows.append((corpus, METHODS[method], f"{name} {value:g}", *shown, told))
    return Table(
        title="Perplexity of every Run on held-out text",
        columns=("corpus", "method", "protection", *(f"seed {seed}" for seed in seeds), "promise"),
        rows=tuple(rows),
    )
