"""Models of every kind load frozen and complete; what is no usable model is refused in one sentence."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM, BloomConfig, BloomForCausalLM, GPT2LMHeadModel
from transformers.utils import logging as transformers_logging

from tacit.errors import DownloadFailed, EnvironmentProblem, InputError, ModelError, Tampered, UnsafeFile
from tacit.models import store
from tacit.models.adapters import attach, save_weights
from tacit.models.description import ModelDescription, weight_hashes, write_description
from tacit.models.loading import best_device, best_dtype, context_length, dtype_named, load_public_model
from tacit.models.quiet import quiet
from tacit.models.tokenizer import load_tokenizer
from tacit.recipes import AdapterSection
from tests.tiny import public_sentences, write_llama_gguf


@pytest.fixture
def copied(tiny_transformer: Path, tmp_path: Path) -> Path:
    """A copy of the tiny transformer that a test may spoil."""
    return Path(shutil.copytree(tiny_transformer, tmp_path / "model"))


@pytest.fixture(scope="session")
def tiny_gguf(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_llama_gguf(tiny_llama, path)
    return path


def edit_json(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def mean_loss(folder: Path) -> float:
    public = load_public_model(str(folder))
    losses = []
    for ids in public.tokenizer.encode(public_sentences(20, seed=99)):
        batch = torch.tensor([[public.start_token, *ids]])
        losses.append(float(public.model(input_ids=batch, labels=batch).loss))
    return sum(losses) / len(losses)


def test_the_tiny_models_have_learned_their_text(tiny_model: Path) -> None:
    vocabulary = len(load_public_model(str(tiny_model)).tokenizer)
    assert mean_loss(tiny_model) < 0.5 * math.log(vocabulary)


def test_an_untrained_model_has_not(tiny_llama: Path) -> None:
    assert mean_loss(tiny_llama) > 0.9 * math.log(len(load_public_model(str(tiny_llama)).tokenizer))


def test_a_loaded_model_is_frozen_and_describes_itself(tiny_model: Path) -> None:
    public = load_public_model(str(tiny_model))
    lstm = public.model.config.model_type == "tacit_lstm"
    assert public.family == ("lstm" if lstm else "transformer")
    assert public.n_layers == len(public.layers) == (2 if lstm else 4)
    assert public.context_length == 128
    assert public.start_token == 0
    assert public.vocabulary == "public"
    assert public.revision is None
    assert not public.model.training
    assert not any(parameter.requires_grad for parameter in public.model.parameters())
    assert {parameter.dtype for parameter in public.model.parameters()} == {torch.float32}


def test_a_llama_loads_like_the_others(tiny_llama: Path) -> None:
    public = load_public_model(str(tiny_llama), dtype=torch.bfloat16)
    assert (public.family, public.n_layers, public.model.dtype) == ("transformer", 3, torch.bfloat16)


def test_a_gguf_file_equals_the_folder_it_was_made_from(tiny_llama: Path, tiny_gguf: Path) -> None:
    from_folder = load_public_model(str(tiny_llama))
    texts = [*public_sentences(3), "Ünïcode <|endoftext|>\n\n 42"]
    for name in (tiny_gguf, tiny_gguf.parent):
        from_gguf = load_public_model(str(name))
        assert from_gguf.tokenizer.encode(texts) == from_folder.tokenizer.encode(texts)
        assert from_gguf.start_token == from_folder.start_token
        for ids in from_folder.tokenizer.encode(texts):
            batch = torch.tensor([ids])
            expected = from_folder.model(input_ids=batch).logits
            torch.testing.assert_close(from_gguf.model(input_ids=batch).logits, expected, atol=1e-5, rtol=0)


def test_a_model_from_gguf_can_be_saved_as_safetensors(tiny_gguf: Path, tmp_path: Path) -> None:
    public = load_public_model(str(tiny_gguf))
    public.model.save_pretrained(tmp_path / "saved")
    public.tokenizer.tokenizer.save_pretrained(tmp_path / "saved")
    again = load_public_model(str(tmp_path / "saved"))
    batch = torch.tensor([[1, 2, 3]])
    assert torch.equal(again.model(input_ids=batch).logits, public.model(input_ids=batch).logits)


def test_broken_gguf_files_are_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "noise.gguf").write_bytes(b"\x80\x04 pickled")
    with pytest.raises(ModelError, match="not a GGUF file"):
        load_public_model(str(tmp_path / "noise.gguf"))
    (tmp_path / "short.gguf").write_bytes(tiny_gguf.read_bytes()[:2000])
    with pytest.raises(ModelError, match=r"short\.gguf cannot be loaded"):
        load_public_model(str(tmp_path / "short.gguf"))
    with pytest.raises(ModelError, match=r"2 \.gguf files"):
        load_public_model(str(tmp_path))


def test_the_fingerprint_follows_weights_and_config_only(copied: Path, tiny_transformer: Path) -> None:
    original = load_public_model(str(tiny_transformer)).fingerprint
    (copied / "README.md").write_text("hello")
    edit_json(copied / "config.json", lambda config: config.update(transformers_version="6"))
    assert load_public_model(str(copied)).fingerprint == original
    edit_json(copied / "config.json", lambda config: config.update(layer_norm_epsilon=1e-4))
    changed = load_public_model(str(copied)).fingerprint
    assert changed != original
    weights = load_file(copied / "model.safetensors")
    weights["transformer.ln_f.bias"][0] += 1
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert load_public_model(str(copied)).fingerprint not in (original, changed)


def test_weights_that_changed_since_they_were_recorded_are_refused(copied: Path) -> None:
    description = ModelDescription(
        name="m",
        source="test",
        licence=None,
        parameters=1,
        start_token_id=7,
        vocabulary="public",
        weights_sha256=weight_hashes(copied),
    )
    write_description(copied, description)
    assert load_public_model(str(copied)).start_token == 7
    weights = load_file(copied / "model.safetensors")
    weights["transformer.ln_f.bias"][0] += 1
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Tampered, match=r"tacit_model\.json"):
        load_public_model(str(copied))


def test_a_description_that_cannot_be_used_is_named(copied: Path) -> None:
    (copied / "tacit_model.json").write_text('{"name": "m"}')
    with pytest.raises(ModelError, match=r"tacit_model\.json: the field 'source'"):
        load_public_model(str(copied))


def test_pickled_weights_are_never_opened(copied: Path) -> None:
    (copied / "pytorch_model.bin").write_bytes(b"this would not unpickle")
    load_public_model(str(copied))
    (copied / "model.safetensors").unlink()
    with pytest.raises(UnsafeFile, match=r"pytorch_model\.bin is a pickle"):
        load_public_model(str(copied))


def test_remote_code_runs_only_when_trusted(copied: Path) -> None:
    trace = copied / "it_ran"
    (copied / "own_code.py").write_text(
        "from pathlib import Path\n"
        "from transformers import GPT2LMHeadModel\n"
        f"Path({str(trace)!r}).touch()\n"
        "class OwnModel(GPT2LMHeadModel):\n    pass\n"
    )
    auto_map = {"AutoModelForCausalLM": "own_code.OwnModel"}
    edit_json(copied / "config.json", lambda config: config.update(auto_map=auto_map))
    with pytest.raises(UnsafeFile, match="trust_remote_code"):
        load_public_model(str(copied))
    assert not trace.exists()
    public = load_public_model(str(copied), trust_remote_code=True)
    assert trace.exists()
    assert type(public.model).__name__ == "OwnModel"


def test_a_sharded_model_loads(tiny_transformer: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_transformer, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    model = GPT2LMHeadModel.from_pretrained(tiny_transformer)
    model.save_pretrained(tmp_path / "model", max_shard_size="200KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    public = load_public_model(str(tmp_path / "model"))
    batch = torch.tensor([[1, 2, 3]])
    assert torch.equal(public.model(input_ids=batch).logits, model(input_ids=batch).logits)


def remove(*names: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return spoil


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def unknown_kind(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(model_type="not-a-model"))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def other_shape(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(n_embd=32))


def wrong_type(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(n_positions="many"))


def adapter_beside_it(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (remove("tokenizer.json", "tokenizer_config.json"), "has no tokenizer"),
        (remove("config.json"), r"config\.json is missing"),
        (remove("model.safetensors"), r"no model\.safetensors"),
        (broken_config, r"config\.json is not valid JSON"),
        (unknown_kind, "cannot be loaded"),
        (cut_weights, "cannot be loaded"),
        (drop_a_weight, r"lacks 1 of the model's weights \(transformer\.h\.1\.mlp"),
        (other_shape, "cannot be loaded"),
        (wrong_type, "cannot be loaded"),
        (adapter_beside_it, "holds an adapter"),
    ],
)
def test_a_spoiled_folder_is_refused_in_one_sentence(
    copied: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    spoil(copied)
    with pytest.raises(ModelError, match=sentence) as refused:
        load_public_model(str(copied))
    assert str(copied) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_masked_language_model_is_refused(copied: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    BertForMaskedLM(BertConfig(vocab_size=512, **sizes)).save_pretrained(copied)
    with pytest.raises(ModelError, match="BertForMaskedLM, not a causal language model"):
        load_public_model(str(copied))


def test_a_tokenizer_larger_than_the_embedding_is_refused(copied: Path) -> None:
    tokenizer = load_public_model(str(copied)).tokenizer.tokenizer
    size = len(tokenizer)
    tokenizer.add_tokens(["unheard"])
    tokenizer.save_pretrained(copied)
    with pytest.raises(ModelError, match=f"{size + 1} tokens but the model embeds only {size}"):
        load_public_model(str(copied))


def test_names_that_lead_nowhere_are_told_apart(tmp_path: Path) -> None:
    for path in ("./nowhere", str(tmp_path / "nowhere"), "~/no-such-model-here", "weights.gguf", "a/b/c"):
        with pytest.raises(ModelError, match="There is no model folder"):
            load_public_model(path)
    with pytest.raises(DownloadFailed, match="The hub did not deliver 'nobody/no-such-model'"):
        load_public_model("nobody/no-such-model")
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="is a file; give the model's folder"):
        load_public_model(str(tmp_path / "weights.bin"))


def test_a_model_without_a_position_limit_gets_a_nominal_one() -> None:
    unlimited = BloomForCausalLM(BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=1))
    assert context_length(unlimited) == 2048


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True, "avx2": True}, torch.bfloat16),
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False}, torch.float32),
        ({}, torch.float32),
    ],
)
def test_bfloat16_is_chosen_only_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert best_dtype("cpu") is expected
    assert dtype_named("auto", "cpu") is expected


def test_dtypes_are_named_as_in_recipes() -> None:
    assert (dtype_named("fp32"), dtype_named("bf16")) == (torch.float32, torch.bfloat16)
    with pytest.raises(InputError, match="dtype is 'fp16' and must be one of auto, fp32, bf16"):
        dtype_named("fp16")


def test_loading_prints_nothing_and_leaves_transformers_as_it_was(
    tiny_model: Path, tiny_gguf: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    load_public_model(str(tiny_model))
    load_public_model(str(tiny_gguf))
    assert capfd.readouterr() == ("", "")
    assert before == (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())


def test_transformers_settings_come_back_after_an_error() -> None:
    def fail_quietly() -> None:
        with quiet():
            assert not transformers_logging.is_progress_bar_enabled()
            assert transformers_logging.get_verbosity() == transformers_logging.ERROR
            raise KeyError

    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    with pytest.raises(KeyError):
        fail_quietly()
    assert before == (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())


WRONG_SETTINGS: list[dict[str, object]] = [
    {"architectures": 5},
    {"architectures": "GPT2LMHeadModel"},
    {"architectures": [5]},
    {"architectures": {"a": 1}},
    {"architectures": True},
    {"model_type": 5},
    {"model_type": []},
    {"n_head": 0},
    {"n_head": "four"},
    {"n_head": None},
    {"n_head": [4]},
    {"n_layer": "four"},
    {"n_layer": None},
    {"vocab_size": -1},
    {"vocab_size": "many"},
    {"vocab_size": [1]},
    {"vocab_size": 10**12},
    {"activation_function": 5},
    {"activation_function": "nothing"},
    {"dtype": "no-such-type"},
    {"quantization_config": 5},
    {"quantization_config": {"quant_method": "gptq"}},
]


@pytest.mark.parametrize("settings", WRONG_SETTINGS)
def test_settings_of_the_wrong_kind_are_one_sentence(copied: Path, settings: dict[str, object]) -> None:
    edit_json(copied / "config.json", lambda config: config.update(settings))
    with pytest.raises(ModelError, match=str(copied)) as refused:
        load_public_model(str(copied))
    assert "\n" not in str(refused.value)


def test_a_name_must_be_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("", " ", "a\0b"):
        with pytest.raises(ModelError, match="is not the name of a model"):
            load_public_model(name)


def test_a_revision_goes_with_the_hub_only(
    tiny_transformer: Path, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path))
    for name in (str(tiny_transformer), str(tiny_gguf), store.EMBEDDED.name):
        with pytest.raises(ModelError, match=r"revision 'main' .* leave it out"):
            load_public_model(name, revision="main")
    assert list(tmp_path.iterdir()) == []  # refused before anything was fetched


def test_a_low_rank_adapter_on_a_gguf_model_saves_without_looking_for_its_base(
    tiny_gguf: Path, tmp_path: Path
) -> None:
    public = load_public_model(str(tiny_gguf))
    trained = attach(public.model, AdapterSection(rank=2))
    save_weights(
        trained, tmp_path / "adapter", public, holds_private_text=False
    )  # a warning is an error here
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_is_used_where_there_is_one_unless_the_caller_chooses() -> None:
    assert best_device() == best_device("auto") == best_device("cuda") == torch.device("cuda")
    assert best_device("cuda:1") == torch.device("cuda:1")
    assert best_device("cpu") == torch.device("cpu")
    with pytest.raises(EnvironmentProblem, match=r"cuda:2 .* has 2"):
        best_device("cuda:2")


def test_without_a_gpu_the_processor_is_used_and_asking_for_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert best_device() == torch.device("cpu")
    with pytest.raises(EnvironmentProblem, match="no GPU that torch can use"):
        best_device("cuda")
    for wrong in ("gpu", "", "cuda:x", "cpu:-2"):
        with pytest.raises(InputError, match="auto, cpu, cuda or cuda:N"):
            best_device(wrong)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_bfloat16_is_chosen_only_where_the_gpu_has_it(
    monkeypatch: pytest.MonkeyPatch, native: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert best_dtype("cuda") is best_dtype() is expected


def test_a_model_is_put_on_the_device_that_was_asked_for(tiny_model: Path, tiny_gguf: Path) -> None:
    for name in (tiny_model, tiny_gguf):
        assert load_public_model(str(name), device="meta").model.device == torch.device("meta")
        assert load_public_model(str(name), device="cpu").model.device == torch.device("cpu")


def test_impossible_sizes_of_an_lstm_name_the_file(tiny_lstm: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(tiny_lstm, tmp_path / "lstm")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 0}))
    with pytest.raises(ModelError, match=r"in .*/lstm: Expected .*num_hidden_layers >= 1"):
        load_public_model(str(copied))


def test_an_adapter_is_refused_as_such_wherever_a_model_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter"):
        load_public_model(str(tmp_path))
    with pytest.raises(ModelError, match="holds an adapter"):
        load_tokenizer(str(tmp_path))


def test_an_adapter_beside_a_gguf_file_is_refused(tiny_gguf: Path, tmp_path: Path) -> None:
    """transformers would follow the adapter to its base and put it on, and call the result the file's."""
    shutil.copy(tiny_gguf, tmp_path / "m.gguf")
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds an adapter"):
        load_public_model(str(tmp_path / "m.gguf"))


def test_a_copy_without_its_description_still_says_that_it_read_private_text(
    tiny_transformer: Path, tmp_path: Path
) -> None:
    public = load_public_model(str(tiny_transformer))
    for private in (True, False):
        folder = tmp_path / str(private)
        folder.mkdir()
        save_weights(public.model, folder, public, holds_private_text=private)
        (folder / "tacit_model.json").unlink()
        assert load_public_model(str(folder)).holds_private_text is private
