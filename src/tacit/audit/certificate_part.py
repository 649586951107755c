"""The part of ``audit.json`` about a Run's certificate: what confidential training promises, in its words.

It is the owner's certificate, with the counts that are not for publication: so is the file that it is put in.
"""

from __future__ import annotations

from typing import Any

from tacit.audit.file_parts import Part
from tacit.errors import InputError
from tacit.privacy import Certificate
from tacit.runs import Run


class Paragraph(Part):
    """A heading and the sentences below it."""

    heading: str
    lines: tuple[str, ...]


class CertificatePart(Part):
    """What it promises; for comparisons and conditions there is ``certificate.json``."""

    paragraphs: tuple[Paragraph, ...]


def of_certificate(certificate: Certificate) -> dict[str, Any]:
    """As ``audit.json`` has it."""
    return {
        "paragraphs": [
            {"heading": heading, "lines": list(lines)} for heading, lines in certificate.promises()
        ]
    }


def certificate_part(run: Run) -> dict[str, Any] | None:
    """A Run's certificate for its audit; None where its method gives none."""
    content = run.certificate()
    if content is None and run.manifest.method == "crt":
        raise InputError(f"{run.folder}: certificate.json is missing; restore it or train again.")
    if content is None:
        return None
    try:
        return of_certificate(Certificate.from_json(content))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(
            f"{run.folder}: certificate.json cannot be used; restore it or train again."
        ) from None
