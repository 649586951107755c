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
            "'training.epochs'=0 cannot be used: expected a number of at least 1",
        ),
        ("training.epochs=many", "'training.epochs'='many' cannot be used"),
        ("training.epochs=true", "'training.epochs'=True cannot be used: expected a whole number"),
        ("training.seed=true", "'training.seed'=True cannot be used: expected a whole number"),
        ("training.epochs=010", "expected a whole number"),
        ("training.max_steps=1:30", "expected a whole number"),
        ("training.learning_rate=true", "'training.learning_rate'=True cannot be used: expected a number"),
        ("corpus.public=1", "'corpus.public'=1 cannot be used: expected true or false"),
        ("training={epochs: 1, epochs: 2}", "Override 'training', line 1: 'epochs' is there twice"),
        ("corpus={1: 2}", "unknown key 'corpus.1'; known keys here: path, format"),
        ("held_out.share=1", "'held_out.share'=1 cannot be used: expected a number below 1"),
        ("held_out.among=9", "'among' is for by 'within'"),
        ("training.learning_rate=.nan", "cannot be used: expected a finite number"),
        (
            "training.learning_rate=1e30",
            "'training.learning_rate'='1e30' cannot be used: expected a number of",
        ),
        ("adapter.kind=top", "kind 'top' needs trunk_layers of at least 1"),
        (
            "adapter={kind: full, rank: 4}",
            "'rank' belongs to kind 'lora' and would be ignored by kind 'full'",
        ),
        ("adapter={kind: full, alpha: 4}", "remove adapter.alpha"),
        ("adapter={kind: top, trunk_layers: 1, dropout: 0.1}", "'dropout' belongs to kind 'lora'"),
        ("adapter={kind: full, targets: [q_proj]}", "remove adapter.targets"),
        ("corpus.user=no", "'corpus.user'=False cannot be used: expected text, and YAML reads yes, no, on"),
        ("performance.trunk_cache=on", "expected 'memory', 'disk' or 'off'"),
        ("method=magic", "'method'='magic' cannot be used: expected 'finetune', 'submix', 'dpsgd'"),
        ("training.epochs=1.5", "'training.epochs'=1.5 cannot be used: expected a whole number"),
        ("training.epochs=[2]", "'training.epochs' cannot be used: expected a whole number"),
        ("training.clip=x", "'training.clip'='x' cannot be used: expected a number"),
        ("training=5", "'training'=5 cannot be used: expected a section of keys"),
        ("training=null", "'training' cannot be used: expected a section of keys"),
        ("corpus=x", "'corpus'='x' cannot be used: expected a section of keys"),
        ("corpus.skip_bad=maybe", "cannot be used: expected true or false"),
        ("corpus.format=xml", "expected 'auto', 'jsonl', 'csv'"),
        ("corpus.path=''", "'corpus.path'='' cannot be used: expected a text that is not empty"),
        ("output=''", "'output'='' cannot be used: expected a text that is not empty"),
        ('output="a\\0b"', "expected text without a null character"),
        ("model.name=''", "'model.name'='' cannot be used: expected a text that is not empty"),
        ("model.name=3", "'model.name'=3 cannot be used: expected text"),
        ("adapter.targets=[]", "'adapter.targets' cannot be used: expected a list that is not empty"),
        ("adapter.targets=q_proj", "'adapter.targets'='q_proj' cannot be used: expected a list"),
        ("adapter.targets=['']", "expected a text that is not empty"),
        ("adapter.rank=1000000000", "'adapter.rank'=1000000000 cannot be used: expected a number of at most"),
        ("performance.threads=100000", "expected a number of at most 1024"),
        ("performance.device=tpu", "'performance.device'='tpu' cannot be used: expected auto, cpu, cuda"),
        ("training.block_size=99999999", "expected a number of at most 1048576"),
        ("training.max_steps=" + "9" * 30, "expected a number of at most"),
        ("training.max_steps=" + "9" * 5000, "the value is not valid YAML"),
        ("training.seed=2000-99-99", "the value is not valid YAML"),
        ("training.max_steps=" + "x" * 5000, "expected a whole number"),
        ("epochs", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("model.name=[", "the value is not valid YAML"),
    ],
    ids=lambda text: text[:50],
)
def test_mistakes_get_one_sentence_with_the_remedy(override: str, sentence: str) -> None:
    base = MINIMAL | {"training": {"early_stop": {"public_text": "p"}}} if "early" in override else MINIMAL
    with pytest.raises(RecipeError) as problem:
        parse_recipe(base, [override])
    assert sentence in str(problem.value)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 300
    for leaked in ("Input", "input should", "instance", "tuple", "dictionary"):
        assert leaked not in str(problem.value)


def test_full_training_has_no_trunk() -> None:
    with pytest.raises(RecipeError, match="trunk_layers must be 0"):
        parse_recipe(MINIMAL, ["adapter.kind=full", "adapter.trunk_layers=2"])


@pytest.mark.parametrize("adapter", ["{kind: full}", "{kind: top, trunk_layers: 2}"])
def test_the_recipe_of_a_run_that_trains_layers_survives_json(adapter: str) -> None:
    recipe = parse_recipe(MINIMAL, [f"adapter={adapter}"])
    assert Recipe.model_validate(recipe.to_json()) == recipe


@pytest.mark.parametrize("word", ["off", "'off'", "Off", "no", "false"])
def test_the_trunk_cache_can_be_off(tmp_path: Path, word: str) -> None:
    # YAML reads a bare off as false.
    assert parse_recipe(MINIMAL, [f"performance.trunk_cache={word}"]).performance.trunk_cache == "off"
    path = tmp_path / "recipe.yaml"
    path.write_text(f"output: a\ncorpus: {{path: x}}\nperformance: {{trunk_cache: {word}}}\n")
    recipe = load_recipe(path)
    assert recipe.performance.trunk_cache == "off"
    assert Recipe.model_validate(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("word", "expected"), [("off", False), ("no", False), ("on", True), ("auto", "auto")]
)
def test_words_that_yaml_reads_as_true_or_false(word: str, expected: object) -> None:
    section = parse_recipe(MINIMAL, [*SUBMIX, f"ensemble.joint={word}"]).ensemble
    assert section is not None
    assert section.joint == expected


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


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1"])
def test_devices(device: str) -> None:
    assert parse_recipe(MINIMAL, [f"performance.device={device}"]).performance.device == device


@pytest.mark.parametrize(
    "content",
    ["output: " + "9" * 5000, "a: " + "[" * 5000, "output: 2000-99-99"],
    ids=["digits", "nested", "date"],
)
def test_yaml_that_python_cannot_hold(tmp_path: Path, content: str) -> None:
    (tmp_path / "odd.yaml").write_text(content)
    with pytest.raises(RecipeError, match="is not valid YAML"):
        load_recipe(tmp_path / "odd.yaml")


SUBMIX = ["method=submix", "training.max_steps=20"]


def test_an_ensemble_has_the_documented_defaults() -> None:
    section = parse_recipe(MINIMAL, SUBMIX).ensemble
    assert section is not None
    assert (section.parts, section.halves, section.assign, section.key, section.joint) == (
        8,
        True,
        "hash",
        None,
        "auto",
    )
    assert parse_recipe(MINIMAL).ensemble is None
    recipe = parse_recipe(MINIMAL, [*SUBMIX, "ensemble.joint=false", "ensemble.halves=false"])
    assert Recipe.model_validate(recipe.to_json()) == recipe


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method=submix"], "needs 'training.max_steps', the public number of steps"),
        (
            ["ensemble.parts=2"],
            "the section 'ensemble' is for method 'submix', not 'finetune'; remove it (ensemble=null)",
        ),
        ([*SUBMIX, "ensemble.parts=0"], "'ensemble.parts'=0 cannot be used: expected a number of at least 1"),
        ([*SUBMIX, "ensemble.parts=99999"], "expected a number of at most 10000"),
        ([*SUBMIX, "ensemble.part=2"], "unknown key 'ensemble.part'; did you mean 'parts'?"),
        (
            [*SUBMIX, "ensemble.joint=maybe"],
            "'ensemble.joint'='maybe' cannot be used: expected auto, true or",
        ),
        ([*SUBMIX, "ensemble.joint=1"], "'ensemble.joint'='1' cannot be used: expected auto, true or"),
        ([*SUBMIX, "ensemble.assign=random"], "expected 'hash' or 'balanced'"),
        ([*SUBMIX, "ensemble=0"], "'ensemble'=0 cannot be used: expected a section of keys"),
        (
            [*SUBMIX, "ensemble.joint=true", "adapter.dropout=0.1"],
            "set ensemble.joint=false, or adapter.dropout",
        ),
        (
            [*SUBMIX, "ensemble.joint=true", "adapter.kind=full"],
            "set ensemble.joint=false, or adapter.kind=lora",
        ),
        ([*SUBMIX, "training.early_stop.public_text=p"], "remove 'training.early_stop'"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_mistakes_about_ensembles_get_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError) as problem:
        parse_recipe(MINIMAL, overrides)
    assert sentence in str(problem.value)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 300


PRIVATE = ["privacy.epsilon=8", "privacy.delta=1e-5"]
DPSGD = ["method=dpsgd", *PRIVATE]
CRT = ["method=crt", *PRIVATE]
SELECTIVE = ["method=selective", *PRIVATE, "selective.screened=s.jsonl", "adapter.kind=full"]


def test_private_methods_have_the_documented_defaults() -> None:
    privacy = parse_recipe(MINIMAL, DPSGD).privacy
    assert privacy is not None
    assert (privacy.epsilon, privacy.noise_multiplier, privacy.delta) == (8.0, None, 1e-5)
    assert (privacy.clip, privacy.unit, privacy.adjacency, privacy.group) == (1.0, "example", "add-remove", 1)
    crt = parse_recipe(MINIMAL, CRT)
    assert crt.privacy is not None
    assert crt.privacy.adjacency == "replace-one"
    assert crt.confidentiality is not None
    assert crt.confidentiality.gamma is None
    assert crt.public_phase is not None
    assert crt.public_phase.optimiser_state == "separate"
    assert crt.performance.engine == "auto"
    for overrides in (DPSGD, CRT, SELECTIVE):
        recipe = parse_recipe(MINIMAL, overrides)
        assert Recipe.model_validate(recipe.to_json()) == recipe


def test_the_baselines_of_a_crt_recipe_are_its_overrides() -> None:
    """As the guide has them: the same file, without the sections that are not theirs."""
    crt = parse_recipe(MINIMAL, [*CRT, "confidentiality.gamma=0.1", "public_phase.batch_size=2"]).to_json()
    plain = ["confidentiality=null", "public_phase=null"]
    assert parse_recipe(crt, ["method=dpsgd", *plain]).privacy is not None
    assert parse_recipe(crt, ["method=finetune", "privacy=null", *plain]).privacy is None


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["method=dpsgd"], "method 'dpsgd' needs a section 'privacy'; give for example privacy.epsilon=8"),
        (PRIVATE, "the section 'privacy' is for method 'dpsgd', 'crt' or 'selective', not 'finetune'"),
        ([*DPSGD, "privacy.noise_multiplier=1"], "either 'epsilon', which the noise is calibrated to, or"),
        (["method=dpsgd", "privacy.delta=1e-5"], "(neither is there), e.g. epsilon: 8"),
        (["method=dpsgd", "privacy.epsilon=1"], "'privacy.delta' is required"),
        ([*DPSGD, "privacy.delta=1"], "'privacy.delta'=1 cannot be used: expected a number below 1"),
        ([*DPSGD, "privacy.delta=0"], "'privacy.delta'=0 cannot be used: expected a number above 0"),
        ([*DPSGD, "privacy.epsilon=0"], "'privacy.epsilon'=0 cannot be used: expected a number above 0"),
        ([*DPSGD, "privacy.clip=0"], "'privacy.clip'=0 cannot be used: expected a number above 0"),
        ([*DPSGD, "privacy.unit=part"], "expected 'example' or 'user'"),
        ([*DPSGD, "privacy.sigma=1"], "unknown key 'privacy.sigma'; known keys here: epsilon,"),
        ([*DPSGD, "privacy.engine=loop"], "unknown key 'privacy.engine'"),
        ([*DPSGD, "performance.engine=opacus"], "expected 'auto', 'bookkeeping' or 'loop'"),
        ([*DPSGD, "training.clip=2"], "'training.clip' would be ignored by method 'dpsgd'"),
        ([*DPSGD, "training.early_stop.public_text=p"], "remove 'training.early_stop'"),
        ([*DPSGD, "confidentiality.gamma=0.1"], "the section 'confidentiality' is for method 'crt', not"),
        ([*DPSGD, "public_phase.batch_size=2"], "the section 'public_phase' is for method 'crt', not"),
        ([*DPSGD, "privacy.unit=user", "corpus.blocks=8"], "'corpus.blocks' tears data points and users"),
        ([*CRT, "training.max_steps=3"], "takes whole epochs over public and private text; remove"),
        ([*CRT, "corpus.blocks=8"], "'corpus.blocks' tears data points and users"),
        ([*CRT, "corpus.screened=false"], "method 'crt' learns from what tacit corpus screen wrote"),
        ([*CRT, "privacy.adjacency=add-remove"], "which is 'replace-one'; remove privacy.adjacency"),
        (
            [*CRT, "privacy.examples=3000"],
            "of method 'crt' is known without a statement: replacing a secret does not change it; remove "
            "privacy.examples",
        ),
        (
            [*CRT, "confidentiality.gamma=0.1", "method=finetune"],
            "remove it (privacy=null confidentiality=null) or set method=dpsgd",
        ),
        (
            [*CRT, "confidentiality.gamma=0.1", "public_phase.batch_size=2", "method=dpsgd"],
            "remove it (confidentiality=null public_phase=null) or set method=crt",
        ),
        ([*CRT, "privacy.unit=user"], "protects secrets in data points, not users; remove privacy.unit"),
        ([*CRT, "confidentiality.gamma=1.5"], "expected a number of at most 1"),
        (
            [*CRT, "confidentiality={calibration: c.json, gamma: 0.1}"],
            "'gamma' is either measured (calibration) or assumed (gamma), not both; remove one",
        ),
        (["method=selective", *PRIVATE], "needs 'selective.screened', the file of tacit corpus screen"),
        ([*SELECTIVE, "adapter.kind=lora"], "all of whose weights are trained; set adapter.kind=full"),
        ([*SELECTIVE, "privacy.group=2"], "'privacy.group' is not for method 'selective'; remove it"),
        ([*SELECTIVE, "training.max_steps=3"], "remove training.max_steps and give training.epochs"),
        (["training.learning_rate=2"], "learning_rate=2 is more than 1, which AdamW never survives"),
        (["corpus.screened=maybe"], "'corpus.screened'='maybe' cannot be used: expected auto, true or false"),
        ([*SUBMIX, "corpus.screened=true"], "method 'submix' has no token for the masks"),
        ([*SUBMIX, "training.optimiser=sgd"], "are trained by AdamW; remove training.optimiser"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_mistakes_about_private_training_get_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError) as problem:
        parse_recipe(MINIMAL, overrides)
    assert sentence in str(problem.value)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 300


ADVERSARIAL = ["method=adversarial"]
TRIPLET = ["method=triplet"]


def test_regularisation_has_the_documented_defaults() -> None:
    for overrides in (ADVERSARIAL, TRIPLET):
        recipe = parse_recipe(MINIMAL, [*overrides, "regularisation.lambda=0.5"])
        section = recipe.regularisation
        assert section is not None
        assert (section.weight, section.schedule, section.label, section.batches) == (
            0.5,
            "constant",
            None,
            "user",
        )
        assert (section.hidden, section.margin, section.paper_eq4) == (1000, 1.0, False)
        assert recipe.to_json()["regularisation"]["lambda"] == 0.5
        assert Recipe.model_validate(recipe.to_json()) == recipe
    for overrides, weight in ((ADVERSARIAL, 1.0), (TRIPLET, 0.1)):
        for given in ([], ["regularisation.batches=mixed"], ["regularisation=null"]):
            by_default = parse_recipe(MINIMAL, [*overrides, *given])
            assert by_default.to_json()["regularisation"]["lambda"] == weight
    # Where pairs come from is told for each method: a Run of the other one has it, and must be read again.
    for overrides, pairs in ((ADVERSARIAL, "batch"), (TRIPLET, "second")):
        for given in ([], ["regularisation.batches=mixed"], ["regularisation=null"]):
            by_default = parse_recipe(MINIMAL, [*overrides, *given])
            assert by_default.to_json()["regularisation"]["pairs"] == pairs
            assert Recipe.model_validate(by_default.to_json()) == by_default
    second = parse_recipe(MINIMAL, [*TRIPLET, "training.batch_size=2"])
    assert second.training.batch_size == 2


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["regularisation.lambda=1"],
            "is for method 'adversarial' or 'triplet', not 'finetune'; remove it (",
        ),
        ([*TRIPLET, "regularisation.lamda=1"], "unknown key 'regularisation.lamda'; did you mean 'lambda'?"),
        ([*TRIPLET, "regularisation.weight=1"], "unknown key 'regularisation.weight'"),
        ([*TRIPLET, "regularisation.lambda=-1"], "expected a number of at least 0"),
        ([*TRIPLET, "regularisation.margin=0"], "expected a number above 0"),
        ([*TRIPLET, "regularisation.hidden=8"], "'regularisation.hidden' is for the other regulariser"),
        ([*ADVERSARIAL, "regularisation.margin=2"], "'regularisation.margin' is for the other regulariser"),
        ([*ADVERSARIAL, "regularisation.pairs=second"], "'regularisation.pairs' is for the other"),
        (
            [*TRIPLET, "regularisation.ramp=0.2"],
            "'regularisation.ramp' is for schedule 'linear' and would be",
        ),
        (
            [*TRIPLET, "regularisation={margin: 2, paper_eq4: true}"],
            "'regularisation.margin' is for paper_eq4=false and would be ignored here; remove it",
        ),
        (
            [*TRIPLET, "training.batch_size=2", "regularisation.pairs=batch"],
            "'training.batch_size'=2 is too small for regularisation.pairs=batch",
        ),
        (
            [*TRIPLET, "training.batch_size=1", "regularisation.pairs=batch"],
            "set training.batch_size=3 or more",
        ),
        ([*TRIPLET, "training.batch_size=1"], "set training.batch_size=2 or more"),
        ([*ADVERSARIAL, "corpus={path: x, blocks: 8}"], "'corpus.blocks' makes an author of every block"),
        (
            [*ADVERSARIAL, "regularisation.label=place", "corpus.skip_bad=true"],
            "'regularisation.label' is read beside the text, row by row; correct bad rows and remove",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_mistakes_about_regularisation_get_one_sentence(overrides: list[str], sentence: str) -> None:
    with pytest.raises(RecipeError) as problem:
        parse_recipe(MINIMAL, overrides)
    assert sentence in str(problem.value)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 300


@pytest.mark.parametrize("example", sorted(Path("examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_recipes(example: Path) -> None:
    assert load_recipe(example).method in ("finetune", example.stem)


def test_sgd_takes_steps_that_adam_does_not() -> None:
    recipe = parse_recipe(MINIMAL, ["training.optimiser=sgd", "training.learning_rate=20"])
    assert recipe.training.learning_rate == 20


@pytest.mark.parametrize("twice", ["held_out: {share: 0.5}\n", "training:\n  seed: 1\n  seed: 2\n"])
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, twice: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("output: o\nheld_out: {share: 0.1}\ncorpus: {path: x, user: u, text: t}\n" + twice)
    with pytest.raises(RecipeError, match=r"recipe.yaml, line \d: '(held_out|seed)' is there twice; remove"):
        load_recipe(path)


def test_reals_may_be_spelt_in_powers_of_ten(tmp_path: Path) -> None:
    assert parse_recipe(MINIMAL, ["training.learning_rate=5e-4"]).training.learning_rate == 5e-4
