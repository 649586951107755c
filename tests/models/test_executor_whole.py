"""Ensembles of whole models, run one after the other, against the models themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacit.errors import ModelError
from tacit.models.adapters import save_weights
from tacit.models.executor import EnsembleExecutor
from tacit.models.loading import load_public_model
from tacit.models.trunk import layer_list
from tests.models.ensembles import FAMILIES, peft_logits

TEXT = [0, 17, 203, 5, 88, 41, 7]


def _fine_tuned(model: Path, folder: Path, seed: int, trunk_layers: int) -> Path:
    public = load_public_model(str(model))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        changed = layer_list(public.model)[2][trunk_layers:] if trunk_layers else public.model
        for parameter in changed.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    save_weights(public.model, folder, public, holds_private_text=True)
    return folder


@pytest.mark.parametrize("trunk_layers", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_row_equals_its_own_model(
    family: str, trunk_layers: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    folders = [_fine_tuned(model, tmp_path / str(seed), seed, trunk_layers) for seed in range(2)]
    members: list[Path | None] = [folders[0], None, folders[1]]
    executor = EnsembleExecutor(load_public_model(str(model)), members, slots=2, context=16, chunk=2)
    assert executor.trunk_layers == trunk_layers
    ids = torch.tensor([TEXT])
    expected = torch.stack([peft_logits(folder or model, None, ids)[0] for folder in [None, *members]])
    other, slot = executor.open(), executor.open()
    executor.prefill(other, TEXT[:3])
    executor.prefill(slot, TEXT[:5])
    found = executor.step([slot, other], [TEXT[5], TEXT[3]])
    torch.testing.assert_close(found[:, 0], expected[:, 5], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[:, 1], expected[:, 3], rtol=1e-4, atol=1e-4)
    scored = torch.cat([block.logits for block in executor.score(ids, block=3)], dim=2)
    torch.testing.assert_close(scored[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_branches_from_one_beginning_equal_their_own_model(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """To the last position that there is room for: each member's memory is then copied as a whole."""
    model = request.getfixturevalue(family)
    member = _fine_tuned(model, tmp_path / "member", 0, 0)
    branches = [[41, 7], [41, 9], [3, 7]]
    length = len(TEXT[:4]) + len(branches[0])
    executor = EnsembleExecutor(load_public_model(str(model)), [member], slots=4, context=length)
    beginning, *slots = [executor.open() for _ in range(4)]
    executor.prefill(beginning, TEXT[:4])
    for _ in range(2):  # the beginning is left as it was
        found = executor.extend(beginning, slots, branches)
        for row, branch in enumerate(branches):
            ids = torch.tensor([[*TEXT[:4], *branch]])
            expected = torch.stack([peft_logits(one, None, ids)[0, -1] for one in (model, member)])
            torch.testing.assert_close(found[:, row], expected, rtol=1e-4, atol=1e-4)


def test_a_member_of_another_model_is_refused(tiny_llama: Path, tiny_transformer: Path) -> None:
    with pytest.raises(ModelError, match="one public model"):
        EnsembleExecutor(load_public_model(str(tiny_llama)), [tiny_transformer], slots=1, context=8)
