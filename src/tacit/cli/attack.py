"""`tacit attack`: what an adversary gets out."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.cli import console
from tacit.errors import InputError
from tacit.recipes import DEFAULT_MODEL
from tacit.runs import Run

if TYPE_CHECKING:
    from tacit.attacks import ExtractionReport, ExtractionRow

app = typer.Typer(no_args_is_help=True, help="What an adversary gets out of models and mechanisms.")

_OF_TRAINING = {
    "digits": "--digits",
    "codes": "--codes",
    "model": "--model",
    "steps": "--steps",
    "learning_rate": "--learning-rate",
    "adapter": "--adapter",
    "trunk_layers": "--trunk-layers",
    "finetuned": "--finetuned",
}


@app.callback()
def attack() -> None:
    """Attacks; this makes `extraction` a command of its own even while it is the only one."""


@app.command()
def extraction(
    context: typer.Context,
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="A Run trained on codes; none trains one first.")
    ] = None,
    digits: Annotated[int, typer.Option(help="Length of a code, 2 to 5.")] = 4,
    codes: Annotated[int, typer.Option(help="How many secrets, one per user; parts are half as many.")] = 8,
    generations: Annotated[int, typer.Option(help="How often the attacker generates.")] = 100,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help="submix, submix_averaged, submix_paper, certified, individual, subsample_aggregate, gnmax; "
            "may be repeated. Default: submix, certified, individual."
        ),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="Budget in nats; may be repeated. Default: 2.")
    ] = None,
    order: Annotated[float, typer.Option(help="Renyi order, above 1.")] = 2.0,
    queries: Annotated[
        int | None, typer.Option(help="Answers a budget is meant for; default: all that can be asked.")
    ] = None,
    finish: Annotated[
        bool, typer.Option("--finish", help="Also finish generations that can no longer hit.")
    ] = False,
    model: Annotated[str, typer.Option(help="The public model to train from.")] = DEFAULT_MODEL,
    steps: Annotated[int, typer.Option(help="Steps in which a member memorises its code.")] = 60,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of memorising.")] = 1e-2,
    adapter: Annotated[str, typer.Option(help="lora, or full as in the paper.")] = "lora",
    trunk_layers: Annotated[
        int | None, typer.Option(help="Lower layers left public; default: three quarters of a deep model.")
    ] = None,
    finetuned: Annotated[
        bool, typer.Option("--finetuned", help="Also fine-tune one model on all codes and attack it.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Where to keep codes, Runs and rows, and go on; none keeps nothing.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For experiments: repeatable codes and draws.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: console.JsonFlag = False,
) -> None:
    """Random-code extraction (SubMix, section 4.2): can secrets be generated?

    Users' documents read `My number is: <digits>`. Models that memorised them are asked to go on after `My
    number is:`, and a hit is a generation that begins with somebody's digits. The table has the sampled hit
    rate with its 95% interval, the computed one, chance, and what the guarantee allows.

    Examples:

        tacit attack extraction --codes 4 --generations 20 --steps 20

        tacit attack extraction --digits 3 --codes 4 --steps 20 --epsilon 2 --epsilon 100 --folder attack
    """
    from tacit.attacks import MemorisingPlan
    from tacit.evaluation.extraction import AttackPlan, attack_own_models, attack_run

    plan = AttackPlan(
        generations=generations,
        mechanisms=tuple(mechanism or AttackPlan.mechanisms),  # type: ignore[arg-type] # checked there
        epsilons=tuple(epsilon or AttackPlan.epsilons),
        order=order,
        queries=queries,
        finish=finish,
        seed=seed,
    )
    with console.progress() as progress:
        if run_folder is not None:
            _refuse(context, _OF_TRAINING)
            run = Run.open(run_folder)
            if run.manifest.weights != "members" and (mechanism or epsilon):
                raise InputError(
                    f"{run_folder} holds one model, and mechanisms need an ensemble; leave --mechanism and "
                    "--epsilon out, or train with method: submix."
                )
            rows_file = None if folder is None else folder / "rows.json"
            report = attack_run(run, plan, rows_file=rows_file, device=device, progress=progress)
        else:
            memorising = MemorisingPlan(
                digits=digits,
                codes=codes,
                model=model,
                steps=steps,
                learning_rate=learning_rate,
                adapter=adapter,  # type: ignore[arg-type] # checked there
                trunk_layers=trunk_layers,
                seed=seed,
            )
            with _working_folder(folder) as place:
                report = attack_own_models(
                    memorising, plan, place, with_finetuned=finetuned, device=device, progress=progress
                )
    if as_json:
        console.show_json(report.to_json())
    else:
        _show(report)


def _refuse(context: typer.Context, options: dict[str, str]) -> None:
    for name, option in options.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(f"{option} decides what is trained, and --run is trained already; leave it out.")


@contextlib.contextmanager
def _working_folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="tacit-extraction-") as temporary:
        yield Path(temporary)


def _show(report: ExtractionReport) -> None:
    title = (
        f"{report.codes} codes of {report.digits} digits, {report.generations:,} generations each; "
        f"chance {report.chance:.3g}; 95% intervals (Clopper-Pearson)"
    )
    console.show_rows([_cells(row) for row in report.rows], as_json=False, name="rows", title=title)
    for basis in sorted({row.basis for row in report.rows if row.analytic and row.basis != "exact"}):
        console.out.print(f"* {basis}", markup=False)
    for row in report.rows:
        console.out.print(f"{_name(row)}: {row.guarantee}", markup=False)
    for note in report.notes:
        console.out.print(note, markup=False)


def _cells(row: ExtractionRow) -> dict[str, Any]:
    rate = row.rate
    computed = "-" if row.analytic is None else f"{row.analytic.value:.2g}"
    return {
        "mechanism": _name(row),
        "hit_rate": f"{rate.value:.3g} [{rate.low:.3g}, {rate.high:.3g}]",
        "computed": computed if row.basis == "exact" or row.analytic is None else f"{computed} *",
        "chance": f"{row.chance:.2g}",
        "at_most": "-" if row.at_most is None else f"{row.at_most:.2g}",
        "guarantee": row.guarantee.kind,
        "verdict": row.verdict,
    }


def _name(row: ExtractionRow) -> str:
    return row.name if row.epsilon is None else f"{row.name}, eps {row.epsilon:g}"
