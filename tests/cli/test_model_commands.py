"""`tacit models` and `tacit generate`: what cannot be used is one sentence, and no option is ignored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import RECIPE, Result, Tacit

CREATE = ("models", "create", "new", "--vocabulary-from", "public.txt")
HUGE = str(10**30)
WHOLE = RECIPE.replace("rank: 4, trunk_layers: 2", "kind: full")


def assert_refused(result: Result, code: int, words: str) -> None:
    assert (result.code, result.out) == (code, ""), result
    [line] = result.err.strip().splitlines()
    assert line.startswith("tacit: ")
    assert words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("models", "path", ""), "not the name of a model"),
        (("models", "path", "../.."), "is not a model"),
        (("models", "path", "."), "is not a model"),
        (("models", "pull", ""), "not the name of a model"),
        (("models", "pull", "."), "is not a model"),
        ((*CREATE, "--seed", HUGE), "seed"),
        ((*CREATE, "--seed", "-1"), "seed"),
        ((*CREATE, "--hidden", HUGE), "parameters"),
        ((*CREATE, "--hidden", str(10**9)), "parameters"),
        ((*CREATE, "--hidden", "0"), "--hidden"),
        ((*CREATE, "--embedding", str(10**9)), "parameters"),
        ((*CREATE, "--embedding", "0"), "--embedding"),
        ((*CREATE, "--layers", str(10**9)), "64 layers"),
        ((*CREATE, "--layers", "0"), "64 layers"),
        ((*CREATE, "--vocabulary-size", HUGE), "10,000,000"),
        ((*CREATE, "--vocabulary-size", "3"), "between 4"),
        (("models", "create", "new", "--vocabulary-from", "blank.txt"), "without a word"),
        (("models", "create", "new", "--vocabulary-from", "binary.txt"), "not UTF-8"),
        (("models", "create", "new", "--tokenizer", ""), "not the name of a model"),
        (("models", "create", "new", "--tokenizer", "wrong"), "cannot be loaded"),
        (
            ("models", "create", "new", "--tokenizer", "smollm2-135m-instruct", "--vocabulary-size", "9"),
            "--vocabulary-size goes with --vocabulary-from",
        ),
        (("generate", "--seed", HUGE), "seed"),
        (("generate", "--seed", "-1"), "seed"),
        (("generate", "--temperature", "-1"), "temperature"),
        (("generate", "--temperature", "nan"), "temperature"),
        (("generate", "--temperature", "inf"), "temperature"),
        (("generate", "--tokens", "0"), "--tokens"),
        (("generate", "--prompt", "caf\udce9"), "half a character"),
        (("generate", "--model", ""), "not the name of a model"),
        (("generate", "--model", "odd"), "config.json"),
        (("generate", "--device", "gpu"), "auto, cpu, cuda or cuda:N"),
        (("generate", "--order", "5"), "--order is for an ensemble"),
        (("generate", "--mixing", "averaged"), "--mixing is for an ensemble"),
    ],
)
def test_bad_calls(
    tacit: Tacit, folder: Path, tiny_transformer: Path, arguments: tuple[str, ...], words: str
) -> None:
    (folder / "public.txt").write_text("The quick brown fox.\n")
    (folder / "blank.txt").write_text("\n \n\t\n")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (folder / "wrong").mkdir()
    (folder / "wrong" / "tokenizer.json").write_text("{}")
    shutil.copytree(tiny_transformer, folder / "odd")
    config = json.loads((folder / "odd" / "config.json").read_text())
    (folder / "odd" / "config.json").write_text(json.dumps(config | {"architectures": 5}))
    before = sorted(folder.rglob("*"))
    assert_refused(tacit(*arguments), 2, words)
    assert sorted(folder.rglob("*")) == before


def test_a_folder_that_cannot_be_loaded_has_no_path(
    tacit: Tacit, folder: Path, tiny_transformer: Path
) -> None:
    for name in ("pickle", "mute", "empty"):
        shutil.copytree(tiny_transformer, folder / name)
    (folder / "pickle" / "model.safetensors").rename(folder / "pickle" / "pytorch_model.bin")
    (folder / "empty" / "model.safetensors").unlink()
    for path in (folder / "mute").glob("*tokenizer*"):
        path.unlink()
    for name, code, words in (
        ("pickle", 4, "is a pickle"),
        ("empty", 2, "has no model.safetensors"),
        ("mute", 2, "has no tokenizer"),
    ):
        assert_refused(tacit("models", "path", f"./{name}"), code, words)
        assert tacit("generate", "--model", name).err == tacit("models", "path", folder / name).err
    (folder / "noise.gguf").write_bytes(b"noise")
    assert_refused(tacit("models", "path", "noise.gguf"), 2, "not a GGUF file")


def test_weights_that_read_private_text_are_not_called_public(tacit: Tacit, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(WHOLE)
    corpus = ("--corpus", "dialogues.jsonl", "--user", "user", "--text", "text")
    for public in ("false", "true"):
        changes = ("training.max_steps=1", f"corpus.public={public}")
        assert tacit("train", "recipe.yaml", *changes, f"output=runs/{public}").code == 0
    statements, labels = {}, {}
    for public in ("false", "true"):
        model = ("--model", f"runs/{public}/model", "--json")
        statements[public] = tacit("generate", *model, "--tokens", "2").json()["guarantee"]
        report = tacit("evaluate", *model, *corpus).json()
        [labels[public]] = report["models"]
        assert report["guarantee"] == statements[public]
    assert statements["false"].startswith("no guarantee")
    assert "trained on private text" in statements["false"]
    assert statements["true"] == "public model: it never saw the private text"
    assert (labels["false"], labels["true"]) == ("not public", "public")
    base = ("model.name=runs/false/model", "output=runs/again", "training.max_steps=1")
    assert tacit("train", "recipe.yaml", *base).code == 0
    assert set(tacit("evaluate", "runs/again", "--json").json()["models"]) == {"not public", "finetune"}
    assert "finetune - not public" in tacit("evaluate", "runs/again").out


def test_a_private_vocabulary_is_said(tacit: Tacit, folder: Path) -> None:
    (folder / "public.txt").write_text("The quick brown fox.\n")
    shape = ("--layers", "1", "--hidden", "4")
    assert tacit(*CREATE, *shape, "--vocabulary-is-private").code == 0
    told = tacit("generate", "--model", "new", "--tokens", "2", "--json").json()["guarantee"]
    assert told.startswith("public model")
    assert "vocabulary, which was built from private text" in told


CODE = "from transformers import GPT2LMHeadModel\nclass Own(GPT2LMHeadModel):\n    pass\n"


def test_code_that_comes_with_a_model_is_run_on_request_only(
    tacit: Tacit, folder: Path, tiny_transformer: Path
) -> None:
    shutil.copytree(tiny_transformer, folder / "own")
    (folder / "own" / "own.py").write_text(CODE)
    config = json.loads((folder / "own" / "config.json").read_text())
    changed = config | {"auto_map": {"AutoModelForCausalLM": "own.Own"}}
    (folder / "own" / "config.json").write_text(json.dumps(changed))
    (folder / "recipe.yaml").write_text(RECIPE)
    made = ("model.name=own", "model.trust_remote_code=true", "training.max_steps=1")
    assert tacit("train", "recipe.yaml", *made, "adapter.trunk_layers=0").code == 0
    corpus = ("--corpus", "dialogues.jsonl", "--user", "user", "--text", "text")
    for command in (
        ("generate", "runs/first", "--tokens", "2"),
        ("generate", "--model", "own", "--tokens", "2"),
        ("evaluate", "runs/first"),
        ("evaluate", "--model", "own", *corpus),
    ):
        assert_refused(tacit(*command), 4, "--trust-remote-code")
        done = tacit(*command, "--trust-remote-code")
        assert done.code == 0, done.err


def test_a_path_as_json(tacit: Tacit, folder: Path, tiny_lstm: Path) -> None:
    assert tacit("models", "path", tiny_lstm, "--json").json() == {
        "name": str(tiny_lstm),
        "folder": str(tiny_lstm),
    }
    assert tacit("models", "path", tiny_lstm).out == f"{tiny_lstm}\n"


@pytest.mark.parametrize("temperature", ["0", "1e-320"])
def test_the_smallest_temperatures_give_the_likeliest_text(
    tacit: Tacit, folder: Path, temperature: str
) -> None:
    first, second = (
        tacit("generate", "--temperature", chosen, "--tokens", "8", "--json").json()["text"]
        for chosen in (temperature, "0")
    )
    assert first == second != ""


def test_a_seed_decides_the_sample(tacit: Tacit, folder: Path) -> None:
    largest = str(2**63 - 1)
    texts = [
        tacit("generate", "--seed", seed, "--device", "cpu", "--json").json()["text"]
        for seed in (largest, largest, "0")
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_run_brings_its_own_model(tacit: Tacit, folder: Path, tiny_lstm: Path) -> None:
    (folder / "recipe.yaml").write_text(RECIPE)
    assert tacit("train", "recipe.yaml", "training.max_steps=1").code == 0
    assert tacit("generate", "runs/first", "--tokens", "3", "--device", "cpu").code == 0
    assert_refused(tacit("generate", "runs/first", "--model", tiny_lstm), 2, "--model")
    shutil.rmtree(folder / "runs" / "first" / "adapter")
    assert_refused(tacit("generate", "runs/first"), 4, "do not match the hashes")
