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

from tacit.corpus.canaries import CanaryManifest, CanaryPlan, draw_canaries, plant
from tacit.errors import CorpusError, InputError, OutputExists, Tampered

USERS = [f"person-{number}" for number in range(40)]
WORDS = [f"{head}{tail}" for head in "bcdfgklmn" for tail in ("ale", "ind", "ore", "ump", "ask")]


# Prefixes, ladders, owners


def test_distinct_prefixes_are_distinct_and_go_in_front_by_default() -> None:
    prefixes = [canary.prefix for canary in draw_canaries(CanaryPlan(users=40, seed=1), USERS).canaries]
    assert len(set(prefixes)) == 40
    assert all(prefix.endswith(": My ID is: ") for prefix in prefixes)


def test_a_tag_goes_where_the_template_says_and_uses_the_callers_words() -> None:
    plan = CanaryPlan(template="Code of {tag} = {secret}.", users=40, seed=1)
    for canary in draw_canaries(plan, USERS, words=WORDS).canaries:
        tag = canary.prefix.removeprefix("Code of ").removesuffix(" = ")
        assert set(tag.split(" ")) <= set(WORDS)
        assert canary.text == f"Code of {tag} = {canary.secret}."


def test_tags_stay_distinct_with_a_tiny_word_list() -> None:
    manifest = draw_canaries(CanaryPlan(users=40, seed=1), USERS, words=["on", "off"])
    assert len({canary.prefix for canary in manifest.canaries}) == 40


def test_the_papers_ladders() -> None:
    """Regularisation: 14 canaries and 195 documents per user. CRT: ten canaries, twenty times each."""
    rungs = (*range(1, 11), 20, 30, 40, 50)
    plan = CanaryPlan("{secret}", "words", 5, "shared", users=4, ladder=rungs, include=1.0, seed=1)
    manifest = draw_canaries(plan, USERS, words=WORDS)
    assert manifest.candidates == len(WORDS) ** 5
    assert len(manifest.canaries) == 4 * 14
    assert Counter(user for user, _ in manifest.insertions()) == {c.user: 195 for c in manifest.canaries}
    crt = draw_canaries(CanaryPlan(prefix="shared", ladder=(20,), include=1.0, seed=1), USERS)
    assert set(Counter(text for _, text in crt.insertions()).values()) == {20}
    assert crt.candidates == 10**6


def test_only_inserted_secrets_are_in_the_insertions() -> None:
    manifest = draw_canaries(CanaryPlan(users=30, ladder=(1, 3), seed=6), USERS)
    planted = Counter(manifest.insertions())
    expected = {(c.user, c.text): c.repetitions for c in manifest.canaries if c.inserted}
    assert planted == expected
    assert 0 < len(expected) < 60
    assert not {canary.twin_text for canary in manifest.canaries} & {text for _, text in planted}


def test_new_owners() -> None:
    manifest = draw_canaries(CanaryPlan(users=3, owner="new", ladder=(1, 2), seed=1), USERS)
    assert [c.user for c in manifest.canaries] == [f"canary-00{number}" for number in (0, 0, 1, 1, 2, 2)]


# Seeds


def test_a_seed_repeats_the_draw_whatever_the_order_of_users() -> None:
    plan = CanaryPlan(seed=12)
    manifest = draw_canaries(plan, USERS)
    assert manifest == draw_canaries(plan, USERS[::-1] + USERS)
    assert manifest.seeded_by_caller
    assert manifest != draw_canaries(replace(plan, seed=13), USERS)


def test_without_a_seed_every_draw_differs_and_can_be_repeated_from_the_manifest() -> None:
    one, other = (draw_canaries(CanaryPlan(), USERS) for _ in range(2))
    assert not one.seeded_by_caller
    assert one.seed != other.seed
    assert one.nonce != other.nonce
    assert [c.secret for c in one.canaries] != [c.secret for c in other.canaries]
    again = draw_canaries(CanaryPlan(seed=one.seed), USERS)
    assert [c.secret for c in again.canaries] == [c.secret for c in one.canaries]
    assert again.nonce != one.nonce  # the nonce is fresh entropy, not a function of the seed


def test_more_canaries_leave_the_earlier_ones_alone() -> None:
    few, more = (draw_canaries(CanaryPlan(users=n, owner="new", seed=1), []).canaries for n in (5, 50))
    assert [(c.secret, c.twin, c.inserted) for c in few] == [(c.secret, c.twin, c.inserted) for c in more[:5]]


# The manifest


@pytest.fixture(scope="module")
def manifest() -> CanaryManifest:
    return draw_canaries(CanaryPlan(users=3, ladder=(1, 2), seed=20), USERS, words=WORDS)


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
    unseeded = draw_canaries(CanaryPlan(), USERS)
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
    manifest = draw_canaries(CanaryPlan(users=8, ladder=(1, 4), seed=1), USERS)
    planted = list(plant(iter(rows), manifest, user_column="who", text_column="body"))
    assert planted[: len(rows)] == rows
    assert planted[len(rows) :] == [{"who": user, "body": text} for user, text in manifest.insertions()]


def test_planting_streams() -> None:
    manifest = draw_canaries(CanaryPlan(seed=1), USERS)
    endless = ({"who": "anyone", "body": "hello"} for _ in iter(int, 1))
    planted = plant(endless, manifest, user_column="who", text_column="body")
    assert [next(planted)["who"] for _ in range(3)] == ["anyone"] * 3


def test_planting_keeps_the_type_of_user_ids() -> None:
    plan = CanaryPlan(users=2, include=1.0, seed=1)
    manifest = draw_canaries(plan, ["1", "2", "3"])
    planted = list(plant(rows_of([1, 2, 3]), manifest, user_column="who", text_column="body"))
    assert len(planted) == 5
    assert all(isinstance(row["who"], int) for row in planted)


def test_planting_new_users() -> None:
    manifest = draw_canaries(CanaryPlan(users=2, owner="new", include=1.0, seed=1), USERS)
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
    manifest = draw_canaries(CanaryPlan(seed=1), USERS)
    with pytest.raises(CorpusError, match=message) as refusal:
        list(plant([row], manifest, user_column="who", text_column="body"))
    assert "private words" not in str(refusal.value)


def test_planting_refuses_another_corpus_and_a_column_named_twice() -> None:
    manifest = draw_canaries(CanaryPlan(users=10, seed=1), USERS)
    with pytest.raises(CorpusError, match="10 of the 10 users") as refusal:
        list(plant(rows_of(["stranger"]), manifest, user_column="who", text_column="body"))
    assert "person-" not in str(refusal.value)
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
        (["one", "two"], "20 candidates, not 16"),
    ],
)
def test_a_bad_word_list(words: list[str] | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_canaries(CanaryPlan(secret="words", length=4, seed=1), USERS, words=words)


def test_too_few_candidates_and_just_enough() -> None:
    with pytest.raises(InputError, match="20 candidates, not 10"):
        draw_canaries(CanaryPlan(length=1), USERS)
    assert draw_canaries(CanaryPlan(length=2), USERS).candidates == 100
    with pytest.raises(InputError, match=r"26 canaries .* at least 104 candidates"):
        draw_canaries(CanaryPlan(length=2, users=26, prefix="shared"), USERS)


def test_too_many_users_and_just_enough() -> None:
    assert len(draw_canaries(CanaryPlan(users=40), USERS).canaries) == 40
    with pytest.raises(InputError, match="users=41 to be at most the corpus's 40 users") as refusal:
        draw_canaries(CanaryPlan(users=41), USERS)
    assert "person-" not in str(refusal.value)


def test_a_corpus_that_has_canary_users_already() -> None:
    with pytest.raises(InputError, match="1 users of the corpus are named like"):
        draw_canaries(CanaryPlan(owner="new"), [*USERS, "canary-003"])
