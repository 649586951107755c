"""Settings of a process that runs models, each worth a factor of two or more where it matters.

They are for the process as a whole, so that commands ask for them and the library does not.
"""

from __future__ import annotations

import ctypes
import os
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

# Longer than it takes to get from one operation to the next, far shorter than a turn of the scheduler.
_SPINS: Final = "10000"


def wait_briefly() -> bool:
    """Let a thread that waits for another one's share of an operation go to sleep soon.

    GNU's OpenMP spins for milliseconds. Where some other process takes a core meanwhile, and be it a client,
    the thread that spins keeps the other core from the one it waits for: beside a few busy processes
    operations took 3 to 75 times as long as alone, and with this two to three times (short runs on a loaded
    machine). Before torch is loaded, and False after that; what the environment says already stays.
    """
    if "torch" in sys.modules:
        return False
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    return True


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
