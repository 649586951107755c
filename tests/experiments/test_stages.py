"""Stages are done once, kept by what decides them, and never found by anything else."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tacit.errors import InputError
from tacit.experiments import Experiment, Workshop
from tacit.experiments.experiment import Conclusion
from tacit.experiments.stages import Stage, mark_of, text_mark
from tests.tiny import public_sentences


class Worker:
    """Work that counts how often it is done."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, workshop: Workshop) -> Mapping[str, Any]:
        self.times += 1
        return {"times": self.times, "curve": (1.5, 2.5)}


def test_a_stage_is_done_once_and_its_outcome_reads_the_same_ever_after(tmp_path: Path) -> None:
    work = Worker()
    stage = Stage("count", {"seed": 1}, 1.0, work)
    shop = Workshop(tmp_path)
    assert shop.kept(stage) is None
    first = shop.done(stage)
    again = Workshop(tmp_path).done(stage)
    assert first == again
    assert first.outcome == {"times": 1, "curve": [1.5, 2.5]}
    assert work.times == 1


def test_another_key_or_name_is_another_stage(tmp_path: Path) -> None:
    work = Worker()
    shop = Workshop(tmp_path)
    for name, key in (("count", {"seed": 1}), ("count", {"seed": 2}), ("other", {"seed": 1})):
        shop.done(Stage(name, key, 1.0, work))
    assert work.times == 3


def test_keys_count_whatever_their_order() -> None:
    assert mark_of("a", {"x": 1, "y": [2]}) == mark_of("a", {"y": [2], "x": 1})
    assert mark_of("a", {"x": 1}) != mark_of("a", {"x": 1.5})


def test_work_that_fails_keeps_nothing(tmp_path: Path) -> None:
    def broken(_: Workshop) -> Mapping[str, Any]:
        raise RuntimeError("the power failed")

    stage = Stage("count", {}, 1.0, broken)
    with pytest.raises(RuntimeError):
        Workshop(tmp_path).done(stage)
    assert Workshop(tmp_path).kept(stage) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"outcome": {}, "seconds": "long"}'])
def test_a_damaged_stage_is_told_with_its_remedy(tmp_path: Path, content: str) -> None:
    stage = Stage("count", {}, 1.0, Worker())
    shop = Workshop(tmp_path)
    shop.done(stage)
    (kept,) = (tmp_path / "stages").iterdir()
    kept.write_text(content)
    with pytest.raises(InputError, match="remove it, and its stage is done again"):
        shop.done(stage)


def test_missing_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data"):
        Workshop(tmp_path).text("wikitext-2/train.txt")
    with pytest.raises(InputError, match=r"train\.txt is missing"):
        Workshop(tmp_path, tmp_path).text("wikitext-2/train.txt")


def test_a_made_text_is_made_once(tmp_path: Path) -> None:
    work: list[str] = []

    def make() -> str:
        work.append("made")
        return "some text\n"

    shop = Workshop(tmp_path)
    first = shop.made_text("a.jsonl", {"users": 1}, make)
    assert shop.made_text("a.jsonl", {"users": 1}, make) == first
    assert first.read_text() == "some text\n"
    assert shop.made_text("a.jsonl", {"users": 2}, make) != first
    assert len(work) == 2


def test_a_run_is_trained_once_and_known_by_its_text(tmp_path: Path, tiny_transformer: Path) -> None:
    rows = [
        {"user": f"u{user}", "text": sentence}
        for user in range(6)
        for sentence in public_sentences(2, seed=user)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("one.jsonl", "same.jsonl"):
        (tmp_path / name).write_text(text)
    (tmp_path / "longer.jsonl").write_text(text + json.dumps(rows[0]) + "\n")
    shop = Workshop(tmp_path / "work")

    def run(name: str) -> Path:
        recipe = {
            "model": {"name": str(tiny_transformer)},
            "corpus": {"path": str(tmp_path / name), "user": "user", "text": "text"},
            "training": {"max_steps": 1, "block_size": 32, "batch_size": 2, "seed": 1},
        }
        return shop.run("plain", recipe).folder

    first = run("one.jsonl")
    made = (first / "run.json").stat().st_mtime_ns
    assert run("same.jsonl") == first, "the same text elsewhere is the same text"
    assert (first / "run.json").stat().st_mtime_ns == made
    assert run("longer.jsonl") != first
    assert text_mark(tmp_path / "one.jsonl") == text_mark(tmp_path / "same.jsonl")


def test_what_another_process_is_at_is_left_alone_until_it_is_done(tmp_path: Path) -> None:
    work = Worker()
    stage = Stage("count", {"seed": 1}, 1.0, work)
    shop = Workshop(tmp_path)
    with hold(tmp_path, stage):
        assert shop.done_if_free(stage) is None
    assert work.times == 0
    assert shop.done_if_free(stage) == shop.done(stage)
    assert work.times == 1


def test_an_experiment_does_first_what_nobody_is_at(tmp_path: Path) -> None:
    """The second of three stages is held by somebody who lets go when the third is done."""
    order: list[str] = []
    held = contextlib.ExitStack()

    def work(name: str) -> Callable[[Workshop], Mapping[str, Any]]:
        def worked(_: Workshop) -> Mapping[str, Any]:
            order.append(name)
            if name == "third":
                held.close()
            return {}

        return worked

    stages = [Stage(name, {}, 1.0, work(name)) for name in ("first", "second", "third")]
    experiment = Experiment(
        name="some",
        title="Some",
        shows="nothing",
        settings=lambda _: {},
        stages=lambda *_: stages,
        conclude=lambda *_: Conclusion((), (), (), ()),
    )
    held.enter_context(hold(tmp_path, stages[1]))
    result = experiment.run(Workshop(tmp_path), "tiny")
    assert order == ["first", "third", "second"]
    assert [stage.name for stage in result.provenance.stages] == ["first", "second", "third"]


@contextlib.contextmanager
def hold(folder: Path, stage: Stage) -> Iterator[None]:
    """As another process would."""
    (folder / "locks").mkdir(exist_ok=True)
    with (folder / "locks" / f"{stage.label}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def test_a_made_folder_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    shop = Workshop(tmp_path)

    def broken(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("the power failed")

    with pytest.raises(RuntimeError):
        shop.made_folder("ground", {}, broken)
    made = shop.made_folder("ground", {}, lambda folder: (folder / "whole").mkdir())
    assert [one.name for one in made.iterdir()] == ["whole"]
    assert shop.made_folder("ground", {}, broken) == made
