"""Cutting a model in two changes nothing about what it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tacit.errors import ModelError, RecipeError
from tacit.models.adapters import attach
from tacit.models.loading import load_public_model
from tacit.models.trunk import layer_list, refuse_uneven_cut, trunk_states, without_trunk
from tacit.recipes import AdapterSection


def ids() -> torch.Tensor:
    return torch.randint(1, 300, (2, 12), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ["tiny_transformer", "tiny_lstm", "tiny_llama"])
def test_trunk_then_top_is_the_whole_model(family: str, request: pytest.FixtureRequest) -> None:
    model = load_public_model(str(request.getfixturevalue(family))).model
    inputs = {"input_ids": ids(), "use_cache": False}
    whole = model(**inputs).logits
    for cut in range(1, model.config.num_hidden_layers):
        states = trunk_states(model, cut, inputs)
        with without_trunk(model, cut) as upper:
            torch.testing.assert_close(upper(states, inputs).logits, whole, rtol=0, atol=1e-5)
            other = upper(states.flip(-1), inputs).logits
        assert not torch.allclose(other, whole, atol=1e-3)  # the states really are what is used
    assert len(layer_list(model)[2]) == model.config.num_hidden_layers
    torch.testing.assert_close(model(**inputs).logits, whole)


def test_the_layers_come_back_after_an_error(tiny_transformer: Path) -> None:
    model = load_public_model(str(tiny_transformer)).model
    with pytest.raises(RuntimeError), without_trunk(model, 2):
        raise RuntimeError
    assert len(layer_list(model)[2]) == 4


def test_a_model_without_layers_is_refused(tiny_transformer: Path) -> None:
    model = load_public_model(str(tiny_transformer)).model
    model.config.n_layer = 7
    with pytest.raises(ModelError, match="no list of 7 layers"):
        layer_list(model)


@pytest.mark.parametrize("family", ["tiny_transformer", "tiny_lstm", "tiny_llama"])
def test_only_what_the_recipe_names_is_trainable(family: str, request: pytest.FixtureRequest) -> None:
    folder = str(request.getfixturevalue(family))

    def trainable(**adapter: object) -> set[str]:
        model = attach(load_public_model(folder).model, AdapterSection(**adapter))
        return {name for name, parameter in model.named_parameters() if parameter.requires_grad}

    everything = {name for name, _ in load_public_model(folder).model.named_parameters()}
    assert trainable(kind="full") == everything
    top = trainable(kind="top", trunk_layers=1)
    assert top < everything
    assert not any("wte" in name or "wpe" in name or "embed" in name or "lm_head" in name for name in top)
    assert not any(".0." in name for name in top)
    assert any(".1." in name for name in top)
    lora = trainable(kind="lora", trunk_layers=1)
    assert lora
    assert all("lora_" in name for name in lora)
    assert not any(".0." in name for name in lora)
    with pytest.raises(RecipeError, match="leaves nothing to train"):
        trainable(kind="lora", trunk_layers=99)
    with pytest.raises(RecipeError, match="'nosuch' is no linear layer"):
        trainable(kind="lora", targets=("nosuch",))


def test_a_model_that_mixes_kinds_of_layers_is_refused(tiny_llama: Path) -> None:
    model = load_public_model(str(tiny_llama)).model
    refuse_uneven_cut(model, 1)
    model.config.layer_types = ["full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(ModelError, match="mixes kinds of layers"):
        refuse_uneven_cut(model, 1)
