"""report.html: every section or that it is missing, no kinder than the audit, and nothing from outside."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tacit.audit.audit_file import parse_audit
from tacit.audit.certificate_part import of_certificate
from tacit.errors import InputError
from tacit.privacy import DpSgdProcess, Guarantee, MissRate, certify
from tacit.report import render_report, write_report
from tacit.report.guarantee_words import in_words
from tacit.report.page import tiles, tone_of
from tacit.report.sections import claims_figure
from tests.report.samples import NAME, sample_audit, sample_comparison, without

EVIL = "\"><script>alert(1)</script><!--' onload=x \u202e"
_SECTIONS = ("utility", "exposure", "membership", "extraction", "prediction", "linkability", "disparity")
_OF_ANY_RUN = tuple(name for name in _SECTIONS if name != "linkability")  # which an ensemble has not
_VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """What a browser would see: elements, text and data blocks; and that all of them are closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.data: dict[str, Any] = {}
        self._open: list[str] = []
        self._data = ""
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "script":
            self._data = str(dict(attrs)["id"])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            self.data[self._data] = json.loads(data)
        elif self._open[-1:] != ["style"]:
            self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def ids(self) -> list[str]:
        return [str(found["id"]) for _, found in self.elements if "id" in found]

    def has(self, tag: str, **wanted: str) -> bool:
        return any(name == tag and wanted.items() <= found.items() for name, found in self.elements)


def report(audit: dict[str, Any] | None = None, name: str = NAME) -> Page:
    return Page(render_report(sample_audit() if audit is None else audit, run_name=name))


# What is there


def test_everything_that_was_measured_is_there_in_order() -> None:
    html = render_report(sample_audit(), run_name=NAME)
    page = Page(html)
    places = [
        html.index(f'<section class="card" id="{name}"') for name in ("guarantee", "claims", *_SECTIONS)
    ]
    places += [html.index('id="limits"'), html.index('id="provenance"')]
    assert places == sorted(places)
    assert html.index("<h1>") < places[0]
    assert "Not measured." not in page.words
    assert "made-up data" in page.words
    for wanted in (
        "The most exposed has",
        "Attackers who can change the training text.",
        "sha256:9f86d081884c7d65",
        "Renyi differential privacy (order 2, epsilon 2)",
        "neighbours: one part's text is replaced by nothing",
        "95% intervals: Clopper-Pearson, two-sided, n=20",
        "needs 3,000 non-members",
        "22.4 [21.1, 23.9]",
        "In 2,000 groups of 20 canaries and twins, drawn from 412 secrets and 412 others",
        "groups of 100 need 200 texts of either kind, and there are 90",
        "of 30 users who were held out, 3.33%",
        "In the control, a model without protection that read the same text, the most exposed has 19.9 bits",
        "without protection at least 9.1",
        "The control gives 61 of them in as many answers.",
        "tokens booked meanwhile",
        "of 400 texts among 40 authors; always naming the most frequent one is right for 3%",
        "What training changed: 0.090 [0.040, 0.140], authors are easier to name.",
        "What protection changed: −0.130 [−0.190, −0.070], authors are harder to name.",
        "the discriminator named 6% of the last epoch's authors",
    ):
        assert wanted in page.words, wanted


@pytest.mark.parametrize("name", _OF_ANY_RUN)
def test_what_was_not_measured_says_so_and_how_to_get_it(name: str) -> None:
    html = render_report(without(name), run_name=NAME)
    page = Page(html)
    section = html[html.index(f'<section class="card" id="{name}"') :]
    assert "<strong>Not measured.</strong>" in section[: section.index("</section>")]
    assert "<figure" not in section[: section.index("</section>")]
    assert page.words.count("Not measured.") == 1


def test_a_certificate_is_shown_in_its_own_words_and_escaped() -> None:
    certificate = certify(
        DpSgdProcess(0.1, 3.4385, 100),
        delta=8e-5,
        gamma=MissRate.measured(20, 200, kinds=["<b>NAME</b>"]),
        delta2=MissRate.measured(0, 10**6),
        private_points=1000,
        bare_points=650,
    )
    html = render_report(sample_audit() | {"certificate": of_certificate(certificate)}, run_name=NAME)
    page = Page(html)
    assert html.index('id="guarantee"') < html.index('id="certificate"') < html.index('id="claims"')
    assert page.has("a", href="#certificate")
    for heading, lines in certificate.promises():
        for line in (heading, *lines):
            assert line in page.words, line
    for wanted in (
        "a secret replaced by <MASK> where it stands",
        "1,000 private data points, of which 650 are a bare <MASK>.",
        "on 350 data points would give epsilon",
        "20 of 200 labelled secrets of the kinds <b>NAME</b> missed",
        "delta2 = ",
        "0 of 1,000,000 labelled secrets missed",
        "Any other secret in a private data point: epsilon",
        "By the whole privacy curve: epsilon",
        "with confidence 0.9",
    ):
        assert wanted in page.words, wanted
    assert "<b>NAME" not in html
    assert "certificate" not in report().ids()


def test_a_report_with_nothing_measured_is_still_one() -> None:
    audit = without(*_SECTIONS, "mechanism") | {
        "claims": [],
        "verdict": {"line": "Nothing was tested.", "leaks": None},
    }
    audit["run"] |= {"method": "finetune"}
    page = report(audit)
    # A Run without a mechanism has no private answers to attack.
    assert page.words.count("Not measured.") == len(_SECTIONS)
    assert "prediction" not in page.ids()
    assert page.has("div", **{"class": "hero inconclusive"})
    assert not page.has("dl", **{"class": "tiles"})


@pytest.mark.parametrize(
    "path",
    [
        ("exposure", "per_repetition"), ("exposure", "together"), ("exposure", "largest"),
        ("utility", "public"), ("exposure", "seconds"),
        ("exposure", "control"), ("extraction", "tab_real"),
        ("utility", "unmitigated"), ("extraction", "tab"), ("extraction", "tries"), ("extraction", "codes"),
        ("prediction", "realised"), ("prediction", "likelihood_ratio"), ("prediction", "black_box"),
        ("disparity", "points"), ("provenance", "manifest_commitment"), ("provenance", "seconds"),
    ],
)  # fmt: skip
def test_parts_of_a_section_may_be_missing(path: tuple[str, str]) -> None:
    audit = sample_audit()
    del audit[path[0]][path[1]]
    assert len(report(audit).words) > 1000


def test_every_figure_has_its_table_and_its_data() -> None:
    page = report()
    figures = [str(found["id"]) for tag, found in page.elements if tag == "figure"]
    assert set(figures) == {
        "claims-figure", "utility-figure", "frontier-own", "exposure-figure", "membership-1", "roc-1",
        "membership-2", "roc-2",
        "groups-1", "tab-figure", "real-tab-figure", "codes-figure", "ratio-figure", "disparity-figure",
        "linkability-figure",
    }  # fmt: skip
    assert {f"{name}-data" for name in figures} == set(page.data)
    audit = sample_audit()
    assert (
        page.data["exposure-figure-data"]["rows"][3]["exposure"] == audit["exposure"]["rows"][3]["exposure"]
    )
    assert page.data["roc-1-data"]["points"] == audit["membership"]["sets"][0]["roc"]["points"]
    assert page.data["utility-figure-data"]["run"] == audit["utility"]["run"]
    tables = sum(tag == "table" for tag, _ in page.elements)
    assert tables >= len(figures)


def test_every_drawing_is_well_formed() -> None:
    html = render_report(sample_audit() | {"compare": sample_comparison()}, run_name=EVIL)
    drawings = re.findall(r"<svg xmlns.*?</svg>", html, re.DOTALL)
    assert len(drawings) == 18
    for drawing in drawings:
        ET.fromstring(drawing)  # noqa: S314 - our own


def test_no_name_is_used_twice_and_every_link_leads_somewhere() -> None:
    page = report(sample_audit() | {"compare": sample_comparison()})
    ids = page.ids()
    assert len(ids) == len(set(ids))
    links = [str(found["href"]) for tag, found in page.elements if tag == "a"]
    assert len(links) >= 11
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    for _, found in page.elements:
        assert set(str(found.get("aria-labelledby") or "").split()) <= set(ids)


def test_the_frontier_is_there_where_runs_were_compared() -> None:
    page = report(sample_audit() | {"compare": sample_comparison()})
    assert {"frontier", "frontier-exposure", "frontier-auc", "frontier-tab"} <= set(page.ids())
    assert "one epoch: its perplexity is 25% above the others" in page.words


# The verdict is never kinder than the audit


def verdict(leaks: bool | None, *claims: str) -> dict[str, Any]:
    audit = sample_audit()
    audit["verdict"]["leaks"] = leaks
    audit["claims"] = [audit["claims"][0] | {"verdict": one} for one in claims]
    return audit


def promising_nothing(audit: dict[str, Any]) -> dict[str, Any]:
    return audit | {"guarantee": Guarantee.unprotected("user").to_json()}


@pytest.mark.parametrize(
    ("audit", "tone"),
    [
        (verdict(False, "supported", "supported"), "supported"),
        (verdict(False), "inconclusive"),
        (verdict(None, "supported"), "supported"),  # an ensemble: only what is claimed of answers is tested
        (verdict(None, "inconclusive"), "inconclusive"),
        (verdict(False, "supported", "inconclusive"), "inconclusive"),
        (verdict(True, "supported"), "inconclusive"),  # it leaks within what is claimed
        (verdict(True, "inconclusive"), "inconclusive"),
        (verdict(True, "supported", "contradicted"), "contradicted"),
        (promising_nothing(verdict(True, "inconclusive")), "contradicted"),
        (promising_nothing(verdict(False, "inconclusive")), "inconclusive"),
        (promising_nothing(verdict(False, "supported")), "inconclusive"),
        (verdict(False, "supported", "contradicted"), "contradicted"),
        (verdict(None, "contradicted"), "contradicted"),
    ],
)
def test_only_what_was_tested_and_held_looks_good(audit: dict[str, Any], tone: str) -> None:
    assert tone_of(parse_audit(audit)) == tone
    assert report(audit).has("div", **{"class": f"hero {tone}"})


def test_of_a_divergence_for_one_corpus_no_epsilon_is_told() -> None:
    audit = verdict(None, "supported")
    audit["guarantee"] = Guarantee.operational(order=2, epsilon=2.0).to_json()
    audit["claims"][0] |= {"claimed_epsilon": 2.0, "measured_epsilon": 0.13, "delta": None}
    first = tiles(parse_audit(audit))[0]
    assert (first.name, first.value) == ("Divergence, at least", "0.13")
    assert first.against == "claimed: at most 2 nats at order 2, for this corpus"
    assert "not differential privacy" in report(audit).words
    for ratio in audit["prediction"]["likelihood_ratio"]:
        ratio["measure"] = "divergence"
    html = render_report(audit, run_name=NAME)
    for told in ("epsilon is at least", "claimed epsilon", "epsilon (nats)", "measured epsilon"):
        assert told not in html, told
        assert told.replace("epsilon", "divergence") in html, told


def test_ranks_with_and_without_other_planted_secrets_are_both_told() -> None:
    audit = sample_audit()
    audit["exposure"]["rows"][0] |= {"rank": [707, 707], "alone": [701, 701]}
    html = render_report(audit, run_name=NAME)
    assert re.search(r"<td[^>]*>701</td>\s*<td[^>]*>707</td>", html)
    assert "rank among all" in html


def test_a_figure_explains_only_the_signs_that_it_has() -> None:
    audit = verdict(None, "inconclusive")
    html = render_report(audit, run_name=NAME)
    assert "claimed: at most" in html
    assert "passes its diamond" in html
    audit["claims"][0] |= {"claimed_epsilon": None, "detectable_epsilon": None}
    audit["prediction"]["likelihood_ratio"] = []
    html = render_report(audit, run_name=NAME)
    assert "claimed: at most" not in html
    assert "diamond contradicts" not in html
    assert "hatched" not in html


def test_an_ensemble_without_utility_is_sent_to_evaluate() -> None:
    assert "`tacit evaluate`" in report(without("utility")).words
    audit = without("utility", "mechanism")
    assert "held_out in the recipe" in report(audit).words


def test_the_attack_that_was_chosen_beforehand_is_told_and_not_the_best_of_many() -> None:
    audit = sample_audit()
    best = {"value": 0.97, "low": 0.95, "high": 0.99, "confidence": 0.95, "method": "DeLong"}
    audit["membership"]["sets"][0]["attacks"][1] |= {"auc": best, "adjusted": 0.2}
    words = report(audit).words
    assert "the attack that was chosen beforehand (reference) has an area under the curve of 0.780" in words
    assert "Of 4 attacks, 3 (loss, reference, min-k++) are better than guessing" in words
    assert "0.78" in [tile.value for tile in tiles(parse_audit(audit))]
    assert "always one answer" in words


def test_verdicts_are_words_and_signs_not_colours_alone() -> None:
    words = report().words
    for shown in ("✓ supported", "✕ contradicted", "? inconclusive"):
        assert shown in words


def test_chance_is_named_beside_an_exposure() -> None:
    audit = sample_audit()
    assert "chance does not explain this" in report(audit).words
    assert "below 8.61 in 95% of cases" in report(audit).words
    audit["exposure"]["largest"] = {"p_value": 0.02, "adjusted": 0.3}
    assert "chance alone could explain this (p = 0.3 after correction" in report(audit).words
    audit["verdict"]["confidence"] = 0.6
    assert "chance does not explain this" in report(audit).words
    audit["exposure"]["null"] |= {"confidence": 0.99, "largest_limit": 10.9}
    assert "below 10.9 in 99% of cases" in report(audit).words


def test_exposure_behind_a_mechanism_says_what_asking_would_have_cost() -> None:
    audit = sample_audit()
    assert "would have to pay for" not in report(audit).words
    audit["exposure"]["queries"] = 6321
    assert "for 6,321 queries that a client would have to pay for" in report(audit).words


def test_a_set_that_the_blind_attacker_separates_is_marked_and_not_a_headline() -> None:
    page = report()
    assert "an attacker that never sees the model tells the two groups apart" in page.words
    audit = sample_audit()
    best = audit["membership"]["sets"][1]["attacks"][0]
    best["auc"] = {"value": 0.99, "low": 0.98, "high": 1.0, "confidence": 0.95, "method": "DeLong"}
    found = [tile.value for tile in tiles(parse_audit(audit)) if "membership" in tile.name]
    assert found == ["0.78"]
    audit["membership"]["sets"] = audit["membership"]["sets"][1:]
    assert not [tile for tile in tiles(parse_audit(audit)) if "membership" in tile.name]


def test_a_gap_between_users_is_claimed_only_where_its_interval_excludes_nothing() -> None:
    audit = sample_audit()
    assert "costs one group more" in report(audit).words
    # Against the public model it is not protection that makes the difference.
    public = audit | {"disparity": audit["disparity"] | {"baseline": "public"}}
    assert "costs one group more" not in report(public).words
    assert "training helps one group more" in report(public).words
    assert "what protection costs needs a Run without it" in report(public).words
    audit["disparity"]["gap"] |= {"low": -0.5}
    assert "no difference is shown" in report(audit).words


def test_texts_that_the_paper_picks_show_no_leak() -> None:
    audit = sample_audit()
    audit["extraction"]["tab_real"] |= {"others": None, "p_value": None, "other_users": 0}
    assert "this describes and shows no leak" in report(audit).words


def test_answers_are_described_by_what_was_counted() -> None:
    """Transcripts have fewer queries than charges were checked on, and an excess is a number of queries."""
    audit = sample_audit()
    assert "whether a part was there over 64 queries shows" in report(audit).words
    audit["prediction"]["realised"]["excess"] = 3
    words = report(audit).words
    assert "of them above their charge" in words
    assert "sum over the charge" not in words
    del audit["prediction"]["likelihood_ratio"][7]["queries"]  # the worst part's, of an earlier version
    assert "whether a part was there shows" in report(audit).words


def test_supported_is_explained_for_what_was_audited() -> None:
    """Of an ensemble charges are recomputed and no control is asked; of one model a control decides."""
    audit = sample_audit()
    assert "recomputed from the definition; an accountant that charges half" in report(audit).words
    assert "where nothing protects found no more here" not in report(audit).words
    one_model = report(audit | {"mechanism": None}).words
    assert "where nothing protects found no more here" in one_model
    assert "an accountant that charges half" not in one_model


def test_what_no_claim_has_is_no_column() -> None:
    audit = sample_audit()
    for claim in audit["claims"]:
        claim |= {"detectable_epsilon": None, "control_epsilon": None}
    figure = claims_figure(parse_audit(audit).claims)
    assert figure is not None
    assert "detectable" not in figure.table.columns
    assert "control" not in figure.table.columns
    assert {len(row) for row in figure.table.rows} == {len(figure.table.columns)}


# Guarantees in words


@pytest.mark.parametrize(
    ("guarantee", "wanted"),
    [
        (Guarantee.unprotected("user"), "Nothing is promised"),
        (Guarantee.public_text("user"), "declared public"),
        (Guarantee("empirical", "user"), "Nothing is proven"),
        (Guarantee.operational(order=2, epsilon=1.5), "not differential privacy"),
        (Guarantee.certified(order=2, epsilon=1.5), "Renyi divergence 1.5 (order 2)"),
        (
            Guarantee("dp", "user", epsilon=3.0, delta=1e-5),
            "at most e^3 times as likely, but for a chance of 1e-5",
        ),
        (Guarantee("dp", "user", epsilon=3.0, delta=0.0), "at most e^3 times as likely."),
        (Guarantee("rdp", "part", order=2.0, epsilon=float("inf")), "divergence ∞"),
    ],
)
def test_every_kind_of_guarantee_is_said_in_words(guarantee: Guarantee, wanted: str) -> None:
    content = guarantee.to_json()
    assert wanted in " ".join(in_words(content))
    page = report(sample_audit() | {"guarantee": content})
    assert wanted in page.words
    assert " ".join(str(guarantee).split()) in page.words


# Nothing comes from outside, nothing gets in


def test_nothing_is_loaded_from_anywhere() -> None:
    html = render_report(sample_audit(), run_name=NAME)
    page = Page(html)
    for tag, found in page.elements:
        for name in ("src", "href", "action", "data", "srcset", "xlink:href"):
            assert str(found.get(name) or "#").startswith(("#", "data:image/svg+xml,")), (tag, found)
        assert not any(name.startswith("on") or name == "style" for name in found)
    assert all(found.get("type") == "application/json" for tag, found in page.elements if tag == "script")
    style = html[html.index("<style>") + 7 : html.index("</style>")]
    assert "@import" not in style
    assert set(re.findall(r"url\((.*?)\)", style)) == {"#hatch"}
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = next(str(found["content"]) for tag, found in page.elements if "http-equiv" in found)
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy
    assert "script-src" not in policy
    assert "unsafe" not in policy


def evil(content: Any) -> Any:
    """The same, where every text that is not one of a closed set is code."""
    closed = {"supported", "contradicted", "inconclusive", "rdp", "part", "1000000"}
    if isinstance(content, dict):
        return {key: evil(value) for key, value in content.items()}
    if isinstance(content, list):
        return [evil(value) for value in content]
    return EVIL if isinstance(content, str) and content not in closed else content


def test_no_name_becomes_code() -> None:
    audit = evil(copy.deepcopy(sample_audit())) | {"compare": evil(sample_comparison())}
    html = render_report(audit, run_name=EVIL)
    page = Page(html)
    tags = {tag for tag, _ in report(sample_audit() | {"compare": sample_comparison()}).elements}
    assert {tag for tag, _ in page.elements} == tags
    assert html.count("<script") == len(page.data) == 18
    assert "<script>alert" not in html
    assert "alert(1)" in page.words
    assert "\u202e" not in html
    assert not any("onload" in found for _, found in page.elements)


def test_text_that_utf8_cannot_hold_is_written(tmp_path: Path) -> None:
    audit = sample_audit()
    audit["notes"] = ["\ud800", "\x00"]
    audit["exposure"]["rows"][0]["id"] = "\udfff"
    path = write_report(tmp_path, audit)
    assert "\x00" not in path.read_text(encoding="utf-8")


# The file


def test_the_report_is_the_owners_and_replaces_an_older_one(tmp_path: Path) -> None:
    run = tmp_path / "support-desk"
    run.mkdir()
    path = write_report(run, sample_audit())
    assert path == run / "report.html"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_bytes()
    assert b"Privacy audit of support-desk<" in before
    write_report(run, without("exposure"))
    assert path.read_bytes() != before
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in run.iterdir()] == ["report.html"]


def test_two_renderings_are_alike() -> None:
    assert render_report(sample_audit(), run_name=NAME) == render_report(sample_audit(), run_name=NAME)


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (("verdict", "line"), "verdict.line"),
        (("exposure", "null"), "exposure.null"),
        (("exposure", "rows", 2, "exposure"), "exposure.rows.2.exposure"),
        (("guarantee", "statement"), "guarantee.statement"),
        (("format",), "format"),
    ],
)
def test_what_is_needed_and_missing_is_named(path: tuple[Any, ...], named: str) -> None:
    audit = inner = sample_audit()
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    with pytest.raises(InputError, match=rf"audit.json: '{re.escape(named)}' is missing; audit again"):
        render_report(audit, run_name=NAME)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": 1}, "format"),
        ({"claims": [{"claim": "x", "verdict": "fine", "reason": "secret words"}]}, "claims.0.verdict"),
        ({"utility": {"run": {"value": 3}}}, "utility.run"),
        (
            {"utility": {"run": {"value": 3, "low": 4, "high": 5, "confidence": 0.95, "method": "m"}}},
            "utility.run",
        ),
        ({"disparity": []}, "disparity"),
    ],
)
def test_what_cannot_be_used_is_named_without_its_value(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"'{named}' cannot be used")) as caught:
        render_report(sample_audit() | change, run_name=NAME)
    assert "secret words" not in str(caught.value)


def test_keys_of_later_versions_are_left_alone() -> None:
    audit = sample_audit() | {"something": {"new": 1}}
    audit["verdict"]["other"] = 3
    assert render_report(audit, run_name=NAME) == render_report(sample_audit(), run_name=NAME)


# Colours


def colours(scheme: str) -> dict[str, str]:
    html = render_report(sample_audit(), run_name=NAME)
    light, _, dark = html.partition("prefers-color-scheme: dark")
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light))
    return found if scheme == "light" else found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", dark))


def luminance(colour: str) -> float:
    def linear(part: int) -> float:
        share = part / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(scheme: str) -> None:
    found = colours(scheme)
    pairs = [
        ("ink", "card"), ("ink", "paper"), ("quiet", "card"), ("quiet", "paper"), ("accent", "soft"),
        ("accent", "card"), ("hot", "warm"), ("amber", "pale"), ("ink", "pale"), ("ink", "band"),
    ]  # fmt: skip
    for text, ground in pairs:
        light, dark = sorted((luminance(found[text]), luminance(found[ground])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)  # WCAG 2.2, 1.4.3
