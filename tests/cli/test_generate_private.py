"""`tacit generate` of ensembles: what each option promises, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Tacit
from tests.cli.test_train_submix import SUBMIX

BUDGET = ("--epsilon", "1", "--queries", "8", "--tokens", "4")


@pytest.fixture
def ensemble(tacit: Tacit, folder: Path) -> str:
    (folder / "recipe.yaml").write_text(SUBMIX)
    assert tacit("train", "recipe.yaml").code == 0
    return "runs/first"


def test_options_change_the_promise_where_they_should(tacit: Tacit, folder: Path, ensemble: str) -> None:
    def privacy(*options: str) -> dict[str, Any]:
        result = tacit("generate", ensemble, *BUDGET, *options, "--json")
        assert result.code == 0, (options, result.err)
        assert set(result.json()) == {"prompt", "text", "tokens", "guarantee", "privacy"}
        return dict(result.json()["privacy"])

    plain = privacy()
    assert (plain["kind"], plain["order"], plain["epsilon"], plain["outside"]) == ("rop", 2.0, 1.0, [])
    assert privacy("--repetition-penalty", "1.3", "--top-k", "20", "--top-p", "0.9") == plain
    assert privacy("--logit-bias", "7=-2.5", "--logit-bias", "8=1") == plain
    voted = privacy("--mechanism", "gnmax")
    assert "changed arbitrarily" in voted["assumptions"][0]
    assert "One-directional (paper)" in voted["statement"]
    assert "One-directional" not in plain["statement"]
    assert privacy("--mixing", "averaged", "--weights", "paper") == plain
    guarded = privacy("--guard", "0.5", "--cap", "0.9")
    assert guarded["assumptions"][0].startswith("neighbours: one part's text is replaced by nothing")
    assert guarded | {"assumptions": plain["assumptions"]} == plain
    (outside,) = privacy("--random-stopping", "4")["outside"]
    assert outside.startswith("random stopping (paper)")
    certified = privacy("--mechanism", "certified", "--random-stopping", "4")
    assert (certified["kind"], certified["outside"]) == ("rdp", [])
    assert privacy("--mechanism", "public")["kind"] == "public"
    assert privacy("--mechanism", "nonprivate")["kind"] == "none"


def test_one_model_per_part_answers_lazily(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(SUBMIX)
    assert tacit("train", "recipe.yaml", "ensemble.halves=false").code == 0
    for options in ((), ("--lazy",), ("--mechanism", "individual")):
        result = tacit("generate", "runs/first", *BUDGET, *options)
        assert result.code == 0, result.err
        shown = " ".join(result.err.split())
        assert "Renyi differential privacy (order 2, epsilon 1), which implies (epsilon 11.1266" in shown
        assert "delta 1e-05)" in shown


def test_what_is_refused(tacit: Tacit, folder: Path, ensemble: str) -> None:
    cases = [
        (("--seed", "1"), "predictable"),
        (("--weights", "heavy"), "weights='heavy'"),
        (("--mechanism", "certified", "--weights", "paper"), "weights belongs to mechanism submix"),
        (("--mechanism", "magic"), "'magic' is unknown"),
        (("--order", "1"), "order=1"),
        (("--target", "0"), "target=0"),
        (("--guard", "-1"), "guard=-1"),
        (("--temperature", "0"), "greedy decoding cannot be private"),
        (("--repetition-penalty", "0"), "repetition_penalty=0"),
        (("--repetition-penalty", "1e-45"), "repetition_penalty=1e-45"),
        (("--logit-bias", "3=1e39"), "a bias must lie between -100 and 100"),
        (("--logit-bias", "99999999999999999999=1"), "there is no token 99999999999999999999"),
        (("--random-stopping", "0.5"), "expansion=0.5"),
        (("--logit-bias", "x=1"), "expected TOKEN=BIAS"),
        (("--logit-bias", "999999999=1"), "999999999"),
        (("--lazy",), "Only certified mixing"),
        (("--model", "other"), "leave --model out"),
    ]
    for options, says in cases:
        result = tacit("generate", ensemble, *BUDGET, *options)
        assert (result.code, result.out) == (2, ""), (options, result.err)
        assert says in " ".join(result.err.split()), (options, result.err)
    for option in ("--epsilon", "--queries"):
        assert f"{option.strip('-')}=0" in tacit("generate", ensemble, *BUDGET, option, "0").err
    for epsilon in ("1e300", "1e-10", "inf"):
        for mechanism in ("submix", "certified", "individual"):
            result = tacit("generate", ensemble, *BUDGET, "--epsilon", epsilon, "--mechanism", mechanism)
            assert (result.code, result.out) == (2, ""), (epsilon, mechanism, result.err)
            assert "from 1e-9 to 4.61e+09" in " ".join(result.err.split())
    assert "give one" in tacit("generate", ensemble).err
    shutil.rmtree(folder / ensemble / "members" / "part-000-a")
    assert tacit("generate", ensemble, *BUDGET).code == 4
