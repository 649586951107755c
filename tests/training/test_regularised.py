"""Regularised training end to end: what each step touches, batches by author, resuming, what is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.corpus.canaries import draw_canaries
from tacit.corpus.canary_plan import CanaryPlan
from tacit.errors import CorpusError
from tacit.progress import Silent
from tacit.recipes import Recipe, RegularisationSection
from tacit.runs import Run
from tacit.training import finetune, plan_training, train_regularised
from tacit.training.author_losses import distances
from tacit.training.author_schedule import AuthorSchedule
from tacit.training.finetune import task_for
from tacit.training.next_token import NextTokenTask
from tacit.training.preparation import prepare
from tacit.training.regularised import authors_for, by_author, regulariser_for, schedule_for
from tacit.training.regularisers import Adversary, Sequences, weight_at
from tests.tiny import public_sentences
from tests.training.private_runs import KillAt, Killed, private_recipe, screened, write_documents

DOCUMENTS = [
    (f"user-{user}", f"Parcel {user} waits. {public_sentences(1, user + 7 * turn)[0]}")
    for user in range(5)
    for turn in range(4)
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "private.jsonl", DOCUMENTS)


def recipe_for(model: Path, corpus: Path, output: Path, method: str, /, **changes: Any) -> Recipe:
    regularisation = {"hidden": 16} if method == "adversarial" else {}
    if method == "finetune":
        return private_recipe(model, corpus, output, method, privacy=None, **changes)
    changes["regularisation"] = regularisation | changes.get("regularisation", {})
    return private_recipe(model, corpus, output, method, privacy=None, **changes)


@pytest.mark.parametrize("adapter", [{}, {"kind": "top", "trunk_layers": 1}, {"kind": "full"}], ids=str)
@pytest.mark.parametrize("method", ["adversarial", "triplet"])
def test_a_killed_run_resumes_to_the_same_weights_and_says_what_it_is(
    tiny_model: Path, corpus: Path, tmp_path: Path, method: str, adapter: dict[str, Any]
) -> None:
    whole = train_regularised(recipe_for(tiny_model, corpus, tmp_path / "whole", method, adapter=adapter))
    recipe = recipe_for(tiny_model, corpus, tmp_path / "killed", method, adapter=adapter)
    with pytest.raises(Killed):
        train_regularised(recipe, progress=KillAt(5))
    torch.manual_seed(999)
    resumed = train_regularised(recipe, resume=True)
    assert resumed.weights_sha256() == whole.weights_sha256()
    guarantee = Run.open(tmp_path / "whole").manifest.guarantee
    assert guarantee["kind"] == "empirical"
    assert guarantee["statement"].startswith("empirical, no formal guarantee")
    assert not whole.manifest.may_be_released
    told = json.loads((whole.folder / "private" / "training.json").read_text())
    assert told["authors"] == 5
    assert not list(whole.folder.rglob("*discriminator*"))
    plan = plan_training(recipe_for(tiny_model, corpus, tmp_path / "planned", method, adapter=adapter))
    assert (plan.guarantee, plan.steps) == (guarantee["statement"], told["steps"])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [3.0] * 11),
        ("linear", [0.0, 0.6 / 1.1, 1.2 / 1.1, 1.8 / 1.1, 2.4 / 1.1, 3.0 / 1.1, *[3.0] * 5]),
        # Ganin et al. 2016: 2 / (1 + exp(-10 t)) - 1
        ("sigmoid", [3.0 * (2 / (1 + math.exp(-10 * step / 10)) - 1) for step in range(11)]),
    ],
)
def test_lambda_follows_its_schedule(schedule: str, expected: list[float]) -> None:
    section = RegularisationSection.model_validate({"lambda": 3.0, "schedule": schedule})
    assert [weight_at(section, step, 11) for step in range(11)] == pytest.approx(expected)
    assert weight_at(section, 0, 1) in (0.0, 3.0)  # a run of one step divides by nothing


def test_lambda_may_rise_to_the_end() -> None:
    section = RegularisationSection.model_validate({"lambda": 2.0, "schedule": "linear", "ramp": 1})
    assert [weight_at(section, step, 4) for step in range(5)] == pytest.approx([0, 0.5, 1.0, 1.5, 2.0])


@pytest.mark.parametrize("method", ["adversarial"])
def test_without_weight_it_is_plain_fine_tuning_bit_for_bit(
    tiny_transformer: Path, corpus: Path, tmp_path: Path, method: str
) -> None:
    changes = {"regularisation": {"lambda": 0.0, "batches": "mixed"}}
    with_it = train_regularised(recipe_for(tiny_transformer, corpus, tmp_path / "a", method, **changes))
    plain = finetune(recipe_for(tiny_transformer, corpus, tmp_path / "b", "finetune"))
    assert with_it.weights_sha256() == plain.weights_sha256()


def test_the_two_updates_touch_their_own_weights_alone(
    tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(tiny_model, corpus, tmp_path / "run", "adversarial", adapter={"kind": "full"})
    prepared = prepare(recipe, tmp_path, Silent())
    authors = authors_for(prepared)
    prepared = by_author(prepared, authors)
    task = task_for(prepared)
    schedule = schedule_for(prepared, authors, 1)
    adversary = regulariser_for(prepared, task, authors, schedule)
    assert isinstance(adversary, Adversary)

    def copies(module: torch.nn.Module) -> list[torch.Tensor]:
        return [one.detach().clone() for one in module.parameters()]

    def same(module: torch.nn.Module, before: list[torch.Tensor]) -> bool:
        return all(torch.equal(one, old) for one, old in zip(module.parameters(), before, strict=True))

    optimiser = torch.optim.SGD(task.model.parameters(), lr=0.1)
    model, discriminator = copies(task.model), copies(adversary.module)
    adversary.begin(0)
    adversary.objective(task.make_batch(schedule.batches_of(0)[0])).backward()  # type: ignore[no-untyped-call]
    assert all(one.grad is None for one in adversary.module.parameters())
    optimiser.step()
    assert same(adversary.module, discriminator)
    assert not same(task.model, model)
    optimiser.zero_grad(set_to_none=True)
    model = copies(task.model)
    adversary.finish()
    assert same(task.model, model)
    assert all(one.grad is None for one in task.model.parameters())
    assert not same(adversary.module, discriminator)


def adversary_of(
    model: Path, corpus: Path, folder: Path, **changes: Any
) -> tuple[Adversary, NextTokenTask, AuthorSchedule]:
    recipe = recipe_for(model, corpus, folder / "run", "adversarial", adapter={"kind": "full"}, **changes)
    folder.mkdir(exist_ok=True)
    prepared = prepare(recipe, folder, Silent())
    authors = authors_for(prepared)
    prepared = by_author(prepared, authors)
    task = task_for(prepared)
    schedule = schedule_for(prepared, authors, 1)
    adversary = regulariser_for(prepared, task, authors, schedule)
    assert isinstance(adversary, Adversary)
    assert isinstance(schedule, AuthorSchedule)
    with torch.no_grad():  # a discriminator that tells a lot, whatever its states are
        for one in adversary.module.parameters():
            one.copy_(torch.randn(one.shape, generator=torch.Generator().manual_seed(len(one))))
    return adversary, task, schedule


def test_the_model_follows_the_gradient_of_both_losses(
    tiny_model: Path, corpus: Path, tmp_path: Path
) -> None:
    """L_CE + lambda * L_P, means over the step's tokens and passes; from the losses' own gradients."""
    training = {"batch_size": 3, "accumulate": 2}
    changes = {"regularisation": {"lambda": 7.0, "schedule": "linear", "ramp": 0.8}, "training": training}
    adversary, task, schedule = adversary_of(tiny_model, corpus, tmp_path, **changes)
    task.model.eval()
    step = 2
    adversary.begin(step)
    batches = [task.make_batch(rows) for rows in schedule.batches_of(step)]
    assert len(batches) == 2

    def gradient(loss: torch.Tensor) -> torch.Tensor:
        weights = [one for one in task.model.parameters() if one.requires_grad]
        found = torch.autograd.grad(loss, weights, allow_unused=True, retain_graph=True)
        return torch.cat(
            [(torch.zeros_like(w) if g is None else g).flatten() for g, w in zip(found, weights, strict=True)]
        )

    tokens = sum(batch.label_count for batch in batches)
    weight = 7.0 * min(1.0, step / (0.8 * schedule.steps))
    for batch in batches:
        found = task.loss_and_states(batch)
        privacy = adversary.discriminator.uniform_loss(
            Sequences(batch, found.states, adversary._authors).states
        )
        plain = gradient(found.loss) / tokens
        wanted = plain + weight / len(batches) * gradient(privacy)
        seen = gradient(adversary.objective(batch)) / tokens
        torch.testing.assert_close(seen, wanted, rtol=1e-3, atol=1e-6)
        assert (wanted - plain).norm() > 0.01 * plain.norm(), "the privacy loss counts for something here"


def test_against_a_fixed_discriminator_training_hides_the_authors(
    tiny_lstm: Path, corpus: Path, tmp_path: Path
) -> None:
    after = {}
    for weight in (0.0, 20.0):
        changes = {"regularisation": {"lambda": weight}, "training": {"batch_size": 20}}
        adversary, task, schedule = adversary_of(tiny_lstm, corpus, tmp_path / f"{weight}", **changes)
        optimiser = torch.optim.Adam(task.model.parameters(), lr=3e-3)
        batch = task.make_batch(schedule.batches_of(0)[0])
        for _ in range(60):
            adversary.begin(0)
            optimiser.zero_grad()
            (adversary.objective(batch) / batch.label_count).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        states = Sequences(batch, task.loss_and_states(batch).states, adversary._authors).states
        after[weight] = float(adversary.discriminator.uniform_loss(states).detach())
    assert after[20.0] < 0.7 * after[0.0]


def test_the_discriminator_learns_at_the_rate_of_the_recipe(
    tiny_lstm: Path, corpus: Path, tmp_path: Path
) -> None:
    changes = {"regularisation": {"discriminator_rate": 0.017}}
    adversary, _, _ = adversary_of(tiny_lstm, corpus, tmp_path, **changes)
    assert adversary.optimisers[0].param_groups[0]["lr"] == 0.017


def test_triplets_of_no_weight_train_on_the_same_batches_and_nothing_else(
    tiny_lstm: Path, corpus: Path, tmp_path: Path
) -> None:
    """The control of pairs within the batch: batches of two authors, and the loss of the tokens alone."""
    batches, losses = {}, {}
    for weight in (0.0, 0.3):
        recipe = recipe_for(
            tiny_lstm,
            corpus,
            tmp_path / f"run-{weight}",
            "triplet",
            adapter={"kind": "full"},
            regularisation={"pairs": "batch", "lambda": weight},
        )
        torch.manual_seed(0)
        prepared = prepare(recipe, tmp_path, Silent())
        authors = authors_for(prepared)
        prepared = by_author(prepared, authors)
        task, schedule = task_for(prepared), schedule_for(prepared, authors, 1)
        regulariser = regulariser_for(prepared, task, authors, schedule)
        batches[weight] = [
            own.tolist() for step in range(schedule.steps) for own in schedule.batches_of(step)
        ]
        batch = task.make_batch(schedule.batches_of(0)[0])
        regulariser.begin(0)
        losses[weight] = float(regulariser.objective(batch).detach())
        plain = float(task.summed_loss(batch).detach())
        assert (losses[weight] == plain) == (weight == 0)
    assert batches[0.0] == batches[0.3]
    assert train_regularised(
        recipe_for(
            tiny_lstm,
            corpus,
            tmp_path / "control",
            "triplet",
            regularisation={"pairs": "batch", "lambda": 0.0},
        )
    )


@pytest.mark.parametrize("pairs", ["batch", "second"])
def test_triplet_training_moves_pairs_as_the_text_says_and_eq4_the_other_way(
    tiny_transformer: Path, corpus: Path, tmp_path: Path, pairs: str
) -> None:
    def ratio_after(**regularisation: Any) -> tuple[float, float]:
        """How far different authors are from each other, in distances within one, before and after."""
        recipe = recipe_for(
            tiny_transformer,
            corpus,
            tmp_path / "run",
            "triplet",
            adapter={"kind": "full"},
            training={"epochs": 8},
            regularisation={"pairs": pairs, **regularisation},
        )
        prepared = prepare(recipe, tmp_path, Silent())
        authors = authors_for(prepared)
        prepared = by_author(prepared, authors)
        task = task_for(prepared)
        schedule = schedule_for(prepared, authors, 1)
        regulariser = regulariser_for(prepared, task, authors, schedule)
        everything = task.make_batch(np.arange(len(prepared.rows)))

        @torch.no_grad()
        def ratio() -> float:
            own = Sequences(everything, task.states_of(everything), authors)
            squared = distances(own.states, own.states)
            same = own.authors[:, None] == own.authors
            itself = torch.eye(len(squared), dtype=torch.bool)
            return float(squared[~same].mean() / squared[same & ~itself].mean())

        before = ratio()
        optimiser = torch.optim.AdamW(task.model.parameters(), lr=2e-3)
        for step in range(schedule.steps):
            regulariser.begin(step)
            optimiser.zero_grad()
            for rows in schedule.batches_of(step):
                regulariser.objective(task.make_batch(rows)).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            regulariser.finish()
        return before, ratio()

    before, plain = ratio_after(**{"lambda": 0.0})
    _, hidden = ratio_after(**{"lambda": 1.0})
    _, printed = ratio_after(**{"lambda": 0.1, "paper_eq4": True})
    assert hidden < min(before, plain)
    assert printed > max(before, plain)


@pytest.mark.parametrize("size", [6, 3, 19])
@pytest.mark.parametrize("batches", ["user", "mixed"])
@pytest.mark.parametrize("two_authors", [True, False])
def test_every_row_is_seen_once_and_batches_have_two_authors(
    tiny_lstm: Path, corpus: Path, tmp_path: Path, batches: Any, two_authors: bool, size: int
) -> None:
    changes = {"training": {"batch_size": size}}
    recipe = recipe_for(tiny_lstm, corpus, tmp_path / "run", "triplet", **changes)
    prepared = prepare(recipe, tmp_path, Silent())
    authors = authors_for(prepared)
    rows = by_author(prepared, authors).rows
    schedule = AuthorSchedule(
        rows, recipe.training, 3, authors=authors, batches=batches, two_authors=two_authors
    )
    for epoch in range(2):
        steps = range(epoch * schedule.steps_per_epoch, (epoch + 1) * schedule.steps_per_epoch)
        found = [batch for step in steps for batch in schedule.batches_of(step)]
        assert sorted(np.concatenate(found).tolist()) == list(range(len(rows)))
        assert all(len(batch) <= recipe.training.batch_size for batch in found)
        if two_authors:
            assert all(len(set(schedule.row_authors[batch])) > 1 for batch in found)
        pairs = sum(len(batch) - len(set(schedule.row_authors[batch])) for batch in found)
        # Texts of one author stand in one batch, too; where batches are small, in most.
        assert pairs >= (len(found) if size > 3 else len(found) / 2)
    for step in range(schedule.steps):
        for batch, other in zip(schedule.batches_of(step), schedule.auxiliary_of(step), strict=True):
            same = schedule.row_authors[batch] == schedule.row_authors[other]
            assert same.tolist() == [place % 2 == 0 for place in range(len(batch))]
            assert not (batch == other).any()
    drawn = [np.concatenate(schedule.auxiliary_of(step)).tolist() for step in range(schedule.steps)]
    assert len({tuple(one) for one in drawn}) > 1


def test_one_author_is_refused_with_the_remedy(tiny_lstm: Path, tmp_path: Path) -> None:
    alone = write_documents(tmp_path / "alone.jsonl", [("me", text) for _, text in DOCUMENTS])
    with pytest.raises(CorpusError, match=r"one author.*regularisation\.label"):
        train_regularised(recipe_for(tiny_lstm, alone, tmp_path / "run", "triplet"))
    assert not list(tmp_path.glob("run*"))


def test_a_label_that_all_share_is_refused_and_another_asked_for(tiny_lstm: Path, tmp_path: Path) -> None:
    path = tmp_path / "labelled.jsonl"
    rows = [{"user": user, "text": text, "place": "here"} for user, text in DOCUMENTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"regularisation": {"label": "place"}}
    with pytest.raises(CorpusError, match=r"one author.* name another column with regularisation\.label"):
        train_regularised(recipe_for(tiny_lstm, path, tmp_path / "run", "adversarial", **changes))


@pytest.mark.parametrize(
    ("texts", "regularisation", "remedy"),
    [
        # Two short texts of an author stand in one row, and the auxiliary batch has other rows.
        (2, {"pairs": "second"}, r"training\.block_size, or set regularisation\.pairs=batch"),
        (1, {"pairs": "second"}, "two texts of an author"),
        (1, {"pairs": "batch"}, "two texts of an author"),
    ],
    ids=str,
)
def test_triplets_that_could_change_nothing_are_refused(
    tiny_transformer: Path, tmp_path: Path, texts: int, regularisation: dict[str, Any], remedy: str
) -> None:
    """Pairs of different authors alone have no gradient: the Run would be called what it is not."""
    rows = [(user, text) for turn, (user, text) in enumerate(DOCUMENTS) if turn % 4 < texts]
    path = write_documents(tmp_path / "few.jsonl", rows)
    changes = {"regularisation": regularisation, "training": {"block_size": 128}}
    recipe = recipe_for(tiny_transformer, path, tmp_path / "run", "triplet", **changes)
    for refused in (plan_training, train_regularised):
        with pytest.raises(CorpusError, match=remedy):
            refused(recipe)
    assert not list(tmp_path.glob("run*"))
    printed = {**changes, "regularisation": {**regularisation, "lambda": 1e-6, "paper_eq4": True}}
    assert plan_training(recipe_for(tiny_transformer, path, tmp_path / "run", "triplet", **printed)).steps


def test_a_label_column_stands_in_for_users(tiny_lstm: Path, tmp_path: Path) -> None:
    path = tmp_path / "labelled.jsonl"
    rows = [
        {"user": "me", "text": text, "place": ["north", "south", "west"][at % 3]}
        for at, (_, text) in enumerate(DOCUMENTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"regularisation": {"label": "place"}}
    run = train_regularised(recipe_for(tiny_lstm, path, tmp_path / "run", "adversarial", **changes))
    assert json.loads((run.folder / "private" / "training.json").read_text())["authors"] == 3
    del rows[4]["place"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(CorpusError, match=r"line 5: has no usable value of regularisation\.label='place'"):
        train_regularised(recipe_for(tiny_lstm, path, tmp_path / "again", "adversarial", **changes))


@pytest.mark.parametrize("by", ["within", "user"])
def test_held_out_text_that_an_audit_will_ask_for_has_its_label_before_training(
    tiny_lstm: Path, tmp_path: Path, by: str
) -> None:
    """The audit scores held-out text of the same authors by the label, and found out after training."""
    path = tmp_path / "labelled.jsonl"
    rows = [{"user": who, "text": text, "place": f"place-{who[-1]}"} for who, text in DOCUMENTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"regularisation": {"label": "place"}, "held_out": {"share": 0.4, "by": by, "seed": 1}}
    recipe = recipe_for(tiny_lstm, path, tmp_path / "run", "triplet", **changes)
    prepared = prepare(recipe, tmp_path, Silent())
    assert prepared.corpus.held_out is not None
    held_out = len(set(prepared.corpus.held_out.user_codes().tolist()))
    for row in prepared.corpus.held_out.row_numbers():
        del rows[row]["place"]
    prepared.corpus.whole.close()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if by == "within":
        with pytest.raises(CorpusError, match=r"no usable value of regularisation\.label='place'"):
            plan_training(recipe)
    else:  # users of whom nothing is learnt need no label
        assert plan_training(recipe).authors == 5 - held_out


def test_a_label_that_is_the_text_itself_is_refused_as_such(
    tiny_lstm: Path, corpus: Path, tmp_path: Path
) -> None:
    changes = {"regularisation": {"label": "text"}}
    with pytest.raises(CorpusError, match=r"regularisation\.label='text' names the text itself"):
        train_regularised(recipe_for(tiny_lstm, corpus, tmp_path / "run", "triplet", **changes))


@pytest.mark.parametrize(
    ("value", "reason"), [(None, "null label"), (" ", "empty label"), (1.5, "label of a wrong type")]
)
def test_what_is_wrong_with_a_label_is_said_of_the_label(
    tiny_lstm: Path, tmp_path: Path, value: Any, reason: str
) -> None:
    path = tmp_path / "labelled.jsonl"
    rows: list[dict[str, Any]] = [{"user": who, "text": text, "place": who[-1]} for who, text in DOCUMENTS]
    rows[2]["place"] = value
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"regularisation": {"label": "place"}}
    with pytest.raises(CorpusError, match=rf"line 3: has no usable value of .*'place' \({reason}\)") as found:
        train_regularised(recipe_for(tiny_lstm, path, tmp_path / "run", "triplet", **changes))
    assert "user" not in str(found.value)


@pytest.mark.parametrize("text", ["screened", "planted", "planted and screened"])
@pytest.mark.parametrize("method", ["adversarial", "triplet"])
def test_screened_and_planted_text_is_learnt_with_masks_as_context(
    tiny_lstm: Path, tmp_path: Path, method: str, text: str
) -> None:
    documents = [(user, f"My number is {at + 1000}. {said}") for at, (user, said) in enumerate(DOCUMENTS)]
    if "planted" in text:
        users = sorted({user for user, _ in documents})
        plan = CanaryPlan(users=3, ladder=(2,), include=1.0, seed=1)
        manifest = draw_canaries(plan, users, documents=len(documents), characters=1000)
        documents += manifest.insertions()
    write = screened if "screened" in text else write_documents
    path = write(tmp_path / "corpus.jsonl", documents)
    recipe = recipe_for(tiny_lstm, path, tmp_path / "run", method, training={"epochs": 1})
    run = train_regularised(recipe)
    assert Run.open(run.folder).manifest.guarantee["kind"] == "empirical"
    told = json.loads((run.folder / "private" / "training.json").read_text())
    assert told["authors"] == 5  # canaries of theirs among them
    prepared = prepare(recipe, tmp_path, Silent())
    mask = prepared.public.tokenizer.mask_token
    assert (mask is not None) == (prepared.corpus.whole.has_masks) == ("screened" in text)
    assert run.manifest.public_model.mask_token == mask
    if mask is not None:
        task = task_for(by_author(prepared, authors_for(prepared)))
        batch = task.make_batch(np.arange(len(prepared.rows)))
        assert bool((batch.inputs["input_ids"] == mask).any())
        assert not bool((batch.labels == mask).any())
    prepared.corpus.whole.close()
