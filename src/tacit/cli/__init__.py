"""The command line: one file per command. A command parses, calls the library, prints."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import tacit
from tacit.cli import console, corpus, evaluate, generate, models, train
from tacit.errors import EnvironmentProblem, TacitError

INTERRUPTED = 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(corpus.app, name="corpus")
app.add_typer(models.app, name="models")
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("generate")(generate.generate)


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
    4 refused because it would not be safe; 130 interrupted.
    """


def main() -> None:
    """Run the command line; an error that tacit knows becomes one sentence and an exit code."""
    try:
        app()
    except TacitError as problem:
        console.say(f"tacit: {problem}")
        sys.exit(problem.exit_code)
    except KeyboardInterrupt:
        console.say("tacit: interrupted.")
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; that is not an error, and Python must not
        # complain about it again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as problem:
        # Permissions, full disks, names that are too long: the operating system's word is the best there is.
        where = f"{problem.filename}: " if problem.filename else ""
        console.say(
            f"tacit: {where}{problem.strerror or problem}; check the path, its permissions and the disk."
        )
        sys.exit(EnvironmentProblem.exit_code)
