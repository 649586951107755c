"""Numbers that a caller gives, each within its limits.

The upper limits are far beyond any use: they turn a slip of the keyboard into a sentence, where it would
otherwise fill the memory or the disk.
"""

from __future__ import annotations

import reprlib
from typing import TypeGuard

from tacit.errors import InputError

SEED_BITS = 256


def require_whole(name: str, value: object, *, least: int = 1, most: int, example: int) -> None:
    """Refuse what is not a whole number from ``least`` to ``most``."""
    if not _is_whole(value) or not least <= value <= most:
        raise InputError(
            f"Expected {name}={reprlib.repr(value)} to be a whole number from {least} to {most:,}, "
            f"e.g. {example}."
        )


def require_share(name: str, value: object, meaning: str, *, most: float = 1, example: float) -> None:
    """Refuse what is not a number from 0 to ``most``."""
    if not (isinstance(value, float) or _is_whole(value)) or not 0 <= value <= most:
        raise InputError(
            f"Expected {name}={reprlib.repr(value)} in [0, {most}]; it is {meaning}, e.g. {example}."
        )


def require_seed(name: str, value: object) -> None:
    """Refuse what is not a seed."""
    if not _is_whole(value) or not 0 <= value < 2**SEED_BITS:
        raise InputError(
            f"Expected {name}={reprlib.repr(value)} to be a whole number from 0 to 2**{SEED_BITS}-1, e.g. 7."
        )


def _is_whole(value: object) -> TypeGuard[int]:
    # bool is an int in Python, but True is nobody's count.
    return isinstance(value, int) and not isinstance(value, bool)
