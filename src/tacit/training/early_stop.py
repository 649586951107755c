"""Early stopping: on public text, which must not be the private text under another name."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.corpus import CorpusSource, UserCorpus
from tacit.errors import RecipeError
from tacit.files import sha256_of
from tacit.progress import Progress
from tacit.recipes import EarlyStopSection
from tacit.training.encoding import Batch, Rows, encode, lay_out
from tacit.training.next_token import NextTokenTask
from tacit.training.preparation import Prepared

_ROWS_AT_ONCE = 8


@dataclass(frozen=True)
class PublicCheck:
    """The rows of the public text, and when to give up."""

    settings: EarlyStopSection
    task: NextTokenTask
    rows: Rows

    def loss(self) -> float:
        """Mean loss per token on the public text, as the model is now."""
        return self.task.mean_loss_of(self._batches())

    def _batches(self) -> Iterator[Batch]:
        # One at a time: their masks together can be larger than the model.
        for begin in range(0, len(self.rows), _ROWS_AT_ONCE):
            group = np.arange(begin, min(begin + _ROWS_AT_ONCE, len(self.rows)))
            yield self.task.batch_of(self.rows, group)


def public_check_for(
    prepared: Prepared, task: NextTokenTask, storage: Path, progress: Progress
) -> PublicCheck | None:
    """The check that the recipe asks for, if any."""
    settings = prepared.recipe.training.early_stop
    if settings is None:
        return None
    source = CorpusSource(settings.public_text, format="text", user="file", document="paragraph")
    public = UserCorpus.read(source, storage=storage)
    refuse_private_text(public, prepared, settings)
    block_size = prepared.recipe.training.block_size
    encoded = encode(
        public,
        prepared.public.tokenizer,
        block_size=block_size,
        storage=storage / "public.int32",
        progress=progress,
    )
    return PublicCheck(settings, task, lay_out(encoded, block_size=block_size, packing=prepared.rows.packed))


def refuse_private_text(public: UserCorpus, prepared: Prepared, settings: EarlyStopSection) -> None:
    """Refuse public text that is the private corpus, as a file or line by line.

    By lines, because the same text is cut into documents in many ways. Text that is private only in part
    cannot be told from public text that somebody quoted; that it is public stays the operator's word.
    """
    unseen = {digest for document in public.documents() for digest in _lines(document.text)}
    same = _same_file(Path(settings.public_text), Path(prepared.recipe.corpus.path))
    for document in () if same else prepared.corpus.whole.documents():
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
