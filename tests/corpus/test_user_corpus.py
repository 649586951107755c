"""A corpus gives back what it was given, from disk, and leaves nothing behind."""

from __future__ import annotations

import gc
import json
import multiprocessing
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tacit.corpus import CorpusSource, Partition, UserCorpus, read_corpus, summarise
from tacit.errors import CorpusError, InputError, OutputExists, Tampered
from tacit.models.tokenizer import PublicTokenizer
from tacit.progress import Silent
from tacit.recipes import CorpusSection

PAIRS = [("ann", "one"), ("bob", "two\u2028\r\n"), ("ann", "three 👩🏽‍🚀"), ("cat", "four"), ("bob", "five")]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where corpora live in these tests, so that what they leave behind can be seen."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def pairs_of(corpus: UserCorpus) -> list[tuple[str, str]]:
    return [(document.user, document.text) for document in corpus.documents()]


def write_jsonl(path: Path, *records: object) -> CorpusSource:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return CorpusSource(str(path), user="u", text="t")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_read_keeps_order_and_users(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "c.jsonl", *({"u": user, "t": text} for user, text in PAIRS))
    corpus = UserCorpus.read(source)
    assert pairs_of(corpus) == PAIRS
    assert [document.index for document in corpus.documents()] == [0, 1, 2, 3, 4]
    assert corpus.users == ("ann", "bob", "cat")
    assert (len(corpus), corpus.unit, corpus.skipped) == (5, "user", {})
    assert corpus.document_counts().tolist() == [2, 2, 1]
    assert corpus.user_codes().tolist() == [0, 1, 0, 2, 1]
    assert [(d.text, d.index) for d in corpus.documents_of("bob")] == [(PAIRS[1][1], 1), ("five", 4)]
    assert list(corpus.documents_of("nobody")) == []
    assert corpus.fingerprint == UserCorpus.from_pairs(PAIRS).fingerprint
    assert "one" not in repr(corpus)
    assert "ann" not in repr(corpus)


def test_many_batches_are_read_in_order(tmp_path: Path) -> None:
    pairs = [(f"user{n % 7}", f"{n} " + "x" * (n % 900)) for n in range(10_000)]
    corpus = UserCorpus.from_pairs(pairs)
    assert pairs_of(corpus) == pairs
    keep = np.arange(len(pairs)) % 1000 == 999
    assert pairs_of(corpus.select(keep)) == [pair for pair, kept in zip(pairs, keep, strict=True) if kept]
    assert [d.text for d in corpus.documents_of("user3")] == [text for user, text in pairs if user == "user3"]


def test_large_documents_and_many_users() -> None:
    pairs = [(f"user{n}", "é" * 700_000) for n in range(4)]
    assert pairs_of(UserCorpus.from_pairs(pairs)) == pairs


def test_temporary_folder_is_private_and_goes_with_the_last_view(temporary: Path) -> None:
    corpus = UserCorpus.from_pairs(PAIRS)
    (folder,) = temporary.iterdir()
    assert mode(folder) == 0o700
    assert {mode(file) for file in folder.iterdir()} == {0o600}
    view = corpus.of_users(["bob"])
    del corpus
    gc.collect()
    assert pairs_of(view) == [PAIRS[1], PAIRS[4]]
    del view
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_close_removes_the_folder_at_once(temporary: Path) -> None:
    corpus = UserCorpus.from_pairs(PAIRS)
    corpus.close()
    assert list(temporary.iterdir()) == []


def _forget(corpus: UserCorpus) -> None:
    corpus._folder.remove()


def test_forked_process_does_not_remove_the_folder() -> None:
    corpus = UserCorpus.from_pairs(PAIRS)
    child = multiprocessing.get_context("fork").Process(target=_forget, args=(corpus,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert pairs_of(corpus) == PAIRS


@pytest.mark.parametrize("storage", [None, "chosen"])
def test_nothing_is_left_behind_when_a_row_is_refused(
    tmp_path: Path, temporary: Path, storage: str | None
) -> None:
    source = write_jsonl(tmp_path / "c.jsonl", {"u": "ann", "t": "one"}, {"u": None, "t": "two"})
    (tmp_path / "chosen").mkdir()
    with pytest.raises(CorpusError, match="line 2: the user is null"):
        UserCorpus.read(source, storage=tmp_path / storage if storage else None)
    assert list((tmp_path / "chosen").iterdir()) == []
    assert list(temporary.iterdir()) == []


LIVES_UNTIL_KILLED = """
import sys, tempfile, time
from tacit.corpus import UserCorpus
tempfile.tempdir = sys.argv[1]
corpus = UserCorpus.from_pairs([("ann", "one")])
print("ready", flush=True)
time.sleep(600)
"""


def test_what_a_killed_process_left_is_swept_and_nothing_else(temporary: Path) -> None:
    command = [sys.executable, "-c", LIVES_UNTIL_KILLED, str(temporary)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        (theirs,) = temporary.iterdir()
        assert theirs.name.startswith(f"tacit-corpus-{process.pid}-")
        ours = UserCorpus.from_pairs(PAIRS)
        assert theirs.is_dir()
        process.kill()
    bystanders = ("tacit-corpus-", "tacit-corpus-me", f"tacit-corpus-{2**70}-x", "other-1")
    for name in bystanders:
        (temporary / name).mkdir()
    (temporary / f"tacit-corpus-{process.pid}-link").symlink_to(temporary / "other-1")
    (temporary / f"tacit-corpus-{process.pid}-file").touch()
    again = UserCorpus.from_pairs(PAIRS)
    assert not theirs.exists()
    assert all((temporary / name).is_dir() for name in bystanders)
    assert (temporary / f"tacit-corpus-{process.pid}-link").is_symlink()
    assert (temporary / f"tacit-corpus-{process.pid}-file").is_file()
    assert pairs_of(ours) == pairs_of(again) == PAIRS


def test_a_locked_folder_stays_although_its_process_has_no_number_here(temporary: Path) -> None:
    corpus = UserCorpus.from_pairs(PAIRS)
    (folder,) = temporary.iterdir()
    # As a process in another container looks from here: its number is nobody's, its lock is held.
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    elsewhere = temporary / f"tacit-corpus-{gone.pid}-elsewhere"
    folder.rename(elsewhere)
    other = UserCorpus.from_pairs(PAIRS)
    assert elsewhere.is_dir()
    corpus.close()
    assert UserCorpus.from_pairs(PAIRS).users == other.users
    assert not elsewhere.exists()


def test_nothing_is_left_behind_when_reading_is_interrupted(temporary: Path) -> None:
    def interrupted() -> Iterator[tuple[str, str]]:
        yield PAIRS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        UserCorpus.from_pairs(interrupted())
    # The error is still held, and with it every frame: only a removal on purpose has removed the folder.
    assert caught.tb is not None
    assert list(temporary.iterdir()) == []


def test_skipped_rows_are_counted_and_stay_counted(tmp_path: Path) -> None:
    records = [{"u": "ann", "t": "one"}, {"u": None, "t": "x"}, {"u": "bob", "t": ""}, {"u": None, "t": "y"}]
    source = write_jsonl(tmp_path / "c.jsonl", *records)
    corpus = UserCorpus.read(source, skip_bad=True)
    corpus.save(tmp_path / "kept")
    expected = {"empty document": 1, "null user": 2}
    assert corpus.skipped == expected
    assert corpus.select(np.array([True])).skipped == expected
    assert UserCorpus.load(tmp_path / "kept").skipped == expected
    with pytest.raises(TypeError):
        corpus.skipped["null user"] = 0  # type: ignore[index]


def test_corpus_without_documents_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no documents; a corpus needs"):
        UserCorpus.from_pairs([])
    source = write_jsonl(tmp_path / "c.jsonl", {"u": None, "t": "x"})
    with pytest.raises(CorpusError, match=r"no documents \(1 bad rows were skipped\)"):
        UserCorpus.read(source, skip_bad=True)
    empty = UserCorpus.from_pairs(PAIRS).of_users([])
    assert (len(empty), empty.users, pairs_of(empty)) == (0, (), [])
    with pytest.raises(CorpusError, match="no documents"):
        empty.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("pair", [("", "x"), ("ann", ""), (None, "x"), ("ann", None), ("ann", "\ud800")])
def test_bad_pair_is_refused(pair: Any) -> None:
    with pytest.raises(CorpusError, match="pair 2: "):
        UserCorpus.from_pairs([("ann", "one"), pair])


def test_progress_is_reported(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "c.jsonl", {"u": "ann", "t": "one"})
    increments: list[int] = []
    UserCorpus.read(source, progress=increments.append)
    assert sum(increments) == Path(source.path).stat().st_size


def test_save_and_load(tmp_path: Path) -> None:
    corpus = UserCorpus.from_pairs(PAIRS)
    view = corpus.select(np.array([False, True, True, False, True]))
    view.save(tmp_path / "saved")
    assert mode(tmp_path / "saved") == 0o700
    assert {mode(file) for file in (tmp_path / "saved").iterdir()} == {0o600}
    loaded = UserCorpus.load(tmp_path / "saved")
    assert pairs_of(loaded) == pairs_of(view) == PAIRS[1:3] + PAIRS[4:]
    assert loaded.users == view.users == ("bob", "ann")
    assert loaded.fingerprint == view.fingerprint != corpus.fingerprint
    loaded.close()
    assert (tmp_path / "saved").exists()
    with pytest.raises(OutputExists):
        corpus.save(tmp_path / "saved")
    assert pairs_of(UserCorpus.load(tmp_path / "saved")) == pairs_of(view)


def _replace_text(folder: Path) -> None:
    path = folder / "documents.arrow"
    path.write_bytes(path.read_bytes().replace(b"four", b"fort"))


def _replace_user(folder: Path) -> None:
    path = folder / "users.arrow"
    path.write_bytes(path.read_bytes().replace(b"bob", b"eve"))


def _cut(folder: Path) -> None:
    path = folder / "documents.arrow"
    path.write_bytes(path.read_bytes()[:-50])


def _drop_users(folder: Path) -> None:
    (folder / "users.arrow").unlink()


def _set_fact(name: str, value: object) -> Any:
    def change(folder: Path) -> None:
        path = folder / "corpus.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return change


@pytest.mark.parametrize(
    "damage",
    [
        _replace_text,
        _replace_user,
        _cut,
        _drop_users,
        _set_fact("documents", 4),
        _set_fact("users", 2),
        _set_fact("unit", "person"),
        _set_fact("surprise", 1),
        lambda folder: (folder / "corpus.json").write_text("{"),
    ],
)
def test_changed_corpus_is_refused(tmp_path: Path, damage: Any) -> None:
    UserCorpus.from_pairs(PAIRS).save(tmp_path / "saved")
    UserCorpus.load(tmp_path / "saved")
    damage(tmp_path / "saved")
    with pytest.raises(Tampered):
        UserCorpus.load(tmp_path / "saved")


def test_folder_that_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="not a saved corpus"):
        UserCorpus.load(tmp_path)
    UserCorpus.from_pairs(PAIRS).save(tmp_path / "saved")
    _set_fact("version", 2)(tmp_path / "saved")
    with pytest.raises(CorpusError, match="version 1"):
        UserCorpus.load(tmp_path / "saved")


def test_fingerprint_changes_with_any_change() -> None:
    variants = [
        PAIRS,
        PAIRS[:-1],
        PAIRS[::-1],
        [*PAIRS[:-1], ("bob", "fiwe")],
        [*PAIRS[:-1], ("ann", "five")],
        [("ab", "c")],
        [("a", "bc")],
        [("a", "b"), ("c", "d")],
        [("a", "bcd")],
    ]
    assert len({UserCorpus.from_pairs(pairs).fingerprint for pairs in variants}) == len(variants)


def test_selecting_everything_keeps_the_fingerprint() -> None:
    corpus = UserCorpus.from_pairs(PAIRS)
    assert corpus.select(np.ones(5, np.bool_)).fingerprint == corpus.fingerprint
    same = corpus.of_users(["ann"]).fingerprint
    assert same == UserCorpus.from_pairs([PAIRS[0], PAIRS[2]]).fingerprint


@pytest.mark.parametrize("keep", [np.ones(4, np.bool_), np.ones(5, np.int64), np.ones((5, 1), np.bool_)])
def test_mask_of_a_wrong_shape_is_refused(keep: Any) -> None:
    with pytest.raises(ValueError, match="Expected keep of 5 booleans"):
        UserCorpus.from_pairs(PAIRS).select(keep)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_views_of_views_agree_with_lists(rows: list[tuple[str, bool, bool]]) -> None:
    pairs = [(user, f"text {number}") for number, (user, _, _) in enumerate(rows)]
    first = np.array([row[1] for row in rows])
    view = UserCorpus.from_pairs(pairs).select(first)
    second = np.array([row[2] for row in rows], np.bool_)[first]
    expected = [pair for pair, row in zip(pairs, rows, strict=True) if row[1] and row[2]]
    final = view.select(second)
    assert pairs_of(final) == expected
    assert list(final.users) == list(dict.fromkeys(user for user, _ in expected))
    for user in final.users:
        assert [d.text for d in final.documents_of(user)] == [text for name, text in expected if name == user]


def build_tokenizer(vocabulary: int) -> Any:
    from transformers import PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    trained.train_from_iterator(["one two three four five six"] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=trained, bos_token="<s>")
    return PublicTokenizer.wrap(fast, start_token=0, vocabulary="public")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(300)


@pytest.mark.parametrize("size", [1, 3, 5, 1000])
def test_blocks_hold_every_token_once(tokenizer: Any, size: int) -> None:
    texts = [f"one two {n} 👩🏽‍🚀 four" for n in range(600)]
    corpus = UserCorpus.from_pairs([(f"user{n % 3}", text) for n, text in enumerate(texts)])
    expected = [i for text in texts for i in tokenizer.encode([text])[0]]
    blocks = corpus.in_blocks(tokenizer, size)
    tokens = [document.tokens or () for document in blocks.documents()]
    assert [i for ids in tokens for i in ids] == expected
    assert {len(ids) for ids in tokens[:-1]} <= {size}
    assert 1 <= len(tokens[-1]) <= size
    assert blocks.users[:2] == ("block-00000000", "block-00000001")
    assert len(blocks.users) == len(blocks) == -(-len(expected) // size)
    assert summarise(blocks).tokens == len(expected)
    halves = Partition.create(blocks, 1, "balanced").summary(blocks)
    assert sum(half.tokens or 0 for half in halves) == len(expected)
    assert (blocks.unit, blocks.tokenizer_fingerprint) == ("block", tokenizer.fingerprint)


def test_blocks_are_saved_with_their_tokens(tokenizer: Any, tmp_path: Path) -> None:
    corpus = UserCorpus.from_pairs([("ann", "one 👩🏽‍🚀 two")])
    blocks = corpus.in_blocks(tokenizer, 2)
    # The cut goes through an emoji, so the text alone would not give the tokens back.
    assert any("\ufffd" in document.text for document in blocks.documents())
    blocks.save(tmp_path / "saved")
    loaded = UserCorpus.load(tmp_path / "saved")
    assert list(loaded.documents()) == list(blocks.documents())
    assert (loaded.unit, loaded.tokenizer_fingerprint) == ("block", tokenizer.fingerprint)
    assert next(loaded.documents_of("block-00000001")).tokens == list(blocks.documents())[1].tokens
    other = corpus.in_blocks(tokenizer, 3)
    assert other.fingerprint != blocks.fingerprint == loaded.fingerprint


def test_fingerprint_of_blocks_covers_the_token_ids(tokenizer: Any) -> None:
    corpus = UserCorpus.from_pairs([("ann", "one two three")])
    merged, bytewise = (corpus.in_blocks(each, 1000) for each in (tokenizer, build_tokenizer(257)))
    assert [d.text for d in merged.documents()] == [d.text for d in bytewise.documents()]
    assert merged.fingerprint != bytewise.fingerprint


def test_text_without_users_can_only_be_cut_in_blocks(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "wiki.txt").write_text("one two\n\nthree four")
    source = CorpusSource(str(tmp_path / "wiki.txt"))
    with pytest.raises(CorpusError, match="cut the corpus in blocks"):
        UserCorpus.read(source)
    corpus = UserCorpus.read(source, without_users=True)
    assert corpus.unit == "undivided"
    assert "".join(d.text for d in corpus.in_blocks(tokenizer, 2).documents()) == ("one two\n\nthree four")


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "8"])
def test_block_size_must_be_a_positive_whole_number(tokenizer: Any, size: Any) -> None:
    with pytest.raises(InputError, match="blocks="):
        UserCorpus.from_pairs(PAIRS).in_blocks(tokenizer, size)


def test_blocks_are_not_cut_again(tokenizer: Any) -> None:
    blocks = UserCorpus.from_pairs(PAIRS).in_blocks(tokenizer, 4)
    with pytest.raises(CorpusError, match="in blocks already"):
        blocks.in_blocks(tokenizer, 2)


def test_storage_holds_the_temporary_copies(tokenizer: Any, tmp_path: Path, temporary: Path) -> None:
    write_jsonl(tmp_path / "c.jsonl", {"t": "one two three"})
    storage = tmp_path / "storage"
    storage.mkdir()
    section = CorpusSection(path=str(tmp_path / "c.jsonl"), text="t", blocks=2)
    corpus = read_corpus(section, tokenizer, Silent(), storage=storage)
    gc.collect()
    (folder,) = storage.iterdir()
    assert mode(folder) == 0o700
    assert list(temporary.iterdir()) == []
    assert len(corpus) > 1
    corpus.close()
    assert list(storage.iterdir()) == []
