"""How fast the machine allows any loader to be: what is measured beside them, on one core, in the same run.

A row is ``{"name": ..., "tokens": ..., "seconds": ...}``; more of them can be measured elsewhere and added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.bench.data import flat_tokens
from headrace.bench.job import BATCH, SEQ_LEN, Place

__all__ = ["measure"]

MOST = 64_000_000  # tokens held in memory: 256 MB, far beyond any cache


def measure(place: Place, seconds: float) -> list[dict[str, Any]]:
    """Measure each limit for about `seconds`, of CPU time and hence on one core."""
    parts: list[np.ndarray[Any, Any]] = []
    for tokens in flat_tokens(place.files):
        parts.append(tokens)
        if sum(map(len, parts)) >= MOST:
            break
    source = np.concatenate(parts)
    size = BATCH * SEQ_LEN
    source = np.resize(source, max(1, len(source) // size) * size)
    target = np.empty_like(source)
    batch = np.empty(size, np.int32)

    def copy() -> None:
        np.copyto(target, source)

    def write() -> None:
        for begin in range(0, len(source), size):
            np.copyto(batch, source[begin : begin + size])

    return [
        _row("copy once in memory", copy, len(source), seconds),
        _row("write into a reused batch", write, len(source), seconds),
    ]


def _row(name: str, run: Callable[[], None], tokens: int, seconds: float) -> dict[str, Any]:
    run()  # touches all pages
    rounds, begin = 0, time.process_time()
    while not rounds or time.process_time() - begin < seconds:
        run()
        rounds += 1
    return {"name": name, "tokens": tokens * rounds, "seconds": time.process_time() - begin}
