"""`method: crt`: Algorithm 1, the paper's rules (A.6) that concern training, and the certificate."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tacit.corpus.screened_corpus import is_screened, point_flags
from tacit.corpus.screening import MASK, RawDocument, differing_points
from tacit.corpus.screening.binding import report_path
from tacit.errors import CorpusError, InputError, RecipeError, Tampered
from tacit.evaluation.report import evaluate_run
from tacit.models.trained import load_trained
from tacit.privacy import Certificate, DpSgdProcess, MissRate, certify, dpsgd_curve
from tacit.progress import Silent
from tacit.recipes import ConfidentialitySection, CorpusSection
from tacit.runs import Run
from tacit.training import finetune, train_confidentially, train_ensemble, train_privately
from tacit.training.certifying import group_of_all, tell_of_repeated_secrets
from tacit.training.crt import flags_of
from tacit.training.dpsgd import prepare_unpacked, privacy_of
from tacit.training.finetune import task_for
from tacit.training.next_token import NextTokenTask
from tacit.training.private_steps import PrivateTrainer
from tacit.training.records import examples_of
from tests.tiny import public_sentences
from tests.training.private_runs import (
    KillAt,
    Killed,
    Listener,
    forge,
    private_recipe,
    screen_settings,
    screened,
    write_documents,
)

Documents = list[tuple[str, str]]


def dialogues(number: str = "4711") -> Documents:
    """Public sentences, one caught secret (a number), suspicious sentences, and duplicates of one another."""
    said: Documents = [(f"u{i % 6}", public_sentences(1, 50 + i)[0]) for i in range(12)]
    said += [(f"u{i % 6}", f"My code is word{i}.") for i in range(6)]
    said += [("u1", f"My number is {number}, call me.")]
    return [*said, ("u2", "Thank you."), ("u3", "Thank you."), ("u4", "Order 99881 came.")]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return screened(tmp_path / "screened.jsonl", dialogues())


def examples_in(corpus: Path, model: Path, tmp_path: Path) -> list[list[list[int]]]:
    """Of every private example the token ids of its pieces."""
    recipe = private_recipe(model, corpus, tmp_path / "run", "crt")
    prepared = prepare_unpacked(recipe, tmp_path, Silent())
    task = task_for(prepared, fused=False)
    flags = flags_of(prepared)
    examples = examples_of(prepared.rows, privacy_of(recipe), task.make_batch, chosen=flags.private)
    return [[prepared.encoded.piece(int(row)).tolist() for row in own] for own in examples.rows]


class Watch:
    """Notes which documents each step saw, and of which kind it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, set[int]]] = []
        make_batch, step = NextTokenTask.make_batch, PrivateTrainer.step
        watch = self
        self._kind = "public"

        def batch(task: NextTokenTask, rows: Any) -> Any:
            made = make_batch(task, rows)
            documents = task._rows.corpus.piece_document[made.pieces[made.pieces >= 0].numpy()]
            watch.steps.append((watch._kind, set(documents.tolist())))
            return made

        def private_step(trainer: PrivateTrainer) -> Any:
            watch._kind = "private"
            watch.steps.append(("step", set()))
            try:
                return step(trainer)
            finally:
                watch._kind = "public"

        monkeypatch.setattr(NextTokenTask, "make_batch", batch)
        monkeypatch.setattr(PrivateTrainer, "step", private_step)


def test_every_epoch_is_a_public_pass_and_then_the_expected_private_steps(
    tiny_model: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Algorithm 1, and rule 6: a step is wholly public or wholly private."""
    watch = Watch(monkeypatch)
    recipe = private_recipe(
        tiny_model,
        corpus,
        tmp_path / "run",
        "crt",
        training={"batch_size": 4},
        public_phase={"batch_size": 5},
    )
    train_confidentially(recipe)
    private = set(np.flatnonzero(point_flags(corpus).private).tolist())
    public = set(range(len(point_flags(corpus).private))) - private
    assert len(private) == 9  # six suspicious ones, two with a number, and a duplicate
    assert len(public) == 13
    for kind, seen in watch.steps:
        assert seen <= (public if kind == "public" else private)
    order = ["private" if kind == "step" else "public" for kind, _ in watch.steps if kind != "private"]
    # 13 points in batches of 5, then 9 points in expected batches of 4: 3 steps, and 5 after two epochs.
    assert order == ["public"] * 3 + ["private"] * 3 + ["public"] * 3 + ["private"] * 2
    passes = [seen for kind, seen in watch.steps if kind == "public"]
    for one in (passes[:3], passes[3:]):
        assert sorted(point for seen in one for point in seen) == sorted(public)


def test_a_caught_secret_that_occurs_once_changes_nothing(
    tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    """Rule 1: compared with the redacted corpus, training is bit-identical."""
    documents = [RawDocument(user, text) for user, text in dialogues()]
    assert differing_points(documents, ["4711"], screen_settings()) == 0
    runs = []
    for number, secret in enumerate(["4711", "80532201"]):
        file = screened(tmp_path / f"{number}.jsonl", dialogues(secret))
        runs.append(train_confidentially(private_recipe(tiny_model, file, tmp_path / f"run{number}", "crt")))
    assert runs[0].weights_sha256() == runs[1].weights_sha256()
    assert runs[0].manifest.guarantee == runs[1].manifest.guarantee
    missed = screened(tmp_path / "missed.jsonl", dialogues("forty-seven eleven"))
    other = train_confidentially(private_recipe(tiny_model, missed, tmp_path / "other", "crt"))
    assert other.weights_sha256() != runs[0].weights_sha256()


def test_templates_that_merge_when_masked_are_counted(tiny_transformer: Path, tmp_path: Path) -> None:
    """Both secrets are caught, and still one data point differs: u is not the number of missed secrets."""
    said: Documents = [*dialogues(), ("u5", "My number is 60042, call me.")]
    u = differing_points([RawDocument(*one) for one in said], ["4711", "60042"], screen_settings())
    assert u == 1
    file = screened(tmp_path / "s.jsonl", said)
    recipe = private_recipe(
        tiny_transformer, file, tmp_path / "run", "crt", confidentiality={"differing_points": u, "gamma": 0.0}
    )
    run = train_confidentially(recipe)
    certificate = whole_certificate(run)
    assert certificate.uniform is not None
    assert certificate.uniform.points == 1
    assert certificate.uniform.direct == certificate.training
    assert published_certificate(run).uniform is None


def test_a_missed_secret_changes_one_example_and_moves_none(tiny_transformer: Path, tmp_path: Path) -> None:
    """Rules 2 and 3: tokens and boundaries come first, and a data point is one example, however long."""
    long = " ".join(f"word{i}" for i in range(30))
    worlds = []
    for number, secret in enumerate([f"the code {long}", "the code x"]):
        said = dialogues()
        said.insert(3, ("u1", f"Tell nobody {secret}, please."))
        worlds.append(examples_in(screened(tmp_path / f"{number}.jsonl", said), tiny_transformer, tmp_path))
    first, second = worlds
    assert len(first) == len(second)
    differing = [place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
    assert len(differing) == 1
    assert len(first[differing[0]]) > 1  # several rows, and one example
    assert len(second[differing[0]]) == 1


def test_duplicates_and_secrets_are_one_mask_and_a_bare_one_teaches_nothing(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    """Rule 4: one token; and a bare mask is an example without rows, which still counts."""
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run", "crt")
    prepared = prepare_unpacked(recipe, tmp_path, Silent())
    mask = prepared.public.tokenizer.mask_token
    flags = flags_of(prepared)
    (bare,) = np.flatnonzero(flags.bare)
    assert prepared.encoded.piece(
        int(np.flatnonzero(prepared.encoded.piece_document == bare)[0])
    ).tolist() == [mask]
    masks = sum(
        int(np.count_nonzero(prepared.encoded.piece(p) == mask)) for p in range(len(prepared.encoded))
    )
    assert masks == 3  # two secrets and a duplicate
    assert int((prepared.encoded.tokens == mask).sum()) == masks
    found = examples_in(corpus, tiny_transformer, tmp_path)
    assert [example for example in found if not example] == [[]]
    assert len(found) == int(flags.private.sum())
    # The mask is context: it has no label, and neither has the end of a point that is nothing else.
    assert prepared.encoded.labels.sum() == len(prepared.encoded.tokens) - masks


def test_a_secret_in_more_points_than_the_promise_is_about_is_told_to_the_operator(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    group = {"secrets": 3, "differing_points": 2, "differing_public_points": 0, "most_points_of_one": 4}
    forge(corpus, group=group)
    for stated, is_told in ((1, True), (4, False)):
        recipe = private_recipe(
            tiny_transformer, corpus, tmp_path / "run", "crt", confidentiality={"secret_points": stated}
        )
        prepared = prepare_unpacked(recipe, tmp_path, Silent())
        listener = Listener()
        tell_of_repeated_secrets(prepared, listener)
        assert [
            one.startswith("a secret of the screening's list stands in 4") for one in listener.remarks
        ] == ([True] if is_told else [])
        prepared.corpus.whole.close()


def test_a_masked_point_that_claims_to_be_public_is_refused(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    """Rule 5: whatever has a mask is private."""
    lines = [json.loads(line) for line in corpus.read_text().splitlines()]
    place = next(number for number, line in enumerate(lines) if MASK in line["text"])
    lines[place]["private"] = False
    forge(corpus, lines)
    with pytest.raises(CorpusError, match=rf"line {place + 1}: has a mask and is not private"):
        train_confidentially(private_recipe(tiny_transformer, corpus, tmp_path / "run", "crt"))
    assert not (tmp_path / "run.partial").exists()


def test_text_that_was_never_screened_is_refused(tiny_transformer: Path, tmp_path: Path) -> None:
    raw = write_documents(tmp_path / "raw.jsonl", dialogues())
    with pytest.raises(
        CorpusError, match="is not a screened corpus, and method 'crt' needs one; make it with"
    ):
        train_confidentially(private_recipe(tiny_transformer, raw, tmp_path / "run", "crt"))


def whole_certificate(run: Run) -> Certificate:
    path = run.folder / "private" / "certificate.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return Certificate.from_json(json.loads(path.read_text()))


def published_certificate(run: Run) -> Certificate:
    return Certificate.from_json(json.loads((run.folder / "certificate.json").read_text()))


def test_the_certificate_is_of_the_steps_that_were_taken(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = private_recipe(
        tiny_transformer,
        corpus,
        tmp_path / "run",
        "crt",
        training={"seed": None},
        confidentiality={"gamma": 0.1, "delta2": 0.0},
    )
    run = train_confidentially(recipe)
    process = DpSgdProcess.from_json(
        json.loads((run.folder / "privacy.json").read_text())["dpsgd"]["process"]
    )
    assert process == DpSgdProcess(6 / 9, 1.0, 3)  # 9 private points, expected batches of 6, two epochs
    assert json.loads((run.folder / "private" / "training.json").read_text())["private_steps"] == 3
    told = whole_certificate(run)
    assumed = MissRate.assumed
    same = certify(
        process,
        delta=1e-4,
        gamma=assumed(0.1),
        delta2=assumed(0.0),
        private_points=9,
        bare_points=1,
    )
    assert told.to_json() == same.to_json()
    assert told.training.epsilon == dpsgd_curve(process, "replace-one").epsilon_at(1e-4)
    assert told.private_part is not None
    assert (told.private_part.points, told.private_part.bare) == (9, 1)
    assert told.private_part.without_bare > told.training.epsilon  # type: ignore[operator]
    # What is not the same with and without a secret is not published.
    public = published_certificate(run)
    assert public.private_part is None
    assert public.random_secret == told.random_secret
    assert run.manifest.guarantee["kind"] == "confidentiality"
    assert run.manifest.guarantee["epsilon"] == told.guarantee.epsilon
    assert run.manifest.weights_sha256 is not None


def test_without_calibration_every_secret_may_have_been_missed(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    run = train_confidentially(
        private_recipe(tiny_transformer, corpus, tmp_path / "run", "crt", training={"seed": None})
    )
    told = whole_certificate(run)
    assert (told.gamma.upper, told.delta2.upper) == (1.0, 1.0)
    assert "not measured" in told.gamma.source
    # Public text may hold a secret that both policies missed: nothing is promised, and it says so.
    assert run.manifest.guarantee["epsilon"] == "inf"
    assert run.manifest.weights_sha256 is None
    everything = screened(tmp_path / "all.jsonl", dialogues(), conservative=False)
    other = train_confidentially(
        private_recipe(tiny_transformer, everything, tmp_path / "all", "crt", training={"seed": None})
    )
    certificate = whole_certificate(other)
    assert certificate.delta2.upper == 0
    assert certificate.random_secret.epsilon == pytest.approx(certificate.training.epsilon, rel=1e-9)
    assert other.manifest.guarantee["epsilon"] == certificate.missed.epsilon


def test_miss_rates_come_from_a_calibration(tiny_transformer: Path, corpus: Path, tmp_path: Path) -> None:
    kinds = ("CODE", "NAME")
    rates = {
        "gamma": MissRate.measured(3, 200, kinds=kinds),
        "delta2": MissRate.measured(0, 2000, kinds=kinds),
    }
    path = tmp_path / "calibration.json"
    content: dict[str, Any] = {
        name: {"misses": rate.misses, "n": rate.sample, "confidence": rate.confidence, "upper": rate.upper}
        for name, rate in rates.items()
    }
    report = json.loads(report_path(corpus).read_text())
    policy, split = report["policy"], report["split"]
    thresholds = {name: policy[name] for name in ("redact", "conservative")}
    recall: dict[str, dict[str, Any]] = {name: {} for name in ("ALL", *kinds)}
    content |= {"policy": policy, "split": split, "thresholds": thresholds, "recall": recall}
    path.write_text(json.dumps(content))
    changes: dict[str, Any] = {"confidentiality": {"calibration": str(path)}}
    # What the screening counted is its report's; of public points no epsilon is one.
    group = {"secrets": 3, "occurrences": 4, "differing_points": 2, "differing_public_points": 1}
    forge(corpus, group=group, outside_the_proof=["near-duplicates"])
    run = train_confidentially(private_recipe(tiny_transformer, corpus, tmp_path / "run", "crt", **changes))
    told = whole_certificate(run)
    assert (told.gamma, told.delta2) == (rates["gamma"], rates["delta2"])
    assert told.confidence == pytest.approx(0.9)
    assert "3 of 200 labelled secrets of the kinds CODE, NAME missed" in str(told)
    assert "the miss rates, as far as the labelled sample is of this text" in str(told)
    assert told.uniform is not None
    assert (told.uniform.points, told.uniform.direct.epsilon) == (2, float("inf"))
    assert "near-duplicates, which the proof does not cover" in told.outside
    forge(corpus, policy=policy | {"redact": 0.9})
    with pytest.raises(
        RecipeError, match="was measured with another policy than the corpus was screened with"
    ):
        train_confidentially(private_recipe(tiny_transformer, corpus, tmp_path / "r2", "crt", **changes))
    forge(corpus, policy=policy)
    path.write_text(json.dumps({"policy": policy, "split": split}))
    with pytest.raises(RecipeError, match="is no file of tacit corpus calibrate; make it again"):
        train_confidentially(private_recipe(tiny_transformer, corpus, tmp_path / "r2", "crt", **changes))


def test_a_file_that_was_edited_or_lost_its_report_is_refused(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    """Even where the edit is plausible: a private point made public, and nothing masked in it."""
    content = corpus.read_bytes()
    lines = [json.loads(line) for line in corpus.read_text().splitlines()]
    place = next(n for n, line in enumerate(lines) if line["private"] and not line["masked"])
    lines[place]["private"] = False
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run", "crt")
    with pytest.raises(
        Tampered, match=r"is not as its screening wrote it: screened\.jsonl\.report\.json has"
    ):
        train_confidentially(recipe)
    for other in (
        private_recipe(tiny_transformer, corpus, tmp_path / "run", "finetune", privacy=None),
        private_recipe(tiny_transformer, corpus, tmp_path / "run"),
    ):
        with pytest.raises(Tampered, match="is not as its screening wrote it"):
            (finetune if other.method == "finetune" else train_privately)(other)
    corpus.write_bytes(content)
    forge(corpus, counts=json.loads(report_path(corpus).read_text())["counts"] | {"private": 1})
    with pytest.raises(Tampered, match="counts other data points"):
        train_confidentially(recipe)
    report_path(corpus).unlink()
    with pytest.raises(CorpusError, match="is missing, and method 'crt' promises what the screening did"):
        train_confidentially(recipe)
    # Nothing is promised about the screening there.
    finetune(private_recipe(tiny_transformer, corpus, tmp_path / "plain", "finetune", privacy=None))


def test_counts_of_private_text_are_in_no_public_file(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    group = {"secrets": 3, "occurrences": 4, "differing_points": 2, "differing_public_points": 1}
    given = {"gamma": 0.1, "delta2": 0.001, "differing_points": 3, "groups": {"Alice": 2}, "secret_points": 2}
    public = []
    for number, (counted, section) in enumerate([(group, given), (None, given | {"groups": None})]):
        forge(corpus, group=counted)
        section = section if counted is not None else section | {"differing_points": None}
        recipe = private_recipe(
            tiny_transformer, corpus, tmp_path / f"run{number}", "crt", confidentiality=section
        )
        run = train_confidentially(recipe)
        public.append(
            [
                json.loads((run.folder / "certificate.json").read_text()),
                run.manifest.guarantee,
                run.manifest.recipe["confidentiality"],
            ]
        )
        assert "Alice" not in "".join(file.read_text() for file in run.folder.glob("*.json"))
        assert run.manifest.recipe["confidentiality"]["secret_points"] == 2
    # With and without what was counted, what may be published is the same.
    assert public[0] == public[1]
    told = whole_certificate(Run.open(tmp_path / "run0"))
    assert [(one.name, one.points) for one in told.groups] == [("Alice", 2)]
    assert told.uniform is not None
    # A stated u does not undo that the screening counted public points among them.
    assert (told.uniform.points, told.uniform.direct.epsilon) == (3, float("inf"))
    assert "Alice: 2 data points differ" in str(told)
    assert str(told).count("It was assumed that none of these points is public.") == 1
    assert told.missed.epsilon == dpsgd_curve(told.process, "replace-one", group=2).epsilon_at(1e-4)
    kept = json.loads((tmp_path / "run0" / "private" / "recipe.json").read_text())
    assert kept["confidentiality"]["groups"] == {"Alice": 2}


@pytest.mark.parametrize(
    ("stated", "counted", "told"),
    [
        (None, None, (None, None)),
        (5, None, (5, None)),  # nobody counted how many of the five are public
        (None, (3, 0), (3, 0)),
        (3, (3, 0), (3, 0)),
        (5, (3, 0), (5, None)),  # of other secrets
        (None, (3, 2), (3, 2)),
        (5, (3, 2), (5, 2)),
    ],
)
def test_a_stated_group_does_not_undo_what_was_counted_in_public(
    stated: int | None, counted: tuple[int, int] | None, told: tuple[int | None, int | None]
) -> None:
    names = ("differing_points", "differing_public_points")
    report = {"group": None if counted is None else dict(zip(names, counted, strict=True))}
    assert group_of_all(ConfidentialitySection(differing_points=stated), report) == told


def test_that_everything_is_private_is_read_from_the_policy(tiny_transformer: Path, tmp_path: Path) -> None:
    """That no point happened to be public says nothing: with a pi_c, a secret could have been in one."""
    said: Documents = [("a", "My code is x."), ("b", "My number is 4711."), ("c", "The code is y.")]
    told = []
    for conservative in (True, False):
        file = screened(tmp_path / f"{conservative}.jsonl", said, conservative=conservative)
        assert point_flags(file).private.all()
        run = train_confidentially(
            private_recipe(tiny_transformer, file, tmp_path / f"run-{conservative}", "crt")
        )
        told.append(whole_certificate(run))
    assert (told[0].delta2.upper, told[0].unprotected) == (1.0, True)
    assert (told[1].delta2.upper, told[1].unprotected) == (0.0, False)


@pytest.mark.parametrize(
    ("said", "conservative", "remark"),
    [
        (
            [("a", "the baker finds three lamps."), ("b", "a sailor sells the letters.")],
            True,
            "no data point is",
        ),
        (
            [("a", "the baker finds three lamps."), ("b", "My code is x.")],
            False,
            "every data point is private",
        ),
    ],
)
def test_either_part_may_be_empty(
    tiny_transformer: Path, tmp_path: Path, said: Documents, conservative: bool, remark: str
) -> None:
    file = screened(tmp_path / "s.jsonl", said, conservative=conservative)
    listener = Listener()
    run = train_confidentially(
        private_recipe(tiny_transformer, file, tmp_path / "run", "crt"), progress=listener
    )
    assert any(told.startswith(remark) for told in listener.remarks)
    told = json.loads((run.folder / "private" / "training.json").read_text())
    assert (told["private_steps"] > 0) != conservative
    assert (told["public_steps"] > 0) == conservative
    if conservative:
        assert whole_certificate(run).training.epsilon == 0


@pytest.mark.parametrize("state", ["separate", "shared"])
@pytest.mark.parametrize("step", [2, 5])
def test_a_killed_run_resumes_to_the_same_weights_and_certificate(
    tiny_lstm: Path, corpus: Path, tmp_path: Path, state: str, step: int
) -> None:
    changes: dict[str, Any] = {
        "public_phase": {"optimiser_state": state, "batch_size": 4},
        "performance": {"checkpoint_every": 2},
    }
    whole = train_confidentially(private_recipe(tiny_lstm, corpus, tmp_path / "whole", "crt", **changes))
    recipe = private_recipe(tiny_lstm, corpus, tmp_path / "killed", "crt", **changes)
    with pytest.raises(Killed):
        train_confidentially(recipe, progress=KillAt(step))
    torch.manual_seed(999)
    resumed = train_confidentially(recipe, resume=True)
    assert resumed.weights_sha256() == whole.weights_sha256()
    assert whole_certificate(resumed).to_json() == whole_certificate(whole).to_json()
    # What the steps saw is that of all of them, not of the last process.
    seen = [json.loads((run.folder / "private" / "training.json").read_text()) for run in (whole, resumed)]
    assert seen[0] == seen[1]
    assert seen[0]["public_steps"] > 0


def test_other_private_points_between_kill_and_resume_are_refused(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = private_recipe(tiny_transformer, corpus, tmp_path / "run", "crt")
    with pytest.raises(Killed):
        train_confidentially(recipe, progress=KillAt(4))
    lines = [json.loads(line) | {"private": True} for line in corpus.read_text().splitlines()]
    forge(corpus, lines)
    with pytest.raises(InputError, match="The private data points has changed"):
        train_confidentially(recipe, resume=True)


def test_separate_states_are_separate(tiny_transformer: Path, corpus: Path, tmp_path: Path) -> None:
    weights = []
    for state in ("separate", "shared"):
        changes = {"public_phase": {"optimiser_state": state}}
        run = train_confidentially(
            private_recipe(tiny_transformer, corpus, tmp_path / state, "crt", **changes)
        )
        weights.append(load_file(run.weights / "adapter_model.safetensors"))
    assert any(not torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.parametrize("adapter", [{"kind": "lora"}, {"kind": "full"}], ids=["lora", "full"])
def test_masked_runs_load_in_tacit_and_in_plain_libraries(
    tiny_model: Path, corpus: Path, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {"adapter": adapter, "held_out": {"share": 0.3}}
    run = train_confidentially(private_recipe(tiny_model, corpus, tmp_path / "run", "crt", **changes))
    trained = load_trained(run)
    tokenizer = AutoTokenizer.from_pretrained(run.weights)
    mask = tokenizer.convert_tokens_to_ids(MASK)
    assert trained.public.tokenizer.mask_token == mask
    ids = torch.tensor([[0, 7, 9, 33]])
    ours = trained.model(input_ids=ids).logits
    if adapter["kind"] == "full":
        plain = AutoModelForCausalLM.from_pretrained(run.weights).eval()
        torch.testing.assert_close(plain(input_ids=ids).logits, ours, rtol=0, atol=1e-5)
        plain(input_ids=torch.tensor([[0, mask]]))
    else:
        # The adapter alone, on the public model as it is: the same logits, and no mask.
        base = AutoModelForCausalLM.from_pretrained(tiny_model)
        plain = PeftModel.from_pretrained(base, run.weights).eval()
        torch.testing.assert_close(plain(input_ids=ids).logits, ours[..., :mask], rtol=0, atol=1e-5)
    report = evaluate_run(run, block_size=32)
    assert report.models["crt"].masks == report.models["public"].masks
    assert report.models["crt"].masks > 0


def test_the_baselines_read_the_same_file(tiny_transformer: Path, corpus: Path, tmp_path: Path) -> None:
    """Non-private training with masks, and plain DP-SGD with masks, by settings alone."""
    plain = private_recipe(tiny_transformer, corpus, tmp_path / "plain", "finetune", privacy=None)
    run = finetune(plain)
    assert run.manifest.public_model.mask_token is not None
    assert run.manifest.guarantee["kind"] == "none"
    noisy = train_privately(private_recipe(tiny_transformer, corpus, tmp_path / "noisy"))
    assert "the screening, which looks for duplicates" in noisy.manifest.guarantee["statement"]
    raw = private_recipe(
        tiny_transformer, corpus, tmp_path / "raw", "finetune", privacy=None, corpus={"screened": False}
    )
    assert finetune(raw).manifest.public_model.mask_token is None


def test_what_noise_or_masks_cannot_cover_is_refused(
    tiny_transformer: Path, corpus: Path, tmp_path: Path
) -> None:
    full = private_recipe(
        tiny_transformer, corpus, tmp_path / "plain", "finetune", privacy=None, adapter={"kind": "full"}
    )
    read_before = finetune(full)
    with pytest.raises(
        InputError, match="was trained on private text, which noise on top of it does not hide"
    ):
        train_confidentially(private_recipe(read_before.weights, corpus, tmp_path / "run", "crt"))
    changes: dict[str, Any] = {"privacy": None, "training": {"max_steps": 1}}
    with pytest.raises(RecipeError, match="'submix' has no token for the masks of a screened corpus"):
        train_ensemble(private_recipe(tiny_transformer, corpus, tmp_path / "parts", "submix", **changes))


def sections(path: Path) -> Sequence[tuple[CorpusSection, bool]]:
    return [
        (CorpusSection(path=str(path)), True),
        (CorpusSection(path=str(path), user="user", text="text"), True),
        (CorpusSection(path=str(path), user="document", text="text"), False),
        (CorpusSection(path=str(path), screened=False), False),
        (CorpusSection(path=str(path), format="csv"), False),
        (CorpusSection(path=str(path), blocks=8), False),
    ]


def test_a_screened_corpus_is_known_by_its_layout(corpus: Path, tmp_path: Path) -> None:
    assert [is_screened(section) for section, _ in sections(corpus)] == [
        known for _, known in sections(corpus)
    ]
    raw = write_documents(tmp_path / "raw.jsonl", dialogues())
    assert not is_screened(CorpusSection(path=str(raw)))
    assert is_screened(CorpusSection(path=str(raw), screened=True))
