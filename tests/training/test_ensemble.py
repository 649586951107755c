"""Ensemble training: members are independent to the last bit, however they are trained, killed or grouped."""

from __future__ import annotations

import functools
import json
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tacit.corpus import Partition, UserCorpus
from tacit.errors import InputError, PublicModelWarning, TrainingDiverged
from tacit.models.adapters import attach
from tacit.models.loading import load_public_model
from tacit.models.stacked_lora import stack_into
from tacit.privacy import Guarantee
from tacit.recipes import AdapterSection, parse_recipe
from tacit.runs import Run, partial_folder
from tacit.training import finetune, train_ensemble
from tacit.training.ensemble import is_joint
from tacit.training.ensemble_joint import clip_each_member
from tacit.training.ensemble_single import start_adapter
from tests.training.ensembles import (
    KEY,
    KillAt,
    Killed,
    ensemble_recipe,
    sayings,
    weights_of,
    write_key,
    write_sayings,
)

NAMES = ["part-000-a", "part-000-b", "part-001-a", "part-001-b"]
JOINT: dict[str, Any] = {"ensemble": {"joint": True}}
ALONE: dict[str, Any] = {"ensemble": {"joint": False}}
WAYS = {
    "joint": JOINT,
    "joint, no trunk": JOINT | {"adapter": {"trunk_layers": 0}},
    "joint, trunk not kept": JOINT | {"performance": {"trunk_cache": "off"}},
    "alone": ALONE,
    "top": {"adapter": {"kind": "top"}},
}
CHANGES = ("another text", "a user more", "everybody gone")
CASES = [(way, change) for way in ("joint", "alone") for change in CHANGES]
CASES += [(way, CHANGES[0]) for way in WAYS if way not in ("joint", "alone")]


@pytest.fixture
def private(tmp_path: Path) -> Path:
    return write_sayings(tmp_path / "private.jsonl", sayings())


@functools.cache
def home_of(user: str) -> str:
    """The member that reads a user's text, by the definition of the partition."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PublicModelWarning)
        slot = Partition.create(UserCorpus.from_pairs([(user, "x")]), 2, "hash", KEY).slot_of(user)
    return f"part-{slot.part:03d}-{'ab'[slot.half]}"


def assert_same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.filterwarnings("ignore::tacit.errors.PublicModelWarning")
@pytest.mark.parametrize(("way", "change"), CASES)
def test_one_half_changes_its_own_member_and_no_other(
    tiny_model: Path, private: Path, tmp_path: Path, way: str, change: str
) -> None:
    """I12 of docs/serving.md."""

    def trained(name: str) -> dict[str, dict[str, torch.Tensor]]:
        recipe = ensemble_recipe(tiny_model, private, tmp_path / name, **WAYS[way])
        return weights_of(train_ensemble(recipe))

    before = trained("before")
    touched = home_of("user-3")
    said = sayings()
    if change == "another text":
        # Longer by many rows, so that lengths, row counts and padding of the half all change.
        said = [(who, text * 5 if who == "user-3" else text) for who, text in said]
    elif change == "a user more":
        new = next(name for name in (f"new-{i}" for i in range(99)) if home_of(name) == touched)
        said = [(new, "Nobody has ever heard of this before."), *said]
    else:
        said = [(who, text) for who, text in said if home_of(who) != touched]
    write_sayings(private, said)
    after = trained("after")
    assert list(before) == list(after) == NAMES
    for name in NAMES:
        if name == touched:
            assert any(not torch.equal(before[name][key], after[name][key]) for key in before[name])
        else:
            assert_same(before[name], after[name])


@pytest.mark.parametrize("adapter", [{"trunk_layers": 0}, {"trunk_layers": 1}], ids=["whole", "trunk"])
def test_joint_and_one_by_one_agree(
    tiny_model: Path, private: Path, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    settings = {"max_steps": 8, "accumulate": 2, "clip": 0.5, "learning_rate": 2e-3}
    changes: dict[str, Any] = {"adapter": adapter, "training": settings}
    joint = train_ensemble(ensemble_recipe(tiny_model, private, tmp_path / "joint", **JOINT, **changes))
    alone = train_ensemble(ensemble_recipe(tiny_model, private, tmp_path / "alone", **ALONE, **changes))
    ids = torch.randint(1, 300, (2, 15), generator=torch.Generator().manual_seed(0))
    ours, theirs = weights_of(joint), weights_of(alone)
    public = AutoModelForCausalLM.from_pretrained(tiny_model)(input_ids=ids).logits
    for name in NAMES:
        assert ours[name].keys() == theirs[name].keys()
        for key, tensor in ours[name].items():
            torch.testing.assert_close(tensor, theirs[name][key], rtol=0, atol=1e-4)
        first, second = (
            PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_model), run.weights / name)
            .eval()(input_ids=ids)
            .logits
            for run in (joint, alone)
        )
        torch.testing.assert_close(first, second, rtol=0, atol=1e-4)
        assert (first - public).abs().max() > 0.01
    assert any(not torch.equal(ours[NAMES[0]][key], ours[NAMES[1]][key]) for key in ours[NAMES[0]])


def test_a_group_of_members_is_a_group_of_members(
    tiny_model: Path, private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that fit into memory change nothing but rounding."""
    whole = train_ensemble(ensemble_recipe(tiny_model, private, tmp_path / "whole", **JOINT))
    monkeypatch.setattr("tacit.training.ensemble._ROOM_FOR_ACTIVATIONS", 1)
    grouped = train_ensemble(ensemble_recipe(tiny_model, private, tmp_path / "grouped", **JOINT))
    ours = weights_of(grouped)
    for name, weights in weights_of(whole).items():
        for key, tensor in weights.items():
            torch.testing.assert_close(tensor, ours[name][key], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("wish", "expected"), [("auto", [True, False]), (True, [True] * 2), (False, [False] * 2)]
)
def test_members_train_the_faster_way_unless_told(
    tiny_transformer: Path, tiny_lstm: Path, private: Path, wish: Any, expected: list[bool]
) -> None:
    recipe = ensemble_recipe(tiny_lstm, private, private.parent / "run", ensemble={"joint": wish})
    models = [load_public_model(str(folder)) for folder in (tiny_transformer, tiny_lstm)]
    assert [is_joint(recipe, model) for model in models] == expected


RESUMED = {
    "joint": JOINT,
    "alone": ALONE,
    "dropout": ALONE | {"adapter": {"dropout": 0.2}},
    "full": {"adapter": {"kind": "full", "trunk_layers": 0}},
}


@pytest.mark.parametrize("way", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("step", [1, 4, 8])
def test_a_killed_run_resumes_to_the_same_bytes(
    tiny_transformer: Path, private: Path, tmp_path: Path, way: dict[str, Any], step: int
) -> None:
    joint = way is JOINT
    if joint and step == 8:
        step = 5
    whole = train_ensemble(ensemble_recipe(tiny_transformer, private, tmp_path / "whole", **way))
    recipe = ensemble_recipe(tiny_transformer, private, tmp_path / "killed", **way)
    with pytest.raises(Killed):
        train_ensemble(recipe, progress=KillAt(step))
    with pytest.raises(InputError, match="is not finished"):
        Run.open(tmp_path / "killed")
    torch.manual_seed(999)  # whatever the process did before must not matter
    half_saved = partial_folder(tmp_path / "killed") / "members" / ".part-000-a.0123abcd.partial"
    half_saved.mkdir(parents=True)
    (half_saved / "adapter_model.safetensors").write_text("what a killed process has left")
    resumed = train_ensemble(recipe, resume=True)
    assert resumed.weights_sha256() == whole.weights_sha256()
    assert not (resumed.folder / "private" / "checkpoint").exists()


def test_a_run_with_fresh_entropy_and_a_fresh_key_keeps_both_when_resumed(
    tiny_transformer: Path, private: Path, tmp_path: Path
) -> None:
    fresh: dict[str, Any] = {"training": {"seed": None}, "ensemble": {"key": None}}
    recipe = ensemble_recipe(tiny_transformer, private, tmp_path / "run", **fresh)
    with pytest.raises(Killed):
        train_ensemble(recipe, progress=KillAt(3))
    hidden = partial_folder(tmp_path / "run") / "private"
    seed = json.loads((hidden / "seed.json").read_text())["seed"]
    partition = Partition.load(hidden / "partition")
    run = train_ensemble(recipe, resume=True)
    assert not run.manifest.seeded
    assert Partition.load(run.folder / "private" / "partition") == partition
    write_key(private.with_name("partition.key"), partition.key)
    again = ensemble_recipe(tiny_transformer, private, tmp_path / "again", training={"seed": seed})
    again = again.model_copy(
        update={
            "ensemble": again.ensemble.model_copy(  # type: ignore[union-attr]
                update={"key": str(write_key(tmp_path / "other.key", partition.key))}
            )
        }
    )
    assert train_ensemble(again).weights_sha256() == run.weights_sha256()


def test_another_key_is_refused_when_resuming(tiny_transformer: Path, private: Path, tmp_path: Path) -> None:
    recipe = ensemble_recipe(tiny_transformer, private, tmp_path / "run")
    with pytest.raises(Killed):
        train_ensemble(recipe, progress=KillAt(3))
    write_key(private.with_name("partition.key"), bytes(32))
    with pytest.raises(InputError, match="The partition key has changed"):
        train_ensemble(recipe, resume=True)


@pytest.mark.parametrize("way", [JOINT, ALONE, WAYS["top"]], ids=["joint", "alone", "top"])
def test_a_member_without_text_is_the_public_model(
    tiny_model: Path, private: Path, tmp_path: Path, way: dict[str, Any]
) -> None:
    empty = home_of("user-3")
    write_sayings(private, [(who, text) for who, text in sayings() if home_of(who) != empty])
    with pytest.warns(PublicModelWarning, match=f"1 of 4 members hold no text .* public model: {empty}"):
        run = train_ensemble(ensemble_recipe(tiny_model, private, tmp_path / "run", **way))
    ids = torch.randint(1, 300, (2, 15), generator=torch.Generator().manual_seed(0))
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    public = base(input_ids=ids).logits
    if way is WAYS["top"]:
        member = AutoModelForCausalLM.from_pretrained(run.weights / empty)
    else:
        assert all(not bool(tensor.any()) for tensor in weights_of(run)[empty].values())
        member = PeftModel.from_pretrained(base, run.weights / empty)
    assert torch.equal(member.eval()(input_ids=ids).logits, public)


def test_the_run_says_what_it_is_and_hides_what_it_must(
    tiny_transformer: Path, private: Path, tmp_path: Path
) -> None:
    run = train_ensemble(ensemble_recipe(tiny_transformer, private, tmp_path / "run"))
    manifest = Run.open(tmp_path / "run").manifest
    assert (manifest.method, manifest.weights) == ("submix", "members")
    assert manifest.ensemble is not None
    assert (manifest.ensemble.parts, manifest.ensemble.halves) == (2, True)
    assert manifest.ensemble.names == NAMES == sorted(path.name for path in run.weights.iterdir())
    assert sorted(run.weights_sha256()) == sorted(
        f"{name}/{file}" for name in NAMES for file in ("adapter_config.json", "adapter_model.safetensors")
    )
    run.verify_weights()
    assert manifest.weights_sha256 is None
    guarantee = Guarantee.from_json(manifest.guarantee)
    assert (guarantee.kind, guarantee.unit) == ("none", "part")
    assert "must not be released" in str(guarantee)
    key, told = KEY.hex(), (run.folder / "private" / "training.json").read_text()
    for name in ("run.json", "privacy.json"):
        content = (run.folder / name).read_text()
        assert "user-" not in content
        assert "Parcel" not in content
        assert key not in content
    assert json.loads(told)["members"].keys() == set(NAMES)
    assert sum(member["users"] for member in json.loads(told)["members"].values()) == 40
    owners = (run.folder / "private", run.folder / "private" / "partition", run.weights)
    for folder in (*owners, *run.weights.iterdir()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # How long each member took to train would tell who had text.
    assert len({path.stat().st_mtime_ns for path in (run.weights, *run.weights.rglob("*"))}) == 1
    assert not (run.folder / "partition.json").exists()
    assert not (run.folder / "private" / "work").exists()


@pytest.mark.filterwarnings("ignore::tacit.errors.PublicModelWarning")
@pytest.mark.parametrize("adapter", [{"kind": "lora"}, {"kind": "top"}], ids=["lora", "top"])
def test_public_files_do_not_tell_whose_part_is_empty(
    tiny_transformer: Path, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    """Nothing in a part is the neighbour of every certified guarantee: who holds run.json must not see it."""
    told = []
    for name, kept in (("all", NAMES), ("fewer", NAMES[:3])):
        said = [(who, text) for who, text in sayings() if home_of(who) in kept]
        (tmp_path / name).mkdir()
        corpus = write_sayings(tmp_path / name / "private.jsonl", said)
        run = train_ensemble(
            ensemble_recipe(tiny_transformer, corpus, tmp_path / name / "run", adapter=adapter)
        )
        files = sorted(path.name for path in run.folder.iterdir() if path.is_file())
        manifest = json.loads((run.folder / "run.json").read_text())
        for keyed in ("data_fingerprint", "weights_fingerprint", "created", "recipe"):
            manifest.pop(keyed)
        told.append((files, manifest, (run.folder / "privacy.json").read_text()))
    assert told[0] == told[1]


def test_a_base_that_has_read_private_text_is_refused(
    tiny_transformer: Path, private: Path, tmp_path: Path
) -> None:
    corpus = {"path": str(private), "user": "who", "text": "said"}
    content = {"output": str(tmp_path / "base"), "model": {"name": str(tiny_transformer)}, "corpus": corpus}
    short = {"max_steps": 1, "block_size": 48}
    base = finetune(parse_recipe(content | {"adapter": {"kind": "full"}, "training": short}))
    with pytest.raises(InputError, match="was trained on private text"):
        train_ensemble(ensemble_recipe(base.weights, private, tmp_path / "run"))
    assert not (tmp_path / "run.partial").exists()


def test_one_member_per_part_reads_both_halves(tiny_model: Path, private: Path, tmp_path: Path) -> None:
    run = train_ensemble(ensemble_recipe(tiny_model, private, tmp_path / "run", ensemble={"halves": False}))
    assert sorted(path.name for path in run.weights.iterdir()) == ["part-000", "part-001"]
    told = json.loads((run.folder / "private" / "training.json").read_text())["members"]
    expected = sum(home_of(who).startswith("part-000") for who in {who for who, _ in sayings()})
    assert told["part-000"]["users"] == expected
    assert told["part-000"]["users"] + told["part-001"]["users"] == 40


def test_only_the_training_side_is_partitioned(tiny_transformer: Path, private: Path, tmp_path: Path) -> None:
    recipe = ensemble_recipe(
        tiny_transformer, private, tmp_path / "run", held_out={"share": 0.5, "by": "user"}
    )
    run = train_ensemble(recipe)
    partition = Partition.load(run.folder / "private" / "partition")
    users = [user for part in range(2) for user in partition.users_in(part)]
    told = json.loads((run.folder / "private" / "training.json").read_text())
    assert len(users) == told["users"] < 35


def test_public_text_gives_a_surrogate_that_says_so(
    tiny_transformer: Path, private: Path, tmp_path: Path
) -> None:
    recipe = ensemble_recipe(tiny_transformer, private, tmp_path / "run", corpus={"public": True})
    assert train_ensemble(recipe).manifest.guarantee["kind"] == "public"


def test_divergence_fails_closed(tiny_transformer: Path, private: Path, tmp_path: Path) -> None:
    for name, way in (("joint", JOINT), ("alone", ALONE)):
        recipe = ensemble_recipe(
            tiny_transformer,
            private,
            tmp_path / name,
            training={"warmup": 0},
            performance={"checkpoint_every": 50},
            **way,
        )
        beyond = recipe.training.model_copy(update={"learning_rate": 1e30})  # more than a recipe takes
        with pytest.raises(TrainingDiverged, match="lower training") as problem:
            train_ensemble(recipe.model_copy(update={"training": beyond}))
        assert "part" not in str(problem.value)  # whose text it was is nobody's business
        assert not (tmp_path / name).exists()
        assert not partial_folder(tmp_path / name).exists()


def test_clipping_sees_one_member_at_a_time() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.zeros(3, 4, 5)), torch.nn.Parameter(torch.zeros(3, 2, 7))]
    gradients = [torch.randn(p.shape, generator=generator) for p in parameters]
    gradients[0][1] *= 100
    gradients[1][2] = gradients[0][2] = 0
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    norms = clip_each_member(parameters, 2.0)
    for member in range(3):
        alone = [torch.nn.Parameter(torch.zeros_like(gradient[member])) for gradient in gradients]
        for parameter, gradient in zip(alone, gradients, strict=True):
            parameter.grad = gradient[member].clone()
        expected = torch.nn.utils.clip_grad_norm_(alone, 2.0)
        torch.testing.assert_close(norms[member], expected)
        for parameter, single in zip(parameters, alone, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad[member], single.grad)


def test_both_ways_start_from_the_same_numbers(tiny_model: Path) -> None:
    stacked = load_public_model(str(tiny_model)).model
    stack = stack_into(stacked, 2, rank=4, alpha=8.0, trunk_layers=1)
    stack.initialise_member(1, torch.Generator().manual_seed(5))
    single = attach(
        load_public_model(str(tiny_model)).model, AdapterSection(rank=4, alpha=8.0, trunk_layers=1)
    )
    start_adapter(single, 5)
    own = {name.replace(".default", ""): parameter for name, parameter in single.named_parameters()}
    for name, tensor in stack.member_state(1).items():
        assert torch.equal(own[name], tensor)


def test_a_file_that_is_no_key_is_one_sentence(tiny_transformer: Path, private: Path, tmp_path: Path) -> None:
    recipe = ensemble_recipe(tiny_transformer, private, tmp_path / "run")
    private.with_name("partition.key").write_text("hello")
    with pytest.raises(InputError, match=r"is not a partition key; give the partition\.key that tacit wrote"):
        train_ensemble(recipe)
    assert not partial_folder(tmp_path / "run").exists()
