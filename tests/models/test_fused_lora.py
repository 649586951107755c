"""The fused layers against PEFT's own, forwards and backwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tacit.models.adapters import attach
from tacit.models.fused_lora import fuse_lora
from tacit.models.loading import load_public_model
from tacit.recipes import AdapterSection


@pytest.mark.parametrize("family", ["tiny_transformer", "tiny_llama"])
def test_fused_layers_compute_what_peft_computes(family: str, request: pytest.FixtureRequest) -> None:
    ids = torch.randint(1, 300, (2, 9), generator=torch.Generator().manual_seed(0))

    def logits_and_gradients(*, fused: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        model = attach(
            load_public_model(str(request.getfixturevalue(family))).model,
            AdapterSection(rank=4, trunk_layers=1),
        )
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)  # PEFT starts them at zero, which would hide mistakes
        if fused:
            assert fuse_lora(model) > 4
        logits = model(input_ids=ids).logits
        logits.square().sum().backward()
        return logits, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    plain, expected = logits_and_gradients(fused=False)
    ours, found = logits_and_gradients(fused=True)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-3 * float(gradient.abs().max()))


@pytest.mark.parametrize("why", ["dropout", "bf16"])
def test_what_is_not_plain_is_left_alone(why: str, request: pytest.FixtureRequest) -> None:
    dtype = torch.bfloat16 if why == "bf16" else torch.float32
    public = load_public_model(str(request.getfixturevalue("tiny_llama")), dtype=dtype)
    adapter: dict[str, Any] = {"dropout": 0.5} if why == "dropout" else {}
    assert fuse_lora(attach(public.model, AdapterSection(**adapter))) == 0
