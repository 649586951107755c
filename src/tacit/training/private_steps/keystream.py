"""Random bits that nobody can tell from coins, nor work back or forth from the ones that are seen."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_BLOCK = 16
_ZEROS = bytes(1 << 18)


class Keystream:
    """AES-256 in counter mode, under a key from the operating system; never saved: no bit comes twice.

    A fast generator that is merely seeded well is not enough. Where no example's gradient reaches, as in most
    rows of an embedding, a released step is the noise itself; from 624 outputs of a Mersenne Twister all
    others follow, those that hide somebody's gradient too.
    """

    def __init__(self, key: bytes | None = None) -> None:
        cipher = Cipher(algorithms.AES256(key or os.urandom(32)), modes.CTR(bytes(_BLOCK)))
        self._encryptor = cipher.encryptor()

    @classmethod
    def of(cls, seed: int, *stream: int) -> Keystream:
        """The same bits for the same numbers: for experiments and tests, and no protection."""
        return cls(hashlib.sha256(repr((seed, *stream)).encode()).digest())

    def fill(self, room: npt.NDArray[np.uint8]) -> None:
        """Overwrite all but the last 15 bytes, which the cipher's interface wants as room to spare."""
        for begin in range(0, len(room) - _BLOCK + 1, len(_ZEROS)):
            zeros = memoryview(_ZEROS)[: min(len(_ZEROS), len(room) - _BLOCK + 1 - begin)]
            self._encryptor.update_into(zeros, room[begin : begin + len(zeros) + _BLOCK - 1].data)

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Independent, uniform on the multiples of 2^-53 in [0, 1)."""
        room = np.empty(8 * count + _BLOCK - 1, np.uint8)
        self.fill(room)
        return (room[: 8 * count].view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
