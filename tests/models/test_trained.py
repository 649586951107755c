"""A Run's weights load whole, on the device that was asked for, or are refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tacit.errors import ModelError, Tampered
from tacit.files import sha256_of
from tacit.models.trained import load_trained
from tacit.recipes import Recipe
from tacit.runs import Run
from tacit.training.finetune import finetune
from tests.tiny import public_sentences


@pytest.fixture(scope="module")
def finished(tiny_transformer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Run of one step, with a low-rank adapter."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [{"user": f"u{n}", "text": text} for n, text in enumerate(public_sentences(20))]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = Recipe.model_validate(
        {
            "output": str(folder / "run"),
            "model": {"name": str(tiny_transformer)},
            "corpus": {"path": str(folder / "corpus.jsonl"), "user": "user", "text": "text"},
            "adapter": {"rank": 2},
            "training": {"max_steps": 1, "block_size": 32, "seed": 1},
        }
    )
    return finetune(recipe).folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def hash_again(run: Path) -> None:
    """Whoever made the Run made it so: the manifest agrees with the damage."""
    hashes = {path.name: sha256_of(path) for path in sorted((run / "adapter").iterdir())}
    edit(run / "run.json", lambda manifest: manifest.update(weights_sha256=hashes))


def cut(run: Path) -> None:
    path = run / "adapter" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:200])


def drop_a_weight(run: Path) -> None:
    path = run / "adapter" / "adapter_model.safetensors"
    weights = load_file(path)
    del weights[sorted(weights)[0]]
    save_file(weights, path)


def other_rank(run: Path) -> None:
    edit(run / "adapter" / "adapter_config.json", lambda config: config.update(r=3))


def other_file(run: Path) -> None:
    (run / "adapter" / "adapter_model.safetensors").rename(run / "adapter" / "weights.safetensors")
    torch.save({}, run / "adapter" / "adapter_model.bin")


def config(text: str) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        (run / "adapter" / "adapter_config.json").write_text(text)

    return spoil


def without_config(run: Path) -> None:
    (run / "adapter" / "adapter_config.json").unlink()


SPOILED = [
    cut,
    drop_a_weight,
    other_rank,
    other_file,
    without_config,
    config("{"),
    config("[]"),
    config("{}"),
    config('{"peft_type": 5}'),
    config('{"peft_type": "LORA", "target_modules": 5}'),
    config('{"peft_type": "LORA", "target_modules": ["nothing"]}'),
    config('{"peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 2}'),
    config('{"peft_type": "LORA", "target_modules": ["c_attn"], "megatron_config": {"a": 1}}'),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_damaged_adapter_is_refused_in_one_sentence(run: Path, spoil: Callable[[Path], None]) -> None:
    spoil(run)
    with pytest.raises(Tampered, match="do not match the hashes"):
        load_trained(Run.open(run))
    hash_again(run)
    with pytest.raises((ModelError, Tampered), match=str(run / "adapter")) as refused:
        load_trained(Run.open(run))
    assert "\n" not in str(refused.value)


def test_a_run_without_its_adapter_is_refused(run: Path) -> None:
    shutil.rmtree(run / "adapter")
    with pytest.raises(Tampered, match="do not match the hashes"):
        load_trained(Run.open(run))


def test_both_models_are_put_on_the_device_that_was_asked_for(run: Path) -> None:
    for device in ("cpu", "meta"):
        trained = load_trained(Run.open(run), device=device)
        devices = {
            parameter.device
            for model in (trained.public.model, trained.model)
            for parameter in model.parameters()
        }
        assert devices == {torch.device(device)}
    assert not any(parameter.requires_grad for parameter in trained.model.parameters())
