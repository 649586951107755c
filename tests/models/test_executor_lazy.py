"""The lazy executor: the whole ensemble's rows, by work that does not tell which part was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.errors import ModelError
from tacit.models.executor import EnsembleExecutor
from tacit.models.executor_lazy import LazyExecutor
from tacit.models.loading import load_public_model
from tests.models.ensembles import FAMILIES, adapter_folder

TEXTS = [[0, 17, 203, 5, 88, 41, 7, 61, 5, 5, 9, 310, 4], [0, 9, 9, 120, 8, 44, 71, 2, 33, 90, 14, 6, 6]]
PROMPTS = [4, 1]


def _parts(model: Path, folder: Path, trunk_layers: int) -> list[Path | None]:
    folders = [
        adapter_folder(model, folder / str(seed), seed, trunk_layers=trunk_layers) for seed in range(4)
    ]
    return [*folders, None]


@pytest.mark.parametrize(("trunk_layers", "lag"), [(1, None), (0, None), (1, 3), (0, 2), (1, 8), (1, 99)])
@pytest.mark.parametrize("family", FAMILIES)
def test_drawn_rows_equal_the_whole_ensembles(
    family: str, trunk_layers: int, lag: int | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    parts = _parts(model, tmp_path, trunk_layers)
    public = load_public_model(str(model))
    whole = EnsembleExecutor(public, parts, slots=2, context=16)
    lazy = LazyExecutor(public, parts, slots=2, context=16, lag=lag, chunk=3)
    for text, count in zip(TEXTS, PROMPTS, strict=True):
        whole.prefill(whole.open(), text[:count])
        lazy.read(lazy.open(), text[:count])
    for step in range(8):
        tokens = [text[count + step] for text, count in zip(TEXTS, PROMPTS, strict=True)]
        drawn = [(3 * step) % 5, (step * step + 1) % 5]
        expected = whole.step([0, 1], tokens)
        found = lazy.step([0, 1], tokens, drawn)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
        for row, part in enumerate(drawn):
            torch.testing.assert_close(found[1, row], expected[1 + part, row], rtol=1e-4, atol=1e-4)
        if step == 5:
            # A text that goes on after tokens from elsewhere, while parts are behind it.
            whole.prefill(0, TEXTS[1][:2])
            lazy.read(0, TEXTS[1][:2])
    assert lazy.length(0) == whole.length(0)


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation with the shapes of what goes in and comes out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = torch.utils._pytree.tree_leaves((args, kwargs, result))
        shapes = [(tuple(x.shape), x.stride()) for x in tensors if isinstance(x, Tensor)]
        self.seen.append((str(func), shapes))
        return result


@pytest.mark.parametrize("lag", [None, 3, 99])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_work_does_not_tell_which_part_was_drawn(
    family: str, lag: int | None, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    parts = _parts(model, tmp_path, 1)

    def work(choices: Sequence[Sequence[int]]) -> tuple[list[list[tuple[str, list[Any]]]], Tensor]:
        lazy = LazyExecutor(load_public_model(str(model)), parts, slots=2, context=16, lag=lag)
        for text, count in zip(TEXTS, PROMPTS, strict=True):
            lazy.read(lazy.open(), text[:count])
        steps = []
        for number, drawn in enumerate(choices):
            with _Shapes() as shapes:
                last = lazy.step([0, 1], [TEXTS[0][4 + number], TEXTS[1][1 + number]], drawn)
            steps.append(shapes.seen)
        return steps, last

    last_draw = [2, 3]
    first = work([[0, 0], [0, 0], [0, 0], [0, 0], [0, 0], last_draw])
    second = work([[4, 1], [2, 2], [3, 0], [1, 4], [0, 3], last_draw])
    assert len(first[0][0]) > 20
    assert first[0] == second[0]
    # Nor does what was drawn before leave a trace in later answers.
    assert torch.equal(first[1], second[1])


def test_a_slot_is_as_good_as_new(tiny_llama: Path, tmp_path: Path) -> None:
    parts = _parts(tiny_llama, tmp_path, 1)
    lazy = LazyExecutor(load_public_model(str(tiny_llama)), parts, slots=1, context=16, lag=3)

    def answers() -> list[Tensor]:
        slot = lazy.open()
        lazy.read(slot, TEXTS[0][:5])
        found = [lazy.step([slot], [token], [1]) for token in TEXTS[0][5:9]]
        lazy.close(slot)
        return found

    first = answers()
    slot = lazy.open()
    lazy.read(slot, TEXTS[1])
    lazy.step([slot], [7], [1])
    lazy.close(slot)
    assert all(torch.equal(a, b) for a, b in zip(first, answers(), strict=True))


def test_what_cannot_be_run_is_refused_without_naming_the_part(tiny_llama: Path, tmp_path: Path) -> None:
    public = load_public_model(str(tiny_llama))
    parts = [adapter_folder(tiny_llama, tmp_path / "a", 0)]
    lazy = LazyExecutor(public, parts, slots=1, context=4)
    slot = lazy.open()
    with pytest.raises(ModelError, match="outside 0 to 0") as refused:
        lazy.step([slot], [1], [37])
    assert "37" not in str(refused.value)
    with pytest.raises(ModelError, match="one part for each slot"):
        lazy.step([slot], [1], [])
    with pytest.raises(ModelError, match="context is 4"):
        lazy.read(slot, [1, 2, 3, 4, 5])
    with pytest.raises(ModelError, match="at least one part"):
        LazyExecutor(public, [], slots=1, context=4)
    with pytest.raises(ModelError, match="lag >= 1"):
        LazyExecutor(public, parts, slots=1, context=4, lag=0)
    with pytest.raises(ModelError, match="context=999"):
        LazyExecutor(public, parts, slots=1, context=999)
