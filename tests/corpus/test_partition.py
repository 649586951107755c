"""Every user is in exactly one half, nobody moves for a newcomer, and the key stays private."""

from __future__ import annotations

import hashlib
import hmac
import json
import stat
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from tacit.corpus import CorpusSource, Partition, Slot, UserCorpus, read_key
from tacit.errors import CorpusError, InputError, OutputExists, PublicModelWarning, RecipeError, Tampered

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
users_of_any_name = st.sets(
    st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=40
)
ways = st.sampled_from(["hash", "balanced"])


def corpus_of(users: Any) -> UserCorpus:
    return UserCorpus.from_pairs([(user, f"text of {number}") for number, user in enumerate(users)])


def create(corpus: UserCorpus, parts: int, assign: Any = "hash", key: bytes = KEY) -> Partition:
    """A partition in which empty halves are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PublicModelWarning)
        return Partition.create(corpus, parts, assign, key)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@settings(max_examples=40, deadline=None)
@given(users_of_any_name, st.integers(1, 6), ways)
def test_halves_are_disjoint_and_complete(users: set[str], parts: int, assign: Any) -> None:
    corpus = corpus_of(sorted(users))
    partition = create(corpus, parts, assign)
    halves = [partition.users_in(slot.part, slot.half) for slot in partition.slots]
    assert sorted(user for half in halves for user in half) == sorted(users)
    for slot, half in zip(partition.slots, halves, strict=True):
        assert all(partition.slot_of(user) == slot for user in half)
        assert set(partition.corpus_of(corpus, slot.part, slot.half).users) == set(half)
    for part in range(parts):
        both = partition.users_in(part)
        assert sorted(both) == sorted(partition.users_in(part, 0) + partition.users_in(part, 1))
        assert set(partition.corpus_of(corpus, part).users) == set(both)


@settings(max_examples=40, deadline=None)
@given(users_of_any_name, st.text("xyz", min_size=1), st.integers(1, 6))
def test_hash_adding_a_user_moves_nobody(users: set[str], newcomer: str, parts: int) -> None:
    before = create(corpus_of(users), parts)
    after = create(corpus_of([newcomer, *users - {newcomer}]), parts)
    assert all(before.slot_of(user) == after.slot_of(user) for user in users)


def test_balanced_adding_a_user_does_move_others() -> None:
    # Not a wish, but why `hash` is the default; if this ever fails, the documentation is wrong.
    users = [f"user{n}" for n in range(50)]
    before, after = create(corpus_of(users), 4, "balanced"), create(corpus_of([*users, "new"]), 4, "balanced")
    assert any(before.slot_of(user) != after.slot_of(user) for user in users)


@settings(max_examples=40, deadline=None)
@given(users_of_any_name, st.integers(1, 6))
def test_balanced_sizes_differ_by_at_most_one(users: set[str], parts: int) -> None:
    partition = create(corpus_of(users), parts, "balanced")
    sizes = [len(partition.users_in(part)) for part in range(parts)]
    assert max(sizes) - min(sizes) <= 1
    for part in range(parts):
        assert abs(len(partition.users_in(part, 0)) - len(partition.users_in(part, 1))) <= 1


@pytest.mark.parametrize("assign", ["hash", "balanced"])
def test_order_of_the_corpus_does_not_matter(assign: Any) -> None:
    users = [f"user{n}" for n in range(50)]
    forward, backward = create(corpus_of(users), 3, assign), create(corpus_of(users[::-1]), 3, assign)
    assert all(forward.slot_of(user) == backward.slot_of(user) for user in users)


@pytest.mark.parametrize("parts", [3, 8])
def test_hash_slots_are_uniform(parts: int) -> None:
    partition = create(corpus_of([f"user{n}" for n in range(20_000)]), parts)
    counts = Counter(partition.slot_of(f"user{n}") for n in range(20_000))
    assert chisquare([counts[slot] for slot in partition.slots]).pvalue > 1e-4
    # The other side: the test would notice one slot with a tenth more than its share.
    skewed = [counts[slot] for slot in partition.slots]
    skewed[0] = round(skewed[0] * 1.1) + 200
    assert chisquare(skewed).pvalue < 1e-4


def test_known_answers_pin_the_assignment() -> None:
    # The first 128 bits of HMAC-SHA256(key, id) as a big-endian number, scaled to 2k slots.
    partition = create(corpus_of(["ann", "bøb"]), 5)
    for user in ("ann", "bøb"):
        number = int.from_bytes(hmac.new(KEY, user.encode(), hashlib.sha256).digest()[:16], "big")
        assert partition.slot_of(user) == Slot(*divmod(number * 10 // 2**128, 2))


@pytest.mark.parametrize("assign", ["hash", "balanced"])
def test_key_decides_the_assignment(assign: Any) -> None:
    corpus = corpus_of([f"user{n}" for n in range(200)])

    def slots(partition: Partition) -> list[Slot]:
        return [partition.slot_of(user) for user in corpus.users]

    first, other = create(corpus, 4, assign), create(corpus, 4, assign, OTHER_KEY)
    assert slots(first) == slots(create(corpus, 4, assign))
    # Independent assignments agree on one user in eight; 60 of 200 would be ten standard deviations off.
    assert sum(a == b for a, b in zip(slots(first), slots(other), strict=True)) < 60
    assert first.key_fingerprint != other.key_fingerprint


def test_default_key_is_fresh() -> None:
    corpus = corpus_of([f"user{n}" for n in range(100)])
    first, second = Partition.create(corpus, 1), Partition.create(corpus, 1)
    assert first.key != second.key
    assert len(first.key) == 32


def test_empty_halves_are_legal_and_named() -> None:
    corpus = corpus_of(["ann"])
    with pytest.warns(PublicModelWarning, match=r"3 of 4 halves hold no user .*part \d half \d") as caught:
        partition = Partition.create(corpus, 2, key=KEY)
    part, half = partition.slot_of("ann")
    message = str(caught[0].message)
    for slot in partition.slots:
        assert (f"part {slot.part} half {slot.half}" in message) == (slot != (part, half))
    assert caught[0].filename == __file__
    assert len(partition.corpus_of(corpus, part, 1 - half)) == 0
    assert len(partition.corpus_of(corpus, part)) == 1


def test_many_empty_halves_are_named_in_part() -> None:
    with pytest.warns(PublicModelWarning) as caught:
        Partition.create(corpus_of(["ann"]), 50, key=KEY)
    message = str(caught[0].message)
    assert message.startswith("99 of 100 halves hold no user")
    assert message.count("half ") == 5
    assert message.endswith(" and 94 more.")


@pytest.mark.parametrize("parts", [0, -1, 2.0, "3", True, None, 10_001, 10**12])
def test_number_of_parts_must_be_a_positive_whole_number(parts: Any) -> None:
    with pytest.raises(InputError, match="parts="):
        Partition.create(corpus_of(["ann"]), parts)


def test_other_refusals(tmp_path: Path) -> None:
    corpus = corpus_of(["ann", "bob"])
    with pytest.raises(RecipeError, match="'hash' or 'balanced'"):
        Partition.create(corpus, 1, "random")  # type: ignore[arg-type]
    for length in (31, 33):
        with pytest.raises(RecipeError, match=f"32 bytes, got {length}"):
            Partition.create(corpus, 1, key=b"x" * length)
    with pytest.raises(CorpusError, match="empty"):
        Partition.create(corpus.of_users([]), 1)
    (tmp_path / "a.txt").write_text("one")
    undivided = UserCorpus.read(CorpusSource(str(tmp_path)), without_users=True)
    with pytest.raises(CorpusError, match="cut it in blocks"):
        Partition.create(undivided, 1)
    partition = create(corpus, 2)
    with pytest.raises(CorpusError, match="not in this partition") as caught:
        partition.corpus_of(corpus_of(["ann", "eve"]), 0)
    assert "eve" not in str(caught.value)
    for part, half in [(2, 0), (-1, 0), (0, 2), (0, -1)]:
        with pytest.raises(ValueError, match="Expected part"):
            partition.users_in(part, half)


def test_corpus_of_takes_a_part_of_the_corpus() -> None:
    corpus = corpus_of([f"user{n}" for n in range(40)])
    partition = create(corpus, 2)
    some = corpus.of_users(corpus.users[:10])
    found = [u for slot in partition.slots for u in partition.corpus_of(some, slot.part, slot.half).users]
    assert sorted(found) == sorted(some.users)


@pytest.mark.parametrize("assign", ["hash", "balanced"])
def test_save_and_load(tmp_path: Path, assign: Any) -> None:
    corpus = corpus_of([f"user{n}" for n in range(30)] + ["ünï\u2028"])
    partition = create(corpus, 3, assign)
    partition.save(tmp_path / "run")
    loaded = Partition.load(tmp_path / "run")
    assert loaded == partition
    assert [loaded.slot_of(user) for user in corpus.users] == [
        partition.slot_of(user) for user in corpus.users
    ]
    with pytest.raises(OutputExists):
        partition.save(tmp_path / "run")
    assert Partition.load(tmp_path / "run") == partition


def test_private_things_stay_private(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "private").mkdir(parents=True, mode=0o755)
    corpus = corpus_of([f"user{n}" for n in range(30)])
    partition = create(corpus, 3)
    partition.save(folder)
    assert mode(folder / "private") == 0o700
    assert {file.name: mode(file) for file in (folder / "private").iterdir()} == {
        "partition.key": 0o600,
        "assignment.arrow": 0o600,
    }
    assert json.loads((folder / "partition.json").read_text()) == {
        "version": 1,
        "assign": "hash",
        "parts": 3,
        "halves": 2,
        "key_fingerprint": partition.key_fingerprint,
    }
    assert KEY.hex() not in repr(partition)
    assert "user1" not in repr(partition)
    assert repr(KEY)[2:-1] not in repr(partition)


def test_failed_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError("No space left on device")

    partition = create(corpus_of(["ann"]), 1)
    monkeypatch.setattr("tacit.corpus.partition.write_json", full)
    with pytest.raises(OSError, match="No space"):
        partition.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "run" / "private").mkdir(parents=True)
    with pytest.raises(OSError, match="No space"):
        partition.save(tmp_path / "run")
    assert list((tmp_path / "run").rglob("*")) == [tmp_path / "run" / "private"]


def test_a_saved_key_is_read_again_and_so_is_one_of_an_early_version(tmp_path: Path) -> None:
    create(corpus_of(["ann"]), 1).save(tmp_path / "run")
    path = tmp_path / "run" / "private" / "partition.key"
    assert path.read_bytes() == b"tacit partition key 1 " + KEY.hex().encode() + b"\n"
    assert read_key(path) == KEY
    path.write_bytes(KEY)
    assert read_key(path) == KEY
    assert Partition.load(tmp_path / "run").key == KEY


@pytest.mark.parametrize(
    "content",
    [
        b"",
        KEY[:31],
        KEY + b"\n",
        b"a text of thirty-two characters!",
        KEY.hex().encode(),
        b"tacit partition key 2 " + KEY.hex().encode() + b"\n",
        b"tacit partition key 1 " + KEY.hex().encode() + b"\n\n",
        b"tacit partition key 1 " + KEY.hex()[:-2].encode() + b"\n",
        b"tacit partition key 1 " + b"zz" * 32 + b"\n",
        bytes(range(256)) * 100,
    ],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InputError, match=r"key: is not a partition key; give the partition\.key"):
        read_key(tmp_path / "key")


def test_a_key_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=r"cannot be read .*give the partition\.key"):
            read_key(path)


def _other_key(folder: Path) -> None:
    (folder / "private" / "partition.key").write_bytes(OTHER_KEY)


def _other_key_everywhere(folder: Path) -> None:
    _other_key(folder)
    _set("key_fingerprint", hashlib.sha256(OTHER_KEY).hexdigest())(folder)


def _renamed_user(folder: Path) -> None:
    path = folder / "private" / "assignment.arrow"
    path.write_bytes(path.read_bytes().replace(b"user10", b"user99"))


def _cut_assignment(folder: Path) -> None:
    path = folder / "private" / "assignment.arrow"
    path.write_bytes(path.read_bytes()[:-40])


def _set(name: str, value: object) -> Any:
    def change(folder: Path) -> None:
        path = folder / "partition.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


@pytest.mark.parametrize("assign", ["hash", "balanced"])
@pytest.mark.parametrize(
    "damage",
    [
        _other_key,
        _other_key_everywhere,
        _renamed_user,
        _cut_assignment,
        _set("parts", 4),
        _set("parts", 0),
        _set("parts", 10**12),
        _set("parts", True),
        lambda folder: (folder / "private" / "partition.key").write_bytes(b"no key"),
        _set("halves", 3),
        _set("assign", "random"),
        _set("key_fingerprint", None),
        lambda folder: (folder / "partition.json").write_text("{"),
    ],
)
def test_changed_partition_is_refused(tmp_path: Path, damage: Any, assign: Any) -> None:
    create(corpus_of([f"user{n}" for n in range(40)]), 3, assign).save(tmp_path)
    Partition.load(tmp_path)
    damage(tmp_path)
    with pytest.raises(Tampered):
        Partition.load(tmp_path)


def test_missing_pieces_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"partition\.json cannot be read"):
        Partition.load(tmp_path)
    create(corpus_of(["ann"]), 1).save(tmp_path)
    _set("version", 2)(tmp_path)
    with pytest.raises(CorpusError, match="version 1"):
        Partition.load(tmp_path)
    _set("version", 1)(tmp_path)
    (tmp_path / "private" / "partition.key").unlink()
    with pytest.raises(CorpusError, match="private folder"):
        Partition.load(tmp_path)


def test_summary_adds_up() -> None:
    corpus = UserCorpus.from_pairs([(f"user{n % 20}", "a b c"[: 1 + n % 5]) for n in range(100)])
    partition = create(corpus, 2)
    rows = partition.summary(corpus, lambda texts: [len(text.split()) for text in texts])
    assert [(row.part, row.half) for row in rows] == partition.slots
    assert sum(row.users for row in rows) == 20
    assert sum(row.documents for row in rows) == 100
    for row in rows:
        half = partition.corpus_of(corpus, row.part, row.half)
        assert row.users == len(half.users)
        assert row.documents == len(half)
        assert row.tokens == sum(len(document.text.split()) for document in half.documents())
    assert [row.tokens for row in partition.summary(corpus)] == [None] * 4
