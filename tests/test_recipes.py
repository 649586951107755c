"""Recipes: one sentence for every mistake, and no key is ever ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tacit.errors import RecipeError
from tacit.recipes import Recipe, load_recipe, parse_recipe

MINIMAL: dict[str, Any] = {"output": "runs/a", "corpus": {"path": "x.jsonl", "user": "u", "text": "t"}}


def test_a_minimal_recipe_has_the_documented_defaults() -> None:
    recipe = parse_recipe(MINIMAL)
    assert recipe.method == "finetune"
    assert recipe.model.name == "smollm2-135m-instruct"
    assert recipe.held_out is not None
    assert (recipe.held_out.share, recipe.held_out.by) == (0.2, "user")
    assert recipe.adapter.kind == "lora"
    assert not recipe.model.trust_remote_code


def test_a_recipe_survives_json() -> None:
    recipe = parse_recipe(MINIMAL, ["adapter.targets=[q_proj]", "training.seed=3"])
    assert Recipe.model_validate(recipe.to_json()) == recipe


def test_overrides_are_parsed_as_yaml_and_merge_into_sections() -> None:
    recipe = parse_recipe(
        MINIMAL, ["training.epochs=7", "adapter.kind=top", "adapter.trunk_layers=2", "held_out=null"]
    )
    assert recipe.training.epochs == 7
    assert recipe.adapter.trunk_layers == 2
    assert recipe.held_out is None
    assert recipe.corpus.user == "u"
    assert MINIMAL["corpus"] == {"path": "x.jsonl", "user": "u", "text": "t"}


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.epoch=2", "unknown key 'training.epoch'; did you mean 'epochs'?"),
        ("trainin.epochs=2", "unknown key 'trainin'; did you mean 'training'?"),
        ("adapter.zzz=1", "unknown key 'adapter.zzz'; known keys here: kind, rank"),
        (
            "training.early_stop.patienc=1",
            "unknown key 'training.early_stop.patienc'; did you mean 'patience'",
        ),
        (
            "training.epochs=0",
            "'training.epochs'=0 cannot be used: input should be greater than or equal to 1",
        ),
        ("training.epochs=many", "'training.epochs'='many' cannot be used"),
        ("held_out.share=1", "'held_out.share'=1 cannot be used: input should be less than 1"),
        ("training.learning_rate=.nan", "cannot be used: input should be a finite number"),
        ("adapter.kind=top", "kind 'top' needs trunk_layers of at least 1"),
        ("method=magic", "'method'='magic' cannot be used: input should be 'finetune'"),
        ("epochs", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("model.name=[", "the value is not valid YAML"),
    ],
)
def test_mistakes_get_one_sentence_with_the_remedy(override: str, sentence: str) -> None:
    base = MINIMAL | {"training": {"early_stop": {"public_text": "p"}}} if "early" in override else MINIMAL
    with pytest.raises(RecipeError) as problem:
        parse_recipe(base, [override])
    assert sentence in str(problem.value)
    assert "\n" not in str(problem.value)


def test_full_training_has_no_trunk() -> None:
    with pytest.raises(RecipeError, match="trunk_layers must be 0"):
        parse_recipe(MINIMAL, ["adapter.kind=full", "adapter.trunk_layers=2"])


def test_a_missing_key_is_named() -> None:
    with pytest.raises(RecipeError, match="'output' is required; add it to the recipe or give output=VALUE"):
        parse_recipe({"corpus": MINIMAL["corpus"]})


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("output: a\n  corpus: [\n")
    with pytest.raises(RecipeError, match=r"broken.yaml, line \d: is not valid YAML"):
        load_recipe(broken)
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "absent.yaml")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(RecipeError, match="expected a mapping"):
        load_recipe(tmp_path / "list.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"output: \xe9\n")
    with pytest.raises(RecipeError, match="not UTF-8"):
        load_recipe(tmp_path / "latin.yaml")
