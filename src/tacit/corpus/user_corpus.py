"""Documents keyed by the user who wrote them, on disk, in the order in which they were read.

A ``UserCorpus`` knows its privacy unit. It holds two integers per document and the list of users; the text
stays in an Arrow file. Selections are views on that file, so splitting and partitioning copy no text. A
corpus that was read lives in a folder that only its owner can enter, and that goes when the corpus goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from tacit.corpus.chat import Renderer, TemplateRenderer
from tacit.corpus.corpus_folder import (
    CorpusFacts,
    CorpusFolder,
    CorpusUnit,
    NewCorpus,
    lasting_folder,
    read_facts,
    temporary_folder,
)
from tacit.corpus.documents_file import Codes, DocumentsFile, Fingerprint, RowNumbers, read_users
from tacit.corpus.limits import require_whole
from tacit.corpus.rows import BadRow, BadRowCount, UnusableRow, checked_text, checked_user, refuse_bad
from tacit.corpus.sources import CorpusSource, iter_rows
from tacit.errors import CorpusError, Tampered

_DOCUMENTS_PER_TOKENIZER_CALL = 256
_LONGEST_BLOCK = 2**31 - 1


class BlockTokenizer(Protocol):
    """What is needed of a public tokenizer to cut a corpus in blocks."""

    @property
    def fingerprint(self) -> str:
        """Tells one tokenizer from another."""
        ...

    def encode(self, texts: Sequence[str], *, control_tokens: bool = False) -> list[list[int]]:
        """The token ids of each text, without start or end tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        ...


@dataclass(frozen=True, slots=True)
class Document:
    """One document; ``index`` is its position in the corpus, ``tokens`` is set where a block is the user."""

    user: str
    text: str
    tokens: tuple[int, ...] | None
    index: int


class UserCorpus:
    """Documents by user.

    ``unit`` says what one user is: a person's id (``user``), a block of tokens (``block``), or nothing yet
    (``undivided``: text read without users, good only for ``in_blocks``). ``users`` is in the order of first
    appearance. ``skipped`` counts the rows that the reading left out, by reason.
    """

    def __init__(
        self,
        folder: CorpusFolder,
        file: DocumentsFile,
        facts: CorpusFacts,
        users: Sequence[str],
        codes: Codes,
        rows: RowNumbers,
    ) -> None:
        self._folder = folder  # held so that the folder outlives every view on it
        self._file = file
        self._facts = facts
        self._codes = codes
        self._rows = rows
        self.users: Sequence[str] = tuple(users)
        self.unit: CorpusUnit = facts.unit
        self.skipped: Mapping[str, int] = MappingProxyType(dict(facts.skipped))
        self.tokenizer_fingerprint = facts.tokenizer_fingerprint

    def __len__(self) -> int:
        return len(self._codes)

    def __repr__(self) -> str:
        return f"UserCorpus(unit={self.unit!r}, users={len(self.users)}, documents={len(self)})"

    @classmethod
    def read(
        cls,
        source: CorpusSource,
        *,
        render: Renderer | None = None,
        skip_bad: bool = False,
        without_users: bool = False,
        screened: bool = False,
        progress: Callable[[int], None] | None = None,
        storage: Path | None = None,
    ) -> Self:
        """Read a source into a temporary folder, which lies in ``storage`` where that is given.

        ``without_users`` is for text that will be cut in blocks, ``screened`` for what a screening wrote.
        ``progress`` is called with increments, as
        ``iter_rows`` says. Nothing is left behind when a row is refused.
        """
        bad = BadRowCount()
        rows = iter_rows(
            source, render, bad if skip_bad else refuse_bad, without_users=without_users, advance=progress
        )
        new = NewCorpus(
            place=source.path,
            documents=((row.user, row.text, None) for row in rows),
            unit="undivided" if without_users else "user",
            skipped=bad.by_reason,
            tokenizer_fingerprint=(
                render.tokenizer.fingerprint if isinstance(render, TemplateRenderer) else None
            ),
            screened=screened,
        )
        return cls._opened(temporary_folder(new, storage))

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str, str]], *, screened: bool = False) -> Self:
        """Make a corpus of (user, text) pairs, which must be what a row of a file must be."""
        new = NewCorpus("The list of pairs", _checked_pairs(pairs), "user", {}, screened=screened)
        return cls._opened(temporary_folder(new, None))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a saved corpus; every document is checked against the fingerprint that was saved."""
        corpus = cls._opened(CorpusFolder(folder))
        if corpus._computed_fingerprint() != corpus.fingerprint:
            raise Tampered(
                f"{folder}: the documents do not match the saved fingerprint; make the corpus again."
            )
        return corpus

    def save(self, folder: Path) -> None:
        """Write the corpus to a new folder that only its owner can enter."""
        documents = ((document.user, document.text, document.tokens) for document in self.documents())
        new = NewCorpus(
            "The selection", documents, self.unit, self.skipped, self.tokenizer_fingerprint, self.has_masks
        )
        lasting_folder(folder, new)

    def close(self) -> None:
        """Remove a temporary folder now rather than later; no view on it can be read afterwards."""
        self._folder.remove()

    @classmethod
    def _opened(cls, folder: CorpusFolder) -> Self:
        facts, users, file = read_facts(folder.path), read_users(folder.path), DocumentsFile(folder.path)
        codes = file.codes()
        if (len(codes), len(users)) != (facts.documents, facts.users) or set(np.unique(codes)) != set(
            range(len(users))
        ):
            raise Tampered(
                f"{folder.path}: documents and users do not belong together; make the corpus again."
            )
        return cls(folder, file, facts, users, codes, np.arange(len(codes), dtype=np.int64))

    def documents(self) -> Iterator[Document]:
        """Every document in order, in memory that does not grow with their number."""
        users, codes = self.users, self._codes
        for index, (text, tokens) in enumerate(self._file.stream(self._rows)):
            yield Document(users[codes[index]], text, tokens, index)

    def documents_of(self, user: str) -> Iterator[Document]:
        """The documents of one user in order; none for somebody who is not in the corpus."""
        code = self._code_of.get(user)
        if code is None:
            return
        order, starts = self._by_user
        positions = order[starts[code] : starts[code + 1]]
        for index, (text, tokens) in zip(positions, self._file.pick(self._rows[positions]), strict=True):
            yield Document(user, text, tokens, int(index))

    def document_counts(self) -> npt.NDArray[np.int64]:
        """The number of documents of each user, in the order of ``users``."""
        return np.bincount(self._codes, minlength=len(self.users)).astype(np.int64)

    def user_codes(self) -> Codes:
        """For each document the position of its user in ``users``."""
        return self._codes.copy()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over user and text (and token ids, if any) of every document in order."""
        whole = len(self) == self._facts.documents
        return self._facts.fingerprint if whole else self._computed_fingerprint()

    def _computed_fingerprint(self) -> str:
        fingerprint = Fingerprint()
        for document in self.documents():
            fingerprint.add(document.user.encode(), document.text.encode(), document.tokens)
        return fingerprint.hexdigest()

    @cached_property
    def _code_of(self) -> dict[str, int]:
        return {user: code for code, user in enumerate(self.users)}

    @cached_property
    def _by_user(self) -> tuple[RowNumbers, RowNumbers]:
        """Positions of the documents ordered by user, and where each user's begin."""
        order = np.argsort(self._codes, kind="stable")
        return order, np.concatenate([[0], np.cumsum(self.document_counts())])

    def select(self, keep: npt.NDArray[np.bool_]) -> Self:
        """The documents where ``keep`` is true: a view, possibly empty, in which users without any vanish."""
        if keep.dtype != np.bool_ or keep.shape != (len(self),):
            raise ValueError(
                f"Expected keep of {len(self)} booleans, got {keep.dtype} of shape {keep.shape}."
            )
        kept, first, codes = np.unique(self._codes[keep], return_index=True, return_inverse=True)
        # Renumbered, so that users stay in the order in which they first appear in the selection.
        appearance = np.argsort(first)
        renumbered = np.empty(len(kept), np.int32)
        renumbered[appearance] = np.arange(len(kept), dtype=np.int32)
        users = [self.users[code] for code in kept[appearance]]
        return type(self)(self._folder, self._file, self._facts, users, renumbered[codes], self._rows[keep])

    def of_users(self, users: Collection[str]) -> Self:
        """The documents of ``users``, of whom some may have none: a view, possibly empty."""
        wanted = frozenset(users)
        is_wanted = np.fromiter((user in wanted for user in self.users), np.bool_, len(self.users))
        return self.select(is_wanted[self._codes])

    @property
    def has_control_tokens(self) -> bool:
        """Whether a chat template wrote the text: its markers of turns are control tokens, not characters."""
        return self.unit != "block" and self.tokenizer_fingerprint is not None

    @property
    def has_masks(self) -> bool:
        """Whether a screening wrote the text: ``<MASK>`` is what it hid, and not six characters."""
        return self._facts.screened

    def row_numbers(self) -> RowNumbers:
        """For each document its position in what was read; a selection leaves some out."""
        return self._rows.copy()

    def in_blocks(self, tokenizer: BlockTokenizer, size: int, *, storage: Path | None = None) -> UserCorpus:
        """Concatenate the tokens of all documents in order and make every run of ``size`` of them a user.

        Nothing is put between documents and no special tokens are added. The last block is kept however
        short, so that every token has exactly one owner. The ids are stored beside the decoded text, because
        a cut may go through a character and tokenising the text again would then move the boundaries.
        ``storage`` is what it is to ``read``.
        """
        require_whole("blocks", size, most=_LONGEST_BLOCK, example=512)
        if self.has_control_tokens and self.tokenizer_fingerprint != tokenizer.fingerprint:
            raise CorpusError("Another model's chat template wrote this text; render it with this model's.")
        if self.has_masks:
            raise CorpusError(
                "Blocks would tear the data points of a screened corpus apart; train on them as they are."
            )
        if self.unit == "block":
            raise CorpusError("The corpus is cut in blocks already; cut the corpus that it was made from.")
        blocks = (
            (f"block-{number:08d}", tokenizer.decode(ids), ids)
            for number, ids in enumerate(_runs(self._token_ids(tokenizer), size))
        )
        new = NewCorpus("The corpus in blocks", blocks, "block", self.skipped, tokenizer.fingerprint)
        return UserCorpus._opened(temporary_folder(new, storage))

    def _token_ids(self, tokenizer: BlockTokenizer) -> Iterator[list[int]]:
        texts: list[str] = []
        for document in self.documents():
            texts.append(document.text)
            if len(texts) == _DOCUMENTS_PER_TOKENIZER_CALL or document.index == len(self) - 1:
                yield from tokenizer.encode(texts, control_tokens=self.has_control_tokens)
                texts = []


def _checked_pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str, None]]:
    for number, pair in enumerate(pairs, 1):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise CorpusError(f"pair {number}: expected (user, text), not {type(pair).__name__}; correct it.")
        user, text = pair
        try:
            yield checked_user(user), checked_text(text), None
        except UnusableRow as problem:
            raise BadRow(f"pair {number}", problem.reason, problem.detail).error() from None


def _runs(token_ids: Iterable[list[int]], size: int) -> Iterator[list[int]]:
    pending: list[int] = []
    for ids in token_ids:
        pending.extend(ids)
        whole = len(pending) - len(pending) % size
        yield from (pending[start : start + size] for start in range(0, whole, size))
        del pending[:whole]
    if pending:
        yield pending
