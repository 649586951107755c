"""`tacit evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.cli import console
from tacit.cli.corpus_options import (
    BlocksOption,
    ChatOption,
    ConfigOption,
    DocumentOption,
    FormatOption,
    MessagesOption,
    RevisionOption,
    SkipBadOption,
    SplitOption,
    TextOption,
    UserOption,
    corpus_section,
)
from tacit.errors import InputError
from tacit.recipes import DEFAULT_MODEL
from tacit.runs import Run

if TYPE_CHECKING:
    from tacit.evaluation import EvaluationReport

_OF_THE_CORPUS = {
    "user": "--user",
    "text": "--text",
    "messages": "--messages",
    "chat": "--chat",
    "form": "--format",
    "document": "--document",
    "blocks": "--blocks",
    "split": "--split",
    "config": "--config",
    "revision": "--revision",
    "skip_bad": "--skip-bad",
}


def evaluate(
    context: typer.Context,
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
    split: SplitOption = None,
    config: ConfigOption = None,
    revision: RevisionOption = None,
    skip_bad: SkipBadOption = False,
    model: Annotated[str, typer.Option(help="The public model, when no Run is given.")] = DEFAULT_MODEL,
    block_size: Annotated[int, typer.Option(min=2, help="Tokens in a block; each starts afresh.")] = 512,
    public: Annotated[bool, typer.Option(help="Measure the Run's public model beside it.")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
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
        given = corpus_section(
            corpus,
            user,
            text,
            messages,
            chat,
            form,
            document,
            blocks,
            skip_bad,
            split=split,
            config=config,
            revision=revision,
        )
    elif run_folder is None:
        raise InputError("Nothing to measure: give a Run, or --corpus FILE with --user and --text.")
    else:
        _refuse(context, _OF_THE_CORPUS, "says how --corpus FILE is read, which is not given; add it")
    if run_folder is None:
        _refuse(context, {"public": "--public"}, "goes with a Run, which is not given; leave it out")
    else:
        _refuse(context, {"model": "--model"}, "goes without a Run, which knows its own model; leave it out")
    opened = None if run_folder is None else Run.open(run_folder)
    from tacit.evaluation import evaluate_public_model, evaluate_run

    with console.progress() as progress:
        if opened is not None:
            report = evaluate_run(
                opened, given, block_size=block_size, with_public=public, device=device, progress=progress
            )
        else:
            assert given is not None, "refused above"  # noqa: S101
            report = evaluate_public_model(
                model, given, block_size=block_size, device=device, progress=progress
            )
    if as_json:
        console.show_json(report.to_json())
    else:
        _show(report)


def _refuse(context: typer.Context, options: dict[str, str], why: str) -> None:
    """Refuse options that would be ignored: whoever gave them meant something."""
    for name, option in options.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{option} {why}.")


def _show(report: EvaluationReport) -> None:
    rows = [
        {
            "model": name,
            "perplexity": str(losses.perplexity()),
            "user_perplexity": str(losses.user_perplexity()),
            "bits_per_byte": losses.bits_per_byte(),
        }
        for name, losses in report.models.items()
    ]
    first = next(iter(report.models.values()))
    blocks = f"{int(first.blocks.sum()):,} blocks of at most {first.block_size:,} tokens"
    title = f"{len(first.users):,} held-out users, {blocks}, {int(first.tokens.sum()):,} tokens"
    console.show_rows(rows, as_json=False, name="models", title=f"{title}; 95% intervals over users")
    if report.difference is not None:
        console.out.print(f"perplexity, {rows[-1]['model']} - public: {report.difference}")
    if report.guarantee is not None:
        console.out.print(f"guarantee: {report.guarantee}", markup=False)
    for caveat in report.caveats:
        console.out.print(caveat, markup=False)
