"""Screening a corpus from file to file: the points beside their report, both complete or neither there."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tacit.corpus.partition import Partition
from tacit.corpus.reading import source_of
from tacit.corpus.rows import BadRowCount, refuse_bad
from tacit.corpus.screening.binding import REPORT_FORMAT, report_path
from tacit.corpus.screening.difference import ScreeningTwice
from tacit.corpus.screening.gold_spans import read_spans
from tacit.corpus.screening.screening import RawDocument, Screening, ScreenSettings
from tacit.corpus.sources import iter_rows
from tacit.errors import CorpusError
from tacit.files import new_file, refuse_existing, write_json
from tacit.progress import Progress
from tacit.recipes import CorpusSection

_REMARK_EVERY = 512


def screen_corpus(
    section: CorpusSection,
    out: Path,
    settings: ScreenSettings,
    progress: Progress,
    *,
    partition: Partition | None = None,
    secrets: Collection[str] = (),
) -> dict[str, Any]:
    """Screen a corpus into ``out``, one line per data point, and give the report, which is written beside it.

    Both are for their owner alone. With a ``partition``, nothing is deduplicated across its parts. With
    ``secrets``, the corpus is screened a second time with every occurrence of them masked beforehand, and the
    report says in how many points the two differ.
    """
    report_file = report_path(out)
    for path in (out, report_file):
        refuse_existing(path)
    if section.blocks is not None:
        raise CorpusError("Blocks of tokens are not whole sentences; leave --blocks out.")
    bad = BadRowCount()
    screening = Screening(
        settings,
        part_of=None if partition is None else lambda user: partition.slot_of(user).part,
        parts=1 if partition is None else partition.parts,
    )
    twice = ScreeningTwice(screening, secrets) if secrets else None
    progress.phase("screening", None)
    documents = _documents(section, settings, bad, progress)
    digest = hashlib.sha256()
    with new_file(out, private=True) as handle:
        for number, point in enumerate((twice or screening).screen(documents)):
            line = point.to_line()
            digest.update(line)
            handle.write(line)
            if number % _REMARK_EVERY == 0:
                counts = screening.counts
                progress.advance(0, f"{counts.points:,} points, {counts.private:,} private")
        report = _report(section, settings, screening, bad, partition, twice)
        report["points"] = {"sha256": digest.hexdigest()}
        # Written last, and before the points have their name: where it cannot be, there are no points either.
        write_json(report_file, report, private=True)
    return report


def _documents(
    section: CorpusSection, settings: ScreenSettings, bad: BadRowCount, progress: Progress
) -> Iterator[RawDocument]:
    gold = settings.policy.gold
    on_bad = bad if section.skip_bad else refuse_bad
    for row in iter_rows(source_of(section), on_bad=on_bad, advance=progress.advance):
        spans = [] if gold is None else read_spans(row.record, gold.column, row.text, row.where)
        yield RawDocument(row.user, row.text, spans)


def _report(
    section: CorpusSection,
    settings: ScreenSettings,
    screening: Screening,
    bad: BadRowCount,
    partition: Partition | None,
    twice: ScreeningTwice | None,
) -> dict[str, Any]:
    policy = settings.policy
    near, bloom, repeats = (settings.dedup.kind == kind for kind in ("near", "bloom", "off"))
    outside = [
        name
        for name, chosen in (
            ("placeholders", policy.placeholders),
            ("near-duplicates", near),
            ("false repeats of a Bloom filter", bloom),
            ("repeated sentences, which were not deduplicated", repeats),
        )
        if chosen
    ]
    notes = screening.counts.notes(
        placeholders=policy.placeholders,
        near=near,
        bloom=bloom,
        repeats=repeats,
        everything_private=policy.conservative is None,
    )
    return {
        "format": REPORT_FORMAT,
        "corpus": section.path,
        "split": settings.split.to_json(),
        "dedup": settings.dedup.to_json(),
        "partition": None if partition is None else {"parts": partition.parts, "assign": partition.assign},
        "policy": policy.to_json(),
        "counts": screening.counts.to_json(),
        "group": None if twice is None else twice.difference.to_json(),
        "skipped": dict(bad.by_reason),
        "outside_the_proof": outside,
        "notes": notes if twice is None else [*notes, *twice.notes()],
    }
