"""Nothing is half-written; private files are private from their first moment."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest

from tacit.errors import InputError, OutputExists
from tacit.files import new_file, new_folder, read_json, sha256_of, write_json


def repr_short(value: object) -> str:
    return repr(value)[:10]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "below" / "file"
    with new_file(target) as handle:
        handle.write(b"content")
        assert not target.exists()
    assert target.read_bytes() == b"content"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_a_failure_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(RuntimeError), new_file(target, overwrite=True) as handle:
        handle.write(b"new")
        raise RuntimeError
    assert target.read_text() == "old"
    with pytest.raises(RuntimeError), new_folder(tmp_path / "folder") as folder:
        (folder / "inside").write_text("x")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_private_means_owner_only_already_while_writing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with new_file(tmp_path / "secret", private=True) as handle:
            handle.write(b"x")
            (temporary,) = tmp_path.iterdir()
            assert mode(temporary) == 0o600
        with new_folder(tmp_path / "folder", private=True) as folder:
            assert mode(folder) == 0o700
    finally:
        os.umask(before)
    assert mode(tmp_path / "secret") == 0o600
    assert mode(tmp_path / "folder") == 0o700


def test_existing_outputs_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("there", "dangling"):
        with pytest.raises(OutputExists, match="exists already"), new_file(tmp_path / name):
            pass
        with pytest.raises(OutputExists, match="exists already"), new_folder(tmp_path / name):
            pass
    with pytest.raises(InputError, match="Cannot create the folder"), new_file(tmp_path / "there" / "below"):
        pass


def test_json_has_no_infinity_and_one_form(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": 1, "a": "ü"})
    assert (tmp_path / "a").read_text(encoding="utf-8") == '{\n  "b": 1,\n  "a": "ü"\n}\n'
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "b", {"x": float("nan")})
    assert not (tmp_path / "b").exists()


def test_sha256(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "f").write_bytes(content)
    assert sha256_of(tmp_path / "f") == hashlib.sha256(content).hexdigest()


def test_a_folder_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    rename = Path.rename

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def check(self: Path, target: Path) -> Path:
        assert {"weights", "below", self.name} <= set(synced)
        synced.clear()
        return rename(self, target)

    monkeypatch.setattr("os.fsync", note)
    monkeypatch.setattr(Path, "rename", check)
    with new_folder(tmp_path / "folder") as folder:
        (folder / "below").mkdir()
        (folder / "below" / "weights").write_text("x")
    assert synced == [tmp_path.name]  # and so is the name


@pytest.mark.parametrize("content", [None, b"{", b"[1]", b"\xff", b"[" * 100_000], ids=repr_short)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "data.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"data.json is (missing|damaged).*; train again\.$"):
        read_json(path, "train again")


def test_a_full_disk_names_the_file_and_other_errors_keep_their_words(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as full, new_file(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert full.value.filename == str(tmp_path / "a")
    with pytest.raises(OSError, match=r"^hub down$"), new_file(tmp_path / "a"):
        raise OSError("hub down")
    assert list(tmp_path.iterdir()) == []
