"""Linkability: exact p-values, sets that share no text, models side by side, and where it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.attacks.author_probe import NamedAuthors, ProbeSettings, name_authors
from tacit.audit import linkability_findings
from tacit.audit.audited import split_texts
from tacit.audit.auditing import audit_run
from tacit.audit.comparison import compare_runs
from tacit.audit.frontiers import methods_at
from tacit.audit.linkability_findings import (
    ModelLinkability,
    People,
    measure_linkability,
    order_p_value,
)
from tacit.audit.linkability_sets import AuthoredTexts, LinkabilitySet, texts_of_authors, whose_texts
from tacit.audit.plans import AuditPlan
from tacit.audit.record import AuditRecord, read_audit
from tacit.corpus import UserCorpus
from tacit.corpus.canaries import CanaryManifest, draw_canaries
from tacit.corpus.canary_plan import CanaryPlan, OwnerKind
from tacit.corpus.planting import plant
from tacit.errors import CorpusError, InputError
from tacit.models.loading import load_public_model
from tacit.models.masks import with_mask
from tacit.progress import Silent
from tacit.recipes import Recipe, parse_recipe
from tacit.report import model_card, render_comparison, render_report, write_report
from tacit.runs import Run
from tacit.training import finetune, train_regularised
from tacit.training.preparation import SplitCorpus
from tests.audit.runs import Audited
from tests.tiny import public_sentences
from tests.training.private_runs import screened, write_documents
from tests.training.test_regularised import recipe_for

WITHIN = {"share": 0.3, "by": "within", "seed": 0}
PLAN = AuditPlan(documents=0, lines=0, real="none", block_size=32, authors=8, author_texts=6)
WORDS = ("lamps", "boats", "clocks", "letters", "baskets", "doors")


def documents(authors: int = 6, texts: int = 10) -> list[tuple[str, str]]:
    """Everybody has a word of their own at the end, in texts that are otherwise alike."""
    return [
        (f"user-{author}", f"{public_sentences(1, 31 * author + turn)[0]} {WORDS[author]}")
        for author in range(authors)
        for turn in range(texts)
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "private.jsonl", documents())


def linkability_of(run: Run, plan: AuditPlan = PLAN) -> tuple[dict[str, Any], AuditRecord]:
    record = audit_run(run, plan, device="cpu")
    section = record.sections["linkability"]
    assert section is not None, record.notes
    return section, record


# Statistics


def test_false_alarms_are_no_more_frequent_than_the_level() -> None:
    """Nothing is told: whatever is named, and however unequal authors are. And the test is not asleep."""
    rng = np.random.default_rng(0)
    levels, runs = np.array([0.05, 0.2, 0.5]), 1500
    alarms = np.zeros(3)
    for number in range(runs):
        authors = rng.choice(5, size=60, p=[0.4, 0.3, 0.1, 0.1, 0.1])
        named = rng.choice(5, size=60, p=[0.6, 0.1, 0.1, 0.1, 0.1])
        alarms += order_p_value(named, authors, seed=number, draws=99) <= levels
    spread = np.sqrt(levels * (1 - levels) / runs)
    assert (alarms / runs <= levels + 3 * spread).all()
    assert (alarms / runs >= 0.5 * levels).all()


def test_a_probe_on_noise_raises_no_alarm_and_one_on_authors_does() -> None:
    rng, authors = np.random.default_rng(1), np.repeat(np.arange(4), 8)
    settings = ProbeSettings(hidden=0, penalties=(0.1, 0.01))
    values = []
    for number in range(120):
        learnt, scored = rng.normal(size=(2, 32, 10))
        named = name_authors(learnt, authors, scored, settings=settings).named
        values.append(order_p_value(named, authors, seed=number, draws=199))
    assert np.mean(np.array(values) <= 0.1) <= 0.1 + 3 * np.sqrt(0.09 / 120)
    assert 0.3 < np.mean(values) < 0.8
    means = 2 * rng.normal(size=(4, 10))
    learnt, scored = means[authors] + rng.normal(size=(2, 32, 10))
    named = name_authors(learnt, authors, scored, settings=settings).named
    assert order_p_value(named, authors, seed=0, draws=199) == 1 / 200


def test_states_that_tell_nothing_are_measured_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: a probe that had seen the scored texts with their authors would name them all."""
    rng, each = np.random.default_rng(2), np.repeat(np.arange(5), 12)
    texts = [[number] for number in range(120)]
    found = LinkabilitySet(
        label=None,
        unseen=True,
        authors=5,
        learnt=AuthoredTexts(texts[:60], each, each),
        scored=AuthoredTexts(texts[60:], each, each),
    )
    noise = rng.normal(size=(120, 40))
    monkeypatch.setattr(linkability_findings, "last_states", lambda *_, **__: noise)
    told = measure_linkability(found, None, None)  # type: ignore[arg-type]
    assert told.run.accuracy.value < 0.45
    assert told.run.p_value > 0.01


def test_intervals_are_over_authors() -> None:
    authors = np.repeat(np.arange(25), 4)
    right = np.repeat(np.arange(25) % 2 == 0, 4)  # all of an author's texts, or none
    found = People(authors, "authors").share_of(right, confidence=0.95)
    assert found.method == "bootstrap over 25 authors"
    assert found.value == 0.52
    assert found.high - found.low > 0.3  # a hundred independent texts would have 0.2
    few = People(authors[:40], "authors").share_of(right[:40], confidence=0.95)
    assert few.method.startswith("Hoeffding, 10 authors")
    assert few.high - few.low > 0.5


def test_a_label_of_two_values_is_judged_by_the_users_who_have_them() -> None:
    """Two labels alone could not be resampled: the interval was from 0 to 1, whatever was found."""
    users, labels = np.repeat(np.arange(30), 4), np.repeat(np.arange(30) % 2, 4)
    texts = AuthoredTexts([[0]] * 120, labels, users)
    scores = np.stack([labels == 0, labels == 1], axis=1) + 0.0
    scores[:24] = scores[:24, ::-1]  # of six users the probe names the other label
    told = {}
    for label in (None, "place"):
        found = LinkabilitySet(texts, texts, authors=2, label=label, unseen=True)
        told[label] = ModelLinkability.of(NamedAuthors(scores, ""), found, confidence=0.95, seed=0).accuracy
    assert told[None].method.startswith("Hoeffding, 2 authors")
    assert told["place"].method == "bootstrap over 30 users"
    assert told["place"].value == told[None].value == 0.8
    assert 0.55 < told["place"].low < told["place"].high < 1.0


# Sets


def set_of(run: Run, **changes: Any) -> tuple[LinkabilitySet | None, list[str], dict[tuple[int, ...], str]]:
    """The sets, the notes, and which side of the split every token sequence is on."""
    plan = AuditPlan(**{**vars(PLAN), **changes})
    recipe = parse_recipe(dict(run.manifest.recipe))
    public = load_public_model(recipe.model.name, dtype=torch.float32, device="cpu")
    notes: list[str] = []
    with split_texts(run, Silent()) as texts:
        if texts.whole.has_masks:
            public = with_mask(public)
        labels = whose_texts(recipe, texts, plan.manifest, plan, notes)
        found = None
        if labels is not None:
            found = texts_of_authors(recipe, texts, labels, public, plan.manifest, plan, notes, context=128)
        sides = {}
        for side, part in (("held out", texts.held_out), ("train", texts.train)):
            for one in () if part is None else part.documents():
                (ids,) = public.tokenizer.encode([one.text])
                sides[public.start_token, *ids] = f"{side} {one.user}"
    return found, notes, sides


def untrained(recipe: Recipe) -> Run:
    steps = {"training": recipe.training.model_copy(update={"max_steps": 1})}
    return finetune(recipe.model_copy(update=steps))


def test_held_out_texts_never_enter_the_probes_training(
    tiny_lstm: Path, tmp_path: Path, corpus: Path
) -> None:
    twice = documents() + documents()[:20]  # said again: on both sides of the split
    write_documents(corpus, twice)
    run = untrained(recipe_for(tiny_lstm, corpus, tmp_path / "run", "finetune", held_out=WITHIN))
    found, notes, sides = set_of(run)
    assert found is not None, notes
    assert (found.authors, found.unseen, found.label) == (6, True, None)
    learnt, scored = ({tuple(one) for one in part.sequences} for part in (found.learnt, found.scored))
    assert not learnt & scored
    assert {sides[one].split(" user")[0] for one in learnt} == {"train"}
    assert {sides[one].split(" user")[0] for one in scored} == {"held out"}
    assert len(learnt) == len(found.learnt) <= 36
    for part in (found.learnt, found.scored):  # and everybody is who they are
        names = [sides[tuple(one)].rsplit(" ", 1)[1] for one in part.sequences]
        assert len(set(zip(names, part.authors.tolist(), strict=True))) == len(set(names)) == 6
    few, _, _ = set_of(run, authors=2, author_texts=3)
    assert few is not None
    assert (few.authors, len(few.learnt)) == (2, 6)
    again, _, _ = set_of(run)
    assert again is not None
    assert again.learnt.sequences == found.learnt.sequences
    other, _, _ = set_of(run, authors=2, seed=9)
    assert other is not None


@pytest.mark.parametrize("held_out", [None, {"share": 0.3, "by": "user", "seed": 1}])
def test_without_held_out_text_of_the_authors_training_text_is_split_and_told_so(
    tiny_lstm: Path, tmp_path: Path, corpus: Path, held_out: Any
) -> None:
    run = untrained(recipe_for(tiny_lstm, corpus, tmp_path / "run", "finetune", held_out=held_out))
    found, notes, sides = set_of(run)
    assert found is not None, notes
    assert not found.unseen
    assert "the model saw both" in found.what
    learnt, scored = ({tuple(one) for one in part.sequences} for part in (found.learnt, found.scored))
    assert not learnt & scored
    assert all(sides[one].startswith("train") for one in learnt | scored)


def test_planted_canaries_are_left_out(untouched: Audited) -> None:
    manifest: CanaryManifest = untouched.manifest
    without, _, _ = set_of(untouched.run, manifest=manifest, authors=40, author_texts=30)
    with_them, _, _ = set_of(untouched.run, authors=40, author_texts=30)
    public = load_public_model(untouched.run.manifest.public_model.name, dtype=torch.float32, device="cpu")
    planted = {
        (public.start_token, *ids) for ids in public.tokenizer.encode([one.text for one in manifest.canaries])
    }

    def read(found: LinkabilitySet | None) -> set[tuple[int, ...]]:
        parts = [] if found is None else [*found.learnt.sequences, *found.scored.sequences]
        return {tuple(one) for one in parts}

    assert not read(without) & planted
    assert with_them is None or read(with_them) & planted


def test_planted_canaries_are_left_out_of_a_screened_corpus(tiny_lstm: Path, tmp_path: Path) -> None:
    """A screening takes the spaces around a text away, and a canary may begin with one."""
    own = documents()
    plan = CanaryPlan(template=" {secret}", prefix="shared", length=2, users=5, include=1.0, seed=1)
    manifest = draw_canaries(plan, sorted({user for user, _ in own}), documents=len(own), characters=1000)
    path = screened(tmp_path / "screened.jsonl", [*own, *manifest.insertions()])
    points = [json.loads(line) for line in path.read_text().splitlines()]
    secrets = {one.secret for one in manifest.canaries}
    assert secrets <= {point["text"] for point in points}, "as they were planted, but for the space"
    run = untrained(recipe_for(tiny_lstm, path, tmp_path / "run", "finetune"))
    found, notes, _ = set_of(run, manifest=manifest, author_texts=30)
    assert found is not None, notes
    public = load_public_model(run.manifest.public_model.name, dtype=torch.float32, device="cpu")
    planted = {(public.start_token, *ids) for ids in public.tokenizer.encode(sorted(secrets))}
    read = {tuple(one) for one in [*found.learnt.sequences, *found.scored.sequences]}
    assert not {one[: len(two)] for one in read for two in planted} & planted


def test_what_cannot_be_measured_is_a_note(tiny_lstm: Path, tmp_path: Path, corpus: Path) -> None:
    alone = write_documents(tmp_path / "alone.jsonl", [("me", text) for _, text in documents()])
    few = write_documents(tmp_path / "few.jsonl", documents(texts=3))
    for name, path, why in (("one", alone, "one author"), ("two", few, "fewer than two authors have 3")):
        run = untrained(recipe_for(tiny_lstm, path, tmp_path / name, "finetune"))
        record = audit_run(run, PLAN, device="cpu")
        assert record.sections["linkability"] is None
        assert any(why in note for note in record.notes)
        assert "No probe was asked" in render_report(record.to_json(), run_name="r")
    run = untrained(recipe_for(tiny_lstm, corpus, tmp_path / "asked", "finetune"))
    record = audit_run(run, AuditPlan(**{**vars(PLAN), "authors": 0}), device="cpu")
    assert record.sections["linkability"] is None
    for wrong in ({"authors": 1}, {"authors": -1}, {"author_texts": 2}):
        with pytest.raises(InputError, match="two or more, or 0"):
            AuditPlan(**wrong)  # type: ignore[arg-type]


def test_a_column_says_whose_a_text_is(
    tiny_lstm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "labelled.jsonl"
    rows = [
        {"user": f"user-{at % 7}", "text": text, "place": f"place-{int(who[-1]) % 3}"}
        for at, (who, text) in enumerate(documents())
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes: dict[str, Any] = {"held_out": WITHIN, "training": {"max_steps": 1}}
    label = {"regularisation": {"label": "place"}}
    run = train_regularised(recipe_for(tiny_lstm, path, tmp_path / "run", "triplet", **changes, **label))
    section, _ = linkability_of(run)
    assert (section["label"], section["authors"], section["discriminator"]) == ("place", 3, None)
    plain = finetune(recipe_for(tiny_lstm, path, tmp_path / "plain", "finetune", **changes))
    by_user, _ = linkability_of(plain)
    assert (by_user["label"], by_user["authors"]) == (None, 7)
    by_place, _ = linkability_of(plain, AuditPlan(**{**vars(PLAN), "label": "place"}))
    assert by_place["run"]["accuracy"]["method"].startswith("Hoeffding, 7 users")
    few, _ = linkability_of(plain, AuditPlan(**{**vars(PLAN), "label": "place", "authors": 3}))
    # Three of them have as many texts in all as eight authors would.
    assert few["learnt"] == 3 * 6 < by_place["learnt"] <= 8 * 6
    names = ("label", "authors", "learnt", "scored", "unseen", "chance")
    assert [by_place[name] for name in names] == [section[name] for name in names]
    monkeypatch.setattr("tacit.audit.model_audit.load_trained", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(CorpusError, match="'nowhere'"):
        audit_run(plain, AuditPlan(**{**vars(PLAN), "label": "nowhere"}), device="cpu")


@pytest.mark.parametrize("owner", ["existing", "new"])
def test_a_planted_corpus_has_labels(tiny_lstm: Path, tmp_path: Path, owner: OwnerKind) -> None:
    """Canaries are no texts of the probe, so that they need no label; those of people have theirs."""
    rows = [{"user": who, "text": text, "place": f"place-{int(who[-1]) % 3}"} for who, text in documents()]
    users = sorted({row["user"] for row in rows})
    plan = CanaryPlan(users=3, owner=owner, include=1.0, seed=1)
    manifest = draw_canaries(plan, users, documents=len(rows), characters=1000)
    path = tmp_path / "planted.jsonl"
    planted = list(plant(rows, manifest, user_column="user", text_column="text"))
    path.write_text("".join(json.dumps(row) + "\n" for row in planted))
    label = {"regularisation": {"label": "place"}, "training": {"max_steps": 1}}
    recipe = recipe_for(tiny_lstm, path, tmp_path / "run", "triplet", **label)
    if owner == "new":
        with pytest.raises(CorpusError, match="Planted canaries have it where"):
            train_regularised(recipe)
    else:
        train_regularised(recipe)
    whole = UserCorpus.from_pairs([(row["user"], row["text"]) for row in planted])
    asked = AuditPlan(**{**vars(PLAN), "label": "place"})
    found = whose_texts(recipe, SplitCorpus(whole, whole, None), manifest, asked, [])
    assert found is not None
    assert found.train[: len(rows)] == [row["place"] for row in rows]
    known = {row["user"]: row["place"] for row in rows}
    assert found.train[len(rows) :] == [known.get(user, "") for user, _ in manifest.insertions()]
    if owner == "new":
        with pytest.raises(CorpusError, match="no usable value of --label place"):
            whose_texts(recipe, SplitCorpus(whole, whole, None), None, asked, [])


# Whole Runs


@pytest.mark.parametrize("adapter", [{}, {"kind": "full"}], ids=str)
def test_a_run_stands_beside_the_public_model_and_the_control(
    tiny_model: Path, tmp_path: Path, corpus: Path, adapter: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {"held_out": WITHIN, "adapter": adapter}
    plain = finetune(recipe_for(tiny_model, corpus, tmp_path / "plain", "finetune", **changes))
    run = train_regularised(recipe_for(tiny_model, corpus, tmp_path / "run", "adversarial", **changes))
    section, record = linkability_of(run, AuditPlan(**{**vars(PLAN), "against": plain}))
    assert section["chance"]["one_of_all"] == pytest.approx(1 / 6)
    for name in ("run", "public", "control"):
        accuracy = section[name]["accuracy"]
        assert accuracy["value"] * section["scored"] == pytest.approx(
            round(accuracy["value"] * section["scored"])
        )
        assert section[name]["p_value"] <= 0.01, "a text ends in its author's own word"
        assert section[name]["among_first"]["value"] >= accuracy["value"]
    for name, beside in (("above_public", "public"), ("above_control", "control")):
        difference = section["run"]["accuracy"]["value"] - section[beside]["accuracy"]["value"]
        assert section[name]["value"] == pytest.approx(difference)
    told = json.loads((run.folder / "private" / "training.json").read_text())["discriminator"]
    assert section["discriminator"]["accuracy"] == told["accuracy"]
    # An untouched public model separates authors, too: it is described, and never what the headline says.
    assert not any("author" in one.attack for one in record.attempts)
    assert "inkab" not in record.line
    own, _ = linkability_of(plain)
    assert own["control"] is None
    assert own["run"] == section["control"]
    assert own["discriminator"] is None


def test_it_is_kept_shown_and_compared(tiny_lstm: Path, tmp_path: Path, corpus: Path) -> None:
    runs = []
    for name in ("one", "two"):
        run = untrained(recipe_for(tiny_lstm, corpus, tmp_path / name, "finetune", held_out=WITHIN))
        record = audit_run(run, PLAN, device="cpu")
        record.save(run)
        runs.append(run)
    content = read_audit(runs[0])
    section = content["linkability"]
    assert AuditRecord.from_json(content).to_json() == content
    page = write_report(runs[0], content).read_text()
    assert 'id="linkability-figure' in page
    assert "not counted as a leak" in page
    card = model_card(runs[0].manifest, content, include_measurements=True)
    assert "authors named from a state, of 6" in card
    assert "authors named" not in model_card(runs[0].manifest, content)
    first, second = compare_runs(runs)
    assert first.linkability is not None
    assert first.linkability.to_json() == section["run"]["accuracy"]
    assert first.linkability_chance == section["chance"]["most_frequent"]
    assert second.cells()["authors_named"] == str(second.linkability)
    (method,) = methods_at([first, second])
    assert method.linkability == first.linkability
    side_by_side = render_comparison([first.to_json(), second.to_json()], [method.to_json()])
    assert "Perplexity and linkability" in side_by_side
    # Another task, or an audit of an earlier version, is another matter.
    path = runs[1].folder / "audit.json"
    path.write_text(json.dumps(content | {"linkability": section | {"authors": 5}}))
    assert compare_runs(runs)[1].linkability is None
    del content["linkability"]
    path.write_text(json.dumps(content))
    assert compare_runs(runs)[1].linkability is None
    assert AuditRecord.from_json(read_audit(runs[1])).sections["linkability"] is None
    assert "No probe was asked" in render_report(read_audit(runs[1]), run_name="earlier")
