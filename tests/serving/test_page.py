"""The operator's page and the public one, in a real Chromium against a real `tacit serve`."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Response, expect

from tacit.ledger import Access, Balance, Charged, Domain, Draw, Ledger
from tacit.prediction.accounts import model_of
from tacit.privacy.filter import NANO
from tacit.runs import Run
from tacit.serving.admin import admin_app
from tacit.serving.overview import Rate, overview, rate_of
from tacit.serving.page import (
    SECURITY_HEADERS,
    STATIC,
    bars,
    moment,
    nats,
    operator_figures,
    operator_page,
    percent,
    public_page,
    seconds,
    span,
)
from tests.serving import browser as browsers
from tests.serving.conftest import PROMPT, TENANT, NewPlace, Place, Server, ledger_of, serving

EVIL = "<script>alert(1)</script>"
_PATIENCE = 60_000  # milliseconds until a page that does not move counts as broken; nothing is measured by it

expect.set_options(timeout=_PATIENCE)


# A service, a browser, and somebody who listens to what the page complains about


@pytest.fixture(scope="module")
def server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One service for all: three tenants, one of them with a name that would be code on a careless page."""
    folder = tmp_path_factory.mktemp("page")
    run, ledger, anchor = runs / "halves", str(folder / "ledger.db"), folder / "elsewhere" / "anchor.json"
    model = model_of(Run.open(run))
    with Ledger.open(ledger, anchor=anchor, create=True) as book:
        book.create(
            Domain("people", 2.0, model.parts, model.partition, 50.0, "submix-guarded", model.unit), model
        )
        access = Access(book)
        access.set_quota(TENANT, 10_000)
        access.set_quota(EVIL, 500)
        key, _ = access.create_key(TENANT)
    with serving(Place(run, ledger, anchor, key), "--queries", "1000") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.chromium() as found:
        yield found


class Complaints:
    """Everything that a page should never do."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._found: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self._found.append(f"error: {error}"))
        page.on("requestfailed", lambda request: self._found.append(f"failed: {request.url}"))
        page.on("request", lambda request: self._request(request.url))
        page.on("dialog", self._dialog)
        page.add_init_script(
            "window.violations = [];"
            "document.addEventListener('securitypolicyviolation', "
            "(event) => violations.push(`violation: ${event.violatedDirective} ${event.blockedURI}`))"
        )

    @property
    def found(self) -> list[str]:
        """All of it so far: asking the page comes behind everything that it has said."""
        violations: list[str] = self._page.evaluate("window.violations")
        return self._found + violations

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self._found.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Dialog) -> None:
        self._found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, url: str) -> None:
        if urlsplit(url).hostname != "127.0.0.1":
            self._found.append(f"elsewhere: {url}")


NewPage = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser) -> Iterator[NewPage]:
    """Opens pages, and fails where one of them complained or asked another host for something."""
    with contextlib.ExitStack() as stack:
        complaints: list[Complaints] = []

        def open_page(url: str, *, width: int = 1280, scheme: Any = "light", timers: bool = True) -> Page:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(_PATIENCE)
            complaints.append(Complaints(page))
            if not timers:
                page.clock.install(time=0)
            page.goto(url)
            if not timers:
                page.clock.pause_at(86_400)
            return page

        yield open_page
        assert [what for one in complaints for what in one.found] == []


def ask(server: Server, tokens: int = 8) -> int:
    """A client's question; how many tokens came."""
    answer = server.client().completions.create(model=server.model, prompt=PROMPT, max_tokens=tokens)
    assert answer.usage is not None
    return answer.usage.completion_tokens


def look(server: Server) -> dict[str, Any]:
    """What the ledger says."""
    answer = httpx.get(f"{server.admin}/admin/overview", timeout=60)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def tokens_on_record(server: Server) -> int:
    statement = look(server)["statement"]
    return int(statement["private_answers"]) + int(statement["public_answers"])


# In the browser


@pytest.mark.slow
def test_the_gauge_shows_what_the_ledger_says(opened: NewPage, server: Server) -> None:
    ask(server)
    page = opened(server.admin)
    used = look(server)["statement"]["worst_part_used"]
    assert 0 < used < 1
    expect(page.locator("#worst")).to_have_text(percent(used))
    assert "%" in (page.locator("#worst").text_content() or "")
    arc = page.locator(".gauge .fill").get_attribute("stroke-dasharray")
    assert arc is not None
    filled, gap = map(float, arc.split())
    assert filled == pytest.approx(100 * used)
    assert gap >= 100, "else the pattern would begin again on the same arc"
    assert page.locator(".gauge .fill").get_attribute("pathLength") == "100"
    assert page.locator(".gauge").get_attribute("aria-label") == f"{percent(used)} used"
    expect(page.locator("#outlook")).to_contain_text("more answers at what the latest")


@pytest.mark.slow
def test_everything_that_the_operator_needs_is_there(opened: NewPage, server: Server) -> None:
    ask(server)
    page = opened(server.admin)
    headings = set(page.get_by_role("heading", level=2).all_inner_texts())
    assert headings == {
        "Budget of the worst part",
        "Charges over time",
        "Budget by part",
        "Weights of the parts",
        "Latency",
        "Tenants",
        "Ledger",
        "Try it",
        "What is guaranteed",
    }
    assert page.locator(".over-time rect").count() > 0
    assert page.locator(".third rect").count() > 2
    expect(page.get_by_role("row", name=re.compile(f"^{TENANT} .* 10,000 "))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^first token [0-9.]+ m?s [0-9.]+ m?s$"))).to_be_visible()
    for term in ("last verified", "anchor written", "journal mode", "synchronous"):
        expect(page.get_by_role("term").filter(has_text=term)).to_be_visible()
    expect(page.locator(".guarantee")).to_contain_text("nstance-specific, not DP (order 2, epsilon 50)")


@pytest.mark.slow
def test_the_figures_refresh_by_themselves(opened: NewPage, server: Server) -> None:
    page = opened(server.admin)
    page.evaluate("window.sameDocument = true")
    ask(server)
    statement = look(server)["statement"]
    expect(page.locator("#private")).to_have_text(f"{statement['private_answers']:,}")
    expect(page.locator("#public")).to_have_text(f"{statement['public_answers']:,}")
    expect(page.locator("#worst")).to_have_text(percent(statement["worst_part_used"]))
    assert page.evaluate("window.sameDocument"), "the page was loaded again"


@pytest.mark.slow
def test_try_it_needs_no_mouse(opened: NewPage, server: Server) -> None:
    page = opened(server.admin)
    before = tokens_on_record(server)
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "prompt":
            break
    else:
        pytest.fail("Tab does not lead to the prompt")
    page.keyboard.type(PROMPT)
    page.keyboard.press("Tab")
    drawn = 0
    for _ in range(10):  # a model may end at once; it does not do so ten times
        with page.expect_response("**/try") as answering:
            page.keyboard.press("Enter")
        answer: Response = answering.value
        found = answer.json()
        drawn += found["tokens"]
        expect(page.locator("#answer small")).to_contain_text(f"{found['tokens']} token")
        expect(page.locator("#try button")).not_to_have_attribute("aria-disabled", "true")
        if found["text"].strip():
            break
    assert found["text"].strip()
    assert page.locator("#answer .completion").text_content() == found["text"]
    assert drawn > 0
    assert tokens_on_record(server) - before == drawn
    expect(page.locator("#private")).to_have_text(f"{look(server)['statement']['private_answers']:,}")
    assert page.evaluate("document.activeElement.id") == "tokens", "the keyboard's place was lost"


@pytest.mark.slow
def test_a_question_that_is_refused_says_why(browser: Browser, server: Server) -> None:
    page = browser.new_page()
    complaints = Complaints(page)
    page.goto(server.admin)
    before = tokens_on_record(server)
    page.fill("#prompt", "The baker walks by the river. " * 40)
    page.press("#prompt", "Control+Enter")
    expect(page.locator("#answer .hot")).to_contain_text("128")
    assert tokens_on_record(server) == before
    (noted,) = complaints.found  # by the browser itself; the page adds nothing to it
    assert "400" in noted
    page.close()


@pytest.mark.slow
def test_verify_says_what_it_found(opened: NewPage, server: Server) -> None:
    page = opened(server.admin, timers=False)
    expect(page.locator("#verified")).to_have_text("not since the start")
    page.locator("#verify").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text(re.compile(r"^Verified: all [\d,]+ entries\.$"))
    expect(page.locator("#verify")).to_have_text("Verified")
    expect(page.locator("#verified")).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$"))
    assert page.evaluate("document.activeElement.id") == "verify", "the keyboard's place was lost"
    page.clock.run_for(60_000)
    expect(page.locator("#verify")).to_have_text("Verify now")
    expect(page.locator("#said")).to_have_text("")


@pytest.mark.slow
def test_a_page_that_has_lost_its_service_says_so(browser: Browser, server: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.admin)
    shown = page.locator("#private").inner_text()
    context.set_offline(True)
    expect(page.locator("#live")).to_contain_text("not reached since")
    expect(page.locator("#private")).to_have_text(shown)
    context.set_offline(False)
    expect(page.locator("#live")).to_have_text("live")
    context.close()


@pytest.mark.slow
def test_names_are_text_never_code(opened: NewPage, server: Server) -> None:
    page = opened(server.admin)
    for _ in range(2):  # as it was loaded, and after the script has put new figures in
        expect(page.locator(".tenants").get_by_role("rowheader", name=EVIL, exact=True)).to_be_visible()
        assert page.locator("body script").count() == 0
        page.evaluate("document.querySelector('.tenants').classList.add('old')")
        expect(page.locator(".tenants.old")).to_have_count(0)


@pytest.mark.slow
def test_the_headers_keep_code_and_styles_of_others_out(browser: Browser, server: Server) -> None:
    """And so: the other tests would see it if the page itself ran into this wall."""
    page = browser.new_page()
    complaints = Complaints(page)
    page.goto(server.admin)
    page.evaluate(
        """() => new Promise((resolve) => {
            let refused = 0;
            document.addEventListener("securitypolicyviolation", () => ++refused === 3 && resolve());
            const script = document.createElement("script");
            script.textContent = "window.ran = true";
            document.body.append(script);
            document.body.setAttribute("style", "color: red");
            const image = document.createElement("img");
            image.src = "http://192.0.2.1/image.png";
            document.body.append(image);
        })"""
    )
    assert page.evaluate("window.ran") is None
    for directive in ("script-src-elem", "style-src-attr", "img-src"):
        assert any(one.startswith(f"violation: {directive}") for one in complaints.found), directive
    page.close()


CONTRAST = """(selector) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const parsed = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (color) => {
        const [r, g, b] = color.slice(0, 3).map((one) => one / 255)
            .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    return [...document.querySelectorAll(selector)].map((element) => {
        const style = getComputedStyle(element);
        const ink = parsed(element instanceof SVGElement ? style.fill : style.color);
        let behind = element, ground = parsed(style.backgroundColor);
        while (ground[3] === 0 && behind.parentElement) {
            behind = behind.parentElement;
            ground = parsed(getComputedStyle(behind).backgroundColor);
        }
        const [low, high] = [light(ink), light(ground)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    });
}"""


@pytest.mark.slow
def test_light_and_dark_can_both_be_read(opened: NewPage, server: Server) -> None:
    ask(server)
    grounds = []
    for scheme in ("light", "dark"):
        page = opened(server.admin, scheme=scheme)
        page.keyboard.press("Tab")  # so that the link for keyboards is seen
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        for selector in (
            "body",
            "h1",
            "p",
            "dt",
            "dd",
            "th",
            "td",
            "text",
            ".badge",
            ".quiet",
            "label",
            "li",
        ):
            found = page.evaluate(CONTRAST, selector)
            assert found, selector
            assert min(found) >= 4.5, (scheme, selector, found)
        for selector in ("button", "textarea", "input", ".skip"):
            assert min(page.evaluate(CONTRAST, selector)) >= 4.5, (scheme, selector)
        # Bars have no words: 3 to 1, as WCAG 1.4.11 asks of graphics.
        assert min(page.evaluate(CONTRAST, ".over-time rect")) >= 3, scheme
    assert grounds[0] != grounds[1]


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 400, 800, 1280])
def test_nothing_scrolls_sideways(opened: NewPage, server: Server, width: int) -> None:
    ask(server)
    for url in (server.admin, server.url.removesuffix("/v1")):
        page = opened(url, width=width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        beyond = page.evaluate(
            """(width) => [...document.querySelectorAll("main *")]
                .filter((one) => one.getBoundingClientRect().right > width + 0.5)
                .map((one) => one.outerHTML.slice(0, 80))""",
            width,
        )
        assert beyond == []
        broken = page.evaluate(
            """() => [...document.querySelectorAll(".facts dt, .facts dd")].flatMap((one) =>
                [...one.textContent.matchAll(/[^\\s-]+/g)].filter((word) => {
                  const range = document.createRange();
                  range.setStart(one.firstChild, word.index);
                  range.setEnd(one.firstChild, word.index + word[0].length);
                  return range.getClientRects().length > 1;
                }).map((word) => word[0]))"""
        )
        assert broken == [], "words are whole"


@pytest.mark.slow
def test_the_page_makes_sense_without_eyes(opened: NewPage, server: Server) -> None:
    ask(server)
    page = opened(server.admin)
    assert page.evaluate("document.documentElement.lang") == "en"
    expect(page.get_by_role("heading", level=1)).to_have_text(server.model)
    controls = page.evaluate(
        """[...document.querySelectorAll("input, textarea, select")]
            .map((one) => [one.id, [...one.labels].map((label) => label.textContent.trim()).join()])"""
    )
    assert controls == [["prompt", "Prompt"], ["tokens", "Tokens at most"]]
    assert all(text.strip() for text in page.locator("button, a").all_inner_texts())
    assert page.locator("svg:not([role=img][aria-label])").count() == 0
    assert page.locator("img:not([alt])").count() == 0
    levels = page.evaluate(
        "[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))"
    )
    assert levels == [1] + [2] * (len(levels) - 1)
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))


@pytest.fixture
def used_up(place: NewPlace) -> Iterator[Server]:
    """A service whose first answers cost more than there is."""
    with serving(place("submix", epsilon=1e-6), "--queries", "1") as found:
        ask(found, tokens=16)
        yield found


@pytest.mark.slow
def test_a_budget_that_is_gone_is_shown(used_up: Server, opened: NewPage) -> None:
    statement = look(used_up)["statement"]
    assert statement["stopped"]
    assert statement["public_answers"] > 0
    page = opened(used_up.admin)
    expect(page.locator("#outlook")).to_contain_text("STOP")
    expect(page.locator("#outlook")).not_to_contain_text("gone in about")
    expect(page.locator(".title .badge")).to_have_text("budget used up: the public model answers")
    expect(page.locator("#public")).to_have_text(f"{statement['public_answers']:,}")
    expect(page.locator(".gauge .fill.hot")).to_have_count(1)
    expect(page.get_by_role("list", name="Latest events")).to_contain_text("STOP")
    # Clients see what they saw before.
    status = opened(used_up.url.removesuffix("/v1"))
    expect(status.locator("#ready")).to_have_text("answering")
    assert "STOP" not in status.locator("main").inner_text().replace("the moment of STOP", "")


@pytest.mark.slow
def test_the_public_page_shows_model_guarantee_and_tokens(opened: NewPage, server: Server) -> None:
    ask(server)
    page = opened(server.url.removesuffix("/v1"))
    text = page.locator("body").inner_text()
    expect(page.get_by_role("heading", level=1)).to_have_text(server.model)
    expect(page.locator("#ready")).to_have_text("answering")
    assert "submix-guarded, 2 parts" in text
    assert "epsilon 50 at order 2" in text
    assert int(page.locator("#served").inner_text().replace(",", "")) > 0
    assert page.locator("svg, script, form, button").count() == 0
    assert "%" not in text
    assert str(server.admin) not in page.content()


@pytest.mark.slow
def test_every_page_and_file_has_the_headers(server: Server) -> None:
    public = server.url.removesuffix("/v1")
    urls = [f"{server.admin}/", f"{server.admin}/figures", f"{public}/"]
    urls += [f"{base}/static/{name}" for base in (public, server.admin) for name in STATIC]
    for url in urls:
        answer = httpx.get(url, timeout=60)
        assert answer.status_code == 200, url
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value, (url, name)
    for name, kind in STATIC.items():
        assert httpx.get(f"{public}/static/{name}").headers["content-type"].startswith(kind)
    assert httpx.get(f"{public}/static/..%2Ftemplates%2Fbase.html").status_code == 404
    policy = SECURITY_HEADERS["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy


def test_no_chromium_is_a_failure_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match="apt-get install -y --no-install-recommends chromium"):
        browsers.chromium_path()


# Rendered in this process


@contextlib.contextmanager
def idle(place: Place) -> Iterator[Any]:
    service = place.idle_service(queries=1000)
    try:
        yield service
    finally:
        service.books.close()


def charge(service: Any, draws: Sequence[Sequence[float]]) -> None:
    """Answers that cost the parts so much."""
    for charges in draws:
        draw = Draw("request", service.books.balance.entries, TENANT, tuple(charges), 1, 2)
        service.books.book(service.books.decide([draw]))


def test_nothing_that_was_spent_changes_the_public_page(place: NewPlace) -> None:
    with idle(place("submix", epsilon=1.0)) as service:
        before = public_page(service)
        charge(service, [(0.3, 0.1), (0.2, 0.4), (5.0, 0.0)])  # the last one is a STOP
        assert service.books.balance.stopped
        assert public_page(service) == before
        service.metrics.booked(0.1, [])
        assert public_page(service) == before


def test_a_folder_of_this_machine_is_not_published(place: NewPlace, tiny_transformer: Path) -> None:
    with idle(place()) as service:
        assert service.public_model == tiny_transformer.name
        assert str(tiny_transformer.parent) not in public_page(service)
        assert f"an ensemble over {tiny_transformer.name}" in public_page(service)


def test_a_page_without_a_ledger_says_so(place: NewPlace) -> None:
    with idle(place()) as service:
        page, figures = (
            operator_page(service, None, "not since the start"),
            operator_figures(service, None, ""),
        )
        for html in (page, figures):
            assert "The ledger cannot be read" in html
            assert 'role="alert"' in html
            assert "not answering" in html
            assert html.count("<h1>") == 1
            assert 'class="gauge"' not in html
        assert 'id="try"' in page
        service.books.shut()
        with TestClient(admin_app(service), base_url="http://127.0.0.1") as client:
            for path in ("/", "/figures"):
                answer = client.get(path)
                assert answer.status_code == 200
                assert "The ledger cannot be read" in answer.text
            assert client.get("/admin/overview").status_code == 503
        assert "not answering at the moment" in public_page(service)


def test_a_new_account_has_nothing_to_show_and_says_so(place: NewPlace) -> None:
    with idle(place()) as service:
        html = operator_figures(service, overview(service, ledger_of(service)), "not since the start")
        for words in (
            "Untouched",
            "No answer is on record yet",
            "Nothing is used yet",
            "No part has been weighed",
        ):
            assert words in html


def test_answers_that_cost_nothing_have_no_end_in_sight(place: NewPlace) -> None:
    with idle(place()) as service:
        charge(service, [(0.0, 0.0), (0.0, 0.0)])
        html = operator_figures(service, overview(service, ledger_of(service)), "not since the start")
        assert "No end in sight" in html
        assert "answers cost nothing" in html


def test_names_are_escaped(place: NewPlace) -> None:
    with idle(place()) as service:
        Access(ledger_of(service)).set_quota(EVIL, 10)
        html = operator_page(service, overview(service, ledger_of(service)), EVIL)
        assert EVIL not in html
        # As a name, in the label of its bar, and as the time of the last verification.
        assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 3


def test_many_tenants_are_cut_short_and_quotas_of_nothing_are_full(place: NewPlace) -> None:
    with idle(place()) as service:
        access = Access(ledger_of(service))
        access.set_quota("nothing", 0)
        charge(service, [(0.1, 0.1)])
        html = operator_figures(service, overview(service, ledger_of(service)), "not since the start")
        assert 'aria-label="nothing has used 100%"' in html
        for number in range(20):
            access.set_quota(f"tenant-{number:02}", 100)
        html = operator_figures(service, overview(service, ledger_of(service)), "not since the start")
        assert f">{TENANT}<" in html, "whoever used most comes first"
        assert len(re.findall('<th scope="row">tenant-', html)) == 9, "with the page itself and nothing: 12"
        assert re.search(r"11 more used\s+less", html)


@pytest.mark.parametrize(
    ("mechanism", "words"),
    [
        ("submix", "it is not differential privacy"),
        ("submix-guarded", "as measured on this corpus"),
        ("certified", "For one user, whose text is replaced: (epsilon "),
        ("individual", "As differential privacy, for one part: (epsilon "),
    ],
)
def test_the_guarantee_is_in_words(place: NewPlace, mechanism: str, words: str) -> None:
    with idle(place(mechanism, epsilon=2.0)) as service:
        for html in (
            public_page(service),
            operator_page(service, overview(service, ledger_of(service)), "never"),
        ):
            assert words in html
            assert "(order 2, epsilon 2)" in html
            for assumption in service.guarantee.assumptions:
                assert assumption.replace("'", "&#39;") in html
        assert ("differential privacy, for one" in public_page(service)) == (service.guarantee.kind == "rdp")


def test_a_budget_that_fades_is_never_said_to_be_gone(place: NewPlace) -> None:
    with idle(place("individual", epsilon=2.0)) as service:
        charge(service, [(0.1, 0.2)])
        html = operator_figures(service, overview(service, ledger_of(service)), "never")
        assert "first part faded out in about" in html
        assert "gone in about" not in html
        charge(service, [(0.1, 1.8)])
        html = operator_figures(service, overview(service, ledger_of(service)), "never")
        assert "faded out in about" not in html, "that moment has passed"
        assert "1 of 2 parts" in html


@pytest.mark.parametrize(
    ("mechanism", "end"),
    [("certified", "pays for no further answer"), ("submix", "would have left a part nothing")],
)
def test_how_a_budget_ended_and_whether_that_is_secret(place: NewPlace, mechanism: str, end: str) -> None:
    with idle(place(mechanism, epsilon=2.0)) as service:
        charge(service, [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)])
        assert service.books.balance.stopped
        assert end in operator_figures(service, overview(service, ledger_of(service)), "never")
        assert ("depends on private text" in public_page(service)) == (mechanism == "submix")


def test_a_failed_verification_stands_out(place: NewPlace) -> None:
    with idle(place()) as service:
        html = operator_figures(
            service, overview(service, ledger_of(service)), "FAILED, 2026-01-01 00:00 UTC"
        )
        assert '<dd id="verified" class="hot">FAILED, 2026-01-01 00:00 UTC</dd>' in html


def test_an_overview_is_json_without_secrets(place: NewPlace) -> None:
    made = place()
    with idle(made) as service:
        charge(service, [(0.1, 0.2)])
        with TestClient(admin_app(service), base_url="http://127.0.0.1") as client:
            answer = client.get("/admin/overview")
        found = answer.json()
        assert made.key not in answer.text
        assert found["used"] == pytest.approx([0.1 / 1000, 0.2 / 1000])
        assert found["answers_left_at_this_rate"] == 4999
        assert [one["tenant"] for one in found["keys"]] == [TENANT]


# Arithmetic of what is shown


def balance(left: Sequence[float], budget: float = 1.0, *, stopped: bool = False) -> Balance:
    """What parts have left, in nats."""
    had = tuple(round(budget * NANO) for _ in left)
    spent = tuple(round((budget - one) * NANO) for one in left)
    return Balance(had, spent, (0,) * len(had), stopped, 0, 0, 0)


def charged(rows: Sequence[Sequence[float]], *, ago: float = 0.0, apart: float = 1.0) -> list[Charged]:
    """Answers so many seconds apart, the last one so long ago."""
    end = time.time() - ago
    return [
        Charged(
            datetime.fromtimestamp(end - apart * (len(rows) - 1 - place), UTC).isoformat(),
            tuple(round(one * NANO) for one in row),
        )
        for place, row in enumerate(rows)
    ]


def test_the_part_that_ends_first_decides_not_the_one_that_spent_most() -> None:
    # Part 0 has used 90% and pays little; part 1 has used 20% and pays a lot.
    found = rate_of(charged([(0.001, 0.1)] * 10), balance([0.1, 0.8]))
    assert found.first_to_end == 1
    assert found.answers_left == 8
    found = rate_of(charged([(0.05, 0.1)] * 10), balance([0.1, 0.8]))
    assert (found.first_to_end, found.answers_left) == (0, 2)


def test_what_is_lent_out_is_not_left() -> None:
    lent = replace(balance([0.5, 0.5]), leased=(0, NANO // 4))
    assert rate_of(charged([(0.1, 0.1)]), lent).first_to_end == 1
    assert rate_of(charged([(0.1, 0.1)]), lent).answers_left == 2


def test_no_answers_have_no_rate() -> None:
    assert rate_of([], balance([1.0, 1.0])) == Rate()
    assert Rate().answers_left is Rate().seconds_left is None


def test_answers_that_cost_nothing_never_use_a_budget_up() -> None:
    found = rate_of(charged([(0.0, 0.0)] * 3), balance([0.5, 0.5]))
    assert (found.answers, found.bars) == (3, (0.0, 0.0, 0.0))
    assert found.answers_left is found.seconds_left is found.first_to_end is None


def test_a_part_that_pays_nothing_is_not_divided_by() -> None:
    assert rate_of(charged([(0.0, 0.1)]), balance([0.5, 0.5])).first_to_end == 1


def test_what_has_stopped_is_not_projected() -> None:
    found = rate_of(charged([(0.1, 0.2)] * 4), balance([0.5, 0.5], stopped=True))
    assert len(found.bars) == 4
    assert found.answers_left is found.seconds_left is None


def test_a_rest_makes_a_budget_last_longer() -> None:
    rows = [(0.1,)] * 5
    busy, rested = (rate_of(charged(rows, ago=ago), balance([0.5])) for ago in (0.0, 996.0))
    assert busy.answers_left == rested.answers_left == 5
    # Five answers in 4 s and whatever the test itself took, or in 1,000 s.
    assert busy.seconds_left is not None
    assert rested.seconds_left is not None
    assert rested.seconds_left - busy.seconds_left == pytest.approx(996, abs=60)


def test_a_clock_that_was_set_back_gives_no_negative_time() -> None:
    found = rate_of(charged([(0.1,)] * 3, ago=-3600), balance([0.5]))
    assert found.seconds_left == pytest.approx(5 * 2 / 3, rel=0.01)
    assert rate_of(charged([(0.1,)], ago=-3600), balance([0.5])).seconds_left is None


@given(
    st.lists(st.tuples(*[st.integers(0, 10**6)] * 3), min_size=1, max_size=60),
    st.tuples(*[st.integers(0, NANO)] * 3),
)
def test_so_many_answers_are_paid_for_and_not_one_more(
    rows: list[tuple[int, ...]], left: tuple[int, ...]
) -> None:
    answers = [Charged("2026-01-01T00:00:00.000+00:00", row) for row in rows]
    account = Balance((NANO,) * 3, tuple(NANO - one for one in left), (0,) * 3, False, 0, 0, 0)
    found = rate_of(answers, account)
    paid = [sum(column) for column in zip(*rows, strict=True)]
    if not any(paid):
        assert found.answers_left is None
        return
    assert found.answers_left is not None
    assert found.first_to_end is not None
    for part in range(3):
        assert paid[part] * found.answers_left <= left[part] * len(rows)
    worst = found.first_to_end
    assert paid[worst] * (found.answers_left + 1) > left[worst] * len(rows)


@pytest.mark.parametrize(
    ("answers", "per_bar", "shown"), [(1, 1, 1), (50, 1, 50), (51, 2, 26), (1000, 20, 50)]
)
def test_a_bar_is_the_mean_of_as_many_answers_as_needed(answers: int, per_bar: int, shown: int) -> None:
    rows = [(place / 1000, 0.0) for place in range(answers)]
    found = rate_of(charged(rows), balance([1.0, 1.0]))
    assert (found.per_bar, len(found.bars)) == (per_bar, shown)
    first = rows[:per_bar]
    assert found.bars[0] == pytest.approx(sum(row[0] for row in first) / len(first))
    assert found.bars[-1] == max(found.bars), "the latest is last"


def test_bars_stay_in_their_box_and_are_as_tall_as_their_values() -> None:
    values = [0.0, 1.0, 2.0, 4.0]
    found = bars(values, width=80, height=20)
    assert [bar["height"] for bar in found] == [0, 5, 10, 20]
    assert [bar["y"] + bar["height"] for bar in found] == [20] * 4
    assert [bar["x"] for bar in found] == [2, 22, 42, 62]
    assert all(bar["width"] == 16 for bar in found)


def test_a_little_is_seen_and_nothing_is_not() -> None:
    nothing, little, much = bars([0, 1, 1_000_000], height=30)
    assert nothing["height"] == 0
    assert 0 < little["height"] < 1
    assert little["y"] + little["height"] == much["y"] + much["height"] == 30


def test_few_bars_leave_room_for_others() -> None:
    (only,) = bars([3.0], slots=8)
    assert (only["x"], only["width"], only["height"]) == (1.25, 10, 30)
    assert len(bars([1.0] * 9, slots=8)) == 9


def test_bars_of_nothing() -> None:
    assert bars([]) == []
    assert [bar["height"] for bar in bars([0.0, 0.0])] == [0, 0]


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.0, "0%"),
        (1e-9, "<0.01%"),
        (0.0001, "0.01%"),
        (0.01234, "1.23%"),
        (0.5, "50%"),
        (0.99951, ">99.9%"),
        (1.0, "100%"),
    ],
)
def test_shares_as_people_read_them(share: float, shown: str) -> None:
    assert percent(share) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0 ms"), (0.0123, "12 ms"), (0.9996, "1.0 s"), (1.0, "1.0 s"), (12.34, "12.3 s")],
)
def test_short_durations(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (math.inf, "–"),
        (0.4, "0 seconds"),
        (1.9, "1 second"),
        (119.0, "119 seconds"),
        (120.0, "2 minutes"),
        (47 * 3600.0, "47 hours"),
        (3 * 86_400.0, "3 days"),
        (400 * 86_400.0, "400 days"),
        (3 * 31_557_600.0, "3 years"),
        (1e300, "over 1,000 years"),
    ],
)
def test_long_durations(value: float | None, shown: str) -> None:
    assert span(value) == shown


def test_moments_are_where_a_calendar_reaches() -> None:
    assert moment(None) == ""
    assert moment(1e300) == ""
    found = datetime.strptime(moment(86_400.0), "around %Y-%m-%d %H:%M UTC").replace(tzinfo=UTC).timestamp()
    assert found - time.time() == pytest.approx(86_400, abs=120)


def test_charges_are_short() -> None:
    assert nats(0.000_462_19) == "0.000462 nats"
