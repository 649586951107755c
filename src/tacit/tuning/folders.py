"""A folder of `tacit tune` where Runs are expected: it stands for its Runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tacit.errors import InputError
from tacit.runs import Run
from tacit.tuning.record import FILE, TuneRecord, are_numbers


def runs_in(folders: Sequence[Path]) -> list[Run]:
    """The Runs of ``folders``, in order; a folder of `tacit tune` gives those that are audited."""
    return [run for folder in folders for run in _runs_in(folder)]


def varied_in(folders: Sequence[Path]) -> list[str | None]:
    """For each of these Runs, along which key its folder is a frontier; None for a Run given by itself.

    Between values that are no numbers there is nothing, so that a folder of such is no frontier.
    """
    found: list[str | None] = []
    for folder in folders:
        if not (folder / FILE).is_file():
            found.append(None)
            continue
        record = TuneRecord.load(folder)
        values = [entry.value for entry in record.audited]
        found += [record.key if are_numbers(values) else None] * len(values)
    return found


def _runs_in(folder: Path) -> Iterator[Run]:
    if not (folder / FILE).is_file():
        yield Run.open(folder)
        return
    audited = TuneRecord.load(folder).audited
    if not audited:
        raise InputError(f"No Run in {folder} is finished; go on with the tacit tune that began it.")
    yield from (Run.open(folder / entry.run) for entry in audited)


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """A name for each Run: its folder's, with the folder above where two are called alike.

    Two methods that were tuned over the same values have Runs of the same names.
    """
    paths = [run.folder.absolute() for run in runs]
    names = [path.name for path in paths]
    return [f"{path.parent.name}/{path.name}" if names.count(path.name) > 1 else path.name for path in paths]
