"""Canaries: prefixes, ladders and owners, seeds, the private and binding manifest, planting, bad input."""

from __future__ import annotations

import copy
import json
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tacit.corpus import (
    CanaryManifest,
    CanaryPlan,
    UserCorpus,
    draw_canaries,
    held_out_documents,
    plant,
    split_held_out,
)
from tacit.errors import CorpusError, InputError, OutputExists, Tampered

USERS = [f"person-{number}" for number in range(40)]
WORDS = [f"{head}{tail}" for head in "bcdfgklmn" for tail in ("ale", "ind", "ore", "ump", "ask")]


def draw(plan: CanaryPlan, users: Sequence[str] = USERS, **options: Any) -> CanaryManifest:
    """Draw for a corpus with one document of five characters for each user."""
    size = {"documents": len(set(users)), "characters": 5 * len(set(users))}
    return draw_canaries(plan, users, **(size | options))


# Prefixes, ladders, owners


def test_distinct_prefixes_are_distinct_and_go_in_front_by_default() -> None:
    prefixes = [canary.prefix for canary in draw(CanaryPlan(users=40, seed=1), USERS).canaries]
    assert len(set(prefixes)) == 40
    assert all(prefix.endswith(": My ID is:") for prefix in prefixes)


def test_a_tag_goes_where_the_template_says_and_uses_the_callers_words() -> None:
    plan = CanaryPlan(template="Code of {tag} = {secret}.", users=40, seed=1)
    for canary in draw(plan, USERS, words=WORDS).canaries:
        tag = canary.prefix.removeprefix("Code of ").removesuffix(" =")
        assert set(tag.split(" ")) <= set(WORDS)
        assert canary.text == f"Code of {tag} = {canary.secret}."


def test_tags_stay_distinct_with_a_tiny_word_list() -> None:
    manifest = draw(CanaryPlan(users=40, seed=1), USERS, words=["on", "off"])
    assert len({canary.prefix for canary in manifest.canaries}) == 40


def test_the_papers_ladders() -> None:
    """Regularisation: 14 canaries and 195 documents per user. CRT: ten canaries, twenty times each."""
    rungs = (*range(1, 11), 20, 30, 40, 50)
    plan = CanaryPlan("{secret}", "words", 5, "shared", users=4, ladder=rungs, include=1.0, seed=1)
    manifest = draw(plan, USERS, words=WORDS)
    assert manifest.candidates == len(WORDS) ** 5
    assert len(manifest.canaries) == 4 * 14
    assert Counter(user for user, _ in manifest.insertions()) == {c.user: 195 for c in manifest.canaries}
    crt = draw(CanaryPlan(prefix="shared", ladder=(20,), include=1.0, seed=1), USERS)
    assert set(Counter(text for _, text in crt.insertions()).values()) == {20}
    assert crt.candidates == 10**6


def test_only_inserted_secrets_are_in_the_insertions() -> None:
    manifest = draw(CanaryPlan(users=30, ladder=(1, 3), seed=6), USERS)
    planted = Counter(manifest.insertions())
    expected = {(c.user, c.text): c.repetitions for c in manifest.canaries if c.inserted}
    assert planted == expected
    assert 0 < len(expected) < 60
    assert not {canary.twin_text for canary in manifest.canaries} & {text for _, text in planted}


def test_new_owners() -> None:
    manifest = draw(CanaryPlan(users=3, owner="new", ladder=(1, 2), seed=1), USERS)
    assert [c.user for c in manifest.canaries] == [f"canary-00{number}" for number in (0, 0, 1, 1, 2, 2)]


# The prefix that an attacker shows, and what follows it


@pytest.mark.parametrize(
    ("template", "prefix", "separator"),
    [
        ("My ID is: {secret}", "My ID is:", " "),
        ("My ID is:  {secret}.", "My ID is:", "  "),
        ("ID={secret}", "ID=", ""),
        ("ID:\n{secret} end", "ID:\n", ""),
        ("{secret}", "", ""),
    ],
)
def test_the_space_before_a_secret_belongs_to_what_follows_the_prefix(
    template: str, prefix: str, separator: str
) -> None:
    canary = draw(CanaryPlan(template, prefix="shared", seed=1)).canaries[0]
    assert (canary.prefix, canary.separator) == (prefix, separator)
    assert canary.text == template.replace("{secret}", canary.secret)
    assert canary.text.startswith(canary.prefix + canary.continuation(canary.secret))
    assert canary.twin_text.startswith(canary.prefix + canary.continuation(canary.twin))


def test_a_byte_level_tokenizer_splits_a_document_where_the_prefix_ends() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f"My ID is: {number:06d}" for number in range(0, 10**6, 7919)], trainer)
    for canary in draw(CanaryPlan(users=40, seed=1)).canaries:
        whole, prefix = tokenizer.encode(canary.text).ids, tokenizer.encode(canary.prefix).ids
        assert whole[: len(prefix)] == prefix
        # The other side: a prompt with the space is not how any training text begins.
        spaced = tokenizer.encode(canary.prefix + canary.separator).ids
        assert whole[: len(spaced)] != spaced


# Which side of the held-out split


def planted_corpus(manifest: CanaryManifest, users: Sequence[str]) -> UserCorpus:
    rows = plant(rows_of(users), manifest, user_column="who", text_column="body")
    return UserCorpus.from_pairs([(row["who"], row["body"]) for row in rows])


@pytest.mark.parametrize("owner", ["existing", "new"])
@pytest.mark.parametrize("seed", [0, 5])
def test_canaries_stay_in_training(owner: Any, seed: int) -> None:
    plan = CanaryPlan(users=12, owner=owner, include=1.0, held_out_share=0.5, held_out_seed=seed, seed=1)
    manifest = draw(plan)
    corpus = planted_corpus(manifest, USERS)
    for share in (0.2, 0.5):
        train = split_held_out(corpus, share, seed=seed).train
        assert {canary.user for canary in manifest.canaries} <= set(train.users)
        texts = [document.text for document in train.documents()]
        assert all(texts.count(canary.text) == 1 for canary in manifest.canaries)
    # The other side: a split with another seed takes some of them.
    train = split_held_out(corpus, 0.5, seed=seed + 1).train
    assert not {canary.user for canary in manifest.canaries} <= set(train.users)


@pytest.mark.parametrize("by", ["user", "within"])
def test_the_manifest_tells_which_canaries_a_split_holds_out(by: Any) -> None:
    manifest = draw(CanaryPlan(users=30, ladder=(1, 3), seed=2))
    corpus = planted_corpus(manifest, USERS)
    documents = list(corpus.documents())
    held_out = held_out_documents(corpus, 0.4, by, seed=3)
    in_training = Counter(d.text for d in split_held_out(corpus, 0.4, by, seed=3).train.documents())
    found = 0
    for canary in manifest.canaries:
        assert len(canary.documents) == (canary.repetitions if canary.inserted else 0)
        for place in canary.documents:
            assert (documents[place].user, documents[place].text) == (canary.user, canary.text)
        kept = sum(not held_out[place] for place in canary.documents)
        assert kept == in_training[canary.text]
        found += len(canary.documents) - kept
    assert found > 0


def test_users_who_stay_in_training_may_be_too_few() -> None:
    with pytest.raises(InputError, match=r"users=40 to be at most \d+, those of the corpus's 40 users"):
        draw(CanaryPlan(users=40, held_out_share=0.2))


def test_one_sentence_says_how_to_keep_canaries_in_training() -> None:
    sentence = CanaryPlan(held_out_share=0.2, held_out_seed=7).how_to_keep_in_training(12)
    assert "held_out.seed=7" in sentence
    assert "at most 0.2" in sentence
    assert "held_out.among=12" in sentence
    assert "held_out=null" in CanaryPlan().how_to_keep_in_training(12)


# What they cost


def test_the_manifest_says_how_much_was_planted() -> None:
    manifest = draw(CanaryPlan(users=10, ladder=(1, 4), seed=3), documents=400, characters=8000)
    planted = [text for _, text in manifest.insertions()]
    cost = manifest.cost
    assert (cost.corpus_documents, cost.corpus_characters) == (400, 8000)
    assert 0 < cost.documents == len(planted) < 50
    assert cost.characters == sum(map(len, planted))
    assert cost.share_of_documents == pytest.approx(len(planted) / (400 + len(planted)))
    assert cost.share_of_characters == pytest.approx(cost.characters / (8000 + cost.characters))
    nothing = draw(CanaryPlan(include=0.0, owner="new"), []).cost
    assert (nothing.documents, nothing.share_of_documents, nothing.share_of_characters) == (0, 0, 0)


# Seeds


def test_a_seed_repeats_the_draw_whatever_the_order_of_users() -> None:
    plan = CanaryPlan(seed=12)
    manifest = draw(plan, USERS)
    assert manifest == draw(plan, USERS[::-1] + USERS)
    assert manifest.seeded_by_caller
    assert manifest != draw(replace(plan, seed=13), USERS)


def test_without_a_seed_every_draw_differs_and_can_be_repeated_from_the_manifest() -> None:
    one, other = (draw(CanaryPlan(), USERS) for _ in range(2))
    assert not one.seeded_by_caller
    assert one.seed != other.seed
    assert one.nonce != other.nonce
    assert [c.secret for c in one.canaries] != [c.secret for c in other.canaries]
    again = draw(CanaryPlan(seed=one.seed), USERS)
    assert [c.secret for c in again.canaries] == [c.secret for c in one.canaries]
    assert again.nonce != one.nonce  # the nonce is fresh entropy, not a function of the seed


def test_more_canaries_leave_the_earlier_ones_alone() -> None:
    few, more = (draw(CanaryPlan(users=n, owner="new", seed=1), []).canaries for n in (5, 50))
    assert [(c.secret, c.twin, c.inserted) for c in few] == [(c.secret, c.twin, c.inserted) for c in more[:5]]


# The manifest


@pytest.fixture(scope="module")
def manifest() -> CanaryManifest:
    return draw(CanaryPlan(users=3, ladder=(1, 2), seed=20), USERS, words=WORDS)


def test_saved_and_loaded(manifest: CanaryManifest, tmp_path: Path) -> None:
    path = tmp_path / "canaries.json"
    manifest.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert CanaryManifest.load(path) == manifest
    with pytest.raises(OutputExists):
        manifest.save(path)


def test_repr_tells_no_secret(manifest: CanaryManifest) -> None:
    shown = repr(manifest) + "".join(repr(canary) for canary in manifest.canaries)
    hidden = {text for canary in manifest.canaries for text in (canary.secret, canary.twin, canary.user)}
    assert not [text for text in {*hidden, manifest.nonce} if text in shown]
    unseeded = draw(CanaryPlan(), USERS)
    assert str(unseeded.seed) not in repr(unseeded)


def leaves(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def altered(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return ("1" if value[:1] != "1" else "2") + value[1:]
    return 3 if value is None else value + 1


def test_any_changed_or_added_or_missing_value_is_found(manifest: CanaryManifest, tmp_path: Path) -> None:
    path = tmp_path / "canaries.json"
    manifest.save(path)
    original = json.loads(path.read_text())
    places = list(leaves(original))
    assert len(places) > 6 * 9
    for *parents, last in places:
        for change in ("alter", "retype", "remove", "add"):
            content = copy.deepcopy(original)
            target = content
            for key in parents:
                target = target[key]
            match change:
                case "alter":
                    target[last] = altered(target[last])
                case "retype":
                    target[last] = [target[last]]
                case "remove":
                    del target[last]
                case "add":
                    target.update(extra=1) if isinstance(target, dict) else target.append(1)
            path.write_text(json.dumps(content))
            with pytest.raises(Tampered) as refusal:
                CanaryManifest.load(path)
            assert not any(canary.secret in str(refusal.value) for canary in manifest.canaries)


def test_reordered_or_dropped_canaries_are_found(manifest: CanaryManifest, tmp_path: Path) -> None:
    for number, canaries in enumerate((manifest.canaries[::-1], manifest.canaries[1:])):
        path = tmp_path / f"{number}.json"
        replace(manifest, canaries=canaries).save(path)
        with pytest.raises(Tampered, match="differs from its commitment"):
            CanaryManifest.load(path)


def test_the_commitment_hides_a_secret_behind_the_nonce(manifest: CanaryManifest) -> None:
    canary = manifest.canaries[0]
    assert canary.commit(manifest.nonce) == canary.commitment
    assert canary.commit("0" * 64) != canary.commitment
    assert len(bytes.fromhex(manifest.nonce)) == 32


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b'{\n"plan": ]', InputError, "line 2: not JSON"),
        (b"\xff\xfe\xff", InputError, "not UTF-8"),
        (b"[]", Tampered, "not the fields"),
        (b"3", Tampered, "not the fields"),
        (b"[" * 100_000, InputError, "nested too deeply"),
        (b'{"format": "another"}', Tampered, "not the fields"),
    ],
)
def test_a_file_that_is_no_manifest(
    content: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "canaries.json"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        CanaryManifest.load(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Cannot read the canary manifest"):
        CanaryManifest.load(tmp_path / "none.json")


# Planting


def rows_of(users: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"who": user, "body": "hello", "year": 2000} for user in users]


def test_planting_keeps_the_rows_and_appends_the_canaries() -> None:
    rows = rows_of(USERS)
    manifest = draw(CanaryPlan(users=8, ladder=(1, 4), seed=1), USERS)
    planted = list(plant(iter(rows), manifest, user_column="who", text_column="body"))
    assert planted[: len(rows)] == rows
    assert planted[len(rows) :] == [
        {"who": user, "body": text, "year": 2000} for user, text in manifest.insertions()
    ]


def test_a_canary_has_what_all_rows_of_its_owner_share() -> None:
    """A label of the person, and never what is about one text: spans, a name for the row."""
    plan = CanaryPlan(users=2, include=1.0, seed=1)
    manifest = draw(plan, ["1", "2"], documents=3)
    rows = [
        {"who": 1, "body": "a", "place": "x", "age": 7, "spans": [[0, 1]], "cells": "[[0, 1]]", "empty": " "},
        {"who": 2, "body": "b", "place": "y", "age": 8, "row": "b"},
        {"who": 2, "body": "c", "place": "y", "row": "c", "late": "z"},
    ]
    planted = list(plant(rows, manifest, user_column="who", text_column="body"))[3:]
    texts = {str(user): text for user, text in manifest.insertions()}
    assert sorted(planted, key=lambda row: row["who"]) == [
        {"who": 1, "place": "x", "age": 7, "body": texts["1"]},
        {"who": 2, "place": "y", "body": texts["2"]},
    ]


def test_planting_streams() -> None:
    manifest = draw(CanaryPlan(seed=1), USERS)
    endless = ({"who": "anyone", "body": "hello"} for _ in iter(int, 1))
    planted = plant(endless, manifest, user_column="who", text_column="body")
    assert [next(planted)["who"] for _ in range(3)] == ["anyone"] * 3


def test_planting_keeps_the_type_of_user_ids() -> None:
    plan = CanaryPlan(users=2, include=1.0, seed=1)
    manifest = draw(plan, ["1", "2", "3"])
    planted = list(plant(rows_of([1, 2, 3]), manifest, user_column="who", text_column="body"))
    assert len(planted) == 5
    assert all(isinstance(row["who"], int) for row in planted)


def test_planting_new_users() -> None:
    manifest = draw(CanaryPlan(users=2, owner="new", include=1.0, seed=1), USERS)
    planted = list(plant(rows_of(USERS), manifest, user_column="who", text_column="body"))
    assert [row["who"] for row in planted[-2:]] == ["canary-000", "canary-001"]
    with pytest.raises(CorpusError, match="Row 1 belongs to a user named like"):
        list(plant(rows_of(["canary-001"]), manifest, user_column="who", text_column="body"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"body": "hello"}, "Row 1 has no column 'who'"),
        ({"who": "a"}, "Row 1 has no column 'body'"),
        (
            {"who": "a", "body": [{"role": "user", "content": "private words"}]},
            "Row 1: .* render chat messages",
        ),
        ({"who": "a", "body": None}, "Row 1: .* no plain text"),
    ],
)
def test_planting_refuses_rows_it_cannot_use(row: dict[str, Any], message: str) -> None:
    manifest = draw(CanaryPlan(seed=1), USERS)
    with pytest.raises(CorpusError, match=message) as refusal:
        list(plant([row], manifest, user_column="who", text_column="body"))
    assert "private words" not in str(refusal.value)


def test_planting_refuses_another_corpus_and_a_column_named_twice() -> None:
    manifest = draw(CanaryPlan(users=10, seed=1), USERS)
    with pytest.raises(CorpusError, match="10 of the 10 users") as refusal:
        list(plant(rows_of(["stranger"]), manifest, user_column="who", text_column="body"))
    assert "person-" not in str(refusal.value)
    with pytest.raises(CorpusError, match="has 41 documents, and the canaries were drawn for 40"):
        list(plant(rows_of([*USERS, "one more"]), manifest, user_column="who", text_column="body"))
    with pytest.raises(InputError, match="both are 'body'"):
        list(plant(rows_of(USERS), manifest, user_column="body", text_column="body"))


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"template": "My ID"}, "exactly once, found 0"),
        ({"template": "{secret} {secret}"}, "exactly once, found 2"),
        ({"template": "{secret} {tag}"}, "before {secret}"),
        ({"template": "{tag} {tag} {secret}"}, "at most once"),
        ({"template": "{tag} {secret}", "prefix": "shared"}, "shared prefix has no tags"),
        ({"template": 5}, "template to be text"),
        ({"secret": "letters"}, "secret='letters' to be digits or words"),
        ({"prefix": "none"}, "prefix='none'"),
        ({"owner": "nobody"}, "owner='nobody'"),
        ({"length": 0}, "length=0"),
        ({"length": 101}, "length=101"),
        ({"length": 6.0}, "length=6.0"),
        ({"users": 0}, "users=0"),
        ({"users": True}, "users=True"),
        ({"ladder": ()}, "ladder to be a tuple"),
        ({"ladder": [1]}, "ladder to be a tuple"),
        ({"ladder": (1, 0)}, "every rung"),
        ({"include": -0.1}, "include=-0.1"),
        ({"include": 1.1}, "include=1.1"),
        ({"include": float("nan")}, "include=nan"),
        ({"include": "often"}, "include='often'"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0.5}, "seed=0.5"),
        ({"seed": 2**256}, "from 0 to 2"),
        ({"users": 10**12}, "users=1000000000000 .*1,000,000"),
        ({"ladder": (10**12,)}, "every rung of ladder=1000000000000"),
        ({"ladder": (100_000, 1)}, "at most 1,000,000 documents, not 1,000,010"),
        ({"held_out_share": 0.95}, "held_out_share=0.95"),
        ({"held_out_share": -0.1}, "held_out_share=-0.1"),
        ({"held_out_seed": 0.5}, "held_out_seed=0.5"),
        ({"template": "\udcff {secret}"}, "half of a surrogate pair"),
    ],
)
def test_a_bad_plan(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CanaryPlan(**change)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (None, "need a public list"),
        ([], "at least 2 words, found 0"),
        (["one"], "at least 2 words, found 1"),
        (["one", "two", "one"], "1 duplicates"),
        (["one", ""], "empty word"),
        (["one", "two three"], "space or brace"),
        (["one", "{tag}"], "space or brace"),
        (["one", "two\ud800"], "half of a surrogate pair"),
        (["one", "two"], "20 candidates, not 16"),
    ],
)
def test_a_bad_word_list(words: list[str] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(CanaryPlan(secret="words", length=4, seed=1), USERS, words=words)


def test_too_few_candidates_and_just_enough() -> None:
    with pytest.raises(InputError, match="20 candidates, not 10"):
        draw(CanaryPlan(length=1), USERS)
    assert draw(CanaryPlan(length=2), USERS).candidates == 100
    with pytest.raises(InputError, match=r"26 canaries .* at least 104 candidates"):
        draw(CanaryPlan(length=2, users=26, prefix="shared"), USERS)


def test_too_many_users_and_just_enough() -> None:
    assert len(draw(CanaryPlan(users=40), USERS).canaries) == 40
    with pytest.raises(
        InputError, match="users=41 to be at most 40, those of the corpus's 40 users"
    ) as refusal:
        draw(CanaryPlan(users=41), USERS)
    assert "person-" not in str(refusal.value)


def test_a_corpus_that_has_canary_users_already() -> None:
    with pytest.raises(InputError, match="1 users of the corpus are named like"):
        draw(CanaryPlan(owner="new"), [*USERS, "canary-003"])
