"""`tacit corpus convert`: published corpora, in the layouts that they come in, as JSON lines."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tacit.cli import console
from tacit.errors import InputError

Layout = Literal["multiwoz", "sgd", "bigpatent", "reddit", "avocado"]


def convert(
    layout: Annotated[
        Layout, typer.Argument(metavar="LAYOUT", help="multiwoz, sgd, bigpatent, reddit or avocado.")
    ],
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The corpus' folder, or one file of it.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="JSONL file to write.")],
    secrets: Annotated[
        str | None,
        typer.Option(
            help="Of dialogues: slots whose values are secrets; default Ref,Phone,Post,Addr,Id for multiwoz."
        ),
    ] = None,
    field: Annotated[
        Literal["description", "abstract"] | None,
        typer.Option(help="Of bigpatent: what of a patent is its text; default description."),
    ] = None,
    as_json: console.JsonFlag = False,
) -> None:
    """Turn a published corpus into documents with users, as every other command reads them.

    MultiWOZ (2.1, 2.2) and Schema-Guided Dialogue: each dialogue is a user, each turn a line; columns user,
    text and spans of secrets, as those of `corpus simulate`. BigPatent: each patent is a user. Reddit
    (Webis-TLDR-17, Pushshift): authors. Avocado (`data/text` of LDC2015T03): who sent an e-mail, without
    what it quotes.

    Examples:

        tacit corpus convert multiwoz multiwoz.jsonl dialogues-multiwoz.jsonl

        tacit corpus convert sgd dialogues_001.json sgd.jsonl --secrets phone_number,street_address

        tacit corpus convert bigpatent bigPatentData/train/g patents.jsonl
    """
    if layout == "multiwoz" or layout == "sgd":
        if field is not None:
            raise InputError("--field is for bigpatent; leave it out.")
        content = _dialogues(layout, source, out, secrets, as_json)
    else:
        if secrets is not None:
            raise InputError("--secrets is for multiwoz and sgd, which annotate slots; leave it out.")
        if field is not None and layout != "bigpatent":
            raise InputError("--field is for bigpatent; leave it out.")
        from tacit.corpus.published_texts import write_texts

        content = asdict(write_texts(layout, source, out, field=field or "description"))
    console.show({"written": str(out)} | content, as_json=as_json, title=f"{source}")


def _dialogues(
    layout: Literal["multiwoz", "sgd"], source: Path, out: Path, secrets: str | None, as_json: bool
) -> dict[str, Any]:
    from tacit.corpus.dialogue_corpora import write_dialogues

    chosen = None if secrets is None else [name.strip() for name in secrets.split(",") if name.strip()]
    if chosen == []:
        raise InputError("--secrets names no slot; give some, e.g. Ref,Phone.")
    counts = write_dialogues(layout, source, out, secrets=chosen)
    content: dict[str, Any] = asdict(counts)
    content["secrets"] = dict(counts.secrets)
    if not as_json:
        content["secrets"] = (
            ", ".join(f"{n:,} {label}" for label, n in counts.secrets.most_common()) or "none"
        )
    return content
