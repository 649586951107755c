"""How a corpus lies on disk: one Arrow IPC file of documents, one of users, one JSON of facts.

Documents are written batch by batch as they arrive, so a corpus may be larger than memory. Reading all of
them copies one batch at a time through an ordinary file, because the pages of a memory map would count as
this process's memory until the system wants them back; reading a few of them goes through the map, which
touches nothing else.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tacit.errors import Tampered

DOCUMENTS = "documents.arrow"
USERS = "users.arrow"

_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 4096
_USERS_SCHEMA = pa.schema([("user", pa.large_string())])
_SCHEMA = pa.schema([("user", pa.int32()), ("text", pa.large_string())])
_BLOCK_SCHEMA = _SCHEMA.append(pa.field("tokens", pa.large_list(pa.int32())))

RowNumbers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]


class StoredText(NamedTuple):
    """What the file holds of one document besides whose it is."""

    text: str
    tokens: tuple[int, ...] | None


class Fingerprint:
    """SHA-256 over the documents in order, each part prefixed with its length so that no boundary can move.

    The token ids of a block are part of it: decoding is not injective, so the text does not determine them.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, user: bytes, text: bytes, tokens: Sequence[int] | None) -> None:
        """Take in the next document."""
        self._digest.update(struct.pack("<QQ", len(user), len(text)) + user)
        self._digest.update(text)
        if tokens is not None:
            self._digest.update(struct.pack("<Q", len(tokens)) + np.asarray(tokens, "<i4").tobytes())

    def hexdigest(self) -> str:
        """The fingerprint of everything taken in so far."""
        return self._digest.hexdigest()


class DocumentsWriter:
    """Writes documents as they come, holding one batch."""

    def __init__(self, handle: IO[bytes], *, with_tokens: bool) -> None:
        self.users: list[str] = []
        self.codes = array("i")
        self.fingerprint = Fingerprint()
        self._code_of: dict[str, int] = {}
        self._texts: list[bytes] = []
        self._tokens: list[Sequence[int]] = []
        self._pending_bytes = 0
        self._with_tokens = with_tokens
        self._writer = pa.ipc.new_file(handle, _BLOCK_SCHEMA if with_tokens else _SCHEMA)

    def append(self, user: str, text: str, tokens: Sequence[int] | None) -> None:
        """Write one document; ``tokens`` exactly where the file has them."""
        code = self._code_of.setdefault(user, len(self.users))
        if code == len(self.users):
            self.users.append(user)
        encoded = text.encode()
        self.fingerprint.add(user.encode(), encoded, tokens)
        self.codes.append(code)
        self._texts.append(encoded)
        self._pending_bytes += len(encoded)
        if tokens is not None:
            self._tokens.append(tokens)
        if self._pending_bytes >= _BATCH_BYTES or len(self._texts) >= _BATCH_DOCUMENTS:
            self._flush()

    def close(self) -> None:
        """Write what is pending and the file's end."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if not self._texts:
            return
        count = len(self._texts)
        columns = [pa.array(np.asarray(self.codes[-count:], np.int32)), _large_strings(self._texts)]
        if self._with_tokens:
            columns.append(pa.array(self._tokens, pa.large_list(pa.int32())))
        schema = _BLOCK_SCHEMA if self._with_tokens else _SCHEMA
        self._writer.write_batch(pa.record_batch(columns, schema=schema))
        self._texts.clear()
        self._tokens.clear()
        self._pending_bytes = 0


def _large_strings(encoded: Sequence[bytes]) -> Any:
    # From buffers, because the bytes are at hand already and Arrow would encode every string again.
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)


class DocumentsFile:
    """Reads the documents of a finished file, in sequence or here and there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DOCUMENTS
        if self._mapped.schema not in (_SCHEMA, _BLOCK_SCHEMA):
            raise Tampered(f"{self._path} does not have the columns of a corpus; make the corpus again.")

    @cached_property
    def _mapped(self) -> Any:
        try:
            return pa.ipc.open_file(pa.memory_map(str(self._path)))
        except (pa.ArrowException, OSError):
            raise Tampered(f"{self._path} is missing or damaged; make the corpus again.") from None

    @cached_property
    def _starts(self) -> RowNumbers:
        """The first row of each batch, and the number of rows."""
        mapped = self._mapped
        counts = [mapped.get_batch(number).num_rows for number in range(mapped.num_record_batches)]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)

    def codes(self) -> Codes:
        """The user code of every document."""
        mapped = self._mapped
        batches = (mapped.get_batch(number) for number in range(mapped.num_record_batches))
        return np.concatenate([np.zeros(0, np.int32), *(batch.column(0).to_numpy() for batch in batches)])

    def stream(self, rows: RowNumbers) -> Iterator[StoredText]:
        """Documents at ascending ``rows``, in memory that does not grow with their number."""
        with pa.OSFile(str(self._path)) as file:
            yield from self._read(pa.ipc.open_file(file), rows)

    def pick(self, rows: RowNumbers) -> Iterator[StoredText]:
        """A few documents at ascending ``rows``, without reading those around them."""
        yield from self._read(self._mapped, rows)

    def _read(self, reader: Any, rows: RowNumbers) -> Iterator[StoredText]:
        bounds = np.searchsorted(rows, self._starts)
        for number in np.flatnonzero(np.diff(bounds)):
            chosen = rows[bounds[number] : bounds[number + 1]] - self._starts[number]
            batch = reader.get_batch(int(number)).take(pa.array(chosen))
            texts = batch.column(1).to_pylist()
            if batch.num_columns == len(_SCHEMA):
                yield from (StoredText(text, None) for text in texts)
            else:
                tokens = batch.column(2).to_pylist()
                yield from (StoredText(text, tuple(ids)) for text, ids in zip(texts, tokens, strict=True))


def write_users(handle: IO[bytes], users: Sequence[str]) -> None:
    """Write the user ids, whose positions are the codes in the documents' file."""
    with pa.ipc.new_file(handle, _USERS_SCHEMA) as writer:
        writer.write_batch(pa.record_batch([pa.array(users, pa.large_string())], schema=_USERS_SCHEMA))


def read_users(folder: Path) -> list[str]:
    """Read the user ids."""
    path = folder / USERS
    try:
        with pa.OSFile(str(path)) as file:
            users: list[str] = pa.ipc.open_file(file).read_all().column("user").to_pylist()
    except (pa.ArrowException, OSError, KeyError):
        raise Tampered(f"{path} is missing or damaged; make the corpus again.") from None
    return users
