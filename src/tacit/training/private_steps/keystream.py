"""Random bits that nobody can tell from coins, nor work back or forth from the ones that are seen."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

_BLOCK = 16
_ZEROS = bytes(1 << 18)
_GALOIS_BLOCKS = (1 << 32) - 2  # as many as that mode allows


class Keystream:
    """AES-256 in counter mode, under a key from the operating system; never saved: no bit comes twice.

    A fast generator that is merely seeded well is not enough. Where no example's gradient reaches, as in most
    rows of an embedding, a released step is the noise itself; from 624 outputs of a Mersenne Twister all
    others follow, those that hide somebody's gradient too.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._encryptors = _counter_mode(algorithms.AES256(key or os.urandom(32)))
        self._encryptor, self._left = next(self._encryptors)

    @classmethod
    def of(cls, seed: int, *stream: int) -> Keystream:
        """The same bits for the same numbers: for experiments and tests, and no protection."""
        return cls(hashlib.sha256(repr((seed, *stream)).encode()).digest())

    def fill(self, room: npt.NDArray[np.uint8]) -> None:
        """Overwrite all but the last 15 bytes, which the cipher's interface wants as room to spare."""
        begin, end = 0, len(room) - _BLOCK + 1
        while begin < end:
            if not self._left:
                self._encryptor, self._left = next(self._encryptors)
            size = min(len(_ZEROS), end - begin, self._left)
            zeros = memoryview(_ZEROS)[:size]
            self._encryptor.update_into(zeros, room[begin : begin + size + _BLOCK - 1].data)
            begin, self._left = begin + size, self._left - size

    def uniforms(self, count: int) -> npt.NDArray[np.float64]:
        """Independent, uniform on the multiples of 2^-53 in [0, 1)."""
        room = np.empty(8 * count + _BLOCK - 1, np.uint8)
        self.fill(room)
        return (room[: 8 * count].view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _counter_mode(cipher: algorithms.AES256) -> Iterator[tuple[Any, int]]:
    """Encryptors that give the stream one after the other, and how many bytes each gives.

    Galois mode encrypts as counter mode does, from its third block on and as far as 32 bits count. Where a
    processor computes several blocks at once, OpenSSL has only this mode use it: less than half the time.
    """
    yield Cipher(cipher, modes.CTR(bytes(_BLOCK))).encryptor(), 2 * _BLOCK
    yield Cipher(cipher, modes.GCM(bytes(12))).encryptor(), _GALOIS_BLOCKS * _BLOCK
    rest = (2 + _GALOIS_BLOCKS).to_bytes(_BLOCK, "big")
    yield Cipher(cipher, modes.CTR(rest)).encryptor(), sys.maxsize
