"""Two settings of a process that runs models, each worth a factor of two in mixing (benchmarks/mixing.py).

Both are for the process as a whole, so that commands ask for them and the library does not.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")

# mallopt's names for them, in <malloc.h>
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENAS: Final = -8
_KEPT_BYTES: Final = 2**30
_LARGEST_FROM_HEAP: Final = 2**25  # the most that glibc takes


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed: a distribution's memory is asked for again a millisecond later.

    Otherwise glibc hands megabytes back to the system each time, and every page has to be faulted in anew.
    Before the first thread starts. False where there is no glibc.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = {_TRIM_THRESHOLD: _KEPT_BYTES, _MMAP_THRESHOLD: _LARGEST_FROM_HEAP, _ARENAS: 1}
    return all(mallopt(name, value) == 1 for name, value in wanted.items())


def apart(work: Callable[[], T]) -> T:
    """Run something in a thread of its own and wait for it.

    Each thread that computes has its own workers of OpenMP. With two such threads there are more workers than
    cores, and GNU's OpenMP then lets all of them sleep between any two operations. Workers end with the
    thread that they work for: what is set up apart leaves the cores to the thread that goes on computing.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="tacit-setup") as thread:
        return thread.submit(work).result()
