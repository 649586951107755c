"""`tacit generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import console
from tacit.errors import InputError
from tacit.recipes import DEFAULT_MODEL
from tacit.runs import Run


def generate(
    run_folder: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A Run; none samples a public model.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="Text to continue.")] = "",
    model: Annotated[
        str | None,
        typer.Option(help=f"The public model, when no Run is given; default: {DEFAULT_MODEL}."),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Most new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="For experiments: makes the sample repeatable.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: console.JsonFlag = False,
) -> None:
    """Sample text from a Run or from a public model, without any protection.

    Examples:

        tacit generate runs/first --prompt "USR: Where is my parcel?"

        tacit generate --model smollm2-135m-instruct --prompt "Once" --tokens 20
    """
    if run_folder is not None and model is not None:
        raise InputError("A Run brings its own public model; leave --model out, or the Run.")
    if tokens < 1:
        raise InputError(f"Expected --tokens >= 1, not {tokens}.")
    from tacit.models.generation import generate as sample
    from tacit.models.generation import generator_from
    from tacit.models.loading import load_public_model
    from tacit.models.trained import load_trained

    generator = generator_from(seed)
    if run_folder is not None:
        run = Run.open(run_folder)
        trained = load_trained(run, device=device)
        source, tokenizer = trained.model, trained.public.tokenizer
        guarantee = run.manifest.guarantee["statement"]
    else:
        loaded = load_public_model(model if model is not None else DEFAULT_MODEL, device=device)
        source, tokenizer = loaded.model, loaded.tokenizer
        guarantee = "public model: it never saw the private text"
    text = sample(
        source, tokenizer, prompt, max_new_tokens=tokens, temperature=temperature, generator=generator
    )
    if as_json:
        console.show_json({"prompt": prompt, "text": text, "guarantee": guarantee})
        return
    typer.echo(prompt + text)
    console.say(f"guarantee: {guarantee}")
