"""The picture in the documentation: a report, from an audit or from made-up measurements.

    python -m tests.report.screenshot docs/report.png [DARK.png] [--audit RUN/audit.json] [--whole]

What was measured is made up, and the name says so; what became of the claims the program works out. Without
``--whole`` the picture ends after the utility.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tacit.audit import Claim, exposure_bound, judge
from tacit.audit.claimed import JudgedClaim
from tacit.audit.record import ClaimRecord
from tacit.audit.whole_curve import CurveFinding, WholeCurve, gaussian_bound
from tacit.files import read_json
from tacit.privacy import DpSgdProcess, Guarantee, dpsgd_curve
from tacit.report import render_report
from tests.report.samples import NAME, sample_audit
from tests.serving.browser import chromium

_WIDTH, _HEIGHT = 1280, 2100
_CANDIDATES, _DELTA = 10**6, 1e-5
_PROCESS = DpSgdProcess(0.02, 1.2, 300)


def made_up() -> dict[str, Any]:
    """The sample's canaries in a model that was trained with less noise than it says."""
    audit = sample_audit()
    ranks = [row["rank"][1] for row in audit["exposure"]["rows"] if row["inserted"]]
    epsilon = dpsgd_curve(_PROCESS, "add-remove").epsilon_at(_DELTA)
    guarantee = Guarantee.dp_sgd(epsilon=epsilon, delta=_DELTA, adjacency="add-remove", unit="user")
    claim = Claim.of(guarantee, neighbours="add/remove", delta=_DELTA)
    judged = JudgedClaim(claim, "user", "add/remove")
    first = [1] * len(ranks)
    bound, detectable = (
        exposure_bound(ranks=some, candidates=_CANDIDATES, relation="add/remove", delta=_DELTA).per("user")
        for some in (ranks, first)
    )
    point = judge(claim, bound, detectable, control=detectable)
    curve = WholeCurve.of(_PROCESS, judged)
    assert curve is not None
    found, perfect = (curve.p_value(some, _CANDIDATES) for some in (ranks, first))
    gaussian = gaussian_bound(ranks, _CANDIDATES, judged, delta=_DELTA, confidence=0.95)
    whole = CurveFinding(curve, found, perfect, perfect, gaussian, 0.05).claim(point)
    assert "contradicted" in (point.verdict, whole.verdict)
    return audit | {
        "run": audit["run"] | {"method": "dpsgd", "seeded": False},
        "guarantee": guarantee.to_json(),
        "mechanism": None,
        "prediction": None,
        "verdict": audit["verdict"] | {"line": "Contradicted: an attack shows more than is claimed."},
        "claims": [asdict(ClaimRecord.of(point)), asdict(whole)],
    }


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
        page = render_report(made_up(), run_name=NAME)
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
