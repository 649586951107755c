"""The executor against plain PEFT models, member by member."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tacit.errors import ModelError
from tacit.models.ensemble import Ensemble
from tacit.models.executor import EnsembleExecutor
from tacit.models.loading import PublicModel, load_public_model
from tests.models.ensembles import FAMILIES, adapter_folder, peft_logits

TEXTS = [[0, 17, 203, 5, 88, 41, 7], [0, 9, 9, 120], [0, 300, 2, 1, 45, 260, 33, 71, 12, 90]]


def _members(model: Path, folder: Path, trunk_layers: int = 0, count: int = 2) -> list[Path | None]:
    adapters = [
        adapter_folder(model, folder / f"member{seed}", seed, trunk_layers=trunk_layers)
        for seed in range(count)
    ]
    return [adapters[0], None, *adapters[1:]]


def _expected(model: Path, members: Sequence[Path | None], text: list[int]) -> Tensor:
    """Logits at every position of a text: [models, time, vocabulary]."""
    ids = torch.tensor([text])
    return torch.stack([peft_logits(model, member, ids)[0] for member in [None, *members]])


def _executor(model: Path, members: Sequence[Path | None], **options: object) -> EnsembleExecutor:
    settings = {"slots": 3, "context": 32, "chunk": 3} | options
    return EnsembleExecutor(load_public_model(str(model)), members, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("trunk_layers", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_interleaved_texts_of_different_lengths_equal_peft(
    family: str, trunk_layers: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    members = _members(model, tmp_path, trunk_layers)
    executor = _executor(model, members)
    assert executor.trunk_layers == trunk_layers
    expected = [_expected(model, members, text) for text in TEXTS]
    slots = [executor.open() for _ in TEXTS]
    read = [4, 1, 5]
    for slot, text, count, wanted in zip(slots, TEXTS, read, expected, strict=True):
        found = executor.prefill(slot, text[:count])
        torch.testing.assert_close(found, wanted[:, count - 1], rtol=1e-4, atol=1e-4)
    while any(count < len(text) for count, text in zip(read, TEXTS, strict=True)):
        # Slots in an order of their own, and fewer as texts end.
        live = [i for i in (2, 0, 1) if read[i] < len(TEXTS[i])]
        found = executor.step([slots[i] for i in live], [TEXTS[i][read[i]] for i in live])
        for row, i in enumerate(live):
            torch.testing.assert_close(found[:, row], expected[i][:, read[i]], rtol=1e-4, atol=1e-4)
            read[i] += 1
    assert [executor.length(slot) for slot in slots] == [len(text) for text in TEXTS]


@pytest.mark.parametrize("trunk_layers", [0, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_score_equals_peft_in_blocks(
    family: str, trunk_layers: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    members = _members(model, tmp_path, trunk_layers)
    texts = torch.randint(1, 300, (3, 11), generator=torch.Generator().manual_seed(1))
    blocks = list(_executor(model, members).score(texts, block=4))
    assert [(block.start, block.logits.shape[2]) for block in blocks] == [(0, 4), (4, 4), (8, 3)]
    found = torch.cat([block.logits for block in blocks], dim=2)
    for row, member in enumerate([None, *members]):
        torch.testing.assert_close(found[row], peft_logits(model, member, texts), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_keeps_no_trace_of_an_earlier_text(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    executor = _executor(model, _members(model, tmp_path))
    fresh = executor.open()
    executor.prefill(fresh, TEXTS[0])
    executor.prefill(executor.open(), TEXTS[2])
    first = [executor.step([fresh], [5]), executor.step([fresh], [6])]
    executor.close(1)
    executor.close(fresh)
    again = executor.open()
    assert again == fresh
    executor.prefill(again, TEXTS[2] + TEXTS[1])
    executor.close(again)
    again = executor.open()
    executor.prefill(again, TEXTS[0])
    second = [executor.step([again], [5]), executor.step([again], [6])]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_row_depends_on_another_members_weights(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    members = _members(model, tmp_path, count=3)
    changed = [*members[:3], adapter_folder(model, tmp_path / "other", 77)]
    broken = adapter_folder(model, tmp_path / "broken", 78)
    weights = load_file(broken / "adapter_model.safetensors")
    save_file(
        {name: torch.full_like(value, torch.nan) for name, value in weights.items()},
        broken / "adapter_model.safetensors",
    )

    def rows(given: Sequence[Path | None]) -> list[Tensor]:
        executor = _executor(model, given)
        slots = [executor.open(), executor.open()]
        results = [executor.prefill(slot, text) for slot, text in zip(slots, TEXTS, strict=False)]
        results.append(executor.step(slots, [3, 4]))
        results += [block.logits for block in executor.score(torch.tensor([TEXTS[0]] * 2))]
        return results

    not_finite = rows([*members[:3], broken])
    for before, after, with_nan in zip(rows(members), rows(changed), not_finite, strict=True):
        assert torch.equal(before[:4], after[:4])
        assert torch.equal(before[:4], with_nan[:4])
        assert not torch.equal(before[4], after[4])
        assert not with_nan[4].isfinite().any()


def test_the_public_model_is_left_as_it_was(tiny_transformer: Path, tmp_path: Path) -> None:
    public = load_public_model(str(tiny_transformer))
    ids = torch.tensor([TEXTS[0]])
    before = public.model(input_ids=ids).logits
    names = {name: type(module) for name, module in public.model.named_modules()}
    EnsembleExecutor(public, _members(tiny_transformer, tmp_path), slots=1, context=8)
    assert names == {name: type(module) for name, module in public.model.named_modules()}
    assert torch.equal(public.model(input_ids=ids).logits, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_is_the_same_up_to_its_precision(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = request.getfixturevalue(family)
    members = _members(model, tmp_path, 1)
    executor = _executor(model, members, dtype=torch.bfloat16)
    slot = executor.open()
    found = executor.prefill(slot, TEXTS[0])
    assert found.dtype == torch.bfloat16
    wanted = _expected(model, members, TEXTS[0])[:, -1]
    assert float((found.float() - wanted).abs().max()) < 0.05 * float(wanted.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_bf16_texts_that_were_read_go_on_as_they_would_in_one_piece(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The newest position attends in single precision, and reading ends before the last layer's output."""
    model = request.getfixturevalue(family)
    public = load_public_model(str(model), dtype=torch.bfloat16)
    members = _members(model, tmp_path, 1)
    ensemble = Ensemble(public, tuple(members), len(members), 1)
    executor = ensemble.executor(slots=2, context=32)
    slot = executor.open()
    executor.read(slot, TEXTS[2][:-2])
    executor.step([slot], TEXTS[2][-2:-1])
    found = executor.step([slot], TEXTS[2][-1:])[:, 0]
    assert found.dtype == torch.bfloat16  # an ensemble computes in what its public model was loaded in
    wanted = _expected(model, members, TEXTS[2])[:, -1]
    assert float((found.float() - wanted).abs().max()) < 0.05 * float(wanted.abs().max())


def test_packed_weights_change_nothing_but_rounding(tiny_transformer: Path, tmp_path: Path) -> None:
    members = _members(tiny_transformer, tmp_path)
    results = []
    for pack in (False, True):
        executor = _executor(tiny_transformer, members, pack=pack)
        results.append(executor.prefill(executor.open(), TEXTS[2]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4)


def test_an_ensemble_of_nobody_answers_as_the_public_model(tiny_llama: Path) -> None:
    executor = _executor(tiny_llama, [None, None])
    found = executor.prefill(executor.open(), TEXTS[0])
    wanted = _expected(tiny_llama, [], TEXTS[0])[:, -1]
    torch.testing.assert_close(found, wanted.expand_as(found), rtol=1e-4, atol=1e-4)


def _public(model: PreTrainedModel) -> PublicModel:
    tokenizer: Any = None
    return PublicModel("untrained", model.eval(), tokenizer, "", None)


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "eos_token_id": 1,
    "bos_token_id": 1,
}


_GPTJ = GPTJConfig(
    vocab_size=64,
    n_embd=32,
    n_layer=2,
    n_head=4,
    n_positions=32,
    rotary_dim=4,
    bos_token_id=1,
    eos_token_id=1,
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)), "sliding_window"),
        (lambda: CohereForCausalLM(CohereConfig(**SIZES)), "other logits"),
        (lambda: GPTJForCausalLM(_GPTJ), "attention be replaced"),
        (
            lambda: MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)),
            "attention be replaced",
        ),
    ],
    ids=["sliding window", "scaled logits", "own attention", "no attention"],
)
def test_models_of_another_kind_are_refused(build: Callable[[], PreTrainedModel], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        EnsembleExecutor(_public(build()), [None], slots=1, context=8)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
        lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**{**SIZES, "num_key_value_heads": None})),
    ],
    ids=["qwen3", "neox"],
)
def test_other_plain_transformers_run(build: Callable[[], PreTrainedModel]) -> None:
    public = _public(build())
    executor = EnsembleExecutor(public, [None], slots=1, context=8)
    slot = executor.open()
    executor.prefill(slot, [1, 5, 9])
    found = executor.step([slot], [33])[:, 0]
    wanted = public.model(input_ids=torch.tensor([[1, 5, 9, 33]])).logits[0, -1].detach()
    torch.testing.assert_close(found, wanted.expand_as(found), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_run_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    members = [adapter_folder(tiny_llama, tmp_path / "a", 0)]
    executor = _executor(tiny_llama, members, slots=1, context=4)
    slot = executor.open()
    with pytest.raises(ModelError, match="All 1 slots"):
        executor.open()
    executor.prefill(slot, [0, 1, 2])
    with pytest.raises(ModelError, match="5 tokens but the context is 4"):
        executor.prefill(slot, [3, 4])
    assert executor.length(slot) == 3
    executor.step([slot], [3])
    with pytest.raises(ModelError, match="context is 4"):
        executor.step([slot], [4])
    with pytest.raises(ModelError, match="only once"):
        executor.step([slot, slot], [4, 4])
    with pytest.raises(ModelError, match="one token for each slot"):
        executor.step([slot], [])
    with pytest.raises(ModelError, match="at least its start"):
        executor.prefill(slot, [])
    executor.close(slot)
    with pytest.raises(ModelError, match="not open"):
        executor.step([slot], [4])
    with pytest.raises(ModelError, match="Token 512"):
        executor.prefill(executor.open(), [512])
    with pytest.raises(ModelError, match="1 to 4 tokens"):
        next(executor.score(torch.zeros(1, 5, dtype=torch.long)))
    with pytest.raises(ModelError, match="context=500"):
        _executor(tiny_llama, members, context=500)
    with pytest.raises(ModelError, match="at least one member"):
        _executor(tiny_llama, [])
    with pytest.raises(ModelError, match="all adapters or all models"):
        _executor(tiny_llama, [*members, tiny_llama])
