"""A line on the terminal while files are listed or footers are read, if that takes long enough to wonder about."""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

_PATIENCE = 1.0
"""Seconds without a line: most datasets open faster."""


@contextmanager
def index_progress() -> Generator[Callable[[str, int, int], None]]:
    """A callback for (what is done, how many are done, of how many or 0), drawn only on a terminal."""
    started = time.monotonic()
    drawn = 0

    def show(phase: str, done: int, total: int) -> None:
        nonlocal drawn
        if time.monotonic() - started < _PATIENCE or not sys.stderr.isatty():
            return
        count = f"{done:,} of {total:,}" if total else f"{done:,}"
        line = f"headrace: {phase}, {count}"
        sys.stderr.write("\r" + line.ljust(drawn))
        sys.stderr.flush()
        drawn = len(line)

    try:
        yield show
    finally:
        if drawn:
            sys.stderr.write("\r" + " " * drawn + "\r")
            sys.stderr.flush()
