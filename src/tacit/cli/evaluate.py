"""`tacit evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import console
from tacit.cli.corpus_options import (
    BlocksOption,
    ChatOption,
    DocumentOption,
    FormatOption,
    MessagesOption,
    SkipBadOption,
    TextOption,
    UserOption,
    corpus_section,
)
from tacit.errors import InputError
from tacit.recipes import DEFAULT_MODEL, CorpusSection, HeldOutSection, ModelSection
from tacit.runs import Run

if TYPE_CHECKING:
    from tacit.evaluation import Losses
    from tacit.progress import Progress


def evaluate(
    run_folder: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A Run; none measures a public model.")
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(help="Text to measure on; default: the Run's own held-out text.")
    ] = None,
    user: UserOption = None,
    text: TextOption = None,
    messages: MessagesOption = None,
    chat: ChatOption = "template",
    form: FormatOption = "auto",
    document: DocumentOption = "file",
    blocks: BlocksOption = None,
    skip_bad: SkipBadOption = False,
    model: Annotated[str, typer.Option(help="The public model, when no Run is given.")] = DEFAULT_MODEL,
    block_size: Annotated[int, typer.Option(min=2, help="Tokens in a block; each starts afresh.")] = 512,
    public: Annotated[bool, typer.Option(help="Measure the Run's public model beside it.")] = True,
    as_json: console.JsonFlag = False,
) -> None:
    """Measure perplexity on held-out text, with 95% intervals over users.

    Examples:

        tacit evaluate runs/first

        tacit evaluate runs/first --corpus other.jsonl --user author --text body

        tacit evaluate --model smollm2-135m-instruct --corpus docs.jsonl --user author --text body
    """
    given = None
    if corpus is not None:
        given = corpus_section(corpus, user, text, messages, chat, form, document, blocks, skip_bad)
    with console.progress() as progress:
        if run_folder is None:
            if given is None:
                raise InputError("Nothing to measure: give a Run, or --corpus FILE with --user and --text.")
            report = _of_public_model(ModelSection(name=model), given, block_size, progress)
        else:
            report = _of_run(Run.open(run_folder), given, block_size, public, progress)
    if as_json:
        console.show_json(report)
        return
    _show(report)


def _of_public_model(
    section: ModelSection, corpus: CorpusSection, block_size: int, progress: Progress
) -> dict[str, Any]:
    from tacit.corpus import read_corpus
    from tacit.evaluation import measure_losses
    from tacit.training.preparation import load_model, tokenizer_of

    text = read_corpus(corpus, tokenizer_of(section), progress)
    losses = measure_losses(
        load_model(section, frozen_base=True), text, block_size=block_size, progress=progress
    )
    return _report({"public": losses}, guarantee=None)


def _of_run(
    run: Run, given: CorpusSection | None, block_size: int, public: bool, progress: Progress
) -> dict[str, Any]:
    from tacit.corpus import read_corpus
    from tacit.evaluation import measure_losses, perplexity_difference
    from tacit.models.trained import load_trained
    from tacit.training.preparation import held_out_of

    trained = load_trained(run)
    if given is None:
        recipe = run.manifest.recipe
        if recipe["held_out"] is None:
            raise InputError(f"{run.folder} held nothing out; give --corpus FILE with --user and --text.")
        whole = read_corpus(CorpusSection(**recipe["corpus"]), trained.public.tokenizer, progress)
        run.check_corpus(whole.fingerprint)
        corpus = held_out_of(whole, HeldOutSection(**recipe["held_out"]))
    else:
        corpus = read_corpus(given, trained.public.tokenizer, progress)
    measured: dict[str, Losses] = {}
    if public:
        measured["public"] = measure_losses(trained.public, corpus, block_size=block_size, progress=progress)
    measured[run.manifest.method] = measure_losses(
        trained.public, corpus, block_size=block_size, model=trained.model, progress=progress
    )
    report = _report(measured, guarantee=run.manifest.guarantee["statement"])
    if public:
        gap = perplexity_difference(measured[run.manifest.method], measured["public"])
        report["difference"] = gap.to_json()
    by_user = {
        name: dict(zip(losses.users, losses.perplexity_by_user().tolist(), strict=True))
        for name, losses in measured.items()
    }
    run.record_metrics("evaluation", report)
    run.record_private("perplexity_by_user.json", by_user)
    return report


def _report(measured: dict[str, Losses], guarantee: str | None) -> dict[str, Any]:
    from tacit.evaluation.perplexity import OUTSIDE

    return {
        "models": {name: losses.to_json() for name, losses in measured.items()},
        "guarantee": guarantee,
        "note": OUTSIDE,
    }


def _show(report: dict[str, Any]) -> None:
    from tacit.statistics import FEW_USERS, Estimate

    rows = []
    for name, content in report["models"].items():
        row = {"model": name}
        for measure in ("perplexity", "user_perplexity", "bits_per_byte"):
            row[measure] = str(Estimate.from_json(content[measure]))
        rows.append(row)
    first = next(iter(report["models"].values()))
    title = f"{first['users']:,} held-out users, {first['blocks']:,} blocks, {first['tokens']:,} tokens"
    console.show_rows(rows, as_json=False, name="models", title=f"{title}; 95% intervals over users")
    if "difference" in report:
        console.out.print(
            f"perplexity, {rows[-1]['model']} - public: {Estimate.from_json(report['difference'])}"
        )
    if first["users"] < FEW_USERS:
        console.out.print(f"Fewer than {FEW_USERS} users: these intervals are too narrow.")
    if report["guarantee"]:
        console.out.print(f"guarantee: {report['guarantee']}", markup=False)
    console.out.print(report["note"])
