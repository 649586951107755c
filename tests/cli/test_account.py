"""The calculator prints what the arithmetic says, and refuses in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tacit.privacy import MissRate, PrivacyCurve
from tests.cli.conftest import Result

Tacit = Callable[..., Result]


PROCESS = "--sampling-rate 0.1 --steps 9 --noise-multiplier 2"
CASES = {
    "dp": ("dp --order 2 --epsilon 2 --delta 1e-5", {"epsilon": 12.1266, "delta": 1e-5}),
    "mironov": ("dp --order 2 --epsilon 2 --delta 1e-5 --formula mironov", {"epsilon": 13.5129}),
    "user": ("user --order 4 --epsilon 1", {"order": 16 / 7, "epsilon": 7 / 3}),
    "user, paper": ("user --order 4 --epsilon 1 --theorem paper", {"order": 2.0, "epsilon": 2.5}),
    "group": ("group --kind rdp --order 8 --epsilon 0.5 --size 4", {"order": 2.0, "epsilon": 4.5}),
    "group, zcdp": ("group --kind zcdp --epsilon 0.1 --size 3", {"rho": 0.9}),
    "group, pure": ("group --kind pure --epsilon 0.1 --size 3", {"epsilon": 0.3}),
    "stopping": (
        "stopping --order 2 --epsilon 2 --queries 1000 --expansion 10",
        {"epsilon": 11.2103, "expected_public_share": 0.05005},
    ),
    "extraction": (
        "extraction --order 2 --epsilon 2 --candidates 1e5",
        {"guessed_at_most": 0.0086, "fano": 0.2339},
    ),
    "divergence": ("divergence 0.5,0.5 0.4,0.6 --order 2", {"first_from_second": 0.040822}),
    "dpsgd": (
        "dpsgd --sampling-rate 0.0256 --noise-multiplier 1 --steps 391 --delta 8e-5",
        {
            "epsilon_add_remove": 2.734,
            "epsilon_replace_one": 4.259,
            "if_shuffled_add_remove": 17.356,  # 391 steps are 11 passes
            "gaussian_dp_mu": 0.66356,  # 0.0256 sqrt(391 (e - 1))
            "asymptotic_add_remove": 2.392,
        },
    ),
    "dpsgd, calibrated": (
        "dpsgd --examples 1000 --batch 100 --epochs 10 --epsilon 2 --delta 8e-5 --adjacency add-remove",
        {"noise_multiplier": 2.0035, "epsilon_add_remove": 2.0, "epsilon_replace_one": 3.84, "steps": 100},
    ),
    "dpsgd, group": (
        "dpsgd --sampling-rate 0.1 --noise-multiplier 4 --steps 100 --group 2 --order 2",
        {"epsilon_replace_one": 4.357, "renyi_replace_one": 0.98958},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers(tacit: Tacit, case: str) -> None:
    arguments, expected = CASES[case]
    result = tacit("account", *arguments.split(), "--json")
    assert result.code == 0
    for name, value in expected.items():
        assert result.json()[name] == pytest.approx(value, rel=1e-3)
    if case.partition(",")[0] not in ("stopping", "divergence", "dpsgd"):
        assert "not for ROP" in result.json()["note"]


def test_infinity_is_valid_json(tacit: Tacit) -> None:
    result = tacit("account", "divergence", "1,0", "0,1", "--json")
    assert result.json()["symmetric"] == "inf"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("dp --order 1 --epsilon 2", "order=1.0"),
        ("dp --order 2 --epsilon -1", "epsilon=-1.0"),
        ("dp --order 2 --epsilon 0", "--epsilon 0"),
        ("user --order 2 --epsilon 0", "--epsilon 0"),
        ("group --kind pure --epsilon 0 --size 2", "--epsilon 0"),
        ("stopping --order 2 --epsilon 0 --queries 9 --expansion 2", "--epsilon 0"),
        ("extraction --order 2 --epsilon 0 --candidates 9", "--epsilon 0"),
        ("dp --order 2 --epsilon 1 --delta 1", "delta=1.0"),
        ("user --order 2 --epsilon 1 --theorem paper", "order above 2"),
        ("group --epsilon 1 --size 2", "--order is needed"),
        ("group --kind pure --order 2 --epsilon 1 --size 2", "leave it out"),
        ("extraction --order 2 --epsilon 1 --candidates 1", "at least 2"),
        ("divergence 0.5,x 0.5,0.5", "numbers with commas"),
        ("divergence 0.5,0.5 1", "the same number"),
        ("divergence 0.5,0.4 0.5,0.5", "sum is off"),
        ("dpsgd --noise-multiplier 1 --steps 9", "--examples and --batch"),
        ("dpsgd --sampling-rate 0.1 --noise-multiplier 1", "--steps, or --epochs"),
        ("dpsgd --sampling-rate 0.1 --steps 9", "either --noise-multiplier, or --epsilon"),
        ("dpsgd --sampling-rate 0.1 --steps 9 --noise-multiplier 1 --epsilon 1", "either --noise-multiplier"),
        ("dpsgd --sampling-rate 1.5 --steps 9 --noise-multiplier 1", "sampling_rate=1.5"),
        ("dpsgd --sampling-rate 0.1 --steps -9 --noise-multiplier 1", "steps=-9"),
        ("dpsgd --sampling-rate 0.1 --steps 9 --noise-multiplier 1 --delta 1", "delta=1.0"),
        ("dpsgd --sampling-rate 0.1 --steps 9 --noise-multiplier 1 --delta 0", "delta=0.0"),
        ("dpsgd --sampling-rate 1 --steps 9999 --epsilon 0.01", "no noise multiplier up to 1000"),
        ("dpsgd --sampling-rate 0.1 --steps 9 --epsilon nan", "epsilon=nan"),
        ("dpsgd --examples 10 --batch 11 --steps 9 --noise-multiplier 1", "--batch 11 of --examples 10"),
        ("dpsgd --sampling-rate 0.1 --batch 1 --steps 9 --noise-multiplier 1", "give one of them"),
        ("dpsgd --sampling-rate 0.1 --steps 9 --epochs 1 --noise-multiplier 1", "give one of them"),
        ("dpsgd --sampling-rate 0 --epochs 1 --noise-multiplier 1", "a rate above 0"),
        (f"crt {PROCESS}", "one of --calibration, --gamma"),
        (f"crt {PROCESS} --gamma 0.1 --misses 3", "one of --calibration, --gamma"),
        (f"crt {PROCESS} --gamma 0.1 --labelled 3", "give one of them"),
        (f"crt {PROCESS} --gamma 1.1", "miss rate=1.1"),
        (f"crt {PROCESS} --misses 3", "--misses needs --labelled"),
        (f"crt {PROCESS} --misses 3 --labelled 2", "misses=3 of sample=2"),
        (f"crt {PROCESS} --misses 1 --labelled 9 --delta2 0.1", "--left-public instead"),
        (f"crt {PROCESS} --gamma 0.1 --group customer", "e.g. customer=3"),
        (f"crt {PROCESS} --gamma 0.1 --group customer=-3", "e.g. customer=3"),
        (f"crt {PROCESS} --gamma 0.1 --bare-points 3", "bare_points=3"),
        (f"crt {PROCESS} --gamma 0.1 --private-points 2 --bare-points 3", "private_points=2"),
        (f"crt {PROCESS} --gamma 0.1 --delta 2", "delta=2.0"),
        (f"crt {PROCESS} --calibration missing.json", "missing.json is missing"),
        (f"crt {PROCESS} --calibration missing.json --delta2 0.1", "both miss rates in it"),
    ],
)
def test_refusals(tacit: Tacit, arguments: str, words: str) -> None:
    result = tacit("account", *arguments.split())
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err


def test_an_empty_private_part_costs_nothing(tacit: Tacit) -> None:
    empty = "--private-points 0 --batch 30 --epochs 2 --noise-multiplier 1 --gamma 0.1"
    found = tacit("account", "crt", *empty.split(), "--json").json()
    assert (found["process"]["sampling_rate"], found["process"]["steps"]) == (0, 0)
    assert found["training"]["epsilon"] == 0
    assert "There are no private data points." in found["words"]


def test_the_certificate_in_words_and_json(tacit: Tacit) -> None:
    given = f"{PROCESS} --noise-multiplier 3.4385 --steps 100 --delta 8e-5 --gamma 0.1".split()
    found = tacit("account", "crt", *given, "--json").json()
    assert found["random_secret"]["epsilon"] == pytest.approx(0.36, abs=0.01)
    assert found["paper"]["random_secret"]["epsilon"] == pytest.approx(0.11, abs=0.002)
    assert found["guarantee"]["kind"] == "confidentiality"
    assert found["guarantee"]["epsilon"] == found["missed"]["epsilon"]
    words = tacit("account", "crt", *given)
    assert words.code == 0
    assert found["words"] in words.out
    for heading in ("Neighbours", "Each secret", "A random secret (Bayesian)", "Does not cover"):
        assert f"{heading}\n" in words.out


def test_delta2_above_delta_is_told_in_words(tacit: Tacit) -> None:
    given = f"{PROCESS} --misses 20 --left-public 0 --labelled 200 --group customer=2 --uniform 0".split()
    result = tacit("account", "crt", *given)
    assert result.code == 0
    assert "No finite epsilon at delta 1e-05: secrets that both policies miss may be 0.01487" in result.out
    found = tacit("account", "crt", *given, "--json").json()
    assert found["random_secret"]["epsilon"] == "inf"
    assert found["guarantee"]["delta"] == pytest.approx(0.01488, abs=1e-4)
    assert found["groups"][0]["points"] == 2
    assert found["uniform"]["direct"]["epsilon"] == 0
    assert found["confidence"] == pytest.approx(0.9)


def test_a_calibration_and_a_curve_are_files(tacit: Tacit, tmp_path: Path) -> None:
    bound = {"misses": 2, "n": 100, "value": 0.02, "upper": 0.06, "confidence": 0.9}
    content = {
        "gamma": bound,
        "delta2": bound | {"misses": 0},
        "thresholds": {"conservative": 0.1},
        "recall": {"ALL": {}, "PHONE": {}},
    }
    (tmp_path / "c.json").write_text(json.dumps(content))
    given = ("account", "crt", *PROCESS.split(), "--calibration", tmp_path / "c.json", "--json")
    found = tacit(*given).json()
    assert found["gamma"]["upper"] == pytest.approx(MissRate.measured(2, 100, confidence=0.9).upper)
    assert found["delta2"]["sample"] == 100
    assert "of the kinds PHONE missed" in found["gamma"]["source"]
    (tmp_path / "c.json").write_text(json.dumps(content | {"thresholds": {"conservative": None}}))
    assert tacit(*given).json()["delta2"]["upper"] == 0  # everything is private
    (tmp_path / "c.json").write_text("{}")
    refused = tacit(*given)
    assert (refused.code, "this is no calibration" in refused.err) == (2, True)
    where = tmp_path / "curve.json"
    given = ("account", "dpsgd", *PROCESS.split(), "--curve", where)
    assert tacit(*given).code == 0
    assert PrivacyCurve.from_json(json.loads(where.read_text())).adjacency == "replace-one"
    refused = tacit(*given)
    assert (refused.code, "Traceback" in refused.err) == (2, False)
