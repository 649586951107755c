"""The Run directory: damage is one sentence, one process at a time, a kill while finishing costs nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InputError, OutputExists, Tampered
from tacit.runs import (
    EnsembleRecord,
    PublicModelRecord,
    Run,
    RunBuilder,
    abandon_unfinished,
    partial_folder,
)

RECIPE: dict[str, Any] = {"model": {"name": "m"}, "performance": {"threads": 1}}
MODEL = PublicModelRecord(
    name="m",
    revision=None,
    fingerprint="f",
    tokenizer_fingerprint="t",
    family="lstm",
    start_token=0,
    vocabulary="public",
)


def finished(output: Path) -> Run:
    builder = RunBuilder.begin(output, RECIPE)
    try:
        fill(builder)
        return finish(builder)
    finally:
        builder.release()


def fill(builder: RunBuilder) -> None:
    (builder.folder / "adapter").mkdir()
    (builder.folder / "adapter" / "adapter_model.safetensors").write_bytes(b"weights")
    (builder.new_work() / "text").write_text("private")
    (builder.checkpoint / "step-1").mkdir(parents=True)


def finish(builder: RunBuilder) -> Run:
    return builder.finish(
        method="finetune",
        recipe=RECIPE,
        public_model=MODEL,
        weights="adapter",
        guarantee={"statement": "none"},
        corpus_fingerprint="c",
        seeded=True,
    )


def test_a_finished_run_holds_what_it_should_and_nothing_of_the_work(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.check_corpus("c")
    run.verify_weights()
    inside = sorted(str(path.relative_to(run.folder)) for path in run.folder.rglob("*") if path.is_file())
    assert inside == [
        "adapter/adapter_model.safetensors",
        "privacy.json",
        "private/begun.json",
        "private/data.json",
        "private/weights_sha256.json",
        "run.json",
    ]
    assert run.manifest.weights_sha256 is None  # a hash confirms a guess; these weights may not be released
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


DAMAGE: dict[str, tuple[Any, str]] = {
    "no recipe": ({"recipe": None}, "recipe"),
    "a recipe of another type": ({"recipe": [1]}, "recipe"),
    "no statement": ({"guarantee": {}}, "guarantee.statement"),
    "a statement of another type": ({"guarantee": {"statement": 3}}, "guarantee.statement"),
    "another format": ({"format": 2}, "format"),
    "a key too many": ({"more": 1}, "more"),
    "hashes of another type": ({"weights_sha256": {"a": 1}}, "weights_sha256.a"),
    "members that nobody counted": ({"weights": "members"}, "ensemble"),
    "an ensemble of one adapter": ({"ensemble": {"parts": 2, "halves": True}}, "ensemble"),
    "an unknown family": ({"public_model": MODEL.model_dump() | {"family": "x"}}, "public_model.family"),
}


@pytest.mark.parametrize(("change", "key"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_manifest_is_one_sentence(tmp_path: Path, change: dict[str, Any], key: str) -> None:
    path = finished(tmp_path / "run").folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError) as problem:
        Run.open(tmp_path / "run")
    assert f"cannot be read by this version ({key})" in str(problem.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]"], ids=repr)
def test_a_manifest_that_is_no_json_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (finished(tmp_path / "run").folder / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=r"cannot be read by this version \([^)]*\); train again") as problem:
        Run.open(tmp_path / "run")
    assert "\n" not in str(problem.value)
    assert "pydantic" not in str(problem.value)


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"{}"], ids=repr)
def test_damaged_data_are_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    run = finished(tmp_path / "run")
    path = run.folder / "private" / "data.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="--corpus"):
        run.check_corpus("c")


def test_damaged_metrics_are_one_sentence_and_are_not_overwritten(tmp_path: Path) -> None:
    run = finished(tmp_path / "run")
    run.record_metrics("one", {"x": 1})
    run.record_metrics("two", {"x": 2})
    assert run.metrics() == {"one": {"x": 1}, "two": {"x": 2}}
    (run.folder / "metrics.json").write_text('{"one": ')
    with pytest.raises(InputError, match=r"metrics.json is damaged.*remove it and measure again"):
        run.record_metrics("two", {"x": 3})
    assert (run.folder / "metrics.json").read_text() == '{"one": '


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"recipe": 1, "created": 2}'])
def test_a_damaged_beginning_is_one_sentence(tmp_path: Path, content: str) -> None:
    RunBuilder.begin(tmp_path / "run", RECIPE).release()
    (partial_folder(tmp_path / "run") / "private" / "begun.json").write_text(content)
    with pytest.raises(InputError, match=r"begun.json is damaged.*remove the folder"):
        RunBuilder.begin(tmp_path / "run", RECIPE, resume=True)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_damaged_pins_are_one_sentence(tmp_path: Path, content: str) -> None:
    builder = RunBuilder.begin(tmp_path / "run", RECIPE)
    builder.pin(corpus="c")
    builder.pin(corpus="c")
    (builder.private / "pinned.json").write_text(content)
    with pytest.raises(InputError, match="begin again"):
        builder.pin(corpus="c")
    builder.release()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = RunBuilder.begin(tmp_path / "run", RECIPE)
    other = f"""
import sys
from pathlib import Path
from tacit.errors import InputError
from tacit.runs import RunBuilder
try:
    RunBuilder.begin(Path({str(tmp_path / "run")!r}), {RECIPE!r}, resume=True)
except InputError as problem:
    sys.exit(str(problem))
"""
    second = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "is being trained by another process" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    first.release()
    # Whoever holds the lock when its process ends gives it back, whatever the end.
    assert subprocess.run([sys.executable, "-c", other], check=False).returncode == 0
    RunBuilder.begin(tmp_path / "run", RECIPE, resume=True).release()


def test_a_kill_while_the_run_finishes_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    builder = RunBuilder.begin(tmp_path / "run", RECIPE)
    fill(builder)
    with monkeypatch.context() as patch:
        patch.setattr("tacit.runs.name_folder", kill)
        with pytest.raises(Killed):
            finish(builder)
    builder.release()
    again = RunBuilder.begin(tmp_path / "run", RECIPE, resume=True)
    assert again.is_whole
    assert again.complete().folder == tmp_path / "run"
    again.release()
    Run.open(tmp_path / "run").verify_weights()
    assert not partial_folder(tmp_path / "run").exists()


def test_a_whole_run_whose_weights_were_lost_is_not_given_its_name(tmp_path: Path) -> None:
    whole = finished(tmp_path / "run").folder
    whole.rename(partial_folder(tmp_path / "run"))
    builder = RunBuilder.begin(tmp_path / "run", RECIPE, resume=True)
    (builder.folder / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(Tampered, match="do not match the hashes"):
        builder.complete()
    builder.release()
    assert not (tmp_path / "run").exists()


def test_what_another_process_finished_meanwhile_is_kept(tmp_path: Path) -> None:
    builder = RunBuilder.begin(tmp_path / "run", RECIPE)
    fill(builder)
    (tmp_path / "run").mkdir()
    with pytest.raises(OutputExists):
        finish(builder)
    builder.release()
    assert not list((tmp_path / "run").iterdir())


def test_the_members_of_an_ensemble_have_names() -> None:
    assert EnsembleRecord(parts=2, halves=False).names == ["part-000", "part-001"]
    assert EnsembleRecord(parts=1, halves=True).names == ["part-000-a", "part-000-b"]


def test_a_run_of_members_is_hashed_file_by_file(tmp_path: Path) -> None:
    builder = RunBuilder.begin(tmp_path / "run", RECIPE)
    record = EnsembleRecord(parts=1, halves=True)
    for name in record.names:
        (builder.members / name).mkdir(parents=True)
        (builder.members / name / "adapter_model.safetensors").write_bytes(name.encode())
    run = builder.finish(
        method="submix",
        recipe=RECIPE,
        public_model=MODEL,
        weights="members",
        ensemble=record,
        guarantee={"statement": "none"},
        corpus_fingerprint="c",
        seeded=True,
    )
    builder.release()
    assert run.weights == tmp_path / "run" / "members"
    assert sorted(run.weights_sha256()) == [f"{n}/adapter_model.safetensors" for n in record.names]
    first, second = (run.weights / name / "adapter_model.safetensors" for name in record.names)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(Tampered):  # two members that changed places
        run.verify_weights()
    hashes = run.folder / "private" / "weights_sha256.json"
    swapped = json.loads(hashes.read_text())
    one, two = sorted(swapped)
    hashes.write_text(json.dumps({one: swapped[two], two: swapped[one]}))
    with pytest.raises(Tampered, match="does not belong to"):  # and their hashes with them
        run.verify_weights()
    (run.folder / "private" / "data.json").write_text("{}")
    with pytest.raises(Tampered, match="has no key"):
        run.verify_weights()


def test_what_can_be_resumed_from_is_not_abandoned(tmp_path: Path) -> None:
    for kept in (
        "private/checkpoint/group-0000/step-1/state",
        "members/part-000-a/adapter_config.json",
        None,
    ):
        builder = RunBuilder.begin(tmp_path / "run", RECIPE)
        (builder.checkpoint / "group-0000").mkdir(parents=True)  # an empty folder is nothing to resume from
        if kept:
            (builder.folder / kept).parent.mkdir(parents=True)
            (builder.folder / kept).write_text("x")
        builder.abandon()
        builder.release()
        assert builder.folder.exists() == (kept is not None)
        shutil.rmtree(builder.folder, ignore_errors=True)


def test_a_whole_run_is_not_abandoned(tmp_path: Path) -> None:
    """It may have neither checkpoint nor members, and only lack its name."""
    builder = RunBuilder.begin(tmp_path / "run", RECIPE)
    fill(builder)
    (tmp_path / "run").mkdir()
    with pytest.raises(OutputExists):
        finish(builder)
    builder.abandon()
    builder.release()
    (tmp_path / "run").rmdir()
    again = RunBuilder.begin(tmp_path / "run", RECIPE, resume=True)
    again.complete().verify_weights()
    again.release()


def test_what_an_interrupted_process_has_left_is_abandoned_unless_it_can_be_resumed(tmp_path: Path) -> None:
    output = tmp_path / "run"
    assert not abandon_unfinished(output)
    builder = RunBuilder.begin(output, RECIPE)
    with pytest.raises(InputError, match="is being trained by another process"):
        abandon_unfinished(output)
    builder.release()
    assert not abandon_unfinished(output)
    assert not partial_folder(output).exists()
    builder = RunBuilder.begin(output, RECIPE)
    fill(builder)
    (builder.checkpoint / "step-1" / "state.json").write_text("{}")
    builder.release()
    assert abandon_unfinished(output)
    partial_folder(output).rename(tmp_path / "elsewhere")
    partial_folder(output).mkdir()  # not a run of ours
    assert abandon_unfinished(output)
