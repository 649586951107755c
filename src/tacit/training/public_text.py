"""The public text of early stopping: read, and refused where it is private or would never be used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tacit.corpus import CorpusSource, UserCorpus
from tacit.errors import RecipeError
from tacit.files import sha256_of
from tacit.recipes import Recipe


def read_public_text(recipe: Recipe, storage: Path) -> UserCorpus | None:
    """The text that the recipe stops early by, if any."""
    settings = recipe.training.early_stop
    if settings is None:
        return None
    source = CorpusSource(settings.public_text, format="text", user="file", document="paragraph")
    return UserCorpus.read(source, storage=storage)


def refuse_no_check(recipe: Recipe, steps: int) -> None:
    """Refuse early stopping that would never look at the public text in so many steps."""
    settings = recipe.training.early_stop
    if settings is not None and settings.every > steps:
        raise RecipeError(
            f"training.early_stop.every={settings.every} is more than the {steps} steps of this run, so that "
            f"it would never look; set it to {steps} or less, or remove training.early_stop."
        )


def refuse_private_text(recipe: Recipe, public: UserCorpus, private: UserCorpus) -> None:
    """Refuse public text that is the private corpus, as a file or line by line.

    By lines, because the same text is cut into documents in many ways. Text that is private only in part
    cannot be told from public text that somebody quoted; that it is public stays the operator's word.
    """
    settings = recipe.training.early_stop
    if settings is None:
        return
    unseen = {digest for document in public.documents() for digest in _lines(document.text)}
    same = _same_file(Path(settings.public_text), Path(recipe.corpus.path))
    for document in () if same else private.documents():
        unseen.difference_update(_lines(document.text))
        if not unseen:
            same = True
            break
    if same:
        raise RecipeError(
            f"training.early_stop.public_text={settings.public_text} is text of the private corpus; "
            "give public text, which everybody may read."
        )


def _same_file(public: Path, private: Path) -> bool:
    if not private.exists():  # a dataset of the hub
        return False
    if private.is_dir():
        return public.resolve().is_relative_to(private.resolve())
    same_size = public.is_file() and public.stat().st_size == private.stat().st_size
    return same_size and sha256_of(public) == sha256_of(private)


def _lines(text: str) -> Iterator[bytes]:
    for line in text.splitlines():
        if stripped := line.strip():
            yield hashlib.blake2b(stripped.encode(), digest_size=16).digest()
