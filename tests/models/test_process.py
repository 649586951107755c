"""Settings of a process that have to come before torch."""

from __future__ import annotations

import subprocess
import sys

from tacit.models.process import wait_briefly

ASK = """
import os
import tacit.cli.serve
from tacit.models.process import wait_briefly
print(wait_briefly(), os.environ.get("GOMP_SPINCOUNT"))
"""


def _said(**environment: str) -> str:
    words = [sys.executable, "-c", ASK]
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def test_the_command_that_serves_is_in_time_to_say_how_long_to_wait() -> None:
    path = ":".join(filter(None, sys.path))
    assert _said(PYTHONPATH=path) == "True 10000"
    assert _said(PYTHONPATH=path, GOMP_SPINCOUNT="7") == "True 7"
    assert _said(PYTHONPATH=path, OMP_WAIT_POLICY="active") == "True None"


def test_after_torch_it_is_too_late() -> None:
    import torch  # noqa: F401

    assert not wait_briefly()
