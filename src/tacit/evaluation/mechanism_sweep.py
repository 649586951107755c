"""`tacit evaluate` for ensembles: mechanisms under budgets, by the SubMix paper's protocol.

Teacher-forced: every position of a held-out block is one query; after STOP the public model answers.
`mechanism_blocks` has blocks and stretches, `mechanism_pmfs` the one pass that serves a whole sweep,
`mechanism_budgets` what a budget pays for, `calibration` where a target comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tacit.corpus import UserCorpus, read_corpus
from tacit.errors import InputError
from tacit.evaluation.calibration import (
    best_rows,
    calibrated,
    check_surrogate,
    with_surrogate,
)
from tacit.evaluation.mechanism_blocks import (
    USUAL_QUERIES,
    HeldOutBlocks,
    blocks_of_text,
    enough_blocks,
    fitting_queries,
    stretches,
)
from tacit.evaluation.mechanism_budgets import answers_of, block_perplexities
from tacit.evaluation.mechanism_kept import KeptPmfs
from tacit.evaluation.mechanism_pmfs import Traces, trace
from tacit.evaluation.mechanism_report import (
    MechanismReport,
    MechanismRow,
    Reference,
    over_users,
    row_of,
)
from tacit.evaluation.mechanism_settings import Grid, Setting, Sweep
from tacit.evaluation.report import MeasuredText, held_out_text, recipe_of
from tacit.mechanisms.choice import MechanismName
from tacit.models.ensemble import Ensemble, load_ensemble
from tacit.models.loading import PublicModel
from tacit.progress import Progress, Silent
from tacit.recipes import CorpusSection
from tacit.runs import Run
from tacit.statistics import FloatArray

_EVERY_MECHANISM: tuple[MechanismName, ...] = (
    "submix",
    "certified",
    "individual",
    "subsample_aggregate",
    "gnmax",
)


@dataclass(frozen=True)
class Tuning:
    """Where targets come from, if not from the sweep: a public surrogate, or the private ensemble itself."""

    surrogate: Run | None = None
    oracle: bool = False
    grid: Grid = field(default_factory=Grid)
    support: int | None = 2048  # candidates are compared over so many tokens; the one chosen is measured anew
    max_blocks: int | None = None  # of the surrogate's text; None: as many as are measured on
    beside_heuristic: bool = False  # measure epsilon / queries as well

    def __post_init__(self) -> None:
        if self.oracle and self.surrogate is not None:
            raise InputError("A target is tuned on a surrogate or by an oracle, not both; leave one out.")
        if self.max_blocks is not None and self.max_blocks < 1:
            raise InputError(f"max_blocks={self.max_blocks}: at least one block is needed.")
        if self.beside_heuristic and self.surrogate is None:
            raise InputError("beside_heuristic goes with a surrogate; leave it out.")


def evaluate_mechanisms(
    run: Run,
    sweep: Sweep | None = None,
    corpus: CorpusSection | None = None,
    *,
    block_size: int,
    max_blocks: int | None = None,
    nonprivate: Run | None = None,
    tuning: Tuning | None = None,
    support: int | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> MechanismReport:
    """Measure an ensemble's mechanisms on its held-out text, or on ``corpus``, and record the result in it.

    Args:
        run: an ensemble.
        sweep: what to measure; None is every mechanism that the ensemble has the members for. Empty
            ``mechanisms`` or ``queries`` in it are filled in: with all, and with what the text has room for.
        corpus: text to measure on instead of the Run's own held-out text.
        block_size: tokens in a block.
        max_blocks: blocks to measure on; None takes what 20 stretches of the longest budget need.
        nonprivate: a Run that fine-tuned one model on the same text, for comparison.
        tuning: where targets come from, if not from the sweep.
        support: mix over so many likely tokens and one outcome for the rest: fast, and an approximation.
        device: where the models run.
        trust_remote_code: run Python code that comes with the public model.
        progress: told of every query.
    """
    progress = progress or Silent()
    tuning = tuning or Tuning()
    run.metrics()  # a damaged file is found now, not when the measurement is done
    remarks: tuple[str, ...] = ()
    if tuning.surrogate is not None:
        remarks += check_surrogate(tuning.surrogate, run)
    if nonprivate is not None:
        check_nonprivate(nonprivate, run, same_corpus=corpus is None)
    ensemble = load_ensemble(run, device=device, trust_remote_code=trust_remote_code)
    sweep = _with_mechanisms(sweep or Sweep((), queries=(), mixings=("per_part", "averaged")), ensemble)
    planned = replace(sweep, queries=sweep.queries or (USUAL_QUERIES,)).settings(ensemble.parts)
    check_settings(planned, ensemble)
    text = _text(run, corpus, ensemble, progress)
    blocks = blocks_of_text(text, ensemble.public, block_size=block_size, progress=progress)
    if not sweep.queries:
        sweep = replace(sweep, queries=(fitting_queries(blocks),))
        if sweep.queries != (USUAL_QUERIES,):
            remarks += (f"{sweep.queries[0]:,} queries: the held-out text is short for {USUAL_QUERIES:,}.",)
    blocks = _limited(blocks, sweep, max_blocks)
    settings = sweep.settings(ensemble.parts)
    found: dict[Setting, MechanismRow] = {}
    if tuning.surrogate is not None:
        candidates = load_ensemble(tuning.surrogate, device=device, trust_remote_code=trust_remote_code)
        found = _on_surrogate(
            tuning, candidates, sweep, settings, blocks.block_size, max_blocks, progress=progress
        )
        chosen = [found[setting].setting for setting in settings]
        settings = tuple(dict.fromkeys([*(settings if tuning.beside_heuristic else ()), *chosen]))
    other = None if nonprivate is None else of_one_model(nonprivate, ensemble.public, blocks, progress)
    if tuning.oracle:
        rough = Measurement(ensemble, blocks, other, progress, support=tuning.support)
        best = best_rows(settings, tuning.grid, "oracle", rough.rows)
        settings = tuple(dict.fromkeys(row.setting for row in best))
    measurement = Measurement(ensemble, blocks, other, progress, support=support)
    rows = measurement.rows(settings)
    if support is not None:
        remarks += (
            f"Approximate: mixed over the {support:,} likeliest tokens and one outcome for all others; "
            "weights are a little too large, and charges a little off.",
        )
    on_surrogate = {row.setting: row for row in found.values()}
    rows = tuple(
        with_surrogate(row, on_surrogate[row.setting]) if row.setting in on_surrogate else row for row in rows
    )
    measured = MeasuredText.for_run(run, corpus)
    report = measurement.report(rows, measured, remarks)
    run.record_metrics(f"mechanisms{measured.suffix}", report.to_json())
    return report


class Measurement:
    """An ensemble, the blocks it is asked about, and what one pass over them has found."""

    def __init__(
        self,
        ensemble: Ensemble | KeptPmfs,
        blocks: HeldOutBlocks,
        nonprivate: FloatArray | None = None,
        progress: Progress | None = None,
        *,
        support: int | None = None,
    ) -> None:
        """``support`` makes mixing approximate and fast: see `mechanism_pmfs`.

        ``nonprivate`` are the log-probabilities [queries] of a model that was fine-tuned on all of the text.
        """
        self.ensemble, self.blocks = ensemble, blocks
        self._nonprivate, self._support = nonprivate, support
        self._progress = progress or Silent()
        self._traces: Traces | None = None

    @property
    def _outside(self) -> tuple[str, ...]:
        kept = self.ensemble
        private = (
            kept.private_vocabulary if isinstance(kept, KeptPmfs) else kept.public.vocabulary == "private"
        )
        return ("the vocabulary, which was built from private text",) if private else ()

    def rows(self, settings: Sequence[Setting]) -> tuple[MechanismRow, ...]:
        """One row per setting, from one pass of the models."""
        check_settings(settings, self.ensemble)
        stretched = {one.budget.queries: stretches(self.blocks, one.budget.queries) for one in settings}
        traces = trace(self.ensemble, self.blocks, settings, support=self._support, progress=self._progress)
        self._traces = traces
        return tuple(
            row_of(
                setting,
                setting.guarantee(self.ensemble.halves, self._outside),
                answers_of(setting, traces, self.blocks, stretched[setting.budget.queries]),
                self.blocks,
                stretched[setting.budget.queries],
                public=traces.public,
                ensemble=traces.ensemble(setting.parts),
                nonprivate=self._nonprivate,
            )
            for setting in settings
        )

    def report(
        self, rows: tuple[MechanismRow, ...], text: MeasuredText, remarks: tuple[str, ...] = ()
    ) -> MechanismReport:
        """Rows beside the models that answer without a budget."""
        assert self._traces is not None, "rows come first"  # noqa: S101
        counts = sorted({row.setting.parts for row in rows})
        return MechanismReport(
            references=self._references(self._traces, counts),
            rows=rows,
            text=text,
            users=len(set(self.blocks.user.tolist())),
            blocks=len(self.blocks),
            queries=int(self.blocks.starts[-1]),
            block_size=self.blocks.block_size,
            remarks=remarks,
        )

    def _references(self, traces: Traces, counts: Sequence[int]) -> tuple[Reference, ...]:
        def mean(perplexities: FloatArray, name: str, parts: int | None = None) -> Reference:
            return Reference(name, parts, over_users(perplexities, self.blocks))

        def of(log_probability: FloatArray) -> FloatArray:
            return block_perplexities(log_probability, self.blocks)

        found = [mean(of(traces.public), "public")]
        for parts in counts:
            members = traces.members[:, :parts].reshape(len(traces.public), -1)
            single = np.mean([of(members[:, member]) for member in range(members.shape[1])], axis=0)
            found.append(mean(single, "single member, not private", parts))
            found.append(mean(of(traces.ensemble(parts)), "ensemble, not private", parts))
        if self._nonprivate is not None:
            found.append(mean(of(self._nonprivate), "fine-tuned, not private"))
        return tuple(found)


def check_settings(settings: Sequence[Setting], ensemble: Ensemble | KeptPmfs) -> None:
    """Refuse what this ensemble cannot answer with, before any model has run."""
    for setting in settings:
        setting.answering(ensemble.halves)


def check_nonprivate(other: Run, run: Run, *, same_corpus: bool) -> None:
    """Refuse a comparison with a model that is not comparable, or that may have read the held-out text."""
    if other.manifest.weights == "members":
        raise InputError(
            f"{other.folder} is an ensemble too; the non-private comparison is one fine-tuned model."
        )
    if other.manifest.public_model.fingerprint != run.manifest.public_model.fingerprint:
        raise InputError(
            f"{other.folder} started from another public model than {run.folder}; fine-tune the same one."
        )
    held_out = [recipe_of(one).held_out for one in (run, other)]
    if same_corpus and (held_out[0] != held_out[1] or run.corpus_fingerprint() != other.corpus_fingerprint()):
        raise InputError(
            f"{other.folder} was trained on other text than {run.folder}, or held out other text, and may "
            "have read what is measured on; train it with the same corpus and held_out."
        )


def _with_mechanisms(sweep: Sweep, ensemble: Ensemble) -> Sweep:
    if sweep.mechanisms:
        return sweep
    fitting = tuple(name for name in _EVERY_MECHANISM if name != "submix" or ensemble.halves == 2)
    return replace(sweep, mechanisms=fitting)


def _text(run: Run, corpus: CorpusSection | None, ensemble: Ensemble, progress: Progress) -> UserCorpus:
    tokenizer = ensemble.public.tokenizer
    if corpus is None:
        return held_out_text(run, tokenizer, progress)
    return read_corpus(corpus, tokenizer, progress)


def _limited(blocks: HeldOutBlocks, sweep: Sweep, max_blocks: int | None) -> HeldOutBlocks:
    """As many blocks as asked for, or as the longest budget needs; every budget must find a stretch."""
    kept = enough_blocks(blocks, max(sweep.queries)) if max_blocks is None else blocks.first(max_blocks)
    for queries in sweep.queries:
        stretches(kept, queries)
    return kept


def _on_surrogate(
    tuning: Tuning,
    ensemble: Ensemble,
    sweep: Sweep,
    settings: Sequence[Setting],
    block_size: int,
    max_blocks: int | None,
    *,
    progress: Progress,
) -> dict[Setting, MechanismRow]:
    """The best candidate of every setting, by the surrogate's own held-out text, which is public."""
    surrogate = tuning.surrogate
    assert surrogate is not None  # noqa: S101 - an invariant of the caller
    text = held_out_text(surrogate, ensemble.public.tokenizer, progress)
    try:
        blocks = blocks_of_text(text, ensemble.public, block_size=block_size, progress=progress)
        blocks = _limited(blocks, sweep, tuning.max_blocks or max_blocks)
    except InputError as problem:
        raise InputError(f"The surrogate {surrogate.folder} cannot be used: {problem}") from None
    progress.remark(f"calibrating targets on {surrogate.folder}")
    rough = Measurement(ensemble, blocks, progress=progress, support=tuning.support)
    return calibrated(settings, tuning.grid, rough.rows)


def of_one_model(
    other: Run, public: PublicModel, blocks: HeldOutBlocks, progress: Progress | None = None
) -> FloatArray:
    """[queries] log-probabilities by the one model of another Run."""
    other.verify_weights()
    alone = Ensemble(public, (other.weights,), parts=1, halves=1)
    log_probability: FloatArray = trace(alone, blocks, progress=progress).members[:, 0, 0]
    return log_probability
