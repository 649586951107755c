"""Which Runs a sweep asks for: by the key that is named, or by what the method is tuned by."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.errors import InputError
from tacit.tuning import Sweep, sweep_of

RECIPE = "output: runs/first\ncorpus: {path: mail.jsonl, user: user, text: text}\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "recipe.yaml"


def names(sweep: Sweep) -> list[str]:
    return [point.name for point in sweep.points]


@pytest.mark.parametrize(
    ("overrides", "key", "expected"),
    [
        (["method=triplet"], "regularisation.lambda", "0 0.01 0.03 0.1 0.3"),
        (["method=adversarial"], "regularisation.lambda", "0 0.1 1 3 10"),
        (["method=dpsgd", "privacy={epsilon: 8, delta: 1e-5}"], "privacy.epsilon", "1 2 4 8 16"),
        (
            ["method=dpsgd", "privacy={noise_multiplier: 1, delta: 1e-5}"],
            "privacy.noise_multiplier",
            "0.3 0.5 1 2",
        ),
        (["training.max_steps=100"], "training.max_steps", "12 25 50 100"),
        (["training.epochs=3"], "training.epochs", "1 3"),
    ],
)
def test_every_method_has_what_it_is_tuned_by(
    recipe: Path, overrides: list[str], key: str, expected: str
) -> None:
    sweep = sweep_of(recipe, overrides, None, None)
    last = key.rpartition(".")[2]
    assert sweep.key == key
    assert names(sweep) == [f"{last}-{value}" for value in expected.split()]
    assert sweep.folder == recipe.parent / f"runs/first-over-{last}"
    assert [point.folder for point in sweep.points] == [sweep.folder / name for name in names(sweep)]


def test_values_are_what_the_recipe_makes_of_them(recipe: Path) -> None:
    sweep = sweep_of(recipe, ["method=triplet"], "regularisation.lambda=1e-5, 3,0.10", Path("out"))
    assert [point.value for point in sweep.points] == [1e-5, 0.1, 3.0]
    assert names(sweep) == ["lambda-1e-05", "lambda-0.1", "lambda-3"]
    weights = [point.recipe.regularisation.weight for point in sweep.points if point.recipe.regularisation]
    assert weights == [1e-5, 0.1, 3.0]
    # What is there already is not added; what is new comes where it belongs.
    assert names(sweep.with_values([0.1, 1e-5])) == names(sweep)
    assert names(sweep.with_values([1.0])) == ["lambda-1e-05", "lambda-0.1", "lambda-1", "lambda-3"]


def test_any_value_that_a_recipe_takes_may_vary(recipe: Path) -> None:
    lists = sweep_of(recipe, [], "adapter.targets=[q_proj, v_proj],[q_proj],null", None)
    assert names(lists) == ["targets-q_proj_v_proj", "targets-q_proj", "targets-null"]
    assert lists.points[0].recipe.adapter.targets == ("q_proj", "v_proj")
    words = sweep_of(recipe, ["method=triplet"], "regularisation.schedule=sigmoid,constant", None)
    assert names(words) == ["schedule-sigmoid", "schedule-constant"]  # as they were given
    section = sweep_of(recipe, [], "adapter={kind: lora, rank: 2},{kind: full}", None)
    assert [point.recipe.adapter.kind for point in section.points] == ["lora", "full"]


def test_what_all_runs_share_is_pinned_and_nothing_else(recipe: Path) -> None:
    def pinned(*overrides: str, values: str = "0,1") -> dict[str, object]:
        over = f"regularisation.lambda={values}"
        return sweep_of(recipe, ["method=triplet", *overrides], over, None).pinned

    same = pinned()
    assert same == pinned("regularisation.lambda=7", "output=other", "performance.threads=1", values="5,6")
    assert same != pinned("training.epochs=9")
    assert same != pinned("regularisation.margin=2")
    assert "lambda" not in same["regularisation"]  # type: ignore[operator]


def test_a_recipe_may_lack_the_key_that_varies(recipe: Path) -> None:
    """DP-SGD needs its noise: the sweep gives it."""
    sweep = sweep_of(recipe, ["method=dpsgd", "privacy.delta=1e-5"], "privacy.epsilon=8,2", None)
    assert names(sweep) == ["epsilon-2", "epsilon-8"]
    with pytest.raises(InputError, match="give either 'epsilon'"):
        sweep_of(recipe, ["method=dpsgd", "privacy.delta=1e-5"], None, None)
