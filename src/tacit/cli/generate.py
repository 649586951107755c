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
    model: Annotated[str, typer.Option(help="The public model, when no Run is given.")] = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(min=1, help="Most new tokens.")] = 64,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the likeliest token.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="For experiments: makes the sample repeatable.")] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Sample text from a Run or from a public model, without any protection.

    Examples:

        tacit generate runs/first --prompt "USR: Where is my parcel?"

        tacit generate --model smollm2-135m-instruct --prompt "Once" --tokens 20
    """
    if temperature != temperature:
        raise InputError("Expected --temperature >= 0, e.g. 0.8.")
    import torch

    from tacit.models.generation import generate as sample
    from tacit.models.loading import load_public_model
    from tacit.models.trained import load_trained

    generator = None if seed is None else torch.Generator().manual_seed(seed)
    if run_folder is not None:
        run = Run.open(run_folder)
        trained = load_trained(run)
        source, tokenizer = trained.model, trained.public.tokenizer
        guarantee = run.manifest.guarantee["statement"]
    else:
        loaded = load_public_model(model)
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
