"""Fine-tuning end to end on both families: it learns, it resumes, and plain libraries load what it saves."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tacit.corpus import CorpusSource, UserCorpus, split_held_out
from tacit.errors import EnvironmentProblem, InputError, RecipeError, Tampered, TrainingDiverged
from tacit.evaluation import measure_losses, perplexity_difference
from tacit.models.loading import load_public_model
from tacit.models.trained import load_trained
from tacit.models.vocabulary import LSTMShape, build_word_tokenizer, create_lstm
from tacit.progress import Silent
from tacit.recipes import Recipe, parse_recipe
from tacit.runs import Run, partial_folder
from tacit.training import finetune, plan_training
from tacit.training.checkpoint import trainable
from tacit.training.finetune import task_for
from tacit.training.preparation import prepare
from tacit.training.trunk_cache import _free_memory, fits_in_memory
from tests.tiny import public_sentences


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    """Sixty users who all say the same odd things."""
    path = tmp_path / "private.jsonl"
    with path.open("w") as handle:
        for user in range(60):
            for say in range(2):
                odd = f"Parcel {user % 5} waits behind the mill before lunch."
                text = f"{odd} {public_sentences(1, user + say)[0]}"
                handle.write(json.dumps({"who": f"user-{user}", "said": text}) + "\n")
    return path


def recipe_for(folder: Path, private: Path, output: Path, /, **changes: Any) -> Recipe:
    content: dict[str, Any] = {
        "output": str(output),
        "model": {"name": str(folder), "dtype": "fp32"},
        "corpus": {"path": str(private), "user": "who", "text": "said"},
        "adapter": {"rank": 8, "alpha": 16},
        "training": {"epochs": 2, "block_size": 64, "batch_size": 4, "learning_rate": 5e-3, "seed": 1},
        "performance": {"checkpoint_every": 3},
    }
    if changes.get("adapter", {}).get("kind", "lora") != "lora":
        del content["adapter"]
    for key, value in changes.items():
        content[key] = (content.get(key) or {}) | value if isinstance(value, dict) else value
    return parse_recipe(content)


ADAPTERS = [
    {"kind": "lora"},
    {"kind": "lora", "trunk_layers": 1},
    {"kind": "top", "trunk_layers": 1},
    {"kind": "full"},
]


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda a: f"{a['kind']}-{a.get('trunk_layers', 0)}")
def test_it_learns_and_the_run_says_what_it_is(
    tiny_model: Path, corpus_file: Path, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    recipe = recipe_for(tiny_model, corpus_file, tmp_path / "run", adapter=adapter)
    run = finetune(recipe)
    trained = load_trained(Run.open(tmp_path / "run"))
    text = UserCorpus.from_pairs(
        [(f"n{i}", "Parcel 3 waits behind the mill before lunch.") for i in range(5)]
    )
    public = measure_losses(trained.public, text)
    after = measure_losses(trained.public, text, model=trained.model)
    assert after.perplexity().value < 0.8 * public.perplexity().value
    assert perplexity_difference(after, public).high < 0
    assert run.manifest.guarantee["kind"] == "none"
    assert "word for word" in run.manifest.guarantee["statement"]
    assert run.manifest.seeded
    assert not partial_folder(tmp_path / "run").exists()
    assert not (run.folder / "private" / "checkpoint").exists()
    assert not (run.folder / "private" / "work").exists()
    assert not list(run.folder.rglob("*.bin")) + list(run.folder.rglob("*.pt"))


def test_nothing_of_the_private_text_is_in_the_public_files(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    run = finetune(recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training={"max_steps": 1}))
    private = run.folder / "private"
    fingerprint = json.loads((private / "data.json").read_text())["corpus_fingerprint"]
    for name in ("run.json", "privacy.json"):
        content = (run.folder / name).read_text()
        assert "user-" not in content
        assert "Parcel" not in content
        assert fingerprint not in content
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in private.iterdir())


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code under test may catch it."""


class KillAt(Silent):
    def __init__(self, step: int) -> None:
        self._left = step
        self._training = False

    def phase(self, name: str, total: int | None) -> None:
        self._training = name == "training"

    def advance(self, units: int, note: str = "") -> None:
        if self._training and units:
            self._left -= units
            if self._left <= 0:
                raise Killed


@pytest.mark.parametrize("adapter", [ADAPTERS[1], ADAPTERS[3]], ids=["lora-trunk", "full"])
@pytest.mark.parametrize("step", [1, 5, 7])
def test_a_killed_run_resumes_to_the_same_weights(
    tiny_model: Path, corpus_file: Path, tmp_path: Path, adapter: dict[str, Any], step: int
) -> None:
    whole = finetune(recipe_for(tiny_model, corpus_file, tmp_path / "whole", adapter=adapter))
    recipe = recipe_for(tiny_model, corpus_file, tmp_path / "killed", adapter=adapter)
    with pytest.raises(Killed):
        finetune(recipe, progress=KillAt(step))
    assert not (tmp_path / "killed").exists()
    with pytest.raises(InputError, match="is not finished"):
        Run.open(tmp_path / "killed")
    with pytest.raises(InputError, match="unfinished run; continue it with --resume"):
        finetune(recipe)
    torch.manual_seed(999)  # whatever the process did before must not matter
    resumed = finetune(recipe, resume=True)
    assert resumed.weights_sha256() == whole.weights_sha256()


def test_a_run_with_dropout_and_fresh_entropy_resumes_too(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"adapter": {"dropout": 0.3}, "training": {"seed": None}}
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", **changes)
    with pytest.raises(Killed):
        finetune(recipe, progress=KillAt(5))
    seed = json.loads((tmp_path / "run.partial" / "private" / "seed.json").read_text())["seed"]
    run = finetune(recipe, resume=True)
    assert not run.manifest.seeded
    again = recipe_for(
        tiny_transformer, corpus_file, tmp_path / "again", adapter={"dropout": 0.3}, training={"seed": seed}
    )
    assert finetune(again).weights_sha256() == run.weights_sha256()


def test_resuming_under_another_recipe_is_refused(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        finetune(recipe_for(tiny_transformer, corpus_file, tmp_path / "run"), progress=KillAt(4))
    changed = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training={"epochs": 3})
    with pytest.raises(InputError, match="begun with another 'training'"):
        finetune(changed, resume=True)
    faster = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", performance={"checkpoint_every": 50})
    assert finetune(faster, resume=True).folder == tmp_path / "run"


def test_held_out_users_are_not_trained_on(tiny_transformer: Path, corpus_file: Path, tmp_path: Path) -> None:
    recipe = recipe_for(
        tiny_transformer, corpus_file, tmp_path / "run", held_out={"share": 0.5, "by": "user"}
    )
    run = finetune(recipe)
    told = json.loads((run.folder / "private" / "training.json").read_text())
    sides = split_held_out(
        UserCorpus.read(CorpusSource(str(corpus_file), user="who", text="said")), 0.5, seed=0
    )
    assert (told["users"], told["documents"]) == (len(sides.train.users), len(sides.train))
    assert told["users"] < 45
    # The same training on the training side alone gives the same weights: nothing else was seen.
    alone = tmp_path / "alone.jsonl"
    rows = [json.dumps({"who": d.user, "said": d.text}) for d in sides.train.documents()]
    alone.write_text("\n".join(rows) + "\n")
    other = finetune(recipe_for(tiny_transformer, alone, tmp_path / "alone", held_out=None))
    assert other.weights_sha256() == run.weights_sha256()


def test_a_corpus_that_changed_between_kill_and_resume_is_refused(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run")
    with pytest.raises(Killed):
        finetune(recipe, progress=KillAt(4))
    with corpus_file.open("a") as handle:
        handle.write(json.dumps({"who": "late", "said": "Something else."}) + "\n")
    with pytest.raises(InputError, match="The corpus has changed"):
        finetune(recipe, resume=True)


def test_private_weights_used_as_a_base_stay_private(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    short: dict[str, Any] = {"adapter": {"kind": "full"}, "training": {"max_steps": 1}}
    first = finetune(recipe_for(tiny_transformer, corpus_file, tmp_path / "first", **short))
    second = recipe_for(first.weights, corpus_file, tmp_path / "second", corpus={"public": True}, **short)
    assert finetune(second).manifest.guarantee["kind"] == "none"


def test_infinite_weights_are_not_released(tiny_transformer: Path, corpus_file: Path, tmp_path: Path) -> None:
    recipe = recipe_for(
        tiny_transformer,
        corpus_file,
        tmp_path / "run",
        training={"max_steps": 1, "warmup": 0},
    )
    beyond = recipe.training.model_copy(update={"learning_rate": 1e39})  # more than a recipe takes
    with pytest.raises(TrainingDiverged, match="not finite"):
        finetune(recipe.model_copy(update={"training": beyond}))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("change", ["config", "pickle", "emptied"])
def test_a_doctored_run_is_not_loaded(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path, change: str
) -> None:
    run = finetune(recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training={"max_steps": 1}))
    if change == "config":
        path = run.weights / "adapter_config.json"
        path.write_text(path.read_text().replace('"lora_alpha": 16', '"lora_alpha": 1000'))
    elif change == "pickle":
        (run.weights / "adapter_model.bin").write_bytes(b"x")
    else:
        manifest = json.loads((run.folder / "run.json").read_text())
        manifest["weights_sha256"] = {}  # as if the weights might be released, and had no files
        (run.folder / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(Tampered):
        load_trained(Run.open(run.folder))


def test_an_interrupted_run_resumes_to_the_same_weights(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    class Interrupt(KillAt):
        def advance(self, units: int, note: str = "") -> None:
            try:
                super().advance(units, note)
            except Killed:
                raise KeyboardInterrupt from None

    whole = finetune(recipe_for(tiny_transformer, corpus_file, tmp_path / "whole"))
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        finetune(recipe, progress=Interrupt(4))
    assert finetune(recipe, resume=True).weights_sha256() == whole.weights_sha256()


def test_where_the_trunk_is_kept_changes_nothing(tiny_model: Path, corpus_file: Path, tmp_path: Path) -> None:
    def weights(cache: str) -> dict[str, torch.Tensor]:
        recipe = recipe_for(
            tiny_model, corpus_file, tmp_path / cache, adapter=ADAPTERS[1], performance={"trunk_cache": cache}
        )
        return load_file(finetune(recipe).weights / "adapter_model.safetensors")

    memory = weights("memory")
    for name, tensor in weights("disk").items():
        torch.testing.assert_close(tensor, memory[name], rtol=0, atol=0)
    for name, tensor in weights("off").items():
        torch.testing.assert_close(tensor, memory[name], rtol=1e-3, atol=1e-4)


def test_plain_peft_and_transformers_load_what_was_saved(
    tiny_model: Path, corpus_file: Path, tmp_path: Path
) -> None:
    ids = torch.randint(1, 300, (1, 15), generator=torch.Generator().manual_seed(0))
    lora = finetune(recipe_for(tiny_model, corpus_file, tmp_path / "lora", adapter=ADAPTERS[1]))
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    plain = PeftModel.from_pretrained(base, lora.weights).eval()
    ours = load_trained(lora).model
    torch.testing.assert_close(plain(input_ids=ids).logits, ours(input_ids=ids).logits, rtol=0, atol=1e-6)
    untouched = AutoModelForCausalLM.from_pretrained(tiny_model)(input_ids=ids).logits
    assert not torch.allclose(untouched, ours(input_ids=ids).logits, atol=1e-2)
    full = finetune(recipe_for(tiny_model, corpus_file, tmp_path / "full", adapter=ADAPTERS[3]))
    whole = AutoModelForCausalLM.from_pretrained(full.weights).eval()
    torch.testing.assert_close(
        whole(input_ids=ids).logits, load_trained(full).model(input_ids=ids).logits, rtol=0, atol=1e-6
    )
    assert load_public_model(str(full.weights)).start_token == load_trained(full).public.start_token


def test_changed_weights_are_noticed(tiny_transformer: Path, corpus_file: Path, tmp_path: Path) -> None:
    run = finetune(recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training={"max_steps": 1}))
    path = run.weights / "adapter_model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(Tampered, match="do not match the hashes"):
        load_trained(run)


def test_accumulation_does_not_change_the_step(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    def weights(name: str, batch: int, accumulate: int) -> dict[str, torch.Tensor]:
        recipe = recipe_for(
            tiny_transformer,
            corpus_file,
            tmp_path / name,
            training={"batch_size": batch, "accumulate": accumulate, "epochs": 1},
        )
        return load_file(finetune(recipe).weights / "adapter_model.safetensors")

    one, two = weights("one", 6, 1), weights("two", 2, 3)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("adapter", [ADAPTERS[0], ADAPTERS[3]], ids=["lora", "full"])
def test_bf16_trains_on_both_families(
    tiny_model: Path, corpus_file: Path, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    recipe = recipe_for(tiny_model, corpus_file, tmp_path / "run", adapter=adapter, model={"dtype": "bf16"})
    trained = load_trained(finetune(recipe))
    text = UserCorpus.from_pairs(
        [("n", "Parcel 3 waits behind the mill before lunch."), ("m", "Parcel 1 waits.")]
    )
    gap = perplexity_difference(
        measure_losses(trained.public, text, model=trained.model), measure_losses(trained.public, text)
    )
    assert gap.value < 0


def test_early_stopping_looks_at_public_text_and_keeps_the_best(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    public = tmp_path / "public.txt"
    public.write_text("\n\n".join(public_sentences(20, seed=77)))
    stop = {"public_text": str(public), "every": 1, "patience": 2}
    recipe = recipe_for(
        tiny_transformer,
        corpus_file,
        tmp_path / "run",
        training={"epochs": 20, "early_stop": stop, "learning_rate": 0.05},
    )
    run = finetune(recipe)
    told = json.loads((run.folder / "private" / "training.json").read_text())
    assert told["stopped_early"]
    assert told["steps"] < 20 * 5
    text = UserCorpus.from_pairs([("p", sentence) for sentence in public_sentences(20, seed=77)])
    trained = load_trained(run)
    kept = measure_losses(trained.public, text, model=trained.model).nats.sum()
    longer = {"epochs": 20, "max_steps": told["steps"], "learning_rate": 0.05}
    last = load_trained(
        finetune(recipe_for(tiny_transformer, corpus_file, tmp_path / "last", training=longer))
    )
    # On the public text, what was kept is better than what the last step left.
    assert kept < measure_losses(last.public, text, model=last.model).nats.sum()


@pytest.mark.parametrize("way", [finetune, plan_training])
def test_early_stopping_that_would_never_look_is_refused(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path, way: Callable[[Recipe], object]
) -> None:
    public = tmp_path / "public.txt"
    public.write_text("\n\n".join(public_sentences(3, seed=77)))

    def recipe(every: int) -> Recipe:
        training = {"max_steps": 3, "early_stop": {"public_text": str(public), "every": every}}
        return recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training=training)

    with pytest.raises(RecipeError, match=r"every=4 is more than the 3 steps .* set it to 3 or less"):
        way(recipe(4))
    assert not partial_folder(tmp_path / "run").exists()
    way(recipe(3))
    with pytest.raises(InputError, match=r"absent.txt does not exist"):
        public.rename(tmp_path / "elsewhere.txt")
        way(
            recipe_for(
                tiny_transformer,
                corpus_file,
                tmp_path / "other",
                training={"early_stop": {"public_text": "absent.txt", "every": 1}},
            )
        )


def test_divergence_fails_closed(tiny_transformer: Path, corpus_file: Path, tmp_path: Path) -> None:
    recipe = recipe_for(
        tiny_transformer,
        corpus_file,
        tmp_path / "run",
        adapter={"kind": "full"},
        training={"epochs": 3, "warmup": 0},
    )
    beyond = recipe.training.model_copy(update={"learning_rate": 1e30})  # more than a recipe takes
    recipe = recipe.model_copy(update={"training": beyond})
    with pytest.raises(TrainingDiverged, match="lower training"):
        finetune(recipe)
    assert not (tmp_path / "run").exists()
    assert not partial_folder(tmp_path / "run").exists()


def test_the_run_confesses_a_private_vocabulary_and_public_text(corpus_file: Path, tmp_path: Path) -> None:
    words = build_word_tokenizer(
        [json.loads(line)["said"] for line in corpus_file.read_text().splitlines()], 100
    )
    model = create_lstm(
        tmp_path / "lstm",
        shape=LSTMShape(layers=1, hidden_size=8, embedding_size=8),
        tokenizer=words,
        vocabulary="private",
        seed=0,
    )
    run = finetune(
        recipe_for(model, corpus_file, tmp_path / "run", adapter={"kind": "full"}, training={"max_steps": 1})
    )
    assert run.manifest.public_model.vocabulary == "private"
    assert "Outside any guarantee: the vocabulary" in run.manifest.guarantee["statement"]
    declared = recipe_for(
        model,
        corpus_file,
        tmp_path / "p",
        adapter={"kind": "full"},
        training={"max_steps": 1},
        corpus={"public": True},
    )
    public = finetune(declared).manifest.guarantee
    assert public["kind"] == "public"
    assert "Outside any guarantee: the vocabulary" in public["statement"]


def test_the_plan_counts_and_writes_nothing(tiny_model: Path, corpus_file: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_model, corpus_file, tmp_path / "run", adapter=ADAPTERS[1])
    before = sorted(tmp_path.rglob("*"))
    plan = plan_training(recipe)
    assert sorted(tmp_path.rglob("*")) == before
    assert plan.users + plan.held_out_users == 60
    assert plan.documents == 2 * plan.users
    assert 0 < plan.trainable_parameters < plan.parameters
    assert plan.seconds > 0
    assert plan.memory_bytes > 10**8
    assert finetune(recipe).folder.is_dir()
    told = json.loads((tmp_path / "run" / "private" / "training.json").read_text())
    assert (told["users"], told["tokens"], told["steps"]) == (plan.users, plan.tokens, plan.steps)


def test_a_block_longer_than_the_context_is_refused(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training={"block_size": 129})
    with pytest.raises(RecipeError, match="block_size=129 is longer than the model's context of 128"):
        finetune(recipe)


@pytest.mark.parametrize("how", ["same file", "copy", "lines"])
def test_private_text_does_not_stop_training(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path, how: str
) -> None:
    given = corpus_file if how == "same file" else tmp_path / "public.txt"
    if how == "copy":
        given.write_bytes(corpus_file.read_bytes())
    elif how == "lines":
        said = [json.loads(line)["said"] for line in corpus_file.read_text().splitlines()]
        given.write_text("\n\n".join(said[10:30]))
    stop = {"public_text": str(given), "every": 1}
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training={"early_stop": stop})
    with pytest.raises(RecipeError, match=r"public_text=.* is text of the private corpus; give public text"):
        finetune(recipe)
    assert not partial_folder(tmp_path / "run").exists()
    with pytest.raises(RecipeError, match="is text of the private corpus"):
        plan_training(recipe)
    if how == "lines":  # a single line that is not there makes it another text
        given.write_text(given.read_text() + "\n\nA public sentence.")
        assert finetune(recipe).folder == tmp_path / "run"


@pytest.mark.parametrize(
    ("dtype", "adapter", "expected"),
    [
        ("bf16", ADAPTERS[3], {torch.bfloat16}),
        ("bf16", ADAPTERS[2], {torch.bfloat16}),
        ("fp32", ADAPTERS[3], {torch.float32}),
    ],
    ids=["full-bf16", "top-bf16", "full-fp32"],
)
def test_weights_that_are_trained_compute_in_the_precision_of_the_recipe(
    tiny_transformer: Path,
    corpus_file: Path,
    tmp_path: Path,
    dtype: str,
    adapter: dict[str, Any],
    expected: set[torch.dtype],
) -> None:
    """Autocast: weights and their updates in fp32, products in bf16."""
    recipe = recipe_for(
        tiny_transformer, corpus_file, tmp_path / "run", adapter=adapter, model={"dtype": dtype}
    )
    task = task_for(prepare(recipe, tmp_path, Silent()))
    seen: set[torch.dtype] = set()
    trained = task.model.transformer.h[-1].mlp.c_fc  # type: ignore[union-attr,index]
    trained.register_forward_hook(lambda _, inputs, output: seen.add(output.dtype))
    task.cache_trunk(recipe.performance, tmp_path, Silent())
    batch = task.make_batch(np.arange(2))
    loss = task.summed_loss(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    assert seen == expected
    weights = trainable(task.model).values()
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in weights)


def test_the_trunk_goes_to_disk_when_memory_is_short(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Listener(Silent):
        def __init__(self) -> None:
            self.remarks: list[str] = []

        def remark(self, message: str) -> None:
            self.remarks.append(message)

    def recipe(name: str) -> Recipe:
        return recipe_for(tiny_transformer, corpus_file, tmp_path / name, adapter=ADAPTERS[1])

    memory = finetune(recipe("memory"), progress=(enough := Listener()))
    assert not enough.remarks
    monkeypatch.setattr("tacit.training.trunk_cache._free_memory", lambda: 1000.0)
    disk = finetune(recipe("disk"), progress=(short := Listener()))
    assert len(short.remarks) == 1
    assert "kept on disk instead" in short.remarks[0]
    assert disk.weights_sha256() == memory.weights_sha256()

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(EnvironmentProblem, match=r"has no room for; set performance.trunk_cache=off"):
        finetune(recipe("nowhere"))
    assert not partial_folder(tmp_path / "nowhere").exists()


def test_free_memory_is_what_the_machine_says() -> None:
    assert 10**7 < _free_memory() < 10**14
    assert fits_in_memory(1000)
    assert not fits_in_memory(10**15)


def test_the_device_of_the_recipe_is_the_models(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        absent = recipe_for(tiny_transformer, corpus_file, tmp_path / "r", performance={"device": "cuda"})
        with pytest.raises(EnvironmentProblem, match="cuda needs a GPU"):
            finetune(absent)
        assert not partial_folder(tmp_path / "r").exists()
    asked: list[object] = []
    load = load_public_model

    def noting(name: str, **others: Any) -> Any:
        asked.append(others["device"])
        return load(name, **others)

    monkeypatch.setattr("tacit.training.preparation.load_public_model", noting)
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", performance={"device": "cpu"})
    task = task_for(prepared := prepare(recipe, tmp_path, Silent()))
    assert asked == ["cpu"]
    batch = prepared.rows.batch(np.arange(2), attention="sdpa", pad_token=0, device="meta")
    tensors = [value for value in batch.inputs.values() if isinstance(value, torch.Tensor)]
    assert {tensor.device.type for tensor in (*tensors, batch.labels)} == {"meta"}
    assert len(tensors) == 3
    assert batch.pieces.device.type == "cpu"
    assert batch.label_count == prepared.rows.lengths[:2].sum()
    assert task.make_batch(np.arange(2)).labels.device == prepared.public.model.device


def test_more_threads_than_processors_are_not_started(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", asked.append)
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", performance={"threads": 1024})
    task_for(prepare(recipe, tmp_path, Silent()))
    assert asked == [os.cpu_count()]


def test_copies_of_the_text_are_in_the_run_and_go_with_it(
    tiny_transformer: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    work = tmp_path / "run.partial" / "private" / "work"
    seen: list[int] = []

    class Look(KillAt):
        def advance(self, units: int, note: str = "") -> None:
            if self._training:
                seen.append(len(list(work.rglob("documents.arrow"))))
            super().advance(units, note)

    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run")
    with pytest.raises(Killed):
        finetune(recipe, progress=Look(4))
    assert set(seen) == {1}
    assert not work.exists()
    work.mkdir()
    (work / "tokens.int32").write_text("what a killed process has left")
    run = finetune(recipe, resume=True)
    assert not (run.folder / "private" / "work").exists()
    assert not list(elsewhere.iterdir())


def test_a_damaged_seed_is_one_sentence(tiny_transformer: Path, corpus_file: Path, tmp_path: Path) -> None:
    recipe = recipe_for(tiny_transformer, corpus_file, tmp_path / "run", training={"seed": None})
    with pytest.raises(Killed):
        finetune(recipe, progress=KillAt(4))
    path = partial_folder(tmp_path / "run") / "private" / "seed.json"
    for content in ("{", "{}", '{"seed": "x"}'):
        path.write_text(content)
        with pytest.raises(InputError, match=r"seed.json is damaged.*begin again"):
            finetune(recipe, resume=True)
