"""Fixtures for all tests: tiny models built once per run, and an environment that reaches no hub.

Each run has its own TACIT_HOME. Tests marked ``download`` use the developer's own cache instead, so that
the embedded model is fetched once per machine and not once per run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports the libraries that read them. An empty hub cache, so that no test depends on what
# the developer happens to have downloaded.
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="tacit-tests-")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The models are so small that a second thread only gets in the way, in this process and in those it starts.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

from tacit.files import new_folder
from tests.tiny import BUILDERS

_DEVELOPERS_HOME = os.environ.get("TACIT_HOME")

torch.set_num_threads(1)
# A shell starts what it puts into the background deaf to SIGINT, and processes started here would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure() -> None:
    """Remove the hub cache that this process made."""
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A temporary folder that all workers of one run see."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session", autouse=True)
def _own_tacit_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_HOME", str(tmp_path_factory.mktemp("tacit_home")))
        yield


@pytest.fixture(autouse=True)
def _developers_home_for_downloads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("download") is None:
        return
    if _DEVELOPERS_HOME is None:
        monkeypatch.delenv("TACIT_HOME")
    else:
        monkeypatch.setenv("TACIT_HOME", _DEVELOPERS_HOME)


def _built_once(shared_folder: Path, name: str) -> Path:
    folder = shared_folder / f"tiny_{name}"
    with (shared_folder / f"tiny_{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with torch.random.fork_rng(devices=[]), new_folder(folder) as building:
                BUILDERS[name](building)
    return folder


@pytest.fixture(scope="session")
def tiny_transformer(shared_folder: Path) -> Path:
    """A fitted GPT-2-shaped model: 4 layers, width 64, context 128, 512 byte-level tokens."""
    return _built_once(shared_folder, "transformer")


@pytest.fixture(scope="session")
def tiny_lstm(shared_folder: Path) -> Path:
    """A fitted, tied LSTM: 2 layers, width 64, the same kind of tokenizer."""
    return _built_once(shared_folder, "lstm")


@pytest.fixture(scope="session")
def tiny_llama(shared_folder: Path) -> Path:
    """An untrained Llama with grouped-query attention: 3 layers, width 32."""
    return _built_once(shared_folder, "llama")


@pytest.fixture(scope="session", params=["transformer", "lstm"])
def tiny_model(request: pytest.FixtureRequest, shared_folder: Path) -> Path:
    """Both families, one after the other."""
    return _built_once(shared_folder, request.param)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server that lives as long as the tests of a worker."""
    # pgserver asks for this folder when it is imported, and warns where there is none.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    import pgserver

    module: Any = pgserver  # which has no types
    # Not among pytest's own folders: the next pytest to start closes those to all but its user, and as root
    # the server runs as somebody else.
    with tempfile.TemporaryDirectory(prefix="tacit-postgres-") as folder:
        server = module.get_server(folder, cleanup_mode="stop")
        yield server.get_uri()
        # At once, without writing out what hundreds of databases hold: nobody will read them.
        os.kill(server.get_pid(), signal.SIGQUIT)
        server.cleanup()
