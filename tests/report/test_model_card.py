"""The model card: what may be published, and nothing else."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tacit.errors import InputError, OutputExists
from tacit.privacy import Guarantee
from tacit.recipes import parse_recipe
from tacit.report import model_card, write_model_card
from tacit.runs import Manifest, Run
from tests.report.samples import sample_audit

PRIVATE = "/home/ann/clinic/letters.jsonl"


def manifest(**changes: Any) -> Manifest:
    recipe = parse_recipe(
        {
            "method": "submix",
            "output": "/home/ann/runs/clinic",
            "model": {"name": "/home/ann/models/base"},
            "corpus": {"path": PRIVATE, "user": "patient_number", "text": "letter"},
            "held_out": {"seed": 8_675_309},
            "training": {"max_steps": 200, "seed": 24_601},
            "ensemble": {"parts": 8, "key": "/home/ann/key"},
        }
    )
    content: dict[str, Any] = {
        "method": "submix",
        "recipe": recipe.to_json(),
        "public_model": {
            "name": "/home/ann/models/base",
            "revision": None,
            "fingerprint": "f",
            "tokenizer_fingerprint": "t",
            "family": "transformer",
            "start_token": 0,
            "vocabulary": "public",
        },
        "weights": "members",
        "ensemble": {"parts": 8, "halves": True},
        "weights_fingerprint": "hmac-sha256:aa",
        "guarantee": Guarantee.certified(order=2, epsilon=2).to_json(),
        "data_fingerprint": "hmac-sha256:bb",
        "seeded": True,
        "created": "2026-11-18T09:30:00+00:00",
        "versions": {"tacit": "0.1.0", "python": "3.11.9"},
    }
    return Manifest.model_validate(content | changes)


def released(**changes: Any) -> Manifest:
    """A model whose weights may be released, made from one of the hub."""
    public = manifest().public_model.model_copy(update={"name": "org/base-1", "revision": "a" * 40})
    guarantee = Guarantee("dp", "user", epsilon=3.0, delta=1e-5).to_json()
    content = {
        "weights": "adapter",
        "ensemble": None,
        "guarantee": guarantee,
        "public_model": public,
        "seeded": False,
    }
    return manifest(**content | changes)


def front_of(card: str) -> dict[str, Any]:
    assert card.startswith("---\n")
    _, front, _ = card.split("---\n", 2)
    found = yaml.safe_load(front)
    assert isinstance(found, dict)
    return found


def test_the_front_matter_is_what_the_hub_reads() -> None:
    assert front_of(model_card(released())) == {
        "base_model": "org/base-1",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["tacit", "privacy", "tacit-submix", "guarantee-dp"],
    }
    assert front_of(model_card(released(weights="model")))["library_name"] == "transformers"


def test_what_is_unknown_is_left_out() -> None:
    front = front_of(model_card(manifest()))
    assert not {"language", "license", "base_model", "library_name"} & set(front)


def test_the_embedded_model_has_its_name_on_the_hub() -> None:
    public = manifest().public_model.model_copy(update={"name": "smollm2-135m-instruct"})
    assert (
        front_of(model_card(released(public_model=public)))["base_model"]
        == "HuggingFaceTB/SmolLM2-135M-Instruct"
    )


@pytest.mark.parametrize("name", ["clinic/base", "../base", "/home/ann/base", "base"])
def test_a_folder_is_no_model_of_the_hub(name: str) -> None:
    public = manifest().public_model.model_copy(update={"name": name})
    card = model_card(released(public_model=public))
    assert "base_model" not in front_of(card)
    assert name not in card


@pytest.mark.parametrize("audit", [None, sample_audit()])
def test_no_path_column_key_or_seed_is_in_the_card(audit: dict[str, Any] | None) -> None:
    card = model_card(manifest(), audit)
    for private in ("/home", "ann", "clinic", "letter", "patient", "8675309", "24601", "hmac", "2026-11-18"):
        assert private not in card.replace("channel", "").replace("plann", ""), private
    assert "ensemble.parts | 8" in card
    assert "training.max_steps | 200" in card


def test_a_setting_that_is_no_plain_value_is_left_out() -> None:
    recipe = manifest().recipe | {"adapter": {"kind": ["/home/ann"], "rank": {"x": PRIVATE}}}
    assert "/home" not in model_card(manifest(recipe=recipe))


def numbers_in(audit: dict[str, Any]) -> list[str]:
    return [f"{audit['utility']['run']['value']:g}", "31.2", "15.9", "0.780", "12.6", "14.9", "8.61", "35%"]


def test_measured_numbers_are_left_out_unless_asked_for() -> None:
    audit = sample_audit()
    plain = model_card(released(), audit)
    for number in numbers_in(audit):
        assert number not in plain, number
    assert audit["verdict"]["line"] not in plain, "the line may hold numbers"
    assert audit["claims"][0]["reason"] not in plain
    assert "The audit found a leak." in plain
    assert "**contradicted**" in plain
    assert "Measured numbers are the operator's and are left out." in plain

    full = model_card(released(), audit, include_measurements=True)
    for number in numbers_in(audit):
        assert number in full, number
    assert "The numbers below were measured on private text." in full
    assert "the operator chose to publish them" in full


def p_values_in(part: Any, key: str) -> list[float]:
    if isinstance(part, dict):
        own = [part[key]] if isinstance(part.get(key), float) else []
        return own + [one for value in part.values() for one in p_values_in(value, key)]
    return [one for value in part for one in p_values_in(value, key)] if isinstance(part, list) else []


def test_every_p_value_of_the_card_is_a_corrected_one() -> None:
    audit = sample_audit()
    audit["exposure"]["largest"] = {"p_value": 0.012, "adjusted": 0.096}
    audit["exposure"]["together"] = {"p_value": 0.0071, "adjusted": 0.21}
    card = model_card(released(), audit, include_measurements=True)
    shown = re.findall(r"p = ([0-9.e-]*[0-9])", card)
    assert shown == ["0.096"]
    assert all(float(one) in p_values_in(audit, "adjusted") for one in shown)
    assert "p = 0.096 after correction" in card
    audit["exposure"]["largest"] = {"p_value": 0.012, "adjusted": None}  # of an ensemble exposure describes
    assert "p = " not in model_card(released(), audit, include_measurements=True)


def test_of_a_divergence_for_one_corpus_the_card_tells_no_epsilon() -> None:
    audit = sample_audit()
    claim = audit["claims"][0]["claim"]
    assert f"| epsilon: {claim}" in model_card(released(), audit, include_measurements=True)
    audit["guarantee"] = Guarantee.operational(order=2, epsilon=2.0).to_json()
    card = model_card(released(), audit, include_measurements=True)
    assert f"| divergence: {claim}" in card
    assert "| epsilon: " not in card


@pytest.mark.parametrize(
    ("promised", "leaks", "verdicts", "line"),
    [
        (True, None, ["supported"], "The audit supports what is claimed."),
        (True, None, ["supported", "contradicted"], "The audit contradicts what is claimed."),
        (True, None, ["inconclusive"], "The audit could neither contradict nor support what is claimed."),
        (True, False, ["contradicted"], "The audit contradicts what is claimed."),
        (True, False, ["supported"], "The audit supports what is claimed. The audit found no leak."),
        (True, True, ["supported"], "The audit supports what is claimed. The audit found a leak within it."),
        (True, None, [], "The audit could not tell whether something leaks."),
        (False, True, ["inconclusive"], "The audit found a leak."),
        (False, False, ["inconclusive"], "The audit found no leak."),
        (False, None, ["inconclusive"], "The audit could not tell whether something leaks."),
    ],
)
def test_verdicts_in_words(promised: bool, leaks: bool | None, verdicts: list[str], line: str) -> None:
    audit = sample_audit()
    audit["verdict"]["leaks"] = leaks
    audit["claims"] = [audit["claims"][0] | {"verdict": one} for one in verdicts]
    if not promised:
        audit["guarantee"] = Guarantee.unprotected("user").to_json()
    assert f"**{line}**" in model_card(released(), audit)


def test_a_card_without_an_audit_says_so() -> None:
    assert "was not attacked" in model_card(released())
    with pytest.raises(InputError, match="needs an audit"):
        model_card(released(), include_measurements=True)


def test_weights_that_may_not_be_released_say_so_first() -> None:
    assert "Not for release" not in model_card(released())
    # Noise that the recipe's seed gives again protects nobody, and neither does an infinite epsilon.
    assert "Not for release" in model_card(released(seeded=True))
    endless = Guarantee.dp_sgd(epsilon=math.inf, delta=1e-5, adjacency="add-remove").to_json()
    assert "Not for release" in model_card(released(guarantee=endless))
    assert "members of this ensemble must never be released" in model_card(manifest())
    plain = Guarantee.unprotected("user").to_json()
    assert "must not be published" in model_card(released(guarantee=plain))
    operational = Guarantee.operational(order=2, epsilon=2).to_json()
    assert "must not be published" in model_card(released(guarantee=operational))


def test_the_guarantee_is_there_in_full() -> None:
    card = model_card(released())
    assert "differential privacy (epsilon 3, delta 1e-05) (unit: user)" in card
    assert "at most e^3 times as likely" in card
    assert "`privacy.json`" in card


@pytest.mark.parametrize(
    ("method", "words"), [("adversarial", "left guessing who wrote a text"), ("triplet", "pushed apart")]
)
def test_regularised_training_is_no_guarantee(method: str, words: str) -> None:
    recipe = parse_recipe(
        {
            "method": method,
            "output": "/home/ann/runs/clinic",
            "corpus": {"path": PRIVATE, "user": "patient_number", "text": "letter"},
            "regularisation": {"lambda": 0.25, "label": "diagnosis"},
        }
    )
    guarantee = Guarantee.regularised("user").to_json()
    card = model_card(released(method=method, recipe=recipe.to_json(), guarantee=guarantee))
    assert words in card
    assert "Not for release" in card
    assert "empirical, no formal guarantee" in card
    assert "Nothing is proven" in card
    assert "only attacks can tell" in card
    assert "regularisation.lambda | 0.25" in card
    assert "diagnosis" not in card
    assert front_of(card)["tags"][-1] == "guarantee-empirical"


def test_names_are_no_markup() -> None:
    audit = sample_audit()
    audit["claims"][0]["claim"] = "</div><script>x</script>\n# Title\n| a | [b](http://c) `d` ---\n"
    card = model_card(released(method="*x*\n---\ntags: [evil]"), audit)
    assert front_of(card)["tags"][2] == "tacit-*x* --- tags: [evil]"
    assert "<script>" not in card
    assert "\n# Title" not in card
    assert r"\[b\](http://c) \`d\`" in card


def test_the_card_is_beside_the_weights_and_not_written_over(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", released())
    (tmp_path / "run").mkdir()
    path = write_model_card(run, sample_audit())
    assert path == tmp_path / "run" / "README.md"
    assert path.stat().st_mode & 0o077
    with pytest.raises(OutputExists):
        write_model_card(run)
    write_model_card(run, copy.deepcopy(sample_audit()), include_measurements=True, overwrite=True)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_manifest_from_a_file_gives_the_same_card() -> None:
    again = Manifest.model_validate(json.loads(released().model_dump_json()))
    assert model_card(again, sample_audit()) == model_card(released(), sample_audit())
