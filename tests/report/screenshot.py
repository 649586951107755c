"""The picture in the documentation: a report, from an audit or from the made-up sample.

    python -m tests.report.screenshot docs/report.png [DARK.png] [--audit RUN/audit.json] [--whole]

The sample is labelled as made up in its name. Without ``--whole`` the picture ends after the utility.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tacit.files import read_json
from tacit.report import render_report
from tests.report.samples import NAME, sample_audit
from tests.serving.browser import chromium

_WIDTH, _HEIGHT = 1280, 2100


def shoot(page_file: Path, picture: Path, scheme: str, *, whole: bool, width: int = _WIDTH) -> None:
    with chromium() as browser:
        context = browser.new_context(
            viewport={"width": width, "height": _HEIGHT},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page = context.new_page()
        page.goto(page_file.as_uri())
        page.screenshot(path=picture, full_page=whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path, help="light, then dark")
    parser.add_argument("--audit", type=Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--width", type=int, default=_WIDTH)
    given = parser.parse_args()
    if given.audit is None:
        page = render_report(sample_audit(), run_name=NAME)
    else:
        page = render_report(
            read_json(given.audit, "audit again"), run_name=given.audit.resolve().parent.name
        )
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "report.html"
        file.write_text(page, encoding="utf-8")
        for path, scheme in zip(given.pictures, ("light", "dark"), strict=False):
            shoot(file, path, scheme, whole=given.whole, width=given.width)
            print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
