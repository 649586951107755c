"""Codes are uniform, distinct and written for their owner; any tokenizer's spelling of them is found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tacit.attacks import Codes, CodeTree, Place, Places, analytic_hit_rate, sample_hits
from tacit.errors import InputError, ModelError
from tacit.mechanisms import sample
from tacit.models.tokenizer import PublicTokenizer
from tacit.statistics import clopper_pearson
from tests.attacks.number_models import number_tokenizer


def tree_of(codes: Codes, digits: Any) -> CodeTree:
    wrapped = PublicTokenizer.wrap(number_tokenizer(digits), start_token=0, vocabulary="public")
    return CodeTree(wrapped, codes)


class RandomPlaces:
    """Distributions that depend on the place alone, with most mass on what codes are made of."""

    def __init__(self, vocabulary: int, likely: Sequence[int]) -> None:
        self._size, self._likely = vocabulary, list(likely)
        self._seen: dict[tuple[int, ...], Place] = {}

    def at(self, written: tuple[int, ...]) -> Place:
        if written not in self._seen:
            generator = torch.Generator().manual_seed(hash(written) % 2**31)
            pmf = torch.full((self._size,), 0.05 / self._size, dtype=torch.float64)
            pmf[self._likely] += torch.rand(len(self._likely), generator=generator, dtype=torch.float64) ** 2
            pmf /= pmf.sum()
            self._seen[written] = Place(pmf.view(1, 1, -1), pmf)
        return self._seen[written]

    def together(self, places: Sequence[tuple[int, ...]]) -> list[Place]:
        return [self.at(place) for place in places]


def test_codes_are_uniform_distinct_and_keep_leading_zeros(tmp_path: Path) -> None:
    codes = Codes.draw(2, 50, seed=3)
    assert len(set(codes.values)) == 50
    assert all(len(value) == 2 for value in codes.values)
    assert any(value.startswith("0") for value in codes.values)
    assert codes == Codes.draw(2, 50, seed=3) != Codes.draw(2, 50, seed=4)
    assert codes.values[0] not in repr(codes)
    assert codes.chance == 0.5
    assert codes.candidates == 51
    path = tmp_path / "codes.jsonl"
    codes.write(path)
    assert path.stat().st_mode & 0o077 == 0
    assert Codes.read(path) == codes
    assert json.loads(path.read_text().splitlines()[0])["text"] == f"My number is: {codes.values[0]}"


def test_first_digits_are_uniform() -> None:
    first = [value[0] for seed in range(400) for value in Codes.draw(4, 5, seed=seed).values]
    for digit in "0123456789":
        assert clopper_pearson(first.count(digit), len(first), confidence=0.9999).low < 0.1
        assert clopper_pearson(first.count(digit), len(first), confidence=0.9999).high > 0.1


@pytest.mark.parametrize(("digits", "number"), [(1, 4), (6, 4), (2, 0), (2, 51)])
def test_impossible_codes_are_refused(digits: int, number: int) -> None:
    with pytest.raises(InputError, match=f"digits={digits}|codes={number}"):
        Codes.draw(digits, number)


@pytest.mark.parametrize(
    "texts", [[], ["My number is: 12", "hello"], ["My number is: 12", "My number is: 123"]]
)
def test_other_corpora_are_refused(texts: list[str]) -> None:
    with pytest.raises(InputError):
        Codes.of_documents(texts)


def test_reading_rule() -> None:
    tree = tree_of(Codes(3, ("012", "777")), "single")
    assert tree.tokens_per_generation == 4
    assert tree.read(" 012") == tree.read("0129") == tree.read(" 012. And") == "012"
    assert tree.read("  012") is tree.read("01") is tree.read(" 01 2") is tree.read("-012") is None
    assert tree.is_hit(" 777")
    assert not tree.is_hit(" 778")
    assert tree.after("", 0) is None  # the end token


def test_leading_zero_code_is_found_by_hand_computation() -> None:
    tree = tree_of(Codes(2, ("07",)), "single")
    space, zero, seven = tree.canonical["07"]
    size = len(number_tokenizer("single"))
    places = RandomPlaces(size, [space, zero, seven])

    def along(*tokens: int) -> float:
        product = 1.0
        for depth, token in enumerate(tokens):
            product *= float(places.at(tokens[:depth]).public[token])
        return product

    rate = analytic_hit_rate(tree, cast(Places, places), lambda place: place.public)
    assert rate.value == pytest.approx(along(space, zero, seven) + along(zero, seven), rel=1e-9)
    assert rate.canonical == pytest.approx(along(space, zero, seven), rel=1e-9)


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_sampling_agrees_with_computation(kind: str) -> None:
    codes = Codes.draw(3, 20, seed=5)
    tree = tree_of(codes, kind)
    assert tree.tokens_per_generation == (4 if kind == "single" else 3)
    likely = [token for token, piece in tree._pieces.items() if len(piece.strip()) <= 3]
    places = cast(Places, RandomPlaces(len(number_tokenizer(cast(Any, kind))), likely))
    rate = analytic_hit_rate(tree, places, lambda place: place.public)
    assert rate.canonical <= rate.value <= rate.high
    if kind == "multi":
        assert rate.canonical < rate.value  # other segmentations spell the same text
    found = sample_hits(tree, places, lambda place: sample(place.public), generations=3000)
    interval = clopper_pearson(found.hits, found.generations, confidence=0.9999)
    assert interval.low <= rate.high
    assert rate.value <= interval.high
    finished = sample_hits(tree, places, lambda place: sample(place.public), generations=200, finish=True)
    assert finished.answers == 200 * tree.tokens_per_generation > found.answers / 15


def test_tokenizers_without_digits_are_refused() -> None:
    class NoDigits:
        start_token = 0
        stop_tokens = frozenset({0})

        def encode(self, texts: Sequence[str]) -> list[list[int]]:
            return [[1, 2] + ([3] if text[-1] != ":" else []) for text in texts]

        def decode(self, ids: Sequence[int]) -> str:
            return "My number is:" + "?" * (len(ids) - 2)

        def __len__(self) -> int:
            return 4

        class tokenizer:  # noqa: N801
            all_special_ids = (0,)

            @staticmethod
            def batch_decode(rows: Sequence[Sequence[int]], **_: object) -> list[str]:
                return ["My number is:?" for _ in rows]

    with pytest.raises(ModelError, match="cannot spell numbers"):
        CodeTree(cast(PublicTokenizer, NoDigits()), Codes(2, ("12",)))
