"""Parquet files and Hugging Face datasets: formats that come as batches of typed columns.

Rows are numbered from 1. Only the named columns are read. Nothing from the hub is ever executed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tacit.corpus.columns import ColumnReader, listed
from tacit.corpus.line_formats import Advance
from tacit.corpus.rows import NOT_UTF8, Row, UnusableRow
from tacit.errors import CorpusError, DownloadFailed, UnsafeFile

_ROWS_PER_BATCH = 1024


def parquet_rows(path: Path, reader: ColumnReader, advance: Advance) -> Iterator[Row]:
    """The rows of one Parquet file, batch by batch."""
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            columns = reader.present(file.schema_arrow.names)
            batches = file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=columns)
            yield from _batch_rows(batches, columns, reader, advance)
    except (pa.ArrowException, OSError):
        raise CorpusError(f"{path} cannot be read as Parquet; write it again, or name its format.") from None


def dataset_rows(
    path: str,
    reader: ColumnReader,
    advance: Advance,
    *,
    split: str | None,
    revision: str | None,
    config: str | None,
) -> Iterator[Row]:
    """The rows of a folder written by ``save_to_disk`` or of an ``owner/name`` of the hub."""
    if Path(path).is_dir():
        if revision is not None or config is not None:
            raise CorpusError(f"{path} is a folder; a revision or config belongs to a Hugging Face id.")
        dataset = _saved_dataset(path)
    else:
        dataset = _hub_dataset(path, revision=revision, config=config)
    dataset = _one_split(dataset, path, split)
    columns = reader.present(dataset.column_names)
    batches = dataset.select_columns(columns).with_format("arrow").iter(batch_size=_ROWS_PER_BATCH)
    yield from _batch_rows(batches, columns, reader, advance)


def _one_split(dataset: Any, path: str, split: str | None) -> Any:
    if not isinstance(dataset, dict):
        if split is not None:
            raise CorpusError(f"{path} has no splits; leave 'split' out.")
        return dataset
    if split is None and len(dataset) == 1:
        return next(iter(dataset.values()))
    if split not in dataset:
        raise CorpusError(f"{path}: name one of its splits: {listed(list(dataset))}.")
    return dataset[split]


def _saved_dataset(path: str) -> Any:
    import datasets  # here, because it takes a second that no other format should pay

    try:
        return datasets.load_from_disk(path)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        raise CorpusError(f"{path} cannot be read as a saved dataset; write it with save_to_disk.") from None


def _hub_dataset(path: str, *, revision: str | None, config: str | None) -> Any:
    # To `datasets` a bare name such as "json" is a loader, and one that reads every file around it.
    if path.count("/") != 1 or Path(path).exists():
        raise CorpusError(
            f"{path} is neither a saved dataset's folder nor an 'owner/name' of the Hugging Face hub."
        )
    import datasets

    try:
        with _without_log_lines():
            return datasets.load_dataset(path, config, revision=revision)
    except ValueError:
        raise CorpusError(
            f"{path}: the hub's dataset needs another id, config or revision; check them."
        ) from None
    except RuntimeError:
        raise UnsafeFile(
            f"{path} comes as code, which tacit never runs; convert it to Parquet first."
        ) from None
    except (OSError, datasets.exceptions.DatasetsError) as problem:
        raise DownloadFailed(
            f"The hub did not deliver the dataset {path} ({type(problem).__name__}); check the id and the "
            "connection, or give a folder written by save_to_disk."
        ) from None


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    """Keep what the libraries log of every retry off the terminal: the failure is told once, at the end."""
    loggers = [logging.getLogger(name) for name in ("datasets", "huggingface_hub")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _batch_rows(
    batches: Iterable[Any], columns: Sequence[str], reader: ColumnReader, advance: Advance
) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for values in zip(*(_python_values(batch.column(name)) for name in columns), strict=True):
            number += 1
            where = f"{reader.place}, row {number}"
            try:
                row = reader.row(dict(zip(columns, values, strict=True)), where)
            except UnusableRow as problem:
                reader.report(where, problem)
                continue
            yield row
        advance(batch.num_rows)


def _python_values(column: Any) -> list[object]:
    try:
        values: list[object] = column.to_pylist()
    except UnicodeDecodeError:
        # Arrow takes a file's word that its strings are UTF-8; find the values that are not.
        values = [_python_value(scalar) for scalar in column]
    return values


def _python_value(scalar: Any) -> object:
    try:
        value: object = scalar.as_py()
    except UnicodeDecodeError:
        value = NOT_UTF8
    return value
