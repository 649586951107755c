"""The LSTM family against nn.LSTM, against itself step by step, and through transformers and PEFT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from tacit.errors import ModelError
from tacit.models.lstm import LayerState, LSTMConfig, LSTMForCausalLM, LSTMLayer, LSTMState

VOCABULARY = 50
GATES = ["input_gates", "recurrent_gates"]


def small_model(*, tied: bool = False, layers: int = 2, dropout: float = 0.0) -> LSTMForCausalLM:
    torch.manual_seed(0)
    config = LSTMConfig(
        vocab_size=VOCABULARY,
        embedding_size=16,
        hidden_size=16,
        num_hidden_layers=layers,
        tie_word_embeddings=tied,
        dropout=dropout,
    )
    model = LSTMForCausalLM(config)
    model.eval()
    return model


def tokens(rows: int, time: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (rows, time), generator=torch.Generator().manual_seed(seed))


def adapted(model: LSTMForCausalLM, **options: object) -> PeftModel:
    peft_model = get_peft_model(
        model,
        LoraConfig(r=4, target_modules=GATES, task_type="CAUSAL_LM", init_lora_weights=False, **options),
    )
    return peft_model.eval()


@given(rows=st.integers(1, 4), time=st.integers(1, 9), inputs=st.integers(1, 8), hidden=st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_a_layer_equals_torchs_lstm(rows: int, time: int, inputs: int, hidden: int) -> None:
    reference = nn.LSTM(inputs, hidden, batch_first=True)
    layer = LSTMLayer(inputs, hidden)
    weights = reference.state_dict()
    layer.input_gates.load_state_dict({"weight": weights["weight_ih_l0"], "bias": weights["bias_ih_l0"]})
    layer.recurrent_gates.load_state_dict({"weight": weights["weight_hh_l0"], "bias": weights["bias_hh_l0"]})
    texts = torch.randn(rows, time, inputs)
    start = LayerState(torch.randn(rows, hidden), torch.randn(rows, hidden))
    expected, (h, c) = reference(texts, (start.hidden[None], start.cell[None]))
    outputs, end = layer(texts, start)
    torch.testing.assert_close(outputs, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(end.hidden, h[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(end.cell, c[0], atol=1e-6, rtol=0)


def test_decoding_step_by_step_equals_one_pass() -> None:
    model, ids = small_model(), tokens(3, 12)
    whole = model(input_ids=ids).logits
    state, steps = None, []
    for column in ids.split(1, dim=1):  # type: ignore[no-untyped-call]
        output = model(input_ids=column, past_key_values=state, use_cache=True)
        state = output.past_key_values
        steps.append(output.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-5, rtol=0)


def test_a_state_can_be_cut_to_some_texts() -> None:
    model, ids = small_model(), tokens(4, 6)
    state = model(input_ids=ids, use_cache=True).past_key_values
    rows = torch.tensor([2, 0, 2])
    assert len(state.select(rows)) == 3
    continued = model(input_ids=ids[rows, :2], past_key_values=state.select(rows)).logits
    everything = model(input_ids=ids[:, :2], past_key_values=state).logits
    torch.testing.assert_close(continued[0], everything[2])
    assert not torch.allclose(continued[1], everything[1])


@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_right_padding_changes_neither_outputs_nor_the_final_state(lengths: list[int], seed: int) -> None:
    model = small_model()
    ids = tokens(len(lengths), max(lengths) + 1, seed)
    mask = (torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]).long()
    padded = model(input_ids=ids, attention_mask=mask, use_cache=True)
    for row, length in enumerate(lengths):
        alone = model(input_ids=ids[row : row + 1, :length], use_cache=True)
        torch.testing.assert_close(padded.logits[row, :length], alone.logits[0], atol=1e-6, rtol=0)
        for ours, theirs in zip(padded.past_key_values.layers, alone.past_key_values.layers, strict=True):
            torch.testing.assert_close(ours.hidden[row], theirs.hidden[0], atol=1e-6, rtol=0)
            torch.testing.assert_close(ours.cell[row], theirs.cell[0], atol=1e-6, rtol=0)


def test_left_padding_is_refused() -> None:
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    with pytest.raises(ModelError, match="padded on the right"):
        small_model()(input_ids=tokens(2, 3), attention_mask=mask)


def test_a_mask_may_cover_the_past() -> None:
    model, ids = small_model(), tokens(2, 5)
    first = model(input_ids=ids[:, :4], use_cache=True)
    mask = torch.ones(2, 5, dtype=torch.long)
    rest = model(input_ids=ids[:, 4:], past_key_values=first.past_key_values, attention_mask=mask)
    torch.testing.assert_close(rest.logits[:, 0], model(input_ids=ids).logits[:, 4], atol=1e-6, rtol=0)


def test_outputs_follow_transformers_conventions() -> None:
    model, ids = small_model(), tokens(2, 5)
    output = model(input_ids=ids, labels=ids, output_hidden_states=True)
    expected = nn.functional.cross_entropy(
        output.logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)
    )
    torch.testing.assert_close(output.loss, expected)
    assert len(output.hidden_states) == 3
    torch.testing.assert_close(model.lm_head(output.hidden_states[-1]), output.logits)
    assert output.past_key_values is None
    assert model(input_ids=ids, logits_to_keep=2).logits.shape == (2, 2, VOCABULARY)
    torch.testing.assert_close(model(inputs_embeds=model.embed_tokens(ids)).logits, output.logits)
    torch.testing.assert_close(model(input_ids=ids, return_dict=False)[0], output.logits)
    masked = ids.clone()
    masked[:, 1:] = -100
    masked[0, 3] = ids[0, 3]
    torch.testing.assert_close(
        model(input_ids=ids, labels=masked).loss,
        nn.functional.cross_entropy(output.logits[0, 2:3], ids[0, 3:4]),
    )
    with pytest.raises(ValueError, match="either"):
        model(input_ids=ids, inputs_embeds=model.embed_tokens(ids))


def test_a_new_model_starts_with_open_forget_gates() -> None:
    layer = small_model().layers[0]
    assert isinstance(layer, LSTMLayer)
    total = layer.input_gates.bias + layer.recurrent_gates.bias
    assert total.tolist() == [0.0] * 16 + [1.0] * 16 + [0.0] * 32


def test_dropout_acts_in_training_only() -> None:
    model, ids = small_model(dropout=0.5), tokens(1, 8)
    torch.testing.assert_close(model(input_ids=ids).logits, model(input_ids=ids).logits)
    model.train()
    assert not torch.allclose(model(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_save_and_load_give_the_same_model(tmp_path: Path, tied: bool, layers: int) -> None:
    model, ids = small_model(tied=tied, layers=layers), tokens(2, 6)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert (loaded.lm_head.weight is loaded.embed_tokens.weight) is tied
    assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ModelError, match="embedding_size == hidden_size, not 8 and 16"):
        LSTMConfig(embedding_size=8, hidden_size=16, tie_word_embeddings=True)
    assert LSTMConfig(embedding_size=8, hidden_size=16).hidden_size == 16
    with pytest.raises(ModelError, match="num_hidden_layers >= 1"):
        LSTMConfig(num_hidden_layers=0)


def test_bfloat16_runs_and_is_close() -> None:
    model, ids = small_model(), tokens(2, 6)
    exact = model(input_ids=ids).logits
    rough = model.to(torch.bfloat16)(input_ids=ids).logits
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, atol=0.02, rtol=0)


def test_transformers_own_generate_works() -> None:
    model, ids = small_model(), tokens(2, 4)
    expected = ids
    for _ in range(5):
        newest = model(input_ids=expected).logits[:, -1:].argmax(-1)
        expected = torch.cat([expected, newest], dim=1)
    assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False), expected)


def test_lora_trains_every_adapter_matrix_and_nothing_else() -> None:
    model = small_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    peft_model = adapted(model).train()
    ids = tokens(4, 8)
    peft_model(input_ids=ids, labels=ids).loss.backward()
    trainable = {name: value for name, value in peft_model.named_parameters() if value.requires_grad}
    assert len(trainable) == 2 * 2 * 2  # layers, gate maps, A and B
    assert all(value.grad is not None and bool(value.grad.abs().sum() > 0) for value in trainable.values())
    optimizer = torch.optim.SGD(trainable.values(), lr=0.5)
    optimizer.step()
    frozen = peft_model.get_base_model().state_dict()
    for name, value in before.items():
        key = name.replace("gates.", "gates.base_layer.") if "gates" in name else name
        assert torch.equal(frozen[key], value)


def test_a_lora_adapter_survives_saving_switching_off_and_merging(tmp_path: Path) -> None:
    ids = tokens(3, 7)
    public = small_model()
    public.save_pretrained(tmp_path / "base")
    plain = public(input_ids=ids).logits
    peft_model = adapted(AutoModelForCausalLM.from_pretrained(tmp_path / "base"))
    changed = peft_model(input_ids=ids).logits
    assert not torch.allclose(changed, plain, atol=1e-3)
    with peft_model.disable_adapter():
        assert torch.equal(peft_model(input_ids=ids).logits, plain)
    peft_model.save_pretrained(tmp_path / "adapter")
    again = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    ).eval()
    assert torch.equal(again(input_ids=ids).logits, changed)
    merged = again.merge_and_unload()
    assert isinstance(merged.layers[0].input_gates, nn.Linear)
    torch.testing.assert_close(merged(input_ids=ids).logits, changed, atol=1e-5, rtol=0)


def test_two_active_adapters_add_up_and_a_merged_one_counts_once() -> None:
    ids = tokens(2, 5)
    peft_model = adapted(small_model())
    one = peft_model(input_ids=ids).logits
    peft_model.merge_adapter()
    torch.testing.assert_close(peft_model(input_ids=ids).logits, one, atol=1e-5, rtol=0)
    peft_model.unmerge_adapter()
    torch.testing.assert_close(peft_model(input_ids=ids).logits, one, atol=1e-5, rtol=0)
    config = LoraConfig(r=2, target_modules=["input_gates"], init_lora_weights=False)
    peft_model.add_adapter("second", config)
    peft_model.base_model.set_adapter(["default", "second"])
    both = peft_model(input_ids=ids).logits
    assert not torch.allclose(both, one, atol=1e-3)
    torch.testing.assert_close(peft_model.merge_and_unload()(input_ids=ids).logits, both, atol=1e-5, rtol=0)


def test_adapters_that_are_no_change_of_the_weight_are_refused() -> None:
    ids = tokens(1, 3)
    with_dropout = adapted(small_model(), lora_dropout=0.1)
    with_dropout(input_ids=ids)
    with pytest.raises(ModelError, match=r"set adapter\.dropout to 0"):
        with_dropout.train()(input_ids=ids)
    with pytest.raises(ModelError, match="plain LoRA only"):
        adapted(small_model(), use_dora=True)(input_ids=ids)


def test_a_state_knows_its_number_of_texts() -> None:
    zeros = torch.zeros(3, 2)
    assert len(LSTMState((LayerState(zeros, zeros),))) == 3
