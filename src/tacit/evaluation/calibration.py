"""Choosing a target: on a surrogate ensemble of public text, or, as an experiment only, on the private one.

The target decides every part's weight. Tuned on the private ensemble's own spending it would be a function of
every part, and a charge that compares the answers with and without one part would no longer bound anything (a
case: charged 0.0015, true 1.0 nats). So it is tuned where nobody has to be protected: on an ensemble with the
same number of parts, trained by the same recipe on text that was declared public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tacit.errors import InputError
from tacit.evaluation.mechanism_report import MechanismRow
from tacit.evaluation.mechanism_settings import Grid, Setting, TargetSource
from tacit.recipes import parse_recipe
from tacit.runs import Run

Measure = Callable[[Sequence[Setting]], Sequence[MechanismRow]]


def best_rows(
    settings: Sequence[Setting], grid: Grid, source: TargetSource, measure: Measure
) -> tuple[MechanismRow, ...]:
    """For each setting the candidate with the lowest perplexity, all measured in one pass.

    Of equals the first is taken, which has the lowest target.
    """
    candidates = {setting: grid.candidates(setting, source) for setting in settings}
    everything = list(dict.fromkeys(one for found in candidates.values() for one in found))
    rows = {row.setting: row for row in measure(everything)}
    return tuple(
        min((rows[one] for one in candidates[setting]), key=lambda row: row.perplexity().value)
        for setting in settings
    )


def calibrated(settings: Sequence[Setting], grid: Grid, measure: Measure) -> dict[Setting, MechanismRow]:
    """For each setting the surrogate's best row; its setting is the one to use on the private ensemble."""
    return dict(zip(settings, best_rows(settings, grid, "calibrated", measure), strict=True))


def with_surrogate(row: MechanismRow, surrogate: MechanismRow) -> MechanismRow:
    """A row that also tells what its target reached on the surrogate."""
    return replace(row, surrogate=surrogate.perplexity())


def check_surrogate(surrogate: Run, run: Run) -> tuple[str, ...]:
    """Refuse a surrogate that is not public or not like the Run; what differs but is allowed is returned."""
    if surrogate.manifest.guarantee.get("kind") != "public":
        raise InputError(
            f"{surrogate.folder} was not trained on text declared public (corpus.public: true): a target "
            "tuned on private text depends on every part and voids the charges; train a surrogate on public "
            "text."
        )
    ours, theirs = run.manifest.ensemble, surrogate.manifest.ensemble
    if theirs is None or ours is None or theirs != ours:
        raise InputError(
            f"{surrogate.folder} is not an ensemble of the same shape as {run.folder}; train the surrogate "
            "with the same ensemble.parts and ensemble.halves."
        )
    if surrogate.manifest.public_model.fingerprint != run.manifest.public_model.fingerprint:
        raise InputError(
            f"{surrogate.folder} started from another public model than {run.folder}; train it from the same."
        )
    if (
        surrogate.corpus_fingerprint() == run.corpus_fingerprint()
        and run.manifest.guarantee["kind"] != "public"
    ):
        raise InputError(
            f"{surrogate.folder} was trained on the private text of {run.folder}; a surrogate needs other, "
            "public text."
        )
    mine, other = (parse_recipe(one.manifest.recipe, origin=str(one.folder)) for one in (run, surrogate))
    no_seed = {"seed": None}
    sections = {
        "adapter": mine.adapter == other.adapter,
        "training": mine.training.model_copy(update=no_seed) == other.training.model_copy(update=no_seed),
    }
    differing = [name for name, same in sections.items() if not same]
    if not differing:
        return ()
    return (f"The surrogate's recipe differs in {' and '.join(differing)}: its target may fit less well.",)
