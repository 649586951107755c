"""The pictures in the documentation: the operator's page of a small ensemble after three days of questions.

    python -m tests.serving.screenshot docs/operator.png [docs/operator-dark.png]

The three days are made up (entries of the ledger with earlier times); what is asked at the end is real.
"""

from __future__ import annotations

import datetime
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import httpx
from playwright.sync_api import expect

from tacit.ledger import Access, Domain, Draw, Ledger, Session
from tacit.prediction.accounts import model_of
from tacit.runs import Run
from tacit.training.ensemble import train_ensemble
from tests.serving.browser import chromium
from tests.serving.conftest import Place, Server, serving
from tests.tiny import BUILDERS
from tests.training.ensembles import ensemble_recipe, sayings, write_sayings

_QUOTAS = {"helpdesk": 5000, "mobile-app": 900, "research": 300}
_PROMPTS = ("The baker", "The old farmer", "A young teacher", "Parcel 3 waits")
_HISTORY, _HOURS, _QUESTIONS = 2200, 72, 70


def trained(folder: Path) -> Path:
    """An ensemble of eight parts, each with two halves."""
    BUILDERS["transformer"](folder / "tiny-gpt2")
    private = write_sayings(folder / "sayings.jsonl", sayings(80, 4))
    recipe = ensemble_recipe(
        folder / "tiny-gpt2",
        private,
        folder / "support-desk",
        ensemble={"parts": 8, "halves": True},
        training={"max_steps": 30},
    )
    train_ensemble(recipe)
    return folder / "support-desk"


def with_history(run: Path, folder: Path, chance: random.Random) -> tuple[Place, dict[str, str]]:
    """A ledger in which people have asked for three days, and a key for each tenant."""
    url, anchor, model = str(folder / "ledger.db"), folder / "anchor.json", model_of(Run.open(run))
    end = datetime.datetime.now(datetime.UTC)
    begun = end - datetime.timedelta(hours=_HOURS)
    with (
        mock.patch("tacit.ledger.decisions.now") as now,
        Ledger.open(url, anchor=anchor, create=True) as book,
    ):
        now.return_value = begun.isoformat(timespec="milliseconds")
        terms = Domain("customers", 2.0, model.parts, model.partition, 2.0, "submix-guarded", model.unit)
        book.create(terms, model)
        access, keys = Access(book), {}
        for tenant, quota in _QUOTAS.items():
            access.set_quota(tenant, quota)
            keys[tenant], _ = access.create_key(tenant)
        session = Session(book, terms.id, model=model.fingerprint, mechanism=terms.mechanism, order=2.0)
        scales = [chance.uniform(0.0001, 0.0003) for _ in range(model.parts)]
        for answer in range(_HISTORY):
            made = begun + (end - begun) * answer / _HISTORY
            now.return_value = made.isoformat(timespec="milliseconds")
            charges = tuple(scale * chance.lognormvariate(0, 0.7) for scale in scales)
            draw = Draw(f"earlier/{answer}", 0, chance.choices(list(_QUOTAS), (7, 2, 1))[0], charges, 1, 1)
            session.book(session.decide([draw]))
    return Place(run, url, anchor, ""), keys


def ask(server: Server, keys: dict[str, str], chance: random.Random) -> None:
    for _ in range(_QUESTIONS):
        asked = {
            "model": server.model,
            "prompt": chance.choice(_PROMPTS),
            "max_tokens": chance.randint(6, 30),
        }
        key = keys[chance.choice(["helpdesk", "helpdesk", "mobile-app"])]
        answer = httpx.post(
            f"{server.url}/completions", json=asked, headers={"authorization": f"Bearer {key}"}, timeout=60
        )
        answer.raise_for_status()


def shoot(server: Server, path: Path, scheme: str) -> None:
    with chromium() as browser:
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, color_scheme="dark" if scheme == "dark" else "light"
        )
        page = context.new_page()
        page.goto(server.admin)
        page.click("#verify")
        expect(page.locator("#said")).to_contain_text("Verified")
        page.fill("#prompt", _PROMPTS[0])
        page.press("#prompt", "Control+Enter")
        expect(page.locator("#answer small")).to_be_visible(timeout=60_000)
        expect(page.locator("#said")).to_have_text("", timeout=60_000)
        page.mouse.click(5, 400)  # nothing has the focus
        page.screenshot(path=path, full_page=True)


def main(paths: Sequence[str]) -> None:
    chance = random.Random(4)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place, keys = with_history(trained(folder), folder, chance)
        with serving(place, "--queries", "1000") as server:
            ask(server, keys, chance)
            for path, scheme in zip(map(Path, paths), ("light", "dark"), strict=False):
                shoot(server, path, scheme)
                print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
