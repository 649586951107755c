"""Keeps transformers' progress bars and log lines out of what tacit prints.

tacit reports through `tacit.progress` and its errors; whatever a library writes to the terminal meanwhile
would end up in the middle of a table or of JSON. The libraries' own settings come back afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

# The settings are global to the process, and so is the patching that transformers does while it loads:
# two threads take turns.
_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers and huggingface_hub while the block runs."""
    from transformers.utils import logging

    with _ONE_AT_A_TIME:
        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()


@contextlib.contextmanager
def quiet_gguf() -> Iterator[None]:
    """Silence the GGUF reader too, whose bar heeds none of transformers' settings."""
    from transformers import modeling_gguf_pytorch_utils as reader

    with quiet():
        bar = reader.tqdm
        reader.tqdm = functools.partial(bar, disable=True)
        try:
            yield
        finally:
            reader.tqdm = bar
