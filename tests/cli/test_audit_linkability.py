"""`tacit audit` and `tacit compare` show what a probe tells of authors, and what chance gives."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import RECIPE, Tacit
from tests.tiny import public_sentences


def test_authors_are_named_in_tables_and_side_by_side(tacit: Tacit, folder: Path) -> None:
    rows = [
        {"user": f"u{user}", "text": f"{public_sentences(1, 9 * user + turn)[0]} {'xyz'[user % 3] * 4}"}
        for user in range(7)
        for turn in range(8)
    ]
    (folder / "dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.yaml").write_text(RECIPE + "held_out: {by: within, share: 0.3, seed: 0}\n")
    for method in ("adversarial", "finetune"):
        settings = (f"method={method}", f"output=runs/{method}", "training.max_steps=2")
        trained = tacit("train", "recipe.yaml", *settings)
        assert trained.code == 0, trained.err
        # Numbers of private text go to who watches, and are no part of the result.
        assert ("the discriminator named" in trained.err) == (method == "adversarial")
        assert "the discriminator named" not in trained.out
        audited = tacit("audit", f"runs/{method}", "--documents", "0", "--author-texts", "4")
        assert audited.code == 0, audited.err
        shown = " ".join(audited.out.split())
        assert "14 texts of 7 authors, named by a fresh probe" in shown
        assert "one of all 0.143" in shown
        assert "the public model" in shown
        assert ("In training, the discriminator named" in shown) == (method == "adversarial")
        section = json.loads((folder / f"runs/{method}/audit.json").read_text())["linkability"]
        assert (section["unseen"], section["learnt"]) == (True, 28)
    compared = tacit("compare", "runs/adversarial", "runs/finetune", "--tolerance", "0.9", "--json")
    assert compared.code == 0, compared.err
    first, second = compared.json()["runs"]
    assert first["linkability"]["method"] == "Hoeffding, 7 authors from 0 to 1"
    assert second["linkability"] is not None
    assert all(method["linkability"] is not None for method in compared.json()["methods"])
    assert "authors" in tacit("compare", "runs/adversarial", "runs/finetune").out
    wrong = tacit("audit", "runs/finetune", "--authors", "1")
    assert wrong.code != 0
    assert "two or more" in " ".join(wrong.err.split())
