"""All commands under one name, and what becomes of errors that tacit knows: a sentence and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import tacit
from tacit.cli import (
    account,
    account_training,
    attack,
    audit,
    compare,
    console,
    corpus,
    corpus_convert,
    corpus_screening,
    evaluate,
    experiment,
    generate,
    keys,
    ledger,
    models,
    serve,
    train,
    tune,
)
from tacit.errors import EnvironmentProblem, TacitError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
corpus.app.command("screen")(corpus_screening.screen)
corpus.app.command("calibrate")(corpus_screening.calibrate)
corpus.app.command("convert")(corpus_convert.convert)
account.app.command("dpsgd")(account_training.dpsgd)
account.app.command("crt")(account_training.crt)
app.add_typer(corpus.app, name="corpus")
app.add_typer(models.app, name="models")
app.add_typer(account.app, name="account")
app.add_typer(attack.app, name="attack")
app.add_typer(audit.app, name="audit")
app.add_typer(ledger.app, name="ledger")
app.add_typer(keys.app, name="keys")
app.add_typer(experiment.app, name="experiment")
app.command("train")(train.train)
app.command("tune")(tune.tune)
app.command("evaluate")(evaluate.evaluate)
app.command("generate")(generate.generate)
app.command("compare")(compare.compare)
app.command("serve")(serve.serve)

# How torch says that it got no memory; it has no type of its own for that on the CPU.
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Language models that keep what they read to themselves.

    Exit codes: 0 done; 1 failed; 2 the input cannot be used; 3 the machine lacks something;
    4 refused because it would not be safe; 130 interrupted; 143 terminated.
    """


def run() -> None:
    """Run the command that the arguments name; always ends in SystemExit or in a bug's traceback."""
    try:
        app()
    except TacitError as problem:
        _fail(str(problem), problem.exit_code)
    except BrokenPipeError:
        raise
    except OSError as problem:
        # Permissions, full disks, names that are too long: the operating system's word is the best there is.
        where = f"{problem.filename}: " if problem.filename else ""
        reason = problem.strerror or problem
        _fail(f"{where}{reason}; check the path, its permissions and the disk.", EnvironmentProblem.exit_code)
    except (MemoryError, RuntimeError) as problem:
        if not isinstance(problem, MemoryError) and not any(sign in str(problem) for sign in _OUT_OF_MEMORY):
            raise
        remedy = "use a smaller batch, block or adapter, or a machine with more memory"
        _fail(f"the memory does not suffice; {remedy}.", EnvironmentProblem.exit_code)


def _fail(sentence: str, code: int) -> None:
    console.say(f"tacit: {sentence}")
    sys.exit(code)
