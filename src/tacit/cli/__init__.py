"""The command line: one file per command. A command parses, calls the library, prints.

This file imports next to nothing: the commands take a second to import, and whoever interrupts them then
must find somebody at home.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Run the command line; being interrupted, terminated or no longer read is no error of tacit's."""
    with _as_interrupts() as received:
        try:
            from tacit.cli.app import run

            run()
            sys.stdout.flush()
        except BaseException as stop:
            if received:
                # Whatever it became on its way here, the signal was the cause. A second one changes nothing.
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_IGN)
                word = "interrupted" if received[0] == signal.SIGINT else "terminated"
                sys.stderr.write(f"tacit: {word}.\n")
                sys.exit(128 + received[0])
            if isinstance(stop, BrokenPipeError) or isinstance(stop.__context__, BrokenPipeError):
                # The reader of our output (head, less) has gone; Python must not complain again at exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(0)
            raise


@contextlib.contextmanager
def _as_interrupts() -> Iterator[list[int]]:
    """Turn every polite signal to stop into KeyboardInterrupt, so that all clean up alike."""
    received: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup and the like have asked for this one to be ignored
            signal.signal(number, interrupt)
    try:
        yield received
    finally:
        for number, handler in before.items():
            if received or signal.getsignal(number) is interrupt:  # else a command ignores them to the end
                signal.signal(number, handler)
