"""Stacked adapters against PEFT's own, member by member, forwards and backwards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tacit.errors import ModelError
from tacit.models.adapters import attach
from tacit.models.ensemble_files import load_adapters, save_member
from tacit.models.loading import load_public_model
from tacit.models.stacked_lora import AdapterStack, StackedLinear, stack_into
from tacit.recipes import AdapterSection
from tests.models.ensembles import FAMILIES, adapter_folder, peft_logits

IDS = torch.randint(1, 300, (2, 9), generator=torch.Generator().manual_seed(0))


def _stacked(folder: Path, members: int, *, public_groups: int = 0) -> tuple[torch.nn.Module, AdapterStack]:
    model = load_public_model(str(folder)).model
    stack = stack_into(model, members, rank=4, alpha=8.0, trunk_layers=1, public_groups=public_groups)
    for member in range(members):
        stack.initialise_member(member, torch.Generator().manual_seed(member))
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for layer in stack.layers.values():
            layer.b_MRO.normal_(std=0.3, generator=generator)
    return model, stack


@pytest.mark.parametrize("family", FAMILIES)
def test_every_member_computes_and_learns_what_peft_would(
    family: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(family)
    model, stack = _stacked(folder, 3, public_groups=1)
    logits = model(input_ids=IDS.repeat(4, 1)).logits
    logits.square().mean(dim=(1, 2)).sum().backward()
    groups = logits.detach().view(4, *IDS.shape, -1)
    public = load_public_model(str(folder)).model(input_ids=IDS).logits
    torch.testing.assert_close(groups[0], public, rtol=1e-4, atol=1e-4)
    for member in range(3):
        peft_model = attach(
            load_public_model(str(folder)).model, AdapterSection(rank=4, alpha=8.0, trunk_layers=1)
        )
        own = {name.replace(".default", ""): p for name, p in peft_model.named_parameters()}
        with torch.no_grad():
            for name, value in stack.member_state(member).items():
                own[name].copy_(value)
        expected = peft_model(input_ids=IDS).logits
        torch.testing.assert_close(groups[member + 1], expected.detach(), rtol=1e-4, atol=1e-4)
        expected.square().mean(dim=(1, 2)).sum().backward()
        for path, layer in stack.layers.items():
            for name, parameter in (("lora_A", layer.a_MIR), ("lora_B", layer.b_MRO)):
                gradient = own[f"base_model.model.{path}.{name}.weight"].grad
                assert gradient is not None
                assert parameter.grad is not None
                torch.testing.assert_close(
                    parameter.grad[member].T,
                    gradient,
                    rtol=1e-3,
                    atol=1e-4 * float(gradient.abs().max()) + 1e-7,
                )


def test_no_member_sees_another() -> None:
    torch.manual_seed(0)
    layer = StackedLinear(torch.nn.Linear(8, 12), 3, 2, public_groups=1)
    torch.nn.init.normal_(layer.a_MIR)
    torch.nn.init.normal_(layer.b_MRO)

    def results(x: Tensor) -> list[Tensor]:
        layer.zero_grad()
        out = layer(x)
        out.square().sum().backward()
        assert layer.a_MIR.grad is not None
        assert layer.b_MRO.grad is not None
        return [out.detach().view(4, -1), layer.a_MIR.grad.clone(), layer.b_MRO.grad.clone()]

    x = torch.randn(8, 5, 8)
    before = results(x)
    with torch.no_grad():
        layer.a_MIR[1].fill_(float("nan"))
        x[4:6] = float("inf")
    after = results(x)
    others = [0, 1, 3]
    assert torch.equal(before[0][others], after[0][others])
    assert not torch.equal(before[0][2], after[0][2])
    for index in (1, 2):
        assert torch.equal(before[index][[0, 2]], after[index][[0, 2]])


def test_a_bf16_base_with_fp32_adapters_computes_under_autocast() -> None:
    torch.manual_seed(0)
    layer = StackedLinear(
        torch.nn.Linear(8, 12).bfloat16(), 2, 2, scaling=0.5, public_groups=1, dtype=torch.float32
    )
    torch.nn.init.normal_(layer.a_MIR)
    torch.nn.init.normal_(layer.b_MRO)
    x = torch.randn(3, 5, 8)
    exact = layer.float()(x).detach()
    layer.base.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    torch.testing.assert_close(out.float().detach(), exact, rtol=0.05, atol=0.1)
    torch.testing.assert_close(layer(x.bfloat16()).float().detach(), exact, rtol=0.05, atol=0.1)
    out.sum().backward()
    assert layer.a_MIR.grad is not None


def test_rows_that_do_not_fall_into_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 3"):
        StackedLinear(torch.nn.Linear(2, 2), 3, 1)(torch.zeros(4, 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_folders_go_in_and_come_out(family: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = request.getfixturevalue(family)
    given = [adapter_folder(folder, tmp_path / f"in{seed}", seed, trunk_layers=1) for seed in range(2)]
    model = load_public_model(str(folder)).model
    stack = load_adapters(model, [given[0], None, given[1]], public_groups=0)
    groups = model(input_ids=IDS.repeat(3, 1)).logits.detach().view(3, *IDS.shape, -1)
    torch.testing.assert_close(groups[0], peft_logits(folder, given[0], IDS), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(groups[1], peft_logits(folder, None, IDS), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(groups[2], peft_logits(folder, given[1], IDS), rtol=1e-4, atol=1e-4)
    save_member(stack, model, 2, tmp_path / "out", base_name="base")
    torch.testing.assert_close(peft_logits(folder, tmp_path / "out", IDS), groups[2], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 8}, "rank 8"),
        ({"targets": ("c_attn",)}, "adapts other layers"),
        ({"alpha": 3.0}, "alpha"),
        ({"base": "another"}, "base model"),
    ],
)
def test_adapters_that_do_not_belong_together_are_refused(
    change: dict[str, object], message: str, tiny_transformer: Path, tmp_path: Path
) -> None:
    first = adapter_folder(tiny_transformer, tmp_path / "a", 0)
    second = adapter_folder(tiny_transformer, tmp_path / "b", 1, **change)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=message):
        load_adapters(load_public_model(str(tiny_transformer)).model, [first, second])


def test_adapters_of_another_model_or_kind_are_refused(
    tiny_transformer: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    other = adapter_folder(tiny_llama, tmp_path / "a", 0)
    with pytest.raises(ModelError, match="another model"):
        load_adapters(load_public_model(str(tiny_transformer)).model, [other])
    config = other / "adapter_config.json"
    text = config.read_text()
    config.write_text(text.replace('"use_dora": false', '"use_dora": true'))
    with pytest.raises(ModelError, match="use_dora"):
        load_adapters(load_public_model(str(tiny_llama)).model, [other])
    config.write_text(text.replace('"r": 4', '"r": "four"'))
    with pytest.raises(ModelError, match=r"adapter_config\.json"):
        load_adapters(load_public_model(str(tiny_llama)).model, [other])
    config.write_text(text)
    (other / "adapter_model.safetensors").write_bytes(b"cut short")
    with pytest.raises(ModelError, match="safetensors"):
        load_adapters(load_public_model(str(tiny_llama)).model, [other])
    (other / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="missing"):
        load_adapters(load_public_model(str(tiny_llama)).model, [other])


def test_an_unknown_target_is_refused(tiny_transformer: Path) -> None:
    model = load_public_model(str(tiny_transformer)).model
    with pytest.raises(ModelError, match="c_attn"):
        stack_into(model, 2, rank=2, alpha=2.0, targets=["q_proj"])
    with pytest.raises(ModelError, match="at most 3"):
        stack_into(model, 2, rank=2, alpha=2.0, trunk_layers=4)
