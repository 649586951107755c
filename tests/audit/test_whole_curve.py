"""Ranks against DP-SGD's whole curve: goldens, false alarms, and what a point of the curve cannot show."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.audit import Claim, EpsilonLowerBound, detectable, exposure_bound, judge
from tacit.audit.audit_file import parse_audit
from tacit.audit.claimed import JudgedClaim, process_of
from tacit.audit.record import AuditRecord
from tacit.audit.trade_offs import curve_inverse, gaussian_inverse, least_error, refutes
from tacit.audit.whole_curve import CurveFinding, WholeCurve, gaussian_bound
from tacit.cli.audit_tables import show_audit
from tacit.files import write_json
from tacit.privacy import DpSgdProcess, Guarantee, dpsgd_curve, gaussian_dp_mu
from tacit.report import render_report
from tacit.runs import Run
from tests.audit.runs import Audited
from tests.audit.test_private_claims import audited

LEVEL = 0.05
DELTA = 1e-5
GAUSSIAN = DpSgdProcess(1.0, 2.0, 4)  # every example in every step: N(0, 1) at distance 1
SAMPLED = DpSgdProcess(0.1, 0.7, 40)


def judged(epsilon: float, *, examples: int = 1) -> JudgedClaim:
    claim = Claim("s", "example", "add/remove", epsilon, DELTA)
    return JudgedClaim(claim, "example", "add/remove", insertions=examples, examples=examples)


@cache
def whole(process: DpSgdProcess, examples: int = 1) -> WholeCurve:
    epsilon = dpsgd_curve(process, "add-remove").epsilon_at(DELTA)
    found = WholeCurve.of(process, judged(epsilon, examples=examples))
    assert found is not None
    return found


def test_published_mu_are_where_the_p_value_is_the_level() -> None:
    """research/audit.md 4.2: K = 10^6, ten of ten refute mu = 4.20 at 5%, one of ten 2.18."""
    for correct, mu in ((10, 4.20), (1, 2.18)):
        found = least_error(gaussian_inverse(mu), correct=correct, guesses=10, canaries=10, alphabet=10**6)
        assert found == pytest.approx(LEVEL, rel=0.02)


def test_a_p_value_is_the_least_error_that_refutes() -> None:
    for correct, inverse in (
        (3, gaussian_inverse(1.0)),
        (0, gaussian_inverse(1.0)),
        (2, gaussian_inverse(9.0)),
    ):
        options = {"correct": correct, "guesses": 5, "canaries": 5, "alphabet": 100, "list_size": 2}
        found = least_error(inverse, **options)
        assert found == 1.0 or refutes(inverse, error=found, **options)
        assert not refutes(inverse, error=0.99 * found, **options)
    assert least_error(gaussian_inverse(0.0), correct=9, guesses=9, canaries=9, alphabet=10**6) == 1e-12


def test_without_sampling_the_curve_is_a_gaussians() -> None:
    """Replaced, four steps of noise 2 are one Gaussian at distance 2; the table lies just below it."""
    inverse, exact = whole(GAUSSIAN).inverse, gaussian_inverse(2.0)
    for rate in (1e-4, 0.01, 0.1, 0.5, 0.9, 0.99):
        assert 0.999 * exact(rate) <= inverse(rate) <= exact(rate) * (1 + 1e-12)


def test_a_secret_in_several_examples_is_a_group_of_them() -> None:
    assert whole(GAUSSIAN, 2).p_value([1, 1], 10**6) > 100 * whole(GAUSSIAN).p_value([1, 1], 10**6)
    masked = WholeCurve.of(
        GAUSSIAN, JudgedClaim(Claim("s", "secret", "mask", 9.0, DELTA), "secret", "mask", coins=False)
    )
    assert masked is not None
    assert masked.inverse(0.5) == pytest.approx(gaussian_inverse(4.0)(0.5), rel=1e-3)
    nothing = Claim("s", "secret", "mask", None, None, incomparable="in public text")
    assert WholeCurve.of(GAUSSIAN, JudgedClaim(nothing, "secret", "mask")) is None


def test_ranks_refute_a_curve_where_no_number_of_them_refutes_its_point() -> None:
    """At a delta of 1e-5 perfect ranks never show more than 7.13; the claimed epsilon is 9.77."""
    point = judged(dpsgd_curve(SAMPLED, "add-remove").epsilon_at(DELTA))
    assert point.claim.epsilon is not None
    many = detectable("exposure", 10_000, delta=DELTA, neighbours="add/remove")
    assert many.epsilon < 7.2 < point.claim.epsilon
    assert whole(SAMPLED).p_value([1, 1, 1], 10**6) < 0.001
    assert whole(SAMPLED).p_value([500_000] * 50, 10**6) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([1, 7, 60, 900, 10**4]), min_size=1, max_size=12))
def test_ranks_that_refute_the_point_refute_the_curve(ranks: list[int]) -> None:
    """So that both verdicts together have one error."""
    epsilon = dpsgd_curve(GAUSSIAN, "add-remove").epsilon_at(DELTA)
    bound = exposure_bound(ranks=ranks, candidates=10**4, relation="add/remove", delta=DELTA)
    if bound.epsilon > epsilon:
        assert whole(GAUSSIAN).p_value(ranks, 10**4) <= LEVEL


def test_sampled_dp_sgd_is_not_refuted_more_often_than_the_level() -> None:
    """One-hot secrets of 500 values, seen through two steps that sample by coins; ranks by likelihood."""
    rng, runs, secrets, alphabet = np.random.default_rng(5), 200, 12, 500
    true = DpSgdProcess(0.8, 0.3, 2)
    sampled = rng.random((runs, secrets, 2, 1)) < true.sampling_rate
    seen = true.noise_multiplier * rng.standard_normal((runs, secrets, 2, alphabet))
    seen[..., :1] += sampled
    odds = (seen - 0.5) / true.noise_multiplier**2
    scores = np.log1p(true.sampling_rate * np.expm1(odds)).sum(axis=2)
    ranks = 1 + (scores[..., 1:] > scores[..., :1]).sum(axis=2)
    found: dict[tuple[int, int], list[float]] = {}

    def p_values(row: np.ndarray) -> list[float]:
        key = (int((row <= 1).sum()), int((row <= 4).sum()))
        if key not in found:
            found[key] = [
                claimed.p_value(row.tolist(), alphabet, list_sizes=(1, 4)) for claimed in (right, quieter)
            ]
        return found[key]

    right, quieter = (
        WholeCurve(process, curve_inverse(curve.epsilons, curve.deltas))
        for process in (true, DpSgdProcess(0.8, 2.0, 2))
        for curve in [dpsgd_curve(process, "replace-one")]
    )
    refuted = np.array([p_values(row) for row in ranks]) <= LEVEL
    assert refuted[:, 0].mean() <= LEVEL
    assert refuted[:, 1].mean() > 0.9  # noise of a seventh of what was accounted is found


def finding(p_value: float, perfect: float = 1e-6, control: float | None = 1e-4) -> CurveFinding:
    gaussian = gaussian_bound([1, 1], 10**6, judged(4.0), delta=DELTA, confidence=0.95)
    return CurveFinding(whole(GAUSSIAN), p_value, perfect, control, gaussian, LEVEL)


def test_a_curve_is_judged_by_its_own_p_value_and_as_its_point() -> None:
    claim = judged(4.377).claim

    def at(epsilon: float) -> EpsilonLowerBound:
        return EpsilonLowerBound(epsilon, DELTA, 0.95, "m", unit="example")

    supported = judge(claim, at(0.5), at(9.0), control=at(8.0))
    inconclusive = judge(claim, at(0.5), at(9.0))
    contradicted = judge(claim, at(5.0), at(9.0))
    assert finding(0.04).claim(inconclusive).verdict == "contradicted"
    assert finding(0.06).claim(supported).verdict == "supported"
    assert finding(0.06).claim(inconclusive).verdict == "inconclusive"
    weak = finding(1.0, perfect=0.2).claim(supported)
    assert weak.verdict == "inconclusive"
    assert "This audit could not have told" in weak.reason
    assert finding(0.06).claim(contradicted).verdict == "contradicted"  # by coins: the curve holds the point
    told = finding(0.06).claim(supported)
    assert told.gaussian_limit == pytest.approx(2 * math.sqrt(math.expm1(0.25)))
    assert "which is no bound" in told.reason
    assert told.gaussian_mu is not None
    assert f"Of Gaussian mechanisms mu below {told.gaussian_mu:.3g} is refuted" in told.reason
    nothing = gaussian_bound([10**6], 10**6, judged(4.0), delta=DELTA, confidence=0.95)
    unrefuted = dataclasses.replace(finding(1.0), gaussian=nothing).claim(supported)
    assert "Of Gaussian mechanisms no mu is refuted" in unrefuted.reason


@pytest.mark.slow
def test_an_audit_contradicts_a_curve_whose_point_it_cannot_contradict(
    overfitted: Audited, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model was trained without any noise, and says that it was trained with some."""
    folder = tmp_path / "run"
    said = DpSgdProcess(0.1, 1.0, 40)
    shutil.copytree(overfitted.run.folder, folder)
    epsilon = dpsgd_curve(said, "add-remove").epsilon_at(DELTA)
    claim = Guarantee.dp_sgd(epsilon=epsilon, delta=DELTA, adjacency="add-remove", unit="user")
    write_json(folder / "privacy.json", {"dpsgd": {"process": said.to_json()}}, overwrite=True)
    changed = {"method": "dpsgd", "guarantee": claim.to_json()}
    run = Run(folder, overfitted.run.manifest.model_copy(update=changed))
    assert process_of(run) == said
    assert process_of(overfitted.run) is None
    record = audited(run, overfitted.manifest, documents=0, authors=0, real="none")
    point, curve = record.claims
    assert point.claimed_epsilon == epsilon
    assert point.verdict != "contradicted"
    assert curve.verdict == record.verdict == "contradicted"
    assert curve.p_claim is not None
    assert curve.p_claim < 0.02
    content = json.loads(json.dumps(record.to_json()))
    assert AuditRecord.from_json(content).claims == record.claims
    assert parse_audit(content).claims[1].gaussian_mu == curve.gaussian_mu
    page = render_report(content, run_name="forged")
    assert "all of its curve" in page
    # Other tools print mu, so that it stands beside epsilon, and says what it is not.
    told = str(gaussian_dp_mu(said))
    assert told in page
    show_audit(record)
    assert told in " ".join(capsys.readouterr().out.split())
    assert "which is no bound" in page
