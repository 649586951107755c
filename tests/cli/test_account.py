"""The calculator prints what the arithmetic says, and refuses in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.conftest import Result

Tacit = Callable[..., Result]


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
}


@pytest.mark.parametrize("case", CASES)
def test_numbers(tacit: Tacit, case: str) -> None:
    arguments, expected = CASES[case]
    result = tacit("account", *arguments.split(), "--json")
    assert result.code == 0
    for name, value in expected.items():
        assert result.json()[name] == pytest.approx(value, rel=1e-3)
    if case not in ("stopping", "divergence"):
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
    ],
)
def test_refusals(tacit: Tacit, arguments: str, words: str) -> None:
    result = tacit("account", *arguments.split())
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err
