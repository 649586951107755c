"""Options that say whose text is whose, shared by every command that reads a corpus."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from tacit.errors import InputError
from tacit.recipes import CorpusSection

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
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and count them.")]


def corpus_section(
    path: str,
    user: str | None,
    text: str | None,
    messages: str | None,
    chat: Literal["template", "plain"],
    form: Format,
    document: Literal["file", "paragraph", "line"],
    blocks: int | None,
    skip_bad: bool,
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
            skip_bad=skip_bad,
        )
    except ValidationError as problem:
        raise InputError(f"--{problem.errors()[0]['loc'][0]}: {problem.errors()[0]['msg']}.") from None
