"""One work folder for the SubMix experiments: what one of them has trained, the others find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tacit.experiments import Workshop


@pytest.fixture(scope="session")
def submix_shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Kept as long as the tests of a worker."""
    folder: Path = tmp_path_factory.mktemp("submix")
    return Workshop(folder / "work")
