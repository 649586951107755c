"""A frontier is of one configuration: what is set otherwise is another row, and says in what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tacit.audit.configurations import told_apart
from tacit.recipes import Recipe, parse_recipe


def recipe(method: str = "triplet", **changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "method": method,
        "output": f"runs/{len(str(changes))}",
        "corpus": {"path": "mail.jsonl", "user": "sender", "text": "body"},
    }
    for path, value in changes.items():
        section, _, name = path.partition("__")
        content.setdefault(section, {})[name] = value
    return parse_recipe(content)


def names(recipes: Sequence[Recipe], along: Sequence[str | None] | None = None) -> list[str]:
    return told_apart([one.method for one in recipes], recipes, along or [None] * len(recipes))


def test_precisions_are_two_configurations_and_folders_of_a_model_are_none() -> None:
    precise = [recipe(model__dtype=dtype) for dtype in ("fp32", "bf16")]
    assert names(precise) == ["triplet (dtype=fp32)", "triplet (dtype=bf16)"]
    moved = [recipe(model__name=name) for name in ("models/a", "elsewhere/a")]
    assert names(moved) == ["triplet"] * 2  # which model it is, is told by its fingerprint


def test_keys_that_end_alike_are_told_with_their_section() -> None:
    rates = [
        recipe("crt", training__learning_rate=private, public_phase__learning_rate=public,
               privacy__epsilon=2, privacy__delta=1e-5, confidentiality__gamma=0.1, confidentiality__delta2=0)
        for private, public in ((1e-3, 1e-2), (1e-4, 1e-3))
    ]  # fmt: skip
    assert names(rates)[0] == "crt (training.learning_rate=0.001, public_phase.learning_rate=0.01)"


def test_two_kinds_of_pairs_are_two_configurations() -> None:
    found = names(
        [
            recipe(regularisation__pairs=pairs, regularisation__lambda=weight)
            for pairs in ("batch", "second")
            for weight in (0.1, 1)
        ]
    )
    assert found == ["triplet (pairs=batch)"] * 2 + ["triplet (pairs=second)"] * 2


@pytest.mark.parametrize(
    ("method", "key", "one", "other", "told"),
    [
        ("triplet", "regularisation__batches", "user", "mixed", ("batches=user", "batches=mixed")),
        ("triplet", "regularisation__paper_eq4", False, True, ("paper_eq4=false", "paper_eq4=true")),
        ("triplet", "regularisation__label", None, "team", ("label=null", "label=team")),
        ("adversarial", "regularisation__schedule", "constant", "sigmoid", None),
        ("adversarial", "regularisation__hidden", 10, 1000, ("hidden=10", "hidden=1000")),
        ("dpsgd", "privacy__unit", "example", "user", ("unit=example", "unit=user")),
        ("dpsgd", "privacy__clip", 1.0, 2.0, ("clip=1.0", "clip=2.0")),
        ("finetune", "training__learning_rate", 0.1, 0.2, ("learning_rate=0.1", "learning_rate=0.2")),
        ("finetune", "adapter__rank", 4, 16, ("rank=4", "rank=16")),
    ],
)
def test_what_changes_the_method_is_told(
    method: str, key: str, one: Any, other: Any, told: tuple[str, str] | None
) -> None:
    common = {"privacy__delta": 1e-5, "privacy__noise_multiplier": 1.0} if method == "dpsgd" else {}
    first, second = told or (f"schedule={one}", f"schedule={other}")
    found = names([recipe(method, **common, **{key: value}) for value in (one, other)])
    assert found == [f"{method} ({first})", f"{method} ({second})"]


@pytest.mark.parametrize(
    ("method", "key", "values"),
    [
        ("finetune", "training__epochs", (1, 2, 4)),
        ("finetune", "training__max_steps", (10, 20)),
        ("triplet", "regularisation__lambda", (0.1, 0.5, 1)),
        ("dpsgd", "privacy__noise_multiplier", (0.3, 1.0)),
        ("dpsgd", "privacy__epsilon", (1, 8)),
        ("finetune", "training__seed", (1, 2)),
    ],
)
def test_what_trades_protection_for_perplexity_makes_one_frontier(
    method: str, key: str, values: Sequence[Any]
) -> None:
    common = {"privacy__delta": 1e-5} if method == "dpsgd" else {}
    found = names([recipe(method, **common, **{key: value}) for value in values])
    assert found == [method] * len(values)


def test_epochs_are_no_difference_where_steps_are_given() -> None:
    found = names([recipe(training__max_steps=9, training__epochs=epochs) for epochs in (1, 2)])
    assert found == ["triplet"] * 2


def test_the_control_without_a_privacy_loss_stands_for_itself() -> None:
    """Its batches protect by themselves, and between it and a weight of 5 nothing was tried."""
    lambdas = ((0, 10), (0, 20), (5, 10), (5, 40))
    found = names(
        [
            recipe("adversarial", regularisation__lambda=weight, training__max_steps=steps)
            for weight, steps in lambdas
        ]
    )
    assert found == ["adversarial (lambda=0.0)"] * 2 + ["adversarial (lambda=5.0)"] * 2


def test_runs_that_differ_in_strength_and_length_are_no_frontier() -> None:
    grid = [(1, 10), (1, 20), (5, 10), (5, 20)]
    found = names(
        [
            recipe("adversarial", regularisation__lambda=weight, training__max_steps=steps)
            for weight, steps in grid
        ]
    )
    assert found == ["adversarial (lambda=1.0)"] * 2 + ["adversarial (lambda=5.0)"] * 2


def test_a_folder_of_tune_is_a_frontier_along_its_key() -> None:
    """Also from the control on, and over a key that otherwise makes another configuration."""
    weights = [recipe(regularisation__lambda=weight) for weight in (0, 0.1)]
    assert names(weights, ["regularisation.lambda"] * 2) == ["triplet"] * 2
    rates = [recipe(training__learning_rate=rate) for rate in (0.1, 0.2)]
    assert names(rates, ["training.learning_rate"] * 2) == ["triplet"] * 2
    lengths = [recipe(regularisation__lambda=0.1, training__epochs=epochs) for epochs in (1, 4)]
    along = ["regularisation.lambda"] * 2 + ["training.epochs"] * 2
    assert names([*weights, *lengths], along) == [
        *["triplet (epochs=3, lambda varied)"] * 2,
        *["triplet (epochs varied, lambda=0.1)"] * 2,
    ]


def test_other_methods_keep_their_names() -> None:
    found = names(
        [
            recipe("finetune"),
            recipe(regularisation__pairs="batch"),
            recipe(regularisation__pairs="second"),
            recipe("adversarial"),
        ]
    )
    assert found == ["finetune", "triplet (pairs=batch)", "triplet (pairs=second)", "adversarial"]
