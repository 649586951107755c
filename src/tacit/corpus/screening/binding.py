"""A screened corpus and its report belong together: the report holds the digest of every byte of the points.

What training promises rests on what the screening did, and only the screening knows that. A file that was
edited afterwards, however plausibly, is another file: it is refused wherever it is read. The report is the
owner's, so that its plain digest confirms nobody's guess. Whoever can write both files can forge both; that
is outside of what tacit claims.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tacit.errors import CorpusError, Tampered
from tacit.files import read_json, sha256_of

REPORT_FORMAT: Final = "tacit screening report 2"
_AGAIN = "screen the corpus again with tacit corpus screen"


def report_path(screened: Path) -> Path:
    """Where the report of a screened corpus lies."""
    return screened.with_name(f"{screened.name}.report.json")


def report_of(screened: Path) -> dict[str, Any] | None:
    """The report of exactly these points; nothing where there is no report beside them.

    Points that the report was not written for are refused, and so is a report that binds none.
    """
    path = report_path(screened)
    if not path.is_file():
        return None
    report = read_json(path, _AGAIN)
    bound, counts = report.get("points"), report.get("counts")
    digest = bound.get("sha256") if isinstance(bound, dict) else None
    if report.get("format") != REPORT_FORMAT or not isinstance(digest, str) or not isinstance(counts, dict):
        raise CorpusError(f"{path} does not say which data points it is about; {_AGAIN}.")
    try:
        found = sha256_of(screened)
    except OSError as problem:
        raise CorpusError(f"{screened}: cannot be read ({problem.strerror}); {_AGAIN}.") from None
    if found != digest:
        raise Tampered(
            f"{screened} is not as its screening wrote it: {path.name} has another digest; restore the file, "
            f"or {_AGAIN}."
        )
    return report


def required_report(screened: Path, method: str) -> dict[str, Any]:
    """The report of exactly these points, where a promise rests on it."""
    report = report_of(screened)
    if report is None:
        raise CorpusError(
            f"{report_path(screened)} is missing, and method '{method}' promises what the screening did; "
            f"keep it beside the data points, or {_AGAIN}."
        )
    return report
