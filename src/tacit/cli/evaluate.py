"""`tacit evaluate`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

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
    from tacit.evaluation import EvaluationReport, MechanismReport, MechanismRow, Sweep
    from tacit.mechanisms.choice import MechanismName
    from tacit.mechanisms.submix import Mixing, Weights

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
_OF_MECHANISMS = {
    "mechanism": "--mechanism",
    "epsilon": "--epsilon",
    "queries": "--queries",
    "order": "--order",
    "target": "--target",
    "mixing": "--mixing",
    "weights": "--weights",
    "guard": "--guard",
    "cap": "--cap",
    "parts": "--parts",
    "calibrate": "--calibrate",
    "oracle_target": "--oracle-target",
    "nonprivate": "--nonprivate",
    "max_blocks": "--max-blocks",
    "support": "--support",
}
_ENSEMBLES = "Ensembles"


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
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help="submix, certified, individual, subsample_aggregate, gnmax, public or nonprivate; "
            "default: all that need a budget. Repeat it, and most options below, to sweep.",
            rich_help_panel=_ENSEMBLES,
        ),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Budget in nats; default 2.", rich_help_panel=_ENSEMBLES)
    ] = None,
    queries: Annotated[
        list[int] | None,
        typer.Option(
            help="Answers that a budget is for; default 1024, or what the text has room for.",
            rich_help_panel=_ENSEMBLES,
        ),
    ] = None,
    order: Annotated[
        list[float] | None, typer.Option(help="Renyi order; default 2.", rich_help_panel=_ENSEMBLES)
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            help="Nats per query: heuristic (epsilon / queries), or a number.", rich_help_panel=_ENSEMBLES
        ),
    ] = "heuristic",
    mixing: Annotated[
        list[str] | None,
        typer.Option(help="How SubMix mixes: per_part (default) or averaged.", rich_help_panel=_ENSEMBLES),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="SubMix's weights: symmetric (default), or paper, which with averaged mixing is Algorithm 2 "
            "as printed.",
            rich_help_panel=_ENSEMBLES,
        ),
    ] = None,
    guard: Annotated[
        list[float] | None,
        typer.Option(help="The most that a query of per-part SubMix may cost.", rich_help_panel=_ENSEMBLES),
    ] = None,
    cap: Annotated[
        list[float] | None, typer.Option(help="The largest weight of a part.", rich_help_panel=_ENSEMBLES)
    ] = None,
    parts: Annotated[
        list[int] | None,
        typer.Option(help="Use the first so many parts; default all.", rich_help_panel=_ENSEMBLES),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Choose targets on this ensemble, trained on public text with the same number of parts.",
            rich_help_panel=_ENSEMBLES,
        ),
    ] = None,
    oracle_target: Annotated[
        bool,
        typer.Option(
            "--oracle-target",
            help="Choose targets on the private ensemble: an experiment, outside any guarantee.",
            rich_help_panel=_ENSEMBLES,
        ),
    ] = False,
    nonprivate: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Compare with this fine-tuned Run.", rich_help_panel=_ENSEMBLES),
    ] = None,
    max_blocks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Blocks to measure on; default: what 20 budgets take.", rich_help_panel=_ENSEMBLES
        ),
    ] = None,
    support: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Mix over so many likely tokens and one outcome for the rest: fast, approximate.",
            rich_help_panel=_ENSEMBLES,
        ),
    ] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Measure perplexity on held-out text, with 95% intervals over users.

    An ensemble (method: submix) answers by a mechanism and under a budget: each is measured on stretches of
    held-out text, every one with a fresh budget, beside the public model and models without any privacy.
    Options such as `--mechanism certified --epsilon 2 --queries 1024` choose and sweep them.

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
    if opened is None or opened.manifest.weights != "members":
        _refuse(context, _OF_MECHANISMS, "goes with an ensemble (method: submix), which is not given")
    else:
        _refuse(context, {"public": "--public"}, "goes with one model; an ensemble always has it beside it")
    from tacit.evaluation import Tuning, evaluate_mechanisms, evaluate_public_model, evaluate_run
    from tacit.models.process import keep_freed_memory

    if opened is not None and opened.manifest.weights == "members":
        if (calibrate is not None or oracle_target) and target != "heuristic":
            raise InputError("--target is given, so that nothing is left to choose; leave one option out.")
        sweep = _sweep(mechanism, epsilon, queries, order, target, mixing, weights, guard, cap, parts)
        tuning = Tuning(None if calibrate is None else Run.open(calibrate), oracle_target)
        keep_freed_memory()
        with console.progress() as progress:
            answers = evaluate_mechanisms(
                opened,
                sweep,
                given,
                block_size=block_size,
                max_blocks=max_blocks,
                nonprivate=None if nonprivate is None else Run.open(nonprivate),
                tuning=tuning,
                support=support,
                device=device,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
        if as_json:
            console.show_json(answers.to_json())
        else:
            _show_mechanisms(answers)
        return
    with console.progress() as progress:
        if opened is not None:
            report = evaluate_run(
                opened,
                given,
                block_size=block_size,
                with_public=public,
                device=device,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
        else:
            assert given is not None, "refused above"  # noqa: S101
            report = evaluate_public_model(
                model,
                given,
                block_size=block_size,
                device=device,
                trust_remote_code=trust_remote_code,
                progress=progress,
            )
    if as_json:
        console.show_json(report.to_json())
    else:
        _show(report)


def _sweep(
    mechanism: list[str] | None,
    epsilon: list[float] | None,
    queries: list[int] | None,
    order: list[float] | None,
    target: str,
    mixing: list[str] | None,
    weights: list[str] | None,
    guard: list[float] | None,
    cap: list[float] | None,
    parts: list[int] | None,
) -> Sweep:
    """The options as a sweep; what is empty is filled in when the ensemble and the text are known."""
    from tacit.evaluation import Sweep

    names = mechanism or []
    mixings = mixing or (["per_part"] if names else ["per_part", "averaged"])
    for option, value in (("--mixing", mixing), ("--weights", weights), ("--guard", guard)):
        if value and names and "submix" not in names:
            raise InputError(f"{option} belongs to mechanism submix, which is not asked for; leave it out.")
    if guard and "per_part" not in mixings:
        raise InputError("--guard bounds nothing with averaged mixing; use --mixing per_part.")
    if cap and names and not {"submix", "certified", "individual"} & set(names):
        raise InputError(f"--cap means nothing for mechanism {names[0]}; leave it out.")
    return Sweep(
        cast("tuple[MechanismName, ...]", tuple(dict.fromkeys(names))),  # these three are checked by Sweep
        tuple(epsilon or (2.0,)),
        tuple(queries or ()),
        tuple(order or (2.0,)),
        cast("tuple[Mixing, ...]", tuple(mixings)),
        cast("tuple[Weights, ...]", tuple(weights or ("symmetric",))),
        tuple(guard or (None,)),
        tuple(cap or (None,)),
        tuple(parts or ()),
        target=_target(target),
    )


def _target(target: str) -> float | None:
    if target == "heuristic":
        return None
    try:
        value = float(target)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"--target {target}: expected 'heuristic' or a finite number above 0, e.g. 0.002.")
    return value


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
    users = _users(len(first.users), held_out=report.text.held_out)
    title = f"{users}, {blocks}, {int(first.tokens.sum()):,} tokens"
    console.show_rows(rows, as_json=False, name="models", title=f"{title}; 95% intervals over users")
    if report.difference is not None:
        console.out.print(f"perplexity, {rows[-1]['model']} - {rows[0]['model']}: {report.difference}")
    if report.guarantee is not None:
        console.out.print(f"guarantee: {report.guarantee}", markup=False)
    for caveat in report.caveats:
        console.out.print(caveat, markup=False)


def _users(count: int, *, held_out: bool) -> str:
    """So many users, whose text was held out or is other text, which a model may have read."""
    return f"{count:,} {'held-out ' if held_out else ''}users"


def _show_mechanisms(report: MechanismReport) -> None:
    blocks = f"{report.blocks:,} blocks of at most {report.block_size:,} tokens"
    console.show_rows(
        [
            {"model": one.name, "parts": one.parts, "perplexity": str(one.perplexity)}
            for one in report.references
        ],
        as_json=False,
        name="references",
        title=f"{_users(report.users, held_out=report.text.held_out)}, {blocks}; 95% intervals over users",
    )
    named = [{"#": number} | _utility(row) for number, row in enumerate(report.rows, start=1)]
    if all(row.nonprivate_sums is None for row in report.rows):
        named = [{key: value for key, value in row.items() if key != "of_non-private"} for row in named]
    title = "Each mechanism; 95% intervals over stretches, each with a fresh budget"
    console.show_rows(named, as_json=False, name="mechanisms", title=title)
    promised = [{"#": number} | _promise(row) for number, row in enumerate(report.rows, start=1)]
    console.show_rows(
        promised, as_json=False, name="guarantees", title="What would hold, and at which target"
    )
    for caveat in report.caveats:
        console.out.print(caveat, markup=False)


def _utility(row: MechanismRow) -> dict[str, object]:
    """What a row measured; numbers that do not exist are dashes."""
    choice, budget = row.setting.choice, row.setting.budget
    return {
        "mechanism": choice.label,
        "parts": row.setting.parts,
        "budget": f"{budget.epsilon:.4g} for {budget.queries:,}",
        "perplexity": row.perplexity(),
        "of_ensemble": row.share_of_ensemble(),
        "of_non-private": row.share_of_nonprivate(),
        "answered": row.answered(),
        "stretches": row.stretches,
    }


def _promise(row: MechanismRow) -> dict[str, object]:
    """What a row's answers would promise."""
    choice, epsilon = row.setting.choice, row.dp_epsilon()
    extras = [f"{key} {value:.4g}" for key, value in (("guard", choice.guard), ("cap", choice.cap)) if value]
    return {
        "(order, epsilon)": f"({choice.order:.4g}, {row.setting.budget.epsilon:.4g})",
        "(epsilon, delta)": None if epsilon is None else f"({epsilon:.4g}, {row.delta:g})",
        "target": ", ".join((f"{choice.target:.4g}: {row.target_label}", *extras)),
        "note": "; ".join(row.labels) or None,
    }
