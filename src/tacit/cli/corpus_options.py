"""Options that say whose text is whose, shared by every command that reads a corpus."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from tacit.errors import InputError
from tacit.recipes import CorpusSection, expected

Format = Literal["auto", "jsonl", "csv", "parquet", "text", "datasets"]

UserOption = Annotated[
    str | None, typer.Option(help="Column with the user id; for text files: 'file'. Never guessed.")
]
TextOption = Annotated[str | None, typer.Option(help="Column with the text.")]
MessagesOption = Annotated[str | None, typer.Option(help="Column with chat messages, instead of --text.")]
ChatOption = Annotated[
    Literal["template", "plain"], typer.Option(help="Chat messages: the model's template, or plain lines.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="Of the file; auto goes by its ending.")]
DocumentOption = Annotated[
    Literal["file", "paragraph", "line"], typer.Option(help="What one document is, in text files.")
]
BlocksOption = Annotated[
    int | None, typer.Option(min=2, help="Make every block of this many tokens a user of its own.")
]
SplitOption = Annotated[str | None, typer.Option(help="Split of a Hugging Face dataset.")]
ConfigOption = Annotated[str | None, typer.Option(help="Config of a Hugging Face dataset.")]
RevisionOption = Annotated[str | None, typer.Option(help="Revision of a Hugging Face dataset.")]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and count them.")]


def corpus_section(
    path: str,
    user: str | None = None,
    text: str | None = None,
    messages: str | None = None,
    chat: Literal["template", "plain"] = "template",
    form: Format = "auto",
    document: Literal["file", "paragraph", "line"] = "file",
    blocks: int | None = None,
    skip_bad: bool = False,
    *,
    split: str | None = None,
    config: str | None = None,
    revision: str | None = None,
) -> CorpusSection:
    """The options as the section of a recipe that they stand for."""
    try:
        return CorpusSection(
            path=path,
            format=form,
            user=user,
            text=text,
            messages=messages,
            chat=chat,
            document=document,
            blocks=blocks,
            split=split,
            config=config,
            revision=revision,
            skip_bad=skip_bad,
        )
    except ValidationError as problem:
        error = problem.errors(include_url=False)[0]
        name = error["loc"][0]
        option = "CORPUS" if name == "path" else f"--{name}"
        raise InputError(f"{option} cannot be used: {expected(error)}.") from None
