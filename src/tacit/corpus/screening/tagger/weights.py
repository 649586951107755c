"""The file that holds the tagger: whole numbers of one byte, and what they must fit together.

``weights.npz`` is written by ``tools/tagger/train.py``, always with the same bytes for the same numbers.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.corpus.screening.tagger.features import LISTS, ROWS, WordLists
from tacit.corpus.screening.tagger.network import DILATIONS, Layer, Network
from tacit.errors import Tampered

LABELS = ("PERSON", "LOCATION", "ORGANISATION", "ADDRESS", "GROUP", "DATE", "AGE", "TITLE", "CODE")
EMBEDDED, FLAGS, WIDTH = 62, 2, 128
SHIFT = 7  # a weight of 1 is stored as 2**7
SCORE_UNIT, SCORE_RANGE = 16, 192  # the score is read from a table at the logit in sixteenths
SHIPPED = Path(__file__).with_name("weights.npz")


@dataclass(frozen=True)
class Weights:
    """Everything that was learnt."""

    table: NDArray[np.int8]  # [ROWS, EMBEDDED]
    lists: WordLists
    network: Network
    scores: NDArray[np.float64]  # of the logits -SCORE_RANGE .. SCORE_RANGE, in sixteenths
    fingerprint: str


def load_weights(path: Path = SHIPPED) -> Weights:
    """Read the file and check that its numbers fit together."""
    content = path.read_bytes()
    fingerprint = hashlib.sha256(content).hexdigest()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        weights = assemble(arrays, fingerprint)
    except (KeyError, ValueError, OSError, zipfile.BadZipFile):
        raise Tampered(f"{path} is not the embedded tagger of this version; install tacit again.") from None
    return weights


def save_weights(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays so that equal numbers give equal bytes (``numpy.savez`` writes the time of day)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(arrays[name]), allow_pickle=False)
            file.writestr(
                zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0)), buffer.getvalue(), zipfile.ZIP_DEFLATED
            )


def assemble(arrays: dict[str, NDArray[Any]], fingerprint: str) -> Weights:
    """Put arrays together, where they have the right kinds and shapes."""
    table = _checked(arrays["table"], np.int8, (ROWS, EMBEDDED))
    layers = []
    for depth in range(len(DILATIONS)):
        inputs = 3 * (WIDTH if depth else EMBEDDED + FLAGS)
        weight = _checked(arrays[f"kernel{depth}"], np.int8, (inputs, WIDTH))
        bias = _checked(arrays[f"bias{depth}"], np.int32, (WIDTH,))
        layers.append(Layer(weight.astype(np.float32), bias.astype(np.float32), SHIFT))
    head = _checked(arrays["head"], np.int8, (len(DILATIONS) * WIDTH, 1 + len(LABELS)))
    head_bias = _checked(arrays["head_bias"], np.int32, (1 + len(LABELS),))
    scores = _checked(arrays["scores"], np.float64, (2 * SCORE_RANGE + 1,))
    if not (np.diff(scores) >= 0).all() or not (scores[0] >= 0 and scores[-1] <= 1):
        raise ValueError("scores that do not rise from 0 to 1")
    lists = WordLists({name: _checked(arrays[f"list-{name}"], np.uint8, None) for name in LISTS})
    network = Network(tuple(layers), Layer(head.astype(np.float32), head_bias.astype(np.float32), SHIFT))
    return Weights(table, lists, network, scores, fingerprint)


def _checked(array: NDArray[Any], kind: type[np.generic], shape: tuple[int, ...] | None) -> NDArray[Any]:
    if array.dtype != kind or (shape is not None and array.shape != shape):
        raise ValueError("an array of another kind or shape")
    return array
